// sample_logits: the next token of each row of logits.
//
// A team of blocks owns a row (select.cuh). It reads the row once, masked, into its
// shared memory and finds the largest logit on the way; a greedy row ends here. Then
// each warp sums up the weights of its piece, in units of 2^-40: integers, so their
// order is free. The piece in which the running sum passes the random threshold
// searches itself for the token. Filters come in between: top-k and top-p each cut
// the row (`select`), min-p is a comparison.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s.
// A single row is latency: the row, a meeting for the largest logit, one for the
// sums, the search. Above some hundred rows it is arithmetic: some 30 instructions
// an entry for its weight.
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

// ---- weights --------------------------------------------------------------------

// From logits to weights: exact::sampling.
struct Scale {
    float largest;
    float inverse;

    // 0 for nothing.
    INLINE float weight(float x) const {
        const float below = exact::mul(exact::sub(x, largest), inverse);
        return x == largest ? 1.0f : exact::exp(below);
    }

    INLINE u64 fixed(float x) const { return exact::fixed_probability(weight(x)); }
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
        if (floor != 0) again(entries);
    }

    INLINE void again(float (&entries)[N]) const {
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

// The warp's sum of all weights of its piece. The largest weighs 1 by itself, unless it
// is infinite. Weights of 40 bits come 20 at a time: adding 2^23 and rounding down
// leaves them in the low mantissa bits, and every operation is exact.
template <typename Row>
INLINE u64 sum_all(const Row& row, u32 lane, const Scale& scale) {
    constexpr float UNIT = 1048576.0f;
    constexpr float SHIFT = 8388608.0f;
    constexpr u32 SHIFT_BITS = 0x4B000000u;
    const bool infinite = !exact::finite(scale.largest);
    u64 total = 0;
    row.template each<2>(lane, [&](const float(&entries)[Row::N], u32) {
        u32 high = 0;
        u32 low = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            const float below = exact::mul(exact::sub(entries[j], scale.largest), scale.inverse);
            float w = exact::exp(below);
            if (infinite) w = entries[j] == scale.largest ? 1.0f : 0.0f;
            const float upper = __fmaf_rz(w, UNIT, SHIFT);
            const float rest = fmaf(w, UNIT, exact::sub(SHIFT, upper));
            const float lower = __fmaf_rz(rest, UNIT, SHIFT);
            high += __float_as_uint(upper) - SHIFT_BITS;
            low += __float_as_uint(lower) - SHIFT_BITS;
        }
        total += (static_cast<u64>(high) << 20) + low;
    });
    return warp_sum(total);
}

// The weights of what filters keep.
struct Kept {
    Scale scale;
    Cut cut;
    u64 floor;

    INLINE u64 operator()(float x, u32 index) const {
        if (!cut.keeps(key_of(x), index)) return 0;
        const u64 fixed = scale.fixed(x);
        return fixed >= floor ? fixed : 0;
    }

    INLINE bool all() const { return cut.key == 0 && floor == 0; }

    template <typename Row>
    INLINE u64 sum(const Row& row, u32 lane) const {
        if (all()) return sum_all(row, lane, scale);
        u64 total = 0;
        row.each(lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) total += (*this)(entries[j], first + j);
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
};

// What is left of a row after its filters, and the sum of it: cut by top-k, then by
// top-p, whatever of that is asked for, and rid of what min-p drops.
struct Filtered {
    Kept kept;
    u64 total;
};

// A small top_k: what can be among the first k is sent to the block that leads, which
// does the rest alone: sorts it by counting, cuts, and draws.
struct Few {
    // What a warp may send of its piece.
    static constexpr u32 EACH = 8;
    static constexpr u32 MOST = SELECT_THREADS;
    static constexpr u32 MOST_K = 128;

    // Key, then inverse index: the larger comes first. As sent, in a row, sorted.
    u64 sent[MOST_PIECES][EACH];
    u64 list[MOST];
    u64 sorted[MOST_K];
    u64 weights[MOST_K];
    // What came of it.
    u64 total;
    Cut cut;

    INLINE static bool serves(const Team& team, u32 k) {
        return k > 0 && k <= MOST_K && k <= team.pieces() / 2;
    }
};

// A key that at least k of the pieces' largest, the high halves of what was told,
// reach: the k-th of them, or a little less.
INLINE u32 reached_by(const Team& team, u32 k, u32 largest) {
    u32 own = NONE;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        own = min(own, static_cast<u32>(team.told(i) >> 32));
    }
    // All reach the smallest of them.
    u32 low = __reduce_min_sync(ALL_LANES, own);
    u32 high = largest;
#pragma unroll 1
    for (u32 step = 0; step < 14 && low < high; ++step) {
        const u32 middle = high - (high - low) / 2;
        u32 count = 0;
        for (u32 i = team.lane; i < team.pieces(); i += WARP) {
            count += static_cast<u32>(team.told(i) >> 32) >= middle;
        }
        if (__reduce_add_sync(ALL_LANES, count) >= k) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Sends this warp's entries from `bound` on to the block that leads. Returns how many
// there are of all warps; 0 where a warp has too many.
template <typename Row>
INLINE u32 send_few(Few& few, Team& team, const Row& row, u32 bound, u32 own_key) {
    u32 count = 0;
    if (own_key >= bound) {
        for (u32 from = row.begin; from < row.end; from += WARP) {
            float entries[Row::N];
            u32 first = 0;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) entries[j] = nothing();
            if (from + team.lane < row.end) row.fetch(from + team.lane, entries, first);
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                const u32 key = key_of(entries[j]);
                const u32 those = __ballot_sync(ALL_LANES, key >= bound);
                if (those == 0) continue;
                const u32 place = count + __popc(those & lanes_below());
                if (key >= bound && place < Few::EACH) {
                    const u64 entry = static_cast<u64>(key) << 32 | (NONE - (first + j));
                    *team.of(&few.sent[team.piece()][place], 0) = entry;
                }
                count += __popc(those);
            }
        }
    }
    team.tell(count);
    u32 most = 0;
    u32 sum = 0;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        const u32 its = static_cast<u32>(team.told(i));
        most = max(most, its);
        sum += its;
    }
    sum = __reduce_add_sync(ALL_LANES, sum);
    return __reduce_max_sync(ALL_LANES, most) > Few::EACH || sum > Few::MOST ? 0 : sum;
}

// The block that leads sorts what was sent: the first k of `count`.
INLINE void sort_few(Few& few, const Team& team, u32 count, u32 k) {
    u32 base = 0;
    for (u32 from = 0; from < team.pieces(); from += WARP) {
        const u32 piece = from + team.lane;
        const u32 its = piece < team.pieces() ? static_cast<u32>(team.told(piece)) : 0;
        const u32 through = warp_inclusive_sum(its);
        if (team.warp == from / WARP) {
            for (u32 j = 0; j < its; ++j) few.list[base + through - its + j] = few.sent[piece][j];
        }
        base += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    __syncthreads();
    if (threadIdx.x < count) {
        const u64 own = few.list[threadIdx.x];
        u32 rank = 0;
#pragma unroll 8
        for (u32 i = 0; i < count; ++i) rank += few.list[i] > own;
        if (rank < k) few.sorted[rank] = own;
    }
    __syncthreads();
}

// One warp cuts what was sorted by top-p, drops what min-p drops, and draws. Returns
// the token in the lane that has it, NONE in the others.
INLINE u32 draw_few(Few& few, u32 lane, const Options& options, const Scale& scale, u64 random) {
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
    const u64 sum = __shfl_sync(ALL_LANES, through, WARP - 1);
    u64 limit = ~0ull;
    if (options.top_p < 1ull << 32) {
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
    const u32 last_index = NONE - __reduce_min_sync(ALL_LANES, has_last ? static_cast<u32>(last) : NONE);
    if (lane == 0) {
        few.total = total;
        few.cut = {last_key, last_index + 1};
    }
    __syncwarp();
    const u64 threshold = exact::sample_threshold(random, total);
    // The sum before each in ascending index.
    u64 sums[EACH] = {};
#pragma unroll 4
    for (u32 i = 0; i < options.top_k; ++i) {
        const u64 weight = few.weights[i];
        const u32 inverse = static_cast<u32>(few.sorted[i]);
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            // The larger inverse is the lower index.
            sums[j] += inverse > static_cast<u32>(entries[j]) ? weight : 0;
        }
    }
    u32 token = NONE;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) {
        if (sums[j] <= threshold && threshold - sums[j] < weights[j]) {
            token = NONE - static_cast<u32>(entries[j]);
        }
    }
    return token;
}

template <typename Row>
INLINE Filtered filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    Kept kept = {scale, no_cut(), 0};
    u32 rounds = 0;
    // Beyond 28 temperatures below the largest, nothing weighs anything.
    const Linear linear = {scale.largest, exact::mul(scale.inverse, (SELECT_BINS - 1) / 28.0f)};
    const bool by_share = options.top_p < 1ull << 32;
    // One loop, so that there is one copy of the code.
#pragma unroll 1
    for (u32 step = options.top_k > 0 ? 0 : by_share ? 1 : 2;; step = step == 0 && by_share ? 1 : 2) {
        u64 limit = options.top_k;
        if (step > 0) {
            if (step == 2) kept.floor = options.floor;
            team.tell(kept.sum(row, team.lane));
            const u64 sum = team.sum_told();
            if (step == 2) return {kept, sum};
            limit = max(__umul64hi(sum, options.top_p << 32), static_cast<u64>(1));
        }
        kept.cut = select(selection, team, row, rounds, limit, kept.cut, linear,
                          Weigher{kept, step == 0});
    }
}

union Shared {
    Selection selection;
    Few few;
};

template <typename T>
INLINE void sample(const Params<T>& p) {
    constexpr u32 N = Pack<T>::N;
    extern __shared__ float4 space[];
    __shared__ Team::Shared told;
    __shared__ Shared shared;
    Team team(told);
    team.arrive();
    const u32 index = blockIdx.x / team.size;
    const Request request(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team,
                    p.cached != 0 ? reinterpret_cast<float*>(space) : nullptr,
                    Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});

    // The largest logit of those allowed, and of all.
    float top = minus_infinity();
    float raw_top = minus_infinity();
    bool odd = false;
    row.enter(team.lane, [&](const float(&values)[N], const float(&entries)[N], u32 first) {
        const bool whole = row.whole(first);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            // Nothing is never the larger one.
            top = fmaxf(top, entries[j]);
            raw_top = fmaxf(raw_top, values[j]);
            odd |= !(values[j] <= LARGEST) && (whole || first + j < p.vocab);
        }
    });
    if (__any_sync(ALL_LANES, odd) && team.lane == 0) raise(p.flags, NON_FINITE);
    const u32 own_key = __reduce_max_sync(ALL_LANES, key_of(top));
    const u32 own_raw_key = __reduce_max_sync(ALL_LANES, key_of(raw_top));
    const Options options(request, p.vocab);
    team.wait();
    team.tell(static_cast<u64>(own_key) << 32 | own_raw_key);
    u32 key = 0;
    u32 raw_key = 0;
    // The first piece that has the largest.
    u32 first_piece = NONE;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        const u64 pair = team.told(i);
        const u32 its = static_cast<u32>(pair >> 32);
        if (its > key) first_piece = i;
        key = max(key, its);
        raw_key = max(raw_key, static_cast<u32>(pair));
    }
    const u32 largest_key = __reduce_max_sync(ALL_LANES, key);
    first_piece = __reduce_min_sync(ALL_LANES, key == largest_key ? first_piece : NONE);
    const float raw_largest = value_of(__reduce_max_sync(ALL_LANES, raw_key));
    const float largest = value_of(largest_key);
    const bool leads = team.piece() == 0 && team.lane == 0;
    const bool few = !options.greedy && Few::serves(team, options.top_k);
    const u32 bound = few ? reached_by(team, options.top_k, largest_key) : 0;

    u64 raw_sum = 0;
    if (p.logprobs != nullptr) {
        const Scale plain = {raw_largest, 1.0f};
        team.tell(sum_raw(row, team.lane, plain));
        raw_sum = team.sum_told();
    }

    u32 token = NONE;
    if (largest_key <= LOWEST_KEY) {
        team.arrive();
        token = lowest_allowed(p, index, team.lane);
        if (leads) {
            raise(p.flags, NON_FINITE);
            write_token(p, index, token, raw_largest, raw_sum);
        }
    } else if (options.greedy) {
        team.arrive();
        if (leads) raise(p.flags, options.bits);
        if (team.piece() == first_piece) {
            token = row.find(team.lane, 0, [&](float x, u32) {
                return static_cast<u64>(x == largest);
            });
            if (team.lane == 0) write_token(p, index, token, raw_largest, raw_sum);
        }
    } else {
        if (leads) raise(p.flags, options.bits);
        const Scale scale = {largest, options.inverse};
        if (p.min_p_first != 0 && options.floor > 0) {
            row.make.scale = scale;
            row.make.floor = options.floor;
            row.remake_cached(team.lane);
        }
        const u64 random = Draw(request.seed, request.position, Purpose::SAMPLE).bits();
        const u32 sent = few ? send_few(shared.few, team, row, bound, own_key) : 0;
        Filtered filtered;
        if (sent >= options.top_k && few) {
            if (team.rank == 0) {
                sort_few(shared.few, team, sent, options.top_k);
                if (team.warp == 0) {
                    token = draw_few(shared.few, team.lane, options, scale, random);
                    if (token != NONE) write_token(p, index, token, raw_largest, raw_sum);
                }
            }
            if (p.probs.data == nullptr) return;
            team.sync();
            const Few* const there = team.of(&shared.few, 0);
            filtered = {{scale, there->cut, options.floor}, there->total};
            team.arrive();
        } else {
            filtered = filter(shared.selection, team, row, options, scale);
            u64 rest = exact::sample_threshold(random, filtered.total);
            const u32 owner = team.piece_above(rest);
            team.arrive();
            if (owner == team.piece()) {
                token = row.find(team.lane, rest, filtered.kept);
                if (team.lane == 0) write_token(p, index, token, raw_largest, raw_sum);
            }
        }
        const Kept& kept = filtered.kept;
        const u64 total = filtered.total;
        // For units of 2^-40 instead of 2^-31.
        const float factor = exact::mul(exact::softmax::factor(total), 512.0f);
        write_probs(p, index, row, team.lane, [&](float x, u32 at) {
            return kept(x, at) > 0 ? exact::softmax::score(scale.weight(x), factor) : 0.0f;
        });
        team.wait();
        return;
    }
    write_probs(p, index, row, team.lane, [&](float, u32 at) { return at == token ? 1.0f : 0.0f; });
    team.wait();
}

#define SAMPLER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_##dtype, sample<T>, Params<T>, SELECT_THREADS, 2)

SAMPLER(f32, float)
SAMPLER(f16, f16)
SAMPLER(bf16, bf16)
