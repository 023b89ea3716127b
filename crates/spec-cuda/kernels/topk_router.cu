// topk_router: the topk experts of each token of a mixture-of-experts layer.
//
// A warp owns a token and no warp waits for another. A lane owns V neighbouring
// experts (8 where there are 256), so a group of experts is a group of lanes
// and the lower lane has the lower index.
//
// Bytes: each logit read once, topk weights and indices written; at 65536 tokens
// of 256 f32 experts 71 MB, 24 us at 3.0 TB/s. The arithmetic would cost more:
// the exact score of an expert is 40 operations, 256 of them a token. So there
// are a quick route and an exact one.
//
// * `quick` scores with the device's own exp2 and reciprocal (5 operations), maps
//   choices to integers that carry their index in the low bits, sorts a lane's
//   keys in registers and takes the largest head of a lane topk times. A bound
//   on the difference to the exact score then tells whether the exact scores
//   could decide any comparison otherwise. Where they could, among the picks or
//   between groups, the candidates' exact scores are worked out and decide; where
//   that is not enough (ties among too many, a number that is not finite) the
//   token goes to:
// * `exact_route` (topk_router_exact.cuh), which replays the rules bit by bit.
//
// DeepSeek-V3's shape has a quicker route, `grouped::route` (topk_router_grouped.cuh); its kernels with
// options are in topk_router_grouped.cu. Without groups, numbers of experts that no kernel here is made
// for take `flat::route` (topk_router_flat.cu). Shapes without any of these routes take `route_any`
// (topk_router_any.cuh). All routes give the same indices. Kernels come with `Plain` or with `Options`
// (topk_router_row.cuh), so that what few models need costs the others nothing.
#include "topk_router_any.cuh"
#include "topk_router_grouped.cuh"

// ---- the quick route ----------------------------------------------------------

// V logits of a lane, in the widest loads that V allows. The row is aligned to
// 16 bytes.
template <u32 V, typename T>
struct Logits {
    static constexpr u32 BYTES = V * sizeof(T);
    static constexpr u32 WORDS = BYTES / 8;
    uint2 raw[WORDS];

    INLINE void load(const T* from) {
        if constexpr (BYTES % 16 == 0) {
            const uint4* at = reinterpret_cast<const uint4*>(from);
#pragma unroll
            for (u32 i = 0; i < WORDS / 2; ++i) {
                const uint4 word = __ldg(at + i);
                raw[2 * i] = make_uint2(word.x, word.y);
                raw[2 * i + 1] = make_uint2(word.z, word.w);
            }
        } else {
            const uint2* at = reinterpret_cast<const uint2*>(from);
#pragma unroll
            for (u32 i = 0; i < WORDS; ++i) raw[i] = __ldg(at + i);
        }
    }

    INLINE float operator[](u32 j) const {
        const u32 byte = j * sizeof(T);
        const u32 word = byte % 8 < 4 ? raw[byte / 8].x : raw[byte / 8].y;
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(word);
        } else {
            return half_bits(static_cast<u16>(byte % 4 == 0 ? word : word >> 16), T());
        }
    }

    static INLINE float half_bits(u16 bits, f16) { return to_f32(__ushort_as_half(bits)); }
    static INLINE float half_bits(u16 bits, bf16) { return to_f32(__ushort_as_bfloat16(bits)); }
};

// A warp's shared memory: a token's scores by expert, each lane's keys in
// descending order with a 0 behind them, and the keys taken.
template <u32 V>
struct Scratch {
    static constexpr u32 ROW = V + 4;
    float scores[V * WARP];
    u32 keys[WARP * ROW];
    u32 taken[WARP + 4];
};

// A lane's sorted keys: the first two in registers, so that taking one waits for
// no load, the rest in shared memory.
struct Queue {
    u32 head;
    u32 second;
    const u32* rest;
};

// Takes the largest head.
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

// Whether this lane's group is among the `kept` best. Keys are equal within a
// group and different between groups; `apart` is how far the best dropped group is from the kept ones.
INLINE bool keeps_key(u32 key, u32 groups, u32 kept, u32& apart) {
    bool keeps;
    if (groups == 8) {
        // The number of better groups, by comparing with all at once.
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
    apart = (last >> 8) - (__reduce_max_sync(ALL_LANES, keeps ? 0 : key) >> 8);
    return keeps;
}

// The exact score of a logit, for scorings that need no other logit.
template <u32 SCORING>
INLINE float exact_score(float logit) {
    return SCORING == SQRT_SOFTPLUS ? exact::sqrt_softplus(logit) : exact::sigmoid(logit);
}

// The exact choice of an expert, for the same scorings. All numbers are finite.
template <u32 SCORING, typename T, typename O>
INLINE float exact_choice(const Params& p, const O& options, const T* row, u32 expert) {
    const float score = exact_score<SCORING>(to_f32(row[expert]));
    return p.bias != nullptr ? exact::add(score, bias_of(p, options, expert)) : score;
}

// Routes the first `count` tokens of the call on the quick route; the tokens after them are padding, which
// gets no experts. The quick route needs exactly V * 32 experts, at least topk experts in the kept
// groups (so that the queue of no lane runs dry), 1, 2, 4, 8, 16 or 32 groups, fewer than 2^31 tokens,
// topk of at most 32, aligned rows, and no bias where the scores are a softmax.
template <u32 V, typename T, u32 SCORING, typename O>
INLINE void quick(const Params& p, const O& options, u64 count) {
    constexpr bool OVER_ROW = SCORING == SOFTMAX;
    __shared__ Scratch<V> scratches[THREADS / WARP];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    Scratch<V>& scratch = scratches[warp];
    const u32 step = gridDim.x * (THREADS / WARP);
    const u32 tokens = static_cast<u32>(count);
    u32 token = blockIdx.x * (THREADS / WARP) + warp;
    if (token >= tokens) return;
    // Row strides in bytes, which fit 32 bits here.
    const u32 x_stride = static_cast<u32>(p.x.stride * sizeof(T));
    const auto row_of = [&](u32 token) {
        const char* base = static_cast<const char*>(p.x.data);
        return reinterpret_cast<const T*>(base + static_cast<u64>(token) * x_stride);
    };
    Logits<V, T> logits;
    logits.load(row_of(token) + lane * V);
    u32* const sorted = scratch.keys + lane * Scratch<V>::ROW;
    sorted[V] = 0;
    sorted[V + 1] = 0;

    float bias[V];
    float low = 0.0f;
    float high = 0.0f;
    bool finite = true;
#pragma unroll
    for (u32 j = 0; j < V; ++j) {
        bias[j] = !OVER_ROW && p.bias != nullptr ? bias_of(p, options, lane * V + j) : 0.0f;
        finite &= exact::finite(bias[j]);
        low = fminf(low, bias[j]);
        high = fmaxf(high, bias[j]);
    }
    if (!OVER_ROW && p.bias != nullptr) {
        finite = __all_sync(ALL_LANES, finite);
        low = -warp_max_ordered(-low);
        high = warp_max_ordered(high);
    }
    const Mapping map = mapping_of<SCORING>(low, high, finite);
#pragma unroll
    for (u32 j = 0; j < V; ++j) bias[j] = map(bias[j]);

    const bool grouped = p.topk_groups < p.groups;
    // Lanes that share a group, and the lane's group counted from above.
    const u32 sharing = WARP / p.groups;
    const u32 inverse_group = 255 - (lane >> (__ffs(sharing) - 1));
    const u32 inverse = INDEX_MASK - lane * V;
    // The choice of an expert in a dropped group is 0.0 unless it is excluded: picks must lie above that.
    const u32 least = grouped && !p.excluded ? key_of(map(0.0f), INDEX_MASK) : 0;

    while (true) {
        float odd = 0.0f;
#pragma unroll
        for (u32 j = 0; j < V; ++j) odd = fmaf(logits[j], 0.0f, odd);
        if (SCORING == SQRT_SOFTPLUS) {
            constexpr float LARGEST = Scale<SCORING>::LARGEST_LOGIT;
#pragma unroll
            for (u32 j = 0; j < V; ++j) odd = logits[j] > LARGEST ? __uint_as_float(0x7FC00000u) : odd;
        }
        bool sure = map.usable && !__any_sync(ALL_LANES, odd != odd);

        float max = 0.0f;
        float total = 0.0f;
        if (OVER_ROW) {
            max = logits[0];
#pragma unroll
            for (u32 j = 1; j < V; ++j) max = fmaxf(max, logits[j]);
            max = warp_max_ordered(max);
        }
        u32 keys[V];
        float4 four;
#pragma unroll
        for (u32 j = 0; j < V; ++j) {
            float score;
            if (OVER_ROW) {
                score = quick_exp2((logits[j] - max) * LOG2_E);
                total += score;
            } else if (SCORING == SQRT_SOFTPLUS) {
                score = quick_sqrt_softplus(logits[j]);
            } else {
                score = quick_reciprocal(1.0f + quick_exp2(logits[j] * -LOG2_E));
            }
            keys[j] = key_of(fmaf(score, map.factor, bias[j]), inverse - j);
            (j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w) = score;
            if (j % 4 == 3) {
                reinterpret_cast<float4*>(scratch.scores)[lane * (V / 4) + j / 4] = four;
            }
        }
        sort_descending(keys);
#pragma unroll
        for (u32 j = 0; j < V; j += 4) {
            reinterpret_cast<uint4*>(sorted)[j / 4] =
                make_uint4(keys[j], keys[j + 1], keys[j + 2], keys[j + 3]);
        }
        Queue queue = {keys[0], keys[1], sorted + 2};

        if (grouped) {
            u32 first = keys[0];
            u32 second = keys[1];
            for (u32 o = 1; o < sharing; o *= 2) {
                const u32 other_first = __shfl_xor_sync(ALL_LANES, first, o);
                const u32 other_second = __shfl_xor_sync(ALL_LANES, second, o);
                second = ::max(min(first, other_first), ::max(second, other_second));
                first = ::max(first, other_first);
            }
            const u32 sum = (first >> INDEX_BITS) + ((p.group_max ? first : second) >> INDEX_BITS);
            u32 apart;
            bool keeps = keeps_key((sum << 8) + inverse_group, p.groups, p.topk_groups, apart);
            if (apart <= map.group_gap) {
                // Exact sums of the lanes' two largest, if these are the two.
                const bool two = gap(keys[1], keys[2]) > map.expert_gap;
                sure &= !OVER_ROW && __all_sync(ALL_LANES, two);
                const float a = exact_choice<SCORING>(p, options, row_of(token), expert_of(keys[0]));
                const float b = exact_choice<SCORING>(p, options, row_of(token), expert_of(keys[1]));
                keeps = keeps_group(p, fmaxf(a, b), fminf(a, b));
            }
            // A head of 0 is never taken.
            if (!keeps) queue.head = 0;
        }

        // One key more than topk, to know how near the best expert that is not picked comes.
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
        const u32 expert = expert_of(mine);
        u32 position = lane;
        // Whether a pick may be beyond the first eight lanes.
        bool wide = p.topk > 8;
        float score = lane < p.topk ? scratch.scores[expert] : 0.0f;

        // Neighbours in the order must lie apart, the first not taken included.
        const u32 above = __shfl_up_sync(ALL_LANES, mine, 1);
        const bool close = lane - 1 < p.topk && gap(above, mine) <= map.expert_gap;
        const bool open = gap(last, extra) <= map.expert_gap;
        sure &= last >= least && gap(last, least) > map.expert_gap;
        if (__any_sync(ALL_LANES, close) || open) {
            const bool there = lane <= p.topk && mine != 0;
            const float logit = there ? to_f32(row_of(token)[expert]) : 0.0f;
            if (OVER_ROW || p.topk == WARP) {
                // Exact scores need the exact sum. Without it, only the order of equal logits is sure.
                const bool tie = logit == __shfl_up_sync(ALL_LANES, logit, 1);
                sure &= OVER_ROW && !open && !__any_sync(ALL_LANES, close && !tie);
            } else {
                // The exact choices of the candidates decide, if no other expert is near.
                const u32 next = __reduce_max_sync(ALL_LANES, queue.head);
                sure &= !open || gap(extra, next) > map.expert_gap;
                score = exact_score<SCORING>(logit);
                float choice = score;
                if (there && p.bias != nullptr) {
                    choice = exact::add(score, bias_of(p, options, expert));
                }
                const u32 key = there ? exact::sort_key(choice) : 0;
                u32 rank = 0;
                for (u32 i = 0; i <= p.topk; ++i) {
                    const u32 k = __shfl_sync(ALL_LANES, key, i);
                    const u32 e = __shfl_sync(ALL_LANES, expert, i);
                    rank += k > key || (k == key && e < expert);
                }
                position = lane <= p.topk ? rank : lane;
                wide = true;
            }
        }
        if (OVER_ROW && !p.renormalize) {
            // Where weights are renormalized, the sum over all experts cancels out.
            score = __fdividef(score, warp_sum(total));
        }
        if (sure) {
            store<true>(p, options, token, position, score, expert, wide);
        } else {
            exact_route<V, T>(p, options, token);
        }
        token += step;
        if (token >= tokens) break;
        logits.load(row_of(token) + lane * V);
        // The next token's scores go where this one's were read.
        __syncwarp();
    }
}

// ---- kernels ------------------------------------------------------------------

// A bias that is not finite is flagged once, by the first block.
template <typename O>
INLINE void check_bias(const Params& p, const O& options, u64 count) {
    if (blockIdx.x != 0 || p.bias == nullptr || count == 0) return;
    bool odd = false;
    for (u32 i = threadIdx.x; i < p.experts; i += blockDim.x) {
        odd |= !exact::finite(bias_of(p, options, i));
    }
    if (odd) raise(p.flags, NON_FINITE);
}

// Any shape: warps stride over the tokens.
template <typename T, typename R>
INLINE void any(const Extended& e, const R& replay) {
    extern __shared__ u32 memory[];
    const Params& p = e.common;
    const u64 count = live_tokens(p, e.options);
    check_bias(p, e.options, count);
    pad(p, e.options, replay, count);
    const u32 warps = blockDim.x / WARP;
    const u32 warp = threadIdx.x / WARP;
    const u64 step = static_cast<u64>(gridDim.x) * warps;
    for (u64 token = static_cast<u64>(blockIdx.x) * warps + warp; token < count; token += step) {
        route_any<T>(p, e.options, replay, token, memory + warp * e.options.words);
    }
}

template <typename T>
INLINE void any_extended(const Extended& e) {
    any<T>(e, Plain());
}

// With experts that are given or recorded, or weights of 16 bits.
template <typename T>
INLINE void any_replay(const Replayed& r) {
    any<T>(r.extended, r.replay);
}

template <u32 V, typename T, u32 SCORING>
INLINE void quick_plain(const Params& p) {
    check_bias(p, Plain(), p.tokens);
    quick<V, T, SCORING>(p, Plain(), p.tokens);
}

template <u32 V, typename T, u32 SCORING>
INLINE void quick_extended(const Extended& e) {
    const u64 count = live_tokens(e.common, e.options);
    check_bias(e.common, e.options, count);
    pad(e.common, e.options, Plain(), count);
    quick<V, T, SCORING>(e.common, e.options, count);
}

template <u32 LANES, typename T>
INLINE void grouped_plain(const Params& p) {
    grouped::route<LANES, T>(p, Plain(), p.tokens);
}

// For few tokens and for many.
#define GROUPED(lanes, dtype, T, resident)                                              \
    SPEC_KERNEL_BLOCKS(topk_router_grouped_##lanes##_##dtype, (grouped_plain<lanes, T>), \
                       Params, grouped::THREADS, resident)

// `resident`: the blocks that a multiprocessor must hold.
#define QUICK(scoring, SCORING, V, experts, dtype, T, resident)                         \
    SPEC_KERNEL_BLOCKS(topk_router_##scoring##_##experts##_##dtype,                     \
                       (quick_plain<V, T, SCORING>), Params, THREADS, resident)

#define EXTENDED(scoring, SCORING, V, experts, dtype, T, resident)                      \
    SPEC_KERNEL_BLOCKS(topk_router_##scoring##_##experts##_extended_##dtype,            \
                       (quick_extended<V, T, SCORING>), Extended, THREADS, resident)

// Extended kernels are for the shapes of published models; other shapes go to `any`.
#define ROUTERS(dtype, T)                                                               \
    SPEC_KERNEL(topk_router_any_##dtype, any_extended<T>, Extended, 128)                \
    SPEC_KERNEL(topk_router_replay_##dtype, any_replay<T>, Replayed, 128)               \
    GROUPED(32, dtype, T, 4)                                                            \
    GROUPED(8, dtype, T, 5)                                                             \
    QUICK(sigmoid, SIGMOID, 4, 128, dtype, T, 4)                                        \
    QUICK(sigmoid, SIGMOID, 8, 256, dtype, T, 4)                                        \
    QUICK(sigmoid, SIGMOID, 12, 384, dtype, T, 2)                                       \
    QUICK(sigmoid, SIGMOID, 16, 512, dtype, T, 2)                                       \
    QUICK(softmax, SOFTMAX, 4, 128, dtype, T, 4)                                        \
    QUICK(softmax, SOFTMAX, 8, 256, dtype, T, 4)                                        \
    QUICK(softmax, SOFTMAX, 12, 384, dtype, T, 2)                                       \
    QUICK(softmax, SOFTMAX, 16, 512, dtype, T, 2)                                       \
    EXTENDED(sigmoid, SIGMOID, 4, 128, dtype, T, 4)                                     \
    EXTENDED(sigmoid, SIGMOID, 8, 256, dtype, T, 4)                                     \
    EXTENDED(sigmoid, SIGMOID, 12, 384, dtype, T, 2)                                    \
    EXTENDED(softmax, SOFTMAX, 4, 128, dtype, T, 4)                                     \
    EXTENDED(softmax, SOFTMAX, 16, 512, dtype, T, 2)                                    \
    EXTENDED(sqrt_softplus, SQRT_SOFTPLUS, 8, 256, dtype, T, 4)                         \
    EXTENDED(sqrt_softplus, SQRT_SOFTPLUS, 12, 384, dtype, T, 2)

ROUTERS(f32, float)
ROUTERS(f16, f16)
ROUTERS(bf16, bf16)
