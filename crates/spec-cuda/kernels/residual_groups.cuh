// What one reading of a rejected token's rows leaves: the largest residual of each group of 64.
#pragma once

#include "fold.cuh"
#include "race.cuh"
#include "vocab_row.cuh"

// 1 / x, to 2^-22, of a number from 2^-100 to 2^100; 0 for larger ones.
INLINE float approximate_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T>
struct ResidualGroups {
    static constexpr u32 N = Pack<T>::N;
    // Lanes that share a group, and groups that a warp reads at once.
    static constexpr u32 LANES = GROUP / N;
    static constexpr u32 AT_ONCE = WARP / LANES;

    Row<T> row;

    // One residual; 0 where it is not finite, and beyond the row.
    INLINE float entry(u32 token) const { return counted(difference(token)); }

    // visit(group, its largest residual, 0 at least) in one lane for each group from .. to, or in two
    // neighbours. Returns whether the lane met an entry that is not finite. Of the groups that are folded
    // at once, entries of the first half are on their way when first(group) is called with the first of
    // these groups, and entries of the other half when second() is.
    template <typename Visit, typename First, typename Second>
    INLINE bool survey(u32 from, u32 to, u32 lane, Visit&& visit, First&& first, Second&& second) const {
        // NaN once an entry was not finite.
        float odd = 0.0f;
        const bool aligned = reinterpret_cast<u64>(row.target) % 16 == 0 && alike(row);
        const u32 whole = aligned ? max(from, min(to, row.vocab / GROUP)) : from;
#pragma unroll 1
        for (u32 base = from; base < whole; base += FOLDED * AT_ONCE) {
            float tops[FOLDED];
            read<0>(base, whole, lane, tops, odd, [&] { first(base); });
            read<FOLDED / 2>(base, whole, lane, tops, odd, second);
            const u32 place = fold<LANES, LargestNumber>(tops, lane);
            const u32 group = base + place * AT_ONCE + lane / LANES;
            if (group < whole) visit(group, tops[0]);
        }
        // Of rows without alignment all groups, of other rows a last one that is not whole.
#pragma unroll 1
        for (u32 base = whole; base < to; base += FOLDED) {
            float tops[FOLDED];
#pragma unroll
            for (u32 i = 0; i < FOLDED; ++i) {
                const u32 token = min(base + i, to - 1) * GROUP + lane;
                const float values[2] = {difference(token), difference(token + WARP)};
                odd = fmaf(values[1], 0.0f, fmaf(values[0], 0.0f, odd));
                tops[i] = fmaxf(fmaxf(counted(values[0]), counted(values[1])), 0.0f);
            }
            const u32 group = base + fold<WARP, LargestNumber>(tops, lane);
            if (group < to) visit(group, tops[0]);
        }
        return odd != odd;
    }

private:
    // Target less draft; 0 beyond the row and for the token that is skipped. Loads without branches, so that
    // those of several tokens are in flight at once.
    INLINE float difference(u32 token) const {
        const u32 index = min(token, row.vocab - 1);
        const T* const second = row.draft != nullptr ? row.draft : row.target;
        const float target = to_f32(row.target[index]);
        const float draft = to_f32(second[index]);
        const float value = row.draft != nullptr ? exact::sub(target, draft) : target;
        return token < row.vocab && token != row.skipped ? value : 0.0f;
    }

    // A value that is not finite counts as 0.
    INLINE static float counted(float value) { return fabsf(value) <= LARGEST ? value : 0.0f; }

    // Half of what is folded at once: both rows of all eight would not fit the registers.
    template <u32 FIRST, typename Meanwhile>
    INLINE void read(u32 base, u32 whole, u32 lane, float (&tops)[FOLDED], float& odd,
                     Meanwhile&& meanwhile) const {
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
        meanwhile();
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
                top = fmaxf(top, counted(value));
            }
            tops[FIRST + i] = top;
        }
    }
};

// Keeps the residuals that race.
struct KeepsLarge {
    static constexpr float LEAST = 1.0f / 1099511627776.0f;

    INLINE bool operator()(float residual, u32) const { return residual >= LEAST; }
};

// How `log_time` orders times by residuals: the times themselves will do.
struct ByResidual {};

INLINE float log_time(float noise, float residual, ByResidual) {
    return KeepsLarge()(residual, NONE) ? noise * approximate_reciprocal(residual) : infinity();
}

// Tokens race with their residuals, those of 2^-40 and more.
template <typename T>
struct ResidualRacers {
    static constexpr float LEAST = KeepsLarge::LEAST;

    Draw draw;
    ResidualGroups<T> groups;

    INLINE float entry(u32 token) const { return groups.entry(token); }

    INLINE float slowness_bound(float top) const {
        return top >= LEAST ? approximate_reciprocal(top) * BOUND_SLACK : infinity();
    }

    INLINE float slowness_above(u32, float residual) const { return sure_slowness(residual); }

    INLINE float sure_slowness(float residual) const {
        bool sure = true;
        return about_slowness(NONE, residual, sure) * ABOVE_SLACK;
    }

    // It is certain which residuals race.
    INLINE float about_slowness(u32, float residual, bool&) const {
        // `inverse_of` cuts what is larger.
        const float most = __uint_as_float((127 + 100) << 23);
        return residual >= LEAST ? approximate_reciprocal(fminf(residual, most)) : infinity();
    }

    INLINE u64 finish(u32 token, float residual, float noise) const {
        if (!(residual >= LEAST)) return NEVER;
        return finish_at(exact::mul(noise, inverse_of(residual)), token);
    }
};
