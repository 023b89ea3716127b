//! The parts of DLPack's structs that this package reads: an array's device, dtype and shape.
//!
//! The structs follow `dlpack.h` 1.3. Arrays are only borrowed for the call that they are
//! passed to, so this package never takes over an array and never calls a deleter.

use std::ffi::{CStr, c_int, c_void};

use pyo3::prelude::*;
use pyo3::{PyErr, ffi};
use spec::{DType, Device, TensorDesc};

/// Host memory.
pub const CPU: i32 = 1;
/// Memory of a CUDA device.
pub const CUDA: i32 = 2;
/// Host memory that CUDA devices can read.
const CUDA_HOST: i32 = 3;
/// Memory that the driver moves between host and device.
const CUDA_MANAGED: i32 = 13;

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataType {
    /// The kind of number.
    pub code: u8,
    /// The number of bits.
    pub bits: u8,
    /// How many numbers form one element.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`. The older `DLManagedTensor` begins with its `DLTensor`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *const c_void,
    flags: u64,
    tensor: Tensor,
}

/// The bit of `flags` that says that a tensor must not be written.
const READ_ONLY: u64 = 1;

/// `DLPackExchangeAPI`: functions of an array library that do not go through Python.
#[repr(C)]
#[derive(Debug)]
pub struct ExchangeApi {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: the table is constant, and its functions may be called from any thread that is
// attached to Python.
unsafe impl Send for ExchangeApi {}
// SAFETY: as above.
unsafe impl Sync for ExchangeApi {}

/// An array as an operator's argument: a description, an address, a device.
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// Element type, shape and strides.
    pub desc: TensorDesc,
    /// The address of the first element.
    pub address: u64,
    /// The device of this memory.
    pub device: Device,
    /// Whether the array must not be written.
    pub read_only: bool,
}

/// The largest number of dimensions of a descriptor.
const MAX_DIMENSIONS: usize = 4;

/// Why an object is no array that an operator can take.
#[derive(Debug)]
pub enum Refused {
    /// An exception of Python.
    Python(PyErr),
    /// The object is no array; the text says what it is.
    NoArray(String),
    /// The memory does not hold the array's values.
    Deferred {
        /// A text that says what is wrong with the array.
        what: String,
        /// What to pass instead.
        pass: String,
    },
    /// An element type that no operator knows.
    Type(String),
    /// A shape or strides that no descriptor holds.
    Shape(String),
    /// Memory of a device for which there is no backend.
    Place(String),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Self {
        Refused::Python(error)
    }
}

impl ExchangeApi {
    /// The functions for an array's type, if its library has them.
    pub fn of(kind: &Bound<'_, PyAny>) -> Option<&'static Self> {
        let capsule = kind.getattr("__dlpack_c_exchange_api__").ok()?;
        let table = named(&capsule, c"dlpack_exchange_api")?.cast::<Self>();
        // SAFETY: by DLPack's rules, a capsule of this name holds such a table, which lives as
        // long as the process; the first fields exist in every version.
        let api = unsafe { &*table };
        let whole = api.major == 1;
        (whole && api.tensor_from_object.is_some() && api.current_stream.is_some()).then_some(api)
    }

    /// Reads an array of this library without ordering it after other work.
    pub fn read(&self, array: &Bound<'_, PyAny>) -> Result<Array, Refused> {
        let read = self.tensor_from_object.ok_or_else(|| no_array(array))?;
        let mut tensor = std::mem::MaybeUninit::<Tensor>::uninit();
        // SAFETY: the table belongs to the array's type, and `tensor` has room for a
        // `DLTensor`.
        if unsafe { read(array.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            return Err(PyErr::fetch(array.py()).into());
        }
        // SAFETY: the call succeeded, so `tensor` was written; its pointers are valid until
        // control returns to Python.
        unsafe { tensor.assume_init().describe(None, false) }
    }

    /// The current stream of this library on a CUDA device.
    pub fn stream(&self, py: Python<'_>, device: usize) -> PyResult<u64> {
        let mut stream = std::ptr::null_mut();
        let device = i32::try_from(device)?;
        // SAFETY: `stream` has room for a handle.
        let asked = self.current_stream.map(|ask| unsafe { ask(CUDA, device, &mut stream) });
        if asked == Some(0) { Ok(stream.addr() as u64) } else { Err(PyErr::fetch(py)) }
    }
}

/// The array that a DLPack capsule describes; with `of`, the same bits as elements of this type.
/// The capsule keeps its ownership, and must outlive the use of the array.
pub fn from_capsule(capsule: &Bound<'_, PyAny>, of: Option<DType>) -> Result<Array, Refused> {
    if let Some(tensor) = named(capsule, c"dltensor") {
        // SAFETY: a capsule of this name holds a `DLManagedTensor`, which begins with a `DLTensor`.
        return unsafe { (*tensor.cast::<Tensor>()).describe(of, false) };
    }
    let Some(tensor) = named(capsule, c"dltensor_versioned") else {
        return Err(Refused::NoArray("a DLPack capsule that was used before".to_owned()));
    };
    let tensor = tensor.cast::<Versioned>();
    // SAFETY: a capsule of this name holds a `DLManagedTensorVersioned`, which begins with the
    // version.
    let major = unsafe { (*tensor).major };
    if major != 1 {
        return Err(Refused::NoArray(format!("an array by version {major} of DLPack")));
    }
    // SAFETY: a struct of this version has all fields of `Versioned`.
    unsafe { (*tensor).tensor.describe(of, (*tensor).flags & READ_ONLY != 0) }
}

/// The pointer in a capsule, if the capsule has this name.
fn named(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<*const c_void> {
    // SAFETY: `PyCapsule_IsValid` accepts any object; the pointer is read only from a capsule
    // that is valid.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
            return None;
        }
        Some(ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()).cast_const())
    }
}

/// The refusal of an object that is no array.
pub fn no_array(object: &Bound<'_, PyAny>) -> Refused {
    Refused::NoArray(format!("a {}", object.get_type()))
}

impl Tensor {
    /// # Safety
    /// `shape` and `strides` are null or point to `ndim` numbers.
    unsafe fn describe(&self, of: Option<DType>, read_only: bool) -> Result<Array, Refused> {
        let rank = usize::try_from(self.ndim).unwrap_or(0);
        // SAFETY: the caller promised that both pointers are null or point to `ndim` numbers.
        let numbers = |at: *const i64| unsafe {
            if at.is_null() || rank == 0 { &[] } else { std::slice::from_raw_parts(at, rank) }
        };
        let (shape, strides) = (numbers(self.shape), numbers(self.strides));
        let device = device(self.device_type, self.device_id)?;
        let same_size = |of: &DType| of.size() * 8 == usize::from(self.dtype.bits);
        let dtype = of.filter(same_size).map_or_else(|| element(self.dtype), Ok)?;
        let desc = describe(dtype, shape, strides)?;
        // Libraries pass a null pointer for an empty array, whose address is not used.
        let address = (self.data.addr() as u64).wrapping_add(self.byte_offset);
        let address = if self.data.is_null() { 0 } else { address };
        // The operators on the CPU turn the address into a pointer again.
        self.data.expose_provenance();
        Ok(Array { desc, address, device, read_only })
    }
}

/// The device for DLPack's numbers of kind and index.
pub fn device(kind: i32, index: i32) -> Result<Device, Refused> {
    match (kind, usize::try_from(index)) {
        (CPU | CUDA_HOST, _) => Ok(Device::CPU),
        (CUDA | CUDA_MANAGED, Ok(index)) => Ok(Device::new("cuda", index)),
        _ => Err(Refused::Place(format!("memory of a device of DLPack's kind {kind}"))),
    }
}

/// DLPack's numbers of kind and index for a device that Python arrays can be on.
pub fn numbers(device: Device) -> (i32, i32) {
    let kind = if device == Device::CPU { CPU } else { CUDA };
    (kind, i32::try_from(device.index()).unwrap_or(0))
}

fn element(dtype: DataType) -> Result<DType, Refused> {
    let DataType { code, bits, lanes } = dtype;
    Ok(match (code, bits, lanes) {
        (0, 8, 1) => DType::I8,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1, 8, 1) => DType::U8,
        (1, 32, 1) => DType::U32,
        (1, 64, 1) => DType::U64,
        (2, 16, 1) => DType::F16,
        (2, 32, 1) => DType::F32,
        (4, 16, 1) => DType::BF16,
        (6, 8, 1) => DType::Bool,
        _ => {
            let kind = match code {
                0 => "i",
                1 => "u",
                2 => "f",
                4 => "bf",
                5 => "complex",
                _ => return Err(Refused::Type(format!("of DLPack's type {code}, {bits} bits"))),
            };
            let lanes = if lanes == 1 { String::new() } else { format!(" x {lanes}") };
            return Err(Refused::Type(format!("{kind}{bits}{lanes}")));
        }
    })
}

/// A descriptor with a shape, and with strides unless the array is packed.
///
/// Dimensions with at most one element, and all dimensions of an empty array, get the stride 1:
/// libraries disagree on these strides, and calls with equal shapes must have equal descriptors.
pub fn describe(dtype: DType, shape: &[i64], strides: &[i64]) -> Result<TensorDesc, Refused> {
    let mut extents = [0; MAX_DIMENSIONS];
    let mut steps = [1; MAX_DIMENSIONS];
    let rank = shape.len();
    let too_many = || Refused::Shape(format!("of {rank} dimensions"));
    if rank > extents.len() {
        return Err(too_many());
    }
    let empty = shape.contains(&0);
    let mut packed: i64 = 1;
    for i in (0..shape.len()).rev() {
        let bad = |_| Refused::Shape(format!("of shape {shape:?}"));
        extents[i] = usize::try_from(shape[i]).map_err(bad)?;
        let step = strides.get(i).copied().unwrap_or(packed);
        if !empty && shape[i] > 1 {
            steps[i] = isize::try_from(step).map_err(bad)?;
        }
        packed = packed.saturating_mul(shape[i].max(1));
    }
    TensorDesc::from_parts(dtype, &extents[..rank], &steps[..rank]).ok_or_else(too_many)
}
