// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// The largest number of threads in a block.
enum : u32 { THREADS = 512u };
enum : u32 { WARPS = 16u };
// Bytes that a warp reads at once.
enum : u32 { CHUNK_BYTES = 2048u };
