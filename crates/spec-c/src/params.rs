//! The parameters of each operator, as C writes them.
//!
//! By hand, once: both directions name every field of the operator's own struct, so
//! that a new one does not compile until it is here.

use std::ffi::c_char;

use spec::ops::prompt_lookup::Occurrence;
use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::topk_router::{GroupScore, Masked, Scoring, Select, preset};
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};
use spec::{Error, Result, Signature, Status};

use crate::status::{guard, place_for, spec_status, text};
use crate::versioned::{self, Versioned};

/// The parameters of an operator, as C has them. Without padding: what one version
/// does not name, another may.
pub(crate) trait Params<O>: Versioned {
    /// What stands where a caller says nothing; 0 where there is nothing usual.
    fn usual() -> O;

    /// As C has them.
    fn of(operator: &O) -> Self;

    /// The operator's own.
    ///
    /// # Errors
    /// Status 3 for a number that stands for nothing.
    fn operator(&self) -> Result<O>;
}

fn bad<O: Signature, T>(name: &'static str, value: u32, expected: &'static str) -> Result<T> {
    Err(Error::Argument {
        status: Status::BadParam,
        operator: O::NAME,
        argument: name,
        value: value.to_string(),
        expected: expected.into(),
    })
}

fn truth<O: Signature>(name: &'static str, value: u32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => bad::<O, _>(name, other, "0 or 1"),
    }
}

fn nothing<O: Signature>(name: &'static str, value: u32) -> Result<()> {
    if value == 0 { Ok(()) } else { bad::<O, _>(name, value, "0") }
}

/// A choice, and the numbers that stand for it.
trait Choice: Copy + 'static {
    const EXPECTED: &'static str;
    fn number(self) -> u32;
    fn all() -> &'static [(u32, Self)];
}

/// Lists each choice with its numbers, both ways: a new variant does not compile until
/// it is here.
macro_rules! choices {
    ($($choice:ident { $($variant:ident = $number:ident),+ $(,)? })+) => {$(
        impl Choice for $choice {
            const EXPECTED: &'static str = concat!("one of" $(, " ", stringify!($number))+);

            fn number(self) -> u32 {
                match self {
                    $( $choice::$variant => $number, )+
                }
            }

            fn all() -> &'static [(u32, Self)] {
                &[$( ($number, $choice::$variant) ),+]
            }
        }
    )+};
}

choices! {
    Scoring {
        Sigmoid = SPEC_SCORING_SIGMOID,
        Softmax = SPEC_SCORING_SOFTMAX,
        SqrtSoftplus = SPEC_SCORING_SQRT_SOFTPLUS,
    }
    Select {
        Score = SPEC_SELECT_SCORE,
        Logit = SPEC_SELECT_LOGIT,
    }
    GroupScore {
        Top2Sum = SPEC_GROUP_SCORE_TOP2_SUM,
        Max = SPEC_GROUP_SCORE_MAX,
    }
    Masked {
        Zero = SPEC_MASKED_ZERO,
        Excluded = SPEC_MASKED_EXCLUDED,
    }
    Acceptance {
        Probabilistic = SPEC_ACCEPTANCE_PROBABILISTIC,
        Greedy = SPEC_ACCEPTANCE_GREEDY,
    }
    Recovery {
        Argmax = SPEC_RECOVERY_ARGMAX,
        Sample = SPEC_RECOVERY_SAMPLE,
    }
    Occurrence {
        First = SPEC_OCCURRENCE_FIRST,
        Last = SPEC_OCCURRENCE_LAST,
    }
}

fn choice<O: Signature, C: Choice>(name: &'static str, number: u32) -> Result<C> {
    match C::all().iter().find(|(known, _)| *known == number) {
        Some(&(_, choice)) => Ok(choice),
        None => bad::<O, _>(name, number, C::EXPECTED),
    }
}

/// Scoring of topk_router: the logistic function of the logit.
pub const SPEC_SCORING_SIGMOID: u32 = 0;
/// Scoring of topk_router: softmax over all experts of the token.
pub const SPEC_SCORING_SOFTMAX: u32 = 1;
/// Scoring of topk_router: the square root of ln(1 + e^x).
pub const SPEC_SCORING_SQRT_SOFTPLUS: u32 = 2;
/// Experts are chosen by the score plus bias.
pub const SPEC_SELECT_SCORE: u32 = 0;
/// Experts are chosen by the logit plus bias.
pub const SPEC_SELECT_LOGIT: u32 = 1;
/// A group's score is the sum of its two largest choices.
pub const SPEC_GROUP_SCORE_TOP2_SUM: u32 = 0;
/// A group's score is its largest choice.
pub const SPEC_GROUP_SCORE_MAX: u32 = 1;
/// Experts of groups that are not kept take the choice 0.0 (InfiniOp, Hugging Face).
pub const SPEC_MASKED_ZERO: u32 = 0;
/// Experts of groups that are not kept cannot be chosen (TensorRT-LLM, vLLM).
pub const SPEC_MASKED_EXCLUDED: u32 = 1;
/// A draft token is accepted with probability min(1, target / draft).
pub const SPEC_ACCEPTANCE_PROBABILISTIC: u32 = 0;
/// A draft token is accepted while it equals the target's argmax.
pub const SPEC_ACCEPTANCE_GREEDY: u32 = 1;
/// A rejected token is replaced by the largest residual: not the target's distribution.
pub const SPEC_RECOVERY_ARGMAX: u32 = 0;
/// A rejected token is replaced by a draw from the residual: the target's distribution.
pub const SPEC_RECOVERY_SAMPLE: u32 = 1;
/// Drafts copy from the first of equally long occurrences.
pub const SPEC_OCCURRENCE_FIRST: u32 = 0;
/// Drafts copy from the last of equally long occurrences.
pub const SPEC_OCCURRENCE_LAST: u32 = 1;

/// The parameters of topk_router.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_topk_router_params {
    /// sizeof(spec_topk_router_params).
    pub size: usize,
    /// How logits become scores: `SPEC_SCORING_..`. Usual: softmax.
    pub scoring: u32,
    /// What experts are chosen by: `SPEC_SELECT_..`. Usual: the score.
    pub select: u32,
    /// The number of groups; it divides the number of experts. Usual: 1.
    pub groups: usize,
    /// How many groups are kept. Usual: 1.
    pub topk_groups: usize,
    /// How groups are scored: `SPEC_GROUP_SCORE_..`. Usual: the sum of two.
    pub group_score: u32,
    /// What happens to the experts of the other groups: `SPEC_MASKED_..`. Usual: zero.
    pub masked: u32,
    /// How many experts each token is routed to, 1 to 64. Nothing is usual.
    pub topk: usize,
    /// 1 where the weights of a token are divided by their sum, else 0. Usual: 1.
    pub renormalize: u32,
    /// The routed scaling factor. Usual: 1.
    pub scale: f32,
    /// Experts that every token goes to, in columns behind the picks, at most 64. Usual: 0.
    pub shared_experts: usize,
    /// The weight of each of them; it is not scaled. Usual: 1.
    pub shared_weight: f32,
    /// 0, for later.
    pub reserved: u32,
    /// How many places the experts have on all devices, with `replicas` and only with them; else 0.
    pub physical_experts: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_topk_router_params {}

impl Params<TopkRouter> for spec_topk_router_params {
    fn usual() -> TopkRouter {
        TopkRouter::softmax(0)
    }

    fn of(operator: &TopkRouter) -> Self {
        let TopkRouter {
            scoring,
            select,
            groups,
            topk_groups,
            group_score,
            masked,
            topk,
            renormalize,
            scale,
            shared_experts,
            shared_weight,
            physical_experts,
        } = *operator;
        spec_topk_router_params {
            size: size_of::<Self>(),
            scoring: scoring.number(),
            select: select.number(),
            groups,
            topk_groups,
            group_score: group_score.number(),
            masked: masked.number(),
            topk,
            renormalize: u32::from(renormalize),
            scale,
            shared_experts,
            shared_weight,
            reserved: 0,
            physical_experts: physical_experts.unwrap_or(0),
        }
    }

    fn operator(&self) -> Result<TopkRouter> {
        let spec_topk_router_params {
            size: _,
            scoring,
            select,
            groups,
            topk_groups,
            group_score,
            masked,
            topk,
            renormalize,
            scale,
            shared_experts,
            shared_weight,
            reserved,
            physical_experts,
        } = *self;
        nothing::<TopkRouter>("reserved", reserved)?;
        Ok(TopkRouter {
            scoring: choice::<TopkRouter, _>("scoring", scoring)?,
            select: choice::<TopkRouter, _>("select", select)?,
            groups,
            topk_groups,
            group_score: choice::<TopkRouter, _>("group_score", group_score)?,
            masked: choice::<TopkRouter, _>("masked", masked)?,
            topk,
            renormalize: truth::<TopkRouter>("renormalize", renormalize)?,
            scale,
            shared_experts,
            shared_weight,
            physical_experts: (physical_experts > 0).then_some(physical_experts),
        })
    }
}

/// The parameters of deduplicate_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_deduplicate_topk_params {
    /// sizeof(spec_deduplicate_topk_params).
    pub size: usize,
    /// Rows of `indices` that belong to one request, at least 1. Usual: 1.
    pub mtp_step: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_deduplicate_topk_params {}

impl Params<DeduplicateTopk> for spec_deduplicate_topk_params {
    fn usual() -> DeduplicateTopk {
        DeduplicateTopk { mtp_step: 1 }
    }

    fn of(operator: &DeduplicateTopk) -> Self {
        let DeduplicateTopk { mtp_step } = *operator;
        spec_deduplicate_topk_params { size: size_of::<Self>(), mtp_step }
    }

    fn operator(&self) -> Result<DeduplicateTopk> {
        let spec_deduplicate_topk_params { size: _, mtp_step } = *self;
        Ok(DeduplicateTopk { mtp_step })
    }
}

/// The parameters of rejection_sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_rejection_sample_params {
    /// sizeof(spec_rejection_sample_params).
    pub size: usize,
    /// The most drafts of a request; longer requests are cut. Nothing is usual.
    pub max_spec_len: usize,
    /// When a draft token is accepted: `SPEC_ACCEPTANCE_..`. Usual: probabilistic.
    pub acceptance: u32,
    /// How the recovered token is chosen: `SPEC_RECOVERY_..`. Usual: sample.
    pub recovery: u32,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_rejection_sample_params {}

impl Params<RejectionSample> for spec_rejection_sample_params {
    fn usual() -> RejectionSample {
        RejectionSample::lossless(0)
    }

    fn of(operator: &RejectionSample) -> Self {
        let RejectionSample { max_spec_len, acceptance, recovery } = *operator;
        spec_rejection_sample_params {
            size: size_of::<Self>(),
            max_spec_len,
            acceptance: acceptance.number(),
            recovery: recovery.number(),
        }
    }

    fn operator(&self) -> Result<RejectionSample> {
        let spec_rejection_sample_params { size: _, max_spec_len, acceptance, recovery } = *self;
        Ok(RejectionSample {
            max_spec_len,
            acceptance: choice::<RejectionSample, _>("acceptance", acceptance)?,
            recovery: choice::<RejectionSample, _>("recovery", recovery)?,
        })
    }
}

/// The parameters of sample_logits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_sample_logits_params {
    /// sizeof(spec_sample_logits_params).
    pub size: usize,
    /// 1 where `min_p` drops tokens before `top_k` and `top_p` count them (vLLM), 0 where after (transformers). Usual: 0.
    pub min_p_first: u32,
    /// 0, for later.
    pub reserved: u32,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_sample_logits_params {}

impl Params<SampleLogits> for spec_sample_logits_params {
    fn usual() -> SampleLogits {
        SampleLogits::default()
    }

    fn of(operator: &SampleLogits) -> Self {
        let SampleLogits { min_p_first } = *operator;
        spec_sample_logits_params {
            size: size_of::<Self>(),
            min_p_first: u32::from(min_p_first),
            reserved: 0,
        }
    }

    fn operator(&self) -> Result<SampleLogits> {
        let spec_sample_logits_params { size: _, min_p_first, reserved } = *self;
        nothing::<SampleLogits>("reserved", reserved)?;
        Ok(SampleLogits { min_p_first: truth::<SampleLogits>("min_p_first", min_p_first)? })
    }
}

/// The parameters of ngram_match.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_ngram_match_params {
    /// sizeof(spec_ngram_match_params).
    pub size: usize,
    /// The longest pattern, 1 to 1024. Usual: 3.
    pub max_ngram_size: usize,
    /// The token budget of one step, over all requests. Usual: 128.
    pub token_threshold: i32,
    /// 0, for later.
    pub reserved: u32,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_ngram_match_params {}

impl Params<NgramMatch> for spec_ngram_match_params {
    fn usual() -> NgramMatch {
        NgramMatch::default()
    }

    fn of(operator: &NgramMatch) -> Self {
        let NgramMatch { max_ngram_size, token_threshold } = *operator;
        spec_ngram_match_params {
            size: size_of::<Self>(),
            max_ngram_size,
            token_threshold,
            reserved: 0,
        }
    }

    fn operator(&self) -> Result<NgramMatch> {
        let spec_ngram_match_params { size: _, max_ngram_size, token_threshold, reserved } = *self;
        nothing::<NgramMatch>("reserved", reserved)?;
        Ok(NgramMatch { max_ngram_size, token_threshold })
    }
}

/// The parameters of hybrid_mtp_ngram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_hybrid_mtp_ngram_params {
    /// sizeof(spec_hybrid_mtp_ngram_params).
    pub size: usize,
    /// The longest pattern, 1 to 1024. Usual: 3.
    pub max_ngram_size: usize,
    /// The shortest pattern. Usual: 1.
    pub min_ngram_size: usize,
    /// The most drafts of a request, those of the head included. Nothing is usual.
    pub max_draft_tokens: usize,
    /// The token budget of one step, over all requests. Usual: 128.
    pub token_threshold: i32,
    /// 0, for later.
    pub reserved: u32,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_hybrid_mtp_ngram_params {}

impl Params<HybridMtpNgram> for spec_hybrid_mtp_ngram_params {
    fn usual() -> HybridMtpNgram {
        HybridMtpNgram {
            max_ngram_size: 3,
            min_ngram_size: 1,
            max_draft_tokens: 0,
            token_threshold: 128,
        }
    }

    fn of(operator: &HybridMtpNgram) -> Self {
        let HybridMtpNgram { max_ngram_size, min_ngram_size, max_draft_tokens, token_threshold } =
            *operator;
        spec_hybrid_mtp_ngram_params {
            size: size_of::<Self>(),
            max_ngram_size,
            min_ngram_size,
            max_draft_tokens,
            token_threshold,
            reserved: 0,
        }
    }

    fn operator(&self) -> Result<HybridMtpNgram> {
        let spec_hybrid_mtp_ngram_params {
            size: _,
            max_ngram_size,
            min_ngram_size,
            max_draft_tokens,
            token_threshold,
            reserved,
        } = *self;
        nothing::<HybridMtpNgram>("reserved", reserved)?;
        Ok(HybridMtpNgram { max_ngram_size, min_ngram_size, max_draft_tokens, token_threshold })
    }
}

/// The parameters of prompt_lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_prompt_lookup_params {
    /// sizeof(spec_prompt_lookup_params).
    pub size: usize,
    /// The shortest pattern, at least 1. Below 2 most drafts are chance. Usual: 2.
    pub min_ngram: usize,
    /// The longest pattern, `min_ngram` to 1024. Usual: 5.
    pub max_ngram: usize,
    /// The most drafts of a request, which is also how many columns `drafts` has. Usual: 5.
    pub max_draft: usize,
    /// Which occurrence is copied from: `SPEC_OCCURRENCE_..`. Usual: the last.
    pub occurrence: u32,
    /// 0, for later.
    pub reserved: u32,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_prompt_lookup_params {}

impl Params<PromptLookup> for spec_prompt_lookup_params {
    fn usual() -> PromptLookup {
        PromptLookup::default()
    }

    fn of(operator: &PromptLookup) -> Self {
        let PromptLookup { min_ngram, max_ngram, max_draft, occurrence } = *operator;
        spec_prompt_lookup_params {
            size: size_of::<Self>(),
            min_ngram,
            max_ngram,
            max_draft,
            occurrence: occurrence.number(),
            reserved: 0,
        }
    }

    fn operator(&self) -> Result<PromptLookup> {
        let spec_prompt_lookup_params {
            size: _,
            min_ngram,
            max_ngram,
            max_draft,
            occurrence,
            reserved,
        } = *self;
        nothing::<PromptLookup>("reserved", reserved)?;
        Ok(PromptLookup {
            min_ngram,
            max_ngram,
            max_draft,
            occurrence: choice::<PromptLookup, _>("occurrence", occurrence)?,
        })
    }
}

/// The parameters of tree_verify.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_tree_verify_params {
    /// sizeof(spec_tree_verify_params).
    pub size: usize,
    /// Drafts that are kept at most: the depth of the deepest tree. Nothing is usual.
    pub max_depth: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_tree_verify_params {}

impl Params<TreeVerify> for spec_tree_verify_params {
    fn usual() -> TreeVerify {
        TreeVerify { max_depth: 0 }
    }

    fn of(operator: &TreeVerify) -> Self {
        let TreeVerify { max_depth } = *operator;
        spec_tree_verify_params { size: size_of::<Self>(), max_depth }
    }

    fn operator(&self) -> Result<TreeVerify> {
        let spec_tree_verify_params { size: _, max_depth } = *self;
        Ok(TreeVerify { max_depth })
    }
}

/// The parameters of moe_align.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_moe_align_params {
    /// sizeof(spec_moe_align_params).
    pub size: usize,
    /// Experts that `topk_ids` knows, 1 to 4096. Nothing is usual.
    pub experts: usize,
    /// Experts that have a run here: all of them, or fewer with `expert_map`. Nothing is usual.
    pub local_experts: usize,
    /// Rows of a block of the product: each run is a multiple of it. Nothing is usual.
    pub block_size: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_moe_align_params {}

impl Params<MoeAlign> for spec_moe_align_params {
    fn usual() -> MoeAlign {
        MoeAlign::new(0, 0)
    }

    fn of(operator: &MoeAlign) -> Self {
        let MoeAlign { experts, local_experts, block_size } = *operator;
        spec_moe_align_params { size: size_of::<Self>(), experts, local_experts, block_size }
    }

    fn operator(&self) -> Result<MoeAlign> {
        let spec_moe_align_params { size: _, experts, local_experts, block_size } = *self;
        Ok(MoeAlign { experts, local_experts, block_size })
    }
}

/// The parameters of indexer_topk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_indexer_topk_params {
    /// sizeof(spec_indexer_topk_params).
    pub size: usize,
    /// Positions of a row, 1 to 4096. Nothing is usual.
    pub k: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_indexer_topk_params {}

impl Params<IndexerTopk> for spec_indexer_topk_params {
    fn usual() -> IndexerTopk {
        IndexerTopk { k: 0 }
    }

    fn of(operator: &IndexerTopk) -> Self {
        let IndexerTopk { k } = *operator;
        spec_indexer_topk_params { size: size_of::<Self>(), k }
    }

    fn operator(&self) -> Result<IndexerTopk> {
        let spec_indexer_topk_params { size: _, k } = *self;
        Ok(IndexerTopk { k })
    }
}

/// The parameters of unique: it has none but its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_unique_params {
    /// sizeof(spec_unique_params).
    pub size: usize,
}

// SAFETY: integers and floats, the first of them the size.
unsafe impl Versioned for spec_unique_params {}

impl Params<Unique> for spec_unique_params {
    fn usual() -> Unique {
        Unique
    }

    fn of(operator: &Unique) -> Self {
        let Unique = operator;
        spec_unique_params { size: size_of::<Self>() }
    }

    fn operator(&self) -> Result<Unique> {
        let spec_unique_params { size: _ } = *self;
        Ok(Unique)
    }
}

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
    params: *mut spec_topk_router_params,
    experts: *mut usize,
    has_bias: *mut u32,
) -> spec_status {
    let call = "spec_topk_router_preset";
    guard(call, || {
        // SAFETY: the caller's.
        let model = unsafe { text(call, "model", model)? };
        let Some(found) = preset::ALL.iter().find(|preset| preset.model() == model) else {
            let known: Vec<_> = preset::ALL.iter().map(|preset| preset.model()).collect();
            return Err(Error::Argument {
                status: Status::BadParam,
                operator: call,
                argument: "model",
                value: format!("{model:?}"),
                expected: format!("one of {}", known.join(", ")).into(),
            });
        };
        let value = spec_topk_router_params::of(&found.router());
        // SAFETY: the caller's.
        unsafe { versioned::write(call, "params", params, &value)? };
        if !experts.is_null() {
            // SAFETY: the caller's.
            unsafe { place_for(call, "experts", experts)? }.write(found.experts());
        }
        if !has_bias.is_null() {
            // SAFETY: the caller's.
            unsafe { place_for(call, "has_bias", has_bias)? }.write(u32::from(found.has_bias()));
        }
        Ok(())
    })
}
