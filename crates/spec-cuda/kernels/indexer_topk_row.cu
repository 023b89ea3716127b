// indexer_topk: chooses in rows of which one block of threads keeps all keys in shared memory. One
// launch does all that such rows ask for: blocks that are always chosen, candidates, values and
// slots.
//
// The keys of a row's scores are counted in bins, and the bin with the k-th largest key is found. If
// the bin has few keys, each of these is compared with every other. Else its keys are counted again,
// in bins of a smaller range, until few keys or equal ones are left.
//
// The first bins follow the magnitude of scores: 32 bins for each power of two between 2^-15 and
// 2^17, as the upper bits of an f16 would give. Of normal scores, a bin has a hundredth, so that
// counting once is enough.
//
// The kernel is written as short loops: for an instruction that runs once, a multiprocessor spends
// more time on fetching the instruction than on running it.
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
// Scores of a thread that are in flight at once.
constexpr u32 AHEAD = 8;

// The key of the last score that is chosen by its score, and how many scores of this key are
// chosen: the first ones in the row.
struct Cut {
    u32 key;
    u32 ties;
};

// A bit for each of 32 columns: whether its key is above the cut, and whether its key equals the
// cut.
struct alignas(8) Word {
    u32 above;
    u32 equal;
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
    // The keys of that bin.
    u32 listed;
    u32 list[MAX_COMPARED];
    Cut cut;
};

// The keys of a row, in dynamic shared memory; a column that the row does not cover has key 0. Behind
// the keys lie a `Word` for each 32 columns, and the list of the chosen columns, which ascend.
struct Keys {
    // How many keys there are, a multiple of 32, and for how many there is room.
    u32 count;
    u32 room;

    INLINE u32* keys() const {
        extern __shared__ uint4 memory[];
        return reinterpret_cast<u32*>(memory);
    }
    INLINE u32 words() const { return count / WARP; }
    INLINE Word& word(u32 i) const { return reinterpret_cast<Word*>(keys() + room)[i]; }
    INLINE u16* chosen() const {
        return reinterpret_cast<u16*>(keys() + room + room / WARP * (sizeof(Word) / 4));
    }

    // Calls visit(key) for each key.
    template <typename Visit>
    INLINE void each(Visit visit) const {
#pragma unroll 2
        for (u32 i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x) {
            const uint4 four = *reinterpret_cast<const uint4*>(keys() + i);
            visit(four.x);
            visit(four.y);
            visit(four.z);
            visit(four.w);
        }
    }
};

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
        if (at < MAX_COMPARED) s.list[at] = key;
    });
    __syncthreads();
    const u32 count = min(s.listed, MAX_COMPARED);
    // Each key is compared by a group of lanes, as many as the block has.
    u32 lanes = 1;
    while (lanes < WARP && 2 * lanes * count <= blockDim.x) lanes *= 2;
    const u32 own = threadIdx.x / lanes;
    const u32 key = own < count ? s.list[own] : 0;
    u32 larger = 0;
    u32 same = 0;
    for (u32 i = threadIdx.x % lanes; i < count; i += lanes) {
        larger += s.list[i] > key ? 1 : 0;
        same += s.list[i] == key ? 1 : 0;
    }
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        larger += __shfl_xor_sync(ALL_LANES, larger, half);
        same += __shfl_xor_sync(ALL_LANES, same, half);
    }
    // Every thread whose key has rank `wanted` writes the same cut. If all keys that equal this key
    // stay, the cut lies just below the key, and has no ties.
    if (own < count && larger < wanted && larger + same >= wanted) {
        const bool all_stay = larger + same == wanted;
        s.cut = all_stay ? Cut{key - 1, 0} : Cut{key, wanted - larger};
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
    // The covered scores; with candidates, the end of the covered positions.
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
        const u32 limit = has_candidates ? END_OF_POSITIONS : p.cols - start;
        length = limit;
        if (p.lengths.data != nullptr) {
            const i64 given = p.lengths[row];
            length = clamped(given, limit);
            // Positions beyond all candidates are no error.
            if (given < 0 || (!has_candidates && given > limit)) bits |= BAD_LENGTHS;
        }
        scores = p.scores[row] + start;
    }

    // The number of the candidate that column i belongs to.
    INLINE u32 place_of(u32 i) const {
        return static_cast<u32>(static_cast<u64>(i) * p.per_block >> 31);
    }

    // The position of column i, which belongs to a candidate that the row covers.
    INLINE u32 position(u32 i, i32 candidate) const {
        return static_cast<u32>(candidate) * p.block + (i - place_of(i) * p.block);
    }

    // Whether the row covers column i, of this candidate.
    INLINE bool is_covered(u32 i, i32 candidate, u32& bits) const {
        // Above this number, a candidate has positions beyond an i32.
        if (static_cast<u32>(candidate) > p.last_candidate) {
            if (candidate == -1) return false;
            bits |= OUT_OF_RANGE;
            if (candidate < 0 || candidate != p.last_candidate + 1) return false;
        }
        return position(i, candidate) < length;
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

// The sort key of a score; that of -inf for NaN. The same as `exact::sort_key`, without a branch.
INLINE u32 key_of_score(float x) {
    const u32 bits = __float_as_uint(exact::add(fmaxf(x, negative_infinity()), 0.0f));
    return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000u);
}

// Turns the scores of a row into keys, and counts the keys in the first bins. Returns the flags that
// the scores and the candidates raise.
template <typename T, bool HAS_CANDIDATES>
INLINE u32 read(Shared& s, const Row<T>& row, const Keys& keys) {
    const WholeRows<T>& p = row.p;
    const i32* const candidates = p.candidates[row.row];
    const u32 end = HAS_CANDIDATES ? p.cols : row.length;
    const u32 first = min(p.forced_first, end);
    const u32 last = end - min(p.forced_last, end - first);
    u32 bits = 0;
    bool has_nan = false;
    u32 count = 0;
#pragma unroll 1
    for (u32 from = threadIdx.x; from - threadIdx.x < keys.count; from += AHEAD * blockDim.x) {
        // Which columns are covered, then their scores: all loads of a kind are in flight at once.
        u32 covered = 0;
        if (HAS_CANDIDATES) {
            i32 given[AHEAD];
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                const u32 i = from + a * blockDim.x;
                given[a] = i < end ? __ldg(candidates + row.place_of(i)) : -1;
            }
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                const bool is_covered = row.is_covered(from + a * blockDim.x, given[a], bits);
                covered |= is_covered ? 1u << a : 0;
            }
            count += __popc(covered);
        } else {
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) covered |= from + a * blockDim.x < end ? 1u << a : 0;
        }
        float scores[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            scores[a] = covered >> a & 1 ? to_f32(row.scores[from + a * blockDim.x]) : 0.0f;
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 i = from + a * blockDim.x;
            has_nan |= scores[a] != scores[a];
            u32 key = key_of_score(scores[a]);
            if (!HAS_CANDIDATES && (i < first || i >= last)) key = FORCED_KEY;
            if ((covered >> a & 1) == 0) key = 0;
            if (i >= keys.count) break;
            keys.keys()[i] = key;
            // Columns that are not covered are counted in the bin of the smallest keys.
            atomicAdd(&s.bins[first_bin(key)], 1u);
        }
    }
    if (HAS_CANDIDATES) {
        count = __reduce_add_sync(ALL_LANES, count);
        if (threadIdx.x % WARP == 0) atomicAdd(&s.covered, count);
    }
    return has_nan ? bits | NON_FINITE : bits;
}

// Lists the columns whose keys stay, at most `k`. When a block calls this function, none of its
// threads still reads s.totals.
INLINE void list_chosen(Shared& s, const Keys& keys, const Cut& cut, u32 k) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll 4
    for (u32 w = threadIdx.x / WARP; w < keys.words(); w += warps()) {
        const u32 key = keys.keys()[w * WARP + lane];
        const u32 above = __ballot_sync(ALL_LANES, key > cut.key);
        const u32 equal = __ballot_sync(ALL_LANES, key == cut.key);
        if (lane == 0) keys.word(w) = {above, equal};
    }
    __syncthreads();
    // A thread lists the columns of a word.
    u32 above_before = 0;
    u32 ties_before = 0;
#pragma unroll 1
    for (u32 from = 0; from < keys.words(); from += blockDim.x) {
        const u32 w = from + threadIdx.x;
        const Word word = w < keys.words() ? keys.word(w) : Word{0, 0};
        u32 kept = word.above;
        u32 ties = cut.ties == 0 ? 0 : word.equal;
        const u32 own = __popc(kept) << 16 | __popc(ties);
        const u32 through = warp_inclusive_sum(own);
        u32 all;
        const u32 before =
            sum_before(s, __shfl_sync(ALL_LANES, through, WARP - 1), all) + through - own;
        const u32 ties_through = min(ties_before + (before & 0xFFFF), cut.ties);
        u32 place = above_before + (before >> 16) + ties_through;
        for (u32 left = cut.ties - ties_through; left > 0 && ties != 0; left--) {
            kept |= ties & (0 - ties);
            ties &= ties - 1;
        }
        for (; kept != 0 && place < k; place++) {
            keys.chosen()[place] = static_cast<u16>(w * WARP + __ffs(kept) - 1);
            kept &= kept - 1;
        }
        above_before += all >> 16;
        ties_before += all & 0xFFFF;
        __syncthreads();
    }
}

template <typename T>
INLINE void choose(const WholeRows<T>& p) {
    __shared__ Shared s;
    const Row<T> row(p, blockIdx.x);
    const bool has_candidates = p.candidates.data != nullptr;
    const u32 end = has_candidates ? p.cols : row.length;
    const Keys keys = {(end + WARP - 1) / WARP * WARP, p.room};
    clear_bins(s);
    if (threadIdx.x == 0) {
        s.listed = 0;
        s.lowest = NONE;
        s.highest = 0;
        // With candidates, the scores that the row covers are counted.
        s.covered = has_candidates ? 0 : row.length;
    }
    __syncthreads();
    u32 bits = has_candidates ? read<T, true>(s, row, keys) : read<T, false>(s, row, keys);
    if (threadIdx.x == 0) bits |= row.bits;
    __syncthreads();
    const u32 count = s.covered;
    const Cut cut = count > p.k ? find_cut(s, keys, p.k) : Cut{0, 0};
    list_chosen(s, keys, cut, p.k);
    for (u32 i = threadIdx.x; i < p.k; i += blockDim.x) {
        row.put(i, i < count ? keys.chosen()[i] : NONE, bits);
    }
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (threadIdx.x % WARP == 0) raise(p.flags, any);
}

SPEC_KERNEL(indexer_topk_row_f32, choose<float>, WholeRows<float>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_f16, choose<f16>, WholeRows<f16>, MAX_THREADS)
SPEC_KERNEL(indexer_topk_row_bf16, choose<bf16>, WholeRows<bf16>, MAX_THREADS)
