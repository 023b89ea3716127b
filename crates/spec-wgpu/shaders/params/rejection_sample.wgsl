// Written by `cargo xtask params` from src/ops/rejection_sample.rs, which a test compares with it.
//!include bound

// What the shaders of `rejection_sample` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Requests.
    requests: u32,
    // Draft tokens of all requests.
    tokens: u32,
    // Tokens of the vocabulary.
    vocab: u32,
    // The most drafts of a request.
    max_spec_len: u32,
    // Rows to scan: requests, or draft tokens where it is for greedy requests.
    jobs: u32,
    // Entries of a chunk, a multiple of 256.
    chunk: u32,
    // Chunks of a row.
    chunks: u32,
    // Words of a draft token.
    ids_words: u32,
    // Words of a bonus token.
    bonus_words: u32,
    // Words of an offset.
    cu_words: u32,
    // Words of a position.
    positions_words: u32,
    // Words of a token that is emitted.
    output_words: u32,
    // Words of a truth value; 0: it is a byte.
    greedy_words: u32,
    // 1 where the offsets begin with a 0, else 0.
    leading: u32,
    // 1 where `uniform_samples` is there, else 0.
    has_uniform: u32,
    // Where the gathered probabilities of the target start in the workspace, in words.
    gathered: u32,
    // The same of the draft.
    draft_gathered: u32,
    // Where the largest entries start in the workspace, in words.
    tops: u32,
    // Where the requests' states start in the workspace, in words.
    states: u32,
    // Where the partial results start in the workspace, in words.
    partials: u32,
    // Where the largest residuals of groups start in the workspace, in words.
    maxima: u32,
    // Where the bounds of groups start in the workspace, in words.
    bounds: u32,
    // Groups of a row, a multiple of 4.
    groups: u32,
    // The first row of the window.
    row0: u32,
    // The row after the last of the window.
    row1: u32,
    // The first chunk of the window.
    chunk0: u32,
    // The chunk after the last of the window.
    chunk1: u32,
    // Entries from one row of the target to the next in the window.
    target_stride: u32,
    // The same of the draft.
    draft_stride: u32,
    // Tokens from one row of the output to the next.
    output_stride: u32,
}
