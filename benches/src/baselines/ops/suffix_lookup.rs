//! `suffix_lookup` has no write-up with other designs, so only the plain loop is compared.

use spec_core::ops::SuffixLookup;
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::baselines::{Design, Designs};

impl Designs for SuffixLookup {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::plain(cpu)]
    }
}
