// Loops over the rows of strided tensors that share their leading axes, multithreaded.
//
// A tensor is passed as its address and its strides, in numbers (not bytes), one for each leading axis and, if it
// has one, for the axis within the row. Broadcast axes have stride 0, so nothing is copied.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace amago {

using Sizes = std::vector<int64_t>;
// Address and strides; the address is 0 for a tensor that is not given.
using Operand = std::pair<uintptr_t, Sizes>;

inline int64_t product(const Sizes& sizes) {
    int64_t rows = 1;
    for (int64_t size : sizes) rows *= size;
    return rows;
}

// Offsets of one row in each of COUNT tensors, advanced from row to row without divisions.
template <int COUNT>
class RowOffsets {
public:
    RowOffsets(const Sizes& sizes, const Operand* const (&operands)[COUNT], int64_t row)
        : sizes_(sizes), index_(sizes.size()) {
        for (int k = 0; k < COUNT; ++k) {
            strides_[k] = operands[k]->first ? operands[k]->second.data() : nullptr;
            offset_[k] = 0;
        }
        for (int axis = static_cast<int>(sizes.size()) - 1; axis >= 0; --axis) {
            index_[axis] = row % sizes[axis];
            row /= sizes[axis];
            for (int k = 0; k < COUNT; ++k)
                if (strides_[k]) offset_[k] += index_[axis] * strides_[k][axis];
        }
    }

    int64_t operator[](int k) const { return offset_[k]; }

    void next() {
        for (int axis = static_cast<int>(sizes_.size()) - 1; axis >= 0; --axis) {
            const bool carry = ++index_[axis] == sizes_[axis];
            const int64_t steps = carry ? 1 - sizes_[axis] : 1;
            for (int k = 0; k < COUNT; ++k)
                if (strides_[k]) offset_[k] += steps * strides_[k][axis];
            if (!carry) return;
            index_[axis] = 0;
        }
    }

private:
    const Sizes& sizes_;
    std::vector<int64_t> index_;
    const int64_t* strides_[COUNT];
    int64_t offset_[COUNT];
};

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
