//! Bad calls, the status and the sentence that each must get, where a declaration does not say that
//! they are bad: `spoiled` has the calls that declarations forbid. The status is the same from every
//! backend, because one place checks all calls.

mod spoiled;

use Status::{BadParam, BadTensorShape, BadTensorStrides, NullPointer};
use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::*;
use spec::{DType, Handle, Operator, Portable, Result, Shape, Status, TensorDesc};

fn good<O: Portable>(operator: &O, tensors: &O::Tensors) {
    for handle in crate::common::handles() {
        handle.create(operator, tensors).map(|_| ()).expect("nothing is bad");
    }
}

fn bad<O: Portable>(operator: &O, tensors: &O::Tensors, status: Status, sentence: &str) {
    for handle in crate::common::handles() {
        let error = handle.create(operator, tensors).map(|_| ()).expect_err(sentence);
        let words = format!("{}: {sentence}: ", O::NAME);
        assert!(error.to_string().starts_with(&words), "`{error}`, expected `{words}`");
        assert_eq!(error.status(), status, "{error}");
    }
}

/// The tensors after a change of arguments that have no setter.
fn with<T>(mut tensors: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut tensors);
    tensors
}

const F32: DType = DType::F32;
const I32: DType = DType::I32;
const I64: DType = DType::I64;

fn i32s<const R: usize>(shape: [usize; R]) -> TensorDesc
where
    [usize; R]: Shape,
{
    TensorDesc::new(I32, shape)
}

#[test]
fn topk_router() {
    let params = TopkRouter::new(8).groups(8).topk_groups(4);
    let tensors = params.tensors(F32, 5, 256, None);
    good(&params, &tensors);
    let words = "`groups` is 7, expected a divisor of the 256 experts";
    bad(&params.groups(7), &tensors, BadParam, words);
    let words = "`topk` is 8, expected at most 4, which can be chosen";
    bad(&params.groups(64).topk_groups(1), &tensors, BadParam, words);
    let huge = with(tensors, |t| t.x = TensorDesc::new(F32, [usize::MAX / 256, 256]));
    let words = "`x` is [72057594037927935, 256], expected a size that memory can hold";
    bad(&params, &huge, BadTensorShape, words);
}

#[test]
fn deduplicate_topk() {
    let params = DeduplicateTopk::new().mtp_step(2);
    let tensors = params.tensors(1, 1 << 31);
    let words = "`indices` is [2, 2147483648], expected [batch * mtp_step, k], with row = mtp_step \
                 * k at most 2147483647";
    bad(&params, &tensors, BadTensorShape, words);
}

#[test]
fn moe_align() {
    let params = MoeAlign::new(16, 8).local_experts(4);
    let mut tensors = params.tensors(I32, 10, 2).expert_map(i32s([16]));
    good(&params, &tensors);
    assert_eq!(params.capacity(20), Some(20 + 4 * 7));
    let words = |shape| {
        format!(
            "`topk_ids` is {shape}, expected [tokens, k], with capacity = ceil((tokens * k + \
             local_experts * (block_size - 1)) / block_size) * block_size at most 2147483647"
        )
    };
    for block_size in [1 << 30, usize::MAX] {
        let params = with(params, |p| p.block_size = block_size);
        bad(&params, &tensors, BadTensorShape, &words("[10, 2]"));
    }
    tensors.topk_ids = i32s([1 << 30, 2]);
    bad(&params, &tensors, BadTensorShape, &words("[1073741824, 2]"));
}

#[test]
fn indexer_topk() {
    let params = IndexerTopk::new(16);
    let tensors = params.tensors(F32, 3, 100);
    good(&params, &tensors);
    bad(&params.pool(12), &tensors, BadParam, "`pool` is 12, expected a power of two");
    let words = "`forced_last` is 2, expected at most 1, k less forced_first";
    bad(&params.forced_first(15).forced_last(2), &tensors, BadParam, words);
    let params = params.candidate_block(4);
    let words = "`candidates` is [3, 26], expected [3, 25], which is [rows, c], with rows of \
                 `scores`, with c of `scores`";
    bad(&params, &tensors.candidates(i32s([3, 26])), BadTensorShape, words);
}

#[test]
fn hot_slots() {
    let params = HotSlots::new();
    let tensors = params.tensors(3, 10, 20);
    // Tail starts without a tail are allowed, and so is a table of blocks without pages.
    good(&params, &tensors.tail_starts(i32s([3])).block_table(i32s([3, 6])));
    let words = "`step` is [2], expected [1], which is [1] or [batch]";
    bad(&params, &with(tensors, |t| t.step = i32s([2])), BadTensorShape, words);
}

#[test]
fn prompt_lookup() {
    let params = PromptLookup::new();
    let tensors = params.tensors(I64, 4, 100);
    good(&params, &tensors);
    let words = "`min_ngram` is 6, expected 1 to 5, which is `max_ngram`";
    bad(&params.min_ngram(6), &tensors, BadParam, words);
}

#[test]
fn draft_tree() {
    let params = DraftTree::new();
    let tensors = params.tensors(I32, 4, 10, 40);
    let masks = |strides| tensors.masks(TensorDesc::with_strides(I32, [4, 41, 2], strides));
    // Rows of masks may lie apart in both dimensions.
    good(&params, &masks([300, 7, 1]));
    let words = "`masks` is strided [300, 7, 2], expected an innermost stride of 1";
    bad(&params, &masks([300, 7, 2]), BadTensorStrides, words);
    // Nodes that overlap, and requests that do.
    for strides in [[300, 1, 1], [281, 7, 1]] {
        let words = format!(
            "`masks` is strided {strides:?}, expected rows that do not overlap, since they are written"
        );
        bad(&params, &masks(strides), BadTensorStrides, &words);
    }
    // More nodes than an i32 counts.
    let words = "`drafts` is [16777216, 127], expected [batch, n], with nodes = batch * (n + 1) at \
                 most 2147483647";
    bad(&params, &params.tensors(I32, 1 << 24, 0, 127), BadTensorShape, words);
}

#[test]
fn rejection_sample() {
    let params = RejectionSample::argmax(4);
    let tensors = params.tensors(3, 7, 100);
    good(&params, &tensors);
    let without = |change: fn(&mut rejection_sample::Tensors)| with(tensors, change);
    let words = "`seeds` is absent, expected [batch] u64, since random numbers are drawn";
    bad(&params, &without(|t| t.seeds = None), NullPointer, words);
    let sample = params.recovery(Recovery::Sample);
    let given = without(|t| (t.seeds, t.positions) = (None, None));
    let given = given.uniform_samples(TensorDesc::new(F32, [7]));
    bad(&sample, &given, NullPointer, words);
    let words =
        "`positions` is absent, expected [batch] i64 or i32, since random numbers are drawn";
    bad(&params, &without(|t| t.positions = None), NullPointer, words);
    // Greedy acceptance needs no seeds, because it draws nothing.
    let none = without(|t| (t.seeds, t.positions) = (None, None));
    good(&params.acceptance(Acceptance::Greedy), &none);
    let words = "`target_probs` is [7, 16777216], expected a vocabulary of 1 to 16777215";
    bad(&sample, &sample.tensors(3, 7, 1 << 24), BadTensorShape, words);
}

#[test]
fn tree_verify() {
    let params = TreeVerify::new(3);
    let tensors = params.tensors(4, 8);
    good(&params, &tensors);
    let words = "`draft_tokens` is [32], expected [batch, nodes], as `row_offsets` is absent";
    bad(&params, &with(tensors, |t| t.draft_tokens = i32s([32])), BadTensorShape, words);
    let words = "`target_tokens` is [4, 8], expected [rows], as `row_offsets` is given";
    bad(&params, &tensors.row_offsets(i32s([5])), BadTensorShape, words);
    let tensors = params.packed_tensors(4, 20);
    good(&params, &tensors);
    let words = "`draft_tokens` is [20], expected [batch, nodes], as `row_offsets` is absent";
    bad(&params, &with(tensors, |t| t.row_offsets = None), BadTensorShape, words);
    let words = "`row_offsets` is [0], expected [batch + 1]";
    bad(&params, &tensors.row_offsets(i32s([0])), BadTensorShape, words);
    // Packed drafts are chains.
    let links = tensors.first_child(i32s([4, 5])).next_sibling(i32s([4, 5]));
    let words = "`draft_tokens` is [20], expected [batch, nodes], as `first_child` is given";
    bad(&params, &links, BadTensorShape, words);
}

#[test]
fn adjust_logits() {
    let params = AdjustLogits::new();
    let tensors = params.tensors(F32, 4, 100, 4, 50);
    let tensors = tensors.bad_offsets(i32s([5])).word_tokens(i32s([20])).word_offsets(i32s([8]));
    good(&params, &tensors);
    let words = "`word_offsets` is [0], expected [words + 1]";
    bad(&params, &tensors.word_offsets(i32s([0])), BadTensorShape, words);
    let words =
        "`word_offsets` is [2147483649], expected [words + 1], with words at most 2147483647";
    bad(&params, &tensors.word_offsets(i32s([(1 << 31) + 1])), BadTensorShape, words);
    let words = "`first_token` is 2147483548, expected at most 2147483547";
    bad(&params.first_token(i32::MAX - 99), &tensors, BadParam, words);
}

/// A rank's columns of rows whose largest logits are known.
#[test]
fn sample_logits_of_shards() {
    let params = SampleLogits::default().first_token(40);
    let tensors = params.tensors(5, 100).mask(i32s([5, 5])).maxima(TensorDesc::new(F32, [5]));
    good(&params, &tensors);
    // The bits of tokens 128 to 139 are missing.
    let words = "`mask` is [5, 4], expected a bit for each token, 5 words per row";
    bad(&params, &tensors.mask(i32s([5, 4])), BadTensorShape, words);
    let words = "`tokens` is 2 per row, expected 1 per row with `maxima`";
    bad(&params, &with(tensors, |t| t.tokens = i32s([5, 2])), BadParam, words);
    let words = "`top_k` is given, expected absent, since `maxima` is given";
    bad(&params, &tensors.top_k(i32s([5])), BadParam, words);
    let words = "`first_token` is 40, expected 0, since `token_ids` is given";
    bad(&params, &tensors.token_ids(i32s([100])), BadParam, words);
    let words = "`first_token` is 16777117, expected at most 16777116";
    bad(&params.first_token((1 << 24) - 99), &tensors, BadParam, words);
}

/// Candidates of several ranks.
#[test]
fn sample_logits_of_candidates() {
    let params = SampleLogits::default();
    // A token behind the mask's words is not allowed, so a mask may have any number of words.
    let tensors = params.tensors(5, 100).token_ids(i32s([5, 100])).mask(i32s([5, 1]));
    let tensors = tensors.winners(TensorDesc::new(I64, [5]));
    good(&params, &tensors);
    let words = "`token_ids` is [99], expected [100], which is [vocab] or [rows, vocab], with vocab of \
                 `logits`";
    bad(&params, &tensors.token_ids(i32s([99])), BadTensorShape, words);
    let words = "`winners` is given, expected absent where a row draws several tokens";
    bad(&params, &with(tensors, |t| t.tokens = i32s([5, 2])), BadParam, words);
    let words = "`mask` is [5, 1], expected a bit for each token, 4 words per row";
    bad(&params, &with(tensors, |t| t.token_ids = None), BadTensorShape, words);
}

#[test]
fn sample_logits() {
    let params = SampleLogits::default();
    let tensors = params.tensors(5, 100);
    let column = with(tensors, |t| t.tokens = i32s([5, 1]));
    good(&params, &column.ranks(i32s([5, 1])));
    // A reader of the sentence knows what to change.
    let words = "`ranks` is [5], expected [5, 1], the shape of `tokens`, with rows of `logits`, with n \
                 of `tokens`";
    bad(&params, &column.ranks(i32s([5])), BadTensorShape, words);
    let words = "`flags` is [2], expected [1]";
    bad(&params, &tensors.flags(TensorDesc::new(DType::U32, [2])), BadTensorShape, words);
    let words = "`temperature` is [2], expected [5], which is [requests], with requests = rows, as \
                 `requests` is absent";
    let two = with(tensors, |t| t.temperature = TensorDesc::new(F32, [2]));
    bad(&params, &two, BadTensorShape, words);
    let words = "`seeds` is [5], expected [2], which is [requests], with requests of `temperature`";
    bad(&params, &two.requests(i32s([5])), BadTensorShape, words);
    let words = "`row_flags` is [3], expected [5], which is [rows], with rows of `logits`";
    bad(&params, &tensors.row_flags(TensorDesc::new(DType::U32, [3])), BadTensorShape, words);
    let words = "`top_tokens` is absent, expected present, since `top_logprobs` is given";
    bad(&params, &tensors.top_logprobs(TensorDesc::new(F32, [5, 2])), NullPointer, words);
    // A call for the largest logits alone draws nothing.
    let words = |shape: &str| {
        format!(
            "`tokens` is {shape}, expected [rows, 0] with `largest`, and 1 to 64 tokens per row without"
        )
    };
    let none = with(tensors, |t| t.tokens = i32s([5, 0]));
    good(&params, &none.largest(TensorDesc::new(F32, [5])));
    bad(&params, &none, BadTensorShape, &words("[5, 0]"));
    let largest = tensors.largest(TensorDesc::new(F32, [5]));
    bad(&params, &largest, BadTensorShape, &words("[5]"));
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
        assert_eq!(status(run(few.view(), false, false)), Err(BadTensorShape));
        assert_eq!(status(run(keys.view(), true, false)), Err(Status::InsufficientWorkspace));
        assert_eq!(status(run(keys.view(), false, true)), Err(BadParam));
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
        let known = [BadParam, Status::DeviceNotFound].contains(&error.status());
        assert!(known, "{bad}: {error}");
    }
    assert!("cuda:9999".parse::<Handle>().is_err());
    assert_eq!("cpu".parse::<Handle>().map(|h| h.device().to_string()), Ok("cpu".to_owned()));
}
