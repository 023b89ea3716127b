// The blocks that together select from a row or sample from it: how their warps exchange values,
// and running sums over the values.
#pragma once

#include "cluster.cuh"
#include "params/race.cuh"

constexpr u32 SELECT_WARPS = SELECT_THREADS / WARP;

constexpr u32 MAX_PIECES = MAX_CLUSTER * SELECT_WARPS;

// The blocks that own a row: at most 16; a power of two for callers that use segments or running
// sums. All warps call all exchanging functions in the same order. The values of the last two
// exchanges are kept.
struct Team {
    // The values that the warps of all blocks published, with a copy in each block: writing copies
    // takes one barrier; reading from another block would take two.
    struct Shared {
        u64 published[2][MAX_PIECES];
        // Barriers that count the bytes of relaxed exchanges, used in turn.
        Arrivals arrivals[2];
        // Used by `find`: a sum for each warp, and the index that was found.
        u64 sums[SELECT_WARPS];
        u32 found;
    };

    Shared* shared;
    Senders blocks;
    u32 lane;
    u32 warp;
    u32 exchanges;
    // The number of relaxed exchanges among the exchanges.
    u32 relaxed_exchanges;

    // Prepares the barriers. Each block must then arrive at the cluster barrier once and wait there
    // before the first exchange, because a block can be written to only after it has started.
    INLINE Team(Shared& of_block)
        : shared(&of_block),
          lane(lane_id()),
          warp(threadIdx.x / WARP),
          exchanges(0),
          relaxed_exchanges(0) {
        if (blocks.size > 1 && threadIdx.x == 0) {
            shared->arrivals[0].init();
            shared->arrivals[1].init();
            Arrivals::publish_init();
        }
    }

    // The piece of the row that this warp has, and the number of pieces.
    INLINE u32 piece() const { return blocks.rank * SELECT_WARPS + warp; }
    INLINE u32 pieces() const { return blocks.size * SELECT_WARPS; }
    // Whether a piece belongs to a warp of this block.
    INLINE bool has(u32 piece) const { return piece / SELECT_WARPS == blocks.rank; }

    // Each warp publishes a value, the same in all its lanes, to all warps of the team. Everything
    // that a thread has written before, to shared or global memory, is visible to all threads
    // afterwards.
    INLINE void publish(u64 value) {
        u64* const place = &shared->published[exchanges & 1][piece()];
        if (lane < blocks.size) *blocks.of(place, lane) = value;
        exchanges += 1;
        blocks.sync();
    }

    // Like `publish`, in half the time: afterwards the values are visible, but nothing else that a
    // thread has written before, not even in the shared memory of its own block. The warp calls
    // `meanwhile` while its value is on its way to the other blocks.
    template <typename Meanwhile>
    INLINE void publish_relaxed(u64 value, Meanwhile&& meanwhile) {
        if (blocks.size > 1) {
            Arrivals& arrivals = open_relaxed(pieces());
            u64* const place = &shared->published[exchanges & 1][piece()];
            if (lane < blocks.size) blocks.put(place, &arrivals.word, lane, value);
        }
        meanwhile();
        if (blocks.size == 1) return publish(value);
        close_relaxed(shared->arrivals[relaxed_exchanges & 1]);
    }

    INLINE void publish_relaxed(u64 value) {
        publish_relaxed(value, [] {});
    }

    // Each warp publishes, relaxed, the maximum of `value` over each of 2^segment_bits() segments
    // of its lanes, so that MAX_PIECES values are published in all.
    INLINE void publish_segment_max(u32 value) {
        const u32 bits = segment_bits();
        if (bits == 0) value = __reduce_max_sync(ALL_LANES, value);
        for (u32 o = 1; bits > 0 && o < WARP >> bits; o *= 2) {
            value = max(value, __shfl_xor_sync(ALL_LANES, value, o));
        }
        const u32 segment = lane & ((1u << bits) - 1);
        const u64 its = __shfl_sync(ALL_LANES, value, segment * (WARP >> bits));
        u64* const place = &shared->published[exchanges & 1][(piece() << bits) + segment];
        if (blocks.size == 1) {
            if (lane >> bits == 0) *place = its;
            exchanges += 1;
            blocks.sync();
            return;
        }
        Arrivals& arrivals = open_relaxed(MAX_PIECES);
        if (lane >> bits < blocks.size) blocks.put(place, &arrivals.word, lane >> bits, its);
        close_relaxed(arrivals);
    }

    // The base-2 logarithm of the number of segments of a piece.
    INLINE u32 segment_bits() const { return __clz(pieces()) - __clz(MAX_PIECES); }

    // The value that the warp of a piece published in the last exchange.
    INLINE u64 published(u32 piece) const { return shared->published[(exchanges - 1) & 1][piece]; }

    // The maximum of the first `count` values of the last exchange.
    INLINE u32 reduce_max(u32 count) const {
        u32 largest = 0;
#pragma unroll 1
        for (u32 i = lane; i < count; i += WARP) {
            largest = max(largest, static_cast<u32>(published(i)));
        }
        return __reduce_max_sync(ALL_LANES, largest);
    }

    // The sum of the values of the last exchange.
    INLINE u64 reduce_sum() const {
        u64 total = 0;
#pragma unroll 1
        for (u32 i = lane; i < pieces(); i += WARP) total += published(i);
        return warp_sum(total);
    }

    // Running sums over the values of the last exchange. A lane has neighbouring pieces, a power of
    // two.
    struct Sums {
        u64 before;
        u64 through;
        u64 all;
    };

    INLINE u32 pieces_a_lane() const { return (pieces() + WARP - 1) / WARP; }

    INLINE Sums scan_published() const {
        const u32 each = pieces_a_lane();
        u64 own = 0;
#pragma unroll
        for (u32 j = 0; j < MAX_PIECES / WARP; ++j) {
            // Neighbouring lanes begin at different offsets in their pieces, so that there are no
            // bank conflicts.
            const u32 at = lane * each + ((j + lane) & (each - 1));
            if (j < each && at < pieces()) own += published(at);
        }
        Sums sums;
        sums.through = warp_inclusive_sum(own, lane);
        sums.before = sums.through - own;
        sums.all = __shfl_sync(ALL_LANES, sums.through, WARP - 1);
        return sums;
    }

    // The piece in which the running sum of the values of the last exchange first exceeds `rest`.
    // Subtracts the sum before that piece from `rest`. The total must exceed `rest`.
    INLINE u32 piece_above(const Sums& sums, u64& rest) const {
        const u32 each = pieces_a_lane();
        const u32 above = __ballot_sync(ALL_LANES, sums.through > rest);
        const u32 owner = above == 0 ? WARP - 1 : __ffs(above) - 1;
        rest -= __shfl_sync(ALL_LANES, sums.before, owner);
        u32 piece = owner * each;
        const u32 last = min(piece + each, pieces()) - 1;
        while (piece < last && published(piece) <= rest) rest -= published(piece++);
        return min(piece, pieces() - 1);
    }

private:
    // The barrier of the next relaxed exchange, which completes when `values` values have arrived.
    INLINE Arrivals& open_relaxed(u32 values) {
        Arrivals& arrivals = shared->arrivals[relaxed_exchanges & 1];
        if (threadIdx.x == 0) arrivals.expect(values * 8);
        return arrivals;
    }

    INLINE void close_relaxed(Arrivals& arrivals) {
        exchanges += 1;
        arrivals.wait(relaxed_exchanges >> 1 & 1);
        relaxed_exchanges += 1;
        __syncwarp();
    }
};

// The running sum over a block up to this thread's `own`, and the sum of all. `of_warps` is shared
// memory that no thread reads any more.
struct BlockSums {
    u64 through;
    u64 all;

    INLINE BlockSums(u64 (&of_warps)[SELECT_WARPS], const Team& team, u64 own) {
        through = warp_inclusive_sum(own, team.lane);
        if (team.lane == WARP - 1) of_warps[team.warp] = through;
        __syncthreads();
        const u64 of_warp = team.lane < SELECT_WARPS ? of_warps[team.lane] : 0;
        const u64 warps = warp_inclusive_sum(of_warp, team.lane);
        through += __shfl_sync(ALL_LANES, warps - of_warp, team.warp);
        all = __shfl_sync(ALL_LANES, warps, WARP - 1);
    }
};
