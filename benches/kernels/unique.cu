// A published design for distinct keys: bitonic sort in tiles, mark, scan, write.
//
// Sort. Every comparison puts the smaller key first, so keys beyond the end count as larger than
// any key and are never accessed: any length works without padding in memory.
//
//     merging two sorted halves of a run     first   i with its mirror image
//                                            then    i with i + stride, stride halved
//
// Runs and strides within a tile are sorted in shared memory; longer ones pass over all keys, one
// step in each launch, with a thread for each pair.
//
// Unique. A mark for each key that differs from the previous key; an inclusive Brent-Kung scan of
// the marks, a section for each block, whose sums are scanned in the same way; each marked key is
// written to its place.
//
// Bytes: at 2^k tiles, k * (k + 1) / 2 passes over all keys, each with a read and a write.
#include "common.cuh"

struct Params {
    const u64* keys;
    u64* sorted;
    u64* unique;
    u64* count;
    // The marks, later the sums of their sections, and so on.
    u32* level;
    u32* sums;
    u64 n;
    // The number of keys of a run that is merged, or of words of a level.
    u64 size;
    u64 stride;
};
static_assert(sizeof(Params) == 72);

constexpr u32 THREADS = 1024;
constexpr u32 TILE = 4096;
constexpr u32 SECTION = 2 * THREADS;

INLINE void put_in_order(u64* keys, u64 low, u64 high) {
    const u64 a = keys[low];
    const u64 b = keys[high];
    if (a > b) {
        keys[low] = b;
        keys[high] = a;
    }
}

// ---- sort -----------------------------------------------------------------------

// The smaller index of pair `i` among the pairs whose indices differ by `stride`.
template <typename I>
INLINE I lower(I i, I stride) {
    return 2 * i - (i & (stride - 1));
}

// The steps with strides from `stride` down to 1, in a tile.
INLINE void halve(u64* tile, u32 stride) {
    for (; stride > 0; stride /= 2) {
        for (u32 i = threadIdx.x; i < TILE / 2; i += THREADS) {
            const u32 low = lower(i, stride);
            put_in_order(tile, low, low + stride);
        }
        __syncthreads();
    }
}

INLINE void load_tile(u64* tile, const u64* keys, u64 n) {
    const u64 start = static_cast<u64>(blockIdx.x) * TILE;
    for (u32 i = threadIdx.x; i < TILE; i += THREADS) {
        tile[i] = start + i < n ? keys[start + i] : ~0ull;
    }
    __syncthreads();
}

INLINE void store_tile(const u64* tile, u64* keys, u64 n) {
    const u64 start = static_cast<u64>(blockIdx.x) * TILE;
    for (u32 i = threadIdx.x; i < TILE; i += THREADS) {
        if (start + i < n) keys[start + i] = tile[i];
    }
}

// Sorts each tile.
INLINE void sort_tile(const Params& p) {
    __shared__ u64 tile[TILE];
    load_tile(tile, p.keys, p.n);
    for (u32 run = 2; run <= TILE; run *= 2) {
        for (u32 i = threadIdx.x; i < TILE / 2; i += THREADS) {
            const u32 within = i & (run / 2 - 1);
            const u32 low = 2 * i - within;
            put_in_order(tile, low, low - 2 * within + run - 1);
        }
        __syncthreads();
        halve(tile, run / 4);
    }
    store_tile(tile, p.sorted, p.n);
}
SPEC_KERNEL(unique_sort_tile, sort_tile, Params, THREADS)

// The first step of merging runs of `size` keys.
INLINE void mirror(const Params& p) {
    const u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 within = i & (p.size / 2 - 1);
    const u64 low = 2 * i - within;
    const u64 high = low - 2 * within + p.size - 1;
    if (high < p.n) put_in_order(p.sorted, low, high);
}
SPEC_KERNEL(unique_mirror, mirror, Params, THREADS)

// A later step of merging.
INLINE void step(const Params& p) {
    const u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u64 low = lower(i, p.stride);
    if (low + p.stride < p.n) put_in_order(p.sorted, low, low + p.stride);
}
SPEC_KERNEL(unique_step, step, Params, THREADS)

// The last steps of merging, within tiles.
INLINE void finish_tile(const Params& p) {
    __shared__ u64 tile[TILE];
    load_tile(tile, p.sorted, p.n);
    halve(tile, TILE / 2);
    store_tile(tile, p.sorted, p.n);
}
SPEC_KERNEL(unique_finish_tile, finish_tile, Params, THREADS)

// ---- unique ---------------------------------------------------------------------

INLINE void mark(const Params& p) {
    const u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < p.n) p.level[i] = i == 0 || p.sorted[i] != p.sorted[i - 1];
}
SPEC_KERNEL(unique_mark, mark, Params, THREADS)

// Scans the sections of a level in place: up a tree of sums, and down again.
INLINE void scan(const Params& p) {
    __shared__ u32 words[SECTION];
    const u64 start = static_cast<u64>(blockIdx.x) * SECTION;
    for (u32 i = threadIdx.x; i < SECTION; i += THREADS) {
        words[i] = start + i < p.size ? p.level[start + i] : 0;
    }
    for (u32 stride = 1; stride < SECTION; stride *= 2) {
        __syncthreads();
        const u32 at = (threadIdx.x + 1) * stride * 2 - 1;
        if (at < SECTION) words[at] += words[at - stride];
    }
    for (u32 stride = SECTION / 4; stride > 0; stride /= 2) {
        __syncthreads();
        const u32 at = (threadIdx.x + 1) * stride * 2 - 1;
        if (at + stride < SECTION) words[at + stride] += words[at];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SECTION; i += THREADS) {
        if (start + i < p.size) p.level[start + i] = words[i];
    }
    if (threadIdx.x == 0 && p.sums != nullptr) p.sums[blockIdx.x] = words[SECTION - 1];
}
SPEC_KERNEL(unique_scan, scan, Params, THREADS)

// Adds to each section the sum of the sections before it.
INLINE void add(const Params& p) {
    const u64 section = static_cast<u64>(blockIdx.x) + 1;
    const u32 before = p.sums[blockIdx.x];
    for (u32 i = threadIdx.x; i < SECTION; i += THREADS) {
        const u64 at = section * SECTION + i;
        if (at < p.size) p.level[at] += before;
    }
}
SPEC_KERNEL(unique_add, add, Params, THREADS)

INLINE void write(const Params& p) {
    const u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= p.n) return;
    const u32 place = p.level[i];
    if (i == 0 || p.level[i - 1] != place) p.unique[place - 1] = p.sorted[i];
    if (i == p.n - 1) *p.count = place;
}
SPEC_KERNEL(unique_write, write, Params, THREADS)
