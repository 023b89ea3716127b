//! Uses InfiniOp's symbols like a program that was written with InfiniOp's headers.

use std::ffi::c_void;

use infiniop::*;
use spec::Status;

const CPU: i32 = 0;
const F32: i32 = 13;

#[track_caller]
fn ok(code: i32) {
    assert_eq!(code, Status::Success.code());
}

fn handle() -> *mut InfiniopHandle {
    let mut handle = std::ptr::null_mut();
    ok(infinirtSetDevice(CPU, 0));
    // SAFETY: `handle` has room for a handle.
    ok(unsafe { infiniopCreateHandle(&mut handle) });
    handle
}

fn tensor(shape: &[usize], dtype: i32) -> *mut InfiniopTensorDescriptor {
    let mut strides = vec![1isize; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at] as isize;
    }
    let mut made = std::ptr::null_mut();
    // SAFETY: there are as many numbers as dimensions, and room for a descriptor.
    ok(unsafe {
        let (shape_at, strides_at) = (shape.as_ptr(), strides.as_ptr());
        infiniopCreateTensorDescriptor(&mut made, shape.len(), shape_at, strides_at, dtype)
    });
    made
}

/// Logits whose best experts differ from token to token.
fn logits(tokens: usize, experts: usize) -> Vec<f32> {
    (0..tokens * experts).map(|i| ((i * 7919) % 1009) as f32 / 101.0 - 5.0).collect()
}

/// The best experts by plain sorting. Sorting does not know about groups, so only the softmax
/// router is compared.
fn best(row: &[f32], topk: usize) -> Vec<i32> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order[..topk].iter().map(|&expert| expert as i32).collect()
}

#[test]
fn softmax_routes_with_any_topk_in_one_workspace() {
    let (tokens, experts) = (5, 40);
    let x = logits(tokens, experts);
    // SAFETY: all arguments are valid by InfiniOp's headers.
    unsafe {
        let (handle, x_desc) = (handle(), tensor(&[tokens, experts], F32));
        let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
        ok(infiniopCreateTopksoftmaxDescriptor(handle, &mut descriptor, x_desc));
        ok(infiniopDestroyTensorDescriptor(x_desc));
        ok(infiniopGetTopksoftmaxWorkspaceSize(descriptor, &mut bytes));
        let mut workspace = vec![0u8; bytes];
        for (topk, norm) in (1..=experts).flat_map(|topk| [(topk, 0), (topk, 1), (topk, 1)]) {
            let (mut values, mut indices) = (vec![0f32; tokens * topk], vec![0i32; tokens * topk]);
            ok(infiniopTopksoftmax(
                descriptor,
                workspace.as_mut_ptr().cast(),
                bytes,
                values.as_mut_ptr().cast(),
                indices.as_mut_ptr().cast(),
                x.as_ptr().cast(),
                topk,
                norm,
                std::ptr::null_mut(),
            ));
            for (token, row) in x.chunks(experts).enumerate() {
                let picks = token * topk..(token + 1) * topk;
                assert_eq!(indices[picks.clone()], best(row, topk));
                let sum: f32 = values[picks].iter().sum();
                assert!(if norm == 1 { (sum - 1.0).abs() < 1e-5 } else { sum < 1.0 + 1e-5 });
            }
        }
        ok(infiniopDestroyTopksoftmaxDescriptor(descriptor));
        ok(infiniopDestroyHandle(handle));
    }
}

#[test]
fn what_is_wrong_is_a_status() {
    let null = std::ptr::null_mut::<c_void>;
    // SAFETY: the functions refuse null pointers and wrong values before using them.
    unsafe {
        let is = |status: Status, code: i32| assert_eq!(code, status.code());
        is(Status::NullPointer, infiniopCreateHandle(std::ptr::null_mut()));
        is(Status::NullPointer, infiniopDestroyHandle(std::ptr::null_mut()));
        is(Status::DeviceTypeNotSupported, infinirtSetDevice(2, 0));
        is(Status::DeviceNotFound, infinirtSetDevice(CPU, 1));
        is(Status::DeviceNotFound, infinirtSetDevice(1, 99));
        let mut made = std::ptr::null_mut();
        let (shape, strides) = ([4usize, 256], [256isize, 1]);
        let describe = infiniopCreateTensorDescriptor;
        is(Status::BadTensorDtype, describe(&mut made, 2, shape.as_ptr(), strides.as_ptr(), 99));
        is(Status::BadTensorShape, describe(&mut made, 9, shape.as_ptr(), strides.as_ptr(), F32));
        is(Status::NullPointer, describe(&mut made, 2, std::ptr::null(), strides.as_ptr(), F32));

        let handle = handle();
        let mut router = std::ptr::null_mut();
        let create = infiniopCreateTopkrouterDescriptor;
        let (x, bias) = (tensor(&[4, 256], F32), tensor(&[256], F32));
        is(Status::NullPointer, create(std::ptr::null(), &mut router, x, bias));
        is(Status::NullPointer, create(handle, &mut router, std::ptr::null(), bias));
        is(Status::NullPointer, create(handle, std::ptr::null_mut(), x, bias));
        is(Status::BadTensorShape, create(handle, &mut router, bias, bias));
        is(Status::BadTensorDtype, create(handle, &mut router, tensor(&[4, 256], 5), bias));
        is(Status::BadTensorShape, create(handle, &mut router, x, tensor(&[255], F32)));
        // 60 experts are no multiple of eight groups.
        is(
            Status::BadParam,
            create(handle, &mut router, tensor(&[4, 60], F32), tensor(&[60], F32)),
        );
        ok(create(handle, &mut router, x, bias));

        let mut device = [-1; 2];
        ok(infiniopGetDescriptorDeviceType(router, &mut device[0]));
        ok(infiniopGetDescriptorDeviceId(router, &mut device[1]));
        assert_eq!(device, [CPU, 0]);
        let (mut values, mut indices) = (vec![0f32; 32], vec![0i32; 32]);
        let (logits, zeros) = (logits(4, 256), vec![0f32; 256]);
        let mut call = |values_at: *mut c_void, x: *const c_void, scale: f32, topk: usize| {
            let indices = indices.as_mut_ptr().cast();
            let bias = zeros.as_ptr().cast();
            infiniopTopkrouter(router, null(), 0, values_at, indices, x, bias, scale, topk, null())
        };
        let (x_at, values_at) = (logits.as_ptr().cast(), values.as_mut_ptr().cast());
        is(Status::BadParam, call(values_at, x_at, 2.5, 0));
        is(Status::BadParam, call(values_at, x_at, 2.5, 65));
        is(Status::BadParam, call(values_at, x_at, f32::NAN, 8));
        is(Status::NullPointer, call(null(), x_at, 2.5, 8));
        is(Status::NullPointer, call(values_at, std::ptr::null(), 2.5, 8));
        // More settings than the library caches, and then the first ones again.
        for scale in (1..40).chain(1..3) {
            ok(call(values_at, x_at, scale as f32, 8));
            let sum: f32 = values[..8].iter().sum();
            assert!((sum - scale as f32).abs() < 1e-4 * scale as f32);
        }
        ok(infiniopDestroyTopkrouterDescriptor(router));
        is(Status::NullPointer, infiniopDestroyTopkrouterDescriptor(std::ptr::null_mut()));
        ok(infiniopDestroyHandle(handle));
    }
}

#[test]
fn the_runtime_has_host_memory() {
    // SAFETY: the memory comes from the runtime, and accesses stay within its size.
    unsafe {
        ok(infinirtInit());
        ok(infinirtSetDevice(CPU, 0));
        let (mut a, mut b) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok(infinirtMalloc(&mut a, 16));
        ok(infinirtMallocHost(&mut b, 16));
        ok(infinirtMemset(a, 0x5A, 16));
        ok(infinirtMemcpy(b, a, 16, 0));
        assert_eq!(b.cast::<[u8; 16]>().read(), [0x5A; 16]);
        assert_eq!(infinirtMalloc(std::ptr::null_mut(), 16), Status::NullPointer.code());
        assert_eq!(infinirtMalloc(&mut a, usize::MAX / 2), Status::InternalError.code());
        ok(infinirtFree(a));
        ok(infinirtFreeHost(b));
        let (mut stream, mut counts) = (std::ptr::null_mut(), [-1; 11]);
        ok(infinirtStreamCreate(&mut stream));
        ok(infinirtStreamSynchronize(stream));
        ok(infinirtStreamDestroy(stream));
        ok(infinirtDeviceSynchronize());
        ok(infinirtGetAllDeviceCount(counts.as_mut_ptr()));
        assert_eq!((counts[0], counts[2]), (1, 0));
    }
}

/// The library has every symbol, and functions that are not implemented return this status.
#[test]
fn every_name_is_there() {
    let program = std::env::current_exe().unwrap();
    let path = program.with_file_name("libinfiniop.so");
    // SAFETY: the library is this package's own, and the functions take no arguments.
    unsafe {
        let library = libloading::Library::new(&path).unwrap();
        for name in NAMES {
            let found = library.get::<unsafe extern "C" fn() -> i32>(name.as_bytes()).unwrap();
            assert_eq!(found(), Status::NotImplemented.code(), "{name}");
        }
        for name in ["infiniopTopkrouter", "infiniopTopksoftmax", "infinirtSetDevice"] {
            library.get::<*const c_void>(name.as_bytes()).unwrap();
        }
    }
    assert_eq!(NAMES.len(), 345);
}

/// A function that is not implemented says its name on standard error: what a program sees is a
/// status 2 alone.
#[test]
fn a_refusal_says_the_name() {
    const ASKED: &str = "SPEC_INFINIOP_REFUSED";
    let program = std::env::current_exe().unwrap();
    if std::env::var_os(ASKED).is_some() {
        // SAFETY: the library is this package's own, and the function takes no arguments.
        unsafe {
            let library =
                libloading::Library::new(program.with_file_name("libinfiniop.so")).unwrap();
            let gemm = library.get::<unsafe extern "C" fn() -> i32>(b"infiniopGemm").unwrap();
            assert_eq!(gemm(), Status::NotImplemented.code());
        }
        return;
    }
    let asked = std::process::Command::new(program)
        .args(["a_refusal_says_the_name", "--exact", "--nocapture"])
        .env(ASKED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{said}");
    assert!(said.contains("infiniopGemm is not implemented"), "{said}");
}
