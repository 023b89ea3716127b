// topk_router: adds the number of picks of each place to the load, for many tokens. Runs after the
// kernel that routes, and reads the indices that it wrote. With few tokens, the routing kernel adds
// to the load itself.
//
// Each thread takes every (number of threads)-th pick. Each block counts its picks in shared memory
// and then adds its counts to the load. If the routing kernel added to the load for many tokens,
// nearly each pick would be an atomic addition to one of a few sectors of L2, which executes the
// additions to a sector one after the other: 6 us for 4096 tokens and 288 places on an H100.
//
// Bytes: 4 or 8 read for each pick.
#include "topk_router_row.cuh"

extern "C" __global__ void __launch_bounds__(LOAD_THREADS, 1)
    topk_router_load(const __grid_constant__ Extended params) {
    extern __shared__ u32 counts[];
    const Params& p = params.common;
    const Options& options = params.options;
    for (u32 i = threadIdx.x; i < options.physical; i += LOAD_THREADS) counts[i] = 0;
    __syncthreads();
    follow();
    // The host has checked that the number of picks plus one step of the grid fits 32 bits.
    const u32 picks = static_cast<u32>(p.tokens) * p.topk;
    for (u32 i = blockIdx.x * LOAD_THREADS + threadIdx.x; i < picks;
         i += gridDim.x * LOAD_THREADS) {
        const u64 at = static_cast<u64>(i / p.topk) * p.indices.stride + i % p.topk;
        const i64 place = options.wide_indices ? reinterpret_cast<const i64*>(p.indices.data)[at]
                                               : static_cast<i64>(p.indices.data[at]);
        // -1 means no pick.
        if (place >= 0 && place < options.physical) atomicAdd(&counts[place], 1u);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < options.physical; i += LOAD_THREADS) {
        if (counts[i] != 0) atomicAdd(options.load + i, static_cast<i32>(counts[i]));
    }
}
