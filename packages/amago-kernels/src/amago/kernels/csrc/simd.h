// Vectors as wide as the processor's registers, in the vector extension of GCC and clang.
//
// Branches are written as selections between vectors: compilers turn a loop over scalars with a branch into jumps
// now and then, and half of a network's activations are mispredicted.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "numbers.h"

namespace amago {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class A>
struct VectorOf {
    typedef A type __attribute__((vector_size(kVectorBytes)));
};
template <class A>
using Vector = typename VectorOf<A>::type;
template <class A>
constexpr int kLanes = kVectorBytes / sizeof(A);

using Floats = Vector<float>;
using Bits = Vector<uint32_t>;

// kLanes consecutive elements of any dtype, converted to A.
template <class A, class T>
inline Vector<A> load_vector(const T* from) {
    Vector<A> vector;
    if constexpr (std::is_same_v<T, A>) {
        std::memcpy(&vector, from, sizeof vector);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        typedef uint16_t Shorts __attribute__((vector_size(kVectorBytes / 2)));
        Shorts bits;
        std::memcpy(&bits, from, sizeof bits);
        vector = (Vector<float>)(__builtin_convertvector(bits, Vector<uint32_t>) << 16);
    } else {
        A elements[kLanes<A>];
        for (int lane = 0; lane < kLanes<A>; ++lane) elements[lane] = load(from[lane]);
        std::memcpy(&vector, elements, sizeof vector);
    }
    return vector;
}
inline Floats load_floats(const float* from) { return load_vector<float>(from); }

template <class A>
inline void store_vector(A* to, Vector<A> vector) {
    std::memcpy(to, &vector, sizeof vector);
}

inline Floats splat(float x) { return x - Floats{}; }
inline Floats magnitude(Floats x) { return (Floats)((Bits)x & 0x7fffffffu); }
// `size` with the sign of `x`.
inline Floats with_sign_of(Floats size, Floats x) { return (Floats)((Bits)size | ((Bits)x & 0x80000000u)); }

// exp(x) as `vexp` in numbers.h.
inline Floats vexp(Floats x) {
    constexpr float kRound = 12582912.0f;
    const Floats z = x < -87.0f ? splat(-87.0f) : x;
    const Floats shifted = z * 1.44269504088896341f + kRound;
    const Floats k = shifted - kRound;
    Floats r = z - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Floats value = (Floats)((Bits)p + ((Bits)shifted << 23));
    return x < -87.0f ? Floats{} : (x == x ? value : x);
}

// exp(x) for every x: infinite where float overflows.
inline Floats exponential(Floats x) {
    return x > 88.7228f ? splat(std::numeric_limits<float>::infinity()) : vexp(x);
}

inline Floats sigmoid(Floats x) {
    const Floats e = vexp(-magnitude(x));
    return (x < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}

inline Floats vtanh(Floats x) {
    const Floats e = vexp(-2.0f * magnitude(x));
    return with_sign_of((1.0f - e) / (1.0f + e), x);
}
inline float vtanh(float x) {
    const float e = vexp(-2.0f * std::fabs(x)), t = (1.0f - e) / (1.0f + e);
    return x < 0 ? -t : t;
}

// erf(x) with an absolute error below 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline Floats verf(Floats x) {
    const Floats a = magnitude(x), t = 1.0f / (1.0f + 0.3275911f * a);
    const Floats p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    return with_sign_of(1.0f - p * vexp(-a * a), x);
}

// log(1 + e^x) with a relative error below 1e-6: log(1 + e) = 2 artanh(e / (2 + e)), the series to the 15th power.
inline Floats softplus(Floats x) {
    const Floats e = vexp(-magnitude(x)), s = e / (2.0f + e), q = s * s;
    Floats series = q * (1.0f / 15) + 1.0f / 13;
    series = series * q + 1.0f / 11;
    series = series * q + 1.0f / 9;
    series = series * q + 1.0f / 7;
    series = series * q + 1.0f / 5;
    series = series * q + 1.0f / 3;
    series = series * q + 1.0f;
    const Floats positive = x < 0.0f ? Floats{} : x;  // NaN stays NaN
    return positive + 2.0f * s * series;
}

// The same functions in float64, lane by lane.
template <class Function>
inline Vector<double> each_lane(Vector<double> x, const Function& function) {
    for (int lane = 0; lane < kLanes<double>; ++lane) x[lane] = function(x[lane]);
    return x;
}
inline Vector<double> exponential(Vector<double> x) {
    return each_lane(x, [](double one) { return std::exp(one); });
}
inline Vector<double> sigmoid(Vector<double> x) { return 1.0 / (1.0 + exponential(-x)); }
inline Vector<double> softplus(Vector<double> x) {
    return each_lane(x, [](double one) { return one > 20.0 ? one : std::log1p(std::exp(one)); });
}

// The sum of all lanes, added half to half.
template <int HALF = kLanes<float> / 2>
inline float sum_of(Floats v) {
    if constexpr (HALF == 0) {
        return v[0];
    } else {
        Floats other = v;
        for (int lane = 0; lane < HALF; ++lane) other[lane] = v[lane + HALF];
        return sum_of<HALF / 2>(v + other);
    }
}

template <int WIDTH>
constexpr int first_of_pair(int lane, int lanes) {
    const int group = lane / WIDTH;
    return group % 2 * lanes + group / 2 * 2 * WIDTH + lane % WIDTH;
}

// Adds neighbouring groups of WIDTH lanes of a, and of b: the results alternate between the two.
template <int WIDTH, class A, std::size_t... LANE>
inline Vector<A> fold(Vector<A> a, Vector<A> b, std::index_sequence<LANE...>) {
    constexpr int n = kLanes<A>;
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, first_of_pair<WIDTH>(LANE, n)...) +
           __builtin_shufflevector(a, b, (first_of_pair<WIDTH>(LANE, n) + WIDTH)...);
#else
    using Index = Vector<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>>;
    return __builtin_shuffle(a, b, Index{first_of_pair<WIDTH>(LANE, n)...}) +
           __builtin_shuffle(a, b, Index{(first_of_pair<WIDTH>(LANE, n) + WIDTH)...});
#endif
}

// The sums over the lanes of kLanes vectors, as one vector in their order; the vectors are overwritten. Summing one
// vector takes as long as a dozen products; folding kLanes of them in pairs costs a quarter of that for each.
template <class A, int WIDTH = kLanes<A> / 2>
inline Vector<A> sums_over_lanes(Vector<A>* vectors) {
#pragma GCC unroll 8
    for (int i = 0; i < WIDTH; ++i)
        vectors[i] = fold<WIDTH, A>(vectors[i], vectors[i + WIDTH], std::make_index_sequence<kLanes<A>>{});
    if constexpr (WIDTH == 1)
        return vectors[0];
    else
        return sums_over_lanes<A, WIDTH / 2>(vectors);
}

}  // namespace amago
