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

#[test]
fn draft_tree() {
    use Status::{BadParam, BadTensorShape, BadTensorStrides, NullPointer};
    let params = DraftTree::new();
    let vector = |dtype, len| Some(TensorDesc::new(dtype, [len]));
    let mut tensors = params.tensors(I32, 4, 10, 40);
    tensors.parents = Some(TensorDesc::new(I32, [4, 10]));
    tensors.shares = Some(TensorDesc::new(F32, [4, 10]));
    (tensors.counts, tensors.trust) = (vector(I32, 4), vector(F32, 4));
    (tensors.finished, tensors.budget) = (vector(I32, 4), vector(I32, 1));
    (tensors.roots, tensors.starts) = (vector(I32, 4), vector(I64, 4));
    tensors.row_offsets = vector(I32, 5);
    (tensors.rows, tensors.row_tokens) = (vector(I32, 100), vector(I32, 100));
    tensors.row_positions = vector(I64, 100);
    // Rows of masks may lie apart in both dimensions.
    tensors.masks = Some(TensorDesc::with_strides(I32, [4, 41, 2], [300, 7, 1]));
    check(
        &params,
        &tensors,
        &[
            ("min_survival", BadParam, |p, _| p.min_survival = f32::NAN),
            ("min_survival", BadParam, |p, _| p.min_survival = -0.5),
            ("min_survival", BadParam, |p, _| p.min_survival = 1.5),
            ("candidates", BadTensorShape, |_, t| t.candidates = TensorDesc::new(I32, [4, 4097])),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I32, [4, 257])),
            ("starts", NullPointer, |_, t| t.starts = None),
            ("row_tokens", BadTensorShape, |_, t| {
                t.row_tokens = Some(TensorDesc::new(I32, [99]));
            }),
            ("masks", BadTensorShape, |_, t| {
                t.masks = Some(TensorDesc::new(I32, [4, 41, 1]));
            }),
            ("masks", BadTensorStrides, |_, t| {
                t.masks = Some(TensorDesc::with_strides(I32, [4, 41, 2], [300, 7, 2]));
            }),
            // Nodes that overlap, and requests that do.
            ("masks", BadTensorStrides, |_, t| {
                t.masks = Some(TensorDesc::with_strides(I32, [4, 41, 2], [300, 1, 1]));
            }),
            ("masks", BadTensorStrides, |_, t| {
                t.masks = Some(TensorDesc::with_strides(I32, [4, 41, 2], [281, 7, 1]));
            }),
        ],
    );
    // More nodes than an i32 counts.
    let huge = params.tensors(I32, 1 << 24, 0, 127);
    let error = params.plan(&huge).unwrap_err();
    assert_eq!(error.status(), BadTensorShape);
    assert!(error.to_string().contains("batch * (n + 1) at most 2147483647"), "{error}");
}
