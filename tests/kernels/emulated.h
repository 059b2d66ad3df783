// What gather.cu needs of CUDA, for a C++ compiler: a launch becomes a loop over the threads of all blocks.
//
// That is honest as long as threads neither share memory nor talk to each other, which the kernel does not. Every
// access is an ordinary one at the same address as on a device: types are aligned as there, so that the sanitizer sees
// an access that is not, and pages that may not be touched see one that is out of bounds.

#include <cstddef>
#include <cstdint>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads, blocks)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Dimensions {
    unsigned x, y, z;
};

static thread_local Dimensions threadIdx, blockIdx, blockDim, gridDim;

template <typename T>
static inline T __ldg(const T* from) {
    return *from;
}

template <typename T>
static inline void __stwb(T* to, const T& value) {
    *to = value;
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

static inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
    const unsigned long long before = *at;
    if (value < before) *at = value;
    return before;
}
