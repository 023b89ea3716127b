//! `prompt_lookup` on wgpu: the shared search, in one text per request.

use spec_core::ngram::Rows;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Occurrence, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut};

#[cfg(test)]
pub(super) use super::ngram::HEADER;
use super::ngram::{
    EVERYWHERE, LIMITED, Limits, MAPPED, PAD_WITH_LAST, Search, WIDE_REQUESTS, tokens_constant,
    words_of,
};
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("prompt_lookup", "ngram");

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
            form: [
                (plan.requests.is_some(), MAPPED),
                (plan.requests == Some(DType::I64), WIDE_REQUESTS),
                (plan.limited, LIMITED),
                (params.pad_with_last, PAD_WITH_LAST),
            ]
            .iter()
            .filter(|(is_so, _)| *is_so)
            .fold(0, |form, (_, bit)| form | bit),
        };
        let rows = Rows {
            batch: plan.batch(),
            input_ids: *tokens,
            generated: *tokens,
            draft_tokens: *drafts,
            lengths: *lengths,
        };
        let search = Search::new(self, &SHADER, &rows, limits, params.occurrence, true)?;
        let finish = [Write, Read, Read, Write, Write, Write];
        let last = ("LAST", u32::from(params.occurrence == Occurrence::Last));
        let wide = ("DRAFT_WORDS", words_of(drafts.dtype));
        let constants = [tokens_constant(rows.input_ids.dtype), wide, last];
        Ok(Box::new(Looker {
            gpu: self.clone(),
            rows,
            search,
            prepare: self.program(&SHADER, "prepare", &[Write, Read, Read, Read], &[])?,
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
        let requests = gpu.optional(&buffers.requests)?;
        let max_drafts = gpu.optional(&buffers.max_drafts)?;
        let drafts = gpu.region_mut(buffers.drafts)?;
        let counts = gpu.region_mut(buffers.counts)?;
        let flags = gpu.optional_mut(buffers.flags)?;
        gpu.record("prompt_lookup", stream, |r| {
            let everywhere = search.params(&EVERYWHERE);
            let groups = (rows.batch as u64).div_ceil(64);
            let known = [work, lengths, requests, max_drafts];
            r.dispatch(&self.prepare, &known, &everywhere, groups)?;
            search.record(r, work, tokens, tokens)?;
            for part in &search.all {
                let texts = part.texts.of(&rows.input_ids, tokens);
                let drafts = part.requests.of(&rows.draft_tokens, drafts);
                let bound = [work, texts, Region::nothing(), drafts, counts, flags];
                let groups = part.requests.rows.len() as u64;
                r.dispatch(&self.finish, &bound, &search.params(part), groups)?;
            }
            Ok(())
        })
    }
}
