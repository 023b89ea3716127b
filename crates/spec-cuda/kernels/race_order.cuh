// Finds the first tokens of a row to finish, in the order of their times: several draws without
// replacement, by the leading block of race_leader_block.cuh.
//
//     bar        From the early tokens of all warps, the leading block computes a time before which
//                at least `wanted` tokens have surely finished.
//     groups     It lists the groups of which some token may finish before the bar, about 40 for
//                each wanted token, and for each listed group a cut: a token with a smaller logit
//                does not finish before the bar.
//     tokens     It lists the tokens of these groups whose logits reach the cuts, about 60 for each
//                wanted token.
//     finishes   A thread for each listed token computes the token's approximate time. The few
//                tokens that finish before the bar are ranked by counting the earlier ones. If
//                rounding leaves the order of two tokens open, exact times decide.
#pragma once

#include "race_leader_block.cuh"

struct RaceOrder {
    // The largest numbers of tokens and of finishes that are listed. A thread has at most one
    // finish.
    static constexpr u32 MAX_TOKENS = 1024;
    static constexpr u32 MAX_FINISHES = 256;
    static_assert(MAX_FINISHES <= SELECT_THREADS);
    // The largest number of wanted tokens: the bar needs an early token of as many warps, and a
    // block has 16 warps.
    static constexpr u32 MAX_WANTED = SELECT_WARPS;
    // Groups that a warp loads before it uses any. 32 rows of 128,256 f32 with 4 wanted tokens a
    // row take 16.7 us on an H100, and 17.6 us with four groups.
    static constexpr u32 AT_ONCE = 8;
    // Attempts with bars from approximate times. Most rows need one, others two or three.
    static constexpr u32 BARS = 4;

    // Shared memory of the block, in addition to LeaderRace::Shared.
    struct Shared {
        // Listed tokens and their logits. `tokens` first holds, for each warp of the cluster, the
        // bits of an upper bound of the time of the warp's early token.
        u32 tokens[MAX_TOKENS];
        float entries[MAX_TOKENS];
        // Listed finishes, and the logits of their tokens.
        u64 finishes[MAX_FINISHES];
        float finished[MAX_FINISHES];
        u64 nth;
    };

    const LeaderRace leader;
    Shared& shared;

    // Calls write(place, token, logit of the token) in some thread for each of the first `wanted`
    // tokens; places count from 0. Returns the number of tokens, which is less than `wanted` only
    // if fewer tokens race. Before the block's last barrier, `pieces` warps must have stored their
    // early tokens in leader.shared.early, and the lists must have been emptied.
    template <typename Racers, typename Write>
    INLINE u32 find(const Racers& racers, u32 pieces, u32 wanted, Write&& write) const {
        u32 bar = LeaderRace::raised(bar_of(racers, pieces, wanted), 1.0f);
        bool uncertain = false;
        bool complete = false;
#pragma unroll 1
        for (u32 i = 0; i < BARS; ++i) {
            complete = list_before(racers, bar, uncertain);
            if (complete || uncertain) break;
            const u32 lower = LeaderRace::raised(time_of(nth(wanted)), 1.0f);
            begin();
            if (lower >= bar) break;
            bar = lower;
        }
        if (!complete) {
            list_exactly(*this, racers, wanted, finish_at(__uint_as_float(bar), NONE));
            uncertain = false;
        }
        const u32 count = leader.shared.finish_count;
        u64 own = threadIdx.x < count ? shared.finishes[threadIdx.x] : NEVER;
        Place place = place_of(own, count);
        const bool near = complete && place.before < wanted &&
                          place.next <= LeaderRace::raised(time_of(own), 1.0f);
        if (__syncthreads_or(uncertain || near)) {
            own = threadIdx.x < count ? finish_of(racers, static_cast<u32>(own)) : NEVER;
            if (threadIdx.x < count) shared.finishes[threadIdx.x] = own;
            __syncthreads();
            place = place_of(own, count);
        }
        const bool there = own != NEVER;
        if (there && place.before < wanted) {
            write(place.before, static_cast<u32>(own), shared.finished[threadIdx.x]);
        }
        return min(static_cast<u32>(__syncthreads_count(there)), wanted);
    }

private:
    // The number of tokens that finish before a token, and the time of the next token after it.
    struct Place {
        u32 before;
        u32 next;
    };

    INLINE Place place_of(u64 own, u32 count) const {
        Place place = {0, NONE};
        if (own == NEVER) return place;
#pragma unroll 4
        for (u32 i = 0; i < count; ++i) {
            const u64 other = shared.finishes[i];
            place.before += other < own;
            if (other > own) place.next = min(place.next, time_of(other));
        }
        return place;
    }

    // The bits of a time before which `wanted` tokens have surely finished, or NONE. The same in
    // every warp.
    template <typename Racers>
    INLINE u32 bar_of(const Racers& racers, u32 pieces, u32 wanted) const {
        u32* const times = shared.tokens;
        if (threadIdx.x < pieces) {
            times[threadIdx.x] = LeaderRace::surely_by(racers, leader.shared.early[threadIdx.x]);
        }
        __syncthreads();
        u32 own = NONE;
        for (u32 i = leader.lane; i < pieces; i += WARP) own = min(own, times[i]);
        u32 bar = NONE;
#pragma unroll 1
        for (u32 i = 0; i < wanted; ++i) {
            bar = __reduce_min_sync(ALL_LANES, own);
            if (leader.lane == first_of(__ballot_sync(ALL_LANES, own == bar))) own = NONE;
        }
        return bar;
    }

    // Empties the lists, by the whole block, after all threads have read them.
    INLINE void begin() const {
        __syncthreads();
        if (threadIdx.x == 0) leader.shared.begin();
        __syncthreads();
    }

    // Lists the approximate times of the tokens that may finish before `bar`. Returns whether the
    // lists had room for all of them. Sets `uncertain` if it is not sure that each of them races.
    template <typename Racers>
    INLINE bool list_before(const Racers& racers, u32 bar, bool& uncertain) const {
        const auto cut_of = [&](u32 group) {
            return racers.least_entry(leader.noise_of_group(group), __uint_as_float(bar));
        };
        leader.list_groups<true>(
            racers, bar, [&](u32 place, u32 group) { leader.shared.cuts[place] = cut_of(group); });
        __syncthreads();
        list_tokens(racers, cut_of);
        __syncthreads();
        const u32 tokens = leader.shared.token_count;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < min(tokens, MAX_TOKENS); i += SELECT_THREADS) {
            const LeaderRace::Runner own =
                LeaderRace::about(racers, shared.tokens[i], shared.entries[i]);
            if (!(own.time < LARGEST) || __float_as_uint(own.time) > bar) continue;
            uncertain = uncertain || !own.sure;
            list(finish_at(own.time, own.token), shared.entries[i]);
        }
        uncertain = __syncthreads_or(uncertain);
        return tokens <= MAX_TOKENS && leader.shared.finish_count <= MAX_FINISHES;
    }

    // Lists the tokens of the listed groups whose logits reach the cuts; the tokens of all groups
    // if the list of groups overflowed.
    template <typename Racers, typename Cut>
    INLINE void list_tokens(const Racers& racers, const Cut& cut_of) const {
        const bool listed = leader.shared.group_count <= LeaderRace::MAX_LISTED;
        const u32 count = listed ? leader.shared.group_count : leader.groups;
        const auto group_of = [&](u32 at) { return listed ? leader.shared.groups[at] : at; };
#pragma unroll 1
        for (u32 base = leader.warp; base < count; base += AT_ONCE * SELECT_WARPS) {
            // Lane i has the i-th group of this step and its cut. After the last group the cut is
            // NaN, which no logit reaches.
            const u32 at = base + leader.lane * SELECT_WARPS;
            const u32 its = group_of(min(at, count - 1));
            float its_cut = nothing();
            if (at < count) its_cut = listed ? leader.shared.cuts[at] : cut_of(at);
            // Logits as stored, so that no load waits for another. NaN reaches no cut, and does not
            // race.
            typename Racers::Raw logits[2 * AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 token = __shfl_sync(ALL_LANES, its, i) * GROUP + leader.lane;
                logits[2 * i] = racers.raw(token);
                logits[2 * i + 1] = racers.raw(token + WARP);
            }
            u32 found = 0;
            float entries[2 * AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < 2 * AT_ONCE; ++i) {
                entries[i] = to_f32(logits[i]);
                if (entries[i] >= __shfl_sync(ALL_LANES, its_cut, i / 2)) found |= 1u << i;
            }
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 i = first_of(found);
                const u32 token =
                    group_of(base + i / 2 * SELECT_WARPS) * GROUP + i % 2 * WARP + leader.lane;
                if (token >= racers.row.vocab) continue;
                const u32 place = atomicAdd(&leader.shared.token_count, 1u);
                if (place >= MAX_TOKENS) continue;
                shared.tokens[place] = token;
                shared.entries[place] = LeaderRace::chosen(entries, i);
            }
            __syncwarp();
        }
    }

    // Lists the exact finishes that are not later than `bar`, lowering the bar until the list has
    // room. `order` is passed by value: if its address were taken, it would be in local memory from
    // the start.
    template <typename Racers>
    static __device__ __noinline__ void list_exactly(RaceOrder order, const Racers& racers,
                                                     u32 wanted, u64 bar) {
        const LeaderRace& leader = order.leader;
        while (true) {
            order.begin();
            const u32 max_time = time_of(bar);
#pragma unroll 1
            for (u32 i = leader.warp; i < 2 * leader.groups; i += SELECT_WARPS) {
                const float noise = leader.noise_of_group(i / 2);
                const float bound = noise * racers.slowness_bound(leader.tops[i / 2]);
                if (!(bound < LARGEST) || __float_as_uint(bound) > max_time) continue;
                const u32 token = i * WARP + leader.lane;
                const float entry = racers.entry(token);
                const float its = noise * racers.slowness_bound(entry);
                if (!(its < LARGEST) || __float_as_uint(its) > max_time) continue;
                const u64 finish = finish_of(racers, token);
                if (finish != NEVER && finish <= bar) order.list(finish, entry);
            }
            __syncthreads();
            if (leader.shared.finish_count <= MAX_FINISHES) return;
            bar = order.nth(wanted);
        }
    }

    // Lists the finish of a token, and the token's logit.
    INLINE void list(u64 finish, float entry) const {
        const u32 place = atomicAdd(&leader.shared.finish_count, 1u);
        if (place >= MAX_FINISHES) return;
        shared.finishes[place] = finish;
        shared.finished[place] = entry;
    }

    // The n-th smallest of the listed finishes, counted from 1; NEVER if there are fewer. By the
    // whole block.
    INLINE u64 nth(u32 n) const {
        const u32 count = min(leader.shared.finish_count, MAX_FINISHES);
        if (threadIdx.x == 0) shared.nth = NEVER;
        __syncthreads();
        const u64 own = threadIdx.x < count ? shared.finishes[threadIdx.x] : NEVER;
        if (own != NEVER && place_of(own, count).before + 1 == n) shared.nth = own;
        __syncthreads();
        return shared.nth;
    }
};
