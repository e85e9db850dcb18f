// One timestep of the selective scan (Gu and Dao 2023, section 3.2) on the CPU:
//
//     dt = softplus(delta + bias),  h' = exp(dt A) h + dt u B,  y = (<C, h'> + D u) silu(z)
//
// The operator `selective_scan_step` and acting share this code. Each state is read once and written once. kLanes
// channels are computed together, so that their sums over states form one vector.
//
// Shapes: d channels, n states per channel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

namespace amago {

template <class A>
struct SelectiveWeights {
    int64_t channels, states;
    const A *rates, *D, *bias;  // (d, n), (d,) and (d,); D and bias may be null
    bool use_softplus;
};

// One row; every array is contiguous.
template <class A>
struct SelectiveRow {
    const A *u, *delta, *z;  // (d,); z may be null
    const A *B, *C;          // (n,)
    const A* before;         // (d, n)
    A *after, *y;            // (d, n) and (d,)
};

// The next states of one channel; returns their products with C by lane, and adds those beyond whole vectors to `rest`.
template <int STATES, class A>
inline Vector<A> next_states(A dt, A in, const A* rates, const A* B, const A* C, const A* before, A* after,
                             int64_t states, A& rest) {
    constexpr int n = kLanes<A>;
    const int64_t count = STATES ? STATES : states, whole = count / n * n;
    Vector<A> products{};
    for (int64_t j = 0; j < whole; j += n) {
        const Vector<A> decay = exponential(dt * load_vector<A>(rates + j));
        const Vector<A> now = decay * load_vector<A>(before + j) + in * load_vector<A>(B + j);
        store_vector(after + j, now);
        products += now * load_vector<A>(C + j);
    }
    for (int64_t j = whole; j < count; ++j) {
        after[j] = exponential(dt * rates[j]) * before[j] + in * B[j];
        rest += after[j] * C[j];
    }
    return products;
}

// Channels from `first` on: kLanes of them, or as many as are left. STATES is n where it is known, else 0.
template <int STATES, class A>
void selective_step_block(const SelectiveWeights<A>& w, const SelectiveRow<A>& row, int64_t first) {
    constexpr int n = kLanes<A>;
    const int m = static_cast<int>(std::min<int64_t>(n, w.channels - first));
    const auto part_of = [&](const A* from) {
        if (from && m == n) return load_vector<A>(from + first);
        A part[n] = {};
        if (from) std::copy_n(from + first, m, part);
        return load_vector<A>(part);
    };
    Vector<A> step = part_of(row.delta) + part_of(w.bias);
    if (w.use_softplus) step = softplus(step);
    const Vector<A> u = part_of(row.u);
    A dt[n], in[n], rest[n] = {}, y[n];
    store_vector(dt, step);
    store_vector(in, Vector<A>(step * u));
    Vector<A> products[n] = {};
    for (int c = 0; c < m; ++c) {
        const int64_t at = (first + c) * w.states;
        products[c] = next_states<STATES>(dt[c], in[c], w.rates + at, row.B, row.C, row.before + at, row.after + at,
                                          w.states, rest[c]);
    }
    Vector<A> out = sums_over_lanes<A>(products) + load_vector<A>(rest) + part_of(w.D) * u;
    if (row.z) {
        const Vector<A> z = part_of(row.z);
        out *= z * sigmoid(z);
    }
    store_vector(y, out);
    std::copy_n(y, m, row.y + first);
}

}  // namespace amago
