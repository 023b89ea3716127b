use spec_core::ops::IndexerTopk;
use spec_core::{DType, TensorDesc};

use crate::limits::Limits;
use crate::ops::routes::route;

/// The kernels and launch shapes that an H100 takes for calls of an engine.
#[test]
fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
    let topk = |rows, cols, k| {
        let operator = IndexerTopk::new(k);
        route(Limits::H100, &operator, &operator.tensors(DType::F32, rows, cols))
    };
    let blocks = |operator: IndexerTopk, rows, cols| {
        route(Limits::H100, &operator, &operator.tensors(DType::F32, rows, cols))
    };
    let candidates = {
        let operator = IndexerTopk::new(2048).candidate_block(8);
        let tensors = operator.tensors(DType::F32, 64, 1 << 14);
        route(
            Limits::H100,
            &operator,
            &tensors.candidates(TensorDesc::new(DType::I32, [64, 1 << 11])),
        )
    };
    let calls = [
        (topk(300, 16_384, 2048), "indexer_topk_row_f32 (300 blocks of 1024 threads)"),
        (topk(300, 1 << 15, 2048), "indexer_topk_bound_f32 (300 blocks of 256 threads)"),
        (
            topk(64, 1 << 17, 2048),
            "indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2)",
        ),
        (
            topk(1, 1 << 15, 2048),
            "indexer_topk_digits_f32 (8 blocks of 1024 threads in clusters of 8)",
        ),
        (topk(1, 8192, 2048), "indexer_topk_row_f32 (1 block of 1024 threads)"),
        (topk(1024, 8192, 512), "indexer_topk_row_f32 (1024 blocks of 512 threads)"),
        (topk(64, 1024, 16), "indexer_topk_row_f32 (64 blocks of 256 threads)"),
        (
            blocks(IndexerTopk::new(16).forced_first(1).forced_last(2), 64, 1024),
            "indexer_topk_row_f32 (64 blocks of 256 threads)",
        ),
        (
            blocks(IndexerTopk::new(2048).pool(8), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_row_f32 (64 blocks of 1024 threads)",
        ),
        (
            blocks(IndexerTopk::new(2048).pool(8).forced_last(1), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_row_f32 (64 blocks of 1024 threads)",
        ),
        (
            blocks(IndexerTopk::new(16).pool(128).forced_last(1), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_row_f32 (64 blocks of 256 threads)",
        ),
        (
            blocks(IndexerTopk::new(2048).forced_last(64), 64, 1 << 17),
            "indexer_topk_ranges (1 block of 256 threads), \
             indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2), \
             indexer_topk_finish_f32 (512 blocks of 256 threads)",
        ),
        (candidates, "indexer_topk_row_f32 (64 blocks of 1024 threads)"),
    ];
    for (given, expected) in calls {
        assert_eq!(given, expected);
    }
}
