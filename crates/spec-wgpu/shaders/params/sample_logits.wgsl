// Written by `cargo xtask params` from src/ops/sample_logits.rs, which a test compares with it.
//!include bound

// What the shaders of `sample_logits` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Tokens of the vocabulary.
    vocab: u32,
    // Requests.
    requests: u32,
    // Logits of a chunk, a multiple of 256.
    chunk: u32,
    // Chunks of a row.
    chunks: u32,
    // Words of a position.
    position_words: u32,
    // Words of a row's request.
    request_words: u32,
    // Words of a token.
    token_words: u32,
    // 1 where min-p filters before top-k and top-p, else 0.
    min_p_first: u32,
    // Which optional arguments are there: HAS_ bits.
    has: u32,
    // What a sum is of: a PURPOSE_.
    purpose: u32,
    // The first step of selecting in rows that a dispatch takes.
    first_step: u32,
    // The step after the last.
    end_step: u32,
    // Where the partial results start in the workspace, in words, behind the states.
    partials: u32,
    // Where the largest keys of groups start in the workspace, in words.
    maxima: u32,
    // Groups of a chunk, a power of two.
    groups: u32,
    // Where the lists start in the workspace, in words.
    lists: u32,
    // Entries of a list.
    capacity: u32,
    // The first row of the window.
    row0: u32,
    // The row after the last of the window.
    row1: u32,
    // Logits from one row to the next in the window.
    logits_stride: u32,
    // Words from one row of the mask to the next in the window.
    mask_stride: u32,
    // Probabilities from one row to the next in the window.
    probs_stride: u32,
}
