// topk_router for DeepSeek-V3's shape (topk_router_grouped.cuh describes the design, the mapping of
// threads and the bytes) and many tokens, with every option: replicas of experts and their load,
// shared experts, padding, wide indices, a bias of 16 bits. With few tokens, the quick route has
// these options. A separate archive, so that it is loaded only if needed.
//
// A lane for each pick turns the expert into a place: it reads the number of replicas and then the
// place, from tables that stay in the first-level cache.
#include "topk_router_grouped.cuh"

template <u32 LANES, typename T>
INLINE void grouped_extended(const Extended& e) {
    const u64 count = unpadded_tokens(e.common, e.options);
    pad(e.common, e.options, NoOptions(), count);
    grouped::route<LANES, T>(e.common, e.options, count);
}

// With eight lanes for each token.
#define GROUPED(dtype, T)                                                                        \
    SPEC_KERNEL_BLOCKS(topk_router_grouped_8_extended_##dtype, (grouped_extended<8, T>), Extended, \
                       GROUPED_THREADS, 5)

GROUPED(f32, float)
GROUPED(bf16, bf16)
