use super::ngram::{self, Arguments, Drafts, Sizes};
use spec_core::Result;
use spec_core::ngram::Rows;
use spec_core::ops::HybridMtpNgram;
use spec_core::ops::hybrid_mtp_ngram::{Buffers, Plan};

pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    ngram::run(
        HybridMtpNgram::rows(plan),
        HybridMtpNgram::sizes(plan),
        HybridMtpNgram::arguments(buffers),
    )
}

impl Drafts for HybridMtpNgram {
    fn rows(plan: &Plan) -> &Rows {
        &plan.rows
    }

    fn sizes(plan: &Plan) -> Sizes {
        Sizes {
            max_ngram: plan.params.max_ngram_size,
            min_ngram: plan.params.min_ngram_size,
            max_draft_tokens: Some(plan.params.max_draft_tokens),
            threshold: i64::from(plan.params.token_threshold),
        }
    }

    fn arguments(buffers: Self::Buffers<'_>) -> Arguments<'_> {
        Arguments {
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
        }
    }
}
