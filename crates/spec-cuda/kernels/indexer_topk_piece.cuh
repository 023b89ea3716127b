// indexer_topk by a bound: a block's piece of the row, the tiles of the piece, and the comparison
// of a tile's scores with a bound. indexer_topk_bounded_select.cuh describes the design.
#pragma once

#include "indexer_topk_radix_select.cuh"
#include "max_or_nan.cuh"

// The number of 16-byte vectors that contain the scores of a thread's tile.
template <typename T>
constexpr u32 AHEAD = OF_TILE / Pack<T>::N;
template <typename T>
using Tile = Pack<T>[AHEAD<T>];
// Vectors of each thread that are in flight to shared memory at any time, and the number of tiles
// that these vectors make.
constexpr u32 STAGED = STAGED_WORDS / 4;
template <typename T>
constexpr u32 STAGES = STAGED / AHEAD<T>;
// Vectors in a group, unless each vector is a group.
constexpr u32 OF_GROUP = 4;
// The largest number of groups in which the chosen scores are counted.
constexpr u32 GROUPS = 2 * BINS;
// The key of -inf and of NaN, the smallest of all.
constexpr u32 LOWEST = 0x007FFFFFu;

// Arrays in dynamic shared memory: the tiles in flight; the listed scores of this block, and, in a
// separate array, the bit of each (other blocks read only the scores); a bit for each score of the
// piece. When the piece has been read, the keys of the listed scores of all blocks replace the
// tiles.
INLINE u32 staged_words() { return 4 * STAGED * blockDim.x; }
INLINE uint4* staged() { return reinterpret_cast<uint4*>(words()); }
INLINE u32* taken() { return words(); }
INLINE float* listed() { return reinterpret_cast<float*>(words() + staged_words()); }
INLINE u32* listed_bits(const Params& p) { return words() + staged_words() + p.candidates; }
INLINE u32* score_bits(const Params& p) { return words() + staged_words() + 2 * p.candidates; }

INLINE u32 warps() { return blockDim.x / WARP; }
// Divides by the number of threads of the block, by a shift: a block has 256 or 512 threads, which
// the compiler does not know.
INLINE u32 over_threads(u32 count) { return count >> (31 - __clz(blockDim.x)); }
template <typename T>
INLINE u32 tile_vectors() {
    return AHEAD<T> * blockDim.x;
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
    for (u32 i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x) {
        *reinterpret_cast<uint4*>(from + i) = make_uint4(0, 0, 0, 0);
    }
}

INLINE u32 sum_of_four(const u32* from) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    return four.x + four.y + four.z + four.w;
}

// Searches the bins from the largest one down. `before` is the number of keys in the bins above a
// bin, and `count` the number of keys in this bin. Calls found(bin, before, count) for each bin
// that is not empty and has before < limit and before + count >= least.
template <typename Found>
INLINE void search_bins(u32& turn, u32 min_through, u32 limit, Found found) {
    const u32 of_thread = over_threads(BINS);
    const u32 top = BINS - of_thread * (threadIdx.x + 1);
    const u32* const bins = shared().bins[0] + top;
    u32 own = 0;
#pragma unroll 1
    for (u32 j = 0; j < of_thread; j += 4) own += sum_of_four(bins + j);
    u32 total;
    u32 before = thread_place(turn, own, total);
    if (before >= limit || before + own < min_through) return;
#pragma unroll 1
    for (u32 j = of_thread; j-- > 0;) {
        const u32 count = bins[j];
        if (count != 0 && before < limit && before + count >= min_through) {
            found(top + j, before, count);
        }
        before += count;
    }
}

// ---- copies to shared memory ---------------------------------------------------

// Copies a vector without using registers or the first-level cache.
INLINE void copy_past_cache(uint4* to, const uint4* from) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

// Ends a group of copies, which may be empty.
INLINE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the latest N groups of this thread are in flight.
template <u32 N>
INLINE void await_all_copies_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- a block's piece ----------------------------------------------------------

// The part of a row that a block reads, in vectors (see AlignedRow). A warp reads chunks of 32
// neighbouring vectors. The piece is cut into AHEAD<T> * warps() runs of `tiles` neighbouring
// chunks: each warp has AHEAD<T> of these runs, which it reads side by side. Tile t of the block
// has chunk t of every run, so that a tile is spread evenly over the piece.
template <typename T>
struct SlottedPiece : AlignedRow<T> {
    using Row = AlignedRow<T>;
    using Row::index;
    using Row::lead;
    using Row::length;
    using Row::row;
    static constexpr u32 N = Row::N;
    static constexpr u32 STAGES = ::STAGES<T>;

    // Vector 0.
    const uint4* vectors_from;
    // A word of scores that are -inf, for entries outside the row.
    u32 lowest;
    u32 tiles;
    // The vectors of the piece.
    u32 begin;
    u32 end;
    // The vectors of the piece whose entries are all in the row.
    u32 whole_begin;
    u32 whole_count;

    // The team has 1 << spread blocks.
    INLINE SlottedPiece(const T* from, u32 count, u32 lowest, const Cluster& team, u32 spread)
        : Row(from, count),
          vectors_from(reinterpret_cast<const uint4*>(from - lead)),
          lowest(lowest) {
        const u32 vectors = Row::vectors();
        const u32 chunks = (vectors + WARP - 1) / WARP;
        tiles = over_threads(((chunks - 1) >> spread) * (WARP / AHEAD<T>)) + 1;
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

    // A vector of -inf, in place of a vector that is partly outside the row: such vectors are read
    // separately.
    INLINE Pack<T> none() const {
        Pack<T> pack;
        pack.raw = make_uint4(lowest, lowest, lowest, lowest);
        return pack;
    }

    INLINE Pack<T> load(u32 v) const {
        Pack<T> pack = none();
        if (whole(v)) pack.raw = __ldg(vectors_from + v);
        return pack;
    }

    // The address to which vector `a` of this thread in a tile is copied. A thread reads only its
    // own copies.
    INLINE uint4* place(u32 tile, u32 a) const {
        return staged() + (tile % STAGES * AHEAD<T> + a) * blockDim.x + threadIdx.x;
    }

    // Starts to copy vector v of a tile, if the piece has this tile.
    INLINE void ask(u32 tile, u32 a, u32 v) const {
        if (tile < tiles && whole(v)) copy_past_cache(place(tile, a), vectors_from + v);
        end_of_copies();
    }

    INLINE void load_first(Tile<T>& packs) const {
#pragma unroll
        for (u32 a = 0; a < AHEAD<T>; a++) packs[a] = load(vector(0, a));
    }

    // Loads the first tile, and starts to copy the tiles after it.
    INLINE void start(Tile<T>& packs) const {
        load_first(packs);
        if (tiles == 1) return;
#pragma unroll
        for (u32 t = 1; t <= STAGES; t++) {
#pragma unroll
            for (u32 a = 0; a < AHEAD<T>; a++) ask(t, a, vector(t, a));
        }
    }

    // Calls visit(packs, vector, stride) for each tile, after `start`: packs[a] has the entries of
    // vector + a * stride. All lanes of a warp call it together. Leaves the last tile in `packs`.
    template <typename Visit>
    INLINE void each(Tile<T>& packs, Visit visit) const {
        const u32 stride = blockDim.x * tiles;
        u32 first = vector(0, 0);
#pragma unroll 1
        for (u32 t = 1;; t++) {
            visit(packs, first, stride);
            if (t == tiles) return;
            first += WARP;
#pragma unroll
            for (u32 a = 0; a < AHEAD<T>; a++) {
                const u32 v = first + a * stride;
                await_all_copies_but<STAGED - 1>();
                packs[a] = none();
                if (whole(v)) packs[a].raw = *place(t, a);
                ask(t + STAGES, a, v + STAGES * WARP);
            }
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

    // Calls visit(entry, bit) for the entries of vectors at the ends of the piece that are partly
    // outside the row.
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

// The larger scores of two pairs of 16-bit scores. If one of two scores is NaN, the result is NaN
// if OR_NAN, else the other score.
template <bool OR_NAN>
INLINE u32 larger_pair(u32 x, u32 y, bool brain) {
    if (OR_NAN) return brain ? max_or_nan_bf16x2(x, y) : max_or_nan_f16x2(x, y);
    u32 pair;
    if (brain) {
        asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
    } else {
        asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
    }
    return pair;
}

// The largest f16 or bf16 number that is not above `x`, in both halves of a word. A 16-bit score is
// above this number if and only if it is above `x`.
INLINE u32 pair_not_above(float x, bool brain) {
    u32 bits;
    if (brain) {
        bits = __float_as_uint(x);
        // Without its lower half, a negative number would be larger than before.
        if (x < 0) bits += 0xFFFF;
        bits >>= 16;
    } else {
        bits = __half_as_ushort(__float2half_rd(x));
    }
    return bits | bits << 16;
}

// Compares two pairs of scores: 16 bits of 1 for each score of `x` that is above that of `y`.
template <bool BRAIN>
INLINE u32 above_pair(u32 x, u32 y) {
    if (BRAIN) {
        return __hgt2_mask(*reinterpret_cast<const __nv_bfloat162*>(&x),
                           *reinterpret_cast<const __nv_bfloat162*>(&y));
    }
    return __hgt2_mask(*reinterpret_cast<const __half2*>(&x),
                       *reinterpret_cast<const __half2*>(&y));
}

// Word `w` of a vector; `w` is known at compile time.
template <typename T>
INLINE u32 word_of(const Pack<T>& pack, u32 w) {
    return w == 0 ? pack.raw.x : w == 1 ? pack.raw.y : w == 2 ? pack.raw.z : pack.raw.w;
}

INLINE u32 nth(const u32 (&words)[1], u32) { return words[0]; }

// Word n of COUNT words. Each step halves the number of words, because registers cannot be indexed.
template <u32 COUNT>
INLINE u32 nth(const u32 (&words)[COUNT], u32 n) {
    const bool upper = n & COUNT / 2;
    u32 half[COUNT / 2];
#pragma unroll
    for (u32 w = 0; w < COUNT / 2; w++) half[w] = upper ? words[COUNT / 2 + w] : words[w];
    return nth(half, n);
}

// Word n of this thread's part of a tile.
template <typename T>
INLINE u32 nth_word(const Tile<T>& packs, u32 n) {
    u32 words[4 * AHEAD<T>];
#pragma unroll
    for (u32 w = 0; w < 4 * AHEAD<T>; w++) words[w] = word_of(packs[w / 4], w % 4);
    return nth(words, n);
}

// The largest number of a vector; NaN if all entries are NaN.
INLINE float largest(const Pack<float>& pack, bool) {
    return fmaxf(fmaxf(pack.items[0], pack.items[1]), fmaxf(pack.items[2], pack.items[3]));
}

INLINE float largest(const Pack<Half>& pack, bool brain) {
    const u32 first = larger_pair<false>(pack.raw.x, pack.raw.y, brain);
    const u32 second = larger_pair<false>(pack.raw.z, pack.raw.w, brain);
    const u32 pair = larger_pair<false>(first, second, brain);
    return fmaxf(Half::wide(static_cast<u16>(pair), brain),
                 Half::wide(static_cast<u16>(pair >> 16), brain));
}

// Compares the scores of a thread's tiles with the bound, and keeps the largest of these scores.
template <typename T>
struct Filter;

template <>
struct Filter<float> {
    float threshold;
    float max_score;

    INLINE Filter(float bound, bool) : threshold(bound), max_score(negative_infinity()) {}

    // From now on, no score passes.
    INLINE void close() { threshold = infinity(); }

    // A bit for each score of a tile: 1 if the score is above the bound.
    INLINE u32 pass(const Tile<float>& packs) {
        u32 bits = 0;
#pragma unroll
        for (u32 i = 0; i < OF_TILE; i++) {
            if (packs[i / 4].items[i % 4] > threshold) bits |= 1u << i;
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD<float>; a++) {
            const float(&x)[4] = packs[a].items;
            const float best = max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
            max_score = max_or_nan(max_score, best);
        }
        return bits;
    }

    // The largest score; NaN if a score is NaN.
    INLINE float greatest() const { return max_score; }

    // The score of a bit.
    INLINE static float score(const Tile<float>& packs, u32 bit, bool) {
        return __uint_as_float(nth_word(packs, bit));
    }

    // The vector of a bit, and the place of the score in the vector.
    INLINE static u32 vector(u32 bit) { return bit / 4; }
    INLINE static u32 entry(u32 bit) { return bit % 4; }
};

// Pairs of scores are compared, without conversion.
template <>
struct Filter<Half> {
    static constexpr u32 WORDS = OF_TILE / 2;

    u32 threshold;
    u32 max_score;
    bool brain;

    INLINE Filter(float bound, bool brain)
        : threshold(pair_not_above(bound, brain)),
          max_score(pair_not_above(negative_infinity(), brain)),
          brain(brain) {}

    INLINE void close() { threshold = pair_not_above(infinity(), brain); }

    template <bool BRAIN>
    INLINE u32 pass_pairs(const Tile<Half>& packs) {
        u32 bits = 0;
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) {
            const u32 pair = word_of(packs[w / 4], w % 4);
            bits |= above_pair<BRAIN>(pair, threshold) & (1u << w | 1u << (WORDS + w));
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD<Half>; a++) {
            const uint4& x = packs[a].raw;
            const u32 best = larger_pair<true>(larger_pair<true>(x.x, x.y, BRAIN),
                                               larger_pair<true>(x.z, x.w, BRAIN), BRAIN);
            max_score = larger_pair<true>(max_score, best, BRAIN);
        }
        return bits;
    }

    // Bit w belongs to the lower score of word w, bit WORDS + w to the upper score.
    INLINE u32 pass(const Tile<Half>& packs) {
        return brain ? pass_pairs<true>(packs) : pass_pairs<false>(packs);
    }

    INLINE float greatest() const {
        return max_or_nan(Half::wide(static_cast<u16>(max_score), brain),
                          Half::wide(static_cast<u16>(max_score >> 16), brain));
    }

    INLINE static float score(const Tile<Half>& packs, u32 bit, bool brain) {
        const u32 pair = nth_word(packs, bit % WORDS);
        return Half::wide(static_cast<u16>(bit < WORDS ? pair : pair >> 16), brain);
    }

    INLINE static u32 vector(u32 bit) { return bit % WORDS / 4; }
    INLINE static u32 entry(u32 bit) { return bit % 4 * 2 + bit / WORDS; }
};
