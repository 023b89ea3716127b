//! Rows without values are no work, however many there are.

mod common;

use std::time::{Duration, Instant};

use spec::ops::DeduplicateTopk;
use spec::ops::deduplicate_topk::Buffers;
use spec::{DType, Handle, Status, Stream, TensorDesc};

/// What takes longer goes through the requests one by one.
const SOON: Duration = Duration::from_secs(5);

/// Deduplicates requests of no values, and returns their counts if they are wanted.
fn deduplicate(handle: &Handle, batch: usize, counted: bool) -> spec::Result<Vec<i32>> {
    let operator = DeduplicateTopk { mtp_step: 3 };
    let mut tensors = operator.tensors(batch, 0);
    tensors.counts = counted.then(|| TensorDesc::new(DType::I32, [batch]));
    let created = handle.create(&operator, &tensors)?;
    let mut workspace = handle.workspace(created.workspace_size())?;
    let indices = handle.allocate::<i32>(0)?;
    let mut unique = handle.allocate::<i32>(0)?;
    let mut counts = handle.upload(&vec![7; if counted { batch } else { 0 }])?;
    let buffers = Buffers {
        indices: (&indices).into(),
        unique: (&mut unique).into(),
        counts: counted.then(|| (&mut counts).into()),
    };
    created.calculate(&mut workspace, buffers, Stream::default())?;
    handle.synchronize()?;
    counts.to_vec()
}

#[test]
fn a_million_empty_requests_take_no_time() {
    for handle in common::handles() {
        // The first one compiles.
        assert_eq!(deduplicate(&handle, 3, true).unwrap(), [0; 3]);
        let start = Instant::now();
        assert_eq!(deduplicate(&handle, 1 << 20, true).unwrap(), vec![0; 1 << 20]);
        assert_eq!(deduplicate(&handle, i32::MAX as usize, false).unwrap(), []);
        assert!(start.elapsed() < SOON, "{:?} on {}", start.elapsed(), handle.device());
    }
}

#[test]
fn more_requests_than_any_launch_holds_are_refused() {
    for handle in common::handles() {
        for batch in [1 << 31, 1 << 60] {
            let error = deduplicate(&handle, batch, false).unwrap_err();
            assert_eq!(error.status(), Status::BadTensorShape, "{error}");
            assert!(error.to_string().contains("at most 2147483647 requests"), "{error}");
        }
    }
}
