//! Where drafts come from: the text so far, a corpus of finished texts, or a smaller model.

use std::sync::Arc;

use anyhow::ensure;
use spec::ops::ngram_match::{self, NgramMatch};
use spec::ops::prompt_lookup::{self, PromptLookup};
use spec::ops::suffix_lookup::{self, SuffixLookup};
use spec::{Corpus, DType, Descriptor, Handle, Signature, TensorDesc};

use crate::Result;
use crate::draft::Draft;
use crate::llama::Llama;
use crate::sampling::{Sampler, Sampling};
use crate::stopwatch::Stopwatch;

/// The longest pattern that is looked up.
const MAX_NGRAM: usize = 4;

/// Makes drafts.
pub enum Drafter {
    /// None: plain decoding.
    None,
    /// `prompt_lookup`, the longest pattern first.
    Lookup(Lookup),
    /// `ngram_match`.
    Ngram(Box<Ngram>),
    /// `suffix_lookup`: chains or trees.
    Suffix(Box<Suffix>),
    /// A smaller model.
    Model(Box<Small>),
}

impl Drafter {
    /// By `prompt_lookup`, up to `max` drafts in texts of up to `capacity` tokens.
    ///
    /// # Errors
    /// As [`Handle::create`].
    pub fn lookup(handle: &Handle, capacity: usize, max: usize) -> Result<Self> {
        let create = |ngram| {
            let params = PromptLookup::default().min_ngram(ngram).max_ngram(ngram).max_draft(max);
            let tensors = params.tensors(DType::U32, 1, capacity);
            handle.create(&params, &tensors.flags(TensorDesc::new(DType::U32, [1])))
        };
        let operators = (1..=MAX_NGRAM).rev().map(create).collect::<spec::Result<Vec<_>>>()?;
        let workspace = operators.iter().map(Descriptor::workspace_size).max().unwrap_or(0);
        Ok(Drafter::Lookup(Lookup {
            operators,
            workspace: vec![0; workspace],
            tokens: vec![0; capacity],
            drafts: vec![0; max],
        }))
    }

    /// By `ngram_match`, for this prompt.
    ///
    /// # Errors
    /// As [`Handle::create`].
    pub fn ngram(handle: &Handle, prompt: &[u32], capacity: usize, max: usize) -> Result<Self> {
        let params = NgramMatch::default().token_threshold(i32::MAX);
        let tokens = |len| TensorDesc::new(DType::U32, [1, len]);
        let mut tensors = params.tensors(1, prompt.len(), capacity, max + 1);
        tensors.input_ids = tokens(prompt.len());
        tensors.token_ids_all = tokens(capacity);
        tensors.draft_tokens = tokens(max + 1);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        let operator = handle.create(&params, &tensors)?;
        Ok(Drafter::Ngram(Box::new(Ngram {
            workspace: vec![0; operator.workspace_size()],
            operator,
            prompt: prompt.to_vec(),
            tokens: vec![0; capacity],
            drafts: vec![0; max + 1],
        })))
    }

    /// By `suffix_lookup`, up to `max` drafts in texts of up to `capacity` tokens: chains where
    /// `width` is 1, else trees with up to `width` drafts behind each. A corpus has the texts of
    /// other requests.
    ///
    /// # Errors
    /// As [`Handle::create`].
    pub fn suffix(
        handle: &Handle,
        capacity: usize,
        max: usize,
        width: usize,
        corpus: Option<Arc<Corpus<i32>>>,
    ) -> Result<Self> {
        let params = SuffixLookup::new().width(width);
        let mut tensors = params.tensors(DType::I32, 1, capacity, max);
        tensors.parents = Some(TensorDesc::new(DType::I32, [1, max]));
        tensors.shares = Some(TensorDesc::new(DType::F32, [1, max]));
        tensors.match_lengths = Some(TensorDesc::new(DType::I32, [1]));
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        tensors.corpus = corpus.as_ref().map(|corpus| corpus.tokens_desc());
        tensors.corpus_length = corpus.as_ref().map(|corpus| corpus.length_desc());
        let operator = handle.create(&params, &tensors)?;
        Ok(Drafter::Suffix(Box::new(Suffix {
            workspace: vec![0; operator.workspace_size()],
            operator,
            corpus,
            tokens: vec![0; capacity],
            drafts: vec![0; max],
            parents: vec![0; max],
            shares: vec![0.0; max],
        })))
    }

    /// By a smaller model of the same vocabulary, sampled as the large one is: with the same
    /// random numbers the two agree more often.
    pub fn model(handle: &Handle, model: Llama, sampling: Sampling) -> Self {
        let sampler = Sampler::new(handle, sampling);
        Drafter::Model(Box::new(Small { model, sampler, read: Vec::new() }))
    }

    /// How many kinds of drafts it makes.
    pub fn kinds(&self) -> usize {
        match self {
            Drafter::Lookup(lookup) => lookup.operators.len(),
            Drafter::Suffix(_) => MATCHES.len() + 1,
            _ => 1,
        }
    }

    /// Whether each draft costs, so that only those are made which are run.
    pub fn costs(&self) -> bool {
        matches!(self, Drafter::Model(_))
    }

    /// Up to `max` drafts of what follows the text.
    ///
    /// # Errors
    /// Where the text is longer than its capacity.
    pub fn draft(&mut self, text: &[u32], max: usize, watch: &mut Stopwatch) -> Result<Draft> {
        let mut draft = match self {
            Drafter::None => Draft::default(),
            Drafter::Lookup(lookup) => lookup.draft(text, watch)?,
            Drafter::Ngram(ngram) => ngram.draft(text, watch)?,
            Drafter::Suffix(suffix) => suffix.draft(text, watch)?,
            Drafter::Model(small) => small.draft(text, max, watch)?,
        };
        draft.truncate(max);
        Ok(draft)
    }
}

/// `prompt_lookup` of one text, with one operator a length of pattern.
pub struct Lookup {
    operators: Vec<Descriptor<PromptLookup>>,
    workspace: Vec<u8>,
    tokens: Vec<u32>,
    drafts: Vec<u32>,
}

impl Lookup {
    fn draft(&mut self, text: &[u32], watch: &mut Stopwatch) -> Result<Draft> {
        write(&mut self.tokens, text)?;
        let lengths = [text.len() as i32];
        for (kind, operator) in self.operators.iter().enumerate() {
            let (mut counts, mut flags) = ([0i32], [0u32]);
            let buffers =
                prompt_lookup::Buffers::new(&self.tokens, &lengths, &mut self.drafts, &mut counts)
                    .flags(&mut flags);
            watch.measure(PromptLookup::NAME, || operator.call(&mut self.workspace, buffers))?;
            ensure!(flags == [0], "prompt_lookup: flags {}", flags[0]);
            if counts[0] > 0 {
                return Ok(Draft::chain(kind, self.drafts[..counts[0] as usize].to_vec()));
            }
        }
        Ok(Draft::default())
    }
}

/// `ngram_match` for one request.
pub struct Ngram {
    operator: Descriptor<NgramMatch>,
    workspace: Vec<u8>,
    prompt: Vec<u32>,
    /// The whole text, of which what begins with the prompt's last token is generated.
    tokens: Vec<u32>,
    drafts: Vec<u32>,
}

impl Ngram {
    fn draft(&mut self, text: &[u32], watch: &mut Stopwatch) -> Result<Draft> {
        write(&mut self.tokens, text)?;
        let prompt = self.prompt.len() as i64;
        let (input_ids_len, prompt_lens) = ([prompt], [prompt - 1]);
        let (step_idx, max_dec_len) = ([text.len() as i64 - prompt], [self.tokens.len() as i64]);
        let draft_token_num = [self.drafts.len() as i32 - 1];
        let (mut seq_lens_this_time, mut flags) = ([1i32], [0u32]);
        let buffers = ngram_match::Buffers::new(ngram_match::Required {
            input_ids: (&self.prompt).into(),
            input_ids_len: (&input_ids_len).into(),
            token_ids_all: (&self.tokens).into(),
            prompt_lens: (&prompt_lens).into(),
            step_idx: (&step_idx).into(),
            draft_token_num: (&draft_token_num).into(),
            draft_tokens: (&mut self.drafts).into(),
            seq_lens_this_time: (&mut seq_lens_this_time).into(),
            seq_lens_encoder: (&[0i32]).into(),
            seq_lens_decoder: (&[1i32]).into(),
            max_dec_len: (&max_dec_len).into(),
        })
        .flags(&mut flags);
        watch.measure(NgramMatch::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        ensure!(flags == [0], "ngram_match: flags {}", flags[0]);
        let slots = seq_lens_this_time[0].max(1) as usize;
        Ok(Draft::chain(0, self.drafts[1..slots].to_vec()))
    }
}

/// Drafts of `suffix_lookup` are of one kind where their matches are equally long: 1 token, 2, 3,
/// 4, up to 8, more.
const MATCHES: [i32; 5] = [1, 2, 3, 4, 8];

/// `suffix_lookup` of one text and a corpus.
pub struct Suffix {
    operator: Descriptor<SuffixLookup>,
    workspace: Vec<u8>,
    corpus: Option<Arc<Corpus<i32>>>,
    tokens: Vec<i32>,
    drafts: Vec<i32>,
    parents: Vec<i32>,
    shares: Vec<f32>,
}

impl Suffix {
    fn draft(&mut self, text: &[u32], watch: &mut Stopwatch) -> Result<Draft> {
        write(&mut self.tokens, text)?;
        let lengths = [text.len() as i32];
        let (mut counts, mut matched, mut flags) = ([0i32], [0i32], [0u32]);
        let reading = self.corpus.as_ref().map(|corpus| corpus.read());
        let mut buffers =
            suffix_lookup::Buffers::new(&self.tokens, &lengths, &mut self.drafts, &mut counts)
                .parents(&mut self.parents)
                .shares(&mut self.shares)
                .match_lengths(&mut matched)
                .flags(&mut flags);
        if let Some(reading) = &reading {
            buffers = buffers.corpus(reading.tokens()).corpus_length(reading.length());
        }
        watch.measure(SuffixLookup::NAME, || self.operator.call(&mut self.workspace, buffers))?;
        ensure!(flags == [0], "suffix_lookup: flags {}", flags[0]);
        let count = counts[0] as usize;
        Ok(Draft {
            kind: MATCHES.iter().filter(|longest| matched[0] > **longest).count(),
            tokens: self.drafts[..count].iter().map(|token| *token as u32).collect(),
            parents: self.parents[..count].iter().map(|parent| *parent as usize).collect(),
            shares: self.shares[..count].to_vec(),
        })
    }
}

/// A text as the tokens of a [`Corpus`].
///
/// # Errors
/// If a token is 2^31 or more.
pub fn for_corpus(text: &[u32]) -> Result<Vec<i32>> {
    Ok(text.iter().map(|token| i32::try_from(*token)).collect::<Result<_, _>>()?)
}

/// Writes a text to the start of an operator's row.
fn write<T: TryFrom<u32>>(row: &mut [T], text: &[u32]) -> Result<()> {
    let room = row.len();
    let row = row.get_mut(..text.len());
    let row = row.ok_or_else(|| anyhow::anyhow!("{} tokens in a row of {room}", text.len()))?;
    for (place, token) in row.iter_mut().zip(text) {
        let fits = T::try_from(*token).ok();
        *place = fits.ok_or_else(|| anyhow::anyhow!("token {token} is too large"))?;
    }
    Ok(())
}

/// The smaller model.
pub struct Small {
    model: Llama,
    sampler: Sampler,
    /// What it was run on and still has.
    read: Vec<u32>,
}

impl Small {
    fn draft(&mut self, text: &[u32], max: usize, watch: &mut Stopwatch) -> Result<Draft> {
        // What it drafted and the model did not choose is forgotten.
        let known = self.read.iter().zip(text).take_while(|(a, b)| a == b).count();
        let known = known.min(text.len() - 1);
        self.model.truncate(known);
        self.read.truncate(known);
        let mut next = text[known..].to_vec();
        let mut tokens = Vec::with_capacity(max);
        while tokens.len() < max {
            let (last, before) = next.split_last().expect("a text has a token");
            let logits = watch.measure("the draft model", || {
                self.model.read_prompt(before)?;
                self.model.run(&[*last])
            })?;
            self.read.append(&mut next);
            let place = [(text.len() + tokens.len()) as i64];
            let chosen = logits.with(|logits| self.sampler.choose(logits, &place, watch))?;
            tokens.extend(&chosen);
            next = chosen;
        }
        Ok(Draft::chain(0, tokens))
    }
}
