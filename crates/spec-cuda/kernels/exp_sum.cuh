// The sum of exponentials of a row's logits, and the logarithm of the row's softmax.
#pragma once

#include "max_or_nan.cuh"

// e^x, approximately.
INLINE float approximate_exp(float x) { return approximate_exp2(x * 1.44269504f); }

// A sum of exponentials, in units of the exponential of one of the logits.
struct ExpSum {
    // A sum keeps its unit until a logit exceeds the unit by more than this: the warps of a row whose logits
    // ascend would otherwise change units all the time. The error of an exponential grows with its argument:
    // with a slack of 16, the logarithm of a share of nearly 1 is off by more than 1e-6.
    static constexpr float SLACK = 4.0f;

    float unit;
    float sum;

    INLINE ExpSum() : unit(-LARGEST), sum(0.0f) {}

    // For what LogitGroups::survey reads. NaN counts as negative infinity. A sum that has met positive infinity
    // is not used.
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

    // Over a warp.
    INLINE void fold() {
        const float largest = exact::value_of_key(__reduce_max_sync(ALL_LANES, exact::sort_key(unit)));
        sum = warp_sum(sum * approximate_exp(unit - largest));
        unit = largest;
    }

    INLINE u64 bits() const { return static_cast<u64>(__float_as_uint(unit)) << 32 | __float_as_uint(sum); }

    // The sum of some sums, whose `bits` are given, in units of the exponential of `largest`. By a warp.
    INLINE static float total(const u64* sums, u32 count, float largest) {
        float sum = 0.0f;
        for (u32 i = lane_id(); i < count; i += WARP) {
            const float unit = __uint_as_float(static_cast<u32>(sums[i] >> 32));
            sum += __uint_as_float(static_cast<u32>(sums[i])) * approximate_exp(unit - largest);
        }
        return warp_sum(sum);
    }
};

// ln softmax of a row's logits.
struct LogSoftmax {
    float largest;
    // Of the sum of exponentials, in units of the exponential of the largest logit. Where that is infinite, of
    // the number of infinite logits.
    float logarithm;

    INLINE float operator()(float x) const {
        // NaN and negative infinity.
        if (!(x > negative_infinity())) return negative_infinity();
        return (x == largest ? 0.0f : exact::sub(x, largest)) - logarithm;
    }
};
