// indexer_topk by groups, the first time that a row is read: a block's piece of the row, the
// largest key of each group of the piece (its maximum), and the bound, a key that at least k scores
// of the row reach. A score reaches the bound if its key is not smaller. indexer_topk_groups.cuh
// has the design.
#pragma once

#include "indexer_topk_digits.cuh"

constexpr u32 THREADS = 512;
// Vectors that a thread loads ahead, 64 KB for a block. A tile has those of all threads.
constexpr u32 AHEAD = 8;
constexpr u32 TILE = AHEAD * THREADS;
// Vectors of a cache line of 128 bytes. Pieces begin at a line.
constexpr u32 LINE = 8;
// A row should have GROUPS_OF_ONE groups for each of its k scores, and at least LEAST_GROUPS. To
// reach these numbers, a group may shrink to a single pair of vectors. Groups are not used for a
// row that has fewer than ENOUGH_OF_ONE groups for each of its k scores.
constexpr u32 GROUPS_OF_ONE = 4;
constexpr u32 LEAST_GROUPS = 8192;
constexpr u32 ENOUGH_OF_ONE = 2;
// A group has 1 << fold pairs of vectors: at most a line, or, if shared memory does not hold the
// maxima of so many groups, at most one vector for each lane of a warp.
constexpr u32 LINE_FOLD = 2;
constexpr u32 MAX_FOLD = 4;
// How often `narrow` raises the bound, and the count of a block that has not listed its scores.
constexpr u32 RAISES = 3;
constexpr u32 UNKNOWN = 1u << 24;
// Pairs of vectors that a thread loads at once when groups are read again, and scores that a lane
// of the first block loads at once from other blocks.
constexpr u32 AGAIN = 4;
constexpr u32 TAKEN = 6;

// Arrays in dynamic shared memory: the maximum of each group, a bit for each score, and the groups
// that are read again.
INLINE u32* maxima() { return words(); }
INLINE u32* score_bits(const Params& p) { return words() + p.groups; }
INLINE u16* listed(const Params& p) {
    return reinterpret_cast<u16*>(words() + p.groups + p.words);
}
// At the end, the first block collects the keys and indices of all blocks in the same memory.
INLINE u32* taken_keys() { return words(); }
INLINE u32* taken_indices(const Params& p) { return words() + p.candidates; }
// The scores of this piece that reach the bound: the index and the key of each.
INLINE uint2* candidates(const Params& p) {
    const u32 before = max(p.groups + p.words + p.listed / 2, 2 * p.candidates);
    return reinterpret_cast<uint2*>(words() + before);
}

// The sum of `own` over the threads before this one. `total` is the sum over the block.
INLINE u32 thread_place(u32& turn, u32 own, u32& total) {
    const u32 through = warp_inclusive_sum(own);
    const u32 all = __shfl_sync(ALL_LANES, through, WARP - 1);
    return warp_place(turn, all, total) + through - own;
}

// ---- counting keys of a range in bins ------------------------------------------

// The smallest shift for which range >> shift is less than BINS.
INLINE u32 shift_of(u32 range) {
    const u32 bits = 32 - __clz(range);
    return bits > 11 ? bits - 11 : 0;
}

// Sets `count` words to 0, a multiple of 4.
INLINE void clear(u32* from, u32 count) {
    for (u32 i = 4 * threadIdx.x; i < count; i += 4 * THREADS) {
        *reinterpret_cast<uint4*>(from + i) = make_uint4(0, 0, 0, 0);
    }
}

// Searches the bins from the largest one down. `before` is the number of keys in the bins above a
// bin, and `count` the number of keys in this bin. Calls found(bin, before, count) for each bin
// that is not empty and has before < limit and before + count >= least.
template <typename Found>
INLINE void search_bins(u32& turn, u32 least, u32 limit, Found found) {
    constexpr u32 N = BINS / THREADS;
    const u32 top = BINS - N * (threadIdx.x + 1);
    const u32* const bins = shared().bins[0] + top;
    u32 own = 0;
#pragma unroll
    for (u32 j = 0; j < N; j++) own += bins[j];
    u32 total;
    u32 before = thread_place(turn, own, total);
    if (before >= limit || before + own < least) return;
#pragma unroll 1
    for (u32 j = N; j-- > 0;) {
        const u32 count = bins[j];
        if (count != 0 && before < limit && before + count >= least) found(top + j, before, count);
        before += count;
    }
}

// ---- a block's piece ----------------------------------------------------------

// The part of a row that a block reads, in vectors of 16 bytes (see AlignedRow).
template <typename T>
struct GroupedPiece : AlignedRow<T> {
    using Row = AlignedRow<T>;
    using Row::index;
    using Row::lead;
    using Row::length;
    using Row::row;
    static constexpr u32 N = Row::N;
    static constexpr u32 ALL = (1u << N) - 1;
    // Vectors whose entries have one word of bits together.
    static constexpr u32 OF_WORD = 32 / N;

    // A group has 1 << fold pairs of vectors.
    u32 fold;
    // Whether the row has enough groups.
    bool suits;
    // The vectors of the piece.
    u32 begin;
    u32 end;
    // Those vectors of the piece whose entries are all in the row.
    u32 whole_begin;
    u32 whole_count;

    // The team has 1 << spread blocks.
    INLINE GroupedPiece(const Params& p, const T* from, u32 count, const Cluster& team, u32 spread)
        : Row(from, count) {
        const u32 vectors = Row::vectors();
        const u32 lines = (vectors + LINE - 1) / LINE;
        const u32 max_vectors = LINE * (((lines - 1) >> spread) + 1);
        const u32 wanted = max(GROUPS_OF_ONE * p.k, LEAST_GROUPS);
        fold = 0;
        while (fold < LINE_FOLD && vectors >> (fold + 2) >= wanted) fold++;
        while (fold < MAX_FOLD && ((max_vectors - 1) >> (fold + 1)) >= p.groups) fold++;
        suits = ((max_vectors - 1) >> (fold + 1)) < p.groups &&
                vectors >> (fold + 1) >= ENOUGH_OF_ONE * p.k;
        begin = LINE * (lines * team.rank >> spread);
        end = min(LINE * (lines * (team.rank + 1) >> spread), vectors);
        whole_begin = max(begin, lead > 0 ? 1 : 0);
        whole_count =
            max(min(end, static_cast<u32>(Row::through() / N)), whole_begin) - whole_begin;
    }

    INLINE u32 size() const { return end - begin; }
    INLINE bool whole(u32 v) const { return v - whole_begin < whole_count; }
    INLINE bool has_edges() const { return whole_count < size(); }

    INLINE u32 groups() const { return (size() + (2u << fold) - 1) >> (fold + 1); }

    INLINE const T* at(u32 v) const { return row + (static_cast<i64>(v) * N - lead); }

    // Loads a vector. If not all of its entries are in the row, all bits come from `lowest`
    // instead, because the vectors at the ends of a row are read separately.
    INLINE Pack<T> load(u32 v, u32 lowest) const {
        Pack<T> pack;
        pack.raw = make_uint4(lowest, lowest, lowest, lowest);
        if (whole(v)) pack = load_pack(at(v));
        return pack;
    }
};

// A word of scores that are -inf.
INLINE u32 lowest_of(const float*, bool) { return 0xFF800000u; }
INLINE u32 lowest_of(const Half*, bool brain) { return brain ? 0xFF80FF80u : 0xFC00FC00u; }

// The largest entry of a vector. A NaN counts as less than any number and sets `odd`.
template <typename T>
INLINE float largest(const Pack<T>& pack, bool brain, bool& odd) {
    float max_entry = wide(pack.items[0], brain);
#pragma unroll
    for (u32 j = 0; j < Pack<T>::N; j += 2) {
        const float x = wide(pack.items[j], brain);
        const float y = wide(pack.items[j + 1], brain);
        odd |= !(x <= y || x > y);
        max_entry = fmaxf(max_entry, fmaxf(x, y));
    }
    return max_entry;
}

// The largest key of some scores, and whether one of them is a NaN.
struct Largest {
    u32 key;
    bool odd;
};

// The largest key of a vector at an end of the row. Skips entries that are not in the row.
template <typename T>
__device__ __noinline__ Largest largest_there(const T* row, u32 length, u32 index, bool brain) {
    Largest largest = {0, false};
#pragma unroll 1
    for (u32 i = index; i != index + Pack<T>::N; i++) {
        if (i >= length) continue;
        const float x = wide(row[i], brain);
        largest.odd |= x != x;
        largest.key = max(largest.key, exact::sort_key(x));
    }
    return largest;
}

// Two lanes whose numbers differ in `bit` divide their COUNT values: of each two neighbouring
// values, the lane without the bit keeps the first and the other lane the second. A value that a
// lane keeps becomes the larger of its own and the other lane's value.
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

// Reads a piece. Leaves the maximum of each group in `maxima`, the last tile in `packs`, and the
// least and the largest maximum that this thread computed. Returns whether this thread met a NaN.
template <typename T>
INLINE bool find_maxima(const Params& p, const GroupedPiece<T>& piece, Pack<T> (&packs)[AHEAD],
                        u32& least, u32& max_key) {
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
    max_key = 0;
#pragma unroll 1
    for (u32 tile = piece.begin; tile < piece.end; tile += TILE) {
        const bool more = tile + TILE < piece.end;
        float best[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            best[a] = largest(packs[a], p.brain, odd);
            if (more) packs[a] = piece.load(tile + TILE + a * THREADS + threadIdx.x, lowest);
        }
        // Neighbouring lanes have vectors of the same groups. They divide these groups: each lane
        // ends with the maxima of some of them.
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
                max_key = max(max_key, key);
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
            max_key = max(max_key, edge.key);
            atomicMax(&maxima()[(v - piece.begin) >> (fold + 1)], edge.key);
        }
    }
    return odd;
}

// ---- the bound ----------------------------------------------------------------

// Stores `word` in the shared memory of block `block`, in the variable that is at `here` in this
// block.
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

// A block tells the others, for several counts, the largest key that so many of its own keys reach.
// The count of level 0 is k / (blocks of the team), rounded up. It doubles with each level, up to
// k.
INLINE u32 least_count(const Params& p, const Cluster& team, u32 spread) {
    return (p.k + team.size - 1) >> spread;
}

INLINE u32 count_of(const Params& p, u32 of_one, u32 level) { return min(of_one << level, p.k); }

// Tells each block of the team, for each level, the largest key that as many keys of this block
// reach as the level counts. The bins have counts of this block's keys, from key `low` on. The
// block has `all` keys in total, and those that are in no bin reach `floor`.
INLINE void tell_reached(const Params& p, const Cluster& team, u32 spread, u32 low, u32 shift,
                         u32 all, u32 floor, u32& turn) {
    Shared& s = shared();
    const u32 of_one = least_count(p, team, spread);
    if (threadIdx.x <= spread) {
        // 0 stands for: this block does not have so many keys.
        s.own_reached[threadIdx.x] = count_of(p, of_one, threadIdx.x) <= all ? floor : 0;
    }
    // search_bins passes a barrier before it calls back, so these stores come after the one above.
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

// The new bound: the largest of the told keys that k keys of the team reach, and not less than the
// bound so far, s.bound. Clears the bins.
INLINE u32 common_bound(const Params& p, const Cluster& team, u32 spread) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 of_one = least_count(p, team, spread);
    u32 keys[LEVELS];
#pragma unroll
    for (u32 level = 0; level < LEVELS; level++) {
        keys[level] =
            level <= spread && lane < team.size ? s.reached[level][lane % MAX_CLUSTER] : 0;
    }
#pragma unroll 1
    for (u32 pair = threadIdx.x / WARP; pair < (spread + 1) << spread; pair += WARPS) {
        const u32 key = s.reached[pair >> spread][pair & (team.size - 1)];
        // Lane i asks how many keys of block i are known to reach `key`.
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

// A key that at least k scores of the row reach, and few more than k if the data permit it.
// `groups` is the number of this block's groups.
INLINE u32 find_bound(const Params& p, const Cluster& team, u32 spread, u32 groups,
                      u32 least, u32 max_key, u32& turn) {
    constexpr u32 WARPS = THREADS / WARP;
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 of_one = least_count(p, team, spread);
    // With many groups, the range that the bins divide starts at a key that most maxima are above,
    // so that bins are narrower. Maxima below this key are not counted.
    if (groups >= 4 * of_one) {
#pragma unroll
        for (u32 step = 2; step < WARP; step *= 2) {
            least = max(least, __shfl_xor_sync(ALL_LANES, least, step));
        }
    }
    least = __reduce_min_sync(ALL_LANES, least);
    max_key = __reduce_max_sync(ALL_LANES, max_key);
    if (lane == 0) {
        s.lowest[warp] = least;
        s.highest[warp] = max_key;
    }
    __syncthreads();
    max_key = __reduce_max_sync(ALL_LANES, s.highest[lane % WARPS]);
    least = min(__reduce_min_sync(ALL_LANES, s.lowest[lane % WARPS]), max_key);
    const u32 shift = shift_of(max_key - least);
#pragma unroll 2
    for (u32 i = threadIdx.x; i < groups; i += THREADS) {
        const u32 key = maxima()[i];
        if (key >= least) atomicAdd(&s.bins[0][(key - least) >> shift], 1u);
    }
    __syncthreads();
    // A block must not write to the shared memory of a block that has not started.
    team.wait();
    if (threadIdx.x < team.size) tell(team, &s.largest[team.rank], threadIdx.x, max_key);
    // Maxima that are in no bin reach key 1, because every score does.
    tell_reached(p, team, spread, least, shift, groups, 1, turn);
    team.sync();
    return common_bound(p, team, spread);
}
