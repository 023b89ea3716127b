// topk_router without groups, for numbers of experts for which topk_router.cu has no kernel.
// topk_router_flat.cuh describes the design, the mapping of threads and the bytes. A separate
// archive, so that it is loaded only if needed.
#include "topk_router_flat.cuh"

template <u32 Q>
INLINE void flat_route(const Extended& e) {
    const u64 count = unpadded_tokens(e.common, e.options);
    pad(e.common, e.options, NoOptions(), count);
    flat::route<Q>(e.common, e.options, count);
}

// For at most 128 Q experts. `resident` is the number of blocks that a multiprocessor must hold.
#define FLAT(Q, max, resident) \
    SPEC_KERNEL_BLOCKS(topk_router_flat_##max, flat_route<Q>, Extended, FLAT_THREADS, resident)

FLAT(2, 256, 8)
FLAT(8, 1024, 4)
