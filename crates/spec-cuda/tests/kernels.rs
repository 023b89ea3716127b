//! Kernels from outside of the crate: how long they stay loaded.

mod common;

use common::cuda;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Shape};

/// A kernel that was got through one handle can be launched through another of the device,
/// after the first and with it all of the device's handles are gone: it keeps its module.
#[test]
fn a_kernel_outlives_the_handle_that_loaded_it() {
    let Some(cuda) = cuda() else { return };
    let (index, bytes) =
        (cuda.info().device.index(), include_bytes!("../compiled/tree_verify.bin"));
    // SAFETY: `cargo xtask kernels` wrote both.
    let archive =
        unsafe { Archive::new("tree_verify", bytes, include_str!("../compiled/manifest.txt")) };
    let function = cuda.function(&archive, "tree_verify_any").unwrap();
    drop(cuda);
    let cuda = Cuda::open(index).unwrap();
    // More zeros than the kernel's parameters have bytes: no requests, and so no addresses used.
    let nothing = [0u64; 64];
    // SAFETY: the device's own kernel, which walks none of 0 requests.
    let launch = |queue: &spec_cuda::kernel::Queue<'_>| unsafe {
        queue.launch(&function, Shape::new(1, 32), &nothing)
    };
    for _ in 0..100 {
        cuda.enqueue(Stream::default(), launch).unwrap();
    }
    cuda.synchronize().unwrap();
}
