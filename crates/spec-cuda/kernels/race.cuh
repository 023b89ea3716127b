// Draws a token of a row by an exponential race: crates/spec-core/src/race.rs. Every token has a
// time of finishing, its noise (an exponential random variate) times its slowness (the inverse of
// its weight); the token that finishes first is drawn.
//
// Noise is generated for groups of 64 tokens, the least noise of a group first. The high bits of
// the least noise and the largest logit of a group give a lower bound of the times of all tokens of
// the group. So only the few groups with the smallest bounds are read again:
//
// 1. Bounds: a lower bound for each group. One Philox block serves four groups.
// 2. Bar: each warp takes its group with the smallest bound, and computes an upper bound of the time
//    at which the first token of the group finishes. The minimum of these upper bounds over all
//    warps of the row is the bar: the winner finishes no later.
// 3. Groups: the block lists the groups whose bound does not exceed the bar. If many are listed, a
//    thread for each listed group evaluates the group's token with the least noise; the earliest of
//    these times is a lower bar, which leaves few groups even in rows of unusual distributions.
// 4. Tokens: the block lists the tokens of these groups whose own bound does not exceed the bar,
//    about 50 a row.
// 5. Winner: a thread for each listed token computes the exact time of the token.
//
// Each step runs once a row, so the time to fetch its instructions exceeds the time to execute
// them: the code that evaluates a token therefore exists once.
#pragma once

#include "philox.cuh"
#include "select_team.cuh"

// The finish of a token that does not race: larger than the finish of any token.
constexpr u64 NEVER = ~0ull;

INLINE u32 word_of(const uint4& words, u32 at) {
    const u32 low = at & 1 ? words.y : words.x;
    const u32 high = at & 1 ? words.w : words.z;
    return at & 2 ? high : low;
}

// The random words that determine a token's noise: words of the group's least noise, and words of
// four tokens.
struct NoiseWords {
    u32 high;
    u32 low;
    u32 lane;
    uint4 tokens;

    // Computes three Philox blocks at once.
    INLINE NoiseWords(const Draw& draw, u32 token) {
        const u32 group = token / GROUP;
        const u32 indices[3] = {group / 4, GROUP_BLOCKS + group, TOKEN_BLOCKS + token / 4};
        uint4 c[3];
#pragma unroll
        for (u32 i = 0; i < 3; ++i) c[i] = draw.start(indices[i]);
        uint2 key = draw.key();
#pragma unroll 2
        for (u32 round = 0; round < 10; ++round) {
#pragma unroll
            for (u32 i = 0; i < 3; ++i) c[i] = Draw::round(c[i], key);
            key = Draw::next(key);
        }
        high = word_of(c[0], group % 4);
        low = c[1].x;
        lane = c[1].y % GROUP;
        tokens = c[2];
    }
};

// The least noise of a group.
INLINE float least_noise(const NoiseWords& words) {
    const u64 n = static_cast<u64>(words.high) << 32 | words.low | 1;
    const bool below_half = words.high < 1u << 31;
    const u64 distance = below_half ? n : 0 - n;
    const u32 zeros = __clzll(static_cast<i64>(distance));
    const u32 fraction = static_cast<u32>((distance << zeros) >> 40) & 0x007FFFFFu;
    const float m = __uint_as_float(fraction | 0x3F800000u);
    return exact::mul(exact::exponential(m, -1 - static_cast<i32>(zeros), below_half),
                      1.0f / GROUP);
}

// The noise of an even token and of the next token.
__device__ __noinline__ float2 noise_of_pair(Draw draw, u32 token) {
    const NoiseWords words(draw, token);
    const float least = least_noise(words);
    const bool upper = (token & 2) != 0;
    const u32 of_tokens[2] = {upper ? words.tokens.z : words.tokens.x,
                              upper ? words.tokens.w : words.tokens.y};
    float noise[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        // The fraction is (2 * word + 1) / 2^33.
        const u32 word = of_tokens[i];
        const bool below_half = word < 1u << 31;
        const u32 distance = 2 * (below_half ? word : ~word) + 1;
        const u32 zeros = __clz(static_cast<i32>(distance));
        const u32 fraction = (distance << zeros) >> 8 & 0x007FFFFFu;
        const float m = __uint_as_float(fraction | 0x3F800000u);
        const float more = exact::exponential(m, -2 - static_cast<i32>(zeros), below_half);
        noise[i] = token % GROUP + i == words.lane ? least : exact::add(least, more);
    }
    return make_float2(noise[0], noise[1]);
}

INLINE float noise_of(const Draw& draw, u32 token) {
    const float2 pair = noise_of_pair(draw, token & ~1u);
    return token & 1 ? pair.y : pair.x;
}

// Upper bounds are multiplied by this factor, as lower bounds by BOUND_SLACK.
constexpr float ABOVE_SLACK = 1.0f + 1.0f / 65536.0f;

// A lower bound of the noise of every token of a group, from the 23 leading bits of the fraction u.
// Cutting off the other bits makes u smaller and 1 - u larger, so the bound is not above the noise.
INLINE float noise_bound(u32 high) {
    const float above_one = __uint_as_float(0x3F800000u | high >> 9);
    const float u = above_one - 1.0f;
    const float rest = 2.0f - above_one;
    // The logarithm is at least 0.13 here, and the approximation's error is 2^-20.
    const float variate = u < 0.125f ? u + 0.5f * u * u : approximate_log2(rest) * -0.693147182f;
    return variate * (BOUND_SLACK / GROUP);
}

// An upper bound of the exponential variate -ln(1 - u), up to the factor ABOVE_SLACK. Here u is at
// most one unit of 2^-64 above the 64-bit fraction.
INLINE float variate_above(u32 high, u32 low) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const float u = (static_cast<float>(high) + (static_cast<float>(low) + 1.0f) * UNIT) * UNIT;
    const float rest = static_cast<float>(~high) * UNIT;
    return u < 0.125f ? u + u * u * (0.5f + 0.4f * u) : approximate_log2(rest) * -0.693147182f;
}

// 1 / x, with x clamped to 2^-100 .. 2^100.
INLINE float inverse_of(float x) {
    const float smallest = __uint_as_float((127 - 100) << 23);
    const float largest = __uint_as_float((127 + 100) << 23);
    const u32 bits = __float_as_uint(fminf(fmaxf(x, smallest), largest));
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    const float scale = __uint_as_float((254 - (bits >> 23)) << 23);
    return exact::mul(exact::reciprocal(mantissa), scale);
}

// A sort key of finishes: by time, then by token.
INLINE u64 finish_at(float time, u32 token) {
    return static_cast<u64>(__float_as_uint(time)) << 32 | token;
}

// The bits of the time. For times, which are not negative, the bits have the same order as the
// values.
INLINE u32 time_of(u64 finish) { return static_cast<u32>(finish >> 32); }

// The least of the lanes' 64-bit values.
INLINE u64 warp_min(u64 v) {
    const u32 high = __reduce_min_sync(ALL_LANES, static_cast<u32>(v >> 32));
    const u32 low = static_cast<u32>(v >> 32) == high ? static_cast<u32>(v) : 0xFFFFFFFFu;
    return static_cast<u64>(high) << 32 | __reduce_min_sync(ALL_LANES, low);
}

// The groups of a row that a warp reads. A range starts at a multiple of four groups, because one
// Philox block serves four groups.
struct WarpRange {
    u32 begin;
    u32 end;

    INLINE WarpRange(u32 vocab, u32 piece, u32 pieces) {
        const u32 groups = (vocab + GROUP - 1) / GROUP;
        begin = start(groups, piece, pieces);
        end = start(groups, piece + 1, pieces);
    }

    // `pieces` is a power of two. Vocabularies are below 2^24, so the product does not overflow.
    INLINE static u32 start(u32 groups, u32 piece, u32 pieces) {
        const u32 quads = (groups + 3) / 4;
        return min((quads * piece >> (31 - __clz(pieces))) * 4, groups);
    }

    // The largest number of groups that a piece has.
    INLINE static u32 max_groups(u32 vocab, u32 pieces) {
        const u32 quads = (vocab + 4 * GROUP - 1) / (4 * GROUP);
        return (quads + pieces - 1) / pieces * 4;
    }
};

// Shared memory of a block for a race.
struct RaceShared {
    // The number of groups whose largest logits a warp can hold at a time.
    static constexpr u32 KEPT = 256;
    static constexpr u32 MAX_GROUPS = 1024;
    static constexpr u32 MAX_TOKENS = 512;
    static constexpr u32 LOWER_BAR_ABOVE = 192;

    // For each warp: first the largest logit of each of its groups, then lower bounds of their
    // times.
    alignas(16) float tops[SELECT_WARPS][KEPT];
    u32 groups[MAX_GROUPS];
    u32 tokens[MAX_TOKENS];
    u64 bars[SELECT_WARPS];
    u32 group_count;
    u32 token_count;

    // The number of groups of a row that fit in order in `tops`. In a longer row, each warp has
    // only its own part of `tops`.
    static constexpr u32 IN_ORDER = SELECT_WARPS * KEPT;

    // The address of the largest logits of a warp's groups from `begin` on.
    INLINE float* tops_of(u32 warp, u32 begin, u32 vocab) {
        return vocab <= IN_ORDER * GROUP ? &tops[0][0] + begin : tops[warp];
    }

    // Empties the lists of groups and tokens. By one thread.
    INLINE void begin_lists() {
        group_count = 0;
        token_count = 0;
    }
};

// A type Racers defines the weights of tokens: `draw`, the source of their noise; `entry(token)`;
// `slowness_bound(entry)`, a lower bound of the slowness of every entry not larger than `entry`,
// infinite if none of these races; `slowness_above(token, entry)`, an upper bound of the token's
// slowness, infinite if the token may not race; and `finish(token, entry, noise)`, the exact
// finish.

// The finish of one token, by a thread.
template <typename Racers>
__device__ __noinline__ u64 finish_of(const Racers& racers, u32 token) {
    const float entry = racers.entry(token);
    return racers.finish(token, entry, noise_of(racers.draw, token));
}

// The earliest finish in a group, by a warp: two tokens a lane.
template <typename Racers>
INLINE u64 best_of_group(const Racers& racers, u32 group, u32 lane) {
    const u32 token = group * GROUP + 2 * lane;
    const float first = racers.entry(token);
    const float second = racers.entry(token + 1);
    const float2 noise = noise_of_pair(racers.draw, token);
    u64 best = NEVER;
#pragma unroll 1
    for (u32 i = 0; i < 2; ++i) {
        best = min(best,
                   racers.finish(token + i, i == 0 ? first : second, i == 0 ? noise.x : noise.y));
    }
    return warp_min(best);
}

// An upper bound of the earliest finish in a group, by a warp: two tokens a lane. It uses
// approximate functions, which take a fifth of the instructions of the exact functions.
template <typename Racers>
INLINE u64 bar_of_group(const Racers& racers, u32 group, u32 lane) {
    const u32 token = group * GROUP + 2 * lane;
    const float entries[2] = {racers.entry(token), racers.entry(token + 1)};
    const NoiseWords words(racers.draw, token);
    const float least = variate_above(words.high, words.low) * (1.0f / GROUP);
    float bar = infinity();
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const float more = variate_above(word_of(words.tokens, token % 4 + i), 1u << 31);
        const float noise = token % GROUP + i == words.lane ? least : least + more;
        bar = fminf(bar, noise * racers.slowness_above(token + i, entries[i]));
    }
    const u32 time = __reduce_min_sync(ALL_LANES, __float_as_uint(bar * ABOVE_SLACK));
    return finish_at(__uint_as_float(time), NONE);
}

// The finish of the token with the least noise in a group, by a thread.
template <typename Racers>
INLINE u64 finish_of_least(const Racers& racers, u32 group) {
    return finish_of(racers, group * GROUP + racers.draw.block(GROUP_BLOCKS + group).y % GROUP);
}

// The first Philox block that a lane needs for the bounds of its warp's groups.
INLINE uint4 first_noise(const Draw& draw, u32 begin, u32 lane) {
    return draw.block(begin / 4 + lane);
}

// Replaces the largest logits of groups begin .. end by lower bounds of the groups' times. Returns
// the lane's smallest bound with its group. `high` is the lane's first Philox block, for the groups
// from begin + 4 * lane on.
template <typename Racers>
INLINE u64 make_bounds(const Racers& racers, float* tops, u32 begin, u32 end, u32 lane,
                       uint4 high) {
    u64 least = NEVER;
#pragma unroll 1
    for (u32 first = begin + 4 * lane; first < end; first += 4 * WARP) {
        if (first >= begin + 4 * WARP) high = racers.draw.block(first / 4);
#pragma unroll 1
        for (u32 i = 0; i < 4; ++i) {
            const u32 group = first + i;
            if (group >= end) break;
            float bound =
                noise_bound(word_of(high, i)) * racers.slowness_bound(tops[group - begin]);
            if (bound < LARGEST) {
                least = min(least, finish_at(bound, group));
            } else {
                // No token of the group races. (The product may be 0 * infinity, which is NaN.)
                bound = infinity();
            }
            tops[group - begin] = bound;
        }
    }
    __syncwarp();
    return least;
}

// Lists the block's groups whose bound is at most `max_time`, for all warps of the block. Returns
// the number of such groups, of which only the first MAX_GROUPS are listed. By the whole block; the
// list must have been emptied before the block's last barrier.
INLINE u32 list_groups(const Team& team, RaceShared& shared, const float* bounds, u32 begin,
                       u32 end, u32 max_time) {
#pragma unroll 1
    for (u32 group = begin + team.lane; group < end; group += WARP) {
        const float bound = bounds[group - begin];
        if (!(bound < LARGEST) || __float_as_uint(bound) > max_time) continue;
        const u32 place = atomicAdd(&shared.group_count, 1u);
        if (place < RaceShared::MAX_GROUPS) shared.groups[place] = group;
    }
    __syncthreads();
    return shared.group_count;
}

// Returns a bar that may be lower than `bar`: the earliest finish among the tokens with the least
// noise of their groups. By the whole block.
template <typename Racers>
INLINE u64 lower_bar(const Racers& racers, const Team& team, RaceShared& shared,
                     const float* bounds, u32 begin, u32 end, u64 bar) {
    const u32 groups = list_groups(team, shared, bounds, begin, end, time_of(bar));
    // With so few groups, reading all of them takes less time than lowering the bar. Of 256 rows,
    // one or two have more groups.
    if (groups <= RaceShared::LOWER_BAR_ABOVE) return bar;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < min(groups, RaceShared::MAX_GROUPS); i += SELECT_THREADS) {
        bar = min(bar, finish_of_least(racers, shared.groups[i]));
    }
    bar = warp_min(bar);
    if (team.lane == 0) shared.bars[team.warp] = bar;
    __syncthreads();
    if (threadIdx.x == 0) shared.begin_lists();
    __syncthreads();
    bar = warp_min(shared.bars[team.lane % SELECT_WARPS]);
    list_groups(team, shared, bounds, begin, end, time_of(bar));
    return bar;
}

// Calls visit(finish), in some lane, for every token of the listed groups that finishes no later
// than `bar`, and for some tokens that finish later. By the whole block.
template <typename Racers, typename Visit>
INLINE void collect(const Racers& racers, const Team& team, RaceShared& shared, u32 begin, u32 end,
                    u64 bar, Visit&& visit) {
    const u32 max_time = time_of(bar);
    const u32 groups = shared.group_count;
    const bool listed = groups <= RaceShared::MAX_GROUPS;
    // If too many groups pass the bar (the weights are large where the noise is large), the list is
    // incomplete: each warp then reads all of its own groups.
    const u32 first = listed ? team.warp : begin;
    const u32 last = listed ? groups : end;
    const u32 step = listed ? SELECT_WARPS : 1;
    constexpr u32 AT_ONCE = 4;
#pragma unroll 1
    for (u32 base = first; base < last; base += step * AT_ONCE) {
        float entries[2 * AT_ONCE];
        u32 groups_at[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            // Past the end, the last group is read again.
            const u32 i = min(base + k * step, last - 1);
            groups_at[k] = listed ? shared.groups[i] : i;
            entries[2 * k] = racers.entry(groups_at[k] * GROUP + team.lane);
            entries[2 * k + 1] = racers.entry(groups_at[k] * GROUP + WARP + team.lane);
        }
        // Lane k computes the noise bound of the k-th group.
        u32 own_group = groups_at[0];
#pragma unroll
        for (u32 k = 1; k < AT_ONCE; ++k) own_group = team.lane == k ? groups_at[k] : own_group;
        const float own_noise =
            noise_bound(word_of(racers.draw.block(own_group / 4), own_group % 4));
        u32 found = 0;
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            const float noise = __shfl_sync(ALL_LANES, own_noise, k);
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const float bound = noise * racers.slowness_bound(entries[2 * k + half]);
                const bool reaches = bound < LARGEST && __float_as_uint(bound) <= max_time;
                if (reaches && base + k * step < last) found |= 1u << (2 * k + half);
            }
        }
#pragma unroll 1
        for (; found != 0; found &= found - 1) {
            const u32 at = __ffs(found) - 1;
            const u32 k = at / 2;
            const u32 group = k == 0   ? groups_at[0]
                              : k == 1 ? groups_at[1]
                              : k == 2 ? groups_at[2]
                                       : groups_at[3];
            const u32 token = group * GROUP + at % 2 * WARP + team.lane;
            const u32 place = atomicAdd(&shared.token_count, 1u);
            if (place < RaceShared::MAX_TOKENS) {
                shared.tokens[place] = token;
            } else {
                visit(finish_of(racers, token));
            }
        }
        __syncwarp();
    }
    __syncthreads();
    const u32 tokens = min(shared.token_count, RaceShared::MAX_TOKENS);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < tokens; i += SELECT_THREADS) {
        visit(finish_of(racers, shared.tokens[i]));
    }
}

// The minimum of the values that the team's warps published last.
INLINE u64 reduce_min(const Team& team) {
    u64 least = NEVER;
#pragma unroll 1
    for (u32 i = team.lane; i < team.pieces(); i += WARP) least = min(least, team.published(i));
    return warp_min(least);
}

// The earliest finish of the row (NEVER if no token races), the same in all warps of the team.
// `shared` contains the largest logits of the row's groups if they fit; otherwise resurvey(begin,
// end) computes the largest logits of those groups again.
//
// `high` is first_noise(..) of the lane, which the caller may compute while the team exchanges
// values. begin_lists() must have been called before the block's last barrier.
template <typename Racers, typename Resurvey>
INLINE u64 first_to_finish(const Racers& racers, Team& team, RaceShared& shared, u32 vocab,
                           uint4 high, const Resurvey& resurvey) {
    const WarpRange range(vocab, team.piece(), team.pieces());
    const u32 max_groups = WarpRange::max_groups(vocab, team.pieces());
    u64 best = NEVER;
#pragma unroll 1
    for (u32 from = 0; from < max_groups; from += RaceShared::KEPT) {
        const u32 begin = min(range.begin + from, range.end);
        const u32 end = min(begin + RaceShared::KEPT, range.end);
        if (max_groups > RaceShared::KEPT) resurvey(begin, end);
        if (from > 0) {
            __syncthreads();
            if (threadIdx.x == 0) shared.begin_lists();
            __syncthreads();
            high = first_noise(racers.draw, begin, team.lane);
        }
        float* const tops = shared.tops_of(team.warp, begin, vocab);
        const u64 least = warp_min(make_bounds(racers, tops, begin, end, team.lane, high));
        u64 bar = best;
        if (least < best) bar = min(bar, bar_of_group(racers, static_cast<u32>(least), team.lane));
        team.publish_relaxed(bar);
        bar = lower_bar(racers, team, shared, tops, begin, end, reduce_min(team));
        u64 own = best;
        collect(racers, team, shared, begin, end, bar, [&](u64 finish) { own = min(own, finish); });
        team.publish_relaxed(warp_min(own));
        best = reduce_min(team);
    }
    return best;
}

// ---- several tokens -------------------------------------------------------------

// Shared memory of the leading block when several tokens are drawn.
struct FinishList {
    static constexpr u32 MAX = 1024;

    u64 list[MAX];
    u64 best[MAX_DRAWS];
    u32 count;
    u64 nth;
};

// The n-th smallest, counted from 1, of `count` values in shared memory; equal values are ranked by
// index. By the whole block.
INLINE u64 nth_least(FinishList& shared, const u64* values, u32 count, u32 n) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += SELECT_THREADS) {
        const u64 own = values[i];
        u32 rank = 0;
#pragma unroll 4
        for (u32 j = 0; j < count; ++j) rank += values[j] < own || (values[j] == own && j < i);
        if (rank + 1 == n) shared.nth = own;
    }
    __syncthreads();
    return shared.nth;
}

// Lists, in the leading block and in any order, the first `draws` finishes and some later finishes.
// Returns the number of listed finishes.
template <typename Racers, typename Resurvey>
INLINE u32 list_first(const Racers& racers, Team& team, RaceShared& shared, FinishList& list,
                      u32 vocab, u32 draws, const Resurvey& resurvey) {
    const WarpRange range(vocab, team.piece(), team.pieces());
    const u32 max_groups = WarpRange::max_groups(vocab, team.pieces());
    // The number of groups of each warp that are evaluated for the bar.
    const u32 each = (draws + SELECT_WARPS - 1) / SELECT_WARPS;
    u64 bar = NEVER;
    bool first_time = true;
    u32* const count = team.blocks.of(&list.count, 0);
    u64* const listed = team.blocks.of(list.list, 0);
    while (true) {
        if (threadIdx.x == 0) list.count = 0;
    #pragma unroll 1
    for (u32 from = 0; from < max_groups; from += RaceShared::KEPT) {
            const u32 begin = min(range.begin + from, range.end);
            const u32 end = min(begin + RaceShared::KEPT, range.end);
            float* const bounds = shared.tops_of(team.warp, begin, vocab);
            if (max_groups > RaceShared::KEPT) resurvey(begin, end);
            // The bounds overwrite the largest logits, so they can be computed only once.
            if (max_groups > RaceShared::KEPT || first_time) {
                u64 least = warp_min(make_bounds(racers, bounds, begin, end, team.lane,
                                                 first_noise(racers.draw, begin, team.lane)));
#pragma unroll 1
                for (u32 i = 0; i < each; ++i) {
                    const u32 group = static_cast<u32>(least);
                    const bool none = least == NEVER;
                    const u64 best = none ? NEVER : best_of_group(racers, group, team.lane);
                    if (team.lane == 0) list.best[team.warp * each + i] = best;
                    const u64 last = least;
                    least = NEVER;
#pragma unroll 1
                    for (u32 next = begin + team.lane; next < end; next += WARP) {
                        const u64 at = finish_at(bounds[next - begin], next);
                        if (at > last && bounds[next - begin] < LARGEST) least = min(least, at);
                    }
                    least = warp_min(least);
                }
                __syncthreads();
                // At least `draws` tokens finish by this time.
                bar = min(bar, nth_least(list, list.best, SELECT_WARPS * each, draws));
            }
            if (threadIdx.x == 0) shared.begin_lists();
            team.publish(bar);
            bar = reduce_min(team);
            list_groups(team, shared, bounds, begin, end, time_of(bar));
            collect(racers, team, shared, begin, end, bar, [&](u64 finish) {
                if (finish > bar || finish == NEVER) return;
                const u32 place = atomicAdd(count, 1u);
                if (place < FinishList::MAX) listed[place] = finish;
            });
            team.blocks.sync();
        }
        first_time = false;
        // All blocks must read `count` before it is cleared.
        const u32 all = *count;
        team.blocks.sync();
        if (all <= FinishList::MAX) return all;
        // Too many finishes: the `draws`-th of the listed finishes is a lower bar for the next
        // attempt.
        const bool leads = team.blocks.rank == 0;
        const u64 nth = leads ? nth_least(list, list.list, FinishList::MAX, draws) : NEVER;
        team.publish(nth);
        bar = reduce_min(team);
    }
}
