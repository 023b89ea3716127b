// Written by `cargo xtask params` from src/ops/rejection_sample.rs, which a test compares with it.
#pragma once

#include "ids.cuh"

// What the kernels of `rejection_sample` take. `T` is the type of the probabilities.
template <typename T>
struct Params {
    // Probabilities of the target model, [tokens, vocab].
    Rows<const T> target;
    // Probabilities of the draft model, [tokens, vocab]; null: the draft is deterministic.
    Rows<const T> draft;
    // Draft tokens, [tokens].
    Integers draft_ids;
    // Bonus tokens, [requests].
    Integers bonus_ids;
    // Where the drafts of each request end, in tokens, [leading + requests].
    Integers offsets;
    // A number from 0 to below 1 for each draft, [tokens]; null: they are drawn.
    const float* uniform;
    // Seeds, [requests]; null where nothing is drawn.
    const u64* seeds;
    // The position of each request's first draft in its text, in tokens, [requests]; null where
    // nothing is drawn.
    Integers positions;
    // Which requests follow the target's argmax, [requests]; null but in mixed batches.
    Truths greedy;
    // Tokens that each request emits, then -1, [requests, max_spec_len + 1].
    IntegerRows output;
    // How many tokens each request emits, [requests].
    i32* emitted;
    // Accepted drafts of each request, [requests].
    i32* accepted;
    // Recovered tokens of each request, 0 or 1, [requests].
    i32* recovered;
    // Bonus tokens of each request, 0 or 1, [requests].
    i32* bonus;
    // One word of flags, or null.
    u32* flags;
    // Draft tokens of all requests.
    u64 tokens;
    // Tokens of the vocabulary.
    u32 vocab;
    // The most drafts of a request.
    u32 max_spec_len;
    // Rows of a greedy walk that are read before it is known whether the walk gets there.
    u32 rows_ahead;
    // 1 where `offsets` begins with a 0, else 0.
    u32 leading;
    // How many drafts a request has if all requests have as many; 0 if they cannot.
    u32 usual_drafts;
};
// In bytes, as the host has them.
static_assert(sizeof(Params<float>) == 224);
static_assert(SPEC_OFFSET(Params<float>, target.data) == 0);
static_assert(SPEC_OFFSET(Params<float>, target.stride) == 8);
static_assert(SPEC_OFFSET(Params<float>, draft.data) == 16);
static_assert(SPEC_OFFSET(Params<float>, draft.stride) == 24);
static_assert(SPEC_OFFSET(Params<float>, draft_ids.data) == 32);
static_assert(SPEC_OFFSET(Params<float>, draft_ids.wide) == 40);
static_assert(SPEC_OFFSET(Params<float>, bonus_ids.data) == 48);
static_assert(SPEC_OFFSET(Params<float>, bonus_ids.wide) == 56);
static_assert(SPEC_OFFSET(Params<float>, offsets.data) == 64);
static_assert(SPEC_OFFSET(Params<float>, offsets.wide) == 72);
static_assert(SPEC_OFFSET(Params<float>, uniform) == 80);
static_assert(SPEC_OFFSET(Params<float>, seeds) == 88);
static_assert(SPEC_OFFSET(Params<float>, positions.data) == 96);
static_assert(SPEC_OFFSET(Params<float>, positions.wide) == 104);
static_assert(SPEC_OFFSET(Params<float>, greedy.data) == 112);
static_assert(SPEC_OFFSET(Params<float>, greedy.wide) == 120);
static_assert(SPEC_OFFSET(Params<float>, output.data) == 128);
static_assert(SPEC_OFFSET(Params<float>, output.stride) == 136);
static_assert(SPEC_OFFSET(Params<float>, output.wide) == 144);
static_assert(SPEC_OFFSET(Params<float>, emitted) == 152);
static_assert(SPEC_OFFSET(Params<float>, accepted) == 160);
static_assert(SPEC_OFFSET(Params<float>, recovered) == 168);
static_assert(SPEC_OFFSET(Params<float>, bonus) == 176);
static_assert(SPEC_OFFSET(Params<float>, flags) == 184);
static_assert(SPEC_OFFSET(Params<float>, tokens) == 192);
static_assert(SPEC_OFFSET(Params<float>, vocab) == 200);
static_assert(SPEC_OFFSET(Params<float>, max_spec_len) == 204);
static_assert(SPEC_OFFSET(Params<float>, rows_ahead) == 208);
static_assert(SPEC_OFFSET(Params<float>, leading) == 212);
static_assert(SPEC_OFFSET(Params<float>, usual_drafts) == 216);
