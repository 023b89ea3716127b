// Where top-p cuts a row, from sums of weights by the size of the weights.
//
// A second reading of the row, from L2, adds every weight to the bins of the block: a thirty-second of an octave to
// a bin, which the exponent and the first bits of a weight's float tell. 32 octaves of bins are a ring, so that
// blocks need not know the largest logit of the row. Weights so small that top-p leaves them out are not added
// to bins. The leading block reads the bins of all blocks, and finds the bin in which top-p cuts:
//
//     weights    | surely kept ............ | bin of the cut | surely left out ...
//     the race   of all tokens from the bin of the cut on: most often a token wins that is surely kept
//
// The sums are approximate, and their largest error widens what is between surely kept and surely left out.
// Where top-p leaves out less than this error, no token is surely left out, and all tokens race. A token with
// more than half of all weight needs no bins: top-p keeps that token always, and often no other.
// Equal logits would meet in a bin, where additions wait for each other: a row with many of them goes without.
#pragma once

#include "race_lead.cuh"
#include "sample_logits_row.cuh"

// Between which logits top-p cuts a row.
struct Bracket {
    bool known;
    // Tokens of logits below `least` are left out, if it is finite; tokens of `sure` and more are kept.
    float least;
    float sure;
    // In descending order, `through` counts every token before a token of this logit or a larger one. Infinite if
    // some of these tokens are in no bin.
    float counted;
    // An upper bound of the sum of weights down to the bin of the cut, and a lower bound of the sum at which top-p
    // cuts, both divided by 2^top.
    float through;
    float limit;
    float top;

    INLINE static Bracket unknown() {
        const float low = negative_infinity();
        return {false, low, infinity(), infinity(), 0.0f, 0.0f, 0.0f};
    }

    // Whether top-p surely keeps a token of logit x.
    INLINE bool keeps(float x, float octaves) const;
};

struct Tally {
    static constexpr u32 PER_OCTAVE = 32;
    static constexpr u32 OCTAVES = 32;
    static constexpr u32 BINS = PER_OCTAVE * OCTAVES;
    // Bits of a float below those that tell its bin.
    static constexpr u32 BELOW = 18;
    // Bits of a float's fraction that a bin does not count; a weight at the lower end of an octave counts UNITS.
    static constexpr u32 CUT = 10;
    static constexpr float UNITS = 8192.0f;
    // Largest logits of more octaves than this have too few bits behind the point.
    static constexpr float MAX_OCTAVES = 1984.0f;
    // A weight that is more octaves than this below the largest weight of its warp goes to no bin.
    static constexpr float DEPTH = 20.0f;
    // The largest relative error of a sum: what CUT leaves out, and the roundings of a weight.
    static constexpr float ERROR = 1.0f / 7168.0f;

    // Of a warp: the sum of all weights, divided by 2^reference, and the lowest octave whose weights went to bins.
    struct alignas(16) Sum {
        float sum;
        i32 reference;
        i32 least;
        i32 unused;

        INLINE static Sum none() { return {0.0f, 0, -2 * static_cast<i32>(MAX_OCTAVES), 0}; }
        INLINE static Sum unknown() { return {infinity(), 0, 0, 0}; }
    };

    // Of a warp of the leading block, which has two bins in each thread.
    struct Part {
        float sum;
        i32 highest;
        i32 lowest;
        float binned;
        // Bins in descending order: the first that may reach the cut, the first that surely does, and the sum
        // through that one.
        u32 may;
        u32 does;
        float through;
    };

    struct Shared {
        Sum of_warps[SELECT_WARPS];
        // In the leading block.
        Part parts[SELECT_WARPS];
    };

    // Octaves of weight in a unit of logit.
    INLINE static float octaves_of(float inverse) { return inverse * 1.44269504f; }

    // Adds a warp's share of a row to the bins of the block; `tops` has the largest logit of each group of the row.
    template <typename T>
    static __device__ __noinline__ Sum add(u32 (&bins)[BINS], const T* row, u32 vocab, const float* tops,
                                           const Share share, float octaves, u64 top_p);

    // Where top-p cuts. By the leading block, when the tallies of all blocks are complete. `largest` is the row's
    // largest logit.
    static __device__ __noinline__ Bracket find(u32 (&bins)[BINS], Shared& shared, const Team& team, float largest,
                                                float octaves, u64 top_p);

    // By the block, before a barrier that precedes `add`.
    INLINE static void clear(u32 (&bins)[BINS]) {
        reinterpret_cast<uint2*>(&bins[0])[threadIdx.x] = make_uint2(0, 0);
    }

private:
    // The first bin of an octave, by the bits of a weight of that octave.
    INLINE static u32 ring_of(i32 octave) { return static_cast<u32>(octave + 127) % OCTAVES * PER_OCTAVE; }

    // Adds one weight.
    INLINE static void add_weight(u32 bins, float weight, float least, float& sum) {
        const u32 bits = __float_as_uint(weight);
        const u32 units = ((bits & 0x007FFFFFu) | 0x00800000u) >> CUT;
        const u32 at = bins + ((bits >> (BELOW - 2)) & ((BINS - 1) * 4));
        sum += weight;
        asm volatile("{ .reg .pred heavy; setp.ge.f32 heavy, %0, %1; @heavy red.shared.add.u32 [%2], %3; }" ::"f"(
                         weight),
                     "f"(least), "r"(at), "r"(units)
                     : "memory");
    }
};
static_assert(Tally::BINS == 2 * SELECT_THREADS);

INLINE bool Bracket::keeps(float x, float octaves) const {
    const float weight = approximate_exp2(fmaf(x, octaves, -top)) * (1.0f - Tally::ERROR);
    return x >= sure || (x >= counted && through - weight < limit);
}

template <typename T>
__device__ __noinline__ Tally::Sum Tally::add(u32 (&bins)[BINS], const T* row, u32 vocab, const float* tops,
                                              const Share share, float octaves, u64 top_p) {
    constexpr u32 N = Pack<T>::N;
    constexpr u32 AT_ONCE = 32 / N;
    const u32 lane = lane_id();
    float top = negative_infinity();
    for (u32 group = share.begin + lane; group < share.end; group += WARP) top = fmaxf(top, tops[group]);
    // `top` is the largest logit of the lane's groups. If it is the same in more than half of the lanes, so many
    // logits of the row may be equal that additions to their bin would wait for each other: the warp makes no tally.
    const u32 alike = __popc(__match_any_sync(ALL_LANES, __float_as_uint(top)));
    const u32 lanes = min(share.end - share.begin, WARP);
    const bool tied = __any_sync(ALL_LANES, lane < lanes && alike > max(lanes / 2, 1u));
    const u32 key = __reduce_max_sync(ALL_LANES, exact::sort_key(top));
    if (key <= LOWEST_KEY) return Sum::none();
    const float height = exact::value_of_key(key) * octaves;
    if (tied || !(fabsf(height) < MAX_OCTAVES)) return Sum::unknown();
    // A multiple of the ring's octaves is subtracted, so that the bits of a weight still tell the weight's place in
    // the ring.
    const float reference = floorf(height * (1.0f / OCTAVES)) * OCTAVES;
    const float tallest = warp_sum(approximate_exp2(fmaf(top, octaves, -height)));
    // A weight goes to no bin if it is smaller than the share that top-p leaves out, or that errors hide, times a
    // lower bound of the mean weight: all such weights together are less than that share. For the lower bound, the
    // weights of the lanes' `top` are added up without the largest one, which may be far above all others.
    const float left_out = fmaxf(static_cast<float>((1ull << 32) - top_p) * (1.0f / 4294967296.0f), 2.0f * ERROR);
    const float mean = __fdividef(fmaxf(tallest - 1.0f, 1e-6f), static_cast<float>((share.end - share.begin) * GROUP));
    const float depth = fmaxf(floorf(approximate_log2(fmaxf(left_out * mean, 1e-30f))), -DEPTH);
    const float from = floorf(height) + depth;
    const float least = approximate_exp2(from - reference);
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(&bins[0]));
    float sum = 0.0f;
    const u32 whole = min(share.end, vocab / GROUP);
    const u32 count = whole > share.begin ? (whole - share.begin) * (GROUP / N) : 0;
    const T* const own = row + share.begin * GROUP;
#pragma unroll 1
    for (u32 base = lane; base < count; base += AT_ONCE * WARP) {
        Pack<T> packs[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) packs[i] = stream_pack(own + min(base + i * WARP, count - 1) * N);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            if (base + i * WARP >= count) break;
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                const float y = fmaf(to_f32(packs[i].items[j]), octaves, -reference);
                add_weight(to, approximate_exp2(y), least, sum);
            }
        }
    }
    // The tokens after the row's last whole group of tokens.
#pragma unroll 1
    for (u32 token = whole * GROUP + lane; token < min(vocab, share.end * GROUP); token += WARP) {
        add_weight(to, approximate_exp2(fmaf(to_f32(row[token]), octaves, -reference)), least, sum);
    }
    return {warp_sum(sum), static_cast<i32>(reference), static_cast<i32>(from), 0};
}

__device__ __noinline__ Bracket Tally::find(u32 (&bins)[BINS], Shared& shared, const Team& team, float largest,
                                            float octaves, u64 top_p) {
    constexpr float MORE = 1.0f + ERROR;
    constexpr float LESS = 1.0f - ERROR;
    const u32 lane = team.lane;
    const float height = largest * octaves;
    // If some warp of this block has made no tally, the bins lack that warp's weights and are not read.
    const bool tallied = shared.of_warps[lane % SELECT_WARPS].sum < LARGEST;
    if (!__all_sync(ALL_LANES, tallied) || !(fabsf(height) < MAX_OCTAVES)) return Bracket::unknown();
    // The octave after that of the largest logit, in which roundings may have put its weight: the first of the ring.
    const i32 top = static_cast<i32>(floorf(height)) + 1;
    const u32 first = 2 * threadIdx.x;
    const auto octave_of = [&](u32 at) { return top - static_cast<i32>(at / PER_OCTAVE); };
    const u32 place = ring_of(octave_of(first)) + PER_OCTAVE - 2 - first % PER_OCTAVE;
    Sum its = Sum::none();
    if (threadIdx.x < team.pieces()) {
        its = *team.blocks.of(&shared.of_warps[threadIdx.x % SELECT_WARPS], threadIdx.x / SELECT_WARPS);
    }
    uint2 counts = make_uint2(0, 0);
#pragma unroll 8
    for (u32 block = 0; block < team.blocks.size; ++block) {
        const uint2 two = *reinterpret_cast<const uint2*>(team.blocks.of(&bins[place], block));
        counts.x += two.x;
        counts.y += two.y;
    }
    const float unit = approximate_exp2(static_cast<float>(octave_of(first) - top)) * (1.0f / UNITS);
    const float upper = static_cast<float>(counts.y) * unit;
    const float both = upper + static_cast<float>(counts.x) * unit;
    const float through_both = warp_inclusive_sum(both, lane);
    const float part = its.sum == 0.0f ? 0.0f : its.sum * approximate_exp2(static_cast<float>(its.reference - top));
    Part& own = shared.parts[team.warp];
    const float sum = warp_sum(part);
    const i32 highest_here = __reduce_max_sync(ALL_LANES, its.least);
    const i32 lowest_here = __reduce_min_sync(ALL_LANES, its.sum == 0.0f ? top : its.least);
    if (lane == WARP - 1) {
        own.sum = sum;
        own.highest = highest_here;
        own.lowest = lowest_here;
        own.binned = through_both;
    }
    __syncthreads();
    const Part& other = shared.parts[lane % SELECT_WARPS];
    const float total = warp_sum(lane < SELECT_WARPS ? other.sum : 0.0f);
    const i32 highest = __reduce_max_sync(ALL_LANES, other.highest);
    const i32 lowest = __reduce_min_sync(ALL_LANES, other.lowest);
    const float before = warp_sum(lane < team.warp ? other.binned : 0.0f);
    Bracket bracket = Bracket::unknown();
    if (!(total < LARGEST)) return bracket;
    const float share = static_cast<float>(top_p) * (1.0f / 4294967296.0f) * total;
    // In exact sums a unit is 2^-40.
    constexpr float UNIT = 1.0f / 1099511627776.0f;
    const float limit = share * LESS - UNIT;
    const float limit_above = fmaxf(share * MORE, 2.0f * UNIT);
    // No other token has the largest logit where one has more than half of all weight.
    const float heaviest = approximate_exp2(height - static_cast<float>(top)) * LESS;
    if (heaviest > 0.5f * MORE * total) {
        bracket.known = true;
        bracket.sure = largest;
        if (heaviest >= limit_above) bracket.least = largest;
    }
    // Bins tell the cut where every octave has its own.
    if (bracket.least == largest || lowest <= top - static_cast<i32>(OCTAVES)) return bracket;
    const float second = before + through_both;
    const float through[2] = {second - both + upper, second};
    u32 may = NONE;
    u32 does = NONE;
#pragma unroll
    for (u32 half = 2; half-- > 0;) {
        if (through[half] * MORE >= limit) may = first + half;
        if (through[half] * LESS >= limit_above) does = first + half;
    }
    const u32 does_here = __reduce_min_sync(ALL_LANES, does);
    const u32 may_here = __reduce_min_sync(ALL_LANES, may);
    if (lane == first_of(__ballot_sync(ALL_LANES, does == does_here))) {
        own.may = may_here;
        own.does = does;
        own.through = does == first ? through[0] : through[1];
    }
    __syncthreads();
    may = __reduce_min_sync(ALL_LANES, other.may);
    does = __reduce_min_sync(ALL_LANES, other.does);
    // In descending order, so many bins have all of their weights.
    const u32 complete = static_cast<u32>(top - highest + 1) * PER_OCTAVE;
    may = min(may, complete);
    // A token may be counted in the bin beside its own where it is so near to it.
    constexpr float NEAR_BY = 1.0f / 512.0f;
    const auto lower_end = [&](u32 at) {
        const float fraction = static_cast<float>(PER_OCTAVE - 1 - at % PER_OCTAVE) * (1.0f / PER_OCTAVE);
        return static_cast<float>(octave_of(at)) + approximate_log2(1.0f + fraction);
    };
    // No bin is wider: log2(33 / 32) octaves.
    constexpr float WIDTH = 0.0444f;
    bracket.known = true;
    bracket.sure = fminf(bracket.sure, __fdividef(lower_end(may) + WIDTH + NEAR_BY, octaves));
    if (does != NONE) bracket.least = __fdividef(lower_end(does) - NEAR_BY, octaves);
    if (does < complete) {
        bracket.counted = __fdividef(lower_end(does) + NEAR_BY, octaves);
        bracket.through = shared.parts[does / (2 * WARP)].through * MORE;
        bracket.limit = limit;
        bracket.top = static_cast<float>(top);
    }
    return bracket;
}
