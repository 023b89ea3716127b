//! Designs of `hybrid_mtp_ngram`.

use spec_core::ops::HybridMtpNgram;
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use super::ngram::{on_cpu, on_cuda};
use crate::baselines::{Design, Designs};

impl Designs for HybridMtpNgram {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        on_cuda(cuda)
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        on_cpu(cpu)
    }
}
