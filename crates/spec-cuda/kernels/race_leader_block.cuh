// The race of a row's tokens (race.cuh), decided by one block of a cluster: the leading block,
// which receives the largest logit of each group of 64 tokens of the row.
//
// A cluster of blocks reads a row, and each warp reads a range of its groups. Each block finds the
// largest logit of each of its groups and sends these logits to the leading block. Then the other
// blocks end, so that blocks of other rows start in their place while the leading block finds the
// token:
//
//     noise      Each warp computes, for each of its groups, a lower bound of the noise of the
//                group's tokens, and an approximate time of the token with the least noise of the
//                group. If the warp knows its groups early enough, it does this while their logits
//                are in flight. The earliest of these tokens, one for each warp, goes to the
//                leading block.
//     front      The leading block finds the row's largest logit, and the earliest of the tokens of
//                all warps. An upper bound of the time of this token is the bar: the winner
//                finishes no later than the bar, and few other tokens finish as early.
//     groups     The leading block lists the groups of which some token may finish before the bar,
//                and reads their logits.
//     tokens     It lists the tokens of these groups that may finish before the bar, about 60 a
//                row, and their logits.
//     winner     A thread for each listed token computes the token's approximate time, from the
//                list alone. If the first two times differ by less than their error, exact times
//                decide.
#pragma once

#include "race.cuh"

// A type Racers has, in addition to the members named in race.cuh: `raw(token)`, of type `Raw`, the
// logit as stored; `entry_of(token, raw)`; and AT_ONCE, the number of groups whose tokens a warp
// loads before it uses any of them.

// What differs between types Racers: here, tokens are their own indices in the row, and noise is
// bounded for 64 entries at a time. Rows of other kinds specialise this struct
// (sample_logits_ids.cu), and overload `finish_of` (race.cuh).
template <typename Racers>
struct RaceOf {
    // The token whose noise an entry of the row has.
    INLINE static u32 token(const Racers&, u32 index) { return index; }

    // Lists the entries of the listed groups that may finish before `bar`.
    template <bool EXACT, typename Race>
    INLINE static void list_tokens(const Race& race, const Racers& racers, u32 bar, u64& best) {
        race.template list_tokens<EXACT>(racers, race.shared.group_count, bar, best);
    }

    // The first finish, with the index in the row in place of the token. By the whole block.
    INLINE static u64 with_index(const Racers&, u64 finish) { return finish; }
};

// The order of two approximate times is certain if the larger is at least NEAR times the smaller.
// The distance from 1 is 8 times the errors of `about_variate` and `approximate_exp2` together.
constexpr float NEAR = 1.0f + 1.0f / 16384.0f;

// An exponential variate -ln(1 - n / 2^64), to 2^-17, where n = high * 2^32 + low is odd.
INLINE float about_variate(u32 high, u32 low) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const float u = (static_cast<float>(high) + static_cast<float>(low) * UNIT) * UNIT;
    const float rest = (static_cast<float>(~high) + static_cast<float>(0 - low) * UNIT) * UNIT;
    const float series = u + u * u * (0.5f + u * (0.333333333f + u * 0.25f));
    return u < 0.0625f ? series : approximate_log2(rest) * -0.693147182f;
}

// The approximate base-2 logarithm of a token's time, for a row whose largest logit is 0. For
// residuals, another `log_time` (residual_groups.cuh) is selected by the type of the last argument.
INLINE float log_time(float noise, float entry, float inverse) {
    return approximate_log2(noise) - entry * (inverse * 1.44269504f);
}

// Entries for `Noise` that are read from the row, at random addresses.
template <typename Row>
struct FromRow {
    const Row& row;

    INLINE void want(u32) const {}
    INLINE float entry(u32 token) const { return row.entry(token); }
};

// The index of the lowest set bit.
INLINE u32 first_of(u32 bits) { return __ffs(bits) - 1; }

// Copies 16 bytes of this block's shared memory to the same place in the shared memory of the
// cluster's first block, and counts the bytes at the `barrier` of that block.
INLINE void put_four(const float* at, const u64* barrier) {
#if __CUDA_ARCH__ >= 900
    const float4 four = *reinterpret_cast<const float4*>(at);
    const u32 here = static_cast<u32>(__cvta_generic_to_shared(at));
    const u32 counter = static_cast<u32>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "{ .reg .u32 to, counts; "
        "mapa.shared::cluster.u32 to, %0, 0; "
        "mapa.shared::cluster.u32 counts, %1, 0; "
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%2, %3, %4, %5}, "
        "[counts]; }" ::"r"(here),
        "r"(counter), "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
        : "memory");
#endif
}

// Sends the largest logits of a warp's range of groups to the leading block. `tops` contains the
// largest logits of the whole row, in order.
INLINE void send_tops(const float* tops, const Arrivals& arrivals, const WarpRange& range,
                      u32 lane) {
    __syncwarp();
#pragma unroll 1
    for (u32 first = range.begin + 4 * lane; first < range.end; first += 4 * WARP) {
        put_four(&tops[first], &arrivals.word);
    }
}

// The number of quads of groups that all other blocks send to the first of `blocks` blocks of
// `warps` warps.
INLINE u32 quads_sent(u32 groups, u32 warps, u32 blocks) {
    const u32 own = WarpRange::start(groups, warps, blocks * warps);
    return own == groups ? 0 : (groups + 3) / 4 - own / 4;
}

struct LeaderRace {
    // The largest number of groups of a row.
    static constexpr u32 MAX_GROUPS = RaceShared::IN_ORDER;
    // The largest numbers of groups and of tokens that are listed. A thread evaluates at most one
    // token.
    static constexpr u32 MAX_LISTED = 1024;
    static constexpr u32 MAX_TOKENS = SELECT_THREADS;
    // The largest number of tokens that `first_finishers` finds.
    static constexpr u32 FIRST = 4;

    // Shared memory of the block.
    struct Shared {
        // Lower bounds of the noise of each group's tokens, stored as the upper halves of floats.
        alignas(8) u16 noise[MAX_GROUPS];
        // For each warp of the cluster, its early token: an upper bound of the token's noise in the
        // high word, and the token's logit in the low word.
        u64 early[MAX_PIECES];
        // The listed groups.
        u16 groups[MAX_LISTED];
        union {
            struct {
                u32 tokens[MAX_TOKENS];
                float entries[MAX_TOKENS];
            };
            // Used if several tokens of a row are drawn (race_order.cuh): for each listed group,
            // the least logit of a token that may finish before the bar.
            float cuts[MAX_LISTED];
        };
        u64 best[SELECT_WARPS];
        u32 keys[SELECT_WARPS];
        u32 of_warps[SELECT_WARPS];
        u32 group_count;
        u32 token_count;
        // The listed finishes, if more than one token is wanted.
        u64 finishes[WARP];
        u64 first[FIRST];
        u32 finish_count;

        // Empties the lists. By one thread, before a barrier.
        INLINE void begin() {
            group_count = 0;
            token_count = 0;
            finish_count = 0;
        }
    };

    // The listed token of a thread, or NONE, and its approximate time. `sure` is false if rounding
    // leaves open whether the token races.
    struct Runner {
        u32 token;
        float time;
        bool sure;
    };

    // The values from which the race starts.
    struct Front {
        // The sort key of the row's largest logit.
        u32 largest_key;
        // Of shared.early, the token that probably finishes first.
        u64 early;
    };

    Shared& shared;
    // The largest logit of each group.
    float* tops;
    u32 groups;
    u32 lane;
    u32 warp;

    INLINE LeaderRace(Shared& of_block, float* of_groups, u32 vocab)
        : shared(of_block), tops(of_groups), groups((vocab + GROUP - 1) / GROUP), lane(lane_id()),
          warp(threadIdx.x / WARP) {}

    // Computes lower bounds of the noise of a warp's groups, 32 groups at a time. Of the tokens
    // that have the least noise of their groups and pass `filter`, the token that probably finishes
    // first goes to shared.early[piece]. `Entries` is FromRow, or Picks if the warp reads the row
    // at the same time (picks.cuh).
    template <typename Entries, typename Filter>
    struct Noise {
        const LeaderRace& race;
        Entries entries;
        const Filter& filter;
        // The groups from `next` to `end` have no bounds yet.
        u32 next;
        u32 end;
        // The smallest `log_time` so far, and the noise bound and the entry of its token.
        float least;
        float noise;
        float entry;
        // For the lane's latest group: the token with the least noise, or NONE after `take` has
        // used the token; and an upper bound of the token's noise.
        u32 token;
        float above;

        INLINE Noise(const LeaderRace& of, const Entries& of_row, const WarpRange& range,
                     const Filter& of_filter)
            : race(of),
              entries(of_row),
              filter(of_filter),
              next(range.begin),
              end(range.end),
              least(infinity()),
              noise(infinity()),
              entry(negative_infinity()),
              token(NONE),
              above(infinity()) {}

        // Processes the next 32 groups, after the warp has read the row's groups before them.
        // `scale` is the last argument of `log_time`.
        template <typename TimeScale>
        INLINE void advance(const Draw& draw, const TimeScale& scale) {
            take(scale);
            bound(draw);
        }

    private:
        // Computes what needs only the noise of the next 32 groups.
        INLINE void bound(const Draw& draw) {
            const u32 group = next + race.lane;
            next += WARP;
            if (group >= end) return;
            uint4 c[2] = {draw.start(group / 4), draw.start(GROUP_BLOCKS + group)};
            uint2 key = draw.key();
#pragma unroll 2
            for (u32 round = 0; round < 10; ++round) {
                c[0] = Draw::round(c[0], key);
                c[1] = Draw::round(c[1], key);
                key = Draw::next(key);
            }
            token = group * GROUP + c[1].y % GROUP;
            entries.want(token);
            const float below = noise_bound(word_of(c[0], group % 4));
            race.shared.noise[group] = static_cast<u16>(__float_as_uint(below) >> 16);
            // The noise exceeds its lower bound by less than a sixtieth, plus the value of the bits
            // that the bound cuts off.
            above = below * (1.0f + 1.0f / 60.0f) + 1.0f / (4194304.0f * GROUP);
        }

        // Uses the entry of the token that `bound` found.
        template <typename TimeScale>
        INLINE void take(const TimeScale& scale) {
            // Makes the entries visible that other lanes have stored for this lane.
            __syncwarp();
            if (token == NONE) return;
            const float x = entries.entry(token);
            const float time = log_time(above, x, scale);
            if (time < least && x > negative_infinity() && filter(x, token)) {
                least = time;
                noise = above;
                entry = x;
            }
            token = NONE;
        }

    public:
        // Processes the groups that `advance` has not processed; then the warp's early token goes
        // to shared.early[piece].
        template <typename TimeScale>
        INLINE void finish(const Draw& draw, const TimeScale& scale, u32 piece) {
#pragma unroll 1
            while (next < end) advance(draw, scale);
            take(scale);
            const u32 order = exact::sort_key(least);
            const u32 first = __reduce_min_sync(ALL_LANES, order);
            const u32 owner = first_of(__ballot_sync(ALL_LANES, order == first));
            if (race.lane == owner) {
                race.shared.early[piece] =
                    static_cast<u64>(__float_as_uint(noise)) << 32 | __float_as_uint(entry);
            }
            __syncwarp();
        }
    };

    // Computes lower bounds of the noise of a warp's groups, as `Noise` does, with entries read
    // from the row.
    template <typename Row, typename Filter>
    INLINE void draw_noise(const Row& row, const Draw& draw, float inverse, const WarpRange& range,
                           u32 piece, const Filter& filter) const {
        Noise<FromRow<Row>, Filter>(*this, {row}, range, filter).finish(draw, inverse, piece);
    }

    // Fills the last four groups of the row with groups that do not race, because `front` and
    // `winner` read four groups at once. By the warp with the row's last groups, before `send` or
    // `await`.
    INLINE void fill_up(const WarpRange& range) const {
        if (range.end != groups || lane >= (0 - groups) % 4) return;
        tops[groups + lane] = negative_infinity();
        shared.noise[groups + lane] = 0;
    }

    // Sends to the leading block the largest logits of a warp's range of groups, the noise bounds
    // of these groups, and the warp's early token.
    INLINE void send(const Senders& blocks, const Arrivals& arrivals, const WarpRange& range,
                     u32 piece) const {
        send_tops(tops, arrivals, range, lane);
        u64* const barrier = const_cast<u64*>(&arrivals.word);
#pragma unroll 1
        for (u32 first = range.begin + 4 * lane; first < range.end; first += 4 * WARP) {
            u64* const four = reinterpret_cast<u64*>(&shared.noise[first]);
            blocks.put(four, barrier, 0, *four);
        }
        send_early(blocks, arrivals, piece);
    }

    // Sends only the warp's early token to the leading block.
    INLINE void send_early(const Senders& blocks, const Arrivals& arrivals, u32 piece) const {
        u64* const barrier = const_cast<u64*>(&arrivals.word);
        if (lane == 0) blocks.put(&shared.early[piece], barrier, 0, shared.early[piece]);
    }

    // In every block of a cluster: prepares `arrivals` for the values that other blocks send.
    // `blocks.wait_started` waits until all blocks have prepared.
    INLINE static void open(const Senders& blocks, Arrivals& arrivals) {
        if (threadIdx.x == 0) {
            arrivals.init();
            Arrivals::publish_init();
        }
        blocks.arrive_started();
    }

    // In the leading block: waits until all values have arrived that the other blocks send with
    // `send`, and `more` additional bytes from each of their warps. By the whole block.
    INLINE void await(const Senders& blocks, Arrivals& arrivals, u32 more = 0) const {
        if (blocks.size > 1) {
            if (threadIdx.x == 0) expect(arrivals, blocks.size, more);
            arrivals.wait(0);
        }
        __syncthreads();
    }

    // In the leading block: announces to `arrivals` the bytes that the other blocks send with
    // `send`, and `more` additional bytes from each of their warps. By one thread.
    INLINE void expect(Arrivals& arrivals, u32 blocks, u32 more = 0) const {
        const u32 quads = quads_sent(groups, SELECT_WARPS, blocks);
        arrivals.expect(quads * 24 + (blocks - 1) * SELECT_WARPS * (8 + more));
    }

    INLINE float noise_of_group(u32 group) const {
        return __uint_as_float(static_cast<u32>(shared.noise[group]) << 16);
    }

    // The front of the race, the same in all threads; `pieces` warps have stored early tokens in
    // shared.early. LARGEST_TOO: with the key of the row's largest logit, which not every race
    // needs.
    template <bool LARGEST_TOO = true, typename TimeScale>
    INLINE Front front(const TimeScale& scale, u32 pieces) const {
        float top = negative_infinity();
#pragma unroll 1
        for (u32 first = 4 * threadIdx.x; LARGEST_TOO && first < groups;
             first += 4 * SELECT_THREADS) {
            const float4 four = *reinterpret_cast<const float4*>(&tops[first]);
            top = fmaxf(fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)), top);
        }
        const u32 key = __reduce_max_sync(ALL_LANES, key_of(top));
        u64 early = 0;
        u32 order = NONE;
        if (threadIdx.x < pieces) {
            early = shared.early[threadIdx.x];
            const float noise = __uint_as_float(static_cast<u32>(early >> 32));
            const float entry = __uint_as_float(static_cast<u32>(early));
            order = exact::sort_key(log_time(noise, entry, scale));
        }
        const u32 least = __reduce_min_sync(ALL_LANES, order);
        if (lane == first_of(__ballot_sync(ALL_LANES, order == least))) {
            shared.of_warps[warp] = key;
            shared.keys[warp] = least;
            shared.best[warp] = early;
        }
        __syncthreads();
        const u32 its = shared.keys[lane % SELECT_WARPS];
        const u32 first = __reduce_min_sync(ALL_LANES, its);
        return {__reduce_max_sync(ALL_LANES, shared.of_warps[lane % SELECT_WARPS]),
                shared.best[first_of(__ballot_sync(ALL_LANES, its == first))]};
    }

    // The finish of the token that finishes first (the token is in the low word); NEVER if no token
    // races. The lists must have been emptied before the block's last barrier.
    template <typename Racers>
    INLINE u64 winner(const Racers& racers, u32 pieces, u64 early) const {
        u64 best = NEVER;
        u32 bar = 0;
        const Runner own = run<true>(racers, pieces, early, 1.0f, bar, best);
        // For each warp, the token with the earliest time, and the next earliest time.
        const u32 time = __float_as_uint(own.time);
        const u32 earliest = __reduce_min_sync(ALL_LANES, time);
        const bool leads = lane == first_of(__ballot_sync(ALL_LANES, time == earliest));
        // If it is not sure that the earliest token races, its own time counts as the next, so that
        // exact times decide.
        const u32 later = __reduce_min_sync(ALL_LANES, leads && own.sure ? NONE : time);
        if (leads) {
            shared.best[warp] = finish_at(own.time, own.token);
            shared.of_warps[warp] = later;
        }
        __syncthreads();
        const u64 its = shared.best[lane % SELECT_WARPS];
        const u32 first = __reduce_min_sync(ALL_LANES, time_of(its));
        const u32 owner = first_of(__ballot_sync(ALL_LANES, time_of(its) == first));
        const u32 after = lane % SELECT_WARPS == owner ? shared.of_warps[owner] : time_of(its);
        const u32 next = __reduce_min_sync(ALL_LANES, after);
        // Tokens for which the list had no room may finish first.
        const bool complete = shared.token_count <= MAX_TOKENS;
        if (complete && next > raised(first, 1.0f)) return shared.best[owner];
        return decide(racers, own.token, best, shared.finishes);
    }

    // Finds the first tokens to finish, at most FIRST, and stores them in shared.first in the order
    // of their times. Returns their number, or 0 if rounding leaves their order open or if too many
    // tokens finish early. The lists must have been emptied before the block's last barrier.
    template <typename Racers>
    INLINE u32 first_finishers(const Racers& racers, u32 pieces, u64 early) const {
        bool uncertain = false;
#pragma unroll 1
        for (float widen = 2.5f; widen > 1.0f; widen -= 1.25f) {
            u64 best = NEVER;
            u32 bar = 0;
            const Runner own = run<false>(racers, pieces, early, widen, bar, best);
            // Every token that finishes before this time is listed.
            const float limit = __uint_as_float(bar) * (2.0f - NEAR * NEAR);
            uncertain = bar >= NONE - 1;
            if (own.time <= limit) {
                uncertain = uncertain || !own.sure;
                const u32 place = atomicAdd(&shared.finish_count, 1u);
                if (place < WARP) shared.finishes[place] = finish_at(own.time, own.token);
            }
            uncertain = __syncthreads_or(uncertain);
            if (shared.token_count <= MAX_TOKENS && shared.finish_count <= WARP) break;
            // The lists overflowed: a second pass with a lower bar lists fewer tokens.
            uncertain = true;
            __syncthreads();
            if (threadIdx.x == 0) shared.begin();
            __syncthreads();
        }
        if (uncertain) return 0;
        const u32 finishes = shared.finish_count;
        u64 left = lane < finishes ? shared.finishes[lane] : NEVER;
        u32 last = 0;
#pragma unroll 1
        for (u32 i = 0; i <= FIRST; ++i) {
            const u64 next = warp_min(left);
            if (next == NEVER) break;
            uncertain = uncertain || (i > 0 && time_of(next) <= raised(last, 1.0f));
            last = time_of(next);
            if (left == next) left = NEVER;
            if (i < FIRST && threadIdx.x == 0) shared.first[i] = next;
        }
        __syncthreads();
        return uncertain ? 0 : min(finishes, FIRST);
    }

private:
    friend struct RaceOrder;
    template <typename Racers>
    friend struct RaceOf;

    // The bits of an upper bound of a token's exact time, times `widen`, where `time` has the bits
    // of the approximate time.
    INLINE static u32 raised(u32 time, float widen) {
        return time >= __float_as_uint(LARGEST * 0.125f)
                   ? NONE - 1
                   : __float_as_uint(__uint_as_float(time) * NEAR * widen);
    }

    // The approximate time of a token; infinite if the token does not race.
    template <typename Racers>
    INLINE static Runner about(const Racers& racers, u32 index, float entry) {
        Runner own = {index, infinity(), true};
        const u32 token = RaceOf<Racers>::token(racers, index);
        const NoiseWords words(racers.draw, token);
        float noise = 0.0f;
        // The noise of a token is the least noise of its group plus the token's own part. The token
        // with the least noise has no own part.
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u32 high = part == 0 ? words.high : word_of(words.tokens, token % 4);
            const u32 low = part == 0 ? words.low | 1 : 1u << 31 | 1;
            const float variate = about_variate(high, low);
            if (part == 0 || token % GROUP != words.lane) {
                noise += part == 0 ? variate * (1.0f / GROUP) : variate;
            }
        }
        const float time = noise * racers.about_slowness(index, entry, own.sure);
        if (time < LARGEST) own.time = time;
        return own;
    }

    // Lists all tokens that finish within `widen` times the bar, and some later tokens. Returns one
    // listed token to each thread, and in `bar` the bits of the widened bar. If EXACT, tokens for
    // which the list has no room are evaluated at once, by exact times, and lower `best`.
    template <bool EXACT, typename Racers>
    INLINE Runner run(const Racers& racers, u32 pieces, u64 early, float widen, u32& bar,
                      u64& best) const {
        bar = raised(surely_by(racers, early), widen);
        if (bar >= NONE - 1) bar = raised(earliest_bar(racers, pieces), widen);
        list_groups<EXACT>(racers, bar, [](u32, u32) {});
        __syncthreads();
        RaceOf<Racers>::template list_tokens<EXACT>(*this, racers, bar, best);
        if (threadIdx.x >= min(shared.token_count, MAX_TOKENS)) return {NONE, infinity(), true};
        return about(racers, shared.tokens[threadIdx.x], shared.entries[threadIdx.x]);
    }

    // Lists the groups of which some token may finish before `bar`, and calls listed(place, group)
    // for each listed group. Without EXACT, lists no group if no token surely races.
    template <bool EXACT, typename Racers, typename Listed>
    INLINE void list_groups(const Racers& racers, u32 bar, Listed&& listed) const {
#pragma unroll 1
        for (u32 first = 4 * threadIdx.x; first < groups; first += 4 * SELECT_THREADS) {
            const float4 largest = *reinterpret_cast<const float4*>(&tops[first]);
            const uint2 halves = *reinterpret_cast<const uint2*>(&shared.noise[first]);
            const float its[4] = {largest.x, largest.y, largest.z, largest.w};
            const u32 noises[4] = {halves.x << 16, halves.x & 0xFFFF0000u, halves.y << 16,
                                   halves.y & 0xFFFF0000u};
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float bound = __uint_as_float(noises[i]) * racers.slowness_bound(its[i]);
                // 0 * infinity is NaN.
                if (bound < LARGEST && __float_as_uint(bound) <= bar) found |= 1u << i;
            }
            // If no token surely races, only exact times decide which tokens race.
            if (!EXACT && bar >= NONE - 1) found = 0;
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 place = atomicAdd(&shared.group_count, 1u);
                const u32 group = first + first_of(found);
                if (place >= MAX_LISTED) continue;
                shared.groups[place] = static_cast<u16>(group);
                listed(place, group);
            }
        }
    }

    // The bits of an upper bound of the time of a token of shared.early; NONE if the token may not
    // race.
    template <typename Racers>
    INLINE static u32 surely_by(const Racers& racers, u64 early) {
        const float noise = __uint_as_float(static_cast<u32>(early >> 32));
        const float time = noise * racers.sure_slowness(__uint_as_float(static_cast<u32>(early)));
        return time < LARGEST ? __float_as_uint(time) : NONE;
    }

    // The smallest of these upper bounds. Needed only if the token that is probably first may not
    // race.
    template <typename Racers>
    INLINE u32 earliest_bar(const Racers& racers, u32 pieces) const {
        const u32 bits = threadIdx.x < pieces ? surely_by(racers, shared.early[threadIdx.x]) : NONE;
        const u32 least = __reduce_min_sync(ALL_LANES, bits);
        // All warps must have read the keys of `front`.
        __syncthreads();
        if (lane == 0) shared.keys[warp] = least;
        __syncthreads();
        return __reduce_min_sync(ALL_LANES, shared.keys[lane % SELECT_WARPS]);
    }

    // Lists the tokens that may finish before `bar`: tokens of the listed groups, or of all groups
    // if the list of groups overflowed.
    template <bool EXACT, typename Racers>
    INLINE void list_tokens(const Racers& racers, u32 count, u32 bar, u64& best) const {
        constexpr u32 AT_ONCE = Racers::AT_ONCE;
        const bool listed = count <= MAX_LISTED;
        if (!listed) count = groups;
#pragma unroll 1
        for (u32 base = warp; base < count; base += AT_ONCE * SELECT_WARPS) {
            typename Racers::Raw raw[2 * AT_ONCE];
            u32 its[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                // Past the last group, the first group of this step is read again.
                const u32 at = base + i * SELECT_WARPS < count ? base + i * SELECT_WARPS : base;
                its[i] = listed ? shared.groups[at] : at;
                raw[2 * i] = racers.raw(its[i] * GROUP + lane);
                raw[2 * i + 1] = racers.raw(its[i] * GROUP + WARP + lane);
            }
            float entries[2 * AT_ONCE];
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < 2 * AT_ONCE; ++i) {
                entries[i] = racers.entry_of(its[i / 2] * GROUP + i % 2 * WARP + lane, raw[i]);
                const float bound = noise_of_group(its[i / 2]) * racers.slowness_bound(entries[i]);
                const bool there = base + i / 2 * SELECT_WARPS < count;
                if (there && bound < LARGEST && __float_as_uint(bound) <= bar) found |= 1u << i;
            }
            const auto token_of = [&](u32 i) {
                return chosen(its, i / 2) * GROUP + i % 2 * WARP + lane;
            };
            u32 left = 0;
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 i = first_of(found);
                const u32 place = atomicAdd(&shared.token_count, 1u);
                if (place < MAX_TOKENS) {
                    shared.tokens[place] = token_of(i);
                    shared.entries[place] = chosen(entries, i);
                } else {
                    left |= 1u << i;
                }
            }
#pragma unroll 1
            for (; EXACT && left != 0; left &= left - 1) {
                best = min(best, finish_of(racers, token_of(first_of(left))));
            }
            __syncwarp();
        }
        __syncthreads();
    }

    // The element of an array in registers whose index is known only at run time.
    template <typename V, u32 N>
    INLINE static V chosen(const V (&values)[N], u32 at) {
        V value = values[0];
#pragma unroll
        for (u32 i = 1; i < N; ++i) value = at == i ? values[i] : value;
        return value;
    }

    // The earliest finish, by exact times, among one token of each thread and each thread's `best`.
    template <typename Racers>
    static __device__ __noinline__ u64 decide(const Racers& racers, u32 token, u64 best,
                                              u64* of_warps) {
        if (token != NONE) best = min(best, finish_of(racers, token));
        best = warp_min(best);
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        return RaceOf<Racers>::with_index(racers, warp_min(of_warps[threadIdx.x % SELECT_WARPS]));
    }
};
