// adjust_logits for so many rows that one block each fills the device: the block gives each
// distinct token of the row a slot.
//
//     counted    a bit for each token: 1 if the text or a bias has the token
//     forbidden  a bit for each token: 1 if the token is forbidden
//     before     for each group of 4 words of `counted`: the number of set bits before the group
//     keys       slot i has the token that is preceded by i set bits of `counted`
//     values     for each slot: how often the token was generated, and whether it is in the prompt
//     first      for each slot: the index of the token's first bias in the request's list, if there
//                are biases
//     matches    with DRY, a byte for each slot: how long a sequence the token would repeat, 0 if DRY
//                does not penalise it
//
// Threads first set the bits, in any order. The rank of a bit is then the slot of its token, so no
// search is needed, and slots are in the order of the vocabulary, which gives the fastest access to
// the logits. A thread issues the loads of its slots' logits before it counts, so that they
// overlap. If a class has more tokens than a block has slots, the block processes one window of
// slots after the other.
#pragma once

#include "adjust_logits_dry.cuh"

namespace ranked {

// Logits that a thread has in flight.
constexpr u32 LOGITS_AHEAD = 4;

// The high bits of a value are marks: the token is in the prompt, has several biases. The other
// bits count how often the token was generated.
constexpr u32 IN_PROMPT = 1u << 31;
constexpr u32 REPEATED_BIAS = 1u << 30;
constexpr u32 COUNT = REPEATED_BIAS - 1;
static_assert(MAX_TOKENS <= COUNT);

// The tokens of one class of a row.
template <bool WITH_DRY>
struct Class : Words {
    static constexpr bool DRY = WITH_DRY;

    u32* counted;
    u32* forbidden;
    u32* before;
    u32* keys;
    u32* values;
    // Not allocated if there are no biases.
    u32* first;
    // Not allocated without DRY.
    u32* matches;
    // The number of words, and of slots.
    u32 words;
    u32 slots;

    INLINE Class(const Params& p)
        : Words(p),
          counted(reinterpret_cast<u32*>(shared_words)),
          forbidden(counted + p.class_words),
          before(forbidden + p.class_words),
          keys(before + p.class_words / GROUP),
          values(keys + p.slots),
          first(values + p.slots),
          matches(first + (p.biases == 0 ? 0 : p.slots)),
          words(p.class_words),
          slots(p.slots) {}

    // Clears the bits.
    INLINE static void clear(const Params& p) {
#pragma unroll 1
        for (u32 at = threadIdx.x; at < 2 * p.class_words / GROUP; at += blockDim.x) {
            shared_words[at] = make_uint4(0, 0, 0, 0);
        }
    }

    INLINE bool forbids(u32 place) const { return forbidden[place / 32] >> place % 32 & 1; }

    // The rank of a token whose bit of `counted` is set.
    INLINE u32 rank(u32 place) const {
        const u32 word = place / 32;
        const uint4 group = reinterpret_cast<const uint4*>(counted)[word / GROUP];
        const u32 below = (1u << place % 32) - 1;
        const u32 at = word % GROUP;
        u32 rank = before[word / GROUP];
        rank += __popc(at > 0 ? group.x : group.x & below);
        if (at > 0) rank += __popc(at > 1 ? group.y : group.y & below);
        if (at > 1) rank += __popc(at > 2 ? group.z : group.z & below);
        if (at > 2) rank += __popc(group.w & below);
        return rank;
    }

    // Computes `before`, and returns the number of set bits. By the whole block, after a barrier.
    INLINE u32 rank_groups(u32* sums) {
        const u32 lane = lane_id();
        const u32 warp = threadIdx.x / WARP;
        const u32 all = words / GROUP;
        const u32 begin = min(threadIdx.x * groups_each(), all);
        const u32 end = min(begin + groups_each(), all);
        u32 sum = 0;
#pragma unroll 1
        for (u32 at = begin; at < end; at++) sum += count(group(at));
        const u32 through = warp_inclusive_sum(sum, lane);
        if (lane == WARP - 1) sums[warp] = through;
        __syncthreads();
        const SumsOfWarps<u32> of_warps(sums, blockDim.x / WARP, lane);
        u32 rank = of_warps.before(warp) + through - sum;
#pragma unroll 1
        for (u32 at = begin; at < end; at++) {
            before[at] = rank;
            rank += count(group(at));
        }
        return of_warps.all();
    }

    // Clears the window of slots that begins with rank `window`, and writes the window's keys. By
    // the same threads that ranked the groups.
    INLINE void list(u32 window, u32 kept, bool has_biases) {
        const u32 all = words / GROUP;
        const u32 begin = min(threadIdx.x * groups_each(), all);
        const u32 end = min(begin + groups_each(), all);
#pragma unroll 1
        for (u32 at = begin; at < end; at++) {
            const uint4 g = group(at);
            u32 slot = before[at] - window;
            u64 pair = g.x | static_cast<u64>(g.y) << 32;
#pragma unroll 1
            for (u32 half = 0; half < 2; half++) {
                const u32 base = at * (32 * GROUP) + half * 64 - 1;
#pragma unroll 1
                for (; pair != 0; pair &= pair - 1, slot++) {
                    if (slot < kept) keys[slot] = base + __ffsll(pair);
                }
                pair = g.z | static_cast<u64>(g.w) << 32;
            }
        }
#pragma unroll 1
        for (u32 at = threadIdx.x; at < kept; at += blockDim.x) {
            values[at] = 0;
            if (has_biases) first[at] = NONE;
        }
        if constexpr (DRY) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < (kept + 3) / 4; at += blockDim.x) matches[at] = 0;
        }
    }

private:
    INLINE u32 groups_each() const { return (words / GROUP + blockDim.x - 1) / blockDim.x; }
    INLINE uint4 group(u32 at) const { return reinterpret_cast<const uint4*>(counted)[at]; }
    INLINE static u32 count(const uint4& g) {
        return __popc(g.x) + __popc(g.y) + __popc(g.z) + __popc(g.w);
    }
};

// Calls found(place, generated) for each token to which a penalty applies; place is NONE if the
// token is not in this class. `piece` has the first tokens of the text.
template <typename Class, typename Found>
INLINE void each_penalised(const Text& text, Piece piece, Class& own, Found found) {
    const Row& s = text.s;
    if (!s.repeats && !s.counts) return;
    const u32 step = blockDim.x * AHEAD;
#pragma unroll 1
    for (u32 base = 0; base < s.length; base += step) {
        Piece next;
        next.load(text, base + step, s.length);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i >= s.start && i < s.length) found(own.place(piece.tokens[j]), i >= s.prompt);
        }
        piece = next;
    }
#pragma unroll 1
    for (u32 j = threadIdx.x; j < min(s.depth, TAIL); j += blockDim.x) {
        found(own.place(s.tail[j]), true);
    }
    if (threadIdx.x == 0 && s.depth > TAIL) {
#pragma unroll 1
        for (Cursor cursor = {s.behind, TAIL}; cursor.back < s.depth; cursor.move(text)) {
            found(own.place(cursor.token(text)), true);
        }
    }
}

template <typename Class, typename Found>
INLINE void each_bias(const Params& p, const Row& s, Class& own, Found found) {
#pragma unroll 1
    for (u32 i = s.biases.begin + place_from(1); i < s.biases.end; i += blockDim.x) {
        found(own.place(p.bias_tokens[i]), i);
    }
}

// The logit of a token after all rules.
template <typename Class>
INLINE float adjusted(const Params& p, const Row& s, const Class& own, u32 slot, u32 column,
                      float x) {
    x = flushed(x);
    const u32 value = own.values[slot];
    const u32 first = p.biases == 0 ? NONE : own.first[slot];
    if (first != NONE) {
        x = flushed_sum(x, flushed(p.bias_values[first]));
        if (value & REPEATED_BIAS) {
            const i32 token = static_cast<i32>(column + own.first_token);
#pragma unroll 1
            for (u32 i = first + 1; i < s.biases.end; i++) {
                if (p.bias_tokens[i] == token) x = flushed_sum(x, flushed(p.bias_values[i]));
            }
        }
    }
    const u32 count = value & COUNT;
    x = penalised(s, count > 0 || (value & IN_PROMPT), count, x);
    if constexpr (Class::DRY) x = shared_dry().adjusted(byte_at(own.matches, slot), x);
    return x;
}

// The logits of a thread's next slots. A thread issues several loads before it writes the first
// logit, because it would otherwise wait for each load in turn.
template <typename Logits>
struct Asked {
    typename Logits::Given given[LOGITS_AHEAD];

    template <typename Class>
    INLINE void load(const Class& own, const Logits& logits, u32 base, u32 count) {
#pragma unroll
        for (u32 j = 0; j < LOGITS_AHEAD; j++) {
            const u32 slot = base + j * blockDim.x;
            if (slot < count) given[j] = logits[own.column_at(own.keys[slot])];
        }
    }

    template <typename Class>
    INLINE void finish(const Params& p, const Row& s, const Class& own, const Logits& logits,
                       u32 base, u32 count) const {
#pragma unroll
        for (u32 j = 0; j < LOGITS_AHEAD; j++) {
            const u32 slot = base + j * blockDim.x;
            if (slot >= count || own.forbids(own.keys[slot])) continue;
            const u32 column = own.column_at(own.keys[slot]);
            logits.put(column, adjusted(p, s, own, slot, column, logits.wide(given[j])));
        }
    }
};

// Adjusts the logits of the tokens of a class. By the whole block, after a barrier.
template <typename Class, typename Logits>
INLINE void adjust_class(const Params& p, const Text& text, u64 row, const Piece& piece, Class& own,
                         u32* sums, const Logits& logits) {
    const Row& s = text.s;
    each_bias(p, s, own, [&](u32 place, u32) { set_bit(own.counted, place); });
    each_penalised(text, piece, own, [&](u32 place, bool) { set_bit(own.counted, place); });
    if constexpr (Class::DRY) {
        each_match(p, text, row, [&](i64 token, u32) { set_bit(own.counted, own.place(token)); });
    }
    __syncthreads();
    const u32 all = own.rank_groups(sums);
#pragma unroll 1
    for (u32 window = 0; window == 0 || window < all; window += own.slots) {
        const u32 count = min(all - window, own.slots);
        own.list(window, count, p.biases != 0);
        __syncthreads();
        Asked<Logits> asked;
        asked.load(own, logits, threadIdx.x, count);
        each_penalised(text, piece, own, [&](u32 place, bool generated) {
            if (place == NONE) return;
            const u32 slot = own.rank(place) - window;
            if (slot >= count) return;
            if (generated) {
                atomicAdd(own.values + slot, 1u);
            } else {
                atomicOr(own.values + slot, IN_PROMPT);
            }
        });
        each_bias(p, s, own, [&](u32 place, u32 i) {
            if (place == NONE) return;
            const u32 slot = own.rank(place) - window;
            if (slot >= count) return;
            const u32 other = atomicMin(own.first + slot, i);
            if (other != NONE) atomicOr(own.values + slot, REPEATED_BIAS);
        });
        if constexpr (Class::DRY) {
            each_match(p, text, row, [&](i64 token, u32 length) {
                const u32 place = own.place(token);
                if (place == NONE) return;
                const u32 slot = own.rank(place) - window;
                if (slot < count) raise_byte(own.matches, slot, length);
            });
        }
        if (window == 0) forbid(p, text, row, own, own.forbidden);
        __syncthreads();
        if (window == 0) write_forbidden(own, own.forbidden, own.words, logits);
        asked.finish(p, s, own, logits, threadIdx.x, count);
#pragma unroll 1
        for (u32 base = threadIdx.x + blockDim.x * LOGITS_AHEAD; base < count;
             base += blockDim.x * LOGITS_AHEAD) {
            asked.load(own, logits, base, count);
            asked.finish(p, s, own, logits, base, count);
        }
        // The next window clears what other threads may still read.
        if (all > own.slots) __syncthreads();
    }
}

// Adjusts the classes of the row that this block has; the first one must be clear.
template <typename Class, typename Logits>
INLINE u32 adjust_classes(const Params& p, const Text& text, u64 row, const Piece& piece, u32* sums,
                          const Logits& logits) {
    Class own(p);
#pragma unroll 1
    for (own.class_index = blockIdx.y;;) {
        adjust_class(p, text, row, piece, own, sums, logits);
        own.class_index += gridDim.y;
        if (own.class_index >> own.bits != 0) return own.flags;
        __syncthreads();
        Class::clear(p);
        __syncthreads();
    }
}

}  // namespace ranked
