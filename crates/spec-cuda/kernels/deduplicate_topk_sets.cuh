// Sets of values for deduplicate_topk, from values in registers to sorted values in shared memory:
// a bitmap of values, a bitmap of nonempty words, and buckets. deduplicate_topk.cu describes when
// each is used.
#pragma once

#include "params/deduplicate_topk.cuh"

constexpr u32 WARPS = THREADS / WARP;
// SMALL: the span of values that fits the bitmap. SMALLER: the span that fits the first half of the
// bitmap, which has four words for each thread.
constexpr i32 SMALL = 1 << 18;
constexpr i32 SMALLER = SMALL / 2;
constexpr u32 LOG_SMALL_WORDS = 13;
constexpr u32 SMALL_WORDS = 1u << LOG_SMALL_WORDS;
// MEDIUM: the span of values whose nonempty words are marked, with a word of marks for each thread.
constexpr i32 MEDIUM = 1 << 20;
constexpr u32 PRESENCE_WORDS = MEDIUM / WARP / WARP;
static_assert(SMALL_WORDS == SMALL / WARP && SMALL_WORDS == 8 * THREADS &&
              PRESENCE_WORDS == THREADS);
// Counters of buckets: one byte each, four in a word.
constexpr u32 LOG_BUCKETS = 14;
constexpr u32 COUNTER_WORDS = (1u << LOG_BUCKETS) / 4;
static_assert(COUNTER_WORDS == 4 * THREADS && 2 * COUNTER_WORDS <= SMALL_WORDS);
// If a bucket has more values than this, the bitonic sort is used.
constexpr u32 MAX_BUCKET = 32;
// Marks a value that is already at its place.
constexpr u32 IN_PLACE = 0xFFFFFFFFu;
// The smallest number of words of a window's bitmap: one for each thread.
constexpr u32 LOG_MIN_WORDS = 10;
// A part contains the values of 2^LOG_PART neighbouring numbers.
constexpr u32 LOG_PART = 20;
constexpr u32 PARTS = 1u << (31 - LOG_PART);
static_assert(PARTS == 2 * THREADS);
static_assert(SMALL_WORDS + PRESENCE_WORDS + COUNTER_WORDS + PARTS <= BIT_WORDS);
// Stands for an output length for which no -1 is written.
constexpr u32 ALL_WRITTEN = 0xFFFFFFFFu;

// Arrays in dynamic shared memory.
struct Shared {
    u32*
        bits;  // BIT_WORDS words of what follows; or a window's bitmap, which may reach over `stage`
    u32* stage; // sorted values

    INLINE Shared() {
        extern __shared__ uint4 memory[];
        bits = reinterpret_cast<u32*>(memory);
        stage = bits + BIT_WORDS;
    }

    // A bit for each word of a bitmap of 2^20 values: 1 if the word is nonempty.
    INLINE u32* presence() const { return bits + SMALL_WORDS; }
    // The number of values before each word, each pair of words, or each word of bucket counters:
    // two bytes for values, four bytes for counters.
    template <typename T>
    INLINE T* before() const {
        return reinterpret_cast<T*>(bits + SMALL_WORDS + PRESENCE_WORDS);
    }
    // The number of values of each part, later the end of each part.
    INLINE u32* parts() const { return bits + SMALL_WORDS + PRESENCE_WORDS + COUNTER_WORDS; }
};

INLINE void clear(u32* words, u32 count) {
    uint4* quads = reinterpret_cast<uint4*>(words);
    for (u32 i = threadIdx.x; i < count / 4; i += THREADS) quads[i] = make_uint4(0, 0, 0, 0);
}

// The same for a count that is known at compile time: one or two stores, without a loop.
template <u32 COUNT>
INLINE void clear(u32* words) {
    uint4* quads = reinterpret_cast<uint4*>(words);
#pragma unroll
    for (u32 i = 0; i < COUNT / 4; i += THREADS) {
        const bool whole = i + THREADS <= COUNT / 4;
        if (whole || i + threadIdx.x < COUNT / 4) quads[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
}

// Writes -1 to out[from .. to].
INLINE void pad(i32* out, u32 from, u32 to) {
#pragma unroll 1
    for (u32 i = from + threadIdx.x; i < to; i += THREADS) out[i] = -1;
}

// The smallest value of a request, and the largest plus 1, from those of the threads. `any`:
// whether this thread has a value. Without any value, low > high.
INLINE void block_range(u32& low, u32& high, bool any) {
    __shared__ u32 lows[WARPS];
    __shared__ u32 highs[WARPS];
    // Values fit 31 bits, so 2^32 - 1 stands for no value in `low`, and 0 for no value in `high`,
    // because 1 is added to values there.
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

// The sum of `own` over the threads before this one. `total` is the sum over all threads, below
// 2^16.
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

// A warp's part of the bitmap: STEPS times four words for each lane, and for each of these quads
// the number of set bits before it in the part.
template <u32 STEPS>
struct WarpBitmap {
    uint4 words[STEPS];
    u32 before[STEPS];
    u32 total;

    INLINE WarpBitmap(const uint4* bits, u32 first) {
        u32 own[STEPS];
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            words[s] = bits[first + s * WARP];
            const uint4& w = words[s];
            own[s] = __popc(w.x) + __popc(w.y) + __popc(w.z) + __popc(w.w);
        }
        // A part has at most 2^15 bits, 2^12 for each step, so the sums of two steps fit one
        // register.
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

// Writes the values of a word's set bits in order; bit 0 stands for the value `first`.
INLINE void stage_word(u32 word, u32 first, u32*& to) {
#pragma unroll 1
    while (word != 0) {
        // `__clz` of the lowest set bit alone takes one instruction of the slow pipe; `__ffs` would
        // take two.
        const u32 rest = word & (word - 1);
        *to++ = first + 31 - __clz(word ^ rest);
        word = rest;
    }
}

// Stages the values of the first half of the bitmap in order. Returns their number. Each thread
// writes the set bits of its own four words.
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

// The same if there are many more words than values: each thread looks up the ranks of its own
// values.
template <u32 ITEMS, u32 STEPS>
INLINE u32 stage_ranks(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                       u32 (&ranks)[ITEMS]) {
    __shared__ u32 totals[WARPS];
    u16* prefix = shared.before<u16>();
    const u32 warp = threadIdx.x / WARP;
    {
        const u32 first = warp * STEPS * WARP + lane_id();
        const WarpBitmap<STEPS> part(reinterpret_cast<const uint4*>(shared.bits), first);
        u32* pairs = reinterpret_cast<u32*>(prefix);
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            const u32 half = __popc(part.words[s].x) + __popc(part.words[s].y);
            pairs[first + s * WARP] = part.before[s] | (part.before[s] + half) << 16;
        }
        if (lane_id() == 0) totals[warp] = part.total;
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
        ranks[i] = start + __popcll(groups[bit / 64] & below);
        // Equal values write the same value to the same place.
        if (valid) shared.stage[ranks[i]] = values[i];
    }
    return total;
}

// Stages the distinct values that the bitmap has, in order. Returns their number. If RANKED,
// `ranks` gets the ranks of the values of this thread.
template <u32 ITEMS, bool RANKED>
INLINE u32 stage_by_bitmap(const Shared& shared, const u32 (&values)[ITEMS], u32 base, bool half,
                           u32 (&ranks)[ITEMS]) {
    u32 total;
    if (half && ITEMS > 2 && !RANKED) {
        total = stage_bits(shared, base);
    } else if (half) {
        total = stage_ranks<ITEMS, 1>(shared, values, base, ranks);
    } else {
        total = stage_ranks<ITEMS, 2>(shared, values, base, ranks);
    }
    __syncthreads();
    return total;
}

// Sets the bits of values in the bitmap.
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

// Marks the nonempty words of a bitmap of 2^20 values from `base` on.
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

// Stages the distinct values in order, by presence. Only nonempty bitmap words get a slot. `ranks`
// gets the ranks of the values of this thread.
template <u32 ITEMS>
INLINE u32 stage_by_presence(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                             u32 (&ranks)[ITEMS]) {
    // For each word of marks: the marks, and the number of marks in the words before it.
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
            ranks[i] = before[places[i]] + __popc(words[places[i]] & below);
            // Equal values write the same value to the same place.
            shared.stage[ranks[i]] = values[i];
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

// The start of a bucket among the staged values, and its number of values.
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

// Sorts the values into the staging area by buckets of their top bits: the bucket of a value is
// (value - base) >> shift, below 2^LOG_BUCKETS. The counters must be zero. Returns the number of
// values, including equal ones, and sets `equals` to whether there are equal values. With at most 8
// values for each thread, `places` gets the place of each value among the staged values, unless a
// bucket is crowded: then `placed` is set to false.
template <u32 ITEMS>
INLINE u32 sort_by_buckets(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                           u32 shift, bool& equals, u32 (&places)[ITEMS], bool& placed) {
    u32 slots[ITEMS];
    bool crowded = false;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        slots[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bucket = (values[i] - base) >> shift;
            const u32 place = bucket % 4 * 8;
            // A counter can overflow only after an earlier value has seen it above the limit.
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
        // Dropped values are 2^31 and more, so they sort after all others.
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
        placed = false;
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
    // With few values, registers hold the buckets of the values; otherwise buckets are looked up
    // twice.
    constexpr bool IN_REGISTERS = ITEMS <= 8;
    u32 starts[IN_REGISTERS ? ITEMS : 1];
    u32 counts[IN_REGISTERS ? ITEMS : 1];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (IN_REGISTERS) counts[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const Bucket bucket(shared, (values[i] - base) >> shift);
            if (IN_REGISTERS) {
                starts[i] = bucket.start;
                counts[i] = bucket.count;
            }
            shared.stage[bucket.start + slots[i]] = values[i];
        }
    }
    __syncthreads();
    // If a bucket has one value, the value is already at its place.
    bool same = false;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        u32 start = 0;
        u32 count = 0;
        if (IN_REGISTERS) {
            start = starts[i];
            count = counts[i];
        } else if (static_cast<i32>(values[i]) >= 0) {
            const Bucket bucket(shared, (values[i] - base) >> shift);
            start = bucket.start;
            count = bucket.count;
        }
        if (count > 1) {
            // Visits the other values of the bucket, starting with the next one and wrapping
            // around.
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
        } else if (!IN_REGISTERS) {
            slots[i] = IN_PLACE;
        }
    }
    equals = __syncthreads_or(same);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (IN_REGISTERS ? counts[i] > 1 : slots[i] != IN_PLACE) shared.stage[slots[i]] = values[i];
        if (IN_REGISTERS) places[i] = counts[i] > 1 ? slots[i] : starts[i];
    }
    __syncthreads();
    return total;
}

// Writes the first of each run of equal values among `n` sorted values. Returns their number. If
// RANKED, replaces each of the sorted values by its rank among the distinct values.
template <u32 ITEMS, bool RANKED>
INLINE u32 write_distinct(u32* sorted, u32 n, i32* out) {
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
        // Only this thread reads this value since the barrier above.
        if (RANKED && at < n) {
            sorted[at] = to + __popc(heads[i] & (lanes_below() | 1u << lane)) - 1;
        }
        to += __popc(heads[i]);
    }
    return total;
}
