// Values, tiles and the base class of operations.
//
// A value is one vector per row, kept as float32 in a workspace. Elements beyond its width are unspecified: operations
// may read them, but no result depends on them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "simd.h"

namespace amago {

constexpr int kFloats = kLanes<float>;
// Rows of a matrix product whose sums fit the registers, two vectors each.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kBlockRows = 12;
#else
constexpr int kBlockRows = 6;
#endif

constexpr int64_t kPanel = 2 * kFloats;  // columns of a weight that are multiplied together
inline int64_t padded(int64_t width) { return (width + kPanel - 1) / kPanel * kPanel; }

// Distance between the rows of a value: never a multiple of 2 KiB, or rows would evict each other from the cache.
inline int64_t row_stride(int64_t width) {
    const int64_t stride = padded(width);
    return stride % 512 ? stride : stride + kPanel;
}

// A matrix (rows, columns) or a vector (1, columns) in the caller's memory; null if it is not given.
struct Array {
    const float* data;
    int64_t rows, columns;

    void require(int64_t wanted_rows, int64_t wanted_columns, const char* what) const {
        if (!data || rows != wanted_rows || columns != wanted_columns)
            throw std::invalid_argument(std::string(what) + " must have the shape (" + std::to_string(wanted_rows) + ", " +
                                        std::to_string(wanted_columns) + "), got (" + std::to_string(rows) + ", " +
                                        std::to_string(columns) + ")");
    }
};

// Owned floats, aligned to cache lines.
class AlignedArray {
public:
    void assign(int64_t count, float value) {
        if (count > capacity_) {
            const size_t bytes = (count * sizeof(float) + kLine - 1) / kLine * kLine;
            at_.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
            capacity_ = at_ ? count : 0;
            if (!at_) throw std::bad_alloc();
        }
        count_ = count;
        std::fill_n(at_.get(), count, value);
    }
    // Copies `count` elements and fills up to `size` with `fill`; all `fill` if `from` is null.
    void copy(const float* from, int64_t count, int64_t size, float fill) {
        assign(size, fill);
        if (from) std::copy_n(from, count, at_.get());
    }
    float* data() { return at_.get(); }
    const float* data() const { return at_.get(); }
    int64_t size() const { return count_; }

private:
    static constexpr size_t kLine = 64;
    struct Free {
        void operator()(float* at) const { std::free(at); }
    };
    std::unique_ptr<float, Free> at_;
    int64_t capacity_ = 0, count_ = 0;
};

// Where a value lies in a workspace.
struct Value {
    int64_t offset;  // in elements per row of the tile
    int64_t width;
    int64_t stride() const { return row_stride(width); }
};

// Rows of the batch that one thread computes from the first operation to the last.
struct Tile {
    float* workspace;
    int64_t first;  // the batch's row that is the tile's first
    int64_t rows;
    float* row(const Value& value, int64_t r) const { return workspace + value.offset * rows + r * value.stride(); }
};

// A float32 input (B, stride).
struct Input {
    const float* data;
    int64_t stride;
};
// A recurrent state (B, ...) before and after the step.
struct State {
    const float* before;
    float* after;
};

// Everything that one call reads and writes.
struct Step {
    int64_t batch;
    std::vector<Input> inputs;
    const int64_t* positions;  // (B,)
    float* keys;               // (layers, B, slots, heads, dim)
    float* values;
    int64_t* lengths;  // (B,) steps in the ring caches; null without caches
    int64_t slots;
    std::vector<State> states;
    const float* noise;  // null: the most likely action
    void* out;
    std::atomic<bool>* undrawable;  // set where a row's probabilities are not finite
};

class Operation {
public:
    virtual ~Operation() = default;
    virtual void run(const Step& step, const Tile& tile) const = 0;
    // The values that positions look up (positions, width), in memory that its owner keeps.
    virtual void set_table(Array) { throw std::invalid_argument("the operation has no table of positions"); }
};

}  // namespace amago
