//! `prompt_lookup` on wgpu: the shared search, in one text per request.

use spec_core::ngram::Rows;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

use super::ngram::{EVERYWHERE, Limits, Search, tokens_constant};
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("prompt_lookup");

struct Looker {
    gpu: Wgpu,
    rows: Rows,
    search: Search,
    prepare: Program,
    finish: Program,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<PromptLookup> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<PromptLookup>>> {
        let Plan { params, tokens, lengths, drafts, .. } = plan;
        let limits = Limits {
            max_ngram: params.max_ngram,
            min_ngram: params.min_ngram,
            max_draft_tokens: params.max_draft,
            threshold: 0,
        };
        let rows = Rows {
            batch: tokens.rows,
            input_ids: *tokens,
            generated: *tokens,
            draft_tokens: *drafts,
            lengths: *lengths,
        };
        let search = Search::new(self, &SHADER, &rows, limits, params.occurrence, true)?;
        let finish = [Write, Read, Read, Write, Write, Write];
        let last = ("LAST", u32::from(params.occurrence == Occurrence::Last));
        let constants = [tokens_constant(rows.input_ids.dtype), last];
        Ok(Box::new(Looker {
            gpu: self.clone(),
            rows,
            search,
            prepare: self.program(&SHADER, "prepare", &[Write, Read], &[])?,
            finish: self.program(&SHADER, "finish", &finish, &constants)?,
        }))
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<PromptLookup> for Looker {
    fn workspace_size(&self) -> usize {
        self.search.workspace_size()
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Looker { gpu, rows, search, .. } = self;
        let work = gpu.region_of_workspace(workspace)?;
        let tokens = gpu.region(&buffers.tokens)?;
        let lengths = gpu.region(&buffers.lengths)?;
        let drafts = gpu.region_mut(buffers.drafts)?;
        let counts = gpu.region_mut(buffers.counts)?;
        let flags = buffers.flags.map_or(Ok(Region::nothing()), |flags| gpu.region_mut(flags))?;
        gpu.record("prompt_lookup", stream, |r| {
            let everywhere = search.params(&EVERYWHERE);
            let groups = (rows.batch as u64).div_ceil(64);
            r.dispatch(&self.prepare, &[work, lengths], &everywhere, groups)?;
            search.record(r, work, tokens, tokens)?;
            for window in &search.all {
                let text = window.of(&rows.input_ids, tokens);
                let drafts = window.of(&rows.draft_tokens, drafts);
                let bound = [work, text, Region::nothing(), drafts, counts, flags];
                let groups = window.rows.len() as u64;
                r.dispatch(&self.finish, &bound, &search.params(window), groups)?;
            }
            Ok(())
        })
    }
}
