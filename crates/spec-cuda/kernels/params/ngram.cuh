// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// The largest number of blocks of a team: with more blocks, communication takes longer than the
// additional blocks save.
enum : u32 { MAX_BLOCKS = 8u };

// The parameters of the kernels of `ngram_match` and `hybrid_mtp_ngram`. An argument that an
// operator does not have is null.
struct Params {
    // Prompts, [batch, input_cols] tokens of the kernel's type.
    Rows<const void> input_ids;
    // Generated tokens, [batch, generated_cols] of the same type.
    Rows<const void> generated;
    // Drafts, [batch, draft_cols] of the same type.
    Rows<void> draft_tokens;
    // The number of tokens of each prompt, [batch].
    Integers prompt_lens;
    // The index of the first generated token of each request in its row, [batch]; null: 0.
    Integers starts;
    // The index of each request's last generated token, counted from its start, [batch].
    Integers steps;
    // The largest number of tokens that each request may generate, [batch].
    Integers max_dec;
    // The largest number of drafts that each request wants, [batch].
    const i32* draft_token_num;
    // `seq_lens_this_time`: the number of tokens of each request in this step, [batch].
    i32* this_time;
    // `seq_lens_encoder`, [batch].
    const i32* encoder;
    // `seq_lens_decoder`, [batch].
    const i32* decoder;
    // One word of flags, or null.
    u32* flags;
    // Slots of two words: one for each block of the first request's team, then of the second
    // request's team, and so on. A cluster has one slot.
    u64* slots;
    // The number of the launch, which no other launch has.
    u64 number;
    // The number of columns of `input_ids`.
    u32 input_cols;
    // The number of columns of `generated`.
    u32 generated_cols;
    // The number of columns of `draft_tokens`.
    u32 draft_cols;
    // The number of requests.
    u32 batch;
    // A team has 2^block_bits blocks: a cluster, or the blocks along gridDim.y.
    u32 block_bits;
    // A team has 2^warp_bits warps in each of its blocks.
    u32 warp_bits;
    u32 reserved;
    // The number of tokens of the longest pattern.
    u32 max_ngram;
    // The number of tokens of the shortest pattern.
    u32 min_ngram;
    // The largest number of drafts of a request, an option of the operator.
    i32 max_draft_tokens;
    // The budget of all requests, in tokens.
    i32 threshold;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 216);
static_assert(SPEC_OFFSET(Params, input_ids.data) == 0);
static_assert(SPEC_OFFSET(Params, input_ids.stride) == 8);
static_assert(SPEC_OFFSET(Params, generated.data) == 16);
static_assert(SPEC_OFFSET(Params, generated.stride) == 24);
static_assert(SPEC_OFFSET(Params, draft_tokens.data) == 32);
static_assert(SPEC_OFFSET(Params, draft_tokens.stride) == 40);
static_assert(SPEC_OFFSET(Params, prompt_lens.data) == 48);
static_assert(SPEC_OFFSET(Params, prompt_lens.wide) == 56);
static_assert(SPEC_OFFSET(Params, starts.data) == 64);
static_assert(SPEC_OFFSET(Params, starts.wide) == 72);
static_assert(SPEC_OFFSET(Params, steps.data) == 80);
static_assert(SPEC_OFFSET(Params, steps.wide) == 88);
static_assert(SPEC_OFFSET(Params, max_dec.data) == 96);
static_assert(SPEC_OFFSET(Params, max_dec.wide) == 104);
static_assert(SPEC_OFFSET(Params, draft_token_num) == 112);
static_assert(SPEC_OFFSET(Params, this_time) == 120);
static_assert(SPEC_OFFSET(Params, encoder) == 128);
static_assert(SPEC_OFFSET(Params, decoder) == 136);
static_assert(SPEC_OFFSET(Params, flags) == 144);
static_assert(SPEC_OFFSET(Params, slots) == 152);
static_assert(SPEC_OFFSET(Params, number) == 160);
static_assert(SPEC_OFFSET(Params, input_cols) == 168);
static_assert(SPEC_OFFSET(Params, generated_cols) == 172);
static_assert(SPEC_OFFSET(Params, draft_cols) == 176);
static_assert(SPEC_OFFSET(Params, batch) == 180);
static_assert(SPEC_OFFSET(Params, block_bits) == 184);
static_assert(SPEC_OFFSET(Params, warp_bits) == 188);
static_assert(SPEC_OFFSET(Params, reserved) == 192);
static_assert(SPEC_OFFSET(Params, max_ngram) == 196);
static_assert(SPEC_OFFSET(Params, min_ngram) == 200);
static_assert(SPEC_OFFSET(Params, max_draft_tokens) == 204);
static_assert(SPEC_OFFSET(Params, threshold) == 208);
