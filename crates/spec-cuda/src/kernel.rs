//! The pieces for adding an operator in another crate. The operators of this crate
//! are made of the same pieces.
//!
//! ```text
//! kernels/name.cu   --cargo xtask kernels-->   compiled/name.bin, compiled/manifest.txt
//!
//! static KERNELS: Archive =
//!     unsafe { Archive::new("name", include_bytes!(..), include_str!("compiled/manifest.txt")) };
//!
//! #[repr(C)]                                          what the kernel takes, once here and
//! #[derive(Clone, Copy)]                              once in name.cu, field by field (the
//! struct Params { x: Rows, flags: u64, .. }           operators here have `launch_params!`)
//!
//! prepare:  cuda.function(&KERNELS, "name_f32")?      loads the archive once a device
//!           Shape::new(blocks, threads)               from sizes and cuda.limits()
//! launch:   cuda.rows(view, &matrix)?, ..             views to addresses
//!           cuda.enqueue(stream, |queue| queue.launch(&function, shape, &params))
//! ```
//!
//! A kernel takes one argument, a struct ([`Queue::launch`] states the conditions).
//! `kernels/common.cuh` declares [`Rows`] and [`Integers`] for the kernels.

pub use crate::archive::Archive;
pub use crate::args::{Integers, Located, Rows};
pub use crate::function::Function;
pub use crate::launch::Queue;
pub use crate::limits::Limits;
pub use crate::shape::Shape;

use spec_core::Result;

use crate::Cuda;
use crate::cluster::{first_held, largest};

impl Cuda {
    /// The kernel `name` of an archive, loaded on first use, and allowed all the
    /// dynamic shared memory that the device has.
    ///
    /// # Errors
    /// Status 2 if the archive has no such kernel, 8 if the archive has no image for
    /// this device, 1 if the archive is damaged or the driver refuses the image.
    pub fn function(&self, archive: &Archive, name: &str) -> Result<Function> {
        self.gpu().function(archive, name)
    }

    /// The properties of the device that launch shapes depend on.
    pub fn limits(&self) -> &Limits {
        self.gpu().limits()
    }

    /// How many clusters of this shape the device runs at a time. 0 means that the device cannot
    /// run a cluster of this size, or that `SPEC_CUDA_LIMITS` forbids this size.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub(crate) fn active_clusters(&self, function: &Function, shape: Shape) -> Result<u32> {
        self.gpu().active_clusters(function, shape)
    }

    /// The largest cluster, in blocks, that the device runs for a kernel in this shape: `wanted`,
    /// halved until the device runs a cluster of that size; 1 if the device runs no cluster.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub fn cluster_at_most(&self, function: &Function, shape: Shape, wanted: u32) -> Result<u32> {
        largest(wanted, |blocks| self.active_clusters(function, shape.cluster(blocks)))
    }

    /// The choice that `choose` makes for the largest cluster that the device runs. `choose` takes
    /// the largest permitted number of blocks in a cluster, and returns the kernel, a shape whose
    /// cluster is not larger than permitted, and any further result.
    ///
    /// # Errors
    /// The errors of `choose` and of [`cluster_at_most`](Self::cluster_at_most).
    pub(crate) fn within_clusters<T>(
        &self,
        choose: impl Fn(u32) -> Result<(Function, Shape, T)>,
    ) -> Result<(Function, Shape, T)> {
        let held = |(function, shape, _): &(Function, Shape, T)| {
            Ok((shape.cluster, self.cluster_at_most(function, *shape, shape.cluster)?))
        };
        first_held(self.limits().cluster, choose, held)
    }
}
