//! `prompt_lookup` on the CPU: the shared search in one text a request.

use rayon::prelude::*;
use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::cut;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut};

use super::ngram::{FEW, PIECE, Pattern, Token};
use crate::Cpu;
use crate::slices::{Ints, Rows, Workspace, raise, slice_mut, workspace_size};

struct Prepared(Plan);

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<PromptLookup> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<PromptLookup>>> {
        Ok(Box::new(Prepared(plan.clone())))
    }
}

// SAFETY: as above.
unsafe impl Kernel<PromptLookup> for Prepared {
    fn workspace_size(&self) -> usize {
        // Two words a request: the longest match so far, and what is after it.
        workspace_size(&[self.0.tokens.rows.saturating_mul(2 * 8)])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        match self.0.tokens.dtype {
            DType::I32 => run::<i32>(&self.0, workspace, buffers),
            DType::U32 => run::<u32>(&self.0, workspace, buffers),
            _ => run::<i64>(&self.0, workspace, buffers),
        }
    }
}

/// Marks a request that is not settled by the part of its text that is searched on
/// the calling thread.
const OPEN: u64 = 1 << 63;

fn run<T: Token>(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let Plan { params, tokens, drafts, .. } = plan;
    let found = Workspace::new(workspace)?.take::<u64>(tokens.rows * 2)?;
    let rows = Rows::<T>::new(buffers.tokens, *tokens)?;
    let lengths = Ints::new(buffers.lengths)?;
    let text = |index| &rows.row(index)[..cut(lengths.get(index), tokens.cols)];
    let longest = |text: &[T]| match params.max_draft {
        0 => 0,
        _ => params.max_ngram.min(text.len().saturating_sub(1)),
    };
    let pattern = |text| Pattern {
        tokens: text,
        shortest: params.min_ngram,
        longest: longest(text),
        which: params.occurrence,
    };
    // What is searched of each text at first, from the preferred end: all, or so
    // much that many matches are found and waking threads would cost as much.
    let all: usize = (0..tokens.rows).map(|index| text(index).len()).sum();
    let share = if all <= FEW { FEW } else { PIECE / tokens.rows };
    let parts = |text: &[T]| {
        let ends = text.len().saturating_sub(1);
        match params.occurrence {
            Occurrence::First => [0..ends.min(share), ends.min(share)..ends],
            Occurrence::Last => [ends.saturating_sub(share)..ends, 0..ends.saturating_sub(share)],
        }
    };
    for (index, found) in found.chunks_mut(2).enumerate() {
        let (text, pattern) = (text(index), pattern(text(index)));
        let [first, rest] = parts(text);
        let best = pattern.search_alone(text, first);
        let open = best.len < pattern.longest && !rest.is_empty();
        found.copy_from_slice(&[best.len as u64 | if open { OPEN } else { 0 }, best.next as u64]);
    }
    if found.iter().step_by(2).any(|&len| len & OPEN != 0) {
        let open = found.par_chunks_mut(2).enumerate().filter(|(_, found)| found[0] & OPEN != 0);
        open.for_each(|(index, found)| {
            let (text, mut pattern) = (text(index), pattern(text(index)));
            let [_, rest] = parts(text);
            found[0] &= !OPEN;
            pattern.shortest = pattern.shortest.max(found[0] as usize + 1);
            let better = pattern.search(text, rest);
            if better.len > 0 {
                found.copy_from_slice(&[better.len as u64, better.next as u64]);
            }
        });
    }
    let out = slice_mut::<T>(buffers.drafts)?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let mut flags = 0;
    for (index, (found, count)) in found.chunks(2).zip(counts).enumerate() {
        let text = text(index);
        let candidates = if found[0] == 0 { &[] } else { &text[found[1] as usize..] };
        let draft = &candidates[..candidates.len().min(params.max_draft)];
        let (row, padding) =
            out[index * drafts.row_stride..][..drafts.cols].split_at_mut(draft.len());
        row.copy_from_slice(draft);
        padding.fill(T::NONE);
        *count = draft.len() as i32;
        flags |= if text.len() as i64 == lengths.get(index) { 0 } else { BAD_LENGTHS };
    }
    raise(buffers.flags, flags)
}
