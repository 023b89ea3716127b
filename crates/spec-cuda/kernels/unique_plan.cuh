// Shared by the kernels of `unique`: the plan on the device, arguments, sums over a block,
// look-back.
#pragma once

#include "common.cuh"

// Both are defined below. The parameters have pointers to them.
struct Plan;
struct Phase;

#include "params/unique.cuh"

constexpr u32 MAX_DIGITS = 8;

// A word of look-back is 0 until its tile is counted. Then its two upper bits have one of these
// values, and the bits below have a sum: of this tile only, or of this tile and all earlier tiles.
constexpr u32 TILE_ONLY = 1;
constexpr u32 ALL_BEFORE = 2;

// The route of a call after `unique_survey`.
enum Mode : u32 {
    BY_DIGITS, // radix sort by each digit, then drop equal keys; also if no other route is tried
    SORTED,    // keys ascend already: only drop equal keys
    BUCKETS,   // partition, then sort buckets in shared memory
    THINNED,   // as BUCKETS, but partitions drop equal keys within a tile
    BITS,      // partition positions, then set a bit for each
};

// Maps keys to positions and buckets. The position of a key is its distance from `low`, shifted
// right by `shift` so that it has 32 bits. A key outside of [low, low + range] has the position of
// the nearer end. Of the 64 bits of position * scale, the upper 32 are the bucket, and the lower 32
// the place within the bucket.
struct Map {
    u64 low;
    u64 range;
    u32 shift;
    u32 scale;
};

// Values that the kernels pass to each other; all zero before the first kernel.
struct Plan {
    u64 counts[MAX_DIGITS][RADIX];
    Map map;
    u32 mode;
    u32 ascends;            // whether the sample ascends
    u32 bunched;            // whether the sample crowds some part of the range
    u32 repeated;           // whether the samples in crowded parts are mostly equal keys
    u32 unsorted;           // whether some key is larger than the next one
    u32 outside;            // whether some key is outside of the map's range
    u32 check_blocks;       // blocks of `check` that are done
    u32 survey_blocks;      // blocks of `survey` that are done
    u32 partition_blocks;   // blocks of the last partition that are done
    u32 buckets_taken;      // buckets, or parts of the range, that blocks have taken
    u32 tiles;              // tiles of the second partition
    u32 active;             // how many digits there are in which keys differ
    u32 order[MAX_DIGITS];  // which pass is by a digit, counted from 1; 0 for none
    u32 digits[MAX_DIGITS]; // the digit of a pass
    u32 digits_known;       // whether the three fields above are written
    u32 parts;              // parts of the range, for mode BITS
    u32 unused[12];
};
static_assert(sizeof(Plan) == PLAN_BYTES);

// The progress of work that many blocks divide: the number of tiles or slices that they have taken,
// and the number that they have finished. Zero before the first kernel.
struct Phase {
    u32 taken;
    u32 done;
};

// The phases: counting digits, compacting, and from FIRST_PASS on each portion of each pass.
enum : u32 { COUNTING, COMPACTING, FIRST_PASS };
static_assert(FIRST_PASS == PHASES);

INLINE u32 read_word(const u32* from) { return *static_cast<const volatile u32*>(from); }
INLINE u64 read_word(const u64* from) { return *static_cast<const volatile u64*>(from); }
INLINE void write_word(u32* to, u32 word) { *static_cast<volatile u32*>(to) = word; }
INLINE void write_word(u64* to, u64 word) { *static_cast<volatile u64*>(to) = word; }

// If keys ascend: the number of distinct keys before each span of tiles.
INLINE u64* span_sums(const Params& p) { return reinterpret_cast<u64*>(p.sums[1]); }

// The sum over the threads before this one, in a block of N threads. `all` is the sum over all
// threads.
template <u32 N>
INLINE u32 sum_before(u32 value, u32& all) {
    __shared__ u32 totals[N / WARP];
    const u32 inclusive = warp_inclusive_sum(value);
    const u32 warp = threadIdx.x / WARP;
    if (lane_id() == WARP - 1) totals[warp] = inclusive;
    __syncthreads();
    // The same as SumsOfWarps, but that struct would make unique_sort_buckets_64 1.5 KB larger.
    const u32 own = lane_id() < N / WARP ? totals[lane_id()] : 0;
    const u32 sums = warp_inclusive_sum(own);
    all = __shfl_sync(ALL_LANES, sums, N / WARP - 1);
    const u32 before = __shfl_sync(ALL_LANES, sums - own, warp);
    __syncthreads();
    return before + inclusive - value;
}

// The sum over the tiles before this one. By one warp, which reads 128 words at a time. Afterwards
// the word of this tile has the sum of this tile and all earlier tiles.
INLINE u64 look_back_by_warp(u64* sums, u32 tile, u64 own) {
    constexpr u32 WINDOWS = 4;
    const u64 mask = (1ull << 62) - 1;
    u64 before = 0;
    bool done = tile == 0;
    for (i64 at = static_cast<i64>(tile) - 1 - lane_id(); !done; at -= WINDOWS * WARP) {
        u64 words[WINDOWS];
        // The sum over the tiles before the first tile is known: 0.
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
