// sample_logits for rows that are a part of a longer row, or whose tokens may be forced: as
// sample_logits_plain.cu, one token of each row, drawn from all allowed tokens except those that
// min-p drops.
//
// Column c stands for token first_token + c. Groups of 64 are of tokens, so the row is read as if
// it began at the last multiple of 256 tokens: its first groups have tokens that are not there, and
// its last group may have. `Draw` counts Philox blocks from the same token, so that no other part
// of the race knows of the shard.
//
// Bytes: the logits once.
#define Draw DrawOfRow
#include "philox.cuh"
#undef Draw

// The random numbers of a decision about a shard: the headers below use this struct in the place of
// that of philox.cuh.
struct Draw : DrawOfRow {
    // The token from which tokens are counted, in units of 256.
    u32 shift;

    INLINE Draw(u64 of_request, u64 at, Purpose decides)
        : DrawOfRow(of_request, at, decides), shift(0) {}

    INLINE uint4 start(u32 index) const {
        // Blocks for the noise of four groups, of a group, and of four tokens (race.cuh).
        return DrawOfRow::start(index + (shift << (index >= 1u << 31   ? 6
                                                   : index >= 1u << 30 ? 2
                                                                       : 0)));
    }

    // The four random words at an index of the stream.
    INLINE uint4 block(u32 index) const {
        uint4 c = start(index);
        uint2 k = key();
#pragma unroll 1
        for (u32 i = 0; i < 10; ++i) {
            c = round(c, k);
            k = next(k);
        }
        return c;
    }
};

#include "sample_logits_part.cuh"

// Tokens whose least noise one Philox block has.
constexpr u32 BLOCK_TOKENS = 4 * GROUP;

// A part of a row. Tokens are counted from the last multiple of BLOCK_TOKENS; the first `lead` of
// them are not in the part.
template <typename T, bool MASKED>
struct ShardGroups {
    using Groups = LogitGroups<T, MASKED, 8>;
    using Raw = typename Groups::Raw;
    static constexpr u32 RACE_AT_ONCE = Groups::RACE_AT_ONCE;

    // As if the first `lead` tokens were there: no address before `lead` is read.
    Groups groups;
    u32 lead;

    INLINE float entry(u32 token) const { return token < lead ? nothing() : groups.entry(token); }
    INLINE Raw raw(u32 token) const { return groups.raw(max(token, lead)); }
    INLINE float entry_of(u32 token, Raw raw) const {
        return token < lead ? nothing() : groups.entry_of(token, raw);
    }

    // As LogitGroups::survey.
    template <typename Visit, typename Meanwhile>
    INLINE float survey(u32 from, u32 to, u32 lane, Visit&& visit, Meanwhile&& meanwhile) const {
        float raw = negative_infinity();
        const u32 start = min(max(from, (lead + GROUP - 1) / GROUP), to);
#pragma unroll 1
        for (u32 group = from; group < start; ++group) {
            float top = negative_infinity();
#pragma unroll 1
            for (u32 half = 0; half < 2; ++half) {
                const u32 token = group * GROUP + half * WARP + lane;
                if (token < lead || token >= groups.vocab) continue;
                raw = max_or_nan(raw, to_f32(groups.row[token]));
                top = fmaxf(top, groups.entry(token));
            }
            const u32 key = __reduce_max_sync(ALL_LANES, exact::sort_key(top));
            if (lane == group % WARP) visit(group, exact::value_of_key(key));
        }
        const float rest = groups.survey(start, to, lane, visit, NoVisitor{}, meanwhile);
        return max_or_nan(raw, rest);
    }
};

template <typename T, bool MASKED>
INLINE void sample_shard(const Columns<T>& c) {
    using Row = ShardGroups<T, MASKED>;
    __shared__ LeaderRace::Shared shared;
    __shared__ alignas(16) float tops[LeaderRace::MAX_GROUPS];
    __shared__ Arrivals arrivals;
    // A copy for each warp, because warps draw noise before the first barrier of the block.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ u32 first_group;
    const Params<T>& p = c.drawing;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        if (c.winners != nullptr && blocks.rank == 0 && threadIdx.x == 0) {
            c.winners[index] = PLACE_NOTHING << 32 | NONE;
        }
        return write_padding(p, index, blocks);
    }
    const u32 lead = c.first_token % BLOCK_TOKENS;
    const u32 shift = c.first_token / BLOCK_TOKENS;
    const u32 vocab = lead + p.vocab;
    const LeaderRace leader(shared, tops, vocab);
    Request& request = requests[leader.warp];
    if (leader.lane == 0) request.fetch_plain(p, index);
    const u32* const mask = MASKED ? p.mask[index] : nullptr;
    const u32* const shifted = MASKED ? mask + shift * (BLOCK_TOKENS / 32) : nullptr;
    const Row row = {{p.logits[index] - lead, shifted, vocab}, lead};
    const u32 piece = blocks.rank * SELECT_WARPS + leader.warp;
    const WarpRange range(vocab, piece, blocks.size * SELECT_WARPS);
    const NoFilter filter;
    LeaderRace::Noise<FromRow<Row>, NoFilter> noise(leader, {row}, range, filter);
    const auto draw_of = [&] {
        Draw draw = request.draw(p);
        draw.shift = shift;
        return draw;
    };
    bool has_begun = false;
    // While the first logits are in flight.
    const auto begin = [&] {
        has_begun = true;
        if (blocks.size > 1) LeaderRace::open(blocks, arrivals);
        if (threadIdx.x == 0) {
            shared.begin();
            first_group = NONE;
        }
        Request::arrive();
        __syncwarp();
    };
    const auto meanwhile = [&](u32 group) {
        if (!has_begun) begin();
        if (group >= noise.next && request.draws()) noise.advance(draw_of(), request.inverse());
    };
    const auto visit = [&](u32 group, float its) { tops[group] = its; };
    const float raw = row.survey(range.begin, range.end, leader.lane, visit, meanwhile);
    if (!has_begun) begin();
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && leader.lane == 0) {
        raise_of(p, index, NON_FINITE);
    }
    leader.fill_up(range);
    const Options options(request);
    const Draw draw = draw_of();
    if (!options.greedy) noise.finish(draw, options.inverse, piece);
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return leader.send(blocks, arrivals, range, piece);

    leader.await(blocks, arrivals);
    const ColumnTokens tokens = {nullptr, false, c.first_token, mask, c.mask_words};
    const PartOfRow part = {tokens, lead, vocab};
    end_part<false>(c, index, leader, row, part, options, draw, blocks.size * SELECT_WARPS,
                    first_group);
}

#define SHARD(dtype, T)                                                                         \
    SPEC_KERNEL_BLOCKS(sample_logits_shard_##dtype, (sample_shard<T, false>), Columns<T>,       \
                       SELECT_THREADS, 2)                                                       \
    SPEC_KERNEL_BLOCKS(sample_logits_shard_masked_##dtype, (sample_shard<T, true>), Columns<T>, \
                       SELECT_THREADS, 2)

SHARD(f32, float)
SHARD(f16, f16)
SHARD(bf16, bf16)
