// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "params/sample_logits.cuh"

// Values of `winners` that are no time: the row takes its forced token; a row without randomness
// has its token; no token may win.
enum : u64 { PLACE_FORCED = 0ull };
enum : u64 { PLACE_CERTAIN = 1ull };
enum : u64 { PLACE_NOTHING = 2147483647ull };
// Threads of a block of the kernel that looks at the ids.
enum : u32 { ID_THREADS = 256u };
// Bytes of what is known of the ids of [`GROUP`] columns.
enum : u32 { ID_GROUP = 80u };

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
    // The largest logit of each row, [rows], or null.
    float* largest;
    // What is known of the ids of 64 columns each, [id_rows, ceil(vocab / 64)], in the workspace,
    // [`ID_GROUP`] bytes for each; null: nothing.
    u64* id_groups;
    // The number of rows of ids: 1 if all rows have the same.
    u64 id_rows;
    // The token of column 0, where no ids are given.
    u32 first_token;
    // The number of words of a row of the mask.
    u32 mask_words;
    // 1 if a report needs the largest logit whatever the mask, else 0.
    u32 needs_raw;
};
// In bytes, as the host has them.
static_assert(sizeof(Columns<float>) == 448);
static_assert(SPEC_OFFSET(Columns<float>, drawing) == 0);
static_assert(SPEC_OFFSET(Columns<float>, report) == 224);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.data) == 360);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.stride) == 368);
static_assert(SPEC_OFFSET(Columns<float>, token_ids.wide) == 376);
static_assert(SPEC_OFFSET(Columns<float>, maxima) == 384);
static_assert(SPEC_OFFSET(Columns<float>, forced) == 392);
static_assert(SPEC_OFFSET(Columns<float>, winners) == 400);
static_assert(SPEC_OFFSET(Columns<float>, largest) == 408);
static_assert(SPEC_OFFSET(Columns<float>, id_groups) == 416);
static_assert(SPEC_OFFSET(Columns<float>, id_rows) == 424);
static_assert(SPEC_OFFSET(Columns<float>, first_token) == 432);
static_assert(SPEC_OFFSET(Columns<float>, mask_words) == 436);
static_assert(SPEC_OFFSET(Columns<float>, needs_raw) == 440);
