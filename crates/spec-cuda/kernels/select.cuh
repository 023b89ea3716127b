// Finds where a row is cut by top-k or top-p, without sorting the row (RadixSelect).
//
// A team of blocks owns a row: a cluster, or a single block where the device has no clusters.
// Entries are ordered by exact::sort_key, descending, and by ascending index among equal keys. An
// entry is kept while the weights of the entries before it add up to less than a limit: with
// weights of 1, the `limit` largest entries are kept; with probabilities in integer units, the most
// likely entries that reach the limit. Weights are integers that depend on the key alone, so the
// result does not depend on the order of the atomic additions:
//
//     round 0   a histogram with bins of equal width in value, from the row's largest entry down;
//     then      if the bin that contains the cut has few entries, they go to the leading block,
//               which finds the cut alone;
//     else      histograms of the keys in that bin, each with 512 times finer bins, until a bin is
//               a single key; if only some entries with that key are kept, their indices decide.
//
// Each block counts its entries in its own shared memory. After a barrier of the team, each block
// adds up some of the bins of all blocks and publishes the sums.
//
// select_team.cuh defines the team, select_row.cuh the row.
#pragma once

#include "select_row.cuh"

// ---- lists ----------------------------------------------------------------------

// An entry of a list. The larger key is the larger entry; among equal keys, the lower index is.
INLINE u64 listed_entry(float x, u32 index) {
    return static_cast<u64>(exact::sort_key(x)) << 32 | (NONE - index);
}

// Whether more entries were listed already than there is room for.
INLINE bool is_full(const u32& count, u32 room) {
    return *const_cast<const volatile u32*>(&count) > room;
}

// Lists the entries of a vector whose bits are set in `those`, after the `count` entries that this
// block has listed, as far as there is room.
template <u32 N>
INLINE void list_those(u32& count, u64* to, u32 room, const float (&entries)[N], u32 first,
                       u32 those) {
    u32 place = atomicAdd(&count, __popc(those));
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        if ((those >> j & 1) == 0) continue;
        if (place < room) to[place] = listed_entry(entries[j], first + j);
        place += 1;
    }
}

// The number of list entries that are larger than `own`. `lanes` neighbouring lanes, a power of
// two, each compare `own` with a part of the list.
INLINE u32 count_larger(u64 own, const u64* list, u32 count, u32 lanes) {
    u32 rank = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x % lanes; i < count; i += lanes) rank += list[i] > own;
    for (u32 o = 1; o < lanes; o *= 2) rank += __shfl_xor_sync(ALL_LANES, rank, o);
    return rank;
}

// ---- the cut --------------------------------------------------------------------

// A cut of a row: larger keys are kept, and entries with exactly `key` whose index is below `end`.
struct Cut {
    // With key 0, every entry is kept.
    u32 key;
    u32 end;

    INLINE bool all() const { return key == 0; }
    INLINE bool keeps(u32 of, u32 index) const { return of > key || (of == key && index < end); }
};

// The same cut, which compares entries instead of keys.
struct FloatCut {
    float least;
    u32 end;

    INLINE FloatCut(const Cut& cut)
        : least(cut.all() ? negative_infinity() : exact::value_of_key(cut.key)),
          end(cut.all() ? NONE : cut.end) {}

    INLINE bool keeps(float x, u32 index) const {
        return x > least || (x == least && index < end);
    }
};

// One bin for each thread.
constexpr u32 SELECT_BINS = SELECT_THREADS;

// Shared memory of a selection. Each bin is a sum in three parts of 14 bits; bins are in descending
// order of keys.
struct Selection {
    // Entries of the bin in which the first round ended, as far as they fit, in the order of
    // `listed_entry`. They are in the leading block, where each block of the team has its own part.
    static constexpr u32 LISTED = 1024;

    u32 bins[3][SELECT_BINS];
    // The sums of the bins over the whole team.
    u64 sums[SELECT_BINS];
    u64 list[LISTED];
    // The number of entries that this block has listed, and that each block of the team has.
    u32 listed;
    u32 listed_of[MAX_CLUSTER];
    u64 warp_sums[SELECT_WARPS];
    u64 above;
    u64 within;
    u32 bin;
};

// The bins of the first round: (largest - x) * scale, with all larger numbers in the last bin. Both
// operations round monotonically, so the bins are in the order of the keys.
struct Linear {
    float largest;
    float scale;

    INLINE u32 bin(float x) const {
        const float at = x == largest ? 0.0f : exact::mul(exact::sub(largest, x), scale);
        // Adding 2^23 and rounding down leaves whole bins in the low mantissa bits.
        const float capped = fminf(at, static_cast<float>(SELECT_BINS - 1));
        return __float_as_uint(__fadd_rz(capped, 8388608.0f)) - 0x4B000000u;
    }

    // Tests whether an entry is in one bin.
    struct Inside {
        float largest;
        float scale;
        float from;
        // NaN for the last bin, which has no end.
        float to;

        INLINE bool operator()(float x) const {
            const float at = exact::mul(exact::sub(largest, x), scale);
            return at >= from && !(at >= to);
        }
    };

    INLINE Inside inside(u32 bin) const {
        // If the largest entry is infinite, the first bin contains only entries equal to it.
        if (bin == 0 && !exact::finite(largest)) return {LARGEST, 1.0f, negative_infinity(), -1.0f};
        const float to = bin == SELECT_BINS - 1 ? nothing() : static_cast<float>(bin + 1);
        return {largest, scale, static_cast<float>(bin), to};
    }
};

// Adds a weight to a bin, in three parts of 14 bits. The sums of the parts do not overflow with up
// to 2^18 entries a block. Atomic additions whose old value is not used are several times faster.
// Most often one part is 0 and is not added.
INLINE void add_thirds(Selection& s, u32 bin, u64 weight) {
    const u32 low = static_cast<u32>(weight) & 0x3FFF;
    const u32 middle = static_cast<u32>(weight >> 14) & 0x3FFF;
    const u32 high = static_cast<u32>(weight >> 28);
    if (low != 0) atomicAdd(&s.bins[0][bin], low);
    if (middle != 0) atomicAdd(&s.bins[1][bin], middle);
    if (high != 0) atomicAdd(&s.bins[2][bin], high);
}

// For longer rows (`wide`), adds the weight in two halves of 32 bits with carry.
INLINE void add_to_bin(Selection& s, u32 bin, u64 weight, bool wide) {
    if (!wide) {
        add_thirds(s, bin, weight);
        return;
    }
    const u32 low = static_cast<u32>(weight);
    const u32 before = atomicAdd(&s.bins[0][bin], low);
    const u32 high = static_cast<u32>(weight >> 32) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(&s.bins[1][bin], high);
}

// The bin in which a round ended, the sum of the weights before the bin, and the sum of its
// weights.
struct Round {
    u64 above;
    u64 within;
    u32 bin;

    INLINE bool found() const { return bin < SELECT_BINS; }
};

// The bins of a later round: they divide a range of keys, from the highest key down.
struct Bins {
    u32 lowest;
    u32 highest;
    u32 shift;

    // The smallest shift for which the range has at most SELECT_BINS bins.
    INLINE Bins(u32 from, u32 to) : lowest(from), highest(to) {
        const u32 range = highest - lowest;
        shift = range < SELECT_BINS ? 0 : 32 - BITS - __clz(range);
    }

    INLINE bool is_one_key() const { return lowest == highest; }

    // The bin of a key; SELECT_BINS for a key outside the range.
    INLINE u32 bin(u32 key) const {
        return highest - key <= highest - lowest ? (highest - key) >> shift : SELECT_BINS;
    }

    INLINE Bins within(u32 bin) const {
        const u32 to = highest - (bin << shift);
        const u32 width = (1u << shift) - 1;
        return Bins(to - lowest > width ? to - width : lowest, to);
    }

    static constexpr u32 BITS = 9;
    static_assert(SELECT_BINS == 1u << BITS);
};

// Adds up consecutive weights that go to the same bin, so that they take one atomic addition. Equal
// entries are often neighbours.
struct Runs {
    Selection& selection;
    bool wide;
    u32 bin;
    u64 sum;

    INLINE Runs(Selection& s, bool wide_sums)
        : selection(s), wide(wide_sums), bin(0), sum(0) {}

    INLINE void add(u32 into, u64 weight) {
        if (into != bin || sum >> 40 != 0) {
            add_to_bin(selection, bin, sum, wide);
            sum = 0;
        }
        bin = into;
        sum += weight;
    }

    INLINE void end() { add_to_bin(selection, bin, sum, wide); }
};

// Adds all weights of a row that is not `wide` to the bins of the first round. weights(entries,
// index of the first entry, weights) stores the weight of each entry, 0 for an absent entry, and
// returns false if all are 0. A vector whose entries share a bin joins the lane's run.
template <typename Row, typename Weights>
INLINE void add_row(Selection& s, u32 lane, const Row& row, const Linear& linear,
                    const Weights& weights) {
    Runs runs(s, false);
    row.each(lane, [&](const float(&entries)[Row::N], u32 first) {
        u64 own[Row::N];
        if (!weights(entries, first, own)) return;
        u32 bins[Row::N];
        bool same_bin = true;
        u64 all = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            bins[j] = linear.bin(entries[j]);
            same_bin = same_bin && bins[j] == bins[0];
            all += own[j];
        }
        if (same_bin) {
            runs.add(bins[0], all);
        } else {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) add_thirds(s, bins[j], own[j]);
        }
    });
    runs.end();
}

INLINE void clear_bins(Selection& s) {
#pragma unroll
    for (u32 third = 0; third < 3; ++third) s.bins[third][threadIdx.x] = 0;
    if (threadIdx.x == 0) s.bin = SELECT_BINS;
    __syncthreads();
}

INLINE u64 sum_of_bin(const Selection& s, const Cluster& blocks, u32 bin, u32 block, bool wide) {
    u64 sum = 0;
#pragma unroll
    for (u32 third = 0; third < 3; ++third) {
        const u64 there = *blocks.of(&s.bins[third][bin], block);
        // With halves, the third part is 0.
        sum += there << (wide ? 32 * (third & 1) : 14 * third);
    }
    return sum;
}

// The sum of this thread's bin over the team, after all blocks have added their weights.
INLINE u64 sum_bins(Selection& s, const Cluster& blocks, bool wide) {
    if (blocks.size == 1) {
        __syncthreads();
        return sum_of_bin(s, blocks, threadIdx.x, 0, wide);
    }
    // Each block adds up some of the bins, with a lane for each block of the team, and publishes
    // the sums.
    blocks.sync();
    const u32 bin = blocks.rank * (SELECT_BINS / blocks.size) + threadIdx.x / blocks.size;
    const u32 block = threadIdx.x & (blocks.size - 1);
    u64 sum = sum_of_bin(s, blocks, bin, block, wide);
    for (u32 o = 1; o < blocks.size; o *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    *blocks.of(&s.sums[bin], block) = sum;
    blocks.sync();
    return s.sums[threadIdx.x];
}

// Finds the bin at which the running sum, beginning with `above`, reaches limit_of(sum of all
// bins), if a bin does. `own` is the sum of this thread's bin.
template <typename Limit>
INLINE Round reach(Selection& s, const Team& team, u64 own, u64 above, const Limit& limit_of) {
    const BlockSums sums(s.warp_sums, team, own);
    const u64 before = above + sums.through - own;
    const u64 limit = limit_of(sums.all);
    // True in at most one thread.
    if (before < limit && before + own >= limit) {
        s.bin = threadIdx.x;
        s.above = before;
        s.within = own;
    }
    __syncthreads();
    const Round round = {s.above, s.within, s.bin};
    // All threads must read the result before the next round begins.
    __syncthreads();
    return round;
}

// Sends this block's entries of a bin to the leading block. Returns whether there was room for the
// entries of all blocks.
template <typename Row>
INLINE bool list_entries(Selection& s, Team& team, const Row& row, const Linear::Inside& inside) {
    if (threadIdx.x == 0) s.listed = 0;
    __syncthreads();
    const u32 room = Selection::LISTED / team.blocks.size;
    u64* const list = team.blocks.of(s.list, 0) + team.blocks.rank * room;
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
        u32 those = 0;
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) those |= inside(entries[j]) ? 1u << j : 0u;
        if (those == 0 || is_full(s.listed, room)) return;
        list_those(s.listed, list, room, entries, first, those);
    });
    __syncthreads();
    if (threadIdx.x < team.blocks.size) {
        *team.blocks.of(&s.listed_of[team.blocks.rank], threadIdx.x) = s.listed;
    }
    team.blocks.sync();
    const u32 max_listed = team.lane < team.blocks.size ? s.listed_of[team.lane] : 0;
    return __reduce_max_sync(ALL_LANES, max_listed) <= room;
}

// The range of keys in a bin of the first round, among the entries that an earlier cut keeps.
template <typename Row>
INLINE Bins range_of(Team& team, const Row& row, const Cut& kept, const Linear::Inside& inside) {
    const FloatCut by(kept);
    float lowest = nothing();
    float highest = nothing();
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) {
            const bool in = inside(entries[j]) && by.keeps(entries[j], first + j);
            lowest = in ? fminf(lowest, entries[j]) : lowest;
            highest = in ? fmaxf(highest, entries[j]) : highest;
        }
    });
    // `low` holds the inverted key, so that both are maxima; 0 if there is no entry.
    u32 low = __reduce_max_sync(ALL_LANES, lowest != lowest ? 0 : ~exact::sort_key(lowest));
    u32 high = __reduce_max_sync(ALL_LANES, key_of(highest));
    team.publish(static_cast<u64>(high) << 32 | low);
    for (u32 i = team.lane; i < team.pieces(); i += WARP) {
        const u64 pair = team.published(i);
        high = max(high, static_cast<u32>(pair >> 32));
        low = max(low, static_cast<u32>(pair));
    }
    return Bins(~__reduce_max_sync(ALL_LANES, low), __reduce_max_sync(ALL_LANES, high));
}

// Sorts the list in descending order. Each thread has two entries, 0 for none. By the leading
// block.
INLINE void sort_list(Selection& s, const Team& team, u64 (&own)[2]) {
    constexpr u32 LISTED = Selection::LISTED;
    static_assert(LISTED == 2 * SELECT_THREADS);
    constexpr u32 LANES = 2;
    if (threadIdx.x == 0) s.listed = 0;
    const u32 count = __syncthreads_count(own[0] != 0) + __syncthreads_count(own[1] != 0);
    if (count <= SELECT_THREADS / LANES) {
        // Compacts the entries in any order, then ranks them by counting, with LANES lanes an
        // entry.
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            if (own[half] != 0) s.sums[atomicAdd(&s.listed, 1u)] = own[half];
            s.list[half * SELECT_THREADS + threadIdx.x] = 0;
        }
        __syncthreads();
        const u32 entry = threadIdx.x / LANES;
        const u64 mine = entry < count ? s.sums[entry] : 0;
        const u32 rank = count_larger(mine, s.sums, count, LANES);
        if (entry < count) s.list[rank] = mine;
        __syncthreads();
        return;
    }
    // A bitonic network. A warp has 64 neighbouring places, a lane two of them; exchanges over
    // longer distances go through shared memory.
    const u32 place = 2 * (threadIdx.x - team.lane) + team.lane;
#pragma unroll 1
    for (u32 size = 2; size <= LISTED; size *= 2) {
#pragma unroll 1
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            u64 other[2];
            if (stride > WARP) {
                __syncthreads();
                s.list[place] = own[0];
                s.list[place + WARP] = own[1];
                __syncthreads();
                other[0] = s.list[place ^ stride];
                other[1] = s.list[(place + WARP) ^ stride];
            } else if (stride == WARP) {
                other[0] = own[1];
                other[1] = own[0];
            } else {
                other[0] = __shfl_xor_sync(ALL_LANES, own[0], stride);
                other[1] = __shfl_xor_sync(ALL_LANES, own[1], stride);
            }
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 at = place + half * WARP;
                const bool larger = ((at & size) == 0) == ((at & stride) == 0);
                if (larger == (other[half] > own[half])) own[half] = other[half];
            }
        }
    }
    __syncthreads();
    s.list[place] = own[0];
    s.list[place + WARP] = own[1];
    __syncthreads();
}

// The cut among the listed entries, where `above` is the sum of the weights before them: a
// histogram of their range of keys leaves few entries, which are sorted. By the leading block.
template <typename Weigh>
INLINE Cut cut_list(Selection& s, const Team& team, u64 limit, u64 above, const Weigh& weigh) {
    const u32 room = Selection::LISTED / team.blocks.size;
    const auto weight_of = [&](u64 entry) {
        const u32 key = static_cast<u32>(entry >> 32);
        return entry != 0 ? weigh(exact::value_of_key(key), key, NONE - static_cast<u32>(entry))
                          : 0;
    };
    u64 own[2];
    u32 highest = 0;
    // The inverted lowest key.
    u32 lowest = 0;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 at = half * SELECT_THREADS + threadIdx.x;
        own[half] = at % room < s.listed_of[at / room] ? s.list[at] : 0;
        const u32 key = static_cast<u32>(own[half] >> 32);
        highest = max(highest, key);
        lowest = max(lowest, own[half] != 0 ? ~key : 0);
    }
    highest = __reduce_max_sync(ALL_LANES, highest);
    lowest = __reduce_max_sync(ALL_LANES, lowest);
    if (team.lane == 0) s.warp_sums[team.warp] = static_cast<u64>(highest) << 32 | lowest;
    clear_bins(s);
    const u64 of_warp = team.lane < SELECT_WARPS ? s.warp_sums[team.lane] : 0;
    highest = __reduce_max_sync(ALL_LANES, static_cast<u32>(of_warp >> 32));
    lowest = ~__reduce_max_sync(ALL_LANES, static_cast<u32>(of_warp));
    const Bins bins(lowest, highest);
    u32 into[2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        into[half] = own[half] != 0 ? bins.bin(static_cast<u32>(own[half] >> 32)) : SELECT_BINS;
        if (own[half] != 0) add_thirds(s, into[half], weight_of(own[half]));
    }
    Round round = reach(s, team, sum_bins(s, Cluster::alone(), false), above,
                        [&](u64) { return limit; });
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (into[half] != round.bin) own[half] = 0;
    }
    sort_list(s, team, own);
    const u64 sum = weight_of(s.list[2 * threadIdx.x]) + weight_of(s.list[2 * threadIdx.x + 1]);
    round = reach(s, team, sum, round.above, [&](u64) { return limit; });
    // The last entry that is kept.
    u64 last = s.list[2 * round.bin];
    if (round.above + weight_of(last) < limit) last = s.list[2 * round.bin + 1];
    return {static_cast<u32>(last >> 32), NONE - static_cast<u32>(last) + 1};
}

// The cut of a row at limit_of(sum of all weights), which is at least 1. weigh(x, key, index) is
// the weight of an entry: 0 for an entry that an earlier cut left out, otherwise weigh.of(key).
// weigh.add(selection, lane, row, linear) calls add_row. If the sum of all weights is below the
// limit, the result is the earlier cut `kept`.
template <typename Row, typename Weigh, typename Limit>
INLINE Cut select(Selection& s, Team& team, const Row& row, Cut kept, const Linear& linear,
                  const Weigh& weigh, const Limit& limit_of) {
    const bool wide = row.length > team.blocks.size << 18;
    clear_bins(s);
    if (wide) {
        Runs runs(s, wide);
        row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                const u32 key = key_of(entries[j]);
                if (key != 0) runs.add(linear.bin(entries[j]), weigh(entries[j], key, first + j));
            }
        });
        runs.end();
    } else {
        weigh.add(s, team.lane, row, linear);
    }
    u64 own = sum_bins(s, team.blocks, wide);
    u64 limit = 0;
    Round round = reach(s, team, own, 0, [&](u64 all) { return limit = limit_of(all); });
    if (!round.found()) return kept;
    const Linear::Inside inside = linear.inside(round.bin);
    if (list_entries(s, team, row, inside)) {
        Cut cut = {0, 0};
        if (team.blocks.rank == 0) cut = cut_list(s, team, limit, round.above, weigh);
        team.publish(static_cast<u64>(cut.key) << 32 | cut.end);
        const u64 published = team.published(0);
        return {static_cast<u32>(published >> 32), static_cast<u32>(published)};
    }
    Bins bins = range_of(team, row, kept, inside);
    while (!bins.is_one_key()) {
        clear_bins(s);
        Runs runs(s, wide);
        row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
            for (u32 j = 0; j < Row::N; ++j) {
                const u32 key = key_of(entries[j]);
                const u32 into = bins.bin(key);
                if (into == SELECT_BINS) continue;
                runs.add(into, weigh(entries[j], key, first + j));
            }
        });
        runs.end();
        own = sum_bins(s, team.blocks, wide);
        round = reach(s, team, own, round.above, [&](u64) { return limit; });
        bins = bins.within(round.bin);
    }
    const u32 highest = bins.highest;
    const u64 each = max(weigh.of(highest), static_cast<u64>(1));
    const u64 ties = (limit - round.above + each - 1) / each;
    // All entries with this key that the earlier cut kept.
    if (ties >= round.within / each) return {highest, highest == kept.key ? kept.end : NONE};
    // The index of the first entry with this key that is left out.
    const float last = exact::value_of_key(highest);
    const auto tied = [&](float x, u32 index) {
        return static_cast<u64>(x == last && weigh.keeps(highest, index));
    };
    u64 count = 0;
    row.each(team.lane, [&](const float(&entries)[Row::N], u32 first) {
#pragma unroll
        for (u32 j = 0; j < Row::N; ++j) count += tied(entries[j], first + j);
    });
    team.publish(warp_sum(count));
    u64 rest = ties;
    const u32 owner = team.piece_above(team.scan_published(), rest);
    u32 index = 0;
    if (team.has(owner)) index = row.find(team, owner, rest, tied);
    team.publish(index);
    return {highest, static_cast<u32>(team.published(owner))};
}
