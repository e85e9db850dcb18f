// Recurrent layers of a step program.
//
// Shapes: B rows of the batch, W width of a hidden state.
#pragma once

#include "values.h"

namespace amago {

// A state of the step before, (B, W).
class Recall : public Operation {
public:
    Recall(Value out, int64_t state) : out_(out), state_(state) {}

    void run(const Step& step, const Tile& tile) const override {
        const float* from = step.states[state_].before;
        for (int64_t r = 0; r < tile.rows; ++r)
            std::copy_n(from + (tile.first + r) * out_.width, out_.width, tile.row(out_, r));
    }

private:
    Value out_;
    int64_t state_;
};

// A gated recurrent unit (Cho et al. 2014) as torch has it, from what the input and the hidden state give to its
// gates (3 W: reset, update, new); the new hidden state is kept.
class GruCell : public Operation {
public:
    GruCell(Value from_input, Value from_hidden, Value hidden, Value out, int64_t state)
        : x_(from_input), h_(from_hidden), hidden_(hidden), out_(out), state_(state) {}

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = out_.width;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* x = tile.row(x_, r);
            const float* h = tile.row(h_, r);
            const float* old = tile.row(hidden_, r);
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < width; j += kLanes) {  // what comes behind the width is nobody's
                const Vector reset = sigmoid(load_vector(x + j) + load_vector(h + j));
                const Vector update = sigmoid(load_vector(x + width + j) + load_vector(h + width + j));
                const Vector candidate = vtanh(load_vector(x + 2 * width + j) + reset * load_vector(h + 2 * width + j));
                store_vector(out + j, candidate + update * (load_vector(old + j) - candidate));
            }
            std::copy_n(out, width, step.states[state_].after + (tile.first + r) * width);
        }
    }

private:
    Value x_, h_, hidden_, out_;
    int64_t state_;
};

}  // namespace amago
