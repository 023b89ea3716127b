// topk_router without groups where topk_router.cu has no kernel of the number of experts: the design is
// in topk_router_flat.cuh. An archive of its own, so that it is loaded where it is needed.
#include "topk_router_flat.cuh"

template <u32 Q, typename T>
INLINE void flat_route(const Extended& e) {
    const u64 count = live_tokens(e.common, e.options);
    pad(e.common, e.options, Plain(), count);
    flat::route<Q, T>(e.common, e.options, count);
}

// For at most 128 Q experts, with the blocks that a multiprocessor must hold.
#define FLAT(Q, most, dtype, T, resident)                                                 \
    SPEC_KERNEL_BLOCKS(topk_router_flat_##most##_##dtype, (flat_route<Q, T>), Extended, \
                       flat::THREADS, resident)

#define FLATS(dtype, T)       \
    FLAT(2, 256, dtype, T, 8) \
    FLAT(8, 1024, dtype, T, 4)

// Routers of published models compute their logits in one of these types.
FLATS(f32, float)
FLATS(bf16, bf16)
