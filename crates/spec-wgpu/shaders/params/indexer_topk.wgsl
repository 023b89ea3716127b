// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Scores of a chunk.
const CHUNK = 4096u;
// Threads of a workgroup that handles a chunk.
const CHUNK_THREADS = 256u;
// 32-bit words of a row's state.
const STATE = 8u;
// Values of a digit.
const DIGITS = 256u;

// What the shaders of `indexer_topk` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Scores of a row.
    cols: u32,
    // How many scores are asked for.
    k: u32,
    // Scores from one row to the next.
    stride: u32,
    // Chunks of a row.
    chunks: u32,
    // Words of a length; 0: there are none.
    length_words: u32,
    // Words of a start; 0: there are none.
    start_words: u32,
    // Words of an index.
    index_words: u32,
    // Indices from one row to the next.
    index_stride: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
    // Bits of a key below the digit of this pass.
    low: u32,
    // Rows.
    rows: u32,
    // Keys of a part's groups, a power of two of at most CHUNK_THREADS.
    groups: u32,
    // Keys of a list.
    capacity: u32,
}
