// Written by `cargo xtask params` from src/ops/unique.rs, which a test compares with it.
#pragma once

#include "common.cuh"

// What all kernels of `unique` take.
struct Params {
    // Keys, [n] of the kernel's type.
    const void* keys;
    // Room for n keys: passes use it in turns with `buffer`, and the distinct keys are left in it.
    void* unique;
    // How many distinct keys there are, one number.
    u64* count;
    // How often each distinct key occurs, [n], or null.
    u64* counts;
    // Keys.
    u64 n;
    // The sign bit of signed keys, else 0.
    u64 flip;
    // What the kernels tell each other; all zero before the first.
    Plan* plan;
    // Keys of each bucket, [2^bits]; zero before the first kernel.
    u32* bucket_counts;
    // How far each phase is, [2 + digits * portions]; zero before the first kernel.
    Phase* phases;
    // Words of look-back, one for each tile to compact or each bucket, whichever are more; zero
    // before the first kernel.
    u64* tile_sums;
    // Keys before each bucket, [2^bits + 1].
    u32* bucket_starts;
    // Where each bucket's next key goes, at last its end, in keys, [2^bits].
    u32* bucket_ends;
    // The same for digits of the first partition, or for parts of the range, [MAX_PARTS].
    u32* digit_ends;
    // Tiles of the second partition before those of each digit, [MAX_SPLIT + 1].
    u32* digit_tiles;
    // Where the keys of each digit's bin go, in keys, [portions + 1, digits, RADIX].
    u64* offsets;
    // Words of look-back of a pass, [tiles of a portion, RADIX], two of them in turns. Where keys
    // ascend: the distinct keys before each tile to compact in its span, and those before each
    // span.
    u32* sums[2];
    // Room for n keys.
    void* buffer;
    // Where the first of each CHUNK distinct keys is among all keys, [ceil(n / CHUNK)].
    u64* firsts;
    // Keys of a portion, a multiple of a tile's.
    u64 portion_keys;
    // Portions of a pass.
    u32 portions;
    // Bits of a bucket's number.
    u32 bits;
    // How many of those the second partition tells apart; 0: there is none.
    u32 low_bits;
    // Positions that a block has bits for; 0: nothing goes by bits.
    u32 part_bits;
    // Tiles that a block of `unique_check` looks at.
    u32 span_tiles;
    u32 unused;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 184);
static_assert(SPEC_OFFSET(Params, keys) == 0);
static_assert(SPEC_OFFSET(Params, unique) == 8);
static_assert(SPEC_OFFSET(Params, count) == 16);
static_assert(SPEC_OFFSET(Params, counts) == 24);
static_assert(SPEC_OFFSET(Params, n) == 32);
static_assert(SPEC_OFFSET(Params, flip) == 40);
static_assert(SPEC_OFFSET(Params, plan) == 48);
static_assert(SPEC_OFFSET(Params, bucket_counts) == 56);
static_assert(SPEC_OFFSET(Params, phases) == 64);
static_assert(SPEC_OFFSET(Params, tile_sums) == 72);
static_assert(SPEC_OFFSET(Params, bucket_starts) == 80);
static_assert(SPEC_OFFSET(Params, bucket_ends) == 88);
static_assert(SPEC_OFFSET(Params, digit_ends) == 96);
static_assert(SPEC_OFFSET(Params, digit_tiles) == 104);
static_assert(SPEC_OFFSET(Params, offsets) == 112);
static_assert(SPEC_OFFSET(Params, sums) == 120);
static_assert(SPEC_OFFSET(Params, buffer) == 136);
static_assert(SPEC_OFFSET(Params, firsts) == 144);
static_assert(SPEC_OFFSET(Params, portion_keys) == 152);
static_assert(SPEC_OFFSET(Params, portions) == 160);
static_assert(SPEC_OFFSET(Params, bits) == 164);
static_assert(SPEC_OFFSET(Params, low_bits) == 168);
static_assert(SPEC_OFFSET(Params, part_bits) == 172);
static_assert(SPEC_OFFSET(Params, span_tiles) == 176);
static_assert(SPEC_OFFSET(Params, unused) == 180);
