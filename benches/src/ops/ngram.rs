//! Shapes and inputs that the tables of `ngram_match`, `hybrid_mtp_ngram` and
//! `prompt_lookup` share: patterns of up to 3 tokens of 8 bytes that occur early, late or
//! nowhere, and a real text.

use rayon::prelude::*;

use crate::Words;
use crate::inputs::{random, seed, text, windows};
use crate::shape::{Fields, ShapeError};
use spec::ops::prompt_lookup::Occurrence;
use spec_conformance::Rng;
use spec_conformance::Tensor;

/// The longest pattern.
pub(super) const MAX_NGRAM: usize = 3;
/// The largest number of drafts of a request.
pub(super) const DRAFTS: usize = 5;
/// Generated tokens of a request, unless they are half of its tokens.
const STEPS: usize = 64;
/// Where the pattern occurs: tokens after the start, or tokens before the end.
const EARLY: usize = 10;
const LATE: usize = 30;
/// Tokens that an encoding request encodes in one step.
const ENCODED: i32 = 100;
/// Random tokens are below this number, the tokens of the pattern are above.
const VOCABULARY: usize = 100_000;
const PATTERN: [i64; MAX_NGRAM] = [200_001, 200_002, 200_003];

/// Where the last tokens of a text occurred before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found {
    /// At token 10 of the prompt.
    Low,
    /// 30 tokens before the prompt's end.
    HighPrompt,
    /// 30 tokens before the last generated token. The prompt is half of the length, the
    /// generated tokens are the other half.
    HighGenerated,
    Nowhere,
    /// Wherever the tokens of a real text occur, or nowhere.
    Text,
}

impl Found {
    fn words(self) -> &'static str {
        match self {
            Found::Low => "low",
            Found::HighPrompt => "high prompt",
            Found::HighGenerated => "high generated",
            Found::Nowhere => "none",
            Found::Text => "text",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(super) batch: usize,
    /// Tokens of the prompt; for [`Found::HighGenerated`], tokens of the prompt and
    /// generated tokens together.
    pub(super) length: usize,
    pub(super) found: Found,
    /// Whether each call must find its tokens in memory and not in a cache that the
    /// previous call filled, as in a step of an engine.
    pub(super) cold: bool,
    /// Whether the budget of all requests binds: it covers about half of their drafts.
    pub(super) binds: bool,
    /// Whether the first quarter of the requests encode a part of their prompts instead.
    pub(super) encodes: bool,
}

impl Shape {
    pub(super) const fn new(batch: usize, length: usize, found: Found) -> Self {
        Shape { batch, length, found, cold: false, binds: false, encodes: false }
    }

    /// The same shape with a budget that binds.
    pub(super) const fn bound(self) -> Self {
        Shape { binds: true, ..self }
    }

    /// The same shape with some requests that encode.
    pub(super) const fn mixed(self) -> Self {
        Shape { encodes: true, ..self }
    }

    pub(super) fn parse(fields: &mut Fields<'_>) -> Result<Self, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 16, 1..=1 << 16)?,
            length: fields.number("prompt", 32_768, 128..=1 << 24)?,
            found: fields.word(
                "found",
                &[
                    ("low", Found::Low),
                    ("high-prompt", Found::HighPrompt),
                    ("high-generated", Found::HighGenerated),
                    ("none", Found::Nowhere),
                    ("text", Found::Text),
                ],
            )?,
            cold: fields.word("cache", &[("warm", false), ("cold", true)])?,
            binds: false,
            encodes: false,
        })
    }

    /// As [`parse`](Self::parse), for requests that share a budget.
    pub(super) fn parse_bound(fields: &mut Fields<'_>) -> Result<Self, ShapeError> {
        let shape = Shape::parse(fields)?;
        let binds = fields.word("budget", &[("free", false), ("binds", true)])?;
        Ok(Shape { binds, ..shape })
    }

    /// As [`parse_bound`](Self::parse_bound), for requests that may encode.
    pub(super) fn parse_mixed(fields: &mut Fields<'_>) -> Result<Self, ShapeError> {
        let shape = Shape::parse_bound(fields)?;
        let encodes = fields.word("encode", &[("none", false), ("quarter", true)])?;
        Ok(Shape { encodes, ..shape })
    }

    pub(super) fn words(&self) -> Words {
        let Shape { batch, length, found, .. } = self;
        let mut found = found.words().to_owned();
        let more = [
            (self.cold, ", cold"),
            (self.encodes, ", a quarter encodes"),
            (self.binds, ", budget binds"),
        ];
        more.iter().filter(|(is, _)| *is).for_each(|(_, words)| found += words);
        Words {
            shape: format!("{batch} x {length}, {found}"),
            series: format!("{batch} requests, {found}"),
            size: *length as f64,
            unit: "tokens of a request",
        }
    }

    /// The number of tokens of the prompt, and of generated tokens before the last.
    fn parts(&self) -> (usize, usize) {
        match self.found {
            Found::HighGenerated => (self.length / 2, self.length / 2),
            _ => (self.length, STEPS),
        }
    }

    /// Whether a request encodes.
    fn encodes(&self, request: usize) -> bool {
        self.encodes && request < self.batch / 4
    }

    /// Two tensors: the tokens that each request encodes (0 for decoding), and
    /// `seq_lens_this_time` before a call. For a decoding request the latter is a value
    /// left by the previous step, which the call overwrites.
    pub(super) fn encoding(&self) -> [Tensor; 2] {
        let tokens = |or: i32| -> Vec<i32> {
            (0..self.batch).map(|i| if self.encodes(i) { ENCODED } else { or }).collect()
        };
        [tokens(0), tokens(7)].map(Tensor::vector)
    }

    /// `token_threshold`, if each decoding request already has `have` tokens in this step.
    pub(super) fn threshold(&self, have: i32) -> i32 {
        if !self.binds {
            return i32::MAX;
        }
        let encoding = (0..self.batch).filter(|&i| self.encodes(i)).count() as i32;
        let decoding = self.batch as i32 - encoding;
        encoding * ENCODED + decoding * have + decoding * DRAFTS as i32 / 2
    }

    pub(super) fn requests(&self) -> Result<Requests, String> {
        let (prompt, steps) = self.parts();
        let batch = self.batch;
        let seed = seed(&[batch, prompt, steps]);
        // The last generated token is number `steps`.
        let row = prompt + steps + 1;
        let mut tokens: Vec<i64> = match self.found {
            Found::Text => windows(&mut Rng::new(seed, "text"), &text()?, batch, row)
                .into_iter()
                .map(i64::from)
                .collect(),
            _ => random(seed, batch * row, |rng| rng.below(VOCABULARY) as i64),
        };
        if self.found != Found::Text {
            for tokens in tokens.chunks_mut(row) {
                let (input, generated) = tokens.split_at_mut(prompt);
                generated[steps + 1 - MAX_NGRAM..].copy_from_slice(&PATTERN);
                match self.found {
                    Found::Low => input[EARLY..][..MAX_NGRAM].copy_from_slice(&PATTERN),
                    Found::HighPrompt => {
                        input[prompt - LATE..][..MAX_NGRAM].copy_from_slice(&PATTERN);
                    }
                    Found::HighGenerated => {
                        generated[steps - LATE..][..MAX_NGRAM].copy_from_slice(&PATTERN);
                    }
                    _ => {}
                }
            }
        }
        Ok(Requests { batch, prompt, steps, tokens })
    }
}

/// The inputs of a batch of requests, which have generated tokens and slots for more.
pub(super) struct Requests {
    pub(super) batch: usize,
    pub(super) prompt: usize,
    pub(super) steps: usize,
    /// The prompt and the generated tokens of each request; the last generated token has
    /// the number `steps`.
    tokens: Vec<i64>,
}

impl Requests {
    /// The number of slots for generated tokens per request.
    fn generated(&self) -> usize {
        self.steps + DRAFTS + 2
    }

    /// The prompts alone.
    pub(super) fn prompts(&self) -> Tensor {
        let row = self.prompt + self.steps + 1;
        let prompts = self.tokens.chunks(row).flat_map(|row| &row[..self.prompt]);
        Tensor::matrix(prompts.copied().collect::<Vec<i64>>(), self.batch, self.prompt)
    }

    /// The generated tokens with slots for more, after the prompt if `with_prompt`.
    pub(super) fn context(&self, with_prompt: bool) -> Tensor {
        let row = self.prompt + self.steps + 1;
        let from = if with_prompt { 0 } else { self.prompt };
        let cols = self.prompt - from + self.generated();
        let mut context = vec![0; self.batch * cols];
        for (to, row) in context.chunks_mut(cols).zip(self.tokens.chunks(row)) {
            to[..row.len() - from].copy_from_slice(&row[from..]);
        }
        Tensor::matrix(context, self.batch, cols)
    }

    /// A tensor with the same length for every request.
    pub(super) fn lengths(&self, length: usize) -> Tensor {
        Tensor::vector(vec![length as i64; self.batch])
    }

    /// A tensor with the same count for every request.
    pub(super) fn counts(&self, count: i32) -> Tensor {
        Tensor::vector(vec![count; self.batch])
    }

    /// The drafts before a call: -1. A call may only write slots for which it finds
    /// drafts.
    pub(super) fn drafts(&self) -> Tensor {
        Tensor::matrix(vec![-1i64; self.batch * (DRAFTS + 2)], self.batch, DRAFTS + 2)
    }

    /// The largest number of tokens to generate, which is enough for all drafts.
    pub(super) fn max_dec_len(&self) -> Tensor {
        self.lengths(self.steps + DRAFTS + 1)
    }

    /// Bytes of the tokens that any search must look at: all tokens up to the first match
    /// of the longest pattern, or all tokens if there is no match. Requests that encode
    /// count nothing; if the budget binds, half of the requests count.
    pub(super) fn bytes(&self, shape: &Shape) -> u64 {
        let cut = shape.binds && shape.found != Found::Nowhere;
        let searched = if cut { self.batch / 2 } else { self.batch };
        let tokens: usize = self
            .tokens
            .par_chunks(self.prompt + self.steps + 1)
            .take(searched)
            .enumerate()
            .filter(|(request, _)| !shape.encodes(*request))
            .map(|(_, row)| {
                let (prompt, generated) = row.split_at(self.prompt);
                let pattern = &generated[self.steps + 1 - MAX_NGRAM..];
                let find = |tokens: &[i64]| tokens.windows(MAX_NGRAM).position(|w| w == pattern);
                // At least one token must follow a match.
                match (find(&prompt[..prompt.len() - 1]), find(&generated[..self.steps - 1])) {
                    (Some(at), _) => at + MAX_NGRAM,
                    (None, Some(at)) => prompt.len() + at + MAX_NGRAM,
                    (None, None) => prompt.len() + self.steps,
                }
            })
            .sum();
        tokens as u64 * 8
    }

    /// As [`bytes`](Self::bytes), for a search of all tokens before the last, from the
    /// start or from the end.
    pub(super) fn text_bytes(&self, which: Occurrence) -> u64 {
        let tokens: usize = self
            .tokens
            .par_chunks(self.prompt + self.steps + 1)
            .map(|text| {
                let before = &text[..text.len() - 1];
                let pattern = &text[text.len() - MAX_NGRAM..];
                let mut windows = before.windows(MAX_NGRAM);
                let read = if which == Occurrence::First {
                    windows.position(|w| w == pattern).map(|at| at + MAX_NGRAM)
                } else {
                    windows.rposition(|w| w == pattern).map(|at| before.len() - at)
                };
                read.unwrap_or(before.len())
            })
            .sum();
        tokens as u64 * 8
    }

    /// The number of tokens of a request: its prompt and its generated tokens.
    pub(super) fn length(&self) -> usize {
        self.prompt + self.steps + 1
    }

    /// Bytes of all tensors of a batch of this shape.
    pub(super) fn memory(shape: &Shape, with_prompt: bool) -> u64 {
        let (prompt, steps) = shape.parts();
        let prompts = if with_prompt { 2 * prompt } else { prompt };
        (shape.batch * (prompts + steps + 2 * DRAFTS)) as u64 * 8
    }
}
