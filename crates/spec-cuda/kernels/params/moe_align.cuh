// Written by `cargo xtask params` from src/ops/moe_align.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What the kernels of `moe_align` take.
struct Params {
    // The expert of each pick, [tokens, k].
    Integers ids;
    // Picks from one token's first to the next one's.
    u64 stride;
    // The local expert of each expert, [experts], -1 for none; null: experts are local.
    const i32* map;
    // Picks by local expert, [capacity]; the number of picks stands for none.
    i32* sorted;
    // The local expert of each block of `sorted`, [capacity / block_size], -1 for none.
    i32* block_experts;
    // Picks of each local expert, [locals].
    i32* counts;
    // Where the run of each local expert starts in `sorted`, and the end, [locals + 1].
    i32* offsets;
    // The end of the runs, one number.
    i32* num_padded;
    // Where each pick is in `sorted`, [picks], -1 for nowhere; or null.
    i32* inverse;
    // One word of flags, or null.
    u32* flags;
    // Picks of each local expert in each block, [blocks, pairs], of two launches; in each block,
    // then in all, [blocks + 1, locals], of three launches.
    u32* workspace;
    // Picks of all tokens.
    u32 picks;
    // Picks of a token; 0 where all picks lie one behind the other.
    u32 k;
    // Experts.
    u32 experts;
    // Local experts.
    u32 locals;
    // Places of `sorted` that a run's length is a multiple of.
    u32 block_size;
    // Places of `sorted`.
    u32 capacity;
    // Picks of a thread, at most.
    u32 turns;
    // Blocks that share the picks.
    u32 blocks;
    // Pairs of counts in a row of the workspace, as words of 16 bits each, where no `moe_align_sum`
    // is launched; else 0.
    u32 pairs;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 136);
static_assert(SPEC_OFFSET(Params, ids.data) == 0);
static_assert(SPEC_OFFSET(Params, ids.wide) == 8);
static_assert(SPEC_OFFSET(Params, stride) == 16);
static_assert(SPEC_OFFSET(Params, map) == 24);
static_assert(SPEC_OFFSET(Params, sorted) == 32);
static_assert(SPEC_OFFSET(Params, block_experts) == 40);
static_assert(SPEC_OFFSET(Params, counts) == 48);
static_assert(SPEC_OFFSET(Params, offsets) == 56);
static_assert(SPEC_OFFSET(Params, num_padded) == 64);
static_assert(SPEC_OFFSET(Params, inverse) == 72);
static_assert(SPEC_OFFSET(Params, flags) == 80);
static_assert(SPEC_OFFSET(Params, workspace) == 88);
static_assert(SPEC_OFFSET(Params, picks) == 96);
static_assert(SPEC_OFFSET(Params, k) == 100);
static_assert(SPEC_OFFSET(Params, experts) == 104);
static_assert(SPEC_OFFSET(Params, locals) == 108);
static_assert(SPEC_OFFSET(Params, block_size) == 112);
static_assert(SPEC_OFFSET(Params, capacity) == 116);
static_assert(SPEC_OFFSET(Params, turns) == 120);
static_assert(SPEC_OFFSET(Params, blocks) == 124);
static_assert(SPEC_OFFSET(Params, pairs) == 128);
static_assert(SPEC_OFFSET(Params, reserved) == 132);
