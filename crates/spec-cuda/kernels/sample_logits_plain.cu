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

template <typename T, bool MASKED>
INLINE void sample_plain(const Params<T>& p) {
    // With eight loads in flight, 256 rows of 128,256 f32 take 52.7 us on an H100; with four, 54.5
    // us.
    using Row = LogitGroups<T, MASKED, 8>;
    __shared__ LeaderRace::Shared shared;
    // The largest logit of each group; the leading block also receives those of other blocks here.
    __shared__ alignas(16) float tops[LeaderRace::MAX_GROUPS];
    __shared__ Arrivals arrivals;
    // A copy for each warp, because warps draw noise before the first barrier of the block.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ PicksOfWarp picks_of[SELECT_WARPS];
    __shared__ u32 first_group;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) return write_padding(p, index, blocks);
    const LeaderRace leader(shared, tops, p.vocab);
    Request& request = requests[leader.warp];
    if (leader.lane == 0) request.fetch_plain(p, index);
    // While the first logits are in flight.
    const auto begin = [&] {
        if (blocks.size > 1) LeaderRace::open(blocks, arrivals);
        if (threadIdx.x == 0) {
            shared.begin();
            first_group = NONE;
        }
        Request::arrive();
        __syncwarp();
    };
    const u32* const mask = MASKED ? p.mask[index] : nullptr;
    const Row row = {p.logits[index], mask, p.vocab};
    const u32 piece = blocks.rank * SELECT_WARPS + leader.warp;
    const WarpRange range(p.vocab, piece, blocks.size * SELECT_WARPS);
    const Drawing drawing =
        read_plain(p, index, request, leader, row, range, piece, picks_of[leader.warp], NoVisitor{}, begin, [] {});
    const Options& options = drawing.options;
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return leader.send(blocks, arrivals, range, piece);

    leader.await(blocks, arrivals);
    const LeaderRace::Front front = leader.front(options.inverse, blocks.size * SELECT_WARPS);
    const u32 largest_key = front.largest_key;
    const float largest = exact::value_of_key(largest_key);
    u32 token = 0;
    if (largest_key <= LOWEST_KEY) {
        if (threadIdx.x == 0) raise_of(p, index, NON_FINITE);
        if (leader.warp == 0) token = lowest_allowed(p, index, leader.lane);
    } else if (options.greedy) {
#pragma unroll 1
        for (u32 group = threadIdx.x; group < leader.groups; group += SELECT_THREADS) {
            if (tops[group] == largest) atomicMin(&first_group, group);
        }
        __syncthreads();
        if (leader.warp == 0) token = lowest_equal(row, first_group, leader.lane, largest);
    } else {
        const Scale scale = {largest, options.inverse};
        const Racers<Row, NoFilter> racers(drawing.draw, row, scale, options.floor, negative_infinity(), NoFilter{});
        token = static_cast<u32>(leader.winner(racers, blocks.size * SELECT_WARPS, front.early));
    }
    if (threadIdx.x != 0) return;
    if (largest_key > LOWEST_KEY) raise_of(p, index, options.bits);
    // If logits change during the call, no token may win.
    p.tokens.set(index, 0, token < p.vocab ? static_cast<i32>(token) : 0);
}

#define SAMPLER(dtype, T)                                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_##dtype, (sample_plain<T, false>), Params<T>,      \
                       SELECT_THREADS, SHARING)                                               \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_masked_##dtype, (sample_plain<T, true>), Params<T>, \
                       SELECT_THREADS, SHARING)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
