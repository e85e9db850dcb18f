// The selective state-space recurrence on the CPU: forward, backward, and one timestep.
//
//     h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t,    y_t = <C_t, h_t>
//
// Threads share rows and blocks of 64 channels; the states of a block stay in the first-level cache. The backward pass
// recomputes states from those stored at the start of each chunk of timesteps. Sums over channels or rows are returned
// per block or row, so that results do not depend on the number of threads.
//
// Shapes: L timesteps, B rows, d channels, n states per channel, K chunks, M blocks of channels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "numbers.h"
#include "rows.h"
#include "selective_step.h"

namespace {

using amago::Operand;

constexpr int64_t kBlock = 64;

struct Sizes {
    int64_t length, rows, channels, states, chunk;

    int64_t blocks() const { return (channels + kBlock - 1) / kBlock; }
};

// Row b at time t of a tensor (L, B, .) whose last axis is contiguous.
template <class A>
A* at(const Operand& x, int64_t t, int64_t b) {
    return reinterpret_cast<A*>(x.first) + t * x.second[0] + b * x.second[1];
}

// One step of a block of m channels: writes exp(delta A) to `decay` and the next state to `after`, both (n, kBlock).
// `after` may be `before`. A is (n, d), from the block's first channel on.
template <class A>
void advance(int64_t m, const Sizes& sizes, const A* u, const A* delta, const A* rates, const A* B, const A* before,
             A* decay, A* after) {
    for (int64_t n = 0; n < sizes.states; ++n) {
        const A* rate = rates + n * sizes.channels;
        const A* old = before + n * kBlock;
        A* now = after + n * kBlock;
        A* fade = decay + n * kBlock;
        const A in = B[n];
#pragma omp simd
        for (int64_t c = 0; c < m; ++c) {
            fade[c] = amago::exponential(delta[c] * rate[c]);
            now[c] = fade[c] * old[c] + delta[c] * u[c] * in;
        }
    }
}

// Copy the states of a block from (n, d) to (n, kBlock), and back.
template <class A>
void gather(int64_t m, const Sizes& sizes, const A* there, A* here) {
    for (int64_t n = 0; n < sizes.states; ++n) std::copy_n(there + n * sizes.channels, m, here + n * kBlock);
}
template <class A>
void scatter(int64_t m, const Sizes& sizes, const A* here, A* there) {
    for (int64_t n = 0; n < sizes.states; ++n) std::copy_n(here + n * kBlock, m, there + n * sizes.channels);
}

// Calls work(row, first channel, number of channels, block index) for all rows and blocks.
template <class Work>
void each_block(const Sizes& sizes, int threads, const Work& work) {
    const int64_t blocks = sizes.blocks();
    amago::parallel_rows(
        sizes.rows * blocks, sizes.length * kBlock * sizes.states, threads, [&](int64_t begin, int64_t end) {
            for (int64_t item = begin; item < end; ++item) {
                const int64_t block = item % blocks, first = block * kBlock;
                work(item / blocks, first, std::min(kBlock, sizes.channels - first), block);
            }
        });
}

// Computes y (L, B, d), the last state (B, n, d) and, if `starts` is not null, the states before each chunk
// (K, B, n, d).
template <class A>
void forward(const Sizes& sizes, const Operand& u, const Operand& delta, const A* rates, const Operand& B,
             const Operand& C, const A* initial, A* y, A* last, A* starts, int threads) {
    const int64_t row_states = sizes.states * sizes.channels;
    each_block(sizes, threads, [&](int64_t b, int64_t first, int64_t m, int64_t) {
        std::vector<A> state(sizes.states * kBlock), decay(sizes.states * kBlock);
        const int64_t place = b * row_states + first;
        gather(m, sizes, initial + place, state.data());
        for (int64_t t = 0; t < sizes.length; ++t) {
            if (starts && t % sizes.chunk == 0)
                scatter(m, sizes, state.data(), starts + t / sizes.chunk * sizes.rows * row_states + place);
            advance(m, sizes, at<const A>(u, t, b) + first, at<const A>(delta, t, b) + first, rates + first,
                    at<const A>(B, t, b), state.data(), decay.data(), state.data());
            A* out = y + (t * sizes.rows + b) * sizes.channels + first;
            std::fill_n(out, m, A{0});
            const A* read = at<const A>(C, t, b);
            for (int64_t n = 0; n < sizes.states; ++n) {
                const A* h = state.data() + n * kBlock;
                const A weight = read[n];
#pragma omp simd
                for (int64_t c = 0; c < m; ++c) out[c] += weight * h[c];
            }
        }
        scatter(m, sizes, state.data(), last + place);
    });
}

template <class A>
struct Gradients {
    A *u, *delta;      // (L, B, d)
    A* rates;          // (B, n, d), to be summed over rows
    A *B, *C;          // (M, L, B, n), to be summed over blocks
    A* initial;        // (B, n, d)
};

// With g_t the gradient of h_t and w_t = g_t exp(delta_t A) h_{t-1} that of delta_t A:
//     g_t = dy_t C_t + exp(delta_{t+1} A) g_{t+1},  dC_t = <dy_t, h_t>,  dB_t = <g_t, delta_t u_t>,
//     d(delta_t u_t) = <g_t, B_t>,  d(delta_t) = <w_t, A> + u_t d(delta_t u_t),  dA = sum of delta_t w_t.
template <class A>
void backward(const Sizes& sizes, const Operand& grad_y, const A* grad_last, const Operand& u, const Operand& delta,
              const A* rates, const Operand& B, const Operand& C, const A* starts, const Gradients<A>& out,
              int threads) {
    const int64_t row_states = sizes.states * sizes.channels, one = sizes.states * kBlock;
    each_block(sizes, threads, [&](int64_t b, int64_t first, int64_t m, int64_t block) {
        // states[0] is the one before the chunk; states[i + 1] and decays[i] belong to its step i.
        std::vector<A> states((sizes.chunk + 1) * one), decays(sizes.chunk * one), carry(one), grad_rates(one, A{0});
        std::vector<A> through_input(kBlock), through_decay(kBlock);
        const int64_t place = b * row_states + first;
        gather(m, sizes, grad_last + place, carry.data());
        const int64_t chunks = (sizes.length + sizes.chunk - 1) / sizes.chunk;
        for (int64_t k = chunks - 1; k >= 0; --k) {
            const int64_t begin = k * sizes.chunk, end = std::min(begin + sizes.chunk, sizes.length);
            gather(m, sizes, starts + k * sizes.rows * row_states + place, states.data());
            for (int64_t t = begin; t < end; ++t) {
                A* before = states.data() + (t - begin) * one;
                advance(m, sizes, at<const A>(u, t, b) + first, at<const A>(delta, t, b) + first, rates + first,
                        at<const A>(B, t, b), before, decays.data() + (t - begin) * one, before + one);
            }
            for (int64_t t = end - 1; t >= begin; --t) {
                const A* before = states.data() + (t - begin) * one;
                const A* decay = decays.data() + (t - begin) * one;
                const A* dy = at<const A>(grad_y, t, b) + first;
                const A* ut = at<const A>(u, t, b) + first;
                const A* step = at<const A>(delta, t, b) + first;
                const A* in = at<const A>(B, t, b);
                const A* read = at<const A>(C, t, b);
                const int64_t sums = ((block * sizes.length + t) * sizes.rows + b) * sizes.states;
                std::fill(through_input.begin(), through_input.end(), A{0});
                std::fill(through_decay.begin(), through_decay.end(), A{0});
                A* to_input = through_input.data();
                A* to_decay = through_decay.data();
                for (int64_t n = 0; n < sizes.states; ++n) {
                    const A* h_before = before + n * kBlock;
                    const A* h = before + one + n * kBlock;
                    const A* fade = decay + n * kBlock;
                    const A* rate = rates + n * sizes.channels + first;
                    A* next = carry.data() + n * kBlock;
                    A* grad_rate = grad_rates.data() + n * kBlock;
                    const A bn = in[n], cn = read[n];
                    A sum_B = 0, sum_C = 0;
#pragma omp simd reduction(+ : sum_B, sum_C)
                    for (int64_t c = 0; c < m; ++c) {
                        const A g = next[c] + dy[c] * cn;
                        sum_C += dy[c] * h[c];
                        sum_B += g * step[c] * ut[c];
                        to_input[c] += g * bn;
                        const A faded = g * fade[c];
                        next[c] = faded;
                        const A w = faded * h_before[c];
                        to_decay[c] += w * rate[c];
                        grad_rate[c] += w * step[c];
                    }
                    out.B[sums + n] = sum_B;
                    out.C[sums + n] = sum_C;
                }
                A* grad_u = out.u + (t * sizes.rows + b) * sizes.channels + first;
                A* grad_delta = out.delta + (t * sizes.rows + b) * sizes.channels + first;
                for (int64_t c = 0; c < m; ++c) {
                    grad_u[c] = to_input[c] * step[c];
                    grad_delta[c] = to_decay[c] + to_input[c] * ut[c];
                }
            }
        }
        scatter(m, sizes, carry.data(), out.initial + place);
        scatter(m, sizes, grad_rates.data(), out.rates + place);
    });
}

template <class A>
A* pointer(uintptr_t address) {
    return reinterpret_cast<A*>(address);
}

// Calls run with a value of the dtype; float32 and float64 only.
template <class Run>
void dispatch(const std::string& dtype, const Run& run) {
    amago::dispatch(dtype, [&](auto number) {
        if constexpr (std::is_floating_point_v<decltype(number)>)
            run(number);
        else
            throw std::invalid_argument("no scan kernel for dtype " + dtype);
    });
}

// One row of a tensor (B, ...); null for a tensor that is not given.
template <class A>
const A* row_of(const Operand& x, int64_t b) {
    return x.first ? reinterpret_cast<const A*>(x.first) + b * x.second[0] : nullptr;
}

// One timestep of every row: y (B, d) and the states after it (B, d, n).
template <class A>
void step(const amago::SelectiveWeights<A>& weights, int64_t rows, const Operand& state, const Operand& u,
          const Operand& delta, const Operand& B, const Operand& C, const Operand& z, A* y, A* after, int threads) {
    constexpr int n = amago::kLanes<A>;
    constexpr int64_t kExponential = 4;  // cost of one, in elements read
    const int64_t blocks = (weights.channels + n - 1) / n;
    amago::parallel_rows(rows * blocks, kExponential * n * weights.states, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t b = item / blocks, first = item % blocks * n;
            const amago::SelectiveRow<A> row{row_of<A>(u, b),
                                             row_of<A>(delta, b),
                                             row_of<A>(z, b),
                                             row_of<A>(B, b),
                                             row_of<A>(C, b),
                                             row_of<A>(state, b),
                                             after + b * weights.channels * weights.states,
                                             y + b * weights.channels};
            if (weights.states == 16)
                amago::selective_step_block<16>(weights, row, first);
            else
                amago::selective_step_block<0>(weights, row, first);
        }
    });
}

}  // namespace

namespace py = pybind11;

PYBIND11_MODULE(amago_selective_scan, m) {
    const auto released = py::call_guard<py::gil_scoped_release>();
    m.attr("BLOCK") = kBlock;
    m.def(
        "forward",
        [](const std::string& dtype, int64_t length, int64_t rows, int64_t channels, int64_t states, int64_t chunk,
           const Operand& u, const Operand& delta, uintptr_t rates, const Operand& B, const Operand& C,
           uintptr_t initial, uintptr_t y, uintptr_t last, uintptr_t starts, int threads) {
            dispatch(dtype, [&](auto number) {
                using A = decltype(number);
                forward<A>({length, rows, channels, states, chunk}, u, delta, pointer<const A>(rates), B, C,
                           pointer<const A>(initial), pointer<A>(y), pointer<A>(last), pointer<A>(starts), threads);
            });
        },
        released);
    m.def(
        "backward",
        [](const std::string& dtype, int64_t length, int64_t rows, int64_t channels, int64_t states, int64_t chunk,
           const Operand& grad_y, uintptr_t grad_last, const Operand& u, const Operand& delta, uintptr_t rates,
           const Operand& B, const Operand& C, uintptr_t starts, uintptr_t grad_u, uintptr_t grad_delta,
           uintptr_t grad_rates, uintptr_t grad_B, uintptr_t grad_C, uintptr_t grad_initial, int threads) {
            dispatch(dtype, [&](auto number) {
                using A = decltype(number);
                backward<A>({length, rows, channels, states, chunk}, grad_y, pointer<const A>(grad_last), u, delta,
                            pointer<const A>(rates), B, C, pointer<const A>(starts),
                            {pointer<A>(grad_u), pointer<A>(grad_delta), pointer<A>(grad_rates), pointer<A>(grad_B),
                             pointer<A>(grad_C), pointer<A>(grad_initial)},
                            threads);
            });
        },
        released);
    m.def(
        "step",
        [](const std::string& dtype, int64_t rows, int64_t channels, int64_t states, const Operand& state,
           const Operand& u, const Operand& delta, uintptr_t rates, const Operand& B, const Operand& C, uintptr_t D,
           const Operand& z, uintptr_t bias, bool use_softplus, uintptr_t y, uintptr_t after, int threads) {
            dispatch(dtype, [&](auto number) {
                using A = decltype(number);
                step<A>({channels, states, pointer<const A>(rates), pointer<const A>(D), pointer<const A>(bias),
                         use_softplus},
                        rows, state, u, delta, B, C, z, pointer<A>(y), pointer<A>(after), threads);
            });
        },
        released);
}
