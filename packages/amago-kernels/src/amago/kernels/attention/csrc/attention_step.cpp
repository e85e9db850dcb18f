// One timestep of attention to a ring cache on the CPU, for rollouts.
//
// The cache is read in place, once, and only the slots that a row sees. Threads share these slots evenly, in units of
// heads; each writes its heads of the new step into the cache before it attends to them.
//
// Shapes: B rows, W slots, H heads, D head dimension.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "numbers.h"
#include "ring_attention.h"
#include "rows.h"

namespace {

using amago::Operand;

struct Options : amago::AttentionOptions {
    const int64_t* positions;  // null without rotary positions
    double rotary_base;
};

struct Sizes {
    int64_t rows, slots, heads, dim;
};

// Rotary angles of one position: D/2 cosines, then as many sines, computed in A as for whole sequences.
template <class A>
class Angles {
public:
    Angles(int64_t dim, double base) : frequencies_(dim / 2), turns_(dim) {
        for (int64_t i = 0; i < dim / 2; ++i)
            frequencies_[i] = std::pow(static_cast<A>(base), -static_cast<A>(2 * i) / static_cast<A>(dim));
    }

    void move_to(int64_t position) {
        if (position == position_) return;  // rows often step together
        position_ = position;
        const int64_t half = frequencies_.size();
        for (int64_t i = 0; i < half; ++i) {
            const A angle = static_cast<A>(position) * frequencies_[i];
            turns_[i] = std::cos(angle);
            turns_[half + i] = std::sin(angle);
        }
    }

    void rotate(A* head) const {
        const int64_t half = frequencies_.size();
        for (int64_t i = 0; i < half; ++i) {
            const A a = head[i], b = head[i + half], cos = turns_[i], sin = turns_[i + half];
            head[i] = a * cos - b * sin;
            head[i + half] = a * sin + b * cos;
        }
    }

private:
    std::vector<A> frequencies_, turns_;
    int64_t position_ = std::numeric_limits<int64_t>::min();
};

// Reading and writing one head of this step, in the dtype of the caller's tensors (B, 1, H, D).
template <class Q, class A>
void read_head(const Operand& x, int64_t b, int64_t h, int64_t dim, A* head) {
    const auto* from = reinterpret_cast<const Q*>(x.first) + b * x.second[0] + h * x.second[2];
    for (int64_t j = 0; j < dim; ++j) head[j] = static_cast<A>(amago::load(from[j]));
}
template <class Q, class A>
void write_head(uintptr_t out, int64_t index, int64_t dim, const A* head) {
    auto* to = reinterpret_cast<Q*>(out) + index * dim;
    for (int64_t j = 0; j < dim; ++j) amago::store(to[j], static_cast<typename amago::Accumulate<Q>::type>(head[j]));
}

// The tensors of a step; `read` and `write` convert from and to their dtype.
template <class A>
struct Step {
    const Operand &q, &k, &v, &keys, &values;
    const int64_t* lengths;
    uintptr_t out;
    void (*read)(const Operand&, int64_t, int64_t, int64_t, A*);
    void (*write)(uintptr_t, int64_t, int64_t, const A*);
};

template <class T>
amago::CacheRow<T> cache_row(const Operand& cache, int64_t b) {
    const amago::Sizes& strides = cache.second;
    return {reinterpret_cast<T*>(cache.first) + b * strides[0], strides[1], strides[2]};
}

// Buffers of one thread.
template <class A>
struct Scratch {
    amago::AttentionScratch<A> attention;
    std::vector<A> query, mixed, head;
    Angles<A> angles;

    Scratch(const Sizes& sizes, const Options& options)
        : attention(sizes.slots, sizes.heads), query(sizes.heads * sizes.dim), mixed(sizes.heads * sizes.dim),
          head(sizes.dim), angles(options.positions ? sizes.dim : 0, options.rotary_base) {}
};

// Writes a row's heads [first, last) of this step into the cache, and reads their queries.
template <class T, class A>
void write_to_cache(const Step<A>& step, int64_t b, int64_t first, int64_t last, const Sizes& sizes,
                    const Options& options, Scratch<A>& scratch) {
    const int64_t dim = sizes.dim, current = step.lengths[b] % sizes.slots;
    const auto keys = cache_row<T>(step.keys, b), values = cache_row<T>(step.values, b);
    A* head = scratch.head.data();
    if (options.positions) scratch.angles.move_to(options.positions[b]);
    for (int64_t h = first; h < last; ++h) {
        step.read(step.k, b, h, dim, head);
        if (options.positions) scratch.angles.rotate(head);
        T* key = keys.at(current, h);
        for (int64_t j = 0; j < dim; ++j) amago::store(key[j], head[j]);
        step.read(step.v, b, h, dim, head);
        T* value = values.at(current, h);
        for (int64_t j = 0; j < dim; ++j) amago::store(value[j], head[j]);
        A* query = scratch.query.data() + h * dim;
        step.read(step.q, b, h, dim, query);
        if (options.positions) scratch.angles.rotate(query);
        for (int64_t j = 0; j < dim; ++j) query[j] *= static_cast<A>(options.scale);
    }
}

// Attention of a row's heads [first, last).
template <int DIM, class T, class A>
void attend(const Step<A>& step, int64_t b, int64_t first, int64_t last, const Sizes& sizes, const Options& options,
            Scratch<A>& scratch) {
    if (first == last) return;
    write_to_cache<T>(step, b, first, last, sizes, options, scratch);
    const amago::VisibleSlots seen(step.lengths[b], sizes.slots, options);
    amago::attend_heads<DIM>(scratch.query.data(), cache_row<const T>(step.keys, b), cache_row<const T>(step.values, b),
                             seen, first, last, sizes.dim, options, scratch.attention, scratch.mixed.data());
    for (int64_t h = first; h < last; ++h)
        step.write(step.out, b * sizes.heads + h, sizes.dim, scratch.mixed.data() + h * sizes.dim);
}

// Divides the visible slots among threads; a thread computes the heads whose share begins within its own.
template <int DIM, class T, class A>
void run(const Step<A>& step, const Sizes& sizes, const Options& options, int threads) {
    std::vector<int64_t> before(sizes.rows + 1);  // visible slots of all earlier rows
    for (int64_t b = 0; b < sizes.rows; ++b) {
        if (step.lengths[b] < 0)  // would address memory outside the ring
            throw std::invalid_argument("the cache's lengths must be at least 0, but row " + std::to_string(b) +
                                        " has " + std::to_string(step.lengths[b]));
        before[b + 1] = before[b] + amago::VisibleSlots(step.lengths[b], sizes.slots, options).count;
    }
    amago::parallel_rows(before.back(), 2 * sizes.heads * sizes.dim, threads, [&](int64_t begin, int64_t end) {
        Scratch<A> scratch(sizes, options);
        const auto head_at = [&](int64_t b, int64_t slot) {
            const int64_t count = before[b + 1] - before[b], inside = std::min(slot - before[b], count);
            return inside <= 0 ? 0 : (inside * sizes.heads + count - 1) / count;
        };
        int64_t b = std::upper_bound(before.begin(), before.end(), begin) - before.begin() - 1;
        for (; b < sizes.rows && before[b] < end; ++b)
            attend<DIM, T>(step, b, head_at(b, begin), head_at(b, end), sizes, options, scratch);
    });
}

template <class T>
void attention_step(const std::string& dtype, Step<typename amago::Accumulate<T>::type> step, const Sizes& sizes,
                    const Options& options, int threads) {
    using A = typename amago::Accumulate<T>::type;
    amago::dispatch(dtype, [&](auto number) {
        step.read = &read_head<decltype(number), A>;
        step.write = &write_head<decltype(number), A>;
    });
    amago::with_head_dim(sizes.dim, [&](auto head_dim) { run<head_dim(), T>(step, sizes, options, threads); });
}

}  // namespace

namespace py = pybind11;

PYBIND11_MODULE(amago_attention_step, m) {
    m.def(
        "attention_step",
        [](const std::string& dtype, const std::string& cache_dtype, int64_t rows, int64_t slots, int64_t heads,
           int64_t dim, const Operand& q, const Operand& k, const Operand& v, const Operand& keys,
           const Operand& values, uintptr_t lengths, uintptr_t positions, double rotary_base, uintptr_t out,
           int64_t window, int64_t sink, double sink_bias, double logit_clip, double scale, int threads) {
            const Options options{
                {window, sink, sink_bias, logit_clip, scale}, reinterpret_cast<const int64_t*>(positions), rotary_base};
            amago::dispatch(cache_dtype, [&](auto number) {
                attention_step<decltype(number)>(
                    dtype, {q, k, v, keys, values, reinterpret_cast<const int64_t*>(lengths), out, nullptr, nullptr},
                    {rows, slots, heads, dim}, options, threads);
            });
        },
        py::call_guard<py::gil_scoped_release>());
}
