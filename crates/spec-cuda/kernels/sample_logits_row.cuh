// Rows of sample_logits that are read more than once: as the entries that filters leave, their weights
// and sums of weights.
#pragma once

#include "sample_logits_race.cuh"
#include "select.cuh"

// ---- rows -----------------------------------------------------------------------

// What logits become: what is not allowed, and NaN, is negative infinity.
template <typename T>
struct Masked {
    static constexpr u32 N = Pack<T>::N;

    const u32* mask;
    u32 vocab;
    // An entry of less weight becomes nothing.
    u64 floor;
    Scale scale;

    INLINE bool as_is() const { return mask == nullptr && floor == 0; }

    // Of a token in the row.
    INLINE float operator()(float value, u32 token) const {
        const bool in = mask == nullptr || (mask[token / 32] >> token % 32 & 1) != 0;
        // The larger one is the number, where one is.
        const float entry = in ? fmaxf(value, negative_infinity()) : negative_infinity();
        return floor != 0 && scale.fixed(entry) < floor ? nothing() : entry;
    }

    INLINE void operator()(const float (&values)[N], float (&entries)[N], u32 first) const {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            entries[j] = first + j < vocab ? (*this)(values[j], first + j) : nothing();
        }
    }
};

template <typename T>
using LogitRow = EnteredRow<T, Masked<T>>;

// ---- sums -----------------------------------------------------------------------

struct NothingMore {
    template <u32 N>
    INLINE void operator()(const float (&)[N], u32) const {}
};

// The warp's sum of all weights of its piece. Where the largest is finite, also(entries,
// index of the first) sees them too.
template <bool MEANWHILE, typename Row, typename Also>
INLINE u64 sum_all(const Row& row, u32 lane, const Scale& scale, Also&& also) {
    u64 total = 0;
    if (!exact::finite(scale.largest)) {
        row.each(lane, [&](const float(&entries)[Row::N], u32) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += entries[j] == scale.largest ? ONE : 0;
        });
        return warp_sum(total);
    }
    const auto add = [&](const float(&entries)[Row::N], u32 first) {
        u32 high = 0;
        u32 low = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            // Of the largest this is 0, and its weight 1.
            const Split split(exp_of_units(scale.below(entries[j])));
            high += split.high;
            low += split.low;
        }
        total += (static_cast<u64>(high - Row::N * SPLIT_BITS) << 20) + (low - Row::N * SPLIT_BITS);
        also(entries, first);
    };
    // Eight entries at once.
    if (row.is_read_as_is()) {
        row.template each_as_is<8 / Row::N, MEANWHILE>(lane, add);
    } else {
        row.template each<2>(lane, add);
    }
    return warp_sum(total);
}

// The entry at a place that is known at run time only, without an array in memory.
template <u32 N>
INLINE float pick(const float (&entries)[N], u32 at) {
    float entry = entries[0];
#pragma unroll
    for (u32 j = 1; j < N; ++j) entry = j == at ? entries[j] : entry;
    return entry;
}

// The weights of what filters keep.
struct Kept {
    Scale scale;
    Cut cut;
    u64 floor;

    INLINE bool all() const { return cut.all() && floor == 0; }

    INLINE u64 operator()(float x, u32 index) const {
        if (!cut.keeps(key_of(x), index)) return 0;
        const u64 fixed = scale.fixed(x);
        return fixed >= floor ? fixed : 0;
    }

    // Of neighbours, into `weights`; false where all are 0.
    template <u32 N>
    INLINE bool vector(const FloatCut& by, const float (&entries)[N], u32 first,
                       u64 (&weights)[N]) const {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < N; ++j) those |= by.keeps(entries[j], first + j) ? 1u << j : 0u;
        if (those == 0) return false;
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            const u64 fixed = scale.fixed(entries[j]);
            weights[j] = (those >> j & 1) != 0 && fixed >= floor ? fixed : 0;
        }
        return true;
    }

    template <typename Row>
    INLINE u64 sum(const Row& row, u32 lane) const {
        if (all()) return sum_all<true>(row, lane, scale, NothingMore{});
        const FloatCut by(cut);
        u64 total = 0;
        row.each(lane, [&](const float(&entries)[Row::N], u32 first) {
            u64 weights[Row::N];
            if (!vector(by, entries, first, weights)) return;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += weights[j];
        });
        return warp_sum(total);
    }
};

// ---- results --------------------------------------------------------------------

// Writes the probabilities of this warp's piece: share(x, index). Where probabilities and logits share an
// alignment, those of a whole vector are stored 16 bytes at a time.
template <typename T, typename Share>
INLINE void write_probs(const Params<T>& p, u32 row_index, const LogitRow<T>& row, u32 lane,
                        Share&& share) {
    if (p.probs.data == nullptr) return;
    constexpr u32 N = LogitRow<T>::N;
    float* const to = p.probs[row_index];
    const bool aligned = (reinterpret_cast<u64>(to) - row.lead * sizeof(float)) % 16 == 0;
    row.each(lane, [&](const float(&entries)[N], u32 first) {
        float shares[N];
#pragma unroll
        for (u32 j = 0; j < N; ++j) shares[j] = share(entries[j], first + j);
        if (aligned && row.whole(first)) {
#pragma unroll
            for (u32 j = 0; j < N; j += 4) {
                *reinterpret_cast<float4*>(&to[first + j]) =
                    make_float4(shares[j], shares[j + 1], shares[j + 2], shares[j + 3]);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (first + j < p.vocab) to[first + j] = shares[j];
            }
        }
    });
}

// Writes the token that finishes at a place, and what goes with it; NONE where there is none. `logprob`
// is the logarithm of its share.
template <typename T>
INLINE void write_token(const Params<T>& p, u32 row, u32 place, u32 token, float logprob) {
    p.tokens.set(row, place, static_cast<i32>(token));
    if (p.processed_logprobs.data == nullptr) return;
    p.processed_logprobs[row][place] = token == NONE ? negative_infinity() : logprob;
}

// The logarithm of a share of what was drawn from.
struct LogShare {
    Scale scale;
    // Of the sum of weights.
    float logarithm;

    INLINE LogShare(const Scale& weights, u64 total)
        : scale(weights), logarithm(logf(__ull2float_rn(total) * (1.0f / 1099511627776.0f))) {}

    INLINE float operator()(float x) const {
        return (x == scale.largest ? 0.0f : scale.below(x)) - logarithm;
    }
};
