// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads that go over a chunk. A chunk is a multiple of this number.
const THREADS = 256u;
// 32-bit words of the workspace for what the passes over a row hand on: its options, bounds and
// sums.
const STATE = 64u;
// 32-bit words of the workspace for a row's levels: how many logits each level has, and the sum of
// their weights.
const SPREAD = 3328u;
// 32-bit words of the result of a chunk: a sum, or the number of entries that equal the bound.
const PARTIAL = 2u;
// The largest number of tokens that a row draws.
const MAX_DRAWS = 64u;
// The largest number of likeliest tokens that a row reports.
const MAX_TOP = 256u;
// `WIDE` for rows that draw several tokens: there, other data takes much of the workgroup memory.
const MANY_WIDE = 256u;
// Values of `winners` that are no time: the row takes its forced token; a row without randomness
// has its token; no token may win.
const PLACE_FORCED = 0u;
const PLACE_CERTAIN = 1u;
const PLACE_NOTHING = 2147483647u;
// Bits of `has`: the arguments that are there.
const HAS_REQUESTS = 1u;
const HAS_TOP_K = 2u;
const HAS_TOP_P = 4u;
const HAS_MIN_P = 8u;
const HAS_MASK = 16u;
const HAS_PROCESSED = 32u;
const HAS_LOGPROBS = 64u;
const HAS_RANKS = 128u;
const HAS_TOP_TOKENS = 256u;
const HAS_TOP_LOGPROBS = 512u;
const HAS_ROW_FLAGS = 1024u;
const HAS_IDS = 2048u;
const HAS_MAXIMA = 4096u;
const HAS_FORCED = 8192u;
const HAS_WINNERS = 16384u;
const HAS_KEPT = 32768u;
const HAS_COUNTS = 65536u;
// The mask of tokens; `HAS_MASK` then says that there are bits for columns.
const HAS_TOKEN_MASK = 131072u;

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
