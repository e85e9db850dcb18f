// Operations that read and write a hidden state: attention, GRU cells and Mamba layers.
//
// Shapes: B rows of the batch, W slots of a ring cache, H heads, D head dimension, I channels and N states per channel
// of a Mamba layer, K timesteps that its convolution sees.
#pragma once

#include "operation.h"
#include "ring_attention.h"
#include "selective_step.h"

namespace amago {

// Writes the step's keys and values into a layer's ring cache, and attends to the cache.
class Attend : public Operation {
public:
    Attend(Value qkv, Value out, int64_t layer, int64_t heads, int64_t dim, AttentionOptions options)
        : qkv_(qkv), out_(out), layer_(layer), heads_(heads), dim_(dim), width_(heads * dim), options_(options) {}

    void run(const Step& step, const Tile& tile) const override {
        AttentionScratch<float> scratch(step.slots, heads_);
        std::vector<float> query(width_);
        with_head_dim(dim_, [&](auto dim) {
            for (int64_t r = 0; r < tile.rows; ++r) attend<dim()>(step, tile, r, query.data(), scratch);
        });
    }

private:
    template <int DIM>
    void attend(const Step& step, const Tile& tile, int64_t r, float* query, AttentionScratch<float>& scratch) const {
        const int64_t row = (layer_ * step.batch + tile.first + r) * step.slots * width_;
        const CacheRow<float> keys{step.keys + row, width_, dim_}, values{step.values + row, width_, dim_};
        const float* qkv = tile.row(qkv_, r);
        const int64_t length = step.lengths[tile.first + r], current = length % step.slots;
        std::copy_n(qkv + width_, width_, keys.at(current, 0));
        std::copy_n(qkv + 2 * width_, width_, values.at(current, 0));
        for (int64_t j = 0; j < width_; ++j) query[j] = qkv[j] * static_cast<float>(options_.scale);
        const VisibleSlots seen(length, step.slots, options_);
        attend_heads<DIM, float, float>(query, {keys.start, width_, dim_}, {values.start, width_, dim_}, seen, 0, heads_,
                                        dim_, options_, scratch, tile.row(out_, r));
    }

    Value qkv_, out_;
    int64_t layer_, heads_, dim_, width_;
    AttentionOptions options_;
};

// Reads a recurrent state (B, W) of the previous step.
class ReadState : public Operation {
public:
    ReadState(Value out, int64_t state) : out_(out), state_(state) {}

    void run(const Step& step, const Tile& tile) const override {
        const float* from = step.states[state_].before;
        for (int64_t r = 0; r < tile.rows; ++r)
            std::copy_n(from + (tile.first + r) * out_.width, out_.width, tile.row(out_, r));
    }

private:
    Value out_;
    int64_t state_;
};

// A gated recurrent unit (Cho et al. 2014) as in torch, from the contributions of input and hidden state to its gates
// (3 W: reset, update, new). Writes the new hidden state.
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
            for (int64_t j = 0; j < width; j += kFloats) {  // elements beyond the width are unused
                const Floats reset = sigmoid(load_floats(x + j) + load_floats(h + j));
                const Floats update = sigmoid(load_floats(x + width + j) + load_floats(h + width + j));
                const Floats candidate = vtanh(load_floats(x + 2 * width + j) + reset * load_floats(h + 2 * width + j));
                store_vector(out + j, Floats(candidate + update * (load_floats(old + j) - candidate)));
            }
            std::copy_n(out, width, step.states[state_].after + (tile.first + r) * width);
        }
    }

private:
    Value x_, h_, hidden_, out_;
    int64_t state_;
};

// out = silu(b + sum_k w_k x_{t-K+1+k}) for the first I elements of x; the state holds the K - 1 inputs before this one.
class Convolve : public Operation {
public:
    // `weight` is (K, I), timesteps first.
    Convolve(Value x, Value out, int64_t taps, int64_t state, Array weight, Array bias)
        : x_(x), out_(out), taps_(taps), state_(state) {
        const int64_t channels = out.width, stride = padded(channels);
        weight.require(taps, channels, "the filters of a convolution");
        bias.require(1, channels, "the bias of a convolution");
        weight_.assign(taps * stride, 0.0f);
        for (int64_t k = 0; k < taps; ++k) std::copy_n(weight.data + k * channels, channels, weight_.data() + k * stride);
        bias_.copy(bias.data, channels, stride, 0.0f);
    }

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = out_.width, stride = padded(width), before = (taps_ - 1) * width;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const State& state = step.states[state_];
            const float* old = state.before + (tile.first + r) * before;
            float* kept = state.after + (tile.first + r) * before;
            const float* x = tile.row(x_, r);
            float* out = tile.row(out_, r);
            std::copy_n(bias_.data(), stride, out);
            for (int64_t k = 0; k < taps_; ++k) {
                const float* from = k + 1 < taps_ ? old + k * width : x;
                const float* weight = weight_.data() + k * stride;
                for (int64_t j = 0; j < width; ++j) out[j] += weight[j] * from[j];
            }
            for (int64_t j = 0; j < stride; j += kFloats) {
                const Floats y = load_floats(out + j);
                store_vector(out + j, Floats(y * sigmoid(y)));
            }
            if (before == 0) continue;
            std::copy_n(old + width, before - width, kept);
            std::copy_n(x, width, kept + before - width);
        }
    }

private:
    Value x_, out_;
    int64_t taps_, state_;
    AlignedArray weight_, bias_;
};

// A step of the selective scan with softplus; `xz` has the gate as its second half, `bc` holds B and C.
class Scan : public Operation {
public:
    // `rates` is A (I, N), `skip` D (I).
    Scan(Value u, Value delta, Value bc, Value xz, Value out, int64_t state, Array rates, Array skip)
        : u_(u), delta_(delta), bc_(bc), xz_(xz), out_(out), states_(bc.width / 2), state_(state) {
        rates.require(out.width, states_, "the rates of a scan");
        skip.require(1, out.width, "the skip connection of a scan");
        rates_.copy(rates.data, out.width * states_, out.width * states_, 0.0f);
        skip_.copy(skip.data, out.width, out.width, 0.0f);
    }

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = out_.width, all = width * states_;
        const SelectiveWeights<float> weights{width, states_, rates_.data(), skip_.data(), nullptr, true};
        const State& state = step.states[state_];
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* bc = tile.row(bc_, r);
            const int64_t at = (tile.first + r) * all;
            const SelectiveRow<float> row{tile.row(u_, r), tile.row(delta_, r), tile.row(xz_, r) + width, bc,
                                          bc + states_,    state.before + at,   state.after + at,         tile.row(out_, r)};
            for (int64_t first = 0; first < width; first += kFloats)
                if (states_ == 16)
                    selective_step_block<16>(weights, row, first);
                else
                    selective_step_block<0>(weights, row, first);
        }
    }

private:
    Value u_, delta_, bc_, xz_, out_;
    int64_t states_, state_;
    AlignedArray rates_, skip_;
};

}  // namespace amago
