// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup in passes with one thread per request or per token.
const SMALL = 64u;
// The number of threads that scan a chunk. A chunk is a multiple of this number.
const SCAN_THREADS = 256u;
// 32-bit words of the workspace for what one pass over a request hands on to the next.
const STATE = 13u;
// 32-bit words of a chunk's partial result.
const PARTIAL = 5u;
// What `scan` looks for: the residual's argmax, a draw from the residual, or whole rows for greedy
// acceptance.
const ARGMAX = 0u;
const SAMPLE = 1u;
const GREEDY = 2u;
// The bits of 2^-40, the least residual that can be drawn.
const MIN_RESIDUAL = 729808896u;

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
    // Entries of a chunk, a multiple of `SCAN_THREADS`.
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
