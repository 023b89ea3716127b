//! `prompt_lookup` by its definition: compares every window, for every pattern length from the
//! longest down.

use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::options::unknown;
use spec_core::{DType, Element, Result};

use crate::host::{ints, raise, slice_mut, tokens};

/// Looks up every request.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.tokens.dtype {
        DType::I32 => run_on(plan, buffers, |token| token as i32),
        DType::U32 => run_on(plan, buffers, |token| token as u32),
        _ => run_on(plan, buffers, |token| token),
    }
}

fn run_on<T: Element>(plan: &Plan, buffers: Buffers<'_>, narrow: impl Fn(i64) -> T) -> Result<()> {
    let tokens = tokens(buffers.tokens, &plan.tokens)?;
    let drafts = slice_mut::<T>(buffers.drafts)?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let mut flags = 0;
    for (b, &given) in ints(buffers.lengths)?.iter().enumerate() {
        let length = given.clamp(0, plan.tokens.cols as i64);
        flags |= if length == given { 0 } else { BAD_LENGTHS };
        let text = &tokens[b * plan.tokens.cols..][..length as usize];
        let draft = look_up(text, &plan.params);
        counts[b] = draft.len() as i32;
        let padded = draft.iter().copied().chain(std::iter::repeat(-1));
        let row = &mut drafts[b * plan.drafts.row_stride..][..plan.drafts.cols];
        row.iter_mut().zip(padded).for_each(|(to, token)| *to = narrow(token));
    }
    raise(buffers.flags, flags)
}

/// The draft for one text.
fn look_up<'t>(text: &'t [i64], params: &PromptLookup) -> &'t [i64] {
    for n in (params.min_ngram..=params.max_ngram.min(text.len().saturating_sub(1))).rev() {
        let mut windows = (0..text.len() - n).filter(|&i| text[i..i + n] == text[text.len() - n..]);
        let found = match params.occurrence {
            Occurrence::First => windows.next(),
            Occurrence::Last => windows.next_back(),
            other => unknown(other),
        };
        if let Some(i) = found {
            return &text[i + n..text.len().min(i + n + params.max_draft)];
        }
    }
    &[]
}
