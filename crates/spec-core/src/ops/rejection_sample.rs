//! Verifies draft tokens against the target model (Leviathan et al., 2023).
//!
//! Request `b` owns the draft tokens `cu_num_draft[b] .. cu_num_draft[b + 1]` and
//! walks them in order. A draft token is accepted by the rule of [`crate::exact::accepts`]: the
//! usual `u < min(1, p_target / p_draft)`, without the division. If all draft tokens are
//! accepted, the bonus token follows. At the first rejection, one recovered token
//! ends the row, drawn from the residual `r = max(0, target - draft)`. Without
//! `draft_probs` the drafts are deterministic, as n-gram drafts are: the draft
//! probability is 1 at the draft token, and `r` is the target distribution with that entry 0.
//!
//! A request whose `greedy` entry is not 0 follows the target's argmax instead, as all requests do
//! with [`Acceptance::Greedy`]: a draft token is accepted while it is the target's
//! argmax (lowest index among equals), and the argmax is emitted at the first
//! mismatch.
//!
//! # Recovery
//! * [`Recovery::Sample`] draws the recovered token from the residual: the tokens whose residual
//!   is [`MIN_RESIDUAL`] or more race ([`crate::race`]). A token finishes at its noise times
//!   [`inverse`](crate::exact::sampling::inverse) of its residual. **Only this recovery keeps the
//!   target's distribution**: the emitted tokens are distributed as the target model's own tokens,
//!   to 2^-40.
//! * [`Recovery::Argmax`] takes the token with the largest residual, the lowest index among
//!   equals. This recovery reads less memory and needs no randomness, but it does *not* preserve
//!   the target distribution.
//!
//! Where no residual is large enough ([`MIN_RESIDUAL`] for [`Recovery::Sample`], above 0 for
//! [`Recovery::Argmax`]), the token with the largest finite target probability is taken, the lowest
//! index among equals. Where no target probability is finite, token 0 is emitted with flag 1.
//!
//! # Random numbers
//! Random numbers belong to a request and to a position in its text, not to a slot of the
//! batch. Draft token `k` of request `b` is accepted with the number
//! `Draw::at(seeds[b], positions[b] + k, Purpose::Accept).uniform()`, unless
//! `uniform_samples` gives another number. A rejected draft token is recovered by a race on the
//! noise of `Draw::at(seeds[b], positions[b] + k, Purpose::Recover)`
//! ([`crate::philox`]; positions wrap around in two's complement). So a request
//! gets the same tokens alone, in any slot of any batch, after a preemption, and
//! with any number of drafts before the position that is decided. Seeds and
//! positions are in device memory: a captured CUDA graph draws new numbers when the
//! caller advances the positions.
//!
//! A drafter that samples uses the same seed and position as the verification of its draft. It
//! must not use the same random number: if the number that chose a draft also decided whether
//! the draft is accepted, the emitted tokens would no longer be
//! distributed as the target's. The purposes keep the numbers apart: drafters, and samplers of
//! bonus tokens, use [`Purpose::Sample`](crate::philox::Purpose::Sample).
//!
//! ```
//! use spec::philox::{Draw, Purpose};
//!
//! let (seed, position) = (0x5EED, 1024);
//! let drafts = Draw::at(seed, position, Purpose::Sample); // for the drafter
//! let accepts = Draw::at(seed, position, Purpose::Accept); // for acceptance
//! let recovers = Draw::at(seed, position, Purpose::Recover); // for recovery
//! assert!(drafts != accepts && accepts != recovers && recovers != drafts);
//! ```
//!
//! # Bad data
//! Flag 1: a probability or a uniform sample that is not finite. It rejects the draft token, and
//! in a residual it counts as 0.
//!
//! Flag 2: a draft token outside the vocabulary, which is rejected, or a bonus token outside the
//! vocabulary, for which token 0 is emitted.
//!
//! Flag 4: offsets that descend, start below 0 or pass the number of draft tokens (the request
//! has no drafts), and requests with more than `max_spec_len` drafts (cut to `max_spec_len`).
//!
//! The walk stops at the first rejection: data behind it is not read and raises no flag. Every
//! seed, position and `greedy` value is valid.
//!
//! # Example
//! ```
//! use spec::ops::RejectionSample;
//! use spec::ops::rejection_sample::{Buffers, Required};
//! use spec::{DType, Handle, TensorDesc};
//!
//! // Two requests to a model with 151,936 tokens, after "The quick". One samples
//! // and has drafted " brown fox jumps"; the other is at temperature 0, later in
//! // the same sentence, and has drafted " over the".
//! const VOCAB: usize = 151_936;
//! let draft_token_ids = [13_876, 38_835, 34_208, 916, 279];
//! let cu_num_draft = [0, 3, 5];
//! let bonus_token_ids = [916, 15_678]; // " over", " lazy"
//! let (seeds, positions) = ([0x5EED_u64, 7], [1024_i64, 17]);
//! let greedy = [false, true];
//!
//! // Probabilities: a few likely tokens; the rest is spread over the whole vocabulary.
//! let row = |likely: &[(usize, f32)]| {
//!     let rest = 1.0 - likely.iter().map(|(_, p)| p).sum::<f32>();
//!     let mut row = vec![rest / VOCAB as f32; VOCAB];
//!     likely.iter().for_each(|&(token, p)| row[token] += p);
//!     row
//! };
//! let draft_probs = [
//!     row(&[(13_876, 0.8)]),
//!     row(&[(38_835, 0.9)]),
//!     row(&[(34_208, 0.9)]),
//!     row(&[(916, 0.6)]),
//!     row(&[(279, 0.7)]),
//! ]
//! .concat();
//! let target_probs = [
//!     row(&[(13_876, 0.9)]),
//!     row(&[(38_835, 0.95)]),
//!     row(&[(26_035, 0.99)]), // " jumped": the draft was wrong
//!     row(&[(916, 0.5), (2_548, 0.1)]),
//!     row(&[(264, 0.4), (279, 0.3)]), // " a" before " the"
//! ]
//! .concat();
//!
//! let params = RejectionSample::lossless(3);
//! let tensors = params
//!     .tensors(2, 5, VOCAB)
//!     .draft_probs(TensorDesc::new(DType::F32, [5, VOCAB]))
//!     .greedy(TensorDesc::new(DType::Bool, [2]));
//! let handle = Handle::cpu()?;
//! let verify = handle.create(&params, &tensors)?;
//! let mut workspace = verify.workspace(&handle)?;
//! let mut output_token_ids = [0i32; 2 * 4];
//! let [mut emitted, mut accepted, mut recovered, mut bonus] = [[0i32; 2]; 4];
//! let buffers = Buffers::new(Required {
//!     target_probs: (&target_probs).into(),
//!     draft_token_ids: (&draft_token_ids).into(),
//!     bonus_token_ids: (&bonus_token_ids).into(),
//!     cu_num_draft: (&cu_num_draft).into(),
//!     output_token_ids: (&mut output_token_ids).into(),
//!     num_accepted: (&mut emitted).into(),
//!     accepted_counts: (&mut accepted).into(),
//!     recovered_counts: (&mut recovered).into(),
//!     bonus_counts: (&mut bonus).into(),
//! })
//! .draft_probs(&draft_probs)
//! .seeds(&seeds)
//! .positions(&positions)
//! .greedy(greedy.as_slice());
//! verify.call(&mut workspace, buffers)?;
//! assert_eq!(output_token_ids, [13_876, 38_835, 26_035, -1, 916, 264, -1, -1]);
//! assert_eq!((emitted, accepted), ([3, 2], [2, 1]));
//! // The next step decides positions 1027 and 19.
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::{choice, operator};
use crate::exact::MAX_SAMPLED_VOCAB;
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

choice! {
    /// When a draft token is accepted.
    pub enum Acceptance = "acceptance" {
        /// With probability `min(1, target / draft)`.
        Probabilistic = "probabilistic",
        /// If it equals the target's argmax (lowest index among equals).
        Greedy = "greedy",
    }
}

choice! {
    /// How the token that replaces a rejected one is chosen.
    pub enum Recovery = "recovery" {
        /// The token with the largest residual. Does not preserve the target distribution.
        Argmax = "argmax",
        /// A token drawn from the residual. Preserves the target distribution.
        Sample = "sample",
    }
}

/// The least residual with which a token can be recovered, 2^-40. Smaller residuals are far below
/// the rounding errors of probabilities.
pub const MIN_RESIDUAL: f32 = 1.0 / 1_099_511_627_776.0;

operator! {
    /// Verifies draft tokens against the target model (Leviathan et al., 2023).
    pub struct RejectionSample = "rejection_sample";

    options {
        /// The largest number of drafts of a request. A request with more is cut to it. If all the
        /// drafts that are left are accepted, the bonus token follows, which was drawn for the
        /// position behind the drafts that were cut away. So draft no more than `max_spec_len`.
        required max_spec_len: usize [0..=i32::MAX - 1],
        /// When a draft token is accepted. Requests that `greedy` marks follow the target's argmax
        /// instead.
        optional acceptance: Acceptance = Acceptance::Probabilistic,
        /// How the recovered token is chosen. Not used with greedy acceptance.
        optional recovery: Recovery = Recovery::Sample,
    }

    sizes {
        vocab in 1..=MAX_I32,
    }

    arguments by name {
        /// The probabilities of the target model, a row for each draft. At a request's
        /// first step: the rows after the prompt, and after each draft but the last.
        required target_probs: in [F32, F16, BF16] "[tokens, vocab]",
        /// The probabilities that each draft was drawn from, in the type of
        /// `target_probs`; absent where drafts are deterministic. Not read for
        /// greedy requests. At the first step: the drafter's rows after the prompt.
        optional draft_probs: in [F32, F16, BF16] as target_probs "[tokens, vocab]",
        /// The draft tokens, one request behind the other. At the first step: guesses of the tokens
        /// that follow the prompt.
        required draft_token_ids: in [I64, I32, U32] "[tokens]",
        /// The token that follows if all drafts of a request are accepted, drawn from the target's
        /// row after the last draft. At a first step without drafts: the first token after the
        /// prompt.
        required bonus_token_ids: in [I64, I32, U32] "[batch]",
        /// The sums of the numbers of drafts, which say where each request's drafts end; with or
        /// without a leading 0: `[0, 3, 5]` or `[3, 5]` for 3 and 2 drafts. A request without
        /// drafts, as at a first step, repeats the number before.
        required cu_num_draft: in [I64, I32, U32] "[batch + 1] or [batch]",
        /// The random numbers for acceptance in [0, 1), one for each draft; absent: drawn from
        /// `seeds` and `positions`. Not read for greedy requests. The same at every step.
        optional uniform_samples: in [F32] "[tokens]",
        /// The seed of each request. Required where acceptance is probabilistic and either recovery
        /// is `sample` or `uniform_samples` is absent. At the first step: any number; the same at
        /// every later step of the request.
        optional seeds: in [U64] "[batch]",
        /// The position of each request's first draft in its own text, prompt
        /// included. Required where `seeds` is. At the first step: the number of
        /// tokens of the prompt; each step adds the number of emitted tokens.
        optional positions: in [I64, I32] "[batch]",
        /// Not 0 for each request that follows the target's argmax, whatever `acceptance` is;
        /// absent: no request. At every step: whether the request's temperature is 0.
        optional greedy: in [I32, I8, U8, Bool] "[batch]",
        /// The emitted tokens: the accepted drafts, then the recovered or the bonus
        /// token, then -1 (the largest value in u32).
        required output_token_ids: out [I32, I64, U32] "[batch, max_spec_len + 1]",
        /// The number of tokens emitted, the recovered or bonus token included, so never 0.
        required num_accepted: out [I32] "[batch]",
        /// The number of draft tokens accepted; 0 at a first step without drafts.
        required accepted_counts: out [I32] "[batch]",
        /// 1 where a recovered token was emitted, else 0; 0 at a first step without drafts.
        required recovered_counts: out [I32] "[batch]",
        /// 1 where the bonus token was emitted, else 0; 1 at a first step without drafts.
        required bonus_counts: out [I32] "[batch]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
        /// probability or a uniform sample is not finite; the draft is rejected. 2: a draft is
        /// outside the vocabulary and is rejected, or a bonus token is, and token 0 is emitted. 4:
        /// offsets descend or leave the drafts, or a request has more than `max_spec_len` drafts
        /// and was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl RejectionSample {
    /// Verification that keeps the target's distribution: probabilistic acceptance, and recovery
    /// drawn from the residual.
    pub const fn lossless(max_spec_len: usize) -> Self {
        RejectionSample::new(max_spec_len)
    }

    /// Probabilistic acceptance, and recovery by the largest residual.
    pub const fn argmax(max_spec_len: usize) -> Self {
        Self::lossless(max_spec_len).recovery(Recovery::Argmax)
    }

    /// Verification at temperature 0: drafts and recovery follow the target's argmax.
    pub const fn greedy(max_spec_len: usize) -> Self {
        Self::argmax(max_spec_len).acceptance(Acceptance::Greedy)
    }

    /// Packed descriptors for `batch` requests with `tokens` drafts together: f32 probabilities
    /// and i32 ids; of the optional arguments, `seeds` and `positions` where these options draw
    /// random numbers. A caller whose drafts have probabilities adds `draft_probs`.
    pub fn tensors(&self, batch: usize, tokens: usize, vocab: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        let mut tensors = Tensors::new(Required {
            target_probs: TensorDesc::new(DType::F32, [tokens, vocab]),
            draft_token_ids: TensorDesc::new(DType::I32, [tokens]),
            bonus_token_ids: per_request,
            cu_num_draft: TensorDesc::new(DType::I32, [batch.saturating_add(1)]),
            output_token_ids: TensorDesc::new(
                DType::I32,
                [batch, self.max_spec_len.saturating_add(1)],
            ),
            num_accepted: per_request,
            accepted_counts: per_request,
            recovered_counts: per_request,
            bonus_counts: per_request,
        });
        if self.acceptance == Acceptance::Probabilistic {
            tensors.seeds = Some(TensorDesc::new(DType::U64, [batch]));
            tensors.positions = Some(TensorDesc::new(DType::I64, [batch]));
        }
        tensors
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: RejectionSample,
    /// The number of requests.
    pub batch: usize,
    /// The target probabilities; rows are draft tokens, columns the vocabulary.
    pub target: Matrix,
    /// Draft probabilities, where given.
    pub draft: Option<Matrix>,
    /// Draft tokens.
    pub draft_token_ids: Vector,
    /// Bonus tokens.
    pub bonus_token_ids: Vector,
    /// The offsets: one for each request, or one more.
    pub cu_num_draft: Vector,
    /// Whether the random numbers for acceptance are given.
    pub has_uniform_samples: bool,
    /// The positions of the first drafts, where given.
    pub positions: Option<Vector>,
    /// The argument `greedy`, where it is given and acceptance is probabilistic.
    pub greedy: Option<Vector>,
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

    /// Whether the offsets begin with a leading 0.
    pub fn has_leading_zero(&self) -> bool {
        self.cu_num_draft.len > self.batch
    }

    /// Whether recovered tokens are drawn from the residual.
    pub fn samples(&self) -> bool {
        self.params.samples()
    }
}

impl Operator for RejectionSample {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (c, sizes) = Checker::declared(self, t)?;
        let batch = sizes.of("batch");
        let target = t.target_probs.matrix();
        if self.samples() && target.cols > MAX_SAMPLED_VOCAB {
            let value = format!("{:?}", t.target_probs.shape());
            let expected = format!("a vocabulary of 1 to {MAX_SAMPLED_VOCAB}");
            return Err(c.error(Status::BadTensorShape, "target_probs", value, expected));
        }
        if self.draws(t) {
            c.required("seeds", &t.seeds, "[batch] u64, since random numbers are drawn")?;
            let reason = "[batch] i64 or i32, since random numbers are drawn";
            c.required("positions", &t.positions, reason)?;
        }
        // With greedy acceptance, all requests are greedy.
        let greedy = t.greedy.as_ref().filter(|_| self.acceptance == Acceptance::Probabilistic);
        Ok(Plan {
            params: *self,
            batch,
            target,
            draft: t.draft_probs.as_ref().map(TensorDesc::matrix),
            draft_token_ids: t.draft_token_ids.vector(),
            bonus_token_ids: t.bonus_token_ids.vector(),
            cu_num_draft: t.cu_num_draft.vector(),
            has_uniform_samples: t.uniform_samples.is_some(),
            positions: t.positions.as_ref().map(TensorDesc::vector),
            greedy: greedy.map(TensorDesc::vector),
            output: t.output_token_ids.matrix(),
        })
    }
}

impl RejectionSample {
    fn samples(&self) -> bool {
        self.acceptance == Acceptance::Probabilistic && self.recovery == Recovery::Sample
    }

    /// Whether a call draws random numbers from `seeds` and `positions`.
    fn draws(&self, t: &Tensors) -> bool {
        let accepts = self.acceptance == Acceptance::Probabilistic && t.uniform_samples.is_none();
        accepts || self.samples()
    }
}
