// draft_tree: trees of drafts from candidates with probabilities, within a budget that all requests
// share.
//
// Two launches. In the first, a block ranks the candidates of a request and stores the first n of
// them as records, integers whose order is that of the contract:
//
//     record    | survival, 30 bits | 511 - depth, 9 | 4095 - index, 12 | parent, 13 |
//
// In the second, every block finds out how many records of each request the budget keeps, which
// gives where the rows of its own requests begin, and writes the trees of these requests. Where a
// request needs to know nothing of the others, one launch does all.
//
// A thread has up to ITEMS candidates in registers. In round d, the candidates of depth d find their
// parents in shared memory, where the candidates of depth d - 1 are; a bitonic sort then orders the
// records. A chain is in its order already, and one thread multiplies its shares.
//
// The budget: the records of a request descend, so those that reach a key are found by a binary
// search. A search over the bits of the key, in which each thread has a request, finds the key of
// the last record that the budget keeps. Each step narrows the part of a request's records that the
// next step searches.
//
// Bytes: 20 for a candidate and about 8 for each output of a node. Latency dominates: one wait for
// the candidates, barriers of the rounds and of the sort, then up to 40 steps of the search.
#include "params/draft_tree.cuh"

constexpr u32 MAX_THREADS = 512;
// Candidates of a thread.
constexpr u32 ITEMS = 8;
constexpr u32 MAX_DRAFTS = 256;
constexpr u32 MAX_CANDIDATES = 4096;
constexpr u32 MAX_WARPS = MAX_THREADS / WARP;
// What is stored as the number of records of a request that has finished.
constexpr i32 FINISHED = -1;
// The bits of 2^-100, and of 1.
constexpr u32 MIN_SURVIVAL = 27u << 23;
constexpr u32 ONE = 0x3F800000u;
// The bits of a key; the largest keys belong to drafts that come before all others.
constexpr u32 KEY_BITS = 40;

// ---- records -------------------------------------------------------------------

constexpr u32 MAX_DEPTH = 511;
// The depth of a candidate whose parent has not been found. Its survival is then its share.
constexpr u32 PENDING = 0;

INLINE u64 record_of(u32 survival, u32 depth, u32 index, u32 parent) {
    const u32 order = (MAX_DEPTH - depth) << 12 | (MAX_CANDIDATES - 1 - index);
    return static_cast<u64>(survival) << 34 | static_cast<u64>(order) << 13 | parent;
}

INLINE u32 survival_of(u64 record) { return static_cast<u32>(record >> 34); }
INLINE u32 depth_of(u64 record) { return MAX_DEPTH - (static_cast<u32>(record >> 25) & MAX_DEPTH); }
INLINE u32 index_of(u64 record) {
    return MAX_CANDIDATES - 1 - (static_cast<u32>(record >> 13) & (MAX_CANDIDATES - 1));
}
INLINE u32 parent_of(u64 record) { return static_cast<u32>(record) & 0x1FFFu; }

// The bits of a share or a trust as it counts: NaN and negative numbers as 0, numbers above 1 as 1.
INLINE u32 probability(float value, u32& bits) {
    if (!exact::finite(value)) bits |= NON_FINITE;
    const u32 given = __float_as_uint(value);
    const bool is_number = given <= 0x7F800000u;
    return is_number ? min(given, ONE) : 0;
}

// The product of two numbers from 0 to 1, all as bits; 0 below MIN_SURVIVAL.
INLINE u32 product(u32 a, u32 b) {
    const u32 bits = __float_as_uint(exact::mul(__uint_as_float(a), __uint_as_float(b)));
    return bits < MIN_SURVIVAL ? 0 : bits;
}

// ---- blocks --------------------------------------------------------------------

// Prefix sums over the threads of a block, or over the lanes of each warp where `narrow`: the
// warps then do the same work, each for itself. All threads of a block must call these functions
// together.
struct Team {
    bool narrow;

    INLINE u32 rank() const { return narrow ? threadIdx.x % WARP : threadIdx.x; }
    INLINE u32 size() const { return narrow ? WARP : blockDim.x; }

    // The sum over the threads before this one; `all` becomes the sum over all.
    INLINE u32 scan(u32 value, u32& all) const {
        __shared__ u32 of_warps[MAX_WARPS];
        const u32 lane = threadIdx.x % WARP;
        const u32 warp = threadIdx.x / WARP;
        const u32 through = warp_inclusive_sum(value, lane);
        if (narrow) {
            all = __shfl_sync(ALL_LANES, through, WARP - 1);
            return through - value;
        }
        // The sums of an earlier call have been read.
        __syncthreads();
        if (lane == WARP - 1) of_warps[warp] = through;
        __syncthreads();
        const SumsOfWarps<u32> sums(of_warps, blockDim.x / WARP, lane);
        all = sums.all();
        return sums.before(warp) + through - value;
    }

    INLINE u32 sum(u32 value) const {
        u32 all;
        scan(value, all);
        return all;
    }
};

// ---- ranking -------------------------------------------------------------------

// What a candidate says of itself: a record of depth PENDING whose survival is the share; 0 if the
// candidate is none.
INLINE u64 candidate(const Params& p, u64 request, u32 j, u32 count, u32& bits) {
    if (j >= count || p.candidates.at(request, j) < 0) return 0;
    u32 share = ONE;
    if (p.shares.data != nullptr) share = probability(p.shares[request][j], bits);
    const i64 parent = p.parents.data == nullptr ? j : p.parents.at(request, j);
    if (parent < 0 || parent > static_cast<i64>(j)) {
        bits |= BAD_LENGTHS;
        return 0;
    }
    return record_of(share, PENDING, j, static_cast<u32>(parent));
}

// The record of a candidate at `depth` whose parent has the survival `above`.
INLINE u64 found(const Params& p, u64 pending, u32 depth, u32 above, u32 trust, u32 power) {
    const u32 share = survival_of(pending);
    // The bits of numbers from 0 to 1 have the order of the numbers.
    const u32 survival = p.cumulative ? min(product(share, power), above)
                                      : product(product(above, share), trust);
    return record_of(survival, depth, index_of(pending), parent_of(pending));
}

// Writes the records of a chain's first drafts, as many as `keys` holds.
INLINE void rank_chain(const Params& p, u64 request, u32 count, u32 trust, u64* keys, u32& bits) {
    __shared__ u32 length;
    if (threadIdx.x == 0) length = count;
    __syncthreads();
    for (u32 j = threadIdx.x; j < p.c; j += blockDim.x) {
        const u64 own = candidate(p, request, j, count, bits);
        if (j < p.room) keys[j] = own;
        // What follows a candidate that is none is none.
        if (own == 0) atomicMin(&length, j);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 above = ONE;
        u32 power = ONE;
        for (u32 j = 0; j < p.room; j++) {
            u64 own = 0;
            if (j < length) {
                power = product(power, trust);
                own = found(p, keys[j], j + 1, above, trust, power);
                above = survival_of(own);
            }
            keys[j] = own;
        }
    }
    __syncthreads();
}

// Sorts `p.room` keys, a power of two, in descending order. In a step of at most 32, a warp
// exchanges keys within 64 keys that no other warp has in such steps.
INLINE void sort(const Params& p, u64* keys) {
    u32 last = p.room;
    for (u32 size = 2; size <= p.room; size *= 2) {
        for (u32 step = size / 2; step > 0; step /= 2) {
            if (step > WARP || last > WARP) {
                __syncthreads();
            } else {
                __syncwarp();
            }
            last = step;
            for (u32 t = threadIdx.x; t < p.room / 2; t += blockDim.x) {
                const u32 low = 2 * step * (t / step) + t % step;
                const u64 a = keys[low];
                const u64 b = keys[low + step];
                const bool descending = (low & size) == 0;
                if ((a < b) == descending) {
                    keys[low] = b;
                    keys[low + step] = a;
                }
            }
        }
    }
    __syncthreads();
}

// Writes the records of a tree's candidates in their order; 0 for those that are none.
INLINE void rank_tree(const Params& p, u64 request, u32 count, u32 trust, u64* keys, u32& bits) {
    u64 own[ITEMS];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        const u32 j = i * blockDim.x + threadIdx.x;
        own[i] = j < p.c ? candidate(p, request, j, count, bits) : 0;
    }
    for (u32 j = threadIdx.x; j < p.room; j += blockDim.x) keys[j] = 0;
    __syncthreads();
    // A candidate deeper than n has n candidates before it and is never offered.
    u32 power = ONE;
    for (u32 depth = 1; depth <= p.n; depth++) {
        power = product(power, trust);
        u32 changed = 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (own[i] == 0 || depth_of(own[i]) != PENDING) continue;
            const u32 parent = parent_of(own[i]);
            u32 above = ONE;
            bool follows = depth == 1 && parent == 0;
            if (depth > 1 && parent != 0) {
                const u64 record = keys[parent - 1];
                follows = record != 0 && depth_of(record) == depth - 1;
                above = survival_of(record);
            }
            if (!follows) continue;
            own[i] = found(p, own[i], depth, above, trust, power);
            changed |= 1u << i;
        }
        // All threads have read the keys.
        if (__syncthreads_or(changed) == 0) break;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            if (changed >> i & 1) keys[i * blockDim.x + threadIdx.x] = own[i];
        }
        __syncthreads();
    }
    if (p.n != 0) sort(p, keys);
}

// Ranks the candidates of a request: `keys` gets its records. Returns how many of them may become
// drafts, or FINISHED.
INLINE i32 rank(const Params& p, u64 request, u64* keys) {
    // One answer for all threads, even if the memory changes. The records of this block's request
    // before have been read.
    if (__syncthreads_or(p.finished != nullptr && p.finished[request] != 0)) return FINISHED;
    u32 bits = 0;
    u32 count = p.c;
    if (p.counts.data != nullptr) {
        const i64 given = p.counts[request];
        count = clamped(given, p.c);
        if (given != count) bits |= BAD_LENGTHS;
    }
    const u32 trust = p.trust == nullptr ? ONE : probability(p.trust[request], bits);
    if (p.parents.data == nullptr) {
        rank_chain(p, request, count, trust, keys, bits);
    } else {
        rank_tree(p, request, count, trust, keys, bits);
    }
    raise(p.flags, bits);
    u32 kept = 0;
    const u32 offered = min(p.n, p.room);
    for (u32 base = 0; base < offered; base += blockDim.x) {
        const u32 k = base + threadIdx.x;
        const u64 record = k < offered ? keys[k] : 0;
        const bool likely = survival_of(record) >= p.min_survival || k < p.min_drafts;
        kept += __syncthreads_count(record != 0 && likely);
    }
    return static_cast<i32>(kept);
}

// ---- the budget ----------------------------------------------------------------

// The largest number of drafts of all requests: one answer for all threads of a block.
INLINE u32 budget_of(const Params& p) {
    __shared__ u32 limit;
    if (p.budget == nullptr) return NONE;
    if (threadIdx.x == 0) {
        const i32 given = *p.budget;
        if (blockIdx.x == 0 && given < 0) raise(p.flags, BAD_LENGTHS);
        limit = static_cast<u32>(max(given, 0));
    }
    __syncthreads();
    return limit;
}

// A draft's key: by its rank if it is one of the first `min_drafts`, else by survival and depth.
INLINE u64 key_of(const Params& p, u64 request, u32 rank) {
    if (rank < p.min_drafts) return (1ull << KEY_BITS) - 1 - rank;
    return p.records[request * p.n + rank] >> 25;
}

// How many drafts of a request have a key of at least `key`, if this is between `low` and `high`.
INLINE u32 reaching(const Params& p, u64 request, u64 key, u32 low, u32 high) {
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (key_of(p, request, middle) >= key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

INLINE u32 kept_of(const Params& p, u64 request) {
    return static_cast<u32>(max(p.kept[request], 0));
}

// The key of the last draft that a budget of `limit` drafts keeps; fewer than all.
INLINE u64 search(const Params& p, Team team, u32 limit) {
    // Of this thread's first request, `high` drafts reach `key`, and `low` reach a key that too few
    // reach in all.
    u32 low = 0;
    u32 high = team.rank() < p.batch ? kept_of(p, team.rank()) : 0;
    u64 key = 0;
    for (u32 bit = KEY_BITS; bit-- > 0;) {
        const u64 larger = key | 1ull << bit;
        u32 middle = 0;
        u32 own = 0;
        for (u64 request = team.rank(); request < p.batch; request += team.size()) {
            if (request == team.rank()) {
                middle = reaching(p, request, larger, low, high);
                own += middle;
            } else {
                own += reaching(p, request, larger, 0, kept_of(p, request));
            }
        }
        const u32 all = team.sum(own);
        if (all >= limit) {
            key = larger;
            high = middle;
            if (all == limit) break;
        } else {
            low = middle;
        }
    }
    return key;
}

// Finds how many drafts of each request the budget keeps and where its rows begin; stores both for
// the requests of this block. Returns the number of rows of all requests.
INLINE u32 allot(const Params& p) {
    const Team team = {p.batch <= WARP};
    // Where warps do the same work, the first one stores its results.
    const bool stores = !team.narrow || threadIdx.x < WARP;
    const u32 limit = budget_of(p);
    u64 key = 0;
    u32 left = 0;
    bool cuts = false;
    if (p.budget != nullptr) {
        u32 own = 0;
        for (u64 request = team.rank(); request < p.batch; request += team.size()) {
            own += kept_of(p, request);
        }
        cuts = team.sum(own) > limit;
    }
    if (cuts) {
        key = search(p, team, limit);
        u32 own = 0;
        for (u64 request = team.rank(); request < p.batch; request += team.size()) {
            own += reaching(p, request, key + 1, 0, kept_of(p, request));
        }
        // Drafts with this key are served in the order of requests.
        left = limit - team.sum(own);
    }
    u32 rows = 0;
    for (u64 base = 0; base < p.batch; base += team.size()) {
        const u64 request = base + team.rank();
        const bool there = request < p.batch;
        const i32 kept = there ? p.kept[request] : FINISHED;
        u32 num = static_cast<u32>(max(kept, 0));
        if (cuts) {
            const u32 high = there ? reaching(p, request, key, 0, num) : 0;
            const u32 low = there ? reaching(p, request, key + 1, 0, high) : 0;
            u32 ties;
            const u32 before = team.scan(high - low, ties);
            num = low + min(high - low, left - min(left, before));
            left -= min(left, ties);
        }
        u32 all;
        const u32 start = rows + team.scan(kept == FINISHED ? 0 : num + 1, all);
        rows += all;
        if (there && stores && request % gridDim.x == blockIdx.x) {
            p.allotted[2 * request] = num;
            p.allotted[2 * request + 1] = start;
        }
    }
    __syncthreads();
    return rows;
}

// ---- trees ---------------------------------------------------------------------

INLINE void put(void* data, u64 wide, u64 i, i64 value) {
    if (wide) {
        static_cast<i64*>(data)[i] = value;
    } else {
        static_cast<i32*>(data)[i] = static_cast<i32>(value);
    }
}

// The tree of one request, in shared memory.
struct Tree {
    // The drafts in the order of their candidates.
    u64 drafts[MAX_DRAFTS];
    // The parent of each node, and its first child.
    u32 parents[MAX_DRAFTS + 1];
    u32 first_child[MAX_DRAFTS + 1];
    // A bit for each candidate that is a draft, and the number of drafts before each word of bits.
    u32 picked[MAX_CANDIDATES / 32];
    u32 before[MAX_CANDIDATES / 32];

    // The number of drafts before a candidate.
    INLINE u32 drafts_before(u32 j) const {
        return before[j / 32] + __popc(picked[j / 32] & ((1u << j % 32) - 1));
    }
};

// Builds the tree of `num` records.
INLINE void build(const Params& p, Tree& tree, const u64* records, u32 num) {
    constexpr u32 WORDS = MAX_CANDIDATES / 32;
    // The tree of this block's request before has been read.
    __syncthreads();
    for (u32 i = threadIdx.x; i < WORDS; i += blockDim.x) tree.picked[i] = 0;
    for (u32 i = threadIdx.x; i <= p.n; i += blockDim.x) tree.first_child[i] = NONE;
    __syncthreads();
    for (u32 k = threadIdx.x; k < num; k += blockDim.x) {
        const u32 j = index_of(records[k]);
        atomicOr(&tree.picked[j / 32], 1u << j % 32);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        constexpr u32 OWN = WORDS / WARP;
        u32 counts[OWN];
        u32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            counts[i] = sum;
            sum += __popc(tree.picked[threadIdx.x * OWN + i]);
        }
        const u32 before = warp_inclusive_sum(sum, threadIdx.x) - sum;
#pragma unroll
        for (u32 i = 0; i < OWN; i++) tree.before[threadIdx.x * OWN + i] = before + counts[i];
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < num; k += blockDim.x) {
        const u64 record = records[k];
        const u32 node = tree.drafts_before(index_of(record)) + 1;
        // A parent comes before its children in the request's order, so it is a draft too.
        const u32 above = parent_of(record);
        // Even if the arguments change during the call, a way to the root descends.
        const u32 parent = above == 0 ? 0 : min(tree.drafts_before(above - 1) + 1, node - 1);
        tree.drafts[node - 1] = record;
        tree.parents[node] = parent;
        atomicMin(&tree.first_child[parent], node);
    }
    __syncthreads();
}

// The next node whose parent is that of `node`; NONE if there is none.
INLINE u32 sibling_of(const Tree& tree, u32 node, u32 num) {
    for (u32 other = node + 1; other <= num; other++) {
        if (tree.parents[other] == tree.parents[node]) return other;
    }
    return NONE;
}

// Writes the mask of a node; 0 for NONE. The nodes on the way to the root descend, and so do the
// words that have their bits.
INLINE void write_mask(const Params& p, const Tree& tree, u32* mask, u32 on_way) {
    for (u32 word = p.n / 32 + 1; word-- > 0;) {
        u32 bits = 0;
        while (on_way / 32 == word) {
            bits |= 1u << on_way % 32;
            on_way = on_way == 0 ? NONE : tree.parents[on_way];
        }
        mask[word] = bits;
    }
}

// Writes what a draft has, and for a column behind the drafts what stands there.
INLINE void write_draft(const Params& p, const Tree& tree, u64 request, u32 node, u32 num,
                        i64 token) {
    const u32 at = node - 1;
    const bool there = node <= num;
    const u64 record = there ? tree.drafts[at] : 0;
    put(p.drafts.data, p.drafts.wide, request * p.drafts.stride + at, token);
    if (p.picked.data != nullptr) {
        p.picked[request][at] = there ? static_cast<i32>(index_of(record)) : -1;
    }
    if (p.draft_parents.data != nullptr) {
        p.draft_parents[request][at] = there ? static_cast<i32>(tree.parents[node]) : -1;
    }
    if (p.survivals.data != nullptr) {
        p.survivals[request][at] = __uint_as_float(survival_of(record));
    }
}

// Writes the packed row of a node.
INLINE void write_row(const Params& p, const Tree& tree, u64 request, u32 node, u32 depth,
                      u32 start, i64 token) {
    const u64 row = static_cast<u64>(start) + node;
    if (row >= p.cap) return;
    if (p.rows != nullptr) p.rows[row] = static_cast<i32>(request * (p.n + 1) + node);
    if (p.row_requests != nullptr) p.row_requests[row] = static_cast<i32>(request);
    if (p.row_parents != nullptr) {
        p.row_parents[row] = node == 0 ? -1 : static_cast<i32>(start + tree.parents[node]);
    }
    if (p.row_tokens != nullptr) {
        const i64 root = node == 0 && p.roots.data != nullptr ? p.roots[request] : -1;
        put(p.row_tokens, p.candidates.wide, row, node == 0 ? root : token);
    }
    if (p.row_positions != nullptr) {
        const u64 position = static_cast<u64>(p.starts[request]) + depth;
        put(p.row_positions, p.starts.wide, row, static_cast<i64>(position));
    }
}

// Writes the outputs of a request that has `num` drafts and rows from `start` on.
INLINE void write(const Params& p, const Tree& tree, u64 request, u32 num, u32 start, bool alive) {
    if (threadIdx.x == 0) {
        p.num_drafts[request] = static_cast<i32>(num);
        if (p.row_offsets != nullptr) p.row_offsets[request] = static_cast<i32>(start);
    }
    for (u32 node = threadIdx.x; node <= p.n; node += blockDim.x) {
        const bool there = node <= num;
        const bool draft = there && node != 0;
        const u64 record = draft ? tree.drafts[node - 1] : 0;
        const u32 depth = draft ? depth_of(record) : 0;
        const i64 token = draft ? p.candidates.at(request, index_of(record)) : -1;
        if (node != 0) write_draft(p, tree, request, node, num, token);
        if (p.first_child.data != nullptr) {
            p.first_child[request][node] = there ? static_cast<i32>(tree.first_child[node]) : -1;
        }
        if (p.next_sibling.data != nullptr) {
            const u32 sibling = draft ? sibling_of(tree, node, num) : NONE;
            p.next_sibling[request][node] = static_cast<i32>(sibling);
        }
        if (p.depths.data != nullptr) {
            p.depths[request][node] = there ? static_cast<i32>(depth) : -1;
        }
        if (p.masks != nullptr) {
            u32* mask = p.masks + request * p.masks_stride + node * p.mask_stride;
            write_mask(p, tree, mask, there ? node : NONE);
        }
        if (there && alive) write_row(p, tree, request, node, depth, start, token);
    }
}

// Writes what stands behind the rows of all requests.
INLINE void finish(const Params& p, u32 rows) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (p.row_offsets != nullptr) p.row_offsets[p.batch] = static_cast<i32>(rows);
        if (p.has_cap && rows > p.cap) raise(p.flags, BAD_LENGTHS);
    }
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 row = rows + static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; p.has_cap && row < p.cap; row += step) {
        if (p.rows != nullptr) p.rows[row] = -1;
        if (p.row_requests != nullptr) p.row_requests[row] = -1;
        if (p.row_parents != nullptr) p.row_parents[row] = -1;
        if (p.row_tokens != nullptr) put(p.row_tokens, p.candidates.wide, row, -1);
        if (p.row_positions != nullptr) put(p.row_positions, p.starts.wide, row, -1);
    }
}

// ---- kernels -------------------------------------------------------------------

// All of the work, for at most one request, or for requests that neither share a budget nor have
// packed rows.
INLINE void draft_tree_whole_body(const Params& p) {
    extern __shared__ u64 keys[];
    __shared__ Tree tree;
    const u32 limit = budget_of(p);
    u32 rows = 0;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const i32 kept = rank(p, request, keys);
        const u32 num = min(static_cast<u32>(max(kept, 0)), limit);
        build(p, tree, keys, num);
        write(p, tree, request, num, 0, kept != FINISHED);
        if (kept != FINISHED) rows = num + 1;
    }
    if (p.batch <= 1) finish(p, rows);
}

// The first launch: ranks the candidates of all requests.
INLINE void draft_tree_rank_body(const Params& p) {
    extern __shared__ u64 keys[];
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const i32 kept = rank(p, request, keys);
        for (i32 k = threadIdx.x; k < kept; k += blockDim.x) {
            p.records[request * p.n + k] = keys[k];
        }
        if (threadIdx.x == 0) p.kept[request] = kept;
    }
}

// The second launch: shares the budget out and writes the trees.
INLINE void draft_tree_write_body(const Params& p) {
    __shared__ u64 records[MAX_DRAFTS];
    __shared__ Tree tree;
    const u32 rows = allot(p);
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const u32 num = p.allotted[2 * request];
        // The records of this block's request before have been read.
        __syncthreads();
        for (u32 k = threadIdx.x; k < num; k += blockDim.x) {
            records[k] = p.records[request * p.n + k];
        }
        build(p, tree, records, num);
        const bool alive = p.kept[request] != FINISHED;
        write(p, tree, request, num, p.allotted[2 * request + 1], alive);
    }
    finish(p, rows);
}

SPEC_KERNEL(draft_tree_whole, draft_tree_whole_body, Params, MAX_THREADS)
SPEC_KERNEL(draft_tree_rank, draft_tree_rank_body, Params, MAX_THREADS)
SPEC_KERNEL(draft_tree_write, draft_tree_write_body, Params, MAX_THREADS)
