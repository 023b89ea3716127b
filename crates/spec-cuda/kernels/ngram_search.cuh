// The search of ngram_match, hybrid_mtp_ngram and prompt_lookup: finds an earlier occurrence of the
// last tokens of a text (the pattern).
//
// A team of warps searches for one request: some warps of a block, a block, or several blocks. One
// or two arrays of tokens (haystacks) form one sequence of tokens. The sequence is cut into chunks,
// which the team's warps take in turn. A search for the first occurrence starts at the left:
//
//     prompt             | generated          |
//     c0 c1 c2 c3 c4 c5  | c6 c7 c8 ...       |      warp = chunk % warps of team
//
// A search for the last occurrence starts at the right. A lane reads the tokens of 16 bytes at a
// time and compares them with the last token of the pattern. If a token is equal, the lane compares
// the tokens before it, backwards, so one pass serves all lengths of the pattern. The key of a
// match is the number of tokens that it lacks to a match of full length, then its position in the
// sequence; the smallest key wins. A warp that finds a match of full length publishes a hint for
// the team, and the team skips all chunks beyond it.
//
// Bytes: each token once, up to a match of full length.
#pragma once

#include "aligned_row.cuh"
#include "cluster.cuh"
#include "params/ngram_search.cuh"

// Blocks for which a multiprocessor must have room, so that enough loads are in flight.
constexpr u32 RESIDENT = 2;
constexpr u64 NO_MATCH = ~0ull;
// A key has the number of missing tokens in the upper 32 bits and the rank (see `rank_of`) in the
// lower 32 bits. A row has less than 2^31 tokens.
constexpr u32 RANK_BITS = 32;
constexpr u32 NO_RANK = ~0u;

// ---- teams --------------------------------------------------------------------

// The team of this warp, and the warp's number in it. The blocks of a team have the same
// blockIdx.x, or are a cluster. If a block has several teams, gridDim.y is 1.
struct Team {
    u32 request;
    // The number of warps of the team in this block, and the number of this warp among them.
    u32 here;
    u32 own;
    // The first chunk of this warp, and the distance from one chunk of this warp to its next.
    u32 first;
    u32 step;

    // A block has `warps` warps.
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

// ---- values that blocks publish for each other -----------------------------------

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

// The slot of a block, in the workspace: two words, each with half of a number and half of a key.
// While the block searches, the slot may contain a hint: the key of a match of full length, with
// the number of the launch in which the bits of HINT are flipped. At the end, the slot contains the
// best key of the block, with the number of the launch itself. If the two halves form neither
// number, the slot is from an earlier launch, or only one of the two words has been written.
//
// A slot need not be cleared before a launch, because no other launch has the same number (60 bits
// in both words: `number` in src/ops/ngram.rs), and because no combination of a cleared word and a
// word of a hint forms the number. Stores to a slot need no fence: the block stores its hints
// before a barrier and its best key after the barrier, so in each word the best key follows every
// hint. The block that reads the best key clears the slot only afterwards, so the clearing is last.
// A captured launch depends on this, because it has the same number in every replay: a replay must
// not find a key of the replay before it.
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

// The rank of the best match of full length that a team knows. For a team within a block or a
// cluster, each block has a copy in its shared memory.
struct NearHint {
    static constexpr bool NEAR = true;

    volatile u32* here;
    Cluster cluster;

    // Publishes a match that this warp has found. Returns whether a better match was already known.
    INLINE bool publish(u32 rank) const {
        u32 before = NO_RANK;
        // The warp uses the value that atomicMin returns, so it continues only after the hint has
        // been stored.
        if (lane_id() < cluster.size) {
            before = atomicMin(cluster.of(const_cast<u32*>(here), lane_id()), rank);
        }
        return __any_sync(ALL_LANES, before < rank);
    }

    INLINE u32 rank() const { return *here; }
};

// The same for a team that is not a cluster: a team within a block has the rank in shared memory, a
// team of several blocks has a rank in the slot of each block.
struct SlotHint {
    static constexpr bool NEAR = false;

    volatile u32* here;
    u64* slots;
    u32 blocks;
    u64 number;

    // Publishes a match that this warp has found. By one lane.
    INLINE void publish(u32 rank) const {
        if (blocks == 1) {
            atomicMin(const_cast<u32*>(here), rank);
        } else {
            // This may overwrite the hint of another warp that found a better match. A hint need
            // not be the best one: any match of full length shows that later chunks can be skipped.
            Slot{slots + 2 * blockIdx.y}.store(number ^ Slot::HINT, rank);
        }
    }

    // The best rank that this lane knows. Lane i reads the slot of block i.
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

// The smallest of the lanes' values.
INLINE u64 warp_min(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 smallest = __reduce_min_sync(ALL_LANES, high);
    const u32 low = __reduce_min_sync(ALL_LANES, high == smallest ? static_cast<u32>(v) : ~0u);
    return static_cast<u64>(smallest) << 32 | low;
}

// The occurrence that a search prefers. The search starts at that end of the sequence.
enum class Occurrence { FIRST, LAST };

// The rank of a position in the sequence: the preferred position has the smaller rank. Also the
// inverse: the position of a rank.
template <Occurrence WHICH>
INLINE u32 rank_of(u32 place) {
    return WHICH == Occurrence::LAST ? 0x7FFFFFFFu - place : place;
}

// An array of tokens that is searched. A match may end at tokens 0 to ends - 1; it must not end at
// the last token, because no token of the array follows the last token.
template <typename T>
struct Haystack {
    static constexpr u32 N = Pack<T>::N;
    static constexpr u32 LOADS = 4;
    static constexpr u32 CHUNK = WARP * N * LOADS;
    static_assert(CHUNK * sizeof(T) == CHUNK_BYTES);

    const T* tokens;
    u32 ends;
    // The number of tokens between the 16-byte boundary at or before token 0 and token 0.
    u32 lead;
    // The position of token 0 in the sequence.
    u32 place;

    INLINE Haystack(const T* tokens, u32 length, u32 place)
        : tokens(tokens), ends(length == 0 ? 0 : length - 1),
          lead(lead_of(tokens)), place(place) {}

    INLINE u32 chunks() const { return ends == 0 ? 0 : (lead + ends + CHUNK - 1) / CHUNK; }

    // A bit for each of this lane's tokens in a chunk: 1 if the token equals `last`. The chunk
    // begins at token `from`, which is negative if the chunk begins before token 0.
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
            // A chunk at an end of the haystack: tokens are loaded one by one, with all loads in
            // flight at once.
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

    // The token of a bit of `find`; a higher bit belongs to a later token. Before token 0, the
    // result wraps to a number that is not below `ends`.
    INLINE static u32 token(i32 from, u32 bit, u32 lane) {
        return static_cast<u32>(from) + (bit / N * WARP + lane) * N + bit % N;
    }

    // The best rank that a match in the chunk at `from` can have.
    template <Occurrence WHICH>
    INLINE u32 best_rank(i32 from) const {
        if (WHICH == Occurrence::LAST) {
            return rank_of<WHICH>(place + min(static_cast<u32>(from) + CHUNK, ends) - 1);
        }
        return rank_of<WHICH>(place + max(from, 0));
    }
};

// The pattern: the `longest` tokens that end at `*last`. A match may lack the first of these
// tokens, but has at least `shortest` tokens.
template <typename T>
struct Pattern {
    const T* last;
    u32 longest;
    u32 shortest;
};

// The best key of this warp's chunks. `second` follows `h` in the sequence; in a search for the
// last occurrence it must be empty.
template <Occurrence WHICH, typename T, typename Hint>
INLINE u64 search(Haystack<T> h, const Haystack<T>& second, const Pattern<T>& pattern,
                  const Team& team, const Hint& hint) {
    const u32 lane = lane_id();
    const u32 longest = pattern.longest;
    if (longest < pattern.shortest) return NO_MATCH;
    const T last = *pattern.last;
    const u32 head = h.chunks();
    const u32 chunks = head + second.chunks();
    // Hints are useful only if a warp of the team has a second chunk, which it could skip.
    const bool hints = team.step > 1 && chunks > team.step;

    u64 best = NO_MATCH;
    // A match that this lane finds counts only if it is longer than this.
    u32 beaten = pattern.shortest - 1;
    u32 skipped = 0;
    for (u32 turn = team.first; turn < chunks; turn += team.step) {
        const u32 chunk = WHICH == Occurrence::LAST ? chunks - 1 - turn : turn;
        if (chunk >= head) {
            h = second;
            skipped = head;
        }
        const i32 from = static_cast<i32>((chunk - skipped) * Haystack<T>::CHUNK - h.lead);
        // A hint in global memory is loaded together with the tokens, so that the latencies
        // overlap. A hint in shared memory is read after the tokens have arrived, when it may be
        // newer.
        u32 known = !Hint::NEAR && hints && turn != team.first ? hint.rank() : NO_RANK;
        u32 found = h.find(from, lane, last);
        if (Hint::NEAR && hints) known = hint.rank();
        if (__any_sync(ALL_LANES, known < h.template best_rank<WHICH>(from))) break;
        while (found != 0) {
            const u32 bit = WHICH == Occurrence::LAST ? 31 - __clz(found) : __ffs(found) - 1;
            found &= ~(1u << bit);
            const u32 at = Haystack<T>::token(from, bit, lane);
            // First compares the token that would make the match longer than `beaten`: in
            // repetitive text, few candidates have this token.
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
        // A match of full length: all other matches of this warp have larger keys.
        if (__any_sync(ALL_LANES, best >> RANK_BITS == 0)) {
            best = warp_min(best);
            if constexpr (Hint::NEAR) {
                if (hints && hint.publish(static_cast<u32>(best))) return NO_MATCH;
            } else if (lane == 0 && hints) {
                hint.publish(static_cast<u32>(best));
            }
            return best;
        }
    }
    return warp_min(best);
}
