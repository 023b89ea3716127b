//! `prompt_lookup` by its definition: compares every window, for every pattern length from the
//! longest down.

use spec_core::Result;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::options::unknown;

use super::texts;
use crate::host::{put_tokens, raise, slice_mut};

/// Looks up every request.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let known = (buffers.tokens, buffers.lengths);
    let (texts, flags) = texts::of_requests(known, &plan.tokens, buffers.requests)?;
    let limits = texts::limits(buffers.max_drafts, texts.len(), plan.params.max_draft)?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let mut drafts = Vec::new();
    for (b, (text, limit)) in texts.iter().zip(limits).enumerate() {
        let draft = look_up(text, &plan.params);
        let draft = &draft[..draft.len().min(limit)];
        counts[b] = draft.len() as i32;
        drafts.extend(draft);
        let padding = texts::padding(text, plan.params.pad_with_last);
        drafts.resize((b + 1) * plan.drafts.cols, padding);
    }
    put_tokens(buffers.drafts, &plan.drafts, &drafts)?;
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
