// The operations of a step program, each on some rows of a workspace: the dense ones.
//
// A value of the program is `rows` rows of float32 in the workspace, as wide as its stride, a multiple of two
// vectors; numbers beyond its width are zeros or leftovers that nothing reads.
//
// Shapes: K inputs, N outputs of a linear layer, W width of a value.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "simd.h"

namespace amago {

constexpr int64_t kPanel = 2 * kLanes;  // columns of a weight that are multiplied together
inline int64_t padded(int64_t width) { return (width + kPanel - 1) / kPanel * kPanel; }

// Where a value lies in the workspace of one thread.
struct Value {
    int64_t offset;  // in numbers per row of the tile
    int64_t width;
    int64_t stride() const { return padded(width); }
};

// Rows of one tile that one thread computes from the program's beginning to its end.
struct Tile {
    float* workspace;
    int64_t size;   // rows that the workspace has room for
    int64_t first;  // row of the batch that the tile's first row is
    int64_t rows;
    float* row(const Value& value, int64_t r) const {
        return workspace + value.offset * size + r * value.stride();
    }
};

// What a run is given: addresses, and distances between rows in numbers.
struct Input {
    uintptr_t address;
    int64_t stride;
};
struct Step {
    std::vector<Input> inputs;
    const int64_t* positions;
    int64_t position_stride;
    float* keys;  // (layers, B, slots, heads, dim)
    float* values;
    const int64_t* lengths;
    int64_t slots;
    const float* hidden;  // (layers, B, width), read and written
    float* new_hidden;
    int64_t batch;
    const float* noise;
    void* out;
    bool sample;
    std::atomic<bool>* undrawable;  // set where a row's probabilities are no numbers
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

// erf(x) to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline float verf(float x) {
    const float a = std::fabs(x), t = 1.0f / (1.0f + 0.3275911f * a);
    const float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const float value = 1.0f - p * vexp(-a * a);
    return x < 0 ? -value : value;
}

// What follows a linear layer or a norm: an activation, and another value that is added.
struct Epilogue {
    Activation activation = Activation::none;
    float slope = 0.0f;
    const Value* add = nullptr;

    void operator()(float* x, int64_t width, const float* residual) const {
        switch (activation) {
            case Activation::none: break;
            case Activation::relu:
                for (int64_t j = 0; j < width; ++j) x[j] = x[j] < 0 ? 0.0f : x[j];
                break;
            case Activation::leaky_relu:
                for (int64_t j = 0; j < width; ++j) x[j] = x[j] < 0 ? slope * x[j] : x[j];
                break;
            case Activation::gelu:
                for (int64_t j = 0; j < width; ++j) x[j] = 0.5f * x[j] * (1.0f + verf(x[j] * 0.70710678118654752f));
                break;
            case Activation::mish:  // x tanh(log(1 + e^x)); the ratio is 1 in float32 from 20 on
                for (int64_t j = 0; j < width; ++j) {
                    const float e = vexp(x[j] > 20.0f ? 20.0f : x[j]), n = e * (e + 2.0f);
                    x[j] = x[j] * n / (n + 2.0f);
                }
                break;
        }
        if (residual)
            for (int64_t j = 0; j < width; ++j) x[j] += residual[j];
    }
};

class Operation {
public:
    virtual ~Operation() = default;
    virtual void run(const Step& step, const Tile& tile) const = 0;
    // New numbers: `matrix` (rows, columns) and `vector`, contiguous, either may be missing.
    virtual void set(const float*, int64_t, int64_t, const float*, int64_t) {
        throw std::invalid_argument("the operation has no weights");
    }
};

// out = epilogue(x W^T + b). The weight is kept in panels of kPanel outputs, input by input: a product reads it
// once, from its beginning to its end.
class Linear : public Operation {
public:
    Linear(Value x, Value out, Activation activation, float slope, const Value* add)
        : x_(x), out_(out), epilogue_{activation, slope, nullptr}, has_add_(add != nullptr) {
        if (add) add_ = *add;
    }

    void set(const float* weight, int64_t outputs, int64_t inputs, const float* bias, int64_t biases) override {
        if (outputs != out_.width || inputs != x_.width || (bias && biases != outputs))
            throw std::invalid_argument("a linear layer of another size");
        panels_.assign(out_.stride() * inputs, 0.0f);
        bias_.assign(out_.stride(), 0.0f);
        if (bias) std::copy_n(bias, outputs, bias_.begin());
        for (int64_t n = 0; n < outputs; ++n)
            for (int64_t k = 0; k < inputs; ++k)
                panels_[(n / kPanel * inputs + k) * kPanel + n % kPanel] = weight[n * inputs + k];
    }

    void run(const Step&, const Tile& tile) const override {
        const int64_t blocks = (tile.rows + kBlockRows - 1) / kBlockRows;
        for (int64_t panel = 0; panel < out_.stride() / kPanel; ++panel)
            for (int64_t b = 0; b < blocks; ++b) {
                const int64_t begin = tile.rows * b / blocks, end = tile.rows * (b + 1) / blocks;
                choose<kBlockRows>(tile, panel, begin, end - begin);
            }
    }

private:
    template <int ROWS>
    void choose(const Tile& tile, int64_t panel, int64_t begin, int64_t rows) const {
        if (rows == ROWS)
            block<ROWS>(tile, panel, begin);
        else if constexpr (ROWS > 1)
            choose<ROWS - 1>(tile, panel, begin, rows);
    }

    template <int ROWS>
    void block(const Tile& tile, int64_t panel, int64_t begin) const {
        const int64_t inputs = x_.width, stride = x_.stride();
        const float* x = tile.row(x_, begin);
        const float* weight = panels_.data() + panel * inputs * kPanel;
        Vector sums[ROWS][2];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            sums[r][0] = load_vector(bias_.data() + panel * kPanel);
            sums[r][1] = load_vector(bias_.data() + panel * kPanel + kLanes);
        }
        for (int64_t k = 0; k < inputs; ++k) {
            const Vector w0 = load_vector(weight + k * kPanel), w1 = load_vector(weight + k * kPanel + kLanes);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r) {
                sums[r][0] += x[r * stride + k] * w0;
                sums[r][1] += x[r * stride + k] * w1;
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            float* at = tile.row(out_, begin + r) + panel * kPanel;
            store_vector(at, sums[r][0]);
            store_vector(at + kLanes, sums[r][1]);
            epilogue_(at, kPanel, has_add_ ? tile.row(add_, begin + r) + panel * kPanel : nullptr);
        }
    }

    Value x_, out_, add_{};
    Epilogue epilogue_;
    bool has_add_;
    std::vector<float> panels_, bias_;
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

// out = epilogue(norm(x)); `number` is the epsilon, or the size of a simplex.
class Norm : public Operation {
public:
    Norm(Value x, Value out, NormKind kind, double number, Activation activation, float slope, const Value* add)
        : x_(x), out_(out), kind_(kind), number_(number), epilogue_{activation, slope, nullptr}, has_add_(add != nullptr) {
        if (add) add_ = *add;
    }

    // The scale is a matrix of one row.
    void set(const float* scale, int64_t, int64_t scales, const float* shift, int64_t shifts) override {
        if ((scale && scales != x_.width) || (shift && shifts != x_.width))
            throw std::invalid_argument("a norm of another size");
        scale_.assign(x_.width, 1.0f);
        shift_.assign(x_.width, 0.0f);
        if (scale) std::copy_n(scale, scales, scale_.begin());
        if (shift) std::copy_n(shift, shifts, shift_.begin());
    }

    void run(const Step&, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* out = tile.row(out_, r);
            normalise(tile.row(x_, r), out);
            epilogue_(out, out_.width, has_add_ ? tile.row(add_, r) : nullptr);
        }
    }

private:
    void normalise(const float* x, float* out) const {
        const int64_t n = x_.width;
        float mean = 0, squares = 0, factor = 1;
        switch (kind_) {
            case NormKind::none: break;
            case NormKind::layer:
#pragma omp simd reduction(+ : mean)
                for (int64_t j = 0; j < n; ++j) mean += x[j];
                mean /= n;
#pragma omp simd reduction(+ : squares)
                for (int64_t j = 0; j < n; ++j) squares += (x[j] - mean) * (x[j] - mean);
                factor = 1.0f / std::sqrt(squares / n + static_cast<float>(number_));
                break;
            case NormKind::simplex: return softmaxes(x, out);
            default:
#pragma omp simd reduction(+ : squares)
                for (int64_t j = 0; j < n; ++j) squares += x[j] * x[j];
                if (kind_ == NormKind::rms)
                    factor = 1.0f / std::sqrt(squares / n + static_cast<float>(number_));
                else if (kind_ == NormKind::unit_ball)
                    factor = 1.0f / (std::sqrt(squares) + static_cast<float>(number_));
                else
                    factor = std::sqrt(static_cast<float>(n)) /
                             std::max(std::sqrt(squares), static_cast<float>(number_));
        }
        if (scale_.empty())
            for (int64_t j = 0; j < n; ++j) out[j] = (x[j] - mean) * factor;
        else
            for (int64_t j = 0; j < n; ++j) out[j] = (x[j] - mean) * factor * scale_[j] + shift_[j];
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

    Value x_, out_, add_{};
    NormKind kind_;
    double number_;
    Epilogue epilogue_;
    bool has_add_;
    std::vector<float> scale_, shift_;
};

// The inputs side by side; the first `zeros` numbers of each count as 0, whatever they are.
struct Piece {
    int64_t input, width, zeros;
};
class Gather : public Operation {
public:
    Gather(Value out, std::vector<Piece> pieces, bool symlog)
        : out_(out), pieces_(std::move(pieces)), symlog_(symlog) {}

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* out = tile.row(out_, r);
            for (const Piece& piece : pieces_) {
                const Input& input = step.inputs[piece.input];
                const float* from = reinterpret_cast<const float*>(input.address) + (tile.first + r) * input.stride;
                std::fill_n(out, piece.zeros, 0.0f);
                std::copy(from + piece.zeros, from + piece.width, out + piece.zeros);
                out += piece.width;
            }
            if (!symlog_) continue;
            float* x = tile.row(out_, r);
            for (int64_t j = 0; j < out_.width; ++j) x[j] = std::copysign(std::log1p(std::fabs(x[j])), x[j]);
        }
    }

private:
    Value out_;
    std::vector<Piece> pieces_;
    bool symlog_;
};

// out = (x - shift) * scale, cut off at plus and minus `limit`.
class Standardise : public Operation {
public:
    Standardise(Value x, Value out, float limit) : x_(x), out_(out), limit_(limit) {}

    void set(const float* scale, int64_t, int64_t scales, const float* shift, int64_t shifts) override {
        if (scales != x_.width || shifts != x_.width) throw std::invalid_argument("statistics of another size");
        scale_.assign(scale, scale + scales);
        shift_.assign(shift, shift + shifts);
    }

    void run(const Step&, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* x = tile.row(x_, r);
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < x_.width; ++j) {
                const float y = (x[j] - shift_[j]) / scale_[j];
                out[j] = y < -limit_ ? -limit_ : (y > limit_ ? limit_ : y);
            }
        }
    }

private:
    Value x_, out_;
    float limit_;
    std::vector<float> scale_, shift_;
};

}  // namespace amago
