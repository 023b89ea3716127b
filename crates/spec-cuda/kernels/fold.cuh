// The largest of several groups at once, of which neighbouring lanes each have a part. Lanes that share
// a group hand each other halves of what they hold, so that each ends with the largest of another group: a
// third of what it would take to find one after the other.
#pragma once

#include "common.cuh"

// Of what is no NaN.
struct LargestNumber {
    using Value = float;

    INLINE static float larger(float a, float b) { return fmaxf(a, b); }
    INLINE static float number(float value) { return value; }
};

// How many values a lane folds at once.
constexpr u32 FOLDED = 8;

// Folds eight values a lane over LANES neighbouring lanes each: the lane is left with one of the eight
// places, whose number comes back, folded over those lanes. Where there are more lanes than places,
// neighbours are left with the same.
template <u32 LANES, typename How>
INLINE u32 fold(typename How::Value (&values)[FOLDED], u32 lane) {
    u32 place = 0;
    u32 step = LANES / 2;
#pragma unroll
    for (u32 half = FOLDED / 2; half > 0; half /= 2) {
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (u32 i = 0; i < half; ++i) {
            const auto given = upper ? values[i] : values[i + half];
            const auto kept = upper ? values[i + half] : values[i];
            values[i] = How::larger(kept, __shfl_xor_sync(ALL_LANES, given, step));
        }
        place += upper ? half : 0;
        step /= 2;
    }
#pragma unroll
    for (; step > 0; step /= 2) {
        values[0] = How::larger(values[0], __shfl_xor_sync(ALL_LANES, values[0], step));
    }
    return place;
}
