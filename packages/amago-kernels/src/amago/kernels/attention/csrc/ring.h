// The slots of a ring that a row sees, and one head's arithmetic over them: scores, softmax, weighted sums.
#pragma once

#include <algorithm>
#include <limits>

#include "rows.h"
#include "vectors.h"

namespace {  // of its own in every file, so that what is called once is inlined there

using amago::kLanes;
using amago::Operand;
using amago::Vector;

struct Options {
    const int64_t* positions;  // null where nothing is rotated
    double rotary_base;
    int64_t window;  // negative for none
    int64_t sink;
    double sink_bias, logit_clip, scale;
};

// Neighbouring slots of a row that it sees.
struct Piece {
    int64_t begin, end;
    bool sink;

    int64_t count() const { return end - begin; }
};

// The slots that a row sees which has taken `length` steps before this one, with this one.
class Visible {
public:
    Visible(int64_t length, int64_t slots, const Options& options) : slots_(slots), current_(length % slots) {
        const int64_t now = std::min(length, slots - 1);  // place of this step in what is remembered
        const int64_t sinks = std::min(options.sink, now + 1);
        const int64_t recent = options.window < 0 ? now : std::min(options.window, now);
        add(0, std::min(recent, now - sinks), false);
        add(now - sinks + 1, now, true);
    }

    int64_t count() const { return count_; }
    const Piece* begin() const { return pieces_; }
    const Piece* end() const { return pieces_ + size_; }

private:
    // Steps by their age, from the youngest to the oldest.
    void add(int64_t youngest, int64_t oldest, bool sink) {
        const int64_t count = oldest - youngest + 1;
        if (count <= 0) return;
        const int64_t begin = count == slots_ ? 0 : (current_ - oldest + slots_) % slots_;
        const int64_t end = std::min(begin + count, slots_);
        pieces_[size_++] = {begin, end, sink};
        if (end - begin < count) pieces_[size_++] = {0, begin + count - slots_, sink};
        count_ += count;
    }

    Piece pieces_[4];
    int64_t size_ = 0, count_ = 0, slots_, current_;
};

// One head of the cache: its numbers in a slot.
template <class T>
struct Head {
    T* start;
    int64_t stride;

    Head(const Operand& cache, int64_t b, int64_t h)
        : start(reinterpret_cast<T*>(cache.first) + b * cache.second[0] + h * cache.second[2]),
          stride(cache.second[1]) {}
    T* operator[](int64_t slot) const { return start + slot * stride; }
};

// Asks for a head's numbers in a slot that will soon be read; it may lie beyond the cache, for nothing is read.
template <class T>
void expect(const Head<T>& head, int64_t slot, int64_t dim) {
    constexpr int64_t kLine = 64;
    const auto address = reinterpret_cast<uintptr_t>(head.start) + slot * head.stride * sizeof(T);
    for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(T)); byte += kLine)
        __builtin_prefetch(reinterpret_cast<const void*>(address + byte));
}

template <class T, class A>
A dot(const A* query, const T* key, int64_t dim) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < dim; ++j) sum += query[j] * amago::load(key[j]);
    return sum;
}

// A head's products of its query with the keys in slots from `slot` on, as many as a vector has lanes. DIM is the head
// dimension where it is known in advance; what is left of it beyond whole vectors is added number by number.
template <int DIM, class T, class A>
void score_block(const A* query, const Head<T>& keys, int64_t slot, int64_t dim, A* scores) {
    constexpr int n = kLanes<A>;
    const int64_t whole = (DIM ? DIM : dim) / n * n;
    Vector<A> products[n];
    for (int s = 0; s < n; ++s) {
        const T* key = keys[slot + s];
        products[s] = Vector<A>{};
        for (int64_t j = 0; j < whole; j += n)
            products[s] += amago::load_vector<A>(key + j) * amago::load_vector<A>(query + j);
        expect(keys, slot + n + s, DIM ? DIM : dim);
    }
    amago::store_vector(scores, amago::sums_over_lanes<A>(products));
    if (DIM == 0 && whole < dim)
        for (int s = 0; s < n; ++s) scores[s] += dot(query + whole, keys[slot + s] + whole, dim - whole);
}

// sums += weights * values in COUNT slots from `slot` on.
template <int DIM, int COUNT, class T, class A>
void mix_block(const A* weights, const Head<T>& values, int64_t slot, int64_t dim, A* sums) {
    constexpr int n = kLanes<A>;
    const int64_t whole = (DIM ? DIM : dim) / n * n;
    for (int64_t j = 0; j < whole; j += n) {
        Vector<A> sum = amago::load_vector<A>(sums + j);
        for (int s = 0; s < COUNT; ++s) sum += weights[s] * amago::load_vector<A>(values[slot + s] + j);
        amago::store_vector(sums + j, sum);
    }
    for (int64_t j = whole; j < (DIM ? DIM : dim); ++j)
        for (int s = 0; s < COUNT; ++s) sums[j] += weights[s] * amago::load(values[slot + s][j]);
    for (int s = 0; s < COUNT; ++s) expect(values, slot + COUNT + s, DIM ? DIM : dim);
}

// Scores of one head, with the bias of sinks and clipped, become its weights, to be divided by the sum returned.
template <class A>
A exponentials(A* scores, const Visible& seen, const Options& options) {
    const A clip = static_cast<A>(options.logit_clip), bias = static_cast<A>(options.sink_bias);
    A* of_piece = scores;
    for (const Piece& piece : seen) {
        if (piece.sink && bias != 0)
            for (int64_t i = 0; i < piece.count(); ++i) of_piece[i] += bias;
        of_piece += piece.count();
    }
    const int64_t count = seen.count();
    if (clip < std::numeric_limits<A>::infinity())
        for (int64_t i = 0; i < count; ++i)
            scores[i] = scores[i] > clip ? clip : (scores[i] < -clip ? -clip : scores[i]);
    A max = -std::numeric_limits<A>::infinity(), sum = 0;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < count; ++i) max = scores[i] > max ? scores[i] : max;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += scores[i] = amago::vexp(scores[i] - max);
    return sum;
}

}  // namespace
