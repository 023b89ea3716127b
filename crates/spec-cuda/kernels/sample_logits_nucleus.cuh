// sample_logits of rows in the general kernel that draw one token with top-p as their only filter, or with no
// filter. The tokens that top-p keeps are not determined. A tally of weights (sample_logits_tally.cuh) most often
// tells which tokens top-p surely leaves out: the others race, and the winner is the result if the tally says
// that top-p surely keeps it.
//
// Where the tally tells too little, all tokens race, and for the first four tokens to finish the kernel asks
// whether top-p keeps them. Top-p keeps a token if the weights of the token and of all tokens with smaller logits
// add up to more than the share of all weights that top-p leaves out. Another reading of the row adds up these
// weights for the four tokens at once. The first of the four that top-p keeps is the result. If top-p keeps none
// of them, it keeps no token with a smaller logit either: the race begins again among the tokens whose logits are
// larger than those of all four.
//
//     leading block       tally | winner, kept? | first four | ........ add up | ....... decide | first four ...
//     other blocks        tally |        wait                | ........ add up |       wait     |
//
// The sums are approximate. Where a sum is too near to the share to decide, the kernel selects exactly.
#pragma once

#include "sample_logits_lead.cuh"
#include "sample_logits_tally.cuh"

// Whether a token is kept by a cut, for the race.
struct KeepsCut {
    Cut cut;

    INLINE bool operator()(float x, u32 token) const { return cut.keeps(key_of(x), token); }
};

struct Nucleus {
    using Race = RaceLead;
    static constexpr u32 TOKENS = Race::FIRST;
    // After so many attempts the kernel selects. Each further attempt races tokens that most often have less
    // than half of the weight of those before.
    static constexpr u32 ATTEMPTS = 12;
    // The largest relative error of a sum of weights: 8 times n * 2^-24, where n = 512 is the largest number of
    // weights that one thread adds up.
    static constexpr float ERROR = 1.0f / 4096.0f;

    enum Order : u32 { DONE, SELECT, ADD, AGAIN };

    // What the leading block tells the other blocks.
    struct Message {
        // An entry and its token each; the first is a cut, key and end, where the race begins again.
        u64 tokens[TOKENS];
        // The row's largest logit, and an Order.
        u64 order;
    };

    // In each block: the sum of all weights, and of those at or after each of the tokens.
    struct alignas(8) Sums {
        float of[TOKENS + 2];

        INLINE u64 word(u32 i) const {
            return static_cast<u64>(__float_as_uint(of[2 * i + 1])) << 32 | __float_as_uint(of[2 * i]);
        }
    };

    struct Shared {
        Tally::Shared tally;
        Message message;
        Sums of_warps[SELECT_WARPS];
        // In the block that leads: of each block.
        Sums of_blocks[MAX_CLUSTER];
        u32 decided;
    };

    // Tells whether a logit comes at or after a token in the descending order of logits: the logit is below
    // `less`, or it is `equal` and its index is not below `token`.
    struct After {
        float less;
        float equal;
        u32 token;
    };

    // Adds the weights of this warp's piece of the row to `sums`. TIES: one of the tokens lies in the piece, so
    // that equal logits are compared by index.
    template <bool TIES, typename Row>
    INLINE static void add(const Row& row, u32 lane, const Scale& scale, const After (&after)[TOKENS],
                           float (&sums)[TOKENS + 1]) {
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
    static __device__ __noinline__ Sums add_apart(const Row row, u32 lane, const Scale scale,
                                                  const Message& message) {
        const u32 begin = row.begin * Row::N - row.lead;
        After after[TOKENS];
#pragma unroll
        for (u32 i = 0; i < TOKENS; ++i) {
            const u64 told = message.tokens[i];
            after[i].equal = __uint_as_float(static_cast<u32>(told >> 32));
            after[i].token = static_cast<u32>(told);
            // Where the piece begins behind the token, all logits of the piece that equal the token's come
            // after the token.
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

    // The sums of this block, for its first warp. By the block.
    template <typename Row>
    INLINE static Sums sums_of_block(Shared& shared, const Team& team, const Row& row, const Scale& scale) {
        bool ties = false;
#pragma unroll 1
        for (u32 i = 0; i < TOKENS; ++i) {
            const u32 vector = (static_cast<u32>(shared.message.tokens[i]) + row.lead) / Row::N;
            ties = ties || (vector >= row.begin && vector < row.end);
        }
        const Sums own = ties ? add_apart<true>(row, team.lane, scale, shared.message)
                              : add_apart<false>(row, team.lane, scale, shared.message);
        if (team.lane == 0) shared.of_warps[team.warp] = own;
        __syncthreads();
        // Only the first warp adds these up. The other warps do not overwrite them meanwhile: they begin the next
        // sums when the leading block asks for those, which it does after it has received these.
        return team.warp == 0 ? total(shared.of_warps, SELECT_WARPS, team.lane) : own;
    }

    // Adds up the sums of `count` warps or blocks. Every warp adds in the same order, so that all get the same
    // sums.
    INLINE static Sums total(const Sums* each, u32 count, u32 lane) {
        Sums all;
#pragma unroll
        for (u32 i = 0; i < TOKENS + 2; ++i) all.of[i] = warp_sum(lane < count ? each[lane].of[i] : 0.0f);
        return all;
    }
};

// Sends words of this block to the same place in all other blocks of the team, by the first warp.
INLINE void tell_all(const Senders& blocks, u64* words, u32 count, Arrivals& arrivals, const Team& team) {
    if (team.warp != 0 || team.lane == 0 || team.lane >= blocks.size) return;
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) blocks.put(&words[i], &arrivals.word, team.lane, words[i]);
}

// Whether the kernel tallies the weights of a row that `sample_nucleus` ends.
template <typename T>
INLINE bool tallies(const LogitRow<T>& row, const Options& options) {
    return options.top_p < 1ull << 32 && row.make.mask == nullptr && reinterpret_cast<u64>(row.row) % 16 == 0;
}

// Returns whether the leading block has written the row's token; otherwise the team selects.
template <typename T>
__device__ __noinline__ bool sample_nucleus(const Params<T>& p, u32 index, Team team, RaceShared& races,
                                            Nucleus::Race::Shared& lists, Nucleus::Shared& shared,
                                            Lead::Shared& lead, LogitRow<T> row, const Share share,
                                            const Options options, Draw draw, bool tallied) {
    using Race = Nucleus::Race;
    const Senders& blocks = team.blocks;
    constexpr u32 WORDS = sizeof(Nucleus::Message) / 8;
    constexpr u32 SUM_WORDS = sizeof(Nucleus::Sums) / 8;
    u64* const message = reinterpret_cast<u64*>(&shared.message);
    const auto put_sums = [&](const Nucleus::Sums& sums) {
        if (team.warp != 0) return;
#pragma unroll
        for (u32 i = 0; i < SUM_WORDS; ++i) {
            u64* const to = reinterpret_cast<u64*>(&shared.of_blocks[blocks.rank]) + i;
            if (team.lane == i) blocks.put(to, &lead.arrivals.word, 0, sums.word(i));
        }
    };
    const Race race(lists, &races.tops[0][0], p.vocab);
    race.fill_up(share);
    const MaskedLogits<T> logits = {row.row, row.make.mask, p.vocab};
    Cut cut = {0, 0};
    const auto draw_noise = [&] {
        race.draw_noise(logits, draw, options.inverse, share, team.piece(), KeepsCut{cut});
    };
    u32 (&bins)[Tally::BINS] = races.groups;
    const float octaves = Tally::octaves_of(options.inverse);
    // The other blocks' tallies are complete when all blocks have arrived, which each block waits for after its own.
    const auto tally = [&] {
        if (!tallied) return;
        const Tally::Sum sum = Tally::add(bins, row.row, p.vocab, race.tops, share, octaves, options.top_p);
        if (team.lane == 0) shared.tally.of_warps[team.warp] = sum;
        if (blocks.size > 1) blocks.arrive_prepared();
    };
    const auto await_tallies = [&] {
        if (tallied && blocks.size > 1) blocks.wait_started();
    };
    draw_noise();
    if (blocks.rank != 0) {
        if (threadIdx.x == 0) lead.answered.expect(sizeof(Nucleus::Message));
        race.send(blocks, lead.arrivals, share, team.piece());
        tally();
#pragma unroll 1
        for (u32 phase = 0;; ++phase) {
            lead.answered.wait(phase & 1);
            if (phase == 0) await_tallies();
            const u64 told = shared.message.order;
            const u32 order = static_cast<u32>(told);
            if (order == Nucleus::DONE || order == Nucleus::SELECT) return order == Nucleus::DONE;
            if (threadIdx.x == 0) lead.answered.expect(sizeof(Nucleus::Message));
            if (order == Nucleus::AGAIN) {
                cut = {static_cast<u32>(message[0] >> 32), static_cast<u32>(message[0])};
                draw_noise();
                race.send_early(blocks, lead.arrivals, team.piece());
            } else {
                const Scale scale = {exact::value_of_key(static_cast<u32>(told >> 32)), options.inverse};
                put_sums(Nucleus::sums_of_block(shared, team, row, scale));
            }
        }
    }

    if (threadIdx.x == 0) {
        if (blocks.size > 1) race.expect(lead.arrivals, blocks.size);
        lists.begin();
    }
    tally();
    if (blocks.size > 1) lead.arrivals.wait(0);
    await_tallies();
    __syncthreads();
    Race::Front front = race.front(options.inverse, team.pieces());
    const u32 largest_key = front.largest_key;
    const Scale scale = {exact::value_of_key(largest_key), options.inverse};
    u32 order = Nucleus::SELECT;
    u32 phase = 1;
    // An infinite largest logit leaves no weight to any smaller logit.
    const bool led = largest_key > LOWEST_KEY && exact::finite(scale.largest);
    const bool all = options.top_p == 1ull << 32;
    Bracket bracket = Bracket::unknown();
    if (tallied && led) {
        bracket = Tally::find(bins, shared.tally, team, scale.largest, octaves, options.top_p);
        if (bracket.least > negative_infinity()) cut = {exact::sort_key(bracket.least), NONE};
    }
#pragma unroll 1
    for (u32 attempt = 0; led; ++attempt) {
        const float least = cut.all() ? negative_infinity() : exact::value_of_key(cut.key);
        const Racers<LogitRow<T>, KeepsCut> racers(draw, row, scale, options.floor, least, KeepsCut{cut});
        if (all || (attempt == 0 && bracket.known)) {
            const u32 token = static_cast<u32>(race.winner(racers, team.pieces(), front.early));
            if (all || (token < p.vocab && bracket.keeps(row.entry(token), octaves))) {
                order = Nucleus::DONE;
                // Where the logits change during the call, there may be none.
                if (threadIdx.x == 0) write_token(p, index, 0, token < p.vocab ? token : 0, 0.0f);
                break;
            }
            // All have read the lists.
            __syncthreads();
            if (threadIdx.x == 0) lists.begin();
            __syncthreads();
        }
        const u32 count = race.first_few(racers, team.pieces(), front.early);
        if (count == 0 || attempt == Nucleus::ATTEMPTS) break;
        if (threadIdx.x < Nucleus::TOKENS) {
            // Where fewer than four tokens finish, the first stands in the places that are left.
            const u32 token = static_cast<u32>(lists.first[threadIdx.x < count ? threadIdx.x : 0]);
            message[threadIdx.x] = static_cast<u64>(__float_as_uint(row.entry(token))) << 32 | token;
        }
        if (threadIdx.x == 0) {
            shared.message.order = static_cast<u64>(largest_key) << 32 | Nucleus::ADD;
            if (blocks.size > 1) lead.arrivals.expect((blocks.size - 1) * sizeof(Nucleus::Sums));
            lists.begin();
        }
        __syncthreads();
        tell_all(blocks, message, WORDS, lead.answered, team);
        const Nucleus::Sums own = Nucleus::sums_of_block(shared, team, row, scale);
        if (threadIdx.x == 0) shared.of_blocks[0] = own;
        if (blocks.size > 1) lead.arrivals.wait(phase & 1);
        phase += 1;
        __syncthreads();
        const Nucleus::Sums sums = Nucleus::total(shared.of_blocks, blocks.size, team.lane);
        // What top-p leaves out.
        const float out = static_cast<float>((1ull << 32) - options.top_p) * (1.0f / 4294967296.0f) *
                          sums.of[Nucleus::TOKENS];
        u32 chosen = NONE;
        bool unclear = false;
        Cut next = {0, 0};
#pragma unroll
        for (u32 i = 0; i < Nucleus::TOKENS; ++i) {
            if (i >= count || chosen != NONE || unclear) continue;
            const float rest = sums.of[i] - out;
            const float error = (sums.of[i] + out) * Nucleus::ERROR + 1.0f / 1048576.0f;
            const u64 told = message[i];
            const u32 token = static_cast<u32>(told);
            if (rest > error) {
                chosen = token;
            } else if (rest >= -error) {
                unclear = true;
            } else {
                const u32 key = exact::sort_key(__uint_as_float(static_cast<u32>(told >> 32)));
                // What is before the token in the order.
                if (key > next.key || (key == next.key && token < next.end)) next = {key, token};
            }
        }
        // All have read the sums.
        __syncthreads();
        if (unclear) break;
        if (chosen != NONE) {
            order = Nucleus::DONE;
            if (threadIdx.x == 0) write_token(p, index, 0, chosen, 0.0f);
            break;
        }
        cut = next;
        if (threadIdx.x == 0) {
            message[0] = static_cast<u64>(cut.key) << 32 | cut.end;
            shared.message.order = Nucleus::AGAIN;
            if (blocks.size > 1) lead.arrivals.expect((blocks.size - 1) * SELECT_WARPS * 8);
        }
        __syncthreads();
        tell_all(blocks, message, WORDS, lead.answered, team);
        draw_noise();
        if (blocks.size > 1) lead.arrivals.wait(phase & 1);
        phase += 1;
        __syncthreads();
        front = race.front(options.inverse, team.pieces());
    }
    if (threadIdx.x == 0) {
        shared.message.order = order;
        if (order == Nucleus::DONE) raise_of(p, index, options.bits);
    }
    __syncthreads();
    tell_all(blocks, message, WORDS, lead.answered, team);
    return order == Nucleus::DONE;
}
