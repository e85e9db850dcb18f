// Losses and means of classifying critics on the CPU, row by row; only the gradient is allocated at the size of the
// logits.
//
// A row is n logits x. Its label is zero outside a window of w neighbouring bins from `first` on. The forward pass
// saves the row's maximum and 1 / sum_j exp(x_j - max), from which the softmax is recomputed; the log-sum-exp would
// lose all digits for logits of 1e4.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "numbers.h"
#include "rows.h"

namespace {

using amago::Operand;
using amago::parallel_rows;
using amago::RowOffsets;
using amago::Sizes;

template <class T>
T* address(const Operand& operand) {
    return reinterpret_cast<T*>(operand.first);
}

// A row in the accumulation dtype: the row itself if it has that dtype, else a copy in `scratch`.
template <class T, class A>
const A* read_row(const T* row, int64_t stride, int64_t n, A* scratch) {
    if constexpr (std::is_same_v<T, A>)
        if (stride == 1) return row;
    if (stride == 1)
        for (int64_t j = 0; j < n; ++j) scratch[j] = amago::load(row[j]);
    else
        for (int64_t j = 0; j < n; ++j) scratch[j] = amago::load(row[j * stride]);
    return scratch;
}

// Memory to compute a row in before write_row stores it: the row itself if possible.
template <class T, class A>
A* row_to_write(T* row, int64_t stride, A* scratch) {
    if constexpr (std::is_same_v<T, A>)
        if (stride == 1) return row;
    return scratch;
}

template <class T, class A>
void write_row(const A* values, T* row, int64_t stride, int64_t n) {
    if constexpr (std::is_same_v<T, A>)
        if (values == row) return;
    if (stride == 1)
        for (int64_t j = 0; j < n; ++j) amago::store(row[j], values[j]);
    else
        for (int64_t j = 0; j < n; ++j) amago::store(row[j * stride], values[j]);
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
void cross_entropy(const Sizes& sizes, int64_t n, int64_t window, const Operand& logits, const Operand& first,
                   const Operand& label, const Operand& mask, const Operand& weight, const Operand& loss,
                   const Operand& statistics, int threads) {
    using A = typename amago::Accumulate<T>::type;
    const int64_t stride = logits.second.back(), label_stride = label.second.back();
    parallel_rows(amago::product(sizes), n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n);
        RowOffsets<5> at(sizes, {&logits, &first, &label, &mask, &weight}, begin);
        A* losses = address<A>(loss);
        auto* softmax = address<Softmax<A>>(statistics);
        for (int64_t row = begin; row < end; ++row, at.next()) {
            if (mask.first && !address<const bool>(mask)[at[3]]) {
                losses[row] = 0;
                softmax[row] = {0, 0};
                continue;
            }
            const A* x = read_row(address<const T>(logits) + at[0], stride, n, scratch.data());
            const A max = greatest(x, n), sum = sum_of_exp(x, max, n);
            const A* labels = address<const A>(label) + at[2];
            const A* likely = x + address<const int64_t>(first)[at[1]];
            A value = std::log(sum);
            for (int64_t k = 0; k < window; ++k) value -= labels[k * label_stride] * (likely[k] - max);
            if (weight.first) value *= address<const A>(weight)[at[4]];
            losses[row] = value;
            softmax[row] = {max, A{1} / sum};
        }
    });
}

// d loss / d x_j = weight * (softmax_j - label_j), times the gradient of the loss; 0 where the mask is false.
template <class T>
void cross_entropy_gradient(const Sizes& sizes, int64_t n, int64_t window, const Operand& logits,
                            const Operand& first, const Operand& label, const Operand& mask,
                            const Operand& weight, const Operand& statistics, const Operand& incoming,
                            const Operand& gradient, int threads) {
    using A = typename amago::Accumulate<T>::type;
    const int64_t stride = logits.second.back(), label_stride = label.second.back();
    const int64_t out_stride = gradient.second.back();
    parallel_rows(amago::product(sizes), n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n), result(n);
        RowOffsets<7> at(sizes, {&logits, &first, &label, &mask, &weight, &incoming, &gradient}, begin);
        const auto* softmax = address<const Softmax<A>>(statistics);
        for (int64_t row = begin; row < end; ++row, at.next()) {
            T* place = address<T>(gradient) + at[6];
            A* out = row_to_write(place, out_stride, result.data());
            if (mask.first && !address<const bool>(mask)[at[3]]) {
                fill(out, A{0}, n);
                write_row(out, place, out_stride, n);
                continue;
            }
            A scale = address<const A>(incoming)[at[5]];
            if (weight.first) scale *= address<const A>(weight)[at[4]];
            const A* labels = address<const A>(label) + at[2];
            // A NaN label makes the whole row NaN, as a dense vector of labels would.
            for (int64_t k = 0; k < window; ++k)
                if (labels[k * label_stride] != labels[k * label_stride]) scale = labels[k * label_stride];
            const A* x = read_row(address<const T>(logits) + at[0], stride, n, scratch.data());
            const A max = softmax[row].max, factor = softmax[row].inverse_sum * scale;
#pragma omp simd
            for (int64_t j = 0; j < n; ++j) out[j] = amago::vexp(x[j] - max) * factor;
            A* likely = out + address<const int64_t>(first)[at[1]];
            for (int64_t k = 0; k < window; ++k) likely[k] -= scale * labels[k * label_stride];
            write_row(out, place, out_stride, n);
        }
    });
}

// mean = sum_j softmax_j value_j.
template <class T>
void mean(const Sizes& sizes, int64_t n, const Operand& logits, const Operand& points, const Operand& means,
          const Operand& statistics, int threads) {
    using A = typename amago::Accumulate<T>::type;
    const int64_t stride = logits.second.back();
    parallel_rows(amago::product(sizes), n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n);
        RowOffsets<1> at(sizes, {&logits}, begin);
        const A* value = address<const A>(points);
        for (int64_t row = begin; row < end; ++row, at.next()) {
            const A* x = read_row(address<const T>(logits) + at[0], stride, n, scratch.data());
            const A max = greatest(x, n);
            A sum = 0, weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
            for (int64_t j = 0; j < n; ++j) {
                const A p = amago::vexp(x[j] - max);
                sum += p;
                weighted += p * value[j];
            }
            address<A>(means)[row] = weighted / sum;
            address<Softmax<A>>(statistics)[row] = {max, A{1} / sum};
        }
    });
}

// d mean / d x_j = softmax_j (value_j - mean), times the gradient of the mean.
template <class T>
void mean_gradient(const Sizes& sizes, int64_t n, const Operand& logits, const Operand& points,
                   const Operand& means, const Operand& statistics, const Operand& incoming,
                   const Operand& gradient, int threads) {
    using A = typename amago::Accumulate<T>::type;
    const int64_t stride = logits.second.back(), out_stride = gradient.second.back();
    parallel_rows(amago::product(sizes), n, threads, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(n), result(n);
        RowOffsets<3> at(sizes, {&logits, &incoming, &gradient}, begin);
        const A* value = address<const A>(points);
        for (int64_t row = begin; row < end; ++row, at.next()) {
            T* place = address<T>(gradient) + at[2];
            A* out = row_to_write(place, out_stride, result.data());
            const A* x = read_row(address<const T>(logits) + at[0], stride, n, scratch.data());
            const auto& softmax = address<const Softmax<A>>(statistics)[row];
            const A centre = address<const A>(means)[row];
            const A factor = softmax.inverse_sum * address<const A>(incoming)[at[1]];
#pragma omp simd
            for (int64_t j = 0; j < n; ++j)
                out[j] = amago::vexp(x[j] - softmax.max) * factor * (value[j] - centre);
            write_row(out, place, out_stride, n);
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
        [](const std::string& dtype, const Sizes& sizes, int64_t n, int64_t window, const Operand& logits,
           const Operand& first, const Operand& label, const Operand& mask, const Operand& weight,
           const Operand& loss, const Operand& statistics, int threads) {
            AMAGO_DISPATCH(dtype, cross_entropy, sizes, n, window, logits, first, label, mask, weight, loss,
                           statistics, threads);
        },
        released);
    m.def(
        "cross_entropy_gradient",
        [](const std::string& dtype, const Sizes& sizes, int64_t n, int64_t window, const Operand& logits,
           const Operand& first, const Operand& label, const Operand& mask, const Operand& weight,
           const Operand& statistics, const Operand& incoming, const Operand& gradient, int threads) {
            AMAGO_DISPATCH(dtype, cross_entropy_gradient, sizes, n, window, logits, first, label, mask, weight,
                           statistics, incoming, gradient, threads);
        },
        released);
    m.def(
        "mean",
        [](const std::string& dtype, const Sizes& sizes, int64_t n, const Operand& logits, const Operand& points,
           const Operand& means, const Operand& statistics, int threads) {
            AMAGO_DISPATCH(dtype, mean, sizes, n, logits, points, means, statistics, threads);
        },
        released);
    m.def(
        "mean_gradient",
        [](const std::string& dtype, const Sizes& sizes, int64_t n, const Operand& logits, const Operand& points,
           const Operand& means, const Operand& statistics, const Operand& incoming, const Operand& gradient,
           int threads) {
            AMAGO_DISPATCH(dtype, mean_gradient, sizes, n, logits, points, means, statistics, incoming, gradient,
                           threads);
        },
        released);
}
