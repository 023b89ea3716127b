use super::ngram::{self, Arguments, Drafts, Sizes};
use spec_core::Result;
use spec_core::ngram::Rows;
use spec_core::ops::NgramMatch;
use spec_core::ops::ngram_match::{Buffers, Plan};

pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    ngram::run(NgramMatch::rows(plan), NgramMatch::sizes(plan), NgramMatch::arguments(buffers))
}

impl Drafts for NgramMatch {
    fn rows(plan: &Plan) -> &Rows {
        &plan.rows
    }

    fn sizes(plan: &Plan) -> Sizes {
        Sizes {
            max_ngram: plan.params.max_ngram_size,
            min_ngram: 1,
            max_draft_tokens: None,
            threshold: i64::from(plan.params.token_threshold),
        }
    }

    fn arguments(buffers: Self::Buffers<'_>) -> Arguments<'_> {
        Arguments {
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
        }
    }
}
