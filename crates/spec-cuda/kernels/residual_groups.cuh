// Reads the rows of a rejected token once, and keeps the largest residual of each group of 64
// tokens.
//
// LANES lanes read a group, 16 bytes each, so a warp reads AT_ONCE groups with one load
// instruction. A warp has READ loads of target and draft in flight and reduces them together
// (fold.cuh).
#pragma once

#include "fold.cuh"
#include "params/rejection_sample.cuh"
#include "picks.cuh"
#include "race.cuh"
#include "vocab_row.cuh"

// 1 / x with a relative error of 2^-22, for x from 2^-100 to 2^100; 0 for larger x.
INLINE float approximate_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T>
struct ResidualGroups {
    static constexpr u32 N = Pack<T>::N;
    // Lanes that read a group together, and groups that a warp reads with one load instruction.
    static constexpr u32 LANES = GROUP / N;
    static constexpr u32 AT_ONCE = WARP / LANES;
    // Loads that a warp has in flight before it uses the first. With four loads, 256 requests take
    // 4 % longer.
    static constexpr u32 READ = FOLDED;
    static constexpr u32 SIZE = GROUP;

    using Picked = float;

    Row<T> row;

    // The residual of a token; 0 if it is not finite, or if the token is beyond the row.
    INLINE float entry(u32 token) const { return counted(token, difference(token)); }

    // The residual that counts for a difference `value`: 0 if the difference is not finite.
    INLINE float counted(u32, float value) const { return fabsf(value) <= LARGEST ? value : 0.0f; }

    // The end of the groups, among from .. to, that are read 16 bytes a lane: all whole groups, if
    // both rows are aligned to 16 bytes, else none (`from`).
    INLINE u32 streamed(u32 from, u32 to) const {
        // Written without branches: two branches here would delay the first loads of the row.
        const u64 target = reinterpret_cast<u64>(row.target);
        const u64 difference = row.draft != nullptr ? target ^ reinterpret_cast<u64>(row.draft) : 0;
        return (target | difference) % 16 == 0 ? max(from, min(to, row.vocab / GROUP)) : from;
    }

    // Reads the groups from .. to. Calls visit(group, largest residual of the group, at least 0)
    // for each group, in one lane or in two neighbouring lanes. Returns whether this lane read an
    // entry that is not finite. Calls meanwhile(group) each time the loads of the groups from
    // `group` on have been issued and have not arrived. `pick` receives the residuals of the groups
    // up to `streamed` (picks.cuh).
    template <typename Visit, typename Meanwhile, typename Pick = NoPicks>
    INLINE bool survey(u32 from, u32 to, u32 lane, Visit&& visit, Meanwhile&& meanwhile,
                       Pick&& pick = Pick{}) const {
        // Becomes NaN once an entry is not finite.
        float nonfinite = 0.0f;
        const u32 whole = streamed(from, to);
#pragma unroll 1
        for (u32 base = from; base < whole; base += FOLDED * AT_ONCE) {
            float tops[FOLDED];
            read(base, whole, lane, tops, nonfinite, meanwhile, pick);
            const u32 place = fold<LANES, LargestNumber>(tops, lane);
            const u32 group = base + place * AT_ONCE + lane / LANES;
            if (group < whole) visit(group, tops[0]);
        }
        // The remaining groups: all groups of unaligned rows, or a last group that is not whole. If
        // an entry was not finite, which is rare, all groups are read again, because `read` assumes
        // that every entry is finite.
        u32 rest = whole;
        if (__any_sync(ALL_LANES, nonfinite != nonfinite)) {
            rest = from;
            // A group may now be visited by another lane than before.
            __syncwarp();
        }
#pragma unroll 1
        for (u32 base = rest; base < to; base += FOLDED) {
            float tops[FOLDED];
#pragma unroll
            for (u32 i = 0; i < FOLDED; ++i) {
                const u32 token = min(base + i, to - 1) * GROUP + lane;
                const float values[2] = {difference(token), difference(token + WARP)};
                nonfinite = fmaf(values[1], 0.0f, fmaf(values[0], 0.0f, nonfinite));
                tops[i] =
                    fmaxf(fmaxf(counted(token, values[0]), counted(token + WARP, values[1])), 0.0f);
            }
            const u32 group = base + fold<WARP, LargestNumber>(tops, lane);
            if (group < to) visit(group, tops[0]);
        }
        return nonfinite != nonfinite;
    }

private:
    // Target minus draft; 0 beyond the row and for the token `skipped`. The loads have no branches,
    // so that the loads of several tokens are in flight at once.
    INLINE float difference(u32 token) const {
        const u32 index = min(token, row.vocab - 1);
        const T* const second = row.draft != nullptr ? row.draft : row.target;
        const float target = to_f32(row.target[index]);
        const float draft = to_f32(second[index]);
        const float value = row.draft != nullptr ? exact::sub(target, draft) : target;
        return token < row.vocab && token != row.skipped ? value : 0.0f;
    }

    // Issues READ loads and finds the largest residual of each of their vectors, correct if all
    // entries are finite. This loop bounds the time of a batch of many requests, so it does only
    // what is needed.
    template <typename Meanwhile, typename Pick>
    INLINE void read(u32 base, u32 whole, u32 lane, float (&tops)[READ], float& nonfinite,
                     Meanwhile&& meanwhile, Pick&& pick) const {
        const auto place = [&](u32 i) {
            // Past the end, the last group is loaded again: without a branch, all loads are in
            // flight at once.
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
                if (row.draft != nullptr) {
                    values[j] = exact::sub(values[j], to_f32(draft[i].items[j]));
                }
            }
            // Rare: the skipped token is in this vector.
            const u32 skipped = row.skipped - place(i);
            if (skipped < N) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) values[j] = j == skipped ? 0.0f : values[j];
            }
            tops[i] = 0.0f;
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                nonfinite = fmaf(values[j], 0.0f, nonfinite);
                tops[i] = fmaxf(tops[i], values[j]);
            }
            wanted(i, [&](u32 part) {
                const auto its = [&](u32 j) { return __float_as_uint(values[4 * part + j]); };
                return make_uint4(its(0), its(1), its(2), its(3));
            });
        }
    }
};

// Keeps the residuals of tokens that race.
struct ResidualFilter {
    INLINE bool operator()(float residual, u32) const { return residual >= MIN_RESIDUAL; }
};

// The ordering of `log_time` for residuals: `log_time` then returns the time itself.
struct ByResidual {};

INLINE float log_time(float noise, float residual, ByResidual) {
    return ResidualFilter()(residual, NONE) ? noise * approximate_reciprocal(residual) : infinity();
}

// The racers of race.cuh for residuals: a token's weight is its residual, and a token races if the
// residual is at least 2^-40.
template <typename T>
struct ResidualRacers {
    using Raw = float;
    static constexpr u32 AT_ONCE = 2;

    Draw draw;
    ResidualGroups<T> groups;

    INLINE float entry(u32 token) const { return groups.entry(token); }
    INLINE float raw(u32 token) const { return entry(token); }
    INLINE float entry_of(u32, float raw) const { return raw; }

    INLINE float slowness_bound(float top) const {
        return top >= MIN_RESIDUAL ? approximate_reciprocal(top) * BOUND_SLACK : infinity();
    }

    INLINE float slowness_above(u32, float residual) const { return sure_slowness(residual); }

    INLINE float sure_slowness(float residual) const {
        bool sure = true;
        return about_slowness(NONE, residual, sure) * ABOVE_SLACK;
    }

    // For residuals it is always certain whether a token races: the last argument stays as it is.
    INLINE float about_slowness(u32, float residual, bool&) const {
        // `inverse_of` clamps larger values as well.
        const float max_value = __uint_as_float((127 + 100) << 23);
        return residual >= MIN_RESIDUAL ? approximate_reciprocal(fminf(residual, max_value))
                                        : infinity();
    }

    INLINE u64 finish(u32 token, float residual, float noise) const {
        if (!(residual >= MIN_RESIDUAL)) return NEVER;
        return finish_at(exact::mul(noise, inverse_of(residual)), token);
    }
};
