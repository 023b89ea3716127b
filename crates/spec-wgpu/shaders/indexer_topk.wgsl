//!include bound
//!include scan
//!include floats
// indexer_topk: the positions of the k largest scores of each row, ascending.
//
// A radix select: four times, `count` counts the next eight bits of the keys that
// begin as those found so far, and `pick` finds the digit at which the k-th lies.
// Then the larger keys stay, and the first of those that are equal:
//
// * `clear`   a workgroup a row: its counts and its state; its range.
// * `count`   a workgroup a chunk of a row, in workgroup memory first.
// * `pick`    a workgroup a row, a thread a digit.
// * `tally`   a workgroup a chunk: how many of its keys are above the k-th, and equal.
// * `place`   a workgroup a chunk: behind what chunks before it have.
//
// A row that has at most k scores keeps all: its cut is below every key.
//
// workspace   [rows] states, [rows][256] counts, [rows][chunks] tallies of two words
//
// Bytes moved: each score six times, of which the first comes from memory where a
// window of rows fits the cache.

const THREADS = 256u;

struct Params {
    at: At,
    cols: u32,
    k: u32,
    stride: u32,
    chunks: u32,
    dtype: u32,
    // Words of a length and of a start; 0 where there are none.
    length_words: u32,
    start_words: u32,
    index_words: u32,
    index_stride: u32,
    has_flags: u32,
    // Bits of a key below the digit of this pass.
    low: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read> scores: array<u32>;
@group(0) @binding(3) var<storage, read> lengths: array<u32>;
@group(0) @binding(4) var<storage, read> starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> indices: array<u32>;
@group(0) @binding(6) var<storage, read_write> flags: array<atomic<u32>>;

const NON_FINITE = 1u;
const BAD_LENGTHS = 4u;

// Scores of a thread in a chunk, which are neighbours.
const SHARE = 16u;
const CHUNK = 4096u;

// Words of a row's state: the first score, how many, the key found so far, and how many
// of the keys that begin so are to stay.
const STATE = 4u;
const DIGITS = 256u;

var<workgroup> digits: array<atomic<u32>, DIGITS>;
var<workgroup> row_state: vec4<u32>;

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

fn tally_at(row: u32, chunk: u32) -> u32 {
    return params.at.b1 + params.rows * (STATE + DIGITS) + (row * params.chunks + chunk) * 2u;
}

// A length or start cut to 0 ..= most, and whether it was.
fn cut(low: u32, high: u32, most: u32) -> vec2<u32> {
    if high != 0u {
        // Negative, or beyond 32 bits.
        return vec2(select(most, 0u, (high >> 31u) == 1u), 1u);
    }
    return vec2(min(low, most), select(0u, 1u, low > most));
}

// The word above one of 32 bits.
fn sign(low: u32) -> u32 {
    return select(0u, 0xffffffffu, (low >> 31u) == 1u);
}

// The bits of score `i` of a row, counted from the row's first element.
fn score_at(row: u32, i: u32) -> u32 {
    let at = params.at.b2 + row * params.stride + i;
    return float_bits(scores[float_word(at, params.dtype)], at, params.dtype);
}

// The row's state, the same for the whole workgroup.
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

@compute @workgroup_size(THREADS)
fn clear(me: Invocation) {
    let row = group_index(me.group, me.groups);
    if row >= params.at.groups {
        return;
    }
    atomicStore(&work[counts_at(row) + me.thread], 0u);
    if me.thread != 0u {
        return;
    }
    var first = vec2(0u, 0u);
    if params.start_words != 0u {
        let at = (params.at.b4 + row) * params.start_words;
        let low = starts[at];
        let high = select(sign(low), starts[at + params.start_words - 1u], params.start_words == 2u);
        first = cut(low, high, params.cols);
    }
    var count = vec2(params.cols - first.x, 0u);
    if params.length_words != 0u {
        let at = (params.at.b3 + row) * params.length_words;
        let low = lengths[at];
        let high = select(sign(low), lengths[at + params.length_words - 1u], params.length_words == 2u);
        count = cut(low, high, params.cols - first.x);
    }
    if (first.y | count.y) != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b6], BAD_LENGTHS);
    }
    let at = state_at(row);
    atomicStore(&work[at], first.x);
    atomicStore(&work[at + 1u], count.x);
    atomicStore(&work[at + 2u], 0u);
    atomicStore(&work[at + 3u], params.k);
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
            // Shifting by 32 is none: the first pass counts all.
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
    // From the largest digit down.
    let digit = DIGITS - 1u - me.thread;
    let own = atomicLoad(&work[counts_at(row) + digit]);
    let before = scan_exclusive(me.thread, own);
    // Cleared for the next pass.
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

// This thread's scores of a chunk: bits of those above the cut, and of those at it.
fn compared(row: u32, chunk: u32, thread: u32, state: vec4<u32>) -> vec2<u32> {
    var found = vec2(0u, 0u);
    for (var j = 0u; j < SHARE; j++) {
        let at = chunk * CHUNK + thread * SHARE + j;
        if at < state.y {
            let key = sort_key(score_at(row, state.x + at));
            found |= vec2(select(0u, 1u, key > state.z), select(0u, 1u, key == state.z)) << vec2(j);
        }
    }
    return found;
}

@compute @workgroup_size(THREADS)
fn tally(me: Invocation) {
    let job = group_index(me.group, me.groups);
    if job >= params.at.groups {
        return;
    }
    let row = job / params.chunks;
    let chunk = job % params.chunks;
    let state = load_state(row, me.thread);
    let found = compared(row, chunk, me.thread, state);
    // Both sums are at most a chunk, and share a word.
    let both = countOneBits(found.x) | (countOneBits(found.y) << 16u);
    let before = scan_exclusive(me.thread, both);
    if me.thread == THREADS - 1u {
        let all = before + both;
        atomicStore(&work[tally_at(row, chunk)], all & 0xffffu);
        atomicStore(&work[tally_at(row, chunk) + 1u], all >> 16u);
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
    // What chunks before have above the cut, and at it.
    var earlier = vec2(0u, 0u);
    for (var c = me.thread; c < chunk; c += THREADS) {
        let at = tally_at(row, c);
        earlier += vec2(atomicLoad(&work[at]), atomicLoad(&work[at + 1u]));
    }
    _ = scan_exclusive(me.thread, earlier.x);
    var above = scan_total();
    workgroupBarrier();
    _ = scan_exclusive(me.thread, earlier.y);
    var equal = scan_total();
    workgroupBarrier();
    let found = compared(row, chunk, me.thread, state);
    let both = countOneBits(found.x) | (countOneBits(found.y) << 16u);
    let before = scan_exclusive(me.thread, both);
    above += before & 0xffffu;
    equal += before >> 16u;
    for (var j = 0u; j < SHARE; j++) {
        let at = chunk * CHUNK + me.thread * SHARE + j;
        if ((found.x >> j) & 1u) == 1u {
            put(row, above + min(equal, state.w), at, 0u);
            above += 1u;
        } else if ((found.y >> j) & 1u) == 1u {
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
