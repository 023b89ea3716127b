// What the grouped route of topk_router is made of: neighbouring logits of a lane, and lists of keys
// that lanes sort and merge. topk_router_grouped.cuh has the steps.
#pragma once

#include "topk_router_quick.cuh"

namespace grouped {

constexpr u32 EXPERTS = 256;
constexpr u32 GROUPS = 8;
constexpr u32 SIZE = EXPERTS / GROUPS;
constexpr u32 KEPT = 4;
constexpr u32 TOPK = 8;
constexpr u32 THREADS = 128;

// N neighbouring logits, in one load. Aligned to their size.
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

// N neighbouring words of shared memory.
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

// A select, never a branch: lanes differ, and shuffles follow.
INLINE u32 choose(bool condition, u32 yes, u32 no) {
    u32 chosen;
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nselp.b32 %0, %2, %3, p;\n}"
        : "=r"(chosen)
        : "r"(static_cast<u32>(condition)), "r"(yes), "r"(no));
    return chosen;
}

// The larger of this lane's and another's, or the smaller.
INLINE u32 either(bool larger, u32 mine, u32 other) {
    return (mine > other) == larger ? mine : other;
}

// Of N that fall then rise, or rise then fall: in descending order.
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

// Two lists of N, each in descending order, one behind the other: one list (Batcher's
// odd-even merge).
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

// Four pairs, each in descending order.
INLINE void merge_pairs(u32 (&keys)[8]) {
    merge_halves<2>(keys);
    merge_halves<2>(keys + 4);
    merge_halves<4>(keys);
}

// Keys that lanes of a token have found, the largest of those given up aside.
//
// Where a list of 8 is spread over 8 lanes, these lanes hold its places in order:
// 0 6 3 5 1 7 2 4. So what has to meet is as far apart for all lanes.
struct Merge {
    u32 rest;
    // Of a lane: whether it keeps the larger where places 4, 2 and 1 apart meet.
    bool by_four;
    bool by_two;
    bool by_one;

    INLINE explicit Merge(u32 lane)
        : rest(0),
          by_four(((lane ^ lane >> 1 ^ lane >> 2) & 1) == 0),
          by_two((lane >> 1 & 1) == (lane >> 2 & 1)),
          by_one((lane & 4) == 0) {}

    // The larger of two; the other is given up.
    INLINE u32 keep(u32 mine, u32 other) {
        rest = max(rest, min(mine, other));
        return max(mine, other);
    }

    // Two lists of 4, each in a lane: one of 8 in both.
    INLINE void join(u32 (&keys)[4], u32 lane) const {
        u32 other[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) other[i] = from_lane(keys[3 - i], 1);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) keys[i] = either(lane % 2 == 0, keys[i], other[i]);
        descend<4>(keys);
    }

    // Two lists of 8, each in a lane: 8 in both.
    INLINE void ones(u32 (&keys)[8], u32 (&kept)[4], u32 lane) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) kept[i] = keep(keys[i], from_lane(keys[7 - i], 1));
        join(kept, lane);
    }

    // Two lists of 8, each in two lanes: 8 in all four, in the order of lanes 0 3 1 2.
    INLINE void twos(const u32 (&keys)[4], u32 (&kept)[2], u32 lane) {
        const bool outer = (lane & 1) == (lane >> 1 & 1);
        u32 a = keep(keys[0], from_lane(keys[3], 3));
        u32 b = keep(keys[1], from_lane(keys[2], 3));
        a = either(outer, a, from_lane(a, 1));
        b = either(outer, b, from_lane(b, 1));
        const u32 other_a = from_lane(b, 3);
        const u32 other_b = from_lane(a, 3);
        a = either((lane & 2) == 0, a, other_a);
        b = either((lane & 2) == 0, b, other_b);
        kept[0] = max(a, b);
        kept[1] = min(a, b);
    }

    // The places of a list of 8 in as many lanes, which fall then rise or the other way.
    INLINE u32 descend_lanes(u32 key) const {
        key = either(by_four, key, from_lane(key, 1));
        key = either(by_two, key, from_lane(key, 3));
        return either(by_one, key, from_lane(key, 6));
    }

    // Two lists of 8, each in four lanes: 8 in all eight.
    INLINE u32 fours(const u32 (&keys)[2]) {
        return descend_lanes(keep(keys[0], from_lane(keys[1], 6)));
    }

    // Two lists of 8, each in eight lanes: both eights have the same 8.
    INLINE u32 eights(u32 key, u32 distance) {
        return descend_lanes(keep(key, from_lane(key, distance + 4)));
    }
};

// A lane's place in a list of 8, and the lane of a place.
INLINE u32 place_of_lane(u32 lane) { return 0x51372640u >> (lane & 7) * 4 & 7; }
INLINE u32 lane_of_place(u32 place) { return 0x42715360u >> place * 4 & 7; }

}  // namespace grouped
