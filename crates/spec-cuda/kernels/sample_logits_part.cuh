// Rows of sample_logits that may be a part of a longer row, and draw one token from all allowed
// tokens except those that min-p drops: how the leading block ends such a row. It takes the largest
// logit of all ranks where `maxima` gives it, a forced token, and the exact time of the winner
// where `winners` is wanted.
#pragma once

#include "sample_logits_columns.cuh"
#include "sample_logits_plain.cuh"

// The lowest column that the mask allows, NONE if it allows none. By a warp.
__device__ __noinline__ u32 lowest_allowed_column(ColumnTokens tokens, u32 vocab, u32 lane) {
#pragma unroll 1
    for (u32 base = 0; base < vocab; base += WARP) {
        const u32 token = base + lane < vocab ? tokens.token(base + lane) : NONE;
        const bool in = token != NONE && tokens.allows(token);
        const u32 those = __ballot_sync(ALL_LANES, in);
        if (those != 0) return base + __ffs(those) - 1;
    }
    return NONE;
}

// What the entries of a row stand for. Entry `begin` is column 0; entries before it are absent.
struct PartOfRow {
    ColumnTokens tokens;
    u32 begin;
    u32 end;

    // The token of an entry; 0 if its column stands for none.
    INLINE i32 token(u32 entry) const {
        const u32 its = tokens.token(entry - begin);
        return its == NONE ? 0 : static_cast<i32>(its);
    }
};

// True if some column stands for the token. By the whole block if the columns have ids, else by
// each thread for itself.
template <bool HAS_IDS>
INLINE bool stands_for(const PartOfRow& part, i32 token) {
    const u32 columns = part.end - part.begin;
    if (token < 0) return false;
    if (!HAS_IDS) return static_cast<u32>(token) - part.tokens.first < columns;
    bool found = false;
#pragma unroll 1
    for (u32 column = threadIdx.x; column < columns; column += SELECT_THREADS) {
        found = found || part.tokens.token(column) == static_cast<u32>(token);
    }
    return __syncthreads_or(found);
}

// Ends a row in the leading block, after `leader.await`: finds the token and writes it. `pieces`
// warps have read the row. `first_group` is NONE in shared memory.
template <bool HAS_IDS, typename T, typename Row>
INLINE void end_part(const Columns<T>& c, u32 index, const LeaderRace& leader, const Row& row,
                     const PartOfRow& part, const Options& options, const Draw& draw, u32 pieces,
                     u32& first_group) {
    const Params<T>& p = c.drawing;
    const LeaderRace::Front front = leader.front(options.inverse, pieces);
    const u32 own_key = front.largest_key;
    u32 largest_key = max(own_key, LOWEST_KEY);
    u32 bits = 0;
    if (c.maxima != nullptr) {
        const float given = c.maxima[index];
        // False for NaN.
        if (given >= exact::value_of_key(largest_key)) {
            largest_key = exact::sort_key(given);
        } else {
            bits |= BAD_LENGTHS;
        }
    }
    const float largest = exact::value_of_key(largest_key);
    // The entry of the token; NONE if the row has nothing to offer.
    u32 entry = NONE;
    u64 place = PLACE_NOTHING;
    if (largest_key <= LOWEST_KEY) {
        bits |= NON_FINITE;
        if (leader.warp == 0) {
            const u32 lowest = lowest_allowed_column(part.tokens, p.vocab, leader.lane);
            entry = part.begin + (lowest == NONE ? 0 : lowest);
            if (lowest != NONE) place = PLACE_CERTAIN;
        }
    } else if (options.greedy) {
        bits |= options.bits;
        if (own_key == largest_key) {
#pragma unroll 1
            for (u32 group = threadIdx.x; group < leader.groups; group += SELECT_THREADS) {
                if (leader.tops[group] == largest) atomicMin(&first_group, group);
            }
            __syncthreads();
            if (leader.warp == 0) {
                entry = first_equal(row, leader.tops + first_group, first_group, first_group + 1,
                                    leader.lane, largest);
            }
            place = PLACE_CERTAIN;
        }
    } else {
        bits |= options.bits;
        const Scale scale = {largest, options.inverse};
        const Racers<Row, NoFilter> racers(draw, row, scale, options.floor, negative_infinity(),
                                           NoFilter{});
        entry = static_cast<u32>(leader.winner(racers, pieces, front.early));
        if (c.winners != nullptr && threadIdx.x == 0 && entry < part.end) {
            place = min(static_cast<u64>(time_of(finish_of(racers, entry))), PLACE_NOTHING);
        }
    }
    const i32 wanted = c.forced == nullptr ? -1 : c.forced[index];
    const bool is_there = wanted != -1 && stands_for<HAS_IDS>(part, wanted);
    if (threadIdx.x != 0) return;
    i32 chosen = entry < part.end ? part.token(entry) : -1;
    // If logits change during the call, no token may win. Then a whole row's token is its first.
    if (chosen < 0 && c.maxima == nullptr) chosen = part.token(part.begin);
    if (is_there) {
        chosen = wanted;
        place = PLACE_FORCED;
    } else if (wanted < -1 || (wanted != -1 && c.maxima == nullptr)) {
        // Another rank may have a token that no column stands for here.
        bits |= OUT_OF_RANGE;
    }
    raise_of(p, index, bits);
    p.tokens.set(index, 0, chosen);
    if (c.winners != nullptr) c.winners[index] = place << 32 | static_cast<u32>(chosen);
}
