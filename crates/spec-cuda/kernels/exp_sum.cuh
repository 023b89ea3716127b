// The sum of the exponentials of a row's logits, and the logarithm of the row's softmax.
#pragma once

#include "max_or_nan.cuh"

// e^x, approximately.
INLINE float approximate_exp(float x) { return approximate_exp2(x * 1.44269504f); }

// A sum of exponentials of logits, stored as sum * e^unit so that it does not overflow.
struct ExpSum {
    // `unit` changes only when a logit exceeds it by more than SLACK. If `unit` followed every
    // larger logit, a warp whose logits ascend would rescale its sum all the time. The error of an
    // exponential grows with its argument: with a slack of 16, the log-probability of a token whose
    // probability is nearly 1 would be off by more than 1e-6.
    static constexpr float SLACK = 4.0f;

    float unit;
    float sum;

    INLINE ExpSum() : unit(-LARGEST), sum(0.0f) {}

    // Called by LogitGroups::survey before a vector of logits: every vector must be visited. NaN
    // counts as negative infinity. The sum is not used if a logit was positive infinity.
    INLINE bool begin(float) const { return true; }

    template <u32 N>
    INLINE void operator()(const float (&values)[N], bool there) {
        if (!there) return;
        float logits[N];
        float top = values[0];
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            logits[j] = values[j];
            top = max_or_nan(top, values[j]);
        }
        if (!(top < unit + SLACK)) {
            top = negative_infinity();
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                logits[j] = fmaxf(logits[j], negative_infinity());
                top = fmaxf(top, logits[j]);
            }
            if (top > unit) {
                sum *= approximate_exp(unit - top);
                unit = top;
            }
        }
        float added = 0.0f;
#pragma unroll
        for (u32 j = 0; j < N; ++j) added += approximate_exp(logits[j] - unit);
        sum += added;
    }

    // Combines the sums of the warp's lanes. All lanes then have the result.
    INLINE void fold() {
        const float largest =
            exact::value_of_key(__reduce_max_sync(ALL_LANES, exact::sort_key(unit)));
        sum = warp_sum(sum * approximate_exp(unit - largest));
        unit = largest;
    }

    INLINE u64 bits() const {
        return static_cast<u64>(__float_as_uint(unit)) << 32 | __float_as_uint(sum);
    }

    // The total of `count` sums, given by their `bits`, divided by e^largest. By a warp.
    INLINE static float total(const u64* sums, u32 count, float largest) {
        float sum = 0.0f;
        for (u32 i = lane_id(); i < count; i += WARP) {
            const float unit = __uint_as_float(static_cast<u32>(sums[i] >> 32));
            sum += __uint_as_float(static_cast<u32>(sums[i])) * approximate_exp(unit - largest);
        }
        return warp_sum(sum);
    }
};

// The natural logarithm of the softmax of a row's logits.
struct LogSoftmax {
    float largest;
    // The logarithm of the sum of exponentials divided by e^largest. If the largest logit is
    // infinite, the logarithm of the number of infinite logits.
    float logarithm;

    INLINE float operator()(float x) const {
        // x is NaN or negative infinity.
        if (!(x > negative_infinity())) return negative_infinity();
        return (x == largest ? 0.0f : exact::sub(x, largest)) - logarithm;
    }
};
