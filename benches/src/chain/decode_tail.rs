//! What follows the forward pass of a decode step: the five operators from logits to the drafts of
//! the next step, each of which reads what the one before it wrote.

use half::bf16;
use spec::ops::{
    AdjustLogits, AppendTokens, PromptLookup, SampleLogits, TreeVerify, adjust_logits,
    append_tokens, prompt_lookup, sample_logits, tree_verify,
};
use spec::{Buffer, DType, Handle, Ready, Result, Stream, TensorDesc};

use spec_conformance::Tensor;

use super::Chain;
use super::chains::Chains;
use crate::Goal;
use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError};

/// Drafts of each request.
const DRAFTS: usize = 4;
/// Rows of logits of each request: after its last token, and after each draft.
const NODES: usize = DRAFTS + 1;
/// Tokens of each text before the first call, half of them the prompt.
pub(super) const TEXT: usize = 2048;
/// Room for the tokens of so many calls that no sample fills a text.
pub(super) const CAPACITY: usize = 16 * TEXT;
/// Rows of logits that differ by more than their first token.
pub(super) const DISTINCT: usize = 8;

/// The texts of a batch and what their requests ask for, with the operators that are the same whatever
/// form drafts have: adjust_logits with all penalties, and append_tokens.
pub(super) struct Texts {
    adjust: Ready<AdjustLogits>,
    append: Ready<AppendTokens>,
    pub(super) logits: Buffer<bf16>,
    prompt_lengths: Buffer<i32>,
    penalties: [Buffer<f32>; 3],
    pub(super) temperature: Buffer<f32>,
    pub(super) seeds: Buffer<u64>,
    pub(super) tokens: Buffer<i32>,
    pub(super) lengths: Buffer<i32>,
    pub(super) emitted: Buffer<i32>,
    pub(super) num_tokens: Buffer<i32>,
    pub(super) appended: Buffer<i32>,
    pub(super) last_tokens: Buffer<i32>,
}

impl Texts {
    /// For requests with `rows` rows of logits in all and up to `nodes` new tokens each. Tokens of
    /// texts are below `words`.
    pub(super) fn upload(
        handle: &Handle,
        [requests, rows, nodes]: [usize; 3],
        words: usize,
        logits: &[bf16],
    ) -> Result<Self> {
        let vocab = logits.len() / rows;
        let of_row = TensorDesc::new(DType::I32, [rows]);
        let of_request = TensorDesc::new(DType::F32, [requests]);
        let adjust = AdjustLogits::new();
        let adjusted = adjust
            .tensors(DType::BF16, rows, vocab, requests, CAPACITY)
            .requests(of_row)
            .draft_tokens(of_row)
            .parents(of_row)
            .repetition(of_request)
            .frequency(of_request)
            .presence(of_request);
        let append = AppendTokens::new();
        let appended = append
            .tensors(DType::I32, requests, CAPACITY, nodes)
            .last_tokens(TensorDesc::new(DType::I32, [requests]));
        let seed = seed(&[requests, vocab]);
        let mut tokens = vec![-1; requests * CAPACITY];
        for (request, text) in tokens.chunks_mut(CAPACITY).enumerate() {
            let seed = !seed.wrapping_add(request as u64);
            text[..TEXT].copy_from_slice(&random(seed, TEXT, |rng| rng.below(words) as i32));
        }
        let last: Vec<i32> = tokens.chunks(CAPACITY).map(|text| text[TEXT - 1]).collect();
        let penalty = |value: f32| handle.upload(&vec![value; requests]);
        let seeds: Vec<u64> = (0..requests as u64).collect();
        Ok(Texts {
            adjust: Ready::new(handle, &adjust, &adjusted)?,
            append: Ready::new(handle, &append, &appended)?,
            logits: handle.upload(logits)?,
            prompt_lengths: handle.upload(&vec![(TEXT / 2) as i32; requests])?,
            // Every call adjusts the same logits. Penalties are so small that thousands of calls leave
            // logits finite, and large bf16 logits as they are.
            penalties: [penalty(1.0001)?, penalty(1e-5)?, penalty(1e-5)?],
            temperature: penalty(0.8)?,
            seeds: handle.upload(&seeds)?,
            tokens: handle.upload(&tokens)?,
            lengths: handle.upload(&vec![TEXT as i32; requests])?,
            emitted: handle.allocate(requests * nodes)?,
            num_tokens: handle.allocate(requests)?,
            appended: handle.allocate(requests)?,
            last_tokens: handle.upload(&last)?,
        })
    }

    /// Enqueues adjust_logits. Each row has a request, the token before it and the row before it.
    pub(super) fn adjust(
        &mut self,
        [requests, draft_tokens, parents]: [&Buffer<i32>; 3],
        stream: Stream<'static>,
    ) -> Result<()> {
        let [repetition, frequency, presence] = &self.penalties;
        let buffers = adjust_logits::Buffers::new(adjust_logits::Required {
            logits: (&mut self.logits).into(),
            tokens: (&self.tokens).into(),
            prompt_lengths: (&self.prompt_lengths).into(),
            lengths: (&self.lengths).into(),
        })
        .requests(requests)
        .draft_tokens(draft_tokens)
        .parents(parents)
        .repetition(repetition)
        .frequency(frequency)
        .presence(presence);
        self.adjust.call_on(buffers, stream)
    }

    /// Enqueues append_tokens.
    pub(super) fn append(&mut self, stream: Stream<'static>) -> Result<()> {
        let buffers = append_tokens::Buffers::new(append_tokens::Required {
            tokens: (&mut self.tokens).into(),
            lengths: (&mut self.lengths).into(),
            new_tokens: (&self.emitted).into(),
            new_counts: (&self.num_tokens).into(),
            appended: (&mut self.appended).into(),
        })
        .last_tokens(&mut self.last_tokens);
        self.append.call_on(buffers, stream)
    }

    /// Gives the texts their first lengths.
    pub(super) fn reset(&mut self) -> Result<()> {
        self.lengths.write(&vec![TEXT as i32; self.lengths.len()])
    }
}

/// The requests of a step, and the tokens of the vocabulary.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(super) requests: usize,
    pub(super) vocab: usize,
}

impl Shape {
    pub(super) fn table() -> Vec<Shape> {
        [1, 32, 256].map(|requests| Shape { requests, vocab: 128_256 }).into()
    }

    /// `words` is the smallest vocabulary.
    pub(super) fn parse(fields: &mut Fields<'_>, words: usize) -> Result<Shape, ShapeError> {
        Ok(Shape {
            requests: fields.number("requests", 32, 1..=1 << 12)?,
            vocab: fields.number("vocab", 128_256, words..=1 << 20)?,
        })
    }
}

/// adjust_logits with all penalties, sample_logits with a temperature, tree_verify of chains,
/// append_tokens and prompt_lookup.
pub(crate) struct DecodeTail {
    requests: usize,
    texts: Texts,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    lookup: Ready<PromptLookup>,
    positions: Buffer<i64>,
    request_of: Buffer<i32>,
    parents: Buffer<i32>,
    draft_tokens: Buffer<i32>,
    draft_counts: Buffer<i32>,
    target_tokens: Buffer<i32>,
    path: Buffer<i32>,
}

impl Chain for DecodeTail {
    const NAME: &'static str = "decode_tail";
    const PARTS: &'static [&'static str] = &[
        "adjust_logits alone",
        "sample_logits alone",
        "tree_verify alone",
        "append_tokens alone",
        "prompt_lookup alone",
    ];
    type Shape = Shape;

    fn table() -> Vec<Shape> {
        Shape::table()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Shape::parse(fields, 2)
    }

    fn words(shape: &Shape) -> crate::Words {
        let Shape { requests, vocab } = *shape;
        let series = format!("{DRAFTS} drafts each, texts of {TEXT}, bf16 of {vocab}");
        let shape = format!("{requests} requests, {series}");
        crate::Words { shape, series, size: requests as f64, unit: "requests" }
    }

    fn goal(shape: &Shape) -> Goal {
        match (shape.requests, shape.vocab) {
            (1, 128_256) => Goal::Hopper(16.0),
            (32, 128_256) => Goal::Hopper(35.0),
            (256, 128_256) => Goal::Hopper(110.0),
            _ => Goal::Unknown,
        }
    }

    /// The logits once, and each text by the operators that read it.
    fn bytes(shape: &Shape) -> u64 {
        (shape.requests * (NODES * shape.vocab * 2 + 2 * TEXT * 4)) as u64
    }

    fn upload(shape: &Shape, handle: &Handle) -> Result<Self> {
        let Shape { requests, vocab } = *shape;
        let rows = requests * NODES;
        let sample = SampleLogits::new();
        let mut sampled = sample.tensors_of(rows, requests, vocab);
        sampled.logits = TensorDesc::new(DType::BF16, [rows, vocab]);
        let verify = TreeVerify::new(DRAFTS);
        let lookup = PromptLookup::new().min_ngram(1).max_ngram(4).max_draft(DRAFTS);
        let mut looked_up = lookup.tensors(DType::I32, requests, CAPACITY);
        looked_up.drafts = Chains::drafts(requests, NODES);

        let seed = seed(&[requests, vocab]);
        let distinct = rows.min(DISTINCT);
        let base = random(seed, (distinct + 1) * vocab, |rng| bf16::from_f32(3.0 * rng.normal()));
        let row = |row: usize| &base[row % distinct * vocab + row / distinct..][..vocab];
        let logits: Vec<bf16> = (0..rows).flat_map(row).copied().collect();
        let chains = Chains::new(requests, NODES);
        let positions: Vec<i64> = (0..rows).map(|row| (TEXT + row % NODES) as i64).collect();
        let ints = |len: usize| handle.allocate(len);
        Ok(DecodeTail {
            requests,
            texts: Texts::upload(handle, [requests, rows, NODES], vocab, &logits)?,
            sample: Ready::new(handle, &sample, &sampled)?,
            verify: Ready::new(handle, &verify, &verify.chain_tensors(requests, NODES))?,
            lookup: Ready::new(handle, &lookup, &looked_up)?,
            positions: handle.upload(&positions)?,
            request_of: handle.upload(&chains.requests)?,
            parents: handle.upload(&chains.parents)?,
            draft_tokens: handle.upload(&vec![0; rows])?,
            draft_counts: ints(requests)?,
            target_tokens: ints(rows)?,
            path: ints(rows)?,
        })
    }

    fn call(&mut self, part: usize, stream: Stream<'static>) -> Result<()> {
        match part {
            0 => self.texts.adjust([&self.request_of, &self.draft_tokens, &self.parents], stream),
            1 => {
                let buffers = sample_logits::Buffers::new(
                    &self.texts.logits,
                    &self.positions,
                    &self.texts.temperature,
                    &self.texts.seeds,
                    &mut self.target_tokens,
                )
                .requests(&self.request_of);
                self.sample.call_on(buffers, stream)
            }
            2 => {
                let buffers = tree_verify::Buffers::new(tree_verify::Required {
                    draft_tokens: (&self.draft_tokens).into(),
                    target_tokens: (&self.target_tokens).into(),
                    tokens: (&mut self.texts.emitted).into(),
                    nodes: (&mut self.path).into(),
                    num_tokens: (&mut self.texts.num_tokens).into(),
                });
                self.verify.call_on(buffers, stream)
            }
            3 => self.texts.append(stream),
            _ => {
                let (_, behind_the_root) = self.draft_tokens.view_mut().split_at(1);
                let buffers = prompt_lookup::Buffers::new(
                    &self.texts.tokens,
                    &self.texts.lengths,
                    behind_the_root,
                    &mut self.draft_counts,
                );
                self.lookup.call_on(buffers, stream)
            }
        }
    }

    fn inputs(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (requests, rows) = (self.requests, self.requests * NODES);
        let (logits, tokens) = (self.texts.logits.to_vec()?, self.texts.tokens.to_vec()?);
        let vocab = logits.len() / rows;
        Ok(vec![
            ("logits", Tensor::matrix(logits, rows, vocab)),
            ("tokens", Tensor::matrix(tokens, requests, CAPACITY)),
            ("draft_tokens", Tensor::matrix(self.draft_tokens.to_vec()?, requests, NODES)),
        ])
    }

    fn reset(&mut self) -> Result<()> {
        self.texts.reset()
    }

    fn results(&self) -> Result<Vec<Vec<i32>>> {
        let Texts { appended, lengths, last_tokens, .. } = &self.texts;
        [&self.target_tokens, appended, lengths, last_tokens, &self.draft_tokens]
            .into_iter()
            .map(Buffer::to_vec)
            .collect()
    }
}
