// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;

// What the shaders of `moe_align` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Picks of all tokens.
    picks: u32,
    // Picks of a token.
    k: u32,
    // Picks from one token's first to the next one's.
    stride: u32,
    // Words of an id.
    words: u32,
    // Experts.
    experts: u32,
    // Local experts.
    locals: u32,
    // Places that a run's length is a multiple of.
    block_size: u32,
    // Places of `sorted_ids`.
    capacity: u32,
    // Blocks of `sorted_ids`.
    blocks: u32,
    // Tiles of the picks, a workgroup each.
    tiles: u32,
    // Picks of a thread, at most.
    turns: u32,
    // 1 where `expert_map` is there, else 0.
    has_map: u32,
    // 1 where `inverse` is there, else 0.
    has_inverse: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
}
