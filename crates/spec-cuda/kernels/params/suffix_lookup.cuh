// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block in both launches.
enum : u32 { THREADS = 512u };
// Blocks on a multiprocessor.
enum : u32 { SHARING = 2u };
// Tokens of a tile, which a warp has at a time.
enum : u32 { TILE = 256u };
// The largest number of tokens in a match.
enum : u32 { MAX_MATCH = 64u };
// The largest number of drafts of a request.
enum : u32 { MAX_DRAFTS = 64u };
// The largest number of windows from which one warp grows a tree. The kernel keeps the tokens that
// follow these windows in shared memory.
enum : u32 { MAX_WARP_WINDOWS = 64u };

// The parameters of the kernels of `suffix_lookup`.
struct Params {
    // The texts, [texts, max_len] tokens of the kernel's type.
    Rows<const void> tokens;
    // The drafts, [batch, n] of the same type, or i64 if `wide`.
    Rows<void> drafts;
    // The node that each draft follows, [batch, n], or null.
    Rows<i32> parents;
    // The first child of each node, [batch, n + 1], or null.
    Rows<i32> first_child;
    // The next sibling of each node, [batch, n + 1], or null.
    Rows<i32> next_sibling;
    // The share of the windows that agree with each draft, [batch, n], or null.
    Rows<float> shares;
    // The number of tokens of each text, [texts].
    Integers lengths;
    // The text of each request, [batch], or null.
    Integers requests;
    // The largest number of drafts of each request, [batch], or null.
    const i32* max_drafts;
    // The number of tokens of the corpus that are valid, [1], or null for all.
    Integers corpus_length;
    // The corpus, of the texts' type.
    const void* corpus;
    // The number of drafts of each request, [batch].
    i32* counts;
    // The length of the longest match of each request, [batch], or null.
    i32* match_lengths;
    // One word of flags, or null.
    u32* flags;
    // A note for each request and each tile that `scan` notes, the most recent tile first, [batch,
    // row].
    u32* notes;
    // The number of requests.
    u32 batch;
    // The number of rows of `tokens`.
    u32 texts;
    // The number of columns of `tokens`.
    u32 max_len;
    // The number of tokens for which `corpus` has room.
    u32 corpus_size;
    // The number of tiles of a row, and of the corpus.
    u32 own_tiles;
    u32 corpus_tiles;
    // The number of tiles of a row that `grow` notes itself: all or none.
    u32 here;
    // The number of words of a row of `notes`: `own_tiles - here + corpus_tiles`, rounded up to a
    // multiple of 4.
    u32 row;
    // The number of columns of `drafts`.
    u32 n;
    // The options of the operator.
    u32 min_match;
    u32 max_match;
    u32 max_windows;
    u32 width;
    // The smallest number of windows that a draft needs, in 65536ths of all windows.
    u32 share_floor;
    // The largest depth of a draft for each token of the match.
    float drafts_per_match;
    // The number of slots of the hash table, a power of two.
    u32 table;
    // The largest number of offers of a request.
    u32 offers;
    // 1 if drafts of the kernels for i32 are i64, else 0.
    u32 wide;
    // 1 if the text's last token is written after the drafts, 0 if -1 is.
    u32 pad_with_last;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 272);
static_assert(SPEC_OFFSET(Params, tokens.data) == 0);
static_assert(SPEC_OFFSET(Params, tokens.stride) == 8);
static_assert(SPEC_OFFSET(Params, drafts.data) == 16);
static_assert(SPEC_OFFSET(Params, drafts.stride) == 24);
static_assert(SPEC_OFFSET(Params, parents.data) == 32);
static_assert(SPEC_OFFSET(Params, parents.stride) == 40);
static_assert(SPEC_OFFSET(Params, first_child.data) == 48);
static_assert(SPEC_OFFSET(Params, first_child.stride) == 56);
static_assert(SPEC_OFFSET(Params, next_sibling.data) == 64);
static_assert(SPEC_OFFSET(Params, next_sibling.stride) == 72);
static_assert(SPEC_OFFSET(Params, shares.data) == 80);
static_assert(SPEC_OFFSET(Params, shares.stride) == 88);
static_assert(SPEC_OFFSET(Params, lengths.data) == 96);
static_assert(SPEC_OFFSET(Params, lengths.wide) == 104);
static_assert(SPEC_OFFSET(Params, requests.data) == 112);
static_assert(SPEC_OFFSET(Params, requests.wide) == 120);
static_assert(SPEC_OFFSET(Params, max_drafts) == 128);
static_assert(SPEC_OFFSET(Params, corpus_length.data) == 136);
static_assert(SPEC_OFFSET(Params, corpus_length.wide) == 144);
static_assert(SPEC_OFFSET(Params, corpus) == 152);
static_assert(SPEC_OFFSET(Params, counts) == 160);
static_assert(SPEC_OFFSET(Params, match_lengths) == 168);
static_assert(SPEC_OFFSET(Params, flags) == 176);
static_assert(SPEC_OFFSET(Params, notes) == 184);
static_assert(SPEC_OFFSET(Params, batch) == 192);
static_assert(SPEC_OFFSET(Params, texts) == 196);
static_assert(SPEC_OFFSET(Params, max_len) == 200);
static_assert(SPEC_OFFSET(Params, corpus_size) == 204);
static_assert(SPEC_OFFSET(Params, own_tiles) == 208);
static_assert(SPEC_OFFSET(Params, corpus_tiles) == 212);
static_assert(SPEC_OFFSET(Params, here) == 216);
static_assert(SPEC_OFFSET(Params, row) == 220);
static_assert(SPEC_OFFSET(Params, n) == 224);
static_assert(SPEC_OFFSET(Params, min_match) == 228);
static_assert(SPEC_OFFSET(Params, max_match) == 232);
static_assert(SPEC_OFFSET(Params, max_windows) == 236);
static_assert(SPEC_OFFSET(Params, width) == 240);
static_assert(SPEC_OFFSET(Params, share_floor) == 244);
static_assert(SPEC_OFFSET(Params, drafts_per_match) == 248);
static_assert(SPEC_OFFSET(Params, table) == 252);
static_assert(SPEC_OFFSET(Params, offers) == 256);
static_assert(SPEC_OFFSET(Params, wide) == 260);
static_assert(SPEC_OFFSET(Params, pad_with_last) == 264);
static_assert(SPEC_OFFSET(Params, reserved) == 268);
