//! Sampling on the CPU: rows in parallel, and where there are few, the passes over
//! one in parallel chunks.
//!
//! A row is read once and becomes keys ([`exact::sort_key`], masked) in a piece of
//! the workspace that stays in a core's cache; the passes after that are over
//! those. A row without filters needs two: the sums of `q` by block, and the block
//! that holds the threshold. A filter cuts the row first ([`select`](crate::select)):
//! for a small `top_k` only the groups of 64 whose largest key can be among the
//! first are looked at.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::iter::Either;
use rayon::prelude::*;
use spec_core::exact::{self, sampling};
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, flags};

use super::{by_float, by_int};
use crate::Cpu;
use crate::select;
use crate::simd::{self, BLOCK, Float, GROUP, Scale};
use crate::slices::{Int, Ints, Rows, Workspace, raise, slice, slice_mut, workspace_size};

/// Entries of a parallel chunk: enough work to outweigh a steal.
const CHUNK: usize = 8 * BLOCK;
/// The key of negative infinity: no token to choose has it.
const LOWEST: u32 = 0x007F_FFFF;

struct Prepared {
    plan: Plan,
    /// Rows that are worked on at once, each in a workspace of its own.
    desks: usize,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<SampleLogits> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        let desks = plan.rows().min(rayon::current_num_threads());
        Ok(Box::new(Prepared { plan: plan.clone(), desks }))
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

// SAFETY: as above.
unsafe impl Kernel<SampleLogits> for Prepared {
    fn workspace_size(&self) -> usize {
        let words = |each: usize| self.desks.saturating_mul(each).saturating_mul(4);
        let [vocab, groups] = [self.plan.vocab(), self.groups()].map(words);
        workspace_size(&[vocab, vocab, groups, groups, words(2 * self.blocks())])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        if self.plan.rows() == 0 {
            return Ok(());
        }
        by_float!(self.plan.logits.dtype, by_token(self, Workspace::new(workspace)?, buffers))
    }
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
    flags: AtomicU32,
}

/// What one row is worked on with.
struct Desk<'a> {
    /// The keys of the row; 0 for what was dropped.
    keys: &'a mut [u32],
    /// Which tokens they are of, where only some were taken over.
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
        self.load(row, desk);
        let largest = desk.maxima.iter().copied().max().unwrap_or(LOWEST);
        if largest == LOWEST {
            self.flag(flags::NON_FINITE);
            return certain(self.lowest_allowed(row), probs);
        }
        match self.options(row) {
            Some(options) => self.draw(row, &options, largest, desk, probs),
            None => certain(desk.first(largest), probs),
        }
    }

    /// Fills in keys and maxima.
    fn load(&self, row: usize, desk: &mut Desk<'_>) {
        let mask = self.mask.map(|mask| mask.row(row));
        let bad = (
            self.logits.row(row).par_chunks(CHUNK),
            desk.keys.par_chunks_mut(CHUNK),
            desk.maxima.par_chunks_mut(CHUNK / GROUP),
        )
            .into_par_iter()
            .enumerate()
            .map(|(chunk, (logits, keys, maxima))| {
                let mut wide = [0.0; BLOCK];
                let mut bad = false;
                let parts = logits
                    .chunks(BLOCK)
                    .zip(keys.chunks_mut(BLOCK))
                    .zip(maxima.chunks_mut(BLOCK / GROUP));
                for (block, ((logits, keys), maxima)) in parts.enumerate() {
                    bad |= simd::logit_keys(T::widen(logits, &mut wide), keys);
                    if let Some(words) = mask {
                        simd::allow(keys, &words[(chunk * CHUNK + block * BLOCK) / 32..], LOWEST);
                    }
                    simd::group_maxima(keys, maxima);
                }
                bad
            })
            .reduce(|| false, |a, b| a | b);
        if bad {
            self.flag(flags::NON_FINITE);
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

    fn draw(
        &self,
        row: usize,
        options: &Options,
        largest: u32,
        desk: &mut Desk<'_>,
        probs: Option<&mut [f32]>,
    ) -> usize {
        let scale = Scale::new(largest, options.inverse);
        let gathered = self.filter(options, scale, desk);
        let (keys, indices) = match gathered {
            Some(len) => (&desk.keys[..len], Some(&desk.indices[..len])),
            None => (&*desk.keys, None),
        };
        let sums = &mut desk.sums[..keys.len().div_ceil(BLOCK)];
        (keys.par_chunks(CHUNK), sums.par_chunks_mut(CHUNK / BLOCK)).into_par_iter().for_each(
            |(keys, sums)| {
                for (keys, sum) in keys.chunks(BLOCK).zip(sums) {
                    *sum = simd::sum_weights(keys, scale, options.floor);
                }
            },
        );
        let total = sums.iter().sum();
        let bits = Draw::at(options.seed, self.positions.get(row), Purpose::Sample).bits();
        let mut rest = exact::sample_threshold(bits, total);
        let block = first_above(sums, &mut rest);
        let mut weights = [0; BLOCK];
        let block_keys = &keys[block * BLOCK..keys.len().min((block + 1) * BLOCK)];
        let weights = &mut weights[..block_keys.len()];
        simd::weigh(block_keys, scale, options.floor, weights);
        let at = block * BLOCK + first_above(weights, &mut rest);
        if let Some(probs) = probs {
            let factor = sampling::factor(total);
            match indices {
                None => (keys.par_chunks(CHUNK), probs.par_chunks_mut(CHUNK))
                    .into_par_iter()
                    .for_each(|(keys, probs)| {
                        simd::shares(keys, scale, options.floor, factor, probs);
                    }),
                Some(indices) => {
                    probs.fill(0.0);
                    for (&key, &index) in keys.iter().zip(indices) {
                        let share = &mut probs[index as usize..][..1];
                        simd::shares(&[key], scale, options.floor, factor, share);
                    }
                }
            }
        }
        indices.map_or(at, |indices| indices[at] as usize)
    }

    /// Drops what the filters drop, but for `min_p` after them. Where few
    /// entries can stay, they are moved to the front of `desk`: so many.
    fn filter(&self, options: &Options, scale: Scale, desk: &mut Desk<'_>) -> Option<usize> {
        let Options { top_k, top_p, floor, .. } = *options;
        if self.plan.params.min_p_first && floor > 0 {
            let parts =
                (desk.keys.par_chunks_mut(BLOCK), desk.maxima.par_chunks_mut(BLOCK / GROUP));
            parts.into_par_iter().for_each(|(keys, maxima)| {
                simd::drop_light(keys, scale, floor);
                simd::group_maxima(keys, maxima);
            });
        }
        let mut gathered = None;
        if (1..desk.keys.len()).contains(&top_k) {
            gathered = desk.gather(top_k);
            let keys = &mut desk.keys[..gathered.unwrap_or(self.plan.vocab())];
            if let Some(cut) = select::cut(keys, top_k as u64, simd::count) {
                cut.drop_rest(keys);
            }
        }
        if top_p < 1.0 {
            let keys = &mut desk.keys[..gathered.unwrap_or(self.plan.vocab())];
            let sum: u64 =
                keys.par_chunks(BLOCK).map(|keys| simd::sum_weights(keys, scale, 0)).sum();
            // Exact: a power of two.
            let share = (f64::from(top_p) * 4_294_967_296.0) as u64;
            let limit = (u128::from(share) * u128::from(sum)) >> 32;
            // Of at least 1, so that the first is kept.
            let limit = limit.max(1) as u64;
            let cut = select::cut(keys, limit, |keys, weights| {
                simd::weigh(keys, scale, 0, weights);
            });
            if let Some(cut) = cut {
                cut.drop_rest(keys);
            }
        }
        gathered
    }

    /// The natural logarithm of the token's probability by the logits alone.
    fn logprob(&self, row: usize, token: usize) -> f32 {
        let logits = self.logits.row(row);
        let x = logits[token].get();
        if x.is_nan() || x == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        // Of raw keys: the mask is no matter here.
        let of_blocks = |work: &(dyn Fn(&[u32]) -> u64 + Sync), join: fn(u64, u64) -> u64| {
            let parts = logits.par_chunks(BLOCK).map(|logits| {
                let (mut wide, mut keys) = ([0.0; BLOCK], [0; BLOCK]);
                let keys = &mut keys[..logits.len()];
                simd::logit_keys(T::widen(logits, &mut wide), keys);
                work(keys)
            });
            parts.reduce(|| 0, join)
        };
        let largest = of_blocks(&|keys| u64::from(simd::max_key(keys)), u64::max) as u32;
        // Without a temperature, in whole units: one sum in any order.
        let scale = Scale::new(largest, 1.0);
        let sum = of_blocks(&|keys| simd::sum_weights(keys, scale, 0), |a, b| a + b);
        let below = if x == scale.max { 0.0 } else { f64::from(x - scale.max) };
        (below - (sum as f64 / (1u64 << 40) as f64).ln()) as f32
    }
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

impl Desk<'_> {
    /// The first entry with the largest key.
    fn first(&self, largest: u32) -> usize {
        let group = self.maxima.iter().position(|&key| key == largest).unwrap_or(0);
        let keys = self.keys[group * GROUP..].iter();
        group * GROUP + keys.take(GROUP).position(|&key| key == largest).unwrap_or(0)
    }

    /// Moves what can be among the `k` first to the front, in order, with its
    /// indices, and returns how many that are; `None` where groups say nothing
    /// about it.
    fn gather(&mut self, k: usize) -> Option<usize> {
        if k > self.maxima.len() / 2 {
            return None;
        }
        self.ranked.copy_from_slice(self.maxima);
        let bound = select::reached_by(k, self.ranked);
        let mut taken = 0;
        for (group, _) in self.maxima.iter().enumerate().filter(|(_, key)| **key >= bound) {
            let range = group * GROUP..self.keys.len().min((group + 1) * GROUP);
            for index in range {
                let key = self.keys[index];
                // Never beyond `index`.
                self.keys[taken] = key;
                self.indices[taken] = index as u32;
                taken += usize::from(key >= bound);
            }
        }
        Some(taken)
    }
}
