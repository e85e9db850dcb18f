// Rows of logits in the lanes of a warp, and the labels of scalar targets.
#pragma once

#include "gpu.h"
#include "two_hot_cuda.h"

namespace amago {

template <class T>
__device__ T* address(uintptr_t x) {
    return reinterpret_cast<T*>(x);
}

template <int LANES>
__device__ float greatest_of_lanes(float x) {
#pragma unroll
    for (int away = LANES / 2; away > 0; away /= 2) x = fmaxf(x, __shfl_xor_sync(kEveryLane, x, away));
    return x;
}

// The bin of value i of a lane.
template <int VEC, int LANES>
__device__ int bin_of(int i, int lane) {
    return (i / VEC * LANES + lane) * VEC + i % VEC;
}

// The values of a row that this lane holds; -inf beyond the last bin.
template <class T, int VEC, int LANES, int K>
__device__ void read_row(const T* row, int n, int lane, float (&x)[K * VEC]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int first = (k * LANES + lane) * VEC;
        if constexpr (VEC > 1) {
            Pack<T, VEC> pack;
            if (first < n) pack = *reinterpret_cast<const Pack<T, VEC>*>(row + first);
#pragma unroll
            for (int v = 0; v < VEC; ++v) x[k * VEC + v] = first < n ? number(pack.values[v]) : -INFINITY;
        } else {
            x[k] = first < n ? number(row[first]) : -INFINITY;
        }
    }
}

template <class T, int VEC, int LANES, int K>
__device__ void write_row(T* row, int n, int lane, const float (&x)[K * VEC]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int first = (k * LANES + lane) * VEC;
        if (first >= n) continue;
        if constexpr (VEC > 1) {
            Pack<T, VEC> pack;
#pragma unroll
            for (int v = 0; v < VEC; ++v) put(pack.values[v], x[k * VEC + v]);
            *reinterpret_cast<Pack<T, VEC>*>(row + first) = pack;
        } else {
            put(row[first], x[k]);
        }
    }
}

// Position of a return on the support in units of bins. Comparisons, not fminf: NaN must stay NaN.
__device__ inline float position(float target, const Support& support) {
    float x = target < support.low ? support.low : target;
    x = x > support.high ? support.high : x;
    if (support.symlog) x = copysignf(log1pf(fabsf(x)), x);
    x = (x - support.start) / support.width;
    const float last = support.n - 1;
    x = x < 0.0f ? 0.0f : x;
    return x > last ? last : x;
}

// Labels of a normal distribution around a position.
class GaussLabels {
public:
    __device__ GaussLabels(float position, const Support& support)
        : position_(position), sharpness_(support.sharpness),
          total_(erff((support.n - 0.5f - position) * sharpness_) - erff((-0.5f - position) * sharpness_)) {}

    __device__ float operator[](int bin) const {
        const float away = bin - position_;
        return (erff((away + 0.5f) * sharpness_) - erff((away - 0.5f) * sharpness_)) / total_;
    }

private:
    float position_, sharpness_, total_;
};

}  // namespace amago
