// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// The parameters of the kernels of `prompt_lookup`.
struct Params {
    // Texts, [texts, cols] tokens of the kernel's type.
    Rows<const void> tokens;
    // Drafts, [batch, max_draft] of the same type, or i64 if `wide`.
    Rows<void> drafts;
    // The number of tokens of each text, [texts].
    Integers lengths;
    // The text of each request, [batch], or null.
    Integers requests;
    // The largest number of drafts of each request, [batch], or null.
    const i32* max_drafts;
    // The number of drafts of each request, [batch].
    i32* counts;
    // One word of flags, or null.
    u32* flags;
    // Slots of two words: one for each block of the first request's team, then of the second
    // request's team, and so on; only for teams of several blocks.
    u64* slots;
    // A word for each request that counts the blocks that have finished, [batch]; only for teams of
    // several blocks.
    u64* tickets;
    // The number of the launch, which no other launch has.
    u64 number;
    // The number of columns of `tokens`.
    u32 cols;
    // The largest number of drafts of a request.
    u32 max_draft;
    // The number of requests.
    u32 batch;
    // The number of rows of `tokens`.
    u32 texts;
    // The base-2 logarithm of the number of blocks of a team: grid.y.
    u32 block_bits;
    // The base-2 logarithm of the number of warps of a team in each of its blocks.
    u32 warp_bits;
    // The number of tokens of the longest pattern.
    u32 max_ngram;
    // The number of tokens of the shortest pattern.
    u32 min_ngram;
    // 1 if drafts of the kernel for i32 are i64, else 0.
    u32 wide;
    // 1 if the text's last token is written after the drafts, 0 if -1 is.
    u32 pad_with_last;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 160);
static_assert(SPEC_OFFSET(Params, tokens.data) == 0);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 8);
static_assert(SPEC_OFFSET(Params, drafts.data) == 16);
static_assert(SPEC_OFFSET(Params, drafts.stride) == 24);
static_assert(SPEC_OFFSET(Params, lengths.data) == 32);
static_assert(SPEC_OFFSET(Params, lengths.wide) == 40);
static_assert(SPEC_OFFSET(Params, requests.data) == 48);
static_assert(SPEC_OFFSET(Params, requests.wide) == 56);
static_assert(SPEC_OFFSET(Params, max_drafts) == 64);
static_assert(SPEC_OFFSET(Params, counts) == 72);
static_assert(SPEC_OFFSET(Params, flags) == 80);
static_assert(SPEC_OFFSET(Params, slots) == 88);
static_assert(SPEC_OFFSET(Params, tickets) == 96);
static_assert(SPEC_OFFSET(Params, number) == 104);
static_assert(SPEC_OFFSET(Params, cols) == 112);
static_assert(SPEC_OFFSET(Params, max_draft) == 116);
static_assert(SPEC_OFFSET(Params, batch) == 120);
static_assert(SPEC_OFFSET(Params, texts) == 124);
static_assert(SPEC_OFFSET(Params, block_bits) == 128);
static_assert(SPEC_OFFSET(Params, warp_bits) == 132);
static_assert(SPEC_OFFSET(Params, max_ngram) == 136);
static_assert(SPEC_OFFSET(Params, min_ngram) == 140);
static_assert(SPEC_OFFSET(Params, wide) == 144);
static_assert(SPEC_OFFSET(Params, pad_with_last) == 148);
static_assert(SPEC_OFFSET(Params, reserved) == 152);
