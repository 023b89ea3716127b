// suffix_lookup: drafts from the longest suffix that occurred before, in a request's own text and in a
// corpus that requests share.
//
// A tile is 256 tokens of a text, which a warp holds in registers. A note describes the windows of one
// tile for one request: the length of their longest match, the number of windows with a match of this
// length, and the places of the two most recent of these windows.
//
// 1. `scan` notes the tiles of the corpus: a block has 16 tiles and compares them with 64 requests at a
//    time, so that the corpus is read once. A bitmap of hashes of the requests' last tokens rules out
//    nearly all places. Texts too long for `grow` are scanned here too. There is no such launch
//    where there are neither.
// 2. `grow` has a block, or a cluster of blocks, for a request, and notes the tiles of the request's own
//    text. The notes then say what the longest match is, and which numbers its windows have,
//    the most recent first:
//
//        tiles, most recent first   | 3 x 1 | 5 x 2 | - | 5 x 1 | 4 x 9 |     longest 5
//        numbers of its windows             | 0   1 |   | 2     |
//
//    Only a tile with more than two of them is looked through again. The tree grows from the
//    windows alone, the best node first (suffix_lookup_tree.cuh).
//
// Bytes: texts and corpus are read once; 2^20 tokens of 4 bytes take 0.9 us at 4.6 TB/s. A call without
// a corpus takes as long as three reads of device memory that wait for one another: the text with its
// length, then the last tokens of the text, then the tokens that follow the windows.
#include "suffix_lookup_tree.cuh"

// Requests that a block of `scan` compares with its tiles at a time.
constexpr u32 REQUESTS = 2 * WARP;
// Words of the bitmap of hashes.
constexpr u32 HASH_WORDS = THREADS;

template <typename T>
struct Scanner {
    T suffixes[REQUESTS][MAX_MATCH];
    u32 hashes[HASH_WORDS];
    Note notes[REQUESTS][WARPS];

    INLINE static u32 hash(T token) { return static_cast<u32>(token) * 0x9E3779B1u >> 18; }

    INLINE bool may_end(T token) const {
        const u32 h = hash(token);
        return token >= 0 && (hashes[h / 32] >> h % 32 & 1) != 0;
    }

    // Brings what `count` requests from `first` on end with. A warp brings every sixteenth request, or
    // the last one once more.
    INLINE void load(const Params& p, u32 first, u32 count) {
        static_assert(32 * HASH_WORDS == 1 << 14, "as many bits as hashes");
        constexpr u32 EACH = REQUESTS / WARPS;
        const u32 lane = lane_id();
        const u32 last = count - 1;
        const u32 warp = threadIdx.x / WARP;
        u32 lengths[EACH];
        T near[EACH];
        T far[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            lengths[k] = own_text<T>(p, first + min(k * WARPS + warp, last)).length;
        }
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u32 request = first + min(k * WARPS + warp, last);
            const Suffix<T> suffix(p, {own_tokens<T>(p, request), lengths[k]});
            near[k] = suffix.near;
            far[k] = suffix.far;
        }
        hashes[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u32 request = min(k * WARPS + warp, last);
            suffixes[request][lane] = near[k];
            suffixes[request][WARP + lane] = far[k];
            const u32 h = hash(near[k]);
            if (lane == 0 && near[k] >= 0) atomicOr(hashes + h / 32, 1u << h % 32);
        }
        __syncthreads();
    }

    // Notes the warp's tile for `count` requests.
    INLINE void note(const Params& p, const Tile<T>& tile, const Text<T>& text, u32 count) {
        const u32 lane = lane_id();
        T lasts[2];
        Note own[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 request = half * WARP + lane;
            lasts[half] = request < count ? suffixes[request][0] : static_cast<T>(-1);
            own[half].word = 0;
        }
        const u32 halves = count > WARP ? 2 : 1;
        u32 bits = tile.candidates(text.length, [&](T token) { return may_end(token); });
        for (;;) {
            const u32 place = take(bits);
            if (place == NONE) break;
            const T token = text.tokens[tile.base + place];
#pragma unroll 1
            for (u32 half = 0; half < halves; half++) {
                u32 left = __ballot_sync(ALL_LANES, (half == 0 ? lasts[0] : lasts[1]) == token);
                for (; left != 0; left &= left - 1) {
                    const u32 owner = __ffs(left) - 1;
                    const Suffix<T> suffix(suffixes[half * WARP + owner]);
                    const u32 match = suffix.match(text.tokens, tile.base + place);
                    if (match < p.min_match || lane != owner) continue;
                    if (half == 0) own[0].add(match, place);
                    if (half == 1) own[1].add(match, place);
                }
                __syncwarp();
            }
        }
        notes[lane][threadIdx.x / WARP] = own[0];
        notes[WARP + lane][threadIdx.x / WARP] = own[1];
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
    const T* const tokens = is_own ? own_tokens<T>(p, first) : static_cast<const T*>(p.corpus);
    // Before the text's length is known.
    const u32 room = is_own ? p.max_len : p.corpus_size;
    const Tile<T> tile(tokens, room, section * WARPS + threadIdx.x / WARP);
    const Text<T> text = is_own ? own_text<T>(p, first) : corpus_text<T>(p);
    // The most recent tile first, own tiles before those of the corpus.
    const u32 before = is_own ? 0 : tiles;
    const auto place_of = [&](u32 request, u32 number) {
        return p.notes + request * u64{p.row} + before + text_tiles - 1 - number;
    };
    if (end - first == 1) {
        // No warp needs what another one has.
        const u32 number = tile.base / TILE;
        const Suffix<T> suffix(p, is_own ? text : own_text<T>(p, first));
        const Note note = note_of(p, tile, text, suffix);
        if (lane_id() == 0 && number < text_tiles) *place_of(first, number) = note.word;
        return;
    }
    for (u32 base = first; base < end; base += REQUESTS) {
        const u32 count = min(end - base, REQUESTS);
        s.load(p, base, count);
        s.note(p, tile, text, count);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count * WARPS; i += THREADS) {
            const u32 warp = WARPS - 1 - i % WARPS;
            const u32 number = section * WARPS + warp;
            if (number < text_tiles) *place_of(base + i / WARPS, number) = s.notes[i / WARPS][warp].word;
        }
    }
}

// Notes the tiles of a request's own text, a tile a warp of the cluster at a time, in the first block.
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

// The flags of a request's length, and of the corpus's. This may have changed since the corpus was read:
// only its range counts.
INLINE u32 bad_lengths(const Params& p, u32 request) {
    const i64 own = p.lengths[request];
    bool is_bad = own != clamped(own, p.max_len);
    if (p.corpus_length.data != nullptr) {
        const i64 given = p.corpus_length[0];
        is_bad |= given != clamped(given, p.corpus_size);
    }
    return is_bad ? BAD_LENGTHS : 0;
}

// Waits as `follow` does, unless `scan` came before: `scan` has waited for what the caller enqueued, and
// only its notes are waited for, when they are needed.
template <typename T>
INLINE void grow(const Params& p) {
    const bool is_second = p.own_tiles != p.here || p.corpus_tiles != 0;
    if (!is_second) follow();
    __shared__ Shared s;
    extern __shared__ uint4 dynamic[];
    const Senders cluster;
    if (cluster.size > 1) cluster.arrive_started();
    const u32 request = blockIdx.x / cluster.size;
    // Before the text's length is known.
    const Tile<T> tile(own_tokens<T>(p, request), p.here != 0 ? p.max_len : 0,
                       cluster.rank * WARPS + threadIdx.x / WARP);
    const Text<T> own = own_text<T>(p, request);
    const Text<T> corpus = corpus_text<T>(p);
    if (threadIdx.x == 0) s.clear();
    Note* const notes = reinterpret_cast<Note*>(dynamic);
    if (p.here != 0) note_own<T>(p, tile, own, cluster, notes);
    cluster.sync();
    if (is_second) follow();
    if (cluster.rank != 0) return;
    // Behind the barrier of the cluster, which would wait for these stores.
    pad<T>(p, request, s);
    if (threadIdx.x == THREADS - 1) raise(p.flags, bad_lengths(p, request));
    T* const ahead = reinterpret_cast<T*>(dynamic + quads_of(p.here));
    T* const tokens = ahead + FEW * p.n;
    u32* const words = reinterpret_cast<u32*>(tokens + p.max_windows + (p.max_windows & 1));
    u32* const slots = words + p.max_windows;
    u32* const offer_of = slots + p.max_windows;
    u32* const firsts = offer_of + p.max_windows;
    u32* const counts = firsts + p.table;
    u32* const worths = counts + p.table;
    u32* const origins = worths + p.offers;
    Grower<T> grower = {p,     s,        request, own,    corpus, words,   tokens,
                        slots, offer_of, firsts,  counts, worths, origins, ahead, notes};
    grower.run();
}

// Kernels that call `follow` themselves.
#define GROW_KERNEL(name, T)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                      \
        name(const __grid_constant__ Params params) {                             \
        grow<T>(params);                                                          \
    }

SPEC_KERNEL_BLOCKS(suffix_lookup_scan_i32, scan<i32>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(suffix_lookup_scan_i64, scan<i64>, Params, THREADS, 2)
GROW_KERNEL(suffix_lookup_grow_i32, i32)
GROW_KERNEL(suffix_lookup_grow_i64, i64)
