//!include params/tree_verify
//!include params/shared
//!include integers
// tree_verify: walks each request's tree of drafts along the tokens that the target chose.
//
// A workgroup owns a request. Entry points, each for another kind of call:
//
// * `main`   trees: thread 0 walks, and all threads pad the rows.
// * `packed` trees whose target tokens are packed rows. It has no binding left for `num_tokens`,
//            which `count` finds from the nodes that `packed` wrote, a thread per request.
// * `chain`  chains: a thread has a node, and says whether the next node's token is the one that the
//            target chose. The first thread where it is not ends the walk.
//
// Bytes moved: four numbers per child that the walk looks at, two for a node of a chain, and the
// output rows. The loads of a tree's walk depend on each other; only the work of other requests
// hides their latency.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> draft_tokens: array<u32>;
@group(0) @binding(2) var<storage, read> target_tokens: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> path: array<u32>;
// main, packed
@group(0) @binding(3) var<storage, read> first_child: array<u32>;
@group(0) @binding(4) var<storage, read> next_sibling: array<u32>;
// packed, chain
@group(0) @binding(7) var<storage, read> row_offsets: array<u32>;
// main, packed, chain
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;
// main
@group(0) @binding(7) var<storage, read_write> num_tokens: array<u32>;
// chain
@group(0) @binding(3) var<storage, read_write> num_of_chains: array<u32>;
// count
@group(0) @binding(1) var<storage, read> walked: array<u32>;
@group(0) @binding(2) var<storage, read_write> num_of_packed: array<u32>;

// NONE is no node; BROKEN is an invalid pointer.
const NONE = 0xffffffffu;
const BROKEN = 0xfffffffeu;
// Stands for no token; differs from every token that the target chose.
const NO_TOKEN = 0xffffffffu;

var<workgroup> emitted: u32;

fn has(bit: u32) -> bool {
    return (params.has & bit) != 0u;
}

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

// Draft token `index` of the binding, and the same of the target's tokens.
fn draft_at(index: u32) -> u32 {
    let words = params.draft_words;
    let at = (params.at.b1 + index) * words;
    return token(integer(draft_tokens[at], draft_tokens[at + words - 1u], words));
}

fn target_at(index: u32) -> u32 {
    let words = params.target_words;
    let at = (params.at.b2 + index) * words;
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

// ---- rows -----------------------------------------------------------------------

// Where the target's tokens of a request lie.
struct TargetRows {
    // The row of node 0.
    first: u32,
    // How many nodes have a row, and how many rows the offsets say that there are: fewer nodes have
    // a row where the offsets pass the end.
    nodes: u32,
    said: u32,
    // The flag of a walk that stops before a node without a row.
    missing: u32,
}

fn all_rows(request: u32) -> TargetRows {
    return TargetRows(request * params.target_stride, params.nodes, params.nodes, 0u);
}

fn offset_at(request: u32) -> vec2<u32> {
    let words = params.offset_words;
    let at = (params.at.b7 + request) * words;
    return integer(row_offsets[at], row_offsets[at + words - 1u], words);
}

fn packed_rows(request: u32) -> TargetRows {
    let start = offset_at(request);
    let end = offset_at(request + 1u);
    let is_none = all(start == end);
    var rows = TargetRows(0u, 0u, 0u, select(BAD_LENGTHS, 0u, is_none));
    // Where node 0 has no row, no walk begins.
    if start.y != 0u || start.x >= params.rows || bitcast<i32>(end.y) < 0 {
        return rows;
    }
    // No node has a number so large that it needs more than 32 bits.
    let last = select(0xffffffffu, end.x, end.y == 0u);
    if last <= start.x {
        return rows;
    }
    rows.first = start.x;
    rows.said = last - start.x;
    rows.nodes = min(rows.said, params.rows - start.x);
    return rows;
}

// ---- paths ----------------------------------------------------------------------

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

fn pad(request: u32, from_col: u32, thread: u32) {
    for (var i = from_col + thread; i <= params.max_depth; i += THREADS) {
        put(request, i, 0xffffffffu, 0xffffffffu, 0xffffffffu);
    }
}

fn raise(bits: u32) {
    if bits != 0u && has(HAS_FLAGS) {
        atomicOr(&flags[params.at.b8], bits);
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
        if draft_at(request * params.draft_stride + child) == wanted {
            return child;
        }
        child = next_of(request, child);
    }
    return NONE;
}

// Writes the path and returns its number of tokens.
fn walk(request: u32, rows: TargetRows) -> u32 {
    var looked = 0u;
    var node = 0u;
    var depth = 0u;
    var bits = 0u;
    loop {
        if node >= rows.nodes {
            bits = rows.missing;
            break;
        }
        let wanted = target_at(rows.first + node);
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
    raise(bits);
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
        emitted = walk(request, all_rows(request));
        num_tokens[params.at.b7 + request] = emitted;
    }
    pad(request, workgroupUniformLoad(&emitted), thread);
}

@compute @workgroup_size(THREADS)
fn packed(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.at.groups {
        return;
    }
    if thread == 0u {
        emitted = walk(request, packed_rows(request));
    }
    pad(request, workgroupUniformLoad(&emitted), thread);
}

// The number of tokens of each request: of the nodes of its path, the first -1 comes behind them.
@compute @workgroup_size(THREADS)
fn count(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * THREADS + thread;
    if request >= params.requests {
        return;
    }
    var low = 0u;
    var high = params.max_depth + 1u;
    while low < high {
        let middle = low + (high - low) / 2u;
        let at = (params.at.b1 + request * params.path_stride + middle) * params.path_words;
        if walked[at] == NONE {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    num_of_packed[params.at.b2 + request] = low;
}

// ---- chains ---------------------------------------------------------------------

// The first node at which a walk stops, of those that the threads looked at.
var<workgroup> stop: atomic<u32>;
var<workgroup> stopped: u32;

@compute @workgroup_size(THREADS)
fn chain(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.at.groups {
        return;
    }
    var rows = all_rows(request);
    if has(HAS_OFFSETS) {
        rows = packed_rows(request);
    }
    let nodes = min(params.nodes, rows.said);
    let drafts = select(request * params.draft_stride, rows.first, has(PACKED_DRAFT));
    if thread == 0u {
        atomicStore(&stop, NONE);
        stopped = select(NONE, 0u, rows.nodes == 0u);
        if rows.nodes == 0u {
            raise(rows.missing);
        }
    }
    var count = workgroupUniformLoad(&stopped);
    for (var base = 0u; count == NONE; base += THREADS) {
        let node = base + thread;
        let child = node + 1u;
        let is_there = node < rows.nodes && node <= params.max_depth;
        let has_child = is_there && node < params.max_depth && child < nodes;
        let has_row = has_child && child < rows.nodes;
        var wanted = NO_TOKEN;
        if is_there {
            wanted = target_at(rows.first + node);
        }
        var follows = has_row && wanted != NO_TOKEN;
        if follows {
            follows = draft_at(drafts + child) == wanted;
        }
        if !follows {
            atomicMin(&stop, node);
        }
        workgroupBarrier();
        // The walk reaches the nodes up to the first that stops.
        let last = atomicLoad(&stop);
        if node <= last {
            put(request, node, select(wanted, 0u, wanted == NO_TOKEN), node, 0u);
        }
        if node == last {
            if wanted == NO_TOKEN {
                raise(OUT_OF_RANGE);
            } else if has_child && !has_row {
                raise(rows.missing);
            }
        }
        if thread == 0u {
            stopped = select(last + 1u, NONE, last == NONE);
        }
        count = workgroupUniformLoad(&stopped);
    }
    if thread == 0u {
        num_of_chains[params.at.b3 + request] = count;
    }
    pad(request, count, thread);
}
