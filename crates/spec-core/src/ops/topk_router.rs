//! Mixture-of-experts routing: the `topk` experts of each token.
//!
//! 1. Score `s`: [`Scoring::Sigmoid`] or [`Scoring::SqrtSoftplus`] of the logit, or
//!    [`Scoring::Softmax`] over the row, in f32 by the exact rules of
//!    [`crate::exact`]. A NaN logit scores 0; a softmax row whose largest logit is
//!    negative infinity scores 0 everywhere.
//! 2. Choice `c = s + bias` (`bias` is DeepSeek's correction bias), or the logit
//!    plus bias ([`Select::Logit`]). A NaN choice, and the choice of a NaN logit,
//!    is negative infinity.
//! 3. With more than one group: a group's score is the sum of its two largest
//!    choices or its largest ([`GroupScore`]); the `topk_groups` best are kept.
//! 4. Experts of the other groups take `c = 0.0` or are excluded ([`Masked`]).
//! 5. The `topk` largest choices, descending. All ties, of groups and of
//!    experts, go to the lower index.
//! 6. Weight `scale * s`; if `renormalize`, `scale` times the share of `s` in the
//!    sum of the chosen `s` plus 1e-20.
//! 7. `shared_experts` more columns: the experts behind the last, each with the
//!    weight `shared_weight`.
//! 8. Rows from `num_tokens` on are padding: index -1 and weight 0 in every column,
//!    whatever their logits are.
//! 9. With `replicas`, expert `e` of row `t` becomes
//!    `replicas[e][(t * 2654435769 mod 2^32) mod replica_counts[e]]`, a place on
//!    some device; `load` counts the picks of each place. `logical` has the experts
//!    from before `replicas`; those of the shared columns are `experts`,
//!    `experts + 1` and so on.
//!
//! # Experts that are given
//! With `chosen`, steps 2 to 5 are left out: each token goes to the experts of its row
//! of `chosen`, in that order. Neither groups nor bias are used. A training run replays
//! in this way the routing that its rollout recorded in `logical` (router replay), and
//! a layer with a table of experts for each token id (DeepSeek-V4's first layers) looks
//! them up there. The picks have the weights that they would have had if they had been
//! selected. -1 is no pick: its index is -1, its weight 0, and it is not in the sum. An
//! expert that is given twice counts twice.
//!
//! # Results
//! The indices are the same bits on every backend; the weights agree to 2e-5. Weights of
//! 16 bits are the f32 weights, rounded once to the nearest, ties to even. With
//! softmax, logits of positive infinity share the row's whole weight.
//!
//! | flag | |
//! |---|---|
//! | 1 | a logit of a row that is no padding, or a bias that is used for such a row, is not finite |
//! | 2 | a chosen expert's place lies outside `0..physical_experts`; its index is -1, its weight and its `logical` stay |
//! | 2 | a `chosen` expert is neither -1 nor in `0..experts`; it is no pick |
//! | 4 | `num_tokens` lies outside `0..=tokens`, or a chosen expert's replica count outside `1..=most`; both are cut |
//!
//! [`preset`] has the routers of published models. Two tokens of Mixtral's,
//! which has eight experts:
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
//! // Of the two chosen: e^2 / (e^2 + e^1.5).
//! assert!((weights[0] - 0.62246).abs() < 1e-5);
//! # Ok::<(), spec::Error>(())
//! ```
//!
//! The same router, given the experts that another run had recorded:
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
//! // Of the two given: e^1.5 / (e^1.5 + e^0.4).
//! assert!((weights[0] - 0.75026).abs() < 1e-5);
//! # Ok::<(), spec::Error>(())
//! ```
//!
//! Sources: DeepSeek-V3 (2024) for bias and groups; InfiniOp's `topkrouter`; vLLM's
//! `eplb` for the placement; prime-rl and TRL for router replay.

use crate::check::Checker;
use crate::declare::{choice, operator};
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc};

pub mod preset;

/// The largest number of experts.
pub const MAX_EXPERTS: usize = 4096;
/// The largest `topk`.
pub const MAX_TOPK: usize = 64;
/// The largest `shared_experts`.
pub const MAX_SHARED_EXPERTS: usize = 64;
/// What spreads the tokens over an expert's replicas: 2^32 over the golden ratio.
pub const REPLICA_HASH: u32 = 2_654_435_769;

choice! {
    /// How a logit becomes a score.
    pub enum Scoring = "scoring" {
        /// The logistic function of the logit.
        Sigmoid = "sigmoid",
        /// Softmax over all experts of the token.
        Softmax = "softmax",
        /// The square root of ln(1 + e^x), as DeepSeek-V4 has it.
        SqrtSoftplus = "sqrt_softplus",
    }
}

choice! {
    /// What experts are chosen by.
    pub enum Select = "select" {
        /// The score plus bias.
        Score = "score",
        /// The logit plus bias: scores that saturate tie where their logits do not.
        Logit = "logit",
    }
}

choice! {
    /// How the choices of a group become the group's score.
    pub enum GroupScore = "group_score" {
        /// The sum of the two largest; the only one where a group has one expert.
        Top2Sum = "top2_sum",
        /// The largest.
        Max = "max",
    }
}

choice! {
    /// What happens to the experts of groups that are not kept.
    pub enum Masked = "masked" {
        /// Their choice becomes 0.0, which can still win over a negative one
        /// (InfiniOp and the Hugging Face reference).
        Zero = "zero",
        /// They cannot be chosen (TensorRT-LLM, vLLM).
        Excluded = "excluded",
    }
}

operator! {
    /// Mixture-of-experts routing: the `topk` experts of each token.
    ///
    /// A published model's come from its [`preset`], and so do its tensors, since the
    /// model knows how many experts it has and whether they have a bias. Here
    /// DeepSeek-V3 with 288 places for its 256 experts and its shared expert in a ninth
    /// column, in a batch padded to 512 rows:
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
        /// How many experts each token is routed to, at most 64.
        required topk: usize,
        /// How logits become scores.
        optional scoring: Scoring = Scoring::Softmax,
        /// What experts are chosen by.
        optional select: Select = Select::Score,
        /// The number of groups; it divides the number of experts.
        optional groups: usize = 1,
        /// How many groups are kept.
        optional topk_groups: usize = 1,
        /// How groups are scored.
        optional group_score: GroupScore = GroupScore::Top2Sum,
        /// What happens to the experts of the other groups.
        optional masked: Masked = Masked::Excluded,
        /// Whether the weights of a token are divided by their sum.
        optional renormalize: bool = true,
        /// The routed scaling factor.
        optional scale: f32 = 1.0,
        /// Experts that every token goes to, in columns behind the picks, at most 64.
        /// The first has the index `experts`, or `physical_experts` where there are.
        optional shared_experts: usize = 0,
        /// The weight of each of them; it is not scaled.
        optional shared_weight: f32 = 1.0,
        /// How many places the experts have on all devices: with `replicas`, and only
        /// with them.
        optional physical_experts: Option<usize> = None,
    }

    arguments by position {
        /// Logits of 1 to 4096 experts.
        required x: in [F32, F16, BF16] "[tokens, experts]",
        /// Correction bias, added to what experts are chosen by.
        optional bias: in [F32, F16, BF16] "[experts]",
        /// How many rows are tokens; those behind them are padding. Absent: all are.
        optional num_tokens: in [I32] "[1]",
        /// Experts that are given instead of selected; -1 for no pick.
        optional chosen: in [I32] "[tokens, topk]",
        /// The places of each expert on all devices, each in `0..physical_experts`.
        optional replicas: in [I32] "[experts, most]",
        /// How many of them each expert has, at least 1: given with `replicas`.
        optional replica_counts: in [I32] "[experts]",
        /// Routing weights.
        required weights: out [F32, F16, BF16] "[tokens, topk + shared_experts]",
        /// Experts in descending order of choice, or their places; -1 in rows of padding.
        /// As u32, -1 is 2^32 - 1.
        required indices: out [I32, U32, I64] "[tokens, topk + shared_experts]",
        /// The experts before `replicas`, as a run records them that is to be replayed.
        optional logical: out [I32] "[tokens, topk + shared_experts]",
        /// How many picks went to each expert, or to each place where there are
        /// `replicas`, added to what is there; shared experts are not counted.
        optional load: inout [I32] "[physical_experts]",
        /// Flags, OR-ed.
        optional flags: inout [U32] "[1]",
    }
}

impl TopkRouter {
    /// The columns of weights and indices: the picks and the shared experts.
    pub const fn columns(&self) -> usize {
        self.topk.saturating_add(self.shared_experts)
    }

    /// Packed descriptors for `tokens` rows of `experts` logits, with a bias of that
    /// type or none, i32 indices, and no other optional argument: a start that a
    /// caller adjusts. A [`preset`]'s own `tensors` knows experts and bias.
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

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: TopkRouter,
    /// Logits.
    pub x: Matrix,
    /// The type of the bias, if there is one.
    pub bias: Option<DType>,
    /// Whether there may be padding.
    pub has_num_tokens: bool,
    /// Experts that are given, if they are.
    pub chosen: Option<Matrix>,
    /// Places of experts, if they are replicated.
    pub replicas: Option<Matrix>,
    /// Weights out.
    pub weights: Matrix,
    /// Indices out.
    pub indices: Matrix,
    /// Experts before `replicas` out, if they are wanted.
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

    /// What indices of picks lie below: places, or experts where they have none.
    pub fn physical_experts(&self) -> usize {
        self.params.physical_experts.unwrap_or(self.x.cols)
    }
}

impl Operator for TopkRouter {
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let x = c.matrix(arg::x, &tensors.x)?;
        if !(1..=MAX_EXPERTS).contains(&x.cols) {
            let value = format!("{:?}", tensors.x.shape());
            return Err(c.error(Status::BadTensorShape, "x", value, "1 to 4096 experts"));
        }
        let bias = tensors.bias.as_ref().map(|bias| c.vector_of(arg::bias, bias, x.cols));
        let bias = bias.transpose()?.map(|bias| bias.dtype);
        self.check_params(&c, x.cols)?;
        if let Some(num_tokens) = &tensors.num_tokens {
            c.vector_of(arg::num_tokens, num_tokens, 1)?;
        }
        let chosen = tensors.chosen.as_ref();
        let chosen = chosen.map(|given| c.matrix_of(arg::chosen, given, [x.rows, self.topk]));
        let chosen = chosen.transpose()?;
        let replicas = self.check_replicas(&c, tensors, x.cols)?;
        let shape = [x.rows, self.columns()];
        let weights = c.matrix_of(arg::weights, &tensors.weights, shape)?;
        let indices = c.matrix_of(arg::indices, &tensors.indices, shape)?;
        let logical = tensors.logical.as_ref();
        let logical = logical.map(|out| c.matrix_of(arg::logical, out, shape)).transpose()?;
        if let Some(load) = &tensors.load {
            c.vector_of(arg::load, load, self.physical_experts.unwrap_or(x.cols))?;
        }
        if let Some(flags) = &tensors.flags {
            c.vector_of(arg::flags, flags, 1)?;
        }
        let (has_num_tokens, has_load) = (tensors.num_tokens.is_some(), tensors.load.is_some());
        let params = *self;
        Ok(Plan {
            params,
            x,
            bias,
            has_num_tokens,
            chosen,
            replicas,
            weights,
            indices,
            logical,
            has_load,
        })
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
            format!("1 to {}: at most 64 and what can be chosen", MAX_TOPK.min(choosable)),
        )?;
        c.param(self.scale.is_finite(), "scale", self.scale, "a finite number")?;
        let shared = self.shared_experts;
        c.param(shared <= MAX_SHARED_EXPERTS, "shared_experts", shared, "at most 64")?;
        let weight = self.shared_weight;
        c.param(weight.is_finite(), "shared_weight", weight, "a finite number")
    }

    /// The places of experts: both tensors and their number, or none of the three.
    fn check_replicas(
        &self,
        c: &Checker,
        tensors: &Tensors,
        experts: usize,
    ) -> Result<Option<Matrix>> {
        let Tensors { replicas, replica_counts, .. } = tensors;
        let Some(physical) = self.physical_experts else {
            let given = replicas.is_some() || replica_counts.is_some();
            c.param(!given, "physical_experts", "absent", "the number of places of `replicas`")?;
            return Ok(None);
        };
        // Every index is an i32.
        let most = i32::MAX as usize - self.shared_experts;
        c.param(
            (1..=most).contains(&physical),
            "physical_experts",
            physical,
            format!("1 to {most}, so that every index fits i32"),
        )?;
        let reason = "given, as `physical_experts` is";
        let replicas = c.required("replicas", replicas, reason)?;
        let counts = c.required("replica_counts", replica_counts, reason)?;
        let matrix = c.matrix(arg::replicas, replicas)?;
        if matrix.rows != experts || !(1..=i32::MAX as usize).contains(&matrix.cols) {
            let value = format!("{:?}", replicas.shape());
            let expected = format!("[{experts}, most], most at least 1");
            return Err(c.error(Status::BadTensorShape, "replicas", value, expected));
        }
        c.vector_of(arg::replica_counts, counts, experts)?;
        Ok(Some(matrix))
    }
}
