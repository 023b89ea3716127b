//! A table of bad calls for every operator, with the status that each call must get. The
//! status is the same from every backend, because one place checks all calls.

use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::topk_router::{Masked, preset};
use spec::ops::{
    AdjustLogits, AppendTokens, DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch,
    PromptLookup, RejectionSample, SampleLogits, SuffixLookup, TopkRouter, TreeVerify, Unique,
};
use spec::{DType, Handle, Operator, Portable, Result, Status, TensorDesc};

/// A bad call: the argument that the error must name, the status, and the change that
/// turns a good call into the bad call.
type Row<O> = (&'static str, Status, fn(&mut O, &mut <O as spec::Signature>::Tensors));

fn check<O: Portable>(operator: &O, tensors: &O::Tensors, rows: &[Row<O>]) {
    crate::common::handles().iter().for_each(|handle| check_on(handle, operator, tensors, rows));
}

fn check_on<O: Portable>(handle: &Handle, operator: &O, tensors: &O::Tensors, rows: &[Row<O>]) {
    handle.create(operator, tensors).map(|_| ()).expect("the call without the mistake is good");
    for (argument, status, spoil) in rows {
        let (mut operator, mut tensors) = (operator.clone(), tensors.clone());
        spoil(&mut operator, &mut tensors);
        let error = match handle.create(&operator, &tensors) {
            Ok(_) => panic!("{}: {}: a bad `{argument}` passed", handle.device(), O::NAME),
            Err(error) => error,
        };
        let text = error.to_string();
        assert_eq!(error.status(), *status, "{text}");
        let start = format!("{}: `{argument}` is ", O::NAME);
        assert!(text.starts_with(&start), "`{text}` does not start with `{start}`");
        assert!(text.contains("expected"), "`{text}` does not say what was expected");
    }
}

const F32: DType = DType::F32;
const I32: DType = DType::I32;
const I64: DType = DType::I64;

fn strided(dtype: DType, shape: [usize; 2], strides: [isize; 2]) -> TensorDesc {
    TensorDesc::with_strides(dtype, shape, strides)
}

#[test]
fn topk_router() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
    let model = preset::DEEPSEEK_V3;
    let params = model.router().shared_experts(1).physical_experts(Some(288));
    let mut tensors = model.tensors(F32, 5);
    (tensors.weights, tensors.indices) =
        (TensorDesc::new(F32, [5, 9]), TensorDesc::new(I32, [5, 9]));
    tensors.num_tokens = Some(TensorDesc::new(I32, [1]));
    tensors.replicas = Some(TensorDesc::new(I32, [256, 3]));
    tensors.replica_counts = Some(TensorDesc::new(I32, [256]));
    tensors.load = Some(TensorDesc::new(I32, [288]));
    tensors.chosen = Some(TensorDesc::new(I32, [5, 8]));
    tensors.logical = Some(TensorDesc::new(I32, [5, 9]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("chosen", BadTensorDtype, |_, t| t.chosen = Some(TensorDesc::new(I64, [5, 8]))),
            ("chosen", BadTensorShape, |_, t| t.chosen = Some(TensorDesc::new(I32, [5, 9]))),
            ("chosen", BadTensorShape, |_, t| t.chosen = Some(TensorDesc::new(I32, [4, 8]))),
            ("chosen", BadTensorStrides, |_, t| t.chosen = Some(strided(I32, [5, 8], [16, 2]))),
            ("logical", BadTensorDtype, |_, t| t.logical = Some(TensorDesc::new(I64, [5, 9]))),
            ("logical", BadTensorShape, |_, t| t.logical = Some(TensorDesc::new(I32, [5, 8]))),
            ("logical", BadTensorStrides, |_, t| t.logical = Some(strided(I32, [5, 9], [8, 1]))),
            ("bias", BadTensorDtype, |_, t| t.bias = Some(TensorDesc::new(I32, [256]))),
            ("shared_experts", BadParam, |p, _| p.shared_experts = 65),
            ("shared_experts", BadParam, |p, _| p.shared_experts = usize::MAX),
            ("shared_weight", BadParam, |p, _| p.shared_weight = f32::INFINITY),
            ("weights", BadTensorShape, |p, _| p.shared_experts = 2),
            ("num_tokens", BadTensorDtype, |_, t| t.num_tokens = Some(TensorDesc::new(I64, [1]))),
            ("num_tokens", BadTensorShape, |_, t| t.num_tokens = Some(TensorDesc::new(I32, [5]))),
            ("physical_experts", BadParam, |p, _| p.physical_experts = None),
            ("physical_experts", BadParam, |p, _| p.physical_experts = Some(0)),
            ("physical_experts", BadParam, |p, _| p.physical_experts = Some(1 << 31)),
            ("physical_experts", BadParam, |p, t| {
                (p.physical_experts, t.replicas) = (None, None);
            }),
            ("replicas", NullPointer, |_, t| t.replicas = None),
            ("replicas", BadTensorDtype, |_, t| {
                t.replicas = Some(TensorDesc::new(I64, [256, 3]));
            }),
            ("replicas", BadTensorShape, |_, t| {
                t.replicas = Some(TensorDesc::new(I32, [255, 3]));
            }),
            ("replicas", BadTensorShape, |_, t| {
                t.replicas = Some(TensorDesc::new(I32, [256, 0]));
            }),
            ("replicas", BadTensorStrides, |_, t| {
                t.replicas = Some(strided(I32, [256, 3], [6, 2]));
            }),
            ("replica_counts", NullPointer, |_, t| t.replica_counts = None),
            ("replica_counts", BadTensorShape, |_, t| {
                t.replica_counts = Some(TensorDesc::new(I32, [288]));
            }),
            ("load", BadTensorShape, |_, t| t.load = Some(TensorDesc::new(I32, [256]))),
            ("load", BadTensorShape, |p, _| p.physical_experts = Some(287)),
            ("load", BadTensorDtype, |_, t| t.load = Some(TensorDesc::new(I64, [288]))),
            ("x", BadTensorDtype, |_, t| t.x = TensorDesc::new(I32, [5, 256])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [256])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 256, 1])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 0])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 4097])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [usize::MAX / 256, 256])),
            ("x", BadTensorStrides, |_, t| t.x = strided(F32, [5, 256], [512, 2])),
            ("x", BadTensorStrides, |_, t| t.x = strided(F32, [5, 256], [-256, 1])),
            ("bias", BadTensorShape, |_, t| t.bias = Some(TensorDesc::new(F32, [255]))),
            ("bias", BadTensorStrides, |_, t| {
                t.bias = Some(TensorDesc::with_strides(F32, [256], [2]));
            }),
            ("groups", BadParam, |p, _| p.groups = 0),
            ("groups", BadParam, |p, _| p.groups = 7),
            ("topk_groups", BadParam, |p, _| p.topk_groups = 0),
            ("topk_groups", BadParam, |p, _| p.topk_groups = 9),
            ("topk", BadParam, |p, _| p.topk = 0),
            ("topk", BadParam, |p, _| p.topk = 65),
            ("topk", BadParam, |p, _| {
                (p.masked, p.groups, p.topk_groups) = (Masked::Excluded, 64, 1);
            }),
            ("scale", BadParam, |p, _| p.scale = f32::NAN),
            ("weights", BadTensorDtype, |_, t| t.weights = TensorDesc::new(I32, [5, 9])),
            ("weights", BadTensorShape, |_, t| t.weights = TensorDesc::new(F32, [5, 8])),
            ("weights", BadTensorStrides, |_, t| t.weights = strided(F32, [5, 9], [0, 1])),
            ("indices", BadTensorDtype, |_, t| t.indices = TensorDesc::new(F32, [5, 9])),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [4, 9])),
            ("indices", BadTensorStrides, |_, t| t.indices = strided(I32, [5, 9], [8, 1])),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [2]))),
            ("flags", BadTensorDtype, |_, t| t.flags = Some(TensorDesc::new(I32, [1]))),
        ],
    );
}

#[test]
fn deduplicate_topk() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = DeduplicateTopk::new().mtp_step(2);
    let mut tensors = params.tensors(3, 10);
    tensors.counts = Some(TensorDesc::new(I32, [3]));
    check(
        &params,
        &tensors,
        &[
            ("mtp_step", BadParam, |p, _| p.mtp_step = 0),
            ("indices", BadTensorDtype, |_, t| t.indices = TensorDesc::new(I64, [6, 10])),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [60])),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [7, 10])),
            ("indices", BadTensorShape, |p, _| p.mtp_step = 4),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [2, 1 << 31])),
            ("indices", BadTensorStrides, |_, t| t.indices = strided(I32, [6, 10], [20, 2])),
            ("unique", BadTensorShape, |_, t| t.unique = TensorDesc::new(I32, [3, 19])),
            ("unique", BadTensorStrides, |_, t| t.unique = strided(I32, [3, 20], [19, 1])),
            ("counts", BadTensorShape, |_, t| t.counts = Some(TensorDesc::new(I32, [2]))),
            ("counts", BadTensorDtype, |_, t| t.counts = Some(TensorDesc::new(I64, [3]))),
        ],
    );
}

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
fn moe_align() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = MoeAlign::new(16, 8).local_experts(4);
    let mut tensors = params.tensors(I32, 10, 2);
    tensors.expert_map = Some(TensorDesc::new(I32, [16]));
    let capacity = 20 + 4 * 7;
    check(
        &params,
        &tensors,
        &[
            ("experts", BadParam, |p, _| p.experts = 0),
            ("experts", BadParam, |p, _| p.experts = 4097),
            ("local_experts", BadParam, |p, _| p.local_experts = 17),
            ("local_experts", BadParam, |_, t| t.expert_map = None),
            ("block_size", BadParam, |p, _| p.block_size = 0),
            ("topk_ids", BadTensorDtype, |_, t| t.topk_ids = TensorDesc::new(F32, [10, 2])),
            ("topk_ids", BadTensorShape, |_, t| t.topk_ids = TensorDesc::new(I32, [20])),
            ("topk_ids", BadTensorShape, |_, t| t.topk_ids = TensorDesc::new(I32, [1 << 30, 2])),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = 1 << 30),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = usize::MAX),
            ("topk_ids", BadTensorStrides, |_, t| t.topk_ids = strided(I32, [10, 2], [4, 2])),
            ("expert_map", BadTensorShape, |_, t| {
                t.expert_map = Some(TensorDesc::new(I32, [4]));
            }),
            ("expert_map", BadTensorDtype, |_, t| {
                t.expert_map = Some(TensorDesc::new(I64, [16]));
            }),
            ("sorted_ids", BadTensorShape, |_, t| t.sorted_ids = TensorDesc::new(I32, [47])),
            ("sorted_ids", BadTensorDtype, |_, t| t.sorted_ids = TensorDesc::new(I64, [48])),
            ("sorted_ids", BadTensorStrides, |_, t| {
                t.sorted_ids = TensorDesc::with_strides(I32, [48], [2]);
            }),
            ("block_experts", BadTensorShape, |_, t| t.block_experts = TensorDesc::new(I32, [7])),
            ("counts", BadTensorShape, |_, t| t.counts = TensorDesc::new(I32, [16])),
            ("offsets", BadTensorShape, |_, t| t.offsets = TensorDesc::new(I32, [4])),
            ("num_padded", BadTensorShape, |_, t| t.num_padded = TensorDesc::new(I32, [2])),
            ("inverse", BadTensorShape, |_, t| t.inverse = Some(TensorDesc::new(I32, [10]))),
            ("sorted_tokens", BadTensorShape, |_, t| {
                t.sorted_tokens = Some(TensorDesc::new(I32, [20]));
            }),
            ("block_limits", BadTensorShape, |_, t| {
                t.block_limits = Some(TensorDesc::new(I32, [7]));
            }),
            ("block_limits", BadTensorDtype, |_, t| {
                t.block_limits = Some(TensorDesc::new(I64, [6]));
            }),
            ("num_blocks", BadTensorShape, |_, t| t.num_blocks = Some(TensorDesc::new(I32, [2]))),
            ("flags", BadTensorDtype, |_, t| t.flags = Some(TensorDesc::new(I32, [1]))),
        ],
    );
    assert_eq!(params.capacity(20), Some(capacity));
}

#[test]
fn tree_verify() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = TreeVerify::new(3);
    let tensors = params.tensors(4, 8);
    check(
        &params,
        &tensors,
        &[
            ("max_depth", BadParam, |p, _| p.max_depth = i32::MAX as usize),
            ("max_depth", BadParam, |p, _| p.max_depth = usize::MAX),
            ("draft_tokens", BadTensorDtype, |_, t| t.draft_tokens = TensorDesc::new(F32, [4, 8])),
            ("draft_tokens", BadTensorShape, |_, t| t.draft_tokens = TensorDesc::new(I64, [32])),
            ("draft_tokens", BadTensorShape, |_, t| t.draft_tokens = TensorDesc::new(I64, [4, 0])),
            ("draft_tokens", BadTensorStrides, |_, t| {
                t.draft_tokens = strided(I64, [4, 8], [1, 4]);
            }),
            ("target_tokens", BadTensorShape, |_, t| {
                t.target_tokens = TensorDesc::new(I32, [4, 7]);
            }),
            ("target_tokens", BadTensorDtype, |_, t| {
                t.target_tokens = TensorDesc::new(DType::U64, [4, 8]);
            }),
            ("first_child", BadTensorShape, |_, t| t.first_child = TensorDesc::new(I64, [3, 8])),
            ("next_sibling", BadTensorDtype, |_, t| {
                t.next_sibling = TensorDesc::new(DType::U8, [4, 8]);
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
            ("drafts", BadTensorDtype, |_, t| t.drafts = TensorDesc::new(I32, [4, 5])),
            ("drafts", BadTensorShape, |_, t| t.drafts = TensorDesc::new(I64, [4, 6])),
            ("drafts", BadTensorStrides, |_, t| t.drafts = strided(I64, [4, 5], [4, 1])),
            ("counts", BadTensorDtype, |_, t| t.counts = TensorDesc::new(I64, [4])),
            ("counts", BadTensorShape, |_, t| t.counts = TensorDesc::new(I32, [3])),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [2]))),
        ],
    );
}

#[test]
fn unique() {
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides};
    let tensors = Unique::new().tensors(DType::U64, 100);
    check(
        &Unique::new(),
        &tensors,
        &[
            ("keys", BadTensorDtype, |_, t| t.keys = TensorDesc::new(F32, [100])),
            ("keys", BadTensorShape, |_, t| t.keys = TensorDesc::new(DType::U64, [10, 10])),
            ("keys", BadTensorStrides, |_, t| {
                t.keys = TensorDesc::with_strides(DType::U64, [100], [2]);
            }),
            ("unique", BadTensorDtype, |_, t| t.unique = TensorDesc::new(I64, [100])),
            ("unique", BadTensorShape, |_, t| t.unique = TensorDesc::new(DType::U64, [99])),
            ("count", BadTensorDtype, |_, t| t.count = TensorDesc::new(DType::U32, [1])),
            ("counts", BadTensorShape, |_, t| t.counts = Some(TensorDesc::new(DType::U64, [1]))),
            ("inverse", BadTensorDtype, |_, t| {
                t.inverse = Some(TensorDesc::new(DType::U64, [100]))
            }),
            ("inverse", BadTensorShape, |_, t| t.inverse = Some(TensorDesc::new(I64, [99]))),
            ("inverse", BadTensorStrides, |_, t| {
                t.inverse = Some(TensorDesc::with_strides(I32, [100], [2]));
            }),
        ],
    );
}

/// An i32 numbers 2^31 - 1 keys and no more.
#[test]
fn unique_of_more_keys_than_an_i32_numbers() {
    let most = i32::MAX.unsigned_abs() as usize;
    let plan = |dtype, n| {
        let tensors = Unique::new().tensors(DType::U32, n).inverse(TensorDesc::new(dtype, [n]));
        Unique::new().plan(&tensors)
    };
    assert_eq!(plan(I32, most).unwrap().inverse, Some(I32));
    assert_eq!(plan(I64, most + 1).unwrap().inverse, Some(I64));
    let error = plan(I32, most + 1).unwrap_err();
    assert_eq!(error.status(), Status::BadTensorDtype);
    let start = "unique: `inverse` is i32 for 2147483648 keys, expected i64";
    assert!(error.to_string().starts_with(start), "{error}");
}

/// Buffers that do not fit the descriptors.
#[test]
fn calculate() -> Result<()> {
    for handle in crate::common::handles() {
        let keys = handle.upload(&[3u64; 10])?;
        let words = handle.upload(&[3u32; 10])?;
        let status = |result: Result<()>| result.map_err(|error| error.status());
        let run = |keys: spec::View<'_>, short: bool, with_counts: bool| {
            let unique = handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, 10))?;
            let mut workspace = unique.workspace(&handle)?;
            let (mut out, mut count) = (handle.allocate::<u64>(10)?, handle.allocate::<u64>(1)?);
            let mut counts = handle.allocate::<u64>(10)?;
            let mut buffers =
                spec::ops::unique::Buffers::new(keys, out.view_mut(), count.view_mut());
            buffers.counts = with_counts.then(|| counts.view_mut());
            if short {
                return unique.call(&mut [0u8; 0], buffers);
            }
            unique.call(&mut workspace, buffers)
        };
        assert_eq!(status(run(keys.view(), false, false)), Ok(()));
        assert_eq!(status(run(words.view(), false, false)), Err(Status::BadTensorDtype));
        let few = handle.upload(&[3u64; 9])?;
        assert_eq!(status(run(few.view(), false, false)), Err(Status::BadTensorShape));
        assert_eq!(status(run(keys.view(), true, false)), Err(Status::InsufficientWorkspace));
        assert_eq!(status(run(keys.view(), false, true)), Err(Status::BadParam));
        if handle.device() != spec::Device::CPU {
            let host = [3u64; 10];
            let result = run((&host).into(), false, false);
            assert_eq!(status(result), Err(Status::DeviceTypeNotSupported));
        }
        let elsewhere = spec::Device::new("elsewhere", 0);
        // SAFETY: the call must refuse the view before it reads through it.
        let foreign = unsafe { spec::View::from_address(DType::U64, 10, elsewhere, 64) };
        assert_eq!(status(run(foreign, false, false)), Err(Status::DeviceTypeNotSupported));
    }
    Ok(())
}

/// Sizes beyond any memory give a status and cause no overflow.
#[test]
fn sizes_beyond_memory() {
    for handle in crate::common::handles() {
        let huge = usize::MAX;
        let all_refused = [
            refused(&handle, &TopkRouter::new(2), |p| p.tensors(F32, huge, 8, None)),
            refused(&handle, &DeduplicateTopk::new().mtp_step(huge), |p| p.tensors(2, 8)),
            refused(&handle, &RejectionSample::lossless(huge), |p| p.tensors(1, 1, 8)),
            refused(&handle, &RejectionSample::argmax(0), |p| p.tensors(1 << 60, 0, 151_936)),
            refused(&handle, &NgramMatch::default(), |p| p.tensors((1 << 60) - 1, 0, 0, 0)),
            refused(&handle, &Unique::new(), |p| p.tensors(DType::U64, huge)),
            refused(&handle, &TreeVerify::new(huge), |p| p.tensors(1 << 40, 1 << 30)),
        ];
        assert_eq!(all_refused, [true; 7], "on {}", handle.device());
    }
}

/// Whether creating the operator fails, or asks for a workspace that cannot be allocated.
fn refused<O: Portable>(handle: &Handle, operator: &O, tensors: impl Fn(&O) -> O::Tensors) -> bool {
    match handle.create(operator, &tensors(operator)) {
        Ok(op) => op.workspace(handle).is_err(),
        Err(_) => true,
    }
}

#[test]
fn device_names() {
    for bad in ["", "gpu", "cuda:", "cuda:x", "cpu:1", "auto:0", "cuda:-1", "cuda: 0", "CPU"] {
        let error = bad.parse::<Handle>().expect_err(bad);
        let known = [Status::BadParam, Status::DeviceNotFound].contains(&error.status());
        assert!(known, "{bad}: {error}");
    }
    assert!("cuda:9999".parse::<Handle>().is_err());
    assert_eq!("cpu".parse::<Handle>().map(|h| h.device().to_string()), Ok("cpu".to_owned()));
}

#[test]
fn sample_logits() {
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides};
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
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [5]))),
        ],
    );
}

#[test]
fn indexer_topk() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides, NullPointer};
    let params = IndexerTopk::new(16).block_size(64);
    let mut tensors = params.tensors(F32, 3, 100);
    tensors.lengths = Some(TensorDesc::new(I32, [3]));
    tensors.starts = Some(TensorDesc::new(I64, [3]));
    tensors.values = Some(TensorDesc::new(F32, [3, 16]));
    tensors.block_table = Some(TensorDesc::new(I32, [5, 2]));
    tensors.requests = Some(TensorDesc::new(I32, [3]));
    tensors.slots = Some(TensorDesc::new(I32, [3, 16]));
    check(
        &params,
        &tensors,
        &[
            ("k", BadParam, |p, _| p.k = 0),
            ("k", BadParam, |p, _| p.k = 4097),
            ("block_size", BadParam, |p, _| p.block_size = 0),
            ("block_size", BadParam, |p, _| p.block_size = 1 << 31),
            ("scores", BadTensorDtype, |_, t| t.scores = TensorDesc::new(I32, [3, 100])),
            ("scores", BadTensorShape, |_, t| t.scores = TensorDesc::new(F32, [300])),
            ("scores", BadTensorShape, |_, t| t.scores = TensorDesc::new(F32, [3, 1 << 31])),
            ("scores", BadTensorStrides, |_, t| t.scores = strided(F32, [3, 100], [200, 2])),
            ("lengths", BadTensorShape, |_, t| t.lengths = Some(TensorDesc::new(I32, [4]))),
            ("lengths", BadTensorDtype, |_, t| t.lengths = Some(TensorDesc::new(F32, [3]))),
            ("starts", BadTensorStrides, |_, t| {
                t.starts = Some(TensorDesc::with_strides(I64, [3], [2]));
            }),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [3, 15])),
            ("indices", BadTensorDtype, |_, t| t.indices = TensorDesc::new(F32, [3, 16])),
            ("indices", BadTensorStrides, |_, t| t.indices = strided(I32, [3, 16], [15, 1])),
            ("values", BadTensorShape, |_, t| t.values = Some(TensorDesc::new(F32, [3, 15]))),
            ("values", BadTensorDtype, |_, t| t.values = Some(TensorDesc::new(I32, [3, 16]))),
            ("block_table", NullPointer, |_, t| t.block_table = None),
            ("block_table", NullPointer, |_, t| (t.block_table, t.requests) = (None, None)),
            ("block_table", BadTensorDtype, |_, t| {
                t.block_table = Some(TensorDesc::new(I64, [5, 2]));
            }),
            ("block_table", BadTensorStrides, |_, t| {
                t.block_table = Some(strided(I32, [5, 2], [1, 5]));
            }),
            // Without `requests`, a table belongs to each row.
            ("block_table", BadTensorShape, |_, t| t.requests = None),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
            ("requests", BadTensorDtype, |_, t| t.requests = Some(TensorDesc::new(I64, [3]))),
            ("slots", BadTensorShape, |_, t| t.slots = Some(TensorDesc::new(I32, [5, 16]))),
            ("slots", BadTensorDtype, |_, t| t.slots = Some(TensorDesc::new(I64, [3, 16]))),
            ("slots", BadTensorStrides, |_, t| t.slots = Some(strided(I32, [3, 16], [8, 1]))),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [3]))),
        ],
    );
}
