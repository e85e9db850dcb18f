// Short vectors of float32, as long as the processor has them, in the notation of GCC and clang.
//
// What branches on a number is written as a choice between vectors: the compilers turn a loop over single numbers
// into jumps now and then, and half of a network's activations are guessed wrong by the processor.
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
typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));

inline Vector load_vector(const float* at) {
    Vector v;
    std::memcpy(&v, at, sizeof v);
    return v;
}
inline void store_vector(float* at, Vector v) { std::memcpy(at, &v, sizeof v); }
inline Vector splat(float x) { return x - Vector{}; }
inline Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline Vector magnitude(Vector x) { return (Vector)((Bits)x & 0x7fffffffu); }
// `size` with the sign of `x`.
inline Vector signed_as(Vector size, Vector x) { return (Vector)((Bits)size | ((Bits)x & 0x80000000u)); }

// exp(x) as `vexp` of numbers.h has it.
inline Vector vexp(Vector x) {
    constexpr float kRound = 12582912.0f;
    const Vector z = x < -87.0f ? splat(-87.0f) : x;
    const Vector shifted = z * 1.44269504088896341f + kRound;
    const Vector k = shifted - kRound;
    Vector r = z - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Vector value = (Vector)((Bits)p + ((Bits)shifted << 23));
    return x < -87.0f ? Vector{} : (x == x ? value : x);
}

inline Vector sigmoid(Vector x) {
    const Vector e = vexp(-magnitude(x));
    return (x < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}
inline Vector vtanh(Vector x) {
    const Vector e = vexp(-2.0f * magnitude(x));
    return signed_as((1.0f - e) / (1.0f + e), x);
}
// erf(x) to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline Vector verf(Vector x) {
    const Vector a = magnitude(x), t = 1.0f / (1.0f + 0.3275911f * a);
    const Vector p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    return signed_as(1.0f - p * vexp(-a * a), x);
}

inline float vtanh(float x) {
    const float e = vexp(-2.0f * std::fabs(x)), t = (1.0f - e) / (1.0f + e);
    return x < 0 ? -t : t;
}

// The lanes put together, half onto half: no lane waits for all before it.
#if defined(__GNUC__) && !defined(__clang__)
template <int HALF = kLanes / 2, class Two>
inline float fold(Vector v, const Two& two) {
    if constexpr (HALF == 0)
        return v[0];
    else {
        Bits from;
        for (int i = 0; i < kLanes; ++i) from[i] = i ^ HALF;
        return fold<HALF / 2>(two(v, __builtin_shuffle(v, from)), two);
    }
}
#else
template <class Two>
inline float fold(Vector v, const Two& two) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
        Vector other = v;
        for (int j = 0; j < half; ++j) other[j] = v[j + half];
        v = two(v, other);
    }
    return v[0];
}
#endif
inline float sum_of(Vector v) {
    return fold(v, [](Vector a, Vector b) { return a + b; });
}
inline float max_of(Vector v) { return fold(v, larger); }

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

}  // namespace amago
