// tree_verify: follows, in each request's tree of draft tokens, the path of the tokens that the
// target model chose.
//
// A block verifies a tree. Its threads read the four numbers of every node, with all loads in
// flight at once, and store them side by side in shared memory:
//
//     node      | 0              | 1              | 2 ...
//     16 bytes  | draft first    | draft first    |
//               | next  target   | next  target   |
//
// Thread 0 then walks the tree, with one load from shared memory for each child that it visits. A
// tree that does not fit shared memory is walked in global memory.
//
// A chain is verified by a warp, with a lane for each node: a lane compares the next node's token
// with the token that the target chose, and the first lane with a difference ends the walk.
//
// Bytes: 0.3 MB for 256 trees of 64 nodes. Latency dominates, not bandwidth: one wait for global
// memory, then about 30 cycles for each visited child. Packed rows add one wait, for the offsets.
#include "params/tree_verify.cuh"

// Pointers that lead to no node: NO_NODE if the tree says so, BROKEN if the data are invalid.
constexpr i32 NO_NODE = -1;
constexpr i32 BROKEN = -2;
// The target token of a node that has no row.
constexpr i32 MISSING = -2;

struct Node {
    // The drafted token; -1 if it is not a valid token, so that no target equals it.
    i32 draft;
    i32 first_child;
    i32 next_sibling;
    // The token that the target model chose after this node; -1 if it is not a valid token, MISSING
    // if the node has no row.
    i32 target;
};
static_assert(sizeof(Node) == NODE);

// The rows of the target's tokens of a request.
struct TargetRows {
    // The row of node 0.
    u64 first;
    // The number of nodes that have a row, and the number of rows that the offsets state. The first
    // number is smaller if the offsets exceed the number of rows.
    u32 nodes;
    u32 stated;
    // The flag to raise if a walk stops before a node without a row.
    u32 missing;

    INLINE TargetRows(const Params& p, u64 request)
        : first(request * p.target.stride), nodes(p.nodes), stated(p.nodes), missing(0) {
        if (p.row_offsets.data == nullptr) return;
        const i64 start = p.row_offsets[request];
        const i64 end = p.row_offsets[request + 1];
        first = 0;
        nodes = 0;
        stated = 0;
        if (start != end) missing = BAD_LENGTHS;
        // If node 0 has no row, the walk does not begin.
        if (start < 0 || start >= static_cast<i64>(p.rows) || end <= start) return;
        first = start;
        stated = cut(end - start);
        nodes = min(stated, cut(static_cast<i64>(p.rows) - start));
    }

    INLINE static u32 cut(i64 count) { return static_cast<u32>(min(count, 0xFFFFFFFFll)); }
};

INLINE i32 token(i64 value) {
    return value >= 0 && value <= 0x7FFFFFFF ? static_cast<i32>(value) : -1;
}

INLINE i32 pointer(i64 value, u32 nodes) {
    if (value >= 1 && value < nodes) return static_cast<i32>(value);
    return value == -1 ? NO_NODE : BROKEN;
}

INLINE Node node_of(const Params& p, const TargetRows& rows, u64 request, u32 node) {
    const bool there = node < rows.nodes;
    const i64 draft = p.draft.at(request, node);
    const i64 target = there ? p.target.at(0, rows.first + node) : 0;
    const i64 first = p.first_child.at(request, node);
    const i64 next = p.next_sibling.at(request, node);
    return {token(draft), pointer(first, p.nodes), pointer(next, p.nodes),
            there ? token(target) : MISSING};
}

// Writes the path and returns its number of tokens. at(i) reads node i. The walk visits fewer
// children than the tree has nodes, so it ends even if the pointers form a cycle.
template <typename At>
INLINE u32 walk(const Params& p, const TargetRows& rows, u64 request, u32& bits, At at) {
    u32 visited = 0;
    u32 node = 0;
    Node here = at(0);
    for (u32 depth = 0;; depth++) {
        const i32 target = here.target;
        if (target == MISSING) {
            bits |= rows.missing;
            return depth;
        }
        p.tokens.set(request, depth, max(target, 0));
        p.path.set(request, depth, static_cast<i32>(node));
        if (target < 0) bits |= OUT_OF_RANGE;
        if (target < 0 || depth == p.max_depth) return depth + 1;
        i32 child = here.first_child;
        while (true) {
            if (child == NO_NODE) return depth + 1;
            visited++;
            if (child == BROKEN || visited == p.nodes) {
                bits |= BAD_LENGTHS;
                return depth + 1;
            }
            here = at(child);
            if (here.draft == target) break;
            child = here.next_sibling;
        }
        node = child;
    }
}

template <bool STAGED>
INLINE void verify(const Params& p) {
    extern __shared__ int4 staged[];
    __shared__ u32 emitted;
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const TargetRows rows(p, request);
        if (STAGED) {
            for (u32 i = threadIdx.x; i < p.nodes; i += blockDim.x) {
                const Node node = node_of(p, rows, request, i);
                staged[i] = make_int4(node.draft, node.first_child, node.next_sibling, node.target);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            u32 bits = 0;
            u32 count;
            if (STAGED) {
                count = walk(p, rows, request, bits, [&](u32 i) {
                    const int4 node = staged[i];
                    return Node{node.x, node.y, node.z, node.w};
                });
            } else {
                count = walk(p, rows, request, bits,
                             [&](u32 i) { return node_of(p, rows, request, i); });
            }
            p.num_tokens[request] = static_cast<i32>(count);
            raise(p.flags, bits);
            emitted = count;
        }
        __syncthreads();
        for (u64 i = emitted + threadIdx.x; i <= p.max_depth; i += blockDim.x) {
            p.tokens.set(request, static_cast<u32>(i), -1);
            p.path.set(request, static_cast<u32>(i), -1);
        }
        __syncthreads();  // before the next request overwrites `staged` and `emitted`
    }
}

// Follows a chain, 32 nodes at a time. A block has one warp.
INLINE void verify_chain(const Params& p) {
    const u32 lane = lane_id();
    for (u64 request = blockIdx.x; request < p.batch; request += gridDim.x) {
        const TargetRows rows(p, request);
        const u32 nodes = min(p.nodes, rows.stated);
        const u64 draft_row = p.packed_draft ? 0 : request;
        const u64 draft_first = p.packed_draft ? rows.first : 0;
        u32 bits = rows.nodes == 0 && lane == 0 ? rows.missing : 0;
        u32 emitted = 0;
        u32 stops = 0;
        while (rows.nodes != 0 && stops == 0) {
            const u32 node = emitted + lane;
            const u32 child = node + 1;
            const bool there = node < rows.nodes && node <= p.max_depth;
            const bool has_child = there && node < p.max_depth && child < nodes;
            const bool has_row = has_child && child < rows.nodes;
            const i64 wide = there ? p.target.at(0, rows.first + node) : -1;
            const i64 draft = has_row ? p.draft.at(draft_row, draft_first + child) : -1;
            const i32 target = token(wide);
            stops = __ballot_sync(ALL_LANES, target < 0 || !has_row || draft != target);
            // The walk reaches the nodes of the lanes up to the first lane that stops.
            const u32 last = stops != 0 ? __ffs(stops) - 1 : WARP - 1;
            if (lane <= last) {
                p.tokens.set(request, node, max(target, 0));
                p.path.set(request, node, static_cast<i32>(node));
            }
            if (lane == last) {
                if (target < 0) bits = OUT_OF_RANGE;
                if (target >= 0 && has_child && !has_row) bits = rows.missing;
            }
            emitted += last + 1;
        }
        if (lane == 0) p.num_tokens[request] = static_cast<i32>(emitted);
        raise(p.flags, bits);
        for (u64 i = emitted + lane; i <= p.max_depth; i += WARP) {
            p.tokens.set(request, i, -1);
            p.path.set(request, i, -1);
        }
    }
}

SPEC_KERNEL(tree_verify_staged, verify<true>, Params, MAX_THREADS)
SPEC_KERNEL(tree_verify_global, verify<false>, Params, MAX_THREADS)
SPEC_KERNEL(tree_verify_chain, verify_chain, Params, CHAIN_THREADS)
