// tree_verify: follows the tokens that the target model chose down each request's tree of drafts.
//
// One block handles one request. Its threads read the four numbers of every node, with all loads in
// flight at once, and store them side by side in shared memory:
//
//     node      | 0              | 1              | 2 ...
//     16 bytes  | draft first    | draft first    |
//               | next  target   | next  target   |
//
// Thread 0 then walks the tree. It needs one load from shared memory for each child that it looks
// at. A tree that does not fit shared memory is walked in global memory.
//
// Bytes: 0.3 MB for 256 trees of 64 nodes. Latency decides, not bandwidth: one wait for global
// memory, then about 30 cycles for each child.
#include "params/tree_verify.cuh"

constexpr u32 MAX_THREADS = 256;
// Values for pointers that lead to no node: NO_NODE if the tree says so, BROKEN for bad data.
constexpr i32 NO_NODE = -1;
constexpr i32 BROKEN = -2;

struct Node {
    // The drafted token; -1 if it is not a valid token, so that no target equals it.
    i32 draft;
    i32 first_child;
    i32 next_sibling;
    // The token that the target model chose after this node; -1 if it is not a valid token.
    i32 target;
};

INLINE i32 token(i64 value) {
    return value >= 0 && value <= 0x7FFFFFFF ? static_cast<i32>(value) : -1;
}

INLINE i32 pointer(i64 value, u32 nodes) {
    if (value >= 1 && value < nodes) return static_cast<i32>(value);
    return value == -1 ? NO_NODE : BROKEN;
}

INLINE Node node_of(const Params& p, u64 request, u32 node) {
    const i64 draft = p.draft.at(request, node);
    const i64 target = p.target.at(request, node);
    const i64 first = p.first_child.at(request, node);
    const i64 next = p.next_sibling.at(request, node);
    return {token(draft), pointer(first, p.nodes), pointer(next, p.nodes), token(target)};
}

// Writes the path and returns its number of tokens. `at(i)` reads node i. Looks at fewer children
// than the tree has nodes, so it ends even if pointers form a cycle.
template <typename At>
INLINE u32 walk(const Params& p, u64 request, u32& bits, At at) {
    u32 looked = 0;
    u32 node = 0;
    Node here = at(0);
    for (u32 depth = 0;; depth++) {
        const i32 target = here.target;
        p.tokens.set(request, depth, max(target, 0));
        p.path.set(request, depth, static_cast<i32>(node));
        if (target < 0) bits |= OUT_OF_RANGE;
        if (target < 0 || depth == p.max_depth) return depth + 1;
        i32 child = here.first_child;
        while (true) {
            if (child == NO_NODE) return depth + 1;
            looked++;
            if (child == BROKEN || looked == p.nodes) {
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
        if (STAGED) {
            for (u32 i = threadIdx.x; i < p.nodes; i += blockDim.x) {
                const Node node = node_of(p, request, i);
                staged[i] = make_int4(node.draft, node.first_child, node.next_sibling, node.target);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            u32 bits = 0;
            u32 count;
            if (STAGED) {
                count = walk(p, request, bits, [&](u32 i) {
                    const int4 node = staged[i];
                    return Node{node.x, node.y, node.z, node.w};
                });
            } else {
                count = walk(p, request, bits, [&](u32 i) { return node_of(p, request, i); });
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

SPEC_KERNEL(tree_verify_staged, verify<true>, Params, MAX_THREADS)
SPEC_KERNEL(tree_verify_any, verify<false>, Params, MAX_THREADS)
