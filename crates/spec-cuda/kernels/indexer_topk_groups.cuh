// The k best of a row by the largest of its groups, where it has enough of those.
//
//     row      | piece               | piece               |     read once
//     maxima   | of groups of scores | ...                 |     stay in shared memory
//     bound    one for the team: k maxima or more reach it, so at least k scores do
//     bits     one a score: which reach it, of groups that do
//
// Groups number four times k at least, so hardly more than k scores reach the bound of a
// row without an order. A piece of one tile is still in registers then; of a larger one,
// groups whose largest reaches the bound are read again. Bits keep the order of index.
// The first block takes the scores over and finds the k-th largest: once by a digit
// that the range of their keys calls for, then among the few that share its digit.
//
// For the bound each block counts its own maxima by such a digit and tells the others
// how far down it has k / team of them, and twice and four times as many, up to k. The
// largest key that so many reach in sum is the bound.
//
// Where more scores reach it than there is room for (an order, a plateau), they are
// counted by a digit of what lies above the bound, which gives a larger one, until they
// are few or at most k are above it: then those stay, with the first that equal it. What
// takes too many steps is cut by digits.
#pragma once

#include "indexer_topk_digits.cuh"

constexpr u32 THREADS = 512;
// Vectors that a thread has under way: 64 KB a block.
constexpr u32 AHEAD = 8;
constexpr u32 TILE = AHEAD * THREADS;
// Vectors of a line of memory, at which pieces begin.
constexpr u32 LINE = 8;
// Groups for each score that is asked for, and at least so many in a row, unless they
// are of a pair of vectors already; and what serves.
constexpr u32 GROUPS_OF_ONE = 4;
constexpr u32 LEAST_GROUPS = 8192;
constexpr u32 ENOUGH_OF_ONE = 2;
// A group is 1 << fold pairs: at most a line unless those are too many, or a warp's.
constexpr u32 LINE_FOLD = 2;
constexpr u32 MOST_FOLD = 4;
// How often the bound is raised, and a count that stands for scores not looked for.
constexpr u32 RAISES = 3;
constexpr u32 UNKNOWN = 1u << 24;
// Pairs that a thread reads again at a time, and scores that it takes over.
constexpr u32 AGAIN = 4;
constexpr u32 TAKEN = 6;

INLINE u32* maxima() { return words(); }
INLINE u32* score_bits(const Params& p) { return words() + p.groups; }
INLINE u16* listed(const Params& p) {
    return reinterpret_cast<u16*>(words() + p.groups + p.words);
}
// What the first block takes over, in place of those.
INLINE u32* taken_keys() { return words(); }
INLINE u32* taken_indices(const Params& p) { return words() + p.candidates; }
// Scores that reach the bound: index and key.
INLINE uint2* candidates(const Params& p) {
    const u32 before = max(p.groups + p.words + p.listed / 2, 2 * p.candidates);
    return reinterpret_cast<uint2*>(words() + before);
}

// This thread's place among the block's threads.
INLINE u32 thread_place(u32& turn, u32 own, u32& total) {
    const u32 through = warp_inclusive_sum(own);
    const u32 all = __shfl_sync(ALL_LANES, through, WARP - 1);
    return warp_place(turn, all, total) + through - own;
}

// ---- a digit that a range calls for -------------------------------------------

// The shift that leaves less than BINS of a range.
INLINE u32 shift_of(u32 range) {
    const u32 bits = 32 - __clz(range);
    return bits > 11 ? bits - 11 : 0;
}

INLINE void clear(u32* from, u32 count) {
    for (u32 i = 4 * threadIdx.x; i < count; i += 4 * THREADS) {
        *reinterpret_cast<uint4*>(from + i) = make_uint4(0, 0, 0, 0);
    }
}

// found(bin, before, count) for bins, from the largest down, until those before have
// `most`, and once they and the bin have `least`: what those before have, and what it
// has.
template <typename Found>
INLINE void search_bins(u32& turn, u32 least, u32 most, Found found) {
    constexpr u32 N = BINS / THREADS;
    const u32 top = BINS - N * (threadIdx.x + 1);
    const u32* const bins = shared().bins[0] + top;
    u32 own = 0;
#pragma unroll
    for (u32 j = 0; j < N; j++) own += bins[j];
    u32 total;
    u32 before = thread_place(turn, own, total);
    if (before >= most || before + own < least) return;
#pragma unroll 1
    for (u32 j = N; j-- > 0;) {
        const u32 count = bins[j];
        if (count != 0 && before < most && before + count >= least) found(top + j, before, count);
        before += count;
    }
}

// ---- a block's piece ----------------------------------------------------------

// A block's part of a row, in vectors of 16 bytes from the boundary before the row on.
template <typename T>
struct GroupedPiece : AlignedRow<T> {
    using Row = AlignedRow<T>;
    using Row::index;
    using Row::lead;
    using Row::length;
    using Row::row;
    static constexpr u32 N = Row::N;
    static constexpr u32 ALL = (1u << N) - 1;
    // Vectors whose bits are a word.
    static constexpr u32 OF_WORD = 32 / N;

    u32 fold;
    // Whether there are groups enough in the row.
    bool suits;
    u32 begin;
    u32 end;
    // Vectors of the piece all of whose entries are in the row.
    u32 whole_begin;
    u32 whole_count;

    // Teams are of 1 << spread blocks.
    INLINE GroupedPiece(const Params& p, const T* from, u32 count, const Cluster& team, u32 spread)
        : Row(from, count) {
        const u32 vectors = Row::vectors();
        const u32 lines = (vectors + LINE - 1) / LINE;
        const u32 most = LINE * (((lines - 1) >> spread) + 1);
        const u32 wanted = max(GROUPS_OF_ONE * p.k, LEAST_GROUPS);
        fold = 0;
        while (fold < LINE_FOLD && vectors >> (fold + 2) >= wanted) fold++;
        while (fold < MOST_FOLD && ((most - 1) >> (fold + 1)) >= p.groups) fold++;
        suits = ((most - 1) >> (fold + 1)) < p.groups &&
                vectors >> (fold + 1) >= ENOUGH_OF_ONE * p.k;
        begin = LINE * (lines * team.rank >> spread);
        end = min(LINE * (lines * (team.rank + 1) >> spread), vectors);
        whole_begin = max(begin, lead > 0 ? 1 : 0);
        whole_count = max(min(end, static_cast<u32>(Row::through() / N)), whole_begin) - whole_begin;
    }

    INLINE u32 size() const { return end - begin; }
    INLINE bool whole(u32 v) const { return v - whole_begin < whole_count; }
    INLINE bool has_edges() const { return whole_count < size(); }

    INLINE u32 groups() const { return (size() + (2u << fold) - 1) >> (fold + 1); }

    INLINE const T* at(u32 v) const { return row + (static_cast<i64>(v) * N - lead); }

    // A vector; of the lowest number where not all of it is there.
    INLINE Pack<T> load(u32 v, u32 lowest) const {
        Pack<T> pack;
        pack.raw = make_uint4(lowest, lowest, lowest, lowest);
        if (whole(v)) pack = load_pack(at(v));
        return pack;
    }
};

// Words of the lowest number.
INLINE u32 lowest_of(const float*, bool) { return 0xFF800000u; }
INLINE u32 lowest_of(const Half*, bool brain) { return brain ? 0xFF80FF80u : 0xFC00FC00u; }

// The largest entry of a vector, and whether one is a NaN, which is less than any other.
template <typename T>
INLINE float largest(const Pack<T>& pack, bool brain, bool& odd) {
    float most = wide(pack.items[0], brain);
#pragma unroll
    for (u32 j = 0; j < Pack<T>::N; j += 2) {
        const float x = wide(pack.items[j], brain);
        const float y = wide(pack.items[j + 1], brain);
        odd |= !(x <= y || x > y);
        most = fmaxf(most, fmaxf(x, y));
    }
    return most;
}

struct Largest {
    u32 key;
    bool odd;
};

// The same of a vector at an end of the row.
template <typename T>
__device__ __noinline__ Largest largest_there(const T* row, u32 length, u32 index, bool brain) {
    Largest most = {0, false};
#pragma unroll 1
    for (u32 i = index; i != index + Pack<T>::N; i++) {
        if (i >= length) continue;
        const float x = wide(row[i], brain);
        most.odd |= x != x;
        most.key = max(most.key, exact::sort_key(x));
    }
    return most;
}

// Of two neighbours among `count` values, a lane without the bit keeps the first, the
// other the second, each with the larger of its own and the other lane's.
template <u32 COUNT>
INLINE void halve(float (&values)[AHEAD], u32 bit) {
    const bool second = lane_id() & bit;
#pragma unroll
    for (u32 j = 0; j < COUNT / 2; j++) {
        const float given = second ? values[2 * j] : values[2 * j + 1];
        const float kept = second ? values[2 * j + 1] : values[2 * j];
        values[j] = fmaxf(kept, __shfl_xor_sync(ALL_LANES, given, bit));
    }
}

// Goes through a piece and leaves the largest key of each group, and the last tile; the
// least and the largest key that this thread saw. Returns whether a NaN was met.
template <typename T>
INLINE bool find_maxima(const Params& p, const GroupedPiece<T>& piece, Pack<T> (&packs)[AHEAD],
                        u32& least, u32& most) {
    Shared& s = shared();
    const u32 lowest = lowest_of(static_cast<const T*>(nullptr), p.brain);
    const u32 fold = piece.fold;
    const u32 own = piece.begin + threadIdx.x;
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) packs[a] = piece.load(own + a * THREADS, lowest);
    clear(s.bins[0], BINS);
    clear(score_bits(p), p.words);
    if (threadIdx.x == 0) {
        s.bound = 1;
        s.few_count = 0;
    }
    bool odd = false;
    least = ~0u;
    most = 0;
#pragma unroll 1
    for (u32 tile = piece.begin; tile < piece.end; tile += TILE) {
        const bool more = tile + TILE < piece.end;
        float best[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            best[a] = largest(packs[a], p.brain, odd);
            if (more) packs[a] = piece.load(tile + TILE + a * THREADS + threadIdx.x, lowest);
        }
        // Lanes of a group share its vectors out: each is left with some of them.
        halve<AHEAD>(best, 1);
        if (fold > 0) halve<AHEAD / 2>(best, 2);
        if (fold > 1) halve<AHEAD / 4>(best, 4);
        if (fold > 2) best[0] = fmaxf(best[0], __shfl_xor_sync(ALL_LANES, best[0], 8));
        if (fold > 3) best[0] = fmaxf(best[0], __shfl_xor_sync(ALL_LANES, best[0], 16));
        const u32 sharing = min(2u << fold, AHEAD);
        const u32 group_mask = (2u << fold) - 1;
#pragma unroll
        for (u32 j = 0; j < AHEAD / 2; j++) {
            if (j * sharing >= AHEAD) break;
            const u32 a = j * sharing + (lane_id() & (sharing - 1));
            const u32 v = tile + a * THREADS + (threadIdx.x & ~group_mask);
            if (v < piece.end) {
                const u32 key = exact::sort_key(best[j]);
                least = min(least, key);
                most = max(most, key);
                maxima()[(v - piece.begin) >> (fold + 1)] = key;
            }
        }
    }
    if (piece.has_edges()) {
        __syncthreads();
        const u32 v = threadIdx.x == 0 ? piece.begin : piece.end - 1;
        if (threadIdx.x < 2 && !piece.whole(v)) {
            const Largest edge = largest_there(piece.row, piece.length, piece.index(v), p.brain);
            odd |= edge.odd;
            most = max(most, edge.key);
            atomicMax(&maxima()[(v - piece.begin) >> (fold + 1)], edge.key);
        }
    }
    return odd;
}

// ---- the bound ----------------------------------------------------------------

// Stores a word in the shared memory of another block.
INLINE void tell(const Cluster& team, u32* here, u32 block, u32 word) {
    if (team.size == 1) {
        *here = word;
        return;
    }
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(static_cast<u32>(__cvta_generic_to_shared(here))), "r"(block));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(word) : "memory");
#endif
}

// How many keys a block tells the last of: k / team, twice as many, and so on to k.
INLINE u32 least_count(const Params& p, const Cluster& team, u32 spread) {
    return (p.k + team.size - 1) >> spread;
}

INLINE u32 count_of(const Params& p, u32 of_one, u32 level) { return min(of_one << level, p.k); }

// Tells each block which keys so many reach that this block has counted from `low` on. Of
// `all` that it has, those that are not counted reach `floor`.
INLINE void tell_reached(const Params& p, const Cluster& team, u32 spread, u32 low, u32 shift,
                         u32 all, u32 floor, u32& turn) {
    Shared& s = shared();
    const u32 of_one = least_count(p, team, spread);
    if (threadIdx.x <= spread) {
        // 0 stands for none.
        s.own_reached[threadIdx.x] = count_of(p, of_one, threadIdx.x) <= all ? floor : 0;
    }
    // There is a barrier before the first is found.
    search_bins(turn, of_one, p.k, [&](u32 bin, u32 before, u32 count) {
#pragma unroll 1
        for (u32 level = 0; level <= spread; level++) {
            const u32 needed = count_of(p, of_one, level);
            if (needed <= before || needed > before + count) continue;
            s.own_reached[level] = max(low + (bin << shift), 1u);
        }
    });
    __syncthreads();
    if (threadIdx.x < (spread + 1) << spread) {
        const u32 level = threadIdx.x >> spread;
        tell(team, &s.reached[level][team.rank], threadIdx.x & (team.size - 1),
             s.own_reached[level]);
    }
}

// The largest of the keys told that k reach, no less than s.bound. Clears the bins.
INLINE u32 common_bound(const Params& p, const Cluster& team, u32 spread) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 of_one = least_count(p, team, spread);
    u32 keys[LEVELS];
#pragma unroll
    for (u32 level = 0; level < LEVELS; level++) {
        keys[level] = level <= spread && lane < team.size ? s.reached[level][lane % MAX_CLUSTER] : 0;
    }
#pragma unroll 1
    for (u32 pair = threadIdx.x / WARP; pair < (spread + 1) << spread; pair += WARPS) {
        const u32 key = s.reached[pair >> spread][pair & (team.size - 1)];
        // The largest count of this lane's block of which the key is told.
        u32 has = 0;
#pragma unroll
        for (u32 level = 0; level < LEVELS; level++) {
            if (keys[level] >= key) has = count_of(p, of_one, level);
        }
        const u32 sum = __reduce_add_sync(ALL_LANES, key > 0 ? has : 0);
        if (lane == 0 && sum >= p.k) atomicMax(&s.bound, key);
    }
    clear(s.bins[0], BINS);
    __syncthreads();
    return s.bound;
}

// A key that k scores of the row reach, and hardly more if it can be.
INLINE u32 find_bound(const Params& p, const Cluster& team, u32 spread, u32 groups,
                      u32 least, u32 most, u32& turn) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 of_one = least_count(p, team, spread);
    // The range of keys to tell apart starts where most groups are above; what is below
    // it is not counted.
    if (groups >= 4 * of_one) {
#pragma unroll
        for (u32 step = 2; step < WARP; step *= 2) {
            least = max(least, __shfl_xor_sync(ALL_LANES, least, step));
        }
    }
    least = __reduce_min_sync(ALL_LANES, least);
    most = __reduce_max_sync(ALL_LANES, most);
    if (lane == 0) {
        s.lowest[warp] = least;
        s.highest[warp] = most;
    }
    __syncthreads();
    most = __reduce_max_sync(ALL_LANES, s.highest[lane % WARPS]);
    least = min(__reduce_min_sync(ALL_LANES, s.lowest[lane % WARPS]), most);
    const u32 shift = shift_of(most - least);
#pragma unroll 2
    for (u32 i = threadIdx.x; i < groups; i += THREADS) {
        const u32 key = maxima()[i];
        if (key >= least) atomicAdd(&s.bins[0][(key - least) >> shift], 1u);
    }
    __syncthreads();
    // All blocks of the team run by now.
    team.wait();
    if (threadIdx.x < team.size) tell(team, &s.largest[team.rank], threadIdx.x, most);
    // Key 1, which every score reaches, for those that are not counted.
    tell_reached(p, team, spread, least, shift, groups, 1, turn);
    team.sync();
    return common_bound(p, team, spread);
}

// ---- scores that reach it -------------------------------------------------------

// Lists the groups that are above the bound and, as long as those before have not k
// scores that equal it, at it; how many there are. Ends with a barrier.
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
    // What no number reaches stands for a bound below all of them.
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

// The scores of a piece of one tile.
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

// Those of groups that are listed.
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

// And those of vectors at the ends of the row. Begins and ends with a barrier.
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

// Lists marked scores in order, as far as there is room for all; how many there are.
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

// ---- the best of them -----------------------------------------------------------

// The k best of the scores that the blocks list, as s.counts tells, `total` in all. The
// others may end when this block has them.
INLINE void finish(const Params& p, const Cluster& team, u64 row, u32 bound, u32 through,
                   u32 of_lane, u32 total, u32& turn) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    // A warp has neighbours.
    const u32 per = (total + WARPS - 1) / WARPS;
    const u32 begin = min(warp * per, total);
    const u32 end = min(begin + per, total);
    u32* const keys = taken_keys();
    u32* const indices = taken_indices(p);
    // Every warp stores the same.
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

// ---- rows of which too many reach it ----------------------------------------------

// What a walk met, before a thread or in all.
struct Met {
    u32 above;
    u32 ties;
};

// Goes through the words that have a bit. each(key) for every larger one of their scores;
// put(word, larger, equal, before) for each of this thread: bits of the scores above the
// key and at it, and how many were met.
template <typename T, typename Each, typename Put>
INLINE Met walk(const Params& p, const GroupedPiece<T>& piece, u32 key, u32& turn, Each each, Put put) {
    constexpr u32 N = GroupedPiece<T>::N;
    constexpr u32 OF_WORD = GroupedPiece<T>::OF_WORD;
    Met met = {0, 0};
    const u32 all = (piece.size() + OF_WORD - 1) / OF_WORD;
#pragma unroll 1
    for (u32 base = 0; base < all; base += THREADS) {
        const u32 i = base + threadIdx.x;
        const u32 bits = i < all ? score_bits(p)[i] : 0;
        if (!__syncthreads_or(bits != 0)) continue;
        u32 larger = 0;
        u32 equal = 0;
        if (__any_sync(ALL_LANES, bits != 0)) {
            // Lanes read neighbours; the lane of a word then gathers its bits.
            const u32 lane = lane_id();
            const u32 first = piece.begin + (base + threadIdx.x - lane) * OF_WORD + lane;
            Pack<T> packs[OF_WORD];
#pragma unroll
            for (u32 a = 0; a < OF_WORD; a++) packs[a] = piece.load(first + a * WARP, 0);
#pragma unroll
            for (u32 a = 0; a < OF_WORD; a++) {
                const u32 v = first + a * WARP;
                const u32 low = lane % OF_WORD * N;
                const u32 of_word = __shfl_sync(ALL_LANES, bits, a * N + lane / OF_WORD);
                const u32 there = piece.whole(v) ? of_word >> low & GroupedPiece<T>::ALL : 0;
                u32 over = 0;
                u32 at = 0;
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    const u32 other = exact::sort_key(wide(packs[a].items[j], p.brain));
                    const u32 bit = there & 1u << j;
                    at |= other == key ? bit : 0;
                    if (other > key && bit != 0) {
                        over |= bit;
                        each(other);
                    }
                }
                over <<= low;
                at <<= low;
#pragma unroll
                for (u32 step = 1; step < OF_WORD; step *= 2) {
                    over |= __shfl_xor_sync(ALL_LANES, over, step);
                    at |= __shfl_xor_sync(ALL_LANES, at, step);
                }
                over = __shfl_sync(ALL_LANES, over, lane % N * OF_WORD);
                at = __shfl_sync(ALL_LANES, at, lane % N * OF_WORD);
                if (lane / N == a) {
                    larger = over;
                    equal = at;
                }
            }
            // Vectors at the ends of the row.
            u32 edges = 0;
            if (bits != 0 && piece.has_edges()) {
                const u32 own = piece.begin + i * OF_WORD;
#pragma unroll 1
                for (u32 a = 0; a < OF_WORD; a++) {
                    if (!piece.whole(own + a)) edges |= bits & GroupedPiece<T>::ALL << a * N;
                }
            }
#pragma unroll 1
            for (; edges != 0; edges &= edges - 1) {
                const u32 bit = __ffs(edges) - 1;
                const u32 index = piece.index(piece.begin + i * OF_WORD) + bit;
                const u32 other = exact::sort_key(wide(piece.row[index], p.brain));
                equal |= other == key ? 1u << bit : 0;
                if (other > key) {
                    larger |= 1u << bit;
                    each(other);
                }
            }
        }
        u32 total;
        const u32 before = thread_place(turn, __popc(larger) << 16 | __popc(equal), total);
        if (bits != 0) {
            put(i, larger, equal, Met{met.above + (before >> 16), met.ties + (before & 0xFFFF)});
        }
        met.above += total >> 16;
        met.ties += total & 0xFFFF;
    }
    return met;
}

enum class Outcome : u32 { FEW, CHOSEN, OPEN };

// Raises the bound until those that reach it are few, or chooses. Bits that are still set
// are theirs.
// Kept out of line: most rows never come here.
template <typename T>
__device__ __noinline__ Outcome narrow(const Params& p, const GroupedPiece<T> piece, u64 row,
                                       u32 turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 spread = 31 - __clz(team.size);
    const u32 lane = lane_id();
    if (__any_sync(ALL_LANES, lane < team.size && s.counts[lane] >= UNKNOWN)) return Outcome::OPEN;
    const u32 largest = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
    u32 bound = s.bound;
    u32 above;
    u32 of_lane;
#pragma unroll 1
    for (u32 raise = 0;; raise++) {
        const u32 shift = shift_of(largest - bound);
        const Met own = walk(
            p, piece, bound, turn,
            [&](u32 key) { atomicAdd(&s.bins[0][(key - bound) >> shift], 1u); },
            [&](u32 i, u32 larger, u32 equal, Met) { score_bits(p)[i] = larger | equal; });
        if (threadIdx.x == 0) atomicAdd(&s.bins[0][0], own.ties);
        __syncthreads();
        tell_reached(p, team, spread, bound, shift, own.above + own.ties, bound, turn);
        if (threadIdx.x < team.size) {
            tell(team, &s.above[team.rank], threadIdx.x, own.above);
            tell(team, &s.ties[team.rank], threadIdx.x, own.ties);
        }
        team.sync();
        of_lane = lane < team.size ? s.above[lane] : 0;
        above = __reduce_add_sync(ALL_LANES, of_lane);
        const u32 ties = __reduce_add_sync(ALL_LANES, lane < team.size ? s.ties[lane] : 0);
        if (above <= p.k) break;
        if (above + ties <= p.candidates) {
            clear(s.bins[0], BINS);
            __syncthreads();
            return Outcome::FEW;
        }
        const u32 next = common_bound(p, team, spread);
        if (raise == RAISES || next == bound) return Outcome::OPEN;
        bound = next;
        // Nobody reads what others told any more.
        team.sync();
    }
    const u32 stay = p.k - above;
    const u32 above_before = __reduce_add_sync(ALL_LANES, lane < team.rank ? of_lane : 0);
    const u32 ties_before = __reduce_add_sync(ALL_LANES, lane < team.rank ? s.ties[lane] : 0);
    walk(
        p, piece, bound, turn, [](u32) {}, [&](u32 i, u32 larger, u32 equal, Met before) {
            u32 g = above_before + before.above;
            u32 e = ties_before + before.ties;
            const u32 index = piece.index(piece.begin + i * GroupedPiece<T>::OF_WORD);
            for (u32 word = e < stay ? larger | equal : larger; word != 0; word &= word - 1) {
                const u32 bit = __ffs(word) - 1;
                const bool is_larger = larger >> bit & 1;
                if (is_larger || e < stay) {
                    p.indices.set(row, g + min(e, stay), static_cast<i32>(index + bit));
                }
                g += is_larger ? 1 : 0;
                e += is_larger ? 0 : 1;
            }
        });
    return Outcome::CHOSEN;
}

// ---- the row ------------------------------------------------------------------

template <typename T>
__device__ __noinline__ u32 select_otherwise(const Params& p, const T* scores, u64 row,
                                             u32 length) {
    return select_by_digits(p, Cluster(), scores, row, length);
}

// Returns flags.
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
    u32 most;
    u32 bits = find_maxima(p, piece, packs, least, most) ? NON_FINITE : 0;
    u32 turn = 0;
    u32 bound = find_bound(p, team, spread, piece.groups(), least, most, turn);
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
