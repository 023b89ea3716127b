// moe_align: sorts the picks of a mixture-of-experts router by expert, stably, and pads the run of
// each expert to whole blocks of the grouped matrix product.
//
// A stable counting sort. Each warp has a contiguous piece of the picks, which it processes in
// steps of 32 picks, finding equal experts within a step by ballots:
//
//     picks    | block 0: warp 0 | warp 1 | ... | block 1: warp 0 | ...
//     rank of a pick within its expert's run = picks of the expert in earlier blocks, warps,
//                                              steps, lanes
//
// A counter for each expert and warp in shared memory counts the picks of earlier steps. Sums over
// warps, blocks and experts give the start of each run. A block first sorts its picks in shared
// memory, so that its writes to the output are contiguous.
//
// * `one`: a cluster (or a single block) does everything in one launch; blocks read each other's
//   counts through distributed shared memory.
// * `count`, `place`: two launches with the counts in the workspace, for more picks. Each block of
//   `place` sums the counts of all blocks; if there are many, the launch `sum` between the two does
//   it once. `place` is launched while `count` runs, and ranks its picks before the counts are
//   complete.
// * `single_warp`: at most 32 picks, one in each lane. Every warp of every block ranks all picks,
//   which takes less time than an exchange between warps, and writes a part of each output.
//
// No block waits for a block that may not be running: blocks of a cluster run together, and `place`
// is launched when all blocks of `count` have started.
//
// Bytes: 16384 tokens with 8 picks each are 0.5 MB in and 1.1 MB out: below 1 us. Latency
// dominates, and 60 instructions for 32 picks.
#include "cluster.cuh"
#include "params/moe_align.cuh"

constexpr u32 MAX_WARPS = MAX_THREADS / WARP;
// Loads that a lane has in flight.
constexpr u32 AHEAD = 4;
// The local expert in the low bits of a word; and the word of a pick without a local expert.
constexpr u32 EXPERT_BITS = 12;
constexpr u32 EXPERT_MASK = (1u << EXPERT_BITS) - 1;
constexpr u32 DROPPED = ~0u;

// The dynamic shared memory of a block; src/ops/moe_align.rs computes its size.
struct Shared {
    // The number of picks of each expert in this block.
    u32* totals;
    // The number of picks of each expert in all blocks.
    u32* all;
    // The start of each run, followed by the end of the last run.
    u32* offsets;
    // For each expert, the difference between an index in the output and the index in `sorted`.
    u32* deltas;
    // A word for each pick, a row for each step: the local expert, later also the pick's rank in
    // its warp.
    u32* picks;
    // The picks of this block by expert: (number of the pick in the block) << 12 | expert.
    u32* sorted;
    // The start of each expert's picks in `sorted`.
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
        sorted = picks + p.steps * blockDim.x;
        starts = reinterpret_cast<u16*>(sorted + p.steps * blockDim.x);
        // Aligned to a word, and an even number, so that they can be cleared by words.
        counters = starts + (p.locals + 1) / 2 * 2;
    }
};

// ---- picks --------------------------------------------------------------------

// The first pick of this lane, if this is block `index` of the blocks that divide the picks.
INLINE u32 first_pick(const Params& p, u32 index) {
    const u32 warp = threadIdx.x / WARP;
    return (index * blockDim.x + warp * WARP) * p.steps + lane_id();
}

INLINE u64 place_of(const Params& p, u32 pick) {
    return p.k == 0 ? pick : static_cast<u64>(pick / p.k) * p.stride + pick % p.k;
}

// Loads the local experts of a lane's next picks, DROPPED for none. All loads are issued before the
// first result is used, so that they are in flight at once. Returns flags of bad data.
INLINE u32 load_picks(const Params& p, u32 first, u32 step, u32 (&locals)[AHEAD]) {
    u64 places[AHEAD];
    bool there[AHEAD];
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        const u32 pick = first + (step + a) * WARP;
        there[a] = step + a < p.steps && pick < p.picks;
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
        // -1 is DROPPED; any other number that is not a local expert is bad.
        if (locals[a] != DROPPED && locals[a] >= p.locals) {
            bits = OUT_OF_RANGE;
            locals[a] = DROPPED;
        }
    }
    return bits;
}

// Calls visit(step, local expert) for each step of this warp. Returns flags of bad data. Not
// unrolled: code that runs once costs more to fetch than to run.
template <typename Visit>
INLINE u32 each_pick(const Params& p, u32 index, Visit visit) {
    const u32 first = first_pick(p, index);
    u32 bits = 0;
#pragma unroll 1
    for (u32 step = 0; step < p.steps; step += AHEAD) {
        u32 locals[AHEAD];
        bits |= load_picks(p, first, step, locals);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            if (step + a < p.steps) visit(step + a, locals[a]);
        }
    }
    return bits;
}

INLINE void raise_of_warp(const Params& p, u32 bits) {
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
}

// The lanes that have a pick of the same expert as this lane.
INLINE u32 lanes_of_expert(u32 local, u32 bits) {
    u32 lanes = __ballot_sync(ALL_LANES, local != DROPPED);
#pragma unroll 4
    for (u32 bit = 0; bit < bits; bit++) {
        const bool set = local >> bit & 1;
        const u32 with = __ballot_sync(ALL_LANES, set);
        lanes &= set ? with : ~with;
    }
    return lanes;
}

// Replaces each local expert by (number of its earlier picks in this warp) << 12 | expert, and
// stores the warp's counts in `counters`, which must be zero before.
INLINE void rank_picks(const Params& p, u16* counters, u32* picks) {
    // The number of bits of a local expert.
    const u32 bits = 32 - __clz(max(p.locals, 1u) - 1);
#pragma unroll 1
    for (u32 step = 0; step < p.steps; step++) {
        u32& pick = picks[step * blockDim.x];
        const u32 local = pick;
        const u32 lanes = lanes_of_expert(local, bits);
        const u32 steps_before = local != DROPPED ? counters[local] : 0;
        __syncwarp();
        const u32 lanes_before = __popc(lanes & lanes_below());
        if (local != DROPPED) {
            if (lanes_before == 0) counters[local] = static_cast<u16>(steps_before + __popc(lanes));
            pick = (steps_before + lanes_before) << EXPERT_BITS | local;
        }
        __syncwarp();
    }
}

// The number of warps of this block that have picks.
INLINE u32 busy_warps(const Params& p, u32 index) {
    const u64 first = static_cast<u64>(index) * blockDim.x * p.steps;
    const u64 left = first < p.picks ? p.picks - first : 0;
    const u32 piece = p.steps * WARP;
    return static_cast<u32>(min((left + piece - 1) / piece, static_cast<u64>(blockDim.x / WARP)));
}

// Ranks the picks of a block. Afterwards, `totals` has the block's counts, and `counters` has for
// each warp the number of picks in earlier warps of the block. Both are visible after a barrier.
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

// Writes this block's part of the places of sorted_ids that have no pick: after the picks of each
// expert, and after the last run.
INLINE void fill(const Params& p, const Shared& s, u32 index, u32 padded) {
    const i32 none = static_cast<i32>(p.picks);
    const u32 thread = index * blockDim.x + threadIdx.x;
    const u32 step = p.blocks * blockDim.x;
    // A warp for each expert.
#pragma unroll 1
    for (u32 e = thread / WARP; e < p.locals; e += step / WARP) {
        const u32 end = s.offsets[e + 1];
#pragma unroll 1
        for (u32 i = s.offsets[e] + s.all[e] + lane_id(); i < end; i += WARP) p.sorted[i] = none;
    }
#pragma unroll 1
    for (u32 i = padded + thread; i < p.capacity; i += step) p.sorted[i] = none;
}

// The number of picks of an expert in earlier blocks, and in all blocks.
struct Count {
    u32 before;
    u32 all;
};

// Computes the starts of the runs: `offsets`, `deltas` and `starts`. The thread block that `leads`
// writes those that the caller wants. Returns the sum of the padded runs. Ends with a barrier.
template <typename Counts>
INLINE u32 lay_out(const Params& p, const Shared& s, bool leads, Counts counts) {
    __shared__ u64 sums[MAX_WARPS];
    // This loop reads neighbouring experts in neighbouring threads; in the next ones each thread
    // has a contiguous range of experts.
#pragma unroll 1
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) {
        const Count count = counts(e);
        s.offsets[e] = (count.all + p.block_size - 1) / p.block_size * p.block_size;
        s.deltas[e] = count.before;
        s.all[e] = count.all;
        if (leads) p.counts[e] = static_cast<i32>(count.all);
    }
    __syncthreads();
    const u32 experts_per_thread = (p.locals + blockDim.x - 1) / blockDim.x;
    const u32 first = min(threadIdx.x * experts_per_thread, p.locals);
    const u32 last = min(first + experts_per_thread, p.locals);
    // The padded lengths of the runs in the upper half, the picks of this block in the lower half.
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

// Writes the ranked picks of a block to their places, and this block's part of the experts of
// blocks.
INLINE void write_picks(const Params& p, const Shared& s, u32 index, u32 padded) {
    const u32 first = first_pick(p, index);
    const u32 of_block = index * blockDim.x * p.steps;
    const u16* const counters = s.counters + threadIdx.x / WARP * p.locals;
#pragma unroll 1
    for (u32 step = 0; step < p.steps; step++) {
        const u32 pick = first + step * WARP;
        if (pick >= p.picks) break;
        const u32 ranked = s.picks[step * blockDim.x + threadIdx.x];
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
    // The expert of a block is the last one whose run starts at or before the block.
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
    const u32 bits = each_pick(p, cluster.rank, [&](u32 step, u32 local) {
        s.picks[step * blockDim.x + threadIdx.x] = local;
    });
    raise_of_warp(p, bits);
    count_picks(p, s, cluster.rank);
    // Other blocks read this block's shared memory; stores to global memory need not be complete.
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
    // No block reads another's counts after this; a block must not end before all blocks have
    // arrived.
    cluster.arrive();
    fill(p, s, cluster.rank, padded);
    write_picks(p, s, cluster.rank, padded);
    cluster.wait();
}

// ---- at most 32 picks ---------------------------------------------------------

// Calls visit(index) for this warp's part of `count` indices, 32 at a time, if this is warp `own`
// of `warps`. All lanes call `visit` together, some of them with an index beyond the end.
template <typename Visit>
INLINE void each_of_warp(u32 count, u32 own, u32 warps, Visit visit) {
#pragma unroll 1
    for (u32 first = own * WARP; first < count; first += warps * WARP) visit(first + lane_id());
}

// Aligns at most 32 picks. Each warp works alone: no shared memory, no barrier.
INLINE void single_warp(const Params& p) {
    const u32 lane = lane_id();
    u32 ids[AHEAD] = {DROPPED, DROPPED, DROPPED, DROPPED};
    // Every warp loads the same picks: those of one step of one warp.
    const u32 bits = load_picks(p, lane, 0, ids);
    const u32 local = ids[0];
    const u32 lanes = lanes_of_expert(local, 32 - __clz(max(p.locals, 1u) - 1));
    const u32 before = __popc(lanes & lanes_below());
    const u32 all = __popc(lanes);
    // The lane with the first pick of an expert has the length of the expert's run.
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
    // Each lane writes four places.
    const i32 none = static_cast<i32>(p.picks);
    const bool aligned = reinterpret_cast<u64>(p.sorted) % 16 == 0;
    each_of_warp((p.capacity + 3) / 4, warp, warps, [&](u32 at) {
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
    // The warps are assigned in reverse order, so that warps with less work in one output have more
    // in the next.
    each_of_warp(p.locals + 1, warps - 1 - warp, warps, [&](u32 e) {
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
    each_of_warp(blocks, warps - 1 - (warp + warps / 2) % warps, warps, [&](u32 b) {
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

// Sums the rows of pairs that the blocks of `count` have stored: those of earlier blocks into
// `deltas`, those of all blocks into `all`. Ends with a barrier.
INLINE void sum_pairs(const Params& p, const Shared& s) {
#pragma unroll 1
    for (u32 e = threadIdx.x; e < p.locals; e += blockDim.x) {
        s.deltas[e] = 0;
        s.all[e] = 0;
    }
    __syncthreads();
    // The threads of a pair divide the rows between them.
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

// A warp for each local expert: replaces the count of each block by the sum over earlier blocks,
// and stores the sum over all blocks after them.
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
    // Ranks the picks before the counts are complete. The picks no longer change: `count` waited
    // for the kernel that writes them before it permitted the launch of this kernel. With a map,
    // this is not possible, because the first-level cache may hold an older state of the map; loads
    // of picks bypass that cache.
    const bool early = p.pairs != 0 && p.map == nullptr;
    if (!early) follow();
    each_pick(p, blockIdx.x, [&](u32 step, u32 local) {
        s.picks[step * blockDim.x + threadIdx.x] = local;
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
    write_picks(p, s, blockIdx.x, padded);
}

SPEC_KERNEL(moe_align_one, align, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_single_warp, single_warp, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_count, count, Params, MAX_THREADS)
SPEC_KERNEL(moe_align_sum, sum, Params, MAX_THREADS)

// Unlike kernels of SPEC_KERNEL, this kernel calls `follow` itself, after its picks are ranked.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    moe_align_place(const __grid_constant__ Params params) {
    place(params);
}
