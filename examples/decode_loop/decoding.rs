//! Speculative decoding of one request, by operators of this library.
//!
//! Each step drafts tokens that followed an earlier occurrence of the last tokens, and runs the
//! model once on the last token and the drafts. `sample_logits` then chooses a token after each of
//! these rows, and `tree_verify` follows the chosen tokens from draft to draft. A draft is accepted
//! where it equals the token that was chosen in its place. So the text is the text without drafts,
//! with fewer runs of the model.
//!
//! All operators have fixed shapes: a step with fewer drafts leaves rows unused, which no link
//! leads to.

use std::time::{Duration, Instant};

use spec::ops::prompt_lookup::{self, PromptLookup};
use spec::ops::sample_logits::{self, SampleLogits};
use spec::ops::suffix_lookup::{self, SuffixLookup};
use spec::ops::tree_verify::{self, Links, TreeVerify};
use spec::{Buffer, Corpus, DType, Error, Handle, Ready, Result, Signature, Status, TensorDesc};

/// A language model.
pub trait Model {
    /// The number of tokens in the vocabulary.
    fn vocab(&self) -> usize;

    /// The logits of the token that follows `text`. A step calls it for each path from the root of
    /// the drafts to a draft: together these calls are one forward pass of a transformer.
    fn logits(&self, text: &[i32], row: &mut [f32]);
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// No drafts: plain decoding, one token per step.
    None,
    /// The tokens that followed the last occurrence of the text's last tokens: [`prompt_lookup`].
    Lookup,
    /// The tokens that followed most often, after the longest suffix of the text that occurred
    /// before: [`suffix_lookup`]. Finished texts in a corpus count too.
    Suffix,
    /// The same as a tree, with up to two drafts after each token.
    SuffixTree,
}

impl DraftKind {
    /// Every kind.
    pub const ALL: [DraftKind; 4] =
        [DraftKind::None, DraftKind::Lookup, DraftKind::Suffix, DraftKind::SuffixTree];

    /// The name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            DraftKind::None => "none",
            DraftKind::Lookup => "lookup",
            DraftKind::Suffix => "suffix",
            DraftKind::SuffixTree => "suffix-tree",
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The temperature; 0 takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all.
    pub top_k: i32,
    /// The share of the probability that is kept; 1 for all.
    pub top_p: f32,
    /// Tokens with a smaller share of the likeliest token's probability are dropped; 0 for none.
    pub min_p: f32,
    /// The seed of the random numbers. With one seed, a position of the text always gets the same
    /// random numbers, so that drafts do not change the text.
    pub seed: u64,
}

/// What to decode.
#[derive(Clone, Debug)]
pub struct Request {
    /// The largest number of tokens after the prompt.
    pub tokens: usize,
    /// The token that ends the text.
    pub end: Option<i32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The least time of a run of the model. A model that costs nothing would hide what drafts are
    /// for: they save runs.
    pub run_time: Duration,
}

/// The result of [`decode`].
pub struct Decoded {
    /// The tokens after the prompt.
    pub tokens: Vec<i32>,
    /// The number of runs of the model.
    pub runs: usize,
    /// The number of drafts.
    pub drafted: usize,
    /// The number of accepted drafts.
    pub accepted: usize,
    /// The time of all steps.
    pub total: Duration,
    /// The part of `total` in runs of the model.
    pub model: Duration,
    /// The parts of `total` in operators.
    pub watch: Stopwatch,
}

/// Adds up the time of each operator.
pub struct Stopwatch {
    handle: Handle,
    /// The name, the total time and the number of calls of each operator.
    pub laps: Vec<(&'static str, Duration, usize)>,
}

impl Stopwatch {
    /// Measures one call, and waits for the device to finish it.
    fn measure(&mut self, name: &'static str, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        call()?;
        self.handle.synchronize()?;
        let time = started.elapsed();
        match self.laps.iter_mut().find(|lap| lap.0 == name) {
            Some(lap) => (lap.1, lap.2) = (lap.1 + time, lap.2 + 1),
            None => self.laps.push((name, time, 1)),
        }
        Ok(())
    }
}

/// Decodes after a prompt until the text ends or is long enough. `drafter` has room for the whole
/// text. After each step, `emitted` gets the number of tokens so far.
pub fn decode(
    handle: &Handle,
    model: &impl Model,
    drafter: &mut Drafter<'_>,
    prompt: &[i32],
    request: &Request,
    mut emitted: impl FnMut(usize),
) -> Result<Decoded> {
    let mut verifier = Verifier::new(handle, model.vocab(), drafter.max_draft, &request.sampling)?;
    let mut watch = Stopwatch { handle: handle.clone(), laps: Vec::new() };
    let (mut runs, mut drafted, mut accepted, mut time) = (0, 0, 0, Duration::ZERO);
    // The text starts as the prompt, so the first step drafts from the prompt alone.
    let mut text = prompt.to_vec();
    let (max, mut ended) = (prompt.len() + request.tokens, false);
    let started = Instant::now();
    while text.len() < max && !ended {
        let drafts = drafter.draft(&text, max - text.len() - 1, &mut watch)?;

        // One run of the model, however many drafts there are.
        let run = Instant::now();
        let (logits, positions) = forward(model, &mut text, &drafts);
        // Sleeping leaves the cores to others, as a model on a GPU does.
        std::thread::sleep(request.run_time.saturating_sub(run.elapsed()));
        time += run.elapsed();
        runs += 1;

        let last = *text.last().expect("a prompt has a token");
        let mut tokens = verifier.verify(last, &drafts, &logits, &positions, &mut watch)?;
        drafted += drafts.len();
        // The last token is the model's own.
        accepted += tokens.len() - 1;
        if let Some(end) = tokens.iter().position(|token| Some(*token) == request.end) {
            tokens.truncate(end + 1);
            ended = true;
        }
        text.extend(tokens);
        emitted(text.len() - prompt.len());
    }
    let total = started.elapsed();
    let flags = drafter.flags.to_vec()?[0] | verifier.flags.to_vec()?[0];
    if flags != 0 {
        return Err(broken(handle, format!("flags {flags} where no data are bad")));
    }
    let tokens = text.split_off(prompt.len());
    Ok(Decoded { tokens, runs, drafted, accepted, total, model: time, watch })
}

fn broken(handle: &Handle, what: String) -> Error {
    Error::device(handle.device(), Status::InternalError, what)
}

/// A draft, and what it follows: 0 for the text's last token, i for draft i - 1.
#[derive(Clone, Copy)]
struct Draft {
    token: i32,
    parent: usize,
}

/// The logits after the text and after each draft, one row after the other, and the positions of
/// the tokens that they are for.
fn forward(model: &impl Model, text: &mut Vec<i32>, drafts: &[Draft]) -> (Vec<f32>, Vec<i64>) {
    let (vocab, length) = (model.vocab(), text.len());
    let mut logits = vec![0.0; (drafts.len() + 1) * vocab];
    let mut positions = Vec::new();
    for (mut node, row) in logits.chunks_exact_mut(vocab).enumerate() {
        while node > 0 {
            text.push(drafts[node - 1].token);
            node = drafts[node - 1].parent;
        }
        text[length..].reverse();
        model.logits(text, row);
        positions.push(text.len() as i64);
        text.truncate(length);
    }
    (logits, positions)
}

/// An operator that drafts, and the memory of its arguments: one request here, a row for each
/// request in an engine.
pub struct Drafter<'c> {
    operator: Drafting,
    corpus: Option<&'c Corpus<i32>>,
    /// The largest number of drafts in a step.
    max_draft: usize,
    tokens: Buffer<i32>,
    lengths: Buffer<i32>,
    drafts: Buffer<i32>,
    parents: Buffer<i32>,
    counts: Buffer<i32>,
    flags: Buffer<u32>,
}

enum Drafting {
    None,
    Lookup(Box<Ready<PromptLookup>>),
    Suffix(Box<Ready<SuffixLookup>>),
}

impl<'c> Drafter<'c> {
    /// A drafter for a text of up to `capacity` tokens, with up to `max_draft` drafts in a step.
    /// Only suffixes are looked up in the corpus.
    pub fn new(
        handle: &Handle,
        kind: DraftKind,
        max_draft: usize,
        capacity: usize,
        corpus: Option<&'c Corpus<i32>>,
    ) -> Result<Self> {
        let flags = TensorDesc::new(DType::U32, [1]);
        let operator = match kind {
            DraftKind::None => Drafting::None,
            DraftKind::Lookup => {
                let params = PromptLookup::default().max_draft(max_draft);
                let tensors = params.tensors(DType::I32, 1, capacity).flags(flags);
                Drafting::Lookup(Box::new(Ready::new(handle, &params, &tensors)?))
            }
            DraftKind::Suffix | DraftKind::SuffixTree => {
                let width = if kind == DraftKind::SuffixTree { 2 } else { 1 };
                let params = SuffixLookup::default().width(width);
                let parents = TensorDesc::new(DType::I32, [1, max_draft]);
                let tensors = params.tensors(DType::I32, 1, capacity, max_draft);
                let mut tensors = tensors.parents(parents).flags(flags);
                tensors.corpus = corpus.map(Corpus::tokens_desc);
                tensors.corpus_length = corpus.map(Corpus::length_desc);
                Drafting::Suffix(Box::new(Ready::new(handle, &params, &tensors)?))
            }
        };
        let max_draft = if kind == DraftKind::None { 0 } else { max_draft };
        // The parents of a chain, which `prompt_lookup` does not write.
        let parents: Vec<i32> = (0..max_draft as i32).collect();
        Ok(Drafter {
            operator,
            corpus,
            max_draft,
            tokens: handle.allocate(capacity)?,
            lengths: handle.allocate(1)?,
            drafts: handle.allocate(max_draft)?,
            parents: handle.upload(&parents)?,
            counts: handle.upload(&[0])?,
            flags: handle.upload(&[0])?,
        })
    }

    /// Up to `limit` drafts of what follows the text.
    fn draft(&mut self, text: &[i32], limit: usize, watch: &mut Stopwatch) -> Result<Vec<Draft>> {
        if self.max_draft == 0 {
            return Ok(Vec::new());
        }
        // The pattern to look up is the end of the text, so the last token is included.
        self.tokens.write(text)?;
        self.lengths.write(&[text.len() as i32])?;
        let Drafter { tokens, lengths, drafts, parents, counts, flags, .. } = self;
        match &mut self.operator {
            Drafting::None => {}
            Drafting::Lookup(operator) => {
                let buffers = prompt_lookup::Buffers::new(&*tokens, &*lengths, drafts, counts);
                watch.measure(PromptLookup::NAME, || operator.call(buffers.flags(flags)))?;
            }
            Drafting::Suffix(operator) => {
                let reading = self.corpus.map(Corpus::read);
                let mut buffers = suffix_lookup::Buffers::new(&*tokens, &*lengths, drafts, counts)
                    .parents(parents)
                    .flags(flags);
                if let Some(reading) = &reading {
                    buffers = buffers.corpus(reading.tokens()).corpus_length(reading.length());
                }
                watch.measure(SuffixLookup::NAME, || operator.call(buffers))?;
            }
        }
        let count = usize::try_from(self.counts.to_vec()?[0]).unwrap_or(0);
        let (tokens, parents) = (self.drafts.to_vec()?, self.parents.to_vec()?);
        // A draft stands behind its parent, so the first drafts of a tree are a tree.
        let drafts = tokens.into_iter().zip(parents).take(count.min(limit));
        Ok(drafts.map(|(token, parent)| Draft { token, parent: parent as usize }).collect())
    }
}

/// `sample_logits` after each node of the drafts, then `tree_verify` on the chosen tokens, which
/// stay on the device. Node 0 is the last token of the text.
struct Verifier {
    handle: Handle,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    vocab: usize,
    nodes: usize,
    logits: Buffer<f32>,
    positions: Buffer<i64>,
    temperature: Buffer<f32>,
    seeds: Buffer<u64>,
    top_k: Buffer<i32>,
    top_p: Buffer<f32>,
    min_p: Buffer<f32>,
    /// The request of each row: always the only one.
    requests: Buffer<i32>,
    chosen: Buffer<i32>,
    draft_tokens: Buffer<i32>,
    first_child: Buffer<i32>,
    next_sibling: Buffer<i32>,
    tokens: Buffer<i32>,
    path: Buffer<i32>,
    num_tokens: Buffer<i32>,
    flags: Buffer<u32>,
}

impl Verifier {
    fn new(handle: &Handle, vocab: usize, max_draft: usize, sampling: &Sampling) -> Result<Self> {
        let nodes = max_draft + 1;
        let one = |dtype| TensorDesc::new(dtype, [1]);
        let params = SampleLogits::transformers();
        let tensors = params.tensors_of(nodes, 1, vocab).top_k(one(DType::I32));
        let tensors = tensors.top_p(one(DType::F32)).min_p(one(DType::F32)).flags(one(DType::U32));
        let sample = Ready::new(handle, &params, &tensors)?;
        let params = TreeVerify::new(max_draft);
        let verify = Ready::new(handle, &params, &params.tensors(1, nodes).flags(one(DType::U32)))?;
        Ok(Verifier {
            handle: handle.clone(),
            sample,
            verify,
            vocab,
            nodes,
            logits: handle.upload(&vec![0.0; nodes * vocab])?,
            positions: handle.upload(&vec![0; nodes])?,
            temperature: handle.upload(&[sampling.temperature])?,
            seeds: handle.upload(&[sampling.seed])?,
            top_k: handle.upload(&[sampling.top_k])?,
            top_p: handle.upload(&[sampling.top_p])?,
            min_p: handle.upload(&[sampling.min_p])?,
            requests: handle.upload(&vec![0; nodes])?,
            chosen: handle.allocate(nodes)?,
            draft_tokens: handle.upload(&vec![0; nodes])?,
            first_child: handle.allocate(nodes)?,
            next_sibling: handle.allocate(nodes)?,
            tokens: handle.allocate(nodes)?,
            path: handle.allocate(nodes)?,
            num_tokens: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
        })
    }

    /// The tokens that a step emits: the accepted drafts, and the model's token after them.
    fn verify(
        &mut self,
        last: i32,
        drafts: &[Draft],
        logits: &[f32],
        positions: &[i64],
        watch: &mut Stopwatch,
    ) -> Result<Vec<i32>> {
        self.logits.write(logits)?;
        self.positions.write(positions)?;
        let (logits, positions) = (&self.logits, &self.positions);
        let (temperature, seeds) = (&self.temperature, &self.seeds);
        let buffers =
            sample_logits::Buffers::new(logits, positions, temperature, seeds, &mut self.chosen)
                .top_k(&self.top_k)
                .top_p(&self.top_p)
                .min_p(&self.min_p)
                .requests(&self.requests)
                .flags(&mut self.flags);
        watch.measure(SampleLogits::NAME, || self.sample.call(buffers))?;

        let parents = drafts.iter().map(|draft| draft.parent as i32);
        let mut links = Links::from_parents(&[-1].into_iter().chain(parents).collect::<Vec<_>>())?;
        links.first_child.resize(self.nodes, -1);
        links.next_sibling.resize(self.nodes, -1);
        self.first_child.write(&links.first_child)?;
        self.next_sibling.write(&links.next_sibling)?;
        let tokens = drafts.iter().map(|draft| draft.token);
        self.draft_tokens.write(&[last].into_iter().chain(tokens).collect::<Vec<_>>())?;
        let buffers = tree_verify::Buffers::new(tree_verify::Required {
            draft_tokens: (&self.draft_tokens).into(),
            target_tokens: (&self.chosen).into(),
            tokens: (&mut self.tokens).into(),
            nodes: (&mut self.path).into(),
            num_tokens: (&mut self.num_tokens).into(),
        })
        .first_child(&self.first_child)
        .next_sibling(&self.next_sibling)
        .flags(&mut self.flags);
        watch.measure(TreeVerify::NAME, || self.verify.call(buffers))?;

        let (mut tokens, count) = (self.tokens.to_vec()?, self.num_tokens.to_vec()?[0]);
        let is_token = |token: &i32| usize::try_from(*token).is_ok_and(|t| t < self.vocab);
        let count = usize::try_from(count).ok().filter(|&count| (1..=self.nodes).contains(&count));
        let emitted = count.and_then(|count| tokens.get(..count));
        if !emitted.is_some_and(|emitted| emitted.iter().all(is_token)) {
            return Err(broken(
                &self.handle,
                format!("tree_verify emitted {count:?} of {tokens:?}"),
            ));
        }
        tokens.truncate(count.unwrap_or(0));
        Ok(tokens)
    }
}
