// sample_logits where requests may filter, or where probabilities are asked for of rows of 16 bits, with a mask or
// with several tokens, or, of rows with a mask, several tokens or their shares. Other rows go to
// sample_logits_plain.cu, to sample_logits_probs.cu where probabilities are asked for, or to
// sample_logits_told.cu where several tokens or shares are.
//
// A team of blocks owns a row (select.cuh). It reads the row, masked, and keeps the largest logit of each
// group of 64. Filters come first: top-k and top-p each cut the row (`select`), min-p is a comparison. Most
// often they leave little: what can be among the first k of a small top-k, or among what a top-p alone keeps
// where that is likely to be few, goes to one block, which does the rest (sample_logits_few.cuh). The
// largest logits of 256 segments of the row say from where on; only groups that reach it are read again.
// Logits that tie by the thousand are counted instead. Of what is left the tokens race (race.cuh).
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s. Where a top-p alone
// keeps much, or probabilities are asked for, weights are added up: 34 instructions an entry, of which 23
// are exact::exp.
#include "sample_logits_nucleus.cuh"

union Shared {
    Selection selection;
    Few few;
    FinishList finishes;
    Nucleus::Race::Shared race;

    INLINE Shared() {}
};

// A row between its first reading and its tokens. Functions that are not inlined take a copy: what
// they got a pointer to would be in memory from the start, for every row.
template <typename T>
struct Sampling {
    const Params<T>& p;
    u32 index;
    Team team;
    Shared& shared;
    RaceShared& races;
    const Request& request;
    LogitRow<T> row;
    Share share;
    bool fits;

    INLINE bool leads() const { return team.piece() == 0 && team.lane == 0; }

    // Finds the largest logits of some groups again, where there is no room for those of all.
    INLINE void survey_again(u32 begin, u32 end) const {
        float* const tops = races.tops[team.warp];
        if (row.make.mask == nullptr) {
            resurvey(LogitGroups<T, false>{row.row, nullptr, p.vocab}, tops, begin, end, team.lane);
        } else {
            resurvey(LogitGroups<T, true>{row.row, row.make.mask, p.vocab}, tops, begin, end, team.lane);
        }
    }

    INLINE Draw draw() const { return request.draw(p); }

    // Whether a sum of weights is needed.
    INLINE bool weighs() const { return p.probs.data != nullptr || p.processed_logprobs.data != nullptr; }

    // Writes what a row that draws nothing has: one certain token.
    INLINE void write_certain(u32 token) const {
        if (team.blocks.rank == 0) {
            for (u32 i = threadIdx.x; i < p.draws; i += SELECT_THREADS) {
                write_token(p, index, i, i == 0 ? token : NONE, 0.0f);
            }
        }
        if (p.probs.data == nullptr) return;
        const Tokens tokens(row);
        write_one_hot(p.probs[index], tokens.begin, tokens.end, team.lane, token);
    }

    // Writes zeros as probabilities of this warp's piece, if probabilities are asked for.
    INLINE void clear_probs() const {
        if (p.probs.data == nullptr) return;
        const Tokens tokens(row);
        write_zeros(p.probs[index], tokens.begin, tokens.end, team.lane);
    }

    // Writes the probabilities of what `end_few` has kept, which are not 0; `clear_probs` has written the zeros.
    // All blocks call this last.
    INLINE void share_few(const Options& options, const Scale& scale) const {
        if (p.probs.data == nullptr) return;
        team.blocks.sync();
        if (team.blocks.rank != 0) return;
        const Few& few = shared.few;
        float* const to = p.probs[index];
        if (options.greedy) {
            if (threadIdx.x == 0) to[NONE - static_cast<u32>(few.sorted[0])] = 1.0f;
            return;
        }
        if (few.list[threadIdx.x] == NEVER) return;
        const float x = exact::value_of_key(static_cast<u32>(few.sorted[threadIdx.x] >> 32));
        to[static_cast<u32>(few.list[threadIdx.x])] = exact::mul(scale.weight(x), share_factor(few.total));
    }

    // Writes the first of what is listed in this block as finishes, `count` of them.
    INLINE void write_first(const u64* finishes, u32 count, const LogShare& share_of) const {
        if (p.draws == 1) {
            if (team.warp != 0) return;
            u64 first = NEVER;
#pragma unroll 1
            for (u32 i = team.lane; i < count; i += WARP) first = min(first, finishes[i]);
            first = warp_min(first);
            const u32 token = static_cast<u32>(first);
            if (team.lane != 0) return;
            write_token(p, index, 0, token, first == NEVER ? 0.0f : share_of(row.entry(token)));
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
            if (rank < p.draws) write_token(p, index, rank, token, share_of(row.entry(token)));
        }
        // Behind those that finish.
        u32 there = 0;
        for (u32 base = 0; base < count; base += SELECT_THREADS) {
            const u32 i = base + threadIdx.x;
            there += __syncthreads_count(i < count && finishes[i] != NEVER);
        }
        for (u32 i = there + threadIdx.x; i < p.draws; i += SELECT_THREADS) {
            write_token(p, index, i, NONE, 0.0f);
        }
    }

    // Writes the first of what is sorted in this block, by a row at temperature 0.
    INLINE void write_sorted(const Few& few, u32 count) const {
        for (u32 i = threadIdx.x; i < p.draws; i += SELECT_THREADS) {
            const u64 entry = i < count ? few.sorted[i] : 0;
            const bool there = static_cast<u32>(entry >> 32) > LOWEST_KEY;
            write_token(p, index, i, there ? NONE - static_cast<u32>(entry) : NONE,
                        i == 0 ? 0.0f : negative_infinity());
        }
    }

    // Ends a row of which all that can be kept is in the list of the block that leads, `count` entries:
    // top-p keeps what lies before the limit, or its share of them where that is 0.
    INLINE void end_few(u32 count, const Options& options, u64 limit, const Scale& scale) const {
        Few& few = shared.few;
        if (team.blocks.rank == 0) {
            const u32 most = options.greedy ? p.draws : options.top_k > 0 ? options.top_k : count;
            const u32 first = min(count, most);
            sort_few(few, count, first);
            if (options.greedy) {
                write_sorted(few, first);
            } else {
                race_few(few, team, first, limit, options, scale, draw(), weighs());
                write_first(few.list, first, LogShare(scale, few.total));
            }
        }
    }

    // The race of what is kept, in the whole row.
    INLINE void race(const Kept& kept, const LogShare& share_of) {
        const float least = kept.cut.all() ? negative_infinity() : exact::value_of_key(kept.cut.key);
        const Racers<LogitRow<T>, KeepsCut> racers(draw(), row, kept.scale, kept.floor, least,
                                                   KeepsCut{kept.cut});
        const auto again = [&](u32 begin, u32 end) { survey_again(begin, end); };
        if (p.draws == 1) {
            if (threadIdx.x == 0) races.begin_lists();
            __syncthreads();
            const uint4 high = first_noise(racers.draw, share.begin, team.lane);
            const u64 first = first_to_finish(racers, team, races, p.vocab, high, again);
            const u32 token = static_cast<u32>(first);
            if (leads()) write_token(p, index, 0, token, share_of(row.entry(token)));
            return;
        }
        // What was in the list's place has been read.
        team.blocks.sync();
        const u32 count =
            list_first(racers, team, races, shared.finishes, p.vocab, p.draws, again);
        if (team.blocks.rank == 0) write_first(shared.finishes.list, count, share_of);
    }
};

// Writes the shares of what is kept, of a sum of weights.
template <typename T>
__device__ __noinline__ void write_shares(Sampling<T> sampling, Kept kept, u64 total) {
    const FloatCut by(kept.cut);
    const float least = least_weight(kept.floor);
    const float factor = share_factor(total);
    constexpr u32 N = LogitRow<T>::N;
    const auto shares_of = [&](const float(&entries)[N], u32 first, float(&shares)[N]) {
        kept.shares(by, entries, first, least, factor, shares);
    };
    write_probs(sampling.p, sampling.index, sampling.row, sampling.team.lane, shares_of);
}

template <typename T>
__device__ __noinline__ void race_apart(Sampling<T> sampling, Kept kept, LogShare share_of) {
    sampling.race(kept, share_of);
}

template <typename Row>
__device__ __noinline__ u64 sum_apart(Kept kept, Row row, u32 lane) {
    return kept.sum(row, lane);
}

template <typename T>
__device__ __noinline__ void sample_certain(Sampling<T> sampling, u32 largest_key) {
    const Params<T>& p = sampling.p;
    Team& team = sampling.team;
    if (largest_key <= LOWEST_KEY) {
        if (sampling.leads()) raise_of(p, sampling.index, NON_FINITE);
        sampling.write_certain(lowest_allowed(p, sampling.index, team.lane));
        return;
    }
    const float largest = exact::value_of_key(largest_key);
    const Share& share = sampling.share;
    u32 first = NONE;
#pragma unroll 1
    for (u32 begin = share.begin; begin < share.end && first == NONE;) {
        const u32 end = min(begin + RaceShared::KEPT, share.end);
        if (!sampling.fits) sampling.survey_again(begin, end);
        const float* const tops = sampling.races.tops_of(team.warp, begin, p.vocab);
        first = first_equal(sampling.row, tops, begin, end, team.lane, largest);
        begin = end;
    }
    team.pass(first);
    sampling.write_certain(static_cast<u32>(least_told(team)));
}

// How many of a row's order are wanted: those that top-k keeps, 0 for all; of a row at temperature 0, its draws.
template <typename T>
INLINE u32 wanted_of(const Params<T>& p, const Options& options) {
    return options.greedy ? min(p.draws, p.vocab) : options.top_k;
}

// The floor of weights that min-p sets before all other filters; 0 for none.
template <typename T>
INLINE u64 first_floor(const Params<T>& p, const Options& options) {
    return options.greedy || p.min_p_first == 0 ? 0 : options.floor;
}

// A row that all blocks of the team end together. `top` is the largest logit of the lane's groups; `led` says
// that the block that leads has tried and found too many logits alike.
template <typename T>
__device__ __noinline__ void sample_together(const Params<T>& p, u32 index, Team team, Shared& shared,
                                             RaceShared& races, const Request& request, LogitRow<T> row,
                                             Share share, float top, bool led) {
    const bool fits = Share::most(p.vocab, team.pieces()) <= RaceShared::KEPT;
    const auto sampling = [&] {
        return Sampling<T>{p, index, team, shared, races, request, row, share, fits};
    };
    Few& few = shared.few;
    const Options options(request, p.vocab);
    const u32 wanted = wanted_of(p, options);
    float* const tops = fits ? races.tops_of(team.warp, share.begin, p.vocab) : nullptr;
    team.pass_largest(key_of(top));
    const u32 largest_key = team.largest_told(MAX_PIECES);
    if (largest_key > LOWEST_KEY && team.piece() == 0 && team.lane == 0) raise_of(p, index, options.bits);
    if (largest_key <= LOWEST_KEY || (options.greedy && p.draws == 1)) {
        return sample_certain(sampling(), largest_key);
    }
    const Scale scale = {exact::value_of_key(largest_key), options.inverse};
    // Where min-p comes first, what is lighter is no entry any more.
    float heavy = negative_infinity();
    const u64 floor = first_floor(p, options);
    if (floor > 0) {
        row.make.scale = scale;
        row.make.floor = floor;
        heavy = scale.least_entry(floor);
    }
    const bool by_rank = Few::serves(wanted);
    const bool by_share = !options.greedy && options.top_k == 0 && options.top_p < 1ull << 32 &&
                          exact::finite(scale.largest);
    How how = How::SELECTED;
    Shares shares = {0, 0, false};
    if (by_rank || by_share) {
        const u32 own_segment =
            threadIdx.x < MAX_PIECES ? static_cast<u32>(team.told(threadIdx.x)) : 0;
        const u32 rank = by_rank ? wanted : Few::LIKELY;
        const Bound reached(few, own_segment, rank, largest_key, Bound::STEPS);
        if (by_rank && led) {
            how = send_tied_first(few, team, row, wanted, own_segment, largest_key);
        } else if (by_rank) {
            how = send_first(few, team, row, tops, share, wanted,
                             exact::value_of_key(reached.key), heavy, own_segment, largest_key);
        } else if (reached.key == largest_key ? options.top_p <= Few::MAX_SHARE
                                              : reached.holds(few, scale, options.top_p, p.vocab)) {
            const Apart<Shares> apart = sum_and_send_apart(few, team, row, reached.key, largest_key,
                                                           scale, options.top_p);
            team.meetings = apart.meetings;
            shares = apart.result;
            if (shares.sent) {
                how = How::SENT;
            } else if (shares.limit <= static_cast<u64>(shares.ties) << 40) {
                how = How::TIES;
            }
            // All have read the lists.
            __syncthreads();
        }
    }

    Kept kept = {scale, Cut{0, 0}, options.floor};
    if (how == How::SELECTED && (options.greedy || options.top_k > 0 || options.top_p < 1ull << 32)) {
        Options cuts = options;
        if (options.greedy) cuts.top_k = wanted;
        const Apart<Kept> apart = filter_apart(shared.selection, team, row, cuts, scale);
        team.meetings = apart.meetings;
        kept = apart.result;
        if (options.greedy) {
            list_kept(few, team, row, kept.cut);
            how = How::LISTED;
        }
    }
    if (how == How::SENT || how == How::LISTED) {
        if (how == How::SENT && team.blocks.rank == 0) gather_few(few);
        sampling().end_few(how == How::SENT ? few.listed : wanted, options, shares.limit, scale);
        sampling().clear_probs();
        return sampling().share_few(options, scale);
    }
    if (how == How::TIES) {
        // So many of what equals the largest, the lowest indices first.
        const u64 those = (shares.limit + ONE - 1) >> 40;
        const auto equal = [&](float x, u32) { return static_cast<u64>(x == scale.largest); };
        team.tell(few.sorted[team.piece()]);
        u64 rest = those - 1;
        const u32 owner = team.piece_above(team.sum_told(), rest);
        const u32 last = team.has(owner) ? row.find(team, owner, rest, equal) : 0;
        team.tell(last);
        kept.cut = {largest_key, static_cast<u32>(team.told(owner)) + 1};
    }
    u64 total = ONE;
    if (sampling().weighs()) {
        team.tell(sum_apart(kept, row, team.lane));
        total = team.sum_told().all;
    }
    race_apart(sampling(), kept, LogShare(scale, total));
    if (p.probs.data != nullptr) write_shares(sampling(), kept, total);
}

template <typename T>
INLINE void sample(const Params<T>& p) {
    __shared__ Team::Shared told;
    __shared__ Shared shared;
    __shared__ RaceShared races;
    __shared__ Request request;
    __shared__ Lead::Shared leads;
    __shared__ Nucleus::Shared nucleus;
    const Lead lead(leads);
    Team team(told);
    const u32 index = blockIdx.x >> (31 - __clz(team.blocks.size));
    if (is_padding(p.of_rows, index)) return write_padding(p, index, team.blocks);
    shared.few.begin();
    // Others may list in this block's memory once they have seen it cleared.
    if (team.blocks.size > 1) team.blocks.arrive_prepared();
    if (threadIdx.x == 0) request.fetch(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team, Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});
    const Share share(p.vocab, team.piece(), team.pieces());
    const bool fits = Share::most(p.vocab, team.pieces()) <= RaceShared::KEPT;
    float* const tops = races.tops_of(team.warp, share.begin, p.vocab);
    const auto sampling = [&] {
        return Sampling<T>{p, index, team, shared, races, request, row, share, fits};
    };
    float top = negative_infinity();
    const auto keep = [&](u32 group, float its) {
        top = fmaxf(top, its);
        if (fits) tops[group - share.begin] = its;
    };
    float raw;
    if (mask == nullptr) {
        raw = LogitGroups<T, false>{row.row, nullptr, p.vocab}.survey(share.begin, share.end, team.lane,
                                                                      keep);
    } else {
        raw = LogitGroups<T, true>{row.row, mask, p.vocab}.survey(share.begin, share.end, team.lane,
                                                                  keep);
    }
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && team.lane == 0) raise_of(p, index, NON_FINITE);
    if (threadIdx.x == 0) Request::arrive();
    __syncthreads();
    if (team.blocks.size > 1) team.blocks.wait_started();
    const Options options(request, p.vocab);
    Few& few = shared.few;
    const u32 wanted = wanted_of(p, options);
    const bool led = Lead::serves(wanted, p.vocab);
    if (led) {
        const u64 floor = first_floor(p, options);
        const MaskedLogits<T> logits = {row.row, mask, p.vocab};
        const u32 answer = team.blocks.rank == 0
                               ? lead.find(few, races, logits, team, wanted, floor, options.inverse)
                               : lead.ask(races, team, share, [&] { sampling().clear_probs(); });
        if (answer != 0) {
            const Scale scale = {exact::value_of_key(answer), options.inverse};
            if (team.blocks.rank == 0) {
                if (threadIdx.x == 0) raise_of(p, index, options.bits);
                sampling().end_few(few.listed, options, 0, scale);
                sampling().clear_probs();
            }
            return sampling().share_few(options, scale);
        }
    }
    const bool one = p.draws == 1 && !sampling().weighs() && p.vocab <= RaceShared::IN_ORDER * GROUP;
    const bool whole = options.top_p == 1ull << 32 || first_floor(p, options) == 0;
    if (one && whole && !options.greedy && options.top_k == 0) {
        const bool tallied = tallies(row, options);
        if (tallied) Tally::clear(races.groups);
        // The list of the race lies where lists of `few` begin.
        __syncthreads();
        const Draw draw = request.draw(p);
        if (sample_nucleus(p, index, team, races, shared.race, nucleus, leads, row, share, options, draw,
                           tallied)) {
            return;
        }
        __syncthreads();
        few.begin();
        team.blocks.sync();
    }
    sample_together(p, index, team, shared, races, request, row, share, top, led);
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_##dtype, sample<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
