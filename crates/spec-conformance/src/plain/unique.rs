//! `unique`: sort, count runs, then look each key up.

use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Element, Result};

use crate::host::{slice, slice_mut};

/// Sorts the keys, counts runs, and looks each key up among the distinct keys.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.keys.dtype {
        DType::I32 => run_on::<i32>(buffers),
        DType::U32 => run_on::<u32>(buffers),
        DType::I64 => run_on::<i64>(buffers),
        _ => run_on::<u64>(buffers),
    }
}

fn run_on<K: Element + Ord>(buffers: Buffers<'_>) -> Result<()> {
    let keys = slice::<K>(buffers.keys)?;
    let (distinct, counts) = unique(keys);
    slice_mut::<K>(buffers.unique)?[..distinct.len()].copy_from_slice(&distinct);
    slice_mut::<u64>(buffers.count)?[0] = distinct.len() as u64;
    if let Some(out) = buffers.counts {
        slice_mut::<u64>(out)?[..counts.len()].copy_from_slice(&counts);
    }
    let place = |key| distinct.partition_point(|other| other < key);
    match buffers.inverse {
        None => {}
        Some(out) if out.dtype() == DType::I32 => {
            for (to, key) in slice_mut::<i32>(out)?.iter_mut().zip(keys) {
                *to = place(key) as i32;
            }
        }
        Some(out) => {
            for (to, key) in slice_mut::<i64>(out)?.iter_mut().zip(keys) {
                *to = place(key) as i64;
            }
        }
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
