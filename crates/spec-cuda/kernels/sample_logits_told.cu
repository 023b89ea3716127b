// sample_logits where rows draw from all tokens but for what min-p drops, and more is asked for than one token:
// several tokens, the logarithms of their shares, or what the kernel that reports (sample_logits_report.cu) would
// have to read from memory again. Rows with a mask have other kernels: sample_logits_plain.cu for one token,
// sample_logits.cu for more, and then the kernel that reports.
//
// A row is read once, as in sample_logits_plain.cu. Where a sum of weights is asked for, each lane adds up what
// it reads, in units of the largest that it has met: an FMA, a power and an addition a logit. The leading block
// gets the sums with the largest logits of the groups, lets the tokens race (race_order.cuh), and writes all that
// is asked for.
//
// Bytes: the logits once. The powers take 33 million / (132 * 16) = 15,500 cycles at 256 rows, 9 us of the 50
// that reading takes.
#include "race_order.cuh"
#include "sample_logits_plain.cuh"
#include "sample_logits_report.cuh"

// A lane's sum of the powers of 2 whose exponents are logits times `scale`.
struct PowerSum {
    // 0 where no sum is asked for.
    float scale;
    // The sum is in units of 2^exponent, which is the largest power so far.
    float exponent;
    float sum;

    INLINE PowerSum() : scale(0.0f), exponent(-LARGEST), sum(0.0f) {}

    // For what LogitGroups::survey reads.
    INLINE bool begin(float top) {
        if (scale == 0.0f) return false;
        const float larger = fmaxf(exponent, top * scale);
        sum *= approximate_exp2(exponent - larger);
        exponent = larger;
        return true;
    }

    template <u32 N>
    INLINE void operator()(const float (&values)[N], bool there) {
        float own = 0.0f;
#pragma unroll
        for (u32 j = 0; j < N; ++j) own += approximate_exp2(fmaf(values[j], scale, -exponent));
        if (there) sum += own;
    }

    // The warp's sum.
    INLINE u64 of_warp() const {
        float largest = exponent;
#pragma unroll
        for (u32 o = WARP / 2; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const float all = warp_sum(sum * approximate_exp2(exponent - largest));
        return static_cast<u64>(__float_as_uint(largest)) << 32 | __float_as_uint(all);
    }

    // The sum of all warps, in units of the largest logit's power; of no use where some logit is not finite, or
    // is so large that its exponent is not.
    INLINE static float of_row(const u64* of_warps, u32 warps, u32 lane, float largest, float scale) {
        float all = 0.0f;
#pragma unroll 1
        for (u32 i = lane; i < warps; i += WARP) {
            const u64 own = of_warps[i];
            const float above = fmaf(largest, scale, -__uint_as_float(static_cast<u32>(own >> 32)));
            all += __uint_as_float(static_cast<u32>(own)) * approximate_exp2(-above);
        }
        return warp_sum(all);
    }
};

// The logarithms of the tokens' shares of a sum of weights.
struct LogShares {
    Scale scale;
    // Of the sum.
    float logarithm;

    INLINE float operator()(float x) const {
        if (!(x > negative_infinity())) return negative_infinity();
        return (x == scale.largest ? 0.0f : scale.below(x)) - logarithm;
    }
};

// The sum of the weights that are `floor` units and more, in units of 2^-40, by the whole block, which adds it up
// in `sum`, in shared memory. `tops` has the largest logit of each group.
template <typename Row>
__device__ __noinline__ u64 sum_kept(Row row, const float* tops, u32 groups, Scale scale, u64 floor, u64* sum) {
    const float least = floor == 0 ? negative_infinity() : scale.least_entry(floor);
    const u32 lane = lane_id();
    u64 own = 0;
#pragma unroll 1
    for (u32 base = threadIdx.x - lane; base < groups; base += SELECT_THREADS) {
        u32 those = __ballot_sync(ALL_LANES, base + lane < groups && tops[base + lane] >= least);
#pragma unroll 1
        for (; those != 0; those &= those - 1) {
            const u32 token = (base + first_of(those)) * GROUP + lane;
            const float entries[2] = {row.entry(token), row.entry(token + WARP)};
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u64 fixed = scale.fixed(entries[i]);
                if (entries[i] == entries[i] && fixed >= floor) own += fixed;
            }
        }
    }
    own = warp_sum(own);
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    if (lane == 0) atomicAdd(sum, own);
    __syncthreads();
    return *sum;
}

// What a row writes of its tokens, and leaves of them for the report.
template <typename T>
struct Teller {
    const Params<T>& p;
    u32 index;
    Drawn& drawn;
    LogShares shares;
    // Whether the row takes its likeliest tokens.
    bool certain;

    INLINE void operator()(u32 place, u32 token, float x) const {
        p.tokens.set(index, place, static_cast<i32>(token));
        drawn.logits[place] = x;
        if (p.processed_logprobs.data == nullptr) return;
        const float sure = place == 0 ? 0.0f : negative_infinity();
        p.processed_logprobs[index][place] = certain ? sure : shares(x);
    }
};

// Leaves the likeliest tokens in shared.sorted, and returns how many there are. `tops` has the largest logit of
// each group.
template <typename Row>
__device__ __noinline__ u32 find_likeliest(const Row row, RowOrder::Shared& shared, const float* tops, u32 wanted) {
    return RowOrder(shared, tops, row.vocab, 0).first(row, min(wanted, row.vocab));
}

// Reports what is asked for of the tokens drawn, and of the likeliest ones.
template <typename T, typename Row>
__device__ __noinline__ void report_row(const Report<T>& p, u32 index, const Row row, RowOrder::Shared& shared,
                                        const float* tops, Drawn& drawn, LogSoftmax softmax) {
    const u32 likeliest = p.top > 0 ? find_likeliest(row, shared, tops, p.top) : 0;
    const RowOrder order(shared, tops, row.vocab, 0);
    write_report(p, index, row, order, drawn, softmax, likeliest);
}

// Picks as the row is read, then what races, then what is reported.
union Scratch {
    PicksOfWarp picks[SELECT_WARPS];
    RaceOrder::Shared race;
    RowOrder::Shared order;

    INLINE Scratch() {}
};

template <typename T>
INLINE void tell(const Told<T>& told) {
    using Row = LogitGroups<T, false>;
    const Params<T>& p = told.drawing;
    const Report<T>& report = told.report;
    __shared__ RaceLead::Shared shared;
    // The largest logit of each group, and where the block that leads gets those of the others.
    __shared__ alignas(16) float tops[RaceLead::MAX_GROUPS];
    // Of each warp of the cluster, the sum of weights; and the sum of those that min-p keeps.
    __shared__ u64 sums[MAX_PIECES];
    __shared__ u64 kept;
    __shared__ Arrivals arrivals;
    // A copy for each warp, which draws noise before all warps of the block meet.
    __shared__ Request requests[SELECT_WARPS];
    __shared__ Scratch scratch;
    __shared__ Drawn drawn;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        write_padding(p, index, blocks);
        if (blocks.rank == 0) write_padded_report(report, index);
        return;
    }
    const RaceLead lead(shared, tops, p.vocab);
    Request& request = requests[lead.warp];
    if (lead.lane == 0) request.fetch_plain(p, index);
    PowerSum powers;
    const bool by_weight = p.processed_logprobs.data != nullptr;
    // While the first logits are on their way.
    const auto begin = [&] {
        if (blocks.size > 1) RaceLead::open(blocks, arrivals);
        if (threadIdx.x == 0) shared.begin();
        Request::arrive();
        __syncwarp();
        // One sum at most is asked for. What min-p keeps is added up when the row's largest logit is known.
        if (by_weight) powers.scale = request.draws() && request.min_p <= 0.0f ? request.inverse() * 1.44269504f : 0.0f;
        const bool by_exponential = report.logprobs.data != nullptr || report.top_logprobs.data != nullptr;
        if (by_exponential) powers.scale = 1.44269504f;
    };
    const Row row = {p.logits[index], nullptr, p.vocab};
    const u32 piece = blocks.rank * SELECT_WARPS + lead.warp;
    const Share share(p.vocab, piece, blocks.size * SELECT_WARPS);
    const auto end = [&] {
        if (powers.scale == 0.0f) return;
        const u64 own = powers.of_warp();
        if (lead.lane == 0) sums[piece] = own;
    };
    const Drawing drawing =
        read_plain(p, index, request, lead, row, share, piece, scratch.picks[lead.warp], powers, begin, end);
    const Options& options = drawing.options;
    const float scale = powers.scale;
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) {
        if (scale != 0.0f && lead.lane == 0) blocks.put(&sums[piece], &arrivals.word, 0, sums[piece]);
        return lead.send(blocks, arrivals, share, piece);
    }

    lead.await(blocks, arrivals, scale != 0.0f ? 8 : 0);
    const u32 pieces = blocks.size * SELECT_WARPS;
    const u32 largest_key = lead.front(options.inverse, pieces).largest_key;
    const float largest = exact::value_of_key(largest_key);
    const bool certain = largest_key <= LOWEST_KEY || options.greedy;
    const LogShares shares = {{largest, by_weight ? options.inverse : 1.0f}, 0.0f};
    Teller<T> teller = {p, index, drawn, shares, certain};
    if (largest_key > LOWEST_KEY && (scale != 0.0f || (by_weight && !certain))) {
        float all = scale == 0.0f ? 0.0f : PowerSum::of_row(sums, pieces, lead.lane, largest, scale);
        if (!(all > 0.0f && all < infinity())) {
            const u64 floor = by_weight ? options.floor : 0;
            const u64 units = sum_kept(row, tops, lead.groups, shares.scale, floor, &kept);
            all = __ull2float_rn(units) * (1.0f / 1099511627776.0f);
        }
        teller.shares.logarithm = logf(all);
    }
    u32 found = 1;
    if (largest_key <= LOWEST_KEY) {
        if (threadIdx.x == 0) {
            raise_of(p, index, NON_FINITE);
            teller(0, 0, negative_infinity());
        }
    } else if (options.greedy) {
        const u32 count = find_likeliest(row, scratch.order, tops, p.draws);
        const u64 entry = threadIdx.x < count ? scratch.order.sorted[threadIdx.x] : 0;
        const u32 key = static_cast<u32>(entry >> 32);
        // All but those of negative infinity.
        const bool there = key > LOWEST_KEY;
        if (there) teller(threadIdx.x, NONE - static_cast<u32>(entry), exact::value_of_key(key));
        found = __syncthreads_count(there);
    } else {
        const Scale weights = {largest, options.inverse};
        const Racers<Row, KeepsAll> racers(drawing.draw, row, weights, options.floor, negative_infinity(), KeepsAll{});
        found = RaceOrder{lead, scratch.race}.find(racers, pieces, p.draws, teller);
    }
    if (largest_key > LOWEST_KEY && threadIdx.x == 0) raise_of(p, index, options.bits);
    // Behind those that finish.
    if (found + threadIdx.x < p.draws) teller(found + threadIdx.x, NONE, nothing());
    if (report.logprobs.data != nullptr || report.ranks.data != nullptr || report.top > 0) {
        report_row(report, index, row, scratch.order, tops, drawn, {largest, teller.shares.logarithm});
    }
}

#define TELLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_told_##dtype, tell<T>, Told<T>, SELECT_THREADS, 2)

TELLER(f32, float)
TELLER(f16, f16)
TELLER(bf16, bf16)
