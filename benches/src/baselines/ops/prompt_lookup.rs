//! Designs of `prompt_lookup`, an operator that comes from no write-up.

use spec_core::ops::PromptLookup;
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::baselines::{Design, Designs};

impl Designs for PromptLookup {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::plain(cpu)]
    }
}
