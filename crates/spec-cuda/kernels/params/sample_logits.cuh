// Written by `cargo xtask params` from src/ops/sample_logits.rs, which a test compares with it.
#pragma once

#include "ids.cuh"

// What the kernels of `sample_logits` take. `T` is the type of the logits.
template <typename T>
struct Params {
    // Logits, [rows, vocab].
    Rows<const T> logits;
    // The position of each row's token in its text, in tokens, [rows].
    Integers positions;
    // Temperatures, [requests].
    const float* temperature;
    // Seeds, [requests].
    const u64* seeds;
    // How many tokens top-k keeps, [requests]; 0 and below, or null: all.
    const i32* top_k;
    // Which share of the probability top-p keeps, [requests]; 1 and above, or null: all.
    const float* top_p;
    // The least weight that min-p keeps, as a share of the largest, [requests]; 0 and below, or
    // null: all.
    const float* min_p;
    // The request of each row, [rows]; null: each row is a request.
    Integers of_rows;
    // A bit for each token that is allowed, [rows, ceil(vocab / 32)]; null: all are.
    Rows<const u32> mask;
    // The token of each row, [rows, 1].
    IntegerRows tokens;
    // Probabilities that the token was drawn from, [rows, vocab], or null.
    Rows<float> probs;
    // The log-probability of each row's token, [rows], or null.
    float* logprobs;
    // One word of flags, or null.
    u32* flags;
    // Requests.
    u64 requests;
    // Tokens of the vocabulary.
    u32 vocab;
    // 1 where min-p filters before top-k and top-p, else 0.
    u32 min_p_first;
    // 1 where a block keeps its pieces of the row in shared memory, else 0.
    u32 cached;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params<float>) == 184);
static_assert(SPEC_OFFSET(Params<float>, logits.data) == 0);
static_assert(SPEC_OFFSET(Params<float>, logits.stride) == 8);
static_assert(SPEC_OFFSET(Params<float>, positions.data) == 16);
static_assert(SPEC_OFFSET(Params<float>, positions.wide) == 24);
static_assert(SPEC_OFFSET(Params<float>, temperature) == 32);
static_assert(SPEC_OFFSET(Params<float>, seeds) == 40);
static_assert(SPEC_OFFSET(Params<float>, top_k) == 48);
static_assert(SPEC_OFFSET(Params<float>, top_p) == 56);
static_assert(SPEC_OFFSET(Params<float>, min_p) == 64);
static_assert(SPEC_OFFSET(Params<float>, of_rows.data) == 72);
static_assert(SPEC_OFFSET(Params<float>, of_rows.wide) == 80);
static_assert(SPEC_OFFSET(Params<float>, mask.data) == 88);
static_assert(SPEC_OFFSET(Params<float>, mask.stride) == 96);
static_assert(SPEC_OFFSET(Params<float>, tokens.data) == 104);
static_assert(SPEC_OFFSET(Params<float>, tokens.stride) == 112);
static_assert(SPEC_OFFSET(Params<float>, tokens.wide) == 120);
static_assert(SPEC_OFFSET(Params<float>, probs.data) == 128);
static_assert(SPEC_OFFSET(Params<float>, probs.stride) == 136);
static_assert(SPEC_OFFSET(Params<float>, logprobs) == 144);
static_assert(SPEC_OFFSET(Params<float>, flags) == 152);
static_assert(SPEC_OFFSET(Params<float>, requests) == 160);
static_assert(SPEC_OFFSET(Params<float>, vocab) == 168);
static_assert(SPEC_OFFSET(Params<float>, min_p_first) == 172);
static_assert(SPEC_OFFSET(Params<float>, cached) == 176);
static_assert(SPEC_OFFSET(Params<float>, reserved) == 180);
