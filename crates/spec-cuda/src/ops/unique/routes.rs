use spec_core::ops::Unique;
use spec_core::{DType, TensorDesc};

use crate::limits::Limits;
use crate::ops::routes::route;

/// The kernels and launch shapes that an H100 takes for calls of an engine.
#[test]
fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
    let unique = |n, counts: bool| {
        let operator = Unique::new();
        let mut tensors = operator.tensors(DType::U64, n);
        tensors.counts = counts.then(|| TensorDesc::new(DType::U64, [n]));
        route(Limits::H100, &operator, &tensors)
    };
    let calls = [
        (unique(9216, false), "unique_sort_buckets_64 (1 block of 512 threads)"),
        (
            unique(1 << 17, false),
            "memset (17664 bytes), \
             unique_check_64 (33 blocks of 512 threads), \
             unique_survey_64 (16 blocks of 1024 threads), \
             unique_partition_high_64 (16 blocks of 512 threads), \
             unique_sort_buckets_64 (64 blocks of 512 threads), \
             unique_by_digits_64 (16 blocks of 512 threads), \
             unique_compact_64 (32 blocks of 512 threads)",
        ),
        (
            unique(1 << 23, false),
            "memset (37376 bytes), \
             unique_check_64 (343 blocks of 512 threads), \
             unique_survey_64 (132 blocks of 1024 threads), \
             unique_spread_64 (132 blocks of 1024 threads), \
             unique_map_parts_64 (1024 blocks of 1024 threads), \
             unique_partition_wide_64 (132 blocks of 1024 threads), \
             unique_thinned_high_64 (264 blocks of 512 threads), \
             unique_thinned_low_64 (264 blocks of 512 threads), \
             unique_sort_buckets_64 (1024 blocks of 512 threads), \
             unique_by_digits_64 (264 blocks of 512 threads), \
             unique_compact_64 (264 blocks of 512 threads)",
        ),
        (
            unique(1 << 25, true),
            "memset (98816 bytes), \
             unique_check_64 (392 blocks of 512 threads), \
             unique_survey_64 (132 blocks of 1024 threads), \
             unique_partition_high_64 (4096 blocks of 512 threads), \
             unique_partition_low_64 (4160 blocks of 512 threads), \
             unique_sort_buckets_64 (4096 blocks of 512 threads), \
             unique_by_digits_64 (264 blocks of 512 threads), \
             unique_compact_64 (264 blocks of 512 threads), \
             unique_firsts (16 blocks of 512 threads), \
             unique_counts (8192 blocks of 512 threads)",
        ),
    ];
    for (given, expected) in calls {
        assert_eq!(given, expected);
    }
}
