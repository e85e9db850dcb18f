// One query per row against the keys and values that a ring remembers, on the CPU: a rollout's attention.
//
// The cache is read where it lies, once: scores of all slots that a row sees, softmax, weighted sum of values.
// Rows and heads are shared out among threads; each writes its own part of the new step into the cache.
//
// Shapes: B rows, W slots, H heads, D head dimension.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "numbers.h"
#include "rows.h"

namespace {

using amago::Operand;

struct Options {
    const int64_t* positions;  // null where nothing is rotated
    double rotary_base;
    int64_t window;  // negative for none
    int64_t sink;
    double sink_bias, logit_clip, scale;
};

struct Slot {
    int64_t at;
    bool sink;
};

template <class T>
T* address(const Operand& operand, int64_t b, int64_t h, int64_t slot = 0) {
    const auto& strides = operand.second;  // (B, H, D), or (B, W, H, D) for the cache
    const bool cached = strides.size() == 4;
    return reinterpret_cast<T*>(operand.first) + b * strides[0] + h * strides[cached ? 2 : 1] +
           (cached ? slot * strides[1] : 0);
}

// The slots that a row sees which has taken `length` steps before this one, with this one.
void visible(std::vector<Slot>& slots, int64_t length, int64_t size, const Options& options) {
    const int64_t now = std::min(length, size - 1);  // place of this step in what is remembered
    const int64_t current = length % size;
    slots.clear();
    for (int64_t s = 0; s < std::min(length + 1, size); ++s) {
        const int64_t age = s <= current ? current - s : current - s + size;
        const bool sink = now - age < options.sink;
        if (options.window < 0 || age <= options.window || sink) slots.push_back({s, sink});
    }
}

// The numbers of one head, as they are computed with. DIM is the head dimension where it is known in advance.
template <int DIM, class T, class A>
A dot(const A* query, const T* key, int64_t dim) {
    const int64_t n = DIM ? DIM : dim;
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; ++j) sum += query[j] * amago::load(key[j]);
    return sum;
}

// The cosines, then the sines of the angles by which the pairs of a head are rotated at a position. Angles are
// products in A, as they are where a whole sequence is rotated.
template <class A>
void angles(A* turn, int64_t dim, int64_t position, double base) {
    for (int64_t i = 0; i < dim / 2; ++i) {
        const A frequency = std::pow(static_cast<A>(base), -static_cast<A>(2 * i) / static_cast<A>(dim));
        const A angle = static_cast<A>(position) * frequency;
        turn[i] = std::cos(angle);
        turn[i + dim / 2] = std::sin(angle);
    }
}

// One head of a query or a key, rotated where there are angles.
template <class T, class A>
void rotate(const T* from, const A* turn, A* to, int64_t dim) {
    const int64_t half = dim / 2;
    if (!turn)
        for (int64_t j = 0; j < dim; ++j) to[j] = amago::load(from[j]);
    else
        for (int64_t i = 0; i < half; ++i) {
            const A a = amago::load(from[i]), b = amago::load(from[i + half]), cos = turn[i], sin = turn[i + half];
            to[i] = a * cos - b * sin;
            to[i + half] = a * sin + b * cos;
        }
}

template <int DIM, class T>
void heads(int64_t begin, int64_t end, int64_t n_heads, int64_t size, int64_t dim, const Operand& q,
           const Operand& k, const Operand& v, const Operand& keys, const Operand& values,
           const int64_t* lengths, T* out, const Options& options) {
    using A = typename amago::Accumulate<T>::type;
    const int64_t n = DIM ? DIM : dim;
    const A clip = static_cast<A>(options.logit_clip), bias = static_cast<A>(options.sink_bias);
    std::vector<Slot> slots;
    std::vector<A> scores(n_heads * size), query(n_heads * n), mixed(n_heads * n), rotated(n), turns(n);
    const A* turn = options.positions ? turns.data() : nullptr;
    for (int64_t item = begin; item < end;) {
        const int64_t b = item / n_heads, first = item % n_heads;
        const int64_t last = std::min(n_heads, first + end - item);
        item += last - first;
        visible(slots, lengths[b], size, options);
        const int64_t current = lengths[b] % size, seen = static_cast<int64_t>(slots.size());

        if (turn) angles(turns.data(), n, options.positions[b], options.rotary_base);
        for (int64_t h = first; h < last; ++h) {
            rotate(address<const T>(k, b, h), turn, rotated.data(), n);
            T* key = address<T>(keys, b, h, current);
            for (int64_t j = 0; j < n; ++j) amago::store(key[j], rotated[j]);
            std::copy_n(address<const T>(v, b, h), n, address<T>(values, b, h, current));
            rotate(address<const T>(q, b, h), turn, query.data() + h * n, n);
            for (int64_t j = 0; j < n; ++j) query[h * n + j] *= static_cast<A>(options.scale);
        }
        for (int64_t i = 0; i < seen; ++i)
            for (int64_t h = first; h < last; ++h) {
                const T* key = address<const T>(keys, b, h, slots[i].at);
                A score = dot<DIM>(query.data() + h * n, key, n);
                if (slots[i].sink) score += bias;
                score = score > clip ? clip : (score < -clip ? -clip : score);
                scores[h * size + i] = score;
            }
        for (int64_t h = first; h < last; ++h) {
            A* weight = scores.data() + h * size;
            A max = -std::numeric_limits<A>::infinity(), sum = 0;
#pragma omp simd reduction(max : max)
            for (int64_t i = 0; i < seen; ++i) max = weight[i] > max ? weight[i] : max;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < seen; ++i) sum += weight[i] = amago::vexp(weight[i] - max);
            for (int64_t i = 0; i < seen; ++i) weight[i] /= sum;
        }
        // Slot by slot, in the order in which they lie in memory; the sums of all heads fit the first cache.
        std::fill(mixed.begin(), mixed.end(), A{0});
        for (int64_t i = 0; i < seen; ++i)
            for (int64_t h = first; h < last; ++h) {
                const T* value = address<const T>(values, b, h, slots[i].at);
                const A weight = scores[h * size + i];
                A* sums = mixed.data() + h * n;
#pragma omp simd
                for (int64_t j = 0; j < n; ++j) sums[j] += weight * amago::load(value[j]);
            }
        T* place = out + b * n_heads * n;
        for (int64_t j = first * n; j < last * n; ++j) amago::store(place[j], mixed[j]);
    }
}

template <class T>
void attention_step(int64_t rows, int64_t size, int64_t n_heads, int64_t dim, const Operand& q, const Operand& k,
                    const Operand& v, const Operand& keys, const Operand& values, uintptr_t lengths, uintptr_t out,
                    const Options& options, int threads) {
    const auto* steps = reinterpret_cast<const int64_t*>(lengths);
    amago::parallel_rows(rows * n_heads, 2 * size * dim, threads, [&](int64_t begin, int64_t end) {
        const auto run = [&](auto known) {
            heads<decltype(known)::value, T>(begin, end, n_heads, size, dim, q, k, v, keys, values, steps,
                                             reinterpret_cast<T*>(out), options);
        };
        switch (dim) {
            case 16: return run(std::integral_constant<int, 16>{});
            case 32: return run(std::integral_constant<int, 32>{});
            case 64: return run(std::integral_constant<int, 64>{});
            default: return run(std::integral_constant<int, 0>{});
        }
    });
}

}  // namespace

namespace py = pybind11;

PYBIND11_MODULE(amago_attention_step, m) {
    m.def(
        "attention_step",
        [](const std::string& dtype, int64_t rows, int64_t size, int64_t heads, int64_t dim, const Operand& q,
           const Operand& k, const Operand& v, const Operand& keys, const Operand& values, uintptr_t lengths,
           uintptr_t positions, double rotary_base, uintptr_t out, int64_t window, int64_t sink, double sink_bias,
           double logit_clip, double scale, int threads) {
            const Options options{reinterpret_cast<const int64_t*>(positions), rotary_base, window, sink, sink_bias,
                                  logit_clip, scale};
            const auto run = [&](auto number) {
                attention_step<decltype(number)>(rows, size, heads, dim, q, k, v, keys, values, lengths, out,
                                                 options, threads);
            };
            if (dtype == "float32")
                run(float{});
            else if (dtype == "float64")
                run(double{});
            else if (dtype == "bfloat16")
                run(amago::bfloat16{});
            else if (dtype == "float16")
                run(amago::float16{});
            else
                throw std::invalid_argument("no attention kernel for a cache of dtype " + dtype);
        },
        py::call_guard<py::gil_scoped_release>());
}
