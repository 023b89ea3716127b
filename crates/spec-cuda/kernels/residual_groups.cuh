// What one reading of a rejected token's rows leaves: the largest residual of each group of 64.
#pragma once

#include "fold.cuh"
#include "picks.cuh"
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
    // How often a warp reads before it looks at what it has read. With four times, 256 requests take 4 %
    // longer.
    static constexpr u32 READ = FOLDED;
    static constexpr u32 SIZE = GROUP;

    using Picked = float;

    Row<T> row;

    // One residual; 0 where it is not finite, and beyond the row.
    INLINE float entry(u32 token) const { return counted(token, difference(token)); }

    // As a token's residual counts: as 0 where it is not finite.
    INLINE float counted(u32, float value) const { return fabsf(value) <= LARGEST ? value : 0.0f; }

    // Groups from .. to are read 16 bytes a lane up to this one: all that are whole, if the rows are aligned.
    INLINE u32 streamed(u32 from, u32 to) const {
        // Without branches, of which two would stand between the walk and the row.
        const u64 target = reinterpret_cast<u64>(row.target);
        const u64 difference = row.draft != nullptr ? target ^ reinterpret_cast<u64>(row.draft) : 0;
        return (target | difference) % 16 == 0 ? max(from, min(to, row.vocab / GROUP)) : from;
    }

    // visit(group, its largest residual, 0 at least) in one lane for each group from .. to, or in two
    // neighbours. Returns whether the lane met an entry that is not finite. meanwhile(group) is called each
    // time the entries from `group` on are on their way; then `pick` has the residuals that are read 16 bytes
    // a lane (picks.cuh).
    template <typename Visit, typename Meanwhile, typename Pick = Unpicked>
    INLINE bool survey(u32 from, u32 to, u32 lane, Visit&& visit, Meanwhile&& meanwhile,
                       Pick&& pick = Pick{}) const {
        // NaN once an entry was not finite.
        float odd = 0.0f;
        const u32 whole = streamed(from, to);
#pragma unroll 1
        for (u32 base = from; base < whole; base += FOLDED * AT_ONCE) {
            float tops[FOLDED];
            read(base, whole, lane, tops, odd, meanwhile, pick);
            const u32 place = fold<LANES, LargestNumber>(tops, lane);
            const u32 group = base + place * AT_ONCE + lane / LANES;
            if (group < whole) visit(group, tops[0]);
        }
        // Of rows without alignment all groups, of other rows a last one that is not whole. Rare: all groups
        // once more, since `read` takes every entry for a finite one.
        u32 rest = whole;
        if (__any_sync(ALL_LANES, odd != odd)) {
            rest = from;
            // A group may be another lane's to visit now.
            __syncwarp();
        }
#pragma unroll 1
        for (u32 base = rest; base < to; base += FOLDED) {
            float tops[FOLDED];
#pragma unroll
            for (u32 i = 0; i < FOLDED; ++i) {
                const u32 token = min(base + i, to - 1) * GROUP + lane;
                const float values[2] = {difference(token), difference(token + WARP)};
                odd = fmaf(values[1], 0.0f, fmaf(values[0], 0.0f, odd));
                tops[i] = fmaxf(fmaxf(counted(token, values[0]), counted(token + WARP, values[1])), 0.0f);
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

    // Reads READ times. The largest residuals in `tops` are right where all entries are finite, the least that
    // a residual needs: this loop is what a batch of many requests waits for.
    template <typename Meanwhile, typename Pick>
    INLINE void read(u32 base, u32 whole, u32 lane, float (&tops)[READ], float& odd, Meanwhile&& meanwhile,
                     Pick&& pick) const {
        const auto place = [&](u32 i) {
            // Past the end the last group once more: loads without branches are all in flight.
            const u32 group = min(base + i * AT_ONCE + lane / LANES, whole - 1);
            return group * GROUP + lane % LANES * N;
        };
        Pack<T> target[READ];
        Pack<T> draft[READ];
#pragma unroll
        for (u32 i = 0; i < READ; ++i) target[i] = load_pack(row.target + place(i));
        if (row.draft != nullptr) {
#pragma unroll
            for (u32 i = 0; i < READ; ++i) draft[i] = load_pack(row.draft + place(i));
        }
        meanwhile(base);
        const auto wanted = pick(base);
#pragma unroll
        for (u32 i = 0; i < READ; ++i) {
            float values[N];
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values[j] = to_f32(target[i].items[j]);
                if (row.draft != nullptr) values[j] = exact::sub(values[j], to_f32(draft[i].items[j]));
            }
            // Rare.
            const u32 skipped = row.skipped - place(i);
            if (skipped < N) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) values[j] = j == skipped ? 0.0f : values[j];
            }
            tops[i] = 0.0f;
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                odd = fmaf(values[j], 0.0f, odd);
                tops[i] = fmaxf(tops[i], values[j]);
            }
            wanted(i, [&](u32 part) {
                const auto its = [&](u32 j) { return __float_as_uint(values[4 * part + j]); };
                return make_uint4(its(0), its(1), its(2), its(3));
            });
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

    using Raw = float;
    static constexpr u32 AT_ONCE = 2;

    Draw draw;
    ResidualGroups<T> groups;

    INLINE float entry(u32 token) const { return groups.entry(token); }
    INLINE float raw(u32 token) const { return entry(token); }
    INLINE float entry_of(u32, float raw) const { return raw; }

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
