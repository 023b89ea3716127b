// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// The number of threads that search a block. A block is a multiple of this number.
const SEARCH_THREADS = 256u;
// 32-bit words of the workspace for what one pass over a request hands on to the next.
const STATE = 14u;
// Bits of `form`: `requests` says which row each text has.
const MAPPED = 1u;
// `max_drafts` has limits.
const LIMITED = 2u;
// A text's last token stands behind its drafts.
const PAD_WITH_LAST = 4u;
// A number of `requests` has two words.
const WIDE_REQUESTS = 8u;

// What the shaders of every operator that searches take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Requests.
    requests: u32,
    // Tokens of a row of prompts.
    input_cols: u32,
    // Tokens of a row of generated tokens.
    generated_cols: u32,
    // Tokens of a row of drafts.
    draft_cols: u32,
    // Tokens of the longest pattern.
    max_ngram: u32,
    // Tokens of the shortest pattern.
    min_ngram: u32,
    // The budget of all requests, in tokens; the bits of an i32.
    threshold: u32,
    // The most drafts of a request, by the options of the operator.
    max_draft_tokens: u32,
    // Words of a length.
    length_words: u32,
    // Tokens of a block.
    block: u32,
    // Blocks of a row's prompt.
    input_blocks: u32,
    // Blocks of a row: those of the prompt, then those of the generated tokens.
    blocks: u32,
    // Where the partial results start in the workspace, in words.
    partials: u32,
    // The first row of the window.
    row0: u32,
    // The row after the last of the window.
    row1: u32,
    // Tokens from one row of prompts to the next in the window.
    input_stride: u32,
    // The same of generated tokens.
    generated_stride: u32,
    // The same of drafts.
    draft_stride: u32,
    // 1 where a pass `divide` sums up the budget, else 0.
    shared_budget: u32,
    // The form of a call of `prompt_lookup`: MAPPED and other bits.
    form: u32,
    // Rows of prompts.
    texts: u32,
    // The first row of the window of prompts.
    slot0: u32,
    // The row after the last of the window of prompts.
    slot1: u32,
}
