//! Host side of `kernels/prompt_lookup.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::PromptLookup;
use spec_core::ops::prompt_lookup::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use super::ngram::{Team, check_sizes, number, token_name};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("prompt_lookup");

/// Bytes of a request's ticket in the workspace.
const TICKET: usize = 8;

launch_params! {
    /// The parameters of the kernels of `prompt_lookup`.
    struct Params {
        /// Texts, [texts, cols] tokens of the kernel's type.
        tokens: Rows as "Rows<const void>",
        /// Drafts, [batch, max_draft] of the same type, or i64 if `wide`.
        drafts: Rows as "Rows<void>",
        /// The number of tokens of each text, [texts].
        lengths: Integers,
        /// The text of each request, [batch], or null.
        requests: Integers,
        /// The largest number of drafts of each request, [batch], or null.
        max_drafts: u64 as "const i32*",
        /// The number of drafts of each request, [batch].
        counts: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Slots of two words: one for each block of the first request's team, then of the second
        /// request's team, and so on; only for teams of several blocks.
        slots: u64 as "u64*",
        /// A word for each request that counts the blocks that have finished, [batch]; only for
        /// teams of several blocks.
        tickets: u64 as "u64*",
        /// The number of the launch, which no other launch has.
        number: u64,
        /// The number of columns of `tokens`.
        cols: u32,
        /// The largest number of drafts of a request.
        max_draft: u32,
        /// The number of requests.
        batch: u32,
        /// The number of rows of `tokens`.
        texts: u32,
        /// The base-2 logarithm of the number of blocks of a team: grid.y.
        block_bits: u32,
        /// The base-2 logarithm of the number of warps of a team in each of its blocks.
        warp_bits: u32,
        /// The number of tokens of the longest pattern.
        max_ngram: u32,
        /// The number of tokens of the shortest pattern.
        min_ngram: u32,
        /// 1 if drafts of the kernel for i32 are i64, else 0.
        wide: u32,
        /// 1 if the text's last token is written after the drafts, 0 if -1 is.
        pad_with_last: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "prompt_lookup", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    team: Team,
    shape: Shape,
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<PromptLookup> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<PromptLookup>>> {
        let tokens = &plan.tokens;
        let batch = plan.batch();
        let sizes =
            [("requests", batch), ("texts", tokens.rows), ("tokens of a text", tokens.cols)];
        check_sizes(self, &sizes)?;
        let which = plan.params.occurrence.name();
        let name = format!("{}_{which}_{}", KERNELS.name, token_name(tokens.dtype));
        let bytes = tokens.cols * tokens.dtype.size();
        let team = Team::new(batch, bytes, self.limits().multiprocessors);
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, &name)?,
            team,
            shape: team.shape(batch),
        }))
    }
}

impl Prepared {
    /// Size of the slots in bytes: 0 if each team lies within one block.
    fn slots(&self) -> usize {
        if self.team.block_bits == 0 { 0 } else { self.team.slots(self.plan.batch()) }
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<PromptLookup> for Prepared {
    fn workspace_size(&self) -> usize {
        match self.slots() {
            0 => 0,
            slots => slots + self.plan.batch() * TICKET,
        }
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, team, .. } = self;
        let slots = cuda.workspace(workspace, self.workspace_size())?;
        let params = Params {
            tokens: cuda.rows(buffers.tokens, &plan.tokens)?,
            drafts: cuda.rows(buffers.drafts, &plan.drafts)?,
            lengths: cuda.integers(buffers.lengths, plan.lengths)?,
            requests: cuda.integers(buffers.requests, plan.requests.unwrap_or(DType::I32))?,
            max_drafts: cuda.pointer(buffers.max_drafts)?,
            counts: cuda.pointer(buffers.counts)?,
            flags: cuda.pointer(buffers.flags)?,
            slots,
            tickets: slots + self.slots() as u64,
            number: number(),
            cols: plan.tokens.cols as u32,
            max_draft: plan.params.max_draft as u32,
            batch: plan.batch() as u32,
            texts: plan.tokens.rows as u32,
            block_bits: team.block_bits,
            warp_bits: team.warp_bits,
            max_ngram: plan.params.max_ngram as u32,
            min_ngram: plan.params.min_ngram as u32,
            wide: u32::from(plan.drafts.dtype.size() > plan.tokens.dtype.size()),
            pad_with_last: u32::from(plan.params.pad_with_last),
            reserved: 0,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were checked
        // against the plan; the workspace holds the slots and tickets of this shape; the
        // kernel clamps lengths, which are data, to the size of the rows, and reads no text of a
        // request, which is data too, that lies outside of the texts.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
