// Written by `cargo xtask params` from src/ops/unique_inverse.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// The parameters of the kernels of `unique` that look up keys.
struct Params {
    // Keys, [n] of the kernel's type.
    const void* keys;
    // The distinct keys in ascending order; the first `count` of [n].
    const void* unique;
    // The number of distinct keys, one number.
    const u64* count;
    // The index of each key among the distinct keys, [n] of the kernel's type.
    void* inverse;
    // The number of keys.
    u64 n;
    // The sign bit of signed keys, else 0.
    u64 flip;
    // The number of keys of a segment below each of its buckets, [segments, 2^bits].
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
