// deduplicate_topk: writes the distinct values of each request's rows in ascending order, followed
// by -1.
//
// A block of 1024 threads owns a request with n = mtp_step * k values. If n is at most 8192, or at
// most 16384 and shared memory suffices, the block reads the values once, into registers, while it
// clears shared memory. Each warp assumes that no other warp has values of a larger size class than
// its own, and marks its values accordingly; the next barrier shows whether the assumption holds:
//
//   bitmap   values below 2^18, or in a span of 2^18: one atomicOr for each value, and a prefix sum
//            of popcounts. Then each lane writes out the bits of its words or, if there are many
//            more words than values, looks up the ranks of its values. No sort.
//   presence at most 8192 values below 2^20, or in a span of 2^20: a 4 KB bitmap of the nonempty
//            words of a bitmap of values. Its prefix sum gives each nonempty word a slot; then as
//            above, with the nonempty words only.
//   buckets  a larger span: the top bits of a value select one of 2^14 buckets, which a prefix sum
//            puts in order; a value is compared with the few other values of its bucket. If a
//            bucket has more than 32 values, a bitonic sort is used instead.
//
// More values are read twice:
//
//   window   a span of 2^20: a bitmap of the span. (On devices with less shared memory: a bitmap of
//            the smallest 2^19 numbers first, then of those from the smallest unwritten value on.)
//   parts    a larger span: the first reading counts the values of each part, which has 2^20
//            neighbouring numbers; the second reading writes each value to its part in the
//            workspace. Neighbouring parts with at most 8192 values together are processed in
//            registers as above; a part with more values is processed by a window. So the time is
//            proportional to n, for any values.
//
// All of these compute sets and ranks, so the output does not depend on the order of threads or
// atomics.
//
// With `inverse`, the rank of a value among the distinct values is wanted too. Bitmap and presence
// look ranks up in any case. Buckets give the place of a value among the sorted values, and the
// pass that drops repeats turns places into ranks. For more than 8192 values, a second kernel finds
// each value in the row of distinct values by binary search. (A binary search in shared memory
// instead of the ranks would cost 8 us: its first steps read few banks.)
//
// Bytes: 4 n read and 4 n written for each request. 115 requests of 8192 values are 7.5 MB, a floor
// of 2.5 us on an H100. 36 KB are cleared for each request. A window reads 4 n more, parts read and
// write 12 n more, mostly in L2.
#include "deduplicate_topk_sets.cuh"

// ---- a request whose values fit registers ------------------------------------

// Loads the values of a request; 2^31 and more for dropped values and for values beyond the end.
// Calls `meanwhile` while the loads are in flight.
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

// Writes the `count` staged values to out, followed by -1 up to out[n - 1].
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

// The size class of a span, which determines how its values are sorted: 1 by half of the bitmap, 2
// by the bitmap, 4 by presence, 8 by buckets. More than 8192 values may have more nonempty words
// than presence has slots for.
template <u32 ITEMS>
INLINE u32 size_of(i32 span) {
    return span < SMALLER ? 1 : span < SMALL ? 2 : ITEMS <= 8 && span < MEDIUM ? 4 : 8;
}

// The number of entries of an ascending row that are less than `value`. The -1 of padding count as
// the largest numbers.
INLINE u32 place_in(const i32* row, u32 n, u32 value) {
    u32 low = 0;
    u32 high = n;
#pragma unroll 1
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (static_cast<u32>(row[middle]) < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Writes the distinct values of the block in order, followed by -1 up to out[n - 1]; no -1 if `n`
// is ALL_WRITTEN. Returns their number. The words of bitmap and presence must be zero. If RANKED,
// `ranks` gets the places in `out` of the values of this thread; those of dropped values are
// undefined.
template <u32 ITEMS, bool RANKED>
INLINE u32 write_values(const Shared& shared, const u32 (&values)[ITEMS], i32* out, u32 n,
                        u32 (&ranks)[ITEMS]) {
    static_assert(!RANKED || ITEMS <= 8);
    __shared__ u32 sizes[WARPS]; // of each warp's largest value, a bit; 0 without any
    i32 top = -1; // dropped values are negative
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) top = max(top, static_cast<i32>(values[i]));
    top = __reduce_max_sync(ALL_LANES, top);
    // Each warp assumes that the values of other warps have the same size class as its own.
    const u32 size = top < 0 ? 0 : size_of<ITEMS>(top);
    if (size == 1 || size == 2) mark_small(shared, values, 0);
    if (size == 4) mark_presence(shared, values, 0);
    if (lane_id() == 0) sizes[threadIdx.x / WARP] = size;
    u32 count = 0;
    u32 seen = 1;
    const bool is_any_large = __syncthreads_or(size > 1);
    const u32 all_sizes = __reduce_or_sync(ALL_LANES, sizes[lane_id()]);
    if (is_any_large) seen = all_sizes;
    u32 base = 0;
    bool marked = true;
    bool equals = false;
    bool placed = true;
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
        // Removes the marks that warps made under the wrong assumption.
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
            count = sort_by_buckets(shared, values, low, shift, equals, ranks, placed);
        }
    } else if (seen > 4) {
        clear<SMALL_WORDS>(shared.bits);
        marked = size == 4;
    }
    if (seen == 8) {
        if (equals) {
            count = write_distinct<ITEMS, RANKED>(shared.stage, count, out);
            if (n != ALL_WRITTEN) pad(out, count, n);
            if (RANKED) {
                // The ranks in shared memory, and the values in `out`, are those of all threads.
                __syncthreads();
#pragma unroll
                for (u32 i = 0; i < ITEMS; i++) {
                    if (static_cast<i32>(values[i]) < 0) continue;
                    ranks[i] = placed ? shared.stage[ranks[i]] : place_in(out, count, values[i]);
                }
            }
        } else {
            write_staged<ITEMS>(shared.stage, count, out, n == ALL_WRITTEN ? count : n);
        }
    } else {
        if (seen < 4) {
            if (!marked) {
                mark_small(shared, values, base);
                __syncthreads();
            }
            count = stage_by_bitmap<ITEMS, RANKED>(shared, values, base, seen == 1, ranks);
        } else {
            if (!marked) mark_presence(shared, values, base);
            if (seen > 4 || !marked) __syncthreads();
            count = stage_by_presence(shared, values, base, ranks);
        }
        write_staged<ITEMS>(shared.stage, count, out, n == ALL_WRITTEN ? count : n);
    }
    return count;
}

// Writes the ranks of the values that `load_values` loaded, and -1 for dropped values.
template <u32 ITEMS>
INLINE void store_ranks(const Params& p, u64 request, u32 n, const u32 (&values)[ITEMS],
                        u32 (&ranks)[ITEMS]) {
    static_assert(ITEMS % 4 == 0);
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (static_cast<i32>(values[i]) < 0) ranks[i] = NONE;
    }
    const i32* const row = p.indices[request * p.rows];
    u32* const to = reinterpret_cast<u32*>(p.inverse[request * p.rows]);
    const bool quads = p.rows == 1 && n % 4 == 0 && reinterpret_cast<u64>(row) % 16 == 0;
    const bool aligned = reinterpret_cast<u64>(to) % 16 == 0;
    if (quads && aligned) {
#pragma unroll
        for (u32 i = 0; i < ITEMS; i += 4) {
            const u32 at = i / 4 * THREADS + threadIdx.x;
            if (at >= n / 4) continue;
            reinterpret_cast<uint4*>(to)[at] =
                make_uint4(ranks[i], ranks[i + 1], ranks[i + 2], ranks[i + 3]);
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 of_quad = 4 * (i / 4 * THREADS + threadIdx.x) + i % 4;
        const u32 at = quads ? of_quad : i * THREADS + threadIdx.x;
        if (at >= n) continue;
        const u32 step = p.rows == 1 ? 0 : at / p.cols;
        to[step * p.inverse.stride + (at - step * p.cols)] = ranks[i];
    }
}

template <u32 ITEMS, bool RANKED>
INLINE void deduplicate(const Params& p) {
    const Shared shared;
    const u32 n = p.rows * p.cols;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u32 values[ITEMS];
        load_values(p, request, n, values,
                    [&] { clear<SMALL_WORDS + PRESENCE_WORDS>(shared.bits); });
        __syncthreads();
        u32 ranks[ITEMS];
        const u32 count =
            write_values<ITEMS, RANKED>(shared, values, p.unique[request], n, ranks);
        if constexpr (RANKED) store_ranks(p, request, n, values, ranks);
        if (p.counts != nullptr && threadIdx.x == 0) p.counts[request] = count;
        __syncthreads(); // before the next request clears what this one reads
    }
}

// ---- any request -------------------------------------------------------------

// Some rows of values.
struct Values {
    const i32* from;
    u64 stride;
    u32 rows;
    u32 cols;

    // Calls visit(value) for every value that is not dropped, with several loads in flight.
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

// Writes the values of a bitmap in order, from out[0] on. Returns their number.
INLINE u32 write_bitmap(const Shared& shared, u32 log_words, u32 base, i32* out) {
    __shared__ u32 totals[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 words_per_warp = (1u << log_words) / WARPS;
    const u32* words = shared.bits + warp * words_per_warp;
    u32 count = 0;
    for (u32 i = lane; i < words_per_warp; i += WARP) count += __popc(words[i]);
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, lane_id());
    const u32 total = warps.all();
    u32 to = warps.before(warp);
    for (u32 i = lane; i < words_per_warp; i += WARP) {
        u32 word = words[i];
        const u32 own = __popc(word);
        const u32 inclusive = warp_inclusive_sum(own);
        i32* at = out + to + inclusive - own;
        while (word != 0) {
            *at++ = static_cast<i32>(base + (warp * words_per_warp + i) * 32 + __ffs(word) - 1);
            word &= word - 1;
        }
        to += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    }
    return total;
}

// Writes the distinct values in order, by bitmaps of 2^log_words words. `low` is the smallest
// value. Returns the number of distinct values.
INLINE u32 write_windows(const Shared& shared, u32 log_words, const Values& values, u32 low,
                         i32* out) {
    const u32 window = 32u << log_words;
    u32 count = 0;
    // `low` is the smallest value that is not yet written, 2^32 - 1 if all are written.
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

// Replaces the number of values of each part by the end of the part, and writes the start of each
// part to `starts`. Ends with a barrier.
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

// Writes the distinct values in order, where `by_part` has the values sorted by part and `ends` the
// end of each part. Returns their number.
INLINE u32 write_parts(const Shared& shared, const i32* by_part, const u32* ends, i32* out) {
    constexpr u32 ITEMS = 8;
    const u32 all = ends[PARTS - 1];
    u32 first = 0;
    u32 count = 0;
    while (first < all) {
        // The number of parts that end early enough to be processed in registers. A thread tests
        // two parts.
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
            u32 ranks[ITEMS];
            count += write_values<ITEMS, false>(shared, values, out + count, ALL_WRITTEN, ranks);
        } else {
            // The next part alone has more values. Its window is a bitmap of 2^18 values, which
            // leaves `ends` intact.
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

INLINE void deduplicate_general(const Params& p) {
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
        // `high` is the largest value plus 1; 0 if there is no value.
        const u32 span = high > low ? high - low : 0;
        if (span <= 32u << p.log_words) {
            // Only as many words as the span needs, but at least one for each thread, so that each
            // warp has as many words to write out as any other.
            const u32 log_words = max(span > 1 ? 32 - __clz((span - 1) / 32) : 0, LOG_MIN_WORDS);
            count = write_windows(shared, log_words, values, low, out);
        } else {
            __syncthreads();
            u32* const free = shared.bits;
            lay_out_parts(parts, free);
            i32* const by_part = p.workspace + static_cast<u64>(blockIdx.x) * n;
            values.each([&](u32 value) {
                const u32 part = value >> LOG_PART;
                const u32 place = atomicAdd(&free[part], 1u);
                // Always true, unless values change during the call.
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

// Finds each value in the complete row of its request. The rows of a request count as separate.
INLINE void locate(const Params& p) {
    const u64 all = p.batch * p.rows * p.cols;
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += step) {
        const u64 row = i / p.cols;
        const u64 column = i - row * p.cols;
        const i32 value = p.indices[row][column];
        const i32* const distinct = p.unique[row / p.rows];
        const u32 place = place_in(distinct, p.rows * p.cols, static_cast<u32>(value));
        p.inverse[row][column] = value < 0 ? -1 : static_cast<i32>(place);
    }
}

template <u32 ITEMS>
INLINE void distinct(const Params& p) {
    deduplicate<ITEMS, false>(p);
}

template <u32 ITEMS>
INLINE void ranked(const Params& p) {
    deduplicate<ITEMS, true>(p);
}

SPEC_KERNEL(deduplicate_topk_2, distinct<2>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_4, distinct<4>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_6, distinct<6>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_8, distinct<8>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_16, distinct<16>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_ranked_4, ranked<4>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_ranked_8, ranked<8>, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_locate, locate, Params, THREADS)
SPEC_KERNEL(deduplicate_topk_general, deduplicate_general, Params, THREADS)
