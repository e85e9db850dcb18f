// Positions in an episode, added to a value or turned into rotations.
//
// Shapes: H heads, D head dimension.
#pragma once

#include "values.h"

namespace amago {

// x += table[position]; the table is kept by the program's owner, who makes it longer when an episode gets there.
class AddPosition : public Operation {
public:
    explicit AddPosition(Value x) : x_(x) {}

    void set(const float* table, int64_t, int64_t width, const float*, int64_t) override {
        if (width != x_.width) throw std::invalid_argument("positions of another width");
        table_ = table;
    }

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* x = tile.row(x_, r);
            const float* at = table_ + step.positions[(tile.first + r) * step.position_stride] * x_.width;
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

    void set(const float* table, int64_t, int64_t width, const float*, int64_t) override {
        if (width != dim_) throw std::invalid_argument("rotations of another width");
        table_ = table;
    }

    void run(const Step& step, const Tile& tile) const override {
        const int64_t half = dim_ / 2;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* cos = table_ + step.positions[(tile.first + r) * step.position_stride] * dim_;
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
