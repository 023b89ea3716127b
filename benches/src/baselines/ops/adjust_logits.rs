//! `adjust_logits` has no write-up whose designs could be compared: the plain loop.

use spec_core::ops::AdjustLogits;
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::baselines::{Design, Designs};

impl Designs for AdjustLogits {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::plain(cpu)]
    }
}
