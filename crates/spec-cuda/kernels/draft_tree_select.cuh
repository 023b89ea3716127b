// Selects the values that come first, of values that the threads of a block have.
//
// A histogram with BINS bins tells in which bin the last of these values lies. Rounds narrow the
// range of the undecided values to this bin until so few are undecided that each of them is
// compared with every other.
#pragma once

#include "draft_tree_records.cuh"

constexpr u32 BIN_BITS = 9;
constexpr u32 BINS = 1u << BIN_BITS;
constexpr u32 BINS_OF_LANE = BINS / WARP;
static_assert(BINS_OF_LANE % 4 == 0);
// Words between the bins of a lane and of the next lane, so that eight lanes load 16 bytes from
// different banks.
constexpr u32 LANE_STRIDE = BINS_OF_LANE + 4;
// In the first round, a bin has a 64th of an octave of survivals, so that the bins but for the last
// one cover eight octaves.
constexpr u32 FIRST_SHIFT = 17;

// Values from `low` on, below `low + width`, are undecided: `inside` values. The `before` values
// below `low` come first. If `inside` is 0, no further value does.
struct Range {
    u32 low;
    u32 width;
    u32 before;
    u32 inside;

    INLINE bool has(u32 value) const { return value - low < width; }
};

struct alignas(16) Histogram {
    u32 bins[WARP * LANE_STRIDE];
    Range found;

    // Before threads count, a barrier is needed.
    INLINE void clear() {
        for (u32 i = threadIdx.x; i < WARP * LANE_STRIDE; i += blockDim.x) bins[i] = 0;
    }

    INLINE void count(u32 bin) {
        atomicAdd(&bins[bin + bin / BINS_OF_LANE * (LANE_STRIDE - BINS_OF_LANE)], 1);
    }

    // Narrows `range`, whose bins have 1 << shift values each, to the bin with the value of rank
    // `wanted` - 1. One warp calls this function, which stores the result in `found`.
    INLINE void find(const Range& range, u32 shift, u32 wanted) {
        const u32 lane = threadIdx.x % WARP;
        uint4 quads[BINS_OF_LANE / 4];
        u32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < BINS_OF_LANE / 4; i++) {
            quads[i] = reinterpret_cast<const uint4*>(bins + lane * LANE_STRIDE)[i];
            sum += quads[i].x + quads[i].y + (quads[i].z + quads[i].w);
        }
        const u32 through = range.before + warp_inclusive_sum(sum, lane);
        const u32 reaches = __ballot_sync(ALL_LANES, through >= wanted);
        if (reaches == 0) {
            // All values come first.
            if (lane == WARP - 1) found = {range.low + range.width, 0, through, 0};
            return;
        }
        if (lane != __ffs(reaches) - 1) return;
        // This lane has the bin: its number, and the values before and through it.
        u32 bin = lane * BINS_OF_LANE;
        u32 running = through - sum;
        u32 before = running;
        u32 reached = NONE;
#pragma unroll
        for (u32 i = 0; i < BINS_OF_LANE / 4; i++) {
            const u32 counts[4] = {quads[i].x, quads[i].y, quads[i].z, quads[i].w};
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                running += counts[k];
                if (running < wanted) {
                    bin += 1;
                    before = running;
                } else {
                    reached = min(reached, running);
                }
            }
        }
        const u32 skipped = bin << shift;
        // The last bin has all that lies behind the others.
        const u32 left = range.width - skipped;
        const u32 width = bin == BINS - 1 ? left : min(left, 1u << shift);
        const bool all = reached == wanted;
        found = {range.low + skipped + (all ? width : 0), all ? 0 : width, all ? wanted : before,
                 all ? 0 : reached - before};
    }
};

// The number of bits by which values are shifted so that BINS bins cover `width` values.
INLINE u32 shift_for(u32 width) { return width <= BINS ? 0 : WARP - __clz(width - 1) - BIN_BITS; }

// Narrows `range` until at most `enough` values are undecided and the range is at most `width`
// wide, or one value is undecided. `wanted` values come first, at least 1. `values.each(f)` calls
// f(value) for each value of this thread. `histogram` was cleared before the last barrier.
template <typename Values>
INLINE Range narrow(Histogram& histogram, Range range, u32 shift, u32 wanted, u32 enough,
                    u32 width, const Values& values) {
    while (true) {
        values.each([&](u32 value) {
            if (range.has(value)) histogram.count(min((value - range.low) >> shift, BINS - 1));
        });
        __syncthreads();
        if (threadIdx.x < WARP) histogram.find(range, shift, wanted);
        __syncthreads();
        range = histogram.found;
        if (range.width <= 1 || (range.inside <= enough && range.width <= width)) return range;
        shift = shift_for(range.width);
        histogram.clear();
        __syncthreads();
    }
}

// Values that are compared each with every other. Values are distinct, and not 0.
template <u32 ROOM>
struct alignas(16) List {
    u64 values[ROOM];
    u32 size;

    // Adds the values of the lanes with `adds`. All lanes of a warp call this function together.
    INLINE void add(bool adds, u64 value) {
        const u32 lanes = __ballot_sync(ALL_LANES, adds);
        if (lanes == 0) return;
        u32 slot = 0;
        if (lane_id() == 0) slot = atomicAdd(&size, __popc(lanes));
        slot = __shfl_sync(ALL_LANES, slot, 0) + __popc(lanes & lanes_below());
        if (adds && slot < ROOM) values[slot] = value;
    }

    // Adds the value of one lane.
    INLINE void add_alone(u64 value) {
        const u32 slot = atomicAdd(&size, 1);
        if (slot < ROOM) values[slot] = value;
    }

    // Calls f(value, larger) in one thread for each value, where `larger` is the number of larger
    // values. All threads of a block call this function together, between barriers.
    template <typename Function>
    INLINE void rank(const Function& f) const {
        const u32 all = min(size, ROOM);
        // Each value is compared by a group of lanes, as many as the block has.
        u32 lanes = 1;
        while (lanes < WARP && 2 * lanes * all <= blockDim.x) lanes *= 2;
        const u32 step = blockDim.x / lanes;
        const u32 lane = threadIdx.x % lanes;
        const u32 first_of_warp = threadIdx.x / WARP * WARP / lanes;
        for (u32 base = 0; base + first_of_warp < all; base += step) {
            const u32 own = base + threadIdx.x / lanes;
            const u64 value = own < all ? values[own] : 0;
            u32 larger = 0;
#pragma unroll 4
            for (u32 i = lane; i < all; i += lanes) larger += values[i] > value;
            for (u32 half = lanes / 2; half > 0; half /= 2) {
                larger += __shfl_xor_sync(ALL_LANES, larger, half);
            }
            if (own < all && lane == 0) f(value, larger);
        }
    }
};

// ---- the budget ------------------------------------------------------------------

// Which drafts the budget keeps: those with a place below `undecided.low`, and undecided ones with
// a tie above `last`.
struct Cut {
    Range undecided;
    u64 last;

    // Of two undecided drafts, the first one in the order has the larger tie. A width of at most
    // MAX_WIDTH leaves room for 9 bits of the depth and 31 of the number.
    static constexpr u32 MAX_WIDTH = 1u << 23;
    INLINE u64 tie(u32 place, u32 depth, u32 number) const {
        const u64 at = static_cast<u64>(place - undecided.low) << 40;
        return (1ull << 63) - (at | static_cast<u64>(depth) << 31 | number);
    }

    INLINE static u32 number_of(u64 tie) {
        return static_cast<u32>((1ull << 63) - tie) & 0x7FFFFFFFu;
    }

    // Keeps the drafts below a place.
    INLINE static Cut below(u32 place) { return {{place, 0, 0, 0}, ~0ull}; }

    // Whether a draft stays. `depth()` is its depth.
    template <typename Depth>
    INLINE bool keeps(u32 place, u32 number, const Depth& depth) const {
        if (!undecided.has(place)) return place < undecided.low;
        return tie(place, depth(), number) > last;
    }
};

// Undecided drafts that are compared with each other.
constexpr u32 MAX_UNDECIDED = 192;

struct CutSpace {
    Histogram histogram;
    List<MAX_UNDECIDED> list;
    u64 last;
};

// The places of drafts.
template <typename Drafts>
struct Places {
    const Drafts& drafts;

    template <typename Function>
    INLINE void each(const Function& f) const {
        drafts.each([&](u32 place, u32) { f(place); });
    }
};

// The depths of the drafts that have a place.
template <typename Drafts>
struct Depths {
    const Drafts& drafts;
    u32 place;

    template <typename Function>
    INLINE void each(const Function& f) const {
        drafts.each([&](u32 other, u32 number) {
            if (other == place) f(drafts.depth(other, number));
        });
    }
};

// The numbers of the drafts that have a place and a depth.
template <typename Drafts>
struct Numbers {
    const Drafts& drafts;
    u32 place;
    u32 depth;

    template <typename Function>
    INLINE void each(const Function& f) const {
        drafts.each([&](u32 other, u32 number) {
            if (other == place && drafts.depth(other, number) == depth) f(number);
        });
    }
};

// Narrows the range of undecided drafts, all of which have one place. Their depths decide, then
// their numbers. Returns true if none is undecided any more, after it has set `cut.last`.
template <typename Drafts>
INLINE bool narrow_ties(Histogram& histogram, const Drafts& drafts, u32 limit, Cut& cut,
                        Range& depths, Range& numbers) {
    const u32 place = cut.undecided.low;
    histogram.clear();
    __syncthreads();
    depths = narrow(histogram, depths, 0, limit, MAX_UNDECIDED, 1, Depths<Drafts>{drafts, place});
    numbers.before = depths.before;
    cut.last = cut.tie(place, depths.low, 0);
    if (depths.inside == 0) return true;
    if (depths.inside <= MAX_UNDECIDED) return false;
    histogram.clear();
    __syncthreads();
    numbers = narrow(histogram, numbers, shift_for(numbers.width), limit, MAX_UNDECIDED, NONE,
                     Numbers<Drafts>{drafts, place, depths.low});
    cut.last = cut.tie(place, depths.low, numbers.low);
    return numbers.inside == 0;
}

// Finds what a budget of `limit` drafts keeps, at least 1. `drafts.each(f)` calls f(place, number)
// for each draft of this thread; numbers are distinct, below `count`, and ascend with the requests.
// `all` becomes the number of drafts that are kept. `before` becomes the number of drafts of this
// thread, or of some that this thread counts, that are kept and whose numbers are below `end`.
template <typename Drafts>
INLINE Cut find_cut(const Drafts& drafts, u32 count, u32 limit, u32 end, u32& before, u32& all) {
    __shared__ CutSpace space;
    space.histogram.clear();
    if (threadIdx.x == 0) {
        space.list.size = 0;
        space.last = ~0ull;
    }
    __syncthreads();
    Cut cut = Cut::below(0);
    cut.undecided = narrow(space.histogram, {0, PLACES, 0, 0}, FIRST_SHIFT, limit, MAX_UNDECIDED,
                           Cut::MAX_WIDTH, Places<Drafts>{drafts});
    const Range places = cut.undecided;
    Range depths = {0, MAX_DEPTH + 1, places.before, 0};
    Range numbers = {0, count, places.before, 0};
    const bool are_ties = places.inside > MAX_UNDECIDED;
    bool is_found = places.inside == 0;
    if (are_ties) is_found = narrow_ties(space.histogram, drafts, limit, cut, depths, numbers);
    all = places.inside == 0 ? places.before : limit;
    before = 0;
    drafts.each([&](u32 place, u32 number) {
        if (place < places.low && number < end) before += 1;
        if (is_found || !places.has(place)) return;
        const u32 depth = drafts.depth(place, number);
        if (depths.has(depth) && numbers.has(number)) {
            space.list.add_alone(cut.tie(place, depth, number));
        }
    });
    if (!is_found) {
        __syncthreads();
        const u32 wanted = limit - numbers.before;
        space.list.rank([&](u64 tie, u32 larger) {
            if (larger == wanted - 1) space.last = tie - 1;
        });
        __syncthreads();
        cut.last = space.last;
    }
    if (are_ties) {
        drafts.each([&](u32 place, u32 number) {
            const bool stays = places.has(place) &&
                               cut.tie(place, drafts.depth(place, number), number) > cut.last;
            if (stays && number < end) before += 1;
        });
    } else if (!is_found) {
        for (u32 i = threadIdx.x; i < min(space.list.size, MAX_UNDECIDED); i += blockDim.x) {
            const u64 tie = space.list.values[i];
            if (tie > cut.last && Cut::number_of(tie) < end) before += 1;
        }
    }
    return cut;
}
