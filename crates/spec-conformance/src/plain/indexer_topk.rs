//! `indexer_topk`: a stable sort of each row.

use std::borrow::Cow;
use std::cmp::Reverse;

use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Result, exact, flags};

use crate::host::{floats, ints, put_tokens, raise, slice_mut, tokens, unpack};

/// Sorts row by row.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let scores = floats(buffers.scores, &plan.scores)?;
    let lengths = buffers.lengths.map(ints).transpose()?;
    let starts = buffers.starts.map(ints).transpose()?;
    let requests = buffers.requests.map(ints).transpose()?;
    let table = match (&plan.pages, buffers.block_table) {
        (Some(pages), Some(table)) => tokens(table, &pages.block_table)?,
        _ => Cow::Borrowed(&[][..]),
    };
    let (mut indices, mut values, mut slots, mut bits) = (vec![], vec![], vec![], 0);
    for row in 0..plan.scores.rows {
        let mut whole = true;
        let mut cut = |value: i64, max: usize| {
            let fits = value.clamp(0, max as i64);
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
        // The larger of negative infinity and NaN is negative infinity.
        values.extend(best.iter().map(|&index| scores[index].max(f32::NEG_INFINITY)));
        values.resize((row + 1) * plan.k, f32::NEG_INFINITY);
        let Some(pages) = &plan.pages else { continue };
        let blocks = pages.block_table.cols;
        let request = requests.as_ref().map_or(row as i64, |requests| requests[row]);
        if (0..pages.block_table.rows as i64).contains(&request) {
            let blocks = &table[request as usize * blocks..][..blocks];
            let size = pages.block_size;
            slots.extend(best.iter().map(|&index| {
                let block = blocks.get(index / size).copied().unwrap_or(-1);
                let slot = block * size as i64 + (index % size) as i64;
                if block >= 0 && slot < 1 << 31 {
                    return slot as i32;
                }
                bits |= flags::OUT_OF_RANGE;
                -1
            }));
        } else {
            bits |= flags::BAD_LENGTHS;
        }
        slots.resize((row + 1) * plan.k, -1);
    }
    put_tokens(buffers.indices, &plan.indices, &indices)?;
    if let (Some(view), Some(matrix)) = (buffers.values, &plan.values) {
        unpack(slice_mut(view)?, matrix, &values);
    }
    if let (Some(view), Some(pages)) = (buffers.slots, &plan.pages) {
        unpack(slice_mut(view)?, &pages.slots, &slots);
    }
    raise(buffers.flags, bits)
}
