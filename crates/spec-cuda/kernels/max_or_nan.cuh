// The larger of two scores; NaN if either is NaN. Also for the scores of two pairs, each
// separately.
#pragma once

#include "common.cuh"

INLINE float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// The larger scores of two pairs of bf16.
INLINE u32 max_or_nan_bf16x2(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// The larger scores of two pairs of f16.
INLINE u32 max_or_nan_f16x2(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
