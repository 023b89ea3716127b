// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// The largest number of threads of a block.
enum : u32 { MAX_THREADS = 256u };
// Threads of a block that follows a chain: one warp, which looks at 32 nodes at a time.
enum : u32 { CHAIN_THREADS = 32u };
// Bytes of shared memory per node.
enum : u32 { NODE = 16u };

// The parameters of the kernels of `tree_verify`.
struct Params {
    // The draft token of each node, [batch, nodes]; [rows] if `packed_draft`.
    IntegerRows draft;
    // The token that the target model chose after each node, [batch, nodes]; [rows] if there are
    // `row_offsets`.
    IntegerRows target;
    // The first child of each node, [batch, nodes], -1 for none. Null for chains.
    IntegerRows first_child;
    // The next sibling of each node, [batch, nodes], -1 for none. Null for chains.
    IntegerRows next_sibling;
    // The first row of each request, followed by the end, [batch + 1], or null.
    Integers row_offsets;
    // The tokens that each request emits, followed by -1, [batch, max_depth + 1].
    IntegerRows tokens;
    // The nodes of the accepted path from the root on, followed by -1, [batch, max_depth + 1].
    IntegerRows path;
    // The number of tokens that each request emits, [batch].
    i32* num_tokens;
    // One word of flags, or null.
    u32* flags;
    // The number of requests.
    u64 batch;
    // The number of packed rows.
    u64 rows;
    // The number of nodes of a tree, including the root; the largest u32 if draft tokens are
    // packed.
    u32 nodes;
    // The largest number of drafts on a path.
    u32 max_depth;
    // 1 if draft tokens are packed, else 0.
    u32 packed_draft;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 208);
static_assert(SPEC_OFFSET(Params, draft.data) == 0);
static_assert(SPEC_OFFSET(Params, draft.stride) == 8);
static_assert(SPEC_OFFSET(Params, draft.wide) == 16);
static_assert(SPEC_OFFSET(Params, target.data) == 24);
static_assert(SPEC_OFFSET(Params, target.stride) == 32);
static_assert(SPEC_OFFSET(Params, target.wide) == 40);
static_assert(SPEC_OFFSET(Params, first_child.data) == 48);
static_assert(SPEC_OFFSET(Params, first_child.stride) == 56);
static_assert(SPEC_OFFSET(Params, first_child.wide) == 64);
static_assert(SPEC_OFFSET(Params, next_sibling.data) == 72);
static_assert(SPEC_OFFSET(Params, next_sibling.stride) == 80);
static_assert(SPEC_OFFSET(Params, next_sibling.wide) == 88);
static_assert(SPEC_OFFSET(Params, row_offsets.data) == 96);
static_assert(SPEC_OFFSET(Params, row_offsets.wide) == 104);
static_assert(SPEC_OFFSET(Params, tokens.data) == 112);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 120);
static_assert(SPEC_OFFSET(Params, tokens.wide) == 128);
static_assert(SPEC_OFFSET(Params, path.data) == 136);
static_assert(SPEC_OFFSET(Params, path.stride) == 144);
static_assert(SPEC_OFFSET(Params, path.wide) == 152);
static_assert(SPEC_OFFSET(Params, num_tokens) == 160);
static_assert(SPEC_OFFSET(Params, flags) == 168);
static_assert(SPEC_OFFSET(Params, batch) == 176);
static_assert(SPEC_OFFSET(Params, rows) == 184);
static_assert(SPEC_OFFSET(Params, nodes) == 192);
static_assert(SPEC_OFFSET(Params, max_depth) == 196);
static_assert(SPEC_OFFSET(Params, packed_draft) == 200);
static_assert(SPEC_OFFSET(Params, reserved) == 204);
