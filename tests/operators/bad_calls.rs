//! Bad calls and the status that each must get, where a declaration cannot say that they are bad:
//! `spoiled` has the calls that declarations forbid. The status is the same from every backend,
//! because one place checks all calls.

mod spoiled;

use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::topk_router::Masked;
use spec::ops::*;
use spec::{DType, Handle, Operator, Portable, Result, Shape, Status, TensorDesc};

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

/// The descriptor of an optional argument.
fn some<const R: usize>(dtype: DType, shape: [usize; R]) -> Option<TensorDesc>
where
    [usize; R]: Shape,
{
    Some(TensorDesc::new(dtype, shape))
}

#[test]
fn topk_router() {
    use Status::{BadParam, BadTensorShape};
    let params = TopkRouter::new(8).groups(8).topk_groups(4);
    let tensors = params.tensors(F32, 5, 256, None);
    check(
        &params,
        &tensors,
        &[
            ("x", BadTensorShape, |_, t| t.x = TensorDesc::new(F32, [usize::MAX / 256, 256])),
            ("groups", BadParam, |p, _| p.groups = 7),
            ("topk", BadParam, |p, _| {
                (p.masked, p.groups, p.topk_groups) = (Masked::Excluded, 64, 1);
            }),
        ],
    );
}

#[test]
fn deduplicate_topk() {
    let params = DeduplicateTopk::new().mtp_step(2);
    check(
        &params,
        &params.tensors(3, 10),
        &[("indices", Status::BadTensorShape, |_, t| {
            t.indices = TensorDesc::new(I32, [2, 1 << 31]);
        })],
    );
}

#[test]
fn moe_align() {
    use Status::BadTensorShape;
    let params = MoeAlign::new(16, 8).local_experts(4);
    let mut tensors = params.tensors(I32, 10, 2);
    tensors.expert_map = some(I32, [16]);
    check(
        &params,
        &tensors,
        &[
            ("topk_ids", BadTensorShape, |_, t| t.topk_ids = TensorDesc::new(I32, [1 << 30, 2])),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = 1 << 30),
            ("topk_ids", BadTensorShape, |p, _| p.block_size = usize::MAX),
        ],
    );
    assert_eq!(params.capacity(20), Some(20 + 4 * 7));
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
    use Status::BadParam;
    let params = IndexerTopk::new(16);
    check(
        &params,
        &params.tensors(F32, 3, 100),
        &[
            ("pool", BadParam, |p, _| p.pool = 12),
            ("forced_last", BadParam, |p, _| (p.forced_first, p.forced_last) = (16, 1)),
        ],
    );
}

#[test]
fn hot_slots() {
    let params = HotSlots::new();
    let mut tensors = params.tensors(3, 10, 20);
    // Tail starts without a tail are allowed, and so is a table of blocks without pages.
    (tensors.tail_starts, tensors.block_table) = (some(I64, [3]), some(I32, [3, 6]));
    check(
        &params,
        &tensors,
        &[("step", Status::BadTensorShape, |_, t| t.step = TensorDesc::new(I32, [2]))],
    );
}

#[test]
fn draft_tree() {
    use Status::BadTensorStrides;
    let params = DraftTree::new();
    let mut tensors = params.tensors(I32, 4, 10, 40);
    let masks = |strides| Some(TensorDesc::with_strides(I32, [4, 41, 2], strides));
    // Rows of masks may lie apart in both dimensions.
    tensors.masks = masks([300, 7, 1]);
    // Words that lie apart, nodes that overlap, and requests that do.
    for strides in [[300, 7, 2], [300, 1, 1], [281, 7, 1]] {
        let error = params.plan(&tensors.masks(masks(strides).unwrap())).unwrap_err();
        assert_eq!(error.status(), BadTensorStrides, "{error}");
    }
    assert!(params.plan(&tensors).is_ok());
    // More nodes than an i32 counts.
    let error = params.plan(&params.tensors(I32, 1 << 24, 0, 127)).unwrap_err();
    assert_eq!(error.status(), Status::BadTensorShape);
    assert!(error.to_string().contains("batch * (n + 1) at most 2147483647"), "{error}");
}

#[test]
fn rejection_sample() {
    use Status::{BadTensorShape, NullPointer};
    let params = RejectionSample::argmax(4);
    let tensors = params.tensors(3, 7, 100);
    check(
        &params,
        &tensors,
        &[
            ("target_probs", BadTensorShape, |p, t| {
                p.recovery = Recovery::Sample;
                t.target_probs = TensorDesc::new(F32, [7, 1 << 24]);
            }),
            ("seeds", NullPointer, |_, t| t.seeds = None),
            ("seeds", NullPointer, |p, t| {
                p.recovery = Recovery::Sample;
                t.uniform_samples = some(F32, [7]);
                (t.seeds, t.positions) = (None, None);
            }),
            ("positions", NullPointer, |_, t| t.positions = None),
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
    use Status::BadTensorShape;
    let params = TreeVerify::new(3);
    check(
        &params,
        &params.tensors(4, 8),
        &[
            ("draft_tokens", BadTensorShape, |_, t| t.draft_tokens = TensorDesc::new(I64, [32])),
            ("target_tokens", BadTensorShape, |_, t| t.row_offsets = some(I32, [5])),
        ],
    );
    check(
        &params,
        &params.packed_tensors(4, 20),
        &[
            ("draft_tokens", BadTensorShape, |_, t| t.row_offsets = None),
            ("row_offsets", BadTensorShape, |_, t| t.row_offsets = some(I32, [0])),
            // Packed drafts are chains.
            ("draft_tokens", BadTensorShape, |_, t| {
                t.first_child = some(I32, [4, 5]);
                t.next_sibling = t.first_child;
            }),
        ],
    );
}

#[test]
fn adjust_logits() {
    use Status::BadTensorShape;
    let params = AdjustLogits::new();
    let mut tensors = params.tensors(F32, 4, 100, 4, 50);
    (tensors.bad_offsets, tensors.word_offsets) = (some(I32, [5]), some(I32, [8]));
    tensors.word_tokens = some(I32, [20]);
    check(
        &params,
        &tensors,
        &[
            ("word_offsets", BadTensorShape, |_, t| t.word_offsets = some(I32, [0])),
            ("word_offsets", BadTensorShape, |_, t| t.word_offsets = some(I32, [(1 << 31) + 1])),
            ("logits", BadTensorShape, |p, _| p.first_token = i32::MAX - 99),
        ],
    );
}

/// A rank's columns of rows whose largest logits are known.
#[test]
fn sample_logits_of_shards() {
    use Status::{BadParam, BadTensorShape};
    let params = SampleLogits::default().first_token(40);
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.mask = some(I32, [5, 5]);
    tensors.maxima = some(F32, [5]);
    check(
        &params,
        &tensors,
        &[
            ("logits", BadTensorShape, |p, _| p.first_token = (1 << 24) - 99),
            // The bits of tokens 128 to 139 are missing.
            ("mask", BadTensorShape, |_, t| t.mask = some(I32, [5, 4])),
            ("tokens", BadParam, |_, t| t.tokens = TensorDesc::new(I32, [5, 2])),
        ],
    );
}

/// Candidates of several ranks.
#[test]
fn sample_logits_of_candidates() {
    use Status::{BadParam, BadTensorShape};
    let params = SampleLogits::default();
    let mut tensors = params.tensors_of(5, 3, 100);
    tensors.token_ids = some(I64, [5, 100]);
    // A token behind the mask's words is not allowed, so a mask may have any number of words.
    tensors.mask = some(I32, [5, 1]);
    tensors.winners = some(DType::U64, [5]);
    check(
        &params,
        &tensors,
        &[
            ("token_ids", BadTensorShape, |_, t| t.token_ids = some(I32, [99])),
            ("token_ids", BadTensorShape, |_, t| t.token_ids = some(I32, [5, 101])),
            ("winners", BadParam, |_, t| t.tokens = TensorDesc::new(I32, [5, 2])),
            ("mask", BadTensorShape, |_, t| t.token_ids = None),
        ],
    );
}

/// A call for the largest logits alone, and calls that draw.
#[test]
fn sample_logits() {
    use Status::BadTensorShape;
    let params = SampleLogits::default();
    let mut tensors = params.tensors(5, 100);
    tensors.logprobs = some(F32, [5]);
    check(
        &params,
        &tensors,
        &[
            ("tokens", BadTensorShape, |_, t| {
                (t.tokens, t.logprobs) = (TensorDesc::new(I32, [5, 0]), None);
            }),
            ("logprobs", BadTensorShape, |_, t| t.logprobs = some(F32, [5, 1])),
            ("logprobs", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5, 1])),
        ],
    );
    (tensors.tokens, tensors.logprobs) = (TensorDesc::new(I32, [5, 0]), None);
    tensors.largest = some(F32, [5]);
    check(
        &params,
        &tensors,
        &[
            ("tokens", BadTensorShape, |_, t| t.tokens = TensorDesc::new(I32, [5])),
            ("tokens", BadTensorShape, |_, t| t.largest = None),
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
    let of_rows = sentence(&|t| t.row_flags = Some(TensorDesc::new(DType::U32, [3])));
    assert!(
        of_rows.contains("expected [4], which is [rows], with rows of `logits`: "),
        "{of_rows}"
    );
    let ranks = sentence(&|t| t.ranks = some(I32, [4, 1]));
    assert!(
        ranks.contains("expected [4], the shape of `tokens`, with rows of `logits`: "),
        "{ranks}"
    );
    let maxima = sentence(&|t| (t.maxima, t.top_k) = (some(F32, [4]), some(I32, [4])));
    assert!(
        maxima.contains("`top_k` is given, expected absent, since `maxima` is given: "),
        "{maxima}"
    );
    let verify = TreeVerify::new(3);
    let mut packed = verify.packed_tensors(4, 20);
    packed.row_offsets = None;
    let packed = verify.plan(&packed).unwrap_err();
    let words = "`draft_tokens` is [20], expected [batch, nodes], as `row_offsets` is absent: ";
    assert!(packed.to_string().contains(words), "{packed}");
    let indexer = IndexerTopk::new(4).candidate_block(3);
    let tensors = indexer.tensors(F32, 2, 12).candidates(TensorDesc::new(I32, [2, 5]));
    let candidates = indexer.plan(&tensors).unwrap_err().to_string();
    assert!(candidates.contains("`candidates` is [2, 5], expected [2, 4], "), "{candidates}");
    let lookup = PromptLookup::new().min_ngram(9);
    let patterns = lookup.plan(&lookup.tensors(I32, 1, 9)).unwrap_err().to_string();
    let words = "`min_ngram` is 9, expected 1 to 5, which is `max_ngram`: ";
    assert!(patterns.contains(words), "{patterns}");
}
