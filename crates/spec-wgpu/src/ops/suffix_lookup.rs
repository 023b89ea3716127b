//! `suffix_lookup` has no shader yet.

use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::Plan;
use spec_core::{Backend, Error, Kernel, Result, Supports};

use crate::Wgpu;

// SAFETY: `prepare` never returns a kernel.
unsafe impl Supports<SuffixLookup> for Wgpu {
    unsafe fn prepare(&self, _: &Plan) -> Result<Box<dyn Kernel<SuffixLookup>>> {
        Err(Error::not_implemented(self.info().device, "suffix_lookup"))
    }
}
