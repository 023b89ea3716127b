// The larger of two numbers, and the larger ones of two pairs: NaN where either number is NaN.
#pragma once

#include "common.cuh"

INLINE float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// Of pairs of bf16.
INLINE u32 max_or_nan_bf16x2(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// Of pairs of f16.
INLINE u32 max_or_nan_f16x2(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
