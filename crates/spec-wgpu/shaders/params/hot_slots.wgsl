// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;
// Words that a row of the workspace has before its keys.
const ROW_WORDS = 8u;

// What the shaders of `hot_slots` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // The first row of this dispatch.
    row0: u32,
    // Rows of the state that a row may have.
    tables: u32,
    // Wanted values of a row.
    m: u32,
    // Slots of a request.
    h: u32,
    // Keys of a row: a power of two, at least m.
    padded: u32,
    // Workgroups that look at the columns of a row.
    groups_per_row: u32,
    // Words of the workspace that a row has.
    row_words: u32,
    // Elements from one row to the next: of `wanted`.
    wanted_stride: u32,
    // The same of `resident`.
    resident_stride: u32,
    // The same of `used`.
    used_stride: u32,
    // The same of `block_table`.
    block_stride: u32,
    // The same of `pages`.
    page_stride: u32,
    // The same of `slots`.
    slots_stride: u32,
    // The same of `fetch_positions`.
    positions_stride: u32,
    // The same of `fetch_slots`.
    fetch_slots_stride: u32,
    // Words of a step.
    step_words: u32,
    // 1 where each row has a step, else 0.
    step_by_row: u32,
    // Words of a tail start, 0 where there are none.
    tail_words: u32,
    // Tail slots.
    tail: u32,
    // Slots of a block.
    block_size: u32,
    // Columns of `block_table`.
    blocks: u32,
    // Entries of a page.
    page_size: u32,
    // Columns of `pages`.
    page_count: u32,
    // The number of a page that stands for none.
    null_page: i32,
    // 1 where `requests` is there, else 0.
    has_requests: u32,
    // 1 where `reset` is there, else 0.
    has_reset: u32,
    // 1 where `block_table` is there, else 0.
    has_blocks: u32,
    // 1 where `pages` is there, else 0.
    has_pages: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
}
