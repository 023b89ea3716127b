//! A table of bad calls for every operator, with the status that each call must get. The
//! status is the same from every backend, because one place checks all calls.

mod drafting;
mod sampling;
mod spoiled;

use spec::ops::topk_router::{Masked, preset};
use spec::ops::*;
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

#[test]
fn topk_router() {
    use Status::{BadParam, BadTensorShape, NullPointer};
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
            ("shared_experts", BadParam, |p, _| p.shared_experts = 65),
            ("shared_experts", BadParam, |p, _| p.shared_experts = usize::MAX),
            ("shared_weight", BadParam, |p, _| p.shared_weight = f32::INFINITY),
            ("weights", BadTensorShape, |p, _| p.shared_experts = 2),
            ("physical_experts", BadParam, |p, _| p.physical_experts = None),
            ("physical_experts", BadParam, |p, _| p.physical_experts = Some(0)),
            ("physical_experts", BadParam, |p, _| p.physical_experts = Some(1 << 31)),
            ("replica_counts", NullPointer, |p, t| {
                (p.physical_experts, t.replica_counts) = (None, None);
            }),
            ("replicas", NullPointer, |p, t| {
                (p.physical_experts, t.replicas) = (None, None);
            }),
            ("replicas", NullPointer, |_, t| t.replicas = None),
            ("replicas", BadTensorShape, |_, t| {
                t.replicas = Some(TensorDesc::new(I32, [256, 0]));
            }),
            ("replica_counts", NullPointer, |_, t| t.replica_counts = None),
            ("load", BadTensorShape, |p, _| p.physical_experts = Some(287)),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 0])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [5, 4097])),
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [usize::MAX / 256, 256])),
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
        ],
    );
}

#[test]
fn deduplicate_topk() {
    use Status::{BadParam, BadTensorShape};
    let params = DeduplicateTopk::new().mtp_step(2);
    let mut tensors = params.tensors(3, 10);
    tensors.counts = Some(TensorDesc::new(I32, [3]));
    tensors.inverse = Some(TensorDesc::new(I32, [6, 10]));
    check(
        &params,
        &tensors,
        &[
            ("mtp_step", BadParam, |p, _| p.mtp_step = 0),
            ("inverse", BadTensorShape, |_, t| t.inverse = Some(TensorDesc::new(I32, [3, 20]))),
            ("indices", BadTensorShape, |p, _| p.mtp_step = 4),
            ("indices", BadTensorShape, |_, t| t.indices = TensorDesc::new(I32, [2, 1 << 31])),
            ("unique", BadTensorShape, |_, t| t.unique = TensorDesc::new(I32, [3, 19])),
        ],
    );
}

#[test]
fn moe_align() {
    use Status::{BadParam, BadTensorShape};
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
            ("topk_ids", BadTensorShape, |_, t| t.topk_ids = TensorDesc::new(I32, [1 << 30, 2])),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = 1 << 30),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = usize::MAX),
        ],
    );
    assert_eq!(params.capacity(20), Some(capacity));
}

#[test]
fn unique() {
    let tensors = Unique::new().tensors(DType::U64, 100);
    check(&Unique::new(), &tensors, &[]);
}

/// An i32 numbers 2^31 - 1 keys and no more.
#[test]
fn unique_of_more_keys_than_an_i32_numbers() {
    let max = i32::MAX.unsigned_abs() as usize;
    let plan = |dtype, n| {
        let tensors = Unique::new().tensors(DType::U32, n).inverse(TensorDesc::new(dtype, [n]));
        Unique::new().plan(&tensors)
    };
    assert_eq!(plan(I32, max).unwrap().inverse, Some(I32));
    assert_eq!(plan(I64, max + 1).unwrap().inverse, Some(I64));
    let error = plan(I32, max + 1).unwrap_err();
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
            let mut buffers = unique::Buffers::new(keys, out.view_mut(), count.view_mut());
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
fn indexer_topk() {
    use Status::{BadParam, BadTensorShape, NullPointer};
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
            ("pool", BadParam, |p, _| p.pool = 0),
            ("pool", BadParam, |p, _| p.pool = 12),
            ("pool", BadParam, |p, _| p.pool = 2048),
            ("forced_first", BadParam, |p, _| p.forced_first = 17),
            ("forced_last", BadParam, |p, _| (p.forced_first, p.forced_last) = (16, 1)),
            ("forced_last", BadParam, |p, _| p.forced_last = usize::MAX),
            ("candidate_block", BadParam, |p, _| p.candidate_block = 0),
            ("candidate_block", BadParam, |p, _| p.candidate_block = 1025),
            ("starts", BadParam, |p, t| {
                (p.candidate_block, t.candidates) = (4, Some(TensorDesc::new(I32, [3, 25])));
            }),
            ("block_size", BadParam, |p, _| p.block_size = 0),
            ("block_size", BadParam, |p, _| p.block_size = 1 << 31),
            ("scores", BadTensorShape, |_, t| t.scores = TensorDesc::new(F32, [3, 1 << 31])),
            ("block_table", NullPointer, |_, t| t.block_table = None),
            ("block_table", NullPointer, |_, t| (t.block_table, t.requests) = (None, None)),
            // Without `requests`, a table belongs to each row.
            ("block_table", BadTensorShape, |_, t| t.requests = None),
            ("requests", BadTensorShape, |_, t| t.requests = Some(TensorDesc::new(I32, [5]))),
        ],
    );
    let params = IndexerTopk::new(16).candidate_block(4);
    let tensors = params.tensors(F32, 3, 100).candidates(TensorDesc::new(I32, [3, 25]));
    check(
        &params,
        &tensors,
        &[
            ("pool", BadParam, |p, _| p.pool = 2),
            ("forced_first", BadParam, |p, _| p.forced_first = 1),
            ("forced_last", BadParam, |p, _| p.forced_last = 1),
            ("candidates", BadTensorShape, |p, _| p.candidate_block = 5),
            ("candidates", BadTensorShape, |_, t| {
                t.candidates = Some(TensorDesc::new(I32, [3, 26]));
            }),
            ("candidates", BadTensorShape, |_, t| {
                t.candidates = Some(TensorDesc::new(I32, [2, 25]));
            }),
        ],
    );
}
