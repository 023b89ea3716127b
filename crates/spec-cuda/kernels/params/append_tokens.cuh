// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// Threads of a block.
enum : u32 { THREADS = 256u };
// Values of `finished`: the request goes on, met a stop token, or reached its length limit.
enum : i32 { RUNNING = 0 };
enum : i32 { STOPPED = 1 };
enum : i32 { AT_LENGTH = 2 };

// The parameters of the kernel of `append_tokens`.
struct Params {
    // The texts, [batch, max_len].
    IntegerRows tokens;
    // The tokens to append, [batch, n].
    IntegerRows new_tokens;
    // Tokens that end a text, [batch, stops]; not read if `stops` is 0.
    IntegerRows stop_tokens;
    // The number of tokens in each text, updated by the kernel, [batch, 1].
    IntegerRows lengths;
    // The number of new tokens of each request, [batch].
    Integers new_counts;
    // The length that each text may reach, [batch], or null.
    Integers max_lengths;
    // The reason why each request has ended, [batch], or null.
    i32* finished;
    // The number of tokens that each request took, [batch].
    i32* appended;
    // The last token of each text, [batch], of the texts' type, or null.
    void* last_tokens;
    // One word of flags, or null.
    u32* flags;
    // The number of requests.
    u64 batch;
    // The number of columns of `tokens`.
    u32 max_len;
    // The number of columns of `new_tokens`.
    u32 n;
    // The number of columns of `stop_tokens`.
    u32 stops;
    // Fills the last eight bytes.
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 184);
static_assert(SPEC_OFFSET(Params, tokens.data) == 0);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 8);
static_assert(SPEC_OFFSET(Params, tokens.wide) == 16);
static_assert(SPEC_OFFSET(Params, new_tokens.data) == 24);
static_assert(SPEC_OFFSET(Params, new_tokens.stride) == 32);
static_assert(SPEC_OFFSET(Params, new_tokens.wide) == 40);
static_assert(SPEC_OFFSET(Params, stop_tokens.data) == 48);
static_assert(SPEC_OFFSET(Params, stop_tokens.stride) == 56);
static_assert(SPEC_OFFSET(Params, stop_tokens.wide) == 64);
static_assert(SPEC_OFFSET(Params, lengths.data) == 72);
static_assert(SPEC_OFFSET(Params, lengths.stride) == 80);
static_assert(SPEC_OFFSET(Params, lengths.wide) == 88);
static_assert(SPEC_OFFSET(Params, new_counts.data) == 96);
static_assert(SPEC_OFFSET(Params, new_counts.wide) == 104);
static_assert(SPEC_OFFSET(Params, max_lengths.data) == 112);
static_assert(SPEC_OFFSET(Params, max_lengths.wide) == 120);
static_assert(SPEC_OFFSET(Params, finished) == 128);
static_assert(SPEC_OFFSET(Params, appended) == 136);
static_assert(SPEC_OFFSET(Params, last_tokens) == 144);
static_assert(SPEC_OFFSET(Params, flags) == 152);
static_assert(SPEC_OFFSET(Params, batch) == 160);
static_assert(SPEC_OFFSET(Params, max_len) == 168);
static_assert(SPEC_OFFSET(Params, n) == 172);
static_assert(SPEC_OFFSET(Params, stops) == 176);
static_assert(SPEC_OFFSET(Params, reserved) == 180);
