//! The loop of speculative decoding: draft, verify, emit.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use spec::ops::rejection_sample::{self, RejectionSample};
use spec::{Buffer, DType, Descriptor, Handle, Signature, Stream, TensorDesc};

use super::drafting::{Drafter, Drafts, Hybrid, Ngram, Progress};
use super::model::{Model, argmax, sample};
use crate::{Error, Result};

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftKind {
    /// Copy what followed the last tokens before (ngram_match)
    Ngram,
    /// Draw from the draft model
    Model,
    /// Draw from the draft model, then copy on (hybrid_mtp_ngram)
    Hybrid,
    /// No drafts: plain decoding, a token a step
    None,
}

/// What to decode.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens to emit.
    pub tokens: usize,
    /// Where drafts come from.
    pub draft: DraftKind,
    /// The most drafts in a step.
    pub draft_tokens: usize,
    /// 0 follows the target's likeliest token.
    pub temperature: f64,
    /// Of every random number.
    pub seed: u64,
}

impl Settings {
    /// Whether nothing is drawn at random.
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

/// What decoding came to.
pub struct Decoded {
    /// The emitted tokens.
    pub tokens: Vec<u32>,
    /// Calls of the target model.
    pub steps: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafts that were accepted.
    pub accepted: usize,
    /// The time of everything.
    pub total: Duration,
    /// The time of each operator.
    pub watch: Stopwatch,
}

/// Adds up the time of calls by name.
pub struct Stopwatch {
    handle: Handle,
    /// Name, time and calls.
    pub laps: Vec<(&'static str, Duration, usize)>,
}

impl Stopwatch {
    /// Measures one call and waits for the device to finish it.
    pub fn measure(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> spec::Result<()>,
    ) -> spec::Result<()> {
        let started = Instant::now();
        call()?;
        self.handle.synchronize()?;
        let time = started.elapsed();
        match self.laps.iter_mut().find(|lap| lap.0 == name) {
            Some(lap) => {
                lap.1 += time;
                lap.2 += 1;
            }
            None => self.laps.push((name, time, 1)),
        }
        Ok(())
    }
}

/// Decodes from the end of a prompt of at least two tokens. `emitted` is told
/// how many tokens there are after each step.
pub fn decode(
    handle: &Handle,
    model: &Model,
    prompt: &[u32],
    settings: &Settings,
    mut emitted: impl FnMut(usize),
) -> Result<Decoded> {
    let started = Instant::now();
    let mut drafter = match settings.draft {
        DraftKind::None => Drafter::Plain,
        DraftKind::Model => Drafter::Model,
        DraftKind::Ngram => Drafter::Ngram(Box::new(Ngram::new(handle, prompt, settings)?)),
        DraftKind::Hybrid => Drafter::Hybrid(Box::new(Hybrid::new(handle, prompt, settings)?)),
    };
    let mut verifier = Verifier::new(handle, model, settings)?;
    let mut watch = Stopwatch { handle: handle.clone(), laps: Vec::new() };
    let &[.., before, last] = prompt else {
        return Err(Error::Message("a prompt needs two tokens".to_owned()));
    };
    let mut generated = Vec::with_capacity(settings.tokens + 1);
    generated.push(last);
    let (mut steps, mut drafted, mut accepted) = (0, 0, 0);
    while generated.len() <= settings.tokens {
        let context = match generated[..] {
            [.., a, b] => [a, b],
            _ => [before, last],
        };
        let left = settings.tokens + 1 - generated.len();
        let limit = settings.draft_tokens.min(left - 1);
        let position = (prompt.len() + generated.len() - 1) as i64;
        let progress = Progress { generated: &generated, context, limit, position };
        let drafts = drafter.draft(model, settings, &progress, &mut watch)?;
        let verdict = verifier.verify(model, settings, &progress, &drafts, &mut watch)?;
        steps += 1;
        drafted += drafts.tokens.len();
        accepted += verdict.accepted;
        generated.extend(verdict.emitted);
        emitted(generated.len() - 1);
    }
    let flags = drafter.flags()? | verifier.flags.to_vec()?[0];
    if flags != 0 {
        let what = format!("{} found bad data where there is none: flags {flags}", handle.device());
        return Err(Error::Message(what));
    }
    generated.remove(0);
    Ok(Decoded { tokens: generated, steps, drafted, accepted, total: started.elapsed(), watch })
}

/// What verification says of one step.
struct Verdict {
    emitted: Vec<u32>,
    accepted: usize,
}

/// `rejection_sample` for one request with up to `draft_tokens` drafts.
struct Verifier {
    operator: Descriptor<RejectionSample>,
    workspace: Buffer<u8>,
    target_probs: Buffer<f32>,
    /// Absent where drafts are certain of themselves, or only the target's
    /// argmax counts.
    draft_probs: Option<Buffer<f32>>,
    draft_token_ids: Buffer<i32>,
    bonus_token_ids: Buffer<i32>,
    cu_num_draft: Buffer<i32>,
    seeds: Option<Buffer<u64>>,
    positions: Option<Buffer<i64>>,
    output_token_ids: Buffer<i32>,
    num_accepted: Buffer<i32>,
    accepted_counts: Buffer<i32>,
    recovered_counts: Buffer<i32>,
    bonus_counts: Buffer<i32>,
    flags: Buffer<u32>,
    /// The target's rows, one for each draft and one for the bonus token.
    rows: Vec<f32>,
}

impl Verifier {
    fn new(handle: &Handle, model: &Model, settings: &Settings) -> Result<Self> {
        let (slots, vocab) = (settings.draft_tokens, model.vocab());
        let params = if settings.greedy() {
            RejectionSample::greedy(slots)
        } else {
            RejectionSample::lossless(slots)
        };
        let mut tensors = params.tensors(1, slots, vocab);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        if !matches!(settings.draft, DraftKind::Model | DraftKind::Hybrid) {
            tensors.draft_probs = None;
        }
        let operator = handle.create(&params, &tensors)?;
        let draft_probs =
            tensors.draft_probs.map(|_| handle.allocate(slots * vocab)).transpose()?;
        Ok(Verifier {
            workspace: handle.workspace(operator.workspace_size())?,
            operator,
            target_probs: handle.allocate(slots * vocab)?,
            draft_probs,
            draft_token_ids: handle.allocate(slots)?,
            bonus_token_ids: handle.allocate(1)?,
            cu_num_draft: handle.allocate(2)?,
            seeds: tensors.seeds.map(|_| handle.upload(&[settings.seed])).transpose()?,
            positions: tensors.positions.map(|_| handle.allocate(1)).transpose()?,
            output_token_ids: handle.allocate(slots + 1)?,
            num_accepted: handle.allocate(1)?,
            accepted_counts: handle.allocate(1)?,
            recovered_counts: handle.allocate(1)?,
            bonus_counts: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
            rows: vec![0.0; (slots + 1) * vocab],
        })
    }

    /// Runs the target model on the drafts, and the operator on both.
    fn verify(
        &mut self,
        model: &Model,
        settings: &Settings,
        at: &Progress<'_>,
        drafts: &Drafts,
        watch: &mut Stopwatch,
    ) -> Result<Verdict> {
        let (count, vocab) = (drafts.tokens.len(), model.vocab());
        let mut context = at.context;
        for (position, row) in self.rows.chunks_exact_mut(vocab).take(count + 1).enumerate() {
            model.target(context, row);
            if let Some(token) = drafts.tokens.get(position) {
                context = [context[1], *token];
            }
        }
        let (rows, bonus_row) = self.rows[..(count + 1) * vocab].split_at(count * vocab);
        let bonus = if settings.greedy() {
            argmax(bonus_row)
        } else {
            sample(bonus_row, settings.seed, at.position + count as i64)
        };
        let ids: Vec<i32> = drafts.tokens.iter().map(|token| *token as i32).collect();
        self.target_probs.write(rows)?;
        if let Some(draft_probs) = &mut self.draft_probs {
            draft_probs.write(&drafts.probs)?;
        }
        self.draft_token_ids.write(&ids)?;
        self.bonus_token_ids.write(&[bonus as i32])?;
        self.cu_num_draft.write(&[0, count as i32])?;
        if let Some(positions) = &mut self.positions {
            positions.write(&[at.position])?;
        }
        let buffers = rejection_sample::Buffers {
            target_probs: (&self.target_probs).into(),
            draft_probs: self.draft_probs.as_ref().map(Into::into),
            draft_token_ids: (&self.draft_token_ids).into(),
            bonus_token_ids: (&self.bonus_token_ids).into(),
            cu_num_draft: (&self.cu_num_draft).into(),
            uniform_samples: None,
            seeds: self.seeds.as_ref().map(Into::into),
            positions: self.positions.as_ref().map(Into::into),
            greedy: None,
            output_token_ids: (&mut self.output_token_ids).into(),
            num_accepted: (&mut self.num_accepted).into(),
            accepted_counts: (&mut self.accepted_counts).into(),
            recovered_counts: (&mut self.recovered_counts).into(),
            bonus_counts: (&mut self.bonus_counts).into(),
            flags: Some((&mut self.flags).into()),
        };
        watch.measure(RejectionSample::NAME, || {
            self.operator.calculate(&mut self.workspace, buffers, Stream::default())
        })?;
        self.verdict(count, vocab)
    }

    /// Reads the result, and believes it only if it can be true.
    fn verdict(&self, drafts: usize, vocab: usize) -> Result<Verdict> {
        let emitted = self.num_accepted.to_vec()?[0];
        let accepted = self.accepted_counts.to_vec()?[0];
        let output = self.output_token_ids.to_vec()?;
        let wrong = || {
            let device = self.operator.device();
            Error::Message(format!(
                "rejection_sample on {device} emitted {emitted} tokens {output:?}, {accepted} of \
                 them accepted, for {drafts} drafts out of {vocab} tokens"
            ))
        };
        let count = usize::try_from(emitted).ok().filter(|n| (1..=drafts + 1).contains(n));
        let accepted = usize::try_from(accepted).ok().filter(|n| *n <= drafts).ok_or_else(wrong)?;
        let tokens: Option<Vec<u32>> = output[..count.ok_or_else(wrong)?]
            .iter()
            .map(|token| u32::try_from(*token).ok().filter(|token| (*token as usize) < vocab))
            .collect();
        Ok(Verdict { emitted: tokens.ok_or_else(wrong)?, accepted })
    }
}
