// Written by `cargo xtask params` from src/ops/unique_inverse.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What the kernels of `unique` take that look keys up.
struct Params {
    // Keys, [n] of the kernel's type.
    const void* keys;
    // The distinct keys, ascending, [n] of which there are `count`.
    const void* unique;
    // How many distinct keys there are, one number.
    const u64* count;
    // Where each key is among the distinct keys, [n] of the kernel's type.
    void* inverse;
    // Keys.
    u64 n;
    // The sign bit of signed keys, else 0.
    u64 flip;
    // Keys of a segment below each of its buckets, [segments, 2^bits].
    u16* table;
    // The mark of each distinct key, [n], and room for `MARKS_BEHIND` more.
    u8* marks;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 64);
static_assert(SPEC_OFFSET(Params, keys) == 0);
static_assert(SPEC_OFFSET(Params, unique) == 8);
static_assert(SPEC_OFFSET(Params, count) == 16);
static_assert(SPEC_OFFSET(Params, inverse) == 24);
static_assert(SPEC_OFFSET(Params, n) == 32);
static_assert(SPEC_OFFSET(Params, flip) == 40);
static_assert(SPEC_OFFSET(Params, table) == 48);
static_assert(SPEC_OFFSET(Params, marks) == 56);
