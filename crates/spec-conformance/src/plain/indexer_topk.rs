//! `indexer_topk`: a stable sort of each row.

use std::cmp::Reverse;

use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Result, exact, flags};

use crate::host::{floats, ints, put_tokens, raise};

/// Sorts row by row.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let scores = floats(buffers.scores, &plan.scores)?;
    let lengths = buffers.lengths.map(ints).transpose()?;
    let starts = buffers.starts.map(ints).transpose()?;
    let (mut indices, mut bits) = (Vec::new(), 0);
    for row in 0..plan.scores.rows {
        let mut whole = true;
        let mut cut = |value: i64, most: usize| {
            let fits = value.clamp(0, most as i64);
            whole &= fits == value;
            fits as usize
        };
        let cols = plan.scores.cols;
        let start = starts.as_ref().map_or(0, |starts| cut(starts[row], cols));
        let rest = cols - start;
        let length = lengths.as_ref().map_or(rest, |lengths| cut(lengths[row], rest));
        let scores = &scores[row * cols + start..][..length];
        bits |= if whole { 0 } else { flags::BAD_LENGTHS };
        bits |= if scores.iter().any(|score| score.is_nan()) { flags::NON_FINITE } else { 0 };
        let mut best: Vec<usize> = (0..length).collect();
        best.sort_by_key(|&index| Reverse(exact::sort_key(scores[index])));
        best.truncate(plan.k);
        best.sort_unstable();
        indices.extend(best.iter().map(|&index| index as i64));
        indices.resize((row + 1) * plan.k, -1);
    }
    put_tokens(buffers.indices, &plan.indices, &indices)?;
    raise(buffers.flags, bits)
}
