//! Mixture-of-experts routing: the `topk` experts of each token.
//!
//! 1. Score `s`: [`Scoring::Sigmoid`] or [`Scoring::SqrtSoftplus`] of the logit, or
//!    [`Scoring::Softmax`] over the row, in f32 by the exact rules of
//!    [`crate::exact`]. A NaN logit has score 0. In a softmax row whose largest logit is
//!    negative infinity, every score is 0.
//! 2. Choice `c = s + bias` (`bias` is DeepSeek's correction bias), or the logit
//!    plus bias ([`Select::Logit`]). A choice that is NaN, and the choice of a NaN logit,
//!    becomes negative infinity.
//! 3. With more than one group: a group's score is the sum of its two largest
//!    choices, or its largest choice ([`GroupScore`]). The `topk_groups` best groups are kept.
//! 4. The choices of experts in the other groups become 0.0, or these experts are excluded
//!    ([`Masked`]).
//! 5. The `topk` experts with the largest choices are picked, in descending order. All ties, of
//!    groups and of experts, go to the lower index.
//! 6. The weight of a pick is `scale * s`; with `renormalize`, it is `scale` times the share of `s`
//!    in the sum of the picked scores plus 1e-20.
//! 7. `shared_experts` further columns have the experts behind the last one, each with the
//!    weight `shared_weight`.
//! 8. Rows from `num_tokens` on are padding: index -1 and weight 0 in every column,
//!    whatever their logits are.
//! 9. With `replicas`, expert `e` of row `t` is replaced by the index of one of its replicas,
//!    `replicas[e][(t * 2654435769 mod 2^32) mod replica_counts[e]]`. Such an index names a place
//!    for an expert on some device. `load` counts the picks of each place. `logical` has the
//!    experts from before this step; the experts of the shared columns are `experts`, `experts + 1`
//!    and so on.
//!
//! # Experts that are given
//! With `chosen`, steps 2 to 5 are left out: each token goes to the experts in its row
//! of `chosen`, in that order. Neither groups nor bias are used. In this way a training run replays
//! the routing that its rollout recorded in `logical` (router replay), and
//! a layer with a table of experts for each token id (DeepSeek-V4's first layers) passes the rows
//! of its table. The picks have the weights that they would have had if steps 2 to 5 had
//! picked them. -1 is no pick: its index is -1, its weight is 0, and the sum of step 6 leaves it
//! out. An expert that is given twice counts twice.
//!
//! # Results
//! The indices are the same bits on every backend; the weights agree to 2e-5. Weights in f16 or
//! bf16 are the f32 weights, rounded once to nearest, ties to even. With
//! softmax, logits of positive infinity share the row's whole weight.
//!
//! | flag | raised for |
//! |---|---|
//! | 1 | a logit of a row that is not padding, or a bias that is used for such a row, that is not finite |
//! | 2 | a pick whose place is outside `0..physical_experts`; its index is -1, its weight and its `logical` stay |
//! | 2 | a `chosen` expert that is neither -1 nor in `0..experts`; it counts as -1 |
//! | 4 | `num_tokens` outside `0..=tokens`, or the replica count of a picked expert outside `1..=most`; both are cut |
//!
//! [`preset`] has the routers of published models. Here two tokens go through the router of
//! Mixtral, which has eight experts:
//!
//! ```
//! use spec::ops::topk_router::{Buffers, preset};
//! use spec::{DType, Handle};
//!
//! let logits = [
//!     0.1f32, 2.0, 0.3, 0.4, 1.5, 0.0, -1.0, 0.2, //
//!     3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.5,
//! ];
//! let model = preset::MIXTRAL;
//! let tensors = model.tensors(DType::F32, 2);
//! let handle = Handle::cpu()?;
//! let router = handle.create(&model.router(), &tensors)?;
//! let mut workspace = router.workspace(&handle)?;
//! let (mut weights, mut indices) = ([0f32; 4], [0i32; 4]);
//! let buffers = Buffers::new(&logits, &mut weights, &mut indices);
//! router.call(&mut workspace, buffers)?;
//! assert_eq!(indices, [1, 4, 7, 0]);
//! // The weight of the first of the two picks is e^2 / (e^2 + e^1.5).
//! assert!((weights[0] - 0.62246).abs() < 1e-5);
//! # Ok::<(), spec::Error>(())
//! ```
//!
//! The same router, with the experts that another run recorded:
//!
//! ```
//! use spec::ops::topk_router::{Buffers, preset};
//! use spec::{DType, Handle, TensorDesc};
//!
//! let logits = [0.1f32, 2.0, 0.3, 0.4, 1.5, 0.0, -1.0, 0.2];
//! let recorded = [4, 3];
//! let model = preset::MIXTRAL;
//! let chosen = TensorDesc::new(DType::I32, [1, 2]);
//! let tensors = model.tensors(DType::F32, 1).chosen(chosen);
//! let handle = Handle::cpu()?;
//! let router = handle.create(&model.router(), &tensors)?;
//! let mut workspace = router.workspace(&handle)?;
//! let (mut weights, mut indices) = ([0f32; 2], [0i32; 2]);
//! let buffers = Buffers::new(&logits, &mut weights, &mut indices).chosen(&recorded);
//! router.call(&mut workspace, buffers)?;
//! assert_eq!(indices, recorded);
//! // The weight of the first of the two picks is e^1.5 / (e^1.5 + e^0.4).
//! assert!((weights[0] - 0.75026).abs() < 1e-5);
//! # Ok::<(), spec::Error>(())
//! ```
//!
//! Sources: DeepSeek-V3 (2024) for bias and groups; InfiniOp's `topkrouter`; vLLM's
//! `eplb` for replicas; prime-rl and TRL for router replay.

use crate::check::{Checker, MAX_I32};
use crate::declare::{choice, operator};
use crate::{DType, Matrix, Operator, Result, TensorDesc};

pub mod preset;

/// The largest number of experts.
pub const MAX_EXPERTS: usize = 4096;
/// The largest `topk`.
pub const MAX_TOPK: usize = 64;
/// The largest `shared_experts`.
pub const MAX_SHARED_EXPERTS: usize = 64;
/// The multiplier that spreads tokens over an expert's replicas: 2^32 divided by the golden ratio.
pub const REPLICA_HASH: u32 = 2_654_435_769;

choice! {
    /// How a logit becomes a score.
    pub enum Scoring = "scoring" {
        /// The logistic function of the logit.
        Sigmoid = "sigmoid",
        /// Softmax over all experts of the token.
        Softmax = "softmax",
        /// The square root of ln(1 + e^x), as in DeepSeek-V4.
        SqrtSoftplus = "sqrt_softplus",
    }
}

choice! {
    /// The number by which experts are picked.
    pub enum Select = "select" {
        /// The score plus bias.
        Score = "score",
        /// The logit plus bias. Different logits can have equal scores where the scoring function
        /// saturates, so this avoids ties.
        Logit = "logit",
    }
}

choice! {
    /// How the choices of a group become the group's score.
    pub enum GroupScore = "group_score" {
        /// The sum of the two largest choices; with one expert in a group, its only choice.
        Top2Sum = "top2_sum",
        /// The largest choice.
        Max = "max",
    }
}

choice! {
    /// What happens to the experts of groups that are not kept.
    pub enum Masked = "masked" {
        /// Their choices become 0.0, which can still win over a negative choice
        /// (InfiniOp and the Hugging Face reference).
        Zero = "zero",
        /// These experts cannot be picked (TensorRT-LLM, vLLM).
        Excluded = "excluded",
    }
}

operator! {
    /// Mixture-of-experts routing: the `topk` experts of each token.
    ///
    /// The [`preset`] of a published model has the model's options, and makes descriptors with
    /// the model's number of experts and its bias. This example is
    /// DeepSeek-V3 with 288 places for its 256 experts, its shared expert in a ninth
    /// column, and a batch padded to 512 rows:
    ///
    /// ```
    /// use spec::ops::topk_router::{Masked, Tensors, preset};
    /// use spec::{DType, Operator, TensorDesc};
    ///
    /// let model = preset::DEEPSEEK_V3;
    /// let router = model
    ///     .router()
    ///     .masked(Masked::Excluded)
    ///     .shared_experts(1)
    ///     .physical_experts(Some(288));
    /// let rows = |dtype, columns| TensorDesc::new(dtype, [512, columns]);
    /// let vector = |dtype, len| TensorDesc::new(dtype, [len]);
    /// let tensors = Tensors::new(
    ///     rows(DType::BF16, model.experts()),
    ///     rows(DType::F32, router.columns()),
    ///     rows(DType::I64, router.columns()),
    /// )
    /// .bias(vector(DType::F32, model.experts()))
    /// .num_tokens(vector(DType::I32, 1))
    /// .replicas(TensorDesc::new(DType::I32, [256, 3]))
    /// .replica_counts(vector(DType::I32, 256))
    /// .load(vector(DType::I32, 288))
    /// .flags(vector(DType::U32, 1));
    /// let plan = router.plan(&tensors)?;
    /// assert_eq!((plan.experts(), plan.physical_experts()), (256, 288));
    /// # Ok::<(), spec::Error>(())
    /// ```
    pub struct TopkRouter = "topk_router";

    options {
        /// How many experts each token is routed to.
        required topk: usize [1..=MAX_TOPK],
        /// How logits become scores.
        optional scoring: Scoring = Scoring::Softmax,
        /// The number by which experts are picked.
        optional select: Select = Select::Score,
        /// The number of groups; it divides the number of experts.
        optional groups: usize [1..] = 1,
        /// How many groups are kept.
        optional topk_groups: usize [1..=groups] = 1,
        /// How groups are scored.
        optional group_score: GroupScore = GroupScore::Top2Sum,
        /// What happens to the experts of groups that are not kept.
        optional masked: Masked = Masked::Excluded,
        /// Whether the weights of a token are divided by their sum.
        optional renormalize: bool = true,
        /// The routed scaling factor, which multiplies the weights of picks.
        optional scale: f32 = 1.0,
        /// The number of shared experts. Every token goes to them, in columns behind
        /// the picks. The first has the index `experts`, or `physical_experts` where that is set.
        optional shared_experts: usize [0..=MAX_SHARED_EXPERTS] = 0,
        /// The weight of each shared expert; `scale` does not multiply it.
        optional shared_weight: f32 = 1.0,
        /// The number of places for experts on all devices together. The index of every
        /// expert, the shared ones included, is an i32.
        optional physical_experts: Option<usize> [1..=MAX_I32 - MAX_SHARED_EXPERTS] = None,
    }

    presence {
        replicas, replica_counts, physical_experts together;
    }

    sizes {
        experts in 1..=MAX_EXPERTS,
        physical_experts = "experts",
        max_replicas in 1..=MAX_I32,
    }

    arguments by position {
        /// The logits of 1 to 4096 experts.
        required x: in [F32, F16, BF16] "[tokens, experts]",
        /// The correction bias of each expert, added to its score or logit when experts are picked.
        optional bias: in [F32, F16, BF16] "[experts]",
        /// The number of rows that are tokens; the rows behind them are padding. Absent: no
        /// padding.
        optional num_tokens: in [I32] "[1]",
        /// The experts of each token, given instead of picked by their logits; -1 for no pick.
        optional chosen: in [I32] "[tokens, topk]",
        /// The places of each expert on all devices, each in `0..physical_experts`.
        optional replicas: in [I32] "[experts, max_replicas]",
        /// The number of places of each expert, at least 1.
        optional replica_counts: in [I32] "[experts]",
        /// The routing weights.
        required weights: out [F32, F16, BF16] "[tokens, topk + shared_experts]",
        /// The experts in descending order of choice, or their places; -1 in rows of padding.
        /// In u32, -1 is 2^32 - 1.
        required indices: out [I32, U32, I64] "[tokens, topk + shared_experts]",
        /// The experts before `replicas` replaces them with places, which a run records for a
        /// replay with `chosen`.
        optional logical: out [I32] "[tokens, topk + shared_experts]",
        /// The number of picks of each expert, or of each place where `replicas` is given, added to
        /// the previous values; shared experts are not counted.
        optional load: inout [I32] "[physical_experts]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
        /// logit, or a bias that is used, is not finite. 2: an expert of `chosen` is out of range
        /// and is no pick, or a pick's place is out of range and its index is -1. 4: `num_tokens`
        /// or a replica count is out of range and was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl TopkRouter {
    /// The number of columns of `weights` and `indices`: one for each pick and each shared expert.
    pub const fn columns(&self) -> usize {
        self.topk.saturating_add(self.shared_experts)
    }

    /// Packed descriptors for `tokens` rows of `experts` logits of the type `dtype`, with a bias of
    /// the type `bias` or none, f32 weights and i32 indices, and no other optional argument. A
    /// caller can add to them. The `tensors` of a [`preset`] knows the model's experts and bias.
    pub fn tensors(
        &self,
        dtype: DType,
        tokens: usize,
        experts: usize,
        bias: Option<DType>,
    ) -> Tensors {
        let picks = |dtype| TensorDesc::new(dtype, [tokens, self.columns()]);
        let x = TensorDesc::new(dtype, [tokens, experts]);
        let mut tensors = Tensors::new(x, picks(DType::F32), picks(DType::I32));
        tensors.bias = bias.map(|dtype| TensorDesc::new(dtype, [experts]));
        tensors
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: TopkRouter,
    /// The logits.
    pub x: Matrix,
    /// The dtype of the bias, where given.
    pub bias: Option<DType>,
    /// Whether `num_tokens` is given, so that rows may be padding.
    pub has_num_tokens: bool,
    /// The experts of `chosen`, where given.
    pub chosen: Option<Matrix>,
    /// The places of experts, where given.
    pub replicas: Option<Matrix>,
    /// The weights to write.
    pub weights: Matrix,
    /// The indices to write.
    pub indices: Matrix,
    /// The experts before `replicas` to write, where asked for.
    pub logical: Option<Matrix>,
    /// Whether picks are counted.
    pub has_load: bool,
}

impl Plan {
    /// The number of rows, padding included.
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

    /// The upper bound of the indices of picks: the number of places, or of experts where
    /// `replicas` is absent.
    pub fn physical_experts(&self) -> usize {
        self.params.physical_experts.unwrap_or(self.x.cols)
    }
}

impl Operator for TopkRouter {
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let (c, sizes) = Checker::declared(self, tensors)?;
        self.check_groups(&c, sizes.of("experts"))?;
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        Ok(Plan {
            params: *self,
            x: tensors.x.matrix(),
            bias: tensors.bias.as_ref().map(TensorDesc::dtype),
            has_num_tokens: tensors.num_tokens.is_some(),
            chosen: matrix(&tensors.chosen),
            replicas: matrix(&tensors.replicas),
            weights: tensors.weights.matrix(),
            indices: tensors.indices.matrix(),
            logical: matrix(&tensors.logical),
            has_load: tensors.load.is_some(),
        })
    }
}

impl TopkRouter {
    fn check_groups(&self, c: &Checker, experts: usize) -> Result<()> {
        let groups = self.groups;
        c.param(
            experts.is_multiple_of(groups),
            "groups",
            groups,
            format!("a divisor of the {experts} experts"),
        )?;
        let choosable = match self.masked {
            Masked::Zero => experts,
            Masked::Excluded => experts / groups * self.topk_groups,
        };
        c.param(
            self.topk <= choosable,
            "topk",
            self.topk,
            format!("at most {choosable}, which can be chosen"),
        )
    }
}
