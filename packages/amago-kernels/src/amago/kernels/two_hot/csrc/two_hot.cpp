// Losses and means of classifying critics on the CPU, row by row; only the gradient is allocated at the size of the
// logits.
//
// A row is n logits x. Its label is zero outside a window of w neighbouring bins from `first` on. The forward pass
// saves the row's maximum and 1 / sum_j exp(x_j - max), from which the softmax is recomputed; the log-sum-exp would
// lose all digits for logits of 1e4. Tensors are contiguous: logits and their gradient (rows, n), labels (rows, w), the
// saved numbers (rows, 2), all others (rows,); address 0 stands for a mask or weight that is not given.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "numbers.h"
#include "rows.h"

namespace {

using amago::parallel_rows;

// The address of a tensor's first number.
using Address = uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// A row in the accumulation dtype: the row itself if it has that dtype, else a copy in `scratch`.
template <class T, class A>
const A* read_row(const T* row, int64_t n, A* scratch) {
    if constexpr (std::is_same_v<T, A>) {
        return row;
    } else {
        for (int64_t j = 0; j < n; ++j) scratch[j] = amago::load(row[j]);
        return scratch;
    }
}

// Memory to compute a row in before write_row stores it: the row itself if possible.
template <class T, class A>
A* row_to_write(T* row, A* scratch) {
    if constexpr (std::is_same_v<T, A>)
        return row;
    else
        return scratch;
}

template <class T, class A>
void write_row(const A* values, T* row, int64_t n) {
    if constexpr (!std::is_same_v<T, A>)
        for (int64_t j = 0; j < n; ++j) amago::store(row[j], values[j]);
}

template <class A>
struct Softmax {
    A max, inverse_sum;
};

template <class A>
A greatest(const A* x, int64_t n) {
    A most = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < n; ++j) most = x[j] > most ? x[j] : most;
    return most;
}

template <class A>
A sum_of_exp(const A* x, A max, int64_t n) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; ++j) sum += amago::vexp(x[j] - max);
    return sum;
}

template <class A>
void fill(A* row, A value, int64_t n) {
    for (int64_t j = 0; j < n; ++j) row[j] = value;
}

// loss = weight * (log sum_j exp x_j - sum_k label_k x_{first + k}); 0 where the mask is false.
template <class T>
void cross_entropy(int64_t rows, int64_t n, int64_t window, Address logits, Address first,
                   Address label, Address mask, Address weight, Address loss,
                   Address statistics, int threads) {
    using A = typename amago::Accumulate<T>::type;
    parallel_rows(rows, n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n);
        A* losses = at<A>(loss);
        auto* softmax = at<Softmax<A>>(statistics);
        for (int64_t row = begin; row < end; ++row) {
            if (mask && !at<const bool>(mask)[row]) {
                losses[row] = 0;
                softmax[row] = {0, 0};
                continue;
            }
            const A* x = read_row(at<const T>(logits) + row * n, n, scratch.data());
            const A max = greatest(x, n), sum = sum_of_exp(x, max, n);
            const A* labels = at<const A>(label) + row * window;
            const A* likely = x + at<const int64_t>(first)[row];
            A value = std::log(sum);
            for (int64_t k = 0; k < window; ++k) value -= labels[k] * (likely[k] - max);
            if (weight) value *= at<const A>(weight)[row];
            losses[row] = value;
            softmax[row] = {max, A{1} / sum};
        }
    });
}

// d loss / d x_j = weight * (softmax_j - label_j), times the gradient of the loss; 0 where the mask is false.
template <class T>
void cross_entropy_gradient(int64_t rows, int64_t n, int64_t window, Address logits,
                            Address first, Address label, Address mask,
                            Address weight, Address statistics, Address incoming,
                            Address gradient, int threads) {
    using A = typename amago::Accumulate<T>::type;
    parallel_rows(rows, n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n), result(n);
        const auto* softmax = at<const Softmax<A>>(statistics);
        for (int64_t row = begin; row < end; ++row) {
            T* place = at<T>(gradient) + row * n;
            A* out = row_to_write(place, result.data());
            if (mask && !at<const bool>(mask)[row]) {
                fill(out, A{0}, n);
                write_row(out, place, n);
                continue;
            }
            A scale = at<const A>(incoming)[row];
            if (weight) scale *= at<const A>(weight)[row];
            const A* labels = at<const A>(label) + row * window;
            // A NaN label makes the whole row NaN, as a dense vector of labels would.
            for (int64_t k = 0; k < window; ++k)
                if (labels[k] != labels[k]) scale = labels[k];
            const A* x = read_row(at<const T>(logits) + row * n, n, scratch.data());
            const A max = softmax[row].max, factor = softmax[row].inverse_sum * scale;
#pragma omp simd
            for (int64_t j = 0; j < n; ++j) out[j] = amago::vexp(x[j] - max) * factor;
            A* likely = out + at<const int64_t>(first)[row];
            for (int64_t k = 0; k < window; ++k) likely[k] -= scale * labels[k];
            write_row(out, place, n);
        }
    });
}

// mean = sum_j softmax_j value_j.
template <class T>
void mean(int64_t rows, int64_t n, Address logits, Address points, Address means,
          Address statistics, int threads) {
    using A = typename amago::Accumulate<T>::type;
    parallel_rows(rows, n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n);
        const A* value = at<const A>(points);
        for (int64_t row = begin; row < end; ++row) {
            const A* x = read_row(at<const T>(logits) + row * n, n, scratch.data());
            const A max = greatest(x, n);
            A sum = 0, weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
            for (int64_t j = 0; j < n; ++j) {
                const A p = amago::vexp(x[j] - max);
                sum += p;
                weighted += p * value[j];
            }
            at<A>(means)[row] = weighted / sum;
            at<Softmax<A>>(statistics)[row] = {max, A{1} / sum};
        }
    });
}

// d mean / d x_j = softmax_j (value_j - mean), times the gradient of the mean.
template <class T>
void mean_gradient(int64_t rows, int64_t n, Address logits, Address points,
                   Address means, Address statistics, Address incoming,
                   Address gradient, int threads) {
    using A = typename amago::Accumulate<T>::type;
    parallel_rows(rows, n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n), result(n);
        const A* value = at<const A>(points);
        for (int64_t row = begin; row < end; ++row) {
            T* place = at<T>(gradient) + row * n;
            A* out = row_to_write(place, result.data());
            const A* x = read_row(at<const T>(logits) + row * n, n, scratch.data());
            const auto& softmax = at<const Softmax<A>>(statistics)[row];
            const A centre = at<const A>(means)[row];
            const A factor = softmax.inverse_sum * at<const A>(incoming)[row];
#pragma omp simd
            for (int64_t j = 0; j < n; ++j)
                out[j] = amago::vexp(x[j] - softmax.max) * factor * (value[j] - centre);
            write_row(out, place, n);
        }
    });
}

// Calls the function for the dtype of the logits.
#define AMAGO_DISPATCH(dtype, function, ...)                                             \
    if (dtype == "float32")                                                              \
        function<float>(__VA_ARGS__);                                                    \
    else if (dtype == "float64")                                                         \
        function<double>(__VA_ARGS__);                                                   \
    else if (dtype == "bfloat16")                                                        \
        function<amago::bfloat16>(__VA_ARGS__);                                          \
    else if (dtype == "float16")                                                         \
        function<amago::float16>(__VA_ARGS__);                                           \
    else                                                                                 \
        throw std::invalid_argument("no two-hot kernel for logits of dtype " + dtype)

}  // namespace

namespace py = pybind11;

PYBIND11_MODULE(amago_two_hot, m) {
    const auto released = py::call_guard<py::gil_scoped_release>();
    m.def(
        "cross_entropy",
        [](const std::string& dtype, int64_t rows, int64_t n, int64_t window, Address logits,
           Address first, Address label, Address mask, Address weight,
           Address loss, Address statistics, int threads) {
            AMAGO_DISPATCH(dtype, cross_entropy, rows, n, window, logits, first, label, mask, weight, loss,
                           statistics, threads);
        },
        released);
    m.def(
        "cross_entropy_gradient",
        [](const std::string& dtype, int64_t rows, int64_t n, int64_t window, Address logits,
           Address first, Address label, Address mask, Address weight,
           Address statistics, Address incoming, Address gradient, int threads) {
            AMAGO_DISPATCH(dtype, cross_entropy_gradient, rows, n, window, logits, first, label, mask, weight,
                           statistics, incoming, gradient, threads);
        },
        released);
    m.def(
        "mean",
        [](const std::string& dtype, int64_t rows, int64_t n, Address logits, Address points,
           Address means, Address statistics, int threads) {
            AMAGO_DISPATCH(dtype, mean, rows, n, logits, points, means, statistics, threads);
        },
        released);
    m.def(
        "mean_gradient",
        [](const std::string& dtype, int64_t rows, int64_t n, Address logits, Address points,
           Address means, Address statistics, Address incoming, Address gradient,
           int threads) {
            AMAGO_DISPATCH(dtype, mean_gradient, rows, n, logits, points, means, statistics, incoming, gradient,
                           threads);
        },
        released);
}
