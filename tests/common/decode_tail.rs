//! The tail of a decode step as a chain of operators, each of which reads what the operator before
//! it wrote on the device.
//!
//! ```text
//! logits ─> adjust_logits ─> sample_logits ─> tree_verify ─> append_tokens ─> prompt_lookup
//!                 ^                               ^                                │
//!                 └───────────────────────────────┴───── drafts of the next step ──┘
//! ```
//!
//! Lengths, counts and the state of each request are read on the device, so one captured graph of
//! the chain serves all steps. `prompt_lookup` writes its drafts where `tree_verify` reads them:
//! into the rows of `draft_tokens`, behind the root. The -1 behind the last draft equals no token
//! of the target, so `tree_verify` needs no number of drafts, and the links of a chain never
//! change. `adjust_logits` reads the same rows: a penalty counts the drafts above each row.
//!
//! Drafts must not change a text: [`Request::alone`] decodes without them, a token at a time, on
//! the plain loops.

use spec_conformance::plain::Plain;
use spec_conformance::{Complete, Rng};
use spec_core::ops::append_tokens::{AT_LENGTH, RUNNING, STOPPED};
use spec_core::ops::{AdjustLogits, AppendTokens, PromptLookup, SampleLogits, TreeVerify};
use spec_core::ops::{adjust_logits, append_tokens, prompt_lookup, sample_logits, tree_verify};
use spec_core::{
    Backend, Buffer, DType, Descriptor, Element, Ready, Result, Stream, TensorDesc, ViewMut,
};

#[path = "chains.rs"]
mod chains;

#[path = "tree_tail.rs"]
pub mod trees;

use self::chains::Chains;

const VOCAB: usize = 24;
/// The number of tokens that may end the text of a request.
const STOPS: usize = 2;
/// The value for no token.
const NONE: i32 = -1;

/// Replaces a language model: the logits of the token that follows `last`. They depend on `last`
/// alone, so the same token often follows the same token, and `prompt_lookup` finds good drafts.
fn logits(last: i32) -> Vec<f32> {
    let mut rng = Rng::new(last as u64, "decode_tail");
    (0..VOCAB).map(|_| 3.0 * rng.normal()).collect()
}

/// The prompt, the sampling parameters and the limits of a request.
#[derive(Clone, Debug)]
pub struct Request {
    seed: u64,
    temperature: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    min_tokens: i32,
    no_repeat_ngram: i32,
    stop_tokens: [i32; STOPS],
    max_length: i32,
    prompt: Vec<i32>,
}

/// A finished text, and why it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The prompt and every token that follows it.
    pub text: Vec<i32>,
    /// `finished` of `append_tokens`: 1 for a stop token, 2 for the length.
    pub finished: i32,
}

impl Request {
    /// A request whose text fits a row of `max_len` tokens. It may have no room for a token, and
    /// it may ask for more tokens than the row holds.
    pub fn random(rng: &mut Rng, max_len: usize) -> Self {
        let length = rng.between(1, max_len.min(6));
        let token = |rng: &mut Rng| rng.below(VOCAB) as i32;
        Request {
            seed: rng.next(),
            temperature: rng.pick(&[0.0, 0.5, 1.0]),
            repetition: rng.pick(&[1.0, 1.0, 1.2]),
            frequency: rng.pick(&[0.0, 0.0, 0.3]),
            presence: rng.pick(&[0.0, 0.0, -0.5]),
            min_tokens: rng.pick(&[0, 0, 9]),
            no_repeat_ngram: rng.pick(&[0, 0, 0, 4]),
            stop_tokens: std::array::from_fn(|_| if rng.chance(3) { token(rng) } else { NONE }),
            max_length: match rng.below(3) {
                0 => rng.below(max_len + 1) as i32,
                1 => max_len as i32,
                _ => i32::MAX,
            },
            prompt: (0..length).map(|_| token(rng)).collect(),
        }
    }

    /// The text that decoding without drafts gives, a token at a time, in a row of `max_len`
    /// tokens.
    ///
    /// # Errors
    /// The errors of `adjust_logits` and `sample_logits`; none is expected.
    pub fn alone(&self, max_len: usize) -> Result<Ended> {
        let plain = Plain::default();
        let sample = SampleLogits::default();
        let sample = Descriptor::create(&plain, &sample, &sample.tensors(1, VOCAB))?;
        let adjust = AdjustLogits::default();
        let tensors = adjusted(adjust.tensors(DType::F32, 1, VOCAB, 1, max_len), 1);
        let adjust = Descriptor::create(&plain, &adjust, &tensors)?;
        let prompt = [self.prompt.len() as i32];
        let (repetition, frequency) = ([self.repetition], [self.frequency]);
        let (presence, min_tokens) = ([self.presence], [self.min_tokens]);
        let (no_repeat_ngram, temperature) = ([self.no_repeat_ngram], [self.temperature]);
        let max_length = usize::try_from(self.max_length).unwrap_or(0).min(max_len);
        let mut text = self.prompt.clone();
        while text.len() < max_length {
            let mut logits = logits(text.last().copied().unwrap_or(NONE));
            let mut tokens = text.clone();
            tokens.resize(max_len, NONE);
            let length = [text.len() as i32];
            let buffers = adjust_logits::Buffers::new(adjust_logits::Required {
                logits: (&mut logits).into(),
                tokens: (&tokens).into(),
                prompt_lengths: (&prompt).into(),
                lengths: (&length).into(),
            });
            let buffers = buffers
                .repetition(&repetition)
                .frequency(&frequency)
                .presence(&presence)
                .min_tokens(&min_tokens)
                .stop_tokens(&self.stop_tokens)
                .no_repeat_ngram(&no_repeat_ngram);
            adjust.call(ViewMut::empty(), buffers)?;

            let (position, seed, mut token) = ([text.len() as i64], [self.seed], [0i32]);
            let buffers =
                sample_logits::Buffers::new(&logits, &position, &temperature, &seed, &mut token);
            sample.call(ViewMut::empty(), buffers)?;
            text.extend(token);
            if self.stop_tokens.contains(&token[0]) {
                return Ok(Ended { text, finished: STOPPED });
            }
        }
        Ok(Ended { text, finished: AT_LENGTH })
    }
}

/// The tensors of `adjust_logits` with the optional arguments that these requests use.
fn adjusted(tensors: adjust_logits::Tensors, requests: usize) -> adjust_logits::Tensors {
    let penalty = TensorDesc::new(DType::F32, [requests]);
    let number = TensorDesc::new(DType::I32, [requests]);
    tensors
        .repetition(penalty)
        .frequency(penalty)
        .presence(penalty)
        .min_tokens(number)
        .stop_tokens(TensorDesc::new(DType::I32, [requests, STOPS]))
        .no_repeat_ngram(number)
}

/// The result of decoding a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The text of each request.
    pub ended: Vec<Ended>,
    /// The number of runs of the model, summed over the requests.
    pub runs: usize,
    /// The number of tokens that all requests took together. Without drafts, it is at most the
    /// number of runs.
    pub tokens: usize,
    /// The flags that all calls raised.
    pub flags: u32,
}

/// The parameters of a batch's requests, in a device's memory.
struct Sampling {
    temperature: Buffer<f32>,
    seeds: Buffer<u64>,
    repetition: Buffer<f32>,
    frequency: Buffer<f32>,
    presence: Buffer<f32>,
    min_tokens: Buffer<i32>,
    no_repeat_ngram: Buffer<i32>,
    stop_tokens: Buffer<i32>,
    max_lengths: Buffer<i32>,
    prompt_lengths: Buffer<i32>,
}

impl Sampling {
    fn new<B: Backend + ?Sized>(backend: &B, batch: usize) -> Result<Self> {
        let ints = |len: usize| Buffer::allocate(backend, len);
        let floats = || Buffer::allocate(backend, batch);
        Ok(Sampling {
            temperature: floats()?,
            seeds: Buffer::allocate(backend, batch)?,
            repetition: floats()?,
            frequency: floats()?,
            presence: floats()?,
            min_tokens: ints(batch)?,
            no_repeat_ngram: ints(batch)?,
            stop_tokens: ints(batch * STOPS)?,
            max_lengths: ints(batch)?,
            prompt_lengths: ints(batch)?,
        })
    }

    /// These parameters as those of `adjust_logits`.
    fn adjusting<'b>(&'b self, buffers: adjust_logits::Buffers<'b>) -> adjust_logits::Buffers<'b> {
        buffers
            .repetition(&self.repetition)
            .frequency(&self.frequency)
            .presence(&self.presence)
            .min_tokens(&self.min_tokens)
            .stop_tokens(&self.stop_tokens)
            .no_repeat_ngram(&self.no_repeat_ngram)
    }

    fn write(&mut self, requests: &[Request]) -> Result<()> {
        let of = |value: fn(&Request) -> i32| requests.iter().map(value).collect::<Vec<i32>>();
        self.prompt_lengths.write(&of(|request| request.prompt.len() as i32))?;
        self.min_tokens.write(&of(|request| request.min_tokens))?;
        self.no_repeat_ngram.write(&of(|request| request.no_repeat_ngram))?;
        self.max_lengths.write(&of(|request| request.max_length))?;
        let stops: Vec<i32> = requests.iter().flat_map(|request| request.stop_tokens).collect();
        self.stop_tokens.write(&stops)?;
        let of = |value: fn(&Request) -> f32| requests.iter().map(value).collect::<Vec<f32>>();
        self.temperature.write(&of(|request| request.temperature))?;
        self.repetition.write(&of(|request| request.repetition))?;
        self.frequency.write(&of(|request| request.frequency))?;
        self.presence.write(&of(|request| request.presence))?;
        let seeds: Vec<u64> = requests.iter().map(|request| request.seed).collect();
        self.seeds.write(&seeds)
    }
}

/// The texts of a batch, as `append_tokens` keeps them, and the flags of all calls.
pub struct Texts {
    batch: usize,
    max_len: usize,
    tokens: Buffer<i32>,
    lengths: Buffer<i32>,
    finished: Buffer<i32>,
    appended: Buffer<i32>,
    flags: Buffer<u32>,
}

impl Texts {
    fn new<B: Backend + ?Sized>(backend: &B, batch: usize, max_len: usize) -> Result<Self> {
        Ok(Texts {
            batch,
            max_len,
            tokens: Buffer::allocate(backend, batch * max_len)?,
            lengths: Buffer::allocate(backend, batch)?,
            finished: Buffer::allocate(backend, batch)?,
            appended: Buffer::allocate(backend, batch)?,
            flags: upload(backend, &[0])?,
        })
    }

    /// Writes the prompts.
    fn write(&mut self, requests: &[Request]) -> Result<()> {
        let mut tokens = vec![NONE; self.batch * self.max_len];
        for (row, request) in tokens.chunks_mut(self.max_len).zip(requests) {
            row[..request.prompt.len()].copy_from_slice(&request.prompt);
        }
        let lengths: Vec<i32> =
            requests.iter().map(|request| request.prompt.len() as i32).collect();
        self.tokens.write(&tokens)?;
        self.lengths.write(&lengths)?;
        self.finished.write(&vec![RUNNING; self.batch])?;
        self.flags.write(&[0])
    }

    /// How many requests have not ended.
    fn running(&self) -> Result<usize> {
        Ok(self.finished.to_vec()?.iter().filter(|&&state| state == RUNNING).count())
    }

    fn ended(&self) -> Result<Vec<Ended>> {
        let (texts, lengths) = (self.tokens.to_vec()?, self.lengths.to_vec()?);
        let texts = texts.chunks(self.max_len).zip(lengths).zip(self.finished.to_vec()?);
        let ended = texts.map(|((row, length), finished)| {
            let length = usize::try_from(length).unwrap_or(0).min(row.len());
            Ended { text: row[..length].to_vec(), finished }
        });
        Ok(ended.collect())
    }
}

/// The tail of a decode step: the operators from the model's logits to the drafts of the next step,
/// and all memory that they share.
pub trait DecodeTail {
    /// Enqueues the tail: calls with nothing between them. `stream` gives the stream of each call.
    ///
    /// # Errors
    /// The errors of the calls.
    fn enqueue<'a>(&mut self, stream: impl Fn() -> Stream<'a>) -> Result<()>;

    /// Writes the prompts, and what the first step needs besides.
    ///
    /// # Errors
    /// The errors of writing memory and of calls.
    fn start(&mut self, requests: &[Request]) -> Result<()>;

    /// Replaces the model's forward pass. This is the only part of a step that the host computes.
    ///
    /// # Errors
    /// The errors of reading and writing memory.
    fn forward(&mut self) -> Result<()>;

    /// The texts of the batch.
    fn texts(&self) -> &Texts;

    /// Decodes a batch until each of its requests has ended, and runs one more step, which must
    /// change nothing. `step` runs the work that [`enqueue`](Self::enqueue) enqueues: either on the
    /// backend's own queue, or on another stream; then `step` must wait for the backend's queue
    /// before, and for its own work after.
    ///
    /// # Errors
    /// The errors of `step` and of reading and writing memory.
    ///
    /// # Panics
    /// If the number of requests is not the size of the batch.
    fn decode(
        &mut self,
        requests: &[Request],
        mut step: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Outcome> {
        assert_eq!(requests.len(), self.texts().batch, "one request for each row of the batch");
        self.start(requests)?;
        let (mut runs, mut tokens) = (0, 0);
        // In each step, a request that has not ended takes at least one token, or ends.
        for _ in 0..=self.texts().max_len + 1 {
            let running = self.texts().running()?;
            self.forward()?;
            step(self)?;
            runs += running;
            tokens += self.texts().appended.to_vec()?.iter().sum::<i32>() as usize;
            if running == 0 {
                break;
            }
        }
        let ended = self.texts().ended()?;
        Ok(Outcome { ended, runs, tokens, flags: self.texts().flags.to_vec()?[0] })
    }

    /// Decodes a batch of random requests. Their texts must be those of decoding without drafts, and
    /// no call may raise a flag. `place` says in a failure where it happened.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    ///
    /// # Panics
    /// If a text differs, or a flag is raised.
    fn decode_random(
        &mut self,
        rng: &mut Rng,
        place: &str,
        step: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Outcome> {
        let (batch, max_len) = (self.texts().batch, self.texts().max_len);
        let requests: Vec<Request> = (0..batch).map(|_| Request::random(rng, max_len)).collect();
        let outcome = self.decode(&requests, step)?;
        for (request, ended) in requests.iter().zip(&outcome.ended) {
            assert_eq!(*ended, request.alone(max_len)?, "{place}, {batch} requests: {request:?}");
        }
        assert_eq!(outcome.flags, 0, "{place}");
        Ok(outcome)
    }
}

/// The five operators and all memory that they share.
pub struct Tail {
    /// The number of nodes of a chain: the root and the drafts.
    nodes: usize,
    adjust: Ready<AdjustLogits>,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    append: Ready<AppendTokens>,
    lookup: Ready<PromptLookup>,
    // The host writes these for each run of the model: [batch, nodes, VOCAB] and [batch, nodes].
    logits: Buffer<f32>,
    positions: Buffer<i64>,
    sampling: Sampling,
    texts: Texts,
    // Constants: the request of each row of logits, the row before it, and the links of the
    // chains.
    requests: Buffer<i32>,
    parents: Buffer<i32>,
    // The results that operators read from each other.
    target_tokens: Buffer<i32>,
    emitted: Buffer<i32>,
    path: Buffer<i32>,
    num_tokens: Buffer<i32>,
    draft_tokens: Buffer<i32>,
    draft_counts: Buffer<i32>,
}

impl Tail {
    /// Operators and memory for `batch` requests with up to `max_draft` drafts each, at least 1,
    /// and texts of up to `max_len` tokens.
    ///
    /// # Errors
    /// The errors of creating operators and of allocating memory.
    pub fn new<B: Complete + ?Sized>(
        backend: &B,
        batch: usize,
        max_draft: usize,
        max_len: usize,
    ) -> Result<Self> {
        let nodes = max_draft + 1;
        let rows = batch * nodes;
        let flags = TensorDesc::new(DType::U32, [1]);
        let per_request = TensorDesc::new(DType::I32, [batch]);

        let of_each_row = TensorDesc::new(DType::I32, [rows]);
        let adjust = AdjustLogits::default();
        let adjust_tensors =
            adjusted(adjust.tensors(DType::F32, rows, VOCAB, batch, max_len), batch)
                .requests(of_each_row)
                .draft_tokens(of_each_row)
                .parents(of_each_row);
        let sample = SampleLogits::default();
        let sample_tensors = sample.tensors_of(rows, batch, VOCAB).flags(flags);
        let verify = TreeVerify::new(max_draft);
        let verify_tensors = verify.chain_tensors(batch, nodes).flags(flags);
        let append = AppendTokens::new();
        let append_tensors = append
            .tensors(DType::I32, batch, max_len, nodes)
            .stop_tokens(TensorDesc::new(DType::I32, [batch, STOPS]))
            .max_lengths(per_request)
            .finished(per_request)
            .flags(flags);
        let lookup = PromptLookup::new().min_ngram(1).max_ngram(3).max_draft(max_draft);
        let mut lookup_tensors = lookup.tensors(DType::I32, batch, max_len).flags(flags);
        lookup_tensors.drafts = Chains::drafts(batch, nodes);

        let chains = Chains::new(batch, nodes);
        let ints = |len: usize| Buffer::allocate(backend, len);
        Ok(Tail {
            nodes,
            adjust: Ready::new(backend, &adjust, &adjust_tensors)?,
            sample: Ready::new(backend, &sample, &sample_tensors)?,
            verify: Ready::new(backend, &verify, &verify_tensors)?,
            append: Ready::new(backend, &append, &append_tensors)?,
            lookup: Ready::new(backend, &lookup, &lookup_tensors)?,
            logits: Buffer::allocate(backend, rows * VOCAB)?,
            positions: Buffer::allocate(backend, rows)?,
            sampling: Sampling::new(backend, batch)?,
            texts: Texts::new(backend, batch, max_len)?,
            parents: upload(backend, &chains.parents)?,
            requests: upload(backend, &chains.requests)?,
            target_tokens: ints(rows)?,
            emitted: ints(rows)?,
            path: ints(rows)?,
            num_tokens: ints(batch)?,
            draft_tokens: ints(rows)?,
            draft_counts: ints(batch)?,
        })
    }
}

impl DecodeTail for Tail {
    fn enqueue<'a>(&mut self, stream: impl Fn() -> Stream<'a>) -> Result<()> {
        let (sampling, texts) = (&self.sampling, &mut self.texts);
        // Called without `flags`: the -1 behind the last draft would raise the flag for a token
        // outside the vocabulary.
        let adjusted = adjust_logits::Buffers::new(adjust_logits::Required {
            logits: (&mut self.logits).into(),
            tokens: (&texts.tokens).into(),
            prompt_lengths: (&sampling.prompt_lengths).into(),
            lengths: (&texts.lengths).into(),
        });
        let adjusted = adjusted
            .requests(&self.requests)
            .draft_tokens(&self.draft_tokens)
            .parents(&self.parents);
        self.adjust.call_on(sampling.adjusting(adjusted), stream())?;

        let chosen = sample_logits::Buffers::new(
            &self.logits,
            &self.positions,
            &sampling.temperature,
            &sampling.seeds,
            &mut self.target_tokens,
        );
        let chosen = chosen.requests(&self.requests).flags(&mut texts.flags);
        self.sample.call_on(chosen, stream())?;

        let followed = tree_verify::Buffers::new(tree_verify::Required {
            draft_tokens: (&self.draft_tokens).into(),
            target_tokens: (&self.target_tokens).into(),
            tokens: (&mut self.emitted).into(),
            nodes: (&mut self.path).into(),
            num_tokens: (&mut self.num_tokens).into(),
        });
        self.verify.call_on(followed.flags(&mut texts.flags), stream())?;

        let longer = append_tokens::Buffers::new(append_tokens::Required {
            tokens: (&mut texts.tokens).into(),
            lengths: (&mut texts.lengths).into(),
            new_tokens: (&self.emitted).into(),
            new_counts: (&self.num_tokens).into(),
            appended: (&mut texts.appended).into(),
        });
        let longer = longer
            .stop_tokens(&sampling.stop_tokens)
            .max_lengths(&sampling.max_lengths)
            .finished(&mut texts.finished)
            .flags(&mut texts.flags);
        self.append.call_on(longer, stream())?;

        let (_, behind_the_root) = self.draft_tokens.view_mut().split_at(1);
        let drafted = prompt_lookup::Buffers::new(
            &texts.tokens,
            &texts.lengths,
            behind_the_root,
            &mut self.draft_counts,
        );
        self.lookup.call_on(drafted.flags(&mut texts.flags), stream())
    }

    /// The first step has no drafts.
    fn start(&mut self, requests: &[Request]) -> Result<()> {
        self.texts.write(requests)?;
        self.sampling.write(requests)?;
        self.draft_tokens.write(&vec![NONE; self.texts.batch * self.nodes])
    }

    /// Over the last token of each text and its drafts.
    fn forward(&mut self) -> Result<()> {
        let (texts, lengths) = (self.texts.tokens.to_vec()?, self.texts.lengths.to_vec()?);
        let drafts = self.draft_tokens.to_vec()?;
        let (mut rows, mut positions) = (Vec::new(), Vec::new());
        for request in 0..self.texts.batch {
            let length = lengths[request] as usize;
            let last = texts[request * self.texts.max_len..][..length].last();
            let drafts = &drafts[request * self.nodes..][1..self.nodes];
            for (node, &token) in last.into_iter().chain(drafts).enumerate() {
                rows.extend(logits(token));
                positions.push((length + node) as i64);
            }
        }
        self.logits.write(&rows)?;
        self.positions.write(&positions)
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tail { nodes, texts: Texts { batch, max_len, .. }, .. } = self;
        write!(f, "Tail({batch} requests, {nodes} nodes, texts of {max_len})")
    }
}

/// A copy of `data` in a device's memory.
fn upload<B: Backend + ?Sized, T: Element>(backend: &B, data: &[T]) -> Result<Buffer<T>> {
    let mut buffer = Buffer::allocate(backend, data.len())?;
    buffer.write(data)?;
    Ok(buffer)
}
