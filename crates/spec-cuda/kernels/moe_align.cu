// moe_align: groups a router's picks by expert, in order, each run padded to whole
// blocks of the product.
//
// A counting sort that keeps order. Picks are cut into contiguous pieces, one a warp,
// which goes through its own 32 at a time and finds equals among them by ballots:
//
//     picks    | block 0: warp 0 | warp 1 | ... | block 1: warp 0 | ...
//     rank of a pick among its expert's = those in blocks before, in warps before, in
//                                         turns before, in lanes before
//
// A counter an expert and warp in shared memory holds the turns before; sums over
// warps, blocks and experts say where each run starts. A block sorts its picks in
// shared memory first, so that what it writes lies together.
//
// * `one`: a cluster (or a single block) does all of it in one launch, its blocks
//   reading one another's counts through distributed shared memory.
// * `count`, `place`: two launches with the counts in the workspace, for more picks. Each
//   block of `place` sums the counts of all blocks; where these are many, `sum` does it
//   once, in a launch between. `place` is launched while `count` runs, and has ranked its
//   picks when the counts are there.
// * `few`: at most 32 picks, one a lane. Every warp of every block ranks all picks, which
//   takes less time than asking another warp, and writes its share of each output.
//
// No block waits for a block that may not run: blocks of a cluster are resident
// together, and `place` is launched when all blocks of `count` have started.
//
// Bytes: 16384 tokens with 8 picks are 0.5 MB in and 1.1 MB out: below 1 us. It is
// latency, and 60 instructions for 32 picks.
#include "cluster.cuh"
#include "params/moe_align.cuh"

constexpr u32 MAX_THREADS = 1024;
constexpr u32 MAX_WARPS = MAX_THREADS / WARP;
// Loads of a lane in flight.
constexpr u32 AHEAD = 4;
// A local expert in the low bits of a word, and what is none.
constexpr u32 EXPERT_BITS = 12;
constexpr u32 EXPERT_MASK = (1u << EXPERT_BITS) - 1;
constexpr u32 DROPPED = ~0u;

// Dynamic shared memory of a block, as src/ops/moe_align.rs sizes it.
struct Shared {
    // Picks of each expert in this block.
    u32* totals;
    // Picks of each expert in all blocks.
    u32* all;
    // Where each run starts, and where the last ends.
    u32* offsets;
    // From a place in `sorted` to one in the output.
    u32* deltas;
    // A word a pick, a row a turn: its local expert, then its rank among its warp's.
    u32* picks;
    // This block's picks by expert: its own number << 12 | expert.
    u32* sorted;
    // Where each expert's begin there.
    u16* starts;
    // [warps][locals]
    u16* counters;

    INLINE Shared(const Params& p) {
        extern __shared__ uint4 memory[];
        totals = reinterpret_cast<u32*>(memory);
        all = totals + p.locals;
        offsets = all + p.locals;
        deltas = offsets + p.locals + 1;
        picks = deltas + p.locals;
        sorted = picks + p.turns * blockDim.x;
        starts = reinterpret_cast<u16*>(sorted + p.turns * blockDim.x);
        // On a word, and an even number of them, so that words clear them.
        counters = starts + (p.locals + 1) / 2 * 2;
    }
};

// ---- picks --------------------------------------------------------------------

// The first pick of this warp's lane, of block `index` of those that share them.
INLINE u32 first_pick(const Params& p, u32 index) {
    const u32 warp = threadIdx.x / WARP;
    return (index * blockDim.x + warp * WARP) * p.turns + lane_id();
}

INLINE u64 place_of(const Params& p, u32 pick) {
    return p.k == 0 ? pick : static_cast<u64>(pick / p.k) * p.stride + pick % p.k;
}

// The local experts of a lane's next picks, DROPPED for none, with all loads in
// flight at once: nothing is done with one before the last is asked for. Returns bits
// of bad data.
INLINE u32 load_picks(const Params& p, u32 first, u32 turn, u32 (&locals)[AHEAD]) {
    u64 places[AHEAD];
    bool there[AHEAD];
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        const u32 pick = first + (turn + a) * WARP;
        there[a] = turn + a < p.turns && pick < p.picks;
        places[a] = there[a] ? place_of(p, pick) : 0;
    }
    i64 ids[AHEAD];
    if (p.ids.wide) {
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            ids[a] = there[a] ? __ldcg(static_cast<const i64*>(p.ids.data) + places[a]) : -1;
        }
    } else {
        i32 narrow[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            narrow[a] = there[a] ? __ldcg(static_cast<const i32*>(p.ids.data) + places[a]) : -1;
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) ids[a] = narrow[a];
    }
    u32 bits = 0;
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        const bool known = ids[a] >= 0 && ids[a] < p.experts;
        if (!known && ids[a] != -1) bits = OUT_OF_RANGE;
        locals[a] = known ? static_cast<u32>(ids[a]) : DROPPED;
    }
    if (p.map == nullptr) return bits;
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        if (locals[a] != DROPPED) locals[a] = static_cast<u32>(__ldg(p.map + locals[a]));
    }
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        // As -1 is DROPPED, what is none of ours is bad.
        if (locals[a] != DROPPED && locals[a] >= p.locals) {
            bits = OUT_OF_RANGE;
            locals[a] = DROPPED;
        }
    }
    return bits;
}

// Calls `visit` with each turn of this warp and the lane's local expert. Returns bits
// of bad data. Loops stay loops: code that runs once costs more to fetch than to run.
template <typename Visit>
INLINE u32 each_pick(const Params& p, u32 index, Visit visit) {
    const u32 first = first_pick(p, index);
    u32 bits = 0;
#pragma unroll 1
    for (u32 turn = 0; turn < p.turns; turn += AHEAD) {
        u32 locals[AHEAD];
        bits |= load_picks(p, first, turn, locals);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            if (turn + a < p.turns) visit(turn + a, locals[a]);
        }
    }
    return bits;
}

INLINE void raise_of_warp(const Params& p, u32 bits) {
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

// The lanes whose pick is of the same expert, of those that have one.
INLINE u32 equals(u32 local, u32 bits) {
    u32 lanes = __ballot_sync(ALL_LANES, local != DROPPED);
#pragma unroll 4
    for (u32 bit = 0; bit < bits; bit++) {
        const bool set = local >> bit & 1;
        const u32 with = __ballot_sync(ALL_LANES, set);
        lanes &= set ? with : ~with;
    }
    return lanes;
}

// Turns each local expert into (picks of it before in this warp) << 12 | expert, and
// leaves the warp's counts in its counters, which are zero before.
INLINE void rank_picks(const Params& p, u16* counters, u32* picks) {
    // Bits of a local expert.
    const u32 bits = 32 - __clz(max(p.locals, 1u) - 1);
#pragma unroll 1
    for (u32 turn = 0; turn < p.turns; turn++) {
        u32& pick = picks[turn * blockDim.x];
        const u32 local = pick;
        const u32 lanes = equals(local, bits);
        const u32 turns_before = local != DROPPED ? counters[local] : 0;
        __syncwarp();
        const u32 lanes_before = __popc(lanes & lanes_below());
        if (local != DROPPED) {
            if (lanes_before == 0) counters[local] = static_cast<u16>(turns_before + __popc(lanes));
            pick = (turns_before + lanes_before) << EXPERT_BITS | local;
        }
        __syncwarp();
    }
}

// Warps of this block that have picks.
INLINE u32 busy_warps(const Params& p, u32 index) {
    const u64 first = static_cast<u64>(index) * blockDim.x * p.turns;
    const u64 left = first < p.picks ? p.picks - first : 0;
    const u32 piece = p.turns * WARP;
    return static_cast<u32>(min((left + piece - 1) / piece, static_cast<u64>(blockDim.x / WARP)));
}

// Ranks a block's picks: their counts are in `totals` and where each warp's begin
// among the block's in its counters, both seen after a barrier.
INLINE void count_picks(const Params& p, const Shared& s, u32 index) {
    const u32 warps = busy_warps(p, index);
    u32* const words = reinterpret_cast<u32*>(s.counters);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < (warps * p.locals + 1) / 2; i += blockDim.x) words[i] = 0;
    __syncthreads();
    const u32 warp = threadIdx.x / WARP;
    if (warp < warps) rank_picks(p, s.counters + warp * p.locals, s.picks + threadIdx.x);
    __syncthreads();
#pragma unroll 1
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) {
        u32 total = 0;
#pragma unroll 1
        for (u32 first = 0; first < warps; first += 8) {
            u16* const counters = s.counters + first * p.locals + e;
            u32 own[8];
#pragma unroll
            for (u32 w = 0; w < 8; w++) own[w] = first + w < warps ? counters[w * p.locals] : 0;
#pragma unroll
            for (u32 w = 0; w < 8; w++) {
                if (first + w < warps) counters[w * p.locals] = static_cast<u16>(total);
                total += own[w];
            }
        }
        s.totals[e] = total;
    }
}

// ---- outputs ------------------------------------------------------------------

// Writes this block's share of the places of sorted_ids that have no pick: behind each expert's picks,
// and behind the last run.
INLINE void fill(const Params& p, const Shared& s, u32 index, u32 padded) {
    const i32 none = static_cast<i32>(p.picks);
    const u32 thread = index * blockDim.x + threadIdx.x;
    const u32 step = p.blocks * blockDim.x;
    // A warp an expert.
#pragma unroll 1
    for (u32 e = thread / WARP; e < p.locals; e += step / WARP) {
        const u32 end = s.offsets[e + 1];
#pragma unroll 1
        for (u32 i = s.offsets[e] + s.all[e] + lane_id(); i < end; i += WARP) p.sorted[i] = none;
    }
#pragma unroll 1
    for (u32 i = padded + thread; i < p.capacity; i += step) p.sorted[i] = none;
}

// Picks of an expert in blocks before this one, and in all.
struct Count {
    u32 before;
    u32 all;
};

// Lays the runs one behind the other: `offsets`, `deltas` and `starts`. Who leads
// writes what the caller wants of it. Returns the sum of the runs. Ends with a barrier.
template <typename Counts>
INLINE u32 lay_out(const Params& p, const Shared& s, bool leads, Counts counts) {
    __shared__ u64 sums[MAX_WARPS];
    // Neighbours read neighbours; what follows has a piece of the experts a thread.
#pragma unroll 1
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) {
        const Count count = counts(e);
        s.offsets[e] = (count.all + p.block_size - 1) / p.block_size * p.block_size;
        s.deltas[e] = count.before;
        s.all[e] = count.all;
        if (leads) p.counts[e] = static_cast<i32>(count.all);
    }
    __syncthreads();
    const u32 share = (p.locals + blockDim.x - 1) / blockDim.x;
    const u32 first = min(threadIdx.x * share, p.locals);
    const u32 last = min(first + share, p.locals);
    // The runs' lengths above, this block's picks below.
    u64 own = 0;
#pragma unroll 1
    for (u32 e = first; e < last; e++) own += static_cast<u64>(s.offsets[e]) << 32 | s.totals[e];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    u64 at = warp_inclusive_sum(own);
    if (lane == WARP - 1) sums[warp] = at;
    at -= own;
    __syncthreads();
    const SumsOfWarps<u64> warps(sums, blockDim.x / WARP, lane);
    at += warps.before(warp);
    const u32 padded = static_cast<u32>(warps.all() >> 32);
#pragma unroll 1
    for (u32 e = first; e < last; e++) {
        const u32 run = s.offsets[e];
        const u32 offset = static_cast<u32>(at >> 32);
        const u32 start = static_cast<u32>(at);
        at += static_cast<u64>(run) << 32 | s.totals[e];
        s.offsets[e] = offset;
        s.starts[e] = static_cast<u16>(start);
        s.deltas[e] += offset - start;
        if (leads) p.offsets[e] = static_cast<i32>(offset);
    }
    if (threadIdx.x == 0) {
        s.offsets[p.locals] = padded;
        if (leads) {
            p.offsets[p.locals] = static_cast<i32>(padded);
            p.num_padded[0] = static_cast<i32>(padded);
        }
    }
    __syncthreads();
    return padded;
}

// Writes a block's ranked picks to where they belong, and its share of the blocks'
// experts.
INLINE void put(const Params& p, const Shared& s, u32 index, u32 padded) {
    const u32 first = first_pick(p, index);
    const u32 of_block = index * blockDim.x * p.turns;
    const u16* const counters = s.counters + threadIdx.x / WARP * p.locals;
#pragma unroll 1
    for (u32 turn = 0; turn < p.turns; turn++) {
        const u32 pick = first + turn * WARP;
        if (pick >= p.picks) break;
        const u32 ranked = s.picks[turn * blockDim.x + threadIdx.x];
        u32 place = DROPPED;
        if (ranked != DROPPED) {
            const u32 e = ranked & EXPERT_MASK;
            const u32 slot = s.starts[e] + counters[e] + (ranked >> EXPERT_BITS);
            s.sorted[slot] = (pick - of_block) << EXPERT_BITS | e;
            place = slot + s.deltas[e];
        }
        if (p.inverse != nullptr) p.inverse[pick] = static_cast<i32>(place);
    }
    __syncthreads();
    const u32 kept = p.locals == 0 ? 0 : s.starts[p.locals - 1] + s.totals[p.locals - 1];
    for (u32 slot = threadIdx.x; slot < kept; slot += blockDim.x) {
        const u32 pick = s.sorted[slot];
        p.sorted[slot + s.deltas[pick & EXPERT_MASK]] =
            static_cast<i32>(of_block + (pick >> EXPERT_BITS));
    }
    // The expert of a block is the last whose run starts at or before it.
    const u32 blocks = p.capacity / p.block_size;
    for (u32 b = index * blockDim.x + threadIdx.x; b < blocks; b += p.blocks * blockDim.x) {
        const u32 at = b * p.block_size;
        u32 low = 0;
        u32 high = at < padded ? p.locals : 0;
        while (low < high) {
            const u32 middle = (low + high) / 2;
            if (s.offsets[middle] <= at) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        p.block_experts[b] = static_cast<i32>(low) - 1;
    }
}

// ---- one launch ---------------------------------------------------------------

INLINE void align(const Params& p) {
    const Senders cluster;
    const Shared s(p);
    const u32 bits = each_pick(p, cluster.rank, [&](u32 turn, u32 local) {
        s.picks[turn * blockDim.x + threadIdx.x] = local;
    });
    raise_of_warp(p, bits);
    count_picks(p, s, cluster.rank);
    // Others read what this block has in shared memory: no store to global memory is waited for.
    if (cluster.size == 1) {
        __syncthreads();
    } else {
        cluster.arrive_prepared();
        cluster.wait();
    }
    const u32 padded = lay_out(p, s, cluster.rank == 0, [&](u32 e) {
        if (cluster.size == 1) return Count{0, s.totals[e]};
        Count count = {0, 0};
#pragma unroll 8
        for (u32 b = 0; b < cluster.size; b++) {
            const u32 there = *cluster.of(s.totals + e, b);
            count.all += there;
            if (b < cluster.rank) count.before += there;
        }
        return count;
    });
    // Nobody reads another's counts any more; a block ends when all are here.
    cluster.arrive();
    fill(p, s, cluster.rank, padded);
    put(p, s, cluster.rank, padded);
    cluster.wait();
}

// ---- few picks ----------------------------------------------------------------

// What lies in an output at places `first` + lane, for the warp's shares of `count` of
// them: warp `own` of `warps`. All lanes call `visit` together, some beyond the end.
template <typename Visit>
INLINE void each_share(u32 count, u32 own, u32 warps, Visit visit) {
#pragma unroll 1
    for (u32 first = own * WARP; first < count; first += warps * WARP) visit(first + lane_id());
}

// At most 32 picks. No memory is shared, and nobody is waited for.
INLINE void few_picks(const Params& p) {
    const u32 lane = lane_id();
    u32 ids[AHEAD] = {DROPPED, DROPPED, DROPPED, DROPPED};
    // A turn of one warp that all warps have.
    const u32 bits = load_picks(p, lane, 0, ids);
    const u32 local = ids[0];
    const u32 lanes = equals(local, 32 - __clz(max(p.locals, 1u) - 1));
    const u32 before = __popc(lanes & lanes_below());
    const u32 all = __popc(lanes);
    // The first pick of an expert has the length of its run.
    const bool leads = local != DROPPED && before == 0;
    const u32 run = leads ? (all + p.block_size - 1) / p.block_size * p.block_size : 0;
    const u32 padded = __reduce_add_sync(ALL_LANES, run);
    u32 offset = 0;
#pragma unroll 8
    for (u32 i = 0; i < p.picks; i++) {
        const u32 length = __shfl_sync(ALL_LANES, run, i);
        if (__shfl_sync(ALL_LANES, local, i) < local) offset += length;
    }
    const u32 place = local != DROPPED ? offset + before : DROPPED;

    const u32 warps = gridDim.x * (blockDim.x / WARP);
    const u32 warp = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (warp == 0) {
        raise_of_warp(p, bits);
        if (lane == 0) p.num_padded[0] = static_cast<i32>(padded);
        if (p.inverse != nullptr && lane < p.picks) p.inverse[lane] = static_cast<i32>(place);
    }
    // Four places a lane.
    const i32 none = static_cast<i32>(p.picks);
    const bool aligned = reinterpret_cast<u64>(p.sorted) % 16 == 0;
    each_share((p.capacity + 3) / 4, warp, warps, [&](u32 at) {
        const u32 first = at * 4;
        i32 picks[4] = {none, none, none, none};
        if (__any_sync(ALL_LANES, first < padded)) {
#pragma unroll 8
            for (u32 i = 0; i < p.picks; i++) {
                const u32 behind = __shfl_sync(ALL_LANES, place, i) - first;
#pragma unroll
                for (u32 j = 0; j < 4; j++) picks[j] = behind == j ? static_cast<i32>(i) : picks[j];
            }
        }
        if (aligned && first + 4 <= p.capacity) {
            reinterpret_cast<int4*>(p.sorted)[at] =
                make_int4(picks[0], picks[1], picks[2], picks[3]);
        } else {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if (first + j < p.capacity) p.sorted[first + j] = picks[j];
            }
        }
    });
    // Who has the least of these begins with the next.
    each_share(p.locals + 1, warps - 1 - warp, warps, [&](u32 e) {
        u32 count = 0;
        u32 start = 0;
#pragma unroll 8
        for (u32 i = 0; i < p.picks; i++) {
            const u32 other = __shfl_sync(ALL_LANES, local, i);
            const u32 length = __shfl_sync(ALL_LANES, run, i);
            count += other == e;
            start += other < e ? length : 0;
        }
        if (e < p.locals) p.counts[e] = static_cast<i32>(count);
        if (e <= p.locals) p.offsets[e] = static_cast<i32>(start);
    });
    const u32 blocks = p.capacity / p.block_size;
    each_share(blocks, warps - 1 - (warp + warps / 2) % warps, warps, [&](u32 b) {
        const u32 at = b * p.block_size;
        u32 expert = DROPPED;
        if (__any_sync(ALL_LANES, at < padded)) {
#pragma unroll 8
            for (u32 i = 0; i < p.picks; i++) {
                const u32 other = __shfl_sync(ALL_LANES, local, i);
                const u32 length = __shfl_sync(ALL_LANES, run, i);
                const u32 start = __shfl_sync(ALL_LANES, offset, i);
                if (at - start < length) expert = other;
            }
        }
        if (b < blocks) p.block_experts[b] = static_cast<i32>(expert);
    });
}

// ---- two launches, or three ----------------------------------------------------

INLINE void count(const Params& p) {
    const Shared s(p);
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) s.totals[e] = 0;
    __syncthreads();
    const u32 bits = each_pick(p, blockIdx.x, [&](u32, u32 local) {
        if (local != DROPPED) atomicAdd(&s.totals[local], 1u);
    });
    raise_of_warp(p, bits);
    __syncthreads();
    if (p.pairs != 0) {
        u32* const row = p.workspace + static_cast<u64>(blockIdx.x) * p.pairs;
        for (u32 i = threadIdx.x; i < p.pairs; i += blockDim.x) {
            const u32 first = 2 * i < p.locals ? s.totals[2 * i] : 0;
            const u32 second = 2 * i + 1 < p.locals ? s.totals[2 * i + 1] : 0;
            row[i] = first | second << 16;
        }
        return;
    }
    u32* const row = p.workspace + static_cast<u64>(blockIdx.x) * p.locals;
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) row[e] = s.totals[e];
}

// Sums the rows of pairs that blocks of `count` have left: of blocks before this one to `deltas`, of all
// to `all`. Ends with a barrier.
INLINE void sum_pairs(const Params& p, const Shared& s) {
#pragma unroll 1
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) {
        s.deltas[e] = 0;
        s.all[e] = 0;
    }
    __syncthreads();
    // Threads that share a pair take turns with the rows.
    const u32 sharing = max(blockDim.x / p.pairs, 1u);
    const u32 own = sharing == 1 ? 0 : threadIdx.x / p.pairs;
    const u32 first = sharing == 1 ? threadIdx.x : threadIdx.x - own * p.pairs;
#pragma unroll 1
    for (u32 i = first; i < p.pairs && own < sharing; i += sharing == 1 ? blockDim.x : p.pairs) {
        Count low = {0, 0};
        Count high = {0, 0};
#pragma unroll 1
        for (u32 row = own; row < p.blocks; row += 8 * sharing) {
            u32 pairs[8];
#pragma unroll
            for (u32 a = 0; a < 8; a++) {
                const u32 at = row + a * sharing;
                pairs[a] = at < p.blocks ? p.workspace[static_cast<u64>(at) * p.pairs + i] : 0;
            }
#pragma unroll
            for (u32 a = 0; a < 8; a++) {
                const bool before = row + a * sharing < blockIdx.x;
                low.all += pairs[a] & 0xFFFF;
                high.all += pairs[a] >> 16;
                low.before += before ? pairs[a] & 0xFFFF : 0;
                high.before += before ? pairs[a] >> 16 : 0;
            }
        }
        atomicAdd(&s.all[2 * i], low.all);
        atomicAdd(&s.deltas[2 * i], low.before);
        if (2 * i + 1 < p.locals) {
            atomicAdd(&s.all[2 * i + 1], high.all);
            atomicAdd(&s.deltas[2 * i + 1], high.before);
        }
    }
    __syncthreads();
}

// A warp a local expert: its counts become those of blocks before; their sum goes
// behind them.
INLINE void sum(const Params& p) {
    const u32 e = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u32 lane = lane_id();
    if (e >= p.locals) return;
    u32 before = 0;
    for (u32 first = 0; first < p.blocks; first += WARP) {
        const u64 at = static_cast<u64>(first + lane) * p.locals + e;
        const bool there = first + lane < p.blocks;
        const u32 own = there ? p.workspace[at] : 0;
        const u32 through = warp_inclusive_sum(own);
        if (there) p.workspace[at] = before + through - own;
        before += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    if (lane == 0) p.workspace[static_cast<u64>(p.blocks) * p.locals + e] = before;
}

INLINE void place(const Params& p) {
    const Shared s(p);
    // Picks are ranked before the counts are there. They do not change any more: `count` has waited for
    // the kernel that writes them before it let this kernel be launched. The map is not read as early,
    // since the first-level cache may hold an older state of it; picks are read past that cache.
    const bool early = p.pairs != 0 && p.map == nullptr;
    if (!early) follow();
    each_pick(p, blockIdx.x, [&](u32 turn, u32 local) {
        s.picks[turn * blockDim.x + threadIdx.x] = local;
    });
    count_picks(p, s, blockIdx.x);
    __syncthreads();
    if (early) follow();
    if (p.pairs != 0) sum_pairs(p, s);
    const u32* const before = p.workspace + static_cast<u64>(blockIdx.x) * p.locals;
    const u32* const all = p.workspace + static_cast<u64>(p.blocks) * p.locals;
    const u32 padded = lay_out(p, s, blockIdx.x == 0, [&](u32 e) {
        return p.pairs != 0 ? Count{s.deltas[e], s.all[e]} : Count{before[e], all[e]};
    });
    fill(p, s, blockIdx.x, padded);
    put(p, s, blockIdx.x, padded);
}

SPEC_KERNEL(moe_align_one, align, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_few, few_picks, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_count, count, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_sum, sum, Params, MAX_THREADS)

// Unlike a kernel of SPEC_KERNEL, this one itself calls `follow`, when its picks are ranked.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    moe_align_place(const __grid_constant__ Params params) {
    place(params);
}
