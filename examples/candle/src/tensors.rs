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
use spec::{Address, Descriptor, Handle, InOrder, Operator, Portable, Role, Stream, TensorDesc};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// An error of an operator.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// No operator takes such a tensor.
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

/// The device and the stream of a call: the device of the tensors, and candle's stream there.
pub struct Queue {
    device: Device,
    handle: Handle,
}

impl Queue {
    /// The queue of a tensor. Each device is opened only once.
    ///
    /// # Errors
    /// If no backend of this build has the tensor's device.
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

    /// Holds a tensor to read.
    ///
    /// # Errors
    /// If the tensor is on another device, has a rank or an element type that no operator takes.
    pub fn read<'t>(&self, tensor: &'t Tensor) -> Result<Held<'t>> {
        if !tensor.device().same_device(&self.device) {
            return Err(Error::Tensor("another device than the first".to_owned()));
        }
        let (storage, layout) = tensor.storage_and_layout();
        let dtype = element(tensor.dtype())?;
        let strides: Vec<isize> = layout.stride().iter().map(|&stride| stride as isize).collect();
        let desc = TensorDesc::from_parts(dtype, layout.dims(), &strides)
            .ok_or_else(|| Error::Tensor(format!("rank {}", layout.dims().len())))?;
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

    /// Memory for a result, filled with zeros.
    ///
    /// # Errors
    /// If there is not enough memory; if no operator takes the element type.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Made> {
        let desc = TensorDesc::from_shape(element(dtype)?, shape);
        let desc = desc.ok_or_else(|| Error::Tensor(format!("rank {}", shape.len())))?;
        // CUDA cannot allocate 0 bytes.
        let len = desc.span().max(1).into();
        let storage = match &self.device {
            Device::Cpu => Storage::Cpu(CpuDevice.zeros_impl(&len, dtype)?),
            Device::Cuda(device) => Storage::Cuda(device.zeros_impl(&len, dtype)?),
            Device::Metal(device) => Storage::Metal(device.zeros_impl(&len, dtype)?),
        };
        Ok(Made { storage, desc })
    }

    /// Uploads numbers of the caller that are in no tensor, such as parameters of a request.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn upload<T: WithDType>(&self, values: &[T]) -> Result<Made> {
        let desc = TensorDesc::new(element(T::DTYPE)?, [values.len()]);
        if values.is_empty() {
            return self.zeros(T::DTYPE, &[0]);
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
        let mut made = self.zeros(tensor.dtype(), tensor.dims())?;
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

    /// Uploads numbers of 64 bits without a sign, which candle lacks: i64 have the same bits.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn upload_u64(&self, values: &[u64]) -> Result<Made> {
        let bits: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        let mut made = self.upload(&bits)?;
        made.desc = TensorDesc::new(spec::DType::U64, [values.len()]);
        Ok(made)
    }

    /// Calls an operator with arguments by name, and returns the outputs and the changed arguments
    /// that `results` names. An output that is not given is made here, in the shape that follows
    /// from the other arguments, and of the element type that `results` has. An output of u64, which
    /// candle lacks, is an i64 with the same bits.
    ///
    /// # Errors
    /// As the operator's; if there is not enough memory.
    pub fn call<'t, O: Portable, const N: usize>(
        &self,
        operator: &O,
        given: impl IntoIterator<Item = (&'static str, Argument<'t>)>,
        results: [(&'static str, DType); N],
    ) -> Result<[Tensor; N]> {
        let tensors = self.call_for(operator, given, &results)?;
        Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("a tensor per result")))
    }

    /// As [`call`](Self::call), for a number of results that is only known when the program runs.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_for<'t, O: Portable>(
        &self,
        operator: &O,
        given: impl IntoIterator<Item = (&'static str, Argument<'t>)>,
        results: &[(&'static str, DType)],
    ) -> Result<Vec<Tensor>> {
        let place = |name: &str| {
            let found = O::ARGUMENTS.iter().position(|argument| argument.name == name);
            found.ok_or_else(|| Error::Tensor(format!("`{name}`, which is no argument")))
        };
        let mut arguments: Vec<Option<Argument<'t>>> = O::ARGUMENTS.iter().map(|_| None).collect();
        for (name, argument) in given {
            arguments[place(name)?] = Some(argument);
        }
        let descs: Vec<_> = arguments.iter().map(|a| a.as_ref().map(Argument::desc)).collect();
        let shapes = spec::sizes::outputs(operator, &descs, &[]);
        for (at, argument) in O::ARGUMENTS.iter().enumerate() {
            let asked = results.iter().find(|(name, _)| *name == argument.name);
            let is_made = asked.is_some() || !argument.optional;
            if argument.role != Role::Output || !is_made || arguments[at].is_some() {
                continue;
            }
            // Where an input has another rank, no shape follows, and the operator refuses the input.
            let desc = shapes[at].unwrap_or(TensorDesc::new(argument.dtypes[0], [0]));
            // candle has no u64, and an i64 has the same size.
            let usual = if desc.dtype() == spec::DType::I64 { DType::I64 } else { DType::I32 };
            let dtype = asked.map_or(usual, |(_, dtype)| *dtype);
            let mut made = self.zeros(dtype, desc.shape())?;
            if desc.dtype() == spec::DType::U64 {
                made.desc = desc;
            }
            arguments[at] = Some(made.into());
        }
        let descs: Vec<_> = arguments.iter().map(|a| a.as_ref().map(Argument::desc)).collect();
        let tensors = O::tensors_from(&mut InOrder::new(|at| descs[at]))?;
        let ready = self.handle.create(operator, &tensors)?;
        let addresses: Vec<_> =
            arguments.iter_mut().map(|a| a.as_mut().map(Argument::address)).collect();
        let addresses = O::addresses_from(&mut InOrder::new(|at| addresses[at]))?;
        // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
        unsafe { self.run(&ready, addresses)? };
        let tensor = |&(name, _): &(&'static str, DType)| match arguments[place(name)?].take() {
            Some(Argument::Made(made)) => Ok(made.tensor()),
            _ => Err(Error::Tensor(format!("`{name}`, which is no result"))),
        };
        results.iter().map(tensor).collect()
    }

    /// Enqueues an operator, with a workspace in candle's memory. On a GPU, only candle's later
    /// work in this stream waits for the operator.
    ///
    /// # Errors
    /// As [`Descriptor::call_at`].
    ///
    /// # Safety
    /// This queue created the operator. Each address is that of the [`Held`] or [`Made`] of this
    /// queue that described the argument, or of another one of the same size, which is alive until
    /// this function returns. No two written arguments have the same address.
    unsafe fn run<O: Operator>(
        &self,
        operator: &Descriptor<O>,
        addresses: O::Addresses,
    ) -> Result<()> {
        let mut workspace = self.zeros(DType::U8, &[operator.workspace_size()])?;
        let stream = match &self.device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let stream = device.cuda_stream().cu_stream().addr() as u64;
                // SAFETY: the stream is candle's own and alive; candle allocates, uses and frees
                // all these tensors in this stream.
                unsafe { Stream::from_raw(self.handle.device(), stream) }
            }
            _ => Stream::default(),
        };
        // SAFETY: the caller promised that the addresses are valid; candle frees memory in this
        // stream, so after the enqueued work.
        unsafe { operator.call_at(workspace.address(), addresses, stream)? };
        Ok(())
    }
}

/// A tensor that is read in place. Its storage is locked while it is held.
pub struct Held<'t> {
    storage: StorageRef<'t>,
    desc: TensorDesc,
    address: Address,
}

impl Held<'_> {
    /// The tensor's dtype, shape and strides; rows may have a stride.
    pub fn desc(&self) -> TensorDesc {
        self.desc
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        self.address
    }
}

#[cfg(feature = "cuda")]
impl Drop for Held<'_> {
    /// Records in cudarc's events that this stream used the tensor, so that other streams wait.
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
    /// The address of the first element.
    fn address(&mut self) -> Address {
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

    /// Makes a tensor, which takes over the memory.
    fn tensor(mut self) -> Tensor {
        // Asking for the address records in cudarc's events that this stream wrote the memory.
        self.address();
        Tensor::from_storage(self.storage, self.desc.shape(), BackpropOp::none(), false)
    }
}

/// An argument of a call.
pub enum Argument<'t> {
    /// A tensor that is read in place.
    Held(Held<'t>),
    /// Memory of the call.
    Made(Made),
}

impl Argument<'_> {
    fn desc(&self) -> TensorDesc {
        match self {
            Argument::Held(held) => held.desc,
            Argument::Made(made) => made.desc,
        }
    }

    fn address(&mut self) -> Address {
        match self {
            Argument::Held(held) => held.address,
            Argument::Made(made) => made.address(),
        }
    }
}

impl<'t> From<Held<'t>> for Argument<'t> {
    fn from(held: Held<'t>) -> Self {
        Argument::Held(held)
    }
}

impl From<Made> for Argument<'_> {
    fn from(made: Made) -> Self {
        Argument::Made(made)
    }
}

/// The operators' name of an element type.
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
