//! Products with matrices of 8-bit blocks. An additional row costs only its own arithmetic.
//!
//! A block of weights is converted to f32 once, in registers, for up to eight rows. Each element
//! of the result is summed in the same order for any number of rows, so that its bits do not
//! depend on the number of rows. All sums are f32: unlike in candle's products, activations are
//! not rounded to 8 bits.

use std::arch::x86_64::{
    __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadl_epi64, _mm_movehl_ps, _mm_shuffle_ps,
    _mm256_castps256_ps128, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps,
};

use anyhow::ensure;
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::Result;
use crate::slice::with_slice;

/// Weights of a block.
const LEN: usize = 32;
/// Columns of the result that one thread computes at a time. The weights of these columns stay in
/// the thread's cache for all rows.
const PART: usize = 32;

/// A block of weights, each a whole multiple of `scale`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Block {
    scale: f32,
    quants: [i8; LEN],
}

/// A matrix `[n, k]`, by whose transpose rows are multiplied.
pub struct Blocks {
    blocks: Vec<Block>,
    n: usize,
    k: usize,
}

impl Blocks {
    /// Whether this processor has AVX2 and FMA.
    pub fn supported() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    /// Rounds a matrix of f32 `[n, k]` to 8 bits. `k` is a multiple of 32.
    ///
    /// # Errors
    /// If `k` is not a multiple of 32, or if the processor lacks AVX2.
    pub fn new(dense: &Tensor) -> Result<Self> {
        let (n, k) = dense.dims2()?;
        ensure!(Self::supported(), "this processor has no AVX2");
        ensure!(k % LEN == 0, "rows of {k} weights, expected a multiple of {LEN}");
        let dense = dense.flatten_all()?.to_vec1::<f32>()?;
        let blocks = dense.chunks_exact(LEN).map(|weights| {
            let max = weights.iter().fold(0f32, |max, weight| max.max(weight.abs()));
            let scale = max / 127.0;
            let by = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut quants = [0; LEN];
            for (quant, weight) in quants.iter_mut().zip(weights) {
                *quant = (weight * by).round() as i8;
            }
            Block { scale, quants }
        });
        Ok(Blocks { blocks: blocks.collect(), n, k })
    }

    /// `rows` `[m, k]` times the transpose: `[m, n]`.
    ///
    /// # Errors
    /// If `rows` has rows of another length, another dtype than f32, or is not in the CPU's memory.
    pub fn product(&self, rows: &Tensor) -> Result<Tensor> {
        let (m, k) = rows.dims2()?;
        ensure!(k == self.k, "rows of {k}, expected {}", self.k);
        let mut out = vec![0f32; m * self.n];
        // For each part of the columns, the piece of every row of `out` in these columns.
        let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
        parts.resize_with(self.n.div_ceil(PART), || Vec::with_capacity(m));
        for row in out.chunks_mut(self.n) {
            for (part, piece) in parts.iter_mut().zip(row.chunks_mut(PART)) {
                part.push(piece);
            }
        }
        with_slice(rows, |x| {
            let x: Vec<&[f32]> = x.chunks_exact(k).collect();
            parts.par_iter_mut().enumerate().for_each(|(part, out)| {
                // SAFETY: `new` checked that this processor has AVX2 and FMA.
                unsafe { self.part(part * PART, &x, out) };
            });
            Ok(())
        })?;
        Ok(Tensor::from_vec(out, (m, self.n), &Device::Cpu)?)
    }

    /// Computes the columns from `first` on; each row of `out` is as long as there are columns.
    #[target_feature(enable = "avx2,fma")]
    fn part(&self, first: usize, x: &[&[f32]], out: &mut [&mut [f32]]) {
        let mut at = 0;
        while at < x.len() {
            // Eight sums, as many as registers hold, for any number of rows.
            at += match x.len() - at {
                8.. => self.rows::<8, 1>(first, &x[at..], &mut out[at..]),
                4.. => self.rows::<4, 2>(first, &x[at..], &mut out[at..]),
                2.. => self.rows::<2, 4>(first, &x[at..], &mut out[at..]),
                _ => self.rows::<1, 8>(first, &x[at..], &mut out[at..]),
            };
        }
    }

    /// Computes the first `R` rows, `C` columns at a time, and returns `R`.
    #[target_feature(enable = "avx2,fma")]
    fn rows<const R: usize, const C: usize>(
        &self,
        first: usize,
        x: &[&[f32]],
        out: &mut [&mut [f32]],
    ) -> usize {
        let x: [&[f32]; R] = std::array::from_fn(|row| x[row]);
        let columns = out[0].len();
        let mut column = 0;
        while column < columns {
            if columns - column >= C {
                self.tile::<R, C>(first, column, x, out);
                column += C;
            } else {
                self.tile::<R, 1>(first, column, x, out);
                column += 1;
            }
        }
        R
    }

    /// Computes `R` rows and `C` columns, from column `first + column` on.
    #[expect(clippy::needless_range_loop, reason = "several arrays go in step")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn tile<const R: usize, const C: usize>(
        &self,
        first: usize,
        column: usize,
        x: [&[f32]; R],
        out: &mut [&mut [f32]],
    ) {
        let blocks = self.k / LEN;
        let weights: [&[Block]; C] = std::array::from_fn(|c| {
            &self.blocks[(first + column + c) * blocks..(first + column + c + 1) * blocks]
        });
        for x in &x {
            assert_eq!(x.len(), blocks * LEN);
        }
        let mut sums = [[_mm256_setzero_ps(); R]; C];
        for block in 0..blocks {
            let block_of: [&Block; C] = std::array::from_fn(|c| &weights[c][block]);
            let scales = block_of.map(|block| _mm256_set1_ps(block.scale));
            for eight in 0..LEN / 8 {
                for c in 0..C {
                    // SAFETY: `eight` is below 4, so the eight bytes lie within the block's 32.
                    let quants = unsafe {
                        _mm_loadl_epi64(block_of[c].quants.as_ptr().add(8 * eight).cast())
                    };
                    let quants = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(quants));
                    let weight = _mm256_mul_ps(quants, scales[c]);
                    for r in 0..R {
                        // SAFETY: the assertion above checked that a row has 32 elements per block.
                        let x =
                            unsafe { _mm256_loadu_ps(x[r].as_ptr().add(LEN * block + 8 * eight)) };
                        sums[c][r] = _mm256_fmadd_ps(weight, x, sums[c][r]);
                    }
                }
            }
        }
        for c in 0..C {
            for r in 0..R {
                out[r][column + c] = sum(sums[c][r]);
            }
        }
    }
}

/// The sum of the eight elements of a register.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum(eight: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
