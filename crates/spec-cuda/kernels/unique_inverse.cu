// unique: where each key is among the distinct keys. Runs after the kernels of unique.cu, on their
// results, and only where `inverse` is asked for. The count of distinct keys stays on the device.
//
// The distinct keys are cut into at most SPLITTERS segments of 2^shift keys each; the first key of
// a segment is its splitter. The range of a segment, from its splitter to the next, is cut into
// 2^bits buckets of equal width, and the table says how many keys of the segment are below each
// bucket. So a segment adapts to how dense the keys are there, and no search is longer than a
// segment, whatever the keys are.
//
//   unique_index     a thread RUN neighbouring distinct keys: writes the table's entries from the
//                    bucket of the key before to its own. An entry of the table is an u16; where a
//                    segment has more than 2^15 keys, the entry leaves out the lowest bits. And writes
//                    the mark of each distinct key: its place within its bucket, in 2^8 ths
//   unique_inverse   a thread some keys, a block many tiles in turn. Shared memory holds the
//                    splitters, and a table of the same kind over them. A key reads two entries
//                    of each table, and then the marks of the few distinct keys of its bucket. Each
//                    key is among the distinct keys, so that the only one with its mark is the key
//                    itself. Where several have its mark, or the bucket has more than MARKS keys, the
//                    distinct keys are read and searched
//
// Bytes a key of 8, 2^24 random keys: 11 to make the table of 16 MB and the marks of 16 MB, which
// L2 holds; 8 to read the key, 8 or 4 to write the element. Of the distinct keys, which lie
// anywhere, one key in a hundred reads about two sectors of 32. (A sort of pairs of key and index
// would move 16 bytes a key twice, and then write the elements anywhere, a sector each.)
//
// If keys change during the call, the distinct keys may lack a key, or may not ascend, so that
// entries of the tables stay unwritten. Then an element is the place of some other key: whatever is
// read is clamped, entries to the segment and splitters to those that exist.
#include "common.cuh"
#include "params/unique_inverse.cuh"

constexpr u32 THREADS = 512;
constexpr u32 ITEMS = 4;
constexpr u32 TILE = ITEMS * THREADS;
constexpr u32 SPLITTER_BITS = 12;
constexpr u32 SPLITTERS = 1 << SPLITTER_BITS;
// Segments of at most 2^NO_TABLE keys are searched without a table.
constexpr u32 NO_TABLE = 2;
constexpr u32 ENTRY_BITS = 15;
// A thread writes as many entries alone; its warp writes more together.
constexpr u32 FEW = 4;
// Neighbouring distinct keys of a thread of unique_index: all of one segment, where there is a table.
constexpr u32 RUN = 4;
static_assert(RUN <= 1u << NO_TABLE);
constexpr u32 MARK_BITS = 8;
static_assert(ENTRY_BITS + MARK_BITS <= 32);
// A key compares itself with at most as many marks: those of a word.
constexpr u32 MARKS = sizeof(u64);

// How the distinct keys are cut.
struct Cut {
    u64 count;    // distinct keys, at least one
    u32 shift;    // a segment has 2^shift keys, the last one fewer
    u32 segments;
    u32 bits;     // of a bucket's number; 0: there is no table
    u32 coarse;   // lowest bits that entries of the table leave out
};

INLINE Cut cut_of(const Params& p) {
    Cut cut;
    cut.count = max(min(*p.count, p.n), 1ull);
    const u32 length = 64 - __clzll(cut.count - 1);
    cut.shift = length > SPLITTER_BITS ? length - SPLITTER_BITS : 0;
    cut.segments = static_cast<u32>((cut.count - 1) >> cut.shift) + 1;
    cut.bits = cut.shift > NO_TABLE ? min(cut.shift - 1, ENTRY_BITS) : 0;
    cut.coarse = cut.shift > ENTRY_BITS ? cut.shift - ENTRY_BITS : 0;
    return cut;
}

INLINE u32 leading_zeros(u32 x) { return __clz(x); }
INLINE u32 leading_zeros(u64 x) { return __clzll(x); }

// Where a key is among 2^bits buckets of low ..= last: the bucket, and the place within it in 2^MARK_BITS
// ths. Any numbers below 2^bits and 2^MARK_BITS for a key outside.
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

// Keys of a segment.
INLINE u32 length_of(const Cut& cut, u32 segment) {
    const u64 start = static_cast<u64>(segment) << cut.shift;
    return static_cast<u32>(min(cut.count - start, 1ull << cut.shift));
}

// table[from .. to] = value for each lane; by whole warps.
INLINE void fill(u16* table, u32 from, u32 to, u32 value) {
    const bool many = to > from + FEW;
    if (!many) {
        for (u32 at = from; at < to; at++) table[at] = static_cast<u16>(value);
    }
    for (u32 lanes = __ballot_sync(ALL_LANES, many); lanes != 0; lanes &= lanes - 1) {
        const u32 lane = __ffs(lanes) - 1;
        const u32 first = __shfl_sync(ALL_LANES, from, lane);
        const u32 end = __shfl_sync(ALL_LANES, to, lane);
        const u32 same = __shfl_sync(ALL_LANES, value, lane);
        for (u32 at = first + lane_id(); at < end; at += WARP) table[at] = static_cast<u16>(same);
    }
}

template <typename K>
INLINE void index_keys(const Params& p) {
    const Cut cut = cut_of(p);
    if (cut.bits == 0) return;
    const K* unique = static_cast<const K*>(p.unique);
    const K flip = static_cast<K>(p.flip);
    const auto key_at = [&](u64 at) { return static_cast<K>(unique[at] ^ flip); };
    const u64 step = static_cast<u64>(gridDim.x) * THREADS * RUN;
    for (u64 base = static_cast<u64>(blockIdx.x) * THREADS * RUN; base < cut.count; base += step) {
        const u64 at = base + threadIdx.x * RUN;
        // A run behind the end writes nothing: its keys are the last one.
        const u32 segment = static_cast<u32>(min(at, cut.count - 1) >> cut.shift);
        const u64 start = static_cast<u64>(segment) << cut.shift;
        K keys[RUN];
#pragma unroll
        for (u32 i = 0; i < RUN; i++) keys[i] = key_at(min(at + i, cut.count - 1));
        const K low = key_at(start);
        const K last = segment + 1 < cut.segments
                           ? static_cast<K>(key_at(start + (1ull << cut.shift)) - 1)
                           : key_at(cut.count - 1);
        const bool begins = at == start;
        K before = 0;
        if (lane_id() == 0 && !begins) before = key_at(min(at, cut.count) - 1);
        u32 ends[RUN];
        u32 marks = 0;
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const Place place = place_of(keys[i], low, last, cut.bits);
            ends[i] = place.bucket + 1;
            marks |= place.mark << i * MARK_BITS;
        }
        u32 from = __shfl_up_sync(ALL_LANES, ends[RUN - 1], 1);
        if (lane_id() == 0) from = place_of(before, low, last, cut.bits).bucket + 1;
        if (begins) from = 0;
        const u32 first = segment << cut.bits;
        const u32 value = static_cast<u32>(at - start);
        const u32 length = length_of(cut, segment);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const bool there = at + i < cut.count;
            const u32 to = there ? ends[i] : from;
            fill(p.table, first + from, first + to, value + i >> cut.coarse);
            from = to;
        }
        const bool closes = at < cut.count && value + RUN >= length;
        if (__any_sync(ALL_LANES, closes)) {
            const u32 to = closes ? 1u << cut.bits : from;
            fill(p.table, first + from, first + to, length >> cut.coarse);
        }
        // Behind the last key there is room for the marks of a run.
        if (at < cut.count) reinterpret_cast<u32*>(p.marks)[at / RUN] = marks;
    }
}

// Which of the `count` marks in a word is the only one that equals `mark`, of marks that ascend:
// how many are below it, and how many equal it.
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

template <typename K, typename I>
INLINE void find_keys(const Params& p) {
    __shared__ Shared<K> shared;
    const Cut cut = cut_of(p);
    const K* unique = static_cast<const K*>(p.unique);
    const K flip = static_cast<K>(p.flip);
    const K first = unique[0] ^ flip;
    const K last = unique[cut.count - 1] ^ flip;
    for (u32 i = threadIdx.x; i < cut.segments; i += THREADS) {
        shared.splitters[i] = unique[static_cast<u64>(i) << cut.shift] ^ flip;
    }
    if (threadIdx.x == 0) shared.splitters[cut.segments] = last + 1;
    __syncthreads();
    for (u32 base = 0; base < cut.segments; base += THREADS) {
        const u32 i = base + threadIdx.x;
        u32 from = 0;
        u32 to = 0;
        u32 end = 0;
        if (i < cut.segments) {
            const auto bucket = [&](u32 j) {
                return place_of(shared.splitters[j], first, last, SPLITTER_BITS).bucket;
            };
            if (i != 0) from = bucket(i - 1) + 1;
            to = bucket(i) + 1;
            end = i + 1 == cut.segments ? SPLITTERS + 1 : to;
        }
        fill(shared.below, from, to, i);
        fill(shared.below, to, end, cut.segments);
    }
    __syncthreads();

    const K* keys = static_cast<const K*>(p.keys);
    I* to = static_cast<I*>(p.inverse);
    const u32 buckets = 1u << cut.bits;
    const u64 step = static_cast<u64>(gridDim.x) * TILE;
    for (u64 base = static_cast<u64>(blockIdx.x) * TILE; base < p.n; base += step) {
        const u64 at = base + threadIdx.x;
        K key[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            // In place of a key behind the end: the last one.
            key[i] = __ldcs(&keys[min(at + i * THREADS, p.n - 1)]) ^ flip;
        }
        u32 segment[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 bucket = place_of(key[i], first, last, SPLITTER_BITS).bucket;
            u32 low = min(static_cast<u32>(shared.below[bucket]), cut.segments);
            u32 high = min(static_cast<u32>(shared.below[bucket + 1]), cut.segments);
            while (low < high) {
                const u32 middle = (low + high) / 2;
                const bool right = shared.splitters[middle] <= key[i];
                low = right ? middle + 1 : low;
                high = right ? high : middle;
            }
            segment[i] = low == 0 ? 0 : low - 1;
        }
        u32 low[ITEMS];
        u32 high[ITEMS];
        u32 mark[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 length = length_of(cut, segment[i]);
            low[i] = 0;
            high[i] = length;
            mark[i] = 0;
            if (cut.bits == 0) continue;
            const K start = shared.splitters[segment[i]];
            const K stop = shared.splitters[segment[i] + 1] - 1;
            const Place place = place_of(key[i], start, stop, cut.bits);
            const u32 bucket = place.bucket;
            const u16* entry = p.table + (segment[i] << cut.bits) + bucket;
            mark[i] = place.mark;
            const u32 rest = (1u << cut.coarse) - 1; // what an entry may leave out
            low[i] = min(static_cast<u32>(entry[0]) << cut.coarse, length - 1);
            if (bucket + 1 < buckets) {
                high[i] = min((static_cast<u32>(entry[1]) << cut.coarse) + rest, length);
            }
        }
        // Entries that leave out bits give other buckets' keys as well, whose marks do not ascend.
        if (cut.bits != 0 && cut.coarse == 0) {
            u64 words[ITEMS][2];
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                const bool few = high[i] - low[i] - 2 <= MARKS - 2;
                const u64 at = (static_cast<u64>(segment[i]) << cut.shift) + low[i];
                const u64* from = reinterpret_cast<const u64*>(p.marks) + at / MARKS;
                words[i][0] = few ? from[0] : 0;
                words[i][1] = few ? from[1] : 0;
            }
#pragma unroll
            for (u32 i = 0; i < ITEMS; i++) {
                if (high[i] - low[i] - 2 > MARKS - 2) continue;
                const u32 shift = low[i] % MARKS * MARK_BITS;
                // (Two shifts, since a shift by 64 is none.)
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
                    const u64 start = static_cast<u64>(segment[i]) << cut.shift;
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
                const u64 place = (static_cast<u64>(segment[i]) << cut.shift) + low[i];
                __stcs(&to[at + i * THREADS], static_cast<I>(place));
            }
        }
    }
}

SPEC_KERNEL(unique_index_32, index_keys<u32>, Params, THREADS)
SPEC_KERNEL(unique_index_64, index_keys<u64>, Params, THREADS)
SPEC_KERNEL_BLOCKS(unique_inverse_32_i32, (find_keys<u32, i32>), Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_inverse_32_i64, (find_keys<u32, i64>), Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_inverse_64_i32, (find_keys<u64, i32>), Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_inverse_64_i64, (find_keys<u64, i64>), Params, THREADS, 2)
