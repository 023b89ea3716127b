//! Inputs of more than 2^31 elements. Copies on the device repeat a pattern, so that
//! the results are known and no large data go between host and device.
//!
//! The tests are ignored by default: each needs about 30 GB of device memory.

mod common;

use common::{Array, Ready, cuda};
use cudarc::driver::sys;
use spec_conformance::Rng;
use spec_core::ops::{
    DeduplicateTopk, RejectionSample, Unique, deduplicate_topk, rejection_sample, topk_router,
    unique,
};
use spec_core::{Backend, DType, Element, Place, Stream, TensorDesc};
use spec_cuda::Cuda;

/// A number of elements whose indices do not fit an i32.
const MANY: usize = (1 << 31) + 12_345;

fn address<T: Element>(array: &Array<T>) -> u64 {
    match array.view().place() {
        Place::Address { address, .. } => address,
        _ => panic!("CUDA memory has an address"),
    }
}

/// Copies `len` elements of `T` within the device.
fn copy<T: Element>(to: &Array<T>, at: usize, from: &Array<T>, start: usize, len: usize) {
    assert!(at + len <= to.len() && start + len <= from.len());
    let size = size_of::<T>();
    // SAFETY: both ranges were just checked; a context is current.
    let code = unsafe {
        let context = sys::cuDevicePrimaryCtxRetain;
        let mut current = std::ptr::null_mut();
        assert_eq!(context(&mut current, 0), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxSetCurrent(current), sys::CUresult::CUDA_SUCCESS);
        sys::cuMemcpyDtoD_v2(
            address(to) + (at * size) as u64,
            address(from) + (start * size) as u64,
            len * size,
        )
    };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// An array of `len` elements that repeats `pattern`.
fn repeat<T: Element>(cuda: &Cuda, pattern: &[T], len: usize) -> Array<T> {
    let mut array = Array::new(cuda, len);
    array.set(pattern);
    let mut filled = pattern.len();
    while filled < len {
        let more = filled.min(len - filled);
        copy(&array, filled, &array, 0, more);
        filled += more;
    }
    array
}

/// The `len` elements from `start` on.
fn part<T: Element>(cuda: &Cuda, array: &Array<T>, start: usize, len: usize) -> Vec<T> {
    let piece = Array::new(cuda, len);
    copy(&piece, 0, array, start, len);
    piece.get()
}

#[test]
#[ignore = "needs 65 GB of device memory"]
fn more_keys_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(11, "");
    // The keys of a period are distinct, because the factor is odd.
    let period = 1 << 20;
    let factor = random.next() as u32 | 1;
    let pattern: Vec<u32> = (0..period as u32).map(|i| i.wrapping_mul(factor)).collect();
    let keys = repeat(&cuda, &pattern, MANY);
    let mut output = Array::<u32>::new(&cuda, MANY);
    let mut count = Array::<u64>::new(&cuda, 1);
    let mut counts = Array::<u64>::new(&cuda, MANY);
    let mut tensors = Unique::new().tensors(DType::U32, MANY);
    tensors.counts = Some(TensorDesc::new(DType::U64, [MANY]));
    tensors.inverse = Some(TensorDesc::new(DType::I64, [MANY]));
    let mut inverse = Array::<i64>::new(&cuda, MANY);
    // No route but the digits numbers so many keys.
    let mut ready = Ready::new(&cuda, &Unique::new(), &tensors).runs(&[
        "memset",
        "unique_by_digits_32",
        "unique_compact_32",
        "unique_firsts",
        "unique_counts",
        "unique_index_32",
        "unique_inverse_32_i64",
    ]);
    let buffers = unique::Buffers::new(keys.view(), output.view_mut(), count.view_mut())
        .counts(counts.view_mut())
        .inverse(inverse.view_mut());
    ready.run(buffers, Stream::default());
    cuda.synchronize().expect("the call");
    let mut want: Vec<(u32, u64)> = pattern
        .iter()
        .enumerate()
        .map(|(i, key)| (*key, (MANY / period + usize::from(i < MANY % period)) as u64))
        .collect();
    want.sort_unstable();
    assert_eq!(count.get(), [period as u64]);
    let got: Vec<_> = output.start(period).into_iter().zip(counts.start(period)).collect();
    assert!(got == want);
    let places: Vec<i64> =
        pattern.iter().map(|key| want.partition_point(|(other, _)| other < key) as i64).collect();
    assert!(inverse.start(period) == places);
    let shift = (MANY - period) % period;
    let end = part(&cuda, &inverse, MANY - period, period);
    assert!(end == [&places[shift..], &places[..shift]].concat());
}

#[test]
#[ignore = "needs 18 GB of device memory"]
fn more_indices_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(12, "");
    let (steps, k, period) = (4, 2048, 64);
    let n = steps * k;
    let batch = MANY / n + 1;
    // Requests alternate: values in a small range, and values anywhere.
    let pattern: Vec<i32> = (0..period * n)
        .map(|i| random.below(if i / n % 2 == 0 { 1 << 18 } else { 1 << 32 }) as u32 as i32)
        .collect();
    let indices = repeat(&cuda, &pattern, batch * n);
    let mut output = Array::<i32>::new(&cuda, batch * n);
    let operator = DeduplicateTopk::new().mtp_step(steps);
    let mut ready =
        Ready::new(&cuda, &operator, &operator.tensors(batch, k)).runs(&["deduplicate_topk_8"]);
    let buffers = deduplicate_topk::Buffers::new(indices.view(), output.view_mut());
    ready.run(buffers, Stream::default());
    cuda.synchronize().expect("the call");
    for request in [0, 1, period, batch / 2, batch - 2, batch - 1] {
        let source = &pattern[request % period * n..][..n];
        let mut want: Vec<i32> = source.iter().copied().filter(|v| *v >= 0).collect();
        want.sort_unstable();
        want.dedup();
        want.resize(n, -1);
        assert!(part(&cuda, &output, request * n, n) == want, "request {request}");
    }
}

const EXPERTS: usize = 256;

/// Weights and indices on the device, by this kernel.
fn route(cuda: &Cuda, x: &Array<f32>, kernel: &str) -> (Array<f32>, Array<i32>) {
    let model = topk_router::preset::DEEPSEEK_V3;
    let (operator, tokens) = (model.router(), x.len() / EXPERTS);
    let mut weights = Array::new(cuda, tokens * operator.topk);
    let mut indices = Array::new(cuda, tokens * operator.topk);
    let buffers = topk_router::Buffers::new(x.view(), weights.view_mut(), indices.view_mut());
    let tensors = operator.tensors(DType::F32, tokens, EXPERTS, None);
    Ready::new(cuda, &operator, &tensors).runs(&[kernel]).run(buffers, Stream::default());
    cuda.synchronize().expect("the call");
    (weights, indices)
}

#[test]
#[ignore = "needs 10 GB of device memory"]
fn more_logits_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(13, "");
    let period = 64;
    let tokens = MANY.div_ceil(EXPERTS * period) * period;
    let mut logits = || random.vec(period * EXPERTS, |r| r.unit() * 8.0 - 4.0);
    // The last tokens differ from the tokens that a wrapped index would find.
    let (first, last) = (Array::from(&cuda, &logits()), Array::from(&cuda, &logits()));
    let x = repeat(&cuda, &first.get(), tokens * EXPERTS);
    copy(&x, (tokens - period) * EXPERTS, &last, 0, period * EXPERTS);
    let (weights, indices) = route(&cuda, &x, "topk_router_grouped_8_f32");
    let len = period * topk_router::preset::DEEPSEEK_V3.router().topk;
    for (few, at) in [(&first, 0), (&last, weights.len() - len)] {
        let (want_weights, want_indices) = route(&cuda, few, "topk_router_grouped_32_f32");
        assert!(part(&cuda, &weights, at, len) == want_weights.get(), "weights at {at}");
        assert!(part(&cuda, &indices, at, len) == want_indices.get(), "indices at {at}");
    }
}

const VOCAB: usize = 151_936;
const DRAFTS: usize = 4;

/// The emitted tokens of requests that all have the same drafts and the same random
/// numbers, so that only their distributions differ; by this kernel.
fn verify(
    cuda: &Cuda,
    operator: &RejectionSample,
    kernel: &str,
    target: &Array<f32>,
) -> Array<i32> {
    let tokens = target.len() / VOCAB;
    let batch = tokens / DRAFTS;
    let mut tensors = operator.tensors(batch, tokens, VOCAB);
    tensors.uniform_samples = Some(TensorDesc::new(DType::F32, [tokens]));
    (tensors.seeds, tensors.positions) = (None, None);
    let drafts: Vec<i32> = (0..tokens).map(|t| (t % DRAFTS) as i32 * 1000).collect();
    let offsets: Vec<i32> = (0..=batch).map(|b| (b * DRAFTS) as i32).collect();
    let (drafts, offsets) = (Array::from(cuda, &drafts), Array::from(cuda, &offsets));
    let bonus = Array::from(cuda, &vec![77; batch]);
    let uniform = Array::from(cuda, &vec![0.5f32; tokens]);
    let mut output = Array::<i32>::new(cuda, batch * (DRAFTS + 1));
    let mut counts: [Array<i32>; 4] = std::array::from_fn(|_| Array::new(cuda, batch));
    let [num_accepted, accepted, recovered, bonuses] = &mut counts;
    let buffers = rejection_sample::Buffers::new(rejection_sample::Required {
        target_probs: target.view(),
        draft_token_ids: drafts.view(),
        bonus_token_ids: bonus.view(),
        cu_num_draft: offsets.view(),
        output_token_ids: output.view_mut(),
        num_accepted: num_accepted.view_mut(),
        accepted_counts: accepted.view_mut(),
        recovered_counts: recovered.view_mut(),
        bonus_counts: bonuses.view_mut(),
    })
    .uniform_samples(uniform.view());
    Ready::new(cuda, operator, &tensors).runs(&[kernel]).run(buffers, Stream::default());
    cuda.synchronize().expect("the call");
    output
}

#[test]
#[ignore = "needs 10 GB of device memory"]
fn more_probabilities_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(14, "");
    let request = DRAFTS * VOCAB;
    let batch = MANY / request + 1;
    // Three drafts are likely. The fourth is unlikely, so it is rejected and recovered.
    let mut distributions = || {
        let mut rows = random.vec(request, |r| r.unit() / VOCAB as f32);
        (0..DRAFTS - 1).for_each(|t| rows[t * VOCAB + t * 1000] = 0.9);
        rows
    };
    let (first, last) =
        (Array::from(&cuda, &distributions()), Array::from(&cuda, &distributions()));
    let target = repeat(&cuda, &first.get(), batch * request);
    copy(&target, (batch - 1) * request, &last, 0, request);
    let operators = [
        (RejectionSample::argmax(DRAFTS), "rejection_sample_argmax_f32"),
        (RejectionSample::greedy(DRAFTS), "rejection_sample_argmax_f32"),
    ];
    for (operator, kernel) in operators {
        let output = verify(&cuda, &operator, kernel, &target).get();
        let want = verify(&cuda, &operator, kernel, &first).get();
        let want_last = verify(&cuda, &operator, kernel, &last).get();
        assert!(want[..3] == [0, 1000, 2000] && want[3] != want_last[3], "{want:?} {want_last:?}");
        let (rest, end) = output.split_at((batch - 1) * (DRAFTS + 1));
        assert!(rest.chunks(DRAFTS + 1).all(|row| row == want), "{operator:?}");
        assert_eq!(end, want_last, "{operator:?}");
    }
}
