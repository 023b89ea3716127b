// topk_router for DeepSeek-V3's shape: 256 experts in 8 groups of which 4 are kept, topk 8,
// sigmoid. A warp routes one token at a time if there are few tokens, and four at a time if there
// are many: with 200 warp instructions a token instead of the 420 of the quick route.
//
// A token has LANES lanes, 32 or 8, and a lane has N = 32 / LANES neighbouring experts of each
// group:
//
//     group      |      0      |      1      | ... |      7      |
//     lanes of a | 0 1 ... n-1 | 0 1 ... n-1 |     | 0 1 ... n-1 |
//     token
//
// 1. Each lane computes keys as on the quick route, stores them in shared memory, and finds its two
//    largest keys of each group.
// 2. Lanes exchange these pairs. Each exchange halves the number of groups that a lane handles,
//    until a lane has the two largest keys of one group; then the groups are ranked.
// 3. A lane reads its experts of the kept groups from shared memory and sorts them: its 8 largest.
// 4. Two lists of 8 in descending order, a and b, are merged: the 8 numbers max(a[i], b[7 - i]) are
//    the largest of both lists, as a bitonic sequence. Lane pairs, then quads, then octets divide
//    this work and the list, with 4, then 2, then 1 keys a lane, and sort it again (Batcher's
//    bitonic merge).
//
// In the end a lane has one pick, and every dropped key has been compared with a kept key: an error
// bound as on the quick route shows whether exact scores could change the result. If they could,
// exact scores decide:
//
// * `rank_exactly` ranks the groups, using the two experts of each group with the largest quick
//   keys.
// * `order_exactly` orders the picks and the one expert next to them, in registers. One token of a
//   few hundred needs it, so most launches contain such a token.
// * `pick_exactly` does the same with up to 16 or 32 candidates, in shared memory.
//
// All other tokens (more ties, a number that is not finite) go to the exact route. Meanwhile the
// logits of the next token are in flight.
//
// Bytes: each logit is read once, topk weights and indices are written, as in topk_router.cu.
#pragma once

#include "topk_router_lanes.cuh"

namespace grouped {

// Shared memory of a warp.
template <u32 LANES>
struct __align__(16) Scratch {
    static constexpr u32 TOKENS = WARP / LANES;
    // A mask of the lanes of a token, shifted to the lowest lane.
    static constexpr u32 OF_TOKEN = ALL_LANES >> (WARP - LANES);
    // The keys of all experts. If a lane has four experts of a group, each pair is stored in
    // descending order.
    u32 keys[TOKENS][EXPERTS];
    // The sum of each group's two largest choices; the sums in descending order; and the index of
    // the first key of each of these groups.
    u32 sums[TOKENS][GROUPS];
    u32 ordered[TOKENS][GROUPS];
    u32 places[TOKENS][GROUPS];
    // Used if quick keys are too near to each other: candidates, their exact keys, and the picks.
    static constexpr u32 MAX_CANDIDATES = LANES == 32 ? 32 : 16;
    u32 candidates[TOKENS][MAX_CANDIDATES];
    u32 exact_keys[TOKENS][MAX_CANDIDATES];
    u32 picks[TOKENS][TOPK];
    u32 count[TOKENS];
};

// The expert of a key whose index lacks `own`, the lane's part of the index.
INLINE u32 expert_of_key(u32 key, u32 own) { return (key & (EXPERTS - 1)) + own; }

// The exact choice of an expert whose logit and bias are finite.
template <typename O>
INLINE float exact_choice(const Params& p, const O& options, float logit, u32 expert) {
    const float score = exact::sigmoid(logit);
    return p.bias != nullptr ? exact::add(score, bias_of(p, options, expert)) : score;
}

template <typename T, typename O>
INLINE float exact_choice(const Params& p, const O& options, const T* row, u32 expert) {
    return exact_choice(p, options, to_f32(row[expert]), expert);
}

// Orders eight picks, one in each of eight lanes, and one extra expert by their exact choices, and
// drops the last of the nine.
template <typename T, typename O>
INLINE void order_exactly(const Params& p, const O& options, const T* row, u32 extra, u32& expert,
                          float& logit, u32& position) {
    const float extra_logit = to_f32(row[extra]);
    const u32 key = exact::sort_key(exact_choice(p, options, logit, expert));
    const u32 extra_key = exact::sort_key(exact_choice(p, options, extra_logit, extra));
    const bool below = extra_key > key || (extra_key == key && extra < expert);
    const u32 above = __ballot_sync(ALL_LANES, !below) >> (lane_id() & 24) & 0xFF;
    position = below;
#pragma unroll
    for (u32 i = 0; i < TOPK; ++i) {
        const u32 k = __shfl_sync(ALL_LANES, key, i, TOPK);
        const u32 e = __shfl_sync(ALL_LANES, expert, i, TOPK);
        position += k > key || (k == key && e < expert);
    }
    if (position == TOPK) {
        position = __popc(above);
        expert = extra;
        logit = extra_logit;
    }
}

// For tokens whose groups are `near` each other, ranks the groups by the exact choices of their two
// largest experts: those with quick keys of at least `least`. Returns whether there are exactly two
// such experts in every group of the lane's token. Not inlined, because it is rarely needed.
template <u32 LANES, typename T, typename O>
__device__ __noinline__ bool rank_exactly(const Params& p, const O& options,
                                          Scratch<LANES>& scratch, const T* row, bool near,
                                          u32 least) {
    constexpr u32 N = SIZE / LANES;
    const u32 lane = lane_id();
    const u32 part = lane / LANES;
    const u32 group = lane % GROUPS;
    u32 found = 0;
#pragma unroll 4
    for (u32 i = 0; i < SIZE / 4; ++i) {
        // Lanes begin at different offsets, so that there are no bank conflicts.
        const u32 first = (i + lane) % (SIZE / 4) * 4;
        u32 keys[4];
        read<4>(scratch.keys[part] + group * SIZE + first, keys);
        u32 bits = 0;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            bits |= static_cast<u32>(keys[j] >> INDEX_BITS >= least) << j;
        }
        found |= bits << first;
    }
    const auto choice_at = [&](u32 bit) {
        const u32 at = bit % SIZE;
        const u32 key = scratch.keys[part][group * SIZE + at];
        return exact_choice(p, options, row, expert_of_key(key, at / N * N));
    };
    // Two bits are set: the lowest and the highest.
    const float a = choice_at(__ffs(found) - 1);
    const float b = choice_at(31 - __clz(found));
    const float best = fmaxf(a, b);
    const u32 key = exact::sort_key(p.group_max ? best : exact::add(best, fminf(a, b)));
    scratch.sums[part][group] = key;
    __syncwarp();
    u32 rank = 0;
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) {
        const u32 other = scratch.sums[part][g];
        rank += other > key || (other == key && g < group);
    }
    if (near) scratch.places[part][rank] = group * SIZE;
    __syncwarp();
    const u32 others = __ballot_sync(ALL_LANES, near && __popc(found) != 2);
    return (others >> part * LANES & Scratch<LANES>::OF_TOKEN) == 0;
}

// Finds the picks of every token by exact choices, among the experts with quick keys of at least
// `least`. Returns whether there was room for all such experts of the lane's token.
template <u32 LANES, typename T, typename O>
__device__ __noinline__ bool pick_exactly(const Params& p, const O& options,
                                          Scratch<LANES>& scratch, const T* row, u32 least) {
    constexpr u32 N = SIZE / LANES;
    constexpr u32 MAX_CANDIDATES = Scratch<LANES>::MAX_CANDIDATES;
    const u32 lane = lane_id();
    const u32 part = lane / LANES;
    const u32 own = lane % LANES * N;
    if (lane % LANES == 0) scratch.count[part] = 0;
    u32 found = 0;
#pragma unroll
    for (u32 g = 0; g < KEPT; ++g) {
        u32 keys[N];
        read<N>(scratch.keys[part] + scratch.places[part][g] + own, keys);
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            found |= static_cast<u32>(keys[i] >> INDEX_BITS >= least) << (g * N + i);
        }
    }
    __syncwarp();
    while (found != 0) {
        const u32 at = __ffs(found) - 1;
        found &= found - 1;
        const u32 slot = atomicAdd(&scratch.count[part], 1u);
        const u32 key = scratch.keys[part][scratch.places[part][at / N] + own + at % N];
        if (slot < MAX_CANDIDATES) scratch.candidates[part][slot] = expert_of_key(key, own);
    }
    __syncwarp();
    const u32 count = scratch.count[part];
    const u32 there = min(count, MAX_CANDIDATES);
#pragma unroll
    for (u32 slot = lane % LANES; slot < MAX_CANDIDATES; slot += LANES) {
        u32 key = 0;
        if (slot < there) {
            const u32 expert = scratch.candidates[part][slot];
            key = exact::sort_key(exact_choice(p, options, row, expert));
        }
        scratch.exact_keys[part][slot] = key;
    }
    __syncwarp();
#pragma unroll
    for (u32 slot = lane % LANES; slot < MAX_CANDIDATES; slot += LANES) {
        if (slot < there) {
            const u32 expert = scratch.candidates[part][slot];
            const u32 key = scratch.exact_keys[part][slot];
            u32 rank = 0;
            // After the last candidate, the keys are 0.
#pragma unroll 1
            for (u32 i = 0; i < there; i += 4) {
                u32 keys[4];
                u32 experts[4];
                read<4>(scratch.exact_keys[part] + i, keys);
                read<4>(scratch.candidates[part] + i, experts);
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    rank += keys[j] > key || (keys[j] == key && experts[j] < expert);
                }
            }
            if (rank < TOPK) scratch.picks[part][rank] = expert;
        }
    }
    __syncwarp();
    return count <= MAX_CANDIDATES;
}

// Reduces the pairs that a lane has of 2 * N groups to N groups, by exchanging with another lane.
template <u32 N>
INLINE void halve(u32 lane, u32 (&first)[GROUPS], u32 (&second)[GROUPS]) {
    const bool upper = (lane & N) != 0;
    u32 first_there[N];
    u32 second_there[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        first_there[i] = from_lane(choose(upper, first[i], first[i + N]), N);
        second_there[i] = from_lane(choose(upper, second[i], second[i + N]), N);
    }
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        const u32 f = choose(upper, first[i + N], first[i]);
        const u32 s = choose(upper, second[i + N], second[i]);
        first[i] = max(f, first_there[i]);
        second[i] = max(max(s, second_there[i]), min(f, first_there[i]));
    }
}

// min(0, lowest bias), max(0, highest bias), and whether all biases are finite.
struct Bounds {
    float low;
    float high;
    bool finite;
};

// The bounds over all lanes of a warp.
template <u32 N>
INLINE Bounds bounds_of(const float (&bias)[N]) {
    Bounds bounds = {0.0f, 0.0f, true};
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        bounds.finite &= exact::finite(bias[i]);
        bounds.low = fminf(bounds.low, bias[i]);
        bounds.high = fmaxf(bounds.high, bias[i]);
    }
    bounds.finite = __all_sync(ALL_LANES, bounds.finite);
    bounds.low = -warp_max_ordered(-bounds.low);
    bounds.high = warp_max_ordered(bounds.high);
    return bounds;
}

// How the lanes of a warp hold the biases. With few experts, a lane keeps their biases in
// registers, and each warp reads all of them. Else a block reads them together, into shared memory.
template <u32 LANES>
struct Biases {
    static constexpr u32 N = SIZE / LANES;
    static constexpr u32 WARPS = GROUPED_THREADS / WARP;
    static constexpr bool IN_REGISTERS = N == 1;
    static constexpr u32 READS = IN_REGISTERS ? EXPERTS / LANES : EXPERTS / GROUPED_THREADS;
    float own[READS];
    float* shared;

    // Loads the biases, and returns how choices become keys. `first` is the lane's first expert of
    // a group. Before the first `of_group`, a barrier of the block is needed unless IN_REGISTERS.
    template <typename O>
    INLINE Mapping load(const Params& p, const O& options, u32 first) {
        __shared__ __align__(16) float all[IN_REGISTERS ? 4 : EXPERTS];
        shared = all;
#pragma unroll
        for (u32 i = 0; i < READS; ++i) {
            const u32 expert =
                IN_REGISTERS ? i / N * SIZE + first + i % N : i * GROUPED_THREADS + threadIdx.x;
            own[i] = p.bias != nullptr ? bias_of(p, options, expert) : 0.0f;
        }
        Bounds bounds = bounds_of(own);
        if constexpr (!IN_REGISTERS) bounds = of_block(bounds);
        const Mapping map = mapping_of<SIGMOID>(bounds.low, bounds.high, bounds.finite);
        if (!bounds.finite && blockIdx.x == 0 && threadIdx.x == 0) raise(p.flags, NON_FINITE);
#pragma unroll
        for (u32 i = 0; i < READS; ++i) own[i] = map(own[i]);
        if constexpr (!IN_REGISTERS) {
#pragma unroll
            for (u32 i = 0; i < READS; ++i) shared[i * GROUPED_THREADS + threadIdx.x] = own[i];
        }
        return map;
    }

    // The lane's biases of group g.
    INLINE void of_group(u32 g, u32 first, float (&to)[N]) const {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (u32 i = 0; i < N; ++i) to[i] = own[g * N + i];
        } else {
            read<N>(shared + g * SIZE + first, to);
        }
    }

private:
    // The bounds over all warps of a block.
    static INLINE Bounds of_block(Bounds bounds) {
        __shared__ __align__(16) float lows[WARPS];
        __shared__ __align__(16) float highs[WARPS];
        const u32 warp = threadIdx.x / WARP;
        lows[warp] = bounds.low;
        // A bias that is not finite makes the highest bias infinite.
        highs[warp] = bounds.finite ? bounds.high : __uint_as_float(0x7F800000u);
        __syncthreads();
#pragma unroll
        for (u32 w = 0; w < WARPS; w += 4) {
            float four[4];
            read<4>(lows + w, four);
            bounds.low = fminf(bounds.low, fminf(fminf(four[0], four[1]), fminf(four[2], four[3])));
            read<4>(highs + w, four);
            bounds.high =
                fmaxf(bounds.high, fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3])));
        }
        bounds.finite = exact::finite(bounds.high);
        return bounds;
    }
};

// A lane of a token that is being routed; the functions follow each other.
template <u32 LANES, typename T, typename O>
struct Routing {
    static constexpr u32 N = SIZE / LANES;
    using Logits = LogitVector<N, T>[GROUPS];
    const Params& p;
    const O& options;
    Scratch<LANES>& scratch;
    const Mapping& map;
    // The lane, the number of its token in the warp, the lane's first expert of a group, and where
    // the keys from this expert on are in shared memory.
    u32 lane;
    u32 part;
    u32 own;
    u32* mine;
    // Picks must have larger keys than these upper bits.
    u32 least;
    const T* row;
    // Whether no exact score could change the result.
    bool sure;

    // 1: stores the keys, and finds the two largest of each group.
    INLINE void compute_keys(const Biases<LANES>& biases, const Logits& logits,
                             u32 (&first)[GROUPS], u32 (&second)[GROUPS]) {
        float nonfinite = 0.0f;
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g) {
            float of_group[N];
            biases.of_group(g, own, of_group);
            u32 keys[N];
#pragma unroll
            for (u32 i = 0; i < N; ++i) {
                const float x = logits[g][i];
                // The products add up to a number that is not finite if a logit is not finite or is
                // huge.
                if (N == 1) {
                    if (g % 2 == 1) nonfinite = fmaf(logits[g - g % 2][0], x, nonfinite);
                } else if (i % 2 == 1) {
                    nonfinite = fmaf(logits[g][i - i % 2], x, nonfinite);
                }
                // The lane's own part of the index is added later.
                const float score = quick_reciprocal(1.0f + quick_exp2(x * -LOG2_E));
                keys[i] = key_of(fmaf(score, map.factor, of_group[i]), g * SIZE + i);
            }
            if constexpr (N == 4) {
                order(keys[0], keys[1]);
                order(keys[2], keys[3]);
                first[g] = max(keys[0], keys[2]);
                second[g] = max(max(keys[1], keys[3]), min(keys[0], keys[2]));
            } else {
                first[g] = keys[0];
                second[g] = 0;
            }
            write(mine + g * SIZE, keys);
        }
        sure = map.usable && exact::finite(nonfinite);
    }

    // 2: ranks the groups, and answers where the keys of those that are kept begin.
    INLINE void rank_groups(u32 (&first)[GROUPS], u32 (&second)[GROUPS], u32 (&places)[KEPT]) {
        halve<4>(lane, first, second);
        halve<2>(lane, first, second);
        halve<1>(lane, first, second);
#pragma unroll
        for (u32 o = 8; o < LANES; o *= 2) {
            const u32 f = from_lane(first[0], o);
            const u32 s = from_lane(second[0], o);
            second[0] = max(max(second[0], s), min(first[0], f));
            first[0] = max(first[0], f);
        }
        const u32 group = lane % GROUPS;
        const u32 sum =
            (first[0] >> INDEX_BITS) + ((p.group_max ? first[0] : second[0]) >> INDEX_BITS);
        // No two sum keys are equal, because their low bits are the group.
        const u32 sum_key = (sum << 8) + (GROUPS - 1 - group);
        scratch.sums[part][group] = sum_key;
        __syncwarp();
        u32 sums[GROUPS];
        read<4>(scratch.sums[part], sums);
        read<4>(scratch.sums[part] + 4, sums + 4);
        u32 rank = 0;
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g) rank += sums[g] > sum_key;
        scratch.ordered[part][rank] = sum_key;
        scratch.places[part][rank] = group * SIZE;
        __syncwarp();
        const u32 distance =
            (scratch.ordered[part][KEPT - 1] >> 8) - (scratch.ordered[part][KEPT] >> 8);
        const bool near = distance <= map.group_gap;
        if (__any_sync(ALL_LANES, near)) {
            const u32 candidate = (second[0] >> INDEX_BITS) - map.expert_gap;
            sure &= rank_exactly(p, options, scratch, row, near, candidate);
        }
        read<4>(scratch.places[part], places);
    }

    // 3 and 4: the lane's pick among the keys of the kept groups.
    INLINE u32 pick(const u32 (&places)[KEPT], Merge& merge) const {
        u32 pairs[4];
        if constexpr (N == 4) {
            u32 a[8];
            u32 b[8];
            read<4>(mine + places[0], a);
            read<4>(mine + places[1], a + 4);
            read<4>(mine + places[2], b);
            read<4>(mine + places[3], b + 4);
            merge_pairs(a);
            merge_pairs(b);
#pragma unroll
            for (u32 i = 0; i < 8; ++i) a[i] = merge.keep(a[i], b[7 - i]);
            merge.rest += own;
            descend<8>(a);
#pragma unroll
            for (u32 i = 0; i < 8; ++i) a[i] += own;
            merge.merge_lanes(a, pairs, lane);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) pairs[i] = mine[places[i]] + own;
            sort_descending(pairs);
            merge.join(pairs, lane);
        }
        u32 fours[2];
        merge.merge_pairs_of_lanes(pairs, fours, lane);
        u32 key = merge.merge_quads(fours);
        if constexpr (LANES == 32) {
            key = merge.merge_octets(key, 8);
            key = merge.merge_octets(key, 16);
        }
        return key;
    }

    // Whether more than one expert besides the picks has a key of at least `candidate`, in tokens
    // that are `open`.
    INLINE bool many_near(const u32 (&places)[KEPT], u32 candidate, bool open) const {
        u32 count = 0;
#pragma unroll
        for (u32 g = 0; g < KEPT; ++g) {
            u32 keys[N];
            read<N>(mine + places[g], keys);
#pragma unroll
            for (u32 i = 0; i < N; ++i) count += keys[i] >> INDEX_BITS >= candidate;
        }
#pragma unroll
        for (u32 o = 1; o < LANES; o *= 2) count += from_lane(count, o);
        return open && count > TOPK + 1;
    }

    // Where quick keys are too near to each other, exact scores decide the picks and their order.
    // `position` is the place of the lane's key among the picks.
    INLINE void order_near(const u32 (&places)[KEPT], const Merge& merge, u32 key, u32& expert,
                           float& logit, u32& position) {
        const u32 place = position;
        const u32 next_lane = lane / 8 * 8 + lane_of_place((place + 1) & 7);
        const u32 last_lane = lane / 8 * 8 + lane_of_place(7);
        const u32 height = key >> INDEX_BITS;
        const u32 next = __shfl_sync(ALL_LANES, height, next_lane);
        const u32 last = __shfl_sync(ALL_LANES, height, last_lane);
        const i32 wanted = static_cast<i32>(map.expert_gap);
        const bool close = place < TOPK - 1 && static_cast<i32>(height - next) <= wanted;
        const bool open = static_cast<i32>(last - (merge.rest >> INDEX_BITS)) <= wanted;
        sure &= static_cast<i32>(last - least) > wanted;
        if (!__any_sync(ALL_LANES, close || open)) return;
        const u32 candidate = last - map.expert_gap;
        bool many = false;
        if (__any_sync(ALL_LANES, open)) many = many_near(places, candidate, open);
        if (__any_sync(ALL_LANES, many)) {
            sure &= pick_exactly(p, options, scratch, row, candidate);
            position = lane % TOPK;
            expert = scratch.picks[part][position];
            logit = to_f32(row[expert % EXPERTS]);
        } else {
            u32 extra = merge.rest;
#pragma unroll
            for (u32 o = 1; o < LANES; o *= 2) extra = max(extra, from_lane(extra, o));
            order_exactly(p, options, row, extra & (EXPERTS - 1), expert, logit, position);
        }
    }

    // Writes the lane's pick, unless the exact route will.
    INLINE void write_token(u32 token, bool is_token, u32 expert, float logit, u32 position) const {
        float normalized = quick_reciprocal(1.0f + quick_exp2(logit * -LOG2_E));
        if (p.renormalize) {
            float total = normalized;
#pragma unroll
            for (u32 o = 4; o > 0; o /= 2) total += __shfl_xor_sync(ALL_LANES, total, o);
            normalized = __fdividef(normalized, total + 1e-20f);
        }
        if (!sure || !is_token || lane % LANES >= TOPK) return;
        if constexpr (HAS_OPTIONS<O>) {
            write_pick(p, options, NoOptions(), token, position, normalized, expert);
            // The eight lanes divide the columns after the picks.
            write_shared(p, options, NoOptions(), token, lane % LANES, TOPK);
        } else {
            output_row(p.weights, token)[position] = p.scale * normalized;
            output_row(p.indices, token)[position] = static_cast<i32>(expert);
        }
    }
};

// Routes the first `count` tokens; the other tokens are padding. Rows are aligned to 16 bytes,
// strides in bytes are below 2^32, and there are fewer than 2^31 tokens.
template <u32 LANES, typename T, typename O>
INLINE void route(const Params& p, const O& options, u64 count) {
    constexpr u32 N = SIZE / LANES;
    constexpr u32 TOGETHER = WARP / LANES;
    constexpr u32 WARPS = GROUPED_THREADS / WARP;
    static_assert(N == 1 || N == 4);
    __shared__ Scratch<LANES> scratches[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 part = lane / LANES;
    const u32 own = lane % LANES * N;
    Scratch<LANES>& scratch = scratches[warp];
    const u32 tokens = static_cast<u32>(count);
    const u32 step = gridDim.x * (WARPS * TOGETHER);
    // The first of the tokens that this warp routes in one step of the loop below.
    u32 first_token = (blockIdx.x * WARPS + warp) * TOGETHER;
    if (tokens == 0 || (Biases<LANES>::IN_REGISTERS && first_token >= tokens)) return;
    const u32 x_stride = static_cast<u32>(p.x.stride * sizeof(T));
    // Lanes beyond the last token route the last token again, and write nothing.
    const auto row_of = [&](u32 token) {
        const char* base = static_cast<const char*>(p.x.data);
        const u64 there = min(token, tokens - 1);
        return reinterpret_cast<const T*>(base + there * x_stride);
    };
    LogitVector<N, T> logits[GROUPS];
    const auto load_logits = [&](u32 token) {
        const T* const row = row_of(token);
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g) logits[g].load(row + g * SIZE + own);
    };
    load_logits(first_token + part);

    Biases<LANES> biases;
    const Mapping map = biases.load(p, options, own);
    if constexpr (!Biases<LANES>::IN_REGISTERS) {
        __syncthreads();
        if (first_token >= tokens) return;
    }
    const u32 place = place_of_lane(lane);
    // The choice of an expert in a dropped group is 0.0 unless such experts are excluded. Picks
    // must have larger keys.
    const u32 least = p.excluded ? 0 : key_of(map(0.0f), INDEX_MASK) >> INDEX_BITS;

    while (true) {
        const u32 token = first_token + part;
        Routing<LANES, T, O> routing = {p,    options, scratch,
                                        map,  lane,    part,
                                        own,  scratch.keys[part] + own, least,
                                        row_of(token), false};
        u32 first[GROUPS];
        u32 second[GROUPS];
        routing.compute_keys(biases, logits, first, second);
        first_token += step;
        if (first_token < tokens) load_logits(first_token + part);
        u32 places[KEPT];
        routing.rank_groups(first, second, places);
        Merge merge(lane);
        const u32 key = routing.pick(places, merge);
        u32 expert = key & (EXPERTS - 1);
        u32 position = place;
        float logit = to_f32(routing.row[expert]);
        routing.order_near(places, merge, key, expert, logit, position);
        const u32 unsure = __ballot_sync(ALL_LANES, !routing.sure);
        routing.sure = (unsure >> part * LANES & Scratch<LANES>::OF_TOKEN) == 0;
        routing.write_token(token, token < tokens, expert, logit, position);
        if (unsure != 0) {
#pragma unroll 1
            for (u32 t = 0; t < TOGETHER; ++t) {
                const u32 there = first_token - step + t;
                if ((unsure >> t * LANES & Scratch<LANES>::OF_TOKEN) != 0 && there < tokens) {
                    exact_route<EXPERTS / WARP>(p, options, there);
                }
            }
        }
        if (first_token >= tokens) break;
    }
}

}  // namespace grouped
