// sample_logits where filters leave little: what can be among it goes to the block that leads, which
// sorts and cuts it, and lets it race.
#pragma once

#include "sample_logits_row.cuh"

// What can be among those that top-k or top-p keeps, where that is not much: it is sent
// to the block that leads, which does the rest alone: sorts it by counting, cuts, and
// lets it race.
struct Few {
    // Each block may send a share of them.
    static constexpr u32 MAX = SELECT_THREADS;
    static constexpr u32 MAX_K = 128;
    static_assert(MAX_K <= MAX_PIECES / 2);
    // By top-p alone, so many of the largest that were told bound what is sent: few
    // enough that no block's share is likely to be too small.
    static constexpr u32 LIKELY = 144;
    // A larger share than what equals the largest is likely to hold, in units of 2^-32.
    static constexpr u64 MAX_SHARE = (1ull << 32) - (1ull << 22);

    // Key, then inverse index: the larger comes first; 0 for none. As sent, in a row,
    // sorted.
    u64 sent[MAX];
    u64 list[MAX];
    u64 sorted[MAX];
    // In each block, of `Bound`: the least of all groups' largest keys, and by how much the
    // weights that reach it are more than is wanted.
    u32 lowest;
    i32 left_over;
    // How many were sent by the block, and whether some block has more than there is room
    // for.
    u32 count;
    bool full;
    u32 listed;
    // The sum of the weights that are left.
    u64 total;
    // The noise of what is sorted.
    float noise[MAX];

    INLINE static bool serves(u32 k) { return k > 0 && k <= MAX_K; }

    // Before the first meeting of a team.
    INLINE void begin() {
        sent[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            left_over = 0;
            count = 0;
            full = false;
            begin_again();
        }
    }

    // By one thread: for another bound and another list.
    INLINE void begin_again() {
        lowest = NONE;
        listed = 0;
    }
};

// The bound by what was told of the row's groups: a key that at least k of their largest
// reach, the k-th of them or a little less. By the whole block, a group a thread.
struct Bound {
    // Each step leaves half of the range; more than these find little.
    static constexpr u32 STEPS = 10;
    // So many find the very key.
    static constexpr u32 ALL_STEPS = 32;

    u32 own;
    u32 key;

    INLINE Bound(Few& few, u32 largest_of_group, u32 k, u32 largest, u32 steps)
        : own(largest_of_group) {
        const u32 lowest = __reduce_min_sync(ALL_LANES, own == 0 ? NONE : own);
        if (lane_id() == 0) atomicMin(&few.lowest, lowest);
        __syncthreads();
        // All reach the smallest of them.
        u32 low = few.lowest;
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

    // Whether what reaches the bound is likely to hold a share of all weights. The rest of a
    // group is taken to weigh as much as a sixty-fourth of it would, were all of that as
    // large as its largest, or as the bound: about right for normal logits of the spread of
    // a language model's. The same in all blocks of a team.
    INLINE bool holds(Few& few, const Scale& scale, u64 share, u32 vocab) const {
        const float weight = __expf(scale.below(exact::value_of_key(own)));
        const float most = __expf(scale.below(exact::value_of_key(key)));
        const float inside = own >= key ? weight : 0.0f;
        const float rest = static_cast<float>(vocab) / (64 * MAX_PIECES);
        const float outside = fminf(weight, most) * rest;
        const float kept = static_cast<float>(share) / 4294967296.0f;
        const float left = fmaxf(inside - kept * (inside + outside), -1.0f);
        const i32 units = own == 0 ? 0 : __float2int_rn(left * 1048576.0f);
        const i32 of_warp = __reduce_add_sync(ALL_LANES, units);
        if (lane_id() == 0) atomicAdd(&few.left_over, of_warp);
        __syncthreads();
        return few.left_over >= 0;
    }
};

// Sends the row's entries that are `least` and more to the block that leads. Returns how many
// there are; 0 where a block has too many. `tops` has the largest logit of each group of this warp's
// share, null where there was no room for them.
template <typename Row>
INLINE u32 send_few(Few& few, Team& team, const Row& row, const float* tops, const Share& share,
                    float least) {
    const u32 room = Few::MAX / team.blocks.size;
    u64* const sent = team.blocks.of(few.sent, 0) + team.blocks.rank * room;
    if (tops != nullptr) {
        const auto send = [&](float entry, u32 token) {
            if (!(entry >= least)) return;
            const u32 place = atomicAdd(&few.count, 1u);
            if (place < room) sent[place] = listed_entry(entry, token);
        };
#pragma unroll 1
        for (u32 base = share.begin; base < share.end; base += WARP) {
            if (__any_sync(ALL_LANES, is_full(few.count, room))) break;
            const u32 group = base + team.lane;
            u32 those = __ballot_sync(ALL_LANES, group < share.end && tops[group - share.begin] >= least);
#pragma unroll 1
            while (those != 0) {
                // Of logits that are alike there are too many at once.
                if (__any_sync(ALL_LANES, is_full(few.count, room))) break;
                // Two groups at once.
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
            if (those == 0 || is_full(few.count, room)) return;
            list_those(few.count, sent, room, entries, first, those);
        });
    }
    __syncthreads();
    team.tell(few.count);
    const u32 its = team.lane < team.blocks.size
                        ? static_cast<u32>(team.told(team.lane * SELECT_WARPS))
                        : 0;
    const u32 sum = __reduce_add_sync(ALL_LANES, its);
    return __reduce_max_sync(ALL_LANES, its) > room ? 0 : sum;
}

// Where that is too many, as of rows with many equals: into the list of the block that
// leads, what exceeds the k-th of the largest that were told, and of what equals it the
// lowest indices, k entries in all. False where more exceed it.
template <typename Row>
INLINE bool send_tied(Few& few, Team& team, const Row& row, u32 k, u32 own_group,
                      u32 largest_key) {
    const Bound reached(few, own_group, k, largest_key, Bound::ALL_STEPS);
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
    team.tell(static_cast<u64>(above) << 32 | tied);
    const u64 all = team.sum_told().all;
    const u32 all_above = static_cast<u32>(all >> 32);
    if (all_above >= k || k - all_above > static_cast<u32>(all)) return false;
    const u32 wanted = k - all_above;
    u64 before = 0;
    for (u32 i = team.lane; i < team.piece(); i += WARP) before += team.told(i);
    before = warp_sum(before);
    const u32 tied_before = static_cast<u32>(before);
    u32 place = static_cast<u32>(before >> 32) + min(tied_before, wanted);
    u32 left = min(wanted - min(tied_before, wanted), tied);
    u64* const list = team.blocks.of(few.list, 0);
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

// What a row with a top-p alone came to.
struct Shares {
    // The sum of weights at which top-p cuts.
    u64 limit;
    // How many equal the largest, where they are as many as the bound is of.
    u32 ties;
    // Whether what was sent reaches the limit.
    bool sent;
};

// Adds up the weights of all, and on the way sends what reaches the bound to the block
// that leads; where that is the largest itself, counts it instead.
template <typename Row>
INLINE Shares sum_and_send(Few& few, Team& team, const Row& row, u32 bound, u32 largest_key,
                           const Scale& scale, u64 top_p) {
    const u32 room = Few::MAX / team.blocks.size;
    const float least = exact::value_of_key(bound);
    const bool plateau = bound == largest_key;
    u64* const to = team.blocks.of(few.sent, 0) + team.blocks.rank * room;
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
        full = full || is_full(few.count, room);
        if (full) return;
        list_those(few.count, to, room, entries, first, those);
#pragma unroll 1
        for (; those != 0; those &= those - 1) {
            listed += scale.fixed(pick(entries, __ffs(those) - 1));
        }
    };
    const u64 total = sum_all<false>(row, team.lane, scale, send);
    listed = warp_sum(listed);
    ties = __reduce_add_sync(ALL_LANES, ties);
    // The lists are of no other use yet.
    if (team.lane < team.blocks.size) {
        *team.blocks.of(&few.list[team.piece()], team.lane) = listed;
        *team.blocks.of(&few.sorted[team.piece()], team.lane) = ties;
    }
    __syncthreads();
    if (threadIdx.x < team.blocks.size && few.count > room) {
        *team.blocks.of(&few.full, threadIdx.x) = true;
    }
    team.tell(total);
    Shares shares;
    const u64 all = team.sum_told().all;
    shares.limit = max(__umul64hi(all, top_p << 32), static_cast<u64>(1));
    listed = 0;
    ties = 0;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        listed += few.list[i];
        ties += static_cast<u32>(few.sorted[i]);
    }
    listed = warp_sum(listed);
    shares.ties = __reduce_add_sync(ALL_LANES, ties);
    shares.sent = !few.full && !plateau && listed >= shares.limit;
    return shares;
}

// The block that leads puts what was sent in a row, in any order.
INLINE void gather_few(Few& few) {
    const u64 entry = few.sent[threadIdx.x];
    if (entry != 0) few.list[atomicAdd(&few.listed, 1u)] = entry;
    __syncthreads();
}

// Lists what a cut keeps, no more than there is room for, in the block that leads.
template <typename Row>
INLINE void list_kept(Few& few, const Team& team, const Row& row, const Cut& cut) {
    // What was in the list's place has been read.
    team.blocks.sync();
    if (threadIdx.x == 0) few.listed = 0;
    team.blocks.sync();
    u32* const count = team.blocks.of(&few.listed, 0);
    u64* const list = team.blocks.of(few.list, 0);
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            if (!cut.keeps(key_of(entries[j]), first + j)) continue;
            const u32 place = atomicAdd(count, 1u);
            if (place < Few::MAX) list[place] = listed_entry(entries[j], first + j);
        }
    });
    team.blocks.sync();
}

// Sorts the first k of the `count` that are listed.
INLINE void sort_few(Few& few, u32 count, u32 k) {
    // Neighbouring lanes share an entry and compare it with a part of the others each.
    u32 lanes = 1;
    while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
    const u32 entry = threadIdx.x / lanes;
    const u64 own = entry < count ? few.list[entry] : 0;
    const u32 rank = count_larger(own, few.list, count, lanes);
    if (entry < count && rank < k) few.sorted[rank] = own;
    __syncthreads();
}

// Cuts the k that were sorted by top-p, at a limit or, where there is none, at a share
// of them, drops what min-p drops, and lists when the others finish. An entry a thread. `total` is wanted
// where probabilities are.
INLINE void race_few(Few& few, const Team& team, u32 k, u64 limit, const Options& options,
                     const Scale& scale, const Draw& draw, bool total) {
    const bool there = threadIdx.x < k;
    const u64 entry = there ? few.sorted[threadIdx.x] : 0;
    const float x = exact::value_of_key(static_cast<u32>(entry >> 32));
    const u32 token = NONE - static_cast<u32>(entry);
    // Other warps find the noise meanwhile.
    const u32 other = (threadIdx.x + SELECT_THREADS / 2) % SELECT_THREADS;
    if (other < k) few.noise[other] = noise_of(draw, NONE - static_cast<u32>(few.sorted[other]));
    const u64 weight = there ? scale.fixed(x) : 0;
    bool stays = there;
    if (options.top_p < 1ull << 32) {
        const BlockSums sums(team.shared->sums, team, weight);
        if (limit == 0) limit = max(__umul64hi(sums.all, options.top_p << 32), 1ull);
        stays = there && sums.through - weight < limit;
    }
    // Weights need not descend where logits do: each says for itself whether it is too light.
    stays = stays && weight >= max(options.floor, 1ull);
    u64 finish = NEVER;
    const float slowness = x == scale.largest ? 1.0f : exact::exp(-scale.below(x));
    // BlockSums has a barrier.
    if (options.top_p >= 1ull << 32) __syncthreads();
    if (stays) finish = finish_at(exact::mul(few.noise[threadIdx.x], slowness), token);
    few.list[threadIdx.x] = finish;
    __syncthreads();
    if (total) {
        const BlockSums sums(team.shared->sums, team, stays ? weight : 0);
        if (threadIdx.x == 0) few.total = sums.all;
        __syncthreads();
    }
}
