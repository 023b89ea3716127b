// The end of a race by one block, which knows the largest logit of each group of 64 tokens of the row.
//
// Several blocks, a cluster, read a row. Each keeps the largest logit of each of its groups, and sends
// them to the block that leads; then the other blocks end, so that blocks of other rows take their
// place while the block that leads finds the token:
//
//     bounds     of all groups: no token of a group finishes sooner;
//     bar        of the group that has the least bound of each quarter of the row, a thread a token finds
//                about when it finishes. The winner does not pass the least of these times;
//     groups     whose bounds do not pass the bar are listed, and their logits read;
//     tokens     of those groups, whose own bounds do not pass the bar, are listed, about 50 a row;
//     winner     of each of them a thread finds about when it finishes. Where the order of the first two
//                is not certain, exact times decide.
//
// All of it runs once a row, so that fetching code takes more time than running it: loops are rolled, and
// the bar and the winner come from one loop, in two rounds.
#pragma once

#include "race.cuh"

// A relative distance of two times by which their order is certain: 8 times the error of
// `about_variate` and of `approximate_exp2` together.
constexpr float NEAR = 1.0f + 1.0f / 16384.0f;

// An exponential variate -ln(1 - n / 2^64), to 2^-17, where n = high * 2^32 + low is odd.
INLINE float about_variate(u32 high, u32 low) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const float u = (static_cast<float>(high) + static_cast<float>(low) * UNIT) * UNIT;
    const float rest = (static_cast<float>(~high) + static_cast<float>(0 - low) * UNIT) * UNIT;
    const float series = u + u * u * (0.5f + u * (0.333333333f + u * 0.25f));
    return u < 0.0625f ? series : approximate_log2(rest) * -0.693147182f;
}

// Stores 16 bytes into the shared memory of the first block of the cluster, at their place here, and counts
// them at that block's `barrier`.
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

// In the block that leads: expects what the other blocks send, each of so many warps. By one thread.
INLINE void expect_tops(Arrivals& arrivals, u32 groups, u32 warps, u32 blocks) {
    const u32 own = Share::start(groups, warps, blocks * warps);
    arrivals.expect(own == groups ? 0 : ((groups + 3) / 4 - own / 4) * 16);
}

struct RaceLead {
    // Groups of a row that it takes.
    static constexpr u32 MOST_GROUPS = RaceShared::IN_ORDER;
    static constexpr u32 MOST_VOCAB = MOST_GROUPS * GROUP;
    // Groups of which as many are looked at without another bar before; tokens that are listed, one a thread.
    static constexpr u32 MANY = 192;
    static constexpr u32 MOST_TOKENS = SELECT_THREADS;
    // Groups whose tokens find the bar.
    static constexpr u32 LEADERS = 4;
    // The first to finish that are found at once.
    static constexpr u32 FIRST = 4;

    // What the warps of the block share.
    struct Shared {
        // Lower bounds of the noise of each group's tokens: the upper halves of floats.
        alignas(8) u16 noise[MOST_GROUPS];
        // Groups and tokens that are looked at.
        u16 groups[MOST_GROUPS];
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

    // A token of this thread, NONE for none, and about when it finishes.
    struct Runner {
        u32 token;
        float time;
        bool sure;
    };

    Shared& shared;
    // The largest logit of each group.
    const float* tops;
    u32 groups;
    u32 lane;
    u32 warp;

    INLINE RaceLead(Shared& of_block, const float* of_groups, u32 vocab)
        : shared(of_block), tops(of_groups), groups((vocab + GROUP - 1) / GROUP), lane(lane_id()),
          warp(threadIdx.x / WARP) {}

    // Bounds of the noise of all groups, which need nothing of the row. Before a barrier.
    INLINE void draw_noise(const Draw& draw) const {
#pragma unroll 1
        for (u32 quad = threadIdx.x; quad * 4 < groups; quad += SELECT_THREADS) {
            const uint4 words = draw.block(quad);
            const u32 low = __byte_perm(__float_as_uint(noise_bound(words.x)),
                                        __float_as_uint(noise_bound(words.y)), 0x7632);
            const u32 high = __byte_perm(__float_as_uint(noise_bound(words.z)),
                                         __float_as_uint(noise_bound(words.w)), 0x7632);
            *reinterpret_cast<uint2*>(&shared.noise[quad * 4]) = make_uint2(low, high);
        }
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
    INLINE u64 winner(const Racers& racers) const {
        u64 best = NEVER;
        u32 bar = 0;
        const Runner own = run(racers, 1.0f, bar, best);
        const bool is_near = own.time < LARGEST && __float_as_uint(own.time) <= bar;
        // What there was no room for is more than one.
        const u32 contenders = __syncthreads_count(is_near || best != NEVER) + __syncthreads_count(best != NEVER);
        // Where some token surely races, the first of those is a contender.
        if (contenders == 1 && bar < NONE - 1) {
            if (is_near) shared.best[0] = own.token;
            __syncthreads();
            return shared.best[0];
        }
        return decide(racers, is_near ? own.token : NONE, best, shared.best);
    }

    // The first tokens to finish, in shared.first, in their order, as finishes; as for `winner`. Returns how
    // many are found, FIRST at most; 0 where the order is not certain, or there are too many.
    template <typename Racers>
    INLINE u32 first_few(const Racers& racers) const {
        u64 best = NEVER;
        u32 bar = 0;
        const Runner own = run(racers, 2.5f, bar, best);
        // Below it, all are listed.
        const float limit = __uint_as_float(bar) * (2.0f - NEAR * NEAR);
        bool odd = best != NEVER || bar >= NONE - 1;
        if (own.time <= limit) {
            odd = odd || !own.sure;
            const u32 place = atomicAdd(&shared.finish_count, 1u);
            if (place < WARP) shared.finishes[place] = finish_at(own.time, own.token);
        }
        odd = __syncthreads_or(odd);
        const u32 finishes = shared.finish_count;
        if (odd || finishes > WARP) return 0;
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
    // A time by which what finishes about then has surely finished, times `widen`.
    INLINE static u32 raised(u32 time, float widen) {
        return time >= __float_as_uint(LARGEST * 0.125f)
                   ? NONE - 1
                   : __float_as_uint(__uint_as_float(time) * NEAR * widen);
    }

    // About when a token finishes; infinite where it does not race.
    template <typename Racers>
    INLINE static Runner about(const Racers& racers, u32 token) {
        Runner own = {token, infinity(), true};
        if (token == NONE) return own;
        const float entry = racers.entry(token);
        const NoiseWords words(racers.draw, token);
        float noise = 0.0f;
        // The least of the group, and what the token has beyond it.
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

    // Lists the tokens that finish within `widen` times the time by which some token surely finishes, and some
    // others; each is a thread's. `bar` becomes the bits of that time: after the first round of what is listed,
    // raised by NEAR alone, of the last; what there is no room for lowers `best`.
    template <typename Racers>
    INLINE Runner run(const Racers& racers, float widen, u32& bar, u64& best) const {
        // Twelve bits of a bound make room for the group.
        constexpr u32 GROUP_BITS = MOST_GROUPS - 1;
        Runner own;
        bool lowered = false;
#pragma unroll 1
        for (u32 round = 0;; ++round) {
            u32 leader = NONE;
#pragma unroll 2
            for (u32 group = threadIdx.x; group < groups; group += SELECT_THREADS) {
                const float bound = noise_of_group(group) * racers.slowness_bound(tops[group]);
                // 0 times infinity is no number.
                if (!(bound < LARGEST)) continue;
                leader = min(leader, (__float_as_uint(bound) & ~GROUP_BITS) | group);
                if (round > 0 && __float_as_uint(bound) <= bar) {
                    shared.groups[atomicAdd(&shared.group_count, 1u)] = static_cast<u16>(group);
                }
            }
            leader = __reduce_min_sync(ALL_LANES, leader);
            if (lane == 0) shared.keys[warp] = leader;
            __syncthreads();
            u32 token = NONE;
            bool last = false;
            if (round == 0) {
                constexpr u32 EACH = SELECT_WARPS / LEADERS;
                const u32 part = threadIdx.x / GROUP;
                u32 its = NONE;
#pragma unroll
                for (u32 i = 0; i < EACH; ++i) its = min(its, shared.keys[part % LEADERS * EACH + i]);
                if (part < LEADERS && its != NONE) token = (its & GROUP_BITS) * GROUP + threadIdx.x % GROUP;
            } else {
                const u32 count = shared.group_count;
                if (count > MANY && !lowered) {
                    // Of rows whose weights are where their noise is not: the token that has the least noise of
                    // each group lowers the bar.
                    if (threadIdx.x < count) {
                        const u32 group = shared.groups[threadIdx.x];
                        token = group * GROUP + racers.draw.block(GROUP_BLOCKS + group).y % GROUP;
                    }
                    lowered = true;
                    __syncthreads();
                    if (threadIdx.x == 0) shared.group_count = 0;
                } else {
                    list_tokens(racers, count, bar, best);
                    if (threadIdx.x < min(shared.token_count, MOST_TOKENS)) token = shared.tokens[threadIdx.x];
                    last = true;
                }
            }
            own = about(racers, token);
            u32 least = own.sure ? __float_as_uint(own.time) : NONE;
            if (last) least = min(least, time_of(best));
            least = __reduce_min_sync(ALL_LANES, least);
            if (lane == 0) shared.of_warps[warp] = least;
            __syncthreads();
            least = __reduce_min_sync(ALL_LANES, shared.of_warps[lane % SELECT_WARPS]);
            if (last) {
                // What several are wanted for is complete by the bar that listed them.
                if (widen == 1.0f) bar = raised(least, 1.0f);
                return own;
            }
            const u32 next = raised(least, widen);
            bar = round == 0 ? next : min(bar, next);
        }
    }

    // Lists the tokens of the groups that are listed whose bounds do not pass `bar`.
    template <typename Racers>
    INLINE void list_tokens(const Racers& racers, u32 count, u32 bar, u64& best) const {
#pragma unroll 1
        for (u32 base = warp; base < count; base += 2 * SELECT_WARPS) {
            const u32 next = base + SELECT_WARPS < count ? base + SELECT_WARPS : base;
            const u32 its[2] = {shared.groups[base], shared.groups[next]};
            float entries[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) entries[i] = racers.entry(its[i / 2] * GROUP + i % 2 * WARP + lane);
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float bound = noise_of_group(its[i / 2]) * racers.slowness_bound(entries[i]);
                if (bound < LARGEST && __float_as_uint(bound) <= bar) found |= 1u << i;
            }
            if (next == base) found &= 3;
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 i = __ffs(found) - 1;
                const u32 token = its[i / 2] * GROUP + i % 2 * WARP + lane;
                const u32 place = atomicAdd(&shared.token_count, 1u);
                if (place < MOST_TOKENS) {
                    shared.tokens[place] = token;
                } else {
                    best = min(best, finish_of(racers, token));
                }
            }
            __syncwarp();
        }
        __syncthreads();
    }

    // The first to finish among tokens, one a thread, and what each thread had as `best`, exactly.
    template <typename Racers>
    static __device__ __noinline__ u64 decide(const Racers& racers, u32 token, u64 best, u64* of_warps) {
        if (token != NONE) best = min(best, finish_of(racers, token));
        best = warp_min(best);
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        return warp_min(of_warps[threadIdx.x % SELECT_WARPS]);
    }
};
