//!include params/indexer_topk_gather
//!include floats
//!include integers
// indexer_topk: the scores of the chosen positions, and the slots where a paged cache keeps them.
// Runs after the passes that choose, and only where `values` or `slots` is asked for.
//
// A thread per output. Values are written as bits, so that subnormals survive every driver.
//
// Bytes moved: each index and each output once; for each index a score and an entry of the table,
// whose neighbours are mostly wanted by neighbouring threads.

override DTYPE = 0u;
const THREADS = 256u;

@group(0) @binding(0) var<uniform> params: Gather;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> indices: array<u32>;
@group(0) @binding(4) var<storage, read> block_table: array<i32>;
@group(0) @binding(5) var<storage, read> requests: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;
@group(0) @binding(7) var<storage, read_write> slots: array<i32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

const HAS_REQUESTS = 1u;
const HAS_VALUES = 2u;
const HAS_SLOTS = 4u;
const HAS_FLAGS = 8u;

const OUT_OF_RANGE = 2u;
const BAD_LENGTHS = 4u;
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

@compute @workgroup_size(THREADS)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let output = group_index(group, groups) * THREADS + thread;
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
            let at = params.at.b1 + row * params.stride + start + position;
            bits = float_bits(scores[float_word(at, DTYPE)], at, DTYPE);
        }
        if is_nan(bits) {
            bits = NEGATIVE_INFINITY;
        }
        values[params.at.b6 + row * params.value_stride + i] = bits;
    }
    if has(HAS_SLOTS) {
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
}
