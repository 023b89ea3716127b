// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 64u;
// Bits of `has`: the arguments that are there, and their form.
const HAS_FLAGS = 1u;
const HAS_OFFSETS = 2u;
const PACKED_DRAFT = 4u;

// What the shader of `tree_verify` takes.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Requests of the window.
    requests: u32,
    // Nodes of a tree, its root included; the largest u32 where draft tokens are packed.
    nodes: u32,
    // The most drafts on a path.
    max_depth: u32,
    // Which optional arguments are there: HAS_ bits. PACKED_DRAFT where draft tokens are packed.
    has: u32,
    // Packed rows.
    rows: u32,
    // Words of an offset of rows.
    offset_words: u32,
    // Words of an element of `draft_tokens`; then elements from one row to the next.
    draft_words: u32,
    draft_stride: u32,
    // The same of `target_tokens`.
    target_words: u32,
    target_stride: u32,
    // The same of `first_child`.
    first_child_words: u32,
    first_child_stride: u32,
    // The same of `next_sibling`.
    next_sibling_words: u32,
    next_sibling_stride: u32,
    // The same of `tokens`.
    tokens_words: u32,
    tokens_stride: u32,
    // The same of `nodes`.
    path_words: u32,
    path_stride: u32,
}
