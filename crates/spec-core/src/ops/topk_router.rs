//! Mixture-of-experts routing: the `topk` experts of each token.
//!
//! 1. Score `s`: [`Scoring::Sigmoid`] of the logit, or [`Scoring::Softmax`] over
//!    the row, in f32 by the exact rules of [`crate::exact`]. A NaN logit scores 0.
//! 2. Choice `c = s + bias` (`bias` is DeepSeek's correction bias). A NaN choice,
//!    and the choice of a NaN logit, is negative infinity.
//! 3. With more than one group: a group's score is the sum of its two largest
//!    choices or its largest ([`GroupScore`]); the `topk_groups` best are kept.
//! 4. Experts of the other groups take `c = 0.0` or are excluded ([`Masked`]).
//! 5. The `topk` largest choices, descending. All ties, of groups and of
//!    experts, go to the lower index.
//! 6. Weight `scale * s`, over the sum of the chosen `s` plus 1e-20 if
//!    `renormalize`.
//!
//! The indices are the same bits on every backend; the weights agree to 2e-5.
//! Flag 1 marks a logit or a bias that is not finite. With softmax, logits of
//! positive infinity share the row's whole weight.
//!
//! Sources: DeepSeek-V3 (2024) for bias and groups; InfiniOp's `topkrouter`.

use crate::check::{Access, Checker, arguments};
use crate::{DType, Device, Matrix, Operator, Result, Status, TensorDesc};

/// The largest number of experts.
pub const MAX_EXPERTS: usize = 1024;
/// The largest `topk`.
pub const MAX_TOPK: usize = 32;

/// How a logit becomes a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// The logistic function of the logit.
    Sigmoid,
    /// Softmax over all experts of the token.
    Softmax,
}

/// How the choices of a group become the group's score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// The sum of the two largest; the only one where a group has one expert.
    Top2Sum,
    /// The largest.
    Max,
}

/// What happens to the experts of groups that are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Masked {
    /// Their choice becomes 0.0, which can still win over a negative one
    /// (InfiniOp and the Hugging Face reference).
    Zero,
    /// They cannot be chosen (TensorRT-LLM, vLLM).
    Excluded,
}

/// The parameters of `topk_router`.
///
/// ```
/// use spec_core::ops::topk_router::{Masked, TopkRouter};
///
/// let router = TopkRouter { masked: Masked::Excluded, ..TopkRouter::deepseek_v3() };
/// assert_eq!(router.topk, 8);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TopkRouter {
    /// How logits become scores.
    pub scoring: Scoring,
    /// The number of groups; it divides the number of experts.
    pub groups: usize,
    /// How many groups are kept.
    pub topk_groups: usize,
    /// How groups are scored.
    pub group_score: GroupScore,
    /// What happens to the experts of the other groups.
    pub masked: Masked,
    /// How many experts each token is routed to, at most 32.
    pub topk: usize,
    /// Whether the weights of a token are divided by their sum.
    pub renormalize: bool,
    /// The routed scaling factor.
    pub scale: f32,
}

impl TopkRouter {
    /// Softmax over ungrouped experts, weights renormalized: the plain router.
    pub const fn softmax(topk: usize) -> Self {
        TopkRouter {
            scoring: Scoring::Softmax,
            groups: 1,
            topk_groups: 1,
            group_score: GroupScore::Top2Sum,
            masked: Masked::Zero,
            topk,
            renormalize: true,
            scale: 1.0,
        }
    }

    /// DeepSeek-V3 and R1: 256 experts, sigmoid, 4 of 8 groups, 8 experts.
    pub const fn deepseek_v3() -> Self {
        TopkRouter {
            scoring: Scoring::Sigmoid,
            groups: 8,
            topk_groups: 4,
            scale: 2.5,
            ..Self::softmax(8)
        }
    }

    /// DeepSeek-V2: 160 experts, softmax, the 3 best of 8 groups by their
    /// largest expert, 6 experts.
    pub const fn deepseek_v2() -> Self {
        TopkRouter {
            groups: 8,
            topk_groups: 3,
            group_score: GroupScore::Max,
            masked: Masked::Excluded,
            renormalize: false,
            scale: 16.0,
            ..Self::softmax(6)
        }
    }

    /// Kimi K2: 384 experts, sigmoid, one group, 8 experts.
    pub const fn kimi_k2() -> Self {
        TopkRouter { scoring: Scoring::Sigmoid, scale: 2.827, ..Self::softmax(8) }
    }

    /// Qwen3-MoE: 128 experts, softmax, 8 experts.
    pub const fn qwen3() -> Self {
        Self::softmax(8)
    }

    /// Mixtral: 8 experts, softmax, 2 experts.
    pub const fn mixtral() -> Self {
        Self::softmax(2)
    }

    /// Packed descriptors for `tokens` rows of `experts` logits, without bias or
    /// flags: a start that a caller adjusts. DeepSeek-V3 and Kimi K2 have a
    /// bias: set `bias` for them.
    pub fn tensors(&self, dtype: DType, tokens: usize, experts: usize) -> Tensors {
        Tensors {
            x: TensorDesc::new(dtype, [tokens, experts]),
            bias: None,
            weights: TensorDesc::new(DType::F32, [tokens, self.topk]),
            indices: TensorDesc::new(DType::I32, [tokens, self.topk]),
            flags: None,
        }
    }
}

arguments! {
    /// The arguments of `topk_router`.
    {
        /// Logits `[tokens, experts]`, f32, f16 or bf16; 1 to 1024 experts.
        x: I,
        /// Correction bias `[experts]`, f32.
        bias: Option<I>,
        /// Routing weights `[tokens, topk]`, f32.
        weights: O,
        /// Experts `[tokens, topk]`, i32, in descending order of choice.
        indices: O,
        /// Flags `[1]`, u32, OR-ed.
        flags: Option<O>,
    }
}

/// What was validated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parameters.
    pub params: TopkRouter,
    /// Logits.
    pub x: Matrix,
    /// Whether there is a bias.
    pub has_bias: bool,
    /// Weights out.
    pub weights: Matrix,
    /// Indices out.
    pub indices: Matrix,
}

impl Plan {
    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.x.rows
    }

    /// The number of experts.
    pub fn experts(&self) -> usize {
        self.x.cols
    }

    /// The number of experts in a group.
    pub fn group_size(&self) -> usize {
        self.x.cols / self.params.groups
    }
}

impl Operator for TopkRouter {
    const NAME: &'static str = "topk_router";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let floats = [DType::F32, DType::F16, DType::BF16];
        let x = c.matrix("x", &tensors.x, &floats, Access::Read, "[tokens, experts]")?;
        if !(1..=MAX_EXPERTS).contains(&x.cols) {
            let value = format!("{:?}", tensors.x.shape());
            return Err(c.error(Status::BadTensorShape, "x", value, "1 to 1024 experts"));
        }
        if let Some(bias) = &tensors.bias {
            c.vector_of("bias", bias, &[DType::F32], x.cols, "[experts]")?;
        }
        self.check_params(&c, x.cols)?;
        let shape = [x.rows, self.topk];
        let words = "[tokens, topk]";
        let f32s = [DType::F32];
        let weights =
            c.matrix_of("weights", &tensors.weights, &f32s, Access::Write, shape, words)?;
        let i32s = [DType::I32];
        let indices =
            c.matrix_of("indices", &tensors.indices, &i32s, Access::Write, shape, words)?;
        c.flags(tensors.flags.as_ref())?;
        Ok(Plan { params: self.clone(), x, has_bias: tensors.bias.is_some(), weights, indices })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}

impl TopkRouter {
    fn check_params(&self, c: &Checker, experts: usize) -> Result<()> {
        let groups = self.groups;
        c.param(
            groups >= 1 && experts.is_multiple_of(groups),
            "groups",
            groups,
            format!("a divisor of the {experts} experts"),
        )?;
        c.param(
            (1..=groups).contains(&self.topk_groups),
            "topk_groups",
            self.topk_groups,
            format!("1 to the {groups} groups"),
        )?;
        let choosable = match self.masked {
            Masked::Zero => experts,
            Masked::Excluded => experts / groups * self.topk_groups,
        };
        c.param(
            (1..=MAX_TOPK.min(choosable)).contains(&self.topk),
            "topk",
            self.topk,
            format!("1 to {}: at most 32 and what can be chosen", MAX_TOPK.min(choosable)),
        )?;
        c.param(self.scale.is_finite(), "scale", self.scale, "a finite number")
    }
}
