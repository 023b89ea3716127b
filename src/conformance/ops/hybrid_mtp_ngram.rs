use serde_json::Value;

use super::ngram::{Requests, with_idle_requests};
use crate::conformance::Rng;
use crate::conformance::case::{Case, Missing, Recomposed, Source, Subject};
use crate::conformance::tensor::Tensor;
use crate::ops::hybrid_mtp_ngram::{Arguments, Buffers, HybridMtpNgram, Tensors};
use crate::{TensorDesc, View, ViewMut};

fn arguments<I, O>(from: &mut impl Source<I, O>) -> Result<Arguments<I, O>, Missing> {
    Ok(Arguments {
        input_ids: from.input("input_ids")?,
        input_ids_len: from.input("input_ids_len")?,
        pre_ids: from.input("pre_ids")?,
        step_idx: from.input("step_idx")?,
        draft_tokens: from.output("draft_tokens")?,
        seq_lens_this_time: from.output("seq_lens_this_time")?,
        seq_lens_decoder: from.input("seq_lens_decoder")?,
        max_dec_len: from.input("max_dec_len")?,
        flags: from.maybe_output("flags"),
    })
}

impl Subject for HybridMtpNgram {
    const GOLDEN: &'static str = include_str!("../../../tests/golden/hybrid_mtp_ngram.json");
    const ARGUMENTS: &'static [&'static str] = &[
        "input_ids",
        "input_ids_len",
        "pre_ids",
        "step_idx",
        "draft_tokens",
        "seq_lens_this_time",
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
        let size = |name: &str| usize::try_from(params[name].as_u64()?).ok();
        Some(HybridMtpNgram {
            max_ngram_size: size("max_ngram_size")?,
            min_ngram_size: size("min_ngram_size")?,
            max_draft_tokens: size("max_draft_tokens")?,
            token_threshold: i32::try_from(params["token_threshold"].as_i64()?).ok()?,
        })
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let requests = Requests::random(rng);
        let (input, generated) = (requests.input_cols, requests.generated_cols);
        let max_ngram_size = rng.between(1, 6);
        let operator = HybridMtpNgram {
            max_ngram_size,
            min_ngram_size: rng.between(1, max_ngram_size),
            max_draft_tokens: rng.between(0, 14),
            token_threshold: requests.threshold(rng),
        };
        let have = |rng: &mut Rng| if rng.chance(4) { 0 } else { 1 + rng.below(5) as i32 };
        Case::new(operator)
            .input("input_ids", requests.tokens(rng, input))
            .input("input_ids_len", requests.lengths(rng, input))
            .input("pre_ids", requests.tokens(rng, generated))
            .input("step_idx", requests.lengths(rng, generated.saturating_sub(1)))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", requests.counts(rng, have))
            .input("seq_lens_decoder", requests.counts(rng, |rng| rng.below(3) as i32))
            .input("max_dec_len", requests.lengths(rng, generated + 8))
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        with_idle_requests(case, rng)
    }
}
