// The gather on a GPU: one pass that checks the components, adds up the offsets and copies the slices.
//
// A slice is so many units: of 16 bytes where its width and the addresses allow it, else of 8, 4, 2 or 1. A group of
// `lanes` threads, a power of two and at most a warp, copies a slice, and four slices at once, so that four loads are
// on their way while it waits. With one lane this is a thread for each tuple; with 32, a warp for each row; rows wider
// than a warp's width are also cut over the second dimension of the grid. All threads of a group read the same
// components, which costs one access for all of them, so that they need not talk to each other.
//
// Nothing is read or written for a tuple with a bad component; the least flat position of one is left in `*first`. The
// operator's rule that every component is checked holds without any data too: `units` is 0 then.
//
// The host side, app/kernels/cupy_gpu/kernel_launch.py, fills `Plan` in and chooses the entry point; the layout is held equal by a
// test. No header is included: NVRTC compiles this file alone, nvcc and, with a few definitions before it, a C++
// compiler do too.

typedef unsigned long long u64;
typedef long long i64;

struct Plan {
    const void* data;
    const void* indices;
    void* out;
    u64* first;        // all ones before the launch
    u64 slices;        // to be written, or, where nothing is, tuples to be checked
    u64 tuples;        // of one batch
    u64 magic;         // with shift: what makes a division by tuples a multiplication; unused for 1 batch or 1 tuple
    u64 set_magic;     // with set_shift: the same for the batches that use one set of tuples; 0 where all use the one
    u64 units;         // of one slice
    u64 block;         // units of one batch of data
    unsigned shift;
    unsigned set_shift;
    unsigned lane_bits;
    unsigned depth;
    unsigned batched;  // whether there is more than one batch
    unsigned broadcast_indices; // whether several batches use one set of tuples
    unsigned wrap;     // whether negative components count from the end
    i64 sizes[64];     // of the indexed axes
};

constexpr unsigned BLOCK = 256;
constexpr int AT_ONCE = 4;
constexpr u64 NOTHING = ~0ull;

__device__ __forceinline__ u64 batch_of(const Plan& plan, u64 slice) {
    return plan.tuples == 1 ? slice : __umul64hi(slice, plan.magic) >> plan.shift;
}

// Whether component `value`, counted from the end where it is negative and may be, is good; adds it to `offset`.
__device__ __forceinline__ bool add(u64& offset, i64 value, i64 size, unsigned wrap) {
    value += (value >> 63) & (wrap ? size : 0);
    offset = offset * u64(size) + u64(value);
    return u64(value) < u64(size);
}

// Four slices in hand: which tuple each has, where its batch begins in `data`, and then where its slice does.
struct Four {
    u64 begin[AT_ONCE];  // of the tuple in `indices`
    u64 from[AT_ONCE];   // in units; NOTHING where there is nothing to copy
};

// Finds slices `slice`, `slice + step`, ... and reports bad components where `reports` says so.
template <typename Index, int DEPTH>
__device__ __forceinline__ void find(const Plan& plan, u64 slice, u64 step, bool reports, Four& four) {
    const unsigned depth = DEPTH ? DEPTH : plan.depth;
    const Index* indices = static_cast<const Index*>(plan.indices);
    u64 offset[AT_ONCE];
    unsigned bad[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        // Beyond the last slice the first one is looked at once more, so that no load waits for a condition.
        const u64 one = slice + i * step < plan.slices ? slice + i * step : slice;
        u64 row = one;
        four.from[i] = 0;
        if (plan.batched) {
            const u64 batch = batch_of(plan, one);
            four.from[i] = batch * plan.block;
            if (plan.broadcast_indices) {
                const u64 set = __umul64hi(batch, plan.set_magic) >> plan.set_shift;
                row = one - (batch - set) * plan.tuples;
            }
        }
        four.begin[i] = row * depth;
        offset[i] = 0;
        bad[i] = depth;
    }
#pragma unroll (DEPTH ? DEPTH : 1)
    for (unsigned j = 0; j < depth; ++j) {
        const i64 size = plan.sizes[j];
        i64 value[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) value[i] = __ldg(indices + four.begin[i] + j);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const bool good = add(offset[i], value[i], size, plan.wrap);
            bad[i] = good || bad[i] < depth ? bad[i] : j;
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        four.from[i] += offset[i] * plan.units;
        if (bad[i] < depth) {
            // Read first: of a million bad ones few are the least so far.
            const u64 place = four.begin[i] + bad[i];
            if (reports && place < *static_cast<volatile u64*>(plan.first)) atomicMin(plan.first, place);
            four.from[i] = NOTHING;
        }
        if (slice + i * step >= plan.slices) four.from[i] = NOTHING;
    }
}

template <typename Index, typename Unit, int DEPTH, bool WIDE>
__device__ __forceinline__ void gather(const Plan& plan) {
    const Unit* data = static_cast<const Unit*>(plan.data);
    Unit* out = static_cast<Unit*>(plan.out);
    const unsigned lane = threadIdx.x & ((1u << plan.lane_bits) - 1);
    const u64 groups = u64(gridDim.x) * (BLOCK >> plan.lane_bits);
    const u64 group = u64(blockIdx.x) * (BLOCK >> plan.lane_bits) + (threadIdx.x >> plan.lane_bits);
    const bool reports = lane == 0 && blockIdx.y == 0;
    for (u64 slice = group; slice < plan.slices; slice += AT_ONCE * groups) {
        Four four;
        find<Index, DEPTH>(plan, slice, groups, reports, four);
        u64 unit = lane;
        if (WIDE) unit += u64(blockIdx.y) << plan.lane_bits;
        while (unit < plan.units) {
            Unit held[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (four.from[i] != NOTHING) held[i] = __ldg(data + four.from[i] + unit);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (four.from[i] != NOTHING) out[(slice + i * groups) * plan.units + unit] = held[i];
            if (!WIDE) break;  // no slice has more units than lanes
            unit += u64(gridDim.y) << plan.lane_bits;
        }
    }
}

#define ENTRY(NAME, INDEX, UNIT, DEPTH, WIDE)                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK, 3) NAME(const __grid_constant__ Plan plan) {  \
        gather<INDEX, UNIT, DEPTH, WIDE>(plan);                                                    \
    }

#define ENTRIES(WIDTH, UNIT)                                 \
    ENTRY(gather_32_##WIDTH##_1, int, UNIT, 1, false)        \
    ENTRY(gather_32_##WIDTH##_2, int, UNIT, 2, false)        \
    ENTRY(gather_32_##WIDTH##_3, int, UNIT, 3, false)        \
    ENTRY(gather_32_##WIDTH##_any, int, UNIT, 0, false)      \
    ENTRY(gather_32_##WIDTH##_wide, int, UNIT, 0, true)      \
    ENTRY(gather_64_##WIDTH##_1, i64, UNIT, 1, false)        \
    ENTRY(gather_64_##WIDTH##_2, i64, UNIT, 2, false)        \
    ENTRY(gather_64_##WIDTH##_3, i64, UNIT, 3, false)        \
    ENTRY(gather_64_##WIDTH##_any, i64, UNIT, 0, false)      \
    ENTRY(gather_64_##WIDTH##_wide, i64, UNIT, 0, true)

ENTRIES(1, unsigned char)
ENTRIES(2, unsigned short)
ENTRIES(4, unsigned int)
ENTRIES(8, uint2)
ENTRIES(16, uint4)
