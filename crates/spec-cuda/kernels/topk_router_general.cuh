// topk_router by the exact rules, for any shape and every option. A warp routes a token and has a
// key for each expert in shared memory. Reads each logit once or, with softmax, three times.
//
// 1. Softmax only: the maximum of the row, then its sum as an integer.
// 2. A key for each expert: an integer with the order of the choices.
// 3. Groups: some lanes find the two largest keys of a group together; the kept groups are found by
//    a bitwise search for the smallest kept key.
// 4. A lane has a chunk of `chunk` neighbouring experts and knows the largest key of the chunk, its
//    head. Each pick takes the largest head (the lowest lane among equals); then all lanes search
//    the chunk for the expert and for the chunk's next head.
#pragma once

#include "topk_router_exact.cuh"

// Replaces each of the `groups` keys by 1 if the key is among the `kept` largest (the lower index
// first among equal keys), else by 0.
__device__ __noinline__ void keep_largest(u32* keys, u32 groups, u32 kept) {
    const u32 lane = lane_id();
    // The largest value that at least `kept` keys reach.
    u32 least = 0;
    for (u32 bit = 1u << 31; bit != 0; bit >>= 1) {
        u32 count = 0;
        for (u32 g = lane; g < groups; g += WARP) count += keys[g] >= (least | bit);
        if (__reduce_add_sync(ALL_LANES, count) >= kept) least |= bit;
    }
    u32 above = 0;
    for (u32 g = lane; g < groups; g += WARP) above += keys[g] > least;
    u32 equals = kept - __reduce_add_sync(ALL_LANES, above);
    for (u32 first = 0; first < groups; first += WARP) {
        const u32 g = first + lane;
        const u32 key = g < groups ? keys[g] : 0;
        const bool equal = g < groups && key == least;
        const u32 all = __ballot_sync(ALL_LANES, equal);
        const bool keeps = key > least || (equal && __popc(all & lanes_below()) < equals);
        equals -= min(equals, static_cast<u32>(__popc(all)));
        if (g < groups) keys[g] = keeps;
    }
    __syncwarp();
}

// Sets the keys of experts in dropped groups to `masked`. `kept` has a word for each group. `keys`
// and `kept` are in shared memory of this warp.
__device__ __noinline__ void mask_groups(const Params& p, u32* keys, u32* kept, u32 masked) {
    const u32 lane = lane_id();
    const u32 size = p.experts / p.groups;
    // The number of lanes for each group: a power of two, as large as the warp allows.
    u32 sharing = 1;
    while (sharing * 2 * p.groups <= WARP) sharing *= 2;
    const u32 per_round = WARP / sharing;
    const u32 part = lane % sharing;
    for (u32 first = 0; first < p.groups; first += per_round) {
        const u32 group = first + lane / sharing;
        u32 best = 0;
        u32 second = 0;
        if (group < p.groups) {
            for (u32 i = part; i < size; i += sharing) {
                const u32 key = keys[group * size + i];
                second = max(second, min(best, key));
                best = max(best, key);
            }
        }
        for (u32 o = 1; o < sharing; o *= 2) {
            const u32 other_best = __shfl_xor_sync(ALL_LANES, best, o);
            const u32 other_second = __shfl_xor_sync(ALL_LANES, second, o);
            second = max(min(best, other_best), max(second, other_second));
            best = max(best, other_best);
        }
        if (group < p.groups && part == 0) {
            kept[group] = p.group_max || size == 1
                              ? best
                              : exact::sort_key(exact::add(exact::value_of_key(best),
                                                           exact::value_of_key(second)));
        }
    }
    __syncwarp();
    keep_largest(kept, p.groups, p.topk_groups);
    for (u32 first = 0; first < p.groups; first += per_round) {
        const u32 group = first + lane / sharing;
        if (group < p.groups && kept[group] == 0) {
            for (u32 i = part; i < size; i += sharing) keys[group * size + i] = masked;
        }
    }
    __syncwarp();
}

// The largest logit of a row, and the factor of its scores. Only softmax needs them.
struct Softmax {
    float max;
    float factor;
};

// Writes the outputs of a token. A lane has the picks number `lane` and `lane + WARP`, or
// NO_EXPERT.
template <typename R>
INLINE void write_row(const Params& p, const Options& options, const R& replay, u64 token,
                      const LogitRow& row, const u32 (&picks)[2], const Softmax& softmax) {
    const u32 lane = lane_id();
    // NaN as a logit has the score 0.
    const auto logit = [&](u32 expert) {
        return HAS_OPTIONS<R> && expert == NO_EXPERT ? __uint_as_float(0x7FC00000u)
                                                  : row[expert];
    };
    const float first = logit(picks[0]);
    const float second = logit(picks[1]);
    const float4 scores = exact_scores<Options>(
        p.scoring, make_float4(first, second, first, second), softmax.max, softmax.factor);
    float normalized[2] = {scores.x, scores.y};
    if (p.renormalize) {
        const float sum = warp_sum((lane < p.topk ? scores.x : 0.0f) +
                                   (lane + WARP < p.topk ? scores.y : 0.0f));
        normalized[0] = __fdividef(scores.x, sum + 1e-20f);
        normalized[1] = __fdividef(scores.y, sum + 1e-20f);
    }
    write_pick(p, options, replay, token, lane, normalized[0], picks[0]);
    write_pick(p, options, replay, token, lane + WARP, normalized[1], picks[1]);
    write_shared(p, options, replay, token);
}

// Writes the outputs of a token whose experts are given.
INLINE void replay_row(const Params& p, const Options& options, const Replay& replay, u64 token,
                       const LogitRow& row, bool nonfinite, const Softmax& softmax) {
    const i32* const given = replay.chosen[token];
    u32 picks[2] = {NO_EXPERT, NO_EXPERT};
    bool bad = false;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 position = lane_id() + i * WARP;
        if (position >= p.topk) continue;
        const u32 expert = static_cast<u32>(given[position]);
        if (expert < p.experts) picks[i] = expert;
        bad |= expert >= p.experts && expert != NO_EXPERT;
    }
    bad = __any_sync(ALL_LANES, bad);
    // Raises one flag at a time: see `place_of`.
    if (lane_id() == 0) {
        if (nonfinite) raise(p.flags, NON_FINITE);
        if (bad) raise(p.flags, OUT_OF_RANGE);
    }
    write_row(p, options, replay, token, row, picks, softmax);
}

// Routes a token. `keys` has a word for each expert of 32 chunks, followed by a word for each
// group.
template <typename R>
INLINE void route_general(const Params& p, const Options& options, const R& replay, u64 token,
                      u32* keys) {
    const u32 lane = lane_id();
    const u32 chunk = options.chunk;
    const u32 room = chunk * WARP;
    const LogitRow row = logits_of<true>(p, token);
    // Four logits of a lane; NaN beyond the last expert.
    const auto load = [&](u32 at) { return row.four(at, WARP, p.experts); };

    float max = negative_infinity();
    float factor = 0.0f;
    if (p.scoring == SOFTMAX) {
        for (u32 at = lane; at < p.experts; at += 4 * WARP) {
            const float4 x = load(at);
            // NaN is no maximum.
            max = fmaxf(max, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
        }
        max = warp_max(max);
        u64 sum = 0;
        for (u32 at = lane; at < p.experts; at += 4 * WARP) sum += exact_weights(load(at), max);
        factor = row_factor(max, warp_sum(sum));
    }

    bool nonfinite = false;
    if constexpr (HAS_OPTIONS<R>) {
        if (replay.chosen.data != nullptr) {
            for (u32 at = lane; at < p.experts; at += WARP) nonfinite |= !exact::finite(row[at]);
            nonfinite = __any_sync(ALL_LANES, nonfinite);
            replay_row(p, options, replay, token, row, nonfinite, {max, factor});
            return;
        }
    }
    for (u32 at = lane; at < room; at += 4 * WARP) {
        const float4 four = load(at);
        const float4 by =
            options.by_logit ? four : exact_scores<Options>(p.scoring, four, max, factor);
        const float x[4] = {four.x, four.y, four.z, four.w};
        const float c[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 e = at + i * WARP;
            const bool there = e < p.experts;
            float choice = c[i];
            if (there && p.bias != nullptr) choice = exact::add(choice, bias_of(p, options, e));
            if (x[i] != x[i]) choice = negative_infinity();
            nonfinite |= there && !exact::finite(x[i]);
            if (e < room) keys[e] = there ? exact::sort_key(choice) : 0;
        }
    }
    nonfinite = __any_sync(ALL_LANES, nonfinite);
    if (nonfinite && lane == 0) raise(p.flags, NON_FINITE);
    __syncwarp();

    if (p.topk_groups < p.groups) {
        mask_groups(p, keys, keys + room, p.excluded ? 0 : exact::sort_key(0.0f));
    }

    u32 head = 0;
    // Lanes begin at different offsets, so that there are few bank conflicts.
    for (u32 i = 0, at = lane % chunk; i < chunk; ++i, at = at + 1 < chunk ? at + 1 : 0) {
        head = ::max(head, keys[lane * chunk + at]);
    }
    u32 picks[2] = {0, 0};
    for (u32 pick = 0; pick < p.topk; ++pick) {
        const u32 largest = __reduce_max_sync(ALL_LANES, head);
        const u32 owner = __ffs(__ballot_sync(ALL_LANES, head == largest)) - 1;
        u32 expert = 0;
        u32 next = 0;
        bool found = false;
        for (u32 first = 0; first < chunk; first += WARP) {
            const u32 at = first + lane;
            u32 key = at < chunk ? keys[owner * chunk + at] : 0;
            const u32 equal = __ballot_sync(ALL_LANES, at < chunk && key == largest);
            if (!found && equal != 0) {
                found = true;
                const u32 nearest = __ffs(equal) - 1;
                expert = owner * chunk + first + nearest;
                if (lane == nearest) {
                    // 0 is below every key, so this expert is not picked again.
                    key = 0;
                    keys[expert] = 0;
                }
            }
            next = ::max(next, key);
        }
        next = __reduce_max_sync(ALL_LANES, next);
        if (lane == owner) head = next;
        if (lane == pick % WARP) picks[pick / WARP] = expert;
        __syncwarp();
    }

    write_row(p, options, replay, token, row, picks, {max, factor});
}
