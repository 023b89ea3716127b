//! `unique`: sort, then count runs.

use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Element, Result};

use crate::host::{slice, slice_mut};

/// Sorts the keys and counts runs.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.keys.dtype {
        DType::I32 => run_on::<i32>(buffers),
        DType::U32 => run_on::<u32>(buffers),
        DType::I64 => run_on::<i64>(buffers),
        _ => run_on::<u64>(buffers),
    }
}

fn run_on<K: Element + Ord>(buffers: Buffers<'_>) -> Result<()> {
    let (keys, counts) = unique::<K>(slice(buffers.keys)?);
    slice_mut::<K>(buffers.unique)?[..keys.len()].copy_from_slice(&keys);
    slice_mut::<u64>(buffers.count)?[0] = keys.len() as u64;
    if let Some(out) = buffers.counts {
        slice_mut::<u64>(out)?[..counts.len()].copy_from_slice(&counts);
    }
    Ok(())
}

/// Distinct keys ascending and how often each occurs.
fn unique<K: Copy + Ord>(keys: &[K]) -> (Vec<K>, Vec<u64>) {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len() as u64)).unzip()
}
