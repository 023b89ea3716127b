//! More than 2^31 elements. Patterns are repeated by copies on the device, so
//! that the results are known and nothing large crosses the host link.
//!
//! Ignored unless asked for: each needs some 30 GB of device memory.

mod common;

use common::random::Random;
use common::{Array, Ready, cuda};
use cudarc::driver::sys;
use spec_core::ops::{DeduplicateTopk, Unique, deduplicate_topk, unique};
use spec_core::{Backend, DType, Element, Place, Stream, TensorDesc};
use spec_cuda::Cuda;

/// Elements whose indices no 32-bit integer holds, signed or not.
const MANY: usize = (1 << 31) + 12_345;

fn address<T: Element>(array: &Array<T>) -> u64 {
    match array.view().place() {
        Place::Address { address, .. } => address,
        _ => panic!("CUDA memory has an address"),
    }
}

/// Copies within the device, in elements of `T`.
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

/// `len` elements that repeat `pattern`.
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

/// The elements from `start` on.
fn part<T: Element>(cuda: &Cuda, array: &Array<T>, start: usize, len: usize) -> Vec<T> {
    let piece = Array::new(cuda, len);
    copy(&piece, 0, array, start, len);
    piece.get()
}

#[test]
#[ignore = "needs 45 GB of device memory"]
fn more_keys_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Random(11);
    // Distinct, by an odd factor; the rest of the last repetition stays out.
    let period = 1 << 20;
    let factor = random.next() as u32 | 1;
    let pattern: Vec<u32> = (0..period as u32).map(|i| i.wrapping_mul(factor)).collect();
    let keys = repeat(&cuda, &pattern, MANY);
    let mut output = Array::<u32>::new(&cuda, MANY);
    let mut count = Array::<u64>::new(&cuda, 1);
    let mut counts = Array::<u64>::new(&cuda, MANY);
    let mut tensors = Unique.tensors(DType::U32, MANY);
    tensors.counts = Some(TensorDesc::new(DType::U64, [MANY]));
    let mut ready = Ready::new(&cuda, &Unique, &tensors);
    let buffers = unique::Buffers {
        keys: keys.view(),
        unique: output.view_mut(),
        count: count.view_mut(),
        counts: Some(counts.view_mut()),
    };
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
}

#[test]
#[ignore = "needs 18 GB of device memory"]
fn more_indices_than_32_bits_count() {
    let Some(cuda) = cuda() else { return };
    let mut random = Random(12);
    let (steps, k, period) = (4, 2048, 64);
    let n = steps * k;
    let batch = MANY / n + 1;
    // One request of the pattern in a small range, the next anywhere.
    let pattern: Vec<i32> = (0..period * n)
        .map(|i| random.below(if i / n % 2 == 0 { 1 << 18 } else { 1 << 32 }) as u32 as i32)
        .collect();
    let indices = repeat(&cuda, &pattern, batch * n);
    let mut output = Array::<i32>::new(&cuda, batch * n);
    let operator = DeduplicateTopk { mtp_step: steps };
    let mut ready = Ready::new(&cuda, &operator, &operator.tensors(batch, k));
    let buffers = deduplicate_topk::Buffers {
        indices: indices.view(),
        unique: output.view_mut(),
        counts: None,
    };
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
