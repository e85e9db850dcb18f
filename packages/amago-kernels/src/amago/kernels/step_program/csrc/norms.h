// Norms of a step program.
//
// Shapes: W width of a value.
#pragma once

#include "linear.h"

namespace amago {

enum class NormKind { none, layer, rms, unit_ball, hypersphere, simplex };

inline NormKind norm_of(const std::string& name) {
    if (name == "none") return NormKind::none;
    if (name == "layer") return NormKind::layer;
    if (name == "rms") return NormKind::rms;
    if (name == "unit_ball") return NormKind::unit_ball;
    if (name == "hypersphere") return NormKind::hypersphere;
    if (name == "simplex") return NormKind::simplex;
    throw std::invalid_argument("no norm " + name);
}

// The sum of one(x_j) over a row of n numbers; what lies behind them is read, but does not count.
template <class One>
inline float sum_over(const float* x, int64_t n, const One& one) {
    Vector sums = {};
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) sums += one(load_vector(x + j));
    if (j < n) {
        float rest[kLanes] = {};
        store_vector(rest, one(load_vector(x + j)));
        std::fill(rest + (n - j), rest + kLanes, 0.0f);
        sums += load_vector(rest);
    }
    return sum_of(sums);
}

// out = epilogue(norm(x)); `number` is the epsilon, or the size of a simplex.
class Norm : public Operation {
public:
    Norm(Value x, Value out, NormKind kind, double number, Activation activation, float slope, const Value* add)
        : x_(x), out_(out), kind_(kind), number_(number), epilogue_(activation, slope, add) {
        set(nullptr, 0, 0, nullptr, 0);
    }

    // The scale is a matrix of one row.
    void set(const float* scale, int64_t, int64_t scales, const float* shift, int64_t shifts) override {
        if ((scale && scales != x_.width) || (shift && shifts != x_.width))
            throw std::invalid_argument("a norm of another size");
        scale_.copy(scale, scales, padded(x_.width), 1.0f);
        shift_.copy(shift, shifts, padded(x_.width), 0.0f);
    }

    void run(const Step&, const Tile& tile) const override {
        const int64_t vectors = padded(out_.width) / kLanes;
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* out = tile.row(out_, r);
            normalise(tile.row(x_, r), out);
            epilogue_(Columns{out, 0, 1, vectors}, tile, r, 0);
        }
    }

private:
    void normalise(const float* x, float* out) const {
        if (kind_ == NormKind::simplex) return softmaxes(x, out);
        const int64_t n = x_.width;
        const float mean = kind_ == NormKind::layer ? sum_over(x, n, [](Vector v) { return v; }) / n : 0.0f;
        const float factor = kind_ == NormKind::none ? 1.0f : factor_of(sum_over(x, n, [mean](Vector v) {
            return (v - mean) * (v - mean);
        }));
        for (int64_t j = 0; j < padded(n); j += kLanes)
            store_vector(out + j, (load_vector(x + j) - mean) * factor * load_vector(scale_.data() + j) +
                                      load_vector(shift_.data() + j));
    }

    float factor_of(float squares) const {
        const float n = static_cast<float>(x_.width), number = static_cast<float>(number_);
        switch (kind_) {
            case NormKind::layer:
            case NormKind::rms: return 1.0f / std::sqrt(squares / n + number);
            case NormKind::unit_ball: return 1.0f / (std::sqrt(squares) + number);
            default: return std::sqrt(n) / std::max(std::sqrt(squares), number);
        }
    }

    void softmaxes(const float* x, float* out) const {
        const int64_t size = static_cast<int64_t>(number_);
        for (int64_t group = 0; group < x_.width; group += size) {
            const float max = *std::max_element(x + group, x + group + size);
            float sum = 0;
            for (int64_t j = group; j < group + size; ++j) sum += out[j] = vexp(x[j] - max);
            for (int64_t j = group; j < group + size; ++j) out[j] /= sum;
        }
    }

    Value x_, out_;
    NormKind kind_;
    double number_;
    Epilogue epilogue_;
    Numbers scale_, shift_;
};

}  // namespace amago
