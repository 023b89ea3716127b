//! The golden vectors through the functions that C calls.
//!
//! `SPEC_REQUIRE` makes a missing backend a failure.

use std::ffi::{CString, c_void};

use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};
use spec::{DType, Handle};
use spec_conformance::golden::{Vector, vectors};
use spec_conformance::{Argument, Data, Golden, Held, Layout, Subject, Tensor};

use crate::operator::Bound;
use crate::params::Params;
use crate::*;

/// The create and calculate functions of an operator.
type Functions<O> = (
    unsafe extern "C" fn(
        *const spec_handle,
        *const <O as Bound>::CParams,
        *const <O as Bound>::CTensors,
        *mut *mut spec_descriptor,
    ) -> spec_status,
    unsafe extern "C" fn(
        *const spec_descriptor,
        *mut c_void,
        usize,
        *const <O as Bound>::CBuffers,
        *mut c_void,
    ) -> spec_status,
);

/// A struct of arguments as it lies in memory: its size, then one field an argument.
#[repr(C)]
struct Fields<T> {
    size: usize,
    fields: [T; 16],
}

fn last() -> String {
    let mut bytes = vec![0u8; 4096];
    // SAFETY: as many bytes are there.
    let needed = unsafe { spec_last_error(bytes.as_mut_ptr().cast(), bytes.len()) };
    String::from_utf8(bytes[..needed - 1].to_vec()).unwrap()
}

#[track_caller]
fn ok(status: spec_status) {
    assert_eq!(status, spec_status::SPEC_STATUS_SUCCESS, "{}", last());
}

/// Memory of the library's, and what a call is given for it.
struct Uploaded {
    memory: *mut spec_memory,
    pointer: *mut c_void,
}

impl Uploaded {
    fn new(handle: *const spec_handle, bytes: &[u8]) -> Self {
        let (mut memory, mut pointer) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the handle is open, and the bytes are there.
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

    /// What it holds, as elements of that type.
    fn read(&self, like: &Data) -> Data {
        let mut bytes = vec![0u8; like.bytes().len()];
        // SAFETY: as many bytes are there, and were written.
        ok(unsafe { spec_read(self.memory, 0, bytes.as_mut_ptr().cast(), bytes.len()) });
        let cpu = Handle::cpu().unwrap();
        Held::upload(&cpu, like.dtype(), &bytes).unwrap().read(like).unwrap()
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        // SAFETY: ours, and the work is done.
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
        ..spec_tensor::ABSENT
    };
    for (at, (&extent, &stride)) in desc.shape().iter().zip(desc.strides()).enumerate() {
        (described.shape[at], described.strides[at]) = (extent as i64, stride as i64);
    }
    described
}

/// Runs a case and returns its arguments as they are afterwards.
fn call<O: Bound + Subject>(
    handle: *const spec_handle,
    (create, calculate): Functions<O>,
    vector: &Vector<O>,
) -> Vec<Argument> {
    let case = &vector.case;
    let at = |name| O::ARGUMENTS.iter().position(|argument| argument.name == name).unwrap();
    let mut tensors = Fields { size: size_of::<O::CTensors>(), fields: [spec_tensor::ABSENT; 16] };
    let mut buffers =
        Fields { size: size_of::<O::CBuffers>(), fields: [std::ptr::null_mut::<c_void>(); 16] };
    let mut held = Vec::new();
    for Argument { name, tensor, .. } in &case.arguments {
        let uploaded = Uploaded::new(handle, tensor.data.bytes());
        tensors.fields[at(*name)] = described(tensor);
        buffers.fields[at(*name)] = uploaded.pointer;
        held.push(uploaded);
    }
    let params = O::CParams::of(&case.operator);
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    let mut stream = std::ptr::null_mut();
    // SAFETY: the handle is open; the structs lie as C has them, as `layouts` checks,
    // and all that they point to stays until the work is done.
    unsafe {
        let tensors = (&raw const tensors).cast();
        ok(create(handle, &params, tensors, &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let workspace = Uploaded::new(handle, &vec![0xA5; bytes]);
        ok(spec_handle_stream(handle, &mut stream));
        let buffers = (&raw const buffers).cast();
        ok(calculate(descriptor, workspace.pointer, bytes, buffers, stream));
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

fn check<O: Bound + Subject>(handle: *const spec_handle, functions: Functions<O>) {
    let vectors = vectors::<O>(&Golden::from_env()).unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let results = call(handle, functions, &vector);
        if let Some(failure) = vector.difference(&results) {
            panic!("{}: {}: {failure}", O::NAME, vector.name);
        }
    }
}

/// A handle of a device, where there is one; `SPEC_REQUIRE` makes a missing one a failure.
fn open(device: &str) -> Option<*mut spec_handle> {
    let (name, mut handle) = (CString::new(device).unwrap(), std::ptr::null_mut());
    // SAFETY: text and a place.
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
    check::<TopkRouter>(handle, (spec_topk_router_create, spec_topk_router_calculate));
    check::<DeduplicateTopk>(
        handle,
        (spec_deduplicate_topk_create, spec_deduplicate_topk_calculate),
    );
    check::<RejectionSample>(
        handle,
        (spec_rejection_sample_create, spec_rejection_sample_calculate),
    );
    check::<SampleLogits>(handle, (spec_sample_logits_create, spec_sample_logits_calculate));
    check::<NgramMatch>(handle, (spec_ngram_match_create, spec_ngram_match_calculate));
    check::<HybridMtpNgram>(
        handle,
        (spec_hybrid_mtp_ngram_create, spec_hybrid_mtp_ngram_calculate),
    );
    check::<PromptLookup>(handle, (spec_prompt_lookup_create, spec_prompt_lookup_calculate));
    check::<TreeVerify>(handle, (spec_tree_verify_create, spec_tree_verify_calculate));
    check::<MoeAlign>(handle, (spec_moe_align_create, spec_moe_align_calculate));
    check::<IndexerTopk>(handle, (spec_indexer_topk_create, spec_indexer_topk_calculate));
    check::<Unique>(handle, (spec_unique_create, spec_unique_calculate));
    // SAFETY: open, and used no more.
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

/// Structs of parameters have no padding, which one version would not look at and
/// another would.
#[test]
fn usual_parameters_come_back() {
    fn check<O: Bound + std::fmt::Debug>() {
        let usual = O::CParams::usual();
        let back = O::CParams::of(&usual).operator().unwrap();
        assert_eq!(format!("{back:?}"), format!("{usual:?}"));
        assert!(size_of::<O::CParams>().is_multiple_of(size_of::<usize>()));
        assert_eq!(
            size_of::<O::CTensors>(),
            size_of::<usize>() + O::ARGUMENTS.len() * size_of::<spec_tensor>()
        );
        assert_eq!(size_of::<O::CBuffers>(), (1 + O::ARGUMENTS.len()) * size_of::<usize>());
    }
    check::<TopkRouter>();
    check::<DeduplicateTopk>();
    check::<RejectionSample>();
    check::<SampleLogits>();
    check::<NgramMatch>();
    check::<HybridMtpNgram>();
    check::<PromptLookup>();
    check::<TreeVerify>();
    check::<MoeAlign>();
    check::<IndexerTopk>();
    check::<Unique>();
}

/// Where memory is an object, what is no such object, too small, or given twice is refused.
#[test]
fn wrong_memory_on_wgpu() {
    let Some(handle) = open("wgpu") else { return };
    let tensor = |rows, cols| spec_tensor {
        dtype: SPEC_DTYPE_I32,
        rank: 2,
        shape: [rows, cols, 0, 0],
        strides: [0; 4],
    };
    let params = spec_deduplicate_topk_params::of(&DeduplicateTopk { mtp_step: 2 });
    let tensors = spec_deduplicate_topk_tensors {
        indices: tensor(2, 4),
        unique: tensor(1, 8),
        ..Default::default()
    };
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    let [small, full, other] = [16, 32, 32].map(|bytes| Uploaded::new(handle, &vec![0; bytes]));
    let mut zeros = [0u64; 32];
    // SAFETY: memory of the library's, or what is seen to be none.
    unsafe {
        ok(spec_deduplicate_topk_create(handle, &params, &tensors, &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let workspace = Uploaded::new(handle, &vec![0; bytes]);
        let none = std::ptr::null_mut();
        let call = |indices: *mut c_void, unique, stream| {
            let indices = indices.cast_const();
            let buffers = spec_deduplicate_topk_buffers { indices, unique, ..Default::default() };
            let at = workspace.pointer;
            spec_deduplicate_topk_calculate(descriptor, at, bytes, &buffers, stream)
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
