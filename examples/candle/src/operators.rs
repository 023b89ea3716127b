//! Three operators as functions of candle's tensors. The other operators are called in the same
//! way.

use candle_core::{DType, Tensor};
use spec::ops::{MoeAlign, SampleLogits, TopkRouter};

use crate::tensors::{Queue, Result};

/// Weights and experts of each token: `logits` `[tokens, experts]` of f32, f16 or bf16,
/// `bias` `[experts]`; weights f32 and experts u32, `[tokens, topk + shared_experts]`.
///
/// # Errors
/// As the operator's.
pub fn topk_router(
    params: &TopkRouter,
    logits: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let queue = Queue::of(logits)?;
    let mut given = vec![("x", queue.read(logits)?.into())];
    if let Some(bias) = bias {
        given.push(("bias", queue.read(bias)?.into()));
    }
    let results = [("weights", DType::F32), ("indices", DType::U32)];
    let [weights, indices] = queue.call(params, given, results)?;
    Ok((weights, indices))
}

/// Picks grouped by expert: the input of a grouped matrix product.
pub struct Aligned {
    /// Picks as `token * k + j`, grouped by expert; padding is `tokens * k`: u32.
    pub sorted_ids: Tensor,
    /// The expert of each block, i32; -1 after the last.
    pub block_experts: Tensor,
    /// The number of elements of `sorted_ids` that are in use, `[1]`, i32.
    pub num_padded: Tensor,
}

/// Groups `topk_ids` `[tokens, k]`, u32 or i64, by expert.
///
/// # Errors
/// As the operator's.
pub fn moe_align(params: &MoeAlign, topk_ids: &Tensor) -> Result<Aligned> {
    let queue = Queue::of(topk_ids)?;
    let given = [("topk_ids", queue.read(topk_ids)?.into())];
    let results =
        [("sorted_ids", DType::U32), ("block_experts", DType::I32), ("num_padded", DType::I32)];
    let [sorted_ids, block_experts, num_padded] = queue.call(params, given, results)?;
    Ok(Aligned { sorted_ids, block_experts, num_padded })
}

/// The sampling settings of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The temperature; 0 takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all.
    pub top_k: i32,
    /// The share of the probability that is kept; 1 for all.
    pub top_p: f32,
    /// The seed of the request's random numbers.
    pub seed: u64,
}

/// A token, u32, for each row of `logits` `[rows, vocab]`. The tokens are for `positions`
/// `[rows]`, i64, of one request's text.
///
/// # Errors
/// As the operator's.
pub fn sample_logits(sampling: &Sampling, logits: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(logits)?;
    let Sampling { temperature, top_k, top_p, seed } = *sampling;
    let given = [
        ("logits", queue.read(logits)?.into()),
        ("positions", queue.read(positions)?.into()),
        ("requests", queue.zeros(DType::I32, &[logits.dim(0)?])?.into()),
        ("temperature", queue.upload(&[temperature])?.into()),
        ("top_k", queue.upload(&[top_k])?.into()),
        ("top_p", queue.upload(&[top_p])?.into()),
        ("seeds", queue.upload_u64(&[seed])?.into()),
    ];
    let params = SampleLogits::transformers();
    let [tokens] = queue.call(&params, given, [("tokens", DType::U32)])?;
    Ok(tokens)
}
