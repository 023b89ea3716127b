// Sets of values that a block of deduplicate_topk has in registers, in shared memory: as bits, as the
// words that have any, and as buckets. deduplicate_topk.cu says which for what.
#pragma once

#include "params/deduplicate_topk.cuh"

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / WARP;
// A span of this many values fits the bitmap; of half as many, the half of it that has
// four words a thread.
constexpr i32 SMALL = 1 << 18;
constexpr i32 SMALLER = SMALL / 2;
constexpr u32 LOG_SMALL_WORDS = 13;
constexpr u32 SMALL_WORDS = 1u << LOG_SMALL_WORDS;
// A span of this many values has its words marked, a word of marks a thread.
constexpr i32 MEDIUM = 1 << 20;
constexpr u32 PRESENCE_WORDS = MEDIUM / WARP / WARP;
static_assert(SMALL_WORDS == SMALL / WARP && SMALL_WORDS == 8 * THREADS && PRESENCE_WORDS == THREADS);
// Counters of buckets, four of a byte in a word.
constexpr u32 LOG_BUCKETS = 14;
constexpr u32 COUNTER_WORDS = (1u << LOG_BUCKETS) / 4;
static_assert(COUNTER_WORDS == 4 * THREADS && 2 * COUNTER_WORDS <= SMALL_WORDS);
// A bucket larger than this is left to the bitonic sort.
constexpr u32 MAX_BUCKET = 32;
// Stands for the place of a value that already is where it belongs.
constexpr u32 IN_PLACE = 0xFFFFFFFFu;
// A window's bitmap has at least as many words: one for each thread.
constexpr u32 LOG_LEAST_WORDS = 10;
// A part has the values of 2^LOG_PART neighbouring numbers.
constexpr u32 LOG_PART = 20;
constexpr u32 PARTS = 1u << (31 - LOG_PART);
static_assert(PARTS == 2 * THREADS);
// Shared memory before the staging area. The host has the same number, as `LOG_WORDS`.
constexpr u32 BIT_WORDS = 1u << 14;
static_assert(SMALL_WORDS + PRESENCE_WORDS + COUNTER_WORDS + PARTS <= BIT_WORDS);
// Stands for the length of an output behind whose values nothing is written.
constexpr u32 ALL_WRITTEN = 0xFFFFFFFFu;

// What lies in dynamic shared memory.
struct Shared {
    u32* bits;  // BIT_WORDS words of what follows; or a window's bitmap, which may reach over `stage`
    u32* stage; // sorted values

    INLINE Shared() {
        extern __shared__ uint4 memory[];
        bits = reinterpret_cast<u32*>(memory);
        stage = bits + BIT_WORDS;
    }

    // A bit for each word of a bitmap of 2^20 values: whether the word has any value.
    INLINE u32* presence() const { return bits + SMALL_WORDS; }
    // Values before words, groups of words, or buckets: two bytes for each value, or
    // four for each word of counters.
    template <typename T>
    INLINE T* before() const {
        return reinterpret_cast<T*>(bits + SMALL_WORDS + PRESENCE_WORDS);
    }
    // How many values each part has, or where each part ends.
    INLINE u32* parts() const { return bits + SMALL_WORDS + PRESENCE_WORDS + COUNTER_WORDS; }
};

INLINE void clear(u32* words, u32 count) {
    uint4* quads = reinterpret_cast<uint4*>(words);
    for (u32 i = threadIdx.x; i < count / 4; i += THREADS) quads[i] = make_uint4(0, 0, 0, 0);
}

// The same for a count known ahead: a store or two, and no loop.
template <u32 COUNT>
INLINE void clear(u32* words) {
    uint4* quads = reinterpret_cast<uint4*>(words);
#pragma unroll
    for (u32 i = 0; i < COUNT / 4; i += THREADS) {
        const bool whole = i + THREADS <= COUNT / 4;
        if (whole || i + threadIdx.x < COUNT / 4) quads[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
}

// Writes -1 from `from` on.
INLINE void pad(i32* out, u32 from, u32 to) {
#pragma unroll 1
    for (u32 i = from + threadIdx.x; i < to; i += THREADS) out[i] = -1;
}

// The smallest and largest value of a request, from those of its threads.
// Dropped values do not count; without any, low > high.
INLINE void block_range(u32& low, u32& high, bool any) {
    __shared__ u32 lows[WARPS];
    __shared__ u32 highs[WARPS];
    // Values fit 31 bits, so 2^32 - 1 stands for none in `low` and, shifted by one,
    // 0 for none in `high`.
    low = __reduce_min_sync(ALL_LANES, any ? low : 0xFFFFFFFFu);
    high = __reduce_max_sync(ALL_LANES, any ? high + 1 : 0);
    if (lane_id() == 0) {
        lows[threadIdx.x / WARP] = low;
        highs[threadIdx.x / WARP] = high;
    }
    __syncthreads();
    low = __reduce_min_sync(ALL_LANES, lows[lane_id()]);
    high = __reduce_max_sync(ALL_LANES, highs[lane_id()]);
}

// ---- bitmap ------------------------------------------------------------------

// The sum of `own` over the threads before this one; `total` over all, below 2^16.
INLINE u32 block_sum_before(u32 own, u32& total) {
    __shared__ u32 totals[WARPS];
    const u32 warp = threadIdx.x / WARP;
    const u32 inclusive = warp_inclusive_sum(own);
    if (lane_id() == WARP - 1) totals[warp] = inclusive;
    __syncthreads();
    const u32 other = totals[lane_id()];
    const u32 both = __reduce_add_sync(ALL_LANES, other | (lane_id() < warp ? other << 16 : 0));
    total = both & 0xFFFF;
    return (both >> 16) + inclusive - own;
}

// A warp's share of the bitmap, STEPS times four words a lane, and for each of those
// how many bits are set before it in the share.
template <u32 STEPS>
struct Share {
    uint4 words[STEPS];
    u32 before[STEPS];
    u32 total;

    INLINE Share(const uint4* bits, u32 first) {
        u32 own[STEPS];
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            words[s] = bits[first + s * WARP];
            const uint4& w = words[s];
            own[s] = __popc(w.x) + __popc(w.y) + __popc(w.z) + __popc(w.w);
        }
        // A share has at most 2^15 bits, 2^12 a step: two steps share a register.
        total = 0;
#pragma unroll
        for (u32 s = 0; s < STEPS; s += 2) {
            const u32 pair = own[s] | (s + 1 < STEPS ? own[s + 1] << 16 : 0);
            const u32 inclusive = warp_inclusive_sum(pair);
            const u32 all = __shfl_sync(ALL_LANES, inclusive, WARP - 1);
            before[s] = total + (inclusive & 0xFFFF) - own[s];
            total += all & 0xFFFF;
            if (s + 1 < STEPS) {
                before[s + 1] = total + (inclusive >> 16) - own[s + 1];
                total += all >> 16;
            }
        }
    }
};

// Writes the values of a word's bits in order, those of the first bit being `first`.
INLINE void stage_word(u32 word, u32 first, u32*& to) {
#pragma unroll 1
    while (word != 0) {
        // Of the lowest bit alone, the place is one instruction of the slow pipe.
        const u32 rest = word & (word - 1);
        *to++ = first + 31 - __clz(word ^ rest);
        word = rest;
    }
}

// Stages the values of the bitmap's first half in order; returns how many. Each thread
// writes the bits of its own four words.
INLINE u32 stage_bits(const Shared& shared, u32 base) {
    const uint4 words = reinterpret_cast<const uint4*>(shared.bits)[threadIdx.x];
    const u32 own = __popc(words.x) + __popc(words.y) + __popc(words.z) + __popc(words.w);
    u32 total;
    u32* to = shared.stage + block_sum_before(own, total);
    const u32 first = base + threadIdx.x * 128;
    stage_word(words.x, first, to);
    stage_word(words.y, first + 32, to);
    stage_word(words.z, first + 64, to);
    stage_word(words.w, first + 96, to);
    return total;
}

// The same, where words are many more than values: each thread looks up the ranks of
// its own values.
template <u32 ITEMS, u32 STEPS>
INLINE u32 stage_ranks(const Shared& shared, const u32 (&values)[ITEMS], u32 base) {
    __shared__ u32 totals[WARPS];
    u16* prefix = shared.before<u16>();
    const u32 warp = threadIdx.x / WARP;
    {
        const u32 first = warp * STEPS * WARP + lane_id();
        const Share<STEPS> share(reinterpret_cast<const uint4*>(shared.bits), first);
        u32* pairs = reinterpret_cast<u32*>(prefix);
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            const u32 half = __popc(share.words[s].x) + __popc(share.words[s].y);
            pairs[first + s * WARP] = share.before[s] | (share.before[s] + half) << 16;
        }
        if (lane_id() == 0) totals[warp] = share.total;
    }
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane_id());
    const u32 total = warps.all();
    const u64* groups = reinterpret_cast<const u64*>(shared.bits);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const bool valid = static_cast<i32>(values[i]) >= 0;
        const u32 bit = valid ? values[i] - base : 0;
        const u32 owner = bit / (STEPS * WARP * 128);
        const u32 start = warps.before(owner) + prefix[bit / 64];
        const u64 below = (1ull << (bit % 64)) - 1;
        // Equal values write the same value to the same place.
        if (valid) shared.stage[start + __popcll(groups[bit / 64] & below)] = values[i];
    }
    return total;
}

// Stages the distinct of values that the bitmap marks, in order; returns how many.
template <u32 ITEMS>
INLINE u32 stage_by_bitmap(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                           bool half) {
    u32 total;
    if (half && ITEMS > 2) {
        total = stage_bits(shared, base);
    } else if (half) {
        total = stage_ranks<ITEMS, 1>(shared, values, base);
    } else {
        total = stage_ranks<ITEMS, 2>(shared, values, base);
    }
    __syncthreads();
    return total;
}

// Marks values in the bitmap.
template <u32 ITEMS>
INLINE void mark_small(const Shared& shared, const u32 (&values)[ITEMS], u32 base) {
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bit = values[i] - base;
            atomicOr(&shared.bits[bit / 32], 1u << (bit % 32));
        }
    }
}

// ---- presence ----------------------------------------------------------------

// Marks which words of a bitmap of 2^20 values from `base` have any.
template <u32 ITEMS>
INLINE void mark_presence(const Shared& shared, const u32 (&values)[ITEMS], u32 base) {
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 word = (values[i] - base) / 32;
            atomicOr(&shared.presence()[word / 32], 1u << (word % 32));
        }
    }
}

// Stages distinct values in order: only the words that are there have a place.
template <u32 ITEMS>
INLINE u32 stage_by_presence(const Shared& shared, const u32 (&values)[ITEMS], u32 base) {
    // Present words, and how many are before them.
    uint2* entries = reinterpret_cast<uint2*>(shared.stage);
    u32* words = shared.bits;
    u16* before = shared.before<u16>();
    {
        const u32 present = shared.presence()[threadIdx.x];
        u32 total;
        const u32 start = block_sum_before(__popc(present), total);
        entries[threadIdx.x] = make_uint2(present, start);
    }
    __syncthreads();
    u32 places[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        places[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bit = values[i] - base;
            const uint2 entry = entries[bit / 1024];
            places[i] = entry.y + __popc(entry.x & ((1u << (bit / 32 % 32)) - 1));
            atomicOr(&words[places[i]], 1u << (bit % 32));
        }
    }
    __syncthreads();
    u32 total;
    {
        const uint2* pairs = reinterpret_cast<const uint2*>(words) + threadIdx.x * (ITEMS / 2);
        u32 sums[ITEMS];
        u32 own = 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i += 2) {
            const uint2 pair = pairs[i / 2];
            sums[i] = own;
            sums[i + 1] = own + __popc(pair.x);
            own = sums[i + 1] + __popc(pair.y);
        }
        const u32 start = block_sum_before(own, total);
        u32* to = reinterpret_cast<u32*>(before) + threadIdx.x * (ITEMS / 2);
#pragma unroll
        for (u32 i = 0; i < ITEMS; i += 2) {
            to[i / 2] = (start + sums[i]) | (start + sums[i + 1]) << 16;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 below = (1u << ((values[i] - base) % 32)) - 1;
            // Equal values write the same value to the same place.
            shared.stage[before[places[i]] + __popc(words[places[i]] & below)] = values[i];
        }
    }
    __syncthreads();
    return total;
}

// ---- buckets -----------------------------------------------------------------

INLINE void bitonic_sort(u32* values, u32 n) {
#pragma unroll 1
    for (u32 size = 2; size <= n; size *= 2) {
#pragma unroll 1
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < n / 2; i += THREADS) {
                const u32 low = 2 * i - (i & (stride - 1));
                const u32 high = low + stride;
                const bool ascending = (low & size) == 0;
                const u32 a = values[low];
                const u32 b = values[high];
                if ((a > b) == ascending) {
                    values[low] = b;
                    values[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

constexpr u32 ONES = 0x01010101;

// Where a bucket starts among the staged values, and how many it has.
struct Bucket {
    u32 start;
    u32 count;

    INLINE Bucket(const Shared& shared, u32 bucket) {
        const u32 place = bucket % 4 * 8;
        const u32 four = shared.bits[bucket / 4];
        start = __dp4a(four & ((1u << place) - 1), ONES, shared.before<u32>()[bucket / 4]);
        count = four >> place & 0xFF;
    }
};

// Sorts into the staging area by buckets of the values' top bits: `shift` leaves
// 2^LOG_BUCKETS of them, whose counters are zero. Returns how many values there are,
// equal ones included, and whether there are any.
template <u32 ITEMS>
INLINE u32 sort_by_buckets(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                           u32 shift, bool& equals) {
    u32 slots[ITEMS];
    bool crowded = false;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        slots[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bucket = (values[i] - base) >> shift;
            const u32 place = bucket % 4 * 8;
            // A counter that overflows was seen above the limit before.
            slots[i] = atomicAdd(&shared.bits[bucket / 4], 1u << place) >> place & 0xFF;
            crowded |= slots[i] >= MAX_BUCKET;
        }
    }
    u32 total;
    if (__syncthreads_or(crowded)) {
        u32 own = 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) own += static_cast<i32>(values[i]) >= 0;
        block_sum_before(own, total);
        // 2^31 and more, the dropped ones, sort behind all others.
        u32 padded = THREADS;
        while (padded < ITEMS * THREADS) padded *= 2;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < padded; i += THREADS) shared.stage[i] = 0xFFFFFFFFu;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) shared.stage[i * THREADS + threadIdx.x] = values[i];
        __syncthreads();
        bitonic_sort(shared.stage, padded);
        equals = true;
        return total;
    }
    {
        const uint4 four = reinterpret_cast<const uint4*>(shared.bits)[threadIdx.x];
        const u32 x = __dp4a(four.x, ONES, 0u);
        const u32 y = __dp4a(four.y, ONES, x);
        const u32 z = __dp4a(four.z, ONES, y);
        const u32 before = block_sum_before(__dp4a(four.w, ONES, z), total);
        reinterpret_cast<uint4*>(shared.before<u32>())[threadIdx.x] =
            make_uint4(before, before + x, before + y, before + z);
    }
    __syncthreads();
    // Registers hold the buckets of few values; the buckets of more values are looked up twice.
    constexpr bool KEEPS = ITEMS <= 8;
    u32 starts[KEEPS ? ITEMS : 1];
    u32 counts[KEEPS ? ITEMS : 1];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (KEEPS) counts[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const Bucket bucket(shared, (values[i] - base) >> shift);
            if (KEEPS) {
                starts[i] = bucket.start;
                counts[i] = bucket.count;
            }
            shared.stage[bucket.start + slots[i]] = values[i];
        }
    }
    __syncthreads();
    // Where a bucket has one value it is in its place already.
    bool same = false;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        u32 start = 0;
        u32 count = 0;
        if (KEEPS) {
            start = starts[i];
            count = counts[i];
        } else if (static_cast<i32>(values[i]) >= 0) {
            const Bucket bucket(shared, (values[i] - base) >> shift);
            start = bucket.start;
            count = bucket.count;
        }
        if (count > 1) {
            // From the next one around, so that a value does not meet itself.
            u32 place = start;
            u32 at = slots[i];
#pragma unroll 1
            for (u32 left = count - 1; left > 0; left--) {
                at = at + 1 < count ? at + 1 : 0;
                const u32 other = shared.stage[start + at];
                place += other < values[i] || (other == values[i] && at < slots[i]);
                same |= other == values[i];
            }
            slots[i] = place;
        } else if (!KEEPS) {
            slots[i] = IN_PLACE;
        }
    }
    equals = __syncthreads_or(same);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (KEEPS ? counts[i] > 1 : slots[i] != IN_PLACE) shared.stage[slots[i]] = values[i];
    }
    __syncthreads();
    return total;
}

// Writes the first of equals among `n` sorted values; returns how many.
template <u32 ITEMS>
INLINE u32 write_distinct(const u32* sorted, u32 n, i32* out) {
    __shared__ u32 totals[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    u32 heads[ITEMS];
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = (warp * ITEMS + i) * WARP + lane;
        const bool head = at < n && (at == 0 || sorted[at] != sorted[at - 1]);
        heads[i] = __ballot_sync(ALL_LANES, head);
        count += __popc(heads[i]);
    }
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane_id());
    const u32 total = warps.all();
    u32 to = warps.before(warp);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = (warp * ITEMS + i) * WARP + lane;
        if (heads[i] >> lane & 1) {
            out[to + __popc(heads[i] & lanes_below())] = static_cast<i32>(sorted[at]);
        }
        to += __popc(heads[i]);
    }
    return total;
}
