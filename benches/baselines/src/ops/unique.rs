//! Designs of `unique`.

use rayon::slice::ParallelSliceMut;
use rdst::RadixSort as _;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Element, Result};
use spec_cpu::Cpu;
use spec_cuda::Cuda;
use voracious_radix_sort::RadixSort as _;

use crate::host::{slice, slice_mut};
use crate::{Design, Designs};

/// A sort of any keys, then one pass.
macro_rules! sorted {
    ($name:literal, $cpu:ident, |$keys:ident| $sort:expr) => {
        Design::function($name, $cpu, |plan: &Plan, buffers: Buffers<'_>| match plan.keys.dtype {
            DType::I32 => run(buffers, |$keys: &mut [i32]| $sort),
            DType::U32 => run(buffers, |$keys: &mut [u32]| $sort),
            DType::I64 => run(buffers, |$keys: &mut [i64]| $sort),
            _ => run(buffers, |$keys: &mut [u64]| $sort),
        })
    };
}

impl Designs for Unique {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![
            sorted!("sort_unstable, dedup", cpu, |keys| keys.sort_unstable()),
            sorted!("rayon par_sort_unstable, dedup", cpu, |keys| keys.par_sort_unstable()),
            sorted!("rdst, dedup", cpu, |keys| keys.radix_sort_unstable()),
            sorted!("voracious_radix_sort, dedup", cpu, |keys| {
                keys.voracious_mt_sort(rayon::current_num_threads());
            }),
        ]
    }
}

/// Sorts in the output, so that nothing is allocated but what the sort itself
/// needs, and drops repeats in place.
fn run<K: Element + Ord>(buffers: Buffers<'_>, sort: impl Fn(&mut [K])) -> Result<()> {
    let unique = slice_mut::<K>(buffers.unique)?;
    unique.copy_from_slice(slice(buffers.keys)?);
    sort(unique);
    let mut count = 0;
    match buffers.counts.map(slice_mut::<u64>).transpose()? {
        None => {
            for at in 0..unique.len() {
                let key = unique[at];
                if at == 0 || key != unique[count - 1] {
                    unique[count] = key;
                    count += 1;
                }
            }
        }
        Some(counts) => {
            for at in 0..unique.len() {
                let key = unique[at];
                if at == 0 || key != unique[count - 1] {
                    unique[count] = key;
                    counts[count] = 0;
                    count += 1;
                }
                counts[count - 1] += 1;
            }
        }
    }
    slice_mut::<u64>(buffers.count)?[0] = count as u64;
    Ok(())
}
