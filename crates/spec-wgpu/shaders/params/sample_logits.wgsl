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
    // Tokens that each row draws.
    draws: u32,
    // Likeliest tokens that each row reports.
    top: u32,
    // The first step of selecting in rows that a dispatch takes.
    first_step: u32,
    // The step after the last.
    end_step: u32,
    // Where the partial results start in the workspace, in words, behind the states.
    partials: u32,
    // Where the largest keys of groups that are allowed start in the workspace, in words.
    maxima: u32,
    // The same of all keys, which is the same place where all are allowed or nothing is reported.
    raw_maxima: u32,
    // Where the bounds of groups start in the workspace, in words.
    bounds: u32,
    // Where the rows' tokens start in the workspace, in words.
    drawn: u32,
    // Where the summaries of chunks start in the workspace, in words.
    summaries: u32,
    // Where the lists start in the workspace, in words.
    lists: u32,
    // Groups of a row, a multiple of 4.
    groups: u32,
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
    // Tokens from one row to the next in the window.
    tokens_stride: u32,
    // Probabilities from one row to the next in the window.
    probs_stride: u32,
    // The same of `logprobs`.
    logprobs_stride: u32,
    // The same of `processed_logprobs`.
    processed_stride: u32,
    // The same of `ranks`.
    ranks_stride: u32,
    // The same of `top_tokens`.
    top_tokens_stride: u32,
    // The same of `top_logprobs`.
    top_logprobs_stride: u32,
    // Where the copies of rows start in the workspace, in words.
    values: u32,
    // Where the tokens of columns start in the workspace, in words.
    column_tokens: u32,
    // Where the bits of columns that are allowed start in the workspace, in words.
    allowed: u32,
    // Where the times of columns start in the workspace, in words.
    times: u32,
    // The token of column 0, where no ids are given.
    first_token: u32,
    // Ids from one row to the next in the window; 0 for the ids of all rows.
    ids_stride: u32,
    // Words of an id.
    ids_words: u32,
    // Words of a row of the mask.
    mask_words: u32,
    // Kept tokens that each row lists.
    kept: u32,
    // Kept tokens from one row to the next in the window.
    kept_stride: u32,
}
