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
#pragma once

#include "indexer_topk_lists.cuh"

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
