// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup, other than that of `allot`.
const ROW_THREADS = 64u;
// Words at the start of the workspace, whose first word is the number of rows of all requests.
const HEAD = 4u;
// Words of a request's state.
const STATE = 6u;
// The bits of 2^-100. A survival below 2^-100 counts as 0.
const MIN_SURVIVAL = 226492416u;
// Bits of `has`: the arguments that are there.
const HAS_PARENTS = 1u;
const HAS_SHARES = 2u;
const HAS_COUNTS = 4u;
const HAS_TRUST = 8u;
const HAS_FINISHED = 16u;
const HAS_BUDGET = 32u;
const HAS_FLAGS = 64u;
// Shares are of the whole way from the root.
const CUMULATIVE = 128u;
// More arguments that are there.
const HAS_PICKED = 256u;
const HAS_DRAFT_PARENTS = 512u;
const HAS_SURVIVALS = 1024u;
const HAS_DEPTHS = 2048u;
const HAS_FIRST_CHILD = 4096u;
const HAS_NEXT_SIBLING = 8192u;
const HAS_MASKS = 16384u;
const HAS_ROW_OFFSETS = 32768u;
const HAS_ROWS = 65536u;
const HAS_ROW_REQUESTS = 131072u;
const HAS_ROW_PARENTS = 262144u;
const HAS_ROW_TOKENS = 524288u;
const HAS_ROW_POSITIONS = 1048576u;
const HAS_ROOTS = 2097152u;
// Some output has packed rows.
const HAS_CAP = 4194304u;

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
