// unique, by buckets: partitions move keys to buckets by their high bits, until each bucket fits
// shared memory. There are one or two partitions of up to 9 bits each, or a wide one of 10 or 11
// bits. Then a block sorts each bucket in shared memory and drops equal keys. Only distinct keys
// are wanted, so equal keys need no stable order, and a tile does not depend on earlier tiles: one
// atomic addition reserves room for all its keys of a digit ("hybrid radix sort": Stehle and
// Jacobsen, 2017).
//
//   check          one block tests a sample: which range the buckets should divide, and whether
//                  some part of this range is crowded. At the same time all other blocks read keys
//                  while these ascend. If all keys ascend, these blocks have counted the distinct
//                  keys, and unique_passes.cuh does the rest
//   survey         reads the keys once and counts the keys of each bucket. Keys outside of the
//                  range go to the first or the last bucket. The block that finishes last decides
//                  the route, which the following kernels read on the device
//   partition      writes the keys of each tile to their digits. The block first groups the keys of
//                  a digit in shared memory, so that they are written as a run
//   partition_wide the same for more digits, in a larger tile
//   sort_buckets   one block for each bucket, in ascending order: distributes keys over bins by
//                  position, sorts the few keys of each bin, drops equal keys, finds by look-back
//                  the number of distinct keys in earlier buckets, and writes. `unique` is both
//                  source and target: a block writes only to places that this block and earlier
//                  blocks have read, and look-back shows that those blocks have read their keys
//
// If a bucket does not fit shared memory, because keys crowd a part of the range, all keys are
// sorted by digits instead (unique_passes.cuh). But if the crowd consists mostly of equal keys, and
// counts are not wanted, partitions drop equal keys within each tile (`thin`), and the buckets are
// checked again afterwards.
//
// Bytes for each key of 8 bytes: 8 for the survey, 16 for each partition, 8 to 16 for
// `sort_buckets`.
#pragma once

#include "unique_partition.cuh"

template <typename K>
struct BucketShared {
    union {
        K keys[BUCKET_KEYS];
        u64 slots[WARPS][RADIX];
    };
    union {
        u32 bins[BINS / 2];        // two counters in a word; later where each bin starts
        u32 starts[WARPS][RADIX];
        u16 owners[BUCKET_KEYS];   // the key that has a slot; or places of the distinct keys
    };
};

// Sorts shared.keys[..size] by a radix sort over the bytes in which keys differ. It suits any keys,
// but is slower than sort_bucket.
template <typename K>
__device__ __noinline__ void sort_by_bytes(BucketShared<K>& shared, u32 size, u64 flip) {
    const u32 warp = threadIdx.x / WARP;
    const u32 first = warp * WARP * BUCKET_ITEMS + lane_id();
    const K none = ~static_cast<K>(flip); // fills the places after the last key; no key is larger
    K keys[BUCKET_ITEMS];
    K differs = 0;
    const K some = shared.keys[0];
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) {
        const u32 at = first + i * WARP;
        keys[i] = at < size ? shared.keys[at] : none;
        if (at < size) differs |= keys[i] ^ some;
    }
    for (u32 digit = 0; digit < sizeof(K); digit++) {
        if (!__syncthreads_or((differs >> 8 * digit & (RADIX - 1)) != 0)) continue;
        for (u32 i = threadIdx.x; i < WARPS * RADIX; i += THREADS) shared.slots[0][i] = 0;
        __syncthreads();
        u32 ranks[BUCKET_ITEMS];
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            ranks[i] = rank_in_warp<false>(shared.slots[warp], digit_of(keys[i], flip, digit));
        }
        __syncthreads();
        u32 count = 0;
        if (threadIdx.x < RADIX) {
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                shared.starts[w][threadIdx.x] = count;
                count += static_cast<u32>(shared.slots[w][threadIdx.x] >> 32);
            }
        }
        u32 all;
        const u32 place = sum_before<THREADS>(count, all);
        if (threadIdx.x < RADIX) {
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) shared.starts[w][threadIdx.x] += place;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            shared.keys[shared.starts[warp][digit_of(keys[i], flip, digit)] + ranks[i]] = keys[i];
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) keys[i] = shared.keys[first + i * WARP];
    }
    __syncthreads();
}

// Drops most repetitions of keys in shared.keys[..size], like `thin`. Returns the number of
// remaining keys.
template <typename K>
__device__ __noinline__ u32 thin_bucket(BucketShared<K>& shared, u32 size) {
    for (u32 round = 0; round < 2; round++) {
        const u64 factor = round == 0 ? 0x9E3779B97F4A7C15ull : 0xD1B54A32D192ED03ull;
        const auto slot_of = [&](K key) { return static_cast<u32>(key * factor >> 51); };
        static_assert(BUCKET_KEYS >= 1 << 13, "slots of 13 bits");
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            shared.owners[slot_of(shared.keys[at])] = static_cast<u16>(at);
        }
        __syncthreads();
        K keys[BUCKET_ITEMS];
        u32 stay = 0;
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            if (at < size) {
                keys[i] = shared.keys[at];
                const u32 owner = shared.owners[slot_of(keys[i])];
                if (owner == at || shared.keys[owner] != keys[i]) stay |= 1u << i;
            }
        }
        u32 to = sum_before<THREADS>(__popc(stay), size);
#pragma unroll
        for (u32 i = 0; i < BUCKET_ITEMS; i++) {
            if (stay >> i & 1) shared.keys[to++] = keys[i];
        }
        __syncthreads();
    }
    return size;
}

// Sorts shared.keys[..size] and returns the number of remaining keys: repetitions of a key may be
// dropped, unless `counted`. A bin is one of BINS equal parts of a bucket of `map`.
template <typename K>
INLINE u32 sort_bucket(BucketShared<K>& shared, u32 size, const Map& map, bool counted,
                       u64 key_flip) {
    constexpr u32 WORDS = BINS / 2 / THREADS; // words of `bins` that a thread has
    const K flip = static_cast<K>(key_flip);
    const auto bin_of = [&](K key) {
        return position_of(key, map, key_flip) * map.scale >> (32 - BIN_BITS);
    };
    uint4* wide = reinterpret_cast<uint4*>(shared.bins) + threadIdx.x * (WORDS / 4);
    u32 bins[WORDS];
    u32 first;
    u32 own; // keys of a thread's bins
    for (bool again = false;; again = true) {
#pragma unroll
        for (u32 i = 0; i < WORDS / 4; i++) wide[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 6
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            const u32 bin = bin_of(shared.keys[at]);
            atomicAdd(&shared.bins[bin / 2], 1u << bin % 2 * 16);
        }
        __syncthreads();
        // Each thread replaces the counts of its bins by their starts.
        own = 0;
        u32 largest = 0; // of the counters in the lower halves of words, and in the upper halves
#pragma unroll
        for (u32 i = 0; i < WORDS; i += 4) {
            const uint4 four = wide[i / 4];
            bins[i] = four.x;
            bins[i + 1] = four.y;
            bins[i + 2] = four.z;
            bins[i + 3] = four.w;
        }
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) {
            own += (bins[i] & 0xFFFF) + (bins[i] >> 16);
            largest = __vmaxu2(largest, bins[i]);
        }
        const bool crowded = __syncthreads_or(max(largest & 0xFFFF, largest >> 16) > BIN_LIMIT);
        u32 all;
        first = sum_before<THREADS>(own, all);
        if (!crowded) break;
        // A bin has too many keys: equal keys, or different keys that are close together. If keys
        // are not counted, equal keys are dropped, once.
        if (counted || again) {
            sort_by_bytes(shared, size, key_flip);
            return size;
        }
        size = thin_bucket(shared, size);
    }
    u32 at = first;
#pragma unroll
    for (u32 i = 0; i < WORDS; i += 4) {
        const auto start = [&](u32 counts) {
            const u32 second = at + (counts & 0xFFFF);
            const u32 starts = at | second << 16;
            at = second + (counts >> 16);
            return starts;
        };
        uint4 four;
        four.x = start(bins[i]);
        four.y = start(bins[i + 1]);
        four.z = start(bins[i + 2]);
        four.w = start(bins[i + 3]);
        wide[i / 4] = four;
    }
    K keys[BUCKET_ITEMS];
    const i32 mine = static_cast<i32>(size - threadIdx.x);
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) keys[i] = shared.keys[i * THREADS + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < BUCKET_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine) {
            const u32 bin = bin_of(keys[i]);
            const u32 shift = bin % 2 * 16;
            const u32 to = atomicAdd(&shared.bins[bin / 2], 1u << shift) >> shift & 0xFFFF;
            shared.keys[to] = keys[i];
        }
    }
    __syncthreads();
    // Each thread sorts the keys of its bins by insertion. They are nearly in order, because bins
    // are in order.
    if (own > 1) {
        K above = shared.keys[first] ^ flip;
        for (u32 j = first + 1; j < first + own; j++) {
            const K key = shared.keys[j] ^ flip;
            if (key >= above) {
                above = key;
                continue;
            }
            u32 to = j;
            K before = above;
            do {
                shared.keys[to--] = before ^ flip;
                if (to == first) break;
                before = shared.keys[to - 1] ^ flip;
            } while (key < before);
            shared.keys[to] = key ^ flip;
        }
    }
    __syncthreads();
    return size;
}

template <typename K>
INLINE void sort_buckets(const Params& p) {
    constexpr u32 ITEMS = BUCKET_ITEMS;
    extern __shared__ uint4 memory[];
    BucketShared<K>& shared = *reinterpret_cast<BucketShared<K>*>(memory);
    __shared__ u32 taken;
    __shared__ u64 shared_before;
    __shared__ u32 totals[WARPS];
    const bool whole = p.bits == 0; // all keys are one bucket
    if (!whole && p.plan->mode != BUCKETS && p.plan->mode != THINNED) return;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 buckets = 1u << p.bits;
    Map map{};
    if (!whole) map = p.plan->map;
    K* unique = static_cast<K*>(p.unique);
    u32 bucket = 0;
    u32 start = 0;
    u32 size = static_cast<u32>(p.n);
    const K* from = static_cast<const K*>(p.keys);
    if (!whole) {
        if (threadIdx.x == 0) taken = atomicAdd(&p.plan->buckets_taken, 1u);
        __syncthreads();
        bucket = taken;
        start = p.bucket_starts[bucket];
        size = p.bucket_ends[bucket] - start;
        from = unique + start;
    }
    for (u32 at = threadIdx.x; at < size; at += THREADS) copy_async(&shared.keys[at], from + at);
    await_copies();
    __syncthreads();
    if (whole) {
        u64 least = ~0ull;
        u64 greatest = 0;
        for (u32 at = threadIdx.x; at < size; at += THREADS) {
            const u64 ordered = static_cast<u64>(shared.keys[at] ^ static_cast<K>(p.flip));
            least = min(least, ordered);
            greatest = max(greatest, ordered);
        }
        extremes<THREADS>(least, greatest);
        map = map_of(least, greatest, 1);
    }
    size = sort_bucket(shared, size, map, p.counts != nullptr, p.flip);

    // A warp has ITEMS rows of 32 neighbouring keys. Lane i has a bit for each key of row i: 1 if
    // the key is the first of equal keys.
    const u32 first = warp * WARP * ITEMS + lane;
    u32 heads = 0;
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 at = first + i * WARP;
        const bool head = at < size && (at == 0 || shared.keys[at] != shared.keys[at - 1]);
        const u32 row = __ballot_sync(ALL_LANES, head);
        if (lane == i) heads = row;
        count += __popc(row);
    }
    if (lane == 0) totals[warp] = count;
    __syncthreads();
    const SumsOfWarps<u32> warps(totals, WARPS, lane);
    const u32 all = warps.all();
    u32 to = warps.before(warp);
    if (warp == 0) {
        if (lane == 0) {
            write_word(&p.tile_sums[bucket], static_cast<u64>(TILE_ONLY) << 62 | all);
        }
        const u64 before = look_back_by_warp(p.tile_sums, bucket, all);
        if (lane == 0) {
            shared_before = before;
            if (bucket == buckets - 1) *p.count = before + all;
        }
    }
    u16* places = shared.owners; // the place of the first of equal keys; their distances are counts
    __syncthreads();
    const u64 base = shared_before;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 row = __shfl_sync(ALL_LANES, heads, i);
        if (row >> lane & 1) {
            const u32 at = to + __popc(row & lanes_below());
            unique[base + at] = shared.keys[first + i * WARP];
            if (p.counts != nullptr) places[at] = static_cast<u16>(first + i * WARP);
        }
        to += __popc(row);
    }
    __syncthreads();
    if (p.counts != nullptr) {
        for (u32 i = threadIdx.x; i < all; i += THREADS) {
            const u32 end = i + 1 < all ? places[i + 1] : size;
            p.counts[base + i] = end - places[i];
        }
    }
}
