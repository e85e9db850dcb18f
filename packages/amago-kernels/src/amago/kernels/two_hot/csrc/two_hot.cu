// Losses and means of classifying critics on a GPU: a row of logits is read once, a row of gradients written once.
//
// A warp computes 32 rows. First each lane reads target, mask and weight of one row; then LANES lanes share a
// row, each with K groups of VEC neighbouring logits x in registers, and pass the sums to the row's lane. In half
// precision a pass is limited by arithmetic as much as by memory, and per-row work in every lane would take longer
// than reading the row. Several rows are in flight, to hide memory latency. Labels are computed from the scalar
// target; nothing is saved for the gradient, which reads the logits anyway and recomputes their softmax.
#include <algorithm>

#include "gpu.h"
#include "two_hot_cuda.h"
#include "two_hot_rows.h"

namespace amago {
namespace {

constexpr int kLanes = 32, kWarps = 8;

template <Task TASK>
constexpr bool kLoss = TASK == Task::loss || TASK == Task::loss_gradient;
template <Task TASK>
constexpr bool kGradient = TASK == Task::loss_gradient || TASK == Task::mean_gradient;

// A row in its lane: whether it exists, whether it is unmasked, the position of its target in units of bins, and the
// factor of its loss or gradient.
struct Row {
    bool inside, live;
    float position, scale;

    template <Task TASK>
    __device__ static Row of(const Call& call, int64_t row) {
        Row it{row < call.rows, row < call.rows, 0.0f, 1.0f};
        if (kLoss<TASK> && it.live && call.mask) it.live = address<const bool>(call.mask)[row];
        if (!it.live) {
            it.scale = 0.0f;
            return it;
        }
        if (kGradient<TASK>) it.scale = address<const float>(call.incoming)[row];
        if (kLoss<TASK>) {
            it.position = amago::position(address<const float>(call.target)[row], call.support);
            if (call.weight) it.scale *= address<const float>(call.weight)[row];
        }
        return it;
    }
};

// Sums over a row, in all its lanes: of exponentials, and a second one that depends on the task.
struct Sums {
    float max, sum, other;
};

// x becomes exp(x - max).
template <int LANES, int COUNT>
__device__ Sums exponentials(float (&x)[COUNT]) {
    Sums row{-INFINITY, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) row.max = fmaxf(row.max, x[i]);
    row.max = greatest_of_lanes<LANES>(row.max);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        x[i] = __expf(x[i] - row.max);
        row.sum += x[i];
    }
    row.sum = sum_of_lanes<LANES>(row.sum);
    return row;
}

// sum_j label_j (x_j - max) of labels that are not two-hot, before x becomes exponentials.
template <int VEC, int LANES, int COUNT>
__device__ float gauss_likely(const float (&x)[COUNT], const Support& support, float position, int lane) {
    const GaussLabels labels(position, support);
    float likely = 0.0f, greatest = -INFINITY;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) greatest = fmaxf(greatest, x[i]);
    greatest = greatest_of_lanes<LANES>(greatest);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int bin = bin_of<VEC, LANES>(i, lane);
        const float label = bin < support.n ? labels[bin] : 0.0f;
        if (label != 0.0f) likely += label * (x[i] - greatest);  // true for NaN
    }
    return sum_of_lanes<LANES>(likely);
}

// The same for two-hot labels, by the lane of the row; the two logits are read again, from the L1 cache.
template <class T>
__device__ float two_hot_likely(const Call& call, int64_t index, const Row& row, float max) {
    const int low = row.position == row.position ? static_cast<int>(row.position) : 0;
    const float share = row.position - low;
    const T* at = address<const T>(call.logits) + index * call.support.n + low;
    float likely = (1.0f - share) * (number(at[0]) - max);
    if (share != 0.0f) likely += share * (number(at[1]) - max);  // true for NaN
    return likely;
}

// The row of gradients, in place of exponentials: (softmax_j - label_j) * scale.
template <int VEC, int LANES, int COUNT>
__device__ void loss_gradient(float (&x)[COUNT], const Sums& sums, const Support& support, float position, float scale,
                              int lane) {
    const float factor = 1.0f / sums.sum;
    if (support.sharpness > 0.0f) {
        const GaussLabels labels(position, support);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = (x[i] * factor - labels[bin_of<VEC, LANES>(i, lane)]) * scale;
        return;
    }
    if (position != position) scale = position;  // fmaxf drops a NaN
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float label = fmaxf(1.0f - fabsf(bin_of<VEC, LANES>(i, lane) - position), 0.0f);
        x[i] = (x[i] * factor - label) * scale;
    }
}

template <int VEC, int LANES, int COUNT>
__device__ float weighted_points(const float (&x)[COUNT], const Support& support, int lane) {
    float weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) weighted += x[i] * (support.start + support.width * bin_of<VEC, LANES>(i, lane));
    return sum_of_lanes<LANES>(weighted);
}

// The row of gradients of the mean, in place of exponentials: softmax_j (point_j - mean) * scale.
template <int VEC, int LANES, int COUNT>
__device__ void mean_gradient(float (&x)[COUNT], const Sums& sums, const Support& support, float scale, int lane) {
    const float mean = sums.other / sums.sum;
    scale /= sums.sum;
    if (support.symlog) scale *= expf(fabsf(mean));
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        x[i] *= scale * (support.start + support.width * bin_of<VEC, LANES>(i, lane) - mean);
}

// The loss or the mean of a row, by its lane.
template <class T, Task TASK>
__device__ float result(const Call& call, int64_t index, const Row& row, const Sums& sums) {
    if (!row.live) return 0.0f;
    if (TASK == Task::loss) {
        const bool gauss = call.support.sharpness > 0.0f;
        return row.scale * (logf(sums.sum) - (gauss ? sums.other : two_hot_likely<T>(call, index, row, sums.max)));
    }
    const float mean = sums.other / sums.sum;
    return call.support.symlog ? copysignf(expm1f(fabsf(mean)), mean) : mean;
}

template <class T, int VEC, int LANES, int K, Task TASK>
__global__ void __launch_bounds__(kWarps* kLanes) rows_kernel(const Call call) {
    constexpr int kCount = K * VEC, kAbreast = kLanes / LANES, kAhead = kCount <= 8 ? 4 : 1;
    const int n = call.support.n, lane = threadIdx.x % kLanes, part = lane % LANES;
    const int64_t warp = blockIdx.x * int64_t{kWarps} + threadIdx.x / kLanes, warps = gridDim.x * int64_t{kWarps};
    for (int64_t first = warp * kLanes; first < call.rows; first += warps * kLanes) {
        const Row own = Row::of<TASK>(call, first + lane);
        Sums found{0.0f, 1.0f, 0.0f};
        for (int step = 0; step < LANES; step += kAhead) {
            float x[kAhead][kCount];
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                const int source = (step + a) * kAbreast + lane / LANES;
                if (__shfl_sync(kEveryLane, static_cast<int>(own.live), source)) {
                    read_row<T, VEC, LANES, K>(address<const T>(call.logits) + (first + source) * n, n, part, x[a]);
                } else {
#pragma unroll
                    for (int i = 0; i < kCount; ++i) x[a][i] = 0.0f;
                }
            }
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                const int source = (step + a) * kAbreast + lane / LANES;
                const float position = kLoss<TASK> ? __shfl_sync(kEveryLane, own.position, source) : 0.0f;
                float likely = 0.0f;
                if (TASK == Task::loss && call.support.sharpness > 0.0f)
                    likely = gauss_likely<VEC, LANES>(x[a], call.support, position, part);
                Sums sums = exponentials<LANES>(x[a]);
                sums.other = kLoss<TASK> ? likely : weighted_points<VEC, LANES>(x[a], call.support, part);
                if constexpr (kGradient<TASK>) {
                    const float scale = __shfl_sync(kEveryLane, own.scale, source);
                    if (TASK == Task::loss_gradient)
                        loss_gradient<VEC, LANES>(x[a], sums, call.support, position, scale, part);
                    else
                        mean_gradient<VEC, LANES>(x[a], sums, call.support, scale, part);
                    const int64_t row = first + source;
                    if (row >= call.rows) continue;
                    write_row<T, VEC, LANES, K>(address<T>(call.result) + row * n, n, part, x[a]);
                } else {
                    const int sender = lane % kAbreast * LANES;
                    sums = {__shfl_sync(kEveryLane, sums.max, sender), __shfl_sync(kEveryLane, sums.sum, sender),
                            __shfl_sync(kEveryLane, sums.other, sender)};
                    if (lane / kAbreast == step + a) found = sums;
                }
            }
        }
        if (!kGradient<TASK> && own.inside)
            address<float>(call.result)[first + lane] = result<T, TASK>(call, first + lane, own, found);
    }
}

// As many blocks as fit on the GPU at once, each of which loops over its share of the rows.
template <class T, int VEC, int LANES, int K, Task TASK>
const char* launch(const Call& call, cudaStream_t stream) {
    constexpr int64_t kRowsPerBlock = kWarps * kLanes;
    const auto kernel = rows_kernel<T, VEC, LANES, K, TASK>;
    int device = 0, processors = 0, resident = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kWarps * kLanes, 0);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const int64_t blocks = std::min<int64_t>((call.rows + kRowsPerBlock - 1) / kRowsPerBlock,
                                             int64_t{processors} * std::max(resident, 1));
    Call copy = call;
    void* arguments[] = {&copy};
    status = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                              dim3(kWarps * kLanes), arguments, 0, stream);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class T, Task TASK>
const char* by_size(const Call& call, cudaStream_t stream) {
    constexpr int VEC = 16 / sizeof(T);
    const int n = call.support.n;
    const bool aligned = call.logits % 16 == 0 && (!kGradient<TASK> || call.result % 16 == 0);
    if (n % VEC == 0 && aligned) {  // rows are read and written 16 bytes at a time
        if (n <= 128) return launch<T, VEC, 128 / VEC, 1, TASK>(call, stream);
        if (n <= 1024) return launch<T, VEC, 32, 32 / VEC, TASK>(call, stream);
    }
    if (n <= 128) return launch<T, 1, 32, 4, TASK>(call, stream);
    if (n <= 1024) return launch<T, 1, 32, 32, TASK>(call, stream);
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
