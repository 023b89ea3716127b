//! `append_tokens` on the CPU: the requests of a batch one after the other, on the calling thread.
//! A request takes only a few tokens, so a whole batch costs less than waking another thread.

use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::AppendTokens;
use spec_core::ops::append_tokens::{AT_LENGTH, Buffers, Plan, RUNNING, STOPPED};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Ints, once, raise, slice_mut};

// SAFETY: `launch` works on checked slices of the buffers.
unsafe impl Supports<AppendTokens> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AppendTokens>>> {
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<AppendTokens, _>(plan.clone(), 0, launch, loops) })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    route.push("append_tokens", format_args!("{} requests, one thread", plan.batch()));
}

fn launch(plan: &Plan, _: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.tokens.dtype, by_lengths(plan, buffers))
}

fn by_lengths<T: Int>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.lengths, run::<T>(plan, buffers))
}

fn run<T: Int, L: Int>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let texts = slice_mut::<T>(buffers.tokens)?;
    let lengths = slice_mut::<L>(buffers.lengths)?;
    let mut finished = buffers.finished.map(slice_mut::<i32>).transpose()?;
    let appended = slice_mut::<i32>(buffers.appended)?;
    let mut last_tokens = buffers.last_tokens.map(slice_mut::<T>).transpose()?;
    let new = New {
        plan,
        tokens: Ints::new(buffers.new_tokens)?,
        counts: Ints::new(buffers.new_counts)?,
        stop_tokens: buffers.stop_tokens.map(Ints::new).transpose()?,
        max_lengths: buffers.max_lengths.map(Ints::new).transpose()?,
    };
    let mut bits = 0;
    for request in 0..plan.batch() {
        let text = &mut texts[request * plan.tokens.row_stride..][..plan.tokens.cols];
        let start = cut(once(&lengths[request]).wide(), text.len(), &mut bits);
        let mut length = start;
        let mut ignored = RUNNING;
        let state = finished.as_mut().map_or(&mut ignored, |finished| &mut finished[request]);
        if once(state) == RUNNING {
            (length, *state) = new.append(request, text, start, &mut bits);
        }
        // A length is at most the columns of a row, which an i32 holds.
        lengths[request] = L::of(length as i32);
        appended[request] = (length - start) as i32;
        if let Some(last_tokens) = &mut last_tokens {
            last_tokens[request] = text[..length].last().copied().unwrap_or(T::of(-1));
        }
    }
    raise(buffers.flags, bits)
}

/// A length or a count, cut to `0 ..= max`; raises the flag if it was outside.
fn cut(value: i64, max: usize, bits: &mut u32) -> usize {
    let within = value.clamp(0, max as i64);
    if within != value {
        *bits |= BAD_LENGTHS;
    }
    within as usize
}

/// The new tokens, and the limits of the texts that take them.
struct New<'a> {
    plan: &'a Plan,
    tokens: Ints<'a>,
    counts: Ints<'a>,
    stop_tokens: Option<Ints<'a>>,
    max_lengths: Option<Ints<'a>>,
}

impl New<'_> {
    /// Appends to the text of a request that has not finished. Returns the text's new length and
    /// the request's new `finished`.
    fn append<T: Int>(
        &self,
        request: usize,
        text: &mut [T],
        start: usize,
        bits: &mut u32,
    ) -> (usize, i32) {
        let rows = self.plan.new_tokens;
        let count = cut(self.counts.get(request), rows.cols, bits);
        let max = self.max_lengths.map_or(i64::MAX, |lengths| lengths.get(request));
        // A negative limit leaves no room, like 0.
        let max = max.clamp(0, text.len() as i64) as usize;
        let mut length = start;
        for column in 0..count.min(max.saturating_sub(start)) {
            let token = self.tokens.get(request * rows.row_stride + column);
            let Some(token) = i32::try_from(token).ok().filter(|&token| token >= 0) else {
                *bits |= OUT_OF_RANGE;
                return (length, RUNNING);
            };
            text[length] = T::of(token);
            length += 1;
            if self.is_stop(request, token) {
                return (length, STOPPED);
            }
        }
        (length, if length >= max { AT_LENGTH } else { RUNNING })
    }

    fn is_stop(&self, request: usize, token: i32) -> bool {
        let (Some(stops), Some(rows)) = (&self.stop_tokens, self.plan.stop_tokens) else {
            return false;
        };
        (0..rows.cols).any(|column| stops.get(request * rows.row_stride + column) == token.into())
    }
}
