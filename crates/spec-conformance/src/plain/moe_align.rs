//! `moe_align`: a list of picks for each expert, written one behind the other.

use spec_core::flags::OUT_OF_RANGE;
use spec_core::ops::moe_align::{Buffers, Plan};
use spec_core::{Matrix, Result};

use crate::host::{put_tokens, raise, slice, slice_mut, tokens};

/// What stands for no expert, no block and no place.
const NONE: i32 = -1;

/// Goes through the picks in order.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let picks = plan.picks();
    let ids = tokens(buffers.topk_ids, &plan.topk_ids)?;
    let map = buffers.expert_map.map(slice::<i32>).transpose()?;
    let mut lists = vec![Vec::new(); plan.params.local_experts];
    let mut flags = 0;
    for (pick, &id) in ids.iter().enumerate() {
        match local(plan, map, id) {
            NONE => {}
            local => match usize::try_from(local).ok().and_then(|at| lists.get_mut(at)) {
                Some(list) => list.push(pick),
                None => flags |= OUT_OF_RANGE,
            },
        }
    }

    let (mut sorted, mut blocks, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut offsets, mut inverse) = (vec![0], vec![NONE; picks]);
    for (expert, list) in lists.iter().enumerate() {
        for &pick in list {
            inverse[pick] = sorted.len() as i32;
            sorted.push(pick as i64);
        }
        let filled = sorted.len();
        let end = filled.next_multiple_of(plan.params.block_size);
        sorted.resize(end, picks as i64);
        blocks.resize(end / plan.params.block_size, expert as i32);
        while limits.len() < blocks.len() {
            let block_end = (limits.len() + 1) * plan.params.block_size;
            limits.push(block_end.min(filled) as i32);
        }
        offsets.push(end as i32);
    }
    let (padded, used) = (sorted.len() as i32, blocks.len() as i32);
    sorted.resize(plan.capacity, picks as i64);
    blocks.resize(plan.blocks(), NONE);
    limits.resize(plan.blocks(), 0);

    let dtype = buffers.sorted_ids.dtype();
    let row = Matrix { dtype, rows: 1, cols: plan.capacity, row_stride: 0 };
    put_tokens(buffers.sorted_ids, &row, &sorted)?;
    slice_mut::<i32>(buffers.block_experts)?.copy_from_slice(&blocks);
    let counts = slice_mut::<i32>(buffers.counts)?;
    counts.iter_mut().zip(&lists).for_each(|(count, list)| *count = list.len() as i32);
    slice_mut::<i32>(buffers.offsets)?.copy_from_slice(&offsets);
    slice_mut::<i32>(buffers.num_padded)?[0] = padded;
    if let Some(view) = buffers.inverse {
        slice_mut::<i32>(view)?.copy_from_slice(&inverse);
    }
    if let Some(view) = buffers.sorted_tokens {
        let k = plan.topk_ids.cols as i64;
        let token = |pick: i64| if pick < picks as i64 { (pick / k) as i32 } else { NONE };
        let tokens: Vec<_> = sorted.iter().map(|&pick| token(pick)).collect();
        slice_mut::<i32>(view)?.copy_from_slice(&tokens);
    }
    if let Some(view) = buffers.block_limits {
        slice_mut::<i32>(view)?.copy_from_slice(&limits);
    }
    if let Some(view) = buffers.num_blocks {
        slice_mut::<i32>(view)?[0] = used;
    }
    raise(buffers.flags, flags)
}

/// The local expert of an expert: NONE, or anything at all where data is bad.
fn local(plan: &Plan, map: Option<&[i32]>, id: i64) -> i32 {
    let known = usize::try_from(id).ok().filter(|&id| id < plan.params.experts);
    match (known, map) {
        (Some(expert), Some(map)) => map[expert],
        (Some(expert), None) => expert as i32,
        (None, _) if id == i64::from(NONE) => NONE,
        (None, _) => i32::MIN,
    }
}
