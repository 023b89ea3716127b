//! Memory and streams of other frameworks, good and bad ones.

mod common;

use common::graph::Foreign;
use common::{Array, cuda};
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::Buffers;
use spec_core::{Backend, DType, Descriptor, Device, Place, Status, Stream, View, ViewMut};

fn address<T: spec_core::Element>(array: &Array<T>) -> u64 {
    match array.view().place() {
        Place::Address { address, .. } => address,
        _ => panic!("CUDA memory has an address"),
    }
}

#[test]
fn foreign_pointers_and_streams_are_used_in_place() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    let input = Array::from(&cuda, &[9, 3, 9, -1, 4, 3]);
    let output = Array::<i32>::new(&cuda, 6);
    let operator = DeduplicateTopk::new().mtp_step(2);
    let descriptor = Descriptor::create(&cuda, &operator, &operator.tensors(1, 3)).expect("valid");
    // SAFETY: both arrays outlive the call, and the test waits for the call; nothing
    // else uses them.
    let buffers = unsafe {
        Buffers::new(
            cuda.foreign_view(DType::I32, 6, address(&input)).expect("ours"),
            cuda.foreign_view_mut(DType::I32, 6, address(&output)).expect("ours"),
        )
    };
    descriptor.call_on(ViewMut::empty(), buffers, foreign.stream()).expect("a launch");
    foreign.synchronize();
    assert_eq!(output.get(), [3, 4, 9, -1, -1, -1]);
}

#[test]
fn foreign_pointers_are_checked() {
    let Some(cuda) = cuda() else { return };
    let array = Array::<i32>::new(&cuda, 1000);
    let start = address(&array);
    let host = [0i32; 4];
    // SAFETY: none of these views is ever used.
    let status = |len: usize, at: u64| unsafe {
        cuda.foreign_view(DType::I32, len, at).map(|_| ()).map_err(|e| e.status())
    };
    assert_eq!(status(1000, start), Ok(()));
    assert_eq!(status(0, 0), Ok(()));
    assert_eq!(status(1, 0), Err(Status::NullPointer));
    // The driver may round up the size of an allocation, but not to 2^40.
    assert_eq!(status(1 << 40, start), Err(Status::BadTensorShape));
    assert_eq!(status(usize::MAX, start), Err(Status::BadTensorShape));
    assert_eq!(status(4, host.as_ptr().addr() as u64), Err(Status::DeviceTypeNotSupported));
    assert_eq!(status(4, 0x1000), Err(Status::DeviceTypeNotSupported));
}

#[test]
fn wrong_buffers_and_streams_are_refused() {
    let Some(cuda) = cuda() else { return };
    let operator = DeduplicateTopk::new().mtp_step(1);
    let descriptor = Descriptor::create(&cuda, &operator, &operator.tensors(1, 4)).expect("valid");
    let input = Array::from(&cuda, &[1, 2, 3, 4]);
    let mut output = Array::<i32>::new(&cuda, 4);
    let mut status = |indices: View<'_>, stream: Stream<'_>| {
        let buffers = Buffers::new(indices, output.view_mut());
        descriptor.call_on(ViewMut::empty(), buffers, stream).map_err(|e| e.status())
    };
    let at = address(&input);
    let elsewhere = Device::new("cuda", 7);
    // SAFETY: the calls refuse these before anything is enqueued.
    let (other_device, other_backend, misaligned, short) = unsafe {
        (
            View::from_address(DType::I32, 4, elsewhere, at),
            View::from_address(DType::I32, 4, Device::new("wgpu", 0), at),
            View::from_address(DType::I32, 4, cuda.info().device, at + 2),
            View::from_address(DType::I32, 3, cuda.info().device, at),
        )
    };
    let host = [1, 2, 3, 4];
    assert_eq!(status(other_device, Stream::default()), Err(Status::BadParam));
    assert_eq!(status(other_backend, Stream::default()), Err(Status::DeviceTypeNotSupported));
    assert_eq!(status((&host).into(), Stream::default()), Err(Status::DeviceTypeNotSupported));
    assert_eq!(status(misaligned, Stream::default()), Err(Status::BadParam));
    assert_eq!(status(short, Stream::default()), Err(Status::BadTensorShape));
    let object = 5u8;
    // SAFETY: every CUDA call refuses the object before using it.
    let view = unsafe { View::from_object(DType::I32, 4, cuda.info().device, &object, 0) };
    assert_eq!(status(view, Stream::default()), Err(Status::DeviceTypeNotSupported));
    // SAFETY: the calls refuse these streams before using them.
    let streams = unsafe { [Stream::from_raw(elsewhere, 0), Stream::from_raw(Device::CPU, 0)] };
    let [other_device, other_backend] = streams;
    assert_eq!(status(input.view(), other_device), Err(Status::BadParam));
    assert_eq!(status(input.view(), other_backend), Err(Status::DeviceTypeNotSupported));
    let mut recorder = 5u8;
    // SAFETY: the call refuses a recording object before using it.
    let recording = unsafe { Stream::from_object(cuda.info().device, &mut recorder) };
    assert_eq!(status(input.view(), recording), Err(Status::DeviceTypeNotSupported));
    assert_eq!(status(input.view(), Stream::default()), Ok(()));
    cuda.synchronize().expect("nothing went wrong");
}

#[test]
fn absent_devices_are_errors() {
    // An error and never a panic, also without a driver.
    let error = spec_cuda::Cuda::open(1000).expect_err("no machine has that many");
    assert_eq!(error.status(), Status::DeviceNotFound);
    match spec_cuda::devices() {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(error) => assert!(
            matches!(
                error.status(),
                Status::DeviceNotFound | Status::DeviceArchitectureNotSupported
            ),
            "{error}"
        ),
    }
}

#[test]
fn too_much_memory_is_an_error() {
    let Some(cuda) = cuda() else { return };
    let error = cuda.allocate_bytes(1 << 50).err().expect("no device has a pebibyte");
    assert_eq!(error.status(), Status::InternalError);
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
}
