// Written by `cargo xtask params` from src/ops/prompt_lookup.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What the kernels of `prompt_lookup` take.
struct Params {
    // Texts, [texts, cols] tokens of the kernel's type.
    Rows<const void> tokens;
    // Drafts, [batch, max_draft] of the same type, or i64 if `wide`.
    Rows<void> drafts;
    // Tokens of each text, [texts].
    Integers lengths;
    // The text of each request, [batch], or null.
    Integers requests;
    // The most drafts of each request, [batch], or null.
    const i32* max_drafts;
    // Drafts of each request, [batch].
    i32* counts;
    // One word of flags, or null.
    u32* flags;
    // Two words a slot: a slot for each block of the first request, then of the second, and so on;
    // only of teams of several blocks.
    u64* slots;
    // A word for each request that counts the blocks that are done, [batch]; only of teams of
    // several blocks.
    u64* tickets;
    // The number of the launch, which no other launch has.
    u64 number;
    // Tokens of a row of `tokens`.
    u32 cols;
    // The most drafts of a request.
    u32 max_draft;
    // Requests.
    u32 batch;
    // Rows of `tokens`.
    u32 texts;
    // Blocks of a team, as a power of two: grid.y.
    u32 block_bits;
    // Warps of a team in each of its blocks, as a power of two.
    u32 warp_bits;
    // Tokens of the longest pattern.
    u32 max_ngram;
    // Tokens of the shortest pattern.
    u32 min_ngram;
    // 1 if drafts of the kernel for i32 are i64, else 0.
    u32 wide;
    // 1 if a text's last token stands behind its drafts, 0 for -1.
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
