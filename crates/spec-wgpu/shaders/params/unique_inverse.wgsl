// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;
// Keys that a thread looks up.
const ROWS = 16u;

// What the shaders of `unique` take that look keys up.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Keys of the window that is read.
    len: u32,
    // The number of the first distinct key of the window that is searched.
    first: u32,
    // The largest number of distinct keys of that window.
    window: u32,
    // 32-bit words of an element of the inverse.
    words: u32,
    // The highest bit of a signed key's upper word.
    sign: u32,
    unused_1: u32,
    unused_2: u32,
    unused_3: u32,
}
