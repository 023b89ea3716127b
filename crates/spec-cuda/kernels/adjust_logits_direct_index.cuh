// adjust_logits for few rows, so that each row has several blocks: an array with an entry for each
// token of the block's class.
//
//     entries    for each token: how often it was generated; marks for a token that is in the
//                prompt, has a bias, or has several biases
//     forbidden  a bit for each token: 1 if the token is forbidden
//
// Threads first mark the entries of all tokens of the text and of the biases, in any order. Then
// they visit the same tokens again. The first thread that visits an entry takes it and leaves an
// empty entry: that thread reads the token's logit, applies the rules in order, and writes the
// logit once. While logits are in flight, threads look for forbidden tokens, whose logits are
// written last. No entry needs a search, and entries that no token marked are never visited.
//
// With DRY there is one more array, `matches`, with a byte for each token: how long a sequence the
// token would repeat, 0 if DRY does not penalise it. Threads mark these bytes before the first
// entry is taken. Tokens with such a byte are finished last, after a barrier, by a pass over the
// array.
//
// An entry has 16 bits if the number of generated tokens of the text fits 13 bits. Otherwise an
// entry has 32 bits, and the class is processed in two halves.
#pragma once

#include "adjust_logits_dry.cuh"

namespace direct {

// The low bits of an entry are marks: the token is in the prompt, has a bias, has several biases.
// The other bits count how often the token was generated.
constexpr u32 IN_PROMPT = 1;
constexpr u32 BIASED = 2;
constexpr u32 REPEATED_BIAS = 4;
constexpr u32 COUNT_SHIFT = 3;
constexpr u32 GENERATED = 1u << COUNT_SHIFT;
static_assert(MAX_TOKENS <= ~0u / GENERATED + 1);
// The largest count of an entry of 16 bits.
constexpr u32 NARROW_COUNT = 0xFFFFu >> COUNT_SHIFT;

// One class of a row's tokens.
template <bool WITH_DRY>
struct Class : Words {
    static constexpr bool DRY = WITH_DRY;
    // Words of shared memory for 32 tokens: entries of 16 bits, a word of bits, and bytes.
    static constexpr u32 WORDS = 16 + 1 + (DRY ? 8 : 0);
    static_assert(4 * WORDS == (DRY ? DIRECT_DRY_WORD : DIRECT_WORD));

    u32* entries;
    u32* forbidden;
    u32* matches;
    // 1 if a word holds two entries, 0 if it holds one.
    u32 pack;

    INLINE Class(const Params& p)
        : Words(p), entries(reinterpret_cast<u32*>(shared_words)),
          forbidden(entries + p.class_words * 16), matches(forbidden + p.class_words), pack(1) {}

    INLINE static void clear(const Params& p) {
#pragma unroll 4
        for (u32 at = threadIdx.x; at < p.class_words * WORDS / 4; at += blockDim.x) {
            shared_words[at] = make_uint4(0, 0, 0, 0);
        }
    }

    INLINE u32 shift(u32 place) const { return (place & pack) * 16; }
    INLINE u32 entry_of(u32 word, u32 place) const {
        return word >> shift(place) & (0xFFFFFFFFu >> 16 * pack);
    }

    INLINE void count(u32 place) {
        if (place != NONE) atomicAdd(entries + (place >> pack), GENERATED << shift(place));
    }

    INLINE void mark(u32 place, u32 mark) {
        if (place != NONE) atomicOr(entries + (place >> pack), mark << shift(place));
    }

    // Marks the entry of a token with a bias.
    INLINE void mark_biased(u32 place) {
        if (place == NONE) return;
        const u32 word = atomicOr(entries + (place >> pack), BIASED << shift(place));
        if (entry_of(word, place) & BIASED) mark(place, REPEATED_BIAS);
    }

    // Takes an entry; returns 0 if it is empty, because another thread has taken it.
    INLINE u32 take_biased(u32 place) {
        if (place == NONE) return 0;
        const u32 others = ~((0xFFFFFFFFu >> 16 * pack) << shift(place));
        return entry_of(atomicAnd(entries + (place >> pack), others), place);
    }

    // Takes an entry without a bias. Entries with a bias are taken by `finish_biases`, and entries
    // of tokens that DRY penalises by `finish_matches`.
    INLINE u32 take(u32 place) {
        if (place == NONE) return 0;
        if constexpr (DRY) {
            if (byte_at(matches, place) != 0) return 0;
        }
        const u32 word = *static_cast<volatile u32*>(entries + (place >> pack));
        const u32 entry = entry_of(word, place);
        return entry == 0 || (entry & BIASED) ? 0 : take_biased(place);
    }
};

// The places in the class of a piece's tokens to which a penalty applies; NONE for other tokens.
struct Places {
    u32 at[AHEAD];

    // For a text's tokens from `base` on, where the last drafts follow the request's text.
    template <typename Class>
    INLINE Places(const Piece& piece, const Text& text, u32 base, Class& own) {
        const Row& s = text.s;
        const u32 end = s.length + min(s.depth, TAIL);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            at[j] = NONE;
            if (i < s.start || i >= end) continue;
            at[j] = own.place(i < s.length ? piece.tokens[j] : s.tail[i - s.length]);
        }
    }

    template <typename Class>
    INLINE void mark(const Row& s, u32 base, Class& own) const {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i >= s.prompt) {
                own.count(at[j]);
            } else {
                own.mark(at[j], IN_PROMPT);
            }
        }
    }
};

// A logit after penalties.
INLINE float penalised(const Row& s, u32 entry, float x) {
    const u32 count = entry >> COUNT_SHIFT;
    return ::penalised(s, count > 0 || (entry & IN_PROMPT), count, x);
}

// Entries that a thread has taken, and their logits. A thread issues several loads before it writes
// the first logit, because it would otherwise wait for each load in turn.
template <typename Logits>
struct Taken {
    u32 entries[AHEAD];
    typename Logits::Given given[AHEAD];

    template <typename Class>
    INLINE Taken(const Places& places, Class& own, const Logits& logits) {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) entries[j] = own.take(places.at[j]);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (entries[j] != 0) given[j] = logits[own.column_at(places.at[j])];
        }
    }

    INLINE void finish(const Row& s, const Places& places, const Words& own,
                       const Logits& logits) const {
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (entries[j] == 0) continue;
            const float x = penalised(s, entries[j], flushed(logits.wide(given[j])));
            logits.put(own.column_at(places.at[j]), x);
        }
    }
};

// Calls found(place) for the tokens of drafts before the last TAIL tokens. By one thread; rarely
// needed.
template <typename Class, typename Found>
INLINE void each_far_draft(const Text& text, Class& own, Found found) {
    const Row& s = text.s;
    if (threadIdx.x != 0 || s.depth <= TAIL || s.start >= s.length + s.depth) return;
#pragma unroll 1
    for (Cursor cursor = {s.behind, TAIL}; cursor.back < s.depth; cursor.move(text)) {
        found(own.place(cursor.token(text)));
    }
}

template <typename Class, typename Logits>
INLINE void finish_biases(const Params& p, const Row& s, Class& own, const Logits& logits) {
#pragma unroll 1
    for (u32 i = s.biases.begin + place_from(1); i < s.biases.end; i += blockDim.x) {
        const i32 token = p.bias_tokens[i];
        const u32 place = own.place(token);
        const u32 entry = own.take_biased(place);
        if (entry == 0) continue;
        const u32 column = own.column_at(place);
        float x = flushed(logits.wide(logits[column]));
        if (entry & REPEATED_BIAS) {
#pragma unroll 1
            for (u32 j = s.biases.begin; j < s.biases.end; j++) {
                if (p.bias_tokens[j] == token) x = flushed_sum(x, flushed(p.bias_values[j]));
            }
        } else {
            x = flushed_sum(x, flushed(p.bias_values[i]));
        }
        x = penalised(s, entry, x);
        if constexpr (Class::DRY) x = shared_dry().adjusted(take_byte(own.matches, place), x);
        logits.put(column, x);
    }
}

// Finishes the tokens that DRY penalises and that have no bias. After a barrier that follows all
// other uses of entries.
template <typename Class, typename Logits>
INLINE void finish_matches(const Row& s, const Class& own, u32 words, const Logits& logits) {
#pragma unroll 1
    for (u32 at = threadIdx.x; at < words * 8; at += blockDim.x) {
        const u32 bytes = own.matches[at];
        if (bytes == 0) continue;
#pragma unroll 1
        for (u32 place = at * 4; place < at * 4 + 4; place++) {
            const u32 count = byte_at(own.matches, place);
            if (count == 0 || (own.forbidden[place / 32] >> place % 32 & 1)) continue;
            const u32 column = own.column_at(place);
            const u32 entry = own.entry_of(own.entries[place >> own.pack], place);
            const float x = penalised(s, entry, flushed(logits.wide(logits[column])));
            logits.put(column, shared_dry().adjusted(count, x));
        }
    }
}

// Adjusts the logits of the tokens of a class, whose entries and bits must be clear. `piece` has
// the first tokens of the text. By the whole block, after a barrier.
template <typename Class, typename Logits>
INLINE void adjust_class(const Params& p, const Text& text, u64 row, const Piece& piece, Class& own,
                         const Logits& logits) {
    const Row& s = text.s;
    const u32 step = blockDim.x * AHEAD;
    const u32 end = s.start < text.len() ? s.length + min(s.depth, TAIL) : 0;
    const Places first(piece, text, 0, own);
    first.mark(s, 0, own);
#pragma unroll 1
    for (u32 base = step; base < end; base += step) {
        Piece next;
        next.load(text, base, s.length);
        Places(next, text, base, own).mark(s, base, own);
    }
    each_far_draft(text, own, [&](u32 place) { own.count(place); });
#pragma unroll 1
    for (u32 i = s.biases.begin + place_from(1); i < s.biases.end; i += blockDim.x) {
        own.mark_biased(own.place(p.bias_tokens[i]));
    }
    if constexpr (Class::DRY) {
        each_match(p, text, row, [&](i64 token, u32 count) {
            const u32 place = own.place(token);
            if (place != NONE) raise_byte(own.matches, place, count);
        });
    }
    __syncthreads();
    const Taken<Logits> taken(first, own, logits);
    forbid(p, text, row, own, own.forbidden);
    taken.finish(s, first, own, logits);
#pragma unroll 1
    for (u32 base = step; base < end; base += step) {
        Piece next;
        next.load(text, base, s.length);
        const Places places(next, text, base, own);
        Taken<Logits>(places, own, logits).finish(s, places, own, logits);
    }
    each_far_draft(text, own, [&](u32 place) {
        const u32 entry = own.take(place);
        if (entry == 0) return;
        const u32 column = own.column_at(place);
        logits.put(column, penalised(s, entry, flushed(logits.wide(logits[column]))));
    });
    finish_biases(p, s, own, logits);
    __syncthreads();
    write_forbidden(own, own.forbidden, p.class_words, logits);
    if constexpr (Class::DRY) finish_matches(s, own, p.class_words, logits);
}

// Adjusts the classes of the row that this block has; the first one must be clear.
template <typename Class, typename Logits>
INLINE u32 adjust_classes(const Params& p, const Text& text, u64 row, const Piece& piece,
                          const Logits& logits) {
    Class own(p);
    if (text.len() - text.s.prompt > NARROW_COUNT) {
        own.pack = 0;
        own.bits += 1;
    }
    bool again = false;
#pragma unroll 1
    for (u32 half = 0; half <= 1 - own.pack; half++) {
#pragma unroll 1
        for (u32 number = blockIdx.y; number >> p.class_bits == 0; number += gridDim.y) {
            if (again) {
                __syncthreads();
                Class::clear(p);
                __syncthreads();
            }
            again = true;
            own.class_index = number + (half << p.class_bits);
            adjust_class(p, text, row, piece, own, logits);
        }
    }
    return own.flags;
}

}  // namespace direct
