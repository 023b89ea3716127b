//!include params/unique
//!include scan
//!include u64
//!include unique_buckets
//!include unique_survey
//!include unique_partition
//!include unique_sort_buckets
//!include unique_digits
// Distinct keys, ascending: sorts the keys into `area`, then keeps the first key of each run of
// equal keys, the head of the run.
//
//   begin        clears the counters of the other passes
//   survey       reads the keys once: their range, which bits vary, whether they ascend
//   choose       decides how the call goes on, as far as the survey tells
//   ...          sorting by buckets (unique_buckets.wgsl) or by digits (unique_digits.wgsl), or no
//                sorting where the keys already ascend
//   heads        counts the runs of equal keys that begin in each tile
//   prefix       prefix sums over the tiles
//   compact      writes the first key of each run to its place
//   clear, occurrences
//
// No workgroup ever waits for another, and the host decides nothing after `survey`: all dispatches
// are recorded, and the dispatches of a way that is not taken return at once.
//
// The host inserts two more files: unique_keys_32.wgsl or unique_keys_64.wgsl says how keys are
// stored; unique_whole.wgsl, unique_windows.wgsl or unique_part.wgsl says where keys lie. With
// unique_part.wgsl there is no survey, and keys are sorted by all digits.
//
// Bytes moved: the keys once to survey and 3 times to compact, plus the bytes that sorting moves.

// Keys per thread; a tile has 256 times as many keys.
override ROWS: u32 = 16u;
// Whether a tile is put in order in workgroup memory, and the number of its keys there.
override STAGED: bool = false;
override STAGE: u32 = 1u;

@group(0) @binding(0) var<uniform> params: Params;
// [256 digits, tiles] counts; for compaction [tiles] counts. When sorting by buckets, the table of
// unique_buckets.wgsl.
@group(0) @binding(6) var<storage, read_write> table: array<u32>;
// The words of the state are named below.
@group(0) @binding(7) var<storage, read_write> state: array<u32>;
// The state as atomics, for `survey` alone.
@group(0) @binding(7) var<storage, read_write> marks: array<atomic<u32>>;

// Words of the state: bits that vary (two words); whether some key is above the next key; how the
// call goes on; the map of unique_buckets.wgsl, and whether the map cuts; 256 totals.
const UNSORTED = 2u;
const MODE = 3u;
const MAP = 4u;
const CUT = 10u;

// The buffers that hold keys.
const KEYS = 0u;
const AREA = 1u;
const DISTINCT = 2u;

// The buffer that holds the sorted keys. Keys that already ascend were not moved.
fn sorted_in() -> u32 {
    let moved = params.forced != 0u || state[params.at.b7 + MODE] != ASCENDING;
    return select(KEYS, AREA, moved);
}

// Key `i` of the window that is read. The upper word of a 32-bit key is 0.
fn load_key(source: u32, i: u32) -> vec2<u32> {
    return key_of(take_key(source, params.start + i));
}

fn same(source: u32, i: u32, j: u32) -> bool {
    return u64_equal(load_key(source, i), load_key(source, j));
}

@compute @workgroup_size(THREADS)
fn begin(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * THREADS + thread;
    if i < TOTALS {
        state[params.at.b7 + i] = 0u;
    }
    if i < params.cells {
        table[params.at.b6 + i] = 0u;
    }
}

// The number of entries that a thread adds up at a time.
const CHUNK = 8u;

// Replaces row `group` of the table by its exclusive prefix sums. The total goes to the state and,
// if it is the number of distinct keys, also to the caller as a u64.
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

// Whether key `i` of the window is the first key of its run; below, whether it is the last.
fn is_head(source: u32, i: u32) -> bool {
    return params.start + i == 0u || !same(source, i - 1u, i);
}

fn is_last(source: u32, i: u32) -> bool {
    return params.start + i + 1u == params.n || !same(source, i, i + 1u);
}

// One bit per key of the tile: whether the key is a head. Word w of row r is at 8 r + w.
var<workgroup> tile_heads: array<atomic<u32>, 128>;
// How many heads of the tile lie before each of those words.
var<workgroup> heads_before: array<u32, 128>;

// Fills tile_heads and heads_before; returns the number of heads in the tile.
fn find_heads(source: u32, tile: u32, thread: u32) -> u32 {
    if thread < 8u * ROWS {
        atomicStore(&tile_heads[thread], 0u);
    }
    workgroupBarrier();
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        if i < params.len && is_head(source, i) {
            atomicOr(&tile_heads[row * 8u + thread / 32u], 1u << (thread % 32u));
        }
    }
    workgroupBarrier();
    var ones = 0u;
    if thread < 8u * ROWS {
        ones = countOneBits(atomicLoad(&tile_heads[thread]));
    }
    let before = scan_exclusive(thread, ones);
    if thread < 8u * ROWS {
        heads_before[thread] = before;
    }
    workgroupBarrier();
    return scan_total();
}

// For the thread's key in a row: the number of the tile's heads before this key, and whether this
// key is a head.
fn rank_of_head(row: u32, thread: u32) -> vec2<u32> {
    let at = row * 8u + thread / 32u;
    let word = atomicLoad(&tile_heads[at]);
    let bit = thread % 32u;
    return vec2(heads_before[at] + countOneBits(word & ((1u << bit) - 1u)), (word >> bit) & 1u);
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
    let total = find_heads(sorted_in(), tile, thread);
    if thread == 0u {
        table[params.at.b6 + params.start / (ROWS * THREADS) + tile] = total;
    }
}

// Writes the first key of each run to its place.
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
    find_heads(source, tile, thread);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        let head = rank_of_head(row, thread);
        if head.y == 1u {
            put_key(DISTINCT, earlier + head.x, stored_of(load_key(source, i)));
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
        clear_occurrences(params.to + i);
    }
}

// The length of a run: its last position, plus one, minus its first position. Different workgroups
// may add these two numbers.
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
    find_heads(source, tile, thread);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        if i < params.len {
            let head = rank_of_head(row, thread);
            // The run of this key. A key before the tile's first head belongs to the run before.
            let run = earlier + head.x + head.y - 1u;
            if head.y == 1u {
                add_occurrences(run, 0u - (params.start + i));
            }
            if is_last(source, i) {
                add_occurrences(run, params.start + i + 1u);
            }
        }
    }
}
