//! Where drafts come from: the text so far, the draft model, or both.

use std::time::Duration;

use spec::ops::hybrid_mtp_ngram::{self, HybridMtpNgram};
use spec::ops::ngram_match::{self, NgramMatch};
use spec::ops::prompt_lookup::{self, PromptLookup};
use spec::ops::suffix_lookup::{self, SuffixLookup};
use spec::{Buffer, DType, Descriptor, Handle, Signature, TensorDesc};

use super::model::Model;
use super::sampling::Sampler;
use super::settings::{DraftKind, Settings};
use super::stopwatch::Stopwatch;
use crate::Result;

/// The longest pattern that n-gram matching looks for.
const MAX_NGRAM: usize = 3;
/// Drafts at each place of a tree.
const SIBLINGS: usize = 2;
/// More tokens than one request can ask for: the budget never binds.
const NO_THRESHOLD: i32 = i32::MAX;

/// Drafts of one step: a tree whose root is the last token of the text.
#[derive(Default)]
pub struct Drafts {
    /// The tokens of nodes 1, 2 and so on.
    pub tokens: Vec<u32>,
    /// The node before each; 0 is the root.
    pub parents: Vec<i32>,
}

impl Drafts {
    /// Each draft follows the one before it.
    fn chain(tokens: Vec<u32>) -> Drafts {
        let parents = (0..tokens.len() as i32).collect();
        Drafts { tokens, parents }
    }

    /// Adds a draft behind a node: its own node.
    fn push(&mut self, parent: i32, token: u32) -> i32 {
        self.tokens.push(token);
        self.parents.push(parent);
        self.tokens.len() as i32
    }
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
    /// Copies what followed the last tokens before, by FastDeploy's rule.
    Ngram(Box<Ngram>),
    /// The same by the rule of vLLM and transformers.
    Lookup(Box<Lookup>),
    /// Copies what most often followed the longest suffix that occurred before.
    Suffix(Box<Suffix>),
    /// Asks the draft model.
    Model(Box<Small>),
    /// Draws two tokens from the draft model at each place.
    Tree(Box<Small>),
    /// Asks the draft model for some and lets n-gram matching go on from there.
    Hybrid(Box<Hybrid>),
}

impl Drafter {
    /// Room for a prompt and for what `settings` ask to generate.
    pub fn new(
        handle: &Handle,
        model: &Model,
        prompt: &[u32],
        settings: &Settings,
    ) -> Result<Self> {
        let small = |draws| Small::new(handle, model, settings, draws);
        let suffix = |width| Suffix::new(handle, prompt, settings, width);
        Ok(match settings.draft {
            DraftKind::None => Drafter::Plain,
            DraftKind::Ngram => Drafter::Ngram(Box::new(Ngram::new(handle, prompt, settings)?)),
            DraftKind::Lookup => Drafter::Lookup(Box::new(Lookup::new(handle, prompt, settings)?)),
            DraftKind::Suffix => Drafter::Suffix(Box::new(suffix(1)?)),
            DraftKind::SuffixTree => Drafter::Suffix(Box::new(suffix(SIBLINGS)?)),
            DraftKind::Model => Drafter::Model(Box::new(small(1)?)),
            DraftKind::Tree => Drafter::Tree(Box::new(small(SIBLINGS)?)),
            DraftKind::Hybrid => {
                Drafter::Hybrid(Box::new(Hybrid::new(handle, small(1)?, prompt, settings)?))
            }
        })
    }

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
            Drafter::Lookup(lookup) => lookup.draft(progress, watch),
            Drafter::Suffix(suffix) => suffix.draft(progress, watch),
            Drafter::Model(small) => {
                Ok(Drafts::chain(small.draw(model, progress, progress.limit, watch)?))
            }
            Drafter::Tree(small) => small.tree(model, progress, watch),
            Drafter::Hybrid(hybrid) => hybrid.draft(model, settings, progress, watch),
        }
    }

    /// The flags that the operators raised.
    pub fn flags(&self) -> Result<u32> {
        Ok(match self {
            Drafter::Plain => 0,
            Drafter::Ngram(ngram) => ngram.flags.to_vec()?[0],
            Drafter::Lookup(lookup) => lookup.flags.to_vec()?[0],
            Drafter::Suffix(suffix) => suffix.flags.to_vec()?[0],
            Drafter::Model(small) | Drafter::Tree(small) => small.sampler.flags.to_vec()?[0],
            Drafter::Hybrid(hybrid) => {
                hybrid.flags.to_vec()?[0] | hybrid.small.sampler.flags.to_vec()?[0]
            }
        })
    }
}

/// The draft model, sampled as the target is. With the request's own seed both draw
/// the same random number for a place of the text, so that they agree more often.
pub struct Small {
    sampler: Sampler,
    row: Vec<f32>,
    /// The least time of a run.
    run_time: Duration,
}

impl Small {
    fn new(handle: &Handle, model: &Model, settings: &Settings, draws: usize) -> Result<Self> {
        let seed = settings.draft_seed;
        let sampler = Sampler::new(handle, (1, draws), model.vocab(), &settings.sampling, seed)?;
        let run_time = settings.model_time.draft;
        Ok(Small { sampler, row: vec![0.0; model.vocab()], run_time })
    }

    /// Its draws for one place, the first of which is its choice.
    fn draws(
        &mut self,
        model: &Model,
        context: [u32; 2],
        position: i64,
        watch: &mut Stopwatch,
    ) -> Result<Vec<u32>> {
        watch.draft.run(self.run_time, || model.draft(context, &mut self.row));
        let drawn = self.sampler.draw(&self.row, &[position], watch)?;
        // A negative number is no draw: the filters kept fewer tokens.
        Ok(drawn.into_iter().filter_map(|token| u32::try_from(token).ok()).collect())
    }

    /// `count` tokens, each drawn after the one before it.
    fn draw(
        &mut self,
        model: &Model,
        at: &Progress<'_>,
        count: usize,
        watch: &mut Stopwatch,
    ) -> Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(count);
        let mut context = at.context;
        for position in (at.position..).take(count) {
            let Some(&token) = self.draws(model, context, position, watch)?.first() else { break };
            tokens.push(token);
            context = [context[1], token];
        }
        Ok(tokens)
    }

    /// A chain of its choices, beside each of them its other draws. A target that samples with the
    /// same seed races on the same noise, so that its token is most often the first to finish
    /// here, and next most often the second.
    fn tree(&mut self, model: &Model, at: &Progress<'_>, watch: &mut Stopwatch) -> Result<Drafts> {
        let mut drafts = Drafts::default();
        let (mut node, mut context) = (0, at.context);
        for position in at.position.. {
            let left = at.limit - drafts.tokens.len();
            let drawn =
                if left > 0 { self.draws(model, context, position, watch)? } else { vec![] };
            let Some(&choice) = drawn.first() else { break };
            let parent = node;
            node = drafts.push(parent, choice);
            for &token in drawn[1..].iter().take(left - 1) {
                drafts.push(parent, token);
            }
            context = [context[1], choice];
        }
        Ok(drafts)
    }
}

fn as_i64(tokens: impl IntoIterator<Item = u32>) -> Vec<i64> {
    tokens.into_iter().map(i64::from).collect()
}

/// Tokens as operators take them.
pub fn as_i32(tokens: &[u32]) -> Vec<i32> {
    tokens.iter().map(|token| *token as i32).collect()
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
    fn new(handle: &Handle, prompt: &[u32], settings: &Settings) -> Result<Self> {
        let params = NgramMatch::new().max_ngram_size(MAX_NGRAM).token_threshold(NO_THRESHOLD);
        let (generated, slots) = (settings.tokens + 1, settings.draft_tokens + 1);
        let tensors = params.tensors(1, prompt.len(), generated, slots);
        let tensors = tensors.flags(flags_desc());
        let operator = handle.create(&params, &tensors)?;
        Ok(Ngram {
            workspace: operator.workspace(handle)?,
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
        let buffers = ngram_match::Buffers::new(ngram_match::Required {
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
        })
        .flags(&mut self.flags);
        watch.measure(NgramMatch::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        let drafts = usize::try_from(self.seq_lens_this_time.to_vec()?[0] - 1).unwrap_or(0);
        let slots = self.draft_tokens.to_vec()?;
        Ok(Drafts::chain(as_tokens(&slots[1..=drafts.min(at.limit)])))
    }
}

/// The text of one request in device memory: the prompt, then what was generated.
struct TextSoFar {
    /// The prompt without its last token, with which the generated tokens begin, then those.
    text: Vec<i32>,
    prompt: usize,
    tokens: Buffer<i32>,
    lengths: Buffer<i32>,
}

impl TextSoFar {
    fn new(handle: &Handle, prompt: &[u32], capacity: usize) -> Result<Self> {
        let prompt = &prompt[..prompt.len() - 1];
        Ok(TextSoFar {
            text: as_i32(prompt),
            prompt: prompt.len(),
            tokens: handle.allocate(capacity)?,
            lengths: handle.allocate(1)?,
        })
    }

    /// Writes the text that ends with these generated tokens.
    fn write(&mut self, generated: &[u32]) -> Result<()> {
        self.text.truncate(self.prompt);
        self.text.extend(as_i32(generated));
        self.tokens.write(&self.text)?;
        Ok(self.lengths.write(&[self.text.len() as i32])?)
    }
}

/// `prompt_lookup` for one request.
pub struct Lookup {
    operator: Descriptor<PromptLookup>,
    workspace: Buffer<u8>,
    text: TextSoFar,
    drafts: Buffer<i32>,
    counts: Buffer<i32>,
    flags: Buffer<u32>,
}

impl Lookup {
    fn new(handle: &Handle, prompt: &[u32], settings: &Settings) -> Result<Self> {
        let params = PromptLookup::default().max_draft(settings.draft_tokens);
        let capacity = prompt.len() + settings.tokens;
        let tensors = params.tensors(DType::I32, 1, capacity);
        let tensors = tensors.flags(flags_desc());
        let operator = handle.create(&params, &tensors)?;
        Ok(Lookup {
            workspace: operator.workspace(handle)?,
            operator,
            text: TextSoFar::new(handle, prompt, capacity)?,
            drafts: handle.allocate(settings.draft_tokens)?,
            counts: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
        })
    }

    fn draft(&mut self, at: &Progress<'_>, watch: &mut Stopwatch) -> Result<Drafts> {
        self.text.write(at.generated)?;
        let buffers = prompt_lookup::Buffers::new(
            &self.text.tokens,
            &self.text.lengths,
            &mut self.drafts,
            &mut self.counts,
        )
        .flags(&mut self.flags);
        watch.measure(PromptLookup::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        let count = usize::try_from(self.counts.to_vec()?[0]).unwrap_or(0);
        let drafts = self.drafts.to_vec()?;
        let drafts = drafts.iter().take(count.min(at.limit));
        Ok(Drafts::chain(drafts.map(|draft| *draft as u32).collect()))
    }
}

/// `suffix_lookup` for one request, without a corpus.
pub struct Suffix {
    operator: Descriptor<SuffixLookup>,
    workspace: Buffer<u8>,
    text: TextSoFar,
    drafts: Buffer<i32>,
    parents: Buffer<i32>,
    counts: Buffer<i32>,
    flags: Buffer<u32>,
}

impl Suffix {
    /// Chains where `width` is 1, else trees with up to `width` drafts at each place.
    fn new(handle: &Handle, prompt: &[u32], settings: &Settings, width: usize) -> Result<Self> {
        let params = SuffixLookup::default().width(width);
        let capacity = prompt.len() + settings.tokens;
        let nodes = TensorDesc::new(DType::I32, [1, settings.draft_tokens]);
        let tensors = params.tensors(DType::I32, 1, capacity, settings.draft_tokens);
        let operator = handle.create(&params, &tensors.parents(nodes).flags(flags_desc()))?;
        Ok(Suffix {
            workspace: operator.workspace(handle)?,
            operator,
            text: TextSoFar::new(handle, prompt, capacity)?,
            drafts: handle.allocate(settings.draft_tokens)?,
            parents: handle.allocate(settings.draft_tokens)?,
            counts: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
        })
    }

    fn draft(&mut self, at: &Progress<'_>, watch: &mut Stopwatch) -> Result<Drafts> {
        self.text.write(at.generated)?;
        let buffers = suffix_lookup::Buffers::new(
            &self.text.tokens,
            &self.text.lengths,
            &mut self.drafts,
            &mut self.counts,
        )
        .parents(&mut self.parents)
        .flags(&mut self.flags);
        watch.measure(SuffixLookup::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        // A draft stands behind its parent: the first ones are a tree of their own.
        let count = usize::try_from(self.counts.to_vec()?[0]).unwrap_or(0).min(at.limit);
        let (tokens, parents) = (self.drafts.to_vec()?, self.parents.to_vec()?);
        Ok(Drafts {
            tokens: tokens[..count].iter().map(|draft| *draft as u32).collect(),
            parents: parents[..count].to_vec(),
        })
    }
}

/// The draft model, then `hybrid_mtp_ngram` for one request.
pub struct Hybrid {
    small: Small,
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
    fn new(handle: &Handle, small: Small, prompt: &[u32], settings: &Settings) -> Result<Self> {
        let params = HybridMtpNgram::new(settings.draft_tokens)
            .max_ngram_size(MAX_NGRAM)
            .min_ngram_size(1)
            .token_threshold(NO_THRESHOLD);
        // The draft model's tokens lie behind the generated ones, as if they
        // were generated: matching goes on from the last of them.
        let generated = settings.tokens + 1 + settings.draft_tokens;
        let slots = settings.draft_tokens + 1;
        let tensors = params.tensors(1, prompt.len(), generated, slots);
        let tensors = tensors.flags(flags_desc());
        let operator = handle.create(&params, &tensors)?;
        Ok(Hybrid {
            small,
            workspace: operator.workspace(handle)?,
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
        let mut drafts = self.small.draw(model, at, first, watch)?;
        let known = at.generated.iter().chain(&drafts);
        self.pre_ids.write(&as_i64(known.copied()))?;
        self.step_idx.write(&[(at.generated.len() + first) as i64 - 1])?;
        // Slot 0 is the token before the drafts, as engines have it.
        let slots = at.context[1..].iter().chain(&drafts);
        self.draft_tokens.write(&as_i64(slots.copied()))?;
        self.seq_lens_this_time.write(&[first as i32 + 1])?;
        let buffers = hybrid_mtp_ngram::Buffers::new(hybrid_mtp_ngram::Required {
            input_ids: (&self.input_ids).into(),
            input_ids_len: (&self.input_ids_len).into(),
            pre_ids: (&self.pre_ids).into(),
            step_idx: (&self.step_idx).into(),
            draft_tokens: (&mut self.draft_tokens).into(),
            seq_lens_this_time: (&mut self.seq_lens_this_time).into(),
            seq_lens_decoder: (&self.seq_lens_decoder).into(),
            max_dec_len: (&self.max_dec_len).into(),
        })
        .flags(&mut self.flags);
        watch.measure(HybridMtpNgram::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        let all = usize::try_from(self.seq_lens_this_time.to_vec()?[0] - 1).unwrap_or(0);
        let all = all.clamp(first, at.limit.max(first));
        drafts.extend(as_tokens(&self.draft_tokens.to_vec()?[first + 1..=all]));
        Ok(Drafts::chain(drafts))
    }
}

fn flags_desc() -> TensorDesc {
    TensorDesc::new(DType::U32, [1])
}
