//! Code that the tests of this crate share: devices, and tensors in their memory.
#![allow(dead_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use spec_core::{Backend, DType, Element, Memory, View, ViewMut, dtype};
use spec_wgpu::{Options, Wgpu};

/// A lock by which only one test runs at a time. NVIDIA's Vulkan driver (580.159) was seen to
/// deadlock with the loader when one thread made an instance, as `foreign_device` does, while
/// other threads opened and closed devices.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first adapter, or a visible skip. `SPEC_REQUIRE` with `wgpu` in it makes
/// a missing adapter a failure.
pub fn gpu(options: &Options) -> Option<Wgpu> {
    match Wgpu::open_with(0, options) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|b| b.trim() == "wgpu"), "no wgpu device: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// The device with all its features, with WebGPU's defaults, and with bindings of at most `bytes`
/// bytes.
pub fn gpus_with_bindings(name: &'static str, bytes: u64) -> Vec<(&'static str, Wgpu)> {
    let plain = Options { plain: true, ..Options::default() };
    let small = Options { plain: true, max_binding: Some(bytes) };
    [("default", Options::default()), ("plain", plain), (name, small)]
        .into_iter()
        .filter_map(|(name, options)| Some((name, gpu(&options)?)))
        .collect()
}

/// A tensor in device memory, at an offset of some elements in its buffer.
pub struct Tensor {
    pub dtype: DType,
    pub len: usize,
    offset: usize,
    memory: wgpu::Buffer,
    gpu: Wgpu,
}

impl Tensor {
    /// A tensor of little-endian bytes, at an offset of `offset` elements in its buffer.
    pub fn new(gpu: &Wgpu, dtype: DType, bytes: &[u8], offset: usize) -> Tensor {
        let skip = offset * dtype.size();
        let memory = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: (skip + bytes.len() + 4).next_multiple_of(4) as u64,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut padded = vec![0xA5; skip];
        padded.extend_from_slice(bytes);
        padded.resize(memory.size() as usize, 0xA5);
        gpu.queue().write_buffer(&memory, 0, &padded);
        Tensor { dtype, len: bytes.len() / dtype.size(), offset, memory, gpu: gpu.clone() }
    }

    /// A tensor filled with a pattern that no result has.
    pub fn poison(gpu: &Wgpu, dtype: DType, len: usize, offset: usize) -> Tensor {
        Tensor::new(gpu, dtype, &vec![0xA5; len * dtype.size()], offset)
    }

    fn range(&self) -> std::ops::Range<u64> {
        let size = self.dtype.size();
        (self.offset * size) as u64..((self.offset + self.len) * size) as u64
    }

    pub fn view(&self) -> View<'_> {
        // SAFETY: a buffer of this device.
        unsafe { self.gpu.view(&self.memory, self.dtype, self.range()) }.unwrap()
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: a buffer of this device.
        unsafe { self.gpu.view_mut(&self.memory, self.dtype, self.range()) }.unwrap()
    }

    /// The bytes of the elements. The bytes around the elements must not have changed.
    pub fn bytes(&self) -> Vec<u8> {
        let all = read_buffer(&self.gpu, &self.memory);
        let range = self.range().start as usize..self.range().end as usize;
        let outside = all[..range.start].iter().chain(&all[range.end..]);
        assert!(outside.clone().all(|&b| b == 0xA5), "something was written outside of the tensor");
        all[range].to_vec()
    }

    pub fn read<T: Pod>(&self) -> Vec<T> {
        self.bytes().chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
    }
}

/// Copies a whole buffer to the host.
pub fn read_buffer(gpu: &Wgpu, buffer: &wgpu::Buffer) -> Vec<u8> {
    let staging = gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
    gpu.queue().submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
    gpu.synchronize().unwrap();
    staging.get_mapped_range(..).unwrap().to_vec()
}

/// A workspace filled with arbitrary bytes.
pub fn workspace(gpu: &Wgpu, bytes: usize) -> Box<dyn Memory> {
    let mut memory = gpu.allocate_bytes(bytes).unwrap();
    memory.write(&vec![0xC3; bytes]).unwrap();
    memory
}

/// Numbers with little-endian bytes.
pub trait Pod: Element {
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! pod {
    ($($t:ty),+) => {$(
        impl Pod for $t {
            fn from_bytes(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )+};
}
pod!(i32, u32, i64, u64, f32);

pub fn bytes_of<T: Pod>(values: &[T]) -> Vec<u8> {
    dtype::as_bytes(values).to_vec()
}
