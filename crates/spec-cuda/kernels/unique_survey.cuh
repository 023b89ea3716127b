// unique, before keys are moved: `check` tests a sample, and whether all keys ascend; `survey`
// counts the keys of each bucket and decides the route. unique_buckets.cuh has the design.
#pragma once

#include "unique_passes.cuh"

constexpr u32 SURVEY_ITEMS = SURVEY_KEYS / SURVEY_THREADS;
constexpr u32 SAMPLE_BINS = 1024;
// The sample is bunched if a bin has eight times the average. From five times on, the keys of a bin
// are checked for equal ones.
constexpr u32 SAMPLE_LIMIT = 8 * SAMPLES / SAMPLE_BINS;
constexpr u32 REPEAT_LIMIT = 5 * SAMPLES / SAMPLE_BINS;
constexpr u32 SPLIT_ITEMS = SPLIT_KEYS / THREADS;
constexpr u32 BUCKET_ITEMS = BUCKET_KEYS / THREADS;
constexpr u32 BIN_BITS = 13;
constexpr u32 BINS = 1 << BIN_BITS;
constexpr u32 BIN_LIMIT = 24;         // the largest bin that a thread sorts by insertion
constexpr u32 KEY_POSITIONS = 16;     // with more positions for each key, bits are too sparse
static_assert(BUCKET_KEYS < 1 << 16 && SPLIT_KEYS < 1 << 16, "places have 16 bits");

// ---- positions ---------------------------------------------------------------

// The map from the range [low, high] to `parts` buckets. `low` and `high` have the order of
// unsigned keys.
INLINE Map map_of(u64 low, u64 high, u32 parts) {
    const u64 range = max(high - low, static_cast<u64>(parts));
    const u32 width = 64 - __clzll(range);
    const u32 shift = width > 32 ? width - 32 : 0;
    // Rounded down, so that even the last position is in a bucket below `parts`.
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

// The least value of `least` and the greatest value of `greatest` in a block of N threads, for all
// threads.
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

// Writes to the plan what a sample shows. By one block, whose threads have the samples in order.
INLINE void judge_sample(const Params& p, const u64 (&items)[SAMPLES / THREADS],
                         bool ascends, u64* table) {
    constexpr u32 ITEMS = SAMPLES / THREADS;
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
    for (u32 i = threadIdx.x; i < SAMPLE_BINS; i += THREADS) bins[i] = 0;
    if (threadIdx.x == 0) crowd = distinct = 0;
    extremes<THREADS>(least, greatest);
    // Some keys are probably outside of the range of the sample, but few are further away than this
    // margin.
    const u64 margin = (greatest - least) / 64;
    const u64 low = least - min(least, margin);
    const u64 high = greatest + min(~0ull - greatest, margin);

    const Map coarse = map_of(low, high, SAMPLE_BINS);
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        largest = max(largest, atomicAdd(&bins[bucket_of(items[i], coarse, 0)], 1u));
    }
    const bool bunched = __syncthreads_or(largest >= SAMPLE_LIMIT);
    bool repeated = false;
    if (!ascends && __syncthreads_or(largest >= REPEAT_LIMIT)) {
        // A hash set of the samples in crowded bins. The bits of an empty slot are all 1.
        constexpr u32 SLOTS = 2 * SAMPLES;
        const u32 limit = bunched ? SAMPLE_LIMIT : REPEAT_LIMIT;
        for (u32 i = threadIdx.x; i < SLOTS; i += THREADS) table[i] = ~0ull;
        __syncthreads();
#pragma unroll 1
        for (u32 i = 0; i < ITEMS; i++) {
            if (bins[bucket_of(items[i], coarse, 0)] <= limit) continue;
            atomicAdd(&crowd, 1u);
            if (items[i] == ~0ull) continue; // not in the set; one distinct key is missed at most
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

// The first block tests a sample. Each other block reads a span of tiles, and determines whether
// its keys ascend, and the number of distinct keys before each tile. A block that finds out that
// keys do not ascend, by itself or from another block, returns at once. It is then not counted as
// done, so no block is the last one to be done, and the mode does not become SORTED.
template <typename K>
INLINE void check(const Params& p) {
    constexpr u32 SAMPLED = SAMPLES / THREADS;
    constexpr u32 ITEMS = Tile<K>::COMPACT_KEYS / THREADS;
    extern __shared__ uint4 memory[];
    __shared__ u32 totals[2][THREADS / WARP];
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
            // Two neighbouring keys, because loading both takes as long as loading one.
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
    const u32 span = blockIdx.x - 1; // the first block has none
    const u32 first = blockIdx.x == 0 ? tiles : min(span * p.span_tiles, tiles);
    const u32 end = min(first + p.span_tiles, tiles);
    K ahead[ITEMS]; // keys of the next tile
    K before_ahead; // the key before the warp's first key of the next tile
    u32 stop_ahead;
    const auto load = [&](u32 tile) {
        const u64 start = static_cast<u64>(tile) * Tile<K>::COMPACT_KEYS + warp * WARP * ITEMS;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u64 at = start + i * WARP + lane;
            ahead[i] = __ldcs(keys + min(at, p.n - 1)); // after the last key, the last key again
        }
        before_ahead = __ldg(keys + min(start > 0 ? start - 1 : 0, p.n - 1));
        // Only one thread reads this word, because reads of one word by many threads wait for each
        // other.
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
        // If keys do not ascend, the first tile usually shows it. So the second tile is loaded only
        // after the first tile was checked.
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
                                     lane < THREADS / WARP ? totals[turn][lane] : 0);
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
    // One warp replaces the sum of each span by the sum over the spans before it.
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

// Counters have 16 bits, two of them in a word, and must not overflow. A thread that raises a
// counter to half of its range moves this half to the counter in global memory. The threads of the
// block pass a barrier before their additions could fill the other half.
constexpr u32 HALF = 0x8000;
constexpr u32 STEPS_TO_BARRIER = HALF / (SURVEY_THREADS * SURVEY_ITEMS);

INLINE void move_half(u32* words, u32 bucket, u32* totals) {
    atomicSub(&words[bucket / 2], HALF << bucket % 2 * 16);
    atomicAdd(&totals[bucket], HALF);
}

// Whether an addition has raised a counter to HALF. `changed` has the bits that the addition
// changed.
INLINE bool reaches_half(u32 changed) { return (changed & (HALF | HALF << 16)) != 0; }

// Adds `keys` to the counter of a bucket. Returns the bits of the counter's word that changed.
INLINE u32 count(u32* words, u32 bucket, u32 keys) {
    const u32 more = keys << bucket % 2 * 16;
    const u32 before = atomicAdd(&words[bucket / 2], more);
    return before ^ (before + more);
}

// The first bucket of part `part`, if the buckets are divided into `parts` parts.
INLINE u32 first_bucket(const Params& p, u32 part, u32 parts) {
    return ((part << p.bits) + parts - 1) / parts;
}

// The smallest position in a bucket.
INLINE u64 first_position(u32 bucket, u32 scale) {
    return ((static_cast<u64>(bucket) << 32) + scale - 1) / scale;
}

// The number of parts into which mode BITS divides the range, such that shared memory has room for
// a bit for each position of a part. 0 if keys do not suit this mode: they are too sparse, or some
// part has so many keys that one block would take too long.
INLINE u32 parts_of_bits(const Params& p, const Map& map) {
    if (p.part_bits == 0 || map.shift != 0 || __ldcg(&p.plan->outside) != 0) return 0;
    if (map.range / KEY_POSITIONS > p.n) return 0;
    // Parts consist of whole buckets, so some parts are larger than others.
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

// Computes where buckets start, and decides the route. One block runs this.
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
    // Mode BITS has no first partition, and uses `digit_ends` for the place of each part's next
    // key.
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
    // If the sample is bunched, a survey would decide on BY_DIGITS, which the plan says already.
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
    K ahead[ITEMS]; // keys of the next step
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
        // If keys are partly sorted, the keys of a warp are often in one bucket: one addition
        // counts them.
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
        if (++taken % STEPS_TO_BARRIER == 0) __syncthreads();
    }
    __syncthreads();
    // The remaining keys, fewer than a step has.
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
