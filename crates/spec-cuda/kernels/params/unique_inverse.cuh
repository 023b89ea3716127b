// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block.
enum : u32 { THREADS = 512u };
// Keys that a block looks up in one step.
enum : u32 { TILE = 2048u };
// Blocks per multiprocessor of `unique_inverse`.
enum : u32 { INVERSE_BLOCKS = 2u };
// Neighbouring distinct keys of a thread of `unique_index`. All are in one segment, if there is a
// table.
enum : u32 { RUN = 4u };
// There are at most `2^SPLITTER_BITS` segments.
enum : u32 { SPLITTER_BITS = 12u };
// Segments of at most `2^NO_TABLE` keys are searched without a table.
enum : u32 { NO_TABLE = 2u };
// An entry of a table is at most `2^ENTRY_BITS`.
enum : u32 { ENTRY_BITS = 15u };

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
