// What sample_logits does in one pass over a row: logits become entries, entries weights, weights sums;
// and what a request asks of its row.
#pragma once

#include "params/sample_logits.cuh"
#include "philox.cuh"
#include "select.cuh"

constexpr u32 LOWEST_KEY = 0x007FFFFFu;
constexpr u64 ONE = 1ull << 40;

// The larger of two logits; NaN if either is NaN.
INLINE float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// ---- weights --------------------------------------------------------------------

// A weight in units of 2^-40, as exact::fixed_probability has it: 20 bits, then 20.
// Adding 2^23 and rounding down leaves them in the low mantissa bits, and every
// operation is exact. What stands above them is `SPLIT_BITS` in either.
constexpr u32 SPLIT_BITS = 0x4B000000u;

struct Split {
    u32 high;
    u32 low;

    INLINE Split(float weight) {
        constexpr float UNIT = 1048576.0f;
        constexpr float SHIFT = 8388608.0f;
        const float upper = __fmaf_rz(weight, UNIT, SHIFT);
        const float rest = fmaf(weight, UNIT, exact::sub(SHIFT, upper));
        high = __float_as_uint(upper);
        low = __float_as_uint(__fmaf_rz(rest, UNIT, SHIFT));
    }

    INLINE u64 fixed() const {
        return (static_cast<u64>(high - SPLIT_BITS) << 20) + (low - SPLIT_BITS);
    }
};

// exact::exp of an argument whose result is turned into units of 2^-40: for an argument below -87 and
// for NaN, any result below one unit will do.
INLINE float exp_of_units(float t) {
    const float clamped = fmaxf(t, exact::EXP_MIN);
    const float shifted = exact::add(exact::mul(clamped, 1.44269504088896340736f), 12582912.0f);
    const float n = exact::sub(shifted, 12582912.0f);
    // The product is exact: fusing it rounds as before.
    const float near = fmaf(-n, 355.0f / 512.0f, clamped);
    const float r = exact::sub(near, exact::mul(n, -2.1219444e-4f));
    float p = 1.0f / 720.0f;
    p = exact::add(exact::mul(p, r), 1.0f / 120.0f);
    p = exact::add(exact::mul(p, r), 1.0f / 24.0f);
    p = exact::add(exact::mul(p, r), 1.0f / 6.0f);
    p = exact::add(exact::mul(p, r), 0.5f);
    p = exact::add(exact::mul(p, r), 1.0f);
    p = exact::add(exact::mul(p, r), 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// From logits to weights: exact::sampling.
struct Scale {
    float largest;
    float inverse;

    INLINE float below(float x) const { return exact::mul(exact::sub(x, largest), inverse); }

    // 0 for nothing.
    INLINE float weight(float x) const { return x == largest ? 1.0f : exact::exp(below(x)); }

    INLINE u64 fixed(float x) const {
        const float t = x == largest ? 0.0f : below(x);
        return Split(exp_of_units(t)).fixed();
    }
};

// 1 / temperature, cut to 2^-100 .. 2^100.
INLINE float inverse_of(float temperature) {
    const float least = __uint_as_float((127 - 100) << 23);
    const float most = __uint_as_float((127 + 100) << 23);
    const u32 bits = __float_as_uint(fminf(fmaxf(temperature, least), most));
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    const float scale = __uint_as_float((254 - (bits >> 23)) << 23);
    return exact::mul(exact::reciprocal(mantissa), scale);
}

// ---- rows -----------------------------------------------------------------------

// What logits become: what is not allowed, and NaN, is negative infinity.
template <typename T>
struct Masked {
    static constexpr u32 N = Pack<T>::N;

    const u32* mask;
    u32 vocab;
    // An entry of less weight becomes nothing.
    u64 floor;
    Scale scale;

    INLINE bool as_is() const { return mask == nullptr && floor == 0; }

    // Bit j stands for entry first + j, of a whole vector.
    INLINE u32 allowed(u32 first) const {
        if (mask == nullptr) return ALL_LANES;
        const u32 word = first / 32;
        const u32 last = (first + N - 1) / 32;
        return __funnelshift_r(mask[word], mask[last], first % 32);
    }

    INLINE void whole_vector(const float (&values)[N], float (&entries)[N], u32 first) const {
        const u32 bits = allowed(first);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            // The larger one is the number, where one is.
            const float x = fmaxf(values[j], negative_infinity());
            entries[j] = bits >> j & 1 ? x : negative_infinity();
        }
    }

    INLINE void operator()(const float (&values)[N], float (&entries)[N], u32 first) const {
        if (first < vocab && vocab - first >= N) {
            whole_vector(values, entries, first);
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                const u32 index = first + j;
                entries[j] = nothing();
                if (index < vocab) {
                    const bool in = mask == nullptr || (mask[index / 32] >> index % 32 & 1) != 0;
                    entries[j] = in ? fmaxf(values[j], negative_infinity()) : negative_infinity();
                }
            }
        }
        if (floor != 0) drop(entries);
    }

    INLINE void drop(float (&entries)[N]) const {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            if (scale.fixed(entries[j]) < floor) entries[j] = nothing();
        }
    }
};

template <typename T>
using LogitRow = EnteredRow<T, Masked<T>>;

// ---- requests -------------------------------------------------------------------

// What a row's request says. Asynchronous copies bring it to shared memory while the row is read, so
// that it takes no registers meanwhile.
struct Request {
    u64 seed;
    i64 position;
    float temperature;
    float top_p;
    float min_p;
    i32 top_k;

    // By one thread. A word is stored or copied, never both: nothing orders a copy after a store of
    // the same thread to the same place.
    template <typename T>
    INLINE void fetch(const Params<T>& p, u32 row) {
        if (p.positions.wide) {
            copy_async(&position, static_cast<const i64*>(p.positions.data) + row);
        } else {
            position = p.positions[row];
        }
        // Negative ones are large here.
        const u64 at = p.of_rows.data == nullptr ? row : static_cast<u64>(p.of_rows[row]);
        const bool known = at < p.requests;
        if (known) {
            copy_async(&temperature, p.temperature + at);
            copy_async(&seed, p.seeds + at);
        } else {
            temperature = __uint_as_float(0x7FC00000u);
            seed = 0;
        }
        copy_or(&top_k, p.top_k, at, known, 0);
        copy_or(&top_p, p.top_p, at, known, 1.0f);
        copy_or(&min_p, p.min_p, at, known, 0.0f);
    }

    // Waits for the copies. By the thread that fetched, before the barrier after which all may read.
    INLINE static void arrive() { await_copies(); }

private:
    // Copies a word, or stores what stands for an absent one.
    template <typename W>
    INLINE static void copy_or(W* to, const W* from, u64 at, bool known, W absent) {
        if (known && from != nullptr) {
            copy_async(to, from + at);
        } else {
            *to = absent;
        }
    }
};

// What a request means for its row.
struct Options {
    float inverse;
    // 0 for off.
    u32 top_k;
    // In units of 2^-32; 2^32 for off.
    u64 top_p;
    // The least weight that min_p keeps.
    u64 floor;
    u32 bits;
    bool greedy;

    // Whether it may be that not all is kept.
    INLINE bool filters() const { return top_k > 0 || top_p < 1ull << 32 || floor > 0; }

    INLINE Options(const Request& r, u32 vocab)
        : inverse(1.0f), top_k(0), top_p(1ull << 32), floor(0), bits(0), greedy(true) {
        if (!(r.temperature >= 0.0f)) bits = BAD_LENGTHS;
        if (!(r.temperature > 0.0f)) return;
        greedy = false;
        inverse = inverse_of(r.temperature);
        top_k = static_cast<u32>(max(r.top_k, 0));
        if (top_k >= vocab) top_k = 0;
        if (r.top_p != r.top_p || r.min_p != r.min_p) bits = BAD_LENGTHS;
        // NaN is no share at all.
        if (!(r.top_p >= 1.0f)) {
            top_p = r.top_p > 0.0f ? __float2ull_rz(exact::mul(r.top_p, 4294967296.0f)) : 0;
        }
        floor = r.min_p != r.min_p ? ONE : exact::fixed_probability(r.min_p);
    }
};

// ---- sums -----------------------------------------------------------------------

struct NothingMore {
    template <u32 N>
    INLINE void operator()(const float (&)[N], u32) const {}
};

// The warp's sum of all weights of its piece. Where the largest is finite, also(entries,
// index of the first) sees them too.
template <bool MEANWHILE, typename Row, typename Also>
INLINE u64 sum_all(const Row& row, u32 lane, const Scale& scale, Also&& also) {
    u64 total = 0;
    if (!exact::finite(scale.largest)) {
        row.each(lane, [&](const float(&entries)[Row::N], u32) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += entries[j] == scale.largest ? ONE : 0;
        });
        return warp_sum(total);
    }
    const auto add = [&](const float(&entries)[Row::N], u32 first) {
        u32 high = 0;
        u32 low = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            // Of the largest this is 0, and its weight 1.
            const Split split(exp_of_units(scale.below(entries[j])));
            high += split.high;
            low += split.low;
        }
        total += (static_cast<u64>(high - Row::N * SPLIT_BITS) << 20) + (low - Row::N * SPLIT_BITS);
        also(entries, first);
    };
    // Eight entries at once.
    if (row.is_read_again()) {
        row.template each_again<8 / Row::N, MEANWHILE>(lane, add);
    } else {
        row.template each<2>(lane, add);
    }
    return warp_sum(total);
}

// The entry at a place that is known at run time only, without an array in memory.
template <u32 N>
INLINE float pick(const float (&entries)[N], u32 at) {
    float entry = entries[0];
#pragma unroll
    for (u32 j = 1; j < N; ++j) entry = j == at ? entries[j] : entry;
    return entry;
}

// The weights of what filters keep.
struct Kept {
    Scale scale;
    Cut cut;
    u64 floor;

    INLINE bool all() const { return cut.all() && floor == 0; }

    INLINE u64 operator()(float x, u32 index) const {
        if (!cut.keeps(key_of(x), index)) return 0;
        const u64 fixed = scale.fixed(x);
        return fixed >= floor ? fixed : 0;
    }

    // Of neighbours, into `weights`; false where all are 0.
    template <u32 N>
    INLINE bool vector(const FloatCut& by, const float (&entries)[N], u32 first,
                       u64 (&weights)[N]) const {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < N; ++j) those |= by.keeps(entries[j], first + j) ? 1u << j : 0u;
        if (those == 0) return false;
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            const u64 fixed = scale.fixed(entries[j]);
            weights[j] = (those >> j & 1) != 0 && fixed >= floor ? fixed : 0;
        }
        return true;
    }

    template <typename Row>
    INLINE u64 sum(const Row& row, u32 lane) const {
        if (all()) return sum_all<true>(row, lane, scale, NothingMore{});
        const FloatCut by(cut);
        u64 total = 0;
        row.each(lane, [&](const float(&entries)[Row::N], u32 first) {
            u64 weights[Row::N];
            if (!vector(by, entries, first, weights)) return;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += weights[j];
        });
        return warp_sum(total);
    }
};

// The sum of the weights of the logits as they are, whatever the mask, of a piece.
template <typename Row>
INLINE u64 sum_raw(const Row& row, u32 lane, const Scale& scale) {
    u64 total = 0;
#pragma unroll 1
    for (u32 v = row.begin + lane; v < row.end; v += WARP) {
        float values[Row::N];
        u32 first;
        row.read(v, values, first);
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) total += scale.fixed(values[j]);
    }
    return warp_sum(total);
}

// ---- results --------------------------------------------------------------------

// Writes the probabilities of this warp's piece: share(x, index).
template <typename T, typename Share>
INLINE void write_probs(const Params<T>& p, u32 row_index, const LogitRow<T>& row, u32 lane,
                        Share&& share) {
    if (p.probs.data == nullptr) return;
    float* const to = p.probs[row_index];
    row.each(lane, [&](const float(&entries)[LogitRow<T>::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < LogitRow<T>::N; ++j) {
            const u32 index = first + j;
            if (index < p.vocab) to[index] = share(entries[j], index);
        }
    });
}

// Writes a token and what goes with it, in one lane. `sum` is that of the weights of
// the logits as they are, of which `largest` is the largest.
template <typename T>
INLINE void write_token(const Params<T>& p, u32 row, u32 token, float largest, u64 sum) {
    p.tokens.set(row, 0, static_cast<i32>(token));
    if (p.logprobs == nullptr) return;
    const float x = to_f32(p.logits[row][token]);
    float result = negative_infinity();
    if (x > negative_infinity()) {
        const float below = x == largest ? 0.0f : exact::sub(x, largest);
        // The sum is 1 and more: no logarithm of a small number.
        result = below - logf(exact::mul(__ull2float_rn(sum), 1.0f / 1099511627776.0f));
    }
    p.logprobs[row] = result;
}

// The lowest token that the mask allows, else 0.
template <typename T>
INLINE u32 lowest_allowed(const Params<T>& p, u32 row, u32 lane) {
    if (p.mask.data == nullptr) return 0;
    const u32* const mask = p.mask[row];
    const u32 words = (p.vocab + 31) / 32;
    for (u32 first = 0; first < words; first += WARP) {
        const u32 bits = first + lane < words ? mask[first + lane] : 0;
        const u32 set = __ballot_sync(ALL_LANES, bits != 0);
        if (set == 0) continue;
        const u32 owner = __ffs(set) - 1;
        const u32 token = (first + owner) * 32 + __ffs(__shfl_sync(ALL_LANES, bits, owner)) - 1;
        // The last word may have bits that stand for nothing.
        return token < p.vocab ? token : 0;
    }
    return 0;
}
