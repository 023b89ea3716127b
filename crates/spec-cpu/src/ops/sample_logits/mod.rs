//! Sampling on the CPU: rows in parallel. If there are fewer rows than threads, each pass over a
//! row runs in parallel chunks.
//!
//! The first pass over a row (the survey) finds the largest key ([`exact::sort_key`]) of each
//! group of 64 logits. The maxima give the largest logit, show which groups have any weight, and
//! bound the times of the race ([`crate::race`]), which reads a few groups again. With filters,
//! a lower bound of the entries that can stay follows from the maxima or from the sum of all
//! weights. The entries that reach the bound, in most rows only a few, are gathered, and the row
//! is cut among them ([`crate::select`]).

mod columns;
mod cut;
mod outputs;
mod report;
mod row;

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::exact::{self, sampling};
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, MAX_DRAWS, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Kernel, Result, Route, Supports, ViewMut, flags};

use self::columns::Columns;
use self::cut::{Kept, cut, total};
use self::outputs::{OutputRow, Outputs, WorkerRange};
use self::report::report;
use self::row::{ColumnScratch, Logits, Room, Scratch};
use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::race::{self, Finishers, Racers};
use crate::simd::{self, BLOCK, Float, GROUP};
use crate::slices::{Int, Ints, Rows, Workspace, raise, slice, workspace_size};
use crate::weights::{self, Scale};

/// The tokens that a row has drawn.
struct Tokens {
    list: [usize; MAX_DRAWS],
    count: usize,
}

impl FromIterator<usize> for Tokens {
    fn from_iter<I: IntoIterator<Item = usize>>(tokens: I) -> Self {
        let mut all = Tokens { list: [0; MAX_DRAWS], count: 0 };
        for (to, token) in all.list.iter_mut().zip(tokens) {
            *to = token;
            all.count += 1;
        }
        all
    }
}

impl Deref for Tokens {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.list[..self.count]
    }
}

/// The number of blocks of a parallel chunk: enough work to outweigh the cost of moving it to
/// another thread.
const CHUNK: usize = 8;
/// The sort key of negative infinity. A token with this key cannot be chosen.
const LOWEST: u32 = 0x007F_FFFF;
/// The unit of weights, 2^-40.
const UNIT: f64 = 1.0 / (1u64 << 40) as f64;
/// Weights below e to this power are less than one unit.
const NO_UNIT: f32 = -28.0;

struct Prepared {
    plan: Plan,
    /// The number of rows in work at the same time, each with scratch of its own.
    workers: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<SampleLogits> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        let workers = plan.rows().min(rayon::current_num_threads());
        let prepared = Prepared { plan: plan.clone(), workers };
        let words = |each: usize| workers.saturating_mul(each).saturating_mul(4);
        let [vocab, groups] = [plan.vocab(), prepared.groups()].map(words);
        let [order, sums] = [2 * plan.vocab(), 2 * prepared.blocks()].map(words);
        let copy = words(prepared.columns());
        let rows = [order, sums, vocab, vocab, groups, groups, groups, copy, copy, copy];
        let size = workspace_size(&rows);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<SampleLogits, _>(prepared, size, launch, loops) })
    }
}

impl Prepared {
    /// Whether the chunks of a row are shared between threads. With at least as many rows as
    /// threads, no row is split.
    fn splits_rows(&self) -> bool {
        self.workers < rayon::current_num_threads()
    }

    fn groups(&self) -> usize {
        self.plan.vocab().div_ceil(GROUP)
    }

    fn blocks(&self) -> usize {
        self.plan.vocab().div_ceil(BLOCK)
    }

    /// The number of columns of a row that is copied; 0 if rows are not.
    fn columns(&self) -> usize {
        if self.plan.by_column() || self.plan.largest { self.plan.vocab() } else { 0 }
    }
}

fn loops(prepared: &Prepared, route: &mut Route) {
    let Prepared { plan, workers } = prepared;
    if *workers > 0 {
        let name = match plan {
            _ if plan.largest => "sample_logits.largest",
            _ if plan.by_column() => "sample_logits.columns",
            _ if plan.filters => "sample_logits.filters",
            _ => "sample_logits.plain",
        };
        let split = if prepared.splits_rows() { "rows split" } else { "rows whole" };
        let rows = plan.rows().div_ceil(*workers);
        route.push(name, format_args!("{workers} workers of {rows} rows, {split}"));
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
    mut buffers: Buffers<'_>,
) -> Result<()> {
    let flags = buffers.flags.take();
    let Prepared { plan, workers } = p;
    let (vocab, groups, blocks) = (plan.vocab(), p.groups(), p.blocks());
    let scratch = Scratch {
        order: workspace.take(workers * vocab)?,
        sums: workspace.take(workers * blocks)?,
        keys: workspace.take(workers * vocab)?,
        indices: workspace.take(workers * vocab)?,
        maxima: workspace.take(workers * groups)?,
        ranked: workspace.take(workers * groups)?,
        bounds: workspace.take(workers * groups)?,
        columns: ColumnScratch {
            raw: workspace.take(workers * p.columns())?,
            values: workspace.take(workers * p.columns())?,
            tokens: workspace.take(workers * p.columns())?,
        },
    };
    let met = AtomicU32::new(0);
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
        columns: by_column(plan, &buffers)?,
        // With at least as many rows as threads, no row is split.
        chunk: if p.splits_rows() { CHUNK } else { blocks },
    };
    // Each worker takes `each` rows, one after the other.
    let each = plan.rows().div_ceil(p.workers);
    let outputs = Outputs::<I>::new(plan, buffers)?;
    let all = WorkerRange { workers: 0..p.workers, scratch, outputs };
    rayon::iter::split(all, |range| range.split(p, each)).for_each(|range| {
        let WorkerRange { workers, scratch, mut outputs } = range;
        // rayon may stop before each range has one worker. Then the scratch of the range's
        // first worker serves all rows of the range.
        let (mut scratch, _) = scratch.split(1, [vocab, blocks, groups, p.columns()]);
        let first = workers.start * each;
        for row in first..plan.rows().min(workers.end * each) {
            let bits = sampler.write(row, &mut scratch, outputs.row(row - first));
            if let Some([row_flags]) = outputs.row_flags.row(row - first) {
                *row_flags = bits;
            }
            if bits != 0 {
                met.fetch_or(bits, Ordering::Relaxed);
            }
        }
    });
    raise(flags, met.into_inner())
}

/// The arguments of rows by columns; `None` for a call without them.
fn by_column<'a>(plan: &Plan, buffers: &Buffers<'a>) -> Result<Option<Columns<'a>>> {
    if !plan.by_column() && !plan.largest {
        return Ok(None);
    }
    Ok(Some(Columns {
        ids: match (buffers.token_ids, plan.token_ids) {
            (Some(view), Some(matrix)) => Some((Ints::new(view)?, matrix)),
            _ => None,
        },
        first: plan.params.first_token.cast_unsigned(),
        maxima: buffers.maxima.map(slice).transpose()?,
        forced: buffers.forced.map(slice).transpose()?,
    }))
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
    columns: Option<Columns<'a>>,
    /// The number of blocks of a row that one thread takes at a time.
    chunk: usize,
}

/// The sampling parameters of a request.
pub(super) struct Options {
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

/// The outputs about a row's tokens that are written as the tokens are drawn.
struct Drawn<'a> {
    /// The distribution that the tokens were drawn from.
    probs: Option<&'a mut [f32]>,
    /// The logarithm of each token's share.
    logprobs: Option<&'a mut [f32]>,
}

impl Drawn<'_> {
    /// The output for a row without a draw: the token `first` has probability 1.
    fn certain(self, first: usize) {
        if let Some(probs) = self.probs {
            probs.fill(0.0);
            probs[first] = 1.0;
        }
        if let Some(logprobs) = self.logprobs {
            logprobs.fill(f32::NEG_INFINITY);
            logprobs[0] = 0.0;
        }
    }
}

impl<T: Float> Sampler<'_, T> {
    /// Writes the outputs of a row. Returns the row's flags.
    fn write<I: Int>(
        &self,
        row: usize,
        scratch: &mut Scratch<'_>,
        outputs: OutputRow<'_, I>,
    ) -> u32 {
        let request = self.requests.map_or(row as i64, |requests| requests.get(row));
        if request == -1 {
            outputs.pad();
            return 0;
        }
        if let Some(columns) = &self.columns {
            return self.write_by_column(row, request, columns, scratch, outputs);
        }
        let mut met = 0;
        let first = self.sample(row, request, scratch, outputs.drawn, &mut met);
        if let Some(tokens) = outputs.tokens {
            let there = first.iter().map(|&token| token as i32);
            let all = there.chain(std::iter::repeat(-1));
            tokens.iter_mut().zip(all).for_each(|(to, token)| *to = I::of(token));
        }
        if self.plan.reports() {
            let logits = Logits { logits: self.logits.row(row), mask: None, chunk: self.chunk };
            report(&logits, &first, scratch, outputs.reported);
        }
        met
    }

    /// The tokens of a row, in the order in which they finish. Adds flags to `met`.
    fn sample(
        &self,
        row: usize,
        request: i64,
        scratch: &mut Scratch<'_>,
        drawn: Drawn<'_>,
        met: &mut u32,
    ) -> Tokens {
        let logits = Logits {
            logits: self.logits.row(row),
            mask: self.mask.map(|mask| mask.row(row)),
            chunk: self.chunk,
        };
        if logits.survey(scratch.maxima) {
            *met |= flags::NON_FINITE;
        }
        let largest = simd::max_key(scratch.maxima);
        if largest == LOWEST {
            *met |= flags::NON_FINITE;
            let token = self.lowest_allowed(row);
            drawn.certain(token);
            return Tokens::from_iter([token]);
        }
        let Some(options) = self.options(request, met) else {
            let tokens: Tokens = if self.plan.draws() == 1 {
                [logits.first(largest, scratch.maxima)].into_iter().collect()
            } else {
                let first = logits.likeliest(self.plan.draws(), scratch);
                first.filter(|first| first.key() > LOWEST).map(|first| first.token()).collect()
            };
            // There are no tokens only if another thread has lowered all logits since the survey.
            drawn.certain(tokens.first().copied().unwrap_or(0));
            return tokens;
        };
        let scale = Scale::new(exact::from_sort_key(largest), options.inverse);
        let light_first = self.plan.params.min_p_first && options.floor > 0;
        let kept = options
            .cuts(self.plan.vocab())
            .then(|| cut(&logits, &options, light_first, scale, scratch));
        // A token whose weight is below one unit does not race.
        let scale = scale.at_least(options.floor.max(1));
        let total = match kept {
            Some(kept) => kept.total,
            None if drawn.probs.is_none() && drawn.logprobs.is_none() => 0,
            None => total(logits.sums(scale, scratch).iter().copied()),
        };
        if let Some(probs) = drawn.probs {
            match kept {
                Some(kept) => kept.shares(scale, scratch, probs),
                None => logits.shares(scale, total, probs),
            }
        }
        let draw = Draw::at(options.seed, self.positions.get(row), Purpose::Sample);
        let racers = Contest { logits: &logits, scale, kept, inverse: options.inverse };
        let tokens = racers.first(draw, self.plan.draws(), options.floor, scratch);
        if let Some(logprobs) = drawn.logprobs {
            logprobs.fill(f32::NEG_INFINITY);
            let whole = (total as f64 * UNIT).ln();
            for (logprob, &token) in logprobs.iter_mut().zip(&*tokens) {
                let x = logits.logits[token].get();
                let weight = sampling::weight(x, exact::from_sort_key(largest), options.inverse);
                *logprob = (f64::from(weight).ln() - whole) as f32;
            }
        }
        tokens
    }

    /// The lowest token that the mask allows, else 0.
    fn lowest_allowed(&self, row: usize) -> usize {
        let Some(mask) = self.mask else { return 0 };
        let set = mask.row(row).iter().enumerate().find(|(_, bits)| **bits != 0);
        let lowest = set.map(|(word, bits)| word * 32 + bits.trailing_zeros() as usize);
        // The last word of the mask may have bits beyond the vocabulary.
        lowest.filter(|&token| token < self.plan.vocab()).unwrap_or(0)
    }

    /// The parameters of a request; `None` if it asks for the likeliest token. Adds flags to `met`.
    fn options(&self, request: i64, met: &mut u32) -> Option<Options> {
        let request = usize::try_from(request).ok().filter(|&r| r < self.plan.requests);
        let temperature = request.map_or(f32::NAN, |request| self.temperature[request]);
        if temperature.is_nan() || temperature < 0.0 {
            *met |= flags::BAD_LENGTHS;
        }
        let request = request.filter(|_| temperature > 0.0)?;
        let top_p = self.top_p.map_or(1.0, |top_p| top_p[request]);
        let min_p = self.min_p.map_or(0.0, |min_p| min_p[request]);
        if top_p.is_nan() || min_p.is_nan() {
            *met |= flags::BAD_LENGTHS;
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
}

/// A key such that tokens with smaller keys have less than one unit of weight, or less than `floor`.
fn lightest(scale: Scale, floor: u64) -> u32 {
    let least = scale.reaches(NO_UNIT);
    if floor == 0 { least } else { least.max(scale.reaches((floor as f64 * UNIT).ln() as f32)) }
}

/// The tokens of a row that race.
struct Contest<'a, T> {
    logits: &'a Logits<'a, T>,
    scale: Scale,
    inverse: f32,
    /// The entries that `top_k` and `top_p` keep, if they drop any.
    kept: Option<Kept>,
}

impl<T: Float> Contest<'_, T> {
    /// The first `wanted` tokens to finish.
    fn first(&self, draw: Draw, wanted: usize, floor: u64, scratch: &mut Scratch<'_>) -> Tokens {
        let max = self.scale.max();
        let least = lightest(self.scale, floor).max(self.kept.map_or(0, |kept| kept.key));
        race::bound_logits(draw, scratch.maxima, least, max, self.inverse, scratch.bounds);
        let mut finishers = Finishers::new(wanted);
        let mut room = race::Room { bounds: scratch.bounds, groups: scratch.ranked };
        room.race(draw, self, &mut finishers);
        finishers.tokens().collect()
    }
}

impl<T: Float> Racers for Contest<'_, T> {
    fn slowness(&self, group: usize, slowness: &mut [f32; GROUP]) {
        let mut room = Room::new();
        let start = group * GROUP;
        let [_, values] = self.logits.piece(start, GROUP, &mut room);
        weights::slowness(values, self.scale, slowness);
        if let Some(kept) = self.kept {
            for (i, (slowness, &x)) in slowness.iter_mut().zip(values).enumerate() {
                if !kept.keeps(exact::sort_key(x), start + i) {
                    *slowness = f32::INFINITY;
                }
            }
        }
    }
}
