// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// The largest number of blocks in a cluster. More than 8 blocks are not portable: only some devices
// run them, and only kernels that ask for them.
enum : u32 { MAX_CLUSTER = 16u };
// The codes of float types, for kernels that take several types.
enum : u32 { F32 = 0u };
enum : u32 { F16 = 1u };
enum : u32 { BF16 = 2u };
