// adjust_logits: bias, penalties and tokens that may not come next, on logits in place.
//
// A block owns a row, or one of 2, 4, .. classes of the row's tokens. It finds the distinct tokens that
// anything touches, in any order, since all that is gathered is counts, marks and the place of a
// token's first bias, and then reads, adjusts and writes each of their logits once. Two kernels
// differ in how they find them:
//
// - `few` (adjust_logits_few.cuh) has an array entry for each token of a class. It has the fewest steps,
//   but each of a row's blocks reads the whole text. It serves as long as the device has a
//   multiprocessor for every block.
// - `many` (adjust_logits_many.cuh) sorts a row's tokens in one block by ranks in a bitmap.
//
// Bytes: 32 texts of 4096 tokens of 4 bytes are 0.5 MB, and as much again for a sector of 32
// bytes a touched logit and way: 8.4 MB if all tokens differ. Latency decides for few rows: a trip to
// memory for the row's lengths and the text, one for lists, one for logits. For many rows memory
// decides: it answers scattered requests of two bytes as slowly as 64 bytes each.
#include "adjust_logits_few.cuh"
#include "adjust_logits_many.cuh"

constexpr u32 FEW_THREADS = 1024;
constexpr u32 MANY_THREADS = 512;
// Blocks of `many` that share a multiprocessor: while one waits for memory, the other counts.
constexpr u32 MANY_BLOCKS = 2;

// Learns what a block needs to know of its row; then `Own::clear` and `then(text, piece, logits)`, which
// returns flags.
template <typename Own, typename T, typename Then>
INLINE void adjust(const Params& p, Then then) {
    __shared__ Row s;
    const u64 row = blockIdx.x;
    const i64 request = p.requests == nullptr ? static_cast<i64>(row) : p.requests[row];
    u32 bits = 0;
    if (threadIdx.x == 0) bits = survey(p, request, s);
    // By another warp, at the same time.
    if (threadIdx.x == WARP) {
        s.way_bits = 0;
        s.depth = climb(p, row, s, s.way_bits);
    }
    // A negative request is too large, too.
    const bool is_there = static_cast<u64>(request) < p.request_count;
    const Text text(p, s, is_there ? static_cast<u64>(request) : 0);
    // Before the text's length is known.
    Piece piece;
    if (is_there) piece.load(text, 0, p.max_length);
    Own::clear(p);
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.y == 0) raise(p.flags, is_there ? bits | s.way_bits : bits);
    if (!is_there) return;
    for (u32 j = s.depth + threadIdx.x; j < min(text.len(), TAIL); j += blockDim.x) {
        s.tail[j] = text.at(s.length - 1 - (j - s.depth));
    }
    bits = then(text, piece, static_cast<T*>(p.logits.data) + row * p.logits.stride);
    bits = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

template <typename T>
INLINE void adjust_few(const Params& p) {
    adjust<few::Class, T>(p, [&](const Text& text, const Piece& piece, T* logits) {
        return few::adjust_classes(p, text, blockIdx.x, piece, logits);
    });
}

template <typename T>
INLINE void adjust_many(const Params& p) {
    __shared__ u32 sums[MANY_THREADS / WARP];
    adjust<many::Class, T>(p, [&](const Text& text, const Piece& piece, T* logits) {
        return many::adjust_classes(p, text, blockIdx.x, piece, sums, logits);
    });
}

SPEC_KERNEL(adjust_logits_few_f32, adjust_few<float>, Params, FEW_THREADS)
SPEC_KERNEL(adjust_logits_few_f16, adjust_few<f16>, Params, FEW_THREADS)
SPEC_KERNEL(adjust_logits_few_bf16, adjust_few<bf16>, Params, FEW_THREADS)
SPEC_KERNEL_BLOCKS(adjust_logits_many_f32, adjust_many<float>, Params, MANY_THREADS, MANY_BLOCKS)
SPEC_KERNEL_BLOCKS(adjust_logits_many_f16, adjust_many<f16>, Params, MANY_THREADS, MANY_BLOCKS)
SPEC_KERNEL_BLOCKS(adjust_logits_many_bf16, adjust_many<bf16>, Params, MANY_THREADS, MANY_BLOCKS)
