// Ranks the candidates of a request: which of them may become drafts, and in which order.
#pragma once

#include "draft_tree_select.cuh"

// ---- trees -----------------------------------------------------------------------

// Levels of a tree above a candidate that a thread walks up at a time.
constexpr u32 LEVELS = 8;
// Records beyond n that are compared with the others rather than left out in a further round.
constexpr u32 SPARE = 64;

// What a candidate says of itself: its share, and the slot of its parent. Candidate j has slot
// j + 2. The slots of the root and of what is none are their own parents, so that a walk up a fixed
// number of levels needs no branches.
constexpr u32 ROOT = 0;
constexpr u32 ABSENT = 1;
constexpr u32 FIRST_SLOT = 2;
INLINE u64 slot_of(u32 share, u32 parent) { return static_cast<u64>(share) << 32 | parent; }

// The record of a candidate that is more than LEVELS levels below those with known survivals.
constexpr u64 DEEPER = 1;

// The candidates of a request, in shared memory. A record is 0 for a candidate that is none.
struct Candidates {
    u64* slots;
    u64* records;

    INLINE Candidates(const Params& p, u64* memory)
        : slots(memory), records(memory + FIRST_SLOT + p.c) {}
};

INLINE u64 load_slot(const Params& p, u64 request, u32 j, u32 count, u32& bits) {
    const bool is_none = is_negative(p, request, j) || j >= count;
    const float given = given_share(p, request, j);
    const bool wide = p.parents.wide != 0;
    const Halves parent = Halves::load(p.parents.data, wide, request * p.parents.stride + j);
    u32 found = 0;
    const u32 share = probability(given, found);
    // As an unsigned number, a negative parent is large.
    const bool follows = parent.low <= j && (!wide || parent.high == 0);
    if (!follows) found |= BAD_LENGTHS;
    if (!is_none) bits |= found;
    if (is_none || !follows) return slot_of(ONE, ABSENT);
    return slot_of(share, parent.low == 0 ? ROOT : parent.low - 1 + FIRST_SLOT);
}

// Loads the candidates of a request, a few at a time so that a thread waits once for them.
INLINE void load_slots(const Params& p, u64 request, const Candidates& all, u32& bits) {
    constexpr u32 BATCH = 2;
    const u32 count = count_of(p, request, bits);
    if (threadIdx.x < FIRST_SLOT) all.slots[threadIdx.x] = slot_of(ONE, threadIdx.x);
    for (u32 first = threadIdx.x; first < p.c; first += BATCH * blockDim.x) {
        u64 slots[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 j = first + i * blockDim.x;
            slots[i] = j < p.c ? load_slot(p, request, j, count, bits) : 0;
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 j = first + i * blockDim.x;
            if (j < p.c) all.slots[FIRST_SLOT + j] = slots[i];
        }
    }
}

// Where the ways up end: the nodes of a depth, whose slots have their survivals as shares and the
// root as parent.
struct Base {
    u32 depth;
    // The trust to the power of `depth`.
    float power;
};

// The record of candidate `j`.
INLINE u64 resolve(const Params& p, const Candidates& all, u32 j, const Base& base, float trust) {
    float shares[LEVELS + 1];
    const u64 own = all.slots[FIRST_SLOT + j];
    shares[0] = __uint_as_float(static_cast<u32>(own >> 32));
    u32 at = static_cast<u32>(own);
    const u32 parent = at == ROOT ? 0 : at - FIRST_SLOT + 1;
    // Nodes above this one, but for the root.
    u32 length = 0;
#pragma unroll
    for (u32 i = 1; i <= LEVELS; i++) {
        const u64 slot = all.slots[at];
        if (at != ROOT) length += 1;
        shares[i] = __uint_as_float(static_cast<u32>(slot >> 32));
        at = static_cast<u32>(slot);
    }
    if (at == ABSENT) return 0;
    if (at != ROOT) return DEEPER;
    float survival = 1.0f;
    if (p.cumulative || p.trust != nullptr) {
        Way way = {1.0f, base.power};
#pragma unroll
        for (u32 i = LEVELS + 1; i-- > 0;) {
            if (i == length && base.depth != 0) {
                way.survival = shares[i];
            } else if (i <= length) {
                way.step(p, shares[i], trust);
            }
        }
        survival = way.survival;
    } else {
#pragma unroll
        for (u32 i = LEVELS + 1; i-- > 0;) survival = exact::mul(survival, shares[i]);
    }
    // A way to `base` has its node of that depth among `length`.
    const u32 depth = length + 1 + base.depth - (base.depth != 0);
    return record_of(survival_bits(survival), depth, j, parent);
}

// Finds the records of all candidates whose slots are loaded, but for candidates deeper than n:
// each of these has n candidates before it and is never offered.
INLINE void resolve_all(const Params& p, const Candidates& all, float trust) {
    Base base = {0, 1.0f};
    u32 deeper = 0;
    for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
        const u64 record = resolve(p, all, j, base, trust);
        all.records[j] = record;
        deeper |= record == DEEPER;
    }
    u32 levels = LEVELS + 1;
    while (__syncthreads_or(deeper) != 0) {
        base.depth += levels;
        for (u32 i = 0; i < levels; i++) base.power = exact::mul(base.power, trust);
        // One level of a way has the survivals from which the others start.
        levels = LEVELS;
        const bool ends = base.depth >= p.n;
        // What is resolved ends the ways of what is deeper.
        for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
            const u64 record = all.records[j];
            if (record == DEEPER) {
                if (ends) all.records[j] = 0;
            } else {
                all.slots[FIRST_SLOT + j] =
                    record == 0 ? slot_of(ONE, ABSENT) : slot_of(survival_of(record), ROOT);
            }
        }
        __syncthreads();
        if (ends) return;
        deeper = 0;
        for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
            if (all.records[j] != DEEPER) continue;
            const u64 record = resolve(p, all, j, base, trust);
            all.records[j] = record;
            deeper |= record == DEEPER;
        }
    }
}

struct RankSpace {
    Histogram histogram;
    List<MAX_DRAFTS + SPARE> list;
};

// How far the survivals of records are from 1.
struct Distances {
    const Params& p;
    const Candidates& all;

    INLINE static u32 of(u64 record) { return ONE - survival_of(record); }

    // Calls f(distance) for each record of this thread.
    template <typename Function>
    INLINE void each(const Function& f) const {
        for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
            const u64 record = all.records[j];
            if (record != 0) f(of(record));
        }
    }
};

// Depths and indices of the records with a survival, as numbers that ascend where the records
// descend.
struct Orders {
    const Params& p;
    const Candidates& all;
    u32 distance;

    static constexpr u32 WIDTH = (MAX_DEPTH + 1) * MAX_CANDIDATES;
    INLINE static u32 of(u64 record) {
        return WIDTH - 1 - (static_cast<u32>(record >> 13) & (WIDTH - 1));
    }

    template <typename Function>
    INLINE void each(const Function& f) const {
        for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
            const u64 record = all.records[j];
            if (record != 0 && Distances::of(record) == distance) f(of(record));
        }
    }
};

// Lists the first n records of the request, and a few more, in any order.
INLINE void list_first(const Params& p, RankSpace& space, const Candidates& all) {
    // Records below `end` are listed, and those at `end` whose order is below `end_of_ties`.
    u32 end = NONE;
    u32 end_of_ties = 0;
    if (p.c > p.n + SPARE) {
        const Range range = narrow(space.histogram, {0, ONE + 1, 0, 0}, FIRST_SHIFT, p.n, SPARE,
                                   NONE, Distances{p, all});
        end = range.low + range.width;
        if (range.inside > SPARE) {
            space.histogram.clear();
            __syncthreads();
            const Range ties =
                narrow(space.histogram, {0, Orders::WIDTH, range.before, range.inside},
                       shift_for(Orders::WIDTH), p.n, SPARE, NONE, Orders{p, all, range.low});
            end = range.low;
            end_of_ties = ties.low + ties.width;
        }
    }
    for (u32 base = 0; base < p.c; base += blockDim.x) {
        const u32 j = base + threadIdx.x;
        const u64 record = j < p.c ? all.records[j] : 0;
        const u32 distance = Distances::of(record);
        bool is_first = distance < end;
        if (distance == end) is_first = Orders::of(record) < end_of_ties;
        space.list.add(record != 0 && is_first, record);
    }
    __syncthreads();
}

// Ranks the candidates of a request with a tree. Calls f(record, rank) in one thread for each of
// the first n records, or for all if there are fewer. `memory` has room for the slots and records
// of all candidates. Returns how many of the first n records there are, or NONE if the request has
// finished.
template <typename Function>
INLINE u32 rank_tree(const Params& p, u64 request, u64* memory, const Function& f) {
    __shared__ RankSpace space;
    const Candidates all(p, memory);
    const bool finished = has_finished(p, request);
    u32 bits = 0;
    const float trust = trust_of(p, request, bits);
    // The candidates and lists of this block's request before have been read.
    __syncthreads();
    load_slots(p, request, all, bits);
    space.histogram.clear();
    if (threadIdx.x == 0) space.list.size = 0;
    // One answer for all threads, even if the memory changes.
    if (__syncthreads_or(finished)) return NONE;
    raise(p.flags, bits);
    if (p.n == 0) return 0;
    resolve_all(p, all, trust);
    list_first(p, space, all);
    space.list.rank([&](u64 record, u32 rank) {
        if (rank < p.n) f(record, rank);
    });
    return min(space.list.size, p.n);
}

// ---- chains ----------------------------------------------------------------------

// Writes the survivals of the first drafts of a chain, as many as `survivals` has room for; NONE
// for candidates that are none. Returns false if the request has finished.
INLINE bool rank_chain(const Params& p, u64 request, u32* survivals) {
    __shared__ u32 length;
    u32 bits = 0;
    const bool finished = has_finished(p, request);
    const u32 count = count_of(p, request, bits);
    const float trust = trust_of(p, request, bits);
    // The survivals of this block's request before have been read.
    __syncthreads();
    if (threadIdx.x == 0) length = p.room;
    // One answer for all threads, even if the memory changes.
    if (__syncthreads_or(finished)) return false;
    for (u32 j = threadIdx.x; j < count; j += blockDim.x) {
        if (is_negative(p, request, j)) {
            atomicMin(&length, j);
            continue;
        }
        const u32 share = probability(given_share(p, request, j), bits);
        if (j < p.room) survivals[j] = share;
    }
    raise(p.flags, bits);
    __syncthreads();
    if (threadIdx.x == 0) {
        // What follows a candidate that is none is none.
        const u32 end = min(length, count);
        Way way = {1.0f, 1.0f};
        for (u32 j = 0; j < p.room; j++) {
            if (j < end) way.step(p, __uint_as_float(survivals[j]), trust);
            survivals[j] = j < end ? survival_bits(way.survival) : NONE;
        }
    }
    __syncthreads();
    return true;
}
