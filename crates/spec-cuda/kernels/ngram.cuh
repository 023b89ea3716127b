// Shared by ngram_match and hybrid_mtp_ngram: the search (ngram_search.cuh), which treats the
// prompt and the generated tokens as one sequence of tokens, and the budget of tokens for all
// requests.
//
// Teams. A team of warps, in one or several blocks, searches for one request. The blocks of a team
// are a cluster, and their warps send their best keys to the first block of the cluster. On devices
// without clusters, each block stores its best key in a slot of the workspace.
//
// Budget. Before any search, every block adds up the largest numbers of tokens that the requests
// may add to the budget. Every block computes the same sum, because it uses only numbers that the
// kernel does not change (`BudgetDemand`). If the sum is within the budget, no request's drafts
// depend on another request, and the team that searched for a request writes its drafts. Otherwise
// every team stores its best key in its slot. The last block of the grid, or the first block of the
// last cluster, settles: it waits for the slots of all requests, and then grants the drafts that
// the sequential loop of crates/spec-core/src/ngram.rs would grant, by prefix sums over the
// requests. No other block waits for slots.
//
// The settling block cannot prevent the blocks that it waits for from running, for two reasons,
// each of which suffices. First, devices start the blocks of a grid in the order of their numbers,
// so when the last block starts, all others are running or done. Second, because CUDA does not
// promise this order: a multiprocessor has room for two blocks (RESIDENT, which __launch_bounds__
// makes the compiler respect). The other blocks of the settling block's cluster are done, so beside
// the settling block there is room for one more block, and when that block is done, for the next.
// Only another kernel that fills the device and itself waits for the results of this kernel could
// occupy this room forever.
//
// Bytes: each token once, up to a match of full length. 256 prompts of 131072 tokens of 8 bytes
// without a match are 268 MB: 58 us at 4.6 TB/s.
#pragma once

#include "ngram_search.cuh"
#include "params/ngram.cuh"

// Sums of what requests may add to the budget saturate here. A sum that reaches this counts as over
// budget.
constexpr u32 SUM_LIMIT = 1u << 21;

// ---- requests -----------------------------------------------------------------

// A request. Its lengths are data and may be any numbers, so they are clamped to the sizes of its
// rows.
struct Request {
    // The number of tokens of the prompt; the index of the first generated token in its row; the
    // index of the last generated token, counted from `start`.
    u32 prompt;
    u32 start;
    u32 step;
    // The largest number of drafts that the request may get (below 1, there is no search), and the
    // column of the first draft.
    i64 limit;
    u32 slot;
    // `seq_lens_this_time` without drafts, and the number of tokens without drafts that the budget
    // counts.
    i32 base;
    u32 used;
    // Whether the budget reserves one token for the request until the loop reaches the request, and
    // whether it then releases this token.
    bool reserves;
    bool releases;
    // Flags.
    u32 bits;
};

// Prompt, start and step of a request, clamped to its rows; with a flag if one of them was outside.
INLINE Request cut_lengths(const Params& p, u32 index, i64 start) {
    Request r = {};
    const i64 prompt = p.prompt_lens[index];
    const i64 step = p.steps[index];
    r.prompt = clamped(prompt, p.input_cols);
    r.start = clamped(start, p.generated_cols);
    const u32 after = p.generated_cols - r.start;
    r.step = clamped(step, after == 0 ? 0 : after - 1);
    const bool fits = r.prompt == prompt && r.start == start && r.step == step;
    r.bits = fits ? 0 : BAD_LENGTHS;
    return r;
}

// The largest number of drafts: `own`, or less if the text must not grow by so many tokens.
INLINE i64 draft_limit(const Params& p, u32 index, i64 own, u32 step) {
    const i64 longest = p.max_dec[index];
    const i64 taken = static_cast<i64>(step) + 1;
    // Saturates, because `longest` is data and may be any number.
    constexpr i64 MIN_I64 = static_cast<i64>(1ull << 63);
    return min(own, longest < MIN_I64 + taken ? MIN_I64 : longest - taken);
}

// The drafts that a request would get without a budget: source, destination and number of the
// tokens to copy.
template <typename T>
struct DraftRequest {
    const T* source;
    T* target;
    u32 drafts;

    INLINE DraftRequest(const Params& p, u64 index, Request& r, u64 key)
        : source(nullptr), target(nullptr), drafts(0) {
        if (key == NO_MATCH) return;
        const u32 place = static_cast<u32>(key) + 1;
        const bool second = place > r.prompt;
        const u32 candidates = second ? r.prompt + r.step - place : r.prompt - place;
        const u32 room = p.draft_cols > r.slot ? p.draft_cols - r.slot : 0;
        drafts = clamped(r.limit, candidates);
        if (drafts > room) r.bits |= BAD_LENGTHS;
        drafts = min(drafts, room);
        source = second ? static_cast<const T*>(p.generated.data) + index * p.generated.stride +
                              r.start + (place - r.prompt)
                        : static_cast<const T*>(p.input_ids.data) + index * p.input_ids.stride +
                              place;
        target = static_cast<T*>(p.draft_tokens.data) + index * p.draft_tokens.stride + r.slot;
    }
};

// ---- budget -------------------------------------------------------------------

// The sums of what requests add to the budget. All sums above the largest threshold have the same
// effect, so sums of tokens saturate.
struct Sums {
    u32 drafts;
    u32 used;
    // The number of requests with a reserved token in the lower half, with a released token in the
    // upper half.
    u32 counts;

    INLINE static u32 saturating(u32 a, u32 b) { return a + b < a ? ~0u : a + b; }

    INLINE Sums operator+(const Sums& b) const {
        return {saturating(drafts, b.drafts), saturating(used, b.used), counts + b.counts};
    }

    INLINE Sums shuffle_up(u32 by) const {
        return {__shfl_up_sync(ALL_LANES, drafts, by), __shfl_up_sync(ALL_LANES, used, by),
                __shfl_up_sync(ALL_LANES, counts, by)};
    }

    INLINE Sums of_lane(u32 lane) const {
        return {__shfl_sync(ALL_LANES, drafts, lane), __shfl_sync(ALL_LANES, used, lane),
                __shfl_sync(ALL_LANES, counts, lane)};
    }
};
static_assert(THREADS < 1u << 16);

struct Shared {
    // The best key of each warp of this block; in the first block of a cluster, of each warp of the
    // cluster.
    u64 keys[MAX_BLOCKS * WARPS];
    // From each warp: the largest number of tokens that the requests of its threads may add.
    u64 max_added[WARPS];
    // In the first block of a cluster: counts the bytes of `keys` and `max_added` that have
    // arrived.
    Arrivals arrivals;
    // For `NearHint` and `SlotHint`: a rank for each team of this block.
    u32 hints[WARPS];
    // For `inclusive_sum`: a sum for each warp.
    Sums sums[WARPS];
    // For each request that is being settled: its best key, later the source address of its drafts;
    // their destination address; the number of drafts that it requests; the number that it gets.
    u64 best[THREADS];
    u64 target[THREADS];
    u32 wanted[THREADS];
    u32 count[THREADS];
};

// The sum over this thread and the threads before it. `total` is the sum over the first `threads`
// threads of the block; `through` of the other threads must be 0.
INLINE Sums inclusive_sum(Sums through, Sums (&sums)[WARPS], u32 threads, Sums& total) {
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
#pragma unroll
    for (u32 o = 1; o < WARP; o *= 2) {
        const Sums below = through.shuffle_up(o);
        if (lane >= o) through = through + below;
    }
    if (lane == WARP - 1) sums[warp] = through;
    __syncthreads();
    if (threads <= WARP) {
        // Only the first warp has summands, and only its threads use the results.
        total = through.of_lane(WARP - 1);
        return through;
    }
    const u32 warps = blockDim.x / WARP;
    Sums of_warps = lane < warps ? sums[lane] : Sums{0, 0, 0};
#pragma unroll
    for (u32 o = 1; o < WARPS; o *= 2) {
        const Sums below = of_warps.shuffle_up(o);
        if (lane >= o) of_warps = of_warps + below;
    }
    total = of_warps.of_lane(WARPS - 1);
    const Sums before = of_warps.of_lane((warp + WARP - 1) % WARP);
    return warp == 0 ? through : through + before;
}

// Waits until the slots of `requests` requests have keys of this launch, stores the best key of
// each request in shared.best, and then clears the slots. `slot` is the first slot that this thread
// reads; `words` has what it has already read from the slot.
INLINE void collect(const Params& p, Shared& shared, u32 slot_bits, u32 requests,
                    const Slot slot, ulonglong2 words) {
    const u32 slots = requests << slot_bits;
    if (slot_bits > 0) {
        if (threadIdx.x < requests) shared.best[threadIdx.x] = NO_MATCH;
        __syncthreads();
    }
    Slot at = slot;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < slots; i += blockDim.x) {
        while (Slot::number(words) != p.number) words = load_relaxed(at.words);
        if (slot_bits > 0) {
            atomicMin(&shared.best[i >> slot_bits], Slot::key(words));
        } else {
            shared.best[i] = Slot::key(words);
        }
        at.words += 2 * blockDim.x;
        words = {};
    }
    __syncthreads();
    // Slots are not cleared earlier, because until the searches end, the key of one block is a hint
    // for the other blocks of its team.
    at = slot;
#pragma unroll 1
    for (u32 i = threadIdx.x; i - lane_id() < slots; i += blockDim.x) {
        if (i < slots) at.clear();
        at.words += 2 * blockDim.x;
        // If only some lanes of a warp have slots, the lanes have diverged: this makes them
        // converge. Without it, the following code took 1.8 us more on an H200.
        __syncwarp();
    }
}

// Settles all requests: grants drafts within the budget, and copies them. `Operator` is NgramMatch
// or HybridMtpNgram.
template <typename T, typename Operator>
INLINE void settle(const Params& p, Shared& shared, u32 slot_bits) {
    const u32 thread = threadIdx.x;
    // `left` starts at the number of reserved tokens. If one round settles all requests, the sums
    // of that round contain this number; otherwise it is counted here.
    const bool once = p.batch <= blockDim.x;
    i64 drafts = 0;
    i64 used = 0;
    i64 left = 0;
    Sums total;
    if (!once) {
        u32 waiting = 0;
        for (u32 i = thread; i < p.batch; i += blockDim.x) waiting += Operator::reserves(p, i);
        inclusive_sum({0, 0, waiting}, shared.sums, blockDim.x, total);
        left = total.counts;
        __syncthreads();
    }
    u32 bits = 0;

#pragma unroll 1
    for (u32 from = 0; from < p.batch; from += blockDim.x) {
        const u32 requests = min(p.batch - from, blockDim.x);
        const bool mine = thread < requests;
        // The first load of a slot precedes the loads of lengths, so that all are in flight at
        // once.
        const Slot slot = {p.slots + 2 * ((static_cast<u64>(from) << slot_bits) + thread)};
        ulonglong2 words = {};
        if (thread < requests << slot_bits) words = load_relaxed(slot.words);
        Request r = {};
        if (mine) r = Operator::request(p, from + thread);
        collect(p, shared, slot_bits, requests, slot, words);

        Sums own = {0, 0, 0};
        if (mine) {
            const u64 key = shared.best[thread];
            const u32 index = from + thread;
            const DraftRequest<T> draft_request(p, index, r, key);
            own.drafts = draft_request.drafts;
            shared.best[thread] = reinterpret_cast<u64>(draft_request.source);
            shared.target[thread] = reinterpret_cast<u64>(draft_request.target);
            shared.wanted[thread] = own.drafts;
            own.used = r.used;
            own.counts = r.reserves | static_cast<u32>(r.releases) << 16;
            bits |= r.bits;
        }
        const Sums through = inclusive_sum(own, shared.sums, requests, total);
        if (once) left = total.counts & 0xFFFF;

        // Eight lanes copy the drafts of a request, and a lane loads tokens of four requests at
        // once. The first tokens are in flight while the threads compute what the budget grants.
        constexpr u32 LANES = 8;
        const u32 copiers = blockDim.x / LANES;
        constexpr u32 AHEAD = 4;
        constexpr u32 EACH = 2;
        const u32 lane = thread % LANES;
        T token[AHEAD][EACH];
        const auto fetch = [&](u32 at) {
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * copiers;
                const u32 some = k < requests ? shared.wanted[k] : 0;
                const T* const source = reinterpret_cast<const T*>(shared.best[k % THREADS]);
#pragma unroll
                for (u32 e = 0; e < EACH; ++e) {
                    const u32 slot = lane + e * LANES;
                    token[a][e] = slot < some ? source[slot] : T(0);
                }
            }
        };
        fetch(thread / LANES);

        if (mine) {
            const i64 threshold = p.threshold;
            const i64 committed = used + through.used + left - (through.counts >> 16);
            const i64 taken = drafts + through.drafts - own.drafts + committed;
            const i64 count =
                taken >= threshold - 1 ? 0 : min(static_cast<i64>(own.drafts), threshold - taken);
            shared.count[thread] = static_cast<u32>(count);
            p.this_time[from + thread] = r.base + static_cast<i32>(count);
        }
        drafts += total.drafts;
        used += total.used;
        left -= total.counts >> 16;
        __syncthreads();

#pragma unroll 1
        for (u32 at = thread / LANES; at < requests; at += copiers * AHEAD) {
            if (at >= copiers) fetch(at);
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * copiers;
                if (k >= requests) break;
                T* const to = reinterpret_cast<T*>(shared.target[k]);
                const T* const source = reinterpret_cast<const T*>(shared.best[k]);
                const u32 count = shared.count[k];
#pragma unroll
                for (u32 e = 0; e < EACH; ++e) {
                    if (lane + e * LANES < count) to[lane + e * LANES] = token[a][e];
                }
#pragma unroll 1
                for (u32 i = lane + EACH * LANES; i < count; i += LANES) to[i] = source[i];
            }
        }
        __syncthreads();
    }
    raise(p.flags, bits);
}

// ---- requests within the budget -------------------------------------------------

// With more requests than this, adding up what they may add takes longer than settling.
constexpr u32 MAX_SUMMED_REQUESTS = 8 * THREADS;

// The largest number of tokens that the requests of this warp's threads may add to the budget.
// Request i is handled by thread i % blockDim.x; `first` is the demand of this thread's first
// request.
template <typename Operator>
INLINE u32 max_added_by_warp(const Params& p, const typename Operator::BudgetDemand& first) {
    if (p.batch > MAX_SUMMED_REQUESTS) return SUM_LIMIT;
    u32 max_added = threadIdx.x < p.batch ? min(first.max_added(p), SUM_LIMIT) : 0;
#pragma unroll 1
    for (u32 i = threadIdx.x + blockDim.x; i < p.batch; i += blockDim.x) {
        max_added = min(max_added + typename Operator::BudgetDemand(p, i).max_added(p), SUM_LIMIT);
    }
    return __reduce_add_sync(ALL_LANES, max_added);
}
static_assert(THREADS < ~0u / SUM_LIMIT);

// Writes the drafts of a request that the budget does not cut. By one warp.
template <typename T>
INLINE void write(const Params& p, u32 index, Request& r, u64 key) {
    const u32 lane = lane_id();
    const DraftRequest<T> draft_request(p, index, r, key);
#pragma unroll 1
    for (u32 i = lane; i < draft_request.drafts; i += WARP) {
        draft_request.target[i] = draft_request.source[i];
    }
    if (lane == 0) {
        p.this_time[index] = r.base + static_cast<i32>(draft_request.drafts);
        raise(p.flags, r.bits);
    }
}

// ---- the kernel ---------------------------------------------------------------

template <typename T, typename Operator>
INLINE void draft(const Params& p) {
    __shared__ Shared shared;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 warps = blockDim.x / WARP;
    const Senders cluster;
    const bool clustered = cluster.size > 1;
    const bool leads = cluster.rank == 0;
    const u32 slot_bits = clustered ? 0 : p.block_bits;
    const Team team(p.block_bits, p.warp_bits, warps, cluster);
    const bool has_request = team.request < p.batch;
    const u64 row = team.request;
    // All loads come first, so that none waits for another. A warp or thread without a request
    // loads the data of the last request.
    const typename Operator::BudgetDemand demand(p, min(threadIdx.x, p.batch - 1));
    Request r = Operator::request(p, min(team.request, p.batch - 1));
    if (lane == 0) shared.hints[warp] = NO_RANK;
    if (clustered) {
        if (threadIdx.x == 0 && leads) {
            shared.arrivals.init();
            Arrivals::publish_init();
            shared.arrivals.expect((cluster.size + 1) * warps * sizeof(u64));
        }
        // This block must have set its hints to NO_RANK before another block lowers them.
        __syncthreads();
        cluster.arrive_prepared();
        cluster.wait_started();
    } else {
        __syncthreads();
    }
    // Only the first block of a cluster needs the sum. Teams with a slot for each block never need
    // it: their requests are always settled.
    const u32 max_added =
        leads && slot_bits == 0 ? max_added_by_warp<Operator>(p, demand) : SUM_LIMIT;
    u64* const slots = p.slots + 2 * (row << slot_bits);
    u64 key = NO_MATCH;
    if (has_request && r.limit > 0) {
        const T* const prompt = static_cast<const T*>(p.input_ids.data) + row * p.input_ids.stride;
        const T* const generated =
            static_cast<const T*>(p.generated.data) + row * p.generated.stride + r.start;
#if __CUDA_ARCH__ >= 900
        const NearHint hint = {&shared.hints[warp - team.own], cluster};
#else
        const SlotHint hint = {&shared.hints[warp - team.own], slots, 1u << slot_bits, p.number};
#endif
        key = search<Occurrence::FIRST>(
            Haystack<T>(prompt, r.prompt, 0), Haystack<T>(generated, r.step, r.prompt),
            Pattern<T>{generated + r.step, min(p.max_ngram, r.step), p.min_ngram}, team, hint);
    }
    if (clustered) {
        if (lane == 0) {
            u64* const barrier = &shared.arrivals.word;
            cluster.put(&shared.keys[cluster.rank * warps + warp], barrier, 0, key);
            if (leads) cluster.put(&shared.max_added[warp], barrier, 0, max_added);
        }
        // Signals that this block stores no more hints. No block ends before all blocks have
        // signalled.
        cluster.arrive_started();
        if (!leads) {
            cluster.wait_started();
            return;
        }
        shared.arrivals.wait(0);
    } else {
        if (lane == 0) {
            shared.keys[warp] = key;
            shared.max_added[warp] = max_added;
        }
        __syncthreads();
    }
    // Whether the budget cannot cut any drafts, whatever the searches find.
    const u32 sum = __reduce_add_sync(
        ALL_LANES, lane < warps ? static_cast<u32>(shared.max_added[lane]) : 0);
    const bool independent = static_cast<i64>(sum) < min(p.threshold, static_cast<i32>(SUM_LIMIT));
    if (team.own == 0 && has_request) {
        const u32 keys = clustered ? cluster.size * warps : team.here;
        key = NO_MATCH;
#pragma unroll 1
        for (u32 i = lane; i < keys; i += WARP) key = min(key, shared.keys[warp + i]);
        key = warp_min(key);
        if (independent) {
            write<T>(p, team.request, r, key);
        } else if (lane == 0) {
            Slot{slots + 2 * (clustered ? 0 : blockIdx.y)}.store(p.number, key);
        }
    }
    if (clustered) cluster.wait_started();
    if (independent) return;
    // Of the blocks that get here, the one that starts last settles.
    const u32 last = gridDim.x - cluster.size;
    if (blockIdx.x == last && blockIdx.y == gridDim.y - 1) {
        settle<T, Operator>(p, shared, slot_bits);
    }
}
