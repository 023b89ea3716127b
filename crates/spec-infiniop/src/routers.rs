//! InfiniOp's operators `topkrouter` and `topksoftmax`, both computed by `topk_router`.
//!
//! In InfiniOp, each call states the number of experts per token and the scale or normalization,
//! while `topk_router` fixes these when it is created. So this library creates a `topk_router` at
//! the first call with new settings and caches it. InfiniOp's callers ask for the size of the
//! workspace before any call, so the size that they get is enough for all settings.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use spec::ops::TopkRouter;
use spec::ops::topk_router::{Addresses, GroupScore, MAX_TOPK, Masked, Scoring, Select};
use spec::{Address, DType, Descriptor, Handle, Status, Stream, TensorDesc};

use crate::{Code, InfiniopHandle, InfiniopTensorDescriptor, at, destroy, guard, put};

/// The largest number of cached routers per descriptor. Most callers use one combination of
/// settings.
const MAX_CACHED: usize = 16;

/// `struct InfiniopDescriptor`: the public fields `device_type` and `device_id`, then this
/// library's own fields.
#[repr(C)]
#[derive(Debug)]
pub struct InfiniopDescriptor {
    device_type: i32,
    device_id: i32,
    handle: Handle,
    /// The router's parameters, without those that each call sets.
    router: TopkRouter,
    x: TensorDesc,
    bias: Option<TensorDesc>,
    workspace_size: usize,
    cached: RwLock<Vec<(Settings, Arc<Descriptor<TopkRouter>>)>>,
}

/// The settings that each call passes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settings {
    topk: usize,
    scale: f32,
    renormalize: bool,
}

/// DeepSeek-V3's router. InfiniOp fixes the number of groups, 8, and the number of selected
/// groups, 4.
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
    /// Checks the parameters and tensors, and finds the size of a workspace that is enough for
    /// every topk.
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
            cached: RwLock::default(),
        };
        let max_topk = x.shape().get(1).map_or(1, |&experts| experts.clamp(1, MAX_TOPK));
        for topk in 1..=max_topk {
            let settings = Settings { topk, scale: 1.0, renormalize: true };
            made.workspace_size = made.workspace_size.max(made.create(settings)?.workspace_size());
        }
        Ok(made)
    }

    fn create(&self, settings: Settings) -> Result<Descriptor<TopkRouter>, Status> {
        let Settings { topk, scale, renormalize } = settings;
        let mut router = self.router.scale(scale).renormalize(renormalize);
        router.topk = topk;
        let rows = self.x.shape().first().copied().unwrap_or(0);
        let experts = self.x.shape().get(1).copied().unwrap_or(0);
        let mut tensors = router.tensors(DType::F32, rows, experts, None);
        (tensors.x, tensors.bias) = (self.x, self.bias);
        self.handle.create(&router, &tensors).map_err(|error| error.status())
    }

    /// The router for a call's settings: from the cache, or created and cached.
    fn router_for(&self, settings: Settings) -> Result<Arc<Descriptor<TopkRouter>>, Status> {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, router)) = cached.iter().find(|(of, _)| *of == settings) {
            return Ok(router.clone());
        }
        drop(cached);
        let router = Arc::new(self.create(settings)?);
        let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
        if cached.len() == MAX_CACHED {
            cached.remove(0);
        }
        cached.push((settings, router.clone()));
        Ok(router)
    }

    /// # Safety
    /// The memory and the stream stay valid until the work is done.
    unsafe fn calculate(
        &self,
        settings: Settings,
        workspace: (*mut c_void, usize),
        addresses: Addresses,
        stream: *mut c_void,
    ) -> Result<(), Status> {
        let router = self.router_for(settings)?;
        let (workspace, size) = workspace;
        if size < router.workspace_size() {
            return Err(Status::InsufficientWorkspace);
        }
        // SAFETY: the caller promises memory and a stream that stay valid until the work is done.
        // On the CPU the stream is ignored, as in InfiniOp.
        let done = unsafe {
            let stream = match router.device().backend() {
                "cpu" => Stream::default(),
                _ => Stream::from_raw(router.device(), stream.expose_provenance() as u64),
            };
            router.call_at(Address::from(workspace), addresses, stream)
        };
        done.map_err(|error| error.status())
    }
}

/// Gives a new descriptor to the caller.
///
/// # Safety
/// `descriptor` is null or valid for writing.
unsafe fn give(
    descriptor: *mut *mut InfiniopDescriptor,
    made: InfiniopDescriptor,
) -> Result<(), Status> {
    // SAFETY: the caller promises that `descriptor` is null or valid for writing.
    unsafe { put(descriptor, Box::into_raw(Box::new(made))) }
}

unsafe fn workspace_size(descriptor: *const InfiniopDescriptor, size: *mut usize) -> Code {
    // SAFETY: the caller promises that `descriptor` is null or valid for reading, and `size` null
    // or valid for writing.
    guard(|| unsafe { put(size, at(descriptor)?.workspace_size) })
}

/// Creates DeepSeek-V3's router for logits `[tokens, experts]` and a correction bias `[experts]`.
/// `correction_bias` may be null: then the router has no bias.
///
/// # Safety
/// Each pointer is null or comes from the function that makes its type; `descriptor` is null or
/// valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateTopkrouterDescriptor(
    handle: *const InfiniopHandle,
    descriptor: *mut *mut InfiniopDescriptor,
    x: *const InfiniopTensorDescriptor,
    correction_bias: *const InfiniopTensorDescriptor,
) -> Code {
    guard(|| {
        // SAFETY: the caller promises valid or null pointers.
        unsafe {
            let bias = correction_bias.as_ref().map(InfiniopTensorDescriptor::desc);
            let made = InfiniopDescriptor::new(at(handle)?, deepseek(), at(x)?.desc(), bias)?;
            give(descriptor, made)
        }
    })
}

/// Writes the size in bytes of a workspace that is enough for every `topk`.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopkrouterDescriptor`; `size` is null or valid for
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetTopkrouterWorkspaceSize(
    descriptor: *const InfiniopDescriptor,
    size: *mut usize,
) -> Code {
    // SAFETY: the caller promises that both pointers are null or valid.
    unsafe { workspace_size(descriptor, size) }
}

/// Chooses `topk` experts per token: the weights `values` f32 and the experts `indices` i32, both
/// `[tokens, topk]` and packed.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopkrouterDescriptor`. Each pointer to memory is
/// null, or points to memory of the descriptor's device that is large enough, until the work is
/// done.
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
        let settings = Settings { topk, scale: routed_scaling_factor, renormalize: true };
        // SAFETY: the caller promises a valid or null descriptor, and memory that is null or large
        // enough until the work is done.
        unsafe {
            let descriptor = at(descriptor)?;
            let bias = descriptor.bias.map(|_| Address::from(correction_bias));
            let addresses = addresses(x, bias, values, indices);
            descriptor.calculate(settings, (workspace, workspace_size), addresses, stream)
        }
    })
}

/// Destroys a descriptor of `topkrouter`.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopkrouterDescriptor`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyTopkrouterDescriptor(
    descriptor: *mut InfiniopDescriptor,
) -> Code {
    // SAFETY: the caller promises that `descriptor` is null or used by nobody any more.
    unsafe { destroy(descriptor) }
}

/// Creates a softmax router for logits `[tokens, experts]`.
///
/// # Safety
/// Each pointer is null or comes from the function that makes its type; `descriptor` is null or
/// valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopCreateTopksoftmaxDescriptor(
    handle: *const InfiniopHandle,
    descriptor: *mut *mut InfiniopDescriptor,
    x: *const InfiniopTensorDescriptor,
) -> Code {
    guard(|| {
        // SAFETY: the caller promises valid or null pointers.
        unsafe {
            let x = at(x)?.desc();
            let made = InfiniopDescriptor::new(at(handle)?, TopkRouter::new(1), x, None)?;
            give(descriptor, made)
        }
    })
}

/// Writes the size in bytes of a workspace that is enough for every `topk`.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopksoftmaxDescriptor`; `size` is null or valid for
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetTopksoftmaxWorkspaceSize(
    descriptor: *const InfiniopDescriptor,
    size: *mut usize,
) -> Code {
    // SAFETY: the caller promises that both pointers are null or valid.
    unsafe { workspace_size(descriptor, size) }
}

/// The `topk` largest probabilities of each token, divided by their sum unless `norm` is 0: the
/// probabilities `values` f32 and the experts `indices` i32, both `[tokens, topk]` and packed.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopksoftmaxDescriptor`. Each pointer to memory is
/// null, or points to memory of the descriptor's device that is large enough, until the work is
/// done.
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
        let settings = Settings { topk, scale: 1.0, renormalize: norm != 0 };
        let addresses = addresses(x, None, values, indices);
        // SAFETY: the caller promises a valid or null descriptor, and memory that is null or large
        // enough until the work is done.
        unsafe {
            at(descriptor)?.calculate(settings, (workspace, workspace_size), addresses, stream)
        }
    })
}

/// Destroys a descriptor of `topksoftmax`.
///
/// # Safety
/// `descriptor` is null or from `infiniopCreateTopksoftmaxDescriptor`, and nobody uses it any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopDestroyTopksoftmaxDescriptor(
    descriptor: *mut InfiniopDescriptor,
) -> Code {
    // SAFETY: the caller promises that `descriptor` is null or used by nobody any more.
    unsafe { destroy(descriptor) }
}

/// Writes the kind of device to which a descriptor belongs.
///
/// # Safety
/// `descriptor` is null or from one of the create functions; `device` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infiniopGetDescriptorDeviceType(
    descriptor: *const InfiniopDescriptor,
    device: *mut i32,
) -> Code {
    // SAFETY: the caller promises that both pointers are null or valid.
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
    // SAFETY: the caller promises that both pointers are null or valid.
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
