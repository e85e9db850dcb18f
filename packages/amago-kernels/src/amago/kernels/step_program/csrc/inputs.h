// The beginning of a step program: what it is given becomes its first value.
#pragma once

#include "values.h"

namespace amago {

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

// out = (x - shift) / scale, cut off at plus and minus `limit`.
class Standardise : public Operation {
public:
    Standardise(Value x, Value out, float limit) : x_(x), out_(out), limit_(limit) {}

    void set(const float* scale, int64_t, int64_t scales, const float* shift, int64_t shifts) override {
        if (scales != x_.width || shifts != x_.width) throw std::invalid_argument("statistics of another size");
        scale_.copy(scale, scales, padded(x_.width), 1.0f);
        shift_.copy(shift, shifts, padded(x_.width), 0.0f);
    }

    void run(const Step&, const Tile& tile) const override {
        const Vector high = splat(limit_), low = splat(-limit_);
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* x = tile.row(x_, r);
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < padded(x_.width); j += kLanes) {
                const Vector y = (load_vector(x + j) - load_vector(shift_.data() + j)) / load_vector(scale_.data() + j);
                store_vector(out + j, y < low ? low : (y > high ? high : y));
            }
        }
    }

private:
    Value x_, out_;
    float limit_;
    Numbers scale_, shift_;
};

}  // namespace amago
