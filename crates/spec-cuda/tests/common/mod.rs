//! What the GPU tests and the bench share: opening a device, memory of both
//! sides, graphs.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod graph;

use std::io::Write;

use spec_core::{Backend, Element, Memory, Operator, View, ViewMut, dtype};
use spec_core::{Descriptor, Stream, Supports};
use spec_cuda::Cuda;

/// The first device; `None`, said on stderr, where there is none. If the
/// environment variable `SPEC_REQUIRE` lists `cuda`, that is a failure instead.
pub fn cuda() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(reason) => {
            let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
            let required = required.split(',').any(|name| name.trim() == "cuda");
            assert!(!required, "SPEC_REQUIRE asks for cuda, which is not there: {reason}");
            // Past the test harness, which swallows what `eprintln!` writes.
            _ = writeln!(std::io::stderr(), "skipped: {reason}");
            None
        }
    }
}

/// Device memory of `T`.
pub struct Array<T> {
    pub memory: Box<dyn Memory>,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    /// `len` elements that hold whatever was there.
    pub fn new(cuda: &Cuda, len: usize) -> Self {
        let memory = cuda.allocate_bytes(len * size_of::<T>()).expect("device memory");
        Array { memory, len, element: std::marker::PhantomData }
    }

    /// A copy of host data.
    pub fn from(cuda: &Cuda, data: &[T]) -> Self {
        let mut array = Self::new(cuda, data.len());
        array.set(data);
        array
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn set(&mut self, data: &[T]) {
        assert!(data.len() <= self.len);
        self.memory.write(dtype::as_bytes(data)).expect("a copy to the device");
    }

    pub fn get(&self) -> Vec<T> {
        self.start(self.len)
    }

    /// The first `len` elements.
    pub fn start(&self, len: usize) -> Vec<T> {
        let mut data = vec![T::default(); len];
        self.memory.read(dtype::as_bytes_mut(&mut data)).expect("a copy from the device");
        data
    }

    pub fn view(&self) -> View<'_> {
        self.memory.view(T::DTYPE, self.len)
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.memory.view_mut(T::DTYPE, self.len)
    }
}

/// An operator ready to run, with its workspace.
pub struct Ready<O: Operator> {
    pub descriptor: Descriptor<O>,
    pub workspace: Array<u8>,
}

impl<O: Operator> Ready<O> {
    pub fn new(cuda: &Cuda, operator: &O, tensors: &O::Tensors) -> Self
    where
        Cuda: Supports<O>,
    {
        let descriptor = Descriptor::create(cuda, operator, tensors).expect("a descriptor");
        let mut workspace = Array::new(cuda, descriptor.workspace_size());
        // What a workspace holds must not matter.
        workspace.set(&vec![0xA5; descriptor.workspace_size().min(1 << 20)]);
        Ready { descriptor, workspace }
    }

    /// The same, after a check that the call runs these kernels: those that the test means to reach.
    #[track_caller]
    pub fn runs(self, kernels: &[&str]) -> Self {
        let route = self.descriptor.route().expect("a route");
        assert_eq!(route.kernels().collect::<Vec<_>>(), kernels, "{route}");
        self
    }

    pub fn run(&mut self, buffers: O::Buffers<'_>, stream: Stream<'_>) {
        self.descriptor.call_on(self.workspace.view_mut(), buffers, stream).expect("a launch");
    }
}
