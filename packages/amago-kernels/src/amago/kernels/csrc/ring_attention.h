// Attention of one timestep to a ring cache: which slots a row sees, scores, softmax and weighted sum of values.
//
// The operator `attention_step` and acting share this code. Slots are read in the order of their steps, all heads of
// a block of slots before the next block, so that a cache in memory is read once.
//
// Shapes: W slots, H heads, D head dimension, n visible slots, filled up to a multiple of kLanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd.h"

namespace amago {

struct AttentionOptions {
    int64_t window;  // number of steps before the current one that are visible; negative for all
    int64_t sink;    // number of first steps that stay visible
    double sink_bias, logit_clip, scale;
};

// One row of a cache. Element j of head h in slot s is start[s * slot_stride + h * head_stride + j].
template <class T>
struct CacheRow {
    T* start;
    int64_t slot_stride, head_stride;

    T* at(int64_t slot, int64_t head) const { return start + slot * slot_stride + head * head_stride; }
};

// The slots that a row sees after `length` earlier steps, the current step included.
class VisibleSlots {
public:
    VisibleSlots(int64_t length, int64_t slots, const AttentionOptions& options) : size_(slots) {
        now_ = std::min(length, slots - 1);
        first_ = length % slots - now_;  // slot of the oldest step, or that much before the ring's end
        sinks = std::min(options.sink, now_ + 1);
        const int64_t oldest = options.window < 0 ? 0 : std::max<int64_t>(0, now_ - options.window);
        recent_ = std::max(oldest, sinks);
        count = sinks + now_ + 1 - recent_;
    }

    // Writes the slots, sinks first, and repeats the last one up to `padded` entries.
    void list(int64_t* slots, int64_t padded) const {
        int64_t* end = append(append(slots, 0, sinks), recent_, now_ + 1);
        std::fill(end, slots + padded, end[-1]);
    }

    int64_t sinks, count;

private:
    // Steps from `begin` to `end`, counted from the oldest one in the ring: their slots ascend but for one wrap.
    int64_t* append(int64_t* slots, int64_t begin, int64_t end) const {
        const int64_t wrap = std::min(std::max(begin, -first_), end);
        for (int64_t step = begin; step < wrap; ++step) *slots++ = first_ + size_ + step;
        for (int64_t step = wrap; step < end; ++step) *slots++ = first_ + step;
        return slots;
    }

    int64_t size_, now_, first_, recent_;
};

// Buffers of one thread.
template <class A>
class AttentionScratch {
public:
    AttentionScratch(int64_t slots, int64_t heads)
        : room_((slots + kLanes<A> - 1) / kLanes<A> * kLanes<A>), slots_(room_), scores_(heads * room_) {}

    int64_t* slots() { return slots_.data(); }
    A* scores(int64_t head) { return scores_.data() + head * room_; }

private:
    int64_t room_;
    std::vector<int64_t> slots_;
    std::vector<A> scores_;
};

namespace ring_attention {

constexpr int64_t kLine = 64;  // bytes of a cache line

template <class T>
inline void prefetch(const T* at, int64_t dim) {
    const auto* bytes = reinterpret_cast<const char*>(at);
    for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(T)); byte += kLine)
        __builtin_prefetch(bytes + byte);
}

// Inner products of one head's query with its keys in kLanes slots at `offsets`; `next` are those that follow. DIM is
// the head dimension where it is known at compile time, else 0.
template <int DIM, class T, class A>
inline void score_block(const A* query, const T* keys, const int64_t* offsets, const int64_t* next, int64_t dim,
                        A* scores) {
    constexpr int n = kLanes<A>;
    const int64_t size = DIM ? DIM : dim, whole = size / n * n;
    // Reading the offsets anew for every head is quicker than keeping all addresses, as compilers would.
    asm volatile("" : "+r"(offsets));
    Vector<A> products[n] = {};
    for (int s = 0; s < n; ++s) {
        const T* key = keys + offsets[s];
        for (int64_t j = 0; j < whole; j += n) products[s] += load_vector<A>(query + j) * load_vector<A>(key + j);
        prefetch(keys + next[s], size);
    }
    store_vector(scores, sums_over_lanes<A>(products));
    if (DIM == 0 && whole < size)
        for (int s = 0; s < n; ++s) {
            A sum = 0;
            for (int64_t j = whole; j < size; ++j) sum += query[j] * load(keys[offsets[s] + j]);
            scores[s] += sum;
        }
}

// Adds the weighted values of one head in COUNT slots at `offsets` to `sums`; `next` are the slots that follow.
template <int DIM, int COUNT, class T, class A>
inline void mix_block(const A* weights, const T* values, const int64_t* offsets, const int64_t* next, int64_t dim,
                      A* sums) {
    constexpr int n = kLanes<A>;
    const int64_t size = DIM ? DIM : dim, whole = size / n * n;
    for (int64_t j = 0; j < whole; j += n) {
        Vector<A> sum = load_vector<A>(sums + j);
        for (int s = 0; s < COUNT; ++s) sum += weights[s] * load_vector<A>(values + offsets[s] + j);
        store_vector(sums + j, sum);
    }
    for (int64_t j = whole; j < size; ++j)
        for (int s = 0; s < COUNT; ++s) sums[j] += weights[s] * load(values[offsets[s] + j]);
    for (int s = 0; s < COUNT; ++s) prefetch(values + next[s], size);
}

// One head's scores become unnormalised weights; returns their sum.
template <class A>
inline A exponentials(A* scores, const VisibleSlots& seen, int64_t padded, const AttentionOptions& options) {
    constexpr A kInfinity = std::numeric_limits<A>::infinity();
    const A clip = static_cast<A>(options.logit_clip), bias = static_cast<A>(options.sink_bias);
    if (bias != 0)
        for (int64_t i = 0; i < seen.sinks; ++i) scores[i] += bias;
    if (clip < kInfinity)
        for (int64_t i = 0; i < seen.count; ++i)
            scores[i] = scores[i] > clip ? clip : (scores[i] < -clip ? -clip : scores[i]);
    std::fill(scores + seen.count, scores + padded, -kInfinity);  // repeated slots get weight 0
    A max = -kInfinity, sum = 0;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < padded; ++i) max = scores[i] > max ? scores[i] : max;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < padded; ++i) sum += scores[i] = vexp(scores[i] - max);
    return sum;
}

}  // namespace ring_attention

// Attention of one row's heads [first, last): scaled queries (H, D) to outputs (H, D).
template <int DIM, class T, class A>
void attend_heads(const A* query, const CacheRow<const T>& keys, const CacheRow<const T>& values,
                  const VisibleSlots& seen, int64_t first, int64_t last, int64_t dim, const AttentionOptions& options,
                  AttentionScratch<A>& scratch, A* out) {
    using namespace ring_attention;
    constexpr int n = kLanes<A>, kMixed = 8;
    const int64_t padded = (seen.count + n - 1) / n * n;
    int64_t* slots = scratch.slots();
    seen.list(slots, padded);
    int64_t offsets[2][n];
    for (int s = 0; s < n; ++s) offsets[0][s] = slots[s] * keys.slot_stride;
    for (int64_t i = 0; i < padded; i += n) {
        const int64_t* now = offsets[i / n % 2];
        int64_t* next = offsets[1 - i / n % 2];
        const int64_t following = std::min(i + n, padded - n);
        for (int s = 0; s < n; ++s) next[s] = slots[following + s] * keys.slot_stride;
        for (int64_t h = first; h < last; ++h)
            score_block<DIM>(query + h * dim, keys.at(0, h), now, next, dim, scratch.scores(h) + i);
    }
    std::fill(out + first * dim, out + last * dim, A{0});
    for (int64_t h = first; h < last; ++h) {  // normalised here, as there are fewer weights than values
        A* weights = scratch.scores(h);
        const A share = A{1} / exponentials(weights, seen, padded, options);
#pragma omp simd
        for (int64_t i = 0; i < padded; ++i) weights[i] *= share;
    }
    int64_t i = 0, place[kMixed], next[kMixed];
    for (; i + kMixed <= seen.count; i += kMixed) {
        for (int s = 0; s < kMixed; ++s) {
            place[s] = slots[i + s] * values.slot_stride;
            next[s] = slots[std::min(i + kMixed + s, padded - 1)] * values.slot_stride;
        }
        for (int64_t h = first; h < last; ++h)
            mix_block<DIM, kMixed>(scratch.scores(h) + i, values.at(0, h), place, next, dim, out + h * dim);
    }
    for (; i < seen.count; ++i) {
        place[0] = slots[i] * values.slot_stride;
        for (int64_t h = first; h < last; ++h)
            mix_block<DIM, 1>(scratch.scores(h) + i, values.at(0, h), place, place, dim, out + h * dim);
    }
}

// Calls work with the head dimension as a constant where there is specialised code for it, else with 0.
template <class Work>
void with_head_dim(int64_t dim, const Work& work) {
    switch (dim) {
        case 16: return work(std::integral_constant<int, 16>{});
        case 32: return work(std::integral_constant<int, 32>{});
        case 64: return work(std::integral_constant<int, 64>{});
        case 128: return work(std::integral_constant<int, 128>{});
        default: return work(std::integral_constant<int, 0>{});
    }
}

}  // namespace amago
