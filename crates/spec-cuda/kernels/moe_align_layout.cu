// moe_align: the token of each place and the end of the picks in each block, in the form that the
// grouped products of TensorRT-LLM and FlashInfer take. Runs after the kernels of moe_align.cu, on
// their results, and only if one of these outputs is wanted.
//
// A thread for each place of `sorted`; the first threads also have a block each.
//
// Bytes: 4 read and 4 written for each place, 8 read and 4 written for each block.
#include "common.cuh"
#include "params/moe_align_layout.cuh"

INLINE void lay_out(const Params& p) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at == 0 && p.num_blocks != nullptr) *p.num_blocks = *p.num_padded / p.block_size;
    if (at < p.capacity && p.tokens != nullptr) {
        const u32 pick = p.sorted[at];
        // If a place has a pick, there are picks, so k is not 0.
        p.tokens[at] = pick < p.picks ? static_cast<i32>(pick / p.k) : -1;
    }
    if (at < p.blocks && p.limits != nullptr) {
        const u32 expert = p.block_experts[at];
        u32 limit = 0;
        if (expert < p.locals) {
            limit = min((at + 1) * p.block_size, p.offsets[expert] + p.counts[expert]);
        }
        p.limits[at] = static_cast<i32>(limit);
    }
}

SPEC_KERNEL(moe_align_layout, lay_out, Params, THREADS)
