//! Handles, memory, foreign buffers, recorded work, and what fails how.

mod common;

use common::{Tensor, alone, bytes_of, gpu, read_buffer, workspace};
use spec_conformance::Rng;
use spec_core::ops::deduplicate_topk::Buffers;
use spec_core::ops::{DeduplicateTopk, Unique};
use spec_core::{Backend, DType, Descriptor, Device, Status, Stream, View, ViewMut};
use spec_wgpu::{Options, Wgpu, devices};

fn default_gpu() -> Option<Wgpu> {
    gpu(&Options::default())
}

/// A device that the tests make themselves, as an engine would.
fn foreign_device() -> Option<(wgpu::Device, wgpu::Queue)> {
    default_gpu()?;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let mut adapters = ready(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    Some(ready(adapters.swap_remove(0).request_device(&Default::default())).unwrap())
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

fn buffer(device: &wgpu::Device, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    device.create_buffer(&descriptor)
}

#[test]
fn devices_are_described() {
    let _alone = alone();
    if default_gpu().is_none() {
        return;
    }
    let found = devices().unwrap();
    for (index, info) in found.iter().enumerate() {
        assert_eq!(info.device.to_string(), format!("wgpu:{index}"));
        assert!(!info.name.is_empty());
        for fact in ["api", "driver", "largest binding", "optional features"] {
            assert!(info.facts.iter().any(|(name, _)| *name == fact), "{fact}");
        }
    }
    // Hardware first.
    assert!(found.is_sorted_by_key(|info| info.software));
    let error = Wgpu::open(found.len()).err().unwrap();
    assert_eq!(error.status(), Status::DeviceNotFound);
}

#[test]
fn plain_means_default_limits() {
    let _alone = alone();
    let Some(gpu) = gpu(&Options { plain: true, ..Options::default() }) else { return };
    let limits = gpu.device().limits();
    assert_eq!(limits.max_storage_buffer_binding_size, 128 << 20);
    assert_eq!(limits.max_compute_workgroup_storage_size, 16 << 10);
    assert_eq!(limits.max_storage_buffers_per_shader_stage, 8);
    assert_eq!(limits.max_compute_invocations_per_workgroup, 256);
    assert!(gpu.device().features().is_empty(), "{:?}", gpu.device().features());
}

#[test]
fn memory_reads_what_was_written() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let mut random = Rng::new(5, "");
    for size in [0, 1, 2, 3, 4, 5, 17, 1000, 100_001] {
        let mut memory = gpu.allocate_bytes(size).unwrap();
        assert_eq!(memory.size(), size);
        let mut bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
        memory.write(&bytes).unwrap();
        // A shorter write leaves the rest alone, even within a word.
        let some: Vec<u8> = (0..size / 2).map(|_| random.next() as u8).collect();
        memory.write(&some).unwrap();
        bytes[..some.len()].copy_from_slice(&some);
        let mut back = vec![0; size];
        memory.read(&mut back).unwrap();
        assert_eq!(back, bytes);
        assert_eq!(memory.write(&vec![0; size + 1]).unwrap_err().status(), Status::BadTensorShape);
        let error = memory.read(&mut vec![0; size + 1]).unwrap_err();
        assert_eq!(error.status(), Status::BadTensorShape);
    }
    let error = gpu.allocate_bytes(usize::MAX / 2).err().unwrap();
    assert_eq!(error.status(), Status::InternalError);
}

#[test]
fn views_are_checked() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let usage = wgpu::BufferUsages::STORAGE;
    let good = buffer(gpu.device(), 64, usage);
    let odd = buffer(gpu.device(), 6, usage);
    let wrong = buffer(gpu.device(), 64, wgpu::BufferUsages::COPY_DST);
    // SAFETY: buffers of this device.
    let view = |buffer, dtype, bytes| unsafe { gpu.view(buffer, dtype, bytes) };
    assert_eq!(view(&good, DType::I64, 8..64).unwrap().len(), 7);
    let status = |view: spec_core::Result<View<'_>>| view.err().unwrap().status();
    assert_eq!(status(view(&wrong, DType::I32, 0..64)), Status::BadParam);
    assert_eq!(status(view(&good, DType::I32, 0..68)), Status::BadParam);
    assert_eq!(status(view(&good, DType::I64, 4..12)), Status::BadParam);
    assert_eq!(status(view(&good, DType::I32, 0..6)), Status::BadParam);
    assert_eq!(status(view(&odd, DType::F16, 0..6)), Status::BadParam);
    assert_eq!(view(&odd, DType::F16, 0..4).unwrap().len(), 2);
}

/// An engine's own device, queue and one buffer that holds every argument and
/// the workspace; two operators in one encoder that the engine submits.
#[test]
fn one_buffer_and_one_encoder_of_a_foreign_device() {
    let _alone = alone();
    let Some((device, queue)) = foreign_device() else { return };
    // SAFETY: a device with its own queue.
    let gpu = unsafe { Wgpu::from_device(device.clone(), queue.clone()) }.unwrap();
    assert!(gpu.info().device.index() >= 1000);
    let operator = DeduplicateTopk::new().mtp_step(1);
    let k = 5000;
    let tensors = operator.tensors(1, k);
    let first = Descriptor::create(&gpu, &operator, &tensors).unwrap();
    let second =
        Descriptor::create(&gpu, &Unique::new(), &Unique::new().tensors(DType::I32, k)).unwrap();
    let mut random = Rng::new(6, "");
    let values: Vec<i32> = (0..k).map(|_| random.below(1 << 31) as i32 % 3000 * 700_000).collect();
    let (input, row) = (12u64, 4 * k as u64);
    let distinct = input + row + 4;
    let again = distinct + row + 8;
    let count = (again + row).next_multiple_of(8);
    let scratch = count + 12;
    let size = scratch + first.workspace_size().max(second.workspace_size()) as u64;
    let usage =
        wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
    let arena = buffer(&device, size.next_multiple_of(4), usage);
    queue.write_buffer(&arena, input, &bytes_of(&values));
    let mut commands = device.create_command_encoder(&Default::default());
    // SAFETY: a buffer of this device, its parts used by one call each.
    let view = |dtype, bytes| unsafe { gpu.view(&arena, dtype, bytes) }.unwrap();
    // SAFETY: as above.
    let view_mut = |dtype, bytes| unsafe { gpu.view_mut(&arena, dtype, bytes) }.unwrap();
    let i32s = |start: u64| view(DType::I32, start..start + row);
    let i32s_mut = |start: u64| view_mut(DType::I32, start..start + row);
    let buffers = Buffers::new(i32s(input), i32s_mut(distinct));
    let workspace = || view_mut(DType::U8, scratch..size);
    // SAFETY: an encoder of this device.
    let stream = unsafe { gpu.encoder(&mut commands) };
    first.call_on(workspace(), buffers, stream).unwrap();
    let mut opened = commands.begin_compute_pass(&Default::default()).forget_lifetime();
    let buffers = spec_core::ops::unique::Buffers::new(
        i32s(distinct),
        i32s_mut(again),
        view_mut(DType::U64, count..count + 8),
    );
    // SAFETY: a pass of this device's encoder.
    let stream = unsafe { gpu.pass(&mut opened) };
    second.call_on(workspace(), buffers, stream).unwrap();
    drop(opened);
    // Nothing has run yet; the caller submits.
    queue.submit([commands.finish()]);
    let bytes = read_buffer(&gpu, &arena);
    let read = |start: u64, n: usize| -> Vec<i32> {
        let words = bytes[start as usize..].chunks_exact(4);
        words.take(n).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let mut wanted: Vec<i32> = values.iter().copied().filter(|&v| v >= 0).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let distinct_values = read(distinct, k);
    assert!(distinct_values[..wanted.len()] == wanted && distinct_values[wanted.len()] == -1);
    let n = read(count, 2);
    assert_eq!(n, [wanted.len() as i32 + 1, 0]);
    assert!(read(again, n[0] as usize)[1..] == wanted);
    assert!(read(input, k) == values);
}

/// The encoder of a device that the caller made records no call of another device's
/// descriptor: wgpu would take the numbers of the one's objects for those of the other.
#[test]
fn an_encoder_of_another_device_is_refused() {
    let _alone = alone();
    let Some((device, queue)) = foreign_device() else { return };
    let Some(gpu) = default_gpu() else { return };
    // SAFETY: a device with its own queue.
    let other = unsafe { Wgpu::from_device(device.clone(), queue) }.unwrap();
    let operator = DeduplicateTopk::new().mtp_step(1);
    let descriptor = Descriptor::create(&gpu, &operator, &operator.tensors(1, 8)).unwrap();
    let mine = Tensor::new(&gpu, DType::I32, &[0; 32], 0);
    let mut unique = Tensor::poison(&gpu, DType::I32, 8, 0);
    let mut commands = device.create_command_encoder(&Default::default());
    let buffers = Buffers::new(mine.view(), unique.view_mut());
    // SAFETY: an encoder of that device.
    let stream = unsafe { other.encoder(&mut commands) };
    let error = descriptor.call_on(ViewMut::empty(), buffers, stream).unwrap_err();
    assert_eq!(error.status(), Status::BadParam);
    let words = format!("`stream` belongs to {}", other.info().device);
    assert!(error.to_string().contains(&words), "{error}");
}

#[test]
fn repeated_and_concurrent_calls() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let operator = DeduplicateTopk::new().mtp_step(2);
    let descriptor = Descriptor::create(&gpu, &operator, &operator.tensors(3, 100)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gpu, descriptor) = (&gpu, &descriptor);
            scope.spawn(move || {
                let mut random = Rng::new(thread, "");
                for turn in 0..20 {
                    let values: Vec<i32> = (0..600).map(|_| random.below(300) as i32).collect();
                    let indices = Tensor::new(gpu, DType::I32, &bytes_of(&values), turn);
                    let mut unique = Tensor::poison(gpu, DType::I32, 600, turn);
                    let buffers = Buffers::new(indices.view(), unique.view_mut());
                    descriptor.call(ViewMut::empty(), buffers).unwrap();
                    let found = unique.read::<i32>();
                    for (row, request) in found.chunks(200).zip(values.chunks(200)) {
                        let mut wanted = request.to_vec();
                        wanted.sort_unstable();
                        wanted.dedup();
                        wanted.resize(200, -1);
                        assert_eq!(row, wanted);
                    }
                }
            });
        }
    });
}

#[test]
fn failures_have_words() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let Some(other) = default_gpu() else { return };
    let operator = DeduplicateTopk::new().mtp_step(1);
    let descriptor = Descriptor::create(&gpu, &operator, &operator.tensors(1, 8)).unwrap();
    let mut unique = Tensor::poison(&gpu, DType::I32, 8, 0);
    let mine = Tensor::new(&gpu, DType::I32, &[0; 32], 0);

    // A host slice, and a buffer that belongs to another device.
    let host = [0i32; 8];
    let buffers = Buffers::new(&host, unique.view_mut());
    let error = descriptor.call(ViewMut::empty(), buffers).unwrap_err();
    assert_eq!(error.status(), Status::DeviceTypeNotSupported);
    let theirs = Tensor::new(&other, DType::I32, &[0; 32], 0);
    let buffers = Buffers::new(theirs.view(), unique.view_mut());
    let error = descriptor.call(ViewMut::empty(), buffers).unwrap_err();
    assert_eq!(error.status(), Status::InternalError);
    assert!(error.to_string().contains("evice"), "{error}");

    // A stream that is no encoder, and one that is another API's.
    // SAFETY: a number belongs to whatever device is named, and is no encoder of it.
    let refused = |device, unique: &mut Tensor| unsafe {
        let mut number = 1u32;
        let buffers = Buffers::new(mine.view(), unique.view_mut());
        let stream = Stream::from_object(device, &mut number);
        descriptor.call_on(ViewMut::empty(), buffers, stream).unwrap_err()
    };
    let error = refused(gpu.info().device, &mut unique);
    assert_eq!(error.status(), Status::DeviceTypeNotSupported);
    let error = refused(Device::new("cuda", 0), &mut unique);
    assert_eq!(error.status(), Status::DeviceTypeNotSupported);
    let error = refused(Device::new("wgpu", 7), &mut unique);
    assert_eq!(error.status(), Status::BadParam);
    assert!(error.to_string().contains("`stream` belongs to wgpu:7"), "{error}");

    // A mistake of the caller's own with our device waits for the next call.
    let _ = gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: Some("impossible"),
        size: u64::MAX / 2,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let error = gpu.synchronize().unwrap_err();
    assert_eq!(error.status(), Status::InternalError);
    assert!(error.to_string().contains("impossible"), "{error}");
    gpu.synchronize().unwrap();

    // The handle still works.
    let buffers = Buffers::new(mine.view(), unique.view_mut());
    descriptor.call(ViewMut::empty(), buffers).unwrap();
    assert_eq!(unique.read::<i32>(), [0, -1, -1, -1, -1, -1, -1, -1]);
}

#[test]
fn a_lost_device_says_so() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let operator = DeduplicateTopk::new().mtp_step(1);
    let descriptor = Descriptor::create(&gpu, &operator, &operator.tensors(1, 8)).unwrap();
    let mine = Tensor::new(&gpu, DType::I32, &[0; 32], 0);
    let mut unique = Tensor::poison(&gpu, DType::I32, 8, 0);
    gpu.synchronize().unwrap();
    gpu.device().destroy();
    let _ = gpu.synchronize();
    let buffers = Buffers::new(mine.view(), unique.view_mut());
    let error = descriptor.call(ViewMut::empty(), buffers).unwrap_err();
    assert_eq!(error.status(), Status::InternalError);
    assert!(error.to_string().to_lowercase().contains("lost"), "{error}");
    assert_eq!(gpu.synchronize().unwrap_err().status(), Status::InternalError);
    assert_eq!(gpu.allocate_bytes(16).err().unwrap().status(), Status::InternalError);
}

#[test]
fn small_workspaces_are_refused() {
    let _alone = alone();
    let Some(gpu) = default_gpu() else { return };
    let descriptor =
        Descriptor::create(&gpu, &Unique::new(), &Unique::new().tensors(DType::U64, 100)).unwrap();
    let keys = Tensor::new(&gpu, DType::U64, &[1; 800], 0);
    let mut unique = Tensor::poison(&gpu, DType::U64, 100, 0);
    let mut count = Tensor::poison(&gpu, DType::U64, 1, 0);
    let size = descriptor.workspace_size() - 1;
    let mut memory = workspace(&gpu, size);
    let buffers =
        spec_core::ops::unique::Buffers::new(keys.view(), unique.view_mut(), count.view_mut());
    let scratch = memory.view_mut(DType::U8, size);
    let error = descriptor.call(scratch, buffers).unwrap_err();
    assert_eq!(error.status(), Status::InsufficientWorkspace);
}
