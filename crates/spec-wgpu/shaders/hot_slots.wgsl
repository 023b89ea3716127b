//!include params/hot_slots
//!include params/shared
//!include integers
//!include scan
// hot_slots: which slots hold the entries that each row wants, and which entries must be fetched.
//
// * `prepare` a workgroup per row: finds the row's request, and reads its step, reset and tail start.
// * `enter`   a thread per column: answers entries outside of the slots, and lists the others.
// * `assign`  a workgroup per row: sorts the list, and finds each slot's entry in the list by binary
//             search. For the listed entries that no slot holds, the misses, a radix selection over
//             the ages of slots finds the oldest slots, and each miss gets one of these slots. The
//             lengths of all loops do not depend on the data.
// * `answer`  a thread per column: finds the column's entry in the sorted list.
//
// A row of the workspace: ROW_WORDS words, then `padded` keys (the sorted entries), `padded` words
// that hold the slot of each key's first occurrence, `padded` indices of misses, and `h` states of
// slots. `padded` is a power of two.
//
// Bytes moved: the sort reads and writes the keys log^2 times; the slots are read four times, and
// once for each 8 bits of ages where some non-empty slots must be chosen.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;

// prepare
@group(0) @binding(2) var<storage, read> requests: array<u32>;
@group(0) @binding(3) var<storage, read> given_steps: array<u32>;
@group(0) @binding(4) var<storage, read> given_resets: array<u32>;
@group(0) @binding(5) var<storage, read> tail_starts: array<u32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

// enter and answer
@group(0) @binding(2) var<storage, read> wanted: array<u32>;
@group(0) @binding(3) var<storage, read> pages: array<u32>;
@group(0) @binding(4) var<storage, read> block_table: array<u32>;
@group(0) @binding(5) var<storage, read_write> slots: array<u32>;

// assign
@group(0) @binding(2) var<storage, read_write> resident: array<u32>;
@group(0) @binding(3) var<storage, read_write> used: array<u32>;
@group(0) @binding(5) var<storage, read_write> fetch_positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> fetch_slots: array<u32>;
@group(0) @binding(7) var<storage, read_write> fetches: array<u32>;

const NONE = 0xffffffffu;
// Stands in `slots` for an entry that may be in a slot: no place is this number.
const IN_SLOTS = 0x80000000u;

// Words of a row's workspace.
const TABLE = 0u;
const STEP = 1u;
const RESET = 2u;
const START_LOW = 3u;
const START_HIGH = 4u;

// States of slots: not to be taken, empty, or holding another entry. MAY_HIT + 4 * i: holds key i.
const TAKEN = 0u;
const EMPTY = 1u;
const HOLDS = 2u;
const MAY_HIT = 3u;

// Places: NONE for a missing block, TOO_FAR for a number of 2^31 or more.
const TOO_FAR = 0xfffffffeu;

var<workgroup> is_lost: atomic<u32>;
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> chosen: vec2<u32>;

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
}

fn row_base(row: u32) -> u32 {
    return params.at.b1 + row * params.row_words;
}

fn raise(bits: u32) {
    if bits != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b8], bits);
    }
}

// Place `within` of a block of `size` numbers.
fn in_block(block: u32, size: u32, within: u32) -> u32 {
    return select(block * size + within, TOO_FAR, block > (0x7fffffffu - within) / size);
}

// The place of a slot in the cache.
fn place_of(table: u32, slot: u32) -> u32 {
    if params.has_blocks == 0u {
        return slot;
    }
    let index = slot / params.block_size;
    if index >= params.blocks {
        return NONE;
    }
    let block = block_table[params.at.b4 + table * params.block_stride + index];
    if (block >> 31u) != 0u {
        return NONE;
    }
    return in_block(block, params.block_size, slot % params.block_size);
}

@compute @workgroup_size(THREADS)
fn prepare(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    if me.thread == 0u {
        atomicStore(&is_lost, 0u);
    }
    workgroupBarrier();
    let at = params.row0 + row;
    var table = row;
    if params.has_requests != 0u {
        table = requests[params.at.b2 + at];
        for (var lower = me.thread; lower < at; lower += THREADS) {
            if requests[params.at.b2 + lower] == table {
                atomicStore(&is_lost, 1u);
            }
        }
    }
    workgroupBarrier();
    if me.thread != 0u {
        return;
    }
    let base = row_base(row);
    if table >= params.tables || atomicLoad(&is_lost) != 0u {
        atomicStore(&work[base + TABLE], NONE);
        raise(select(BAD_LENGTHS, 0u, table == NONE));
        return;
    }
    atomicStore(&work[base + TABLE], table);
    let step = params.at.b3 + select(0u, at, params.step_by_row != 0u);
    atomicStore(&work[base + STEP], given_steps[step * params.step_words]);
    var reset = 0u;
    if params.has_reset != 0u {
        reset = given_resets[params.at.b4 + at];
    }
    atomicStore(&work[base + RESET], reset);
    // Without tail starts, no entry is at or above the start.
    var start = vec2(0u, 1u);
    if params.tail_words != 0u {
        let first = (params.at.b5 + at) * params.tail_words;
        let last = first + params.tail_words - 1u;
        start = integer(tail_starts[first], tail_starts[last], params.tail_words);
        if (start.y >> 31u) != 0u {
            start = vec2(0u, 0u);
            raise(BAD_LENGTHS);
        }
    }
    atomicStore(&work[base + START_LOW], start.x);
    atomicStore(&work[base + START_HIGH], start.y);
}

// The place of an entry outside of the slots, NONE or TOO_FAR for none; IN_SLOTS for an entry that
// may be in a slot.
fn outside(table: u32, base: u32, entry: u32) -> u32 {
    if params.has_pages != 0u {
        let index = entry / params.page_size;
        if index < params.page_count {
            let page = pages[params.at.b3 + table * params.page_stride + index];
            if bitcast<i32>(page) > params.null_page {
                return in_block(page, params.page_size, entry % params.page_size);
            }
        }
    }
    let start = atomicLoad(&work[base + START_LOW]);
    if atomicLoad(&work[base + START_HIGH]) != 0u || entry < start {
        return IN_SLOTS;
    }
    let behind = entry - start;
    if behind >= params.tail {
        return TOO_FAR;
    }
    return place_of(table, params.h + behind);
}

@compute @workgroup_size(THREADS)
fn enter(me: Invocation) {
    let group = group_index(me.group, me.groups);
    if group >= params.at.groups {
        return;
    }
    let row = group / params.groups_per_row;
    let column = group % params.groups_per_row * THREADS + me.thread;
    let base = row_base(row);
    let table = atomicLoad(&work[base + TABLE]);
    if column >= params.padded {
        return;
    }
    var key = NONE;
    if column < params.m {
        var place = NONE;
        if table != NONE {
            let entry = wanted[params.at.b2 + row * params.wanted_stride + column];
            if (entry >> 31u) == 0u {
                place = outside(table, base, entry);
                if place == IN_SLOTS {
                    key = entry;
                } else if place >= TOO_FAR {
                    place = NONE;
                    raise(OUT_OF_RANGE);
                }
            }
        }
        slots[params.at.b5 + row * params.slots_stride + column] = place;
    }
    atomicStore(&work[base + ROW_WORDS + column], key);
}

// Sorts the keys of a row.
fn sort_keys(keys: u32, thread: u32) {
    for (var size = 2u; size <= params.padded; size <<= 1u) {
        for (var stride = size >> 1u; stride > 0u; stride >>= 1u) {
            storageBarrier();
            workgroupBarrier();
            for (var pair = thread; pair < params.padded / 2u; pair += THREADS) {
                let low = 2u * pair - (pair & (stride - 1u));
                let a = atomicLoad(&work[keys + low]);
                let b = atomicLoad(&work[keys + low + stride]);
                if (a > b) == ((low & size) == 0u) {
                    atomicStore(&work[keys + low], b);
                    atomicStore(&work[keys + low + stride], a);
                }
            }
        }
    }
    storageBarrier();
    workgroupBarrier();
}

// The first index whose key is at least `key`; `padded` if there is none.
fn find(keys: u32, key: u32) -> u32 {
    var low = 0u;
    var high = params.padded;
    while low < high {
        let middle = (low + high) / 2u;
        if atomicLoad(&work[keys + middle]) < key {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// Adds the values of all threads. Every thread must call this function.
fn sum(thread: u32, value: u32) -> u32 {
    _ = scan_exclusive(thread, value);
    let total = workgroupUniformLoad(&scan_sum);
    workgroupBarrier();
    return total;
}

// Finds the age that the oldest `wanted` slots of the state HOLDS are at least, and how many of this
// age are among them.
fn select_age(states: u32, ages: u32, step: u32, wanted: u32, thread: u32) -> vec2<u32> {
    var prefix = 0u;
    var left = wanted;
    for (var shift = 32u; shift > 0u; shift -= 8u) {
        atomicStore(&bins[thread], 0u);
        workgroupBarrier();
        for (var slot = thread; slot < params.h; slot += THREADS) {
            let age = step - used[ages + slot];
            // The digits above these; a shift by 32 is none.
            let is_of = shift == 32u || (age >> (shift & 31u)) == prefix;
            if is_of && atomicLoad(&work[states + slot]) == HOLDS {
                atomicAdd(&bins[(age >> (shift - 8u)) & 255u], 1u);
            }
        }
        workgroupBarrier();
        // Thread t has the digit 255 - t, so that greater ages come first.
        let own = atomicLoad(&bins[255u - thread]);
        let before = scan_exclusive(thread, own);
        if before < left && before + own >= left {
            chosen = vec2((prefix << 8u) | (255u - thread), left - before);
        }
        workgroupBarrier();
        let found = workgroupUniformLoad(&chosen);
        prefix = found.x;
        left = found.y;
    }
    return vec2(prefix, left);
}

// Reads the slots: their states, and the lowest slot of each key. Empties them first if `reset`.
fn read_slots(table: u32, base: u32, reset: bool, thread: u32) {
    let keys = base + ROW_WORDS;
    let found = keys + params.padded;
    let states = found + 2u * params.padded;
    var bits = 0u;
    for (var slot = thread; slot < params.h; slot += THREADS) {
        let at = params.at.b2 + table * params.resident_stride + slot;
        var entry = resident[at];
        if reset {
            entry = NONE;
            resident[at] = NONE;
        }
        let place = place_of(table, slot);
        var state = HOLDS;
        if place >= TOO_FAR {
            state = TAKEN;
            bits |= select(0u, OUT_OF_RANGE, place == TOO_FAR);
        } else if (entry >> 31u) != 0u {
            state = EMPTY;
        } else {
            let index = find(keys, entry);
            if index < params.padded && atomicLoad(&work[keys + index]) == entry {
                atomicMin(&work[found + index], slot);
                state = MAY_HIT + 4u * index;
            }
        }
        atomicStore(&work[states + slot], state);
    }
    raise(bits);
}

// Marks the hits, and counts the slots that may be taken: (empty, all).
fn settle_hits(table: u32, base: u32, step: u32, thread: u32) -> vec2<u32> {
    let found = base + ROW_WORDS + params.padded;
    let states = found + 2u * params.padded;
    var empty = 0u;
    var free = 0u;
    for (var slot = thread; slot < params.h; slot += THREADS) {
        var state = atomicLoad(&work[states + slot]);
        if (state & 3u) == MAY_HIT {
            if atomicLoad(&work[found + (state >> 2u)]) == slot {
                used[params.at.b3 + table * params.used_stride + slot] = step;
                state = TAKEN;
            } else {
                state = HOLDS;
            }
            atomicStore(&work[states + slot], state);
        }
        empty += select(0u, 1u, state == EMPTY);
        free += select(0u, 1u, state != TAKEN);
    }
    return vec2(sum(thread, empty), sum(thread, free));
}

// Whether key `index` is the first of its value, and no slot has it.
fn is_miss(keys: u32, index: u32) -> bool {
    let key = atomicLoad(&work[keys + index]);
    if key == NONE || atomicLoad(&work[keys + params.padded + index]) != NONE {
        return false;
    }
    return index == 0u || atomicLoad(&work[keys + index - 1u]) != key;
}

// Lists the indices of the misses in ascending order, and returns their number.
fn list_misses(keys: u32, thread: u32) -> u32 {
    let part = (params.padded + THREADS - 1u) / THREADS;
    let start = min(thread * part, params.padded);
    let end = min(start + part, params.padded);
    var own = 0u;
    for (var index = start; index < end; index++) {
        own += select(0u, 1u, is_miss(keys, index));
    }
    var to = keys + 2u * params.padded + scan_exclusive(thread, own);
    let misses = workgroupUniformLoad(&scan_sum);
    for (var index = start; index < end; index++) {
        if is_miss(keys, index) {
            atomicStore(&work[to], index);
            to++;
        }
    }
    storageBarrier();
    workgroupBarrier();
    return misses;
}

// 1 for a slot that is taken for certain, 2 for a slot that is taken while the quota lasts, else 0.
fn kind_of(state: u32, age: u32, takes_all: bool, only_empty: bool, cut: u32) -> u32 {
    if state == TAKEN {
        return 0u;
    }
    if takes_all {
        return 1u;
    }
    if state == EMPTY {
        return select(1u, 2u, only_empty);
    }
    if only_empty || age < cut {
        return 0u;
    }
    return select(1u, 2u, age == cut);
}

// Gives `count` misses to slots in ascending order. `empty` and `free` count the slots that may be
// taken.
fn hand_out(row: u32, table: u32, count: u32, empty: u32, free: u32, thread: u32) {
    let base = row_base(row);
    let keys = base + ROW_WORDS;
    let found = keys + params.padded;
    let misses = found + params.padded;
    let states = misses + params.padded;
    let step = atomicLoad(&work[base + STEP]);
    let ages = params.at.b3 + table * params.used_stride;
    let takes_all = count == free;
    let only_empty = !takes_all && count <= empty;
    var cut = 0u;
    var quota = select(0u, count, only_empty);
    if !takes_all && !only_empty {
        let selected = select_age(states, ages, step, count - empty, thread);
        cut = selected.x;
        quota = selected.y;
    }
    let part = (params.h + THREADS - 1u) / THREADS;
    let start = min(thread * part, params.h);
    let end = min(start + part, params.h);
    var own = vec2(0u, 0u);
    for (var slot = start; slot < end; slot++) {
        let state = atomicLoad(&work[states + slot]);
        let kind = kind_of(state, step - used[ages + slot], takes_all, only_empty, cut);
        own += vec2(select(0u, 1u, kind == 1u), select(0u, 1u, kind == 2u));
    }
    // The slots before these that are taken for certain, and those on the quota.
    var certain = scan_exclusive(thread, own.x);
    workgroupBarrier();
    var tied = scan_exclusive(thread, own.y);
    workgroupBarrier();
    for (var slot = start; slot < end; slot++) {
        let state = atomicLoad(&work[states + slot]);
        let kind = kind_of(state, step - used[ages + slot], takes_all, only_empty, cut);
        if kind == 1u || (kind == 2u && tied < quota) {
            let rank = certain + min(tied, quota);
            let index = atomicLoad(&work[misses + rank]);
            let entry = atomicLoad(&work[keys + index]);
            atomicStore(&work[found + index], slot);
            resident[params.at.b2 + table * params.resident_stride + slot] = entry;
            used[ages + slot] = step;
            fetch_positions[params.at.b5 + row * params.positions_stride + rank] = entry;
            fetch_slots[params.at.b6 + row * params.fetch_slots_stride + rank] =
                place_of(table, slot);
        }
        certain += select(0u, 1u, kind == 1u);
        tied += select(0u, 1u, kind == 2u);
    }
}

@compute @workgroup_size(THREADS)
fn assign(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    let thread = me.thread;
    let base = row_base(row);
    let keys = base + ROW_WORDS;
    let table = atomicLoad(&work[base + TABLE]);
    var count = 0u;
    if table != NONE {
        let step = atomicLoad(&work[base + STEP]);
        for (var index = thread; index < params.padded; index += THREADS) {
            atomicStore(&work[keys + params.padded + index], NONE);
        }
        sort_keys(keys, thread);
        read_slots(table, base, atomicLoad(&work[base + RESET]) != 0u, thread);
        storageBarrier();
        workgroupBarrier();
        let counted = settle_hits(table, base, step, thread);
        let misses = list_misses(keys, thread);
        count = min(misses, counted.y);
        if thread == 0u && misses > count {
            raise(BAD_LENGTHS);
        }
        if count > 0u {
            hand_out(row, table, count, counted.x, counted.y, thread);
        }
    }
    for (var column = count + thread; column < params.m; column += THREADS) {
        fetch_positions[params.at.b5 + row * params.positions_stride + column] = NONE;
        fetch_slots[params.at.b6 + row * params.fetch_slots_stride + column] = NONE;
    }
    if thread == 0u {
        fetches[params.at.b7 + row] = count;
    }
}

@compute @workgroup_size(THREADS)
fn answer(me: Invocation) {
    let group = group_index(me.group, me.groups);
    if group >= params.at.groups {
        return;
    }
    let row = group / params.groups_per_row;
    let column = group % params.groups_per_row * THREADS + me.thread;
    if column >= params.m {
        return;
    }
    let at = params.at.b5 + row * params.slots_stride + column;
    if slots[at] != IN_SLOTS {
        return;
    }
    let base = row_base(row);
    let keys = base + ROW_WORDS;
    let index = find(keys, wanted[params.at.b2 + row * params.wanted_stride + column]);
    var place = NONE;
    // True, unless the wanted entries change during the call.
    if index < params.padded {
        let slot = atomicLoad(&work[keys + params.padded + index]);
        if slot != NONE {
            place = place_of(atomicLoad(&work[base + TABLE]), slot);
        }
    }
    slots[at] = place;
}
