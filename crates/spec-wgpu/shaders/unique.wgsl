//!include bound
//!include scan
// Distinct keys, ascending: a stable radix sort of 8 bits a pass, lowest first,
// then the heads of runs.
//
// Each pass is three dispatches, so that no workgroup ever waits for another:
//   count    a workgroup a tile: how many keys have each digit
//   prefix   a workgroup a digit: prefix sums over the tiles
//   scatter  a workgroup a tile: each key to its place
// In between lies one table of [256 digits, tiles]. Digits in which all keys
// agree need no pass: `survey` finds those bits first, and the passes that they
// leave out return at once. Two areas take turns, such that the last pass ends
// in `area` and the result can be compacted from there into `distinct`.
//
// A scatter ranks 256 keys at a time, one a thread: each sets its bit in a
// bitmap of its digit, and counts the bits before its own. Ranks depend on
// positions alone, never on which atomic came first.
//
// Tensors beyond one binding: every dispatch is told the window of the keys it
// reads and the window of the area it writes, and leaves alone what belongs to
// other windows.
//
// Bytes moved: 3 times the keys a pass that is needed (two reads and a write),
// and 3 more to survey and compact; the floor of this method is 2 a pass.

override THREADS: u32 = 256u;
// Words of a key.
override WORDS: u32 = 2u;
// Keys of a thread; a tile is 256 times as many.
override ROWS: u32 = 16u;
// Whether all keys fit one binding: then an area is read and written through
// the same binding.
override SINGLE: bool = true;

struct Params {
    at: At,
    // Keys in all, and the window of them that is read.
    n: u32,
    start: u32,
    len: u32,
    // Keys of the window's binding that lie before `start`: 0 or 1.
    before: u32,
    // The window that is written.
    to: u32,
    to_len: u32,
    // Tiles in all.
    tiles: u32,
    // 8-bit digit, from the lowest.
    digit: u32,
    // Flips the order of signed keys in their highest digit.
    flip: u32,
    // Bits that are taken to vary whether or not they do.
    forced: u32,
    // Whether this prefix sum counts the distinct keys.
    counts_keys: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
// The keys as given.
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// Windows to read of the two areas.
@group(0) @binding(2) var<storage, read_write> area_in: array<u32>;
@group(0) @binding(3) var<storage, read_write> distinct_in: array<u32>;
// Windows to write of them.
@group(0) @binding(4) var<storage, read_write> area: array<u32>;
@group(0) @binding(5) var<storage, read_write> distinct: array<u32>;
// [256 digits, tiles]; [tiles] for compaction.
@group(0) @binding(6) var<storage, read_write> table: array<u32>;
// Two words of bits that vary, then 256 totals.
@group(0) @binding(7) var<storage, read_write> state: array<u32>;
// The same, for survey alone.
@group(0) @binding(7) var<storage, read_write> survey_bits: array<atomic<u32>>;
// One u64 for prefix, or a window of the occurrences.
@group(0) @binding(8) var<storage, read_write> counters: array<atomic<u32>>;

const TOTALS = 2u;
const DIGITS = 256u;

// Which buffer something lies in.
const KEYS = 0u;
const AREA = 1u;
const DISTINCT = 2u;

// A pass: whether it is needed, where it reads and where it writes.
struct Pass {
    needed: bool,
    source: u32,
    sink: u32,
}

fn varies(digit: u32) -> bool {
    let word = state[params.at.b7 + digit / 4u] | params.forced;
    return ((word >> (8u * (digit % 4u))) & 0xffu) != 0u;
}

fn find_pass() -> Pass {
    var before = 0u;
    var after = 0u;
    for (var d = 0u; d < 4u * WORDS; d++) {
        if varies(d) {
            before += select(0u, 1u, d < params.digit);
            after += select(0u, 1u, d > params.digit);
        }
    }
    let even = after % 2u == 0u;
    let sink = select(DISTINCT, AREA, even);
    let source = select(select(AREA, DISTINCT, even), KEYS, before == 0u);
    return Pass(varies(params.digit), source, sink);
}

// Where the sorted keys lie: nothing moved if all are the same.
fn sorted_in() -> u32 {
    var any = false;
    for (var d = 0u; d < 4u * WORDS; d++) {
        any = any || varies(d);
    }
    return select(KEYS, AREA, any);
}

// Word `w` of key `i` of the window that is read.
fn load(source: u32, i: u32, w: u32) -> u32 {
    let j = (i + params.before) * WORDS + w;
    if source == KEYS {
        return keys[params.at.b1 + j];
    }
    if source == AREA {
        if SINGLE {
            return area[params.at.b4 + j];
        }
        return area_in[params.at.b2 + j];
    }
    if SINGLE {
        return distinct[params.at.b5 + j];
    }
    return distinct_in[params.at.b3 + j];
}

fn digit_of(word: u32) -> u32 {
    return ((word >> (8u * (params.digit % 4u))) & 0xffu) ^ params.flip;
}

fn same(source: u32, i: u32, j: u32) -> bool {
    var equal = true;
    for (var w = 0u; w < WORDS; w++) {
        equal = equal && load(source, i, w) == load(source, j, w);
    }
    return equal;
}

@compute @workgroup_size(THREADS)
fn begin(@builtin(local_invocation_index) thread: u32) {
    if thread < TOTALS {
        state[params.at.b7 + thread] = 0u;
    }
}

var<workgroup> bits: array<atomic<u32>, 2>;

// Which bits differ from the first key's. Only with all keys in one binding.
@compute @workgroup_size(THREADS)
fn survey(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    if tile >= params.at.groups {
        return;
    }
    if thread < 2u {
        atomicStore(&bits[thread], 0u);
    }
    workgroupBarrier();
    for (var w = 0u; w < WORDS; w++) {
        let first = load(KEYS, 0u, w);
        var differ = 0u;
        for (var row = 0u; row < ROWS; row++) {
            let i = (tile * ROWS + row) * THREADS + thread;
            if i < params.len {
                differ |= load(KEYS, i, w) ^ first;
            }
        }
        if differ != 0u {
            atomicOr(&bits[w], differ);
        }
    }
    workgroupBarrier();
    if thread < WORDS {
        let differ = atomicLoad(&bits[thread]);
        if differ != 0u {
            atomicOr(&survey_bits[params.at.b7 + thread], differ);
        }
    }
}

// A count for each digit; where the next key of each digit goes.
var<workgroup> digits: array<atomic<u32>, DIGITS>;

@compute @workgroup_size(THREADS)
fn count(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    let this_pass = find_pass();
    if tile >= params.at.groups || !this_pass.needed {
        return;
    }
    atomicStore(&digits[thread], 0u);
    workgroupBarrier();
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        if i < params.len {
            let word = load(this_pass.source, i, params.digit / 4u);
            atomicAdd(&digits[digit_of(word)], 1u);
        }
    }
    workgroupBarrier();
    let all_tiles = params.start / (ROWS * THREADS) + tile;
    table[params.at.b6 + thread * params.tiles + all_tiles] = atomicLoad(&digits[thread]);
}

// Entries of a thread at a time.
const CHUNK = 8u;

// Row `group` of the table becomes its exclusive prefix sums; its total goes to
// the state and, for the last of all, to the caller as a u64.
@compute @workgroup_size(THREADS)
fn prefix(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if params.counts_keys == 0u && !find_pass().needed {
        return;
    }
    let row = params.at.b6 + group.x * params.tiles;
    var before = 0u;
    for (var start = 0u; start < params.tiles; start += CHUNK * THREADS) {
        let first = start + thread * CHUNK;
        let end = min(first + CHUNK, params.tiles);
        var mine = 0u;
        for (var i = first; i < end; i++) {
            mine += table[row + i];
        }
        var sum = before + scan_exclusive(thread, mine);
        for (var i = first; i < end; i++) {
            let value = table[row + i];
            table[row + i] = sum;
            sum += value;
        }
        before += scan_total();
    }
    if thread == 0u {
        state[params.at.b7 + TOTALS + group.x] = before;
        if params.counts_keys != 0u {
            atomicStore(&counters[params.at.b8], before);
            atomicStore(&counters[params.at.b8 + 1u], 0u);
        }
    }
}

// For each digit a bit a thread: word w of digit d at w * DIGITS + d.
var<workgroup> seen: array<atomic<u32>, 2048>;

@compute @workgroup_size(THREADS)
fn scatter(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    let this_pass = find_pass();
    if tile >= params.at.groups || !this_pass.needed {
        return;
    }
    let all_tiles = params.start / (ROWS * THREADS) + tile;
    let smaller = scan_exclusive(thread, state[params.at.b7 + TOTALS + thread]);
    let earlier = table[params.at.b6 + thread * params.tiles + all_tiles];
    atomicStore(&digits[thread], smaller + earlier);
    for (var i = thread; i < 8u * DIGITS; i += THREADS) {
        atomicStore(&seen[i], 0u);
    }
    workgroupBarrier();
    let my_word = thread / 32u;
    let my_bit = 1u << (thread % 32u);
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        let there = i < params.len;
        var digit = 0u;
        if there {
            digit = digit_of(load(this_pass.source, i, params.digit / 4u));
            atomicOr(&seen[my_word * DIGITS + digit], my_bit);
        }
        workgroupBarrier();
        var rank = 0u;
        var total = 0u;
        for (var w = 0u; w < 8u; w++) {
            let word = atomicLoad(&seen[w * DIGITS + digit]);
            total += countOneBits(word);
            let mask = select(select(0u, 0xffffffffu, w < my_word), my_bit - 1u, w == my_word);
            rank += countOneBits(word & mask);
        }
        let place = atomicLoad(&digits[digit]) + rank;
        workgroupBarrier();
        if there {
            if rank + 1u == total {
                atomicStore(&digits[digit], place + 1u);
                for (var w = 0u; w < 8u; w++) {
                    atomicStore(&seen[w * DIGITS + digit], 0u);
                }
            }
            // Below `to` this wraps to something large.
            let to = place - params.to;
            if to < params.to_len {
                for (var w = 0u; w < WORDS; w++) {
                    let word = load(this_pass.source, i, w);
                    if this_pass.sink == AREA {
                        area[params.at.b4 + to * WORDS + w] = word;
                    } else {
                        distinct[params.at.b5 + to * WORDS + w] = word;
                    }
                }
            }
        }
        workgroupBarrier();
    }
}

// Whether key `i` of the window is the first of its run, or the last.
fn is_head(source: u32, i: u32) -> bool {
    return params.start + i == 0u || !same(source, i - 1u, i);
}

fn is_last(source: u32, i: u32) -> bool {
    return params.start + i + 1u == params.n || !same(source, i, i + 1u);
}

// The heads among a thread's ROWS neighbouring keys, a bit each.
fn heads_of(source: u32, first: u32) -> u32 {
    var found = 0u;
    for (var j = 0u; j < ROWS; j++) {
        if first + j < params.len && is_head(source, first + j) {
            found |= 1u << j;
        }
    }
    return found;
}

@compute @workgroup_size(THREADS)
fn heads(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    if tile >= params.at.groups {
        return;
    }
    let found = heads_of(sorted_in(), (tile * THREADS + thread) * ROWS);
    let unused = scan_exclusive(thread, countOneBits(found));
    if thread == 0u {
        table[params.at.b6 + params.start / (ROWS * THREADS) + tile] = scan_total();
    }
}

// The first of each run to its place.
@compute @workgroup_size(THREADS)
fn compact(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    if tile >= params.at.groups {
        return;
    }
    let source = sorted_in();
    let first = (tile * THREADS + thread) * ROWS;
    let found = heads_of(source, first);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    var to = earlier + scan_exclusive(thread, countOneBits(found)) - params.to;
    for (var j = 0u; j < ROWS; j++) {
        if ((found >> j) & 1u) == 1u {
            if to < params.to_len {
                for (var w = 0u; w < WORDS; w++) {
                    distinct[params.at.b5 + to * WORDS + w] = load(source, first + j, w);
                }
            }
            to += 1u;
        }
    }
}

// Zeroes a window of occurrences.
@compute @workgroup_size(THREADS)
fn clear(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    if i < params.to_len {
        atomicStore(&counters[params.at.b8 + 2u * i], 0u);
        atomicStore(&counters[params.at.b8 + 2u * i + 1u], 0u);
    }
}

// Each run's last position, plus one, less its first: a sum of two numbers that
// different workgroups may add.
@compute @workgroup_size(THREADS)
fn occurrences(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = group_index(group, groups);
    if tile >= params.at.groups {
        return;
    }
    let source = sorted_in();
    let first = (tile * THREADS + thread) * ROWS;
    let found = heads_of(source, first);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    // The run before the first head here is the one before `next`.
    var next = earlier + scan_exclusive(thread, countOneBits(found)) - params.to;
    for (var j = 0u; j < ROWS; j++) {
        let i = first + j;
        if i < params.len {
            let position = params.start + i;
            if ((found >> j) & 1u) == 1u {
                if next < params.to_len {
                    atomicSub(&counters[params.at.b8 + 2u * next], position);
                }
                next += 1u;
            }
            if is_last(source, i) && next - 1u < params.to_len {
                atomicAdd(&counters[params.at.b8 + 2u * (next - 1u)], position + 1u);
            }
        }
    }
}
