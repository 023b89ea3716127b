// Selects the k best scores of a row by a bound that is known before most of the row is read.
//
//     row      | piece                 | piece                 |     read once
//     tile     |  =   =   =   =   =   =|  =   =   =   =   =   =|     read first, and kept in registers
//     bound    a key, the same for all blocks, from the maxima of groups of the tiles
//     lists    the vectors with a score above the bound, and then these scores, in any order, in
//              shared memory
//     cut      the key of the k-th best, which each block finds among the keys of all lists
//     bits     one for each score of the piece: whether the score is chosen
//
// Every block first reads a tile of its piece, and finds the maximum of each group of some 16
// scores of the tile. If the tiles have the whole row, the bound is a key that k of all maxima
// reach, so at least k scores reach it. Otherwise the bound is a guess from a lower rank
// (`first_rank`).
// To find it, each block counts its own maxima in bins that divide the range of the keys. It tells
// the other blocks the largest key that its share of the rank reaches, and the keys for twice and
// four times as many, and so on. The bound is the largest of these keys that enough maxima of the
// whole team reach.
//
// Each block then compares the largest score of each vector with the bound, for the tile in
// registers and for the other vectors as they are read, and lists the vectors that have a score
// above it. Hardly any thread waits for another one in this long part. Only the scores of these
// vectors are compared one by one and listed. When all blocks have listed their scores, each block
// copies the keys of all lists, and so finds the same cut. The list gives the bits of a block's
// chosen scores, and the bits give the order of the positions.
//
// Three kinds of rows need more. If at most k scores are above the bound, the bound itself is the
// cut: then the scores that equal the bound are counted, and each block that has some of the first
// of these reads its piece again up to the last one that it needs. If there are too few of them,
// the guess was too high, and a larger rank gives the next guess. If more scores are above the
// bound than there is room for, as in a row in descending order, these scores are counted in bins,
// which gives a larger bound. If neither helps, the row is selected by digits.
#pragma once

#include "indexer_topk_bound.cuh"

// How often the bound may be guessed, and how often a guess may be raised.
constexpr u32 GUESSES = 3;
constexpr u32 RAISES = 2;
// The count of a block that has more vectors with a score above the bound than there is room for.
constexpr u32 UNKNOWN = 1u << 24;
// Keys of other blocks that a thread loads at once.
constexpr u32 AT_ONCE = 4;

// ---- the lists --------------------------------------------------------------------

// Whether a list of `count` scores has room for all of them: a thread adds the scores of a vector
// only if there is room for a whole vector.
template <typename T>
INLINE bool has_room(const Params& p, u32 count) {
    return count + Pack<T>::N <= p.candidates;
}

// Lists vector `v`. If there is no room, `least` becomes infinity, so that this thread lists no
// more.
INLINE void append_vector(const Params& p, const uint4& raw, u32 v, float& least) {
    const u32 at = atomicAdd(&shared().own_vectors, 1u);
    if (at < p.candidates) {
        vectors()[at] = raw;
        vector_numbers(p)[at] = v;
    } else {
        least = infinity();
    }
}

// Lists the scores of a warp's vectors that are above `least`, if there is room. One lane adds the
// numbers of all lanes to the count, because additions to one word wait for each other.
template <typename T>
INLINE void append_scores(const Params& p, const Pack<T>& pack, float least, u32 bit) {
    constexpr u32 N = Pack<T>::N;
    bool above[N];
    u32 count = 0;
#pragma unroll
    for (u32 j = 0; j < N; j++) {
        above[j] = wide(pack.items[j], p.brain) > least;
        count += above[j] ? 1 : 0;
    }
    const u32 through = warp_inclusive_sum(count);
    u32 at = 0;
    if (lane_id() == WARP - 1) at = atomicAdd(&shared().own_count, through);
    at = __shfl_sync(ALL_LANES, at, WARP - 1) + through - count;
    if (!has_room<T>(p, at)) return;
    float* to = listed(p) + at;
    u32* to_bit = listed_bits(p) + at;
#pragma unroll
    for (u32 j = 0; j < N; j++) {
        if (!above[j]) continue;
        *to++ = wide(pack.items[j], p.brain);
        *to_bit++ = bit + j;
    }
}

// Lists the scores of the piece that are above the bound, and tells the team how many there are,
// and a key that no score exceeds, the largest key unless there is a NaN. `packs` has the first
// tile. Returns whether this thread met a NaN.
template <typename T>
INLINE bool list_scores(const Params& p, const Cluster& team, const SlottedPiece<T>& piece,
                        Pack<T> (&packs)[AHEAD], u32 bound) {
    Shared& s = shared();
    const float bound_value = exact::value_of_key(bound);
    float least = bound_value;
    float greatest = negative_infinity();
    piece.each(packs, [&](const Pack<T>& pack, u32 v) {
        float best = largest<true>(pack, p.brain);
        greatest = larger<true>(greatest, best);
        if (best <= least) return;
        if (best != best) best = largest<false>(pack, p.brain);
        if (best > least) append_vector(p, pack.raw, v, least);
    });
    piece.edges(p.brain, [&](float x, u32 bit) {
        greatest = larger<true>(greatest, x);
        if (!(x > bound_value)) return;
        const u32 at = atomicAdd(&s.own_count, 1u);
        if (!has_room<T>(p, at)) return;
        listed(p)[at] = x;
        listed_bits(p)[at] = bit;
    });
    const bool odd = greatest != greatest;
    const u32 own_key = exact::sort_key(odd ? infinity() : greatest);
    const u32 max_key = __reduce_max_sync(ALL_LANES, own_key);
    if (lane_id() == 0) atomicMax(&s.own_largest, max_key);
    __syncthreads();
    const bool complete = s.own_vectors <= p.candidates;
    const u32 count = complete ? s.own_vectors : 0;
#pragma unroll 1
    for (u32 base = threadIdx.x / WARP * WARP; base < count; base += blockDim.x) {
        const u32 i = base + lane_id();
        Pack<T> pack;
        pack.raw = make_uint4(piece.lowest, piece.lowest, piece.lowest, piece.lowest);
        u32 bit = 0;
        if (i < count) {
            pack.raw = vectors()[i];
            bit = piece.bit(vector_numbers(p)[i]);
        }
        append_scores(p, pack, bound_value, bit);
    }
    __syncthreads();
    if (threadIdx.x < team.size) {
        tell(team, &s.counts[team.rank], threadIdx.x, complete ? s.own_count : UNKNOWN);
        tell(team, &s.largest[team.rank], threadIdx.x, s.own_largest);
    }
    sync_told(team);
    return odd;
}

// A bound that is larger than `bound`, and that still at least k scores reach. More than k scores
// are above `bound`. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ u32 raised_bound(const Params& p, const SlottedPiece<T> piece, u32 spread,
                                         u32 bound, u32& turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 lane = lane_id();
    const u32 high = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
    const u32 low = bound + 1;
    const u32 shift = shift_of(high - low);
    const float least = exact::value_of_key(bound);
    u32 own = 0;
    const auto count = [&](float x) {
        if (!(x > least)) return;
        // A score that is overwritten during the call may be larger than the largest one was.
        const u32 bin = (exact::sort_key(x) - low) >> shift;
        atomicAdd(&s.bins[0][min(bin, BINS - 1)], 1u);
        own++;
    };
    // The other blocks know what these variables were.
    if (threadIdx.x == 0) s.own_vectors = s.own_count = s.own_ties = 0;
    __syncthreads();
    Pack<T> packs[AHEAD];
    piece.load_tile(packs);
    piece.each(packs, [&](const Pack<T>& pack, u32) {
#pragma unroll
        for (u32 j = 0; j < Pack<T>::N; j++) count(wide(pack.items[j], p.brain));
    });
    piece.edges(p.brain, [&](float x, u32) { count(x); });
    own = __reduce_add_sync(ALL_LANES, own);
    if (lane == 0) atomicAdd(&s.own_ties, own);
    __syncthreads();
    tell_reached(p.k, team, spread, low, shift, s.own_ties, low, turn);
    sync_told(team);
    if (threadIdx.x == 0) s.own_ties = 0;
    return common_bound(p.k, team, spread);
}

// ---- the cut ----------------------------------------------------------------------

// The cut that leaves `need` of the `count` keys in `taken`, which all are in low ..= high. The
// bins have the counts of the keys: bin (key - low) >> shift_of(high - low).
// Begins with a barrier, so that a caller need not pass one after it has filled the bins.
// Not inlined: instructions that run once take longer to fetch than to run, so there is one copy.
__device__ __noinline__ Cut search_cut(u32 count, u32 need, u32 low, u32 high, u32& turn) {
    Shared& s = shared();
    const u32* const keys = taken();
    u32 shift = shift_of(high - low);
    if (threadIdx.x == 0) s.few_count = 0;
    while (true) {
        __syncthreads();
        search_bins(turn, need, need, [&](u32 bin, u32 before, u32 in_bin) {
            s.digit = bin;
            s.digit_need = need - before;
            s.digit_count = in_bin;
        });
        __syncthreads();
        low += s.digit << shift;
        high = min(high, low + ((1u << shift) - 1));
        need = s.digit_need;
        const u32 in_bin = s.digit_count;
        if (in_bin == need) return {low - 1, 0};
        if (shift == 0) return {low, need};
        const u32 range = high - low;
        if (in_bin <= FEW) {
#pragma unroll 4
            for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
                const u32 key = keys[i];
                if (key - low <= range) s.few[atomicAdd(&s.few_count, 1u)] = key;
            }
            __syncthreads();
            // A warp compares a key with all others.
#pragma unroll 1
            for (u32 i = threadIdx.x / WARP; i < in_bin; i += warps()) {
                const u32 key = s.few[i];
                u32 both = 0;
#pragma unroll
                for (u32 j = 0; j < FEW; j += WARP) {
                    const u32 other = j + lane_id() < in_bin ? s.few[j + lane_id()] : 0;
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

// How many keys there is room for in `taken`, and 16 bits hold a count of.
INLINE u32 max_taken(const Params& p) { return min(5 * p.candidates, 0xFFFFu); }

// What the blocks have listed: lane i has the number of scores of block i in `of_lane`, and of the
// blocks up to block i in `through`. No key exceeds `largest`.
struct Tally {
    u32 of_lane;
    u32 through;
    u32 total;
    u32 largest;
    // Whether there is room for all scores, in the list of each block and in `taken`.
    bool fits;

    template <typename T>
    INLINE static Tally of(const Params& p, const Cluster& team) {
        const Shared& s = shared();
        const u32 lane = lane_id();
        Tally t;
        t.of_lane = lane < team.size ? s.counts[lane] : 0;
        t.through = warp_inclusive_sum(t.of_lane);
        t.total = __shfl_sync(ALL_LANES, t.through, WARP - 1);
        t.largest = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
        t.fits = t.total <= max_taken(p) && __all_sync(ALL_LANES, has_room<T>(p, t.of_lane));
        return t;
    }
};

// Copies the keys of all lists, which are above the bound, and counts them in bins.
INLINE void take_keys(const Params& p, const Cluster& team, u32 spread, const Tally& tally,
                      u32 bound) {
    Shared& s = shared();
    // A warp takes keys of one block.
    const u32 warp = threadIdx.x / WARP;
    const u32 source = warp & (team.size - 1);
    const u32 count = __shfl_sync(ALL_LANES, tally.of_lane, source);
    u32* const to = taken() + (__shfl_sync(ALL_LANES, tally.through, source) - count);
    const float* const from = team.of(listed(p), source);
    const u32 stride = WARP * (warps() >> spread);
    const u32 shift = shift_of(tally.largest - bound);
#pragma unroll 1
    for (u32 base = WARP * (warp >> spread) + lane_id(); base < count; base += AT_ONCE * stride) {
        float values[AT_ONCE];
#pragma unroll
        for (u32 a = 0; a < AT_ONCE; a++) {
            const u32 i = base + a * stride;
            values[a] = i < count ? from[i] : 0.0f;
        }
#pragma unroll
        for (u32 a = 0; a < AT_ONCE; a++) {
            const u32 i = base + a * stride;
            if (i >= count) break;
            const u32 key = exact::sort_key(values[a]);
            to[i] = key;
            atomicAdd(&s.bins[0][(key - bound) >> shift], 1u);
        }
    }
}

INLINE void choose(const Params& p, u32 bit) { atomicOr(&score_bits(p)[bit / 32], 1u << bit % 32); }

// Chooses, of this block's listed scores that equal the cut, the first `quota`, which are not all
// of them.
__device__ __noinline__ void choose_first(const Params& p, u32 cut_key, u32 quota, u32& turn) {
    Shared& s = shared();
    const u32 all = s.own_count;
    u32* const places = taken();
    if (threadIdx.x == 0) s.own_ties = 0;
    clear(s.bins[0], BINS);
    __syncthreads();
    // A larger number stands for an earlier score. Bits are less than 2^31.
    const u32 high = (1u << 31) - 1;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < all; i += blockDim.x) {
        if (exact::sort_key(listed(p)[i]) != cut_key) continue;
        places[atomicAdd(&s.own_ties, 1u)] = high - listed_bits(p)[i];
    }
    __syncthreads();
    const u32 count = s.own_ties;
    if (count <= FEW) {
        // A warp compares a place with all others.
#pragma unroll 1
        for (u32 i = threadIdx.x / WARP; i < count; i += warps()) {
            const u32 place = places[i];
            u32 earlier = 0;
#pragma unroll
            for (u32 j = 0; j < FEW; j += WARP) {
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

// Finds the cut among the listed scores, of which there are more than k, and chooses those of this
// block. Returns how many scores the blocks before this one choose. The other blocks may end after
// they have passed `team.wait`.
INLINE u32 choose_listed(const Params& p, const Cluster& team, u32 spread, const Tally& tally,
                         u32 bound, u32& turn) {
    Shared& s = shared();
    const u32 lane = lane_id();
    take_keys(p, team, spread, tally, bound);
    arrive_unordered(team);
    const Cut cut = search_cut(tally.total, p.k, bound, tally.largest, turn);
    // Lists lie in the order of blocks in `taken`.
    const u32 own_end = __shfl_sync(ALL_LANES, tally.through, team.rank);
    const u32 own_begin = own_end - s.counts[team.rank];
    u32 before = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < own_begin; i += blockDim.x) {
        const u32 key = taken()[i];
        before += key > cut.key ? 1u << 16 : key == cut.key ? 1u : 0u;
    }
    u32 own_ties = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < own_end - own_begin; i += blockDim.x) {
        const u32 key = exact::sort_key(listed(p)[i]);
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
                if (exact::sort_key(listed(p)[i]) == cut.key) choose(p, listed_bits(p)[i]);
            }
        } else {
            __syncthreads();
            choose_first(p, cut.key, quota, turn);
        }
        __syncthreads();
    }
    return chosen_before;
}

// ---- scores that equal the bound ------------------------------------------------------

// Which entries of a vector equal the bound, one bit for each entry.
template <typename T>
INLINE u32 equal_bits(const Params& p, const SlottedPiece<T>& piece, u32 v, u32 bound) {
    u32 bits = 0;
    const auto test = [&](float x, u32 j) { bits |= exact::sort_key(x) == bound ? 1u << j : 0u; };
    if (piece.whole(v)) {
        const Pack<T> pack = piece.load(v);
#pragma unroll
        for (u32 j = 0; j < Pack<T>::N; j++) test(wide(pack.items[j], p.brain), j);
    } else if (v < piece.end) {
        piece.entries(v, p.brain, [&](float x, u32 bit) { test(x, bit - piece.bit(v)); });
    }
    return bits;
}

// Chooses the first `quota` scores of the piece that equal the bound.
template <typename T>
INLINE void choose_equal(const Params& p, const SlottedPiece<T>& piece, u32 bound, u32 quota,
                         u32& turn) {
#pragma unroll 1
    for (u32 base = piece.begin; quota > 0 && base < piece.end; base += tile_vectors()) {
        const u32 first = base + AHEAD * threadIdx.x;
        u32 bits[AHEAD];
        u32 own = 0;
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            bits[a] = equal_bits(p, piece, first + a, bound);
            own += __popc(bits[a]);
        }
        u32 total;
        u32 before = thread_place(turn, own, total);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            for (u32 rest = bits[a]; rest != 0 && before < quota; rest &= rest - 1) {
                choose(p, piece.bit(first + a) + __ffs(rest) - 1);
                before++;
            }
        }
        quota -= min(quota, total);
    }
}

// What the blocks choose in a row in which the bound is the cut.
struct Level {
    // Whether k scores reach the bound. If not, nothing is chosen.
    bool enough;
    // How many scores the blocks before this one choose.
    u32 before;
};

// Chooses all listed scores, of which there are at most k, and the first scores that equal the
// bound. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ Level choose_level(const Params& p, const SlottedPiece<T> piece,
                                           const Tally tally, u32 bound, u32& turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 lane = lane_id();
    u32 of_lane = 0;
    if (tally.total < p.k) {
        u32 own = 0;
#pragma unroll 4
        for (u32 v = piece.begin + threadIdx.x; v < piece.end; v += blockDim.x) {
            own += __popc(equal_bits(p, piece, v, bound));
        }
        own = __reduce_add_sync(ALL_LANES, own);
        if (lane == 0 && own > 0) atomicAdd(&s.own_ties, own);
        __syncthreads();
        if (threadIdx.x < team.size) {
            tell(team, &s.ties[team.rank], threadIdx.x, s.own_ties);
        }
        sync_told(team);
        of_lane = lane < team.size ? s.ties[lane] : 0;
    }
    const u32 stay = p.k - tally.total;
    if (__reduce_add_sync(ALL_LANES, of_lane) < stay) return {false, 0};
    const bool earlier = lane < team.rank;
    const u32 ties_before = min(__reduce_add_sync(ALL_LANES, earlier ? of_lane : 0), stay);
    const u32 listed_before = __reduce_add_sync(ALL_LANES, earlier ? tally.of_lane : 0);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < s.counts[team.rank]; i += blockDim.x) {
        choose(p, listed_bits(p)[i]);
    }
    choose_equal(p, piece, bound, stay - ties_before, turn);
    __syncthreads();
    return {true, listed_before + ties_before};
}

// ---- the row ----------------------------------------------------------------------

// Writes the positions of the scores of this block whose bits are set, from column `before` on.
template <typename T>
INLINE void write_chosen(const Params& p, const SlottedPiece<T>& piece, u64 row, u32 before,
                         u32& turn) {
    constexpr u32 N = 4;
    const uint4* const bits = reinterpret_cast<const uint4*>(score_bits(p));
    const u32 all = p.words / N;
    // Odd, so that the vectors of neighbouring lanes are in different banks.
    const u32 per = over_threads(all + blockDim.x - 1) | 1;
    const u32 begin = min(threadIdx.x * per, all);
    const u32 count = min(per, all - begin);
    u32 own = 0;
    // The vectors that are not 0; there are at most 32.
    u32 some = 0;
#pragma unroll 2
    for (u32 i = 0; i < count; i++) {
        const uint4 four = bits[begin + i];
        const u32 set = __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
        own += set;
        some |= set > 0 ? 1u << i : 0u;
    }
    u32 total;
    u32 place = before + thread_place(turn, own, total);
#pragma unroll 1
    for (; some != 0; some &= some - 1) {
        const u32 i = begin + __ffs(some) - 1;
        const uint4 four = bits[i];
        const u32 words[N] = {four.x, four.y, four.z, four.w};
        const u32 first = piece.index(piece.begin) + i * N * 32;
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            for (u32 word = words[j]; word != 0; word &= word - 1) {
                p.indices.set(row, place++, static_cast<i32>(first + j * 32 + __ffs(word) - 1));
            }
        }
    }
}

// By digits, for a row that does not suit a bound. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ u32 select_otherwise(const Params& p, const T* scores, u64 row,
                                             u32 length) {
    return select_by_digits(p, Cluster(), scores, row, length);
}

// Sets everything to 0 that threads add to.
INLINE void prepare(const Params& p) {
    Shared& s = shared();
    clear(s.bins[0], BINS);
    clear(score_bits(p), p.words);
    if (threadIdx.x > 0) return;
    s.bound = s.before = 0;
    s.own_largest = s.own_vectors = s.own_count = s.own_ties = 0;
}

// Prepares for another guess.
INLINE void begin_again(const Cluster& team) {
    Shared& s = shared();
    arrive_unordered(team);
    if (threadIdx.x > 0) return;
    s.bound = 0;
    s.own_largest = s.own_vectors = s.own_count = s.own_ties = 0;
}

// Writes the positions of the k best scores of a row, which has more than k. Returns flags.
template <typename T>
INLINE u32 select_by_bound(const Params& p, const Cluster& team, const T* scores, u64 row,
                           u32 length) {
    const u32 spread = 31 - __clz(team.size);
    const SlottedPiece<T> piece(scores, length, lowest_of(scores, p.brain), team, spread);
    Sample sample(piece, spread, first_rank(p.k, piece.tiles));
    if (!sample.suits) return select_otherwise(p, scores, row, length);
    arrive_unordered(team);
    Pack<T> packs[AHEAD];
    piece.load_tile(packs);
    prepare(p);
    u32 turn = 0;
#pragma unroll 1
    for (u32 guess = 1;; guess++) {
        u32 bound = find_bound(p, team, spread, sample, packs, turn);
        u32 bits;
        Tally tally;
#pragma unroll 1
        for (u32 raise = 0;; raise++) {
            bits = list_scores(p, team, piece, packs, bound) ? NON_FINITE : 0;
            tally = Tally::of<T>(p, team);
            if (tally.fits) break;
            if (raise == RAISES) return bits | select_otherwise(p, scores, row, length);
            bound = raised_bound(p, piece, spread, bound, turn);
            piece.load_tile(packs);
        }
        if (tally.total > p.k) {
            const u32 before = choose_listed(p, team, spread, tally, bound, turn);
            write_chosen(p, piece, row, before, turn);
            team.wait();
            return bits;
        }
        const Level level = choose_level(p, piece, tally, bound, turn);
        if (level.enough) {
            write_chosen(p, piece, row, level.before, turn);
            return bits;
        }
        sample = Sample(piece, spread, 2 * sample.rank);
        if (guess == GUESSES || !sample.suits) {
            return bits | select_otherwise(p, scores, row, length);
        }
        begin_again(team);
        piece.load_tile(packs);
    }
}
