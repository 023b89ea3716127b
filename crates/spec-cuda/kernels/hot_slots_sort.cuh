// Sorts the misses of a row of hot_slots in ascending order, by a block: those of a narrow range by
// a bitmap, others by a bitonic network. The entries are distinct, and the list has room for the
// next power of two. Both functions end with a barrier.
#pragma once

#include "params/hot_slots.cuh"

// The largest number of warps of a block.
constexpr u32 MAX_WARPS = WORKSPACE_THREADS / WARP;

// The sum of the lanes' values that are those of the warps before this one; and of all warps. All
// lanes of a warp call these functions together.
INLINE u32 sum_before(u32 value) {
    return __reduce_add_sync(ALL_LANES, lane_id() < threadIdx.x / WARP ? value : 0);
}
INLINE u32 sum_of(u32 value) { return __reduce_add_sync(ALL_LANES, value); }

// Sorts the n entries of `list`, which are distinct, by a bitmap with a bit for each number from
// `lowest` on. The bitmap has `words` words, a multiple of the number of threads and enough for the
// greatest entry. In `totals`, the warps share how many entries each of them finds in its part of
// the bitmap.
INLINE void sort_by_bitmap(u32 (&totals)[MAX_WARPS], u32* bitmap, u32 words, u32 lowest, u32* list,
                           u32 n) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) bitmap[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        const u32 bit = list[i] - lowest;
        atomicOr(&bitmap[bit / 32], 1u << (bit % 32));
    }
    __syncthreads();
    // Each warp has neighbouring words, so that the entries of a warp are neighbours in the list.
    const u32 warp = threadIdx.x / WARP;
    const u32 words_per_warp = words / (blockDim.x / WARP);
    const u32 start = warp * words_per_warp;
    u32 count = 0;
#pragma unroll 1
    for (u32 i = lane_id(); i < words_per_warp; i += WARP) count += __popc(bitmap[start + i]);
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane_id() == 0) totals[warp] = count;
    __syncthreads();
    u32 to = sum_before(totals[lane_id()]);
#pragma unroll 1
    for (u32 i = lane_id(); i < words_per_warp; i += WARP) {
        u32 word = bitmap[start + i];
        const u32 own = __popc(word);
        const u32 through = warp_inclusive_sum(own);
        u32 at = to + through - own;
        while (word != 0) {
            list[at++] = lowest + (start + i) * 32 + __ffs(word) - 1;
            word &= word - 1;
        }
        to += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    __syncthreads();
}

// Sorts entries by a bitonic network over the next power of two, which the list has room for.
INLINE void sort_by_exchange(u32* list, u32 n) {
    const u32 size = n < 2 ? n : 1u << (32 - __clz(n - 1));
#pragma unroll 1
    for (u32 i = n + threadIdx.x; i < size; i += blockDim.x) list[i] = NONE;
    __syncthreads();
#pragma unroll 1
    for (u32 run = 2; run <= size; run *= 2) {
#pragma unroll 1
        for (u32 stride = run / 2; stride > 0; stride /= 2) {
            for (u32 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                const u32 low = 2 * pair - (pair & (stride - 1));
                const u32 a = list[low];
                const u32 b = list[low + stride];
                if ((a > b) == ((low & run) == 0)) {
                    list[low] = b;
                    list[low + stride] = a;
                }
            }
            __syncthreads();
        }
    }
}
