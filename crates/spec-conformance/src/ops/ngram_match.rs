use super::ngram::{Requests, with_idle_requests};
use crate::Rng;
use crate::case::{Case, Recomposed, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::Result;
use spec_core::ops::ngram_match::NgramMatch;

impl Subject for NgramMatch {
    const GOLDEN: &'static str = include_str!("../../golden/ngram_match.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::ngram_match::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let case = |token_threshold| {
            Case::new(NgramMatch::new().max_ngram_size(2).token_threshold(token_threshold))
                .input("input_ids", [[1_i64, 2, 3, 4, 5, 6, 7, 8], [9; 8]])
                .input("input_ids_len", [8_i64, 8])
                .input("token_ids_all", [[0_i64, 0, 2, 3, 0, 0], [4, 5, 4, 5, 4, 0]])
                .input("prompt_lens", [0_i64, 0])
                .input("step_idx", [3_i64, 4])
                .input("draft_token_num", [3, 3])
                .in_place("draft_tokens", [[-1_i64; 5]; 2])
                .in_place("seq_lens_this_time", [0, 0])
                .input("seq_lens_encoder", [0, 0])
                .input("seq_lens_decoder", [1, 1])
                .input("max_dec_len", [100_i64, 100])
                .in_place("flags", [0_u32])
        };
        [100, 6, 5, 3].map(case).into()
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let requests = Requests::random(rng);
        let (input, generated) = (requests.input_cols, requests.generated_cols);
        let operator = NgramMatch::new()
            .max_ngram_size(rng.between(1, 6))
            .token_threshold(requests.threshold(rng));
        // A request is being encoded, decodes, or is idle.
        let phase =
            requests.counts(rng, |rng| if rng.chance(40) { -1 } else { i32::from(!rng.chance(6)) });
        let encoder = requests.counts(rng, |rng| match rng.below(40) {
            0 => -1,
            1..9 => 1 + rng.below(9) as i32,
            _ => 0,
        });
        let now = |rng: &mut Rng| if rng.chance(40) { -1 } else { rng.below(9) as i32 };
        Case::new(operator)
            .input("input_ids", requests.tokens(rng, input))
            .input("input_ids_len", requests.lengths(rng, input))
            .input("token_ids_all", requests.tokens(rng, generated))
            .input("prompt_lens", requests.lengths(rng, generated / 4))
            .input("step_idx", requests.lengths(rng, (generated / 2).saturating_sub(1)))
            .input("draft_token_num", requests.counts(rng, |rng| rng.below(12) as i32))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", requests.counts(rng, now))
            .input("seq_lens_encoder", encoder)
            .input("seq_lens_decoder", phase)
            .input("max_dec_len", requests.lengths(rng, generated + 8))
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        with_idle_requests(case, rng)
    }
}

#[test]
fn random_cases_get_everywhere() {
    super::ngram::check_coverage::<NgramMatch>();
}
