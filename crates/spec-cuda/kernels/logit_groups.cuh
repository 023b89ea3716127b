// Reads a row of logits once, and keeps the largest logit of each group of 64 tokens.
//
// LANES lanes read a group, 16 bytes each, so a warp reads AT_ONCE groups with one load
// instruction. A warp has four or eight loads in flight, and reduces eight loads at once
// (fold.cuh). Bytes: the logits once.
#pragma once

#include "fold.cuh"
#include "max_or_nan.cuh"
#include "picks.cuh"
#include "race.cuh"

// The largest of 16 bytes of logits, and the larger of two such results; NaN if a logit is NaN.
// Logits of 16 bits are compared in pairs, so a result is a pair that `number` reduces.
template <typename T>
struct Largest16;

template <>
struct Largest16<float> {
    using Value = float;

    INLINE static float larger(float a, float b) { return max_or_nan(a, b); }
    INLINE static float of(const Pack<float>& p) {
        return larger(larger(p.items[0], p.items[1]), larger(p.items[2], p.items[3]));
    }
    INLINE static float number(float value) { return value; }
};

template <>
struct Largest16<bf16> {
    using Value = u32;

    INLINE static u32 larger(u32 a, u32 b) { return max_or_nan_bf16x2(a, b); }
    INLINE static u32 of(const Pack<bf16>& p) {
        return larger(larger(p.raw.x, p.raw.y), larger(p.raw.z, p.raw.w));
    }
    INLINE static float number(u32 pair) {
        return max_or_nan(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
    }
};

template <>
struct Largest16<f16> {
    using Value = u32;

    INLINE static u32 larger(u32 a, u32 b) { return max_or_nan_f16x2(a, b); }
    INLINE static u32 of(const Pack<f16>& p) {
        return larger(larger(p.raw.x, p.raw.y), larger(p.raw.z, p.raw.w));
    }
    INLINE static float number(u32 pair) {
        const float low = __half2float(__ushort_as_half(static_cast<u16>(pair)));
        return max_or_nan(low, __half2float(__ushort_as_half(static_cast<u16>(pair >> 16))));
    }
};

// Loads 16 bytes that are read only once, from a 16-byte aligned address. The load does not
// allocate in the first-level cache, which keeps spilled registers there instead.
template <typename T>
INLINE Pack<T> stream_pack(const T* from) {
    Pack<T> pack;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(pack.raw.x), "=r"(pack.raw.y), "=r"(pack.raw.z), "=r"(pack.raw.w)
        : "l"(from));
    return pack;
}

// How the logits of a row are compared. With a mask, disallowed logits and NaN have already become
// negative infinity, so the comparison does not meet NaN.
template <typename T, bool MASKED>
struct LargestOfRow : Largest16<T> {};
template <typename T>
struct LargestOfRow<T, true> : LargestNumber {};

// True if the two types are the same.
template <typename A, typename B>
constexpr bool same = false;
template <typename A>
constexpr bool same<A, A> = true;

// A visitor of `survey` for callers that need no logits.
struct NoVisitor {
    INLINE bool begin(float) const { return false; }
    template <u32 N>
    INLINE void operator()(const float (&)[N], bool) const {}
};

// Work of a warp while loads are in flight: none.
struct Idle {
    INLINE void operator()(u32) const {}
};

// The largest logit of a group: `counts` after mask and NaN became negative infinity, `raw` before,
// NaN if a logit is NaN.
struct GroupTop {
    float counts;
    float raw;
};

template <typename Row>
__device__ __noinline__ GroupTop top_of_group(Row row, u32 group, u32 lane) {
    GroupTop top = {negative_infinity(), negative_infinity()};
#pragma unroll 1
    for (u32 half = 0; half < 2; ++half) {
        const u32 token = group * GROUP + half * WARP + lane;
        if (token >= row.vocab) continue;
        top.raw = max_or_nan(top.raw, to_f32(row.row[token]));
        top.counts = fmaxf(top.counts, row.entry(token));
    }
#pragma unroll 1
    for (u32 o = WARP / 2; o > 0; o /= 2) {
        top.counts = fmaxf(top.counts, __shfl_xor_sync(ALL_LANES, top.counts, o));
    }
    return top;
}

// A row of logits and its mask. READS is the number of loads that a warp has in flight: more loads
// leave fewer registers for other work of the warp.
template <typename T, bool MASKED, u32 READS = FOLDED / 2>
struct LogitGroups {
    static constexpr u32 N = Pack<T>::N;
    // Lanes that read a group together, and groups that a warp reads with one load instruction.
    static constexpr u32 LANES = GROUP / N;
    static constexpr u32 AT_ONCE = WARP / LANES;
    static constexpr u32 READ = READS;
    static constexpr u32 SIZE = GROUP;
    // Groups whose tokens a race reads at once (race_leader_block.cuh). A row of 151,936 f32 takes
    // 7.8 us on an H100, and 8.0 us with two.
    static constexpr u32 RACE_AT_ONCE = 4;

    using Raw = T;
    using Picked = T;
    using Compare = LargestOfRow<T, MASKED>;
    using Value = typename Compare::Value;

    const T* row;
    // One bit for each token, 1 if the token is allowed; used if MASKED.
    const u32* mask;
    u32 vocab;

    INLINE bool allowed(u32 token) const {
        return !MASKED || (mask[token / 32] >> token % 32 & 1) != 0;
    }

    // The logit of a token as it counts: negative infinity if it is NaN or not allowed. Beyond the
    // row: the absent entry (NaN).
    INLINE float entry(u32 token) const {
        return token < vocab ? counted(token, to_f32(row[token])) : nothing();
    }

    // The logit of a token as stored; beyond the row, the last token's logit. Without a branch, so
    // that no load waits for another.
    INLINE T raw(u32 token) const { return row[min(token, vocab - 1)]; }

    // `entry` of a token whose stored logit is `raw`.
    INLINE float entry_of(u32 token, T raw) const {
        return token < vocab ? counted(token, to_f32(raw)) : nothing();
    }

    // The logit x of a token as it counts: negative infinity if it is NaN or not allowed.
    INLINE float counted(u32 token, float x) const {
        return allowed(token) ? fmaxf(x, negative_infinity()) : negative_infinity();
    }

    // The end of the groups, among from .. to, that are read 16 bytes a lane: all whole groups, if
    // the row is aligned to 16 bytes, else none (`from`).
    INLINE u32 streamed(u32 from, u32 to) const {
        const bool aligned = reinterpret_cast<u64>(row) % 16 == 0;
        return aligned ? max(from, min(to, vocab / GROUP)) : from;
    }

    // Reads the groups from .. to. Calls visit(group, largest logit of the group) for each group,
    // in one lane or in two neighbouring lanes. Returns the largest stored logit that this lane
    // read, whatever the mask; NaN if one of them is NaN.
    //
    // For rows without a mask, visitor(logits, there) receives every stored logit once, in some
    // lane; if not `there`, the logits are duplicates that must not count. Before each batch of
    // logits, visitor.begin(top) returns whether the batch must be visited; the numbers of the
    // batch are at most `top`. Calls meanwhile(group) each time the loads of the groups from
    // `group` on have been issued and have not arrived. `pick` receives the logits of the groups up
    // to `streamed` (picks.cuh).
    template <typename Visit, typename Visitor = NoVisitor, typename Meanwhile = Idle,
              typename Pick = NoPicks>
    INLINE float survey(u32 from, u32 to, u32 lane, Visit&& visit, Visitor&& visitor = Visitor{},
                        Meanwhile&& meanwhile = Meanwhile{}, Pick&& pick = Pick{}) const {
        float raw = negative_infinity();
        const u32 whole = streamed(from, to);
        const T* const own = row + lane % LANES * N;
#pragma unroll 1
        for (u32 base = from; base < whole; base += FOLDED * AT_ONCE) {
            Value tops[FOLDED];
#pragma unroll
            for (u32 read = 0; read < FOLDED; read += READ) {
                const u32 first = base + read * AT_ONCE;
                // Groups past the end are never visited, so any values are correct here.
                if (read > 0 && first >= whole) {
#pragma unroll
                    for (u32 i = 0; i < READ; ++i) tops[read + i] = tops[i];
                    continue;
                }
                Pack<T> packs[READ];
#pragma unroll
                for (u32 i = 0; i < READ; ++i) {
                    packs[i] = stream_pack(own + group_of(first, i, lane, whole) * GROUP);
                }
                if (read == 0) meanwhile(base);
                const auto wanted = pick(first);
#pragma unroll
                for (u32 i = 0; i < READ; ++i) wanted(i, [&](u32) { return packs[i].raw; });
#pragma unroll
                for (u32 i = 0; i < READ; ++i) {
                    tops[read + i] = top_of(packs[i], group_of(first, i, lane, whole), lane, raw);
                }
                if constexpr (!same<Visitor, NoVisitor>) {
                    static_assert(!MASKED);
                    Value top = tops[read];
#pragma unroll
                    for (u32 i = 1; i < READ; ++i) top = Compare::larger(top, tops[read + i]);
                    if (!visitor.begin(Compare::number(top))) continue;
#pragma unroll
                    for (u32 i = 0; i < READ; ++i) {
                        if (first + i * AT_ONCE >= whole) break;
                        float values[N];
#pragma unroll
                        for (u32 j = 0; j < N; ++j) values[j] = to_f32(packs[i].items[j]);
                        visitor(values, first + i * AT_ONCE + lane / LANES < whole);
                    }
                }
            }
            visit_folded(tops, base, whole, lane, raw, visit);
        }
#pragma unroll 1
        for (u32 group = whole; group < to; ++group) {
            const GroupTop top = top_of_group(*this, group, lane);
            raw = max_or_nan(raw, top.raw);
            if (lane == group % WARP) visit(group, top.counts);
            if constexpr (!same<Visitor, NoVisitor>) {
                if (!visitor.begin(top.counts)) continue;
                for (u32 token = group * GROUP + lane; token < min(vocab, (group + 1) * GROUP);
                     token += WARP) {
                    const float values[1] = {to_f32(row[token])};
                    visitor(values, true);
                }
            }
        }
        return raw;
    }

private:
    // The group that this lane reads in load i. Past the end it is the last group: without a
    // branch, all loads are in flight at once.
    INLINE static u32 group_of(u32 first, u32 i, u32 lane, u32 whole) {
        return min(first + i * AT_ONCE + lane / LANES, whole - 1);
    }

    // The largest of the 16 bytes that this lane read of a group.
    INLINE Value top_of(const Pack<T>& pack, u32 group, u32 lane, float& raw) const {
        if constexpr (MASKED) {
            const u32 token = lane % LANES * N;
            const u32 bits = mask[group * 2 + token / 32] >> token % 32;
            float top = negative_infinity();
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                const float x = to_f32(pack.items[j]);
                raw = max_or_nan(raw, x);
                // fmaxf returns the number if one argument is NaN.
                if (bits >> j & 1) top = fmaxf(top, x);
            }
            return top;
        } else {
            return Compare::of(pack);
        }
    }

    template <typename Visit>
    INLINE void visit_folded(Value (&tops)[FOLDED], u32 base, u32 whole, u32 lane, float& raw,
                             Visit&& visit) const {
        const u32 place = fold<LANES, Compare>(tops, lane);
        const u32 group = base + place * AT_ONCE + lane / LANES;
        float top = Compare::number(tops[0]);
        if constexpr (!MASKED) {
            raw = max_or_nan(raw, top);
            // Rare: finds the largest number of a group that contains NaN.
            u32 with_nan = __ballot_sync(ALL_LANES, top != top);
#pragma unroll 1
            for (; with_nan != 0; with_nan &= with_nan - 1) {
                const u32 owner = __ffs(with_nan) - 1;
                const u32 its = min(__shfl_sync(ALL_LANES, group, owner), whole - 1);
                const float number = top_of_group(*this, its, lane).counts;
                if (lane == owner) top = number;
            }
        }
        if (group < whole) visit(group, top);
    }
};
