//! Causal attention of a few rows over a cache. Each row and head is computed alone.
//!
//! The sums of a row go over the row's positions in order, so that the bits of the result do
//! not depend on the other rows of the run. rayon distributes the pairs of row and head over
//! threads: if the system pauses a thread, only one pair is delayed.

use anyhow::ensure;
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::Result;
use crate::blocks::Blocks;
use crate::slice::with_slice;

/// The attention of `query` `[rows, heads * head_dim]` over `keys` and `values`
/// `[places, kv_heads, head_dim]`: `[rows, heads * head_dim]`. Each row sees the first `start`
/// places, which are the text so far, and then the places of the rows on its path: itself and the
/// rows before it. Row i has place `start + i`; `paths` has the rows of each path in order.
///
/// # Errors
/// If a head's size is not a multiple of 8, if a tensor is not packed f32 in the CPU's memory, or
/// if the processor lacks AVX2.
pub fn attention(
    query: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    start: usize,
    paths: &[Vec<usize>],
) -> Result<Tensor> {
    let (rows, width) = query.dims2()?;
    let (places, kv_heads, head_dim) = keys.dims3()?;
    ensure!(Blocks::supported(), "this processor has no AVX2");
    ensure!(head_dim % 8 == 0, "heads of {head_dim}, expected a multiple of 8");
    ensure!(start + rows <= places, "{rows} rows at {start} of {places} places");
    ensure!(rows == paths.len(), "{rows} rows and {} paths", paths.len());
    ensure!(paths.iter().flatten().all(|&row| row < rows), "a path leaves the {rows} rows");
    let (heads, step) = (width / head_dim, kv_heads * head_dim);
    let mut out = vec![0f32; rows * width];
    with_slice(query, |query| {
        with_slice(keys, |keys| {
            with_slice(values, |values| {
                let each = out.par_chunks_exact_mut(head_dim).zip(query.par_chunks_exact(head_dim));
                each.enumerate().for_each_init(Vec::new, |weights, (at, (out, query))| {
                    let path = paths[at / heads].iter().map(|row| start + row);
                    let first = at % heads * kv_heads / heads * head_dim;
                    let offsets = (0..start).chain(path).map(|place| place * step + first);
                    // SAFETY: `ensure!` above checked that the processor has AVX2 and FMA.
                    unsafe { head(query, keys, values, offsets, weights, out) };
                });
                Ok(())
            })
        })
    })?;
    Ok(Tensor::from_vec(out, (rows, width), &Device::Cpu)?)
}

/// The attention of one head of one row, over the keys and values at these offsets.
#[target_feature(enable = "avx2,fma")]
fn head(
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    offsets: impl Iterator<Item = usize> + Clone,
    weights: &mut Vec<f32>,
    out: &mut [f32],
) {
    let scale = 1.0 / (query.len() as f32).sqrt();
    weights.clear();
    for offset in offsets.clone() {
        weights.push(dot(query, &keys[offset..][..query.len()]) * scale);
    }
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for (weight, offset) in weights.iter().zip(offsets) {
        let weight = (weight - max).exp();
        total += weight;
        for (out, value) in out.iter_mut().zip(&values[offset..]) {
            *out = weight.mul_add(*value, *out);
        }
    }
    for out in out {
        *out /= total;
    }
}

/// The dot product, in eight partial sums.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for i in 0..8 {
            sums[i] = a[i].mul_add(b[i], sums[i]);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}
