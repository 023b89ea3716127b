// unique, by buckets: moves keys to buckets by their high bits. unique_buckets.cuh has the design.
#pragma once

#include "unique_survey.cuh"

// ---- partition ---------------------------------------------------------------

template <typename K>
struct SplitShared {
    K keys[SPLIT_KEYS];
    u32 counts[MAX_SPLIT];
    u32 places[MAX_SPLIT];  // where a digit's keys go in `keys`
    u32 targets[MAX_SPLIT]; // added to a place in `keys`, gives the place in the output
    u16 owners[THIN_SLOTS]; // for `thin`: the place of a key that has the slot
};

// A bit for each of the thread's keys: 1 if the key stays. Each key hashes to a slot, and one key
// of the tile owns each slot. A key is dropped if another key with the same value owns its slot; it
// stays if a key with another value does. The two rounds hash differently, so that two frequent
// values with the same slot in one round have different slots in the other.
template <typename K>
INLINE u32 thin(SplitShared<K>& shared, const K (&keys)[SPLIT_ITEMS], u32 valid) {
    u32 stay = 0;
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < valid) {
            shared.keys[at] = keys[i];
            stay |= 1u << i;
        }
    }
#pragma unroll 1
    for (u32 round = 0; round < 2; round++) {
        const u64 factor = round == 0 ? 0x9E3779B97F4A7C15ull : 0xD1B54A32D192ED03ull;
        const auto slot_of = [&](K key) {
            return static_cast<u32>(key * factor >> 40) % THIN_SLOTS;
        };
#pragma unroll
        for (u32 i = 0; i < SPLIT_ITEMS; i++) {
            if (stay >> i & 1) {
                shared.owners[slot_of(keys[i])] = static_cast<u16>(i * THREADS + threadIdx.x);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SPLIT_ITEMS; i++) {
            if (stay >> i & 1) {
                const u32 owner = shared.owners[slot_of(keys[i])];
                if (owner != i * THREADS + threadIdx.x && shared.keys[owner] == keys[i]) {
                    stay &= ~(1u << i);
                }
            }
        }
        __syncthreads();
    }
    return stay;
}

// After equal keys were dropped, the block that finishes last checks whether every bucket now fits
// shared memory. If not, all keys are sorted by digits.
INLINE void check_buckets(const Params& p) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&p.plan->partition_blocks, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    bool large = false;
    for (u32 i = threadIdx.x; i < 1u << p.bits; i += blockDim.x) {
        large |= __ldcg(&p.bucket_ends[i]) - p.bucket_starts[i] > BUCKET_KEYS;
    }
    if (__syncthreads_or(large) && threadIdx.x == 0) p.plan->mode = BY_DIGITS;
}

// Partitions one tile. If HIGH, the tile is a part of all keys, and the digit of a key is the high
// bits of its bucket's number. Otherwise all keys of the tile have the same high bits, and the
// digit is the low bits.
template <typename K, bool HIGH>
INLINE void split_tile(const Params& p, bool thinned, u32 tile) {
    extern __shared__ uint4 memory[];
    __shared__ u32 shared_digit;
    SplitShared<K>& shared = *reinterpret_cast<SplitShared<K>*>(memory);
    const u32 low_bits = p.low_bits;
    const u32 highs = 1u << (p.bits - low_bits);
    const u32 digits = HIGH ? highs : 1u << low_bits;
    const bool last = !HIGH || low_bits == 0;
    const K* from = static_cast<const K*>(HIGH ? p.keys : p.buffer);
    K* to = static_cast<K*>(last ? p.unique : p.buffer);
    const Map map = p.plan->map;
    const auto digit_of = [&](K key) {
        const u32 bucket = bucket_of(key, map, p.flip);
        return HIGH ? bucket >> low_bits : bucket & (digits - 1);
    };
    u32 start = tile * SPLIT_KEYS;
    u32 end = static_cast<u32>(p.n);
    u32* ends = last ? p.bucket_ends : p.digit_ends;
    if (!HIGH) {
        if (threadIdx.x < highs && p.digit_tiles[threadIdx.x] <= tile &&
            tile < p.digit_tiles[threadIdx.x + 1]) {
            shared_digit = threadIdx.x;
        }
        __syncthreads();
        const u32 high = shared_digit;
        start = p.bucket_starts[high << low_bits] + (tile - p.digit_tiles[high]) * SPLIT_KEYS;
        end = max(p.digit_ends[high], start);
        ends += high << low_bits;
    }
    const u32 valid = min(end - start, SPLIT_KEYS);
    // This thread has the keys threadIdx.x + i * THREADS for which i * THREADS is below `mine`.
    const i32 mine = static_cast<i32>(valid - threadIdx.x);
    from += start + threadIdx.x;
    for (u32 i = threadIdx.x; i < digits; i += THREADS) shared.counts[i] = 0;
    K keys[SPLIT_ITEMS];
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine) keys[i] = __ldcs(from + i * THREADS);
    }
    __syncthreads();
    u32 stay = ALL_LANES;
    if (thinned) stay = thin(shared, keys, valid);
    u32 ranks[SPLIT_ITEMS]; // the digit << 16 | the rank among the tile's keys of this digit
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine && stay >> i & 1) {
            const u32 digit = digit_of(keys[i]);
            ranks[i] = digit << 16 | atomicAdd(&shared.counts[digit], 1u);
        }
    }
    __syncthreads();
    const u32 own = threadIdx.x < digits ? shared.counts[threadIdx.x] : 0;
    const u32 room = own != 0 ? atomicAdd(&ends[threadIdx.x], own) : 0;
    u32 all;
    const u32 place = sum_before<THREADS>(own, all);
    if (threadIdx.x < digits) {
        shared.places[threadIdx.x] = place;
        shared.targets[threadIdx.x] = room - place;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        if (static_cast<i32>(i * THREADS) < mine && stay >> i & 1) {
            shared.keys[shared.places[ranks[i] >> 16] + (ranks[i] & 0xFFFF)] = keys[i];
        }
    }
    __syncthreads();
#pragma unroll 4
    for (u32 i = 0; i < SPLIT_ITEMS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        if (at < all) {
            const K key = shared.keys[at];
            to[shared.targets[digit_of(key)] + at] = key;
        }
    }
}

template <typename K, bool HIGH>
INLINE void partition(const Params& p) {
    const u32 mode = p.plan->mode;
    if (mode != BUCKETS && mode != THINNED) return;
    if (HIGH || blockIdx.x < p.plan->tiles) split_tile<K, HIGH>(p, mode == THINNED, blockIdx.x);
    if (mode == THINNED && (!HIGH || p.low_bits == 0)) check_buckets(p);
}

// The same for a plan that drops equal keys, if `partition_wide` was launched before. Usually the
// plan is another one and there is nothing to do, so this kernel has few blocks, which take tiles
// in turn.
template <typename K, bool HIGH>
INLINE void partition_thinned(const Params& p) {
    if (p.plan->mode != THINNED) return;
    const u32 all = (static_cast<u32>(p.n) + SPLIT_KEYS - 1) / SPLIT_KEYS;
    const u32 tiles = HIGH ? all : p.plan->tiles;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        split_tile<K, HIGH>(p, true, tile);
        __syncthreads(); // before the next tile overwrites shared memory
    }
    if (!HIGH) check_buckets(p);
}

// ---- wide partition ----------------------------------------------------------

// One partition by all bits of the bucket's number. It is used if `partition` would need two passes
// for so many digits, but the digits are few enough that a tile has a run of several keys for each.
// There is one block on each multiprocessor, whose shared memory holds the current tile and the
// next one. If equal keys are to be dropped, two partitions are used instead, because they leave
// fewer equal keys.
template <typename K>
struct WideShared {
    static constexpr u32 KEYS = sizeof(K) == 8 ? WIDE_KEYS_64 : WIDE_KEYS_32;
    static constexpr u32 ITEMS = KEYS / WIDE_THREADS;
    K ahead[KEYS]; // keys of the next tile; a thread reads only those that it has copied
    K keys[KEYS];
    u32 places[WIDE_SPLIT];  // how many keys a digit has; later where they go in `keys`
    u32 targets[WIDE_SPLIT]; // added to a place in `keys`, gives the place in the output
};

template <typename K>
INLINE void partition_wide(const Params& p) {
    constexpr u32 ITEMS = WideShared<K>::ITEMS;
    constexpr u32 KEYS = WideShared<K>::KEYS;
    constexpr u32 N = WIDE_THREADS;
    static_assert(WIDE_SPLIT == 2 * N, "two digits a thread");
    if (p.plan->mode != BUCKETS) return;
    extern __shared__ uint4 memory[];
    WideShared<K>& shared = *reinterpret_cast<WideShared<K>*>(memory);
    const u32 thread = threadIdx.x;
    const u32 digits = 1u << p.bits;
    const K* from = static_cast<const K*>(p.keys);
    K* to = static_cast<K*>(p.unique);
    const Map map = p.plan->map;
    const u32 n = static_cast<u32>(p.n);
    const u32 tiles = (n + KEYS - 1) / KEYS;
    const auto valid_of = [&](u32 tile) { return min(n - tile * KEYS, KEYS); };
    const auto load = [&](u32 tile) {
        const i32 mine = static_cast<i32>(valid_of(tile) - thread);
        const K* keys = from + tile * KEYS + thread;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                copy_async(&shared.ahead[i * N + thread], keys + i * N);
            }
        }
    };
    u32 tile = blockIdx.x;
    if (tile < tiles) load(tile);
    while (tile < tiles) {
        const u32 valid = valid_of(tile);
        // This thread has the keys thread + i * N for which i * N is below `mine`.
        const i32 mine = static_cast<i32>(valid - thread);
        for (u32 i = thread; i < digits; i += N) shared.places[i] = 0;
        await_copies();
        K keys[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) keys[i] = shared.ahead[i * N + thread];
        __syncthreads();
        u32 ranks[ITEMS]; // the digit << 16 | the rank among the tile's keys of this digit
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                const u32 digit = bucket_of(keys[i], map, p.flip);
                ranks[i] = digit << 16 | atomicAdd(&shared.places[digit], 1u);
            }
        }
        tile += gridDim.x;
        if (tile < tiles) load(tile);
        __syncthreads();
        u32 own[2];
        u32 room[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 digit = 2 * thread + i;
            own[i] = digit < digits ? shared.places[digit] : 0;
            room[i] = own[i] != 0 ? atomicAdd(&p.bucket_ends[digit], own[i]) : 0;
        }
        u32 all;
        u32 place = sum_before<N>(own[0] + own[1], all);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 digit = 2 * thread + i;
            if (digit < digits) {
                shared.places[digit] = place;
                shared.targets[digit] = room[i] - place;
            }
            place += own[i];
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (static_cast<i32>(i * N) < mine) {
                shared.keys[shared.places[ranks[i] >> 16] + (ranks[i] & 0xFFFF)] = keys[i];
            }
        }
        __syncthreads();
#pragma unroll 4
        for (u32 i = 0; i < ITEMS; i++) {
            const u32 at = i * N + thread;
            if (at < valid) {
                const K key = shared.keys[at];
                to[shared.targets[bucket_of(key, map, p.flip)] + at] = key;
            }
        }
        __syncthreads(); // before the counts of the next tile overwrite `places`
    }
}
