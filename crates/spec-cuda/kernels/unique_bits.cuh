// unique, by bits: for keys that are so close together that there is a key for every few positions
// of their range (the position of a key is its distance from the low end of the range). Such keys
// are not sorted. One partition moves their positions, which have 4 bytes for any type of key, to
// parts of the range. Then one block for each part has a bit in shared memory for each position of
// the part. The set bits are the distinct keys, in order.
//
//   spread         writes the positions of each tile to their parts. The block first groups the
//                  positions of a part in shared memory, so that they are written as a run, as
//                  `partition` does with keys. The next tile is loaded at the same time
//   map_parts      one block for each part, in ascending order: sets bits, counts them, finds by
//                  look-back the number of set bits in earlier parts, and writes a key for each set
//                  bit
//
// The survey has checked that no key is outside of the range, that the bits of each part fit shared
// memory, and that no part has far more keys than the others.
//
// Bytes for each key of 8 bytes: 8 for the survey, 12 for `spread`, 4 to 12 for `map_parts`.
#pragma once

#include "unique_buckets.cuh"

constexpr u32 SPREAD_ITEMS = SPREAD_KEYS / BITS_THREADS;
constexpr u32 HALF_WORD = 16;
static_assert(MAX_PARTS == BITS_THREADS, "a part a thread");

template <typename K>
struct SpreadShared {
    K ahead[SPREAD_KEYS]; // keys of the next tile; a thread reads only those that it has copied
    u32 positions[SPREAD_KEYS];
    u32 counts[MAX_PARTS];
    u32 places[MAX_PARTS];  // where a part's positions go in `positions`
    u32 targets[MAX_PARTS]; // added to a place in `positions`, gives the place in the output
};

template <typename K>
INLINE void spread(const Params& p) {
    if (p.plan->mode != BITS) return;
    extern __shared__ uint4 memory[];
    SpreadShared<K>& shared = *reinterpret_cast<SpreadShared<K>*>(memory);
    const K* keys = static_cast<const K*>(p.keys);
    u32* to = static_cast<u32*>(p.buffer);
    const Map map = p.plan->map;
    const u32 parts = p.plan->parts;
    const u32 n = static_cast<u32>(p.n);
    const u32 tiles = (n + SPREAD_KEYS - 1) / SPREAD_KEYS;
    const u32 thread = threadIdx.x;
    const u32 low = static_cast<u32>(map.low);
    const auto part_of = [&](u32 position) {
        return __umulhi(position, map.scale) * parts >> p.bits;
    };
    const auto valid_of = [&](u32 tile) { return min(n - tile * SPREAD_KEYS, SPREAD_KEYS); };
    const auto load = [&](u32 tile) {
        const i32 mine = static_cast<i32>(valid_of(tile) - thread);
        const K* from = keys + tile * SPREAD_KEYS + thread;
#pragma unroll
        for (u32 i = 0; i < SPREAD_ITEMS; i++) {
            const u32 at = i * BITS_THREADS;
            if (static_cast<i32>(at) < mine) copy_async(&shared.ahead[at + thread], from + at);
        }
    };
    u32 tile = blockIdx.x;
    if (tile < tiles) load(tile);
    while (tile < tiles) {
        const u32 valid = valid_of(tile);
        const i32 mine = static_cast<i32>(valid - thread);
        shared.counts[thread] = 0;
        __syncthreads();
        await_copies();
        u32 positions[SPREAD_ITEMS];
#pragma unroll
        for (u32 i = 0; i < SPREAD_ITEMS; i++) {
            const K key = shared.ahead[i * BITS_THREADS + thread];
            positions[i] = static_cast<u32>(key ^ static_cast<K>(p.flip)) - low;
        }
        u32 ranks[SPREAD_ITEMS]; // the part << 16 | the rank within the part
#pragma unroll
        for (u32 i = 0; i < SPREAD_ITEMS; i++) {
            if (static_cast<i32>(i * BITS_THREADS) < mine) {
                const u32 part = part_of(positions[i]);
                ranks[i] = part << 16 | atomicAdd(&shared.counts[part], 1u);
            }
        }
        tile += gridDim.x;
        if (tile < tiles) load(tile);
        __syncthreads();
        const u32 own = shared.counts[thread];
        const u32 room = own != 0 ? atomicAdd(&p.digit_ends[thread], own) : 0;
        u32 all;
        const u32 place = sum_before<BITS_THREADS>(own, all);
        shared.places[thread] = place;
        shared.targets[thread] = room - place;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SPREAD_ITEMS; i++) {
            if (static_cast<i32>(i * BITS_THREADS) < mine) {
                shared.positions[shared.places[ranks[i] >> 16] + (ranks[i] & 0xFFFF)] =
                    positions[i];
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SPREAD_ITEMS; i++) {
            const u32 at = i * BITS_THREADS + thread;
            if (at < valid) {
                const u32 position = shared.positions[at];
                to[shared.targets[part_of(position)] + at] = position;
            }
        }
    }
}

template <typename K>
INLINE void map_parts(const Params& p) {
    constexpr u32 BITS_WARPS = BITS_THREADS / WARP;
    if (p.plan->mode != BITS) return;
    extern __shared__ uint4 memory[];
    u32* words = reinterpret_cast<u32*>(memory);
    __shared__ u32 totals[BITS_WARPS];
    __shared__ u64 shared_before;
    const u32 parts = p.plan->parts;
    const u32 part = for_block(threadIdx.x == 0 ? atomicAdd(&p.plan->buckets_taken, 1u) : 0);
    if (part >= parts) return;
    const Map map = p.plan->map;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 first = first_bucket(p, part, parts);
    const u32 end = first_bucket(p, part + 1, parts);
    const u64 base = first_position(first, map.scale);
    const u32 width = static_cast<u32>(first_position(end, map.scale) - base);
    // A row is 32 words, one for each lane. A warp has neighbouring rows.
    const u32 rows = (width + WARP * WARP - 1) / (WARP * WARP);
    const u32 rows_each = (rows + BITS_WARPS - 1) / BITS_WARPS;
    for (u32 i = threadIdx.x; i < rows * (WARP / 4); i += BITS_THREADS) {
        memory[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();

    const u32* from = static_cast<const u32*>(p.buffer);
    const u32 start = p.bucket_starts[first];
    const u32 stop = p.bucket_starts[end];
    const u32 low = static_cast<u32>(base);
    const auto set = [&](u32 position) {
        const u32 at = position - low;
        const u32 bit = 1u << at % WARP;
        u32* word = &words[at / WARP];
        // Tests the bit first, because atomic operations of many equal keys would wait for each
        // other.
        if ((*static_cast<volatile u32*>(word) & bit) == 0) atomicOr(word, bit);
    };
    const u32 inner = min((start + 3) / 4 * 4, stop); // aligned from here
    const u32 outer = max(stop / 4 * 4, inner);       // to here
    if (threadIdx.x < inner - start) set(from[start + threadIdx.x]);
    if (threadIdx.x < stop - outer) set(from[outer + threadIdx.x]);
    const uint4* wide = reinterpret_cast<const uint4*>(from + inner);
    const u32 fours = (outer - inner) / 4;
    constexpr u32 AHEAD = 4;
    u32 at = threadIdx.x;
    for (; at + (AHEAD - 1) * BITS_THREADS < fours; at += AHEAD * BITS_THREADS) {
        uint4 four[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) four[i] = __ldcs(wide + at + i * BITS_THREADS);
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            set(four[i].x);
            set(four[i].y);
            set(four[i].z);
            set(four[i].w);
        }
    }
    for (; at < fours; at += BITS_THREADS) {
        const uint4 four = __ldcs(wide + at);
        set(four.x);
        set(four.y);
        set(four.z);
        set(four.w);
    }
    __syncthreads();

    const u32 row_start = min(warp * rows_each, rows);
    const u32 row_end = min(row_start + rows_each, rows);
    u32 count = 0;
    for (u32 row = row_start; row < row_end; row++) count += __popc(words[row * WARP + lane]);
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane);
    const u32 all = warps.all();
    const u32 before_warp = warps.before(warp);
    if (warp == 0) {
        if (lane == 0) {
            write_word(&p.tile_sums[part], static_cast<u64>(TILE_ONLY) << 62 | all);
        }
        const u64 before = look_back_by_warp(p.tile_sums, part, all);
        if (lane == 0) {
            shared_before = before;
            if (part == parts - 1) *p.count = before + all;
        }
    }
    __syncthreads();
    // Each lane lists the set bits of its half word. Then lanes write neighbouring keys.
    u16* list = reinterpret_cast<u16*>(memory + p.part_bits / 128) + warp * WARP * HALF_WORD;
    const u16* halves = reinterpret_cast<const u16*>(words);
    K* unique = static_cast<K*>(p.unique) + shared_before + before_warp;
    const K flip = static_cast<K>(p.flip);
    K key = static_cast<K>(map.low) + static_cast<K>(base) + row_start * WARP * WARP;
    for (u32 row = 2 * row_start; row < 2 * row_end; row++) {
        u32 half = halves[row * WARP + lane];
        const u32 bits = __popc(half);
        const u32 sums = warp_inclusive_sum(bits);
        u16* to = list + sums - bits;
        while (half != 0) {
            *to++ = static_cast<u16>(lane * HALF_WORD + __ffs(half) - 1);
            half &= half - 1;
        }
        __syncwarp();
        const u32 row_keys = __shfl_sync(ALL_LANES, sums, WARP - 1);
        for (u32 i = lane; i < row_keys; i += WARP) unique[i] = (key + list[i]) ^ flip;
        __syncwarp();
        unique += row_keys;
        key += WARP * HALF_WORD;
    }
}
