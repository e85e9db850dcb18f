// Strided tensors as arguments, and loops over rows in several threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace amago {

using Sizes = std::vector<int64_t>;
// Address of a tensor and its strides in numbers (not bytes); the address is 0 for a tensor that is not given.
using Operand = std::pair<uintptr_t, Sizes>;

// Calls work(begin, end) on equal shares of the rows in up to `threads` threads, which are torch's own: the process
// has one OpenMP library. Small work stays in one thread.
template <class Work>
void parallel_rows(int64_t rows, int64_t numbers_per_row, int threads, const Work& work) {
    if (rows == 0) return;
    constexpr int64_t kGrain = 32768;  // minimum numbers per thread, as in torch
    const int64_t useful = (rows * numbers_per_row + kGrain - 1) / kGrain;
    const int team = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>({threads, useful, rows})));
    if (team == 1) {
        work(int64_t{0}, rows);
        return;
    }
#pragma omp parallel num_threads(team)
    {
        const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t begin = rows * me / count, end = rows * (me + 1) / count;
        if (begin < end) work(begin, end);
    }
}

}  // namespace amago
