// The wanted entries of a row of hot_slots as a set, held by a block. Each entry has an id, by
// which `owners` has the lowest slot that holds it. There are two kinds of set:
//
// * Narrow: the entries lie in a range for which shared memory has a bitmap. An id is the number of
//           smaller entries in the set, so ids ascend with entries, and the misses are listed in
//           ascending order without a sort.
// * Hashed: any entries, in a hash table of at least 2 m places. An id is a place. The order of the
//           insertions decides the places, but no result depends on them: entries are looked up by
//           comparing them. The misses are listed in any order, then sorted: a few by counting
//           smaller ones, many by a bitmap of their range, and misses of a wide range by a bitonic
//           network.
//
// Both have these functions, in the order of their calls, between barriers of the block:
//
//   insert    enters an entry. Exactly one of the columns with an entry gets true.
//   number    follows the insertions, after a barrier.
//   find      the id of an entry, NONE if the set lacks it. All lanes of a warp call it together.
//   note      notes which entries have no owner.
//   misses    how many these are, after a barrier.
//   list_one  (Narrow) lists the entry of a column for which `insert` returned true, if it is a
//             miss; or
//   sort      (Hashed) sorts the list. Another barrier must follow.
#pragma once

#include "hot_slots_sort.cuh"

// Fibonacci hashing: 2^32 divided by the golden ratio. Neighbouring entries get distant places.
constexpr u32 GOLDEN = 0x9E3779B9u;

// What the threads of a block share, in addition to the dynamic shared memory.
struct Shared {
    // Of each warp: its least and its greatest wanted entry, its entries or its slots that are
    // taken, its misses, and its slots that may be taken.
    u32 lows[WARPS];
    u32 highs[WARPS];
    u32 totals[WARPS];
    u32 missing[WARPS];
    u32 free[WARPS];
    // The misses of a hashed set, and their range.
    u32 misses;
    u32 lowest;
    u32 highest;
    // The digit at which a selection ends, and how many slots are left to choose there.
    u32 digit;
    u32 left;
};

struct Narrow {
    // The entry of the first bit, a multiple of 32, and the number of words that have entries.
    u32 base;
    u32 words;
    // A bit for each number of the range; the entries in the words of a warp before each word.
    u32* bits;
    u16* before;
    u32* owners;
    u32* list;
    // A bit for each id without an owner, and the misses among the ids of a warp before each word.
    u32* missing;
    u32* missing_before;
    // A warp counts in 2^log_words neighbouring words of the bitmap, and looks for misses among
    // 2^log_ids neighbouring ids.
    u32 log_words;
    u32 log_ids;
    // Lane w has the number of entries, and later of misses, before those of warp w.
    u32 entries_before;
    u32 misses_before;
    // The number of entries.
    u32 count;

    // Whether `list_one` lists the misses, and not `sort`.
    static constexpr bool BY_COLUMN = true;
    // Words that a warp reads at once.
    static constexpr u32 STEP = 4 * WARP;

    INLINE bool insert(u32 entry) const {
        const u32 at = entry - base;
        const u32 bit = 1u << (at % WARP);
        return (atomicOr(&bits[at / WARP], bit) & bit) == 0;
    }

    // The base-2 logarithm of how many items each warp must have for all warps together to have
    // `items`; at least `least`.
    INLINE static u32 log_each(u32 items, u32 least) {
        const u32 of_warp = (items + WARPS - 1) / WARPS;
        return max(least, of_warp < 2 ? 0 : 32 - __clz(of_warp - 1));
    }

    // The words up to the next multiple of STEP are 0 or have entries.
    INLINE void number(Shared& shared) {
        log_words = log_each(words, 7);
        static_assert(STEP == 1 << 7);
        const u32 first = threadIdx.x / WARP << log_words;
        const u32 end = min(first + (1u << log_words), words);
        u32 total = 0;
#pragma unroll 1
        for (u32 from = first; from < end; from += STEP) {
            const u32 at = from + 4 * lane_id();
            const uint4 four = *reinterpret_cast<const uint4*>(bits + at);
            const u32 two = __popc(four.x) + __popc(four.y);
            const u32 three = two + __popc(four.z);
            const u32 own = three + __popc(four.w);
            const u32 through = warp_inclusive_sum(own);
            const u32 to = total + through - own;
            *reinterpret_cast<uint2*>(before + at) =
                make_uint2(to | (to + __popc(four.x)) << 16, (to + two) | (to + three) << 16);
            total += __shfl_sync(ALL_LANES, through, WARP - 1);
        }
        if (lane_id() == 0) shared.totals[threadIdx.x / WARP] = total;
        __syncthreads();
        const SumsOfWarps<u32> sums(shared.totals, lane_id());
        entries_before = sums.through - sums.own;
        count = sums.all();
        log_ids = log_each(count, 5);
    }

    INLINE u32 find(u32 entry, bool is_asked) const {
        // A number below the base wraps around, to a place behind all words.
        const u32 at = entry - base;
        const u32 place = at / WARP;
        const u32 word = is_asked && place < words ? bits[place] : 0;
        const bool is_there = word >> (at % WARP) & 1;
        const u32 start =
            __shfl_sync(ALL_LANES, entries_before, is_there ? place >> log_words : 0);
        if (!is_there) return NONE;
        return start + before[place] + __popc(word & ((1u << (at % WARP)) - 1));
    }

    INLINE void note(Shared& shared) const {
        const u32 warp = threadIdx.x / WARP;
        const u32 first = warp << log_ids;
        const u32 end = min(first + (1u << log_ids), count);
        u32 total = 0;
#pragma unroll 1
        for (u32 from = first; from < end; from += WARP) {
            const u32 id = from + lane_id();
            const u32 lanes = __ballot_sync(ALL_LANES, id < count && owners[id] == NONE);
            if (lane_id() == 0) {
                missing[from / WARP] = lanes;
                missing_before[from / WARP] = total;
            }
            total += __popc(lanes);
        }
        if (lane_id() == 0) shared.missing[warp] = total;
    }

    INLINE u32 misses(const Shared& shared) {
        const SumsOfWarps<u32> sums(shared.missing, lane_id());
        misses_before = sums.through - sums.own;
        return sums.all();
    }

    // Lists an entry with its id, for the column for which `insert` returned true, if the entry is
    // a miss. All lanes of a warp must call this function.
    INLINE void list_one(u32 entry, u32 id, bool is_asked) const {
        const bool is_id = is_asked && id != NONE;
        const u32 word = is_id ? missing[id / WARP] : 0;
        const u32 start = __shfl_sync(ALL_LANES, misses_before, is_id ? id >> log_ids : 0);
        if ((word >> (id % WARP) & 1) == 0) return;
        const u32 to = start + missing_before[id / WARP];
        list[to + __popc(word & ((1u << (id % WARP)) - 1))] = entry;
    }
};

struct Hashed {
    u32* keys;
    u32* owners;
    u32* list;
    // Sorts misses of a range of at most so many words.
    u32* bitmap;
    u32 bitmap_words;
    u32 mask;
    u32 shift;

    static constexpr bool BY_COLUMN = false;

    INLINE u32 hash(u32 entry) const { return entry * GOLDEN >> shift; }

    // Before the barrier that ends the insertions, only `insert` may be called. At most half of the
    // places are filled, so both loops end.
    INLINE bool insert(u32 entry) const {
        u32 place = hash(entry);
        while (true) {
            const u32 there = atomicCAS(&keys[place], NONE, entry);
            if (there == NONE || there == entry) return there == NONE;
            place = (place + 1) & mask;
        }
    }

    INLINE void number(Shared&) const {}

    INLINE u32 find(u32 entry, bool is_asked) const {
        u32 place = hash(entry);
        while (is_asked) {
            const u32 there = keys[place];
            if (there == entry) return place;
            if (there == NONE) return NONE;
            place = (place + 1) & mask;
        }
        return NONE;
    }

    // Lists the entries without an owner, in any order, and notes their number and range.
    INLINE void note(Shared& shared) const {
        u32 lowest = NONE;
        u32 highest = 0;
        // The number of places is a multiple of THREADS, so all lanes of a warp take part.
#pragma unroll 1
        for (u32 at = threadIdx.x; at <= mask; at += THREADS) {
            const u32 entry = keys[at];
            const bool is_miss = entry != NONE && owners[at] == NONE;
            const u32 lanes = __ballot_sync(ALL_LANES, is_miss);
            if (lanes == 0) continue;
            u32 to = 0;
            if (lane_id() == 0) to = atomicAdd(&shared.misses, __popc(lanes));
            to = __shfl_sync(ALL_LANES, to, 0);
            if (is_miss) {
                list[to + __popc(lanes & lanes_below())] = entry;
                lowest = min(lowest, entry);
                highest = max(highest, entry);
            }
        }
        lowest = __reduce_min_sync(ALL_LANES, lowest);
        highest = __reduce_max_sync(ALL_LANES, highest);
        if (lane_id() == 0 && lowest != NONE) {
            atomicMin(&shared.lowest, lowest);
            atomicMax(&shared.highest, highest);
        }
    }

    INLINE u32 misses(const Shared& shared) const { return shared.misses; }

    INLINE void sort(Shared& shared) const {
        const u32 n = shared.misses;
        const u32 words = (shared.highest - shared.lowest) / 32 + 1;
        if (n <= FEW) {
            sort_few(list, n);
        } else if (words <= bitmap_words) {
            const u32 rounded = (words + THREADS - 1) / THREADS * THREADS;
            sort_by_bitmap(shared.totals, bitmap, rounded, shared.lowest, list, n);
        } else {
            sort_by_exchange(list, n);
        }
    }
};
