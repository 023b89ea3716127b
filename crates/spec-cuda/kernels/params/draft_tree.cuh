// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "ids.cuh"

// The largest number of threads of a block.
enum : u32 { MAX_THREADS = 512u };
// The largest number of drafts of a request.
enum : u32 { MAX_DRAFTS = 256u };
// The largest number of candidates of a request.
enum : u32 { MAX_CANDIDATES = 4096u };
// The bits of 2^-100. A survival below 2^-100 counts as 0, so that no product is a subnormal
// number.
enum : u32 { MIN_SURVIVAL = 226492416u };

// The parameters of the kernels of `draft_tree`.
struct Params {
    // The candidates, [batch, c].
    IntegerRows candidates;
    // The parent of each candidate, [batch, c]. Null for chains.
    IntegerRows parents;
    // The drafts, [batch, n], of the candidates' type.
    IntegerRows drafts;
    // The probability of each candidate, [batch, c], or null.
    Rows<const float> shares;
    // The candidate of each draft, [batch, n], or null.
    Rows<i32> picked;
    // The node that each draft follows, [batch, n], or null.
    Rows<i32> draft_parents;
    // The first child of each node, [batch, n + 1], or null.
    Rows<i32> first_child;
    // The next sibling of each node, [batch, n + 1], or null.
    Rows<i32> next_sibling;
    // The depth of each node, [batch, n + 1], or null.
    Rows<i32> depths;
    // The survival of each draft, [batch, n], or null.
    Rows<float> survivals;
    // The number of candidates of each request, [batch], or null.
    Integers counts;
    // The last token of each text, [batch], of the candidates' type, or null.
    Integers roots;
    // The position of each request's root, [batch], or null.
    Integers starts;
    // A factor for each step of depth, [batch], or null.
    const float* trust;
    // Requests with a value other than 0 have no drafts, [batch], or null.
    const i32* finished;
    // The largest number of drafts of all requests, [1], or null.
    const i32* budget;
    // The number of drafts of each request, [batch].
    i32* num_drafts;
    // The nodes that each node attends to, [batch, n + 1, n / 32 + 1], or null.
    u32* masks;
    // Words from the masks of one request to those of the next, and from one node to the next.
    u64 masks_stride;
    u64 mask_stride;
    // Where the rows of each request begin, followed by the end, [batch + 1], or null.
    i32* row_offsets;
    // What each packed row has, [cap], or null.
    i32* rows;
    i32* row_requests;
    i32* row_parents;
    // The token of each row, of the candidates' type.
    void* row_tokens;
    // The position of each row, of the type of `starts`.
    void* row_positions;
    // One word of flags, or null.
    u32* flags;
    // The first candidates of each request in its order, [batch, n]; 0 for none.
    u64* records;
    // The place of each record in the order of all requests, [batch * n] and up to 3 more.
    u32* places;
    // The number of requests.
    u64 batch;
    // The number of packed rows for which there is room; 0 if no output has rows.
    u64 cap;
    // The number of columns of `candidates`, and of `drafts`.
    u32 c;
    u32 n;
    // The number of records of a chain in shared memory: the lesser of c and n.
    u32 room;
    // The number of drafts of each request that come before all others, at most n.
    u32 min_drafts;
    // The bits of the smallest survival of a draft.
    u32 min_survival;
    // 1 if shares are of the whole way from the root, else 0.
    u32 cumulative;
    // 1 if an output has packed rows, else 0.
    u32 has_cap;
    // 1 if each candidate follows the one before it, else 0.
    u32 is_chain;
    // 1 if requests share a budget or packed rows, else 0.
    u32 together;
    // The number of requests whose outputs a block writes; 0 for blocks that take every request
    // whose number has the block's number as remainder.
    u32 per_block;
    // For chains: the number of neighbouring threads that load a chain, a power of two.
    u32 lanes;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 424);
static_assert(SPEC_OFFSET(Params, candidates.data) == 0);
static_assert(SPEC_OFFSET(Params, candidates.stride) == 8);
static_assert(SPEC_OFFSET(Params, candidates.wide) == 16);
static_assert(SPEC_OFFSET(Params, parents.data) == 24);
static_assert(SPEC_OFFSET(Params, parents.stride) == 32);
static_assert(SPEC_OFFSET(Params, parents.wide) == 40);
static_assert(SPEC_OFFSET(Params, drafts.data) == 48);
static_assert(SPEC_OFFSET(Params, drafts.stride) == 56);
static_assert(SPEC_OFFSET(Params, drafts.wide) == 64);
static_assert(SPEC_OFFSET(Params, shares.data) == 72);
static_assert(SPEC_OFFSET(Params, shares.stride) == 80);
static_assert(SPEC_OFFSET(Params, picked.data) == 88);
static_assert(SPEC_OFFSET(Params, picked.stride) == 96);
static_assert(SPEC_OFFSET(Params, draft_parents.data) == 104);
static_assert(SPEC_OFFSET(Params, draft_parents.stride) == 112);
static_assert(SPEC_OFFSET(Params, first_child.data) == 120);
static_assert(SPEC_OFFSET(Params, first_child.stride) == 128);
static_assert(SPEC_OFFSET(Params, next_sibling.data) == 136);
static_assert(SPEC_OFFSET(Params, next_sibling.stride) == 144);
static_assert(SPEC_OFFSET(Params, depths.data) == 152);
static_assert(SPEC_OFFSET(Params, depths.stride) == 160);
static_assert(SPEC_OFFSET(Params, survivals.data) == 168);
static_assert(SPEC_OFFSET(Params, survivals.stride) == 176);
static_assert(SPEC_OFFSET(Params, counts.data) == 184);
static_assert(SPEC_OFFSET(Params, counts.wide) == 192);
static_assert(SPEC_OFFSET(Params, roots.data) == 200);
static_assert(SPEC_OFFSET(Params, roots.wide) == 208);
static_assert(SPEC_OFFSET(Params, starts.data) == 216);
static_assert(SPEC_OFFSET(Params, starts.wide) == 224);
static_assert(SPEC_OFFSET(Params, trust) == 232);
static_assert(SPEC_OFFSET(Params, finished) == 240);
static_assert(SPEC_OFFSET(Params, budget) == 248);
static_assert(SPEC_OFFSET(Params, num_drafts) == 256);
static_assert(SPEC_OFFSET(Params, masks) == 264);
static_assert(SPEC_OFFSET(Params, masks_stride) == 272);
static_assert(SPEC_OFFSET(Params, mask_stride) == 280);
static_assert(SPEC_OFFSET(Params, row_offsets) == 288);
static_assert(SPEC_OFFSET(Params, rows) == 296);
static_assert(SPEC_OFFSET(Params, row_requests) == 304);
static_assert(SPEC_OFFSET(Params, row_parents) == 312);
static_assert(SPEC_OFFSET(Params, row_tokens) == 320);
static_assert(SPEC_OFFSET(Params, row_positions) == 328);
static_assert(SPEC_OFFSET(Params, flags) == 336);
static_assert(SPEC_OFFSET(Params, records) == 344);
static_assert(SPEC_OFFSET(Params, places) == 352);
static_assert(SPEC_OFFSET(Params, batch) == 360);
static_assert(SPEC_OFFSET(Params, cap) == 368);
static_assert(SPEC_OFFSET(Params, c) == 376);
static_assert(SPEC_OFFSET(Params, n) == 380);
static_assert(SPEC_OFFSET(Params, room) == 384);
static_assert(SPEC_OFFSET(Params, min_drafts) == 388);
static_assert(SPEC_OFFSET(Params, min_survival) == 392);
static_assert(SPEC_OFFSET(Params, cumulative) == 396);
static_assert(SPEC_OFFSET(Params, has_cap) == 400);
static_assert(SPEC_OFFSET(Params, is_chain) == 404);
static_assert(SPEC_OFFSET(Params, together) == 408);
static_assert(SPEC_OFFSET(Params, per_block) == 412);
static_assert(SPEC_OFFSET(Params, lanes) == 416);
static_assert(SPEC_OFFSET(Params, reserved) == 420);
