//! Sampling on the CPU: rows in parallel. If there are fewer rows than threads, each pass over a
//! row runs in parallel chunks.
//!
//! The first pass over a row (the survey) finds the largest key ([`exact::sort_key`]) of each
//! group of 64 logits. The maxima give the largest logit, and tell which groups have any weight.
//! A row without filters is read once more, for the sum of the weights of each block; the block
//! in which the running sum passes the random threshold holds the token. With filters, a lower
//! bound of the entries that can stay follows from the maxima or from the sum of all weights.
//! The entries that reach the bound are gathered, which are few in most rows, and the row is cut
//! among them ([`select`]).

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::iter::Either;
use rayon::prelude::*;
use spec_core::exact::{self, sampling};
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Kernel, Result, Supports, ViewMut, flags};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::select::{self, Reach};
use crate::simd::{self, BLOCK, Float, GROUP, GROUPS};
use crate::slices::{Int, Ints, Rows, Workspace, raise, slice, slice_mut, workspace_size};
use crate::weights::{self, Scale, Steps};

/// Blocks of a parallel chunk: enough work to outweigh a steal.
const CHUNK: usize = 8;
/// The sort key of negative infinity. A token with this key cannot be chosen.
const LOWEST: u32 = 0x007F_FFFF;
/// The unit of weights, 2^-40.
const UNIT: f64 = 1.0 / (1u64 << 40) as f64;
/// Weights below e to this power are less than one unit.
const NO_UNIT: f32 = -28.0;

struct Prepared {
    plan: Plan,
    /// How many rows are worked on at once, each with scratch of its own.
    workers: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<SampleLogits> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        let workers = plan.rows().min(rayon::current_num_threads());
        let prepared = Prepared { plan: plan.clone(), workers };
        let words = |each: usize| workers.saturating_mul(each).saturating_mul(4);
        let [vocab, groups] = [plan.vocab(), prepared.groups()].map(words);
        let sums = words(2 * prepared.blocks());
        let size = workspace_size(&[vocab, vocab, groups, groups, sums]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<SampleLogits, _>(prepared, size, launch) })
    }
}

impl Prepared {
    fn groups(&self) -> usize {
        self.plan.vocab().div_ceil(GROUP)
    }

    fn blocks(&self) -> usize {
        self.plan.vocab().div_ceil(BLOCK)
    }
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    if prepared.plan.rows() == 0 {
        return Ok(());
    }
    let workspace = Workspace::new(workspace)?;
    by_float!(prepared.plan.logits.dtype, by_token(prepared, workspace, buffers))
}

fn by_token<T: Float>(p: &Prepared, workspace: Workspace<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(p.plan.tokens.dtype, run::<T>(p, workspace, buffers))
}

fn run<T: Float, I: Int>(
    p: &Prepared,
    mut workspace: Workspace<'_>,
    buffers: Buffers<'_>,
) -> Result<()> {
    let Prepared { plan, workers } = p;
    let (vocab, groups, blocks) = (plan.vocab(), p.groups(), p.blocks());
    let scratch = (
        workspace.take::<u32>(workers * vocab)?.par_chunks_mut(vocab),
        workspace.take::<u32>(workers * vocab)?.par_chunks_mut(vocab),
        workspace.take::<u32>(workers * groups)?.par_chunks_mut(groups),
        workspace.take::<u32>(workers * groups)?.par_chunks_mut(groups),
        workspace.take::<u64>(workers * blocks)?.par_chunks_mut(blocks),
    );
    let sampler = Sampler {
        plan,
        logits: Rows::<T>::new(buffers.logits, plan.logits)?,
        positions: Ints::new(buffers.positions)?,
        temperature: slice(buffers.temperature)?,
        seeds: slice(buffers.seeds)?,
        top_k: buffers.top_k.map(slice).transpose()?,
        top_p: buffers.top_p.map(slice).transpose()?,
        min_p: buffers.min_p.map(slice).transpose()?,
        requests: buffers.requests.map(Ints::new).transpose()?,
        mask: match (buffers.mask, plan.mask) {
            (Some(view), Some(matrix)) => Some(Rows::new(view, matrix)?),
            _ => None,
        },
        // With a row for each thread, no row is split.
        chunk: if p.workers < rayon::current_num_threads() { CHUNK } else { blocks },
        flags: AtomicU32::new(0),
    };
    // Each worker takes `each` rows, one after the other.
    let each = plan.rows().div_ceil(p.workers);
    let stride = plan.probs.map_or(1, |m| m.row_stride.max(m.cols));
    (
        slice_mut::<I>(buffers.tokens)?.par_chunks_mut(each),
        parts(buffers.probs.map(slice_mut).transpose()?, stride * each, p.workers),
        parts(buffers.logprobs.map(slice_mut).transpose()?, each, p.workers),
        scratch.into_par_iter(),
    )
        .into_par_iter()
        .enumerate()
        .for_each(|(part, (tokens, mut probs, mut logprobs, scratch))| {
            let (keys, indices, maxima, ranked, sums) = scratch;
            let mut scratch = Scratch { keys, indices, maxima, ranked, sums };
            for (i, token) in tokens.iter_mut().enumerate() {
                let row = part * each + i;
                let probs = probs.as_mut().map(|rows| &mut rows[i * stride..][..vocab]);
                let drawn = sampler.sample(row, &mut scratch, probs);
                *token = I::of(drawn as i32);
                if let Some(logprobs) = &mut logprobs {
                    logprobs[i] = sampler.logprob(row, drawn);
                }
            }
        });
    raise(buffers.flags, sampler.flags.into_inner())
}

/// An optional output in as many parts as there are workers.
fn parts<T: Send>(
    data: Option<&mut [T]>,
    len: usize,
    workers: usize,
) -> impl IndexedParallelIterator<Item = Option<&mut [T]>> {
    match data {
        Some(data) => Either::Left(data.par_chunks_mut(len).map(Some)),
        None => Either::Right((0..workers).into_par_iter().map(|_| None)),
    }
}

struct Sampler<'a, T> {
    plan: &'a Plan,
    logits: Rows<'a, T>,
    positions: Ints<'a>,
    temperature: &'a [f32],
    seeds: &'a [u64],
    top_k: Option<&'a [i32]>,
    top_p: Option<&'a [f32]>,
    min_p: Option<&'a [f32]>,
    requests: Option<Ints<'a>>,
    mask: Option<Rows<'a, i32>>,
    /// Blocks of a row that one thread works on.
    chunk: usize,
    flags: AtomicU32,
}

/// The scratch of one worker.
struct Scratch<'a> {
    /// The keys of the gathered entries; 0 for an entry that was dropped since.
    keys: &'a mut [u32],
    /// The tokens of the gathered entries.
    indices: &'a mut [u32],
    /// The largest key of each group.
    maxima: &'a mut [u32],
    /// A copy of `maxima`, to reorder.
    ranked: &'a mut [u32],
    /// The sum of weights of each block.
    sums: &'a mut [u64],
}

/// The sampling parameters of a request.
struct Options {
    inverse: f32,
    seed: u64,
    top_k: usize,
    top_p: f32,
    /// The smallest weight that `min_p` keeps, in units.
    floor: u64,
}

impl Options {
    /// Whether `top_k` or `top_p` can drop any of `vocab` tokens.
    fn cuts(&self, vocab: usize) -> bool {
        (1..vocab).contains(&self.top_k) || self.top_p < 1.0
    }
}

impl<T: Float> Sampler<'_, T> {
    fn flag(&self, bits: u32) {
        self.flags.fetch_or(bits, Ordering::Relaxed);
    }

    /// The token of a row.
    fn sample(&self, row: usize, scratch: &mut Scratch<'_>, probs: Option<&mut [f32]>) -> usize {
        let certain = |token: usize, probs: Option<&mut [f32]>| {
            if let Some(probs) = probs {
                probs.fill(0.0);
                probs[token] = 1.0;
            }
            token
        };
        let logits = Logits {
            logits: self.logits.row(row),
            mask: self.mask.map(|mask| mask.row(row)),
            chunk: self.chunk,
        };
        if logits.survey(scratch.maxima) {
            self.flag(flags::NON_FINITE);
        }
        let largest = simd::max_key(scratch.maxima);
        if largest == LOWEST {
            self.flag(flags::NON_FINITE);
            return certain(self.lowest_allowed(row), probs);
        }
        let Some(options) = self.options(row) else {
            return certain(logits.first(largest, scratch.maxima), probs);
        };
        let scale = Scale::new(exact::from_sort_key(largest), options.inverse);
        let position = self.positions.get(row);
        let random = Draw::at(options.seed, position, Purpose::Sample).bits();
        if options.cuts(self.plan.vocab()) {
            self.draw_from_cut(&logits, &options, scale, random, scratch, probs)
        } else {
            let scale = scale.at_least(options.floor);
            logits.draw(scale, random, scratch, probs)
        }
    }

    /// The lowest token that the mask allows, else 0.
    fn lowest_allowed(&self, row: usize) -> usize {
        let Some(mask) = self.mask else { return 0 };
        let set = mask.row(row).iter().enumerate().find(|(_, bits)| **bits != 0);
        let lowest = set.map(|(word, bits)| word * 32 + bits.trailing_zeros() as usize);
        // The last word of the mask may have bits beyond the vocabulary.
        lowest.filter(|&token| token < self.plan.vocab()).unwrap_or(0)
    }

    /// The parameters of the row's request; `None` if it asks for the likeliest token.
    fn options(&self, row: usize) -> Option<Options> {
        let request = self.requests.map_or(row as i64, |requests| requests.get(row));
        let request = usize::try_from(request).ok().filter(|&r| r < self.plan.requests);
        let temperature = request.map_or(f32::NAN, |request| self.temperature[request]);
        if temperature.is_nan() || temperature < 0.0 {
            self.flag(flags::BAD_LENGTHS);
        }
        let request = request.filter(|_| temperature > 0.0)?;
        let top_p = self.top_p.map_or(1.0, |top_p| top_p[request]);
        let min_p = self.min_p.map_or(0.0, |min_p| min_p[request]);
        if top_p.is_nan() || min_p.is_nan() {
            self.flag(flags::BAD_LENGTHS);
        }
        Some(Options {
            inverse: sampling::inverse(temperature),
            seed: self.seeds[request],
            top_k: self.top_k.map_or(0, |top_k| usize::try_from(top_k[request]).unwrap_or(0)),
            // `max` turns NaN into 0, which keeps the likeliest token alone.
            top_p: top_p.max(0.0),
            floor: exact::fixed_probability(if min_p.is_nan() { 1.0 } else { min_p }),
        })
    }

    /// Gathers the entries that the filters can keep, drops those that they do not keep, and
    /// draws from the others.
    fn draw_from_cut(
        &self,
        logits: &Logits<'_, T>,
        options: &Options,
        scale: Scale,
        random: u64,
        scratch: &mut Scratch<'_>,
        probs: Option<&mut [f32]>,
    ) -> usize {
        let Options { top_k, top_p, floor, .. } = *options;
        let light_first = self.plan.params.min_p_first && floor > 0;
        let some = (1..self.plan.vocab()).contains(&top_k);
        // The sum of weights of which `top_p` is a share, if known before the row is cut.
        let mut all = None;
        // An entry of no weight is never drawn. It adds nothing to the sum for `top_p`, and
        // `top_k` prefers every entry that has a weight.
        let mut reach = Reach { key: scale.reaches(NO_UNIT), ties: usize::MAX };
        if light_first {
            let least = floor as f64 * UNIT;
            reach.key = reach.key.max(scale.reaches(least.ln() as f32));
        } else if (1..=scratch.maxima.len()).contains(&top_k) {
            scratch.ranked.copy_from_slice(scratch.maxima);
            let key = select::reached_by(top_k, scratch.ranked);
            if key >= reach.key {
                reach = Reach { key, ties: top_k };
            }
        } else if !some {
            let sum = total(logits.sums(scale, scratch).iter().copied());
            // All entries lighter than this together weigh no more than `top_p` cuts off.
            let lightest =
                sum.saturating_sub(limit_of(top_p, sum)) as f64 / self.plan.vocab() as f64;
            reach.key = reach.key.max(scale.reaches((lightest * UNIT).ln() as f32));
            all = Some(sum);
        }
        let taken = logits.gather(reach, scratch);
        let Scratch { keys, indices, sums, .. } = scratch;
        let (keys, indices) = (&mut keys[..taken], &indices[..taken]);
        let mut steps = Steps::new();
        if light_first {
            drop_light(keys, scale.at_least(floor));
        }
        if some && let Some(cut) = select::cut(keys, top_k as u64, count) {
            cut.drop_rest(keys);
        }
        if top_p < 1.0 {
            let sum = || total(keys.chunks(BLOCK).map(|keys| sum_of_keys(keys, scale, &mut steps)));
            let limit = limit_of(top_p, all.unwrap_or_else(sum));
            let cut = select::cut(keys, limit, |keys, weights| weigh_keys(keys, scale, weights));
            if let Some(cut) = cut {
                cut.drop_rest(keys);
            }
        }
        let scale = scale.at_least(floor);
        let sums = &mut sums[..taken.div_ceil(BLOCK)];
        for (keys, sum) in keys.chunks(BLOCK).zip(&mut *sums) {
            *sum = sum_of_keys(keys, scale, &mut steps);
        }
        let total = total(sums.iter().copied());
        let mut rest = exact::sample_threshold(random, total);
        let block = first_above(sums, &mut rest);
        let mut weights = [0; BLOCK];
        let block_keys = &keys[block * BLOCK..taken.min((block + 1) * BLOCK)];
        let weights = &mut weights[..block_keys.len()];
        weigh_keys(block_keys, scale, weights);
        if let Some(probs) = probs {
            probs.fill(0.0);
            let factor = sampling::factor(total);
            let (mut values, mut shares) = ([0.0; BLOCK], [0.0; BLOCK]);
            for (keys, indices) in keys.chunks(BLOCK).zip(indices.chunks(BLOCK)) {
                simd::from_sort_keys(keys, &mut values);
                weights::shares(&values[..keys.len()], scale, factor, &mut shares);
                for (&index, &share) in indices.iter().zip(&shares) {
                    probs[index as usize] = share;
                }
            }
        }
        // Nothing was gathered if another thread has lowered all logits since the survey.
        let token = indices.get(block * BLOCK + first_above(weights, &mut rest));
        token.map_or(0, |&token| token as usize)
    }

    /// The natural logarithm of the token's probability by the logits alone.
    fn logprob(&self, row: usize, token: usize) -> f32 {
        let logits = self.logits.row(row);
        let x = logits[token].get();
        if x.is_nan() || x == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        // The probability by the logits alone: the mask does not count.
        type Work<'w> = &'w (dyn Fn(&[f32], &mut Steps) -> u64 + Sync);
        let of_blocks = |work: Work<'_>, join: fn(u64, u64) -> u64| {
            let chunks = logits.par_chunks(self.chunk * BLOCK).map(|logits| {
                let (mut wide, mut steps) = ([0.0; BLOCK], Steps::new());
                let blocks = logits.chunks(BLOCK);
                blocks.fold(0, |all, block| join(all, work(T::widen(block, &mut wide), &mut steps)))
            });
            chunks.reduce(|| 0, join)
        };
        let largest = |values: &[f32], _: &mut Steps| {
            let mut maxima = [0; GROUPS];
            simd::group_maxima(values, &mut maxima);
            u64::from(simd::max_key(&maxima))
        };
        let max = exact::from_sort_key(of_blocks(&largest, u64::max) as u32);
        // At temperature 1, in whole units: the sum is the same in any order.
        let scale = Scale::new(max, 1.0);
        let weights =
            |values: &[f32], steps: &mut Steps| weights::sum(values, &EVERY_GROUP, 0, scale, steps);
        let sum = of_blocks(&weights, u64::wrapping_add);
        let below = if x == max { 0.0 } else { f64::from(x - max) };
        (below - (sum as f64 * UNIT).ln()) as f32
    }
}

/// A row of logits.
struct Logits<'a, T> {
    logits: &'a [T],
    mask: Option<&'a [i32]>,
    /// Blocks of the row that one thread works on.
    chunk: usize,
}

/// Room for the values of a block: converted to f32, and after the mask.
struct Room {
    wide: [f32; BLOCK],
    allowed: [f32; BLOCK],
}

impl Room {
    fn new() -> Self {
        Room { wide: [0.0; BLOCK], allowed: [0.0; BLOCK] }
    }
}

impl<T: Float> Logits<'_, T> {
    /// The values of a piece of the row, first as they are, then with negative infinity for the
    /// tokens that the mask forbids. `start` is a multiple of 32, as words of the mask are, and
    /// the piece is at most a block.
    fn piece<'v>(&'v self, start: usize, len: usize, room: &'v mut Room) -> [&'v [f32]; 2] {
        let end = self.logits.len().min(start + len);
        let raw = T::widen(&self.logits[start..end], &mut room.wide);
        let Some(mask) = self.mask else { return [raw; 2] };
        let allowed = &mut room.allowed[..raw.len()];
        simd::allow(raw, &mask[start / 32..], allowed);
        [raw, allowed]
    }

    /// Finds the largest key of each group. Returns whether any logit is NaN or positive infinity.
    fn survey(&self, maxima: &mut [u32]) -> bool {
        let chunks = maxima.par_chunks_mut(self.chunk * GROUPS).enumerate();
        let chunks = chunks.map_init(Room::new, |room, (chunk, maxima)| {
            let mut bad = false;
            for (block, maxima) in maxima.chunks_mut(GROUPS).enumerate() {
                let start = (chunk * self.chunk + block) * BLOCK;
                let [raw, values] = self.piece(start, BLOCK, room);
                bad |= simd::any_without_order(raw);
                simd::group_maxima(values, maxima);
            }
            bad
        });
        chunks.reduce(|| false, |a, b| a | b)
    }

    /// The first token with the largest key.
    fn first(&self, largest: u32, maxima: &[u32]) -> usize {
        let start = GROUP * maxima.iter().position(|&key| key == largest).unwrap_or(0);
        let mut room = Room::new();
        let [_, values] = self.piece(start, GROUP, &mut room);
        let first = values.iter().position(|&x| exact::sort_key(x) == largest);
        start + first.unwrap_or(0)
    }

    /// The sum of weights of each block.
    fn sums<'s>(&self, scale: Scale, scratch: &'s mut Scratch<'_>) -> &'s [u64] {
        let from = scale.reaches(NO_UNIT);
        let maxima = scratch.maxima.par_chunks(self.chunk * GROUPS);
        (scratch.sums.par_chunks_mut(self.chunk), maxima)
            .into_par_iter()
            .enumerate()
            .for_each_init(
                || (Room::new(), Steps::new()),
                |(room, steps), (chunk, (sums, maxima))| {
                    for (block, (sum, maxima)) in
                        sums.iter_mut().zip(maxima.chunks(GROUPS)).enumerate()
                    {
                        let start = (chunk * self.chunk + block) * BLOCK;
                        let [_, values] = self.piece(start, BLOCK, room);
                        *sum = weights::sum(values, maxima, from, scale, steps);
                    }
                },
            );
        scratch.sums
    }

    /// The token that the random bits choose among all, each by its weight.
    fn draw(
        &self,
        scale: Scale,
        random: u64,
        scratch: &mut Scratch<'_>,
        probs: Option<&mut [f32]>,
    ) -> usize {
        let sums = self.sums(scale, scratch);
        let total = total(sums.iter().copied());
        let mut rest = exact::sample_threshold(random, total);
        let start = BLOCK * first_above(sums, &mut rest);
        let mut room = Room::new();
        let [_, values] = self.piece(start, BLOCK, &mut room);
        let mut weights = [0; BLOCK];
        weights::weigh(values, scale, &mut weights);
        let token = start + first_above(&weights[..values.len()], &mut rest);
        if let Some(probs) = probs {
            let factor = sampling::factor(total);
            let chunks = probs.par_chunks_mut(self.chunk * BLOCK).enumerate();
            chunks.for_each(|(chunk, probs)| {
                let mut room = Room::new();
                for (block, shares) in probs.chunks_mut(BLOCK).enumerate() {
                    let start = (chunk * self.chunk + block) * BLOCK;
                    let [_, values] = self.piece(start, BLOCK, &mut room);
                    weights::shares(values, scale, factor, shares);
                }
            });
        }
        token
    }

    /// Gathers the entries that `reach` names into the scratch. Returns how many there are.
    fn gather(&self, reach: Reach, scratch: &mut Scratch<'_>) -> usize {
        let mut room = Room::new();
        let group_keys = |group: usize, keys: &mut [u32; GROUP]| {
            let [_, values] = self.piece(group * GROUP, GROUP, &mut room);
            simd::sort_keys(values, keys);
            values.len()
        };
        select::gather(reach, scratch.maxima, group_keys, scratch.keys, scratch.indices)
    }
}

/// Maxima of groups of which [`weights::sum`] passes over none.
const EVERY_GROUP: [u32; GROUPS] = [u32::MAX; GROUPS];

/// The share `top_p`, which is below 1, of a sum of weights. It is at least 1, so that the
/// likeliest token is kept.
fn limit_of(top_p: f32, sum: u64) -> u64 {
    // Exact: a power of two.
    let share = (f64::from(top_p) * 4_294_967_296.0) as u64;
    ((u128::from(share) * u128::from(sum)) >> 32).max(1) as u64
}

/// A weight of 1 for each key that was not dropped.
fn count(keys: &[u32], weights: &mut [u64]) {
    for (weight, &key) in weights.iter_mut().zip(keys) {
        *weight = u64::from(key > 0);
    }
}

/// The weight of each key of a block.
fn weigh_keys(keys: &[u32], scale: Scale, weights: &mut [u64]) {
    let mut values = [0.0; BLOCK];
    simd::from_sort_keys(keys, &mut values);
    weights::weigh(&values[..keys.len()], scale, weights);
}

/// The sum of the weights of a block of keys.
fn sum_of_keys(keys: &[u32], scale: Scale, steps: &mut Steps) -> u64 {
    let mut values = [0.0; BLOCK];
    simd::from_sort_keys(keys, &mut values);
    weights::sum(&values[..keys.len()], &EVERY_GROUP, 0, scale, steps)
}

/// Drops keys that have no weight by `scale`.
fn drop_light(keys: &mut [u32], scale: Scale) {
    let mut weights = [0; BLOCK];
    for keys in keys.chunks_mut(BLOCK) {
        weigh_keys(keys, scale, &mut weights);
        for (key, &weight) in keys.iter_mut().zip(&weights) {
            *key = if weight > 0 { *key } else { 0 };
        }
    }
}

/// The sum of the weights of blocks. It fits 64 bits: a weight is at most 2^40, and a row has
/// fewer than 2^24 logits. In a row that another thread changes the sum may wrap.
fn total(sums: impl Iterator<Item = u64>) -> u64 {
    sums.fold(0, u64::wrapping_add)
}

/// The index of the first sum at which the running sum exceeds `rest`; 0 if there is none, which
/// happens only in a row that another thread changes. Takes the sums before it off `rest`.
fn first_above(sums: &[u64], rest: &mut u64) -> usize {
    let above = |&sum: &u64| {
        let above = sum > *rest;
        *rest -= if above { 0 } else { sum };
        above
    };
    sums.iter().position(above).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_are_passed_over_have_no_weight() {
        let scale = Scale::new(3.0, 1.0 / 0.7);
        let mut values = [exact::from_sort_key(scale.reaches(NO_UNIT) - 1); GROUP];
        let sum = |values: &[f32]| weights::sum(values, &EVERY_GROUP, 0, scale, &mut Steps::new());
        assert_eq!(sum(&values), 0);
        values[7] = 3.0;
        assert_eq!(sum(&values), 1 << 40);
    }
}
