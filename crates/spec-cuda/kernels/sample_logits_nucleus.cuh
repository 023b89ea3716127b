// sample_logits where a row draws one token by a top-p alone, or by no filter, in a kernel that can do all:
// nothing is selected. The first few tokens to finish the race among all are asked whether top-p keeps
// them: a token is kept if the weights of what comes at or after it in the order of logits add up to more than
// the share of all weights that top-p leaves out. One more reading of the row adds up these weights, for four
// tokens at once. The first of them that is kept is the token. Where none is, all that comes after the
// heaviest of them is out of the race, which begins again.
//
//     block that leads    first four | ........ add up | ....... decide | first four ...
//     other blocks          wait     | ........ add up |       wait     |
//
// The sums are approximate: where a sum is near the share, the team selects after all.
#pragma once

#include "sample_logits_lead.cuh"

// Keeps what a cut keeps.
struct KeepsCut {
    Cut cut;

    INLINE bool operator()(float x, u32 token) const { return cut.keeps(key_of(x), token); }
};

struct Nucleus {
    using Race = RaceLead;
    static constexpr u32 TOKENS = Race::FIRST;
    // Attempts until the team selects: each but the first is for what most often is less than half of the
    // weights.
    static constexpr u32 ATTEMPTS = 12;
    // Sums of so many floats are within this of the weights' sum: 8 times n * 2^-24 for the n = 512 weights that
    // a thread adds up at most.
    static constexpr float ERROR = 1.0f / 4096.0f;

    enum Order : u32 { DONE, SELECT, ADD, AGAIN };

    // What the block that leads tells the others.
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
        Message message;
        Sums of_warps[SELECT_WARPS];
        // In the block that leads: of each block.
        Sums of_blocks[MAX_CLUSTER];
        u32 decided;
    };

    // Whether an entry is at or after a token: below `less`, or `equal` and no lower in index.
    struct After {
        float less;
        float equal;
        u32 token;
    };

    // The largest and after[] in registers; the weights of this warp's piece. TIES: some token is in the piece.
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
            // Of what equals the token all is after it where the piece is.
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
        // The other warps may be at the next sums before the first has read these.
        return team.warp == 0 ? total(shared.of_warps, SELECT_WARPS, team.lane) : own;
    }

    // The sums of as many, in the same order in every warp.
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

// Whether a row ends in this way: the block that leads has written its token. Else the team selects.
template <typename T>
__device__ __noinline__ bool sample_nucleus(const Params<T>& p, u32 index, Team team, RaceShared& races,
                                            Nucleus::Race::Shared& lists, Nucleus::Shared& shared,
                                            Lead::Shared& lead, LogitRow<T> row, const Share share,
                                            const Options options, Draw draw) {
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
    const MaskedLogits<T> logits = {row.row, row.make.mask, p.vocab};
    Cut cut = {0, 0};
    const auto draw_noise = [&] {
        race.draw_noise(logits, draw, options.inverse, share, team.piece(), KeepsCut{cut});
    };
    draw_noise();
    if (blocks.rank != 0) {
        if (threadIdx.x == 0) lead.answered.expect(sizeof(Nucleus::Message));
        race.send(blocks, lead.arrivals, share, team.piece());
#pragma unroll 1
        for (u32 phase = 0;; ++phase) {
            lead.answered.wait(phase & 1);
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
    if (blocks.size > 1) lead.arrivals.wait(0);
    __syncthreads();
    const u32 largest_key = race.largest_key();
    const Scale scale = {exact::value_of_key(largest_key), options.inverse};
    u32 order = Nucleus::SELECT;
    u32 phase = 1;
    // Other weights than those at the largest have no sum.
    const bool led = largest_key > LOWEST_KEY && exact::finite(scale.largest);
#pragma unroll 1
    for (u32 attempt = 0; led; ++attempt) {
        const float least = cut.all() ? negative_infinity() : exact::value_of_key(cut.key);
        const Racers<LogitRow<T>, KeepsCut> racers(draw, row, scale, options.floor, least, KeepsCut{cut});
        if (options.top_p == 1ull << 32) {
            const u32 token = static_cast<u32>(race.winner(racers, team.pieces()));
            order = Nucleus::DONE;
            // Where the logits change during the call, there may be none.
            if (threadIdx.x == 0) write_token(p, index, 0, token < p.vocab ? token : 0, 0.0f);
            break;
        }
        const u32 count = race.first_few(racers, team.pieces());
        if (count == 0 || attempt == Nucleus::ATTEMPTS) break;
        if (threadIdx.x < Nucleus::TOKENS) {
            // Past the last the first once more.
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
    }
    if (threadIdx.x == 0) {
        shared.message.order = order;
        if (order == Nucleus::DONE) raise(p.flags, options.bits);
    }
    __syncthreads();
    tell_all(blocks, message, WORDS, lead.answered, team);
    return order == Nucleus::DONE;
}
