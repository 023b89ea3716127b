// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup, one for each request.
const THREADS = 64u;
// 32-bit words that the first pass stores per request for the second pass.
const REQUEST_WORDS = 3u;
// Values of `finished`: the request goes on, met a stop token, or reached its length limit.
const RUNNING = 0u;
const STOPPED = 1u;
const AT_LENGTH = 2u;

// What the shaders of `append_tokens` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Requests of this dispatch.
    requests: u32,
    // Tokens that a row of `tokens` holds.
    max_len: u32,
    // Columns of `new_tokens`.
    n: u32,
    // Columns of `stop_tokens`.
    stops: u32,
    // Words of an element of `tokens`; then elements from one row to the next.
    tokens_words: u32,
    tokens_stride: u32,
    // The same of `new_tokens`.
    new_words: u32,
    new_stride: u32,
    // The same of `stop_tokens`.
    stop_words: u32,
    stop_stride: u32,
    // Words of an element of `lengths`.
    length_words: u32,
    // Words of an element of `new_counts`.
    count_words: u32,
    // Words of an element of `max_lengths`, 0 where it is absent.
    max_words: u32,
    // 1 where `finished` is there, else 0.
    has_finished: u32,
    // 1 where `last_tokens` is there, else 0.
    has_last: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
}
