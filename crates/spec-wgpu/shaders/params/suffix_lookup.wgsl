// Written by `cargo xtask params` from src/ops/suffix_lookup.rs, which a test compares with it.
//!include bound

// What the shader of `suffix_lookup` takes.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // The first request of the window of rows.
    row0: u32,
    // The request after the last of the window of rows.
    row1: u32,
    // Rows of `tokens`.
    texts: u32,
    // The first row of the window of texts.
    slot0: u32,
    // The row after the last of the window of texts.
    slot1: u32,
    // Words of the workspace that a request has.
    row_words: u32,
    // Tokens that a row of `tokens` holds.
    max_len: u32,
    // Tokens from one text to the next.
    tokens_stride: u32,
    // Words of a length.
    length_words: u32,
    // Tokens that the corpus holds.
    corpus_size: u32,
    // Words of the corpus's length.
    corpus_length_words: u32,
    // Tiles of a row of `tokens`.
    own_tiles: u32,
    // Tiles of the corpus.
    corpus_tiles: u32,
    // The shortest match that gives drafts.
    min_match: u32,
    // The longest match whose length is still distinguished from longer ones.
    max_match: u32,
    // The most windows of a request.
    max_windows: u32,
    // The most children of a node.
    width: u32,
    // The least number of windows, in 65536ths of all windows, that a draft needs.
    share_floor: u32,
    // Drafts on a path for each token of the match.
    drafts_per_match: f32,
    // The most offers of a request.
    offers: u32,
    // Nodes that a dispatch grows.
    steps: u32,
    // Columns of `drafts`.
    n: u32,
    // Elements from one row of `drafts` to the next.
    drafts_stride: u32,
    // Elements from one row of `parents` to the next.
    parents_stride: u32,
    // Elements from one row of `shares` to the next.
    shares_stride: u32,
    // Elements from one row of `first_child` to the next.
    first_child_stride: u32,
    // Elements from one row of `next_sibling` to the next.
    next_sibling_stride: u32,
    // Which optional arguments are there: HAS_ bits.
    has: u32,
}
