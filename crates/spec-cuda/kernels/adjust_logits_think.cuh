// adjust_logits: thinking budgets. A block finds the token that a row must take.
//
// The block reads the row's text once to find where the last thinking in the text starts. If the
// text has as many tokens since then as the row's budget allows, the block reads the text a second
// time, to see whether this thinking has ended.
//
// Bytes: a text of 4096 tokens of 4 bytes each has 16 KB. The block's waiting for memory takes
// longer than reading so much: the block waits for the lengths of the row's text, then for the
// text, then for the drafts that follow the text.
#pragma once

#include "adjust_logits_row.cuh"

namespace think {

// A list of tokens that a text may have.
struct List {
    const i32* tokens;
    u32 count;

    // Whether the list ends at a position of the text, whose token is `last`.
    INLINE bool ends_at(const Text& text, Cursor at, i64 last) const {
        if (count == 0 || tokens[count - 1] != last) return false;
        if (count > text.len() - at.back) return false;
#pragma unroll 1
        for (u32 k = 2; k <= count; k++) {
            at.move(text);
            if (at.token(text) != tokens[count - k]) return false;
        }
        return true;
    }
};

// Calls found(end, at, token) for each token of the row's text from index `from` to index `to` - 1:
// `end` is the token's index plus 1, which is how many tokens the text has up to and with this one;
// `at` is the token's position as a cursor; and `token` is the token. All threads of the block call
// this function, and each thread makes a part of the calls of `found`.
template <typename Found>
INLINE void each_end(const Text& text, u64 row, u32 from, u32 to, Found found) {
    const Row& s = text.s;
    const u32 len = text.len();
    const u32 in_text = min(to, s.length);
#pragma unroll 1
    for (u32 base = from; base < in_text; base += blockDim.x * AHEAD) {
        i64 tokens[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            if (i < in_text) tokens[j] = text.at(i);
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            // Not among the drafts, so the cursor needs no row.
            if (i < in_text) found(i + 1, Cursor{0, len - 1 - i}, tokens[j]);
        }
    }
    Cursor at = {static_cast<u32>(row), 0};
#pragma unroll 1
    for (u32 back = 0; back < s.depth; back++, at.move(text)) {
        const u32 end = len - back;
        if (back % blockDim.x != threadIdx.x || end <= from || end > to) continue;
        found(end, at, at.token(text));
    }
}

// What the threads of a block find.
struct State {
    i32 budget;
    // Where the last start of the thinking ends; 0 if it does not occur.
    u32 start;
    // How many of the forced tokens end the text.
    u32 taken;
    u32 is_over;
};

// The number of the forced token that is due in the row; NONE if none is due. By the whole block,
// after a barrier.
INLINE u32 due(const Params& p, const Text& text, u64 row, State& f) {
    const Row& s = text.s;
    const List start = {p.think_start, p.start_tokens};
    const List end = {p.think_end, p.end_tokens};
    const List forced = {p.think_forced, p.forced_tokens};
    if (f.budget < 0 || end.count == 0 || forced.count == 0) return NONE;
    const u32 len = text.len();
    if (start.count == 0) {
        if (threadIdx.x == 0) f.start = s.prompt;
    } else {
        each_end(text, row, 0, len, [&](u32 place, Cursor at, i64 token) {
            if (start.ends_at(text, at, token)) atomicMax(&f.start, place);
        });
    }
    __syncthreads();
    if (start.count != 0 && f.start == 0) return NONE;
    const u32 thought = len - f.start;
    if (thought < static_cast<u32>(f.budget)) return NONE;
    const u32 max_forced = min(thought - static_cast<u32>(f.budget), forced.count);
#pragma unroll 1
    for (u32 count = threadIdx.x + 1; count <= max_forced; count += blockDim.x) {
        const auto token = [&](u32 j) { return static_cast<i64>(forced.tokens[count - 1 - j]); };
        if (ends_in(text, count, token)) atomicMax(&f.taken, count);
    }
    __syncthreads();
    if (f.taken == forced.count) return NONE;
    each_end(text, row, f.start, len - f.taken, [&](u32, Cursor at, i64 token) {
        if (end.ends_at(text, at, token) || forced.ends_at(text, at, token)) {
            atomicOr(&f.is_over, 1u);
        }
    });
    __syncthreads();
    return f.is_over ? NONE : f.taken;
}

// Writes the token that a row must take. The kernel of the same call that adjusts logits raises the
// flags of the row's request, lengths and path.
INLINE void force(const Params& p) {
    __shared__ Row s;
    __shared__ State f;
    const u64 row = blockIdx.x;
    const i64 request = p.requests == nullptr ? static_cast<i64>(row) : p.requests[row];
    const bool is_there = static_cast<u64>(request) < p.request_count;
    u32 bits = 0;
    if (threadIdx.x == 0 && is_there) {
        const u64 r = static_cast<u64>(request);
        s.length = cut(p.lengths[r], p.max_length, bits);
        s.prompt = cut(p.prompt_lengths[r], s.length, bits);
        f = {p.think_budget[r], 0, 0, 0};
    }
    if (threadIdx.x == WARP) s.depth = climb(p, row, s, bits);
    __syncthreads();
    u32 number = NONE;
    if (is_there) {
        const Text text(p, s, static_cast<u64>(request));
        for (u32 j = s.depth + threadIdx.x; j < min(text.len(), TAIL); j += blockDim.x) {
            s.tail[j] = text.at(s.length - 1 - (j - s.depth));
        }
        number = due(p, text, row, f);
    }
    if (threadIdx.x != 0) return;
    i32 token = number == NONE ? -1 : p.think_forced[number];
    if (number != NONE && static_cast<u32>(token) >= p.vocab) {
        raise(p.flags, OUT_OF_RANGE);
        token = -1;
    }
    p.forced[row] = token;
}

}  // namespace think
