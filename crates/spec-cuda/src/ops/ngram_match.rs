//! Host side of `kernels/ngram_match.cu`.

use spec_core::ops::NgramMatch;
use spec_core::ops::ngram_match::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

#[cfg(test)]
pub(super) use super::ngram::HEADER;
use super::ngram::{Arguments, Drafting, Options};
use crate::Cuda;
use crate::archive::{Archive, archive};

static KERNELS: Archive = archive!("ngram_match");

struct Prepared(Drafting);

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<NgramMatch> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<NgramMatch>>> {
        let options = Options {
            max_ngram: plan.params.max_ngram_size,
            min_ngram: 1,
            max_draft_tokens: 0,
            threshold: plan.params.token_threshold,
        };
        Ok(Box::new(Prepared(Drafting::new(self, &KERNELS, &plan.rows, options)?)))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<NgramMatch> for Prepared {
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
            generated: buffers.token_ids_all,
            starts: Some(buffers.prompt_lens),
            steps: buffers.step_idx,
            max_dec_len: buffers.max_dec_len,
            draft_token_num: Some(buffers.draft_token_num),
            draft_tokens: buffers.draft_tokens,
            this_time: buffers.seq_lens_this_time,
            encoder: Some(buffers.seq_lens_encoder),
            decoder: buffers.seq_lens_decoder,
            flags: buffers.flags,
        };
        self.0.launch(workspace, arguments, stream)
    }
}
