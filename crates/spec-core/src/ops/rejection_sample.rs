//! Verifies draft tokens against the target model (Leviathan et al., 2023).
//!
//! Request `b` owns the tokens `cu_num_draft[b] .. cu_num_draft[b + 1]` and
//! walks them in order. A token is accepted iff [`crate::exact::accepts`]: the
//! usual `u < min(1, p_target / p_draft)`, without the division. If all are
//! accepted the bonus token follows; at the first rejection one recovered token
//! ends the row, drawn from the residual `r = max(0, target - draft)`. Without
//! `draft_probs` the draft is deterministic, as an n-gram draft is: its
//! probability is 1 at the draft token, and `r` is the target with that entry 0.
//!
//! # Recovery
//! * [`Recovery::Sample`] draws the recovered token from the residual. **Only
//!   this keeps the target's distribution**: the emitted tokens are distributed
//!   as the target model's own would be, to 2^-40.
//! * [`Recovery::Argmax`] takes the largest residual, the lowest index among
//!   equals. It reads less and needs no randomness, but it does *not* preserve
//!   the target distribution.
//!
//! No positive residual: the largest finite target probability, lowest index;
//! none at all: token 0 with flag 1. [`Acceptance::Greedy`] instead accepts
//! while the draft token is the target's argmax and emits the argmax at the
//! first mismatch.
//!
//! # Random numbers
//! Acceptance draws come from `uniform_samples`, or from Philox4x32-10
//! ([`crate::philox`]) keyed by `seed_offset`. The pair lives in device memory,
//! so that a captured CUDA graph draws afresh when the caller bumps the offset.
//!
//! # Bad data
//! Flag 1: a probability or draw that is not finite; it rejects, and it counts
//! as 0 in a residual. Flag 2: a draft token outside the vocabulary, which
//! rejects, or a bonus token outside it, for which token 0 is emitted. Flag 4:
//! offsets that descend, start below 0 or pass the token count (the request
//! has no drafts) and requests longer than `max_spec_len` (cut to it). Flags
//! speak of what the walk reaches: what comes after the first rejection is not
//! looked at.

use crate::check::{Access, Checker, arguments};
use crate::exact::MAX_SAMPLED_VOCAB;
use crate::{DType, Device, Matrix, Operator, Result, Status, TensorDesc, Vector};

/// When a draft token is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acceptance {
    /// With probability `min(1, target / draft)`.
    Probabilistic,
    /// While it equals the target's argmax (lowest index among equals).
    Greedy,
}

/// How the token that replaces a rejected one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// The largest residual. Does not preserve the target distribution.
    Argmax,
    /// Drawn from the residual. Preserves the target distribution.
    Sample,
}

/// The parameters of `rejection_sample`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionSample {
    /// The most drafts of a request; longer requests are cut.
    pub max_spec_len: usize,
    /// When a draft token is accepted.
    pub acceptance: Acceptance,
    /// How the recovered token is chosen; unused with greedy acceptance.
    pub recovery: Recovery,
}

impl RejectionSample {
    /// Lossless: probabilistic acceptance, recovery drawn from the residual.
    pub const fn lossless(max_spec_len: usize) -> Self {
        RejectionSample {
            max_spec_len,
            acceptance: Acceptance::Probabilistic,
            recovery: Recovery::Sample,
        }
    }

    /// Probabilistic acceptance with the largest residual as recovery.
    pub const fn argmax(max_spec_len: usize) -> Self {
        RejectionSample { recovery: Recovery::Argmax, ..Self::lossless(max_spec_len) }
    }

    /// Temperature 0: follow the target's argmax.
    pub const fn greedy(max_spec_len: usize) -> Self {
        RejectionSample { acceptance: Acceptance::Greedy, ..Self::argmax(max_spec_len) }
    }

    /// Packed descriptors for `batch` requests with `tokens` drafts in all:
    /// f32 probabilities, i32 ids, `draft_probs` and the random source these
    /// parameters need, no flags.
    pub fn tensors(&self, batch: usize, tokens: usize, vocab: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        let probs = TensorDesc::new(DType::F32, [tokens, vocab]);
        let sampled = self.acceptance == Acceptance::Probabilistic;
        Tensors {
            target_probs: probs,
            draft_probs: sampled.then_some(probs),
            draft_token_ids: TensorDesc::new(DType::I32, [tokens]),
            bonus_token_ids: per_request,
            cu_num_draft: TensorDesc::new(DType::I32, [batch.saturating_add(1)]),
            uniform_samples: None,
            seed_offset: sampled.then_some(TensorDesc::new(DType::U64, [2])),
            output_token_ids: TensorDesc::new(
                DType::I32,
                [batch, self.max_spec_len.saturating_add(1)],
            ),
            num_accepted: per_request,
            accepted_counts: per_request,
            recovered_counts: per_request,
            bonus_counts: per_request,
            flags: None,
        }
    }
}

arguments! {
    /// The arguments of `rejection_sample`.
    {
        /// Target probabilities `[tokens, vocab]`, f32, f16 or bf16.
        target_probs: I,
        /// Draft probabilities, as `target_probs`; absent for a deterministic
        /// draft. Unused with greedy acceptance.
        draft_probs: Option<I>,
        /// Draft tokens `[tokens]`, i64 or i32.
        draft_token_ids: I,
        /// The token after all drafts `[batch]`, i64 or i32.
        bonus_token_ids: I,
        /// Where each request's tokens start `[batch + 1]`, i64 or i32.
        cu_num_draft: I,
        /// Acceptance draws `[tokens]`, f32 in [0, 1); absent: drawn from
        /// `seed_offset`.
        uniform_samples: Option<I>,
        /// Philox seed and offset `[2]`, u64. Required for `Sample` recovery
        /// and where `uniform_samples` is absent, unless acceptance is greedy.
        seed_offset: Option<I>,
        /// Emitted tokens `[batch, max_spec_len + 1]`, i32, padded with -1.
        output_token_ids: O,
        /// Tokens emitted `[batch]`, i32: recovered or bonus included.
        num_accepted: O,
        /// Draft tokens accepted `[batch]`, i32.
        accepted_counts: O,
        /// 1 where a recovered token was emitted `[batch]`, i32.
        recovered_counts: O,
        /// 1 where the bonus token was emitted `[batch]`, i32.
        bonus_counts: O,
        /// Flags `[1]`, u32, OR-ed.
        flags: Option<O>,
    }
}

/// What was validated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parameters.
    pub params: RejectionSample,
    /// Requests.
    pub batch: usize,
    /// Target probabilities; rows are tokens, columns the vocabulary.
    pub target: Matrix,
    /// Draft probabilities, where given.
    pub draft: Option<Matrix>,
    /// Draft tokens.
    pub draft_token_ids: Vector,
    /// Bonus tokens.
    pub bonus_token_ids: Vector,
    /// Offsets.
    pub cu_num_draft: Vector,
    /// Whether acceptance draws are given rather than generated.
    pub has_uniform_samples: bool,
    /// Emitted tokens.
    pub output: Matrix,
}

impl Plan {
    /// The number of draft tokens over all requests.
    pub fn tokens(&self) -> usize {
        self.target.rows
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.target.cols
    }
}

impl Operator for RejectionSample {
    const NAME: &'static str = "rejection_sample";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let floats = [DType::F32, DType::F16, DType::BF16];
        let ids = [DType::I64, DType::I32];
        let i32s = [DType::I32];
        let words = "[tokens, vocab]";
        let target = c.matrix("target_probs", &t.target_probs, &floats, Access::Read, words)?;
        self.check_vocab(&c, &t.target_probs, target.cols)?;
        let shape = [target.rows, target.cols];
        let same = [target.dtype];
        let draft = t.draft_probs.as_ref();
        let draft = draft
            .map(|d| c.matrix_of("draft_probs", d, &same, Access::Read, shape, words))
            .transpose()?;
        let tokens = target.rows;
        let draft_token_ids =
            c.vector_of("draft_token_ids", &t.draft_token_ids, &ids, tokens, "[tokens]")?;
        let bonus_token_ids = c.vector("bonus_token_ids", &t.bonus_token_ids, &ids, "[batch]")?;
        let batch = bonus_token_ids.len;
        let cu_num_draft =
            c.vector_of("cu_num_draft", &t.cu_num_draft, &ids, batch + 1, "[batch + 1]")?;
        self.check_randomness(&c, t, tokens)?;
        let fits = self.max_spec_len < i32::MAX.unsigned_abs() as usize;
        c.param(fits, "max_spec_len", self.max_spec_len, "a number that fits an i32")?;
        let output = c.matrix_of(
            "output_token_ids",
            &t.output_token_ids,
            &i32s,
            Access::Write,
            [batch, self.max_spec_len + 1],
            "[batch, max_spec_len + 1]",
        )?;
        for (name, desc) in [
            ("num_accepted", &t.num_accepted),
            ("accepted_counts", &t.accepted_counts),
            ("recovered_counts", &t.recovered_counts),
            ("bonus_counts", &t.bonus_counts),
        ] {
            c.vector_of(name, desc, &i32s, batch, "[batch]")?;
        }
        c.flags(t.flags.as_ref())?;
        Ok(Plan {
            params: self.clone(),
            batch,
            target,
            draft,
            draft_token_ids,
            bonus_token_ids,
            cu_num_draft,
            has_uniform_samples: t.uniform_samples.is_some(),
            output,
        })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}

impl RejectionSample {
    fn samples(&self) -> bool {
        self.acceptance == Acceptance::Probabilistic && self.recovery == Recovery::Sample
    }

    fn check_vocab(&self, c: &Checker, desc: &TensorDesc, vocab: usize) -> Result<()> {
        let limit =
            if self.samples() { MAX_SAMPLED_VOCAB } else { i32::MAX.unsigned_abs() as usize };
        if (1..=limit).contains(&vocab) {
            return Ok(());
        }
        let value = format!("{:?}", desc.shape());
        let expected = format!("a vocabulary of 1 to {limit}");
        Err(c.error(Status::BadTensorShape, "target_probs", value, expected))
    }

    fn check_randomness(&self, c: &Checker, t: &Tensors, tokens: usize) -> Result<()> {
        if let Some(desc) = &t.uniform_samples {
            c.vector_of("uniform_samples", desc, &[DType::F32], tokens, "[tokens]")?;
        }
        if let Some(desc) = &t.seed_offset {
            c.vector_of("seed_offset", desc, &[DType::U64], 2, "[2]")?;
        }
        let draws = self.acceptance == Acceptance::Probabilistic && t.uniform_samples.is_none();
        if draws || self.samples() {
            let reason = "[2] u64, since random numbers are drawn";
            c.required("seed_offset", &t.seed_offset, reason)?;
        }
        Ok(())
    }
}
