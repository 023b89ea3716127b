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
// positions alone, never on which atomic came first. Where workgroup memory has
// room for the tile, keys are put in order there and then written, so that
// neighbouring threads write neighbouring keys.
//
// (Ranking by subgroup ballots instead, each subgroup its own stretch of the tile,
// was slower on an H100: 41.6 ms against 33.8 for 2^27 keys.)
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
// Whether a tile is put in order in workgroup memory, and the words for it.
override STAGED: bool = false;
override STAGE: u32 = 1u;

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

// Key `i` of the window that is read; its upper word is 0 where there is none.
fn load_key(source: u32, i: u32) -> vec2<u32> {
    if WORDS == 1u {
        return vec2(load(source, i, 0u), 0u);
    }
    return vec2(load(source, i, 0u), load(source, i, 1u));
}

fn digit_of(word: u32) -> u32 {
    return ((word >> (8u * (params.digit % 4u))) & 0xffu) ^ params.flip;
}

fn digit_of_key(key: vec2<u32>) -> u32 {
    return digit_of(select(key.x, key.y, params.digit >= 4u));
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

// A count for each digit.
var<workgroup> digits: array<atomic<u32>, DIGITS>;

// The digit of key `i`; DIGITS past the end.
fn digit_at(source: u32, i: u32) -> u32 {
    var digit = DIGITS;
    if i < params.len {
        digit = digit_of(load(source, i, params.digit / 4u));
    }
    return digit;
}

fn count_digit(digit: u32) {
    if digit < DIGITS {
        atomicAdd(&digits[digit], 1u);
    }
}

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
    // Four loads in flight at a time.
    let first = tile * ROWS * THREADS + thread;
    for (var row = 0u; row < ROWS; row += 4u) {
        let i = first + row * THREADS;
        let a = digit_at(this_pass.source, i);
        let b = digit_at(this_pass.source, i + THREADS);
        let c = digit_at(this_pass.source, i + 2u * THREADS);
        let d = digit_at(this_pass.source, i + 3u * THREADS);
        count_digit(a);
        count_digit(b);
        count_digit(c);
        count_digit(d);
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
// Where the next key of each digit goes, here or in the whole.
var<workgroup> places: array<u32, DIGITS>;
// What to add to a place in the tile for the place in the whole.
var<workgroup> offsets: array<u32, DIGITS>;
// The tile in order: lower words, then upper words.
var<workgroup> stage: array<u32, STAGE>;

// Writes a key to `place` of the whole, if that is in the window.
fn store_key(sink: u32, place: u32, key: vec2<u32>) {
    // Below `to` this wraps to something large.
    let to = place - params.to;
    if to >= params.to_len {
        return;
    }
    if sink == AREA {
        area[params.at.b4 + to * WORDS] = key.x;
        if WORDS == 2u {
            area[params.at.b4 + to * WORDS + 1u] = key.y;
        }
    } else {
        distinct[params.at.b5 + to * WORDS] = key.x;
        if WORDS == 2u {
            distinct[params.at.b5 + to * WORDS + 1u] = key.y;
        }
    }
}

// Where each digit of a tile begins: fills places and offsets.
fn find_places(all_tiles: u32, thread: u32) {
    let total = state[params.at.b7 + TOTALS + thread];
    let entry = params.at.b6 + thread * params.tiles + all_tiles;
    let earlier = table[entry];
    let first = scan_exclusive(thread, total) + earlier;
    if STAGED {
        var end = total;
        if all_tiles + 1u < params.tiles {
            end = table[entry + 1u];
        }
        let here = scan_exclusive(thread, end - earlier);
        places[thread] = here;
        offsets[thread] = first - here;
    } else {
        places[thread] = first;
    }
}

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
    let first = tile * ROWS * THREADS;
    var next = vec2(0u);
    if first + thread < params.len {
        next = load_key(this_pass.source, first + thread);
    }
    find_places(params.start / (ROWS * THREADS) + tile, thread);
    for (var i = thread; i < 8u * DIGITS; i += THREADS) {
        atomicStore(&seen[i], 0u);
    }
    workgroupBarrier();
    let my_word = thread / 32u;
    let my_bit = 1u << (thread % 32u);
    for (var row = 0u; row < ROWS; row++) {
        let i = first + row * THREADS + thread;
        let there = i < params.len;
        let key = next;
        let digit = digit_of_key(key);
        if there {
            atomicOr(&seen[my_word * DIGITS + digit], my_bit);
        }
        // The next row is on its way while this one is ranked.
        if row + 1u < ROWS && i + THREADS < params.len {
            next = load_key(this_pass.source, i + THREADS);
        }
        workgroupBarrier();
        var rank = 0u;
        var total = 0u;
        for (var w = 0u; w < 8u; w++) {
            let word = atomicLoad(&seen[w * DIGITS + digit]);
            let ones = countOneBits(word);
            total += ones;
            rank += select(0u, ones, w < my_word);
            rank += select(0u, countOneBits(word & (my_bit - 1u)), w == my_word);
        }
        let place = places[digit] + rank;
        workgroupBarrier();
        if there {
            if rank + 1u == total {
                places[digit] = place + 1u;
                for (var w = 0u; w < 8u; w++) {
                    atomicStore(&seen[w * DIGITS + digit], 0u);
                }
            }
            if STAGED {
                stage[place] = key.x;
                if WORDS == 2u {
                    stage[ROWS * THREADS + place] = key.y;
                }
            } else {
                store_key(this_pass.sink, place, key);
            }
        }
        workgroupBarrier();
    }
    if STAGED {
        let len = min(params.len - first, ROWS * THREADS);
        for (var i = thread; i < len; i += THREADS) {
            var key = vec2(stage[i], 0u);
            if WORDS == 2u {
                key.y = stage[ROWS * THREADS + i];
            }
            store_key(this_pass.sink, offsets[digit_of_key(key)] + i, key);
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
            store_key(DISTINCT, earlier + head.x, load_key(source, i));
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
    find_heads(source, tile, thread);
    let earlier = table[params.at.b6 + params.start / (ROWS * THREADS) + tile];
    for (var row = 0u; row < ROWS; row++) {
        let i = (tile * ROWS + row) * THREADS + thread;
        if i < params.len {
            let head = rank_of_head(row, thread);
            // The run of this key; before the first head, the one before.
            let run = earlier + head.x + head.y - 1u - params.to;
            if run < params.to_len {
                let low = params.at.b8 + 2u * run;
                if head.y == 1u {
                    atomicSub(&counters[low], params.start + i);
                }
                if is_last(source, i) {
                    atomicAdd(&counters[low], params.start + i + 1u);
                }
            }
        }
    }
}
