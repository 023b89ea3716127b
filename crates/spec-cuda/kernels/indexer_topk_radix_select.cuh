// indexer_topk by digits: selects the k best scores of a row by a radix select. It suits any
// scores.
//
// A block reads its piece once. In shared memory it keeps its candidates, the scores that can still
// be among the k best, in order of index:
//
//     piece       | tile | tile | tile | ...      8 scores for each thread in each tile
//     candidates  at first all scores. When shared memory has no more room, only the k best
//                 candidates stay. From then on, only scores above the k-th of these become
//                 candidates. A later score that equals the k-th loses to it, so a plateau
//                 of equal scores costs nothing.
//
// Then the team finds the key of the k-th largest candidate of all blocks, by digits of 11, 11 and
// 10 bits. For each digit, each block counts its candidates in bins in its own shared memory. After
// a barrier of the team, each block reads the coarse bins of all blocks (sums of 32 bins), and then
// the 32 bins of the coarse bin that contains the k-th candidate. So every block finds the same
// digit without further messages. Finally, each block writes its candidates that stay, after those
// of the blocks before it. A single block finds the k best of its own candidates in the same way.
#pragma once

#include "aligned_row.cuh"
#include "cluster.cuh"
#include "params/indexer_topk.cuh"

constexpr u32 PASSES = 3;
constexpr u32 BINS = 2048;
// Coarse bins; each is the sum of 32 bins.
constexpr u32 COARSE = 64;
// The largest number of coarse bins, of all blocks of the team, that a thread reads.
constexpr u32 ROUNDS = 2;

// By a bound: the largest number of levels (see `least_count`), for a team of 16 blocks.
constexpr u32 LEVELS = 5;
// With at most this number of keys, comparing all pairs of keys is faster than counting digits.
constexpr u32 MAX_COMPARED = 128;

// The header of a block's list, which other blocks read: the number of scores; a key that no score
// exceeds; and the bound, a key that all scores are above.
struct alignas(16) ListHeader {
    u32 count;
    u32 largest;
    u32 bound;
    u32 unused;
};

struct Shared {
    u32 bins[PASSES][BINS];
    u32 coarse[PASSES][COARSE];
    // Sums over the team.
    u32 coarse_sums[PASSES][COARSE];
    u32 fine_sums[PASSES][WARP];
    // The number of candidates in earlier blocks that are above the cut, and that equal the cut.
    u32 above_before;
    u32 ties_before;
    // Sums of warps, for `warp_place`, in two buffers used in turn.
    u32 warp_totals[2][WARP];
    // By a bound, from here on. The smallest and the largest maximum of the groups of each warp.
    u32 lowest[WARP];
    u32 highest[WARP];
    // Published by each block: for each level, the key that the level's count of keys reach; and
    // the number of scores that equal the bound.
    u32 reached[LEVELS][MAX_CLUSTER];
    u32 ties[MAX_CLUSTER];
    ListHeader own;
    // The values that this block publishes.
    u32 own_reached[LEVELS];
    u32 own_ties;
    u32 bound;
    // The bin that contains the cut, the number of its keys that stay, and the number of its keys.
    u32 digit;
    u32 digit_need;
    u32 digit_count;
    // The cut (see `Cut`), and the keys of its bin, if there are at most MAX_COMPARED.
    u32 cut_key;
    u32 cut_ties;
    u32 compared_count;
    u32 compared[MAX_COMPARED];
    // Counts over the lists of earlier blocks: scores above the cut in the upper 16 bits, scores
    // equal to the cut in the lower 16 bits.
    u32 before;
    u32 unused[2];
};

static_assert(sizeof(Shared) % 16 == 0 && sizeof(Shared) <= 28 * 1024);

// A team has 1 << spread blocks.
INLINE u32 spread_of(const Cluster& team) { return 31 - __clz(team.size); }

// Dynamic shared memory starts with a `Shared`; the candidates follow. Functions call `shared` and
// `words` instead of taking pointers, so that the compiler knows that each access is to shared
// memory.
INLINE Shared& shared() {
    extern __shared__ uint4 memory[];
    return *reinterpret_cast<Shared*>(memory);
}

INLINE u32* words() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<u32*>(memory) + sizeof(Shared) / 4;
}

// ---- candidates ---------------------------------------------------------------

// Keys and indices of a block's candidates, in order of index. Key 0, which no score has, marks an
// empty place.
struct Candidates {
    u32 count;
    u32 capacity;
    // The buffer of warp_totals that is used next is turn % 2.
    u32 turn;

    INLINE u32* keys() const { return words(); }
    INLINE u32* indices() const { return words() + capacity; }
};

// The cut between the best candidates and the others: candidates with a larger key stay, and the
// first `ties` candidates with this key.
struct Cut {
    u32 key;
    u32 ties;
};

// The sum of `own` over the warps before this one. `own` is the same in all lanes of a warp;
// `total` is the sum over all warps of the block. Takes one barrier, because calls use two buffers
// in turn.
INLINE u32 warp_place(u32& turn, u32 own, u32& total) {
    const u32 lane = lane_id();
    u32* const totals = shared().warp_totals[turn & 1];
    turn++;
    if (lane == 0) totals[threadIdx.x / WARP] = own;
    __syncthreads();
    const u32 of_lane = lane < blockDim.x / WARP ? totals[lane] : 0;
    total = __reduce_add_sync(ALL_LANES, of_lane);
    return __reduce_add_sync(ALL_LANES, lane < threadIdx.x / WARP ? of_lane : 0);
}

// The first lane at which the sum of `own`, over this lane and the lanes below it, reaches `need`.
// Subtracts the sum over the lanes below that lane from `need`.
INLINE u32 reached(u32 own, u32& need) {
    const u32 through = warp_inclusive_sum(own);
    const u32 lane = __ffs(__ballot_sync(ALL_LANES, through >= need)) - 1;
    need -= __shfl_sync(ALL_LANES, through - own, lane);
    return lane;
}

// The cut that leaves `need` candidates of a team that has more. Sets s.above_before and
// s.ties_before; a caller passes a barrier before it reads them. Not inlined, so that there is one
// copy: instructions that run once take longer to fetch than to run.
__device__ __noinline__ Cut find_cut(const Cluster team, u32 count, u32 need) {
    Shared& s = shared();
    const u32* const keys = words();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 warps = blockDim.x / WARP;
    for (u32 i = threadIdx.x; i < PASSES * BINS; i += blockDim.x) (&s.bins[0][0])[i] = 0;
    for (u32 i = threadIdx.x; i < PASSES * COARSE; i += blockDim.x) (&s.coarse_sums[0][0])[i] = 0;
    for (u32 i = threadIdx.x; i < PASSES * WARP; i += blockDim.x) (&s.fine_sums[0][0])[i] = 0;
    if (threadIdx.x == 0) s.above_before = s.ties_before = 0;
    __syncthreads();
    u32 prefix = 0;
    u32 shift = 32;
    u32 before = 0;
    u32 ties = 0;
#pragma unroll 1
    for (u32 pass = 0; pass < PASSES; pass++) {
        const u32 bits = pass < 2 ? 11 : 10;
        const u32 low = shift - bits;
        u32* const bins = s.bins[pass];
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const u32 key = keys[i];
            // In pass 0, `shift` is 32; C++ does not define a shift of a u32 by 32 bits.
            const bool begins = pass == 0 || key >> shift == prefix;
            if (begins) atomicAdd(&bins[key >> low & ((1u << bits) - 1)], 1u);
        }
        __syncthreads();
        for (u32 g = warp; g < COARSE; g += warps) {
            const u32 sum = __reduce_add_sync(ALL_LANES, bins[g * WARP + lane]);
            if (lane == 0) s.coarse[pass][g] = sum;
        }
        team.sync();
        // A thread reads one or two coarse bins, each of one block; further below, it reads one bin
        // of one block.
        u32 of_coarse[ROUNDS];
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            const u32 i = round * blockDim.x + threadIdx.x;
            of_coarse[round] = 0;
            if (i < COARSE * team.size) {
                of_coarse[round] = *team.of(&s.coarse[pass][i % COARSE], i / COARSE);
                if (of_coarse[round] != 0) {
                    atomicAdd(&s.coarse_sums[pass][i % COARSE], of_coarse[round]);
                }
            }
        }
        __syncthreads();
        // From the largest coarse bin down, two for each lane.
        const u32 upper = s.coarse_sums[pass][COARSE - 1 - 2 * lane];
        const u32 lower = s.coarse_sums[pass][COARSE - 2 - 2 * lane];
        const u32 at = reached(upper + lower, need);
        const u32 first = __shfl_sync(ALL_LANES, upper, at);
        u32 coarse = COARSE - 1 - 2 * at;
        if (first < need) {
            need -= first;
            coarse--;
        }
        u32 of_fine = 0;
        if (warp < team.size) {
            of_fine = *team.of(&bins[coarse * WARP + lane], warp);
            if (of_fine != 0) atomicAdd(&s.fine_sums[pass][lane], of_fine);
        }
        __syncthreads();
        const u32 fine = WARP - 1 - reached(s.fine_sums[pass][WARP - 1 - lane], need);
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            const u32 i = round * blockDim.x + threadIdx.x;
            if (i / COARSE < team.rank && i % COARSE > coarse) before += of_coarse[round];
        }
        if (warp < team.rank && lane > fine) before += of_fine;
        if (pass == PASSES - 1 && warp < team.rank && lane == fine) ties += of_fine;
        prefix = prefix << bits | (coarse * WARP + fine);
        shift = low;
    }
    if (team.rank > 0) {
        before = __reduce_add_sync(ALL_LANES, before);
        ties = __reduce_add_sync(ALL_LANES, ties);
        if (lane == 0 && before != 0) atomicAdd(&s.above_before, before);
        if (lane == 0 && ties != 0) atomicAdd(&s.ties_before, ties);
    }
    return {prefix, need};
}

// Calls put(place, key, index) for the candidates that stay (see `Cut`), in order of index; places
// count from 0. `put` may overwrite candidates that this loop has already read: all threads have
// read them. Returns the number of candidates that stay.
template <typename Put>
INLINE u32 keep(Candidates& c, const Cut& cut, Put put) {
    constexpr u32 N = 4;
    u32 above = 0;
    u32 ties = 0;
#pragma unroll 1
    for (u32 base = 0; base < c.count; base += N * blockDim.x) {
        const u32 at = base + N * threadIdx.x;
        u32 keys[N];
        u32 indices[N];
        u32 own = 0;
        // The capacity is a multiple of 4, so whole vectors are there to be read.
        uint4 k4 = make_uint4(0, 0, 0, 0);
        uint4 i4 = k4;
        if (at < c.count) {
            k4 = *reinterpret_cast<const uint4*>(c.keys() + at);
            i4 = *reinterpret_cast<const uint4*>(c.indices() + at);
        }
        keys[0] = k4.x, keys[1] = k4.y, keys[2] = k4.z, keys[3] = k4.w;
        indices[0] = i4.x, indices[1] = i4.y, indices[2] = i4.z, indices[3] = i4.w;
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            if (at + j >= c.count) keys[j] = 0;
            own += keys[j] > cut.key ? 1u << 16 : keys[j] == cut.key && keys[j] != 0 ? 1u : 0u;
        }
        const u32 through = warp_inclusive_sum(own);
        u32 total;
        const u32 warps_before =
            warp_place(c.turn, __shfl_sync(ALL_LANES, through, WARP - 1), total);
        const u32 before = warps_before + through - own;
        u32 g = above + (before >> 16);
        u32 e = ties + (before & 0xFFFF);
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            if (keys[j] > cut.key) {
                put(g + min(e, cut.ties), keys[j], indices[j]);
                g++;
            } else if (keys[j] == cut.key && keys[j] != 0) {
                if (e < cut.ties) put(g + e, keys[j], indices[j]);
                e++;
            }
        }
        above += total >> 16;
        ties += total & 0xFFFF;
    }
    return above + min(ties, cut.ties);
}

// ---- a block's piece ----------------------------------------------------------

// Loads those entries of a vector whose bits are set in `bits`. The others are 0.
template <typename T>
__device__ __noinline__ uint4 load_edge(const T* from, u32 bits) {
    Pack<T> pack;
    pack.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (u32 j = 0; j < Pack<T>::N; j++) {
        if (bits >> j & 1) pack.items[j] = from[j];
    }
    return pack.raw;
}

// A score of 16 bits: bf16 if `brain`, else f16. One kernel serves both types, because only the
// conversion to f32 depends on the type.
struct Half {
    u16 bits;

    INLINE static float wide(u16 bits, bool brain) {
        return brain ? __uint_as_float(static_cast<u32>(bits) << 16)
                     : __half2float(__ushort_as_half(bits));
    }
};

INLINE float wide(float x, bool) { return x; }
INLINE float wide(Half x, bool brain) { return Half::wide(x.bits, brain); }

// A block's piece of a row, which the block reads tile by tile.
template <typename T>
struct TiledPiece : AlignedRow<T> {
    using Row = AlignedRow<T>;
    using Row::has_all;
    using Row::index;
    using Row::length;
    using Row::row;
    static constexpr u32 N = Row::N;
    static constexpr u32 AHEAD = OF_THREAD / N;
    // `collect` packs AHEAD counts in one word, one for each vector of a thread. FIELD is the
    // number of bits of a count, MASK a mask of that number of bits.
    static constexpr u32 FIELD = 32 / AHEAD;
    static constexpr u32 MASK = AHEAD == 1 ? ~0u : (1u << FIELD % 32) - 1;

    // The vectors of the piece.
    u32 begin;
    u32 end;

    INLINE TiledPiece(const T* from, u32 count, const Cluster& team) : Row(from, count) {
        const u32 vectors = Row::vectors();
        begin = static_cast<u32>(static_cast<u64>(vectors) * team.rank / team.size);
        end = static_cast<u32>(static_cast<u64>(vectors) * (team.rank + 1) / team.size);
    }

    // Vector `a` of this thread in the tile that begins at vector `tile`. Lanes of a warp have
    // neighbouring vectors.
    INLINE u32 vector(u32 tile, u32 a) const {
        return tile + threadIdx.x / WARP * (AHEAD * WARP) + a * WARP + lane_id();
    }

    // A bit for each entry of a vector: 1 if the entry is in the row and in the piece. The index of
    // an entry before the row wraps, so it is not less than `length`.
    INLINE u32 there(u32 v) const {
        if (v >= end) return 0;
        const u32 first = index(v);
        if (has_all(first)) return (1u << N) - 1;
        u32 bits = 0;
#pragma unroll
        for (u32 j = 0; j < N; j++) bits |= first + j < length ? 1u << j : 0u;
        return bits;
    }

    INLINE Pack<T> load(u32 v, u32 bits) const {
        const T* const from = row + static_cast<i64>(static_cast<i32>(index(v)));
        if (bits == (1u << N) - 1) return load_pack(from);
        Pack<T> pack;
        pack.raw = bits == 0 ? make_uint4(0, 0, 0, 0) : load_edge(from, bits);
        return pack;
    }
};

// Reads a piece and stores its candidates. Returns whether this thread read a NaN.
template <typename T>
INLINE bool collect(const Params& p, const TiledPiece<T>& piece, Candidates& c) {
    constexpr u32 N = TiledPiece<T>::N;
    constexpr u32 AHEAD = TiledPiece<T>::AHEAD;
    constexpr u32 FIELD = TiledPiece<T>::FIELD;
    const u32 tile = blockDim.x * AHEAD;
    bool has_nan = false;
    bool bounded = false;
    float bound = 0.0f;
    Pack<T> next[AHEAD];
    u32 next_bits[AHEAD];
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        next_bits[a] = piece.there(piece.vector(piece.begin, a));
        next[a] = piece.load(piece.vector(piece.begin, a), next_bits[a]);
    }
#pragma unroll 1
    for (u32 from = piece.begin; from < piece.end; from += tile) {
        Pack<T> packs[AHEAD];
        u32 bits[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            packs[a] = next[a];
            bits[a] = next_bits[a];
            const u32 v = piece.vector(from + tile, a);
            next_bits[a] = piece.there(v);
            next[a] = piece.load(v, next_bits[a]);
        }
        const u32 slots = min(tile, piece.end - from) * N;
        if (c.count + slots > p.capacity) {
            // No room: only the k best candidates stay, and the k-th of them is the bound from now
            // on.
            __syncthreads();
            const Cut cut = find_cut(Cluster::alone(), c.count, p.k);
            c.count = keep(c, cut, [&](u32 place, u32 key, u32 index) {
                c.keys()[place] = key;
                c.indices()[place] = index;
            });
            bounded = true;
            bound = exact::value_of_key(cut.key);
        }
        if (!bounded) {
            // Every entry of a vector gets a slot, with key 0 if it is not in the row, so that
            // threads store whole vectors.
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                const u32 v = piece.vector(from, a);
                if (v >= piece.end) continue;
                u32 keys[N];
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    const float x = wide(packs[a].items[j], p.brain);
                    has_nan |= x != x;
                    keys[j] = bits[a] >> j & 1 ? exact::sort_key(x) : 0;
                }
                const u32 slot = c.count + (v - from) * N;
                const u32 first = piece.index(v);
#pragma unroll
                for (u32 j = 0; j < N; j += 4) {
                    const u32 i = first + j;
                    *reinterpret_cast<uint4*>(c.keys() + slot + j) =
                        make_uint4(keys[j], keys[j + 1], keys[j + 2], keys[j + 3]);
                    *reinterpret_cast<uint4*>(c.indices() + slot + j) =
                        make_uint4(i, i + 1, i + 2, i + 3);
                }
            }
            c.count += slots;
            continue;
        }
        u32 packed = 0;
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            u32 above = 0;
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const float x = wide(packs[a].items[j], p.brain);
                has_nan |= x != x;
                above |= x > bound ? 1u << j : 0u;
            }
            bits[a] &= above;
            packed |= static_cast<u32>(__popc(bits[a])) << a * FIELD;
        }
        const u32 through = warp_inclusive_sum(packed);
        const u32 all = __shfl_sync(ALL_LANES, through, WARP - 1);
        u32 own = 0;
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) own += all >> a * FIELD & TiledPiece<T>::MASK;
        u32 total;
        u32 place = c.count + warp_place(c.turn, own, total);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            u32 to = place + ((through - packed) >> a * FIELD & TiledPiece<T>::MASK);
            const u32 first = piece.index(piece.vector(from, a));
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                if (bits[a] >> j & 1) {
                    c.keys()[to] = exact::sort_key(wide(packs[a].items[j], p.brain));
                    c.indices()[to] = first + j;
                    to++;
                }
            }
            place += all >> a * FIELD & TiledPiece<T>::MASK;
        }
        c.count += total;
    }
    __syncthreads();
    return has_nan;
}

// ---- the row ------------------------------------------------------------------

// Writes the positions of the k best scores of a row, which has more than k. Returns flags.
template <typename T>
INLINE u32 select_by_digits(const Params& p, const Cluster& team, const T* scores, u64 row,
                            u32 length) {
    const Shared& s = shared();
    const TiledPiece<T> piece(scores, length, team);
    Candidates c = {0, p.capacity, 0};
    const u32 bits = collect(p, piece, c) ? NON_FINITE : 0;
    Cut cut = find_cut(team, c.count, p.k);
    // This block no longer reads counts of other blocks. It must not end before all blocks have
    // arrived here, because they may still read its counts.
    team.arrive();
    __syncthreads();
    const u32 ties_before = min(s.ties_before, cut.ties);
    const u32 first = s.above_before + ties_before;
    cut.ties -= ties_before;
    keep(c, cut, [&](u32 place, u32, u32 index) {
        p.indices.set(row, first + place, static_cast<i32>(index));
    });
    team.wait();
    return bits;
}
