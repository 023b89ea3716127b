// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// The smallest and the largest number of threads of a block.
enum : u32 { MIN_THREADS = 256u };
enum : u32 { MAX_THREADS = 1024u };
// The largest number of columns of a row: 16 for each thread.
enum : u32 { MAX_COLS = 16384u };

// The parameters of the kernels that keep the keys of a row in registers. `T` is the type of the
// scores.
template <typename T>
struct WholeRows {
    // Scores, [rows, cols].
    Rows<const T> scores;
    // The number of scores, or of positions, of each row, [rows]; null: all.
    Integers lengths;
    // The column of the first score of each row, [rows]; null: column 0.
    Integers starts;
    // Candidates, [rows, cols / block], or null.
    Rows<const i32> candidates;
    // The chosen positions, counted from `starts`, followed by -1, [rows, k].
    IntegerRows indices;
    // The scores at the chosen positions, [rows, k], or null.
    Rows<float> values;
    // The slots of the chosen positions, [rows, k], or null.
    Rows<i32> slots;
    // The cache blocks of each request, [tables, blocks].
    Rows<const i32> block_table;
    // The request of each row, which is the number of its table, [rows]; null: row i has table i.
    const i32* requests;
    // One word of flags, or null.
    u32* flags;
    // The number of columns of `scores`.
    u32 cols;
    // The number of positions of a row.
    u32 k;
    // How many of the first positions are always chosen.
    u32 forced_first;
    // How many of the last positions are always chosen.
    u32 forced_last;
    // The number of positions of a candidate.
    u32 block;
    // 2^31 divided by the number of positions of a candidate, rounded up.
    u32 per_block;
    // The last candidate whose positions an i32 holds.
    u32 last_candidate;
    // The number of tables.
    u32 tables;
    // The number of cache blocks of a table.
    u32 blocks;
    // The number of positions in a cache block.
    u32 block_size;
};
// In bytes, as the host has them.
static_assert(sizeof(WholeRows<float>) == 192);
static_assert(SPEC_OFFSET(WholeRows<float>, scores.data) == 0);
static_assert(SPEC_OFFSET(WholeRows<float>, scores.stride) == 8);
static_assert(SPEC_OFFSET(WholeRows<float>, lengths.data) == 16);
static_assert(SPEC_OFFSET(WholeRows<float>, lengths.wide) == 24);
static_assert(SPEC_OFFSET(WholeRows<float>, starts.data) == 32);
static_assert(SPEC_OFFSET(WholeRows<float>, starts.wide) == 40);
static_assert(SPEC_OFFSET(WholeRows<float>, candidates.data) == 48);
static_assert(SPEC_OFFSET(WholeRows<float>, candidates.stride) == 56);
static_assert(SPEC_OFFSET(WholeRows<float>, indices.data) == 64);
static_assert(SPEC_OFFSET(WholeRows<float>, indices.stride) == 72);
static_assert(SPEC_OFFSET(WholeRows<float>, indices.wide) == 80);
static_assert(SPEC_OFFSET(WholeRows<float>, values.data) == 88);
static_assert(SPEC_OFFSET(WholeRows<float>, values.stride) == 96);
static_assert(SPEC_OFFSET(WholeRows<float>, slots.data) == 104);
static_assert(SPEC_OFFSET(WholeRows<float>, slots.stride) == 112);
static_assert(SPEC_OFFSET(WholeRows<float>, block_table.data) == 120);
static_assert(SPEC_OFFSET(WholeRows<float>, block_table.stride) == 128);
static_assert(SPEC_OFFSET(WholeRows<float>, requests) == 136);
static_assert(SPEC_OFFSET(WholeRows<float>, flags) == 144);
static_assert(SPEC_OFFSET(WholeRows<float>, cols) == 152);
static_assert(SPEC_OFFSET(WholeRows<float>, k) == 156);
static_assert(SPEC_OFFSET(WholeRows<float>, forced_first) == 160);
static_assert(SPEC_OFFSET(WholeRows<float>, forced_last) == 164);
static_assert(SPEC_OFFSET(WholeRows<float>, block) == 168);
static_assert(SPEC_OFFSET(WholeRows<float>, per_block) == 172);
static_assert(SPEC_OFFSET(WholeRows<float>, last_candidate) == 176);
static_assert(SPEC_OFFSET(WholeRows<float>, tables) == 180);
static_assert(SPEC_OFFSET(WholeRows<float>, blocks) == 184);
static_assert(SPEC_OFFSET(WholeRows<float>, block_size) == 188);
