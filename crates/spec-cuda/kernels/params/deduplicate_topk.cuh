// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block.
enum : u32 { THREADS = 1024u };
// Words of shared memory before the staging area: bits of values, and counts.
enum : u32 { BIT_WORDS = 16384u };

// The parameters of the kernels of `deduplicate_topk`.
struct Params {
    // Values, [batch * rows, cols]; a negative value is padding.
    Rows<const i32> indices;
    // The distinct values of each request in ascending order, followed by -1, [batch, rows * cols].
    Rows<i32> unique;
    // The number of distinct values of each request, [batch], or null.
    i32* counts;
    // The number of requests.
    u64 batch;
    // The number of separate rows of a request; 1 if they are contiguous.
    u32 rows;
    // The number of values of a row.
    u32 cols;
    // The base-2 logarithm of the number of words of a window's bitmap.
    u32 log_words;
    u32 reserved;
    // Room for the values of a request for each block, [blocks, rows * cols], or null.
    i32* workspace;
    // The place of each value among the distinct values of its request, [batch * rows, cols], or
    // null.
    Rows<i32> inverse;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 88);
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
static_assert(SPEC_OFFSET(Params, inverse.data) == 72);
static_assert(SPEC_OFFSET(Params, inverse.stride) == 80);
