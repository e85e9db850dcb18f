// One query per row against the keys and values that a ring remembers, on the CPU: a rollout's attention.
//
// The cache is read where it lies, once, and only where a row has steps that it sees: scores of all these slots,
// softmax, weighted sum of values. Threads share out the slots that there are to read, whole heads each; every
// thread writes its own part of the new step into the cache. Memory sets the pace, so the next slots are asked for
// while these are computed.
//
// Shapes: B rows, W slots, H heads, D head dimension.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "numbers.h"
#include "ring.h"
#include "rows.h"

namespace {

struct Sizes {
    int64_t rows, slots, heads, dim;
};

// The angles by which the pairs of a head are rotated: D/2 cosines, then as many sines. They are products in A, as
// they are where a whole sequence is rotated.
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

// The numbers of a head of this step, read and written in the dtype of the caller's tensors (B, 1, H, D).
template <class Q, class A>
void read_head(const Operand& x, int64_t b, int64_t h, int64_t dim, A* head) {
    const auto* from = reinterpret_cast<const Q*>(x.first) + b * x.second[0] + h * x.second[2];
    for (int64_t j = 0; j < dim; ++j) head[j] = static_cast<A>(amago::load(from[j]));
}
template <class Q, class A>
void write_head(uintptr_t out, int64_t place, int64_t dim, const A* head, A factor) {
    auto* to = reinterpret_cast<Q*>(out) + place * dim;
    for (int64_t j = 0; j < dim; ++j)
        amago::store(to[j], static_cast<typename amago::Accumulate<Q>::type>(head[j] * factor));
}

// What one step is computed from and to; the reading and writing of its numbers depends on their dtype.
template <class A>
struct Step {
    const Operand &q, &k, &v, &keys, &values;
    const int64_t* lengths;
    uintptr_t out;
    void (*read)(const Operand&, int64_t, int64_t, int64_t, A*);
    void (*write)(uintptr_t, int64_t, int64_t, const A*, A);
};

// What a thread computes with.
template <class A>
struct Scratch {
    std::vector<A> scores, sums, query, mixed, head;
    Angles<A> angles;

    Scratch(const Sizes& sizes, const Options& options)
        : scores(sizes.heads * sizes.slots), sums(sizes.heads), query(sizes.heads * sizes.dim),
          mixed(sizes.heads * sizes.dim), head(sizes.dim), angles(options.positions ? sizes.dim : 0, options.rotary_base) {}
};

// Writes a row's heads of this step into the cache, and reads their queries.
template <class T, class A>
void enter(const Step<A>& step, int64_t b, int64_t first, int64_t last, const Sizes& sizes, const Options& options,
           Scratch<A>& scratch) {
    const int64_t dim = sizes.dim, current = step.lengths[b] % sizes.slots;
    A* head = scratch.head.data();
    if (options.positions) scratch.angles.move_to(options.positions[b]);
    for (int64_t h = first; h < last; ++h) {
        step.read(step.k, b, h, dim, head);
        if (options.positions) scratch.angles.rotate(head);
        T* key = Head<T>(step.keys, b, h)[current];
        for (int64_t j = 0; j < dim; ++j) amago::store(key[j], head[j]);
        step.read(step.v, b, h, dim, head);
        T* value = Head<T>(step.values, b, h)[current];
        for (int64_t j = 0; j < dim; ++j) amago::store(value[j], head[j]);
        A* query = scratch.query.data() + h * dim;
        step.read(step.q, b, h, dim, query);
        if (options.positions) scratch.angles.rotate(query);
        for (int64_t j = 0; j < dim; ++j) query[j] *= static_cast<A>(options.scale);
    }
}

// Attention of a row's heads from `first` to `last`. Slots in the order in which they lie in memory, all heads of
// a block of them before the next block.
template <int DIM, class T, class A>
void attend(const Step<A>& step, int64_t b, int64_t first, int64_t last, const Sizes& sizes, const Options& options,
            Scratch<A>& scratch) {
    constexpr int kBlock = kLanes<A>, kMixed = 8;
    const int64_t dim = sizes.dim;
    const Visible seen(step.lengths[b], sizes.slots, options);
    enter<T>(step, b, first, last, sizes, options, scratch);
    A *scores = scratch.scores.data(), *mixed = scratch.mixed.data();
    const A* query = scratch.query.data();

    int64_t at = 0;
    for (const Piece& piece : seen) {
        int64_t slot = piece.begin;
        for (; slot + kBlock <= piece.end; slot += kBlock, at += kBlock)
            for (int64_t h = first; h < last; ++h)
                score_block<DIM>(query + h * dim, Head<const T>(step.keys, b, h), slot, dim,
                                 scores + h * sizes.slots + at);
        for (; slot < piece.end; ++slot, ++at)
            for (int64_t h = first; h < last; ++h)
                scores[h * sizes.slots + at] = dot(query + h * dim, Head<const T>(step.keys, b, h)[slot], dim);
    }
    for (int64_t h = first; h < last; ++h)
        scratch.sums[h] = exponentials(scores + h * sizes.slots, seen, options);
    std::fill(mixed + first * dim, mixed + last * dim, A{0});
    at = 0;
    for (const Piece& piece : seen) {
        int64_t slot = piece.begin;
        for (; slot + kMixed <= piece.end; slot += kMixed, at += kMixed)
            for (int64_t h = first; h < last; ++h)
                mix_block<DIM, kMixed>(scores + h * sizes.slots + at, Head<const T>(step.values, b, h), slot, dim,
                                       mixed + h * dim);
        for (; slot < piece.end; ++slot, ++at)
            for (int64_t h = first; h < last; ++h)
                mix_block<DIM, 1>(scores + h * sizes.slots + at, Head<const T>(step.values, b, h), slot, dim,
                                  mixed + h * dim);
    }
    for (int64_t h = first; h < last; ++h)
        step.write(step.out, b * sizes.heads + h, dim, mixed + h * dim, A{1} / scratch.sums[h]);
}

// Shares out the slots that there are to read; a thread takes the heads whose share begins in its own.
template <int DIM, class T, class A>
void run(const Step<A>& step, const Sizes& sizes, const Options& options, int threads) {
    std::vector<int64_t> before(sizes.rows + 1);  // slots of the rows before each
    for (int64_t b = 0; b < sizes.rows; ++b) {
        if (step.lengths[b] < 0)  // would be a slot outside the ring
            throw std::invalid_argument("the cache's lengths must be at least 0, but row " + std::to_string(b) +
                                        " has " + std::to_string(step.lengths[b]));
        before[b + 1] = before[b] + Visible(step.lengths[b], sizes.slots, options).count();
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
    switch (sizes.dim) {
        case 16: return run<16, T>(step, sizes, options, threads);
        case 32: return run<32, T>(step, sizes, options, threads);
        case 64: return run<64, T>(step, sizes, options, threads);
        case 128: return run<128, T>(step, sizes, options, threads);
        default: return run<0, T>(step, sizes, options, threads);
    }
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
            const Options options{reinterpret_cast<const int64_t*>(positions), rotary_base, window, sink, sink_bias,
                                  logit_clip, scale};
            amago::dispatch(cache_dtype, [&](auto number) {
                attention_step<decltype(number)>(
                    dtype, {q, k, v, keys, values, reinterpret_cast<const int64_t*>(lengths), out, nullptr, nullptr},
                    {rows, slots, heads, dim}, options, threads);
            });
        },
        py::call_guard<py::gil_scoped_release>());
}
