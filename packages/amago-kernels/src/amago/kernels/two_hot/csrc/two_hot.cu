// Losses and means of classifying critics on a GPU: a row of logits is read once, a row of gradients written once.
//
// A warp takes a row: each lane holds K groups of VEC neighbouring logits x in registers, so maximum, sum and the
// rest are reductions over registers and lanes. Short rows go four at a time, so that a lane has several reads under
// way before it needs the first. Labels are computed from the scalar target; nothing is kept for the gradient, which
// has to read the logits anyway and finds their softmax again.
#include "two_hot_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

namespace amago {
namespace {

constexpr int kLanes = 32, kWarps = 8;

__device__ float number(float x) { return x; }
__device__ float number(__half x) { return __half2float(x); }
__device__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(float& at, float x) { at = x; }
__device__ void store(__half& at, float x) { at = __float2half_rn(x); }
__device__ void store(__nv_bfloat16& at, float x) { at = __float2bfloat16_rn(x); }

template <class T, int VEC>
struct alignas(sizeof(T) * VEC) Pack {
    T values[VEC];
};

__device__ int64_t place(const RowAxes& axes, const Strided& x, int64_t row) {
    const auto index = static_cast<uint32_t>(row);
    const auto size1 = static_cast<uint32_t>(axes.size1), size2 = static_cast<uint32_t>(axes.size2);
    const uint32_t outer = index / size2;
    return (outer / size1) * x.stride[0] + (outer % size1) * x.stride[1] + (index % size2) * x.stride[2];
}

template <class T>
__device__ T* address(const Strided& x) {
    return reinterpret_cast<T*>(x.address);
}

__device__ float read(const RowAxes& axes, const Strided& x, int64_t row) {
    return address<const float>(x)[place(axes, x, row)];
}

__device__ float sum_of_lanes(float x) {
    for (int away = kLanes / 2; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
    return x;
}

__device__ float greatest_of_lanes(float x) {
    for (int away = kLanes / 2; away > 0; away /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, away));
    return x;
}

// The bin that a lane's value number i belongs to.
template <int VEC>
__device__ int bin_of(int i, int lane) {
    return (i / VEC * kLanes + lane) * VEC + i % VEC;
}

// The numbers of a row that this lane holds; -inf beyond the last bin.
template <class T, int VEC, int K>
__device__ void read_row(const T* row, int64_t stride, int n, int lane, float (&x)[K * VEC]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int first = (k * kLanes + lane) * VEC;
        if constexpr (VEC > 1) {
            Pack<T, VEC> pack;
            if (first < n) pack = *reinterpret_cast<const Pack<T, VEC>*>(row + first);
#pragma unroll
            for (int v = 0; v < VEC; ++v) x[k * VEC + v] = first < n ? number(pack.values[v]) : -INFINITY;
        } else {
            x[k] = first < n ? number(row[first * stride]) : -INFINITY;
        }
    }
}

template <class T, int VEC, int K>
__device__ void write_row(T* row, int64_t stride, int n, int lane, const float (&x)[K * VEC]) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int first = (k * kLanes + lane) * VEC;
        if (first >= n) continue;
        if constexpr (VEC > 1) {
            Pack<T, VEC> pack;
#pragma unroll
            for (int v = 0; v < VEC; ++v) store(pack.values[v], x[k * VEC + v]);
            *reinterpret_cast<Pack<T, VEC>*>(row + first) = pack;
        } else {
            store(row[first * stride], x[k]);
        }
    }
}

// Where a return lies on the support in units of bins. Comparisons, not fminf: a NaN has to stay one.
__device__ float position(float target, const Support& support) {
    float x = target < support.low ? support.low : target;
    x = x > support.high ? support.high : x;
    if (support.symlog) x = copysignf(log1pf(fabsf(x)), x);
    x = (x - support.start) / support.width;
    const float last = support.n - 1;
    x = x < 0.0f ? 0.0f : x;
    return x > last ? last : x;
}

// The labels of a row, one bin at a time: two-hot, or what a normal distribution gives to the bin's interval.
class Labels {
public:
    __device__ Labels(float target, const Support& support)
        : position_(position(target, support)), sharpness_(support.sharpness) {
        if (sharpness_ > 0.0f)
            total_ = erff((support.n - 0.5f - position_) * sharpness_) - erff((-0.5f - position_) * sharpness_);
    }

    __device__ float operator[](int bin) const {
        const float away = bin - position_;
        if (sharpness_ > 0.0f)
            return (erff((away + 0.5f) * sharpness_) - erff((away - 0.5f) * sharpness_)) / total_;
        const float near = 1.0f - fabsf(away);
        return near < 0.0f ? 0.0f : near;
    }

private:
    float position_, sharpness_, total_ = 1.0f;
};

// What a row's softmax needs, the same in all lanes; x becomes exp(x - max).
struct Softmax {
    float max, sum;
};

template <int COUNT>
__device__ Softmax exponentials(float (&x)[COUNT]) {
    Softmax row{-INFINITY, 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) row.max = fmaxf(row.max, x[i]);
    row.max = greatest_of_lanes(row.max);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        x[i] = __expf(x[i] - row.max);
        row.sum += x[i];
    }
    row.sum = sum_of_lanes(row.sum);
    return row;
}

// weight * (log sum_j exp x_j - sum_j label_j x_j)
template <int VEC, int COUNT>
__device__ float loss(float (&x)[COUNT], const Labels& labels, int n, int lane) {
    float greatest = -INFINITY, likely = 0.0f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) greatest = fmaxf(greatest, x[i]);
    greatest = greatest_of_lanes(greatest);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int bin = bin_of<VEC>(i, lane);
        if (bin >= n) continue;
        const float below = x[i] - greatest, label = labels[bin];
        sum += __expf(below);
        if (label != 0.0f) likely += label * below;  // true for NaN
    }
    return logf(sum_of_lanes(sum)) - sum_of_lanes(likely);
}

// The row of gradients, in place of x: (softmax_j - label_j) * scale.
template <int VEC, int COUNT>
__device__ void loss_gradient(float (&x)[COUNT], const Labels& labels, float scale, int n, int lane) {
    const Softmax row = exponentials(x);
    const float factor = 1.0f / row.sum;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int bin = bin_of<VEC>(i, lane);
        if (bin < n) x[i] = (x[i] * factor - labels[bin]) * scale;
    }
}

// sum_j softmax_j point_j; x becomes exp(x - max), `sum` the sum of those.
template <int VEC, int COUNT>
__device__ float mean(float (&x)[COUNT], const Support& support, int lane, float& sum) {
    sum = exponentials(x).sum;
    float weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) weighted += x[i] * (support.start + support.width * bin_of<VEC>(i, lane));
    return sum_of_lanes(weighted) / sum;
}

template <class T, int VEC, int K, Task TASK>
__global__ void __launch_bounds__(kWarps* kLanes) rows_kernel(const Call call) {
    constexpr int kCount = K * VEC, kRows = kCount <= 4 ? 4 : 1;
    constexpr bool kLoss = TASK == Task::loss || TASK == Task::loss_gradient;
    constexpr bool kGradient = TASK == Task::loss_gradient || TASK == Task::mean_gradient;
    const RowAxes& axes = call.rows;
    const int n = call.support.n, lane = threadIdx.x % kLanes;
    const int64_t warp = blockIdx.x * int64_t{kWarps} + threadIdx.x / kLanes, warps = gridDim.x * int64_t{kWarps};
    for (int64_t first = warp * kRows; first < axes.rows; first += warps * kRows) {
        float x[kRows][kCount];
        bool live[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int64_t row = first + r;
            live[r] = row < axes.rows;
            if (kLoss && live[r] && call.mask.address)
                live[r] = address<const bool>(call.mask)[place(axes, call.mask, row)];
            if (live[r])
                read_row<T, VEC, K>(address<const T>(call.logits) + place(axes, call.logits, row), call.logits.bin,
                                    n, lane, x[r]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int64_t row = first + r;
            if (row >= axes.rows) continue;
            float value = 0.0f;
            if (!live[r]) {
#pragma unroll
                for (int i = 0; i < kCount; ++i) x[r][i] = 0.0f;
            } else if constexpr (kLoss) {
                const Labels labels(read(axes, call.target, row), call.support);
                float scale = kGradient ? read(axes, call.incoming, row) : 1.0f;
                if (call.weight.address) scale *= read(axes, call.weight, row);
                if constexpr (kGradient)
                    loss_gradient<VEC>(x[r], labels, scale, n, lane);
                else
                    value = scale * loss<VEC>(x[r], labels, n, lane);
            } else {
                float sum;
                value = mean<VEC>(x[r], call.support, lane, sum);
                if constexpr (kGradient) {
                    float scale = read(axes, call.incoming, row) / sum;
                    if (call.support.symlog) scale *= expf(fabsf(value));
#pragma unroll
                    for (int i = 0; i < kCount; ++i)
                        x[r][i] *= scale * (call.support.start + call.support.width * bin_of<VEC>(i, lane) - value);
                } else if (call.support.symlog) {
                    value = copysignf(expm1f(fabsf(value)), value);
                }
            }
            const int64_t at = place(axes, call.result, row);
            if constexpr (kGradient)
                write_row<T, VEC, K>(address<T>(call.result) + at, call.result.bin, n, lane, x[r]);
            else if (lane == 0)
                address<float>(call.result)[at] = value;
        }
    }
}

// As many blocks as the GPU holds at once, each of which walks over its share of the rows.
template <class T, int VEC, int K, Task TASK>
const char* launch(const Call& call, cudaStream_t stream) {
    constexpr int64_t kRowsPerBlock = kWarps * (K * VEC <= 4 ? 4 : 1);
    const auto kernel = rows_kernel<T, VEC, K, TASK>;
    int device = 0, processors = 0, resident = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kWarps * kLanes, 0);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const int64_t blocks = std::min<int64_t>((call.rows.rows + kRowsPerBlock - 1) / kRowsPerBlock,
                                             int64_t{processors} * std::max(resident, 1));
    Call copy = call;
    void* arguments[] = {&copy};
    status = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                              dim3(kWarps * kLanes), arguments, 0, stream);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

// Whether rows can be read or written in groups of four numbers.
bool in_fours(const Strided& x, int n, int number_size) {
    bool fits = x.bin == 1 && n % 4 == 0 && x.address % (4 * number_size) == 0;
    for (int64_t stride : x.stride) fits = fits && stride % 4 == 0;
    return fits;
}

template <class T, Task TASK>
const char* by_size(const Call& call, cudaStream_t stream) {
    constexpr bool kGradient = TASK == Task::loss_gradient || TASK == Task::mean_gradient;
    const int n = call.support.n;
    if (in_fours(call.logits, n, sizeof(T)) && (!kGradient || in_fours(call.result, n, sizeof(T)))) {
        if (n <= 128) return launch<T, 4, 1, TASK>(call, stream);
        if (n <= 1024) return launch<T, 4, 8, TASK>(call, stream);
    }
    if (n <= 128) return launch<T, 1, 4, TASK>(call, stream);
    if (n <= 1024) return launch<T, 1, 32, TASK>(call, stream);
    return "there are kernels for up to 1024 bins";
}

template <class T>
const char* by_task(Task task, const Call& call, cudaStream_t stream) {
    switch (task) {
        case Task::loss: return by_size<T, Task::loss>(call, stream);
        case Task::loss_gradient: return by_size<T, Task::loss_gradient>(call, stream);
        case Task::mean: return by_size<T, Task::mean>(call, stream);
        case Task::mean_gradient: return by_size<T, Task::mean_gradient>(call, stream);
    }
    return "there is no such task";
}

}  // namespace

const char* two_hot(Number number, Task task, const Call& call, uintptr_t stream) {
    const auto at = reinterpret_cast<cudaStream_t>(stream);
    switch (number) {
        case Number::float32: return by_task<float>(task, call, at);
        case Number::float16: return by_task<__half>(task, call, at);
        case Number::bfloat16: return by_task<__nv_bfloat16>(task, call, at);
    }
    return "there is no such number";
}

}  // namespace amago
