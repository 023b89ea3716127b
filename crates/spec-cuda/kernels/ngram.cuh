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
    u64 input_cols;
    const void* generated;
    u64 generated_stride;
    u64 generated_cols;
    void* draft_tokens;
    u64 draft_stride;
    u64 draft_cols;
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
    u64 batch;
    u32 team_blocks;
    u32 team_warps;
    u32 max_ngram;
    u32 min_ngram;
    i32 max_draft_tokens;
    i32 threshold;
};
static_assert(sizeof(Params) == 232);

constexpr u32 THREADS = 512;
// Blocks a multiprocessor must hold, to have enough loads in flight.
constexpr u32 RESIDENT = 2;
constexpr u32 WARPS = THREADS / WARP;
// Requests that a thread of block 0 settles at once, and the block.
constexpr u32 ITEMS = 2;
constexpr u32 SETTLED = THREADS * ITEMS;
constexpr u64 NO_MATCH = ~0ull;
// A key: 31 bits of missing tokens, 33 bits of place.
constexpr u32 PLACE_BITS = 33;
constexpr u64 PLACE_MASK = (1ull << PLACE_BITS) - 1;

// ---- requests -----------------------------------------------------------------

// A request as its lengths have it, cut to what its rows hold.
struct Request {
    u64 prompt;
    u64 start;
    u64 step;
    // Drafts it may have at most, and the slot of the first; no search below 1.
    i64 limit;
    u64 slot;
    // seq_lens_this_time without drafts, and what the budget counts.
    i32 base;
    i64 used;
    bool waits;
    bool leaves;
    u32 bits;
};

INLINE u64 cut(i64 value, u64 most) {
    return value < 0 ? 0 : min(static_cast<u64>(value), most);
}

// Prompt, start and step of a request.
INLINE Request cut_lengths(const Params& p, u64 index) {
    Request r = {};
    const i64 prompt = p.prompt_lens[index];
    const i64 start = p.starts.data != nullptr ? p.starts[index] : 0;
    const i64 step = p.steps[index];
    r.prompt = cut(prompt, p.input_cols);
    r.start = cut(start, p.generated_cols);
    const u64 after = p.generated_cols - r.start;
    r.step = cut(step, after == 0 ? 0 : after - 1);
    const bool fits = static_cast<i64>(r.prompt) == prompt &&
                      static_cast<i64>(r.start) == start && static_cast<i64>(r.step) == step;
    r.bits = fits ? 0 : BAD_LENGTHS;
    return r;
}

INLINE i64 draft_limit(const Params& p, u64 index, i64 own, u64 step) {
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

    INLINE static void lower(u64* word, u32 tag, u32 place) {
        u64 known = *reinterpret_cast<volatile u64*>(word);
        const u64 wanted = static_cast<u64>(tag) << 32 | place;
        while (static_cast<u32>(known >> 32) != tag || static_cast<u32>(known) > place) {
            const u64 found = atomicCAS(word, known, wanted);
            if (found == known) break;
            known = found;
        }
    }

    INLINE void leave(u64 place) const {
        if (place >> 32 != 0) return;
        lower(words, static_cast<u32>(nonce), static_cast<u32>(place));
        lower(words + 1, static_cast<u32>(nonce >> 32), static_cast<u32>(place));
    }

    INLINE u64 place() const {
        const ulonglong2 w = load_relaxed(words);
        const bool ours = static_cast<u32>(w.x >> 32) == static_cast<u32>(nonce) &&
                          w.y >> 32 == nonce >> 32 &&
                          static_cast<u32>(w.x) == static_cast<u32>(w.y);
        return ours ? static_cast<u32>(w.x) : NO_MATCH;
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
    u64 ends;
    // Place of token 0 on the request's line.
    u64 place;
    // Tokens from the 16-byte boundary below token 0 to token 0.
    u32 past;

    INLINE Haystack(const T* tokens, u64 length, u64 place)
        : tokens(tokens), ends(length == 0 ? 0 : length - 1), place(place),
          past(static_cast<u32>(reinterpret_cast<u64>(tokens) % 16 / sizeof(T))) {}

    INLINE u64 chunks() const { return ends == 0 ? 0 : (past + ends + CHUNK - 1) / CHUNK; }
};

// The best key of this warp's chunks: first, first + step, ...
template <typename T>
INLINE u64 search(const Params& p, const Request& r, const T* prompt, const T* generated, u64 first,
                  u64 step, const Hint& hint) {
    using H = Haystack<T>;
    constexpr u32 N = H::N;
    const u32 lane = lane_id();
    const u64 longest = min(static_cast<u64>(p.max_ngram), r.step);
    if (longest < p.min_ngram || r.limit <= 0) return NO_MATCH;
    const H in_prompt(prompt, r.prompt, 0);
    const H in_generated(generated, r.step, r.prompt);
    const u64 prompt_chunks = in_prompt.chunks();
    const u64 chunks = prompt_chunks + in_generated.chunks();
    const T* const pattern = generated + r.step;
    const T last = *pattern;

    u64 best = NO_MATCH;
    for (u64 chunk = first; chunk < chunks; chunk += step) {
        const bool second = chunk >= prompt_chunks;
        const H h = second ? in_generated : in_prompt;
        const u64 index = second ? chunk - prompt_chunks : chunk;
        // Token of the chunk's first vector; below 0 in the part before token 0.
        const i64 from = static_cast<i64>(index * H::CHUNK) - h.past;
        const u64 known = chunk != first && step > 1 ? hint.place() : NO_MATCH;

        // Which of the lane's tokens are the pattern's last, a bit a token.
        u32 found = 0;
        if (from >= 0 && static_cast<u64>(from) + H::CHUNK <= h.ends) {
            Pack<T> packs[H::LOADS];
#pragma unroll
            for (u32 l = 0; l < H::LOADS; ++l) {
                packs[l] = load_pack(h.tokens + from + (l * WARP + lane) * N);
            }
#pragma unroll
            for (u32 l = 0; l < H::LOADS; ++l) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (packs[l].items[j] == last) found |= 1u << (l * N + j);
                }
            }
        } else {
            // The ends of a haystack: tokens one by one, all in flight at once.
            T tokens[H::LOADS * N];
#pragma unroll
            for (u32 bit = 0; bit < H::LOADS * N; ++bit) {
                const i64 at = from + (bit / N * WARP + lane) * N + bit % N;
                const bool inside = at >= 0 && at < static_cast<i64>(h.ends);
                tokens[bit] = inside ? h.tokens[at] : ~last;
            }
#pragma unroll
            for (u32 bit = 0; bit < H::LOADS * N; ++bit) {
                if (tokens[bit] == last) found |= 1u << bit;
            }
        }
        const bool late = known < h.place + static_cast<u64>(from < 0 ? 0 : from);
        if (__any_sync(ALL_LANES, late)) break;

        while (found != 0) {
            const u32 bit = __ffs(found) - 1;
            found &= found - 1;
            const u64 at = static_cast<u64>(from + (bit / N * WARP + lane) * N + bit % N);
            u64 length = 1;
            while (length < longest && length <= at &&
                   h.tokens[at - length] == *(pattern - length)) {
                ++length;
            }
            const u64 key = (longest - length) << PLACE_BITS | (h.place + at);
            if (length >= p.min_ngram) best = min(best, key);
            if (length == longest) break;
        }
        // A match of full length: all else of this warp lies to its right.
        if (__any_sync(ALL_LANES, best <= PLACE_MASK)) {
            best = warp_min(best);
            if (lane == 0 && step > 1) hint.leave(best);
            return best;
        }
    }
    return warp_min(best);
}

// ---- budget -------------------------------------------------------------------

struct Pair {
    i64 drafts;
    i64 committed;
};

INLINE Pair operator+(Pair a, Pair b) { return {a.drafts + b.drafts, a.committed + b.committed}; }

// Sums over the threads before this one, and over all.
INLINE Pair exclusive_sum(Pair own, Pair (&sums)[WARPS], Pair& total) {
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    Pair through = own;
#pragma unroll
    for (u32 o = 1; o < WARP; o *= 2) {
        const i64 drafts = __shfl_up_sync(ALL_LANES, through.drafts, o);
        const i64 committed = __shfl_up_sync(ALL_LANES, through.committed, o);
        if (lane >= o) through = through + Pair{drafts, committed};
    }
    if (lane == WARP - 1) sums[warp] = through;
    __syncthreads();
    Pair before = {0, 0};
    total = {0, 0};
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) {
        if (w < warp) before = before + sums[w];
        total = total + sums[w];
    }
    __syncthreads();
    return {before.drafts + through.drafts - own.drafts,
            before.committed + through.committed - own.committed};
}

struct Shared {
    u64 keys[WARPS];
    Pair sums[WARPS];
    // Of the requests being settled: key, then where drafts come from and go to.
    u64 best[SETTLED];
    u64 target[SETTLED];
    i32 count[SETTLED];
};

// Waits for the records of `requests` requests from `from` on and clears them.
INLINE void collect(const Params& p, Shared& shared, u64 from, u32 requests) {
    const Tagged tagged = {p.nonce};
    const u32 team = p.team_blocks;
    if (team > 1) {
        for (u32 i = threadIdx.x; i < requests; i += THREADS) shared.best[i] = NO_MATCH;
        __syncthreads();
    }
    for (u64 i = threadIdx.x; i < static_cast<u64>(requests) * team; i += THREADS) {
        u64* const record = p.records + 2 * (from * team + i);
        ulonglong2 words = load_relaxed(record);
        while (!tagged.ours(words)) words = load_relaxed(record);
        store_relaxed(record, 0);
        store_relaxed(record + 1, 0);
        const u64 key = Tagged::value(words);
        if (team > 1) {
            atomicMin(&shared.best[i / team], key);
        } else {
            shared.best[i] = key;
        }
    }
    __syncthreads();
    // Nobody looks at the hints of these requests any more.
    for (u32 i = threadIdx.x; i < 2 * requests; i += THREADS) store_relaxed(p.hints + 2 * from + i, 0);
}

// Settles all requests. `request(index)` is the operator's own part.
template <typename T, typename Operator>
INLINE void settle(const Params& p, Shared& shared) {
    const u32 thread = threadIdx.x;
    // `left` starts at the number of requests that wait for their tokens.
    i64 waiting = 0;
    for (u64 i = thread; i < p.batch; i += THREADS) waiting += Operator::request(p, i).waits;
    Pair total;
    exclusive_sum({waiting, 0}, shared.sums, total);
    // Sums over the requests settled before: drafts wanted, tokens committed.
    Pair carried = {0, total.drafts};
    u32 bits = 0;

    for (u64 from = 0; from < p.batch; from += SETTLED) {
        const u32 requests = static_cast<u32>(min(p.batch - from, static_cast<u64>(SETTLED)));
        Request of[ITEMS];
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 at = thread * ITEMS + i;
            if (at < requests) of[i] = Operator::request(p, from + at);
        }
        collect(p, shared, from, requests);

        i64 wanted[ITEMS];
        Pair own = {0, 0};
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 at = thread * ITEMS + i;
            wanted[i] = 0;
            if (at >= requests) continue;
            const Request& r = of[i];
            const u64 key = shared.best[at];
            if (key != NO_MATCH) {
                const u64 place = (key & PLACE_MASK) + 1;
                const bool second = place > r.prompt;
                const u64 candidates = second ? r.prompt + r.step - place : r.prompt - place;
                const u64 room = p.draft_cols > r.slot ? p.draft_cols - r.slot : 0;
                const u64 wish = cut(r.limit, candidates);
                if (wish > room) bits |= BAD_LENGTHS;
                wanted[i] = static_cast<i64>(min(wish, room));
                const T* source = second ? static_cast<const T*>(p.generated) +
                                               (from + at) * p.generated_stride + r.start +
                                               (place - r.prompt)
                                         : static_cast<const T*>(p.input_ids) +
                                               (from + at) * p.input_stride + place;
                shared.best[at] = reinterpret_cast<u64>(source);
                shared.target[at] = reinterpret_cast<u64>(static_cast<T*>(p.draft_tokens) +
                                                          (from + at) * p.draft_stride + r.slot);
            }
            bits |= r.bits;
            own = own + Pair{wanted[i], r.used - r.leaves};
        }
        Pair sum;
        Pair running = carried + exclusive_sum(own, shared.sums, sum);
        carried = carried + sum;
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 at = thread * ITEMS + i;
            if (at >= requests) continue;
            const Request& r = of[i];
            running.committed += r.used - r.leaves;
            const i64 taken = running.drafts + running.committed;
            const i64 threshold = p.threshold;
            const i64 count = taken >= threshold - 1 ? 0 : min(wanted[i], threshold - taken);
            running.drafts += wanted[i];
            shared.count[at] = static_cast<i32>(count);
            p.this_time[from + at] = r.base + static_cast<i32>(count);
        }
        __syncthreads();

        // Eight lanes copy the drafts of a request, four requests in flight.
        constexpr u32 LANES = 8;
        constexpr u32 COPIERS = THREADS / LANES;
        constexpr u32 AHEAD = 4;
        const u32 lane = thread % LANES;
        for (u32 at = thread / LANES; at < requests; at += COPIERS * AHEAD) {
            T token[AHEAD];
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * COPIERS;
                const bool mine = k < requests && static_cast<i32>(lane) < shared.count[k];
                token[a] = mine ? reinterpret_cast<const T*>(shared.best[k])[lane] : T(0);
            }
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                const u32 k = at + a * COPIERS;
                if (k >= requests) break;
                T* const to = reinterpret_cast<T*>(shared.target[k]);
                const T* const source = reinterpret_cast<const T*>(shared.best[k]);
                const i32 count = shared.count[k];
                if (static_cast<i32>(lane) < count) to[lane] = token[a];
                for (i32 j = lane + LANES; j < count; j += LANES) to[j] = source[j];
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
    // Warps of a team in this block, and which of the team's this is.
    const u32 here = p.team_blocks > 1 ? WARPS : p.team_warps;
    const u32 part = blockIdx.x % p.team_blocks;
    const u64 request = p.team_blocks > 1
                            ? blockIdx.x / p.team_blocks
                            : static_cast<u64>(blockIdx.x) * (WARPS / here) + warp / here;
    u64 key = NO_MATCH;
    if (request < p.batch) {
        const Request r = Operator::request(p, request);
        const Hint hint = {p.hints + 2 * request, p.nonce};
        key = search(p, r, static_cast<const T*>(p.input_ids) + request * p.input_stride,
                     static_cast<const T*>(p.generated) + request * p.generated_stride + r.start,
                     part * here + warp % here, here * p.team_blocks, hint);
    }
    if (lane == 0) shared.keys[warp] = key;
    __syncthreads();
    if (warp % here == 0 && request < p.batch) {
        key = warp_min(lane < here ? shared.keys[warp + lane] : NO_MATCH);
        if (lane == 0) Tagged{p.nonce}.store(p.records + 2 * (request * p.team_blocks + part), key);
    }
    if (blockIdx.x == 0) settle<T, Operator>(p, shared);
}
