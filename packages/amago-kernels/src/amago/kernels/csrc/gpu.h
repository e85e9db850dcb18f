// Shared by the CUDA kernels: conversion of every dtype to float and back, 16-byte access, and warp sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace amago {

constexpr unsigned kEveryLane = 0xffffffffu;

__device__ inline float number(float x) { return x; }
__device__ inline float number(__half x) { return __half2float(x); }
__device__ inline float number(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void put(float& at, float x) { at = x; }
__device__ inline void put(__half& at, float x) { at = __float2half_rn(x); }
__device__ inline void put(__nv_bfloat16& at, float x) { at = __float2bfloat16_rn(x); }

template <class T>
constexpr int kVec = 16 / sizeof(T);

// Neighbouring numbers that are read or written in one access.
template <class T, int VEC = kVec<T>>
struct alignas(sizeof(T) * VEC) Pack {
    T values[VEC];
};

// Sum over LANES neighbouring lanes of a warp, in all of them.
template <int LANES>
__device__ float sum_of_lanes(float x) {
#pragma unroll
    for (int away = LANES / 2; away > 0; away /= 2) x += __shfl_xor_sync(kEveryLane, x, away);
    return x;
}

}  // namespace amago
