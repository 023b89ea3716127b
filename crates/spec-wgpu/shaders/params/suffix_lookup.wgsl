// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup that looks at windows.
const THREADS = 256u;
// Threads of a workgroup that has a thread for each request, or for each node.
const ROW_THREADS = 64u;
// Places of a tile.
const TILE = 1024u;
// Requests that a workgroup looks for in a tile of the corpus.
const REQUESTS = 64u;
// The largest number of windows of a request.
const MAX_WINDOWS = 1024u;
// The largest number of drafts of a request.
const MAX_DRAFTS = 64u;
// Words of a request's state.
const STATE = 16u;
// Words of a node in the workspace: its token, its parent, and how many windows it has.
const NODE = 4u;
// Bits of `has`: the arguments that are there.
const HAS_CORPUS_LENGTH = 1u;
const HAS_PARENTS = 2u;
const HAS_SHARES = 4u;
const HAS_MATCH_LENGTHS = 8u;
const HAS_FLAGS = 16u;
const HAS_FIRST_CHILD = 32u;
const HAS_NEXT_SIBLING = 64u;
const HAS_REQUESTS = 128u;
const HAS_MAX_DRAFTS = 256u;
// The last token of a text stands behind its drafts.
const PAD_WITH_LAST = 512u;
// A number of `requests` has two words.
const WIDE_REQUESTS = 1024u;

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
