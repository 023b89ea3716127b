//! The host time of a call through C, compared with a call through Rust in the same run:
//! `cargo bench -p spec-c --bench host_cost [cpu|cuda]`.
//!
//! Both call the same router on the same memory, in alternating turns. The reported time is the
//! lowest decile of the turns, which other work on the machine disturbs least. With no tokens the
//! time is that of the host alone.

use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::time::Instant;

use spec::ops::topk_router::{Addresses, preset};
use spec::{Address, DType, Handle, Stream};
use spec_c::*;

const TURNS: usize = 2001;
const CALLS: usize = 200;

/// A struct of spec.h: its size, then its fields.
#[repr(C)]
struct Struct<T, const N: usize> {
    size: usize,
    fields: [T; N],
}

impl<T, const N: usize> Struct<T, N> {
    fn new(fields: [T; N]) -> Self {
        Struct { size: size_of::<Self>(), fields }
    }
}

/// The numbers of the router's arguments among the fields of its structs in spec.h.
const X: usize = 0;
const WEIGHTS: usize = 5;
const INDICES: usize = 6;

/// The mean time of a call in nanoseconds.
fn time(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}

fn lowest_decile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

fn ok(status: spec_status) {
    assert_eq!(status, spec_status::SPEC_STATUS_SUCCESS);
}

fn tensor(dtype: u32, rows: i64, cols: i64) -> spec_tensor {
    spec_tensor { dtype, rank: 2, shape: [rows, cols, 0, 0], strides: [0; 4] }
}

fn measure(device: &str, tokens: usize) {
    let model = preset::MIXTRAL;
    let (experts, topk) = (model.experts(), model.router().topk);
    let handle: Handle = device.parse().unwrap();
    let router = handle.create(&model.router(), &model.tensors(DType::F32, tokens)).unwrap();

    let (name, mut c_handle) = (CString::new(device).unwrap(), std::ptr::null_mut());
    let (mut descriptor, mut bytes) = (std::ptr::null_mut(), 0);
    let mut memory = [std::ptr::null_mut::<spec_memory>(); 4];
    let mut at = [std::ptr::null_mut::<c_void>(); 4];
    let mut stream = std::ptr::null_mut();
    // SAFETY: every output pointer is a local variable or null, and the structs have their sizes
    // set.
    unsafe {
        ok(spec_open(name.as_ptr(), &mut c_handle));
        let mut params = Struct::new([0u64; 12]);
        let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok(operators::spec_topk_router_preset(
            c"Mixtral".as_ptr(),
            (&raw mut params).cast(),
            none,
            nothing,
        ));
        let (rows, cols) = (tokens as i64, topk as i64);
        let mut tensors = Struct::new([spec_tensor::default(); 9]);
        tensors.fields[X] = tensor(SPEC_DTYPE_F32, rows, experts as i64);
        tensors.fields[WEIGHTS] = tensor(SPEC_DTYPE_F32, rows, cols);
        tensors.fields[INDICES] = tensor(SPEC_DTYPE_I32, rows, cols);
        let (params, tensors) = ((&raw const params).cast(), (&raw const tensors).cast());
        ok(operators::topk_router::create(c_handle, params, tensors, &mut descriptor));
        ok(spec_workspace_size(descriptor, &mut bytes));
        let sizes = [tokens * experts * 4, tokens * topk * 4, tokens * topk * 4, bytes];
        for ((memory, at), size) in memory.iter_mut().zip(&mut at).zip(sizes) {
            ok(spec_allocate(c_handle, size.max(4), memory));
            ok(spec_memory_address(*memory, at));
        }
        ok(spec_handle_stream(c_handle, &mut stream));
    }
    let [x, weights, indices, workspace] = at;
    let mut buffers = Struct::new([std::ptr::null_mut::<c_void>(); 9]);
    (buffers.fields[X], buffers.fields[WEIGHTS], buffers.fields[INDICES]) = (x, weights, indices);

    let through_rust = || {
        let addresses =
            Addresses::new(Address::from(x), Address::from(weights), Address::from(indices));
        // SAFETY: the memory was allocated above with the sizes of the tensors, and only this
        // thread uses it.
        unsafe {
            let on = match handle.device().backend() {
                "cuda" => Stream::from_raw(handle.device(), stream.addr() as u64),
                _ => Stream::default(),
            };
            router.call_at(Address::from(workspace), black_box(addresses), on).unwrap();
        }
    };
    let through_c = || {
        // SAFETY: the buffers are the memory that was allocated above with the sizes of the
        // tensors, and only this thread uses it.
        let status = unsafe {
            let buffers = (&raw const *black_box(&buffers)).cast();
            operators::topk_router::calculate(descriptor, workspace, bytes, buffers, stream)
        };
        ok(status);
    };
    let (mut rust, mut c) = (vec![], vec![]);
    for turn in 0..TURNS {
        // The second of the two calls finds warmer caches, so the order alternates.
        let (a, b) = if turn % 2 == 0 {
            let a = time(through_rust);
            (a, time(through_c))
        } else {
            let b = time(through_c);
            (time(through_rust), b)
        };
        // SAFETY: the handle is open.
        ok(unsafe { spec_synchronize(c_handle) });
        rust.push(a);
        c.push(b);
    }
    let (rust, c) = (lowest_decile(rust), lowest_decile(c));
    println!(
        "{device}, {tokens} tokens: Rust {rust:.0} ns, C {c:.0} ns, C adds {:.0} ns a call",
        c - rust
    );
    // SAFETY: the memory, the descriptor and the handle were made above, nobody else uses them, and
    // the last turn waited for the work.
    unsafe {
        memory.into_iter().for_each(|memory| ok(spec_free(memory)));
        ok(spec_destroy(descriptor));
        ok(spec_close(c_handle));
    }
}

fn main() {
    // Cargo adds the argument `--bench`.
    let device = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let device = device.as_deref().unwrap_or("cpu");
    // In a pool of one thread the CPU backend gives no work to other threads, so the measured time
    // has no waking of threads in it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        measure(device, 0);
        measure(device, 1);
    });
}
