//! Rows without values take no time, for any number of rows.

use std::time::{Duration, Instant};

use spec::ops::deduplicate_topk::Buffers;
use spec::ops::moe_align;
use spec::ops::{DeduplicateTopk, MoeAlign};
use spec::{DType, Handle, Status, TensorDesc};

/// A call that takes longer goes through the requests one by one.
const SOON: Duration = Duration::from_secs(5);

/// Deduplicates requests without values, and returns their counts if `counted`.
fn deduplicate(handle: &Handle, batch: usize, counted: bool) -> spec::Result<Vec<i32>> {
    let operator = DeduplicateTopk::new().mtp_step(3);
    let mut tensors = operator.tensors(batch, 0);
    tensors.counts = counted.then(|| TensorDesc::new(DType::I32, [batch]));
    let created = handle.create(&operator, &tensors)?;
    let mut workspace = created.workspace(handle)?;
    let indices = handle.allocate::<i32>(0)?;
    let mut unique = handle.allocate::<i32>(0)?;
    let mut counts = handle.upload(&vec![7; if counted { batch } else { 0 }])?;
    let mut buffers = Buffers::new(&indices, &mut unique);
    buffers.counts = counted.then(|| (&mut counts).into());
    created.call(&mut workspace, buffers)?;
    handle.synchronize()?;
    counts.to_vec()
}

#[test]
fn a_million_empty_requests_take_no_time() {
    for handle in crate::common::handles() {
        // The first call compiles the shader.
        assert_eq!(deduplicate(&handle, 3, true).unwrap(), [0; 3]);
        let start = Instant::now();
        assert_eq!(deduplicate(&handle, 1 << 20, true).unwrap(), vec![0; 1 << 20]);
        assert!(deduplicate(&handle, i32::MAX as usize, false).unwrap().is_empty());
        assert!(start.elapsed() < SOON, "{:?} on {}", start.elapsed(), handle.device());
    }
}

#[test]
fn more_requests_than_any_launch_holds_are_refused() {
    for handle in crate::common::handles() {
        for batch in [1 << 31, 1 << 60] {
            let error = deduplicate(&handle, batch, false).unwrap_err();
            assert_eq!(error.status(), Status::BadTensorShape, "{error}");
            assert!(error.to_string().contains("with batch at most 2147483647"), "{error}");
        }
    }
}

/// The largest number of tokens, none of which has a pick.
#[test]
fn tokens_without_picks_take_no_time() {
    for handle in crate::common::handles() {
        let operator = MoeAlign::new(8, 4);
        let inverse = TensorDesc::new(DType::I32, [0]);
        let tensors = operator.tensors(DType::I32, usize::MAX, 0).inverse(inverse);
        let created = handle.create(&operator, &tensors).unwrap();
        let mut workspace = created.workspace(&handle).unwrap();
        let ids = handle.allocate::<i32>(0).unwrap();
        let capacity = operator.capacity(0).unwrap();
        let mut sorted_ids = handle.allocate::<i32>(capacity).unwrap();
        let mut block_experts = handle.allocate::<i32>(capacity / 4).unwrap();
        let mut counts = handle.upload(&[7; 8]).unwrap();
        let mut offsets = handle.allocate::<i32>(9).unwrap();
        let mut num_padded = handle.upload(&[7]).unwrap();
        let mut inverse = handle.allocate::<i32>(0).unwrap();
        let start = Instant::now();
        let buffers = moe_align::Buffers::new(moe_align::Required {
            topk_ids: (&ids).into(),
            sorted_ids: (&mut sorted_ids).into(),
            block_experts: (&mut block_experts).into(),
            counts: (&mut counts).into(),
            offsets: (&mut offsets).into(),
            num_padded: (&mut num_padded).into(),
        })
        .inverse(&mut inverse);
        created.call(&mut workspace, buffers).unwrap();
        assert_eq!(counts.to_vec().unwrap(), [0; 8]);
        assert_eq!(num_padded.to_vec().unwrap(), [0]);
        assert!(start.elapsed() < SOON, "{:?} on {}", start.elapsed(), handle.device());
    }
}
