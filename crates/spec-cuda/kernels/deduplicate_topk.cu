// deduplicate_topk: the distinct values of each request's rows, ascending, -1 after.
//
// One block of 1024 threads owns a request. Its n = mtp_step * k values are read
// once, into registers (n <= 8192), while shared memory is cleared. Each warp takes it
// that all others' values are as large as its own largest and marks its own
// accordingly; the barrier behind that tells whether they were:
//
//   bitmap   values below 2^18, or a span of as much: one atomicOr a value and a prefix
//            sum of popcounts. Then lanes write out the bits of their words or, where
//            words are many more than values, look up the ranks of their values.
//            No sort.
//   presence values below 2^20, or a span of as much: a bitmap of the words that such a
//            bitmap of values would have anything in, 4 KB, and its prefix sum give those
//            words their places in a row; then the same with these alone.
//   buckets  a wider span: the value's top bits name one of 2^14 buckets, kept in
//            order by a prefix sum; inside its bucket a value compares itself with
//            the few others there. Where some bucket holds more than 32, a bitonic
//            sort instead.
//   windows  n > 8192: a bitmap of 2^20 values slides over them, from each smallest
//            value not yet written, reading the rows again for each window.
//
// All four are sets and ranks: no order of threads or atomics shows in the output.
//
// Bytes: 4 n read and 4 n written a request; at 115 x 8192 that is 7.5 MB, a floor
// of 2.5 us on an H100. Cleared: 36 KB a request.
#include "params/deduplicate_topk.cuh"

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / WARP;
// A span of this many values fits the bitmap; of half as many, the half of it that has
// four words a thread.
constexpr i32 SMALL = 1 << 18;
constexpr i32 SMALLER = SMALL / 2;
constexpr u32 SMALL_WORDS = SMALL / WARP;
// A span of this many values has its words marked, a word of marks a thread.
constexpr i32 MEDIUM = 1 << 20;
constexpr u32 PRESENCE_WORDS = MEDIUM / WARP / WARP;
static_assert(SMALL_WORDS == 8 * THREADS && PRESENCE_WORDS == THREADS);
// Counters of buckets, four of a byte in a word.
constexpr u32 LOG_BUCKETS = 14;
constexpr u32 COUNTER_WORDS = (1u << LOG_BUCKETS) / 4;
static_assert(COUNTER_WORDS == 4 * THREADS && 2 * COUNTER_WORDS <= SMALL_WORDS);
// A bucket larger than this is left to the bitonic sort.
constexpr u32 MAX_BUCKET = 32;

// What lies in dynamic shared memory.
struct Shared {
    u32* bits;  // 2^log_words words: what follows, or a window's bitmap
    u32* stage; // sorted values

    INLINE explicit Shared(const Params& p) {
        extern __shared__ uint4 memory[];
        bits = reinterpret_cast<u32*>(memory);
        stage = bits + (1u << p.log_words);
    }

    // What of a bitmap of 2^20 values is there.
    INLINE u32* presence() const { return bits + SMALL_WORDS; }
    // Values before words, groups of words, or buckets: two bytes for each value, or
    // four for each word of counters.
    template <typename T>
    INLINE T* before() const {
        return reinterpret_cast<T*>(bits + SMALL_WORDS + PRESENCE_WORDS);
    }
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
    constexpr u32 ONES = 0x01010101;
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
    u32 starts[ITEMS];
    u32 counts[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        counts[i] = 0;
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bucket = (values[i] - base) >> shift;
            const u32 place = bucket % 4 * 8;
            const u32 four = shared.bits[bucket / 4];
            starts[i] = __dp4a(four & ((1u << place) - 1), ONES, shared.before<u32>()[bucket / 4]);
            counts[i] = four >> place & 0xFF;
            shared.stage[starts[i] + slots[i]] = values[i];
        }
    }
    __syncthreads();
    // Where a bucket has one value it is in its place already.
    bool same = false;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (counts[i] > 1) {
            // From the next one around, so that a value does not meet itself.
            u32 place = starts[i];
            u32 at = slots[i];
#pragma unroll 1
            for (u32 left = counts[i] - 1; left > 0; left--) {
                at = at + 1 < counts[i] ? at + 1 : 0;
                const u32 other = shared.stage[starts[i] + at];
                place += other < values[i] || (other == values[i] && at < slots[i]);
                same |= other == values[i];
            }
            slots[i] = place;
        }
    }
    equals = __syncthreads_or(same);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (counts[i] > 1) shared.stage[slots[i]] = values[i];
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

// ---- a request whose values fit registers ------------------------------------

// A request's values, 2^31 and more for those dropped or not there. `meanwhile` is
// called while they are under way.
template <u32 ITEMS, typename Meanwhile>
INLINE void load_values(const Params& p, u64 request, u32 n, u32 (&values)[ITEMS],
                        Meanwhile meanwhile) {
    const i32* row = p.indices[request * p.rows];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) values[i] = 0xFFFFFFFFu;
    if (p.rows == 1 && n % 4 == 0 && reinterpret_cast<u64>(row) % 16 == 0) {
#pragma unroll
        for (u32 i = 0; 4 * i + 3 < ITEMS; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            if (at < n / 4) {
                const uint4 quad = __ldg(reinterpret_cast<const uint4*>(row) + at);
                values[4 * i] = quad.x;
                values[4 * i + 1] = quad.y;
                values[4 * i + 2] = quad.z;
                values[4 * i + 3] = quad.w;
            }
        }
        if (ITEMS % 4 != 0) {
            const u32 at = ITEMS / 4 * 2 * THREADS + threadIdx.x;
            if (at < n / 2) {
                const uint2 pair = __ldg(reinterpret_cast<const uint2*>(row) + at);
                values[ITEMS - 2] = pair.x;
                values[ITEMS - 1] = pair.y;
            }
        }
        meanwhile();
        return;
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (p.rows == 1) {
            if (at < n) values[i] = __ldg(row + at);
        } else if (at < n) {
            const u32 step = at / p.cols;
            values[i] = __ldg(row + step * p.indices.stride + (at - step * p.cols));
        }
    }
    meanwhile();
}

// Writes the `count` staged values, and -1 after.
template <u32 ITEMS>
INLINE void write_staged(const u32* stage, u32 count, i32* out, u32 n) {
    if (n % 4 == 0 && reinterpret_cast<u64>(out) % 16 == 0) {
#pragma unroll
        for (u32 i = 0; i < (ITEMS + 3) / 4; i++) {
            const u32 quad = i * THREADS + threadIdx.x;
            const u32 at = 4 * quad;
            if (at < n) {
                uint4 four = reinterpret_cast<const uint4*>(stage)[quad];
                if (at >= count) four.x = 0xFFFFFFFFu;
                if (at + 1 >= count) four.y = 0xFFFFFFFFu;
                if (at + 2 >= count) four.z = 0xFFFFFFFFu;
                if (at + 3 >= count) four.w = 0xFFFFFFFFu;
                reinterpret_cast<uint4*>(out)[quad] = four;
            }
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < n) out[at] = at < count ? static_cast<i32>(stage[at]) : -1;
    }
}

template <u32 ITEMS>
INLINE void deduplicate(const Params& p) {
    const Shared shared(p);
    const u32 n = p.rows * p.cols;
    __shared__ u32 sizes[WARPS]; // of each warp's largest value, a bit; 0 without any
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u32 values[ITEMS];
        load_values(p, request, n, values,
                    [&] { clear<SMALL_WORDS + PRESENCE_WORDS>(shared.bits); });
        __syncthreads();
        i32 top = -1; // dropped values are negative
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) top = max(top, static_cast<i32>(values[i]));
        top = __reduce_max_sync(ALL_LANES, top);
        // Each warp takes it that the others' values are like its own.
        const u32 size = top < 0 ? 0 : top < SMALLER ? 1 : top < SMALL ? 2 : top < MEDIUM ? 4 : 8;
        if (size == 1 || size == 2) mark_small(shared, values, 0);
        if (size == 4) mark_presence(shared, values, 0);
        if (lane_id() == 0) sizes[threadIdx.x / WARP] = size;
        i32* out = p.unique[request];
        u32 count = 0;
        u32 seen = 1;
        if (__syncthreads_or(size > 1)) seen = __reduce_or_sync(ALL_LANES, sizes[lane_id()]);
        u32 base = 0;
        bool marked = true;
        bool equals = false;
        if (seen >= 8) {
            u32 low = 0xFFFFFFFFu;
            u32 high = 0;
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                if (static_cast<i32>(values[i]) >= 0) {
                    low = min(low, values[i]);
                    high = max(high, values[i]);
                }
            }
            // What was marked by mistake is in the way.
            if (seen != 8) clear<SMALL_WORDS + PRESENCE_WORDS>(shared.bits);
            block_range(low, high, low != 0xFFFFFFFFu);
            high -= 1;
            base = low & ~63u;
            const i32 span = static_cast<i32>(high - base);
            marked = false;
            seen = span < SMALLER ? 1 : span < SMALL ? 2 : span < MEDIUM ? 4 : 8;
            if (seen == 8) {
                const u32 width = 32 - __clz(high - low);
                const u32 shift = width > LOG_BUCKETS ? width - LOG_BUCKETS : 0;
                count = sort_by_buckets(shared, values, low, shift, equals);
            }
        } else if (seen > 4) {
            clear<SMALL_WORDS>(shared.bits);
            marked = size == 4;
        }
        if (seen == 8) {
            if (equals) {
                count = write_distinct<ITEMS>(shared.stage, count, out);
                pad(out, count, n);
            } else {
                write_staged<ITEMS>(shared.stage, count, out, n);
            }
        } else {
            if (seen < 4) {
                if (!marked) {
                    mark_small(shared, values, base);
                    __syncthreads();
                }
                count = stage_by_bitmap(shared, values, base, seen == 1);
            } else {
                if (!marked) mark_presence(shared, values, base);
                if (seen > 4 || !marked) __syncthreads();
                count = stage_by_presence(shared, values, base);
            }
            write_staged<ITEMS>(shared.stage, count, out, n);
        }
        if (p.counts != nullptr && threadIdx.x == 0) p.counts[request] = count;
        __syncthreads(); // before the next request clears what this one reads
    }
}

// ---- any request -------------------------------------------------------------

// Calls `visit` with every value of the request that is not dropped.
template <typename Visit>
INLINE void each_value(const Params& p, u64 request, Visit visit) {
    for (u32 row = 0; row < p.rows; row++) {
        const i32* from = p.indices[request * p.rows + row];
        for (u32 col = threadIdx.x; col < p.cols; col += THREADS) {
            const i32 value = __ldg(from + col);
            if (value >= 0) visit(static_cast<u32>(value));
        }
    }
}

// Writes the values of a bitmap in order from out[0]; returns how many.
INLINE u32 write_bitmap(const Shared& shared, u32 log_words, u32 base, i32* out) {
    __shared__ u32 totals[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 share = (1u << log_words) / WARPS;
    const u32* words = shared.bits + warp * share;
    u32 count = 0;
    for (u32 i = lane; i < share; i += WARP) count += __popc(words[i]);
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane_id());
    const u32 total = warps.all();
    u32 to = warps.before(warp);
    for (u32 i = lane; i < share; i += WARP) {
        u32 word = words[i];
        const u32 own = __popc(word);
        const u32 inclusive = warp_inclusive_sum(own);
        i32* at = out + to + inclusive - own;
        while (word != 0) {
            *at++ = static_cast<i32>(base + (warp * share + i) * 32 + __ffs(word) - 1);
            word &= word - 1;
        }
        to += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    }
    return total;
}

INLINE void deduplicate_windows(const Params& p) {
    const Shared shared(p);
    const u32 n = p.rows * p.cols;
    const u32 window = 32u << p.log_words;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u32 low = 0xFFFFFFFFu;
        u32 high = 0;
        each_value(p, request, [&](u32 value) {
            low = min(low, value);
            high = max(high, value);
        });
        block_range(low, high, low != 0xFFFFFFFFu);
        i32* out = p.unique[request];
        u32 count = 0;
        // `low` is the smallest value not yet written, 2^32 - 1 when there is none.
        while (low != 0xFFFFFFFFu) {
            __syncthreads(); // before clearing what the last window still reads
            clear(shared.bits, 1u << p.log_words);
            __syncthreads();
            u32 next = 0xFFFFFFFFu;
            each_value(p, request, [&](u32 value) {
                if (value < low) return;
                const u32 bit = value - low;
                if (bit < window) {
                    atomicOr(&shared.bits[bit / 32], 1u << (bit % 32));
                } else {
                    next = min(next, value);
                }
            });
            u32 last = 0;
            block_range(next, last, next != 0xFFFFFFFFu);
            count += write_bitmap(shared, p.log_words, low, out + count);
            low = next;
        }
        pad(out, count, n);
        if (p.counts != nullptr && threadIdx.x == 0) p.counts[request] = count;
        __syncthreads();
    }
}

SPEC_KERNEL(deduplicate_topk_2, deduplicate<2>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_4, deduplicate<4>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_6, deduplicate<6>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_8, deduplicate<8>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_any, deduplicate_windows, Params, THREADS)
