//! Bad calls of the operators that sample tokens, verify drafts and update the logits and the text.

use spec::ops::rejection_sample::{Acceptance, Recovery};

use super::*;

#[test]
fn rejection_sample() {
    use Status::{BadParam, BadTensorShape, NullPointer};
    let params = RejectionSample::argmax(4);
    let tensors = params.tensors(3, 7, 100);
    check(
        &params,
        &tensors,
        &[
            ("target_probs", BadTensorShape, |_, t| t.target_probs = TensorDesc::new(F32, [7, 0])),
            ("target_probs", BadTensorShape, |p, t| {
                p.recovery = Recovery::Sample;
                t.target_probs = TensorDesc::new(F32, [7, 1 << 24]);
            }),
            ("seeds", NullPointer, |_, t| t.seeds = None),
            ("seeds", NullPointer, |p, t| {
                p.recovery = Recovery::Sample;
                t.uniform_samples = Some(TensorDesc::new(F32, [7]));
                (t.seeds, t.positions) = (None, None);
            }),
            ("positions", NullPointer, |_, t| t.positions = None),
            ("max_spec_len", BadParam, |p, _| p.max_spec_len = usize::MAX),
        ],
    );
    // Greedy acceptance needs no seeds, because it draws nothing.
    let greedy = params.acceptance(Acceptance::Greedy);
    for handle in crate::common::handles() {
        let mut tensors = tensors;
        (tensors.seeds, tensors.positions) = (None, None);
        assert!(handle.create(&greedy, &tensors).is_ok());
    }
}

#[test]
fn tree_verify() {
    use Status::{BadParam, BadTensorShape, NullPointer};
    let params = TreeVerify::new(3);
    let tensors = params.tensors(4, 8);
    check(
        &params,
        &tensors,
        &[
            ("max_depth", BadParam, |p, _| p.max_depth = i32::MAX as usize),
            ("max_depth", BadParam, |p, _| p.max_depth = usize::MAX),
            ("draft_tokens", BadTensorShape, |_, t| t.draft_tokens = TensorDesc::new(I64, [4, 0])),
            ("row_offsets", NullPointer, |_, t| t.draft_tokens = TensorDesc::new(I64, [32])),
            ("target_tokens", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [5]));
            }),
            ("row_offsets", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [4]));
            }),
            ("first_child", NullPointer, |_, t| t.first_child = None),
            ("next_sibling", NullPointer, |_, t| t.next_sibling = None),
        ],
    );
}

#[test]
fn packed_tree_verify() {
    use Status::{BadParam, BadTensorShape, NullPointer};
    let params = TreeVerify::new(3);
    let tensors = params.packed_tensors(4, 20);
    check(
        &params,
        &tensors,
        &[
            ("row_offsets", NullPointer, |_, t| t.row_offsets = None),
            ("row_offsets", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [0]));
            }),
            ("row_offsets", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [5, 1]));
            }),
            ("target_tokens", BadTensorShape, |_, t| t.target_tokens = TensorDesc::new(I32, [19])),
            ("first_child", BadParam, |_, t| {
                t.first_child = Some(TensorDesc::new(I32, [4, 5]));
                t.next_sibling = t.first_child;
            }),
            ("tokens", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [6]));
            }),
        ],
    );
}

#[test]
fn adjust_logits() {
    use Status::{BadParam, BadTensorShape, NullPointer};
    let params = AdjustLogits::new();
    let vector = |dtype, len| Some(TensorDesc::new(dtype, [len]));
    let mut tensors = params.tensors(F32, 6, 100, 4, 50);
    tensors.requests = vector(I32, 6);
    (tensors.draft_tokens, tensors.parents) = (vector(I32, 6), vector(I32, 6));
    (tensors.bias_offsets, tensors.bias_tokens) = (vector(I32, 5), vector(I32, 9));
    tensors.bias_values = vector(F32, 9);
    (tensors.repetition, tensors.frequency) = (vector(F32, 4), vector(F32, 4));
    (tensors.presence, tensors.no_repeat_ngram) = (vector(F32, 4), vector(I32, 4));
    tensors.min_tokens = vector(I32, 4);
    tensors.stop_tokens = Some(TensorDesc::new(I32, [4, 2]));
    (tensors.bad_offsets, tensors.word_offsets) = (vector(I32, 5), vector(I32, 8));
    tensors.word_tokens = vector(I32, 20);
    (tensors.dry_multiplier, tensors.dry_base) = (vector(F32, 4), vector(F32, 4));
    (tensors.dry_allowed_length, tensors.dry_range) = (vector(I32, 4), vector(I32, 4));
    (tensors.dry_breakers, tensors.think_budget) = (vector(I32, 7), vector(I32, 4));
    (tensors.think_start, tensors.think_end) = (vector(I32, 0), vector(I32, 2));
    (tensors.think_forced, tensors.forced) = (vector(I32, 1024), vector(I32, 6));
    check(
        &params,
        &tensors,
        &[
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [6, 0])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [6, 1 << 31])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [4, 1 << 31])),
            ("tokens", BadTensorShape, |_, t| t.requests = None),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [4]))),
            ("draft_tokens", NullPointer, |_, t| t.draft_tokens = None),
            ("parents", NullPointer, |_, t| t.parents = None),
            ("bias_tokens", NullPointer, |_, t| t.bias_tokens = None),
            ("bias_tokens", BadTensorShape, |_, t| {
                t.bias_tokens = Some(TensorDesc::new(I32, [1 << 31]));
            }),
            ("min_tokens", NullPointer, |_, t| t.min_tokens = None),
            ("word_offsets", BadTensorShape, |_, t| {
                t.word_offsets = Some(TensorDesc::new(I32, [0]));
            }),
            ("word_tokens", NullPointer, |_, t| t.word_tokens = None),
            ("first_token", BadParam, |p, _| p.first_token = -1),
            ("first_token", BadParam, |p, _| p.first_token = i32::MAX - 99),
            ("vocab", BadParam, |p, _| p.vocab = -1),
            ("dry_multiplier", NullPointer, |_, t| t.dry_multiplier = None),
            ("dry_base", NullPointer, |_, t| t.dry_base = None),
            ("dry_allowed_length", NullPointer, |_, t| t.dry_allowed_length = None),
            // `dry_range` or `dry_breakers` alone.
            ("dry_multiplier", NullPointer, |_, t| {
                (t.dry_multiplier, t.dry_base, t.dry_allowed_length) = (None, None, None);
                t.dry_breakers = None;
            }),
            ("dry_multiplier", NullPointer, |_, t| {
                (t.dry_multiplier, t.dry_base, t.dry_allowed_length) = (None, None, None);
                t.dry_range = None;
            }),
            ("dry_breakers", BadTensorShape, |_, t| {
                t.dry_breakers = Some(TensorDesc::new(I32, [1 << 31]));
            }),
            ("think_budget", NullPointer, |_, t| t.think_budget = None),
            ("think_start", NullPointer, |_, t| t.think_start = None),
            ("think_end", NullPointer, |_, t| t.think_end = None),
            ("think_forced", NullPointer, |_, t| t.think_forced = None),
            ("think_end", NullPointer, |_, t| (t.think_end, t.forced) = (None, None)),
            // `forced` alone.
            ("think_budget", NullPointer, |_, t| {
                (t.think_budget, t.think_start) = (None, None);
                (t.think_end, t.think_forced) = (None, None);
            }),
            ("think_start", BadTensorShape, |_, t| {
                t.think_start = Some(TensorDesc::new(I32, [1025]));
            }),
            ("think_end", BadTensorShape, |_, t| t.think_end = Some(TensorDesc::new(I32, [1025]))),
            ("think_forced", BadTensorShape, |_, t| {
                t.think_forced = Some(TensorDesc::new(I32, [1025]));
            }),
            ("forced", BadTensorShape, |_, t| t.forced = Some(TensorDesc::new(I32, [4]))),
        ],
    );
}

#[test]
fn append_tokens() {
    use Status::BadTensorShape;
    let params = AppendTokens::new();
    let mut tensors = params.tensors(I64, 4, 100, 5);
    tensors.stop_tokens = Some(TensorDesc::new(I32, [4, 2]));
    tensors.max_lengths = Some(TensorDesc::new(I32, [4]));
    tensors.finished = Some(TensorDesc::new(I32, [4]));
    tensors.last_tokens = Some(TensorDesc::new(I64, [4]));
    check(
        &params,
        &tensors,
        &[("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I64, [4, 1 << 31]))],
    );
}

/// A rank's columns of rows whose largest logits are known.
#[test]
fn sample_logits_of_shards() {
    use Status::{BadParam, BadTensorShape};
    let params = SampleLogits::default().first_token(40);
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.mask = Some(TensorDesc::new(I32, [5, 5]));
    tensors.maxima = Some(TensorDesc::new(F32, [5]));
    tensors.forced = Some(TensorDesc::new(I32, [5]));
    tensors.winners = Some(TensorDesc::new(I64, [5]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("first_token", BadParam, |p, _| p.first_token = -1),
            ("first_token", BadParam, |p, t| {
                p.first_token = (1 << 24) - 99;
                t.mask = None;
            }),
            ("first_token", BadParam, |_, t| t.token_ids = Some(TensorDesc::new(I32, [100]))),
            // The bits of tokens 128 to 139 are missing.
            ("mask", BadTensorShape, |_, t| t.mask = Some(TensorDesc::new(I32, [5, 4]))),
            ("top_k", BadParam, |_, t| t.top_k = Some(TensorDesc::new(I32, [3]))),
            ("top_p", BadParam, |_, t| t.top_p = Some(TensorDesc::new(F32, [3]))),
            ("probs", BadParam, |_, t| t.probs = Some(TensorDesc::new(F32, [5, 100]))),
            ("logprobs", BadParam, |_, t| t.logprobs = Some(TensorDesc::new(F32, [5]))),
            ("processed_logprobs", BadParam, |_, t| {
                t.processed_logprobs = Some(TensorDesc::new(F32, [5]));
            }),
            ("ranks", BadParam, |_, t| t.ranks = Some(TensorDesc::new(I32, [5]))),
            ("top_tokens", BadParam, |_, t| t.top_tokens = Some(TensorDesc::new(I32, [5, 3]))),
            ("kept_tokens", BadParam, |_, t| t.kept_tokens = Some(TensorDesc::new(I32, [5, 3]))),
            ("kept_counts", BadParam, |_, t| t.kept_counts = Some(TensorDesc::new(I32, [5]))),
            ("tokens", BadParam, |_, t| t.tokens = TensorDesc::new(I32, [5, 2])),
            ("maxima", BadParam, |_, t| t.largest = Some(TensorDesc::new(F32, [5]))),
        ],
    );
}

/// Candidates of several ranks, and the tokens that race.
#[test]
fn sample_logits_of_candidates() {
    use Status::{BadParam, BadTensorShape};
    let params = SampleLogits::default();
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.token_ids = Some(TensorDesc::new(I64, [5, 100]));
    // A token behind the mask's words is not allowed, so a mask may have any number of words.
    tensors.mask = Some(TensorDesc::new(I32, [5, 1]));
    tensors.winners = Some(TensorDesc::new(DType::U64, [5]));
    tensors.kept_tokens = Some(TensorDesc::new(I32, [5, 8]));
    tensors.kept_counts = Some(TensorDesc::new(I32, [5]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("token_ids", BadTensorShape, |_, t| t.token_ids = Some(TensorDesc::new(I32, [99]))),
            ("token_ids", BadTensorShape, |_, t| {
                t.token_ids = Some(TensorDesc::new(I32, [5, 101]));
            }),
            ("kept_tokens", BadTensorShape, |_, t| {
                t.kept_tokens = Some(TensorDesc::new(I32, [5, 0]));
            }),
            ("kept_tokens", BadTensorShape, |_, t| {
                t.kept_tokens = Some(TensorDesc::new(I32, [5, 4097]));
            }),
            ("winners", BadParam, |_, t| t.tokens = TensorDesc::new(I32, [5, 2])),
            ("mask", BadTensorShape, |_, t| t.token_ids = None),
        ],
    );
}

/// A call for the largest logits alone.
#[test]
fn sample_logits_of_the_largest() {
    use Status::{BadParam, BadTensorShape};
    let params = SampleLogits::default();
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.tokens = TensorDesc::new(I32, [5, 0]);
    tensors.largest = Some(TensorDesc::new(F32, [5]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5])),
            ("tokens", BadTensorShape, |_, t| t.largest = None),
            ("probs", BadParam, |_, t| t.probs = Some(TensorDesc::new(F32, [5, 100]))),
            ("forced", BadParam, |_, t| t.forced = Some(TensorDesc::new(I32, [5]))),
            ("winners", BadParam, |_, t| t.winners = Some(TensorDesc::new(I64, [5]))),
            ("row_flags", BadParam, |_, t| t.row_flags = Some(TensorDesc::new(DType::U32, [5]))),
        ],
    );
}

#[test]
fn sample_logits() {
    use Status::{BadTensorShape, NullPointer};
    let params = SampleLogits::default();
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.top_k = Some(TensorDesc::new(I32, [3]));
    tensors.top_p = Some(TensorDesc::new(F32, [3]));
    tensors.min_p = Some(TensorDesc::new(F32, [3]));
    tensors.mask = Some(TensorDesc::new(I32, [5, 4]));
    tensors.probs = Some(TensorDesc::new(F32, [5, 100]));
    tensors.logprobs = Some(TensorDesc::new(F32, [5]));
    tensors.processed_logprobs = Some(TensorDesc::new(F32, [5]));
    tensors.ranks = Some(TensorDesc::new(I32, [5]));
    tensors.top_tokens = Some(TensorDesc::new(I32, [5, 20]));
    tensors.top_logprobs = Some(TensorDesc::new(F32, [5, 20]));
    tensors.row_flags = Some(TensorDesc::new(DType::U32, [5]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [5, 0])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [5, 1 << 24])),
            // Without `requests`, there must be one temperature per row.
            ("temperature", BadTensorShape, |_, t| t.requests = None),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [3]))),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 65])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 0])),
            // Another number of tokens per row.
            ("top_tokens", BadTensorShape, |_, t| {
                t.top_tokens = Some(TensorDesc::new(I32, [5, 257]));
            }),
            ("top_logprobs", BadTensorShape, |_, t| {
                t.top_logprobs = Some(TensorDesc::new(F32, [5, 19]));
            }),
            ("top_tokens", NullPointer, |_, t| t.top_tokens = None),
        ],
    );
}

/// A reader of the sentence knows what to change.
#[test]
fn sentences_about_shapes_name_the_arguments_that_they_follow() {
    let sentence = |change: &dyn Fn(&mut sample_logits::Tensors)| {
        let params = SampleLogits::default();
        let mut tensors = params.tensors(4, 100);
        change(&mut tensors);
        params.plan(&tensors).unwrap_err().to_string()
    };
    let flags = sentence(&|t| t.flags = Some(TensorDesc::new(DType::U32, [2])));
    assert!(flags.starts_with("sample_logits: `flags` is [2], expected [1]: "), "{flags}");
    let temperature = sentence(&|t| t.temperature = TensorDesc::new(F32, [2]));
    let words = "`temperature` is [2], expected [4], which is [requests], with requests = rows, \
                 as `requests` is absent: ";
    assert!(temperature.contains(words), "{temperature}");
    let top_k = sentence(&|t| {
        t.requests = Some(TensorDesc::new(I32, [4]));
        t.temperature = TensorDesc::new(F32, [2]);
        t.seeds = TensorDesc::new(DType::U64, [2]);
        t.top_k = Some(TensorDesc::new(I32, [4]));
    });
    assert!(
        top_k.contains("expected [2], which is [requests], with requests of `temperature`: "),
        "{top_k}"
    );
    let lone = sentence(&|t| t.top_logprobs = Some(TensorDesc::new(F32, [4, 2])));
    assert!(lone.contains("`top_tokens` is absent, expected present, "), "{lone}");
    let ranks = sentence(&|t| t.row_flags = Some(TensorDesc::new(DType::U32, [3])));
    assert!(ranks.contains("expected [4], which is [rows], with rows of `logits`: "), "{ranks}");
}
