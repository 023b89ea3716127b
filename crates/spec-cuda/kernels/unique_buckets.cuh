// unique, by buckets: keys are moved to where they belong by their high bits, in one or two
// partitions of up to 9 bits or a wide one of 10 or 11, until a bucket fits shared memory;
// there it is sorted, and loses its equals. Distinct keys need no stable order, so that no
// tile has to know the tiles before it: a tile asks for room for its keys of each digit by one
// addition ("hybrid radix sort": Stehle and Jacobsen, 2017).
//
//   check          one block looks at a sample: the range that buckets share, and whether
//                  some part of it is crowded. Meanwhile all others read keys, as long as
//                  they ascend: if all do, they have counted the distinct ones, and
//                  unique_passes.cuh has the rest
//   survey         reads the keys once: how many each bucket gets. What lies outside of the
//                  range goes to the first or last bucket. The last block decides how
//                  the call goes on, which the kernels after it read on the device
//   partition      writes each tile's keys to their digits, runs of neighbours through
//                  shared memory
//   partition_wide the same for more digits, in a larger tile
//   sort_buckets   a bucket a block, in ascending order: spreads keys over bins by position,
//                  orders the few of each bin, drops equals, learns by looking back how
//                  many distinct keys come before, and writes. `unique` is both source and
//                  target: a block writes where it and those before it have read, once
//                  each of them has told its sum
//
// A bucket too large for shared memory is no bucket: keys that bunch go by digits, as
// unique_passes.cuh has it. If it is equals that bunch and nobody wants counts, each tile drops
// those it sees (`thin`), and the buckets that are left are looked at again.
//
// Bytes a key of 8: 8 for the survey, 16 a partition, 8 to 16 at the end.
#pragma once

#include "unique_passes.cuh"

constexpr u32 MAX_SPLIT = THREADS;    // digits of a partition
constexpr u32 SURVEY_THREADS = 1024;
constexpr u32 SURVEY_ITEMS = 8;
constexpr u32 CHECK_THREADS = 512;
constexpr u32 SAMPLES = 4096;
constexpr u32 SAMPLE_BINS = 1024;
constexpr u32 SAMPLE_LIMIT = 8 * SAMPLES / SAMPLE_BINS; // eight times the average is bunched
constexpr u32 REPEAT_LIMIT = 5 * SAMPLES / SAMPLE_BINS; // and five times may be equals
constexpr u32 SPLIT_ITEMS = 16;
constexpr u32 SPLIT_KEYS = SPLIT_ITEMS * THREADS;
constexpr u32 BUCKET_ITEMS = 18;
constexpr u32 BUCKET_KEYS = BUCKET_ITEMS * THREADS;
constexpr u32 BIN_BITS = 13;
constexpr u32 BINS = 1 << BIN_BITS;
constexpr u32 BIN_LIMIT = 24;         // keys of a bin that are ordered one by one
constexpr u32 THIN_SLOTS = 4096;
constexpr u32 WIDE_THREADS = 1024;
constexpr u32 WIDE_SPLIT = 2048;      // digits of a wide partition
constexpr u32 MAX_PARTS = 1024;       // of the range, each with its map of bits
constexpr u32 KEY_POSITIONS = 16;     // positions a key, above which bits are too sparse
static_assert(BUCKET_KEYS < 1 << 16 && SPLIT_KEYS < 1 << 16, "places have 16 bits");

// ---- positions ---------------------------------------------------------------

// From [low, high] in keys' order to `parts` parts.
INLINE Map map_of(u64 low, u64 high, u32 parts) {
    const u64 range = max(high - low, static_cast<u64>(parts));
    const u32 width = 64 - __clzll(range);
    const u32 shift = width > 32 ? width - 32 : 0;
    // Rounded down, so that no position reaches the end.
    const float top = __ull2float_ru((range >> shift) + 1);
    const u32 scale = __float2uint_rz(__fdiv_rz(4294967296.0f * parts, top));
    return Map{low, range, shift, scale};
}

template <typename K>
INLINE u32 position_of(K key, const Map& map, u64 flip) {
    const u64 ordered = static_cast<u64>(key ^ static_cast<K>(flip));
    u64 from_low = ordered - map.low;
    if (from_low > map.range) from_low = ordered < map.low ? 0 : map.range;
    return static_cast<u32>(from_low >> map.shift);
}

template <typename K>
INLINE u32 bucket_of(K key, const Map& map, u64 flip) {
    return __umulhi(position_of(key, map, flip), map.scale);
}

// The least and the greatest of what all threads of a block of N bring.
template <u32 N>
INLINE void extremes(u64& least, u64& greatest) {
    __shared__ u64 both[2][N / WARP];
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        least = min(least, __shfl_xor_sync(ALL_LANES, least, step));
        greatest = max(greatest, __shfl_xor_sync(ALL_LANES, greatest, step));
    }
    if (lane_id() == 0) {
        both[0][threadIdx.x / WARP] = least;
        both[1][threadIdx.x / WARP] = greatest;
    }
    __syncthreads();
    least = both[0][lane_id() % (N / WARP)];
    greatest = both[1][lane_id() % (N / WARP)];
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        least = min(least, __shfl_xor_sync(ALL_LANES, least, step));
        greatest = max(greatest, __shfl_xor_sync(ALL_LANES, greatest, step));
    }
}

// ---- check -------------------------------------------------------------------

// What a sample says, into the plan. By one block, with its samples in order.
INLINE void judge_sample(const Params& p, const u64 (&items)[SAMPLES / CHECK_THREADS],
                         bool ascends, u64* table) {
    constexpr u32 ITEMS = SAMPLES / CHECK_THREADS;
    __shared__ u32 bins[SAMPLE_BINS];
    __shared__ u32 crowd;
    __shared__ u32 distinct;
    u64 least = ~0ull;
    u64 greatest = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        least = min(least, items[i]);
        greatest = max(greatest, items[i]);
    }
    for (u32 i = threadIdx.x; i < SAMPLE_BINS; i += CHECK_THREADS) bins[i] = 0;
    if (threadIdx.x == 0) crowd = distinct = 0;
    extremes<CHECK_THREADS>(least, greatest);
    // Keys beyond the sample's are likely, and few of them that far beyond.
    const u64 margin = (greatest - least) / 64;
    const u64 low = least - min(least, margin);
    const u64 high = greatest + min(~0ull - greatest, margin);

    const Map coarse = map_of(low, high, SAMPLE_BINS);
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        most = max(most, atomicAdd(&bins[bucket_of(items[i], coarse, 0)], 1u));
    }
    const bool bunched = __syncthreads_or(most >= SAMPLE_LIMIT);
    bool repeated = false;
    if (!ascends && __syncthreads_or(most >= REPEAT_LIMIT)) {
        // A set of those samples that bunch: an empty slot is all ones.
        constexpr u32 SLOTS = 2 * SAMPLES;
        const u32 limit = bunched ? SAMPLE_LIMIT : REPEAT_LIMIT;
        for (u32 i = threadIdx.x; i < SLOTS; i += CHECK_THREADS) table[i] = ~0ull;
        __syncthreads();
#pragma unroll 1
        for (u32 i = 0; i < ITEMS; i++) {
            if (bins[bucket_of(items[i], coarse, 0)] <= limit) continue;
            atomicAdd(&crowd, 1u);
            if (items[i] == ~0ull) continue; // one more at most
            u32 slot = static_cast<u32>(items[i] * 0x9E3779B97F4A7C15ull >> 32) % SLOTS;
            while (true) {
                const u64 found = atomicCAS(&table[slot], ~0ull, items[i]);
                if (found == ~0ull) atomicAdd(&distinct, 1u);
                if (found == ~0ull || found == items[i]) break;
                slot = (slot + 1) % SLOTS;
            }
        }
        __syncthreads();
        repeated = 2 * distinct < crowd;
    }
    if (threadIdx.x == 0) {
        p.plan->map = map_of(low, high, 1u << p.bits);
        p.plan->ascends = ascends;
        p.plan->bunched = bunched;
        p.plan->repeated = repeated;
    }
}

// The first block looks at a sample. Each of the others goes through a span of tiles: whether all
// keys ascend, and how many distinct ones there are before each tile. Whoever sees that they do
// not leaves at once, and then nobody is the last to be done.
template <typename K>
INLINE void check(const Params& p) {
    constexpr u32 SAMPLED = SAMPLES / CHECK_THREADS;
    constexpr u32 ITEMS = Tile<K>::COMPACT_KEYS / CHECK_THREADS;
    extern __shared__ uint4 memory[];
    __shared__ u32 totals[2][CHECK_THREADS / WARP];
    const K* keys = static_cast<const K*>(p.keys);
    const K flip = static_cast<K>(p.flip);
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 spans = gridDim.x - 1;
    bool stop = false;
    if (blockIdx.x == 0) {
        const u64 stride = p.n / SAMPLES;
        u64 items[SAMPLED];
#pragma unroll
        for (u32 i = 0; i < SAMPLED; i++) {
            // Two neighbours, which take as long as one.
            const u64 at = (threadIdx.x * SAMPLED + i / 2 * 2) * stride + i % 2;
            items[i] = __ldg(keys + at) ^ flip;
        }
#pragma unroll
        for (u32 i = 1; i < SAMPLED; i++) stop |= items[i - 1] > items[i];
        const u64 next = __shfl_down_sync(ALL_LANES, items[0], 1);
        if (lane < WARP - 1) stop |= items[SAMPLED - 1] > next;
        stop = __syncthreads_or(stop);
        if (threadIdx.x == 0 && stop) write_word(&p.plan->unsorted, 1);
        judge_sample(p, items, !stop, reinterpret_cast<u64*>(memory));
        if (stop) return;
    }

    const u32 tiles =
        static_cast<u32>((p.n + Tile<K>::COMPACT_KEYS - 1) / Tile<K>::COMPACT_KEYS);
    const u32 span = blockIdx.x - 1; // none for the first block
    const u32 first = blockIdx.x == 0 ? tiles : min(span * p.span_tiles, tiles);
    const u32 end = min(first + p.span_tiles, tiles);
    K ahead[ITEMS]; // of the tile to come
    K before_ahead; // the key before the warp's first
    u32 stop_ahead;
    const auto load = [&](u32 tile) {
        const u64 start = static_cast<u64>(tile) * Tile<K>::COMPACT_KEYS + warp * WARP * ITEMS;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u64 at = start + i * WARP + lane;
            ahead[i] = __ldcs(keys + min(at, p.n - 1)); // beyond the end, the last key again
        }
        before_ahead = __ldg(keys + min(start > 0 ? start - 1 : 0, p.n - 1));
        // By one thread: reads of one word by many wait for each other.
        stop_ahead = threadIdx.x == 0 ? read_word(&p.plan->unsorted) : 0;
    };
    u64 sum = 0;
    u32 turn = 0;
    if (first < end) load(first);
    for (u32 tile = first; tile < end; tile++) {
        K before = before_ahead;
        u32 heads = tile == 0 && threadIdx.x == 0; // nothing is before the first key
        stop = stop_ahead != 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const K left = __shfl_sync(ALL_LANES, ahead[i], lane + WARP - 1);
            const K below = in_first_lane(before, left);
            stop |= (below ^ flip) > (ahead[i] ^ flip);
            heads += below != ahead[i];
            before = left;
        }
        // What does not ascend shows in the first tile mostly: no more is read before.
        if (tile > first && tile + 1 < end) load(tile + 1);
        heads = __reduce_add_sync(ALL_LANES, heads);
        if (lane == 0) totals[turn][warp] = heads;
        stop = __syncthreads_or(stop);
        if (stop) {
            if (threadIdx.x == 0) write_word(&p.plan->unsorted, 1);
            return;
        }
        if (tile == first && tile + 1 < end) load(tile + 1);
        if (threadIdx.x == 0) p.sums[0][tile] = static_cast<u32>(sum);
        if (warp == 0) {
            sum += __reduce_add_sync(ALL_LANES,
                                     lane < CHECK_THREADS / WARP ? totals[turn][lane] : 0);
        }
        turn ^= 1;
    }
    if (threadIdx.x == 0 && blockIdx.x != 0) span_sums(p)[span] = sum;
    __threadfence();
    __syncthreads();
    if (for_block(threadIdx.x == 0 ? atomicAdd(&p.plan->check_blocks, 1u) : 0) != gridDim.x - 1) {
        return;
    }
    __threadfence();
    // Sums of the spans before, by one warp.
    if (warp != 0) return;
    u64 all = 0;
    for (u32 from = 0; from < spans; from += WARP) {
        const u32 at = from + lane;
        const u64 own = at < spans ? read_word(&span_sums(p)[at]) : 0;
        const u64 inclusive = warp_inclusive_sum(own, lane);
        if (at < spans) write_word(&span_sums(p)[at], all + inclusive - own);
        all += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    }
    if (lane == 0) {
        *p.count = all;
        p.plan->mode = SORTED;
    }
}

// ---- survey ------------------------------------------------------------------

// Counters of 16 bits, two a word. What a counter holds goes to memory by halves of its range:
// whoever brings it there moves a half, and the block meets before the other half is full.
constexpr u32 HALF = 0x8000;
constexpr u32 STEPS_TO_MEET = HALF / (SURVEY_THREADS * SURVEY_ITEMS);

INLINE void move_half(u32* words, u32 bucket, u32* totals) {
    atomicSub(&words[bucket / 2], HALF << bucket % 2 * 16);
    atomicAdd(&totals[bucket], HALF);
}

// Whether a counter that held less than half now holds more: the changed bits say.
INLINE bool reaches_half(u32 changed) { return (changed & (HALF | HALF << 16)) != 0; }

// Adds keys: which bits of the word that changes.
INLINE u32 count(u32* words, u32 bucket, u32 keys) {
    const u32 more = keys << bucket % 2 * 16;
    const u32 before = atomicAdd(&words[bucket / 2], more);
    return before ^ (before + more);
}

// The first of the buckets that part `part` of `parts` has.
INLINE u32 first_bucket(const Params& p, u32 part, u32 parts) {
    return ((part << p.bits) + parts - 1) / parts;
}

// The least position in a bucket.
INLINE u64 first_position(u32 bucket, u32 scale) {
    return ((static_cast<u64>(bucket) << 32) + scale - 1) / scale;
}

// Parts of the range for which a bit a position fits shared memory, or 0: there has to be a key
// for some positions, and no part that one block would be long busy with.
INLINE u32 parts_of_bits(const Params& p, const Map& map) {
    if (p.part_bits == 0 || map.shift != 0 || __ldcg(&p.plan->outside) != 0) return 0;
    if (map.range / KEY_POSITIONS > p.n) return 0;
    // Parts are whole buckets, so that some are larger than others.
    const u64 wanted = map.range / (p.part_bits - p.part_bits / 16) + 1;
    if (wanted > MAX_PARTS) return 0;
    const u32 parts = max(static_cast<u32>(wanted), MAX_PARTS / 2);
    if (parts > 1u << p.bits) return 0;
    bool fits = true;
    if (threadIdx.x < parts) {
        const u32 first = first_bucket(p, threadIdx.x, parts);
        const u32 end = first_bucket(p, threadIdx.x + 1, parts);
        const u64 positions = first_position(end, map.scale) - first_position(first, map.scale);
        fits = positions <= p.part_bits &&
               p.bucket_starts[end] - p.bucket_starts[first] <= 2 * (p.n / parts) + 4096;
    }
    return __syncthreads_and(fits) ? parts : 0;
}

// Where buckets start, and how the call goes on. By one block.
INLINE void decide(const Params& p, const Map& map) {
    static_assert(MAX_PARTS <= SURVEY_THREADS, "a part a thread");
    const u32 buckets = 1u << p.bits;
    const u32 digits = p.low_bits != 0 ? buckets >> p.low_bits : 0;
    const u32 each = max(buckets / SURVEY_THREADS, 1u);
    const u32 first = threadIdx.x * each;
    const u32 end = first < buckets ? first + each : first;
    u32 sum = 0;
    bool large = false;
#pragma unroll 8
    for (u32 i = first; i < end; i++) {
        const u32 keys = __ldcg(&p.bucket_counts[i]);
        sum += keys;
        large |= keys > BUCKET_KEYS;
    }
    u32 all;
    u32 start = sum_before<SURVEY_THREADS>(sum, all);
    const u32 group = min(each, 8u);
    for (u32 from = first; from < end; from += group) {
        u32 keys[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) keys[i] = i < group ? __ldcg(&p.bucket_counts[from + i]) : 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (i >= group) break;
            const u32 bucket = from + i;
            p.bucket_starts[bucket] = p.bucket_ends[bucket] = start;
            if (digits != 0 && bucket % (1u << p.low_bits) == 0) {
                p.digit_ends[bucket >> p.low_bits] = start;
            }
            start += keys[i];
        }
    }
    if (threadIdx.x == 0) p.bucket_starts[buckets] = all;
    large = __syncthreads_or(large);
    const u32 parts = parts_of_bits(p, map);
    u32 tiles = 0;
    if (threadIdx.x < digits) {
        const u32 next = threadIdx.x + 1 < digits ? p.digit_ends[threadIdx.x + 1] : all;
        tiles = (next - p.digit_ends[threadIdx.x] + SPLIT_KEYS - 1) / SPLIT_KEYS;
    }
    const u32 before = sum_before<SURVEY_THREADS>(tiles, all);
    if (threadIdx.x < digits) p.digit_tiles[threadIdx.x] = before;
    // Where a part's next key goes takes the place of the first partition's digits.
    if (parts != 0 && threadIdx.x < parts) {
        p.digit_ends[threadIdx.x] = p.bucket_starts[first_bucket(p, threadIdx.x, parts)];
    }
    if (threadIdx.x == 0) {
        p.digit_tiles[digits] = all;
        p.plan->tiles = all;
        p.plan->parts = parts;
        const bool thin = p.plan->repeated && p.counts == nullptr;
        p.plan->mode = parts != 0 ? BITS : !large ? BUCKETS : thin ? THINNED : BY_DIGITS;
    }
}

template <typename K>
INLINE void survey(const Params& p) {
    constexpr u32 ITEMS = SURVEY_ITEMS;
    constexpr u32 STEP = SURVEY_THREADS * ITEMS;
    extern __shared__ uint4 memory[];
    if (p.plan->mode == SORTED) return;
    // Nothing that a survey could add: the plan stays as it is.
    if (p.plan->bunched && !p.plan->ascends && !(p.plan->repeated && p.counts == nullptr)) return;
    u32* words = reinterpret_cast<u32*>(memory);
    const u32 buckets = 1u << p.bits;
    for (u32 i = threadIdx.x; i < buckets / 2; i += SURVEY_THREADS) words[i] = 0;
    __syncthreads();

    const Map map = p.plan->map;
    const u32 lane = lane_id();
    const K* keys = static_cast<const K*>(p.keys);
    const u64 own = threadIdx.x / WARP * WARP * ITEMS + lane;
    const u64 steps = p.n / STEP;
    const K flip = static_cast<K>(p.flip);
    bool outside = false;
    const auto bucket_and_bounds = [&](K key) {
        outside |= static_cast<u64>(key ^ flip) - map.low > map.range;
        return bucket_of(key, map, p.flip);
    };
    K ahead[ITEMS]; // of the step to come
    const auto load = [&](u64 step) {
        const K* from = keys + step * STEP + own;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) ahead[i] = __ldg(from + i * WARP);
    };
    u64 step = blockIdx.x;
    u32 taken = 0;
    if (step < steps) load(step);
    while (step < steps) {
        u32 bucket[ITEMS];
        u32 differs = 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            bucket[i] = bucket_and_bounds(ahead[i]);
            differs |= bucket[i] ^ bucket[0];
        }
        differs |= bucket[0] ^ __shfl_sync(ALL_LANES, bucket[0], 0);
        step += gridDim.x;
        if (step < steps) load(step);
        // Keys in some order come in runs of one bucket: one addition for all.
        if (__all_sync(ALL_LANES, differs == 0)) {
            if (lane == 0 && reaches_half(count(words, bucket[0], WARP * ITEMS))) {
                move_half(words, bucket[0], p.bucket_counts);
            }
        } else {
            u32 changed[ITEMS];
            u32 any = 0;
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) changed[i] = count(words, bucket[i], 1);
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) any |= changed[i];
            if (reaches_half(any)) {
#pragma unroll
                for (u32 i = 0; i < ITEMS; i++) {
                    if (reaches_half(changed[i])) move_half(words, bucket[i], p.bucket_counts);
                }
            }
        }
        if (++taken % STEPS_TO_MEET == 0) __syncthreads();
    }
    __syncthreads();
    // What is less than a step.
    if (blockIdx.x == gridDim.x - 1) {
        for (u64 i = steps * STEP + threadIdx.x; i < p.n; i += SURVEY_THREADS) {
            const u32 bucket = bucket_and_bounds(keys[i]);
            if (reaches_half(count(words, bucket, 1))) move_half(words, bucket, p.bucket_counts);
        }
    }
    outside = __syncthreads_or(outside);
    for (u32 i = threadIdx.x; i < buckets; i += SURVEY_THREADS) {
        const u32 keys_of = words[i / 2] >> (i % 2 * 16) & 0xFFFF;
        if (keys_of != 0) atomicAdd(&p.bucket_counts[i], keys_of);
    }
    if (threadIdx.x == 0 && outside) write_word(&p.plan->outside, 1);
    __threadfence();
    __syncthreads();
    if (for_block(threadIdx.x == 0 ? atomicAdd(&p.plan->survey_blocks, 1u) : 0) == gridDim.x - 1) {
        __threadfence();
        decide(p, map);
    }
}

// ---- partition ---------------------------------------------------------------

template <typename K>
struct SplitShared {
    K keys[SPLIT_KEYS];
    u32 counts[MAX_SPLIT];
    u32 places[MAX_SPLIT];  // where a digit's keys go in `keys`
    u32 targets[MAX_SPLIT]; // from a place in `keys` to a place in the output
    u16 owners[THIN_SLOTS];
};

// Which of the thread's keys stay, a bit each: of equals in the tile, the one whose slot it is,
// unless the slot is another key's. Two frequent keys that share a slot in one round do
// not in the other.
template <typename K>
INLINE u32 thin(SplitShared<K>& shared, const K (&keys)[SPLIT_ITEMS], u32 valid) {
    u32 stay = 0;
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < valid) {
            shared.keys[at] = keys[i];
            stay |= 1u << i;
        }
    }
#pragma unroll 1
    for (u32 round = 0; round < 2; round++) {
        const u64 factor = round == 0 ? 0x9E3779B97F4A7C15ull : 0xD1B54A32D192ED03ull;
        const auto slot_of = [&](K key) {
            return static_cast<u32>(key * factor >> 40) % THIN_SLOTS;
        };
#pragma unroll
        for (u32 i = 0; i < SPLIT_ITEMS; i++) {
            if (stay >> i & 1) {
                shared.owners[slot_of(keys[i])] = static_cast<u16>(i * THREADS + threadIdx.x);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SPLIT_ITEMS; i++) {
            if (stay >> i & 1) {
                const u32 owner = shared.owners[slot_of(keys[i])];
                if (owner != i * THREADS + threadIdx.x && shared.keys[owner] == keys[i]) {
                    stay &= ~(1u << i);
                }
            }
        }
        __syncthreads();
    }
    return stay;
}

// After tiles were thinned: whether every bucket fits now.
INLINE void check_buckets(const Params& p) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&p.plan->partition_blocks, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    bool large = false;
    for (u32 i = threadIdx.x; i < 1u << p.bits; i += blockDim.x) {
        large |= __ldcg(&p.bucket_ends[i]) - p.bucket_starts[i] > BUCKET_KEYS;
    }
    if (__syncthreads_or(large) && threadIdx.x == 0) p.plan->mode = BY_DIGITS;
}

// One tile. HIGH: of all keys, by their buckets' high bits. Otherwise of one of those parts, by the
// low bits.
template <typename K, bool HIGH>
INLINE void split_tile(const Params& p, bool thinned, u32 tile) {
    extern __shared__ uint4 memory[];
    __shared__ u32 shared_digit;
    SplitShared<K>& shared = *reinterpret_cast<SplitShared<K>*>(memory);
    const u32 low_bits = p.low_bits;
    const u32 highs = 1u << (p.bits - low_bits);
    const u32 digits = HIGH ? highs : 1u << low_bits;
    const bool last = !HIGH || low_bits == 0;
    const K* from = static_cast<const K*>(HIGH ? p.keys : p.buffer);
    K* to = static_cast<K*>(last ? p.unique : p.buffer);
    const Map map = p.plan->map;
    const auto digit_of = [&](K key) {
        const u32 bucket = bucket_of(key, map, p.flip);
        return HIGH ? bucket >> low_bits : bucket & (digits - 1);
    };
    u32 start = tile * SPLIT_KEYS;
    u32 end = static_cast<u32>(p.n);
    u32* ends = last ? p.bucket_ends : p.digit_ends;
    if (!HIGH) {
        if (threadIdx.x < highs && p.digit_tiles[threadIdx.x] <= tile &&
            tile < p.digit_tiles[threadIdx.x + 1]) {
            shared_digit = threadIdx.x;
        }
        __syncthreads();
        const u32 high = shared_digit;
        start = p.bucket_starts[high << low_bits] + (tile - p.digit_tiles[high]) * SPLIT_KEYS;
        end = max(p.digit_ends[high], start);
        ends += high << low_bits;
    }
    const u32 valid = min(end - start, SPLIT_KEYS);
    const i32 mine = static_cast<i32>(valid - threadIdx.x); // keys in steps of THREADS
    from += start + threadIdx.x;
    for (u32 i = threadIdx.x; i < digits; i += THREADS) shared.counts[i] = 0;
    K keys[SPLIT_ITEMS];
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine) keys[i] = __ldcs(from + i * THREADS);
    }
    __syncthreads();
    u32 stay = ALL_LANES;
    if (thinned) stay = thin(shared, keys, valid);
    u32 ranks[SPLIT_ITEMS]; // below the digit
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine && stay >> i & 1) {
            const u32 digit = digit_of(keys[i]);
            ranks[i] = digit << 16 | atomicAdd(&shared.counts[digit], 1u);
        }
    }
    __syncthreads();
    const u32 own = threadIdx.x < digits ? shared.counts[threadIdx.x] : 0;
    const u32 room = own != 0 ? atomicAdd(&ends[threadIdx.x], own) : 0;
    u32 all;
    const u32 place = sum_before<THREADS>(own, all);
    if (threadIdx.x < digits) {
        shared.places[threadIdx.x] = place;
        shared.targets[threadIdx.x] = room - place;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine && stay >> i & 1) {
            shared.keys[shared.places[ranks[i] >> 16] + (ranks[i] & 0xFFFF)] = keys[i];
        }
    }
    __syncthreads();
#pragma unroll 4
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < all) {
            const K key = shared.keys[at];
            to[shared.targets[digit_of(key)] + at] = key;
        }
    }
}

template <typename K, bool HIGH>
INLINE void partition(const Params& p) {
    const u32 mode = p.plan->mode;
    if (mode != BUCKETS && mode != THINNED) return;
    if (HIGH || blockIdx.x < p.plan->tiles) split_tile<K, HIGH>(p, mode == THINNED, blockIdx.x);
    if (mode == THINNED && (!HIGH || p.low_bits == 0)) check_buckets(p);
}

// The same after `partition_wide`, which has left nothing to do mostly: so it has fewer blocks.
template <typename K, bool HIGH>
INLINE void partition_thinned(const Params& p) {
    if (p.plan->mode != THINNED) return;
    const u32 all = (static_cast<u32>(p.n) + SPLIT_KEYS - 1) / SPLIT_KEYS;
    const u32 tiles = HIGH ? all : p.plan->tiles;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        split_tile<K, HIGH>(p, true, tile);
        __syncthreads(); // before the next tile takes the shared memory
    }
    if (!HIGH) check_buckets(p);
}

// ---- wide partition ----------------------------------------------------------

// All digits at once, where they are too many for a block of `partition` and not so many that
// what a tile has of each is short: one block a multiprocessor, whose shared memory holds a tile
// and the one to come. Where equals are dropped, two partitions leave fewer of them.
template <typename K>
struct WideShared {
    static constexpr u32 ITEMS = sizeof(K) == 8 ? 12 : 16;
    static constexpr u32 KEYS = ITEMS * WIDE_THREADS;
    K ahead[KEYS]; // of the tile to come; a thread reads what it has copied
    K keys[KEYS];
    u32 places[WIDE_SPLIT];  // keys of a digit, then where they go in `keys`
    u32 targets[WIDE_SPLIT]; // from a place in `keys` to a place in the output
};

template <typename K>
INLINE void partition_wide(const Params& p) {
    constexpr u32 ITEMS = WideShared<K>::ITEMS;
    constexpr u32 KEYS = WideShared<K>::KEYS;
    constexpr u32 N = WIDE_THREADS;
    static_assert(WIDE_SPLIT == 2 * N, "two digits a thread");
    if (p.plan->mode != BUCKETS) return;
    extern __shared__ uint4 memory[];
    WideShared<K>& shared = *reinterpret_cast<WideShared<K>*>(memory);
    const u32 thread = threadIdx.x;
    const u32 digits = 1u << p.bits;
    const K* from = static_cast<const K*>(p.keys);
    K* to = static_cast<K*>(p.unique);
    const Map map = p.plan->map;
    const u32 n = static_cast<u32>(p.n);
    const u32 tiles = (n + KEYS - 1) / KEYS;
    const auto valid_of = [&](u32 tile) { return min(n - tile * KEYS, KEYS); };
    const auto load = [&](u32 tile) {
        const i32 mine = static_cast<i32>(valid_of(tile) - thread);
        const K* keys = from + tile * KEYS + thread;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                copy_async(&shared.ahead[i * N + thread], keys + i * N);
            }
        }
    };
    u32 tile = blockIdx.x;
    if (tile < tiles) load(tile);
    while (tile < tiles) {
        const u32 valid = valid_of(tile);
        const i32 mine = static_cast<i32>(valid - thread); // keys in steps of N
        for (u32 i = thread; i < digits; i += N) shared.places[i] = 0;
        await_copies();
        K keys[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) keys[i] = shared.ahead[i * N + thread];
        __syncthreads();
        u32 ranks[ITEMS]; // below the digit
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                const u32 digit = bucket_of(keys[i], map, p.flip);
                ranks[i] = digit << 16 | atomicAdd(&shared.places[digit], 1u);
            }
        }
        tile += gridDim.x;
        if (tile < tiles) load(tile);
        __syncthreads();
        u32 own[2];
        u32 room[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 digit = 2 * thread + i;
            own[i] = digit < digits ? shared.places[digit] : 0;
            room[i] = own[i] != 0 ? atomicAdd(&p.bucket_ends[digit], own[i]) : 0;
        }
        u32 all;
        u32 place = sum_before<N>(own[0] + own[1], all);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 digit = 2 * thread + i;
            if (digit < digits) {
                shared.places[digit] = place;
                shared.targets[digit] = room[i] - place;
            }
            place += own[i];
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                shared.keys[shared.places[ranks[i] >> 16] + (ranks[i] & 0xFFFF)] = keys[i];
            }
        }
        __syncthreads();
#pragma unroll 4
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 at = i * N + thread;
            if (at < valid) {
                const K key = shared.keys[at];
                to[shared.targets[bucket_of(key, map, p.flip)] + at] = key;
            }
        }
        __syncthreads(); // before counts of the next tile take the places
    }
}

// ---- buckets -----------------------------------------------------------------

template <typename K>
struct BucketShared {
    union {
        K keys[BUCKET_KEYS];
        u64 slots[WARPS][RADIX];
    };
    union {
        u32 bins[BINS / 2];         // two counters a word; then where each bin starts
        u32 starts[WARPS][RADIX];
        u16 owners[BUCKET_KEYS];   // of a bin, a key; or where the first of equals is
    };
};

// Sorts shared.keys[..size] by those bytes in which keys differ: any keys, and slower.
template <typename K>
__device__ __noinline__ void sort_by_bytes(BucketShared<K>& shared, u32 size, u64 flip) {
    const u32 warp = threadIdx.x / WARP;
    const u32 first = warp * WARP * BUCKET_ITEMS + lane_id();
    const K none = ~static_cast<K>(flip); // ranks behind all others
    K keys[BUCKET_ITEMS];
    K differs = 0;
    const K some = shared.keys[0];
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) {
        const u32 at = first + i * WARP;
        keys[i] = at < size ? shared.keys[at] : none;
        if (at < size) differs |= keys[i] ^ some;
    }
    for (u32 digit = 0; digit < sizeof(K); digit++) {
        if (!__syncthreads_or((differs >> 8 * digit & (RADIX - 1)) != 0)) continue;
        for (u32 i = threadIdx.x; i < WARPS * RADIX; i += THREADS) shared.slots[0][i] = 0;
        __syncthreads();
        u32 ranks[BUCKET_ITEMS];
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            ranks[i] = rank_in_warp<false>(shared.slots[warp], digit_of(keys[i], flip, digit));
        }
        __syncthreads();
        u32 count = 0;
        if (threadIdx.x < RADIX) {
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                shared.starts[w][threadIdx.x] = count;
                count += static_cast<u32>(shared.slots[w][threadIdx.x] >> 32);
            }
        }
        u32 all;
        const u32 place = sum_before<THREADS>(count, all);
        if (threadIdx.x < RADIX) {
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) shared.starts[w][threadIdx.x] += place;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            shared.keys[shared.starts[warp][digit_of(keys[i], flip, digit)] + ranks[i]] = keys[i];
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) keys[i] = shared.keys[first + i * WARP];
    }
    __syncthreads();
}

// Drops most equals of shared.keys[..size], and says how many keys are left.
template <typename K>
__device__ __noinline__ u32 thin_bucket(BucketShared<K>& shared, u32 size) {
    for (u32 round = 0; round < 2; round++) {
        const u64 factor = round == 0 ? 0x9E3779B97F4A7C15ull : 0xD1B54A32D192ED03ull;
        const auto slot_of = [&](K key) { return static_cast<u32>(key * factor >> 51); };
        static_assert(BUCKET_KEYS >= 1 << 13, "slots of 13 bits");
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            shared.owners[slot_of(shared.keys[at])] = static_cast<u16>(at);
        }
        __syncthreads();
        K keys[BUCKET_ITEMS];
        u32 stay = 0;
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            if (at < size) {
                keys[i] = shared.keys[at];
                const u32 owner = shared.owners[slot_of(keys[i])];
                if (owner == at || shared.keys[owner] != keys[i]) stay |= 1u << i;
            }
        }
        u32 to = sum_before<THREADS>(__popc(stay), size);
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            if (stay >> i & 1) shared.keys[to++] = keys[i];
        }
        __syncthreads();
    }
    return size;
}

// Sorts shared.keys[..size]. What is not to be counted may lose equals on the way: the size that is
// left. A bin is a part of a bucket of `map`.
template <typename K>
INLINE u32 sort_bucket(BucketShared<K>& shared, u32 size, const Map& map, bool counted,
                       u64 key_flip) {
    constexpr u32 WORDS = BINS / 2 / THREADS; // of a thread
    const K flip = static_cast<K>(key_flip);
    const auto bin_of = [&](K key) {
        return position_of(key, map, key_flip) * map.scale >> (32 - BIN_BITS);
    };
    uint4* wide = reinterpret_cast<uint4*>(shared.bins) + threadIdx.x * (WORDS / 4);
    u32 bins[WORDS];
    u32 first;
    u32 own; // keys of a thread's bins
    for (bool again = false;; again = true) {
#pragma unroll
        for (u32 i = 0; i < WORDS / 4; i++) wide[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 6
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            const u32 bin = bin_of(shared.keys[at]);
            atomicAdd(&shared.bins[bin / 2], 1u << bin % 2 * 16);
        }
        __syncthreads();
        // Counts become starts; a thread keeps those of its bins.
        own = 0;
        u32 most = 0;
#pragma unroll
        for (u32 i = 0; i < WORDS; i += 4) {
            const uint4 four = wide[i / 4];
            bins[i] = four.x;
            bins[i + 1] = four.y;
            bins[i + 2] = four.z;
            bins[i + 3] = four.w;
        }
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) {
            own += (bins[i] & 0xFFFF) + (bins[i] >> 16);
            most = __vmaxu2(most, bins[i]);
        }
        const bool crowded = __syncthreads_or(max(most & 0xFFFF, most >> 16) > BIN_LIMIT);
        u32 all;
        first = sum_before<THREADS>(own, all);
        if (!crowded) break;
        // By equals, or by keys that are close.
        if (counted || again) {
            sort_by_bytes(shared, size, key_flip);
            return size;
        }
        size = thin_bucket(shared, size);
    }
    u32 at = first;
#pragma unroll
    for (u32 i = 0; i < WORDS; i += 4) {
        const auto start = [&](u32 counts) {
            const u32 second = at + (counts & 0xFFFF);
            const u32 starts = at | second << 16;
            at = second + (counts >> 16);
            return starts;
        };
        uint4 four;
        four.x = start(bins[i]);
        four.y = start(bins[i + 1]);
        four.z = start(bins[i + 2]);
        four.w = start(bins[i + 3]);
        wide[i / 4] = four;
    }
    K keys[BUCKET_ITEMS];
    const i32 mine = static_cast<i32>(size - threadIdx.x);
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) keys[i] = shared.keys[i * THREADS + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine) {
            const u32 bin = bin_of(keys[i]);
            const u32 shift = bin % 2 * 16;
            const u32 to = atomicAdd(&shared.bins[bin / 2], 1u << shift) >> shift & 0xFFFF;
            shared.keys[to] = keys[i];
        }
    }
    __syncthreads();
    // A thread orders the keys of its bins, which are nearly in order.
    if (own > 1) {
        K above = shared.keys[first] ^ flip;
        for (u32 j = first + 1; j < first + own; j++) {
            const K key = shared.keys[j] ^ flip;
            if (key >= above) {
                above = key;
                continue;
            }
            u32 to = j;
            K before = above;
            do {
                shared.keys[to--] = before ^ flip;
                if (to == first) break;
                before = shared.keys[to - 1] ^ flip;
            } while (key < before);
            shared.keys[to] = key ^ flip;
        }
    }
    __syncthreads();
    return size;
}

template <typename K>
INLINE void sort_buckets(const Params& p) {
    constexpr u32 ITEMS = BUCKET_ITEMS;
    extern __shared__ uint4 memory[];
    BucketShared<K>& shared = *reinterpret_cast<BucketShared<K>*>(memory);
    __shared__ u32 taken;
    __shared__ u64 shared_before;
    __shared__ u32 totals[WARPS];
    const bool whole = p.bits == 0; // all keys are one bucket
    if (!whole && p.plan->mode != BUCKETS && p.plan->mode != THINNED) return;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 buckets = 1u << p.bits;
    Map map{};
    if (!whole) map = p.plan->map;
    K* unique = static_cast<K*>(p.unique);
    u32 bucket = 0;
    u32 start = 0;
    u32 size = static_cast<u32>(p.n);
    const K* from = static_cast<const K*>(p.keys);
    if (!whole) {
        if (threadIdx.x == 0) taken = atomicAdd(&p.plan->buckets_taken, 1u);
        __syncthreads();
        bucket = taken;
        start = p.bucket_starts[bucket];
        size = p.bucket_ends[bucket] - start;
        from = unique + start;
    }
    for (u32 at = threadIdx.x; at < size; at += THREADS) copy_async(&shared.keys[at], from + at);
    await_copies();
    __syncthreads();
    if (whole) {
        u64 least = ~0ull;
        u64 greatest = 0;
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            const u64 ordered = static_cast<u64>(shared.keys[at] ^ static_cast<K>(p.flip));
            least = min(least, ordered);
            greatest = max(greatest, ordered);
        }
        extremes<THREADS>(least, greatest);
        map = map_of(least, greatest, 1);
    }
    size = sort_bucket(shared, size, map, p.counts != nullptr, p.flip);

    // A warp's keys are neighbours. Lane i keeps which of row i are the first of equals.
    const u32 first = warp * WARP * ITEMS + lane;
    u32 heads = 0;
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = first + i * WARP;
        const bool head = at < size && (at == 0 || shared.keys[at] != shared.keys[at - 1]);
        const u32 row = __ballot_sync(ALL_LANES, head);
        if (lane == i) heads = row;
        count += __popc(row);
    }
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, WARPS, lane);
    const u32 all = warps.all();
    u32 to = warps.before(warp);
    if (warp == 0) {
        if (lane == 0) {
            write_word(&p.tile_sums[bucket], static_cast<u64>(TILE_ONLY) << 62 | all);
        }
        const u64 before = look_back_by_warp(p.tile_sums, bucket, all);
        if (lane == 0) {
            shared_before = before;
            if (bucket == buckets - 1) *p.count = before + all;
        }
    }
    u16* places = shared.owners; // where the first of each equals is, for the counts
    __syncthreads();
    const u64 base = shared_before;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 row = __shfl_sync(ALL_LANES, heads, i);
        if (row >> lane & 1) {
            const u32 at = to + __popc(row & lanes_below());
            unique[base + at] = shared.keys[first + i * WARP];
            if (p.counts != nullptr) places[at] = static_cast<u16>(first + i * WARP);
        }
        to += __popc(row);
    }
    __syncthreads();
    if (p.counts != nullptr) {
        for (u32 i = threadIdx.x; i < all; i += THREADS) {
            const u32 end = i + 1 < all ? places[i + 1] : size;
            p.counts[base + i] = end - places[i];
        }
    }
}
