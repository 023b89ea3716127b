// sample_logits for batches in which every row draws one token from all tokens except those that
// min-p drops, or takes the most likely token, and in which the distribution that the token was
// drawn from is wanted.
//
// A block or a cluster of blocks owns a row, and each warp reads a range of its groups of 64
// tokens:
//
//     survey     Each warp reads its range once, as in sample_logits_plain.cu: the largest logit of
//                each group and the noise of the groups go to the leading block. As many logits as
//                there is room for stay in shared memory.
//     largest    Each warp publishes the largest logit of its range: weights are relative to the
//                row's largest logit.
//     weights    Each warp adds up the exact weights of its range. Weights replace their logits in
//                shared memory; logits that had no room are read again, and their weights stored
//                where their probabilities belong.
//     sum        Each warp publishes its sum.
//     race       The leading block finds the token (race_leader_block.cuh). Its warps have smaller
//                ranges, so that it does so while the other blocks still add up and write.
//     write      Each warp multiplies its weights by one factor, and writes the probabilities.
//
// Bytes: the logits and the probabilities once, 32 * 8 * 128256 = 32.8 MB at 32 rows: 7.9 us at
// 4.15 TB/s. A weight takes 27 instructions, of which 22 are the exact exponential: 33 million
// weights, of 256 rows, take 32 us.
#include "sample_logits_plain.cuh"
#include "sample_logits_row.cuh"

// A quad is 4 neighbouring tokens of a row, whose weights a lane computes together. A lane has the
// logits of QUADS quads in flight; one load fetches the logits of one quad as f32, or of two
// neighbouring quads as f16 or bf16.
constexpr u32 QUAD = 4;
constexpr u32 QUADS = 4;
// Tokens that a warp weighs in a step.
constexpr u32 STEP = QUADS * QUAD * WARP;
// Quads of groups (256 tokens each) that a block reads, weighs and writes in the time of a race.
constexpr u32 RACE = 64;

// A lane has eight loads in flight.
template <typename T>
using PlainRow = LogitGroups<T, false, 8>;

// The sum of a lane's weights in units of 2^-40. A lane has at most 512 weights, each split into 20
// high bits and 20 low bits.
struct Units {
    u32 high = 0;
    u32 low = 0;
    // The sum of the constant upper bits (SPLIT_BITS) of all weights that were added.
    u32 above = 0;

    INLINE void add(float weight) {
        const Split split(weight);
        high += split.high;
        low += split.low;
        above += SPLIT_BITS;
    }
    INLINE u64 all() const { return (static_cast<u64>(high - above) << 20) + (low - above); }
};

// The weights of a warp's range of a row.
template <typename T>
struct Weights {
    // Quads that a lane reads at once, and how often it reads in a step.
    static constexpr u32 AT_ONCE = Pack<T>::N / QUAD;
    static constexpr u32 READS = QUADS / AT_ONCE;
    // Tokens that a warp reads at once.
    static constexpr u32 WARP_READS = Pack<T>::N * WARP;

    // What a lane reads in one step of the warp.
    struct Lane {
        Pack<T> reads[READS];
    };

    const T* row;
    float* probs;
    // The largest logit of each group of the row.
    const float* tops;
    // Shared memory for the tokens before `kept_end`: first their logits, then their weights. Each
    // lane stores the quads here that it reads of the row.
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

    // `room` is the shared memory of each warp, in bytes.
    INLINE Weights(const T* logits, float* to, const float* of_groups, const WarpRange& range,
                   u32 vocab, float4* of_warps, u32 room)
        : row(logits),
          probs(to),
          tops(of_groups),
          kept(of_warps + threadIdx.x / WARP * (room / sizeof(float4))),
          lane(lane_id()),
          begin(range.begin * GROUP),
          end(min(range.end * GROUP, vocab)) {
        const bool aligned =
            reinterpret_cast<u64>(row) % 16 == 0 && reinterpret_cast<u64>(probs) % 16 == 0;
        whole = aligned ? max(begin, end / GROUP * GROUP) : begin;
        const u32 fit = room / sizeof(float);
        kept_end = min(whole, begin + fit / WARP_READS * WARP_READS);
    }

    // The first token of what the lane reads the i-th time, and of its i-th quad, in the step that
    // begins with token `first`.
    INLINE u32 place_of_read(u32 first, u32 i) const {
        return first + (i * WARP + lane) * Pack<T>::N;
    }
    INLINE u32 place(u32 first, u32 i) const {
        return place_of_read(first, i / AT_ONCE) + i % AT_ONCE * QUAD;
    }

    INLINE float4& slot(u32 at) const { return kept[(at - begin) / QUAD]; }

    // The logits of the `part`-th quad that was read at once.
    INLINE static float4 quad(const Pack<T>& read, u32 part) {
        const T* const from = read.items + part * QUAD;
        return make_float4(to_f32(from[0]), to_f32(from[1]), to_f32(from[2]), to_f32(from[3]));
    }

    // Reads for the last time (evict first); past the end, the last tokens.
    INLINE void read(Pack<T>& pack, u32 at) const {
        pack.raw = __ldcs(reinterpret_cast<const uint4*>(row + min(at, whole - Pack<T>::N)));
    }

    // Issues the loads of the step that begins with token `first`.
    INLINE void read_step(Lane& own, u32 first) const {
        if (first >= whole) return;
#pragma unroll
        for (u32 i = 0; i < READS; ++i) read(own.reads[i], place_of_read(first, i));
    }

    // Sets what weights depend on: the row's largest logit and the request's options.
    INLINE void weigh_by(const Scale& by, u64 floor) {
        scale = by;
        least = least_weight(floor);
        heavy = scale.least_entry(max(floor, 1ull));
        if (!exact::finite(scale.largest)) whole = kept_end = begin;
    }

    // The weight of a logit, if the largest logit is finite; 0 if the weight does not count.
    INLINE float weight(float x) const {
        const float w = exp_of_units(scale.below(x));
        return w >= least ? w : 0.0f;
    }

    // The weight of a token, also if the largest logit is infinite.
    INLINE float any_weight(u32 token) const {
        const float x = to_f32(row[token]);
        return x == scale.largest ? 1.0f : weight(x);
    }

    // True if no logit of a step has a weight that counts.
    INLINE bool is_light(u32 first) const {
        const u32 group = first / GROUP + lane;
        const bool has = lane < STEP / GROUP && group * GROUP < end;
        return !__any_sync(ALL_LANES, has && !(tops[group] < heavy));
    }

    INLINE float4 weights(const float4& logits) const {
        return make_float4(weight(logits.x), weight(logits.y), weight(logits.z), weight(logits.w));
    }

    // Calls visit(index of the first token, weights) for each of the lane's quads that are not kept
    // in shared memory. The loads of the first step must have been issued with `read_step`. If no
    // weight of a step counts, calls zero(index of the first token) instead.
    template <typename Visit, typename Zero>
    INLINE void each_unkept(Lane& own, Visit&& visit, Zero&& zero) const {
#pragma unroll 1
        for (u32 first = kept_end; first < whole; first += STEP) {
            const bool light = is_light(first);
#pragma unroll
            for (u32 i = 0; i < QUADS; ++i) {
                const u32 at = place(first, i);
                Pack<T>& pack = own.reads[i / AT_ONCE];
                if (light) {
                    if (at < whole) zero(at);
                } else if (at < whole) {
                    visit(at, weights(quad(pack, i % AT_ONCE)));
                }
                if (i % AT_ONCE == AT_ONCE - 1) {
                    read(pack, place_of_read(first, i / AT_ONCE) + STEP);
                }
            }
        }
    }

    // Calls visit(index of the first token, kept quad) for each of the lane's quads in shared
    // memory. If no weight of a step counts, calls zero(index of the first token) instead.
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

    // The sum of the warp's weights in units of 2^-40. `own` has the loads of the step from
    // `kept_end` on.
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

    // Streaming stores: probabilities are not read again soon, so that logits stay in L2.
    INLINE void store(u32 at, const float4& w, float factor) const {
        __stcs(reinterpret_cast<float4*>(probs + at),
               make_float4(exact::mul(w.x, factor), exact::mul(w.y, factor),
                           exact::mul(w.z, factor), exact::mul(w.w, factor)));
    }

    // Writes the probabilities. Each lane reads only weights that it has stored itself.
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
                own[i] = __ldcs(
                    reinterpret_cast<const float4*>(probs + min(place(first, i), whole - QUAD)));
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

// Receives what `survey` reads: picks entries for the noise (picks.cuh), and keeps logits for
// `Weights`.
template <typename T>
struct PicksAndLogits {
    const Picks<PlainRow<T>>& picks;
    const Weights<T>& weights;

    struct Wanted {
        typename Picks<PlainRow<T>>::Wanted wanted;
        const Weights<T>& weights;
        // The first of the groups that the warp has read.
        u32 group;

        // `i` counts how often the warp's lanes have read.
        template <typename Read>
        INLINE void operator()(u32 i, Read&& read) const {
            wanted(i, read);
            const u32 at = weights.place_of_read(group * GROUP, i);
            if (at >= weights.kept_end) return;
            Pack<T> pack;
            pack.raw = read(0);
#pragma unroll
            for (u32 part = 0; part < Weights<T>::AT_ONCE; ++part) {
                weights.slot(at + part * QUAD) = Weights<T>::quad(pack, part);
            }
        }
    };

    INLINE Wanted operator()(u32 group) const { return {picks(group), weights, group}; }
};

// The range of groups of warp `piece` of a cluster. The warps of the leading block have smaller
// ranges, because that block also ends the race.
INLINE WarpRange warp_range_of(u32 vocab, u32 piece, u32 blocks) {
    WarpRange range(vocab, piece, SELECT_WARPS);
    if (blocks == 1) return range;
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
    range.begin = start(piece);
    range.end = start(piece + 1);
    return range;
}

// In the leading block: waits until everything has arrived that the other blocks send with
// `LeaderRace::send`. By the whole block.
INLINE void await_race(const LeaderRace& leader, const Senders& blocks, Arrivals& arrivals,
                       u32 vocab) {
    if (blocks.size > 1) {
        if (threadIdx.x == 0) {
            const u32 sent =
                (leader.groups + 3) / 4 - warp_range_of(vocab, SELECT_WARPS, blocks.size).begin / 4;
            arrivals.expect(sent * 24 + (blocks.size - 1) * SELECT_WARPS * 8);
        }
        arrivals.wait(0);
    }
    __syncthreads();
}

// Writes the probabilities of a row at temperature 0, and returns the row's most likely token; the
// first token if no logit is above negative infinity. By all blocks.
template <typename T>
INLINE u32 write_certain_probs(Team& team, const PlainRow<T>& row, const Weights<T>& weights,
                               const WarpRange& range, u32 largest_key) {
    u32 token = 0;
    if (largest_key > LOWEST_KEY) {
        const float largest = exact::value_of_key(largest_key);
        __syncwarp();
        team.publish_relaxed(first_equal(row, weights.tops + range.begin, range.begin, range.end,
                                         weights.lane, largest));
        token = static_cast<u32>(reduce_min(team));
    }
    write_one_hot(weights.probs, weights.begin, weights.end, weights.lane, token);
    return token;
}

// The size of this block's dynamic shared memory in bytes.
INLINE u32 dynamic_shared() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

template <typename T>
INLINE void sample_probs(const Params<T>& p) {
    using Row = PlainRow<T>;
    // The largest logit of each group, where the leading block also receives those of other blocks,
    // followed by room for logits and weights. Not an array of fixed size: the rest of the memory
    // is for logits.
    extern __shared__ float4 memory[];
    float* const tops = reinterpret_cast<float*>(memory);
    const u32 quads_of_tops = (p.vocab + 4 * GROUP - 1) / (4 * GROUP);
    __shared__ LeaderRace::Shared shared;
    __shared__ Arrivals arrivals;
    __shared__ Team::Shared exchange;
    // A copy for each warp, because warps draw noise before the first barrier of the block.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ PicksOfWarp picks_of[SELECT_WARPS];
    Team team(exchange);
    const Senders& blocks = team.blocks;
    const u32 index = blockIdx.x / blocks.size;
    if (is_padding(p.of_rows, index)) return write_padding(p, index, blocks);
    const LeaderRace leader(shared, tops, p.vocab);
    Request& request = requests[leader.warp];
    if (leader.lane == 0) request.fetch_plain(p, index);
    // While the first logits are in flight.
    const auto begin = [&] {
        if (blocks.size > 1) LeaderRace::open(blocks, arrivals);
        if (threadIdx.x == 0) shared.begin();
        Request::arrive();
        __syncwarp();
    };
    const Row row = {p.logits[index], nullptr, p.vocab};
    const u32 piece = team.piece();
    const WarpRange range = warp_range_of(p.vocab, piece, blocks.size);
    const u32 room =
        (dynamic_shared() / sizeof(float4) - quads_of_tops) / SELECT_WARPS * sizeof(float4);
    Weights<T> weights(row.row, p.probs[index], tops, range, p.vocab, memory + quads_of_tops, room);
    const NoFilter filter;
    const Picks<Row> picks(picks_of[leader.warp], row, range.begin, range.end);
    LeaderRace::Noise<Picks<Row>, NoFilter> noise(leader, picks, range, filter);
    float top = negative_infinity();
    const auto visit = [&](u32 group, float its) {
        tops[group] = its;
        top = fmaxf(top, its);
    };
    const PicksAndLogits<T> picks_and_logits = {picks, weights};
    survey_plain(p, index, request, leader, row, range, noise, visit, NoVisitor{}, picks_and_logits,
                 begin);
    const Options options(request);
    const Draw draw = request.draw(p);
    if (blocks.size > 1) blocks.wait_started();
    typename Weights<T>::Lane own;
    // While the largest logits are on their way to the other blocks.
    team.publish_relaxed(__reduce_max_sync(ALL_LANES, key_of(top)), [&] {
        if (!options.greedy) {
            weights.read_step(own, weights.kept_end);
            noise.finish(draw, options.inverse, piece);
        }
        if (blocks.rank != 0) leader.send(blocks, arrivals, range, piece);
    });
    const u32 largest_key = team.reduce_max(team.pieces());
    const float largest = exact::value_of_key(largest_key);
    const bool lowest = largest_key <= LOWEST_KEY;
    u32 token = 0;
    float logprob = 0.0f;
    if (lowest || options.greedy) {
        token = write_certain_probs(team, row, weights, range, largest_key);
        if (blocks.rank == 0) await_race(leader, blocks, arrivals, p.vocab);
    } else {
        const Scale scale = {largest, options.inverse};
        weights.weigh_by(scale, options.floor);
        team.publish_relaxed(weights.sum(own), [&] {
            if (blocks.rank != 0) return;
            await_race(leader, blocks, arrivals, p.vocab);
            const LeaderRace::Front front = leader.front<false>(options.inverse, team.pieces());
            const Racers<Row, NoFilter> racers(draw, row, scale, options.floor, negative_infinity(),
                                               NoFilter{});
            token = static_cast<u32>(leader.winner(racers, team.pieces(), front.early));
        });
        const u64 total = team.reduce_sum();
        weights.write(prob_factor(total));
        if (p.processed_logprobs.data != nullptr) logprob = LogProb(scale, total)(row.entry(token));
    }
    if (threadIdx.x != 0 || blocks.rank != 0) return;
    // If logits change during the call, no token may win.
    if (token >= p.vocab) token = 0;
    raise_of(p, index, lowest ? NON_FINITE : options.bits);
    write_token(p, index, 0, token, logprob);
}

#define PROBS(dtype, T)                                                                         \
    SPEC_KERNEL_BLOCKS(sample_logits_probs_##dtype, sample_probs<T>, Params<T>, SELECT_THREADS, \
                       SHARING)

PROBS(f32, float)
PROBS(f16, f16)
PROBS(bf16, bf16)
