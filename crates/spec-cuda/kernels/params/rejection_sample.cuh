// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// Blocks per multiprocessor of the kernels whose tokens race. With the registers of two blocks, a
// warp has eight loads of both rows in flight, and 256 requests take 9 % less time.
enum : u32 { RACING_SHARING = 1u };
// A residual below this counts as 0.
constexpr float MIN_RESIDUAL = 9.094947e-13f;

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
    // The end of each request's drafts, in tokens, [leading + requests].
    Integers offsets;
    // A uniform random number in [0, 1) for each draft, [tokens]; null: the kernel draws the
    // numbers.
    const float* uniform;
    // Seeds, [requests]; null if no random number is drawn.
    const u64* seeds;
    // The position of each request's first draft in its text, in tokens, [requests]; null if no
    // random number is drawn.
    Integers positions;
    // Whether each request follows the target's argmax, [requests]; null: `all_greedy` says so of
    // all requests.
    Bools greedy;
    // The tokens that each request emits, followed by -1, [requests, max_spec_len + 1].
    IntegerRows output;
    // The number of tokens that each request emits, [requests].
    i32* emitted;
    // The number of accepted drafts of each request, [requests].
    i32* accepted;
    // The number of recovered tokens of each request, 0 or 1, [requests].
    i32* recovered;
    // The number of bonus tokens of each request, 0 or 1, [requests].
    i32* bonus;
    // One word of flags, or null.
    u32* flags;
    // The number of draft tokens of all requests.
    u64 tokens;
    // The number of tokens in the vocabulary.
    u32 vocab;
    // The largest number of drafts of a request.
    u32 max_spec_len;
    // Rows of a greedy request that are read before it is known whether their drafts are reached.
    u32 rows_ahead;
    // 1 if `offsets` begins with a 0, else 0.
    u32 leading;
    // The number of drafts of every request if all requests have equally many; 0 if they cannot.
    u32 usual_drafts;
    // Without `greedy`: 1 if all requests follow the target's argmax, 0 if none does.
    u32 all_greedy;
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
static_assert(SPEC_OFFSET(Params<float>, all_greedy) == 220);
