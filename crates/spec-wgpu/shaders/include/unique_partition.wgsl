// `unique` by buckets: keys are counted and moved by the digits of their buckets' numbers. This file
// is a part of unique.wgsl and uses its declarations and those of unique_buckets.wgsl, whose comment
// says what the dispatches do.

// ---- what is counted -------------------------------------------------------

// The number of keys of a tile with each digit; later where the digit begins in the tile.
var<workgroup> sizes: array<atomic<u32>, SPLIT>;
var<workgroup> found: u32;

// A tile: where it lies, and how bucket numbers become digits.
struct Tile {
    source: u32,
    sink: u32,
    first: u32,
    len: u32,
    // The digit is (bucket - base) >> bits.
    base: u32,
    bits: u32,
    // Where the digits' counters begin, and the distance between them.
    cells: u32,
    stride: u32,
}

// Tile `index` of all keys, for the first digits.
fn first_tile(index: u32) -> Tile {
    let first = index * CAPACITY;
    let len = min(params.n - first, CAPACITY);
    if params.low_bits == 0u {
        return Tile(KEYS, AREA, first, len, 0u, 0u, params.at.b6, 1u);
    }
    return Tile(KEYS, DISTINCT, first, len, 0u, params.low_bits, first_cells(), CELL_STRIDE);
}

// Tile `index` for the second digits; a tile beyond the last one has no keys. Every thread of the
// workgroup must call this function.
fn second_tile(index: u32, thread: u32) -> Tile {
    if thread == 0u {
        found = params.firsts;
    }
    workgroupBarrier();
    for (var i = thread; i < params.firsts; i += THREADS) {
        let before = atomicLoad(&cells[tile_cells() + i]);
        if before <= index && index < atomicLoad(&cells[tile_cells() + i + 1u]) {
            found = i;
        }
    }
    workgroupBarrier();
    let digit = found;
    if digit == params.firsts {
        return Tile(DISTINCT, AREA, 0u, 0u, 0u, 0u, params.at.b6, 1u);
    }
    let tile = index - atomicLoad(&cells[tile_cells() + digit]);
    var first = tile * CAPACITY;
    if digit > 0u {
        first += atomicLoad(&cells[first_cells() + CELL_STRIDE * (digit - 1u)]);
    }
    let len = min(atomicLoad(&cells[first_cells() + CELL_STRIDE * digit]) - first, CAPACITY);
    let base = digit << params.low_bits;
    return Tile(DISTINCT, AREA, first, len, base, 0u, params.at.b6 + base, 1u);
}

fn digit_in(tile: Tile, map: Map, key: vec2<u32>) -> u32 {
    return (bucket_of(map, key).y - tile.base) >> tile.bits;
}

fn clear_sizes(thread: u32) {
    for (var digit = thread; digit < SPLIT; digit += THREADS) {
        atomicStore(&sizes[digit], 0u);
    }
}

fn count_key(tile: Tile, map: Map, there: bool, key: vec2<u32>) {
    if there {
        atomicAdd(&sizes[digit_in(tile, map, key)], 1u);
    }
}

fn count_tile(tile: Tile, map: Map, thread: u32) {
    for (var row = 0u; row < FOURS; row++) {
        let i = 4u * row * THREADS + thread;
        let four = load_four(tile.source, tile.first, i, tile.len);
        count_key(tile, map, i < tile.len, vec2(four.low.x, four.high.x));
        count_key(tile, map, i + THREADS < tile.len, vec2(four.low.y, four.high.y));
        count_key(tile, map, i + 2u * THREADS < tile.len, vec2(four.low.z, four.high.z));
        count_key(tile, map, i + 3u * THREADS < tile.len, vec2(four.low.w, four.high.w));
    }
}

fn add_sizes(tile: Tile, thread: u32) {
    for (var digit = thread; digit < SPLIT; digit += THREADS) {
        let size = atomicLoad(&sizes[digit]);
        if size > 0u {
            atomicAdd(&cells[tile.cells + tile.stride * digit], size);
        }
    }
}

// A workgroup handles every n-th tile, with n workgroups.
@compute @workgroup_size(THREADS)
fn count_firsts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    let map = load_map();
    clear_sizes(thread);
    workgroupBarrier();
    let tiles = (params.n + CAPACITY - 1u) / CAPACITY;
    for (var i = index; i < tiles; i += params.at.groups) {
        count_tile(first_tile(i), map, thread);
    }
    workgroupBarrier();
    add_sizes(first_tile(index), thread);
}

@compute @workgroup_size(THREADS)
fn count_seconds(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    clear_sizes(thread);
    let tile = second_tile(index, thread);
    if tile.len == 0u {
        return;
    }
    count_tile(tile, load_map(), thread);
    workgroupBarrier();
    add_sizes(tile, thread);
}

// Replaces the number of keys with each first digit by the number of keys before it, and finds the
// tiles for the second digits.
@compute @workgroup_size(THREADS)
fn arrange_firsts(@builtin(local_invocation_index) thread: u32) {
    if !by_buckets() {
        return;
    }
    var before = 0u;
    var tiles_before = 0u;
    for (var start = 0u; start < params.firsts; start += THREADS) {
        let i = start + thread;
        var len = 0u;
        if i < params.firsts {
            len = table[first_cells() + CELL_STRIDE * i];
        }
        let tiles = (len + CAPACITY - 1u) / CAPACITY;
        let sum = before + scan_exclusive(thread, len);
        before += scan_total();
        let tile_sum = tiles_before + scan_exclusive(thread, tiles);
        tiles_before += scan_total();
        if i < params.firsts {
            table[first_cells() + CELL_STRIDE * i] = sum;
            table[tile_cells() + i] = tile_sum;
        }
    }
    if thread == 0u {
        table[tile_cells() + params.firsts] = tiles_before;
    }
}

// Replaces the number of keys in each bucket by the number of keys before it.
@compute @workgroup_size(THREADS)
fn arrange(@builtin(local_invocation_index) thread: u32) {
    if !by_buckets() {
        return;
    }
    let at = params.at.b6;
    var before = 0u;
    var largest = 0u;
    for (var start = 0u; start < params.buckets; start += CHUNK * THREADS) {
        let first = start + thread * CHUNK;
        let end = min(first + CHUNK, params.buckets);
        var mine = 0u;
        for (var i = first; i < end; i++) {
            largest = max(largest, table[at + i]);
            mine += table[at + i];
        }
        var sum = before + scan_exclusive(thread, mine);
        for (var i = first; i < end; i++) {
            let len = table[at + i];
            table[at + i] = sum;
            sum += len;
        }
        before += scan_total();
    }
    if largest > CAPACITY {
        state[params.at.b7 + MODE] = BY_DIGITS;
    }
}

// ---- partitions ------------------------------------------------------------

// For each digit, the difference between a key's final place and its place in the tile.
var<workgroup> shifts: array<u32, SPLIT>;
// The keys of the tile or bucket, in order.
var<workgroup> held: array<Stored, CAPACITY>;

// The digit of a key in the high half; in the low half, the key's number among the tile's keys with
// this digit.
fn rank(tile: Tile, map: Map, there: bool, key: vec2<u32>) -> u32 {
    let digit = digit_in(tile, map, key);
    if there {
        return (digit << 16u) | atomicAdd(&sizes[digit], 1u);
    }
    return 0u;
}

fn rank_four(tile: Tile, map: Map, four: Four, i: u32) -> vec4<u32> {
    let a = rank(tile, map, i < tile.len, vec2(four.low.x, four.high.x));
    let b = rank(tile, map, i + THREADS < tile.len, vec2(four.low.y, four.high.y));
    let c = rank(tile, map, i + 2u * THREADS < tile.len, vec2(four.low.z, four.high.z));
    let d = rank(tile, map, i + 3u * THREADS < tile.len, vec2(four.low.w, four.high.w));
    return vec4(a, b, c, d);
}

fn hold(there: bool, rank: u32, key: vec2<u32>) {
    if there {
        held[atomicLoad(&sizes[rank >> 16u]) + (rank & 0xffffu)] = stored_of(key);
    }
}

fn hold_four(len: u32, four: Four, ranks: vec4<u32>, i: u32) {
    hold(i < len, ranks.x, vec2(four.low.x, four.high.x));
    hold(i + THREADS < len, ranks.y, vec2(four.low.y, four.high.y));
    hold(i + 2u * THREADS < len, ranks.z, vec2(four.low.z, four.high.z));
    hold(i + 3u * THREADS < len, ranks.w, vec2(four.low.w, four.high.w));
}

fn spread_tile(tile: Tile, thread: u32) {
    let map = load_map();
    clear_sizes(thread);
    let step = 4u * THREADS;
    let a = load_four(tile.source, tile.first, thread, tile.len);
    var b = a;
    var c = a;
    var d = a;
    if FOURS > 1u {
        b = load_four(tile.source, tile.first, thread + step, tile.len);
    }
    if FOURS > 2u {
        c = load_four(tile.source, tile.first, thread + 2u * step, tile.len);
        d = load_four(tile.source, tile.first, thread + 3u * step, tile.len);
    }
    workgroupBarrier();
    let ranks_a = rank_four(tile, map, a, thread);
    var ranks_b = ranks_a;
    var ranks_c = ranks_a;
    var ranks_d = ranks_a;
    if FOURS > 1u {
        ranks_b = rank_four(tile, map, b, thread + step);
    }
    if FOURS > 2u {
        ranks_c = rank_four(tile, map, c, thread + 2u * step);
        ranks_d = rank_four(tile, map, d, thread + 3u * step);
    }
    workgroupBarrier();
    let each = SPLIT / THREADS;
    var mine = 0u;
    for (var digit = thread * each; digit < (thread + 1u) * each; digit++) {
        mine += atomicLoad(&sizes[digit]);
    }
    var before = scan_exclusive(thread, mine);
    for (var digit = thread * each; digit < (thread + 1u) * each; digit++) {
        let size = atomicLoad(&sizes[digit]);
        atomicStore(&sizes[digit], before);
        if size > 0u {
            let at = tile.cells + tile.stride * digit;
            shifts[digit] = atomicAdd(&cells[at], size) - before;
        }
        before += size;
    }
    workgroupBarrier();
    hold_four(tile.len, a, ranks_a, thread);
    if FOURS > 1u {
        hold_four(tile.len, b, ranks_b, thread + step);
    }
    if FOURS > 2u {
        hold_four(tile.len, c, ranks_c, thread + 2u * step);
        hold_four(tile.len, d, ranks_d, thread + 3u * step);
    }
    workgroupBarrier();
    for (var i = thread; i < tile.len; i += THREADS) {
        let stored = held[i];
        put_key(tile.sink, shifts[digit_in(tile, map, key_of(stored))] + i, stored);
    }
}

@compute @workgroup_size(THREADS)
fn partition_first(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    spread_tile(first_tile(index), thread);
}

@compute @workgroup_size(THREADS)
fn partition_second(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    let tile = second_tile(index, thread);
    if tile.len > 0u {
        spread_tile(tile, thread);
    }
}
