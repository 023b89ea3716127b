// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"
#include "params/shared.cuh"

// Tokens of a text that a thread has in flight.
enum : u32 { AHEAD = 4u };
// Words of a bitmap that the kernels take together.
enum : u32 { GROUP = 4u };
// A text has fewer tokens than this, since the kernels keep the count of a token beside marks, in a
// word.
enum : u32 { MAX_TOKENS = 536870912u };
// The largest number of tokens of a sequence that DRY counts.
enum : u32 { MAX_MATCH = 64u };
// The largest number of threads of a block of the kernels `direct`.
enum : u32 { DIRECT_THREADS = 1024u };
// Bytes of shared memory for a word of 32 tokens in the kernels `direct`: a token has an entry of
// two bytes and a bit, and with DRY one more byte.
enum : u32 { DIRECT_WORD = 68u };
enum : u32 { DIRECT_DRY_WORD = 100u };
// The largest number of threads of a block of the kernels `ranked`.
enum : u32 { RANKED_THREADS = 512u };
// The largest number of threads of a block of the kernel `think`.
enum : u32 { THINK_THREADS = 1024u };

// The parameters of the kernels of `adjust_logits`. An absent pointer is null.
struct Params {
    // Logits, [rows, columns] of the kernel's type.
    Rows<void> logits;
    // Texts, [requests, max_length].
    IntegerRows tokens;
    // The number of tokens in each prompt, [requests].
    Integers prompt_lengths;
    // The number of tokens in each text, [requests].
    Integers lengths;
    // The draft token of each row, [rows].
    Integers draft_tokens;
    // Stop tokens, [requests, stops].
    Rows<const i32> stop_tokens;
    // The request of each row, [rows].
    const i32* requests;
    // The parent of each row: the row of the previous draft, or -1, [rows].
    const i32* parents;
    // The start of each request's biases, [requests + 1].
    const i32* bias_offsets;
    // Tokens with a bias, [biases].
    const i32* bias_tokens;
    // The bias of each of `bias_tokens`, [biases].
    const float* bias_values;
    // The repetition penalty of each request, [requests].
    const float* repetition;
    // The frequency penalty of each request, [requests].
    const float* frequency;
    // The presence penalty of each request, [requests].
    const float* presence;
    // The smallest number of tokens to generate, [requests].
    const i32* min_tokens;
    // The start of each request's bad words, [requests + 1].
    const i32* bad_offsets;
    // The start of each word's tokens, [words + 1].
    const i32* word_offsets;
    // The tokens of all words.
    const i32* word_tokens;
    // The length of n-grams that must not be repeated, [requests].
    const i32* no_repeat_ngram;
    // The multiplier of DRY, [requests].
    const float* dry_multiplier;
    // The base of DRY, [requests].
    const float* dry_base;
    // The allowed length of DRY, [requests].
    const i32* dry_allowed_length;
    // How many of the last tokens DRY reads, [requests].
    const i32* dry_range;
    // Breakers of DRY, [breakers].
    const i32* dry_breakers;
    // The thinking budget of each request, [requests].
    const i32* think_budget;
    // The tokens that start a thinking, [start_tokens].
    const i32* think_start;
    // The tokens that end a thinking, [end_tokens].
    const i32* think_end;
    // The tokens that are forced where a budget is used up, [forced_tokens].
    const i32* think_forced;
    // The token that each row must take, [rows].
    i32* forced;
    // One word of flags.
    u32* flags;
    // The number of requests.
    u64 request_count;
    // The number of rows.
    u32 rows;
    // The number of tokens in the vocabulary.
    u32 vocab;
    // The number of columns of `tokens`.
    u32 max_length;
    // The number of biases of all requests.
    u32 biases;
    // The number of columns of `stop_tokens`.
    u32 stops;
    // The number of words of all requests.
    u32 words;
    // The number of tokens of all words.
    u32 word_tokens_count;
    // 1 if words are also searched in the prompt, else 0.
    u32 words_in_prompt;
    // The base-2 logarithm of the number of classes of a row's tokens.
    u32 class_bits;
    // The number of words of 32 tokens in a class, a multiple of 4.
    u32 class_words;
    // The number of slots of a block of `ranked`: the tokens that the block counts at a time.
    u32 slots;
    // The token of the first column.
    u32 first_token;
    // The number of columns that stand for a token of the vocabulary.
    u32 columns;
    // The number of breakers of DRY.
    u32 breakers;
    // The number of tokens of `think_start`.
    u32 start_tokens;
    // The number of tokens of `think_end`.
    u32 end_tokens;
    // The number of tokens of `think_forced`.
    u32 forced_tokens;
    // The type of logits, for kernels that have all types: `F32`, `F16` or `BF16`.
    u32 dtype;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 376);
static_assert(SPEC_OFFSET(Params, logits.data) == 0);
static_assert(SPEC_OFFSET(Params, logits.stride) == 8);
static_assert(SPEC_OFFSET(Params, tokens.data) == 16);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 24);
static_assert(SPEC_OFFSET(Params, tokens.wide) == 32);
static_assert(SPEC_OFFSET(Params, prompt_lengths.data) == 40);
static_assert(SPEC_OFFSET(Params, prompt_lengths.wide) == 48);
static_assert(SPEC_OFFSET(Params, lengths.data) == 56);
static_assert(SPEC_OFFSET(Params, lengths.wide) == 64);
static_assert(SPEC_OFFSET(Params, draft_tokens.data) == 72);
static_assert(SPEC_OFFSET(Params, draft_tokens.wide) == 80);
static_assert(SPEC_OFFSET(Params, stop_tokens.data) == 88);
static_assert(SPEC_OFFSET(Params, stop_tokens.stride) == 96);
static_assert(SPEC_OFFSET(Params, requests) == 104);
static_assert(SPEC_OFFSET(Params, parents) == 112);
static_assert(SPEC_OFFSET(Params, bias_offsets) == 120);
static_assert(SPEC_OFFSET(Params, bias_tokens) == 128);
static_assert(SPEC_OFFSET(Params, bias_values) == 136);
static_assert(SPEC_OFFSET(Params, repetition) == 144);
static_assert(SPEC_OFFSET(Params, frequency) == 152);
static_assert(SPEC_OFFSET(Params, presence) == 160);
static_assert(SPEC_OFFSET(Params, min_tokens) == 168);
static_assert(SPEC_OFFSET(Params, bad_offsets) == 176);
static_assert(SPEC_OFFSET(Params, word_offsets) == 184);
static_assert(SPEC_OFFSET(Params, word_tokens) == 192);
static_assert(SPEC_OFFSET(Params, no_repeat_ngram) == 200);
static_assert(SPEC_OFFSET(Params, dry_multiplier) == 208);
static_assert(SPEC_OFFSET(Params, dry_base) == 216);
static_assert(SPEC_OFFSET(Params, dry_allowed_length) == 224);
static_assert(SPEC_OFFSET(Params, dry_range) == 232);
static_assert(SPEC_OFFSET(Params, dry_breakers) == 240);
static_assert(SPEC_OFFSET(Params, think_budget) == 248);
static_assert(SPEC_OFFSET(Params, think_start) == 256);
static_assert(SPEC_OFFSET(Params, think_end) == 264);
static_assert(SPEC_OFFSET(Params, think_forced) == 272);
static_assert(SPEC_OFFSET(Params, forced) == 280);
static_assert(SPEC_OFFSET(Params, flags) == 288);
static_assert(SPEC_OFFSET(Params, request_count) == 296);
static_assert(SPEC_OFFSET(Params, rows) == 304);
static_assert(SPEC_OFFSET(Params, vocab) == 308);
static_assert(SPEC_OFFSET(Params, max_length) == 312);
static_assert(SPEC_OFFSET(Params, biases) == 316);
static_assert(SPEC_OFFSET(Params, stops) == 320);
static_assert(SPEC_OFFSET(Params, words) == 324);
static_assert(SPEC_OFFSET(Params, word_tokens_count) == 328);
static_assert(SPEC_OFFSET(Params, words_in_prompt) == 332);
static_assert(SPEC_OFFSET(Params, class_bits) == 336);
static_assert(SPEC_OFFSET(Params, class_words) == 340);
static_assert(SPEC_OFFSET(Params, slots) == 344);
static_assert(SPEC_OFFSET(Params, first_token) == 348);
static_assert(SPEC_OFFSET(Params, columns) == 352);
static_assert(SPEC_OFFSET(Params, breakers) == 356);
static_assert(SPEC_OFFSET(Params, start_tokens) == 360);
static_assert(SPEC_OFFSET(Params, end_tokens) == 364);
static_assert(SPEC_OFFSET(Params, forced_tokens) == 368);
static_assert(SPEC_OFFSET(Params, dtype) == 372);
