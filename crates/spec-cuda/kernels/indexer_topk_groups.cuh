// Selects the k best scores of a row by groups. A group is a run of neighbouring vectors of 16
// bytes, and its maximum is the largest key among its scores. The row must have enough groups.
//
//     row      | piece               | piece               |     read once
//     maxima   | one for each group  | ...                 |     stay in shared memory
//     bound    a key, the same for all blocks: at least k maxima reach it, so at least k scores do
//     bits     one for each score: whether the score reaches the bound
//
// With four groups for each of the k scores, hardly more than k scores reach the bound if scores
// are in random order. If a piece is a single tile, its scores are still in registers when the
// bound is known. Otherwise the block reads again those groups whose maximum reaches the bound. The
// bits keep the scores in order of index. Then the first block collects the scores that reach the
// bound, and finds the k-th largest: first its bin, for bins that divide the range of the keys,
// then the k-th largest among the few keys in this bin.
//
// To find the bound, each block counts its own maxima in such bins. It tells the other blocks the
// largest key that k / (blocks of the team) of its maxima reach, and the keys for twice and four
// times as many, up to k. The bound is the largest of these keys that k maxima of the whole team
// reach.
//
// If scores are in some order or have a plateau, more of them may reach the bound than there is
// room for. Then the scores above the bound are counted in bins, which gives a larger bound. This
// ends when there is room for the scores, or when at most k of them are above the bound: these
// stay, with the first scores that equal the bound. If it takes too many steps, the row is selected
// by digits instead.
#pragma once

#include "indexer_topk_narrow.cuh"

// ---- scores that reach the bound ------------------------------------------------

// Lists the groups whose maximum is above the bound. Also lists groups whose maximum equals the
// bound, but only until there are k of them, because later scores that equal the bound lose to
// those. Returns the number of groups, which may be more than there is room for. Ends with a
// barrier.
INLINE u32 list_groups(const Params& p, u32 groups, u32 bound, u32& turn) {
    constexpr u32 N = 4;
    u16* const list = listed(p);
    u32 count = 0;
    u32 ties = 0;
#pragma unroll 1
    for (u32 base = 0; base < groups; base += N * THREADS) {
        const u32 at = base + N * threadIdx.x;
        u32 bits = 0;
        u32 own_ties = 0;
        if (at < groups) {
            const uint4 four = *reinterpret_cast<const uint4*>(maxima() + at);
            const u32 keys[N] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const bool tie = keys[j] == bound && ties < p.k;
                if (at + j >= groups || (keys[j] <= bound && !tie)) continue;
                bits |= 1u << j;
                own_ties += tie ? 1 : 0;
            }
        }
        u32 total;
        u32 place = count + (thread_place(turn, own_ties << 16 | __popc(bits), total) & 0xFFFF);
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            if (bits >> j & 1) {
                if (place < p.listed) list[place] = static_cast<u16>(at + j);
                place++;
            }
        }
        count += total & 0xFFFF;
        ties += total >> 16;
    }
    __syncthreads();
    return count;
}

// Which entries of a vector reach a bound.
template <typename T>
struct Reach {
    static constexpr u32 N = Pack<T>::N;

    bool brain;
    // Whether every score reaches the bound, NaN and -inf too. Otherwise scores from `least` on do.
    bool any;
    float least;

    INLINE Reach(const Params& p, u32 bound) : brain(p.brain) {
        any = bound <= 0x007FFFFFu;
        least = any ? 0.0f : exact::value_of_key(bound);
    }

    INLINE u32 of(const Pack<T>& pack, bool whole) const {
        u32 bits = 0;
#pragma unroll
        for (u32 j = 0; j < N; j++) bits |= wide(pack.items[j], brain) >= least ? 1u << j : 0u;
        if (any) bits = GroupedPiece<T>::ALL;
        return whole ? bits : 0;
    }
};

// Stores the bits of a pair of vectors.
template <typename T>
INLINE void put_bits(const Params& p, u32 pair, u32 bits) {
    if constexpr (GroupedPiece<T>::N == 4) {
        reinterpret_cast<unsigned char*>(score_bits(p))[pair] = static_cast<unsigned char>(bits);
    } else {
        reinterpret_cast<u16*>(score_bits(p))[pair] = static_cast<u16>(bits);
    }
}

// Sets the bits of a piece that is a single tile, whose vectors are still in registers.
template <typename T>
INLINE void mark_tile(const Params& p, const GroupedPiece<T>& piece, const Pack<T> (&packs)[AHEAD],
                      u32 bound) {
    const Reach<T> reach(p, bound);
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        const u32 place = a * THREADS + threadIdx.x;
        if (a * THREADS >= piece.size()) break;
        const u32 bits = reach.of(packs[a], piece.whole(piece.begin + place));
        const u32 next = __shfl_xor_sync(ALL_LANES, bits, 1);
        if (place % 2 == 0 && place < piece.size()) {
            put_bits<T>(p, place / 2, bits | next << GroupedPiece<T>::N);
        }
    }
}

// Sets the bits of the `count` groups that are listed, which are read again.
template <typename T>
INLINE void mark_listed(const Params& p, const GroupedPiece<T>& piece, u32 count, u32 bound) {
    const Reach<T> reach(p, bound);
    const u32 all = count << piece.fold;
    const u32 last = (1u << piece.fold) - 1;
#pragma unroll 1
    for (u32 base = threadIdx.x; base < all; base += AGAIN * THREADS) {
        Pack<T> packs[AGAIN][2];
        u32 places[AGAIN];
#pragma unroll
        for (u32 a = 0; a < AGAIN; a++) {
            const u32 i = base + a * THREADS;
            places[a] = piece.size();
            if (i < all) places[a] = 2 * ((listed(p)[i >> piece.fold] << piece.fold) + (i & last));
            packs[a][0] = piece.load(piece.begin + places[a], 0);
            packs[a][1] = piece.load(piece.begin + places[a] + 1, 0);
        }
#pragma unroll
        for (u32 a = 0; a < AGAIN; a++) {
            const u32 v = piece.begin + places[a];
            const u32 bits = reach.of(packs[a][0], piece.whole(v)) |
                             reach.of(packs[a][1], piece.whole(v + 1)) << GroupedPiece<T>::N;
            if (bits != 0) put_bits<T>(p, places[a] / 2, bits);
        }
    }
}

// Sets the bits of the vectors at the ends of the row. Begins with a barrier, and ends with one if
// it has set bits.
template <typename T>
INLINE void mark_edges(const Params& p, const GroupedPiece<T>& piece, u32 bound) {
    __syncthreads();
    if (!piece.has_edges()) return;
    const u32 v = threadIdx.x == 0 ? piece.begin : piece.end - 1;
    if (threadIdx.x < 2 && !piece.whole(v)) {
        const u32 place = v - piece.begin;
#pragma unroll 1
        for (u32 j = 0; j < GroupedPiece<T>::N; j++) {
            const u32 i = piece.index(v) + j;
            if (i >= piece.length) continue;
            const bool reaches = exact::sort_key(wide(piece.row[i], p.brain)) >= bound;
            const u32 bit = place * GroupedPiece<T>::N + j;
            if (reaches) atomicOr(&score_bits(p)[bit / 32], 1u << bit % 32);
        }
    }
    __syncthreads();
}

// Lists the scores whose bits are set, in order of index, if there is room for all of them. Returns
// their number.
template <typename T>
INLINE u32 list_scores(const Params& p, const GroupedPiece<T>& piece, u32& turn) {
    constexpr u32 OF_WORD = GroupedPiece<T>::OF_WORD;
    const u32* const bits = score_bits(p);
    uint2* const list = candidates(p);
    const u32 all = (piece.size() + OF_WORD - 1) / OF_WORD;
    // Odd, so that the words of a warp's lanes are in different banks.
    const u32 per = ((all + THREADS - 1) / THREADS) | 1;
    const u32 begin = min(threadIdx.x * per, all);
    const u32 end = min(begin + per, all);
    u32 own = 0;
    for (u32 i = begin; i < end; i++) own += __popc(bits[i]);
    u32 total;
    u32 place = thread_place(turn, own, total);
    if (total > p.candidates) return total;
#pragma unroll 1
    for (u32 i = begin; i < end && own > 0; i++) {
        const u32 index = piece.index(piece.begin + i * OF_WORD);
        for (u32 word = bits[i]; word != 0; word &= word - 1) {
            list[place++].x = index + __ffs(word) - 1;
        }
    }
    __syncthreads();
#pragma unroll 2
    for (u32 i = threadIdx.x; i < total; i += THREADS) {
        list[i].y = exact::sort_key(wide(piece.row[list[i].x], p.brain));
    }
    return total;
}

// ---- the best scores ------------------------------------------------------------

// Writes the k best of the scores that the blocks have listed, `total` in all. The first block runs
// this. Lane i has the number of scores of block i in `of_lane`, and of the blocks up to block i in
// `through`. The other blocks may end when this block has copied their scores.
INLINE void finish(const Params& p, const Cluster& team, u64 row, u32 bound, u32 through,
                   u32 of_lane, u32 total, u32& turn) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    // Each warp has a run of neighbouring scores.
    const u32 per = (total + WARPS - 1) / WARPS;
    const u32 begin = min(warp * per, total);
    const u32 end = min(begin + per, total);
    u32* const keys = taken_keys();
    u32* const indices = taken_indices(p);
    // Every warp stores the same values, so no barrier of the block is needed.
    if (lane < MAX_CLUSTER) s.starts[lane] = through - of_lane;
    __syncwarp();
    u32 low = bound;
    u32 high = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
    u32 shift = shift_of(high - low);
#pragma unroll 1
    for (u32 base = begin; base < end; base += TAKEN * WARP) {
        uint2 taken[TAKEN];
#pragma unroll
        for (u32 a = 0; a < TAKEN; a++) {
            if (base + a * WARP >= end) break;
            const u32 i = base + a * WARP + lane;
            u32 block = 0;
#pragma unroll
            for (u32 step = MAX_CLUSTER / 2; step > 0; step /= 2) {
                const u32 next = block + step;
                if (next < team.size && s.starts[next] <= i) block = next;
            }
            if (i < end) taken[a] = *team.of(candidates(p) + (i - s.starts[block]), block);
        }
#pragma unroll
        for (u32 a = 0; a < TAKEN; a++) {
            const u32 i = base + a * WARP + lane;
            if (i >= end) break;
            keys[i] = taken[a].y;
            indices[i] = taken[a].x;
            atomicAdd(&s.bins[0][(taken[a].y - low) >> shift], 1u);
        }
    }
    team.arrive();
    u32 need = p.k;
    Cut cut;
    while (true) {
        __syncthreads();
        search_bins(turn, need, need, [&](u32 bin, u32 before, u32 count) {
            s.digit = bin;
            s.digit_need = need - before;
            s.digit_count = count;
        });
        __syncthreads();
        low += s.digit << shift;
        high = min(high, low + ((1u << shift) - 1));
        need = s.digit_need;
        const u32 count = s.digit_count;
        if (shift == 0) {
            cut = {low, need};
            break;
        }
        if (count == need) {
            cut = {low - 1, 0};
            break;
        }
        const u32 range = high - low;
        if (count <= FEW) {
            for (u32 i = begin + lane; i < end; i += WARP) {
                const u32 key = keys[i];
                if (key - low <= range) s.few[atomicAdd(&s.few_count, 1u)] = key;
            }
            __syncthreads();
            if (threadIdx.x < count) {
                const u32 key = s.few[threadIdx.x];
                u32 larger = 0;
                u32 equal = 0;
#pragma unroll 1
                for (u32 i = 0; i < count; i++) {
                    larger += s.few[i] > key ? 1 : 0;
                    equal += s.few[i] == key ? 1 : 0;
                }
                if (larger < need && need <= larger + equal) {
                    s.cut_key = key;
                    s.cut_ties = need - larger;
                }
            }
            __syncthreads();
            cut = {s.cut_key, s.cut_ties};
            break;
        }
        clear(s.bins[0], BINS);
        shift = shift_of(range);
        __syncthreads();
        for (u32 i = begin + lane; i < end; i += WARP) {
            if (keys[i] - low <= range) atomicAdd(&s.bins[0][(keys[i] - low) >> shift], 1u);
        }
    }
    u32 own = 0;
    for (u32 i = begin + lane; i < end; i += WARP) {
        const u32 key = keys[i];
        own += key > cut.key ? 1u << 16 : key == cut.key ? 1u : 0u;
    }
    own = __reduce_add_sync(ALL_LANES, own);
    u32 all;
    const u32 before = warp_place(turn, own, all);
    u32 above = before >> 16;
    u32 ties = before & 0xFFFF;
#pragma unroll 1
    for (u32 base = begin; base < end; base += WARP) {
        const u32 i = base + lane;
        const u32 key = i < end ? keys[i] : 0;
        const bool larger = i < end && key > cut.key;
        const bool equal = i < end && key == cut.key;
        const u32 all_larger = __ballot_sync(ALL_LANES, larger);
        const u32 all_equal = __ballot_sync(ALL_LANES, equal);
        const u32 g = above + __popc(all_larger & lanes_below());
        const u32 e = ties + __popc(all_equal & lanes_below());
        if (larger || (equal && e < cut.ties)) {
            p.indices.set(row, g + min(e, cut.ties), static_cast<i32>(indices[i]));
        }
        above += __popc(all_larger);
        ties += __popc(all_equal);
    }
}

// ---- the row ------------------------------------------------------------------

// By digits, for a row that does not suit groups. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ u32 select_otherwise(const Params& p, const T* scores, u64 row,
                                             u32 length) {
    return select_by_digits(p, Cluster(), scores, row, length);
}

// Writes the positions of the k best scores of a row, which has more than k. Returns flags.
template <typename T>
INLINE u32 select_by_groups(const Params& p, const Cluster& team, const T* scores, u64 row,
                            u32 length) {
    Shared& s = shared();
    const u32 spread = 31 - __clz(team.size);
    const GroupedPiece<T> piece(p, scores, length, team, spread);
    if (!piece.suits) return select_otherwise(p, scores, row, length);
    team.arrive();
    Pack<T> packs[AHEAD];
    u32 least;
    u32 max_key;
    u32 bits = find_maxima(p, piece, packs, least, max_key) ? NON_FINITE : 0;
    u32 turn = 0;
    u32 bound = find_bound(p, team, spread, piece.groups(), least, max_key, turn);
    bool marked = true;
    if (piece.size() <= TILE) {
        mark_tile(p, piece, packs, bound);
    } else {
        const u32 count = list_groups(p, piece.groups(), bound, turn);
        marked = count <= p.listed;
        if (marked) mark_listed(p, piece, count, bound);
    }
    mark_edges(p, piece, bound);
    u32 of_lane;
    u32 through;
    u32 total;
#pragma unroll 1
    while (true) {
        const u32 count = marked ? list_scores(p, piece, turn) : UNKNOWN;
        if (threadIdx.x < team.size) tell(team, &s.counts[team.rank], threadIdx.x, count);
        team.sync();
        of_lane = lane_id() < team.size ? s.counts[lane_id()] : 0;
        through = warp_inclusive_sum(of_lane);
        total = __shfl_sync(ALL_LANES, through, WARP - 1);
        if (total <= p.candidates) break;
        const Outcome outcome = narrow(p, piece, row, turn);
        if (outcome == Outcome::CHOSEN) return bits;
        if (outcome == Outcome::OPEN) return bits | select_otherwise(p, scores, row, length);
        bound = s.bound;
    }
    if (team.rank == 0) {
        finish(p, team, row, bound, through, of_lane, total, turn);
    } else {
        team.arrive();
    }
    team.wait();
    return bits;
}
