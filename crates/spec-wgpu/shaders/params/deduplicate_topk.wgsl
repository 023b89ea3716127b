// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// What the shaders of `deduplicate_topk` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Rows of a request.
    rows: u32,
    // Values of a row.
    k: u32,
    // Values from one row to the next.
    input_stride: u32,
    // Values from one request's output to the next.
    output_stride: u32,
    // Values of a request: rows * k.
    n: u32,
    // Values that are sorted at once, a power of two: TILE, or less where n is less.
    sort_size: u32,
    // 1 where `counts` is there, else 0.
    has_counts: u32,
    // The most turns that a bitmap may take.
    max_turns: u32,
    // Places from one row of `inverse` to the next.
    inverse_stride: u32,
    // Requests of this dispatch, for `locate`.
    requests: u32,
}
