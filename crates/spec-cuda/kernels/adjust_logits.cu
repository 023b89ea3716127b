// adjust_logits: applies biases and penalties to logits in place, and forbids tokens.
//
// A block owns a row, or one of 2, 4, ... classes of the row's tokens. It finds the distinct tokens
// whose logits a bias or a penalty changes, and then reads, adjusts and writes each of these logits
// once. The order in which threads visit tokens does not matter, because a block gathers only
// counts, marks and the index of a token's first bias. Two kernels find the distinct tokens in
// different ways:
//
// - `direct` (adjust_logits_direct_index.cuh) has an array entry for each token of a class. It
//   takes the fewest steps, but each of a row's blocks reads the whole text. It is used while the
//   device has a multiprocessor for every block.
// - `ranked` (adjust_logits_bitmap_rank.cuh) gives a row's tokens slots by their ranks in a bitmap,
//   in one block.
//
// A third kernel, `think` (adjust_logits_think.cuh), finds the tokens that thinking budgets force.
//
// Bytes: 32 texts of 4096 tokens of 4 bytes are 0.5 MB, and each changed logit reads and writes a
// sector of 32 bytes: 8.4 MB each way if all tokens differ. With few rows, latency dominates: one
// access to memory for the row's lengths and the text, one for lists, one for logits. With many
// rows, memory dominates: a scattered access to two bytes takes as long as 64 bytes.
#include "adjust_logits_direct_index.cuh"
#include "adjust_logits_bitmap_rank.cuh"
#include "adjust_logits_think.cuh"

// Blocks of `ranked` on a multiprocessor: while one waits for memory, the other counts.
constexpr u32 RANKED_BLOCKS = 2;

// Loads what a block needs to know of its row, calls `Class::clear`, then then(text, piece,
// logits), which returns flags.
template <typename Class, typename Logits, typename Then>
INLINE void adjust(const Params& p, Then then) {
    __shared__ Row s;
    const u64 row = blockIdx.x;
    const i64 request = p.requests == nullptr ? static_cast<i64>(row) : p.requests[row];
    u32 bits = 0;
    if (threadIdx.x == 0) bits = survey(p, request, s);
    // By other warps, at the same time.
    if (threadIdx.x == WARP) {
        s.path_bits = 0;
        s.depth = climb(p, row, s, s.path_bits);
    }
    // Starts to load before the text is known, too.
    i32 breaker = 0;
    if constexpr (Class::DRY) {
        if (threadIdx.x < p.breakers) breaker = p.dry_breakers[threadIdx.x];
        Dry& d = shared_dry();
        if (threadIdx.x == 2 * WARP) survey_dry(p, request, d);
        for (u32 i = threadIdx.x; i < FILTER_BITS / 32; i += blockDim.x) d.filter[i] = 0;
    }
    // A negative request becomes a large number, which is not below request_count.
    const bool is_there = static_cast<u64>(request) < p.request_count;
    const Text text(p, s, is_there ? static_cast<u64>(request) : 0);
    // Starts to load before the length of the text is known.
    Piece piece;
    if (is_there) piece.load(text, 0, p.max_length);
    Class::clear(p);
    __syncthreads();
    if constexpr (Class::DRY) bits |= shared_dry().flags;
    if (threadIdx.x == 0 && blockIdx.y == 0) raise(p.flags, is_there ? bits | s.path_bits : bits);
    if (!is_there) return;
    for (u32 j = s.depth + threadIdx.x; j < min(text.len(), TAIL); j += blockDim.x) {
        s.tail[j] = text.at(s.length - 1 - (j - s.depth));
    }
    if constexpr (Class::DRY) {
        __syncthreads();
        find_breakers(p, text, breaker, shared_dry());
        __syncthreads();
    }
    bits = then(text, piece, Logits(p, row));
    bits = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

template <typename Logits, bool DRY>
INLINE void adjust_direct(const Params& p) {
    using Class = direct::Class<DRY>;
    adjust<Class, Logits>(p, [&](const Text& text, const Piece& piece, const Logits& logits) {
        return direct::adjust_classes<Class>(p, text, blockIdx.x, piece, logits);
    });
}

template <typename Logits, bool DRY>
INLINE void adjust_ranked(const Params& p) {
    __shared__ u32 sums[RANKED_THREADS / WARP];
    using Class = ranked::Class<DRY>;
    adjust<Class, Logits>(p, [&](const Text& text, const Piece& piece, const Logits& logits) {
        return ranked::adjust_classes<Class>(p, text, blockIdx.x, piece, sums, logits);
    });
}

// A comma would end the macros' argument.
template <typename T>
INLINE void direct_of(const Params& p) { adjust_direct<TypedLogits<T>, false>(p); }
template <typename T>
INLINE void ranked_of(const Params& p) { adjust_ranked<TypedLogits<T>, false>(p); }
INLINE void direct_dry(const Params& p) { adjust_direct<AnyLogits, true>(p); }
INLINE void ranked_dry(const Params& p) { adjust_ranked<AnyLogits, true>(p); }

SPEC_KERNEL(adjust_logits_direct_f32, direct_of<float>, Params, DIRECT_THREADS)
SPEC_KERNEL(adjust_logits_direct_f16, direct_of<f16>, Params, DIRECT_THREADS)
SPEC_KERNEL(adjust_logits_direct_bf16, direct_of<bf16>, Params, DIRECT_THREADS)
SPEC_KERNEL(adjust_logits_direct_dry, direct_dry, Params, DIRECT_THREADS)
SPEC_KERNEL_BLOCKS(adjust_logits_ranked_f32, ranked_of<float>, Params, RANKED_THREADS,
                   RANKED_BLOCKS)
SPEC_KERNEL_BLOCKS(adjust_logits_ranked_f16, ranked_of<f16>, Params, RANKED_THREADS, RANKED_BLOCKS)
SPEC_KERNEL_BLOCKS(adjust_logits_ranked_bf16, ranked_of<bf16>, Params, RANKED_THREADS,
                   RANKED_BLOCKS)
SPEC_KERNEL_BLOCKS(adjust_logits_ranked_dry, ranked_dry, Params, RANKED_THREADS, RANKED_BLOCKS)
SPEC_KERNEL(adjust_logits_think, think::force, Params, THINK_THREADS)
