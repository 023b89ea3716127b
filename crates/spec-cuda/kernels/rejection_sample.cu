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
// * sample: sums of 2^-40 units; the block whose piece holds the threshold reads
//   it again (from L2, into registers) to find the entry. Integers: any order gives the
//   same sum;
// * greedy: the argmax of a few rows at a time, since the walk needs it. Mixed
//   batches have both kinds of requests: each cluster does as its own says.
//
// Random numbers are made while the row is on its way.
//
// Bytes: two rows a request, 32 * 2 * 128256 * 4 = 33 MB at batch 32: 11 us at
// 3.0 TB/s. At batch 1 it is latency: offsets, tokens, probabilities, row.
#include "cluster.cuh"
#include "params/rejection_sample.cuh"
#include "philox.cuh"
#include "vocab_row.cuh"

constexpr u32 THREADS = 512;
constexpr u32 MAX_WARPS = THREADS / WARP;
constexpr u32 MAX_ROWS = 4;
constexpr u32 MAX_PIECES = MAX_WARPS * MAX_CLUSTER;

// ---- clusters -----------------------------------------------------------------

// Which cluster of the grid it is, without a division.
INLINE u32 cluster_index() {
    u32 index = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
    return index;
}

// The first lane whose inclusive sum exceeds the threshold, from which the sum
// before that lane is taken off.
INLINE u32 first_above(u64 through, u64 own, u64& threshold) {
    const u32 lane = __ffs(__ballot_sync(ALL_LANES, through > threshold)) - 1;
    threshold -= __shfl_sync(ALL_LANES, through - own, lane);
    return lane;
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

// The entry at which the running sum of all pieces first exceeds the threshold.
template <typename T>
INLINE void recover_by_sum(const Params<T>& p, const Place<1>& at, const Row<T>& row, u32 accepted,
                           u64 through, u64 sum, u32 each, u64 threshold) {
    // A lane holds the sum of `each` pieces: first the lane, then the piece.
    const u32 first = first_above(through, sum, threshold) * each;
    const u64 own = at.lane < each ? at.told(0, first + at.lane) : 0;
    const u32 piece = first + first_above(warp_inclusive_sum(own, at.lane), own, threshold);
    const u32 warp = threadIdx.x / WARP;
    // No division: warps are as many as a power of two.
    if (piece - (at.piece - warp) >= at.warps) return;
    // Each lane of its block has a few entries, and one of them the threshold.
    __shared__ u64 sums[MAX_WARPS];
    const Range range = entries_of(row, piece, at.pieces);
    const u32 length = (range.end - range.begin + blockDim.x - 1) >> (31 - __clz(blockDim.x));
    const u32 begin = min(range.begin + threadIdx.x * length, range.end);
    const Range few = {begin, min(begin + length, range.end)};
    // As a rule they stay in registers, and are found there. Each one more that could stay
    // costs all: 5 is what 151936 entries need in 16 blocks of 256 threads.
    constexpr u32 KEPT = 5;
    const bool kept = length <= KEPT;
    u64 quanta[KEPT];
    u64 of_lane = 0;
    if (kept) {
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i) {
            const u64 quantum = row.quantum(min(few.begin + i, range.end - 1));
            quanta[i] = few.begin + i < few.end ? quantum : 0;
            of_lane += quanta[i];
        }
    } else {
        of_lane = sum_few(row, few);
    }
    const u64 of_lanes = warp_inclusive_sum(of_lane, at.lane);
    if (at.lane == WARP - 1) sums[warp] = of_lanes;
    __syncthreads();
    const u64 of_warp = at.lane < at.warps ? sums[at.lane] : 0;
    if (first_above(warp_inclusive_sum(of_warp, at.lane), of_warp, threshold) != warp) return;
    if (first_above(of_lanes, of_lane, threshold) != at.lane) return;
    u32 found = few.begin;
    if (kept) {
        u64 sum = 0;
#pragma unroll
        for (u32 i = 0; i + 1 < KEPT; ++i) {
            sum += quanta[i];
            found += sum <= threshold ? 1 : 0;
        }
    } else {
        found = find_entry(row, few, threshold);
    }
    p.output.set(at.request, accepted, static_cast<i32>(found));
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
    // Once that is waited for, every block has started and can be written to.
    at.open();
    const u64 token = tokens.start + accepted;
    Row<T> row = {p.target[token], nullptr, NONE, p.vocab};
    if (p.draft.data != nullptr) {
        row.draft = p.draft[token];
    } else {
        const i64 id = p.draft_ids[token];
        if (id >= 0 && id < static_cast<i64>(p.vocab)) row.skipped = static_cast<u32>(id);
    }
    Found own;
    if constexpr (SAMPLE) {
        own = sum_of_piece(row, at.piece, at.pieces, at.lane);
    } else {
        constexpr u32 N = Pack<T>::N;
        own = alike(row) ? largest_by<true, N>(row, at.piece, at.pieces, at.lane)
                         : largest_unaligned(row, at.piece, at.pieces, at.lane);
    }
    at.opened();
    at.tell({own.value});
    // While the others get there.
    write_counts(p, at, tokens, accepted);
    if (own.odd && at.lane == 0) raise(p.flags, NON_FINITE);
    u64 random = 0;
    if constexpr (SAMPLE) {
        random = draw(p, at.request, accepted, Purpose::RECOVER).bits();
        // Now, whatever the compiler would rather do: the wait has time for it.
        asm volatile("" : "+l"(random));
    }
    at.await();

    if constexpr (SAMPLE) {
        const u32 each = (at.pieces + WARP - 1) / WARP;
        u64 sum = 0;
        for (u32 i = 0; i < each; ++i) {
            const u32 piece = at.lane * each + i;
            if (piece < at.pieces) sum += at.told(0, piece);
        }
        const u64 through = warp_inclusive_sum(sum, at.lane);
        const u64 total = __shfl_sync(ALL_LANES, through, WARP - 1);
        if (total == 0) return recover_from_target(p, at, row, accepted);
        const u64 threshold = exact::sample_threshold(random, total);
        recover_by_sum(p, at, row, accepted, through, sum, each, threshold);
    } else {
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
