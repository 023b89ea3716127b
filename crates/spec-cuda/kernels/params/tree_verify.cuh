// Written by `cargo xtask params` from src/ops/tree_verify.rs, which a test compares with it.
#pragma once

#include "ids.cuh"

// What the kernels of `tree_verify` take.
struct Params {
    // The drafted token of each node, [batch, nodes].
    IntegerRows draft;
    // The token that the target model chose after each node, [batch, nodes].
    IntegerRows target;
    // The first child of each node, [batch, nodes], -1 for none.
    IntegerRows first_child;
    // The next sibling of each node, [batch, nodes], -1 for none.
    IntegerRows next_sibling;
    // Tokens that each request emits, then -1, [batch, max_depth + 1].
    IntegerRows tokens;
    // The nodes of the accepted path from the root on, then -1, [batch, max_depth + 1].
    IntegerRows path;
    // How many tokens each request emits, [batch].
    i32* num_tokens;
    // One word of flags, or null.
    u32* flags;
    // Requests.
    u64 batch;
    // Nodes of a tree, its root included.
    u32 nodes;
    // The most drafts on a path.
    u32 max_depth;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 176);
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
static_assert(SPEC_OFFSET(Params, tokens.data) == 96);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 104);
static_assert(SPEC_OFFSET(Params, tokens.wide) == 112);
static_assert(SPEC_OFFSET(Params, path.data) == 120);
static_assert(SPEC_OFFSET(Params, path.stride) == 128);
static_assert(SPEC_OFFSET(Params, path.wide) == 136);
static_assert(SPEC_OFFSET(Params, num_tokens) == 144);
static_assert(SPEC_OFFSET(Params, flags) == 152);
static_assert(SPEC_OFFSET(Params, batch) == 160);
static_assert(SPEC_OFFSET(Params, nodes) == 168);
static_assert(SPEC_OFFSET(Params, max_depth) == 172);
