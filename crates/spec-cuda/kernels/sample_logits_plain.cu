// sample_logits where every row draws one token from all that are allowed, but for what min-p drops, or
// takes the likeliest: no sum of weights, no filter.
//
// A block or a cluster of blocks owns a row. Each warp reads a piece of the row once and keeps the largest
// logit of each group of 64 tokens (logit_groups.cuh); while logits are on their way, the warp draws noise of
// their groups, which takes as long as some of the waiting. The largest logits and the noise go to the leading
// block, which ends the row alone (race_lead.cuh): it knows the largest logit of the row, to which the weights
// of tokens are relative; then the tokens race, and the leading block computes the times of about 60 of them.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s. A single row is
// latency: reading the row, one exchange within the cluster, and reading a few groups twice from L2.
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
    // With eight reads on their way, 256 rows of 128,256 f32 take 52.7 us on an H100, and 54.5 with four.
    using Row = LogitGroups<T, MASKED, 8>;
    __shared__ RaceLead::Shared shared;
    // The largest logit of each group, and where the block that leads gets those of the others.
    __shared__ alignas(16) float tops[RaceLead::MAX_GROUPS];
    __shared__ Arrivals arrivals;
    // A copy for each warp, which draws noise before all warps of the block meet.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ PicksOfWarp picks_of[SELECT_WARPS];
    __shared__ u32 first_group;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) return write_padding(p, index, blocks);
    const RaceLead lead(shared, tops, p.vocab);
    Request& request = requests[lead.warp];
    if (lead.lane == 0) request.fetch_plain(p, index);
    // While the first logits are on their way.
    const auto begin = [&] {
        if (blocks.size > 1) RaceLead::open(blocks, arrivals);
        if (threadIdx.x == 0) {
            shared.begin();
            first_group = NONE;
        }
        Request::arrive();
        __syncwarp();
    };
    const u32* const mask = MASKED ? p.mask[index] : nullptr;
    const Row row = {p.logits[index], mask, p.vocab};
    const u32 piece = blocks.rank * SELECT_WARPS + lead.warp;
    const Share share(p.vocab, piece, blocks.size * SELECT_WARPS);
    const Drawing drawing =
        read_plain(p, index, request, lead, row, share, piece, picks_of[lead.warp], Unseen{}, begin, [] {});
    const Options& options = drawing.options;
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return lead.send(blocks, arrivals, share, piece);

    lead.await(blocks, arrivals);
    const RaceLead::Front front = lead.front(options.inverse, blocks.size * SELECT_WARPS);
    const u32 largest_key = front.largest_key;
    const float largest = exact::value_of_key(largest_key);
    u32 token = 0;
    if (largest_key <= LOWEST_KEY) {
        if (threadIdx.x == 0) raise_of(p, index, NON_FINITE);
        if (lead.warp == 0) token = lowest_allowed(p, index, lead.lane);
    } else if (options.greedy) {
#pragma unroll 1
        for (u32 group = threadIdx.x; group < lead.groups; group += SELECT_THREADS) {
            if (tops[group] == largest) atomicMin(&first_group, group);
        }
        __syncthreads();
        if (lead.warp == 0) token = lowest_equal(row, first_group, lead.lane, largest);
    } else {
        const Scale scale = {largest, options.inverse};
        const Racers<Row, KeepsAll> racers(drawing.draw, row, scale, options.floor, negative_infinity(), KeepsAll{});
        token = static_cast<u32>(lead.winner(racers, blocks.size * SELECT_WARPS, front.early));
    }
    if (threadIdx.x != 0) return;
    if (largest_key > LOWEST_KEY) raise_of(p, index, options.bits);
    // Where the logits change during the call, there may be none.
    p.tokens.set(index, 0, token < p.vocab ? static_cast<i32>(token) : 0);
}

#define SAMPLER(dtype, T)                                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_##dtype, (sample_plain<T, false>), Params<T>,      \
                       SELECT_THREADS, 2)                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_plain_masked_##dtype, (sample_plain<T, true>), Params<T>, \
                       SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
