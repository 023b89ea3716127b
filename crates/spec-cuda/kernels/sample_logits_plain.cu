// sample_logits for batches in which every row draws one token from all allowed tokens except those
// that min-p drops, or takes the most likely token: without a sum of weights and without filters.
//
// A block or a cluster of blocks owns a row. Each warp reads a range of the row's groups of 64
// tokens once, and keeps the largest logit of each group (logit_groups.cuh). While logits are in
// flight, the warp computes the noise of their groups, which takes part of the waiting time. The
// largest logits and the noise go to the leading block, which ends the row alone
// (race_leader_block.cuh): it finds the largest logit of the row, to which the weights of tokens
// are relative; then the tokens race, and the leading block computes the times of about 60 tokens.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s. The time of a
// single row is latency: reading the row, one exchange within the cluster, and reading a few groups
// twice from L2.
#include "sample_logits_plain.cuh"

// The lowest token of a group whose logit equals the row's largest logit. By a warp.
template <typename Row>
INLINE u32 lowest_equal(const Row& row, u32 group, u32 lane, float largest) {
    const u32 token = group * GROUP + lane;
    const float entries[2] = {row.entry(token), row.entry(token + WARP)};
    const u32 second = entries[1] == largest ? token + WARP : NONE;
    return __reduce_min_sync(ALL_LANES, entries[0] == largest ? token : second);
}

// Writes one token.
template <typename T, bool MASKED>
struct TokenSink {
    // With eight loads in flight, 256 rows of 128,256 f32 take 52.7 us on an H100; with four, 54.5
    // us.
    using Row = LogitGroups<T, MASKED, 8>;
    PicksOfWarp* of_warps;
    // The first group with the row's largest logit.
    u32& first_group;

    INLINE PicksOfWarp& picks(u32 warp) const { return of_warps[warp]; }
    INLINE NoVisitor visitor() const { return {}; }
    INLINE void clear() const { first_group = NONE; }
    INLINE void begin(const Request&) const {}
    INLINE void end(u32, u32) const {}
    INLINE u32 sent() const { return 0; }
    INLINE void send(const Senders&, const Arrivals&, u32, u32) const {}

    INLINE void finish(const RowEnd<T, Row>& end) const {
        const LeaderRace& leader = end.leader;
        const Params<T>& p = end.p;
        u32 token = 0;
        if (end.is_empty()) {
            if (threadIdx.x == 0) raise_of(p, end.index, NON_FINITE);
            if (leader.warp == 0) token = lowest_allowed(p, end.index, leader.lane);
        } else if (end.drawing.options.greedy) {
            const float largest = end.largest();
#pragma unroll 1
            for (u32 group = threadIdx.x; group < leader.groups; group += SELECT_THREADS) {
                if (leader.tops[group] == largest) atomicMin(&first_group, group);
            }
            __syncthreads();
            if (leader.warp == 0) token = lowest_equal(end.row, first_group, leader.lane, largest);
        } else {
            token = static_cast<u32>(leader.winner(end.racers(), end.pieces, end.front.early));
        }
        if (threadIdx.x != 0) return;
        if (!end.is_empty()) raise_of(p, end.index, end.drawing.options.bits);
        // If logits change during the call, no token may win.
        p.tokens.set(end.index, 0, token < p.vocab ? static_cast<i32>(token) : 0);
    }
};

template <typename T, bool MASKED>
INLINE void sample_plain(const Params<T>& p) {
    __shared__ DrawMemory memory;
    __shared__ PicksOfWarp picks_of[SELECT_WARPS];
    __shared__ u32 first_group;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) return write_padding(p, index, blocks);
    TokenSink<T, MASKED> sink = {picks_of, first_group};
    draw_row(p, index, blocks, MASKED ? p.mask[index] : nullptr, memory, sink);
}

#define SAMPLER(dtype, T)                                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_##dtype, (sample_plain<T, false>), Params<T>,      \
                       SELECT_THREADS, SHARING)                                               \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_masked_##dtype, (sample_plain<T, true>), Params<T>, \
                       SELECT_THREADS, SHARING)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
