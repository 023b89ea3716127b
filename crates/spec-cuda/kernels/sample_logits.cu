// sample_logits for all rows that no other kernel takes. These are rows whose requests may filter;
// rows with a mask of which several tokens, log-probabilities or probabilities are wanted; rows of
// which several tokens and probabilities are wanted; and rows of more tokens than the other kernels
// have room for.
//
// A team of blocks owns a row (select.cuh), and each warp reads a range of its groups of 64 tokens.
// The team reads the row, applies the mask, and keeps the largest logit of each group. Filters come
// first: top-k and top-p each cut the row (`select`), min-p is a comparison. Most often filters
// keep few tokens: the candidates for a small top-k, or for a top-p that probably keeps few, go to
// one block, which does the rest (sample_logits_candidate_list.cuh). The largest logits of 256
// segments of the row give the bound for candidates; only groups that reach it are read again.
// Logits that are equal by the thousand are counted instead. The tokens that the filters keep then
// race (race.cuh).
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s. If top-p alone
// keeps many tokens, or if probabilities are wanted, the weights are added up: 34 instructions an
// entry, 23 of them in exact::exp.
#include "sample_logits_kept.cuh"
#include "sample_logits_nucleus.cuh"

union Shared {
    Selection selection;
    CandidateList candidates;
    FinishList finishes;
    Nucleus::Race::Shared race;

    INLINE Shared() {}
};

// The state of a row between its first reading and its tokens. Functions that are not inlined take
// a copy: if they took a pointer, the state would be in local memory from the start, for every row.
template <typename T>
struct Sampling {
    const Params<T>& p;
    u32 index;
    Team team;
    Shared& shared;
    RaceShared& races;
    const Request& request;
    LogitRow<T> row;
    WarpRange range;
    bool fits;

    INLINE bool leader_memory() const { return team.piece() == 0 && team.lane == 0; }

    // Finds the largest logits of groups begin .. end again, if there was no room for those of all
    // groups.
    INLINE void survey_again(u32 begin, u32 end) const {
        float* const tops = races.tops[team.warp];
        if (row.make.mask == nullptr) {
            resurvey(LogitGroups<T, false>{row.row, nullptr, p.vocab}, tops, begin, end, team.lane);
        } else {
            resurvey(LogitGroups<T, true>{row.row, row.make.mask, p.vocab}, tops, begin, end,
                     team.lane);
        }
    }

    INLINE Draw draw() const { return request.draw(p); }

    // Whether the sum of the weights is needed.
    INLINE bool weighs() const {
        return p.probs.data != nullptr || p.processed_logprobs.data != nullptr;
    }

    // Writes the outputs of a row that draws no random number: one token, which is certain.
    INLINE void write_certain(u32 token) const {
        if (team.blocks.rank == 0) {
            for (u32 i = threadIdx.x; i < p.draws; i += SELECT_THREADS) {
                write_token(p, index, i, i == 0 ? token : NONE, 0.0f);
            }
        }
        write_one_kept(p, index, team.blocks, static_cast<i32>(token), true);
        if (p.probs.data == nullptr) return;
        const Tokens tokens(row);
        write_one_hot(p.probs[index], tokens.begin, tokens.end, team.lane, token);
    }

    // Writes zeros as probabilities of this warp's piece, if probabilities are wanted.
    INLINE void clear_probs() const {
        if (p.probs.data == nullptr) return;
        const Tokens tokens(row);
        write_zeros(p.probs[index], tokens.begin, tokens.end, team.lane);
    }

    // Writes the probabilities, which are not 0, of the tokens that `end_candidates` has kept;
    // `clear_probs` has written the zeros. All blocks call this last.
    INLINE void write_list_probs(const Options& options, const Scale& scale) const {
        if (p.probs.data == nullptr) return;
        team.blocks.sync();
        if (team.blocks.rank != 0) return;
        const CandidateList& candidates = shared.candidates;
        float* const to = p.probs[index];
        if (options.greedy) {
            if (threadIdx.x == 0) to[NONE - static_cast<u32>(candidates.sorted[0])] = 1.0f;
            return;
        }
        if (candidates.list[threadIdx.x] == NEVER) return;
        const float x = exact::value_of_key(static_cast<u32>(candidates.sorted[threadIdx.x] >> 32));
        to[static_cast<u32>(candidates.list[threadIdx.x])] =
            exact::mul(scale.weight(x), prob_factor(candidates.total));
    }

    // Writes the first tokens to finish, from `count` finishes that this block has listed.
    INLINE void write_first(const u64* finishes, u32 count, const LogProb& log_prob_of) const {
        if (p.draws == 1) {
            if (team.warp != 0) return;
            u64 first = NEVER;
#pragma unroll 1
            for (u32 i = team.lane; i < count; i += WARP) first = min(first, finishes[i]);
            first = warp_min(first);
            const u32 token = static_cast<u32>(first);
            if (team.lane != 0) return;
            write_token(p, index, 0, token, first == NEVER ? 0.0f : log_prob_of(row.entry(token)));
            return;
        }
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += SELECT_THREADS) {
            const u64 own = finishes[i];
            if (own == NEVER) continue;
            u32 rank = 0;
#pragma unroll 4
            for (u32 j = 0; j < count; ++j) rank += finishes[j] < own;
            const u32 token = static_cast<u32>(own);
            if (rank < p.draws) write_token(p, index, rank, token, log_prob_of(row.entry(token)));
        }
        // The places after the tokens that finished.
        u32 there = 0;
        for (u32 base = 0; base < count; base += SELECT_THREADS) {
            const u32 i = base + threadIdx.x;
            there += __syncthreads_count(i < count && finishes[i] != NEVER);
        }
        for (u32 i = there + threadIdx.x; i < p.draws; i += SELECT_THREADS) {
            write_token(p, index, i, NONE, 0.0f);
        }
    }

    // Writes the tokens that `race_candidates` has kept, in ascending order, and their number. By
    // the leading block.
    INLINE void write_kept_candidates(CandidateList& candidates) const {
        const bool stays = candidates.list[threadIdx.x] != NEVER;
        const u32 those = __ballot_sync(ALL_LANES, stays);
        __shared__ u32 of_warps[SELECT_WARPS];
        if (team.lane == 0) of_warps[team.warp] = __popc(those);
        __syncthreads();
        const SumsOfWarps<u32> sums(of_warps, SELECT_WARPS, team.lane);
        const u32 all = sums.all();
        const u32 place = sums.before(team.warp) + __popc(those & lanes_below());
        if (p.kept_counts != nullptr && threadIdx.x == 0) {
            p.kept_counts[index] = static_cast<i32>(all);
        }
        if (p.kept_tokens.data == nullptr) return;
        // Of more tokens than there is room for, the first in the order of logits are listed.
        const u32 listed = min(all, p.kept);
        const u32 token = static_cast<u32>(candidates.list[threadIdx.x]);
        // The noise is no longer needed.
        u32* const tokens = reinterpret_cast<u32*>(candidates.noise);
        if (stays) tokens[place] = token;
        __syncthreads();
        i32* const to = p.kept_tokens[index];
        if (stays && place < listed) {
            u32 rank = 0;
#pragma unroll 4
            for (u32 i = 0; i < listed; ++i) rank += tokens[i] < token;
            to[rank] = static_cast<i32>(token);
        }
        for (u32 i = listed + threadIdx.x; i < p.kept; i += SELECT_THREADS) to[i] = -1;
    }

    // Writes the first sorted tokens of a row at temperature 0.
    INLINE void write_sorted(const CandidateList& candidates, u32 count) const {
        for (u32 i = threadIdx.x; i < p.draws; i += SELECT_THREADS) {
            const u64 entry = i < count ? candidates.sorted[i] : 0;
            const bool there = static_cast<u32>(entry >> 32) > LOWEST_KEY;
            write_token(p, index, i, there ? NONE - static_cast<u32>(entry) : NONE,
                        i == 0 ? 0.0f : negative_infinity());
        }
    }

    // Ends a row whose candidates are all in the list of the leading block, `count` of them. Top-p
    // cuts at `limit`, or, if that is 0, at its share of the candidates' own sum.
    INLINE void end_candidates(u32 count, const Options& options, u64 limit,
                               const Scale& scale) const {
        CandidateList& candidates = shared.candidates;
        if (team.blocks.rank == 0) {
            const u32 max_kept = options.greedy      ? p.draws
                                 : options.top_k > 0 ? options.top_k
                                                     : count;
            const u32 first = min(count, max_kept);
            sort_candidates(candidates, count, first);
            if (options.greedy) {
                write_sorted(candidates, first);
                write_one_kept(p, index, Cluster::alone(),
                               static_cast<i32>(NONE - static_cast<u32>(candidates.sorted[0])),
                               true);
            } else {
                race_candidates(candidates, team, first, limit, options, scale, draw(), weighs());
                write_first(candidates.list, first, LogProb(scale, candidates.total));
                if (lists_kept(p)) write_kept_candidates(candidates);
            }
        }
    }

    // The race of the kept tokens, in the whole row.
    INLINE void race(const Kept& kept, const LogProb& log_prob_of) {
        const float least =
            kept.cut.all() ? negative_infinity() : exact::value_of_key(kept.cut.key);
        const Racers<LogitRow<T>, CutFilter> racers(draw(), row, kept.scale, kept.floor, least,
                                                   CutFilter{kept.cut});
        const auto again = [&](u32 begin, u32 end) { survey_again(begin, end); };
        if (p.draws == 1) {
            if (threadIdx.x == 0) races.begin_lists();
            __syncthreads();
            const uint4 high = first_noise(racers.draw, range.begin, team.lane);
            const u64 first = first_to_finish(racers, team, races, p.vocab, high, again);
            const u32 token = static_cast<u32>(first);
            if (leader_memory()) write_token(p, index, 0, token, log_prob_of(row.entry(token)));
            return;
        }
        // All threads have read what was in the list's memory before.
        team.blocks.sync();
        const u32 count =
            list_first(racers, team, races, shared.finishes, p.vocab, p.draws, again);
        if (team.blocks.rank == 0) write_first(shared.finishes.list, count, log_prob_of);
    }
};

// Writes the probabilities of the kept tokens; `total` is the sum of their weights.
template <typename T>
__device__ __noinline__ void write_kept_probs(Sampling<T> sampling, Kept kept, u64 total) {
    const FloatCut by(kept.cut);
    const float least = least_weight(kept.floor);
    const float factor = prob_factor(total);
    constexpr u32 N = LogitRow<T>::N;
    const auto probs_of = [&](const float(&entries)[N], u32 first, float(&probs)[N]) {
        kept.probs(by, entries, first, least, factor, probs);
    };
    write_probs(sampling.p, sampling.index, sampling.row, sampling.team.lane, probs_of);
}

// Writes the kept tokens of a row that the leading block did not end.
template <typename T>
__device__ __noinline__ void write_kept_row(Sampling<T> sampling, Kept kept) {
    // All blocks have read the lists in the memory of the selection.
    sampling.team.blocks.sync();
    list_kept_tokens(sampling.p, sampling.index, sampling.shared.selection, sampling.team,
                     sampling.row, kept, [](u32 token) { return static_cast<i32>(token); });
}

template <typename T>
__device__ __noinline__ void race_out_of_line(Sampling<T> sampling, Kept kept,
                                              LogProb log_prob_of) {
    sampling.race(kept, log_prob_of);
}

template <typename Row>
__device__ __noinline__ u64 sum_out_of_line(Kept kept, Row row, u32 lane) {
    return kept.sum(row, lane);
}

template <typename T>
__device__ __noinline__ void sample_certain(Sampling<T> sampling, u32 largest_key) {
    const Params<T>& p = sampling.p;
    Team& team = sampling.team;
    if (largest_key <= LOWEST_KEY) {
        if (sampling.leader_memory()) raise_of(p, sampling.index, NON_FINITE);
        sampling.write_certain(lowest_allowed(p, sampling.index, team.lane));
        return;
    }
    const float largest = exact::value_of_key(largest_key);
    const WarpRange& range = sampling.range;
    u32 first = NONE;
#pragma unroll 1
    for (u32 begin = range.begin; begin < range.end && first == NONE;) {
        const u32 end = min(begin + RaceShared::KEPT, range.end);
        if (!sampling.fits) sampling.survey_again(begin, end);
        const float* const tops = sampling.races.tops_of(team.warp, begin, p.vocab);
        first = first_equal(sampling.row, tops, begin, end, team.lane, largest);
        begin = end;
    }
    team.publish_relaxed(first);
    sampling.write_certain(static_cast<u32>(reduce_min(team)));
}

// The number of wanted tokens of a row's order: those that top-k keeps, 0 for all; at temperature
// 0, as many as the row draws.
template <typename T>
INLINE u32 wanted_of(const Params<T>& p, const Options& options) {
    return options.greedy ? min(p.draws, p.vocab) : options.top_k;
}

// The weight below which min-p drops tokens before the other filters; 0 if it does not come first.
template <typename T>
INLINE u64 first_floor(const Params<T>& p, const Options& options) {
    return options.greedy || p.min_p_first == 0 ? 0 : options.floor;
}

// Samples from a row by all blocks of the team together. `top` is the largest logit of the lane's
// groups. `leader_tried`: the leading block has tried to end the row and found too many equal
// logits.
template <typename T>
__device__ __noinline__ void sample_together(const Params<T>& p, u32 index, Team team,
                                             Shared& shared, RaceShared& races,
                                             const Request& request, LogitRow<T> row,
                                             WarpRange range, float top, bool leader_tried) {
    const bool fits = WarpRange::max_groups(p.vocab, team.pieces()) <= RaceShared::KEPT;
    const auto sampling = [&] {
        return Sampling<T>{p, index, team, shared, races, request, row, range, fits};
    };
    CandidateList& candidates = shared.candidates;
    const Options options(request, p.vocab);
    const u32 wanted = wanted_of(p, options);
    float* const tops = fits ? races.tops_of(team.warp, range.begin, p.vocab) : nullptr;
    team.publish_segment_max(key_of(top));
    const u32 largest_key = team.reduce_max(MAX_PIECES);
    if (largest_key > LOWEST_KEY && team.piece() == 0 && team.lane == 0) {
        raise_of(p, index, options.bits);
    }
    if (largest_key <= LOWEST_KEY || (options.greedy && p.draws == 1)) {
        return sample_certain(sampling(), largest_key);
    }
    const Scale scale = {exact::value_of_key(largest_key), options.inverse};
    // If min-p comes first, lighter tokens are no longer entries.
    float heavy = negative_infinity();
    const u64 floor = first_floor(p, options);
    if (floor > 0) {
        row.make.scale = scale;
        row.make.floor = floor;
        heavy = scale.least_entry(floor);
    }
    const bool by_rank = CandidateList::serves(wanted);
    const bool by_top_p = !options.greedy && options.top_k == 0 && options.top_p < 1ull << 32 &&
                          exact::finite(scale.largest);
    CutRoute route = CutRoute::SELECTED;
    TopPSums sums = {0, 0, false};
    if (by_rank || by_top_p) {
        const u32 own_segment =
            threadIdx.x < MAX_PIECES ? static_cast<u32>(team.published(threadIdx.x)) : 0;
        const u32 rank = by_rank ? wanted : CandidateList::LIKELY;
        const Bound reached(candidates, own_segment, rank, largest_key, Bound::STEPS);
        if (by_rank && leader_tried) {
            route = send_tied_first(candidates, team, row, wanted, own_segment, largest_key);
        } else if (by_rank) {
            route = send_first(candidates, team, row, tops, range, wanted,
                             exact::value_of_key(reached.key), heavy, own_segment, largest_key);
        } else if (reached.key == largest_key
                       ? options.top_p <= CandidateList::MAX_TOP_P
                       : reached.holds(candidates, scale, options.top_p, p.vocab)) {
            const OutOfLine<TopPSums> returned = sum_and_send_out_of_line(
                candidates, team, row, reached.key, largest_key, scale, options.top_p);
            team.exchanges = returned.exchanges;
            sums = returned.result;
            if (sums.sent) {
                route = CutRoute::SENT;
            } else if (sums.limit <= static_cast<u64>(sums.ties) << 40) {
                route = CutRoute::TIES;
            }
            // All threads have read the lists.
            __syncthreads();
        }
    }

    Kept kept = {scale, Cut{0, 0}, options.floor};
    if (route == CutRoute::SELECTED &&
        (options.greedy || options.top_k > 0 || options.top_p < 1ull << 32)) {
        Options cuts = options;
        if (options.greedy) cuts.top_k = wanted;
        const OutOfLine<Kept> returned =
            filter_out_of_line(shared.selection, team, row, cuts, scale);
        team.exchanges = returned.exchanges;
        kept = returned.result;
        if (options.greedy) {
            list_kept(candidates, team, row, kept.cut);
            route = CutRoute::LISTED;
        }
    }
    if (route == CutRoute::SENT || route == CutRoute::LISTED) {
        if (route == CutRoute::SENT && team.blocks.rank == 0) gather_candidates(candidates);
        sampling().end_candidates(route == CutRoute::SENT ? candidates.listed : wanted, options,
                                  sums.limit, scale);
        sampling().clear_probs();
        return sampling().write_list_probs(options, scale);
    }
    if (route == CutRoute::TIES) {
        // Keeps as many entries equal to the largest as reach the limit, those with the lowest
        // indices.
        const u64 those = (sums.limit + ONE - 1) >> 40;
        const auto equal = [&](float x, u32) { return static_cast<u64>(x == scale.largest); };
        team.publish(candidates.sorted[team.piece()]);
        u64 rest = those - 1;
        const u32 owner = team.piece_above(team.scan_published(), rest);
        const u32 last = team.has(owner) ? row.find(team, owner, rest, equal) : 0;
        team.publish(last);
        kept.cut = {largest_key, static_cast<u32>(team.published(owner)) + 1};
    }
    u64 total = ONE;
    if (sampling().weighs()) {
        team.publish(sum_out_of_line(kept, row, team.lane));
        total = team.scan_published().all;
    }
    race_out_of_line(sampling(), kept, LogProb(scale, total));
    if (p.probs.data != nullptr) write_kept_probs(sampling(), kept, total);
    if (lists_kept(p)) write_kept_row(sampling(), kept);
}

template <typename T>
INLINE void sample(const Params<T>& p) {
    __shared__ Team::Shared exchange;
    __shared__ Shared shared;
    __shared__ RaceShared races;
    __shared__ Request request;
    __shared__ LeaderSelect::Shared leader_memory;
    __shared__ Nucleus::Shared nucleus;
    const LeaderSelect leader_select(leader_memory);
    Team team(exchange);
    const u32 index = blockIdx.x >> (31 - __clz(team.blocks.size));
    if (is_padding(p.of_rows, index)) {
        write_one_kept(p, index, team.blocks, -1, false);
        return write_padding(p, index, team.blocks);
    }
    shared.candidates.begin();
    // Other blocks may list in this block's memory once they know that it has been cleared.
    if (team.blocks.size > 1) team.blocks.arrive_prepared();
    if (threadIdx.x == 0) request.fetch(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team, Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});
    const WarpRange range(p.vocab, team.piece(), team.pieces());
    const bool fits = WarpRange::max_groups(p.vocab, team.pieces()) <= RaceShared::KEPT;
    float* const tops = races.tops_of(team.warp, range.begin, p.vocab);
    const auto sampling = [&] {
        return Sampling<T>{p, index, team, shared, races, request, row, range, fits};
    };
    float top = negative_infinity();
    const auto keep = [&](u32 group, float its) {
        top = fmaxf(top, its);
        if (fits) tops[group - range.begin] = its;
    };
    float raw;
    if (mask == nullptr) {
        raw = LogitGroups<T, false>{row.row, nullptr, p.vocab}.survey(range.begin, range.end,
                                                                      team.lane, keep);
    } else {
        raw = LogitGroups<T, true>{row.row, mask, p.vocab}.survey(range.begin, range.end, team.lane,
                                                                  keep);
    }
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && team.lane == 0) raise_of(p, index, NON_FINITE);
    if (threadIdx.x == 0) Request::arrive();
    __syncthreads();
    if (team.blocks.size > 1) team.blocks.wait_started();
    const Options options(request, p.vocab);
    CandidateList& candidates = shared.candidates;
    const u32 wanted = wanted_of(p, options);
    const bool leader_tried = LeaderSelect::serves(wanted, p.vocab);
    if (leader_tried) {
        const u64 floor = first_floor(p, options);
        const MaskedLogits<T> logits = {row.row, mask, p.vocab};
        const u32 answer =
            team.blocks.rank == 0
                ? leader_select.find(candidates, races, logits, team, wanted, floor,
                                     options.inverse)
                : leader_select.ask(races, team, range, [&] { sampling().clear_probs(); });
        if (answer != 0) {
            const Scale scale = {exact::value_of_key(answer), options.inverse};
            if (team.blocks.rank == 0) {
                if (threadIdx.x == 0) raise_of(p, index, options.bits);
                sampling().end_candidates(candidates.listed, options, 0, scale);
                sampling().clear_probs();
            }
            return sampling().write_list_probs(options, scale);
        }
    }
    const bool one = p.draws == 1 && !sampling().weighs() && !lists_kept(p) &&
                     p.vocab <= RaceShared::IN_ORDER * GROUP;
    const bool whole = options.top_p == 1ull << 32 || first_floor(p, options) == 0;
    if (one && whole && !options.greedy && options.top_k == 0) {
        const bool has_histogram = uses_histogram(row, options);
        if (has_histogram) WeightHistogram::clear(races.groups);
        // The race's memory overlaps the candidate lists.
        __syncthreads();
        const Draw draw = request.draw(p);
        if (sample_nucleus(p, index, team, races, shared.race, nucleus, leader_memory, row, range,
                           options, draw, has_histogram)) {
            return;
        }
        __syncthreads();
        candidates.begin();
        team.blocks.sync();
    }
    sample_together(p, index, team, shared, races, request, row, range, top, leader_tried);
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_##dtype, sample<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
