// Arguments of the CUDA kernels of `attention_step`: addresses, strides and a stream.
#pragma once

#include <cstdint>

namespace amago {

constexpr int kMostFeatures = 128;

// A tensor (B, H, D) or (B, W, H, D) with contiguous features; strides in numbers, `slot` for the latter.
struct Heads {
    uintptr_t address;
    int64_t row, slot, head;
};

enum class Number { float32, float16, bfloat16 };

struct StepCall {
    int rows, size, heads, dim;
    Number cached, given;   // of the cache; of q, k, v and the output
    int group, splits;      // heads of a block; splits of a row's slots
    Heads q, k, v, keys, values;
    uintptr_t lengths, positions;  // int64; address 0 without rotation
    uintptr_t out, part_max, part_sum, part_mixed;
    int window, sink;  // a negative window means no window
    float sink_bias, logit_clip, scale;
    float frequencies[kMostFeatures / 2];
};

// Maximum number of heads of one block.
int most_heads(int dim, Number cached);

// Launches the kernels on a stream of the current device. Returns CUDA's error message, nullptr if none.
const char* attention_step(const StepCall& call, uintptr_t stream);

}  // namespace amago
