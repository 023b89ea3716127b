//! Verification on the CPU: requests in parallel. Within a request, the recovery is the only
//! long scan; it runs over the vocabulary in parallel chunks.
//!
//! Walking over a request's drafts reads a few numbers per draft. The recovery reads a vocabulary
//! row of target and draft once, and the chunk that holds the answer twice. Each chunk gives an
//! integer (a maximum, a sum); integers combine in any order to the same result.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Buffers, MIN_RESIDUAL, Plan, Recovery};
use spec_core::options::unknown;
use spec_core::philox::{Draw, Purpose};
use spec_core::{Kernel, Matrix, Result, Route, Supports, ViewMut, exact, flags};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::race::{self, Finishers, Racers};
use crate::simd::{self, BLOCK, Float, GROUP};
use crate::slices::{
    Bools, Int, Ints, Rows, Workspace, raise, rows_mut, slice, slice_mut, workspace_size,
};

/// Vocabulary entries of a parallel chunk: enough work to outweigh a steal.
const CHUNK: usize = 8 * BLOCK;
/// Up to this many drafts and requests, the calling thread walks all requests in less time than
/// waking the other threads takes. Requests that need a row of the vocabulary are left to all
/// threads.
const FEW: usize = 1024;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<RejectionSample> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
        let words = plan.batch.saturating_mul(groups(plan)).saturating_mul(4);
        let size = workspace_size(&[words; 3]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<RejectionSample, _>(plan.clone(), size, launch, loops) })
    }
}

/// The number of groups of a row in the race; 1 for a call without a race.
fn groups(plan: &Plan) -> usize {
    if plan.samples() { plan.vocab().div_ceil(GROUP) } else { 1 }
}

/// Memory for the recovery of requests: in each slice, a word for each group of each request.
#[derive(Default)]
struct Scratch<'a> {
    /// The largest residual of each group, as its bits.
    maxima: &'a mut [u32],
    groups: &'a mut [u32],
    bounds: &'a mut [f32],
}

fn loops(plan: &Plan, route: &mut Route) {
    let mode = match plan.params.acceptance {
        Acceptance::Greedy => "greedy",
        _ => plan.params.recovery.name(),
    };
    let first = if walks_first(plan) { "first on one thread, then " } else { "" };
    let words = format!("{} requests, {first}on all threads", plan.batch);
    route.push(&format!("rejection_sample.{mode}"), words);
}

/// Whether the calling thread walks all requests before the other threads are woken.
fn walks_first(plan: &Plan) -> bool {
    plan.tokens().max(plan.batch) <= FEW
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let (mut workspace, words) = (Workspace::new(workspace)?, plan.batch * groups(plan));
    let scratch = Scratch {
        maxima: workspace.take(words)?,
        groups: workspace.take(words)?,
        bounds: workspace.take(words)?,
    };
    by_float!(plan.target.dtype, run(plan, scratch, buffers))
}

fn run<T: Float>(plan: &Plan, scratch: Scratch<'_>, buffers: Buffers<'_>) -> Result<()> {
    let verifier = Verifier {
        plan,
        target: Rows::<T>::new(buffers.target_probs, plan.target)?,
        draft: match (buffers.draft_probs, plan.draft) {
            (Some(view), Some(matrix)) => Some(Rows::<T>::new(view, matrix)?),
            _ => None,
        },
        ids: Ints::new(buffers.draft_token_ids)?,
        bonus: Ints::new(buffers.bonus_token_ids)?,
        offsets: Ints::new(buffers.cu_num_draft)?,
        uniform: buffers.uniform_samples.map(slice::<f32>).transpose()?,
        seeds: buffers.seeds.map_or(Ok(&[][..]), slice::<u64>)?,
        positions: buffers.positions.map_or(Ok(Ints::I64(&[])), Ints::new)?,
        greedy: match (buffers.greedy, plan.greedy) {
            (Some(view), Some(_)) => Some(Bools::new(view)?),
            _ => None,
        },
        flags: AtomicU32::new(0),
    };
    let count = |view| slice_mut::<i32>(view).map(|counts| &mut counts[..plan.batch]);
    let counts = [
        count(buffers.num_accepted)?,
        count(buffers.accepted_counts)?,
        count(buffers.recovered_counts)?,
        count(buffers.bonus_counts)?,
    ];
    let output = buffers.output_token_ids;
    by_int!(plan.output.dtype, verify::<T>(&verifier, output, counts, scratch))?;
    raise(buffers.flags, verifier.flags.into_inner())
}

fn verify<T: Float, I: Int>(
    verifier: &Verifier<'_, T>,
    output: ViewMut<'_>,
    counts: [&mut [i32]; 4],
    scratch: Scratch<'_>,
) -> Result<()> {
    verifier.verify(slice_mut::<I>(output)?, counts, scratch);
    Ok(())
}

struct Verifier<'a, T> {
    plan: &'a Plan,
    target: Rows<'a, T>,
    draft: Option<Rows<'a, T>>,
    ids: Ints<'a>,
    bonus: Ints<'a>,
    offsets: Ints<'a>,
    uniform: Option<&'a [f32]>,
    /// The seed of each request; empty if nothing is drawn.
    seeds: &'a [u64],
    positions: Ints<'a>,
    greedy: Option<Bools<'a>>,
    flags: AtomicU32,
}

#[derive(Clone, Copy)]
struct Walk {
    accepted: usize,
    rejected: Option<Rejected>,
}

/// The token at which a walk ended.
#[derive(Clone, Copy)]
enum Rejected {
    /// Probabilistic acceptance: the token is recovered from the residual of row `token`.
    Residual { token: usize },
    /// Greedy acceptance: the argmax of the target, which replaces the token, is already known.
    Greedy { argmax: usize },
}

impl<T: Float> Verifier<'_, T> {
    fn flag(&self, bits: u32) {
        self.flags.fetch_or(bits, Ordering::Relaxed);
    }

    /// Verifies every request: writes its output row and its four counts.
    fn verify<I: Int>(&self, output: &mut [I], counts: [&mut [i32]; 4], scratch: Scratch<'_>) {
        let [emitted, accepted, recovered, bonus] = counts;
        // A request that is not finished has 0 as its number of emitted tokens, and the number of
        // drafts accepted so far as its number of accepted tokens.
        emitted.fill(0);
        accepted.fill(0);
        if walks_first(self.plan) {
            let mut open = false;
            let Matrix { row_stride, cols, .. } = self.plan.output;
            for request in 0..self.plan.batch {
                let row = &mut output[request * row_stride..][..cols];
                let walk = match self.acceptance(request) {
                    Acceptance::Greedy => None,
                    Acceptance::Probabilistic => Some(self.walk(request, 0, row)),
                    other => unknown(other),
                };
                match walk {
                    Some(walk @ Walk { rejected: None, .. }) => {
                        let counts = [
                            &mut emitted[request],
                            &mut accepted[request],
                            &mut recovered[request],
                            &mut bonus[request],
                        ];
                        self.settle(request, walk, row, counts, Scratch::default());
                    }
                    walk => {
                        accepted[request] = walk.map_or(0, |walk| walk.accepted as i32);
                        open = true;
                    }
                }
            }
            if !open {
                return;
            }
        }
        let each = groups(self.plan);
        let Scratch { maxima, groups, bounds } = scratch;
        let scratch =
            (maxima.par_chunks_mut(each), groups.par_chunks_mut(each), bounds.par_chunks_mut(each));
        (
            rows_mut(output, self.plan.output),
            emitted,
            accepted,
            recovered,
            bonus,
            scratch.into_par_iter(),
        )
            .into_par_iter()
            .enumerate()
            .filter(|(_, (_, emitted, ..))| **emitted == 0)
            .for_each(|(request, (row, emitted, accepted, recovered, bonus, scratch))| {
                let (maxima, groups, bounds) = scratch;
                let scratch = Scratch { maxima, groups, bounds };
                let walk = self.walk(request, *accepted as usize, row);
                self.settle(request, walk, row, [emitted, accepted, recovered, bonus], scratch);
            });
    }

    /// Writes the token that ends a request's row, the padding behind it, and the counts.
    fn settle<I: Int>(
        &self,
        request: usize,
        walk: Walk,
        row: &mut [I],
        counts: [&mut i32; 4],
        scratch: Scratch<'_>,
    ) {
        let [emitted, accepted, recovered, bonus] = counts;
        let last = match walk.rejected {
            Some(rejected) => self.recover(request, walk.accepted, rejected, scratch),
            None => self.bonus(request),
        };
        row[walk.accepted] = I::of(last as i32);
        row[walk.accepted + 1..].fill(I::of(-1));
        *emitted = walk.accepted as i32 + 1;
        *accepted = walk.accepted as i32;
        *recovered = i32::from(walk.rejected.is_some());
        *bonus = i32::from(walk.rejected.is_none());
    }

    /// The rule by which drafts of a request are accepted.
    fn acceptance(&self, request: usize) -> Acceptance {
        match self.greedy {
            Some(greedy) if greedy.get(request) => Acceptance::Greedy,
            _ => self.plan.params.acceptance,
        }
    }

    /// The random numbers for a request's draft.
    fn draw(&self, request: usize, draft: usize, purpose: Purpose) -> Draw {
        let position = self.positions.get(request).wrapping_add(draft as i64);
        Draw::at(self.seeds[request], position, purpose)
    }

    /// The rows of a request's drafts, cut to `max_spec_len`; none if its offsets are not valid.
    fn tokens(&self, request: usize) -> Range<usize> {
        let end = request + usize::from(self.plan.has_leading_zero());
        let start = end.checked_sub(1).map_or(0, |start| self.offsets.get(start));
        let end = self.offsets.get(end);
        if start < 0 || end < start || end > self.plan.tokens() as i64 {
            self.flag(flags::BAD_LENGTHS);
            return 0..0;
        }
        let (start, end) = (start as usize, end as usize);
        let longest = start + self.plan.params.max_spec_len.min(end - start);
        if end > longest {
            self.flag(flags::BAD_LENGTHS);
        }
        start..longest
    }

    /// Accepts drafts and writes them to `row`, up to the first rejection. The drafts before
    /// `first` are already accepted and written.
    fn walk<I: Int>(&self, request: usize, first: usize, row: &mut [I]) -> Walk {
        let (tokens, acceptance) = (self.tokens(request), self.acceptance(request));
        for (position, token) in tokens.clone().enumerate().skip(first) {
            let id = self.ids.get(token);
            let valid = usize::try_from(id).ok().filter(|&id| id < self.plan.vocab());
            if valid.is_none() {
                self.flag(flags::OUT_OF_RANGE);
            }
            let rejected = match acceptance {
                Acceptance::Greedy => {
                    let argmax = self.argmax(self.target.row(token));
                    (valid != Some(argmax)).then_some(Rejected::Greedy { argmax })
                }
                Acceptance::Probabilistic => {
                    let accepted =
                        valid.is_some_and(|id| self.accepts(request, position, token, id));
                    (!accepted).then_some(Rejected::Residual { token })
                }
                other => unknown(other),
            };
            if rejected.is_some() {
                return Walk { accepted: position, rejected };
            }
            row[position] = I::of(id as i32);
        }
        Walk { accepted: tokens.len(), rejected: None }
    }

    fn accepts(&self, request: usize, position: usize, token: usize, id: usize) -> bool {
        let target = self.target.row(token)[id].get();
        let draft = self.draft.map_or(1.0, |draft| draft.row(token)[id].get());
        let u = match self.uniform {
            Some(samples) => samples[token],
            // Every random number is below 1, so a draft that is accepted with 1 needs none.
            None if exact::accepts(target, draft, 1.0) => return true,
            None => self.draw(request, position, Purpose::Accept).uniform(),
        };
        if !(target.is_finite() && draft.is_finite() && u.is_finite()) {
            self.flag(flags::NON_FINITE);
        }
        exact::accepts(target, draft, u)
    }

    fn bonus(&self, request: usize) -> usize {
        let id = usize::try_from(self.bonus.get(request)).ok();
        id.filter(|&id| id < self.plan.vocab()).unwrap_or_else(|| {
            self.flag(flags::OUT_OF_RANGE);
            0
        })
    }

    /// The token that replaces a request's rejected draft.
    fn recover(
        &self,
        request: usize,
        draft: usize,
        rejected: Rejected,
        scratch: Scratch<'_>,
    ) -> usize {
        let token = match rejected {
            Rejected::Greedy { argmax } => return argmax,
            Rejected::Residual { token } => token,
        };
        let residual = Residual {
            target: self.target.row(token),
            draft: self.draft.map(|draft| draft.row(token)),
            // Without probabilities the draft model counts as certain of its token: the residual
            // of that token is 0.
            skipped: match self.draft {
                Some(_) => None,
                None => usize::try_from(self.ids.get(token)).ok(),
            },
        };
        let (found, bad) = match self.plan.params.recovery {
            Recovery::Argmax => residual.argmax(),
            Recovery::Sample => {
                residual.sample(scratch, self.draw(request, draft, Purpose::Recover))
            }
            other => unknown(other),
        };
        if bad {
            self.flag(flags::NON_FINITE);
        }
        found.unwrap_or_else(|| self.argmax(residual.target))
    }

    /// The index of the largest finite entry, the lowest of equal ones; 0 if there is none.
    fn argmax(&self, row: &[T]) -> usize {
        let best = row
            .par_chunks(CHUNK)
            .enumerate()
            .map(|(chunk, values)| {
                let mut block = [0.0; BLOCK];
                let (mut best, mut bad) = (Best::default(), false);
                for (i, values) in values.chunks(BLOCK).enumerate() {
                    let (key, odd) = simd::max_finite(T::widen(values, &mut block));
                    best = best.better(Best { key, start: chunk * CHUNK + i * BLOCK });
                    bad |= odd;
                }
                (best, bad)
            })
            .reduce(Default::default, |a, b| (a.0.better(b.0), a.1 | b.1));
        let (best, bad) = best;
        if bad {
            self.flag(flags::NON_FINITE);
        }
        if best.key == 0 {
            return 0;
        }
        let end = row.len().min(best.start + BLOCK);
        let mut block = [0.0; BLOCK];
        let values = T::widen(&row[best.start..end], &mut block);
        best.start + simd::find_finite(values, best.key).unwrap_or(0)
    }
}

/// The largest key so far, and the start of the block that has it. Key 0 is below all keys.
#[derive(Clone, Copy, Default)]
struct Best {
    key: u32,
    start: usize,
}

impl Best {
    /// The one with the larger key; of equal keys, the earlier block.
    fn better(self, other: Best) -> Best {
        let other_wins =
            other.key > self.key || (other.key == self.key && other.start < self.start);
        if other_wins { other } else { self }
    }
}

/// The residual of a target row: `max(0, target - draft)`.
#[derive(Clone, Copy)]
struct Residual<'a, T> {
    target: &'a [T],
    draft: Option<&'a [T]>,
    /// The entry whose residual is 0, whatever its target probability.
    skipped: Option<usize>,
}

impl<T: Float> Residual<'_, T> {
    /// Calls `f` with the start and the values of each block of a range, without the skipped
    /// entry, until `f` returns `Some`.
    fn blocks<R>(
        &self,
        range: Range<usize>,
        mut f: impl FnMut(usize, &[f32], Option<&[f32]>) -> Option<R>,
    ) -> Option<R> {
        let (mut target, mut draft) = ([0.0; BLOCK], [0.0; BLOCK]);
        let mut start = range.start;
        while start < range.end {
            let mut end = range.end.min(start + BLOCK);
            if let Some(skipped) = self.skipped {
                if skipped == start {
                    start += 1;
                    continue;
                }
                if (start..end).contains(&skipped) {
                    end = skipped;
                }
            }
            let wide = T::widen(&self.target[start..end], &mut target);
            let other = self.draft.map(|d| T::widen(&d[start..end], &mut draft));
            if let Some(result) = f(start, wide, other) {
                return Some(result);
            }
            start = end;
        }
        None
    }

    fn chunk(&self, index: usize) -> Range<usize> {
        index * CHUNK..self.target.len().min((index + 1) * CHUNK)
    }

    /// The index of the largest positive residual, the lowest of equal ones; and whether any
    /// residual was not finite.
    fn argmax(&self) -> (Option<usize>, bool) {
        let chunks = self.target.len().div_ceil(CHUNK);
        let (best, bad) = (0..chunks)
            .into_par_iter()
            .map(|chunk| {
                let (mut best, mut bad) = (Best::default(), false);
                self.blocks(self.chunk(chunk), |start, target, draft| {
                    let (key, odd) = simd::max_residual(target, draft);
                    best = best.better(Best { key, start });
                    bad |= odd;
                    None::<()>
                });
                (best, bad)
            })
            .reduce(Default::default, |a, b| (a.0.better(b.0), a.1 | b.1));
        let found = (best.key > 0).then(|| {
            let end = self.target.len().min(best.start + BLOCK);
            self.blocks(best.start..end, |start, target, draft| {
                simd::find_residual(target, draft, best.key).map(|i| start + i)
            })
        });
        (found.flatten(), bad)
    }

    /// The residual that wins the race; and whether any residual was not finite.
    fn sample(&self, scratch: Scratch<'_>, draw: Draw) -> (Option<usize>, bool) {
        let Scratch { maxima, groups, bounds } = scratch;
        let bad = maxima
            .par_chunks_mut(CHUNK / GROUP)
            .enumerate()
            .map(|(chunk, maxima)| {
                let mut bad = false;
                for (block, maxima) in maxima.chunks_mut(BLOCK / GROUP).enumerate() {
                    let start = chunk * CHUNK + block * BLOCK;
                    bad |= self.with_values(start, BLOCK, |target, draft| {
                        simd::residual_maxima(target, draft, maxima)
                    });
                }
                bad
            })
            .reduce(|| false, |a, b| a | b);
        race::bound_residuals(draw, maxima, MIN_RESIDUAL, bounds);
        let mut first = Finishers::new(1);
        race::Room { bounds, groups }.race(draw, self, &mut first);
        (first.tokens().next(), bad)
    }

    /// Calls `f` with `len` values from `start` on, at most a block. The target of the skipped
    /// entry is 0.
    fn with_values<R>(
        &self,
        start: usize,
        len: usize,
        f: impl FnOnce(&[f32], Option<&[f32]>) -> R,
    ) -> R {
        let range = start..self.target.len().min(start + len);
        let (mut wide, mut of_draft, mut without) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        let mut target = T::widen(&self.target[range.clone()], &mut wide);
        if let Some(skipped) = self.skipped.filter(|skipped| range.contains(skipped)) {
            let copy = &mut without[..target.len()];
            copy.copy_from_slice(target);
            copy[skipped - start] = 0.0;
            target = copy;
        }
        f(target, self.draft.map(|draft| T::widen(&draft[range], &mut of_draft)))
    }
}

impl<T: Float> Racers for Residual<'_, T> {
    fn slowness(&self, group: usize, slowness: &mut [f32; GROUP]) {
        self.with_values(group * GROUP, GROUP, |target, draft| {
            simd::residual_slowness(target, draft, MIN_RESIDUAL, slowness);
        });
    }
}
