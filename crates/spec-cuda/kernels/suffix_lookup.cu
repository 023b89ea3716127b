// suffix_lookup: drafts from the longest suffix that occurred before, in a request's own text and in a
// corpus that requests share.
//
// Two launches:
//
// 1. `scan`: a warp has a tile of 512 tokens, 16 a lane in registers, of a request's own text or of
//    the corpus. It looks for the places that have a request's last token (a tile of the corpus for
//    every request, so that the corpus is read once), compares backwards from there, and notes
//    for the tile the longest match and how many windows have it.
// 2. `grow`: a block has a request. The notes say what the longest match is, in which tiles its windows lie,
//    and which numbers these windows have, the most recent first:
//
//        tiles, most recent first   | 3 x 1 | 5 x 2 | - | 5 x 1 | 4 x 9 |     longest 5
//        numbers of its windows             | 0   1 |   | 2     |
//
//    Warps look through these tiles once more and list the windows. The tree then grows from the
//    windows alone, the best node first. Of 64 windows at most, one warp counts the tokens that follow
//    a node's windows, two windows a lane, without a barrier of the block; of more windows, the
//    block counts them in a hash table in shared memory.
//
// Bytes: texts and corpus once; 2^20 tokens of 4 bytes are 0.9 us at 4.6 TB/s.
#include "params/suffix_lookup.cuh"

constexpr u32 LANES = 32;
constexpr u32 ALL = 0xFFFFFFFFu;
constexpr u32 SCAN_THREADS = 256;
constexpr u32 GROW_THREADS = 256;
constexpr u32 WARPS = GROW_THREADS / LANES;
// Chunks of 32 tokens that make a tile.
constexpr u32 CHUNKS = 16;
constexpr u32 TILE = CHUNKS * LANES;
constexpr u32 MAX_DRAFTS = 64;
// A window in the corpus. Places are below 2^31.
constexpr u32 IN_CORPUS = 1u << 31;
// Windows that one warp grows a tree from.
constexpr u32 FEW = 2 * LANES;
// An empty slot of the hash table.
constexpr u32 EMPTY = 0xFFFFFFFFu;

// A text, and how much of it there is.
template <typename T>
struct Text {
    const T* tokens;
    u32 length;
};

template <typename T>
INLINE Text<T> own_text(const Params& p, u32 request) {
    const T* const tokens = static_cast<const T*>(p.tokens.data) + request * p.tokens.stride;
    return {tokens, clamped(p.lengths[request], p.max_len)};
}

template <typename T>
INLINE Text<T> corpus_text(const Params& p) {
    const bool all = p.corpus_length.data == nullptr;
    const u32 length = all ? p.corpus_size : clamped(p.corpus_length[0], p.corpus_size);
    return {static_cast<const T*>(p.corpus), length};
}

// How many of the last tokens of a request end at place `end` of a text, both included.
template <typename T>
INLINE u32 match_at(const Text<T>& text, u32 end, const Text<T>& own, u32 max_match) {
    const u32 most = min(min(max_match, end + 1), own.length);
    u32 n = 0;
    while (n < most) {
        const T token = own.tokens[own.length - 1 - n];
        if (token < 0 || text.tokens[end - n] != token) break;
        n++;
    }
    return n;
}

// A tile in registers: chunk c has the 32 places that end 32 * c before the tile's end, the last place
// in lane 0.
template <typename T>
struct Tile {
    T tokens[CHUNKS];
    u32 end;

    INLINE Tile(const Text<T>& text, u32 tile) : end((tile + 1) * TILE) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const u32 place = at(c);
            // What is behind the text equals no last token, which is not negative.
            tokens[c] = place < text.length ? text.tokens[place] : static_cast<T>(-1);
        }
    }

    INLINE u32 at(u32 chunk) const { return end - 1 - chunk * LANES - threadIdx.x % LANES; }
};

// Goes through the windows of a tile, the most recent first. Calls `found(n, place)` in every lane for
// each chunk that has any: `n` is the length of the lane's match, 0 for none.
template <typename T, typename Found>
INLINE void windows_of(const Tile<T>& tile, const Text<T>& text, const Text<T>& own, T last,
                       u32 max_match, Found found) {
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
        const u32 place = tile.at(c);
        bool candidate = tile.tokens[c] == last && place + 1 < text.length;
        if (__any_sync(ALL, candidate)) {
            candidate = candidate && text.tokens[place + 1] >= 0;
            found(candidate ? match_at(text, place, own, max_match) : 0, place);
        }
    }
}

// The longest match of a tile, and how many windows have it: 0 where none is long enough.
template <typename T>
INLINE u64 note_of(const Params& p, const Tile<T>& tile, const Text<T>& text, const Text<T>& own,
                   T last) {
    u32 longest = 0;
    u32 count = 0;
    if (last >= 0) {
        windows_of(tile, text, own, last, p.max_match, [&](u32 n, u32) {
            const u32 most = __reduce_max_sync(ALL, n);
            if (most < p.min_match || most < longest) return;
            const u32 same = __popc(__ballot_sync(ALL, n == most));
            count = most > longest ? same : count + same;
            longest = most;
        });
    }
    return static_cast<u64>(longest) << 32 | count;
}

// A request's last token, -1 for an empty text.
template <typename T>
INLINE T last_of(const Text<T>& own) {
    return own.length == 0 ? static_cast<T>(-1) : own.tokens[own.length - 1];
}

template <typename T>
INLINE void scan(const Params& p) {
    const u32 lane = threadIdx.x % LANES;
    const u64 warp = static_cast<u64>(blockIdx.x) * (SCAN_THREADS / LANES) + threadIdx.x / LANES;
    const u64 own_warps = static_cast<u64>(p.batch) * p.own_tiles;
    const u32 tiles = p.own_tiles + p.corpus_tiles;
    if (warp >= own_warps + p.corpus_tiles) return;
    if (warp < own_warps) {
        const u32 request = static_cast<u32>(warp / p.own_tiles);
        const u32 tile = static_cast<u32>(warp % p.own_tiles);
        const Text<T> own = own_text<T>(p, request);
        const u64 note = note_of(p, Tile<T>(own, tile), own, own, last_of(own));
        if (lane == 0) p.notes[static_cast<u64>(request) * tiles + p.own_tiles - 1 - tile] = note;
        return;
    }
    const u32 number = static_cast<u32>(warp - own_warps);
    const Text<T> text = corpus_text<T>(p);
    const Tile<T> tile(text, number);
    // Each lane asks for what one of 32 requests ends with, so that no request waits for its own.
    for (u32 base = 0; base < p.batch; base += LANES) {
        Text<T> ahead = {nullptr, 0};
        T ahead_last = static_cast<T>(-1);
        if (base + lane < p.batch) {
            ahead = own_text<T>(p, base + lane);
            ahead_last = last_of(ahead);
        }
        for (u32 i = 0; i < LANES && base + i < p.batch; i++) {
            const u32 request = base + i;
            const T* const tokens =
                static_cast<const T*>(p.tokens.data) + static_cast<u64>(request) * p.tokens.stride;
            const Text<T> own = {tokens, __shfl_sync(ALL, ahead.length, i)};
            const u64 note = note_of(p, tile, text, own, __shfl_sync(ALL, ahead_last, i));
            const u64 place = static_cast<u64>(request) * tiles + tiles - 1 - number;
            if (lane == 0) p.notes[place] = note;
        }
    }
}

// The sum of a value over the threads before this one, and over all threads.
INLINE u32 sum_before(u32 value, u32* sums, u32& total) {
    const u32 lane = threadIdx.x % LANES;
    u32 inclusive = value;
#pragma unroll
    for (u32 step = 1; step < LANES; step *= 2) {
        const u32 other = __shfl_up_sync(ALL, inclusive, step);
        if (lane >= step) inclusive += other;
    }
    __syncthreads();  // before the sums of an earlier call go
    if (lane == LANES - 1) sums[threadIdx.x / LANES] = inclusive;
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        if (i < threadIdx.x / LANES) before += sums[i];
        total += sums[i];
    }
    return before + inclusive - value;
}

// The largest of a value over the block.
INLINE u64 largest_of_block(u64 value, u64* maxima) {
#pragma unroll
    for (u32 step = LANES / 2; step > 0; step /= 2) {
        value = max(value, __shfl_xor_sync(ALL, value, step));
    }
    __syncthreads();  // before the maxima of an earlier call go
    if (threadIdx.x % LANES == 0) maxima[threadIdx.x / LANES] = value;
    __syncthreads();
    u64 largest = maxima[0];
#pragma unroll
    for (u32 i = 1; i < WARPS; i++) largest = max(largest, maxima[i]);
    return largest;
}

// Shared memory of a block, behind which the arrays of its dynamic part lie.
struct Shared {
    u64 maxima[WARPS];
    u32 sums[WARPS];
    // The youngest child of each node so far, 0 for none.
    u32 youngest[MAX_DRAFTS + 1];
    u32 listed;
    u32 offered;
};

template <typename T>
struct Grower {
    const Params& p;
    Shared& s;
    const u32 request;
    const Text<T> own;
    const Text<T> corpus;
    // By window: the place behind its match; the token that it has at the depth that is looked at, and
    // the slot of that token; the offer that it belongs to, from 1 on, 0 for the root.
    u32* const ends;
    T* const tokens;
    u32* const slots;
    u32* const offer_of;
    // The hash table: the most recent window that has the slot's token, and how many have it.
    u32* const firsts;
    u32* const counts;
    // By offer: what it is worth, 0 once it is taken; its parent and its depth.
    u32* const worths;
    u32* const origins;
    // By depth and window, where there are FEW windows at most: the window's token at the depth.
    T* const ahead;

    INLINE T token_at(u32 window, u32 depth) const {
        const u32 end = ends[window];
        const Text<T>& text = end & IN_CORPUS ? corpus : own;
        const u64 place = static_cast<u64>(end & ~IN_CORPUS) + depth;
        return place < text.length ? text.tokens[place] : static_cast<T>(-1);
    }

    // Lists the request's windows, the most recent first; returns the length of their match.
    INLINE u32 list_windows(u32& windows) {
        const u32 tiles = p.own_tiles + p.corpus_tiles;
        const u64* const notes = p.notes + static_cast<u64>(request) * tiles;
        u64 most = 0;
        for (u32 i = threadIdx.x; i < tiles; i += GROW_THREADS) most = max(most, notes[i] >> 32);
        const u32 longest = static_cast<u32>(largest_of_block(most, s.maxima));
        windows = 0;
        if (longest == 0) return 0;
        // The tiles to look through, and the number of the first window of each. A listed tile has a
        // window of its own, so that there are at most as many as windows.
        u32* const listed = firsts;
        u32* const numbers = counts;
        if (threadIdx.x == 0) s.listed = 0;
        __syncthreads();
        for (u32 base = 0; base < tiles && windows < p.max_windows; base += GROW_THREADS) {
            const u32 i = base + threadIdx.x;
            const u64 note = i < tiles ? notes[i] : 0;
            const u32 own_count = (note >> 32) == longest ? static_cast<u32>(note) : 0;
            u32 total;
            const u32 number = windows + sum_before(own_count, s.sums, total);
            if (own_count != 0 && number < p.max_windows) {
                const u32 at = atomicAdd(&s.listed, 1);
                listed[at] = i;
                numbers[at] = number;
            }
            windows += total;
        }
        windows = min(windows, p.max_windows);
        __syncthreads();
        const T last = last_of(own);
        for (u32 at = threadIdx.x / LANES; at < s.listed; at += WARPS) {
            const bool is_own = listed[at] < p.own_tiles;
            const Text<T> text = is_own ? own : corpus;
            const u32 tile = (is_own ? p.own_tiles : tiles) - 1 - listed[at];
            u32 number = numbers[at];
            windows_of(Tile<T>(text, tile), text, own, last, p.max_match, [&](u32 n, u32 place) {
                const u32 same = __ballot_sync(ALL, n == longest);
                const u32 mine = number + __popc(same & ((1u << (threadIdx.x % LANES)) - 1));
                if (n == longest && mine < p.max_windows) {
                    ends[mine] = (place + 1) | (is_own ? 0 : IN_CORPUS);
                }
                number += __popc(same);
            });
        }
        __syncthreads();
        return longest;
    }

    // Offers the children of a node: of the windows that belong to `offer`, the tokens at `depth`.
    INLINE void offer_children(u32 offer, u32 node, u32 depth, u32 left, u32 windows) {
        const u32 mask = p.table - 1;
        for (u32 i = threadIdx.x; i < p.table; i += GROW_THREADS) {
            firsts[i] = EMPTY;
            counts[i] = 0;
        }
        for (u32 w = threadIdx.x; w < windows; w += GROW_THREADS) {
            tokens[w] = offer_of[w] == offer ? token_at(w, depth) : static_cast<T>(-1);
        }
        __syncthreads();
        for (u32 w = threadIdx.x; w < windows; w += GROW_THREADS) {
            const T token = tokens[w];
            if (token < 0) continue;
            u32 slot = static_cast<u32>((static_cast<u64>(token) * 0x9E3779B97F4A7C15ull) >> 40) & mask;
            // The table has twice as many slots as there are windows, so that one is found. All
            // windows of a slot have its token, whichever of them stands there.
            while (true) {
                const u32 seen = atomicCAS(&firsts[slot], EMPTY, w);
                if (seen == EMPTY || tokens[seen] == token) break;
                slot = (slot + 1) & mask;
            }
            atomicMin(&firsts[slot], w);
            atomicAdd(&counts[slot], 1);
            slots[w] = slot;
        }
        __syncthreads();
        const u32 wanted = min(p.width, left);
        for (u32 i = 0; i < wanted; i++) {
            // More windows first, then the more recent one.
            u64 best = 0;
            for (u32 slot = threadIdx.x; slot < p.table; slot += GROW_THREADS) {
                const u64 value = static_cast<u64>(counts[slot]) << 32 |
                                  static_cast<u64>(0xFFFFu - (firsts[slot] & 0xFFFFu)) << 16 | slot;
                if (counts[slot] != 0) best = max(best, value);
            }
            best = largest_of_block(best, s.maxima);
            const u32 count = static_cast<u32>(best >> 32);
            // Worse children have no larger share.
            if (count == 0 || static_cast<u64>(count) * 65536 < static_cast<u64>(p.share_floor) * windows) {
                break;
            }
            const u32 slot = static_cast<u32>(best) & 0xFFFFu;
            const u32 first = firsts[slot];
            const u32 own_offer = s.offered;
            for (u32 w = threadIdx.x; w < windows; w += GROW_THREADS) {
                if (tokens[w] >= 0 && slots[w] == slot) offer_of[w] = own_offer + 1;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                worths[own_offer] = worth_of(count, depth + 1, first);
                origins[own_offer] = node << 8 | (depth + 1);
                counts[slot] = 0;
                s.offered = own_offer + 1;
            }
            __syncthreads();
        }
        __syncthreads();
    }

    INLINE void pad() const {
        T* const drafts = static_cast<T*>(p.drafts.data) + request * p.drafts.stride;
        for (u32 i = threadIdx.x; i <= p.n; i += GROW_THREADS) {
            if (i < p.n) {
                drafts[i] = static_cast<T>(-1);
                if (p.parents.data != nullptr) p.parents[request][i] = -1;
                if (p.shares.data != nullptr) p.shares[request][i] = 0.0f;
            }
            if (p.first_child.data != nullptr) p.first_child[request][i] = -1;
            if (p.next_sibling.data != nullptr) p.next_sibling[request][i] = -1;
            s.youngest[i] = 0;
        }
    }

    // Writes the node number `node`, from 1 on.
    INLINE void write(u32 node, T token, u32 worth, u32 origin, u32 windows) const {
        const u32 parent = origin >> 8;
        static_cast<T*>(p.drafts.data)[request * p.drafts.stride + node - 1] = token;
        if (p.parents.data != nullptr) p.parents[request][node - 1] = static_cast<i32>(parent);
        if (p.shares.data != nullptr) {
            p.shares[request][node - 1] =
                __fdiv_rn(static_cast<float>(worth >> 17), static_cast<float>(windows));
        }
        const u32 elder = s.youngest[parent];
        s.youngest[parent] = node;
        if (elder == 0) {
            if (p.first_child.data != nullptr) p.first_child[request][parent] = static_cast<i32>(node);
        } else if (p.next_sibling.data != nullptr) {
            p.next_sibling[request][elder] = static_cast<i32>(node);
        }
    }

    // What an offer is worth: more windows first, then less depth, then the more recent window.
    INLINE static u32 worth_of(u32 count, u32 depth, u32 first) {
        return count << 17 | (127 - depth) << 10 | (1023 - first);
    }

    INLINE static u32 first_of(u32 worth) { return 1023 - (worth & 1023); }

    // Grows the tree from FEW windows at most; returns how many nodes there are, in the first warp.
    INLINE u32 grow_few(u32 windows, u32 limit) {
        for (u32 i = threadIdx.x; i < limit * FEW; i += GROW_THREADS) {
            if (i % FEW < windows) ahead[i] = token_at(i % FEW, i / FEW);
        }
        __syncthreads();
        if (threadIdx.x >= LANES) return 0;
        const u32 lane = threadIdx.x;
        // The offers that the lane's two windows belong to.
        u32 own_offer[2] = {0, 0};
        u32 offered = 0;
        u32 nodes = 0;
        u32 offer = 0;
        u32 depth = 0;
        while (nodes < p.n) {
            if (depth < limit) {
                const T* const at_depth = ahead + depth * FEW;
                T tokens[2];
                u32 left[2];
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 window = half * LANES + lane;
                    const bool belongs = window < windows && own_offer[half] == offer;
                    tokens[half] = belongs ? at_depth[window] : static_cast<T>(-1);
                    left[half] = __ballot_sync(ALL, tokens[half] >= 0);
                }
                // Each turn takes the windows that have the token of the most recent one that is left.
                // Lane k knows how many windows had the tokens of turns k and LANES + k.
                u32 children[2] = {0, 0};
#pragma unroll 1
                for (u32 turn = 0; (left[0] | left[1]) != 0; turn++) {
                    const u32 first = left[0] != 0 ? __ffs(left[0]) - 1 : LANES + __ffs(left[1]) - 1;
                    const T token = at_depth[first];
                    const u32 low = __ballot_sync(ALL, tokens[0] == token);
                    const u32 high = __ballot_sync(ALL, tokens[1] == token);
                    left[0] &= ~low;
                    left[1] &= ~high;
                    const u32 child = (__popc(low) + __popc(high)) << 10 | (1023 - first);
                    if (turn == lane) children[0] = child;
                    if (turn == LANES + lane) children[1] = child;
                }
                const u32 wanted = min(p.width, p.n - nodes);
#pragma unroll 1
                for (u32 i = 0; i < wanted; i++) {
                    const u32 best = __reduce_max_sync(ALL, max(children[0], children[1]));
                    const u32 count = best >> 10;
                    // Worse children have no larger share.
                    if (count == 0 || count * 65536 < p.share_floor * windows) break;
                    const u32 first = first_of(best);
                    const T token = at_depth[first];
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        if (children[half] == best) children[half] = 0;
                        if (tokens[half] == token) own_offer[half] = offered + 1;
                    }
                    if (lane == 0) {
                        worths[offered] = worth_of(count, depth + 1, first);
                        origins[offered] = nodes << 8 | (depth + 1);
                    }
                    offered++;
                }
                __syncwarp();
            }
            u32 best = 0;
            u32 index = 0;
            for (u32 i = lane; i < offered; i += LANES) {
                const u32 worth = worths[i];
                if (worth > best) {
                    best = worth;
                    index = i;
                }
            }
            const u32 worth = __reduce_max_sync(ALL, best);
            if (worth == 0) break;
            // No two offers are worth the same: windows of one depth belong to one offer each.
            const u32 owner = __ffs(__ballot_sync(ALL, best == worth)) - 1;
            index = __shfl_sync(ALL, index, owner);
            const u32 origin = origins[index];
            nodes++;
            offer = index + 1;
            depth = origin & 0xFF;
            __syncwarp();
            if (lane == 0) {
                write(nodes, ahead[(depth - 1) * FEW + first_of(worth)], worth, origin, windows);
                worths[index] = 0;
            }
            __syncwarp();
        }
        return nodes;
    }

    // Grows the tree from any number of windows; returns how many nodes there are.
    INLINE u32 grow_many(u32 windows, u32 limit) {
        for (u32 w = threadIdx.x; w < windows; w += GROW_THREADS) offer_of[w] = 0;
        __syncthreads();
        u32 nodes = 0;
        u32 offer = 0;
        u32 depth = 0;
        while (nodes < p.n) {
            if (depth < limit) offer_children(offer, nodes, depth, p.n - nodes, windows);
            u64 best = 0;
            for (u32 i = threadIdx.x; i < s.offered; i += GROW_THREADS) {
                if (worths[i] != 0) best = max(best, static_cast<u64>(worths[i]) << 32 | i);
            }
            best = largest_of_block(best, s.maxima);
            if (best == 0) break;
            const u32 index = static_cast<u32>(best);
            const u32 worth = worths[index];
            nodes++;
            offer = index + 1;
            depth = origins[index] & 0xFF;
            __syncthreads();
            if (threadIdx.x == 0) {
                write(nodes, token_at(first_of(worth), depth - 1), worth, origins[index], windows);
                worths[index] = 0;
            }
            __syncthreads();
        }
        return nodes;
    }

    INLINE void run() {
        pad();
        if (threadIdx.x == 0) s.offered = 0;
        u32 windows;
        const u32 longest = list_windows(windows);
        // A product beyond every depth is cut before it is an integer: drafts are at most 64.
        const float depths = min(p.drafts_per_match * static_cast<float>(longest), 65536.0f);
        const u32 limit = min(p.n, static_cast<u32>(depths));
        u32 nodes = 0;
        if (windows > FEW) {
            nodes = grow_many(windows, limit);
        } else if (windows != 0) {
            nodes = grow_few(windows, limit);
        }
        if (threadIdx.x == 0) {
            p.counts[request] = static_cast<i32>(nodes);
            if (p.match_lengths != nullptr) p.match_lengths[request] = static_cast<i32>(longest);
            u32 bits = p.lengths[request] == own.length ? 0 : BAD_LENGTHS;
            if (p.corpus_length.data != nullptr && p.corpus_length[0] != corpus.length) {
                bits |= BAD_LENGTHS;
            }
            raise(p.flags, bits);
        }
    }
};

template <typename T>
INLINE void grow(const Params& p) {
    __shared__ Shared s;
    extern __shared__ u64 dynamic[];
    T* const ahead = reinterpret_cast<T*>(dynamic);
    T* const tokens = ahead + FEW * p.n;
    u32* const words = reinterpret_cast<u32*>(tokens + p.max_windows + (p.max_windows & 1));
    u32* const slots = words + p.max_windows;
    u32* const offer_of = slots + p.max_windows;
    u32* const firsts = offer_of + p.max_windows;
    u32* const counts = firsts + p.table;
    u32* const worths = counts + p.table;
    u32* const origins = worths + p.offers;
    for (u32 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        Grower<T> grower = {p,     s,        request, own_text<T>(p, request), corpus_text<T>(p), words,
                            tokens, slots, offer_of, firsts, counts, worths, origins, ahead};
        grower.run();
        __syncthreads();  // before the next request's
    }
}

SPEC_KERNEL(suffix_lookup_scan_i32, scan<i32>, Params, SCAN_THREADS)
SPEC_KERNEL(suffix_lookup_scan_i64, scan<i64>, Params, SCAN_THREADS)
SPEC_KERNEL(suffix_lookup_grow_i32, grow<i32>, Params, GROW_THREADS)
SPEC_KERNEL(suffix_lookup_grow_i64, grow<i64>, Params, GROW_THREADS)
