//! Designs of `topk_router`.

use spec_core::Result;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, Plan};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::host::{floats, raise, slice, slice_mut, unpack};
use crate::{Design, Designs, plain};

impl Designs for TopkRouter {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::function("plain loop", cpu, run)]
    }
}

fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let x = floats(buffers.x, &plan.x)?;
    let bias = buffers.bias.map(slice::<f32>).transpose()?;
    let (weights, indices, flags) = plain::topk_router(&plan.params, &x, plan.experts(), bias);
    unpack(slice_mut(buffers.weights)?, &plan.weights, &weights);
    unpack(slice_mut(buffers.indices)?, &plan.indices, &indices);
    raise(buffers.flags, flags)
}
