// Shared by all kernels: types of arguments, loads, flags, sums over a warp or a block, copies,
// exact arithmetic. The same argument types on the host are in src/args.rs.
//
// NVRTC compiles the kernels as C++17 with --fmad=false, so `a * b + c` rounds twice, as on every
// other backend. A kernel that wants a single rounding calls fmaf.
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

// Defines a kernel that calls an instance of a template: SPEC_KERNEL(name_f32, body<float>, Params,
// threads) defines `name_f32`, which calls `body<float>(params)`. The launch bounds ask for one
// block per multiprocessor, so that the compiler does not spill registers to make room for a second
// block. A kernel that needs several blocks per multiprocessor gives their number to
// SPEC_KERNEL_BLOCKS.
#define SPEC_KERNEL(name, body, Params, threads) \
    SPEC_KERNEL_BLOCKS(name, body, Params, threads, 1)
#define SPEC_KERNEL_BLOCKS(name, body, Params, threads, blocks)                   \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                 \
        name(const __grid_constant__ Params params) {                             \
        follow();                                                                 \
        body(params);                                                             \
    }

// With programmatic dependent launch, a kernel may start while the previous kernel still runs.
// Every block then waits here until the previous kernel has ended and its writes are visible. After
// that, the block permits the launch of the next kernel, which waits here in the same way. Without
// programmatic dependent launch, both instructions do nothing.
INLINE void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- hints to the compiler ---------------------------------------------------

// A condition that few threads meet. The compiler places the code behind it apart, so that the
// other threads fetch fewer instructions.
INLINE bool rarely(bool condition) { return __builtin_expect(condition, false); }

// These functions hide how an address in global memory, or in shared memory, was computed, so that
// the compiler keeps the address in a register. Otherwise it computes the address anew at every
// access.
template <typename T>
INLINE void keep_global(T*& pointer) {
    asm volatile("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
}
template <typename T>
INLINE void keep_shared(T*& pointer) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(pointer));
    asm volatile("" : "+r"(place));
    pointer = static_cast<T*>(__cvta_shared_to_generic(place));
}

// ---- arguments ---------------------------------------------------------------

// The offset of a field, or of a field of a field, in a struct, in bytes. This is `offsetof`, whose
// header NVRTC lacks. The files in params/ use it to compare the layouts of host and device.
#define SPEC_OFFSET(Struct, field) __INTADDR__(&(((Struct*)0)->field))

// A matrix whose rows begin `stride` elements apart.
template <typename T>
struct Rows {
    T* data;
    u64 stride;

    INLINE T* operator[](u64 row) const { return data + row * stride; }
};

// An array of 32-bit integers, or of 64-bit integers if `wide`. Both are read as 64 bits.
struct Integers {
    const void* data;
    u64 wide;

    INLINE i64 operator[](u64 i) const {
        return wide ? static_cast<const i64*>(data)[i] : static_cast<const i32*>(data)[i];
    }
};

// A length or count, clamped to 0 ..= `limit`. Lengths and counts are data and may be any number.
INLINE u32 clamped(i64 value, u32 limit) {
    return static_cast<u32>(max(min(value, static_cast<i64>(limit)), 0ll));
}

// ---- numbers -----------------------------------------------------------------

// Stands for the absence of an index.
constexpr u32 NONE = 0xFFFFFFFFu;
// The largest finite f32.
constexpr float LARGEST = 3.402823466e38f;

INLINE float infinity() { return __uint_as_float(0x7F800000u); }
INLINE float negative_infinity() { return __uint_as_float(0xFF800000u); }

// Approximate functions, each a single instruction: 2^x, and the logarithm to base 2 of a number
// that is not subnormal.
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

// Sixteen bytes, accessed as elements of type T.
template <typename T>
union Pack {
    static constexpr u32 N = 16 / sizeof(T);
    uint4 raw;
    T items[N];

    INLINE Pack() {}
};

// Loads 16 bytes from a 16-byte aligned address. The bytes must not change while the kernel runs,
// because the load uses the read-only data cache.
template <typename T>
INLINE Pack<T> load_pack(const T* from) {
    Pack<T> pack;
    pack.raw = __ldg(reinterpret_cast<const uint4*>(from));
    return pack;
}

// ---- flags -------------------------------------------------------------------

// The bits of crates/spec-core/src/flags.rs, each for one kind of bad data.
constexpr u32 NON_FINITE = 1;
constexpr u32 OUT_OF_RANGE = 2;
constexpr u32 BAD_LENGTHS = 4;

// ORs `bits` into the word of flags, unless the caller gave no such word or no bit is set.
INLINE void raise(u32* flags, u32 bits) {
    if (flags != nullptr && bits != 0) atomicOr(flags, bits);
}

// ---- bits --------------------------------------------------------------------

INLINE u32 lane_id() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// A mask of the lanes below this one.
INLINE u32 lanes_below() {
    u32 mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}

// ---- sums ----------------------------------------------------------------------

// The sum over all lanes of the warp.
template <typename T>
INLINE T warp_sum(T value) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    return value;
}

// The sum over this lane and the lanes below it. A caller that has its lane number in a register
// passes it as `lane`.
template <typename T>
INLINE T warp_inclusive_sum(T value, u32 lane = lane_id()) {
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const T below = __shfl_up_sync(ALL_LANES, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

// Prefix sums over the warps of a block: each warp w stored a value in of_warps[w] before the last
// barrier of the block. All lanes of a warp must call these functions together.
template <typename T>
struct SumsOfWarps {
    // Lane w has the value of warp w, and the sum of the values of warps 0 to w.
    T own;
    T through;

    INLINE SumsOfWarps(const T* of_warps, u32 warps, u32 lane)
        : own(lane < warps ? of_warps[lane] : 0), through(warp_inclusive_sum(own)) {}

    // For a block of 32 warps, in which every lane has a warp.
    INLINE SumsOfWarps(const T* of_warps, u32 lane)
        : own(of_warps[lane]), through(warp_inclusive_sum(own)) {}

    // The sum of the values of the warps before `warp`; the sum of all values.
    INLINE T before(u32 warp) const { return __shfl_sync(ALL_LANES, through - own, warp); }
    INLINE T all() const { return __shfl_sync(ALL_LANES, through, WARP - 1); }
};

// Where the item of a rank lies among the items of neighbouring bins: in which bin, its rank among
// the items of this bin, and how many items the bin has.
struct RankInBins {
    u32 bin;
    u32 rank;
    u32 inside;
};

// Finds the item of a rank, from 1 on, in bins that have at least so many items.
template <u32 N>
INLINE RankInBins find_rank(const u32 (&bins)[N], u32 rank) {
    RankInBins result = {0, rank, bins[0]};
#pragma unroll
    for (u32 i = 1; i < N; i++) {
        if (result.bin == i - 1 && result.rank > result.inside) {
            result = {i, result.rank - result.inside, bins[i]};
        }
    }
    return result;
}

// ---- copies --------------------------------------------------------------------

// Copies 4, 8 or 16 bytes, aligned to their size, from global to shared memory without passing
// through registers. The copy is asynchronous: it is not ordered after an earlier store of this
// thread to the same address.
template <typename T>
INLINE void copy_async(T* to, const T* from) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(sizeof(T))
                 : "memory");
}

// Waits until the asynchronous copies of this thread are complete.
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

// An exponential variate -ln(1 - u) of a fraction u. The arguments give u or 1 - u, whichever is
// below a half, as m * 2^exponent with 1 <= m < 2: u if `below_half`, else 1 - u.
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

// The logistic function; 0 for NaN and for x below EXP_MIN.
INLINE float sigmoid(float x) {
    const float e = exp(-fabsf(x));
    const float r = reciprocal(add(1.0f, e));
    return x > 0.0f ? r : x <= 0.0f ? mul(e, r) : 0.0f;
}

// Softmax of a row. Weights are added as integers, so their sum does not depend on the order of the
// additions.
namespace softmax {

// e^(x - max), where `max` is the largest entry of the row.
INLINE float weight(float x, float max) { return x == max ? 1.0f : exp(sub(x, max)); }

// A weight as an integer, in units of 2^-31.
INLINE u32 fixed(float weight) { return __float2uint_rz(mul(weight, 2147483648.0f)); }

// The argument `factor` of `score`, computed from the sum of `fixed` over the row; 0 if the sum is
// 0.
INLINE float factor(u64 sum) {
    if (sum == 0) return 0.0f;
    const u32 bits = __float_as_uint(__ull2float_rn(sum));
    const i32 exponent = static_cast<i32>(bits >> 23) - 127;
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    const float scale = __uint_as_float(static_cast<u32>(127 + 31 + 24 - exponent) << 23);
    return mul(reciprocal(mantissa), scale);
}

// The probability of an entry, or 0 if that would be a subnormal number.
INLINE float score(float weight, float factor) {
    const float smallest = 1.17549435082228750797e-38f * 16777216.0f;
    const float scaled = mul(weight, factor);
    return scaled < smallest ? 0.0f : mul(scaled, 1.0f / 16777216.0f);
}

}  // namespace softmax

// The sort key of a float: an unsigned integer; keys have the order of their floats. -0 has the key
// of 0, and NaN has the key of -inf.
INLINE u32 sort_key(float value) {
    const float v = value != value ? __uint_as_float(0xFF800000u) : add(value, 0.0f);
    const u32 bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The float that a sort key stands for.
INLINE float value_of_key(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

// Whether rejection sampling accepts a draft token, that is, whether u < target / draft. `target`
// and `draft` are the token's probabilities under the two models, and u is a uniform random number.
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

// A NaN that marks an absent entry: an entry that was dropped, or one beyond the end of a row.
INLINE float nothing() { return __uint_as_float(0x7FFFFFFFu); }

// The sort key of an entry; 0 for `nothing` and every other NaN. 0 is below the key of any number.
INLINE u32 key_of(float x) { return x != x ? 0 : exact::sort_key(x); }
