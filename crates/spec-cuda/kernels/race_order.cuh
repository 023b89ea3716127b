// The first tokens of a row to finish, in order: several draws without replacement, by the leading block of
// race_lead.cuh.
//
//     bar        The tokens that warps have found early say by when as many tokens as are wanted have surely
//                finished.
//     groups     The leading block lists the groups of which some token may finish before the bar, about 40
//                for each token that is wanted, each group with its cut: tokens of a smaller logit do not
//                finish before the bar.
//     tokens     It lists the tokens of these groups that reach the cuts, about 60 for each that is wanted.
//     finishes   A thread for each listed token computes about when the token finishes. The few that finish
//                before the bar are in order by how many others are earlier; where rounding leaves the order
//                of any two open, exact times decide.
#pragma once

#include "race_lead.cuh"

struct RaceOrder {
    // Tokens and finishes that are listed; a thread has at most one finish.
    static constexpr u32 MAX_TOKENS = 1024;
    static constexpr u32 MAX_FINISHES = 256;
    static_assert(MAX_FINISHES <= SELECT_THREADS);
    // The most tokens that may be wanted: the bar takes the early tokens of as many warps, and a block has 16.
    static constexpr u32 MAX_WANTED = SELECT_WARPS;
    // Groups that a warp reads at once. 32 rows of 128,256 f32 take 16.7 us on an H100 where 4 tokens a row are
    // wanted, and 17.6 with four at once.
    static constexpr u32 AT_ONCE = 8;
    // Bars by approximate times. Most rows need one, and others two or three.
    static constexpr u32 BARS = 4;

    // What the warps of the block share, besides what RaceLead has.
    struct Shared {
        // Listed tokens and their logits. Before, of each warp of the cluster, a time by which its early token
        // has surely finished.
        u32 tokens[MAX_TOKENS];
        float entries[MAX_TOKENS];
        // Listed finishes, and the logits of the tokens that finish.
        u64 finishes[MAX_FINISHES];
        float finished[MAX_FINISHES];
        u64 nth;
    };

    const RaceLead lead;
    Shared& shared;

    // Calls write(place, token, its logit) in some thread for each of the first `wanted` tokens, from place 0 on.
    // Returns how many there are: fewer only where fewer race. `pieces` warps have left their early tokens in
    // lead.shared.early, and the lists have begun, before the block's last barrier.
    template <typename Racers, typename Write>
    INLINE u32 find(const Racers& racers, u32 pieces, u32 wanted, Write&& write) const {
        u32 bar = RaceLead::raised(bar_of(racers, pieces, wanted), 1.0f);
        bool odd = false;
        bool complete = false;
#pragma unroll 1
        for (u32 i = 0; i < BARS; ++i) {
            complete = list_before(racers, bar, odd);
            if (complete || odd) break;
            const u32 lower = RaceLead::raised(time_of(nth(wanted)), 1.0f);
            begin();
            if (lower >= bar) break;
            bar = lower;
        }
        if (!complete) {
            list_exactly(*this, racers, wanted, finish_at(__uint_as_float(bar), NONE));
            odd = false;
        }
        const u32 count = lead.shared.finish_count;
        u64 own = threadIdx.x < count ? shared.finishes[threadIdx.x] : NEVER;
        Place place = place_of(own, count);
        const bool near = complete && place.before < wanted && place.next <= RaceLead::raised(time_of(own), 1.0f);
        if (__syncthreads_or(odd || near)) {
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
    // How many finish before a token, and the time of the next after it.
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

    // The bits of a time by which `wanted` tokens surely have finished, or NONE. The same in every warp.
    template <typename Racers>
    INLINE u32 bar_of(const Racers& racers, u32 pieces, u32 wanted) const {
        u32* const times = shared.tokens;
        if (threadIdx.x < pieces) times[threadIdx.x] = RaceLead::surely_by(racers, lead.shared.early[threadIdx.x]);
        __syncthreads();
        u32 own = NONE;
        for (u32 i = lead.lane; i < pieces; i += WARP) own = min(own, times[i]);
        u32 bar = NONE;
#pragma unroll 1
        for (u32 i = 0; i < wanted; ++i) {
            bar = __reduce_min_sync(ALL_LANES, own);
            if (lead.lane == first_of(__ballot_sync(ALL_LANES, own == bar))) own = NONE;
        }
        return bar;
    }

    // Begins lists anew, by the whole block, which has read them.
    INLINE void begin() const {
        __syncthreads();
        if (threadIdx.x == 0) lead.shared.begin();
        __syncthreads();
    }

    // Lists about when the tokens finish that may finish before `bar`. Returns whether there was room for all
    // of them. `odd` says that some of them may not race at all.
    template <typename Racers>
    INLINE bool list_before(const Racers& racers, u32 bar, bool& odd) const {
        const auto cut_of = [&](u32 group) {
            return racers.least_entry(lead.noise_of_group(group), __uint_as_float(bar));
        };
        lead.list_groups<true>(racers, bar, [&](u32 place, u32 group) { lead.shared.cuts[place] = cut_of(group); });
        __syncthreads();
        list_tokens(racers, cut_of);
        __syncthreads();
        const u32 tokens = lead.shared.token_count;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < min(tokens, MAX_TOKENS); i += SELECT_THREADS) {
            const RaceLead::Runner own = RaceLead::about(racers, shared.tokens[i], shared.entries[i]);
            if (!(own.time < LARGEST) || __float_as_uint(own.time) > bar) continue;
            odd = odd || !own.sure;
            list(finish_at(own.time, own.token), shared.entries[i]);
        }
        odd = __syncthreads_or(odd);
        return tokens <= MAX_TOKENS && lead.shared.finish_count <= MAX_FINISHES;
    }

    // Lists the tokens of the listed groups that reach the cuts, or of all groups where the list of groups had
    // too little room.
    template <typename Racers, typename Cut>
    INLINE void list_tokens(const Racers& racers, const Cut& cut_of) const {
        const bool listed = lead.shared.group_count <= RaceLead::MAX_LISTED;
        const u32 count = listed ? lead.shared.group_count : lead.groups;
        const auto group_of = [&](u32 at) { return listed ? lead.shared.groups[at] : at; };
#pragma unroll 1
        for (u32 base = lead.warp; base < count; base += AT_ONCE * SELECT_WARPS) {
            // Lane i has the i-th of the groups, and its cut, which nothing reaches after the last group.
            const u32 at = base + lead.lane * SELECT_WARPS;
            const u32 its = group_of(min(at, count - 1));
            float its_cut = nothing();
            if (at < count) its_cut = listed ? lead.shared.cuts[at] : cut_of(at);
            // Logits as they are, so that no load waits for another: NaN reaches no cut, and does not race.
            typename Racers::Raw logits[2 * AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 token = __shfl_sync(ALL_LANES, its, i) * GROUP + lead.lane;
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
                const u32 token = group_of(base + i / 2 * SELECT_WARPS) * GROUP + i % 2 * WARP + lead.lane;
                if (token >= racers.row.vocab) continue;
                const u32 place = atomicAdd(&lead.shared.token_count, 1u);
                if (place >= MAX_TOKENS) continue;
                shared.tokens[place] = token;
                shared.entries[place] = RaceLead::chosen(entries, i);
            }
            __syncwarp();
        }
    }

    // Lists exactly when the tokens finish that finish no later than `bar`, and no more than there is room for. A
    // copy of what is pointed to would be in memory from the start.
    template <typename Racers>
    static __device__ __noinline__ void list_exactly(RaceOrder order, const Racers& racers, u32 wanted, u64 bar) {
        const RaceLead& lead = order.lead;
        while (true) {
            order.begin();
            const u32 most = time_of(bar);
#pragma unroll 1
            for (u32 i = lead.warp; i < 2 * lead.groups; i += SELECT_WARPS) {
                const float noise = lead.noise_of_group(i / 2);
                const float bound = noise * racers.slowness_bound(lead.tops[i / 2]);
                if (!(bound < LARGEST) || __float_as_uint(bound) > most) continue;
                const u32 token = i * WARP + lead.lane;
                const float entry = racers.entry(token);
                const float its = noise * racers.slowness_bound(entry);
                if (!(its < LARGEST) || __float_as_uint(its) > most) continue;
                const u64 finish = finish_of(racers, token);
                if (finish != NEVER && finish <= bar) order.list(finish, entry);
            }
            __syncthreads();
            if (lead.shared.finish_count <= MAX_FINISHES) return;
            bar = order.nth(wanted);
        }
    }

    // Lists a token's finish, and its logit.
    INLINE void list(u64 finish, float entry) const {
        const u32 place = atomicAdd(&lead.shared.finish_count, 1u);
        if (place >= MAX_FINISHES) return;
        shared.finishes[place] = finish;
        shared.finished[place] = entry;
    }

    // The n-th least, from 1, of the finishes that are listed; NEVER where there are fewer. By the whole block.
    INLINE u64 nth(u32 n) const {
        const u32 count = min(lead.shared.finish_count, MAX_FINISHES);
        if (threadIdx.x == 0) shared.nth = NEVER;
        __syncthreads();
        const u64 own = threadIdx.x < count ? shared.finishes[threadIdx.x] : NEVER;
        if (own != NEVER && place_of(own, count).before + 1 == n) shared.nth = own;
        __syncthreads();
        return shared.nth;
    }
};
