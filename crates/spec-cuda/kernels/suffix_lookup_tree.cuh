// suffix_lookup: the tree of drafts that grows from a request's windows.
//
// Each node belongs to the windows that continue with the node's path. An offer is a child that
// could become the next node; the offer with the highest priority does.
#pragma once

#include "suffix_lookup_windows.cuh"

// Marks a window in the corpus. Places are below 2^31.
constexpr u32 IN_CORPUS = 1u << 31;
// An empty slot of the hash table.
constexpr u32 EMPTY = 0xFFFFFFFFu;

// Static shared memory of a block. The arrays of `Grower` are in dynamic shared memory.
struct Shared {
    u64 maxima[WARPS];
    // For each warp: the longest match, and the number of its windows.
    uint2 match_counts[WARPS];
    // The longest match of all texts, and the number of its windows that are used.
    u32 longest;
    u32 windows;
    // The latest child of each node so far; 0 for none.
    u32 youngest[MAX_DRAFTS + 1];
    u32 listed;
    u32 offered;

    INLINE void clear() {
        listed = 0;
        offered = 0;
    }
};

// Writes a draft of a request. 32-bit tokens may be written as 64-bit drafts.
template <typename T>
INLINE void put_draft(const Params& p, u32 request, u32 column, T token) {
    const u64 at = request * p.drafts.stride + column;
    if (sizeof(T) < sizeof(i64) && p.wide) {
        static_cast<i64*>(p.drafts.data)[at] = token;
    } else {
        static_cast<T*>(p.drafts.data)[at] = token;
    }
}

// Pads a request's outputs, and clears s.youngest for `Grower::write`. By the last warps, because
// the first warps have notes to read.
template <typename T>
INLINE void pad(const Params& p, u32 request, const Text<T>& own, Shared& s) {
    const bool has_last = p.pad_with_last && own.length != 0;
    const T padding = has_last ? own.tokens[own.length - 1] : static_cast<T>(-1);
    for (u32 i = THREADS - 1 - threadIdx.x; i <= p.n; i += THREADS) {
        if (i < p.n) {
            put_draft(p, request, i, padding);
            if (p.parents.data != nullptr) p.parents[request][i] = -1;
            if (p.shares.data != nullptr) p.shares[request][i] = 0.0f;
        }
        if (p.first_child.data != nullptr) p.first_child[request][i] = -1;
        if (p.next_sibling.data != nullptr) p.next_sibling[request][i] = -1;
        s.youngest[i] = 0;
    }
}

INLINE u32 quads_of(u32 tiles) { return (tiles + 3) / 4; }

template <typename T>
struct Grower {
    const Params& p;
    Shared& s;
    const u32 request;
    // The largest number of drafts of the request.
    const u32 n;
    const Text<T> own;
    const Text<T> corpus;
    // For each window: the place after its match; its token at the current depth; the hash table
    // slot of that token; and 1 + the number of the offer to which it belongs, 0 for the root.
    u32* const ends;
    T* const tokens;
    u32* const slots;
    u32* const offer_of;
    // The hash table. For each slot: the most recent window with the slot's token, and the number
    // of such windows.
    u32* const firsts;
    u32* const counts;
    // For each offer: its priority, 0 after it has become a node; and its parent and depth.
    u32* const priorities;
    u32* const origins;
    // Used for at most MAX_WARP_WINDOWS windows, for each depth and window: the window's token at
    // the depth, and the set of windows with the same token there, one bit each; empty if the token
    // is negative.
    T* const ahead;
    u64* const same_token;
    // Notes of tiles of the request's own text, the most recent first.
    const Note* const own_notes;

    INLINE T token_at(u32 window, u32 depth) const {
        const u32 end = ends[window];
        const bool is_own = (end & IN_CORPUS) == 0;
        const u32 length = is_own ? own.length : corpus.length;
        const u64 place = static_cast<u64>(end & ~IN_CORPUS) + depth;
        return place < length ? (is_own ? own.tokens : corpus.tokens)[place] : static_cast<T>(-1);
    }

    // The notes of four consecutive tiles: either all written by this kernel, or all written by
    // `scan`.
    INLINE Quad quad(u32 number) const {
        const u32 here = quads_of(p.here);
        const uint4* const scanned = reinterpret_cast<const uint4*>(p.notes + request * u64{p.row});
        const bool is_here = number < here;
        Quad quad;
        quad.raw = *(is_here ? reinterpret_cast<const uint4*>(own_notes) + number
                             : scanned + number - here);
        quad.first = is_here ? 4 * number : p.here + 4 * (number - here);
        const u32 end = is_here ? p.here : p.own_tiles + p.corpus_tiles;
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (quad.first + k >= end) quad.notes[k].word = 0;
        }
        return quad;
    }

    INLINE void list(u32 number, u32 place, bool is_own) {
        if (number < p.max_windows) ends[number] = (place + 1) | (is_own ? 0 : IN_CORPUS);
    }

    // Lists the request's windows, the most recent first. Returns the length of their match.
    INLINE u32 list_windows(u32& windows) {
        // A short text is listed by one warp, which waits for no other warp.
        const bool is_small = p.own_tiles == p.here && p.corpus_tiles == 0 && p.here <= 4 * WARP;
        if (!is_small) {
            list_quads();
        } else if (threadIdx.x < WARP) {
            list_own();
        }
        __syncthreads();
        windows = s.windows;
        if (s.listed != 0) search_again(s.longest, firsts, counts);
        return s.longest;
    }

    // Lists the windows of the request's own text. By the first warp; a thread has consecutive
    // tiles.
    INLINE void list_own() {
        const u32 each = (p.here + WARP - 1) / WARP;
        const u32 begin = threadIdx.x * each;
        const u32 end = min(begin + each, p.here);
        MatchCount matches = {0, 0};
#pragma unroll 1
        for (u32 i = begin; i < end; i++) matches.add(own_notes[i]);
        const u32 longest = longest_of(matches, 1);
        if (matches.count == 0) return;
        u32 number = matches.before;
#pragma unroll 1
        for (u32 i = begin; i < end; i++) number = list_tile(i, own_notes[i], longest, number);
    }

    // Lists the windows of all texts. A thread has consecutive quads, and several of them in
    // flight.
    INLINE void list_quads() {
        constexpr u32 AT_ONCE = 4;
        const u32 quads = quads_of(p.here) + quads_of(p.own_tiles - p.here + p.corpus_tiles);
        const u32 each = (quads + THREADS - 1) / THREADS;
        const u32 begin = min(threadIdx.x * each, quads);
        const u32 end = min(begin + each, quads);
        MatchCount matches = {0, 0};
#pragma unroll 1
        for (u32 base = begin; base < end; base += AT_ONCE) {
            Quad found[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) found[i] = quad(min(base + i, quads - 1));
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (base + i >= end) break;
#pragma unroll
                for (u32 k = 0; k < 4; k++) matches.add(found[i].notes[k]);
            }
        }
        const u32 longest = longest_of(matches, WARPS);
        if (matches.count == 0) return;
        u32 number = matches.before;
#pragma unroll 1
        for (u32 i = begin; i < end && number < p.max_windows; i++) {
            const Quad found = quad(i);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                number = list_tile(found.first + k, found.notes[k], longest, number);
            }
        }
    }

    // The longest match among the `matches` of the first `warps` warps. Afterwards `matches` counts
    // only the windows with this match.
    INLINE u32 longest_of(MatchCount& matches, u32 warps) {
        u32 all;
        const u32 longest = matches.reduce(s.match_counts, warps, all);
        if (threadIdx.x == 0) {
            s.longest = longest;
            s.windows = min(all, p.max_windows);
        }
        return longest;
    }

    // Lists the windows of a tile whose first window has the number `number`. Returns the number of
    // the next window. If the tile has more than two windows, it must be searched again: `firsts`
    // stores the tile, and `counts` stores `number`. Each such tile has several windows, so there
    // are fewer such tiles than windows.
    INLINE u32 list_tile(u32 tile, Note note, u32 longest, u32 number) {
        if (note.longest() != longest || number >= p.max_windows) return number;
        if (note.count() > 2) {
            const u32 at = atomicAdd(&s.listed, 1);
            firsts[at] = tile;
            counts[at] = number;
        } else {
            const u32 base = tile_of(tile) * TILE;
            list(number, base + note.first(), tile < p.own_tiles);
            if (note.count() == 2) list(number + 1, base + note.second(), tile < p.own_tiles);
        }
        return number + note.count();
    }

    INLINE u32 tile_of(u32 i) const {
        return (i < p.own_tiles ? p.own_tiles : p.own_tiles + p.corpus_tiles) - 1 - i;
    }

    INLINE void search_again(u32 longest, const u32* listed, const u32* numbers) {
        const Suffix<T> suffix(p, own);
        const T last = suffix.last();
#pragma unroll 1
        for (u32 at = threadIdx.x / WARP; at < s.listed; at += WARPS) {
            const bool is_own = listed[at] < p.own_tiles;
            const Text<T> text = {is_own ? own.tokens : corpus.tokens,
                                  is_own ? own.length : corpus.length};
            const Tile<T> tile(text.tokens, text.length, tile_of(listed[at]));
            u32 number = numbers[at];
            u32 bits = tile.candidates(text.length, [&](T token) { return token == last; });
            for (;;) {
                const u32 place = take(bits);
                if (place == NONE) break;
                if (suffix.match(text.tokens, tile.base + place) != longest) continue;
                if (lane_id() == 0) list(number, tile.base + place, is_own);
                number++;
            }
        }
        __syncthreads();
    }

    // Offers the children of a node: the tokens at `depth` of the windows that belong to `offer`.
    INLINE void offer_children(u32 offer, u32 node, u32 depth, u32 left, u32 windows) {
        const u32 mask = p.table - 1;
        for (u32 i = threadIdx.x; i < p.table; i += THREADS) {
            firsts[i] = EMPTY;
            counts[i] = 0;
        }
        for (u32 w = threadIdx.x; w < windows; w += THREADS) {
            tokens[w] = offer_of[w] == offer ? token_at(w, depth) : static_cast<T>(-1);
        }
        __syncthreads();
        for (u32 w = threadIdx.x; w < windows; w += THREADS) {
            const T token = tokens[w];
            if (token < 0) continue;
            u32 slot =
                static_cast<u32>((static_cast<u64>(token) * 0x9E3779B97F4A7C15ull) >> 40) & mask;
            // The table has at least twice as many slots as there are windows, so an empty slot
            // exists. All windows of a slot have the same token, so any of them can represent it.
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
            // The child with more windows first; among equals, the child with the more recent
            // window.
            u64 best = 0;
            for (u32 slot = threadIdx.x; slot < p.table; slot += THREADS) {
                const u64 value = static_cast<u64>(counts[slot]) << 32 |
                                  static_cast<u64>(0xFFFFu - (firsts[slot] & 0xFFFFu)) << 16 | slot;
                if (counts[slot] != 0) best = max(best, value);
            }
            best = largest_of_block(best, s.maxima);
            const u32 count = static_cast<u32>(best >> 32);
            // All remaining children have at most this share of the windows.
            if (count == 0 ||
                static_cast<u64>(count) * 65536 < static_cast<u64>(p.share_floor) * windows) {
                break;
            }
            const u32 slot = static_cast<u32>(best) & 0xFFFFu;
            const u32 first = firsts[slot];
            const u32 own_offer = s.offered;
            for (u32 w = threadIdx.x; w < windows; w += THREADS) {
                if (tokens[w] >= 0 && slots[w] == slot) offer_of[w] = own_offer + 1;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                priorities[own_offer] = priority_of(count, depth + 1, first);
                origins[own_offer] = node << 8 | (depth + 1);
                counts[slot] = 0;
                s.offered = own_offer + 1;
            }
            __syncthreads();
        }
        __syncthreads();
    }

    INLINE static float window_share(u32 count, u32 windows) {
        return __fmul_rn(static_cast<float>((count << 20) / windows), 1.0f / 1048576.0f);
    }

    // Writes node number `node`, counted from 1.
    INLINE void write(u32 node, T token, u32 priority, u32 origin, u32 windows) const {
        const u32 parent = origin >> 8;
        put_draft(p, request, node - 1, token);
        if (p.parents.data != nullptr) p.parents[request][node - 1] = static_cast<i32>(parent);
        if (p.shares.data != nullptr) {
            p.shares[request][node - 1] = window_share(priority >> 17, windows);
        }
        const u32 elder = s.youngest[parent];
        s.youngest[parent] = node;
        if (elder == 0) {
            if (p.first_child.data != nullptr) {
                p.first_child[request][parent] = static_cast<i32>(node);
            }
        } else if (p.next_sibling.data != nullptr) {
            p.next_sibling[request][elder] = static_cast<i32>(node);
        }
    }

    // The priority of an offer: more windows first, then smaller depth, then the more recent
    // window.
    INLINE static u32 priority_of(u32 count, u32 depth, u32 first) {
        return count << 17 | (127 - depth) << 10 | (1023 - first);
    }

    INLINE static u32 first_of(u32 priority) { return 1023 - (priority & 1023); }

    // Writes the node at `depth` of a chain, with which `count` of the windows agree.
    INLINE void write_in_chain(u32 depth, T token, u32 count, u32 windows) const {
        put_draft(p, request, depth, token);
        if (p.parents.data != nullptr) p.parents[request][depth] = static_cast<i32>(depth);
        if (p.shares.data != nullptr) p.shares[request][depth] = window_share(count, windows);
        if (p.first_child.data != nullptr) {
            p.first_child[request][depth] = static_cast<i32>(depth + 1);
        }
    }

    // Drafts the tokens from depth `from` on, up to `end`, on which all windows of `node` agree.
    // Returns the depth at which the drafts end. `first` is one of these windows. By the first
    // warp.
    INLINE u32 follow_windows(u64 node, u32 first, u32 from, u32 end, u32 windows) const {
        for (;;) {
            const u32 depth = from + threadIdx.x;
            const u32 at = depth * MAX_WARP_WINDOWS + first;
            const bool agree = depth < end && (same_token[at] & node) == node;
            const u32 stops = __ballot_sync(ALL_LANES, !agree);
            const u32 drafted = stops != 0 ? __ffs(stops) - 1 : WARP;
            if (threadIdx.x < drafted) write_in_chain(depth, ahead[at], __popcll(node), windows);
            from += drafted;
            if (drafted < WARP) return from;
        }
    }

    // Of the windows of `node`, those with the same token at `depth` as `window`, which is one of
    // this lane's windows; empty if `window` is not one of the node's.
    INLINE u64 same_token_in(u64 node, u32 depth, u32 window) const {
        return (node >> window & 1) != 0 ? same_token[depth * MAX_WARP_WINDOWS + window] & node : 0;
    }

    // Grows a chain (every node has at most one child) from at most MAX_WARP_WINDOWS windows.
    // Returns the number of nodes. By the first warp.
    INLINE u32 grow_chain(u32 windows, u32 limit) const {
        u64 node = all_of(windows);
        u32 first = 0;
        u32 nodes = 0;
#pragma unroll 1
        for (;;) {
            nodes = follow_windows(node, first, nodes, limit, windows);
            // The windows continue with different tokens, or with a negative token.
            if (nodes == limit) return nodes;
            // The token with more windows first; among equals, the one with the more recent window.
            u32 best = 0;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 window = half * WARP + threadIdx.x;
                const u32 count = __popcll(same_token_in(node, nodes, window));
                if (count != 0) best = max(best, count << 6 | (MAX_WARP_WINDOWS - 1 - window));
            }
            best = __reduce_max_sync(ALL_LANES, best);
            const u32 count = best >> 6;
            if (count == 0 || count * 65536 < p.share_floor * windows) return nodes;
            first = MAX_WARP_WINDOWS - 1 - (best & (MAX_WARP_WINDOWS - 1));
            const u32 at = nodes * MAX_WARP_WINDOWS + first;
            node &= same_token[at];
            if (threadIdx.x == 0) write_in_chain(nodes, ahead[at], count, windows);
            nodes++;
        }
    }

    INLINE static u64 all_of(u32 windows) { return ~0ull >> (MAX_WARP_WINDOWS - windows); }

    // Loads the tokens that follow at most MAX_WARP_WINDOWS windows, and compares those of each
    // depth.
    INLINE void load_ahead(u32 windows, u32 limit) {
        static_assert(MAX_WARP_WINDOWS % WARP == 0, "a warp has one depth at a time");
        for (u32 i = threadIdx.x; i < limit * MAX_WARP_WINDOWS; i += THREADS) {
            const u32 window = i % MAX_WARP_WINDOWS;
            ahead[i] =
                window < windows ? token_at(window, i / MAX_WARP_WINDOWS) : static_cast<T>(-1);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < limit * MAX_WARP_WINDOWS; i += THREADS) {
            if (i % MAX_WARP_WINDOWS < windows) {
                same_token[i] = same_token_at(ahead + i / MAX_WARP_WINDOWS * MAX_WARP_WINDOWS,
                                              windows, ahead[i]);
            }
        }
        __syncthreads();
    }

    // The windows with `token` at a depth; none if the token is negative.
    INLINE static u64 same_token_at(const T* at_depth, u32 windows, T token) {
        constexpr u32 STEP = 8;
        if (token < 0) return 0;
        u64 found = 0;
#pragma unroll 1
        for (u32 w = 0; w < windows; w += STEP) {
            u32 bits = 0;
#pragma unroll
            for (u32 part = 0; part < STEP; part += Pack<T>::N) {
                Pack<T> pack;
                pack.raw = *reinterpret_cast<const uint4*>(at_depth + w + part);
#pragma unroll
                for (u32 k = 0; k < Pack<T>::N; k++) {
                    if (pack.items[k] == token) bits |= 1u << (part + k);
                }
            }
            found |= static_cast<u64>(bits) << w;
        }
        return found;
    }

    // Grows the tree from at most MAX_WARP_WINDOWS windows. Returns the number of nodes, in the
    // first warp.
    INLINE u32 grow_by_warp(u32 windows, u32 limit) {
        load_ahead(windows, limit);
        if (threadIdx.x >= WARP) return 0;
        if (p.width == 1) return grow_chain(windows, limit);
        const u32 lane = threadIdx.x;
        // The offers to which the lane's two windows belong.
        u32 own_offer[2] = {0, 0};
        u32 offered = 0;
        u32 offer = 0;
        // While all windows agree, there is only one possible child.
        u32 nodes = follow_windows(all_of(windows), 0, 0, limit, windows);
        u32 depth = nodes;
        while (nodes < n) {
            if (depth < limit) {
                const u32 low = __ballot_sync(ALL_LANES, own_offer[0] == offer);
                const u32 high = __ballot_sync(ALL_LANES, own_offer[1] == offer);
                const u64 node = (static_cast<u64>(high) << WARP | low) & all_of(windows);
                // A child is represented by the most recent of its windows.
                u64 members[2];
                u32 children[2];
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 window = half * WARP + lane;
                    members[half] = same_token_in(node, depth, window);
                    const bool is_first =
                        members[half] != 0 && __ffsll(members[half]) - 1 == window;
                    children[half] = is_first ? __popcll(members[half]) << 10 | (1023 - window) : 0;
                }
                const u32 wanted = min(p.width, n - nodes);
#pragma unroll 1
                for (u32 i = 0; i < wanted; i++) {
                    const u32 best = __reduce_max_sync(ALL_LANES, max(children[0], children[1]));
                    const u32 count = best >> 10;
                    // All remaining children have at most this share of the windows.
                    if (count == 0 || count * 65536 < p.share_floor * windows) break;
                    const u32 first = first_of(best);
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        if (children[half] == best) children[half] = 0;
                        if ((members[half] >> first & 1) != 0) own_offer[half] = offered + 1;
                    }
                    if (lane == 0) {
                        priorities[offered] = priority_of(count, depth + 1, first);
                        origins[offered] = nodes << 8 | (depth + 1);
                    }
                    offered++;
                }
                __syncwarp();
            }
            u32 best = 0;
            u32 index = 0;
            for (u32 i = lane; i < offered; i += WARP) {
                const u32 priority = priorities[i];
                if (priority > best) {
                    best = priority;
                    index = i;
                }
            }
            const u32 priority = __reduce_max_sync(ALL_LANES, best);
            if (priority == 0) break;
            // No two offers have the same priority, because each window of a depth belongs to only
            // one offer.
            const u32 owner = __ffs(__ballot_sync(ALL_LANES, best == priority)) - 1;
            index = __shfl_sync(ALL_LANES, index, owner);
            const u32 origin = origins[index];
            nodes++;
            offer = index + 1;
            depth = origin & 0xFF;
            __syncwarp();
            if (lane == 0) {
                write(nodes, ahead[(depth - 1) * MAX_WARP_WINDOWS + first_of(priority)], priority,
                      origin, windows);
                priorities[index] = 0;
            }
            __syncwarp();
        }
        return nodes;
    }

    // Grows the tree from any number of windows, by the whole block. Returns the number of nodes.
    INLINE u32 grow_by_block(u32 windows, u32 limit) {
        for (u32 w = threadIdx.x; w < windows; w += THREADS) offer_of[w] = 0;
        __syncthreads();
        u32 nodes = 0;
        u32 offer = 0;
        u32 depth = 0;
        while (nodes < n) {
            if (depth < limit) offer_children(offer, nodes, depth, n - nodes, windows);
            u64 best = 0;
            for (u32 i = threadIdx.x; i < s.offered; i += THREADS) {
                if (priorities[i] != 0) best = max(best, static_cast<u64>(priorities[i]) << 32 | i);
            }
            best = largest_of_block(best, s.maxima);
            if (best == 0) break;
            const u32 index = static_cast<u32>(best);
            const u32 priority = priorities[index];
            nodes++;
            offer = index + 1;
            depth = origins[index] & 0xFF;
            __syncthreads();
            if (threadIdx.x == 0) {
                write(nodes, token_at(first_of(priority), depth - 1), priority, origins[index],
                      windows);
                priorities[index] = 0;
            }
            __syncthreads();
        }
        return nodes;
    }

    INLINE void run() {
        u32 windows;
        const u32 longest = list_windows(windows);
        // The product is clamped before the conversion to an integer; there are at most 64 drafts.
        const float depths = min(p.drafts_per_match * static_cast<float>(longest), 65536.0f);
        const u32 limit = min(n, static_cast<u32>(depths));
        u32 nodes = 0;
        if (windows > MAX_WARP_WINDOWS) {
            nodes = grow_by_block(windows, limit);
        } else if (windows != 0) {
            nodes = grow_by_warp(windows, limit);
        }
        if (threadIdx.x == 0) {
            p.counts[request] = static_cast<i32>(nodes);
            if (p.match_lengths != nullptr) p.match_lengths[request] = static_cast<i32>(longest);
        }
    }
};

