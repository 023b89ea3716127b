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
    // The request of each row, [rows], -1 for padding; null: each row is a request.
    Integers of_rows;
    // A bit for each token that is allowed, [rows, ceil(vocab / 32)]; null: all are.
    Rows<const u32> mask;
    // The tokens of each row in the order in which they finish, [rows, draws].
    IntegerRows tokens;
    // Probabilities that the tokens were drawn from, [rows, vocab], or null.
    Rows<float> probs;
    // The logarithm of each token's share of them, [rows, draws], or null.
    Rows<float> processed_logprobs;
    // One word of flags, or null.
    u32* flags;
    // The flags of each row, [rows], which are 0 before the launch; or null.
    u32* row_flags;
    // Requests.
    u64 requests;
    // Tokens of the vocabulary.
    u32 vocab;
    // Tokens that a row draws.
    u32 draws;
    // 1 where min-p filters before top-k and top-p, else 0.
    u32 min_p_first;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params<float>) == 200);
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
static_assert(SPEC_OFFSET(Params<float>, processed_logprobs.data) == 144);
static_assert(SPEC_OFFSET(Params<float>, processed_logprobs.stride) == 152);
static_assert(SPEC_OFFSET(Params<float>, flags) == 160);
static_assert(SPEC_OFFSET(Params<float>, row_flags) == 168);
static_assert(SPEC_OFFSET(Params<float>, requests) == 176);
static_assert(SPEC_OFFSET(Params<float>, vocab) == 184);
static_assert(SPEC_OFFSET(Params<float>, draws) == 188);
static_assert(SPEC_OFFSET(Params<float>, min_p_first) == 192);
static_assert(SPEC_OFFSET(Params<float>, reserved) == 196);

// What the kernels take that report of the tokens drawn. `T` is the type of the logits.
template <typename T>
struct Report {
    // Logits, [rows, vocab].
    Rows<const T> logits;
    // The tokens of each row, [rows, draws], -1 for none.
    IntegerRows tokens;
    // The request of each row, [rows], -1 for padding; null: each row is a request.
    Integers of_rows;
    // The log-probability of each token, [rows, draws], or null.
    Rows<float> logprobs;
    // How many logits are as large as each token's, [rows, draws], or null.
    Rows<i32> ranks;
    // The likeliest tokens, [rows, top], or null.
    Rows<i32> top_tokens;
    // Their log-probabilities, [rows, top], or null.
    Rows<float> top_logprobs;
    // Tokens of the vocabulary.
    u32 vocab;
    // Tokens that a row draws.
    u32 draws;
    // How many of the likeliest tokens are reported.
    u32 top;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Report<float>) == 136);
static_assert(SPEC_OFFSET(Report<float>, logits.data) == 0);
static_assert(SPEC_OFFSET(Report<float>, logits.stride) == 8);
static_assert(SPEC_OFFSET(Report<float>, tokens.data) == 16);
static_assert(SPEC_OFFSET(Report<float>, tokens.stride) == 24);
static_assert(SPEC_OFFSET(Report<float>, tokens.wide) == 32);
static_assert(SPEC_OFFSET(Report<float>, of_rows.data) == 40);
static_assert(SPEC_OFFSET(Report<float>, of_rows.wide) == 48);
static_assert(SPEC_OFFSET(Report<float>, logprobs.data) == 56);
static_assert(SPEC_OFFSET(Report<float>, logprobs.stride) == 64);
static_assert(SPEC_OFFSET(Report<float>, ranks.data) == 72);
static_assert(SPEC_OFFSET(Report<float>, ranks.stride) == 80);
static_assert(SPEC_OFFSET(Report<float>, top_tokens.data) == 88);
static_assert(SPEC_OFFSET(Report<float>, top_tokens.stride) == 96);
static_assert(SPEC_OFFSET(Report<float>, top_logprobs.data) == 104);
static_assert(SPEC_OFFSET(Report<float>, top_logprobs.stride) == 112);
static_assert(SPEC_OFFSET(Report<float>, vocab) == 120);
static_assert(SPEC_OFFSET(Report<float>, draws) == 124);
static_assert(SPEC_OFFSET(Report<float>, top) == 128);
static_assert(SPEC_OFFSET(Report<float>, reserved) == 132);

// What the kernels take that draw tokens and report of them. `T` is the type of the logits.
template <typename T>
struct Told {
    // How tokens are drawn.
    Params<T> drawing;
    // What is reported of them.
    Report<T> report;
};
// In bytes, as the host has them.
static_assert(sizeof(Told<float>) == 336);
static_assert(SPEC_OFFSET(Told<float>, drawing) == 0);
static_assert(SPEC_OFFSET(Told<float>, report) == 200);
