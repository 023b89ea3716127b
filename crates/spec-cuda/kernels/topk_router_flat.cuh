// topk_router without groups, for numbers of experts for which topk_router.cu has no kernel: at
// most 128 Q experts whose logits have a multiple of 16 bytes, and topk at most 16. A warp routes a
// token. A lane has four neighbouring experts of every 128:
//
//     experts    | 0 .. 3 | 4 .. 7 | ... | 124 .. 127 | 128 .. 131 | ...
//     lane       |   0    |   1    |     |     31     |      0     |
//
// 1. Keys as on the quick route (topk_router_quick.cuh), with the expert in ten of their bits. A
//    lane finds the largest of its own keys.
// 2. The topk-th largest of these 32 keys is a lower bound of the picks, since topk experts have
//    keys that are at least as large. Keys that are below this bound by more than the error of
//    quick scores cannot be picks.
// 3. The remaining candidates go to shared memory: on average 22 for topk 16 of 896 random logits,
//    and more than 32 for one token of 500.
// 4. A lane for each candidate computes its exact choice and its rank among the candidates: the
//    picks.
//
// If there are more than MAX_CANDIDATES candidates (many equal logits), or a number is not finite,
// the token goes to `route_general`.
//
// Bytes: each logit is read once, topk weights and indices are written: 15 MB for 4096 tokens of
// 896 f32 experts, 4 us at 3.7 TB/s. Instructions: about 700 a token, 3 us for 4096 tokens on 132
// multiprocessors.
#pragma once

#include "topk_router_general.cuh"
#include "topk_router_quick.cuh"

namespace flat {

constexpr u32 WARPS = FLAT_THREADS / WARP;
// Neighbouring experts of a lane.
constexpr u32 QUAD = 4;
constexpr u32 MAX_CANDIDATES = 2 * WARP;
// A key has 22 bits of a choice, mapped to [1.025, 1.475], and 10 bits that are larger for a lower
// index.
constexpr u32 INDEX_BITS = 10;
constexpr u32 INDEX_MASK = (1u << INDEX_BITS) - 1;
constexpr float KEY_LOW = 1.025f;
constexpr float KEY_SPAN = 0.45f;
// For experts beyond the last: the score is 0, and the key is below the key of every expert.
constexpr float ABSENT_LOGIT = -1000.0f;
constexpr float ABSENT_BIAS = 1.0f;

INLINE u32 expert_of(u32 key) { return INDEX_MASK - (key & INDEX_MASK); }

// Per-warp scratch: the candidates of one token.
struct Scratch {
    u32 maxima[WARP];
    u32 keys[MAX_CANDIDATES];
    // The key of the exact choice in the upper half, and a number that is larger for a lower index
    // in the lower half; 0 after the last candidate.
    u64 choices[MAX_CANDIDATES];
};

template <u32 SCORING>
INLINE float quick_score(float logit) {
    return SCORING == SIGMOID ? quick_reciprocal(1.0f + quick_exp2(logit * -LOG2_E))
                              : quick_sqrt_softplus(logit);
}

INLINE float exact_score(u32 scoring, float logit) {
    return scoring == SIGMOID ? exact::sigmoid(logit) : exact::sqrt_softplus(logit);
}

// Routes a token by the exact rules. Not inlined, because it is rarely needed.
__device__ __noinline__ void rescue(const Params& p, const Options& options, u32 token, u32* keys) {
    route_general(p, options, NoOptions(), token, keys);
}

// Loads the biases into shared memory, mapped for keys. By all threads of the block.
template <u32 Q>
INLINE Mapping map_biases(const Params& p, const Options& options, float* biases) {
    constexpr u32 READS = Q * QUAD * WARP / FLAT_THREADS;
    __shared__ float lows[WARPS];
    __shared__ float highs[WARPS];
    float bias[READS];
    float low = 0.0f;
    float high = 0.0f;
    bool finite = true;
#pragma unroll
    for (u32 i = 0; i < READS; ++i) {
        const u32 expert = i * FLAT_THREADS + threadIdx.x;
        bias[i] = p.bias != nullptr && expert < p.experts ? bias_of(p, options, expert) : 0.0f;
        finite &= exact::finite(bias[i]);
        low = fminf(low, bias[i]);
        high = fmaxf(high, bias[i]);
    }
    if (p.bias != nullptr) {
        finite = __all_sync(ALL_LANES, finite);
        low = -warp_max_ordered(-low);
        high = warp_max_ordered(high);
        if (lane_id() == 0) {
            lows[threadIdx.x / WARP] = low;
            // A bias that is not finite makes the highest bias infinite.
            highs[threadIdx.x / WARP] = finite ? high : infinity();
        }
        __syncthreads();
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            low = fminf(low, lows[w]);
            high = fmaxf(high, highs[w]);
        }
        finite = exact::finite(high);
        if (!finite && blockIdx.x == 0 && threadIdx.x == 0) raise(p.flags, NON_FINITE);
    }
    const bool root = p.scoring == SQRT_SOFTPLUS;
    const float top = root ? Scale<SQRT_SOFTPLUS>::TOP : Scale<SIGMOID>::TOP;
    const float error = root ? Scale<SQRT_SOFTPLUS>::ERROR : Scale<SIGMOID>::ERROR;
    const Mapping map(low, high, finite, top, error, KEY_LOW, KEY_SPAN);
#pragma unroll
    for (u32 i = 0; i < READS; ++i) {
        const u32 expert = i * FLAT_THREADS + threadIdx.x;
        biases[expert] = expert < p.experts ? map(bias[i]) : ABSENT_BIAS;
    }
    __syncthreads();
    return map;
}

// Computes the keys of a lane's experts. Returns whether quick scores are near the exact scores.
template <u32 Q, u32 SCORING>
INLINE bool make_keys(const Mapping& map, const float* biases, const float (&logits)[Q * QUAD],
                      u32 (&keys)[Q][QUAD]) {
    const u32 lane = lane_id();
    float nonfinite = 0.0f;
    float top = 0.0f;
#pragma unroll
    for (u32 i = 0; i < Q; ++i) {
        const float4 raw = reinterpret_cast<const float4*>(biases)[i * WARP + lane];
        const float bias[QUAD] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (u32 j = 0; j < QUAD; ++j) {
            const float x = logits[i * QUAD + j];
            // The products add up to a number that is not finite if a logit is not finite or is
            // huge.
            if (j % 2 == 1) nonfinite = fmaf(logits[i * QUAD + j - j % 2], x, nonfinite);
            if (SCORING == SQRT_SOFTPLUS) top = fmaxf(top, x);
            const float mapped = fmaf(quick_score<SCORING>(x), map.factor, bias[j]);
            const u32 inverse = INDEX_MASK - (i * WARP + lane) * QUAD - j;
            keys[i][j] = (__float_as_uint(mapped) << INDEX_BITS) + inverse;
        }
    }
    return exact::finite(nonfinite) && top <= Scale<SCORING>::LARGEST_LOGIT;
}

// The `rank`-th largest, counted from 1, of the lanes' keys; a smaller number if fewer lanes have
// experts.
INLINE u32 largest_of_lanes(Scratch& scratch, u32 key, u32 rank) {
    scratch.maxima[lane_id()] = key;
    __syncwarp();
    u32 above = 0;
#pragma unroll
    for (u32 i = 0; i < WARP; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(scratch.maxima + i);
        above += four.x > key;
        above += four.y > key;
        above += four.z > key;
        above += four.w > key;
    }
    return __reduce_max_sync(ALL_LANES, above + 1 >= rank ? key : 0);
}

// Orders `count` candidates by their exact choices, and writes the picks.
INLINE void pick(const Params& p, const Options& options, Scratch& scratch, u32 token,
                 const LogitRow& row, u32 count) {
    const u32 lane = lane_id();
    u32 expert[2] = {0, 0};
    float score[2] = {0.0f, 0.0f};
    u64 choice[2] = {0, 0};
    const bool two = count > WARP;
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
        if (s == 1 && !two) break;
        const u32 slot = lane + s * WARP;
        if (slot < count) {
            expert[s] = expert_of(scratch.keys[slot]);
            score[s] = exact_score(p.scoring, row[expert[s]]);
            float sum = score[s];
            if (p.bias != nullptr) sum = exact::add(sum, bias_of(p, options, expert[s]));
            choice[s] = static_cast<u64>(exact::sort_key(sum)) << 32 | (INDEX_MASK - expert[s]);
        }
        scratch.choices[slot] = choice[s];
    }
    __syncwarp();
    u32 rank[2] = {0, 0};
#pragma unroll 1
    for (u32 i = 0; i < count; i += 4) {
        u64 four[4];
        const ulonglong2* const from = reinterpret_cast<const ulonglong2*>(scratch.choices + i);
        four[0] = from[0].x;
        four[1] = from[0].y;
        four[2] = from[1].x;
        four[3] = from[1].y;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            rank[0] += four[j] > choice[0];
            if (two) rank[1] += four[j] > choice[1];
        }
    }
    // A lane without a candidate ranks after all candidates.
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
        if (choice[s] == 0) rank[s] = MAX_CANDIDATES;
    }
    float normalized[2] = {score[0], score[1]};
    if (p.renormalize) {
        const float sum = warp_sum((rank[0] < p.topk ? score[0] : 0.0f) +
                                   (rank[1] < p.topk ? score[1] : 0.0f));
        // Divides before scaling: a large scale divided by a small sum would be infinite.
        normalized[0] = __fdividef(score[0], sum + 1e-20f);
        normalized[1] = __fdividef(score[1], sum + 1e-20f);
    }
    write_pick(p, options, NoOptions(), token, rank[0], normalized[0], expert[0]);
    if (two) write_pick(p, options, NoOptions(), token, rank[1], normalized[1], expert[1]);
    write_shared(p, options, NoOptions(), token);
}

// Routes the first `count` tokens; the other tokens are padding. Rows are aligned to 16 bytes, and
// there are fewer than 2^31 tokens.
template <u32 Q>
INLINE void route(const Params& p, const Options& options, u64 count) {
    extern __shared__ __align__(16) u32 memory[];
    // The biases, which all warps read; then `words` words for each warp.
    float* const biases = reinterpret_cast<float*>(memory);
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    u32* const own = memory + Q * QUAD * WARP + warp * options.words;
    Scratch& scratch = *reinterpret_cast<Scratch*>(own);
    const u32 tokens = static_cast<u32>(count);
    const u32 step = gridDim.x * WARPS;
    u32 token = blockIdx.x * WARPS + warp;
    LoadedLogits<Q, QUAD> loaded;
    const auto first_of = [&](u32 i) { return (i * WARP + lane) * QUAD; };
    const auto load = [&](u32 token) {
        loaded.load(logits_of<true>(p, token), p.experts, first_of);
    };
    if (tokens == 0) return;
    // The first rows load while the block reads the biases.
    load(min(token, tokens - 1));
    const Mapping map = map_biases<Q>(p, options, biases);
    if (token >= tokens) return;
    while (true) {
        float logits[Q * QUAD];
        loaded.values(p.x_type, logits, first_of);
#pragma unroll
        for (u32 i = 0; i < Q * QUAD; ++i) {
            if (first_of(i / QUAD) >= p.experts) logits[i] = ABSENT_LOGIT;
        }
        u32 keys[Q][QUAD];
        bool sure = map.usable;
        if (p.scoring == SIGMOID) {
            sure &= make_keys<Q, SIGMOID>(map, biases, logits, keys);
        } else {
            sure &= make_keys<Q, SQRT_SOFTPLUS>(map, biases, logits, keys);
        }
        u32 largest = 0;
#pragma unroll
        for (u32 i = 0; i < Q; ++i) {
#pragma unroll
            for (u32 j = 0; j < QUAD; ++j) largest = max(largest, keys[i][j]);
        }
        const u32 bound = largest_of_lanes(scratch, largest, p.topk) >> INDEX_BITS;
        const u32 least = max(bound - min(bound, map.expert_gap), 1u) << INDEX_BITS;
        u32 mine = 0;
#pragma unroll
        for (u32 i = 0; i < Q; ++i) {
#pragma unroll
            for (u32 j = 0; j < QUAD; ++j) mine += keys[i][j] >= least;
        }
        const u32 through = warp_inclusive_sum(mine, lane);
        const u32 candidates = __shfl_sync(ALL_LANES, through, WARP - 1);
        sure = __all_sync(ALL_LANES, sure) && candidates <= MAX_CANDIDATES;
        if (sure) {
            u32 slot = through - mine;
#pragma unroll
            for (u32 i = 0; i < Q; ++i) {
#pragma unroll
                for (u32 j = 0; j < QUAD; ++j) {
                    if (keys[i][j] >= least) scratch.keys[slot++] = keys[i][j];
                }
            }
            __syncwarp();
        }
        if (sure) {
            pick(p, options, scratch, token, logits_of<true>(p, token), candidates);
        } else {
            rescue(p, options, token, own);
        }
        token += step;
        if (token >= tokens) break;
        // The next token's keys overwrite those that were just read.
        __syncwarp();
        load(token);
    }
}

}  // namespace flat
