// Finds the first tokens of a row in the order of logits, descending, the lower index first among
// equal logits; and counts the logits that are at least as large as given thresholds. One block
// does this alone, once it has the largest logit of each group of neighbouring tokens.
//
//     bound      A bound that at least `wanted` groups reach with their largest logit, so that all
//                wanted tokens reach it.
//     groups     The block lists the groups whose largest logit reaches the bound, and reads their
//                logits.
//     tokens     It lists the tokens that reach the bound: most often a few more than are wanted.
//     narrow     If the list overflows, because many logits are equal, the block counts tokens by
//                histograms until it has a cut that fewer tokens reach.
//     sorted     A thread for each listed token counts the listed tokens that come before it.
//
// NaN counts as negative infinity.
#pragma once

#include "sample_logits_race.cuh"
#include "select.cuh"

struct RowOrder {
    // The largest number of groups of a row, and the largest number of tokens that `first` can
    // find.
    static constexpr u32 MAX_GROUPS = 4096;
    static constexpr u32 MAX_WANTED = MAX_TOP;
    // The largest numbers of groups and of tokens that are listed.
    static constexpr u32 GROUPS_LISTED = 1024;
    static constexpr u32 TOKENS_LISTED = 1024;
    // The bins of a histogram.
    static constexpr u32 BIN_BITS = 11;
    static constexpr u32 BINS = 1u << BIN_BITS;
    // Groups that a warp loads before it uses any.
    static constexpr u32 AT_ONCE = 4;
    // An index beyond every row, as is NO_TOKEN + WARP, which another lane would read of the same
    // group.
    static constexpr u32 NO_TOKEN = 1u << 31;

    // Shared memory of the block.
    struct Shared {
        union {
            // Tokens in the order of `listed_entry`.
            u64 list[TOKENS_LISTED];
            u32 bins[BINS];
        };
        u64 sorted[MAX_WANTED];
        u16 groups[GROUPS_LISTED];
        u32 of_warps[SELECT_WARPS];
        u32 lowest_of_warps[SELECT_WARPS];
        u32 group_count;
        u32 token_count;
        // The result of a histogram: the bin with the last wanted token, the number of entries in
        // that bin, and the number of entries in the bins above.
        u32 bin;
        u32 inside;
        u32 above;
    };

    Shared& shared;
    // The largest logit of each group.
    const float* tops;
    u32 groups;
    // A group has 64 << merged tokens.
    u32 merged;
    u32 lane;
    u32 warp;
    // The largest key of this thread's groups; 0 if it has no groups.
    u32 own;
    // The key of the row's largest logit, and the smallest of the threads' `own` keys.
    u32 largest;
    u32 lowest;

    // By the whole block. Contains a barrier.
    INLINE RowOrder(Shared& of_block, const float* of_groups, u32 vocab, u32 merges)
        : shared(of_block),
          tops(of_groups),
          groups(groups_of(vocab, merges)),
          merged(merges),
          lane(lane_id()),
          warp(threadIdx.x / WARP) {
        float top = negative_infinity();
#pragma unroll 1
        for (u32 group = threadIdx.x; group < groups; group += SELECT_THREADS) {
            top = fmaxf(top, tops[group]);
        }
        own = threadIdx.x < groups ? key_of(top) : 0;
        const u32 largest_of_warp = __reduce_max_sync(ALL_LANES, own);
        const u32 lowest_of_warp = __reduce_min_sync(ALL_LANES, own == 0 ? NONE : own);
        if (lane == 0) {
            shared.of_warps[warp] = largest_of_warp;
            shared.lowest_of_warps[warp] = lowest_of_warp;
        }
        if (threadIdx.x == 0) {
            shared.group_count = 0;
            shared.token_count = 0;
        }
        __syncthreads();
        largest = __reduce_max_sync(ALL_LANES, shared.of_warps[lane % SELECT_WARPS]);
        lowest = __reduce_min_sync(ALL_LANES, shared.lowest_of_warps[lane % SELECT_WARPS]);
    }

    INLINE static u32 groups_of(u32 vocab, u32 merged) {
        return ((vocab - 1) >> merged) / GROUP + 1;
    }

    // Stores the first `wanted` tokens of the order in shared.sorted, as `listed_entry`. Returns
    // their number, which is less than `wanted` only if logits change during the call. May be
    // called once; `wanted` is at most MAX_WANTED, and at most the number of tokens of the row.
    template <typename Row>
    INLINE u32 first(const Row& row, u32 wanted) const {
        const u32 bound = reached_by(wanted);
        const float least = exact::value_of_key(bound);
        list_groups(least);
        u64 cut = static_cast<u64>(bound) << 32;
#pragma unroll 1
        for (bool narrowed = false;; narrowed = true) {
            // Each listed group has a token that reaches the bound.
            const bool fits = narrowed || shared.group_count <= GROUPS_LISTED;
            if (fits) list_tokens(row, least, cut);
            __syncthreads();
            if (narrowed || (fits && shared.token_count <= TOKENS_LISTED)) break;
            cut = narrow(*this, row, wanted, bound);
        }
        const u32 count = min(shared.token_count, TOKENS_LISTED);
        sort(count, wanted);
        if (threadIdx.x == 0) shared.group_count = 0;
        __syncthreads();
        return min(count, wanted);
    }

    // For each of `count` thresholds in shared memory, counts the logits that are at least as
    // large; 0 if the threshold is NaN. By the whole block; the thresholds must be written before a
    // barrier.
    template <typename Row>
    INLINE void count_reaching(const Row& row, const float* thresholds, u32* counts,
                               u32 count) const {
        float least = infinity();
        for (u32 i = lane; i < count; i += WARP) least = fminf(least, thresholds[i]);
        least = exact::value_of_key(__reduce_min_sync(ALL_LANES, exact::sort_key(least)));
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += SELECT_THREADS) counts[i] = 0;
        list_groups(least);
        each(row, least, [&](const float(&entries)[2 * AT_ONCE], const u32(&)[AT_ONCE]) {
#pragma unroll 1
            for (u32 i = 0; i < count; ++i) {
                const float threshold = thresholds[i];
                u32 reach = 0;
#pragma unroll
                for (u32 j = 0; j < 2 * AT_ONCE; ++j) reach += entries[j] >= threshold;
                reach = __reduce_add_sync(ALL_LANES, reach);
                if (lane == 0 && reach > 0) atomicAdd(&counts[i], reach);
            }
        });
        __syncthreads();
        if (threadIdx.x == 0) shared.group_count = 0;
        __syncthreads();
    }

private:
    // A key that the largest logits of at least `wanted` groups reach: the largest such key or a
    // little less.
    INLINE u32 reached_by(u32 wanted) const {
        if (groups < wanted) return LOWEST_KEY;
        if (wanted == 1) return largest;
        // Each step halves the range; more steps improve little.
        constexpr u32 STEPS = 10;
        u32 low = lowest;
        u32 high = largest;
#pragma unroll 1
        for (u32 step = 0; step < STEPS && low < high; ++step) {
            const u32 middle = low + (high - low + 1) / 2;
            if (__syncthreads_count(own >= middle) >= wanted) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    // Lists the groups whose largest logit is at least `least`. A barrier must have followed the
    // clearing of the list.
    INLINE void list_groups(float least) const {
#pragma unroll 1
        for (u32 group = threadIdx.x; group < groups; group += SELECT_THREADS) {
            if (!(tops[group] >= least)) continue;
            const u32 place = atomicAdd(&shared.group_count, 1u);
            if (place < GROUPS_LISTED) shared.groups[place] = static_cast<u16>(group);
        }
        __syncthreads();
    }

    // Reads the groups whose largest logit is at least `least`, AT_ONCE at a time, and calls
    // visit(entries, tokens): a lane has the entries of each token and of the token WARP further.
    // By whole warps.
    template <typename Row, typename Visit>
    INLINE void each(const Row& row, float least, Visit&& visit) const {
        const bool listed = shared.group_count <= GROUPS_LISTED;
        const u32 count = listed ? shared.group_count : groups;
#pragma unroll 1
        for (u32 base = warp; base < count; base += SELECT_WARPS * AT_ONCE) {
#pragma unroll 1
            for (u32 part = 0; part >> merged == 0; ++part) {
                float entries[2 * AT_ONCE];
                u32 tokens[AT_ONCE];
#pragma unroll
                for (u32 k = 0; k < AT_ONCE; ++k) {
                    const u32 at = base + k * SELECT_WARPS;
                    const u32 group = at >= count ? NONE : listed ? shared.groups[at] : at;
                    const bool there = group != NONE && (listed || tops[group] >= least);
                    tokens[k] = there ? (group << merged | part) * GROUP + lane : NO_TOKEN;
                    entries[2 * k] = row.entry(tokens[k]);
                    entries[2 * k + 1] = row.entry(tokens[k] + WARP);
                }
                visit(entries, tokens);
            }
        }
    }

    // Lists the tokens whose `listed_entry` reaches `cut`, which is not below `least`.
    template <typename Row>
    INLINE void list_tokens(const Row& row, float least, u64 cut) const {
        each(row, least, [&](const float(&entries)[2 * AT_ONCE], const u32(&tokens)[AT_ONCE]) {
#pragma unroll
            for (u32 j = 0; j < 2 * AT_ONCE; ++j) {
                if (!(entries[j] >= least) || is_full(shared.token_count, TOKENS_LISTED)) continue;
                const u64 entry = listed_entry(entries[j], tokens[j / 2] + j % 2 * WARP);
                if (entry < cut) continue;
                const u32 place = atomicAdd(&shared.token_count, 1u);
                if (place < TOKENS_LISTED) shared.list[place] = entry;
            }
        });
    }

    // Sorts the first `wanted` of `count` listed tokens.
    INLINE void sort(u32 count, u32 wanted) const {
        // `lanes` neighbouring lanes rank a token together; each compares it with a part of the
        // list.
        u32 lanes = 1;
        while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
#pragma unroll 1
        for (u32 base = 0; base < count; base += SELECT_THREADS / lanes) {
            const u32 at = base + threadIdx.x / lanes;
            const u64 entry = at < count ? shared.list[at] : 0;
            const u32 rank = count_larger(entry, shared.list, count, lanes);
            if (at < count && rank < wanted) shared.sorted[rank] = entry;
        }
    }

    // A `listed_entry` that at least `wanted` tokens reach, but no more than the list has room for.
    // Empties the list. `bound` is a key that at least `wanted` tokens reach.
    template <typename Row>
    static __device__ __noinline__ u64 narrow(const RowOrder order, const Row row, u32 wanted,
                                              u32 bound) {
        Shared& shared = order.shared;
        // The cut is between `low` and `high`, and `left` of the tokens between them are wanted.
        u64 low = static_cast<u64>(bound) << 32 | (NONE - (row.vocab - 1));
        u64 high = static_cast<u64>(order.largest) << 32 | NONE;
        u32 left = wanted;
#pragma unroll 1
        while (low < high) {
            const u32 shift = shift_of(64 - __clzll(high - low));
            order.count_bins(row, exact::value_of_key(bound), low, high, shift);
            order.find_bin(left);
            low += static_cast<u64>(shared.bin) << shift;
            high = shift == 32 ? low | NONE : min(high, low + (1ull << shift) - 1);
            left -= min(left, shared.above);
            // All threads have read the result of `find_bin`.
            __syncthreads();
            if (wanted - left + shared.inside <= TOKENS_LISTED) break;
        }
        if (threadIdx.x == 0) shared.token_count = 0;
        __syncthreads();
        return low;
    }

    // The shift that turns entries of a range of `bits` bits into bin numbers. A bin never contains
    // some of the tokens of one key together with tokens of another key: most bits of all indices
    // are equal.
    INLINE static u32 shift_of(u32 bits) {
        const u32 least = bits > 32 ? 32 : 0;
        return bits > least + BIN_BITS ? bits - BIN_BITS : least;
    }

    // Counts the tokens whose entries are low ..= high in bins.
    template <typename Row>
    INLINE void count_bins(const Row& row, float least, u64 low, u64 high, u32 shift) const {
        for (u32 i = threadIdx.x; i < BINS; i += SELECT_THREADS) shared.bins[i] = 0;
        if (threadIdx.x == 0) {
            shared.bin = 0;
            shared.above = 0;
        }
        __syncthreads();
        each(row, least, [&](const float(&entries)[2 * AT_ONCE], const u32(&tokens)[AT_ONCE]) {
#pragma unroll 1
            for (u32 j = 0; j < 2 * AT_ONCE; ++j) {
                float x = entries[0];
                u32 token = tokens[0];
#pragma unroll
                for (u32 i = 1; i < 2 * AT_ONCE; ++i) {
                    x = j == i ? entries[i] : x;
                    token = j == i ? tokens[i / 2] : token;
                }
                const u64 entry = listed_entry(x, token + j % 2 * WARP);
                const bool inside = x >= least && entry >= low && entry <= high;
                count_bin(static_cast<u32>((entry - low) >> shift), inside);
            }
        });
        __syncthreads();
    }

    // Counts an entry for each lane that is `inside`. Most often many lanes have the same bin: one
    // lane adds for all of them.
    INLINE void count_bin(u32 bin, bool inside) const {
#pragma unroll 1
        for (u32 turn = 0; turn < 2; ++turn) {
            const u32 those = __ballot_sync(ALL_LANES, inside);
            if (those == 0) return;
            const u32 first = __ffs(those) - 1;
            const u32 its_bin = __shfl_sync(ALL_LANES, bin, first);
            const bool same_bin = inside && bin == its_bin;
            const u32 same = __popc(__ballot_sync(ALL_LANES, same_bin));
            if (lane == first) atomicAdd(&shared.bins[bin], same);
            inside = inside && !same_bin;
        }
        if (inside) atomicAdd(&shared.bins[bin], 1u);
    }

    // Finds the bin that contains the `left`-th largest entry.
    INLINE void find_bin(u32 left) const {
        constexpr u32 EACH = BINS / SELECT_THREADS;
        // In descending order of bins.
        const u32 last = BINS - 1 - EACH * threadIdx.x;
        u32 sum = 0;
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) sum += shared.bins[last - j];
        const u32 through = warp_inclusive_sum(sum, lane);
        if (lane == WARP - 1) shared.of_warps[warp] = through;
        // If logits change during the call, no bin may be found; this is the default.
        if (threadIdx.x == 0) shared.inside = shared.bins[0];
        __syncthreads();
        const SumsOfWarps<u32> sums(shared.of_warps, SELECT_WARPS, lane);
        u32 above = sums.before(warp) + through - sum;
        if (above < left && left <= above + sum) {
#pragma unroll 1
            for (u32 bin = last;; --bin) {
                const u32 inside = shared.bins[bin];
                if (above + inside >= left) {
                    shared.bin = bin;
                    shared.inside = inside;
                    shared.above = above;
                    break;
                }
                above += inside;
            }
        }
        __syncthreads();
    }
};
