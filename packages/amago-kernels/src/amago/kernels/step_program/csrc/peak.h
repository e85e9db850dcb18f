// What one thread can compute at most: multiplications and additions of registers alone, twelve rows of two vectors as
// in a matrix product.
#pragma once

#include <omp.h>

#include <algorithm>

#include "simd.h"

namespace amago {

// Floating point operations per second, the best of some tries.
inline double peak_rate() {
    constexpr int kSums = 2 * kBlockRows;
    constexpr int64_t kTimes = 100000;
    double best = 0;
    for (int tries = 0; tries < 20; ++tries) {
        Vector sums[kSums], x = splat(0.999f), y = splat(1e-3f);
        for (int i = 0; i < kSums; ++i) sums[i] = splat(1e-3f * i);
        asm volatile("" : "+m"(x), "+m"(y));  // else they are known, and nothing is left to compute
        const double start = omp_get_wtime();
        for (int64_t n = 0; n < kTimes; ++n)
#pragma GCC unroll 24
            for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * x + y;
        const double seconds = omp_get_wtime() - start;
        asm volatile("" : : "m"(sums));
        best = std::max(best, 2.0 * kLanes * kSums * kTimes / seconds);
    }
    return best;
}

}  // namespace amago
