//! Tests of timing calls, on every device.

mod common;

use common::handles;
use spec::ops::{Unique, unique};
use spec::{Backend, Buffer, DType, Descriptor, Device, Stream, Timed};

/// Calls of `unique`, with counts of the calls and resets.
struct Calls {
    unique: Descriptor<Unique>,
    workspace: Buffer<u8>,
    keys: Buffer<u64>,
    distinct: Buffer<u64>,
    count: Buffer<u64>,
    made: usize,
    resets: usize,
}

impl Timed for Calls {
    fn call(&mut self, stream: Stream<'_>) -> spec::Result<()> {
        self.made += 1;
        let buffers = unique::Buffers::new(&self.keys, &mut self.distinct, &mut self.count);
        self.unique.call_on(&mut self.workspace, buffers, stream)
    }

    fn reset(&mut self) -> spec::Result<()> {
        self.resets += 1;
        Ok(())
    }
}

/// More keys take longer, and the results of the timed calls are right.
#[test]
fn times_are_of_calls_that_ran() {
    for handle in handles() {
        let mut medians = Vec::new();
        for n in [1000, 40_000] {
            let keys: Vec<u64> =
                (0..n as u64).map(|i| (i / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let unique =
                handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, n)).unwrap();
            let mut calls = Calls {
                workspace: unique.workspace(&handle).unwrap(),
                unique,
                keys: handle.upload(&keys).unwrap(),
                distinct: handle.upload(&vec![7; n]).unwrap(),
                count: handle.upload(&[7]).unwrap(),
                made: 0,
                resets: 0,
            };
            // SAFETY: `calls` owns its buffers, which stay where they are.
            let timing = unsafe { handle.time(5, 3, &mut calls) }.unwrap();
            assert_eq!(timing.seconds.len(), 5);
            assert!(timing.seconds.iter().all(|s| s.is_finite() && *s > 0.0), "{timing:?}");
            assert!(timing.method.starts_with("3 calls"), "{}", timing.method);
            // On CUDA, the calls are captured into a graph once and replayed.
            assert!(calls.made >= 3 && calls.made.is_multiple_of(3), "{}", calls.made);
            assert!(calls.resets > 5, "before each sample, and to warm up: {}", calls.resets);
            assert_eq!(calls.count.to_vec().unwrap(), [n as u64 / 2]);
            let mut expected = keys;
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(calls.distinct.to_vec().unwrap()[..n / 2], expected);
            medians.push(timing.median());
        }
        assert!(medians[0] < medians[1], "{}: {medians:?}", handle.device());
    }
}

#[test]
fn copy_rates_and_overheads_are_possible_figures() {
    for handle in handles() {
        let copy = handle.copy_rate().unwrap().expect("every backend measures copies");
        assert!((1e8..1e14).contains(&copy), "{}: {copy} bytes per second", handle.device());
        let overhead = handle.call_overhead().unwrap();
        assert_eq!(overhead.is_none(), handle.device() == Device::CPU);
        assert!(overhead.is_none_or(|s| (1e-8..1.0).contains(&s)), "{overhead:?}");
    }
}

#[test]
fn errors_of_calls_end_timing() {
    for handle in handles() {
        let mut refused = |_: Stream<'_>| "nonsense".parse::<spec::Handle>().map(drop);
        // SAFETY: the calls use no memory.
        let error = unsafe { handle.time(3, 2, &mut refused) }.unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
        // The device still works after the error.
        let buffer = handle.upload(&[1u64, 2]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [1, 2]);
    }
}
