// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;

// What the shader of `moe_align` takes that says more of the layout.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Picks of all tokens.
    picks: u32,
    // Picks of a token.
    k: u32,
    // Local experts.
    locals: u32,
    // Places of a block.
    block_size: u32,
    // Places of `sorted_ids`.
    capacity: u32,
    // Blocks of `sorted_ids`.
    blocks: u32,
    // 1 where `sorted_tokens` is there, else 0.
    has_tokens: u32,
    // 1 where `block_limits` is there, else 0.
    has_limits: u32,
    // 1 where `num_blocks` is there, else 0.
    has_num_blocks: u32,
    unused_1: u32,
    unused_2: u32,
    unused_3: u32,
}
