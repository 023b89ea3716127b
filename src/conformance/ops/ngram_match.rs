use serde_json::Value;

use super::ngram::{Requests, with_idle_requests};
use crate::conformance::Rng;
use crate::conformance::case::{Case, Missing, Recomposed, Source, Subject};
use crate::conformance::tensor::Tensor;
use crate::ops::ngram_match::{Arguments, Buffers, NgramMatch, Tensors};
use crate::{TensorDesc, View, ViewMut};

fn arguments<I, O>(from: &mut impl Source<I, O>) -> Result<Arguments<I, O>, Missing> {
    Ok(Arguments {
        input_ids: from.input("input_ids")?,
        input_ids_len: from.input("input_ids_len")?,
        token_ids_all: from.input("token_ids_all")?,
        prompt_lens: from.input("prompt_lens")?,
        step_idx: from.input("step_idx")?,
        draft_token_num: from.input("draft_token_num")?,
        draft_tokens: from.output("draft_tokens")?,
        seq_lens_this_time: from.output("seq_lens_this_time")?,
        seq_lens_encoder: from.input("seq_lens_encoder")?,
        seq_lens_decoder: from.input("seq_lens_decoder")?,
        max_dec_len: from.input("max_dec_len")?,
        flags: from.maybe_output("flags"),
    })
}

impl Subject for NgramMatch {
    const GOLDEN: &'static str = include_str!("../../../tests/golden/ngram_match.json");
    const ARGUMENTS: &'static [&'static str] = &[
        "input_ids",
        "input_ids_len",
        "token_ids_all",
        "prompt_lens",
        "step_idx",
        "draft_token_num",
        "draft_tokens",
        "seq_lens_this_time",
        "seq_lens_encoder",
        "seq_lens_decoder",
        "max_dec_len",
        "flags",
    ];

    fn tensors(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Tensors, Missing> {
        arguments(source)
    }

    fn buffers<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Buffers<'a>, Missing> {
        arguments(source)
    }

    fn params(params: &Value) -> Option<Self> {
        Some(NgramMatch {
            max_ngram_size: usize::try_from(params["max_ngram_size"].as_u64()?).ok()?,
            token_threshold: i32::try_from(params["token_threshold"].as_i64()?).ok()?,
        })
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let requests = Requests::random(rng);
        let (input, generated) = (requests.input_cols, requests.generated_cols);
        let operator = NgramMatch {
            max_ngram_size: rng.between(1, 6),
            token_threshold: requests.threshold(rng),
        };
        // A request is being encoded, decodes, or is idle.
        let phase = requests.counts(rng, |rng| rng.pick(&[-1, 0, 1, 1, 1, 1, 1]));
        let encoder =
            requests.counts(rng, |rng| if rng.chance(5) { 1 + rng.below(9) as i32 } else { 0 });
        Case::new(operator)
            .input("input_ids", requests.tokens(rng, input))
            .input("input_ids_len", requests.lengths(rng, input))
            .input("token_ids_all", requests.tokens(rng, generated))
            .input("prompt_lens", requests.lengths(rng, generated / 4))
            .input("step_idx", requests.lengths(rng, (generated / 2).saturating_sub(1)))
            .input("draft_token_num", requests.counts(rng, |rng| rng.below(12) as i32))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", requests.counts(rng, |rng| rng.below(9) as i32))
            .input("seq_lens_encoder", encoder)
            .input("seq_lens_decoder", phase)
            .input("max_dec_len", requests.lengths(rng, generated + 8))
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        with_idle_requests(case, rng)
    }
}
