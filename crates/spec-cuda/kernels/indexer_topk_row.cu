// indexer_topk: chooses in rows of which the threads of one block keep all keys in registers. One
// launch does all that such rows ask for: blocks that are always chosen, candidates, values and
// slots.
//
// The keys of a row's scores are counted in bins, and the bin with the k-th largest key is found.
// If the bin has few keys, each of these is compared with every other. Else its keys are counted
// again, in bins of a smaller range, until few keys or equal ones are left.
//
// The first bins follow the magnitude of scores: 32 bins for each power of two between 2^-15 and
// 2^17, as the upper bits of an f16 would give. Of normal scores, a bin has a hundredth, so that
// counting once is enough.
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

constexpr u32 BIN_BITS = 11;
constexpr u32 BINS = 1u << BIN_BITS;
// The largest number of keys that are compared with each other.
constexpr u32 MAX_COMPARED = 256;
// A score that is always chosen has this key, which no score has.
constexpr u32 FORCED_KEY = NONE;
// The first position that an i32 does not hold.
constexpr u32 END_OF_POSITIONS = 1u << 31;
// Neighbouring columns of a lane, and groups of so many.
constexpr u32 PACK = 4;
constexpr u32 MAX_GROUPS = 4;
static_assert(MAX_GROUPS * PACK * MAX_THREADS == MAX_COLS);

// The key of the last score that is chosen by its score, and how many scores of this key are
// chosen: the first ones in the row.
struct Cut {
    u32 key;
    u32 ties;
};

struct Shared {
    alignas(16) u32 bins[BINS];
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

// The bits of a key below its sign, exponent and 5 bits of its mantissa.
constexpr u32 KEY_SHIFT = 18;
// The upper bits of the keys of -2^17 and of 2^-15, from which on bins have 2^18 keys each.
constexpr u32 NEGATIVE_BINS = 8191 - (127 - 15) * 32 - 1023;
constexpr u32 POSITIVE_BINS = 8192 + (127 - 15) * 32 - 1;
constexpr u32 MIDDLE_BIN = BINS / 2 - 1;

INLINE u32 first_bin(u32 key) {
    const u32 upper = key >> KEY_SHIFT;
    const u32 negative = min(max(upper, NEGATIVE_BINS) - NEGATIVE_BINS, MIDDLE_BIN);
    const u32 positive = min(max(upper, POSITIVE_BINS) - POSITIVE_BINS, MIDDLE_BIN + 1);
    return negative + positive;
}

// The smallest key of a first bin. The last bins of each side have all larger magnitudes, and the
// middle one has all smaller ones.
INLINE u32 lowest_of(u32 bin) {
    if (bin == 0) return 1;
    const u32 upper = bin <= MIDDLE_BIN ? NEGATIVE_BINS + bin : POSITIVE_BINS + (bin - MIDDLE_BIN);
    return upper << KEY_SHIFT;
}

INLINE u32 highest_of(u32 bin) { return bin == BINS - 1 ? NONE : lowest_of(bin + 1) - 1; }

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

INLINE void clear_bins(Shared& s) {
    for (u32 i = 4 * threadIdx.x; i < BINS; i += 4 * blockDim.x) {
        *reinterpret_cast<uint4*>(s.bins + i) = make_uint4(0, 0, 0, 0);
    }
}

// Finds the bin with the key of rank `wanted`, from the largest key down.
INLINE void search_bins(Shared& s, u32 wanted) {
    const u32 of_thread = BINS / blockDim.x;
    const u32* const bins = s.bins + BINS - of_thread * (threadIdx.x + 1);
    u32 own = 0;
#pragma unroll 1
    for (u32 j = 0; j < of_thread; j += 2) {
        const uint2 pair = *reinterpret_cast<const uint2*>(bins + j);
        own += pair.x + pair.y;
    }
    const u32 through = warp_inclusive_sum(own);
    u32 all;
    u32 before = sum_before(s, __shfl_sync(ALL_LANES, through, WARP - 1), all) + through - own;
    if (before < wanted && before + own >= wanted) {
        u32 j = of_thread - 1;
        while (before + bins[j] < wanted) {
            before += bins[j];
            j--;
        }
        s.bin = BINS - of_thread * (threadIdx.x + 1) + j;
        s.wanted = wanted - before;
        s.inside = bins[j];
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
        for (u32 half = lanes / 2; half > 0; half /= 2) {
            larger += __shfl_xor_sync(ALL_LANES, larger, half);
            smaller += __shfl_xor_sync(ALL_LANES, smaller, half);
        }
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
    search_bins(s, k);
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
        const u32 shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        keys.each([&](u32 key) {
            if (key - low <= high - low) atomicAdd(&s.bins[(key - low) >> shift], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            s.lowest = NONE;
            s.highest = 0;
        }
        search_bins(s, wanted);
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

    // Whether the row covers column i, of this candidate.
    INLINE bool is_covered(u32 i, i32 candidate, u32& bits) const {
        return has_positions(candidate, bits) && position(i, candidate) < length;
    }

    // Writes an output: column i, or that there is none.
    INLINE void put(u32 place, u32 i, u32& bits) const {
        const bool is_column = i != NONE;
        u32 at = i;
        if (is_column && p.candidates.data != nullptr) {
            at = position(i, __ldg(p.candidates[row] + place_of(i)));
        }
        p.indices.set(row, place, static_cast<i32>(at));
        if (p.values.data != nullptr) {
            put_value(p, row, place, is_column ? to_f32(scores[i]) : negative_infinity());
        }
        if (p.slots.data != nullptr) put_slot(p, row, place, at, is_column, bits);
    }
};

// NaN has the key of -inf, whose bits are 0xFF800000.
constexpr u32 KEY_OF_NAN = ~0xFF800000u;

// The sort key of a score that is not NaN: that of `exact::sort_key`, without a branch.
INLINE u32 key_of_number(float x) {
    const u32 bits = __float_as_uint(exact::add(x, 0.0f));
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

constexpr u32 ALL_COVERED = (1u << PACK) - 1;

// Which of the columns first, .. first + PACK - 1 the row covers, a bit for each. `candidate` is
// that of the first column.
template <typename T>
INLINE u32 covered(const Row<T>& row, u32 first, u32 end, i32 candidate, u32& bits) {
    const WholeRows<T>& p = row.p;
    u32 count = first < end ? min(end - first, PACK) : 0;
    if (p.candidates.data != nullptr) {
        if (p.block % PACK != 0) {
            u32 mask = 0;
#pragma unroll 1
            for (u32 j = 0; j < PACK; j++) {
                const u32 i = first + j;
                if (i >= end) break;
                const i32 own = __ldg(p.candidates[row.row] + row.place_of(i));
                mask |= row.is_covered(i, own, bits) ? 1u << j : 0;
            }
            return mask;
        }
        // The columns have one candidate.
        if (!row.has_positions(candidate, bits)) return 0;
        const u32 position = row.position(first, candidate);
        count = position < row.length ? min(row.length - position, count) : 0;
    }
    return (1u << count) - 1;
}

// Turns the scores of a row into keys, and counts the keys in the first bins. Returns the flags
// that the scores and the candidates raise.
template <typename T>
INLINE u32 read(Shared& s, const Row<T>& row, const Loaded<T>& loaded, Keys& keys, u32 end) {
    const WholeRows<T>& p = row.p;
    const bool has_forced = p.forced_first + p.forced_last > 0;
    const u32 first_end = min(p.forced_first, end);
    const u32 last_begin = end - min(p.forced_last, end - first_end);
    u32 bits = 0;
    u32 count = 0;
#pragma unroll
    for (u32 g = 0; g < MAX_GROUPS; g++) {
        if (g >= keys.groups) break;
        const u32 first = keys.column(g);
        const u32 mask = covered(row, first, end, loaded.candidates[g], bits);
        count += __popc(mask);
        u32 (&of_group)[PACK] = keys.keys[g];
        float scores[PACK];
        // NaN if a score is NaN or infinite.
        float probe = 0.0f;
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            scores[j] = to_f32(loaded.packs[g].items[j]);
            probe = __fmaf_rn(scores[j], 0.0f, probe);
            of_group[j] = key_of_number(scores[j]);
        }
        if (probe != probe) {
#pragma unroll
            for (u32 j = 0; j < PACK; j++) {
                if (scores[j] == scores[j]) continue;
                of_group[j] = KEY_OF_NAN;
                if (mask >> j & 1) bits |= NON_FINITE;
            }
        }
        if (has_forced) {
#pragma unroll
            for (u32 j = 0; j < PACK; j++) {
                const u32 i = first + j;
                if (i < first_end || i >= last_begin) of_group[j] = FORCED_KEY;
            }
        }
        if (mask != ALL_COVERED) {
#pragma unroll
            for (u32 j = 0; j < PACK; j++) {
                if ((mask >> j & 1) == 0) of_group[j] = 0;
            }
        }
        // Columns that are not covered are counted in the bin of the smallest keys.
#pragma unroll
        for (u32 j = 0; j < PACK; j++) atomicAdd(&s.bins[first_bin(of_group[j])], 1u);
    }
    if (p.candidates.data != nullptr) {
        count = __reduce_add_sync(ALL_LANES, count);
        if (lane_id() == 0) atomicAdd(&s.covered, count);
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
        // With candidates, the scores that the row covers are counted.
        s.covered = has_candidates ? 0 : row.length;
    }
    __syncthreads();
    u32 bits = read(s, row, loaded, keys, end);
    if (threadIdx.x == 0) bits |= row.bits;
    __syncthreads();
    const u32 count = s.covered;
    const Cut cut = count > p.k ? find_cut(s, keys, p.k) : Cut{0, 0};
    if (cut.ties == 0) {
        list_chosen<false>(s, keys, cut);
    } else {
        list_chosen<true>(s, keys, cut);
    }
    for (u32 i = threadIdx.x; i < p.k; i += blockDim.x) {
        row.put(i, i < count ? chosen()[i] : NONE, bits);
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (threadIdx.x % WARP == 0) raise(p.flags, any);
}

SPEC_KERNEL(indexer_topk_row_f32, choose<float>, WholeRows<float>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_f16, choose<f16>, WholeRows<f16>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_bf16, choose<bf16>, WholeRows<bf16>, MAX_THREADS)
