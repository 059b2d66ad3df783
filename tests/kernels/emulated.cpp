// gather.cu and what launches it on a CPU. Built by tests/kernels/emulated.py.

#include "emulated.h"

#include "gather.cu"

static_assert(offsetof(Plan, slices) == 32 && offsetof(Plan, shift) == 88 && offsetof(Plan, sizes) == 120, "layout");

extern "C" std::size_t plan_bytes() { return sizeof(Plan); }

// Runs every thread of every block once, in an order that `seed` changes: `threads` many, and none waits for another.
extern "C" void run_grid(void (*entry)(const Plan), const Plan* plan, unsigned x, unsigned y, std::uint64_t seed) {
    const std::uint64_t threads = std::uint64_t(x) * y * BLOCK;
    const std::uint64_t step = 1000003;  // a prime: no grid here has a multiple of it
    gridDim = {x, y, 1};
    blockDim = {BLOCK, 1, 1};
    for (std::uint64_t turn = 0; turn < threads; ++turn) {
        const std::uint64_t one = (turn * step + seed) % threads;
        threadIdx = {unsigned(one % BLOCK), 0, 0};
        blockIdx = {unsigned(one / BLOCK % x), unsigned(one / BLOCK / x), 0};
        entry(*plan);
    }
}
