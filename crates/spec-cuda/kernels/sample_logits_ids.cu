// sample_logits for rows whose columns have ids: as sample_logits_plain.cu, one token of each row,
// drawn from all allowed tokens except those that min-p drops.
//
// A column's noise is that of its token. To compute the noise of every column would take longer
// than to read the logits. So a first kernel looks at the ids alone, which most often are the same
// for all rows. Where the ids of 64 columns ascend within a few groups of 64 tokens, that kernel
// stores which groups these are, and a bitmap for each group of the tokens that columns stand for.
// The least noise of these groups of tokens bounds the noise of the 64 columns, and the bitmap
// tells whether a column stands for the token that has the least noise. If the ids of 64 columns do
// not ascend, or if one of the columns stands for no token, these columns are read one by one. The
// leading block ends the row as it ends a shard (sample_logits_part.cuh). It bounds the noise of
// each listed column by the least noise of the column's own group of tokens.
//
// Bytes: the logits once, and 80 for 64 columns.
#include "sample_logits_part.cuh"

// ---- groups of columns ----------------------------------------------------------

constexpr u32 MAX_SPANNED = 8;
constexpr u32 SPAN_SHIFT = 18;
static_assert(ID_TOKENS / GROUP == 1 << SPAN_SHIFT);

// What is known of the ids of 64 columns: whether they name a token for each column, ascend, and
// span at most MAX_SPANNED groups of tokens. If so: the first of these groups, how many groups
// follow, and the number of columns before each group. Also whether some id is neither a token nor
// -1.
struct alignas(16) IdGroup {
    static constexpr u32 ASCEND = 1u << 31;
    static constexpr u32 BAD = 1u << 30;

    u32 word;
    u32 reserved;
    // Six bits for each group of tokens.
    u64 starts;

    INLINE bool ascends() const { return (word & ASCEND) != 0; }
    INLINE u32 first() const { return word % (1u << SPAN_SHIFT); }
    INLINE u32 more() const { return (word >> SPAN_SHIFT) % MAX_SPANNED; }
    INLINE u32 start(u32 k) const { return static_cast<u32>(starts >> 6 * k) % GROUP; }
};

// What is known of a row's ids, in the workspace: for each group of columns an IdGroup, and for
// each group of tokens that an ascending group spans, a bit for each token that a column stands
// for.
static_assert(sizeof(IdGroup) + MAX_SPANNED * sizeof(u64) == ID_GROUP);

struct IdGroups {
    const IdGroup* groups;
    const u64* tokens;

    INLINE IdGroup operator[](u32 group) const {
        const uint4 raw = *reinterpret_cast<const uint4*>(groups + group);
        return {raw.x, raw.y, static_cast<u64>(raw.w) << 32 | raw.z};
    }

    // The column that stands for a token, the `at`-th of the k-th group of tokens that an ascending
    // group of columns spans; NONE if no column does.
    INLINE u32 column(u32 group, const IdGroup& ids, u32 k, u32 at) const {
        const u64 those = tokens[group * MAX_SPANNED + k];
        const bool is_there = (those >> at & 1) != 0;
        return is_there ? group * GROUP + ids.start(k) + __popcll(those & ((1ull << at) - 1))
                        : NONE;
    }
};

// Finds out what is known of each group of 64 columns, by a warp for each group.
INLINE void find_id_groups(const Columns<float>& c) {
    const u32 lane = lane_id();
    const u32 groups = (c.drawing.vocab + GROUP - 1) / GROUP;
    const u64 at = static_cast<u64>(blockIdx.x) * (ID_THREADS / WARP) + threadIdx.x / WARP;
    const u64 row = at / groups;
    if (row >= c.id_rows) return;
    const u32 group = static_cast<u32>(at % groups);
    const ColumnTokens tokens = {ids_of(c.token_ids, row), c.token_ids.wide != 0, 0, nullptr, 0};
    const u32 count = min(GROUP, c.drawing.vocab - group * GROUP);
    bool bad = false;
    const auto token = [&](u32 i) {
        return i < count ? tokens.token(group * GROUP + i, bad) : NONE;
    };
    const u32 own[2] = {token(2 * lane), token(2 * lane + 1)};
    const u32 before = __shfl_up_sync(ALL_LANES, own[1], 1);
    // Past the last column, NONE is larger than any token.
    const bool names[2] = {2 * lane >= count || own[0] != NONE,
                           2 * lane + 1 >= count || own[1] != NONE};
    const bool ascends[2] = {lane == 0 || 2 * lane >= count || before < own[0],
                             2 * lane + 1 >= count || own[0] < own[1]};
    const bool all = __all_sync(ALL_LANES, names[0] && names[1] && ascends[0] && ascends[1]);
    bad = __any_sync(ALL_LANES, bad);
    const u32 last =
        __shfl_sync(ALL_LANES, (count - 1) % 2 == 0 ? own[0] : own[1], (count - 1) / 2);
    const u32 first = __shfl_sync(ALL_LANES, own[0], 0) / GROUP;
    const u32 more = last / GROUP - first;
    IdGroup found = {bad ? IdGroup::BAD : 0, 0, 0};
    if (all && more < MAX_SPANNED) {
        found.word |= IdGroup::ASCEND | more << SPAN_SHIFT | first;
        u64* const bits =
            reinterpret_cast<u64*>(c.id_groups + 2 * c.id_rows * groups) + at * MAX_SPANNED;
#pragma unroll 1
        for (u32 k = 0; k <= more; ++k) {
            u64 mask = 0;
            u32 earlier = 0;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                if (own[i] / GROUP == first + k) mask |= 1ull << own[i] % GROUP;
                earlier += __popc(__ballot_sync(ALL_LANES, own[i] / GROUP < first + k));
            }
            const u32 low = __reduce_or_sync(ALL_LANES, static_cast<u32>(mask));
            const u32 high = __reduce_or_sync(ALL_LANES, static_cast<u32>(mask >> 32));
            if (lane == 0) bits[k] = static_cast<u64>(high) << 32 | low;
            found.starts |= static_cast<u64>(earlier) << 6 * k;
        }
    }
    if (lane == 0) reinterpret_cast<IdGroup*>(c.id_groups)[at] = found;
}

// ---- rows -----------------------------------------------------------------------

// A logit as stored, and the token that its column stands for, or NONE.
template <typename T>
struct LogitOfToken {
    T logit;
    u32 token;
};

// Neighbouring columns, at most WARP, and a lower bound of the noise of their tokens. Where the
// columns are not all of one group of tokens, each has another bound of its own.
struct ColumnRun {
    // The largest number of listed runs.
    static constexpr u32 MAX = 1280;
    // More runs than this take longer to read than to list again by an earlier bar.
    static constexpr u32 FEW = 512;
    static_assert(LeaderRace::MAX_GROUPS * GROUP == 1 << 18);

    // The first column, 18 bits; the number of columns, 6 bits; and whether each has its own bound.
    u32 place;
    float noise;

    INLINE static ColumnRun of(u32 begin, u32 columns, float noise, bool own) {
        return {(own ? 1u << 31 : 0u) | columns << 18 | begin, noise};
    }
    INLINE u32 begin() const { return place % (1u << 18); }
    INLINE u32 columns() const { return place >> 18 & 63; }
    INLINE bool has_own() const { return place >> 31 != 0; }
};

// A row of logits whose columns have ids.
template <typename T>
struct IdRow {
    using Raw = LogitOfToken<T>;
    // LeaderRace::list_tokens, which reads so many groups at once, does not list these rows.
    static constexpr u32 RACE_AT_ONCE = 1;

    const T* row;
    ColumnTokens tokens;
    IdGroups groups;
    // In shared memory, the leading block's list.
    ColumnRun* runs;
    u32 vocab;

    // The logit of a column as it counts: negative infinity if it is NaN, or if the column stands
    // for no token or for one that is not allowed. Beyond the row: the absent entry (NaN).
    INLINE float entry(u32 column) const {
        return column < vocab ? counted(raw(column)) : nothing();
    }

    // Beyond the row, what the last column has. Without a branch, so that no load waits for
    // another.
    INLINE Raw raw(u32 column) const {
        const u32 at = min(column, vocab - 1);
        return {row[at], token(at)};
    }

    // As ColumnTokens::token, without a branch.
    INLINE u32 token(u32 column) const {
        const u32 wide = tokens.wide ? 1 : 0;
        const u32* const id =
            static_cast<const u32*>(tokens.ids) + (static_cast<u64>(column) << wide);
        // Of 32 bits, the high word is the low word again, with which only -1 is above 0..2^24.
        const u32 low = id[0];
        const u32 high = id[wide];
        return low < ID_TOKENS && (wide == 0 || high == 0) ? low : NONE;
    }

    INLINE float entry_of(u32 column, const Raw& raw) const {
        return column < vocab ? counted(raw) : nothing();
    }

    INLINE float counted(const Raw& raw) const {
        const bool in = raw.token != NONE && tokens.allows(raw.token);
        return in ? fmaxf(to_f32(raw.logit), negative_infinity()) : negative_infinity();
    }
};

// The high word of the least noise of a token's group.
INLINE u32 noise_word(const Draw& draw, u32 token) {
    return word_of(draw.block(token / (4 * GROUP)), token / GROUP % 4);
}

// An upper bound of a group's least noise. It exceeds its lower bound by less than a sixtieth, plus
// the value of the bits that the bound cuts off.
INLINE float least_above(float below) {
    return below * (1.0f + 1.0f / 60.0f) + 1.0f / (4194304.0f * GROUP);
}

// A lower bound of a token's noise.
__device__ __noinline__ float bound_of_token(Draw draw, u32 token) {
    return noise_bound(noise_word(draw, token));
}

// The finish of a column, with its token in the low word.
template <typename T>
__device__ __noinline__ u64 finish_of(const Racers<IdRow<T>, NoFilter>& racers, u32 column) {
    const float entry = racers.entry(column);
    const u32 token = racers.row.token(column);
    return token == NONE ? NEVER : racers.finish(token, entry, noise_of(racers.draw, token));
}

template <typename T>
struct RaceOf<Racers<IdRow<T>, NoFilter>> {
    using Row = Racers<IdRow<T>, NoFilter>;

    INLINE static u32 token(const Row& racers, u32 column) { return racers.row.token(column); }

    INLINE static bool may_finish(const Row& racers, float noise, float entry, u32 bar) {
        const float bound = noise * racers.slowness_bound(entry);
        // 0 * infinity is NaN.
        return bound < LARGEST && __float_as_uint(bound) <= bar;
    }

    INLINE static void list(const LeaderRace& race, const Row& racers, const ColumnRun& run) {
        const u32 place = atomicAdd(&race.shared.finish_count, 1u);
        if (place < ColumnRun::MAX) racers.row.runs[place] = run;
    }

    // Lists the runs of a listed group that may finish before `bar`. By a thread.
    INLINE static void list_runs(const LeaderRace& race, const Row& racers, u32 group, u32 bar) {
        const IdGroup ids = racers.row.groups[group];
        const u32 begin = group * GROUP;
        if (!ids.ascends()) {
            // Each column has a bound of its own.
            list(race, racers, ColumnRun::of(begin, WARP, 0.0f, true));
            return list(race, racers, ColumnRun::of(begin + WARP, WARP, 0.0f, true));
        }
        uint4 four;
#pragma unroll 1
        for (u32 k = 0; k <= ids.more(); ++k) {
            const u32 its = ids.first() + k;
            if (k == 0 || its % 4 == 0) four = racers.draw.block(its / 4);
            const float noise = noise_bound(word_of(four, its % 4));
            if (!may_finish(racers, noise, race.tops[group], bar)) continue;
            const u32 start = ids.start(k);
            const u32 columns = (k == ids.more() ? GROUP : ids.start(k + 1)) - start;
            list(race, racers, ColumnRun::of(begin + start, min(columns, WARP), noise, false));
            if (columns > WARP) {
                list(race, racers,
                     ColumnRun::of(begin + start + WARP, columns - WARP, noise, false));
            }
        }
    }

    // An upper bound of the time of the first column to finish in a listed group, in bits: that of
    // the tokens with the least noise of their groups. By a thread.
    INLINE static u32 surely_by(const LeaderRace& race, const Row& racers, u32 group, u32 bar) {
        const IdGroup ids = racers.row.groups[group];
        if (!ids.ascends()) return bar;
#pragma unroll 1
        for (u32 k = 0; k <= ids.more(); ++k) {
            const u32 its = ids.first() + k;
            const float noise = noise_bound(noise_word(racers.draw, its * GROUP));
            if (!may_finish(racers, noise, race.tops[group], bar)) continue;
            const u32 column = racers.row.groups.column(
                group, ids, k, racers.draw.block(GROUP_BLOCKS + its).y % GROUP);
            if (column == NONE) continue;
            const float time =
                least_above(noise) * NEAR * racers.sure_slowness(racers.row.entry(column));
            if (time < LARGEST) bar = min(bar, __float_as_uint(time));
        }
        return bar;
    }

    // Lists the runs of the listed groups, or of all groups if the list of groups overflowed.
    INLINE static void list_all_runs(const LeaderRace& race, const Row& racers, u32 bar) {
        const bool is_list = race.shared.group_count <= LeaderRace::MAX_LISTED;
        const u32 count = is_list ? race.shared.group_count : race.groups;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += SELECT_THREADS) {
            list_runs(race, racers, is_list ? race.shared.groups[i] : i, bar);
        }
        __syncthreads();
    }

    // Returns a bar (an upper bound of the winner's time) that may be earlier than `bar`. The first
    // bar is the time of one token that has the least noise of its group. If no column of the row
    // stands for most of these tokens, the first bar can be so late that very many groups are
    // listed.
    static __device__ __noinline__ u32 lower_bar(LeaderRace race, const Row& racers, u32 bar) {
        const bool is_list = race.shared.group_count <= LeaderRace::MAX_LISTED;
        const u32 count = is_list ? race.shared.group_count : race.groups;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += SELECT_THREADS) {
            bar = surely_by(race, racers, is_list ? race.shared.groups[i] : i, bar);
        }
        bar = __reduce_min_sync(ALL_LANES, bar);
        // All threads have read the number of listed runs.
        __syncthreads();
        if (race.lane == 0) race.shared.keys[race.warp] = bar;
        if (threadIdx.x == 0) race.shared.finish_count = 0;
        __syncthreads();
        return __reduce_min_sync(ALL_LANES, race.shared.keys[race.lane % SELECT_WARPS]);
    }

    template <bool EXACT>
    INLINE static void list_tokens(const LeaderRace& race, const Row& racers, u32 bar, u64& best) {
        constexpr u32 AT_ONCE = 8;
        const IdRow<T>& row = racers.row;
        list_all_runs(race, racers, bar);
        if (race.shared.finish_count > ColumnRun::FEW) {
            bar = lower_bar(race, racers, bar);
            list_all_runs(race, racers, bar);
        }
        const bool is_list = race.shared.finish_count <= ColumnRun::MAX;
        const u32 runs = is_list ? race.shared.finish_count : (row.vocab + WARP - 1) / WARP;
        const auto run_of = [&](u32 at) {
            if (is_list) return row.runs[at];
            const u32 group = at * WARP / GROUP;
            const float noise = row.groups[group].ascends() ? race.noise_of_group(group) : 0.0f;
            return ColumnRun::of(at * WARP, WARP, noise, true);
        };
#pragma unroll 1
        for (u32 base = race.warp; base < runs; base += AT_ONCE * SELECT_WARPS) {
            float values[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 at = min(base + i * SELECT_WARPS, runs - 1);
                values[i] = to_f32(row.row[min(run_of(at).begin() + race.lane, row.vocab - 1)]);
            }
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 at = min(base + i * SELECT_WARPS, runs - 1);
                const ColumnRun run = run_of(at);
                const bool in = race.lane < run.columns() && run.begin() + race.lane < row.vocab;
                const bool may = may_finish(racers, run.noise, values[i], bar);
                if (in && may && base + i * SELECT_WARPS < runs) found |= 1u << i;
            }
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const u32 i = first_of(found);
                const ColumnRun run = run_of(base + i * SELECT_WARPS);
                list_column<EXACT>(race, racers, run, LeaderRace::chosen(values, i), bar, best);
            }
            __syncwarp();
        }
        __syncthreads();
    }

    // Lists the lane's column of a run if the column is allowed, and may finish before `bar` by its
    // own bound, too. `value` is its logit.
    template <bool EXACT>
    INLINE static void list_column(const LeaderRace& race, const Row& racers, const ColumnRun& run,
                                   float value, u32 bar, u64& best) {
        const u32 column = run.begin() + race.lane;
        float entry = fmaxf(value, negative_infinity());
        // A column of a run without bounds of its own stands for a token.
        if (run.has_own() || racers.row.tokens.mask != nullptr) {
            const auto raw = racers.row.raw(column);
            entry = racers.row.entry_of(column, raw);
            if (!may_finish(racers, run.noise, entry, bar)) return;
            if (run.has_own() &&
                !may_finish(racers, bound_of_token(racers.draw, raw.token), entry, bar)) {
                return;
            }
        }
        const u32 place = atomicAdd(&race.shared.token_count, 1u);
        if (place < LeaderRace::MAX_TOKENS) {
            race.shared.tokens[place] = column;
            race.shared.entries[place] = entry;
        } else if (EXACT) {
            best = min(best, finish_of(racers, column));
        }
    }

    static __device__ __noinline__ u64 with_index(const Row& racers, u64 finish) {
        __shared__ u32 lowest;
        if (threadIdx.x == 0) lowest = NONE;
        __syncthreads();
        if (finish != NEVER) {
            const u32 token = static_cast<u32>(finish);
#pragma unroll 1
            for (u32 column = threadIdx.x; column < racers.row.vocab; column += SELECT_THREADS) {
                if (racers.row.token(column) == token && finish_of(racers, column) == finish) {
                    atomicMin(&lowest, column);
                }
            }
        }
        __syncthreads();
        return finish == NEVER ? NEVER : (finish & ~0xFFFFFFFFull) | lowest;
    }
};

// ---- noise ----------------------------------------------------------------------

// A column that may finish early: an upper bound of its noise, and its entry.
struct EarlyColumn {
    // The `log_time` of these; infinite if there is no column.
    float time;
    float noise;
    float entry;

    INLINE EarlyColumn() : time(infinity()), noise(infinity()), entry(negative_infinity()) {}

    INLINE void consider(float of_column, float x, float inverse) {
        const float its = log_time(of_column, x, inverse);
        if (its < time && x > negative_infinity()) {
            time = its;
            noise = of_column;
            entry = x;
        }
    }
};

// Computes lower bounds of the noise of a warp's groups of columns, and finds a column that
// probably finishes early: what LeaderRace::Noise does for groups of tokens.
template <typename T>
struct ColumnNoise {
    const LeaderRace& race;
    const IdRow<T>& row;
    u32 next;
    u32 end;
    EarlyColumn early;
    // For the lane's latest group: the column of the token with the least noise, or NONE; and an
    // upper bound of its noise.
    u32 column;
    float above;

    INLINE ColumnNoise(const LeaderRace& of, const IdRow<T>& of_row, const WarpRange& range)
        : race(of),
          row(of_row),
          next(range.begin),
          end(range.end),
          column(NONE),
          above(infinity()) {}

    // Processes the next 32 groups, after the warp has read the row's groups before them.
    INLINE void advance(const Draw& draw, float inverse) {
        take(inverse);
        bound(draw);
    }

    // Processes the groups that `advance` has not processed.
    INLINE void finish(const Draw& draw, float inverse) {
#pragma unroll 1
        while (next < end) advance(draw, inverse);
        take(inverse);
    }

    // Computes the bounds of the groups whose ids do not ascend.
    INLINE void bound_others(const Draw& draw, float inverse, const WarpRange& range) {
#pragma unroll 1
        for (u32 base = range.begin; base < range.end; base += WARP) {
            const u32 group = base + race.lane;
            u32 those = __ballot_sync(ALL_LANES, group < range.end && !row.groups[group].ascends());
#pragma unroll 1
            for (; those != 0; those &= those - 1) {
                const EarlyColumn its =
                    bound_each(race, row, draw, inverse, early.time, base + first_of(those));
                if (its.time < early.time) early = its;
            }
        }
    }

    // Sends the column of the warp that probably finishes first to shared.early[piece].
    INLINE void choose(u32 piece) const {
        const u32 order = exact::sort_key(early.time);
        const u32 first = __reduce_min_sync(ALL_LANES, order);
        if (race.lane == first_of(__ballot_sync(ALL_LANES, order == first))) {
            race.shared.early[piece] =
                static_cast<u64>(__float_as_uint(early.noise)) << 32 | __float_as_uint(early.entry);
        }
        __syncwarp();
    }

private:
    // Computes the bound of a group column by column. It is so small that the least time of its
    // columns is that of its largest logit with this noise: most groups have a column whose group
    // of tokens has little noise, but few have one whose logit is large, too. Returns the lane's
    // earliest column. By a warp. Not inlined, so that it takes no registers from the other groups.
    static __device__ __noinline__ EarlyColumn bound_each(LeaderRace race, IdRow<T> row, Draw draw,
                                                          float inverse, float last_time,
                                                          u32 group) {
        // Covers the errors of approximate functions and roundings several times over.
        constexpr float SLACK = 1.0f - 1.0f / 512.0f;
        EarlyColumn early;
        early.time = last_time;
        const float top = race.tops[group];
        float least = LARGEST;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 column = group * GROUP + half * WARP + race.lane;
            const auto raw = row.raw(column);
            const float x = row.entry_of(column, raw);
            const u32 word = noise_word(draw, raw.token);
            // False for NaN, and for a column that stands for no token.
            if (!(x > negative_infinity())) continue;
            const float below = noise_bound(word);
            const float slower =
                x == top
                    ? 1.0f
                    : approximate_exp2(fminf(exact::sub(top, x) * inverse * 1.44269504f, 120.0f));
            least = fminf(least, below * slower * SLACK);
            const float above = least_above(below);
            if (!(log_time(above, x, inverse) < early.time)) continue;
            if (draw.block(GROUP_BLOCKS + raw.token / GROUP).y % GROUP != raw.token % GROUP) {
                continue;
            }
            early.consider(above, x, inverse);
        }
        const u32 bits = __reduce_min_sync(ALL_LANES, __float_as_uint(least));
        if (race.lane == 0) store(race, group, __uint_as_float(bits));
        __syncwarp();
        return early;
    }

    INLINE static void store(const LeaderRace& race, u32 group, float below) {
        race.shared.noise[group] = static_cast<u16>(__float_as_uint(below) >> 16);
    }

    INLINE void bound(const Draw& draw) {
        const u32 group = next + race.lane;
        next += WARP;
        if (group >= end) return;
        const IdGroup ids = row.groups[group];
        // The others are bounded later.
        if (!ids.ascends()) return;
        const u32 first = ids.first();
        const u32 last = first + ids.more();
        u32 high = NONE;
        u32 owner = first;
#pragma unroll 1
        for (u32 quad = first / 4; quad <= last / 4; ++quad) {
            const uint4 four = draw.block(quad);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 its = 4 * quad + i;
                const u32 own = word_of(four, i);
                if (its < first || its > last || own >= high) continue;
                high = own;
                owner = its;
            }
        }
        const float below = noise_bound(high);
        store(race, group, below);
        above = least_above(below);
        column = row.groups.column(group, ids, owner - first,
                                   draw.block(GROUP_BLOCKS + owner).y % GROUP);
    }

    // Uses the column that `bound` found.
    INLINE void take(float inverse) {
        if (column != NONE) early.consider(above, row.entry(column), inverse);
        column = NONE;
    }
};

// ---- the kernel -----------------------------------------------------------------

// The largest logit of a group as it counts, and the largest that is given for a token (NaN if one
// is NaN), read column by column. By a warp.
template <typename T>
__device__ __noinline__ GroupTop top_of_columns(IdRow<T> row, u32 group, u32 lane) {
    GroupTop top = {negative_infinity(), negative_infinity()};
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 column = group * GROUP + half * WARP + lane;
        if (column >= row.vocab || row.token(column) == NONE) continue;
        const float x = to_f32(row.row[column]);
        top.raw = max_or_nan(top.raw, x);
        top.counts = fmaxf(top.counts, row.entry(column));
    }
    top.counts = exact::value_of_key(__reduce_max_sync(ALL_LANES, exact::sort_key(top.counts)));
    return top;
}

// Finds the largest logits of a warp's groups. Returns the flags of the columns that this lane has
// read, and in `ascend` whether the ids of all groups ascend. `meanwhile` is called as
// LogitGroups::survey calls it. After `meanwhile`, what is known of the ids can be read.
template <typename T, typename Meanwhile>
INLINE u32 survey_ids(const IdRow<T>& row, const WarpRange& range, const LeaderRace& leader,
                      bool& ascend, Meanwhile&& meanwhile) {
    const u32 lane = leader.lane;
    const bool is_masked = row.tokens.mask != nullptr;
    float raw = negative_infinity();
    const auto visit = [&](u32 group, float its) { leader.tops[group] = its; };
    if (!is_masked) {
        const LogitGroups<T, false, 8> groups = {row.row, nullptr, row.vocab};
        raw = groups.survey(range.begin, range.end, lane, visit, NoVisitor{}, meanwhile);
    } else {
        meanwhile(range.begin);
    }
    u32 all = IdGroup::ASCEND;
    u32 any = 0;
#pragma unroll 1
    for (u32 group = range.begin + lane; group < range.end; group += WARP) {
        const u32 word = row.groups.groups[group].word;
        all &= word;
        any |= word;
    }
    ascend = __all_sync(ALL_LANES, all != 0);
    const u32 bits = (any & IdGroup::BAD) != 0 ? OUT_OF_RANGE : 0;
    // A column that stands for no token may have any logit.
    const bool again = is_masked || __any_sync(ALL_LANES, !(raw <= LARGEST));
    if (again) raw = negative_infinity();
    if (again || !ascend) {
#pragma unroll 1
        for (u32 group = range.begin; group < range.end; ++group) {
            if (!again && row.groups[group].ascends()) continue;
            const GroupTop top = top_of_columns(row, group, lane);
            raw = max_or_nan(raw, top.raw);
            if (lane == 0) leader.tops[group] = top.counts;
        }
        __syncwarp();
    }
    return bits | (raw <= LARGEST ? 0 : NON_FINITE);
}

template <typename T>
INLINE void sample_ids(const Columns<T>& c) {
    __shared__ LeaderRace::Shared shared;
    __shared__ alignas(16) float tops[LeaderRace::MAX_GROUPS];
    __shared__ Arrivals arrivals;
    // A copy for each warp, because warps draw noise before the first barrier of the block.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ u32 first_group;
    __shared__ ColumnRun runs[ColumnRun::MAX];
    const Params<T>& p = c.drawing;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        // The next kernel waits for the kernel before by waiting for this one.
        follow();
        if (c.winners != nullptr && blocks.rank == 0 && threadIdx.x == 0) {
            c.winners[index] = PLACE_NOTHING << 32 | NONE;
        }
        return write_padding(p, index, blocks);
    }
    const LeaderRace leader(shared, tops, p.vocab);
    Request& request = requests[leader.warp];
    if (leader.lane == 0) request.fetch_plain(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    const ColumnTokens tokens = {ids_of(c.token_ids, index), c.token_ids.wide != 0, 0, mask,
                                 c.mask_words};
    const u64 own = c.id_rows == 1 ? 0 : static_cast<u64>(index) * leader.groups;
    const IdGroups groups = {reinterpret_cast<const IdGroup*>(c.id_groups) + own,
                             c.id_groups + 2 * c.id_rows * leader.groups + own * MAX_SPANNED};
    const IdRow<T> row = {p.logits[index], tokens, groups, runs, p.vocab};
    const u32 piece = blocks.rank * SELECT_WARPS + leader.warp;
    const WarpRange range(p.vocab, piece, blocks.size * SELECT_WARPS);
    ColumnNoise<T> noise(leader, row, range);
    bool has_begun = false;
    // While the first logits are in flight.
    const auto begin = [&] {
        has_begun = true;
        if (blocks.size > 1) LeaderRace::open(blocks, arrivals);
        if (threadIdx.x == 0) {
            shared.begin();
            first_group = NONE;
        }
        Request::arrive();
        __syncwarp();
        // The first kernel has stored what is known of the ids.
        follow();
    };
    const auto meanwhile = [&](u32 group) {
        if (!has_begun) begin();
        if (group >= noise.next && request.draws()) {
            noise.advance(request.draw(p), request.inverse());
        }
    };
    // If `survey` does not read ahead, it does not call `meanwhile`.
    const bool streams = LogitGroups<T, false, 8>{row.row, nullptr, p.vocab}.streamed(
                             range.begin, range.end) > range.begin;
    if (!streams) begin();
    bool ascend = true;
    const u32 flags = survey_ids(row, range, leader, ascend, meanwhile);
    const u32 any = __reduce_or_sync(ALL_LANES, flags);
    if (leader.lane == 0) raise_of(p, index, any);
    leader.fill_up(range);
    const Options options(request);
    const Draw draw = request.draw(p);
    if (!options.greedy) {
        noise.finish(draw, options.inverse);
        if (!ascend) noise.bound_others(draw, options.inverse, range);
        noise.choose(piece);
    }
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return leader.send(blocks, arrivals, range, piece);

    leader.await(blocks, arrivals);
    const PartOfRow part = {tokens, 0, p.vocab};
    end_part<true>(c, index, leader, row, part, options, draw, blocks.size * SELECT_WARPS,
                   first_group);
}

// Kernels that call `follow` themselves, later than SPEC_KERNEL would.
#define BY_IDS(dtype, T)                                                            \
    extern "C" __global__ void __launch_bounds__(SELECT_THREADS, 2)                 \
        sample_logits_ids_##dtype(const __grid_constant__ Columns<T> params) {      \
        sample_ids(params);                                                         \
    }

BY_IDS(f32, float)
BY_IDS(f16, f16)
BY_IDS(bf16, bf16)

SPEC_KERNEL(sample_logits_id_groups, find_id_groups, Columns<float>, ID_THREADS)
