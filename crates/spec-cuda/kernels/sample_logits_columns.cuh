// Rows of sample_logits whose columns may stand for other tokens, may be a part of a row, may have
// a forced token, or list the tokens that race: what a column stands for, and lists of columns.
#pragma once

#include "params/sample_logits_columns.cuh"
#include "sample_logits_kept.cuh"

// Tokens that ids may name.
constexpr i64 ID_TOKENS = 1ll << 24;

// The ids of a row; null if there are none.
INLINE const void* ids_of(const IntegerRows& ids, u32 index) {
    if (ids.data == nullptr) return nullptr;
    const u64 bytes = ids.stride * index * (ids.wide ? 8 : 4);
    return static_cast<const u8*>(ids.data) + bytes;
}

// The token of each column of a row, and which tokens are allowed.
struct ColumnTokens {
    // The ids of the row's columns, null if column c stands for token first + c.
    const void* ids;
    bool wide;
    u32 first;
    // One bit for each token, null: all are allowed. Tokens from 32 * words on are not allowed.
    const u32* mask;
    u32 words;

    // The token of a column, or NONE. Sets `bad` if the id is neither a token nor -1.
    INLINE u32 token(u32 column, bool& bad) const {
        if (ids == nullptr) return first + column;
        const i64 id =
            wide ? static_cast<const i64*>(ids)[column] : static_cast<const i32*>(ids)[column];
        if (id >= 0 && id < ID_TOKENS) return static_cast<u32>(id);
        bad = bad || id != -1;
        return NONE;
    }

    INLINE u32 token(u32 column) const {
        bool bad = false;
        return token(column, bad);
    }

    INLINE bool allows(u32 token) const {
        if (mask == nullptr) return true;
        return token / 32 < words && (mask[token / 32] >> token % 32 & 1) != 0;
    }
};

// Turns logits into entries. Of a row as given (`raw`), columns that stand for no token are absent
// (NaN). Otherwise these columns, and columns that are not allowed, are negative infinity. In both,
// NaN is negative infinity.
template <typename T>
struct ColumnEntries {
    static constexpr u32 N = Pack<T>::N;

    ColumnTokens tokens;
    u32 vocab;
    bool raw;
    // Entries with a smaller weight become absent.
    u64 floor;
    Scale scale;

    INLINE bool as_is() const {
        return tokens.ids == nullptr && (raw || tokens.mask == nullptr) && floor == 0;
    }

    INLINE float operator()(float value, u32 column) const {
        const u32 token = tokens.token(column);
        if (raw) return token == NONE ? nothing() : fmaxf(value, negative_infinity());
        const bool in = token != NONE && tokens.allows(token);
        // fmaxf returns the number if one argument is NaN.
        const float entry = in ? fmaxf(value, negative_infinity()) : negative_infinity();
        return floor != 0 && scale.fixed(entry) < floor ? nothing() : entry;
    }

    INLINE void operator()(const float (&values)[N], float (&entries)[N], u32 first) const {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            entries[j] = first + j < vocab ? (*this)(values[j], first + j) : nothing();
        }
    }
};

template <typename T>
using ColumnRow = EnteredRow<T, ColumnEntries<T>>;

// What a warp finds when it first reads its piece of a row.
struct ColumnSurvey {
    // The key of the largest logit that is allowed, and the complement of its lowest column; 0 if
    // no column is allowed.
    u64 best;
    // The key of the largest logit as given.
    u32 raw;
    // The lowest column that stands for the forced token.
    u32 forced;
    u32 flags;
};

// The first reading of this warp's piece. The result is the same in all lanes.
template <typename T>
__device__ __noinline__ ColumnSurvey survey_columns(ColumnRow<T> row, u32 forced, u32 lane) {
    constexpr u32 N = ColumnRow<T>::N;
    ColumnSurvey own = {0, 0, NONE, 0};
    const ColumnTokens& tokens = row.make.tokens;
#pragma unroll 2
    for (u32 v = row.begin + lane; v < row.end; v += WARP) {
        float values[N];
        u32 first;
        row.read(v, values, first);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            // Before the row, the column wraps to a large number.
            const u32 column = first + j;
            if (column >= row.length) continue;
            bool bad = false;
            const u32 token = tokens.token(column, bad);
            if (bad) own.flags |= OUT_OF_RANGE;
            if (token == NONE) continue;
            const float x = values[j];
            if (!(x <= LARGEST)) own.flags |= NON_FINITE;
            const u32 key = exact::sort_key(x);
            own.raw = max(own.raw, key);
            if (token == forced) own.forced = min(own.forced, column);
            if (tokens.allows(token)) {
                own.best = max(own.best, static_cast<u64>(key) << 32 | (NONE - column));
            }
        }
    }
    own.best = NEVER - warp_min(NEVER - own.best);
    own.raw = __reduce_max_sync(ALL_LANES, own.raw);
    own.forced = __reduce_min_sync(ALL_LANES, own.forced);
    own.flags = __reduce_or_sync(ALL_LANES, own.flags);
    return own;
}

// A column and its finish in the race. Of equal finishes (the same time and token), the lower
// column comes first.
struct ColumnFinish {
    u64 finish;
    u32 column;

    INLINE bool before(const ColumnFinish& other) const {
        return finish < other.finish || (finish == other.finish && column < other.column);
    }
};

// The columns that race.
template <typename T>
struct ColumnRacers {
    Draw draw;
    ColumnRow<T> row;
    Kept kept;

    // The first column of this warp's piece to finish after `last`, by the whole block, which
    // shares a bar in shared memory. The result is the same in all lanes.
    INLINE ColumnFinish next(const ColumnFinish& last, bool begins, u32* bar, u32 lane) const {
        const Racers<ColumnRow<T>, NoFilter> racers(draw, row, kept.scale, kept.floor,
                                                    negative_infinity(), NoFilter{});
        const FloatCut by(kept.cut);
        if (threadIdx.x == 0) *bar = NONE;
        __syncthreads();
        ColumnFinish best = {NEVER, NONE};
        u32 block = NONE;
        uint4 high = make_uint4(0, 0, 0, 0);
        row.each(lane, [&](const float(&entries)[ColumnRow<T>::N], u32 first) {
            u32 those = 0;
#pragma unroll
            for (u32 j = 0; j < ColumnRow<T>::N; ++j) {
                const bool may =
                    by.keeps(entries[j], first + j) && racers.slowness_bound(entries[j]) < LARGEST;
                those |= may ? 1u << j : 0u;
            }
#pragma unroll 1
            for (; those != 0; those &= those - 1) {
                const u32 j = __ffs(those) - 1;
                const u32 column = first + j;
                const float x = pick(entries, j);
                const u32 token = row.make.tokens.token(column);
                if (token == NONE) continue;
                if (token / (4 * GROUP) != block) {
                    block = token / (4 * GROUP);
                    high = draw.block(block);
                }
                const float bound =
                    noise_bound(word_of(high, token / GROUP % 4)) * racers.slowness_bound(x);
                if (__float_as_uint(bound) > *const_cast<volatile u32*>(bar)) continue;
                const ColumnFinish own = {racers.finish(token, x, noise_of(draw, token)), column};
                if (own.finish == NEVER || (!begins && !last.before(own)) || !own.before(best)) {
                    continue;
                }
                best = own;
                atomicMin(bar, time_of(own.finish));
            }
        });
        __syncwarp();
        const u64 least = warp_min(best.finish);
        const u32 column = __reduce_min_sync(ALL_LANES, best.finish == least ? best.column : NONE);
        return {least, column};
    }
};

// Not inlined, so that the race takes no registers from the rest of a row.
template <typename T>
__device__ __noinline__ ColumnFinish next_finish(ColumnRacers<T> racers, ColumnFinish last,
                                                 bool begins, u32* bar, u32 lane) {
    return racers.next(last, begins, bar, lane);
}

// The first of the finishes that the team's warps have found. By all blocks.
INLINE ColumnFinish first_of_team(Team& team, const ColumnTokens& tokens, const ColumnFinish& own) {
    team.publish_relaxed(own.finish);
    u64 least = NEVER;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) least = min(least, team.published(i));
    least = warp_min(least);
    // Without ids, no two columns stand for the same token.
    if (tokens.ids == nullptr) {
        return {least, least == NEVER ? NONE : static_cast<u32>(least) - tokens.first};
    }
    team.publish_relaxed(own.finish == least ? own.column : NONE);
    u32 column = NONE;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        column = min(column, static_cast<u32>(team.published(i)));
    }
    return {least, __reduce_min_sync(ALL_LANES, column)};
}

// Shared memory of a list of the first entries of a row.
struct ColumnList {
    static constexpr u32 MAX = 256;

    u64 entries[MAX];
    u64 sorted[MAX];
    u32 count;
};

// Finds the first `wanted` entries of a row's order, at most ColumnList::MAX, and sorts them in
// list.sorted of the leading block. Returns their number. By all blocks; `largest` is the row's
// largest entry.
template <typename T>
__device__ __noinline__ OutOfLine<u32> list_first_columns(Selection& selection, ColumnList& list,
                                                          Team team, ColumnRow<T> row, u32 wanted,
                                                          float largest) {
    Options options;
    options.inverse = 1.0f;
    options.top_k = wanted;
    options.top_p = 1ull << 32;
    options.floor = 0;
    // A selection knows no bins below a largest entry of negative infinity.
    const Scale scale = {fmaxf(largest, -LARGEST), 1.0f};
    const OutOfLine<Kept> cut = filter_out_of_line(selection, team, row, options, scale);
    team.exchanges = cut.exchanges;
    const Kept& kept = cut.result;
    if (threadIdx.x == 0) list.count = 0;
    team.blocks.sync();
    u32* const count = team.blocks.of(&list.count, 0);
    u64* const entries = team.blocks.of(list.entries, 0);
    const FloatCut by(kept.cut);
    row.each(team.lane, [&](const float(&values)[ColumnRow<T>::N], u32 first) {
#pragma unroll 1
        for (u32 j = 0; j < ColumnRow<T>::N; ++j) {
            const float x = pick(values, j);
            if (!by.keeps(x, first + j)) continue;
            const u32 place = atomicAdd(count, 1u);
            if (place < ColumnList::MAX) entries[place] = listed_entry(x, first + j);
        }
    });
    team.blocks.sync();
    const u32 listed = min(*count, min(wanted, ColumnList::MAX));
    if (team.blocks.rank == 0 && threadIdx.x < listed) {
        const u64 own = list.entries[threadIdx.x];
        u32 rank = 0;
        for (u32 i = 0; i < listed; ++i) rank += list.entries[i] > own;
        list.sorted[rank] = own;
    }
    // The leading block ranks before others may list again.
    team.blocks.sync();
    return {listed, team.exchanges};
}
