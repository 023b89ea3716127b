// sample_logits where every row draws one token from all that are allowed, but for what min-p drops, or
// takes the likeliest: no sum of weights, no filter.
//
// A cluster of blocks owns a row. Each warp reads a piece of the row once and keeps the largest logit of each
// group of 64 tokens (logit_groups.cuh). These logits go to the leading block, which ends the row alone
// (race_lead.cuh): it knows the largest logit of the row, to which the weights of tokens are relative;
// then the tokens race, and the leading block computes the times of about 50 of them.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s. A single row is
// latency: reading the row, one exchange within the cluster, and reading a few groups twice from L2.
#include "race_lead.cuh"
#include "sample_logits_race.cuh"

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
    __shared__ RaceLead::Shared shared;
    // The largest logit of each group, and where the block that leads gets those of the others.
    __shared__ alignas(16) float tops[RaceLead::MOST_GROUPS];
    __shared__ Arrivals arrivals;
    __shared__ Request request;
    __shared__ u32 first_group;
    const Senders blocks;
    if (blocks.size > 1) {
        if (threadIdx.x == 0) {
            arrivals.init();
            Arrivals::publish_init();
        }
        blocks.arrive_started();
    }
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (threadIdx.x == 0) {
        request.fetch(p, index);
        shared.begin();
        first_group = NONE;
    }
    const RaceLead lead(shared, tops, p.vocab);
    const u32* const mask = MASKED ? p.mask[index] : nullptr;
    const LogitGroups<T, MASKED> row = {p.logits[index], mask, p.vocab};
    const Share share(p.vocab, blocks.rank * SELECT_WARPS + lead.warp, blocks.size * SELECT_WARPS);
    const float raw =
        row.survey(share.begin, share.end, lead.lane, [&](u32 group, float its) { tops[group] = its; });
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && lead.lane == 0) raise(p.flags, NON_FINITE);
    if (threadIdx.x == 0) Request::arrive();
    __syncthreads();
    if (blocks.size > 1) blocks.wait_started();
    const Options options(request, p.vocab);
    const Draw draw(request.seed, request.position, Purpose::SAMPLE);
    const u32 piece = blocks.rank * SELECT_WARPS + lead.warp;
    if (!options.greedy) lead.draw_noise(row, draw, options.inverse, share, piece, KeepsAll{});
    if (blocks.rank != 0) return lead.send(blocks, arrivals, share, piece);

    if (blocks.size > 1) {
        if (threadIdx.x == 0) lead.expect(arrivals, blocks.size);
        arrivals.wait(0);
    }
    __syncthreads();
    const u32 largest_key = lead.largest_key();
    const float largest = exact::value_of_key(largest_key);
    u32 token = 0;
    if (largest_key <= LOWEST_KEY) {
        if (threadIdx.x == 0) raise(p.flags, NON_FINITE);
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
        const Racers<LogitGroups<T, MASKED>, KeepsAll> racers(draw, row, scale, options.floor,
                                                              negative_infinity(), KeepsAll{});
        token = static_cast<u32>(lead.winner(racers, blocks.size * SELECT_WARPS));
    }
    if (threadIdx.x != 0) return;
    if (largest_key > LOWEST_KEY) raise(p.flags, options.bits);
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
