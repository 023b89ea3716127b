// The search of ngram_match, hybrid_mtp_ngram and prompt_lookup: where the last
// tokens of a text, the pattern, occurred before.
//
// A team of warps owns a request: a part of a block, a block, or several blocks.
// One haystack or two are a line of tokens, cut into chunks that the team's warps
// take in turn, from the left for the first occurrence:
//
//     prompt             | generated          |
//     c0 c1 c2 c3 c4 c5  | c6 c7 c8 ...       |      warp = chunk % warps of team
//
// or, for the last one, from the right. A lane compares 16 bytes at a time with the
// last token of the pattern, and where it is found extends backwards, so one pass
// serves all pattern lengths. The smallest key wins: tokens missing from the longest
// pattern, then place on the line. Whoever finds a match of full length leaves a
// hint; chunks beyond it are skipped.
//
// Bytes: the tokens up to a full match, each once.
#pragma once

#include "aligned_row.cuh"
#include "cluster.cuh"

// The most threads of a block.
constexpr u32 THREADS = 512;
// Blocks a multiprocessor must hold, to have enough loads in flight.
constexpr u32 RESIDENT = 2;
constexpr u32 WARPS = THREADS / WARP;
constexpr u64 NO_MATCH = ~0ull;
// A key: 32 bits of missing tokens, 32 bits of rank. Rows are below 2^31 tokens.
constexpr u32 RANK_BITS = 32;
constexpr u32 NO_RANK = ~0u;

// ---- teams --------------------------------------------------------------------

// This warp's part in the search: of which request, and which of the team's warps
// it is. The blocks of a team are the grid's y, or a cluster; where a block holds
// several teams there is but one y.
struct Team {
    u32 request;
    // Warps of the team in this block, and which of them this is.
    u32 here;
    u32 own;
    // The first chunk, and how many further on the next one is.
    u32 first;
    u32 step;

    // `warps` are a block's.
    INLINE Team(u32 block_bits, u32 warp_bits, u32 warps, const Cluster& cluster) {
        const u32 warp = threadIdx.x / WARP;
        here = 1u << warp_bits;
        own = warp & (here - 1);
        const bool clustered = cluster.size > 1;
        const u32 column = clustered ? blockIdx.x >> block_bits : blockIdx.x;
        request = column * (warps >> warp_bits) + (warp >> warp_bits);
        first = ((clustered ? cluster.rank : blockIdx.y) << warp_bits) + own;
        step = here << block_bits;
    }
};

// ---- what blocks leave for each other -------------------------------------------

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

// A slot of a block's: two words in the workspace, each with half of the launch's
// number and half of a key. While the block searches, the slot may hold a hint, the
// key of some match of full length, under the number with HINT's bits turned over;
// at last it holds the block's best key, under the number itself. Words whose halves
// are of neither, or not of the same, are older than the launch or being written.
//
// The slot needs no clearing beforehand, since no other launch has the number (of 60
// bits, spread over both words: `number` in src/ops/ngram.rs), nor do a clear slot and
// a hint read as one. And it needs no fence. Hints are stored before a barrier of the
// block after which the last key is, so in each word the last key comes after every hint.
// Whoever settles the request has seen that key when it clears the slot, so the clearing
// comes after both, and a captured launch, which keeps its number, finds nothing of its
// own from one replay in the next.
struct Slot {
    static constexpr u64 HINT = 2ull << 32 | 2;

    u64* words;

    INLINE void store(u64 number, u64 key) const {
        store_relaxed(words, number << 32 | (key & 0xFFFFFFFFu));
        store_relaxed(words + 1, (number & ~0xFFFFFFFFull) | key >> 32);
    }

    INLINE void clear() const {
        store_relaxed(words, 0);
        store_relaxed(words + 1, 0);
    }

    INLINE static u64 number(ulonglong2 words) {
        return words.x >> 32 | (words.y & ~0xFFFFFFFFull);
    }

    INLINE static u64 key(ulonglong2 words) {
        return (words.x & 0xFFFFFFFFu) | words.y << 32;
    }
};

// The best match of full length that a team knows of, as its rank: in the shared memory
// of each block, for a team within a block or a cluster.
struct NearHint {
    static constexpr bool NEAR = true;

    volatile u32* here;
    Cluster cluster;

    // A warp leaves what it found; whether that is of no use, since a better is known.
    INLINE bool leave(u32 rank) const {
        u32 before = NO_RANK;
        // That this returns is how a block knows when it has left its last.
        if (lane_id() < cluster.size) {
            before = atomicMin(cluster.of(const_cast<u32*>(here), lane_id()), rank);
        }
        return __any_sync(ALL_LANES, before < rank);
    }

    INLINE u32 rank() const { return *here; }
};

// The same for a team of blocks that are no cluster, in their slots; in shared memory
// for a team within a block.
struct SlotHint {
    static constexpr bool NEAR = false;

    volatile u32* here;
    u64* slots;
    u32 blocks;
    u64 number;

    // One lane leaves what its warp found.
    INLINE void leave(u32 rank) const {
        if (blocks == 1) {
            atomicMin(const_cast<u32*>(here), rank);
        } else {
            // Of two warps the one that found the better may come first: a hint that
            // is not the best is one all the same.
            Slot{slots + 2 * blockIdx.y}.store(number ^ Slot::HINT, rank);
        }
    }

    // Each lane's share of what is known.
    INLINE u32 rank() const {
        if (blocks == 1) return *here;
        if (lane_id() >= blocks) return NO_RANK;
        const ulonglong2 words = load_relaxed(slots + 2 * lane_id());
        const u64 whose = Slot::number(words);
        const u64 key = Slot::key(words);
        const bool ours = whose == number || whose == (number ^ Slot::HINT);
        return ours && key >> RANK_BITS == 0 ? static_cast<u32>(key) : NO_RANK;
    }
};

// ---- search -------------------------------------------------------------------

INLINE u64 warp_min(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 least = __reduce_min_sync(ALL_LANES, high);
    const u32 low = __reduce_min_sync(ALL_LANES, high == least ? static_cast<u32>(v) : ~0u);
    return static_cast<u64>(least) << 32 | low;
}

// Which end of the line a search prefers, and begins at.
enum class Occurrence { FIRST, LAST };

// Places in the order of preference, and back.
template <Occurrence WHICH>
INLINE u32 rank_of(u32 place) {
    return WHICH == Occurrence::LAST ? 0x7FFFFFFFu - place : place;
}

// A haystack: windows may end at tokens 0 .. ends - 1.
template <typename T>
struct Haystack {
    static constexpr u32 N = Pack<T>::N;
    static constexpr u32 LOADS = 4;
    static constexpr u32 CHUNK = WARP * N * LOADS;

    const T* tokens;
    u32 ends;
    // Tokens from the 16-byte boundary at or before token 0 to token 0.
    u32 lead;
    // Place of token 0 on the request's line.
    u32 place;

    INLINE Haystack(const T* tokens, u32 length, u32 place)
        : tokens(tokens), ends(length == 0 ? 0 : length - 1),
          lead(lead_of(tokens)), place(place) {}

    INLINE u32 chunks() const { return ends == 0 ? 0 : (lead + ends + CHUNK - 1) / CHUNK; }

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

    // The token that a bit stands for, more for a higher bit; huge before token 0.
    INLINE static u32 token(i32 from, u32 bit, u32 lane) {
        return static_cast<u32>(from) + (bit / N * WARP + lane) * N + bit % N;
    }

    // The best rank that a window in the chunk at `from` can have.
    template <Occurrence WHICH>
    INLINE u32 best_rank(i32 from) const {
        if (WHICH == Occurrence::LAST) {
            return rank_of<WHICH>(place + min(static_cast<u32>(from) + CHUNK, ends) - 1);
        }
        return rank_of<WHICH>(place + max(from, 0));
    }
};

// What is searched for: the `longest` tokens that end at `*last`, or as many of
// them as there are, but no fewer than `shortest`.
template <typename T>
struct Pattern {
    const T* last;
    u32 longest;
    u32 shortest;
};

// The best key of this warp's chunks. Only for the first occurrence may the second
// haystack, which is right of the first, have any tokens.
template <Occurrence WHICH, typename T, typename Hint>
INLINE u64 search(Haystack<T> h, const Haystack<T>& second, const Pattern<T>& pattern,
                  const Team& team, const Hint& hint) {
    const u32 lane = lane_id();
    const u32 longest = pattern.longest;
    if (longest < pattern.shortest) return NO_MATCH;
    const T last = *pattern.last;
    const u32 head = h.chunks();
    const u32 chunks = head + second.chunks();
    // Whether there is a second chunk to skip for any warp of the team.
    const bool hints = team.step > 1 && chunks > team.step;

    u64 best = NO_MATCH;
    // The length that a match of this lane's must exceed to be of use.
    u32 beaten = pattern.shortest - 1;
    u32 skipped = 0;
    for (u32 turn = team.first; turn < chunks; turn += team.step) {
        const u32 chunk = WHICH == Occurrence::LAST ? chunks - 1 - turn : turn;
        if (chunk >= head) {
            h = second;
            skipped = head;
        }
        const i32 from = static_cast<i32>((chunk - skipped) * Haystack<T>::CHUNK - h.lead);
        // What is far is asked for while tokens are on their way; what is near may be
        // newer when they have come.
        u32 known = !Hint::NEAR && hints && turn != team.first ? hint.rank() : NO_RANK;
        u32 found = h.find(from, lane, last);
        if (Hint::NEAR && hints) known = hint.rank();
        if (__any_sync(ALL_LANES, known < h.template best_rank<WHICH>(from))) break;
        while (found != 0) {
            const u32 bit = WHICH == Occurrence::LAST ? 31 - __clz(found) : __ffs(found) - 1;
            found &= ~(1u << bit);
            const u32 at = Haystack<T>::token(from, bit, lane);
            // The token that would make it long enough comes first: in text that
            // repeats itself few have it.
            if (at < beaten) continue;
            if (beaten > 0 && h.tokens[at - beaten] != *(pattern.last - beaten)) continue;
            u32 length = 1;
            while (length < longest && length <= at &&
                   h.tokens[at - length] == *(pattern.last - length)) {
                ++length;
            }
            if (length <= beaten) continue;
            beaten = length;
            const u32 rank = rank_of<WHICH>(h.place + at);
            best = static_cast<u64>(longest - length) << RANK_BITS | rank;
            if (length == longest) break;
        }
        // A match of full length: all else of this warp ranks after it.
        if (__any_sync(ALL_LANES, best >> RANK_BITS == 0)) {
            best = warp_min(best);
            if constexpr (Hint::NEAR) {
                if (hints && hint.leave(static_cast<u32>(best))) return NO_MATCH;
            } else if (lane == 0 && hints) {
                hint.leave(static_cast<u32>(best));
            }
            return best;
        }
    }
    return warp_min(best);
}
