// sample_logits of rows that need only a few of the largest logits: a small top-k, or several draws
// at temperature 0. As in race_leader_block.cuh, the leading block receives the largest logit of
// each group of the row. It finds the tokens with the largest logits, and tells the other blocks
// whether it needs their help or they may end.
#pragma once

#include "race_leader_block.cuh"
#include "sample_logits_cut.cuh"

// The logits of a row as sample_logits counts them: NaN and tokens that the mask disallows are
// negative infinity.
template <typename T>
struct MaskedLogits {
    const T* row;
    // One bit for each token, 1 if it is allowed; null: all tokens are allowed.
    const u32* mask;
    u32 vocab;

    INLINE float entry(u32 token) const {
        if (token >= vocab) return nothing();
        const bool in = mask == nullptr || (mask[token / 32] >> token % 32 & 1) != 0;
        return in ? fmaxf(to_f32(row[token]), negative_infinity()) : negative_infinity();
    }
};

struct LeaderSelect {
    struct Shared {
        // Counts the largest logits that the leading block receives, and the answer that each block
        // receives.
        Arrivals arrivals;
        Arrivals answered;
        u64 answer;
    };

    Shared& shared;

    // Prepares the barriers. Must be called before the team is constructed, whose constructor makes
    // them visible to the other blocks.
    INLINE LeaderSelect(Shared& of_block) : shared(of_block) {
        if (threadIdx.x == 0) {
            shared.arrivals.init();
            shared.answered.init();
        }
    }

    // Whether `wanted` tokens are so few for a row of `vocab` tokens that most of them are in
    // different segments of the row.
    INLINE static bool serves(u32 wanted, u32 vocab) {
        return CandidateList::serves(wanted) && vocab >= 4 * GROUP * wanted &&
               vocab <= RaceShared::IN_ORDER * GROUP;
    }

    // In the leading block: lists the tokens that can be among the `wanted` tokens with the largest
    // logits, as many as `candidates` has room for, and answers the other blocks. The answer is the
    // key of the row's largest logit; it is 0 if the other blocks are needed, because too many
    // logits are equal or no token is allowed. If `floor` is not 0, tokens with a weight below
    // `floor` are not listed.
    template <typename T>
    INLINE u32 find(CandidateList& candidates, RaceShared& races, const MaskedLogits<T>& row,
                    const Team& team, u32 wanted, u64 floor, float inverse) const {
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
        const Bound reached(candidates, own, wanted, largest, Bound::STEPS);
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
            const u32 place = atomicAdd(&candidates.listed, 1u);
            if (place < CandidateList::MAX) candidates.list[place] = listed_entry(entry, token);
        };
        // If too many groups were listed, many logits are equal; the leading block then reads no
        // group.
        const u32 looked_at = count <= RaceShared::MAX_GROUPS ? count : 0;
#pragma unroll 1
        for (u32 base = team.warp; base < looked_at; base += SELECT_WARPS * AT_ONCE) {
            if (__any_sync(ALL_LANES, is_full(candidates.listed, CandidateList::MAX))) break;
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
        const u32 listed = candidates.listed;
        const bool enough = listed >= wanted || (listed > 0 && heavy >= bound);
        const bool all = count <= RaceShared::MAX_GROUPS && listed <= CandidateList::MAX;
        const u32 answer = largest > LOWEST_KEY && enough && all ? largest : 0;
        if (team.warp == 0 && team.lane > 0 && team.lane < team.blocks.size) {
            team.blocks.put(&shared.answer, &shared.answered.word, team.lane, answer);
        }
        if (answer == 0) {
            __syncthreads();
            if (threadIdx.x == 0) candidates.begin_again();
            __syncthreads();
        }
        return answer;
    }

    // In every other block: sends its groups' largest logits to the leading block, and returns the
    // answer of that block. meanwhile() is called while the leading block works on the answer.
    template <typename Meanwhile>
    INLINE u32 ask(const RaceShared& races, const Team& team, const WarpRange& range,
                   Meanwhile&& meanwhile) const {
        if (threadIdx.x == 0) shared.answered.expect(sizeof(shared.answer));
        send_tops(&races.tops[0][0], shared.arrivals, range, team.lane);
        meanwhile();
        shared.answered.wait(0);
        return static_cast<u32>(shared.answer);
    }
};
