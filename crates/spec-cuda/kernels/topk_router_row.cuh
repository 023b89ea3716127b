// Shared by the kernels of topk_router: their arguments, the options that only some models need,
// and writing the outputs of a token.
#pragma once

#include "topk_router_logits.cuh"

// Takes the place of `Options` in kernels without options (f32 bias, 32-bit indices), and of
// `Replay` in kernels without given or recorded experts. The compiler removes all code for what is
// absent.
struct NoOptions {};

// Whether a kernel has options.
template <typename O>
constexpr bool HAS_OPTIONS = true;
template <>
constexpr bool HAS_OPTIONS<NoOptions> = false;

INLINE float warp_max(float v) {
#pragma unroll
    for (u32 o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
    return v;
}

// The bias of an expert; the bias must be present.
template <typename O>
INLINE float bias_of(const Params& p, const O& options, u32 expert) {
    if constexpr (HAS_OPTIONS<O>) {
        if (options.bias_type == F16) return to_f32(reinterpret_cast<const f16*>(p.bias)[expert]);
        if (options.bias_type == BF16) return to_f32(reinterpret_cast<const bf16*>(p.bias)[expert]);
    }
    return __ldg(p.bias + expert);
}

// ---- rows that are padding ----------------------------------------------------

// The number of rows that are tokens. The rows after them are padding.
template <typename O>
INLINE u64 unpadded_tokens(const Params& p, const O& options) {
    if constexpr (HAS_OPTIONS<O>) {
        if (options.num_tokens != nullptr) {
            const i32 wanted = *options.num_tokens;
            const u64 live = wanted < 0 ? 0 : static_cast<u64>(wanted);
            const bool cut = wanted < 0 || live > p.tokens;
            if (cut && blockIdx.x == 0 && threadIdx.x == 0) raise(p.flags, BAD_LENGTHS);
            return live < p.tokens ? live : p.tokens;
        }
    }
    return p.tokens;
}

// Writes a weight, rounded once to the type of the weights. Kernels without `Replay` have f32
// weights.
INLINE void write_weight(const Params& p, const NoOptions&, u64 row, u32 column, float weight) {
    p.weights[row][column] = weight;
}

INLINE void write_weight(const Params& p, const Replay& replay, u64 row, u32 column,
                         float weight) {
    const u64 at = row * p.weights.stride + column;
    void* const weights = p.weights.data;
    if (replay.weights_type == F16) {
        static_cast<f16*>(weights)[at] = __float2half_rn(weight);
    } else if (replay.weights_type == BF16) {
        static_cast<bf16*>(weights)[at] = __float2bfloat16_rn(weight);
    } else {
        static_cast<float*>(weights)[at] = weight;
    }
}

// Records the expert of a pick, before `replicas` turns it into a place, if the caller wants it.
INLINE void write_logical(const NoOptions&, u64, u32, i32) {}

INLINE void write_logical(const Replay& replay, u64 row, u32 column, i32 expert) {
    if (replay.logical.data != nullptr) replay.logical[row][column] = expert;
}

INLINE void write_index(const Params& p, const Options& options, u64 row, u32 column, i32 index) {
    if (options.wide_indices) {
        reinterpret_cast<i64*>(p.indices.data)[row * p.indices.stride + column] = index;
    } else {
        p.indices[row][column] = index;
    }
}

// Writes the padding rows, from row `live` on: a warp for each row.
template <typename R>
INLINE void pad(const Params& p, const Options& options, const R& replay, u64 live) {
    const u32 columns = p.topk + options.shared_experts;
    const u32 warps = blockDim.x / WARP;
    const u64 step = static_cast<u64>(gridDim.x) * warps;
    const u64 first = live + static_cast<u64>(blockIdx.x) * warps + threadIdx.x / WARP;
    for (u64 row = first; row < p.tokens; row += step) {
        for (u32 column = lane_id(); column < columns; column += WARP) {
            write_weight(p, replay, row, column, 0.0f);
            write_logical(replay, row, column, -1);
            write_index(p, options, row, column, -1);
        }
    }
}

// ---- a token's row ------------------------------------------------------------

// The place of a replica of the expert for this token; -1 if the table names a place that does not
// exist.
INLINE i32 place_of(const Params& p, const Options& options, u64 token, u32 expert) {
    if (options.replicas.data == nullptr) return static_cast<i32>(expert);
    const i32 given = options.replica_counts[expert];
    const i32 max_replicas = static_cast<i32>(options.max_replicas);
    const i32 count = min(max(given, 1), max_replicas);
    const u32 replica = static_cast<u32>(token) * 2654435769u % static_cast<u32>(count);
    const i32 place = options.replicas[expert][replica];
    const bool there = place >= 0 && static_cast<u32>(place) < options.physical;
    // Raises one flag at a time. For raise(flags, (a ? X : 0) | (b ? Y : 0)), ptxas 12.9 has
    // generated a branch that raises neither flag if both a and b hold: PLOP3.LUT of `skip | (a &
    // b)` instead of `skip | !(a | b)`.
    if (count != given) raise(p.flags, BAD_LENGTHS);
    if (!there) raise(p.flags, OUT_OF_RANGE);
    return there ? place : -1;
}

// Stands for no expert.
constexpr u32 NO_EXPERT = ~0u;

// Writes the pick at `position`, if `position` is below topk.
template <typename R>
INLINE void write_pick(const Params& p, const Options& options, const R& replay, u64 token,
                       u32 position, float normalized, u32 expert) {
    if (position >= p.topk) return;
    if (HAS_OPTIONS<R> && expert == NO_EXPERT) {
        write_weight(p, replay, token, position, 0.0f);
        write_logical(replay, token, position, -1);
        write_index(p, options, token, position, -1);
        return;
    }
    const i32 place = place_of(p, options, token, expert);
    write_weight(p, replay, token, position, p.scale * normalized);
    write_logical(replay, token, position, static_cast<i32>(expert));
    write_index(p, options, token, position, place);
    if (options.load != nullptr && place >= 0) atomicAdd(options.load + place, 1);
}

// Writes the columns of the shared experts, after the picks. By lane `lane` of `lanes`.
template <typename R>
INLINE void write_shared(const Params& p, const Options& options, const R& replay, u64 token,
                         u32 lane = lane_id(), u32 lanes = WARP) {
    for (u32 i = lane; i < options.shared_experts; i += lanes) {
        write_weight(p, replay, token, p.topk + i, options.shared_weight);
        write_logical(replay, token, p.topk + i, static_cast<i32>(p.experts + i));
        write_index(p, options, token, p.topk + i, static_cast<i32>(options.physical + i));
    }
}

// A row of an output whose stride in bytes fits 32 bits.
template <typename T>
INLINE T* output_row(const Rows<T>& rows, u32 token) {
    char* const base = reinterpret_cast<char*>(rows.data);
    const u32 stride = static_cast<u32>(rows.stride * sizeof(T));
    return reinterpret_cast<T*>(base + static_cast<u64>(token) * stride);
}

// Writes the weight and the index of the pick at `position` (no pick if that is topk or more),
// whose score this lane has; topk is at most 32. If not `wide`, all picks are in the first eight
// lanes. NARROW: strides in bytes fit 32 bits.
template <bool NARROW, typename O>
INLINE void store(const Params& p, const O& options, u64 token, u32 position, float score,
                  u32 expert, bool wide) {
    const bool picked = position < p.topk;
    // Divides before scaling: a large scale divided by a small sum would be infinite.
    float normalized = score;
    if (p.renormalize) {
        float sum = picked ? score : 0.0f;
        if (wide) {
            sum += __shfl_xor_sync(ALL_LANES, sum, 16);
            sum += __shfl_xor_sync(ALL_LANES, sum, 8);
        }
#pragma unroll
        for (u32 o = 4; o > 0; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        normalized = __fdividef(score, sum + 1e-20f);
    }
    if constexpr (HAS_OPTIONS<O>) {
        write_pick(p, options, NoOptions(), token, position, normalized, expert);
        write_shared(p, options, NoOptions(), token);
    } else if (picked) {
        const u32 row = static_cast<u32>(token);
        float* const weights = NARROW ? output_row(p.weights, row) : p.weights[token];
        i32* const indices = NARROW ? output_row(p.indices, row) : p.indices[token];
        weights[position] = p.scale * normalized;
        indices[position] = static_cast<i32>(expert);
    }
}
