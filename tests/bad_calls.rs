//! A table of bad calls for every operator, and the status each must get: the
//! same from every backend, because one place checks.

mod common;

use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::topk_router::Masked;
use spec::ops::{DeduplicateTopk, HybridMtpNgram, NgramMatch, RejectionSample, TopkRouter, Unique};
use spec::{DType, Handle, Portable, Result, Status, Stream, TensorDesc};

/// One bad call: what is wrong with it, the argument that must be named, and
/// the status. The change turns a good call into it.
type Row<O> = (&'static str, Status, fn(&mut O, &mut <O as spec::Operator>::Tensors));

fn check<O: Portable>(operator: &O, tensors: &O::Tensors, rows: &[Row<O>]) {
    for handle in common::handles() {
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
}

const F32: DType = DType::F32;
const I32: DType = DType::I32;
const I64: DType = DType::I64;

fn strided(dtype: DType, shape: [usize; 2], strides: [isize; 2]) -> TensorDesc {
    TensorDesc::with_strides(dtype, shape, strides)
}

#[test]
fn topk_router() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = TopkRouter::deepseek_v3();
    let mut tensors = params.tensors(F32, 5, 256);
    tensors.bias = Some(TensorDesc::new(F32, [256]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    check(
        &params,
        &tensors,
        &[
            ("x", BadTensorDtype, |_, t| t.x = TensorDesc::new(I32, [5, 256])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [256])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 256, 1])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 0])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 1025])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [usize::MAX / 256, 256])),
            ("x", BadTensorStrides, |_, t| t.x = strided(F32, [5, 256], [512, 2])),
            ("x", BadTensorStrides, |_, t| t.x = strided(F32, [5, 256], [-256, 1])),
            ("bias", BadTensorDtype, |_, t| t.bias = Some(TensorDesc::new(DType::BF16, [256]))),
            ("bias", BadTensorShape, |_, t| t.bias = Some(TensorDesc::new(F32, [255]))),
            ("bias", BadTensorStrides, |_, t| {
                t.bias = Some(TensorDesc::with_strides(F32, [256], [2]));
            }),
            ("groups", BadParam, |p, _| p.groups = 0),
            ("groups", BadParam, |p, _| p.groups = 7),
            ("topk_groups", BadParam, |p, _| p.topk_groups = 0),
            ("topk_groups", BadParam, |p, _| p.topk_groups = 9),
            ("topk", BadParam, |p, _| p.topk = 0),
            ("topk", BadParam, |p, _| p.topk = 33),
            ("topk", BadParam, |p, _| {
                (p.masked, p.groups, p.topk_groups) = (Masked::Excluded, 64, 1);
            }),
            ("scale", BadParam, |p, _| p.scale = f32::NAN),
            ("weights", BadTensorDtype, |_, t| t.weights = TensorDesc::new(DType::F16, [5, 8])),
            ("weights", BadTensorShape, |_, t| t.weights = TensorDesc::new(F32, [5, 7])),
            ("weights", BadTensorStrides, |_, t| t.weights = strided(F32, [5, 8], [0, 1])),
            ("indices", BadTensorDtype, |_, t| t.indices = TensorDesc::new(I64, [5, 8])),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [4, 8])),
            ("indices", BadTensorStrides, |_, t| t.indices = strided(I32, [5, 8], [7, 1])),
            ("flags", BadTensorShape, |_, t| t.flags = Some(TensorDesc::new(DType::U32, [2]))),
            ("flags", BadTensorDtype, |_, t| t.flags = Some(TensorDesc::new(I32, [1]))),
        ],
    );
}

#[test]
fn deduplicate_topk() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = DeduplicateTopk { mtp_step: 2 };
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
                t.draft_token_ids = TensorDesc::new(DType::U32, [7]);
            }),
            ("draft_token_ids", BadTensorShape, |_, t| {
                t.draft_token_ids = TensorDesc::new(I64, [8]);
            }),
            ("bonus_token_ids", BadTensorShape, |_, t| {
                t.bonus_token_ids = TensorDesc::new(I64, [3, 1]);
            }),
            ("cu_num_draft", BadTensorShape, |_, t| t.cu_num_draft = TensorDesc::new(I64, [3])),
            ("uniform_samples", BadTensorShape, |_, t| {
                t.uniform_samples = Some(TensorDesc::new(F32, [3]));
            }),
            ("seed_offset", NullPointer, |_, t| t.seed_offset = None),
            ("seed_offset", NullPointer, |p, t| {
                p.recovery = Recovery::Sample;
                t.uniform_samples = Some(TensorDesc::new(F32, [7]));
                t.seed_offset = None;
            }),
            ("seed_offset", BadTensorDtype, |_, t| {
                t.seed_offset = Some(TensorDesc::new(I64, [2]));
            }),
            ("max_spec_len", BadParam, |p, _| p.max_spec_len = usize::MAX),
            ("output_token_ids", BadTensorShape, |_, t| {
                t.output_token_ids = TensorDesc::new(I32, [3, 4]);
            }),
            ("output_token_ids", BadTensorDtype, |_, t| {
                t.output_token_ids = TensorDesc::new(I64, [3, 5]);
            }),
            ("num_accepted", BadTensorShape, |_, t| t.num_accepted = TensorDesc::new(I32, [4])),
            ("bonus_counts", BadTensorDtype, |_, t| t.bonus_counts = TensorDesc::new(I64, [3])),
        ],
    );
    // Greedy acceptance draws nothing.
    let greedy = RejectionSample { acceptance: Acceptance::Greedy, ..params };
    for handle in common::handles() {
        let mut tensors = tensors;
        tensors.seed_offset = None;
        assert!(handle.create(&greedy, &tensors).is_ok());
    }
}

#[test]
fn ngram_match() {
    use Status::{BadParam, BadTensorDtype, BadTensorShape, BadTensorStrides};
    let params = NgramMatch { max_ngram_size: 3, token_threshold: 64 };
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
            ("seq_lens_decoder", BadTensorDtype, |_, t| {
                t.seq_lens_decoder = TensorDesc::new(I64, [4]);
            }),
        ],
    );
}

#[test]
fn hybrid_mtp_ngram() {
    use Status::{BadParam, BadTensorShape};
    let params = HybridMtpNgram {
        max_ngram_size: 3,
        min_ngram_size: 1,
        max_draft_tokens: 8,
        token_threshold: 64,
    };
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
fn unique() {
    use Status::{BadTensorDtype, BadTensorShape, BadTensorStrides};
    let tensors = Unique.tensors(DType::U64, 100);
    check(
        &Unique,
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
        ],
    );
}

/// Buffers that are not what the descriptors announced.
#[test]
fn calculate() -> Result<()> {
    for handle in common::handles() {
        let keys = handle.upload(&[3u64; 10])?;
        let words = handle.upload(&[3u32; 10])?;
        let status = |result: Result<()>| result.map_err(|error| error.status());
        let run = |keys: spec::View<'_>, short: bool, with_counts: bool| {
            let unique = handle.create(&Unique, &Unique.tensors(DType::U64, 10))?;
            let mut workspace = handle.workspace(unique.workspace_size())?;
            let (mut out, mut count) = (handle.allocate::<u64>(10)?, handle.allocate::<u64>(1)?);
            let mut counts = handle.allocate::<u64>(10)?;
            let buffers = spec::ops::unique::Buffers {
                keys,
                unique: out.view_mut(),
                count: count.view_mut(),
                counts: with_counts.then(|| counts.view_mut()),
            };
            if short {
                return unique.calculate(&mut [0u8; 0], buffers, Stream::default());
            }
            unique.calculate(&mut workspace, buffers, Stream::default())
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

/// Sizes that no memory holds get a status, not an overflow.
#[test]
fn sizes_beyond_memory() {
    for handle in common::handles() {
        let huge = usize::MAX;
        let all_refused = [
            refused(&handle, &TopkRouter::mixtral(), |p| p.tensors(F32, huge, 8)),
            refused(&handle, &DeduplicateTopk { mtp_step: huge }, |p| p.tensors(2, 8)),
            refused(&handle, &RejectionSample::lossless(huge), |p| p.tensors(1, 1, 8)),
            refused(&handle, &RejectionSample::argmax(0), |p| p.tensors(1 << 60, 0, 151_936)),
            refused(&handle, &NgramMatch::default(), |p| p.tensors((1 << 60) - 1, 0, 0, 0)),
            refused(&handle, &Unique, |p| p.tensors(DType::U64, huge)),
        ];
        assert_eq!(all_refused, [true; 6], "on {}", handle.device());
    }
}

/// Whether creation fails, or asks for a workspace that cannot be had.
fn refused<O: Portable>(handle: &Handle, operator: &O, tensors: impl Fn(&O) -> O::Tensors) -> bool {
    match handle.create(operator, &tensors(operator)) {
        Ok(op) => handle.workspace(op.workspace_size()).is_err(),
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
