// As much of CUDA as the kernels of this package use, on the CPU: the 32 lanes of a warp are coroutines, each of which
// runs until it exchanges a number with the others. Slow, and enough to see whether the numbers are right.
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

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
struct dim3 {
    unsigned x, y = 1, z = 1;
    explicit dim3(unsigned size) : x(size) {}
};

namespace emulated {

constexpr int kLanes = 32;
struct Index {
    unsigned x;
};
inline Index thread, block, grid;
inline unsigned lane;
inline int exchanges[kLanes];
inline float slots[2][kLanes];
inline ucontext_t scheduler, lanes[kLanes];
inline bool finished[kLanes];
inline void (*body)();

// All lanes write before any of them reads: a lane waits here until the others have come as far.
inline float exchange(float x, int away) {
    const unsigned me = lane, side = exchanges[me]++ % 2;
    slots[side][me] = x;
    swapcontext(&lanes[me], &scheduler);
    return slots[side][me ^ away];
}

inline void enter() {
    const unsigned me = lane;
    body();
    finished[me] = true;
    swapcontext(&lanes[me], &scheduler);
}

inline void run_warp(unsigned first_thread) {
    static std::vector<char> stacks(kLanes * (std::size_t{1} << 18));
    for (unsigned i = 0; i < kLanes; ++i) {
        finished[i] = false;
        exchanges[i] = 0;
        getcontext(&lanes[i]);
        lanes[i].uc_stack.ss_sp = stacks.data() + i * (std::size_t{1} << 18);
        lanes[i].uc_stack.ss_size = std::size_t{1} << 18;
        lanes[i].uc_link = nullptr;
        makecontext(&lanes[i], enter, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < kLanes; ++i) {
            if (finished[i]) continue;
            lane = i;
            thread.x = first_thread + i;
            swapcontext(&scheduler, &lanes[i]);
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

// The index of the thread that runs: a lane reads it anew each time it looks.
#define threadIdx (emulated::Index{emulated::thread.x})
#define blockIdx (emulated::block)
#define gridDim (emulated::grid)

inline float __shfl_xor_sync(unsigned, float x, int away) { return emulated::exchange(x, away); }
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
    for (emulated::block.x = 0; emulated::block.x < blocks.x; ++emulated::block.x)
        for (unsigned first = 0; first < threads.x; first += emulated::kLanes) emulated::run_warp(first);
    return cudaSuccess;
}
// A kernel's address says nothing of its argument: the file that is compiled names the type that its kernels take.
#define cudaLaunchKernel(kernel, blocks, threads, arguments, shared, stream) \
    launch_emulated(reinterpret_cast<void (*)(EMULATED_ARGUMENT)>(const_cast<void*>(kernel)), blocks, threads, arguments)
