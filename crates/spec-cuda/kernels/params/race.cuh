// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of each block of the kernels whose tokens race.
enum : u32 { SELECT_THREADS = 512u };
// Tokens whose noise is drawn together.
enum : u32 { GROUP = 64u };
// Index of the first Philox block with the low bits of a group's least noise.
enum : u32 { GROUP_BLOCKS = 1073741824u };
// Index of the first Philox block with the differences between tokens' noise and the least noise.
enum : u32 { TOKEN_BLOCKS = 2147483648u };
// Lower bounds are multiplied by this factor. It covers the errors of the approximate functions and
// the roundings of the exact functions several times over.
constexpr float BOUND_SLACK = 0.99998474f;
// The largest number of tokens that a row draws.
enum : u32 { MAX_DRAWS = 64u };
// The kinds of decisions that random numbers make: which token is sampled, whether a draft is
// accepted, and which token replaces a rejected draft.
enum : u32 { PURPOSE_SAMPLE = 0u };
enum : u32 { PURPOSE_ACCEPT = 1u };
enum : u32 { PURPOSE_RECOVER = 2u };
