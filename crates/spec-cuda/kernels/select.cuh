// Where a row is cut, without sorting it: the primitive under top-k and top-p.
//
// A team of blocks (a cluster; one block where there are none) owns a row. Its
// entries are ordered by exact::sort_key, descending, the lower index first among
// equals, and kept while the weights before them add up to less than a limit:
// weights of 1 keep the `limit` largest, probabilities in whole units the likeliest
// that add up to it. Weights are integers that depend on the key alone, so rounds of
// a histogram find the cut, whatever the order of the atomics:
//
//     round 0   bins of equal width in value, from the row's largest down;
//     then      of the bin that holds the cut, bins of its keys' range, each 1024
//               times finer, until a bin is one key;
//     last      where only some entries of that key stay, their index.
//
// Each block counts its entries in its own shared memory; after a barrier of the
// team each reads the bins of all and comes to the same bin by itself.
//
// A row is cut into contiguous pieces, one a warp:
//
//     row      | edge | 16-byte vectors ...................... | edge |
//     warps    |  0         |  1         |  2         |   ...   last  |
//
// A block's pieces lie in its shared memory, read once from the row, where they
// fit; otherwise every pass reads the row again, from L2.
#pragma once

#include "vocab_row.cuh"

// ---- teams ----------------------------------------------------------------------

constexpr u32 SELECT_THREADS = 512;
constexpr u32 SELECT_WARPS = SELECT_THREADS / WARP;

constexpr u32 MOST_PIECES = 16 * SELECT_WARPS;

// The blocks that own a row. All of them call everything that meets, in the same
// order; the values of two meetings live at a time.
struct Team {
    // What the warps of all blocks told, in each of them: a barrier is cheaper than
    // a barrier and asking.
    struct Shared {
        u64 told[2][MOST_PIECES];
    };

    Shared* shared;
    u32 size;
    u32 rank;
    u32 lane;
    u32 warp;
    u32 meetings;

    INLINE Team(Shared& of_block) : shared(&of_block), meetings(0) {
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
        size = 1;
        rank = 0;
#endif
        lane = lane_id();
        warp = threadIdx.x / WARP;
    }

    // This warp's piece of the row, and how many there are.
    INLINE u32 piece() const { return rank * SELECT_WARPS + warp; }
    INLINE u32 pieces() const { return size * SELECT_WARPS; }

    // The same place in the shared memory of another block.
    template <typename T>
    INLINE T* of(T* here, u32 block) const {
#if __CUDA_ARCH__ >= 900
        u64 there;
        asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<u64>(here)), "r"(block));
        return reinterpret_cast<T*>(there);
#else
        return here;
#endif
    }

    // The two halves of a barrier of the team. A block stays until all have
    // arrived: others may still read its shared memory.
    INLINE void arrive() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        if (size > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }

    INLINE void wait() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        if (size > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // What was written to shared memory before is seen by all after it.
    INLINE void sync() const {
        if (size == 1) {
            __syncthreads();
            return;
        }
        arrive();
        wait();
    }

    // Each warp tells a value, the same in all its lanes. Before the first, each block
    // arrives once as it starts and waits: all must run to be told something.
    INLINE void tell(u64 value) {
        if (lane < size) *of(&shared->told[meetings & 1][piece()], lane) = value;
        meetings += 1;
        sync();
    }

    // What the warp of that piece told last.
    INLINE u64 told(u32 piece) const { return shared->told[(meetings - 1) & 1][piece]; }

    INLINE u64 sum_told() const {
        u64 sum = 0;
        for (u32 i = lane; i < pieces(); i += WARP) sum += told(i);
        return warp_sum(sum);
    }

    INLINE u64 largest_told() const {
        u64 largest = 0;
        for (u32 i = lane; i < pieces(); i += WARP) largest = max(largest, told(i));
        return warp_max(largest);
    }

    // The piece in which the running sum of what was told first exceeds `rest`,
    // from which the sum before is taken off. There is one.
    INLINE u32 piece_above(u64& rest) const {
        u32 first = 0;
        for (;;) {
            const u64 own = first + lane < pieces() ? told(first + lane) : 0;
            const u64 through = warp_inclusive_sum(own, lane);
            const u32 above = __ballot_sync(ALL_LANES, through > rest);
            if (above != 0) {
                const u32 found = __ffs(above) - 1;
                rest -= __shfl_sync(ALL_LANES, through - own, found);
                return first + found;
            }
            first += WARP;
            if (first >= pieces()) return pieces() - 1;
            rest -= __shfl_sync(ALL_LANES, through, WARP - 1);
        }
    }
};

// ---- rows -----------------------------------------------------------------------

// An entry that is not there, or was dropped.
INLINE float nothing() { return __uint_as_float(0x7FFFFFFFu); }
INLINE float minus_infinity() { return __uint_as_float(0xFF800000u); }

// 0 for nothing, which is below every number's key.
INLINE u32 key_of(float x) { return x != x ? 0 : exact::sort_key(x); }

INLINE float value_of(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

// The entries of a vector read from the row again: kept out of the way of rows that
// shared memory holds.
template <typename Row>
__device__ __noinline__ Entries<float, Row::N> make_again(Row row, u32 vector) {
    float values[Row::N];
    float entries[Row::N];
    u32 first;
    row.read(vector, values, first);
    row.make(values, entries, first);
    Entries<float, Row::N> made;
#pragma unroll
    for (u32 j = 0; j < Row::N; ++j) made.items[j] = entries[j];
    return made;
}

// A row as f32. `make(values, entries, index of the first)` turns elements into
// entries, in which NaN means nothing; an element outside of the row is NaN.
// `make.whole_vector` does so where there are none, `make.again` to entries.
template <typename T, typename Make>
struct Entered {
    static constexpr u32 N = Pack<T>::N;
    // Vectors in flight: 32 entries a lane.
    static constexpr u32 AHEAD = 32 / N;

    const T* row;
    u32 length;
    // Entries between the 16-byte boundary before the row and its start.
    u32 lead;
    // This warp's vectors, counted from that boundary.
    u32 begin;
    u32 end;
    // Where this block's pieces are kept, and from which vector on; null where
    // they are not.
    float* cache;
    u32 cached_from;
    Make make;

    INLINE Entered(const T* from, u32 count, const Team& team, float* space, const Make& making)
        : row(from), length(count), cache(space), make(making) {
        lead = static_cast<u32>(reinterpret_cast<u64>(from) % 16 / sizeof(T));
        const u32 vectors = (lead + count + N - 1) / N;
        begin = start_of(vectors, team.piece(), team.pieces());
        end = start_of(vectors, team.piece() + 1, team.pieces());
        cached_from = start_of(vectors, team.rank * SELECT_WARPS, team.pieces());
    }

    INLINE static u32 start_of(u32 vectors, u32 piece, u32 pieces) {
        return static_cast<u32>(static_cast<u64>(vectors) * piece / pieces);
    }

    INLINE bool whole(u32 first) const { return first < length && length - first >= N; }

    // The elements of a vector that is wholly in the row.
    INLINE void read_whole(u32 vector, float (&values)[N]) const {
        const Pack<T> pack = load_pack(row + (vector * N - lead));
#pragma unroll
        for (u32 j = 0; j < N; ++j) values[j] = to_f32(pack.items[j]);
    }

    // The elements of a vector; `first` is the index of the first of them, which
    // wraps in the edge before the row.
    INLINE void read(u32 vector, float (&values)[N], u32& first) const {
        first = vector * N - lead;
        if (whole(first)) {
            read_whole(vector, values);
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values[j] = first + j < length ? to_f32(row[first + j]) : nothing();
            }
        }
    }

    INLINE float4* place(u32 vector) const {
        return reinterpret_cast<float4*>(cache + (vector - cached_from) * N);
    }

    INLINE void store(u32 vector, const float (&entries)[N]) const {
        float4* const to = place(vector);
#pragma unroll
        for (u32 j = 0; j < N; j += 4) {
            to[j / 4] = make_float4(entries[j], entries[j + 1], entries[j + 2], entries[j + 3]);
        }
    }

    INLINE void fetch(u32 vector, float (&entries)[N], u32& first) const {
        if (cache != nullptr) {
            first = vector * N - lead;
            const float4* const from = place(vector);
#pragma unroll
            for (u32 j = 0; j < N; j += 4) {
                const float4 four = from[j / 4];
                entries[j] = four.x;
                entries[j + 1] = four.y;
                entries[j + 2] = four.z;
                entries[j + 3] = four.w;
            }
        } else {
            first = vector * N - lead;
            const Entries<float, N> made = make_again(*this, vector);
#pragma unroll
            for (u32 j = 0; j < N; ++j) entries[j] = made.items[j];
        }
    }

    // Reads this warp's piece for the first time: visit(values, entries, index of
    // the first) has the elements as they are and what was made of them.
    template <typename Visit>
    INLINE void enter(u32 lane, Visit&& visit) const {
        if (begin == end) return;
        // Only the row's first and last vector may be in parts.
        const u32 from = whole(begin * N - lead) ? begin : begin + 1;
        const u32 to = whole((end - 1) * N - lead) ? end : max(end - 1, from);
        for (u32 v = from + lane; v < to; v += AHEAD * WARP) {
            float values[AHEAD][N];
            // Past the end the last vector once more: loads without branches are
            // all in flight at once.
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) read_whole(min(v + a * WARP, to - 1), values[a]);
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 at = v + a * WARP;
                if (at >= to) break;
                float entries[N];
                make.whole_vector(values[a], entries, at * N - lead);
                if (cache != nullptr) store(at, entries);
                visit(values[a], entries, at * N - lead);
            }
        }
        // A lane for each of the two.
        const u32 part = lane == 0 ? begin : end - 1;
        const bool cut = lane == 0 ? from != begin : to != end && end - 1 != begin;
        if (lane < 2 && cut) {
            float values[N];
            float entries[N];
            u32 first;
            read(part, values, first);
            make(values, entries, first);
            if (cache != nullptr) store(part, entries);
            visit(values, entries, first);
        }
    }

    // Makes entries of what is kept once more, after `make` changed.
    INLINE void remake_cached(u32 lane) const {
        if (cache == nullptr) return;
        for (u32 v = begin + lane; v < end; v += WARP) {
            float entries[N];
            u32 first;
            fetch(v, entries, first);
            make.again(entries);
            store(v, entries);
        }
    }

    // visit(entries, index of the first) for this warp's piece, a vector a lane.
    template <u32 UNROLL = 1, typename Visit>
    INLINE void each(u32 lane, Visit&& visit) const {
#pragma unroll UNROLL
        for (u32 v = begin + lane; v < end; v += WARP) {
            float entries[N];
            u32 first;
            fetch(v, entries, first);
            visit(entries, first);
        }
    }

    // The index of this warp's entry at which the running sum of weigh(x, index),
    // in ascending index, first exceeds `rest`, which the sum of all does.
    template <typename Weigh>
    INLINE u32 find(u32 lane, u64 rest, Weigh&& weigh) const {
        for (u32 from = begin; from < end; from += WARP) {
            u64 weights[N] = {};
            u32 first = 0;
            u64 own = 0;
            if (from + lane < end) {
                float entries[N];
                fetch(from + lane, entries, first);
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    weights[j] = weigh(entries[j], first + j);
                    own += weights[j];
                }
            }
            const u64 through = warp_inclusive_sum(own, lane);
            const u32 above = __ballot_sync(ALL_LANES, through > rest);
            if (above != 0) {
                u64 left = rest - (through - own);
                u32 at = 0;
#pragma unroll
                for (u32 j = 0; j + 1 < N; ++j) {
                    // Goes on only from entry j.
                    if (at == j && weights[j] <= left) {
                        left -= weights[j];
                        at = j + 1;
                    }
                }
                return __shfl_sync(ALL_LANES, first + at, __ffs(above) - 1);
            }
            rest -= __shfl_sync(ALL_LANES, through, WARP - 1);
        }
        return 0;
    }
};

// ---- the cut --------------------------------------------------------------------

// What stays: larger keys, and that key below an index.
struct Cut {
    u32 key;
    u32 end;

    INLINE bool keeps(u32 of, u32 index) const { return of > key || (of == key && index < end); }
};

// Keeps everything that is there.
INLINE Cut no_cut() { return {0, 0}; }

constexpr u32 SELECT_BINS = 1024;

// What a selection counts in: sums in thirds, bins from the largest keys down.
struct Selection {
    u32 bins[2][3][SELECT_BINS];
    u64 warp_sums[SELECT_WARPS];
    u64 above;
    u64 within;
    u32 bin;
};

// The first round's bins: (largest - x) * scale, the last one holding what is
// beyond. Both operations round monotonically, so bins are in the order of keys.
struct Linear {
    float largest;
    float scale;

    INLINE u32 bin(float x) const {
        if (x == largest) return 0;
        const float at = exact::mul(exact::sub(largest, x), scale);
        // The conversion saturates.
        return min(__float2uint_rz(at), SELECT_BINS - 1);
    }

    // Keys outside of which nothing of a bin lies: a bin more on either side
    // makes up for rounding.
    INLINE u32 lowest(u32 bin) const {
        if (bin == SELECT_BINS - 1) return 1;
        const float down = __fdiv_rn(static_cast<float>(bin + 2), scale);
        return exact::sort_key(exact::sub(largest, down));
    }

    INLINE u32 highest(u32 bin) const {
        if (bin == 0) return exact::sort_key(largest);
        const float down = __fdiv_rn(static_cast<float>(bin - 1), scale);
        return exact::sort_key(exact::sub(largest, down));
    }
};

// Adds to a bin: in thirds of 14 bits, whose sums do not overflow below 2^18 entries a
// block, since atomics that return nothing are several times faster; above (`wide`) in
// halves, with the carry.
INLINE void add_to_bin(Selection& s, u32 turn, u32 bin, u64 weight, bool wide) {
    if (wide) {
        const u32 low = static_cast<u32>(weight);
        const u32 before = atomicAdd(&s.bins[turn][0][bin], low);
        const u32 high = static_cast<u32>(weight >> 32) + (before + low < before ? 1 : 0);
        if (high != 0) atomicAdd(&s.bins[turn][1][bin], high);
        return;
    }
    const u32 low = static_cast<u32>(weight) & 0x3FFF;
    const u32 middle = static_cast<u32>(weight >> 14) & 0x3FFF;
    const u32 high = static_cast<u32>(weight >> 28);
    if (low != 0) atomicAdd(&s.bins[turn][0][bin], low);
    if (middle != 0) atomicAdd(&s.bins[turn][1][bin], middle);
    if (high != 0) atomicAdd(&s.bins[turn][2][bin], high);
}

// Where a round ended: its bin, the weights before it, its own.
struct Round {
    u64 above;
    u64 within;
    u32 bin;

    INLINE bool found() const { return bin < SELECT_BINS; }
};

// The bins of a round: by value at first, then by key inside of one of those.
struct Bins {
    Linear linear;
    // The bin by value; SELECT_BINS until there is one.
    u32 outer;
    u32 lowest;
    u32 highest;
    u32 shift;

    INLINE u32 operator()(float x, u32 key) const {
        const u32 wide = linear.bin(x);
        if (outer == SELECT_BINS) return wide;
        const bool inside = wide == outer && highest - key <= highest - lowest;
        return inside ? (highest - key) >> shift : SELECT_BINS;
    }

    // Goes on inside of a bin; false where it is a single key, `highest`.
    INLINE bool enter(u32 bin) {
        if (outer == SELECT_BINS) {
            outer = bin;
            lowest = linear.lowest(bin);
            highest = linear.highest(bin);
        } else {
            highest -= bin << shift;
            if (shift == 0) return false;
            const u32 width = (1u << shift) - 1;
            lowest = highest - lowest > width ? highest - width : lowest;
        }
        const u32 range = highest - lowest;
        // The least that leaves no more steps than there are bins.
        shift = range < SELECT_BINS ? 0 : 22 - __clz(range);
        return true;
    }
};

// One round: the first bin through which the weights, `above` before them, reach
// the limit, if one does.
template <typename Row, typename Weigh>
INLINE Round select_round(Selection& s, const Team& team, const Row& row, u32 turn, u64 limit,
                          u64 above, const Weigh& weigh, const Bins& bin_of) {
    // Whoever reads these bins, of two rounds ago, has come to the barrier of the
    // last one since.
    for (u32 i = threadIdx.x; i < SELECT_BINS; i += SELECT_THREADS) {
        s.bins[turn][0][i] = 0;
        s.bins[turn][1][i] = 0;
        s.bins[turn][2][i] = 0;
    }
    if (threadIdx.x == 0) s.bin = SELECT_BINS;
    __syncthreads();
    // Runs of one bin are added at once, some entries at a time: of what is alike,
    // little else comes.
    const bool wide = row.length > team.size << 17;
    u32 current = 0;
    u64 run = 0;
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            const u32 key = key_of(entries[j]);
            const u32 into = key == 0 ? SELECT_BINS : bin_of(entries[j], key);
            const u64 weight = into < SELECT_BINS ? weigh(entries[j], key, first + j) : 0;
            if (weight != 0) {
                if ((into != current || run >> 40 != 0) && run != 0) {
                    add_to_bin(s, turn, current, run, wide);
                    run = 0;
                }
                current = into;
                run += weight;
            }
        }
    });
    if (run != 0) add_to_bin(s, turn, current, run, wide);
    team.sync();
    // Two neighbouring bins a thread.
    static_assert(SELECT_BINS == 2 * SELECT_THREADS);
    u64 sums[2] = {};
#pragma unroll 4
    for (u32 block = 0; block < team.size; ++block) {
#pragma unroll
        for (u32 third = 0; third < 3; ++third) {
            uint2* const here = reinterpret_cast<uint2*>(s.bins[turn][third]) + threadIdx.x;
            const uint2 two = *team.of(here, block);
            // Nothing is in the third of two halves.
            const u32 shift = wide ? 32 * (third & 1) : 14 * third;
            sums[0] += static_cast<u64>(two.x) << shift;
            sums[1] += static_cast<u64>(two.y) << shift;
        }
    }
    const u64 own = sums[0] + sums[1];
    const u64 through = warp_inclusive_sum(own, team.lane);
    if (team.lane == WARP - 1) s.warp_sums[team.warp] = through;
    __syncthreads();
    const u64 of_warp = team.lane < SELECT_WARPS ? s.warp_sums[team.lane] : 0;
    const u64 through_warps = warp_inclusive_sum(of_warp, team.lane);
    u64 before = above + through - own + __shfl_sync(ALL_LANES, through_warps - of_warp, team.warp);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        // Of one thread at most.
        if (before < limit && before + sums[i] >= limit) {
            s.bin = threadIdx.x * 2 + i;
            s.above = before;
            s.within = sums[i];
        }
        before += sums[i];
    }
    __syncthreads();
    const Round round = {s.above, s.within, s.bin};
    // Before anyone begins another.
    __syncthreads();
    return round;
}

// The cut of a row at `limit`, at least 1. `rounds` counts over all selections of a
// kernel. weigh(x, key, index) is 0 for what is out already, and depends on the key
// alone otherwise: weigh.of(key). Where all weights do not reach the limit, `kept`
// comes back: what is out already stays out.
template <typename Row, typename Weigh>
INLINE Cut select(Selection& s, Team& team, const Row& row, u32& rounds, u64 limit, Cut kept,
                  const Linear& linear, const Weigh& weigh) {
    Bins bins = {linear, SELECT_BINS, 0, 0, 0};
    Round round = {0, 0, 0};
    do {
        round = select_round(s, team, row, rounds++ & 1, limit, round.above, weigh, bins);
        if (!round.found()) return kept;
    } while (bins.enter(round.bin));
    const u32 highest = bins.highest;
    const u64 each = max(weigh.of(highest), static_cast<u64>(1));
    const u64 ties = (limit - round.above + each - 1) / each;
    // All that an earlier cut left of them.
    if (ties >= round.within / each) return {highest, highest == kept.key ? kept.end : NONE};
    // The index of the first that does not stay.
    const auto tied = [&](float x, u32 index) {
        const u32 key = key_of(x);
        return static_cast<u64>(key == highest && weigh(x, key, index) != 0);
    };
    u64 count = 0;
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) count += tied(entries[j], first + j);
    });
    team.tell(warp_sum(count));
    u64 rest = ties;
    const u32 owner = team.piece_above(rest);
    u32 index = 0;
    if (owner == team.piece()) index = row.find(team.lane, rest, tied);
    team.tell(index);
    return {highest, static_cast<u32>(team.told(owner))};
}
