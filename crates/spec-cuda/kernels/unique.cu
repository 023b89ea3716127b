// unique: the distinct keys in ascending order, and the number of occurrences of each.
//
//   unique_check         tests a sample, and whether all keys ascend
//   unique_survey        counts the keys of each bucket, and writes the plan: the route to take
//   unique_spread, unique_map_parts
//                        by bits: see unique_bits.cuh
//   unique_partition_high, unique_partition_low or unique_partition_wide,
//   unique_thinned_high, unique_thinned_low; unique_sort_buckets
//                        by buckets: see unique_buckets.cuh
//   unique_by_digits, unique_compact, unique_firsts, unique_counts
//                        by digits, or if keys already ascend: see unique_passes.cuh
//
// Each of these files describes the mapping of threads to keys and the bytes of its route.
//
// The host launches every kernel that a call with this number of keys may need, because the plan
// stays on the device and a captured graph launches the same kernels in each replay. Kernels that
// are not on the route of the plan return at once. If one block can sort all keys, there is a
// single bucket and a single launch.
//
// Keys are stored unchanged. `flip` is the sign bit of signed keys: key ^ flip, as an unsigned
// integer, has the order of the signed keys.
#include "unique_bits.cuh"
#include "unique_buckets.cuh"
#include "unique_passes.cuh"

SPEC_KERNEL_BLOCKS(unique_check_32, check<u32>, Params, THREADS, CHECK_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_check_64, check<u64>, Params, THREADS, CHECK_BLOCKS)
SPEC_KERNEL(unique_survey_32, survey<u32>, Params, SURVEY_THREADS)
SPEC_KERNEL(unique_survey_64, survey<u64>, Params, SURVEY_THREADS)
SPEC_KERNEL(unique_spread_32, spread<u32>, Params, BITS_THREADS)
SPEC_KERNEL(unique_spread_64, spread<u64>, Params, BITS_THREADS)
SPEC_KERNEL(unique_map_parts_32, map_parts<u32>, Params, BITS_THREADS)
SPEC_KERNEL(unique_map_parts_64, map_parts<u64>, Params, BITS_THREADS)
// The shared memory of a multiprocessor has room for two blocks of the following kernels with
// `THREADS` threads, so its registers must have room for two blocks, too.
SPEC_KERNEL_BLOCKS(unique_partition_high_32, (partition<u32, true>), Params, THREADS, SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_partition_high_64, (partition<u64, true>), Params, THREADS, SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_partition_low_32, (partition<u32, false>), Params, THREADS, SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_partition_low_64, (partition<u64, false>), Params, THREADS, SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_thinned_high_32, (partition_thinned<u32, true>), Params, THREADS,
                   SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_thinned_high_64, (partition_thinned<u64, true>), Params, THREADS,
                   SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_thinned_low_32, (partition_thinned<u32, false>), Params, THREADS,
                   SPLIT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_thinned_low_64, (partition_thinned<u64, false>), Params, THREADS,
                   SPLIT_BLOCKS)
SPEC_KERNEL(unique_partition_wide_32, partition_wide<u32>, Params, WIDE_THREADS)
SPEC_KERNEL(unique_partition_wide_64, partition_wide<u64>, Params, WIDE_THREADS)
SPEC_KERNEL_BLOCKS(unique_sort_buckets_32, sort_buckets<u32>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_sort_buckets_64, sort_buckets<u64>, Params, THREADS, 2)
SPEC_KERNEL_BLOCKS(unique_by_digits_32, by_digits<u32>, Params, THREADS, DIGITS_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_by_digits_64, by_digits<u64>, Params, THREADS, DIGITS_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_compact_32, compact<u32>, Params, THREADS, COMPACT_BLOCKS)
SPEC_KERNEL_BLOCKS(unique_compact_64, compact<u64>, Params, THREADS, COMPACT_BLOCKS)
SPEC_KERNEL(unique_firsts, firsts, Params, THREADS)
SPEC_KERNEL(unique_counts, counts_of_positions, Params, THREADS)
