// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const GATHER_THREADS = 256u;
// Bits of `has`: the arguments that are there.
const HAS_REQUESTS = 1u;
const HAS_VALUES = 2u;
const HAS_SLOTS = 4u;
const HAS_FLAGS = 8u;
const HAS_POSITIONS = 16u;

// What the shader takes that gathers values and slots.
struct Gather {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Rows.
    rows: u32,
    // Scores of a row.
    cols: u32,
    // Positions of a row.
    k: u32,
    // Scores from one row to the next.
    stride: u32,
    // Words of a start; 0: there are none.
    start_words: u32,
    // Words of an index.
    index_words: u32,
    // Indices from one row to the next.
    index_stride: u32,
    // Values from one row to the next.
    value_stride: u32,
    // Slots from one row to the next.
    slot_stride: u32,
    // Tables.
    tables: u32,
    // Blocks of a table.
    blocks: u32,
    // Blocks from one table to the next.
    table_stride: u32,
    // Positions in a block, at least 1.
    block_size: u32,
    // Which optional arguments are there: HAS_ bits.
    has: u32,
    // For `finish`: rows, rounded up to the alignment of a binding.
    noted: u32,
    // For `finish`: how many of the first blocks are always chosen.
    forced_first: u32,
    // For `finish`: how many of the last blocks are always chosen.
    forced_last: u32,
    // For `finish`: how many of the others are chosen, if there are enough.
    room: u32,
}
