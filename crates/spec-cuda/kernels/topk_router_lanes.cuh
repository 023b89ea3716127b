// Building blocks of the grouped route of topk_router: loads of neighbouring logits, and lists of
// keys that lanes sort and merge. topk_router_grouped.cuh describes the steps.
#pragma once

#include "topk_router_quick.cuh"

namespace grouped {

constexpr u32 EXPERTS = 256;
constexpr u32 GROUPS = 8;
constexpr u32 SIZE = EXPERTS / GROUPS;
constexpr u32 KEPT = 4;
constexpr u32 TOPK = 8;

// N neighbouring logits, loaded at once. Aligned to their size.
template <u32 N, typename T>
struct LogitVector {
    static constexpr u32 BYTES = N * sizeof(T);
    static constexpr u32 WORDS = (BYTES + 3) / 4;
    u32 words[WORDS];

    INLINE void load(const T* from) {
        if constexpr (BYTES == 16) {
            const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
            words[0] = raw.x;
            words[1] = raw.y;
            words[2] = raw.z;
            words[3] = raw.w;
        } else if constexpr (BYTES == 8) {
            const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
            words[0] = raw.x;
            words[1] = raw.y;
        } else if constexpr (BYTES == 4) {
            words[0] = __ldg(reinterpret_cast<const u32*>(from));
        } else {
            words[0] = __ldg(reinterpret_cast<const u16*>(from));
        }
    }

    INLINE float operator[](u32 i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[i]);
        } else {
            return half(words[i / 2], i % 2 == 1, T());
        }
    }

    static INLINE float half(u32 word, bool high, f16) {
        return to_f32(__ushort_as_half(static_cast<u16>(high ? word >> 16 : word)));
    }
    static INLINE float half(u32 word, bool high, bf16) {
        return __uint_as_float(high ? word & 0xFFFF0000u : word << 16);
    }
};

// Reads N neighbouring words of shared memory.
template <u32 N, typename W>
INLINE void read(const W* from, W* to) {
    static_assert(sizeof(W) == 4);
    if constexpr (N == 4) {
        const uint4 raw = *reinterpret_cast<const uint4*>(from);
        reinterpret_cast<u32&>(to[0]) = raw.x;
        reinterpret_cast<u32&>(to[1]) = raw.y;
        reinterpret_cast<u32&>(to[2]) = raw.z;
        reinterpret_cast<u32&>(to[3]) = raw.w;
    } else {
        static_assert(N == 1);
        to[0] = from[0];
    }
}

template <u32 N>
INLINE void write(u32* to, const u32 (&from)[N]) {
    if constexpr (N == 4) {
        *reinterpret_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
    } else {
        static_assert(N == 1);
        to[0] = from[0];
    }
}

INLINE void order(u32& larger, u32& smaller) {
    const u32 a = larger;
    const u32 b = smaller;
    larger = max(a, b);
    smaller = min(a, b);
}

INLINE u32 from_lane(u32 value, u32 distance) {
    return __shfl_xor_sync(ALL_LANES, value, distance);
}

// A select, never a branch: the condition differs between lanes, and shuffles follow.
INLINE u32 choose(bool condition, u32 yes, u32 no) {
    u32 chosen;
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nselp.b32 %0, %2, %3, p;\n}"
        : "=r"(chosen)
        : "r"(static_cast<u32>(condition)), "r"(yes), "r"(no));
    return chosen;
}

// max(mine, other) if `larger`, else min.
INLINE u32 max_or_min(bool larger, u32 mine, u32 other) {
    return (mine > other) == larger ? mine : other;
}

// Sorts N keys in descending order, which must form a bitonic sequence.
template <u32 N>
INLINE void descend(u32* keys) {
#pragma unroll
    for (u32 stride = N / 2; stride > 0; stride /= 2) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            if ((i & stride) == 0) order(keys[i], keys[i + stride]);
        }
    }
}

// Merges two neighbouring lists of N keys, each in descending order (Batcher's odd-even merge).
template <u32 N>
INLINE void merge_halves(u32* keys) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) order(keys[i], keys[i + N]);
#pragma unroll
    for (u32 stride = N / 2; stride > 0; stride /= 2) {
#pragma unroll
        for (u32 i = stride; i + stride < 2 * N; i += 2 * stride) {
#pragma unroll
            for (u32 j = 0; j < stride; ++j) order(keys[i + j], keys[i + j + stride]);
        }
    }
}

// Sorts four pairs, each in descending order, in descending order.
INLINE void merge_pairs(u32 (&keys)[8]) {
    merge_halves<2>(keys);
    merge_halves<2>(keys + 4);
    merge_halves<4>(keys);
}

// Merges the sorted key lists of the lanes of a token, keeping the 8 largest keys, and remembers
// the largest key that was dropped.
//
// If a list of 8 is spread over 8 lanes, the lanes hold its places in the order 0 6 3 5 1 7 2 4.
// With this order, the places that a merge step compares are equally far apart in all lanes.
struct Merge {
    u32 rest;
    // For each lane: whether it keeps the larger key when places 4, 2 or 1 apart are compared.
    bool by_four;
    bool by_two;
    bool by_one;

    INLINE explicit Merge(u32 lane)
        : rest(0),
          by_four(((lane ^ lane >> 1 ^ lane >> 2) & 1) == 0),
          by_two((lane >> 1 & 1) == (lane >> 2 & 1)),
          by_one((lane & 4) == 0) {}

    // Returns the larger of two keys and drops the other.
    INLINE u32 keep(u32 mine, u32 other) {
        rest = max(rest, min(mine, other));
        return max(mine, other);
    }

    // Merges lists of 4 of two lanes into one list of 8 over both lanes.
    INLINE void join(u32 (&keys)[4], u32 lane) const {
        u32 other[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) other[i] = from_lane(keys[3 - i], 1);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) keys[i] = max_or_min(lane % 2 == 0, keys[i], other[i]);
        descend<4>(keys);
    }

    // Merges lists of 8 of two single lanes: the 8 largest keys, over both lanes.
    INLINE void merge_lanes(u32 (&keys)[8], u32 (&kept)[4], u32 lane) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) kept[i] = keep(keys[i], from_lane(keys[7 - i], 1));
        join(kept, lane);
    }

    // Merges lists of 8 of two lane pairs: the 8 largest keys, over the four lanes in the order 0 3
    // 1 2.
    INLINE void merge_pairs_of_lanes(const u32 (&keys)[4], u32 (&kept)[2], u32 lane) {
        const bool outer = (lane & 1) == (lane >> 1 & 1);
        u32 a = keep(keys[0], from_lane(keys[3], 3));
        u32 b = keep(keys[1], from_lane(keys[2], 3));
        a = max_or_min(outer, a, from_lane(a, 1));
        b = max_or_min(outer, b, from_lane(b, 1));
        const u32 other_a = from_lane(b, 3);
        const u32 other_b = from_lane(a, 3);
        a = max_or_min((lane & 2) == 0, a, other_a);
        b = max_or_min((lane & 2) == 0, b, other_b);
        kept[0] = max(a, b);
        kept[1] = min(a, b);
    }

    // Sorts a bitonic list of 8 that is spread over 8 lanes.
    INLINE u32 descend_lanes(u32 key) const {
        key = max_or_min(by_four, key, from_lane(key, 1));
        key = max_or_min(by_two, key, from_lane(key, 3));
        return max_or_min(by_one, key, from_lane(key, 6));
    }

    // Merges lists of 8 of two quads of lanes: the 8 largest keys, over the eight lanes.
    INLINE u32 merge_quads(const u32 (&keys)[2]) {
        return descend_lanes(keep(keys[0], from_lane(keys[1], 6)));
    }

    // Merges lists of 8 of two octets of lanes: the same 8 largest keys in both octets.
    INLINE u32 merge_octets(u32 key, u32 distance) {
        return descend_lanes(keep(key, from_lane(key, distance + 4)));
    }
};

// The place in a list of 8 that a lane has, and the lane that has a place.
INLINE u32 place_of_lane(u32 lane) { return 0x51372640u >> (lane & 7) * 4 & 7; }
INLINE u32 lane_of_place(u32 place) { return 0x42715360u >> place * 4 & 7; }

}  // namespace grouped
