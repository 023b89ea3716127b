// sample_logits: the next token of each row of logits.
//
// A team of blocks owns a row (select.cuh). It reads the row, masked, and finds the
// largest logit on the way; a greedy row ends here. Then each warp sums up the weights
// of its piece, in units of 2^-40: integers, so their order is free. The block with the
// piece in which the running sum passes the random threshold searches that for the
// token. Filters come in between: top-k and top-p each cut the row (`select`), min-p is
// a comparison; a small top-k sends what can be among the first k to one block.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s.
// A single row is latency: the row, a meeting for the largest logit, one for the
// sums, the search. Above some hundred rows it is arithmetic: 34 instructions an entry
// for its weight, of which 23 are exact::exp.
#include "ids.cuh"
#include "philox.cuh"
#include "select.cuh"

template <typename T>
struct Params {
    Rows<const T> logits;
    Integers positions;
    const float* temperature;
    const u64* seeds;
    const i32* top_k;
    const float* top_p;
    const float* min_p;
    Integers of_rows;
    Rows<const u32> mask;
    IntegerRows tokens;
    Rows<float> probs;
    float* logprobs;
    u32* flags;
    u64 requests;
    u32 vocab;
    u32 min_p_first;
    // Whether a row's pieces fit shared memory.
    u32 cached;
    u32 reserved;
};
static_assert(sizeof(Params<float>) == 184);

constexpr u32 LOWEST_KEY = 0x007FFFFFu;
constexpr u64 ONE = 1ull << 40;

// The larger one; none where either is none.
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

// exact::exp for what is turned into units of 2^-40: what lies below -87, and NaN,
// may be anything that is none.
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
    // What weighs less is nothing.
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
            const float x = fmaxf(values[j], minus_infinity());
            entries[j] = bits >> j & 1 ? x : minus_infinity();
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
                    entries[j] = in ? fmaxf(values[j], minus_infinity()) : minus_infinity();
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
using LogitRow = Entered<T, Masked<T>>;

// ---- requests -------------------------------------------------------------------

// What a row's request says, all loads in flight at once and before the row's.
struct Request {
    float temperature;
    float top_p;
    float min_p;
    i32 top_k;
    u64 seed;
    i64 position;

    template <typename T>
    INLINE Request(const Params<T>& p, u32 row)
        : temperature(__uint_as_float(0x7FC00000u)), top_p(1.0f), min_p(0.0f), top_k(0), seed(0),
          position(p.positions[row]) {
        // Negative ones are large here.
        const u64 at = p.of_rows.data == nullptr ? row : static_cast<u64>(p.of_rows[row]);
        if (at >= p.requests) return;
        temperature = p.temperature[at];
        seed = p.seeds[at];
        if (p.top_k != nullptr) top_k = p.top_k[at];
        if (p.top_p != nullptr) top_p = p.top_p[at];
        if (p.min_p != nullptr) min_p = p.min_p[at];
    }
};

// What it means.
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

// The warp's sum of all weights of its piece.
template <typename Row>
INLINE u64 sum_all(const Row& row, u32 lane, const Scale& scale) {
    u64 total = 0;
    if (!exact::finite(scale.largest)) {
        row.each(lane, [&](const float(&entries)[Row::N], u32) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += entries[j] == scale.largest ? ONE : 0;
        });
        return warp_sum(total);
    }
    const auto add = [&](const float(&entries)[Row::N], u32) {
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
    };
    // Eight entries at once.
    if (row.is_read_again()) {
        row.template each_again<8 / Row::N>(lane, add);
    } else {
        row.template each<2>(lane, add);
    }
    return warp_sum(total);
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
        if (all()) return sum_all(row, lane, scale);
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
    float result = minus_infinity();
    if (x > minus_infinity()) {
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

// ---- the kernel -----------------------------------------------------------------

// What a selection weighs: 1 an entry, or its weight.
struct Weigher {
    Kept kept;
    bool counts;

    INLINE u64 operator()(float x, u32 key, u32 index) const {
        if (counts) return 1;
        return kept.cut.keeps(key, index) ? kept.scale.fixed(x) : 0;
    }

    INLINE u64 of(u32 key) const { return counts ? 1 : kept.scale.fixed(value_of(key)); }

    template <typename Row>
    INLINE void add(Selection& s, u32 lane, const Row& row, const Linear& linear) const {
        constexpr u32 N = Row::N;
        if (counts) {
            const auto ones = [](const float(&entries)[N], u32, u64(&weights)[N]) {
                bool any = false;
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    weights[j] = entries[j] == entries[j] ? 1 : 0;
                    any = any || weights[j] != 0;
                }
                return any;
            };
            add_row(s, lane, row, linear, ones);
        } else {
            const FloatCut by(kept.cut);
            const auto shares = [&](const float(&entries)[N], u32 first, u64(&weights)[N]) {
                return kept.vector(by, entries, first, weights);
            };
            add_row(s, lane, row, linear, shares);
        }
    }
};

// What is left of a row after its filters, and the sum of it: cut by top-k, then by
// top-p, whatever of that is asked for, and rid of what min-p drops.
struct Filtered {
    Kept kept;
    Team::Sums sums;
};

// A small top_k: what can be among the first k is sent to the block that leads, which
// does the rest alone: sorts it by counting, cuts, and draws.
struct Few {
    // Each block may send a share of them.
    static constexpr u32 MOST = SELECT_THREADS;
    static constexpr u32 MOST_K = 128;
    static_assert(MOST_K <= MOST_PIECES / 2);

    // Key, then inverse index: the larger comes first. As sent, in a row, sorted.
    u64 sent[MOST];
    u64 list[MOST];
    u64 sorted[MOST_K];
    // What is left of each, in that order.
    u64 weights[MOST_K];
    u32 listed;
    // In each block: the key from which on is sent, and how many were.
    u32 bound;
    u32 count;
    // What came of it.
    u64 total;
    Cut cut;

    INLINE static bool serves(u32 k) { return k > 0 && k <= MOST_K; }
};

// A key that at least k of the largest that were told, the high halves, reach: the
// k-th of them, or a little less. By one warp.
INLINE u32 reached_by(const Team& team, u32 k, u32 largest) {
    constexpr u32 EACH = MOST_PIECES / WARP;
    // Counts of three keys in one word.
    constexpr u32 FIELD = 10;
    static_assert(MOST_PIECES < 1 << FIELD);
    u32 keys[EACH];
    u32 own = NONE;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) {
        keys[j] = static_cast<u32>(team.told(j * WARP + team.lane) >> 32);
        own = min(own, keys[j]);
    }
    // All reach the smallest of them.
    u32 low = __reduce_min_sync(ALL_LANES, own);
    u32 high = largest;
    // Each step leaves a quarter of the range; more than these find little.
#pragma unroll 1
    for (u32 step = 0; step < 5 && low < high; ++step) {
        const u64 range = high - low;
        const u32 first = low + static_cast<u32>((range + 3) / 4);
        const u32 second = low + static_cast<u32>((2 * range + 3) / 4);
        const u32 third = low + static_cast<u32>((3 * range + 3) / 4);
        u32 counts = 0;
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            if (keys[j] >= first) counts += 1;
            if (keys[j] >= second) counts += 1 << FIELD;
            if (keys[j] >= third) counts += 1 << 2 * FIELD;
        }
        counts = __reduce_add_sync(ALL_LANES, counts);
        constexpr u32 MASK = (1 << FIELD) - 1;
        if (counts >> 2 * FIELD >= k) {
            low = third;
        } else if ((counts >> FIELD & MASK) >= k) {
            low = second;
            high = third - 1;
        } else if ((counts & MASK) >= k) {
            low = first;
            high = second - 1;
        } else {
            high = first - 1;
        }
    }
    return low;
}

// Sends this warp's entries from `bound` on to the block that leads. Returns how many
// there are of all; 0 where a block has too many.
template <typename Row>
INLINE u32 send_few(Few& few, Team& team, const Row& row, u32 own_key) {
    const u32 room = Few::MOST / team.blocks.size;
    if (own_key >= few.bound) {
        const float least = value_of(few.bound);
        u64* const sent = team.blocks.of(few.sent, 0) + team.blocks.rank * room;
        const auto send = [&](const float(&entries)[Row::N], u32 first) {
            u32 those = 0;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) those |= entries[j] >= least ? 1u << j : 0u;
            if (those == 0) return;
            u32 place = atomicAdd(&few.count, __popc(those));
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                if ((those >> j & 1) == 0) continue;
                const u64 key = exact::sort_key(entries[j]);
                if (place < room) sent[place] = key << 32 | (NONE - (first + j));
                place += 1;
            }
        };
        // Halves come no faster that way.
        if (Row::N == 4 && row.is_read_again()) {
            row.template each_again<4>(team.lane, send);
        } else {
            row.template each<2>(team.lane, send);
        }
    }
    __syncthreads();
    team.tell(few.count);
    const u32 its = team.lane < team.blocks.size
                        ? static_cast<u32>(team.told(team.lane * SELECT_WARPS))
                        : 0;
    const u32 sum = __reduce_add_sync(ALL_LANES, its);
    return __reduce_max_sync(ALL_LANES, its) > room ? 0 : sum;
}

// The block that leads sorts what was sent: the first k of `count`.
INLINE void sort_few(Few& few, const Team& team, u32 count, u32 k) {
    // In any order at first.
    const u32 room = Few::MOST / team.blocks.size;
    const bool there = threadIdx.x % room < team.told(threadIdx.x / room * SELECT_WARPS);
    if (there) few.list[atomicAdd(&few.listed, 1u)] = few.sent[threadIdx.x];
    __syncthreads();
    // Neighbouring lanes share an entry and compare it with a part of the others each.
    u32 lanes = 1;
    while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
    const u32 entry = threadIdx.x / lanes;
    const u64 own = entry < count ? few.list[entry] : 0;
    u32 rank = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x % lanes; i < count; i += lanes) rank += few.list[i] > own;
    for (u32 o = 1; o < lanes; o *= 2) rank += __shfl_xor_sync(ALL_LANES, rank, o);
    if (entry < count && rank < k) few.sorted[rank] = own;
    __syncthreads();
}

// Cuts what was sorted by top-p and drops what min-p drops. By one warp.
INLINE void cut_few(Few& few, u32 lane, const Options& options, const Scale& scale) {
    constexpr u32 EACH = Few::MOST_K / WARP;
    // A lane has some neighbours of the order.
    u64 entries[EACH];
    u64 weights[EACH];
    u64 own = 0;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) {
        const u32 rank = lane * EACH + j;
        entries[j] = rank < options.top_k ? few.sorted[rank] : 0;
        const u32 key = static_cast<u32>(entries[j] >> 32);
        weights[j] = rank < options.top_k ? scale.fixed(value_of(key)) : 0;
        own += weights[j];
    }
    const u64 through = warp_inclusive_sum(own, lane);
    u64 limit = ~0ull;
    if (options.top_p < 1ull << 32) {
        const u64 sum = __shfl_sync(ALL_LANES, through, WARP - 1);
        limit = max(__umul64hi(sum, options.top_p << 32), static_cast<u64>(1));
    }
    u64 before = through - own;
    u64 left = 0;
    u64 last = ~0ull;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) {
        const bool stays = lane * EACH + j < options.top_k && before < limit;
        before += weights[j];
        if (stays) last = entries[j];
        if (!stays || weights[j] < options.floor) weights[j] = 0;
        left += weights[j];
        few.weights[lane * EACH + j] = weights[j];
    }
    const u64 total = warp_sum(left);
    // The last of the order that stays: entries descend.
    const u32 last_key = __reduce_min_sync(ALL_LANES, static_cast<u32>(last >> 32));
    const bool has_last = static_cast<u32>(last >> 32) == last_key;
    const u32 last_inverse =
        __reduce_max_sync(ALL_LANES, has_last ? NONE - static_cast<u32>(last) : 0);
    if (lane == 0) {
        few.total = total;
        few.cut = {last_key, last_inverse + 1};
    }
}

// Draws from what is left. Returns the token in the thread that has it, NONE in the
// others.
INLINE u32 draw_few(const Few& few, u32 k, u64 random) {
    // Neighbouring lanes add up a part of what lies before an entry each.
    constexpr u32 LANES = SELECT_THREADS / Few::MOST_K;
    const u32 entry = threadIdx.x / LANES;
    const u32 own = entry < k ? static_cast<u32>(few.sorted[entry]) : 0;
    u64 before = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x % LANES; i < k; i += LANES) {
        // The larger inverse is the lower index.
        before += static_cast<u32>(few.sorted[i]) > own ? few.weights[i] : 0;
    }
#pragma unroll
    for (u32 o = 1; o < LANES; o *= 2) before += __shfl_xor_sync(ALL_LANES, before, o);
    const u64 threshold = exact::sample_threshold(random, few.total);
    const bool drawn = entry < k && threadIdx.x % LANES == 0 && before <= threshold &&
                       threshold - before < few.weights[entry];
    return drawn ? NONE - own : NONE;
}

template <typename Row>
INLINE Filtered filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    Kept kept = {scale, Cut{0, 0}, 0};
    // Beyond 28 temperatures below the largest, nothing weighs anything.
    const Linear linear = {scale.largest, exact::mul(scale.inverse, (SELECT_BINS - 1) / 28.0f)};
    const bool by_share = options.top_p < 1ull << 32;
    // One loop, so that there is one copy of the code.
#pragma unroll 1
    for (u32 step = options.top_k > 0 ? 0 : 1; step < 2; ++step) {
        if (step == 1 && !by_share) break;
        const bool counts = step == 0;
        kept.cut = select(selection, team, row, kept.cut, linear, Weigher{kept, counts},
                          [&](u64 sum) {
                              if (counts) return static_cast<u64>(options.top_k);
                              const u64 share = __umul64hi(sum, options.top_p << 32);
                              return max(share, static_cast<u64>(1));
                          });
    }
    kept.floor = options.floor;
    team.tell(kept.sum(row, team.lane));
    return {kept, team.sum_told()};
}

union Shared {
    Selection selection;
    Few few;

    INLINE Shared() {}
};

template <typename T>
INLINE void sample(const Params<T>& p) {
    constexpr u32 N = Pack<T>::N;
    extern __shared__ float4 space[];
    __shared__ Team::Shared told;
    __shared__ Shared shared;
    Team team(told);
    team.blocks.arrive();
    const u32 index = blockIdx.x / team.blocks.size;
    const Request request(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team,
                    p.cached != 0 ? reinterpret_cast<float*>(space) : nullptr,
                    Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});

    // The largest logit of those allowed, and of all.
    float top = minus_infinity();
    float raw_top = minus_infinity();
    bool odd = false;
    if (mask == nullptr) {
        // One of what is not a number makes it none.
        const auto visit = [&](const float(&values)[N], const float(&)[N], u32 first, bool whole) {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (whole || first + j < p.vocab) top = max_or_nan(top, values[j]);
            }
        };
        row.template enter<true>(team.lane, visit);
        odd = !(top <= LARGEST);
        if (__any_sync(ALL_LANES, top != top)) {
            top = minus_infinity();
            row.remake_cached(team.lane, [&](float(&entries)[N], u32 first) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (first + j < p.vocab) entries[j] = fmaxf(entries[j], minus_infinity());
                }
            });
            row.each(team.lane, [&](const float(&entries)[N], u32) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) top = fmaxf(top, entries[j]);
            });
        }
        raw_top = top;
    } else {
        const auto visit = [&](const float(&values)[N], const float(&entries)[N], u32 first,
                               bool whole) {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                // Nothing is never the larger one.
                top = fmaxf(top, entries[j]);
                raw_top = fmaxf(raw_top, values[j]);
                odd |= !(values[j] <= LARGEST) && (whole || first + j < p.vocab);
            }
        };
        row.template enter<false>(team.lane, visit);
    }
    if (__any_sync(ALL_LANES, odd) && team.lane == 0) raise(p.flags, NON_FINITE);
    const u32 own_key = __reduce_max_sync(ALL_LANES, key_of(top));
    const Options options(request, p.vocab);
    const u64 random = Draw(request.seed, request.position, Purpose::SAMPLE).bits();
    team.blocks.wait();
    team.tell_largest(key_of(top), key_of(raw_top));
    u32 key = 0;
    u32 raw_key = 0;
    // The first of what was told that is the largest.
    u32 told_first = 0;
#pragma unroll
    for (u32 i = 0; i < MOST_PIECES; i += WARP) {
        const u64 pair = team.told(i + team.lane);
        const u32 its = static_cast<u32>(pair >> 32);
        if (its > key) told_first = i + team.lane;
        key = max(key, its);
        raw_key = max(raw_key, static_cast<u32>(pair));
    }
    const u32 largest_key = __reduce_max_sync(ALL_LANES, key);
    told_first = __reduce_min_sync(ALL_LANES, key == largest_key ? told_first : NONE);
    const u32 first_piece = team.piece_of(told_first);
    const float raw_largest = value_of(__reduce_max_sync(ALL_LANES, raw_key));
    const float largest = value_of(largest_key);
    const bool leads = team.piece() == 0 && team.lane == 0;

    const bool few = !options.greedy && Few::serves(options.top_k);
    if (few) {
        if (team.warp == 0) {
            const u32 bound = reached_by(team, options.top_k, largest_key);
            if (team.lane == 0) {
                shared.few.bound = bound;
                shared.few.listed = 0;
                shared.few.count = 0;
            }
        }
        __syncthreads();
    }

    u64 raw_sum = 0;
    if (p.logprobs != nullptr) {
        const Scale plain = {raw_largest, 1.0f};
        team.tell(sum_raw(row, team.lane, plain));
        raw_sum = team.sum_told().all;
    }

    u32 token = NONE;
    if (largest_key <= LOWEST_KEY) {
        token = lowest_allowed(p, index, team.lane);
        if (leads) {
            raise(p.flags, NON_FINITE);
            write_token(p, index, token, raw_largest, raw_sum);
        }
    } else if (options.greedy) {
        if (leads) raise(p.flags, options.bits);
        if (team.has(first_piece)) {
            token = row.find(team, first_piece, 0, [&](float x, u32) {
                return static_cast<u64>(x == largest);
            });
            if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
        }
    } else {
        if (leads) raise(p.flags, options.bits);
        const Scale scale = {largest, options.inverse};
        if (p.min_p_first != 0 && options.floor > 0) {
            row.make.scale = scale;
            row.make.floor = options.floor;
            row.remake_cached(team.lane, [&](float(&entries)[N], u32) { row.make.drop(entries); });
        }
        const u32 sent = few ? send_few(shared.few, team, row, own_key) : 0;
        Filtered filtered;
        if (few && sent >= options.top_k) {
            if (team.blocks.rank == 0) {
                sort_few(shared.few, team, sent, options.top_k);
                if (team.warp == 0) cut_few(shared.few, team.lane, options, scale);
                __syncthreads();
                token = draw_few(shared.few, options.top_k, random);
                if (token != NONE) write_token(p, index, token, raw_largest, raw_sum);
            }
            if (p.probs.data == nullptr) return;
            team.blocks.sync();
            const Few* const there = team.blocks.of(&shared.few, 0);
            filtered = {{scale, there->cut, options.floor}, {0, 0, there->total}};
            // All have read that before the block may end.
            team.blocks.sync();
        } else {
            filtered = filter(shared.selection, team, row, options, scale);
            u64 rest = exact::sample_threshold(random, filtered.sums.all);
            const u32 owner = team.piece_above(filtered.sums, rest);
            if (team.has(owner)) {
                token = row.find(team, owner, rest, filtered.kept);
                if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
            }
        }
        const Kept& kept = filtered.kept;
        const u64 total = filtered.sums.all;
        // For units of 2^-40 instead of 2^-31.
        const float factor = exact::mul(exact::softmax::factor(total), 512.0f);
        write_probs(p, index, row, team.lane, [&](float x, u32 at) {
            return kept(x, at) > 0 ? exact::softmax::score(scale.weight(x), factor) : 0.0f;
        });
        return;
    }
    write_probs(p, index, row, team.lane, [&](float, u32 at) { return at == token ? 1.0f : 0.0f; });
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_##dtype, sample<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
