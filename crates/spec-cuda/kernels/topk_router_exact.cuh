// topk_router by the exact rules, for any shape: crates/spec-core/src/exact.rs
// replayed bit by bit, a warp a token.
#pragma once

#include "common.cuh"

struct Params {
    const void* x;
    u64 x_stride;
    const float* bias;
    Rows<float> weights;
    Rows<i32> indices;
    u32* flags;
    u64 tokens;
    u32 experts;
    u32 groups;
    u32 topk_groups;
    u32 topk;
    u32 softmax;
    u32 group_max;
    u32 excluded;
    u32 renormalize;
    float scale;
    u32 reserved;
};
static_assert(sizeof(Params) == 112);

INLINE float negative_infinity() { return __uint_as_float(0xFF800000u); }

INLINE float warp_max(float v) {
#pragma unroll
    for (u32 o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
    return v;
}

INLINE float warp_sum(float v) {
#pragma unroll
    for (u32 o = 16; o > 0; o /= 2) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

INLINE u64 warp_sum(u64 v) {
#pragma unroll
    for (u32 o = 16; o > 0; o /= 2) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

// A lane has the score of the pick at `position`, or one at or beyond topk:
// writes weights and indices. The picks are in the first eight lanes, or `wide`.
INLINE void store(const Params& p, float* weights, i32* indices, u32 position, float score,
                  u32 expert, bool wide) {
    const bool picked = position < p.topk;
    // The share first: a large scale over a small sum would be infinite.
    float share = score;
    if (p.renormalize) {
        float sum = picked ? score : 0.0f;
        if (wide) {
            sum += __shfl_xor_sync(ALL_LANES, sum, 16);
            sum += __shfl_xor_sync(ALL_LANES, sum, 8);
        }
#pragma unroll
        for (u32 o = 4; o > 0; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        share = __fdividef(score, sum + 1e-20f);
    }
    if (picked) {
        weights[position] = p.scale * share;
        indices[position] = static_cast<i32>(expert);
    }
}

// ---- the exact route ----------------------------------------------------------

// The two largest of values that lanes share in groups of a power of two.
INLINE void merge_two(u32 sharing, float& best, float& second) {
    for (u32 o = 1; o < sharing; o *= 2) {
        const float other_best = __shfl_xor_sync(ALL_LANES, best, o);
        const float other_second = __shfl_xor_sync(ALL_LANES, second, o);
        second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
        best = fmaxf(best, other_best);
    }
}

// Marks the kept groups: keys[g] becomes 1 or 0. `choices` has every expert's
// choice; both lie in shared memory of this warp.
__device__ __noinline__ void keep_groups(const Params& p, const float* choices, u32* keys) {
    const u32 lane = lane_id();
    const u32 size = p.experts / p.groups;
    // Lanes that share a group: as many as there are, in powers of two.
    u32 sharing = 1;
    while (sharing * 2 * p.groups <= WARP) sharing *= 2;
    const u32 per_round = WARP / sharing;
    const u32 part = lane % sharing;
    for (u32 first = 0; first < p.groups; first += per_round) {
        const u32 group = first + lane / sharing;
        float best = negative_infinity();
        float second = negative_infinity();
        if (group < p.groups) {
            for (u32 i = part; i < size; i += sharing) {
                const float c = choices[group * size + i];
                second = fmaxf(second, fminf(best, c));
                best = fmaxf(best, c);
            }
        }
        merge_two(sharing, best, second);
        const float score = p.group_max || size == 1 ? best : exact::add(best, second);
        if (group < p.groups && part == 0) keys[group] = exact::sort_key(score);
    }
    __syncwarp();
    // A group's rank is how many are better; at most 32 groups a lane.
    u32 kept = 0;
    for (u32 i = 0; i * WARP + lane < p.groups; ++i) {
        const u32 group = i * WARP + lane;
        const u32 key = keys[group];
        u32 rank = 0;
        for (u32 other = 0; other < p.groups; ++other) {
            const u32 k = keys[other];
            rank += k > key || (k == key && other < group);
        }
        if (rank < p.topk_groups) kept |= 1u << i;
    }
    __syncwarp();
    for (u32 i = 0; i * WARP + lane < p.groups; ++i) keys[i * WARP + lane] = kept >> i & 1;
    __syncwarp();
}

// Four logits' scores by the exact rules, side by side. Calls, not copies: the
// exact route is long as it is, and rarely taken where speed counts.
__device__ __noinline__ float4 exact_scores(bool softmax, float4 x, float max, float factor) {
    const auto score = [&](float logit) {
        return softmax ? exact::softmax::score(exact::softmax::weight(logit, max), factor)
                       : exact::sigmoid(logit);
    };
    return make_float4(score(x.x), score(x.y), score(x.z), score(x.w));
}

// The sum of four logits' weights in units of 2^-31.
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

// Whether the lane's group is kept, where a lane's experts are all of one group
// and lanes share groups in powers of two; of a lane's two largest choices.
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

// Routes a token by the exact rules; V * 32 >= experts, V a multiple of 4.
// WHOLE: V * 32 experts, and groups as `keeps_group` wants them; else `shared`
// holds two words an expert for this warp alone.
template <u32 V, bool WHOLE, typename T>
__device__ __noinline__ void exact_route(const Params& p, u64 token, u32* shared) {
    const u32 lane = lane_id();
    const u32 base = lane * V;
    const T* row = static_cast<const T*>(p.x) + token * p.x_stride;
    float x[V];
    float choice[V];
    float max = negative_infinity();
    bool odd = false;
#pragma unroll
    for (u32 j = 0; j < V; ++j) {
        const bool there = WHOLE || base + j < p.experts;
        x[j] = there ? to_f32(row[base + j]) : 0.0f;
        choice[j] = there && p.bias != nullptr ? __ldg(p.bias + base + j) : 0.0f;
        odd |= !exact::finite(x[j]);
        if (there) max = fmaxf(max, x[j]);
    }
    odd = __any_sync(ALL_LANES, odd);
    if (odd && lane == 0) raise(p.flags, NON_FINITE);

    float factor = 0.0f;
    if (p.softmax) {
        max = warp_max(max);
        u64 sum = 0;
#pragma unroll
        for (u32 j = 0; j < V; j += 4) {
            // What is not there weighs nothing, as a NaN does.
            float4 four = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
            if (!WHOLE) {
                const float nan = __uint_as_float(0x7FC00000u);
                if (base + j >= p.experts) four.x = nan;
                if (base + j + 1 >= p.experts) four.y = nan;
                if (base + j + 2 >= p.experts) four.z = nan;
                if (base + j + 3 >= p.experts) four.w = nan;
            }
            sum += exact_weights(four, max);
        }
        factor = exact::softmax::factor(warp_sum(sum));
    }
    u32 key[V];
#pragma unroll
    for (u32 j = 0; j < V; j += 4) {
        const float4 four = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
        const float4 scores = exact_scores(p.softmax, four, max, factor);
        const float s[4] = {scores.x, scores.y, scores.z, scores.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float c = p.bias != nullptr ? exact::add(s[i], choice[j + i]) : s[i];
            const bool there = WHOLE || base + j + i < p.experts;
            choice[j + i] = there && c == c && x[j + i] == x[j + i] ? c : negative_infinity();
            key[j + i] = there ? exact::sort_key(choice[j + i]) : 0;
        }
    }

    if (p.topk_groups < p.groups) {
        const u32 masked = p.excluded ? 0 : exact::sort_key(0.0f);
        if constexpr (WHOLE) {
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
        } else {
            float* choices = reinterpret_cast<float*>(shared);
            u32* kept = shared + p.experts;
#pragma unroll
            for (u32 j = 0; j < V; ++j) {
                if (base + j < p.experts) choices[base + j] = choice[j];
            }
            __syncwarp();
            keep_groups(p, choices, kept);
            const u32 size = p.experts / p.groups;
#pragma unroll
            for (u32 j = 0; j < V; ++j) {
                if (base + j < p.experts && kept[(base + j) / size] == 0) key[j] = masked;
            }
            __syncwarp();
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
    const float logit = lane < p.topk ? to_f32(row[mine]) : 0.0f;
    const float4 four = make_float4(logit, logit, logit, logit);
    const float score = exact_scores(p.softmax, four, max, factor).x;
    store(p, p.weights[token], p.indices[token], lane, score, mine, true);
}
