// CUB's block and warp primitives, which the published designs use, together with the argument
// types and the exact arithmetic of the operators' own kernels.
#pragma once

// CUB's own headers use declarations that CUB has deprecated.
#define CCCL_IGNORE_DEPRECATED_API

#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_merge_sort.cuh>

#include "common.cuh"
