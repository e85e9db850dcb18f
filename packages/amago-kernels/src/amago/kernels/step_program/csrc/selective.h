// A selective state-space layer (Gu and Dao 2023, section 3.4): its convolution and its recurrence.
//
// Shapes: B rows of the batch, I channels, K timesteps that the convolution sees, N states per channel.
#pragma once

#include "values.h"

namespace amago {

// log(1 + e^x) with a relative error below 1e-6: log(1 + e) = 2 artanh(e / (2 + e)), the series to the 15th power.
inline Vector softplus(Vector x) {
    const Vector e = vexp(-magnitude(x)), s = e / (2.0f + e), q = s * s;
    Vector series = q * (1.0f / 15) + 1.0f / 13;
    series = series * q + 1.0f / 11;
    series = series * q + 1.0f / 9;
    series = series * q + 1.0f / 7;
    series = series * q + 1.0f / 5;
    series = series * q + 1.0f / 3;
    series = series * q + 1.0f;
    const Vector above = x < 0.0f ? Vector{} : x;  // x where it is no number
    return above + 2.0f * s * series;
}

// out = silu(b + sum_k w_k x_{t-K+1+k}) for the first I numbers of x; the K - 1 inputs before this one are a state.
class Convolve : public Operation {
public:
    Convolve(Value x, Value out, int64_t taps, int64_t state) : x_(x), out_(out), taps_(taps), state_(state) {}

    // The matrix is (K, I): timesteps first.
    void set(const float* weight, int64_t taps, int64_t channels, const float* bias, int64_t biases) override {
        if (taps != taps_ || channels != out_.width || biases != channels)
            throw std::invalid_argument("a convolution of another size");
        const int64_t stride = padded(channels);
        weight_.assign(taps * stride, 0.0f);
        for (int64_t k = 0; k < taps; ++k) std::copy_n(weight + k * channels, channels, weight_.data() + k * stride);
        bias_.copy(bias, channels, stride, 0.0f);
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
            for (int64_t j = 0; j < stride; j += kLanes) {
                const Vector y = load_vector(out + j);
                store_vector(out + j, y * sigmoid(y));
            }
            if (before == 0) continue;
            std::copy_n(old + width, before - width, kept);
            std::copy_n(x, width, kept + before - width);
        }
    }

private:
    Value x_, out_;
    int64_t taps_, state_;
    Numbers weight_, bias_;
};

// h_t = exp(delta A) h_{t-1} + delta u B and y = (<C, h_t> + D u) silu(gate), delta behind a softplus. `xz` has the
// gate as its second half, `bc` B and C.
class Scan : public Operation {
public:
    Scan(Value u, Value delta, Value bc, Value xz, Value out, int64_t state)
        : u_(u), delta_(delta), bc_(bc), xz_(xz), out_(out), states_(bc.width / 2), state_(state) {}

    // The matrix is A (I, N), the vector D.
    void set(const float* rates, int64_t channels, int64_t states, const float* skip, int64_t skips) override {
        if (channels != out_.width || states != states_ || skips != channels)
            throw std::invalid_argument("a scan of another size");
        rates_.copy(rates, channels * states, channels * states + kLanes, 0.0f);
        skip_.copy(skip, skips, padded(skips), 0.0f);
    }

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = out_.width, all = width * states_;
        Numbers steps;
        steps.assign(padded(width), 0.0f);
        for (int64_t r = 0; r < tile.rows; ++r) {
            const State& state = step.states[state_];
            const float* u = tile.row(u_, r);
            const float* gate = tile.row(xz_, r) + width;
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < padded(width); j += kLanes)
                store_vector(steps.data() + j, softplus(load_vector(tile.row(delta_, r) + j)));
            advance(u, steps.data(), tile.row(bc_, r), state.before + (tile.first + r) * all,
                    state.after + (tile.first + r) * all, out);
            for (int64_t j = 0; j < width; j += kLanes) {
                const Vector z = load_vector(gate + j);
                const Vector y = load_vector(out + j) + load_vector(skip_.data() + j) * load_vector(u + j);
                store_vector(out + j, y * z * sigmoid(z));
            }
        }
    }

private:
    // New states, and their products with C.
    void advance(const float* u, const float* delta, const float* bc, const float* old, float* now, float* out) const {
        const int64_t n = states_;
        int64_t c = 0;
        if (n % kLanes == 0)
            for (; c + kLanes <= out_.width; c += kLanes) {
                Vector sums[kLanes];
                for (int i = 0; i < kLanes; ++i) {
                    sums[i] = Vector{};
                    for (int64_t k = 0; k < n; k += kLanes) {
                        const int64_t at = (c + i) * n + k;
                        const Vector h = vexp(delta[c + i] * load_vector(rates_.data() + at)) * load_vector(old + at) +
                                         delta[c + i] * u[c + i] * load_vector(bc + k);
                        store_vector(now + at, h);
                        sums[i] += h * load_vector(bc + n + k);
                    }
                }
                store_vector(out + c, sums_of<kLanes>(sums));
            }
        for (; c < out_.width; ++c) {
            float sum = 0;
            for (int64_t k = 0; k < n; ++k) {
                const int64_t at = c * n + k;
                now[at] = vexp(delta[c] * rates_.data()[at]) * old[at] + delta[c] * u[c] * bc[k];
                sum += now[at] * bc[n + k];
            }
            out[c] = sum;
        }
    }

    Value u_, delta_, bc_, xz_, out_;
    int64_t states_, state_;
    Numbers rates_, skip_;
};

}  // namespace amago
