//! Where drafts come from: n-gram matching, the draft model, or both.

use spec::ops::hybrid_mtp_ngram::{self, HybridMtpNgram};
use spec::ops::ngram_match::{self, NgramMatch};
use spec::{Buffer, Descriptor, Handle, Signature, Stream};

use super::engine::{Settings, Stopwatch};
use super::model::{Model, argmax, sample};
use crate::Result;

/// The longest pattern that n-gram matching looks for.
const MAX_NGRAM: usize = 3;
/// More tokens than one request can ask for: the budget never binds.
const NO_THRESHOLD: i32 = i32::MAX;

/// Drafts of one step.
#[derive(Default)]
pub struct Drafts {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The probabilities they were drawn from, a row each; nothing where all
    /// drafts are deterministic.
    pub probs: Vec<f32>,
}

/// What decoding has come to when drafts are asked for.
pub struct Progress<'p> {
    /// The last token of the prompt, then every generated one.
    pub generated: &'p [u32],
    /// The last two tokens of prompt and generated.
    pub context: [u32; 2],
    /// The most drafts there may be.
    pub limit: usize,
    /// The position in the text of the token that is decided next.
    pub position: i64,
}

/// Makes drafts.
pub enum Drafter {
    /// None: plain decoding.
    Plain,
    /// Copies what followed the last tokens before.
    Ngram(Box<Ngram>),
    /// Asks the draft model.
    Model,
    /// Asks the draft model for some and lets n-gram matching go on from there.
    Hybrid(Box<Hybrid>),
}

impl Drafter {
    /// Drafts for one step.
    pub fn draft(
        &mut self,
        model: &Model,
        settings: &Settings,
        progress: &Progress<'_>,
        watch: &mut Stopwatch,
    ) -> Result<Drafts> {
        match self {
            Drafter::Plain => Ok(Drafts::default()),
            Drafter::Ngram(ngram) => ngram.draft(progress, watch),
            Drafter::Model => Ok(from_model(model, settings, progress, progress.limit)),
            Drafter::Hybrid(hybrid) => hybrid.draft(model, settings, progress, watch),
        }
    }

    /// The flags that the operator raised.
    pub fn flags(&self) -> Result<u32> {
        Ok(match self {
            Drafter::Plain | Drafter::Model => 0,
            Drafter::Ngram(ngram) => ngram.flags.to_vec()?[0],
            Drafter::Hybrid(hybrid) => hybrid.flags.to_vec()?[0],
        })
    }
}

/// `count` tokens of the draft model, each drawn after the one before it.
fn from_model(model: &Model, settings: &Settings, at: &Progress<'_>, count: usize) -> Drafts {
    let vocab = model.vocab();
    let mut drafts = Drafts { tokens: Vec::new(), probs: vec![0.0; count * vocab] };
    let mut context = at.context;
    for (position, row) in (at.position..).zip(drafts.probs.chunks_exact_mut(vocab)) {
        model.draft(context, row);
        let token =
            if settings.greedy() { argmax(row) } else { sample(row, settings.seed, position) };
        drafts.tokens.push(token);
        context = [context[1], token];
    }
    drafts
}

fn as_i64(tokens: impl IntoIterator<Item = u32>) -> Vec<i64> {
    tokens.into_iter().map(i64::from).collect()
}

fn as_tokens(slots: &[i64]) -> Vec<u32> {
    // What was copied came from tokens.
    slots.iter().map(|slot| *slot as u32).collect()
}

/// `ngram_match` for one request.
pub struct Ngram {
    operator: Descriptor<NgramMatch>,
    workspace: Buffer<u8>,
    input_ids: Buffer<i64>,
    input_ids_len: Buffer<i64>,
    generated: Buffer<i64>,
    prompt_lens: Buffer<i64>,
    step_idx: Buffer<i64>,
    draft_token_num: Buffer<i32>,
    draft_tokens: Buffer<i64>,
    seq_lens_this_time: Buffer<i32>,
    seq_lens_encoder: Buffer<i32>,
    seq_lens_decoder: Buffer<i32>,
    max_dec_len: Buffer<i64>,
    flags: Buffer<u32>,
}

impl Ngram {
    /// Room for a prompt and for what `settings` ask to generate.
    pub fn new(handle: &Handle, prompt: &[u32], settings: &Settings) -> Result<Self> {
        let params = NgramMatch { max_ngram_size: MAX_NGRAM, token_threshold: NO_THRESHOLD };
        let (generated, slots) = (settings.tokens + 1, settings.draft_tokens + 1);
        let tensors = params.tensors(1, prompt.len(), generated, slots);
        let tensors = ngram_match::Tensors { flags: Some(flags_desc()), ..tensors };
        let operator = handle.create(&params, &tensors)?;
        Ok(Ngram {
            workspace: handle.workspace(operator.workspace_size())?,
            operator,
            input_ids: handle.upload(&as_i64(prompt.iter().copied()))?,
            input_ids_len: handle.upload(&[prompt.len() as i64])?,
            generated: handle.allocate(generated)?,
            // The row of generated tokens holds no prompt: that lies in `input_ids`.
            prompt_lens: handle.upload(&[0])?,
            step_idx: handle.allocate(1)?,
            draft_token_num: handle.upload(&[settings.draft_tokens as i32])?,
            draft_tokens: handle.upload(&vec![0; slots])?,
            seq_lens_this_time: handle.upload(&[1])?,
            seq_lens_encoder: handle.upload(&[0])?,
            seq_lens_decoder: handle.upload(&[1])?,
            max_dec_len: handle.upload(&[settings.tokens as i64])?,
            flags: handle.upload(&[0])?,
        })
    }

    fn draft(&mut self, at: &Progress<'_>, watch: &mut Stopwatch) -> Result<Drafts> {
        self.generated.write(&as_i64(at.generated.iter().copied()))?;
        self.step_idx.write(&[at.generated.len() as i64 - 1])?;
        let buffers = ngram_match::Buffers {
            input_ids: (&self.input_ids).into(),
            input_ids_len: (&self.input_ids_len).into(),
            token_ids_all: (&self.generated).into(),
            prompt_lens: (&self.prompt_lens).into(),
            step_idx: (&self.step_idx).into(),
            draft_token_num: (&self.draft_token_num).into(),
            draft_tokens: (&mut self.draft_tokens).into(),
            seq_lens_this_time: (&mut self.seq_lens_this_time).into(),
            seq_lens_encoder: (&self.seq_lens_encoder).into(),
            seq_lens_decoder: (&self.seq_lens_decoder).into(),
            max_dec_len: (&self.max_dec_len).into(),
            flags: Some((&mut self.flags).into()),
        };
        watch.measure(NgramMatch::NAME, || {
            self.operator.calculate(&mut self.workspace, buffers, Stream::default())
        })?;
        let drafts = usize::try_from(self.seq_lens_this_time.to_vec()?[0] - 1).unwrap_or(0);
        let slots = self.draft_tokens.to_vec()?;
        let tokens = as_tokens(&slots[1..=drafts.min(at.limit)]);
        Ok(Drafts { tokens, probs: Vec::new() })
    }
}

/// The draft model, then `hybrid_mtp_ngram` for one request.
pub struct Hybrid {
    operator: Descriptor<HybridMtpNgram>,
    workspace: Buffer<u8>,
    input_ids: Buffer<i64>,
    input_ids_len: Buffer<i64>,
    pre_ids: Buffer<i64>,
    step_idx: Buffer<i64>,
    draft_tokens: Buffer<i64>,
    seq_lens_this_time: Buffer<i32>,
    seq_lens_decoder: Buffer<i32>,
    max_dec_len: Buffer<i64>,
    flags: Buffer<u32>,
}

impl Hybrid {
    /// Room for a prompt and for what `settings` ask to generate.
    pub fn new(handle: &Handle, prompt: &[u32], settings: &Settings) -> Result<Self> {
        let params = HybridMtpNgram {
            max_ngram_size: MAX_NGRAM,
            min_ngram_size: 1,
            max_draft_tokens: settings.draft_tokens,
            token_threshold: NO_THRESHOLD,
        };
        // The draft model's tokens lie behind the generated ones, as if they
        // were generated: matching goes on from the last of them.
        let generated = settings.tokens + 1 + settings.draft_tokens;
        let slots = settings.draft_tokens + 1;
        let tensors = params.tensors(1, prompt.len(), generated, slots);
        let tensors = hybrid_mtp_ngram::Tensors { flags: Some(flags_desc()), ..tensors };
        let operator = handle.create(&params, &tensors)?;
        Ok(Hybrid {
            workspace: handle.workspace(operator.workspace_size())?,
            operator,
            input_ids: handle.upload(&as_i64(prompt.iter().copied()))?,
            input_ids_len: handle.upload(&[prompt.len() as i64])?,
            pre_ids: handle.allocate(generated)?,
            step_idx: handle.allocate(1)?,
            draft_tokens: handle.upload(&vec![0; slots])?,
            seq_lens_this_time: handle.allocate(1)?,
            seq_lens_decoder: handle.upload(&[1])?,
            max_dec_len: handle.upload(&[settings.tokens as i64])?,
            flags: handle.upload(&[0])?,
        })
    }

    fn draft(
        &mut self,
        model: &Model,
        settings: &Settings,
        at: &Progress<'_>,
        watch: &mut Stopwatch,
    ) -> Result<Drafts> {
        let first = at.limit.min(settings.draft_tokens.div_ceil(2));
        let mut drafts = from_model(model, settings, at, first);
        let known = at.generated.iter().chain(&drafts.tokens);
        self.pre_ids.write(&as_i64(known.copied()))?;
        self.step_idx.write(&[(at.generated.len() + first) as i64 - 1])?;
        // Slot 0 is the token before the drafts, as engines have it.
        let slots = at.context[1..].iter().chain(&drafts.tokens);
        self.draft_tokens.write(&as_i64(slots.copied()))?;
        self.seq_lens_this_time.write(&[first as i32 + 1])?;
        let buffers = hybrid_mtp_ngram::Buffers {
            input_ids: (&self.input_ids).into(),
            input_ids_len: (&self.input_ids_len).into(),
            pre_ids: (&self.pre_ids).into(),
            step_idx: (&self.step_idx).into(),
            draft_tokens: (&mut self.draft_tokens).into(),
            seq_lens_this_time: (&mut self.seq_lens_this_time).into(),
            seq_lens_decoder: (&self.seq_lens_decoder).into(),
            max_dec_len: (&self.max_dec_len).into(),
            flags: Some((&mut self.flags).into()),
        };
        watch.measure(HybridMtpNgram::NAME, || {
            self.operator.calculate(&mut self.workspace, buffers, Stream::default())
        })?;
        let all = usize::try_from(self.seq_lens_this_time.to_vec()?[0] - 1).unwrap_or(0);
        let all = all.clamp(first, at.limit.max(first));
        let copied = as_tokens(&self.draft_tokens.to_vec()?[first + 1..=all]);
        for token in &copied {
            // A copied draft is certain of itself.
            let row = drafts.probs.len();
            drafts.probs.resize(row + model.vocab(), 0.0);
            drafts.probs[row + *token as usize] = 1.0;
        }
        drafts.tokens.extend(copied);
        Ok(drafts)
    }
}

fn flags_desc() -> spec::TensorDesc {
    spec::TensorDesc::new(spec::DType::U32, [1])
}
