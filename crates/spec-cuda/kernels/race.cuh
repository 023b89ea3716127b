// How a token is drawn: crates/spec-core/src/race.rs. All tokens of a row race, each finishes at its
// noise times its slowness, and the first wins.
//
// Noise comes in groups of 64 tokens, the least of a group first. The high bits of that least and the
// group's largest logit bound the times of the whole group from below, so that a row's few best groups
// are all that is looked at:
//
//     bounds     of all groups, a block of noise for four of them;
//     bar        each warp bounds from above when the first of its group of the least bound finishes; the
//                least of what the warps of the row found is a bar that the winner does not pass;
//     groups     whose bound does not pass the bar are listed, for all warps of the block: of each the
//                token with the least noise is evaluated by a thread, which lowers the bar to where
//                few groups are left even in the unlikeliest rows;
//     tokens     of those groups, whose own bound does not pass the bar, are listed, about 50 a row;
//     winner     each of them is evaluated by a thread.
//
// All of it runs once a row, so that its code, not its arithmetic, is what would take time: there is one
// copy of what evaluates a token.
#pragma once

#include "philox.cuh"
#include "select_team.cuh"

// Tokens whose noise is drawn together.
constexpr u32 GROUP = 64;
// Indices of blocks of noise: of a group's least, and of its tokens.
constexpr u32 GROUP_BLOCKS = 1u << 30;
constexpr u32 TOKEN_BLOCKS = 1u << 31;

// After every token: what does not race.
constexpr u64 NEVER = ~0ull;

INLINE u32 word_of(const uint4& words, u32 at) {
    const u32 low = at & 1 ? words.y : words.x;
    const u32 high = at & 1 ? words.w : words.z;
    return at & 2 ? high : low;
}

// The random words that decide the noise of tokens: of a group's least, and of four tokens.
struct NoiseWords {
    u32 high;
    u32 low;
    u32 lane;
    uint4 tokens;

    // Three blocks at once.
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
    return exact::mul(exact::exponential(m, -1 - static_cast<i32>(zeros), below_half), 1.0f / GROUP);
}

// The noise of a token that is even, and of the next.
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

// What bounds are cut by, against the errors of approximate functions and the roundings of exact
// ones: several times their sum.
constexpr float BOUND_SLACK = 1.0f - 1.0f / 65536.0f;
// The same for bounds from above.
constexpr float ABOVE_SLACK = 1.0f + 1.0f / 65536.0f;

// A lower bound of the noise of every token of a group, from the 23 leading bits of the fraction: what is
// cut off makes the fraction smaller and 1 less the fraction larger.
INLINE float noise_bound(u32 high) {
    const float above_one = __uint_as_float(0x3F800000u | high >> 9);
    const float u = above_one - 1.0f;
    const float rest = 2.0f - above_one;
    // The logarithm is at least 0.13, which the approximation misses by 2^-20.
    const float variate = u < 0.125f ? u + 0.5f * u * u : approximate_log2(rest) * -0.693147182f;
    return variate * (BOUND_SLACK / GROUP);
}

// An upper bound of the exponential variate -ln(1 - u), up to ABOVE_SLACK; u is at most one unit of
// 2^-64 above the fraction of 64 bits.
INLINE float variate_above(u32 high, u32 low) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const float u = (static_cast<float>(high) + (static_cast<float>(low) + 1.0f) * UNIT) * UNIT;
    const float rest = static_cast<float>(~high) * UNIT;
    return u < 0.125f ? u + u * u * (0.5f + 0.4f * u) : approximate_log2(rest) * -0.693147182f;
}

// 1 / x, cut to 2^-100 .. 2^100.
INLINE float inverse_of(float x) {
    const float least = __uint_as_float((127 - 100) << 23);
    const float most = __uint_as_float((127 + 100) << 23);
    const u32 bits = __float_as_uint(fminf(fmaxf(x, least), most));
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    const float scale = __uint_as_float((254 - (bits >> 23)) << 23);
    return exact::mul(exact::reciprocal(mantissa), scale);
}

// A place in the order of finishing: the smaller is first, of equal times the lower token.
INLINE u64 finish_at(float time, u32 token) {
    return static_cast<u64>(__float_as_uint(time)) << 32 | token;
}

// The bits of the time, which order as times do.
INLINE u32 time_of(u64 finish) { return static_cast<u32>(finish >> 32); }

// The least of 64-bit values over a warp.
INLINE u64 warp_min(u64 v) {
    const u32 high = __reduce_min_sync(ALL_LANES, static_cast<u32>(v >> 32));
    const u32 low = static_cast<u32>(v >> 32) == high ? static_cast<u32>(v) : 0xFFFFFFFFu;
    return static_cast<u64>(high) << 32 | __reduce_min_sync(ALL_LANES, low);
}

// The groups of a row that a warp has: in whole blocks of noise, four groups each.
struct Share {
    u32 begin;
    u32 end;

    INLINE Share(u32 vocab, u32 piece, u32 pieces) {
        const u32 groups = (vocab + GROUP - 1) / GROUP;
        begin = start(groups, piece, pieces);
        end = start(groups, piece + 1, pieces);
    }

    // Of a power of two of pieces. Vocabularies are below 2^24: nothing overflows.
    INLINE static u32 start(u32 groups, u32 piece, u32 pieces) {
        const u32 quads = (groups + 3) / 4;
        return min((quads * piece >> (31 - __clz(pieces))) * 4, groups);
    }

    // The most groups that any of the pieces has.
    INLINE static u32 most(u32 vocab, u32 pieces) {
        const u32 quads = (vocab + 4 * GROUP - 1) / (4 * GROUP);
        return (quads + pieces - 1) / pieces * 4;
    }
};

// What the warps of a block share as they race.
struct RaceShared {
    // Of so many groups a warp keeps the largest logits at a time.
    static constexpr u32 KEPT = 256;
    static constexpr u32 MAX_GROUPS = 1024;
    static constexpr u32 MAX_TOKENS = 512;
    static constexpr u32 MANY = 192;

    // Of each warp: the largest logit of each of its groups; then bounds of their times.
    alignas(16) float tops[SELECT_WARPS][KEPT];
    u32 groups[MAX_GROUPS];
    u32 tokens[MAX_TOKENS];
    u64 bars[SELECT_WARPS];
    u32 group_count;
    u32 token_count;

    // Groups of a row that there is room for in order; of a longer row each warp has its own part.
    static constexpr u32 IN_ORDER = SELECT_WARPS * KEPT;

    // Where a warp's groups from `begin` on have their largest logits.
    INLINE float* tops_of(u32 warp, u32 begin, u32 vocab) {
        return vocab <= IN_ORDER * GROUP ? &tops[0][0] + begin : tops[warp];
    }

    // Begins lists of groups and tokens, by one thread.
    INLINE void begin_lists() {
        group_count = 0;
        token_count = 0;
    }
};

// Racers know what they race for: `draw`, their noise; `entry(token)`; `slowness_bound(entry)`, a lower
// bound of the slowness of entries that are not larger, infinite where none of them races;
// `slowness_above(token, entry)`, an upper bound of a token's slowness, infinite where it may not race;
// and `finish(token, entry, noise)`.

// One token, by a thread.
template <typename Racers>
__device__ __noinline__ u64 finish_of(const Racers& racers, u32 token) {
    const float entry = racers.entry(token);
    return racers.finish(token, entry, noise_of(racers.draw, token));
}

// The best of a group, by a warp: two tokens a lane.
template <typename Racers>
INLINE u64 best_of_group(const Racers& racers, u32 group, u32 lane) {
    const u32 token = group * GROUP + 2 * lane;
    const float first = racers.entry(token);
    const float second = racers.entry(token + 1);
    const float2 noise = noise_of_pair(racers.draw, token);
    u64 best = NEVER;
#pragma unroll 1
    for (u32 i = 0; i < 2; ++i) {
        best = min(best, racers.finish(token + i, i == 0 ? first : second, i == 0 ? noise.x : noise.y));
    }
    return warp_min(best);
}

// An upper bound of when the first of a group finishes, by a warp: two tokens a lane. By approximate
// functions, which take a fifth of the instructions of the exact ones.
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

// The token of a group that has the least noise, by a thread.
template <typename Racers>
INLINE u64 finish_of_least(const Racers& racers, u32 group) {
    return finish_of(racers, group * GROUP + racers.draw.block(GROUP_BLOCKS + group).y % GROUP);
}

// A lane's first block of noise for the bounds of a warp's groups.
INLINE uint4 first_noise(const Draw& draw, u32 begin, u32 lane) { return draw.block(begin / 4 + lane); }

// Makes bounds of the largest logits of groups begin .. end, in their place. Returns this lane's least
// bound and its group. `high` has the lane's first block of noise: of groups begin + 4 * lane.
template <typename Racers>
INLINE u64 make_bounds(const Racers& racers, float* tops, u32 begin, u32 end, u32 lane, uint4 high) {
    u64 least = NEVER;
#pragma unroll 1
    for (u32 first = begin + 4 * lane; first < end; first += 4 * WARP) {
        if (first >= begin + 4 * WARP) high = racers.draw.block(first / 4);
#pragma unroll 1
        for (u32 i = 0; i < 4; ++i) {
            const u32 group = first + i;
            if (group >= end) break;
            float bound = noise_bound(word_of(high, i)) * racers.slowness_bound(tops[group - begin]);
            if (bound < LARGEST) {
                least = min(least, finish_at(bound, group));
            } else {
                // None of them races; 0 times infinity is no number.
                bound = infinity();
            }
            tops[group - begin] = bound;
        }
    }
    __syncwarp();
    return least;
}

// Lists the block's groups whose bounds do not pass the bar's time, for all warps of the block. Returns
// how many there are, of which no more are listed than there is room for. By the whole block, which has
// begun a list before its last barrier.
INLINE u32 list_groups(const Team& team, RaceShared& shared, const float* bounds, u32 begin, u32 end,
                       u32 most) {
#pragma unroll 1
    for (u32 group = begin + team.lane; group < end; group += WARP) {
        const float bound = bounds[group - begin];
        if (!(bound < LARGEST) || __float_as_uint(bound) > most) continue;
        const u32 place = atomicAdd(&shared.group_count, 1u);
        if (place < RaceShared::MAX_GROUPS) shared.groups[place] = group;
    }
    __syncthreads();
    return shared.group_count;
}

// Lowers a bar, by the whole block: no later than the tokens finish that have the least noise of their
// groups.
template <typename Racers>
INLINE u64 lower_bar(const Racers& racers, const Team& team, RaceShared& shared, const float* bounds,
                     u32 begin, u32 end, u64 bar) {
    const u32 groups = list_groups(team, shared, bounds, begin, end, time_of(bar));
    // So many are looked at in less time. Of 256 rows one or two have more.
    if (groups <= RaceShared::MANY) return bar;
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

// Calls visit(finish) in some lane for every token of the groups that are listed which finishes no later
// than `bar`, and for some others. By the whole block.
template <typename Racers, typename Visit>
INLINE void collect(const Racers& racers, const Team& team, RaceShared& shared, u32 begin, u32 end,
                    u64 bar, Visit&& visit) {
    const u32 most = time_of(bar);
    const u32 groups = shared.group_count;
    const bool listed = groups <= RaceShared::MAX_GROUPS;
    // Rows whose weights are where their noise is not: each warp looks at all of its own groups.
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
            // Past the end the last one once more.
            const u32 i = min(base + k * step, last - 1);
            groups_at[k] = listed ? shared.groups[i] : i;
            entries[2 * k] = racers.entry(groups_at[k] * GROUP + team.lane);
            entries[2 * k + 1] = racers.entry(groups_at[k] * GROUP + WARP + team.lane);
        }
        // Lane k knows the noise of group k.
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
                const bool reaches = bound < LARGEST && __float_as_uint(bound) <= most;
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

// The least of what was told last.
INLINE u64 least_told(const Team& team) {
    u64 least = NEVER;
#pragma unroll 1
    for (u32 i = team.lane; i < team.pieces(); i += WARP) least = min(least, team.told(i));
    return warp_min(least);
}

// The first to finish, and when: the same in all warps of the team; NEVER where none races. `shared`
// has the largest logits of the row's groups where they fit; resurvey(begin, end) finds those of some
// groups again where they do not.
//
// `high` is first_noise(..) of the lane, which may be found while the team meets; begin_lists() was called
// before the block's last barrier.
template <typename Racers, typename Resurvey>
INLINE u64 first_to_finish(const Racers& racers, Team& team, RaceShared& shared, u32 vocab,
                           uint4 high, const Resurvey& resurvey) {
    const Share share(vocab, team.piece(), team.pieces());
    const u32 most = Share::most(vocab, team.pieces());
    u64 best = NEVER;
#pragma unroll 1
    for (u32 from = 0; from < most; from += RaceShared::KEPT) {
        const u32 begin = min(share.begin + from, share.end);
        const u32 end = min(begin + RaceShared::KEPT, share.end);
        if (most > RaceShared::KEPT) resurvey(begin, end);
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
        team.pass(bar);
        bar = lower_bar(racers, team, shared, tops, begin, end, least_told(team));
        u64 own = best;
        collect(racers, team, shared, begin, end, bar, [&](u64 finish) { own = min(own, finish); });
        team.pass(warp_min(own));
        best = least_told(team);
    }
    return best;
}

// ---- several tokens -------------------------------------------------------------

// What the block that leads a team lists as several tokens are drawn.
struct FinishList {
    static constexpr u32 MAX = 1024;
    // As many as a row draws at most.
    static constexpr u32 DRAWS = 64;

    u64 list[MAX];
    u64 best[DRAWS];
    u32 count;
    u64 nth;
};

// The n-th least, from 1, of `count` values in shared memory, by the whole block: equal values are told
// apart by where they are.
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

// Lists the first `draws` to finish, and some that finish later, in the block that leads: in any order.
// Returns how many there are.
template <typename Racers, typename Resurvey>
INLINE u32 list_first(const Racers& racers, Team& team, RaceShared& shared, FinishList& list,
                      u32 vocab, u32 draws, const Resurvey& resurvey) {
    const Share share(vocab, team.piece(), team.pieces());
    const u32 most = Share::most(vocab, team.pieces());
    // So many groups of each warp are evaluated for the bar.
    const u32 each = (draws + SELECT_WARPS - 1) / SELECT_WARPS;
    u64 bar = NEVER;
    bool first_time = true;
    u32* const count = team.blocks.of(&list.count, 0);
    u64* const listed = team.blocks.of(list.list, 0);
    while (true) {
        if (threadIdx.x == 0) list.count = 0;
    #pragma unroll 1
    for (u32 from = 0; from < most; from += RaceShared::KEPT) {
            const u32 begin = min(share.begin + from, share.end);
            const u32 end = min(begin + RaceShared::KEPT, share.end);
            float* const bounds = shared.tops_of(team.warp, begin, vocab);
            if (most > RaceShared::KEPT) resurvey(begin, end);
            // Bounds are made where the largest logits were.
            if (most > RaceShared::KEPT || first_time) {
                u64 least = warp_min(make_bounds(
                    racers, bounds, begin, end, team.lane, first_noise(racers.draw, begin, team.lane)));
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
                // As many tokens as are drawn finish by then.
                bar = min(bar, nth_least(list, list.best, SELECT_WARPS * each, draws));
            }
            if (threadIdx.x == 0) shared.begin_lists();
            team.tell(bar);
            bar = least_told(team);
            list_groups(team, shared, bounds, begin, end, time_of(bar));
            collect(racers, team, shared, begin, end, bar, [&](u64 finish) {
                if (finish > bar || finish == NEVER) return;
                const u32 place = atomicAdd(count, 1u);
                if (place < FinishList::MAX) listed[place] = finish;
            });
            team.blocks.sync();
        }
        first_time = false;
        // All look before it is cleared.
        const u32 all = *count;
        team.blocks.sync();
        if (all <= FinishList::MAX) return all;
        // Some of them bound the rest: fewer next time.
        const bool leads = team.blocks.rank == 0;
        const u64 nth = leads ? nth_least(list, list.list, FinishList::MAX, draws) : NEVER;
        team.tell(nth);
        bar = least_told(team);
    }
}
