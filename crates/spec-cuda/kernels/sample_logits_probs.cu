// sample_logits where every row draws one token from all tokens, but for what min-p drops, or takes the
// likeliest, and where the distribution that the token was drawn from is asked for. Logits are f32; rows of
// 16 bits go to sample_logits.cu.
//
// A block or a cluster of blocks owns a row, and each warp has a share of it:
//
//     survey     Each warp reads its share once, as in sample_logits_plain.cu: the largest logit of each group
//                of 64 tokens and the noise of the groups go to the leading block. As many logits as there
//                is room for stay in shared memory.
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
#include "sample_logits_plain.cuh"
#include "sample_logits_row.cuh"

// Neighbouring tokens that a lane weighs together, and how many of such quads it has on their way.
constexpr u32 QUAD = 4;
constexpr u32 QUADS = 4;
// Tokens that a warp weighs in a step.
constexpr u32 STEP = QUADS * QUAD * WARP;
// Quads of groups, of 256 tokens each, that a block reads, weighs and writes in the time of a race.
constexpr u32 RACE = 64;

// With eight reads of a lane on their way.
using PlainRow = LogitGroups<float, false, 8>;

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
struct Weights {
    // Tokens of which a warp has one quad a lane.
    static constexpr u32 LANES_QUADS = QUAD * WARP;

    // What a lane has read of a step of the warp.
    struct Lane {
        float4 quads[QUADS];
    };

    const float* row;
    float* probs;
    // The largest logit of each group of the row.
    const float* tops;
    // Shared memory for the tokens before `kept_end`: for their logits, and then for their weights. Each lane has
    // the quads there that it reads of the row.
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
    INLINE Weights(const float* logits, float* to, const float* of_groups, const Share& share, u32 vocab,
                   float4* of_warps, u32 room)
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
    INLINE void read(float4& quad, u32 at) const {
        quad = __ldcs(reinterpret_cast<const float4*>(row + min(at, whole - QUAD)));
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
        const float x = __ldg(row + token);
        return x == scale.largest ? 1.0f : weight(x);
    }

    // Whether no logit of a step weighs enough to count.
    INLINE bool is_light(u32 first) const {
        const u32 group = first / GROUP + lane;
        const bool has = lane < STEP / GROUP && group * GROUP < end;
        return !__any_sync(ALL_LANES, has && !(tops[group] < heavy));
    }

    INLINE float4 weights(const float4& logits) const {
        return make_float4(weight(logits.x), weight(logits.y), weight(logits.z), weight(logits.w));
    }

    // visit(index of the first, weights) for the lane's quads that are not kept, of which `read_step` has begun to
    // read the first; zero(index of the first) where no weight of the whole step counts.
    template <typename Visit, typename Zero>
    INLINE void each_unkept(Lane& own, Visit&& visit, Zero&& zero) const {
#pragma unroll 1
        for (u32 first = kept_end; first < whole; first += STEP) {
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

    // The warp's sum in units of 2^-40. `own` has begun to read the step from `kept_end` on.
    INLINE u64 sum(Lane& own) const {
        Units units;
        const auto add = [&](const float4& w) {
            units.add(w.x);
            units.add(w.y);
            units.add(w.z);
            units.add(w.w);
        };
        const auto weigh = [&](u32, float4& quad) {
            quad = weights(quad);
            add(quad);
        };
        each_kept(weigh, [](u32) {});
        const auto visit = [&](u32 at, const float4& w) {
            add(w);
            *reinterpret_cast<float4*>(probs + at) = w;
        };
        const auto zero = [&](u32 at) { store(at, make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f); };
        each_unkept(own, visit, zero);
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
struct Keeping {
    const Picks<PlainRow>& picks;
    const Weights& weights;

    struct Wanted {
        typename Picks<PlainRow>::Wanted wanted;
        const Weights& weights;
        // The first of the groups that the warp has read.
        u32 group;

        // `i` counts the quads of the warp's lanes, one of each lane.
        template <typename Pack>
        INLINE void operator()(u32 i, Pack&& pack) const {
            wanted(i, pack);
            const u32 at = weights.place(group * GROUP, i);
            if (at < weights.kept_end) reinterpret_cast<uint4&>(weights.slot(at)) = pack(0);
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

// Writes the probabilities of a row that takes its likeliest token, or of a row without any likely one, which
// takes the first; and returns the token. By all blocks.
INLINE u32 share_certain(Team& team, const PlainRow& row, const Weights& weights, const Share& share, u32 largest_key) {
    u32 token = 0;
    if (largest_key > LOWEST_KEY) {
        const float largest = exact::value_of_key(largest_key);
        __syncwarp();
        team.pass(first_equal(row, weights.tops + share.begin, share.begin, share.end, weights.lane, largest));
        token = static_cast<u32>(least_told(team));
    }
    write_one_hot(weights.probs, weights.begin, weights.end, weights.lane, token);
    return token;
}

// Bytes of dynamic shared memory of this block.
INLINE u32 dynamic_shared() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

INLINE void sample_probs(const Params<float>& p) {
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
    if (is_padding(p.of_rows, index)) return write_padding(p, index, blocks);
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
    const PlainRow row = {p.logits[index], nullptr, p.vocab};
    const u32 piece = team.piece();
    const Share share = share_of(p.vocab, piece, blocks.size);
    const u32 room = (dynamic_shared() / sizeof(float4) - quads_of_tops) / SELECT_WARPS * sizeof(float4);
    Weights weights(row.row, p.probs[index], tops, share, p.vocab, memory + quads_of_tops, room);
    const KeepsAll keeps;
    const Picks<PlainRow> picks(picks_of[lead.warp], row, share.begin, share.end);
    RaceLead::Noise<Picks<PlainRow>, KeepsAll> noise(lead, picks, share, keeps);
    float top = negative_infinity();
    const auto visit = [&](u32 group, float its) {
        tops[group] = its;
        top = fmaxf(top, its);
    };
    const Keeping keeping = {picks, weights};
    survey_plain(p, index, request, lead, row, share, noise, visit, Unseen{}, keeping, begin);
    const Options options(request);
    const Draw draw = request.draw(p);
    if (blocks.size > 1) blocks.wait_started();
    Weights::Lane own;
    // While the largest logits are on their way.
    team.pass(__reduce_max_sync(ALL_LANES, key_of(top)), [&] {
        if (!options.greedy) {
            weights.read_step(own, weights.kept_end);
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
        token = share_certain(team, row, weights, share, largest_key);
        if (blocks.rank == 0) await_race(lead, blocks, arrivals, p.vocab);
    } else {
        const Scale scale = {largest, options.inverse};
        weights.weigh_by(scale, options.floor);
        team.pass(weights.sum(own), [&] {
            if (blocks.rank != 0) return;
            await_race(lead, blocks, arrivals, p.vocab);
            const RaceLead::Front front = lead.front<false>(options.inverse, team.pieces());
            const Racers<PlainRow, KeepsAll> racers(draw, row, scale, options.floor, negative_infinity(), KeepsAll{});
            token = static_cast<u32>(lead.winner(racers, team.pieces(), front.early));
        });
        const u64 total = team.total_told();
        weights.write(share_factor(total));
        if (p.processed_logprobs.data != nullptr) logprob = LogShare(scale, total)(row.entry(token));
    }
    if (threadIdx.x != 0 || blocks.rank != 0) return;
    // Where the logits change during the call, there may be none.
    if (token >= p.vocab) token = 0;
    raise_of(p, index, lowest ? NON_FINITE : options.bits);
    write_token(p, index, 0, token, logprob);
}

SPEC_KERNEL_BLOCKS(sample_logits_probs_f32, sample_probs, Params<float>, SELECT_THREADS, 2)
