//! Designs of `deduplicate_topk`.

use spec_core::Result;
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::host::{packed, slice, slice_mut};
use crate::{Design, Designs, plain};

impl Designs for DeduplicateTopk {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::function("plain loop", cpu, run)]
    }
}

fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let indices = packed(slice::<i32>(buffers.indices)?, &plan.indices);
    let unique = slice_mut::<i32>(buffers.unique)?;
    let mut counts = buffers.counts.map(slice_mut::<i32>).transpose()?;
    let row = plan.unique.cols;
    for b in 0..plan.batch {
        let (distinct, count) = plain::deduplicate_topk(&indices[b * row..][..row]);
        unique[b * plan.unique.row_stride..][..row].copy_from_slice(&distinct);
        if let Some(counts) = &mut counts {
            counts[b] = count;
        }
    }
    Ok(())
}
