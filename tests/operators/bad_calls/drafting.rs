//! Bad calls of the operators that draft tokens.

use super::*;

#[test]
fn ngram_match() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = NgramMatch::new().max_ngram_size(3).token_threshold(64);
    let tensors = params.tensors(4, 100, 50, 8);
    check(
        &params,
        &tensors,
        &[
            ("max_ngram_size", BadParam, |p, _| p.max_ngram_size = 0),
            ("max_ngram_size", BadParam, |p, _| p.max_ngram_size = 1025),
            ("token_threshold", BadParam, |p, _| p.token_threshold = -1),
            ("input_ids", BadTensorDtype, |_, t| t.input_ids = TensorDesc::new(F32, [4, 100])),
            ("input_ids", BadTensorShape, |_, t| t.input_ids = TensorDesc::new(I64, [400])),
            ("input_ids", BadTensorStrides, |_, t| t.input_ids = strided(I64, [4, 100], [1, 4])),
            ("token_ids_all", BadTensorDtype, |_, t| {
                t.token_ids_all = TensorDesc::new(I32, [4, 50]);
            }),
            ("token_ids_all", BadTensorShape, |_, t| {
                t.token_ids_all = TensorDesc::new(I64, [3, 50]);
            }),
            ("draft_tokens", BadTensorStrides, |_, t| {
                t.draft_tokens = strided(I64, [4, 8], [4, 1]);
            }),
            ("input_ids_len", BadTensorShape, |_, t| t.input_ids_len = TensorDesc::new(I64, [5])),
            ("step_idx", BadTensorDtype, |_, t| t.step_idx = TensorDesc::new(I32, [4])),
            ("step_idx", BadTensorShape, |_, t| t.step_idx = TensorDesc::new(I64, [4, 2])),
            ("step_idx", BadTensorShape, |_, t| t.step_idx = TensorDesc::new(I64, [5, 1])),
            ("step_idx", BadTensorShape, |_, t| t.step_idx = TensorDesc::new(I64, [4, 1, 1])),
            ("step_idx", BadTensorStrides, |_, t| t.step_idx = strided(I64, [4, 1], [2, 1])),
            ("seq_lens_decoder", BadTensorDtype, |_, t| {
                t.seq_lens_decoder = TensorDesc::new(I64, [4]);
            }),
        ],
    );
}

#[test]
fn hybrid_mtp_ngram() {
    use Status::{BadParam, BadTensorShape};
    let params = HybridMtpNgram::new(8).max_ngram_size(3).min_ngram_size(1).token_threshold(64);
    let tensors = params.tensors(4, 100, 50, 8);
    check(
        &params,
        &tensors,
        &[
            ("min_ngram_size", BadParam, |p, _| p.min_ngram_size = 0),
            ("min_ngram_size", BadParam, |p, _| p.min_ngram_size = 4),
            ("max_draft_tokens", BadParam, |p, _| p.max_draft_tokens = usize::MAX),
            ("pre_ids", BadTensorShape, |_, t| t.pre_ids = TensorDesc::new(I64, [50])),
            ("max_dec_len", BadTensorShape, |_, t| t.max_dec_len = TensorDesc::new(I64, [3])),
        ],
    );
}

#[test]
fn suffix_lookup() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
    let params = SuffixLookup::new();
    let mut tensors = params.tensors(I64, 4, 100, 8);
    tensors.corpus = Some(TensorDesc::new(I64, [1000]));
    tensors.corpus_length = Some(TensorDesc::new(I32, [1]));
    // One place checks for every backend, so any backend that has the operator will do.
    let handle = Handle::cpu().unwrap();
    check_on(
        &handle,
        &params,
        &tensors,
        &[
            ("min_match", BadParam, |p, _| p.min_match = 0),
            ("max_match", BadParam, |p, _| p.max_match = 65),
            ("max_match", BadParam, |p, _| (p.min_match, p.max_match) = (3, 2)),
            ("max_windows", BadParam, |p, _| p.max_windows = 0),
            ("max_windows", BadParam, |p, _| p.max_windows = 1025),
            ("width", BadParam, |p, _| p.width = 0),
            ("min_share", BadParam, |p, _| p.min_share = 1.5),
            ("min_share", BadParam, |p, _| p.min_share = f32::NAN),
            ("drafts_per_match", BadParam, |p, _| p.drafts_per_match = -1.0),
            ("drafts_per_match", BadParam, |p, _| p.drafts_per_match = f32::INFINITY),
            ("tokens", BadTensorDtype, |_, t| t.tokens = TensorDesc::new(F32, [4, 100])),
            ("tokens", BadTensorStrides, |_, t| t.tokens = strided(I64, [4, 100], [1, 4])),
            ("lengths", BadTensorShape, |_, t| t.lengths = TensorDesc::new(I32, [3])),
            ("requests", BadTensorDtype, |_, t| t.requests = Some(TensorDesc::new(F32, [4]))),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [4, 1]))),
            ("drafts", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
            ("max_drafts", BadTensorShape, |_, t| {
                t.max_drafts = Some(TensorDesc::new(I32, [3]));
            }),
            ("corpus", BadTensorDtype, |_, t| t.corpus = Some(TensorDesc::new(I32, [9]))),
            ("corpus", BadTensorShape, |_, t| t.corpus = Some(TensorDesc::new(I64, [9, 9]))),
            ("corpus", NullPointer, |_, t| t.corpus = None),
            ("corpus_length", BadTensorShape, |_, t| {
                t.corpus_length = Some(TensorDesc::new(I32, [2]));
            }),
            ("drafts", BadTensorDtype, |_, t| t.drafts = TensorDesc::new(I32, [4, 8])),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I64, [4, 65])),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I64, [3, 8])),
            ("counts", BadTensorDtype, |_, t| t.counts = TensorDesc::new(I64, [4])),
            ("parents", BadTensorShape, |_, t| t.parents = Some(TensorDesc::new(I32, [4, 9]))),
            ("first_child", BadTensorShape, |_, t| {
                t.first_child = Some(TensorDesc::new(I32, [4, 8]));
            }),
            ("next_sibling", BadTensorDtype, |_, t| {
                t.next_sibling = Some(TensorDesc::new(I64, [4, 9]));
            }),
            ("shares", BadTensorDtype, |_, t| t.shares = Some(TensorDesc::new(I32, [4, 8]))),
            ("match_lengths", BadTensorShape, |_, t| {
                t.match_lengths = Some(TensorDesc::new(I32, [5]));
            }),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [4]))),
        ],
    );
}

#[test]
fn prompt_lookup() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = PromptLookup::default();
    let mut tensors = params.tensors(I64, 4, 100);
    tensors.lengths = TensorDesc::new(I64, [4, 1]);
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("min_ngram", BadParam, |p, _| p.min_ngram = 0),
            ("min_ngram", BadParam, |p, _| p.min_ngram = 6),
            ("max_ngram", BadParam, |p, _| p.max_ngram = 0),
            ("max_ngram", BadParam, |p, _| p.max_ngram = 1025),
            ("max_draft", BadParam, |p, _| p.max_draft = 1 << 31),
            ("tokens", BadTensorDtype, |_, t| t.tokens = TensorDesc::new(F32, [4, 100])),
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I64, [400])),
            ("tokens", BadTensorStrides, |_, t| t.tokens = strided(I64, [4, 100], [200, 2])),
            ("lengths", BadTensorDtype, |_, t| t.lengths = TensorDesc::new(DType::U32, [4])),
            ("lengths", BadTensorShape, |_, t| t.lengths = TensorDesc::new(I64, [1, 4])),
            ("lengths", BadTensorStrides, |_, t| t.lengths = strided(I64, [4, 1], [3, 1])),
            ("requests", BadTensorDtype, |_, t| t.requests = Some(TensorDesc::new(F32, [4]))),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [2, 2]))),
            ("requests", BadTensorStrides, |_, t| {
                t.requests = Some(TensorDesc::with_strides(I32, [4], [2]));
            }),
            ("drafts", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
            ("max_drafts", BadTensorDtype, |_, t| t.max_drafts = Some(TensorDesc::new(I64, [4]))),
            ("max_drafts", BadTensorShape, |_, t| t.max_drafts = Some(TensorDesc::new(I32, [5]))),
            ("drafts", BadTensorDtype, |_, t| t.drafts = TensorDesc::new(I32, [4, 5])),
            ("drafts", BadTensorDtype, |_, t| {
                (t.tokens, t.drafts) =
                    (TensorDesc::new(I32, [4, 100]), TensorDesc::new(DType::U32, [4, 5]));
            }),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I64, [4, 6])),
            ("drafts", BadTensorStrides, |_, t| t.drafts = strided(I64, [4, 5], [4, 1])),
            ("counts", BadTensorDtype, |_, t| t.counts = TensorDesc::new(I64, [4])),
            ("counts", BadTensorShape, |_, t| t.counts = TensorDesc::new(I32, [3])),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [2]))),
        ],
    );
}
