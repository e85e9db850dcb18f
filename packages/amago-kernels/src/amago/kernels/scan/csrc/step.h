// One timestep of the selective scan for many rows, on the CPU, from the network's numbers to the gated output:
//
//     dt = softplus(delta + bias),  h' = exp(dt A) h + dt u B,  y = (<C, h'> + D u) silu(z)
//
// Each state is read once and written once. As many channels as a vector has lanes are computed together, for then
// their sums over states are one vector too.
//
// Shapes: B rows, d channels, n states per channel; tensors are dense in their last axis.
#pragma once

#include <cmath>

#include "numbers.h"
#include "rows.h"
#include "vectors.h"

namespace amago {

// log(1 + exp(x)), without overflow, and exact where exp(x) is small: log(1 + e) = 2 artanh(e / (2 + e)).
inline float softplus(float x) {
    const float e = vexp(-std::fabs(x)), s = e / (2.0f + e), q = s * s;
    float series = 1.0f / 15;
    series = series * q + 1.0f / 13;
    series = series * q + 1.0f / 11;
    series = series * q + 1.0f / 9;
    series = series * q + 1.0f / 7;
    series = series * q + 1.0f / 5;
    series = series * q + 1.0f / 3;
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * (series * q + 1.0f);
}
inline double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

template <class A>
A silu(A x) {
    return x / (A{1} + exponential(-x));
}

template <class A>
Vector<A> exponential_of(Vector<A> x) {
    A numbers[kLanes<A>];
    store_vector(numbers, x);
#pragma omp simd
    for (int lane = 0; lane < kLanes<A>; ++lane) numbers[lane] = exponential(numbers[lane]);
    return load_vector<A>(numbers);
}

struct StepSizes {
    int64_t rows, channels, states;
};

template <class A>
struct StepTensors {
    const Operand &state, &u, &delta, &B, &C, &z;  // (B, ...); z may be missing
    const A *rates, *D, *bias;                     // (d, n), (d,) and (d,); the last two may be missing
    bool use_softplus;
    A *y, *after;  // (B, d) and (B, d, n)
};

template <class A>
const A* row_of(const Operand& x, int64_t b) {
    return x.first ? reinterpret_cast<const A*>(x.first) + b * x.second[0] : nullptr;
}

// The next states of one channel; returns their products with C, by lanes. What is left of the states beyond whole
// vectors goes into `rest`.
template <int STATES, class A>
Vector<A> next_states(A dt, A in, const A* rate, const A* B, const A* C, const A* before, A* after, int64_t states,
                      A& rest) {
    constexpr int n = kLanes<A>;
    const int64_t count = STATES ? STATES : states, whole = count / n * n;
    Vector<A> products{};
    for (int64_t j = 0; j < whole; j += n) {
        const Vector<A> fade = exponential_of<A>(dt * load_vector<A>(rate + j));
        const Vector<A> now = fade * load_vector<A>(before + j) + in * load_vector<A>(B + j);
        store_vector(after + j, now);
        products += now * load_vector<A>(C + j);
    }
    for (int64_t j = whole; j < count; ++j) {
        after[j] = exponential(dt * rate[j]) * before[j] + in * B[j];
        rest += after[j] * C[j];
    }
    return products;
}

// As many channels of a row as a vector has lanes, or fewer at its end, from channel `first` on.
template <int STATES, class A>
void step_block(const StepSizes& sizes, const StepTensors<A>& x, int64_t b, int64_t first) {
    constexpr int n = kLanes<A>;
    const int m = static_cast<int>(std::min<int64_t>(n, sizes.channels - first));
    const A* u = row_of<A>(x.u, b) + first;
    const A* delta = row_of<A>(x.delta, b) + first;
    const A* z = row_of<A>(x.z, b);
    const A *B = row_of<A>(x.B, b), *C = row_of<A>(x.C, b);
    const A* before = row_of<A>(x.state, b);
    A dt[n] = {}, rest[n] = {}, y[n];
    for (int c = 0; c < m; ++c) dt[c] = delta[c] + (x.bias ? x.bias[first + c] : A{0});
    if (x.use_softplus)
#pragma omp simd
        for (int c = 0; c < n; ++c) dt[c] = softplus(dt[c]);
    Vector<A> products[n] = {};
    for (int c = 0; c < m; ++c) {
        const int64_t place = (first + c) * sizes.states;
        products[c] = next_states<STATES>(dt[c], dt[c] * u[c], x.rates + place, B, C, before + place,
                                          x.after + b * sizes.channels * sizes.states + place, sizes.states, rest[c]);
    }
    store_vector(y, sums_over_lanes<A>(products));
    for (int c = 0; c < m; ++c) y[c] += rest[c] + (x.D ? x.D[first + c] * u[c] : A{0});
    A* out = x.y + b * sizes.channels + first;
    if (z)
        for (int c = 0; c < m; ++c) out[c] = y[c] * silu(z[first + c]);
    else
        std::copy_n(y, m, out);
}

template <class A>
void step(const StepSizes& sizes, const StepTensors<A>& x, int threads) {
    constexpr int n = kLanes<A>;
    constexpr int64_t kExponential = 4;  // the work of one, in numbers read
    const int64_t blocks = (sizes.channels + n - 1) / n;
    parallel_rows(sizes.rows * blocks, kExponential * n * sizes.states, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t b = item / blocks, first = item % blocks * n;
            if (sizes.states == 16)
                step_block<16>(sizes, x, b, first);
            else
                step_block<0>(sizes, x, b, first);
        }
    });
}

}  // namespace amago
