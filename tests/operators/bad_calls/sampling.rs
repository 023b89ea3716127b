//! Bad calls of the operators that sample tokens, verify drafts and update the logits and the text.

use spec::ops::rejection_sample::{Acceptance, Recovery};

use super::*;

#[test]
fn rejection_sample() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
    let params = RejectionSample::argmax(4);
    let tensors = params.tensors(3, 7, 100);
    check(
        &params,
        &tensors,
        &[
            ("target_probs", BadTensorDtype, |_, t| {
                t.target_probs = TensorDesc::new(I32, [7, 100]);
            }),
            ("target_probs", BadTensorShape, |_, t| t.target_probs = TensorDesc::new(F32, [700])),
            ("target_probs", BadTensorShape, |_, t| t.target_probs = TensorDesc::new(F32, [7, 0])),
            ("target_probs", BadTensorShape, |p, t| {
                p.recovery = Recovery::Sample;
                t.target_probs = TensorDesc::new(F32, [7, 1 << 24]);
            }),
            ("target_probs", BadTensorStrides, |_, t| {
                t.target_probs = strided(F32, [7, 100], [200, 2]);
            }),
            ("draft_probs", BadTensorShape, |_, t| {
                t.draft_probs = Some(TensorDesc::new(F32, [7, 99]));
            }),
            ("draft_probs", BadTensorDtype, |_, t| {
                t.draft_probs = Some(TensorDesc::new(DType::F16, [7, 100]));
            }),
            ("draft_token_ids", BadTensorDtype, |_, t| {
                t.draft_token_ids = TensorDesc::new(F32, [7]);
            }),
            ("draft_token_ids", BadTensorShape, |_, t| {
                t.draft_token_ids = TensorDesc::new(I64, [8]);
            }),
            ("bonus_token_ids", BadTensorShape, |_, t| {
                t.bonus_token_ids = TensorDesc::new(I64, [3, 1]);
            }),
            ("bonus_token_ids", BadTensorDtype, |_, t| {
                t.bonus_token_ids = TensorDesc::new(DType::U64, [3]);
            }),
            ("cu_num_draft", BadTensorShape, |_, t| t.cu_num_draft = TensorDesc::new(I64, [5])),
            ("cu_num_draft", BadTensorShape, |_, t| t.cu_num_draft = TensorDesc::new(I64, [2])),
            ("cu_num_draft", BadTensorDtype, |_, t| t.cu_num_draft = TensorDesc::new(F32, [4])),
            ("uniform_samples", BadTensorShape, |_, t| {
                t.uniform_samples = Some(TensorDesc::new(F32, [3]));
            }),
            ("seeds", NullPointer, |_, t| t.seeds = None),
            ("seeds", NullPointer, |p, t| {
                p.recovery = Recovery::Sample;
                t.uniform_samples = Some(TensorDesc::new(F32, [7]));
                (t.seeds, t.positions) = (None, None);
            }),
            ("seeds", BadTensorDtype, |_, t| t.seeds = Some(TensorDesc::new(I64, [3]))),
            ("seeds", BadTensorShape, |_, t| t.seeds = Some(TensorDesc::new(DType::U64, [2]))),
            ("seeds", BadTensorStrides, |_, t| {
                t.seeds = Some(TensorDesc::with_strides(DType::U64, [3], [2]));
            }),
            ("positions", NullPointer, |_, t| t.positions = None),
            ("positions", BadTensorDtype, |_, t| {
                t.positions = Some(TensorDesc::new(DType::U64, [3]));
            }),
            ("positions", BadTensorShape, |_, t| t.positions = Some(TensorDesc::new(I64, [7]))),
            ("greedy", BadTensorDtype, |_, t| t.greedy = Some(TensorDesc::new(I64, [3]))),
            ("greedy", BadTensorShape, |_, t| {
                t.greedy = Some(TensorDesc::new(DType::Bool, [7]));
            }),
            ("max_spec_len", BadParam, |p, _| p.max_spec_len = usize::MAX),
            ("output_token_ids", BadTensorShape, |_, t| {
                t.output_token_ids = TensorDesc::new(I32, [3, 4]);
            }),
            ("output_token_ids", BadTensorDtype, |_, t| {
                t.output_token_ids = TensorDesc::new(F32, [3, 5]);
            }),
            ("num_accepted", BadTensorShape, |_, t| t.num_accepted = TensorDesc::new(I32, [4])),
            ("bonus_counts", BadTensorDtype, |_, t| t.bonus_counts = TensorDesc::new(I64, [3])),
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
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
    let params = TreeVerify::new(3);
    let tensors = params.tensors(4, 8);
    check(
        &params,
        &tensors,
        &[
            ("max_depth", BadParam, |p, _| p.max_depth = i32::MAX as usize),
            ("max_depth", BadParam, |p, _| p.max_depth = usize::MAX),
            ("draft_tokens", BadTensorDtype, |_, t| t.draft_tokens = TensorDesc::new(F32, [4, 8])),
            ("draft_tokens", BadTensorShape, |_, t| {
                t.draft_tokens = TensorDesc::new(I64, [4, 8, 1]);
            }),
            ("draft_tokens", BadTensorShape, |_, t| t.draft_tokens = TensorDesc::new(I64, [4, 0])),
            ("row_offsets", NullPointer, |_, t| t.draft_tokens = TensorDesc::new(I64, [32])),
            ("draft_tokens", BadTensorStrides, |_, t| {
                t.draft_tokens = strided(I64, [4, 8], [1, 4]);
            }),
            ("target_tokens", BadTensorShape, |_, t| {
                t.target_tokens = TensorDesc::new(I32, [4, 7]);
            }),
            ("target_tokens", BadTensorDtype, |_, t| {
                t.target_tokens = TensorDesc::new(DType::U64, [4, 8]);
            }),
            ("target_tokens", BadTensorShape, |_, t| t.target_tokens = TensorDesc::new(I32, [32])),
            ("target_tokens", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [5]));
            }),
            ("row_offsets", BadTensorShape, |_, t| {
                t.row_offsets = Some(TensorDesc::new(I32, [4]));
            }),
            ("row_offsets", BadTensorDtype, |_, t| {
                t.row_offsets = Some(TensorDesc::new(DType::U32, [5]));
            }),
            ("row_offsets", BadTensorStrides, |_, t| {
                t.row_offsets = Some(TensorDesc::with_strides(I32, [5], [2]));
            }),
            ("first_child", NullPointer, |_, t| t.first_child = None),
            ("next_sibling", NullPointer, |_, t| t.next_sibling = None),
            ("first_child", BadTensorShape, |_, t| {
                t.first_child = Some(TensorDesc::new(I64, [3, 8]));
            }),
            ("next_sibling", BadTensorDtype, |_, t| {
                t.next_sibling = Some(TensorDesc::new(DType::U8, [4, 8]));
            }),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [4, 3])),
            ("tokens", BadTensorStrides, |_, t| t.tokens = strided(I32, [4, 4], [3, 1])),
            ("nodes", BadTensorShape, |_, t| t.nodes = TensorDesc::new(I32, [4, 5])),
            ("num_tokens", BadTensorDtype, |_, t| t.num_tokens = TensorDesc::new(I64, [4])),
            ("num_tokens", BadTensorShape, |_, t| t.num_tokens = TensorDesc::new(I32, [5])),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [4]))),
        ],
    );
}

#[test]
fn packed_tree_verify() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
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
            ("draft_tokens", BadTensorStrides, |_, t| {
                t.draft_tokens = TensorDesc::with_strides(I64, [20], [2]);
            }),
            ("target_tokens", BadTensorShape, |_, t| t.target_tokens = TensorDesc::new(I32, [19])),
            ("target_tokens", BadTensorShape, |_, t| {
                t.target_tokens = TensorDesc::new(I32, [4, 5]);
            }),
            ("target_tokens", BadTensorDtype, |_, t| {
                t.target_tokens = TensorDesc::new(F32, [20]);
            }),
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
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
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
    check(
        &params,
        &tensors,
        &[
            ("logits", BadTensorDtype, |_, t| t.logits = TensorDesc::new(I32, [6, 100])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [600])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [6, 0])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [6, 1 << 31])),
            ("logits", BadTensorStrides, |_, t| t.logits = strided(F32, [6, 100], [99, 1])),
            ("tokens", BadTensorDtype, |_, t| t.tokens = TensorDesc::new(F32, [4, 50])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [4, 1 << 31])),
            ("tokens", BadTensorShape, |_, t| t.requests = None),
            ("prompt_lengths", BadTensorShape, |_, t| {
                t.prompt_lengths = TensorDesc::new(I32, [3]);
            }),
            ("lengths", BadTensorDtype, |_, t| t.lengths = TensorDesc::new(F32, [4])),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [4]))),
            ("draft_tokens", NullPointer, |_, t| t.draft_tokens = None),
            ("draft_tokens", BadTensorShape, |_, t| {
                t.draft_tokens = Some(TensorDesc::new(I32, [5]));
            }),
            ("parents", NullPointer, |_, t| t.parents = None),
            ("parents", BadTensorDtype, |_, t| t.parents = Some(TensorDesc::new(I64, [6]))),
            ("bias_offsets", BadTensorShape, |_, t| {
                t.bias_offsets = Some(TensorDesc::new(I32, [4]));
            }),
            ("bias_tokens", NullPointer, |_, t| t.bias_tokens = None),
            ("bias_tokens", BadTensorShape, |_, t| {
                t.bias_tokens = Some(TensorDesc::new(I32, [1 << 31]));
            }),
            ("bias_values", BadTensorShape, |_, t| {
                t.bias_values = Some(TensorDesc::new(F32, [8]));
            }),
            ("repetition", BadTensorShape, |_, t| {
                t.repetition = Some(TensorDesc::new(F32, [6]));
            }),
            ("frequency", BadTensorDtype, |_, t| t.frequency = Some(TensorDesc::new(I32, [4]))),
            ("presence", BadTensorShape, |_, t| t.presence = Some(TensorDesc::new(F32, [4, 1]))),
            ("min_tokens", NullPointer, |_, t| t.min_tokens = None),
            ("stop_tokens", BadTensorShape, |_, t| {
                t.stop_tokens = Some(TensorDesc::new(I32, [3, 2]));
            }),
            ("bad_offsets", BadTensorShape, |_, t| {
                t.bad_offsets = Some(TensorDesc::new(I32, [4]));
            }),
            ("word_offsets", BadTensorShape, |_, t| {
                t.word_offsets = Some(TensorDesc::new(I32, [0]));
            }),
            ("word_tokens", NullPointer, |_, t| t.word_tokens = None),
            ("no_repeat_ngram", BadTensorDtype, |_, t| {
                t.no_repeat_ngram = Some(TensorDesc::new(I64, [4]));
            }),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [4]))),
        ],
    );
}

#[test]
fn append_tokens() {
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = AppendTokens::new();
    let mut tensors = params.tensors(I64, 4, 100, 5);
    tensors.stop_tokens = Some(TensorDesc::new(I32, [4, 2]));
    tensors.max_lengths = Some(TensorDesc::new(I32, [4]));
    tensors.finished = Some(TensorDesc::new(I32, [4]));
    tensors.last_tokens = Some(TensorDesc::new(I64, [4]));
    check(
        &params,
        &tensors,
        &[
            ("tokens", BadTensorDtype, |_, t| t.tokens = TensorDesc::new(F32, [4, 100])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I64, [400])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I64, [4, 1 << 31])),
            ("tokens", BadTensorStrides, |_, t| t.tokens = strided(I64, [4, 100], [99, 1])),
            ("lengths", BadTensorShape, |_, t| t.lengths = TensorDesc::new(I32, [3])),
            ("lengths", BadTensorDtype, |_, t| t.lengths = TensorDesc::new(DType::U32, [4])),
            ("new_tokens", BadTensorShape, |_, t| t.new_tokens = TensorDesc::new(I32, [3, 5])),
            ("new_tokens", BadTensorDtype, |_, t| t.new_tokens = TensorDesc::new(F32, [4, 5])),
            ("new_counts", BadTensorShape, |_, t| t.new_counts = TensorDesc::new(I32, [4, 2])),
            ("stop_tokens", BadTensorShape, |_, t| {
                t.stop_tokens = Some(TensorDesc::new(I32, [5, 2]));
            }),
            ("max_lengths", BadTensorDtype, |_, t| {
                t.max_lengths = Some(TensorDesc::new(F32, [4]));
            }),
            ("finished", BadTensorDtype, |_, t| t.finished = Some(TensorDesc::new(I64, [4]))),
            ("appended", BadTensorShape, |_, t| t.appended = TensorDesc::new(I32, [5])),
            ("last_tokens", BadTensorDtype, |_, t| {
                t.last_tokens = Some(TensorDesc::new(I32, [4]));
            }),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [4]))),
        ],
    );
}

#[test]
fn sample_logits() {
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
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
            ("logits", BadTensorDtype, |_, t| t.logits = TensorDesc::new(I32, [5, 100])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [500])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [5, 0])),
            ("logits", BadTensorShape, |_, t| t.logits = TensorDesc::new(F32, [5, 1 << 24])),
            ("logits", BadTensorStrides, |_, t| t.logits = strided(F32, [5, 100], [1, 5])),
            ("positions", BadTensorDtype, |_, t| t.positions = TensorDesc::new(F32, [5])),
            ("positions", BadTensorShape, |_, t| t.positions = TensorDesc::new(I64, [3])),
            ("temperature", BadTensorDtype, |_, t| t.temperature = TensorDesc::new(I32, [3])),
            // Without `requests`, there must be one temperature per row.
            ("temperature", BadTensorShape, |_, t| t.requests = None),
            ("seeds", BadTensorDtype, |_, t| t.seeds = TensorDesc::new(I64, [3])),
            ("seeds", BadTensorShape, |_, t| t.seeds = TensorDesc::new(DType::U64, [5])),
            ("top_k", BadTensorDtype, |_, t| t.top_k = Some(TensorDesc::new(I64, [3]))),
            ("top_k", BadTensorShape, |_, t| t.top_k = Some(TensorDesc::new(I32, [5]))),
            ("top_p", BadTensorShape, |_, t| t.top_p = Some(TensorDesc::new(F32, [1]))),
            ("min_p", BadTensorDtype, |_, t| t.min_p = Some(TensorDesc::new(DType::F16, [3]))),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [3]))),
            ("requests", BadTensorDtype, |_, t| t.requests = Some(TensorDesc::new(F32, [5]))),
            ("mask", BadTensorShape, |_, t| t.mask = Some(TensorDesc::new(I32, [5, 100]))),
            ("mask", BadTensorDtype, |_, t| t.mask = Some(TensorDesc::new(DType::U8, [5, 4]))),
            ("mask", BadTensorStrides, |_, t| t.mask = Some(strided(I32, [5, 4], [8, 2]))),
            ("tokens", BadTensorDtype, |_, t| t.tokens = TensorDesc::new(DType::U64, [5])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [3])),
            ("probs", BadTensorDtype, |_, t| t.probs = Some(TensorDesc::new(DType::F16, [5, 100]))),
            ("probs", BadTensorShape, |_, t| t.probs = Some(TensorDesc::new(F32, [5, 99]))),
            ("probs", BadTensorStrides, |_, t| t.probs = Some(strided(F32, [5, 100], [99, 1]))),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 65])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [3, 4])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 0])),
            ("logprobs", BadTensorShape, |_, t| t.logprobs = Some(TensorDesc::new(F32, [3]))),
            // Another number of tokens per row.
            ("logprobs", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 2])),
            ("processed_logprobs", BadTensorShape, |_, t| {
                t.processed_logprobs = Some(TensorDesc::new(F32, [5, 1]));
            }),
            ("ranks", BadTensorDtype, |_, t| t.ranks = Some(TensorDesc::new(I64, [5]))),
            ("top_tokens", BadTensorShape, |_, t| {
                t.top_tokens = Some(TensorDesc::new(I32, [5, 257]));
            }),
            ("top_logprobs", BadTensorShape, |_, t| {
                t.top_logprobs = Some(TensorDesc::new(F32, [5, 19]));
            }),
            ("top_tokens", NullPointer, |_, t| t.top_tokens = None),
            ("row_flags", BadTensorShape, |_, t| {
                t.row_flags = Some(TensorDesc::new(DType::U32, [1]));
            }),
            ("row_flags", BadTensorDtype, |_, t| t.row_flags = Some(TensorDesc::new(I32, [5]))),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [5]))),
        ],
    );
}

/// A reader of the sentence knows what to change.
#[test]
fn sentences_about_shapes_name_the_arguments_that_they_follow() {
    let sentence = |change: &dyn Fn(&mut spec::ops::sample_logits::Tensors)| {
        let params = SampleLogits::default();
        let mut tensors = params.tensors(4, 100);
        change(&mut tensors);
        params.plan(&tensors).unwrap_err().to_string()
    };
    let flags = sentence(&|t| t.flags = Some(TensorDesc::new(DType::U32, [2])));
    assert!(flags.starts_with("sample_logits: `flags` is [2], expected [1]: "), "{flags}");
    let temperature = sentence(&|t| t.temperature = TensorDesc::new(F32, [2]));
    let words = "`temperature` is [2], expected [4], a request per row, as `requests` is absent: ";
    assert!(temperature.contains(words), "{temperature}");
    let top_k = sentence(&|t| {
        t.requests = Some(TensorDesc::new(I32, [4]));
        t.temperature = TensorDesc::new(F32, [2]);
        t.seeds = TensorDesc::new(DType::U64, [2]);
        t.top_k = Some(TensorDesc::new(I32, [4]));
    });
    assert!(top_k.contains("`top_k` is [4], expected [2], as `temperature`: "), "{top_k}");
    let lone = sentence(&|t| t.top_logprobs = Some(TensorDesc::new(F32, [4, 2])));
    assert!(lone.contains("`top_tokens` is absent, expected present, "), "{lone}");
    let ranks = sentence(&|t| t.row_flags = Some(TensorDesc::new(DType::U32, [3])));
    assert!(ranks.contains("`row_flags` is [3], expected [4], which is [rows]: "), "{ranks}");
}
