// What ngram_match and hybrid_mtp_ngram share: the search (ngram_search.cuh) over
// prompt and generated tokens as one line, and the budget.
//
// Teams. The blocks of a team are a cluster: their warps send their best keys to its
// first block. Devices without clusters have a slot in the workspace for each block.
//
// Budget. The most that all requests may add to the budget is known before any search, and
// is the same to every block: `Ask` counts only what the kernel leaves as it is. Where that
// sum is within the budget, no request's drafts depend on another's, and each request is
// written where it was searched. Else every team leaves its best key in its slot. The last block
// of the grid, or the first of its last cluster, waits for the slots of all, which no
// other block waits for, and replays the sequential loop of crates/spec-core/src/ngram.rs
// by prefix sums over the requests.
//
// That those it waits for can run while it waits has two reasons, of which either is
// enough. Devices start the blocks of a grid in the order of their numbers, so all of
// them run, or are done, when the last one starts. And though CUDA does not promise
// that order, two blocks fit one multiprocessor (RESIDENT, which __launch_bounds__
// makes the compiler keep to), so beside a block that waits, whose cluster is done,
// there is room for another, and when that is done for the next; only a kernel that
// fills the device and itself waits for this one's results could take that room for good.
//
// Bytes: the tokens up to a full match, each once; 256 prompts of 131072 tokens
// of 8 bytes without a match are 268 MB: 58 us at 4.6 TB/s.
#pragma once

#include "ngram_search.cuh"
#include "params/ngram.cuh"

// The most blocks of a team: more have more to tell each other than they save.
constexpr u32 MAX_BLOCKS = 8;
// What requests may add to the budget is counted up to this, which no budget covers.
constexpr u32 TOO_MANY = 1u << 21;

// ---- requests -----------------------------------------------------------------

// A request as its lengths have it, cut to what its rows hold.
struct Request {
    u32 prompt;
    u32 start;
    u32 step;
    // Drafts it may have at most, and the slot of the first; no search below 1.
    i64 limit;
    u32 slot;
    // seq_lens_this_time without drafts, and what the budget counts.
    i32 base;
    u32 used;
    bool waits;
    bool leaves;
    u32 bits;
};

// Prompt, start and step of a request.
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

INLINE i64 draft_limit(const Params& p, u32 index, i64 own, u32 step) {
    const i64 longest = p.max_dec[index];
    const i64 taken = static_cast<i64>(step) + 1;
    // Saturating: the length may be any number.
    constexpr i64 LEAST = static_cast<i64>(1ull << 63);
    return min(own, longest < LEAST + taken ? LEAST : longest - taken);
}

// What a request would draft if the budget were endless, from where, and to where.
template <typename T>
struct Wish {
    const T* source;
    T* target;
    u32 drafts;

    INLINE Wish(const Params& p, u64 index, Request& r, u64 key)
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
                        : static_cast<const T*>(p.input_ids.data) + index * p.input_ids.stride + place;
        target = static_cast<T*>(p.draft_tokens.data) + index * p.draft_tokens.stride + r.slot;
    }
};

// ---- budget -------------------------------------------------------------------

// What requests add to the budget. Beyond the largest threshold a sum means the
// same whatever it is, so sums of tokens saturate.
struct Sums {
    u32 drafts;
    u32 used;
    // Requests that wait for their tokens, and in the upper half that leave.
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
    // Of this block's warps; of all warps of a cluster in its first block.
    u64 keys[MAX_BLOCKS * WARPS];
    // What requests may add to the budget, by the warp that asked them.
    u64 most[WARPS];
    // In the first block of a cluster: that keys and sums have come.
    Arrivals arrivals;
    // Of teams within a block or a cluster.
    u32 hints[WARPS];
    Sums sums[WARPS];
    // Of the requests being settled: key, then where drafts come from and go
    // to, how many are wanted and how many granted.
    u64 best[THREADS];
    u64 target[THREADS];
    u32 wanted[THREADS];
    u32 count[THREADS];
};

// Sums over the threads up to this one, and over all `threads` that take part.
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
        // The first warp has it all, and nobody else asks.
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

// Waits for the slots of `requests` requests, of which this thread's first is `slot`,
// where `words` were last seen; then clears them.
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
    // Not before: what the first blocks of a team left is a hint for the others.
    at = slot;
#pragma unroll 1
    for (u32 i = threadIdx.x; i - lane_id() < slots; i += blockDim.x) {
        if (i < slots) at.clear();
        at.words += 2 * blockDim.x;
        // Warps of which only some lanes have slots go on together: apart, all that
        // follows took 1.8 us more on an H200.
        __syncwarp();
    }
}

// Settles all requests. `Operator` is the operator's own part.
template <typename T, typename Operator>
INLINE void settle(const Params& p, Shared& shared, u32 slot_bits) {
    const u32 thread = threadIdx.x;
    // `left` starts at the number of requests that wait for their tokens: known
    // with the sums of the only round, else counted beforehand.
    const bool once = p.batch <= blockDim.x;
    i64 drafts = 0;
    i64 used = 0;
    i64 left = 0;
    Sums total;
    if (!once) {
        u32 waiting = 0;
        for (u32 i = thread; i < p.batch; i += blockDim.x) waiting += Operator::waits(p, i);
        inclusive_sum({0, 0, waiting}, shared.sums, blockDim.x, total);
        left = total.counts;
        __syncthreads();
    }
    u32 bits = 0;

#pragma unroll 1
    for (u32 from = 0; from < p.batch; from += blockDim.x) {
        const u32 requests = min(p.batch - from, blockDim.x);
        const bool mine = thread < requests;
        // The first look at a slot is on its way while lengths are loaded.
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
            const Wish<T> wish(p, index, r, key);
            own.drafts = wish.drafts;
            shared.best[thread] = reinterpret_cast<u64>(wish.source);
            shared.target[thread] = reinterpret_cast<u64>(wish.target);
            shared.wanted[thread] = own.drafts;
            own.used = r.used;
            own.counts = r.waits | static_cast<u32>(r.leaves) << 16;
            bits |= r.bits;
        }
        const Sums through = inclusive_sum(own, shared.sums, requests, total);
        if (once) left = total.counts & 0xFFFF;

        // Eight lanes copy the drafts of a request, four requests in flight;
        // their first tokens are on the way while the budget is worked out.
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

// ---- requests apart -----------------------------------------------------------

// Beyond so many requests it takes too long to ask each of them.
constexpr u32 FEW_REQUESTS = 8 * THREADS;

// What this warp's threads' shares of all requests may add to the budget; `first` is
// of this thread's first request.
template <typename Operator>
INLINE u32 most_of_warp(const Params& p, const typename Operator::Ask& first) {
    if (p.batch > FEW_REQUESTS) return TOO_MANY;
    u32 most = threadIdx.x < p.batch ? min(first.most(p), TOO_MANY) : 0;
#pragma unroll 1
    for (u32 i = threadIdx.x + blockDim.x; i < p.batch; i += blockDim.x) {
        most = min(most + typename Operator::Ask(p, i).most(p), TOO_MANY);
    }
    return __reduce_add_sync(ALL_LANES, most);
}
static_assert(THREADS < ~0u / TOO_MANY);

// A warp writes the drafts of a request that the budget does not cut.
template <typename T>
INLINE void write(const Params& p, u32 index, Request& r, u64 key) {
    const u32 lane = lane_id();
    const Wish<T> wish(p, index, r, key);
#pragma unroll 1
    for (u32 i = lane; i < wish.drafts; i += WARP) wish.target[i] = wish.source[i];
    if (lane == 0) {
        p.this_time[index] = r.base + static_cast<i32>(wish.drafts);
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
    const bool there = team.request < p.batch;
    const u64 row = team.request;
    // All loads first, of some request or other also where there is none.
    const typename Operator::Ask ask(p, min(threadIdx.x, p.batch - 1));
    Request r = Operator::request(p, min(team.request, p.batch - 1));
    if (lane == 0) shared.hints[warp] = NO_RANK;
    if (clustered) {
        if (threadIdx.x == 0 && leads) {
            shared.arrivals.init();
            Arrivals::publish_init();
            shared.arrivals.expect((cluster.size + 1) * warps * sizeof(u64));
        }
        // What this block's memory begins with is there before any other block lowers its hints.
        __syncthreads();
        cluster.arrive_prepared();
        cluster.wait_started();
    } else {
        __syncthreads();
    }
    // Only who writes or settles needs it; slots are for who settles.
    const u32 most = leads && slot_bits == 0 ? most_of_warp<Operator>(p, ask) : TOO_MANY;
    u64* const slots = p.slots + 2 * (row << slot_bits);
    u64 key = NO_MATCH;
    if (there && r.limit > 0) {
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
            if (leads) cluster.put(&shared.most[warp], barrier, 0, most);
        }
        // No block ends while another may leave it a hint.
        cluster.arrive_started();
        if (!leads) {
            cluster.wait_started();
            return;
        }
        shared.arrivals.wait(0);
    } else {
        if (lane == 0) {
            shared.keys[warp] = key;
            shared.most[warp] = most;
        }
        __syncthreads();
    }
    // Whether the budget cuts nobody's drafts, whatever each finds.
    const u32 sum = __reduce_add_sync(
        ALL_LANES, lane < warps ? static_cast<u32>(shared.most[lane]) : 0);
    const bool apart = static_cast<i64>(sum) < min(p.threshold, static_cast<i32>(TOO_MANY));
    if (team.own == 0 && there) {
        const u32 keys = clustered ? cluster.size * warps : team.here;
        key = NO_MATCH;
#pragma unroll 1
        for (u32 i = lane; i < keys; i += WARP) key = min(key, shared.keys[warp + i]);
        key = warp_min(key);
        if (apart) {
            write<T>(p, team.request, r, key);
        } else if (lane == 0) {
            Slot{slots + 2 * (clustered ? 0 : blockIdx.y)}.store(p.number, key);
        }
    }
    if (clustered) cluster.wait_started();
    if (apart) return;
    // Of the blocks that may get here the one that starts last.
    const u32 last = gridDim.x - cluster.size;
    if (blockIdx.x == last && blockIdx.y == gridDim.y - 1) {
        settle<T, Operator>(p, shared, slot_bits);
    }
}
