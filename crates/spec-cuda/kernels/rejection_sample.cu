// rejection_sample: verifies the draft tokens of each request.
//
// A cluster of blocks owns a request (one block where there are no clusters).
// Every warp of it walks the drafts, a lane a draft: a handful of numbers that
// all warps read alike, which is cheaper than telling them. What costs is the
// row of the rejected token: a vocabulary of target and draft, read once. It is
// cut into as many pieces as the cluster has warps (vocab_row.cuh). What a warp
// finds in its piece it sends to the shared memory of every block of the cluster,
// where a barrier counts what has come, so that each block knows all:
//
// * argmax: the largest (residual, inverse index) of all;
// * sample: the largest residual of each group of 64 tokens; then the tokens race
//   (race.cuh), of which about 50 are looked at;
// * greedy: the argmax of a few rows at a time, since the walk needs it. Mixed
//   batches have both kinds of requests: each cluster does as its own says.
//
// Bytes: two rows a request, 32 * 2 * 128256 * 4 = 33 MB at batch 32: 11 us at
// 3.0 TB/s. At batch 1 it is latency: offsets, tokens, probabilities, row.
#include "params/rejection_sample.cuh"
#include "residual_groups.cuh"

constexpr u32 THREADS = SELECT_THREADS;
constexpr u32 MAX_WARPS = THREADS / WARP;
constexpr u32 MAX_ROWS = 4;
static_assert(MAX_PIECES == MAX_WARPS * MAX_CLUSTER);

// ---- clusters -----------------------------------------------------------------

// Which cluster of the grid it is, without a division.
INLINE u32 cluster_index() {
    u32 index = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
    return index;
}

// Where the warps of a cluster meet: VALUES numbers of each, in every block. Two
// of it, in turn: nobody is two meetings ahead of anybody.
template <u32 VALUES>
struct Meeting {
    u64 values[2][VALUES][MAX_PIECES];
    Arrivals arrivals[2];
};

// This warp's place in its request.
template <u32 VALUES>
struct Place {
    Meeting<VALUES>* meeting;
    Senders cluster;
    u32 request;
    u32 lane;
    u32 warps;
    u32 piece;
    u32 pieces;
    // Meetings so far; the latest has the turn of its parity.
    u32 meetings;

    INLINE Place(Meeting<VALUES>& shared)
        : meeting(&shared), request(cluster_index()), lane(lane_id()),
          warps(blockDim.x / WARP), piece(cluster.rank * warps + threadIdx.x / WARP),
          pieces(cluster.size * warps), meetings(0) {}

    // The one thread that writes for the request.
    INLINE bool leads() const { return piece == 0 && lane == 0; }

    INLINE u32 turn() const { return meetings & 1; }

    // Prepares for meetings; `opened` waits until every block of the cluster has.
    INLINE void open() const {
        if (cluster.size == 1) return;
        if (threadIdx.x == 0) {
            meeting->arrivals[0].init();
            meeting->arrivals[1].init();
            Arrivals::publish_init();
            meeting->arrivals[0].expect(pieces * VALUES * 8);
            meeting->arrivals[1].expect(pieces * VALUES * 8);
        }
        cluster.arrive_started();
    }

    INLINE void opened() const {
        if (cluster.size > 1) cluster.wait_started();
    }

    // Tells this warp's values, the same in all its lanes, to the whole cluster;
    // `await` waits until all have told theirs.
    INLINE void tell(const u64 (&values)[VALUES]) {
        meetings += 1;
        if (lane < cluster.size) {
#pragma unroll
            for (u32 i = 0; i < VALUES; ++i) {
                u64* const at = &meeting->values[turn()][i][piece];
                if (cluster.size == 1) {
                    *at = values[i];
                } else {
                    cluster.put(at, &meeting->arrivals[turn()].word, lane, values[i]);
                }
            }
        }
    }

    INLINE void await() const {
        if (cluster.size == 1) {
            __syncthreads();
            return;
        }
        Arrivals& arrivals = meeting->arrivals[turn()];
        arrivals.wait((meetings - 1) >> 1 & 1);
        // For the meeting after the next, which cannot end before this.
        if (threadIdx.x == 0) arrivals.expect(pieces * VALUES * 8);
        __syncwarp();
    }

    // What warp `piece` told.
    INLINE u64 told(u32 value, u32 piece) const { return meeting->values[turn()][value][piece]; }

    INLINE u64 largest_told(u32 value) const {
        u64 largest = 0;
        for (u32 i = lane; i < pieces; i += WARP) largest = max(largest, told(value, i));
        return warp_max(largest);
    }
};

// ---- requests -----------------------------------------------------------------

// The tokens of a request, cut to what is valid.
struct Tokens {
    u64 start;
    u32 count;
    u32 bits;
};

template <typename T>
INLINE Tokens tokens_of(const Params<T>& p, u32 request) {
    const u64 last = static_cast<u64>(request) + p.leading;
    // Both loads at once, whether the first is wanted or not: no branch between.
    const i64 before = p.offsets[last == 0 ? 0 : last - 1];
    const i64 end = p.offsets[last];
    const i64 start = last == 0 ? 0 : before;
    if (start < 0 || end < start || end > static_cast<i64>(p.tokens)) return {0, 0, BAD_LENGTHS};
    const u64 count = static_cast<u64>(end - start);
    const u32 cut = static_cast<u32>(min(count, static_cast<u64>(p.max_spec_len)));
    return {static_cast<u64>(start), cut, count > cut ? BAD_LENGTHS : 0};
}

// The random numbers of a request's draft.
template <typename T>
INLINE Draw draw(const Params<T>& p, u32 request, u32 draft, Purpose purpose) {
    // Unsigned, so that positions wrap around.
    return Draw(p.seeds[request], static_cast<u64>(p.positions[request]) + draft, purpose);
}

// Has what `draw` loads come near, for later.
template <typename T>
INLINE void prefetch_draw(const Params<T>& p, u32 request) {
    const u32 bytes = p.positions.wide ? 8 : 4;
    const u64 position = reinterpret_cast<u64>(p.positions.data) + static_cast<u64>(request) * bytes;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.seeds + request));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(position));
}

// Writes everything but the last token, which follows `accepted` drafts.
template <typename T, u32 VALUES>
INLINE void write_counts(const Params<T>& p, const Place<VALUES>& at, const Tokens& tokens,
                         u32 accepted) {
    // Not the warp that leads: it has the last token to find meanwhile.
    if (at.piece != min(1u, at.pieces - 1)) return;
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

// The position of the first rejection, or the count. Raises what it met.
template <typename T, u32 VALUES>
INLINE u32 walk(const Params<T>& p, const Place<VALUES>& at, const Tokens& tokens) {
    u32 met = tokens.bits;
    u32 rejected = tokens.count;
    for (u32 first = 0; first < tokens.count; first += WARP) {
        const u32 k = first + at.lane;
        bool accepts = true;
        u32 bits = 0;
        if (k < tokens.count) {
            const u64 token = tokens.start + k;
            const i64 id = p.draft_ids[token];
            if (id < 0 || id >= static_cast<i64>(p.vocab)) {
                accepts = false;
                bits = OUT_OF_RANGE;
            } else {
                const float target = to_f32(p.target[token][id]);
                const float draft = p.draft.data != nullptr ? to_f32(p.draft[token][id]) : 1.0f;
                const float u = p.uniform != nullptr
                                    ? p.uniform[token]
                                    : draw(p, at.request, k, Purpose::ACCEPT).uniform();
                accepts = exact::accepts(target, draft, u);
                const bool finite =
                    exact::finite(target) && exact::finite(draft) && exact::finite(u);
                bits = finite ? 0 : NON_FINITE;
            }
        }
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

// The largest finite target, where no residual is positive; token 0 for none.
template <typename T>
__device__ __noinline__ void recover_from_target(const Params<T>& p, Place<1> at, Row<T> row,
                                                 u32 accepted) {
    constexpr u32 N = Pack<T>::N;
    at.tell({largest_by<false, N>(row, at.piece, at.pieces, at.lane).value});
    at.await();
    const u64 key = at.largest_told(0);
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

// Recovers a token by the race of the residuals. By blocks of THREADS.
template <typename T>
INLINE void recover_by_race(const Params<T>& p, const Place<1>& at, const Tokens& tokens, u32 accepted) {
    __shared__ Team::Shared told;
    __shared__ RaceShared races;
    Team team(told);
    if (team.blocks.size > 1) team.blocks.arrive_started();
    const ResidualGroups<T> groups = {row_of(p, tokens, accepted)};
    const Share share(p.vocab, team.piece(), team.pieces());
    float* const tops = races.tops_of(team.warp, share.begin, p.vocab);
    const auto survey = [&](u32 begin, u32 end) {
        return groups.survey(begin, end, team.lane,
                             [&](u32 group, float its) { tops[group - begin] = its; });
    };
    const bool fits = Share::most(p.vocab, team.pieces()) <= RaceShared::KEPT;
    bool odd = false;
    if (fits) odd = survey(share.begin, share.end);
    __syncwarp();
    write_counts(p, at, tokens, accepted);
    const Draw noise = draw(p, at.request, accepted, Purpose::RECOVER);
    if (threadIdx.x == 0) races.begin_lists();
    __syncthreads();
    if (team.blocks.size > 1) team.blocks.wait_started();
    const ResidualRacers<T> racers = {noise, groups.row};
    const uint4 high = first_noise(noise, share.begin, team.lane);
    const u64 first = first_to_finish(racers, team, races, p.vocab, high, [&](u32 begin, u32 end) {
        odd = survey(begin, end) || odd;
        __syncwarp();
    });
    if (__any_sync(ALL_LANES, odd) && at.lane == 0) raise(p.flags, NON_FINITE);
    u32 token = static_cast<u32>(first);
    if (first == NEVER) {
        constexpr u32 N = Pack<T>::N;
        const Found own = largest_by<false, N>(groups.row, team.piece(), team.pieces(), team.lane);
        team.tell(own.value);
        u64 key = 0;
        for (u32 i = team.lane; i < team.pieces(); i += WARP) key = max(key, team.told(i));
        key = warp_max(key);
        token = key == 0 ? 0 : index_of(key);
    }
    if (at.leads()) p.output.set(at.request, accepted, static_cast<i32>(token));
}

template <bool SAMPLE, typename T>
INLINE void probabilistic(const Params<T>& p, const Tokens& tokens) {
    __shared__ Meeting<1> meeting;
    Place<1> at(meeting);
    if (SAMPLE && threadIdx.x == 0) prefetch_draw(p, at.request);
    const u32 accepted = walk(p, at, tokens);
    if (accepted == tokens.count) {
        write_counts(p, at, tokens, accepted);
        write_bonus(p, at, accepted);
        return;
    }
    if constexpr (SAMPLE) {
        recover_by_race(p, at, tokens, accepted);
    } else {
        // Once that is waited for, every block has started and can be written to.
        at.open();
        const Row<T> row = row_of(p, tokens, accepted);
        constexpr u32 N = Pack<T>::N;
        const Found own = alike(row) ? largest_by<true, N>(row, at.piece, at.pieces, at.lane)
                                     : largest_unaligned(row, at.piece, at.pieces, at.lane);
        at.opened();
        at.tell({own.value});
        // While the others get there.
        write_counts(p, at, tokens, accepted);
        if (own.odd && at.lane == 0) raise(p.flags, NON_FINITE);
        at.await();
        const u64 key = at.largest_told(0);
        if (key == 0) return recover_from_target(p, at, row, accepted);
        if (at.leads()) p.output.set(at.request, accepted, static_cast<i32>(index_of(key)));
    }
}

template <typename T>
INLINE void greedy(const Params<T>& p, const Tokens& tokens) {
    __shared__ Meeting<MAX_ROWS + 1> meeting;
    Place<MAX_ROWS + 1> at(meeting);
    u32 met = tokens.bits;
    u32 accepted = 0;
    u32 emitted = NONE;
    if (tokens.count > 0) {
        at.open();
        at.opened();
    }
    // `rows_ahead` rows before it is known whether the walk gets there.
    while (accepted < tokens.count && emitted == NONE) {
        const u32 rows = min(p.rows_ahead, tokens.count - accepted);
        // A key a row, and a bit a row that has an entry which is not finite.
        u64 keys[MAX_ROWS + 1] = {};
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            if (i < rows) {
                const Row<T> row = {p.target[tokens.start + accepted + i], nullptr, NONE, p.vocab};
                const Found own = largest_by<false, Pack<T>::N>(row, at.piece, at.pieces, at.lane);
                keys[i] = own.value;
                if (own.odd) keys[MAX_ROWS] |= 1u << i;
            }
        }
        at.tell(keys);
        at.await();
        u32 odd = 0;
        for (u32 i = at.lane; i < at.pieces; i += WARP) {
            odd |= static_cast<u32>(at.told(MAX_ROWS, i));
        }
        odd = __reduce_or_sync(ALL_LANES, odd);
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            const u64 key = at.largest_told(i);
            if (i < rows && emitted == NONE) {
                const u32 argmax = key == 0 ? 0 : index_of(key);
                const i64 id = p.draft_ids[tokens.start + accepted];
                if (odd >> i & 1) met |= NON_FINITE;
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

// What the requests of a batch do: draw from the residual or take its argmax, or
// follow the target, all of them or those that `greedy` names.
enum class Mode { ARGMAX, SAMPLE, GREEDY, MIXED_ARGMAX, MIXED_SAMPLE };

template <Mode MODE, typename T>
INLINE void verify(const Params<T>& p) {
    constexpr bool SAMPLE = MODE == Mode::SAMPLE || MODE == Mode::MIXED_SAMPLE;
    constexpr bool MIXED = MODE == Mode::MIXED_ARGMAX || MODE == Mode::MIXED_SAMPLE;
    const u32 request = cluster_index();
    const bool follows = MODE == Mode::GREEDY || (MIXED && p.greedy[request]);
    const Tokens tokens = tokens_of(p, request);
    if constexpr (MODE == Mode::GREEDY || MIXED) {
        if (follows) return greedy(p, tokens);
    }
    if constexpr (MODE != Mode::GREEDY) probabilistic<SAMPLE>(p, tokens);
}

#define VERIFIER(name, mode, T) \
    SPEC_KERNEL_BLOCKS(rejection_sample_##name, (verify<Mode::mode, T>), Params<T>, THREADS, 2)
#define VERIFIERS(dtype, T)                        \
    VERIFIER(argmax_##dtype, ARGMAX, T)            \
    VERIFIER(sample_##dtype, SAMPLE, T)            \
    VERIFIER(greedy_##dtype, GREEDY, T)            \
    VERIFIER(mixed_argmax_##dtype, MIXED_ARGMAX, T) \
    VERIFIER(mixed_sample_##dtype, MIXED_SAMPLE, T)

VERIFIERS(f32, float)
VERIFIERS(f16, f16)
VERIFIERS(bf16, bf16)
