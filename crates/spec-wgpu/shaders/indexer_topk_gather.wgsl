//!include params/indexer_topk_gather
//!include params/shared
//!include floats
//!include integers
// indexer_topk: the scores of the chosen positions, and the slots where a paged cache keeps them.
// Runs after the passes that choose, and only where `values` or `slots` is asked for.
//
// `finish` does the same where not each score of a row stands for a position: it also writes the
// blocks that are always chosen, and the positions of covered columns. The passes that choose have
// written what they chose behind the first `forced_first` indices of a row, counted from there.
//
// A thread per output. Values are written as bits, so that subnormals survive every driver.
//
// Bytes moved: each index and each output once; for each index a score and an entry of the table,
// whose neighbours are mostly wanted by neighbouring threads.

override DTYPE = 0u;

@group(0) @binding(0) var<uniform> params: Gather;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
// For `finish`, the notes that indexer_topk_blocks.wgsl describes.
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read_write> indices: array<u32>;
@group(0) @binding(4) var<storage, read> block_table: array<i32>;
@group(0) @binding(5) var<storage, read> requests: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;
@group(0) @binding(7) var<storage, read_write> slots: array<i32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

const NONE = 0xffffffffu;
const NEGATIVE_INFINITY = 0xff800000u;
const LARGEST_SLOT = 0x7fffffffu;

fn has(bit: u32) -> bool {
    return (params.has & bit) != 0u;
}

fn start_of(row: u32) -> u32 {
    let words = params.start_words;
    if words == 0u {
        return 0u;
    }
    let at = (params.at.b2 + row) * words;
    return cut_length(integer(starts[at], starts[at + words - 1u], words), params.cols);
}

fn raise(bits: u32) {
    if has(HAS_FLAGS) {
        atomicOr(&flags[params.at.b8], bits);
    }
}

// The slot of a position, or -1.
fn slot_of(request: u32, position: u32) -> i32 {
    let at = position / params.block_size;
    let offset = position % params.block_size;
    if at < params.blocks {
        let block = block_table[params.at.b4 + request * params.table_stride + at];
        // The bound keeps the product from overflowing.
        if block >= 0 && u32(block) <= (LARGEST_SLOT - offset) / params.block_size {
            return i32(u32(block) * params.block_size + offset);
        }
    }
    raise(OUT_OF_RANGE);
    return -1;
}

// The bits of score `i` of a row, counted from the row's first element.
fn score_at(row: u32, i: u32) -> u32 {
    let at = params.at.b1 + row * params.stride + i;
    return float_bits(scores[float_word(at, DTYPE)], at, DTYPE);
}

fn put_value(row: u32, i: u32, bits: u32) {
    values[params.at.b6 + row * params.value_stride + i] =
        select(bits, NEGATIVE_INFINITY, is_nan(bits));
}

// Writes the slot of a position. An output behind the last position has none.
fn put_slot(row: u32, i: u32, position: u32, is_position: bool) {
    var request = row;
    if has(HAS_REQUESTS) {
        request = requests[params.at.b5 + row];
    }
    var slot = -1;
    // A negative request is a large unsigned number.
    if request >= params.tables {
        raise(BAD_LENGTHS);
    } else if is_position {
        slot = slot_of(request, position);
    }
    slots[params.at.b7 + row * params.slot_stride + i] = slot;
}

@compute @workgroup_size(GATHER_THREADS)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let output = group_index(group, groups) * GATHER_THREADS + thread;
    if output >= params.rows * params.k {
        return;
    }
    let row = output / params.k;
    let i = output % params.k;
    let start = start_of(row);
    // The low word of -1, behind the last position, is beyond any row.
    let position = indices[(params.at.b3 + row * params.index_stride + i) * params.index_words];
    let is_position = position < params.cols - start;
    if has(HAS_VALUES) {
        var bits = NEGATIVE_INFINITY;
        if is_position {
            bits = score_at(row, start + position);
        }
        put_value(row, i, bits);
    }
    if has(HAS_SLOTS) {
        put_slot(row, i, position, is_position);
    }
}

@compute @workgroup_size(GATHER_THREADS)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let output = group_index(group, groups) * GATHER_THREADS + thread;
    if output >= params.rows * params.k {
        return;
    }
    let row = output / params.k;
    let i = output % params.k;
    let count = starts[params.at.b2 + 2u * params.noted + row];
    let first = min(params.forced_first, count);
    let last = min(params.forced_last, count - first);
    let chosen = first + min(params.room, count - first - last);
    let at = (params.at.b3 + row * params.index_stride + i) * params.index_words;
    // What the output stands for among the row's blocks or covered columns.
    var item = NONE;
    if i < first {
        item = i;
    } else if i < chosen {
        item = indices[at] + first;
    } else if i < chosen + last {
        item = count - last + (i - chosen);
    }
    let is_item = item < count;
    var index = select(NONE, item, is_item);
    if is_item && has(HAS_POSITIONS) {
        index = starts[params.at.b2 + 3u * params.noted + row * params.stride + item];
    }
    indices[at] = index;
    if params.index_words == 2u {
        indices[at + 1u] = select(NONE, 0u, is_item);
    }
    let is_forced = i < first || i >= chosen;
    if is_forced || has(HAS_VALUES) {
        var bits = NEGATIVE_INFINITY;
        if is_item {
            bits = score_at(row, starts[params.at.b2 + row] - first + item);
        }
        // The passes that choose have not seen this score.
        if is_forced && is_nan(bits) {
            raise(NON_FINITE);
        }
        if has(HAS_VALUES) {
            put_value(row, i, bits);
        }
    }
    if has(HAS_SLOTS) {
        put_slot(row, i, index, is_item);
    }
}
