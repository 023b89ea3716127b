//! `prompt_lookup` on the CPU: the search of [`ngram`](super::ngram) in one text per request.

use rayon::prelude::*;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::options::unknown;
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::ngram::{FEW, Match, PIECE, Pattern, Token, in_turns};
use super::texts::{Drafts, Limits, Texts};
use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Workspace, raise, slice_mut, workspace_size};

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<PromptLookup> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<PromptLookup>>> {
        // Two words per request: the length of its longest match so far, and where the match ends.
        let size = workspace_size(&[plan.batch().saturating_mul(2 * 8)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<PromptLookup, _>(plan.clone(), size, launch, loops) })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    let name = format!("prompt_lookup.{}", plan.params.occurrence.name());
    route.push(&name, in_turns(plan.tokens.rows));
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.tokens.dtype, run(plan, workspace, buffers))
}

/// Marks the longest match so far of a request whose search goes on, because the calling thread
/// did not find the longest pattern in the part of the text that it searched.
const OPEN: u64 = 1 << 63;
/// The calling thread searches at least this many tokens of each request, as long as that makes
/// at most [`FEW`] tokens in all.
const WORTHWHILE: usize = 128;

fn run<T: Token + Int>(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let Plan { params, drafts, .. } = plan;
    let batch = plan.batch();
    let found = Workspace::new(workspace)?.take::<u64>(batch * 2)?;
    let texts = Texts::<T>::new(plan.tokens, buffers.tokens, buffers.lengths, buffers.requests)?;
    let limits = Limits::new(params.max_draft, buffers.max_drafts)?;
    let mut out = Drafts::<T>::new(*drafts, buffers.drafts, params.pad_with_last)?;
    let counts = &mut slice_mut::<i32>(buffers.counts)?[..batch];
    let text = |index| texts.text(index);
    let pattern = |text, index| Pattern {
        tokens: text,
        shortest: params.min_ngram,
        longest: match limits.get(index) {
            0 => 0,
            _ => params.max_ngram.min(text.len().saturating_sub(1)),
        },
        which: params.occurrence,
    };
    let mut write = |text: &[T], index: usize, best: Match| {
        // A text that another thread has made shorter since the search has no candidates.
        let candidates = if best.len == 0 { None } else { text.get(best.next..) };
        let candidates = candidates.unwrap_or_default();
        let draft = &candidates[..candidates.len().min(limits.get(index))];
        out.write(index, text, draft.iter().copied());
        counts[index] = draft.len() as i32;
    };
    // The number of tokens of each text that the calling thread searches first, from the
    // preferred end: all, or so many that the search takes about as long as waking threads.
    let all: usize = (0..batch).map(|index| text(index).len()).sum();
    let share = match all {
        ..=FEW => FEW,
        _ => (PIECE / batch).max(WORTHWHILE.min(FEW / batch)),
    };
    let parts = |text: &[T]| {
        let ends = text.len().saturating_sub(1);
        match params.occurrence {
            Occurrence::First => [0..ends.min(share), ends.min(share)..ends],
            Occurrence::Last => [ends.saturating_sub(share)..ends, 0..ends.saturating_sub(share)],
            other => unknown(other),
        }
    };
    let (mut flags, mut any_open) = (0, false);
    for (index, found) in found.chunks_exact_mut(2).enumerate() {
        let (text, bits) = texts.get(index);
        let text = text.unwrap_or_default();
        let pattern = pattern(text, index);
        let [first, rest] = parts(text);
        let best = pattern.search_alone(text, first);
        let open = best.len < pattern.longest && !rest.is_empty();
        if open {
            found.copy_from_slice(&[best.len as u64 | OPEN, best.next as u64]);
        } else {
            found[0] = 0;
            write(text, index, best);
        }
        any_open |= open;
        flags |= bits;
    }
    if any_open {
        let open = found.par_chunks_mut(2).enumerate().filter(|(_, found)| found[0] & OPEN != 0);
        open.for_each(|(index, found)| {
            let text = text(index);
            let mut pattern = pattern(text, index);
            let [_, rest] = parts(text);
            let len = (found[0] & !OPEN) as usize;
            pattern.shortest = pattern.shortest.max(len + 1);
            let better = pattern.search(text, rest);
            if better.len > 0 {
                found.copy_from_slice(&[better.len as u64 | OPEN, better.next as u64]);
            }
        });
        for (index, found) in found.chunks_exact(2).enumerate() {
            if found[0] & OPEN != 0 {
                let best = Match { len: (found[0] & !OPEN) as usize, next: found[1] as usize };
                write(text(index), index, best);
            }
        }
    }
    raise(buffers.flags, flags)
}
