// What the kernels share: types of arguments, loads, flags, exact arithmetic,
// block and cluster helpers. The host's side of the argument types is
// src/args.rs.
//
// Compiled by NVRTC as C++17 with --fmad=false: `a * b + c` rounds twice, as on
// every other backend; where fusing is wanted it is written as fmaf.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f16 = __half;
using bf16 = __nv_bfloat16;

static_assert(sizeof(u64) == 8 && sizeof(i64) == 8 && sizeof(void*) == 8);

#define INLINE __device__ __forceinline__

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;

// A kernel from a template: SPEC_KERNEL(name_f32, body<float>, Params, threads)
// defines `name_f32`, which calls `body<float>(params)`. Asking for one block a
// multiprocessor keeps the compiler from spilling registers to fit two; a kernel that
// needs more in flight asks for them with SPEC_KERNEL_BLOCKS.
#define SPEC_KERNEL(name, body, Params, threads) \
    SPEC_KERNEL_BLOCKS(name, body, Params, threads, 1)
#define SPEC_KERNEL_BLOCKS(name, body, Params, threads, blocks)                   \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                 \
        name(const __grid_constant__ Params params) {                             \
        follow();                                                                 \
        body(params);                                                             \
    }

// A kernel may be launched while the one before it runs (programmatic dependent
// launch): every block waits here until that one has ended and what it wrote is seen,
// then lets the next be launched, which waits in turn. Otherwise neither does anything.
INLINE void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- arguments ---------------------------------------------------------------

// Where a struct has a field, or a field of a field, in bytes: `offsetof`, whose header NVRTC
// lacks. The files in params/ hold the host's layout against the device's with it.
#define SPEC_OFFSET(Struct, field) __INTADDR__(&(((Struct*)0)->field))

// A matrix: rows `stride` elements apart.
template <typename T>
struct Rows {
    T* data;
    u64 stride;

    INLINE T* operator[](u64 row) const { return data + row * stride; }
};

// Integers of either width, read as 64 bits.
struct Integers {
    const void* data;
    u64 wide;

    INLINE i64 operator[](u64 i) const {
        return wide ? static_cast<const i64*>(data)[i] : static_cast<const i32*>(data)[i];
    }
};

// A length or count, which is data and may be any number, clamped to 0 .. most.
INLINE u32 clamped(i64 value, u32 most) {
    return static_cast<u32>(max(min(value, static_cast<i64>(most)), 0ll));
}

// ---- numbers -----------------------------------------------------------------

// An index that is none.
constexpr u32 NONE = 0xFFFFFFFFu;
// The largest finite f32.
constexpr float LARGEST = 3.402823466e38f;

INLINE float infinity() { return __uint_as_float(0x7F800000u); }
INLINE float negative_infinity() { return __uint_as_float(0xFF800000u); }

// Approximate functions, in single instructions: 2^x, and the logarithm to base 2 of a number that is no
// subnormal one.
INLINE float approximate_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float approximate_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- loads -------------------------------------------------------------------

INLINE float to_f32(float x) { return x; }
INLINE float to_f32(f16 x) { return __half2float(x); }
INLINE float to_f32(bf16 x) { return __bfloat162float(x); }

// Sixteen bytes as elements.
template <typename T>
union Pack {
    static constexpr u32 N = 16 / sizeof(T);
    uint4 raw;
    T items[N];

    INLINE Pack() {}
};

// Sixteen bytes from a 16-byte aligned address, by the read-only path.
template <typename T>
INLINE Pack<T> load_pack(const T* from) {
    Pack<T> pack;
    pack.raw = __ldg(reinterpret_cast<const uint4*>(from));
    return pack;
}

// ---- flags -------------------------------------------------------------------

constexpr u32 NON_FINITE = 1;
constexpr u32 OUT_OF_RANGE = 2;
constexpr u32 BAD_LENGTHS = 4;

// ORs bits into the flags word, if there is one and there are any.
INLINE void raise(u32* flags, u32 bits) {
    if (flags != nullptr && bits != 0) atomicOr(flags, bits);
}

// ---- bits --------------------------------------------------------------------

INLINE u32 lane_id() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// The lanes below this one.
INLINE u32 lanes_below() {
    u32 mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}

// ---- sums ----------------------------------------------------------------------

// The sum over all lanes.
template <typename T>
INLINE T warp_sum(T value) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    return value;
}

// The sum over this lane and those below it. (Whoever has its lane in a register passes it.)
template <typename T>
INLINE T warp_inclusive_sum(T value, u32 lane = lane_id()) {
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const T below = __shfl_up_sync(ALL_LANES, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

// Sums over the first warps of a block, of what each of its `warps` has left in `of_warps` before the
// last barrier. By whole warps.
template <typename T>
struct SumsOfWarps {
    // Lane w has that of warp w, and the sum through it.
    T own;
    T through;

    INLINE SumsOfWarps(const T* of_warps, u32 warps, u32 lane)
        : own(lane < warps ? of_warps[lane] : 0), through(warp_inclusive_sum(own)) {}

    // Of a block of as many warps as a warp has lanes.
    INLINE SumsOfWarps(const T* of_warps, u32 lane)
        : own(of_warps[lane]), through(warp_inclusive_sum(own)) {}

    INLINE T before(u32 warp) const { return __shfl_sync(ALL_LANES, through - own, warp); }
    INLINE T all() const { return __shfl_sync(ALL_LANES, through, WARP - 1); }
};

// ---- copies --------------------------------------------------------------------

// From global to shared memory past the registers: 4, 8 or 16 bytes, aligned to their size. Nothing
// orders the copy after a store of this thread to the same place.
template <typename T>
INLINE void copy_async(T* to, const T* from) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(sizeof(T))
                 : "memory");
}

// Waits for this thread's copies.
INLINE void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- exact arithmetic: crates/spec-core/src/exact.rs, operation by operation --

namespace exact {

constexpr float EXP_MIN = -87.0f;

INLINE float mul(float a, float b) { return __fmul_rn(a, b); }
INLINE float add(float a, float b) { return __fadd_rn(a, b); }
INLINE float sub(float a, float b) { return __fsub_rn(a, b); }
INLINE bool finite(float x) { return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u; }

// e^t for t <= 0; 0 below EXP_MIN and for NaN.
INLINE float exp(float t) {
    const float clamped = t > EXP_MIN ? t : EXP_MIN;
    const float shifted = add(mul(clamped, 1.44269504088896340736f), 12582912.0f);
    const float n = sub(shifted, 12582912.0f);
    const float high = 355.0f / 512.0f;
    const float r = sub(sub(clamped, mul(n, high)), mul(n, -2.1219444e-4f));
    float p = 1.0f / 720.0f;
    p = add(mul(p, r), 1.0f / 120.0f);
    p = add(mul(p, r), 1.0f / 24.0f);
    p = add(mul(p, r), 1.0f / 6.0f);
    p = add(mul(p, r), 0.5f);
    p = add(mul(p, r), 1.0f);
    p = add(mul(p, r), 1.0f);
    const u32 bits = __float_as_uint(p) + (__float_as_uint(shifted) << 23);
    return t >= EXP_MIN ? __uint_as_float(bits) : 0.0f;
}

// 1 / d for 1 <= d <= 2.
INLINE float reciprocal(float d) {
    const float m = mul(d, 0.5f);
    float y = sub(48.0f / 17.0f, mul(m, 32.0f / 17.0f));
    y = mul(y, sub(2.0f, mul(m, y)));
    y = mul(y, sub(2.0f, mul(m, y)));
    y = mul(y, sub(2.0f, mul(m, y)));
    return mul(y, 0.5f);
}

// ln(1 + e) for 0 <= e <= 1.
INLINE float ln_1p(float e) {
    float p = 0.0053648227f;
    p = sub(mul(p, e), 0.030065786f);
    p = add(mul(p, e), 0.07920452f);
    p = sub(mul(p, e), 0.13753802f);
    p = add(mul(p, e), 0.19153655f);
    p = sub(mul(p, e), 0.24857163f);
    p = add(mul(p, e), 0.33321324f);
    p = sub(mul(p, e), 0.49999648f);
    p = add(mul(p, e), 1.0f);
    return mul(p, e);
}

// An exponential variate -ln(1 - u) from a fraction u: m * 2^exponent, 1 <= m < 2, is u itself where
// that is below a half, else 1 - u.
INLINE float exponential(float m, i32 exponent, bool below_half) {
    float e = sub(m, 1.0f);
    if (below_half) {
        const float z = mul(m, __uint_as_float(static_cast<u32>(127 + exponent) << 23));
        e = mul(z, mul(2.0f, reciprocal(mul(2.0f, sub(1.0f, z)))));
    }
    const float logarithm = ln_1p(e);
    if (below_half) return logarithm;
    return sub(mul(static_cast<float>(-exponent), 0.693147182f), logarithm);
}

// The logistic function: 0 for NaN and below EXP_MIN.
INLINE float sigmoid(float x) {
    const float e = exp(-fabsf(x));
    const float r = reciprocal(add(1.0f, e));
    return x > 0.0f ? r : x <= 0.0f ? mul(e, r) : 0.0f;
}

// Softmax of a row, in pieces whose sum is an integer and so has no order.
namespace softmax {

INLINE float weight(float x, float max) { return x == max ? 1.0f : exp(sub(x, max)); }

// In units of 2^-31.
INLINE u32 fixed(float weight) { return __float2uint_rz(mul(weight, 2147483648.0f)); }

// The factor of `score`, from the sum of `fixed`; 0 for an empty sum.
INLINE float factor(u64 sum) {
    if (sum == 0) return 0.0f;
    const u32 bits = __float_as_uint(__ull2float_rn(sum));
    const i32 exponent = static_cast<i32>(bits >> 23) - 127;
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    const float scale = __uint_as_float(static_cast<u32>(127 + 31 + 24 - exponent) << 23);
    return mul(reciprocal(mantissa), scale);
}

// What would be subnormal is 0.
INLINE float score(float weight, float factor) {
    const float smallest = 1.17549435082228750797e-38f * 16777216.0f;
    const float scaled = mul(weight, factor);
    return scaled < smallest ? 0.0f : mul(scaled, 1.0f / 16777216.0f);
}

}  // namespace softmax

// An unsigned integer that orders as the float does; -0 equals 0, NaN -inf.
INLINE u32 sort_key(float value) {
    const float v = value != value ? __uint_as_float(0xFF800000u) : add(value, 0.0f);
    const u32 bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The float that a sort key stands for.
INLINE float value_of_key(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

// Whether a draft token survives.
INLINE bool accepts(float target, float draft, float u) {
    const float floor = draft > 1e-10f ? draft : 1e-10f;
    return finite(target) && finite(draft) && finite(u) &&
           (target >= floor || mul(u, floor) < target);
}

// A residual probability in units of 2^-40, saturating at 1; 0 for NaN and negatives.
INLINE u64 fixed_probability(float residual) {
    if (residual >= 1.0f) return 1ull << 40;
    return residual > 0.0f ? __float2ull_rz(mul(residual, 1099511627776.0f)) : 0;
}

}  // namespace exact

// ---- entries -------------------------------------------------------------------

// An entry of a row that is not there, or was dropped.
INLINE float nothing() { return __uint_as_float(0x7FFFFFFFu); }

// 0 for nothing, which is below every number's key.
INLINE u32 key_of(float x) { return x != x ? 0 : exact::sort_key(x); }
