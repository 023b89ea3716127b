// The race of a row's tokens (race.cuh), ended by one block, the leading block, which knows the largest
// logit of each group of 64 tokens of the row.
//
// A cluster of blocks reads a row. Each block finds the largest logit of each of its groups, and sends
// these logits to the leading block. Then the other blocks end, so that blocks of other rows start in
// their place while the leading block finds the token:
//
//     noise      Each block computes, for each of its groups, a lower bound of the noise of the group's
//                tokens, and about when the token with the least noise of the group finishes. Where a
//                warp knows its groups early enough, it does so while their logits are on their way. The
//                earliest token of each warp goes to the leading block.
//     front      The leading block finds the row's largest logit, and the earliest of the tokens of all
//                warps. A time by which this token has surely finished is the bar. The winner finishes no
//                later than the bar, and few other tokens finish as early.
//     groups     The leading block lists the groups of which some token may finish before the bar, and
//                reads their logits.
//     tokens     It lists the tokens of these groups that may finish before the bar, about 60 a row, and
//                their logits.
//     winner     A thread for each listed token computes about when the token finishes, by nothing but
//                the list. Where rounding leaves open which of the first two tokens is first, their exact
//                times decide.
#pragma once

#include "race.cuh"

// Racers have, besides what race.cuh says: `raw(token)`, of type `Raw`, what is read of a token;
// `entry_of(token, raw)`; and AT_ONCE, of how many groups a warp reads all tokens before it looks at any.

// The order of two approximate times is certain if the larger is at least NEAR times the smaller. The
// distance from 1 is 8 times the errors of `about_variate` and `approximate_exp2` together.
constexpr float NEAR = 1.0f + 1.0f / 16384.0f;

// An exponential variate -ln(1 - n / 2^64), to 2^-17, where n = high * 2^32 + low is odd.
INLINE float about_variate(u32 high, u32 low) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const float u = (static_cast<float>(high) + static_cast<float>(low) * UNIT) * UNIT;
    const float rest = (static_cast<float>(~high) + static_cast<float>(0 - low) * UNIT) * UNIT;
    const float series = u + u * u * (0.5f + u * (0.333333333f + u * 0.25f));
    return u < 0.0625f ? series : approximate_log2(rest) * -0.693147182f;
}

// About the logarithm to base 2 of when a token finishes, had the row's largest logit been 0. Residuals
// have a `log_time` of their own (residual_groups.cuh), which the type of the last argument selects.
INLINE float log_time(float noise, float entry, float inverse) {
    return approximate_log2(noise) - entry * (inverse * 1.44269504f);
}

// Where `Noise` gets the entries that it looks at: from the row, at random.
template <typename Row>
struct FromRow {
    const Row& row;

    INLINE void want(u32) const {}
    INLINE float entry(u32 token) const { return row.entry(token); }
};

// The lowest of the bits that are set.
INLINE u32 first_of(u32 bits) { return __ffs(bits) - 1; }

// Copies 16 bytes of this block's shared memory to the same place in the shared memory of the cluster's
// first block, and counts the bytes at the `barrier` of that block.
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

// Sends the largest logits of a warp's share of the groups to the block that leads; `tops` has those of the
// whole row, in order.
INLINE void send_tops(const float* tops, const Arrivals& arrivals, const Share& share, u32 lane) {
    __syncwarp();
#pragma unroll 1
    for (u32 first = share.begin + 4 * lane; first < share.end; first += 4 * WARP) {
        put_four(&tops[first], &arrivals.word);
    }
}

// How many quads of groups are sent to the first of `blocks` blocks of `warps` warps by all other blocks.
INLINE u32 quads_sent(u32 groups, u32 warps, u32 blocks) {
    const u32 own = Share::start(groups, warps, blocks * warps);
    return own == groups ? 0 : (groups + 3) / 4 - own / 4;
}

struct RaceLead {
    // The largest number of groups of a row.
    static constexpr u32 MAX_GROUPS = RaceShared::IN_ORDER;
    // The largest numbers of groups and of tokens that are listed; a thread has at most one token.
    static constexpr u32 MAX_LISTED = 1024;
    static constexpr u32 MAX_TOKENS = SELECT_THREADS;
    // The largest number of tokens that `first_few` finds.
    static constexpr u32 FIRST = 4;

    // What the warps of the block share.
    struct Shared {
        // Lower bounds of the noise of each group's tokens: the upper halves of floats.
        alignas(8) u16 noise[MAX_GROUPS];
        // For each warp of the cluster, of one token: an upper bound of the token's noise, and the
        // token's logit.
        u64 early[MAX_PIECES];
        // Groups and tokens that are looked at.
        u16 groups[MAX_LISTED];
        union {
            struct {
                u32 tokens[MAX_TOKENS];
                float entries[MAX_TOKENS];
            };
            // Where several tokens of a row are drawn (race_order.cuh): of each listed group, the least entry
            // of a token that may finish before the bar.
            float cuts[MAX_LISTED];
        };
        u64 best[SELECT_WARPS];
        u32 keys[SELECT_WARPS];
        u32 of_warps[SELECT_WARPS];
        u32 group_count;
        u32 token_count;
        // The first to finish, where more than one is wanted.
        u64 finishes[WARP];
        u64 first[FIRST];
        u32 finish_count;

        // Begins lists, by one thread, before a barrier.
        INLINE void begin() {
            group_count = 0;
            token_count = 0;
            finish_count = 0;
        }
    };

    // A listed token that a thread has, or NONE, and about when the token finishes. `sure` is false
    // where the token may not race at all.
    struct Runner {
        u32 token;
        float time;
        bool sure;
    };

    // What the race begins with.
    struct Front {
        // The key of the row's largest logit.
        u32 largest_key;
        // Of shared.early, the token that is likely to finish first.
        u64 early;
    };

    Shared& shared;
    // The largest logit of each group.
    float* tops;
    u32 groups;
    u32 lane;
    u32 warp;

    INLINE RaceLead(Shared& of_block, float* of_groups, u32 vocab)
        : shared(of_block), tops(of_groups), groups((vocab + GROUP - 1) / GROUP), lane(lane_id()),
          warp(threadIdx.x / WARP) {}

    // Computes bounds of the noise of a warp's groups, 32 groups at a time. Each group has a token with the
    // least noise of the group; among those that `keeps` keeps, the one that is likely to finish first goes to
    // shared.early[piece]. `Entries` is FromRow, or Picks where the warp reads the row meanwhile (picks.cuh).
    template <typename Entries, typename Keeps>
    struct Noise {
        const RaceLead& race;
        Entries entries;
        const Keeps& keeps;
        // Groups from `next` to `end` have no bounds yet.
        u32 next;
        u32 end;
        // What `log_time` says of the earliest time so far, and noise and entry of the token that has this
        // time.
        float least;
        float noise;
        float entry;
        // Of the lane's latest group: the token with the least noise, until `take` has looked at it, else
        // NONE; and the most that its noise can be.
        u32 token;
        float above;

        INLINE Noise(const RaceLead& of, const Entries& of_row, const Share& share, const Keeps& kept)
            : race(of), entries(of_row), keeps(kept), next(share.begin), end(share.end), least(infinity()),
              noise(infinity()), entry(negative_infinity()), token(NONE), above(infinity()) {}

        // The next 32 groups, once the warp has read the row of the groups before. `how` orders times, as
        // `log_time` takes it.
        template <typename How>
        INLINE void advance(const Draw& draw, const How& how) {
            take(how);
            bound(draw);
        }

    private:
        // Of the next 32 groups, what is known without the row.
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
            // The noise exceeds its bound by less than a sixtieth, and by what the bits stand for that
            // the bound leaves out.
            above = below * (1.0f + 1.0f / 60.0f) + 1.0f / (4194304.0f * GROUP);
        }

        // Looks at the entry of the token that `bound` has found.
        template <typename How>
        INLINE void take(const How& how) {
            // What other lanes have picked for this one.
            __syncwarp();
            if (token == NONE) return;
            const float x = entries.entry(token);
            const float time = log_time(above, x, how);
            if (time < least && x > negative_infinity() && keeps(x, token)) {
                least = time;
                noise = above;
                entry = x;
            }
            token = NONE;
        }

    public:
        // All groups that `advance` has not had; then the warp's token goes to shared.early[piece].
        template <typename How>
        INLINE void finish(const Draw& draw, const How& how, u32 piece) {
#pragma unroll 1
            while (next < end) advance(draw, how);
            take(how);
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

    // Computes bounds of the noise of a warp's groups, as `Noise` says.
    template <typename Row, typename Keeps>
    INLINE void draw_noise(const Row& row, const Draw& draw, float inverse, const Share& share, u32 piece,
                           const Keeps& keeps) const {
        Noise<FromRow<Row>, Keeps>(*this, {row}, share, keeps).finish(draw, inverse, piece);
    }

    // Fills up the last four groups with groups that do not race, for `front` and `winner`, which look at four
    // at once. By the warp of the row's last groups, before `send` or `await`.
    INLINE void fill_up(const Share& share) const {
        if (share.end != groups || lane >= (0 - groups) % 4) return;
        tops[groups + lane] = negative_infinity();
        shared.noise[groups + lane] = 0;
    }

    // Sends to the leading block the largest logits of a warp's share of the groups, and what
    // `draw_noise` found for this share.
    INLINE void send(const Senders& blocks, const Arrivals& arrivals, const Share& share, u32 piece) const {
        send_tops(tops, arrivals, share, lane);
        u64* const barrier = const_cast<u64*>(&arrivals.word);
#pragma unroll 1
        for (u32 first = share.begin + 4 * lane; first < share.end; first += 4 * WARP) {
            u64* const four = reinterpret_cast<u64*>(&shared.noise[first]);
            blocks.put(four, barrier, 0, *four);
        }
        send_early(blocks, arrivals, piece);
    }

    // Sends to the leading block nothing but the token that is likely to finish first.
    INLINE void send_early(const Senders& blocks, const Arrivals& arrivals, u32 piece) const {
        u64* const barrier = const_cast<u64*>(&arrivals.word);
        if (lane == 0) blocks.put(&shared.early[piece], barrier, 0, shared.early[piece]);
    }

    // In every block of a cluster: prepares `arrivals` for what the other blocks send. `blocks.wait_started` waits until
    // all blocks have prepared.
    INLINE static void open(const Senders& blocks, Arrivals& arrivals) {
        if (threadIdx.x == 0) {
            arrivals.init();
            Arrivals::publish_init();
        }
        blocks.arrive_started();
    }

    // In the leading block: waits until the bytes have come that `send` of all other blocks brings, and `more`
    // bytes of each of their warps. By the whole block.
    INLINE void await(const Senders& blocks, Arrivals& arrivals, u32 more = 0) const {
        if (blocks.size > 1) {
            if (threadIdx.x == 0) expect(arrivals, blocks.size, more);
            arrivals.wait(0);
        }
        __syncthreads();
    }

    // In the leading block: announces to `arrivals` the bytes that `send` of all other blocks brings, and `more`
    // bytes of each of their warps. By one thread.
    INLINE void expect(Arrivals& arrivals, u32 blocks, u32 more = 0) const {
        const u32 quads = quads_sent(groups, SELECT_WARPS, blocks);
        arrivals.expect(quads * 24 + (blocks - 1) * SELECT_WARPS * (8 + more));
    }

    INLINE float noise_of_group(u32 group) const {
        return __uint_as_float(static_cast<u32>(shared.noise[group]) << 16);
    }

    // The front of the race, in all threads; `pieces` warps have left tokens in shared.early. LARGEST_TOO:
    // with the key of the row's largest logit, which not every race needs.
    template <bool LARGEST_TOO = true, typename How>
    INLINE Front front(const How& how, u32 pieces) const {
        float top = negative_infinity();
#pragma unroll 1
        for (u32 first = 4 * threadIdx.x; LARGEST_TOO && first < groups; first += 4 * SELECT_THREADS) {
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
            order = exact::sort_key(log_time(noise, entry, how));
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

    // The token that finishes first, in the low word; NEVER where none races. The lists began before the
    // block's last barrier.
    template <typename Racers>
    INLINE u64 winner(const Racers& racers, u32 pieces, u64 early) const {
        u64 best = NEVER;
        u32 bar = 0;
        const Runner own = run<true>(racers, pieces, early, 1.0f, bar, best);
        // Of each warp, the token with the earliest time, and the next time.
        const u32 time = __float_as_uint(own.time);
        const u32 earliest = __reduce_min_sync(ALL_LANES, time);
        const bool leads = lane == first_of(__ballot_sync(ALL_LANES, time == earliest));
        // A token that may not race has itself as the next, so that exact times decide.
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
        // Tokens that the list had no room for may be first.
        const bool complete = shared.token_count <= MAX_TOKENS;
        if (complete && next > raised(first, 1.0f)) return shared.best[owner];
        return decide(racers, own.token, best, shared.finishes);
    }

    // Finds the first tokens to finish, at most FIRST, and leaves them in shared.first in the order of their
    // times. Returns how many it found, or 0 where rounding leaves their order open or where too many
    // tokens finish early. The lists began before the block's last barrier.
    template <typename Racers>
    INLINE u32 first_few(const Racers& racers, u32 pieces, u64 early) const {
        bool odd = false;
#pragma unroll 1
        for (float widen = 2.5f; widen > 1.0f; widen -= 1.25f) {
            u64 best = NEVER;
            u32 bar = 0;
            const Runner own = run<false>(racers, pieces, early, widen, bar, best);
            // Every token that finishes before this time is listed.
            const float limit = __uint_as_float(bar) * (2.0f - NEAR * NEAR);
            odd = bar >= NONE - 1;
            if (own.time <= limit) {
                odd = odd || !own.sure;
                const u32 place = atomicAdd(&shared.finish_count, 1u);
                if (place < WARP) shared.finishes[place] = finish_at(own.time, own.token);
            }
            odd = __syncthreads_or(odd);
            if (shared.token_count <= MAX_TOKENS && shared.finish_count <= WARP) break;
            // The lists overflowed: a second pass with an earlier bar lists fewer tokens.
            odd = true;
            __syncthreads();
            if (threadIdx.x == 0) shared.begin();
            __syncthreads();
        }
        if (odd) return 0;
        const u32 finishes = shared.finish_count;
        u64 left = lane < finishes ? shared.finishes[lane] : NEVER;
        u32 last = 0;
#pragma unroll 1
        for (u32 i = 0; i <= FIRST; ++i) {
            const u64 next = warp_min(left);
            if (next == NEVER) break;
            odd = odd || (i > 0 && time_of(next) <= raised(last, 1.0f));
            last = time_of(next);
            if (left == next) left = NEVER;
            if (i < FIRST && threadIdx.x == 0) shared.first[i] = next;
        }
        __syncthreads();
        return odd ? 0 : min(finishes, FIRST);
    }

private:
    friend struct RaceOrder;

    // The bits of an upper bound of the exact time of a token whose approximate time is `time`, times
    // `widen`.
    INLINE static u32 raised(u32 time, float widen) {
        return time >= __float_as_uint(LARGEST * 0.125f)
                   ? NONE - 1
                   : __float_as_uint(__uint_as_float(time) * NEAR * widen);
    }

    // About when a token finishes: an infinite time where the token does not race.
    template <typename Racers>
    INLINE static Runner about(const Racers& racers, u32 token, float entry) {
        Runner own = {token, infinity(), true};
        const NoiseWords words(racers.draw, token);
        float noise = 0.0f;
        // The noise of a token is the least noise of its group, plus a part of the token's own, which the
        // token with the least noise does not have.
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u32 high = part == 0 ? words.high : word_of(words.tokens, token % 4);
            const u32 low = part == 0 ? words.low | 1 : 1u << 31 | 1;
            const float variate = about_variate(high, low);
            if (part == 0 || token % GROUP != words.lane) noise += part == 0 ? variate * (1.0f / GROUP) : variate;
        }
        const float time = noise * racers.about_slowness(token, entry, own.sure);
        if (time < LARGEST) own.time = time;
        return own;
    }

    // Lists all tokens that finish within `widen` times the bar, and some others; returns one listed token
    // to each thread. `bar` becomes the bits of the widened bar. Where EXACT, tokens that the list has no room
    // for are raced at once, by exact times, and lower `best`.
    template <bool EXACT, typename Racers>
    INLINE Runner run(const Racers& racers, u32 pieces, u64 early, float widen, u32& bar, u64& best) const {
        bar = raised(surely_by(racers, early), widen);
        if (bar >= NONE - 1) bar = raised(earliest_bar(racers, pieces), widen);
        list_groups<EXACT>(racers, bar, [](u32, u32) {});
        __syncthreads();
        list_tokens<EXACT>(racers, shared.group_count, bar, best);
        if (threadIdx.x >= min(shared.token_count, MAX_TOKENS)) return {NONE, infinity(), true};
        return about(racers, shared.tokens[threadIdx.x], shared.entries[threadIdx.x]);
    }

    // Lists the groups of which some token may finish before `bar`: listed(place, group) of each that there is
    // room for. Where not EXACT, it lists none if no time is known by which a token surely finishes.
    template <bool EXACT, typename Racers, typename Listed>
    INLINE void list_groups(const Racers& racers, u32 bar, Listed&& listed) const {
#pragma unroll 1
        for (u32 first = 4 * threadIdx.x; first < groups; first += 4 * SELECT_THREADS) {
            const float4 largest = *reinterpret_cast<const float4*>(&tops[first]);
            const uint2 halves = *reinterpret_cast<const uint2*>(&shared.noise[first]);
            const float its[4] = {largest.x, largest.y, largest.z, largest.w};
            const u32 noises[4] = {halves.x << 16, halves.x & 0xFFFF0000u, halves.y << 16, halves.y & 0xFFFF0000u};
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float bound = __uint_as_float(noises[i]) * racers.slowness_bound(its[i]);
                // 0 times infinity is no number.
                if (bound < LARGEST && __float_as_uint(bound) <= bar) found |= 1u << i;
            }
            // Where no token surely races, only exact times can tell which tokens do.
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

    // The bits of a time by which a token of shared.early has surely finished; NONE where it may not race.
    template <typename Racers>
    INLINE static u32 surely_by(const Racers& racers, u64 early) {
        const float noise = __uint_as_float(static_cast<u32>(early >> 32));
        const float time = noise * racers.sure_slowness(__uint_as_float(static_cast<u32>(early)));
        return time < LARGEST ? __float_as_uint(time) : NONE;
    }

    // The earliest of these times. For rows where the token that is likely to be first may not race.
    template <typename Racers>
    INLINE u32 earliest_bar(const Racers& racers, u32 pieces) const {
        const u32 bits = threadIdx.x < pieces ? surely_by(racers, shared.early[threadIdx.x]) : NONE;
        const u32 least = __reduce_min_sync(ALL_LANES, bits);
        // All have read the front's keys.
        __syncthreads();
        if (lane == 0) shared.keys[warp] = least;
        __syncthreads();
        return __reduce_min_sync(ALL_LANES, shared.keys[lane % SELECT_WARPS]);
    }

    // Lists the tokens that may finish before `bar`: of the listed groups, or of all groups where the list of
    // groups had too little room.
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
                // After the last group, the first of these is read again.
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
            const auto token_of = [&](u32 i) { return chosen(its, i / 2) * GROUP + i % 2 * WARP + lane; };
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

    // One of a few values in registers.
    template <typename V, u32 N>
    INLINE static V chosen(const V (&values)[N], u32 at) {
        V value = values[0];
#pragma unroll
        for (u32 i = 1; i < N; ++i) value = at == i ? values[i] : value;
        return value;
    }

    // The first to finish, by exact times, among one token of each thread and each thread's `best`.
    template <typename Racers>
    static __device__ __noinline__ u64 decide(const Racers& racers, u32 token, u64 best, u64* of_warps) {
        if (token != NONE) best = min(best, finish_of(racers, token));
        best = warp_min(best);
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        return warp_min(of_warps[threadIdx.x % SELECT_WARPS]);
    }
};
