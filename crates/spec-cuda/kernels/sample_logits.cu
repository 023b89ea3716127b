// sample_logits: the next token of each row of logits.
//
// A team of blocks owns a row (select.cuh). It reads the row, masked, and finds the
// largest logit on the way; a greedy row ends here. Then each warp sums up the weights
// of its piece, in units of 2^-40: integers, so their order is free. The block with the
// piece in which the running sum passes the random threshold searches that for the
// token. Filters come in between: top-k and top-p each cut the row (`select`), min-p is
// a comparison. Most often they leave little: what can be among the first k of a small
// top-k, or among what a top-p alone keeps where that is likely to be few, goes to one
// block, which does the rest (sample_logits_few.cuh). The largest logits of 256 groups of the row say
// from where on. Logits that tie by the thousand are counted instead.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s.
// A single row is latency: the row, a meeting for the largest logit, one for the
// sums, the search. Above some hundred rows it is arithmetic: 34 instructions an entry
// for its weight, of which 23 are exact::exp.
#include "sample_logits_few.cuh"

// What a selection weighs: 1 an entry, or its weight.
struct Weigher {
    Kept kept;
    bool counts;

    INLINE u64 operator()(float x, u32 key, u32 index) const {
        if (counts) return 1;
        return kept.cut.keeps(key, index) ? kept.scale.fixed(x) : 0;
    }

    INLINE bool keeps(u32 key, u32 index) const { return kept.cut.keeps(key, index); }

    INLINE u64 of(u32 key) const { return counts ? 1 : kept.scale.fixed(exact::value_of_key(key)); }

    template <typename Row>
    INLINE void add(Selection& s, u32 lane, const Row& row, const Linear& linear) const {
        constexpr u32 N = Row::N;
        if (counts) {
            const auto ones = [](const float(&entries)[N], u32, u64(&weights)[N]) {
                bool any = false;
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    weights[j] = entries[j] == entries[j] ? 1 : 0;
                    any = any || weights[j] != 0;
                }
                return any;
            };
            add_row(s, lane, row, linear, ones);
        } else {
            const FloatCut by(kept.cut);
            const auto shares = [&](const float(&entries)[N], u32 first, u64(&weights)[N]) {
                return kept.vector(by, entries, first, weights);
            };
            add_row(s, lane, row, linear, shares);
        }
    }
};

// How a row with filters is cut: by what was sent to the block that leads, or lies in its
// list already; among what equals the largest; or by selecting in the row itself.
enum class How { SENT, LISTED, TIES, SELECTED };

// What is left of a row after its filters, and the sum of it: cut by top-k, then by
// top-p, whatever of that is asked for, and rid of what min-p drops.
struct Filtered {
    Kept kept;
    Team::Sums sums;
};

template <typename Row>
INLINE Filtered filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    // What was in the selection's place has been read.
    __syncthreads();
    Kept kept = {scale, Cut{0, 0}, 0};
    // Beyond 28 temperatures below the largest, nothing weighs anything.
    const Linear linear = {scale.largest, exact::mul(scale.inverse, (SELECT_BINS - 1) / 28.0f)};
    const bool by_share = options.top_p < 1ull << 32;
    // One loop, so that there is one copy of the code.
#pragma unroll 1
    for (u32 step = options.top_k > 0 ? 0 : 1; step < 2; ++step) {
        if (step == 1 && !by_share) break;
        const bool counts = step == 0;
        kept.cut = select(selection, team, row, kept.cut, linear, Weigher{kept, counts},
                          [&](u64 sum) {
                              if (counts) return static_cast<u64>(options.top_k);
                              const u64 share = __umul64hi(sum, options.top_p << 32);
                              return max(share, static_cast<u64>(1));
                          });
    }
    kept.floor = options.floor;
    team.tell(kept.sum(row, team.lane));
    return {kept, team.sum_told()};
}

// What is called apart keeps its registers out of the way of the rows that go without:
// what came of it, and the meetings of the team until then.
template <typename Result>
struct Apart {
    Result result;
    u32 meetings;
};

template <typename Row>
__device__ __noinline__ Apart<Filtered> filter_apart(Selection& selection, Team team, Row row,
                                                     Options options, Scale scale) {
    const Filtered filtered = filter(selection, team, row, options, scale);
    return {filtered, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<bool> send_tied_apart(Few& few, Team team, Row row, u32 k,
                                                    u32 own_group, u32 largest_key) {
    const bool sent = send_tied(few, team, row, k, own_group, largest_key);
    return {sent, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<Shares> sum_and_send_apart(Few& few, Team team, Row row, u32 bound,
                                                         u32 largest_key, Scale scale, u64 top_p) {
    const Shares shares = sum_and_send(few, team, row, bound, largest_key, scale, top_p);
    return {shares, team.meetings};
}

union Shared {
    Selection selection;
    Few few;

    INLINE Shared() {}
};

template <typename T>
INLINE void sample(const Params<T>& p) {
    constexpr u32 N = Pack<T>::N;
    extern __shared__ float4 space[];
    __shared__ Team::Shared told;
    __shared__ Shared shared;
    __shared__ Request request;
    Team team(told);
    shared.few.begin();
    team.blocks.arrive();
    const u32 index = blockIdx.x / team.blocks.size;
    if (threadIdx.x == 0) request.fetch(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team,
                    p.cached != 0 ? reinterpret_cast<float*>(space) : nullptr,
                    Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});

    // The largest logit of those allowed, and of all.
    float top = negative_infinity();
    float raw_top = negative_infinity();
    bool odd = false;
    if (mask == nullptr) {
        // One of what is not a number makes it none.
        const auto visit = [&](const float(&values)[N], const float(&)[N], u32 first, bool whole) {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (whole || first + j < p.vocab) top = max_or_nan(top, values[j]);
            }
        };
        row.template enter<true>(team.lane, visit);
        odd = !(top <= LARGEST);
        if (__any_sync(ALL_LANES, top != top)) {
            top = negative_infinity();
            row.remake_cached(team.lane, [&](float(&entries)[N], u32 first) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (first + j < p.vocab) entries[j] = fmaxf(entries[j], negative_infinity());
                }
            });
            row.each(team.lane, [&](const float(&entries)[N], u32) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) top = fmaxf(top, entries[j]);
            });
        }
        raw_top = top;
    } else {
        const auto visit = [&](const float(&values)[N], const float(&entries)[N], u32 first,
                               bool whole) {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                // Nothing is never the larger one.
                top = fmaxf(top, entries[j]);
                raw_top = fmaxf(raw_top, values[j]);
                odd |= !(values[j] <= LARGEST) && (whole || first + j < p.vocab);
            }
        };
        row.template enter<false>(team.lane, visit);
    }
    if (__any_sync(ALL_LANES, odd) && team.lane == 0) raise(p.flags, NON_FINITE);
    const u32 own_key = __reduce_max_sync(ALL_LANES, key_of(top));
    if (threadIdx.x == 0) Request::arrive();
    team.blocks.wait();
    team.tell_largest(key_of(top), key_of(raw_top));
    const Options options(request, p.vocab);
    const u64 random = Draw(request.seed, request.position, Purpose::SAMPLE).bits();
    u32 key = 0;
    u32 raw_key = 0;
    // The first of what was told that is the largest.
    u32 told_first = 0;
#pragma unroll
    for (u32 i = 0; i < MAX_PIECES; i += WARP) {
        const u64 pair = team.told(i + team.lane);
        const u32 its = static_cast<u32>(pair >> 32);
        if (its > key) told_first = i + team.lane;
        key = max(key, its);
        raw_key = max(raw_key, static_cast<u32>(pair));
    }
    const u32 largest_key = __reduce_max_sync(ALL_LANES, key);
    told_first = __reduce_min_sync(ALL_LANES, key == largest_key ? told_first : NONE);
    const u32 first_piece = team.piece_of(told_first);
    const float raw_largest = exact::value_of_key(__reduce_max_sync(ALL_LANES, raw_key));
    const float largest = exact::value_of_key(largest_key);
    const bool leads = team.piece() == 0 && team.lane == 0;

    const Scale scale = {largest, options.inverse};
    const bool by_rank = !options.greedy && Few::serves(options.top_k);
    const bool by_share = !options.greedy && options.top_k == 0 && options.top_p < 1ull << 32 &&
                          exact::finite(largest);
    u32 own_group = 0;
    u32 bound = 0;
    bool likely = false;
    if (by_rank || by_share) {
        if (threadIdx.x < MAX_PIECES) own_group = static_cast<u32>(team.told(threadIdx.x) >> 32);
        const u32 rank = by_rank ? options.top_k : Few::LIKELY;
        const Bound reached(shared.few, own_group, rank, largest_key, Bound::STEPS);
        bound = reached.key;
        if (by_share && bound == largest_key) likely = options.top_p <= Few::MOST_SHARE;
        if (by_share && bound != largest_key) {
            likely = reached.holds(shared.few, scale, options.top_p, p.vocab);
        }
    }

    u64 raw_sum = 0;
    if (p.logprobs != nullptr) {
        const Scale plain = {raw_largest, 1.0f};
        team.tell(sum_raw(row, team.lane, plain));
        raw_sum = team.sum_told().all;
    }

    u32 token = NONE;
    if (largest_key <= LOWEST_KEY) {
        token = lowest_allowed(p, index, team.lane);
        if (leads) {
            raise(p.flags, NON_FINITE);
            write_token(p, index, token, raw_largest, raw_sum);
        }
    } else if (options.greedy) {
        if (leads) raise(p.flags, options.bits);
        if (team.has(first_piece)) {
            token = row.find(team, first_piece, 0, [&](float x, u32) {
                return static_cast<u64>(x == largest);
            });
            if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
        }
    } else {
        if (leads) raise(p.flags, options.bits);
        if (p.min_p_first != 0 && options.floor > 0) {
            row.make.scale = scale;
            row.make.floor = options.floor;
            row.remake_cached(team.lane, [&](float(&entries)[N], u32) { row.make.drop(entries); });
        }
        Few& few = shared.few;
        How how = How::SELECTED;
        Shares shares = {0, 0, false};
        if (by_rank) {
            const u32 sent = send_few(few, team, row, own_key, bound);
            if (sent >= options.top_k) {
                how = How::SENT;
            } else if (sent == 0) {
                const Apart<bool> tied =
                    send_tied_apart(few, team, row, options.top_k, own_group, largest_key);
                team.meetings = tied.meetings;
                if (tied.result) how = How::LISTED;
            }
        } else if (likely) {
            const Apart<Shares> apart =
                sum_and_send_apart(few, team, row, bound, largest_key, scale, options.top_p);
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
        Filtered filtered;
        if (how == How::SENT || how == How::LISTED) {
            if (team.blocks.rank == 0) {
                if (how == How::SENT) gather_few(few);
                const u32 count = how == How::SENT ? few.listed : options.top_k;
                const u32 kept = by_rank ? options.top_k : count;
                sort_few(few, count, kept);
                cut_few(few, team, kept, shares.limit, options, scale);
                token = draw_few(few, random);
                if (token != NONE) write_token(p, index, token, raw_largest, raw_sum);
            }
            if (p.probs.data == nullptr) return;
            team.blocks.sync();
            const Few* const there = team.blocks.of(&few, 0);
            filtered = {{scale, there->cut, options.floor}, {0, 0, there->total}};
            // All have read that before the block may end.
            team.blocks.sync();
        } else if (how == How::TIES) {
            // So many of what equals the largest, the lowest indices first.
            const u64 kept = (shares.limit + ONE - 1) >> 40;
            const auto tied = [&](float x, u32) { return static_cast<u64>(x == largest); };
            team.tell(few.sorted[team.piece()]);
            const Team::Sums sums = team.sum_told();
            u64 rest = exact::sample_threshold(random, kept << 40) >> 40;
            const u32 owner = team.piece_above(sums, rest);
            if (team.has(owner)) {
                token = row.find(team, owner, rest, tied);
                if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
            }
            if (p.probs.data == nullptr) return;
            rest = kept - 1;
            const u32 last_owner = team.piece_above(sums, rest);
            const u32 last = team.has(last_owner) ? row.find(team, last_owner, rest, tied) : 0;
            team.tell(last);
            const Cut cut = {largest_key, static_cast<u32>(team.told(last_owner)) + 1};
            filtered = {{scale, cut, options.floor}, {0, 0, kept << 40}};
        } else {
            if (options.filters()) {
                const Apart<Filtered> apart =
                    filter_apart(shared.selection, team, row, options, scale);
                team.meetings = apart.meetings;
                filtered = apart.result;
            } else {
                filtered.kept = {scale, Cut{0, 0}, 0};
                team.tell(sum_all<true>(row, team.lane, scale, NothingMore{}));
                filtered.sums = team.sum_told();
            }
            u64 rest = exact::sample_threshold(random, filtered.sums.all);
            const u32 owner = team.piece_above(filtered.sums, rest);
            if (team.has(owner)) {
                token = row.find(team, owner, rest, filtered.kept);
                if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
            }
        }
        const Kept& kept = filtered.kept;
        const u64 total = filtered.sums.all;
        // For units of 2^-40 instead of 2^-31.
        const float factor = exact::mul(exact::softmax::factor(total), 512.0f);
        write_probs(p, index, row, team.lane, [&](float x, u32 at) {
            return kept(x, at) > 0 ? exact::softmax::score(scale.weight(x), factor) : 0.0f;
        });
        return;
    }
    write_probs(p, index, row, team.lane, [&](float, u32 at) { return at == token ? 1.0f : 0.0f; });
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_##dtype, sample<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
