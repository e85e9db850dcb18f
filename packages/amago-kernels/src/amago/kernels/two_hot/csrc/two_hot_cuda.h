// Arguments of the two-hot CUDA kernels: addresses, strides and a stream.
#pragma once

#include <cstdint>

namespace amago {

// Rows through three axes, the outermost of any size.
struct RowAxes {
    int64_t rows, size1, size2;
};

// A tensor with a stride for each axis of the rows, and one within a row; address 0 if it is not given.
struct Strided {
    uintptr_t address;
    int64_t stride[3];
    int64_t bin;
};

// n bins from `start` on, `width` apart, in symlog(return) or in the return; targets are clamped to `low` and `high`.
// `sharpness` is 1 / (sigma sqrt 2) of a normal distribution's labels, 0 for two-hot ones.
struct Support {
    int n;
    float low, high, start, width, sharpness;
    bool symlog;
};

enum class Number { float32, float16, bfloat16 };  // of the logits; everything else is float32, the mask bool
enum class Task { loss, loss_gradient, mean, mean_gradient };

struct Call {
    RowAxes rows;
    Support support;
    Strided logits, target, mask, weight;
    Strided incoming;  // gradient of the result, for a gradient
    Strided result;
};

// Launches a kernel on a stream of the current device. Returns CUDA's error message, nullptr if none.
const char* two_hot(Number number, Task task, const Call& call, uintptr_t stream);

}  // namespace amago
