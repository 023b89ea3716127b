// draft_tree: trees of drafts from candidates with probabilities, within a budget that all requests
// share.
//
// Where a request needs to know nothing of the others, one launch does all. Else there are two. In
// the first, a block ranks the candidates of a request and stores the first n of them. In the
// second, every block finds out which of the first candidates of all requests the budget keeps,
// which gives where the rows of its own requests begin, and writes the trees of these requests.
// Chains are ranked so quickly that one launch does all for some thousand candidates: every block
// ranks the chains of all requests.
//
// Ranking a tree: a thread has a candidate, or up to ITEMS, and multiplies the shares on the way up
// to the root, LEVELS levels at a time. A histogram of survivals leaves out most candidates that
// are not among the first n. The others are compared each with every other.
//
// The budget: a histogram of all requests' drafts finds the few among which the cut lies. These are
// compared with each other too.
//
// Bytes: 20 for a candidate and about 8 for each output of a node. Latency dominates: one wait for
// the candidates, the ways up and down the tree, two histograms with their barriers, one wait for
// the records, and one for tokens.
#include "draft_tree_build.cuh"
#include "draft_tree_rank.cuh"

// ---- trees -------------------------------------------------------------------------

// All of the work, for at most one request, or for requests that neither share a budget nor have
// packed rows.
INLINE void draft_tree_whole_body(const Params& p) {
    extern __shared__ u64 candidates[];
    __shared__ alignas(16) u32 memory[TREE_WORDS];
    __shared__ u64 records[MAX_DRAFTS];
    const Tree tree(p, memory);
    const Teams teams = Teams::of(p, 1);
    const u32 limit = budget_of(p, p.budget == nullptr ? 0 : *p.budget);
    u32 rows = 0;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const u32 size = rank_tree(p, request, candidates, [&](u64 record, u32 rank) {
            records[rank] = is_offered(p, rank, survival_of(record)) ? record : 0;
        });
        const bool alive = size != NONE;
        // The tree of this block's request before has been read.
        if (!teams.is_idle()) tree.clear(p, teams);
        __syncthreads();
        const u32 rank = teams.is_idle() ? NONE : teams.rank;
        const u64 record = alive && rank < min(size, limit) ? records[rank] : 0;
        const u32 num = __syncthreads_count(record != 0);
        write_tree(p, tree, teams, {request, 0, alive}, record, num, teams.is_idle());
        if (alive) rows = num + 1;
    }
    if (p.batch <= 1) finish(p, rows);
}

// The first launch: ranks the candidates of all requests. A record of 0 is none.
INLINE void draft_tree_rank_body(const Params& p) {
    extern __shared__ u64 candidates[];
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        u64* records = p.records + request * p.n;
        u32* places = p.places + request * p.n;
        const auto store = [&](u64 record, u32 rank) {
            const u32 survival = survival_of(record);
            const bool is_draft = record != 0 && is_offered(p, rank, survival);
            records[rank] = is_draft ? record : 0;
            places[rank] = is_draft ? place_of(p, rank, survival) : NONE;
        };
        u32 size = 0;
        if (p.is_chain) {
            u32* survivals = reinterpret_cast<u32*>(candidates);
            const bool alive = rank_chain(p, request, survivals);
            if (alive) size = p.room;
            for (u32 k = threadIdx.x; k < size; k += blockDim.x) {
                const u32 survival = survivals[k];
                store(survival == NONE ? 0 : record_of(survival, k + 1, k, k), k);
            }
        } else {
            size = rank_tree(p, request, candidates, store);
            if (size == NONE) size = 0;
        }
        for (u32 k = size + threadIdx.x; k < p.n; k += blockDim.x) store(0, k);
    }
    // Places are loaded four at a time.
    const u64 numbers = p.batch * p.n;
    if (blockIdx.x == 0 && threadIdx.x < (4 - numbers % 4) % 4) {
        p.places[numbers + threadIdx.x] = NONE;
    }
}

// The drafts of all requests, which share the budget. The first launch has stored them.
struct StoredDrafts {
    const Params& p;
    u32 count;

    INLINE u32 depth(u32 place, u32 number) const {
        // The depth does not count for the drafts that come before all others.
        return place < MAX_DRAFTS ? 0 : depth_of(p.records[number]);
    }

    // Calls f(place, number) for each draft of this thread, and for some places that are NONE.
    template <typename Function>
    INLINE void each(const Function& f) const {
        constexpr u32 BATCH = 4;
        const uint4* places = reinterpret_cast<const uint4*>(p.places);
        const u32 quads = (count + 3) / 4;
        for (u32 base = 0; base < quads; base += BATCH * blockDim.x) {
            uint4 batch[BATCH];
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) {
                const u32 quad = base + i * blockDim.x + threadIdx.x;
                batch[i] = quad < quads ? places[quad] : make_uint4(NONE, NONE, NONE, NONE);
            }
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) {
                if (base + i * blockDim.x >= quads) break;
                const u32 number = 4 * (base + i * blockDim.x + threadIdx.x);
                f(batch[i].x, number);
                f(batch[i].y, number + 1);
                f(batch[i].z, number + 2);
                f(batch[i].w, number + 3);
            }
        }
    }
};

// Packed rows: those before the requests of this block, and those of all requests.
struct RowCounts {
    u32 before;
    u32 all;
};

// Finds which drafts stay, and where the rows of this block begin, whose first request is `first`.
INLINE Cut allot(const Params& p, const StoredDrafts& drafts, u64 first, RowCounts& rows) {
    __shared__ u32 limit;
    __shared__ RowCounts sums;
    if (threadIdx.x == 0) {
        limit = budget_of(p, p.budget == nullptr ? 0 : *p.budget);
        sums = {0, 0};
    }
    __syncthreads();
    const u32 end = static_cast<u32>(first * p.n);
    Cut cut = Cut::below(p.budget != nullptr && limit == 0 ? 0 : PLACES);
    u32 before = 0;
    u32 all = 0;
    u32 all_drafts = 0;
    if (p.budget == nullptr) {
        drafts.each([&](u32 place, u32 number) {
            if (place >= PLACES) return;
            all += 1;
            if (number < end) before += 1;
        });
    } else if (limit != 0) {
        cut = find_cut(drafts, drafts.count, limit, end, before, all_drafts);
    }
    // Requests that have not finished have a row for the root.
    if (p.finished == nullptr) {
        all_drafts += static_cast<u32>(p.batch);
        if (threadIdx.x == 0) before += static_cast<u32>(first);
    } else {
        for (u64 request = threadIdx.x; request < p.batch; request += blockDim.x) {
            if (has_finished(p, request)) continue;
            all += 1;
            if (request < first) before += 1;
        }
    }
    before = __reduce_add_sync(ALL_LANES, before);
    all = __reduce_add_sync(ALL_LANES, all);
    if (threadIdx.x % WARP == 0) {
        if (before != 0) atomicAdd(&sums.before, before);
        if (all != 0) atomicAdd(&sums.all, all);
    }
    __syncthreads();
    rows = {sums.before, sums.all + all_drafts};
    return cut;
}

// The rows of drafts, whose number is in the lower half, and of roots.
INLINE u32 rows_in(u32 nodes) { return (nodes & 0xFFFFu) + (nodes >> 16); }

// The second launch: shares the budget out and writes the trees.
INLINE void draft_tree_write_body(const Params& p) {
    __shared__ alignas(16) u32 memory[TREE_WORDS];
    __shared__ u32 nodes_of_warps[MAX_WARPS];
    const Teams teams = Teams::of(p, NONE);
    const Tree tree(p, memory + min(teams.team, teams.count - 1) * Tree::size(p));
    const u64 first = static_cast<u64>(blockIdx.x) * p.per_block;
    const u64 end = min(first + p.per_block, p.batch);
    const StoredDrafts drafts = {p, static_cast<u32>(p.batch * p.n)};
    RowCounts rows;
    const Cut cut = allot(p, drafts, first, rows);
    u32 start = rows.before;
    const u32 lane = threadIdx.x % WARP;
    const u32 warps_of_team = teams.size / WARP;
    const u32 first_warp = teams.team * warps_of_team;
    for (u64 base = first; base < end; base += teams.count) {
        const u64 request = base + teams.team;
        const bool is_idle = teams.is_idle() || request >= end;
        const u32 number = static_cast<u32>(request * p.n + teams.rank);
        u64 record = 0;
        if (!is_idle && teams.rank < p.n) {
            const u32 place = p.places[number];
            const u64 stored = p.records[number];
            const u32 depth = place < MAX_DRAFTS ? 0 : depth_of(stored);
            if (cut.keeps(place, number, [&] { return depth; })) record = stored;
        }
        const bool alive = !is_idle && !has_finished(p, request);
        // The trees of this block's requests before have been read.
        __syncthreads();
        if (!is_idle) tree.clear(p, teams);
        // The number of drafts, and above it the number of roots.
        const u32 root = alive && teams.rank < WARP ? 1u << 16 : 0;
        const u32 of_warp = __popc(__ballot_sync(ALL_LANES, record != 0)) + root;
        if (lane == 0) nodes_of_warps[threadIdx.x / WARP] = of_warp;
        __syncthreads();
        const SumsOfWarps<u32> sums(nodes_of_warps, blockDim.x / WARP, lane);
        const u32 before = sums.before(min(first_warp, WARP - 1));
        const u32 last_warp = min(first_warp + warps_of_team, WARP) - 1;
        const u32 of_team = __shfl_sync(ALL_LANES, sums.through, last_warp) - before;
        const Request to_write = {request, start + rows_in(before), of_team >> 16 != 0};
        write_tree(p, tree, teams, to_write, record, of_team & 0xFFFFu, is_idle);
        start += rows_in(sums.all());
    }
    finish(p, rows.all);
}

// ---- chains ------------------------------------------------------------------------

// The chains of some requests, in shared memory: survival k of chain r is at [k * stride + r], and
// the number of drafts behind the survivals.
struct Chains {
    u32* survivals;
    u32 stride;
    u32 count;
    u32 room;
    // The request of the first chain.
    u64 first;

    INLINE u32& survival(u32 r, u32 k) const { return survivals[k * stride + r]; }
    INLINE u32& length(u32 r) const { return survivals[room * stride + r]; }
};

// Loads the shares of all chains, as bits; NONE for candidates with a negative token. NaN becomes
// another NaN than NONE.
INLINE void load_chains(const Params& p, const Chains& chains) {
    constexpr u32 BATCH = 4;
    const u32 step = blockDim.x / p.lanes;
    for (u32 k = threadIdx.x % p.lanes; k < chains.room; k += p.lanes) {
        for (u32 base = threadIdx.x / p.lanes; base < chains.count; base += BATCH * step) {
            float shares[BATCH];
            bool negative[BATCH];
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) {
                const u32 r = min(base + i * step, chains.count - 1);
                shares[i] = given_share(p, chains.first + r, k);
                negative[i] = is_negative(p, chains.first + r, k);
            }
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) {
                const u32 r = base + i * step;
                const bool is_number = shares[i] == shares[i];
                const u32 bits = is_number ? __float_as_uint(shares[i]) : 0x7FC00000u;
                if (r < chains.count) chains.survival(r, k) = negative[i] ? NONE : bits;
            }
        }
    }
}

// Turns the shares of the chains into survivals, and finds how many drafts each chain has. Returns
// the flags of the requests whose outputs this block writes: `owned` requests from `own` on.
INLINE u32 rank_chains(const Params& p, const Chains& chains, u64 own, u32 owned) {
    u32 bits = 0;
    for (u32 r = threadIdx.x; r < chains.count; r += blockDim.x) {
        const u64 request = chains.first + r;
        u32 found = 0;
        const bool finished = has_finished(p, request);
        const u32 count = count_of(p, request, found);
        const float trust = trust_of(p, request, found);
        const u32 end = finished ? 0 : min(count, chains.room);
        Way way = {1.0f, 1.0f};
        u32 length = 0;
        bool ended = false;
        // The words behind the shares are shared memory too.
        u32 next = chains.survival(r, 0);
        for (u32 k = 0; k < end; k++) {
            const u32 given = next;
            next = chains.survival(r, k + 1);
            // What follows a candidate that is none is none, but its share is looked at.
            ended |= given == NONE;
            if (given == NONE) continue;
            way.step(p, __uint_as_float(probability(__uint_as_float(given), found)), trust);
            const u32 survival = survival_bits(way.survival);
            ended |= !is_offered(p, k, survival);
            if (ended) continue;
            chains.survival(r, k) = survival;
            length = k + 1;
        }
        chains.length(r) = length;
        // Each request's flags are raised by one block.
        if (request - own >= owned || finished) continue;
        bits |= found;
        for (u32 k = chains.room; k < count; k++) {
            if (!is_negative(p, request, k)) probability(given_share(p, request, k), bits);
        }
    }
    return bits;
}

// The drafts of all chains, which share the budget, in the shared memory of each block.
struct ChainDrafts {
    const Params& p;
    const Chains& chains;

    INLINE u32 place(u32 r, u32 k) const { return place_of(p, k, chains.survival(r, k)); }

    INLINE u32 depth(u32 place, u32 number) const {
        // The depth does not count for the drafts that come before all others.
        return place < MAX_DRAFTS ? 0 : number % chains.room + 1;
    }

    // Calls f(place, number) for each draft of this thread.
    template <typename Function>
    INLINE void each(const Function& f) const {
        for (u32 r = threadIdx.x; r < chains.count; r += blockDim.x) {
            const u32 length = chains.length(r);
            for (u32 k = 0; k < length; k++) f(place(r, k), r * chains.room + k);
        }
    }

    // How many drafts of a chain stay.
    INLINE u32 kept(const Cut& cut, u32 r) const {
        u32 low = 0;
        u32 high = chains.length(r);
        while (low < high) {
            const u32 middle = (low + high) / 2;
            const u32 at = place(r, middle);
            const u32 depth = at < MAX_DRAFTS ? 0 : middle + 1;
            if (cut.keeps(at, r * chains.room + middle, [&] { return depth; })) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
};

// Writes the outputs of a node of a chain with `num` drafts.
INLINE void write_chain_node(const Params& p, const Request& request, u32 node, u32 num,
                             u32 survival) {
    const bool there = node <= num;
    if (node == 0) {
        write_root(p, request, num);
    } else if (there) {
        Draft draft;
        draft.node = node;
        draft.parent = node - 1;
        draft.depth = node;
        draft.index = node - 1;
        draft.survival = survival;
        write_draft(p, request, draft, token_at(p, request.number, node - 1));
    } else {
        write_no_draft(p, request, node);
    }
    write_links(p, request.number, node, node < num ? node + 1 : NONE, NONE);
    if (p.masks != nullptr) {
        u32* mask = mask_of(p, request.number, node);
        for (u32 word = 0; word <= p.n / 32; word++) {
            // The bits of nodes 0 to `node`.
            const u32 last = node - min(node, word * 32);
            const u32 bits = last >= 31 ? ALL_LANES : (2u << last) - 1;
            mask[word] = there && node >= word * 32 ? bits : 0;
        }
    }
}

// All of the work for chains. Where requests share a budget or packed rows, every block ranks the
// chains of all requests, and writes its own.
INLINE void draft_tree_chain_body(const Params& p) {
    extern __shared__ u64 dynamic[];
    __shared__ u32 nums[MAX_THREADS];
    __shared__ u32 starts[MAX_THREADS];
    __shared__ u32 shared_limit;
    const i32 budget = p.budget == nullptr ? 0 : *p.budget;
    const u64 own = static_cast<u64>(blockIdx.x) * p.per_block;
    const u32 owned = static_cast<u32>(min(p.batch - own, static_cast<u64>(p.per_block)));
    const u32 count = p.together ? static_cast<u32>(p.batch) : owned;
    const Chains chains = {
        reinterpret_cast<u32*>(dynamic), count | 1, count, p.room, p.together ? 0 : own};
    if (count != 0) load_chains(p, chains);
    if (threadIdx.x == 0) shared_limit = budget_of(p, budget);
    __syncthreads();
    const u32 limit = shared_limit;
    raise(p.flags, rank_chains(p, chains, own, owned));
    __syncthreads();
    const ChainDrafts drafts = {p, chains};
    Cut cut = Cut::below(limit == 0 ? 0 : PLACES);
    if (p.together && p.budget != nullptr && limit != 0) {
        u32 before;
        u32 all;
        cut = find_cut(drafts, count * p.room, limit, 0, before, all);
    }
    u32 rows = 0;
    for (u32 base = 0; base < count; base += blockDim.x) {
        const u32 r = base + threadIdx.x;
        const bool there = r < count;
        const u64 request = chains.first + r;
        u32 num = 0;
        if (there) num = p.together ? drafts.kept(cut, r) : min(chains.length(r), limit);
        const bool alive = there && !has_finished(p, request);
        u32 all;
        const u32 start = rows + block_scan(alive ? num + 1 : 0, all);
        rows += all;
        if (there && request - own < owned) {
            nums[request - own] = num;
            starts[request - own] = start;
        }
    }
    __syncthreads();
    const u32 nodes = p.n + 1;
    for (u32 i = threadIdx.x; i < owned * nodes; i += blockDim.x) {
        const u32 at = i / nodes;
        const u32 node = i % nodes;
        const u32 num = nums[at];
        const Request request = {own + at, p.together ? starts[at] : 0,
                                 !has_finished(p, own + at)};
        const u32 r = static_cast<u32>(request.number - chains.first);
        const u32 survival = node != 0 && node <= num ? chains.survival(r, node - 1) : 0;
        write_chain_node(p, request, node, num, survival);
    }
    finish(p, rows);
}

SPEC_KERNEL(draft_tree_whole, draft_tree_whole_body, Params, MAX_THREADS)
SPEC_KERNEL(draft_tree_rank, draft_tree_rank_body, Params, MAX_THREADS)
SPEC_KERNEL(draft_tree_write, draft_tree_write_body, Params, MAX_THREADS)
SPEC_KERNEL(draft_tree_chain, draft_tree_chain_body, Params, MAX_THREADS)
