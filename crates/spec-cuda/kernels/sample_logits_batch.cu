// sample_logits of plain rows (sample_logits_plain.cu) where there are more rows than blocks run at a time.
// Then no block is idle, and a row needs no block that leads: every warp bounds and races its own piece, and
// a block has left its row sooner than by sending the row's groups to one warp after the other.
//
// A team of blocks owns a row (select_team.cuh), of one block where rows are many. Each of its warps reads a
// piece once and keeps the largest logit of each group of 64 (logit_groups.cuh). The team's blocks tell each
// other the largest logit of the row, from which weights are taken; then the tokens race (race.cuh), of which
// about 50 are looked at.
//
// Bytes: the logits once, 256 * 4 * 128256 = 131 MB at 256 rows: 28 us at 4.6 TB/s.
#include "sample_logits_race.cuh"

template <typename T, bool MASKED>
INLINE void sample_batch(const Params<T>& p) {
    __shared__ Team::Shared told;
    __shared__ RaceShared races;
    __shared__ Request request;
    Team team(told);
    if (team.blocks.size > 1) team.blocks.arrive_started();
    const u32 index = blockIdx.x / team.blocks.size;
    if (threadIdx.x == 0) request.fetch(p, index);
    const u32* const mask = MASKED ? p.mask[index] : nullptr;
    const LogitGroups<T, MASKED> row = {p.logits[index], mask, p.vocab};
    const Share share(p.vocab, team.piece(), team.pieces());
    const bool fits = Share::most(p.vocab, team.pieces()) <= RaceShared::KEPT;
    float* const tops = races.tops[team.warp];
    float top = negative_infinity();
    const float raw = row.survey(share.begin, share.end, team.lane, [&](u32 group, float its) {
        top = fmaxf(top, its);
        if (fits) tops[group - share.begin] = its;
    });
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && team.lane == 0) raise(p.flags, NON_FINITE);
    const u32 own_key = __reduce_max_sync(ALL_LANES, key_of(top));
    if (threadIdx.x == 0) {
        Request::arrive();
        races.begin_lists();
    }
    __syncthreads();
    if (team.blocks.size > 1) team.blocks.wait_started();
    // While the others get there.
    const Options options(request, p.vocab);
    const Draw draw(request.seed, request.position, Purpose::SAMPLE);
    const uint4 high = first_noise(draw, share.begin, team.lane);
    team.pass(own_key);
    const u32 largest_key = team.largest_told(team.pieces());
    const float largest = exact::value_of_key(largest_key);
    const bool leads = team.piece() == 0 && team.lane == 0;
    const auto again = [&](u32 begin, u32 end) { resurvey(row, tops, begin, end, team.lane); };

    u32 token = 0;
    if (largest_key <= LOWEST_KEY) {
        token = lowest_allowed(p, index, team.lane);
        if (leads) raise(p.flags, NON_FINITE);
    } else if (options.greedy) {
        if (leads) raise(p.flags, options.bits);
        u32 first = NONE;
        if (own_key == largest_key) {
#pragma unroll 1
            for (u32 begin = share.begin; begin < share.end && first == NONE;) {
                const u32 end = min(begin + RaceShared::KEPT, share.end);
                if (!fits) again(begin, end);
                first = first_equal(row, tops, begin, end, team.lane, largest);
                begin = end;
            }
        }
        team.pass(first);
        token = static_cast<u32>(least_told(team));
    } else {
        if (leads) raise(p.flags, options.bits);
        const Scale scale = {largest, options.inverse};
        const Racers<LogitGroups<T, MASKED>, KeepsAll> racers(draw, row, scale, options.floor,
                                                              negative_infinity(), KeepsAll{});
        token = static_cast<u32>(first_to_finish(racers, team, races, p.vocab, high, again));
    }
    if (leads) p.tokens.set(index, 0, static_cast<i32>(token));
}

#define SAMPLER(dtype, T)                                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_batch_##dtype, (sample_batch<T, false>), Params<T>,      \
                       SELECT_THREADS, 2)                                                     \
    SPEC_KERNEL_BLOCKS(sample_logits_batch_masked_##dtype, (sample_batch<T, true>), Params<T>, \
                       SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
