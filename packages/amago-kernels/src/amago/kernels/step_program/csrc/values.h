// What the operations of a step program work on: rows of values in a workspace, and what a run is given.
//
// A value of the program is `rows` rows of float32 in the workspace. Numbers beyond its width are zeros or leftovers
// that nothing reads but to overwrite them.
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

constexpr int64_t kPanel = 2 * kLanes;  // columns of a weight that are multiplied together
inline int64_t padded(int64_t width) { return (width + kPanel - 1) / kPanel * kPanel; }

// Distance between the rows of a value: never a multiple of 2 KiB, or rows would push each other out of the cache.
inline int64_t row_stride(int64_t width) {
    const int64_t stride = padded(width);
    return stride % 512 ? stride : stride + kPanel;
}

// Numbers that begin where a cache line does.
class Numbers {
public:
    void assign(int64_t count, float value) {
        if (count > room_) {
            const size_t bytes = (count * sizeof(float) + kLine - 1) / kLine * kLine;
            at_.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
            room_ = at_ ? count : 0;
            if (!at_) throw std::bad_alloc();
        }
        count_ = count;
        std::fill_n(at_.get(), count, value);
    }
    // Copies `count` numbers and fills up to `size` with `rest`; all `rest` if there are none.
    void copy(const float* from, int64_t count, int64_t size, float rest) {
        assign(size, rest);
        if (from) std::copy_n(from, count, at_.get());
    }
    float* data() { return at_.get(); }
    const float* data() const { return at_.get(); }
    int64_t size() const { return count_; }
    float& operator[](int64_t i) { return at_.get()[i]; }

private:
    static constexpr size_t kLine = 64;
    struct Free {
        void operator()(float* at) const { std::free(at); }
    };
    std::unique_ptr<float, Free> at_;
    int64_t room_ = 0, count_ = 0;
};

// Where a value lies in the workspace of one thread.
struct Value {
    int64_t offset;  // in numbers per row of the tile
    int64_t width;
    int64_t stride() const { return row_stride(width); }
};

// Rows of one tile that one thread computes from the program's beginning to its end.
struct Tile {
    float* workspace;
    int64_t size;   // rows that the workspace has room for
    int64_t first;  // row of the batch that the tile's first row is
    int64_t rows;
    float* row(const Value& value, int64_t r) const {
        return workspace + value.offset * size + r * value.stride();
    }
};

// What a run is given: addresses, and distances between rows in numbers.
struct Input {
    uintptr_t address;
    int64_t stride;
};
// Something that every row remembers, (B, its width): where it lies, and where it goes.
struct State {
    const float* before;
    float* after;
};
struct Step {
    std::vector<Input> inputs;
    const int64_t* positions;
    int64_t position_stride;
    float* keys;  // (layers, B, slots, heads, dim)
    float* values;
    int64_t* lengths;  // a step is counted in them, if there are any
    int64_t slots;
    std::vector<State> states;
    int64_t batch;
    const float* noise;
    void* out;
    bool sample;
    std::atomic<bool>* undrawable;  // set where a row's probabilities are no numbers
};

class Operation {
public:
    virtual ~Operation() = default;
    virtual void run(const Step& step, const Tile& tile) const = 0;
    // New numbers: `matrix` (rows, columns) and `vector`, contiguous, either may be missing.
    virtual void set(const float*, int64_t, int64_t, const float*, int64_t) {
        throw std::invalid_argument("the operation has no weights");
    }
};

}  // namespace amago
