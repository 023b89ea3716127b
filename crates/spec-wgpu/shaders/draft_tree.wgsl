//!include params/draft_tree
//!include params/shared
//!include exact
//!include integers
//!include scan
// draft_tree: trees of drafts from candidates with probabilities, within a budget that all requests
// share.
//
// Each request has a state, its candidates' survivals, depths and parents, its first n candidates in
// its order (picks), and its drafts' candidates and parents in the workspace. Passes, each its own
// dispatch:
//
// 1. `survive`  a workgroup per request: which candidates are none, and in one round for each depth
//               the survivals of the others.
// 2. `rank`     a thread per candidate: how many candidates of the request come before it.
// 3. `keep`     a thread per request: how many picks may become drafts.
// 4. `allot`    one workgroup: how many of these the budget keeps, and where the rows of each
//               request begin.
// 5. `order`    a thread per pick: the node that it becomes, and the node of its parent.
// 6. `nodes`, `links`  a thread per node: the outputs of each request.
// 7. `pack`, `pack_inputs`  a thread per packed row.
//
// Bytes moved: the candidates, and a few times the picks, all from the cache.

// Words of a token.
override TOKEN_WORDS: u32 = 1u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
// survive, nodes, pack_inputs
@group(0) @binding(2) var<storage, read> candidates: array<u32>;
// survive
@group(0) @binding(3) var<storage, read> parents: array<u32>;
@group(0) @binding(4) var<storage, read> shares: array<u32>;
@group(0) @binding(5) var<storage, read> counts: array<u32>;
@group(0) @binding(6) var<storage, read> trust: array<u32>;
@group(0) @binding(7) var<storage, read> finished: array<u32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;
// allot
@group(0) @binding(2) var<storage, read> budget: array<i32>;
@group(0) @binding(3) var<storage, read_write> num_drafts: array<u32>;
@group(0) @binding(4) var<storage, read_write> row_offsets: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags_of_batch: array<atomic<u32>>;
// nodes
@group(0) @binding(3) var<storage, read_write> drafts: array<u32>;
@group(0) @binding(4) var<storage, read_write> picked: array<u32>;
@group(0) @binding(5) var<storage, read_write> draft_parents: array<u32>;
@group(0) @binding(6) var<storage, read_write> survivals: array<u32>;
@group(0) @binding(7) var<storage, read_write> depths: array<u32>;
// links
@group(0) @binding(2) var<storage, read_write> first_child: array<u32>;
@group(0) @binding(3) var<storage, read_write> next_sibling: array<u32>;
@group(0) @binding(4) var<storage, read_write> masks: array<u32>;
// pack
@group(0) @binding(2) var<storage, read_write> rows: array<u32>;
@group(0) @binding(3) var<storage, read_write> row_requests: array<u32>;
@group(0) @binding(4) var<storage, read_write> row_parents: array<u32>;
// pack_inputs
@group(0) @binding(3) var<storage, read> roots: array<u32>;
@group(0) @binding(4) var<storage, read> starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> row_tokens: array<u32>;
@group(0) @binding(6) var<storage, read_write> row_positions: array<u32>;

const THREADS = 256u;

// A request's state: how many picks may become drafts, or FINISHED; how many drafts it has; where
// its rows begin; and what the search of `allot` knows of it.
const KEPT = 0u;
const NUM = 1u;
const START = 2u;
const LOW = 3u;
const MIDDLE = 4u;
const HIGH = 5u;

const NONE = 0xffffffffu;
const FINISHED = 0xffffffffu;
// The depth of a candidate whose parent has not been looked at.
const PENDING = 0u;
const MAX_DEPTH = 511u;
const ONE = 0x3f800000u;

fn has(bit: u32) -> bool {
    return (params.has & bit) != 0u;
}

// ---- the workspace --------------------------------------------------------------

fn load(request: u32, word: u32) -> u32 {
    return atomicLoad(&work[params.at.b1 + HEAD + request * params.row_words + word]);
}

fn store(request: u32, word: u32, value: u32) {
    atomicStore(&work[params.at.b1 + HEAD + request * params.row_words + word], value);
}

fn all_rows() -> u32 {
    return atomicLoad(&work[params.at.b1]);
}

// Where parts of a request's words begin, behind its state.
fn picks_at() -> u32 {
    return STATE;
}

fn survivals_at() -> u32 {
    return STATE + params.n;
}

fn depths_at() -> u32 {
    return survivals_at() + params.c;
}

fn parents_at() -> u32 {
    return depths_at() + params.c;
}

fn node_candidates_at() -> u32 {
    return parents_at() + params.c;
}

fn node_parents_at() -> u32 {
    return node_candidates_at() + params.n;
}

var<workgroup> broadcast_value: u32;

// The value of thread 0, for all threads.
fn broadcast(value: u32, thread: u32) -> u32 {
    if thread == 0u {
        broadcast_value = value;
    }
    return workgroupUniformLoad(&broadcast_value);
}

// ---- pass 1 ---------------------------------------------------------------------

// The bits of a share or a trust as it counts: NaN and negative numbers as 0, numbers above 1 as 1.
fn probability(bits: u32) -> u32 {
    if is_nan(bits) || (bits >> 31u) == 1u {
        return 0u;
    }
    return min(bits, ONE);
}

// The bits of the product of two numbers from 0 to 1; 0 below MIN_SURVIVAL.
fn product(a: u32, b: u32) -> u32 {
    let bits = bitcast<u32>(mul(bitcast<f32>(a), bitcast<f32>(b)));
    return select(bits, 0u, bits < MIN_SURVIVAL);
}

// Notes what a candidate says of itself: its share, its parent, and whether it is none. Returns
// flags.
fn note(request: u32, j: u32, count: u32) -> u32 {
    store(request, depths_at() + j, NONE);
    let token_at = (params.at.b2 + request * params.candidates_stride + j) * TOKEN_WORDS;
    let is_negative = (candidates[token_at + TOKEN_WORDS - 1u] >> 31u) == 1u;
    if j >= count || is_negative {
        return 0u;
    }
    var bits = 0u;
    var share = ONE;
    if has(HAS_SHARES) {
        let given = shares[params.at.b4 + request * params.shares_stride + j];
        bits |= select(NON_FINITE, 0u, is_finite(given));
        share = probability(given);
    }
    var parent = vec2(j, 0u);
    if has(HAS_PARENTS) {
        let words = params.parents_words;
        let at = (params.at.b3 + request * params.parents_stride + j) * words;
        parent = integer(parents[at], parents[at + words - 1u], words);
    }
    if parent.y != 0u || parent.x > j {
        return bits | BAD_LENGTHS;
    }
    store(request, survivals_at() + j, share);
    store(request, parents_at() + j, parent.x);
    store(request, depths_at() + j, PENDING);
    return bits;
}

// Looks at a candidate whose parent may have the depth before `depth`. Returns whether it has.
fn follow(request: u32, j: u32, depth: u32, factor: u32, power: u32) -> bool {
    if load(request, depths_at() + j) != PENDING {
        return false;
    }
    let parent = load(request, parents_at() + j);
    var above = ONE;
    if depth == 1u {
        if parent != 0u {
            return false;
        }
    } else {
        if parent == 0u || load(request, depths_at() + parent - 1u) != depth - 1u {
            return false;
        }
        above = load(request, survivals_at() + parent - 1u);
    }
    let share = load(request, survivals_at() + j);
    var survival = product(product(above, share), factor);
    if has(CUMULATIVE) {
        // The bits of numbers from 0 to 1 have the order of the numbers.
        survival = min(product(share, power), above);
    }
    store(request, survivals_at() + j, survival);
    store(request, depths_at() + j, depth);
    return true;
}

// 1 once a candidate of the round has followed its parent.
var<workgroup> has_followed: atomic<u32>;

@compute @workgroup_size(ROW_THREADS)
fn survive(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.at.groups {
        return;
    }
    var state = 0u;
    if has(HAS_FINISHED) {
        state = select(0u, FINISHED, finished[params.at.b7 + request] != 0u);
    }
    state = broadcast(state, thread);
    if thread == 0u {
        store(request, KEPT, state);
    }
    if state == FINISHED {
        return;
    }
    var bits = 0u;
    var count = params.c;
    if has(HAS_COUNTS) {
        let words = params.count_words;
        let at = (params.at.b5 + request) * words;
        let given = integer(counts[at], counts[at + words - 1u], words);
        count = cut_length(given, params.c);
        bits |= select(0u, BAD_LENGTHS, is_cut(given, count));
    }
    var factor = ONE;
    if has(HAS_TRUST) {
        let given = trust[params.at.b6 + request];
        bits |= select(NON_FINITE, 0u, is_finite(given));
        factor = probability(given);
    }
    for (var j = thread; j < params.c; j += ROW_THREADS) {
        bits |= note(request, j, count);
    }
    for (var k = thread; k < params.n; k += ROW_THREADS) {
        store(request, picks_at() + k, NONE);
    }
    if has(HAS_FLAGS) && bits != 0u {
        atomicOr(&flags[params.at.b8], bits);
    }
    // A candidate deeper than n has n candidates before it and is never offered.
    var power = ONE;
    for (var depth = 1u; depth <= params.n; depth++) {
        if thread == 0u {
            atomicStore(&has_followed, 0u);
        }
        storageBarrier();
        workgroupBarrier();
        power = product(power, factor);
        var followed = false;
        for (var j = thread; j < params.c; j += ROW_THREADS) {
            followed = follow(request, j, depth, factor, power) || followed;
        }
        if followed {
            atomicStore(&has_followed, 1u);
        }
        workgroupBarrier();
        if broadcast(atomicLoad(&has_followed), thread) == 0u {
            break;
        }
    }
}

// ---- passes 2 and 3 -------------------------------------------------------------

fn is_candidate(depth: u32) -> bool {
    return depth != PENDING && depth != NONE;
}

@compute @workgroup_size(ROW_THREADS)
fn rank(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * ROW_THREADS + thread;
    let request = index / params.c;
    let own = index % params.c;
    if request >= params.requests || load(request, KEPT) == FINISHED {
        return;
    }
    let depth = load(request, depths_at() + own);
    if !is_candidate(depth) {
        return;
    }
    let survival = load(request, survivals_at() + own);
    var before = 0u;
    for (var j = 0u; j < params.c; j++) {
        let other = load(request, survivals_at() + j);
        let deep = load(request, depths_at() + j);
        let is_first = deep < depth || (deep == depth && j < own);
        if is_candidate(deep) && (other > survival || (other == survival && is_first)) {
            before += 1u;
        }
    }
    if before < params.n {
        store(request, picks_at() + before, own);
    }
}

@compute @workgroup_size(ROW_THREADS)
fn keep(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * ROW_THREADS + thread;
    if request >= params.requests || load(request, KEPT) == FINISHED {
        return;
    }
    var kept = 0u;
    while kept < params.n {
        let pick = load(request, picks_at() + kept);
        if pick == NONE {
            break;
        }
        let is_likely = load(request, survivals_at() + pick) >= params.min_survival;
        if !is_likely && kept >= params.min_drafts {
            break;
        }
        kept += 1u;
    }
    store(request, KEPT, kept);
}

// ---- pass 4 ---------------------------------------------------------------------

// The order in which drafts are served: the largest first number first, and among equal ones the
// largest second number.
fn key_of(request: u32, place: u32) -> vec2<u32> {
    if place < params.min_drafts {
        return vec2(NONE - place, 0u);
    }
    let pick = load(request, picks_at() + place);
    let depth = load(request, depths_at() + pick);
    return vec2(load(request, survivals_at() + pick), MAX_DEPTH - depth);
}

// How many drafts of a request have a key of at least `key`, where this is between LOW and HIGH.
// Keys of a request descend with the rank.
fn reaching(request: u32, key: vec2<u32>) -> u32 {
    var low = load(request, LOW);
    var high = load(request, HIGH);
    while low < high {
        let middle = (low + high) / 2u;
        let own = key_of(request, middle);
        if own.x > key.x || (own.x == key.x && own.y >= key.y) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// The sum over all threads.
fn sum_of(thread: u32, value: u32) -> u32 {
    scan_exclusive(thread, value);
    let sum = scan_total();
    workgroupBarrier();
    return sum;
}

fn kept_of(request: u32) -> u32 {
    let kept = load(request, KEPT);
    return select(kept, 0u, kept == FINISHED);
}

// Finds LOW and HIGH of every request: of all drafts, those before HIGH reach the key of the last
// draft that the budget keeps, and those before LOW a larger key. Returns the sum of LOW.
fn search(limit: u32, thread: u32) -> u32 {
    var key = vec2(0u);
    // 32 bits of survivals, then 9 of depths.
    for (var step = 0u; step < 41u; step++) {
        var larger = key;
        if step < 32u {
            larger.x |= 0x80000000u >> step;
        } else {
            larger.y |= 256u >> (step - 32u);
        }
        var own = 0u;
        for (var request = thread; request < params.requests; request += THREADS) {
            let middle = reaching(request, larger);
            store(request, MIDDLE, middle);
            own += middle;
        }
        let is_reached = sum_of(thread, own) >= limit;
        if is_reached {
            key = larger;
        }
        for (var request = thread; request < params.requests; request += THREADS) {
            store(request, select(LOW, HIGH, is_reached), load(request, MIDDLE));
        }
    }
    var own = 0u;
    for (var request = thread; request < params.requests; request += THREADS) {
        own += load(request, LOW);
    }
    return sum_of(thread, own);
}

@compute @workgroup_size(THREADS)
fn allot(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if group_index(group, groups) >= params.at.groups {
        return;
    }
    var own = 0u;
    for (var request = thread; request < params.requests; request += THREADS) {
        let kept = kept_of(request);
        store(request, LOW, 0u);
        store(request, HIGH, kept);
        own += kept;
    }
    let total = broadcast(sum_of(thread, own), thread);
    var limit = total;
    var bits = 0u;
    if has(HAS_BUDGET) {
        let given = budget[params.at.b2];
        bits = select(0u, BAD_LENGTHS, given < 0);
        limit = min(u32(max(given, 0)), total);
    }
    limit = broadcast(limit, thread);
    // How many drafts are left for those at HIGH, which are served in the order of requests.
    var left = limit;
    if limit < total {
        left -= search(limit, thread);
    }
    var row = 0u;
    for (var first = 0u; first < params.requests; first += THREADS) {
        let request = first + thread;
        var low = 0u;
        var ties = 0u;
        var is_alive = false;
        if request < params.requests {
            low = load(request, LOW);
            ties = load(request, HIGH) - low;
            is_alive = load(request, KEPT) != FINISHED;
        }
        let before = scan_exclusive(thread, ties);
        let all_ties = scan_total();
        workgroupBarrier();
        let num = low + min(ties, left - min(left, before));
        left -= min(left, all_ties);
        let own_rows = select(0u, num + 1u, is_alive);
        let start = row + scan_exclusive(thread, own_rows);
        row += scan_total();
        workgroupBarrier();
        if request < params.requests {
            store(request, NUM, num);
            store(request, START, start);
            num_drafts[params.at.b3 + request] = num;
            if has(HAS_ROW_OFFSETS) {
                row_offsets[params.at.b4 + request] = start;
            }
        }
    }
    if thread == 0u {
        atomicStore(&work[params.at.b1], row);
        if has(HAS_ROW_OFFSETS) {
            row_offsets[params.at.b4 + params.requests] = row;
        }
        if has(HAS_CAP) && row > params.cap {
            bits |= BAD_LENGTHS;
        }
        if has(HAS_FLAGS) && bits != 0u {
            atomicOr(&flags_of_batch[params.at.b5], bits);
        }
    }
}

// ---- pass 5 ---------------------------------------------------------------------

@compute @workgroup_size(ROW_THREADS)
fn order(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * ROW_THREADS + thread;
    let request = index / params.n;
    let own = index % params.n;
    if request >= params.requests {
        return;
    }
    let num = load(request, NUM);
    if own >= num {
        return;
    }
    let pick = load(request, picks_at() + own);
    let parent = load(request, parents_at() + pick);
    // Drafts are in the order of their candidates. A parent comes before its children in the
    // request's order, so it is a draft too.
    var before = 0u;
    var before_parent = 0u;
    for (var k = 0u; k < num; k++) {
        let other = load(request, picks_at() + k);
        before += select(0u, 1u, other < pick);
        before_parent += select(0u, 1u, other < parent);
    }
    store(request, node_candidates_at() + before, pick);
    // The parent is candidate `parent - 1`, which `before_parent` counts.
    store(request, node_parents_at() + before, before_parent);
}

// The parent of a node from 1 on.
fn parent_of(request: u32, node: u32) -> u32 {
    return load(request, node_parents_at() + node - 1u);
}

// ---- pass 6 ---------------------------------------------------------------------

fn copy_token(request: u32, candidate: u32, word: u32) -> u32 {
    let at = params.at.b2 + request * params.candidates_stride + candidate;
    return candidates[at * TOKEN_WORDS + word];
}

@compute @workgroup_size(ROW_THREADS)
fn nodes(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * ROW_THREADS + thread;
    let request = index / (params.n + 1u);
    let node = index % (params.n + 1u);
    if request >= params.requests {
        return;
    }
    let is_draft = node > 0u && node <= load(request, NUM);
    var candidate = NONE;
    var parent = NONE;
    var depth = select(NONE, 0u, node == 0u);
    var survival = 0u;
    if is_draft {
        candidate = load(request, node_candidates_at() + node - 1u);
        parent = parent_of(request, node);
        depth = load(request, depths_at() + candidate);
        survival = load(request, survivals_at() + candidate);
    }
    if has(HAS_DEPTHS) {
        depths[params.at.b7 + request * params.depths_stride + node] = depth;
    }
    if node == 0u {
        return;
    }
    let column = node - 1u;
    let draft = (params.at.b3 + request * params.drafts_stride + column) * TOKEN_WORDS;
    for (var word = 0u; word < TOKEN_WORDS; word++) {
        var token = NONE;
        if is_draft {
            token = copy_token(request, candidate, word);
        }
        drafts[draft + word] = token;
    }
    if has(HAS_PICKED) {
        picked[params.at.b4 + request * params.picked_stride + column] = candidate;
    }
    if has(HAS_DRAFT_PARENTS) {
        draft_parents[params.at.b5 + request * params.draft_parents_stride + column] = parent;
    }
    if has(HAS_SURVIVALS) {
        survivals[params.at.b6 + request * params.survivals_stride + column] = survival;
    }
}

// The first node from `first` on whose parent is `parent`; NONE for none.
fn child_of(request: u32, first: u32, parent: u32, num: u32) -> u32 {
    for (var node = first; node <= num; node++) {
        if parent_of(request, node) == parent {
            return node;
        }
    }
    return NONE;
}

@compute @workgroup_size(ROW_THREADS)
fn links(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * ROW_THREADS + thread;
    let request = index / (params.n + 1u);
    let node = index % (params.n + 1u);
    if request >= params.requests {
        return;
    }
    let num = load(request, NUM);
    if has(HAS_FIRST_CHILD) {
        let at = params.at.b2 + request * params.first_child_stride + node;
        first_child[at] = child_of(request, node + 1u, node, num);
    }
    if has(HAS_NEXT_SIBLING) {
        var sibling = NONE;
        if node > 0u && node <= num {
            sibling = child_of(request, node + 1u, parent_of(request, node), num);
        }
        next_sibling[params.at.b3 + request * params.next_sibling_stride + node] = sibling;
    }
    if has(HAS_MASKS) {
        let words = (params.n + 32u) / 32u;
        let first = params.at.b4 + request * params.masks_stride + node * params.mask_stride;
        // The nodes on the way to the root descend, and so do the words that have their bits.
        var on_way = select(NONE, node, node <= num);
        for (var i = 0u; i < words; i++) {
            let word = words - 1u - i;
            var bits = 0u;
            while on_way / 32u == word {
                bits |= 1u << (on_way % 32u);
                if on_way == 0u {
                    on_way = NONE;
                } else {
                    on_way = parent_of(request, on_way);
                }
            }
            masks[first + word] = bits;
        }
    }
}

// ---- pass 7 ---------------------------------------------------------------------

// The request that has a row, which is below the number of all rows.
fn request_of(row: u32) -> u32 {
    // The first request whose rows end behind the row is the last that begins at it or before, of
    // those that have rows.
    var low = 0u;
    var high = params.requests - 1u;
    while low < high {
        let middle = (low + high) / 2u;
        if load(middle + 1u, START) > row {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return low;
}

@compute @workgroup_size(ROW_THREADS)
fn pack(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * ROW_THREADS + thread;
    if row >= params.cap {
        return;
    }
    var name = NONE;
    var request = NONE;
    var parent = NONE;
    if row < all_rows() {
        request = request_of(row);
        let start = load(request, START);
        let node = row - start;
        name = request * (params.n + 1u) + node;
        if node > 0u {
            parent = start + parent_of(request, node);
        }
    }
    if has(HAS_ROWS) {
        rows[params.at.b2 + row] = name;
    }
    if has(HAS_ROW_REQUESTS) {
        row_requests[params.at.b3 + row] = request;
    }
    if has(HAS_ROW_PARENTS) {
        row_parents[params.at.b4 + row] = parent;
    }
}

@compute @workgroup_size(ROW_THREADS)
fn pack_inputs(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * ROW_THREADS + thread;
    if row >= params.cap {
        return;
    }
    let is_row = row < all_rows();
    var request = 0u;
    var node = 0u;
    var candidate = 0u;
    if is_row {
        request = request_of(row);
        node = row - load(request, START);
        if node > 0u {
            candidate = load(request, node_candidates_at() + node - 1u);
        }
    }
    if has(HAS_ROW_TOKENS) {
        for (var word = 0u; word < TOKEN_WORDS; word++) {
            var token = NONE;
            if is_row && node > 0u {
                token = copy_token(request, candidate, word);
            } else if is_row && has(HAS_ROOTS) {
                token = roots[(params.at.b3 + request) * TOKEN_WORDS + word];
            }
            row_tokens[(params.at.b5 + row) * TOKEN_WORDS + word] = token;
        }
    }
    if has(HAS_ROW_POSITIONS) {
        let words = params.start_words;
        var position = vec2(NONE);
        if is_row {
            let at = (params.at.b4 + request) * words;
            position = vec2(starts[at], starts[at + words - 1u]);
            var depth = 0u;
            if node > 0u {
                depth = load(request, depths_at() + candidate);
            }
            position.x += depth;
            position.y += select(0u, 1u, position.x < depth);
        }
        let to = (params.at.b6 + row) * words;
        row_positions[to] = position.x;
        if words == 2u {
            row_positions[to + 1u] = position.y;
        }
    }
}
