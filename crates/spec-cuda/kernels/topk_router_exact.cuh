// topk_router by the exact rules: crates/spec-core/src/exact.rs bit by bit. A warp routes a token,
// with the token's experts in registers. For tokens whose result the quick route cannot be certain
// of.
#pragma once

#include "topk_router_row.cuh"

namespace exact {

// The square root of ln(1 + e^x): 0 for NaN and below EXP_MIN.
INLINE float sqrt_softplus(float x) {
    const float largest = 3.40282346638528859812e38f;
    const float v = x > largest ? largest : x;
    return __fsqrt_rn(add(v > 0.0f ? v : 0.0f, ln_1p(exp(-fabsf(v)))));
}

}  // namespace exact

// The factor of a row's scores; 0 if the row's maximum is negative infinity.
INLINE float row_factor(float max, u64 sum) {
    return max > negative_infinity() ? exact::softmax::factor(sum) : 0.0f;
}

// The two largest values of the `sharing` lanes (a power of two) of a group.
INLINE void merge_two(u32 sharing, float& best, float& second) {
    for (u32 o = 1; o < sharing; o *= 2) {
        const float other_best = __shfl_xor_sync(ALL_LANES, best, o);
        const float other_second = __shfl_xor_sync(ALL_LANES, second, o);
        second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
        best = fmaxf(best, other_best);
    }
}

// The exact scores of four logits. Not inlined: the exact route is long, and rarely taken where
// speed matters.
template <typename O>
__device__ __noinline__ float4 exact_scores(u32 scoring, float4 x, float max, float factor) {
    const auto score = [&](float logit) {
        if (HAS_OPTIONS<O> && scoring == SQRT_SOFTPLUS) return exact::sqrt_softplus(logit);
        return scoring == SOFTMAX
                   ? exact::softmax::score(exact::softmax::weight(logit, max), factor)
                   : exact::sigmoid(logit);
    };
    return make_float4(score(x.x), score(x.y), score(x.z), score(x.w));
}

// The sum of the weights of four logits in units of 2^-31.
__device__ __noinline__ u64 exact_weights(float4 x, float max) {
    const auto weight = [&](float logit) -> u64 {
        return exact::softmax::fixed(exact::softmax::weight(logit, max));
    };
    return weight(x.x) + weight(x.y) + weight(x.z) + weight(x.w);
}

template <u32 V>
INLINE u32 largest_of(const u32 (&keys)[V]) {
    u32 tree[V];
#pragma unroll
    for (u32 j = 0; j < V; ++j) tree[j] = keys[j];
#pragma unroll
    for (u32 width = 32; width > 0; width /= 2) {
#pragma unroll
        for (u32 j = 0; j < width && j + width < V; ++j) tree[j] = max(tree[j], tree[j + width]);
    }
    return tree[0];
}

// Whether the lane's group is kept. `best` and `second` are the lane's two largest choices. All
// experts of a lane belong to one group, and the lanes of a group are a power of two.
__device__ __noinline__ bool keeps_group(const Params& p, float best, float second) {
    const u32 lane = lane_id();
    const u32 sharing = WARP / p.groups;
    merge_two(sharing, best, second);
    u32 key = exact::sort_key(p.group_max ? best : exact::add(best, second));
    bool kept = false;
    for (u32 pick = 0; pick < p.topk_groups; ++pick) {
        const u32 largest = __reduce_max_sync(ALL_LANES, key);
        const u32 group = (__ffs(__ballot_sync(ALL_LANES, key == largest)) - 1) / sharing;
        if (lane / sharing == group) {
            kept = true;
            key = 0;
        }
    }
    return kept;
}

// Routes a token by the exact rules: V * 32 experts, V a multiple of 4, groups as `keeps_group`
// requires, experts chosen by score, topk at most 32, rows aligned to 16 bytes.
template <u32 V, typename O>
__device__ __noinline__ void exact_route(const Params& p, const O& options, u64 token) {
    const u32 lane = lane_id();
    const u32 base = lane * V;
    const LogitRow row = logits_of<true>(p, token);
    float x[V];
    const auto first_of = [&](u32) { return base; };
    LoadedLogits<1, V> loaded;
    loaded.load(row, p.experts, first_of);
    loaded.values(row.type, x, first_of);
    float choice[V];
    float max = negative_infinity();
    bool nonfinite = false;
#pragma unroll
    for (u32 j = 0; j < V; ++j) {
        choice[j] = p.bias != nullptr ? bias_of(p, options, base + j) : 0.0f;
        nonfinite |= !exact::finite(x[j]);
        max = fmaxf(max, x[j]);
    }
    nonfinite = __any_sync(ALL_LANES, nonfinite);
    if (nonfinite && lane == 0) raise(p.flags, NON_FINITE);

    float factor = 0.0f;
    if (p.scoring == SOFTMAX) {
        max = warp_max(max);
        u64 sum = 0;
#pragma unroll
        for (u32 j = 0; j < V; j += 4) {
            sum += exact_weights(make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]), max);
        }
        factor = row_factor(max, warp_sum(sum));
    }
    u32 key[V];
#pragma unroll
    for (u32 j = 0; j < V; j += 4) {
        const float4 four = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
        const float4 scores = exact_scores<O>(p.scoring, four, max, factor);
        const float s[4] = {scores.x, scores.y, scores.z, scores.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float c = p.bias != nullptr ? exact::add(s[i], choice[j + i]) : s[i];
            choice[j + i] = c == c && x[j + i] == x[j + i] ? c : negative_infinity();
            key[j + i] = exact::sort_key(choice[j + i]);
        }
    }

    if (p.topk_groups < p.groups) {
        const u32 masked = p.excluded ? 0 : exact::sort_key(0.0f);
        float best = negative_infinity();
        float second = negative_infinity();
#pragma unroll
        for (u32 j = 0; j < V; ++j) {
            second = fmaxf(second, fminf(best, choice[j]));
            best = fmaxf(best, choice[j]);
        }
        if (!keeps_group(p, best, second)) {
#pragma unroll
            for (u32 j = 0; j < V; ++j) key[j] = masked;
        }
    }

    u32 mine = 0;
    for (u32 pick = 0; pick < p.topk; ++pick) {
        const u32 best = largest_of(key);
        const u32 largest = __reduce_max_sync(ALL_LANES, best);
        const u32 owner = __ffs(__ballot_sync(ALL_LANES, best == largest)) - 1;
        u32 slot = 0;
#pragma unroll
        for (u32 j = V; j > 0; --j) {
            if (key[j - 1] == largest) slot = j - 1;
        }
        const u32 expert = __shfl_sync(ALL_LANES, base + slot, owner);
        if (lane == pick) mine = expert;
#pragma unroll
        for (u32 j = 0; j < V; ++j) {
            if (lane == owner && j == slot) key[j] = 0;
        }
    }
    const float logit = lane < p.topk ? row[mine] : 0.0f;
    const float4 four = make_float4(logit, logit, logit, logit);
    const float score = exact_scores<O>(p.scoring, four, max, factor).x;
    store<false>(p, options, token, lane, score, mine, true);
}
