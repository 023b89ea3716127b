// indexer_topk: gathers the scores of the chosen positions, and the slots of these positions in a
// paged cache. Runs after the kernel that chooses, and only if `values` or `slots` is wanted.
//
// `finish` does the same after kernels that chose in rows in which not each score stands for a
// position, or without the blocks that are always chosen: it also completes the indices. The kernel
// that chose has written its indices behind the first `forced_first` ones of a row, counted from
// there.
//
// One thread computes one output, so that all loads of a warp are in flight at once. The positions
// of a row ascend, so neighbouring threads mostly read the same cache line of scores and the same
// entry of the block table.
//
// Bytes: each index, value and slot once, and a sector of 32 bytes of scores for each index. For 64
// rows of 2048 positions these are 1.6 MB and 4.2 MB, 1.3 us at 4.6 TB/s, which is less than a
// launch takes.
#include "indexer_topk_outputs.cuh"
#include "params/indexer_topk_gather.cuh"

template <typename T>
INLINE void gather(const Gather<T>& p) {
    const u32 row = blockIdx.x / p.parts;
    const u32 i = blockIdx.x % p.parts * blockDim.x + threadIdx.x;
    u32 bits = 0;
    if (i < p.k) {
        const i64 index = p.indices.at(row, i);
        const u32 start = p.starts.data == nullptr ? 0 : clamped(p.starts[row], p.cols);
        // Outputs after the last position have index -1, which as an unsigned number is beyond any
        // row.
        const bool is_position = static_cast<u64>(index) < p.cols - start;
        if (p.values.data != nullptr) {
            const float x =
                is_position ? to_f32(p.scores[row][start + index]) : negative_infinity();
            put_value(p, row, i, x);
        }
        if (p.slots.data != nullptr) {
            put_slot(p, row, i, static_cast<u32>(index), is_position, bits);
        }
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

template <typename T>
INLINE void finish(const Gather<T>& p) {
    const u32 row = blockIdx.x / p.parts;
    const u32 i = blockIdx.x % p.parts * blockDim.x + threadIdx.x;
    u32 bits = 0;
    if (i < p.k) {
        const u32 count = p.notes[2 * static_cast<u64>(p.rows) + row];
        const u32 first = min(p.forced_first, count);
        const u32 last = min(p.forced_last, count - first);
        const u32 chosen = first + min(p.room, count - first - last);
        // What the output stands for, among the row's blocks or covered columns.
        u32 item = NONE;
        if (i < first) {
            item = i;
        } else if (i < chosen) {
            item = static_cast<u32>(p.indices.at(row, i)) + first;
        } else if (i < chosen + last) {
            item = count - last + (i - chosen);
        }
        const bool is_item = item < count;
        i32 index = -1;
        if (is_item) {
            const bool has_positions = p.positions != nullptr;
            index = has_positions ? p.positions[row * p.scores.stride + item] : item;
        }
        p.indices.set(row, i, index);
        const bool is_forced = i < first || i >= chosen;
        if (is_forced || p.values.data != nullptr) {
            const u32 from = p.notes[row] - first;
            const float x = is_item ? to_f32(p.scores[row][from + item]) : negative_infinity();
            // The kernel that chose has not seen a score that is always chosen.
            if (is_forced && x != x) bits |= NON_FINITE;
            if (p.values.data != nullptr) put_value(p, row, i, x);
        }
        if (p.slots.data != nullptr) {
            put_slot(p, row, i, static_cast<u32>(index), is_item, bits);
        }
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

SPEC_KERNEL(indexer_topk_gather_f32, gather<float>, Gather<float>, GATHER_THREADS)
SPEC_KERNEL(indexer_topk_gather_f16, gather<f16>, Gather<f16>, GATHER_THREADS)
SPEC_KERNEL(indexer_topk_gather_bf16, gather<bf16>, Gather<bf16>, GATHER_THREADS)
SPEC_KERNEL(indexer_topk_finish_f32, finish<float>, Gather<float>, GATHER_THREADS)
SPEC_KERNEL(indexer_topk_finish_f16, finish<f16>, Gather<f16>, GATHER_THREADS)
SPEC_KERNEL(indexer_topk_finish_bf16, finish<bf16>, Gather<bf16>, GATHER_THREADS)
