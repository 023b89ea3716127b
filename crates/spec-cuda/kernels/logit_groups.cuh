// What one reading of a row of logits leaves: the largest of each group of 64.
//
// A warp reads 16 bytes a lane, four or eight times before it looks at any, and folds what it has read eight
// times at once (fold.cuh).
#pragma once

#include "fold.cuh"
#include "max_or_nan.cuh"
#include "picks.cuh"
#include "race.cuh"

// The largest of 16 bytes of logits, and of two such; NaN if any is NaN. Those of 16 bits are compared
// in pairs.
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

// Sixteen bytes that are read once, from a 16-byte aligned address: the first-level cache keeps what
// it has, which is what the compiler has put in memory.
template <typename T>
INLINE Pack<T> stream_pack(const T* from) {
    Pack<T> pack;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(pack.raw.x), "=r"(pack.raw.y), "=r"(pack.raw.z), "=r"(pack.raw.w)
        : "l"(from));
    return pack;
}

// How the logits of a row are compared: what a mask leaves has no NaN.
template <typename T, bool MASKED>
struct LargestOfRow : Largest16<T> {};
template <typename T>
struct LargestOfRow<T, true> : LargestNumber {};

// Whether two types are one.
template <typename A, typename B>
constexpr bool same = false;
template <typename A>
constexpr bool same<A, A> = true;

// Sees nothing.
struct Unseen {
    INLINE bool begin(float) const { return false; }
    template <u32 N>
    INLINE void operator()(const float (&)[N], bool) const {}
};

// What a warp does while the logits of its groups are on their way: nothing.
struct Idle {
    INLINE void operator()(u32) const {}
};

// Of a group: its largest logit as it counts, and as it is, NaN if any is NaN.
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

// A row of logits, and which of them are allowed. READS is how often a warp reads before it looks at what it
// has read: more reads on their way take more registers from what the warp does meanwhile.
template <typename T, bool MASKED, u32 READS = FOLDED / 2>
struct LogitGroups {
    static constexpr u32 N = Pack<T>::N;
    // Lanes that share a group, and groups that a warp reads at once.
    static constexpr u32 LANES = GROUP / N;
    static constexpr u32 AT_ONCE = WARP / LANES;
    static constexpr u32 READ = READS;
    static constexpr u32 SIZE = GROUP;
    // Groups whose tokens a race reads at once (race_lead.cuh). A row of 151,936 f32 takes 7.8 us on an H100, and
    // 8.0 with two.
    static constexpr u32 RACE_AT_ONCE = 4;

    using Raw = T;
    using Picked = T;
    using How = LargestOfRow<T, MASKED>;
    using Value = typename How::Value;

    const T* row;
    // A bit for each, where MASKED.
    const u32* mask;
    u32 vocab;

    INLINE bool allowed(u32 token) const {
        return !MASKED || (mask[token / 32] >> token % 32 & 1) != 0;
    }

    // A logit as it counts: negative infinity where it is NaN or not allowed; NaN beyond the row.
    INLINE float entry(u32 token) const {
        return token < vocab ? counted(token, to_f32(row[token])) : nothing();
    }

    // A logit as it is; of a token beyond the row, that of the last token. Without a branch, so that no load waits
    // for another.
    INLINE T raw(u32 token) const { return row[min(token, vocab - 1)]; }

    // `entry` of a token whose logit is `raw`.
    INLINE float entry_of(u32 token, T raw) const {
        return token < vocab ? counted(token, to_f32(raw)) : nothing();
    }

    // As a token's logit x counts.
    INLINE float counted(u32 token, float x) const {
        return allowed(token) ? fmaxf(x, negative_infinity()) : negative_infinity();
    }

    // Groups from .. to are read 16 bytes a lane up to this one: all that are whole, if the row is aligned.
    INLINE u32 streamed(u32 from, u32 to) const {
        const bool aligned = reinterpret_cast<u64>(row) % 16 == 0;
        return aligned ? max(from, min(to, vocab / GROUP)) : from;
    }

    // visit(group, its largest) in one lane for each group from .. to, or in two neighbours. Returns the lane's
    // share of the largest logit that is there, whatever the mask: NaN if some logit is NaN. see(logits, there)
    // has every logit of a row without a mask once, in some lane, as it is; where not `there`, the lane has seen
    // these logits or never will. Before some logits, see.begin(top) says whether they need be seen: those that
    // are numbers are `top` at most. meanwhile(group) is called each time the logits from `group` on are on their
    // way; then `pick` has those that are read 16 bytes a lane (picks.cuh).
    template <typename Visit, typename See = Unseen, typename Meanwhile = Idle, typename Pick = Unpicked>
    INLINE float survey(u32 from, u32 to, u32 lane, Visit&& visit, See&& see = See{},
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
                // Beyond the end any values will do: nobody visits them.
                if (read > 0 && first >= whole) {
#pragma unroll
                    for (u32 i = 0; i < READ; ++i) tops[read + i] = tops[i];
                    continue;
                }
                Pack<T> packs[READ];
#pragma unroll
                for (u32 i = 0; i < READ; ++i) packs[i] = stream_pack(own + group_of(first, i, lane, whole) * GROUP);
                if (read == 0) meanwhile(base);
                const auto wanted = pick(first);
#pragma unroll
                for (u32 i = 0; i < READ; ++i) wanted(i, [&](u32) { return packs[i].raw; });
#pragma unroll
                for (u32 i = 0; i < READ; ++i) {
                    tops[read + i] = top_of(packs[i], group_of(first, i, lane, whole), lane, raw);
                }
                if constexpr (!same<See, Unseen>) {
                    static_assert(!MASKED);
                    Value top = tops[read];
#pragma unroll
                    for (u32 i = 1; i < READ; ++i) top = How::larger(top, tops[read + i]);
                    if (!see.begin(How::number(top))) continue;
#pragma unroll
                    for (u32 i = 0; i < READ; ++i) {
                        if (first + i * AT_ONCE >= whole) break;
                        float values[N];
#pragma unroll
                        for (u32 j = 0; j < N; ++j) values[j] = to_f32(packs[i].items[j]);
                        see(values, first + i * AT_ONCE + lane / LANES < whole);
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
            if constexpr (!same<See, Unseen>) {
                if (!see.begin(top.counts)) continue;
                for (u32 token = group * GROUP + lane; token < min(vocab, (group + 1) * GROUP); token += WARP) {
                    const float values[1] = {to_f32(row[token])};
                    see(values, true);
                }
            }
        }
        return raw;
    }

private:
    // The group of which a lane reads 16 bytes, or, past the end, the last group: loads without branches are
    // all in flight.
    INLINE static u32 group_of(u32 first, u32 i, u32 lane, u32 whole) {
        return min(first + i * AT_ONCE + lane / LANES, whole - 1);
    }

    // The largest of the 16 bytes that a lane has of a group.
    INLINE Value top_of(const Pack<T>& pack, u32 group, u32 lane, float& raw) const {
        if constexpr (MASKED) {
            const u32 token = lane % LANES * N;
            const u32 bits = mask[group * 2 + token / 32] >> token % 32;
            float top = negative_infinity();
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                const float x = to_f32(pack.items[j]);
                raw = max_or_nan(raw, x);
                // The larger one is the number, where one is.
                if (bits >> j & 1) top = fmaxf(top, x);
            }
            return top;
        } else {
            return How::of(pack);
        }
    }

    template <typename Visit>
    INLINE void visit_folded(Value (&tops)[FOLDED], u32 base, u32 whole, u32 lane, float& raw, Visit&& visit) const {
        const u32 place = fold<LANES, How>(tops, lane);
        const u32 group = base + place * AT_ONCE + lane / LANES;
        float top = How::number(tops[0]);
        if constexpr (!MASKED) {
            raw = max_or_nan(raw, top);
            // Rare: the largest number of a group that has a NaN.
            u32 odd = __ballot_sync(ALL_LANES, top != top);
#pragma unroll 1
            for (; odd != 0; odd &= odd - 1) {
                const u32 owner = __ffs(odd) - 1;
                const u32 its = min(__shfl_sync(ALL_LANES, group, owner), whole - 1);
                const float number = top_of_group(*this, its, lane).counts;
                if (lane == owner) top = number;
            }
        }
        if (group < whole) visit(group, top);
    }
};
