//!include params/deduplicate_topk
//!include scan
// The distinct non-negative values of each request's rows, ascending, followed by -1.
//
// One workgroup per request. The workgroup first finds the range of the request's values:
//
// * A narrow range becomes a bitmap in workgroup memory: one atomicOr per value, a prefix sum over
//   popcounts, and the set bits are the answer in order. A range wider than the bitmap takes
//   several turns over the values.
// * A wide range is sorted: tiles of TILE values by a bitonic network in workgroup memory, then
//   merged pairwise through the workspace, where each thread finds its part of a merge by binary
//   search. The first value of each run of equal values is kept.
//
// A request too long for one workgroup is copied by `flatten` into a row of u32 keys; unique.wgsl
// sorts the keys and drops repeats, and `finish` writes the padding and the count.
//
// `locate` writes the place of each value in its request's row of distinct values. A row of the
// output ascends as a whole, because the -1 of padding is the largest u32: a thread finds the place
// of a value by binary search.
//
// Bytes moved: the input once (it stays in cache for further turns) and the output once; this is
// also the floor. The order of the atomic operations does not affect the result: OR, min and max
// give the same result in any order.

override THREADS: u32 = 256u;
// Words of workgroup memory for bitmap or tile: a multiple of THREADS.
override POOL: u32 = 3328u;
// Values sorted at once: a power of two, at most POOL.
override TILE: u32 = 2048u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;
// Two areas of n words per request.
@group(0) @binding(4) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(5) var<storage, read_write> inverse: array<u32>;

// Stands for no value; sorts behind all values.
const PADDING = 0xffffffffu;

var<workgroup> pool: array<atomic<u32>, POOL>;
var<workgroup> lowest: atomic<u32>;
var<workgroup> highest: atomic<u32>;
// The final values of `lowest` and `highest`.
var<workgroup> range: vec2<u32>;

fn is_value(v: u32) -> bool {
    return (v >> 31u) == 0u;
}

// Where value `i` of a request that begins at `first` lies.
fn place(first: u32, i: u32) -> u32 {
    if params.input_stride == params.k {
        return first + i;
    }
    let row = i / params.k;
    return first + row * params.input_stride + (i - row * params.k);
}

// Puts the range of the values into `range`: (PADDING, 0) if there are none.
fn find_range(first: u32, thread: u32) -> vec2<u32> {
    if thread == 0u {
        atomicStore(&lowest, PADDING);
        atomicStore(&highest, 0u);
    }
    workgroupBarrier();
    var low = PADDING;
    var high = 0u;
    for (var i = thread; i < params.n; i += THREADS) {
        let v = indices[place(first, i)];
        if is_value(v) {
            low = min(low, v);
            high = max(high, v);
        }
    }
    if low != PADDING {
        atomicMin(&lowest, low);
        atomicMax(&highest, high);
    }
    workgroupBarrier();
    if thread == 0u {
        range = vec2(atomicLoad(&lowest), atomicLoad(&highest));
    }
    return workgroupUniformLoad(&range);
}

// Writes the distinct values in low .. low + 32 * POOL to the output from `written` on. Returns the
// number of values written so far.
fn bitmap_turn(first: u32, thread: u32, low: u32, out: u32, written: u32) -> u32 {
    for (var i = thread; i < POOL; i += THREADS) {
        atomicStore(&pool[i], 0u);
    }
    workgroupBarrier();
    for (var i = thread; i < params.n; i += THREADS) {
        let v = indices[place(first, i)];
        // A value below `low` wraps to a number beyond the bitmap.
        let bit = v - low;
        if is_value(v) && bit < 32u * POOL {
            atomicOr(&pool[bit >> 5u], 1u << (bit & 31u));
        }
    }
    workgroupBarrier();
    let part = POOL / THREADS;
    var mine = 0u;
    for (var i = 0u; i < part; i++) {
        mine += countOneBits(atomicLoad(&pool[thread * part + i]));
    }
    var to = out + written + scan_exclusive(thread, mine);
    for (var i = 0u; i < part; i++) {
        let word = thread * part + i;
        var bits = atomicLoad(&pool[word]);
        while bits != 0u {
            output[to] = low + word * 32u + firstTrailingBit(bits);
            bits &= bits - 1u;
            to += 1u;
        }
    }
    workgroupBarrier();
    return written + scan_total();
}

// Puts two values in order: ascending, or descending.
fn ordered(pair: vec2<u32>, ascending: bool) -> vec2<u32> {
    let low = min(pair.x, pair.y);
    let high = max(pair.x, pair.y);
    return select(vec2(high, low), vec2(low, high), ascending);
}

// One stage of the network: compares values that are j apart.
fn sort_by_one(thread: u32, k: u32, j: u32) {
    for (var i = thread; i < params.sort_size / 2u; i += THREADS) {
        let a = 2u * i - (i & (j - 1u));
        let v = vec2(atomicLoad(&pool[a]), atomicLoad(&pool[a + j]));
        let sorted = ordered(v, (a & k) == 0u);
        atomicStore(&pool[a], sorted.x);
        atomicStore(&pool[a + j], sorted.y);
    }
}

// Two stages between barriers: compares values that are 2 h apart, then h apart.
fn sort_by_two(thread: u32, k: u32, h: u32) {
    for (var i = thread; i < params.sort_size / 4u; i += THREADS) {
        let a = 4u * i - 3u * (i & (h - 1u));
        let ascending = (a & k) == 0u;
        let v0 = atomicLoad(&pool[a]);
        let v1 = atomicLoad(&pool[a + h]);
        let v2 = atomicLoad(&pool[a + 2u * h]);
        let v3 = atomicLoad(&pool[a + 3u * h]);
        let even = ordered(vec2(v0, v2), ascending);
        let odd = ordered(vec2(v1, v3), ascending);
        let low = ordered(vec2(even.x, odd.x), ascending);
        let high = ordered(vec2(even.y, odd.y), ascending);
        atomicStore(&pool[a], low.x);
        atomicStore(&pool[a + h], low.y);
        atomicStore(&pool[a + 2u * h], high.x);
        atomicStore(&pool[a + 3u * h], high.y);
    }
}

// Sorts the first sort_size words of the pool.
fn sort_pool(thread: u32) {
    for (var k = 2u; k <= params.sort_size; k <<= 1u) {
        var j = k >> 1u;
        while j > 0u {
            workgroupBarrier();
            if j > 1u {
                sort_by_two(thread, k, j >> 1u);
            } else {
                sort_by_one(thread, k, j);
            }
            j >>= 2u;
        }
    }
    workgroupBarrier();
}

// Loads values start .. start + sort_size of the request into the pool.
fn load_tile(first: u32, start: u32, thread: u32) {
    for (var i = thread; i < params.sort_size; i += THREADS) {
        let j = start + i;
        var v = PADDING;
        if j < params.n {
            v = indices[place(first, j)];
        }
        atomicStore(&pool[i], select(PADDING, v, is_value(v)));
    }
    workgroupBarrier();
}

// Merges the sorted runs a .. b and b .. c of the workspace to `to`.
fn merge(a: u32, b: u32, c: u32, to: u32, thread: u32) {
    let left = b - a;
    let right = c - b;
    let part = (left + right + THREADS - 1u) / THREADS;
    let diagonal = min(thread * part, left + right);
    let end = min(diagonal + part, left + right);
    // The smallest number of values to take from the left run such that the values taken from the
    // right run are below the values that remain in the left run.
    var low = diagonal - min(diagonal, right);
    var high = min(diagonal, left);
    while low < high {
        let middle = (low + high) / 2u;
        if workspace[a + middle] <= workspace[b + diagonal - middle - 1u] {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    var i = low;
    var j = diagonal - low;
    for (var o = diagonal; o < end; o++) {
        var source = b + j;
        if j >= right || (i < left && workspace[a + i] <= workspace[source]) {
            source = a + i;
            i++;
        } else {
            j++;
        }
        workspace[to + o] = workspace[source];
    }
}

// Sorts all values of the request into the workspace and returns where the sorted values begin.
fn sort_all(first: u32, area: u32, thread: u32) -> u32 {
    let n = params.n;
    for (var start = 0u; start < n; start += TILE) {
        load_tile(first, start, thread);
        sort_pool(thread);
        for (var i = thread; i < min(TILE, n - start); i += THREADS) {
            workspace[area + start + i] = atomicLoad(&pool[i]);
        }
        workgroupBarrier();
    }
    var at = area;
    var to = area + n;
    for (var width = TILE; width < n; width <<= 1u) {
        storageBarrier();
        workgroupBarrier();
        for (var start = 0u; start < n; start += 2u * width) {
            let middle = min(start + width, n);
            let end = min(start + 2u * width, n);
            merge(at + start, at + middle, at + end, to + start, thread);
        }
        let swap = at;
        at = to;
        to = swap;
    }
    storageBarrier();
    workgroupBarrier();
    return at;
}

// Value i of the sorted request, from the pool or from the workspace.
fn sorted(at: u32, i: u32) -> u32 {
    if params.n <= TILE {
        return atomicLoad(&pool[i]);
    }
    return workspace[at + i];
}

// Writes the first value of each run of equal values; returns the number of runs.
fn write_heads(at: u32, out: u32, thread: u32) -> u32 {
    let part = (params.n + THREADS - 1u) / THREADS;
    let start = min(thread * part, params.n);
    let end = min(start + part, params.n);
    var before = PADDING;
    if start > 0u {
        before = sorted(at, start - 1u);
    }
    var mine = 0u;
    var last = before;
    for (var i = start; i < end; i++) {
        let v = sorted(at, i);
        // PADDING follows all values, and no value equals PADDING.
        mine += select(0u, 1u, v != last && v != PADDING);
        last = v;
    }
    var to = out + scan_exclusive(thread, mine);
    last = before;
    for (var i = start; i < end; i++) {
        let v = sorted(at, i);
        if v != last && v != PADDING {
            output[to] = v;
            to++;
        }
        last = v;
    }
    return scan_total();
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
    let first = params.at.b1 + request * params.rows * params.input_stride;
    let out = params.at.b2 + request * params.output_stride;
    let found = find_range(first, thread);
    var written = 0u;
    if found.x <= found.y {
        let turns = (found.y - found.x) / (32u * POOL) + 1u;
        if turns <= params.max_turns {
            for (var turn = 0u; turn < turns; turn++) {
                let low = found.x + turn * 32u * POOL;
                written = bitmap_turn(first, thread, low, out, written);
            }
        } else {
            var at = 0u;
            if params.n <= TILE {
                load_tile(first, 0u, thread);
                sort_pool(thread);
            } else {
                at = sort_all(first, params.at.b4 + request * 2u * params.n, thread);
            }
            written = write_heads(at, out, thread);
        }
    }
    for (var i = written + thread; i < params.n; i += THREADS) {
        output[out + i] = PADDING;
    }
    if thread == 0u && params.has_counts != 0u {
        counts[params.at.b3 + request] = written;
    }
}

// For `n` requests without values: writes their counts.
@compute @workgroup_size(THREADS)
fn clear(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    if i < params.n {
        counts[params.at.b3 + i] = 0u;
    }
}

// For one long request: copies its values one behind the other. Padding is the largest u32, and so
// sorts last.
@compute @workgroup_size(THREADS)
fn flatten(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    if i < params.n {
        let v = indices[place(params.at.b1, i)];
        workspace[params.at.b4 + i] = select(PADDING, v, is_value(v));
    }
}

// For one long request, whose distinct keys are in its row of the output and whose number of keys
// is in the workspace: fills the row with padding, and writes the count without the key that was
// padding.
@compute @workgroup_size(THREADS)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    let count = workspace[params.at.b4];
    if i >= count && i < params.n {
        output[params.at.b2 + i] = PADDING;
    }
    if i == 0u && params.has_counts != 0u {
        let last = output[params.at.b2 + count - 1u];
        counts[params.at.b3] = count - select(1u, 0u, is_value(last));
    }
}

// For requests whose rows of the output are complete: writes the place of each value.
@compute @workgroup_size(THREADS)
fn locate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    let row = i / params.k;
    let request = row / params.rows;
    if row >= params.requests * params.rows {
        return;
    }
    let column = i - row * params.k;
    let v = indices[params.at.b1 + row * params.input_stride + column];
    let distinct = params.at.b2 + request * params.output_stride;
    var low = 0u;
    var high = params.n;
    while low < high {
        let middle = (low + high) / 2u;
        if output[distinct + middle] < v {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    inverse[params.at.b5 + row * params.inverse_stride + column] =
        select(PADDING, low, is_value(v));
}
