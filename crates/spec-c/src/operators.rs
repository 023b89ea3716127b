//! The exported functions of each operator, written by one macro: `spec_NAME_defaults`,
//! `spec_NAME_create` and `spec_NAME_calculate`; and the presets of topk_router.

use std::ffi::{c_char, c_void};

use spec::ops::topk_router::preset;
use spec::{Error, Result, Status};

use crate::device::spec_handle;
use crate::operator::{calculate, create, defaults, spec_descriptor};
use crate::status::{guard, out_pointer, spec_status, text};
use crate::structs::{self, Layout, spec_struct};

macro_rules! functions {
    ($($module:ident: $operator:ident,)+) => {$(
        #[doc = concat!("The functions of ", stringify!($module), ".")]
        pub mod $module {
            use super::*;
            use spec::ops::$operator;

            /// Sets the parameters to their defaults. Parameters without a default, which the
            /// caller must set, become 0.
            ///
            /// # Errors
            /// Status 4 for a null pointer, 3 for a `size` that is no struct's size.
            ///
            /// # Safety
            /// `params` has its `size` set.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_defaults"))]
            pub unsafe extern "C" fn defaults(params: *mut spec_struct) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_defaults");
                // SAFETY: the caller promises that `params` is null or has its `size` set.
                unsafe { super::defaults::<$operator>(call, params) }
            }

            /// Creates the operator for the described tensors on the handle's device.
            ///
            /// # Errors
            /// Status 3, 4, 10, 11 or 12 for a wrong parameter or tensor, 2 if the backend lacks
            /// the operator, 1 or 8 if the device cannot run it.
            ///
            /// # Safety
            /// `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is
            /// NULL or points to memory for a pointer.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_create"))]
            pub unsafe extern "C" fn create(
                handle: *const spec_handle,
                params: *const spec_struct,
                tensors: *const spec_struct,
                descriptor: *mut *mut spec_descriptor,
            ) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_create");
                // SAFETY: the caller promises that every pointer is null or points to what `create`
                // asks for.
                unsafe { super::create::<$operator>(call, handle, params, tensors, descriptor) }
            }

            /// Enqueues the operator on `stream`: no allocation, no copy, no wait. On the CPU the
            /// work is done when the function returns.
            ///
            /// # Errors
            /// Status 3, 4 or 5 for an invalid descriptor, buffer or stream, or a buffer that is
            /// not aligned; 11 for a `spec_memory` that is too small; 13 for a workspace that is
            /// too small; 1 if the device refuses.
            ///
            /// # Safety
            /// `descriptor` is from the operator's `create`. Until the work is done, `workspace`
            /// has `workspace_size` bytes, and each buffer has as many elements as its tensor
            /// spans.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_calculate"))]
            pub unsafe extern "C" fn calculate(
                descriptor: *const spec_descriptor,
                workspace: *mut c_void,
                workspace_size: usize,
                buffers: *const spec_struct,
                stream: *mut c_void,
            ) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_calculate");
                // SAFETY: the caller promises valid buffers, workspace and stream until the work is
                // done.
                unsafe {
                    super::calculate::<$operator>(
                        call, descriptor, workspace, workspace_size, buffers, stream,
                    )
                }
            }
        }
    )+};
}

spec::for_each_operator!(functions);

/// Sets the parameters of topk_router to those of a published model, for example "DeepSeek-V3",
/// "Kimi K2" or "Mixtral". `experts` becomes the model's number of experts; `has_bias` becomes 1
/// if the model has a correction bias, otherwise 0. `experts` and `has_bias` may be NULL.
///
/// # Errors
/// Status 3 for an unknown model, with the names of the known models in the sentence, or for a
/// `size` that is no struct's size; 4 for a null pointer.
///
/// # Safety
/// `model` is NULL or text that ends with a zero; `params` is NULL or has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_topk_router_preset(
    model: *const c_char,
    params: *mut spec_struct,
    experts: *mut usize,
    has_bias: *mut u32,
) -> spec_status {
    let call = "spec_topk_router_preset";
    guard(call, || {
        // SAFETY: `model` ends with a zero, by this function's own contract.
        let model = unsafe { text(call, "model", model)? };
        let found = find_preset(call, model)?;
        let fields = Layout::of::<spec::ops::TopkRouter>().params(&found.router())?;
        // SAFETY: `params` has its size set, by this function's own contract.
        unsafe { structs::write(call, "params", params, &fields)? };
        if !experts.is_null() {
            // SAFETY: not null, so valid for writing, by this function's own contract.
            unsafe { out_pointer(call, "experts", experts)? }.write(found.experts());
        }
        if !has_bias.is_null() {
            // SAFETY: not null, so valid for writing, by this function's own contract.
            unsafe { out_pointer(call, "has_bias", has_bias)? }.write(u32::from(found.has_bias()));
        }
        Ok(())
    })
}

fn find_preset(call: &'static str, model: &str) -> Result<&'static preset::Preset> {
    preset::ALL.iter().find(|preset| preset.model() == model).ok_or_else(|| {
        let known: Vec<_> = preset::ALL.iter().map(|preset| preset.model()).collect();
        Error::Argument {
            status: Status::BadParam,
            operator: call,
            argument: "model",
            value: format!("{model:?}"),
            expected: format!("one of {}", known.join(", ")).into(),
        }
    })
}
