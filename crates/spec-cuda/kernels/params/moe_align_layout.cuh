// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block.
enum : u32 { THREADS = 256u };

// The parameters of the kernel `moe_align_layout`.
struct Params {
    // The picks, sorted by local expert, [capacity]; the number of picks stands for no pick.
    const u32* sorted;
    // The local expert of each block of `sorted`, [blocks], -1 for none.
    const u32* block_experts;
    // The number of picks of each local expert, [locals].
    const u32* counts;
    // The start of each local expert's run in `sorted`, and the end of the last run, [locals + 1].
    const u32* offsets;
    // The end of the last run, one number.
    const u32* num_padded;
    // The token of each place, [capacity], -1 for none; or null.
    i32* tokens;
    // The end of the picks in each block, [blocks], 0 after the last run; or null.
    i32* limits;
    // The number of blocks that belong to a run, one number; or null.
    u32* num_blocks;
    // The number of picks of all tokens.
    u32 picks;
    // The number of picks of a token.
    u32 k;
    // The number of local experts.
    u32 locals;
    // The number of places of a block.
    u32 block_size;
    // The number of places of `sorted`.
    u32 capacity;
    // The number of blocks of `sorted`.
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
