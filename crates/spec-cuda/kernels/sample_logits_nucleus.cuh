// sample_logits, in the general kernel, for rows that draw one token with top-p as their only
// filter, or with no filter. The kernel does not determine which tokens top-p keeps. A histogram of
// weights (sample_logits_weight_histogram.cuh) most often shows which tokens top-p surely leaves
// out. The other tokens race, and the winner is the result if the histogram shows that top-p surely
// keeps it.
//
// If the histogram does not show enough, all tokens race. For the first four tokens to finish, the
// kernel asks whether top-p keeps them. Top-p keeps a token if the weights of the token and of all
// tokens with smaller logits add up to more than the share of all weights that top-p leaves out.
// Another reading of the row computes these sums for the four tokens at once. The first of the four
// that top-p keeps is the result. If top-p keeps none of them, it keeps no token with a smaller
// logit either: the race begins again among the tokens whose logits are larger than those of all
// four.
//
//     leading block   histogram | winner, kept? | first four | ... add up | .. decide | first four ...
//     other blocks    histogram |        wait                | ... add up |    wait   |
//
// The sums are approximate. If a sum is too near to the share to decide, the kernel selects
// exactly.
#pragma once

#include "sample_logits_leader_block.cuh"
#include "sample_logits_weight_histogram.cuh"

// Keeps the tokens that a cut keeps, as a filter of the race.
struct CutFilter {
    Cut cut;

    INLINE bool operator()(float x, u32 token) const { return cut.keeps(key_of(x), token); }
};

struct Nucleus {
    using Race = LeaderRace;
    static constexpr u32 TOKENS = Race::FIRST;
    // After this number of attempts, the kernel selects. Each further attempt races tokens that
    // most often have less than half of the weight of the tokens before.
    static constexpr u32 ATTEMPTS = 12;
    // The largest relative error of a sum of weights: 8 times n * 2^-24, where n = 512 is the
    // largest number of weights that one thread adds up.
    static constexpr float ERROR = 1.0f / 4096.0f;

    enum Order : u32 { DONE, SELECT, ADD, AGAIN };

    // A message from the leading block to the other blocks.
    struct Message {
        // An entry and its token in each word. For AGAIN, the first word is the cut with which the
        // race begins again: key and end.
        u64 tokens[TOKENS];
        // The row's largest logit, and an Order.
        u64 order;
    };

    // In each block: the sums of the weights at or after each of the tokens, and the sum of all
    // weights.
    struct alignas(8) Sums {
        float of[TOKENS + 2];

        INLINE u64 word(u32 i) const {
            return static_cast<u64>(__float_as_uint(of[2 * i + 1])) << 32 |
                   __float_as_uint(of[2 * i]);
        }
    };

    struct Shared {
        WeightHistogram::Shared histogram;
        Message message;
        Sums of_warps[SELECT_WARPS];
        // In the leading block: the sums of each block.
        Sums of_blocks[MAX_CLUSTER];
        u32 decided;
    };

    // Tests whether a logit comes at or after a token in the descending order of logits: the logit
    // is below `less`, or it equals `equal` and its index is not below `token`.
    struct After {
        float less;
        float equal;
        u32 token;
    };

    // Adds the weights of this warp's piece of the row to `sums`. TIES: one of the tokens lies in
    // the piece, so that equal logits must be compared by index.
    template <bool TIES, typename Row>
    INLINE static void add(const Row& row, u32 lane, const Scale& scale,
                           const After (&after)[TOKENS], float (&sums)[TOKENS + 1]) {
        const float factor = scale.inverse * 1.44269504f;
        const auto visit = [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                const float x = fmaxf(entries[j], negative_infinity());
                const float below = x == scale.largest ? 0.0f : (x - scale.largest) * factor;
                const float weight = approximate_exp2(below);
                sums[TOKENS] += weight;
#pragma unroll
                for (u32 i = 0; i < TOKENS; ++i) {
                    bool in = x < after[i].less;
                    if (TIES) in = in || (x == after[i].equal && first + j >= after[i].token);
                    sums[i] += in ? weight : 0.0f;
                }
            }
        };
        if (row.is_read_as_is()) {
            row.template each_as_is<8 / Row::N, true>(lane, visit);
        } else {
            row.template each<2>(lane, visit);
        }
    }

    template <bool TIES, typename Row>
    static __device__ __noinline__ Sums add_out_of_line(const Row row, u32 lane, const Scale scale,
                                                  const Message& message) {
        const u32 begin = row.begin * Row::N - row.lead;
        After after[TOKENS];
#pragma unroll
        for (u32 i = 0; i < TOKENS; ++i) {
            const u64 published = message.tokens[i];
            after[i].equal = __uint_as_float(static_cast<u32>(published >> 32));
            after[i].token = static_cast<u32>(published);
            // If the piece begins after the token, all logits of the piece that equal the token's
            // logit come after the token.
            const bool behind = !TIES && row.begin > 0 && begin > after[i].token;
            const u32 key = exact::sort_key(after[i].equal);
            after[i].less = exact::value_of_key(behind ? key + 1 : key);
        }
        float sums[TOKENS + 1];
#pragma unroll
        for (u32 i = 0; i <= TOKENS; ++i) sums[i] = 0.0f;
        add<TIES>(row, lane, scale, after, sums);
        Sums all;
#pragma unroll
        for (u32 i = 0; i <= TOKENS; ++i) all.of[i] = warp_sum(sums[i]);
        all.of[TOKENS + 1] = 0.0f;
        return all;
    }

    // The sums of this block, returned to its first warp. By the whole block.
    template <typename Row>
    INLINE static Sums sums_of_block(Shared& shared, const Team& team, const Row& row,
                                     const Scale& scale) {
        bool ties = false;
#pragma unroll 1
        for (u32 i = 0; i < TOKENS; ++i) {
            const u32 vector = (static_cast<u32>(shared.message.tokens[i]) + row.lead) / Row::N;
            ties = ties || (vector >= row.begin && vector < row.end);
        }
        const Sums own = ties ? add_out_of_line<true>(row, team.lane, scale, shared.message)
                              : add_out_of_line<false>(row, team.lane, scale, shared.message);
        if (team.lane == 0) shared.of_warps[team.warp] = own;
        __syncthreads();
        // Only the first warp adds these up. The other warps do not overwrite them meanwhile: they
        // compute the next sums when the leading block asks for them, which is after it has
        // received these sums.
        return team.warp == 0 ? total(shared.of_warps, SELECT_WARPS, team.lane) : own;
    }

    // Adds up the sums of `count` warps or blocks. Every warp adds in the same order, so that all
    // warps get the same result.
    INLINE static Sums total(const Sums* each, u32 count, u32 lane) {
        Sums all;
#pragma unroll
        for (u32 i = 0; i < TOKENS + 2; ++i) {
            all.of[i] = warp_sum(lane < count ? each[lane].of[i] : 0.0f);
        }
        return all;
    }
};

// Copies words of this block to the same addresses in all other blocks of the team. By the first
// warp.
INLINE void broadcast(const Senders& blocks, u64* words, u32 count, Arrivals& arrivals,
                      const Team& team) {
    if (team.warp != 0 || team.lane == 0 || team.lane >= blocks.size) return;
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) blocks.put(&words[i], &arrivals.word, team.lane, words[i]);
}

// Whether the kernel makes a histogram of the weights of a row that `sample_nucleus` ends.
template <typename T>
INLINE bool uses_histogram(const LogitRow<T>& row, const Options& options) {
    return options.top_p < 1ull << 32 && row.make.mask == nullptr &&
           reinterpret_cast<u64>(row.row) % 16 == 0;
}

// What the sums say of the first tokens to finish: which is the first that top-p keeps, or whether
// they are too near to what top-p leaves out to say it. If no token is kept, `next` keeps only what
// comes before all of them in the order.
struct Verdict {
    u32 chosen;
    bool unclear;
    Cut next;
};

// A block that samples a token of a row as described above: the leading block `lead`s, the others
// `help`.
template <typename T>
struct NucleusBlock {
    using Race = Nucleus::Race;
    static constexpr u32 WORDS = sizeof(Nucleus::Message) / 8;
    static constexpr u32 SUM_WORDS = sizeof(Nucleus::Sums) / 8;
    const Params<T>& p;
    u32 index;
    const Team& team;
    u32 (&bins)[WeightHistogram::BINS];
    Race::Shared& lists;
    Nucleus::Shared& shared;
    LeaderSelect::Shared& memory;
    const LogitRow<T>& row;
    const WarpRange& range;
    const Options& options;
    const Draw& draw;
    const Race& race;
    bool has_histogram;
    // The tokens that race.
    Cut cut;

    INLINE u64* message() const { return reinterpret_cast<u64*>(&shared.message); }
    INLINE float octaves() const { return WeightHistogram::octaves_of(options.inverse); }
    INLINE void send_message() const {
        broadcast(team.blocks, message(), WORDS, memory.answered, team);
    }

    INLINE void draw_noise() {
        const MaskedLogits<T> logits = {row.row, row.make.mask, p.vocab};
        race.draw_noise(logits, draw, options.inverse, range, team.piece(), CutFilter{cut});
    }

    // The histograms of all blocks are complete when all blocks have arrived at the cluster
    // barrier. Each block waits for that after its own histogram.
    INLINE void add_histogram() const {
        if (!has_histogram) return;
        const WeightHistogram::Sum sum = WeightHistogram::add(
            bins, row.row, p.vocab, race.tops, range, octaves(), options.top_p);
        if (team.lane == 0) shared.histogram.of_warps[team.warp] = sum;
        if (team.blocks.size > 1) team.blocks.arrive_prepared();
    }
    INLINE void await_histograms() const {
        if (has_histogram && team.blocks.size > 1) team.blocks.wait_started();
    }

    INLINE void send_sums(const Nucleus::Sums& sums) const {
        if (team.warp != 0) return;
#pragma unroll
        for (u32 i = 0; i < SUM_WORDS; ++i) {
            u64* const to = reinterpret_cast<u64*>(&shared.of_blocks[team.blocks.rank]) + i;
            if (team.lane == i) team.blocks.put(to, &memory.arrivals.word, 0, sums.word(i));
        }
    }

    // Sends what the leading block asks for, until that block has decided. Returns whether it has
    // written a token.
    INLINE bool help() {
        if (threadIdx.x == 0) memory.answered.expect(sizeof(Nucleus::Message));
        race.send(team.blocks, memory.arrivals, range, team.piece());
        add_histogram();
#pragma unroll 1
        for (u32 phase = 0;; ++phase) {
            memory.answered.wait(phase & 1);
            if (phase == 0) await_histograms();
            const u64 published = shared.message.order;
            const u32 order = static_cast<u32>(published);
            if (order == Nucleus::DONE || order == Nucleus::SELECT) return order == Nucleus::DONE;
            if (threadIdx.x == 0) memory.answered.expect(sizeof(Nucleus::Message));
            if (order == Nucleus::AGAIN) {
                const u64 published_cut = message()[0];
                cut = {static_cast<u32>(published_cut >> 32), static_cast<u32>(published_cut)};
                draw_noise();
                race.send_early(team.blocks, memory.arrivals, team.piece());
            } else {
                const u32 largest_key = static_cast<u32>(published >> 32);
                const Scale scale = {exact::value_of_key(largest_key), options.inverse};
                send_sums(Nucleus::sums_of_block(shared, team, row, scale));
            }
        }
    }

    // Publishes the first `count` tokens to finish, and returns the sums over all blocks of the
    // weights that come before each of them in the order.
    INLINE Nucleus::Sums sums_before(u32 count, u32 largest_key, const Scale& scale, u32& phase) {
        if (threadIdx.x < Nucleus::TOKENS) {
            // If fewer than four tokens finish, the first token fills the remaining places.
            const u32 token = static_cast<u32>(lists.first[threadIdx.x < count ? threadIdx.x : 0]);
            const u32 entry = __float_as_uint(row.entry(token));
            message()[threadIdx.x] = static_cast<u64>(entry) << 32 | token;
        }
        const u32 helpers = team.blocks.size - 1;
        if (threadIdx.x == 0) {
            shared.message.order = static_cast<u64>(largest_key) << 32 | Nucleus::ADD;
            if (helpers > 0) memory.arrivals.expect(helpers * sizeof(Nucleus::Sums));
            lists.begin();
        }
        __syncthreads();
        send_message();
        const Nucleus::Sums own = Nucleus::sums_of_block(shared, team, row, scale);
        if (threadIdx.x == 0) shared.of_blocks[0] = own;
        if (helpers > 0) memory.arrivals.wait(phase & 1);
        phase += 1;
        __syncthreads();
        return Nucleus::total(shared.of_blocks, team.blocks.size, team.lane);
    }

    INLINE Verdict judge(const Nucleus::Sums& sums, u32 count) const {
        // The weight that top-p leaves out.
        const float out = static_cast<float>((1ull << 32) - options.top_p) *
                          (1.0f / 4294967296.0f) * sums.of[Nucleus::TOKENS];
        Verdict verdict = {NONE, false, {0, 0}};
#pragma unroll
        for (u32 i = 0; i < Nucleus::TOKENS; ++i) {
            if (i >= count || verdict.chosen != NONE || verdict.unclear) continue;
            const float rest = sums.of[i] - out;
            const float error = (sums.of[i] + out) * Nucleus::ERROR + 1.0f / 1048576.0f;
            const u64 published = message()[i];
            const u32 token = static_cast<u32>(published);
            if (rest > error) {
                verdict.chosen = token;
            } else if (rest >= -error) {
                verdict.unclear = true;
            } else {
                const float entry = __uint_as_float(static_cast<u32>(published >> 32));
                const u32 key = exact::sort_key(entry);
                Cut& next = verdict.next;
                if (key > next.key || (key == next.key && token < next.end)) next = {key, token};
            }
        }
        return verdict;
    }

    // Has all blocks race again, without what the new cut leaves out.
    INLINE Race::Front race_again(u32& phase) {
        const u32 helpers = team.blocks.size - 1;
        if (threadIdx.x == 0) {
            message()[0] = static_cast<u64>(cut.key) << 32 | cut.end;
            shared.message.order = Nucleus::AGAIN;
            if (helpers > 0) memory.arrivals.expect(helpers * SELECT_WARPS * 8);
        }
        __syncthreads();
        send_message();
        draw_noise();
        if (helpers > 0) memory.arrivals.wait(phase & 1);
        phase += 1;
        __syncthreads();
        return race.front(options.inverse, team.pieces());
    }

    // Writes the token if it is certain, and returns the last order for the other blocks.
    INLINE u32 decide() {
        Race::Front front = race.front(options.inverse, team.pieces());
        const u32 largest_key = front.largest_key;
        const Scale scale = {exact::value_of_key(largest_key), options.inverse};
        // If the largest logit is infinite, all other weights are 0.
        if (largest_key <= LOWEST_KEY || !exact::finite(scale.largest)) return Nucleus::SELECT;
        const bool all = options.top_p == 1ull << 32;
        u32 phase = 1;
        Bracket bracket = Bracket::unknown();
        if (has_histogram) {
            bracket = WeightHistogram::find(bins, shared.histogram, team, scale.largest, octaves(),
                                            options.top_p);
            if (bracket.least > negative_infinity()) {
                cut = {exact::sort_key(bracket.least), NONE};
            }
        }
#pragma unroll 1
        for (u32 attempt = 0;; ++attempt) {
            const float least = cut.all() ? negative_infinity() : exact::value_of_key(cut.key);
            const Racers<LogitRow<T>, CutFilter> racers(draw, row, scale, options.floor, least,
                                                        CutFilter{cut});
            if (all || (attempt == 0 && bracket.known)) {
                const u32 token = static_cast<u32>(race.winner(racers, team.pieces(), front.early));
                if (all || (token < p.vocab && bracket.keeps(row.entry(token), octaves()))) {
                    // If logits change during the call, no token may win.
                    if (threadIdx.x == 0) {
                        write_token(p, index, 0, token < p.vocab ? token : 0, 0.0f);
                    }
                    return Nucleus::DONE;
                }
                // All threads have read the lists.
                __syncthreads();
                if (threadIdx.x == 0) lists.begin();
                __syncthreads();
            }
            const u32 count = race.first_finishers(racers, team.pieces(), front.early);
            if (count == 0 || attempt == Nucleus::ATTEMPTS) return Nucleus::SELECT;
            const Verdict verdict = judge(sums_before(count, largest_key, scale, phase), count);
            // All threads have read the sums.
            __syncthreads();
            if (verdict.unclear) return Nucleus::SELECT;
            if (verdict.chosen != NONE) {
                if (threadIdx.x == 0) write_token(p, index, 0, verdict.chosen, 0.0f);
                return Nucleus::DONE;
            }
            cut = verdict.next;
            front = race_again(phase);
        }
    }

    // Returns whether a token was written.
    INLINE bool lead() {
        if (threadIdx.x == 0) {
            if (team.blocks.size > 1) race.expect(memory.arrivals, team.blocks.size);
            lists.begin();
        }
        add_histogram();
        if (team.blocks.size > 1) memory.arrivals.wait(0);
        await_histograms();
        __syncthreads();
        const u32 order = decide();
        if (threadIdx.x == 0) {
            shared.message.order = order;
            if (order == Nucleus::DONE) raise_of(p, index, options.bits);
        }
        __syncthreads();
        send_message();
        return order == Nucleus::DONE;
    }
};

// Samples a token as described above. Returns whether the leading block has written the row's
// token; otherwise the team must select.
template <typename T>
__device__ __noinline__ bool sample_nucleus(
    const Params<T>& p, u32 index, Team team, RaceShared& races, Nucleus::Race::Shared& lists,
    Nucleus::Shared& shared, LeaderSelect::Shared& select_memory, LogitRow<T> row,
    const WarpRange range, const Options options, Draw draw, bool has_histogram) {
    const Nucleus::Race race(lists, &races.tops[0][0], p.vocab);
    race.fill_up(range);
    NucleusBlock<T> block = {p,   index, team,    races.groups, lists, shared,        select_memory,
                             row, range, options, draw,         race,  has_histogram, {0, 0}};
    block.draw_noise();
    return team.blocks.rank == 0 ? block.lead() : block.help();
}
