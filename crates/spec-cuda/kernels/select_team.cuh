// The blocks that select in a row, or sample from it: how they meet, and running sums over what they
// told each other.
#pragma once

#include "cluster.cuh"

constexpr u32 SELECT_THREADS = 512;
constexpr u32 SELECT_WARPS = SELECT_THREADS / WARP;

constexpr u32 MAX_PIECES = MAX_CLUSTER * SELECT_WARPS;

// The blocks that own a row: 16 at most, and a power of two for what takes segments or running sums. All of them
// call everything that meets, in the same order; the values of two meetings live at a time.
struct Team {
    // What the warps of all blocks told, in each of them: a barrier is cheaper than
    // a barrier and asking.
    struct Shared {
        u64 told[2][MAX_PIECES];
        // Where what is passed is counted, in turn.
        Arrivals arrivals[2];
        // Of `find`: what each warp brings, and the index.
        u64 sums[SELECT_WARPS];
        u32 found;
    };

    Shared* shared;
    Senders blocks;
    u32 lane;
    u32 warp;
    u32 meetings;
    // Of the meetings those in which values were passed.
    u32 passes;

    // Prepares for meetings. Each block then arrives once, and waits before the first of them: all must
    // run to be told something.
    INLINE Team(Shared& of_block)
        : shared(&of_block), lane(lane_id()), warp(threadIdx.x / WARP), meetings(0), passes(0) {
        if (blocks.size > 1 && threadIdx.x == 0) {
            shared->arrivals[0].init();
            shared->arrivals[1].init();
            Arrivals::publish_init();
        }
    }

    // This warp's piece of the row, and how many there are.
    INLINE u32 piece() const { return blocks.rank * SELECT_WARPS + warp; }
    INLINE u32 pieces() const { return blocks.size * SELECT_WARPS; }
    // Whether a piece is one of this block's.
    INLINE bool has(u32 piece) const { return piece / SELECT_WARPS == blocks.rank; }

    // Each warp tells a value, the same in all its lanes. What was written before, to whatever memory, is
    // seen after it by all.
    INLINE void tell(u64 value) {
        u64* const place = &shared->told[meetings & 1][piece()];
        if (lane < blocks.size) *blocks.of(place, lane) = value;
        meetings += 1;
        blocks.sync();
    }

    // As `tell`, in half of its time: after it, the values are seen, but nothing else that a thread has written
    // before, not even in the shared memory of its own block. The warp calls `meanwhile` while its value is on
    // the way to the other blocks.
    template <typename Meanwhile>
    INLINE void pass(u64 value, Meanwhile&& meanwhile) {
        if (blocks.size > 1) {
            Arrivals& arrivals = open_pass(pieces());
            u64* const place = &shared->told[meetings & 1][piece()];
            if (lane < blocks.size) blocks.put(place, &arrivals.word, lane, value);
        }
        meanwhile();
        if (blocks.size == 1) return tell(value);
        close_pass(shared->arrivals[passes & 1]);
    }

    INLINE void pass(u64 value) {
        pass(value, [] {});
    }

    // Each warp passes the largest of a value a lane of as many segments of its lanes as there are places
    // for.
    INLINE void pass_largest(u32 value) {
        const u32 bits = segment_bits();
        if (bits == 0) value = __reduce_max_sync(ALL_LANES, value);
        for (u32 o = 1; bits > 0 && o < WARP >> bits; o *= 2) {
            value = max(value, __shfl_xor_sync(ALL_LANES, value, o));
        }
        const u32 segment = lane & ((1u << bits) - 1);
        const u64 its = __shfl_sync(ALL_LANES, value, segment * (WARP >> bits));
        u64* const place = &shared->told[meetings & 1][(piece() << bits) + segment];
        if (blocks.size == 1) {
            if (lane >> bits == 0) *place = its;
            meetings += 1;
            blocks.sync();
            return;
        }
        Arrivals& arrivals = open_pass(MAX_PIECES);
        if (lane >> bits < blocks.size) blocks.put(place, &arrivals.word, lane >> bits, its);
        close_pass(arrivals);
    }

    // How many segments a piece has, as a power of two.
    INLINE u32 segment_bits() const { return __clz(pieces()) - __clz(MAX_PIECES); }

    // What the warp of that piece told last.
    INLINE u64 told(u32 piece) const { return shared->told[(meetings - 1) & 1][piece]; }

    // The largest of the first values that were told last.
    INLINE u32 largest_told(u32 count) const {
        u32 largest = 0;
#pragma unroll 1
        for (u32 i = lane; i < count; i += WARP) largest = max(largest, static_cast<u32>(told(i)));
        return __reduce_max_sync(ALL_LANES, largest);
    }

    // The sum of what was told last.
    INLINE u64 total_told() const {
        u64 total = 0;
#pragma unroll 1
        for (u32 i = lane; i < pieces(); i += WARP) total += told(i);
        return warp_sum(total);
    }

    // The sums of what was told last: a lane has neighbouring pieces, a power of two.
    struct Sums {
        u64 before;
        u64 through;
        u64 all;
    };

    INLINE u32 pieces_a_lane() const { return (pieces() + WARP - 1) / WARP; }

    INLINE Sums sum_told() const {
        const u32 each = pieces_a_lane();
        u64 own = 0;
#pragma unroll
        for (u32 j = 0; j < MAX_PIECES / WARP; ++j) {
            // Neighbours begin at different ones of theirs: no two meet in a bank.
            const u32 at = lane * each + ((j + lane) & (each - 1));
            if (j < each && at < pieces()) own += told(at);
        }
        Sums sums;
        sums.through = warp_inclusive_sum(own, lane);
        sums.before = sums.through - own;
        sums.all = __shfl_sync(ALL_LANES, sums.through, WARP - 1);
        return sums;
    }

    // The piece in which the running sum of what was told first exceeds `rest`,
    // from which the sum before is taken off. There is one.
    INLINE u32 piece_above(const Sums& sums, u64& rest) const {
        const u32 each = pieces_a_lane();
        const u32 above = __ballot_sync(ALL_LANES, sums.through > rest);
        const u32 owner = above == 0 ? WARP - 1 : __ffs(above) - 1;
        rest -= __shfl_sync(ALL_LANES, sums.before, owner);
        u32 piece = owner * each;
        const u32 last = min(piece + each, pieces()) - 1;
        while (piece < last && told(piece) <= rest) rest -= told(piece++);
        return min(piece, pieces() - 1);
    }

private:
    // A barrier that completes once so many values have come.
    INLINE Arrivals& open_pass(u32 values) {
        Arrivals& arrivals = shared->arrivals[passes & 1];
        if (threadIdx.x == 0) arrivals.expect(values * 8);
        return arrivals;
    }

    INLINE void close_pass(Arrivals& arrivals) {
        meetings += 1;
        arrivals.wait(passes >> 1 & 1);
        passes += 1;
        __syncwarp();
    }
};

// A block's running sum up to this thread's own, and that of all. `of_warps` is room that
// nobody reads any more.
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
