//!include params/tree_verify
//!include integers
// tree_verify: walks each request's tree of drafts along the tokens that the target chose.
//
// A workgroup owns a request: thread 0 walks, and all threads pad the rows. Bytes moved: four
// numbers per child that the walk looks at, and the output rows. The loads of a walk depend on each
// other; only the work of other requests hides their latency.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> draft_tokens: array<u32>;
@group(0) @binding(2) var<storage, read> target_tokens: array<u32>;
@group(0) @binding(3) var<storage, read> first_child: array<u32>;
@group(0) @binding(4) var<storage, read> next_sibling: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> path: array<u32>;
@group(0) @binding(7) var<storage, read_write> num_tokens: array<u32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

const THREADS = 64u;
// NONE is no node; BROKEN is an invalid pointer.
const NONE = 0xffffffffu;
const BROKEN = 0xfffffffeu;
// Stands for no token; differs from every token that the target chose.
const NO_TOKEN = 0xffffffffu;

const OUT_OF_RANGE = 2u;
const BAD_LENGTHS = 4u;

var<workgroup> emitted: u32;

// A token from its 64 bits: NO_TOKEN for a value below 0 or from 2^31 on.
fn token(value: vec2<u32>) -> u32 {
    return select(NO_TOKEN, value.x, value.y == 0u && (value.x >> 31u) == 0u);
}

// A pointer from its 64 bits: NONE for -1, BROKEN for a value that is neither -1 nor a node below
// the root.
fn pointer(value: vec2<u32>) -> u32 {
    if all(value == vec2(0xffffffffu)) {
        return NONE;
    }
    let fits = value.y == 0u && value.x >= 1u && value.x < params.nodes;
    return select(BROKEN, value.x, fits);
}

fn draft_of(request: u32, node: u32) -> u32 {
    let words = params.draft_words;
    let at = (params.at.b1 + request * params.draft_stride + node) * words;
    return token(integer(draft_tokens[at], draft_tokens[at + words - 1u], words));
}

fn target_of(request: u32, node: u32) -> u32 {
    let words = params.target_words;
    let at = (params.at.b2 + request * params.target_stride + node) * words;
    return token(integer(target_tokens[at], target_tokens[at + words - 1u], words));
}

fn first_of(request: u32, node: u32) -> u32 {
    let words = params.first_child_words;
    let at = (params.at.b3 + request * params.first_child_stride + node) * words;
    return pointer(integer(first_child[at], first_child[at + words - 1u], words));
}

fn next_of(request: u32, node: u32) -> u32 {
    let words = params.next_sibling_words;
    let at = (params.at.b4 + request * params.next_sibling_stride + node) * words;
    return pointer(integer(next_sibling[at], next_sibling[at + words - 1u], words));
}

// `high` is the high word of `value` as 64 bits.
fn put(request: u32, col: u32, value: u32, node: u32, high: u32) {
    let at = (params.at.b5 + request * params.tokens_stride + col) * params.tokens_words;
    tokens[at] = value;
    if params.tokens_words == 2u {
        tokens[at + 1u] = high;
    }
    let step = (params.at.b6 + request * params.path_stride + col) * params.path_words;
    path[step] = node;
    if params.path_words == 2u {
        path[step + 1u] = high;
    }
}

// The first child of `node` with the token `wanted`. BROKEN if a pointer is bad, or if the walk has
// looked at as many children as there are nodes; NONE if no child has the token.
fn follow(request: u32, node: u32, wanted: u32, looked: ptr<function, u32>) -> u32 {
    var child = first_of(request, node);
    while child != NONE {
        *looked += 1u;
        if child == BROKEN || *looked == params.nodes {
            return BROKEN;
        }
        if draft_of(request, child) == wanted {
            return child;
        }
        child = next_of(request, child);
    }
    return NONE;
}

// Writes the path and returns its number of tokens.
fn walk(request: u32) -> u32 {
    var looked = 0u;
    var node = 0u;
    var depth = 0u;
    var bits = 0u;
    loop {
        let wanted = target_of(request, node);
        put(request, depth, select(wanted, 0u, wanted == NO_TOKEN), node, 0u);
        depth += 1u;
        if wanted == NO_TOKEN {
            bits = OUT_OF_RANGE;
            break;
        }
        if depth > params.max_depth {
            break;
        }
        node = follow(request, node, wanted, &looked);
        if node == BROKEN {
            bits = BAD_LENGTHS;
        }
        if node == BROKEN || node == NONE {
            break;
        }
    }
    if bits != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b8], bits);
    }
    return depth;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.at.groups {
        return;
    }
    if thread == 0u {
        emitted = walk(request);
        num_tokens[params.at.b7 + request] = emitted;
    }
    let count = workgroupUniformLoad(&emitted);
    for (var i = count + thread; i <= params.max_depth; i += THREADS) {
        put(request, i, 0xffffffffu, 0xffffffffu, 0xffffffffu);
    }
}
