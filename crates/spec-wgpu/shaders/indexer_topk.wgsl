//!include params/indexer_topk
//!include params/shared
//!include scan
//!include floats
//!include integers
// indexer_topk: the positions of the k largest scores of each row, ascending.
//
// The k-th largest key is found first; the larger keys stay, and so do the first of the keys that
// equal the k-th. Where a row has many more scores than k:
//
// * `survey`  a workgroup per part of a row: the largest key of each group of scores, and the row's
//             range.
// * `bound`   a workgroup per row: the k-th largest of the groups' keys. At least k scores reach
//             this bound, and in most rows not many more.
// * `collect` a workgroup per part: lists the keys above the bound.
// * `settle`  a workgroup per row: the k-th largest key of the row. It is found in the list; it is
//             the bound itself if the list has fewer than k keys; it is found in the row if the
//             list would be too long.
//
// Where a row has not many more scores than k, a radix select follows `clear`. Four times, `count`
// counts the values of the next eight bits, among the keys that begin with the bits found so far,
// and `pick` finds the digit of the k-th key. In both cases, two passes end the call:
//
// * `count_chosen`  a workgroup per chunk: which keys of the chunk are above the k-th, and which
//             equal it.
// * `place`   a workgroup per chunk: writes the chunk's positions behind those of earlier chunks.
//
// A row that has at most k scores keeps all of them: its cut is below every key. The scores of a
// part, and of a group, lie far apart in the row, so that the best scores are spread over many
// groups even where they are neighbours.
//
// workspace   [rows] states, [rows][256] counts, [rows][chunks] counts of chosen scores, two words
//             each; keys: [rows][chunks][256] of groups, later marks, [rows][capacity] lists
//
// Bytes moved: each score twice and some scores three times; after `clear` each score five times,
// of which only the first comes from memory if a window of rows fits the cache.

// Threads of a workgroup: CHUNK_THREADS for a chunk, or more for a row.
override THREADS = 256u;
override DTYPE = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read> scores: array<u32>;
@group(0) @binding(3) var<storage, read> lengths: array<u32>;
@group(0) @binding(4) var<storage, read> starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> indices: array<u32>;
@group(0) @binding(6) var<storage, read_write> flags: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read_write> keys: array<u32>;

// The number of neighbouring scores of a chunk that a thread handles.
const SHARE = 16u;

// Words of a row's state: the row's first score, its number of scores, the bits of the k-th key
// found so far, and how many of the keys that begin with these bits are to stay; whether all stay;
// the bound; and the number of listed keys.
const ALL_STAY = 4u;
const BOUND = 5u;
const LISTED = 6u;

var<workgroup> digits: array<atomic<u32>, DIGITS>;
var<workgroup> row_state: vec4<u32>;
var<workgroup> row_word: u32;
var<workgroup> ranked: vec2<u32>;
var<workgroup> some: atomic<u32>;
var<workgroup> of_threads: array<u32, CHUNK_THREADS>;

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
}

fn state_at(row: u32) -> u32 {
    return params.at.b1 + row * STATE;
}

fn counts_at(row: u32) -> u32 {
    return params.at.b1 + params.rows * STATE + row * DIGITS;
}

fn chosen_at(row: u32, chunk: u32) -> u32 {
    return params.at.b1 + params.rows * (STATE + DIGITS) + (row * params.chunks + chunk) * 2u;
}

// Holds the key of a group during `survey` and `bound`, and a thread's marks during `count_chosen`
// and `place`.
fn group_at(row: u32, chunk: u32, thread: u32) -> u32 {
    return params.at.b7 + (row * params.chunks + chunk) * CHUNK_THREADS + thread;
}

fn list_at(row: u32) -> u32 {
    let groups = params.rows * params.chunks * CHUNK_THREADS;
    return params.at.b7 + groups + row * params.capacity;
}

// The bits of score `i` of a row, counted from the row's first element.
fn score_at(row: u32, i: u32) -> u32 {
    let at = params.at.b2 + row * params.stride + i;
    return float_bits(scores[float_word(at, DTYPE)], at, DTYPE);
}

// Loads the row's state, the same for the whole workgroup.
fn load_state(row: u32, thread: u32) -> vec4<u32> {
    if thread == 0u {
        let at = state_at(row);
        row_state = vec4(
            atomicLoad(&work[at]),
            atomicLoad(&work[at + 1u]),
            atomicLoad(&work[at + 2u]),
            atomicLoad(&work[at + 3u]),
        );
    }
    return workgroupUniformLoad(&row_state);
}

// A row's first score, its number of scores, and whether either was cut.
fn range_of(row: u32) -> vec3<u32> {
    var first = 0u;
    var any_cut = false;
    if params.start_words != 0u {
        let words = params.start_words;
        let at = (params.at.b4 + row) * words;
        let given = integer(starts[at], starts[at + words - 1u], words);
        first = cut_length(given, params.cols);
        any_cut = is_cut(given, first);
    }
    var count = params.cols - first;
    if params.length_words != 0u {
        let words = params.length_words;
        let at = (params.at.b3 + row) * words;
        let given = integer(lengths[at], lengths[at + words - 1u], words);
        count = cut_length(given, params.cols - first);
        any_cut = any_cut || is_cut(given, count);
    }
    return vec3(first, count, u32(any_cut));
}

// Every thread of one workgroup per row must call this function.
fn begin(row: u32, range: vec3<u32>, thread: u32) {
    if thread < DIGITS {
        atomicStore(&work[counts_at(row) + thread], 0u);
    }
    if thread != 0u {
        return;
    }
    if range.z != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b6], BAD_LENGTHS);
    }
    let at = state_at(row);
    atomicStore(&work[at], range.x);
    atomicStore(&work[at + 1u], range.y);
    atomicStore(&work[at + 2u], 0u);
    atomicStore(&work[at + 3u], params.k);
    atomicStore(&work[at + ALL_STAY], 0u);
    atomicStore(&work[at + LISTED], 0u);
}

// Loads a word of the row's state, the same for the whole workgroup.
fn load_word(row: u32, word: u32, thread: u32) -> u32 {
    if thread == 0u {
        row_word = atomicLoad(&work[state_at(row) + word]);
    }
    return workgroupUniformLoad(&row_word);
}

@compute @workgroup_size(THREADS)
fn clear(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    begin(row, range_of(row), me.thread);
}

// The index of a thread's score `i`: the scores of neighbouring threads are neighbours, and all
// parts take turns.
fn turn(chunk: u32, i: u32, thread: u32) -> u32 {
    return (i * params.chunks + chunk) * CHUNK_THREADS + thread;
}

@compute @workgroup_size(THREADS)
fn survey(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let range = range_of(row);
    if chunk == 0u {
        begin(row, range, me.thread);
    }
    var odd = false;
    var largest = 0u;
    if turn(chunk, SHARE - 1u, CHUNK_THREADS) <= range.y {
        // Four loads at a time are in flight.
        for (var i = 0u; i < SHARE; i += 4u) {
            let first = score_at(row, range.x + turn(chunk, i, me.thread));
            let second = score_at(row, range.x + turn(chunk, i + 1u, me.thread));
            let third = score_at(row, range.x + turn(chunk, i + 2u, me.thread));
            let fourth = score_at(row, range.x + turn(chunk, i + 3u, me.thread));
            odd = odd || is_nan(first) || is_nan(second) || is_nan(third) || is_nan(fourth);
            largest = max(largest, max(sort_key(first), sort_key(second)));
            largest = max(largest, max(sort_key(third), sort_key(fourth)));
        }
    } else {
        for (var i = 0u; i < SHARE; i++) {
            let at = turn(chunk, i, me.thread);
            if at < range.y {
                let bits = score_at(row, range.x + at);
                odd = odd || is_nan(bits);
                largest = max(largest, sort_key(bits));
            }
        }
    }
    if odd && params.has_flags != 0u {
        atomicOr(&flags[params.at.b6], NON_FINITE);
    }
    of_threads[me.thread] = largest;
    workgroupBarrier();
    if me.thread < params.groups {
        for (var other = me.thread + params.groups; other < THREADS; other += params.groups) {
            largest = max(largest, of_threads[other]);
        }
        keys[group_at(row, chunk, me.thread)] = largest;
    }
}

// The keys to rank: those of the groups, of the list, or of all scores.
const GROUPS = 0u;
const LIST = 1u;
const SCORES = 2u;

fn ranked_key(row: u32, kind: u32, first: u32, i: u32) -> u32 {
    if kind == GROUPS {
        let bits = countTrailingZeros(params.groups);
        return keys[group_at(row, i >> bits, i & (params.groups - 1u))];
    }
    if kind == LIST {
        return keys[list_at(row) + i];
    }
    return sort_key(score_at(row, first + i));
}

// The rank-th largest of `size` keys, and its rank among the keys equal to it. Every thread of a
// workgroup must call this function.
fn find_ranked(row: u32, kind: u32, first: u32, size: u32, rank: u32, thread: u32) -> vec2<u32> {
    var found = vec2(0u, rank);
    for (var low = 32u; low > 0u; low -= 8u) {
        workgroupBarrier();
        if thread < DIGITS {
            atomicStore(&digits[thread], 0u);
        }
        workgroupBarrier();
        // Successive keys with the same digit are added at once: most keys share their first digit.
        var current = 0u;
        var count = 0u;
        for (var i = thread; i < size; i += THREADS) {
            let key = ranked_key(row, kind, first, i);
            // WGSL cannot shift by 32, so the first round is a case of its own: it counts all keys.
            if low == 32u || (key >> low) == found.x {
                let digit = (key >> (low - 8u)) & 255u;
                if digit != current {
                    if count != 0u {
                        atomicAdd(&digits[current], count);
                    }
                    current = digit;
                    count = 0u;
                }
                count += 1u;
            }
        }
        if count != 0u {
            atomicAdd(&digits[current], count);
        }
        workgroupBarrier();
        // Ranks count from the largest digit down.
        let digit = DIGITS - 1u - min(thread, DIGITS - 1u);
        let own = select(0u, atomicLoad(&digits[digit]), thread < DIGITS);
        let before = scan_exclusive(thread, own);
        if before < found.y && before + own >= found.y {
            ranked = vec2((found.x << 8u) | digit, found.y - before);
        }
        found = workgroupUniformLoad(&ranked);
    }
    return found;
}

@compute @workgroup_size(THREADS)
fn bound(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    let state = load_state(row, me.thread);
    let at = state_at(row);
    if state.y <= params.k {
        if me.thread == 0u {
            atomicStore(&work[at + ALL_STAY], 1u);
        }
        return;
    }
    let found = find_ranked(row, GROUPS, 0u, params.chunks * params.groups, params.k, me.thread);
    if me.thread == 0u {
        atomicStore(&work[at + BOUND], found.x);
    }
}

@compute @workgroup_size(THREADS)
fn collect(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let state = load_state(row, me.thread);
    if load_word(row, ALL_STAY, me.thread) != 0u {
        return;
    }
    let bound = load_word(row, BOUND, me.thread);
    if me.thread == 0u {
        atomicStore(&some, 0u);
    }
    workgroupBarrier();
    var above = 0u;
    if keys[group_at(row, chunk, me.thread & (params.groups - 1u))] > bound {
        for (var i = 0u; i < SHARE; i++) {
            let at = turn(chunk, i, me.thread);
            if at < state.y {
                let key = sort_key(score_at(row, state.x + at));
                above |= select(0u, 1u << i, key > bound);
            }
        }
    }
    let count = countOneBits(above);
    var place = 0u;
    if count != 0u {
        place = atomicAdd(&some, count);
    }
    workgroupBarrier();
    if me.thread == 0u {
        row_word = 0u;
        let all = atomicLoad(&some);
        if all != 0u {
            row_word = atomicAdd(&work[state_at(row) + LISTED], all);
        }
    }
    place += workgroupUniformLoad(&row_word);
    while above != 0u && place < params.capacity {
        let at = turn(chunk, firstTrailingBit(above), me.thread);
        keys[list_at(row) + place] = sort_key(score_at(row, state.x + at));
        above &= above - 1u;
        place += 1u;
    }
}

@compute @workgroup_size(THREADS)
fn settle(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    if load_word(row, ALL_STAY, me.thread) != 0u {
        return;
    }
    let bound = load_word(row, BOUND, me.thread);
    let size = load_word(row, LISTED, me.thread);
    var found = vec2(bound, params.k - size);
    if bound == 0u || size > params.capacity {
        // Without scores in k groups there is no bound.
        let state = load_state(row, me.thread);
        found = find_ranked(row, SCORES, state.x, state.y, params.k, me.thread);
    } else if size >= params.k {
        found = find_ranked(row, LIST, 0u, size, params.k, me.thread);
    }
    if me.thread == 0u {
        let at = state_at(row);
        atomicStore(&work[at + 2u], found.x);
        atomicStore(&work[at + 3u], found.y);
    }
}

@compute @workgroup_size(THREADS)
fn count(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let state = load_state(row, me.thread);
    atomicStore(&digits[me.thread], 0u);
    workgroupBarrier();
    var odd = false;
    for (var i = 0u; i < SHARE; i++) {
        let at = chunk * CHUNK + i * THREADS + me.thread;
        if at < state.y {
            let bits = score_at(row, state.x + at);
            odd = odd || is_nan(bits);
            let key = sort_key(bits);
            // WGSL cannot shift by 32, so the first pass is a case of its own: it counts all keys.
            let begins = params.low == 24u || (key >> (params.low + 8u)) == state.z;
            if begins {
                atomicAdd(&digits[(key >> params.low) & 255u], 1u);
            }
        }
    }
    if odd && params.low == 24u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b6], NON_FINITE);
    }
    workgroupBarrier();
    let own = atomicLoad(&digits[me.thread]);
    if own != 0u {
        atomicAdd(&work[counts_at(row) + me.thread], own);
    }
}

@compute @workgroup_size(THREADS)
fn pick(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    let state = load_state(row, me.thread);
    // Ranks count from the largest digit down.
    let digit = DIGITS - 1u - me.thread;
    let own = atomicLoad(&work[counts_at(row) + digit]);
    let before = scan_exclusive(me.thread, own);
    // Cleared for the next `count`.
    atomicStore(&work[counts_at(row) + digit], 0u);
    let at = state_at(row);
    if state.y <= params.k {
        if me.thread == 0u {
            atomicStore(&work[at + 2u], 0u);
        }
    } else if before < state.w && before + own >= state.w {
        atomicStore(&work[at + 2u], (state.z << 8u) | digit);
        atomicStore(&work[at + 3u], state.w - before);
    }
}

fn mark(key: u32, cut: u32) -> u32 {
    return select(select(0u, 0x10000u, key == cut), 1u, key > cut);
}

// Compares this thread's scores of a chunk, which are neighbours, with the cut: the low 16 bits
// mark the scores above the cut, the high 16 bits those equal to it. Every thread must call this
// function.
fn compared(row: u32, chunk: u32, thread: u32, state: vec4<u32>) -> u32 {
    // Neighbouring threads read neighbouring scores: iteration i of a thread sets bit i, or bit 16
    // + i for a score equal to the cut.
    var own = 0u;
    let begin = chunk * CHUNK + thread;
    if (chunk + 1u) * CHUNK <= state.y {
        // Four loads at a time are in flight.
        let at = state.x + begin;
        for (var i = 0u; i < SHARE; i += 4u) {
            let first = score_at(row, at + i * CHUNK_THREADS);
            let second = score_at(row, at + (i + 1u) * CHUNK_THREADS);
            let third = score_at(row, at + (i + 2u) * CHUNK_THREADS);
            let fourth = score_at(row, at + (i + 3u) * CHUNK_THREADS);
            own |= mark(sort_key(first), state.z) << i;
            own |= mark(sort_key(second), state.z) << (i + 1u);
            own |= mark(sort_key(third), state.z) << (i + 2u);
            own |= mark(sort_key(fourth), state.z) << (i + 3u);
        }
    } else {
        for (var i = 0u; i < SHARE; i++) {
            let at = begin + i * CHUNK_THREADS;
            if at < state.y {
                own |= mark(sort_key(score_at(row, state.x + at)), state.z) << i;
            }
        }
    }
    of_threads[thread] = own;
    workgroupBarrier();
    // One iteration of neighbouring threads covers neighbouring scores. Threads that read at the
    // same time start at different words.
    let first = (thread * SHARE) % CHUNK_THREADS;
    let i = thread / (CHUNK_THREADS / SHARE);
    var found = 0u;
    for (var turn = 0u; turn < SHARE; turn++) {
        let j = (turn + thread) % SHARE;
        found |= ((of_threads[first + j] >> i) & 0x10001u) << j;
    }
    return found;
}

@compute @workgroup_size(THREADS)
fn count_chosen(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let state = load_state(row, me.thread);
    let found = compared(row, chunk, me.thread, state);
    keys[group_at(row, chunk, me.thread)] = found;
    // Both sums are at most the size of a chunk, so they share a word.
    let both = countOneBits(found & 0xffffu) | (countOneBits(found >> 16u) << 16u);
    let before = scan_exclusive(me.thread, both);
    if me.thread == THREADS - 1u {
        let all = before + both;
        atomicStore(&work[chosen_at(row, chunk)], all & 0xffffu);
        atomicStore(&work[chosen_at(row, chunk) + 1u], all >> 16u);
    }
}

fn put(row: u32, place: u32, low: u32, high: u32) {
    let at = (params.at.b5 + row * params.index_stride + place) * params.index_words;
    indices[at] = low;
    if params.index_words == 2u {
        indices[at + 1u] = high;
    }
}

@compute @workgroup_size(THREADS)
fn place(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let state = load_state(row, me.thread);
    // The scores of earlier chunks above the cut, and equal to it.
    var earlier = vec2(0u, 0u);
    for (var c = me.thread; c < chunk; c += THREADS) {
        let at = chosen_at(row, c);
        earlier += vec2(atomicLoad(&work[at]), atomicLoad(&work[at + 1u]));
    }
    _ = scan_exclusive(me.thread, earlier.x);
    var above = scan_total();
    workgroupBarrier();
    _ = scan_exclusive(me.thread, earlier.y);
    var equal = scan_total();
    workgroupBarrier();
    let found = keys[group_at(row, chunk, me.thread)];
    let both = countOneBits(found & 0xffffu) | (countOneBits(found >> 16u) << 16u);
    let before = scan_exclusive(me.thread, both);
    above += before & 0xffffu;
    equal += before >> 16u;
    for (var left = (found | (found >> 16u)) & 0xffffu; left != 0u; left &= left - 1u) {
        let j = firstTrailingBit(left);
        let at = chunk * CHUNK + me.thread * SHARE + j;
        if ((found >> j) & 1u) == 1u {
            put(row, above + min(equal, state.w), at, 0u);
            above += 1u;
        } else {
            if equal < state.w {
                put(row, above + equal, at, 0u);
            }
            equal += 1u;
        }
    }
    if chunk == 0u {
        for (var i = state.y + me.thread; i < params.k; i += THREADS) {
            put(row, i, 0xffffffffu, 0xffffffffu);
        }
    }
}
