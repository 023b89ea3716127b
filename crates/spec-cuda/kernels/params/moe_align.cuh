// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// The largest number of threads of a block.
enum : u32 { MAX_THREADS = 1024u };

// The parameters of the kernels of `moe_align`.
struct Params {
    // The expert of each pick, [tokens, k].
    Integers ids;
    // The distance between the first picks of neighbouring tokens.
    u64 stride;
    // The local expert of each expert, [experts], -1 for none; null: all experts are local.
    const i32* map;
    // The picks, sorted by local expert, [capacity]; the number of picks stands for no pick.
    i32* sorted;
    // The local expert of each block of `sorted`, [capacity / block_size], -1 for none.
    i32* block_experts;
    // The number of picks of each local expert, [locals].
    i32* counts;
    // The start of each local expert's run in `sorted`, and the end of the last run, [locals + 1].
    i32* offsets;
    // The end of the last run, one number.
    i32* num_padded;
    // The index of each pick in `sorted`, [picks], -1 for none; or null.
    i32* inverse;
    // One word of flags, or null.
    u32* flags;
    // With two launches, the picks of each local expert in each block, [blocks, pairs]; with three
    // launches, the picks of each local expert in each block, then in all blocks, [blocks + 1,
    // locals].
    u32* workspace;
    // The number of picks of all tokens.
    u32 picks;
    // The number of picks of a token; 0 if all picks are contiguous.
    u32 k;
    // The number of experts.
    u32 experts;
    // The number of local experts.
    u32 locals;
    // The length of a run is a multiple of this number.
    u32 block_size;
    // The number of places of `sorted`.
    u32 capacity;
    // The largest number of picks of a thread.
    u32 steps;
    // The number of blocks that divide the picks.
    u32 blocks;
    // The number of pairs of 16-bit counts in a row of the workspace, if `moe_align_sum` is not
    // launched; else 0.
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
static_assert(SPEC_OFFSET(Params, steps) == 120);
static_assert(SPEC_OFFSET(Params, blocks) == 124);
static_assert(SPEC_OFFSET(Params, pairs) == 128);
static_assert(SPEC_OFFSET(Params, reserved) == 132);
