// Dtypes in memory and in arithmetic, their conversion, and exp in a form that compilers vectorise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace amago {

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(bfloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float load(float16 x) {
    const uint32_t magnitude = (x.bits & 0x7fffu) << 13;
    // The product moves the exponent's bias from 15 to 127, for subnormal numbers too.
    const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
    const uint32_t bits = (x.bits & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : finite;
    return float_of(bits | (x.bits & 0x8000u) << 16);
}

inline void store(float& at, float x) { at = x; }
inline void store(double& at, double x) { at = x; }
// To the nearest, ties to even; NaN stays NaN.
inline void store(bfloat16& at, float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    at.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}
inline void store(float16& at, float x) {
    const uint32_t bits = bits_of(x) & 0x7fffffffu, sign = bits_of(x) >> 16 & 0x8000u;
    const uint32_t normal = (bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13;  // bias 127 to 15, and rounded
    const uint32_t subnormal = bits_of(float_of(bits) + 0.5f) - 0x3f000000u;   // 0.5 has 2^-24 as its last bit
    const uint32_t special = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t magnitude = bits >= 0x47800000u ? special : (bits < 0x38800000u ? subnormal : normal);
    at.bits = static_cast<uint16_t>(sign | magnitude);
}

// The dtype of sums.
template <class T>
struct Accumulate {
    using type = float;
};
template <>
struct Accumulate<double> {
    using type = double;
};

// Calls work with a value of the dtype of that name.
template <class Work>
void dispatch(const std::string& dtype, const Work& work) {
    if (dtype == "float32")
        work(float{});
    else if (dtype == "float64")
        work(double{});
    else if (dtype == "bfloat16")
        work(bfloat16{});
    else if (dtype == "float16")
        work(float16{});
    else
        throw std::invalid_argument("there is no kernel for numbers of dtype " + dtype);
}

// exp(x) for x <= 88 with a relative error below 2e-7; 0 below -87, NaN for NaN. Cephes' polynomial: x is split
// into k log 2 + r, exp(r) is a polynomial, and k goes into the exponent's bits.
inline float vexp(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const float z = x < -87.0f ? -87.0f : x;
    const float shifted = z * 1.44269504088896341f + kRound;
    const float k = shifted - kRound;
    float r = z - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const float value = float_of(bits_of(p) + (bits_of(shifted) << 23));
    return x < -87.0f ? 0.0f : (x == x ? value : x);
}
inline double vexp(double x) { return std::exp(x); }

// exp of any number: unlike vexp, infinite where float is.
inline float exponential(float x) {
    const float value = vexp(x);
    return x > 88.7228f ? std::numeric_limits<float>::infinity() : value;
}
inline double exponential(double x) { return std::exp(x); }

}  // namespace amago
