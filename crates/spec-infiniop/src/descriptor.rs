//! Handles and descriptors of tensors.

use spec::{DType, Handle, Status, TensorDesc};

use crate::{Code, destroy, guard, put, runtime};

/// `struct InfiniopHandle`: a handle of the device that was current when the handle was made.
#[repr(C)]
#[derive(Debug)]
pub struct InfiniopHandle {
    device: i32,
    device_id: i32,
    open: Handle,
}

impl InfiniopHandle {
    pub(crate) fn open(&self) -> &Handle {
        &self.open
    }

    pub(crate) fn device(&self) -> (i32, i32) {
        (self.device, self.device_id)
    }
}

/// `struct InfiniopTensorDescriptor`.
#[derive(Debug)]
pub struct InfiniopTensorDescriptor(TensorDesc);

impl InfiniopTensorDescriptor {
    pub(crate) fn desc(&self) -> TensorDesc {
        self.0
    }
}

/// The first `count` numbers of a caller's array.
///
/// # Safety
/// `first` is null or points to `count` numbers that are valid for reading during `'a`.
unsafe fn numbers<'a, T>(first: *const T, count: usize) -> Result<&'a [T], Status> {
    if first.is_null() {
        return Err(Status::NullPointer);
    }
    // SAFETY: `first` is not null, so the caller promises `count` readable numbers.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// The dtype with this number in `infiniDtype_t`.
fn dtype(number: i32) -> Option<DType> {
    Some(match number {
        1 | 7 => DType::U8,
        2 => DType::Bool,
        3 => DType::I8,
        5 => DType::I32,
        6 => DType::I64,
        9 => DType::U32,
        10 => DType::U64,
        12 => DType::F16,
        13 => DType::F32,
        19 => DType::BF16,
        _ => return None,
    })
}

/// Makes a handle of the thread's current device.
///
/// # Safety
/// `handle` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateHandle(handle: *mut *mut InfiniopHandle) -> Code {
    guard(|| {
        let (device, device_id) = runtime::current();
        let open = runtime::name(device, device_id)?.parse::<Handle>();
        let open = open.map_err(|error| error.status())?;
        let made = Box::new(InfiniopHandle { device, device_id, open });
        // SAFETY: the caller promises that `handle` is null or valid for writing.
        unsafe { put(handle, Box::into_raw(made)) }
    })
}

/// Destroys a handle.
///
/// # Safety
/// `handle` is null or from `infiniopCreateHandle`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyHandle(handle: *mut InfiniopHandle) -> Code {
    // SAFETY: the caller promises null or a handle that nobody uses any more.
    unsafe { destroy(handle) }
}

/// Makes a descriptor of a tensor with 1 to 4 dimensions.
///
/// # Safety
/// `shape` and `strides` are null or have `ndim` numbers; `desc` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateTensorDescriptor(
    desc: *mut *mut InfiniopTensorDescriptor,
    ndim: usize,
    shape: *const usize,
    strides: *const isize,
    dtype_number: i32,
) -> Code {
    guard(|| {
        let dtype = dtype(dtype_number).ok_or(Status::BadTensorDtype)?;
        if !(1..=4).contains(&ndim) {
            return Err(Status::BadTensorShape);
        }
        // SAFETY: each is null or has `ndim` numbers, by this function's contract.
        let (shape, strides) = unsafe { (numbers(shape, ndim)?, numbers(strides, ndim)?) };
        let desc_of = TensorDesc::from_parts(dtype, shape, strides);
        let desc_of = desc_of.ok_or(Status::BadTensorShape)?;
        // SAFETY: the caller promises that `desc` is null or valid for writing.
        unsafe { put(desc, Box::into_raw(Box::new(InfiniopTensorDescriptor(desc_of)))) }
    })
}

/// Destroys a descriptor of a tensor.
///
/// # Safety
/// `desc` is null or from `infiniopCreateTensorDescriptor`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyTensorDescriptor(
    desc: *mut InfiniopTensorDescriptor,
) -> Code {
    // SAFETY: the caller promises null or a descriptor that nobody uses any more.
    unsafe { destroy(desc) }
}
