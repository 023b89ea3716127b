// What ngram_match and hybrid_mtp_ngram share: the search and the budget.
//
// Search. A team of warps owns a request: a part of a block, a block, or several
// blocks. The two haystacks are one line of tokens, the prompt and then what was
// generated, cut into chunks that the team's warps take in turn:
//
//     prompt             | generated          |
//     c0 c1 c2 c3 c4 c5  | c6 c7 c8 ...       |      warp = chunk % warps of team
//
// A lane compares 16 bytes at a time with the last token of the pattern, and
// where it is found extends backwards, so one pass serves all pattern lengths.
// The smallest key wins: tokens missing from the longest pattern, then place on
// the line, which is prompt before generated and left before right. Whoever
// finds a match of full length leaves a hint; chunks right of it are skipped.
//
// Budget. Every team stores its key in a record. Block 0 waits for the records
// of all, which no other block waits for, and replays the sequential loop of
// crates/spec-core/src/ngram.rs by prefix sums over the requests.
//
// Records and hints need no clearing beforehand: each carries the 64-bit number
// of the launch (`nonce`), which no two launches share. Block 0 clears what it
// has read, so that a captured launch can be replayed under its number.
//
// Bytes: the tokens up to a full match, each once; 256 prompts of 131072 tokens
// of 8 bytes without a match are 268 MB: 89 us at 3.0 TB/s.
#pragma once

#include "common.cuh"

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
    u64* records;
    u64* hints;
    u64 nonce;
    u32 input_cols;
    u32 generated_cols;
    u32 draft_cols;
    u32 batch;
    // Logarithms: blocks of a team (grid.y), and its warps in a block.
    u32 block_bits;
    u32 warp_bits;
    u32 reserved;
    u32 max_ngram;
    u32 min_ngram;
    i32 max_draft_tokens;
    i32 threshold;
};
static_assert(sizeof(Params) == 224);

constexpr u32 THREADS = 512;
// Blocks a multiprocessor must hold, to have enough loads in flight.
constexpr u32 RESIDENT = 2;
constexpr u32 WARPS = THREADS / WARP;
constexpr u64 NO_MATCH = ~0ull;
// A key: 32 bits of missing tokens, 32 bits of place. Rows are below 2^31 tokens.
constexpr u32 PLACE_BITS = 32;
constexpr u32 NO_PLACE = ~0u;

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

INLINE u32 cut(i64 value, u32 most) {
    return static_cast<u32>(max(min(value, static_cast<i64>(most)), 0ll));
}

// Prompt, start and step of a request.
INLINE Request cut_lengths(const Params& p, u32 index) {
    Request r = {};
    const i64 prompt = p.prompt_lens[index];
    const i64 start = p.starts.data != nullptr ? p.starts[index] : 0;
    const i64 step = p.steps[index];
    r.prompt = cut(prompt, p.input_cols);
    r.start = cut(start, p.generated_cols);
    const u32 after = p.generated_cols - r.start;
    r.step = cut(step, after == 0 ? 0 : after - 1);
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

// ---- memory between blocks ----------------------------------------------------

INLINE void store_relaxed(u64* to, u64 value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

INLINE ulonglong2 load_relaxed(const u64* from) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.x), "=l"(v.y)
                 : "l"(from)
                 : "memory");
    return v;
}

// Two words that each hold half of the nonce and half of a value.
struct Tagged {
    u64 nonce;

    INLINE u64 low(u64 value) const { return nonce << 32 | (value & 0xFFFFFFFFu); }
    INLINE u64 high(u64 value) const { return (nonce & ~0xFFFFFFFFull) | value >> 32; }

    INLINE void store(u64* to, u64 value) const {
        store_relaxed(to, low(value));
        store_relaxed(to + 1, high(value));
    }

    INLINE bool ours(ulonglong2 words) const {
        return static_cast<u32>(words.x >> 32) == static_cast<u32>(nonce) &&
               words.y >> 32 == nonce >> 32;
    }

    INLINE static u64 value(ulonglong2 words) {
        return (words.y & 0xFFFFFFFFu) << 32 | (words.x & 0xFFFFFFFFu);
    }
};

// The leftmost full match known of a request: its place, twice, each with half
// of the nonce. Where the two disagree one is being written: no hint.
struct Hint {
    u64* words;
    u64 nonce;

    // Fire and forget. Whatever lay there before and is smaller stays, which
    // costs the hint and nothing else; block 0 leaves the largest number.
    INLINE static void lower(u64* word, u64 tag, u32 place) {
        asm volatile("red.relaxed.gpu.global.min.u64 [%0], %1;" ::"l"(word), "l"(tag << 32 | place)
                     : "memory");
    }

    INLINE void leave(u32 place) const {
        lower(words, nonce & 0xFFFFFFFFu, place);
        lower(words + 1, nonce >> 32, place);
    }

    INLINE u32 place() const {
        const ulonglong2 w = load_relaxed(words);
        const bool ours = static_cast<u32>(w.x >> 32) == static_cast<u32>(nonce) &&
                          w.y >> 32 == nonce >> 32 &&
                          static_cast<u32>(w.x) == static_cast<u32>(w.y);
        return ours ? static_cast<u32>(w.x) : NO_PLACE;
    }
};

// ---- search -------------------------------------------------------------------

INLINE u64 warp_min(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 least = __reduce_min_sync(ALL_LANES, high);
    const u32 low = __reduce_min_sync(ALL_LANES, high == least ? static_cast<u32>(v) : ~0u);
    return static_cast<u64>(least) << 32 | low;
}

// A haystack: windows may end at tokens 0 .. ends - 1.
template <typename T>
struct Haystack {
    static constexpr u32 N = Pack<T>::N;
    static constexpr u32 LOADS = 4;
    static constexpr u32 CHUNK = WARP * N * LOADS;

    const T* tokens;
    u32 ends;
    // Tokens from the 16-byte boundary below token 0 to token 0.
    u32 past;
    // Place of token 0 on the request's line.
    u32 place;

    INLINE Haystack(const T* tokens, u32 length, u32 place)
        : tokens(tokens), ends(length == 0 ? 0 : length - 1),
          past(static_cast<u32>(reinterpret_cast<u64>(tokens) % 16 / sizeof(T))), place(place) {}

    INLINE u32 chunks() const { return ends == 0 ? 0 : (past + ends + CHUNK - 1) / CHUNK; }

    // Which of this lane's tokens are `last`, a bit a token; `from` is the
    // token of the chunk's first vector, below 0 in the part before token 0.
    INLINE u32 find(i32 from, u32 lane, T last) const {
        u32 found = 0;
        if (from >= 0 && static_cast<u32>(from) + CHUNK <= ends) {
            Pack<T> packs[LOADS];
#pragma unroll
            for (u32 l = 0; l < LOADS; ++l) {
                packs[l] = load_pack(tokens + from + (l * WARP + lane) * N);
            }
#pragma unroll
            for (u32 l = 0; l < LOADS; ++l) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (packs[l].items[j] == last) found |= 1u << (l * N + j);
                }
            }
        } else {
            // The ends of a haystack: tokens one by one, all in flight at once.
            T single[LOADS * N];
#pragma unroll
            for (u32 bit = 0; bit < LOADS * N; ++bit) {
                const u32 at = token(from, bit, lane);
                single[bit] = at < ends ? tokens[at] : ~last;
            }
#pragma unroll
            for (u32 bit = 0; bit < LOADS * N; ++bit) {
                if (single[bit] == last) found |= 1u << bit;
            }
        }
        return found;
    }

    // The token that a bit stands for; huge before token 0.
    INLINE static u32 token(i32 from, u32 bit, u32 lane) {
        return static_cast<u32>(from) + (bit / N * WARP + lane) * N + bit % N;
    }
};

// The best key of this warp's chunks: first, first + step, ...
template <typename T>
INLINE u64 search(const Params& p, const Request& r, const T* prompt, const T* generated, u32 first,
                  u32 step, const Hint& hint) {
    const u32 lane = lane_id();
    const u32 longest = min(p.max_ngram, r.step);
    if (longest < p.min_ngram || r.limit <= 0) return NO_MATCH;
    const T* const pattern = generated + r.step;
    const T last = *pattern;
    Haystack<T> h(prompt, r.prompt, 0);
    const u32 prompt_chunks = h.chunks();
    const Haystack<T> second(generated, r.step, r.prompt);
    const u32 chunks = prompt_chunks + second.chunks();
    // Whether there is a second chunk to skip for any warp of the team.
    const bool hints = step > 1 && chunks > step;

    u64 best = NO_MATCH;
    u32 skipped = 0;
    for (u32 chunk = first; chunk < chunks; chunk += step) {
        if (chunk >= prompt_chunks) {
            h = second;
            skipped = prompt_chunks;
        }
        const i32 from = static_cast<i32>((chunk - skipped) * Haystack<T>::CHUNK - h.past);
        const u32 known = hints && chunk != first ? hint.place() : NO_PLACE;
        u32 found = h.find(from, lane, last);
        if (__any_sync(ALL_LANES, known < h.place + max(from, 0))) break;
        while (found != 0) {
            const u32 at = Haystack<T>::token(from, __ffs(found) - 1, lane);
            found &= found - 1;
            u32 length = 1;
            while (length < longest && length <= at &&
                   h.tokens[at - length] == *(pattern - length)) {
                ++length;
            }
            const u64 key = static_cast<u64>(longest - length) << PLACE_BITS | (h.place + at);
            if (length >= p.min_ngram) best = min(best, key);
            if (length == longest) break;
        }
        // A match of full length: all else of this warp lies to its right.
        if (__any_sync(ALL_LANES, best >> PLACE_BITS == 0)) {
            best = warp_min(best);
            if (lane == 0 && hints) hint.leave(static_cast<u32>(best));
            return best;
        }
    }
    return warp_min(best);
}

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
    u64 keys[WARPS];
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
    Sums of_warps = sums[lane % WARPS];
#pragma unroll
    for (u32 o = 1; o < WARPS; o *= 2) {
        const Sums below = of_warps.shuffle_up(o);
        if (lane >= o) of_warps = of_warps + below;
    }
    total = of_warps.of_lane(WARPS - 1);
    const Sums before = of_warps.of_lane((warp + WARPS - 1) % WARPS);
    return warp == 0 ? through : through + before;
}

// Waits for the records of `requests` requests from `from` on and clears them;
// `words` is what was last seen of this thread's first `record`.
INLINE void collect(const Params& p, Shared& shared, u32 from, u32 requests, u64* record,
                    ulonglong2 words) {
    const Tagged tagged = {p.nonce};
    if (p.block_bits > 0) {
        if (threadIdx.x < requests) shared.best[threadIdx.x] = NO_MATCH;
        __syncthreads();
    }
#pragma unroll 1
    for (u32 i = threadIdx.x; i < requests << p.block_bits; i += THREADS) {
        while (!tagged.ours(words)) words = load_relaxed(record);
        store_relaxed(record, 0);
        store_relaxed(record + 1, 0);
        if (p.block_bits > 0) {
            atomicMin(&shared.best[i >> p.block_bits], Tagged::value(words));
        } else {
            shared.best[i] = Tagged::value(words);
        }
        record += 2 * THREADS;
        words = {};
    }
    __syncthreads();
    // Nobody looks at the hints of these requests any more.
    if (threadIdx.x < requests) {
        store_relaxed(p.hints + 2 * (from + threadIdx.x), NO_MATCH);
        store_relaxed(p.hints + 2 * (from + threadIdx.x) + 1, NO_MATCH);
    }
}

// Settles all requests. `Operator` is the operator's own part.
template <typename T, typename Operator>
INLINE void settle(const Params& p, Shared& shared) {
    const u32 thread = threadIdx.x;
    // `left` starts at the number of requests that wait for their tokens: known
    // with the sums of the only round, else counted beforehand.
    const bool once = p.batch <= THREADS;
    i64 drafts = 0;
    i64 used = 0;
    i64 left = 0;
    Sums total;
    if (!once) {
        u32 waiting = 0;
        for (u32 i = thread; i < p.batch; i += THREADS) waiting += Operator::waits(p, i);
        inclusive_sum({0, 0, waiting}, shared.sums, THREADS, total);
        left = total.counts;
        __syncthreads();
    }
    u32 bits = 0;

#pragma unroll 1
    for (u32 from = 0; from < p.batch; from += THREADS) {
        const u32 requests = min(p.batch - from, THREADS);
        const bool mine = thread < requests;
        // The first look at a record is on its way while lengths are loaded.
        const u32 records = requests << p.block_bits;
        u64* const record = p.records + 2 * ((static_cast<u64>(from) << p.block_bits) + thread);
        ulonglong2 words = {};
        if (thread < records) words = load_relaxed(record);
        Request r = {};
        if (mine) r = Operator::request(p, from + thread);
        collect(p, shared, from, requests, record, words);

        Sums own = {0, 0, 0};
        if (mine) {
            const u64 key = shared.best[thread];
            const u64 index = from + thread;
            if (key != NO_MATCH) {
                const u32 place = static_cast<u32>(key) + 1;
                const bool second = place > r.prompt;
                const u32 candidates = second ? r.prompt + r.step - place : r.prompt - place;
                const u32 room = p.draft_cols > r.slot ? p.draft_cols - r.slot : 0;
                own.drafts = cut(r.limit, candidates);
                if (own.drafts > room) r.bits |= BAD_LENGTHS;
                own.drafts = min(own.drafts, room);
                const T* const source =
                    second ? static_cast<const T*>(p.generated) + index * p.generated_stride +
                                 r.start + (place - r.prompt)
                           : static_cast<const T*>(p.input_ids) + index * p.input_stride + place;
                T* const target = static_cast<T*>(p.draft_tokens) + index * p.draft_stride + r.slot;
                shared.best[thread] = reinterpret_cast<u64>(source);
                shared.target[thread] = reinterpret_cast<u64>(target);
            }
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
        constexpr u32 COPIERS = THREADS / LANES;
        constexpr u32 AHEAD = 4;
        constexpr u32 EACH = 2;
        const u32 lane = thread % LANES;
        T token[AHEAD][EACH];
        const auto fetch = [&](u32 at) {
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * COPIERS;
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
        for (u32 at = thread / LANES; at < requests; at += COPIERS * AHEAD) {
            if (at >= COPIERS) fetch(at);
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * COPIERS;
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

// ---- the kernel ---------------------------------------------------------------

template <typename T, typename Operator>
INLINE void draft(const Params& p) {
    __shared__ Shared shared;
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    // Warps of a team in this block, and which of them this is.
    const u32 here = 1u << p.warp_bits;
    const u32 own = warp & (here - 1);
    const u32 request = blockIdx.x * (WARPS >> p.warp_bits) + (warp >> p.warp_bits);
    const u64 row = request;
    u64 key = NO_MATCH;
    if (request < p.batch) {
        const Request r = Operator::request(p, request);
        const Hint hint = {p.hints + 2 * row, p.nonce};
        key = search(p, r, static_cast<const T*>(p.input_ids) + row * p.input_stride,
                     static_cast<const T*>(p.generated) + row * p.generated_stride + r.start,
                     (blockIdx.y << p.warp_bits) + own, here << p.block_bits, hint);
    }
    if (lane == 0) shared.keys[warp] = key;
    __syncthreads();
    if (own == 0 && request < p.batch) {
        key = warp_min(lane < here ? shared.keys[warp + lane] : NO_MATCH);
        if (lane == 0) {
            Tagged{p.nonce}.store(p.records + 2 * ((row << p.block_bits) + blockIdx.y), key);
        }
    }
    if (blockIdx.x == 0 && blockIdx.y == 0) settle<T, Operator>(p, shared);
}
