// Two published designs of ngram_match and hybrid_mtp_ngram.
//
// one thread     the original loop, by one device thread for the whole batch
// two phases     search: a block for each request. For each pattern length and each haystack, the
//                threads compare a window each; the leftmost match wins by a 64-bit atomic minimum.
//                The tokens found are stored in scratch memory. gather: one block, with a thread
//                for each request. BlockScan over the tokens that requests use and want gives each
//                request its part of the budget.
//
// The published gather divides the budget approximately; here the two prefix sums are those of
// crates/spec-core/src/ngram.rs, which equal the loop. The published search ends at a window with
// nothing after it; the contract continues.
//
// Bytes: each token up to the first match, once for each pattern length.
#include "blocks.cuh"

struct Params {
    const void* input_ids;
    u64 input_stride;
    const void* generated;
    u64 generated_stride;
    void* draft_tokens;
    u64 draft_stride;
    Integers prompt_lens;
    Integers starts;
    Integers steps;
    Integers max_dec;
    const i32* draft_token_num;
    i32* this_time;
    const i32* encoder;
    const i32* decoder;
    u32* flags;
    // The tokens that requests want, in rows of `draft_cols`, and their numbers.
    void* found;
    i32* wanted;
    u64 input_cols;
    u64 generated_cols;
    u64 draft_cols;
    u32 batch;
    u32 hybrid;
    u32 max_ngram;
    u32 min_ngram;
    i32 max_draft_tokens;
    i32 threshold;
};
static_assert(sizeof(Params) == 216);

// ---- requests -------------------------------------------------------------------

struct Request {
    // `seq_lens_this_time` without drafts, whether it is written, and the tokens that the budget
    // counts for it.
    bool writes;
    i32 base;
    i64 used;
    // Whether the request may draft, the largest number of drafts, and the column of the first
    // draft.
    bool drafts;
    i64 limit;
    i64 slot;
    i64 prompt;
    i64 start;
    i64 step;
    u32 bits;
};

INLINE i64 cut(i64 value, i64 max, u32& bits) {
    const i64 fits = ::max(min(value, max), 0ll);
    if (fits != value) bits |= BAD_LENGTHS;
    return fits;
}

INLINE Request read_request(const Params& p, u32 b) {
    Request r = {};
    const i32 have = p.this_time[b];
    if (p.hybrid) {
        r.base = have;
        r.used = max(have, 0);
        if (have < 0) r.bits |= BAD_LENGTHS;
        if (have <= 0) return r;
        r.limit = static_cast<i64>(p.max_draft_tokens) - have + 1;
        r.slot = have;
    } else {
        const i32 decoder = p.decoder[b];
        if (p.encoder[b] > 0) {
            r.used = max(have, 0);
            if (have < 0) r.bits |= BAD_LENGTHS;
            return r;
        }
        r.writes = true;
        if (decoder <= 0) {
            if (decoder < 0) r.bits |= BAD_LENGTHS;
            return r;
        }
        r.base = 1;
        r.used = 1;
        r.limit = p.draft_token_num[b];
        r.slot = 1;
    }
    const i64 cols = static_cast<i64>(p.generated_cols);
    r.prompt = cut(p.prompt_lens[b], static_cast<i64>(p.input_cols), r.bits);
    r.start = p.starts.data == nullptr ? 0 : cut(p.starts[b], cols, r.bits);
    r.step = cut(p.steps[b], max(cols - r.start - 1, 0ll), r.bits);
    // Saturates, because the length may be any number.
    constexpr i64 MIN_I64 = static_cast<i64>(1ull << 63);
    const i64 longest = p.max_dec[b];
    r.limit = min(r.limit, longest < MIN_I64 + r.step + 1 ? MIN_I64 : longest - r.step - 1);
    r.drafts = !p.hybrid || r.limit > 0;
    r.writes = r.drafts;
    return r;
}

// The number of tokens that a request wants, of `candidates` tokens.
INLINE i64 want(const Params& p, Request& r, i64 candidates) {
    const i64 count = max(min(r.limit, candidates), 0ll);
    const i64 room = max(static_cast<i64>(p.draft_cols) - r.slot, 0ll);
    if (count > room) r.bits |= BAD_LENGTHS;
    return min(count, room);
}

INLINE bool active(const Params& p, u32 b) {
    return p.decoder[b] > 0 || (!p.hybrid && p.encoder[b] > 0);
}

// An array of tokens that is searched.
template <typename T>
struct Haystack {
    const T* tokens;
    i64 len;
};

// The prompt (0) or the generated tokens (1).
template <typename T>
INLINE Haystack<T> haystack(const Params& p, const Request& r, u32 b, u32 which) {
    if (which == 0) return {static_cast<const T*>(p.input_ids) + b * p.input_stride, r.prompt};
    return {static_cast<const T*>(p.generated) + b * p.generated_stride + r.start, r.step};
}

template <typename T>
INLINE const T* pattern_of(const Params& p, const Request& r, u32 b, i64 n) {
    return haystack<T>(p, r, b, 1).tokens + r.step + 1 - n;
}

// ---- one thread -----------------------------------------------------------------

// The tokens after the first window that matches; length 0 if none matches.
template <typename T>
INLINE Haystack<T> search_alone(const Params& p, const Request& r, u32 b) {
    for (i64 n = p.max_ngram; n >= p.min_ngram; n--) {
        if (r.step < n) continue;
        const T* pattern = pattern_of<T>(p, r, b, n);
        for (u32 which = 0; which < 2; which++) {
            const Haystack<T> hay = haystack<T>(p, r, b, which);
            for (i64 at = 0; at < hay.len - n; at++) {
                i64 same = 0;
                while (same < n && hay.tokens[at + same] == pattern[same]) same++;
                if (same == n) return {hay.tokens + at + n, hay.len - at - n};
            }
        }
    }
    return {nullptr, 0};
}

template <typename T>
INLINE void one_thread(const Params& p) {
    i64 left = 0;
    for (u32 b = 0; b < p.batch; b++) left += active(p, b);
    i64 used = 0;
    u32 bits = 0;
    for (u32 b = 0; b < p.batch; b++) {
        Request r = read_request(p, b);
        used += r.used;
        i64 count = 0;
        if (r.drafts) {
            left--;
            const Haystack<T> candidates = search_alone<T>(p, r, b);
            count = want(p, r, candidates.len);
            if (used + left >= static_cast<i64>(p.threshold) - 1) {
                count = 0;
            } else {
                count = min(count, p.threshold - used - left);
            }
            T* drafts = static_cast<T*>(p.draft_tokens) + b * p.draft_stride + r.slot;
            for (i64 i = 0; i < count; i++) drafts[i] = candidates.tokens[i];
        }
        bits |= r.bits;
        if (r.writes) p.this_time[b] = r.base + static_cast<i32>(count);
        used += count;
    }
    raise(p.flags, bits);
}
SPEC_KERNEL(ngram_one_thread_i64, one_thread<i64>, Params, 1)
SPEC_KERNEL(ngram_one_thread_i32, one_thread<i32>, Params, 1)

// ---- two phases: search -----------------------------------------------------------

constexpr u32 THREADS = 1024;
constexpr i64 NOWHERE = 0x7FFFFFFFFFFFFFFFll;

// An atomic minimum of two positions, by compare and swap.
INLINE void atomic_min_64(i64* address, i64 value) {
    u64* word = reinterpret_cast<u64*>(address);
    u64 old = *word;
    while (value < static_cast<i64>(old)) {
        const u64 seen = atomicCAS(word, old, static_cast<u64>(value));
        if (seen == old) return;
        old = seen;
    }
}

// The leftmost matching window, by all threads of the block. A pattern of N tokens is kept in
// registers; N = 0 means any length, read from memory each time.
template <typename T, u32 N>
INLINE i64 leftmost(const Haystack<T>& hay, const T* pattern, i64 n) {
    __shared__ i64 best;
    constexpr u32 KEPT = N == 0 ? 1 : N;
    T kept[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) kept[i] = pattern[i];
    __syncthreads();
    if (threadIdx.x == 0) best = NOWHERE;
    __syncthreads();
    const T* __restrict__ tokens = hay.tokens;
    for (i64 at = threadIdx.x; at < hay.len - n; at += THREADS) {
        if (at > *static_cast<volatile i64*>(&best)) break;
        bool match = true;
        if constexpr (N > 0) {
#pragma unroll
            for (u32 i = 0; i < KEPT; i++) {
                if (match && tokens[at + i] != kept[i]) match = false;
            }
        } else {
            for (i64 i = 0; match && i < n; i++) match = tokens[at + i] == pattern[i];
        }
        if (match) atomic_min_64(&best, at);
    }
    __syncthreads();
    return best;
}

template <typename T>
INLINE i64 leftmost_of(const Haystack<T>& hay, const T* pattern, i64 n) {
    switch (n) {
        case 1: return leftmost<T, 1>(hay, pattern, n);
        case 2: return leftmost<T, 2>(hay, pattern, n);
        case 3: return leftmost<T, 3>(hay, pattern, n);
        default: return leftmost<T, 0>(hay, pattern, n);
    }
}

template <typename T>
INLINE Haystack<T> search_together(const Params& p, const Request& r, u32 b) {
    for (i64 n = p.max_ngram; n >= p.min_ngram; n--) {
        if (r.step < n) continue;
        const T* pattern = pattern_of<T>(p, r, b, n);
        for (u32 which = 0; which < 2; which++) {
            const Haystack<T> hay = haystack<T>(p, r, b, which);
            const i64 at = leftmost_of<T>(hay, pattern, n);
            if (at != NOWHERE) return {hay.tokens + at + n, hay.len - at - n};
        }
    }
    return {nullptr, 0};
}

template <typename T>
INLINE void search(const Params& p) {
    const u32 b = blockIdx.x;
    Request r = read_request(p, b);
    i64 count = 0;
    if (r.drafts && r.limit > 0) {
        const Haystack<T> candidates = search_together<T>(p, r, b);
        count = want(p, r, candidates.len);
        T* found = static_cast<T*>(p.found) + b * p.draft_cols;
        for (i64 i = threadIdx.x; i < count; i += THREADS) found[i] = candidates.tokens[i];
    }
    if (threadIdx.x == 0) {
        p.wanted[b] = static_cast<i32>(count);
        raise(p.flags, r.bits);
    }
}
SPEC_KERNEL(ngram_search_i64, search<i64>, Params, THREADS)
SPEC_KERNEL(ngram_search_i32, search<i32>, Params, THREADS)

// ---- two phases: gather -----------------------------------------------------------

template <typename T>
INLINE void gather(const Params& p) {
    using Scan = cub::BlockScan<i64, THREADS, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename Scan::TempStorage storage[2];
    const u32 b = threadIdx.x;
    const bool present = b < p.batch;
    Request r = {};
    i64 wanted = 0;
    if (present) {
        r = read_request(p, b);
        wanted = p.wanted[b];
    }
    const i64 all = __syncthreads_count(present && active(p, b));
    // The tokens used up to and including this request, minus the reserved tokens that are
    // released.
    i64 committed;
    Scan(storage[0]).InclusiveSum(r.used - (r.drafts ? 1 : 0), committed);
    committed += all;
    i64 before;
    Scan(storage[1]).ExclusiveSum(wanted, before);
    if (!present || !r.writes) return;
    const i64 taken = before + committed;
    i64 count = 0;
    if (taken < static_cast<i64>(p.threshold) - 1) count = min(wanted, p.threshold - taken);
    const T* found = static_cast<const T*>(p.found) + b * p.draft_cols;
    T* drafts = static_cast<T*>(p.draft_tokens) + b * p.draft_stride + r.slot;
    for (i64 i = 0; i < count; i++) drafts[i] = found[i];
    p.this_time[b] = r.base + static_cast<i32>(count);
}
SPEC_KERNEL(ngram_gather_i64, gather<i64>, Params, THREADS)
SPEC_KERNEL(ngram_gather_i32, gather<i32>, Params, THREADS)
