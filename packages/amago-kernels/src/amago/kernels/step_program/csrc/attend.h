// Attention of one timestep to a ring cache.
//
// Shapes: B rows of the batch, W slots of the cache, H heads, D head dimension, n slots that a row sees, filled up to
// a multiple of kLanes.
#pragma once

#include <limits>

#include "values.h"

namespace amago {

struct AttentionOptions {
    int64_t window;  // negative for none
    int64_t sink;
    float sink_bias, logit_clip, scale;
};

// Writes the step's keys and values into a layer's ring cache and attends to what the cache holds.
class Attend : public Operation {
public:
    Attend(Value qkv, Value out, int64_t layer, int64_t heads, int64_t dim, AttentionOptions options)
        : qkv_(qkv), out_(out), layer_(layer), heads_(heads), dim_(dim), width_(heads * dim), options_(options) {}

    void run(const Step& step, const Tile& tile) const override {
        const int64_t room = (step.slots + kLanes - 1) / kLanes * kLanes;
        std::vector<int64_t> slots(room);
        Numbers query, weights, shares;
        query.assign(width_ + kLanes, 0.0f);
        weights.assign(heads_ * room, 0.0f);
        shares.assign(heads_, 0.0f);
        for (int64_t r = 0; r < tile.rows; ++r)
            attend(step, tile, r, slots.data(), query.data(), weights.data(), shares.data());
    }

private:
    struct Seen {
        int64_t sinks, count, padded;
    };

    void attend(const Step& step, const Tile& tile, int64_t r, int64_t* slots, float* query, float* weights,
                float* shares) const {
        const int64_t row = (layer_ * step.batch + tile.first + r) * step.slots;
        float* keys = step.keys + row * width_;
        float* values = step.values + row * width_;
        const float* qkv = tile.row(qkv_, r);
        const int64_t length = step.lengths[tile.first + r], current = length % step.slots;
        std::copy_n(qkv + width_, width_, keys + current * width_);
        std::copy_n(qkv + 2 * width_, width_, values + current * width_);
        for (int64_t j = 0; j < width_; ++j) query[j] = qkv[j] * options_.scale;

        const Seen seen = visible(slots, length, step.slots);
        score(query, keys, slots, seen.padded, weights);
        edit(weights, seen);
        const Bits last = kept(seen);
        for (int64_t h = 0; h < heads_; ++h) shares[h] = weigh(weights + h * seen.padded, seen.padded, last);
        mix(values, slots, seen, weights, shares, tile.row(out_, r));
    }

    // Where the slots lie that a row sees which has taken `length` steps before this one, sinks first; the last one
    // is repeated until their number is a multiple of kLanes.
    Seen visible(int64_t* slots, int64_t length, int64_t size) const {
        const int64_t now = std::min(length, size - 1);  // place of this step in what is remembered
        const int64_t first = length % size - now;       // slot of the oldest, or that much before the ring's end
        int64_t count = 0;
        const auto append = [&](int64_t begin, int64_t end) {  // of places; slots are in order but for one jump
            const int64_t jump = std::min(std::max(begin, -first), end);
            for (int64_t place = begin; place < jump; ++place) slots[count++] = (first + size + place) * width_;
            for (int64_t place = jump; place < end; ++place) slots[count++] = (first + place) * width_;
        };
        const int64_t sinks = std::min(options_.sink, now + 1);
        append(0, sinks);
        const int64_t oldest = options_.window < 0 ? 0 : std::max<int64_t>(0, now - options_.window);
        append(std::max(oldest, sinks), now + 1);
        const int64_t all = (count + kLanes - 1) / kLanes * kLanes;
        std::fill(slots + count, slots + all, slots[count - 1]);
        return {sinks, count, all};
    }

    // Products of the query with all keys that are seen: (H, n).
    void score(const float* query, const float* keys, const int64_t* slots, int64_t n, float* scores) const {
        if (dim_ % kLanes) {
            for (int64_t h = 0; h < heads_; ++h)
                for (int64_t i = 0; i < n; ++i) {
                    const float* key = keys + slots[i] + h * dim_;
                    float sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (int64_t j = 0; j < dim_; ++j) sum += query[h * dim_ + j] * key[j];
                    scores[h * n + i] = sum;
                }
            return;
        }
        for (int64_t i = 0; i < n; i += kLanes) {
            const int64_t* slot = slots + i;
            for (int64_t h = 0; h < heads_; ++h) {
                // Reading the slots anew for every head is quicker than keeping sixteen addresses, as compilers would.
                asm volatile("" : "+r"(slot));
                Vector products[kLanes];
#pragma GCC unroll 16
                for (int s = 0; s < kLanes; ++s)
                    products[s] = load_vector(query + h * dim_) * load_vector(keys + slot[s] + h * dim_);
                for (int64_t j = h * dim_ + kLanes; j < (h + 1) * dim_; j += kLanes)
#pragma GCC unroll 16
                    for (int s = 0; s < kLanes; ++s)
                        products[s] += load_vector(query + j) * load_vector(keys + slot[s] + j);
                store_vector(scores + h * n + i, sums_of<kLanes>(products));
            }
        }
    }

    // The scores of sinks, and the limit on all of them.
    void edit(float* scores, Seen seen) const {
        const float clip = options_.logit_clip;
        if (options_.sink_bias != 0)
            for (int64_t h = 0; h < heads_; ++h)
                for (int64_t i = 0; i < seen.sinks; ++i) scores[h * seen.padded + i] += options_.sink_bias;
        if (clip < std::numeric_limits<float>::infinity())
            for (int64_t i = 0; i < heads_ * seen.padded; ++i)
                scores[i] = scores[i] > clip ? clip : (scores[i] < -clip ? -clip : scores[i]);
    }

    // Scores of one head become exponentials, those of repeated slots 0; returns one over their sum.
    static float weigh(float* weight, int64_t padded, Bits last) {
        Vector largest = load_vector(weight), sums = {};
        for (int64_t i = kLanes; i < padded; i += kLanes) largest = larger(largest, load_vector(weight + i));
        const float max = max_of(largest);
        for (int64_t i = 0; i < padded; i += kLanes) {
            Vector e = vexp(load_vector(weight + i) - max);
            if (i + kLanes == padded) e = (Vector)((Bits)e & last);
            store_vector(weight + i, e);
            sums += e;
        }
        return 1.0f / sum_of(sums);
    }

    // All ones in the lanes of the last vector that are no repetitions.
    static Bits kept(Seen seen) {
        Bits lane, none = {};
        for (int i = 0; i < kLanes; ++i) lane[i] = i;
        const uint32_t rest = static_cast<uint32_t>(seen.count - (seen.padded - kLanes));
        return lane < none + rest ? ~none : none;
    }

    // The values averaged by the weights, (H, D); a head's weights add up to one over its share.
    void mix(const float* values, const int64_t* slots, Seen seen, const float* weights, const float* shares,
             float* out) const {
        constexpr int64_t kSums = 8;  // vectors that stay in registers while all slots go by
        int64_t j = 0;
        if (dim_ % kLanes == 0)
            for (; j + kSums * kLanes <= width_; j += kSums * kLanes) {
                Vector sums[kSums] = {};
                const float* weight[kSums];
                for (int64_t v = 0; v < kSums; ++v) weight[v] = weights + (j + v * kLanes) / dim_ * seen.padded;
                for (int64_t i = 0; i < seen.count; ++i) {
                    const float* value = values + slots[i] + j;
#pragma GCC unroll 8
                    for (int64_t v = 0; v < kSums; ++v) sums[v] += weight[v][i] * load_vector(value + v * kLanes);
                }
                for (int64_t v = 0; v < kSums; ++v)
                    store_vector(out + j + v * kLanes, sums[v] * shares[(j + v * kLanes) / dim_]);
            }
        if (j == width_) return;
        std::fill(out + j, out + width_, 0.0f);
        for (int64_t i = 0; i < seen.count; ++i)
            for (int64_t h = j / dim_; h < heads_; ++h) {
                const float weight = weights[h * seen.padded + i];
                const float* value = values + slots[i];
                for (int64_t k = std::max(j, h * dim_); k < (h + 1) * dim_; ++k) out[k] += weight * value[k];
            }
        for (; j < width_; ++j) out[j] *= shares[j / dim_];
    }

    Value qkv_, out_;
    int64_t layer_, heads_, dim_, width_;
    AttentionOptions options_;
};

}  // namespace amago
