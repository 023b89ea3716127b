// indexer_topk by a bound: the lists of scores above the bound, and the cut among the listed
// scores. indexer_topk_bounded_select.cuh describes the design.
#pragma once

#include "indexer_topk_bound.cuh"

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
