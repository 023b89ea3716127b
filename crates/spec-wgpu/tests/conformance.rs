//! The conformance kit on every form of the backend: with all features of the device, with
//! only WebGPU's defaults, with bindings so small that tensors are split, and with every
//! tensor at an offset inside a buffer.

mod common;

use common::{alone, gpu, gpus_with_bindings};
use spec_conformance::{Complete, Golden, Report, check_golden, check_random};
use spec_core::{
    Backend, DType, DeviceInfo, Kernel, Memory, Operator, Place, QueueId, Result, Supports, View,
    ViewMut,
};
use spec_wgpu::{Options, Wgpu};

/// Random cases of each operator.
const CASES: usize = 25;

fn clean(reports: &[Report], how: &str) {
    for report in reports {
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{}, {how}:\n{}", report.operator, failures.join("\n"));
        assert!(report.unsupported < report.cases, "{}, {how}: no case ran", report.operator);
    }
}

fn check<B: Complete>(backend: &B, how: &str) {
    clean(&check_golden(backend, &Golden::from_env(), |_| {}).expect("golden vectors"), how);
    clean(&check_random(backend, 7, CASES, |_| {}), how);
}

#[test]
fn as_devices_come_plain_and_with_small_bindings() {
    let _alone = alone();
    for (how, gpu) in gpus_with_bindings("small bindings", 20_000) {
        check(&gpu, how);
    }
}

#[test]
fn tiny_bindings() {
    let _alone = alone();
    let options = Options { plain: true, max_binding: Some(4096) };
    let Some(gpu) = gpu(&options) else { return };
    check(&gpu, "tiny bindings");
}

#[test]
fn inside_of_buffers() {
    let _alone = alone();
    let Some(gpu) = gpu(&Options::default()) else { return };
    check(&Inside(gpu), "inside of buffers");
}

/// A backend whose memory starts some elements after the start of its buffer.
#[derive(Clone)]
struct Inside(Wgpu);

/// Elements before the first.
const SKIP: usize = 33;

struct Shifted(Box<dyn Memory>);

// SAFETY: every method forwards to the inner backend, which keeps the promises of a backend.
unsafe impl Backend for Inside {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn queue_id(&self) -> QueueId {
        self.0.queue_id()
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        // Room for `SKIP` elements of the largest dtype before and after.
        Ok(Box::new(Shifted(self.0.allocate_bytes(bytes + 2 * 8 * SKIP)?)))
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        Ok(memory)
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    fn sibling(&self) -> Result<Self> {
        Ok(Inside(self.0.sibling()?))
    }
}

// SAFETY: the kernel is that of the inner backend.
unsafe impl<O: Operator> Supports<O> for Inside
where
    Wgpu: Supports<O>,
{
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        // SAFETY: the caller promised what `prepare` needs.
        unsafe { self.0.prepare(plan) }
    }
}

/// Bytes before the first element: a whole number of elements of any dtype.
const START: usize = SKIP * 8;

impl Memory for Shifted {
    fn size(&self) -> usize {
        self.0.size() - 2 * START
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        let whole = self.0.view(DType::U8, self.0.size());
        let Place::Object { device, object, .. } = whole.place() else {
            panic!("wgpu's memory is an object")
        };
        // SAFETY: the view is a part of a buffer of this device, used on the device's only queue.
        unsafe { View::from_object(dtype, len, device, object, START as u64) }
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        let whole = self.0.view(DType::U8, self.0.size());
        let Place::Object { device, object, .. } = whole.place() else {
            panic!("wgpu's memory is an object")
        };
        // SAFETY: as in `view`, and the borrow is exclusive.
        unsafe { ViewMut::from_object(dtype, len, device, object, START as u64) }
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.write_at(START + offset, bytes)
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.read_at(START + offset, bytes)
    }
}
