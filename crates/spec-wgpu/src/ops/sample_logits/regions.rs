//! The arguments of a call and its workspace, as parts of buffers.

use spec_core::ops::sample_logits::Buffers;
use spec_core::{Result, View, ViewMut};

use super::{
    HAS_COUNTS, HAS_FORCED, HAS_IDS, HAS_KEPT, HAS_LOGPROBS, HAS_MASK, HAS_MAXIMA, HAS_MIN_P,
    HAS_PROCESSED, HAS_RANKS, HAS_REQUESTS, HAS_ROW_FLAGS, HAS_TOKEN_MASK, HAS_TOP_K,
    HAS_TOP_LOGPROBS, HAS_TOP_P, HAS_TOP_TOKENS, HAS_WINNERS, Sampler, is_copied,
};
use crate::memory::Region;

/// The arguments and the workspace as regions.
pub(super) struct Regions<'a> {
    pub(super) state: Region<'a>,
    pub(super) levels: Region<'a>,
    pub(super) logits: Region<'a>,
    pub(super) positions: Region<'a>,
    pub(super) temperature: Region<'a>,
    pub(super) seeds: Region<'a>,
    pub(super) top_k: Region<'a>,
    pub(super) top_p: Region<'a>,
    pub(super) min_p: Region<'a>,
    pub(super) requests: Region<'a>,
    pub(super) mask: Region<'a>,
    pub(super) tokens: Region<'a>,
    pub(super) probs: Region<'a>,
    pub(super) logprobs: Region<'a>,
    pub(super) processed: Region<'a>,
    pub(super) ranks: Region<'a>,
    pub(super) top_tokens: Region<'a>,
    pub(super) top_logprobs: Region<'a>,
    pub(super) row_flags: Region<'a>,
    pub(super) flags: Region<'a>,
    pub(super) token_ids: Region<'a>,
    pub(super) maxima: Region<'a>,
    pub(super) forced: Region<'a>,
    pub(super) winners: Region<'a>,
    pub(super) kept_tokens: Region<'a>,
    pub(super) kept_counts: Region<'a>,
    pub(super) largest: Region<'a>,
    /// `HAS_` bits of the arguments that are present.
    pub(super) has: u32,
}

impl<'a> Regions<'a> {
    pub(super) fn new(of: &Sampler, workspace: ViewMut<'a>, buffers: Buffers<'a>) -> Result<Self> {
        let gpu = &of.gpu;
        let mut has = 0;
        let mut read = |view: Option<View<'a>>, bit| match view {
            Some(view) => {
                has |= bit;
                gpu.region(&view)
            }
            None => Ok(Region::nothing()),
        };
        let top_k = read(buffers.top_k, HAS_TOP_K)?;
        let top_p = read(buffers.top_p, HAS_TOP_P)?;
        let min_p = read(buffers.min_p, HAS_MIN_P)?;
        let requests = read(buffers.requests, HAS_REQUESTS)?;
        let copied = is_copied(&of.plan);
        let mask = read(buffers.mask, if copied { HAS_TOKEN_MASK } else { HAS_MASK })?;
        let token_ids = read(buffers.token_ids, HAS_IDS)?;
        let maxima = read(buffers.maxima, HAS_MAXIMA)?;
        let forced = read(buffers.forced, HAS_FORCED)?;
        // A copy has bits for columns.
        has |= if copied { HAS_MASK } else { 0 };
        let mut written = |view: Option<ViewMut<'a>>, bit| match view {
            Some(view) => {
                has |= bit;
                gpu.region_mut(view)
            }
            None => Ok(Region::nothing()),
        };
        let logprobs = written(buffers.logprobs, HAS_LOGPROBS)?;
        let processed = written(buffers.processed_logprobs, HAS_PROCESSED)?;
        let ranks = written(buffers.ranks, HAS_RANKS)?;
        let top_tokens = written(buffers.top_tokens, HAS_TOP_TOKENS)?;
        let top_logprobs = written(buffers.top_logprobs, HAS_TOP_LOGPROBS)?;
        let row_flags = written(buffers.row_flags, HAS_ROW_FLAGS)?;
        let winners = written(buffers.winners, HAS_WINNERS)?;
        let kept_tokens = written(buffers.kept_tokens, HAS_KEPT)?;
        let kept_counts = written(buffers.kept_counts, HAS_COUNTS)?;
        let largest = written(buffers.largest, 0)?;
        let probs = written(buffers.probs, 0)?;
        // A call for the largest logits sets no flag.
        let flags = written(buffers.flags.filter(|_| !of.plan.largest), 0)?;
        let mut workspace = gpu.region_of_workspace(workspace)?;
        Ok(Regions {
            state: workspace.take(of.state_words()),
            levels: workspace,
            logits: gpu.region(&buffers.logits)?,
            positions: gpu.region(&buffers.positions)?,
            temperature: gpu.region(&buffers.temperature)?,
            seeds: gpu.region(&buffers.seeds)?,
            top_k,
            top_p,
            min_p,
            requests,
            mask,
            tokens: gpu.region_mut(buffers.tokens)?,
            probs,
            logprobs,
            processed,
            ranks,
            top_tokens,
            top_logprobs,
            row_flags,
            flags,
            token_ids,
            maxima,
            forced,
            winners,
            kept_tokens,
            kept_counts,
            largest,
            has,
        })
    }
}
