// Inputs, linear layers, norms and position embeddings.
//
// Shapes: K inputs, N outputs, H heads, D head dimension.
#pragma once

#include "operation.h"

namespace amago {

// Concatenates inputs; the first `zeros` elements of each are replaced by 0. With symlog: sign(x) log(1 + |x|).
struct InputPart {
    int64_t input, width, zeros;
};
class Gather : public Operation {
public:
    Gather(Value out, std::vector<InputPart> parts, bool symlog)
        : out_(out), parts_(std::move(parts)), symlog_(symlog) {}

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* out = tile.row(out_, r);
            for (const InputPart& part : parts_) {
                const Input& input = step.inputs[part.input];
                const float* from = input.data + (tile.first + r) * input.stride;
                std::fill_n(out, part.zeros, 0.0f);
                std::copy(from + part.zeros, from + part.width, out + part.zeros);
                out += part.width;
            }
            if (!symlog_) continue;
            float* x = tile.row(out_, r);
            for (int64_t j = 0; j < out_.width; ++j) x[j] = std::copysign(std::log1p(std::fabs(x[j])), x[j]);
        }
    }

private:
    Value out_;
    std::vector<InputPart> parts_;
    bool symlog_;
};

// out = (x - mean) / deviation, clamped to [-limit, limit].
class Standardise : public Operation {
public:
    Standardise(Value x, Value out, float limit, Array deviation, Array mean) : x_(x), out_(out), limit_(limit) {
        deviation.require(1, x.width, "deviations");
        mean.require(1, x.width, "means");
        scale_.copy(deviation.data, x.width, padded(x.width), 1.0f);
        shift_.copy(mean.data, x.width, padded(x.width), 0.0f);
    }

    void run(const Step&, const Tile& tile) const override {
        const Floats high = splat(limit_), low = splat(-limit_);
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* x = tile.row(x_, r);
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < padded(x_.width); j += kFloats) {
                const Floats y = (load_floats(x + j) - load_floats(shift_.data() + j)) / load_floats(scale_.data() + j);
                store_vector(out + j, Floats(y < low ? low : (y > high ? high : y)));
            }
        }
    }

private:
    Value x_, out_;
    float limit_;
    AlignedArray scale_, shift_;
};

enum class Activation { none, relu, leaky_relu, gelu, mish };

inline Activation activation_of(const std::string& name) {
    if (name == "none") return Activation::none;
    if (name == "relu") return Activation::relu;
    if (name == "leaky_relu") return Activation::leaky_relu;
    if (name == "gelu") return Activation::gelu;
    if (name == "mish") return Activation::mish;
    throw std::invalid_argument("no activation " + name);
}

// A block of columns of some rows.
struct Columns {
    float* at;
    int64_t stride, rows, vectors;

    template <class One>
    void each(const One& one) const {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < vectors * kFloats; j += kFloats) {
                float* x = at + r * stride + j;
                store_vector(x, Floats(one(load_floats(x))));
            }
    }
};

// Applied to the result of a linear layer or a norm: an activation, then the addition of another value.
class Epilogue {
public:
    Epilogue(Activation activation, float slope, const Value* add)
        : activation_(activation), slope_(slope), has_add_(add != nullptr), add_(add ? *add : Value{}) {}

    // `x` starts at row `row` of the tile and column `column`.
    void operator()(const Columns& x, const Tile& tile, int64_t row, int64_t column) const {
        activate(x);
        if (!has_add_) return;
        for (int64_t r = 0; r < x.rows; ++r) {
            const float* add = tile.row(add_, row + r) + column;
            float* at = x.at + r * x.stride;
            for (int64_t j = 0; j < x.vectors * kFloats; j += kFloats)
                store_vector(at + j, Floats(load_floats(at + j) + load_floats(add + j)));
        }
    }

private:
    void activate(const Columns& columns) const {
        const float slope = slope_;
        switch (activation_) {
            case Activation::none: return;
            case Activation::relu:
                return columns.each([](Floats x) { return x < 0.0f ? Floats{} : x; });
            case Activation::leaky_relu:
                return columns.each([slope](Floats x) { return x < 0.0f ? slope * x : x; });
            case Activation::gelu:
                return columns.each([](Floats x) { return 0.5f * x * (1.0f + verf(x * 0.70710678118654752f)); });
            case Activation::mish:  // x tanh(log(1 + e^x)); the ratio is 1 in float32 from 20 on
                return columns.each([](Floats x) {
                    const Floats e = vexp(x > 20.0f ? splat(20.0f) : x), n = e * (e + 2.0f);
                    return x * n / (n + 2.0f);
                });
        }
    }

    Activation activation_;
    float slope_;
    bool has_add_;
    Value add_;
};

// out = epilogue(x W^T + b). The weight is packed in panels of kPanel outputs, input by input, and read sequentially.
class Linear : public Operation {
public:
    Linear(Value x, Value out, Array weight, Array bias, Epilogue epilogue) : x_(x), out_(out), epilogue_(epilogue) {
        const int64_t outputs = out.width, inputs = x.width;
        weight.require(outputs, inputs, "the weight of a linear layer");
        if (bias.data) bias.require(1, outputs, "the bias of a linear layer");
        bias_.copy(bias.data, outputs, padded(outputs), 0.0f);
        panels_.assign(padded(outputs) * inputs, 0.0f);
        for (int64_t n = 0; n < outputs; ++n) {
            float* column = panels_.data() + n / kPanel * inputs * kPanel + n % kPanel;
            for (int64_t k = 0; k < inputs; ++k) column[k * kPanel] = weight.data[n * inputs + k];
        }
    }

    void run(const Step&, const Tile& tile) const override {
        const int64_t inputs = x_.width, blocks = (tile.rows + kBlockRows - 1) / kBlockRows;
        // With several blocks of rows, kShare inputs of the panel stay in the first-level cache meanwhile.
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

    // Adds the products with inputs [from, to) to the outputs of ROWS rows.
    template <int ROWS>
    void block(const Tile& tile, int64_t panel, int64_t begin, int64_t from, int64_t to) const {
        const int64_t inputs = x_.width, stride = x_.stride(), out_stride = out_.stride();
        const float* x = tile.row(x_, begin);
        const float* weight = panels_.data() + panel * inputs * kPanel;
        float* out = tile.row(out_, begin) + panel * kPanel;
        Floats sums[ROWS][2];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            const float* before = from == 0 ? bias_.data() + panel * kPanel : out + r * out_stride;
            sums[r][0] = load_floats(before);
            sums[r][1] = load_floats(before + kFloats);
        }
        for (int64_t k = from; k < to; ++k) {
            const Floats w0 = load_floats(weight + k * kPanel), w1 = load_floats(weight + k * kPanel + kFloats);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r) {
                sums[r][0] += x[r * stride + k] * w0;
                sums[r][1] += x[r * stride + k] * w1;
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            store_vector(out + r * out_stride, sums[r][0]);
            store_vector(out + r * out_stride + kFloats, sums[r][1]);
        }
        if (to == inputs) epilogue_(Columns{out, out_stride, ROWS, 2}, tile, begin, panel * kPanel);
    }

    Value x_, out_;
    Epilogue epilogue_;
    AlignedArray panels_, bias_;
};

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

// The sum of one(x_j) over n elements; those behind them are read, but not added.
template <class One>
inline float sum_over(const float* x, int64_t n, const One& one) {
    Floats sums = {};
    int64_t j = 0;
    for (; j + kFloats <= n; j += kFloats) sums += one(load_floats(x + j));
    if (j < n) {
        float rest[kFloats] = {};
        store_vector(rest, Floats(one(load_floats(x + j))));
        std::fill(rest + (n - j), rest + kFloats, 0.0f);
        sums += load_floats(rest);
    }
    return sum_of(sums);
}

// out = epilogue(norm(x)); `number` is epsilon, or the group size of simplicial normalisation.
class Norm : public Operation {
public:
    Norm(Value x, Value out, NormKind kind, double number, Array scale, Array shift, Epilogue epilogue)
        : x_(x), out_(out), kind_(kind), number_(number), epilogue_(epilogue) {
        if (scale.data) scale.require(1, x.width, "the scale of a norm");
        if (shift.data) shift.require(1, x.width, "the shift of a norm");
        scale_.copy(scale.data, x.width, padded(x.width), 1.0f);
        shift_.copy(shift.data, x.width, padded(x.width), 0.0f);
    }

    void run(const Step&, const Tile& tile) const override {
        const int64_t vectors = padded(out_.width) / kFloats;
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
        const float mean = kind_ == NormKind::layer ? sum_over(x, n, [](Floats v) { return v; }) / n : 0.0f;
        const float factor = kind_ == NormKind::none ? 1.0f : factor_of(sum_over(x, n, [mean](Floats v) {
            return (v - mean) * (v - mean);
        }));
        for (int64_t j = 0; j < padded(n); j += kFloats)
            store_vector(out + j, Floats((load_floats(x + j) - mean) * factor * load_floats(scale_.data() + j) +
                                         load_floats(shift_.data() + j)));
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
    AlignedArray scale_, shift_;
};

// x += table[position].
class AddPosition : public Operation {
public:
    explicit AddPosition(Value x) : x_(x) {}

    void set_table(Array table) override {
        table.require(table.rows, x_.width, "a table of positions");
        table_ = table.data;
    }

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* x = tile.row(x_, r);
            const float* at = table_ + step.positions[tile.first + r] * x_.width;
            for (int64_t j = 0; j < x_.width; ++j) x[j] += at[j];
        }
    }

private:
    Value x_;
    const float* table_ = nullptr;
};

// Rotary positions (Su et al. 2021, eq. 34) on the queries and keys of a packed (3, H, D). The table holds D/2
// cosines, then D/2 sines of each position.
class Rotate : public Operation {
public:
    Rotate(Value x, int64_t heads, int64_t dim) : x_(x), heads_(heads), dim_(dim) {}

    void set_table(Array table) override {
        table.require(table.rows, dim_, "a table of rotations");
        table_ = table.data;
    }

    void run(const Step& step, const Tile& tile) const override {
        const int64_t half = dim_ / 2;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* cos = table_ + step.positions[tile.first + r] * dim_;
            const float* sin = cos + half;
            for (int64_t h = 0; h < 2 * heads_; ++h) {
                float* a = tile.row(x_, r) + h * dim_;
                float* b = a + half;
                for (int64_t j = 0; j < half; ++j) {
                    const float x = a[j], y = b[j];
                    a[j] = x * cos[j] - y * sin[j];
                    b[j] = x * sin[j] + y * cos[j];
                }
            }
        }
    }

private:
    Value x_;
    int64_t heads_, dim_;
    const float* table_ = nullptr;
};

}  // namespace amago
