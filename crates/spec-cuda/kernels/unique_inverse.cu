// unique: the index of each key among the distinct keys. Runs after the kernels of unique.cu, on
// their results, and only if `inverse` is wanted. The number of distinct keys stays on the device.
//
// The distinct keys are cut into at most SPLITTERS segments of 2^shift keys each; the first key of
// a segment is its splitter. The range of a segment, from its splitter to the next one, is cut into
// 2^bits buckets of equal width, and the table has the number of keys of the segment below each
// bucket. So a segment adapts to the density of the keys, and no search is longer than a segment,
// whatever the keys are.
//
//   unique_index     a thread has RUN neighbouring distinct keys. It writes the table's entries
//                    from the bucket of the previous key to the bucket of its own key. An entry is
//                    a u16; if a segment has more than 2^15 keys, entries omit the lowest bits. It
//                    also writes the mark of each distinct key: its place within its bucket, in
//                    units of 2^-8 of the bucket
//   unique_inverse   a thread has some keys, and a block takes many tiles in turn. Shared memory
//                    has the splitters, and a table of the same kind over them. A thread reads two
//                    entries of each table for a key, and then the marks of the few distinct keys
//                    of the key's bucket. Each key is among the distinct keys, so if only one has
//                    the key's mark, that one is the key. If several have the mark, or the bucket
//                    has more than MARKS keys, the distinct keys are read and searched
//
// Bytes for each key of 8 bytes, of 2^24 random keys: 11 to make the table of 16 MB and the marks
// of 16 MB, which stay in L2; 8 to read the key, 8 or 4 to write the index. For one key in a
// hundred, about two sectors of 32 bytes of the distinct keys are read, at random addresses. (A
// sort of pairs of key and index would move 16 bytes for each key twice, and then write each index
// to a random sector.)
//
// If keys change during the call, the distinct keys may lack a key, or may not ascend, so that
// entries of the tables stay unwritten. Then an element is the index of some other key: all values
// that are read are clamped, entries to the segment, and splitters to those that exist.
#include "common.cuh"
#include "params/unique_inverse.cuh"

// Keys that a thread looks up in one step.
constexpr u32 ITEMS = TILE / THREADS;
constexpr u32 SPLITTERS = 1 << SPLITTER_BITS;
// The largest number of entries that a thread writes alone; its warp writes more entries together.
constexpr u32 MAX_ALONE = 4;
static_assert(RUN <= 1u << NO_TABLE);
constexpr u32 MARK_BITS = 8;
static_assert(ENTRY_BITS + MARK_BITS <= 32);
// A key is compared with at most this number of marks: those of a word.
constexpr u32 MARKS = sizeof(u64);

// The segments of the distinct keys.
struct Segmentation {
    u64 count;    // distinct keys, at least one
    u32 shift;    // a segment has 2^shift keys, the last one fewer
    u32 segments;
    u32 bits;     // of a bucket's number; 0: there is no table
    u32 coarse;   // lowest bits that entries of the table leave out
};

INLINE Segmentation segmentation_of(const Params& p) {
    Segmentation segmentation;
    segmentation.count = max(min(*p.count, p.n), 1ull);
    const u32 length = 64 - __clzll(segmentation.count - 1);
    segmentation.shift = length > SPLITTER_BITS ? length - SPLITTER_BITS : 0;
    segmentation.segments = static_cast<u32>((segmentation.count - 1) >> segmentation.shift) + 1;
    segmentation.bits = segmentation.shift > NO_TABLE ? min(segmentation.shift - 1, ENTRY_BITS) : 0;
    segmentation.coarse = segmentation.shift > ENTRY_BITS ? segmentation.shift - ENTRY_BITS : 0;
    return segmentation;
}

INLINE u32 leading_zeros(u32 x) { return __clz(x); }
INLINE u32 leading_zeros(u64 x) { return __clzll(x); }

// The place of a key in the range low ..= last, which is divided into 2^bits buckets: the bucket,
// and the place within the bucket in units of 2^-MARK_BITS. For a key outside of the range, any
// numbers below 2^bits and 2^MARK_BITS.
struct Place {
    u32 bucket;
    u32 mark;
};

template <typename K>
INLINE Place place_of(K key, K low, K last, u32 bits) {
    const K place = key - low << leading_zeros(static_cast<K>(last - low | 1));
    const u32 both = static_cast<u32>(place >> sizeof(K) * 8 - bits - MARK_BITS);
    return {both >> MARK_BITS, both & (1u << MARK_BITS) - 1};
}

// The number of keys of a segment.
INLINE u32 length_of(const Segmentation& segmentation, u32 segment) {
    const u64 start = static_cast<u64>(segment) << segmentation.shift;
    return static_cast<u32>(min(segmentation.count - start, 1ull << segmentation.shift));
}

// table[from .. to] = value, for the arguments of each lane. By whole warps.
INLINE void fill(u16* table, u32 from, u32 to, u32 value) {
    const bool by_warp = to > from + MAX_ALONE;
    if (!by_warp) {
        for (u32 at = from; at < to; at++) table[at] = static_cast<u16>(value);
    }
    for (u32 lanes = __ballot_sync(ALL_LANES, by_warp); lanes != 0; lanes &= lanes - 1) {
        const u32 lane = __ffs(lanes) - 1;
        const u32 first = __shfl_sync(ALL_LANES, from, lane);
        const u32 end = __shfl_sync(ALL_LANES, to, lane);
        const u32 same = __shfl_sync(ALL_LANES, value, lane);
        for (u32 at = first + lane_id(); at < end; at += WARP) table[at] = static_cast<u16>(same);
    }
}

template <typename K>
INLINE void index_keys(const Params& p) {
    const Segmentation segmentation = segmentation_of(p);
    if (segmentation.bits == 0) return;
    const K* unique = static_cast<const K*>(p.unique);
    const K flip = static_cast<K>(p.flip);
    const auto key_at = [&](u64 at) { return static_cast<K>(unique[at] ^ flip); };
    const u64 step = static_cast<u64>(gridDim.x) * THREADS * RUN;
    for (u64 base = static_cast<u64>(blockIdx.x) * THREADS * RUN; base < segmentation.count;
         base += step) {
        const u64 at = base + threadIdx.x * RUN;
        // A run after the end writes nothing: all its keys are the last distinct key.
        const u32 segment = static_cast<u32>(min(at, segmentation.count - 1) >> segmentation.shift);
        const u64 start = static_cast<u64>(segment) << segmentation.shift;
        K keys[RUN];
#pragma unroll
        for (u32 i = 0; i < RUN; i++) keys[i] = key_at(min(at + i, segmentation.count - 1));
        const K low = key_at(start);
        const K last = segment + 1 < segmentation.segments
                           ? static_cast<K>(key_at(start + (1ull << segmentation.shift)) - 1)
                           : key_at(segmentation.count - 1);
        const bool begins = at == start;
        K before = 0;
        if (lane_id() == 0 && !begins) before = key_at(min(at, segmentation.count) - 1);
        u32 ends[RUN];
        u32 marks = 0;
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const Place place = place_of(keys[i], low, last, segmentation.bits);
            ends[i] = place.bucket + 1;
            marks |= place.mark << i * MARK_BITS;
        }
        u32 from = __shfl_up_sync(ALL_LANES, ends[RUN - 1], 1);
        if (lane_id() == 0) from = place_of(before, low, last, segmentation.bits).bucket + 1;
        if (begins) from = 0;
        const u32 first = segment << segmentation.bits;
        const u32 value = static_cast<u32>(at - start);
        const u32 length = length_of(segmentation, segment);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const bool there = at + i < segmentation.count;
            const u32 to = there ? ends[i] : from;
            fill(p.table, first + from, first + to, value + i >> segmentation.coarse);
            from = to;
        }
        const bool closes = at < segmentation.count && value + RUN >= length;
        if (__any_sync(ALL_LANES, closes)) {
            const u32 to = closes ? 1u << segmentation.bits : from;
            fill(p.table, first + from, first + to, length >> segmentation.coarse);
        }
        // After the last key, there is room for the marks of a whole run.
        if (at < segmentation.count) reinterpret_cast<u32*>(p.marks)[at / RUN] = marks;
    }
}

// Compares `mark` with the first `count` marks of a word, which ascend: the number of marks below
// it, and the number equal to it.
INLINE void compare_marks(u64 word, u32 count, u32 mark, u32& below, u32& equal) {
    const u64 there = ~0ull >> (MARKS - count) * MARK_BITS;
    const u32 own = mark * 0x01010101u;
    const u32 low = static_cast<u32>(word);
    const u32 high = static_cast<u32>(word >> 32);
    const u64 less = static_cast<u64>(__vcmpltu4(high, own)) << 32 | __vcmpltu4(low, own);
    const u64 same = static_cast<u64>(__vcmpeq4(high, own)) << 32 | __vcmpeq4(low, own);
    below = __popcll(less & there) / MARK_BITS;
    equal = __popcll(same & there) / MARK_BITS;
}

template <typename K>
struct Shared {
    K splitters[SPLITTERS + 1]; // behind the last, the key above all keys, or 0
    u16 below[SPLITTERS + 1];   // splitters below each bucket of the whole range, and all of them
};

// Loads the splitters, and computes the number of splitters below each bucket of the whole range
// first ..= last. Ends with a barrier.
template <typename K>
INLINE void load_splitters(Shared<K>& shared, const Segmentation& segmentation, const K* unique,
                           K flip, K first, K last) {
    for (u32 i = threadIdx.x; i < segmentation.segments; i += THREADS) {
        shared.splitters[i] = unique[static_cast<u64>(i) << segmentation.shift] ^ flip;
    }
    if (threadIdx.x == 0) shared.splitters[segmentation.segments] = last + 1;
    __syncthreads();
    for (u32 base = 0; base < segmentation.segments; base += THREADS) {
        const u32 i = base + threadIdx.x;
        u32 from = 0;
        u32 to = 0;
        u32 end = 0;
        if (i < segmentation.segments) {
            const auto bucket = [&](u32 j) {
                return place_of(shared.splitters[j], first, last, SPLITTER_BITS).bucket;
            };
            if (i != 0) from = bucket(i - 1) + 1;
            to = bucket(i) + 1;
            end = i + 1 == segmentation.segments ? SPLITTERS + 1 : to;
        }
        fill(shared.below, from, to, i);
        fill(shared.below, to, end, segmentation.segments);
    }
    __syncthreads();
}

// The segment of a key: that of the last splitter that is not above the key; 0 if there is none.
template <typename K>
INLINE u32 segment_of(const Shared<K>& shared, const Segmentation& segmentation, K key, K first,
                      K last) {
    const u32 bucket = place_of(key, first, last, SPLITTER_BITS).bucket;
    u32 low = min(static_cast<u32>(shared.below[bucket]), segmentation.segments);
    u32 high = min(static_cast<u32>(shared.below[bucket + 1]), segmentation.segments);
    while (low < high) {
        const u32 middle = (low + high) / 2;
        const bool right = shared.splitters[middle] <= key;
        low = right ? middle + 1 : low;
        high = right ? high : middle;
    }
    return low == 0 ? 0 : low - 1;
}

// Finds the mark of each key, and the distinct keys low .. high of the key's segment among which
// the key is, by the table.
template <typename K>
INLINE void find_buckets(const Params& p, const Shared<K>& shared, const Segmentation& segmentation,
                         const K (&key)[ITEMS], const u32 (&segment)[ITEMS], u32 (&low)[ITEMS],
                         u32 (&high)[ITEMS], u32 (&mark)[ITEMS]) {
    const u32 buckets = 1u << segmentation.bits;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 length = length_of(segmentation, segment[i]);
        low[i] = 0;
        high[i] = length;
        mark[i] = 0;
        if (segmentation.bits == 0) continue;
        const K start = shared.splitters[segment[i]];
        const K stop = shared.splitters[segment[i] + 1] - 1;
        const Place place = place_of(key[i], start, stop, segmentation.bits);
        const u32 bucket = place.bucket;
        const u16* entry = p.table + (segment[i] << segmentation.bits) + bucket;
        mark[i] = place.mark;
        const u32 rest = (1u << segmentation.coarse) - 1; // what an entry may leave out
        low[i] = min(static_cast<u32>(entry[0]) << segmentation.coarse, length - 1);
        if (bucket + 1 < buckets) {
            high[i] = min((static_cast<u32>(entry[1]) << segmentation.coarse) + rest, length);
        }
    }
}

template <typename K, typename I>
INLINE void find_keys(const Params& p) {
    __shared__ Shared<K> shared;
    const Segmentation segmentation = segmentation_of(p);
    const K* unique = static_cast<const K*>(p.unique);
    const K flip = static_cast<K>(p.flip);
    const K first = unique[0] ^ flip;
    const K last = unique[segmentation.count - 1] ^ flip;
    load_splitters(shared, segmentation, unique, flip, first, last);

    const K* keys = static_cast<const K*>(p.keys);
    I* to = static_cast<I*>(p.inverse);
    const u64 step = static_cast<u64>(gridDim.x) * TILE;
    for (u64 base = static_cast<u64>(blockIdx.x) * TILE; base < p.n; base += step) {
        const u64 at = base + threadIdx.x;
        K key[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            // A key after the end is replaced by the last key.
            key[i] = __ldcs(&keys[min(at + i * THREADS, p.n - 1)]) ^ flip;
        }
        u32 segment[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            segment[i] = segment_of(shared, segmentation, key[i], first, last);
        }
        u32 low[ITEMS];
        u32 high[ITEMS];
        u32 mark[ITEMS];
        find_buckets(p, shared, segmentation, key, segment, low, high, mark);
        // Entries that omit bits include keys of other buckets, whose marks do not ascend.
        if (segmentation.bits != 0 && segmentation.coarse == 0) {
            u64 words[ITEMS][2];
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                const bool fits_word = high[i] - low[i] - 2 <= MARKS - 2;
                const u64 at = (static_cast<u64>(segment[i]) << segmentation.shift) + low[i];
                const u64* from = reinterpret_cast<const u64*>(p.marks) + at / MARKS;
                words[i][0] = fits_word ? from[0] : 0;
                words[i][1] = fits_word ? from[1] : 0;
            }
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                if (high[i] - low[i] - 2 > MARKS - 2) continue;
                const u32 shift = low[i] % MARKS * MARK_BITS;
                // Two shifts, because a shift by 64 bits does nothing.
                const u64 word = words[i][0] >> shift | words[i][1] << 1 << 63 - shift;
                u32 below;
                u32 equal;
                compare_marks(word, high[i] - low[i], mark[i], below, equal);
                if (equal != 0) {
                    low[i] += below;
                    high[i] = low[i] + equal;
                }
            }
        }
        // The last of these distinct keys that is not above the key.
        bool open = true;
        while (open) {
            open = false;
            K middles[ITEMS];
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                if (low[i] + 1 < high[i]) {
                    const u64 start = static_cast<u64>(segment[i]) << segmentation.shift;
                    middles[i] = unique[start + (low[i] + high[i]) / 2];
                }
            }
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                if (low[i] + 1 < high[i]) {
                    const u32 middle = (low[i] + high[i]) / 2;
                    const bool right = static_cast<K>(middles[i] ^ flip) <= key[i];
                    low[i] = right ? middle : low[i];
                    high[i] = right ? high[i] : middle;
                    open |= low[i] + 1 < high[i];
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (at + i * THREADS < p.n) {
                const u64 place = (static_cast<u64>(segment[i]) << segmentation.shift) + low[i];
                __stcs(&to[at + i * THREADS], static_cast<I>(place));
            }
        }
    }
}

SPEC_KERNEL(unique_index_32, index_keys<u32>, Params, THREADS)
SPEC_KERNEL(unique_index_64, index_keys<u64>, Params, THREADS)
SPEC_KERNEL_BLOCKS(unique_inverse_32_i32, (find_keys<u32, i32>), Params, THREADS, INVERSE_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_inverse_32_i64, (find_keys<u32, i64>), Params, THREADS, INVERSE_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_inverse_64_i32, (find_keys<u64, i32>), Params, THREADS, INVERSE_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_inverse_64_i64, (find_keys<u64, i64>), Params, THREADS, INVERSE_BLOCKS)
