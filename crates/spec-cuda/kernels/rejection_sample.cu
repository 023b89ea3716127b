// rejection_sample: verifies the draft tokens of each request, and finds the token that follows the
// accepted drafts.
//
// A cluster of blocks owns a request (a single block where the device has no clusters). Every warp
// of the cluster checks all drafts of the request, one draft a lane: all warps read the same few
// numbers, which is cheaper than publishing the result. What takes time is the row of the rejected
// token: one vocabulary of target and of draft probabilities, read once. The row is cut into as
// many pieces as the cluster has warps (vocab_row.cuh). Each warp sends the result of its piece to
// the shared memory of the blocks that need it, where a barrier counts the arrived bytes:
//
// * argmax: the largest (residual, inverse index) of each piece, which only the first block of the
//   cluster needs;
// * sample: the largest residual of each group of 64 tokens and the noise of these tokens, which go
//   to the first block; this block alone ends the race between the tokens (race_leader_block.cuh),
//   looking at about 50 tokens;
// * greedy: the argmax of a few rows at a time, which all blocks need to continue with the drafts.
//   Each request of a batch may be greedy or not.
//
// Bytes: two rows a request, 32 * 2 * 128256 * 4 = 33 MB at batch 32: 11 us at 3.0 TB/s. At batch 1
// the time is latency: of offsets and tokens, then of probabilities, then of the row. If all
// requests have equally many drafts, the addresses of the tokens are known without the offsets, so
// tokens and offsets load at the same time.
#include "finite_row.cuh"
#include "params/rejection_sample.cuh"
#include "race_leader_block.cuh"
#include "residual_groups.cuh"

constexpr u32 THREADS = SELECT_THREADS;
constexpr u32 MAX_WARPS = THREADS / WARP;
constexpr u32 MAX_ROWS = 4;
// Blocks per multiprocessor of the kernels in which no token races.
constexpr u32 ARGMAX_SHARING = 2;
static_assert(MAX_PIECES == MAX_WARPS * MAX_CLUSTER);

// ---- clusters -----------------------------------------------------------------

// The number of this cluster in the grid. Reading it takes no division.
INLINE u32 cluster_index() {
    u32 index = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
    return index;
}

// The shared memory through which the warps of a cluster exchange VALUES numbers each. There are
// two slots, used in turn: no warp can be two exchanges ahead of another.
template <u32 VALUES>
struct ClusterExchange {
    u64 values[2][VALUES][MAX_PIECES];
    Arrivals arrivals[2];
};

// The position of this warp among the warps of its request's cluster.
template <u32 VALUES>
struct Place {
    ClusterExchange<VALUES>* exchange;
    Senders cluster;
    u32 request;
    u32 lane;
    u32 warps;
    u32 piece;
    u32 pieces;
    // The number of exchanges so far. Exchange e uses slot e % 2.
    u32 exchanges;

    INLINE Place(ClusterExchange<VALUES>& shared)
        : exchange(&shared), request(cluster_index()), lane(lane_id()),
          warps(blockDim.x / WARP), piece(cluster.rank * warps + threadIdx.x / WARP),
          pieces(cluster.size * warps), exchanges(0) {}

    // True in the one thread that writes for the request.
    INLINE bool leads() const { return piece == 0 && lane == 0; }

    // True in the block of that thread.
    INLINE bool in_front() const { return cluster.rank == 0; }

    // The same warp as a member of a cluster that consists of its own block only.
    INLINE Place alone() const {
        Place place = *this;
        static_cast<Cluster&>(place.cluster) = Cluster::alone();
        place.piece = threadIdx.x / WARP;
        place.pieces = warps;
        return place;
    }

    INLINE u32 slot() const { return exchanges & 1; }

    // Prepares the barriers for exchanges; `opened` waits until every block of the cluster has done
    // so.
    INLINE void open() const {
        if (cluster.size == 1) return;
        if (threadIdx.x == 0) {
            exchange->arrivals[0].init();
            exchange->arrivals[1].init();
            Arrivals::publish_init();
            exchange->arrivals[0].expect(pieces * VALUES * 8);
            exchange->arrivals[1].expect(pieces * VALUES * 8);
        }
        cluster.arrive_started();
    }

    INLINE void opened() const {
        if (cluster.size > 1) cluster.wait_started();
    }

    // Publishes this warp's values, the same in all its lanes, to the first `blocks` blocks of the
    // cluster. In these blocks, `await` waits until the values of all warps have arrived.
    INLINE void publish(const u64 (&values)[VALUES], u32 blocks) {
        exchanges += 1;
        if (lane < blocks) {
#pragma unroll
            for (u32 i = 0; i < VALUES; ++i) {
                u64* const at = &exchange->values[slot()][i][piece];
                if (cluster.size == 1) {
                    *at = values[i];
                } else {
                    cluster.put(at, &exchange->arrivals[slot()].word, lane, values[i]);
                }
            }
        }
    }

    INLINE void await() const {
        if (cluster.size == 1) {
            __syncthreads();
            return;
        }
        Arrivals& arrivals = exchange->arrivals[slot()];
        arrivals.wait((exchanges - 1) >> 1 & 1);
        // Prepares the slot for its next exchange, which cannot complete before this one.
        if (threadIdx.x == 0) arrivals.expect(pieces * VALUES * 8);
        __syncwarp();
    }

    // A value that warp `piece` published.
    INLINE u64 published(u32 value, u32 piece) const {
        return exchange->values[slot()][value][piece];
    }

    INLINE u64 reduce_max(u32 value) const {
        u64 largest = 0;
        for (u32 i = lane; i < pieces; i += WARP) largest = max(largest, published(value, i));
        return warp_max(largest);
    }
};

// ---- requests -----------------------------------------------------------------

// Loads four bytes if `wanted`, else returns 0. A branch would wait for loads that are in flight.
INLINE u32 load_if(bool wanted, const void* from) {
    u32 word = 0;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1]; }"
                 : "+r"(word)
                 : "l"(from), "r"(static_cast<u32>(wanted)));
    return word;
}

// An integer whose load is issued by the constructor and awaited by `value`; 0 if not wanted.
struct LoadingInteger {
    bool wide;
    u32 low;
    u32 high;

    INLINE LoadingInteger(bool wanted, const Integers& from, u64 i) : wide(from.wide != 0) {
        const u32* const words = static_cast<const u32*>(from.data) + (wide ? 2 * i : i);
        low = load_if(wanted, words);
        high = load_if(wanted && wide, words + 1);
    }

    INLINE i64 value() const {
        return wide ? static_cast<i64>(static_cast<u64>(high) << 32 | low)
                    : static_cast<i64>(static_cast<i32>(low));
    }
};

// The draft tokens of a request: `count` tokens from `start` on, clamped to the valid range; `bits`
// has the flags of what was invalid.
struct Tokens {
    u64 start;
    u32 count;
    u32 bits;
};

// The offsets at which the tokens of a request begin and end.
struct Offsets {
    LoadingInteger before;
    LoadingInteger end;

    template <typename T>
    INLINE Offsets(const Params<T>& p, u32 request)
        : before(request + p.leading > 0, p.offsets, static_cast<u64>(request) + p.leading - 1),
          end(true, p.offsets, static_cast<u64>(request) + p.leading) {}
};

template <typename T>
INLINE Tokens tokens_of(const Params<T>& p, const Offsets& offsets) {
    const i64 start = offsets.before.value();
    const i64 end = offsets.end.value();
    if (start < 0 || end < start || end > static_cast<i64>(p.tokens)) return {0, 0, BAD_LENGTHS};
    const u64 count = static_cast<u64>(end - start);
    const u32 cut = static_cast<u32>(min(count, static_cast<u64>(p.max_spec_len)));
    return {static_cast<u64>(start), cut, count > cut ? BAD_LENGTHS : 0};
}

// The random numbers of one draft of a request.
template <typename T>
INLINE Draw draw(const Params<T>& p, u32 request, u32 draft, Purpose purpose) {
    // Unsigned, so that positions wrap around.
    return Draw(p.seeds[request], static_cast<u64>(p.positions[request]) + draft, purpose);
}

// A draft token, and its uniform random number if the caller provides one.
struct Draft {
    i64 id;
    float uniform;
};

template <typename T>
INLINE Draft draft_at(const Params<T>& p, u64 token) {
    return {p.draft_ids[token], p.uniform != nullptr ? p.uniform[token] : 0.0f};
}

// What verifying a request needs, loaded before the request's offsets are known: the guess is that
// every request has `p.usual_drafts` drafts, so that the request's tokens begin at `start`.
struct Guess {
    u64 start;
    // The draft of each lane, counted from `start`.
    LoadingInteger id;
    float uniform;

    template <typename T>
    INLINE Guess(const Params<T>& p, u32 request, u32 lane)
        : start(static_cast<u64>(request) * p.usual_drafts),
          id(lane < p.usual_drafts, p.draft_ids, start + lane) {
        const bool given = lane < p.usual_drafts && p.uniform != nullptr;
        uniform = __uint_as_float(load_if(given, p.uniform + start + lane));
    }

    INLINE Draft draft() const { return {id.value(), uniform}; }

    template <typename T>
    INLINE bool holds(const Params<T>& p, const Tokens& tokens) const {
        return tokens.start == start && tokens.count <= p.usual_drafts;
    }
};

// The seed and the position of a request, loaded while its offsets load.
struct Source {
    LoadingInteger seed;
    LoadingInteger position;

    template <typename T>
    INLINE Source(const Params<T>& p, u32 request)
        : seed(true, {p.seeds, 1}, request), position(true, p.positions, request) {}

    INLINE Draw draw(u32 draft, Purpose purpose) const {
        return Draw(seed.value(), static_cast<u64>(position.value()) + draft, purpose);
    }
};

// Writes all outputs of a request except its last token, which follows `accepted` drafts.
template <typename T, u32 VALUES>
INLINE void write_counts(const Params<T>& p, const Place<VALUES>& at, const Tokens& tokens,
                         u32 accepted) {
    // By the last warp of the cluster: the warps of the first block have the last token to find at
    // the same time.
    if (at.piece != at.pieces - 1) return;
    for (u32 k = at.lane; k <= p.max_spec_len; k += WARP) {
        if (k == accepted) continue;
        const bool drafted = k < accepted;
        const i32 token = drafted ? static_cast<i32>(p.draft_ids[tokens.start + k]) : -1;
        p.output.set(at.request, k, token);
    }
    if (at.lane == 0) {
        const bool all = accepted == tokens.count;
        p.emitted[at.request] = static_cast<i32>(accepted) + 1;
        p.accepted[at.request] = static_cast<i32>(accepted);
        p.recovered[at.request] = !all;
        p.bonus[at.request] = all;
    }
}

template <typename T, u32 VALUES>
INLINE void write_bonus(const Params<T>& p, const Place<VALUES>& at, u32 accepted) {
    if (!at.leads()) return;
    const i64 id = p.bonus_ids[at.request];
    const bool valid = id >= 0 && id < static_cast<i64>(p.vocab);
    if (!valid) raise(p.flags, OUT_OF_RANGE);
    p.output.set(at.request, accepted, valid ? static_cast<i32>(id) : 0);
}

// Checks the drafts in order. Returns the index of the first rejected draft, or the number of
// drafts. Raises flags for invalid data in the drafts up to there.
template <typename T, u32 VALUES>
INLINE u32 walk(const Params<T>& p, const Place<VALUES>& at, const Tokens& tokens,
                const Guess& guess) {
    u32 met = tokens.bits;
    Draft its = guess.draft();
    bool known = guess.holds(p, tokens);
    u32 rejected = tokens.count;
    for (u32 first = 0; first < tokens.count; first += WARP) {
        const u32 k = first + at.lane;
        bool accepts = true;
        u32 bits = 0;
        if (k < tokens.count) {
            const u64 token = tokens.start + k;
            if (!known) its = draft_at(p, token);
            const i64 id = its.id;
            if (id < 0 || id >= static_cast<i64>(p.vocab)) {
                accepts = false;
                bits = OUT_OF_RANGE;
            } else {
                const float target = to_f32(p.target[token][id]);
                const float draft = p.draft.data != nullptr ? to_f32(p.draft[token][id]) : 1.0f;
                const float u = p.uniform != nullptr
                                    ? its.uniform
                                    : draw(p, at.request, k, Purpose::ACCEPT).uniform();
                accepts = exact::accepts(target, draft, u);
                const bool finite =
                    exact::finite(target) && exact::finite(draft) && exact::finite(u);
                bits = finite ? 0 : NON_FINITE;
            }
        }
        known = false;
        const u32 refused = __ballot_sync(ALL_LANES, !accepts);
        const u32 reached = refused == 0 ? WARP : __ffs(refused);
        met |= __reduce_or_sync(ALL_LANES, at.lane < reached ? bits : 0);
        if (refused != 0) {
            rejected = first + reached - 1;
            break;
        }
    }
    if (at.leads()) raise(p.flags, met);
    return rejected;
}

// Writes the token with the largest finite target probability, for a row in which no residual is
// positive; token 0 if no target probability is finite. One block does this alone: it is so rare
// that the other blocks need not wait for it.
template <typename T>
__device__ __noinline__ void recover_from_target(const Params<T>& p, Place<1> at, Row<T> row,
                                                 u32 accepted) {
    at.publish({largest_of_row<false>(row, at.piece, at.pieces, at.lane).value}, at.cluster.size);
    at.await();
    const u64 key = at.reduce_max(0);
    if (at.leads()) {
        p.output.set(at.request, accepted, key == 0 ? 0 : static_cast<i32>(index_of(key)));
    }
}

// The row of a request's rejected token.
template <typename T>
INLINE Row<T> row_of(const Params<T>& p, const Tokens& tokens, u32 accepted) {
    const u64 token = tokens.start + accepted;
    Row<T> row = {p.target[token], nullptr, NONE, p.vocab};
    if (p.draft.data != nullptr) {
        row.draft = p.draft[token];
    } else {
        const i64 id = p.draft_ids[token];
        if (id >= 0 && id < static_cast<i64>(p.vocab)) row.skipped = static_cast<u32>(id);
    }
    return row;
}

// Shared memory of a block that recovers a token by a race.
struct RaceMemory {
    ClusterExchange<1> exchange;
    // Counts the bytes that the other blocks send to the leading block.
    Arrivals sent;
    union {
        struct {
            LeaderRace::Shared race;
            PicksOfWarp picks[MAX_WARPS];
            alignas(16) float tops[LeaderRace::MAX_GROUPS];
        } leader;
        // For rows with more than LeaderRace::MAX_GROUPS groups.
        struct {
            Team::Shared exchange;
            RaceShared races;
        } team;
    };

    INLINE void open(const Senders& blocks) {
        if (blocks.size == 1) return;
        LeaderRace::open(blocks, sent);
    }
};

// Recovers a token by the race of the residuals, which the first block ends alone; the other blocks
// end once they have sent their results. `range` has the warp's groups. By blocks of
// SELECT_THREADS.
template <typename T>
INLINE void recover_by_leader(const Params<T>& p, const Place<1>& at, const WarpRange& range,
                              const Tokens& tokens, u32 accepted, const Draw& draw,
                              RaceMemory& memory) {
    const LeaderRace leader(memory.leader.race, memory.leader.tops, p.vocab);
    if (threadIdx.x == 0) memory.leader.race.begin();
    const ResidualGroups<T> groups = {row_of(p, tokens, accepted)};
    const ResidualFilter filter;
    const Picks<ResidualGroups<T>> picks(memory.leader.picks[leader.warp], groups, range.begin,
                                         range.end);
    LeaderRace::Noise<Picks<ResidualGroups<T>>, ResidualFilter> noise(leader, picks, range, filter);
    const auto visit = [&](u32 group, float its) { memory.leader.tops[group] = its; };
    const auto meanwhile = [&](u32 group) {
        if (group >= noise.next) noise.advance(draw, ByResidual());
    };
    const bool nonfinite = groups.survey(range.begin, range.end, at.lane, visit, meanwhile, picks);
    if (__any_sync(ALL_LANES, nonfinite) && at.lane == 0) raise(p.flags, NON_FINITE);
    leader.fill_up(range);
    noise.finish(draw, ByResidual(), at.piece);
    at.opened();
    if (!at.in_front()) leader.send(at.cluster, memory.sent, range, at.piece);
    write_counts(p, at, tokens, accepted);
    if (!at.in_front()) return;

    leader.await(at.cluster, memory.sent);
    const ResidualRacers<T> racers = {draw, groups};
    const u64 early = leader.front<false>(ByResidual(), at.pieces).early;
    const u64 winner = leader.winner(racers, at.pieces, early);
    if (winner == NEVER) return recover_from_target(p, at.alone(), groups.row, accepted);
    if (at.leads()) p.output.set(at.request, accepted, static_cast<i32>(winner));
}

// Recovers a token by the race of the residuals, which all blocks end together: for rows with more
// than LeaderRace::MAX_GROUPS groups.
template <typename T>
__device__ __noinline__ void recover_by_team(const Params<T>& p, Place<1> at, Tokens tokens,
                                             u32 accepted, Draw noise, RaceMemory& memory) {
    // The cluster barrier that `RaceMemory::open` began must end before the team begins another.
    at.opened();
    RaceShared& races = memory.team.races;
    Team team(memory.team.exchange);
    if (team.blocks.size > 1) team.blocks.arrive_started();
    const ResidualGroups<T> groups = {row_of(p, tokens, accepted)};
    const WarpRange range(p.vocab, team.piece(), team.pieces());
    float* const tops = races.tops_of(team.warp, range.begin, p.vocab);
    const auto survey = [&](u32 begin, u32 end) {
        return groups.survey(begin, end, team.lane,
                             [&](u32 group, float its) { tops[group - begin] = its; }, [](u32) {});
    };
    const bool fits = WarpRange::max_groups(p.vocab, team.pieces()) <= RaceShared::KEPT;
    bool nonfinite = false;
    if (fits) nonfinite = survey(range.begin, range.end);
    __syncwarp();
    write_counts(p, at, tokens, accepted);
    if (threadIdx.x == 0) races.begin_lists();
    __syncthreads();
    if (team.blocks.size > 1) team.blocks.wait_started();
    const ResidualRacers<T> racers = {noise, groups};
    const uint4 high = first_noise(noise, range.begin, team.lane);
    const u64 first = first_to_finish(racers, team, races, p.vocab, high, [&](u32 begin, u32 end) {
        nonfinite = survey(begin, end) || nonfinite;
        __syncwarp();
    });
    if (__any_sync(ALL_LANES, nonfinite) && at.lane == 0) raise(p.flags, NON_FINITE);
    u32 token = static_cast<u32>(first);
    if (first == NEVER) {
        const Found own = largest_of_row<false>(groups.row, team.piece(), team.pieces(), team.lane);
        team.publish(own.value);
        u64 key = 0;
        for (u32 i = team.lane; i < team.pieces(); i += WARP) key = max(key, team.published(i));
        key = warp_max(key);
        token = key == 0 ? 0 : index_of(key);
    }
    if (at.leads()) p.output.set(at.request, accepted, static_cast<i32>(token));
}

// Ends a request whose drafts are all accepted.
template <typename T>
INLINE void accept_all(const Params<T>& p, const Place<1>& at, const Tokens& tokens) {
    at.opened();
    write_counts(p, at, tokens, tokens.count);
    write_bonus(p, at, tokens.count);
}

template <typename T>
INLINE void sample(const Params<T>& p, u32 request, RaceMemory& memory) {
    const Offsets offsets(p, request);
    const Guess guess(p, request, lane_id());
    const Source source(p, request);
    Place<1> at(memory.exchange);
    // While the first loads are in flight.
    memory.open(at.cluster);
    const WarpRange range(p.vocab, at.piece, at.pieces);
    const Tokens tokens = tokens_of(p, offsets);
    const u32 accepted = walk(p, at, tokens, guess);
    if (accepted == tokens.count) return accept_all(p, at, tokens);
    const Draw draw = source.draw(accepted, Purpose::RECOVER);
    if (p.vocab <= LeaderRace::MAX_GROUPS * GROUP) {
        recover_by_leader(p, at, range, tokens, accepted, draw, memory);
    } else {
        recover_by_team(p, at, tokens, accepted, draw, memory);
    }
}

template <typename T>
INLINE void argmax(const Params<T>& p, u32 request, ClusterExchange<1>& exchange) {
    const Offsets offsets(p, request);
    const Guess guess(p, request, lane_id());
    Place<1> at(exchange);
    // While the first loads are in flight.
    at.open();
    const Tokens tokens = tokens_of(p, offsets);
    const u32 accepted = walk(p, at, tokens, guess);
    if (accepted == tokens.count) return accept_all(p, at, tokens);
    const Row<T> row = row_of(p, tokens, accepted);
    const Found own = same_alignment(row) ? largest_of_row<true>(row, at.piece, at.pieces, at.lane)
                                 : largest_unaligned(row, at.piece, at.pieces, at.lane);
    // All blocks have started, so their shared memory can be written.
    at.opened();
    at.publish({own.value}, 1);
    // While the values of other blocks are in flight.
    write_counts(p, at, tokens, accepted);
    if (own.nonfinite && at.lane == 0) raise(p.flags, NON_FINITE);
    if (!at.in_front()) return;
    at.await();
    const u64 key = at.reduce_max(0);
    if (key == 0) return recover_from_target(p, at.alone(), row, accepted);
    if (at.leads()) p.output.set(at.request, accepted, static_cast<i32>(index_of(key)));
}

template <typename T>
INLINE void greedy(const Params<T>& p, u32 request, ClusterExchange<MAX_ROWS + 1>& exchange) {
    const Tokens tokens = tokens_of(p, Offsets(p, request));
    Place<MAX_ROWS + 1> at(exchange);
    u32 met = tokens.bits;
    u32 accepted = 0;
    u32 emitted = NONE;
    if (tokens.count > 0) {
        at.open();
        at.opened();
    }
    // Reads `rows_ahead` rows before it is known whether their drafts are reached.
    while (accepted < tokens.count && emitted == NONE) {
        const u32 rows = min(p.rows_ahead, tokens.count - accepted);
        // The key of each row's largest entry; then one bit for each row with an entry that is not
        // finite.
        u64 keys[MAX_ROWS + 1] = {};
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            if (i < rows) {
                const Row<T> row = {p.target[tokens.start + accepted + i], nullptr, NONE, p.vocab};
                const Found own = largest_of_row<false>(row, at.piece, at.pieces, at.lane);
                keys[i] = own.value;
                if (own.nonfinite) keys[MAX_ROWS] |= 1u << i;
            }
        }
        at.publish(keys, at.cluster.size);
        at.await();
        u32 nonfinite = 0;
        for (u32 i = at.lane; i < at.pieces; i += WARP) {
            nonfinite |= static_cast<u32>(at.published(MAX_ROWS, i));
        }
        nonfinite = __reduce_or_sync(ALL_LANES, nonfinite);
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            const u64 key = at.reduce_max(i);
            if (i < rows && emitted == NONE) {
                const u32 argmax = key == 0 ? 0 : index_of(key);
                const i64 id = p.draft_ids[tokens.start + accepted];
                if (nonfinite >> i & 1) met |= NON_FINITE;
                if (id < 0 || id >= static_cast<i64>(p.vocab)) met |= OUT_OF_RANGE;
                if (id == static_cast<i64>(argmax)) {
                    accepted += 1;
                } else {
                    emitted = argmax;
                }
            }
        }
    }
    write_counts(p, at, tokens, accepted);
    if (emitted == NONE) {
        write_bonus(p, at, accepted);
    } else if (at.leads()) {
        p.output.set(at.request, accepted, static_cast<i32>(emitted));
    }
    if (at.leads()) raise(p.flags, met);
}

// What a request does that does not follow the target's argmax: takes the argmax of the residual,
// or samples from it.
enum class Recovery { ARGMAX, SAMPLE };

// Shared memory of a block, which depends on what its request does.
template <Recovery RECOVERY>
union Memory {
    ClusterExchange<MAX_ROWS + 1> rows;
    ClusterExchange<1> row;
};
template <>
union Memory<Recovery::SAMPLE> {
    ClusterExchange<MAX_ROWS + 1> rows;
    RaceMemory race;
};

template <Recovery RECOVERY, typename T>
INLINE void verify(const Params<T>& p) {
    __shared__ Memory<RECOVERY> memory;
    const u32 request = cluster_index();
    const bool follows = p.greedy.data != nullptr ? p.greedy[request] : p.all_greedy != 0;
    if (follows) return greedy(p, request, memory.rows);
    if constexpr (RECOVERY == Recovery::SAMPLE) {
        sample(p, request, memory.race);
    } else {
        argmax(p, request, memory.row);
    }
}

#define VERIFIERS(dtype, T)                                                                    \
    SPEC_KERNEL_BLOCKS(rejection_sample_argmax_##dtype, (verify<Recovery::ARGMAX, T>), Params<T>, \
                       THREADS, ARGMAX_SHARING)                                                 \
    SPEC_KERNEL_BLOCKS(rejection_sample_sample_##dtype, (verify<Recovery::SAMPLE, T>), Params<T>, \
                       THREADS, RACING_SHARING)

VERIFIERS(f32, float)
VERIFIERS(f16, f16)
VERIFIERS(bf16, bf16)
