// unique, by digits: a radix sort that begins with the least significant digit and reads and writes
// the keys once for each digit ("Onesweep": Adinets and Merrill, 2022). One more pass drops equal
// keys:
//
//   unique_by_digits   one launch for all digits. Its blocks read the keys once and count all
//                      digits of 8 bits. The block that finishes last computes offsets from the
//                      counts, and lists the digits in which keys differ at all. Then, for each of
//                      these digits, in portions of 2^16 tiles, a block takes the next tile, ranks
//                      its keys in shared memory, finds by look-back the number of keys of each
//                      digit in earlier tiles, and writes runs of keys with equal digits
//   unique_compact     keeps the first of equal keys, with the same look-back for a single sum.
//                      Keys that already ascend need only this kernel, without look-back, because
//                      `unique_check` has counted the distinct keys
//   unique_firsts,     if counts are wanted: `unique_compact` has stored the position of each
//                      distinct key,
//   unique_counts      and the differences of these positions are the counts
//
// Passes alternate between the workspace and `unique`, such that the last pass writes to the
// workspace, and `unique_compact` from there to `unique`.
//
// Threads and keys: a warp has 32 * ITEMS neighbouring keys, as ITEMS rows with one key for each
// lane. The sort must be stable, so keys are ranked in the order of the input: by warp, then by
// row, then by lane.
//
// Bytes for each key of 8 bytes: 8 for the counts, 16 for each digit in which keys differ, 8 to 16
// for `unique_compact`. If keys already ascend: 16 to 24 in all.
#pragma once

#include "unique_plan.cuh"

template <typename K>
struct Tile {
    static constexpr u32 ITEMS = sizeof(K) == 8 ? PASS_ITEMS_64 : PASS_ITEMS_32;
    static constexpr u32 KEYS = ITEMS * THREADS;
    static constexpr u32 COMPACT_KEYS = COMPACT_TILE_BYTES / sizeof(K);
    static constexpr u32 COMPACT_ITEMS = COMPACT_KEYS / THREADS;
    static constexpr u32 DIGITS = sizeof(K);
};

template <typename K>
INLINE u32 digit_of(K key, u64 flip, u32 digit) {
    return static_cast<u32>((key ^ static_cast<K>(flip)) >> (8 * digit)) & (RADIX - 1);
}

// ---- counts of digits -------------------------------------------------------

// Counts the digits of the warp's keys. If all these keys have the same digit, which is common for
// high digits, one addition counts it, instead of one addition for each key to the same word.
template <typename K, u32 ITEMS>
INLINE void count_digits(u32 (*histogram)[RADIX], const K (&keys)[ITEMS], u64 flip) {
    const K first = __shfl_sync(ALL_LANES, keys[0], 0);
    K differs = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) differs |= keys[i] ^ first;
    u32 low = __reduce_or_sync(ALL_LANES, static_cast<u32>(differs));
    u32 high = 0;
    if constexpr (sizeof(K) == 8) {
        high = __reduce_or_sync(ALL_LANES, static_cast<u32>(differs >> 32));
    }
#pragma unroll
    for (u32 digit = 0; digit < Tile<K>::DIGITS; digit++) {
        const u32 half = digit < 4 ? low : high;
        if ((half >> (8 * (digit % 4)) & (RADIX - 1)) == 0) {
            if (lane_id() == 0) {
                atomicAdd(&histogram[digit][digit_of(first, flip, digit)], WARP * ITEMS);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                atomicAdd(&histogram[digit][digit_of(keys[i], flip, digit)], 1u);
            }
        }
    }
}

// Replaces counts by offsets, and determines which digits need a pass. By one block.
template <typename K>
INLINE void make_plan(const Params& p) {
    __shared__ u64 sums[RADIX];
    u32 active = 0;
    const u32 bin = threadIdx.x;
    for (u32 digit = 0; digit < Tile<K>::DIGITS; digit++) {
        const u64 own = bin < RADIX ? __ldcg(&p.plan->counts[digit][bin]) : 0;
        // If one bin has all keys, a pass by this digit would not change their order.
        const bool needed = __syncthreads_or(own != 0 && own != p.n);
        if (bin < RADIX) sums[bin] = own;
        __syncthreads();
        for (u32 step = 1; step < RADIX; step *= 2) {
            const u64 below = bin < RADIX && bin >= step ? sums[bin - step] : 0;
            __syncthreads();
            if (bin < RADIX) sums[bin] += below;
            __syncthreads();
        }
        if (bin < RADIX) p.offsets[digit * RADIX + bin] = sums[bin] - own;
        active += needed;
        if (bin == 0 && needed) {
            p.plan->order[digit] = active;
            p.plan->digits[active - 1] = digit;
        }
        __syncthreads();
    }
    if (bin == 0) p.plan->active = active;
}

// Counts all digits of a block's slice of the keys, one of `slices`.
template <typename K>
INLINE void count_slice(const Params& p, u32 slice, u32 slices) {
    constexpr u32 DIGITS = Tile<K>::DIGITS;
    constexpr u32 ITEMS = 8;
    extern __shared__ uint4 memory[];
    u32(*counts)[RADIX] = reinterpret_cast<u32(*)[RADIX]>(memory);
    for (u32 i = threadIdx.x; i < DIGITS * RADIX; i += THREADS) counts[0][i] = 0;
    __syncthreads();
    const K* keys = static_cast<const K*>(p.keys);
    const u64 step = static_cast<u64>(slices) * THREADS * ITEMS;
    const u64 warp = threadIdx.x / WARP;
    for (u64 at = static_cast<u64>(slice) * THREADS * ITEMS; at < p.n; at += step) {
        const u64 start = at + warp * WARP * ITEMS + lane_id();
        if (at + (warp + 1) * WARP * ITEMS <= p.n) {
            K items[ITEMS];
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) items[i] = __ldg(keys + start + i * WARP);
            count_digits(counts, items, p.flip);
        } else {
            for (u64 i = start; i < p.n && i < start + WARP * ITEMS - lane_id(); i += WARP) {
                for (u32 digit = 0; digit < DIGITS; digit++) {
                    atomicAdd(&counts[digit][digit_of(keys[i], p.flip, digit)], 1u);
                }
            }
        }
    }
    __syncthreads();
    u64* totals = &p.plan->counts[0][0];
    for (u32 i = threadIdx.x; i < DIGITS * RADIX; i += THREADS) {
        if (counts[0][i] != 0) atomicAdd(&totals[i], static_cast<u64>(counts[0][i]));
    }
    // Clears this block's part of the words over which the first pass looks back.
    const u64 portion = p.n < p.portion_keys ? p.n : p.portion_keys;
    const u64 words = (portion + Tile<K>::KEYS - 1) / Tile<K>::KEYS * RADIX;
    for (u64 i = slice * static_cast<u64>(THREADS) + threadIdx.x; i < words;
         i += static_cast<u64>(slices) * THREADS) {
        p.sums[0][i] = 0;
    }
}

// ---- one digit ---------------------------------------------------------------

template <typename K>
struct PassShared {
    union {
        K keys[Tile<K>::KEYS];
        u64 slots[WARPS][RADIX]; // used before `keys` is: see rank_in_warp
    };
    u32 starts[WARPS][RADIX]; // where a warp's keys of a digit go in `keys`
    u64 targets[RADIX];       // added to a place in `keys`, gives the place in the output
};

// A mask of the lanes of the warp that have the same digit as this lane, found by votes.
INLINE u32 same_digit(u32 digit) {
    u32 mask = ALL_LANES;
#pragma unroll
    for (u32 bit = 0; bit < 8; bit++) {
        const bool set = digit >> bit & 1;
        const u32 vote = __ballot_sync(ALL_LANES, set);
        mask &= set ? vote : ~vote;
    }
    return mask;
}

// The number of keys with the same digit that the warp has ranked before this key. The upper half
// of a digit's slot has this count. Lanes that currently have the same digit are peers, and the
// lowest peer adds their number to the count. Lanes find their peers by an atomicOr into the lower
// half of the slot, which uses shared memory, or by votes, which use the arithmetic units. A pass
// alternates between the two.
template <bool VOTE>
INLINE u32 rank_in_warp(u64* slots, u32 digit) {
    u32* halves = reinterpret_cast<u32*>(&slots[digit]);
    u32 peers;
    u32 before;
    if constexpr (VOTE) {
        peers = same_digit(digit);
        before = halves[1];
    } else {
        atomicOr(&halves[0], 1u << lane_id());
        __syncwarp();
        const u64 slot = slots[digit];
        peers = static_cast<u32>(slot);
        before = static_cast<u32>(slot >> 32);
    }
    __syncwarp();
    const u32 below = peers & lanes_below();
    if (below == 0) slots[digit] = static_cast<u64>(before + __popc(peers)) << 32;
    __syncwarp();
    return before + __popc(below);
}

// The number of keys of digit `bin` in the tiles before this one. Reads the words of eight tiles at
// a time: if it read one word after the other, each word of a tile that is still in flight would
// cost a wait for memory.
INLINE u32 look_back(u32* sums, u32 tile, u32 bin, u32 own) {
    constexpr u32 WINDOW = 8;
    u32 before = 0;
    u32 t = tile; // `before` has the keys of tiles t to tile - 1
    while (t > 0) {
        u32 words[WINDOW];
#pragma unroll
        for (u32 i = 0; i < WINDOW; i++) {
            // The sum over the tiles before the first tile is known: 0.
            words[i] = i < t ? read_word(&sums[static_cast<u64>(t - 1 - i) * RADIX + bin])
                             : ALL_BEFORE << 30;
        }
        u32 seen = 0;
        bool done = false;
#pragma unroll
        for (u32 i = 0; i < WINDOW; i++) {
            const bool take = !done && seen == i && words[i] >> 30 != 0;
            before += take ? words[i] & 0x3FFFFFFFu : 0;
            seen += take;
            done |= take && words[i] >> 30 == ALL_BEFORE;
        }
        if (done) break;
        t -= seen;
    }
    write_word(&sums[static_cast<u64>(tile) * RADIX + bin], ALL_BEFORE << 30 | (before + own));
    return before;
}

// Sorts one tile in the pass by `digit` over a portion of the keys. Returns the number of the
// block's next tile to thread 0. Thread 0 requests this number just before the block writes its
// keys: if it did so later, the block would wait for the answer; if it did so earlier, the blocks
// of the tiles after that tile would look back at it for a long time before it has counts.
template <typename K>
INLINE u32 pass_tile(const Params& p, u32 digit, u32 portion, u32 tile, u32* taken) {
    constexpr u32 ITEMS = Tile<K>::ITEMS;
    constexpr u32 KEYS = Tile<K>::KEYS;
    extern __shared__ uint4 memory[];
    PassShared<K>& shared = *reinterpret_cast<PassShared<K>*>(memory);
    const u32 order = p.plan->order[digit];
    // The last pass writes the workspace, the one before it `unique`, and so on.
    const bool to_buffer = (p.plan->active - order) % 2 == 0;
    const K* from = static_cast<const K*>(order == 1 ? p.keys : to_buffer ? p.unique : p.buffer);
    K* to = static_cast<K*>(to_buffer ? p.buffer : p.unique);
    const u32 turn = ((order - 1) * p.portions + portion) % 2;
    u32* sums = p.sums[turn];

    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    for (u32 i = threadIdx.x; i < WARPS * RADIX; i += THREADS) shared.slots[0][i] = 0;
    __syncthreads();
    const u64 portion_start = portion * p.portion_keys;
    const u64 portion_end = min(p.n, portion_start + p.portion_keys);
    const u64 start = portion_start + static_cast<u64>(tile) * KEYS;
    const u32 valid = static_cast<u32>(min(portion_end - start, static_cast<u64>(KEYS)));

    // Places after the last key get a key with the largest digits, which ranks after all keys.
    const K none = ~static_cast<K>(p.flip);
    K keys[ITEMS];
    const u32 own_start = warp * WARP * ITEMS + lane;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = own_start + i * WARP;
        keys[i] = at < valid ? __ldcs(from + start + at) : none;
    }
    // Two ranks in each register.
    u32 ranks[ITEMS / 2];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 own = digit_of(keys[i], p.flip, digit);
        const u32 rank = i % 2 == 0 ? rank_in_warp<false>(shared.slots[warp], own)
                                    : rank_in_warp<true>(shared.slots[warp], own);
        ranks[i / 2] = i % 2 == 0 ? rank : ranks[i / 2] | rank << 16;
    }
    __syncthreads();

    // One thread for each digit adds up the number of keys of the tile with the digit, and
    // publishes this count at once for the following tiles. The count excludes the places after the
    // last key.
    const u32 bin = threadIdx.x;
    u32 count = 0;
    if (bin < RADIX) {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            shared.starts[w][bin] = count;
            count += static_cast<u32>(shared.slots[w][bin] >> 32);
        }
    }
    const u32 real = bin == RADIX - 1 ? count - (KEYS - valid) : count;
    if (bin < RADIX) {
        write_word(&sums[static_cast<u64>(tile) * RADIX + bin], TILE_ONLY << 30 | real);
    }
    u32 all;
    const u32 place = sum_before<THREADS>(count, all);
    if (bin < RADIX) {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) shared.starts[w][bin] += place;
    }
    // In the meantime, clears the words over which the next pass or portion looks back.
    const u64 tiles = (portion_end - portion_start + KEYS - 1) / KEYS;
    const u64 rows = (min(p.n, p.portion_keys) + KEYS - 1) / KEYS;
    if (bin < RADIX) {
        for (u64 row = tile; row < rows; row += tiles) p.sums[turn ^ 1][row * RADIX + bin] = 0;
    }
    __syncthreads();

#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 own = digit_of(keys[i], p.flip, digit);
        const u32 rank = ranks[i / 2] >> (i % 2 * 16) & 0xFFFF;
        shared.keys[shared.starts[warp][own] + rank] = keys[i];
    }

    if (bin < RADIX) {
        const u32 before = look_back(sums, tile, bin, real);
        u64* offsets = p.offsets + (static_cast<u64>(portion) * Tile<K>::DIGITS + digit) * RADIX;
        const u64 base = offsets[bin] + before;
        shared.targets[bin] = base - place;
        // The last tile of a portion computes where the keys of the next portion go.
        if (tile + 1 == tiles) offsets[Tile<K>::DIGITS * RADIX + bin] = base + real;
    }
    __syncthreads();
    const u32 next = threadIdx.x == 0 ? atomicAdd(taken, 1u) : 0;
#pragma unroll 4
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < valid) {
            const K key = shared.keys[at];
            to[shared.targets[digit_of(key, p.flip, digit)] + at] = key;
        }
    }
    return next;
}

// ---- equal keys --------------------------------------------------------------

// `first` in lane 0, and `other` in all other lanes. An explicit instruction, because compilers
// turn a conditional expression into a branch around the following shuffles and votes, and these
// take many times as long in a diverged warp.
template <typename T>
INLINE T in_first_lane(T first, T other) {
    T result;
    if constexpr (sizeof(T) == 8) {
        asm("{ .reg .pred p; setp.eq.u32 p, %1, 0; selp.b64 %0, %2, %3, p; }"
            : "=l"(result) : "r"(lane_id()), "l"(first), "l"(other));
    } else {
        asm("{ .reg .pred p; setp.eq.u32 p, %1, 0; selp.b32 %0, %2, %3, p; }"
            : "=r"(result) : "r"(lane_id()), "r"(first), "r"(other));
    }
    return result;
}

// Keeps the first of equal keys in one tile of ascending keys. If COUNTED, `unique_check` has
// counted the distinct keys before each tile. Otherwise look-back finds this count, and thread 0
// returns the number of the block's next tile, as in pass_tile.
template <typename K, bool COUNTED>
INLINE u32 compact_tile(const Params& p, const K* keys, u32 tile, u32 tiles) {
    constexpr u32 ITEMS = Tile<K>::COMPACT_ITEMS;
    constexpr u32 KEYS = Tile<K>::COMPACT_KEYS;
    __shared__ u32 totals[WARPS];
    __shared__ u64 shared_before;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u64 start = static_cast<u64>(tile) * KEYS + warp * WARP * ITEMS;
    u32 next = 0;
    u64 known = 0;
    if constexpr (COUNTED) known = p.sums[0][tile] + span_sums(p)[tile / p.span_tiles];
    K items[ITEMS];
    u32 heads[ITEMS];
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * WARP + lane;
        items[i] = at < p.n ? __ldcs(keys + at) : 0;
    }
    // The key before the warp's first key.
    K last = start > 0 && start <= p.n ? keys[start - 1] : 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * WARP + lane;
        const K below = __shfl_up_sync(ALL_LANES, items[i], 1);
        const K before = in_first_lane(last, below);
        last = __shfl_sync(ALL_LANES, items[i], WARP - 1);
        heads[i] = __ballot_sync(ALL_LANES, at < p.n && (at == 0 || items[i] != before));
        count += __popc(heads[i]);
    }
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, WARPS, lane);
    const u32 all = warps.all();
    const u32 before_warp = warps.before(warp);
    if constexpr (!COUNTED) {
        if (warp == 0) {
            if (lane == 0) {
                write_word(&p.tile_sums[tile], static_cast<u64>(TILE_ONLY) << 62 | all);
            }
            const u64 before = look_back_by_warp(p.tile_sums, tile, all);
            if (lane == 0) {
                shared_before = before;
                if (tile + 1 == tiles) *p.count = before + all;
            }
        }
        __syncthreads();
        known = shared_before;
        if (threadIdx.x == 0) next = atomicAdd(&p.phases[COMPACTING].taken, 1u);
    }
    u64 to = known + before_warp;
    K* unique = static_cast<K*>(p.unique);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (heads[i] >> lane & 1) {
            const u64 at = to + __popc(heads[i] & lanes_below());
            unique[at] = items[i];
            if (p.counts != nullptr) p.counts[at] = start + i * WARP + lane;
        }
        to += __popc(heads[i]);
    }
    __syncthreads(); // before the next tile overwrites shared memory
    return next;
}

// ---- counts ------------------------------------------------------------------

// Copies the first position of each of THREADS chunks, because the block of the chunk overwrites it
// while the block of the chunk before still needs it.
INLINE void copy_firsts(const Params& p, u32 tile) {
    const u64 chunk = tile * static_cast<u64>(THREADS) + threadIdx.x;
    if (chunk * CHUNK < *p.count) p.firsts[chunk] = p.counts[chunk * CHUNK];
}

// Replaces positions by counts, in place. By one block for each chunk.
INLINE void positions_to_counts(const Params& p, u32 chunk) {
    constexpr u32 ITEMS = CHUNK / THREADS;
    const u64 distinct = *p.count;
    const u64 start = chunk * static_cast<u64>(CHUNK);
    if (start >= distinct) return;
    u64 lengths[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * THREADS + threadIdx.x;
        lengths[i] = 0;
        if (at < distinct) {
            const u64 next = at + 1 == distinct       ? p.n
                             : at + 1 == start + CHUNK ? p.firsts[chunk + 1]
                                                       : p.counts[at + 1];
            lengths[i] = next - p.counts[at];
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * THREADS + threadIdx.x;
        if (at < distinct) p.counts[at] = lengths[i];
    }
}

// ---- launches ----------------------------------------------------------------

// The `number` of the block's first thread, in all its threads.
INLINE u32 for_block(u32 number) {
    __shared__ u32 shared;
    if (threadIdx.x == 0) shared = number;
    __syncthreads();
    number = shared;
    __syncthreads();
    return number;
}

// Waits until `word` is `value`, with all threads of the block.
INLINE void wait_until(const u32* word, u32 value) {
    if (threadIdx.x == 0) {
        while (read_word(word) != value) __nanosleep(64);
        __threadfence();
    }
    __syncthreads();
}

// All passes by digits, in one launch of as many blocks as run at the same time. A block takes
// slices of the keys to count, then tiles, pass by pass and portion by portion. Before a portion it
// waits until the previous portion is done. This wait ends, because the blocks that took the tiles
// of that portion are running.
template <typename K>
INLINE void by_digits(const Params& p) {
    if (p.plan->mode != BY_DIGITS) return;
    Phase& counting = p.phases[COUNTING];
    while (true) {
        const u32 slice = for_block(threadIdx.x == 0 ? atomicAdd(&counting.taken, 1u) : 0);
        if (slice >= gridDim.x) break;
        count_slice<K>(p, slice, gridDim.x);
        __threadfence();
        __syncthreads();
        if (for_block(threadIdx.x == 0 ? atomicAdd(&counting.done, 1u) : 0) != gridDim.x - 1) {
            continue;
        }
        __threadfence();
        make_plan<K>(p);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) write_word(&p.plan->digits_known, 1);
    }
    wait_until(&p.plan->digits_known, 1);
    const u64 tiles_of_pass = (p.n + Tile<K>::KEYS - 1) / Tile<K>::KEYS;
    const u32 portion_tiles = static_cast<u32>(p.portion_keys / Tile<K>::KEYS);
    const auto tiles_of = [&](u32 portion) {
        return static_cast<u32>(min(tiles_of_pass - static_cast<u64>(portion) * portion_tiles,
                                    static_cast<u64>(portion_tiles)));
    };
    const u32 phases = p.plan->active * p.portions;
    __shared__ u32 numbers[2];
    u32 turn = 0;
    for (u32 phase = 0; phase < phases; phase++) {
        const u32 portion = phase % p.portions;
        const u32 tiles = tiles_of(portion);
        if (phase > 0) {
            wait_until(&p.phases[FIRST_PASS + phase - 1].done,
                       tiles_of((phase - 1) % p.portions));
        }
        Phase& state = p.phases[FIRST_PASS + phase];
        const u32 digit = p.plan->digits[phase / p.portions];
        u32 done = 0;
        u32 next = threadIdx.x == 0 ? atomicAdd(&state.taken, 1u) : 0;
        while (true) {
            if (threadIdx.x == 0) numbers[turn] = next;
            __syncthreads();
            const u32 tile = numbers[turn];
            turn ^= 1;
            if (tile >= tiles) break;
            next = pass_tile<K>(p, digit, portion, tile, &state.taken);
            done++;
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0 && done != 0) atomicAdd(&state.done, done);
    }
}

template <typename K>
INLINE void compact(const Params& p) {
    const u32 mode = p.plan->mode;
    if (mode != BY_DIGITS && mode != SORTED) return;
    const bool moved = mode == BY_DIGITS && p.plan->active != 0;
    const K* keys = static_cast<const K*>(moved ? p.buffer : p.keys);
    const u32 tiles =
        static_cast<u32>((p.n + Tile<K>::COMPACT_KEYS - 1) / Tile<K>::COMPACT_KEYS);
    if (mode == SORTED) {
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            compact_tile<K, true>(p, keys, tile, tiles);
        }
        return;
    }
    // Blocks take tiles in order, so that look-back waits only for tiles of blocks that are
    // running.
    Phase& state = p.phases[COMPACTING];
    u32 next = threadIdx.x == 0 ? atomicAdd(&state.taken, 1u) : 0;
    while (true) {
        const u32 tile = for_block(next);
        if (tile >= tiles) break;
        next = compact_tile<K, false>(p, keys, tile, tiles);
    }
}

INLINE void firsts(const Params& p) {
    if (p.plan->mode == BY_DIGITS || p.plan->mode == SORTED) copy_firsts(p, blockIdx.x);
}

INLINE void counts_of_positions(const Params& p) {
    if (p.plan->mode == BY_DIGITS || p.plan->mode == SORTED) positions_to_counts(p, blockIdx.x);
}
