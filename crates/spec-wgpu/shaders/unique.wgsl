//!include params/unique
//!include scan
//!include u64
//!include unique_buckets
//!include unique_digits
// Distinct keys, ascending: sorted into `area`, then the heads of runs.
//
//   begin        clears what the others count in
//   survey       reads the keys once: their range, which bits vary, whether they ascend
//   choose       how the call goes on, as far as that shows it
//   ...          sorted by buckets (unique_buckets.wgsl) or by digits (unique_digits.wgsl),
//                or not at all where the keys ascend as they are
//   heads        how many runs of equals begin in each tile
//   prefix       prefix sums over the tiles
//   compact      the first of each run to its place
//   clear, occurrences
//
// No workgroup ever waits for another, and the host decides nothing after `survey`:
// all dispatches are recorded, and those of a way that was not taken return at once.
//
// The host gives this file one of unique_keys_32.wgsl and unique_keys_64.wgsl, and one
// of unique_whole.wgsl, unique_windows.wgsl and unique_part.wgsl: how keys are stored,
// and where. The last knows no survey and sorts by all digits.
//
// Bytes moved: the keys once to survey and 3 times to compact, and what sorting moves.

override THREADS: u32 = 256u;
// Keys of a thread; a tile is 256 times as many.
override ROWS: u32 = 16u;
// Whether a tile is put in order in workgroup memory, and the keys there.
override STAGED: bool = false;
override STAGE: u32 = 1u;

@group(0) @binding(0) var<uniform> params: Params;
// [256 digits, tiles]; [tiles] for compaction. Before that, what unique_buckets.wgsl has.
@group(0) @binding(6) var<storage, read_write> table: array<u32>;
// See below.
@group(0) @binding(7) var<storage, read_write> state: array<u32>;
// The same, for survey alone.
@group(0) @binding(7) var<storage, read_write> marks: array<atomic<u32>>;

// Words of the state: two of bits that vary; whether some key is above the next one; how
// the call goes on; the map of unique_buckets.wgsl, and whether it cuts; 256 totals.
const UNSORTED = 2u;
const MODE = 3u;
const MAP = 4u;
const CUT = 10u;
const TOTALS = 11u;

// How a call goes on.
const BY_DIGITS = 0u;
const BY_BUCKETS = 1u;
const ASCENDING = 2u;

const DIGITS = 256u;

// Which buffer something lies in.
const KEYS = 0u;
const AREA = 1u;
const DISTINCT = 2u;

// Where the sorted keys lie: nothing moved if all ascend.
fn sorted_in() -> u32 {
    let moved = params.forced != 0u || state[params.at.b7 + MODE] != ASCENDING;
    return select(KEYS, AREA, moved);
}

// Key `i` of the window that is read; its upper word is 0 where there is none.
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

// Whether key `i` of the window is the first of its run, or the last.
fn is_head(source: u32, i: u32) -> bool {
    return params.start + i == 0u || !same(source, i - 1u, i);
}

fn is_last(source: u32, i: u32) -> bool {
    return params.start + i + 1u == params.n || !same(source, i, i + 1u);
}

// A bit a key of the tile: whether it is a head. Word w of row r at 8 r + w.
var<workgroup> tile_heads: array<atomic<u32>, 128>;
// How many heads of the tile lie before each of those words.
var<workgroup> heads_before: array<u32, 128>;

// Fills tile_heads and heads_before; returns how many heads the tile has.
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

// Of the thread's key in a row: how many heads of the tile lie before it, and
// whether it is one.
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
    find_heads(source, tile, thread);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        if i < params.len {
            let head = rank_of_head(row, thread);
            // The run of this key; before the first head, the one before.
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
