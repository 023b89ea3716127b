//! candle's tensors as the operators see them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    CudaStorageSlice,
    cudarc::driver::{DevicePtr, DevicePtrMut},
};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, DType, Device, DeviceLocation, Storage, StorageRef, Tensor, WithDType,
};
use spec::{Address, Descriptor, Handle, Operator, Portable, Stream, TensorDesc};

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

/// The same of a storage's elements, whatever their type.
macro_rules! each {
    ($storages:ident, $storage:expr, $all:ident => $value:expr) => {
        match $storage {
            $storages::U8($all) => $value,
            $storages::U32($all) => $value,
            $storages::I32($all) => $value,
            $storages::I64($all) => $value,
            $storages::BF16($all) => $value,
            $storages::F16($all) => $value,
            $storages::F32($all) => $value,
            _ => unreachable!("`element` knows no other"),
        }
    };
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Where a call runs: on the device of its tensors, in the stream that candle uses there.
pub struct Queue {
    device: Device,
    handle: Handle,
}

impl Queue {
    /// That of a tensor. A device is opened once.
    ///
    /// # Errors
    /// Where the tensor lies on a device that no backend of this build has.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        static OPEN: Mutex<BTreeMap<String, Handle>> = Mutex::new(BTreeMap::new());
        let name = match tensor.device().location() {
            DeviceLocation::Cpu => "cpu".to_owned(),
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Metal { .. } => {
                return Err(Error::Tensor("a device without an address".to_owned()));
            }
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match open.get(&name) {
            Some(handle) => handle.clone(),
            None => {
                let handle: Handle = name.parse()?;
                open.insert(name, handle.clone());
                handle
            }
        };
        Ok(Queue { device: tensor.device().clone(), handle })
    }

    /// A tensor to read.
    ///
    /// # Errors
    /// For one on another device, a rank other than 1 and 2, and an element type that no
    /// operator has.
    pub fn read<'t>(&self, tensor: &'t Tensor) -> Result<Held<'t>> {
        if !tensor.device().same_device(&self.device) {
            return Err(Error::Tensor("another device than the first".to_owned()));
        }
        let (storage, layout) = tensor.storage_and_layout();
        let dtype = element(tensor.dtype())?;
        let desc = match (layout.dims(), layout.stride()) {
            (&[len], &[stride]) => TensorDesc::with_strides(dtype, [len], [stride as isize]),
            (&[rows, cols], &[row, col]) => {
                TensorDesc::with_strides(dtype, [rows, cols], [row as isize, col as isize])
            }
            (dims, _) => return Err(Error::Tensor(format!("rank {}", dims.len()))),
        };
        let range = layout.start_offset()..layout.start_offset().saturating_add(desc.span());
        let address = match &*storage {
            Storage::Cpu(storage) => {
                each!(CpuStorage, storage, all => all.get(range).map(|all| all.as_ptr().into()))
            }
            #[cfg(feature = "cuda")]
            Storage::Cuda(storage) => {
                let stream = storage.device.cuda_stream();
                each!(CudaStorageSlice, &storage.slice, all => {
                    all.try_slice(range).map(|all| all.device_ptr(&stream).0.into())
                })
            }
            _ => None,
        };
        match address {
            Some(address) => Ok(Held { storage, desc, address }),
            None => Err(Error::Tensor("less memory than its shape".to_owned())),
        }
    }

    /// Memory for a result, zeros.
    ///
    /// # Errors
    /// Where there is not enough, and for an element type that no operator has.
    pub fn zeros<const R: usize>(&self, dtype: DType, shape: [usize; R]) -> Result<Made> {
        let desc = TensorDesc::new(element(dtype)?, shape);
        // CUDA has no memory of no bytes.
        let len = desc.span().max(1).into();
        let storage = match &self.device {
            Device::Cpu => Storage::Cpu(CpuDevice.zeros_impl(&len, dtype)?),
            Device::Cuda(device) => Storage::Cuda(device.zeros_impl(&len, dtype)?),
            Device::Metal(device) => Storage::Metal(device.zeros_impl(&len, dtype)?),
        };
        Ok(Made { storage, desc })
    }

    /// The caller's own numbers: parameters of a request, not tensors.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn upload<T: WithDType>(&self, values: &[T]) -> Result<Made> {
        let desc = TensorDesc::new(element(T::DTYPE)?, [values.len()]);
        if values.is_empty() {
            return self.zeros(T::DTYPE, [0]);
        }
        let storage = match &self.device {
            Device::Cpu => Storage::Cpu(CpuDevice.storage_from_slice(values)?),
            Device::Cuda(device) => Storage::Cuda(device.storage_from_slice(values)?),
            Device::Metal(device) => Storage::Metal(device.storage_from_slice(values)?),
        };
        Ok(Made { storage, desc })
    }

    /// A packed copy of a tensor, for an operator that changes it in place.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`zeros`](Self::zeros).
    pub fn copy(&self, tensor: &Tensor) -> Result<Made> {
        let held = self.read(tensor)?;
        let mut made = match *tensor.dims() {
            [len] => self.zeros(tensor.dtype(), [len])?,
            _ => self.zeros(tensor.dtype(), tensor.dims2()?.into())?,
        };
        match (&*held.storage, &mut made.storage) {
            (Storage::Cpu(from), Storage::Cpu(to)) => {
                from.copy_strided_src(to, 0, tensor.layout())?;
            }
            (Storage::Cuda(from), Storage::Cuda(to)) => {
                from.copy_strided_src(to, 0, tensor.layout())?;
            }
            _ => unreachable!("both are of this device"),
        }
        Ok(made)
    }

    /// An operator, ready on this device.
    ///
    /// # Errors
    /// As [`Handle::create`].
    pub fn create<O: Portable>(&self, operator: &O, tensors: &O::Tensors) -> Result<Descriptor<O>> {
        Ok(self.handle.create(operator, tensors)?)
    }

    /// Enqueues an operator, in a workspace of candle's. On a GPU nothing waits for it but
    /// what candle does next in this stream.
    ///
    /// # Errors
    /// As [`Descriptor::call_at`].
    ///
    /// # Safety
    /// The operator was created here, and each address is that of the [`Held`] or [`Made`] of
    /// this queue which described it, alive until this returns, or of one as long; no two that
    /// are written are the same.
    pub unsafe fn run<O: Operator>(
        &self,
        operator: &Descriptor<O>,
        addresses: O::Addresses,
    ) -> Result<()> {
        let mut workspace = self.zeros(DType::U8, [operator.workspace_size()])?;
        let stream = match &self.device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let stream = device.cuda_stream().cu_stream().addr() as u64;
                // SAFETY: candle's own, in which it allocates, uses and frees all of this.
                unsafe { Stream::from_raw(self.handle.device(), stream) }
            }
            _ => Stream::default(),
        };
        // SAFETY: the caller's; what candle frees later, it frees in this stream.
        unsafe { operator.call_at(workspace.address(), addresses, stream)? };
        Ok(())
    }
}

/// A tensor that is read where it lies, locked meanwhile.
pub struct Held<'t> {
    storage: StorageRef<'t>,
    desc: TensorDesc,
    address: Address,
}

impl Held<'_> {
    /// Its type, shape and strides: rows may lie apart.
    pub fn desc(&self) -> TensorDesc {
        self.desc
    }

    /// Where it starts.
    pub fn address(&self) -> Address {
        self.address
    }
}

#[cfg(feature = "cuda")]
impl Drop for Held<'_> {
    /// Tells cudarc's events, which order other streams, what was enqueued meanwhile.
    fn drop(&mut self) {
        if let Storage::Cuda(storage) = &*self.storage {
            let stream = storage.device.cuda_stream();
            each!(CudaStorageSlice, &storage.slice, all => drop(all.device_ptr(&stream)));
        }
    }
}

/// Memory for a result.
pub struct Made {
    storage: Storage,
    desc: TensorDesc,
}

impl Made {
    /// Its type and shape, packed.
    pub fn desc(&self) -> TensorDesc {
        self.desc
    }

    /// Where it starts.
    pub fn address(&mut self) -> Address {
        match &mut self.storage {
            Storage::Cpu(storage) => each!(CpuStorage, storage, all => all.as_mut_ptr().into()),
            #[cfg(feature = "cuda")]
            Storage::Cuda(storage) => {
                let stream = storage.device.cuda_stream();
                each!(CudaStorageSlice, &mut storage.slice, all => {
                    all.device_ptr_mut(&stream).0.into()
                })
            }
            _ => unreachable!("`Queue::of` opened no other device"),
        }
    }

    /// A tensor of it, which takes the memory over.
    pub fn tensor(mut self) -> Tensor {
        // For cudarc's events, as where one was held.
        self.address();
        Tensor::from_storage(self.storage, self.desc.shape(), BackpropOp::none(), false)
    }
}

/// An element type as the operators call it.
fn element(dtype: DType) -> Result<spec::DType> {
    Ok(match dtype {
        DType::U8 => spec::DType::U8,
        DType::U32 => spec::DType::U32,
        DType::I32 => spec::DType::I32,
        DType::I64 => spec::DType::I64,
        DType::BF16 => spec::DType::BF16,
        DType::F16 => spec::DType::F16,
        DType::F32 => spec::DType::F32,
        _ => return Err(Error::Tensor("a type that no operator takes".to_owned())),
    })
}
