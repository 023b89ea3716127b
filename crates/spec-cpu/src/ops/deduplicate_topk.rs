//! Deduplication on the CPU: requests in parallel, no comparisons.
//!
//! A bitmap gives ascending distinct values by itself, one bit set a value and
//! one walk over its words, as long as its words are few beside the values.
//! Sparse values are radix-sorted, three digits of 11 bits, and compacted.

use rayon::prelude::*;
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

use crate::Cpu;
use crate::slices::{Rows, Workspace, rows_mut, slice_mut, workspace_size};

/// Bitmap words that cost as much as sorting one value: measured, see the bench
/// `deduplicate_topk`.
const WORDS_PER_VALUE: usize = 8;
/// Bitmap words of every value there can be.
const ALL_WORDS: usize = 1 << (31 - 6);
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
const PASSES: usize = 3;

struct Prepared {
    plan: Plan,
    /// Workers, each with a piece of workspace for the requests it takes.
    workers: usize,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<DeduplicateTopk> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
        let workers = (rayon::current_num_threads() * 4).min(plan.batch).max(1);
        Ok(Box::new(Prepared { plan: plan.clone(), workers }))
    }
}

impl Prepared {
    /// u64 words of one worker: a bitmap, or a copy of the values to sort.
    fn worker_words(&self) -> usize {
        let values = self.plan.unique.cols.next_multiple_of(8);
        values.max(ALL_WORDS.min(values * WORDS_PER_VALUE))
    }
}

// SAFETY: as above.
unsafe impl Kernel<DeduplicateTopk> for Prepared {
    fn workspace_size(&self) -> usize {
        workspace_size(&[(self.workers * self.worker_words()).saturating_mul(8)])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        let plan = &self.plan;
        let indices = Rows::<i32>::new(buffers.indices, plan.indices)?;
        let unique = slice_mut::<i32>(buffers.unique)?;
        let counts = buffers.counts.map(slice_mut::<i32>).transpose()?;
        if plan.unique.cols == 0 {
            counts.into_iter().for_each(|counts| counts[..plan.batch].fill(0));
            return Ok(());
        }
        let words = self.worker_words();
        let scratch = Workspace::new(workspace)?.take::<u64>(self.workers * words)?;
        let share = plan.batch.div_ceil(self.workers).max(1);
        let step = plan.unique.row_stride.max(plan.unique.cols);
        let last = plan.batch.saturating_sub(1) * plan.unique.row_stride + plan.unique.cols;
        let used = if plan.batch == 0 { 0 } else { last };
        unique[..used]
            .par_chunks_mut(step * share)
            .zip(scratch.par_chunks_mut(words))
            .enumerate()
            .for_each(|(worker, (rows, scratch))| {
                for (i, row) in rows.chunks_mut(step).enumerate() {
                    let first = (worker * share + i) * plan.mtp_step;
                    let inputs = (first..first + plan.mtp_step).map(|r| indices.row(r));
                    deduplicate(inputs, &mut row[..plan.unique.cols], scratch);
                }
            });
        if let Some(counts) = counts {
            let rows = rows_mut(unique, plan.unique);
            rows.zip(counts).for_each(|(row, count)| {
                *count = row.partition_point(|&value| value >= 0) as i32;
            });
        }
        Ok(())
    }
}

/// One request: distinct values ascending, then -1. The rows of the output hold
/// -1 only behind the values, so that `value >= 0` partitions them.
fn deduplicate<'a>(
    inputs: impl Iterator<Item = &'a [i32]> + Clone,
    out: &mut [i32],
    scratch: &mut [u64],
) {
    let largest = inputs.clone().flatten().fold(-1, |max, &value| max.max(value));
    let words = (largest.max(0) as usize) / 64 + 1;
    let count = if largest < 0 {
        0
    } else if words <= scratch.len() {
        by_bitmap(inputs, out, &mut scratch[..words])
    } else {
        by_sorting(inputs, out, scratch)
    };
    out[count..].fill(-1);
}

fn by_bitmap<'a>(
    inputs: impl Iterator<Item = &'a [i32]>,
    out: &mut [i32],
    bitmap: &mut [u64],
) -> usize {
    bitmap.fill(0);
    for &value in inputs.flatten().filter(|&&value| value >= 0) {
        bitmap[value as usize / 64] |= 1 << (value % 64);
    }
    let mut count = 0;
    for (index, &word) in bitmap.iter().enumerate() {
        let mut word = word;
        while word != 0 {
            out[count] = (index * 64) as i32 + word.trailing_zeros() as i32;
            count += 1;
            word &= word - 1;
        }
    }
    count
}

fn by_sorting<'a>(
    inputs: impl Iterator<Item = &'a [i32]>,
    out: &mut [i32],
    scratch: &mut [u64],
) -> usize {
    let mut histograms = [[0u32; DIGITS]; PASSES];
    let mut len = 0;
    for &value in inputs.flatten().filter(|&&value| value >= 0) {
        out[len] = value;
        len += 1;
        for (pass, histogram) in histograms.iter_mut().enumerate() {
            histogram[digit(value, pass)] += 1;
        }
    }
    // Three passes: out -> a -> b -> out.
    let (a, rest) = scratch.split_at_mut(len.div_ceil(2));
    let (a, b) = (as_i32(a), as_i32(&mut rest[..len.div_ceil(2)]));
    scatter(&out[..len], a, &mut histograms[0], 0);
    scatter(&a[..len], b, &mut histograms[1], 1);
    scatter(&b[..len], out, &mut histograms[2], 2);
    let mut count = 0;
    for i in 0..len {
        let value = out[i];
        out[count] = value;
        count += usize::from(i + 1 == len || out[i + 1] != value);
    }
    count
}

fn digit(value: i32, pass: usize) -> usize {
    (value as u32 >> (pass as u32 * DIGIT_BITS)) as usize % DIGITS
}

fn scatter(from: &[i32], to: &mut [i32], histogram: &mut [u32; DIGITS], pass: usize) {
    let mut sum = 0;
    for slot in histogram.iter_mut() {
        sum += std::mem::replace(slot, sum);
    }
    for &value in from {
        let slot = &mut histogram[digit(value, pass)];
        to[*slot as usize] = value;
        *slot += 1;
    }
}

fn as_i32(words: &mut [u64]) -> &mut [i32] {
    let bytes = spec_core::dtype::as_bytes_mut(words);
    spec_core::dtype::from_bytes_mut(bytes)
        .expect("u64 is aligned for i32 and a multiple of its size")
}
