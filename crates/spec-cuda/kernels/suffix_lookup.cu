// suffix_lookup: drafts the tokens that followed earlier occurrences of the longest suffix of a
// request's text, in the text itself and in a corpus that requests share.
//
// A window is a place in a text where the tokens before it match the end of the request's text. A
// tile is 256 tokens of a text, which a warp holds in registers. A note describes the windows of
// one tile for one request: the length of their longest match, the number of windows with a match
// of this length, and the places of the two most recent of these windows.
//
// 1. `scan` writes the notes of the tiles of the corpus. A block has 16 tiles and compares them
//    with 64 requests at a time, so that the corpus is read once. A hash table of the requests'
//    last tokens rules out nearly all places, and eight threads compare each remaining place. Texts
//    that are too long for `grow` are scanned here, too. Without a corpus and without such a text,
//    `scan` is not launched.
// 2. `grow` has a block, or a cluster of blocks, for each request, and writes the notes of the
//    tiles of the request's own text. The notes then give the longest match, and the numbers of its
//    windows, the most recent window first:
//
//        tiles, most recent first   | 3 x 1 | 5 x 2 | - | 5 x 1 | 4 x 9 |     longest 5
//        numbers of its windows             | 0   1 |   | 2     |
//
//    Only a tile with more than two windows is searched again. The tree of drafts grows from the
//    windows alone, the best node first (suffix_lookup_tree.cuh).
//
// Bytes: texts and corpus are read once; 2^20 tokens of 4 bytes take 0.9 us at 4.6 TB/s. A call
// without a corpus takes as long as three dependent reads of device memory: the text with its
// length, then the last tokens of the text, then the tokens that follow the windows.
#include "suffix_lookup_tree.cuh"

// The number of requests that a block of `scan` compares with its tiles at a time.
constexpr u32 REQUESTS = 2 * WARP;
// The number of hashes of tokens.
constexpr u32 HASHES = 16 * THREADS;
// The number of pairs of a place and a request that a warp collects before it compares them.
constexpr u32 PAIRS = 2 * WARP;
// The number of threads that compare the tokens of one pair.
constexpr u32 TEAM = 8;

template <typename T>
struct Scanner {
    T suffixes[REQUESTS][MAX_MATCH];
    // For each hash: 1 + the number of a request whose last token has the hash; 0 for none.
    alignas(16) u8 heads[HASHES];
    // For each request: 1 + the number of another request whose last token has the same hash; 0 for
    // none.
    u8 nexts[REQUESTS];
    u16 pairs[WARPS][PAIRS];
    // A row has one word more than there are warps, so that the rows begin in different banks.
    Note notes[REQUESTS][WARPS + 1];

    INLINE static u32 hash(T token) { return hash_of_low(static_cast<u32>(token)); }

    INLINE static u32 hash_of_low(u32 low) {
        static_assert(HASHES == 1 << 13, "32 - 19 bits");
        return low * 0x9E3779B1u >> 19;
    }

    // Loads the last tokens of `count` requests from `first` on; -1 if there is no request or no
    // token.
    INLINE void load(const Params& p, u32 first, u32 count) {
        // The number of threads that load the suffix of one request, and the number of requests
        // loaded at a time.
        constexpr u32 ACROSS = 16;
        constexpr u32 STEP = THREADS / ACROSS;
        constexpr u32 EACH = REQUESTS / STEP;
        Text<T> own[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u32 request = k * STEP + threadIdx.x / ACROSS;
            own[k] = own_text<T>(p, request < count ? row_of(p, first + request) : NONE);
        }
        reinterpret_cast<uint4*>(heads)[threadIdx.x] = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (u32 start = 0; start < p.max_match; start += ACROSS) {
            const u32 back = start + threadIdx.x % ACROSS;
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                const u32 request = k * STEP + threadIdx.x / ACROSS;
                suffixes[request][back] = Suffix<T>::at(p, own[k], back);
            }
        }
        __syncthreads();
        if (threadIdx.x < WARP) link(count);
        __syncthreads();
    }

    // Enters the last tokens of `count` requests into the hash table. By the first warp.
    INLINE void link(u32 count) {
        const u32 lane = lane_id();
#pragma unroll 1
        for (u32 request = lane; request - lane < count; request += WARP) {
            const T last = suffixes[request][0];
            const u32 h = last >= 0 ? hash(last) : HASHES + lane;
            const u32 equal = __match_any_sync(ALL_LANES, h);
            const u32 before = equal & ((1u << lane) - 1);
            if (last >= 0) {
                nexts[request] = before != 0 ? request - lane + WARP - __clz(before) : heads[h];
            }
            __syncwarp();
            if (last >= 0 && equal >> lane == 1) heads[h] = request + 1;
            __syncwarp();
        }
    }

    // Writes the notes of the warp's tile for all loaded requests.
    INLINE void note(const Params& p, const Tile<T>& tile, const Text<T>& text) {
        const u32 lane = lane_id();
        u16* const own_pairs = pairs[threadIdx.x / WARP];
#pragma unroll
        for (u32 request = 0; request < REQUESTS; request += WARP) {
            notes[request + lane][threadIdx.x / WARP].word = 0;
        }
        // The chunks in which the lane's token has the hash of a request. Whether the token is in
        // the text is tested later, for few tokens.
        u32 bits = 0;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            u32 low = static_cast<u32>(tile.tokens[c]);
            // Prevents the compiler from moving the hashes before `load`, whose reads would then
            // wait for the tile's.
            asm volatile("" : "+r"(low));
            if (heads[hash_of_low(low)] != 0) bits |= 1u << c;
        }
        u32 place = 0;
        T token = 0;
        u32 next = 0;
        u32 found = 0;
        bool is_over = false;
#pragma unroll 1
        while (!is_over) {
            if (next == 0 && bits != 0) {
                const u32 chunk = 31 - __clz(bits);
                bits ^= 1u << chunk;
                place = chunk * WARP + lane;
                const bool is_inside = tile.base + place + 1 < text.length;
                token = is_inside ? text.tokens[tile.base + place] : static_cast<T>(-1);
                if (token >= 0) next = heads[hash(token)];
            }
            const bool ends = next != 0 && suffixes[next - 1][0] == token;
            const u32 ending = __ballot_sync(ALL_LANES, ends);
            if (ends) {
                const u32 before = __popc(ending & ((1u << lane) - 1));
                own_pairs[found + before] = place * REQUESTS + next - 1;
            }
            found += __popc(ending);
            if (next != 0) next = nexts[next - 1];
            is_over = !__any_sync(ALL_LANES, (bits | next) != 0);
            if (is_over || found > PAIRS - WARP) {
                compare(p, text, tile.base, own_pairs, found);
                found = 0;
            }
        }
    }

    // Adds the matches of the warp's first `count` pairs to the notes.
    INLINE void compare(const Params& p, const Text<T>& text, u32 base, const u16* own_pairs,
                        u32 count) {
        constexpr u32 TEAMS = WARP / TEAM;
        const u32 lane = lane_id();
        const u32 team = lane / TEAM;
        __syncwarp();
#pragma unroll 1
        for (u32 from = 0; from < count; from += TEAMS) {
            const u32 pair = own_pairs[min(from + team, count - 1)];
            const u32 request = pair % REQUESTS;
            const u32 place = pair / REQUESTS;
            const u32 match = match_of(p, text, base + place, suffixes[request]);
            // One pair after the other, because two pairs may have the same request.
#pragma unroll 1
            for (u32 i = 0; i < min(TEAMS, count - from); i++) {
                if (lane == i * TEAM && match >= p.min_match) {
                    notes[request][threadIdx.x / WARP].add(match, place);
                }
                __syncwarp();
            }
        }
    }

    // The result of `Suffix::match`, for a pair in each team of lanes.
    INLINE static u32 match_of(const Params& p, const Text<T>& text, u32 at, const T* suffix) {
        const u32 shift = lane_id() / TEAM * TEAM;
        u32 match = 0;
        bool goes_on = text.tokens[at + 1] >= 0;
#pragma unroll 1
        for (u32 start = 0; start < p.max_match; start += TEAM) {
            const u32 back = start + lane_id() % TEAM;
            const T kept = suffix[back];
            const bool is_other = kept < 0 || back > at || text.tokens[at - back] != kept;
            const u32 others = __ballot_sync(ALL_LANES, is_other) >> shift & ((1u << TEAM) - 1);
            if (goes_on) match += others != 0 ? __ffs(others) - 1 : TEAM;
            goes_on = goes_on && others == 0;
            if (!__any_sync(ALL_LANES, goes_on)) break;
        }
        return match;
    }
};

template <typename T>
INLINE void scan(const Params& p) {
    __shared__ Scanner<T> s;
    const u32 tiles = p.own_tiles - p.here;
    const u32 sections = (tiles + WARPS - 1) / WARPS;
    const u64 own_blocks = static_cast<u64>(p.batch) * sections;
    const bool is_own = blockIdx.x < own_blocks;
    const u32 first = is_own ? blockIdx.x / sections : 0;
    const u32 end = is_own ? first + 1 : p.batch;
    const u32 section = is_own ? blockIdx.x % sections : blockIdx.x - static_cast<u32>(own_blocks);
    const u32 text_tiles = is_own ? tiles : p.corpus_tiles;
    // The row of the request, if there is only one request.
    const u32 row = end - first == 1 ? row_of(p, first) : NONE;
    const T* const tokens = is_own ? own_tokens<T>(p, row) : static_cast<const T*>(p.corpus);
    // The tile is loaded before the text's length is known.
    const u32 room = !is_own ? p.corpus_size : row == NONE ? 0 : p.max_len;
    const Tile<T> tile(tokens, room, section * WARPS + threadIdx.x / WARP);
    const Text<T> text = is_own ? own_text<T>(p, row) : corpus_text<T>(p);
    // The most recent tile first; tiles of the request's own text before those of the corpus.
    const u32 before = is_own ? 0 : tiles;
    const auto place_of = [&](u32 request, u32 number) {
        return p.notes + request * u64{p.row} + before + text_tiles - 1 - number;
    };
    if (end - first == 1) {
        // With a single request, no warp needs what another warp has loaded.
        const u32 number = tile.base / TILE;
        const Suffix<T> suffix(p, is_own ? text : own_text<T>(p, row));
        const Note note = note_of(p, tile, text, suffix);
        if (lane_id() == 0 && number < text_tiles) *place_of(first, number) = note.word;
        return;
    }
    for (u32 base = first; base < end; base += REQUESTS) {
        const u32 count = min(end - base, REQUESTS);
        s.load(p, base, count);
        s.note(p, tile, text);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count * WARPS; i += THREADS) {
            const u32 warp = WARPS - 1 - i % WARPS;
            const u32 number = section * WARPS + warp;
            if (number < text_tiles) {
                *place_of(base + i / WARPS, number) = s.notes[i / WARPS][warp].word;
            }
        }
    }
}

// Writes the notes of a request's own text to the first block. The warps of the cluster take tiles
// in turn.
template <typename T>
INLINE void note_own(const Params& p, Tile<T> tile, const Text<T>& own, const Senders& cluster,
                     Note* notes) {
    const u32 step = cluster.size * WARPS;
    const Suffix<T> suffix(p, own);
    if (cluster.size > 1) cluster.wait_started();
#pragma unroll 1
    for (u32 number = tile.base / TILE; number < p.here; number += step) {
        const Tile<T> next(own.tokens, own.length, number + step);
        const Note note = note_of(p, tile, own, suffix);
        if (lane_id() == 0) *cluster.of(notes + p.here - 1 - number, 0) = note;
        tile = next;
    }
}

// The flags of a request, for its length and the corpus's length. The corpus may have been extended
// since it was read, so only the range of its length is checked.
INLINE u32 bad_lengths(const Params& p, u32 request, u32 row) {
    if (row == NONE) return p.requests[request] == -1 ? 0 : BAD_LENGTHS;
    const i64 own = p.lengths[row];
    bool is_bad = own != clamped(own, p.max_len);
    if (p.corpus_length.data != nullptr) {
        const i64 given = p.corpus_length[0];
        is_bad |= given != clamped(given, p.corpus_size);
    }
    return is_bad ? BAD_LENGTHS : 0;
}

// Calls `follow` first, unless `scan` was launched before: then `scan` has already waited for the
// caller's work, and this kernel waits for `scan` later, when it needs the notes.
template <typename T>
INLINE void grow(const Params& p) {
    const bool is_second = p.own_tiles != p.here || p.corpus_tiles != 0;
    if (!is_second) follow();
    __shared__ Shared s;
    extern __shared__ uint4 dynamic[];
    const Senders cluster;
    if (cluster.size > 1) cluster.arrive_started();
    const u32 request = blockIdx.x / cluster.size;
    const u32 row = row_of(p, request);
    // The tile is loaded before the text's length is known.
    const Tile<T> tile(own_tokens<T>(p, row), p.here != 0 && row != NONE ? p.max_len : 0,
                       cluster.rank * WARPS + threadIdx.x / WARP);
    const Text<T> own = own_text<T>(p, row);
    const Text<T> corpus = corpus_text<T>(p);
    if (threadIdx.x == 0) s.clear();
    Note* const notes = reinterpret_cast<Note*>(dynamic);
    if (p.here != 0) note_own<T>(p, tile, own, cluster, notes);
    cluster.sync();
    if (is_second) follow();
    if (cluster.rank != 0) return;
    // The outputs are padded after the cluster barrier, which would wait for these stores.
    pad<T>(p, request, own, s);
    if (threadIdx.x == THREADS - 1) raise(p.flags, bad_lengths(p, request, row));
    const u32 n = p.max_drafts == nullptr ? p.n : clamped(p.max_drafts[request], p.n);
    T* const ahead = reinterpret_cast<T*>(dynamic + quads_of(p.here));
    // A tree that grows from at most MAX_WARP_WINDOWS windows uses `same_token`. A tree that grows
    // from more windows uses the arrays `tokens` to `counts` instead, so both share the same
    // memory.
    u64* const same_token = reinterpret_cast<u64*>(ahead + MAX_WARP_WINDOWS * p.n);
    T* const tokens = reinterpret_cast<T*>(same_token);
    u32* const slots = reinterpret_cast<u32*>(tokens + p.max_windows + (p.max_windows & 1));
    u32* const offer_of = slots + p.max_windows;
    u32* const firsts = offer_of + p.max_windows;
    u32* const counts = firsts + p.table;
    u32* const end_of_warp_arrays = reinterpret_cast<u32*>(same_token + MAX_WARP_WINDOWS * p.n);
    u32* const end_of_block_arrays = counts + p.table;
    u32* const words =
        end_of_warp_arrays > end_of_block_arrays ? end_of_warp_arrays : end_of_block_arrays;
    u32* const priorities = words + p.max_windows;
    u32* const origins = priorities + p.offers;
    Grower<T> grower = {p,      s,     request,  n,      own,    corpus, words,   tokens, slots,
                        offer_of, firsts, counts, priorities, origins, ahead, same_token, notes};
    grower.run();
}

// Kernels that call `follow` themselves.
#define GROW_KERNEL(name, T)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, SHARING)                 \
        name(const __grid_constant__ Params params) {                             \
        grow<T>(params);                                                          \
    }

SPEC_KERNEL_BLOCKS(suffix_lookup_scan_i32, scan<i32>, Params, THREADS, SHARING)
SPEC_KERNEL_BLOCKS(suffix_lookup_scan_i64, scan<i64>, Params, THREADS, SHARING)
GROW_KERNEL(suffix_lookup_grow_i32, i32)
GROW_KERNEL(suffix_lookup_grow_i64, i64)
