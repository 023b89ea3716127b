// suffix_lookup: texts, their tiles, and the windows of tiles.
#pragma once

#include "cluster.cuh"
#include "params/suffix_lookup.cuh"

constexpr u32 WARPS = THREADS / WARP;
// The number of chunks of 32 tokens in a tile.
constexpr u32 CHUNKS = TILE / WARP;

// A text, and its length.
template <typename T>
struct Text {
    const T* tokens;
    u32 length;
};

// The row of `tokens` that a request has; NONE for padding, and for a request that names no row.
INLINE u32 row_of(const Params& p, u32 request) {
    if (p.requests.data == nullptr) return request;
    const u64 row = static_cast<u64>(p.requests[request]);
    return row < p.texts ? static_cast<u32>(row) : NONE;
}

template <typename T>
INLINE const T* own_tokens(const Params& p, u32 row) {
    return static_cast<const T*>(p.tokens.data) + (row == NONE ? 0 : row) * p.tokens.stride;
}

// The text of a request; empty if `row` is NONE.
template <typename T>
INLINE Text<T> own_text(const Params& p, u32 row) {
    return {own_tokens<T>(p, row), row == NONE ? 0 : clamped(p.lengths[row], p.max_len)};
}

template <typename T>
INLINE Text<T> corpus_text(const Params& p) {
    const bool all = p.corpus_length.data == nullptr;
    const u32 length = all ? p.corpus_size : clamped(p.corpus_length[0], p.corpus_size);
    return {static_cast<const T*>(p.corpus), length};
}

// The last tokens of a request's text, in reverse order: lane l has the token that is followed by l
// tokens, and the token that is followed by 32 + l tokens. -1, which equals no token, if there is
// no such token.
template <typename T>
struct Suffix {
    T near;
    T far;

    INLINE static T at(const Params& p, const Text<T>& own, u32 back) {
        return back < min(own.length, p.max_match) ? own.tokens[own.length - 1 - back]
                                                   : static_cast<T>(-1);
    }

    INLINE Suffix(const Params& p, const Text<T>& own)
        : near(at(p, own, lane_id())), far(at(p, own, WARP + lane_id())) {}

    INLINE T last() const { return __shfl_sync(ALL_LANES, near, 0); }

    // The length of the match of the window after `place`: the number of tokens up to `place` that
    // equal those of the suffix. 0 if the next token is negative. The text must have a token after
    // `place`.
    INLINE u32 match(const T* tokens, u32 place) const {
        const T next = tokens[place + 1];
        const u32 lane = lane_id();
        const T given_near = lane <= place ? tokens[place - lane] : static_cast<T>(-1);
        const bool is_other = given_near != near || near < 0;
        u32 others = __ballot_sync(ALL_LANES, is_other);
        if (next < 0) return 0;
        if (others != 0) return __ffs(others) - 1;
        const u32 back = WARP + lane;
        const T given_far = back <= place ? tokens[place - back] : static_cast<T>(-1);
        others = __ballot_sync(ALL_LANES, given_far != far || far < 0);
        return others != 0 ? WARP + __ffs(others) - 1 : MAX_MATCH;
    }
};

// A tile in registers: lane l has token 32 * c + l of each chunk c.
template <typename T>
struct Tile {
    T tokens[CHUNKS];
    u32 base;

    // Loads the tile of a text that has room for `room` tokens, whatever the text's length.
    INLINE Tile(const T* from, u32 room, u32 tile) : base(tile * TILE) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const u32 place = base + c * WARP + lane_id();
            tokens[c] = place < room ? from[place] : static_cast<T>(-1);
        }
    }

    // A bit for each chunk: whether predicate(token) is true, and the text continues after the
    // token.
    template <typename Predicate>
    INLINE u32 candidates(u32 length, Predicate predicate) const {
        u32 bits = 0;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const u32 place = base + c * WARP + lane_id();
            bits |= static_cast<u32>(place + 1 < length && predicate(tokens[c])) << c;
        }
        return bits;
    }
};

// Removes the most recent candidate of a tile from `bits`. Returns its place in the tile, NONE if
// there is none.
INLINE u32 take(u32& bits) {
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (any == 0) return NONE;
    const u32 chunk = 31 - __clz(any);
    const u32 lane = 31 - __clz(__ballot_sync(ALL_LANES, bits >> chunk & 1));
    if (lane == lane_id()) bits &= ~(1u << chunk);
    return chunk * WARP + lane;
}

// The note of a tile: the length of the longest match of its windows, the number of windows with
// this length, and the places in the tile of the two most recent of them. 0 if no match is long
// enough.
struct Note {
    u32 word;

    INLINE u32 longest() const { return word >> 25; }
    INLINE u32 count() const { return word >> 16 & 0x1FF; }
    // The places of the last token before the most recent window, and before the one that precedes
    // it.
    INLINE u32 first() const { return word & 0xFF; }
    INLINE u32 second() const { return word >> 8 & 0xFF; }

    INLINE void add(u32 match, u32 place) {
        if (match > longest()) {
            word = match << 25 | 1u << 16 | place;
        } else if (match == longest()) {
            // If there was only one window, second() is 0, which is not larger than any place.
            const u32 before = max(second(), min(first(), place));
            word = match << 25 | (count() + 1) << 16 | before << 8 | max(first(), place);
        }
    }
};

template <typename T>
INLINE Note note_of(const Params& p, const Tile<T>& tile, const Text<T>& text,
                    const Suffix<T>& suffix) {
    const T last = suffix.last();
    Note note = {0};
    if (last < 0) return note;
    u32 bits = tile.candidates(text.length, [&](T token) { return token == last; });
    for (;;) {
        const u32 place = take(bits);
        if (place == NONE) return note;
        const u32 match = suffix.match(text.tokens, tile.base + place);
        if (match >= p.min_match) note.add(match, place);
    }
}

// The notes of four tiles, beginning with tile `first`.
struct Quad {
    union {
        uint4 raw;
        Note notes[4];
    };
    u32 first;

    INLINE Quad() {}
};

// The longest match in a thread's tiles, and the number of windows with this match.
struct MatchCount {
    u32 longest;
    u32 count;
    // The number of windows of earlier threads.
    u32 before;

    INLINE void add(Note note) {
        if (note.longest() > longest) {
            longest = note.longest();
            count = 0;
        }
        if (note.longest() == longest) count += note.count();
    }

    // Returns the longest match over all threads of the first `warps` warps, which call this
    // together. Afterwards `count` has only the windows with this match; `all` is their number over
    // all threads.
    INLINE u32 reduce(uint2* of_warps, u32 warps, u32& all) {
        const u32 lane = lane_id();
        const u32 warp = threadIdx.x / WARP;
        u32 block_longest = __reduce_max_sync(ALL_LANES, longest);
        if (longest != block_longest) count = 0;
        const u32 through = warp_inclusive_sum(count, lane);
        before = through - count;
        all = __shfl_sync(ALL_LANES, through, WARP - 1);
        if (warps == 1) return block_longest;
        if (lane == 0) of_warps[warp] = make_uint2(block_longest, all);
        __syncthreads();
        const uint2 theirs = lane < WARPS ? of_warps[lane] : make_uint2(0, 0);
        block_longest = __reduce_max_sync(ALL_LANES, theirs.x);
        const u32 windows = theirs.x == block_longest ? theirs.y : 0;
        const u32 through_warp = warp_inclusive_sum(windows, lane);
        before += __shfl_sync(ALL_LANES, through_warp - windows, warp);
        all = __shfl_sync(ALL_LANES, through_warp, WARP - 1);
        if (longest != block_longest) count = 0;
        return block_longest;
    }
};

// The largest value over the threads of the block.
INLINE u64 largest_of_block(u64 value, u64* maxima) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        value = max(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    __syncthreads();  // before the maxima of an earlier call go
    if (lane_id() == 0) maxima[threadIdx.x / WARP] = value;
    __syncthreads();
    u64 largest = maxima[0];
#pragma unroll
    for (u32 i = 1; i < WARPS; i++) largest = max(largest, maxima[i]);
    return largest;
}
