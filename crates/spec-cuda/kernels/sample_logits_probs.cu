// sample_logits where every row draws one token from all tokens, but for what min-p drops, or takes the
// likeliest, and where the distribution that the token was drawn from is asked for.
//
// A block or a cluster of blocks owns a row, and each warp has a share of it:
//
//     survey     Each warp reads its share once, as in sample_logits_plain.cu: the largest logit of each group
//                of 64 tokens and the noise of the groups go to the leading block. As many logits of 32 bits
//                as there is room for stay in shared memory.
//     largest    Each warp tells all blocks the largest logit of its share: weights are relative to the row's.
//     weights    Each warp adds up the exact weights of its share. Weights take the place of their logits in
//                shared memory; logits that had no room are read again, and their weights stored where their
//                probabilities belong.
//     sum        Each warp tells all blocks its sum.
//     race       The leading block finds the token (race_lead.cuh). Its warps have smaller shares, so that it
//                does so while the other blocks still add up and write.
//     shares     Each warp multiplies its weights by one factor, and writes them.
//
// Bytes: the logits and the probabilities once, 32 * 8 * 128256 = 32.8 MB at 32 rows: 7.9 us at 4.15 TB/s. A
// weight takes 27 instructions, of which 22 are the exact exponential: 33 million weights, of 256 rows, 32 us.
#include "race_lead.cuh"
#include "sample_logits_row.cuh"

// Neighbouring tokens that a lane weighs together, and how many of such quads it has on their way.
constexpr u32 QUAD = 4;
constexpr u32 QUADS = 4;
// Tokens that a warp weighs in a step.
constexpr u32 STEP = QUADS * QUAD * WARP;
// Quads of groups, of 256 tokens each, that a block reads, weighs and writes in the time of a race.
constexpr u32 RACE = 64;

template <u32 BYTES>
struct Word;
template <>
struct Word<8> {
    using Type = uint2;
};
template <>
struct Word<16> {
    using Type = uint4;
};

// Four neighbouring logits.
template <typename T>
union Quad {
    using Raw = typename Word<QUAD * sizeof(T)>::Type;

    Raw raw;
    T items[QUAD];

    INLINE Quad() {}
};

// A lane's sum of weights in units of 2^-40. A lane has 512 weights at most, of 20 bits and 20 bits each.
struct Units {
    u32 high = 0;
    u32 low = 0;
    // What stands above the bits of all weights that were added.
    u32 above = 0;

    INLINE void add(float weight) {
        const Split split(weight);
        high += split.high;
        low += split.low;
        above += SPLIT_BITS;
    }
    INLINE u64 all() const { return (static_cast<u64>(high - above) << 20) + (low - above); }
};

// The weights of a warp's share of a row.
template <typename T>
struct Weights {
    // Whether logits stay in shared memory from the survey on. Rows of 16 bits are short enough for L2.
    static constexpr bool KEEPS_LOGITS = sizeof(T) == sizeof(float);
    // Tokens of which a warp has one quad a lane.
    static constexpr u32 LANES_QUADS = QUAD * WARP;

    // What a lane has read of a step of the warp.
    struct Lane {
        Quad<T> quads[QUADS];
    };

    const T* row;
    float* probs;
    // The largest logit of each group of the row.
    const float* tops;
    // Shared memory for the tokens before `kept_end`: for their logits, if logits are kept, and then for their
    // weights. Each lane has the quads there that it reads of the row.
    float4* kept;
    u32 lane;
    // The warp's tokens; those before `whole` are read and written four at a time.
    u32 begin;
    u32 kept_end;
    u32 whole;
    u32 end;
    Scale scale;
    // The least weight that counts; logits below `heavy` weigh less.
    float least;
    float heavy;

    // `room` is shared memory for each warp, in bytes.
    INLINE Weights(const T* logits, float* to, const float* of_groups, const Share& share, u32 vocab, float4* of_warps,
                   u32 room)
        : row(logits), probs(to), tops(of_groups), kept(of_warps + threadIdx.x / WARP * (room / sizeof(float4))),
          lane(lane_id()), begin(share.begin * GROUP), end(min(share.end * GROUP, vocab)) {
        const bool aligned = reinterpret_cast<u64>(row) % 16 == 0 && reinterpret_cast<u64>(probs) % 16 == 0;
        whole = aligned ? max(begin, end / GROUP * GROUP) : begin;
        const u32 fit = room / sizeof(float);
        kept_end = min(whole, begin + fit / LANES_QUADS * LANES_QUADS);
    }

    // Where a lane has the i-th of its quads in the step of tokens first and on.
    INLINE u32 place(u32 first, u32 i) const { return first + (i * WARP + lane) * QUAD; }

    INLINE float4& slot(u32 at) const { return kept[(at - begin) / QUAD]; }

    // Reads a quad, for the last time; past the end, the last quad.
    INLINE void read(Quad<T>& quad, u32 at) const {
        quad.raw = __ldcs(reinterpret_cast<const typename Quad<T>::Raw*>(row + min(at, whole - QUAD)));
    }

    // Begins to read the step of tokens first and on.
    INLINE void read_step(Lane& own, u32 first) const {
        if (first >= whole) return;
#pragma unroll
        for (u32 i = 0; i < QUADS; ++i) read(own.quads[i], place(first, i));
    }

    // What the row's largest logit and the request say of weights.
    INLINE void weigh_by(const Scale& by, u64 floor) {
        scale = by;
        least = least_weight(floor);
        heavy = scale.least_entry(max(floor, 1ull));
        if (!exact::finite(scale.largest)) whole = kept_end = begin;
    }

    // A weight, where the largest logit is finite; 0 for a weight that does not count.
    INLINE float weight(float x) const {
        const float w = exp_of_units(scale.below(x));
        return w >= least ? w : 0.0f;
    }

    // The same, whatever the largest logit is.
    INLINE float any_weight(u32 token) const {
        const float x = to_f32(__ldg(row + token));
        return x == scale.largest ? 1.0f : weight(x);
    }

    // Whether no logit of a step weighs enough to count.
    INLINE bool is_light(u32 first) const {
        const u32 group = first / GROUP + lane;
        const bool has = lane < STEP / GROUP && group * GROUP < end;
        return !__any_sync(ALL_LANES, has && !(tops[group] < heavy));
    }

    INLINE float4 weights(const Quad<T>& quad) const {
        return make_float4(weight(to_f32(quad.items[0])), weight(to_f32(quad.items[1])),
                           weight(to_f32(quad.items[2])), weight(to_f32(quad.items[3])));
    }

    // visit(index of the first, weights) for the lane's quads of tokens `from` .. `whole`, of which `read_step` has
    // begun to read the first; zero(index of the first) where no weight of the whole step counts.
    template <typename Visit, typename Zero>
    INLINE void each(Lane& own, u32 from, Visit&& visit, Zero&& zero) const {
#pragma unroll 1
        for (u32 first = from; first < whole; first += STEP) {
            const bool light = is_light(first);
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                const u32 at = place(first, i);
                if (light) {
                    if (at < whole) zero(at);
                } else if (at < whole) {
                    visit(at, weights(own.quads[i]));
                }
                read(own.quads[i], at + STEP);
            }
        }
    }

    // visit(index of the first, what is kept of the quad) for the lane's quads that are kept; zero(index of the
    // first) where no weight of the whole step counts.
    template <typename Visit, typename Zero>
    INLINE void each_kept(Visit&& visit, Zero&& zero) const {
#pragma unroll 1
        for (u32 first = begin; first < kept_end; first += STEP) {
            const bool light = is_light(first);
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                const u32 at = place(first, i);
                if (at >= kept_end) break;
                if (light) {
                    zero(at);
                } else {
                    visit(at, slot(at));
                }
            }
        }
    }

    // Of the tokens that are read four at a time, the first whose logit is not kept.
    INLINE u32 unkept() const { return KEEPS_LOGITS ? kept_end : begin; }

    // The warp's sum in units of 2^-40. `own` has begun to read the step from `unkept` on.
    INLINE u64 sum(Lane& own) const {
        Units units;
        const auto add = [&](const float4& w) {
            units.add(w.x);
            units.add(w.y);
            units.add(w.z);
            units.add(w.w);
        };
        const auto nothing = [](u32) {};
        if constexpr (KEEPS_LOGITS) {
            const auto weigh = [&](u32, float4& kept_of_quad) {
                Quad<T> quad;
                quad.raw = reinterpret_cast<const uint4&>(kept_of_quad);
                kept_of_quad = weights(quad);
                add(kept_of_quad);
            };
            each_kept(weigh, nothing);
        }
        const auto visit = [&](u32 at, const float4& w) {
            add(w);
            if (at < kept_end) {
                slot(at) = w;
            } else {
                *reinterpret_cast<float4*>(probs + at) = w;
            }
        };
        const auto zero = [&](u32 at) {
            if (at >= kept_end) store(at, make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f);
        };
        each(own, unkept(), visit, zero);
#pragma unroll 4
        for (u32 token = whole + lane; token < end; token += WARP) {
            const float w = any_weight(token);
            units.add(w);
            probs[token] = w;
        }
        return warp_sum(units.all());
    }

    // Probabilities are not read again soon: logits stay in L2.
    INLINE void store(u32 at, const float4& w, float factor) const {
        __stcs(reinterpret_cast<float4*>(probs + at),
               make_float4(exact::mul(w.x, factor), exact::mul(w.y, factor), exact::mul(w.z, factor),
                           exact::mul(w.w, factor)));
    }

    // Writes the probabilities. Each lane has itself stored the weights that it reads.
    INLINE void write(float factor) const {
        const auto visit = [&](u32 at, const float4& w) { store(at, w, factor); };
        const auto zero = [&](u32 at) { store(at, make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f); };
        each_kept(visit, zero);
#pragma unroll 1
        for (u32 first = kept_end; first < whole; first += STEP) {
            if (is_light(first)) continue;
            float4 own[QUADS];
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                own[i] = __ldcs(reinterpret_cast<const float4*>(probs + min(place(first, i), whole - QUAD)));
            }
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                if (place(first, i) < whole) store(place(first, i), own[i], factor);
            }
        }
#pragma unroll 1
        for (u32 first = whole + lane; first < end; first += QUADS * WARP) {
            float own[QUADS];
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) own[i] = probs[min(first + i * WARP, end - 1)];
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                if (first + i * WARP < end) probs[first + i * WARP] = exact::mul(own[i], factor);
            }
        }
    }
};

// What the survey picks for the noise (picks.cuh), and keeps of the logits for `Weights`.
template <typename T, typename Row>
struct Keeping {
    const Picks<Row>& picks;
    const Weights<T>& weights;

    struct Wanted {
        typename Picks<Row>::Wanted wanted;
        const Weights<T>& weights;
        // The first of the groups that the warp has read.
        u32 group;

        // `i` counts the quads of the warp's lanes, one of each lane.
        template <typename Pack>
        INLINE void operator()(u32 i, Pack&& pack) const {
            wanted(i, pack);
            if constexpr (Weights<T>::KEEPS_LOGITS) {
                const u32 at = weights.place(group * GROUP, i);
                if (at < weights.kept_end) reinterpret_cast<uint4&>(weights.slot(at)) = pack(0);
            }
        }
    };

    INLINE Wanted operator()(u32 group) const { return {picks(group), weights, group}; }
};

// The groups of the warp `piece` of a cluster: those of the leading block are fewer by what a race costs.
INLINE Share share_of(u32 vocab, u32 piece, u32 blocks) {
    Share share(vocab, piece, SELECT_WARPS);
    if (blocks == 1) return share;
    const u32 groups = (vocab + GROUP - 1) / GROUP;
    const u32 quads = (groups + 3) / 4;
    const u32 each = (quads + RACE) / blocks;
    const u32 leading = each > RACE ? each - RACE : 0;
    const auto start = [&](u32 of) {
        const u32 others = of < SELECT_WARPS ? 0 : of - SELECT_WARPS;
        const u32 before = leading * min(of, SELECT_WARPS) / SELECT_WARPS +
                           (quads - leading) * others / ((blocks - 1) * SELECT_WARPS);
        return min(before * 4, groups);
    };
    share.begin = start(piece);
    share.end = start(piece + 1);
    return share;
}

// In the leading block: waits until what `RaceLead::send` of all other blocks brings has come. By the whole block.
INLINE void await_race(const RaceLead& lead, const Senders& blocks, Arrivals& arrivals, u32 vocab) {
    if (blocks.size > 1) {
        if (threadIdx.x == 0) {
            const u32 sent = (lead.groups + 3) / 4 - share_of(vocab, SELECT_WARPS, blocks.size).begin / 4;
            arrivals.expect(sent * 24 + (blocks.size - 1) * SELECT_WARPS * 8);
        }
        arrivals.wait(0);
    }
    __syncthreads();
}

template <typename T>
INLINE void sample_probs(const Params<T>& p) {
    using Row = LogitGroups<T, false, 8>;
    // The largest logit of each group, and where the block that leads gets those of the others; then room for
    // logits and weights. What has no array of a fixed size leaves room for more of them.
    extern __shared__ float4 memory[];
    float* const tops = reinterpret_cast<float*>(memory);
    const u32 quads_of_tops = (p.vocab + 4 * GROUP - 1) / (4 * GROUP);
    __shared__ RaceLead::Shared shared;
    __shared__ Arrivals arrivals;
    __shared__ Team::Shared told;
    // A copy for each warp, which draws noise before all warps of the block meet.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ PicksOfWarp picks_of[SELECT_WARPS];
    Team team(told);
    const Senders& blocks = team.blocks;
    const u32 index = blockIdx.x / blocks.size;
    const RaceLead lead(shared, tops, p.vocab);
    Request& request = requests[lead.warp];
    if (lead.lane == 0) request.fetch_plain(p, index);
    // While the first logits are on their way.
    const auto begin = [&] {
        if (blocks.size > 1) RaceLead::open(blocks, arrivals);
        if (threadIdx.x == 0) shared.begin();
        Request::arrive();
        __syncwarp();
    };
    const Row row = {p.logits[index], nullptr, p.vocab};
    const u32 piece = team.piece();
    const Share share = share_of(p.vocab, piece, blocks.size);
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    const u32 room = (bytes / sizeof(float4) - quads_of_tops) / SELECT_WARPS * sizeof(float4);
    Weights<T> weights(row.row, p.probs[index], tops, share, p.vocab, memory + quads_of_tops, room);
    const KeepsAll keeps;
    const Picks<Row> picks(picks_of[lead.warp], row, share.begin, share.end);
    RaceLead::Noise<Picks<Row>, KeepsAll> noise(lead, picks, share, keeps);
    float top = negative_infinity();
    const auto visit = [&](u32 group, float its) {
        tops[group] = its;
        top = fmaxf(top, its);
    };
    const auto meanwhile = [&](u32 group) {
        if (group == share.begin) begin();
        if (group >= noise.next && request.draws()) noise.advance(request.draw(p), request.inverse());
    };
    // Where `survey` reads nothing ahead.
    if (row.streamed(share.begin, share.end) == share.begin) begin();
    const Keeping<T, Row> keeping = {picks, weights};
    const float raw = row.survey(share.begin, share.end, lead.lane, visit, Unseen{}, meanwhile, keeping);
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && lead.lane == 0) raise(p.flags, NON_FINITE);
    lead.fill_up(share);
    const Options options(request);
    const Draw draw = request.draw(p);
    if (blocks.size > 1) blocks.wait_started();
    typename Weights<T>::Lane own;
    // While the largest logits are on their way.
    team.pass(__reduce_max_sync(ALL_LANES, key_of(top)), [&] {
        if (!options.greedy) {
            weights.read_step(own, weights.unkept());
            noise.finish(draw, options.inverse, piece);
        }
        if (blocks.rank != 0) lead.send(blocks, arrivals, share, piece);
    });
    const u32 largest_key = team.largest_told(team.pieces());
    const float largest = exact::value_of_key(largest_key);
    const bool lowest = largest_key <= LOWEST_KEY;
    u32 token = 0;
    float logprob = 0.0f;
    if (lowest || options.greedy) {
        if (!lowest) {
            __syncwarp();
            team.pass(first_equal(row, tops + share.begin, share.begin, share.end, lead.lane, largest));
            token = static_cast<u32>(least_told(team));
        }
        write_one_hot(weights.probs, weights.begin, weights.end, lead.lane, token);
        if (blocks.rank != 0) return;
        await_race(lead, blocks, arrivals, p.vocab);
    } else {
        const Scale scale = {largest, options.inverse};
        weights.weigh_by(scale, options.floor);
        team.pass(weights.sum(own), [&] {
            if (blocks.rank != 0) return;
            await_race(lead, blocks, arrivals, p.vocab);
            const RaceLead::Front front = lead.front<false>(options.inverse, team.pieces());
            const Racers<Row, KeepsAll> racers(draw, row, scale, options.floor, negative_infinity(), KeepsAll{});
            token = static_cast<u32>(lead.winner(racers, team.pieces(), front.early));
        });
        const u64 total = team.total_told();
        weights.write(share_factor(total));
        if (p.processed_logprobs.data != nullptr) logprob = LogShare(scale, total)(row.entry(token));
    }
    if (threadIdx.x != 0 || blocks.rank != 0) return;
    // Where the logits change during the call, there may be none.
    if (token >= p.vocab) token = 0;
    raise(p.flags, lowest ? NON_FINITE : options.bits);
    write_token(p, index, 0, token, logprob);
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_probs_##dtype, sample_probs<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
