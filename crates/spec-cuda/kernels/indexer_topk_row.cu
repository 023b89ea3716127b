// indexer_topk: chooses in rows of which the threads of one block keep all keys in registers. One
// launch does all that such rows ask for: blocks that are always chosen, candidates, values and
// slots.
//
// The keys of a row's scores are counted in bins, and the bin with the k-th largest key is found.
// If the bin has few keys, each of these is compared with every other. Else its keys are counted
// again, in bins of a smaller range, until few keys or equal ones are left.
//
// There are four bins for each thread. The first ones are the upper bits of the scores as f16: with
// 1024 threads, 64 bins for each power of two between 2^-14 and 2^16; with 256 threads, 16 bins. Of
// normal scores, a bin has a two-hundredth or a fiftieth, so that counting once is enough.
//
// A warp has neighbouring columns: its lanes have 4 of them each in a first group of 128 columns, 4
// in a second, and so on. So a load takes neighbouring vectors, and one sum over the lanes, with a
// byte for each group, gives the number of chosen columns before those of a lane.
//
// The number of instructions decides, not bytes: with 32 warps, one more for each warp takes 8
// cycles.
//
// Bytes: each covered score once.
#include "indexer_topk_outputs.cuh"
#include "params/indexer_topk_row.cuh"

// Bins of a thread.
constexpr u32 OWN_BINS = 4;
// The largest number of keys that are compared with each other.
constexpr u32 MAX_COMPARED = 256;
// A score that is always chosen has this key, which no score has.
constexpr u32 FORCED_KEY = NONE;
// The bits of -inf, and the key of -inf and of NaN.
constexpr u32 NEGATIVE_INFINITY_BITS = 0xFF800000u;
constexpr u32 KEY_OF_NAN = ~NEGATIVE_INFINITY_BITS;
// The bits that stand for the score of a column that is always chosen, and of one that the row does
// not cover: NaNs, whose keys are FORCED_KEY and 0.
constexpr u32 FORCED_BITS = 0x7FFFFFFFu;
constexpr u32 UNCOVERED_BITS = 0xFFFFFFFFu;
// The first position that an i32 does not hold.
constexpr u32 END_OF_POSITIONS = 1u << 31;
// Neighbouring columns of a lane, and groups of so many.
constexpr u32 PACK = 4;
constexpr u32 MAX_GROUPS = 4;
static_assert(MAX_GROUPS * PACK * MAX_THREADS == MAX_COLS);
// Each thread clears one key of the list at most.
static_assert(MIN_THREADS >= MAX_COMPARED);

// The key of the last score that is chosen by its score, and how many scores of this key are
// chosen: the first ones in the row.
struct Cut {
    u32 key;
    u32 ties;
};

struct Shared {
    alignas(16) u32 bins[OWN_BINS * MAX_THREADS];
    // Sums of warps.
    u32 totals[WARP];
    // The bin with the cut, how many of its keys are chosen, and how many it has.
    u32 bin;
    u32 wanted;
    u32 inside;
    // The smallest and the largest key of that bin.
    u32 lowest;
    u32 highest;
    // The number of scores that the row covers.
    u32 covered;
    // The keys of that bin, counted from just below the smallest key that it may have.
    u32 listed;
    alignas(16) u32 list[MAX_COMPARED];
    Cut cut;
};

// The keys of a thread; a column that the row does not cover has key 0.
struct Keys {
    // The first column of the lane's first group, and the number of groups.
    u32 first;
    u32 groups;
    u32 keys[MAX_GROUPS][PACK];

    // For a row of `columns` columns.
    INLINE explicit Keys(u32 columns) {
        const u32 width = blockDim.x * PACK;
        groups = 1;
        while (groups * width < columns) groups++;
        first = threadIdx.x / WARP * (groups * WARP * PACK) + lane_id() * PACK;
    }

    INLINE u32 column(u32 group) const { return first + group * (WARP * PACK); }

    // Calls visit(key) for each key.
    template <typename Visit>
    INLINE void each(Visit visit) const {
#pragma unroll
        for (u32 g = 0; g < MAX_GROUPS; g++) {
            if (g >= groups) break;
#pragma unroll
            for (u32 j = 0; j < PACK; j++) visit(keys[g][j]);
        }
    }
};

// The columns that were chosen, which ascend: in dynamic shared memory, room for k.
INLINE u16* chosen() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<u16*>(memory);
}

// ---- the first bins ----------------------------------------------------------------
//
// The bin of a score is the upper bits of the score as an f16, rounded towards 0: its sign, its
// exponent, and the first bits of its mantissa. So the bins of scores from 0 up ascend, and those
// of negative scores, behind them, descend.

// The number of bins of a row: a power of two, with a logarithm to base 2 of 10 to 12.
INLINE u32 bin_count() { return OWN_BINS * blockDim.x; }
// The logarithm of `bin_count`: how many bits the number of a bin has.
INLINE u32 bin_bits() { return 31 - __clz(bin_count()); }
// How many of the 16 bits of a score as f16 lie below the bits that are the number of its bin.
INLINE u32 bin_shift() { return 16 - bin_bits(); }
// The number of the first bin of negative scores. The bins before it are those of all other scores,
// so this is also the number of those bins.
INLINE u32 negative_bins() { return bin_count() / 2; }
// The bin of infinity. The bins between it and those of negative scores are of f16s that are NaN.
// Only the last of these bins, `forced_bin`, has columns.
INLINE u32 infinite_bin() { return 0x7C00 >> bin_shift(); }
// The bin of columns that are always chosen. `search_bins` comes to it before all other bins.
INLINE u32 forced_bin() { return negative_bins() - 1; }

// The bins of two scores, of which `a` and `b` have the bits. That of NaN is `forced_bin`.
INLINE void first_bins(u32 a, u32 b, u32& of_a, u32& of_b) {
    u32 both;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;"
        : "=r"(both)
        : "f"(__uint_as_float(b)), "f"(__uint_as_float(a)));
    of_a = (both & 0xFFFF) >> bin_shift();
    of_b = both >> (16 + bin_shift());
}

// The smallest magnitude in a bin of scores from 0 up, as the bits of an f32.
INLINE u32 magnitude_of(u32 bin) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<u16>(bin << bin_shift())));
    return __float_as_uint(x);
}

// The smallest and the largest key that scores of a first bin may have.
INLINE u32 lowest_of(u32 bin) {
    if (bin == forced_bin()) return FORCED_KEY;
    if (bin < negative_bins()) return 0x80000000u + magnitude_of(bin);
    bin -= negative_bins();
    return bin == infinite_bin() ? KEY_OF_NAN : 0x80000000u - magnitude_of(bin + 1);
}
INLINE u32 highest_of(u32 bin) {
    if (bin == forced_bin()) return FORCED_KEY;
    if (bin >= negative_bins()) return 0x7FFFFFFFu - magnitude_of(bin - negative_bins());
    return bin == infinite_bin() ? FORCED_KEY - 1 : 0x7FFFFFFFu + magnitude_of(bin + 1);
}

// ---- the cut -----------------------------------------------------------------------

INLINE u32 warps() { return blockDim.x / WARP; }

// The sum of `own` over the warps before this one, and over all warps; `own` is a warp's sum. Takes
// one barrier; the totals of an earlier call have been read before the barrier before that one.
INLINE u32 sum_before(Shared& s, u32 own, u32& all) {
    const u32 lane = threadIdx.x % WARP;
    const u32 warp = threadIdx.x / WARP;
    if (lane == 0) s.totals[warp] = own;
    __syncthreads();
    const u32 of_lane = lane < warps() ? s.totals[lane] : 0;
    all = __reduce_add_sync(ALL_LANES, of_lane);
    return __reduce_add_sync(ALL_LANES, lane < warp ? of_lane : 0);
}

// The counters of the OWN_BINS neighbouring bins of a thread, as one vector. Bin `first` is the
// lowest of these bins.
INLINE uint4& own_bins(Shared& s, u32 first) { return *reinterpret_cast<uint4*>(s.bins + first); }

INLINE void clear_bins(Shared& s) { own_bins(s, OWN_BINS * threadIdx.x) = make_uint4(0, 0, 0, 0); }

// Finds the bin with the key of rank `wanted`, from the largest key down. `by_sign` says that these
// are the first bins, of which the second half descends.
INLINE void search_bins(Shared& s, u32 wanted, bool by_sign) {
    const bool descends = by_sign && threadIdx.x >= blockDim.x / 2;
    const u32 from_end = (by_sign ? negative_bins() : bin_count()) - OWN_BINS * (threadIdx.x + 1);
    const u32 first = descends ? OWN_BINS * threadIdx.x : from_end;
    const uint4 four = own_bins(s, first);
    const u32 own = four.x + four.y + four.z + four.w;
    const u32 through = warp_inclusive_sum(own);
    u32 all;
    const u32 before =
        sum_before(s, __shfl_sync(ALL_LANES, through, WARP - 1), all) + through - own;
    if (before < wanted && before + own >= wanted) {
        const u32 bins[OWN_BINS] = {descends ? four.x : four.w, descends ? four.y : four.z,
                                    descends ? four.z : four.y, descends ? four.w : four.x};
        const RankInBins found = find_rank(bins, wanted - before);
        s.bin = first + (descends ? found.bin : OWN_BINS - 1 - found.bin);
        s.wanted = found.rank;
        s.inside = found.inside;
    }
    __syncthreads();
}

// The cut among the keys low ..= high, which are at most MAX_COMPARED.
INLINE Cut compare(Shared& s, const Keys& keys, u32 low, u32 high, u32 wanted) {
    keys.each([&](u32 key) {
        if (key - low > high - low) return;
        const u32 at = atomicAdd(&s.listed, 1u);
        if (at < MAX_COMPARED) s.list[at] = key - low + 1;
    });
    __syncthreads();
    const u32 count = min(s.listed, MAX_COMPARED);
    // Each key is compared by a group of neighbouring lanes, as many as the block has: the number
    // of threads, which is a power of two, over the power of two from `count` on.
    const u32 lanes = min(blockDim.x >> (WARP - __clz(count - 1)), WARP);
    const u32 own = threadIdx.x / lanes;
    const u32 key = own < count ? s.list[own] : 0;
    // How many keys are larger, and how many are smaller, with the zeros behind the last key. The
    // differences of keys in a bin are below 2^31, so their signs compare keys.
    u32 larger = 0;
    u32 smaller = 0;
    const auto compare_one = [&](u32 other) {
        larger += (key - other) >> 31;
        smaller += (other - key) >> 31;
    };
    if (threadIdx.x / WARP * WARP < lanes * count) {
#pragma unroll 1
        for (u32 i = threadIdx.x % lanes * 4; i < count; i += lanes * 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(s.list + i);
            compare_one(four.x);
            compare_one(four.y);
            compare_one(four.z);
            compare_one(four.w);
        }
        // Both counts in one word: there are at most MAX_COMPARED keys.
        u32 both = smaller << 16 | larger;
        // The sum stands before the branch, because NVRTC 12.9 may turn a branch around such a sum
        // into a predicate, and a wrong one.
        const u32 of_warp = __reduce_add_sync(ALL_LANES, both);
        if (lanes == WARP) {
            both = of_warp;
        } else {
#pragma unroll 1
            for (u32 half = lanes / 2; half > 0; half /= 2) {
                both += __shfl_xor_sync(ALL_LANES, both, half);
            }
        }
        larger = both & 0xFFFF;
        smaller = both >> 16;
    }
    const u32 same = (count + 3) / 4 * 4 - larger - smaller;
    // Every thread whose key has rank `wanted` writes the same cut. If all keys that equal this key
    // stay, the cut lies just below the key, and has no ties.
    if (own < count && larger < wanted && larger + same >= wanted) {
        const bool all_stay = larger + same == wanted;
        s.cut = all_stay ? Cut{low + key - 2, 0} : Cut{low + key - 1, wanted - larger};
    }
    __syncthreads();
    return s.cut;
}

// The cut that leaves the `k` largest keys, of which there are more. The first bins were counted
// before the last barrier.
INLINE Cut find_cut(Shared& s, const Keys& keys, u32 k) {
    search_bins(s, k, true);
    u32 low = lowest_of(s.bin);
    u32 high = highest_of(s.bin);
    u32 wanted = s.wanted;
    u32 inside = s.inside;
#pragma unroll 1
    while (inside > MAX_COMPARED) {
        u32 lowest = NONE;
        u32 highest = 0;
        keys.each([&](u32 key) {
            if (key - low > high - low) return;
            lowest = min(lowest, key);
            highest = max(highest, key);
        });
        lowest = __reduce_min_sync(ALL_LANES, lowest);
        highest = __reduce_max_sync(ALL_LANES, highest);
        if (threadIdx.x % WARP == 0) {
            atomicMin(&s.lowest, lowest);
            atomicMax(&s.highest, highest);
        }
        clear_bins(s);
        __syncthreads();
        low = s.lowest;
        high = s.highest;
        if (low == high) return {low, wanted};
        const u32 bits = WARP - __clz(high - low);
        const u32 shift = bits > bin_bits() ? bits - bin_bits() : 0;
        keys.each([&](u32 key) {
            if (key - low <= high - low) atomicAdd(&s.bins[(key - low) >> shift], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            s.lowest = NONE;
            s.highest = 0;
        }
        search_bins(s, wanted, false);
        low += s.bin << shift;
        high = low + min(high - low, (1u << shift) - 1);
        wanted = s.wanted;
        inside = s.inside;
    }
    return compare(s, keys, low, high, wanted);
}

// ---- the row -----------------------------------------------------------------------

// What a row covers, and where its scores are.
template <typename T>
struct Row {
    const WholeRows<T>& p;
    u64 row;
    const T* scores;
    // The covered scores; with candidates, the end of the covered positions. `limit` sets it.
    u32 length;
    // Flags of the row itself.
    u32 bits;

    INLINE Row(const WholeRows<T>& p, u64 row) : p(p), row(row), bits(0) {
        u32 start = 0;
        if (p.starts.data != nullptr) {
            const i64 given = p.starts[row];
            start = clamped(given, p.cols);
            if (start != given) bits |= BAD_LENGTHS;
        }
        const bool has_candidates = p.candidates.data != nullptr;
        length = has_candidates ? END_OF_POSITIONS : p.cols - start;
        scores = p.scores[row] + start;
    }

    // Reads the length that the caller gave, if there are lengths.
    INLINE void limit() {
        if (p.lengths.data == nullptr) return;
        const i64 given = p.lengths[row];
        // Positions beyond all candidates are no error.
        const bool is_long = p.candidates.data == nullptr && given > length;
        if (given < 0 || is_long) bits |= BAD_LENGTHS;
        length = clamped(given, length);
    }

    // The number of the candidate that column i belongs to.
    INLINE u32 place_of(u32 i) const {
        return static_cast<u32>(static_cast<u64>(i) * p.per_block >> 31);
    }

    // The position of column i, which belongs to a candidate that the row covers.
    INLINE u32 position(u32 i, i32 candidate) const {
        return static_cast<u32>(candidate) * p.block + (i - place_of(i) * p.block);
    }

    // Whether an i32 holds a candidate's first position. The candidate -1 stands for none; another
    // candidate with a position that an i32 does not hold raises OUT_OF_RANGE.
    INLINE bool has_positions(i32 candidate, u32& bits) const {
        if (static_cast<u32>(candidate) <= p.last_candidate) return true;
        if (candidate == -1) return false;
        bits |= OUT_OF_RANGE;
        return candidate >= 0 && candidate == p.last_candidate + 1;
    }

    // The position of a column that was chosen; NONE for NONE.
    INLINE u32 position_of(u32 i) const {
        if (i == NONE || p.candidates.data == nullptr) return i;
        return position(i, __ldg(p.candidates[row] + place_of(i)));
    }

    // Writes an output: column i, which has position `at`, or that there is none.
    INLINE void put(u32 place, u32 i, u32 at, u32& bits) const {
        const bool is_column = i != NONE;
        p.indices.set(row, place, static_cast<i32>(at));
        if (p.values.data != nullptr) {
            put_value(p, row, place, is_column ? to_f32(scores[i]) : negative_infinity());
        }
        if (p.slots.data != nullptr) put_slot(p, row, place, at, is_column, bits);
    }
};

// The sort key of the bits of a score that is neither NaN nor -0: that of `exact::sort_key`,
// without a branch.
INLINE u32 key_of_bits(u32 bits) {
    return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000u);
}

// The scores of a thread's columns as they lie in memory, and the candidate of each group.
template <typename T>
struct Loaded {
    struct alignas(PACK * sizeof(T)) Pack {
        T items[PACK];
    };
    Pack packs[MAX_GROUPS];
    i32 candidates[MAX_GROUPS];

    // Loads up to column `end`. All loads are in flight at once. A candidate that the row does not
    // cover has scores too.
    INLINE Loaded(const Row<T>& row, const Keys& keys, u32 end) {
        const bool is_aligned = reinterpret_cast<u64>(row.scores) % sizeof(Pack) == 0;
        const bool has_candidates = row.p.candidates.data != nullptr;
        const i32* const from = row.p.candidates[row.row];
#pragma unroll
        for (u32 g = 0; g < MAX_GROUPS; g++) {
            if (g >= keys.groups) break;
            const u32 first = keys.column(g);
            if (is_aligned && first + PACK <= end) {
                packs[g] = *reinterpret_cast<const Pack*>(row.scores + first);
            } else {
#pragma unroll
                for (u32 j = 0; j < PACK; j++) {
                    packs[g].items[j] = first + j < end ? row.scores[first + j] : T();
                }
            }
            candidates[g] = -1;
            if (has_candidates && first < end) candidates[g] = __ldg(from + row.place_of(first));
        }
    }
};

// Whether the row certainly covers all of the columns first, .. first + PACK - 1. The answer is no
// as well where a candidate may end among these columns. `candidate` is that of the first column.
template <typename T>
INLINE bool covers_all(const Row<T>& row, u32 first, u32 end, i32 candidate) {
    const WholeRows<T>& p = row.p;
    if (p.candidates.data == nullptr) return first + PACK <= end;
    return p.block % PACK == 0 && first + PACK <= end &&
           static_cast<u32>(candidate) <= p.last_candidate &&
           row.position(first, candidate) + PACK <= row.length;
}

// Which of the columns first, .. first + PACK - 1 the row covers, a bit for each.
template <typename T>
INLINE u32 covered(const Row<T>& row, u32 first, u32 end, u32& bits) {
    const WholeRows<T>& p = row.p;
    const u32 there = first < end ? min(end - first, PACK) : 0;
    if (p.candidates.data == nullptr) return (1u << there) - 1;
    // Columns that certainly have one candidate.
    const u32 step = p.block % PACK == 0 ? PACK : 1;
    u32 mask = 0;
#pragma unroll 1
    for (u32 j = 0; j < there; j += step) {
        const u32 i = first + j;
        const i32 candidate = __ldg(p.candidates[row.row] + row.place_of(i));
        if (!row.has_positions(candidate, bits)) continue;
        const u32 position = row.position(i, candidate);
        if (position >= row.length) continue;
        const u32 count = min(row.length - position, min(step, there - j));
        mask |= ((1u << count) - 1) << j;
    }
    return mask;
}

// Puts the scores of a thread right where a column is not covered, is always chosen, or has NaN.
// `keys` has the bits of the scores. Returns the flags that the scores and the candidates raise.
template <typename T>
INLINE u32 mend(Shared& s, u32* bins, const Row<T>& row, Keys& keys, u32 end) {
    const WholeRows<T>& p = row.p;
    const u32 first_end = min(p.forced_first, end);
    const u32 last_begin = end - min(p.forced_last, end - first_end);
    u32 bits = 0;
    // How many columns are not covered, with those behind the row's end, and without.
    u32 uncovered = 0;
    u32 uncovered_inside = 0;
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
        const u32 first = keys.column(g);
        const u32 mask = covered(row, first, end, bits);
        uncovered += PACK - __popc(mask);
        uncovered_inside += (first < end ? min(end - first, PACK) : 0) - __popc(mask);
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            u32& score = keys.keys[g][j];
            if ((score & 0x7FFFFFFFu) > 0x7F800000u) {
                score = NEGATIVE_INFINITY_BITS;
                if (mask >> j & 1) bits |= NON_FINITE;
            }
            if (first + j < first_end || first + j >= last_begin) score = FORCED_BITS;
            if ((mask >> j & 1) == 0) score = UNCOVERED_BITS;
        }
    }
    // `read` counts columns that are not covered in the bin of scores that are always chosen.
    atomicSub(&bins[forced_bin()], uncovered);
    if (p.candidates.data != nullptr) atomicSub(&s.covered, uncovered_inside);
    return bits;
}

// Turns the scores of a row into keys, and counts the keys in the first bins. Returns the flags
// that the scores and the candidates raise.
template <typename T>
INLINE u32 read(Shared& s, const Row<T>& row, const Loaded<T>& loaded, Keys& keys, u32 end) {
    u32* bins = s.bins;
    keep_shared(bins);
    bool is_plain = row.p.forced_first + row.p.forced_last == 0;
    // NaN if a score is NaN or infinite.
    float probe = 0.0f;
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
        is_plain &= covers_all(row, keys.column(g), end, loaded.candidates[g]);
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            // The sum with 0 is the score, and 0 for -0.
            const float score = exact::add(to_f32(loaded.packs[g].items[j]), 0.0f);
            probe = __fmaf_rn(score, 0.0f, probe);
            keys.keys[g][j] = __float_as_uint(score);
        }
    }
    u32 bits = 0;
    if (rarely(!is_plain || probe != probe)) bits = mend(s, bins, row, keys, end);
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
#pragma unroll
        for (u32 j = 0; j < PACK; j += 2) {
            u32 (&scores)[PACK] = keys.keys[g];
            u32 of_a;
            u32 of_b;
            first_bins(scores[j], scores[j + 1], of_a, of_b);
            atomicAdd(&bins[of_a], 1u);
            atomicAdd(&bins[of_b], 1u);
            scores[j] = key_of_bits(scores[j]);
            scores[j + 1] = key_of_bits(scores[j + 1]);
        }
    }
    return bits;
}

// The sum of the bytes of a word.
INLINE u32 sum_bytes(u32 word) { return __dp4a(word, 0x01010101u, 0u); }

// How many keys of a thread's groups are counted by `is_counted`, a byte for each group: those of
// the lanes before this one and, in `warp`, those of all lanes. A group of a warp has 128 keys.
template <typename Count>
INLINE u32 count_groups(const Keys& keys, Count is_counted, u32& warp) {
    static_assert(WARP * PACK < 256 && MAX_GROUPS <= 4);
    u32 own = 0;
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
#pragma unroll
        for (u32 j = 0; j < PACK; j++) own += is_counted(keys.keys[g][j]) ? 1u << 8 * g : 0;
    }
    const u32 through = warp_inclusive_sum(own);
    warp = __shfl_sync(ALL_LANES, through, WARP - 1);
    return through - own;
}

// Lists the columns whose keys stay, at most k. When a block calls this function, none of its
// threads still reads s.totals.
template <bool HAS_TIES>
INLINE void list_chosen(Shared& s, const Keys& keys, const Cut& cut) {
    u32 above_warp;
    u32 ties_warp = 0;
    u32 above = count_groups(keys, [&](u32 key) { return key > cut.key; }, above_warp);
    u32 ties = 0;
    if (HAS_TIES) ties = count_groups(keys, [&](u32 key) { return key == cut.key; }, ties_warp);
    u32 all;
    const u32 before = sum_before(s, sum_bytes(above_warp) << 16 | sum_bytes(ties_warp), all);
    u32 above_before = before >> 16;
    u32 ties_before = before & 0xFFFF;
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
        u16* place = chosen() + above_before + (above >> 8 * g & 0xFF);
        u32 left = 0;
        if (HAS_TIES) {
            const u32 chosen_ties = min(ties_before + (ties >> 8 * g & 0xFF), cut.ties);
            place += chosen_ties;
            left = cut.ties - chosen_ties;
        }
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            const u32 key = keys.keys[g][j];
            bool stays = key > cut.key;
            if (HAS_TIES && key == cut.key && left > 0) {
                stays = true;
                left--;
            }
            if (stays) *place++ = static_cast<u16>(keys.column(g) + j);
        }
        above_before += above_warp >> 8 * g & 0xFF;
        ties_before += ties_warp >> 8 * g & 0xFF;
    }
    __syncthreads();
}

template <typename T>
INLINE void choose(const WholeRows<T>& p) {
    __shared__ Shared s;
    Row<T> row(p, blockIdx.x);
    const bool has_candidates = p.candidates.data != nullptr;
    if (!has_candidates) row.limit();
    const u32 end = has_candidates ? p.cols : row.length;
    Keys keys(end);
    const Loaded<T> loaded(row, keys, end);
    // With candidates, the loads of scores need not wait for the length.
    if (has_candidates) row.limit();
    clear_bins(s);
    if (threadIdx.x < MAX_COMPARED) s.list[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        s.listed = 0;
        s.lowest = NONE;
        s.highest = 0;
        // With candidates, `read` takes away the columns that the row does not cover.
        s.covered = end;
    }
    __syncthreads();
    u32 bits = read(s, row, loaded, keys, end);
    if (threadIdx.x == 0) bits |= row.bits;
    // If lengths or starts change while the threads load them, the threads may differ in the row's
    // end. Then the row has no positions: by different ends, the threads would list more columns
    // than `chosen` has room for. With candidates, all threads have the same end.
    if (rarely(!has_candidates && s.covered != end)) {
        s.covered = 0;
        bits |= BAD_LENGTHS;
    }
    __syncthreads();
    const u32 count = s.covered;
    // A row that has no positions has this cut, which no key is above.
    const Cut cut = count > p.k ? find_cut(s, keys, p.k) : Cut{count > 0 ? 0 : NONE, 0};
    if (cut.ties == 0) {
        list_chosen<false>(s, keys, cut);
    } else {
        list_chosen<true>(s, keys, cut);
    }
    // Two outputs of a thread in each turn, so that the loads of their candidates are in flight at
    // once.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < p.k; i += 2 * blockDim.x) {
        u32 column = i < count ? chosen()[i] : NONE;
        u32 position = row.position_of(column);
        const u32 behind = i + blockDim.x;
        u32 other = NONE;
        u32 other_position = NONE;
        if (behind < min(count, p.k)) {
            other = chosen()[behind];
            other_position = row.position_of(other);
        }
#pragma unroll 1
        for (u32 place = i; place < p.k; place += blockDim.x) {
            row.put(place, column, position, bits);
            if (place == behind) break;
            column = other;
            position = other_position;
        }
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (threadIdx.x % WARP == 0) raise(p.flags, any);
}

SPEC_KERNEL(indexer_topk_row_f32, choose<float>, WholeRows<float>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_f16, choose<f16>, WholeRows<f16>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_bf16, choose<bf16>, WholeRows<bf16>, MAX_THREADS)
