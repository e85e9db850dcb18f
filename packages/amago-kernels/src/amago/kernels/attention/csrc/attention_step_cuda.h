// What the binding passes to the CUDA kernels of `attention_step`: addresses, strides and a stream.
#pragma once

#include <cstdint>

namespace amago {

constexpr int kMostFeatures = 128;

// A tensor (B, H, D) or (B, W, H, D) whose features lie side by side; strides in numbers, `slot` for the latter.
struct Heads {
    uintptr_t address;
    int64_t row, slot, head;
};

enum class Number { float32, float16, bfloat16 };

struct StepCall {
    int rows, size, heads, dim;
    Number cached, given;   // of the cache; of q, k, v and the output
    int group, splits;      // heads of a block; shares of a row's slots
    Heads q, k, v, keys, values;
    uintptr_t lengths, positions;  // int64; address 0 where nothing is rotated
    uintptr_t out, part_max, part_sum, part_mixed;
    int window, sink;  // a negative window is none
    float sink_bias, logit_clip, scale;
    float frequencies[kMostFeatures / 2];
};

// How many heads one block can take at most.
int most_heads(int dim, Number cached);

// Starts the kernels on the stream of the current device. Returns what CUDA objects to, nullptr if nothing.
const char* attention_step(const StepCall& call, uintptr_t stream);

}  // namespace amago
