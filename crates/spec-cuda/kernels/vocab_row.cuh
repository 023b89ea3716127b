// Finds the largest entry of a row of probabilities, which many warps read together, once.
//
// A row is cut into contiguous pieces, one for each warp:
//
//     row      | head | 16-byte vectors ...................... | tail |
//     warps    |  0         |  1         |  2         |   ...   last  |
//
// The lanes of a warp read consecutive 16-byte vectors, several loads of target and draft in
// flight. Rows whose target and draft have different alignments are read entry by entry.
#pragma once

#include "common.cuh"

// ---- warps --------------------------------------------------------------------

// The largest of the lanes' 64-bit values, by two 32-bit reductions.
INLINE u64 warp_max(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 top = __reduce_max_sync(ALL_LANES, high);
    const u32 low = __reduce_max_sync(ALL_LANES, high == top ? static_cast<u32>(v) : 0u);
    return static_cast<u64>(top) << 32 | low;
}

// ---- rows ---------------------------------------------------------------------

// The probabilities of a rejected token. The residual of an entry is max(0, target - draft).
template <typename T>
struct Row {
    const T* target;
    // Null if the draft is deterministic. The residual of the draft token `skipped` is then 0, and
    // that of any other token is its target probability.
    const T* draft;
    u32 skipped;
    u32 vocab;

    // The residual of one entry; 0 if it is not finite.
    INLINE float residual(u32 index) const {
        float value = to_f32(target[index]);
        if (draft != nullptr) value = exact::sub(value, to_f32(draft[index]));
        return index == skipped || !exact::finite(value) ? 0.0f : value;
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

// The entries of a row that one warp reads: vectors begin .. end of N entries, counted from entry
// `head`. In addition, the first warp reads the entries before `head`, and the last warp those from
// `tail` on.
struct Piece {
    u32 head;
    u32 begin;
    u32 end;
    u32 tail;
};

// The piece of one warp, of `pieces` warps; `pieces` is a power of two. N = 1 is for rows whose
// target and draft have different alignments.
template <u32 N, typename T>
INLINE Piece piece_of(const Row<T>& row, u32 piece, u32 pieces) {
    u32 head = 0;
    if constexpr (N > 1) {
        const u32 past = static_cast<u32>(reinterpret_cast<u64>(row.target) % 16);
        head = min(static_cast<u32>((16 - past) % 16 / sizeof(T)), row.vocab);
    }
    const u32 vectors = (row.vocab - head) / N;
    Piece p;
    p.head = head;
    const u32 bits = 31 - __clz(pieces);
    p.begin = static_cast<u32>(static_cast<u64>(vectors) * piece >> bits);
    p.end = static_cast<u32>(static_cast<u64>(vectors) * (piece + 1) >> bits);
    p.tail = head + vectors * N;
    return p;
}

template <typename T>
INLINE bool same_alignment(const Row<T>& row) {
    const u64 difference = reinterpret_cast<u64>(row.target) ^ reinterpret_cast<u64>(row.draft);
    return row.draft == nullptr || difference % 16 == 0;
}

// Calls visit(values, index of the first value) for each of this lane's vectors of a piece. The
// values are residuals if RESIDUAL, else target probabilities.
template <u32 N, bool RESIDUAL, typename T, typename Visit>
INLINE void scan(const Row<T>& row, const Piece& piece, bool first, bool last, u32 lane,
                 Visit& visit) {
    constexpr u32 AHEAD = N == 4 ? 4 : N == 8 ? 2 : 8;
    const bool subtract = RESIDUAL && row.draft != nullptr;
    for (u32 i = piece.begin + lane; i < piece.end; i += AHEAD * WARP) {
        Entries<T, N> target[AHEAD];
        Entries<T, N> draft[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            // Past the end, the last vector is loaded again: without a branch, all loads are in
            // flight at once.
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
    // Fewer than N entries before the first vector, and after the last.
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

// The largest entry of a row so far, and its index: the lowest index among equal entries. A lane
// visits its vectors in ascending order, but single entries in any order.
struct Largest {
    float value;
    u32 index;
    // Becomes NaN once an entry is not finite.
    float nonfinite;

    INLINE Largest(float floor) : value(floor), index(NONE), nonfinite(0.0f) {}

    template <u32 N>
    INLINE void operator()(const float (&values)[N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) nonfinite = fmaf(values[j], 0.0f, nonfinite);
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
            // After a few vectors this is rare: look at the entries one by one.
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

    // A key that orders by value, then by lower index; 0 if there is no entry.
    INLINE u64 key() const {
        if (index == NONE) return 0;
        return static_cast<u64>(exact::sort_key(value)) << 32 | (NONE - index);
    }
};

INLINE u32 index_of(u64 key) { return NONE - static_cast<u32>(key); }

// The result of one warp: the key of its largest entry, and whether an entry was not finite.
struct Found {
    u64 value;
    bool nonfinite;
};

// The largest residual above 0 of a warp's piece (RESIDUAL), or the largest finite target
// probability.
template <bool RESIDUAL, u32 N, typename T>
INLINE Found largest_by(const Row<T>& row, u32 piece, u32 pieces, u32 lane) {
    Largest largest(RESIDUAL ? 0.0f : __uint_as_float(0xFF800000u));
    const bool first = piece == 0;
    const bool last = piece + 1 == pieces;
    scan<N, RESIDUAL>(row, piece_of<N>(row, piece, pieces), first, last, lane, largest);
    return {warp_max(largest.key()),
            __any_sync(ALL_LANES, largest.nonfinite != largest.nonfinite) != 0};
}

// For rows whose target and draft have different alignments. Not inlined, so that it takes no
// registers from the loop for aligned rows.
template <typename T>
__device__ __noinline__ Found largest_unaligned(Row<T> row, u32 piece, u32 pieces, u32 lane) {
    return largest_by<true, 1>(row, piece, pieces, lane);
}
