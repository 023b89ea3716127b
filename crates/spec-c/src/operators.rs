//! The functions of each operator, one macro for all: `spec_NAME_defaults`, `spec_NAME_create`
//! and `spec_NAME_calculate`; and the presets of topk_router.

use std::ffi::{c_char, c_void};

use spec::ops::topk_router::preset;
use spec::{Error, Result, Status};

use crate::device::spec_handle;
use crate::operator::{calculate, create, defaults, spec_descriptor};
use crate::status::{guard, place_for, spec_status, text};
use crate::structs::{self, Layout, spec_struct};

macro_rules! functions {
    ($($module:ident: $operator:ident,)+) => {$(
        #[doc = concat!("The functions of ", stringify!($module), ".")]
        pub mod $module {
            use super::*;
            use spec::ops::$operator;

            /// Sets the parameters to their defaults, and those that a caller must give to 0.
            ///
            /// # Errors
            /// Status 4 for a null pointer, 3 for a `size` that is none.
            ///
            /// # Safety
            /// `params` has its `size` set.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_defaults"))]
            pub unsafe extern "C" fn defaults(params: *mut spec_struct) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_defaults");
                // SAFETY: this function's own contract is the other's.
                unsafe { super::defaults::<$operator>(call, params) }
            }

            /// Creates the operator for these tensors on the handle's device.
            ///
            /// # Errors
            /// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
            /// lacks it, 1 or 8 where the device cannot run it.
            ///
            /// # Safety
            /// `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is
            /// a place.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_create"))]
            pub unsafe extern "C" fn create(
                handle: *const spec_handle,
                params: *const spec_struct,
                tensors: *const spec_struct,
                descriptor: *mut *mut spec_descriptor,
            ) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_create");
                // SAFETY: this function's own contract is the other's.
                unsafe { super::create::<$operator>(call, handle, params, tensors, descriptor) }
            }

            /// Enqueues the operator on `stream`, and does nothing else.
            ///
            /// # Errors
            /// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
            /// aligned, 13 for a workspace that is too small, 1 where the device refuses.
            ///
            /// # Safety
            /// `descriptor` is from the operator's `create`, `workspace` has `workspace_size`
            /// bytes, and each buffer as many elements as its tensor spans, until the work is
            /// done.
            #[unsafe(export_name = concat!("spec_", stringify!($module), "_calculate"))]
            pub unsafe extern "C" fn calculate(
                descriptor: *const spec_descriptor,
                workspace: *mut c_void,
                workspace_size: usize,
                buffers: *const spec_struct,
                stream: *mut c_void,
            ) -> spec_status {
                let call = concat!("spec_", stringify!($module), "_calculate");
                // SAFETY: this function's own contract is the other's.
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

/// Sets the parameters of topk_router to those of a published model: "DeepSeek-V3",
/// "Kimi K2", "Mixtral" and so on. `experts` becomes its number of experts and
/// `has_bias` 1 where it has a correction bias, else 0; both may be NULL.
///
/// # Errors
/// Status 3 for a model that is not known, with the names of those that are, or a
/// `size` that is none; 4 for a null pointer.
///
/// # Safety
/// `model` is text that ends with a zero; `params` has its `size` set.
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
        let found = named(call, model)?;
        let fields = Layout::of::<spec::ops::TopkRouter>().params(&found.router())?;
        // SAFETY: `params` has its size set, by this function's own contract.
        unsafe { structs::write(call, "params", params, &fields)? };
        if !experts.is_null() {
            // SAFETY: it is not null, and so a place.
            unsafe { place_for(call, "experts", experts)? }.write(found.experts());
        }
        if !has_bias.is_null() {
            // SAFETY: it is not null, and so a place.
            unsafe { place_for(call, "has_bias", has_bias)? }.write(u32::from(found.has_bias()));
        }
        Ok(())
    })
}

fn named(call: &'static str, model: &str) -> Result<&'static preset::Preset> {
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
