// Finds where top-p cuts a row, from a histogram of weights by size.
//
// A second reading of the row, from L2, adds every weight to one of the block's bins. A bin is a
// thirty-second of an octave, which the exponent and the first fraction bits of the weight's float
// determine. The bins of 32 octaves form a ring, so that blocks need not know the row's largest
// logit. Weights so small that top-p leaves them out are not added to bins. The leading block reads
// the bins of all blocks, and finds the bin in which top-p cuts:
//
//     weights    | surely kept ............ | bin of the cut | surely left out ...
//     the race   of all tokens from the bin of the cut on: most often a surely kept token wins
//
// The sums are approximate; their largest error widens the region between surely kept and surely
// left out. If top-p leaves out less than this error, no token is surely left out, and all tokens
// race. A token with more than half of the total weight needs no bins: top-p always keeps that
// token, and often no other. Equal logits go to the same bin, where atomic additions wait for each
// other: a row with many equal logits therefore gets no histogram.
#pragma once

#include "race_leader_block.cuh"
#include "sample_logits_row.cuh"

// The logits between which top-p cuts a row.
struct Bracket {
    bool known;
    // Tokens with logits below `least` are left out, if `least` is finite; tokens with logits of at
    // least `sure` are kept.
    float least;
    float sure;
    // For a logit of at least `counted`, `through` includes every token before it in descending
    // order. Infinite if some of these tokens are in no bin.
    float counted;
    // An upper bound of the sum of weights down to the bin of the cut, and a lower bound of the sum
    // at which top-p cuts, both divided by 2^top.
    float through;
    float limit;
    float top;

    INLINE static Bracket unknown() {
        const float low = negative_infinity();
        return {false, low, infinity(), infinity(), 0.0f, 0.0f, 0.0f};
    }

    // Whether top-p surely keeps a token with logit x.
    INLINE bool keeps(float x, float octaves) const;
};

struct WeightHistogram {
    static constexpr u32 PER_OCTAVE = 32;
    static constexpr u32 OCTAVES = 32;
    static constexpr u32 BINS = PER_OCTAVE * OCTAVES;
    // The number of low bits of a float that do not affect its bin.
    static constexpr u32 BELOW = 18;
    // The number of low fraction bits that a bin does not count. A weight at the lower end of an
    // octave counts UNITS.
    static constexpr u32 CUT = 10;
    static constexpr float UNITS = 8192.0f;
    // For logits of more octaves than this, floats have too few fraction bits.
    static constexpr float MAX_OCTAVES = 1984.0f;
    // A weight more than DEPTH octaves below the largest weight of its warp goes to no bin.
    static constexpr float DEPTH = 20.0f;
    // The largest relative error of a sum, from CUT and from the rounding of a weight.
    static constexpr float ERROR = 1.0f / 7168.0f;

    // The result of a warp: the sum of all its weights, divided by 2^reference, and the lowest
    // octave whose weights went to bins.
    struct alignas(16) Sum {
        float sum;
        i32 reference;
        i32 least;
        i32 unused;

        INLINE static Sum none() { return {0.0f, 0, -2 * static_cast<i32>(MAX_OCTAVES), 0}; }
        INLINE static Sum unknown() { return {infinity(), 0, 0, 0}; }
    };

    // The results of a warp of the leading block, whose threads have two bins each.
    struct Part {
        float sum;
        i32 highest;
        i32 lowest;
        float binned;
        // In descending order of bins: the first bin whose running sum may reach the cut, the first
        // bin whose running sum surely does, and the running sum through that bin.
        u32 may;
        u32 does;
        float through;
    };

    struct Shared {
        Sum of_warps[SELECT_WARPS];
        // In the leading block.
        Part parts[SELECT_WARPS];
    };

    // The factor from logits to octaves of weight.
    INLINE static float octaves_of(float inverse) { return inverse * 1.44269504f; }

    // Adds the weights of a warp's range of a row to the bins of the block. `tops` has the largest
    // logit of each group of the row.
    template <typename T>
    static __device__ __noinline__ Sum add(u32 (&bins)[BINS], const T* row, u32 vocab,
                                           const float* tops, const WarpRange range, float octaves,
                                           u64 top_p);

    // Finds where top-p cuts. By the leading block, when the histograms of all blocks are complete.
    // `largest` is the row's largest logit.
    static __device__ __noinline__ Bracket find(u32 (&bins)[BINS], Shared& shared, const Team& team,
                                                float largest, float octaves, u64 top_p);

    // Clears the bins. By the block, before a barrier that precedes `add`.
    INLINE static void clear(u32 (&bins)[BINS]) {
        reinterpret_cast<uint2*>(&bins[0])[threadIdx.x] = make_uint2(0, 0);
    }

private:
    // The first bin of an octave in the ring.
    INLINE static u32 ring_of(i32 octave) {
        return static_cast<u32>(octave + 127) % OCTAVES * PER_OCTAVE;
    }

    // Adds one weight.
    INLINE static void add_weight(u32 bins, float weight, float least, float& sum) {
        const u32 bits = __float_as_uint(weight);
        const u32 units = ((bits & 0x007FFFFFu) | 0x00800000u) >> CUT;
        const u32 at = bins + ((bits >> (BELOW - 2)) & ((BINS - 1) * 4));
        sum += weight;
        asm volatile(
            "{ .reg .pred heavy; setp.ge.f32 heavy, %0, %1; @heavy red.shared.add.u32 [%2], %3; "
            "}" ::"f"(weight),
            "f"(least), "r"(at), "r"(units)
            : "memory");
    }
};
static_assert(WeightHistogram::BINS == 2 * SELECT_THREADS);

INLINE bool Bracket::keeps(float x, float octaves) const {
    const float weight = approximate_exp2(fmaf(x, octaves, -top)) * (1.0f - WeightHistogram::ERROR);
    return x >= sure || (x >= counted && through - weight < limit);
}

template <typename T>
__device__ __noinline__ WeightHistogram::Sum WeightHistogram::add(u32 (&bins)[BINS], const T* row,
                                                                  u32 vocab, const float* tops,
                                                                  const WarpRange range,
                                                                  float octaves, u64 top_p) {
    constexpr u32 N = Pack<T>::N;
    constexpr u32 AT_ONCE = 32 / N;
    const u32 lane = lane_id();
    float top = negative_infinity();
    for (u32 group = range.begin + lane; group < range.end; group += WARP) {
        top = fmaxf(top, tops[group]);
    }
    // `top` is the largest logit of the lane's groups. If it is the same in more than half of the
    // lanes, so many logits may be equal that additions to their bin would wait for each other: the
    // warp makes no histogram.
    const u32 equal_lanes = __popc(__match_any_sync(ALL_LANES, __float_as_uint(top)));
    const u32 lanes = min(range.end - range.begin, WARP);
    const bool tied = __any_sync(ALL_LANES, lane < lanes && equal_lanes > max(lanes / 2, 1u));
    const u32 key = __reduce_max_sync(ALL_LANES, exact::sort_key(top));
    if (key <= LOWEST_KEY) return Sum::none();
    const float height = exact::value_of_key(key) * octaves;
    if (tied || !(fabsf(height) < MAX_OCTAVES)) return Sum::unknown();
    // A multiple of OCTAVES is subtracted from the exponent, so that the bits of a weight still
    // determine its place in the ring.
    const float reference = floorf(height * (1.0f / OCTAVES)) * OCTAVES;
    const float tallest = warp_sum(approximate_exp2(fmaf(top, octaves, -height)));
    // A weight goes to no bin if it is smaller than the share that top-p leaves out (or that errors
    // hide) times a lower bound of the mean weight: all such weights together are less than that
    // share. The lower bound adds up the weights of the lanes' `top` without the largest one, which
    // may be far above all others.
    const float left_out =
        fmaxf(static_cast<float>((1ull << 32) - top_p) * (1.0f / 4294967296.0f), 2.0f * ERROR);
    const float mean = __fdividef(fmaxf(tallest - 1.0f, 1e-6f),
                                  static_cast<float>((range.end - range.begin) * GROUP));
    const float depth = fmaxf(floorf(approximate_log2(fmaxf(left_out * mean, 1e-30f))), -DEPTH);
    const float from = floorf(height) + depth;
    const float least = approximate_exp2(from - reference);
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(&bins[0]));
    float sum = 0.0f;
    const u32 whole = min(range.end, vocab / GROUP);
    const u32 count = whole > range.begin ? (whole - range.begin) * (GROUP / N) : 0;
    const T* const own = row + range.begin * GROUP;
#pragma unroll 1
    for (u32 base = lane; base < count; base += AT_ONCE * WARP) {
        Pack<T> packs[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            packs[i] = stream_pack(own + min(base + i * WARP, count - 1) * N);
        }
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
    // The tokens after the row's last whole group.
#pragma unroll 1
    for (u32 token = whole * GROUP + lane; token < min(vocab, range.end * GROUP); token += WARP) {
        add_weight(to, approximate_exp2(fmaf(to_f32(row[token]), octaves, -reference)), least, sum);
    }
    return {warp_sum(sum), static_cast<i32>(reference), static_cast<i32>(from), 0};
}

__device__ __noinline__ Bracket WeightHistogram::find(u32 (&bins)[BINS], Shared& shared,
                                                      const Team& team, float largest,
                                                      float octaves, u64 top_p) {
    constexpr float MORE = 1.0f + ERROR;
    constexpr float LESS = 1.0f - ERROR;
    const u32 lane = team.lane;
    const float height = largest * octaves;
    // If a warp of this block has made no histogram, the bins lack the weights of that warp and are
    // not used.
    const bool has_histogram = shared.of_warps[lane % SELECT_WARPS].sum < LARGEST;
    if (!__all_sync(ALL_LANES, has_histogram) || !(fabsf(height) < MAX_OCTAVES)) {
        return Bracket::unknown();
    }
    // The octave above that of the largest logit, into which rounding may have put its weight. It
    // is the first octave in descending order.
    const i32 top = static_cast<i32>(floorf(height)) + 1;
    const u32 first = 2 * threadIdx.x;
    const auto octave_of = [&](u32 at) { return top - static_cast<i32>(at / PER_OCTAVE); };
    const u32 place = ring_of(octave_of(first)) + PER_OCTAVE - 2 - first % PER_OCTAVE;
    Sum its = Sum::none();
    if (threadIdx.x < team.pieces()) {
        its = *team.blocks.of(&shared.of_warps[threadIdx.x % SELECT_WARPS],
                              threadIdx.x / SELECT_WARPS);
    }
    uint2 counts = make_uint2(0, 0);
#pragma unroll 8
    for (u32 block = 0; block < team.blocks.size; ++block) {
        const uint2 two = *reinterpret_cast<const uint2*>(team.blocks.of(&bins[place], block));
        counts.x += two.x;
        counts.y += two.y;
    }
    const float unit =
        approximate_exp2(static_cast<float>(octave_of(first) - top)) * (1.0f / UNITS);
    const float upper = static_cast<float>(counts.y) * unit;
    const float both = upper + static_cast<float>(counts.x) * unit;
    const float through_both = warp_inclusive_sum(both, lane);
    const float part = its.sum == 0.0f
                           ? 0.0f
                           : its.sum * approximate_exp2(static_cast<float>(its.reference - top));
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
    const float kept_weight = static_cast<float>(top_p) * (1.0f / 4294967296.0f) * total;
    // One unit of exact sums.
    constexpr float UNIT = 1.0f / 1099511627776.0f;
    const float limit = kept_weight * LESS - UNIT;
    const float limit_above = fmaxf(kept_weight * MORE, 2.0f * UNIT);
    // If one token has more than half of the total weight, no other token has the largest logit.
    const float heaviest = approximate_exp2(height - static_cast<float>(top)) * LESS;
    if (heaviest > 0.5f * MORE * total) {
        bracket.known = true;
        bracket.sure = largest;
        if (heaviest >= limit_above) bracket.least = largest;
    }
    // Bins determine the cut only if no two octaves share a place in the ring.
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
    // The number of bins, in descending order, that contain all of their weights.
    const u32 complete = static_cast<u32>(top - highest + 1) * PER_OCTAVE;
    may = min(may, complete);
    // Rounding may put a token that is this near to the end of its bin into the neighbouring bin.
    constexpr float NEAR_BY = 1.0f / 512.0f;
    const auto lower_end = [&](u32 at) {
        const float fraction =
            static_cast<float>(PER_OCTAVE - 1 - at % PER_OCTAVE) * (1.0f / PER_OCTAVE);
        return static_cast<float>(octave_of(at)) + approximate_log2(1.0f + fraction);
    };
    // The width of the widest bin: log2(33 / 32) octaves.
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
