//! `topkrouter` and `topksoftmax`: both are `topk_router`.
//!
//! InfiniOp's callers say how many experts they want, and scale or norm, with each call,
//! and ask for the workspace before. So what was created for their choice is kept, and
//! the workspace does for any.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use spec::ops::TopkRouter;
use spec::ops::topk_router::{Addresses, GroupScore, MAX_TOPK, Masked, Scoring, Select};
use spec::{Address, DType, Descriptor, Handle, Status, Stream, TensorDesc};

use crate::{Code, InfiniopHandle, InfiniopTensorDescriptor, at, destroy, guard, put};

/// How many choices are kept: callers have one, or few.
const KEPT: usize = 16;

/// `struct InfiniopDescriptor`, and what this library has behind it.
#[repr(C)]
#[derive(Debug)]
pub struct InfiniopDescriptor {
    device_type: i32,
    device_id: i32,
    handle: Handle,
    /// Everything but what a call brings.
    router: TopkRouter,
    x: TensorDesc,
    bias: Option<TensorDesc>,
    workspace_size: usize,
    kept: RwLock<Vec<(Choice, Arc<Descriptor<TopkRouter>>)>>,
}

/// What a call brings.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    topk: usize,
    scale: f32,
    renormalize: bool,
}

/// DeepSeek-V3's router, whose groups InfiniOp has fixed: four of eight.
fn deepseek() -> TopkRouter {
    TopkRouter::new(1)
        .scoring(Scoring::Sigmoid)
        .select(Select::Score)
        .groups(8)
        .topk_groups(4)
        .group_score(GroupScore::Top2Sum)
        .masked(Masked::Zero)
}

impl InfiniopDescriptor {
    /// Checks what can be checked, and finds a workspace that does for every topk.
    fn new(
        handle: &InfiniopHandle,
        router: TopkRouter,
        x: TensorDesc,
        bias: Option<TensorDesc>,
    ) -> Result<Self, Status> {
        let (device_type, device_id) = handle.device();
        let mut made = InfiniopDescriptor {
            device_type,
            device_id,
            handle: handle.open().clone(),
            router,
            x,
            bias,
            workspace_size: 0,
            kept: RwLock::default(),
        };
        let most = x.shape().get(1).map_or(1, |&experts| experts.clamp(1, MAX_TOPK));
        for topk in 1..=most {
            let choice = Choice { topk, scale: 1.0, renormalize: true };
            made.workspace_size = made.workspace_size.max(made.create(choice)?.workspace_size());
        }
        Ok(made)
    }

    fn create(&self, choice: Choice) -> Result<Descriptor<TopkRouter>, Status> {
        let Choice { topk, scale, renormalize } = choice;
        let mut router = self.router.scale(scale).renormalize(renormalize);
        router.topk = topk;
        let rows = self.x.shape().first().copied().unwrap_or(0);
        let experts = self.x.shape().get(1).copied().unwrap_or(0);
        let mut tensors = router.tensors(DType::F32, rows, experts, None);
        (tensors.x, tensors.bias) = (self.x, self.bias);
        self.handle.create(&router, &tensors).map_err(|error| error.status())
    }

    /// What was created for a choice, now or before.
    fn ready(&self, choice: Choice) -> Result<Arc<Descriptor<TopkRouter>>, Status> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ready)) = kept.iter().find(|(of, _)| *of == choice) {
            return Ok(ready.clone());
        }
        drop(kept);
        let ready = Arc::new(self.create(choice)?);
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((choice, ready.clone()));
        Ok(ready)
    }

    /// # Safety
    /// Memory and stream are good until the work is done.
    unsafe fn calculate(
        &self,
        choice: Choice,
        workspace: (*mut c_void, usize),
        addresses: Addresses,
        stream: *mut c_void,
    ) -> Result<(), Status> {
        let ready = self.ready(choice)?;
        let (workspace, size) = workspace;
        if size < ready.workspace_size() {
            return Err(Status::InsufficientWorkspace);
        }
        // SAFETY: the caller's. As in InfiniOp, what a stream is on the CPU is nobody's
        // concern.
        let done = unsafe {
            let stream = match ready.device().backend() {
                "cpu" => Stream::default(),
                _ => Stream::from_raw(ready.device(), stream.expose_provenance() as u64),
            };
            ready.call_at(Address::from(workspace), addresses, stream)
        };
        done.map_err(|error| error.status())
    }
}

/// What was validated, for a caller.
unsafe fn give(
    descriptor: *mut *mut InfiniopDescriptor,
    made: InfiniopDescriptor,
) -> Result<(), Status> {
    // SAFETY: the caller's.
    unsafe { put(descriptor, Box::into_raw(Box::new(made))) }
}

unsafe fn workspace_size(descriptor: *const InfiniopDescriptor, size: *mut usize) -> Code {
    // SAFETY: the caller's.
    guard(|| unsafe { put(size, at(descriptor)?.workspace_size) })
}

/// DeepSeek-V3's router for logits `[tokens, experts]` and a correction bias `[experts]`.
///
/// # Safety
/// All pointers are null or of InfiniOp's types; the bias may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateTopkrouterDescriptor(
    handle: *const InfiniopHandle,
    descriptor: *mut *mut InfiniopDescriptor,
    x: *const InfiniopTensorDescriptor,
    correction_bias: *const InfiniopTensorDescriptor,
) -> Code {
    guard(|| {
        // SAFETY: the caller's.
        unsafe {
            let bias = correction_bias.as_ref().map(InfiniopTensorDescriptor::desc);
            let made = InfiniopDescriptor::new(at(handle)?, deepseek(), at(x)?.desc(), bias)?;
            give(descriptor, made)
        }
    })
}

/// Bytes that do for any `topk`.
///
/// # Safety
/// `descriptor` is null or from its create; `size` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetTopkrouterWorkspaceSize(
    descriptor: *const InfiniopDescriptor,
    size: *mut usize,
) -> Code {
    // SAFETY: the caller's.
    unsafe { workspace_size(descriptor, size) }
}

/// Routes: `values` f32 and `indices` i32, both `[tokens, topk]` and packed.
///
/// # Safety
/// `descriptor` is null or from its create; the memory is null, or of the device and large
/// enough, until the work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopTopkrouter(
    descriptor: *const InfiniopDescriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    values: *mut c_void,
    indices: *mut c_void,
    x: *const c_void,
    correction_bias: *const c_void,
    routed_scaling_factor: f32,
    topk: usize,
    stream: *mut c_void,
) -> Code {
    guard(|| {
        let choice = Choice { topk, scale: routed_scaling_factor, renormalize: true };
        // SAFETY: the caller's.
        unsafe {
            let descriptor = at(descriptor)?;
            let bias = descriptor.bias.map(|_| Address::from(correction_bias));
            let addresses = addresses(x, bias, values, indices);
            descriptor.calculate(choice, (workspace, workspace_size), addresses, stream)
        }
    })
}

/// Ends a descriptor.
///
/// # Safety
/// `descriptor` is null or from its create, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyTopkrouterDescriptor(
    descriptor: *mut InfiniopDescriptor,
) -> Code {
    // SAFETY: the caller's.
    unsafe { destroy(descriptor) }
}

/// Softmax over logits `[tokens, experts]`.
///
/// # Safety
/// All pointers are null or of InfiniOp's types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateTopksoftmaxDescriptor(
    handle: *const InfiniopHandle,
    descriptor: *mut *mut InfiniopDescriptor,
    x: *const InfiniopTensorDescriptor,
) -> Code {
    guard(|| {
        // SAFETY: the caller's.
        unsafe {
            let x = at(x)?.desc();
            let made = InfiniopDescriptor::new(at(handle)?, TopkRouter::new(1), x, None)?;
            give(descriptor, made)
        }
    })
}

/// Bytes that do for any `topk`.
///
/// # Safety
/// As for `infiniopGetTopkrouterWorkspaceSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetTopksoftmaxWorkspaceSize(
    descriptor: *const InfiniopDescriptor,
    size: *mut usize,
) -> Code {
    // SAFETY: the caller's.
    unsafe { workspace_size(descriptor, size) }
}

/// The `topk` largest probabilities, over their sum where `norm` is not 0: `values` f32
/// and `indices` i32, both `[tokens, topk]` and packed.
///
/// # Safety
/// As for `infiniopTopkrouter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopTopksoftmax(
    descriptor: *const InfiniopDescriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    values: *mut c_void,
    indices: *mut c_void,
    x: *const c_void,
    topk: usize,
    norm: i32,
    stream: *mut c_void,
) -> Code {
    guard(|| {
        let choice = Choice { topk, scale: 1.0, renormalize: norm != 0 };
        let addresses = addresses(x, None, values, indices);
        // SAFETY: the caller's.
        unsafe { at(descriptor)?.calculate(choice, (workspace, workspace_size), addresses, stream) }
    })
}

/// Ends a descriptor.
///
/// # Safety
/// As for `infiniopDestroyTopkrouterDescriptor`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyTopksoftmaxDescriptor(
    descriptor: *mut InfiniopDescriptor,
) -> Code {
    // SAFETY: the caller's.
    unsafe { destroy(descriptor) }
}

/// The kind of device of a descriptor.
///
/// # Safety
/// `descriptor` is null or from a create; `device` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetDescriptorDeviceType(
    descriptor: *const InfiniopDescriptor,
    device: *mut i32,
) -> Code {
    // SAFETY: the caller's.
    guard(|| unsafe { put(device, at(descriptor)?.device_type) })
}

/// The number of the device of a descriptor.
///
/// # Safety
/// As for `infiniopGetDescriptorDeviceType`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetDescriptorDeviceId(
    descriptor: *const InfiniopDescriptor,
    device: *mut i32,
) -> Code {
    // SAFETY: the caller's.
    guard(|| unsafe { put(device, at(descriptor)?.device_id) })
}

fn addresses(
    x: *const c_void,
    bias: Option<Address>,
    values: *mut c_void,
    indices: *mut c_void,
) -> Addresses {
    let mut addresses = Addresses::new(x, values, indices);
    addresses.bias = bias;
    addresses
}
