// What one reading of a rejected token's rows leaves: the largest residual of each group of 64.
#pragma once

#include "fold.cuh"
#include "race.cuh"
#include "vocab_row.cuh"

template <typename T>
struct ResidualGroups {
    static constexpr u32 N = Pack<T>::N;
    // Lanes that share a group, and groups that a warp reads at once.
    static constexpr u32 LANES = GROUP / N;
    static constexpr u32 AT_ONCE = WARP / LANES;

    Row<T> row;

    // visit(group, its largest residual, 0 at least) in one lane for each group from .. to, or in two
    // neighbours. Returns whether a lane met an entry that is not finite.
    template <typename Visit>
    INLINE bool survey(u32 from, u32 to, u32 lane, Visit&& visit) const {
        // NaN once an entry was not finite.
        float odd = 0.0f;
        const bool aligned = reinterpret_cast<u64>(row.target) % 16 == 0 && alike(row);
        const u32 whole = aligned ? max(from, min(to, row.vocab / GROUP)) : from;
#pragma unroll 1
        for (u32 base = from; base < whole; base += FOLDED * AT_ONCE) {
            float tops[FOLDED];
            read<0>(base, whole, lane, tops, odd);
            read<FOLDED / 2>(base, whole, lane, tops, odd);
            const u32 place = fold<LANES, LargestNumber>(tops, lane);
            const u32 group = base + place * AT_ONCE + lane / LANES;
            if (group < whole) visit(group, tops[0]);
        }
#pragma unroll 1
        for (u32 group = whole; group < to; ++group) {
            float top = 0.0f;
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 index = group * GROUP + half * WARP + lane;
                if (index >= row.vocab || index == row.skipped) continue;
                float value = to_f32(row.target[index]);
                if (row.draft != nullptr) value = exact::sub(value, to_f32(row.draft[index]));
                odd = fmaf(value, 0.0f, odd);
                top = fmaxf(top, row.residual(index));
            }
#pragma unroll
            for (u32 o = WARP / 2; o > 0; o /= 2) {
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, o));
            }
            if (lane == group % WARP) visit(group, top);
        }
        return odd != odd;
    }

private:
    // Half of what is folded at once: both rows of all eight would not fit the registers.
    template <u32 FIRST>
    INLINE void read(u32 base, u32 whole, u32 lane, float (&tops)[FOLDED], float& odd) const {
        constexpr u32 HALF = FOLDED / 2;
        const auto place = [&](u32 i) {
            // Past the end the last group once more: loads without branches are all in flight.
            const u32 group = min(base + (FIRST + i) * AT_ONCE + lane / LANES, whole - 1);
            return group * GROUP + lane % LANES * N;
        };
        Pack<T> target[HALF];
        Pack<T> draft[HALF];
#pragma unroll
        for (u32 i = 0; i < HALF; ++i) target[i] = load_pack(row.target + place(i));
        if (row.draft != nullptr) {
#pragma unroll
            for (u32 i = 0; i < HALF; ++i) draft[i] = load_pack(row.draft + place(i));
        }
#pragma unroll
        for (u32 i = 0; i < HALF; ++i) {
            const u32 index = place(i);
            float top = 0.0f;
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                float value = to_f32(target[i].items[j]);
                if (row.draft != nullptr) value = exact::sub(value, to_f32(draft[i].items[j]));
                if (row.draft == nullptr && index + j == row.skipped) value = 0.0f;
                odd = fmaf(value, 0.0f, odd);
                if (fabsf(value) <= LARGEST) top = fmaxf(top, value);
            }
            tops[FIRST + i] = top;
        }
    }
};

// Tokens race with their residuals, those of 2^-40 and more.
template <typename T>
struct ResidualRacers {
    static constexpr float LEAST = 1.0f / 1099511627776.0f;

    Draw draw;
    Row<T> row;

    INLINE float entry(u32 token) const { return token < row.vocab ? row.residual(token) : 0.0f; }

    INLINE float slowness_bound(float top) const {
        return top >= LEAST ? __frcp_rn(top) * BOUND_SLACK : infinity();
    }

    INLINE float slowness_above(u32, float residual) const {
        // `inverse_of` cuts what is larger.
        const float most = __uint_as_float((127 + 100) << 23);
        return residual >= LEAST ? __frcp_rn(fminf(residual, most)) * ABOVE_SLACK : infinity();
    }

    INLINE u64 finish(u32 token, float residual, float noise) const {
        if (!(residual >= LEAST)) return NEVER;
        return finish_at(exact::mul(noise, inverse_of(residual)), token);
    }
};
