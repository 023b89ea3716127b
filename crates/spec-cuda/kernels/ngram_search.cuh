// The search of ngram_match, hybrid_mtp_ngram and prompt_lookup: finds where the last tokens of a
// text (the pattern) occurred before.
//
// A team of warps searches for one request: the warps of a part of a block, of a block, or of
// several blocks. One or two arrays of tokens (haystacks) form one line of tokens. The line is cut
// into chunks, which the team's warps take in turn. A search for the first occurrence starts at the
// left:
//
//     prompt             | generated          |
//     c0 c1 c2 c3 c4 c5  | c6 c7 c8 ...       |      warp = chunk % warps of team
//
// A search for the last occurrence starts at the right. A lane compares the tokens in 16 bytes at a
// time with the last token of the pattern. Where it finds that token, it compares the tokens before
// it, backwards, so one pass serves all lengths of the pattern. The key of a match is how many
// tokens of the longest pattern it lacks, and then its place on the line; the smallest key wins. A
// warp that finds a match of full length leaves a hint for the team, and the team skips all chunks
// beyond it.
//
// Bytes: each token up to a match of full length, once.
#pragma once

#include "aligned_row.cuh"
#include "cluster.cuh"

// The largest number of threads in a block.
constexpr u32 THREADS = 512;
// Blocks that a multiprocessor must have room for, so that enough loads are in flight.
constexpr u32 RESIDENT = 2;
constexpr u32 WARPS = THREADS / WARP;
constexpr u64 NO_MATCH = ~0ull;
// A key: 32 bits for the missing tokens, and below them 32 bits for the rank (see `rank_of`). A row
// has less than 2^31 tokens.
constexpr u32 RANK_BITS = 32;
constexpr u32 NO_RANK = ~0u;

// ---- teams --------------------------------------------------------------------

// The team of this warp, and the warp's part in the search. Several blocks of a team have the same
// blockIdx.x, or are a cluster. If a block has several teams, gridDim.y is 1.
struct Team {
    u32 request;
    // How many warps of the team this block has, and the number of this warp among them.
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

// The slot of a block, in the workspace: two words, each with half of a number and half of a key.
// While the block searches, the slot may have a hint: the key of some match of full length, with
// the number of the launch in which the bits of HINT are flipped. At the end, the slot has the best
// key of the block, with the number of the launch itself. If the two halves make up neither of
// these numbers, they are older than the launch, or only one of the words has been written yet.
//
// A slot need not be cleared before a launch, because no other launch has the same number (60 bits
// in both words: `number` in src/ops/ngram.rs), and because no mix of a cleared word and a word of
// a hint has it. Stores to a slot need no fence: the block stores its hints before a barrier and
// its best key after this barrier, so in each word the best key comes after every hint. The block
// that reads the best key clears the slot only then, so the clearing comes last. This matters to a
// captured launch, which has the same number in every replay: a replay finds no key that the replay
// before it has left.
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

// The rank of the best match of full length that a team knows of. For a team within a block or a
// cluster, each block has a copy in its shared memory.
struct NearHint {
    static constexpr bool NEAR = true;

    volatile u32* here;
    Cluster cluster;

    // Leaves a match that this warp has found. Returns whether a better match was known already.
    INLINE bool leave(u32 rank) const {
        u32 before = NO_RANK;
        // The warp uses the value that atomicMin returns, so it goes on only after the hint was
        // left.
        if (lane_id() < cluster.size) {
            before = atomicMin(cluster.of(const_cast<u32*>(here), lane_id()), rank);
        }
        return __any_sync(ALL_LANES, before < rank);
    }

    INLINE u32 rank() const { return *here; }
};

// The same for a team that is no cluster: a team within a block has the rank in shared memory, a
// team of several blocks has a rank in the slot of each block.
struct SlotHint {
    static constexpr bool NEAR = false;

    volatile u32* here;
    u64* slots;
    u32 blocks;
    u64 number;

    // Leaves a match that this warp has found. One lane calls this.
    INLINE void leave(u32 rank) const {
        if (blocks == 1) {
            atomicMin(const_cast<u32*>(here), rank);
        } else {
            // This may overwrite the hint of another warp that found a better match. A hint need
            // not be the best one: any match of full length shows that later chunks can be skipped.
            Slot{slots + 2 * blockIdx.y}.store(number ^ Slot::HINT, rank);
        }
    }

    // The best rank that this lane knows of. Lane i looks at the slot of block i.
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

// The smallest value of all lanes of the warp.
INLINE u64 warp_min(u64 v) {
    const u32 high = static_cast<u32>(v >> 32);
    const u32 least = __reduce_min_sync(ALL_LANES, high);
    const u32 low = __reduce_min_sync(ALL_LANES, high == least ? static_cast<u32>(v) : ~0u);
    return static_cast<u64>(least) << 32 | low;
}

// Which occurrence on the line a search prefers. The search starts at this end of the line.
enum class Occurrence { FIRST, LAST };

// The rank of a place on the line: the better place has the smaller rank. Also the place of a rank.
template <Occurrence WHICH>
INLINE u32 rank_of(u32 place) {
    return WHICH == Occurrence::LAST ? 0x7FFFFFFFu - place : place;
}

// An array of tokens that is searched. A match may end at tokens 0 to ends - 1; it may not end at
// the last token, because no token of the array follows there.
template <typename T>
struct Haystack {
    static constexpr u32 N = Pack<T>::N;
    static constexpr u32 LOADS = 4;
    static constexpr u32 CHUNK = WARP * N * LOADS;

    const T* tokens;
    u32 ends;
    // Tokens from the 16-byte boundary at or before token 0 to token 0.
    u32 lead;
    // The place of token 0 on the line.
    u32 place;

    INLINE Haystack(const T* tokens, u32 length, u32 place)
        : tokens(tokens), ends(length == 0 ? 0 : length - 1),
          lead(lead_of(tokens)), place(place) {}

    INLINE u32 chunks() const { return ends == 0 ? 0 : (lead + ends + CHUNK - 1) / CHUNK; }

    // Which of this lane's tokens in a chunk equal `last`, one bit for each token. The chunk begins
    // at token `from`, which is negative if the chunk begins before token 0.
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
            // A chunk at an end of the haystack: tokens are loaded one by one, all in flight at
            // once.
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

    // The token that a bit of `find` stands for; a higher bit stands for a later token. Before
    // token 0 this wraps to a number that is not below `ends`.
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

// What is searched for: the `longest` tokens that end at `*last`. A match may lack the first of
// these tokens, but has at least `shortest`.
template <typename T>
struct Pattern {
    const T* last;
    u32 longest;
    u32 shortest;
};

// The best key of this warp's chunks. `second` is on the line to the right of `h`; in a search for
// the last occurrence it must be empty.
template <Occurrence WHICH, typename T, typename Hint>
INLINE u64 search(Haystack<T> h, const Haystack<T>& second, const Pattern<T>& pattern,
                  const Team& team, const Hint& hint) {
    const u32 lane = lane_id();
    const u32 longest = pattern.longest;
    if (longest < pattern.shortest) return NO_MATCH;
    const T last = *pattern.last;
    const u32 head = h.chunks();
    const u32 chunks = head + second.chunks();
    // Hints are useful only if some warp of the team has a second chunk, which it could skip.
    const bool hints = team.step > 1 && chunks > team.step;

    u64 best = NO_MATCH;
    // A match that this lane finds is of use only if it is longer than this.
    u32 beaten = pattern.shortest - 1;
    u32 skipped = 0;
    for (u32 turn = team.first; turn < chunks; turn += team.step) {
        const u32 chunk = WHICH == Occurrence::LAST ? chunks - 1 - turn : turn;
        if (chunk >= head) {
            h = second;
            skipped = head;
        }
        const i32 from = static_cast<i32>((chunk - skipped) * Haystack<T>::CHUNK - h.lead);
        // A hint in global memory is loaded together with the tokens, so that their latencies
        // overlap. A hint in shared memory is read after the tokens have come, because it may be
        // newer then.
        u32 known = !Hint::NEAR && hints && turn != team.first ? hint.rank() : NO_RANK;
        u32 found = h.find(from, lane, last);
        if (Hint::NEAR && hints) known = hint.rank();
        if (__any_sync(ALL_LANES, known < h.template best_rank<WHICH>(from))) break;
        while (found != 0) {
            const u32 bit = WHICH == Occurrence::LAST ? 31 - __clz(found) : __ffs(found) - 1;
            found &= ~(1u << bit);
            const u32 at = Haystack<T>::token(from, bit, lane);
            // First compares the token that would make the match longer than `beaten`: in text that
            // repeats itself, few candidates have this token.
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
                if (hints && hint.leave(static_cast<u32>(best))) return NO_MATCH;
            } else if (lane == 0 && hints) {
                hint.leave(static_cast<u32>(best));
            }
            return best;
        }
    }
    return warp_min(best);
}
