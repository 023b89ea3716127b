// deduplicate_topk: the distinct values of each request's rows, ascending, -1 after.
//
// One block of 1024 threads owns a request. Its n = mtp_step * k values, if they are at most 8192, or at
// most 16384 where shared memory suffices, are read once, into registers, while shared memory is
// cleared. Each warp assumes that no other warp has a larger value than itself, and marks its own
// values accordingly; the barrier behind that tells whether the assumption holds:
//
//   bitmap   values below 2^18, or of a span of 2^18: one atomicOr a value and a prefix
//            sum of popcounts. Then lanes write out the bits of their words or, where
//            words are many more than values, look up the ranks of their values.
//            No sort.
//   presence at most 8192 values below 2^20, or of a span of 2^20: a bitmap of the words that such a
//            bitmap of values would have anything in, 4 KB, and its prefix sum give those
//            words their places in a row; then the same with these alone.
//   buckets  a wider span: the value's top bits name one of 2^14 buckets, kept in
//            order by a prefix sum; inside its bucket a value compares itself with
//            the few others there. Where some bucket holds more than 32, a bitonic
//            sort instead.
//
// More values are read twice:
//
//   window   of a span of 2^20: a bitmap of the span. (On devices with less shared memory, of
//            the smallest 2^19 first, then of those from the smallest value not yet written.)
//   parts    of a wider span: the first reading counts the values of each 2^20 neighbouring
//            numbers, the second one writes each value to its part in the workspace. Neighbouring
//            parts of at most 8192 values together go through registers as above; a part with
//            more goes through a window. So the time grows with n, whatever the values are.
//
// All of these are sets and ranks: no order of threads or atomics shows in the output.
//
// Bytes: 4 n read and 4 n written a request; at 115 x 8192 that is 7.5 MB, a floor
// of 2.5 us on an H100. Cleared: 36 KB a request. By a window 4 n more are read, by parts 12 n more are
// read and written; most of it in L2.
#include "deduplicate_topk_sets.cuh"

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

// Writes the `count` staged values, and -1 after, to out[.. n].
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

// 1, 2, 4 or 8 for a span, by how its values are sorted: by half of the bitmap, by the bitmap, by
// presence, by buckets. More than 8192 values may lie in more words than presence has room for.
template <u32 ITEMS>
INLINE u32 size_of(i32 span) {
    return span < SMALLER ? 1 : span < SMALL ? 2 : ITEMS <= 8 && span < MEDIUM ? 4 : 8;
}

// Writes the distinct ones of the block's values in order, and -1 after, to out[.. n]; where `n` is
// ALL_WRITTEN, no -1. Returns how many there are. The words of bitmap and presence are zero.
template <u32 ITEMS>
INLINE u32 write_values(const Shared& shared, const u32 (&values)[ITEMS], i32* out, u32 n) {
    __shared__ u32 sizes[WARPS]; // of each warp's largest value, a bit; 0 without any
    i32 top = -1; // dropped values are negative
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) top = max(top, static_cast<i32>(values[i]));
    top = __reduce_max_sync(ALL_LANES, top);
    // Each warp takes it that the others' values are like its own.
    const u32 size = top < 0 ? 0 : size_of<ITEMS>(top);
    if (size == 1 || size == 2) mark_small(shared, values, 0);
    if (size == 4) mark_presence(shared, values, 0);
    if (lane_id() == 0) sizes[threadIdx.x / WARP] = size;
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
        seen = size_of<ITEMS>(span);
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
            if (n != ALL_WRITTEN) pad(out, count, n);
        } else {
            write_staged<ITEMS>(shared.stage, count, out, n == ALL_WRITTEN ? count : n);
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
        write_staged<ITEMS>(shared.stage, count, out, n == ALL_WRITTEN ? count : n);
    }
    return count;
}

template <u32 ITEMS>
INLINE void deduplicate(const Params& p) {
    const Shared shared;
    const u32 n = p.rows * p.cols;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u32 values[ITEMS];
        load_values(p, request, n, values,
                    [&] { clear<SMALL_WORDS + PRESENCE_WORDS>(shared.bits); });
        __syncthreads();
        const u32 count = write_values(shared, values, p.unique[request], n);
        if (p.counts != nullptr && threadIdx.x == 0) p.counts[request] = count;
        __syncthreads(); // before the next request clears what this one reads
    }
}

// ---- any request -------------------------------------------------------------

// Rows of values.
struct Values {
    const i32* from;
    u64 stride;
    u32 rows;
    u32 cols;

    // Calls `visit` with every value that is not dropped, with several loads in flight.
    template <typename Visit>
    INLINE void each(Visit visit) const {
        constexpr u32 AHEAD = 8;
#pragma unroll 1
        for (u32 row = 0; row < rows; row++) {
            const i32* const values = from + row * stride;
#pragma unroll 1
            for (u32 first = threadIdx.x; first < cols; first += AHEAD * THREADS) {
                i32 some[AHEAD];
#pragma unroll
                for (u32 i = 0; i < AHEAD; i++) {
                    const u32 at = first + i * THREADS;
                    some[i] = at < cols ? values[at] : -1;
                }
#pragma unroll
                for (u32 i = 0; i < AHEAD; i++) {
                    if (some[i] >= 0) visit(static_cast<u32>(some[i]));
                }
            }
        }
    }
};

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

// Writes the distinct ones of values, the smallest of which is `low`, in order, by bitmaps of
// 2^log_words words. Returns how many there are.
INLINE u32 write_windows(const Shared& shared, u32 log_words, const Values& values, u32 low,
                         i32* out) {
    const u32 window = 32u << log_words;
    u32 count = 0;
    // `low` is the smallest value not yet written, 2^32 - 1 when there is none.
    while (low != 0xFFFFFFFFu) {
        __syncthreads(); // before clearing what the last window still reads
        clear(shared.bits, 1u << log_words);
        __syncthreads();
        u32 next = 0xFFFFFFFFu;
        values.each([&](u32 value) {
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
        count += write_bitmap(shared, log_words, low, out + count);
        low = next;
    }
    return count;
}

// Turns the number of values of each part into where the part ends, and writes to `starts` where it
// starts. Ends with a barrier.
INLINE void lay_out_parts(u32* parts, u32* starts) {
    __shared__ u32 totals[WARPS];
    const u32 first = parts[2 * threadIdx.x];
    const u32 second = parts[2 * threadIdx.x + 1];
    const u32 through = warp_inclusive_sum(first + second);
    const u32 warp = threadIdx.x / WARP;
    if (lane_id() == WARP - 1) totals[warp] = through;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane_id());
    const u32 end = warps.before(warp) + through;
    starts[2 * threadIdx.x] = end - second - first;
    starts[2 * threadIdx.x + 1] = end - second;
    parts[2 * threadIdx.x] = end - second;
    parts[2 * threadIdx.x + 1] = end;
    __syncthreads();
}

// Writes the distinct ones of values that lie by part, in order; `ends` says where each part ends.
// Returns how many there are.
INLINE u32 write_parts(const Shared& shared, const i32* by_part, const u32* ends, i32* out) {
    constexpr u32 ITEMS = 8;
    const u32 all = ends[PARTS - 1];
    u32 first = 0;
    u32 count = 0;
    while (first < all) {
        // Parts that end early enough to go through registers, of which there are two a thread.
        const u32 limit = first + ITEMS * THREADS;
        const u32 through = __syncthreads_count(ends[threadIdx.x] <= limit) +
                            __syncthreads_count(ends[threadIdx.x + THREADS] <= limit);
        u32 last = through == 0 ? 0 : ends[through - 1];
        if (last > first) {
            u32 values[ITEMS];
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                const u32 at = first + i * THREADS + threadIdx.x;
                values[i] = at < last ? static_cast<u32>(by_part[at]) : 0xFFFFFFFFu;
            }
            clear<SMALL_WORDS + PRESENCE_WORDS>(shared.bits);
            __syncthreads();
            count += write_values(shared, values, out + count, ALL_WRITTEN);
        } else {
            // The next part has more. A window of 2^18 values, so that `ends` stays as it is.
            last = ends[through];
            const Values values = {by_part + first, 0, 1, last - first};
            u32 low = 0xFFFFFFFFu;
            u32 high = 0;
            values.each([&](u32 value) { low = min(low, value); });
            block_range(low, high, low != 0xFFFFFFFFu);
            count += write_windows(shared, LOG_SMALL_WORDS, values, low, out + count);
        }
        __syncthreads();
        first = last;
    }
    return count;
}

INLINE void deduplicate_any(const Params& p) {
    const Shared shared;
    const u32 n = p.rows * p.cols;
    u32* const parts = shared.parts();
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        clear<PARTS>(parts);
        __syncthreads();
        const Values values = {p.indices[request * p.rows], p.indices.stride, p.rows, p.cols};
        u32 low = 0xFFFFFFFFu;
        u32 high = 0;
        values.each([&](u32 value) {
            low = min(low, value);
            high = max(high, value);
            atomicAdd(&parts[value >> LOG_PART], 1u);
        });
        block_range(low, high, low != 0xFFFFFFFFu);
        i32* out = p.unique[request];
        u32 count = 0;
        // `high` is one more than the largest value, and 0 where there is none.
        const u32 span = high > low ? high - low : 0;
        if (span <= 32u << p.log_words) {
            // No more words than the span needs, but of all lanes: each warp has as many to write out.
            const u32 log_words = max(span > 1 ? 32 - __clz((span - 1) / 32) : 0, LOG_LEAST_WORDS);
            count = write_windows(shared, log_words, values, low, out);
        } else {
            __syncthreads();
            u32* const free = shared.bits;
            lay_out_parts(parts, free);
            i32* const by_part = p.workspace + static_cast<u64>(blockIdx.x) * n;
            values.each([&](u32 value) {
                const u32 part = value >> LOG_PART;
                const u32 place = atomicAdd(&free[part], 1u);
                // Always, unless values change during the call.
                if (place < parts[part]) by_part[place] = static_cast<i32>(value);
            });
            __syncthreads();
            count = write_parts(shared, by_part, parts, out);
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
SPEC_KERNEL(deduplicate_topk_16, deduplicate<16>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_any, deduplicate_any, Params, THREADS)
