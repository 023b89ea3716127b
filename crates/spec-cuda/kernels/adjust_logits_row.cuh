// adjust_logits: the data of a block's row, and the search for forbidden tokens.
#pragma once

#include "params/adjust_logits.cuh"

// The number of tokens at the end of a text that are kept in shared memory.
constexpr u32 TAIL = 256;

// The dynamic shared memory of a block.
extern __shared__ uint4 shared_words[];

// The number of the thread among the block's threads, counted from warp `warp` cyclically, so that
// different searches begin in different warps.
INLINE u32 place_from(u32 warp) { return (threadIdx.x - warp * WARP) & (blockDim.x - 1); }

// The elements begin .. end of a list.
struct Part {
    u32 begin;
    u32 end;
};

// The data of a block's row, in shared memory.
struct Row {
    // The last tokens of the text, in reverse order.
    i64 tail[TAIL];
    u32 request;
    // The number of tokens in the request's text, and in its prompt.
    u32 length;
    u32 prompt;
    // The number of drafts on the path from the text to the row.
    u32 depth;
    // If there are more than TAIL drafts, the row of the draft that precedes the last TAIL drafts.
    u32 behind;
    // The index of the first text token to which a penalty applies; NONE if there is no penalty.
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
    i32 min_tokens;
    // Flags raised by the path from the row to the text.
    u32 path_bits;

    // Whether the row's text is too short to end with a stop token.
    INLINE bool forbids_stops() const {
        return static_cast<i64>(length - prompt) + depth < min_tokens;
    }
};

// x, or zero with the sign of x if x is subnormal: spec_core::exact::flushed.
INLINE float flushed(float x) {
    const u32 bits = __float_as_uint(x);
    return (bits & 0x7F800000u) == 0 ? __uint_as_float(bits & 0x80000000u) : x;
}

INLINE float flushed_sum(float a, float b) { return flushed(exact::add(a, b)); }

// 1 / r for r > 0, clamped to 2^-100 .. 2^100: spec_core::exact::sampling::inverse.
INLINE float inverse(float r) {
    const u32 bits = min(max(__float_as_uint(r), 27u << 23), 227u << 23);
    const float mantissa = __uint_as_float((bits & 0x007FFFFFu) | 0x3F800000u);
    return exact::mul(exact::reciprocal(mantissa), __uint_as_float((254u - (bits >> 23)) << 23));
}

// Element `at` of an argument. If the argument is absent, loads from `other`, and the caller
// ignores the value: a load without a branch does not wait for the loads before it.
template <typename T>
INLINE T load_or(const T* list, u64 at, const void* other) {
    return *(list == nullptr ? static_cast<const T*>(other) : list + at);
}

// The part of a list of `len` elements between two offsets; empty, with a flag, if the offsets are
// bad.
INLINE Part part_between(i32 begin, i32 end, u32 len, u32& bits) {
    if (begin >= 0 && begin <= end && static_cast<u32>(end) <= len) {
        return {static_cast<u32>(begin), static_cast<u32>(end)};
    }
    bits |= BAD_LENGTHS;
    return {0, 0};
}

// Like `part_between`, for a list that may be absent and then has no elements.
INLINE Part part_of(const i32* offsets, i32 begin, i32 end, u32 len, u32& bits) {
    return offsets == nullptr ? Part{0, 0} : part_between(begin, end, len, bits);
}

// A length, clamped to 0 .. `max`, with a flag if it was outside.
INLINE u32 cut(i64 given, u32 max, u32& bits) {
    const u32 kept = clamped(given, max);
    if (given != static_cast<i64>(kept)) bits |= BAD_LENGTHS;
    return kept;
}

// Whether a penalty is on: finite, above `min`, and different from `none`, which has no effect.
INLINE bool penalty(const float* penalties, float given, float none, float min, float& value,
                    u32& bits) {
    value = none;
    if (penalties == nullptr) return false;
    given = flushed(given);
    if (!exact::finite(given) || given <= min) {
        bits |= BAD_LENGTHS;
        return false;
    }
    value = given;
    return given != none;
}

// Follows the drafts from a row up to the text, and stores their tokens. Returns the number of
// drafts. By one thread, which does not need the row's request.
INLINE u32 climb(const Params& p, u64 row, Row& s, u32& bits) {
    if (p.parents == nullptr) return 0;
    u32 at = static_cast<u32>(row);
    u32 depth = 0;
#pragma unroll 1
    for (;;) {
        const i32 parent = p.parents[at];
        if (parent == -1) return depth;
        // A path without a cycle has fewer drafts than there are rows.
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

// Fills in the fields of the row, except its drafts and the tail of its request's text. By one
// thread, whose loads do not wait for each other once the request is known.
INLINE u32 survey(const Params& p, i64 request, Row& s) {
    u32 bits = 0;
    const u64 r = static_cast<u64>(request);
    // -1 means padding.
    if (r >= p.request_count) return request == -1 ? 0 : BAD_LENGTHS;
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
    s.length = cut(length, p.max_length, bits);
    s.prompt = cut(prompt, s.length, bits);
    const float all = negative_infinity();
    s.repeats = penalty(p.repetition, repetition, 1.0f, 0.0f, s.repetition, bits);
    s.inverse = inverse(s.repetition);
    s.frequents = penalty(p.frequency, frequency, 0.0f, all, s.frequency, bits);
    s.is_present = penalty(p.presence, presence, 0.0f, all, s.presence, bits);
    s.counts = s.frequents || s.is_present;
    s.start = s.repeats ? 0 : s.counts ? s.prompt : NONE;
    s.biases = part_of(p.bias_offsets, bias_begin, bias_end, p.biases, bits);
    s.words = part_of(p.bad_offsets, bad_begin, bad_end, p.words, bits);
    s.ngram = p.no_repeat_ngram == nullptr ? 0 : static_cast<u32>(max(ngram, 0));
    s.min_tokens = p.min_tokens == nullptr ? 0 : min_tokens;
    return bits;
}

// The text of a row, followed by the row's drafts.
struct Text {
    const Params& p;
    const Row& s;
    // The request's text, as 32-bit halves of 64-bit tokens, or as 32-bit tokens.
    const u32* const halves;
    const u32 wide;

    INLINE Text(const Params& p, const Row& s, u64 request)
        : p(p), s(s), halves(static_cast<const u32*>(p.tokens.data) +
                             (request * p.tokens.stride << p.tokens.wide)),
          wide(static_cast<u32>(p.tokens.wide)) {}

    INLINE u32 len() const { return s.length + s.depth; }
    // A token of the request's text.
    INLINE i64 at(u32 index) const {
        const u32* const token = halves + (static_cast<u64>(index) << wide);
        const u32 low = token[0];
        const u32 high = wide ? token[1] : static_cast<u32>(static_cast<i32>(low) >> 31);
        return static_cast<i64>(static_cast<u64>(high) << 32 | low);
    }
};

// A position in a text, counted from the end, that moves towards the front.
struct Cursor {
    // The row of the draft, if the position is that of a draft.
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

// Whether the text ends in `count` tokens. token(j) returns the j-th of these tokens from the end,
// and is called for j = 0, 1, ... in this order. The text has at least `count` tokens.
template <typename Token>
INLINE bool ends_in(const Text& text, u32 count, Token token) {
    const u32 kept = min(count, TAIL);
#pragma unroll 1
    for (u32 j = 0; j < kept; j++) {
        if (text.s.tail[j] != token(j)) return false;
    }
    Cursor own = {text.s.behind, TAIL};
#pragma unroll 1
    for (u32 j = kept; j < count; j++) {
        if (own.token(text) != token(j)) return false;
        own.move(text);
    }
    return true;
}

// Some tokens of a thread, whose indices differ by `blockDim.x`.
struct Piece {
    i64 tokens[AHEAD];

    // Loads tokens of a request's text that are before `end`.
    INLINE void load(const Text& text, u32 base, u32 end) {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i < end) tokens[j] = text.at(i);
        }
    }
};

INLINE void store(float* to, float x) { *to = x; }
INLINE void store(f16* to, float x) { *to = __float2half_rn(x); }
INLINE void store(bf16* to, float x) { *to = __float2bfloat16_rn(x); }

// The logits of a row. `Given` is a logit as memory has it: a thread issues several loads before it
// converts the first logit, because it would otherwise wait for each load in turn.
template <typename T>
struct TypedLogits {
    using Given = T;
    T* data;

    INLINE TypedLogits(const Params& p, u64 row)
        : data(static_cast<T*>(p.logits.data) + row * p.logits.stride) {}

    INLINE Given operator[](u32 column) const { return data[column]; }
    INLINE float wide(Given given) const { return to_f32(given); }
    INLINE void put(u32 column, float x) const { store(data + column, x); }
};

// Logits of a type that the launch parameters name, so that one kernel has all types.
struct AnyLogits {
    using Given = u32;
    void* data;
    u32 dtype;

    INLINE AnyLogits(const Params& p, u64 row)
        : data(static_cast<u8*>(p.logits.data) + row * p.logits.stride * (p.dtype == F32 ? 4 : 2)),
          dtype(p.dtype) {}

    INLINE Given operator[](u32 column) const {
        return dtype == F32 ? static_cast<const u32*>(data)[column]
                            : static_cast<const u16*>(data)[column];
    }
    // Selections instead of branches: these functions are inlined in many places.
    INLINE float wide(Given given) const {
        const float half = __half2float(__ushort_as_half(static_cast<u16>(given)));
        return dtype == F32    ? __uint_as_float(given)
               : dtype == BF16 ? __uint_as_float(given << 16)
                               : half;
    }
    INLINE void put(u32 column, float x) const {
        const u16 half = dtype == BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                       : __half_as_ushort(__float2half_rn(x));
        if (dtype == F32) {
            static_cast<float*>(data)[column] = x;
        } else {
            static_cast<u16*>(data)[column] = half;
        }
    }
};

// A logit after penalties, for a token that was generated `count` times. The logit is not
// subnormal.
INLINE float penalised(const Row& s, bool is_in_text, u32 count, float x) {
    if (s.repeats && is_in_text) x = flushed(exact::mul(x, x > 0.0f ? s.inverse : s.repetition));
    if (s.frequents && count > 0) {
        x = flushed_sum(x, -flushed(exact::mul(s.frequency, __uint2float_rn(count))));
    }
    if (s.is_present && count > 0) x = flushed_sum(x, -s.presence);
    return x;
}

// The words of one class of a row's columns. A word has 32 consecutive columns, each the logit of a
// token. Class `class_index` of 2^bits classes has the words whose low bits are `class_index`.
struct Words {
    u32 vocab;
    // The token of the first column, and the number of columns that stand for a token.
    u32 first_token;
    u32 columns;
    u32 class_index;
    u32 bits;
    // Flags for tokens outside the vocabulary.
    u32 flags;

    INLINE Words(const Params& p)
        : vocab(p.vocab), first_token(p.first_token), columns(p.columns), class_index(0),
          bits(p.class_bits), flags(0) {}

    // The number of a token within the class; NONE if the token has no column or is in another
    // class.
    INLINE u32 place(i64 given) {
        // A token before the first column gives a number that no column has.
        const u64 at = static_cast<u64>(given) - first_token;
        if (at >= columns) {
            if (static_cast<u64>(given) >= vocab) flags |= OUT_OF_RANGE;
            return NONE;
        }
        const u32 column = static_cast<u32>(at);
        const u32 word = column / 32;
        if ((word & ((1u << bits) - 1)) != class_index) return NONE;
        return (word >> bits) * 32 + column % 32;
    }

    INLINE u32 column_at(u32 place) const {
        return (((place / 32) << bits) + class_index) * 32 + place % 32;
    }
};

INLINE void set_bit(u32* words, u32 place) {
    if (place != NONE) atomicOr(words + place / 32, 1u << place % 32);
}

// Sets the logits of forbidden tokens to -infinity. After a barrier that follows all other writes.
template <typename Logits>
INLINE void write_forbidden(const Words& own, const u32* forbidden, u32 words,
                            const Logits& logits) {
#pragma unroll 1
    for (u32 at = threadIdx.x; at < words; at += blockDim.x) {
#pragma unroll 1
        for (u32 word = forbidden[at]; word != 0; word &= word - 1) {
            logits.put(own.column_at(at * 32 + __ffs(word) - 1), negative_infinity());
        }
    }
}

INLINE void forbid_stops(const Params& p, const Row& s, Words& own, u32* forbidden) {
    if (!s.forbids_stops()) return;
    const i32* const stops = p.stop_tokens.data + s.request * p.stop_tokens.stride;
#pragma unroll 1
    for (u32 i = place_from(2); i < p.stops; i += blockDim.x) {
        if (stops[i] != -1) set_bit(forbidden, own.place(stops[i]));
    }
}

INLINE void forbid_words(const Params& p, const Text& text, Words& own, u32* forbidden) {
    const Row& s = text.s;
    const u32 searched = text.len() - (p.words_in_prompt ? 0 : s.prompt);
#pragma unroll 1
    for (u32 word = s.words.begin + place_from(3); word < s.words.end; word += blockDim.x) {
        const Part part = part_between(p.word_offsets[word], p.word_offsets[word + 1],
                                       p.word_tokens_count, own.flags);
        if (part.begin == part.end) {
            own.flags |= BAD_LENGTHS;
            continue;
        }
        const u32 last = part.end - 1;
        const u32 others = last - part.begin;
        const auto other = [&](u32 j) { return static_cast<i64>(p.word_tokens[last - 1 - j]); };
        if (others <= searched && ends_in(text, others, other)) {
            set_bit(forbidden, own.place(p.word_tokens[last]));
        }
    }
}

INLINE void forbid_ngrams(const Params& p, const Text& text, u64 row, Words& own, u32* forbidden) {
    const Row& s = text.s;
    if (s.ngram == 0 || s.ngram > text.len()) return;
    const u32 before = s.ngram - 1;
    // Tokens of the request's text that would complete a repeated n-gram.
#pragma unroll 1
    for (u32 base = before; base < s.length; base += blockDim.x * AHEAD) {
        // Comparing the token before excludes most positions.
        u32 matches = 0;
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            bool match = i < s.length;
            if (match && before > 0) match = text.at(i - 1) == s.tail[0];
            matches |= static_cast<u32>(match) << j;
        }
#pragma unroll 1
        for (; matches != 0; matches &= matches - 1) {
            const u32 j = __ffs(matches) - 1;
            const u32 end = base + threadIdx.x + j * blockDim.x;
            if (ends_in(text, before, [&](u32 k) { return text.at(end - 1 - k); })) {
                set_bit(forbidden, own.place(text.at(end)));
            }
        }
    }
    // Drafts that would complete a repeated n-gram.
    const u32 ends = min(s.depth, text.len() - before);
    Cursor end = {static_cast<u32>(row), 0};
#pragma unroll 1
    for (u32 back = 0; back < ends; back++, end.move(text)) {
        if (back % blockDim.x != threadIdx.x) continue;
        Cursor other = end;
        const auto token = [&](u32) {
            other.move(text);
            return other.token(text);
        };
        if (ends_in(text, before, token)) set_bit(forbidden, own.place(end.token(text)));
    }
}

// Sets the bits of the class's forbidden tokens.
INLINE void forbid(const Params& p, const Text& text, u64 row, Words& own, u32* forbidden) {
    forbid_stops(p, text.s, own, forbidden);
    forbid_words(p, text, own, forbidden);
    forbid_ngrams(p, text, row, own, forbidden);
}
