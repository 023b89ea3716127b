//! `indexer_topk`: a stable sort of each row.

use std::borrow::Cow;
use std::cmp::Reverse;

use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Result, exact, flags};

use crate::host::{floats, ints, put_tokens, raise, slice_mut, tokens, unpack};

/// What a row can choose: a position, a block of positions, or a column that stands for a position.
struct Item {
    /// The position or the number of the block.
    index: usize,
    score: f32,
}

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
    let candidates = match (&plan.candidates, buffers.candidates) {
        (Some(candidates), Some(view)) => tokens(view, &candidates.matrix)?,
        _ => Cow::Borrowed(&[][..]),
    };
    let (mut indices, mut values, mut slots, mut bits) = (vec![], vec![], vec![], 0);
    for row in 0..plan.scores.rows {
        let cols = plan.scores.cols;
        let scores = &scores[row * cols..][..cols];
        let length = lengths.as_ref().map(|lengths| lengths[row]);
        let items = match &plan.candidates {
            Some(given) => {
                let c = given.matrix.cols;
                covered(given.block, &candidates[row * c..][..c], scores, length, &mut bits)
            }
            None => {
                let start = starts.as_ref().map(|starts| starts[row]);
                blocks(plan.blocks.pool, ranged(scores, length, start, &mut bits))
            }
        };
        // The larger of negative infinity and NaN is negative infinity.
        let best = choose(plan, &items);
        indices.extend(best.iter().map(|&item| items[item].index as i64));
        indices.resize((row + 1) * plan.k, -1);
        values.extend(best.iter().map(|&item| items[item].score.max(f32::NEG_INFINITY)));
        values.resize((row + 1) * plan.k, f32::NEG_INFINITY);
        let Some(pages) = &plan.pages else { continue };
        let blocks = pages.block_table.cols;
        let request = requests.as_ref().map_or(row as i64, |requests| requests[row]);
        if (0..pages.block_table.rows as i64).contains(&request) {
            let blocks = &table[request as usize * blocks..][..blocks];
            let size = pages.block_size;
            slots.extend(best.iter().map(|&item| {
                let index = items[item].index;
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

/// The scores that a row covers. A NaN among them sets flag 1.
fn ranged<'a>(
    scores: &'a [f32],
    length: Option<i64>,
    start: Option<i64>,
    bits: &mut u32,
) -> &'a [f32] {
    let mut cut = |value: i64, max: usize| {
        let fits = value.clamp(0, max as i64);
        *bits |= if fits == value { 0 } else { flags::BAD_LENGTHS };
        fits as usize
    };
    let start = start.map_or(0, |start| cut(start, scores.len()));
    let rest = scores.len() - start;
    let scores = &scores[start..][..length.map_or(rest, |length| cut(length, rest))];
    *bits |= if scores.iter().any(|score| score.is_nan()) { flags::NON_FINITE } else { 0 };
    scores
}

/// The blocks of a row's scores.
fn blocks(pool: usize, scores: &[f32]) -> Vec<Item> {
    let score_of = |block: &[f32]| match block {
        [score] if pool == 1 => *score,
        block => {
            let key = block.iter().map(|&score| exact::sort_key(score)).max();
            exact::from_sort_key(key.expect("a block has scores"))
        }
    };
    let blocks = scores.chunks(pool).enumerate();
    blocks.map(|(index, block)| Item { index, score: score_of(block) }).collect()
}

/// The columns of a row that are covered.
fn covered(
    block: usize,
    candidates: &[i64],
    scores: &[f32],
    length: Option<i64>,
    bits: &mut u32,
) -> Vec<Item> {
    *bits |= if length.is_some_and(|length| length < 0) { flags::BAD_LENGTHS } else { 0 };
    let mut items: Vec<Item> = vec![];
    for (column, &score) in scores.iter().enumerate() {
        let candidate = candidates[column / block];
        let position = candidate * block as i64 + (column % block) as i64;
        if candidate < -1 || position >= 1 << 31 {
            *bits |= flags::OUT_OF_RANGE;
        } else if candidate >= 0 && length.is_none_or(|length| position < length) {
            items.push(Item { index: position as usize, score });
        }
    }
    let has_nan = items.iter().any(|item| item.score.is_nan());
    *bits |= if has_nan { flags::NON_FINITE } else { 0 };
    items
}

/// The places of the chosen items, ascending.
fn choose(plan: &Plan, items: &[Item]) -> Vec<usize> {
    let first = plan.blocks.forced_first.min(items.len());
    let last = items.len() - plan.blocks.forced_last.min(items.len() - first);
    let mut others: Vec<usize> = (first..last).collect();
    others.sort_by_key(|&item| Reverse(exact::sort_key(items[item].score)));
    let mut chosen: Vec<usize> = (0..first).chain(last..items.len()).collect();
    chosen.extend(&others[..others.len().min(plan.k - chosen.len())]);
    chosen.sort_unstable();
    chosen
}
