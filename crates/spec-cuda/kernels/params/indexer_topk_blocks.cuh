// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// Threads of a block.
enum : u32 { THREADS = 256u };
// Vectors of 16 bytes that a thread pools.
enum : u32 { VECTORS = 8u };

// The parameters of the kernels that run before a row is chosen from. `T` is the type of the
// scores.
template <typename T>
struct Blocks {
    // Scores, [rows, cols].
    Rows<const T> scores;
    // The number of scores, or of positions, of each row, [rows]; null: all.
    Integers lengths;
    // The column of the first score of each row, [rows]; null: column 0.
    Integers starts;
    // Candidates, [rows, c], or null.
    Rows<const i32> candidates;
    // The starts and the lengths of the rows to choose from, without the blocks that are always
    // chosen, and the numbers of blocks or of covered columns, [3, rows].
    u32* notes;
    // The scores of blocks or of covered columns, [rows, width], or null.
    float* pooled;
    // The positions of covered columns, [rows, width], or null.
    i32* positions;
    // One word of flags, or null.
    u32* flags;
    // The number of rows.
    u32 rows;
    // The number of columns of `scores`.
    u32 cols;
    // The number of scores from one row of `pooled` to the next.
    u32 width;
    // The number of thread blocks for each row.
    u32 parts;
    // The number of scores of a block.
    u32 pool;
    // How many of the first blocks are always chosen.
    u32 forced_first;
    // How many of the last blocks are always chosen.
    u32 forced_last;
    // The number of candidates of a row.
    u32 c;
    // The number of positions of a candidate.
    u32 block;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Blocks<float>) == 136);
static_assert(SPEC_OFFSET(Blocks<float>, scores.data) == 0);
static_assert(SPEC_OFFSET(Blocks<float>, scores.stride) == 8);
static_assert(SPEC_OFFSET(Blocks<float>, lengths.data) == 16);
static_assert(SPEC_OFFSET(Blocks<float>, lengths.wide) == 24);
static_assert(SPEC_OFFSET(Blocks<float>, starts.data) == 32);
static_assert(SPEC_OFFSET(Blocks<float>, starts.wide) == 40);
static_assert(SPEC_OFFSET(Blocks<float>, candidates.data) == 48);
static_assert(SPEC_OFFSET(Blocks<float>, candidates.stride) == 56);
static_assert(SPEC_OFFSET(Blocks<float>, notes) == 64);
static_assert(SPEC_OFFSET(Blocks<float>, pooled) == 72);
static_assert(SPEC_OFFSET(Blocks<float>, positions) == 80);
static_assert(SPEC_OFFSET(Blocks<float>, flags) == 88);
static_assert(SPEC_OFFSET(Blocks<float>, rows) == 96);
static_assert(SPEC_OFFSET(Blocks<float>, cols) == 100);
static_assert(SPEC_OFFSET(Blocks<float>, width) == 104);
static_assert(SPEC_OFFSET(Blocks<float>, parts) == 108);
static_assert(SPEC_OFFSET(Blocks<float>, pool) == 112);
static_assert(SPEC_OFFSET(Blocks<float>, forced_first) == 116);
static_assert(SPEC_OFFSET(Blocks<float>, forced_last) == 120);
static_assert(SPEC_OFFSET(Blocks<float>, c) == 124);
static_assert(SPEC_OFFSET(Blocks<float>, block) == 128);
static_assert(SPEC_OFFSET(Blocks<float>, reserved) == 132);
