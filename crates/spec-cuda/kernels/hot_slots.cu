// hot_slots: which slots of a device buffer hold the KV entries that a step wants, and which
// entries must be fetched into the buffer.
//
// A block owns a row with m wanted entries and h slots. Before the block waits for the previous
// kernel, the block computes the addresses of the row, and clears what most rows use of shared
// memory. While the first loads of the row are under way, the block makes the lists of fetches
// empty. Then the block works in phases, with a barrier between them:
//
// 1. The range of the wanted entries is found, and whether they ascend, as the rows of indexer_topk
//    and deduplicate_topk do.
// 2. The entries go into a set (hot_slots_sets.cuh): a bitmap if they lie in a range of 2^20
//    numbers, as positions of a text mostly do, else a hash table. Each distinct entry has an id.
// 3. Each slot looks up the entry that it holds. The lowest slot of an entry is the minimum that
//    the slots leave at the entry's id: a hit. The slots that a miss may take are counted by age in
//    a histogram, whose first bin has the empty slots. Ages below 1024 have a bin each, greater
//    ones share bins by their 6 highest bits.
// 4. Entries without a slot are the misses, n of them; the bins of each warp are added.
// 5. The misses are numbered in ascending order. The bin of the last slot that is taken follows
//    from the sums. If it is shared by several ages and not all of its slots are taken, a radix
//    selection over the further bits finds the age.
// 6. Prefix sums number the slots that are taken in ascending order. Slot number r gets miss
//    number r.
// 7. The state of these slots, the lists and the answers are written.
//
// Without misses, phases 5 and 6 are left out.
//
// A warp has neighbouring columns, and neighbouring slots: each lane has 4 columns (8 slots) in a
// first group, as many in a second, and so on. A mask holds one bit for each of a thread's columns
// or slots, of which there are 64 at most. The values of the first group stay in registers from
// phase to phase; those of other groups are loaded again.
//
// The bitmap, or the table, and the list of misses lie in shared memory if they fit (m up to 8192
// on an H100), else the table and its list in the workspace.
//
// Bytes: 4 m + 8 h read, 12 m + 4 (hits) + 16 n written, with n misses: 74 KB for h 4096, m 2048
// and 2 % misses. The number of instructions and their latencies decide the time, not the bytes:
// such a row takes some 22,900 instructions, counted for whole warps by `ncu --section
// SourceCounters -k regex:hot_slots -c 1 spec-bench hot_slots --device cuda:0 --shape
// batch=1,misses=20 --quick`. A multiprocessor executes at most 4 instructions in a cycle. Here it
// executes half as many, because the few warps of a block often wait all at once for results of
// earlier instructions. So each thread has many slots, and the loads of all its slots are under way
// at once. Code that few rows need stands behind a branch that other rows do not take.
#include "hot_slots_sets.cuh"

// Neighbouring bins of a lane, and warps that have bins.
constexpr u32 BINS_OF_LANE = 4;
constexpr u32 BIN_WARPS = BINS / (BINS_OF_LANE * WARP);
static_assert(BIN_WARPS <= THREADS / WARP && THREADS <= WORKSPACE_THREADS && BINS_OF_LANE == 4);
// Ages below 2^LOG_EXACT have a bin each, others one for each value of their LOG_SHARED + 1 highest
// bits. Bins descend with age; bin 0 has empty slots.
constexpr u32 LOG_EXACT = 10;
constexpr u32 LOG_SHARED = 5;
constexpr u32 LAST_BIN = (1u << LOG_EXACT) + ((32 - LOG_EXACT) << LOG_SHARED);
static_assert(LAST_BIN < BINS);
// Each bin from this one on has the slots of a single age.
constexpr u32 FIRST_EXACT_BIN = LAST_BIN - (1u << LOG_EXACT) + 1;
// The bin of slots that no miss may take. These slots are counted like others, because a branch
// would cost more; nobody reads the counter.
constexpr u32 NO_BIN = BINS;
// Words of a bitmap that are cleared before the range of the entries is known.
constexpr u32 CLEARED = 4096;
// The request of a row that is padding.
constexpr u32 PADDING = NONE;
// The tail start of a row without tail slots: no entry is as great.
constexpr i64 NO_TAIL = 1ll << 32;
// Places that are not there: of a slot whose block is missing, and a number of 2^31 or more.
constexpr i32 MISSING = -1;
constexpr i32 TOO_FAR = -2;

// The arguments of one row.
struct Row {
    i32* resident;
    i32* used;
    i32* slots;
    i32* fetch_positions;
    i32* fetch_slots;
    // The entry of the first tail slot; above all entries if there is no tail.
    i64 tail_start;
    // The row of the state, of blocks and of pages.
    u32 request;
    u32 step;
    bool reset;
    // The thread's slots.
    Part<SLOTS> part;
};

// A number below 2^31 over a size whose inverse the host computed, with the shift behind it.
INLINE u32 quotient(u32 number, u32 inverse, u32 shift) {
    return static_cast<u32>(static_cast<u64>(number) * inverse >> shift);
}

INLINE i32 in_block(i32 block, u32 size, u32 within) {
    const i64 place = static_cast<i64>(block) * size + within;
    return place > 0x7FFFFFFF ? TOO_FAR : static_cast<i32>(place);
}

// The place of a slot in the cache.
INLINE i32 place_of(const Params& p, const Row& row, u32 slot) {
    if (!p.has_blocks) return static_cast<i32>(slot);
    const u32 index = quotient(slot, p.block_inverse, p.block_shift);
    if (index >= p.block_count) return MISSING;
    const i32 block = p.block_table[row.request][index];
    return block < 0 ? MISSING : in_block(block, p.block_size, slot - index * p.block_size);
}

// Whether an entry, which is not negative, lies outside of the slots; its place if it does.
INLINE bool lies_outside(const Params& p, const Row& row, u32 entry, i32& place, u32& bits) {
    place = MISSING;
    bool outside = false;
    const u32 index = quotient(entry, p.page_inverse, p.page_shift);
    if (index < p.page_count) {
        const i32 page = p.pages[row.request][index];
        if (page > p.null_page) {
            outside = true;
            place = in_block(page, p.page_size, entry - index * p.page_size);
        }
    }
    const i64 behind = static_cast<i64>(entry) - row.tail_start;
    if (!outside && behind >= 0) {
        outside = true;
        place = behind < p.tail ? place_of(p, row, p.h + static_cast<u32>(behind)) : TOO_FAR;
    }
    if (outside && place < 0) {
        bits |= OUT_OF_RANGE;
        place = -1;
    }
    return outside;
}

// The slots of one thread, a bit for each slot, SLOTS bits for each group: the slots that a miss
// may take, the empty ones among these, and the hits.
template <typename Mask>
struct Mine {
    Mask free;
    Mask empty;
    Mask hits;
    // Whether a hit shares its entry with another slot.
    bool is_double;
    // The bins of the slots of the first group.
    u32 bins[SLOTS];
};

// The slots that are taken: those of lower bins than `bin`, and the first `quota` of that bin;
// `count` in all.
struct Cut {
    u32 bin;
    u32 quota;
    u32 count;
    // Whether slots of several ages have this bin, and some of its slots are not taken.
    bool is_shared;
};

// The slots of one thread that are taken: all of `certain`, and some of `tied`.
template <typename Mask>
struct Taken {
    Mask certain;
    Mask tied;
};

// Finds which columns have an entry for the set, the range of these entries in each warp, and
// whether they ascend. Columns whose entries lie outside of the slots get their answers.
template <typename Mask>
INLINE void note_columns(const Params& p, const Row& row, Columns<Mask>& columns, bool is_request,
                         Shared& shared, u32& bits) {
    const bool any_outside = is_request && (p.page_count > 0 || p.tail_starts.data != nullptr);
    u32 low = NONE;
    i32 high = 0;
    u32 previous = 0;
    bool ascend = true;
#pragma unroll 1
    for (u32 g = 0; g < columns.part.groups; g++) {
        const u32 first = columns.part.at(g);
        u32 (&entries)[COLUMNS] = columns.entries;
        if (g != 0) load_neighbours(entries, columns.wanted, first, p.m, p.by_vectors);
        if (rarely(any_outside)) {
#pragma unroll 1
            for (u32 j = 0; j < COLUMNS; j++) {
                i32 place = -1;
                if (static_cast<i32>(entries[0]) >= 0 &&
                    lies_outside(p, row, entries[0], place, bits)) {
                    row.slots[first + j] = place;
                    columns.outside |= static_cast<Mask>(1) << (COLUMNS * g + j);
                    entries[0] = NONE;
                }
                rotate(entries);
            }
        }
        const u32 before = __shfl_up_sync(ALL_LANES, entries[COLUMNS - 1], 1);
        u32 entered = 0;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            const bool is_entry = static_cast<i32>(entries[j]) >= 0;
            if (!is_entry) entries[j] = NONE;
            if (is_entry) entered |= 1u << j;
            low = min(low, entries[j]);
            high = max(high, static_cast<i32>(entries[j]));
            // NONE is above all entries, so it may follow any of them, and only NONE follows NONE.
            if (j > 0) ascend &= !is_entry || entries[j - 1] < entries[j];
        }
        previous = lane_id() == 0 ? previous : before;
        ascend &= entries[0] == NONE || previous < entries[0] || (g == 0 && lane_id() == 0);
        columns.entered |= static_cast<Mask>(entered) << (COLUMNS * g);
        previous = __shfl_sync(ALL_LANES, entries[COLUMNS - 1], WARP - 1);
    }
    low = __reduce_min_sync(ALL_LANES, low);
    high = __reduce_max_sync(ALL_LANES, high);
    ascend = __all_sync(ALL_LANES, ascend);
    if (lane_id() == 0) {
        shared.lows[threadIdx.x / WARP] = low;
        shared.highs[threadIdx.x / WARP] = high;
        shared.lasts[threadIdx.x / WARP] = ascend ? previous : UNSORTED;
    }
}

// The bin of an age.
INLINE u32 bin_of(u32 age) {
    if (age < 1u << LOG_EXACT) return LAST_BIN - age;
    const u32 log = 31 - __clz(age);
    const u32 high = age >> (log - LOG_SHARED);
    // `high` has its highest bit, which counts for one step of `log` here.
    return LAST_BIN - (1u << LOG_EXACT) - ((log - LOG_EXACT - 1) << LOG_SHARED) - high;
}

// The bits of an age that a bin from 1 on has in common, without the `shift` bits below them.
INLINE u32 ages_of(u32 bin, u32& shift) {
    const u32 number = LAST_BIN - bin;
    shift = 0;
    if (number < 1u << LOG_EXACT) return number;
    const u32 of_shared = number - (1u << LOG_EXACT);
    shift = LOG_EXACT - LOG_SHARED + (of_shared >> LOG_SHARED);
    return 1u << LOG_SHARED | of_shared % (1u << LOG_SHARED);
}

// The bin of a slot that a miss may take, by the step in which the slot was last used.
INLINE u32 bin_of_slot(const Row& row, u32 used, bool is_empty) {
    return is_empty ? 0 : bin_of(row.step - used);
}

// The bins of the slots of a group. `mine` has them if there is one group.
template <typename Mask>
INLINE void load_bins(const Params& p, const Row& row, const Mine<Mask>& mine, u32 group,
                      u32 (&bins)[SLOTS]) {
    if (row.part.groups == 1) {
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) bins[j] = mine.bins[j];
        return;
    }
    load_neighbours(bins, row.used, row.part.at(group), p.h, p.by_vectors);
    const u32 free = bits_of<SLOTS>(mine.free, group);
    const u32 empty = bits_of<SLOTS>(mine.empty, group);
#pragma unroll
    for (u32 j = 0; j < SLOTS; j++) {
        bins[j] = free >> j & 1 ? bin_of_slot(row, bins[j], empty >> j & 1) : NO_BIN;
    }
}

// Which of the SLOTS slots that a lane has in one group exist, a bit for each of them. A slot
// exists if its number is below h, the number of slots of a row, and if the block table, where the
// caller gave one, has a block for the slot. `first` is the number of the lane's first slot in the
// group. `resident` has the entries that the slots hold; the function writes NONE for slots that do
// not exist. If the row asks for a reset, the function first makes all these slots empty.
INLINE u32 slots_of_group(const Params& p, const Row& row, u32 first, u32 (&resident)[SLOTS],
                          u32& bits) {
    const u32 count = first < p.h ? min(p.h - first, SLOTS) : 0;
    u32 there = (1u << count) - 1;
    if (rarely(row.reset)) {
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            if (j < count) row.resident[first + j] = -1;
            resident[j] = NONE;
        }
    }
    if (rarely(p.has_blocks)) {
#pragma unroll 1
        for (u32 j = 0; j < count; j++) {
            const i32 place = place_of(p, row, first + j);
            if (place == TOO_FAR) bits |= OUT_OF_RANGE;
            if (place < 0) there &= ~(1u << j);
        }
    }
    if (rarely(there != (1u << SLOTS) - 1)) {
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            if ((there >> j & 1) == 0) resident[j] = NONE;
        }
    }
    return there;
}

// Looks up the entry of each slot, and counts the slots that are no hits by age. `losers` gets a
// bit for each slot whose entry a lower slot holds too. `resident` and `used` have the values of
// the first group.
template <typename Mask>
INLINE Mine<Mask> look_up(const Params& p, const Row& row, const Set& set, u32* losers, u32* bins,
                          u32 (&resident)[SLOTS], u32 (&used)[SLOTS], u32& bits) {
    Mine<Mask> mine = {};
#pragma unroll 1
    for (u32 g = 0; g < row.part.groups; g++) {
        const u32 first = row.part.at(g);
        if (g != 0) {
            load_neighbours(resident, row.resident, first, p.h, p.by_vectors);
            load_neighbours(used, row.used, first, p.h, p.by_vectors);
        }
        const u32 there = slots_of_group(p, row, first, resident, bits);
        const u32 hits = set.look_up(resident, first, losers, mine.is_double);
        u32 empty = 0;
        u32 oldest = 0;
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            const bool is_empty = static_cast<i32>(resident[j]) < 0;
            if (is_empty) empty |= 1u << j;
            const u32 age = is_empty ? 0 : row.step - used[j];
            oldest = max(oldest, age);
            // The bin of an age below 2^LOG_EXACT.
            mine.bins[j] = is_empty ? 0 : LAST_BIN - age;
        }
        if (rarely(oldest >= 1u << LOG_EXACT)) {
#pragma unroll 1
            for (u32 j = 0; j < SLOTS; j++) {
                mine.bins[0] = bin_of_slot(row, used[0], empty >> j & 1);
                rotate(mine.bins);
                rotate(used);
            }
        }
        const u32 not_free = hits | ~there;
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            if (not_free >> j & 1) mine.bins[j] = NO_BIN;
            atomicAdd(&bins[mine.bins[j]], 1u);
        }
        const u32 free = there & ~hits;
        mine.free |= static_cast<Mask>(free) << (SLOTS * g);
        mine.empty |= static_cast<Mask>(empty & free) << (SLOTS * g);
        mine.hits |= static_cast<Mask>(hits) << (SLOTS * g);
    }
    return mine;
}

// Takes from the hits the slots whose entry a lower slot holds too, and counts them by age.
template <typename Mask>
INLINE void drop_losers(const Row& row, const u32* losers, u32* bins, Mine<Mask>& mine) {
#pragma unroll 1
    for (u32 i = 0; i < SLOTS * row.part.groups; i++) {
        const u32 slot = row.part.at(i / SLOTS) + i % SLOTS;
        const Mask bit = static_cast<Mask>(1) << i;
        if ((mine.hits & bit) && (losers[slot / WARP] >> (slot % WARP) & 1)) {
            mine.hits &= ~bit;
            mine.free |= bit;
            mine.bins[0] = bin_of(row.step - static_cast<u32>(row.used[slot]));
            atomicAdd(&bins[mine.bins[0]], 1u);
        }
        rotate(mine.bins);
    }
}

// Writes that the hits are used in this step. `used` has the values of the first group.
template <typename Mask>
INLINE void mark_hits(const Params& p, const Row& row, const Mine<Mask>& mine,
                      u32 (&used)[SLOTS]) {
#pragma unroll 1
    for (u32 g = 0; g < row.part.groups; g++) {
        const u32 first = row.part.at(g);
        if (row.part.groups > 1) load_neighbours(used, row.used, first, p.h, p.by_vectors);
        const u32 hits = bits_of<SLOTS>(mine.hits, g);
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            if (hits >> j & 1) used[j] = row.step;
        }
        store_neighbours(row.used, used, first, hits, p.by_vectors && first + SLOTS <= p.h);
    }
}

// Finds the age of the last of the `left` oldest slots among the row's candidates. `candidates` has
// the bits of this thread's candidates. The ages of all candidates of the row are equal but for
// their lowest `shift` bits, and `prefix` is the part above these. `left` is above 0, and the row
// has at least so many candidates. Afterwards `left` is how many of these `left` oldest slots have
// just the age that was found.
template <typename Mask>
INLINE u32 select_age(const Row& row, u32* bins, Shared& shared, Mask candidates, u32 prefix,
                      u32 shift, u32& left) {
    const u32 warp = threadIdx.x / WARP;
    while (shift > 0) {
        const u32 width = min(shift, LOG_BINS);
        shift -= width;
        // All threads have read the bins.
        __syncthreads();
#pragma unroll 1
        for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) bins[bin] = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 i = 0; i < SLOTS * row.part.groups; i++) {
            if ((candidates >> i & 1) == 0) continue;
            const u32 slot = row.part.at(i / SLOTS) + i % SLOTS;
            const u32 age = row.step - static_cast<u32>(row.used[slot]);
            // A shift by 32 bits leaves nothing of 64.
            if (static_cast<u64>(age) >> (shift + width) != prefix) continue;
            atomicAdd(&bins[age >> shift & ((1u << width) - 1)], 1u);
        }
        __syncthreads();
        // The greatest digits come first.
        const u32 end = warp < BIN_WARPS ? BINS - BINS_OF_LANE * threadIdx.x : 0;
        u32 of_bin[BINS_OF_LANE];
        u32 own = 0;
#pragma unroll
        for (u32 j = 0; j < BINS_OF_LANE; j++) {
            of_bin[j] = end > 0 ? bins[end - 1 - j] : 0;
            own += of_bin[j];
        }
        const u32 through = warp_inclusive_sum(own);
        if (lane_id() == WARP - 1) shared.totals[warp] = through;
        __syncthreads();
        const u32 before = sum_before(shared.totals[lane_id()]) + through - own;
        if (before < left && before + own >= left) {
            const RankInBins last = find_rank(of_bin, left - before);
            shared.bin = end - 1 - last.bin;
            shared.left = last.rank;
        }
        __syncthreads();
        prefix = prefix << width | shared.bin;
        left = shared.left;
    }
    return prefix;
}

// How many slots, of those that a miss may take, lie in the neighbouring bins of a thread.
struct OwnBins {
    // How many such slots each of the thread's bins has, and how many all its bins have together.
    u32 of_bin[BINS_OF_LANE];
    u32 own;
    // How many such slots the bins of this lane and of the lanes before it have together.
    u32 through;
};

// Counts the slots in the bins of each thread, and leaves the sum over each warp in `shared.free`.
INLINE OwnBins sum_bins(const u32* bins, Shared& shared) {
    OwnBins result = {};
    if (threadIdx.x < BINS / BINS_OF_LANE) {
        const uint4 four = reinterpret_cast<const uint4*>(bins)[threadIdx.x];
        result = {{four.x, four.y, four.z, four.w}, four.x + four.y + four.z + four.w, 0};
    }
    result.through = warp_inclusive_sum(result.own);
    if (lane_id() == WARP - 1) shared.free[threadIdx.x / WARP] = result.through;
    return result;
}

// Finds the bins whose slots the n misses take. With one barrier, unless the misses take all slots.
INLINE Cut find_cut(const OwnBins& bins, Shared& shared, u32 n) {
    const u32 of_warp = shared.free[lane_id()];
    const u32 free = sum_of(of_warp);
    Cut cut = {NO_BIN, 0, min(n, free), false};
    if (cut.count == free) return cut;
    const u32 before = sum_before(of_warp) + bins.through - bins.own;
    if (before < cut.count && before + bins.own >= cut.count) {
        const RankInBins last = find_rank(bins.of_bin, cut.count - before);
        shared.bin = BINS_OF_LANE * threadIdx.x + last.bin;
        shared.left = last.rank;
        shared.inside = last.inside;
    }
    __syncthreads();
    cut.bin = shared.bin;
    cut.quota = shared.left;
    cut.is_shared = cut.quota < shared.inside && cut.bin > 0 && cut.bin < FIRST_EXACT_BIN;
    return cut;
}

// The thread's slots that are taken.
template <typename Mask>
INLINE Taken<Mask> choose(const Params& p, const Row& row, const Mine<Mask>& mine, u32* bins,
                          Shared& shared, Cut& cut) {
    Taken<Mask> taken = {};
#pragma unroll 1
    for (u32 g = 0; g < row.part.groups; g++) {
        u32 of_slots[SLOTS];
        load_bins(p, row, mine, g, of_slots);
        u32 below = 0;
        u32 equal = 0;
#pragma unroll
        for (u32 j = 0; j < SLOTS; j++) {
            if (of_slots[j] < cut.bin) below |= 1u << j;
            if (of_slots[j] == cut.bin) equal |= 1u << j;
        }
        taken.certain |= static_cast<Mask>(below) << (SLOTS * g);
        taken.tied |= static_cast<Mask>(equal) << (SLOTS * g);
    }
    if (!rarely(cut.is_shared)) return taken;
    u32 shift = 0;
    const u32 prefix = ages_of(cut.bin, shift);
    const u32 oldest = select_age(row, bins, shared, taken.tied, prefix, shift, cut.quota);
#pragma unroll 1
    for (u32 i = 0; i < SLOTS * row.part.groups; i++) {
        const Mask bit = static_cast<Mask>(1) << i;
        if ((taken.tied & bit) == 0) continue;
        const u32 slot = row.part.at(i / SLOTS) + i % SLOTS;
        const u32 age = row.step - static_cast<u32>(row.used[slot]);
        if (age > oldest) taken.certain |= bit;
        if (age != oldest) taken.tied &= ~bit;
    }
    return taken;
}

// Numbers the slots that are taken: slot number r is taken_slots[r]. With one barrier.
template <typename Mask>
INLINE void number_slots(const Row& row, const Taken<Mask>& taken, const Cut& cut,
                         u16* taken_slots, Shared& shared) {
    // Both counts of a warp in one word: certain slots in the low half. The sum over earlier lanes
    // is below 2^16 for either.
    const u32 of_warp = sum_of(ones(taken.certain) | ones(taken.tied) << 16);
    if (lane_id() == 0) shared.totals[threadIdx.x / WARP] = of_warp;
    __syncthreads();
    u32 before = sum_before(shared.totals[lane_id()]);
#pragma unroll 1
    for (u32 g = 0; g < row.part.groups; g++) {
        const u32 certain = bits_of<SLOTS>(taken.certain, g);
        const u32 tied = bits_of<SLOTS>(taken.tied, g);
        const u32 own = __popc(certain) | __popc(tied) << 16;
        const u32 through = warp_inclusive_sum(own);
        const u32 sure = (before + through - own) & 0xFFFF;
        const u32 ties = (before + through - own) >> 16;
        // The first of the lane's tied slots are taken.
        const u32 left = ties < cut.quota ? cut.quota - ties : 0;
        u32 of_tied = tied;
        while (__popc(of_tied) > left) of_tied &= ~(1u << (31 - __clz(of_tied)));
        const u32 which = certain | of_tied;
        u32 r = sure + min(ties, cut.quota);
        // All numbers of slots are below the count, unless somebody else writes to `used` while the
        // kernel runs.
        if (which != 0 && r + __popc(which) <= cut.count) {
#pragma unroll
            for (u32 j = 0; j < SLOTS; j++) {
                if (which >> j & 1) taken_slots[r++] = static_cast<u16>(row.part.at(g) + j);
            }
        }
        before += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
}

// Gives the first misses to the slots that are taken.
INLINE void hand_out(const Params& p, const Row& row, const Set& set, const u16* taken_slots,
                     u32 count) {
#pragma unroll 1
    for (u32 r = threadIdx.x; r < count; r += blockDim.x) {
        const u32 slot = taken_slots[r];
        // An element of `taken_slots` is the number of a slot, unless somebody else writes to
        // `used` while the kernel runs: then `number_slots` may have left elements unwritten.
        if (slot >= p.h) continue;
        const u32 entry = set.miss(r);
        row.resident[slot] = static_cast<i32>(entry);
        row.used[slot] = static_cast<i32>(row.step);
        row.fetch_positions[r] = static_cast<i32>(entry);
        row.fetch_slots[r] = place_of(p, row, slot);
    }
}

// Makes the lists of fetches of a row empty. Each thread writes the elements that have the numbers
// of its columns. A barrier must follow before `hand_out` writes fetches to the lists.
INLINE void clear_lists(const Params& p, const Row& row, const Part<COLUMNS>& part) {
#pragma unroll 1
    for (u32 g = 0; g < part.groups; g++) {
        const u32 first = part.at(g);
        if (first >= p.m) break;
        const u32 none[COLUMNS] = {NONE, NONE, NONE, NONE};
        const u32 inside = (1u << min(p.m - first, COLUMNS)) - 1;
        const bool by_vectors = p.by_vectors && first + COLUMNS <= p.m;
        store_neighbours(row.fetch_positions, none, first, inside, by_vectors);
        store_neighbours(row.fetch_slots, none, first, inside, by_vectors);
    }
}

// Writes where the entries of the columns lie.
template <typename Mask>
INLINE void answer(const Params& p, const Row& row, const Set& set, const Columns<Mask>& columns,
                   const u16* taken_slots, u32 count) {
#pragma unroll 1
    for (u32 g = 0; g < columns.part.groups; g++) {
        const u32 first = columns.part.at(g);
        if (first >= p.m) break;
        const u32 inside = (1u << min(p.m - first, COLUMNS)) - 1;
        u32 places[COLUMNS];
        set.owners_of(columns, g, places);
        const u32 entered = bits_of<COLUMNS>(columns.entered, g);
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            const u32 r = places[j] - MISS;
            if (places[j] >= MISS) places[j] = NONE;
            if (r < count) places[j] = taken_slots[r];
            if ((entered >> j & 1) == 0) places[j] = NONE;
        }
        if (rarely(p.has_blocks)) {
#pragma unroll 1
            for (u32 j = 0; j < COLUMNS; j++) {
                if (places[0] != NONE) places[0] = place_of(p, row, places[0]);
                rotate(places);
            }
        }
        const bool by_vectors = p.by_vectors && first + COLUMNS <= p.m;
        const u32 outside = bits_of<COLUMNS>(columns.outside, g);
        store_neighbours(row.slots, places, first, inside & ~outside, by_vectors && outside == 0);
    }
}

// The memory of a block: parts of the dynamic shared memory, and of the workspace.
struct Room {
    u32* bins;
    u32* losers;
    // The slots that are taken, in ascending order.
    u16* taken;
    // A word for each lane, see Narrow.
    u32* spare;
    // What a set has in shared memory.
    u32* own;
    // The places of a hashed set.
    u32* places;
};

// The number of columns, rounded up as the host rounds it to size what a block has for each column.
INLINE u32 rounded_columns(const Params& p) { return (p.m + 7) / 8 * 8; }

// Does all phases from the second on for one row, whose columns are noted and whose set is empty.
// `previous` is the entry in the column before this warp's first column, NONE if there is none;
// `resident` and `used` have the state of the thread's slots of the first group.
template <typename Mask>
INLINE void serve(const Params& p, const Row& row, const Set& set, const Columns<Mask>& columns,
                  u32 previous, u32 (&resident)[SLOTS], u32 (&used)[SLOTS], const Room& room,
                  Shared& shared, i32* fetches, u32& bits) {
#pragma unroll 1
    for (u32 g = 0; g < columns.part.groups; g++) {
        u32 pack[COLUMNS];
        columns.load(g, pack);
        const u32 before = __shfl_up_sync(ALL_LANES, pack[COLUMNS - 1], 1);
        set.enter(pack, columns.part.at(g), lane_id() == 0 ? previous : before);
        previous = __shfl_sync(ALL_LANES, pack[COLUMNS - 1], WARP - 1);
    }
    __syncthreads();
    set.number(columns, shared);
    Mine<Mask> mine = look_up<Mask>(p, row, set, room.losers, room.bins, resident, used, bits);
    if (rarely(__syncthreads_or(mine.is_double))) {
        drop_losers(row, room.losers, room.bins, mine);
        __syncthreads();
    }
    const Mask missing = set.note(columns, shared);
    const OwnBins bins = sum_bins(room.bins, shared);
    mark_hits(p, row, mine, used);
    __syncthreads();
    const u32 n = set.misses(shared);
    u32 count = 0;
    if (n > 0) {
        set.list_misses(columns, missing, shared);
        Cut cut = find_cut(bins, shared, n);
        count = cut.count;
        if (n > count) bits |= BAD_LENGTHS;
        const Taken<Mask> taken = choose(p, row, mine, room.bins, shared, cut);
        number_slots(row, taken, cut, room.taken, shared);
        __syncthreads();
        hand_out(p, row, set, room.taken, count);
    }
    answer(p, row, set, columns, room.taken, count);
    if (threadIdx.x == 0) *fetches = static_cast<i32>(count);
}

// A row that is left out: padding, or a request that is no row of the state or that a lower row
// has. Its lists of fetches are empty already.
INLINE void leave_out(const Params& p, u32 r) {
#pragma unroll 1
    for (u32 column = threadIdx.x; column < p.m; column += blockDim.x) {
        p.slots[r][column] = -1;
    }
    if (threadIdx.x == 0) p.fetches[r] = 0;
}

// The parts of a narrow set, without its range.
INLINE Narrow narrow_in(const Params& p, const Room& room) {
    const u32 ids = rounded_columns(p);
    Narrow set;
    set.owners = room.own;
    set.entries = set.owners + ids;
    set.bits = set.entries + ids;
    // Behind the last word that may have entries is one that has none, see `find`.
    set.starts = reinterpret_cast<u16*>(set.bits + p.bits_words + 4);
    set.list = set.starts + p.bits_words + 8;
    keep_shared(set.bits);
    keep_shared(set.starts);
    set.spare = room.spare;
    set.columns = p.m;
    return set;
}

INLINE Hashed hashed_in(const Params& p, const Room& room) {
    const u32 places = 1u << p.log_places;
    u32* const keys = room.places;
    return {keys,           keys + places, keys + 2 * places,  room.own,
            p.bitmap_words, places - 1,    32 - p.log_places};
}

// Fills words `first` to `end`, both multiples of 4.
INLINE void fill(u32* words, u32 first, u32 end, u32 value) {
#pragma unroll 1
    for (u32 i = first + 4 * threadIdx.x; i < end; i += 4 * blockDim.x) {
        *reinterpret_cast<uint4*>(words + i) = make_uint4(value, value, value, value);
    }
}

// Asks for `count` values, so that they are in the second-level cache when the threads load them.
INLINE void ask_for(const i32* from, u32 count) {
    constexpr u32 LINE = 128 / sizeof(i32);
#pragma unroll 1
    for (u32 at = threadIdx.x * LINE; at < count; at += blockDim.x * LINE) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
}

// Clears what most rows use of shared memory: the first CLEARED words of a narrow set, the bits of
// losers, the bins, and the values of warps that the block does not have.
INLINE void clear(const Params& p, const Set& set, const Room& room, Shared& shared) {
    fill(set.narrow.bits, 0, min(p.bits_words, CLEARED), 0);
    fill(room.losers, 0, p.loser_words, 0);
    fill(room.bins, 0, BINS, 0);
    shared.clear();
}

template <typename Mask>
INLINE void one_row(const Params& p, u32 r, const Room& room, Shared& shared) {
    // What needs no results of the previous kernel is done while that kernel may still run.
    Row row = {p.resident[r],        p.used[r],        p.slots[r],
               p.fetch_positions[r], p.fetch_slots[r], NO_TAIL,
               r,                    0,                false,
               Part<SLOTS>(p.slot_groups)};
    const i32* wanted = p.wanted[r];
    // A step counts by its low 32 bits, which come first.
    const u32* step =
        static_cast<const u32*>(p.steps.data) + (p.steps.wide ? 2 : 1) * r * p.step_stride;
    keep_global(wanted);
    keep_global(step);
    keep_global(row.resident);
    keep_global(row.used);
    keep_global(row.slots);
    keep_global(row.fetch_positions);
    keep_global(row.fetch_slots);
    Set set = {false, narrow_in(p, room), hashed_in(p, room)};
    clear(p, set, room, shared);
    follow();
    // The loads that every row needs come first, so that their latencies overlap with each other.
    Columns<Mask> columns(wanted, p.m, p.column_groups, p.by_vectors);
    row.step = *step;
    u32 request = r;
    u32 h = p.h;
    bool is_request = true;
    if (rarely(p.requests != nullptr)) {
        // A negative request is above all rows of the state here, of which there are less than
        // 2^31.
        request = static_cast<u32>(p.requests[r]);
        is_request = request < p.tables;
        if (!is_request) h = 0;
        row.request = is_request ? request : 0;
        row.resident = p.resident[row.request];
        row.used = p.used[row.request];
    }
    // Also the addresses of a request's row, which the threads have only now.
    keep_global(row.resident);
    keep_global(row.used);
    u32 resident[SLOTS];
    u32 used[SLOTS];
    load_neighbours(resident, row.resident, row.part.first, h, p.by_vectors);
    load_neighbours(used, row.used, row.part.first, h, p.by_vectors);
    if (rarely(row.part.groups > 1)) {
        ask_for(row.resident, h);
        ask_for(row.used, h);
    }
    clear_lists(p, row, columns.part);
    if (rarely(p.resets != nullptr)) row.reset = p.resets[r] != 0;
    u32 bits = 0;
    if (rarely(p.tail_starts.data != nullptr)) {
        row.tail_start = p.tail_starts[r];
        if (row.tail_start < 0) {
            row.tail_start = 0;
            bits |= BAD_LENGTHS;
        }
    }
    bool is_lost = false;
    if (rarely(p.requests != nullptr)) {
#pragma unroll 1
        for (u32 lower = threadIdx.x; lower < r; lower += blockDim.x) {
            is_lost |= static_cast<u32>(p.requests[lower]) == request;
        }
    }
    note_columns(p, row, columns, is_request, shared, bits);
    // All threads decide alike, also if the request changes while they load it.
    if (rarely(__syncthreads_or(is_lost || !is_request))) {
        if (threadIdx.x == 0 && request != PADDING) raise(p.flags, BAD_LENGTHS);
        leave_out(p, r);
        return;
    }
    const u32 of_low = shared.lows[lane_id()];
    const u32 last = shared.lasts[lane_id()];
    const u32 previous = __shfl_up_sync(ALL_LANES, last, 1);
    const u32 low = __reduce_min_sync(ALL_LANES, of_low);
    const u32 high = __reduce_max_sync(ALL_LANES, shared.highs[lane_id()]);
    set.narrow.by_column = __all_sync(
        ALL_LANES, last != UNSORTED && (lane_id() == 0 || of_low == NONE || previous < of_low));
    const u32 before = __shfl_sync(ALL_LANES, lane_id() == 0 ? NONE : previous, threadIdx.x / WARP);
    // Without entries, a range of one word.
    set.narrow.base = (low == NONE ? high : low) / WARP * WARP;
    set.narrow.words = (high - set.narrow.base) / WARP + 1;
    set.is_hashed = set.narrow.words > p.bits_words;
    if (rarely(set.is_hashed)) {
        // The places and their owners lie one behind the other.
        fill(set.hashed.keys, 0, 2 << p.log_places, NONE);
        if (threadIdx.x == 0) {
            shared.misses = 0;
            shared.lowest = NONE;
            shared.highest = 0;
        }
        __syncthreads();
    } else if (rarely(set.narrow.words > CLEARED)) {
        fill(set.narrow.bits, CLEARED, (set.narrow.words + 3) / 4 * 4, 0);
        __syncthreads();
    }
    serve(p, row, set, columns, before, resident, used, room, shared, p.fetches + r, bits);
    bits = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

// IN_SHARED: the slots that are taken, and the places of a hashed set, lie in shared memory, and
// each row has a block of its own; else they lie in the workspace, and a block has several rows.
// Mask: a bit for each column or slot of a thread.
template <bool IN_SHARED, typename Mask>
INLINE void in_rows(const Params& p) {
    // The size of all blocks that the host launches. So the compiler need not load the size.
    __builtin_assume(blockDim.x == (IN_SHARED ? THREADS : WORKSPACE_THREADS));
    extern __shared__ uint4 dynamic[];
    __shared__ Shared of_block;
    Shared* shared = &of_block;
    keep_shared(shared);
    Room room;
    room.bins = reinterpret_cast<u32*>(dynamic);
    room.losers = room.bins + ALL_BINS;
    room.spare = room.losers + p.loser_words;
    room.own = room.spare + WARP;
    const u32 taken_words = rounded_columns(p) / 2;
    if (IN_SHARED) {
        room.taken = reinterpret_cast<u16*>(room.own);
        room.own += taken_words;
        room.places = room.own + p.bitmap_words;
        one_row<Mask>(p, blockIdx.x, room, *shared);
        return;
    }
    const u32 words = (2u << p.log_places) + p.list_words;
    room.places = p.workspace + static_cast<u64>(blockIdx.x) * (words + taken_words);
    room.taken = reinterpret_cast<u16*>(room.places + words);
    for (u32 r = blockIdx.x; r < p.batch; r += gridDim.x) {
        // The shared memory of the row before is no longer read.
        if (rarely(r != blockIdx.x)) __syncthreads();
        one_row<Mask>(p, r, room, *shared);
    }
}

// Unlike kernels of SPEC_KERNEL, these kernels call `follow` themselves, after they have cleared
// their shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hot_slots(const __grid_constant__ Params params) {
    in_rows<true, u32>(params);
}
extern "C" __global__ void __launch_bounds__(WORKSPACE_THREADS, 1)
    hot_slots_workspace(const __grid_constant__ Params params) {
    in_rows<false, u64>(params);
}
