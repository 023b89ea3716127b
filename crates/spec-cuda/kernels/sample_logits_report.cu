// sample_logits: reports the log-probabilities and ranks of the tokens that a row drew, and the
// row's most likely tokens, by the stored logits. Runs after the kernel that draws, and only if
// something is wanted that the drawing kernel does not report itself
// (sample_logits_draw_report.cu).
//
// A block or a cluster of blocks owns a row and reads it once: the largest logit of each group of
// tokens, and a sum of exponentials from each warp, go to the leading block, and the other blocks
// end. The leading block finds the most likely tokens in few groups (sample_logits_order.cuh). None
// of this depends on the drawn tokens, so it overlaps with the kernel that draws. Then the leading
// block waits for that kernel.
//
// Bytes: the logits once more, mostly from L2.
#include "race_leader_block.cuh"
#include "sample_logits_report.cuh"

// Shared memory of a block.
struct Shared {
    // The largest logit of each group of tokens; the leading block also receives those of other
    // blocks here.
    alignas(16) float tops[RowOrder::MAX_GROUPS];
    // A sum of exponentials from each warp of the cluster.
    u64 sums[MAX_PIECES];
    Arrivals arrivals;
    RowOrder::Shared order;
    Drawn drawn;
};

// The range of a row that a warp reads, in groups of GROUP << merged tokens.
struct Part {
    u32 merged;
    WarpRange range;

    INLINE Part(u32 vocab, u32 merges, u32 piece, u32 pieces)
        : merged(merges), range(((vocab - 1) >> merges) + 1, piece, pieces) {}

    // The base-2 logarithm of the number of neighbouring groups of GROUP tokens that share one
    // largest logit: the smallest with which the row's groups fit.
    INLINE static u32 merges(u32 vocab) {
        u32 merges = 0;
        while (RowOrder::groups_of(vocab, merges) > RowOrder::MAX_GROUPS) merges += 1;
        return merges;
    }

    // Stores the largest logit of each group in `tops`. Returns the sum of the exponentials of all
    // logits.
    template <typename Row>
    INLINE ExpSum survey(const Row& row, float* tops, u32 lane) const {
        if (merged > 0) {
            for (u32 group = range.begin + lane; group < range.end; group += WARP) {
                tops[group] = negative_infinity();
            }
            __syncwarp();
        }
        const auto visit = [&](u32 group, float its) {
            if (merged == 0) {
                tops[group] = its;
            } else {
                raise_to(&tops[group >> merged], its);
            }
        };
        ExpSum sum;
        const u32 end = min(range.end << merged, RowOrder::groups_of(row.vocab, 0));
        row.survey(range.begin << merged, end, lane, visit, sum);
        sum.fold();
        __syncwarp();
        return sum;
    }

private:
    // Raises a number in shared memory to at least x, where other lanes may do the same. The bits
    // of nonnegative floats have the order of integers, the bits of negative floats the reverse
    // order.
    INLINE static void raise_to(float* at, float x) {
        const float positive_zero = exact::add(x, 0.0f);
        const u32 bits = __float_as_uint(positive_zero);
        if (bits >> 31 == 0) {
            atomicMax(reinterpret_cast<i32*>(at), static_cast<i32>(bits));
        } else {
            atomicMin(reinterpret_cast<u32*>(at), bits);
        }
    }
};

// In every block but the first: sends the results of its warps to the first block.
INLINE void send(const Senders& blocks, Shared& shared, const WarpRange& range, u32 piece,
                 u32 lane) {
    send_tops(shared.tops, shared.arrivals, range, lane);
    if (lane == 0) blocks.put(&shared.sums[piece], &shared.arrivals.word, 0, shared.sums[piece]);
}

// In the first block: waits for the values of the other blocks.
INLINE void await(const Senders& blocks, Shared& shared, u32 groups) {
    if (blocks.size > 1) {
        if (threadIdx.x == 0) {
            const u32 quads = quads_sent(groups, SELECT_WARPS, blocks.size);
            shared.arrivals.expect(quads * 16 + (blocks.size - 1) * SELECT_WARPS * 8);
        }
        shared.arrivals.wait(0);
    }
    __syncthreads();
}

// Fetches the logits of the tokens that the row drew.
template <typename T>
INLINE void fetch_drawn(const Report<T>& p, u32 index, Drawn& drawn) {
    if (threadIdx.x >= p.draws) return;
    const i64 token = p.tokens.at(index, threadIdx.x);
    const bool there = token >= 0 && token < static_cast<i64>(p.vocab);
    drawn.logits[threadIdx.x] =
        there ? fmaxf(to_f32(p.logits[index][token]), negative_infinity()) : nothing();
}

template <typename T>
INLINE void report(const Report<T>& p) {
    using Row = LogitGroups<T, false>;
    __shared__ Shared shared;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        // The next kernel waits for the drawing kernel by waiting for this one.
        follow();
        if (blocks.rank == 0) write_padded_report(p, index);
        return;
    }
    if (blocks.size > 1) LeaderRace::open(blocks, shared.arrivals);
    const u32 lane = lane_id();
    const u32 piece = blocks.rank * SELECT_WARPS + threadIdx.x / WARP;
    const Row row = {p.logits[index], nullptr, p.vocab};
    const Part part(p.vocab, Part::merges(p.vocab), piece, blocks.size * SELECT_WARPS);
    const ExpSum sum = part.survey(row, shared.tops, lane);
    if (lane == 0) shared.sums[piece] = sum.bits();
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return send(blocks, shared, part.range, piece, lane);

    await(blocks, shared, RowOrder::groups_of(p.vocab, part.merged));
    const RowOrder order(shared.order, shared.tops, p.vocab, part.merged);
    const float largest = exact::value_of_key(order.largest);
    const LogSoftmax softmax = {
        largest, logf(ExpSum::total(shared.sums, blocks.size * SELECT_WARPS, largest))};
    const u32 likeliest = p.top > 0 ? order.first(row, min(p.top, p.vocab)) : 0;

    follow();
    fetch_drawn(p, index, shared.drawn);
    write_report(p, index, row, order, shared.drawn, softmax, likeliest);
}

// Kernels that call `follow` themselves, later than SPEC_KERNEL would.
#define REPORTER(dtype, T)                                            \
    extern "C" __global__ void __launch_bounds__(SELECT_THREADS, SHARING)   \
        sample_logits_report_##dtype(const __grid_constant__ Report<T> params) { \
        report(params);                                               \
    }

REPORTER(f32, float)
REPORTER(f16, f16)
REPORTER(bf16, bf16)
