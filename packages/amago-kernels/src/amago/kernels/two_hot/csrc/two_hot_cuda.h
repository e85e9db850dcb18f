// Arguments of the two-hot CUDA kernels: addresses of contiguous tensors, sizes and a stream.
#pragma once

#include <cstdint>

namespace amago {

// n bins from `start` on, `width` apart, in symlog(return) or in the return; targets are clamped to `low` and `high`.
// `sharpness` is 1 / (sigma sqrt 2) of a normal distribution's labels, 0 for two-hot ones.
struct Support {
    int n;
    float low, high, start, width, sharpness;
    bool symlog;
};

enum class Number { float32, float16, bfloat16 };  // of the logits; everything else is float32, the mask bool
enum class Task { loss, loss_gradient, mean, mean_gradient };

// Logits are (rows, n), and so is the result of a gradient; all others are (rows,). Address 0 for one not given.
struct Call {
    int64_t rows;
    Support support;
    uintptr_t logits, target, mask, weight;
    uintptr_t incoming;  // gradient of the result, for a gradient
    uintptr_t result;
};

// Launches a kernel on a stream of the current device. Returns CUDA's error message, nullptr if none.
const char* two_hot(Number number, Task task, const Call& call, uintptr_t stream);

}  // namespace amago
