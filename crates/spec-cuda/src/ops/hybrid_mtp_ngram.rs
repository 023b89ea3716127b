//! Host side of `kernels/hybrid_mtp_ngram.cu`.

use spec_core::ops::HybridMtpNgram;
use spec_core::ops::hybrid_mtp_ngram::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

#[cfg(test)]
pub(super) use super::ngram::HEADER;
use super::ngram::{Arguments, Drafting, Options};
use crate::Cuda;
use crate::archive::{Archive, archive};

static KERNELS: Archive = archive!("hybrid_mtp_ngram");

struct Prepared(Drafting);

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<HybridMtpNgram> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HybridMtpNgram>>> {
        let options = Options {
            max_ngram: plan.params.max_ngram_size,
            min_ngram: plan.params.min_ngram_size,
            max_draft_tokens: plan.params.max_draft_tokens,
            threshold: plan.params.token_threshold,
        };
        Ok(Box::new(Prepared(Drafting::new(self, &KERNELS, &plan.rows, options)?)))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<HybridMtpNgram> for Prepared {
    fn workspace_size(&self) -> usize {
        self.0.workspace_size()
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let arguments = Arguments {
            input_ids: buffers.input_ids,
            input_ids_len: buffers.input_ids_len,
            generated: buffers.pre_ids,
            starts: None,
            steps: buffers.step_idx,
            max_dec_len: buffers.max_dec_len,
            draft_token_num: None,
            draft_tokens: buffers.draft_tokens,
            this_time: buffers.seq_lens_this_time,
            encoder: None,
            decoder: buffers.seq_lens_decoder,
            flags: buffers.flags,
        };
        self.0.launch(workspace, arguments, stream)
    }
}
