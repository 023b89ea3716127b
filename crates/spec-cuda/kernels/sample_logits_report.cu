// sample_logits: what is reported of the tokens that a row drew, and of its likeliest ones, by the logits
// as they are. Runs after the kernel that draws, and only where something is asked for that it does not
// report itself (sample_logits_told.cu).
//
// A block or a cluster of blocks owns a row and reads it once: the largest logit of each group of tokens, and
// a sum of exponentials of each warp, go to the leading block, and the other blocks end. The leading block
// finds the likeliest tokens from few groups (sample_logits_order.cuh). All of this needs no token that was
// drawn, so it goes on while the kernel before still draws. Then the leading block waits for that kernel.
//
// Bytes: the logits once more, mostly from L2.
#include "race_lead.cuh"
#include "sample_logits_report.cuh"

// What the warps of a block share.
struct Shared {
    // The largest logit of each group of tokens, and where the block that leads gets those of the others.
    alignas(16) float tops[RowOrder::MAX_GROUPS];
    // A sum of exponentials for each warp of the cluster.
    u64 sums[MAX_PIECES];
    Arrivals arrivals;
    RowOrder::Shared order;
    Drawn drawn;
};

// The part of a row that a warp reads, in groups of GROUP << merged tokens.
struct Part {
    u32 merged;
    Share share;

    INLINE Part(u32 vocab, u32 merges, u32 piece, u32 pieces)
        : merged(merges), share(((vocab - 1) >> merges) + 1, piece, pieces) {}

    // How many neighbouring groups of GROUP tokens have one largest logit, as a power of two: so many that the
    // row has no more groups than there is room for.
    INLINE static u32 merges(u32 vocab) {
        u32 merges = 0;
        while (RowOrder::groups_of(vocab, merges) > RowOrder::MAX_GROUPS) merges += 1;
        return merges;
    }

    // Leaves the largest logit of each group in `tops`. Returns the sum of all logits' exponentials.
    template <typename Row>
    INLINE ExpSum survey(const Row& row, float* tops, u32 lane) const {
        if (merged > 0) {
            for (u32 group = share.begin + lane; group < share.end; group += WARP) tops[group] = negative_infinity();
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
        const u32 end = min(share.end << merged, RowOrder::groups_of(row.vocab, 0));
        row.survey(share.begin << merged, end, lane, visit, sum);
        sum.fold();
        __syncwarp();
        return sum;
    }

private:
    // Raises a number in shared memory to another, by one lane of several. Bits of numbers that are not
    // negative order as integers do, those of others the other way round.
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

// In every block but the first: sends what its warps have found to the first block.
INLINE void send(const Senders& blocks, Shared& shared, const Share& share, u32 piece, u32 lane) {
    send_tops(shared.tops, shared.arrivals, share, lane);
    if (lane == 0) blocks.put(&shared.sums[piece], &shared.arrivals.word, 0, shared.sums[piece]);
}

// In the first block: waits for what the other blocks send.
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
    drawn.logits[threadIdx.x] = there ? fmaxf(to_f32(p.logits[index][token]), negative_infinity()) : nothing();
}

template <typename T>
INLINE void report(const Report<T>& p) {
    using Row = LogitGroups<T, false>;
    __shared__ Shared shared;
    const Senders blocks;
    const u32 index = blockIdx.x >> (31 - __clz(blocks.size));
    if (is_padding(p.of_rows, index)) {
        // The next kernel waits for the kernel that draws by waiting for this one.
        follow();
        if (blocks.rank == 0) write_padded_report(p, index);
        return;
    }
    if (blocks.size > 1) RaceLead::open(blocks, shared.arrivals);
    const u32 lane = lane_id();
    const u32 piece = blocks.rank * SELECT_WARPS + threadIdx.x / WARP;
    const Row row = {p.logits[index], nullptr, p.vocab};
    const Part part(p.vocab, Part::merges(p.vocab), piece, blocks.size * SELECT_WARPS);
    const ExpSum sum = part.survey(row, shared.tops, lane);
    if (lane == 0) shared.sums[piece] = sum.bits();
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) return send(blocks, shared, part.share, piece, lane);

    await(blocks, shared, RowOrder::groups_of(p.vocab, part.merged));
    const RowOrder order(shared.order, shared.tops, p.vocab, part.merged);
    const float largest = exact::value_of_key(order.largest);
    const LogSoftmax softmax = {largest, logf(ExpSum::total(shared.sums, blocks.size * SELECT_WARPS, largest))};
    const u32 likeliest = p.top > 0 ? order.first(row, min(p.top, p.vocab)) : 0;

    follow();
    fetch_drawn(p, index, shared.drawn);
    write_report(p, index, row, order, shared.drawn, softmax, likeliest);
}

// Kernels that call `follow` themselves.
#define REPORTER(dtype, T)                                            \
    extern "C" __global__ void __launch_bounds__(SELECT_THREADS, 2)   \
        sample_logits_report_##dtype(const __grid_constant__ Report<T> params) { \
        report(params);                                               \
    }

REPORTER(f32, float)
REPORTER(f16, f16)
REPORTER(bf16, bf16)
