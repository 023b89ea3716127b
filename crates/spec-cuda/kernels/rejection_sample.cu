// rejection_sample: verifies the draft tokens of each request.
//
// A cluster of blocks owns a request (one block where there are no clusters).
// Every warp of it walks the drafts, a lane a draft: a handful of numbers that
// all warps read alike, which is cheaper than telling them. What costs is the
// row of the rejected token: a vocabulary of target and draft, read once. It is
// cut into as many contiguous pieces as the cluster has warps:
//
//     row      | head | 16-byte vectors ...................... | tail |
//     warps    |  0         |  1         |  2         |   ...   last  |
//
// Lanes stride over a piece by 16 bytes, four loads of each row in flight. Warps
// meet in shared memory, blocks by writing into each other's, with one barrier
// of the cluster:
//
// * argmax: the largest (residual, inverse index) of all;
// * sample: sums of 2^-40 units; whoever holds the threshold reads that piece
//   again (from L2) to find the entry. Integers: any order gives the same sum;
// * greedy: the argmax of a few rows at a time, since the walk needs it.
//
// Bytes: two rows a request, 32 * 2 * 128256 * 4 = 33 MB at batch 32: 11 us at
// 3.0 TB/s. At batch 1 it is latency: offsets, tokens, probabilities, row.
#include "common.cuh"

template <typename T>
struct Params {
    Rows<const T> target;
    Rows<const T> draft;
    Integers draft_ids;
    Integers bonus_ids;
    Integers offsets;
    const float* uniform;
    const u64* random;
    Rows<i32> output;
    i32* emitted;
    i32* accepted;
    i32* recovered;
    i32* bonus;
    u32* flags;
    u64 tokens;
    u32 vocab;
    u32 max_spec_len;
    u32 rows_ahead;
    u32 reserved;
};
static_assert(sizeof(Params<float>) == 176);

constexpr u32 THREADS = 512;
constexpr u32 MAX_WARPS = THREADS / WARP;
constexpr u32 MAX_CLUSTER = 16;
constexpr u32 MAX_ROWS = 4;
constexpr u32 NONE = 0xFFFFFFFFu;
constexpr float LARGEST = 3.402823466e38f;

// ---- clusters -----------------------------------------------------------------

struct Cluster {
    u32 size;
    u32 rank;

    INLINE Cluster() {
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
        size = 1;
        rank = 0;
#endif
    }

    INLINE void arrive() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }

    INLINE void wait() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // Stores into the shared memory of another block, at the place of `at` here.
    INLINE void put(u64* at, u32 to, u64 value) const {
#if __CUDA_ARCH__ >= 900
        const u32 here = static_cast<u32>(__cvta_generic_to_shared(at));
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(to));
        asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
#else
        *at = value;
#endif
    }
};

INLINE u64 shuffle_xor(u64 v, u32 o) { return __shfl_xor_sync(ALL_LANES, v, o); }

// The largest of 64-bit values, by two 32-bit reductions.
INLINE u64 warp_max(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 top = __reduce_max_sync(ALL_LANES, high);
    const u32 low = __reduce_max_sync(ALL_LANES, high == top ? static_cast<u32>(v) : 0u);
    return static_cast<u64>(top) << 32 | low;
}

INLINE u64 warp_sum(u64 v) {
#pragma unroll
    for (u32 o = 16; o > 0; o /= 2) v += shuffle_xor(v, o);
    return v;
}

INLINE u64 warp_inclusive_sum(u64 v, u32 lane) {
#pragma unroll
    for (u32 o = 1; o < WARP; o *= 2) {
        const u64 below = __shfl_up_sync(ALL_LANES, v, o);
        if (lane >= o) v += below;
    }
    return v;
}

// Where warps of a block and blocks of a cluster meet. Two of each, in turn, so
// that one barrier an exchange is enough.
struct Meeting {
    u64 warps[2][MAX_ROWS + 1][MAX_WARPS];
    u64 ranks[2][MAX_ROWS + 1][MAX_CLUSTER];
};

// This thread's place in its request.
struct Place {
    Cluster cluster;
    Meeting& meeting;
    u32 request;
    u32 lane;
    u32 warp;
    u32 warps;
    u32 turn;

    INLINE Place(Meeting& meeting)
        : meeting(meeting), request(blockIdx.x / cluster.size), lane(lane_id()),
          warp(threadIdx.x / WARP), warps(blockDim.x / WARP), turn(0) {}

    // Lane i < size gets block i's combination of its warps' values (slot 0 of
    // `values`, the same in all lanes of a warp), for `count` values at once.
    template <u32 COUNT, typename Combine>
    INLINE void exchange(u64 (&values)[COUNT], u32 count, Combine combine) {
        const u32 t = turn;
        turn ^= 1;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            if (i < count && lane == 0) meeting.warps[t][i][warp] = values[i];
        }
        __syncthreads();
        if (cluster.size == 1) {
#pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                if (i < count) {
                    const u64 v = combine(i, lane < warps ? meeting.warps[t][i][lane] : 0);
                    values[i] = lane == 0 ? v : 0;
                }
            }
            return;
        }
        if (warp == 0) {
#pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                if (i < count) {
                    const u64 v = combine(i, lane < warps ? meeting.warps[t][i][lane] : 0);
                    if (lane < cluster.size) {
                        cluster.put(&meeting.ranks[t][i][cluster.rank], lane, v);
                    }
                }
            }
        }
        cluster.arrive();
        cluster.wait();
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            if (i < count) values[i] = lane < cluster.size ? meeting.ranks[t][i][lane] : 0;
        }
    }
};

// ---- rows ---------------------------------------------------------------------

// What a request's rejected token leaves: max(0, target - draft), piecewise.
template <typename T>
struct Row {
    const T* target;
    // Null for none: then `skipped` has no residual, if it is in the row.
    const T* draft;
    u32 skipped;
    u32 vocab;

    // A residual; what is not finite stays so, for the caller to tell.
    INLINE float residual(float t, float d, u32 index) const {
        return index == skipped ? 0.0f : exact::sub(t, d);
    }
};

// N neighbouring entries.
template <typename T, u32 N>
struct Entries {
    T items[N];
};

template <u32 N, typename T>
INLINE Entries<T, N> load(const T* from) {
    Entries<T, N> entries;
    if constexpr (N == 1) {
        entries.items[0] = from[0];
    } else {
        const Pack<T> pack = load_pack(from);
#pragma unroll
        for (u32 j = 0; j < N; ++j) entries.items[j] = pack.items[j];
    }
    return entries;
}

// A warp's piece of a row: vectors begin .. end of N entries from entry `first`
// on, and for the first and last warp the entries beside them.
struct Piece {
    u32 head;
    u32 begin;
    u32 end;
    u32 tail;
};

// Cuts a row for `pieces` warps. N == 1 takes rows whose two sides do not share
// an alignment.
template <u32 N, typename T>
INLINE Piece cut(const Row<T>& row, u32 piece, u32 pieces) {
    u32 head = 0;
    if constexpr (N > 1) {
        const u32 past = static_cast<u32>(reinterpret_cast<u64>(row.target) % 16);
        head = min(static_cast<u32>((16 - past) % 16 / sizeof(T)), row.vocab);
    }
    const u32 vectors = (row.vocab - head) / N;
    Piece p;
    p.head = head;
    p.begin = static_cast<u32>(static_cast<u64>(vectors) * piece / pieces);
    p.end = static_cast<u32>(static_cast<u64>(vectors) * (piece + 1) / pieces);
    p.tail = head + vectors * N;
    return p;
}

template <typename T>
INLINE bool alike(const Row<T>& row) {
    const u64 difference = reinterpret_cast<u64>(row.target) ^ reinterpret_cast<u64>(row.draft);
    return row.draft == nullptr || difference % 16 == 0;
}

// Calls visit<N>(values, index of the first) for the lane's entries of a piece.
// RESIDUAL false: the values are the target's.
template <u32 N, bool RESIDUAL, typename T, typename Visit>
INLINE void scan(const Row<T>& row, const Piece& piece, bool first, bool last, u32 lane,
                 Visit& visit) {
    constexpr u32 AHEAD = N == 1 ? 8 : 4;
    const bool subtract = RESIDUAL && row.draft != nullptr;
    for (u32 i = piece.begin + lane; i < piece.end; i += AHEAD * WARP) {
        Entries<T, N> target[AHEAD];
        Entries<T, N> draft[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            // Past the end the last vector once more: loads without branches
            // are all in flight at once.
            const u32 at = min(i + a * WARP, piece.end - 1);
            target[a] = load<N>(row.target + piece.head + at * N);
        }
        if (subtract) {
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 at = min(i + a * WARP, piece.end - 1);
                draft[a] = load<N>(row.draft + piece.head + at * N);
            }
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            const u32 at = i + a * WARP;
            if (at >= piece.end) break;
            const u32 index = piece.head + at * N;
            float values[N];
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values[j] = to_f32(target[a].items[j]);
                if (subtract) values[j] = exact::sub(values[j], to_f32(draft[a].items[j]));
            }
            if (RESIDUAL && row.skipped - index < N) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (index + j == row.skipped) values[j] = 0.0f;
                }
            }
            visit(values, index);
        }
    }
    // Fewer than N entries on either side.
    if (N > 1 && (first || last)) {
        const auto single = [&](u32 index) {
            float t = to_f32(row.target[index]);
            if (subtract) t = exact::sub(t, to_f32(row.draft[index]));
            const float values[1] = {RESIDUAL && index == row.skipped ? 0.0f : t};
            visit(values, index);
        };
        if (first && lane < piece.head) single(lane);
        if (last && lane < row.vocab - piece.tail) single(piece.tail + lane);
    }
}

// The largest entry of a row so far, the lowest index among equals: a lane meets
// its vectors in ascending order, and single entries in any.
struct Largest {
    float value;
    u32 index;
    // NaN once an entry was not finite.
    float odd;

    INLINE Largest(float floor) : value(floor), index(NONE), odd(0.0f) {}

    template <u32 N>
    INLINE void operator()(const float (&values)[N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) odd = fmaf(values[j], 0.0f, odd);
        if constexpr (N == 1) {
            const float v = values[0];
            const bool ties = v == value && first < index && index != NONE;
            if ((v > value || ties) && fabsf(v) <= LARGEST) {
                value = v;
                index = first;
            }
        } else {
            float top = values[0];
#pragma unroll
            for (u32 j = 1; j < N; ++j) top = fmaxf(top, values[j]);
            // Rare once the lane has seen a few: the candidates one by one.
            if (top > value) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (values[j] > value && values[j] <= LARGEST) {
                        value = values[j];
                        index = first + j;
                    }
                }
            }
        }
    }

    // Orders by value, then lower index; 0 for none.
    INLINE u64 key() const {
        if (index == NONE) return 0;
        return static_cast<u64>(exact::sort_key(value)) << 32 | (NONE - index);
    }
};

INLINE u32 index_of(u64 key) { return NONE - static_cast<u32>(key); }

// This warp's largest residual (RESIDUAL, above 0) or largest finite target.
template <bool RESIDUAL, typename T>
INLINE u64 largest_of_piece(const Row<T>& row, u32 piece, u32 pieces, u32 lane, bool& odd) {
    Largest largest(RESIDUAL ? 0.0f : __uint_as_float(0xFF800000u));
    const bool first = piece == 0;
    const bool last = piece + 1 == pieces;
    if (!RESIDUAL || alike(row)) {
        constexpr u32 N = Pack<T>::N;
        scan<N, RESIDUAL>(row, cut<N>(row, piece, pieces), first, last, lane, largest);
    } else {
        scan<1, RESIDUAL>(row, cut<1>(row, piece, pieces), first, last, lane, largest);
    }
    odd = largest.odd != largest.odd;
    return warp_max(largest.key());
}

// The sum of a lane's residuals.
struct Sum {
    u64 total = 0;
    float odd = 0.0f;

    template <u32 N>
    INLINE void operator()(const float (&values)[N], u32) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            odd = fmaf(values[j], 0.0f, odd);
            total += exact::finite(values[j]) ? exact::fixed_probability(values[j]) : 0;
        }
    }
};

// One step of `find_in_piece`: N entries a lane, in order. Subtracts the
// warp's sum from `threshold`, or tells where it is exceeded.
template <u32 N>
INLINE u32 find_step(const float (&values)[N], u32 index, u64& threshold, u32 lane) {
    u64 own = 0;
    u64 quantum[N];
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        quantum[j] = exact::finite(values[j]) ? exact::fixed_probability(values[j]) : 0;
        own += quantum[j];
    }
    const u64 through = warp_inclusive_sum(own, lane);
    const u32 above = __ballot_sync(ALL_LANES, through > threshold);
    if (above == 0) {
        threshold -= __shfl_sync(ALL_LANES, through, WARP - 1);
        return NONE;
    }
    u64 running = through - own;
    u32 found = NONE;
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        running += quantum[j];
        if (found == NONE && running > threshold) found = index + j;
    }
    return __shfl_sync(ALL_LANES, found, __ffs(above) - 1);
}

// The first entry of this warp's piece at which the running sum exceeds the
// threshold, which the piece's sum does.
template <u32 N, typename T>
INLINE u32 find_in_piece(const Row<T>& row, u32 index, u32 pieces, u32 lane, u64 threshold) {
    const Piece piece = cut<N>(row, index, pieces);
    const auto value = [&](u32 at) {
        float t = to_f32(row.target[at]);
        if (row.draft != nullptr) t = exact::sub(t, to_f32(row.draft[at]));
        return at == row.skipped ? 0.0f : t;
    };
    if (N > 1 && index == 0) {
        const float values[1] = {lane < piece.head ? value(lane) : 0.0f};
        const u32 found = find_step(values, lane, threshold, lane);
        if (found != NONE) return found;
    }
    for (u32 i = piece.begin; i < piece.end; i += WARP) {
        float values[N];
        const u32 at = piece.head + (i + lane) * N;
#pragma unroll
        for (u32 j = 0; j < N; ++j) values[j] = 0.0f;
        if (i + lane < piece.end) {
            const Entries<T, N> target = load<N>(row.target + at);
#pragma unroll
            for (u32 j = 0; j < N; ++j) values[j] = to_f32(target.items[j]);
            if (row.draft != nullptr) {
                const Entries<T, N> draft = load<N>(row.draft + at);
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    values[j] = exact::sub(values[j], to_f32(draft.items[j]));
                }
            }
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (at + j == row.skipped) values[j] = 0.0f;
            }
        }
        const u32 found = find_step(values, at, threshold, lane);
        if (found != NONE) return found;
    }
    if (N > 1 && index + 1 == pieces) {
        const u32 at = piece.tail + lane;
        const float values[1] = {at < row.vocab ? value(at) : 0.0f};
        return find_step(values, at, threshold, lane);
    }
    return NONE;
}

// ---- requests -----------------------------------------------------------------

// Philox4x32-10: crates/spec-core/src/philox.rs.
INLINE uint2 philox(u64 seed, u64 offset, u32 request, u32 position) {
    uint4 c = make_uint4(static_cast<u32>(offset), static_cast<u32>(offset >> 32), request, position);
    u32 k0 = static_cast<u32>(seed);
    u32 k1 = static_cast<u32>(seed >> 32);
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        const u64 a = static_cast<u64>(c.x) * 0xD2511F53u;
        const u64 b = static_cast<u64>(c.z) * 0xCD9E8D57u;
        c = make_uint4(static_cast<u32>(b >> 32) ^ c.y ^ k0, static_cast<u32>(b),
                       static_cast<u32>(a >> 32) ^ c.w ^ k1, static_cast<u32>(a));
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint2(c.x, c.y);
}

// The tokens of a request, cut to what is valid.
struct Tokens {
    u64 start;
    u32 count;
    u32 bits;
};

template <typename T>
INLINE Tokens tokens_of(const Params<T>& p, u32 request) {
    const i64 start = p.offsets[request];
    const i64 end = p.offsets[request + 1];
    if (start < 0 || end < start || end > static_cast<i64>(p.tokens)) return {0, 0, BAD_LENGTHS};
    const u64 count = static_cast<u64>(end - start);
    const u32 cut = static_cast<u32>(min(count, static_cast<u64>(p.max_spec_len)));
    return {static_cast<u64>(start), cut, count > cut ? BAD_LENGTHS : 0};
}

// Writes everything but the last token, which follows `accepted` drafts.
template <typename T>
INLINE void write_counts(const Params<T>& p, const Place& at, const Tokens& tokens, u32 accepted) {
    if (at.cluster.rank != 0 || at.warp != 0) return;
    i32* row = p.output[at.request];
    for (u32 k = at.lane; k <= p.max_spec_len; k += WARP) {
        if (k < accepted) row[k] = static_cast<i32>(p.draft_ids[tokens.start + k]);
        if (k > accepted) row[k] = -1;
    }
    if (at.lane == 0) {
        const bool all = accepted == tokens.count;
        p.emitted[at.request] = static_cast<i32>(accepted) + 1;
        p.accepted[at.request] = static_cast<i32>(accepted);
        p.recovered[at.request] = !all;
        p.bonus[at.request] = all;
    }
}

template <typename T>
INLINE void write_bonus(const Params<T>& p, const Place& at, u32 accepted) {
    if (at.cluster.rank != 0 || threadIdx.x != 0) return;
    const i64 id = p.bonus_ids[at.request];
    const bool valid = id >= 0 && id < static_cast<i64>(p.vocab);
    if (!valid) raise(p.flags, OUT_OF_RANGE);
    p.output[at.request][accepted] = valid ? static_cast<i32>(id) : 0;
}

// The position of the first rejection, or the count. Raises what it met.
template <typename T>
INLINE u32 walk(const Params<T>& p, const Place& at, const Tokens& tokens) {
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
                float u;
                if (p.uniform != nullptr) {
                    u = p.uniform[token];
                } else {
                    const uint2 words = philox(p.random[0], p.random[1], at.request, k);
                    u = exact::mul(static_cast<float>(words.x >> 8), 1.0f / 16777216.0f);
                }
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
    if (at.cluster.rank == 0 && threadIdx.x == 0) raise(p.flags, met);
    return rejected;
}

INLINE u64 larger(u32, u64 v) { return warp_max(v); }
INLINE u64 added(u32, u64 v) { return warp_sum(v); }

// The largest over the whole request of this warp's key.
INLINE u64 meet_largest(Place& at, u64 key) {
    u64 values[1] = {key};
    at.exchange(values, 1, larger);
    return warp_max(values[0]);
}

// The largest finite target, where no residual is positive; token 0 for none.
template <typename T>
INLINE void recover_from_target(const Params<T>& p, Place& at, const Row<T>& row, u32 piece,
                                u32 pieces, u32 accepted) {
    bool odd;
    const u64 key = meet_largest(at, largest_of_piece<false>(row, piece, pieces, at.lane, odd));
    if (at.cluster.rank == 0 && threadIdx.x == 0) {
        p.output[at.request][accepted] = key == 0 ? 0 : static_cast<i32>(index_of(key));
    }
}

template <bool SAMPLE, typename T>
INLINE void probabilistic(const Params<T>& p) {
    __shared__ Meeting meeting;
    Place at(meeting);
    const Tokens tokens = tokens_of(p, at.request);
    const u32 accepted = walk(p, at, tokens);
    if (accepted == tokens.count) {
        write_counts(p, at, tokens, accepted);
        write_bonus(p, at, accepted);
        return;
    }
    // Every block of the cluster has started once this is waited for.
    at.cluster.arrive();
    const u64 token = tokens.start + accepted;
    Row<T> row = {p.target[token], nullptr, NONE, p.vocab};
    if (p.draft.data != nullptr) {
        row.draft = p.draft[token];
    } else {
        const i64 id = p.draft_ids[token];
        if (id >= 0 && id < static_cast<i64>(p.vocab)) row.skipped = static_cast<u32>(id);
    }
    const u32 pieces = at.cluster.size * at.warps;
    const u32 piece = at.cluster.rank * at.warps + at.warp;

    if constexpr (!SAMPLE) {
        bool odd;
        const u64 own = largest_of_piece<true>(row, piece, pieces, at.lane, odd);
        if (odd) raise(p.flags, NON_FINITE);
        write_counts(p, at, tokens, accepted);
        at.cluster.wait();
        const u64 key = meet_largest(at, own);
        if (key == 0) return recover_from_target(p, at, row, piece, pieces, accepted);
        if (at.cluster.rank == 0 && threadIdx.x == 0) {
            p.output[at.request][accepted] = static_cast<i32>(index_of(key));
        }
    } else {
        Sum sum;
        const bool first = piece == 0;
        const bool last = piece + 1 == pieces;
        constexpr u32 N = Pack<T>::N;
        const bool packed = alike(row);
        if (packed) {
            scan<N, true>(row, cut<N>(row, piece, pieces), first, last, at.lane, sum);
        } else {
            scan<1, true>(row, cut<1>(row, piece, pieces), first, last, at.lane, sum);
        }
        if (sum.odd != sum.odd) raise(p.flags, NON_FINITE);
        write_counts(p, at, tokens, accepted);
        at.cluster.wait();
        const u32 turn = at.turn;
        u64 values[1] = {warp_sum(sum.total)};
        at.exchange(values, 1, added);
        const u64 through = warp_inclusive_sum(values[0], at.lane);
        const u64 total = __shfl_sync(ALL_LANES, through, WARP - 1);
        if (total == 0) return recover_from_target(p, at, row, piece, pieces, accepted);

        const uint2 words = philox(p.random[0], p.random[1], at.request, NONE);
        u64 threshold = exact::sample_threshold(static_cast<u64>(words.y) << 32 | words.x, total);
        // The block that holds the threshold, then its warp, then the entry.
        const u32 block = __ffs(__ballot_sync(ALL_LANES, through > threshold)) - 1;
        if (block != at.cluster.rank) return;
        threshold -= __shfl_sync(ALL_LANES, through - values[0], block);
        const u64 of_warp = at.lane < at.warps ? meeting.warps[turn][0][at.lane] : 0;
        const u64 through_warp = warp_inclusive_sum(of_warp, at.lane);
        const u32 warp = __ffs(__ballot_sync(ALL_LANES, through_warp > threshold)) - 1;
        if (warp != at.warp) return;
        threshold -= __shfl_sync(ALL_LANES, through_warp - of_warp, warp);
        const u32 found = packed ? find_in_piece<N>(row, piece, pieces, at.lane, threshold)
                                 : find_in_piece<1>(row, piece, pieces, at.lane, threshold);
        if (at.lane == 0) p.output[at.request][accepted] = static_cast<i32>(found);
    }
}

template <typename T>
INLINE void greedy(const Params<T>& p) {
    __shared__ Meeting meeting;
    Place at(meeting);
    const Tokens tokens = tokens_of(p, at.request);
    const u32 pieces = at.cluster.size * at.warps;
    const u32 piece = at.cluster.rank * at.warps + at.warp;
    u32 met = tokens.bits;
    u32 accepted = 0;
    u32 emitted = NONE;
    if (tokens.count > 0) {
        at.cluster.arrive();
        at.cluster.wait();
    }
    // `rows_ahead` rows before it is known whether the walk gets there.
    while (accepted < tokens.count && emitted == NONE) {
        const u32 rows = min(p.rows_ahead, tokens.count - accepted);
        u64 keys[MAX_ROWS + 1] = {};
        u64 odd_rows = 0;
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            if (i < rows) {
                bool odd;
                const Row<T> row = {p.target[tokens.start + accepted + i], nullptr, NONE, p.vocab};
                keys[i] = largest_of_piece<false>(row, piece, pieces, at.lane, odd);
                if (__any_sync(ALL_LANES, odd)) odd_rows |= 1u << i;
            }
        }
        keys[MAX_ROWS] = odd_rows;
        at.exchange(keys, MAX_ROWS + 1, [](u32 i, u64 v) {
            return i < MAX_ROWS ? warp_max(v)
                                : static_cast<u64>(__reduce_or_sync(ALL_LANES, static_cast<u32>(v)));
        });
        const u32 odd = __reduce_or_sync(ALL_LANES, static_cast<u32>(keys[MAX_ROWS]));
#pragma unroll
        for (u32 i = 0; i < MAX_ROWS; ++i) {
            const u64 key = warp_max(keys[i]);
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
    } else if (at.cluster.rank == 0 && threadIdx.x == 0) {
        p.output[at.request][accepted] = static_cast<i32>(emitted);
    }
    if (at.cluster.rank == 0 && threadIdx.x == 0) raise(p.flags, met);
}

#define VERIFIERS(dtype, T)                                                                     \
    SPEC_KERNEL(rejection_sample_argmax_##dtype, (probabilistic<false, T>), Params<T>, THREADS) \
    SPEC_KERNEL(rejection_sample_sample_##dtype, (probabilistic<true, T>), Params<T>, THREADS)  \
    SPEC_KERNEL(rejection_sample_greedy_##dtype, greedy<T>, Params<T>, THREADS)

VERIFIERS(f32, float)
VERIFIERS(f16, f16)
VERIFIERS(bf16, bf16)
