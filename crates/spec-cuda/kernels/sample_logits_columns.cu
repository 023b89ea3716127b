// sample_logits for rows whose columns stand for other tokens, rows that are a part of a row, rows
// with a forced token, and rows that list the tokens that race.
//
// A team of blocks owns a row (select_team.cuh) and reads it several times, mostly from L2: once
// for the largest logit, the forced column and bad data; for top-k and top-p as often as a
// selection needs (select.cuh); once for each draw; and once more for each kind of output. A
// column's noise is that of its token. Tokens of neighbouring columns are mostly neighbours, so
// that a Philox block, which bounds the noise of 256 tokens, serves all columns of a vector. Only
// columns whose bound does not exceed the earliest time that the block has found get exact times.
//
// Bytes: the logits and the ids, once from memory and at least once more from L2.
#include "sample_logits_columns.cuh"

struct Shared {
    Selection selection;
    ColumnList list;
    // The columns of the row's tokens, NONE for no token.
    u32 drawn[MAX_DRAWS];
    u32 bar;
};

template <typename Row>
__device__ __noinline__ u64 sum_of_row(Kept kept, Row row, u32 lane) {
    return kept.sum(row, lane);
}

// A row by columns.
template <typename T>
struct ByColumn {
    const Columns<T>& c;
    const Params<T>& p;
    u32 index;
    Team& team;
    Shared& shared;
    ColumnRow<T> row;

    INLINE bool leads() const { return team.blocks.rank == 0 && threadIdx.x == 0; }

    // The row as given, without mask.
    INLINE ColumnRow<T> raw_row() const {
        ColumnRow<T> raw = row;
        raw.make.raw = true;
        raw.make.floor = 0;
        return raw;
    }

    // The token of a column that was chosen; 0 if the row has no tokens and the column stands for
    // none; -1 for no column.
    INLINE i32 token_of(u32 column) const {
        if (column == NONE) return -1;
        const u32 token = row.make.tokens.token(column);
        return token == NONE ? 0 : static_cast<i32>(token);
    }

    INLINE void set_token(u32 place, u32 column) const {
        p.tokens.set(index, place, token_of(column));
    }

    INLINE void set_winner(u64 place, u32 column) const {
        if (c.winners != nullptr) {
            c.winners[index] = place << 32 | static_cast<u32>(token_of(column));
        }
    }

    // Calls visit(i) in the threads of the team for i below `count`.
    template <typename Visit>
    INLINE void strided(u32 count, Visit&& visit) const {
        for (u32 i = team.blocks.rank * SELECT_THREADS + threadIdx.x; i < count;
             i += team.blocks.size * SELECT_THREADS) {
            visit(i);
        }
    }

    // Writes the probabilities and the kept tokens of a row that draws no random number: `column`
    // is certain, NONE if the row has no token.
    INLINE void write_certain(u32 column) const {
        if (p.probs.data != nullptr) {
            strided(p.vocab, [&](u32 i) { p.probs[index][i] = i == column ? 1.0f : 0.0f; });
        }
        write_one_kept(p, index, team.blocks, token_of(column), column != NONE);
    }

    INLINE void write_padding() const {
        strided(p.draws, [&](u32 i) {
            set_token(i, NONE);
            if (p.processed_logprobs.data != nullptr) {
                p.processed_logprobs[index][i] = negative_infinity();
            }
            if (c.report.logprobs.data != nullptr) {
                c.report.logprobs[index][i] = negative_infinity();
            }
            if (c.report.ranks.data != nullptr) c.report.ranks[index][i] = 0;
        });
        strided(c.report.top, [&](u32 i) {
            if (c.report.top_tokens.data != nullptr) c.report.top_tokens[index][i] = -1;
            if (c.report.top_logprobs.data != nullptr) {
                c.report.top_logprobs[index][i] = negative_infinity();
            }
        });
        if (leads()) set_winner(PLACE_NOTHING, NONE);
        write_certain(NONE);
    }

    // Writes the tokens of the drawn columns. `first` is the column that a row without a draw
    // chose.
    INLINE void write_tokens(const Kept& kept, bool is_drawn, u32 first, u64 total) const {
        if (team.blocks.rank != 0 || threadIdx.x >= p.draws) return;
        const u32 column = shared.drawn[threadIdx.x];
        set_token(threadIdx.x, column);
        if (p.processed_logprobs.data == nullptr) return;
        float logprob = negative_infinity();
        if (column != NONE && !is_drawn) {
            if (column == first) logprob = 0.0f;
        } else if (column != NONE) {
            const float x = row.entry(column);
            const bool races =
                FloatCut(kept.cut).keeps(x, column) && kept.scale.fixed(x) >= max(kept.floor, 1ull);
            // A forced column may not be drawn from.
            if (races) logprob = LogProb(kept.scale, total)(x);
        }
        p.processed_logprobs[index][threadIdx.x] = logprob;
    }

    // Writes the first of the columns that race, in the order of columns, and their number.
    __device__ __noinline__ void write_kept(Kept kept) const {
        list_kept_tokens(p, index, shared.selection, team, row, kept,
                         [&](u32 column) { return token_of(column); });
    }

    // Writes the probabilities of the columns that race; `total` is the sum of their weights.
    __device__ __noinline__ void write_shares(Kept kept, u64 total) const {
        const FloatCut by(kept.cut);
        const float least = least_weight(kept.floor);
        const float factor = prob_factor(total);
        constexpr u32 N = ColumnRow<T>::N;
        float* const to = p.probs[index];
        row.each(team.lane, [&](const float(&entries)[N], u32 first) {
            float probs[N];
            kept.probs(by, entries, first, least, factor, probs);
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (first + j < p.vocab) to[first + j] = probs[j];
            }
        });
    }

    // The number of logits as given that are at least as large as that of a column.
    __device__ __noinline__ u32 rank(u32 column) const {
        const ColumnRow<T> raw = raw_row();
        const float x = raw.entry(column);
        u32 count = 0;
        raw.each(team.lane, [&](const float(&entries)[ColumnRow<T>::N], u32) {
#pragma unroll
            for (u32 j = 0; j < ColumnRow<T>::N; ++j) count += entries[j] >= x ? 1 : 0;
        });
        team.publish(warp_sum(count));
        return static_cast<u32>(team.reduce_sum());
    }

    // Writes what is reported of the drawn columns, and of the row as given.
    __device__ __noinline__ void write_reports(u32 raw_key) const {
        const Report<T>& r = c.report;
        const float largest = exact::value_of_key(max(raw_key, LOWEST_KEY));
        const ColumnRow<T> raw = raw_row();
        const Scale scale = {largest, 1.0f};
        LogProb log_prob_of(scale, ONE);
        const bool sums = r.logprobs.data != nullptr || r.top_logprobs.data != nullptr;
        if (sums && raw_key > LOWEST_KEY) {
            team.publish(sum_of_row(Kept{scale, Cut{0, 0}, 0}, raw, team.lane));
            log_prob_of = LogProb(scale, team.reduce_sum());
        }
        const auto logprob = [&](float x) {
            return x > negative_infinity() ? log_prob_of(x) : negative_infinity();
        };
        for (u32 place = 0; place < p.draws; ++place) {
            const u32 column = shared.drawn[place];
            // NaN where the column stands for no token.
            const float x = column == NONE ? nothing() : raw.entry(column);
            u32 reached = 0;
            if (r.ranks.data != nullptr && x == x) reached = rank(column);
            if (!leads()) continue;
            if (r.ranks.data != nullptr) r.ranks[index][place] = static_cast<i32>(reached);
            if (r.logprobs.data != nullptr) r.logprobs[index][place] = logprob(x);
        }
        if (r.top == 0) return;
        const OutOfLine<u32> first = list_first_columns(shared.selection, shared.list, team, raw,
                                                        min(r.top, p.vocab), largest);
        team.exchanges = first.exchanges;
        if (team.blocks.rank != 0) return;
        for (u32 i = threadIdx.x; i < r.top; i += SELECT_THREADS) {
            const bool there = i < first.result;
            const u64 entry = there ? shared.list.sorted[i] : 0;
            const float x =
                there ? exact::value_of_key(static_cast<u32>(entry >> 32)) : negative_infinity();
            if (r.top_tokens.data != nullptr) {
                r.top_tokens[index][i] = there ? token_of(NONE - static_cast<u32>(entry)) : -1;
            }
            if (r.top_logprobs.data != nullptr) r.top_logprobs[index][i] = logprob(x);
        }
    }
};

template <typename T>
INLINE ColumnRow<T> column_row(const Columns<T>& c, u32 index, const Team& team) {
    const Params<T>& p = c.drawing;
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    const ColumnTokens tokens = {ids_of(c.token_ids, index), c.token_ids.wide != 0, c.first_token,
                                 mask, c.mask_words};
    return ColumnRow<T>(p.logits[index], p.vocab, team,
                        ColumnEntries<T>{tokens, p.vocab, false, 0, {0.0f, 0.0f}});
}

// The largest of the values that the team's warps have published last.
INLINE u64 largest_published(const Team& team) {
    u64 largest = 0;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) largest = max(largest, team.published(i));
    return NEVER - warp_min(NEVER - largest);
}

template <typename T>
INLINE void sample_columns(const Columns<T>& c) {
    __shared__ Team::Shared exchange;
    __shared__ Shared shared;
    __shared__ Request request;
    const Params<T>& p = c.drawing;
    Team team(exchange);
    const u32 index = blockIdx.x >> (31 - __clz(team.blocks.size));
    const ByColumn<T> by = {c, p, index, team, shared, column_row(c, index, team)};
    const ColumnRow<T>& row = by.row;
    if (is_padding(p.of_rows, index)) return by.write_padding();
    if (threadIdx.x == 0) {
        request.fetch(p, index);
        Request::arrive();
    }
    // Now all blocks have started, and all threads see the request.
    team.blocks.sync();

    const i32 wanted = c.forced == nullptr ? -1 : c.forced[index];
    const ColumnSurvey own = survey_columns(row, static_cast<u32>(wanted), team.lane);
    if (team.lane == 0) raise_of(p, index, own.flags);
    team.publish_relaxed(own.best);
    const u64 best = largest_published(team);
    const u32 own_key = static_cast<u32>(best >> 32);
    u32 raw_key = own_key;
    u32 forced = NONE;
    if (c.needs_raw != 0 || wanted != -1) {
        team.publish_relaxed(static_cast<u64>(own.raw) << 32 | own.forced);
        for (u32 i = team.lane; i < team.pieces(); i += WARP) {
            raw_key = max(raw_key, static_cast<u32>(team.published(i) >> 32));
            forced = min(forced, static_cast<u32>(team.published(i)));
        }
        raw_key = __reduce_max_sync(ALL_LANES, raw_key);
        forced = __reduce_min_sync(ALL_LANES, forced);
    }
    u32 bits = 0;
    // Another rank may have a token that no column stands for here.
    if (wanted < -1 || (wanted != -1 && forced == NONE && c.maxima == nullptr)) {
        bits |= OUT_OF_RANGE;
    }
    u32 largest_key = max(own_key, LOWEST_KEY);
    if (c.maxima != nullptr) {
        const float given = c.maxima[index];
        // False for NaN.
        if (given >= exact::value_of_key(largest_key)) {
            largest_key = exact::sort_key(given);
        } else {
            bits |= BAD_LENGTHS;
        }
    }

    const Options options(request, p.vocab);
    const Scale scale = {exact::value_of_key(largest_key), options.inverse};
    Kept kept = {scale, Cut{0, 0}, options.floor};
    u64 total = ONE;
    const bool is_drawn = largest_key > LOWEST_KEY && !options.greedy;
    const bool forces = forced != NONE;
    // The column that a row without a draw chooses, and the row's place in `winners`.
    u32 first = NONE;
    u64 place = PLACE_NOTHING;
    bits |= largest_key > LOWEST_KEY ? options.bits : NON_FINITE;
    if (is_drawn) {
        if (options.top_k > 0 || options.top_p < 1ull << 32) {
            ColumnRow<T> cut_row = row;
            if (p.min_p_first != 0) {
                // Lighter columns are no longer entries.
                cut_row.make.floor = options.floor;
                cut_row.make.scale = scale;
            }
            const OutOfLine<Kept> cut =
                filter_out_of_line(shared.selection, team, cut_row, options, scale);
            team.exchanges = cut.exchanges;
            kept = cut.result;
        }
        if (p.probs.data != nullptr || p.processed_logprobs.data != nullptr) {
            team.publish_relaxed(sum_of_row(kept, row, team.lane));
            total = team.reduce_sum();
        }
    } else if (best == 0) {
        // No column is allowed. With `maxima`, that ends the row only if no rank has a logit.
        if (largest_key <= LOWEST_KEY) first = 0;
    } else if (own_key == largest_key) {
        // Otherwise another rank has the largest logit.
        first = NONE - static_cast<u32>(best);
        place = PLACE_CERTAIN;
    }
    if (by.leads()) raise_of(p, index, bits);

    // At temperature 0, several tokens are the first of the row's order.
    const bool lists =
        p.draws > 1 && !forces && options.greedy && first != NONE && largest_key > LOWEST_KEY;
    if (threadIdx.x < p.draws) {
        shared.drawn[threadIdx.x] = threadIdx.x > 0 ? NONE : forces ? forced : first;
    }
    __syncthreads();
    if (is_drawn && !forces) {
        const ColumnRacers<T> racers = {request.draw(p), row, kept};
        ColumnFinish last = {0, NONE};
        for (u32 i = 0; i < p.draws && last.finish != NEVER; ++i) {
            last = first_of_team(team, row.make.tokens,
                                 next_finish(racers, last, i == 0, &shared.bar, team.lane));
            if (i == 0 && last.finish != NEVER) place = time_of(last.finish);
            if (threadIdx.x == 0) shared.drawn[i] = last.column;
        }
    } else if (lists) {
        const OutOfLine<u32> listed = list_first_columns(shared.selection, shared.list, team, row,
                                                         min(p.draws, p.vocab), scale.largest);
        team.exchanges = listed.exchanges;
        if (threadIdx.x < listed.result && threadIdx.x < p.draws) {
            const u64 entry = team.blocks.of(shared.list.sorted, 0)[threadIdx.x];
            const bool there = static_cast<u32>(entry >> 32) > LOWEST_KEY;
            shared.drawn[threadIdx.x] = there ? NONE - static_cast<u32>(entry) : NONE;
        }
    }
    __syncthreads();
    by.write_tokens(kept, is_drawn, first, total);
    if (by.leads()) by.set_winner(forces ? PLACE_FORCED : place, shared.drawn[0]);
    if (!is_drawn) {
        by.write_certain(first);
    } else {
        if (p.probs.data != nullptr) by.write_shares(kept, total);
        if (lists_kept(p)) by.write_kept(kept);
    }
    if (c.needs_raw != 0) by.write_reports(raw_key);
    // The leading block ends when all blocks have read its list.
    if (lists) team.blocks.sync();
}

// The largest logit of each row that is allowed.
template <typename T>
INLINE void find_largest(const Columns<T>& c) {
    __shared__ Team::Shared exchange;
    const Params<T>& p = c.drawing;
    Team team(exchange);
    const u32 index = blockIdx.x >> (31 - __clz(team.blocks.size));
    const bool leads = team.blocks.rank == 0 && threadIdx.x == 0;
    if (is_padding(p.of_rows, index)) {
        if (leads) c.largest[index] = negative_infinity();
        return;
    }
    // Now all blocks have started.
    team.blocks.sync();
    u32 key = 0;
    if (c.token_ids.data == nullptr && p.mask.data == nullptr) {
        float top = negative_infinity();
        const WarpRange range(p.vocab, team.piece(), team.pieces());
        LogitGroups<T, false, 8>{p.logits[index], nullptr, p.vocab}.survey(
            range.begin, range.end, team.lane, [&](u32, float its) { top = fmaxf(top, its); });
        key = __reduce_max_sync(ALL_LANES, exact::sort_key(top));
    } else {
        const ColumnSurvey own = survey_columns(column_row(c, index, team), NONE, team.lane);
        key = static_cast<u32>(own.best >> 32);
    }
    team.publish_relaxed(key);
    const u32 largest = static_cast<u32>(largest_published(team));
    if (leads) c.largest[index] = exact::value_of_key(max(largest, LOWEST_KEY));
}

#define COLUMNS(dtype, T)                                                                          \
    SPEC_KERNEL_BLOCKS(sample_logits_columns_##dtype, sample_columns<T>, Columns<T>,               \
                       SELECT_THREADS, 2)                                                          \
    SPEC_KERNEL_BLOCKS(sample_logits_largest_##dtype, find_largest<T>, Columns<T>, SELECT_THREADS, \
                       2)

COLUMNS(f32, float)
COLUMNS(f16, f16)
COLUMNS(bf16, bf16)
