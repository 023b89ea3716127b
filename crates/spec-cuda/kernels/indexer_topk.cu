// indexer_topk: the positions of the k largest scores of each row, ascending.
//
// A team of blocks (a cluster, or one block on devices without clusters) selects in one row. The
// row is cut into contiguous pieces, one for each block. There are two kernels, and the host
// chooses between them. By a bound (long rows; indexer_topk_bounded_select.cuh): a part of the row
// gives a bound, and only scores above the bound are listed. By digits (other rows;
// indexer_topk_radix_select.cuh): a radix select.
//
// Both kernels compare integers in a fixed order, so a row has the same positions with either
// kernel and with any number of blocks.
//
// Bytes: each score once, 4 or 2 bytes.
#include "indexer_topk_bounded_select.cuh"

template <typename T, bool BY_BOUND>
INLINE void select(const Params& p) {
    const Cluster team;
    const u64 row = blockIdx.x >> spread_of(team);
    u32 start = 0;
    u32 bits = 0;
    if (p.starts.data != nullptr) {
        const i64 given = p.starts[row];
        start = clamped(given, p.cols);
        if (start != given) bits |= BAD_LENGTHS;
    }
    u32 length = p.cols - start;
    if (p.lengths.data != nullptr) {
        const i64 given = p.lengths[row];
        length = clamped(given, p.cols - start);
        if (length != given) bits |= BAD_LENGTHS;
    }
    // One block of the team reports bad lengths.
    if (team.rank > 0) bits = 0;
    const T* const scores = static_cast<const T*>(p.scores.data) + row * p.scores.stride + start;
    if (length > p.k) {
        bits |= BY_BOUND ? select_by_bound(p, team, scores, row, length)
                         : select_by_digits(p, team, scores, row, length);
    } else {
        // The row keeps all its scores. A NaN among them must still set a flag.
        for (u32 i = team.rank * blockDim.x + threadIdx.x; i < p.k; i += team.size * blockDim.x) {
            if (i < length) {
                const float x = wide(scores[i], p.brain);
                if (x != x) bits |= NON_FINITE;
            }
            p.indices.set(row, i, i < length ? static_cast<i32>(i) : -1);
        }
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

template <typename T>
INLINE void by_digits(const Params& p) {
    select<T, false>(p);
}

template <typename T>
INLINE void by_bound(const Params& p) {
    select<T, true>(p);
}

SPEC_KERNEL(indexer_topk_digits_f32, by_digits<float>, Params, MAX_THREADS)
SPEC_KERNEL(indexer_topk_digits_half, by_digits<Half>, Params, MAX_THREADS)
SPEC_KERNEL(indexer_topk_bound_f32, by_bound<float>, Params, BOUND_THREADS)
SPEC_KERNEL(indexer_topk_bound_half, by_bound<Half>, Params, BOUND_THREADS)
