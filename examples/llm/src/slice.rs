//! candle's tensors as slices.

use anyhow::bail;
use candle_core::{Storage, Tensor};

use crate::Result;

/// Calls `then` with the elements of a packed f32 tensor, without a copy.
pub(crate) fn with_slice<T>(tensor: &Tensor, then: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        bail!("expected a packed tensor in the CPU's memory");
    };
    then(&storage.as_slice::<f32>()?[start..end])
}
