// sample_logits: the next token of each row of logits.
//
// A team of blocks owns a row (select.cuh). It reads the row, masked, and finds the
// largest logit on the way; a greedy row ends here. Then each warp sums up the weights
// of its piece, in units of 2^-40: integers, so their order is free. The block with the
// piece in which the running sum passes the random threshold searches that for the
// token. Filters come in between: top-k and top-p each cut the row (`select`), min-p is
// a comparison. Most often they leave little: what can be among the first k of a small
// top-k, or among what a top-p alone keeps where that is likely to be few, goes to one
// block, which does the rest (`Few`). The largest logits of 256 groups of the row say
// from where on. Logits that tie by the thousand are counted instead.
//
// Bytes: the logits once, 32 * 4 * 128256 = 16.4 MB at 32 rows: 3.6 us at 4.6 TB/s.
// A single row is latency: the row, a meeting for the largest logit, one for the
// sums, the search. Above some hundred rows it is arithmetic: 34 instructions an entry
// for its weight, of which 23 are exact::exp.
#include "params/sample_logits.cuh"
#include "philox.cuh"
#include "select.cuh"

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

// What a row's request says. It comes to shared memory by itself, while the row is read,
// and takes no registers until then.
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

    // By the same one, before a barrier after which all may read.
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

// ---- the kernel -----------------------------------------------------------------

// What a selection weighs: 1 an entry, or its weight.
struct Weigher {
    Kept kept;
    bool counts;

    INLINE u64 operator()(float x, u32 key, u32 index) const {
        if (counts) return 1;
        return kept.cut.keeps(key, index) ? kept.scale.fixed(x) : 0;
    }

    INLINE bool keeps(u32 key, u32 index) const { return kept.cut.keeps(key, index); }

    INLINE u64 of(u32 key) const { return counts ? 1 : kept.scale.fixed(exact::value_of_key(key)); }

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

// How a row with filters is cut: by what was sent to the block that leads, or lies in its
// list already; among what equals the largest; or by selecting in the row itself.
enum class How { SENT, LISTED, TIES, SELECTED };

// What is left of a row after its filters, and the sum of it: cut by top-k, then by
// top-p, whatever of that is asked for, and rid of what min-p drops.
struct Filtered {
    Kept kept;
    Team::Sums sums;
};

// What can be among those that top-k or top-p keeps, where that is not much: it is sent
// to the block that leads, which does the rest alone: sorts it by counting, cuts, and
// draws.
struct Few {
    // Each block may send a share of them.
    static constexpr u32 MOST = SELECT_THREADS;
    static constexpr u32 MOST_K = 128;
    static_assert(MOST_K <= MAX_PIECES / 2);
    // By top-p alone, so many of the largest that were told bound what is sent: few
    // enough that no block's share is likely to be too small.
    static constexpr u32 LIKELY = 144;
    // A larger share than what equals the largest is likely to hold, in units of 2^-32.
    static constexpr u64 MOST_SHARE = (1ull << 32) - (1ull << 22);

    // Key, then inverse index: the larger comes first; 0 for none. As sent, in a row,
    // sorted.
    u64 sent[MOST];
    u64 list[MOST];
    u64 sorted[MOST];
    // What is left of each, in that order.
    u64 weights[MOST];
    // In each block, of `Bound`: the least of all groups' largest keys, and by how much the
    // weights that reach it are more than is wanted.
    u32 lowest;
    i32 left_over;
    // How many were sent by the block, and whether some block has more than there is room
    // for.
    u32 count;
    bool full;
    u32 listed;
    // What came of it: how many are left, their weights, the cut.
    u32 left;
    u64 total;
    Cut cut;

    INLINE static bool serves(u32 k) { return k > 0 && k <= MOST_K; }

    // Before the first meeting of a team.
    INLINE void begin() {
        sent[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            lowest = NONE;
            left_over = 0;
            count = 0;
            full = false;
            listed = 0;
        }
    }
};

// The bound by what was told of the row's groups: a key that at least k of their largest
// reach, the k-th of them or a little less. By the whole block, a group a thread.
struct Bound {
    // Each step leaves half of the range; more than these find little.
    static constexpr u32 STEPS = 10;
    // So many find the very key.
    static constexpr u32 ALL_STEPS = 32;

    u32 own;
    u32 key;

    INLINE Bound(Few& few, u32 largest_of_group, u32 k, u32 largest, u32 steps)
        : own(largest_of_group) {
        const u32 lowest = __reduce_min_sync(ALL_LANES, own == 0 ? NONE : own);
        if (lane_id() == 0) atomicMin(&few.lowest, lowest);
        __syncthreads();
        // All reach the smallest of them.
        u32 low = few.lowest;
        u32 high = largest;
#pragma unroll 1
        for (u32 step = 0; step < steps && low < high; ++step) {
            const u32 middle = low + (high - low + 1) / 2;
            if (__syncthreads_count(own >= middle) >= k) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        key = low;
    }

    // Whether what reaches the bound is likely to hold a share of all weights. The rest of a
    // group is taken to weigh as much as a sixty-fourth of it would, were all of that as
    // large as its largest, or as the bound: about right for normal logits of the spread of
    // a language model's. The same in all blocks of a team.
    INLINE bool holds(Few& few, const Scale& scale, u64 share, u32 vocab) const {
        const float weight = __expf(scale.below(exact::value_of_key(own)));
        const float most = __expf(scale.below(exact::value_of_key(key)));
        const float inside = own >= key ? weight : 0.0f;
        const float rest = static_cast<float>(vocab) / (64 * MAX_PIECES);
        const float outside = fminf(weight, most) * rest;
        const float kept = static_cast<float>(share) / 4294967296.0f;
        const float left = fmaxf(inside - kept * (inside + outside), -1.0f);
        const i32 units = own == 0 ? 0 : __float2int_rn(left * 1048576.0f);
        const i32 of_warp = __reduce_add_sync(ALL_LANES, units);
        if (lane_id() == 0) atomicAdd(&few.left_over, of_warp);
        __syncthreads();
        return few.left_over >= 0;
    }
};

// Sends this warp's entries from the bound on to the block that leads. Returns how many
// there are of all; 0 where a block has too many.
template <typename Row>
INLINE u32 send_few(Few& few, Team& team, const Row& row, u32 own_key, u32 bound) {
    const u32 room = Few::MOST / team.blocks.size;
    if (own_key >= bound) {
        const float least = exact::value_of_key(bound);
        u64* const sent = team.blocks.of(few.sent, 0) + team.blocks.rank * room;
        const auto send = [&](const float(&entries)[Row::N], u32 first) {
            u32 those = 0;
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) those |= entries[j] >= least ? 1u << j : 0u;
            if (those == 0 || is_full(few.count, room)) return;
            list_those(few.count, sent, room, entries, first, those);
        };
        // Halves come no faster that way.
        if (Row::N == 4 && row.is_read_again()) {
            row.template each_again<4, false>(team.lane, send);
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

// Where that is too many, as of rows with many equals: into the list of the block that
// leads, what exceeds the k-th of the largest that were told, and of what equals it the
// lowest indices, k entries in all. False where more exceed it.
template <typename Row>
INLINE bool send_tied(Few& few, Team& team, const Row& row, u32 k, u32 own_group,
                      u32 largest_key) {
    const Bound reached(few, own_group, k, largest_key, Bound::ALL_STEPS);
    const float bound = exact::value_of_key(reached.key);
    u32 above = 0;
    u32 tied = 0;
    row.template each<2>(team.lane, [&](const float(&entries)[Row::N], u32) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            above += entries[j] > bound;
            tied += entries[j] == bound;
        }
    });
    above = __reduce_add_sync(ALL_LANES, above);
    tied = __reduce_add_sync(ALL_LANES, tied);
    team.tell(static_cast<u64>(above) << 32 | tied);
    const u64 all = team.sum_told().all;
    const u32 all_above = static_cast<u32>(all >> 32);
    if (all_above >= k || k - all_above > static_cast<u32>(all)) return false;
    const u32 wanted = k - all_above;
    u64 before = 0;
    for (u32 i = team.lane; i < team.piece(); i += WARP) before += team.told(i);
    before = warp_sum(before);
    const u32 tied_before = static_cast<u32>(before);
    u32 place = static_cast<u32>(before >> 32) + min(tied_before, wanted);
    u32 left = min(wanted - min(tied_before, wanted), tied);
    u64* const list = team.blocks.of(few.list, 0);
#pragma unroll 1
    for (u32 base = row.begin; base < row.end && above + left > 0; base += WARP) {
        float entries[Row::N];
        u32 first = 0;
        u32 those = 0;
        u32 equal = 0;
        if (base + team.lane < row.end) {
            row.fetch(base + team.lane, entries, first);
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                those |= entries[j] > bound ? 1u << j : 0u;
                equal |= entries[j] == bound ? 1u << j : 0u;
            }
        }
        const u64 own = static_cast<u64>(__popc(those)) << 32 | __popc(equal);
        const u64 through = warp_inclusive_sum(own, team.lane);
        u32 rank = static_cast<u32>(through - own);
        u32 to = place + static_cast<u32>((through - own) >> 32) + min(rank, left);
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            const bool ties = (equal >> j & 1) != 0;
            if ((those >> j & 1) != 0 || (ties && rank < left)) {
                list[to] = listed_entry(entries[j], first + j);
                to += 1;
            }
            rank += ties;
        }
        const u64 of_all = __shfl_sync(ALL_LANES, through, WARP - 1);
        const u32 taken = min(static_cast<u32>(of_all), left);
        place += static_cast<u32>(of_all >> 32) + taken;
        above -= static_cast<u32>(of_all >> 32);
        left -= taken;
    }
    team.blocks.sync();
    return true;
}

// What a row with a top-p alone came to.
struct Shares {
    // The sum of weights at which top-p cuts.
    u64 limit;
    // How many equal the largest, where they are as many as the bound is of.
    u32 ties;
    // Whether what was sent reaches the limit.
    bool sent;
};

// Adds up the weights of all, and on the way sends what reaches the bound to the block
// that leads; where that is the largest itself, counts it instead.
template <typename Row>
INLINE Shares sum_and_send(Few& few, Team& team, const Row& row, u32 bound, u32 largest_key,
                           const Scale& scale, u64 top_p) {
    const u32 room = Few::MOST / team.blocks.size;
    const float least = exact::value_of_key(bound);
    const bool plateau = bound == largest_key;
    u64* const to = team.blocks.of(few.sent, 0) + team.blocks.rank * room;
    u32 ties = 0;
    bool full = false;
    u64 listed = 0;
    const auto send = [&](const float(&entries)[Row::N], u32 first) {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) those |= entries[j] >= least ? 1u << j : 0u;
        if (those == 0) return;
        if (plateau) {
            ties += __popc(those);
            return;
        }
        full = full || is_full(few.count, room);
        if (full) return;
        list_those(few.count, to, room, entries, first, those);
#pragma unroll 1
        for (; those != 0; those &= those - 1) {
            listed += scale.fixed(pick(entries, __ffs(those) - 1));
        }
    };
    const u64 total = sum_all<false>(row, team.lane, scale, send);
    listed = warp_sum(listed);
    ties = __reduce_add_sync(ALL_LANES, ties);
    // The lists are of no other use yet.
    if (team.lane < team.blocks.size) {
        *team.blocks.of(&few.list[team.piece()], team.lane) = listed;
        *team.blocks.of(&few.sorted[team.piece()], team.lane) = ties;
    }
    __syncthreads();
    if (threadIdx.x < team.blocks.size && few.count > room) {
        *team.blocks.of(&few.full, threadIdx.x) = true;
    }
    team.tell(total);
    Shares shares;
    const u64 all = team.sum_told().all;
    shares.limit = max(__umul64hi(all, top_p << 32), static_cast<u64>(1));
    listed = 0;
    ties = 0;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        listed += few.list[i];
        ties += static_cast<u32>(few.sorted[i]);
    }
    listed = warp_sum(listed);
    shares.ties = __reduce_add_sync(ALL_LANES, ties);
    shares.sent = !few.full && !plateau && listed >= shares.limit;
    return shares;
}

// The block that leads puts what was sent in a row, in any order.
INLINE void gather_few(Few& few) {
    const u64 entry = few.sent[threadIdx.x];
    if (entry != 0) few.list[atomicAdd(&few.listed, 1u)] = entry;
    __syncthreads();
}

// Sorts the first k of the `count` that are listed.
INLINE void sort_few(Few& few, u32 count, u32 k) {
    // Neighbouring lanes share an entry and compare it with a part of the others each.
    u32 lanes = 1;
    while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
    const u32 entry = threadIdx.x / lanes;
    const u64 own = entry < count ? few.list[entry] : 0;
    const u32 rank = count_larger(own, few.list, count, lanes);
    if (entry < count && rank < k) few.sorted[rank] = own;
    __syncthreads();
}

// Cuts the k that were sorted by top-p, at a limit or, where there is none, at a share
// of them, and drops what min-p drops. An entry a thread.
INLINE void cut_few(Few& few, const Team& team, u32 k, u64 limit, const Options& options,
                    const Scale& scale) {
    const bool there = threadIdx.x < k;
    const u64 entry = there ? few.sorted[threadIdx.x] : 0;
    const u64 next = threadIdx.x + 1 < k ? few.sorted[threadIdx.x + 1] : 0;
    const u64 weight = there ? scale.fixed(exact::value_of_key(static_cast<u32>(entry >> 32))) : 0;
    const BlockSums sums(team.shared->sums, team, weight);
    const u64 after = sums.through;
    if (limit == 0) {
        const bool off = options.top_p == 1ull << 32;
        limit = off ? ~0ull : max(__umul64hi(sums.all, options.top_p << 32), static_cast<u64>(1));
    }
    const u64 before = after - weight;
    if (there) few.weights[threadIdx.x] = weight;
    // Of one thread each: weights descend.
    if (there && before < limit && (next == 0 || after >= limit)) {
        few.cut = {static_cast<u32>(entry >> 32), NONE - static_cast<u32>(entry) + 1};
    }
    const u64 next_weight = next != 0 ? scale.fixed(exact::value_of_key(static_cast<u32>(next >> 32))) : 0;
    const bool stays = there && before < limit && weight >= options.floor;
    if (stays && (next == 0 || after >= limit || next_weight < options.floor)) {
        few.left = threadIdx.x + 1;
        few.total = after;
    }
    __syncthreads();
}

// Draws from what is left. Returns the token in the thread that has it, NONE in the
// others.
INLINE u32 draw_few(const Few& few, u64 random) {
    // Neighbouring lanes add up a part of what lies before an entry each.
    const u32 count = few.left;
    u32 lanes = 1;
    while (lanes < 8 && count * lanes * 2 <= SELECT_THREADS) lanes *= 2;
    const u32 entry = threadIdx.x / lanes;
    const u32 own = entry < count ? static_cast<u32>(few.sorted[entry]) : 0;
    u64 before = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x % lanes; i < count; i += lanes) {
        // The larger inverse is the lower index.
        before += static_cast<u32>(few.sorted[i]) > own ? few.weights[i] : 0;
    }
    for (u32 o = 1; o < lanes; o *= 2) before += __shfl_xor_sync(ALL_LANES, before, o);
    const u64 threshold = exact::sample_threshold(random, few.total);
    const bool drawn = entry < count && threadIdx.x % lanes == 0 && before <= threshold &&
                       threshold - before < few.weights[entry];
    return drawn ? NONE - own : NONE;
}

template <typename Row>
INLINE Filtered filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    // What was in the selection's place has been read.
    __syncthreads();
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

// What is called apart keeps its registers out of the way of the rows that go without:
// what came of it, and the meetings of the team until then.
template <typename Result>
struct Apart {
    Result result;
    u32 meetings;
};

template <typename Row>
__device__ __noinline__ Apart<Filtered> filter_apart(Selection& selection, Team team, Row row,
                                                     Options options, Scale scale) {
    const Filtered filtered = filter(selection, team, row, options, scale);
    return {filtered, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<bool> send_tied_apart(Few& few, Team team, Row row, u32 k,
                                                    u32 own_group, u32 largest_key) {
    const bool sent = send_tied(few, team, row, k, own_group, largest_key);
    return {sent, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<Shares> sum_and_send_apart(Few& few, Team team, Row row, u32 bound,
                                                         u32 largest_key, Scale scale, u64 top_p) {
    const Shares shares = sum_and_send(few, team, row, bound, largest_key, scale, top_p);
    return {shares, team.meetings};
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
    __shared__ Request request;
    Team team(told);
    shared.few.begin();
    team.blocks.arrive();
    const u32 index = blockIdx.x / team.blocks.size;
    if (threadIdx.x == 0) request.fetch(p, index);
    const u32* const mask = p.mask.data == nullptr ? nullptr : p.mask[index];
    LogitRow<T> row(p.logits[index], p.vocab, team,
                    p.cached != 0 ? reinterpret_cast<float*>(space) : nullptr,
                    Masked<T>{mask, p.vocab, 0, {0.0f, 0.0f}});

    // The largest logit of those allowed, and of all.
    float top = negative_infinity();
    float raw_top = negative_infinity();
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
            top = negative_infinity();
            row.remake_cached(team.lane, [&](float(&entries)[N], u32 first) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (first + j < p.vocab) entries[j] = fmaxf(entries[j], negative_infinity());
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
    if (threadIdx.x == 0) Request::arrive();
    team.blocks.wait();
    team.tell_largest(key_of(top), key_of(raw_top));
    const Options options(request, p.vocab);
    const u64 random = Draw(request.seed, request.position, Purpose::SAMPLE).bits();
    u32 key = 0;
    u32 raw_key = 0;
    // The first of what was told that is the largest.
    u32 told_first = 0;
#pragma unroll
    for (u32 i = 0; i < MAX_PIECES; i += WARP) {
        const u64 pair = team.told(i + team.lane);
        const u32 its = static_cast<u32>(pair >> 32);
        if (its > key) told_first = i + team.lane;
        key = max(key, its);
        raw_key = max(raw_key, static_cast<u32>(pair));
    }
    const u32 largest_key = __reduce_max_sync(ALL_LANES, key);
    told_first = __reduce_min_sync(ALL_LANES, key == largest_key ? told_first : NONE);
    const u32 first_piece = team.piece_of(told_first);
    const float raw_largest = exact::value_of_key(__reduce_max_sync(ALL_LANES, raw_key));
    const float largest = exact::value_of_key(largest_key);
    const bool leads = team.piece() == 0 && team.lane == 0;

    const Scale scale = {largest, options.inverse};
    const bool by_rank = !options.greedy && Few::serves(options.top_k);
    const bool by_share = !options.greedy && options.top_k == 0 && options.top_p < 1ull << 32 &&
                          exact::finite(largest);
    u32 own_group = 0;
    u32 bound = 0;
    bool likely = false;
    if (by_rank || by_share) {
        if (threadIdx.x < MAX_PIECES) own_group = static_cast<u32>(team.told(threadIdx.x) >> 32);
        const u32 rank = by_rank ? options.top_k : Few::LIKELY;
        const Bound reached(shared.few, own_group, rank, largest_key, Bound::STEPS);
        bound = reached.key;
        if (by_share && bound == largest_key) likely = options.top_p <= Few::MOST_SHARE;
        if (by_share && bound != largest_key) {
            likely = reached.holds(shared.few, scale, options.top_p, p.vocab);
        }
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
        if (p.min_p_first != 0 && options.floor > 0) {
            row.make.scale = scale;
            row.make.floor = options.floor;
            row.remake_cached(team.lane, [&](float(&entries)[N], u32) { row.make.drop(entries); });
        }
        Few& few = shared.few;
        How how = How::SELECTED;
        Shares shares = {0, 0, false};
        if (by_rank) {
            const u32 sent = send_few(few, team, row, own_key, bound);
            if (sent >= options.top_k) {
                how = How::SENT;
            } else if (sent == 0) {
                const Apart<bool> tied =
                    send_tied_apart(few, team, row, options.top_k, own_group, largest_key);
                team.meetings = tied.meetings;
                if (tied.result) how = How::LISTED;
            }
        } else if (likely) {
            const Apart<Shares> apart =
                sum_and_send_apart(few, team, row, bound, largest_key, scale, options.top_p);
            team.meetings = apart.meetings;
            shares = apart.result;
            if (shares.sent) {
                how = How::SENT;
            } else if (shares.limit <= static_cast<u64>(shares.ties) << 40) {
                how = How::TIES;
            }
            // All have read the lists.
            __syncthreads();
        }
        Filtered filtered;
        if (how == How::SENT || how == How::LISTED) {
            if (team.blocks.rank == 0) {
                if (how == How::SENT) gather_few(few);
                const u32 count = how == How::SENT ? few.listed : options.top_k;
                const u32 kept = by_rank ? options.top_k : count;
                sort_few(few, count, kept);
                cut_few(few, team, kept, shares.limit, options, scale);
                token = draw_few(few, random);
                if (token != NONE) write_token(p, index, token, raw_largest, raw_sum);
            }
            if (p.probs.data == nullptr) return;
            team.blocks.sync();
            const Few* const there = team.blocks.of(&few, 0);
            filtered = {{scale, there->cut, options.floor}, {0, 0, there->total}};
            // All have read that before the block may end.
            team.blocks.sync();
        } else if (how == How::TIES) {
            // So many of what equals the largest, the lowest indices first.
            const u64 kept = (shares.limit + ONE - 1) >> 40;
            const auto tied = [&](float x, u32) { return static_cast<u64>(x == largest); };
            team.tell(few.sorted[team.piece()]);
            const Team::Sums sums = team.sum_told();
            u64 rest = exact::sample_threshold(random, kept << 40) >> 40;
            const u32 owner = team.piece_above(sums, rest);
            if (team.has(owner)) {
                token = row.find(team, owner, rest, tied);
                if (threadIdx.x == 0) write_token(p, index, token, raw_largest, raw_sum);
            }
            if (p.probs.data == nullptr) return;
            rest = kept - 1;
            const u32 last_owner = team.piece_above(sums, rest);
            const u32 last = team.has(last_owner) ? row.find(team, last_owner, rest, tied) : 0;
            team.tell(last);
            const Cut cut = {largest_key, static_cast<u32>(team.told(last_owner)) + 1};
            filtered = {{scale, cut, options.floor}, {0, 0, kept << 40}};
        } else {
            if (options.filters()) {
                const Apart<Filtered> apart =
                    filter_apart(shared.selection, team, row, options, scale);
                team.meetings = apart.meetings;
                filtered = apart.result;
            } else {
                filtered.kept = {scale, Cut{0, 0}, 0};
                team.tell(sum_all<true>(row, team.lane, scale, NothingMore{}));
                filtered.sums = team.sum_told();
            }
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
