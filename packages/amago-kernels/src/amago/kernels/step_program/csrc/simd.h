// Short vectors of float32, as long as the processor has them, in the notation of GCC and clang.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "numbers.h"

namespace amago {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kBlockRows = 12;  // rows of a matrix product whose sums fit the registers, two vectors each
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kBlockRows = 6;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kBlockRows = 12;
#else
constexpr int kLanes = 4;
constexpr int kBlockRows = 6;
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

inline Vector load_vector(const float* at) {
    Vector v;
    std::memcpy(&v, at, sizeof v);
    return v;
}
inline void store_vector(float* at, Vector v) { std::memcpy(at, &v, sizeof v); }

// The sums of kLanes vectors, each in the lane of its number: a transposition on the way of a tree of additions.
// Step by step pairs of vectors become one, whose lanes alternate between the two; the order of the input is such
// that they end up in place.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
template <int STEP>
inline Vector add_pairs(Vector a, Vector b) {
    typedef int32_t Index __attribute__((vector_size(kLanes * sizeof(int32_t))));
    Index low, high;
    for (int i = 0; i < kLanes; ++i) {
        const int group = i / (2 * STEP) * 2 * STEP, within = i % (2 * STEP);
        const int from = group + within % STEP + (within < STEP ? 0 : kLanes);
        low[i] = from;
        high[i] = from + STEP;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}
template <int COUNT>
inline Vector sums_of(const Vector* v) {
    if constexpr (COUNT == 1)
        return v[0];
    else {
        constexpr int half = COUNT / 2;
        Vector pairs[half];
        // Neighbours at distance `half` meet where the lanes are that far apart.
#pragma GCC unroll 16
        for (int i = 0; i < half; ++i) pairs[i] = add_pairs<half>(v[i], v[i + half]);
        return sums_of<half>(pairs);
    }
}
#else
template <int COUNT>
inline Vector sums_of(const Vector* v) {
    Vector sums = {};
    for (int i = 0; i < COUNT; ++i) {
        float sum = 0;
        for (int j = 0; j < kLanes; ++j) sum += v[i][j];
        sums[i] = sum;
    }
    return sums;
}
#endif

inline float sigmoid(float x) {
    const float e = vexp(-std::fabs(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
inline float vtanh(float x) {
    const float e = vexp(-2.0f * std::fabs(x)), t = (1.0f - e) / (1.0f + e);
    return x < 0 ? -t : t;
}

}  // namespace amago
