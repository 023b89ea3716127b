// adjust_logits: bias, penalties and tokens that may not come next, on logits in place.
//
// A block owns a row, or one of 2, 4, .. classes of the row's tokens: those with equal low
// bits. It gathers the distinct tokens that anything touches in a hash table in shared memory
// (open addressing, a slot a token), in any order, since all that is gathered is counts, marks
// and the place of a token's first bias:
//
//     keys    | 17    | empty | 4     | ...     the token
//     values  | 3, T  |       | 0, F  | ...     times generated; stands in the text; forbidden
//     first   | 5     |       | none  | ...     its first bias in the request's list
//
// Then a thread a slot reads the token's logit, applies the rules in their order, and writes it
// once. Threads take tokens of the text, biases, stop tokens and words in turn; each of the three
// short lists starts at another warp, so that no warp waits for all of them. A block uses as many
// slots of its table as its class needs: a text may have far more room than tokens. A class whose
// tokens do not fit the table is split into two: nothing has been written by then. A class of at
// most PROBES tokens always fits, so splitting ends.
//
// Bytes: 32 texts of 4096 tokens of 4 bytes are 0.5 MB, and as much again for a sector of 32
// bytes a touched logit and way: 8.4 MB if all tokens differ. Latency decides: a trip to memory
// for the row's lengths, one for its text, one for its logits.
#include "params/adjust_logits.cuh"

constexpr u32 MAX_THREADS = 1024;
// Slots that are looked at for a token.
constexpr u32 PROBES = 128;
// Tokens at the end of a text that are kept in shared memory.
constexpr u32 TAIL = 256;
// Tokens of the text that a thread has in flight.
constexpr u32 AHEAD = 4;
// Logits that a thread has in flight.
constexpr u32 LOGITS_AHEAD = 4;
// The fewest slots of a table, as a power of two.
constexpr u32 MIN_SLOT_BITS = 9;
// A row's tokens are shared between blocks while a block has more than so many.
constexpr u32 BLOCK_TOKENS = 512;

// Of a value in the table.
constexpr u32 FORBIDDEN = 1u << 31;
constexpr u32 IN_TEXT = 1u << 30;
constexpr u32 REPEATED_BIAS = 1u << 29;
constexpr u32 COUNT = REPEATED_BIAS - 1;

// A part of a list.
struct Part {
    u32 begin;
    u32 end;
};

// What a block knows of its row, in shared memory.
struct Row {
    // The last tokens of the text, the last first.
    i64 tail[TAIL];
    u32 request;
    // Tokens of the request's text, and of its prompt.
    u32 length;
    u32 prompt;
    // Drafts on the way to the row.
    u32 depth;
    // The row of draft TAIL, counted from the last, where there are more.
    u32 behind;
    // The first token of the text to which a penalty applies.
    u32 start;
    u32 ngram;
    Part biases;
    Part words;
    float repetition;
    float inverse;
    float frequency;
    float presence;
    // Which penalties are on, and whether stop tokens are forbidden.
    bool repeats;
    bool counts;
    bool frequents;
    bool is_present;
    bool there;
    i32 min_tokens;
    // Flags of the way from the row to the text.
    u32 way_bits;

    // Whether the row's text is too short for a stop token.
    INLINE bool forbids_stops() const {
        return static_cast<i64>(length - prompt) + depth < min_tokens;
    }
};

// 1 / r for r > 0, cut to 2^-100 .. 2^100: spec_core::exact::sampling::inverse.
INLINE float inverse(float r) {
    const u32 bits = min(max(__float_as_uint(r), 27u << 23), 227u << 23);
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    return exact::mul(exact::reciprocal(mantissa), __uint_as_float((254u - (bits >> 23)) << 23));
}

// Element `at` of an argument. Where the argument is absent the load goes to `other`, whose value
// nobody uses: a load without a branch around it does not wait for the loads before it.
template <typename T>
INLINE T load_or(const T* list, u64 at, const void* other) {
    return *(list == nullptr ? static_cast<const T*>(other) : list + at);
}

// The part of a list of `len` elements between two offsets, empty where the offsets are bad.
INLINE Part part_between(i32 begin, i32 end, u32 len, u32& bits) {
    if (begin >= 0 && begin <= end && static_cast<u32>(end) <= len) {
        return {static_cast<u32>(begin), static_cast<u32>(end)};
    }
    bits |= BAD_LENGTHS;
    return {0, 0};
}

// Offsets of a list that may be absent, which has no part.
INLINE Part part_of(const i32* offsets, i32 begin, i32 end, u32 len, u32& bits) {
    return offsets == nullptr ? Part{0, 0} : part_between(begin, end, len, bits);
}

// A length, cut to 0 .. most.
INLINE u32 cut(i64 given, u32 most, u32& bits) {
    const u32 kept = clamped(given, most);
    if (given != static_cast<i64>(kept)) bits |= BAD_LENGTHS;
    return kept;
}

// Whether a penalty is on: a number, above `least`, and not the one that does nothing.
INLINE bool penalty(const float* penalties, float given, float none, float least, float& value,
                    u32& bits) {
    value = none;
    if (penalties == nullptr) return false;
    if (!exact::finite(given) || given <= least) {
        bits |= BAD_LENGTHS;
        return false;
    }
    value = given;
    // By bits: -0 is subtracted, since that makes 0 of a logit of -0.
    return __float_as_uint(given) != __float_as_uint(none);
}

// Climbs from a row to the text, noting the tokens on the way. By one thread, which needs nothing
// of the row's request.
INLINE u32 climb(const Params& p, u64 row, Row& s, u32& bits) {
    if (p.parents == nullptr) return 0;
    u32 at = static_cast<u32>(row);
    u32 depth = 0;
    for (;;) {
        const i32 parent = p.parents[at];
        if (parent == -1) return depth;
        // A way without a cycle has fewer drafts than there are rows.
        if (static_cast<u32>(parent) >= p.rows || depth + 1 >= p.rows) {
            bits |= BAD_LENGTHS;
            return 0;
        }
        if (depth < TAIL) s.tail[depth] = p.draft_tokens[at];
        at = static_cast<u32>(parent);
        depth += 1;
        if (depth == TAIL) s.behind = at;
    }
}

// Fills in what is known of the row, but for its drafts and the tail of its request's text. By one
// thread, whose loads do not wait for each other once the request is known.
INLINE u32 survey(const Params& p, u64 row, Row& s) {
    u32 bits = 0;
    const i64 request = p.requests == nullptr ? static_cast<i64>(row) : p.requests[row];
    // A negative one is too large, too.
    s.there = static_cast<u64>(request) < p.request_count;
    if (!s.there) return BAD_LENGTHS;
    const u64 r = static_cast<u64>(request);
    const void* const other = p.lengths.data;
    const i64 length = p.lengths[r];
    const i64 prompt = p.prompt_lengths[r];
    const float repetition = load_or(p.repetition, r, other);
    const float frequency = load_or(p.frequency, r, other);
    const float presence = load_or(p.presence, r, other);
    const i32 bias_begin = load_or(p.bias_offsets, r, other);
    const i32 bias_end = load_or(p.bias_offsets, r + 1, other);
    const i32 bad_begin = load_or(p.bad_offsets, r, other);
    const i32 bad_end = load_or(p.bad_offsets, r + 1, other);
    const i32 ngram = load_or(p.no_repeat_ngram, r, other);
    const i32 min_tokens = load_or(p.min_tokens, r, other);
    s.request = static_cast<u32>(r);
    s.length = cut(length, p.most, bits);
    s.prompt = cut(prompt, s.length, bits);
    const float all = negative_infinity();
    s.repeats = penalty(p.repetition, repetition, 1.0f, 0.0f, s.repetition, bits);
    s.inverse = inverse(s.repetition);
    s.frequents = penalty(p.frequency, frequency, 0.0f, all, s.frequency, bits);
    s.is_present = penalty(p.presence, presence, 0.0f, all, s.presence, bits);
    s.counts = s.frequents || s.is_present;
    s.start = s.repeats ? 0 : s.counts ? s.prompt : s.length;
    s.biases = part_of(p.bias_offsets, bias_begin, bias_end, p.biases, bits);
    s.words = part_of(p.bad_offsets, bad_begin, bad_end, p.words, bits);
    s.ngram = p.no_repeat_ngram == nullptr ? 0 : static_cast<u32>(max(ngram, 0));
    s.min_tokens = p.min_tokens == nullptr ? 0 : min_tokens;
    return bits;
}

// A row's text, its drafts included.
struct Text {
    const Params& p;
    const Row& s;
    // The request's text, of the one width or the other.
    const i32* narrow;
    const i64* wide;

    INLINE Text(const Params& p, const Row& s)
        : p(p), s(s),
          narrow(static_cast<const i32*>(p.tokens.data) + s.request * p.tokens.stride),
          wide(static_cast<const i64*>(p.tokens.data) + s.request * p.tokens.stride) {}

    INLINE u32 len() const { return s.length + s.depth; }
    // A token of the request's text.
    INLINE i64 at(u32 index) const { return p.tokens.wide ? wide[index] : narrow[index]; }
};

// A place in a text, counted from its end, that moves to the front.
struct Cursor {
    // The row of the draft, where the place is a draft's.
    u32 row;
    u32 back;

    INLINE i64 token(const Text& text) const {
        const Row& s = text.s;
        if (back < s.depth) return text.p.draft_tokens[row];
        return text.at(s.length - 1 - (back - s.depth));
    }

    INLINE void move(const Text& text) {
        if (back < text.s.depth) row = static_cast<u32>(text.p.parents[row]);
        back += 1;
    }
};

// Whether the text ends in `count` tokens, which `token(j)` gives from the last on, for j = 0, 1
// and so on in this order. The text has so many.
template <typename Token>
INLINE bool ends_in(const Text& text, u32 count, Token token) {
    const u32 kept = min(count, TAIL);
    for (u32 j = 0; j < kept; j++) {
        if (text.s.tail[j] != token(j)) return false;
    }
    Cursor own = {text.s.behind, TAIL};
    for (u32 j = kept; j < count; j++) {
        if (own.token(text) != token(j)) return false;
        own.move(text);
    }
    return true;
}

// A class of tokens: those whose low bits are `own`.
struct Class {
    u32 own;
    // How many classes of this size there are, a power of two.
    u32 all;

    INLINE bool has(u32 token) const { return (token & (all - 1)) == own; }
};

// Keys, values and first biases of a table, in this order.
extern __shared__ u32 slots[];

// The slot of a token among keys from `at` on, which the token takes where it has none; NONE where
// there is no place. A function of its own, since four copies of a loop that waits for shared
// memory are slower to fetch than to call.
__device__ __noinline__ u32 find_slot(u32 at, u32 mask, u32 token) {
    for (u32 probe = 0; probe < PROBES; probe++) {
        u32 found = *static_cast<volatile u32*>(slots + at);
        if (found == NONE) {
            found = atomicCAS(slots + at, NONE, token);
            if (found == NONE) return at;
        }
        if (found == token) return at;
        at = (at + 1) & mask;
    }
    return NONE;
}

struct Table {
    u32* keys;
    u32* values;
    // Absent where there is no bias.
    u32* first;
    u32 mask;
    u32 shift;
    u32 vocab;
    Class own;
    u32 bits;
    bool failed;

    INLINE Table(const Params& p, u32 slot_bits)
        : keys(slots), values(keys + (1u << slot_bits)), first(values + (1u << slot_bits)),
          mask((1u << slot_bits) - 1), shift(32 - slot_bits), vocab(p.vocab), own{0, 1}, bits(0),
          failed(false) {}

    // Keys and first biases become NONE, values 0.
    INLINE void clear(bool has_biases) {
        for (u32 at = threadIdx.x; at <= mask; at += blockDim.x) {
            keys[at] = NONE;
            values[at] = 0;
            if (has_biases) first[at] = NONE;
        }
    }

    // The slot of a token, or NONE: it is outside the vocabulary, of another class, or finds no
    // place.
    INLINE u32 slot(i64 given) {
        if (given < 0 || given >= vocab) {
            bits |= OUT_OF_RANGE;
            return NONE;
        }
        const u32 token = static_cast<u32>(given);
        if (!own.has(token)) return NONE;
        const u32 at = find_slot(token * 0x9E3779B1u >> shift, mask, token);
        failed |= at == NONE;
        return at;
    }

    INLINE void mark(i64 token, u32 mark) {
        const u32 at = slot(token);
        if (at != NONE) atomicOr(values + at, mark);
    }

    // A token to which a penalty applies.
    INLINE void penalise(const Row& s, i64 token, bool generated) {
        const u32 at = slot(token);
        if (at == NONE) return;
        if (generated && s.counts) atomicAdd(values + at, 1u);
        // The mark is the same whoever sets it, and never goes.
        if (s.repeats && !(*static_cast<volatile u32*>(values + at) & IN_TEXT)) {
            atomicOr(values + at, IN_TEXT);
        }
    }
};

// The thread's place among the block's threads, counted from warp `warp`.
INLINE u32 place_from(u32 warp) { return (threadIdx.x - warp * WARP) & (blockDim.x - 1); }

INLINE void gather_biases(const Params& p, const Row& s, Table& table) {
    for (u32 i = s.biases.begin + place_from(1); i < s.biases.end; i += blockDim.x) {
        const u32 at = table.slot(p.bias_tokens[i]);
        if (at == NONE) continue;
        const u32 before = atomicMin(table.first + at, i);
        if (before != NONE) atomicOr(table.values + at, REPEATED_BIAS);
    }
}

// Tokens of the text that a thread has asked for.
struct Ahead {
    i64 tokens[AHEAD];

    // Asks for those from `base` on.
    INLINE void load(const Text& text, u32 base) {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i < text.s.length) tokens[j] = text.at(i);
        }
    }
};

// Of the text's tokens `ahead` has the first ones.
INLINE void gather_text(const Text& text, Ahead& ahead, Table& table) {
    const Row& s = text.s;
    const u32 step = blockDim.x * AHEAD;
#pragma unroll 1
    for (u32 base = s.start; base < s.length; base += step) {
        Ahead next;
        next.load(text, base + step);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i < s.length) table.penalise(s, ahead.tokens[j], i >= s.prompt);
        }
        ahead = next;
    }
    if (!s.repeats && !s.counts) return;
    for (u32 j = threadIdx.x; j < min(s.depth, TAIL); j += blockDim.x) {
        table.penalise(s, s.tail[j], true);
    }
    if (threadIdx.x == 0 && s.depth > TAIL) {
        for (Cursor way = {s.behind, TAIL}; way.back < s.depth; way.move(text)) {
            table.penalise(s, way.token(text), true);
        }
    }
}

INLINE void gather_stops(const Params& p, const Row& s, Table& table) {
    if (!s.forbids_stops()) return;
    const i32* const stops = p.stop_tokens.data + s.request * p.stop_tokens.stride;
    for (u32 i = place_from(2); i < p.stops; i += blockDim.x) {
        if (stops[i] != -1) table.mark(stops[i], FORBIDDEN);
    }
}

INLINE void gather_words(const Params& p, const Text& text, Table& table) {
    const Row& s = text.s;
    const u32 searched = text.len() - (p.words_in_prompt ? 0 : s.prompt);
    for (u32 word = s.words.begin + place_from(3); word < s.words.end; word += blockDim.x) {
        const Part part = part_between(p.word_offsets[word], p.word_offsets[word + 1],
                                       p.word_tokens_count, table.bits);
        if (part.begin == part.end) {
            table.bits |= BAD_LENGTHS;
            continue;
        }
        const u32 last = part.end - 1;
        const u32 others = last - part.begin;
        const auto other = [&](u32 j) { return static_cast<i64>(p.word_tokens[last - 1 - j]); };
        if (others <= searched && ends_in(text, others, other)) {
            table.mark(p.word_tokens[last], FORBIDDEN);
        }
    }
}

INLINE void gather_ngrams(const Params& p, const Text& text, u64 row, Table& table) {
    const Row& s = text.s;
    if (s.ngram == 0 || s.ngram > text.len()) return;
    const u32 before = s.ngram - 1;
    // Tokens of the request's text that end an n-gram.
#pragma unroll 1
    for (u32 base = before; base < s.length; base += blockDim.x * AHEAD) {
        // Most are ruled out by the token before them.
        u32 may = 0;
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            bool is_it = i < s.length;
            if (is_it && before > 0) is_it = text.at(i - 1) == s.tail[0];
            may |= static_cast<u32>(is_it) << j;
        }
#pragma unroll 1
        for (; may != 0; may &= may - 1) {
            const u32 j = __ffs(may) - 1;
            const u32 end = base + threadIdx.x + j * blockDim.x;
            if (ends_in(text, before, [&](u32 k) { return text.at(end - 1 - k); })) {
                table.mark(text.at(end), FORBIDDEN);
            }
        }
    }
    // Drafts that do.
    const u32 ends = min(s.depth, text.len() - before);
    Cursor end = {static_cast<u32>(row), 0};
    for (u32 back = 0; back < ends; back++, end.move(text)) {
        if (back % blockDim.x != threadIdx.x) continue;
        Cursor other = end;
        const auto token = [&](u32) {
            other.move(text);
            return other.token(text);
        };
        if (ends_in(text, before, token)) table.mark(end.token(text), FORBIDDEN);
    }
}

INLINE void store(float* to, float x) { *to = x; }
INLINE void store(f16* to, float x) { *to = __float2half_rn(x); }
INLINE void store(bf16* to, float x) { *to = __float2bfloat16_rn(x); }

// A token's logit after all rules.
INLINE float adjusted(const Params& p, const Row& s, const Table& table, u32 at, u32 token,
                      float x) {
    const u32 value = table.values[at];
    if (value & FORBIDDEN) return negative_infinity();
    const u32 first = p.biases == 0 ? NONE : table.first[at];
    if (first != NONE) {
        x = exact::add(x, p.bias_values[first]);
        if (value & REPEATED_BIAS) {
            for (u32 i = first + 1; i < s.biases.end; i++) {
                if (p.bias_tokens[i] == static_cast<i32>(token)) {
                    x = exact::add(x, p.bias_values[i]);
                }
            }
        }
    }
    if (s.repeats && (value & IN_TEXT)) x = exact::mul(x, x > 0.0f ? s.inverse : s.repetition);
    const u32 count = value & COUNT;
    if (s.frequents && count > 0) {
        x = exact::sub(x, exact::mul(s.frequency, __uint2float_rn(count)));
    }
    if (s.is_present && count > 0) x = exact::sub(x, s.presence);
    return x;
}

// Adjusts the logits of the tokens of the table. A thread asks for some logits before it writes
// the first, which would make it wait for each in turn.
template <typename T>
INLINE void finish(const Params& p, const Row& s, const Table& table, T* logits) {
#pragma unroll 1
    for (u32 base = threadIdx.x; base <= table.mask; base += blockDim.x * LOGITS_AHEAD) {
        u32 tokens[LOGITS_AHEAD];
        T given[LOGITS_AHEAD];
#pragma unroll
        for (u32 j = 0; j < LOGITS_AHEAD; j++) {
            const u32 at = base + j * blockDim.x;
            tokens[j] = at <= table.mask ? table.keys[at] : NONE;
            if (tokens[j] != NONE) given[j] = logits[tokens[j]];
        }
#pragma unroll
        for (u32 j = 0; j < LOGITS_AHEAD; j++) {
            const u32 token = tokens[j];
            if (token == NONE) continue;
            const u32 at = base + j * blockDim.x;
            store(logits + token, adjusted(p, s, table, at, token, to_f32(given[j])));
        }
    }
}

// The most tokens that are put into a table of so many slots: 5/8 of them.
INLINE u64 room(u32 slot_bits) { return 5ull << slot_bits >> 3; }

// The tokens of a row that anything touches, if none stands twice.
INLINE u64 touched(const Params& p, const Text& text) {
    const Row& s = text.s;
    u64 tokens = static_cast<u64>(s.biases.end - s.biases.begin) + (s.words.end - s.words.begin);
    if (s.forbids_stops()) tokens += p.stops;
    if (s.ngram > 0) {
        tokens += text.len();
    } else if (s.repeats || s.counts) {
        tokens += s.length - s.start + s.depth;
    }
    return min(tokens, static_cast<u64>(p.vocab));
}

template <typename T>
INLINE void adjust(const Params& p) {
    __shared__ Row s;
    const u64 row = blockIdx.x;
    u32 bits = 0;
    if (threadIdx.x == 0) bits = survey(p, row, s);
    // By another warp, at the same time.
    if (threadIdx.x == WARP) {
        s.way_bits = 0;
        s.depth = climb(p, row, s, s.way_bits);
    }
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.y == 0) raise(p.flags, s.there ? bits | s.way_bits : bits);
    if (!s.there) return;
    const Text text(p, s);
    const u64 tokens = touched(p, text);
    // Classes for the row's blocks, and more where their tables would be too full.
    u32 classes = 1;
    while (classes < gridDim.y && tokens > static_cast<u64>(classes) * BLOCK_TOKENS) classes *= 2;
    while (classes * room(p.slot_bits) < tokens) classes *= 2;
    if (blockIdx.y >= classes) return;
    u32 slot_bits = MIN_SLOT_BITS;
    while (slot_bits < p.slot_bits && classes * room(slot_bits) < tokens) slot_bits += 1;
    Ahead ahead;
    ahead.load(text, s.start);
    for (u32 j = s.depth + threadIdx.x; j < min(text.len(), TAIL); j += blockDim.x) {
        s.tail[j] = text.at(s.length - 1 - (j - s.depth));
    }

    Table table(p, slot_bits);
    T* const logits = static_cast<T*>(p.logits.data) + row * p.logits.stride;
    bool again = false;
#pragma unroll 1
    for (u32 first = blockIdx.y; first < classes; first += gridDim.y) {
        Class own = {first, classes};
        for (;;) {
            if (again) ahead.load(text, s.start);
            table.clear(p.biases != 0);
            table.own = own;
            table.failed = false;
            // The first time it is the tail, too, that has to be there.
            __syncthreads();
            gather_biases(p, s, table);
            gather_text(text, ahead, table);
            gather_stops(p, s, table);
            gather_words(p, text, table);
            gather_ngrams(p, text, row, table);
            if (__syncthreads_or(table.failed)) {
                // The lower half of the class next; the upper half follows it.
                own.all *= 2;
                again = true;
                continue;
            }
            finish(p, s, table, logits);
            // A thread clears slots that others gather into.
            __syncthreads();
            again = true;
            // Out of the upper halves that are done, then to the upper half of a lower one.
            while (own.all > classes && own.own >= own.all / 2) {
                own.all /= 2;
                own.own -= own.all;
            }
            if (own.all == classes) break;
            own.own += own.all / 2;
        }
    }
    bits = __reduce_or_sync(ALL_LANES, table.bits);
    if (lane_id() == 0) raise(p.flags, bits);
}

SPEC_KERNEL(adjust_logits_f32, adjust<float>, Params, MAX_THREADS)
SPEC_KERNEL(adjust_logits_f16, adjust<f16>, Params, MAX_THREADS)
SPEC_KERNEL(adjust_logits_bf16, adjust<bf16>, Params, MAX_THREADS)
