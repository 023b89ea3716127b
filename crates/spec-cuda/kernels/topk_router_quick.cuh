// The quick routes of topk_router compute scores with the device's approximate functions. This file
// has these scores, integer keys in the order of the choices, and the distance that two keys must
// have so that the exact choices are certainly in the same order.
#pragma once

#include "topk_router_exact.cuh"

INLINE float quick_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float quick_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float quick_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

constexpr float LOG2_E = 1.44269504088896340736f;

// TOP: the largest quick score. ERROR: the largest difference between the quick and the exact
// score. The square root of softplus is unbounded: tokens with a logit above LARGEST_LOGIT take the
// exact route. Its error is that of the approximate square root (relative error 2^-23) plus a few
// times 2^-24 from the other operations.
template <u32 SCORING>
struct Scale {
    static constexpr float TOP = SCORING == SQRT_SOFTPLUS ? 8.0f : 1.0f;
    static constexpr float ERROR = SCORING == SQRT_SOFTPLUS ? 4e-6f : 1e-6f;
    static constexpr float LARGEST_LOGIT = 60.0f;
};

// The square root of softplus, at most Scale::TOP.
INLINE float quick_sqrt_softplus(float x) {
    // 0 if the exact exponential is 0, because the square root of a tiny number is not tiny.
    const float e = fabsf(x) > -exact::EXP_MIN ? 0.0f : quick_exp2(fabsf(x) * -LOG2_E);
    float p = 0.0053648227f;
    p = fmaf(p, e, -0.030065786f);
    p = fmaf(p, e, 0.07920452f);
    p = fmaf(p, e, -0.13753802f);
    p = fmaf(p, e, 0.19153655f);
    p = fmaf(p, e, -0.24857163f);
    p = fmaf(p, e, 0.33321324f);
    p = fmaf(p, e, -0.49999648f);
    p = fmaf(p, e, 1.0f);
    return fminf(quick_sqrt(fmaf(p, e, fmaxf(x, 0.0f))), Scale<SQRT_SOFTPLUS>::TOP);
}

// Knuth's merge exchange (Algorithm 5.2.2M), descending, in registers.
template <u32 N, u32 P, u32 Q, u32 R, u32 D>
INLINE void merge_exchange(u32 (&keys)[N]) {
    constexpr u32 TOP = N > 8 ? 8 : N > 4 ? 4 : 2;
#pragma unroll
    for (u32 i = 0; i + D < N; ++i) {
        if ((i & P) == R) {
            const u32 a = keys[i];
            const u32 b = keys[i + D];
            keys[i] = max(a, b);
            keys[i + D] = min(a, b);
        }
    }
    if constexpr (Q != P) {
        merge_exchange<N, P, Q / 2, P, Q - P>(keys);
    } else if constexpr (P > 1) {
        merge_exchange<N, P / 2, TOP, 0, P / 2>(keys);
    }
}

template <u32 N>
INLINE void sort_descending(u32 (&keys)[N]) {
    static_assert(N > 2 && N <= 16);
    constexpr u32 TOP = N > 8 ? 8 : N > 4 ? 4 : 2;
    merge_exchange<N, TOP, TOP, 0, TOP>(keys);
}

// A key has 23 bits of a choice, mapped to [1.05, 1.95], and 9 bits that are larger for a lower
// index. 0 is below every key.
constexpr u32 INDEX_BITS = 9;
constexpr u32 INDEX_MASK = (1u << INDEX_BITS) - 1;
constexpr float KEY_LOW = 1.05f;
constexpr float KEY_SPAN = 0.9f;

INLINE u32 key_of(float mapped, u32 inverse_index) {
    return (__float_as_uint(mapped) << INDEX_BITS) + inverse_index;
}

INLINE u32 expert_of(u32 key) { return INDEX_MASK - (key & INDEX_MASK); }

INLINE u32 gap(u32 larger, u32 smaller) {
    return (larger >> INDEX_BITS) - (smaller >> INDEX_BITS);
}

// The mapping from choices to keys, the same for every token, and the distances that keys of
// experts and of groups must have so that the exact choices are certainly in the same order.
struct Mapping {
    float low;
    float factor;
    float key_low;
    u32 expert_gap;
    u32 group_gap;
    bool usable;

    // `low` and `high` bound all biases and 0, and scores lie in 0 ..= `top`. The quick and the
    // exact score differ by less than `error`, a choice is rounded to a relative precision of
    // 2^-24, and a mapped choice, which lies in `key_low` ..= `key_low` + `span`, is cut to 2^-23.
    INLINE Mapping(float low, float high, bool finite, float top, float score_error, float key_low,
                   float span)
        : low(low), key_low(key_low) {
        const float range = high - low + top;
        factor = __fdividef(span, range);
        const float error = score_error + 1.2e-7f * (fmaxf(-low, high) + top);
        const float units = factor * error * 8388608.0f + 4.0f;
        usable = finite && range < 1e6f && units < 1e5f;
        expert_gap = static_cast<u32>(2.0f * units) + 2;
        group_gap = static_cast<u32>(4.0f * units) + 8;
    }

    INLINE float operator()(float bias) const { return fmaf(bias - low, factor, key_low); }
};

// The mapping for a scoring function.
template <u32 SCORING>
INLINE Mapping mapping_of(float low, float high, bool finite) {
    return Mapping(low, high, finite, Scale<SCORING>::TOP, Scale<SCORING>::ERROR, KEY_LOW,
                   KEY_SPAN);
}

// The largest of the lanes' floats, none of them NaN, by one integer reduction.
INLINE float warp_max_ordered(float v) {
    const i32 bits = __float_as_int(v);
    const i32 largest = __reduce_max_sync(ALL_LANES, bits ^ (bits >> 31 & 0x7FFFFFFF));
    return __int_as_float(largest ^ (largest >> 31 & 0x7FFFFFFF));
}
