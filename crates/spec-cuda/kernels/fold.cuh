// Finds the largest value of each of eight groups at once. LANES neighbouring lanes work on the
// same eight groups: each lane holds one value of every group. In each step a lane sends half of
// its values to a partner lane and keeps the larger values of the other half, so that the lanes end
// with different groups. For eight lanes this takes 7 shuffles; one group after the other would
// take 24.
#pragma once

#include "common.cuh"

// The larger of two numbers, neither of which is NaN.
struct LargestNumber {
    using Value = float;

    INLINE static float larger(float a, float b) { return fmaxf(a, b); }
    INLINE static float number(float value) { return value; }
};

// The number of groups, which is also the number of values in each lane.
constexpr u32 FOLDED = 8;

// Reduces each of the eight values over LANES neighbouring lanes. `Compare::larger` compares two
// values. Returns the number of the group that this lane ends with; the largest value of that group
// is then in values[0]. If there are more lanes than groups, several lanes end with the same group.
template <u32 LANES, typename Compare>
INLINE u32 fold(typename Compare::Value (&values)[FOLDED], u32 lane) {
    u32 place = 0;
    u32 step = LANES / 2;
#pragma unroll
    for (u32 half = FOLDED / 2; half > 0; half /= 2) {
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (u32 i = 0; i < half; ++i) {
            const auto given = upper ? values[i] : values[i + half];
            const auto kept = upper ? values[i + half] : values[i];
            values[i] = Compare::larger(kept, __shfl_xor_sync(ALL_LANES, given, step));
        }
        place += upper ? half : 0;
        step /= 2;
    }
#pragma unroll
    for (; step > 0; step /= 2) {
        values[0] = Compare::larger(values[0], __shfl_xor_sync(ALL_LANES, values[0], step));
    }
    return place;
}
