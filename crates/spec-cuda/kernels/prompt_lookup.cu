// prompt_lookup: finds an earlier occurrence of the last tokens of a text, and drafts the tokens
// that followed that occurrence. ngram_search.cuh has the search. No request depends on another.
//
// If one block searches for a request, that block writes the drafts. If several blocks do, each
// stores its best key in its slot, and the block that finishes last writes the drafts. No block
// waits for another, so it does not matter which blocks the device runs at the same time.
//
// Bytes: each token once, up to a match of full length. 256 texts of 131072 tokens of 8 bytes
// without a match are 268 MB: 58 us at 4.6 TB/s.
#include "ngram_search.cuh"
#include "params/prompt_lookup.cuh"

// Determines which block of a team finishes last. The upper bits of a word in the workspace have
// the number of the launch, the lower bits count the blocks that have finished. Before the launch,
// the word has another number; a block that reads such a number starts the count.
struct Ticket {
    static constexpr u64 COUNT = 31;

    u64* word;
    // The number without the bits of the count.
    u64 number;

    INLINE Ticket(u64* word, u64 number) : word(word), number(number & ~COUNT) {}

    INLINE void begin() const {
        u64 seen;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
        // If the exchange fails, another block of the team has started the count: no other code
        // writes this word.
        if ((seen & ~COUNT) != number) atomicCAS(word, seen, number);
    }

    // Counts this block. Returns whether all other blocks were counted before; if so, everything
    // that they had stored before is visible to the caller.
    INLINE bool is_last(u32 blocks) const {
        u64 before;
        asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                     : "=l"(before)
                     : "l"(word), "l"(1ull)
                     : "memory");
        return (before & COUNT) == blocks - 1;
    }

    // Sets the count to 0, because a replay of a captured launch has the same number.
    INLINE void rewind() const { store_relaxed(word, number); }
};

template <typename T, Occurrence WHICH>
INLINE void look_up(const Params& p) {
    __shared__ u64 keys[WARPS];
    __shared__ u32 hints[WARPS];
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const Team team(p.block_bits, p.warp_bits, WARPS, Cluster::alone());
    const u32 row = team.request;
    const bool has_request = row < p.batch;
    const u32 blocks = 1u << p.block_bits;
    const Ticket ticket(p.tickets + row, p.number);
    if (lane == 0) hints[warp] = NO_RANK;
    // Without `requests`, request i has text i.
    i64 text = row;
    u32 limit = p.max_draft;
    if (has_request && p.max_drafts != nullptr) limit = clamped(p.max_drafts[row], limit);
    if (has_request && p.requests.data != nullptr) text = p.requests[row];
    const bool known = has_request && static_cast<u64>(text) < p.texts;
    const i64 given = known ? p.lengths[text] : 0;
    if (blocks > 1 && threadIdx.x == 0) ticket.begin();
    __syncthreads();

    const u32 length = clamped(given, p.cols);
    const T* const tokens =
        static_cast<const T*>(p.tokens.data) + (known ? text : 0) * p.tokens.stride;
    u64* const slots = p.slots + 2 * (static_cast<u64>(row) << p.block_bits);
    u64 key = NO_MATCH;
    if (length > 1 && limit > 0) {
        const Haystack<T> all(tokens, length, 0);
        const Haystack<T> empty(tokens, 0, length);
        const Pattern<T> pattern = {tokens + length - 1, min(p.max_ngram, length - 1),
                                    p.min_ngram};
        const SlotHint hint = {&hints[warp - team.own], slots, blocks, p.number};
        key = search<WHICH>(all, empty, pattern, team, hint);
    }
    if (lane == 0) keys[warp] = key;
    __syncthreads();
    // One warp for each request continues.
    if (team.own != 0 || !has_request) return;
    key = warp_min(lane < team.here ? keys[warp + lane] : NO_MATCH);
    if (blocks > 1) {
        bool last = false;
        if (lane == 0) {
            Slot{slots + 2 * blockIdx.y}.store(p.number, key);
            last = ticket.is_last(blocks);
        }
        if (!__shfl_sync(ALL_LANES, last, 0)) return;
        // What is visible to lane 0 becomes visible to all lanes.
        __syncwarp();
        key = NO_MATCH;
        if (lane < blocks) {
            const Slot slot = {slots + 2 * lane};
            key = Slot::key(load_relaxed(slot.words));
            slot.clear();
        }
        key = warp_min(key);
        if (lane == 0) ticket.rewind();
    }

    const u32 from = rank_of<WHICH>(static_cast<u32>(key)) + 1;
    const u32 count = key == NO_MATCH ? 0 : min(limit, length - from);
    const T padding = p.pad_with_last && length > 0 ? tokens[length - 1] : static_cast<T>(-1);
    const u64 first = row * p.drafts.stride;
    for (u32 i = lane; i < p.max_draft; i += WARP) {
        const T token = i < count ? tokens[from + i] : padding;
        if (sizeof(T) < sizeof(i64) && p.wide) {
            static_cast<i64*>(p.drafts.data)[first + i] = token;
        } else {
            static_cast<T*>(p.drafts.data)[first + i] = token;
        }
    }
    if (lane == 0) {
        p.counts[row] = static_cast<i32>(count);
        const bool is_bad = known ? length != given : text != -1;
        raise(p.flags, is_bad ? BAD_LENGTHS : 0);
    }
}

#define LOOKER(dtype, T, which, WHICH)                                                      \
    SPEC_KERNEL_BLOCKS(prompt_lookup_##which##_##dtype, (look_up<T, Occurrence::WHICH>), Params, \
                       THREADS, RESIDENT)

LOOKER(i32, i32, first, FIRST)
LOOKER(i64, i64, first, FIRST)
LOOKER(i32, i32, last, LAST)
LOOKER(i64, i64, last, LAST)
