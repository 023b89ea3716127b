// sample_logits for rows of which filters keep few tokens: the candidates for these tokens go to
// the leading block, which sorts them, cuts the list by top-p and lets the tokens race.
#pragma once

#include "sample_logits_row.cuh"

// Shared memory of a block for the candidates of a row: the entries that can be among those that
// top-k or top-p keeps, if they are few. The leading block ranks them by counting, cuts and races.
struct CandidateList {
    // Each block may send MAX / (number of blocks) candidates.
    static constexpr u32 MAX = SELECT_THREADS;
    static constexpr u32 MAX_K = 128;
    static_assert(MAX_K <= MAX_PIECES / 2);
    // With top-p alone, the LIKELY-th largest of the segment maxima is the bound for candidates:
    // low enough that no block is likely to send more than it may.
    static constexpr u32 LIKELY = 144;
    // The largest top-p, in units of 2^-32, for which entries equal to the largest are likely to
    // suffice.
    static constexpr u64 MAX_TOP_P = (1ull << 32) - (1ull << 22);

    // Candidates in the order of `listed_entry`, 0 for none: as sent, as a list without gaps, and
    // sorted.
    u64 sent[MAX];
    u64 list[MAX];
    u64 sorted[MAX];
    // Used by `Bound` in each block: the least of the segment maxima, and how much the weights that
    // reach the bound exceed the wanted sum.
    u32 lowest;
    i32 left_over;
    // The number of candidates that this block sent, and whether a block had more than it may send.
    u32 count;
    bool full;
    u32 listed;
    // The sum of the weights that are kept.
    u64 total;
    // The noise of the sorted candidates.
    float noise[MAX];

    INLINE static bool serves(u32 k) { return k > 0 && k <= MAX_K; }

    // Before the first exchange of a team.
    INLINE void begin() {
        sent[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            left_over = 0;
            count = 0;
            full = false;
            begin_again();
        }
    }

    // Prepares for another bound and another list. By one thread.
    INLINE void begin_again() {
        lowest = NONE;
        listed = 0;
    }
};

// A bound from the maxima of the row's segments: a key that at least k of these maxima reach, which
// is the k-th largest of them or a little less. By the whole block; each thread has one segment.
struct Bound {
    // Each step halves the range; more steps than these improve little.
    static constexpr u32 STEPS = 10;
    // With so many steps, the key is exactly the k-th largest.
    static constexpr u32 ALL_STEPS = 32;

    u32 own;
    u32 key;

    INLINE Bound(CandidateList& candidates, u32 largest_of_group, u32 k, u32 largest, u32 steps)
        : own(largest_of_group) {
        const u32 lowest = __reduce_min_sync(ALL_LANES, own == 0 ? NONE : own);
        if (lane_id() == 0) atomicMin(&candidates.lowest, lowest);
        __syncthreads();
        // All maxima reach the smallest of them.
        u32 low = candidates.lowest;
        u32 high = largest;
#pragma unroll 1
        for (u32 step = 0; step < steps && low < high; ++step) {
            const u32 middle = low + (high - low + 1) / 2;
            if (__syncthreads_count(own >= middle) >= k) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        key = low;
    }

    // Whether the entries that reach the bound are likely to hold a share top_p of all weights. The
    // estimate assumes that the other entries of a segment weigh a sixty-fourth of what they would
    // weigh if all of them were as large as the segment's maximum, or as the bound. That is about
    // right for normally distributed logits with the spread of a language model's logits. The same
    // in all blocks of a team.
    INLINE bool holds(CandidateList& candidates, const Scale& scale, u64 top_p, u32 vocab) const {
        const float weight = __expf(scale.below(exact::value_of_key(own)));
        const float max_weight = __expf(scale.below(exact::value_of_key(key)));
        const float inside = own >= key ? weight : 0.0f;
        const float rest = static_cast<float>(vocab) / (64 * MAX_PIECES);
        const float outside = fminf(weight, max_weight) * rest;
        const float kept = static_cast<float>(top_p) / 4294967296.0f;
        const float left = fmaxf(inside - kept * (inside + outside), -1.0f);
        const i32 units = own == 0 ? 0 : __float2int_rn(left * 1048576.0f);
        const i32 of_warp = __reduce_add_sync(ALL_LANES, units);
        if (lane_id() == 0) atomicAdd(&candidates.left_over, of_warp);
        __syncthreads();
        return candidates.left_over >= 0;
    }
};

// Sends the row's entries that are at least `least` to the leading block. Returns their number, or
// 0 if a block has more than it may send. `tops` has the largest logit of each group of this warp's
// range; null if there was no room for them.
template <typename Row>
INLINE u32 send_candidates(CandidateList& candidates, Team& team, const Row& row, const float* tops,
                           const WarpRange& range, float least) {
    const u32 room = CandidateList::MAX / team.blocks.size;
    u64* const sent = team.blocks.of(candidates.sent, 0) + team.blocks.rank * room;
    if (tops != nullptr) {
        const auto send = [&](float entry, u32 token) {
            if (!(entry >= least)) return;
            const u32 place = atomicAdd(&candidates.count, 1u);
            if (place < room) sent[place] = listed_entry(entry, token);
        };
#pragma unroll 1
        for (u32 base = range.begin; base < range.end; base += WARP) {
            if (__any_sync(ALL_LANES, is_full(candidates.count, room))) break;
            const u32 group = base + team.lane;
            u32 those =
                __ballot_sync(ALL_LANES, group < range.end && tops[group - range.begin] >= least);
#pragma unroll 1
            while (those != 0) {
                // With many equal logits, the list becomes full here.
                if (__any_sync(ALL_LANES, is_full(candidates.count, room))) break;
                // Two groups at a time.
                const u32 token = (base + __ffs(those) - 1) * GROUP + team.lane;
                those &= those - 1;
                const u32 other = those != 0 ? (base + __ffs(those) - 1) * GROUP + team.lane : NONE;
                those &= those - 1;
                const float entries[4] = {row.entry(token), row.entry(token + WARP),
                                          other == NONE ? nothing() : row.entry(other),
                                          other == NONE ? nothing() : row.entry(other + WARP)};
                send(entries[0], token);
                send(entries[1], token + WARP);
                send(entries[2], other);
                send(entries[3], other + WARP);
            }
        }
    } else {
        row.template each<2>(team.lane, [&](const float(&entries)[Row::N], u32 first) {
            u32 those = 0;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) those |= entries[j] >= least ? 1u << j : 0u;
            if (those == 0 || is_full(candidates.count, room)) return;
            list_those(candidates.count, sent, room, entries, first, those);
        });
    }
    __syncthreads();
    team.publish(candidates.count);
    const u32 its = team.lane < team.blocks.size
                        ? static_cast<u32>(team.published(team.lane * SELECT_WARPS))
                        : 0;
    const u32 sum = __reduce_add_sync(ALL_LANES, its);
    return __reduce_max_sync(ALL_LANES, its) > room ? 0 : sum;
}

// Used if the candidates are too many, as in rows with many equal entries. Sends to the leading
// block's list exactly k entries: those larger than the k-th largest segment maximum, and, of those
// equal to it, the ones with the lowest indices. Returns false if k entries or more are larger.
template <typename Row>
INLINE bool send_tied(CandidateList& candidates, Team& team, const Row& row, u32 k, u32 own_group,
                      u32 largest_key) {
    const Bound reached(candidates, own_group, k, largest_key, Bound::ALL_STEPS);
    const float bound = exact::value_of_key(reached.key);
    u32 above = 0;
    u32 tied = 0;
    row.template each<2>(team.lane, [&](const float(&entries)[Row::N], u32) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            above += entries[j] > bound;
            tied += entries[j] == bound;
        }
    });
    above = __reduce_add_sync(ALL_LANES, above);
    tied = __reduce_add_sync(ALL_LANES, tied);
    team.publish(static_cast<u64>(above) << 32 | tied);
    const u64 all = team.scan_published().all;
    const u32 all_above = static_cast<u32>(all >> 32);
    if (all_above >= k || k - all_above > static_cast<u32>(all)) return false;
    const u32 wanted = k - all_above;
    u64 before = 0;
    for (u32 i = team.lane; i < team.piece(); i += WARP) before += team.published(i);
    before = warp_sum(before);
    const u32 tied_before = static_cast<u32>(before);
    u32 place = static_cast<u32>(before >> 32) + min(tied_before, wanted);
    u32 left = min(wanted - min(tied_before, wanted), tied);
    u64* const list = team.blocks.of(candidates.list, 0);
#pragma unroll 1
    for (u32 base = row.begin; base < row.end && above + left > 0; base += WARP) {
        float entries[Row::N];
        u32 first = 0;
        u32 those = 0;
        u32 equal = 0;
        if (base + team.lane < row.end) {
            row.fetch(base + team.lane, entries, first);
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                those |= entries[j] > bound ? 1u << j : 0u;
                equal |= entries[j] == bound ? 1u << j : 0u;
            }
        }
        const u64 own = static_cast<u64>(__popc(those)) << 32 | __popc(equal);
        const u64 through = warp_inclusive_sum(own, team.lane);
        u32 rank = static_cast<u32>(through - own);
        u32 to = place + static_cast<u32>((through - own) >> 32) + min(rank, left);
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            const bool ties = (equal >> j & 1) != 0;
            if ((those >> j & 1) != 0 || (ties && rank < left)) {
                list[to] = listed_entry(entries[j], first + j);
                to += 1;
            }
            rank += ties;
        }
        const u64 of_all = __shfl_sync(ALL_LANES, through, WARP - 1);
        const u32 taken = min(static_cast<u32>(of_all), left);
        place += static_cast<u32>(of_all >> 32) + taken;
        above -= static_cast<u32>(of_all >> 32);
        left -= taken;
    }
    team.blocks.sync();
    return true;
}

// The sums of a row with top-p as its only filter.
struct TopPSums {
    // The sum of weights at which top-p cuts.
    u64 limit;
    // The number of entries equal to the largest, if the bound is the largest entry.
    u32 ties;
    // Whether the weights of the sent candidates reach the limit.
    bool sent;
};

// Adds up the weights of all entries, and sends the entries that reach the bound to the leading
// block. If the bound is the largest entry itself, counts the entries equal to it instead.
template <typename Row>
INLINE TopPSums sum_and_send(CandidateList& candidates, Team& team, const Row& row, u32 bound,
                             u32 largest_key, const Scale& scale, u64 top_p) {
    const u32 room = CandidateList::MAX / team.blocks.size;
    const float least = exact::value_of_key(bound);
    const bool plateau = bound == largest_key;
    u64* const to = team.blocks.of(candidates.sent, 0) + team.blocks.rank * room;
    u32 ties = 0;
    bool full = false;
    u64 listed = 0;
    const auto send = [&](const float(&entries)[Row::N], u32 first) {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) those |= entries[j] >= least ? 1u << j : 0u;
        if (those == 0) return;
        if (plateau) {
            ties += __popc(those);
            return;
        }
        full = full || is_full(candidates.count, room);
        if (full) return;
        list_those(candidates.count, to, room, entries, first, those);
#pragma unroll 1
        for (; those != 0; those &= those - 1) {
            listed += scale.fixed(pick(entries, __ffs(those) - 1));
        }
    };
    const u64 total = sum_all<false>(row, team.lane, scale, send);
    listed = warp_sum(listed);
    ties = __reduce_add_sync(ALL_LANES, ties);
    // `list` and `sorted` are not used yet, so they hold the sums of the pieces here.
    if (team.lane < team.blocks.size) {
        *team.blocks.of(&candidates.list[team.piece()], team.lane) = listed;
        *team.blocks.of(&candidates.sorted[team.piece()], team.lane) = ties;
    }
    __syncthreads();
    if (threadIdx.x < team.blocks.size && candidates.count > room) {
        *team.blocks.of(&candidates.full, threadIdx.x) = true;
    }
    team.publish(total);
    TopPSums sums;
    const u64 all = team.scan_published().all;
    sums.limit = max(__umul64hi(all, top_p << 32), static_cast<u64>(1));
    listed = 0;
    ties = 0;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        listed += candidates.list[i];
        ties += static_cast<u32>(candidates.sorted[i]);
    }
    listed = warp_sum(listed);
    sums.ties = __reduce_add_sync(ALL_LANES, ties);
    sums.sent = !candidates.full && !plateau && listed >= sums.limit;
    return sums;
}

// In the leading block: compacts the sent candidates into `list`, in any order.
INLINE void gather_candidates(CandidateList& candidates) {
    const u64 entry = candidates.sent[threadIdx.x];
    if (entry != 0) candidates.list[atomicAdd(&candidates.listed, 1u)] = entry;
    __syncthreads();
}

// Lists the entries that a cut keeps in the leading block, as far as there is room.
template <typename Row>
INLINE void list_kept(CandidateList& candidates, const Team& team, const Row& row, const Cut& cut) {
    // All blocks have read what was in the list's memory before.
    team.blocks.sync();
    if (threadIdx.x == 0) candidates.listed = 0;
    team.blocks.sync();
    u32* const count = team.blocks.of(&candidates.listed, 0);
    u64* const list = team.blocks.of(candidates.list, 0);
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            if (!cut.keeps(key_of(entries[j]), first + j)) continue;
            const u32 place = atomicAdd(count, 1u);
            if (place < CandidateList::MAX) list[place] = listed_entry(entries[j], first + j);
        }
    });
    team.blocks.sync();
}

// Sorts the largest k of the `count` listed candidates.
INLINE void sort_candidates(CandidateList& candidates, u32 count, u32 k) {
    // `lanes` neighbouring lanes rank a candidate together; each compares it with a part of the
    // list.
    u32 lanes = 1;
    while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
    const u32 entry = threadIdx.x / lanes;
    const u64 own = entry < count ? candidates.list[entry] : 0;
    const u32 rank = count_larger(own, candidates.list, count, lanes);
    if (entry < count && rank < k) candidates.sorted[rank] = own;
    __syncthreads();
}

// Cuts the k sorted candidates by top-p: at `limit`, or, if that is 0, at the share top_p of their
// own sum. Drops candidates below the min-p floor, and lists the finishes of the others. A thread
// for each candidate. `total`: whether the sum of the kept weights is wanted, for probabilities.
INLINE void race_candidates(CandidateList& candidates, const Team& team, u32 k, u64 limit,
                            const Options& options, const Scale& scale, const Draw& draw,
                            bool total) {
    const bool there = threadIdx.x < k;
    const u64 entry = there ? candidates.sorted[threadIdx.x] : 0;
    const float x = exact::value_of_key(static_cast<u32>(entry >> 32));
    const u32 token = NONE - static_cast<u32>(entry);
    // Another warp computes the noise of a candidate at the same time.
    const u32 other = (threadIdx.x + SELECT_THREADS / 2) % SELECT_THREADS;
    if (other < k) {
        candidates.noise[other] = noise_of(draw, NONE - static_cast<u32>(candidates.sorted[other]));
    }
    const u64 weight = there ? scale.fixed(x) : 0;
    bool stays = there;
    if (options.top_p < 1ull << 32) {
        const BlockSums sums(team.shared->sums, team, weight);
        if (limit == 0) limit = max(__umul64hi(sums.all, options.top_p << 32), 1ull);
        stays = there && sums.through - weight < limit;
    }
    // Rounding can make the weight of a smaller logit larger, so each weight is compared with the
    // floor.
    stays = stays && weight >= max(options.floor, 1ull);
    u64 finish = NEVER;
    const float slowness = x == scale.largest ? 1.0f : exact::exp(-scale.below(x));
    // BlockSums contains a barrier.
    if (options.top_p >= 1ull << 32) __syncthreads();
    if (stays) finish = finish_at(exact::mul(candidates.noise[threadIdx.x], slowness), token);
    candidates.list[threadIdx.x] = finish;
    __syncthreads();
    if (total) {
        const BlockSums sums(team.shared->sums, team, stays ? weight : 0);
        if (threadIdx.x == 0) candidates.total = sums.all;
        __syncthreads();
    }
}
