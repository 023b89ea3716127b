//! The golden vectors of the operators, run through the functions that C calls.
//!
//! A backend without a device is left out, unless `SPEC_REQUIRE` lists it: then it is a failure.

use std::ffi::{CString, c_void};

use spec::ops::DeduplicateTopk;
use spec::{DType, Handle, Portable, Signature};
use spec_conformance::golden::{Vector, vectors};
use spec_conformance::{Argument, Data, Golden, Held, Layout, Subject, Tensor};

use crate::structs::Layout as Fields;
use crate::*;

/// The create and calculate functions of an operator.
type Functions = (
    unsafe extern "C" fn(
        *const spec_handle,
        *const spec_struct,
        *const spec_struct,
        *mut *mut spec_descriptor,
    ) -> spec_status,
    unsafe extern "C" fn(
        *const spec_descriptor,
        *mut c_void,
        usize,
        *const spec_struct,
        *mut c_void,
    ) -> spec_status,
);

/// A struct of C: its size, then its fields, of which the struct's size covers the used ones.
#[repr(C)]
struct Struct<T> {
    size: usize,
    fields: [T; MAX_FIELDS],
}

/// At least as many fields as any operator's structs have; `Struct::new` asserts it.
const MAX_FIELDS: usize = 32;

impl<T: Copy> Struct<T> {
    fn new(used: usize, absent: T) -> Self {
        assert!(used <= MAX_FIELDS, "an operator has {used} fields, this struct {MAX_FIELDS}");
        Struct { size: size_of::<usize>() + used * size_of::<T>(), fields: [absent; MAX_FIELDS] }
    }

    fn at(&self) -> *const spec_struct {
        (&raw const *self).cast()
    }
}

/// The parameters of an operator as C has them.
fn params_of<O: Signature>(operator: &O) -> Struct<u64> {
    let fields = Fields::of::<O>().params(operator).unwrap();
    let mut made = Struct::new(fields.len(), 0);
    made.fields[..fields.len()].copy_from_slice(&fields);
    made
}

fn last() -> String {
    let mut bytes = vec![0u8; 4096];
    // SAFETY: `bytes` has as many bytes as the call is told.
    let needed = unsafe { spec_last_error(bytes.as_mut_ptr().cast(), bytes.len()) };
    String::from_utf8(bytes[..needed - 1].to_vec()).unwrap()
}

#[track_caller]
fn ok(status: spec_status) {
    assert_eq!(status, spec_status::SPEC_STATUS_SUCCESS, "{}", last());
}

/// Memory that the library allocated, and the pointer that stands for it in a struct of buffers.
struct Uploaded {
    memory: *mut spec_memory,
    pointer: *mut c_void,
}

impl Uploaded {
    fn new(handle: *const spec_handle, bytes: &[u8]) -> Self {
        let (mut memory, mut pointer) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the handle is open, and `bytes` has as many bytes as the calls are told.
        unsafe {
            ok(spec_allocate(handle, bytes.len(), &mut memory));
            ok(spec_write(memory, 0, bytes.as_ptr().cast(), bytes.len()));
            match spec_memory_address(memory, &mut pointer) {
                spec_status::SPEC_STATUS_NOT_IMPLEMENTED => pointer = memory.cast(),
                status => ok(status),
            }
        }
        Uploaded { memory, pointer }
    }

    /// The memory's content, as elements of the type of `like`.
    fn read(&self, like: &Data) -> Data {
        let mut bytes = vec![0u8; like.bytes().len()];
        // SAFETY: `bytes` has as many bytes as the call is told.
        ok(unsafe { spec_read(self.memory, 0, bytes.as_mut_ptr().cast(), bytes.len()) });
        let cpu = Handle::cpu().unwrap();
        Held::upload(&cpu, like.dtype(), &bytes).unwrap().read(like).unwrap()
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        // SAFETY: the memory is from `spec_allocate`, nobody else has it, and `spec_synchronize`
        // has waited for the work that used it.
        ok(unsafe { spec_free(self.memory) });
    }
}

fn number(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => SPEC_DTYPE_BOOL,
        DType::I8 => SPEC_DTYPE_I8,
        DType::I32 => SPEC_DTYPE_I32,
        DType::I64 => SPEC_DTYPE_I64,
        DType::U8 => SPEC_DTYPE_U8,
        DType::U32 => SPEC_DTYPE_U32,
        DType::U64 => SPEC_DTYPE_U64,
        DType::F16 => SPEC_DTYPE_F16,
        DType::F32 => SPEC_DTYPE_F32,
        DType::BF16 => SPEC_DTYPE_BF16,
        other => panic!("C has no {other}"),
    }
}

fn described(tensor: &Tensor) -> spec_tensor {
    let desc = tensor.desc(Layout::PACKED);
    let mut described = spec_tensor {
        dtype: number(desc.dtype()),
        rank: desc.shape().len() as u32,
        ..Default::default()
    };
    for (at, (&extent, &stride)) in desc.shape().iter().zip(desc.strides()).enumerate() {
        (described.shape[at], described.strides[at]) = (extent as i64, stride as i64);
    }
    described
}

/// Runs a case and returns its arguments with their contents after the call.
fn call<O: Portable + Subject>(
    handle: *const spec_handle,
    (create, calculate): Functions,
    vector: &Vector<O>,
) -> Vec<Argument> {
    let case = &vector.case;
    let layout = Fields::of::<O>();
    let field = |name| {
        layout.field(O::ARGUMENTS.iter().position(|argument| argument.name == name).unwrap())
    };
    let mut tensors = Struct::new(O::ARGUMENTS.len(), spec_tensor::default());
    let mut buffers = Struct::new(O::ARGUMENTS.len(), std::ptr::null_mut::<c_void>());
    let mut held = Vec::new();
    for Argument { name, tensor, .. } in &case.arguments {
        let uploaded = Uploaded::new(handle, tensor.data.bytes());
        tensors.fields[field(*name)] = described(tensor);
        buffers.fields[field(*name)] = uploaded.pointer;
        held.push(uploaded);
    }
    let params = params_of(&case.operator);
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    let mut stream = std::ptr::null_mut();
    // SAFETY: the handle is open, the structs are as large as their sizes say, and everything that
    // they point to lives until `spec_synchronize` returns.
    unsafe {
        ok(create(handle, params.at(), tensors.at(), &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let workspace = Uploaded::new(handle, &vec![0xA5; bytes]);
        ok(spec_handle_stream(handle, &mut stream));
        ok(calculate(descriptor, workspace.pointer, bytes, buffers.at(), stream));
        ok(spec_synchronize(handle));
        ok(spec_destroy(descriptor));
    }
    let read = |(argument, held): (&Argument, &Uploaded)| {
        let Tensor { data, shape } = &argument.tensor;
        let tensor = Tensor { data: held.read(data), shape: shape.clone() };
        Argument { tensor, ..argument.clone() }
    };
    let mut results: Vec<_> = case.arguments.iter().zip(&held).map(read).collect();
    O::trim(&mut results);
    results
}

fn check<O: Portable + Subject>(handle: *const spec_handle, functions: Functions) {
    let vectors = vectors::<O>(&Golden::from_env()).unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let results = call(handle, functions, &vector);
        if let Some(failure) = vector.difference(&results) {
            panic!("{}: {}: {failure}", O::NAME, vector.name);
        }
    }
}

/// A handle of a device; `None` if there is no such device, which is a failure if `SPEC_REQUIRE`
/// lists it.
fn open(device: &str) -> Option<*mut spec_handle> {
    let (name, mut handle) = (CString::new(device).unwrap(), std::ptr::null_mut());
    // SAFETY: `name` ends with a zero, and `handle` is valid for writing.
    if unsafe { spec_open(name.as_ptr(), &mut handle) } != spec_status::SPEC_STATUS_SUCCESS {
        let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == device), "{}", last());
        println!("{device} is left out: {}", last());
        return None;
    }
    Some(handle)
}

fn golden_vectors_on(device: &str) {
    let Some(handle) = open(device) else { return };
    macro_rules! check_each {
        ($($module:ident: $operator:ident,)+) => {$(
            let functions = (operators::$module::create as _, operators::$module::calculate as _);
            check::<spec::ops::$operator>(handle, functions);
        )+};
    }
    spec::for_each_operator!(check_each);
    // SAFETY: the handle is open, and no other thread uses it.
    ok(unsafe { spec_close(handle) });
}

#[test]
fn golden_vectors_on_the_cpu() {
    golden_vectors_on("cpu");
}

#[test]
fn golden_vectors_on_wgpu() {
    golden_vectors_on("wgpu");
}

#[test]
fn golden_vectors_on_cuda() {
    golden_vectors_on("cuda");
}

/// The parameters and tensors of a `deduplicate_topk` of one request's two rows of four: 8 numbers
/// each of `indices` and `unique`.
fn two_rows_of_four() -> (Struct<u64>, Struct<spec_tensor>) {
    let tensor = |rows, cols| spec_tensor {
        dtype: SPEC_DTYPE_I32,
        rank: 2,
        shape: [rows, cols, 0, 0],
        strides: [0; 4],
    };
    let params = params_of(&DeduplicateTopk::new().mtp_step(2));
    let mut tensors = Struct::new(3, spec_tensor::default());
    tensors.fields[..2].copy_from_slice(&[tensor(2, 4), tensor(1, 8)]);
    (params, tensors)
}

/// On wgpu, where buffers are `spec_memory` objects, the call refuses pointers to anything else,
/// objects that are too small, and outputs that are given twice.
#[test]
fn wrong_memory_on_wgpu() {
    let Some(handle) = open("wgpu") else { return };
    let (params, tensors) = two_rows_of_four();
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    let [small, full, other] = [16, 32, 32].map(|bytes| Uploaded::new(handle, &vec![0; bytes]));
    let mut zeros = [0u64; 32];
    // SAFETY: every buffer is a `spec_memory`, or null, or 256 zero bytes, which the call
    // refuses because they lack an object's mark.
    unsafe {
        ok(operators::deduplicate_topk::create(handle, params.at(), tensors.at(), &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let workspace = Uploaded::new(handle, &vec![0; bytes]);
        let none = std::ptr::null_mut();
        let call = |indices: *mut c_void, unique, stream| {
            let mut buffers = Struct::new(3, none);
            buffers.fields[..2].copy_from_slice(&[indices, unique]);
            let at = workspace.pointer;
            operators::deduplicate_topk::calculate(descriptor, at, bytes, buffers.at(), stream)
        };
        let refused = |status: spec_status, wanted: spec_status, words: &str| {
            assert_eq!(status, wanted, "{}", last());
            assert!(last().contains(words), "{}", last());
        };
        use spec_status::*;
        ok(call(full.pointer, other.pointer, none));
        refused(
            call(small.pointer, other.pointer, none),
            SPEC_STATUS_BAD_TENSOR_SHAPE,
            "`indices`",
        );
        refused(call(full.pointer, small.pointer, none), SPEC_STATUS_BAD_TENSOR_SHAPE, "`unique`");
        refused(call(full.pointer, full.pointer, none), SPEC_STATUS_BAD_PARAM, "given twice");
        refused(call(none, other.pointer, none), SPEC_STATUS_NULL_POINTER, "`indices`");
        let object = zeros.as_mut_ptr().cast();
        refused(call(object, other.pointer, none), SPEC_STATUS_BAD_PARAM, "memory");
        let stream = full.pointer;
        let streamed = call(full.pointer, other.pointer, stream);
        refused(streamed, SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "stream");
        let mut address = none;
        let asked = spec_memory_address(full.memory, &mut address);
        refused(asked, SPEC_STATUS_NOT_IMPLEMENTED, "without an address");
        ok(spec_synchronize(handle));
        ok(spec_destroy(descriptor));
        drop(workspace);
        drop([small, full, other]);
        ok(spec_close(handle));
    }
}

/// An output in the memory of another argument or of the workspace is refused, on a device with
/// addresses; neighbours are not.
#[test]
fn overlapping_outputs_are_refused() {
    let handle = open("cpu").unwrap();
    let (params, tensors) = two_rows_of_four();
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    // 8 numbers of `indices`, 8 of `unique`, and what is behind them.
    let mut memory = [0i32; 64];
    // SAFETY: all memory of the call is in `memory`, or it is refused.
    unsafe {
        ok(operators::deduplicate_topk::create(handle, params.at(), tensors.at(), &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let first = memory.as_mut_ptr();
        let mut workspace = vec![0u64; bytes.div_ceil(8) + 8];
        let call = |unique: *mut i32, at: *mut c_void| {
            let none: *mut c_void = std::ptr::null_mut();
            let mut buffers = Struct::new(3, none);
            buffers.fields[..2].copy_from_slice(&[first.cast(), unique.cast()]);
            operators::deduplicate_topk::calculate(descriptor, at, bytes, buffers.at(), none)
        };
        let own = workspace.as_mut_ptr().cast();
        for within in [0, 1, 7] {
            assert_eq!(
                call(first.add(within), own),
                spec_status::SPEC_STATUS_BAD_PARAM,
                "{}",
                last()
            );
            assert!(last().contains("`unique` is in the memory of `indices`"), "{}", last());
        }
        ok(call(first.add(8), own));
        if bytes > 0 {
            assert_eq!(
                call(first.add(8), first.add(12).cast()),
                spec_status::SPEC_STATUS_BAD_PARAM
            );
            assert!(last().contains("workspace"), "{}", last());
        }
        ok(spec_destroy(descriptor));
        ok(spec_close(handle));
    }
}

/// A failed `spec_open` leaves no handle behind that somebody could take for an open one.
#[test]
fn a_failed_open_leaves_null() {
    let mut handle = std::ptr::dangling_mut();
    // SAFETY: text that ends with a zero, and a place.
    let status = unsafe { spec_open(c"toaster".as_ptr(), &mut handle) };
    assert_eq!(status, spec_status::SPEC_STATUS_BAD_PARAM);
    assert!(handle.is_null());
}
