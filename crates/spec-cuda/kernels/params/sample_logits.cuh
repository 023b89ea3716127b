// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// Blocks that fit a multiprocessor, of the kernels in which one block ends a row.
enum : u32 { SHARING = 2u };
// Tokens of the largest vocabulary that a kernel takes whose rows no filter cuts.
enum : u32 { MAX_PLAIN = 262144u };
// The largest number of likeliest tokens that a row reports.
enum : u32 { MAX_TOP = 256u };
// The largest number of tokens that a row draws in the kernel that also reports them.
enum : u32 { MAX_REPORTED_DRAWS = 16u };

// The parameters of the kernels of `sample_logits` that draw tokens. `T` is the type of the logits.
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
    // The number of tokens that top-k keeps, [requests]; 0 and below, or null: all tokens.
    const i32* top_k;
    // The share of the probability that top-p keeps, [requests]; 1 and above, or null: all of it.
    const float* top_p;
    // The least weight that min-p keeps, as a share of the row's largest weight, [requests]; 0 and
    // below, or null: all tokens are kept.
    const float* min_p;
    // The request of each row, [rows], -1 for padding; null: row i belongs to request i.
    Integers of_rows;
    // One bit for each token, 1 if it is allowed, [rows, ceil(vocab / 32)]; null: all are allowed.
    Rows<const u32> mask;
    // The tokens that each row draws, in the order in which they finish, [rows, draws].
    IntegerRows tokens;
    // The distribution that the tokens were drawn from, [rows, vocab], or null.
    Rows<float> probs;
    // The logarithm of the probability with which each token was drawn, [rows, draws], or null.
    Rows<float> processed_logprobs;
    // The tokens that race, [rows, kept], or null.
    Rows<i32> kept_tokens;
    // How many tokens race, [rows], or null.
    i32* kept_counts;
    // One word of flags, or null.
    u32* flags;
    // The flags of each row, [rows], zeroed before the launch; or null.
    u32* row_flags;
    // The number of requests.
    u64 requests;
    // The number of tokens in the vocabulary.
    u32 vocab;
    // The number of tokens that a row draws.
    u32 draws;
    // 1 if min-p filters before top-k and top-p, else 0.
    u32 min_p_first;
    // The number of kept tokens that a row lists.
    u32 kept;
};
// In bytes, as the host has them.
static_assert(sizeof(Params<float>) == 224);
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
static_assert(SPEC_OFFSET(Params<float>, kept_tokens.data) == 160);
static_assert(SPEC_OFFSET(Params<float>, kept_tokens.stride) == 168);
static_assert(SPEC_OFFSET(Params<float>, kept_counts) == 176);
static_assert(SPEC_OFFSET(Params<float>, flags) == 184);
static_assert(SPEC_OFFSET(Params<float>, row_flags) == 192);
static_assert(SPEC_OFFSET(Params<float>, requests) == 200);
static_assert(SPEC_OFFSET(Params<float>, vocab) == 208);
static_assert(SPEC_OFFSET(Params<float>, draws) == 212);
static_assert(SPEC_OFFSET(Params<float>, min_p_first) == 216);
static_assert(SPEC_OFFSET(Params<float>, kept) == 220);

// The parameters of the kernels that report the drawn tokens. `T` is the type of the logits.
template <typename T>
struct Report {
    // Logits, [rows, vocab].
    Rows<const T> logits;
    // The drawn tokens of each row, [rows, draws], -1 for no token.
    IntegerRows tokens;
    // The request of each row, [rows], -1 for padding; null: row i belongs to request i.
    Integers of_rows;
    // The log-probability of each token, [rows, draws], or null.
    Rows<float> logprobs;
    // The rank of each token: the number of logits at least as large, [rows, draws], or null.
    Rows<i32> ranks;
    // The most likely tokens of each row, [rows, top], or null.
    Rows<i32> top_tokens;
    // The log-probabilities of `top_tokens`, [rows, top], or null.
    Rows<float> top_logprobs;
    // The number of tokens in the vocabulary.
    u32 vocab;
    // The number of tokens that a row draws.
    u32 draws;
    // The number of most likely tokens to report for each row.
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

// The parameters of the kernels that draw tokens and report them. `T` is the type of the logits.
template <typename T>
struct DrawAndReport {
    // The parameters for drawing.
    Params<T> drawing;
    // The parameters for the report.
    Report<T> report;
};
// In bytes, as the host has them.
static_assert(sizeof(DrawAndReport<float>) == 360);
static_assert(SPEC_OFFSET(DrawAndReport<float>, drawing) == 0);
static_assert(SPEC_OFFSET(DrawAndReport<float>, report) == 224);
