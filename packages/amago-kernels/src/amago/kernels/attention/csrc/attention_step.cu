// One query per row against the keys and values of a ring cache, on a GPU.
//
// LANES neighbouring lanes hold a head, 16 bytes of the cache each, so that whole slots are read in order. They loop
// over slots with a softmax of their own, several slots at a time, whose loads are issued before the first is used;
// at the end a block joins the softmaxes of its lanes. The new key and value come from the inputs, never from the
// cache: one block writes them there, and no other accesses that slot. If rows and heads are too few to fill the GPU,
// several blocks share the slots of a row, and a second kernel joins their results.
#include "attention_step_cuda.h"
#include "gpu.h"

namespace amago {
namespace {

constexpr int kThreads = 256, kLanes = 32, kAhead = 4;  // slots whose loads are in flight together
constexpr float kLog2e = 1.4426950408889634f;

// Numbers whose dtype is known at run time only: those of q, k, v and the output.
__device__ float read(Number kind, uintptr_t address, int64_t i) {
    if (kind == Number::float32) return reinterpret_cast<const float*>(address)[i];
    if (kind == Number::float16) return number(reinterpret_cast<const __half*>(address)[i]);
    return number(reinterpret_cast<const __nv_bfloat16*>(address)[i]);
}

__device__ void write(Number kind, uintptr_t address, int64_t i, float x) {
    if (kind == Number::float32)
        reinterpret_cast<float*>(address)[i] = x;
    else if (kind == Number::float16)
        put(reinterpret_cast<__half*>(address)[i], x);
    else
        put(reinterpret_cast<__nv_bfloat16*>(address)[i], x);
}

// A lane's features of a head of the new step, 0 beyond the last; rotated if there are positions.
template <int VEC>
__device__ void new_head(const StepCall& call, const Heads& x, int64_t row, int64_t head, int first, bool rotate,
                         float (&to)[VEC]) {
    const int64_t at = row * x.row + head * x.head;
    const int half = call.dim / 2;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const int feature = first + i;
        to[i] = feature < call.dim ? read(call.given, x.address, at + feature) : 0.0f;
        if (!rotate || !call.positions || feature >= call.dim) continue;
        const bool low = feature < half;
        const int other = low ? feature + half : feature - half;
        const auto position = reinterpret_cast<const int64_t*>(call.positions)[row];
        const float angle = static_cast<float>(position) * call.frequencies[low ? feature : other];
        const float partner = read(call.given, x.address, at + other);
        to[i] = to[i] * cosf(angle) + (low ? -partner : partner) * sinf(angle);
    }
}

// A softmax over some slots: the maximum score so far, in base 2, the sum of exponentials, the weighted values.
template <int VEC>
struct Softmax {
    float largest = -INFINITY, total = 0.0f, mixed[VEC] = {};

    __device__ void join(float other_largest, float other_total, const float (&other)[VEC]) {
        const float top = fmaxf(largest, other_largest);
        if (top == -INFINITY) return;
        const float mine = exp2f(largest - top), its = exp2f(other_largest - top);
        largest = top;
        total = total * mine + other_total * its;
#pragma unroll
        for (int i = 0; i < VEC; ++i) mixed[i] = mixed[i] * mine + other[i] * its;
    }
};

// Positions 0 to `sinks` and `start` to `now` are visible; `oldest` is the slot of position 0.
struct Seen {
    int now, current, oldest, start, sinks;

    __device__ Seen(const StepCall& call, int64_t length) {
        now = static_cast<int>(length < call.size - 1 ? length : call.size - 1);
        current = static_cast<int>(length % call.size);
        oldest = (current - now + call.size) % call.size;
        start = call.window >= 0 && now > call.window ? now - call.window : 0;
        sinks = call.sink < start ? call.sink : start;
    }
    __device__ int before_now() const { return sinks + now - start; }
    __device__ int position(int index) const { return index < sinks ? index : start + index - sinks; }
    __device__ int slot(int position, int size) const {
        const int at = oldest + position;
        return at >= size ? at - size : at;
    }
};

__device__ float bounded(const StepCall& call, float score, int position) {
    if (position < call.sink) score += call.sink_bias;
    return fminf(fmaxf(score, -call.logit_clip), call.logit_clip) * kLog2e;
}

// The slots of one group of lanes: every `stride`-th index from `begin` on. All lanes of a warp run the loop in step,
// for they exchange numbers in it.
template <class T, int LANES>
__device__ void walk(const StepCall& call, const Seen& seen, const T* keys, const T* values, bool real,
                     const float (&query)[kVec<T>], int begin, int end, int lane, int stride, Softmax<kVec<T>>& out) {
    constexpr int VEC = kVec<T>;
    for (int first = begin; first < end; first += stride * kAhead) {
        Pack<T> key[kAhead], value[kAhead];
        int position[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            const int index = first + a * stride + lane;
            position[a] = seen.position(index);
            key[a] = {};
            value[a] = {};
            if (!real || index >= end) continue;
            const int64_t slot = seen.slot(position[a], call.size);
            key[a] = *reinterpret_cast<const Pack<T>*>(keys + slot * call.keys.slot);
            value[a] = *reinterpret_cast<const Pack<T>*>(values + slot * call.values.slot);
        }
        float score[kAhead], top = out.largest;
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum += query[i] * number(key[a].values[i]);
            score[a] = bounded(call, sum_of_lanes<LANES>(sum), position[a]);
            if (first + a * stride + lane >= end) score[a] = -INFINITY;
            top = fmaxf(top, score[a]);
        }
        if (top == -INFINITY) continue;  // nothing yet for these lanes; the next exchange is in the next iteration
        const float old = exp2f(out.largest - top);
        out.largest = top;
        out.total *= old;
#pragma unroll
        for (int i = 0; i < VEC; ++i) out.mixed[i] *= old;
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
            const float weight = exp2f(score[a] - top);
            out.total += weight;
#pragma unroll
            for (int i = 0; i < VEC; ++i) out.mixed[i] += weight * number(value[a].values[i]);
        }
    }
}

// Joins the softmaxes of lanes that hold the same features of the same head, `same` lanes apart; the first ones have it.
template <int VEC>
__device__ void join_block(Softmax<VEC>& mine, int same) {
    __shared__ float largest[kThreads], total[kThreads], mixed[VEC][kThreads];
    for (int away = kLanes / 2; away >= same; away /= 2) {
        float other[VEC];
        const float its_largest = __shfl_xor_sync(kEveryLane, mine.largest, away);
        const float its_total = __shfl_xor_sync(kEveryLane, mine.total, away);
#pragma unroll
        for (int i = 0; i < VEC; ++i) other[i] = __shfl_xor_sync(kEveryLane, mine.mixed[i], away);
        mine.join(its_largest, its_total, other);
    }
    const int me = threadIdx.x;
    largest[me] = mine.largest;
    total[me] = mine.total;
#pragma unroll
    for (int i = 0; i < VEC; ++i) mixed[i][me] = mine.mixed[i];
    __syncthreads();
    if (me >= same) return;
    for (int thread = me + (same < kLanes ? kLanes : same); thread < kThreads; thread += same < kLanes ? kLanes : same) {
        float other[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) other[i] = mixed[i][thread];
        mine.join(largest[thread], total[thread], other);
    }
}

template <class T, int LANES>
__global__ void __launch_bounds__(kThreads) ring_kernel(const StepCall call) {
    constexpr int VEC = kVec<T>;
    const int same = call.group * LANES;  // threads that hold a slot, a power of two
    const int split = blockIdx.x % call.splits, groups = call.heads / call.group;
    const int64_t row = blockIdx.x / call.splits / groups;
    const int64_t head = blockIdx.x / call.splits % groups * call.group + threadIdx.x % same / LANES;
    const int first = threadIdx.x % LANES * VEC, lane = threadIdx.x / same;
    const bool real = first < call.dim;
    const Seen seen(call, reinterpret_cast<const int64_t*>(call.lengths)[row]);
    const int count = seen.before_now(), share = (count + call.splits - 1) / call.splits;
    const int begin = split * share, end = begin + share < count ? begin + share : count;
    T* keys = reinterpret_cast<T*>(call.keys.address) + row * call.keys.row + head * call.keys.head + first;
    T* values = reinterpret_cast<T*>(call.values.address) + row * call.values.row + head * call.values.head + first;

    float query[VEC];
    new_head(call, call.q, row, head, first, true, query);
#pragma unroll
    for (int i = 0; i < VEC; ++i) query[i] *= call.scale;
    Softmax<VEC> mine;
    if (split == 0) {
        float key[VEC], value[VEC], sum = 0.0f;
        Pack<T> key_pack, value_pack;
        new_head(call, call.k, row, head, first, true, key);
        new_head(call, call.v, row, head, first, false, value);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            put(key_pack.values[i], key[i]);
            put(value_pack.values[i], value[i]);
            sum += query[i] * number(key_pack.values[i]);
        }
        const float score = bounded(call, sum_of_lanes<LANES>(sum), seen.now);
        if (lane == 0) {
            mine.largest = score;
            mine.total = 1.0f;
#pragma unroll
            for (int i = 0; i < VEC; ++i) mine.mixed[i] = number(value_pack.values[i]);
            if (real) {
                *reinterpret_cast<Pack<T>*>(keys + seen.current * call.keys.slot) = key_pack;
                *reinterpret_cast<Pack<T>*>(values + seen.current * call.values.slot) = value_pack;
            }
        }
    }
    walk<T, LANES>(call, seen, keys, values, real, query, begin, end, lane, kThreads / same, mine);
    join_block(mine, same);
    if (lane > 0 || !real) return;
    const int64_t own = row * call.heads + head;
    if (call.splits == 1) {
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            if (first + i < call.dim) write(call.given, call.out, own * call.dim + first + i, mine.mixed[i] / mine.total);
        return;
    }
    const int64_t part = own * call.splits + split;
    if (first == 0) {
        reinterpret_cast<float*>(call.part_max)[part] = mine.largest;
        reinterpret_cast<float*>(call.part_sum)[part] = mine.total;
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i)
        reinterpret_cast<float*>(call.part_mixed)[part * call.dim + first + i] = mine.mixed[i];
}

// One output number per thread, from all splits of its row and head.
__global__ void __launch_bounds__(kThreads) join_kernel(const StepCall call) {
    const int64_t at = blockIdx.x * int64_t{kThreads} + threadIdx.x;
    if (at >= int64_t{call.rows} * call.heads * call.dim) return;
    const int64_t own = at / call.dim, feature = at % call.dim;
    const float* largest = reinterpret_cast<const float*>(call.part_max) + own * call.splits;
    const float* total = reinterpret_cast<const float*>(call.part_sum) + own * call.splits;
    const float* mixed = reinterpret_cast<const float*>(call.part_mixed) + own * call.splits * call.dim + feature;
    float top = -INFINITY, sum = 0.0f, value = 0.0f;
    for (int s = 0; s < call.splits; ++s) top = fmaxf(top, largest[s]);
    for (int s = 0; s < call.splits; ++s) {
        const float weight = exp2f(largest[s] - top);
        sum += weight * total[s];
        value += weight * mixed[s * int64_t{call.dim}];
    }
    write(call.given, call.out, at, value / sum);
}

cudaError_t start(void (*kernel)(StepCall), int64_t blocks, const StepCall& call, cudaStream_t stream) {
    StepCall copy = call;
    void* arguments[] = {&copy};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            arguments, 0, stream);
}

template <class T>
const char* by_lanes(const StepCall& call, cudaStream_t stream) {
    constexpr int MOST = kMostFeatures / kVec<T>;
    const int lanes = (call.dim + kVec<T> - 1) / kVec<T>;
    const int64_t blocks = int64_t{call.rows} * (call.heads / call.group) * call.splits;
    auto kernel = ring_kernel<T, MOST>;
    if (lanes <= MOST / 2) kernel = ring_kernel<T, MOST / 2>;
    if (lanes <= MOST / 4) kernel = ring_kernel<T, MOST / 4>;
    if (lanes <= MOST / 8) kernel = ring_kernel<T, MOST / 8>;
    cudaError_t status = start(kernel, blocks, call, stream);
    if (status == cudaSuccess && call.splits > 1) {
        const int64_t numbers = int64_t{call.rows} * call.heads * call.dim;
        status = start(join_kernel, (numbers + kThreads - 1) / kThreads, call, stream);
    }
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

int most_heads(int dim, Number cached) {
    const int numbers = cached == Number::float32 ? 4 : 8;
    int lanes = kMostFeatures / numbers / 8;
    while (lanes * numbers < dim) lanes *= 2;
    return kThreads / lanes;
}

const char* attention_step(const StepCall& call, uintptr_t stream) {
    const auto at = reinterpret_cast<cudaStream_t>(stream);
    switch (call.cached) {
        case Number::float32: return by_lanes<float>(call, at);
        case Number::float16: return by_lanes<__half>(call, at);
        case Number::bfloat16: return by_lanes<__nv_bfloat16>(call, at);
    }
    return "there is no such number";
}

}  // namespace amago
