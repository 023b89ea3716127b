// indexer_topk by a bound: the bound, a key that probably all those of the row's k best scores
// reach that are in the piece of a block. A score reaches a key if its own key is not smaller.
// indexer_topk_bounded_select.cuh describes the design.
#pragma once

#include "indexer_topk_piece.cuh"

// The number of bounds that the team may guess, and how often each guess may be raised.
constexpr u32 GUESSES = 2;
constexpr u32 RAISES = 2;

// ---- the bound ----------------------------------------------------------------

// Stores `word` in the shared memory of block `block`, in the variable whose address in this block
// is `here`.
INLINE void publish(const Cluster& team, u32* here, u32 block, u32 word) {
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

// A barrier of the team that makes what all threads have stored in the shared memory of their own
// block visible to the other blocks.
INLINE void sync_shared(const Cluster& team) {
    if (team.size == 1) {
        __syncthreads();
        return;
    }
    Senders().arrive_prepared();
    team.wait();
}

// Arrives at the barrier of the team without ordering memory: signals that this block has started,
// or that it no longer reads the memory of other blocks.
INLINE void arrive_unordered(const Cluster& team) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (team.size > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// A barrier of the team after the first LEVELS * MAX_CLUSTER threads of each block, at most, have
// published words. Only the warps of these threads wait until their stores are visible; a barrier
// of the block must lie between the stores of other warps and the publication.
INLINE void sync_published(const Cluster& team) {
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

// The number of maxima that determine a bound, from the first tiles of a team or of a block.
struct Sample {
    // The bound is a key that `rank` maxima of groups reach.
    u32 rank;
    // Whether each vector is a group; otherwise OF_GROUP vectors of a thread are one group.
    bool fine;
    // Whether there are enough groups.
    bool suits;

    // The tiles contain `vectors` vectors of the row, and have room for `room` vectors.
    INLINE Sample(u32 vectors, u32 room, u32 rank) : rank(rank) {
        fine = 2 * rank > min(vectors, room / OF_GROUP);
        suits = 4 * rank <= 3 * min(vectors, room);
    }

    template <typename T>
    INLINE static Sample of_team(const SlottedPiece<T>& piece, u32 spread, u32 rank) {
        return Sample(piece.vectors() / piece.tiles, tile_vectors<T>() << spread, rank);
    }

    template <typename T>
    INLINE static Sample of_block(const SlottedPiece<T>& piece, u32 spread, u32 rank) {
        return Sample((piece.vectors() / piece.tiles) >> spread, tile_vectors<T>(), rank);
    }
};

// The first rank of a sample that is one of `parts` equal parts of the row. If the sample is the
// whole row, at least k scores reach the bound. Otherwise about rank * parts scores of the row
// reach it; fewer than k do only if the sample contains at least `rank` of the k best scores. The
// expected number is `mean`, and the rank exceeds it by at least 4.4 standard deviations. A larger
// rank would make the lists longer.
INLINE u32 first_rank(u32 k, u32 parts) {
    const u32 mean = k / parts;
    return parts == 1 ? k : mean + mean / 8 + 40;
}

// The sample of a block's own tile. Its rank is larger than the first rank, so that most rows whose
// scores grow or fall by one standard deviation along the row need no second bound.
template <typename T>
INLINE Sample own_sample(const SlottedPiece<T>& piece, u32 k, u32 spread) {
    const u32 parts = piece.tiles << spread;
    const Sample first = Sample::of_block(piece, spread, first_rank(k, parts));
    const Sample more = Sample::of_block(piece, spread, first.rank + k / parts * 5 / 8);
    return spread > 0 && more.suits && more.fine == first.fine ? more : first;
}

// A block publishes, for several counts, the largest key that this number of its own keys reach.
// The count of level 0 is rank / (blocks of the team), rounded up. It doubles with each level, up
// to `rank`.
INLINE u32 least_count(u32 rank, const Cluster& team, u32 spread) {
    return (rank + team.size - 1) >> spread;
}

INLINE u32 count_of(u32 rank, u32 of_one, u32 level) { return min(of_one << level, rank); }

// Publishes to each block of the team, for each level, the largest key that as many keys of this
// block reach as the level counts. The bins have counts of this block's keys, from key `low` on.
// The block has `all` keys in total; those that are in no bin reach `floor`.
INLINE void publish_reached(u32 rank, const Cluster& team, u32 spread, u32 low, u32 shift, u32 all,
                         u32 floor, u32& turn) {
    Shared& s = shared();
    const u32 of_one = least_count(rank, team, spread);
    if (threadIdx.x <= spread) {
        // 0 means that this block has fewer keys than the level counts.
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
        publish(team, &s.reached[level][team.rank], threadIdx.x & (team.size - 1),
             s.own_reached[level]);
    }
}

// Ends the search for a bound, which is in s.bound: clears the bins, and returns the key of a
// number or of an infinity.
INLINE u32 found_bound() {
    clear(shared().bins[0], BINS);
    __syncthreads();
    // No score has the key of -0, so the key of 0 is equivalent.
    return exact::sort_key(exact::value_of_key(max(shared().bound, LOWEST)));
}

// The new bound: the largest of the published keys that `rank` keys of the team reach, but not less
// than the previous bound in s.bound. The result is the key of a number or of an infinity. Clears
// the bins.
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
        // Lane i determines how many keys of block i surely reach `key`.
        u32 has = 0;
#pragma unroll
        for (u32 level = 0; level < LEVELS; level++) {
            if (keys[level] >= key) has = count_of(rank, of_one, level);
        }
        const u32 sum = __reduce_add_sync(ALL_LANES, key > 0 ? has : 0);
        if (lane == 0 && sum >= rank) atomicMax(&s.bound, key);
    }
    return found_bound();
}

// The histogram of a block's maxima: bin 0 begins at key `low`.
struct Maxima {
    u32 low;
    u32 shift;
    // The number of maxima, including those below bin 0.
    u32 all;
};

// Counts the maxima of the groups of this block's tile in bins. Maxima that are in no bin are below
// the first bin; at most half of the maxima are, and none are if there are fewer than 2 * `wanted`
// maxima.
template <typename T>
INLINE Maxima count_maxima(const Params& p, const Tile<T>& packs, bool fine, u32 wanted) {
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    float best[AHEAD<T>];
#pragma unroll
    for (u32 a = 0; a < AHEAD<T>; a++) best[a] = largest(packs[a], p.brain);
    if (!fine) {
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) {
            if (a % OF_GROUP != 0) best[a / OF_GROUP] = fmaxf(best[a / OF_GROUP], best[a]);
            else best[a / OF_GROUP] = best[a];
        }
    }
    const u32 of_thread = fine ? AHEAD<T> : AHEAD<T> / OF_GROUP;
    float max_entry = best[0];
    float min_entry = best[0];
#pragma unroll
    for (u32 a = 1; a < AHEAD<T>; a++) {
        if (a >= of_thread) break;
        max_entry = fmaxf(max_entry, best[a]);
        min_entry = fminf(min_entry, best[a]);
    }
    u32 max_key = exact::sort_key(max_entry);
    u32 min_key = exact::sort_key(min_entry);
    // With many groups, the range of the bins begins at a key that most maxima reach, so that bins
    // are narrower. Maxima below this key are not counted.
    if (of_thread * blockDim.x >= 2 * wanted) {
#pragma unroll
        for (u32 step = 8; step < WARP; step *= 2) {
            min_key = max(min_key, __shfl_xor_sync(ALL_LANES, min_key, step));
        }
    }
    min_key = __reduce_min_sync(ALL_LANES, min_key);
    max_key = __reduce_max_sync(ALL_LANES, max_key);
    if (lane == 0) {
        s.lowest[warp] = min_key;
        s.highest[warp] = max_key;
    }
    __syncthreads();
    const u32 of_lane = lane & (warps() - 1);
    max_key = __reduce_max_sync(ALL_LANES, s.highest[of_lane]);
    min_key = min(__reduce_min_sync(ALL_LANES, s.lowest[of_lane]), max_key);
    const u32 shift = shift_of(max_key - min_key);
#pragma unroll
    for (u32 a = 0; a < AHEAD<T>; a++) {
        if (a >= of_thread) break;
        const u32 key = exact::sort_key(best[a]);
        if (key >= min_key) atomicAdd(&s.bins[0][(key - min_key) >> shift], 1u);
    }
    __syncthreads();
    return {min_key, shift, of_thread * blockDim.x};
}

// The bound from this block's own tile, without an exchange with other blocks.
template <typename T>
INLINE u32 own_bound(const Params& p, const Sample& sample, const Tile<T>& packs,
                     u32& turn) {
    const Maxima maxima = count_maxima(p, packs, sample.fine, sample.rank);
    search_bins(turn, sample.rank, sample.rank, [&](u32 bin, u32, u32) {
        shared().bound = maxima.low + (bin << maxima.shift);
    });
    __syncthreads();
    return found_bound();
}

// Empties this block's list of scores. No other block may still read the list, and a barrier of the
// block must follow.
INLINE void clear_list() {
    if (threadIdx.x == 0) shared().own.count = shared().own.largest = 0;
}

// The bound from the tiles of all blocks. Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ u32 team_bound(const Params& p, const SlottedPiece<T> piece, u32 spread,
                                       const Sample sample, u32& turn) {
    const Cluster team;
    Tile<T> packs;
    piece.load_first(packs);
    const u32 wanted = least_count(sample.rank, team, spread);
    const Maxima maxima = count_maxima(p, packs, sample.fine, wanted);
    // A block must not write to the shared memory of a block that has not started, or that still
    // reads words that were published before.
    team.wait();
    clear_list();
    // Maxima that are in no bin reach key 1, as every score does.
    publish_reached(sample.rank, team, spread, maxima.low, maxima.shift, maxima.all, 1, turn);
    sync_published(team);
    return common_bound(sample.rank, team, spread);
}
