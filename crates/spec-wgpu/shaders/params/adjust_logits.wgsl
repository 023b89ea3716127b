// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup over texts, tables and biases.
const THREADS = 256u;
// Threads of a workgroup over rows.
const ROW_THREADS = 64u;
// Words of all tables that a thread clears.
const CLEARED = 16u;
// Words of a row's state.
const STATE = 20u;
// The largest number of tokens of a sequence that DRY counts.
const MAX_MATCH = 64u;
// Bits of `has`: the arguments that are there.
const HAS_REQUESTS = 1u;
const HAS_DRAFTS = 2u;
const HAS_REPETITION = 4u;
const HAS_FREQUENCY = 8u;
const HAS_PRESENCE = 16u;
const HAS_STOPS = 32u;
const HAS_NGRAM = 64u;
const HAS_FLAGS = 128u;
const HAS_RANGE = 256u;
const HAS_THINK = 512u;

// What the shader of `adjust_logits` takes.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // All rows.
    rows: u32,
    // The first row of the window.
    row0: u32,
    // The row after the last of the window.
    row1: u32,
    // Tokens of the vocabulary.
    vocab: u32,
    // The token of the first column.
    first_token: u32,
    // Columns that stand for a token of the vocabulary.
    columns: u32,
    // Requests.
    requests: u32,
    // Tokens of a row of `tokens`.
    max_length: u32,
    // Which optional arguments are there: HAS_ bits.
    has: u32,
    // Workgroups of a row's text.
    chunks: u32,
    // Slots of a table, a power of two.
    slots: u32,
    // Where the tables start in the workspace, in words, behind the states.
    tables: u32,
    // Words of the window's tables.
    table_words: u32,
    // Logits from one row to the next in the window.
    logits_stride: u32,
    // Tokens from one text to the next.
    tokens_stride: u32,
    // Words of a token of a text.
    token_words: u32,
    // Words of a length.
    length_words: u32,
    // Words of a prompt's length.
    prompt_words: u32,
    // Words of a draft token.
    draft_words: u32,
    // Biases of all requests.
    biases: u32,
    // Stop tokens of a request.
    stops: u32,
    // Stop tokens from one request to the next.
    stops_stride: u32,
    // Words of all requests that are bad.
    words: u32,
    // Tokens of all words that are bad.
    word_tokens: u32,
    // 1 where bad words are looked for in the prompt too, else 0.
    words_in_prompt: u32,
    // Breakers of DRY.
    breakers: u32,
    // Tokens of `think_start`.
    start_tokens: u32,
    // Tokens of `think_end`.
    end_tokens: u32,
    // Tokens of `think_forced`.
    forced_tokens: u32,
}
