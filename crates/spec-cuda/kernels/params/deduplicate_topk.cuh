// Written by `cargo xtask params` from src/ops/deduplicate_topk.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What the kernels of `deduplicate_topk` take.
struct Params {
    // Values, [batch * rows, cols]; a negative value is padding.
    Rows<const i32> indices;
    // The distinct values of each request in ascending order, then -1, [batch, rows * cols].
    Rows<i32> unique;
    // How many distinct values each request has, [batch], or null.
    i32* counts;
    // Requests.
    u64 batch;
    // Rows of a request that lie apart; 1 where they are packed.
    u32 rows;
    // Values of such a row.
    u32 cols;
    // Words of a window's bitmap, as a power of two.
    u32 log_words;
    u32 reserved;
    // Room for the values of a request for each block, [blocks, rows * cols], or null.
    i32* workspace;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 72);
static_assert(SPEC_OFFSET(Params, indices.data) == 0);
static_assert(SPEC_OFFSET(Params, indices.stride) == 8);
static_assert(SPEC_OFFSET(Params, unique.data) == 16);
static_assert(SPEC_OFFSET(Params, unique.stride) == 24);
static_assert(SPEC_OFFSET(Params, counts) == 32);
static_assert(SPEC_OFFSET(Params, batch) == 40);
static_assert(SPEC_OFFSET(Params, rows) == 48);
static_assert(SPEC_OFFSET(Params, cols) == 52);
static_assert(SPEC_OFFSET(Params, log_words) == 56);
static_assert(SPEC_OFFSET(Params, reserved) == 60);
static_assert(SPEC_OFFSET(Params, workspace) == 64);
