// unique: the distinct keys, ascending, and how often each occurs.
//
// A least significant digit radix sort with one read and one write of the keys a
// digit ("onesweep": Adinets and Merrill, 2022), then one pass that drops equals:
//
//   unique_histogram   reads the keys once and counts all digits of 8 bits; its last
//                      block turns counts into offsets and lists the digits in which
//                      keys differ at all: the plan, which stays on the device
//   unique_pass        one launch a digit, in portions of 2^16 tiles; a digit that the
//                      plan does not list returns at once. A block takes the next
//                      tile, ranks it in shared memory, learns how many keys of each
//                      digit lie before it by looking back over the tiles before, and
//                      writes runs of equal digits
//   unique_compact     keeps the first of equals; same look-back, for one sum
//   unique_firsts,     with counts: `compact` left each distinct key's position, and
//   unique_counts      the differences of positions are the counts
//
// Passes go back and forth between the workspace and `unique`, so that the last one
// ends in the workspace. Keys are stored as they are; `flip` is the sign bit of signed
// keys, which turns their order into that of unsigned ones.
//
// Threads to data: a warp owns 32 * ITEMS neighbouring keys, lane by lane, so ranks by
// (warp, item, lane) are stable.
//
// Bytes a key of 8: 8 for the histogram, 16 a digit that differs, 8 to 16 at the end.
// All 64 bits: 152, a floor of 51 ps a key at 3 TB/s (19.7 Gkeys/s); 30 bits: 88.
#include "common.cuh"

constexpr u32 RADIX = 256;
constexpr u32 THREADS = 512;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 MAX_DIGITS = 8;
constexpr u32 CHUNK = 4096; // positions a block of unique_counts turns into counts

// Words of look-back: a flag above the sum it is about.
constexpr u32 TILE_ONLY = 1;
constexpr u32 ALL_BEFORE = 2;

template <typename K>
struct Tile {
    static constexpr u32 ITEMS = sizeof(K) == 8 ? 16 : 24;
    static constexpr u32 KEYS = ITEMS * THREADS;
    static constexpr u32 COMPACT_ITEMS = sizeof(K) == 8 ? 8 : 16;
    static constexpr u32 COMPACT_KEYS = COMPACT_ITEMS * THREADS;
    static constexpr u32 DIGITS = sizeof(K);
};

// What the kernels tell each other; all zero before the first.
struct Plan {
    u64 counts[MAX_DIGITS][RADIX];
    u32 active;            // digits in which keys differ
    u32 order[MAX_DIGITS]; // which pass a digit is, from 1; 0 for none
    u32 blocks_done;       // of unique_histogram
    u32 compact_tiles;     // tiles that unique_compact has handed out
    u32 unused[5];
};
static_assert(sizeof(Plan) == 16384 + 64, "as in src/ops/unique.rs");

struct Params {
    const void* keys;
    void* unique;
    u64* count;
    u64* counts;
    u64 n;
    u64 flip;
    Plan* plan;
    u32* pass_tiles;   // [digits * portions]: tiles handed out; zero before
    u64* compact_sums; // [compact tiles]: look-back of unique_compact; zero before
    u64* offsets;      // [portions + 1, digits, RADIX]: where each digit's keys go
    u32* sums[2];      // [portion tiles, RADIX]: look-back of unique_pass, in turns
    void* buffer;      // [n] keys
    u64* firsts;       // [ceil(n / CHUNK)]
    u64 portion_keys;  // a multiple of the tile
    u32 portions;
    u32 digit;   // unique_pass: which one
    u32 portion; // unique_pass: which part of the keys
    u32 unused;
};
static_assert(sizeof(Params) == 136, "as in src/ops/unique.rs");

template <typename K>
INLINE u32 digit_of(K key, u64 flip, u32 digit) {
    return static_cast<u32>((key ^ static_cast<K>(flip)) >> (8 * digit)) & (RADIX - 1);
}

INLINE u32 read_word(const u32* from) { return *static_cast<const volatile u32*>(from); }
INLINE u64 read_word(const u64* from) { return *static_cast<const volatile u64*>(from); }
INLINE void write_word(u32* to, u32 word) { *static_cast<volatile u32*>(to) = word; }
INLINE void write_word(u64* to, u64 word) { *static_cast<volatile u64*>(to) = word; }

// The exclusive sum over the block's first 256 threads, one value each.
INLINE u32 sum_of_256(u32 value) {
    __shared__ u32 totals[RADIX / WARP];
    const u32 inclusive = warp_inclusive_sum(value);
    const u32 warp = threadIdx.x / WARP;
    if (threadIdx.x < RADIX && lane_id() == WARP - 1) totals[warp] = inclusive;
    __syncthreads();
    u32 before = 0;
    for (u32 w = 0; w < RADIX / WARP; w++) before += w < warp ? totals[w] : 0;
    __syncthreads();
    return before + inclusive - value;
}

// ---- histogram and plan ------------------------------------------------------

// Adds the digits of the warp's keys. Digits in which all of them agree, as high ones
// often do, take one addition instead of one a key to the same word.
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

// Offsets from counts, and which digits need a pass. By one block.
template <typename K>
INLINE void make_plan(const Params& p) {
    __shared__ u64 sums[RADIX];
    u32 active = 0;
    const u32 bin = threadIdx.x;
    for (u32 digit = 0; digit < Tile<K>::DIGITS; digit++) {
        const u64 own = bin < RADIX ? __ldcg(&p.plan->counts[digit][bin]) : 0;
        // All keys in one bin: the digit sorts nothing.
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
        if (bin == 0) p.plan->order[digit] = needed ? active : 0;
        __syncthreads();
    }
    if (bin == 0) p.plan->active = active;
}

template <typename K>
INLINE void histogram(const Params& p) {
    constexpr u32 DIGITS = Tile<K>::DIGITS;
    constexpr u32 ITEMS = 8;
    __shared__ u32 counts[DIGITS][RADIX];
    __shared__ bool last;
    for (u32 i = threadIdx.x; i < DIGITS * RADIX; i += THREADS) counts[0][i] = 0;
    __syncthreads();
    const K* keys = static_cast<const K*>(p.keys);
    const u64 step = static_cast<u64>(gridDim.x) * THREADS * ITEMS;
    const u64 warp = threadIdx.x / WARP;
    for (u64 at = static_cast<u64>(blockIdx.x) * THREADS * ITEMS; at < p.n; at += step) {
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
    // The first pass looks back over words that must start at zero.
    const u64 portion = p.n < p.portion_keys ? p.n : p.portion_keys;
    const u64 words = (portion + Tile<K>::KEYS - 1) / Tile<K>::KEYS * RADIX;
    for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < words;
         i += static_cast<u64>(gridDim.x) * THREADS) {
        p.sums[0][i] = 0;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&p.plan->blocks_done, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last) {
        __threadfence();
        make_plan<K>(p);
    }
}

// ---- one digit ---------------------------------------------------------------

template <typename K>
struct PassShared {
    union {
        K keys[Tile<K>::KEYS];
        u64 slots[WARPS][RADIX]; // before `keys`: see rank_in_warp
    };
    u32 starts[WARPS][RADIX]; // where a warp's keys of a digit go in `keys`
    u64 targets[RADIX];       // from a place in `keys` to a place in the output
    u32 tile;
};

// The lanes of the warp that hold the same digit, by votes.
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

// How many keys of the same digit the warp has met before this one. A digit's slot
// holds that count above the lanes that meet it now; the lowest of them adds them up.
// Lanes find their peers by an atomicOr into the slot, which keeps shared memory busy,
// or by votes, which keep the arithmetic units busy: a pass does both in turns.
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

// How many keys of digit `bin` lie in the tiles before this one. Reads eight tiles at a
// time: one at a time, the way back over tiles in flight is a chain of waits for memory.
INLINE u32 look_back(u32* sums, u32 tile, u32 bin, u32 own) {
    constexpr u32 WINDOW = 8;
    u32 before = 0;
    u32 t = tile; // tiles from here on are in `before`
    while (t > 0) {
        u32 words[WINDOW];
#pragma unroll
        for (u32 i = 0; i < WINDOW; i++) {
            // Before the first tile there is nothing, which is a known sum.
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

template <typename K>
INLINE void radix_pass(const Params& p) {
    constexpr u32 ITEMS = Tile<K>::ITEMS;
    constexpr u32 KEYS = Tile<K>::KEYS;
    extern __shared__ uint4 memory[];
    PassShared<K>& shared = *reinterpret_cast<PassShared<K>*>(memory);
    const u32 order = p.plan->order[p.digit];
    if (order == 0) return;
    const u32 active = p.plan->active;
    // The last pass writes the workspace, the one before it `unique`, and so on.
    const bool to_buffer = (active - order) % 2 == 0;
    const K* from = static_cast<const K*>(order == 1 ? p.keys : to_buffer ? p.unique : p.buffer);
    K* to = static_cast<K*>(to_buffer ? p.buffer : p.unique);
    const u32 turn = ((order - 1) * p.portions + p.portion) % 2;
    u32* sums = p.sums[turn];

    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) {
        shared.tile = atomicAdd(&p.pass_tiles[p.digit * p.portions + p.portion], 1u);
    }
    for (u32 i = threadIdx.x; i < WARPS * RADIX; i += THREADS) shared.slots[0][i] = 0;
    __syncthreads();
    const u32 tile = shared.tile;
    const u64 portion_start = p.portion * p.portion_keys;
    const u64 portion_end = min(p.n, portion_start + p.portion_keys);
    const u64 start = portion_start + static_cast<u64>(tile) * KEYS;
    const u32 valid = static_cast<u32>(min(portion_end - start, static_cast<u64>(KEYS)));

    // Where keys end, the largest digit stands in: it ranks behind all others.
    const K none = ~static_cast<K>(p.flip);
    K keys[ITEMS];
    const u32 own_start = warp * WARP * ITEMS + lane;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = own_start + i * WARP;
        keys[i] = at < valid ? __ldcs(from + start + at) : none;
    }
    // Two ranks a register.
    u32 ranks[ITEMS / 2];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 digit = digit_of(keys[i], p.flip, p.digit);
        const u32 rank = i % 2 == 0 ? rank_in_warp<false>(shared.slots[warp], digit)
                                    : rank_in_warp<true>(shared.slots[warp], digit);
        ranks[i / 2] = i % 2 == 0 ? rank : ranks[i / 2] | rank << 16;
    }
    __syncthreads();

    // A thread a digit: its count, told to the tiles that follow at once.
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
    const u32 place = sum_of_256(count);
    if (bin < RADIX) {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) shared.starts[w][bin] += place;
    }
    // The words of the next pass, meanwhile.
    const u64 tiles = (portion_end - portion_start + KEYS - 1) / KEYS;
    const u64 rows = (min(p.n, p.portion_keys) + KEYS - 1) / KEYS;
    if (bin < RADIX) {
        for (u64 row = tile; row < rows; row += tiles) p.sums[turn ^ 1][row * RADIX + bin] = 0;
    }
    __syncthreads();

#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 digit = digit_of(keys[i], p.flip, p.digit);
        const u32 rank = ranks[i / 2] >> (i % 2 * 16) & 0xFFFF;
        shared.keys[shared.starts[warp][digit] + rank] = keys[i];
    }

    if (bin < RADIX) {
        const u32 before = look_back(sums, tile, bin, real);
        u64* offsets = p.offsets + (static_cast<u64>(p.portion) * Tile<K>::DIGITS + p.digit) * RADIX;
        const u64 base = offsets[bin] + before;
        shared.targets[bin] = base - place;
        // Where the next portion goes on.
        if (tile + 1 == tiles) offsets[Tile<K>::DIGITS * RADIX + bin] = base + real;
    }
    __syncthreads();
#pragma unroll 4
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < valid) {
            const K key = shared.keys[at];
            to[shared.targets[digit_of(key, p.flip, p.digit)] + at] = key;
        }
    }
}

// ---- equals ------------------------------------------------------------------

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
            u64 sum = lane_id() <= nearest ? words[w] & mask : 0;
#pragma unroll
            for (u32 step = WARP / 2; step > 0; step /= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, step);
            }
            before += sum;
            done = known != 0;
        }
    }
    if (lane_id() == 0) {
        write_word(&sums[tile], static_cast<u64>(ALL_BEFORE) << 62 | (before + own));
    }
    return before;
}

template <typename K>
INLINE void compact(const Params& p) {
    constexpr u32 ITEMS = Tile<K>::COMPACT_ITEMS;
    constexpr u32 KEYS = Tile<K>::COMPACT_KEYS;
    __shared__ u32 totals[WARPS];
    __shared__ u32 shared_tile;
    __shared__ u64 shared_before;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) shared_tile = atomicAdd(&p.plan->compact_tiles, 1u);
    __syncthreads();
    const u32 tile = shared_tile;
    const u64 start = static_cast<u64>(tile) * KEYS + warp * WARP * ITEMS;
    const K* keys = static_cast<const K*>(p.plan->active == 0 ? p.keys : p.buffer);
    K items[ITEMS];
    u32 heads[ITEMS];
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * WARP + lane;
        items[i] = at < p.n ? __ldcs(keys + at) : 0;
    }
    // The key before the warp's first.
    K last = start > 0 && start <= p.n ? __ldg(keys + start - 1) : 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * WARP + lane;
        const K below = __shfl_up_sync(ALL_LANES, items[i], 1);
        const K before = lane == 0 ? last : below;
        last = __shfl_sync(ALL_LANES, items[i], WARP - 1);
        heads[i] = __ballot_sync(ALL_LANES, at < p.n && (at == 0 || items[i] != before));
        count += __popc(heads[i]);
    }
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    u32 own = lane < WARPS ? totals[lane] : 0;
    const u32 inclusive = warp_inclusive_sum(own);
    const u32 all = __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    const u32 before_warp = __shfl_sync(ALL_LANES, inclusive - own, warp);
    if (warp == 0) {
        if (lane == 0) {
            write_word(&p.compact_sums[tile], static_cast<u64>(TILE_ONLY) << 62 | all);
        }
        const u64 before = look_back_by_warp(p.compact_sums, tile, all);
        if (lane == 0) {
            shared_before = before;
            if (tile == gridDim.x - 1) *p.count = before + all;
        }
    }
    __syncthreads();
    u64 to = shared_before + before_warp;
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
}

// ---- counts ------------------------------------------------------------------

// The first position of every chunk, before unique_counts overwrites it.
INLINE void copy_firsts(const Params& p) {
    const u64 chunk = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x;
    if (chunk * CHUNK < *p.count) p.firsts[chunk] = p.counts[chunk * CHUNK];
}

// Positions to counts, in place: a chunk a block.
INLINE void positions_to_counts(const Params& p) {
    constexpr u32 ITEMS = CHUNK / THREADS;
    const u64 distinct = *p.count;
    const u64 start = blockIdx.x * static_cast<u64>(CHUNK);
    if (start >= distinct) return;
    u64 lengths[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u64 at = start + i * THREADS + threadIdx.x;
        lengths[i] = 0;
        if (at < distinct) {
            const u64 next = at + 1 == distinct       ? p.n
                             : at + 1 == start + CHUNK ? p.firsts[blockIdx.x + 1]
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

// Two blocks of a pass fit the shared memory of a multiprocessor, so their registers must.
SPEC_KERNEL_BLOCKS(unique_histogram_32, histogram<u32>, Params, THREADS, 3)
SPEC_KERNEL_BLOCKS(unique_histogram_64, histogram<u64>, Params, THREADS, 3)
SPEC_KERNEL_BLOCKS(unique_pass_32, radix_pass<u32>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_pass_64, radix_pass<u64>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_compact_32, compact<u32>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_compact_64, compact<u64>, Params, THREADS, 3)
SPEC_KERNEL(unique_firsts, copy_firsts, Params, THREADS)
SPEC_KERNEL(unique_counts, positions_to_counts, Params, THREADS)
