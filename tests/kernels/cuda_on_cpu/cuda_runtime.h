// As much of CUDA as the kernels of this package use, on the CPU: the threads of a block are coroutines, each of which
// runs until it exchanges a number with its warp or waits for the block. Slow, and enough to see whether the numbers
// are right.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
struct dim3 {
    unsigned x, y = 1, z = 1;
    explicit dim3(unsigned size) : x(size) {}
};

namespace emulated {

constexpr unsigned kLanes = 32, kThreads = 256;
constexpr std::size_t kStack = std::size_t{1} << 17;
struct Index {
    unsigned x;
};
inline Index thread, block, grid;
inline unsigned exchanges[kThreads];
inline uint64_t slots[2][kThreads];
inline ucontext_t scheduler, threads[kThreads];
inline bool finished[kThreads];
inline unsigned block_size, waiting, barriers;
inline void (*body)();

// Lets the other threads run as far as this one has come.
inline void yield() {
    const unsigned me = thread.x;
    swapcontext(&threads[me], &scheduler);
}

// All lanes write before any of them reads: a lane waits here until the others have come as far.
template <class Number>
Number exchange(Number x, unsigned other) {
    static_assert(sizeof x <= sizeof slots[0][0]);
    const unsigned me = thread.x, side = exchanges[me]++ % 2;
    std::memcpy(&slots[side][me], &x, sizeof x);
    yield();
    std::memcpy(&x, &slots[side][me / kLanes * kLanes + other], sizeof x);
    return x;
}

inline void wait_for_block() {
    const unsigned before = barriers;
    if (++waiting == block_size) {
        waiting = 0;
        ++barriers;
    }
    do yield();
    while (barriers == before);
}

inline void enter() {
    const unsigned me = thread.x;
    body();
    finished[me] = true;
    swapcontext(&threads[me], &scheduler);
}

inline void run_block(unsigned size) {
    static std::vector<char> stacks(kThreads * kStack);
    block_size = size;
    waiting = 0;
    for (unsigned i = 0; i < size; ++i) {
        finished[i] = false;
        exchanges[i] = 0;
        getcontext(&threads[i]);
        threads[i].uc_stack.ss_sp = stacks.data() + i * kStack;
        threads[i].uc_stack.ss_size = kStack;
        threads[i].uc_link = nullptr;
        makecontext(&threads[i], enter, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < size; ++i) {
            if (finished[i]) continue;
            thread.x = i;
            swapcontext(&scheduler, &threads[i]);
            running = running || !finished[i];
        }
    }
}

template <class Argument>
struct Launch {
    static inline void (*kernel)(Argument);
    static inline const Argument* argument;
    static void call() { kernel(*argument); }
};

}  // namespace emulated

// The index of the thread that runs, read anew at each look.
#define threadIdx (emulated::Index{emulated::thread.x})
#define blockIdx (emulated::block)
#define gridDim (emulated::grid)

inline float __shfl_xor_sync(unsigned, float x, int away) {
    return emulated::exchange(x, emulated::thread.x % emulated::kLanes ^ away);
}
template <class Number>
Number __shfl_sync(unsigned, Number x, int lane) {
    return emulated::exchange(x, lane);
}
inline void __syncthreads() { emulated::wait_for_block(); }
inline float __expf(float x) { return std::exp(x); }

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 2, cudaSuccess; }
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, std::size_t) {
    return *blocks = 1, cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }

template <class Argument>
cudaError_t launch_emulated(void (*kernel)(Argument), dim3 blocks, dim3 threads, void** arguments) {
    using Launch = emulated::Launch<Argument>;
    Launch::kernel = kernel;
    Launch::argument = static_cast<const Argument*>(arguments[0]);
    emulated::body = Launch::call;
    emulated::grid.x = blocks.x;
    for (emulated::block.x = 0; emulated::block.x < blocks.x; ++emulated::block.x) emulated::run_block(threads.x);
    return cudaSuccess;
}
// A kernel's address says nothing of its argument: the file that is compiled names the type that its kernels take.
#define cudaLaunchKernel(kernel, blocks, threads, arguments, shared, stream) \
    launch_emulated(reinterpret_cast<void (*)(EMULATED_ARGUMENT)>(const_cast<void*>(kernel)), blocks, threads, arguments)
