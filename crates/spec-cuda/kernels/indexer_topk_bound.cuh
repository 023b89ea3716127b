// indexer_topk by a bound: a block's piece of the row, the tile of it that the block reads first,
// and the bound, a key that hopefully at least k scores of the row reach. A score reaches the bound
// if its key is not smaller. indexer_topk_listed.cuh has the design.
#pragma once

#include "indexer_topk_digits.cuh"

// Vectors of 16 bytes that a thread has in registers. A tile has those of all threads.
constexpr u32 AHEAD = 4;
// The key of -inf and of NaN, the smallest of all.
constexpr u32 LOWEST = 0x007FFFFFu;

// Arrays in dynamic shared memory: the listed vectors, and the number of each; the listed scores of
// this block, and the bit of each (apart from the scores, because other blocks read only the
// scores); a bit for each score of the piece. When the vectors and their numbers are no longer
// needed, the keys of the listed scores of all blocks take their place.
INLINE uint4* vectors() { return reinterpret_cast<uint4*>(words()); }
INLINE u32* taken() { return words(); }
INLINE u32* vector_numbers(const Params& p) { return words() + 4 * p.candidates; }
INLINE float* listed(const Params& p) {
    return reinterpret_cast<float*>(words() + 5 * p.candidates);
}
INLINE u32* listed_bits(const Params& p) { return words() + 6 * p.candidates; }
INLINE u32* score_bits(const Params& p) { return words() + 7 * p.candidates; }

// A block has 512 threads or 1024; the compiler does not know that this number is a power of two.
INLINE u32 warps() { return blockDim.x / WARP; }
INLINE u32 over_threads(u32 count) { return count >> (31 - __clz(blockDim.x)); }
INLINE u32 tile_vectors() { return AHEAD * blockDim.x; }

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
    for (u32 i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x) {
        *reinterpret_cast<uint4*>(from + i) = make_uint4(0, 0, 0, 0);
    }
}

// Searches the bins from the largest one down. `before` is the number of keys in the bins above a
// bin, and `count` the number of keys in this bin. Calls found(bin, before, count) for each bin
// that is not empty and has before < limit and before + count >= least.
template <typename Found>
INLINE void search_bins(u32& turn, u32 least, u32 limit, Found found) {
    constexpr u32 N = 4;
    const bool has_bins = threadIdx.x < BINS / N;
    const u32 top = has_bins ? BINS - N * (threadIdx.x + 1) : 0;
    const u32* const bins = shared().bins[0] + top;
    const uint4 four = *reinterpret_cast<const uint4*>(bins);
    const u32 own = has_bins ? four.x + four.y + four.z + four.w : 0;
    u32 total;
    u32 before = thread_place(turn, own, total);
    if (!has_bins || before >= limit || before + own < least) return;
#pragma unroll 1
    for (u32 j = N; j-- > 0;) {
        const u32 count = bins[j];
        if (count != 0 && before < limit && before + count >= least) found(top + j, before, count);
        before += count;
    }
}

// ---- a block's piece ----------------------------------------------------------

// The part of a row that a block reads, in vectors (see AlignedRow). A warp reads chunks of 32
// neighbouring vectors. The piece is cut into AHEAD * warps() runs of `tiles` neighbouring chunks: each
// warp has AHEAD of these runs, which it reads side by side. Tile t of the block has chunk t of every
// run, so that a tile is spread evenly over the piece.
template <typename T>
struct SlottedPiece : AlignedRow<T> {
    using Row = AlignedRow<T>;
    using Row::index;
    using Row::lead;
    using Row::length;
    using Row::row;
    static constexpr u32 N = Row::N;
    // Vectors whose entries have one word of bits together.
    static constexpr u32 OF_WORD = 32 / N;

    // Vector 0.
    const uint4* vectors_from;
    // A word of scores that are -inf, in place of those that are not in the row.
    u32 lowest;
    u32 tiles;
    // The vectors of the piece.
    u32 begin;
    u32 end;
    // Those vectors of the piece whose entries are all in the row.
    u32 whole_begin;
    u32 whole_count;

    // The team has 1 << spread blocks.
    INLINE SlottedPiece(const T* from, u32 count, u32 lowest, const Cluster& team, u32 spread)
        : Row(from, count),
          vectors_from(reinterpret_cast<const uint4*>(from - lead)),
          lowest(lowest) {
        const u32 vectors = Row::vectors();
        const u32 chunks = (vectors + WARP - 1) / WARP;
        tiles = over_threads(((chunks - 1) >> spread) * (WARP / AHEAD)) + 1;
        begin = WARP * (chunks * team.rank >> spread);
        end = min(WARP * (chunks * (team.rank + 1) >> spread), vectors);
        whole_begin = max(begin, lead > 0 ? 1 : 0);
        whole_count =
            max(min(end, static_cast<u32>(Row::through() / N)), whole_begin) - whole_begin;
    }

    INLINE bool whole(u32 v) const { return v - whole_begin < whole_count; }

    // The bit of the first entry of a vector.
    INLINE u32 bit(u32 v) const { return (v - begin) * N; }

    // Vector `a` of this thread in a tile.
    INLINE u32 vector(u32 tile, u32 a) const {
        return begin + WARP * ((a * warps() + threadIdx.x / WARP) * tiles + tile) + lane_id();
    }

    // Loads a vector that is among the first `count` whole vectors. The entries of others are -inf
    // instead: the vectors at the ends of a row are read separately.
    INLINE Pack<T> load_of(u32 count, u32 v) const {
        Pack<T> pack;
        pack.raw = make_uint4(lowest, lowest, lowest, lowest);
        if (v - whole_begin < count) pack.raw = __ldg(vectors_from + v);
        return pack;
    }

    INLINE Pack<T> load(u32 v) const { return load_of(whole_count, v); }

    INLINE void load_tile(Pack<T> (&packs)[AHEAD]) const {
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) packs[a] = load(vector(0, a));
    }

    // Calls visit(pack, vector) for all vectors of the piece. `packs` has the first tile.
    template <typename Visit>
    INLINE void each(Pack<T> (&packs)[AHEAD], Visit visit) const {
        const u32 stride = blockDim.x * tiles;
        u32 first = vector(0, 0);
#pragma unroll 1
        for (u32 t = 1; t <= tiles; t++) {
            const u32 count = t < tiles ? whole_count : 0;
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                const Pack<T> pack = packs[a];
                const u32 v = first + a * stride;
                packs[a] = load_of(count, v + WARP);
                visit(pack, v);
            }
            first += WARP;
        }
    }

    // Calls visit(entry, bit) for the entries of vector v that are in the row.
    template <typename Visit>
    INLINE void entries(u32 v, bool brain, Visit visit) const {
#pragma unroll 1
        for (u32 j = 0; j < N; j++) {
            const u32 i = index(v) + j;
            if (i < length) visit(wide(row[i], brain), bit(v) + j);
        }
    }

    // Calls visit(entry, bit) for those entries of the row that lie in a vector at an end of the
    // piece of which a part is outside the row.
    template <typename Visit>
    INLINE void edges(bool brain, Visit visit) const {
        if (threadIdx.x > 1 || begin + threadIdx.x >= end) return;
        const u32 v = threadIdx.x == 0 ? begin : end - 1;
        if (!whole(v)) entries(v, brain, visit);
    }
};

// A word of scores that are -inf.
INLINE u32 lowest_of(const float*, bool) { return 0xFF800000u; }
INLINE u32 lowest_of(const Half*, bool brain) { return brain ? 0xFF80FF80u : 0xFC00FC00u; }

// The larger of two numbers. If one of them is a NaN, the result is NaN with OR_NAN, and else the
// other one.
template <bool OR_NAN>
INLINE float larger(float x, float y) {
    if (!OR_NAN) return fmaxf(x, y);
    float either;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(either) : "f"(x), "f"(y));
    return either;
}

// The larger ones of two pairs of scores of 16 bits.
template <bool OR_NAN>
INLINE u32 larger_pair(u32 x, u32 y, bool brain) {
    u32 pair;
    if (brain) {
        if (OR_NAN) {
            asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
        } else {
            asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
        }
    } else {
        if (OR_NAN) {
            asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
        } else {
            asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
        }
    }
    return pair;
}

// The largest entry of a vector. If an entry is a NaN, the result is NaN with OR_NAN, and else the
// largest number, or NaN if there is none.
template <bool OR_NAN>
INLINE float largest(const Pack<float>& pack, bool) {
    return larger<OR_NAN>(larger<OR_NAN>(pack.items[0], pack.items[1]),
                          larger<OR_NAN>(pack.items[2], pack.items[3]));
}

template <bool OR_NAN>
INLINE float largest(const Pack<Half>& pack, bool brain) {
    const u32 first = larger_pair<OR_NAN>(pack.raw.x, pack.raw.y, brain);
    const u32 second = larger_pair<OR_NAN>(pack.raw.z, pack.raw.w, brain);
    const u32 pair = larger_pair<OR_NAN>(first, second, brain);
    return larger<OR_NAN>(Half::wide(static_cast<u16>(pair), brain),
                          Half::wide(static_cast<u16>(pair >> 16), brain));
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

// Arrives at the barrier of the team without ordering memory. Says that this block has started, or
// that it no longer reads the memory of other blocks.
INLINE void arrive_unordered(const Cluster& team) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (team.size > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// A barrier of the team, after the first LEVELS * MAX_CLUSTER threads of each block at most have
// told the others something. Only the warps of these threads wait until their stores have arrived;
// a barrier of the block came between the stores of other warps and what was told.
INLINE void sync_told(const Cluster& team) {
    if (team.size == 1) {
        __syncthreads();
        return;
    }
    if (threadIdx.x / WARP * WARP < LEVELS * MAX_CLUSTER) {
        team.arrive();
    } else {
        arrive_unordered(team);
    }
    team.wait();
}

// What a block asks of the tile that it has in registers.
struct Sample {
    // The bound is a key that so many maxima of groups of all tiles reach.
    u32 rank;
    // Whether each vector is a group; else all vectors of a thread are one group.
    bool fine;
    // Whether there are enough groups.
    bool suits;

    template <typename T>
    INLINE Sample(const SlottedPiece<T>& piece, u32 spread, u32 rank) : rank(rank) {
        const u32 vectors = piece.vectors() / piece.tiles;
        fine = 2 * rank > min(vectors, blockDim.x << spread);
        suits = 4 * rank <= 3 * min(vectors, tile_vectors() << spread);
    }
};

// The first rank. If the tiles have the whole row, at least k scores reach the bound. Otherwise,
// about (rank * tiles) scores reach it. These are fewer than k only if the tiles have `rank` of the
// k best scores. By chance the tiles have `mean` of these, and the rank is at least 4.4 standard
// deviations more than that. A larger rank would make the lists longer.
INLINE u32 first_rank(u32 k, u32 tiles) {
    const u32 mean = k / tiles;
    return tiles == 1 ? k : mean + mean / 8 + 40;
}

// A block tells the others, for several counts, the largest key that so many of its own keys reach.
// The count of level 0 is rank / (blocks of the team), rounded up. It doubles with each level, up
// to `rank`.
INLINE u32 least_count(u32 rank, const Cluster& team, u32 spread) {
    return (rank + team.size - 1) >> spread;
}

INLINE u32 count_of(u32 rank, u32 of_one, u32 level) { return min(of_one << level, rank); }

// Tells each block of the team, for each level, the largest key that as many keys of this block
// reach as the level counts. The bins have counts of this block's keys, from key `low` on. The
// block has `all` keys in total, and those that are in no bin reach `floor`.
INLINE void tell_reached(u32 rank, const Cluster& team, u32 spread, u32 low, u32 shift, u32 all,
                         u32 floor, u32& turn) {
    Shared& s = shared();
    const u32 of_one = least_count(rank, team, spread);
    if (threadIdx.x <= spread) {
        // 0 stands for: this block does not have so many keys.
        s.own_reached[threadIdx.x] = count_of(rank, of_one, threadIdx.x) <= all ? floor : 0;
    }
    // search_bins passes a barrier before it calls back, so these stores come after the one above.
    search_bins(turn, of_one, rank, [&](u32 bin, u32 before, u32 count) {
#pragma unroll 1
        for (u32 level = 0; level <= spread; level++) {
            const u32 needed = count_of(rank, of_one, level);
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

// The new bound: the largest of the told keys that `rank` keys of the team reach, and not less than
// the bound so far, s.bound. The result is the key of a number or of an infinity. Clears the bins.
INLINE u32 common_bound(u32 rank, const Cluster& team, u32 spread) {
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 of_one = least_count(rank, team, spread);
    u32 keys[LEVELS];
#pragma unroll
    for (u32 level = 0; level < LEVELS; level++) {
        keys[level] =
            level <= spread && lane < team.size ? s.reached[level][lane % MAX_CLUSTER] : 0;
    }
#pragma unroll 1
    for (u32 pair = threadIdx.x / WARP; pair < (spread + 1) << spread; pair += warps()) {
        const u32 key = s.reached[pair >> spread][pair & (team.size - 1)];
        // Lane i asks how many keys of block i are known to reach `key`.
        u32 has = 0;
#pragma unroll
        for (u32 level = 0; level < LEVELS; level++) {
            if (keys[level] >= key) has = count_of(rank, of_one, level);
        }
        const u32 sum = __reduce_add_sync(ALL_LANES, key > 0 ? has : 0);
        if (lane == 0 && sum >= rank) atomicMax(&s.bound, key);
    }
    clear(s.bins[0], BINS);
    __syncthreads();
    // No score has the key of -0, so the key of 0 is as good.
    return exact::sort_key(exact::value_of_key(max(s.bound, LOWEST)));
}

// The bound that the tiles of all blocks give.
template <typename T>
INLINE u32 find_bound(const Params& p, const Cluster& team, u32 spread, const Sample& sample,
                      const Pack<T> (&packs)[AHEAD], u32& turn) {
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    float best[AHEAD];
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) best[a] = largest<false>(packs[a], p.brain);
    const float max_entry = fmaxf(fmaxf(best[0], best[1]), fmaxf(best[2], best[3]));
    if (!sample.fine) best[0] = max_entry;
    const u32 of_thread = sample.fine ? AHEAD : 1;
    u32 max_key = exact::sort_key(max_entry);
    u32 least = exact::sort_key(sample.fine ? fminf(fminf(best[0], best[1]),
                                                    fminf(best[2], best[3]))
                                            : max_entry);
    // With many groups, the range that the bins divide starts at a key that most maxima are above,
    // so that bins are narrower. Maxima below this key are not counted.
    if (of_thread * blockDim.x >= 2 * least_count(sample.rank, team, spread)) {
#pragma unroll
        for (u32 step = 8; step < WARP; step *= 2) {
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
    const u32 of_lane = lane & (warps() - 1);
    max_key = __reduce_max_sync(ALL_LANES, s.highest[of_lane]);
    least = min(__reduce_min_sync(ALL_LANES, s.lowest[of_lane]), max_key);
    const u32 shift = shift_of(max_key - least);
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        if (a >= of_thread) break;
        const u32 key = exact::sort_key(best[a]);
        if (key >= least) atomicAdd(&s.bins[0][(key - least) >> shift], 1u);
    }
    __syncthreads();
    // A block must not write to the shared memory of a block that has not started.
    team.wait();
    // Maxima that are in no bin reach key 1, because every score does.
    tell_reached(sample.rank, team, spread, least, shift, of_thread * blockDim.x, 1, turn);
    sync_told(team);
    return common_bound(sample.rank, team, spread);
}
