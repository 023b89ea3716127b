// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// The largest number of threads of a block.
enum : u32 { GATHER_THREADS = 256u };

// The parameters of the kernels that gather values and slots. `T` is the type of the scores.
template <typename T>
struct Gather {
    // Scores, [rows, cols].
    Rows<const T> scores;
    // The column of the first score of each row, [rows]; null: column 0.
    Integers starts;
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
    // The number of thread blocks for each row.
    u32 parts;
    // The number of tables.
    u32 tables;
    // The number of cache blocks of a table.
    u32 blocks;
    // The number of positions in a cache block.
    u32 block_size;
    // To finish: what the first kernel noted of each row, [3, rows]; see `Blocks`.
    const u32* notes;
    // To finish: the position of each score, in rows as those of `scores`; null: the index of the
    // score.
    const i32* positions;
    // To finish: the number of rows.
    u32 rows;
    // To finish: how many of the first blocks are always chosen.
    u32 forced_first;
    // To finish: how many of the last blocks are always chosen.
    u32 forced_last;
    // To finish: how many of the other blocks are chosen, if there are enough.
    u32 room;
};
// In bytes, as the host has them.
static_assert(sizeof(Gather<float>) == 176);
static_assert(SPEC_OFFSET(Gather<float>, scores.data) == 0);
static_assert(SPEC_OFFSET(Gather<float>, scores.stride) == 8);
static_assert(SPEC_OFFSET(Gather<float>, starts.data) == 16);
static_assert(SPEC_OFFSET(Gather<float>, starts.wide) == 24);
static_assert(SPEC_OFFSET(Gather<float>, indices.data) == 32);
static_assert(SPEC_OFFSET(Gather<float>, indices.stride) == 40);
static_assert(SPEC_OFFSET(Gather<float>, indices.wide) == 48);
static_assert(SPEC_OFFSET(Gather<float>, values.data) == 56);
static_assert(SPEC_OFFSET(Gather<float>, values.stride) == 64);
static_assert(SPEC_OFFSET(Gather<float>, slots.data) == 72);
static_assert(SPEC_OFFSET(Gather<float>, slots.stride) == 80);
static_assert(SPEC_OFFSET(Gather<float>, block_table.data) == 88);
static_assert(SPEC_OFFSET(Gather<float>, block_table.stride) == 96);
static_assert(SPEC_OFFSET(Gather<float>, requests) == 104);
static_assert(SPEC_OFFSET(Gather<float>, flags) == 112);
static_assert(SPEC_OFFSET(Gather<float>, cols) == 120);
static_assert(SPEC_OFFSET(Gather<float>, k) == 124);
static_assert(SPEC_OFFSET(Gather<float>, parts) == 128);
static_assert(SPEC_OFFSET(Gather<float>, tables) == 132);
static_assert(SPEC_OFFSET(Gather<float>, blocks) == 136);
static_assert(SPEC_OFFSET(Gather<float>, block_size) == 140);
static_assert(SPEC_OFFSET(Gather<float>, notes) == 144);
static_assert(SPEC_OFFSET(Gather<float>, positions) == 152);
static_assert(SPEC_OFFSET(Gather<float>, rows) == 160);
static_assert(SPEC_OFFSET(Gather<float>, forced_first) == 164);
static_assert(SPEC_OFFSET(Gather<float>, forced_last) == 168);
static_assert(SPEC_OFFSET(Gather<float>, room) == 172);
