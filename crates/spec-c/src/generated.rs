//! Written by `cargo xtask bindings` from the contract's lists: do not edit.

use std::ffi::c_void;

use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};

use crate::device::spec_handle;
use crate::operator::{Bound, calculate, create, defaults, spec_descriptor};
use crate::params::{
    spec_deduplicate_topk_params, spec_hybrid_mtp_ngram_params, spec_indexer_topk_params,
    spec_moe_align_params, spec_ngram_match_params, spec_prompt_lookup_params,
    spec_rejection_sample_params, spec_sample_logits_params, spec_topk_router_params,
    spec_tree_verify_params, spec_unique_params,
};
use crate::status::spec_status;
use crate::tensor::{Slots, spec_tensor};
use crate::versioned::Versioned;

/// Descriptors of the arguments of topk_router.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_topk_router_tensors {
    /// sizeof(spec_topk_router_tensors).
    pub size: usize,
    /// `[tokens, experts]`, f32 or f16 or bf16: read.
    /// Logits of 1 to 4096 experts.
    pub x: spec_tensor,
    /// `[experts]`, f32 or f16 or bf16: read, optional.
    /// Correction bias, added to what experts are chosen by.
    pub bias: spec_tensor,
    /// `[1]`, i32: read, optional.
    /// How many rows are tokens; those behind them are padding. Absent: all are.
    pub num_tokens: spec_tensor,
    /// `[experts, most]`, i32: read, optional.
    /// The places of each expert on all devices, each in `0..physical_experts`.
    pub replicas: spec_tensor,
    /// `[experts]`, i32: read, optional.
    /// How many of them each expert has, at least 1: given with `replicas`.
    pub replica_counts: spec_tensor,
    /// `[tokens, topk + shared_experts]`, f32: written.
    /// Routing weights.
    pub weights: spec_tensor,
    /// `[tokens, topk + shared_experts]`, i32 or u32 or i64: written.
    /// Experts in descending order of choice, or their places; -1 in rows of padding.
    /// As u32, -1 is 2^32 - 1.
    pub indices: spec_tensor,
    /// `[physical_experts]`, i32: changed in place, optional.
    /// How many picks went to each expert, or to each place where there are
    /// `replicas`, added to what is there; shared experts are not counted.
    pub load: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_topk_router_tensors {}

impl Default for spec_topk_router_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_topk_router_tensors {
    const ABSENT: Self = spec_topk_router_tensors {
        size: size_of::<Self>(),
        x: spec_tensor::ABSENT,
        bias: spec_tensor::ABSENT,
        num_tokens: spec_tensor::ABSENT,
        replicas: spec_tensor::ABSENT,
        replica_counts: spec_tensor::ABSENT,
        weights: spec_tensor::ABSENT,
        indices: spec_tensor::ABSENT,
        load: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_topk_router_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.x,
            1 => self.bias,
            2 => self.num_tokens,
            3 => self.replicas,
            4 => self.replica_counts,
            5 => self.weights,
            6 => self.indices,
            7 => self.load,
            8 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of topk_router.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_topk_router_buffers {
    /// sizeof(spec_topk_router_buffers).
    pub size: usize,
    /// `[tokens, experts]`, f32 or f16 or bf16: read.
    pub x: *const c_void,
    /// `[experts]`, f32 or f16 or bf16: read, optional.
    pub bias: *const c_void,
    /// `[1]`, i32: read, optional.
    pub num_tokens: *const c_void,
    /// `[experts, most]`, i32: read, optional.
    pub replicas: *const c_void,
    /// `[experts]`, i32: read, optional.
    pub replica_counts: *const c_void,
    /// `[tokens, topk + shared_experts]`, f32: written.
    pub weights: *mut c_void,
    /// `[tokens, topk + shared_experts]`, i32 or u32 or i64: written.
    pub indices: *mut c_void,
    /// `[physical_experts]`, i32: changed in place, optional.
    pub load: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_topk_router_buffers {}

impl Default for spec_topk_router_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_topk_router_buffers {
    const ABSENT: Self = spec_topk_router_buffers {
        size: size_of::<Self>(),
        x: std::ptr::null(),
        bias: std::ptr::null(),
        num_tokens: std::ptr::null(),
        replicas: std::ptr::null(),
        replica_counts: std::ptr::null(),
        weights: std::ptr::null_mut(),
        indices: std::ptr::null_mut(),
        load: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_topk_router_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.x.cast_mut(),
            1 => self.bias.cast_mut(),
            2 => self.num_tokens.cast_mut(),
            3 => self.replicas.cast_mut(),
            4 => self.replica_counts.cast_mut(),
            5 => self.weights,
            6 => self.indices,
            7 => self.load,
            8 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for TopkRouter {
    type CParams = spec_topk_router_params;
    type CTensors = spec_topk_router_tensors;
    type CBuffers = spec_topk_router_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_topk_router_tensors::ABSENT, spec_topk_router_buffers::ABSENT);
}

/// Sets the parameters of topk_router to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_topk_router_defaults(
    params: *mut spec_topk_router_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<TopkRouter>("spec_topk_router_defaults", params) }
}

/// Mixture-of-experts routing: the `topk` experts of each token.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `x` `[tokens, experts]`, f32 or f16 or bf16: read.
/// - `bias` `[experts]`, f32 or f16 or bf16: read, optional.
/// - `num_tokens` `[1]`, i32: read, optional.
/// - `replicas` `[experts, most]`, i32: read, optional.
/// - `replica_counts` `[experts]`, i32: read, optional.
/// - `weights` `[tokens, topk + shared_experts]`, f32: written.
/// - `indices` `[tokens, topk + shared_experts]`, i32 or u32 or i64: written.
/// - `load` `[physical_experts]`, i32: changed in place, optional.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_topk_router_create(
    handle: *const spec_handle,
    params: *const spec_topk_router_params,
    tensors: *const spec_topk_router_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_topk_router_create";
    // SAFETY: the caller's.
    unsafe { create::<TopkRouter>(call, handle, params, tensors, descriptor) }
}

/// Enqueues topk_router on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_topk_router_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_topk_router_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_topk_router_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_topk_router_calculate";
    // SAFETY: the caller's.
    unsafe { calculate::<TopkRouter>(call, descriptor, workspace, workspace_size, buffers, stream) }
}

/// Descriptors of the arguments of deduplicate_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_deduplicate_topk_tensors {
    /// sizeof(spec_deduplicate_topk_tensors).
    pub size: usize,
    /// `[batch * mtp_step, k]`, i32: read.
    /// Candidates `[batch * mtp_step, k]`, i32; negative ones are padding. The batch fits an i32.
    pub indices: spec_tensor,
    /// `[batch, mtp_step * k]`, i32: written.
    /// Distinct values `[batch, mtp_step * k]`, i32, ascending, then -1.
    pub unique: spec_tensor,
    /// `[batch]`, i32: written, optional.
    /// How many distinct values `[batch]`, i32.
    pub counts: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_deduplicate_topk_tensors {}

impl Default for spec_deduplicate_topk_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_deduplicate_topk_tensors {
    const ABSENT: Self = spec_deduplicate_topk_tensors {
        size: size_of::<Self>(),
        indices: spec_tensor::ABSENT,
        unique: spec_tensor::ABSENT,
        counts: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_deduplicate_topk_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.indices,
            1 => self.unique,
            2 => self.counts,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of deduplicate_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_deduplicate_topk_buffers {
    /// sizeof(spec_deduplicate_topk_buffers).
    pub size: usize,
    /// `[batch * mtp_step, k]`, i32: read.
    pub indices: *const c_void,
    /// `[batch, mtp_step * k]`, i32: written.
    pub unique: *mut c_void,
    /// `[batch]`, i32: written, optional.
    pub counts: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_deduplicate_topk_buffers {}

impl Default for spec_deduplicate_topk_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_deduplicate_topk_buffers {
    const ABSENT: Self = spec_deduplicate_topk_buffers {
        size: size_of::<Self>(),
        indices: std::ptr::null(),
        unique: std::ptr::null_mut(),
        counts: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_deduplicate_topk_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.indices.cast_mut(),
            1 => self.unique,
            2 => self.counts,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for DeduplicateTopk {
    type CParams = spec_deduplicate_topk_params;
    type CTensors = spec_deduplicate_topk_tensors;
    type CBuffers = spec_deduplicate_topk_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_deduplicate_topk_tensors::ABSENT, spec_deduplicate_topk_buffers::ABSENT);
}

/// Sets the parameters of deduplicate_topk to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_deduplicate_topk_defaults(
    params: *mut spec_deduplicate_topk_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<DeduplicateTopk>("spec_deduplicate_topk_defaults", params) }
}

/// The distinct values of each request's top-k rows, ascending.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `indices` `[batch * mtp_step, k]`, i32: read.
/// - `unique` `[batch, mtp_step * k]`, i32: written.
/// - `counts` `[batch]`, i32: written, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_deduplicate_topk_create(
    handle: *const spec_handle,
    params: *const spec_deduplicate_topk_params,
    tensors: *const spec_deduplicate_topk_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_deduplicate_topk_create";
    // SAFETY: the caller's.
    unsafe { create::<DeduplicateTopk>(call, handle, params, tensors, descriptor) }
}

/// Enqueues deduplicate_topk on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_deduplicate_topk_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_deduplicate_topk_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_deduplicate_topk_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_deduplicate_topk_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<DeduplicateTopk>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of rejection_sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_rejection_sample_tensors {
    /// sizeof(spec_rejection_sample_tensors).
    pub size: usize,
    /// `[tokens, vocab]`, f32 or f16 or bf16: read.
    /// The target model's probabilities, a row for each draft. At a request's
    /// first step: what the target says after the prompt, and after each
    /// draft but the last.
    pub target_probs: spec_tensor,
    /// `[tokens, vocab]`, f32 or f16 or bf16: read, optional.
    /// The probabilities that each draft was drawn from, in the type of
    /// `target_probs`; absent where drafts are deterministic. Not read for
    /// greedy requests. At the first step: the drafter's rows after the prompt.
    pub draft_probs: spec_tensor,
    /// `[tokens]`, i64 or i32 or u32: read.
    /// Draft tokens, the requests' one after the other. At the first step: a
    /// guess of what follows the prompt.
    pub draft_token_ids: spec_tensor,
    /// `[batch]`, i64 or i32 or u32: read.
    /// The token that follows if all drafts are accepted, drawn from the
    /// target's row behind them. At the first step, where there are no
    /// drafts yet: the first token after the prompt.
    pub bonus_token_ids: spec_tensor,
    /// `[batch + 1] or [batch]`, i64 or i32 or u32: read.
    /// Where each request's drafts end, and with the leading 0 also where they
    /// start: `[0, 3, 5]` or `[3, 5]` for 3 and 2 drafts. At the first step
    /// without drafts: the number before it once more.
    pub cu_num_draft: spec_tensor,
    /// `[tokens]`, f32: read, optional.
    /// Acceptance draws in [0, 1), one a draft; absent: drawn from `seeds` and
    /// `positions`. Not read for greedy requests. At the first step: as at any.
    pub uniform_samples: spec_tensor,
    /// `[batch]`, u64: read, optional.
    /// Each request's seed. Required where anything is drawn: unless acceptance
    /// is greedy, for `Sample` recovery and where `uniform_samples` is absent.
    /// At the first step: any number, kept for as long as the request lives.
    pub seeds: spec_tensor,
    /// `[batch]`, i64 or i32: read, optional.
    /// The position of each request's first draft in its own text, prompt
    /// included. Required where `seeds` is. At the first step: the number of
    /// tokens of the prompt; then it grows by what was emitted.
    pub positions: spec_tensor,
    /// `[batch]`, i32 or i8 or u8 or bool: read, optional.
    /// Not 0 for each request that follows the target's argmax, whatever
    /// `acceptance` says of the others; absent: none. At the first step, and
    /// at all others: whether the request's temperature is 0.
    pub greedy: spec_tensor,
    /// `[batch, max_spec_len + 1]`, i32 or i64 or u32: written.
    /// Emitted tokens: the accepted drafts, then the recovered or the bonus
    /// token, then -1 (the largest number, in a `u32`). What they held before
    /// does not matter, at the first step or later.
    pub output_token_ids: spec_tensor,
    /// `[batch]`, i32: written.
    /// Tokens emitted: recovered or bonus included, so never 0.
    pub num_accepted: spec_tensor,
    /// `[batch]`, i32: written.
    /// Draft tokens accepted; 0 at a first step without drafts.
    pub accepted_counts: spec_tensor,
    /// `[batch]`, i32: written.
    /// 1 where a recovered token was emitted; 0 at a first step without drafts.
    pub recovered_counts: spec_tensor,
    /// `[batch]`, i32: written.
    /// 1 where the bonus token was emitted; 1 at a first step without drafts.
    pub bonus_counts: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed; cleared by the caller, before the first step if ever.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_rejection_sample_tensors {}

impl Default for spec_rejection_sample_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_rejection_sample_tensors {
    const ABSENT: Self = spec_rejection_sample_tensors {
        size: size_of::<Self>(),
        target_probs: spec_tensor::ABSENT,
        draft_probs: spec_tensor::ABSENT,
        draft_token_ids: spec_tensor::ABSENT,
        bonus_token_ids: spec_tensor::ABSENT,
        cu_num_draft: spec_tensor::ABSENT,
        uniform_samples: spec_tensor::ABSENT,
        seeds: spec_tensor::ABSENT,
        positions: spec_tensor::ABSENT,
        greedy: spec_tensor::ABSENT,
        output_token_ids: spec_tensor::ABSENT,
        num_accepted: spec_tensor::ABSENT,
        accepted_counts: spec_tensor::ABSENT,
        recovered_counts: spec_tensor::ABSENT,
        bonus_counts: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_rejection_sample_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.target_probs,
            1 => self.draft_probs,
            2 => self.draft_token_ids,
            3 => self.bonus_token_ids,
            4 => self.cu_num_draft,
            5 => self.uniform_samples,
            6 => self.seeds,
            7 => self.positions,
            8 => self.greedy,
            9 => self.output_token_ids,
            10 => self.num_accepted,
            11 => self.accepted_counts,
            12 => self.recovered_counts,
            13 => self.bonus_counts,
            14 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of rejection_sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_rejection_sample_buffers {
    /// sizeof(spec_rejection_sample_buffers).
    pub size: usize,
    /// `[tokens, vocab]`, f32 or f16 or bf16: read.
    pub target_probs: *const c_void,
    /// `[tokens, vocab]`, f32 or f16 or bf16: read, optional.
    pub draft_probs: *const c_void,
    /// `[tokens]`, i64 or i32 or u32: read.
    pub draft_token_ids: *const c_void,
    /// `[batch]`, i64 or i32 or u32: read.
    pub bonus_token_ids: *const c_void,
    /// `[batch + 1] or [batch]`, i64 or i32 or u32: read.
    pub cu_num_draft: *const c_void,
    /// `[tokens]`, f32: read, optional.
    pub uniform_samples: *const c_void,
    /// `[batch]`, u64: read, optional.
    pub seeds: *const c_void,
    /// `[batch]`, i64 or i32: read, optional.
    pub positions: *const c_void,
    /// `[batch]`, i32 or i8 or u8 or bool: read, optional.
    pub greedy: *const c_void,
    /// `[batch, max_spec_len + 1]`, i32 or i64 or u32: written.
    pub output_token_ids: *mut c_void,
    /// `[batch]`, i32: written.
    pub num_accepted: *mut c_void,
    /// `[batch]`, i32: written.
    pub accepted_counts: *mut c_void,
    /// `[batch]`, i32: written.
    pub recovered_counts: *mut c_void,
    /// `[batch]`, i32: written.
    pub bonus_counts: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_rejection_sample_buffers {}

impl Default for spec_rejection_sample_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_rejection_sample_buffers {
    const ABSENT: Self = spec_rejection_sample_buffers {
        size: size_of::<Self>(),
        target_probs: std::ptr::null(),
        draft_probs: std::ptr::null(),
        draft_token_ids: std::ptr::null(),
        bonus_token_ids: std::ptr::null(),
        cu_num_draft: std::ptr::null(),
        uniform_samples: std::ptr::null(),
        seeds: std::ptr::null(),
        positions: std::ptr::null(),
        greedy: std::ptr::null(),
        output_token_ids: std::ptr::null_mut(),
        num_accepted: std::ptr::null_mut(),
        accepted_counts: std::ptr::null_mut(),
        recovered_counts: std::ptr::null_mut(),
        bonus_counts: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_rejection_sample_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.target_probs.cast_mut(),
            1 => self.draft_probs.cast_mut(),
            2 => self.draft_token_ids.cast_mut(),
            3 => self.bonus_token_ids.cast_mut(),
            4 => self.cu_num_draft.cast_mut(),
            5 => self.uniform_samples.cast_mut(),
            6 => self.seeds.cast_mut(),
            7 => self.positions.cast_mut(),
            8 => self.greedy.cast_mut(),
            9 => self.output_token_ids,
            10 => self.num_accepted,
            11 => self.accepted_counts,
            12 => self.recovered_counts,
            13 => self.bonus_counts,
            14 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for RejectionSample {
    type CParams = spec_rejection_sample_params;
    type CTensors = spec_rejection_sample_tensors;
    type CBuffers = spec_rejection_sample_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_rejection_sample_tensors::ABSENT, spec_rejection_sample_buffers::ABSENT);
}

/// Sets the parameters of rejection_sample to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_rejection_sample_defaults(
    params: *mut spec_rejection_sample_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<RejectionSample>("spec_rejection_sample_defaults", params) }
}

/// Verifies draft tokens against the target model (Leviathan et al., 2023).
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `target_probs` `[tokens, vocab]`, f32 or f16 or bf16: read.
/// - `draft_probs` `[tokens, vocab]`, f32 or f16 or bf16: read, optional.
/// - `draft_token_ids` `[tokens]`, i64 or i32 or u32: read.
/// - `bonus_token_ids` `[batch]`, i64 or i32 or u32: read.
/// - `cu_num_draft` `[batch + 1] or [batch]`, i64 or i32 or u32: read.
/// - `uniform_samples` `[tokens]`, f32: read, optional.
/// - `seeds` `[batch]`, u64: read, optional.
/// - `positions` `[batch]`, i64 or i32: read, optional.
/// - `greedy` `[batch]`, i32 or i8 or u8 or bool: read, optional.
/// - `output_token_ids` `[batch, max_spec_len + 1]`, i32 or i64 or u32: written.
/// - `num_accepted` `[batch]`, i32: written.
/// - `accepted_counts` `[batch]`, i32: written.
/// - `recovered_counts` `[batch]`, i32: written.
/// - `bonus_counts` `[batch]`, i32: written.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_rejection_sample_create(
    handle: *const spec_handle,
    params: *const spec_rejection_sample_params,
    tensors: *const spec_rejection_sample_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_rejection_sample_create";
    // SAFETY: the caller's.
    unsafe { create::<RejectionSample>(call, handle, params, tensors, descriptor) }
}

/// Enqueues rejection_sample on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_rejection_sample_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_rejection_sample_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_rejection_sample_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_rejection_sample_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<RejectionSample>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of sample_logits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_sample_logits_tensors {
    /// sizeof(spec_sample_logits_tensors).
    pub size: usize,
    /// `[rows, vocab]`, f32 or f16 or bf16: read.
    /// Logits, as the model gives them.
    pub logits: spec_tensor,
    /// `[rows]`, i64 or i32: read.
    /// The position in its own text of the token that each row decides; the
    /// first token of a prompt has position 0.
    pub positions: spec_tensor,
    /// `[requests]`, f32: read.
    /// The temperature of each request; 0 takes the likeliest token. Cut to
    /// 2^-100 .. 2^100.
    pub temperature: spec_tensor,
    /// `[requests]`, u64: read.
    /// The seed of each request's random numbers.
    pub seeds: spec_tensor,
    /// `[requests]`, i32: read, optional.
    /// How many of the likeliest tokens each request keeps; 0 or less, or
    /// more than there are, keeps all.
    pub top_k: spec_tensor,
    /// `[requests]`, f32: read, optional.
    /// The share of probability that the likeliest tokens must reach; 1 or
    /// more keeps all, 0 or less the likeliest.
    pub top_p: spec_tensor,
    /// `[requests]`, f32: read, optional.
    /// The share of the likeliest token's probability below which tokens are
    /// dropped; 0 or less drops none.
    pub min_p: spec_tensor,
    /// `[rows]`, i32 or u32 or i64: read, optional.
    /// The request of each row; absent: row r is request r.
    pub requests: spec_tensor,
    /// `[rows, ceil(vocab / 32)]`, i32: read, optional.
    /// Bit `v % 32` of word `v / 32` is set where a row may choose token `v`.
    pub mask: spec_tensor,
    /// `[rows]`, i32 or u32 or i64: written.
    /// The tokens chosen.
    pub tokens: spec_tensor,
    /// `[rows, vocab]`, f32: written, optional.
    /// What each token was drawn from, exact to the bit; 1 at the token where
    /// none was drawn.
    pub probs: spec_tensor,
    /// `[rows]`, f32: written, optional.
    /// The natural logarithm of the token's probability by the logits alone,
    /// without temperature, mask and filters.
    pub logprobs: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_sample_logits_tensors {}

impl Default for spec_sample_logits_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_sample_logits_tensors {
    const ABSENT: Self = spec_sample_logits_tensors {
        size: size_of::<Self>(),
        logits: spec_tensor::ABSENT,
        positions: spec_tensor::ABSENT,
        temperature: spec_tensor::ABSENT,
        seeds: spec_tensor::ABSENT,
        top_k: spec_tensor::ABSENT,
        top_p: spec_tensor::ABSENT,
        min_p: spec_tensor::ABSENT,
        requests: spec_tensor::ABSENT,
        mask: spec_tensor::ABSENT,
        tokens: spec_tensor::ABSENT,
        probs: spec_tensor::ABSENT,
        logprobs: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_sample_logits_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.logits,
            1 => self.positions,
            2 => self.temperature,
            3 => self.seeds,
            4 => self.top_k,
            5 => self.top_p,
            6 => self.min_p,
            7 => self.requests,
            8 => self.mask,
            9 => self.tokens,
            10 => self.probs,
            11 => self.logprobs,
            12 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of sample_logits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_sample_logits_buffers {
    /// sizeof(spec_sample_logits_buffers).
    pub size: usize,
    /// `[rows, vocab]`, f32 or f16 or bf16: read.
    pub logits: *const c_void,
    /// `[rows]`, i64 or i32: read.
    pub positions: *const c_void,
    /// `[requests]`, f32: read.
    pub temperature: *const c_void,
    /// `[requests]`, u64: read.
    pub seeds: *const c_void,
    /// `[requests]`, i32: read, optional.
    pub top_k: *const c_void,
    /// `[requests]`, f32: read, optional.
    pub top_p: *const c_void,
    /// `[requests]`, f32: read, optional.
    pub min_p: *const c_void,
    /// `[rows]`, i32 or u32 or i64: read, optional.
    pub requests: *const c_void,
    /// `[rows, ceil(vocab / 32)]`, i32: read, optional.
    pub mask: *const c_void,
    /// `[rows]`, i32 or u32 or i64: written.
    pub tokens: *mut c_void,
    /// `[rows, vocab]`, f32: written, optional.
    pub probs: *mut c_void,
    /// `[rows]`, f32: written, optional.
    pub logprobs: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_sample_logits_buffers {}

impl Default for spec_sample_logits_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_sample_logits_buffers {
    const ABSENT: Self = spec_sample_logits_buffers {
        size: size_of::<Self>(),
        logits: std::ptr::null(),
        positions: std::ptr::null(),
        temperature: std::ptr::null(),
        seeds: std::ptr::null(),
        top_k: std::ptr::null(),
        top_p: std::ptr::null(),
        min_p: std::ptr::null(),
        requests: std::ptr::null(),
        mask: std::ptr::null(),
        tokens: std::ptr::null_mut(),
        probs: std::ptr::null_mut(),
        logprobs: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_sample_logits_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.logits.cast_mut(),
            1 => self.positions.cast_mut(),
            2 => self.temperature.cast_mut(),
            3 => self.seeds.cast_mut(),
            4 => self.top_k.cast_mut(),
            5 => self.top_p.cast_mut(),
            6 => self.min_p.cast_mut(),
            7 => self.requests.cast_mut(),
            8 => self.mask.cast_mut(),
            9 => self.tokens,
            10 => self.probs,
            11 => self.logprobs,
            12 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for SampleLogits {
    type CParams = spec_sample_logits_params;
    type CTensors = spec_sample_logits_tensors;
    type CBuffers = spec_sample_logits_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_sample_logits_tensors::ABSENT, spec_sample_logits_buffers::ABSENT);
}

/// Sets the parameters of sample_logits to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_sample_logits_defaults(
    params: *mut spec_sample_logits_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<SampleLogits>("spec_sample_logits_defaults", params) }
}

/// From logits to tokens: temperature, top-k, top-p, min-p, an allowed-token
/// mask and a seed, each of its own request.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `logits` `[rows, vocab]`, f32 or f16 or bf16: read.
/// - `positions` `[rows]`, i64 or i32: read.
/// - `temperature` `[requests]`, f32: read.
/// - `seeds` `[requests]`, u64: read.
/// - `top_k` `[requests]`, i32: read, optional.
/// - `top_p` `[requests]`, f32: read, optional.
/// - `min_p` `[requests]`, f32: read, optional.
/// - `requests` `[rows]`, i32 or u32 or i64: read, optional.
/// - `mask` `[rows, ceil(vocab / 32)]`, i32: read, optional.
/// - `tokens` `[rows]`, i32 or u32 or i64: written.
/// - `probs` `[rows, vocab]`, f32: written, optional.
/// - `logprobs` `[rows]`, f32: written, optional.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_sample_logits_create(
    handle: *const spec_handle,
    params: *const spec_sample_logits_params,
    tensors: *const spec_sample_logits_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_sample_logits_create";
    // SAFETY: the caller's.
    unsafe { create::<SampleLogits>(call, handle, params, tensors, descriptor) }
}

/// Enqueues sample_logits on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_sample_logits_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_sample_logits_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_sample_logits_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_sample_logits_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<SampleLogits>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of ngram_match.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_ngram_match_tensors {
    /// sizeof(spec_ngram_match_tensors).
    pub size: usize,
    /// `[batch, max_prompt_len]`, i64 or i32 or u32: read.
    /// The prompts, where patterns are looked for first.
    pub input_ids: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// Tokens in each prompt. The same at every step; 0 for one that is not to be
    /// searched.
    pub input_ids_len: spec_tensor,
    /// `[batch, max_model_len]`, i64 or i32 or u32: read.
    /// Rows in which the generated tokens lie from `prompt_lens` on; what is before
    /// is not read.
    pub token_ids_all: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// Where the generated tokens start in their row: the prompt's length where the
    /// prompt lies before them, or one less, so that its last token counts as
    /// generated and the first step can draft. The same at every step.
    pub prompt_lens: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// The index of the last generated token, counted from `prompt_lens`: one less
    /// than how many there are. 0 at a request's first step, where one token was
    /// generated; nothing is drafted below 1.
    pub step_idx: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: read.
    /// The most drafts of each request; 0 or less for none.
    pub draft_token_num: spec_tensor,
    /// `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
    /// The tokens that the model is run on next. Slot 0 is the last generated token,
    /// which the caller writes and this neither reads nor changes; drafts are written
    /// from slot 1 on, and slots behind the last of them are left as they are.
    pub draft_tokens: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: changed in place.
    /// Tokens of this step: becomes 1 and the number of drafts for a request that
    /// decodes, 0 for an idle one. Read only for one that is being encoded, whose
    /// tokens count against the budget.
    pub seq_lens_this_time: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: read.
    /// Prompt tokens that are being encoded in this step; 0 from a request's first
    /// decoding step on.
    pub seq_lens_encoder: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: read.
    /// Tokens in the cache: at a request's first decoding step, those of the prompt. 0
    /// for a slot without a request, which drafts nothing.
    pub seq_lens_decoder: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// The most tokens to generate, over all steps: no drafts beyond it.
    pub max_dec_len: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_ngram_match_tensors {}

impl Default for spec_ngram_match_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_ngram_match_tensors {
    const ABSENT: Self = spec_ngram_match_tensors {
        size: size_of::<Self>(),
        input_ids: spec_tensor::ABSENT,
        input_ids_len: spec_tensor::ABSENT,
        token_ids_all: spec_tensor::ABSENT,
        prompt_lens: spec_tensor::ABSENT,
        step_idx: spec_tensor::ABSENT,
        draft_token_num: spec_tensor::ABSENT,
        draft_tokens: spec_tensor::ABSENT,
        seq_lens_this_time: spec_tensor::ABSENT,
        seq_lens_encoder: spec_tensor::ABSENT,
        seq_lens_decoder: spec_tensor::ABSENT,
        max_dec_len: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_ngram_match_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.input_ids,
            1 => self.input_ids_len,
            2 => self.token_ids_all,
            3 => self.prompt_lens,
            4 => self.step_idx,
            5 => self.draft_token_num,
            6 => self.draft_tokens,
            7 => self.seq_lens_this_time,
            8 => self.seq_lens_encoder,
            9 => self.seq_lens_decoder,
            10 => self.max_dec_len,
            11 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of ngram_match.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_ngram_match_buffers {
    /// sizeof(spec_ngram_match_buffers).
    pub size: usize,
    /// `[batch, max_prompt_len]`, i64 or i32 or u32: read.
    pub input_ids: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub input_ids_len: *const c_void,
    /// `[batch, max_model_len]`, i64 or i32 or u32: read.
    pub token_ids_all: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub prompt_lens: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub step_idx: *const c_void,
    /// `[batch] or [batch, 1]`, i32: read.
    pub draft_token_num: *const c_void,
    /// `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
    pub draft_tokens: *mut c_void,
    /// `[batch] or [batch, 1]`, i32: changed in place.
    pub seq_lens_this_time: *mut c_void,
    /// `[batch] or [batch, 1]`, i32: read.
    pub seq_lens_encoder: *const c_void,
    /// `[batch] or [batch, 1]`, i32: read.
    pub seq_lens_decoder: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub max_dec_len: *const c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_ngram_match_buffers {}

impl Default for spec_ngram_match_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_ngram_match_buffers {
    const ABSENT: Self = spec_ngram_match_buffers {
        size: size_of::<Self>(),
        input_ids: std::ptr::null(),
        input_ids_len: std::ptr::null(),
        token_ids_all: std::ptr::null(),
        prompt_lens: std::ptr::null(),
        step_idx: std::ptr::null(),
        draft_token_num: std::ptr::null(),
        draft_tokens: std::ptr::null_mut(),
        seq_lens_this_time: std::ptr::null_mut(),
        seq_lens_encoder: std::ptr::null(),
        seq_lens_decoder: std::ptr::null(),
        max_dec_len: std::ptr::null(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_ngram_match_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.input_ids.cast_mut(),
            1 => self.input_ids_len.cast_mut(),
            2 => self.token_ids_all.cast_mut(),
            3 => self.prompt_lens.cast_mut(),
            4 => self.step_idx.cast_mut(),
            5 => self.draft_token_num.cast_mut(),
            6 => self.draft_tokens,
            7 => self.seq_lens_this_time,
            8 => self.seq_lens_encoder.cast_mut(),
            9 => self.seq_lens_decoder.cast_mut(),
            10 => self.max_dec_len.cast_mut(),
            11 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for NgramMatch {
    type CParams = spec_ngram_match_params;
    type CTensors = spec_ngram_match_tensors;
    type CBuffers = spec_ngram_match_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_ngram_match_tensors::ABSENT, spec_ngram_match_buffers::ABSENT);
}

/// Sets the parameters of ngram_match to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_ngram_match_defaults(
    params: *mut spec_ngram_match_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<NgramMatch>("spec_ngram_match_defaults", params) }
}

/// Drafts tokens by copying what followed the last tokens' earlier occurrence.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `input_ids` `[batch, max_prompt_len]`, i64 or i32 or u32: read.
/// - `input_ids_len` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `token_ids_all` `[batch, max_model_len]`, i64 or i32 or u32: read.
/// - `prompt_lens` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `step_idx` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `draft_token_num` `[batch] or [batch, 1]`, i32: read.
/// - `draft_tokens` `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
/// - `seq_lens_this_time` `[batch] or [batch, 1]`, i32: changed in place.
/// - `seq_lens_encoder` `[batch] or [batch, 1]`, i32: read.
/// - `seq_lens_decoder` `[batch] or [batch, 1]`, i32: read.
/// - `max_dec_len` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_ngram_match_create(
    handle: *const spec_handle,
    params: *const spec_ngram_match_params,
    tensors: *const spec_ngram_match_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_ngram_match_create";
    // SAFETY: the caller's.
    unsafe { create::<NgramMatch>(call, handle, params, tensors, descriptor) }
}

/// Enqueues ngram_match on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_ngram_match_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_ngram_match_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_ngram_match_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_ngram_match_calculate";
    // SAFETY: the caller's.
    unsafe { calculate::<NgramMatch>(call, descriptor, workspace, workspace_size, buffers, stream) }
}

/// Descriptors of the arguments of hybrid_mtp_ngram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_hybrid_mtp_ngram_tensors {
    /// sizeof(spec_hybrid_mtp_ngram_tensors).
    pub size: usize,
    /// `[batch, max_prompt_len]`, i64 or i32 or u32: read.
    /// The prompts, where patterns are looked for first.
    pub input_ids: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// Tokens in each prompt. The same at every step; 0 for one that is not to be
    /// searched.
    pub input_ids_len: spec_tensor,
    /// `[batch, max_model_len]`, i64 or i32 or u32: read.
    /// Generated tokens from the start of the row on, without the prompt, except
    /// that engines have its last token in slot 0; then, if matching is to go on from
    /// them, the drafts of the head.
    pub pre_ids: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// The index in `pre_ids` of the last token that counts, which the pattern ends
    /// with. With the prompt's last token in slot 0 that is, at a request's first
    /// step, 1; nothing is drafted below `min_ngram_size`.
    pub step_idx: spec_tensor,
    /// `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
    /// The tokens that the model is run on next. Slot 0 is the last generated token and
    /// slots 1 to `have - 1` the head's drafts, all of which the caller writes and this
    /// neither reads nor changes; drafts are written from slot `have` on.
    pub draft_tokens: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: changed in place.
    /// `have`, the tokens of this step so far: 1 and the number of the head's drafts,
    /// to which the drafts found are added. 0 for a request that has no part in it.
    pub seq_lens_this_time: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: read.
    /// Tokens in the cache: at a request's first decoding step, those of the prompt.
    /// Where it is 0 the request does not count among those that the budget keeps a
    /// token for.
    pub seq_lens_decoder: spec_tensor,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    /// The most tokens to generate, over all steps: no drafts beyond it.
    pub max_dec_len: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_hybrid_mtp_ngram_tensors {}

impl Default for spec_hybrid_mtp_ngram_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_hybrid_mtp_ngram_tensors {
    const ABSENT: Self = spec_hybrid_mtp_ngram_tensors {
        size: size_of::<Self>(),
        input_ids: spec_tensor::ABSENT,
        input_ids_len: spec_tensor::ABSENT,
        pre_ids: spec_tensor::ABSENT,
        step_idx: spec_tensor::ABSENT,
        draft_tokens: spec_tensor::ABSENT,
        seq_lens_this_time: spec_tensor::ABSENT,
        seq_lens_decoder: spec_tensor::ABSENT,
        max_dec_len: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_hybrid_mtp_ngram_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.input_ids,
            1 => self.input_ids_len,
            2 => self.pre_ids,
            3 => self.step_idx,
            4 => self.draft_tokens,
            5 => self.seq_lens_this_time,
            6 => self.seq_lens_decoder,
            7 => self.max_dec_len,
            8 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of hybrid_mtp_ngram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_hybrid_mtp_ngram_buffers {
    /// sizeof(spec_hybrid_mtp_ngram_buffers).
    pub size: usize,
    /// `[batch, max_prompt_len]`, i64 or i32 or u32: read.
    pub input_ids: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub input_ids_len: *const c_void,
    /// `[batch, max_model_len]`, i64 or i32 or u32: read.
    pub pre_ids: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub step_idx: *const c_void,
    /// `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
    pub draft_tokens: *mut c_void,
    /// `[batch] or [batch, 1]`, i32: changed in place.
    pub seq_lens_this_time: *mut c_void,
    /// `[batch] or [batch, 1]`, i32: read.
    pub seq_lens_decoder: *const c_void,
    /// `[batch] or [batch, 1]`, i64 or i32: read.
    pub max_dec_len: *const c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_hybrid_mtp_ngram_buffers {}

impl Default for spec_hybrid_mtp_ngram_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_hybrid_mtp_ngram_buffers {
    const ABSENT: Self = spec_hybrid_mtp_ngram_buffers {
        size: size_of::<Self>(),
        input_ids: std::ptr::null(),
        input_ids_len: std::ptr::null(),
        pre_ids: std::ptr::null(),
        step_idx: std::ptr::null(),
        draft_tokens: std::ptr::null_mut(),
        seq_lens_this_time: std::ptr::null_mut(),
        seq_lens_decoder: std::ptr::null(),
        max_dec_len: std::ptr::null(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_hybrid_mtp_ngram_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.input_ids.cast_mut(),
            1 => self.input_ids_len.cast_mut(),
            2 => self.pre_ids.cast_mut(),
            3 => self.step_idx.cast_mut(),
            4 => self.draft_tokens,
            5 => self.seq_lens_this_time,
            6 => self.seq_lens_decoder.cast_mut(),
            7 => self.max_dec_len.cast_mut(),
            8 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for HybridMtpNgram {
    type CParams = spec_hybrid_mtp_ngram_params;
    type CTensors = spec_hybrid_mtp_ngram_tensors;
    type CBuffers = spec_hybrid_mtp_ngram_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_hybrid_mtp_ngram_tensors::ABSENT, spec_hybrid_mtp_ngram_buffers::ABSENT);
}

/// Sets the parameters of hybrid_mtp_ngram to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_hybrid_mtp_ngram_defaults(
    params: *mut spec_hybrid_mtp_ngram_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<HybridMtpNgram>("spec_hybrid_mtp_ngram_defaults", params) }
}

/// Extends the drafts of a multi-token-prediction head by n-gram matching.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `input_ids` `[batch, max_prompt_len]`, i64 or i32 or u32: read.
/// - `input_ids_len` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `pre_ids` `[batch, max_model_len]`, i64 or i32 or u32: read.
/// - `step_idx` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `draft_tokens` `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
/// - `seq_lens_this_time` `[batch] or [batch, 1]`, i32: changed in place.
/// - `seq_lens_decoder` `[batch] or [batch, 1]`, i32: read.
/// - `max_dec_len` `[batch] or [batch, 1]`, i64 or i32: read.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_hybrid_mtp_ngram_create(
    handle: *const spec_handle,
    params: *const spec_hybrid_mtp_ngram_params,
    tensors: *const spec_hybrid_mtp_ngram_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_hybrid_mtp_ngram_create";
    // SAFETY: the caller's.
    unsafe { create::<HybridMtpNgram>(call, handle, params, tensors, descriptor) }
}

/// Enqueues hybrid_mtp_ngram on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_hybrid_mtp_ngram_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_hybrid_mtp_ngram_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_hybrid_mtp_ngram_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_hybrid_mtp_ngram_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<HybridMtpNgram>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of prompt_lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_prompt_lookup_tensors {
    /// sizeof(spec_prompt_lookup_tensors).
    pub size: usize,
    /// `[batch, most]`, i64 or i32 or u32: read.
    /// The text of each request: its prompt, then every token generated so
    /// far, the last one included. What lies behind `lengths` is not read.
    pub tokens: spec_tensor,
    /// `[batch] or [batch, 1]`, i32 or i64: read.
    /// How many tokens the text has. At a request's first step: those of the
    /// prompt, or one more if the prefill's own token is already there.
    pub lengths: spec_tensor,
    /// `[batch, max_draft]`, i64 or i32 or u32: written.
    /// The drafts, of the tokens' type, then -1 (in u32 the largest value) to
    /// the row's end.
    pub drafts: spec_tensor,
    /// `[batch] or [batch, 1]`, i32: written.
    /// How many drafts there are, 0 to `max_draft`.
    pub counts: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Flags, OR-ed.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_prompt_lookup_tensors {}

impl Default for spec_prompt_lookup_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_prompt_lookup_tensors {
    const ABSENT: Self = spec_prompt_lookup_tensors {
        size: size_of::<Self>(),
        tokens: spec_tensor::ABSENT,
        lengths: spec_tensor::ABSENT,
        drafts: spec_tensor::ABSENT,
        counts: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_prompt_lookup_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.tokens,
            1 => self.lengths,
            2 => self.drafts,
            3 => self.counts,
            4 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of prompt_lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_prompt_lookup_buffers {
    /// sizeof(spec_prompt_lookup_buffers).
    pub size: usize,
    /// `[batch, most]`, i64 or i32 or u32: read.
    pub tokens: *const c_void,
    /// `[batch] or [batch, 1]`, i32 or i64: read.
    pub lengths: *const c_void,
    /// `[batch, max_draft]`, i64 or i32 or u32: written.
    pub drafts: *mut c_void,
    /// `[batch] or [batch, 1]`, i32: written.
    pub counts: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_prompt_lookup_buffers {}

impl Default for spec_prompt_lookup_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_prompt_lookup_buffers {
    const ABSENT: Self = spec_prompt_lookup_buffers {
        size: size_of::<Self>(),
        tokens: std::ptr::null(),
        lengths: std::ptr::null(),
        drafts: std::ptr::null_mut(),
        counts: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_prompt_lookup_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.tokens.cast_mut(),
            1 => self.lengths.cast_mut(),
            2 => self.drafts,
            3 => self.counts,
            4 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for PromptLookup {
    type CParams = spec_prompt_lookup_params;
    type CTensors = spec_prompt_lookup_tensors;
    type CBuffers = spec_prompt_lookup_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_prompt_lookup_tensors::ABSENT, spec_prompt_lookup_buffers::ABSENT);
}

/// Sets the parameters of prompt_lookup to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_prompt_lookup_defaults(
    params: *mut spec_prompt_lookup_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<PromptLookup>("spec_prompt_lookup_defaults", params) }
}

/// Drafts from a request's own text: what followed its last tokens where they
/// occurred before.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `tokens` `[batch, most]`, i64 or i32 or u32: read.
/// - `lengths` `[batch] or [batch, 1]`, i32 or i64: read.
/// - `drafts` `[batch, max_draft]`, i64 or i32 or u32: written.
/// - `counts` `[batch] or [batch, 1]`, i32: written.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_prompt_lookup_create(
    handle: *const spec_handle,
    params: *const spec_prompt_lookup_params,
    tensors: *const spec_prompt_lookup_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_prompt_lookup_create";
    // SAFETY: the caller's.
    unsafe { create::<PromptLookup>(call, handle, params, tensors, descriptor) }
}

/// Enqueues prompt_lookup on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_prompt_lookup_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_prompt_lookup_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_prompt_lookup_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_prompt_lookup_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<PromptLookup>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of tree_verify.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_tree_verify_tensors {
    /// sizeof(spec_tree_verify_tensors).
    pub size: usize,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    /// The drafts: the token of each node. That of node 0, the last token
    /// verified, is not looked at.
    pub draft_tokens: spec_tensor,
    /// `[batch, nodes]`, i32 or u32 or i64: read.
    /// What the target model chose after each node, by `sample_logits` of its
    /// logits there or otherwise.
    pub target_tokens: spec_tensor,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    /// The first child of each node, -1 where it has none. See `Links`.
    pub first_child: spec_tensor,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    /// The next child of the same parent, -1 after the last.
    pub next_sibling: spec_tensor,
    /// `[batch, max_depth + 1]`, i32 or u32 or i64: written.
    /// The tokens emitted, then -1: the drafts that were kept, then the
    /// target's own.
    pub tokens: spec_tensor,
    /// `[batch, max_depth + 1]`, i32 or u32 or i64: written.
    /// The node after which each token was chosen, 0 first, then -1: the slots
    /// of the tree that a KV cache keeps.
    pub nodes: spec_tensor,
    /// `[batch]`, i32: written.
    /// How many tokens were emitted: at least 1.
    pub num_tokens: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Bits of bad data, OR-ed into what is there: 2 a target token below 0, 4 a
    /// pointer out of range or a cycle.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_tree_verify_tensors {}

impl Default for spec_tree_verify_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_tree_verify_tensors {
    const ABSENT: Self = spec_tree_verify_tensors {
        size: size_of::<Self>(),
        draft_tokens: spec_tensor::ABSENT,
        target_tokens: spec_tensor::ABSENT,
        first_child: spec_tensor::ABSENT,
        next_sibling: spec_tensor::ABSENT,
        tokens: spec_tensor::ABSENT,
        nodes: spec_tensor::ABSENT,
        num_tokens: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_tree_verify_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.draft_tokens,
            1 => self.target_tokens,
            2 => self.first_child,
            3 => self.next_sibling,
            4 => self.tokens,
            5 => self.nodes,
            6 => self.num_tokens,
            7 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of tree_verify.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_tree_verify_buffers {
    /// sizeof(spec_tree_verify_buffers).
    pub size: usize,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    pub draft_tokens: *const c_void,
    /// `[batch, nodes]`, i32 or u32 or i64: read.
    pub target_tokens: *const c_void,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    pub first_child: *const c_void,
    /// `[batch, nodes]`, i64 or i32 or u32: read.
    pub next_sibling: *const c_void,
    /// `[batch, max_depth + 1]`, i32 or u32 or i64: written.
    pub tokens: *mut c_void,
    /// `[batch, max_depth + 1]`, i32 or u32 or i64: written.
    pub nodes: *mut c_void,
    /// `[batch]`, i32: written.
    pub num_tokens: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_tree_verify_buffers {}

impl Default for spec_tree_verify_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_tree_verify_buffers {
    const ABSENT: Self = spec_tree_verify_buffers {
        size: size_of::<Self>(),
        draft_tokens: std::ptr::null(),
        target_tokens: std::ptr::null(),
        first_child: std::ptr::null(),
        next_sibling: std::ptr::null(),
        tokens: std::ptr::null_mut(),
        nodes: std::ptr::null_mut(),
        num_tokens: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_tree_verify_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.draft_tokens.cast_mut(),
            1 => self.target_tokens.cast_mut(),
            2 => self.first_child.cast_mut(),
            3 => self.next_sibling.cast_mut(),
            4 => self.tokens,
            5 => self.nodes,
            6 => self.num_tokens,
            7 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for TreeVerify {
    type CParams = spec_tree_verify_params;
    type CTensors = spec_tree_verify_tensors;
    type CBuffers = spec_tree_verify_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_tree_verify_tensors::ABSENT, spec_tree_verify_buffers::ABSENT);
}

/// Sets the parameters of tree_verify to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_tree_verify_defaults(
    params: *mut spec_tree_verify_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<TreeVerify>("spec_tree_verify_defaults", params) }
}

/// Follows the target model down a tree, or a chain, of drafts.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `draft_tokens` `[batch, nodes]`, i64 or i32 or u32: read.
/// - `target_tokens` `[batch, nodes]`, i32 or u32 or i64: read.
/// - `first_child` `[batch, nodes]`, i64 or i32 or u32: read.
/// - `next_sibling` `[batch, nodes]`, i64 or i32 or u32: read.
/// - `tokens` `[batch, max_depth + 1]`, i32 or u32 or i64: written.
/// - `nodes` `[batch, max_depth + 1]`, i32 or u32 or i64: written.
/// - `num_tokens` `[batch]`, i32: written.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_tree_verify_create(
    handle: *const spec_handle,
    params: *const spec_tree_verify_params,
    tensors: *const spec_tree_verify_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_tree_verify_create";
    // SAFETY: the caller's.
    unsafe { create::<TreeVerify>(call, handle, params, tensors, descriptor) }
}

/// Enqueues tree_verify on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_tree_verify_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_tree_verify_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_tree_verify_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_tree_verify_calculate";
    // SAFETY: the caller's.
    unsafe { calculate::<TreeVerify>(call, descriptor, workspace, workspace_size, buffers, stream) }
}

/// Descriptors of the arguments of moe_align.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_moe_align_tensors {
    /// sizeof(spec_moe_align_tensors).
    pub size: usize,
    /// `[tokens, k]`, i32 or u32 or i64: read.
    /// The experts that each token goes to, as `topk_router` gives them; -1 for
    /// none.
    pub topk_ids: spec_tensor,
    /// `[experts]`, i32: read, optional.
    /// The local number of each expert, -1 where it is not here; absent: all
    /// are, under their own numbers.
    pub expert_map: spec_tensor,
    /// `[capacity]`, i32 or u32: written.
    /// Picks (`token * k + j`) by local expert, ascending in each run; `tokens *
    /// k` in padding and to the end. The capacity is `tokens * k + local_experts
    /// * (block_size - 1)`, rounded up to a multiple of `block_size`.
    pub sorted_ids: spec_tensor,
    /// `[capacity / block_size]`, i32: written.
    /// The local expert of each block of `sorted_ids`, -1 after the last.
    pub block_experts: spec_tensor,
    /// `[local_experts]`, i32: written.
    /// Picks of each local expert.
    pub counts: spec_tensor,
    /// `[local_experts + 1]`, i32: written.
    /// Where each local expert's run starts in `sorted_ids`, and where the last
    /// ends.
    pub offsets: spec_tensor,
    /// `[1]`, i32: written.
    /// Places of `sorted_ids` that belong to a run, padding included.
    pub num_padded: spec_tensor,
    /// `[tokens * k]`, i32: written, optional.
    /// Where each pick went in `sorted_ids`, -1 where it was dropped.
    pub inverse: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Bits of bad data, OR-ed into what is there: 2 an expert out of range.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_moe_align_tensors {}

impl Default for spec_moe_align_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_moe_align_tensors {
    const ABSENT: Self = spec_moe_align_tensors {
        size: size_of::<Self>(),
        topk_ids: spec_tensor::ABSENT,
        expert_map: spec_tensor::ABSENT,
        sorted_ids: spec_tensor::ABSENT,
        block_experts: spec_tensor::ABSENT,
        counts: spec_tensor::ABSENT,
        offsets: spec_tensor::ABSENT,
        num_padded: spec_tensor::ABSENT,
        inverse: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_moe_align_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.topk_ids,
            1 => self.expert_map,
            2 => self.sorted_ids,
            3 => self.block_experts,
            4 => self.counts,
            5 => self.offsets,
            6 => self.num_padded,
            7 => self.inverse,
            8 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of moe_align.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_moe_align_buffers {
    /// sizeof(spec_moe_align_buffers).
    pub size: usize,
    /// `[tokens, k]`, i32 or u32 or i64: read.
    pub topk_ids: *const c_void,
    /// `[experts]`, i32: read, optional.
    pub expert_map: *const c_void,
    /// `[capacity]`, i32 or u32: written.
    pub sorted_ids: *mut c_void,
    /// `[capacity / block_size]`, i32: written.
    pub block_experts: *mut c_void,
    /// `[local_experts]`, i32: written.
    pub counts: *mut c_void,
    /// `[local_experts + 1]`, i32: written.
    pub offsets: *mut c_void,
    /// `[1]`, i32: written.
    pub num_padded: *mut c_void,
    /// `[tokens * k]`, i32: written, optional.
    pub inverse: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_moe_align_buffers {}

impl Default for spec_moe_align_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_moe_align_buffers {
    const ABSENT: Self = spec_moe_align_buffers {
        size: size_of::<Self>(),
        topk_ids: std::ptr::null(),
        expert_map: std::ptr::null(),
        sorted_ids: std::ptr::null_mut(),
        block_experts: std::ptr::null_mut(),
        counts: std::ptr::null_mut(),
        offsets: std::ptr::null_mut(),
        num_padded: std::ptr::null_mut(),
        inverse: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_moe_align_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.topk_ids.cast_mut(),
            1 => self.expert_map.cast_mut(),
            2 => self.sorted_ids,
            3 => self.block_experts,
            4 => self.counts,
            5 => self.offsets,
            6 => self.num_padded,
            7 => self.inverse,
            8 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for MoeAlign {
    type CParams = spec_moe_align_params;
    type CTensors = spec_moe_align_tensors;
    type CBuffers = spec_moe_align_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_moe_align_tensors::ABSENT, spec_moe_align_buffers::ABSENT);
}

/// Sets the parameters of moe_align to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_moe_align_defaults(
    params: *mut spec_moe_align_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<MoeAlign>("spec_moe_align_defaults", params) }
}

/// Groups a router's picks by expert, for grouped matrix products.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `topk_ids` `[tokens, k]`, i32 or u32 or i64: read.
/// - `expert_map` `[experts]`, i32: read, optional.
/// - `sorted_ids` `[capacity]`, i32 or u32: written.
/// - `block_experts` `[capacity / block_size]`, i32: written.
/// - `counts` `[local_experts]`, i32: written.
/// - `offsets` `[local_experts + 1]`, i32: written.
/// - `num_padded` `[1]`, i32: written.
/// - `inverse` `[tokens * k]`, i32: written, optional.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_moe_align_create(
    handle: *const spec_handle,
    params: *const spec_moe_align_params,
    tensors: *const spec_moe_align_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_moe_align_create";
    // SAFETY: the caller's.
    unsafe { create::<MoeAlign>(call, handle, params, tensors, descriptor) }
}

/// Enqueues moe_align on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_moe_align_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_moe_align_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_moe_align_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_moe_align_calculate";
    // SAFETY: the caller's.
    unsafe { calculate::<MoeAlign>(call, descriptor, workspace, workspace_size, buffers, stream) }
}

/// Descriptors of the arguments of indexer_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_indexer_topk_tensors {
    /// sizeof(spec_indexer_topk_tensors).
    pub size: usize,
    /// `[rows, cols]`, f32 or f16 or bf16: read.
    /// The scores, of which the larger is the better.
    pub scores: spec_tensor,
    /// `[rows]`, i32 or i64: read, optional.
    /// How many scores each row covers; absent: all from its start on.
    pub lengths: spec_tensor,
    /// `[rows]`, i32 or i64: read, optional.
    /// The first score that each row covers; absent: 0.
    pub starts: spec_tensor,
    /// `[rows, k]`, i32 or u32 or i64: written.
    /// Positions of the best, relative to the row's start, ascending, then -1.
    pub indices: spec_tensor,
    /// `[1]`, u32: changed in place, optional.
    /// Bits of bad data, OR-ed into what is there: 1 a NaN, 4 a start or length
    /// that was cut.
    pub flags: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_indexer_topk_tensors {}

impl Default for spec_indexer_topk_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_indexer_topk_tensors {
    const ABSENT: Self = spec_indexer_topk_tensors {
        size: size_of::<Self>(),
        scores: spec_tensor::ABSENT,
        lengths: spec_tensor::ABSENT,
        starts: spec_tensor::ABSENT,
        indices: spec_tensor::ABSENT,
        flags: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_indexer_topk_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.scores,
            1 => self.lengths,
            2 => self.starts,
            3 => self.indices,
            4 => self.flags,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of indexer_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_indexer_topk_buffers {
    /// sizeof(spec_indexer_topk_buffers).
    pub size: usize,
    /// `[rows, cols]`, f32 or f16 or bf16: read.
    pub scores: *const c_void,
    /// `[rows]`, i32 or i64: read, optional.
    pub lengths: *const c_void,
    /// `[rows]`, i32 or i64: read, optional.
    pub starts: *const c_void,
    /// `[rows, k]`, i32 or u32 or i64: written.
    pub indices: *mut c_void,
    /// `[1]`, u32: changed in place, optional.
    pub flags: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_indexer_topk_buffers {}

impl Default for spec_indexer_topk_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_indexer_topk_buffers {
    const ABSENT: Self = spec_indexer_topk_buffers {
        size: size_of::<Self>(),
        scores: std::ptr::null(),
        lengths: std::ptr::null(),
        starts: std::ptr::null(),
        indices: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_indexer_topk_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.scores.cast_mut(),
            1 => self.lengths.cast_mut(),
            2 => self.starts.cast_mut(),
            3 => self.indices,
            4 => self.flags,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for IndexerTopk {
    type CParams = spec_indexer_topk_params;
    type CTensors = spec_indexer_topk_tensors;
    type CBuffers = spec_indexer_topk_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_indexer_topk_tensors::ABSENT, spec_indexer_topk_buffers::ABSENT);
}

/// Sets the parameters of indexer_topk to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_indexer_topk_defaults(
    params: *mut spec_indexer_topk_params,
) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<IndexerTopk>("spec_indexer_topk_defaults", params) }
}

/// The positions of the `k` best scores of each row, for sparse attention: what
/// `deduplicate_topk` is fed with.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `scores` `[rows, cols]`, f32 or f16 or bf16: read.
/// - `lengths` `[rows]`, i32 or i64: read, optional.
/// - `starts` `[rows]`, i32 or i64: read, optional.
/// - `indices` `[rows, k]`, i32 or u32 or i64: written.
/// - `flags` `[1]`, u32: changed in place, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_indexer_topk_create(
    handle: *const spec_handle,
    params: *const spec_indexer_topk_params,
    tensors: *const spec_indexer_topk_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_indexer_topk_create";
    // SAFETY: the caller's.
    unsafe { create::<IndexerTopk>(call, handle, params, tensors, descriptor) }
}

/// Enqueues indexer_topk on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_indexer_topk_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_indexer_topk_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_indexer_topk_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_indexer_topk_calculate";
    // SAFETY: the caller's.
    unsafe {
        calculate::<IndexerTopk>(call, descriptor, workspace, workspace_size, buffers, stream)
    }
}

/// Descriptors of the arguments of unique.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_unique_tensors {
    /// sizeof(spec_unique_tensors).
    pub size: usize,
    /// `[n]`, u64 or i64 or u32 or i32: read.
    /// Keys `[n]`, u64, i64, u32 or i32, in any order.
    pub keys: spec_tensor,
    /// `[n]`, u64 or i64 or u32 or i32: written.
    /// Distinct keys `[n]`, as `keys`; the first `count` are written.
    pub unique: spec_tensor,
    /// `[1]`, u64: written.
    /// How many distinct keys there are `[1]`, u64.
    pub count: spec_tensor,
    /// `[n]`, u64: written, optional.
    /// Occurrences of each distinct key `[n]`, u64.
    pub counts: spec_tensor,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_unique_tensors {}

impl Default for spec_unique_tensors {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_unique_tensors {
    const ABSENT: Self = spec_unique_tensors {
        size: size_of::<Self>(),
        keys: spec_tensor::ABSENT,
        unique: spec_tensor::ABSENT,
        count: spec_tensor::ABSENT,
        counts: spec_tensor::ABSENT,
    };
}

impl Slots<spec_tensor> for spec_unique_tensors {
    #[inline]
    fn slot(&self, argument: usize) -> spec_tensor {
        match argument {
            0 => self.keys,
            1 => self.unique,
            2 => self.count,
            3 => self.counts,
            _ => spec_tensor::ABSENT,
        }
    }
}

/// The arguments of unique.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_unique_buffers {
    /// sizeof(spec_unique_buffers).
    pub size: usize,
    /// `[n]`, u64 or i64 or u32 or i32: read.
    pub keys: *const c_void,
    /// `[n]`, u64 or i64 or u32 or i32: written.
    pub unique: *mut c_void,
    /// `[1]`, u64: written.
    pub count: *mut c_void,
    /// `[n]`, u64: written, optional.
    pub counts: *mut c_void,
}

// SAFETY: integers and pointers, the first of them the size.
unsafe impl Versioned for spec_unique_buffers {}

impl Default for spec_unique_buffers {
    /// Nothing is there.
    fn default() -> Self {
        Self::ABSENT
    }
}

impl spec_unique_buffers {
    const ABSENT: Self = spec_unique_buffers {
        size: size_of::<Self>(),
        keys: std::ptr::null(),
        unique: std::ptr::null_mut(),
        count: std::ptr::null_mut(),
        counts: std::ptr::null_mut(),
    };
}

impl Slots<*mut c_void> for spec_unique_buffers {
    #[inline]
    fn slot(&self, argument: usize) -> *mut c_void {
        match argument {
            0 => self.keys.cast_mut(),
            1 => self.unique,
            2 => self.count,
            3 => self.counts,
            _ => std::ptr::null_mut(),
        }
    }
}

impl Bound for Unique {
    type CParams = spec_unique_params;
    type CTensors = spec_unique_tensors;
    type CBuffers = spec_unique_buffers;
    const ABSENT: (Self::CTensors, Self::CBuffers) =
        (spec_unique_tensors::ABSENT, spec_unique_buffers::ABSENT);
}

/// Sets the parameters of unique to what is usual, and those that have to be
/// given to 0.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a `size` that is none.
///
/// # Safety
/// `params` has its `size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_unique_defaults(params: *mut spec_unique_params) -> spec_status {
    // SAFETY: the caller's.
    unsafe { defaults::<Unique>("spec_unique_defaults", params) }
}

/// The distinct keys of a set, ascending, and how often each occurs.
///
/// Creates the operator for these tensors on the handle's device:
/// checks everything that they and the parameters can show. `descriptor` becomes
/// yours, to be given to `spec_destroy`, or NULL where the call fails.
///
/// - `keys` `[n]`, u64 or i64 or u32 or i32: read.
/// - `unique` `[n]`, u64 or i64 or u32 or i32: written.
/// - `count` `[1]`, u64: written.
/// - `counts` `[n]`, u64: written, optional.
///
/// # Errors
/// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the
/// backend lacks it, 1 or 8 where the device cannot run it.
///
/// # Safety
/// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`
/// is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_unique_create(
    handle: *const spec_handle,
    params: *const spec_unique_params,
    tensors: *const spec_unique_tensors,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    let call = "spec_unique_create";
    // SAFETY: the caller's.
    unsafe { create::<Unique>(call, handle, params, tensors, descriptor) }
}

/// Enqueues unique on `stream`, and does nothing else.
///
/// # Errors
/// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not
/// aligned, 13 for a workspace that is too small, 1 where the device refuses.
/// Bad values in the data are no errors: they set `flags`.
///
/// # Safety
/// `descriptor` is from `spec_unique_create`, `workspace` has `workspace_size`
/// bytes, and each buffer as many elements as its tensor spans, until the work
/// is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_unique_calculate(
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_unique_buffers,
    stream: *mut c_void,
) -> spec_status {
    let call = "spec_unique_calculate";
    // SAFETY: the caller's.
    unsafe { calculate::<Unique>(call, descriptor, workspace, workspace_size, buffers, stream) }
}
