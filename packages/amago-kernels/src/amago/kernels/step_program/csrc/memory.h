// The operations of a step program that know an episode: positions, attention over ring caches, recurrent cells.
//
// Shapes: B rows of the batch, W slots of the cache, H heads, D head dimension.
#pragma once

#include <limits>

#include "operations.h"

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

struct AttentionOptions {
    int64_t window;  // negative for none
    int64_t sink;
    float sink_bias, logit_clip, scale;
};

// Writes the step's keys and values into a layer's ring cache and attends to what the cache holds.
class Attend : public Operation {
public:
    Attend(Value qkv, Value out, int64_t layer, int64_t heads, int64_t dim, AttentionOptions options)
        : qkv_(qkv), out_(out), layer_(layer), heads_(heads), dim_(dim), options_(options) {}

    void run(const Step& step, const Tile& tile) const override {
        std::vector<int64_t> slots;
        std::vector<float> scores;
        for (int64_t r = 0; r < tile.rows; ++r) attend(step, tile, r, slots, scores);
    }

private:
    // Where the slots lie that a row sees which has taken `length` steps before this one, sinks first; the last one
    // is repeated until their number is a multiple of kLanes.
    struct Seen {
        int64_t sinks, count;
    };
    Seen visible(std::vector<int64_t>& slots, int64_t length, int64_t size) const {
        const int64_t now = std::min(length, size - 1);  // place of this step in what is remembered
        const int64_t current = length % size;
        slots.clear();
        const int64_t width = heads_ * dim_;
        const auto slot_at = [&](int64_t place) {
            const int64_t slot = current - (now - place);
            return (slot < 0 ? slot + size : slot) * width;
        };
        const int64_t sinks = std::min(options_.sink, now + 1);
        for (int64_t place = 0; place < sinks; ++place) slots.push_back(slot_at(place));
        const int64_t oldest = options_.window < 0 ? 0 : std::max<int64_t>(0, now - options_.window);
        for (int64_t place = std::max(oldest, sinks); place <= now; ++place) slots.push_back(slot_at(place));
        const int64_t count = static_cast<int64_t>(slots.size());
        slots.resize((count + kLanes - 1) / kLanes * kLanes, slots.back());
        return {sinks, count};
    }

    void attend(const Step& step, const Tile& tile, int64_t r, std::vector<int64_t>& slots,
                std::vector<float>& scores) const {
        const int64_t width = heads_ * dim_, row = (layer_ * step.batch + tile.first + r) * step.slots;
        float* keys = step.keys + row * width;
        float* values = step.values + row * width;
        const float* query = tile.row(qkv_, r);
        const int64_t length = step.lengths[tile.first + r], current = length % step.slots;
        std::copy_n(query + width, width, keys + current * width);
        std::copy_n(query + 2 * width, width, values + current * width);

        const Seen seen = visible(slots, length, step.slots);
        const int64_t stride = static_cast<int64_t>(slots.size());
        scores.resize(heads_ * stride);
        score(query, keys, slots, scores.data());
        for (int64_t h = 0; h < heads_; ++h) weigh(scores.data() + h * stride, seen, stride);
        mix(values, slots, seen.count, scores.data(), tile.row(out_, r));
    }

    // Products of the query with all keys that are seen: (H, slots).
    void score(const float* query, const float* keys, const std::vector<int64_t>& slots, float* scores) const {
        const int64_t stride = static_cast<int64_t>(slots.size());
        if (dim_ % kLanes) {
            for (int64_t h = 0; h < heads_; ++h)
                for (int64_t i = 0; i < stride; ++i) {
                    const float* key = keys + slots[i] + h * dim_;
                    float sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (int64_t j = 0; j < dim_; ++j) sum += query[h * dim_ + j] * key[j];
                    scores[h * stride + i] = sum;
                }
            return;
        }
        for (int64_t i = 0; i < stride; i += kLanes) {
            const int64_t* slot = slots.data() + i;
            for (int64_t h = 0; h < heads_; ++h) {
                Vector products[kLanes];
#pragma GCC unroll 16
                for (int s = 0; s < kLanes; ++s)
                    products[s] = load_vector(query + h * dim_) * load_vector(keys + slot[s] + h * dim_);
                for (int64_t j = h * dim_ + kLanes; j < (h + 1) * dim_; j += kLanes)
#pragma GCC unroll 16
                    for (int s = 0; s < kLanes; ++s)
                        products[s] += load_vector(query + j) * load_vector(keys + slot[s] + j);
                store_vector(scores + h * stride + i, sums_of<kLanes>(products));
            }
        }
    }

    static float larger(float a, float b) { return a > b ? a : b; }

    // The lanes put together, half onto half: no lane waits for all before it.
    template <class Two>
    static float fold(float* lanes, const Two& two) {
#pragma GCC unroll 4
        for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 16
            for (int j = 0; j < half; ++j) lanes[j] = two(lanes[j], lanes[j + half]);
        return lanes[0];
    }

    // Scores of one head become the softmax's weights; `stride` is a multiple of kLanes, the rest become 0.
    void weigh(float* weight, Seen seen, int64_t stride) const {
        const float clip = options_.logit_clip, scale = options_.scale;
        for (int64_t i = 0; i < stride; ++i) weight[i] *= scale;
        for (int64_t i = 0; i < seen.sinks; ++i) weight[i] += options_.sink_bias;
        if (clip < std::numeric_limits<float>::infinity())
            for (int64_t i = 0; i < seen.count; ++i)
                weight[i] = weight[i] > clip ? clip : (weight[i] < -clip ? -clip : weight[i]);
        std::fill(weight + seen.count, weight + stride, -std::numeric_limits<float>::infinity());
        float largest[kLanes], sums[kLanes] = {};
        std::copy_n(weight, kLanes, largest);
        for (int64_t i = kLanes; i < stride; i += kLanes)
            for (int j = 0; j < kLanes; ++j) largest[j] = larger(weight[i + j], largest[j]);
        const float max = fold(largest, larger);
        for (int64_t i = 0; i < stride; i += kLanes)
            for (int j = 0; j < kLanes; ++j) sums[j] += weight[i + j] = vexp(weight[i + j] - max);
        const float sum = fold(sums, [](float a, float b) { return a + b; });
        const float share = 1.0f / sum;
        for (int64_t i = 0; i < stride; ++i) weight[i] *= share;
    }

    // The values averaged by the weights, (H, D).
    void mix(const float* values, const std::vector<int64_t>& slots, int64_t seen, const float* weights,
             float* out) const {
        const int64_t stride = static_cast<int64_t>(slots.size()), width = heads_ * dim_;
        constexpr int64_t kSums = 8;  // vectors that stay in registers while all slots go by
        int64_t j = 0;
        if (dim_ % kLanes == 0) {
            for (; j + kSums * kLanes <= width; j += kSums * kLanes) {
                Vector sums[kSums] = {};
                const float* weight[kSums];
                for (int64_t v = 0; v < kSums; ++v) weight[v] = weights + (j + v * kLanes) / dim_ * stride;
                for (int64_t i = 0; i < seen; ++i) {
                    const float* value = values + slots[i] + j;
#pragma GCC unroll 8
                    for (int64_t v = 0; v < kSums; ++v) sums[v] += weight[v][i] * load_vector(value + v * kLanes);
                }
                for (int64_t v = 0; v < kSums; ++v) store_vector(out + j + v * kLanes, sums[v]);
            }
        }
        std::fill(out + j, out + width, 0.0f);
        for (int64_t i = 0; j < width && i < seen; ++i)
            for (int64_t h = j / dim_; h < heads_; ++h) {
                const float weight = weights[h * stride + i];
                const float* value = values + slots[i];
                for (int64_t k = std::max(j, h * dim_); k < (h + 1) * dim_; ++k) out[k] += weight * value[k];
            }
    }

    Value qkv_, out_;
    int64_t layer_, heads_, dim_;
    AttentionOptions options_;
};

// A layer's hidden state of the step before, (B, W).
class Recall : public Operation {
public:
    Recall(Value out, int64_t layer) : out_(out), layer_(layer) {}

    void run(const Step& step, const Tile& tile) const override {
        for (int64_t r = 0; r < tile.rows; ++r) {
            const int64_t at = (layer_ * step.batch + tile.first + r) * out_.width;
            std::copy_n(step.hidden + at, out_.width, tile.row(out_, r));
        }
    }

private:
    Value out_;
    int64_t layer_;
};

// A gated recurrent unit (Cho et al. 2014) as torch has it, from what the input and the hidden state give to its
// gates (3 W: reset, update, new); keeps the new hidden state.
class GruCell : public Operation {
public:
    GruCell(Value from_input, Value from_hidden, Value hidden, Value out, int64_t layer)
        : x_(from_input), h_(from_hidden), hidden_(hidden), out_(out), layer_(layer) {}

    void run(const Step& step, const Tile& tile) const override {
        const int64_t width = out_.width;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float* x = tile.row(x_, r);
            const float* h = tile.row(h_, r);
            const float* old = tile.row(hidden_, r);
            float* out = tile.row(out_, r);
            for (int64_t j = 0; j < width; ++j) {
                const float reset = sigmoid(x[j] + h[j]), update = sigmoid(x[width + j] + h[width + j]);
                const float candidate = vtanh(x[2 * width + j] + reset * h[2 * width + j]);
                out[j] = candidate + update * (old[j] - candidate);
            }
            std::copy_n(out, width, step.new_hidden + (layer_ * step.batch + tile.first + r) * width);
        }
    }

private:
    Value x_, h_, hidden_, out_;
    int64_t layer_;
};

}  // namespace amago
