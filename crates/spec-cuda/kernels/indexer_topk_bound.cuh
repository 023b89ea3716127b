// indexer_topk by groups, the first reading: a block's piece of a row, the largest key of each of its
// groups, and the bound that k scores of the row reach. indexer_topk_groups.cuh says why.
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
