// hot_slots: which slots of a device buffer hold the KV entries that a step wants, and which entries
// must be fetched into the buffer.
//
// A block of 1024 threads owns a row with m wanted entries and h slots. It works in phases, with a
// barrier between them:
//
// 1. The wanted entries go into a hash table of at least 2 m places, by compare-and-swap. Equal
//    entries share a place. The order of the insertions decides the places, but no result depends
//    on them: later phases look entries up by comparing them.
// 2. Each slot looks up the entry that it holds. The lowest slot of an entry is the minimum that the
//    slots leave in the entry's place: a hit.
// 3. Entries without a slot are the misses, n of them. A counter lists them in any order, then they
//    are sorted: a few by counting smaller ones, many by a bitmap of their range, and misses of a
//    wide range by a bitonic network.
// 4. Where some non-empty slots must be chosen, a radix selection over their ages, in digits of 11
//    bits from the highest bit of the greatest age on, finds the age of the last slot that is taken.
//    Ages are mostly small, so one digit mostly suffices.
// 5. Ballots number the slots that are taken in ascending order. Slot number r gets miss number r.
// 6. The columns look up their entries again, and write their slots.
//
// Thread t has the columns and slots t, t + 1024, ..: neighbouring threads have neighbouring
// addresses, and a warp has 32 neighbouring slots, whose order a ballot keeps. A 64-bit mask holds
// one bit for each of a thread's columns or slots, of which there are 64 at most.
//
// The table and the list of misses lie in shared memory if they fit (m up to 8192 on an H100), else
// in the workspace.
//
// Bytes: 4 m + 8 h read, 12 m + 4 (hits) + 8 n written: 70 KB for h 4096, m 2048. Latency decides:
// two chained loads of global memory (request, then slots), and about 15 barriers.
#include "hot_slots_sort.cuh"
#include "params/hot_slots.cuh"

// Values that a thread loads before it uses the first of them.
constexpr u32 AHEAD = 4;
// Bits of a digit of an age, and the number of digits.
constexpr u32 LOG_BINS = 11;
constexpr u32 BINS = 1u << LOG_BINS;
static_assert(BINS == 2 * THREADS);
// Fibonacci hashing: 2^32 divided by the golden ratio. Neighbouring entries get distant places.
constexpr u32 GOLDEN = 0x9E3779B9u;
// Places that are not there: of a slot whose block is missing, and a number of 2^31 or more.
constexpr i32 MISSING = -1;
constexpr i32 TOO_FAR = -2;

// What the threads of a block share, in addition to the dynamic shared memory.
struct Shared {
    u32 totals[WARPS];
    u32 misses;
    // The range of the misses.
    u32 lowest;
    u32 highest;
    // Slots that misses may take: empty ones, and all.
    u32 empty;
    u32 free;
    // The greatest age of a slot that may be taken and is not empty.
    u32 oldest;
    // The digit at which a selection ends, and how many slots are left to choose there.
    u32 digit;
    u32 left;
};

// The hash table of a row, and the list of its misses.
struct Table {
    u32* keys;
    u32* slots;
    u32* list;
    u32 mask;
    u32 shift;

    INLINE u32 hash(u32 entry) const { return entry * GOLDEN >> shift; }

    // Before the barrier that ends the insertions, only `insert` may be called. At most half of the
    // places are filled, so both loops end.
    INLINE void insert(u32 entry) const {
        u32 place = hash(entry);
        while (true) {
            const u32 there = atomicCAS(&keys[place], NONE, entry);
            if (there == NONE || there == entry) return;
            place = (place + 1) & mask;
        }
    }

    // The place of an entry; NONE if the table lacks it.
    INLINE u32 find(u32 entry) const {
        u32 place = hash(entry);
        while (true) {
            const u32 there = keys[place];
            if (there == entry) return place;
            if (there == NONE) return NONE;
            place = (place + 1) & mask;
        }
    }
};

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
};

// The slots of one thread, a bit for each.
struct Mine {
    u64 there;
    u64 empty;
    u64 found;
};

INLINE i32 in_block(i32 block, u32 size, u32 within) {
    const i64 place = static_cast<i64>(block) * size + within;
    return place > 0x7FFFFFFF ? TOO_FAR : static_cast<i32>(place);
}

// The place of a slot in the cache.
INLINE i32 place_of(const Params& p, const Row& row, u32 slot) {
    if (!p.has_blocks) return static_cast<i32>(slot);
    const u32 index = p.block_size == 1 ? slot : slot / p.block_size;
    if (index >= p.block_count) return MISSING;
    const i32 block = row.blocks[index];
    return block < 0 ? MISSING : in_block(block, p.block_size, slot - index * p.block_size);
}

// Whether an entry, which is not negative, lies outside of the slots; its place if it does.
INLINE bool lies_outside(const Params& p, const Row& row, u32 entry, i32& place, u32& bits) {
    place = MISSING;
    bool outside = false;
    const u32 index = p.page_count == 0 ? 0 : entry / p.page_size;
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

// Loads values first + t, first + t + THREADS, ..; -1 from `count` on.
INLINE void load_ahead(i32 (&some)[AHEAD], const i32* from, u32 first, u32 count) {
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++) {
        const u32 at = first + j * THREADS + threadIdx.x;
        some[j] = at < count ? from[at] : -1;
    }
}

// Puts the entries of the row into the table, and answers the columns whose entries lie outside of
// the slots. `some` has the first values. Returns the thread's columns that were not answered.
INLINE u64 enter(const Params& p, const Row& row, const Table& table, i32 (&some)[AHEAD],
                 u32& bits) {
    u64 entered = 0;
#pragma unroll 1
    for (u32 first = 0; first < p.m; first += AHEAD * THREADS) {
        if (first != 0) load_ahead(some, row.wanted, first, p.m);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 column = first + j * THREADS + threadIdx.x;
            if (column >= p.m) continue;
            i32 place = -1;
            if (some[j] < 0 ||
                lies_outside(p, row, static_cast<u32>(some[j]), place, bits)) {
                row.slots[column] = place;
            } else {
                table.insert(static_cast<u32>(some[j]));
                entered |= 1ull << (first / THREADS + j);
            }
        }
    }
    return entered;
}

// Looks up the entry of each slot. `losers` gets a bit for each slot whose entry a lower slot holds
// too. `some` has the first values of `resident`.
INLINE Mine look_up(const Params& p, const Row& row, const Table& table, u32* losers,
                    i32 (&some)[AHEAD], u32& bits) {
    Mine mine = {0, 0, 0};
#pragma unroll 1
    for (u32 first = 0; first < p.h; first += AHEAD * THREADS) {
        if (first != 0) load_ahead(some, row.resident, first, p.h);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 slot = first + j * THREADS + threadIdx.x;
            if (slot >= p.h) continue;
            const i32 entry = row.reset ? -1 : some[j];
            if (row.reset) row.resident[slot] = -1;
            const i32 place = place_of(p, row, slot);
            if (place == TOO_FAR) bits |= OUT_OF_RANGE;
            if (place < 0) continue;
            const u64 bit = 1ull << (first / THREADS + j);
            mine.there |= bit;
            if (entry < 0) {
                mine.empty |= bit;
                continue;
            }
            const u32 at = table.find(static_cast<u32>(entry));
            if (at == NONE) continue;
            mine.found |= bit;
            // Of two slots with one entry, the one that arrives later, or finds a lower one there,
            // marks the higher. So every slot but the lowest is marked, in whatever order they come.
            const u32 before = atomicMin(&table.slots[at], slot);
            if (before != NONE) {
                const u32 higher = max(before, slot);
                atomicOr(&losers[higher / WARP], 1u << (higher % WARP));
            }
        }
    }
    return mine;
}

// Lists the entries that no slot holds, in any order, and notes their number and range.
INLINE void list_misses(const Table& table, Shared& shared) {
    u32 lowest = NONE;
    u32 highest = 0;
    // The number of places is a multiple of THREADS, so all lanes of a warp take part.
#pragma unroll 1
    for (u32 at = threadIdx.x; at <= table.mask; at += THREADS) {
        const u32 entry = table.keys[at];
        const bool is_miss = entry != NONE && table.slots[at] == NONE;
        const u32 lanes = __ballot_sync(ALL_LANES, is_miss);
        if (lanes == 0) continue;
        u32 to = 0;
        if (lane_id() == 0) to = atomicAdd(&shared.misses, __popc(lanes));
        to = __shfl_sync(ALL_LANES, to, 0);
        if (is_miss) {
            table.list[to + __popc(lanes & lanes_below())] = entry;
            lowest = min(lowest, entry);
            highest = max(highest, entry);
        }
    }
    lowest = __reduce_min_sync(ALL_LANES, lowest);
    highest = __reduce_max_sync(ALL_LANES, highest);
    if (lane_id() == 0 && lowest != NONE) {
        atomicMin(&shared.lowest, lowest);
        atomicMax(&shared.highest, highest);
    }
}

// Writes `used` of the hits, takes them from the thread's slots that misses may take, and counts
// the others. `ages` has the first values of `used`.
INLINE void settle_hits(const Params& p, const Row& row, const u32* losers, Mine& mine,
                        i32 (&ages)[AHEAD], Shared& shared) {
    u32 oldest = 0;
#pragma unroll 1
    for (u32 first = 0; first < p.h; first += AHEAD * THREADS) {
        if (first != 0) load_ahead(ages, row.used, first, p.h);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 slot = first + j * THREADS + threadIdx.x;
            const u64 bit = 1ull << (first / THREADS + j);
            if (slot >= p.h || !(mine.there & bit)) continue;
            const bool lost = losers[slot / WARP] >> (slot % WARP) & 1;
            if ((mine.found & bit) && !lost) {
                row.used[slot] = static_cast<i32>(row.step);
                mine.there &= ~bit;
            } else if (!(mine.empty & bit)) {
                oldest = max(oldest, row.step - static_cast<u32>(ages[j]));
            }
        }
    }
    const u32 empty = __reduce_add_sync(ALL_LANES, static_cast<u32>(__popcll(mine.empty)));
    const u32 free = __reduce_add_sync(ALL_LANES, static_cast<u32>(__popcll(mine.there)));
    oldest = __reduce_max_sync(ALL_LANES, oldest);
    if (lane_id() == 0) {
        atomicAdd(&shared.empty, empty);
        atomicAdd(&shared.free, free);
        atomicMax(&shared.oldest, oldest);
    }
}

// Adds this thread's value over the threads before it, and returns the sum with the own value. With
// one barrier; another must follow before the next call.
INLINE u32 block_inclusive_sum(Shared& shared, u32 own) {
    const u32 through = warp_inclusive_sum(own);
    const u32 warp = threadIdx.x / WARP;
    if (lane_id() == WARP - 1) shared.totals[warp] = through;
    __syncthreads();
    const SumsOfWarps<u32> warps(shared.totals, lane_id());
    return warps.before(warp) + through;
}

// Counts an age's digit. Neighbouring slots often have the same age, so the lanes with the digit of
// the first lane count together. All lanes of a warp must call this function.
INLINE void count_digit(u32* bins, bool is_counted, u32 digit) {
    const u32 lanes = __ballot_sync(ALL_LANES, is_counted);
    if (lanes == 0) return;
    const u32 leader = __ffs(lanes) - 1;
    const u32 first = __shfl_sync(ALL_LANES, digit, leader);
    const u32 same = __ballot_sync(ALL_LANES, is_counted && digit == first);
    if (lane_id() == leader) {
        atomicAdd(&bins[first], __popc(same));
    } else if (is_counted && digit != first) {
        atomicAdd(&bins[digit], 1u);
    }
}

// The age that the `left` oldest of the slots `candidates` are at least; `left` becomes the number
// of slots of this age among them. There are more candidates than `left`, which is above 0.
INLINE u32 select_age(const Params& p, const Row& row, u32* bins, Shared& shared, u64 candidates,
                      u32 oldest, u32& left) {
    u32 shift = oldest == 0 ? 0 : 32 - __clz(oldest);
    u32 prefix = 0;
    do {
        const u32 width = min(shift, LOG_BINS);
        shift -= width;
        bins[threadIdx.x] = 0;
        bins[threadIdx.x + THREADS] = 0;
        __syncthreads();
#pragma unroll 4
        for (u32 first = 0; first < p.h; first += THREADS) {
            const bool is_candidate = candidates >> (first / THREADS) & 1;
            u32 age = 0;
            if (is_candidate) age = row.step - static_cast<u32>(row.used[first + threadIdx.x]);
            // A shift by 32 bits leaves nothing of 64.
            const bool is_counted =
                is_candidate && static_cast<u64>(age) >> (shift + width) == prefix;
            count_digit(bins, is_counted, age >> shift & ((1u << width) - 1));
        }
        __syncthreads();
        // The greatest digits come first: two for each thread.
        const u32 digit = BINS - 1 - 2 * threadIdx.x;
        const u32 high = bins[digit];
        const u32 own = high + bins[digit - 1];
        const u32 before = block_inclusive_sum(shared, own) - own;
        if (before < left && before + own >= left) {
            const bool is_high = before + high >= left;
            shared.digit = is_high ? digit : digit - 1;
            shared.left = is_high ? left - before : left - before - high;
        }
        __syncthreads();
        prefix = prefix << width | shared.digit;
        left = shared.left;
    } while (shift > 0);
    return prefix;
}

// Gives the first `count` misses of the sorted list to slots: those of `certain`, and the first
// `quota` of `tied`. `groups` has a word for each 32 slots.
INLINE void hand_out(const Params& p, const Row& row, const Table& table, u32* groups,
                     Shared& shared, u64 certain, u64 tied, u32 quota, u32 count) {
    const u32 warp = threadIdx.x / WARP;
    const u32 group_count = (p.h + THREADS - 1) / THREADS * WARPS;
    // Both counts of a group in one word: certain slots in the low half. The sum over earlier groups
    // is below 2^16 for either.
#pragma unroll 1
    for (u32 i = 0; i * WARPS < group_count; i++) {
        const u32 sure = __popc(__ballot_sync(ALL_LANES, certain >> i & 1));
        const u32 ties = __popc(__ballot_sync(ALL_LANES, tied >> i & 1));
        if (lane_id() == 0) groups[i * WARPS + warp] = sure | ties << 16;
    }
    __syncthreads();
    const u32 at = 2 * threadIdx.x;
    const u32 first = at < group_count ? groups[at] : 0;
    const u32 second = at < group_count ? groups[at + 1] : 0;
    const u32 before = block_inclusive_sum(shared, first + second) - first - second;
    if (at < group_count) {
        groups[at] = before;
        groups[at + 1] = before + first;
    }
    __syncthreads();
#pragma unroll 1
    for (u32 i = 0; i * WARPS < group_count; i++) {
        const bool is_sure = certain >> i & 1;
        const bool is_tied = tied >> i & 1;
        const u32 sure = __ballot_sync(ALL_LANES, is_sure);
        const u32 ties = __ballot_sync(ALL_LANES, is_tied);
        if ((sure | ties) == 0) continue;
        const u32 earlier = groups[i * WARPS + warp];
        const u32 of_sure = (earlier & 0xFFFF) + __popc(sure & lanes_below());
        const u32 of_ties = (earlier >> 16) + __popc(ties & lanes_below());
        const u32 rank = of_sure + min(of_ties, quota);
        // The rank is below the count, unless the state changes during the call.
        if (!(is_sure || (is_tied && of_ties < quota)) || rank >= count) continue;
        const u32 slot = i * THREADS + threadIdx.x;
        const u32 entry = table.list[rank];
        row.resident[slot] = static_cast<i32>(entry);
        row.used[slot] = static_cast<i32>(row.step);
        row.fetch_positions[rank] = static_cast<i32>(entry);
        row.fetch_slots[rank] = place_of(p, row, slot);
        const u32 place = table.find(entry);
        if (place != NONE) table.slots[place] = slot;
    }
}

// Sorts the misses, chooses as many slots, and gives them out. Returns the number of fetches.
INLINE u32 serve_misses(const Params& p, const Row& row, const Table& table, u32* bins, u32* bitmap,
                        Shared& shared, const Mine& mine, u32& bits) {
    const u32 n = shared.misses;
    const u32 free = shared.free;
    const u32 empty = shared.empty;
    const u32 count = min(n, free);
    if (n > free) bits |= BAD_LENGTHS;
    if (count == 0) return 0;
    const u32 words = (shared.highest - shared.lowest) / 32 + 1;
    if (n <= FEW) {
        sort_few(table.list, n);
    } else if (words <= p.bitmap_words) {
        const u32 rounded = (words + THREADS - 1) / THREADS * THREADS;
        sort_by_bitmap(shared.totals, bitmap, rounded, shared.lowest, table.list, n);
    } else {
        sort_by_exchange(table.list, n);
    }
    u64 certain = mine.there;
    u64 tied = 0;
    u32 quota = 0;
    if (count < free && count <= empty) {
        certain = 0;
        tied = mine.empty;
        quota = count;
    } else if (count < free) {
        const u64 candidates = mine.there & ~mine.empty;
        quota = count - empty;
        const u32 cut = select_age(p, row, bins, shared, candidates, shared.oldest, quota);
        certain = mine.empty;
#pragma unroll 4
        for (u32 first = 0; first < p.h; first += THREADS) {
            const u64 bit = 1ull << (first / THREADS);
            if (!(candidates & bit)) continue;
            const u32 age = row.step - static_cast<u32>(row.used[first + threadIdx.x]);
            if (age > cut) certain |= bit;
            if (age == cut) tied |= bit;
        }
    }
    hand_out(p, row, table, bins, shared, certain, tied, quota, count);
    __syncthreads();
    return count;
}

// Writes where the entries of the columns `entered` lie, and ends the lists behind `fetches`
// entries.
INLINE void answer(const Params& p, const Row& row, const Table& table, u64 entered, u32 fetches) {
#pragma unroll 1
    for (u32 first = 0; first < p.m; first += AHEAD * THREADS) {
        i32 some[AHEAD];
        load_ahead(some, row.wanted, first, p.m);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 column = first + j * THREADS + threadIdx.x;
            if (column >= p.m) continue;
            if (column >= fetches) {
                row.fetch_positions[column] = -1;
                row.fetch_slots[column] = -1;
            }
            if (!(entered >> (first / THREADS + j) & 1)) continue;
            const u32 place = table.find(static_cast<u32>(some[j]));
            const u32 slot = place == NONE ? NONE : table.slots[place];
            row.slots[column] = slot == NONE ? -1 : place_of(p, row, slot);
        }
    }
}

// A row that is left out: padding, or a request that is no row of the state or that a lower row has.
INLINE void leave_out(const Params& p, u64 r) {
    for (u32 column = threadIdx.x; column < p.m; column += THREADS) {
        p.slots[r][column] = -1;
        p.fetch_positions[r][column] = -1;
        p.fetch_slots[r][column] = -1;
    }
    if (threadIdx.x == 0) p.fetches[r] = 0;
}

INLINE void one_row(const Params& p, u64 r, const Table& table, u32* bins, u32* losers, u32* bitmap,
                    Shared& shared) {
    // Loads first, so that their latencies overlap with each other and with clearing.
    i32 wanted[AHEAD];
    load_ahead(wanted, p.wanted[r], 0, p.m);
    const i64 request = p.requests == nullptr ? static_cast<i64>(r) : p.requests[r];
    const bool is_request = request >= 0 && request < p.tables;
    const u64 at = is_request ? static_cast<u64>(request) : 0;
    i32 resident[AHEAD];
    i32 used[AHEAD];
    load_ahead(resident, p.resident[at], 0, is_request ? p.h : 0);
    load_ahead(used, p.used[at], 0, is_request ? p.h : 0);
    Row row = {p.wanted[r],  p.resident[at],       p.used[at],       p.block_table[at], p.pages[at],
               p.slots[r],   p.fetch_positions[r], p.fetch_slots[r], 1ll << 32,         0,
               false};
    row.step = static_cast<u32>(p.steps[p.step_by_row ? r : 0]);
    row.reset = p.resets != nullptr && p.resets[r] != 0;
    if (p.tail_starts.data != nullptr) row.tail_start = p.tail_starts[r];
    bool is_lost = false;
    if (p.requests != nullptr) {
        for (u64 lower = threadIdx.x; lower < r; lower += THREADS) {
            is_lost |= p.requests[lower] == request;
        }
    }
    // The places and their slots lie one behind the other.
    for (u32 i = threadIdx.x; i < 2 * (table.mask + 1); i += THREADS) table.keys[i] = NONE;
    for (u32 i = threadIdx.x; i < p.loser_words; i += THREADS) losers[i] = 0;
    if (threadIdx.x == 0) {
        shared.misses = 0;
        shared.lowest = NONE;
        shared.highest = 0;
        shared.empty = 0;
        shared.free = 0;
        shared.oldest = 0;
    }
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
    const u64 entered = enter(p, row, table, wanted, bits);
    __syncthreads();
    Mine mine = look_up(p, row, table, losers, resident, bits);
    __syncthreads();
    list_misses(table, shared);
    settle_hits(p, row, losers, mine, used, shared);
    __syncthreads();
    const u32 fetches = serve_misses(p, row, table, bins, bitmap, shared, mine, bits);
    answer(p, row, table, entered, fetches);
    if (threadIdx.x == 0) p.fetches[r] = static_cast<i32>(fetches);
    bits = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

// IN_SHARED: the table and the list lie in shared memory.
template <bool IN_SHARED>
INLINE void hot_slots(const Params& p) {
    extern __shared__ uint4 dynamic[];
    __shared__ Shared shared;
    u32* const bins = reinterpret_cast<u32*>(dynamic);
    u32* const bitmap = bins + BINS;
    u32* const losers = bitmap + p.bitmap_words;
    const u32 places = 1u << p.log_places;
    const u64 words = 2ull * places + p.list_words;
    u32* const base = IN_SHARED ? losers + p.loser_words : p.workspace + blockIdx.x * words;
    const Table table = {base, base + places, base + 2 * places, places - 1, 32 - p.log_places};
    for (u64 r = blockIdx.x; r < p.batch; r += gridDim.x) {
        one_row(p, r, table, bins, losers, bitmap, shared);
        __syncthreads();
    }
}

SPEC_KERNEL(hot_slots, hot_slots<true>, Params, THREADS)
SPEC_KERNEL(hot_slots_workspace, hot_slots<false>, Params, THREADS)
