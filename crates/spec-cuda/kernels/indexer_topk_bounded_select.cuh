// indexer_topk by a bound: selects the k best scores of a row by a bound that is known before most
// of the row is read.
//
//     row      | piece                 | piece                 |     read once
//     tile     |  =   =   =   =   =   =|  =   =   =   =   =   =|     read first, and kept in registers
//     bound    a key for each block, from the maxima of groups of its tile
//     lists    the scores of a block above its bound, in any order, in shared memory
//     cut      the key of the k-th best score, which each block finds among the keys of all lists
//     bits     one for each score of the piece: whether the score is chosen
//
// Every block first reads a tile of its piece, and finds the maximum of each group of 4 to 32
// scores of the tile. The bound of the block is a key that `rank` of these maxima reach;
// `first_rank` makes the rank somewhat larger than the number of the k best scores that the tile
// probably has. A block counts its maxima in bins that divide the range of the keys, without an
// exchange with other blocks.
//
// Each block then compares all its scores with its bound: those of the tile in registers, and the
// others as asynchronous copies bring them to shared memory. Scores of 16 bits are compared in
// pairs. A warp lists the scores above the bound; no warp waits for another one in this long part.
// When all blocks have listed their scores, each block copies the keys of all lists. If k of these
// keys are above the bounds of all blocks, the lists contain the k best scores, and each block
// finds the same cut. The list gives the bits of a block's chosen scores, and the bits give the
// order of the positions.
//
// Five kinds of rows need more work:
//
// - A block has many more of the best scores than its share, for example because scores grow along
//   the row. Then fewer than k listed keys are above its bound. But k of all listed keys are above
//   a lower bound, which each block finds without an exchange. Only a block whose own bound is
//   larger lists its scores again, above the lower bound.
// - All blocks together have listed fewer than k scores, or there is no room for those above the
//   lower bound. Then the blocks agree on one bound: each block publishes the largest key that its
//   share of the rank reaches, and the keys for twice, four times, ... as many. The bound is the
//   largest of these keys that enough maxima of the whole team reach. (Blocks may also have the
//   same bound by chance, as in a row of equal scores.)
// - At most k scores are above a bound that all blocks have. Then the bound itself is the cut: the
//   scores equal to the bound are counted, and each block that has some of the first of these
//   scores reads its piece again up to the last one that it needs.
// - There are fewer than k scores even with those equal to the bound. Then the guess was too high,
//   and a larger rank gives the next guess.
// - More scores are above the bound than there is room for, as in a row in descending order. Then
//   these scores are counted in bins, which gives a larger bound.
//
// If none of this helps, the row is selected by digits.
// bins, which gives a larger bound. If neither helps, the row is selected by digits.
#pragma once

#include "indexer_topk_bound.cuh"

// The number of bounds that the team may guess, and how often each guess may be raised.
constexpr u32 GUESSES = 2;
constexpr u32 RAISES = 2;
// Keys of other blocks that a thread loads at once.
constexpr u32 AT_ONCE = 8;

// ---- the lists --------------------------------------------------------------------

// Lists those scores of a warp's tile that pass the filter. packs[a] has the entries from bit
// `bit` + a * `step` on. If there is no room, this warp lists no more.
template <typename T>
INLINE void append(const Params& p, const Tile<T>& packs, u32 bit, u32 step, Filter<T>& filter) {
    const u32 passed = filter.pass(packs);
    const u32 own = __popc(passed);
    const u32 through = warp_inclusive_sum(own);
    const u32 count = __shfl_sync(ALL_LANES, through, WARP - 1);
    if (count == 0) return;
    u32 at = 0;
    if (lane_id() == 0) at = atomicAdd(&shared().own.count, count);
    at = __shfl_sync(ALL_LANES, at, 0);
    if (at + count > p.candidates) {
        filter.close();
        return;
    }
    at += through - own;
    // Few scores pass, so a loop over the set bits is shorter than a test of each score.
#pragma unroll 1
    for (u32 rest = passed; rest != 0; rest &= rest - 1) {
        const u32 i = __ffs(rest) - 1;
        listed()[at] = Filter<T>::score(packs, i, p.brain);
        listed_bits(p)[at] = bit + Filter<T>::vector(i) * step + Filter<T>::entry(i);
        at++;
    }
}

// Lists the scores of the piece that are above the bound. If there is a NaN, the largest key of the
// list is set to that of infinity. `packs` has the first tile at first, and the last tile in the
// end. Returns whether this thread read a NaN. Other blocks may read the list after `sync_shared`.
template <typename T>
INLINE bool list_scores(const Params& p, const SlottedPiece<T>& piece, Tile<T>& packs,
                        u32 bound) {
    Shared& s = shared();
    const float bound_value = exact::value_of_key(bound);
    Filter<T> filter(bound_value, p.brain);
    piece.each(packs, [&](const Tile<T>& tile, u32 first, u32 stride) {
        append(p, tile, piece.bit(first), stride * Pack<T>::N, filter);
    });
    float greatest = filter.greatest();
    piece.edges(p.brain, [&](float x, u32 bit) {
        greatest = max_or_nan(greatest, x);
        if (!(x > bound_value)) return;
        const u32 at = atomicAdd(&s.own.count, 1u);
        if (at >= p.candidates) return;
        listed()[at] = x;
        listed_bits(p)[at] = bit;
    });
    const bool has_nan = greatest != greatest;
    const u32 own_key = exact::sort_key(has_nan ? infinity() : greatest);
    const u32 max_key = __reduce_max_sync(ALL_LANES, own_key);
    if (lane_id() == 0) atomicMax(&s.own.largest, max_key);
    if (threadIdx.x == 0) s.own.bound = bound;
    return has_nan;
}

// A bound that is larger than `bound` and that at least k scores still reach. More than k scores
// are above `bound`, and no score had a key above `high`. Not inlined, because most rows never need
// it.
template <typename T>
__device__ __noinline__ u32 raised_bound(const Params& p, const SlottedPiece<T> piece, u32 spread,
                                         u32 bound, u32 high, u32& turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 lane = lane_id();
    const u32 low = bound + 1;
    const u32 shift = shift_of(high - low);
    const float threshold = exact::value_of_key(bound);
    u32 own = 0;
    const auto count = [&](float x) {
        if (!(x > threshold)) return;
        // If scores are overwritten during the call, a score may be larger than the largest one
        // was.
        const u32 bin = (exact::sort_key(x) - low) >> shift;
        atomicAdd(&s.bins[0][min(bin, BINS - 1)], 1u);
        own++;
    };
    if (threadIdx.x == 0) s.own_ties = 0;
    __syncthreads();
    Tile<T> packs;
    piece.start(packs);
    piece.each(packs, [&](const Tile<T>& tile, u32, u32) {
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) {
#pragma unroll 1
            for (u32 j = 0; j < Pack<T>::N; j++) count(wide(tile[a].items[j], p.brain));
        }
    });
    piece.edges(p.brain, [&](float x, u32) { count(x); });
    own = __reduce_add_sync(ALL_LANES, own);
    if (lane == 0) atomicAdd(&s.own_ties, own);
    __syncthreads();
    publish_reached(p.k, team, spread, low, shift, s.own_ties, low, turn);
    sync_published(team);
    clear_list();
    if (threadIdx.x == 0) s.own_ties = 0;
    return common_bound(p.k, team, spread);
}

// ---- the cut ----------------------------------------------------------------------

// The cut that leaves `need` keys, among those of the `count` keys in `taken` that are in low ..=
// high. The bins must have the counts of these keys, in bin (key - low) >> shift_of(high - low);
// `taken` may also have keys below `low`. If the bins have fewer than `need` keys, the key of the
// result is 0. Begins with a barrier, so that callers need none after they have filled the bins.
// Not inlined, so that there is one copy: instructions that run once take longer to fetch than to
// run.
__device__ __noinline__ Cut search_cut(u32 count, u32 need, u32 low, u32 high, u32& turn) {
    Shared& s = shared();
    const u32* const keys = taken();
    u32 shift = shift_of(high - low);
    if (threadIdx.x == 0) s.compared_count = s.digit_count = 0;
    while (true) {
        __syncthreads();
        search_bins(turn, need, need, [&](u32 bin, u32 before, u32 in_bin) {
            s.digit = bin;
            s.digit_need = need - before;
            s.digit_count = in_bin;
        });
        __syncthreads();
        const u32 in_bin = s.digit_count;
        if (in_bin == 0) return {0, 0};
        low += s.digit << shift;
        high = min(high, low + ((1u << shift) - 1));
        need = s.digit_need;
        if (in_bin == need) return {low - 1, 0};
        if (shift == 0) return {low, need};
        const u32 range = high - low;
        if (in_bin <= MAX_COMPARED) {
#pragma unroll 4
            for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
                const u32 key = keys[i];
                if (key - low <= range) s.compared[atomicAdd(&s.compared_count, 1u)] = key;
            }
            __syncthreads();
            // A warp compares a key with all others.
#pragma unroll 1
            for (u32 i = threadIdx.x / WARP; i < in_bin; i += warps()) {
                const u32 key = s.compared[i];
                u32 both = 0;
#pragma unroll
                for (u32 j = 0; j < MAX_COMPARED; j += WARP) {
                    const u32 other = j + lane_id() < in_bin ? s.compared[j + lane_id()] : 0;
                    both += other > key ? 1u << 16 : other == key ? 1u : 0u;
                }
                both = __reduce_add_sync(ALL_LANES, both);
                const u32 larger = both >> 16;
                const u32 through = larger + (both & 0xFFFF);
                if (lane_id() == 0 && larger < need && need <= through) {
                    s.cut_key = need == through ? key - 1 : key;
                    s.cut_ties = need == through ? 0 : need - larger;
                }
            }
            __syncthreads();
            return {s.cut_key, s.cut_ties};
        }
        clear(s.bins[0], BINS);
        shift = shift_of(range);
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            if (keys[i] - low <= range) atomicAdd(&s.bins[0][(keys[i] - low) >> shift], 1u);
        }
    }
}

// A summary of the lists of all blocks. Lane i has the number of scores of block i in `of_lane`,
// and the sum over blocks 0 to i in `through`. No key exceeds `largest`.
struct ListSummary {
    u32 of_lane;
    u32 through;
    u32 total;
    u32 largest;
    // The largest bound of a block. The lists together contain all scores of the row above it.
    u32 bound;
    // The smallest bound of a block.
    u32 min_bound;
    // Whether all blocks have the same bound.
    bool same;
    // Whether there is room for all scores, in the list of each block and in `taken`.
    bool fits;

    INLINE static ListSummary of(const Params& p, const Cluster& team) {
        const u32 lane = lane_id();
        const uint4 list = *reinterpret_cast<const uint4*>(
            team.of(&shared().own, lane & (team.size - 1)));
        ListSummary t;
        t.of_lane = lane < team.size ? list.x : 0;
        t.through = warp_inclusive_sum(t.of_lane);
        t.total = __shfl_sync(ALL_LANES, t.through, WARP - 1);
        t.largest = __reduce_max_sync(ALL_LANES, list.y);
        t.bound = __reduce_max_sync(ALL_LANES, list.z);
        t.min_bound = __reduce_min_sync(ALL_LANES, list.z);
        t.same = t.min_bound == t.bound;
        t.fits = t.total <= staged_words() && __all_sync(ALL_LANES, t.of_lane <= p.candidates);
        return t;
    }
};

// The part of a block's list that a thread reads.
struct ListPart {
    const float* from;
    u32 source;
    u32 first;
    u32 stride;

    // A warp reads scores of one block, so there must not be more blocks than warps.
    INLINE ListPart(const Cluster& team, u32 spread) {
        const u32 warp = threadIdx.x / WARP;
        source = warp & (team.size - 1);
        from = team.of(listed(), source);
        first = WARP * (warp >> spread) + lane_id();
        stride = WARP * (warps() >> spread);
    }

    // Loads AT_ONCE scores of the first `count` scores of the list.
    INLINE void load(float (&values)[AT_ONCE], u32 base, u32 count) const {
#pragma unroll
        for (u32 a = 0; a < AT_ONCE; a++) {
            const u32 i = base + a * stride;
            values[a] = i < count ? from[i] : 0.0f;
        }
    }
};

// Copies the keys of all lists to `taken`, and counts those above the largest bound in bins.
// `values` has the first scores of the part.
INLINE void take_keys(const ListSummary& summary, const ListPart& part, float (&values)[AT_ONCE]) {
    const u32 count = __shfl_sync(ALL_LANES, summary.of_lane, part.source);
    u32* const to = taken() + (__shfl_sync(ALL_LANES, summary.through, part.source) - count);
    // Keys that equal the largest bound are in some lists but not in others.
    const u32 low = summary.bound + 1;
    const u32 shift = shift_of(summary.largest - low);
    u32 base = part.first;
#pragma unroll 1
    while (base < count) {
#pragma unroll
        for (u32 a = 0; a < AT_ONCE; a++) {
            const u32 i = base + a * part.stride;
            if (i >= count) break;
            const u32 key = exact::sort_key(values[a]);
            to[i] = key;
            if (key >= low) atomicAdd(&shared().bins[0][(key - low) >> shift], 1u);
        }
        base += AT_ONCE * part.stride;
        part.load(values, base, count);
    }
}

// A bound such that k of the listed keys, and few more, are above it. All listed keys are in
// `taken`. Not inlined, because most rows never need it.
__device__ __noinline__ u32 lower_bound(const Params& p, const ListSummary summary, u32& turn) {
    Shared& s = shared();
    const u32 low = summary.min_bound + 1;
    const u32 shift = shift_of(summary.largest - low);
    clear(s.bins[0], BINS);
    __syncthreads();
#pragma unroll 4
    for (u32 i = threadIdx.x; i < summary.total; i += blockDim.x) {
        atomicAdd(&s.bins[0][(taken()[i] - low) >> shift], 1u);
    }
    __syncthreads();
    search_bins(turn, p.k, p.k, [&](u32 bin, u32, u32) { s.bound = low + (bin << shift) - 1; });
    __syncthreads();
    return found_bound();
}

// A group has 1 << group_shift bits.
INLINE u32 group_shift(const Params& p) { return 5 + 32 - __clz((p.words - 1) / GROUPS); }

// The number of chosen scores of each group; later, the number of chosen scores before each group.
INLINE u32* group_counts() { return shared().bins[1]; }

INLINE void choose(const Params& p, u32 bit) {
    atomicOr(&score_bits(p)[bit / 32], 1u << bit % 32);
    atomicAdd(&group_counts()[bit >> group_shift(p)], 1u);
}

// Chooses the first `quota` of this block's listed scores that equal the cut; there are more than
// `quota`.
__device__ __noinline__ void choose_first(const Params& p, u32 cut_key, u32 quota, u32& turn) {
    Shared& s = shared();
    const u32 all = s.own.count;
    u32* const places = taken();
    if (threadIdx.x == 0) s.own_ties = 0;
    clear(s.bins[0], BINS);
    __syncthreads();
    // A larger number stands for an earlier score. Bits are less than 2^31.
    const u32 high = (1u << 31) - 1;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < all; i += blockDim.x) {
        if (exact::sort_key(listed()[i]) != cut_key) continue;
        places[atomicAdd(&s.own_ties, 1u)] = high - listed_bits(p)[i];
    }
    __syncthreads();
    const u32 count = s.own_ties;
    if (count <= MAX_COMPARED) {
        // A warp compares a place with all others.
#pragma unroll 1
        for (u32 i = threadIdx.x / WARP; i < count; i += warps()) {
            const u32 place = places[i];
            u32 earlier = 0;
#pragma unroll
            for (u32 j = 0; j < MAX_COMPARED; j += WARP) {
                earlier += j + lane_id() < count && places[j + lane_id()] > place ? 1 : 0;
            }
            earlier = __reduce_add_sync(ALL_LANES, earlier);
            if (lane_id() == 0 && earlier < quota) choose(p, high - place);
        }
        return;
    }
    const u32 shift = shift_of(high);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        atomicAdd(&s.bins[0][places[i] >> shift], 1u);
    }
    const Cut first = search_cut(count, quota, 0, high, turn);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        if (places[i] > first.key || (places[i] == first.key && first.ties > 0)) {
            choose(p, high - places[i]);
        }
    }
}

// The result of choosing.
struct Choice {
    // Whether there are k scores to choose. If not, no score is chosen.
    bool enough;
    // The number of scores that the blocks before this one choose.
    u32 before;
};

// Finds the cut among the listed scores, of which there are more than k, and chooses those of this
// block, if k listed scores are above the largest bound. Other blocks may end after they have
// passed `team.wait`.
INLINE Choice choose_listed(const Params& p, const Cluster& team, const ListSummary& summary,
                            const ListPart& part, float (&values)[AT_ONCE], u32& turn) {
    Shared& s = shared();
    const u32 lane = lane_id();
    take_keys(summary, part, values);
    arrive_unordered(team);
    const Cut cut = search_cut(summary.total, p.k, summary.bound + 1, summary.largest, turn);
    if (cut.key == 0) {
        team.wait();
        return {false, 0};
    }
    // In `taken`, the lists are in the order of blocks.
    const u32 own_end = __shfl_sync(ALL_LANES, summary.through, team.rank);
    const u32 own_begin = own_end - s.own.count;
    u32 before = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < own_begin; i += blockDim.x) {
        const u32 key = taken()[i];
        before += key > cut.key ? 1u << 16 : key == cut.key ? 1u : 0u;
    }
    u32 own_ties = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < own_end - own_begin; i += blockDim.x) {
        const u32 key = exact::sort_key(listed()[i]);
        if (key > cut.key) choose(p, listed_bits(p)[i]);
        own_ties += key == cut.key ? 1 : 0;
    }
    if (cut.ties == 0) before &= 0xFFFF0000u;
    before = __reduce_add_sync(ALL_LANES, before);
    if (lane == 0 && before > 0) atomicAdd(&s.before, before);
    if (cut.ties > 0) {
        own_ties = __reduce_add_sync(ALL_LANES, own_ties);
        if (lane == 0 && own_ties > 0) atomicAdd(&s.own_ties, own_ties);
    }
    __syncthreads();
    const u32 ties_before = min(s.before & 0xFFFF, cut.ties);
    const u32 chosen_before = (s.before >> 16) + ties_before;
    if (cut.ties > ties_before) {
        const u32 ties = s.own_ties;
        const u32 quota = min(cut.ties - ties_before, ties);
        if (quota == ties) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < own_end - own_begin; i += blockDim.x) {
                if (exact::sort_key(listed()[i]) == cut.key) choose(p, listed_bits(p)[i]);
            }
        } else {
            __syncthreads();
            choose_first(p, cut.key, quota, turn);
        }
        __syncthreads();
    }
    return {true, chosen_before};
}

// ---- scores equal to the bound ---------------------------------------------------

// A bit for each entry of vector `v`: 1 if the entry equals the bound. `pack` is the vector, if all
// its entries are in the row.
template <typename T>
INLINE u32 equal_bits(const Params& p, const SlottedPiece<T>& piece, const Pack<T>& pack, u32 v,
                      u32 bound) {
    u32 bits = 0;
    const auto test = [&](float x, u32 j) { bits |= exact::sort_key(x) == bound ? 1u << j : 0u; };
    if (piece.whole(v)) {
#pragma unroll
        for (u32 j = 0; j < Pack<T>::N; j++) test(wide(pack.items[j], p.brain), j);
    } else if (v < piece.end) {
        piece.entries(v, p.brain, [&](float x, u32 bit) { test(x, bit - piece.bit(v)); });
    }
    return bits;
}

// The number of scores of the piece that equal the bound, as counted by this thread.
template <typename T>
INLINE u32 count_equal(const Params& p, const SlottedPiece<T>& piece, u32 bound) {
    u32 count = 0;
#pragma unroll 1
    for (u32 v = piece.begin + threadIdx.x; v < piece.end; v += tile_vectors<T>()) {
        Tile<T> packs;
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) packs[a] = piece.load(v + a * blockDim.x);
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) {
            if (!piece.whole(v + a * blockDim.x)) continue;
#pragma unroll
            for (u32 j = 0; j < Pack<T>::N; j++) {
                count += exact::sort_key(wide(packs[a].items[j], p.brain)) == bound ? 1 : 0;
            }
        }
    }
    piece.edges(p.brain, [&](float x, u32) { count += exact::sort_key(x) == bound ? 1 : 0; });
    return count;
}

// Chooses the first `quota` scores of the piece that equal the bound.
template <typename T>
INLINE void choose_equal(const Params& p, const SlottedPiece<T>& piece, u32 bound, u32 quota,
                         u32& turn) {
#pragma unroll 1
    for (u32 base = piece.begin; quota > 0 && base < piece.end; base += tile_vectors<T>()) {
        const u32 first = base + AHEAD<T> * threadIdx.x;
        Tile<T> packs;
        u32 bits[AHEAD<T>];
        u32 own = 0;
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) packs[a] = piece.load(first + a);
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) {
            bits[a] = equal_bits(p, piece, packs[a], first + a, bound);
            own += __popc(bits[a]);
        }
        u32 total;
        u32 before = thread_place(turn, own, total);
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) {
            for (u32 rest = bits[a]; rest != 0 && before < quota; rest &= rest - 1) {
                choose(p, piece.bit(first + a) + __ffs(rest) - 1);
                before++;
            }
        }
        quota -= min(quota, total);
    }
}

// Chooses all listed scores, of which there are at most k, and the first scores that equal the
// bound. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ Choice choose_level(const Params& p, const SlottedPiece<T> piece,
                                           const ListSummary summary, u32 bound, u32& turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 lane = lane_id();
    u32 of_lane = 0;
    if (summary.total < p.k) {
        const u32 own = __reduce_add_sync(ALL_LANES, count_equal(p, piece, bound));
        if (lane == 0 && own > 0) atomicAdd(&s.own_ties, own);
        __syncthreads();
        if (threadIdx.x < team.size) {
            publish(team, &s.ties[team.rank], threadIdx.x, s.own_ties);
        }
        sync_published(team);
        of_lane = lane < team.size ? s.ties[lane] : 0;
    }
    const u32 stay = p.k - summary.total;
    if (__reduce_add_sync(ALL_LANES, of_lane) < stay) return {false, 0};
    const bool earlier = lane < team.rank;
    const u32 ties_before = min(__reduce_add_sync(ALL_LANES, earlier ? of_lane : 0), stay);
    const u32 listed_before = __reduce_add_sync(ALL_LANES, earlier ? summary.of_lane : 0);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < s.own.count; i += blockDim.x) {
        choose(p, listed_bits(p)[i]);
    }
    choose_equal(p, piece, bound, stay - ties_before, turn);
    __syncthreads();
    return {true, listed_before + ties_before};
}

// ---- the row ----------------------------------------------------------------------

// Replaces the counts of the groups by the numbers of chosen scores before each group. The blocks
// before this one choose `before` scores.
INLINE void rank_groups(const Params& p, u32 before, u32& turn) {
    const u32 groups = ((p.words * 32 - 1) >> group_shift(p)) + 1;
    const u32 per = 4 * over_threads((groups + 4 * blockDim.x - 1) / 4);
    u32* const counts = group_counts() + threadIdx.x * per;
    const u32 all = threadIdx.x * per < groups ? per : 0;
    u32 own = 0;
#pragma unroll 1
    for (u32 i = 0; i < all; i += 4) own += sum_of_four(counts + i);
    u32 total;
    before += thread_place(turn, own, total);
#pragma unroll 1
    for (u32 i = 0; i < all; i += 4) {
        uint4& four = *reinterpret_cast<uint4*>(counts + i);
        const uint4 of = four;
        four = make_uint4(before, before + of.x, before + of.x + of.y,
                          before + of.x + of.y + of.z);
        before += of.x + of.y + of.z + of.w;
    }
    __syncthreads();
}

// Writes the position of a chosen score, after those of the chosen scores before it.
template <typename T>
INLINE void write_position(const Params& p, const SlottedPiece<T>& piece, u64 row, u32 bit) {
    const u32* const bits = score_bits(p);
    const u32 group = bit >> group_shift(p);
    u32 place = group_counts()[group];
#pragma unroll 1
    for (u32 w = (group << group_shift(p)) / 32; w < bit / 32; w++) place += __popc(bits[w]);
    place += __popc(bits[bit / 32] & ((1u << bit % 32) - 1));
    p.indices.set(row, place, static_cast<i32>(piece.index(piece.begin) + bit));
}

// Writes the positions of the chosen scores, all of which are listed.
template <typename T>
INLINE void write_listed(const Params& p, const SlottedPiece<T>& piece, u64 row) {
    const u32 count = shared().own.count;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u32 bit = listed_bits(p)[i];
        if (score_bits(p)[bit / 32] >> bit % 32 & 1) write_position(p, piece, row, bit);
    }
}

// Writes the positions of the chosen scores of a row whose cut is the bound.
template <typename T>
INLINE void write_level(const Params& p, const SlottedPiece<T>& piece, u64 row) {
#pragma unroll 1
    for (u32 w = threadIdx.x; w < p.words; w += blockDim.x) {
        for (u32 word = score_bits(p)[w]; word != 0; word &= word - 1) {
            write_position(p, piece, row, w * 32 + __ffs(word) - 1);
        }
    }
}

// Selects by digits. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ u32 select_by_digits_instead(const Params& p, const T* scores, u64 row,
                                             u32 length) {
    return select_by_digits(p, Cluster(), scores, row, length);
}

// Sets everything to 0 that threads add to.
INLINE void prepare(const Params& p) {
    Shared& s = shared();
    clear(s.bins[0], BINS);
    clear(group_counts(), GROUPS);
    clear(score_bits(p), p.words);
    clear_list();
    if (threadIdx.x > 0) return;
    s.bound = s.before = 0;
    s.own_ties = 0;
}

// Prepares for another guess.
INLINE void begin_again(const Cluster& team) {
    Shared& s = shared();
    arrive_unordered(team);
    clear(s.bins[0], BINS);
    if (threadIdx.x > 0) return;
    s.bound = 0;
    s.own_ties = 0;
}

// Writes the positions of the k best scores of a row, which has more than k. Returns flags.
template <typename T>
INLINE u32 select_by_bound(const Params& p, const Cluster& team, const T* scores, u64 row,
                           u32 length) {
    const u32 spread = spread_of(team);
    const SlottedPiece<T> piece(scores, length, lowest_of(scores, p.brain), team, spread);
    // The following work overlaps with the loads of the first scores.
    Tile<T> packs;
    piece.start(packs);
    arrive_unordered(team);
    prepare(p);
    Sample sample = Sample::of_team(piece, spread, first_rank(p.k, piece.tiles));
    const Sample own = own_sample(piece, p.k, spread);
    if (!sample.suits || !own.suits) {
        await_all_copies_but<0>();
        __syncthreads();
        team.wait();
        return select_by_digits_instead(p, scores, row, length);
    }
    u32 turn = 0;
    u32 bits = 0;
    // Whether this block must list its scores (again).
    bool list = true;
    bool lowered = false;
    u32 bound = own_bound(p, own, packs, turn);
    // A block must not use the shared memory of a block that has not started.
    team.wait();
    const ListPart part(team, spread);
#pragma unroll 1
    for (u32 guess = 0;;) {
        ListSummary summary;
        float values[AT_ONCE];
#pragma unroll 1
        for (u32 raise = 0;; raise++) {
            if (list && list_scores(p, piece, packs, bound)) bits |= NON_FINITE;
            sync_shared(team);
            // Issues loads of some scores before the length of their list is known.
            part.load(values, part.first, p.candidates);
            summary = ListSummary::of(p, team);
            if (summary.fits || !summary.same) break;
            if (raise == RAISES) return bits | select_by_digits_instead(p, scores, row, length);
            bound = raised_bound(p, piece, spread, bound, summary.largest, turn);
            list = true;
            piece.start(packs);
        }
        if (summary.fits && summary.total > p.k) {
            const Choice choice = choose_listed(p, team, summary, part, values, turn);
            if (choice.enough) {
                rank_groups(p, choice.before, turn);
                write_listed(p, piece, row);
                team.wait();
                return bits;
            }
            if (!lowered) {
                lowered = true;
                const u32 lower = lower_bound(p, summary, turn);
                list = bound > lower;
                if (list) {
                    bound = lower;
                    clear_list();
                    piece.start(packs);
                }
                __syncthreads();
                continue;
            }
        } else if (summary.same) {
            const Choice choice = choose_level(p, piece, summary, bound, turn);
            if (choice.enough) {
                arrive_unordered(team);
                rank_groups(p, choice.before, turn);
                write_level(p, piece, row);
                // Other blocks may still read this block's list.
                team.wait();
                return bits;
            }
        }
        // The first bound of a single block was already that of the team's first rank.
        if (guess > 0 || team.size == 1) {
            sample = Sample::of_team(piece, spread, 2 * sample.rank);
        }
        if (guess == GUESSES || !sample.suits) {
            return bits | select_by_digits_instead(p, scores, row, length);
        }
        begin_again(team);
        bound = team_bound(p, piece, spread, sample, turn);
        guess++;
        list = true;
        piece.start(packs);
    }
}
