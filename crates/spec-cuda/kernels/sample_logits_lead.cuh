// sample_logits of rows that need only their few largest logits: a small top-k, or several draws at
// temperature 0. As in race_lead.cuh, the leading block gets the largest logit of each group of the
// row. It finds the tokens with the largest logits, and tells the other blocks whether it needs their
// help or they may end.
#pragma once

#include "race_lead.cuh"
#include "sample_logits_cut.cuh"

// The logits of a row with what the rules of sample_logits make of them: NaN and masked tokens are negative
// infinity.
template <typename T>
struct MaskedLogits {
    const T* row;
    // A bit for each that is allowed; null: all are.
    const u32* mask;
    u32 vocab;

    INLINE float entry(u32 token) const {
        if (token >= vocab) return nothing();
        const bool in = mask == nullptr || (mask[token / 32] >> token % 32 & 1) != 0;
        return in ? fmaxf(to_f32(row[token]), negative_infinity()) : negative_infinity();
    }
};

struct Lead {
    struct Shared {
        // Where the block that leads gets the largest logits, and where each block gets its answer.
        Arrivals arrivals;
        Arrivals answered;
        u64 answer;
    };

    Shared& shared;

    // Prepares the barriers. To be called before the team is made, whose constructor makes them visible to
    // the other blocks.
    INLINE Lead(Shared& of_block) : shared(of_block) {
        if (threadIdx.x == 0) {
            shared.arrivals.init();
            shared.answered.init();
        }
    }

    // Whether `wanted` tokens are few for a row of `vocab` tokens: so few that most of them are in different
    // segments of the row.
    INLINE static bool serves(u32 wanted, u32 vocab) {
        return Few::serves(wanted) && vocab >= 4 * GROUP * wanted && vocab <= RaceShared::IN_ORDER * GROUP;
    }

    // In the leading block: lists the tokens that can be among the `wanted` tokens with the largest logits, as
    // many as `few` has room for, and answers the other blocks. The answer is the key of the row's largest
    // logit, or 0 where the other blocks are needed, because too many logits are alike or no token is
    // allowed. Where `floor` is not 0, tokens that weigh less than `floor` are not listed.
    template <typename T>
    INLINE u32 find(Few& few, RaceShared& races, const MaskedLogits<T>& row, const Team& team, u32 wanted,
                    u64 floor, float inverse) const {
        constexpr u32 EACH = RaceShared::IN_ORDER / SELECT_THREADS;
        constexpr u32 AT_ONCE = 4;
        const u32 groups = (row.vocab + GROUP - 1) / GROUP;
        if (threadIdx.x == 0) races.begin_lists();
        if (team.blocks.size > 1) {
            if (threadIdx.x == 0) {
                shared.arrivals.expect(quads_sent(groups, SELECT_WARPS, team.blocks.size) * 16);
            }
            shared.arrivals.wait(0);
        }
        const float* const tops = &races.tops[0][0];
        float top = negative_infinity();
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 group = threadIdx.x + i * SELECT_THREADS;
            if (group < groups) top = fmaxf(top, tops[group]);
        }
        const u32 own = threadIdx.x < groups ? key_of(top) : 0;
        const u32 of_warp = __reduce_max_sync(ALL_LANES, own);
        if (team.lane == 0) races.bars[team.warp] = of_warp;
        __syncthreads();
        const u32 largest =
            __reduce_max_sync(ALL_LANES, static_cast<u32>(races.bars[team.lane % SELECT_WARPS]));
        const Bound reached(few, own, wanted, largest, Bound::STEPS);
        const float bound = exact::value_of_key(reached.key);
        const Scale scale = {exact::value_of_key(largest), inverse};
        const float heavy = floor == 0 ? negative_infinity() : scale.least_entry(floor);
        const float least = fmaxf(bound, heavy);
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 group = threadIdx.x + i * SELECT_THREADS;
            if (group >= groups || !(tops[group] >= least)) continue;
            const u32 place = atomicAdd(&races.group_count, 1u);
            if (place < RaceShared::MAX_GROUPS) races.groups[place] = group;
        }
        __syncthreads();
        const u32 count = races.group_count;
        const auto list = [&](float entry, u32 token) {
            if (!(entry >= least) || (floor != 0 && scale.fixed(entry) < floor)) return;
            const u32 place = atomicAdd(&few.listed, 1u);
            if (place < Few::MAX) few.list[place] = listed_entry(entry, token);
        };
        // A list that overflowed comes from many equal logits; the leading block then does not look at any.
        const u32 looked_at = count <= RaceShared::MAX_GROUPS ? count : 0;
#pragma unroll 1
        for (u32 base = team.warp; base < looked_at; base += SELECT_WARPS * AT_ONCE) {
            if (__any_sync(ALL_LANES, is_full(few.listed, Few::MAX))) break;
            float entries[2 * AT_ONCE];
            u32 tokens[AT_ONCE];
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; ++k) {
                const u32 at = base + k * SELECT_WARPS;
                tokens[k] = at < looked_at ? races.groups[at] * GROUP + team.lane : NONE;
                entries[2 * k] = at < looked_at ? row.entry(tokens[k]) : nothing();
                entries[2 * k + 1] = at < looked_at ? row.entry(tokens[k] + WARP) : nothing();
            }
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; ++k) {
                list(entries[2 * k], tokens[k]);
                list(entries[2 * k + 1], tokens[k] + WARP);
            }
        }
        __syncthreads();
        const u32 listed = few.listed;
        const bool enough = listed >= wanted || (listed > 0 && heavy >= bound);
        const bool all = count <= RaceShared::MAX_GROUPS && listed <= Few::MAX;
        const u32 answer = largest > LOWEST_KEY && enough && all ? largest : 0;
        if (team.warp == 0 && team.lane > 0 && team.lane < team.blocks.size) {
            team.blocks.put(&shared.answer, &shared.answered.word, team.lane, answer);
        }
        if (answer == 0) {
            __syncthreads();
            if (threadIdx.x == 0) few.begin_again();
            __syncthreads();
        }
        return answer;
    }

    // In every other block: sends its groups' largest logits to the leading block, and returns that block's
    // answer. meanwhile() is called while the leading block looks for it.
    template <typename Meanwhile>
    INLINE u32 ask(const RaceShared& races, const Team& team, const Share& share, Meanwhile&& meanwhile) const {
        if (threadIdx.x == 0) shared.answered.expect(sizeof(shared.answer));
        send_tops(&races.tops[0][0], shared.arrivals, share, team.lane);
        meanwhile();
        shared.answered.wait(0);
        return static_cast<u32>(shared.answer);
    }
};
