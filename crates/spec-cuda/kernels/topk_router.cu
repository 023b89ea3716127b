// topk_router: selects the topk experts of each token of a mixture-of-experts layer, and their
// weights.
//
// A warp routes a token, and no warp waits for another. A lane has V neighbouring experts (8 of
// 256), so a group of experts belongs to neighbouring lanes, and a lower lane has lower indices.
//
// Bytes: each logit is read once, topk weights and indices are written: 71 MB for 65536 tokens of
// 256 f32 experts, 24 us at 3.0 TB/s. Exact arithmetic would take longer: the exact score of an
// expert takes 40 operations, and a token has 256 experts. So there are two routes:
//
// * `quick` computes scores with the device's approximate exp2 and reciprocal (5 operations). It
//   maps choices (score plus bias) to integer keys with the expert's index in the low bits, sorts
//   the keys of each lane in registers, and takes the largest head of all lanes topk times. An
//   error bound then shows whether exact scores could change the result of a comparison. If they
//   could, among the picks or between groups, the exact scores of the candidates are computed and
//   decide. If that is not enough (ties among too many experts, a number that is not finite), the
//   token goes to:
// * `exact_route` (topk_router_exact.cuh), which follows the exact rules bit by bit.
//
// DeepSeek-V3's shape has a faster route, `grouped::route` (topk_router_grouped.cuh); its kernels
// with options are in topk_router_grouped.cu. Without groups, numbers of experts for which no
// kernel here is compiled take `flat::route` (topk_router_flat.cu). All other shapes take
// `route_general` (topk_router_general.cuh). All routes give the same indices. Kernels are compiled
// with `NoOptions` or with `Options` (topk_router_row.cuh), so that options that few models need
// cost other models nothing.
#include "topk_router_general.cuh"
#include "topk_router_grouped.cuh"

// ---- the quick route ----------------------------------------------------------

// Shared memory of a warp: the scores of a token by expert; the keys of each lane in descending
// order, followed by 0; and the keys that were taken.
template <u32 V>
struct Scratch {
    static constexpr u32 ROW = V + 4;
    float scores[V * WARP];
    u32 keys[WARP * ROW];
    u32 taken[WARP + 4];
};

// The sorted keys of a lane. The first two are in registers, so that taking a key waits for no
// load; the others are in shared memory.
struct Queue {
    u32 head;
    u32 second;
    const u32* rest;
};

// Takes the largest of the lanes' heads.
template <u32 V>
INLINE u32 take(Scratch<V>& scratch, u32 pick, Queue& queue) {
    const u32 largest = __reduce_max_sync(ALL_LANES, queue.head);
    if (queue.head == largest) {
        scratch.taken[pick] = largest;
        queue.head = queue.second;
        queue.second = *queue.rest++;
    }
    return largest;
}

// Whether this lane's group is among the `kept` best groups. Keys are equal within a group and
// different between groups. `distance` is the difference between the lowest kept and the highest
// dropped sum.
INLINE bool keeps_key(u32 key, u32 groups, u32 kept, u32& distance) {
    bool keeps;
    if (groups == 8) {
        // The number of better groups, found by comparing with all other groups.
        u32 rank = 0;
#pragma unroll
        for (u32 other = 1; other < 8; ++other) {
            rank += __shfl_sync(ALL_LANES, key, lane_id() + 4 * other) > key;
        }
        keeps = rank < kept;
    } else {
        u32 left = key;
        for (u32 pick = 0; pick < kept; ++pick) {
            if (left == __reduce_max_sync(ALL_LANES, left)) left = 0;
        }
        keeps = left == 0;
    }
    const u32 last = __reduce_min_sync(ALL_LANES, keeps ? key : ~0u);
    distance = (last >> 8) - (__reduce_max_sync(ALL_LANES, keeps ? 0 : key) >> 8);
    return keeps;
}

// The exact score of a logit, for scoring functions that need no other logit.
template <u32 SCORING>
INLINE float exact_score(float logit) {
    return SCORING == SQRT_SOFTPLUS ? exact::sqrt_softplus(logit) : exact::sigmoid(logit);
}

// The exact choice of an expert, for the same scoring functions. All numbers are finite.
template <u32 SCORING, typename O>
INLINE float exact_choice(const Params& p, const O& options, const LogitRow& row, u32 expert) {
    const float score = exact_score<SCORING>(row[expert]);
    return p.bias != nullptr ? exact::add(score, bias_of(p, options, expert)) : score;
}

// Maps the biases of a lane's experts for keys.
template <u32 V, u32 SCORING, typename O>
INLINE Mapping map_biases(const Params& p, const O& options, float (&bias)[V]) {
    // The quick route of softmax has no bias.
    const bool biased = SCORING != SOFTMAX && p.bias != nullptr;
    float low = 0.0f;
    float high = 0.0f;
    bool finite = true;
#pragma unroll
    for (u32 j = 0; j < V; ++j) {
        bias[j] = biased ? bias_of(p, options, lane_id() * V + j) : 0.0f;
        finite &= exact::finite(bias[j]);
        low = fminf(low, bias[j]);
        high = fmaxf(high, bias[j]);
    }
    if (biased) {
        finite = __all_sync(ALL_LANES, finite);
        low = -warp_max_ordered(-low);
        high = warp_max_ordered(high);
    }
    const Mapping map = mapping_of<SCORING>(low, high, finite);
#pragma unroll
    for (u32 j = 0; j < V; ++j) bias[j] = map(bias[j]);
    return map;
}

// Whether the quick scores of a token's logits are near the exact scores.
template <u32 V, u32 SCORING>
INLINE bool has_quick_scores(const float (&logits)[V]) {
    float nonfinite = 0.0f;
#pragma unroll
    for (u32 j = 0; j < V; ++j) nonfinite = fmaf(logits[j], 0.0f, nonfinite);
    if (SCORING == SQRT_SOFTPLUS) {
        constexpr float LARGEST = Scale<SCORING>::LARGEST_LOGIT;
#pragma unroll
        for (u32 j = 0; j < V; ++j) {
            nonfinite = logits[j] > LARGEST ? __uint_as_float(0x7FC00000u) : nonfinite;
        }
    }
    return !__any_sync(ALL_LANES, nonfinite != nonfinite);
}

// Computes the quick scores and the keys of a lane's experts, and stores the scores. Returns the
// sum of the lane's scores, for softmax.
template <u32 V, u32 SCORING>
INLINE float make_keys(const Mapping& map, const float (&bias)[V], const float (&logits)[V],
                       u32 inverse, float* scores, u32 (&keys)[V]) {
    float max = 0.0f;
    float total = 0.0f;
    if (SCORING == SOFTMAX) {
        max = logits[0];
#pragma unroll
        for (u32 j = 1; j < V; ++j) max = fmaxf(max, logits[j]);
        max = warp_max_ordered(max);
    }
    float4 four;
#pragma unroll
    for (u32 j = 0; j < V; ++j) {
        float score;
        if (SCORING == SOFTMAX) {
            score = quick_exp2((logits[j] - max) * LOG2_E);
            total += score;
        } else if (SCORING == SQRT_SOFTPLUS) {
            score = quick_sqrt_softplus(logits[j]);
        } else {
            score = quick_reciprocal(1.0f + quick_exp2(logits[j] * -LOG2_E));
        }
        keys[j] = key_of(fmaf(score, map.factor, bias[j]), inverse - j);
        (j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w) = score;
        if (j % 4 == 3) reinterpret_cast<float4*>(scores)[lane_id() * (V / 4) + j / 4] = four;
    }
    return total;
}

// Whether the lane's group is among the kept groups. A lane's `keys` are in descending order.
// `sure` becomes false if quick scores cannot tell.
template <u32 V, u32 SCORING, typename O>
INLINE bool is_kept(const Params& p, const O& options, const Mapping& map, const LogitRow& row,
                    const u32 (&keys)[V], bool& sure) {
    // The number of lanes of a group, and the lane's group number counted from 255 down.
    const u32 sharing = WARP / p.groups;
    const u32 inverse_group = 255 - (lane_id() >> (__ffs(sharing) - 1));
    u32 first = keys[0];
    u32 second = keys[1];
    for (u32 o = 1; o < sharing; o *= 2) {
        const u32 other_first = __shfl_xor_sync(ALL_LANES, first, o);
        const u32 other_second = __shfl_xor_sync(ALL_LANES, second, o);
        second = max(min(first, other_first), max(second, other_second));
        first = max(first, other_first);
    }
    const u32 sum = (first >> INDEX_BITS) + ((p.group_max ? first : second) >> INDEX_BITS);
    u32 distance;
    const bool keeps = keeps_key((sum << 8) + inverse_group, p.groups, p.topk_groups, distance);
    if (distance > map.group_gap) return keeps;
    // If the two largest keys of each lane are certain, exact sums of their choices decide.
    const bool two = gap(keys[1], keys[2]) > map.expert_gap;
    sure &= SCORING != SOFTMAX && __all_sync(ALL_LANES, two);
    const float a = exact_choice<SCORING>(p, options, row, expert_of(keys[0]));
    const float b = exact_choice<SCORING>(p, options, row, expert_of(keys[1]));
    return keeps_group(p, fmaxf(a, b), fminf(a, b));
}

// A lane's pick: its expert, its place among the picks, and its score. The lane after the last pick
// has the best expert that is not picked.
struct Pick {
    u32 key;
    u32 expert;
    u32 position;
    float score;
};

// Orders the picks, and the expert after them, by their exact choices, where quick scores cannot.
// `close`: whether the lane's pick and the one before it may have to change places. `open`: whether
// the expert after the last pick may have to be picked; `extra` is the key of that expert. `head`:
// the largest key of the lane that is not taken. Returns whether the order is certain.
template <u32 SCORING, typename O>
INLINE bool order_exactly(const Params& p, const O& options, const Mapping& map,
                          const LogitRow& row, bool close, bool open, u32 extra, u32 head,
                          Pick& pick) {
    const u32 lane = lane_id();
    const bool there = lane <= p.topk && pick.key != 0;
    const float logit = there ? row[pick.expert] : 0.0f;
    if (SCORING == SOFTMAX || p.topk == WARP) {
        // Exact softmax scores need the exact sum. Without it, only the order of equal logits is
        // certain.
        const bool tie = logit == __shfl_up_sync(ALL_LANES, logit, 1);
        return SCORING == SOFTMAX && !open && !__any_sync(ALL_LANES, close && !tie);
    }
    // The exact choices of the candidates decide, unless yet another expert is near.
    const u32 next = __reduce_max_sync(ALL_LANES, head);
    const bool sure = !open || gap(extra, next) > map.expert_gap;
    pick.score = exact_score<SCORING>(logit);
    float choice = pick.score;
    if (there && p.bias != nullptr) choice = exact::add(choice, bias_of(p, options, pick.expert));
    const u32 key = there ? exact::sort_key(choice) : 0;
    u32 rank = 0;
    for (u32 i = 0; i <= p.topk; ++i) {
        const u32 k = __shfl_sync(ALL_LANES, key, i);
        const u32 e = __shfl_sync(ALL_LANES, pick.expert, i);
        rank += k > key || (k == key && e < pick.expert);
    }
    pick.position = lane <= p.topk ? rank : lane;
    return sure;
}

// Routes the first `count` tokens on the quick route; the tokens after them are padding. The quick
// route requires exactly V * 32 experts; at least topk experts in the kept groups, so that no lane
// runs out of keys; 1, 2, 4, 8, 16 or 32 groups; fewer than 2^31 tokens; topk of at most 32;
// aligned rows; and no bias if the scores are a softmax.
template <u32 V, u32 SCORING, typename O>
INLINE void quick(const Params& p, const O& options, u64 count) {
    __shared__ Scratch<V> scratches[QUICK_THREADS / WARP];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    Scratch<V>& scratch = scratches[warp];
    const u32 step = gridDim.x * (QUICK_THREADS / WARP);
    const u32 tokens = static_cast<u32>(count);
    u32 token = blockIdx.x * (QUICK_THREADS / WARP) + warp;
    if (token >= tokens) return;
    const auto row_of = [&](u32 token) { return logits_of(p, token); };
    LoadedLogits<1, V> loaded;
    const auto first_of = [&](u32) { return lane * V; };
    const auto load = [&](u32 token) { loaded.load(row_of(token), V * WARP, first_of); };
    load(token);
    u32* const sorted = scratch.keys + lane * Scratch<V>::ROW;
    sorted[V] = 0;
    sorted[V + 1] = 0;

    float bias[V];
    const Mapping map = map_biases<V, SCORING>(p, options, bias);
    const bool grouped = p.topk_groups < p.groups;
    // The choice of an expert in a dropped group is 0.0 unless such experts are excluded. Picks
    // must have larger keys.
    const u32 least = grouped && !p.excluded ? key_of(map(0.0f), INDEX_MASK) : 0;

    while (true) {
        float logits[V];
        loaded.values(p.x_type, logits, first_of);
        bool sure = has_quick_scores<V, SCORING>(logits) && map.usable;
        u32 keys[V];
        const u32 inverse = INDEX_MASK - lane * V;
        const float total =
            make_keys<V, SCORING>(map, bias, logits, inverse, scratch.scores, keys);
        sort_descending(keys);
#pragma unroll
        for (u32 j = 0; j < V; j += 4) {
            reinterpret_cast<uint4*>(sorted)[j / 4] =
                make_uint4(keys[j], keys[j + 1], keys[j + 2], keys[j + 3]);
        }
        Queue queue = {keys[0], keys[1], sorted + 2};
        // A head of 0 is never taken.
        if (grouped && !is_kept<V, SCORING>(p, options, map, row_of(token), keys, sure)) {
            queue.head = 0;
        }

        // Takes one key more than topk, to compare the last pick with the best expert that is not
        // picked.
        u32 last = 0;
        if (p.topk == 8) {
#pragma unroll
            for (u32 pick = 0; pick < 8; ++pick) last = take(scratch, pick, queue);
        } else {
#pragma unroll 1
            for (u32 pick = 0; pick < p.topk; ++pick) last = take(scratch, pick, queue);
        }
        const u32 extra = take(scratch, p.topk, queue);
        __syncwarp();
        const u32 mine = lane <= p.topk ? scratch.taken[lane] : 0;
        Pick pick = {mine, expert_of(mine), lane, 0.0f};
        if (lane < p.topk) pick.score = scratch.scores[pick.expert];

        // Keys that are neighbours in the order must differ by more than the error; so must the
        // last pick and the first key that is not picked.
        const u32 above = __shfl_up_sync(ALL_LANES, mine, 1);
        const bool close = lane - 1 < p.topk && gap(above, mine) <= map.expert_gap;
        const bool open = gap(last, extra) <= map.expert_gap;
        sure &= last >= least && gap(last, least) > map.expert_gap;
        // Whether a pick may be in a lane after the first eight.
        bool wide = p.topk > 8;
        if (__any_sync(ALL_LANES, close) || open) {
            sure &= order_exactly<SCORING>(p, options, map, row_of(token), close, open, extra,
                                           queue.head, pick);
            wide = true;
        }
        if (SCORING == SOFTMAX && !p.renormalize) {
            // If weights are renormalized, the sum over all experts cancels out.
            pick.score = __fdividef(pick.score, warp_sum(total));
        }
        if (sure) {
            store<true>(p, options, token, pick.position, pick.score, pick.expert, wide);
        } else {
            exact_route<V>(p, options, token);
        }
        token += step;
        if (token >= tokens) break;
        load(token);
        // The next token's scores overwrite those that were just read.
        __syncwarp();
    }
}

// ---- kernels ------------------------------------------------------------------

// Raises a flag for a bias that is not finite. By the first block.
template <typename O>
INLINE void check_bias(const Params& p, const O& options, u64 count) {
    if (blockIdx.x != 0 || p.bias == nullptr || count == 0) return;
    bool nonfinite = false;
    for (u32 i = threadIdx.x; i < p.experts; i += blockDim.x) {
        nonfinite |= !exact::finite(bias_of(p, options, i));
    }
    if (nonfinite) raise(p.flags, NON_FINITE);
}

// The kernel for any shape, with every option: each warp takes every warps-th token.
INLINE void general(const Replayed& r) {
    extern __shared__ u32 memory[];
    const Params& p = r.extended.common;
    const Options& options = r.extended.options;
    const u64 count = unpadded_tokens(p, options);
    check_bias(p, options, count);
    pad(p, options, r.replay, count);
    const u32 warps = blockDim.x / WARP;
    const u32 warp = threadIdx.x / WARP;
    const u64 step = static_cast<u64>(gridDim.x) * warps;
    for (u64 token = static_cast<u64>(blockIdx.x) * warps + warp; token < count; token += step) {
        route_general(p, options, r.replay, token, memory + warp * options.words);
    }
}

template <u32 V, u32 SCORING>
INLINE void quick_plain(const Params& p) {
    check_bias(p, NoOptions(), p.tokens);
    quick<V, SCORING>(p, NoOptions(), p.tokens);
}

template <u32 V, u32 SCORING>
INLINE void quick_extended(const Extended& e) {
    const u64 count = unpadded_tokens(e.common, e.options);
    check_bias(e.common, e.options, count);
    pad(e.common, e.options, NoOptions(), count);
    quick<V, SCORING>(e.common, e.options, count);
}

template <u32 LANES, typename T>
INLINE void grouped_plain(const Params& p) {
    grouped::route<LANES, T>(p, NoOptions(), p.tokens);
}

SPEC_KERNEL(topk_router_general, general, Replayed, GENERAL_THREADS)

// With 32 lanes a token for few tokens, with 8 lanes for many. A kernel that takes both types needs
// a tenth more time for bf16, because it begins to convert logits before it uses them.
#define GROUPED(dtype, T)                                                              \
    SPEC_KERNEL_BLOCKS(topk_router_grouped_32_##dtype, (grouped_plain<32, T>), Params, \
                       GROUPED_THREADS, 4)                                             \
    SPEC_KERNEL_BLOCKS(topk_router_grouped_8_##dtype, (grouped_plain<8, T>), Params,   \
                       GROUPED_THREADS, 5)

GROUPED(f32, float)
GROUPED(bf16, bf16)

// `resident` is the number of blocks that a multiprocessor must hold.
#define QUICK(scoring, SCORING, V, experts, resident)                                        \
    SPEC_KERNEL_BLOCKS(topk_router_##scoring##_##experts, (quick_plain<V, SCORING>), Params, \
                       QUICK_THREADS, resident)

QUICK(sigmoid, SIGMOID, 4, 128, 4)
QUICK(sigmoid, SIGMOID, 8, 256, 4)
QUICK(sigmoid, SIGMOID, 12, 384, 2)
QUICK(softmax, SOFTMAX, 4, 128, 4)
QUICK(softmax, SOFTMAX, 8, 256, 4)
QUICK(softmax, SOFTMAX, 16, 512, 2)

// The kernels with options are for shapes of published models; other shapes take the general
// kernel.
#define EXTENDED(scoring, SCORING, V, experts, resident)                        \
    SPEC_KERNEL_BLOCKS(topk_router_##scoring##_##experts##_extended,            \
                       (quick_extended<V, SCORING>), Extended, QUICK_THREADS, resident)

EXTENDED(sigmoid, SIGMOID, 4, 128, 4)
EXTENDED(sigmoid, SIGMOID, 8, 256, 4)
EXTENDED(sigmoid, SIGMOID, 12, 384, 2)
EXTENDED(softmax, SOFTMAX, 4, 128, 4)
EXTENDED(softmax, SOFTMAX, 16, 512, 2)
EXTENDED(sqrt_softplus, SQRT_SOFTPLUS, 8, 256, 4)
EXTENDED(sqrt_softplus, SQRT_SOFTPLUS, 12, 384, 2)
