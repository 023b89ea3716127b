// The parts that all kernels of sample_logits share: the options of a row's request, the conversion
// of logits to weights, and the race between tokens.
#pragma once

#include "logit_groups.cuh"
#include "params/sample_logits.cuh"

// The sort key of negative infinity.
constexpr u32 LOWEST_KEY = 0x007FFFFFu;
constexpr u64 ONE = 1ull << 40;

// ---- weights --------------------------------------------------------------------

// A weight in units of 2^-40, as exact::fixed_probability computes it, split into 20 high and 20
// low bits. Adding 2^23 with rounding down leaves each part in the low bits of a float's mantissa,
// and every operation is exact. The upper bits of each float are the constant SPLIT_BITS.
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

// exact::exp for an argument whose result is converted to units of 2^-40: for an argument below
// -87, and for NaN, any result below one unit is correct.
INLINE float exp_of_units(float t) {
    const float clamped = fmaxf(t, exact::EXP_MIN);
    const float shifted = exact::add(exact::mul(clamped, 1.44269504088896340736f), 12582912.0f);
    const float n = exact::sub(shifted, 12582912.0f);
    // The product is exact, so that fusing it does not change the rounding.
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

// The natural logarithm of a weight in units of 2^-40, with an error of at most 1e-4.
INLINE float log_weight(u64 units) {
    return (approximate_log2(static_cast<float>(units)) - 40.0f) * 0.693147182f;
}

// Converts logits to weights, as exact::sampling does.
struct Scale {
    float largest;
    float inverse;

    INLINE float below(float x) const { return exact::mul(exact::sub(x, largest), inverse); }

    // The weight of a logit; 0 for an absent entry.
    INLINE float weight(float x) const { return x == largest ? 1.0f : exact::exp(below(x)); }

    // A logit such that any smaller logit weighs less than `floor` units.
    INLINE float least_entry(u64 floor) const { return entry_below(log_weight(floor)); }

    // A logit such that the logarithm of the weight of any smaller logit is less than `t`: the
    // logit with that weight, minus the errors of approximate functions and roundings.
    INLINE float entry_below(float t) const {
        const float entry = largest + __fdividef(t - 1e-3f, inverse);
        // Two keys below that of the lowest number would be NaN.
        return fmaxf(exact::value_of_key(exact::sort_key(entry) - 2), negative_infinity());
    }

    INLINE u64 fixed(float x) const {
        const float t = x == largest ? 0.0f : below(x);
        return Split(exp_of_units(t)).fixed();
    }
};

// ---- rows -----------------------------------------------------------------------

// Sets flags of a row.
template <typename T>
INLINE void raise_of(const Params<T>& p, u32 row, u32 bits) {
    raise(p.flags, bits);
    if (p.row_flags != nullptr && bits != 0) atomicOr(p.row_flags + row, bits);
}

// True if a row is padding. No other input of such a row is read.
INLINE bool is_padding(const Integers& of_rows, u32 row) {
    return of_rows.data != nullptr && of_rows[row] == -1;
}

// Writes the outputs of a row that is padding. By all blocks of the row's cluster.
template <typename T>
__device__ __noinline__ void write_padding(const Params<T>& p, u32 row, Cluster blocks) {
    if (blocks.rank == 0 && threadIdx.x < p.draws) {
        p.tokens.set(row, threadIdx.x, -1);
        if (p.processed_logprobs.data != nullptr) {
            p.processed_logprobs[row][threadIdx.x] = negative_infinity();
        }
    }
    if (p.probs.data == nullptr) return;
    for (u32 i = blocks.rank * blockDim.x + threadIdx.x; i < p.vocab;
         i += blocks.size * blockDim.x) {
        p.probs[row][i] = 0.0f;
    }
}

// ---- requests -------------------------------------------------------------------

// The options of a row's request. Asynchronous copies load them into shared memory while the row is
// read, so that they take no registers meanwhile.
struct Request {
    u64 seed;
    // Only the low half is loaded if positions have 32 bits.
    i64 position;
    float temperature;
    float top_p;
    float min_p;
    i32 top_k;

    // Starts to load the options of plain rows: all except top_k and top_p. By one thread. A word
    // is either stored or copied, never both: a copy is not ordered after a store of the same
    // thread to the same address.
    template <typename T>
    INLINE void fetch_plain(const Params<T>& p, u32 row) {
        fetch_of(p, row, [](u64, bool) {});
    }

    // Starts to load all options. By one thread.
    template <typename T>
    INLINE void fetch(const Params<T>& p, u32 row) {
        fetch_of(p, row, [&](u64 at, bool known) {
            copy_or(&top_k, p.top_k, at, known, 0);
            copy_or(&top_p, p.top_p, at, known, 1.0f);
        });
    }

    // Waits for the copies. By the thread that started them, before the barrier after which all
    // threads may read.
    INLINE static void arrive() { await_copies(); }

    // True if a token is drawn; false if the most likely token is taken.
    INLINE bool draws() const { return temperature > 0.0f; }
    INLINE float inverse() const { return inverse_of(temperature); }
    template <typename T>
    INLINE Draw draw(const Params<T>& p) const {
        return Draw(seed, p.positions.wide ? position : static_cast<i32>(position),
                    Purpose::SAMPLE);
    }

private:
    // Calls fetch_filters(request, whether the request exists) to load top_k and top_p.
    template <typename T, typename Filters>
    INLINE void fetch_of(const Params<T>& p, u32 row, Filters&& fetch_filters) {
        if (p.positions.wide) {
            copy_async(&position, static_cast<const i64*>(p.positions.data) + row);
        } else {
            copy_async(reinterpret_cast<i32*>(&position),
                       static_cast<const i32*>(p.positions.data) + row);
        }
        // A negative number becomes a large one, which is not below p.requests.
        const u64 at = p.of_rows.data == nullptr ? row : static_cast<u64>(p.of_rows[row]);
        const bool known = at < p.requests;
        if (known) {
            copy_async(&temperature, p.temperature + at);
            copy_async(&seed, p.seeds + at);
        } else {
            temperature = __uint_as_float(0x7FC00000u);
            seed = 0;
        }
        fetch_filters(at, known);
        copy_or(&min_p, p.min_p, at, known, 0.0f);
    }

    // Copies a word, or stores `absent` if there is no such word.
    template <typename W>
    INLINE static void copy_or(W* to, const W* from, u64 at, bool known, W absent) {
        if (known && from != nullptr) {
            copy_async(to, from + at);
        } else {
            *to = absent;
        }
    }
};

// The options of a request in the form that the kernel uses.
struct Options {
    float inverse;
    // 0 if there is no top-k.
    u32 top_k;
    // In units of 2^-32; 2^32 if there is no top-p.
    u64 top_p;
    // The least weight that min-p keeps.
    u64 floor;
    u32 bits;
    bool greedy;

    INLINE Options() {}

    // The options of a plain row.
    INLINE explicit Options(const Request& r)
        : inverse(1.0f), top_k(0), top_p(1ull << 32), floor(0), bits(0), greedy(true) {
        if (!(r.temperature >= 0.0f)) bits = BAD_LENGTHS;
        if (!r.draws()) return;
        greedy = false;
        inverse = r.inverse();
        if (r.min_p != r.min_p) bits = BAD_LENGTHS;
        floor = r.min_p != r.min_p ? ONE : exact::fixed_probability(r.min_p);
    }

    INLINE Options(const Request& r, u32 vocab) : Options(r) {
        if (greedy) return;
        top_k = static_cast<u32>(max(r.top_k, 0));
        if (top_k >= vocab) top_k = 0;
        if (r.top_p != r.top_p) bits = BAD_LENGTHS;
        // NaN counts as a top-p of 0.
        if (!(r.top_p >= 1.0f)) {
            top_p = r.top_p > 0.0f ? __float2ull_rz(exact::mul(r.top_p, 4294967296.0f)) : 0;
        }
    }
};

// ---- the race -------------------------------------------------------------------

// Racers (race.cuh) whose weights are those of logits. A token races if its weight is at least
// `floor` units, its entry at least `least`, and filter(x, token) is true. `Row` provides the
// entries.
template <typename Row, typename Filter>
struct Racers {
    using Raw = typename Row::Raw;
    static constexpr u32 AT_ONCE = Row::RACE_AT_ONCE;

    Draw draw;
    Row row;
    Scale scale;
    u64 floor;
    float least;
    // The logarithm of a weight such that any lighter token is surely below the floor, whatever the
    // errors of the approximate logarithm and of exact::exp.
    float lightest;
    Filter filter;

    INLINE Racers(const Draw& random, const Row& of_row, const Scale& weights, u64 least_weight,
                  float least_entry, const Filter& of_filter)
        : draw(random),
          row(of_row),
          scale(weights),
          floor(max(least_weight, 1ull)),
          least(least_entry),
          lightest(log_weight(floor) - 1e-3f),
          filter(of_filter) {}

    INLINE float entry(u32 token) const { return row.entry(token); }
    INLINE Raw raw(u32 token) const { return row.raw(token); }
    INLINE float entry_of(u32 token, Raw raw) const { return row.entry_of(token, raw); }

    INLINE float slowness_bound(float top) const {
        const float t = top == scale.largest ? 0.0f : scale.below(top);
        // Both comparisons are false for NaN.
        if (!(t >= lightest) || !(top >= least)) return infinity();
        return approximate_exp2(t * -1.44269504f) * BOUND_SLACK;
    }

    INLINE float slowness_above(u32 token, float x) const {
        const float t = x == scale.largest ? 0.0f : scale.below(x);
        // With this margin, the token's weight is surely at least the floor.
        if (!(x == scale.largest || t >= lightest + 4e-3f) || !filter(x, token)) return infinity();
        return approximate_exp2(t * -1.44269504f) * ABOVE_SLACK;
    }

    // An entry such that a token with a smaller entry, and with at least this noise, does not
    // finish by `time`.
    INLINE float least_entry(float noise, float time) const {
        // If `time` is 0 or NaN, the bound is that of the latest time.
        const float t = (approximate_log2(noise) - approximate_log2(time)) * 0.693147182f;
        return fmaxf(scale.entry_below(fmaxf(t, lightest)), least);
    }

    // A token's slowness with an error of 2^-18, infinite if the token does not race. Sets `sure`
    // to whether the token surely races.
    INLINE float about_slowness(u32 token, float x, bool& sure) const {
        const float t = x == scale.largest ? 0.0f : scale.below(x);
        if (!(t >= lightest) || !(x >= least) || !filter(x, token)) return infinity();
        sure = x == scale.largest || t >= lightest + 4e-3f;
        return approximate_exp2(t * -1.44269504f);
    }

    // An upper bound of the slowness of a token that passes the filter, infinite if the token may
    // not race.
    INLINE float sure_slowness(float x) const {
        const float t = x == scale.largest ? 0.0f : scale.below(x);
        if (!(x == scale.largest || t >= lightest + 4e-3f) || !(x >= least)) return infinity();
        return approximate_exp2(t * -1.44269504f) * ABOVE_SLACK;
    }

    INLINE u64 finish(u32 token, float x, float noise) const {
        if (!filter(x, token) || scale.fixed(x) < floor) return NEVER;
        const float slowness = x == scale.largest ? 1.0f : exact::exp(-scale.below(x));
        return finish_at(exact::mul(noise, slowness), token);
    }
};

// Keeps every token of the row. (Beyond the row, entries are NaN.)
struct NoFilter {
    INLINE bool operator()(float x, u32) const { return x == x; }
};

// Finds the largest logits of groups begin .. end again, if there was no room for those of all
// groups.
template <typename Row>
__device__ __noinline__ void resurvey(Row row, float* tops, u32 begin, u32 end, u32 lane) {
    row.survey(begin, end, lane, [&](u32 group, float its) { tops[group - begin] = its; });
    __syncwarp();
}

// The lowest token, among groups begin .. end, whose logit equals the row's largest logit; NONE if
// there is none. `tops` has the largest logit of each group. By a warp.
template <typename Row>
INLINE u32 first_equal(const Row& row, const float* tops, u32 begin, u32 end, u32 lane,
                       float largest) {
#pragma unroll 1
    for (u32 base = begin; base < end; base += WARP) {
        const bool has = base + lane < end && tops[base + lane - begin] == largest;
        const u32 those = __ballot_sync(ALL_LANES, has);
        if (those == 0) continue;
        const u32 token = (base + __ffs(those) - 1) * GROUP + lane;
        const u32 second = row.entry(token + WARP) == largest ? token + WARP : NONE;
        return __reduce_min_sync(ALL_LANES, row.entry(token) == largest ? token : second);
    }
    return NONE;
}

// The lowest token that the mask allows; 0 if it allows none.
template <typename T>
__device__ __noinline__ u32 lowest_allowed(const Params<T>& p, u32 row, u32 lane) {
    if (p.mask.data == nullptr) return 0;
    const u32* const mask = p.mask[row];
    const u32 words = (p.vocab + 31) / 32;
    for (u32 first = 0; first < words; first += WARP) {
        const u32 bits = first + lane < words ? mask[first + lane] : 0;
        const u32 set = __ballot_sync(ALL_LANES, bits != 0);
        if (set == 0) continue;
        const u32 owner = __ffs(set) - 1;
        const u32 token = (first + owner) * 32 + __ffs(__shfl_sync(ALL_LANES, bits, owner)) - 1;
        // The last word may have bits beyond the vocabulary.
        return token < p.vocab ? token : 0;
    }
    return 0;
}
