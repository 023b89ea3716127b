//! Bad calls of the operators that draft tokens.

use super::*;

#[test]
fn ngram_match() {
    use Status::BadParam;
    let params = NgramMatch::new().max_ngram_size(3).token_threshold(64);
    let tensors = params.tensors(4, 100, 50, 8);
    check(
        &params,
        &tensors,
        &[
            ("max_ngram_size", BadParam, |p, _| p.max_ngram_size = 0),
            ("max_ngram_size", BadParam, |p, _| p.max_ngram_size = 1025),
            ("token_threshold", BadParam, |p, _| p.token_threshold = -1),
        ],
    );
}

#[test]
fn hybrid_mtp_ngram() {
    use Status::BadParam;
    let params = HybridMtpNgram::new(8).max_ngram_size(3).min_ngram_size(1).token_threshold(64);
    let tensors = params.tensors(4, 100, 50, 8);
    check(
        &params,
        &tensors,
        &[
            ("min_ngram_size", BadParam, |p, _| p.min_ngram_size = 0),
            ("min_ngram_size", BadParam, |p, _| p.min_ngram_size = 4),
            ("max_draft_tokens", BadParam, |p, _| p.max_draft_tokens = usize::MAX),
        ],
    );
}

#[test]
fn suffix_lookup() {
    use Status::{BadParam, BadTensorShape, NullPointer};
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
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [4, 1]))),
            ("drafts", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
            ("corpus", NullPointer, |_, t| t.corpus = None),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I64, [4, 65])),
        ],
    );
}

#[test]
fn prompt_lookup() {
    use Status::{BadParam, BadTensorShape};
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
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [2, 2]))),
            ("drafts", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
        ],
    );
}
