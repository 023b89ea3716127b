use super::ngram::{Requests, with_idle_requests};
use crate::Rng;
use crate::case::{Case, Recomposed, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::Result;
use spec_core::ops::hybrid_mtp_ngram::HybridMtpNgram;

impl Subject for HybridMtpNgram {
    const GOLDEN: &'static str = include_str!("../../golden/hybrid_mtp_ngram.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::hybrid_mtp_ngram::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let operator = HybridMtpNgram::new(4).max_ngram_size(2).min_ngram_size(2);
        let case = Case::new(operator.token_threshold(100))
            .input("input_ids", [[1_i64, 2, 3, 4, 5, 6, 7, 8], [9; 8]])
            .input("input_ids_len", [8_i64, 8])
            .input("pre_ids", [[0_i64, 0, 2, 3, 0, 0], [4, 5, 4, 5, 4, 0]])
            .input("step_idx", [3_i64, 4])
            .in_place("draft_tokens", [[50_i64, 51, -1, -1, -1, -1], [60, 61, 62, -1, -1, -1]])
            .in_place("seq_lens_this_time", [2, 3])
            .input("seq_lens_decoder", [1, 1])
            .input("max_dec_len", [100_i64, 100]);
        vec![case.in_place("flags", [0_u32])]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let requests = Requests::random(rng);
        let (input, generated) = (requests.input_cols, requests.generated_cols);
        let max_ngram_size = rng.between(1, 6);
        let operator = HybridMtpNgram::new(rng.between(0, 14))
            .max_ngram_size(max_ngram_size)
            .min_ngram_size(rng.between(1, max_ngram_size))
            .token_threshold(requests.threshold(rng));
        let have = |rng: &mut Rng| match rng.below(40) {
            0 => -1,
            1..10 => 0,
            _ => 1 + rng.below(5) as i32,
        };
        let decoder = |rng: &mut Rng| if rng.chance(40) { -1 } else { rng.below(3) as i32 };
        Case::new(operator)
            .input("input_ids", requests.tokens(rng, input))
            .input("input_ids_len", requests.lengths(rng, input))
            .input("pre_ids", requests.tokens(rng, generated))
            .input("step_idx", requests.lengths(rng, generated.saturating_sub(1)))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", requests.counts(rng, have))
            .input("seq_lens_decoder", requests.counts(rng, decoder))
            .input("max_dec_len", requests.lengths(rng, generated + 8))
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        with_idle_requests(case, rng)
    }
}

#[test]
fn random_cases_get_everywhere() {
    super::ngram::check_coverage::<HybridMtpNgram>();
}
