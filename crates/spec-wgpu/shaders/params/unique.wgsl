// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Threads of a workgroup.
const THREADS = 256u;
// Values of a digit.
const DIGITS = 256u;
// The word of the state from which on it has the totals of the digits.
const TOTALS = 11u;
// Words from the counter of one first digit to the next, where there are second digits. All tiles
// add to these counters, and additions within one cache line wait for each other.
const CELL_STRIDE = 32u;
// How a call goes on.
const BY_DIGITS = 0u;
const BY_BUCKETS = 1u;
const ASCENDING = 2u;

// What the shaders of `unique` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Keys in all.
    n: u32,
    // The first key of the window that is read.
    start: u32,
    // Keys of that window.
    len: u32,
    // The first key that is bound: `start`, or one before it.
    bound: u32,
    // The first key of the window that is written.
    to: u32,
    // Keys of that window.
    to_len: u32,
    // Keys of a window, where several are bound.
    window: u32,
    // Tiles in all.
    tiles: u32,
    // The digit of 8 bits, counted from the lowest.
    digit: u32,
    // What turns the order of signed keys over in their highest digit.
    flip: u32,
    // Bits that are taken to vary whether or not they do.
    forced: u32,
    // 1 where this prefix sum counts the distinct keys, else 0.
    counts_keys: u32,
    // The highest bit of a signed key's upper word.
    sign: u32,
    // Workgroups of the survey.
    surveys: u32,
    // Buckets; 0: none.
    buckets: u32,
    // Bits of the second digit of a bucket's number.
    low_bits: u32,
    // First digits of buckets' numbers.
    firsts: u32,
    // Words of the table that are counted in.
    cells: u32,
}
