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
pub use crate::launch::{Function, Queue, Shape};
pub use crate::limits::Limits;

use crate::Cuda;
use spec_core::Result;

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
}
