// suffix_lookup: texts, and the windows of their tiles.
#pragma once

#include "cluster.cuh"
#include "params/suffix_lookup.cuh"

constexpr u32 THREADS = 512;
constexpr u32 WARPS = THREADS / WARP;
// Chunks of 32 tokens that make a tile. A warp has one tile at a time.
constexpr u32 CHUNKS = 8;
constexpr u32 TILE = CHUNKS * WARP;
// Tokens of a match.
constexpr u32 MAX_MATCH = 64;

// A text, and its length.
template <typename T>
struct Text {
    const T* tokens;
    u32 length;
};

// The row of `tokens` that a request has; NONE for padding and for a request that has no row.
INLINE u32 row_of(const Params& p, u32 request) {
    if (p.requests.data == nullptr) return request;
    const u64 row = static_cast<u64>(p.requests[request]);
    return row < p.texts ? static_cast<u32>(row) : NONE;
}

template <typename T>
INLINE const T* own_tokens(const Params& p, u32 row) {
    return static_cast<const T*>(p.tokens.data) + (row == NONE ? 0 : row) * p.tokens.stride;
}

// Empty where there is no row.
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

// The last tokens of a request, the last first: in each lane the one that its number of tokens
// follows, and the one that 32 more follow. -1, which matches nothing, where there is none.
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

    // How many tokens of a text up to `place` are those of the suffix: the match of the window
    // behind `place`. 0 where a negative token follows. The text has a token behind `place`.
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

// A tile in registers: lane l has, of chunk c, token 32 * c + l.
template <typename T>
struct Tile {
    T tokens[CHUNKS];
    u32 base;

    // Of a text with room for `room` tokens, whatever its length.
    INLINE Tile(const T* from, u32 room, u32 tile) : base(tile * TILE) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const u32 place = base + c * WARP + lane_id();
            tokens[c] = place < room ? from[place] : static_cast<T>(-1);
        }
    }

    // A bit a chunk: whether `is_it(token)`, and the text goes on behind the token.
    template <typename Is>
    INLINE u32 candidates(u32 length, Is is_it) const {
        u32 bits = 0;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const u32 place = base + c * WARP + lane_id();
            bits |= static_cast<u32>(place + 1 < length && is_it(tokens[c])) << c;
        }
        return bits;
    }
};

// Takes the most recent candidate of a tile out of `bits`: its place in the tile, NONE if none is left.
INLINE u32 take(u32& bits) {
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (any == 0) return NONE;
    const u32 chunk = 31 - __clz(any);
    const u32 lane = 31 - __clz(__ballot_sync(ALL_LANES, bits >> chunk & 1));
    if (lane == lane_id()) bits &= ~(1u << chunk);
    return chunk * WARP + lane;
}

// A note of a tile: the longest match of its windows, how many of them have it, and the places of the
// two most recent of those in the tile. 0 where no match is long enough.
struct Note {
    u32 word;

    INLINE u32 longest() const { return word >> 25; }
    INLINE u32 count() const { return word >> 16 & 0x1FF; }
    // The most recent window, and the one before it, behind the match's last token.
    INLINE u32 first() const { return word & 0xFF; }
    INLINE u32 second() const { return word >> 8 & 0xFF; }

    INLINE void add(u32 match, u32 place) {
        if (match > longest()) {
            word = match << 25 | 1u << 16 | place;
        } else if (match == longest()) {
            // 0, where there was one window, is no larger than a place.
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

// The notes of four tiles, from the tile `first` on.
struct Quad {
    union {
        uint4 raw;
        Note notes[4];
    };
    u32 first;

    INLINE Quad() {}
};

// The longest match of a thread's tiles, and the number of its windows.
struct Tally {
    u32 longest;
    u32 count;
    // The windows of the threads before this one.
    u32 before;

    INLINE void add(Note note) {
        if (note.longest() > longest) {
            longest = note.longest();
            count = 0;
        }
        if (note.longest() == longest) count += note.count();
    }

    // Returns the longest match of all threads of the first `warps` warps, which call this together.
    // Counts its windows alone from now on; `all` is their number.
    INLINE u32 over(uint2* of_warps, u32 warps, u32& all) {
        const u32 lane = lane_id();
        const u32 warp = threadIdx.x / WARP;
        u32 most = __reduce_max_sync(ALL_LANES, longest);
        if (longest != most) count = 0;
        const u32 through = warp_inclusive_sum(count, lane);
        before = through - count;
        all = __shfl_sync(ALL_LANES, through, WARP - 1);
        if (warps == 1) return most;
        if (lane == 0) of_warps[warp] = make_uint2(most, all);
        __syncthreads();
        const uint2 theirs = lane < WARPS ? of_warps[lane] : make_uint2(0, 0);
        most = __reduce_max_sync(ALL_LANES, theirs.x);
        const u32 windows = theirs.x == most ? theirs.y : 0;
        const u32 through_warp = warp_inclusive_sum(windows, lane);
        before += __shfl_sync(ALL_LANES, through_warp - windows, warp);
        all = __shfl_sync(ALL_LANES, through_warp, WARP - 1);
        if (longest != most) count = 0;
        return most;
    }
};

// The largest of a value over the block.
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
