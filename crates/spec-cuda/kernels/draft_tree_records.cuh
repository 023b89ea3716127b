// Records of candidates, and the order in which the drafts of all requests are kept.
//
// A record is an integer. The records of a request descend in the order of the contract:
//
//     record    | survival, 30 bits | 511 - depth, 9 | 4095 - index, 12 | parent, 13 |
//
// No record is 0, which stands for a candidate that is none.
#pragma once

#include "params/draft_tree.cuh"

constexpr u32 MAX_WARPS = MAX_THREADS / WARP;
// The bits of 1.0.
constexpr u32 ONE = 0x3F800000u;
constexpr u32 MAX_DEPTH = 511;
// The depth of a candidate whose parent has not been found. Its survival is then its share.
constexpr u32 PENDING = 0;

INLINE u64 record_of(u32 survival, u32 depth, u32 index, u32 parent) {
    const u32 order = (MAX_DEPTH - depth) << 12 | (MAX_CANDIDATES - 1 - index);
    return static_cast<u64>(survival) << 34 | static_cast<u64>(order) << 13 | parent;
}

INLINE u32 survival_of(u64 record) { return static_cast<u32>(record >> 34); }
INLINE u32 depth_of(u64 record) { return MAX_DEPTH - (static_cast<u32>(record >> 25) & MAX_DEPTH); }
INLINE u32 index_of(u64 record) {
    return MAX_CANDIDATES - 1 - (static_cast<u32>(record >> 13) & (MAX_CANDIDATES - 1));
}
INLINE u32 parent_of(u64 record) { return static_cast<u32>(record) & 0x1FFFu; }

// ---- the order of drafts ---------------------------------------------------------

// The place of a draft in the order of all requests: the first `min_drafts` of each request come
// before all others, by their rank; the others descend by survival. Of drafts with one place, the
// depth decides, then the number of the request. NONE is the place of what is no draft.
INLINE u32 place_of(const Params& p, u32 rank, u32 survival) {
    return rank < p.min_drafts ? rank : MAX_DRAFTS + (ONE - survival);
}

// Places are below this number.
constexpr u32 PLACES = MAX_DRAFTS + ONE + 1;

// Whether a candidate of this rank in its request may become a draft.
INLINE bool is_offered(const Params& p, u32 rank, u32 survival) {
    return rank < p.n && (survival >= p.min_survival || rank < p.min_drafts);
}

// ---- probabilities ---------------------------------------------------------------

// The bits of a share or a trust as it counts: NaN and negative numbers as 0, numbers above 1 as 1.
INLINE u32 probability(float value, u32& bits) {
    if (!exact::finite(value)) bits |= NON_FINITE;
    const u32 given = __float_as_uint(value);
    const bool is_number = given <= 0x7F800000u;
    return is_number ? min(given, ONE) : 0;
}

// The bits of a node's survival, or 0 if the survival is below MIN_SURVIVAL. A survival is the
// product of the shares (numbers from 0 to 1) on the way from the root to the node. A further share
// never makes such a product greater, so the product may be compared with MIN_SURVIVAL after any of
// the shares.
INLINE u32 survival_bits(float product) {
    const u32 bits = __float_as_uint(product);
    return bits < MIN_SURVIVAL ? 0 : bits;
}

// A node's survival, before `survival_bits`, while a thread walks down from the root.
struct Way {
    float survival;
    // The trust to the power of the depth; used by shares of the whole way.
    float power;

    // Steps down to a child.
    INLINE void step(const Params& p, float share, float trust) {
        if (p.cumulative) {
            power = exact::mul(power, trust);
            survival = fminf(exact::mul(share, power), survival);
        } else {
            survival = exact::mul(exact::mul(survival, share), trust);
        }
    }
};

// ---- arguments -------------------------------------------------------------------

INLINE bool has_finished(const Params& p, u64 request) {
    return p.finished != nullptr && p.finished[request] != 0;
}

// How many candidates a request has.
INLINE u32 count_of(const Params& p, u64 request, u32& bits) {
    if (p.counts.data == nullptr) return p.c;
    const i64 given = p.counts[request];
    const u32 count = clamped(given, p.c);
    if (given != count) bits |= BAD_LENGTHS;
    return count;
}

INLINE float trust_of(const Params& p, u64 request, u32& bits) {
    return p.trust == nullptr ? 1.0f : __uint_as_float(probability(p.trust[request], bits));
}

INLINE float given_share(const Params& p, u64 request, u32 j) {
    return p.shares.data == nullptr ? 1.0f : p.shares[request][j];
}

// The halves of an integer of 64 bits; of an integer of 32 bits, `low`. Loading halves needs no
// branch on the width, so that a thread does not wait for a load before it starts the next.
struct Halves {
    u32 low;
    u32 high;

    INLINE static Halves load(const void* data, bool wide, u64 i) {
        const u32* halves = static_cast<const u32*>(data);
        const u64 at = wide ? 2 * i : i;
        return {halves[at], halves[at + wide]};
    }

    INLINE static Halves none() { return {0xFFFFFFFFu, 0xFFFFFFFFu}; }

    INLINE void store(void* data, bool wide, u64 i) const {
        if (wide) {
            static_cast<u64*>(data)[i] = whole();
        } else {
            static_cast<u32*>(data)[i] = low;
        }
    }

    INLINE u64 whole() const { return static_cast<u64>(high) << 32 | low; }
};

INLINE Halves token_at(const Params& p, u64 request, u32 j) {
    return Halves::load(p.candidates.data, p.candidates.wide != 0,
                        request * p.candidates.stride + j);
}

// Whether the token of a candidate is negative, by the half that has the sign.
INLINE bool is_negative(const Params& p, u64 request, u32 j) {
    const u64 i = request * p.candidates.stride + j;
    const u64 at = p.candidates.wide ? 2 * i + 1 : i;
    return static_cast<const i32*>(p.candidates.data)[at] < 0;
}

// ---- blocks ----------------------------------------------------------------------

// The sum over the threads of the block before this one; `all` becomes the sum over all threads.
// All threads of a block must call this function together.
INLINE u32 block_scan(u32 value, u32& all) {
    __shared__ u32 of_warps[MAX_WARPS];
    const u32 lane = threadIdx.x % WARP;
    const u32 warp = threadIdx.x / WARP;
    const u32 through = warp_inclusive_sum(value, lane);
    // The sums of an earlier call have been read.
    __syncthreads();
    if (lane == WARP - 1) of_warps[warp] = through;
    __syncthreads();
    const SumsOfWarps<u32> sums(of_warps, blockDim.x / WARP, lane);
    all = sums.all();
    return sums.before(warp) + through - value;
}

// The largest number of drafts of all requests, from what `p.budget` points to.
INLINE u32 budget_of(const Params& p, i32 given) {
    if (p.budget == nullptr) return NONE;
    if (given < 0 && blockIdx.x == 0 && threadIdx.x == 0) raise(p.flags, BAD_LENGTHS);
    return static_cast<u32>(max(given, 0));
}
