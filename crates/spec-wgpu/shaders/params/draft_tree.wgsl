// Written by `cargo xtask params` from src/ops/draft_tree.rs, which a test compares with it.
//!include bound

// What the shader of `draft_tree` takes.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // The number of requests.
    requests: u32,
    // Words of the workspace that a request has.
    row_words: u32,
    // Columns of `candidates`.
    c: u32,
    // Columns of `drafts`.
    n: u32,
    // Packed rows that the outputs hold.
    cap: u32,
    // Drafts of each request that come before all others.
    min_drafts: u32,
    // The bits of the least survival of a draft.
    min_survival: u32,
    // Elements from one row of `candidates` to the next.
    candidates_stride: u32,
    // Elements from one row of `parents` to the next.
    parents_stride: u32,
    // Words of an element of `parents`.
    parents_words: u32,
    // Elements from one row of `shares` to the next.
    shares_stride: u32,
    // Words of an element of `counts`.
    count_words: u32,
    // Words of an element of `starts` and `row_positions`.
    start_words: u32,
    // Elements from one row of `drafts` to the next.
    drafts_stride: u32,
    // Elements from one row of `picked` to the next.
    picked_stride: u32,
    // Elements from one row of `draft_parents` to the next.
    draft_parents_stride: u32,
    // Elements from one row of `survivals` to the next.
    survivals_stride: u32,
    // Elements from one row of `depths` to the next.
    depths_stride: u32,
    // Elements from one row of `first_child` to the next.
    first_child_stride: u32,
    // Elements from one row of `next_sibling` to the next.
    next_sibling_stride: u32,
    // Words from the masks of one request to those of the next.
    masks_stride: u32,
    // Words from the mask of one node to that of the next.
    mask_stride: u32,
    // Which arguments are there: HAS_ bits.
    has: u32,
}
