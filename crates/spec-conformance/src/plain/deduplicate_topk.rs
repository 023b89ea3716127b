//! `deduplicate_topk`: sort and drop repeats.

use spec_core::Result;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};

use crate::host::{packed, slice, slice_mut, unpack};

/// Sorts the values of every request.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let indices = packed(slice::<i32>(buffers.indices)?, &plan.indices);
    let unique = slice_mut::<i32>(buffers.unique)?;
    let mut counts = buffers.counts.map(slice_mut::<i32>).transpose()?;
    let row = plan.unique.cols;
    let mut inverse = Vec::new();
    for b in 0..plan.batch {
        let (distinct, count) = deduplicate_topk(&indices[b * row..][..row]);
        unique[b * plan.unique.row_stride..][..row].copy_from_slice(&distinct);
        if let Some(counts) = &mut counts {
            counts[b] = count;
        }
        inverse.extend(indices[b * row..][..row].iter().map(|&index| {
            distinct[..count as usize].binary_search(&index).map_or(-1, |place| place as i32)
        }));
    }
    if let (Some(view), Some(matrix)) = (buffers.inverse, &plan.inverse) {
        unpack(slice_mut(view)?, matrix, &inverse);
    }
    Ok(())
}

/// The distinct values of one request, ascending, then -1; and the number of distinct values.
fn deduplicate_topk(values: &[i32]) -> (Vec<i32>, i32) {
    let mut distinct: Vec<i32> = values.iter().copied().filter(|&v| v >= 0).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let count = distinct.len() as i32;
    distinct.resize(values.len(), -1);
    (distinct, count)
}
