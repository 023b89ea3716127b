//! candle's tensors as the operators see them.

use candle_core::{CpuStorage, Device, Layout, Storage, StorageRef, Tensor, WithDType};
use spec::{DType, Element, TensorDesc, View, ViewMut};

/// What goes wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// In candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// In an operator.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// The tensor is none that an operator takes.
    #[error("a tensor of {0}")]
    Tensor(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A tensor that is read where it lies.
pub struct Held<'t> {
    storage: StorageRef<'t>,
    layout: &'t Layout,
}

impl<'t> Held<'t> {
    /// Locks the tensor for reading.
    ///
    /// # Errors
    /// Where it does not lie in the CPU's memory.
    pub fn new(tensor: &'t Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        if !matches!(*storage, Storage::Cpu(_)) {
            return Err(Error::Tensor("another device than the CPU".to_owned()));
        }
        Ok(Held { storage, layout })
    }

    /// Its type, shape and strides: rows may lie apart.
    ///
    /// # Errors
    /// For a rank other than 1 and 2, and an element type that no operator has.
    pub fn desc(&self) -> Result<TensorDesc> {
        let dtype = self.view_of(0, 0)?.dtype();
        let strides = self.layout.stride();
        match *self.layout.dims() {
            [len] => Ok(TensorDesc::with_strides(dtype, [len], [strides[0] as isize])),
            [rows, cols] => {
                let strides = [strides[0] as isize, strides[1] as isize];
                Ok(TensorDesc::with_strides(dtype, [rows, cols], strides))
            }
            _ => Err(Error::Tensor(format!("rank {}", self.layout.dims().len()))),
        }
    }

    /// Its elements, for an operator.
    ///
    /// # Errors
    /// As [`desc`](Self::desc).
    pub fn view(&self) -> Result<View<'_>> {
        self.view_of(self.layout.start_offset(), self.desc()?.span())
    }

    fn view_of(&self, start: usize, len: usize) -> Result<View<'_>> {
        let Storage::Cpu(storage) = &*self.storage else {
            unreachable!("checked when it was locked");
        };
        Ok(match storage {
            CpuStorage::U8(all) => all[start..start + len].into(),
            CpuStorage::U32(all) => all[start..start + len].into(),
            CpuStorage::I32(all) => all[start..start + len].into(),
            CpuStorage::I64(all) => all[start..start + len].into(),
            CpuStorage::BF16(all) => all[start..start + len].into(),
            CpuStorage::F16(all) => all[start..start + len].into(),
            CpuStorage::F32(all) => all[start..start + len].into(),
            _ => return Err(Error::Tensor("a type that no operator takes".to_owned())),
        })
    }
}

/// Memory for a result.
pub struct Made<T>(Vec<T>);

impl<T: Element + WithDType> Made<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        Made(vec![T::default(); len])
    }

    /// For an operator to write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.0.as_mut_slice().into()
    }

    /// Packed, of its type.
    pub fn desc<const R: usize>(&self, shape: [usize; R]) -> TensorDesc {
        TensorDesc::new(<T as Element>::DTYPE, shape)
    }

    /// A tensor of it, which takes the memory over.
    ///
    /// # Errors
    /// Where the shape has another number of elements.
    pub fn tensor<const R: usize>(self, shape: [usize; R]) -> Result<Tensor> {
        Ok(Tensor::from_vec(self.0, &shape[..], &Device::Cpu)?)
    }
}

impl<T: Element + WithDType> Made<T> {
    /// A copy of a tensor, for an operator that changes it in place.
    ///
    /// # Errors
    /// Where its elements are of another type.
    pub fn copy(tensor: &Tensor) -> Result<Self> {
        Ok(Made(tensor.flatten_all()?.to_vec1()?))
    }
}

/// A vector of a type.
pub(crate) fn vector(dtype: DType, len: usize) -> TensorDesc {
    TensorDesc::new(dtype, [len])
}
