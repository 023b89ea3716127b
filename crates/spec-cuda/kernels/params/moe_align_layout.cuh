// Written by `cargo xtask params` from src/ops/moe_align_layout.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What the kernel of `moe_align` takes that says more of the layout.
struct Params {
    // Picks by local expert, [capacity]; the number of picks stands for none.
    const u32* sorted;
    // The local expert of each block of `sorted`, [blocks], -1 for none.
    const u32* block_experts;
    // Picks of each local expert, [locals].
    const u32* counts;
    // Where the run of each local expert starts in `sorted`, and the end, [locals + 1].
    const u32* offsets;
    // The end of the runs, one number.
    const u32* num_padded;
    // The token of each place, [capacity], -1 for none; or null.
    i32* tokens;
    // Where the picks of each block end, [blocks], 0 behind the last; or null.
    i32* limits;
    // Blocks that belong to a run, one number; or null.
    u32* num_blocks;
    // Picks of all tokens.
    u32 picks;
    // Picks of a token.
    u32 k;
    // Local experts.
    u32 locals;
    // Places of a block.
    u32 block_size;
    // Places of `sorted`.
    u32 capacity;
    // Blocks of `sorted`.
    u32 blocks;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 88);
static_assert(SPEC_OFFSET(Params, sorted) == 0);
static_assert(SPEC_OFFSET(Params, block_experts) == 8);
static_assert(SPEC_OFFSET(Params, counts) == 16);
static_assert(SPEC_OFFSET(Params, offsets) == 24);
static_assert(SPEC_OFFSET(Params, num_padded) == 32);
static_assert(SPEC_OFFSET(Params, tokens) == 40);
static_assert(SPEC_OFFSET(Params, limits) == 48);
static_assert(SPEC_OFFSET(Params, num_blocks) == 56);
static_assert(SPEC_OFFSET(Params, picks) == 64);
static_assert(SPEC_OFFSET(Params, k) == 68);
static_assert(SPEC_OFFSET(Params, locals) == 72);
static_assert(SPEC_OFFSET(Params, block_size) == 76);
static_assert(SPEC_OFFSET(Params, capacity) == 80);
static_assert(SPEC_OFFSET(Params, blocks) == 84);
