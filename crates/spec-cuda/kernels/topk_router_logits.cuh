// Logits of topk_router, whose type a kernel learns from its parameters: with kernels for each
// type, the archive would be twice as large. All lanes take the same branch, once for each token.
// Only the grouped route has kernels for single types.
#pragma once

#include "params/topk_router.cuh"

// The number of bytes of a float of type F32, F16 or BF16.
INLINE u32 size_of(u32 type) { return type == F32 ? 4 : 2; }

// The lower (j even) or the upper 16 bits (j odd) of a word, as a float of type F16 or BF16.
template <u32 TYPE>
INLINE float half_of(u32 word, u32 j) {
    if constexpr (TYPE == BF16) {
        return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    } else {
        return to_f32(__ushort_as_half(static_cast<u16>(j % 2 == 0 ? word : word >> 16)));
    }
}

// The logits of a token.
struct LogitRow {
    const void* data;
    u32 type;

    template <typename T>
    INLINE const T* as() const {
        return static_cast<const T*>(data);
    }

    INLINE float operator[](u32 expert) const {
        if (type == F32) return as<float>()[expert];
        const u32 word = as<u16>()[expert];
        return type == BF16 ? half_of<BF16>(word, 0) : half_of<F16>(word, 0);
    }

    // The logits of the experts at, at + step, at + 2 step and at + 3 step; NaN from `end` on.
    INLINE float4 four(u32 at, u32 step, u32 end) const {
        if (type == F32) return four_of<float>(at, step, end);
        return type == BF16 ? four_of<bf16>(at, step, end) : four_of<f16>(at, step, end);
    }

private:
    template <typename T>
    INLINE float4 four_of(u32 at, u32 step, u32 end) const {
        const auto logit = [&](u32 expert) {
            return expert < end ? to_f32(as<T>()[expert]) : __uint_as_float(0x7FC00000u);
        };
        return make_float4(logit(at), logit(at + step), logit(at + 2 * step), logit(at + 3 * step));
    }
};

// The row of a token. WIDE: the stride in bytes may need 64 bits.
template <bool WIDE = false>
INLINE LogitRow logits_of(const Params& p, u64 token) {
    const u64 stride = p.x.stride * size_of(p.x_type);
    const u64 offset = WIDE ? token * stride : token * static_cast<u32>(stride);
    return {static_cast<const char*>(p.x.data) + offset, p.x_type};
}

// CHUNKS chunks of N neighbouring logits of a row. `load` issues the loads, and `values` waits for
// them, so that other work can stand in between. N is 1 or a multiple of 4.
//
// All types take the same loads, of 16 bytes from an aligned address (4 bytes if N is 1). With a
// load for each type into the same registers, the second would wait for the first, although only
// one of them is executed. A chunk of 16-bit logits may begin in the middle of the bytes that are
// loaded.
template <u32 CHUNKS, u32 N>
struct LoadedLogits {
    static_assert(N == 1 || N % 4 == 0);
    // The bytes of a load, and the loads of a chunk of 16-bit logits.
    static constexpr u32 LOADED = N == 1 ? 4 : 16;
    static constexpr u32 HALF_LOADS = N == 1 ? 1 : (N + 7) / 8;
    u32 words[CHUNKS][N];

    // Chunk c begins at expert first(c), a multiple of N, and is loaded if first(c) < end. The row
    // is aligned to 16 bytes, and its length is a multiple of 16 bytes.
    template <typename First>
    INLINE void load(const LogitRow& row, u32 end, First first) {
        const bool wide = row.type == F32;
        forget();
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            if (first(c) >= end) continue;
            const u32 offset = first(c) * size_of(row.type) / LOADED * LOADED;
            const char* const from = row.as<char>() + offset;
            if constexpr (N == 1) {
                words[c][0] = __ldg(reinterpret_cast<const u32*>(from));
            } else {
#pragma unroll
                for (u32 i = 0; i < N / 4; ++i) {
                    if (i >= HALF_LOADS && !wide) continue;
                    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from) + i);
                    words[c][4 * i] = raw.x;
                    words[c][4 * i + 1] = raw.y;
                    words[c][4 * i + 2] = raw.z;
                    words[c][4 * i + 3] = raw.w;
                }
            }
        }
    }

    // Says that the words are not used before they are loaded again. Without it, words that a load
    // leaves as they are would keep registers of their own.
    INLINE void forget() {
#pragma unroll
        for (u32 i = 0; i < CHUNKS * N; ++i) asm volatile("" : "=r"(words[i / N][i % N]));
    }

    // Logit j of chunk c is number c * N + j. `first` is what `load` took.
    template <typename First>
    INLINE void values(u32 type, float (&to)[CHUNKS * N], First first) const {
        if (type == F32) {
#pragma unroll
            for (u32 i = 0; i < CHUNKS * N; ++i) to[i] = __uint_as_float(words[i / N][i % N]);
        } else if (type == BF16) {
            halves<BF16>(to, first);
        } else {
            halves<F16>(to, first);
        }
    }

private:
    template <u32 TYPE, typename First>
    INLINE void halves(float (&to)[CHUNKS * N], First first) const {
#pragma unroll
        for (u32 c = CHUNKS; c > 0; --c) {
            // Whether the chunk begins in the middle of the loaded bytes.
            const bool middle = first(c - 1) * 2 % LOADED != 0;
            const u32 (&own)[N] = words[c - 1];
            // From the last to the first, so that a logit can take the register of its word.
#pragma unroll
            for (u32 j = N; j > 0; --j) {
                const u32 i = j - 1;
                u32 word = own[i / 2];
                if constexpr (N == 1) {
                    word = middle ? word >> 16 : word;
                } else if constexpr (N % 8 != 0) {
                    word = middle ? own[i / 2 + 2] : word;
                }
                to[(c - 1) * N + i] = half_of<TYPE>(word, i);
            }
        }
    }
};
