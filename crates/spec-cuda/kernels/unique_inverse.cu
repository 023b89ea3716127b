// unique: where each key is among the distinct keys. Runs after the kernels of unique.cu, on their
// results, and only where `inverse` is asked for. The count of distinct keys stays on the device.
//
// The distinct keys are cut into at most SPLITTERS segments of 2^shift keys each; the first key of
// a segment is its splitter. The range of a segment, from its splitter to the next, is cut into
// 2^bits buckets of equal width, and the table says how many keys of the segment are below each
// bucket. So a segment adapts to how dense the keys are there, and no search is longer than a
// segment, whatever the keys are.
//
//   unique_index     a thread a distinct key: writes the table's entries from the bucket of the key
//                    before to its own. An element of the table is an u16; where a segment has more
//                    than 2^15 keys, the entry leaves out the lowest bits
//   unique_inverse   a thread some keys, a block many tiles in turn. Shared memory holds the
//                    splitters, and a table of the same kind over them. A key reads two entries
//                    of each table, and then searches the few distinct keys of its bucket; where
//                    its bucket has one key, it reads no distinct key at all
//
// Bytes a key of 8, 2^24 random keys: 10 to make the table of 16 MB, which stays in L2; 8 to read
// the key, 8 or 4 to write the element, and of the distinct keys, which lie anywhere, about two
// sectors of 32. (A sort of pairs of key and index would move 16 bytes a key twice, and then write
// the elements anywhere, a sector each.)
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

// The bucket, of 2^bits in low ..= last, where a key is. Any number below 2^bits for a key outside.
template <typename K>
INLINE u32 bucket_of(K key, K low, K last, u32 bits) {
    const K place = key - low << leading_zeros(static_cast<K>(last - low | 1));
    return static_cast<u32>(place >> sizeof(K) * 8 - bits);
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
    const u64 step = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 base = static_cast<u64>(blockIdx.x) * THREADS; base < cut.count; base += step) {
        const u64 at = base + threadIdx.x;
        u32 from = 0;
        u32 to = 0;
        u32 end = 0;
        u32 value = 0;
        u32 length = 0;
        if (at < cut.count) {
            const u32 segment = static_cast<u32>(at >> cut.shift);
            const u64 start = static_cast<u64>(segment) << cut.shift;
            const K low = key_at(start);
            const K last = segment + 1 < cut.segments
                               ? static_cast<K>(key_at(start + (1ull << cut.shift)) - 1)
                               : key_at(cut.count - 1);
            const u32 first = segment << cut.bits;
            value = static_cast<u32>(at - start);
            length = length_of(cut, segment);
            if (value != 0) from = bucket_of(key_at(at - 1), low, last, cut.bits) + 1;
            from += first;
            to = first + bucket_of(key_at(at), low, last, cut.bits) + 1;
            end = value + 1 == length ? first + (1u << cut.bits) : to;
        }
        fill(p.table, from, to, value >> cut.coarse);
        fill(p.table, to, end, length >> cut.coarse);
    }
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
                return bucket_of(shared.splitters[j], first, last, SPLITTER_BITS);
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
            const u32 bucket = bucket_of(key[i], first, last, SPLITTER_BITS);
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
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 length = length_of(cut, segment[i]);
            low[i] = 0;
            high[i] = length;
            if (cut.bits == 0) continue;
            const K start = shared.splitters[segment[i]];
            const K stop = shared.splitters[segment[i] + 1] - 1;
            const u32 bucket = bucket_of(key[i], start, stop, cut.bits);
            const u16* entry = p.table + (segment[i] << cut.bits) + bucket;
            const u32 rest = (1u << cut.coarse) - 1; // what an entry may leave out
            low[i] = min(static_cast<u32>(entry[0]) << cut.coarse, length - 1);
            if (bucket + 1 < buckets) {
                high[i] = min((static_cast<u32>(entry[1]) << cut.coarse) + rest, length);
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
