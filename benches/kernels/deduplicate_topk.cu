// Two published designs of deduplicate_topk: the first version of the article, and the last one.
// Both have a block for each request, whose n values are contiguous, and read and write 4 n bytes.
#include "blocks.cuh"

struct Params {
    const i32* indices;
    Rows<i32> unique;
    i32* counts;
    u32 n;
    // 1 if the rows of `indices` and `unique` begin and end at multiples of 16 bytes.
    u32 aligned;
};
static_assert(sizeof(Params) == 40);

// ---- a hash table in shared memory ----------------------------------------------
//
// A slot for each value, with linear probing: atomicCAS claims a slot, and atomicAdd gives a new
// value its place in the list. The places depend on the order of threads, so the list is sorted in
// the end, which the article omits: a bitonic sort, a few microseconds of some hundreds.

constexpr u32 HASH_THREADS = 1024;

INLINE void sort_shared(i32* values, u32 size) {
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 stride = run / 2; stride > 0; stride /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += HASH_THREADS) {
                const u32 low = 2 * i - (i & (stride - 1));
                const i32 a = values[low];
                const i32 b = values[low + stride];
                if ((a > b) == ((low & run) == 0)) {
                    values[low] = b;
                    values[low + stride] = a;
                }
            }
            __syncthreads();
        }
    }
}

INLINE void hash(const Params& p) {
    extern __shared__ i32 shared[];
    __shared__ u32 unique_count;
    const u32 n = p.n;
    i32* seen = shared;
    // The length of the list is a power of two.
    i32* list = shared + n;
    for (u32 i = threadIdx.x; i < n; i += HASH_THREADS) seen[i] = -1;
    if (threadIdx.x == 0) unique_count = 0;
    __syncthreads();
    const i32* values = p.indices + static_cast<u64>(blockIdx.x) * n;
    for (u32 i = threadIdx.x; i < n; i += HASH_THREADS) {
        const i32 value = values[i];
        if (value < 0) continue;
        const u32 start = static_cast<u32>(value) % n;
        for (u32 probe = 0; probe < n; probe++) {
            const i32 old = atomicCAS(&seen[(start + probe) % n], -1, value);
            if (old == -1) {
                list[atomicAdd(&unique_count, 1)] = value;
                break;
            }
            if (old == value) break;
        }
    }
    __syncthreads();
    const u32 count = unique_count;
    const u32 size = count <= 1 ? 1 : 1u << (32 - __clz(count - 1));
    for (u32 i = count + threadIdx.x; i < size; i += HASH_THREADS) list[i] = 0x7FFFFFFF;
    __syncthreads();
    sort_shared(list, size);
    i32* out = p.unique[blockIdx.x];
    for (u32 i = threadIdx.x; i < n; i += HASH_THREADS) out[i] = i < count ? list[i] : -1;
    if (threadIdx.x == 0 && p.counts != nullptr) p.counts[blockIdx.x] = static_cast<i32>(count);
}
SPEC_KERNEL(deduplicate_topk_hash, hash, Params, HASH_THREADS)

// ---- radix sort, bitmask, popcount ------------------------------------------------
//
// load 16 bytes at a time -> BlockRadixSort -> a bit for each value that differs from the previous
// value -> BlockScan over popcounts -> stage in the memory of the sort -> store 16 bytes at a time.
// As unsigned numbers, negative values sort last, and no bit is set for them.

template <u32 THREADS, u32 ITEMS>
INLINE void sorted(const Params& p) {
    using Sort = cub::BlockRadixSort<u32, THREADS, ITEMS>;
    using Scan = cub::BlockScan<u32, THREADS>;
    constexpr u32 N = THREADS * ITEMS;
    constexpr u32 NOTHING = ~0u;
    __shared__ union {
        typename Sort::TempStorage sort;
        int4 vectors[N / 4];
        i32 values[N];
    } memory;
    __shared__ typename Scan::TempStorage scan;
    __shared__ u32 last[THREADS];
    const u32 n = p.n;
    const i32* from = p.indices + static_cast<u64>(blockIdx.x) * n;

    u32 values[ITEMS];
    if (p.aligned) {
        const int4* vectors = reinterpret_cast<const int4*>(from);
#pragma unroll
        for (u32 i = 0; i < ITEMS / 4; i++) {
            const u32 at = threadIdx.x + i * THREADS;
            const int4 v = 4 * at < n ? vectors[at] : make_int4(-1, -1, -1, -1);
            values[4 * i] = v.x;
            values[4 * i + 1] = v.y;
            values[4 * i + 2] = v.z;
            values[4 * i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 at = threadIdx.x + i * THREADS;
            values[i] = at < n ? static_cast<u32>(from[at]) : NOTHING;
        }
    }
    Sort(memory.sort).Sort(values);

    last[threadIdx.x] = values[ITEMS - 1];
    __syncthreads();
    u32 before = threadIdx.x == 0 ? NOTHING : last[threadIdx.x - 1];
    u32 mask = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (values[i] != before && static_cast<i32>(values[i]) >= 0) mask |= 1u << i;
        before = values[i];
    }
    u32 offset;
    u32 total;
    Scan(scan).ExclusiveSum(__popc(mask), offset, total);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (mask & 1u << i) {
            memory.values[offset + __popc(mask & ((1u << i) - 1))] = static_cast<i32>(values[i]);
        }
    }
    for (u32 i = total + threadIdx.x; i < n; i += THREADS) memory.values[i] = -1;
    __syncthreads();
    i32* out = p.unique[blockIdx.x];
    if (p.aligned) {
        int4* vectors = reinterpret_cast<int4*>(out);
        for (u32 i = threadIdx.x; i < n / 4; i += THREADS) vectors[i] = memory.vectors[i];
    } else {
        for (u32 i = threadIdx.x; i < n; i += THREADS) out[i] = memory.values[i];
    }
    if (threadIdx.x == 0 && p.counts != nullptr) p.counts[blockIdx.x] = static_cast<i32>(total);
}

#define SORTED(threads, items)                                                               \
    SPEC_KERNEL(deduplicate_topk_sort_##threads##_##items, (sorted<threads, items>), Params, \
                threads)
SORTED(128, 16)
SORTED(256, 8)
SORTED(256, 16)
SORTED(512, 8)
SORTED(384, 16)
SORTED(512, 12)
SORTED(512, 16)
SORTED(1024, 8)
