// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// The largest number of threads of a block by digits.
enum : u32 { MAX_THREADS = 1024u };
// By digits: scores of a tile that a thread holds while its scores of the next tile are loaded. The
// two tiles of a block are 64 KB of f32, twice what is needed to hide the latency of memory.
enum : u32 { OF_THREAD = 8u };
// The largest number of threads of a block by a bound. In a task of few instructions, a warp spends
// as much time on finding its part as on working on it, so few warps with many scores each are
// faster.
enum : u32 { BOUND_THREADS = 512u };
// By a bound: scores of a tile that a thread has in registers, one for each bit of a word.
enum : u32 { OF_TILE = 32u };
// By a bound: words of each thread that are in flight to shared memory at any time.
enum : u32 { STAGED_WORDS = 32u };

// The parameters of the kernels of `indexer_topk`.
struct Params {
    // Scores, [rows, cols] of f32, or of f16 or bf16.
    Rows<const void> scores;
    // The number of scores of each row, [rows]; null: all from `starts` on.
    Integers lengths;
    // The column of the first score of each row, [rows]; null: column 0.
    Integers starts;
    // The positions of the k largest scores, counted from `starts`, followed by -1, [rows, k].
    IntegerRows indices;
    // One word of flags, or null.
    u32* flags;
    // The number of columns of `scores`.
    u32 cols;
    // The number of wanted scores of each row.
    u32 k;
    // The number of candidates for which dynamic shared memory has room, a multiple of 16. If there
    // is not room for all scores of a piece, there is room for more than k candidates and a tile.
    u32 capacity;
    // By a bound: the number of words of the bitmap with one bit for each score of a piece, a
    // multiple of 4.
    u32 words;
    // By a bound: the number of scores for which the list of each block has room, a multiple of 4.
    // There is room for more than k scores, or for all scores.
    u32 candidates;
    // 1 if scores of 16 bits are bf16, else 0.
    u32 brain;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 104);
static_assert(SPEC_OFFSET(Params, scores.data) == 0);
static_assert(SPEC_OFFSET(Params, scores.stride) == 8);
static_assert(SPEC_OFFSET(Params, lengths.data) == 16);
static_assert(SPEC_OFFSET(Params, lengths.wide) == 24);
static_assert(SPEC_OFFSET(Params, starts.data) == 32);
static_assert(SPEC_OFFSET(Params, starts.wide) == 40);
static_assert(SPEC_OFFSET(Params, indices.data) == 48);
static_assert(SPEC_OFFSET(Params, indices.stride) == 56);
static_assert(SPEC_OFFSET(Params, indices.wide) == 64);
static_assert(SPEC_OFFSET(Params, flags) == 72);
static_assert(SPEC_OFFSET(Params, cols) == 80);
static_assert(SPEC_OFFSET(Params, k) == 84);
static_assert(SPEC_OFFSET(Params, capacity) == 88);
static_assert(SPEC_OFFSET(Params, words) == 92);
static_assert(SPEC_OFFSET(Params, candidates) == 96);
static_assert(SPEC_OFFSET(Params, brain) == 100);
