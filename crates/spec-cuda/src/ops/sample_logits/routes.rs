use spec_core::ops::{SampleLogits, sample_logits};
use spec_core::{DType, TensorDesc};

use crate::limits::Limits;
use crate::ops::routes::route;

/// The kernels and launch shapes that an H100 takes for calls of an engine.
#[test]
fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
    let floats = |rows: usize, cols: usize| TensorDesc::new(DType::F32, [rows, cols]);
    let sample = |rows, change: &dyn Fn(sample_logits::Tensors) -> sample_logits::Tensors| {
        let operator = SampleLogits::new();
        route(Limits::H100, &operator, &change(operator.tensors(rows, 128_256)))
    };
    let calls = [
        (sample(1, &|t| t), "sample_logits_plain_f32 (16 blocks of 512 threads in clusters of 16)"),
        (
            sample(32, &|t| t),
            "sample_logits_plain_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(256, &|t| t),
            "sample_logits_plain_f32 (1024 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(32, &|t| t.top_k(TensorDesc::new(DType::I32, [32]))),
            "sample_logits_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(32, &|t| t.probs(floats(32, 128_256))),
            "sample_logits_probs_f32 (96 blocks of 512 threads in clusters of 3)",
        ),
        (
            sample(32, &|t| t.logprobs(TensorDesc::new(DType::F32, [32]))),
            "sample_logits_plain_f32 (128 blocks of 512 threads in clusters of 4), \
             sample_logits_report_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(256, &|t| t.logprobs(TensorDesc::new(DType::F32, [256]))),
            "sample_logits_draw_report_f32 (1024 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(32, &|t| t.maxima(TensorDesc::new(DType::F32, [32]))),
            "sample_logits_shard_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(1, &|t| t.token_ids(TensorDesc::new(DType::I32, [128_256]))),
            "sample_logits_id_groups (251 blocks of 256 threads), \
             sample_logits_ids_f32 (16 blocks of 512 threads in clusters of 16)",
        ),
    ];
    for (given, expected) in calls {
        assert_eq!(given, expected);
    }
}
