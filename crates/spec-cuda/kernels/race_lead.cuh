// The race of a row's tokens (race.cuh), ended by one block, the leading block, which knows the largest
// logit of each group of 64 tokens of the row.
//
// A cluster of blocks reads a row. Each block finds the largest logit of each of its groups, and sends
// these logits to the leading block. Then the other blocks end, so that blocks of other rows start in
// their place while the leading block finds the token:
//
//     noise      Each block computes, for each of its groups, a lower bound of the noise of the group's
//                tokens, and about when the token with the least noise of the group finishes. The
//                earliest of these times over the row is the bar. The winner finishes no later than
//                the bar, and few other tokens finish as early.
//     groups     The leading block lists the groups of which some token may finish before the bar, and
//                reads their logits.
//     tokens     It lists the tokens of these groups that may finish before the bar, about 60 a row.
//     winner     A thread for each listed token computes about when the token finishes. Where rounding
//                leaves open which of the first two tokens is first, their exact times decide.
#pragma once

#include "race.cuh"

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
    static constexpr u32 MOST_GROUPS = RaceShared::IN_ORDER;
    // The largest numbers of groups and of tokens that are listed; a thread has at most one token.
    static constexpr u32 MOST_LISTED = 1024;
    static constexpr u32 MOST_TOKENS = SELECT_THREADS;
    // The largest number of tokens that `first_few` finds.
    static constexpr u32 FIRST = 4;

    // What the warps of the block share.
    struct Shared {
        // Lower bounds of the noise of each group's tokens: the upper halves of floats.
        alignas(8) u16 noise[MOST_GROUPS];
        // For each warp of the cluster, of one token: an upper bound of the token's noise, and the
        // token's logit.
        u64 early[MAX_PIECES];
        // Groups and tokens that are looked at.
        u16 groups[MOST_LISTED];
        u32 tokens[MOST_TOKENS];
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

    Shared& shared;
    // The largest logit of each group.
    float* tops;
    u32 groups;
    u32 lane;
    u32 warp;

    INLINE RaceLead(Shared& of_block, float* of_groups, u32 vocab)
        : shared(of_block), tops(of_groups), groups((vocab + GROUP - 1) / GROUP), lane(lane_id()),
          warp(threadIdx.x / WARP) {}

    // Computes bounds of the noise of a warp's groups. Each group has a token with the least noise of the
    // group; among those that `keeps` keeps, the one that is likely to finish first goes to
    // shared.early[piece].
    template <typename Row, typename Keeps>
    INLINE void draw_noise(const Row& row, const Draw& draw, float inverse, const Share& share, u32 piece,
                           const Keeps& keeps) const {
        // The logarithm of the earliest time so far, and noise and logit of the token that has this time.
        float least = infinity();
        float noise = infinity();
        float entry = negative_infinity();
        const float factor = inverse * 1.44269504f;
#pragma unroll 1
        for (u32 group = share.begin + lane; group < share.end; group += WARP) {
            uint4 c[2] = {draw.start(group / 4), draw.start(GROUP_BLOCKS + group)};
            uint2 key = draw.key();
#pragma unroll 2
            for (u32 round = 0; round < 10; ++round) {
                c[0] = Draw::round(c[0], key);
                c[1] = Draw::round(c[1], key);
                key = Draw::next(key);
            }
            const u32 token = group * GROUP + c[1].y % GROUP;
            const float x = row.entry(token);
            const float bound = noise_bound(word_of(c[0], group % 4));
            shared.noise[group] = static_cast<u16>(__float_as_uint(bound) >> 16);
            // The noise exceeds its bound by less than a sixtieth, and by what the bits stand for that
            // the bound leaves out.
            const float above = bound * (1.0f + 1.0f / 60.0f) + 1.0f / (4194304.0f * GROUP);
            const float time = approximate_log2(above) - x * factor;
            if (time < least && x > negative_infinity() && keeps(x, token)) {
                least = time;
                noise = above;
                entry = x;
            }
        }
        const u32 order = exact::sort_key(least);
        const u32 first = __reduce_min_sync(ALL_LANES, order);
        const u32 owner = __ffs(__ballot_sync(ALL_LANES, order == first)) - 1;
        if (lane == owner) {
            shared.early[piece] = static_cast<u64>(__float_as_uint(noise)) << 32 | __float_as_uint(entry);
        }
        __syncwarp();
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

    // In the leading block: announces to `arrivals` the bytes that `send` of all other blocks brings. By one
    // thread.
    INLINE void expect(Arrivals& arrivals, u32 blocks) const {
        const u32 quads = quads_sent(groups, SELECT_WARPS, blocks);
        arrivals.expect(quads * 24 + (blocks - 1) * SELECT_WARPS * 8);
    }

    INLINE float noise_of_group(u32 group) const {
        return __uint_as_float(static_cast<u32>(shared.noise[group]) << 16);
    }

    // The key of the row's largest logit, in all threads.
    INLINE u32 largest_key() const {
        float top = negative_infinity();
#pragma unroll 4
        for (u32 group = threadIdx.x; group < groups; group += SELECT_THREADS) top = fmaxf(top, tops[group]);
        const u32 key = __reduce_max_sync(ALL_LANES, key_of(top));
        if (lane == 0) shared.of_warps[warp] = key;
        __syncthreads();
        return __reduce_max_sync(ALL_LANES, shared.of_warps[lane % SELECT_WARPS]);
    }

    // The token that finishes first, in the low word; NEVER where none races. The lists began before the
    // block's last barrier.
    template <typename Racers>
    INLINE u64 winner(const Racers& racers, u32 pieces) const {
        u64 best = NEVER;
        u32 bar = 0;
        const Runner own = run<true>(racers, pieces, 1.0f, bar, best);
        const bool is_near = own.time < LARGEST && __float_as_uint(own.time) <= bar;
        // A thread with `best` has raced tokens that the list had no room for, perhaps several. It counts
        // twice, so that the exact times decide.
        const u32 contenders = __syncthreads_count(is_near || best != NEVER) + __syncthreads_count(best != NEVER);
        // A bar below NONE - 1 says that some token surely races; then the winner is a contender.
        if (contenders == 1 && bar < NONE - 1) {
            if (is_near) shared.best[0] = own.token;
            __syncthreads();
            return shared.best[0];
        }
        return decide(racers, is_near ? own.token : NONE, best, shared.best);
    }

    // Finds the first tokens to finish, at most FIRST, and leaves them in shared.first in the order of their
    // times. Returns how many it found, or 0 where rounding leaves their order open or where too many
    // tokens finish early. The lists began before the block's last barrier.
    template <typename Racers>
    INLINE u32 first_few(const Racers& racers, u32 pieces) const {
        bool odd = false;
#pragma unroll 1
        for (float widen = 2.5f; widen > 1.0f; widen -= 1.25f) {
            u64 best = NEVER;
            u32 bar = 0;
            const Runner own = run<false>(racers, pieces, widen, bar, best);
            // Every token that finishes before this time is listed.
            const float limit = __uint_as_float(bar) * (2.0f - NEAR * NEAR);
            odd = bar >= NONE - 1;
            if (own.time <= limit) {
                odd = odd || !own.sure;
                const u32 place = atomicAdd(&shared.finish_count, 1u);
                if (place < WARP) shared.finishes[place] = finish_at(own.time, own.token);
            }
            odd = __syncthreads_or(odd);
            if (shared.token_count <= MOST_TOKENS && shared.finish_count <= WARP) break;
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
    // The bits of an upper bound of the exact time of a token whose approximate time is `time`, times
    // `widen`.
    INLINE static u32 raised(u32 time, float widen) {
        return time >= __float_as_uint(LARGEST * 0.125f)
                   ? NONE - 1
                   : __float_as_uint(__uint_as_float(time) * NEAR * widen);
    }

    // About when a token finishes: an infinite time where the token does not race.
    template <typename Racers>
    INLINE static Runner about(const Racers& racers, u32 token) {
        Runner own = {token, infinity(), true};
        if (token == NONE) return own;
        const float entry = racers.entry(token);
        const NoiseWords words(racers.draw, token);
        float noise = 0.0f;
        // The noise of a token is the least noise of its group, plus a part of the token's own, which the
        // token with the least noise does not have.
#pragma unroll 1
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
    // to each thread. `bar` becomes the bits of the widened bar; where EXACT, the bits of a time by which
    // the winner has surely finished. Where EXACT, tokens that the list has no room for are raced at
    // once, by exact times, and lower `best`.
    template <bool EXACT, typename Racers>
    INLINE Runner run(const Racers& racers, u32 pieces, float widen, u32& bar, u64& best) const {
        float time = infinity();
        if (threadIdx.x < pieces) {
            const u64 early = shared.early[threadIdx.x];
            time = __uint_as_float(static_cast<u32>(early >> 32)) *
                   racers.sure_slowness(__uint_as_float(static_cast<u32>(early)));
        }
        bar = raised(least_of_block(time < LARGEST ? __float_as_uint(time) : NONE, shared.keys), widen);
#pragma unroll 4
        for (u32 group = threadIdx.x; group < groups; group += SELECT_THREADS) {
            const float bound = noise_of_group(group) * racers.slowness_bound(tops[group]);
            // 0 times infinity is no number.
            const bool reaches = bound < LARGEST && __float_as_uint(bound) <= bar;
            // Where no token surely races, only exact times can tell which tokens do.
            if (!reaches || (!EXACT && bar >= NONE - 1)) continue;
            const u32 place = atomicAdd(&shared.group_count, 1u);
            if (place < MOST_LISTED) shared.groups[place] = static_cast<u16>(group);
        }
        __syncthreads();
        list_tokens<EXACT>(racers, shared.group_count, bar, best);
        const u32 tokens = min(shared.token_count, MOST_TOKENS);
        const Runner own = about(racers, threadIdx.x < tokens ? shared.tokens[threadIdx.x] : NONE);
        if (EXACT) {
            const u32 least = min(own.sure ? __float_as_uint(own.time) : NONE, time_of(best));
            bar = raised(least_of_block(least, shared.of_warps), 1.0f);
        }
        return own;
    }

    // The smallest value of `bits` in the block, returned to all threads.
    INLINE u32 least_of_block(u32 bits, u32* of_warps) const {
        bits = __reduce_min_sync(ALL_LANES, bits);
        if (lane == 0) of_warps[warp] = bits;
        __syncthreads();
        return __reduce_min_sync(ALL_LANES, of_warps[lane % SELECT_WARPS]);
    }

    // Lists the tokens that may finish before `bar`: of the listed groups, or of all groups where the list of
    // groups had too little room.
    template <bool EXACT, typename Racers>
    INLINE void list_tokens(const Racers& racers, u32 count, u32 bar, u64& best) const {
        const bool listed = count <= MOST_LISTED;
        if (!listed) count = groups;
#pragma unroll 1
        for (u32 base = warp; base < count; base += 4 * SELECT_WARPS) {
            float entries[8];
            u32 its[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                // After the last group, the first of these four is read again.
                const u32 at = base + i * SELECT_WARPS < count ? base + i * SELECT_WARPS : base;
                its[i] = listed ? shared.groups[at] : at;
                entries[2 * i] = racers.entry(its[i] * GROUP + lane);
                entries[2 * i + 1] = racers.entry(its[i] * GROUP + WARP + lane);
            }
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const float bound = noise_of_group(its[i / 2]) * racers.slowness_bound(entries[i]);
                const bool there = base + i / 2 * SELECT_WARPS < count;
                if (there && bound < LARGEST && __float_as_uint(bound) <= bar) found |= 1u << i;
            }
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 i = __ffs(found) - 1;
                const u32 group = i < 4 ? (i < 2 ? its[0] : its[1]) : (i < 6 ? its[2] : its[3]);
                const u32 token = group * GROUP + i % 2 * WARP + lane;
                const u32 place = atomicAdd(&shared.token_count, 1u);
                if (place < MOST_TOKENS) {
                    shared.tokens[place] = token;
                } else if (EXACT) {
                    best = min(best, finish_of(racers, token));
                }
            }
            __syncwarp();
        }
        __syncthreads();
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
