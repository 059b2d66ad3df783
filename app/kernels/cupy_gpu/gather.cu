// The gather on a GPU: one pass checks the components of the indices, computes the offsets and copies the slices.
//
// A slice is copied in units of 16 bytes if its width and the addresses allow it, else of 8, 4, 2 or 1 bytes. Each thread
// copies four units of the output and finds the slice of each, so four loads are in flight at a time. Neighboring threads
// write neighboring units, whatever the width of a slice. All threads of a slice read its components at the same time,
// which costs one memory access and needs no communication between threads.
//
// `gather_wide` copies wide slices that cannot use 16-byte units: a group of threads writes four consecutive slices as one
// stretch, in packs of 16 bytes, or of 8 bytes if the units are 8 bytes. A pack of smaller units may contain the end of one
// slice and the start of the next. A stretch is divided over the first dimension of the grid, so that blocks that run at
// the same time read neighboring pieces.
//
// Nothing is read or written for a tuple with an invalid component; `*first` receives the lowest flat position of an
// invalid component in the indices. If there is no data to copy, `units` is 0 and the components are still checked.
//
// The host side, app/kernels/cupy_gpu/kernel_launch.py, fills in `Plan` and chooses the entry point; a test compares the
// layouts. The file includes no header, so that NVRTC can compile it alone. nvcc can compile it, too, and a C++ compiler
// can with a few definitions before it.

typedef unsigned long long u64;
typedef long long i64;

struct Plan {
    const void* data;
    const void* indices;
    void* out;
    u64* first;        // lowest position of an invalid component; NOTHING before the launch
    u64 slices;        // number of slices to write, or of tuples to check if `units` is 0
    u64 tuples;        // index tuples per batch
    u64 magic;         // with `shift`: replaces the division by `tuples`; unused for 1 batch or 1 tuple
    u64 set_magic;     // with `set_shift`: replaces the division by the batches per set of tuples; 0 for a single set
    u64 unit_magic;    // with `unit_shift`: replaces the division by `units`
    u64 units;         // units per slice
    u64 block;         // units per batch of data
    unsigned shift;
    unsigned set_shift;
    unsigned unit_shift;
    unsigned lane_bits; // wide slices: 2**lane_bits threads write a stretch
    unsigned depth;    // components per tuple
    unsigned batched;  // 1 if there is more than one batch
    unsigned broadcast_indices; // 1 if several batches use the same set of tuples
    unsigned wrap;     // 1 if negative components count from the end
    i64 sizes[64];     // sizes of the indexed axes
};

constexpr unsigned BLOCK = 256;
constexpr int AT_ONCE = 4;
constexpr unsigned ALL_FOUR = (1u << AT_ONCE) - 1;
constexpr u64 NOTHING = ~0ull;

__device__ __forceinline__ u64 batch_of(const Plan& plan, u64 slice) {
    return plan.tuples == 1 ? slice : __umul64hi(slice, plan.magic) >> plan.shift;
}

// Adds the component `value` to `offset` and returns whether it is valid. With `wrap`, negative ones count from the end.
__device__ __forceinline__ bool add(u64& offset, i64 value, i64 size, unsigned wrap) {
    value += (value >> 63) & (wrap ? size : 0);
    offset = offset * u64(size) + u64(value);
    return u64(value) < u64(size);
}

// Four units to copy. Before `find`, `from` holds the position of each unit in its slice; `find` adds the slice's position.
struct Four {
    u64 begin[AT_ONCE];  // position of the slice's tuple in `indices`
    u64 from[AT_ONCE];   // position of the unit in `data`, in units; NOTHING if there is nothing to copy
};

// Finds the slices with the numbers `one`. Reports invalid components of the slices whose bit is set in `reports`.
template <typename Index, int DEPTH>
__device__ __forceinline__ void find(const Plan& plan, const u64 (&one)[AT_ONCE], unsigned reports, Four& four) {
    const unsigned depth = DEPTH ? DEPTH : plan.depth;
    const Index* indices = static_cast<const Index*>(plan.indices);
    u64 offset[AT_ONCE];
    unsigned bad[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        u64 row = one[i];
        if (plan.batched) {
            const u64 batch = batch_of(plan, one[i]);
            four.from[i] += batch * plan.block;
            if (plan.broadcast_indices) {
                const u64 set = __umul64hi(batch, plan.set_magic) >> plan.set_shift;
                row = one[i] - (batch - set) * plan.tuples;
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
            // Read before the atomic operation: of a million invalid components, few are the lowest so far.
            const u64 place = four.begin[i] + bad[i];
            if (reports >> i & 1 && place < *static_cast<volatile u64*>(plan.first)) atomicMin(plan.first, place);
            four.from[i] = NOTHING;
        }
    }
}

template <typename Index, typename Unit, int DEPTH>
__device__ __forceinline__ void gather(const Plan& plan) {
    const Unit* data = static_cast<const Unit*>(plan.data);
    Unit* out = static_cast<Unit*>(plan.out);
    const u64 all = plan.units ? plan.slices * plan.units : plan.slices;
    constexpr unsigned AT_A_TIME = BLOCK * AT_ONCE;  // units per block of threads
    for (u64 at = u64(blockIdx.x) * AT_A_TIME + threadIdx.x; at < all; at += u64(gridDim.x) * AT_A_TIME) {
        Four four;
        u64 one[AT_ONCE];
        unsigned reports = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            // Past the last unit, repeat the thread's first one, so that loads need no condition.
            const u64 place = at + i * BLOCK < all ? at + i * BLOCK : at;
            one[i] = plan.units > 1 ? __umul64hi(place, plan.unit_magic) >> plan.unit_shift : place;
            four.from[i] = plan.units > 1 ? place - one[i] * plan.units : 0;
            reports |= unsigned(four.from[i] == 0) << i;
        }
        find<Index, DEPTH>(plan, one, reports, four);
        if (!plan.units) continue;
        Unit held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (four.from[i] != NOTHING) held[i] = __ldg(data + four.from[i]);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (four.from[i] != NOTHING && at + i * BLOCK < all) out[at + i * BLOCK] = held[i];
    }
}

// Returns 16 bytes of smaller units: the first `next` from `source`, the others from `next_source`, at the same offset.
template <typename Unit>
__device__ __forceinline__ uint4 pack(const Unit* source, const Unit* next_source, unsigned next) {
    constexpr unsigned SIZE = sizeof(Unit);
    unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
    for (unsigned unit = 0; unit < 16 / SIZE; ++unit)
        words[unit * SIZE / 4] |= unsigned(__ldg((unit < next ? source : next_source) + unit)) << unit * SIZE % 4 * 8;
    return {words[0], words[1], words[2], words[3]};
}

// Packs are aligned, so the first and the last pack of a stretch may be incomplete. A thread has PACKS packs in flight.
template <typename Index, typename Unit, typename Pack, int PACKS>
__device__ __forceinline__ void gather_wide(const Plan& plan) {
    constexpr unsigned UNITS = sizeof(Pack) / sizeof(Unit), ALL = (1u << UNITS) - 1;
    const Unit* data = static_cast<const Unit*>(plan.data);
    const i64 units = i64(plan.units);
    const unsigned lanes = 1u << plan.lane_bits;
    const unsigned lane = threadIdx.x & (lanes - 1);
    const unsigned groups = gridDim.y * (BLOCK >> plan.lane_bits);
    const u64 group = u64(blockIdx.y) * (BLOCK >> plan.lane_bits) + (threadIdx.x >> plan.lane_bits);
    const unsigned step = gridDim.x * lanes * UNITS;  // a grid has at most 65535 pieces
    for (u64 slice = AT_ONCE * group; slice < plan.slices; slice += AT_ONCE * groups) {
        Four four;
        u64 one[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            one[i] = slice + i < plan.slices ? slice + i : slice;
            four.from[i] = 0;
        }
        find<Index, 0>(plan, one, lane == 0 && blockIdx.x == 0 ? ALL_FOUR : 0, four);
        unsigned good = 0;  // a bit for each slice
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            good |= unsigned(four.from[i] != NOTHING) << i;
            four.from[i] -= i * u64(units);  // add a position in the stretch to get the unit's position in `data`
        }
        Unit* out = static_cast<Unit*>(plan.out) + slice * units;
        const int lead = int(reinterpret_cast<u64>(out) % sizeof(Pack) / sizeof(Unit));  // units of a pack before the stretch
        const i64 end = units * i64(plan.slices - slice < AT_ONCE ? plan.slices - slice : AT_ONCE);
        for (i64 at = (i64(blockIdx.x) * lanes + lane) * UNITS - lead; at < end; at += i64(PACKS) * step) {
            Pack held[PACKS];
            unsigned whole = 0;  // a bit for each pack
#pragma unroll
            for (int i = 0; i < PACKS; ++i) {
                const i64 begin = at + i64(i) * step;  // the pack's position in the stretch
                if (begin >= end) continue;
                u64 from = four.from[0], other = four.from[1];
                i64 bound = units;  // end of the slice in which the pack begins; `other` is the slice after it
                unsigned copies = good;  // lowest bit: that slice; next bit: the slice after it
#pragma unroll
                for (int j = 1; j < AT_ONCE; ++j) {
                    if (begin < j * units) continue;
                    from = four.from[j];
                    other = four.from[j + 1 < AT_ONCE ? j + 1 : j];
                    bound = (j + 1) * units;
                    copies = good >> j;
                }
                const Unit* source = data + (from + u64(begin));
                if constexpr (UNITS == 1) {
                    if (!(copies & 1)) continue;
                    whole |= 1u << i;
                    held[i] = __ldg(source);
                } else {
                    const Unit* next_source = data + (other + u64(begin));
                    const unsigned next = bound - begin < UNITS ? unsigned(bound - begin) : UNITS;
                    unsigned copied = begin < 0 ? ALL << unsigned(-begin) & ALL : ALL;  // a bit for each unit
                    if (!(copies & 1)) copied &= ALL << next;
                    if (!(copies & 2)) copied &= ~(ALL << next);
                    if (begin + UNITS > end) copied &= ~(ALL << unsigned(end - begin));
                    if (copied == ALL) {
                        whole |= 1u << i;
                        held[i] = pack(source, next_source, next);
                    } else {
#pragma unroll 1
                        for (unsigned unit = 0; unit < UNITS; ++unit)
                            if (copied >> unit & 1)
                                out[begin + unit] = __ldg((unit < next ? source : next_source) + unit);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < PACKS; ++i)
                if (whole >> i & 1) __stwb(reinterpret_cast<Pack*>(out + (at + i64(i) * step)), held[i]);
        }
    }
}

// BLOCKS is the number of blocks per multiprocessor, which limits the registers of a thread.
#define ENTRY(NAME, BLOCKS, GATHER)                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) NAME(const __grid_constant__ Plan plan) {  \
        GATHER(plan);                                                                                      \
    }

#define NARROW(WIDTH, UNIT)                                   \
    ENTRY(gather_32_##WIDTH##_1, 3, (gather<int, UNIT, 1>))   \
    ENTRY(gather_32_##WIDTH##_2, 3, (gather<int, UNIT, 2>))   \
    ENTRY(gather_32_##WIDTH##_3, 3, (gather<int, UNIT, 3>))   \
    ENTRY(gather_32_##WIDTH##_any, 3, (gather<int, UNIT, 0>)) \
    ENTRY(gather_64_##WIDTH##_1, 3, (gather<i64, UNIT, 1>))   \
    ENTRY(gather_64_##WIDTH##_2, 3, (gather<i64, UNIT, 2>))   \
    ENTRY(gather_64_##WIDTH##_3, 3, (gather<i64, UNIT, 3>))   \
    ENTRY(gather_64_##WIDTH##_any, 3, (gather<i64, UNIT, 0>))

// PACKS_32 and PACKS_64: the most packs in flight for which the registers suffice, with 32-bit and 64-bit indices.
#define WIDE(WIDTH, UNIT, PACK, PACKS_32, PACKS_64)                                \
    ENTRY(gather_32_##WIDTH##_wide, 4, (gather_wide<int, UNIT, PACK, PACKS_32>)) \
    ENTRY(gather_64_##WIDTH##_wide, 4, (gather_wide<i64, UNIT, PACK, PACKS_64>))

NARROW(1, unsigned char)
NARROW(2, unsigned short)
NARROW(4, unsigned int)
NARROW(8, u64)
NARROW(16, uint4)
WIDE(1, unsigned char, uint4, 2, 2)
WIDE(2, unsigned short, uint4, 2, 2)
WIDE(4, unsigned int, uint4, 3, 4)
WIDE(8, u64, u64, 7, 7)
