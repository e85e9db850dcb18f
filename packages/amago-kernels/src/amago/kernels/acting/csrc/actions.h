// The last operation: actions, or the parameters of the action distribution.
#pragma once

#include "operation.h"

namespace amago {

// The value itself, float32 (B, W).
class Emit : public Operation {
public:
    explicit Emit(Value x) : x_(x) {}

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r)
            std::copy_n(tile.row(x_, r), x_.width, static_cast<float*>(step.out) + (tile.first + r) * x_.width);
    }

private:
    Value x_;
};

// One categorical choice per component, int64 (B, components): softmax of the logits, clamped to [low, high] and
// normalised; then the first choice whose cumulative probability exceeds a uniform number in [0, 1), or the argmax.
struct Component {
    int64_t size;
    float low, high;
};
class Choose : public Operation {
public:
    Choose(Value x, std::vector<Component> components) : x_(x), components_(std::move(components)) {}

    void run(const Step& step, const Tile& tile) const override {
        const int64_t count = static_cast<int64_t>(components_.size());
        auto* out = static_cast<int64_t*>(step.out);
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* logits = tile.row(x_, r);
            for (int64_t c = 0; c < count; ++c) {
                const int64_t at = (tile.first + r) * count + c;
                const float total = probabilities(logits, components_[c]);
                out[at] = step.noise ? draw(logits, components_[c].size, step.noise[at], total)
                                      : argmax(logits, components_[c].size);
                if (out[at] < 0) step.undrawable->store(true, std::memory_order_relaxed);
                logits += components_[c].size;
            }
        }
    }

private:
    static float probabilities(float* x, const Component& component) {
        const int64_t n = component.size;
        const float max = *std::max_element(x, x + n);
        float sum = 0, total = 0;
        for (int64_t j = 0; j < n; ++j) sum += x[j] = vexp(x[j] - max);
        for (int64_t j = 0; j < n; ++j) {
            const float p = x[j] / sum;
            total += x[j] = p < component.low ? component.low : (p > component.high ? component.high : p);
        }
        return total;
    }

    // -1 if the probabilities are not finite.
    static int64_t draw(const float* p, int64_t n, float uniform, float total) {
        if (!(total > 0)) return -1;
        const float until = uniform * total;
        float sum = 0;
        int64_t last = 0;  // rounding errors go to the last possible choice
        for (int64_t j = 0; j < n; ++j) {
            sum += p[j];
            if (p[j] > 0) last = j;
            if (sum > until) return j;
        }
        return last;
    }

    static int64_t argmax(const float* p, int64_t n) {
        int64_t best = 0;
        for (int64_t j = 1; j < n; ++j)
            if (p[j] > p[best]) best = j;
        return best;
    }

    Value x_;
    std::vector<Component> components_;
};

// A tanh-squashed Gaussian, float32 (B, A) in [-1, 1]: tanh(mean + deviation * noise), from A means and A raw
// deviations, which tanh maps into (low, high) on a logarithmic scale; without noise tanh(mean).
class Squash : public Operation {
public:
    Squash(Value x, float log_low, float log_high) : x_(x), log_low_(log_low), log_high_(log_high) {}

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = x_.width / 2;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* mean = tile.row(x_, r);
            const float* raw = mean + width;
            float* out = static_cast<float*>(step.out) + (tile.first + r) * width;
            for (int64_t j = 0; j < width; ++j) {
                float u = mean[j];
                if (step.noise) {
                    const float deviation = vexp(log_low_ + 0.5f * (log_high_ - log_low_) * (vtanh(raw[j]) + 1.0f));
                    u += deviation * step.noise[(tile.first + r) * width + j];
                }
                out[j] = vtanh(u);
            }
        }
    }

private:
    Value x_;
    float log_low_, log_high_;
};

}  // namespace amago
