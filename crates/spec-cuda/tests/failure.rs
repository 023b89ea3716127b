//! A kernel that fails after its call has returned. The test is alone in its program,
//! because the failure destroys the device's context.

mod common;

use common::{Array, cuda};
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::Buffers;
use spec_core::{Backend, DType, Descriptor, Status, View, ViewMut};

#[test]
fn a_late_failure_is_reported_in_the_drivers_words() {
    let Some(cuda) = cuda() else { return };
    let operator = DeduplicateTopk::new().mtp_step(1);
    let descriptor = Descriptor::create(&cuda, &operator, &operator.tensors(1, 4)).expect("valid");
    let mut output = Array::<i32>::new(&cuda, 4);
    // SAFETY: the address is invalid on purpose. The device refuses the access and
    // stops the kernel, so no memory is touched.
    let nowhere = unsafe { View::from_address(DType::I32, 4, cuda.info().device, 0x10) };
    let buffers = Buffers::new(nowhere, output.view_mut());
    let enqueued = descriptor.call(ViewMut::empty(), buffers);
    assert_eq!(enqueued, Ok(()), "the call only enqueues");
    let expect_failure = |result: spec_core::Result<()>| {
        let error = result.expect_err("the kernel failed");
        assert_eq!(error.status(), Status::InternalError);
        assert!(error.to_string().contains("illegal memory access"), "{error}");
    };
    expect_failure(cuda.synchronize());
    // Every later call fails too.
    let input = nowhere;
    let buffers = Buffers::new(input, output.view_mut());
    expect_failure(descriptor.call(ViewMut::empty(), buffers));
    expect_failure(cuda.allocate_bytes(4).map(|_| ()));
}
