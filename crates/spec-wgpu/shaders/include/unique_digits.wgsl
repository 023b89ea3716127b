// `unique` by digits: a stable radix sort with 8 bits per pass, lowest first. This file is a part
// of that shader and uses its declarations.
//
// Each pass is three dispatches:
//   count    tile by tile: counts the keys with each digit
//   prefix   a workgroup per digit: prefix sums over the tiles
//   scatter  tile by tile: moves each key to its place
// The dispatches share one table of [256 digits, tiles]. A digit that is the same in all keys needs
// no pass: `survey` finds the bits that vary, and the dispatches of unnecessary passes return at
// once. Two areas take turns as source and target, such that the last pass ends in `area`.
//
// A scatter ranks 256 keys at a time, one per thread: each key sets its bit in a bitmap of its
// digit, and its rank is the number of bits before its own. Ranks depend on positions alone, never
// on the order of atomics. Where workgroup memory has room for the tile, keys are put in order
// there and then written, so that neighbouring threads write neighbouring keys.
//
// (Ranking by subgroup ballots instead, with a part of the tile for each subgroup, was slower on an
// H100: 41.6 ms against 33.8 for 2^27 keys.)
//
// Bytes moved: 3 times the keys per necessary pass (two reads and a write).

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
    let chosen = params.forced != 0u || state[params.at.b7 + MODE] == BY_DIGITS;
    return Pass(chosen && varies(params.digit), source, sink);
}

// The number of tiles of the window; a workgroup handles every n-th tile, with n workgroups.
fn tiles_of_window() -> u32 {
    return (params.len + ROWS * THREADS - 1u) / (ROWS * THREADS);
}

fn digit_of(key: vec2<u32>) -> u32 {
    let word = select(key.x, key.y, params.digit >= 4u);
    return ((word >> (8u * (params.digit % 4u))) & 0xffu) ^ params.flip;
}

// The number of keys with each digit.
var<workgroup> digits: array<atomic<u32>, DIGITS>;

// The digit of key `i`; DIGITS for a key past the end.
fn digit_at(source: u32, i: u32) -> u32 {
    var digit = DIGITS;
    if i < params.len {
        digit = digit_of(load_key(source, i));
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
    let index = group_index(group, groups);
    let this_pass = find_pass();
    if index >= params.at.groups || !this_pass.needed {
        return;
    }
    for (var tile = index; tile < tiles_of_window(); tile += params.at.groups) {
        atomicStore(&digits[thread], 0u);
        workgroupBarrier();
        // Four loads at a time are in flight.
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
}

// For each digit, one bit per thread: word w of digit d is at w * DIGITS + d.
var<workgroup> seen: array<atomic<u32>, 2048>;
// Where the next key of each digit goes: in the tile if STAGED, else in the whole.
var<workgroup> places: array<u32, DIGITS>;
// For each digit, the difference between a key's final place and its place in the tile.
var<workgroup> offsets: array<u32, DIGITS>;
// The keys of the tile, in order.
var<workgroup> stage: array<Stored, STAGE>;

// Finds where each digit of a tile begins: fills places and offsets.
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

fn scatter_tile(current: Pass, tile: u32, thread: u32) {
    let first = tile * ROWS * THREADS;
    var next = vec2(0u);
    if first + thread < params.len {
        next = load_key(current.source, first + thread);
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
        let digit = digit_of(key);
        if there {
            atomicOr(&seen[my_word * DIGITS + digit], my_bit);
        }
        // The load of the next row is in flight while this row is ranked.
        if row + 1u < ROWS && i + THREADS < params.len {
            next = load_key(current.source, i + THREADS);
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
                stage[place] = stored_of(key);
            } else {
                put_key(current.sink, place, stored_of(key));
            }
        }
        workgroupBarrier();
    }
    if STAGED {
        let len = min(params.len - first, ROWS * THREADS);
        for (var i = thread; i < len; i += THREADS) {
            let stored = stage[i];
            put_key(current.sink, offsets[digit_of(key_of(stored))] + i, stored);
        }
    }
}

@compute @workgroup_size(THREADS)
fn scatter(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    let this_pass = find_pass();
    if index >= params.at.groups || !this_pass.needed {
        return;
    }
    for (var tile = index; tile < tiles_of_window(); tile += params.at.groups) {
        scatter_tile(this_pass, tile, thread);
        workgroupBarrier();
    }
}
