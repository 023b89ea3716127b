// Rows of sample_logits that are read more than once: entries after mask and min-p, their weights,
// and sums of weights.
#pragma once

#include "sample_logits_race.cuh"
#include "select.cuh"

// ---- rows -----------------------------------------------------------------------

// Turns logits into entries: tokens that are not allowed, and NaN, become negative infinity.
template <typename T>
struct Masked {
    static constexpr u32 N = Pack<T>::N;

    const u32* mask;
    u32 vocab;
    // Entries with a smaller weight become absent (NaN).
    u64 floor;
    Scale scale;

    INLINE bool as_is() const { return mask == nullptr && floor == 0; }

    // The entry of one token of the row.
    INLINE float operator()(float value, u32 token) const {
        const bool in = mask == nullptr || (mask[token / 32] >> token % 32 & 1) != 0;
        // fmaxf returns the number if one argument is NaN.
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

struct NoVectorVisitor {
    template <u32 N>
    INLINE void operator()(const float (&)[N], u32) const {}
};

// The warp's sum of the weights of its piece. If the largest logit is finite, also(entries, index
// of the first) is called for every vector.
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
            // For the largest entry, the argument is 0 and the weight 1.
            const Split split(exp_of_units(scale.below(entries[j])));
            high += split.high;
            low += split.low;
        }
        total += (static_cast<u64>(high - Row::N * SPLIT_BITS) << 20) + (low - Row::N * SPLIT_BITS);
        also(entries, first);
    };
    row.template each_ahead<MEANWHILE>(lane, add);
    return warp_sum(total);
}

// The element of an array in registers whose index is known only at run time.
template <u32 N>
INLINE float pick(const float (&entries)[N], u32 at) {
    float entry = entries[0];
#pragma unroll
    for (u32 j = 1; j < N; ++j) entry = j == at ? entries[j] : entry;
    return entry;
}

// The weights of the tokens that filters keep.
struct Kept {
    Scale scale;
    Cut cut;
    u64 floor;

    INLINE bool all() const { return cut.all() && floor == 0; }

    // Stores the weights of a vector of entries in `weights`; returns false if all weights are 0.
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

    // The probabilities of a vector of entries: `factor` times each weight that is kept and at
    // least `least`, else 0.
    template <u32 N>
    INLINE void probs(const FloatCut& by, const float (&entries)[N], u32 first, float least,
                      float factor, float (&probs)[N]) const {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            probs[j] = 0.0f;
            those |= by.keeps(entries[j], first + j) ? 1u << j : 0u;
        }
        if (those == 0) return;
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            const float t = entries[j] == scale.largest ? 0.0f : scale.below(entries[j]);
            const float weight = exp_of_units(t);
            if ((those >> j & 1) != 0 && weight >= least) probs[j] = exact::mul(weight, factor);
        }
    }

    template <typename Row>
    INLINE u64 sum(const Row& row, u32 lane) const {
        if (all()) return sum_all<true>(row, lane, scale, NoVectorVisitor{});
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

// The factor from a weight to its probability, where `total` is the sum of weights in units of
// 2^-40. No probability is subnormal, so the product with the weight equals exact::softmax::score.
INLINE float prob_factor(u64 total) {
    return exact::mul(exact::softmax::factor(total), 1.0f / 32768.0f);
}

// The least weight of at least `floor` units of 2^-40, and of at least one unit: any smaller weight
// is 0 units or below `floor`. Exact.
INLINE float least_weight(u64 floor) {
    return static_cast<float>(max(floor, 1ull)) * (1.0f / 1099511627776.0f);
}

// The tokens of the row that are in a warp's piece: begin .. end.
struct Tokens {
    u32 begin;
    u32 end;

    template <typename Row>
    INLINE explicit Tokens(const Row& row) {
        begin = row.begin == 0 ? 0 : row.begin * Row::N - row.lead;
        end = row.begin == row.end ? begin : min(row.end * Row::N - row.lead, row.length);
    }
};

// Writes zeros as probabilities of the tokens begin .. end. By a warp.
__device__ __noinline__ void write_zeros(float* to, u32 begin, u32 end, u32 lane) {
    const u32 past = static_cast<u32>(reinterpret_cast<u64>(to + begin) / sizeof(float)) % 4;
    const u32 head = min((4 - past) % 4, end - begin);
    if (lane < head) to[begin + lane] = 0.0f;
    begin += head;
    const u32 quads = (end - begin) / 4;
#pragma unroll 4
    for (u32 i = lane; i < quads; i += WARP) {
        reinterpret_cast<float4*>(to + begin)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    begin += quads * 4;
    if (begin + lane < end) to[begin + lane] = 0.0f;
    // Orders these stores before those of other lanes.
    __syncwarp();
}

// Writes the probabilities of the tokens begin .. end in a row in which `token` has probability 1.
// By a warp.
INLINE void write_one_hot(float* to, u32 begin, u32 end, u32 lane, u32 token) {
    write_zeros(to, begin, end, lane);
    if (lane == 0 && begin <= token && token < end) to[token] = 1.0f;
}

// Writes the probabilities of this warp's piece: probs_of(entries, index of the first,
// probabilities) computes those of a vector. If probabilities and logits have the same alignment,
// the probabilities of a whole vector are stored 16 bytes at a time.
template <typename T, typename Probs>
INLINE void write_probs(const Params<T>& p, u32 row_index, const LogitRow<T>& row, u32 lane,
                        Probs&& probs_of) {
    constexpr u32 N = LogitRow<T>::N;
    float* const to = p.probs[row_index];
    const bool aligned = (reinterpret_cast<u64>(to) - row.lead * sizeof(float)) % 16 == 0;
    row.each_ahead(lane, [&](const float(&entries)[N], u32 first) {
        float probs[N];
        probs_of(entries, first, probs);
        if (aligned && row.whole(first)) {
#pragma unroll
            for (u32 j = 0; j < N; j += 4) {
                *reinterpret_cast<float4*>(&to[first + j]) =
                    make_float4(probs[j], probs[j + 1], probs[j + 2], probs[j + 3]);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (first + j < p.vocab) to[first + j] = probs[j];
            }
        }
    });
}

// Writes the token of one place of the order of finishing (NONE if there is none), and `logprob`,
// the logarithm of the token's probability, if it is wanted.
template <typename T>
INLINE void write_token(const Params<T>& p, u32 row, u32 place, u32 token, float logprob) {
    p.tokens.set(row, place, static_cast<i32>(token));
    if (p.processed_logprobs.data == nullptr) return;
    p.processed_logprobs[row][place] = token == NONE ? negative_infinity() : logprob;
}

// The logarithm of the probability with which a token was drawn.
struct LogProb {
    Scale scale;
    // The logarithm of the sum of weights.
    float logarithm;

    INLINE LogProb(const Scale& weights, u64 total)
        : scale(weights), logarithm(logf(__ull2float_rn(total) * (1.0f / 1099511627776.0f))) {}

    INLINE float operator()(float x) const {
        return (x == scale.largest ? 0.0f : scale.below(x)) - logarithm;
    }
};
