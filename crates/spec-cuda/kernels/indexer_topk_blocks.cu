// indexer_topk: kernels for rows in which not each score stands for a position.
//
// * `pool`     writes the scores of blocks of neighbouring scores to the workspace. A warp reads 8
//              vectors of 16 bytes for each lane, all in flight at once; lanes exchange maxima.
// * `ranges`   writes the range of scores between the blocks that are always chosen, where a block
//              is a position.
// * `compact`  copies the scores and the positions of covered columns to the workspace, one behind
//              the other. Each block of threads first counts the covered columns of the candidates
//              before its own.
//
// After these kernels, those of indexer_topk.cu choose in the rows that these kernels left; after
// `pool`, also those of indexer_topk_row.cu.
//
// Bytes: `pool` reads each score once, and writes one f32 for each block. `compact` reads each
// covered score once, and writes 8 bytes for it.
#include "params/indexer_topk_blocks.cuh"

constexpr u32 WARPS = THREADS / WARP;
// The first position that an i32 does not hold.
constexpr u32 END_OF_POSITIONS = 1u << 31;

// The scores that a row covers.
struct Range {
    u32 start;
    u32 length;
    // BAD_LENGTHS if the start or the length was cut.
    u32 bits;

    INLINE Range(const Integers& starts, const Integers& lengths, u64 row, u32 cols)
        : start(0), bits(0) {
        if (starts.data != nullptr) {
            const i64 given = starts[row];
            start = clamped(given, cols);
            if (start != given) bits |= BAD_LENGTHS;
        }
        length = cols - start;
        if (lengths.data != nullptr) {
            const i64 given = lengths[row];
            length = clamped(given, cols - start);
            if (length != given) bits |= BAD_LENGTHS;
        }
    }
};

// Notes that the row to choose from has `count` blocks, of which the first has the score `start`.
template <typename T>
INLINE void note(const Blocks<T>& p, u32 row, u32 start, u32 count) {
    const u32 first = min(p.forced_first, count);
    const u32 last = min(p.forced_last, count - first);
    p.notes[row] = start + first;
    p.notes[static_cast<u64>(p.rows) + row] = count - first - last;
    p.notes[2 * static_cast<u64>(p.rows) + row] = count;
}

INLINE void ranges(const Blocks<float>& p) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= p.rows) return;
    const Range range(p.starts, p.lengths, row, p.cols);
    raise(p.flags, range.bits);
    note(p, row, range.start, range.length);
}

// ---- pool ----------------------------------------------------------------------

// The scores that a warp reads: a multiple of the largest pool.
template <typename T>
constexpr u32 SPAN = VECTORS * WARP * Pack<T>::N;
static_assert(SPAN<float> == 1024 && SPAN<f16> == 2048);

INLINE float lowest(float) { return negative_infinity(); }
INLINE f16 lowest(f16) { return __ushort_as_half(0xFC00); }
INLINE bf16 lowest(bf16) { return __ushort_as_bfloat16(0xFF80); }

// Writes the scores of the blocks of a warp's span, which begins at score `begin` of a row of
// `length` scores. Returns whether this lane read a NaN.
template <typename T>
INLINE bool pool_span(const T* scores, u32 length, u32 begin, u32 size, float* to) {
    constexpr u32 N = Pack<T>::N;
    const u32 lane = lane_id();
    const u32 shift = 31 - __clz(size);
    const bool aligned = reinterpret_cast<u64>(scores) % 16 == 0;
    Pack<T> packs[VECTORS];
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        const u32 first = begin + (v * WARP + lane) * N;
        if (aligned && first + N <= length) {
            packs[v] = load_pack(scores + first);
            continue;
        }
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            packs[v].items[j] = first + j < length ? scores[first + j] : lowest(T());
        }
    }
    // NaN is less than any number in `fmaxf`. A block of NaN alone has -inf.
    const auto put = [&](u32 first, float best) {
        best = fmaxf(best, negative_infinity());
        // -0 becomes +0.
        if (size > 1) best = exact::add(best, 0.0f);
        if (first < length) to[first >> shift] = best;
    };
    bool has_nan = false;
    float best[VECTORS];
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        const u32 first = begin + (v * WARP + lane) * N;
        float x[N];
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            x[j] = to_f32(packs[v].items[j]);
            has_nan |= x[j] != x[j];
        }
#pragma unroll
        for (u32 step = 1; step < N; step *= 2) {
            if (step >= size) break;
#pragma unroll
            for (u32 j = 0; j < N; j += 2 * step) x[j] = fmaxf(x[j], x[j + step]);
        }
        best[v] = x[0];
        if (size < N) {
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                if ((j & (size - 1)) == 0) put(first + j, x[j]);
            }
        }
    }
    if (size < N) return has_nan;
    // Lanes and vectors that a block has.
    const u32 lanes = min(size / N, WARP);
    const u32 vectors = size / N / lanes;
#pragma unroll
    for (u32 step = 1; step < VECTORS; step *= 2) {
        if (step >= vectors) break;
#pragma unroll
        for (u32 v = 0; v < VECTORS; v += 2 * step) best[v] = fmaxf(best[v], best[v + step]);
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        if ((v & (vectors - 1)) != 0) continue;
#pragma unroll 1
        for (u32 step = 1; step < lanes; step *= 2) {
            best[v] = fmaxf(best[v], __shfl_xor_sync(ALL_LANES, best[v], step));
        }
        if ((lane & (lanes - 1)) == 0) put(begin + (v * WARP + lane) * N, best[v]);
    }
    return has_nan;
}

template <typename T>
INLINE void pool(const Blocks<T>& p) {
    const u32 row = blockIdx.x / p.parts;
    const u32 part = blockIdx.x % p.parts;
    const Range range(p.starts, p.lengths, row, p.cols);
    u32 bits = 0;
    if (part == 0) {
        // One block of threads reports bad lengths.
        bits = range.bits;
        if (threadIdx.x == 0) note(p, row, 0, (range.length + p.pool - 1) / p.pool);
    }
    const u32 begin = (part * WARPS + threadIdx.x / WARP) * SPAN<T>;
    if (begin < range.length) {
        float* const to = p.pooled + static_cast<u64>(row) * p.width;
        const bool has_nan =
            pool_span(p.scores[row] + range.start, range.length, begin, p.pool, to);
        if (has_nan) bits |= NON_FINITE;
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

// ---- candidates ------------------------------------------------------------------

// How many of a candidate's columns are covered in a row of `length` positions.
template <typename T>
INLINE u32 covered(const Blocks<T>& p, i32 candidate, u32 length) {
    if (candidate < 0) return 0;
    const u64 begin = static_cast<u64>(candidate) * p.block;
    return begin < length ? min(static_cast<u32>(length - begin), p.block) : 0;
}

template <typename T>
INLINE void compact(const Blocks<T>& p) {
    __shared__ u32 totals[WARPS];
    __shared__ u32 befores[THREADS];
    __shared__ i32 listed[THREADS];
    const u32 row = blockIdx.x / p.parts;
    const u32 part = blockIdx.x % p.parts;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const i32* const candidates = p.candidates[row];
    const T* const scores = p.scores[row];
    u32 bits = 0;
    u32 length = END_OF_POSITIONS;
    if (p.lengths.data != nullptr) {
        const i64 given = p.lengths[row];
        length = clamped(given, END_OF_POSITIONS);
        if (given < 0 && part == 0) bits |= BAD_LENGTHS;
    }
    // The candidates of this block, and the covered columns before them.
    const u32 of_part = (p.c + p.parts - 1) / p.parts;
    const u32 begin = min(part * of_part, p.c);
    const u32 end = min(begin + of_part, p.c);
    u32 before = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < begin; i += THREADS) before += covered(p, candidates[i], length);
    before = __reduce_add_sync(ALL_LANES, before);
    if (lane == 0) totals[warp] = before;
    __syncthreads();
    before = __reduce_add_sync(ALL_LANES, lane < WARPS ? totals[lane] : 0);
#pragma unroll 1
    for (u32 from = begin; from < end; from += THREADS) {
        const u32 at = from + threadIdx.x;
        const i32 candidate = at < end ? candidates[at] : -1;
        const u32 own = covered(p, candidate, length);
        const u64 through_position = (static_cast<u64>(max(candidate, 0)) + 1) * p.block;
        if (candidate < -1 || through_position > END_OF_POSITIONS) bits |= OUT_OF_RANGE;
        const u32 through = warp_inclusive_sum(own);
        // All threads have read what is overwritten.
        __syncthreads();
        if (lane == WARP - 1) totals[warp] = through;
        listed[threadIdx.x] = candidate;
        __syncthreads();
        const u32 of_lane = lane < WARPS ? totals[lane] : 0;
        const u32 of_warps = __reduce_add_sync(ALL_LANES, lane < warp ? of_lane : 0);
        befores[threadIdx.x] = before + of_warps + through - own;
        before += __reduce_add_sync(ALL_LANES, of_lane);
        __syncthreads();
        const u32 columns = min(THREADS, end - from) * p.block;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < columns; i += THREADS) {
            const u32 list = i / p.block;
            const u32 offset = i - list * p.block;
            if (offset < covered(p, listed[list], length)) {
                const u64 to = static_cast<u64>(row) * p.width + befores[list] + offset;
                p.pooled[to] = to_f32(scores[from * p.block + i]);
                p.positions[to] = static_cast<i32>(listed[list] * p.block + offset);
            }
        }
    }
    if (part == p.parts - 1 && threadIdx.x == 0) note(p, row, 0, before);
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane == 0) raise(p.flags, any);
}

SPEC_KERNEL(indexer_topk_ranges, ranges, Blocks<float>, THREADS)
SPEC_KERNEL_BLOCKS(indexer_topk_pool_f32, pool<float>, Blocks<float>, THREADS, 4)
SPEC_KERNEL_BLOCKS(indexer_topk_pool_f16, pool<f16>, Blocks<f16>, THREADS, 4)
SPEC_KERNEL_BLOCKS(indexer_topk_pool_bf16, pool<bf16>, Blocks<bf16>, THREADS, 4)
SPEC_KERNEL_BLOCKS(indexer_topk_compact_f32, compact<float>, Blocks<float>, THREADS, 4)
SPEC_KERNEL_BLOCKS(indexer_topk_compact_f16, compact<f16>, Blocks<f16>, THREADS, 4)
SPEC_KERNEL_BLOCKS(indexer_topk_compact_bf16, compact<bf16>, Blocks<bf16>, THREADS, 4)
