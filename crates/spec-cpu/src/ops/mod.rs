//! The operators: one file each, under the operator's own name.

mod deduplicate_topk;
mod hybrid_mtp_ngram;
mod ngram;
mod ngram_match;
mod rejection_sample;
mod topk_router;
mod unique;

/// Calls a function generic over a float type by a run-time dtype, which the
/// plan has restricted to the three.
macro_rules! by_float {
    ($dtype:expr, $function:ident($($arg:expr),* $(,)?)) => {
        match $dtype {
            spec_core::DType::F16 => $function::<half::f16>($($arg),*),
            spec_core::DType::BF16 => $function::<half::bf16>($($arg),*),
            _ => $function::<f32>($($arg),*),
        }
    };
}
pub(crate) use by_float;
