// What the kernels of `unique` share: the plan on the device, arguments, sums over a block,
// look-back.
#pragma once

#include "common.cuh"

constexpr u32 RADIX = 256;
constexpr u32 THREADS = 512;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 MAX_DIGITS = 8;

// Words of look-back: a flag above the sum it is about.
constexpr u32 TILE_ONLY = 1;
constexpr u32 ALL_BEFORE = 2;

// How a call goes on after `unique_survey`.
enum Mode : u32 {
    BY_DIGITS, // radix sort by each digit, then drop equals; also where nothing else is tried
    SORTED,    // keys ascend as they are: drop equals
    BUCKETS,   // partition, then sort buckets in shared memory
    THINNED,   // the same, and equals within a tile are dropped on the way
    BITS,      // partition to positions, then a bit for each position there could be
};

// A key's position is where it lies in [low, low + range], in 32 bits; outside of that range
// it is the nearer end. Position * scale is the bucket, and below the point the place in it.
struct Map {
    u64 low;
    u64 range;
    u32 shift;
    u32 scale;
};

// What the kernels tell each other; all zero before the first.
struct Plan {
    u64 counts[MAX_DIGITS][RADIX];
    Map map;
    u32 mode;
    u32 ascends;            // the sample does
    u32 bunched;            // some part of the range has far more than its share of the sample
    u32 repeated;           // what is crowded, if not that much, is mostly equals
    u32 unsorted;           // some key is above the next one
    u32 outside;            // some key is outside of the map's range
    u32 check_blocks;       // done
    u32 survey_blocks;      // done
    u32 partition_blocks;   // done with the last partition
    u32 buckets_taken;
    u32 tiles;              // of the second partition
    u32 active;             // digits in which keys differ
    u32 order[MAX_DIGITS];  // which pass a digit is, from 1; 0 for none
    u32 digits[MAX_DIGITS]; // the digit of a pass
    u32 digits_known;       // the two above are there
    u32 parts;              // of the range, where each has its map of bits
    u32 unused[12];
};
static_assert(sizeof(Plan) == 16384 + 192, "as in src/ops/unique.rs");

// How far something done by many blocks has come; all zero before.
struct Phase {
    u32 taken;
    u32 done;
};

// Phases that are no portion of a pass, and the first that is one.
enum : u32 { COUNTING, COMPACTING, FIRST_PASS };

#include "params/unique.cuh"

INLINE u32 read_word(const u32* from) { return *static_cast<const volatile u32*>(from); }
INLINE u64 read_word(const u64* from) { return *static_cast<const volatile u64*>(from); }
INLINE void write_word(u32* to, u32 word) { *static_cast<volatile u32*>(to) = word; }
INLINE void write_word(u64* to, u64 word) { *static_cast<volatile u64*>(to) = word; }

// Distinct keys before each span of tiles to compact.
INLINE u64* span_sums(const Params& p) { return reinterpret_cast<u64*>(p.sums[1]); }

// The sum over the threads before this one, of a block of N, and over all of them.
template <u32 N>
INLINE u32 sum_before(u32 value, u32& all) {
    __shared__ u32 totals[N / WARP];
    const u32 inclusive = warp_inclusive_sum(value);
    const u32 warp = threadIdx.x / WARP;
    if (lane_id() == WARP - 1) totals[warp] = inclusive;
    __syncthreads();
    // SumsOfWarps, written out: with it, unique_sort_buckets_64 grows by 1.5 KB.
    const u32 own = lane_id() < N / WARP ? totals[lane_id()] : 0;
    const u32 sums = warp_inclusive_sum(own);
    all = __shfl_sync(ALL_LANES, sums, N / WARP - 1);
    const u32 before = __shfl_sync(ALL_LANES, sums - own, warp);
    __syncthreads();
    return before + inclusive - value;
}

// The sum over the tiles before this one, by one warp: 128 words at a time.
INLINE u64 look_back_by_warp(u64* sums, u32 tile, u64 own) {
    constexpr u32 WINDOWS = 4;
    const u64 mask = (1ull << 62) - 1;
    u64 before = 0;
    bool done = tile == 0;
    for (i64 at = static_cast<i64>(tile) - 1 - lane_id(); !done; at -= WINDOWS * WARP) {
        u64 words[WINDOWS];
        // Before the first tile there is nothing, which is a known sum.
        const auto read = [&](u32 w) {
            const i64 from = at - static_cast<i64>(w * WARP);
            return from < 0 ? static_cast<u64>(ALL_BEFORE) << 62 : read_word(&sums[from]);
        };
#pragma unroll
        for (u32 w = 0; w < WINDOWS; w++) words[w] = read(w);
#pragma unroll
        for (u32 w = 0; w < WINDOWS; w++) {
            if (done) break;
            while (__any_sync(ALL_LANES, words[w] >> 62 == 0)) words[w] = read(w);
            const u32 known = __ballot_sync(ALL_LANES, words[w] >> 62 == ALL_BEFORE);
            const u32 nearest = known == 0 ? WARP - 1 : __ffs(known) - 1;
            before += warp_sum(lane_id() <= nearest ? words[w] & mask : 0);
            done = known != 0;
        }
    }
    if (lane_id() == 0) {
        write_word(&sums[tile], static_cast<u64>(ALL_BEFORE) << 62 | (before + own));
    }
    return before;
}
