// deduplicate_topk: the distinct values of each request's rows, ascending, -1 after.
//
// One block of 1024 threads owns a request. Its n = mtp_step * k values are read
// once, into registers (n <= 8192), while shared memory is cleared. Each warp assumes that
// no other warp has a larger value than itself, and marks its own values accordingly; the
// barrier behind that tells whether the assumption holds:
//
//   bitmap   values below 2^18, or of a span of 2^18: one atomicOr a value and a prefix
//            sum of popcounts. Then lanes write out the bits of their words or, where
//            words are many more than values, look up the ranks of their values.
//            No sort.
//   presence values below 2^20, or of a span of 2^20: a bitmap of the words that such a
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
