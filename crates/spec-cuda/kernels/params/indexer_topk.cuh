// Written by `cargo xtask params` from src/ops/indexer_topk.rs, which a test compares with it.
#pragma once

#include "ids.cuh"

// What the kernels of `indexer_topk` take.
struct Params {
    // Scores, [rows, cols] of f32, or of f16 or bf16.
    Rows<const void> scores;
    // Scores of each row, [rows]; null: all.
    Integers lengths;
    // The first score of each row, [rows]; null: the first of all.
    Integers starts;
    // Positions of the k largest scores, counted from `starts`, then -1, [rows, k].
    IntegerRows indices;
    // One word of flags, or null.
    u32* flags;
    // Scores of a row.
    u32 cols;
    // How many scores are asked for.
    u32 k;
    // Candidates that dynamic shared memory holds, a multiple of 16, and where that is less than a
    // piece, more than k and a tile.
    u32 capacity;
    // By groups: groups whose largest score dynamic shared memory holds, a multiple of 4.
    u32 groups;
    // By groups: how many groups to read again it holds, a multiple of 4.
    u32 listed;
    // By groups: words that it holds of a bit a score, a multiple of 4.
    u32 words;
    // By groups: how many scores that reach the bound it holds, a multiple of 4.
    u32 candidates;
    // 1 where scores of 16 bits are bf16, else 0.
    u32 brain;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 112);
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
static_assert(SPEC_OFFSET(Params, groups) == 92);
static_assert(SPEC_OFFSET(Params, listed) == 96);
static_assert(SPEC_OFFSET(Params, words) == 100);
static_assert(SPEC_OFFSET(Params, candidates) == 104);
static_assert(SPEC_OFFSET(Params, brain) == 108);
