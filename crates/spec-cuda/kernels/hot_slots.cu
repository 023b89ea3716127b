// hot_slots: which slots of a device buffer hold the KV entries that a step wants, and which
// entries must be fetched into the buffer.
//
// A block of 1024 threads owns a row with m wanted entries and h slots. It works in phases, with a
// barrier between them:
//
// 1. The wanted entries go into a set (hot_slots_sets.cuh): a bitmap if they lie in a range of 2^20
//    numbers, as positions of a text mostly do, else a hash table. Each distinct entry has an id.
// 2. Each slot looks up the entry that it holds. The lowest slot of an entry is the minimum that
//    the slots leave at the entry's id: a hit.
// 3. Entries without a slot are the misses, n of them. Meanwhile the slots that a miss may take are
//    counted by age in a histogram, whose first bin has the empty slots. Ages below 1024 have a bin
//    each, greater ones share bins by their 6 highest bits.
// 4. The misses are listed in ascending order, and the bins of each warp are added.
// 5. The bin of the last slot that is taken follows from the sums. If it is shared by several ages
//    and not all of its slots are taken, a radix selection over the further bits finds the age.
// 6. Ballots number the slots that are taken in ascending order. Slot number r gets miss number r.
// 7. The columns look up their entries again, and write their slots.
//
// Without misses, phases 4 to 6 are left out.
//
// Thread t has the columns t, t + 1024, ... A warp has neighbouring slots, and lane l of it every
// 32nd slot from slot l on, so that the slots of a warp are in the order of ballots. A mask holds
// one bit for each of a thread's columns or slots, of which there are 64 at most.
//
// The bitmap, or the table, and the list of misses lie in shared memory if they fit (m up to 8192
// on an H100), else the table and its list in the workspace.
//
// Bytes: 4 m + 8 h read, 12 m + 4 (hits) + 8 n written: 70 KB for h 4096, m 2048. Latency decides:
// two chained loads of global memory (request, then slots), 8 barriers, and instructions: with 32
// warps, one more for each warp takes 8 cycles. With 2 % misses a warp executes 1,646 instructions
// (counted by Nsight Compute), so one block cannot take less than 6.7 us on an H200.
#include "hot_slots_sets.cuh"

// Values that a thread loads before it uses the first of them.
constexpr u32 AHEAD = 4;
static_assert(BINS == 2 * THREADS);
// Ages below 2^LOG_EXACT have a bin each, others one for each value of their LOG_SHARED + 1 highest
// bits. Bins descend with age; bin 0 has empty slots.
constexpr u32 LOG_EXACT = 10;
constexpr u32 LOG_SHARED = 5;
constexpr u32 LAST_BIN = (1u << LOG_EXACT) + ((32 - LOG_EXACT) << LOG_SHARED);
static_assert(LAST_BIN < BINS);
// Words of a bitmap that are cleared before the range of the entries is known.
constexpr u32 CLEARED = 4 * THREADS;
// Places that are not there: of a slot whose block is missing, and a number of 2^31 or more.
constexpr i32 MISSING = -1;
constexpr i32 TOO_FAR = -2;

// The arguments of one row.
struct Row {
    const i32* wanted;
    i32* resident;
    i32* used;
    const i32* blocks;
    const i32* pages;
    i32* slots;
    i32* fetch_positions;
    i32* fetch_slots;
    // The entry of the first tail slot; above all entries if there is no tail.
    i64 tail_start;
    u32 step;
    bool reset;
    // The thread's first slot, the end of the warp's slots, and how many slots a lane has at most.
    u32 first_slot;
    u32 end_slot;
    u32 rounds;

    INLINE u32 slot(u32 i) const { return first_slot + i * WARP; }
};

// Hides how a value was computed, so that the compiler keeps it in a register. Otherwise it
// computes the address of a row anew, with 64-bit products, at every access.
template <typename T>
INLINE void keep(T*& pointer) {
    asm volatile("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
}
INLINE void keep(u32& value) { asm volatile("" : "+r"(value)); }

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
    const i32 block = row.blocks[index];
    return block < 0 ? MISSING : in_block(block, p.block_size, slot - index * p.block_size);
}

// Whether an entry, which is not negative, lies outside of the slots; its place if it does.
INLINE bool lies_outside(const Params& p, const Row& row, u32 entry, i32& place, u32& bits) {
    place = MISSING;
    bool outside = false;
    const u32 index = quotient(entry, p.page_inverse, p.page_shift);
    if (index < p.page_count) {
        const i32 page = row.pages[index];
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

// The columns of one thread, a bit for each: those whose entries are in the set, and those that
// stand for an entry of the set, one for each entry.
template <typename Mask>
struct Columns {
    Mask entered;
    Mask unique;
};

// The slots of one thread, a bit for each.
template <typename Mask>
struct Mine {
    Mask there;
    Mask empty;
    Mask found;
};

// The slots that are taken: all of `certain`, and the first `quota` of `tied`; `count` in all.
template <typename Mask>
struct Taken {
    Mask certain;
    Mask tied;
    u32 quota;
    u32 count;
};

// Loads the values of columns first + t, first + t + THREADS, ..; -1 from m on.
INLINE void load_columns(i32 (&some)[AHEAD], const i32* from, u32 first, u32 m) {
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++) {
        const u32 at = first + j * THREADS + threadIdx.x;
        some[j] = at < m ? from[at] : -1;
    }
}

// Loads the values of the thread's slots `first`, first + 1, ..; -1 behind the warp's slots.
INLINE void load_slots(i32 (&some)[AHEAD], const Row& row, const i32* from, u32 first) {
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++) {
        const u32 at = row.slot(first + j);
        some[j] = at < row.end_slot ? from[at] : -1;
    }
}

// Puts the entries of the row into the set, and answers the columns whose entries lie outside of
// the slots. `some` has the first values.
template <typename Mask, typename Set>
INLINE Columns<Mask> enter(const Params& p, const Row& row, const Set& set, i32 (&some)[AHEAD],
                     u32& bits) {
    Columns<Mask> columns = {0, 0};
    const bool any_outside = p.page_count > 0 || p.tail_starts.data != nullptr;
#pragma unroll 1
    for (u32 first = 0; first < p.m; first += AHEAD * THREADS) {
        if (first != 0) load_columns(some, row.wanted, first, p.m);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (first + j * THREADS >= p.m) break;
            const u32 column = first + j * THREADS + threadIdx.x;
            i32 place = -1;
            if (some[j] < 0 ||
                (any_outside && lies_outside(p, row, static_cast<u32>(some[j]), place, bits))) {
                if (column < p.m) row.slots[column] = place;
            } else {
                const Mask bit = static_cast<Mask>(1) << (first / THREADS + j);
                columns.entered |= bit;
                if (set.insert(static_cast<u32>(some[j]))) columns.unique |= bit;
            }
        }
    }
    return columns;
}

// Looks up the entry of each slot. `losers` gets a bit for each slot whose entry a lower slot holds
// too. `some` has the first values of `resident`.
template <typename Mask, typename Set>
INLINE Mine<Mask> look_up(const Params& p, const Row& row, const Set& set, u32* losers,
                    i32 (&some)[AHEAD], u32& bits) {
    Mine<Mask> mine = {0, 0, 0};
#pragma unroll 1
    for (u32 first = 0; first < row.rounds; first += AHEAD) {
        if (first != 0) load_slots(some, row, row.resident, first);
        u32 ids[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 slot = row.slot(first + j);
            const bool is_slot = slot < row.end_slot;
            if (is_slot && row.reset) row.resident[slot] = -1;
            const i32 entry = row.reset ? -1 : some[j];
            const i32 place = is_slot ? place_of(p, row, slot) : MISSING;
            if (place == TOO_FAR) bits |= OUT_OF_RANGE;
            const Mask bit = static_cast<Mask>(1) << (first + j);
            if (place >= 0) mine.there |= bit;
            if (place >= 0 && entry < 0) mine.empty |= bit;
            ids[j] = set.find(static_cast<u32>(entry), place >= 0 && entry >= 0);
            if (ids[j] != NONE) mine.found |= bit;
        }
        // Of two slots with one entry, the one that arrives later, or finds a lower one there,
        // marks the higher. So every slot but the lowest is marked, in whatever order they come.
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (ids[j] != NONE) ids[j] = atomicMin(&set.owners[ids[j]], row.slot(first + j));
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (ids[j] == NONE) continue;
            const u32 higher = max(ids[j], row.slot(first + j));
            atomicOr(&losers[higher / WARP], 1u << (higher % WARP));
        }
    }
    return mine;
}

// Counts a slot in its bin. Neighbouring slots often have the same age, so the lanes with the bin
// of the first lane count together. All lanes of a warp must call this function.
INLINE void count_bin(u32* bins, bool is_counted, u32 bin) {
    const u32 lanes = __ballot_sync(ALL_LANES, is_counted);
    if (lanes == 0) return;
    const u32 leader = __ffs(lanes) - 1;
    const u32 first = __shfl_sync(ALL_LANES, bin, leader);
    const u32 same = __ballot_sync(ALL_LANES, is_counted && bin == first);
    if (lane_id() == leader) {
        atomicAdd(&bins[first], __popc(same));
    } else if (is_counted && bin != first) {
        atomicAdd(&bins[bin], 1u);
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

// Writes `used` of the hits, takes them from the thread's slots that misses may take, and counts
// the others by age. `ages` has the first values of `used`.
template <typename Mask>
INLINE void settle_hits(const Params& p, const Row& row, const u32* losers, u32* bins,
                        Mine<Mask>& mine, i32 (&ages)[AHEAD]) {
#pragma unroll 1
    for (u32 first = 0; first < row.rounds; first += AHEAD) {
        if (first != 0) load_slots(ages, row, row.used, first);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 slot = row.slot(first + j);
            const Mask bit = static_cast<Mask>(1) << (first + j);
            if ((mine.found & bit) && !(losers[slot / WARP] >> (slot % WARP) & 1)) {
                row.used[slot] = static_cast<i32>(row.step);
                mine.there &= ~bit;
            }
            const u32 age = row.step - static_cast<u32>(ages[j]);
            count_bin(bins, mine.there & bit, mine.empty & bit ? 0 : bin_of(age));
        }
    }
}

// The age that the `left` oldest of the slots `candidates` are at least, of those whose ages have
// the bits `prefix` above `shift` bits; `left` becomes the number of slots of this age among them.
// At least so many candidates have these bits, and `left` is above 0.
template <typename Mask>
INLINE u32 select_age(const Params& p, const Row& row, u32* bins, Shared& shared, Mask candidates,
                      u32 prefix, u32 shift, u32& left) {
    while (shift > 0) {
        const u32 width = min(shift, LOG_BINS);
        shift -= width;
        // All threads have read the bins.
        __syncthreads();
        bins[threadIdx.x] = 0;
        bins[threadIdx.x + THREADS] = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 i = 0; i < row.rounds; i++) {
            const bool is_candidate = candidates >> i & 1;
            u32 age = 0;
            if (is_candidate) age = row.step - static_cast<u32>(row.used[row.slot(i)]);
            // A shift by 32 bits leaves nothing of 64.
            const bool is_counted =
                is_candidate && static_cast<u64>(age) >> (shift + width) == prefix;
            count_bin(bins, is_counted, age >> shift & ((1u << width) - 1));
        }
        __syncthreads();
        // The greatest digits come first: two for each thread.
        const u32 digit = BINS - 1 - 2 * threadIdx.x;
        const u32 high = bins[digit];
        const u32 own = high + bins[digit - 1];
        const u32 through = warp_inclusive_sum(own);
        const u32 warp = threadIdx.x / WARP;
        if (lane_id() == WARP - 1) shared.totals[warp] = through;
        __syncthreads();
        const SumsOfWarps<u32> warps(shared.totals, lane_id());
        const u32 before = warps.before(warp) + through - own;
        if (before < left && before + own >= left) {
            const bool is_high = before + high >= left;
            shared.digit = is_high ? digit : digit - 1;
            shared.left = is_high ? left - before : left - before - high;
        }
        __syncthreads();
        prefix = prefix << width | shared.digit;
        left = shared.left;
    }
    return prefix;
}

// Chooses slots for the n misses. The sums of the bins of each warp are in `shared.free`. `ages`
// has the first values of `used`.
template <typename Mask>
INLINE Taken<Mask> choose(const Params& p, const Row& row, u32* bins, Shared& shared,
                          const Mine<Mask>& mine, i32 (&ages)[AHEAD], u32 n) {
    const SumsOfWarps<u32> groups(shared.free, lane_id());
    const u32 free = groups.all();
    Taken<Mask> taken = {mine.there, 0, 0, min(n, free)};
    if (taken.count == free) return taken;
    // The bin of the last slot that is taken: first the bins of which warp, then which of them.
    const u32 group = __ffs(__ballot_sync(ALL_LANES, groups.through >= taken.count)) - 1;
    const u32 at = 2 * (group * WARP + lane_id());
    const uint2 two = *reinterpret_cast<const uint2*>(bins + at);
    const u32 through = groups.before(group) + warp_inclusive_sum(two.x + two.y);
    const u32 lane = __ffs(__ballot_sync(ALL_LANES, through >= taken.count)) - 1;
    const bool is_first = through - two.y >= taken.count;
    const u32 bin = __shfl_sync(ALL_LANES, is_first ? at : at + 1, lane);
    const u32 before = through - two.y - (is_first ? two.x : 0);
    u32 quota = __shfl_sync(ALL_LANES, taken.count - before, lane);
    if (bin == 0) return {0, mine.empty & mine.there, quota, taken.count};
    const Mask candidates = mine.there & ~mine.empty;
    u32 shift = 0;
    const u32 prefix = ages_of(bin, shift);
    const u32 cut = select_age(p, row, bins, shared, candidates, prefix, shift, quota);
    taken.certain = mine.there & mine.empty;
    taken.quota = quota;
#pragma unroll 1
    for (u32 first = 0; first < row.rounds; first += AHEAD) {
        if (row.rounds > AHEAD) load_slots(ages, row, row.used, first);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const Mask bit = candidates & static_cast<Mask>(1) << (first + j);
            const u32 age = row.step - static_cast<u32>(ages[j]);
            if (age > cut) taken.certain |= bit;
            if (age == cut) taken.tied |= bit;
        }
    }
    return taken;
}

INLINE u32 ones(u32 mask) { return __popc(mask); }
INLINE u32 ones(u64 mask) { return __popcll(mask); }

// Gives the first misses of the list to the slots that are taken. With one barrier.
template <typename Mask, typename Set>
INLINE void hand_out(const Params& p, const Row& row, const Set& set, Shared& shared,
                     const Taken<Mask>& taken) {
    const u32 warp = threadIdx.x / WARP;
    // Both counts of a warp in one word: certain slots in the low half. The sum over earlier warps
    // is below 2^16 for either.
    const u32 own = ones(taken.certain) | ones(taken.tied) << 16;
    const u32 of_warp = __reduce_add_sync(ALL_LANES, own);
    if (lane_id() == 0) shared.totals[warp] = of_warp;
    __syncthreads();
    u32 earlier =
        __reduce_add_sync(ALL_LANES, lane_id() < warp ? shared.totals[lane_id()] : 0);
#pragma unroll 1
    for (u32 i = 0; i < row.rounds; i++) {
        const bool is_sure = taken.certain >> i & 1;
        const bool is_tied = taken.tied >> i & 1;
        const u32 sure = __ballot_sync(ALL_LANES, is_sure);
        const u32 ties = __ballot_sync(ALL_LANES, is_tied);
        if ((sure | ties) == 0) continue;
        const u32 of_sure = (earlier & 0xFFFF) + __popc(sure & lanes_below());
        const u32 of_ties = (earlier >> 16) + __popc(ties & lanes_below());
        const u32 rank = of_sure + min(of_ties, taken.quota);
        // The rank is below the count, unless the state changes during the call.
        const bool is_taken =
            (is_sure || (is_tied && of_ties < taken.quota)) && rank < taken.count;
        const u32 entry = is_taken ? set.list[rank] : 0;
        const u32 id = set.find(entry, is_taken);
        if (is_taken) {
            const u32 slot = row.slot(i);
            if (id != NONE) set.owners[id] = slot;
            row.resident[slot] = static_cast<i32>(entry);
            row.used[slot] = static_cast<i32>(row.step);
            row.fetch_positions[rank] = static_cast<i32>(entry);
            row.fetch_slots[rank] = place_of(p, row, slot);
        }
        earlier += __popc(sure) | __popc(ties) << 16;
    }
}

// The ids of the entries of a thread's columns from `first` on; NONE for columns that are not
// entered. `some` has their entries.
template <typename Mask, typename Set>
INLINE void find_columns(const Params& p, const Set& set, u32 first, Mask entered,
                         const i32 (&some)[AHEAD], u32 (&ids)[AHEAD]) {
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++) {
        if (first + j * THREADS >= p.m) break;
        const bool is_asked = entered >> (first / THREADS + j) & 1;
        ids[j] = set.find(static_cast<u32>(some[j]), is_asked);
    }
}

// Lists the misses in ascending order, and adds the bins of each warp. A barrier must follow.
// `some` has the first wanted values, and `ids` their ids.
template <typename Mask, typename Set>
INLINE void list_misses(const Params& p, const Row& row, const Set& set,
                        const Columns<Mask>& columns, const u32* bins, Shared& shared,
                        i32 (&some)[AHEAD], u32 (&ids)[AHEAD]) {
    const uint2 two = *reinterpret_cast<const uint2*>(bins + 2 * threadIdx.x);
    const u32 free = __reduce_add_sync(ALL_LANES, two.x + two.y);
    if (lane_id() == 0) shared.free[threadIdx.x / WARP] = free;
    if constexpr (!Set::BY_COLUMN) {
        set.sort(shared);
    } else {
#pragma unroll 1
        for (u32 first = 0; first < p.m; first += AHEAD * THREADS) {
            if (p.m > AHEAD * THREADS) {
                load_columns(some, row.wanted, first, p.m);
                find_columns(p, set, first, columns.unique, some, ids);
            }
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                if (first + j * THREADS >= p.m) break;
                const bool is_unique = columns.unique >> (first / THREADS + j) & 1;
                set.list_one(static_cast<u32>(some[j]), ids[j], is_unique);
            }
        }
    }
}

// Writes where the entries of the columns `entered` lie, and ends the lists behind `fetches`
// entries. `ids` has the ids of the first columns.
template <typename Mask, typename Set>
INLINE void answer(const Params& p, const Row& row, const Set& set, Mask entered, u32 fetches,
                   u32 (&ids)[AHEAD]) {
#pragma unroll 1
    for (u32 first = 0; first < p.m; first += AHEAD * THREADS) {
        if (p.m > AHEAD * THREADS) {
            i32 some[AHEAD];
            load_columns(some, row.wanted, first, p.m);
            find_columns(p, set, first, entered, some, ids);
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (first + j * THREADS >= p.m) break;
            const u32 column = first + j * THREADS + threadIdx.x;
            if (entered >> (first / THREADS + j) & 1) {
                const u32 slot = ids[j] == NONE ? NONE : set.owners[ids[j]];
                row.slots[column] = slot == NONE ? -1 : place_of(p, row, slot);
            }
            if (column >= fetches && column < p.m) {
                row.fetch_positions[column] = -1;
                row.fetch_slots[column] = -1;
            }
        }
    }
}

// The first values of a row.
struct First {
    i32 wanted[AHEAD];
    i32 resident[AHEAD];
    i32 used[AHEAD];
};

// Serves a row by an empty set.
template <typename Mask, typename Set>
INLINE void serve(const Params& p, const Row& row, Set& set, First& some, u32* bins, u32* losers,
                  Shared& shared, i32* fetches, u32& bits) {
    const Columns<Mask> columns = enter<Mask>(p, row, set, some.wanted, bits);
    __syncthreads();
    set.number(shared);
    Mine<Mask> mine = look_up<Mask>(p, row, set, losers, some.resident, bits);
    u32 ids[AHEAD] = {NONE, NONE, NONE, NONE};
    static_assert(AHEAD == 4);
    if (p.m <= AHEAD * THREADS) find_columns(p, set, 0, columns.entered, some.wanted, ids);
    __syncthreads();
    set.note(shared);
    settle_hits(p, row, losers, bins, mine, some.used);
    __syncthreads();
    const u32 n = set.misses(shared);
    u32 count = 0;
    if (n > 0) {
        list_misses(p, row, set, columns, bins, shared, some.wanted, ids);
        __syncthreads();
        const Taken<Mask> taken = choose(p, row, bins, shared, mine, some.used, n);
        count = taken.count;
        if (n > count) bits |= BAD_LENGTHS;
        if (count > 0) {
            hand_out(p, row, set, shared, taken);
            __syncthreads();
        }
    }
    answer(p, row, set, columns.entered, count, ids);
    if (threadIdx.x == 0) *fetches = static_cast<i32>(count);
}

// A row that is left out: padding, or a request that is no row of the state or that a lower row
// has.
INLINE void leave_out(const Params& p, u64 r) {
#pragma unroll 1
    for (u32 column = threadIdx.x; column < p.m; column += THREADS) {
        p.slots[r][column] = -1;
        p.fetch_positions[r][column] = -1;
        p.fetch_slots[r][column] = -1;
    }
    if (threadIdx.x == 0) p.fetches[r] = 0;
}

// The memory of a block: parts of the dynamic shared memory, and of the workspace.
struct Room {
    u32* bins;
    u32* losers;
    // What a set has in shared memory.
    u32* own;
    // The places of a hashed set.
    u32* places;
};

// The parts of a narrow set, without its range.
INLINE Narrow narrow_in(const Params& p, const Room& room) {
    const u32 ids = (p.m + 3) / 4 * 4;
    const u32 groups = (ids + 4 * WARP - 1) / (4 * WARP) * 4;
    Narrow set;
    set.owners = room.own;
    set.list = set.owners + ids;
    set.missing = set.list + ids;
    set.missing_before = set.missing + groups;
    set.bits = set.missing_before + groups;
    set.before = reinterpret_cast<u16*>(set.bits + p.bits_words);
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
    for (u32 i = first + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        *reinterpret_cast<uint4*>(words + i) = make_uint4(value, value, value, value);
    }
}

// Asks for `count` values, so that they are in the second-level cache when the threads load them.
INLINE void ask_for(const i32* from, u32 count) {
    constexpr u32 LINE = 128 / sizeof(i32);
#pragma unroll 1
    for (u32 at = threadIdx.x * LINE; at < count; at += THREADS * LINE) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
}

// Notes the least and the greatest wanted entry of each warp. `some` has the first values.
INLINE void note_range(const Params& p, const Row& row, Shared& shared,
                       const i32 (&some)[AHEAD]) {
    u32 low = NONE;
    u32 high = 0;
    const auto note = [&](const i32 (&values)[AHEAD]) {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (values[j] < 0) continue;
            low = min(low, static_cast<u32>(values[j]));
            high = max(high, static_cast<u32>(values[j]));
        }
    };
    note(some);
#pragma unroll 1
    for (u32 first = AHEAD * THREADS; first < p.m; first += AHEAD * THREADS) {
        i32 more[AHEAD];
        load_columns(more, row.wanted, first, p.m);
        note(more);
    }
    low = __reduce_min_sync(ALL_LANES, low);
    high = __reduce_max_sync(ALL_LANES, high);
    if (lane_id() == 0) {
        shared.lows[threadIdx.x / WARP] = low;
        shared.highs[threadIdx.x / WARP] = high;
    }
}

template <typename Mask>
INLINE void one_row(const Params& p, u64 r, const Room& room, Shared& shared) {
    // Loads first, so that their latencies overlap with each other and with clearing.
    First some;
    load_columns(some.wanted, p.wanted[r], 0, p.m);
    const i64 request = p.requests == nullptr ? static_cast<i64>(r) : p.requests[r];
    const bool is_request = request >= 0 && request < p.tables;
    const u64 at = is_request ? static_cast<u64>(request) : 0;
    Row row = {p.wanted[r],  p.resident[at],       p.used[at],       p.block_table[at], p.pages[at],
               p.slots[r],   p.fetch_positions[r], p.fetch_slots[r], 1ll << 32,         0,
               false,        0,                    0,                   0};
    row.rounds = (p.h + THREADS - 1) / THREADS;
    row.first_slot = threadIdx.x / WARP * row.rounds * WARP;
    row.end_slot = is_request ? min(row.first_slot + row.rounds * WARP, p.h) : 0;
    row.first_slot += lane_id();
    keep(row.first_slot);
    keep(row.end_slot);
    keep(row.resident);
    keep(row.used);
    keep(row.slots);
    keep(row.fetch_positions);
    keep(row.fetch_slots);
    load_slots(some.resident, row, row.resident, 0);
    load_slots(some.used, row, row.used, 0);
    if (is_request && row.rounds > AHEAD) {
        ask_for(row.resident, p.h);
        ask_for(row.used, p.h);
    }
    row.step = static_cast<u32>(p.steps[p.step_by_row ? r : 0]);
    row.reset = p.resets != nullptr && p.resets[r] != 0;
    if (p.tail_starts.data != nullptr) row.tail_start = p.tail_starts[r];
    bool is_lost = false;
    if (p.requests != nullptr) {
#pragma unroll 1
        for (u64 lower = threadIdx.x; lower < r; lower += THREADS) {
            is_lost |= p.requests[lower] == request;
        }
    }
    Narrow narrow = narrow_in(p, room);
    if (p.bits_words > 0) {
        fill(narrow.owners, 0, static_cast<u32>(narrow.list - narrow.owners), NONE);
        fill(narrow.bits, 0, min(p.bits_words, CLEARED), 0);
    }
    fill(room.losers, 0, p.loser_words, 0);
    fill(room.bins, 0, BINS, 0);
    note_range(p, row, shared, some.wanted);
    if (__syncthreads_or(is_lost) || !is_request) {
        if (threadIdx.x == 0 && request != -1) raise(p.flags, BAD_LENGTHS);
        leave_out(p, r);
        return;
    }
    u32 bits = 0;
    if (row.tail_start < 0) {
        row.tail_start = 0;
        bits |= BAD_LENGTHS;
    }
    const u32 low = __reduce_min_sync(ALL_LANES, shared.lows[lane_id()]);
    const u32 high = __reduce_max_sync(ALL_LANES, shared.highs[lane_id()]);
    // Without entries, a range of one word.
    narrow.base = (low == NONE ? high : low) / WARP * WARP;
    narrow.words = (high - narrow.base) / WARP + 1;
    if (narrow.words <= p.bits_words) {
        if (narrow.words > CLEARED) {
            const u32 end = (narrow.words + Narrow::STEP - 1) / Narrow::STEP * Narrow::STEP;
            fill(narrow.bits, CLEARED, end, 0);
            __syncthreads();
        }
        serve<Mask>(p, row, narrow, some, room.bins, room.losers, shared, p.fetches + r, bits);
    } else {
        Hashed hashed = hashed_in(p, room);
        // The places and their owners lie one behind the other.
        fill(hashed.keys, 0, 2 << p.log_places, NONE);
        if (threadIdx.x == 0) {
            shared.misses = 0;
            shared.lowest = NONE;
            shared.highest = 0;
        }
        __syncthreads();
        serve<Mask>(p, row, hashed, some, room.bins, room.losers, shared, p.fetches + r, bits);
    }
    bits = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

// IN_SHARED: the places of a hashed set lie in shared memory. Mask: a bit for each column or slot
// of a thread.
template <bool IN_SHARED, typename Mask>
INLINE void hot_slots(const Params& p) {
    extern __shared__ uint4 dynamic[];
    __shared__ Shared shared;
    Room room;
    room.bins = reinterpret_cast<u32*>(dynamic);
    room.losers = room.bins + BINS;
    room.own = room.losers + p.loser_words;
    const u64 words = (2ull << p.log_places) + p.list_words;
    room.places = IN_SHARED ? room.own + p.bitmap_words : p.workspace + blockIdx.x * words;
    for (u64 r = blockIdx.x; r < p.batch; r += gridDim.x) {
        one_row<Mask>(p, r, room, shared);
        __syncthreads();
    }
}

INLINE void in_shared(const Params& p) { hot_slots<true, u32>(p); }
INLINE void in_workspace(const Params& p) { hot_slots<false, u64>(p); }

SPEC_KERNEL(hot_slots, in_shared, Params, THREADS)
SPEC_KERNEL(hot_slots_workspace, in_workspace, Params, THREADS)
