//! Sampling on the CPU: rows in parallel, and where there are few, the passes over
//! one in parallel chunks.
//!
//! A row is read for the largest key ([`exact::sort_key`]) of each group of 64, which
//! says what the largest logit is and where entries can be of any weight. A row without
//! filters is read once more, for the sums of `q` by block, and from the block that holds
//! the threshold the token. A filter bounds from below, by those maxima or by the sum of
//! `q`, what it can keep; entries that reach the bound are gathered, in most rows few,
//! and the row is cut among them ([`select`](crate::select)).

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
/// The key of negative infinity: no token to choose has it.
const LOWEST: u32 = 0x007F_FFFF;
/// A unit of weight.
const UNIT: f64 = 1.0 / (1u64 << 40) as f64;
/// Weights below e^-28 are no unit.
const NO_UNIT: f32 = -28.0;

struct Prepared {
    plan: Plan,
    /// Rows that are worked on at once, each in a workspace of its own.
    desks: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<SampleLogits> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        let desks = plan.rows().min(rayon::current_num_threads());
        let prepared = Prepared { plan: plan.clone(), desks };
        let words = |each: usize| desks.saturating_mul(each).saturating_mul(4);
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
    let Prepared { plan, desks } = p;
    let (vocab, groups, blocks) = (plan.vocab(), p.groups(), p.blocks());
    let desks = (
        workspace.take::<u32>(desks * vocab)?.par_chunks_mut(vocab),
        workspace.take::<u32>(desks * vocab)?.par_chunks_mut(vocab),
        workspace.take::<u32>(desks * groups)?.par_chunks_mut(groups),
        workspace.take::<u32>(desks * groups)?.par_chunks_mut(groups),
        workspace.take::<u64>(desks * blocks)?.par_chunks_mut(blocks),
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
        // Where rows keep all threads busy, each stays whole.
        chunk: if p.desks < rayon::current_num_threads() { CHUNK } else { blocks },
        flags: AtomicU32::new(0),
    };
    // Each desk takes as many rows, one after the other.
    let each = plan.rows().div_ceil(p.desks);
    let stride = plan.probs.map_or(1, |m| m.row_stride.max(m.cols));
    (
        slice_mut::<I>(buffers.tokens)?.par_chunks_mut(each),
        parts(buffers.probs.map(slice_mut).transpose()?, stride * each, p.desks),
        parts(buffers.logprobs.map(slice_mut).transpose()?, each, p.desks),
        desks.into_par_iter(),
    )
        .into_par_iter()
        .enumerate()
        .for_each(|(part, (tokens, mut probs, mut logprobs, desk))| {
            let (keys, indices, maxima, ranked, sums) = desk;
            let mut desk = Desk { keys, indices, maxima, ranked, sums };
            for (i, token) in tokens.iter_mut().enumerate() {
                let row = part * each + i;
                let probs = probs.as_mut().map(|rows| &mut rows[i * stride..][..vocab]);
                let drawn = sampler.sample(row, &mut desk, probs);
                *token = I::of(drawn as i32);
                if let Some(logprobs) = &mut logprobs {
                    logprobs[i] = sampler.logprob(row, drawn);
                }
            }
        });
    raise(buffers.flags, sampler.flags.into_inner())
}

/// An optional output in as many parts as there are desks.
fn parts<T: Send>(
    data: Option<&mut [T]>,
    len: usize,
    desks: usize,
) -> impl IndexedParallelIterator<Item = Option<&mut [T]>> {
    match data {
        Some(data) => Either::Left(data.par_chunks_mut(len).map(Some)),
        None => Either::Right((0..desks).into_par_iter().map(|_| None)),
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

/// What one row is worked on with.
struct Desk<'a> {
    /// The keys that were gathered; 0 for what was dropped of those.
    keys: &'a mut [u32],
    /// Which tokens they are of.
    indices: &'a mut [u32],
    /// The largest key of each group.
    maxima: &'a mut [u32],
    /// A copy of those, to reorder.
    ranked: &'a mut [u32],
    /// The sum of weights of each block.
    sums: &'a mut [u64],
}

/// What a request asks for.
struct Options {
    inverse: f32,
    seed: u64,
    top_k: usize,
    top_p: f32,
    /// The least `q` that `min_p` keeps.
    floor: u64,
}

impl Options {
    /// Whether `top_k` or `top_p` keep less than everything of so many.
    fn cuts(&self, vocab: usize) -> bool {
        (1..vocab).contains(&self.top_k) || self.top_p < 1.0
    }
}

impl<T: Float> Sampler<'_, T> {
    fn flag(&self, bits: u32) {
        self.flags.fetch_or(bits, Ordering::Relaxed);
    }

    /// The token of a row.
    fn sample(&self, row: usize, desk: &mut Desk<'_>, probs: Option<&mut [f32]>) -> usize {
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
        if logits.survey(desk.maxima) {
            self.flag(flags::NON_FINITE);
        }
        let largest = simd::max_key(desk.maxima);
        if largest == LOWEST {
            self.flag(flags::NON_FINITE);
            return certain(self.lowest_allowed(row), probs);
        }
        let Some(options) = self.options(row) else {
            return certain(logits.first(largest, desk.maxima), probs);
        };
        let scale = Scale::new(exact::from_sort_key(largest), options.inverse);
        let position = self.positions.get(row);
        let random = Draw::at(options.seed, position, Purpose::Sample).bits();
        if options.cuts(self.plan.vocab()) {
            self.draw_from_cut(&logits, &options, scale, random, desk, probs)
        } else {
            let scale = scale.at_least(options.floor);
            logits.draw(scale, random, desk, probs)
        }
    }

    /// The lowest token that the mask allows, else 0.
    fn lowest_allowed(&self, row: usize) -> usize {
        let Some(mask) = self.mask else { return 0 };
        let set = mask.row(row).iter().enumerate().find(|(_, bits)| **bits != 0);
        let lowest = set.map(|(word, bits)| word * 32 + bits.trailing_zeros() as usize);
        // The last word may have bits that stand for nothing.
        lowest.filter(|&token| token < self.plan.vocab()).unwrap_or(0)
    }

    /// What the row's request asks for; `None` for the likeliest token.
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
            // `max` takes NaN to 0, which keeps the first.
            top_p: top_p.max(0.0),
            floor: exact::fixed_probability(if min_p.is_nan() { 1.0 } else { min_p }),
        })
    }

    /// Gathers what the filters can keep, cuts it, and draws from the rest.
    fn draw_from_cut(
        &self,
        logits: &Logits<'_, T>,
        options: &Options,
        scale: Scale,
        random: u64,
        desk: &mut Desk<'_>,
        probs: Option<&mut [f32]>,
    ) -> usize {
        let Options { top_k, top_p, floor, .. } = *options;
        let light_first = self.plan.params.min_p_first && floor > 0;
        let some = (1..self.plan.vocab()).contains(&top_k);
        // The sum that `top_p` is a share of, where it is known before the row is cut.
        let mut all = None;
        // What no draw can choose does not matter to `top_p` either, and is below all that
        // does for `top_k`.
        let mut reach = Reach { key: scale.reaches(NO_UNIT), ties: usize::MAX };
        if light_first {
            let least = floor as f64 * UNIT;
            reach.key = reach.key.max(scale.reaches(least.ln() as f32));
        } else if (1..=desk.maxima.len()).contains(&top_k) {
            desk.ranked.copy_from_slice(desk.maxima);
            let key = select::reached_by(top_k, desk.ranked);
            if key >= reach.key {
                reach = Reach { key, ties: top_k };
            }
        } else if !some {
            let sum = total(logits.sums(scale, desk).iter().copied());
            // Everything lighter than this is together no more than what is cut off.
            let lightest =
                sum.saturating_sub(limit_of(top_p, sum)) as f64 / self.plan.vocab() as f64;
            reach.key = reach.key.max(scale.reaches((lightest * UNIT).ln() as f32));
            all = Some(sum);
        }
        let taken = logits.gather(reach, desk);
        let Desk { keys, indices, sums, .. } = desk;
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
        // The mask is no matter here.
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
        // Without a temperature, in whole units: one sum in any order.
        let scale = Scale::new(max, 1.0);
        let weights =
            |values: &[f32], steps: &mut Steps| weights::sum(values, &EVERY_GROUP, 0, scale, steps);
        let sum = of_blocks(&weights, u64::wrapping_add);
        let below = if x == max { 0.0 } else { f64::from(x - max) };
        (below - (sum as f64 * UNIT).ln()) as f32
    }
}

/// A row of logits, read as often as it takes.
struct Logits<'a, T> {
    logits: &'a [T],
    mask: Option<&'a [i32]>,
    /// Blocks that one thread works on.
    chunk: usize,
}

/// Room for the values of a block, as f32 and by the mask.
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
    /// A piece of at most a block, which begins where a word of the mask does: as it is,
    /// and with negative infinity for what the mask forbids.
    fn piece<'v>(&'v self, start: usize, len: usize, room: &'v mut Room) -> [&'v [f32]; 2] {
        let end = self.logits.len().min(start + len);
        let raw = T::widen(&self.logits[start..end], &mut room.wide);
        let Some(mask) = self.mask else { return [raw; 2] };
        let allowed = &mut room.allowed[..raw.len()];
        simd::allow(raw, &mask[start / 32..], allowed);
        [raw, allowed]
    }

    /// Finds the largest key of each group; whether any logit is NaN or positive infinity.
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
    fn sums<'s>(&self, scale: Scale, desk: &'s mut Desk<'_>) -> &'s [u64] {
        let from = scale.reaches(NO_UNIT);
        let maxima = desk.maxima.par_chunks(self.chunk * GROUPS);
        (desk.sums.par_chunks_mut(self.chunk), maxima).into_par_iter().enumerate().for_each_init(
            || (Room::new(), Steps::new()),
            |(room, steps), (chunk, (sums, maxima))| {
                for (block, (sum, maxima)) in sums.iter_mut().zip(maxima.chunks(GROUPS)).enumerate()
                {
                    let start = (chunk * self.chunk + block) * BLOCK;
                    let [_, values] = self.piece(start, BLOCK, room);
                    *sum = weights::sum(values, maxima, from, scale, steps);
                }
            },
        );
        desk.sums
    }

    /// The token that the random bits choose among all, each by its weight.
    fn draw(
        &self,
        scale: Scale,
        random: u64,
        desk: &mut Desk<'_>,
        probs: Option<&mut [f32]>,
    ) -> usize {
        let sums = self.sums(scale, desk);
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

    /// Takes over what reaches so far: so many entries.
    fn gather(&self, reach: Reach, desk: &mut Desk<'_>) -> usize {
        let mut room = Room::new();
        let group_keys = |group: usize, keys: &mut [u32; GROUP]| {
            let [_, values] = self.piece(group * GROUP, GROUP, &mut room);
            simd::sort_keys(values, keys);
            values.len()
        };
        select::gather(reach, desk.maxima, group_keys, desk.keys, desk.indices)
    }
}

/// Keys of groups none of which is passed over.
const EVERY_GROUP: [u32; GROUPS] = [u32::MAX; GROUPS];

/// The share `top_p`, below 1, of a sum that is not 0: at least 1, so that the first is kept.
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

/// The sum of those.
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

/// The sum of sums. It fits 64 bits: a weight is at most 2^40, and a row has fewer than 2^24
/// logits. A row that another thread changes may pass that, and wraps.
fn total(sums: impl Iterator<Item = u64>) -> u64 {
    sums.fold(0, u64::wrapping_add)
}

/// The first of the sums through which the running sum exceeds `rest`, from which
/// those before are taken off. There is one.
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
