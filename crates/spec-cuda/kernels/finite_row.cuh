// The largest entry of a row whose entries are all finite. Nearly all rows are: for them the loop
// has no branches. A row with other entries is read a second time, by the functions of
// vocab_row.cuh.
#pragma once

#include "vocab_row.cuh"

// Like `Largest`, for finite entries. A lane keeps the vector that contained its largest entry, and
// finds the index of the entry in that vector once, at the end.
template <u32 N>
struct LargestOfFinite {
    float value;
    // The index of the first of `items`.
    u32 index;
    float items[N];
    // Becomes NaN once an entry is not finite. The other fields are then not used.
    float nonfinite;

    INLINE LargestOfFinite(float floor) : value(floor), index(NONE), items{}, nonfinite(0.0f) {}

    template <u32 COUNT>
    INLINE void operator()(const float (&values)[COUNT], u32 first) {
        float own_nonfinite = 0.0f;
        float top = values[0];
#pragma unroll
        for (u32 j = 0; j < COUNT; ++j) {
            own_nonfinite = fmaf(values[j], 0.0f, own_nonfinite);
            top = fmaxf(top, values[j]);
        }
        nonfinite += own_nonfinite;
        // Vectors come in ascending order; only single entries may come in any order.
        const bool ties = COUNT < N && top == value && first < index && index != NONE;
        const bool better = top > value || ties;
        value = better ? top : value;
        index = better ? first : index;
#pragma unroll
        for (u32 j = 0; j < N; ++j) items[j] = better ? values[min(j, COUNT - 1)] : items[j];
    }

    INLINE u64 key() const {
        if (index == NONE) return 0;
        u32 at = N - 1;
#pragma unroll
        for (u32 j = N - 1; j > 0; --j) at = items[j - 1] == value ? j - 1 : at;
        return static_cast<u64>(exact::sort_key(value)) << 32 | (NONE - (index + at));
    }
};

template <bool RESIDUAL, typename T>
__device__ __noinline__ Found largest_of_nonfinite_row(Row<T> row, u32 piece, u32 pieces,
                                                       u32 lane) {
    return largest_by<RESIDUAL, Pack<T>::N>(row, piece, pieces, lane);
}

// Like `largest_by`, for rows whose target and draft have the same alignment.
template <bool RESIDUAL, typename T>
INLINE Found largest_of_row(const Row<T>& row, u32 number, u32 pieces, u32 lane) {
    constexpr u32 N = Pack<T>::N;
    // Vectors of each of target and draft that are in flight.
    constexpr u32 AHEAD = N == 4 ? 5 : 2;
    const Piece piece = piece_of<N>(row, number, pieces);
    const bool subtract = RESIDUAL && row.draft != nullptr;
    LargestOfFinite<N> largest(RESIDUAL ? 0.0f : negative_infinity());
    for (u32 i = piece.begin + lane; i < piece.end; i += AHEAD * WARP) {
        // Past the end, the last vector is loaded again: it does not change the maximum.
        const auto place = [&](u32 a) { return piece.head + min(i + a * WARP, piece.end - 1) * N; };
        Pack<T> target[AHEAD];
        Pack<T> draft[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) target[a] = load_pack(row.target + place(a));
        if (subtract) {
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) draft[a] = load_pack(row.draft + place(a));
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            float values[N];
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values[j] = to_f32(target[a].items[j]);
                if (subtract) values[j] = exact::sub(values[j], to_f32(draft[a].items[j]));
                if (RESIDUAL && !subtract && place(a) + j == row.skipped) values[j] = 0.0f;
            }
            largest(values, place(a));
        }
    }
    // The entries before the first whole vector and after the last.
    const Piece beside = {piece.head, 0, 0, piece.tail};
    scan<N, RESIDUAL>(row, beside, number == 0, number + 1 == pieces, lane, largest);
    if (__any_sync(ALL_LANES, largest.nonfinite != largest.nonfinite)) {
        return largest_of_nonfinite_row<RESIDUAL>(row, number, pieces, lane);
    }
    return {warp_max(largest.key()), false};
}
