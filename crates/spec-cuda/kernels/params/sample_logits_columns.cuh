// Written by `cargo xtask params` from src/ops/sample_logits_columns.rs, which a test compares with it.
#pragma once

#include "params/sample_logits.cuh"

// The parameters of the kernels of rows by columns. `T` is the type of the logits.
template <typename T>
struct Columns {
    // The parameters for drawing.
    Params<T> drawing;
    // The parameters for the report.
    Report<T> report;
    // The token of each column, [rows, vocab], -1 for none; a stride of 0: those of all rows; null:
    // column c stands for token first_token + c.
    IntegerRows token_ids;
    // The largest logit of each row over all ranks, [rows], or null.
    const float* maxima;
    // The token that each row takes instead of a drawn one, [rows], -1 for none; or null.
    const i32* forced;
    // The place of each row's token and the token, [rows], or null.
    u64* winners;
    // The tokens that race, [rows, kept], or null.
    Rows<i32> kept_tokens;
    // How many tokens race, [rows], or null.
    i32* kept_counts;
    // The largest logit of each row, [rows], or null.
    float* largest;
    // The token of column 0, where no ids are given.
    u32 first_token;
    // The number of words of a row of the mask.
    u32 mask_words;
    // The number of kept tokens that a row lists.
    u32 kept;
    // 1 if a report needs the largest logit whatever the mask, else 0.
    u32 needs_raw;
};
// In bytes, as the host has them.
static_assert(sizeof(Columns<float>) == 432);
static_assert(SPEC_OFFSET(Columns<float>, drawing) == 0);
static_assert(SPEC_OFFSET(Columns<float>, report) == 200);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.data) == 336);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.stride) == 344);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.wide) == 352);
static_assert(SPEC_OFFSET(Columns<float>, maxima) == 360);
static_assert(SPEC_OFFSET(Columns<float>, forced) == 368);
static_assert(SPEC_OFFSET(Columns<float>, winners) == 376);
static_assert(SPEC_OFFSET(Columns<float>, kept_tokens.data) == 384);
static_assert(SPEC_OFFSET(Columns<float>, kept_tokens.stride) == 392);
static_assert(SPEC_OFFSET(Columns<float>, kept_counts) == 400);
static_assert(SPEC_OFFSET(Columns<float>, largest) == 408);
static_assert(SPEC_OFFSET(Columns<float>, first_token) == 416);
static_assert(SPEC_OFFSET(Columns<float>, mask_words) == 420);
static_assert(SPEC_OFFSET(Columns<float>, kept) == 424);
static_assert(SPEC_OFFSET(Columns<float>, needs_raw) == 428);
