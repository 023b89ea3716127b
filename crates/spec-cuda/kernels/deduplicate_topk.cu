// deduplicate_topk: the distinct values of each request's rows, ascending, -1 after.
//
// One block of 1024 threads owns a request. Its n = mtp_step * k values are read
// once, into registers (n <= 8192), while shared memory is cleared; then the block
// knows its smallest and largest value and chooses:
//
//   bitmap   the values span at most 2^20 (less where shared memory is small): one
//            atomicOr a value and a prefix sum of popcounts. Then lanes write out the
//            bits of their words or, where words are many more than values, look up
//            the ranks of their values. No sort.
//   buckets  a wider span: the value's top bits name one of 2n buckets, kept in
//            order by a prefix sum; inside its bucket a value compares itself with
//            the few others there. Where some bucket holds more than 32, a bitonic
//            sort instead.
//   windows  n > 8192: the bitmap slides over the values, from each smallest value
//            not yet written, reading the rows again for each window.
//
// All three are sets and ranks: no order of threads or atomics shows in the output.
//
// Bytes: 4 n read and 4 n written a request; at 115 x 8192 that is 7.5 MB, a floor
// of 2.5 us on an H100.
#include "common.cuh"

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / WARP;
// Words cleared while the values are under way: as many as take no longer than they do,
// and all that buckets need.
constexpr u32 CLEARED_AHEAD = 1u << 14;
// A bucket larger than this is left to the bitonic sort.
constexpr u32 MAX_BUCKET = 32;

struct Params {
    Rows<const i32> indices;
    Rows<i32> unique;
    i32* counts;
    u64 batch;
    u32 rows;        // rows of a request that lie apart; 1 where they are packed
    u32 cols;        // values of such a row
    u32 log_words;   // the bitmap holds 2^log_words words of 32 bits
    u32 stage_words; // values that fit the staging area behind it
};
static_assert(sizeof(Params) == 64, "as in src/ops/deduplicate_topk.rs");

// What lies in dynamic shared memory.
struct Shared {
    u32* bits;   // 2^log_words words: bitmap, or bucket counters
    u32* stage;  // sorted values
    u16* prefix; // bitmap only: set bits before each group of 64, within its warp

    INLINE explicit Shared(const Params& p) {
        extern __shared__ uint4 memory[];
        bits = reinterpret_cast<u32*>(memory);
        stage = bits + (1u << p.log_words);
        prefix = reinterpret_cast<u16*>(stage + p.stage_words);
    }
};

// Lane w gets the sum over the warps before w; `total` the sum over all. Every warp
// computes it from what the warps left in `totals` before the last barrier.
INLINE u32 warp_bases(const u32* totals, u32& total) {
    const u32 own = totals[lane_id()];
    const u32 inclusive = warp_inclusive_sum(own);
    total = __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    return inclusive - own;
}

INLINE void clear(u32* words, u32 from, u32 to) {
    uint4* quads = reinterpret_cast<uint4*>(words);
    for (u32 i = from / 4 + threadIdx.x; i < to / 4; i += THREADS) {
        quads[i] = make_uint4(0, 0, 0, 0);
    }
}

// Writes -1 from `from` on.
INLINE void pad(i32* out, u32 from, u32 to) {
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

// Stages the values of a bitmap that marks them, in order; returns how many. Each lane
// writes the bits of its own words.
INLINE u32 stage_bits(const Shared& shared, u32 base, u32* totals) {
    const u32 warp = threadIdx.x / WARP;
    const u32 quad = threadIdx.x;
    const Share<1> share(reinterpret_cast<const uint4*>(shared.bits), quad);
    if (lane_id() == 0) totals[warp] = share.total;
    __syncthreads();
    u32 total;
    const u32 bases = warp_bases(totals, total);
    u32* to = shared.stage + __shfl_sync(ALL_LANES, bases, warp) + share.before[0];
    const u32 words[4] = {share.words[0].x, share.words[0].y, share.words[0].z, share.words[0].w};
#pragma unroll
    for (u32 w = 0; w < 4; w++) {
        for (u32 word = words[w]; word != 0; word &= word - 1) {
            *to++ = base + quad * 128 + w * 32 + __ffs(word) - 1;
        }
    }
    return total;
}

// The same, where words are many more than values: each thread looks up the ranks of
// its own values.
template <u32 ITEMS, u32 STEPS>
INLINE u32 stage_ranks(const Shared& shared, const u32 (&values)[ITEMS], u32 base, u32* totals) {
    const u32 warp = threadIdx.x / WARP;
    {
        const u32 first = warp * STEPS * WARP + lane_id();
        const Share<STEPS> share(reinterpret_cast<const uint4*>(shared.bits), first);
        u32* pairs = reinterpret_cast<u32*>(shared.prefix);
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            const u32 half = __popc(share.words[s].x) + __popc(share.words[s].y);
            pairs[first + s * WARP] = share.before[s] | (share.before[s] + half) << 16;
        }
        if (lane_id() == 0) totals[warp] = share.total;
    }
    __syncthreads();
    u32 total;
    const u32 bases = warp_bases(totals, total);
    const u64* groups = reinterpret_cast<const u64*>(shared.bits);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const bool valid = static_cast<i32>(values[i]) >= 0;
        const u32 bit = valid ? values[i] - base : 0;
        const u32 owner = bit / (STEPS * WARP * 128);
        const u32 start = __shfl_sync(ALL_LANES, bases, owner) + shared.prefix[bit / 64];
        const u64 below = (1ull << (bit % 64)) - 1;
        // Equal values write the same value to the same place.
        if (valid) shared.stage[start + __popcll(groups[bit / 64] & below)] = values[i];
    }
    return total;
}

// Stages distinct values in order by a bitmap of 2^log_words words; returns how many.
template <u32 ITEMS>
INLINE u32 stage_by_bitmap(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                           u32 log_words) {
    __shared__ u32 totals[WARPS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (static_cast<i32>(values[i]) >= 0) {
            const u32 bit = values[i] - base;
            atomicOr(&shared.bits[bit / 32], 1u << (bit % 32));
        }
    }
    __syncthreads();
    u32 total;
    if (log_words == 12 && ITEMS > 2) {
        total = stage_bits(shared, base, totals);
    } else if (log_words == 12) {
        total = stage_ranks<ITEMS, 1>(shared, values, base, totals);
    } else if (log_words == 13) {
        total = stage_ranks<ITEMS, 2>(shared, values, base, totals);
    } else if (log_words == 14) {
        total = stage_ranks<ITEMS, 4>(shared, values, base, totals);
    } else {
        total = stage_ranks<ITEMS, 8>(shared, values, base, totals);
    }
    __syncthreads();
    return total;
}

// ---- buckets -----------------------------------------------------------------

INLINE void bitonic_sort(u32* values, u32 n) {
    for (u32 size = 2; size <= n; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
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
// 2^log_buckets of them, whose counters are zero. Returns how many values there
// are, equal ones included.
template <u32 ITEMS>
INLINE u32 sort_by_buckets(const Shared& shared, const u32 (&values)[ITEMS], u32 base,
                           u32 shift, u32 log_buckets) {
    __shared__ u32 totals[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    u32 slots[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const bool valid = static_cast<i32>(values[i]) >= 0;
        slots[i] = valid ? atomicAdd(&shared.bits[(values[i] - base) >> shift], 1u) : 0;
    }
    __syncthreads();

    // Counters become (count << 16 | values before it within the warp's share).
    const u32 steps = 1u << (log_buckets - 12);
    uint4* quads = reinterpret_cast<uint4*>(shared.bits);
    u32 before = 0;
    u32 largest = 0;
    for (u32 s = 0; s < steps; s++) {
        const u32 quad = (warp * steps + s) * WARP + lane;
        const uint4 c = quads[quad];
        const u32 sum = c.x + c.y + c.z + c.w;
        const u32 inclusive = warp_inclusive_sum(sum);
        const u32 x = before + inclusive - sum;
        const u32 y = x + c.x;
        const u32 z = y + c.y;
        const u32 w = z + c.z;
        quads[quad] = make_uint4(c.x << 16 | x, c.y << 16 | y, c.z << 16 | z, c.w << 16 | w);
        largest = max(largest, max(max(c.x, c.y), max(c.z, c.w)));
        before += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    }
    if (lane == 0) totals[warp] = before;
    const bool crowded = __syncthreads_or(largest > MAX_BUCKET);

    u32 total;
    const u32 bases = warp_bases(totals, total);
    if (crowded) {
        // 2^31 and more, the dropped ones, sort behind all others.
        u32 padded = THREADS;
        while (padded < ITEMS * THREADS) padded *= 2;
        for (u32 i = threadIdx.x; i < padded; i += THREADS) shared.stage[i] = 0xFFFFFFFFu;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) shared.stage[i * THREADS + threadIdx.x] = values[i];
        __syncthreads();
        bitonic_sort(shared.stage, padded);
        return total;
    }

    u32 starts[ITEMS];
    u32 counts[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const bool valid = static_cast<i32>(values[i]) >= 0;
        const u32 bucket = valid ? (values[i] - base) >> shift : 0;
        const u32 entry = shared.bits[bucket];
        starts[i] = __shfl_sync(ALL_LANES, bases, bucket >> (log_buckets - 5)) + (entry & 0xFFFF);
        counts[i] = valid ? entry >> 16 : 0;
        if (valid) shared.stage[starts[i] + slots[i]] = values[i];
    }
    __syncthreads();
    // Where a bucket has one value it is in its place already.
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 own = starts[i] + slots[i];
        u32 place = starts[i];
        for (u32 j = starts[i]; counts[i] > 1 && j < starts[i] + counts[i]; j++) {
            const u32 other = shared.stage[j];
            place += other < values[i] || (other == values[i] && j < own);
        }
        slots[i] = place;
    }
    __syncthreads();
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
    u32 total;
    const u32 bases = warp_bases(totals, total);
    u32 to = __shfl_sync(ALL_LANES, bases, warp);
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

// A request's values, 2^31 and more for those dropped or not there.
template <u32 ITEMS>
INLINE void load_values(const Params& p, u64 request, u32 n, u32 (&values)[ITEMS]) {
    const i32* row = p.indices[request * p.rows];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        values[i] = 0xFFFFFFFFu;
        if (p.rows == 1) {
            if (at < n) values[i] = __ldg(row + at);
        } else if (at < n) {
            const u32 step = at / p.cols;
            values[i] = __ldg(row + step * p.indices.stride + (at - step * p.cols));
        }
    }
}

template <u32 ITEMS>
INLINE void deduplicate(const Params& p) {
    const Shared shared(p);
    const u32 n = p.rows * p.cols;
    const u32 bitmap_words = 1u << p.log_words;
    const u32 cleared_words = min(bitmap_words, CLEARED_AHEAD);
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u32 values[ITEMS];
        load_values(p, request, n, values);
        // The loads are under way; nothing waits for them until below.
        clear(shared.bits, 0, cleared_words);
        u32 low = 0xFFFFFFFFu;
        u32 high = 0;
        bool any = false;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(values[i]) >= 0) {
                low = min(low, values[i]);
                high = max(high, values[i]);
                any = true;
            }
        }
        block_range(low, high, any);
        i32* out = p.unique[request];
        u32 count = 0;
        if (high != 0) {
            high -= 1;
            // A bitmap from 0 where that suffices: the smallest one that does.
            const u32 base = high < 32u << p.log_words ? 0 : low & ~63u;
            const u32 span = high - base;
            // Few values far apart: their buckets are fewer than the bitmap's words.
            const bool sparse = ITEMS <= 2 && span >= 32u << 14;
            if (span < 32u << p.log_words && !sparse) {
                u32 log_words = 12;
                while (span >= 32u << log_words) log_words++;
                if (1u << log_words > cleared_words) {
                    clear(shared.bits, cleared_words, 1u << log_words);
                    __syncthreads();
                }
                count = stage_by_bitmap(shared, values, base, log_words);
#pragma unroll
                for (u32 i = 0; i < ITEMS; i++) {
                    const u32 at = i * THREADS + threadIdx.x;
                    if (at < n) out[at] = at < count ? static_cast<i32>(shared.stage[at]) : -1;
                }
            } else {
                u32 log_buckets = 12;
                while ((1u << log_buckets) < 2 * ITEMS * THREADS) log_buckets++;
                log_buckets = min(log_buckets, p.log_words);
                const u32 width = 32 - __clz(high - low);
                const u32 shift = width > log_buckets ? width - log_buckets : 0;
                const u32 sorted = sort_by_buckets(shared, values, low, shift, log_buckets);
                count = write_distinct<ITEMS>(shared.stage, sorted, out);
                pad(out, count, n);
            }
        } else {
            pad(out, 0, n);
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
    u32 total;
    const u32 bases = warp_bases(totals, total);
    u32 to = __shfl_sync(ALL_LANES, bases, warp);
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
            clear(shared.bits, 0, 1u << p.log_words);
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
