// sample_logits for batches whose rows draw from all tokens except those that min-p drops, and for
// which more than one token is wanted: several tokens, log-probabilities, or outputs for which the
// reporting kernel (sample_logits_report.cu) would have to read the row again. Rows with a mask use
// sample_logits_plain.cu for one token, otherwise sample_logits.cu, and then the reporting kernel.
//
// A row is read once, as in sample_logits_plain.cu. If a sum of weights is wanted, each lane adds
// up the weights of the logits that it reads, relative to its largest logit so far: an FMA, an
// exponential and an addition for each logit. The leading block receives the sums together with the
// largest logits of the groups, lets the tokens race (race_order.cuh), and writes all outputs.
//
// Bytes: the logits once. The exponentials take 33 million / (132 * 16) = 15,500 cycles at 256
// rows, 9 us of the 50 us that reading takes.
#include "race_order.cuh"
#include "sample_logits_plain.cuh"
#include "sample_logits_report.cuh"

// A lane's sum of the powers 2^(logit * scale).
struct PowerSum {
    // 0 if no sum is wanted.
    float scale;
    // `sum` is in units of 2^exponent, the largest power so far.
    float exponent;
    float sum;

    INLINE PowerSum() : scale(0.0f), exponent(-LARGEST), sum(0.0f) {}

    // Called by LogitGroups::survey before a batch of logits.
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

    // The sum over the warp.
    INLINE u64 of_warp() const {
        float largest = exponent;
#pragma unroll
        for (u32 o = WARP / 2; o > 0; o /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        }
        const float all = warp_sum(sum * approximate_exp2(exponent - largest));
        return static_cast<u64>(__float_as_uint(largest)) << 32 | __float_as_uint(all);
    }

    // The sum over all warps, in units of the largest logit's power. Not usable if a logit is
    // infinite, or so large that its exponent is infinite.
    INLINE static float of_row(const u64* of_warps, u32 warps, u32 lane, float largest,
                               float scale) {
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

// The logarithms of tokens' probabilities.
struct LogProbs {
    Scale scale;
    // The logarithm of the sum of weights.
    float logarithm;

    INLINE float operator()(float x) const {
        if (!(x > negative_infinity())) return negative_infinity();
        return (x == scale.largest ? 0.0f : scale.below(x)) - logarithm;
    }
};

// The sum of the weights that are at least `floor` units, in units of 2^-40. The whole block adds
// it up in shared memory at `sum`. `tops` has the largest logit of each group.
template <typename Row>
__device__ __noinline__ u64 sum_kept(Row row, const float* tops, u32 groups, Scale scale, u64 floor,
                                     u64* sum) {
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

// Writes the outputs of a drawn token, and keeps its logit for the report.
template <typename T>
struct TokenWriter {
    const Params<T>& p;
    u32 index;
    Drawn& drawn;
    LogProbs log_probs;
    // True if the row takes its most likely tokens, so that their probability is 1.
    bool certain;

    INLINE void operator()(u32 place, u32 token, float x) const {
        p.tokens.set(index, place, static_cast<i32>(token));
        drawn.logits[place] = x;
        if (p.processed_logprobs.data == nullptr) return;
        const float sure = place == 0 ? 0.0f : negative_infinity();
        p.processed_logprobs[index][place] = certain ? sure : log_probs(x);
    }
};

// Stores the most likely tokens in shared.sorted, and returns their number. `tops` has the largest
// logit of each group.
template <typename Row>
__device__ __noinline__ u32 find_likeliest(const Row row, RowOrder::Shared& shared,
                                           const float* tops, u32 wanted) {
    return RowOrder(shared, tops, row.vocab, 0).first(row, min(wanted, row.vocab));
}

// Writes the wanted outputs of the report for the drawn tokens and the most likely tokens.
template <typename T, typename Row>
__device__ __noinline__ void report_row(const Report<T>& p, u32 index, const Row row,
                                        RowOrder::Shared& shared, const float* tops, Drawn& drawn,
                                        LogSoftmax softmax) {
    const u32 likeliest = p.top > 0 ? find_likeliest(row, shared, tops, p.top) : 0;
    const RowOrder order(shared, tops, row.vocab, 0);
    write_report(p, index, row, order, drawn, softmax, likeliest);
}

// Memory that is used first for picks, then for the race, then for the report.
union Scratch {
    PicksOfWarp picks[SELECT_WARPS];
    RaceOrder::Shared race;
    RowOrder::Shared order;

    INLINE Scratch() {}
};

// Writes the tokens, what `sample_logits` says of them, and the report.
template <typename T>
struct ReportSink {
    using Row = LogitGroups<T, false>;
    const Report<T>& report;
    Scratch& scratch;
    Drawn& drawn;
    // The sum of weights of each warp of the cluster; and the sum of the weights that min-p keeps.
    u64* sums;
    u64& kept;
    // Whether the logarithm of the distribution that was drawn from is wanted.
    bool by_weight;
    PowerSum powers;

    INLINE PicksOfWarp& picks(u32 warp) const { return scratch.picks[warp]; }
    INLINE PowerSum& visitor() { return powers; }
    INLINE void clear() const {}

    // At most one sum is wanted. The weights that min-p keeps are added up later, when the row's
    // largest logit is known.
    INLINE void begin(const Request& request) {
        if (by_weight) {
            powers.scale =
                request.draws() && request.min_p <= 0.0f ? request.inverse() * 1.44269504f : 0.0f;
        }
        const bool by_exponential =
            report.logprobs.data != nullptr || report.top_logprobs.data != nullptr;
        if (by_exponential) powers.scale = 1.44269504f;
    }

    INLINE void end(u32 piece, u32 lane) const {
        if (powers.scale == 0.0f) return;
        const u64 own = powers.of_warp();
        if (lane == 0) sums[piece] = own;
    }

    INLINE u32 sent() const { return powers.scale != 0.0f ? 8 : 0; }
    INLINE void send(const Senders& blocks, Arrivals& arrivals, u32 piece, u32 lane) const {
        if (powers.scale != 0.0f && lane == 0) {
            blocks.put(&sums[piece], &arrivals.word, 0, sums[piece]);
        }
    }

    // The logarithm of the sum of weights, or of exponentials; 0 if neither is wanted.
    INLINE float logarithm(const RowEnd<T, Row>& end, const Scale& scale, bool certain) const {
        const bool has_sum = powers.scale != 0.0f;
        if (end.is_empty() || !(has_sum || (by_weight && !certain))) return 0.0f;
        float all = 0.0f;
        if (has_sum) {
            all = PowerSum::of_row(sums, end.pieces, end.leader.lane, end.largest(), powers.scale);
        }
        if (!(all > 0.0f && all < infinity())) {
            const u64 floor = by_weight ? end.drawing.options.floor : 0;
            const LeaderRace& leader = end.leader;
            const u64 units = sum_kept(end.row, leader.tops, leader.groups, scale, floor, &kept);
            all = __ull2float_rn(units) * (1.0f / 1099511627776.0f);
        }
        return logf(all);
    }

    INLINE void finish(const RowEnd<T, Row>& end) const {
        const Params<T>& p = end.p;
        const LeaderRace& leader = end.leader;
        const Options& options = end.drawing.options;
        const float largest = end.largest();
        const bool certain = end.is_empty() || options.greedy;
        const Scale scale = {largest, by_weight ? options.inverse : 1.0f};
        const LogProbs log_probs = {scale, logarithm(end, scale, certain)};
        const TokenWriter<T> writer = {p, end.index, drawn, log_probs, certain};
        u32 found = 1;
        if (end.is_empty()) {
            if (threadIdx.x == 0) {
                raise_of(p, end.index, NON_FINITE);
                writer(0, 0, negative_infinity());
            }
        } else if (options.greedy) {
            const u32 count = find_likeliest(end.row, scratch.order, leader.tops, p.draws);
            const u64 entry = threadIdx.x < count ? scratch.order.sorted[threadIdx.x] : 0;
            const u32 key = static_cast<u32>(entry >> 32);
            // All tokens except those at negative infinity.
            const bool there = key > LOWEST_KEY;
            if (there) {
                writer(threadIdx.x, NONE - static_cast<u32>(entry), exact::value_of_key(key));
            }
            found = __syncthreads_count(there);
        } else {
            const RaceOrder order = {leader, scratch.race};
            found = order.find(end.racers(), end.pieces, p.draws, writer);
        }
        if (!end.is_empty() && threadIdx.x == 0) raise_of(p, end.index, options.bits);
        // The places after the tokens that finished.
        if (found + threadIdx.x < p.draws) writer(found + threadIdx.x, NONE, nothing());
        if (report.logprobs.data != nullptr || report.ranks.data != nullptr || report.top > 0) {
            report_row(report, end.index, end.row, scratch.order, leader.tops, drawn,
                       {largest, log_probs.logarithm});
        }
    }
};

template <typename T>
INLINE void draw_and_report(const DrawAndReport<T>& params) {
    const Params<T>& p = params.drawing;
    __shared__ DrawMemory memory;
    __shared__ u64 sums[MAX_PIECES];
    __shared__ u64 kept;
    __shared__ Scratch scratch;
    __shared__ Drawn drawn;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        write_padding(p, index, blocks);
        if (blocks.rank == 0) write_padded_report(params.report, index);
        return;
    }
    const bool by_weight = p.processed_logprobs.data != nullptr;
    ReportSink<T> sink = {params.report, scratch, drawn, sums, kept, by_weight, PowerSum()};
    draw_row(p, index, blocks, nullptr, memory, sink);
}

#define DRAW_REPORTER(dtype, T)                                                                 \
    SPEC_KERNEL_BLOCKS(sample_logits_draw_report_##dtype, draw_and_report<T>, DrawAndReport<T>, \
                       SELECT_THREADS, SHARING)
static_assert(RaceOrder::MAX_WANTED == MAX_REPORTED_DRAWS);

DRAW_REPORTER(f32, float)
DRAW_REPORTER(f16, f16)
DRAW_REPORTER(bf16, bf16)
