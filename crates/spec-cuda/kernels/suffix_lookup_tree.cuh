// suffix_lookup: the tree of drafts that grows from a request's windows.
#pragma once

#include "suffix_lookup_windows.cuh"

constexpr u32 MAX_DRAFTS = 64;
// A window in the corpus. Places are below 2^31.
constexpr u32 IN_CORPUS = 1u << 31;
// Windows that one warp grows a tree from.
constexpr u32 FEW = 2 * WARP;
// An empty slot of the hash table.
constexpr u32 EMPTY = 0xFFFFFFFFu;

// Shared memory of a block, behind which the arrays of its dynamic part lie.
struct Shared {
    u64 maxima[WARPS];
    // Of each warp: the longest match, and the number of its windows.
    uint2 tallies[WARPS];
    // The longest match of all, and how many of its windows count.
    u32 longest;
    u32 windows;
    // The youngest child of each node so far, 0 for none.
    u32 youngest[MAX_DRAFTS + 1];
    u32 listed;
    u32 offered;

    INLINE void clear() {
        listed = 0;
        offered = 0;
    }
};

// Writes a draft of a request. Drafts of tokens of 32 bits may have 64.
template <typename T>
INLINE void put_draft(const Params& p, u32 request, u32 column, T token) {
    const u64 at = request * p.drafts.stride + column;
    if (sizeof(T) < sizeof(i64) && p.wide) {
        static_cast<i64*>(p.drafts.data)[at] = token;
    } else {
        static_cast<T*>(p.drafts.data)[at] = token;
    }
}

// Pads a request's outputs, and prepares what `Grower::write` knows. The last warps, which have none of
// the first notes, do this.
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
    // The most drafts of the request.
    const u32 n;
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
    // By depth and window, where there are FEW windows at most: the window's token at the depth, and
    // the windows that have the same token there, a bit each: none where the token is negative.
    T* const ahead;
    u64* const alike;
    // Notes of tiles of the request's own text, the most recent first.
    const Note* const own_notes;

    INLINE T token_at(u32 window, u32 depth) const {
        const u32 end = ends[window];
        const bool is_own = (end & IN_CORPUS) == 0;
        const u32 length = is_own ? own.length : corpus.length;
        const u64 place = static_cast<u64>(end & ~IN_CORPUS) + depth;
        return place < length ? (is_own ? own.tokens : corpus.tokens)[place] : static_cast<T>(-1);
    }

    // The notes of four successive tiles. A quad has tiles that this kernel notes, or tiles that `scan`
    // notes.
    INLINE Quad quad(u32 number) const {
        const u32 here = quads_of(p.here);
        const uint4* const scanned = reinterpret_cast<const uint4*>(p.notes + request * u64{p.row});
        const bool is_here = number < here;
        Quad quad;
        quad.raw = *(is_here ? reinterpret_cast<const uint4*>(own_notes) + number : scanned + number - here);
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

    // Lists the request's windows, the most recent first; returns the length of their match.
    INLINE u32 list_windows(u32& windows) {
        // One warp alone has no other warps to wait for.
        const bool is_small = p.own_tiles == p.here && p.corpus_tiles == 0 && p.here <= 4 * WARP;
        if (!is_small) {
            list_quads();
        } else if (threadIdx.x < WARP) {
            list_own();
        }
        __syncthreads();
        windows = s.windows;
        if (s.listed != 0) look_again(s.longest, firsts, counts);
        return s.longest;
    }

    // Lists the windows of the request's own text. By the first warp; a thread has successive tiles.
    INLINE void list_own() {
        const u32 each = (p.here + WARP - 1) / WARP;
        const u32 begin = threadIdx.x * each;
        const u32 end = min(begin + each, p.here);
        Tally tally = {0, 0};
#pragma unroll 1
        for (u32 i = begin; i < end; i++) tally.add(own_notes[i]);
        const u32 longest = longest_of(tally, 1);
        if (tally.count == 0) return;
        u32 number = tally.before;
#pragma unroll 1
        for (u32 i = begin; i < end; i++) number = list_tile(i, own_notes[i], longest, number);
    }

    // Lists the windows of all texts. A thread has successive quads, some of them under way at a time.
    INLINE void list_quads() {
        constexpr u32 AT_ONCE = 4;
        const u32 quads = quads_of(p.here) + quads_of(p.own_tiles - p.here + p.corpus_tiles);
        const u32 each = (quads + THREADS - 1) / THREADS;
        const u32 begin = min(threadIdx.x * each, quads);
        const u32 end = min(begin + each, quads);
        Tally tally = {0, 0};
#pragma unroll 1
        for (u32 base = begin; base < end; base += AT_ONCE) {
            Quad found[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) found[i] = quad(min(base + i, quads - 1));
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (base + i >= end) break;
#pragma unroll
                for (u32 k = 0; k < 4; k++) tally.add(found[i].notes[k]);
            }
        }
        const u32 longest = longest_of(tally, WARPS);
        if (tally.count == 0) return;
        u32 number = tally.before;
#pragma unroll 1
        for (u32 i = begin; i < end && number < p.max_windows; i++) {
            const Quad found = quad(i);
#pragma unroll
            for (u32 k = 0; k < 4; k++) number = list_tile(found.first + k, found.notes[k], longest, number);
        }
    }

    // The longest match of the tallies of the first `warps` warps. From now on `tally` counts the
    // windows with this match alone.
    INLINE u32 longest_of(Tally& tally, u32 warps) {
        u32 all;
        const u32 longest = tally.over(s.tallies, warps, all);
        if (threadIdx.x == 0) {
            s.longest = longest;
            s.windows = min(all, p.max_windows);
        }
        return longest;
    }

    // Lists the windows of a tile whose first window has the number `number`; returns the number of
    // the next window. Of a tile with more than two, `firsts` keeps the tile's number, and `counts`
    // keeps `number`: the tile is looked through again. Such a tile has windows of its own, so that
    // there are fewer of them than windows.
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

    INLINE void look_again(u32 longest, const u32* listed, const u32* numbers) {
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

    // Offers the children of a node: of the windows that belong to `offer`, the tokens at `depth`.
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
            for (u32 slot = threadIdx.x; slot < p.table; slot += THREADS) {
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
            for (u32 w = threadIdx.x; w < windows; w += THREADS) {
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

    INLINE static float share(u32 count, u32 windows) {
        return __fmul_rn(static_cast<float>((count << 20) / windows), 1.0f / 1048576.0f);
    }

    // Writes the node number `node`, from 1 on.
    INLINE void write(u32 node, T token, u32 worth, u32 origin, u32 windows) const {
        const u32 parent = origin >> 8;
        put_draft(p, request, node - 1, token);
        if (p.parents.data != nullptr) p.parents[request][node - 1] = static_cast<i32>(parent);
        if (p.shares.data != nullptr) {
            p.shares[request][node - 1] = share(worth >> 17, windows);
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

    // Writes the node at `depth` of a chain, which `count` of the windows agree with.
    INLINE void write_in_chain(u32 depth, T token, u32 count, u32 windows) const {
        put_draft(p, request, depth, token);
        if (p.parents.data != nullptr) p.parents[request][depth] = static_cast<i32>(depth);
        if (p.shares.data != nullptr) p.shares[request][depth] = share(count, windows);
        if (p.first_child.data != nullptr) {
            p.first_child[request][depth] = static_cast<i32>(depth + 1);
        }
    }

    // Drafts the tokens that all windows of `node` have from depth `from` to `end`, as long as they
    // agree; returns where the drafts end. The window `first` is one of them. By the first warp.
    INLINE u32 follow_windows(u64 node, u32 first, u32 from, u32 end, u32 windows) const {
        for (;;) {
            const u32 depth = from + threadIdx.x;
            const u32 at = depth * FEW + first;
            const bool agree = depth < end && (alike[at] & node) == node;
            const u32 stops = __ballot_sync(ALL_LANES, !agree);
            const u32 drafted = stops != 0 ? __ffs(stops) - 1 : WARP;
            if (threadIdx.x < drafted) write_in_chain(depth, ahead[at], __popcll(node), windows);
            from += drafted;
            if (drafted < WARP) return from;
        }
    }

    // Of the windows of `node`, those that have the token of `window`, which is one of the lane's, at
    // `depth`; none where `window` is not of the node.
    INLINE u64 alike_in(u64 node, u32 depth, u32 window) const {
        return (node >> window & 1) != 0 ? alike[depth * FEW + window] & node : 0;
    }

    // Grows a chain, whose nodes have one child at most, from FEW windows at most; returns how many
    // nodes there are. By the first warp.
    INLINE u32 grow_chain(u32 windows, u32 limit) const {
        u64 node = all_of(windows);
        u32 first = 0;
        u32 nodes = 0;
#pragma unroll 1
        for (;;) {
            nodes = follow_windows(node, first, nodes, limit, windows);
            // The windows part, or a negative token stands in their way.
            if (nodes == limit) return nodes;
            // More windows first, then the more recent one.
            u32 best = 0;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 window = half * WARP + threadIdx.x;
                const u32 count = __popcll(alike_in(node, nodes, window));
                if (count != 0) best = max(best, count << 6 | (FEW - 1 - window));
            }
            best = __reduce_max_sync(ALL_LANES, best);
            const u32 count = best >> 6;
            if (count == 0 || count * 65536 < p.share_floor * windows) return nodes;
            first = FEW - 1 - (best & (FEW - 1));
            const u32 at = nodes * FEW + first;
            node &= alike[at];
            if (threadIdx.x == 0) write_in_chain(nodes, ahead[at], count, windows);
            nodes++;
        }
    }

    INLINE static u64 all_of(u32 windows) { return ~0ull >> (FEW - windows); }

    // Brings the tokens that follow FEW windows at most, and compares those of each depth.
    INLINE void look_ahead(u32 windows, u32 limit) {
        static_assert(FEW % WARP == 0, "a warp has one depth at a time");
        for (u32 i = threadIdx.x; i < limit * FEW; i += THREADS) {
            const u32 window = i % FEW;
            ahead[i] = window < windows ? token_at(window, i / FEW) : static_cast<T>(-1);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < limit * FEW; i += THREADS) {
            if (i % FEW < windows) alike[i] = alike_at(ahead + i / FEW * FEW, windows, ahead[i]);
        }
        __syncthreads();
    }

    // The windows that have `token` at a depth; none where the token is negative.
    INLINE static u64 alike_at(const T* at_depth, u32 windows, T token) {
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

    // Grows the tree from FEW windows at most; returns how many nodes there are, in the first warp.
    INLINE u32 grow_few(u32 windows, u32 limit) {
        look_ahead(windows, limit);
        if (threadIdx.x >= WARP) return 0;
        if (p.width == 1) return grow_chain(windows, limit);
        const u32 lane = threadIdx.x;
        // The offers that the lane's two windows belong to.
        u32 own_offer[2] = {0, 0};
        u32 offered = 0;
        u32 offer = 0;
        // As long as all windows agree there is nothing to choose.
        u32 nodes = follow_windows(all_of(windows), 0, 0, limit, windows);
        u32 depth = nodes;
        while (nodes < n) {
            if (depth < limit) {
                const u32 low = __ballot_sync(ALL_LANES, own_offer[0] == offer);
                const u32 high = __ballot_sync(ALL_LANES, own_offer[1] == offer);
                const u64 node = (static_cast<u64>(high) << WARP | low) & all_of(windows);
                // A child stands with the most recent of its windows.
                u64 members[2];
                u32 children[2];
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 window = half * WARP + lane;
                    members[half] = alike_in(node, depth, window);
                    const bool is_first = members[half] != 0 && __ffsll(members[half]) - 1 == window;
                    children[half] = is_first ? __popcll(members[half]) << 10 | (1023 - window) : 0;
                }
                const u32 wanted = min(p.width, n - nodes);
#pragma unroll 1
                for (u32 i = 0; i < wanted; i++) {
                    const u32 best = __reduce_max_sync(ALL_LANES, max(children[0], children[1]));
                    const u32 count = best >> 10;
                    // Worse children have no larger share.
                    if (count == 0 || count * 65536 < p.share_floor * windows) break;
                    const u32 first = first_of(best);
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        if (children[half] == best) children[half] = 0;
                        if ((members[half] >> first & 1) != 0) own_offer[half] = offered + 1;
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
            for (u32 i = lane; i < offered; i += WARP) {
                const u32 worth = worths[i];
                if (worth > best) {
                    best = worth;
                    index = i;
                }
            }
            const u32 worth = __reduce_max_sync(ALL_LANES, best);
            if (worth == 0) break;
            // No two offers are worth the same: windows of one depth belong to one offer each.
            const u32 owner = __ffs(__ballot_sync(ALL_LANES, best == worth)) - 1;
            index = __shfl_sync(ALL_LANES, index, owner);
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
        for (u32 w = threadIdx.x; w < windows; w += THREADS) offer_of[w] = 0;
        __syncthreads();
        u32 nodes = 0;
        u32 offer = 0;
        u32 depth = 0;
        while (nodes < n) {
            if (depth < limit) offer_children(offer, nodes, depth, n - nodes, windows);
            u64 best = 0;
            for (u32 i = threadIdx.x; i < s.offered; i += THREADS) {
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
        u32 windows;
        const u32 longest = list_windows(windows);
        // A product beyond every depth is cut before it is an integer: drafts are at most 64.
        const float depths = min(p.drafts_per_match * static_cast<float>(longest), 65536.0f);
        const u32 limit = min(n, static_cast<u32>(depths));
        u32 nodes = 0;
        if (windows > FEW) {
            nodes = grow_many(windows, limit);
        } else if (windows != 0) {
            nodes = grow_few(windows, limit);
        }
        if (threadIdx.x == 0) {
            p.counts[request] = static_cast<i32>(nodes);
            if (p.match_lengths != nullptr) p.match_lengths[request] = static_cast<i32>(longest);
        }
    }
};

