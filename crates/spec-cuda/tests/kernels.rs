//! How long kernels of another crate stay loaded.

mod common;

use common::cuda;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Shape};

/// A kernel that was loaded through one handle can be launched through another handle of the
/// device, even after all handles of the device were dropped in between: the kernel keeps its
/// module loaded.
#[test]
fn a_kernel_outlives_the_handle_that_loaded_it() {
    let Some(cuda) = cuda() else { return };
    let (index, bytes) =
        (cuda.info().device.index(), include_bytes!("../compiled/tree_verify.bin"));
    // SAFETY: `cargo xtask kernels` wrote the archive and the manifest.
    let archive =
        unsafe { Archive::new("tree_verify", bytes, include_str!("../compiled/manifest.txt")) };
    let function = cuda.function(&archive, "tree_verify_global").unwrap();
    drop(cuda);
    let cuda = Cuda::open(index).unwrap();
    // Zeros, longer than the kernel's parameters: no requests, so the kernel uses no address.
    let nothing = [0u64; 64];
    // SAFETY: the kernel was loaded on this device; with 0 requests it accesses no memory.
    let launch = |queue: &spec_cuda::kernel::Queue<'_>| unsafe {
        queue.launch(&function, Shape::new(1, 32), &nothing)
    };
    for _ in 0..100 {
        cuda.enqueue(Stream::default(), launch).unwrap();
    }
    cuda.synchronize().unwrap();
}
