//! `hybrid_mtp_ngram` on wgpu: the shared search extends the drafts of a multi-token-prediction
//! head.

use spec_core::ops::HybridMtpNgram;
use spec_core::ops::hybrid_mtp_ngram::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

#[cfg(test)]
pub(super) use super::ngram::HEADER;
use super::ngram::{Drafter, Limits, Regions};
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Shader, shader};

pub(super) static SHADER: Shader = shader!("hybrid_mtp_ngram", "ngram");

struct Extender {
    gpu: Wgpu,
    drafter: Drafter,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<HybridMtpNgram> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HybridMtpNgram>>> {
        let limits = Limits {
            max_ngram: plan.params.max_ngram_size,
            min_ngram: plan.params.min_ngram_size,
            threshold: plan.params.token_threshold,
            max_draft_tokens: plan.params.max_draft_tokens,
            form: 0,
        };
        let vectors = [Write, Read, Read, Read, Read, Read];
        let drafter = Drafter::new(self, &SHADER, &vectors, &plan.rows, limits)?;
        Ok(Box::new(Extender { gpu: self.clone(), drafter }))
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<HybridMtpNgram> for Extender {
    fn workspace_size(&self) -> usize {
        self.drafter.workspace_size()
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let this_time = gpu.region_mut(buffers.seq_lens_this_time)?;
        let vectors = [
            gpu.region(&buffers.input_ids_len)?,
            gpu.region(&buffers.step_idx)?,
            gpu.region(&buffers.max_dec_len)?,
            this_time,
            gpu.region(&buffers.seq_lens_decoder)?,
        ];
        let regions = Regions {
            work: gpu.region_of_workspace(workspace)?,
            input_ids: gpu.region(&buffers.input_ids)?,
            generated: gpu.region(&buffers.pre_ids)?,
            draft_tokens: gpu.region_mut(buffers.draft_tokens)?,
            this_time,
            flags: buffers.flags.map_or(Ok(Region::nothing()), |flags| gpu.region_mut(flags))?,
        };
        gpu.record("hybrid_mtp_ngram", stream, |r| self.drafter.record(r, &vectors, &regions))
    }
}
