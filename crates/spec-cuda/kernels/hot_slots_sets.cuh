// The wanted entries of a row of hot_slots as a set, held by a block. Each entry has an id, by
// which `owners` has the lowest slot that holds it. There are two kinds of set:
//
// * Narrow: the entries lie in a range for which shared memory has a bitmap. Ids ascend with
//           entries, so the misses are listed in ascending order without a sort. Where the columns
//           of the row ascend, an id is the column of its entry. Elsewhere it is the number of
//           smaller entries in the set.
// * Hashed: any entries, in a hash table of at least 2 m places. An id is a place. The order of the
//           insertions decides the places, but no result depends on them: entries are looked up by
//           comparing them. The misses are listed in any order, then sorted: by a bitmap of their
//           range, and misses of a wide range by a bitonic network.
//
// Both have these functions, in the order of their calls, between barriers of the block:
//
//   enter        enters the entries of neighbouring columns.
//   number       (Narrow, where columns do not ascend) follows the insertions, after a barrier.
//   look_up      looks up the entries of neighbouring slots, and leaves the lowest slot of each.
//   note         notes how many entries have no owner, and returns which ids have such entries, of
//                the ids that are numbers of the thread's columns (Narrow).
//   misses       how many these are, after a barrier.
//   list_misses  numbers the misses from 0 on in ascending order: the owner of miss r is MISS + r.
//                A hashed set has barriers in it. Another barrier must follow.
//   miss         the entry of a miss.
//   owners_of    the owners of entries.
#pragma once

#include "hot_slots_sort.cuh"

// Fibonacci hashing: 2^32 divided by the golden ratio. Neighbouring entries get distant places.
constexpr u32 GOLDEN = 0x9E3779B9u;
// The owner of an entry that no slot holds: this number and the number of the miss.
constexpr u32 MISS = 1u << 31;
// Stands for the last entry of a warp whose columns do not ascend.
constexpr u32 UNSORTED = 1u << 31;

// A thread's part of a row. A warp has neighbouring elements, in groups of 32 PACK: lane l has the
// elements PACK l to PACK (l + 1) - 1 of each group.
template <u32 PACK>
struct Part {
    // The lane's first element, and the number of groups of each warp.
    u32 first;
    u32 groups;

    INLINE explicit Part(u32 groups)
        : first((threadIdx.x / WARP * groups * WARP + lane_id()) * PACK), groups(groups) {}

    INLINE u32 at(u32 group) const { return first + group * (PACK * WARP); }
};

// The PACK bits of a thread's mask that stand for its columns, or for its slots, of one group. They
// are the lowest bits of the result.
template <u32 PACK, typename Mask>
INLINE u32 bits_of(Mask mask, u32 group) {
    return static_cast<u32>(mask >> (PACK * group)) & ((1u << PACK) - 1);
}

INLINE u32 ones(u32 mask) { return __popc(mask); }
INLINE u32 ones(u64 mask) { return __popcll(mask); }

// Loads PACK neighbouring values of a row into `pack`. The row begins at `from` and has `count`
// values; `first`, a multiple of PACK, is the index of the first value to load. Where the index is
// `count` or more, `pack` gets NONE. `by_vectors` says that `from` is a multiple of 16 bytes, so
// that four values may be loaded at once.
template <u32 PACK>
INLINE void load_neighbours(u32 (&pack)[PACK], const i32* from, u32 first, u32 count,
                            bool by_vectors) {
#pragma unroll
    for (u32 j = 0; j < PACK; j++) pack[j] = NONE;
    if (!rarely(!by_vectors || first + PACK > count)) {
#pragma unroll
        for (u32 j = 0; j < PACK; j += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(from + first + j);
            pack[j] = four.x;
            pack[j + 1] = four.y;
            pack[j + 2] = four.z;
            pack[j + 3] = four.w;
        }
    } else if (first < count) {
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            if (first + j < count) pack[j] = static_cast<u32>(from[first + j]);
        }
    }
}

// Stores those of the PACK values of `pack` that have a bit in `which`; value j goes to element
// first + j of the row that begins at `to`. `by_vectors` says that the values without a bit may be
// stored too, and that the elements lie at a multiple of 16 bytes, so that four are stored at once.
template <u32 PACK>
INLINE void store_neighbours(i32* to, const u32 (&pack)[PACK], u32 first, u32 which,
                             bool by_vectors) {
    if (which == 0) return;
    if (by_vectors) {
#pragma unroll
        for (u32 j = 0; j < PACK; j += 4) {
            *reinterpret_cast<uint4*>(to + first + j) =
                make_uint4(pack[j], pack[j + 1], pack[j + 2], pack[j + 3]);
        }
        return;
    }
#pragma unroll
    for (u32 j = 0; j < PACK; j++) {
        if (which >> j & 1) to[first + j] = static_cast<i32>(pack[j]);
    }
}

// Moves each value one place down, and the first one to the end. So a loop that is not unrolled can
// work on each value in the first place, as code cannot choose a register by a number. After PACK
// turns all values are back in their places.
template <u32 PACK>
INLINE void rotate(u32 (&pack)[PACK]) {
    const u32 first = pack[0];
#pragma unroll
    for (u32 j = 1; j < PACK; j++) pack[j - 1] = pack[j];
    pack[PACK - 1] = first;
}

// The columns of a thread.
template <typename Mask>
struct Columns {
    const i32* wanted;
    u32 m;
    bool by_vectors;
    Part<COLUMNS> part;
    // A bit for each column, COLUMNS for each group, whose entry is in the set.
    Mask entered;
    // A bit for each column whose entry lies outside of the slots, and has its answer.
    Mask outside;
    // The entries of the first group; NONE in a column whose entry is not in the set.
    u32 entries[COLUMNS];

    INLINE Columns(const i32* wanted, u32 m, u32 groups, bool by_vectors)
        : wanted(wanted), m(m), by_vectors(by_vectors), part(groups), entered(0), outside(0) {
        load_neighbours(entries, wanted, part.first, m, by_vectors);
    }

    // Loads the entries of a group, once `entered` is known.
    INLINE void load(u32 group, u32 (&of_group)[COLUMNS]) const {
        if (!rarely(part.groups > 1)) {
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) of_group[j] = entries[j];
            return;
        }
        load_neighbours(of_group, wanted, part.at(group), m, by_vectors);
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            if ((entered >> (COLUMNS * group + j) & 1) == 0) of_group[j] = NONE;
        }
    }
};

// What the threads of a block share, in addition to the dynamic shared memory.
struct Shared {
    // Of each warp: its least and its greatest wanted entry, and that of its last column. Warps
    // that the block does not have count as warps without entries.
    u32 lows[MAX_WARPS];
    u32 highs[MAX_WARPS];
    u32 lasts[MAX_WARPS];
    // Of each warp: its entries, or its slots that are taken; its misses; the free slots of its
    // bins.
    u32 totals[MAX_WARPS];
    u32 missing[MAX_WARPS];
    u32 free[MAX_WARPS];
    // The misses of a hashed set, and their range.
    u32 misses;
    u32 lowest;
    u32 highest;
    // The bin at which a selection of slots ends; how many of the bin's slots are still to be
    // chosen, and how many slots the bin has.
    u32 bin;
    u32 left;
    u32 inside;

    // The arrays have room for MAX_WARPS warps. Writes the elements of the warps that the block
    // does not have, so that 32 lanes can read all elements of an array.
    INLINE void clear() {
        const u32 warp = threadIdx.x;
        if (warp < blockDim.x / WARP || warp >= MAX_WARPS) return;
        lows[warp] = NONE;
        highs[warp] = 0;
        lasts[warp] = NONE;
        totals[warp] = 0;
        missing[warp] = 0;
        free[warp] = 0;
    }
};

// Marks the higher of two slots that hold one entry: `slot`, and `other`, the lowest slot that came
// before; NONE if none did. So every slot but the lowest is marked, in whatever order they come.
INLINE void mark_loser(u32* losers, u32 other, u32 slot) {
    if (other == NONE) return;
    const u32 higher = max(other, slot);
    atomicOr(&losers[higher / WARP], 1u << (higher % WARP));
}

struct Narrow {
    // The entry of the first bit, a multiple of 32, and the number of words that have entries.
    u32 base;
    u32 words;
    // A bit for each number of the range, and a word of 0; the id of the first entry of each word.
    u32* bits;
    u16* starts;
    // Of each id: its lowest slot, and its entry.
    u32* owners;
    u32* entries;
    // The ids of the misses, ascending.
    u16* list;
    // A word for each lane, which stands for the owner of an entry that is not in the set.
    u32* spare;
    // The number of columns, which ids are below.
    u32 columns;
    // Whether ids are columns.
    bool by_column;

    // Enters neighbouring entries, of the columns from `first` on; NONE in a column without one.
    // `previous` is the entry of the column before, NONE if there is none.
    INLINE void enter(const u32 (&pack)[COLUMNS], u32 first, u32 previous) const {
        // The word behind those of entries, see `find`.
        if (threadIdx.x == 0) bits[words] = 0;
        u32 word_before = previous == NONE ? NONE : (previous - base) / WARP;
        u32 owner[COLUMNS];
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            const u32 at = pack[j] - base;
            const u32 word = at / WARP;
            // The columns may change while the kernel runs, so a word may lie outside. NONE lies
            // outside too.
            const bool is_entry = word < words;
            if (is_entry) {
                atomicOr(&bits[word], 1u << (at % WARP));
                if (by_column && word != word_before) starts[word] = static_cast<u16>(first + j);
            }
            word_before = word;
            owner[j] = is_entry ? NONE : 0;
        }
        if (by_column && first < columns) {
            *reinterpret_cast<uint4*>(owners + first) =
                make_uint4(owner[0], owner[1], owner[2], owner[3]);
            *reinterpret_cast<uint4*>(entries + first) =
                make_uint4(pack[0], pack[1], pack[2], pack[3]);
        }
        static_assert(COLUMNS == 4);
    }

    // Numbers the entries of columns that do not ascend: a warp counts in neighbouring words.
    INLINE void number_words(Shared& shared) const {
        const u32 warps = blockDim.x / WARP;
        const u32 each = (words + warps - 1) / warps;
        const u32 start = min(threadIdx.x / WARP * each, words);
        const u32 end = min(start + each, words);
        u32 total = 0;
#pragma unroll 1
        for (u32 at = start + lane_id(); at < end; at += WARP) total += __popc(bits[at]);
        total = sum_of(total);
        if (lane_id() == 0) shared.totals[threadIdx.x / WARP] = total;
        __syncthreads();
        const u32 of_warp = shared.totals[lane_id()];
        u32 before = sum_before(of_warp);
        const u32 count = sum_of(of_warp);
#pragma unroll 1
        for (u32 from = start; from < end; from += WARP) {
            const u32 at = from + lane_id();
            const u32 own = at < end ? __popc(bits[at]) : 0;
            const u32 through = warp_inclusive_sum(own);
            if (at < end) starts[at] = static_cast<u16>(before + through - own);
            before += __shfl_sync(ALL_LANES, through, WARP - 1);
        }
#pragma unroll 1
        for (u32 id = threadIdx.x; id < (columns + COLUMNS - 1) / COLUMNS * COLUMNS;
             id += blockDim.x) {
            owners[id] = id < count ? NONE : 0;
        }
        __syncthreads();
    }

    template <typename Mask>
    INLINE void number(const Columns<Mask>& row, Shared& shared) const {
        number_words(shared);
#pragma unroll 1
        for (u32 g = 0; g < row.part.groups; g++) {
            u32 pack[COLUMNS];
            row.load(g, pack);
            u32* owner[COLUMNS];
            // All lanes are here, but few rows come here: the barrier is not worth its room.
            const u32 found = find(pack, spare, owner, false);
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) {
                if (found >> j & 1) entries[owner[j] - owners] = pack[j];
            }
        }
    }

    // Finds where the owner of each entry lies, and answers the entries that are in the set, a bit
    // for each; `to` is `otherwise` for the others. If all lanes of the warp call this function
    // together, they say so by `together`, and the loads of all entries are under way at once:
    // without a barrier behind the loads, the compiler waits for those of one entry after the other
    // to save registers.
    template <u32 PACK>
    INLINE u32 find(const u32 (&pack)[PACK], u32* otherwise, u32* (&to)[PACK],
                    bool together) const {
        u32 at[PACK];
        u32 word[PACK];
        u32 start[PACK];
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            // A number outside of the range goes to the word behind the range, which is 0, or to a
            // bit behind that of the largest entry. One below the base wraps around.
            at[j] = min(pack[j] - base, words * WARP);
            word[j] = bits[at[j] / WARP];
            start[j] = starts[at[j] / WARP];
        }
        if (together) __syncwarp();
        u32 found = 0;
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            // The entry's bit becomes the highest, and those of smaller entries of the word follow.
            const u32 through = __funnelshift_l(0, word[j], ~at[j]);
            const u32 next = min(start[j] + __popc(through), columns);
            const bool is_there = static_cast<i32>(through) < 0;
            to[j] = is_there ? owners + next - 1 : otherwise;
            if (is_there) found |= 1u << j;
        }
        return found;
    }

    // Looks up the entries of the slots from `first` on, and answers those that are hits, a bit for
    // each.
    template <u32 PACK>
    INLINE u32 look_up(const u32 (&pack)[PACK], u32 first, u32* losers, bool& is_double) const {
        u32* to[PACK];
        const u32 hits = find(pack, spare + lane_id(), to, true);
        u32 others[PACK];
        u32 all = NONE;
#pragma unroll
        for (u32 j = 0; j < PACK; j++) others[j] = atomicMin(to[j], first + j);
#pragma unroll
        for (u32 j = 0; j < PACK; j++) {
            if ((hits >> j & 1) == 0) others[j] = NONE;
            all &= others[j];
        }
        if (rarely(all != NONE)) {
            is_double = true;
#pragma unroll 1
            for (u32 j = 0; j < PACK; j++) {
                mark_loser(losers, others[0], first + j);
                rotate(others);
            }
        }
        return hits;
    }

    // The owners of entries; NONE for one that is not in the set.
    INLINE void owners_of(const u32 (&pack)[COLUMNS], u32 (&of_pack)[COLUMNS]) const {
        u32* from[COLUMNS];
        const u32 found = find(pack, spare, from, false);
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) of_pack[j] = found >> j & 1 ? *from[j] : NONE;
    }

    // Whether neighbouring ids are misses, a bit for each.
    INLINE u32 missing(u32 first) const {
        if (first >= columns) return 0;
        const uint4 four = *reinterpret_cast<const uint4*>(owners + first);
        return (four.x == NONE ? 1u : 0) | (four.y == NONE ? 2u : 0) | (four.z == NONE ? 4u : 0) |
               (four.w == NONE ? 8u : 0);
    }

    template <typename Mask>
    INLINE Mask note(const Columns<Mask>& row, Shared& shared) const {
        Mask which = 0;
#pragma unroll 1
        for (u32 g = 0; g < row.part.groups; g++) {
            which |= static_cast<Mask>(missing(row.part.at(g))) << (COLUMNS * g);
        }
        const u32 own = sum_of(ones(which));
        if (lane_id() == 0) shared.missing[threadIdx.x / WARP] = own;
        return which;
    }

    INLINE u32 misses(const Shared& shared) const { return sum_of(shared.missing[lane_id()]); }

    template <typename Mask>
    INLINE void list_misses(const Columns<Mask>& row, Mask missing, const Shared& shared) const {
        u32 before = sum_before(shared.missing[lane_id()]);
#pragma unroll 1
        for (u32 g = 0; g < row.part.groups; g++) {
            const u32 first = row.part.at(g);
            const u32 which = bits_of<COLUMNS>(missing, g);
            if (__all_sync(ALL_LANES, which == 0)) continue;
            const u32 own = __popc(which);
            const u32 through = warp_inclusive_sum(own);
            u32 to = before + through - own;
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) {
                if ((which >> j & 1) == 0) continue;
                list[to] = static_cast<u16>(first + j);
                owners[first + j] = MISS + to;
                to++;
            }
            before += __shfl_sync(ALL_LANES, through, WARP - 1);
        }
    }

    INLINE u32 miss(u32 r) const { return entries[list[r]]; }
};

struct Hashed {
    u32* keys;
    u32* owners;
    u32* list;
    // Sorts misses of a range of at most so many words.
    u32* bitmap;
    u32 bitmap_words;
    u32 mask;
    u32 shift;

    INLINE u32 hash(u32 entry) const { return entry * GOLDEN >> shift; }

    // Before the barrier that ends the insertions, only `enter` may be called. At most half of the
    // places are filled, so the loops end.
    INLINE void enter(u32 (&pack)[COLUMNS]) const {
#pragma unroll 1
        for (u32 j = 0; j < COLUMNS; j++) {
            const u32 entry = pack[0];
            u32 place = hash(entry);
            // The columns may change while the kernel runs, so a number may have become negative.
            while (static_cast<i32>(entry) >= 0) {
                const u32 there = atomicCAS(&keys[place], NONE, entry);
                if (there == NONE || there == entry) break;
                place = (place + 1) & mask;
            }
            rotate(pack);
        }
    }

    // The id of an entry; NONE for one that is not in the set, and for a negative number.
    INLINE u32 find(u32 entry) const {
        u32 place = hash(entry);
        while (static_cast<i32>(entry) >= 0) {
            const u32 there = keys[place];
            if (there == entry) return place;
            if (there == NONE) return NONE;
            place = (place + 1) & mask;
        }
        return NONE;
    }

    template <u32 PACK>
    INLINE u32 look_up(u32 (&pack)[PACK], u32 first, u32* losers, bool& is_double) const {
        u32 hits = 0;
#pragma unroll 1
        for (u32 j = 0; j < PACK; j++) {
            const u32 id = find(pack[0]);
            if (id != NONE) {
                hits |= 1u << j;
                const u32 other = atomicMin(&owners[id], first + j);
                is_double |= other != NONE;
                mark_loser(losers, other, first + j);
            }
            rotate(pack);
        }
        return hits;
    }

    INLINE void owners_of(u32 (&pack)[COLUMNS], u32 (&of_pack)[COLUMNS]) const {
#pragma unroll 1
        for (u32 j = 0; j < COLUMNS; j++) {
            const u32 id = find(pack[0]);
            of_pack[0] = id == NONE ? NONE : owners[id];
            rotate(pack);
            rotate(of_pack);
        }
    }

    // Lists the entries without an owner, in any order, and notes their number and range.
    INLINE void note(Shared& shared) const {
        u32 lowest = NONE;
        u32 highest = 0;
        // The number of places is a multiple of that of threads, so all lanes of a warp take part.
#pragma unroll 1
        for (u32 at = threadIdx.x; at <= mask; at += blockDim.x) {
            const u32 entry = keys[at];
            const bool is_miss = entry != NONE && owners[at] == NONE;
            const u32 lanes = __ballot_sync(ALL_LANES, is_miss);
            if (lanes == 0) continue;
            u32 to = 0;
            if (lane_id() == 0) to = atomicAdd(&shared.misses, __popc(lanes));
            to = __shfl_sync(ALL_LANES, to, 0);
            if (is_miss) {
                list[to + __popc(lanes & lanes_below())] = entry;
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

    INLINE void list_misses(Shared& shared) const {
        const u32 n = shared.misses;
        const u32 words = (shared.highest - shared.lowest) / 32 + 1;
        if (words <= bitmap_words) {
            const u32 rounded = (words + blockDim.x - 1) / blockDim.x * blockDim.x;
            sort_by_bitmap(shared.totals, bitmap, rounded, shared.lowest, list, n);
        } else {
            sort_by_exchange(list, n);
        }
#pragma unroll 1
        for (u32 r = threadIdx.x; r < n; r += blockDim.x) owners[find(list[r])] = MISS + r;
    }

    INLINE u32 miss(u32 r) const { return list[r]; }
};

// The set of a row, of the kind that suits its entries.
struct Set {
    bool is_hashed;
    Narrow narrow;
    Hashed hashed;

    INLINE void enter(u32 (&pack)[COLUMNS], u32 first, u32 previous) const {
        if (rarely(is_hashed)) {
            hashed.enter(pack);
        } else {
            narrow.enter(pack, first, previous);
        }
    }

    template <typename Mask>
    INLINE void number(const Columns<Mask>& columns, Shared& shared) const {
        if (rarely(!is_hashed && !narrow.by_column)) narrow.number(columns, shared);
    }

    INLINE u32 look_up(u32 (&pack)[SLOTS], u32 first, u32* losers, bool& is_double) const {
        if (rarely(is_hashed)) return hashed.look_up(pack, first, losers, is_double);
        return narrow.look_up(pack, first, losers, is_double);
    }

    template <typename Mask>
    INLINE Mask note(const Columns<Mask>& columns, Shared& shared) const {
        if (!rarely(is_hashed)) return narrow.note(columns, shared);
        hashed.note(shared);
        return 0;
    }

    // Without a branch around the sum: NVRTC 12.9 makes predicates of such a branch, and gives the
    // sum a wrong one.
    INLINE u32 misses(const Shared& shared) const {
        const u32 of_narrow = narrow.misses(shared);
        return is_hashed ? shared.misses : of_narrow;
    }

    template <typename Mask>
    INLINE void list_misses(const Columns<Mask>& columns, Mask missing, Shared& shared) const {
        if (rarely(is_hashed)) {
            hashed.list_misses(shared);
        } else {
            narrow.list_misses(columns, missing, shared);
        }
    }

    INLINE u32 miss(u32 r) const { return rarely(is_hashed) ? hashed.miss(r) : narrow.miss(r); }

    // The owners of the entries of a group of columns; NONE for those that are not in the set.
    template <typename Mask>
    INLINE void owners_of(const Columns<Mask>& columns, u32 group, u32 (&owners)[COLUMNS]) const {
        if (!is_hashed && narrow.by_column) {
            const uint4 four =
                *reinterpret_cast<const uint4*>(narrow.owners + columns.part.at(group));
            owners[0] = four.x;
            owners[1] = four.y;
            owners[2] = four.z;
            owners[3] = four.w;
            return;
        }
        u32 pack[COLUMNS];
        columns.load(group, pack);
        if (is_hashed) {
            hashed.owners_of(pack, owners);
        } else {
            narrow.owners_of(pack, owners);
        }
    }
};
