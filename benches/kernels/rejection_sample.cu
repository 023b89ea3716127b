// Two published designs of rejection_sample with argmax recovery: one thread for each request,
// which searches the vocabulary alone, and one block for each request, which reduces the vocabulary
// by warp shuffles.
//
// Both check the drafts in order and stop at the first rejection. What the article leaves open
// follows the contract: the lowest index among equal entries, entries that are not finite, bad
// offsets and tokens, flags.
//
// Bytes: the target and draft rows of each request's rejected token.
#include "common.cuh"

struct Params {
    Rows<const float> target;
    // Null data if the draft is deterministic.
    Rows<const float> draft;
    Integers draft_ids;
    Integers bonus_ids;
    Integers offsets;
    const float* uniform;
    Rows<i32> output;
    i32* emitted;
    i32* accepted;
    i32* recovered;
    i32* bonus;
    u32* flags;
    u64 tokens;
    u32 batch;
    u32 vocab;
    u32 max_spec_len;
    u32 reserved;
};
static_assert(sizeof(Params) == 168);

// ---- accepting drafts ------------------------------------------------------------

struct Walk {
    u32 accepted;
    bool rejected;
    // The row of the rejected token, and the draft token.
    u64 row;
    i64 id;
    u32 bits;
};

// Checks a request's drafts in order; writes the accepted drafts if `writes`.
INLINE Walk walk(const Params& p, u32 request, bool writes) {
    Walk w = {};
    const i64 start = p.offsets[request];
    i64 end = p.offsets[request + 1];
    if (start < 0 || end < start || end > static_cast<i64>(p.tokens)) {
        w.bits |= BAD_LENGTHS;
        end = start;
    }
    if (end - start > p.max_spec_len) {
        w.bits |= BAD_LENGTHS;
        end = start + p.max_spec_len;
    }
    for (i64 token = start; token < end; token++) {
        const i64 id = p.draft_ids[token];
        bool accepted = false;
        if (id < 0 || id >= p.vocab) {
            w.bits |= OUT_OF_RANGE;
        } else {
            const float t = p.target[token][id];
            const float d = p.draft.data != nullptr ? p.draft[token][id] : 1.0f;
            const float u = p.uniform[token];
            if (!exact::finite(t) || !exact::finite(d) || !exact::finite(u)) w.bits |= NON_FINITE;
            accepted = exact::accepts(t, d, u);
        }
        if (!accepted) {
            w.rejected = true;
            w.row = token;
            w.id = id;
            return w;
        }
        if (writes) p.output[request][w.accepted] = static_cast<i32>(id);
        w.accepted++;
    }
    return w;
}

// Writes the request's last token and its counts.
INLINE void finish(const Params& p, u32 request, const Walk& w, u32 recovered) {
    i32* row = p.output[request];
    u32 bits = w.bits;
    if (w.rejected) {
        row[w.accepted] = static_cast<i32>(recovered);
    } else {
        const i64 bonus = p.bonus_ids[request];
        const bool valid = bonus >= 0 && bonus < p.vocab;
        row[w.accepted] = valid ? static_cast<i32>(bonus) : 0;
        if (!valid) bits |= OUT_OF_RANGE;
    }
    for (u32 i = w.accepted + 1; i <= p.max_spec_len; i++) row[i] = -1;
    p.emitted[request] = static_cast<i32>(w.accepted) + 1;
    p.accepted[request] = static_cast<i32>(w.accepted);
    p.recovered[request] = w.rejected;
    p.bonus[request] = !w.rejected;
    raise(p.flags, bits);
}

// ---- the argmax -----------------------------------------------------------------

struct Best {
    float value;
    u32 index;
    bool nonfinite;

    // A later entry wins only if it is larger.
    INLINE void see(float value_, u32 index_) {
        if (value_ > value && value_ <= LARGEST) {
            value = value_;
            index = index_;
        }
        nonfinite |= !exact::finite(value_);
    }

    INLINE void merge(float value_, u32 index_) {
        if (value_ > value || (value_ == value && index_ < index)) {
            value = value_;
            index = index_;
        }
    }
};

// The largest positive residual among every `step`-th entry from `first` on.
INLINE Best best_residual(const Params& p, const Walk& w, u32 first, u32 step) {
    Best best = {0.0f, NONE, false};
    const float* __restrict__ target = p.target[w.row];
    if (p.draft.data != nullptr) {
        const float* __restrict__ draft = p.draft[w.row];
        for (u32 i = first; i < p.vocab; i += step) {
            best.see(exact::sub(__ldg(target + i), __ldg(draft + i)), i);
        }
    } else {
        for (u32 i = first; i < p.vocab; i += step) {
            best.see(i == w.id ? 0.0f : __ldg(target + i), i);
        }
    }
    return best;
}

// The largest finite target probability among the same entries.
INLINE Best best_target(const Params& p, const Walk& w, u32 first, u32 step) {
    Best best = {__uint_as_float(0xFF800000u), NONE, false};
    const float* __restrict__ target = p.target[w.row];
    for (u32 i = first; i < p.vocab; i += step) best.see(__ldg(target + i), i);
    return best;
}

// ---- a thread for each request ---------------------------------------------------

constexpr u32 THREAD_THREADS = 32;

INLINE void by_thread(const Params& p) {
    const u32 request = blockIdx.x * THREAD_THREADS + threadIdx.x;
    if (request >= p.batch) return;
    Walk w = walk(p, request, true);
    u32 recovered = 0;
    if (w.rejected) {
        Best best = best_residual(p, w, 0, 1);
        bool nonfinite = best.nonfinite;
        if (best.index == NONE) {
            best = best_target(p, w, 0, 1);
            nonfinite |= best.nonfinite;
        }
        if (nonfinite) w.bits |= NON_FINITE;
        recovered = best.index == NONE ? 0 : best.index;
    }
    finish(p, request, w, recovered);
}
SPEC_KERNEL(rejection_sample_thread, by_thread, Params, THREAD_THREADS)

// ---- a block for each request ----------------------------------------------------

constexpr u32 BLOCK_THREADS = 1024;
constexpr u32 WARPS = BLOCK_THREADS / WARP;

// The best entry of a warp, in lane 0.
INLINE Best warp_best(Best best) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        const float value = __shfl_down_sync(ALL_LANES, best.value, offset);
        const u32 index = __shfl_down_sync(ALL_LANES, best.index, offset);
        best.merge(value, index);
    }
    return best;
}

// The best entry of the block, in every thread; `nonfinite` says whether any thread read an entry
// that is not finite.
INLINE Best block_best(Best best) {
    __shared__ float values[WARPS];
    __shared__ u32 indices[WARPS];
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;
    const bool nonfinite = __syncthreads_or(best.nonfinite);
    best = warp_best(best);
    if (lane == 0) {
        values[warp] = best.value;
        indices[warp] = best.index;
    }
    __syncthreads();
    if (warp == 0) {
        best.value = values[lane];
        best.index = indices[lane];
        best = warp_best(best);
        if (lane == 0) indices[0] = best.index;
    }
    __syncthreads();
    best.index = indices[0];
    best.nonfinite = nonfinite;
    return best;
}

INLINE void by_block(const Params& p) {
    const u32 request = blockIdx.x;
    Walk w = walk(p, request, threadIdx.x == 0);
    u32 recovered = 0;
    if (w.rejected) {
        Best best = block_best(best_residual(p, w, threadIdx.x, BLOCK_THREADS));
        bool nonfinite = best.nonfinite;
        if (best.index == NONE) {
            best = block_best(best_target(p, w, threadIdx.x, BLOCK_THREADS));
            nonfinite |= best.nonfinite;
        }
        if (nonfinite) w.bits |= NON_FINITE;
        recovered = best.index == NONE ? 0 : best.index;
    }
    if (threadIdx.x == 0) finish(p, request, w, recovered);
}
SPEC_KERNEL(rejection_sample_block, by_block, Params, BLOCK_THREADS)
