// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Values of a digit.
enum : u32 { RADIX = 256u };
// Threads of a block, unless another number is given below.
enum : u32 { THREADS = 512u };
enum : u32 { WARPS = 16u };
// Size in bytes of the struct `Plan` of the kernels.
enum : u32 { PLAN_BYTES = 16576u };
// Phases in addition to the passes: counting digits, and dropping equal keys.
enum : u32 { PHASES = 2u };
// Keys of 8 and of 4 bytes that a thread holds in a pass.
enum : u32 { PASS_ITEMS_64 = 16u };
enum : u32 { PASS_ITEMS_32 = 24u };
// Blocks per multiprocessor of `unique_by_digits` and of `unique_compact`.
enum : u32 { DIGITS_BLOCKS = 2u };
enum : u32 { COMPACT_BLOCKS = 2u };
// Size of the keys of a tile in `unique_compact`, in bytes.
enum : u32 { COMPACT_TILE_BYTES = 32768u };
// Distinct keys whose positions a block turns into counts.
enum : u32 { CHUNK = 4096u };
// Keys of the sample of `unique_check`, and its blocks per multiprocessor.
enum : u32 { SAMPLES = 4096u };
enum : u32 { CHECK_BLOCKS = 3u };
// Threads of a block of `unique_survey`, and keys that a block takes in one step.
enum : u32 { SURVEY_THREADS = 1024u };
enum : u32 { SURVEY_KEYS = 8192u };
// Keys of a tile of a partition.
enum : u32 { SPLIT_KEYS = 8192u };
// The largest number of digits of a partition.
enum : u32 { MAX_SPLIT = 512u };
// Blocks of a partition per multiprocessor, if a block takes several tiles in turn.
enum : u32 { SPLIT_BLOCKS = 2u };
// Slots of a tile for dropping equal keys.
enum : u32 { THIN_SLOTS = 4096u };
// Threads of a block of a wide partition, and keys of a tile, of 8 and of 4 bytes.
enum : u32 { WIDE_THREADS = 1024u };
enum : u32 { WIDE_KEYS_64 = 12288u };
enum : u32 { WIDE_KEYS_32 = 16384u };
// The largest number of digits of a wide partition.
enum : u32 { WIDE_SPLIT = 2048u };
// Keys that fit a bucket.
enum : u32 { BUCKET_KEYS = 9216u };
// The route by bits: threads of a block, and keys of a tile.
enum : u32 { BITS_THREADS = 1024u };
enum : u32 { SPREAD_KEYS = 16384u };
// The route by bits: the largest number of parts of the range.
enum : u32 { MAX_PARTS = 1024u };

// The parameters of all kernels of `unique`.
struct Params {
    // Keys, [n] of the kernel's type.
    const void* keys;
    // Room for n keys. Passes alternate between `unique` and `buffer`; at the end `unique` has the
    // distinct keys.
    void* unique;
    // The number of distinct keys, one number.
    u64* count;
    // The number of occurrences of each distinct key, [n], or null.
    u64* counts;
    // The number of keys.
    u64 n;
    // The sign bit of signed keys, else 0.
    u64 flip;
    // Values that the kernels pass to each other; all zero before the first kernel.
    Plan* plan;
    // The number of keys of each bucket, [2^bits]; zero before the first kernel.
    u32* bucket_counts;
    // The progress of each phase, [2 + digits * portions]; zero before the first kernel.
    Phase* phases;
    // Words of look-back, one for each tile of `unique_compact` or for each bucket, whichever are
    // more; zero before the first kernel.
    u64* tile_sums;
    // The number of keys before each bucket, [2^bits + 1].
    u32* bucket_starts;
    // The place of the next key of each bucket; after the partitions, the end of the bucket,
    // [2^bits].
    u32* bucket_ends;
    // The place of the next key of each digit of the first partition, or of each part of the range,
    // [MAX_PARTS].
    u32* digit_ends;
    // The number of tiles of the second partition before those of each digit, [MAX_SPLIT + 1].
    u32* digit_tiles;
    // The places of the keys of each bin of each digit, [portions + 1, digits, RADIX].
    u64* offsets;
    // Two arrays of words of look-back, [tiles of a portion, RADIX]; passes alternate between them.
    // If keys ascend: the number of distinct keys before each tile within its span, and before each
    // span.
    u32* sums[2];
    // Room for n keys.
    void* buffer;
    // The position, among all keys, of the first of each CHUNK distinct keys, [ceil(n / CHUNK)].
    u64* firsts;
    // The number of keys of a portion, a multiple of the number of keys of a tile.
    u64 portion_keys;
    // The number of portions of a pass.
    u32 portions;
    // The number of bits of a bucket's number.
    u32 bits;
    // The number of these bits that are the digit of the second partition; 0: there is no second
    // partition.
    u32 low_bits;
    // The number of positions (unique_plan.cuh) for which a block has one bit each in shared
    // memory; 0 if keys are sorted instead.
    u32 part_bits;
    // The number of tiles that a block of `unique_check` reads.
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
