//!include params/indexer_topk_blocks
//!include params/shared
//!include scan
//!include floats
//!include integers
// indexer_topk: what is done before the passes that choose, where not each score of a row stands for
// a position. The passes that choose then take rows of f32 from the workspace, or the caller's
// scores without the blocks that are always chosen.
//
// * `ranges`   a thread per row: the row's range, where a block is a position.
// * `pool`     a thread per block: the score of the block. The thread of a row's first block writes
//              the row's range.
// * `offsets`  a workgroup per row: how many covered columns precede each candidate.
// * `compact`  a thread per column: copies the score and the position of a covered column behind
//              those before it.
//
// notes   [noted] starts and [noted] lengths of what the scores decide, [noted] numbers of blocks or
//         of covered columns; then, with candidates, [rows][width] positions. `noted` is the number
//         of rows, rounded up to the alignment of a binding.
//
// Bytes moved: each score once, and each score of a block or a covered column once more.

override DTYPE = 0u;

@group(0) @binding(0) var<uniform> params: Blocks;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> lengths: array<u32>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<storage, read> candidates: array<i32>;
@group(0) @binding(5) var<storage, read_write> notes: array<u32>;
// The scores of blocks or of covered columns, as bits.
@group(0) @binding(6) var<storage, read_write> pooled: array<u32>;
// The number of covered columns before each candidate.
@group(0) @binding(7) var<storage, read_write> befores: array<u32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

const NEGATIVE_INFINITY = 0xff800000u;
const END_OF_POSITIONS = 0x80000000u;

fn raise(bits: u32) {
    if bits != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b8], bits);
    }
}

// The bits of score `i` of a row, counted from the row's first element.
fn score_at(row: u32, i: u32) -> u32 {
    let at = params.at.b1 + row * params.stride + i;
    return float_bits(scores[float_word(at, DTYPE)], at, DTYPE);
}

fn length_of(row: u32) -> vec2<u32> {
    let words = params.length_words;
    let at = (params.at.b2 + row) * words;
    return integer(lengths[at], lengths[at + words - 1u], words);
}

// A row's first score, its number of scores, and whether either was cut.
fn range_of(row: u32) -> vec3<u32> {
    var first = 0u;
    var any_cut = false;
    if params.start_words != 0u {
        let words = params.start_words;
        let at = (params.at.b3 + row) * words;
        let given = integer(starts[at], starts[at + words - 1u], words);
        first = cut_length(given, params.cols);
        any_cut = is_cut(given, first);
    }
    var count = params.cols - first;
    if params.length_words != 0u {
        let given = length_of(row);
        count = cut_length(given, params.cols - first);
        any_cut = any_cut || is_cut(given, count);
    }
    return vec3(first, count, u32(any_cut));
}

// Notes the range of `count` blocks, of which the first has the score `start`.
fn note(row: u32, start: u32, count: u32) {
    let first = min(params.forced_first, count);
    let last = min(params.forced_last, count - first);
    notes[params.at.b5 + row] = start + first;
    notes[params.at.b5 + params.noted + row] = count - first - last;
    notes[params.at.b5 + 2u * params.noted + row] = count;
}

@compute @workgroup_size(THREADS)
fn ranges(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * THREADS + thread;
    if row >= params.rows {
        return;
    }
    let range = range_of(row);
    raise(range.z * BAD_LENGTHS);
    note(row, range.x, range.y);
}

@compute @workgroup_size(THREADS)
fn pool(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups) * THREADS + thread;
    // A row without columns has a thread too, which notes the range.
    let width = max(params.width, 1u);
    let row = job / width;
    if row >= params.rows {
        return;
    }
    let block = job - row * width;
    let range = range_of(row);
    if block == 0u {
        raise(range.z * BAD_LENGTHS);
        note(row, 0u, (range.y + params.pool - 1u) / params.pool);
    }
    let begin = block * params.pool;
    if begin >= range.y {
        return;
    }
    var odd = false;
    var best = score_at(row, range.x + begin);
    var key = sort_key(best);
    for (var i = begin; i < min(begin + params.pool, range.y); i++) {
        let bits = score_at(row, range.x + i);
        odd = odd || is_nan(bits);
        if sort_key(bits) > key {
            key = sort_key(bits);
            best = bits;
        }
    }
    if is_nan(best) {
        best = NEGATIVE_INFINITY;
    }
    if params.pool > 1u && (best << 1u) == 0u {
        best = 0u;
    }
    pooled[params.at.b6 + row * params.width + block] = best;
    raise(u32(odd) * NON_FINITE);
}

// How many of a candidate's columns are covered in a row of `length` positions.
fn covered(candidate: i32, length: u32) -> u32 {
    // The first comparison keeps the product from overflowing.
    if candidate < 0 || u32(candidate) >= (length + params.block - 1u) / params.block {
        return 0u;
    }
    return min(length - u32(candidate) * params.block, params.block);
}

fn positions_of(row: u32) -> u32 {
    if params.length_words == 0u {
        return END_OF_POSITIONS;
    }
    return cut_length(length_of(row), END_OF_POSITIONS);
}

@compute @workgroup_size(THREADS)
fn offsets(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    if row >= params.at.groups {
        return;
    }
    let length = positions_of(row);
    var bits = 0u;
    if params.length_words != 0u && bitcast<i32>(length_of(row).y) < 0 {
        bits = BAD_LENGTHS;
    }
    var count = 0u;
    for (var begin = 0u; begin < params.c; begin += THREADS) {
        let at = begin + thread;
        var own = 0u;
        if at < params.c {
            let candidate = candidates[params.at.b4 + row * params.candidate_stride + at];
            own = covered(candidate, length);
            // The quotient is the first candidate with a position of 2^31 or more.
            let is_far = candidate >= 0 && u32(candidate) >= END_OF_POSITIONS / params.block;
            if candidate < -1 || is_far {
                bits |= OUT_OF_RANGE;
            }
        }
        let before = scan_exclusive(thread, own);
        if at < params.c {
            befores[params.at.b7 + row * params.c + at] = count + before;
        }
        count += scan_total();
        workgroupBarrier();
    }
    raise(bits);
    if thread == 0u {
        note(row, 0u, count);
    }
}

@compute @workgroup_size(THREADS)
fn compact(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups) * THREADS + thread;
    let row = job / params.cols;
    if row >= params.rows {
        return;
    }
    let column = job - row * params.cols;
    let list = column / params.block;
    let offset = column - list * params.block;
    let candidate = candidates[params.at.b4 + row * params.candidate_stride + list];
    if offset >= covered(candidate, positions_of(row)) {
        return;
    }
    let place = befores[params.at.b7 + row * params.c + list] + offset;
    pooled[params.at.b6 + row * params.width + place] = score_at(row, column);
    notes[params.at.b5 + 3u * params.noted + row * params.width + place] =
        u32(candidate) * params.block + offset;
}
