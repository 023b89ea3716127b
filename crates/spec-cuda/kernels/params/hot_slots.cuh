// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block whose row fits shared memory, and of other blocks.
enum : u32 { THREADS = 512u };
enum : u32 { WORKSPACE_THREADS = 1024u };
// Neighbouring columns of a thread, and neighbouring slots.
enum : u32 { COLUMNS = 4u };
enum : u32 { SLOTS = 8u };
// Bits of a digit of an age.
enum : u32 { LOG_BINS = 11u };
// The values of a digit. Shared memory has a counter for each.
enum : u32 { BINS = 2048u };
// The counters with the one of slots that no miss may take, in fours.
enum : u32 { ALL_BINS = 2052u };

// The parameters of the kernels of `hot_slots`.
struct Params {
    // The wanted entries, [batch, m].
    Rows<const i32> wanted;
    // What each slot holds, [tables, h], updated by the kernel.
    Rows<i32> resident;
    // When each slot was last wanted, [tables, h], updated by the kernel.
    Rows<i32> used;
    // The blocks of slots, [tables, block_count]; not read unless `has_blocks`.
    Rows<const i32> block_table;
    // The pages of entries, [tables, page_count].
    Rows<const i32> pages;
    // Where each wanted entry lies, [batch, m].
    Rows<i32> slots;
    // The entries to fetch, [batch, m].
    Rows<i32> fetch_positions;
    // Where fetched entries go, [batch, m].
    Rows<i32> fetch_slots;
    // The step, or the step of each row.
    Integers steps;
    // The entry of the first tail slot of each row, [batch], or null.
    Integers tail_starts;
    // The row of the state that each row has, [batch], or null.
    const i32* requests;
    // Whether the slots of each row become empty first, [batch], or null.
    const i32* resets;
    // The number of fetches of each row, [batch].
    i32* fetches;
    // One word of flags, or null.
    u32* flags;
    // A hash table, a list, and the slots that are taken for each block, or null if they lie in
    // shared memory.
    u32* workspace;
    // The number of rows.
    u32 batch;
    // The number of rows of the state.
    u32 tables;
    // The number of wanted values of a row.
    u32 m;
    // The number of slots of a request.
    u32 h;
    // Groups of columns and of slots that a warp has, see `Part`.
    u32 column_groups;
    u32 slot_groups;
    // The number of tail slots.
    u32 tail;
    // The number of slots of a block.
    u32 block_size;
    // The number of columns of `block_table`.
    u32 block_count;
    // The number of entries of a page.
    u32 page_size;
    // The number of columns of `pages`.
    u32 page_count;
    // The number of a page that stands for none.
    i32 null_page;
    // Whether `block_table` is there.
    u32 has_blocks;
    // 1 if each row has a step of its own, 0 if all rows have one.
    u32 step_stride;
    // Whether each row of the columns, the state and the outputs begins at a multiple of 16 bytes.
    u32 by_vectors;
    // The base-2 logarithm of the places of the hash table, at least 10.
    u32 log_places;
    // Words of the list of misses of a hashed set, a power of two, at least m.
    u32 list_words;
    // Words of the bitmap that sorts this list, a multiple of the number of threads.
    u32 bitmap_words;
    // Words with a bit for each slot, a multiple of 4.
    u32 loser_words;
    // Words of the bitmap of a narrow set, a multiple of the number of threads; 0 if rows are too
    // long for narrow sets.
    u32 bits_words;
    // The inverses of `block_size` and `page_size`, see `inverse`.
    u32 block_inverse;
    u32 block_shift;
    u32 page_inverse;
    u32 page_shift;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 296);
static_assert(SPEC_OFFSET(Params, wanted.data) == 0);
static_assert(SPEC_OFFSET(Params, wanted.stride) == 8);
static_assert(SPEC_OFFSET(Params, resident.data) == 16);
static_assert(SPEC_OFFSET(Params, resident.stride) == 24);
static_assert(SPEC_OFFSET(Params, used.data) == 32);
static_assert(SPEC_OFFSET(Params, used.stride) == 40);
static_assert(SPEC_OFFSET(Params, block_table.data) == 48);
static_assert(SPEC_OFFSET(Params, block_table.stride) == 56);
static_assert(SPEC_OFFSET(Params, pages.data) == 64);
static_assert(SPEC_OFFSET(Params, pages.stride) == 72);
static_assert(SPEC_OFFSET(Params, slots.data) == 80);
static_assert(SPEC_OFFSET(Params, slots.stride) == 88);
static_assert(SPEC_OFFSET(Params, fetch_positions.data) == 96);
static_assert(SPEC_OFFSET(Params, fetch_positions.stride) == 104);
static_assert(SPEC_OFFSET(Params, fetch_slots.data) == 112);
static_assert(SPEC_OFFSET(Params, fetch_slots.stride) == 120);
static_assert(SPEC_OFFSET(Params, steps.data) == 128);
static_assert(SPEC_OFFSET(Params, steps.wide) == 136);
static_assert(SPEC_OFFSET(Params, tail_starts.data) == 144);
static_assert(SPEC_OFFSET(Params, tail_starts.wide) == 152);
static_assert(SPEC_OFFSET(Params, requests) == 160);
static_assert(SPEC_OFFSET(Params, resets) == 168);
static_assert(SPEC_OFFSET(Params, fetches) == 176);
static_assert(SPEC_OFFSET(Params, flags) == 184);
static_assert(SPEC_OFFSET(Params, workspace) == 192);
static_assert(SPEC_OFFSET(Params, batch) == 200);
static_assert(SPEC_OFFSET(Params, tables) == 204);
static_assert(SPEC_OFFSET(Params, m) == 208);
static_assert(SPEC_OFFSET(Params, h) == 212);
static_assert(SPEC_OFFSET(Params, column_groups) == 216);
static_assert(SPEC_OFFSET(Params, slot_groups) == 220);
static_assert(SPEC_OFFSET(Params, tail) == 224);
static_assert(SPEC_OFFSET(Params, block_size) == 228);
static_assert(SPEC_OFFSET(Params, block_count) == 232);
static_assert(SPEC_OFFSET(Params, page_size) == 236);
static_assert(SPEC_OFFSET(Params, page_count) == 240);
static_assert(SPEC_OFFSET(Params, null_page) == 244);
static_assert(SPEC_OFFSET(Params, has_blocks) == 248);
static_assert(SPEC_OFFSET(Params, step_stride) == 252);
static_assert(SPEC_OFFSET(Params, by_vectors) == 256);
static_assert(SPEC_OFFSET(Params, log_places) == 260);
static_assert(SPEC_OFFSET(Params, list_words) == 264);
static_assert(SPEC_OFFSET(Params, bitmap_words) == 268);
static_assert(SPEC_OFFSET(Params, loser_words) == 272);
static_assert(SPEC_OFFSET(Params, bits_words) == 276);
static_assert(SPEC_OFFSET(Params, block_inverse) == 280);
static_assert(SPEC_OFFSET(Params, block_shift) == 284);
static_assert(SPEC_OFFSET(Params, page_inverse) == 288);
static_assert(SPEC_OFFSET(Params, page_shift) == 292);
