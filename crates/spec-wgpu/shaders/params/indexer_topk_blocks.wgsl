// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;

// What the shaders take that run before those that choose.
struct Blocks {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Rows.
    rows: u32,
    // Scores of a row.
    cols: u32,
    // Scores from one row to the next.
    stride: u32,
    // Words of a length; 0: there are none.
    length_words: u32,
    // Words of a start; 0: there are none.
    start_words: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
    // Scores of a block.
    pool: u32,
    // How many of the first blocks are always chosen.
    forced_first: u32,
    // How many of the last blocks are always chosen.
    forced_last: u32,
    // The scores of a row in the workspace.
    width: u32,
    // Rows, rounded up to the alignment of a binding.
    noted: u32,
    // Candidates of a row.
    c: u32,
    // Candidates from one row to the next.
    candidate_stride: u32,
    // Positions of a candidate, at least 1.
    block: u32,
}
