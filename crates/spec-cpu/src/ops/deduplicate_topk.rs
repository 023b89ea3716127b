//! Deduplication on the CPU: requests in parallel, no comparisons.
//!
//! Each value sets its bit in a bitmap; a walk over the bitmap's words then gives the distinct
//! values in ascending order. That is fast as long as there are few words per value. Sparse values
//! are radix-sorted instead, by as few digits of up to 11 bits as the largest value needs, and
//! repeats are dropped. With `inverse`, the bitmap also gives the place of each value; behind a
//! sort, a binary search finds it.

use rayon::prelude::*;
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::kernel;
use crate::Cpu;
use crate::slices::{
    Rows, Workspace, optional_shares_mut, rows_mut, shares_mut, slice_mut, workspace_size,
};

/// From this many values per word on, a bitmap is faster than sorting: measured with the bench
/// `deduplicate_topk`.
const VALUES_PER_WORD: usize = 4;
/// Maximal bits of a digit.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;

struct Prepared {
    plan: Plan,
    /// The number of workers. Each takes some of the requests, and has a piece of the workspace.
    workers: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<DeduplicateTopk> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
        let workers = (rayon::current_num_threads() * 4).min(plan.batch).max(1);
        let prepared = Prepared { plan: plan.clone(), workers };
        let size = workspace_size(&[(workers * prepared.worker_words()).saturating_mul(8)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<DeduplicateTopk, _>(prepared, size, launch, loops) })
    }
}

impl Prepared {
    /// u64 words of one worker: two copies of the values to sort, or a bitmap.
    fn worker_words(&self) -> usize {
        self.plan.unique.cols.next_multiple_of(8)
    }
}

fn loops(Prepared { plan, workers }: &Prepared, route: &mut Route) {
    let requests = plan.batch.div_ceil(*workers).max(1);
    route.push("deduplicate_topk", format_args!("{workers} shares of {requests} requests"));
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let Prepared { plan, workers } = prepared;
    let indices = Rows::<i32>::new(buffers.indices, plan.indices)?;
    let unique = slice_mut::<i32>(buffers.unique)?;
    let counts = buffers.counts.map(slice_mut::<i32>).transpose()?;
    if plan.unique.cols == 0 {
        counts.into_iter().for_each(|counts| counts[..plan.batch].fill(0));
        return Ok(());
    }
    let words = prepared.worker_words();
    let scratch = Workspace::new(workspace)?.take::<u64>(workers * words)?;
    let share = plan.batch.div_ceil(*workers).max(1);
    let of_tokens = share * plan.mtp_step;
    let inverse = optional_shares_mut::<i32>(buffers.inverse, plan.inverse, of_tokens, *workers)?;
    shares_mut(unique, plan.unique, share)
        .zip(inverse)
        .zip(scratch.par_chunks_mut(words))
        .enumerate()
        .for_each(|(worker, ((rows, mut inverse), scratch))| {
            for (i, row) in rows.enumerate() {
                let first = (worker * share + i) * plan.mtp_step;
                let inputs = (first..first + plan.mtp_step).map(|r| indices.row(r));
                let (count, words) = deduplicate(inputs.clone(), row, scratch);
                if let Some(inverse) = &mut inverse {
                    let places = inputs.zip(inverse.take(plan.mtp_step));
                    locate(places, &row[..count], scratch.split_at_mut(words));
                }
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

/// Writes the output row of one request: its distinct values ascending, then -1. Since -1 is only
/// behind the values, `value >= 0` partitions the row. Returns the number of distinct values, and
/// of words of the bitmap of these values at the beginning of `scratch`: 0 without a bitmap.
fn deduplicate<'a>(
    inputs: impl Iterator<Item = &'a [i32]> + Clone,
    out: &mut [i32],
    scratch: &mut [u64],
) -> (usize, usize) {
    let largest = inputs.clone().flatten().fold(-1, |max, &value| max.max(value));
    let mut words = (largest.max(0) as usize) / 64 + 1;
    let count = if largest < 0 {
        words = 0;
        0
    } else if words <= out.len().div_ceil(VALUES_PER_WORD) {
        by_bitmap(inputs, out, &mut scratch[..words])
    } else {
        words = 0;
        let bits = i32::BITS - largest.leading_zeros();
        match bits.div_ceil(DIGIT_BITS) {
            0 | 1 => by_sorting::<1>(inputs, bits, out, scratch),
            2 => by_sorting::<2>(inputs, bits, out, scratch),
            _ => by_sorting::<3>(inputs, bits, out, scratch),
        }
    };
    out[count..].fill(-1);
    (count, words)
}

/// Writes the place of each value among the `distinct` values of its request, and -1 for padding.
/// `bitmap` has the bits of the values, if there is one, and room for a number for each of its
/// words.
fn locate<'a, 'b>(
    places: impl Iterator<Item = (&'a [i32], &'b mut [i32])>,
    distinct: &[i32],
    (bitmap, before): (&mut [u64], &mut [u64]),
) {
    let mut sum = 0;
    for (before, word) in before.iter_mut().zip(&*bitmap) {
        *before = sum;
        sum += u64::from(word.count_ones());
    }
    for (values, places) in places {
        for (&value, place) in values.iter().zip(places) {
            *place = match usize::try_from(value) {
                Err(_) => -1,
                // A value that another thread has raised has no word.
                Ok(bit) if !bitmap.is_empty() => bitmap.get(bit / 64).map_or(-1, |word| {
                    let below = word & ((1 << (bit % 64)) - 1);
                    before[bit / 64] as i32 + below.count_ones() as i32
                }),
                Ok(_) => distinct.partition_point(|&other| other < value) as i32,
            };
        }
    }
}

fn by_bitmap<'a>(
    inputs: impl Iterator<Item = &'a [i32]>,
    out: &mut [i32],
    bitmap: &mut [u64],
) -> usize {
    bitmap.fill(0);
    for row in inputs {
        for &value in row.iter().filter(|&&value| value >= 0) {
            // A value has no word only if another thread has raised it since the largest
            // value was found.
            let Some(word) = bitmap.get_mut(value as usize / 64) else { break };
            *word |= 1 << (value % 64);
        }
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

/// Sorts by `PASSES` digits, for values of at most `bits` bits.
fn by_sorting<'a, const PASSES: usize>(
    inputs: impl Iterator<Item = &'a [i32]>,
    bits: u32,
    out: &mut [i32],
    scratch: &mut [u64],
) -> usize {
    let bits = bits.div_ceil(PASSES as u32);
    let digit = |value: i32, pass| (value as u32 >> (pass as u32 * bits)) as usize % (1 << bits);
    let (a, b) = scratch.split_at_mut(scratch.len() / 2);
    let (mut from, mut to) = (as_i32(a), as_i32(b));
    let mut histograms = [[0u32; DIGITS]; PASSES];
    let mut len = 0;
    for row in inputs {
        for &value in row.iter().filter(|&&value| value >= 0) {
            from[len] = value;
            len += 1;
            for (pass, histogram) in histograms.iter_mut().enumerate() {
                histogram[digit(value, pass)] += 1;
            }
        }
    }
    for (pass, histogram) in histograms.iter_mut().enumerate() {
        scatter(&from[..len], to, histogram, |value| digit(value, pass));
        std::mem::swap(&mut from, &mut to);
    }
    let mut count = 0;
    let mut last = -1;
    for &value in &from[..len] {
        // `count` is within `out`: it never exceeds the number of values that were read, and `out`
        // has room for all of them.
        out[count] = value;
        count += usize::from(value != last);
        last = value;
    }
    count
}

fn scatter(
    from: &[i32],
    to: &mut [i32],
    histogram: &mut [u32; DIGITS],
    digit: impl Fn(i32) -> usize,
) {
    let mut sum = 0;
    for slot in histogram.iter_mut() {
        sum += std::mem::replace(slot, sum);
    }
    for &value in from {
        let slot = &mut histogram[digit(value)];
        to[*slot as usize] = value;
        *slot += 1;
    }
}

fn as_i32(words: &mut [u64]) -> &mut [i32] {
    let bytes = spec_core::dtype::as_bytes_mut(words);
    spec_core::dtype::from_bytes_mut(bytes)
        .expect("u64 is aligned for i32 and a multiple of its size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_raised_after_the_largest_was_found_have_no_bit() {
        let mut out = [0; 4];
        let count = by_bitmap([&[3, -1, 64, 5][..]].into_iter(), &mut out, &mut [0]);
        assert_eq!(out[..count], [3]);
    }
}
