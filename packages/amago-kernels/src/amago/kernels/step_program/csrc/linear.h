// Linear layers of a step program, and what follows a layer or a norm.
//
// Shapes: K inputs, N outputs.
#pragma once

#include "values.h"

namespace amago {

enum class Activation { none, relu, leaky_relu, gelu, mish };

inline Activation activation_of(const std::string& name) {
    if (name == "none") return Activation::none;
    if (name == "relu") return Activation::relu;
    if (name == "leaky_relu") return Activation::leaky_relu;
    if (name == "gelu") return Activation::gelu;
    if (name == "mish") return Activation::mish;
    throw std::invalid_argument("no activation " + name);
}

// Some columns of some rows.
struct Columns {
    float* at;
    int64_t stride, rows, vectors;

    template <class One>
    void each(const One& one) const {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < vectors * kLanes; j += kLanes) {
                float* x = at + r * stride + j;
                store_vector(x, one(load_vector(x)));
            }
    }
};

// What follows a linear layer or a norm: an activation, and another value that is added.
class Epilogue {
public:
    Epilogue(Activation activation, float slope, const Value* add)
        : activation_(activation), slope_(slope), has_add_(add != nullptr), add_(add ? *add : Value{}) {}

    // For the columns of a tile from row `row` and column `column` on.
    void operator()(const Columns& x, const Tile& tile, int64_t row, int64_t column) const {
        activate(x);
        if (!has_add_) return;
        for (int64_t r = 0; r < x.rows; ++r) {
            const float* add = tile.row(add_, row + r) + column;
            float* at = x.at + r * x.stride;
            for (int64_t j = 0; j < x.vectors * kLanes; j += kLanes)
                store_vector(at + j, load_vector(at + j) + load_vector(add + j));
        }
    }

private:
    void activate(const Columns& columns) const {
        const float slope = slope_;
        switch (activation_) {
            case Activation::none: return;
            case Activation::relu:
                return columns.each([](Vector x) { return x < 0.0f ? Vector{} : x; });
            case Activation::leaky_relu:
                return columns.each([slope](Vector x) { return x < 0.0f ? slope * x : x; });
            case Activation::gelu:
                return columns.each([](Vector x) { return 0.5f * x * (1.0f + verf(x * 0.70710678118654752f)); });
            case Activation::mish:  // x tanh(log(1 + e^x)); the ratio is 1 in float32 from 20 on
                return columns.each([](Vector x) {
                    const Vector e = vexp(x > 20.0f ? splat(20.0f) : x), n = e * (e + 2.0f);
                    return x * n / (n + 2.0f);
                });
        }
    }

    Activation activation_;
    float slope_;
    bool has_add_;
    Value add_;
};

// out = epilogue(x W^T + b). The weight is kept in panels of kPanel outputs, input by input, and read in this order.
class Linear : public Operation {
public:
    Linear(Value x, Value out, Activation activation, float slope, const Value* add)
        : x_(x), out_(out), epilogue_(activation, slope, add) {}

    void set(const float* weight, int64_t outputs, int64_t inputs, const float* bias, int64_t biases) override {
        if (outputs != out_.width || inputs != x_.width || (bias && biases != outputs))
            throw std::invalid_argument("a linear layer of another size");
        bias_.copy(bias, outputs, padded(outputs), 0.0f);
        panels_.assign(padded(outputs) * inputs, 0.0f);
        for (int64_t n = 0; n < outputs; ++n) {
            float* column = panels_.data() + n / kPanel * inputs * kPanel + n % kPanel;
            for (int64_t k = 0; k < inputs; ++k) column[k * kPanel] = weight[n * inputs + k];
        }
    }

    void run(const Step&, const Tile& tile) const override {
        const int64_t inputs = x_.width, blocks = (tile.rows + kBlockRows - 1) / kBlockRows;
        // More rows than one block go by while some inputs' share of the panel stays in the first cache.
        const int64_t share = blocks == 1 ? inputs : kShare;
        for (int64_t panel = 0; panel < padded(out_.width) / kPanel; ++panel)
            for (int64_t k = 0; k < inputs; k += share)
                for (int64_t b = 0; b < blocks; ++b) {
                    const int64_t begin = tile.rows * b / blocks, end = tile.rows * (b + 1) / blocks;
                    choose<kBlockRows>(tile, panel, begin, end - begin, k, std::min(inputs, k + share));
                }
    }

private:
    static constexpr int64_t kShare = 128;

    template <int ROWS>
    void choose(const Tile& tile, int64_t panel, int64_t begin, int64_t rows, int64_t from, int64_t to) const {
        if (rows == ROWS)
            block<ROWS>(tile, panel, begin, from, to);
        else if constexpr (ROWS > 1)
            choose<ROWS - 1>(tile, panel, begin, rows, from, to);
    }

    // The sums over inputs [from, to) of some rows, added to those before them.
    template <int ROWS>
    void block(const Tile& tile, int64_t panel, int64_t begin, int64_t from, int64_t to) const {
        const int64_t inputs = x_.width, stride = x_.stride(), out_stride = out_.stride();
        const float* x = tile.row(x_, begin);
        const float* weight = panels_.data() + panel * inputs * kPanel;
        float* out = tile.row(out_, begin) + panel * kPanel;
        Vector sums[ROWS][2];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            const float* before = from == 0 ? bias_.data() + panel * kPanel : out + r * out_stride;
            sums[r][0] = load_vector(before);
            sums[r][1] = load_vector(before + kLanes);
        }
        for (int64_t k = from; k < to; ++k) {
            const Vector w0 = load_vector(weight + k * kPanel), w1 = load_vector(weight + k * kPanel + kLanes);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r) {
                sums[r][0] += x[r * stride + k] * w0;
                sums[r][1] += x[r * stride + k] * w1;
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            store_vector(out + r * out_stride, sums[r][0]);
            store_vector(out + r * out_stride + kLanes, sums[r][1]);
        }
        if (to == inputs) epilogue_(Columns{out, out_stride, ROWS, 2}, tile, begin, panel * kPanel);
    }

    Value x_, out_;
    Epilogue epilogue_;
    Numbers panels_, bias_;
};

}  // namespace amago
