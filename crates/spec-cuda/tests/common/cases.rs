//! One small call of every operator, with inputs that a seed changes: for the
//! tests that are about streams and graphs rather than about results.

use spec_core::ops::{
    DeduplicateTopk, HybridMtpNgram, NgramMatch, PromptLookup, RejectionSample, TopkRouter, Unique,
    deduplicate_topk, hybrid_mtp_ngram, ngram_match, prompt_lookup, rejection_sample, topk_router,
    unique,
};
use spec_core::ops::{SampleLogits, sample_logits};
use spec_core::{DType, Stream, TensorDesc, dtype};
use spec_cuda::Cuda;

use crate::common::random::Random;
use crate::common::{Array, Ready};

/// A call that can be repeated with other inputs.
pub trait Case {
    /// Writes inputs made from a seed, and what lies in place.
    fn fill(&mut self, seed: u64);
    /// Enqueues the call.
    fn run(&mut self, stream: Stream<'_>);
    /// The bytes of everything the call wrote.
    fn outputs(&self) -> Vec<u8>;
    /// The same descriptor with other memory.
    fn twin(&self, cuda: &Cuda) -> Box<dyn Case>;
}

macro_rules! twin {
    () => {
        fn twin(&self, cuda: &Cuda) -> Box<dyn Case> {
            Box::new(Self { ready: self.ready.twin(cuda), ..Self::new(cuda) })
        }
    };
}

#[path = "around.rs"]
mod around;

/// Every operator by name.
pub fn all(cuda: &Cuda) -> Vec<(&'static str, Box<dyn Case>)> {
    vec![
        ("topk_router", Box::new(Router::new(cuda))),
        ("deduplicate_topk", Box::new(Deduplicate::new(cuda))),
        ("rejection_sample", Box::new(Rejection::new(cuda))),
        ("ngram_match", Box::new(Ngram::new(cuda))),
        ("hybrid_mtp_ngram", Box::new(Hybrid::new(cuda))),
        ("sample_logits", Box::new(Samples::new(cuda))),
        ("tree_verify", Box::new(around::Trees::new(cuda))),
        ("moe_align", Box::new(around::Align::new(cuda))),
        ("indexer_topk", Box::new(around::Indexer::new(cuda))),
        ("prompt_lookup", Box::new(Lookup::new(cuda))),
        ("unique", Box::new(Keys::new(cuda))),
    ]
}

fn bytes<T: spec_core::Element>(arrays: &[&Array<T>]) -> Vec<u8> {
    arrays.iter().flat_map(|a| dtype::as_bytes(&a.get()).to_vec()).collect()
}

/// DeepSeek-V3 routing with a bias; a NaN now and then.
struct Router {
    x: Array<f32>,
    bias: Array<f32>,
    weights: Array<f32>,
    indices: Array<i32>,
    flags: Array<u32>,
    ready: Ready<TopkRouter>,
}

impl Router {
    const TOKENS: usize = 300;
    const EXPERTS: usize = 256;

    fn new(cuda: &Cuda) -> Self {
        let model = topk_router::preset::DEEPSEEK_V3;
        let operator = model.router();
        let mut tensors = model.tensors(DType::F32, Self::TOKENS);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        Router {
            x: Array::new(cuda, Self::TOKENS * Self::EXPERTS),
            bias: Array::new(cuda, Self::EXPERTS),
            weights: Array::new(cuda, Self::TOKENS * operator.topk),
            indices: Array::new(cuda, Self::TOKENS * operator.topk),
            flags: Array::new(cuda, 1),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Router {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        let mut x = random.vec(self.x.len(), |r| r.unit() * 8.0 - 4.0);
        x[random.below(self.x.len() as u64) as usize] = f32::NAN;
        self.x.set(&x);
        self.bias.set(&random.vec(Self::EXPERTS, |r| r.unit() * 0.2));
        self.flags.set(&[0]);
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = topk_router::Buffers {
            x: self.x.view(),
            bias: Some(self.bias.view()),
            num_tokens: None,
            replicas: None,
            replica_counts: None,
            weights: self.weights.view_mut(),
            indices: self.indices.view_mut(),
            load: None,
            flags: Some(self.flags.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        [bytes(&[&self.weights]), bytes(&[&self.indices]), bytes(&[&self.flags])].concat()
    }
}

struct Deduplicate {
    indices: Array<i32>,
    unique: Array<i32>,
    counts: Array<i32>,
    ready: Ready<DeduplicateTopk>,
}

impl Deduplicate {
    const BATCH: usize = 17;
    const ROW: usize = 3 * 2048;

    fn new(cuda: &Cuda) -> Self {
        let operator = DeduplicateTopk { mtp_step: 3 };
        let mut tensors = operator.tensors(Self::BATCH, 2048);
        tensors.counts = Some(TensorDesc::new(DType::I32, [Self::BATCH]));
        Deduplicate {
            indices: Array::new(cuda, Self::BATCH * Self::ROW),
            unique: Array::new(cuda, Self::BATCH * Self::ROW),
            counts: Array::new(cuda, Self::BATCH),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Deduplicate {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        // Requests of every kind: in a small range, in a large one, anywhere.
        let width = |request: usize| [1 << 14, 1 << 20, 1 << 32][request % 3];
        let indices: Vec<i32> = (0..self.indices.len())
            .map(|i| random.below(width(i / Self::ROW)) as u32 as i32)
            .collect();
        self.indices.set(&indices);
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = deduplicate_topk::Buffers {
            indices: self.indices.view(),
            unique: self.unique.view_mut(),
            counts: Some(self.counts.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        bytes(&[&self.unique, &self.counts])
    }
}

/// Lossless verification of ragged requests, of which some are greedy.
struct Rejection {
    target: Array<f32>,
    draft: Array<f32>,
    draft_ids: Array<i32>,
    bonus_ids: Array<i32>,
    offsets: Array<i32>,
    seeds: Array<u64>,
    positions: Array<i64>,
    greedy: Array<u8>,
    output: Array<i32>,
    per_request: [Array<i32>; 4],
    flags: Array<u32>,
    ready: Ready<RejectionSample>,
}

impl Rejection {
    const BATCH: usize = 9;
    const DRAFTS: usize = 4;
    const VOCAB: usize = 5003;
    const TOKENS: usize = Self::BATCH * Self::DRAFTS;

    fn new(cuda: &Cuda) -> Self {
        let operator = RejectionSample::lossless(Self::DRAFTS);
        let mut tensors = operator.tensors(Self::BATCH, Self::TOKENS, Self::VOCAB);
        tensors.greedy = Some(TensorDesc::new(DType::U8, [Self::BATCH]));
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        Rejection {
            target: Array::new(cuda, Self::TOKENS * Self::VOCAB),
            draft: Array::new(cuda, Self::TOKENS * Self::VOCAB),
            draft_ids: Array::new(cuda, Self::TOKENS),
            bonus_ids: Array::new(cuda, Self::BATCH),
            offsets: Array::new(cuda, Self::BATCH + 1),
            seeds: Array::new(cuda, Self::BATCH),
            positions: Array::new(cuda, Self::BATCH),
            greedy: Array::new(cuda, Self::BATCH),
            output: Array::new(cuda, Self::BATCH * (Self::DRAFTS + 1)),
            per_request: std::array::from_fn(|_| Array::new(cuda, Self::BATCH)),
            flags: Array::new(cuda, 1),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }

    fn distributions(random: &mut Random) -> Vec<f32> {
        let mut probs = random.vec(Self::TOKENS * Self::VOCAB, |r| r.unit().powi(8));
        for row in probs.chunks_mut(Self::VOCAB) {
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
        }
        probs
    }
}

impl Case for Rejection {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        self.target.set(&Self::distributions(&mut random));
        self.draft.set(&Self::distributions(&mut random));
        let id = |r: &mut Random| r.below(Self::VOCAB as u64) as i32;
        self.draft_ids.set(&random.vec(Self::TOKENS, id));
        self.bonus_ids.set(&random.vec(Self::BATCH, id));
        let mut offsets = random.vec(Self::BATCH + 1, |r| r.below(Self::TOKENS as u64 + 1) as i32);
        offsets.sort_unstable();
        self.offsets.set(&offsets);
        self.seeds.set(&random.vec(Self::BATCH, |r| r.next()));
        self.positions.set(&random.vec(Self::BATCH, |r| r.below(1 << 40) as i64));
        self.greedy.set(&random.vec(Self::BATCH, |r| r.below(3) as u8 / 2));
        self.flags.set(&[0]);
    }

    fn run(&mut self, stream: Stream<'_>) {
        let [num_accepted, accepted, recovered, bonus] = &mut self.per_request;
        let buffers = rejection_sample::Buffers {
            target_probs: self.target.view(),
            draft_probs: Some(self.draft.view()),
            draft_token_ids: self.draft_ids.view(),
            bonus_token_ids: self.bonus_ids.view(),
            cu_num_draft: self.offsets.view(),
            uniform_samples: None,
            seeds: Some(self.seeds.view()),
            positions: Some(self.positions.view()),
            greedy: Some(self.greedy.view()),
            output_token_ids: self.output.view_mut(),
            num_accepted: num_accepted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonus.view_mut(),
            flags: Some(self.flags.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        let [a, b, c, d] = &self.per_request;
        [bytes(&[&self.output, a, b, c, d]), bytes(&[&self.flags])].concat()
    }
}

const REQUESTS: usize = 40;
const PROMPT: usize = 700;
const MODEL: usize = 300;
const SLOTS: usize = 12;

/// What both n-gram operators read and write.
struct Drafts {
    input_ids: Array<i64>,
    input_ids_len: Array<i64>,
    generated: Array<i64>,
    step_idx: Array<i64>,
    draft_tokens: Array<i64>,
    seq_lens_this_time: Array<i32>,
    seq_lens_decoder: Array<i32>,
    max_dec_len: Array<i64>,
    flags: Array<u32>,
}

impl Drafts {
    fn new(cuda: &Cuda) -> Self {
        Drafts {
            input_ids: Array::new(cuda, REQUESTS * PROMPT),
            input_ids_len: Array::new(cuda, REQUESTS),
            generated: Array::new(cuda, REQUESTS * MODEL),
            step_idx: Array::new(cuda, REQUESTS),
            draft_tokens: Array::new(cuda, REQUESTS * SLOTS),
            seq_lens_this_time: Array::new(cuda, REQUESTS),
            seq_lens_decoder: Array::new(cuda, REQUESTS),
            max_dec_len: Array::new(cuda, REQUESTS),
            flags: Array::new(cuda, 1),
        }
    }

    fn fill(&mut self, random: &mut Random) {
        // Few different tokens, so that patterns recur.
        self.input_ids.set(&random.vec(REQUESTS * PROMPT, |r| r.below(12) as i64));
        self.generated.set(&random.vec(REQUESTS * MODEL, |r| r.below(12) as i64));
        let below = |bound: usize| move |r: &mut Random| r.below(bound as u64) as i64;
        self.input_ids_len.set(&random.vec(REQUESTS, below(PROMPT + 1)));
        self.step_idx.set(&random.vec(REQUESTS, below(MODEL / 2)));
        self.max_dec_len.set(&[MODEL as i64; REQUESTS]);
        self.draft_tokens.set(&[-5; REQUESTS * SLOTS]);
        self.seq_lens_this_time.set(&random.vec(REQUESTS, |r| r.below(3) as i32));
        self.seq_lens_decoder.set(&random.vec(REQUESTS, |r| r.below(8) as i32));
        self.flags.set(&[0]);
    }

    fn outputs(&self) -> Vec<u8> {
        let drafts = bytes(&[&self.draft_tokens]);
        [drafts, bytes(&[&self.seq_lens_this_time]), bytes(&[&self.flags])].concat()
    }
}

struct Ngram {
    drafts: Drafts,
    prompt_lens: Array<i64>,
    draft_token_num: Array<i32>,
    seq_lens_encoder: Array<i32>,
    ready: Ready<NgramMatch>,
}

impl Ngram {
    fn new(cuda: &Cuda) -> Self {
        let operator = NgramMatch { token_threshold: 130, ..NgramMatch::default() };
        let mut tensors = operator.tensors(REQUESTS, PROMPT, MODEL, SLOTS);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        Ngram {
            drafts: Drafts::new(cuda),
            prompt_lens: Array::new(cuda, REQUESTS),
            draft_token_num: Array::new(cuda, REQUESTS),
            seq_lens_encoder: Array::new(cuda, REQUESTS),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Ngram {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        self.drafts.fill(&mut random);
        self.prompt_lens.set(&random.vec(REQUESTS, |r| r.below(MODEL as u64 / 2) as i64));
        self.draft_token_num.set(&random.vec(REQUESTS, |r| r.below(8) as i32));
        self.seq_lens_encoder.set(&random.vec(REQUESTS, |r| i32::from(r.below(8) == 0)));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let d = &mut self.drafts;
        let buffers = ngram_match::Buffers {
            input_ids: d.input_ids.view(),
            input_ids_len: d.input_ids_len.view(),
            token_ids_all: d.generated.view(),
            prompt_lens: self.prompt_lens.view(),
            step_idx: d.step_idx.view(),
            draft_token_num: self.draft_token_num.view(),
            draft_tokens: d.draft_tokens.view_mut(),
            seq_lens_this_time: d.seq_lens_this_time.view_mut(),
            seq_lens_encoder: self.seq_lens_encoder.view(),
            seq_lens_decoder: d.seq_lens_decoder.view(),
            max_dec_len: d.max_dec_len.view(),
            flags: Some(d.flags.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        self.drafts.outputs()
    }
}

struct Hybrid {
    drafts: Drafts,
    ready: Ready<HybridMtpNgram>,
}

impl Hybrid {
    fn new(cuda: &Cuda) -> Self {
        let operator = HybridMtpNgram {
            max_ngram_size: 4,
            min_ngram_size: 2,
            max_draft_tokens: 10,
            token_threshold: 170,
        };
        let mut tensors = operator.tensors(REQUESTS, PROMPT, MODEL, SLOTS);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        Hybrid { drafts: Drafts::new(cuda), ready: Ready::new(cuda, &operator, &tensors) }
    }
}

impl Case for Hybrid {
    twin!();

    fn fill(&mut self, seed: u64) {
        self.drafts.fill(&mut Random(seed));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let d = &mut self.drafts;
        let buffers = hybrid_mtp_ngram::Buffers {
            input_ids: d.input_ids.view(),
            input_ids_len: d.input_ids_len.view(),
            pre_ids: d.generated.view(),
            step_idx: d.step_idx.view(),
            draft_tokens: d.draft_tokens.view_mut(),
            seq_lens_this_time: d.seq_lens_this_time.view_mut(),
            seq_lens_decoder: d.seq_lens_decoder.view(),
            max_dec_len: d.max_dec_len.view(),
            flags: Some(d.flags.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        self.drafts.outputs()
    }
}

/// Texts that several blocks search each.
struct Lookup {
    tokens: Array<i64>,
    lengths: Array<i32>,
    drafts: Array<i64>,
    counts: Array<i32>,
    flags: Array<u32>,
    ready: Ready<PromptLookup>,
}

impl Lookup {
    const REQUESTS: usize = 3;
    const MOST: usize = 30_000;

    fn new(cuda: &Cuda) -> Self {
        let operator = PromptLookup { max_ngram: 6, ..PromptLookup::default() };
        let mut tensors = operator.tensors(DType::I64, Self::REQUESTS, Self::MOST);
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        Lookup {
            tokens: Array::new(cuda, Self::REQUESTS * Self::MOST),
            lengths: Array::new(cuda, Self::REQUESTS),
            drafts: Array::new(cuda, Self::REQUESTS * operator.max_draft),
            counts: Array::new(cuda, Self::REQUESTS),
            flags: Array::new(cuda, 1),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Lookup {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        self.tokens.set(&random.vec(Self::REQUESTS * Self::MOST, |r| r.below(12) as i64));
        let length = |r: &mut Random| (Self::MOST / 2) as i32 + r.below(20_000) as i32;
        self.lengths.set(&random.vec(Self::REQUESTS, length));
        self.flags.set(&[0]);
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = prompt_lookup::Buffers {
            tokens: self.tokens.view(),
            lengths: self.lengths.view(),
            drafts: self.drafts.view_mut(),
            counts: self.counts.view_mut(),
            flags: Some(self.flags.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        [bytes(&[&self.drafts]), bytes(&[&self.counts]), bytes(&[&self.flags])].concat()
    }
}

/// Keys with few duplicates or many, and their counts.
struct Keys {
    keys: Array<u64>,
    unique: Array<u64>,
    count: Array<u64>,
    counts: Array<u64>,
    ready: Ready<Unique>,
}

impl Keys {
    const N: usize = 30_000;

    fn new(cuda: &Cuda) -> Self {
        let mut tensors = Unique.tensors(DType::U64, Self::N);
        tensors.counts = Some(TensorDesc::new(DType::U64, [Self::N]));
        Keys {
            keys: Array::new(cuda, Self::N),
            unique: Array::new(cuda, Self::N),
            count: Array::new(cuda, 1),
            counts: Array::new(cuda, Self::N),
            ready: Ready::new(cuda, &Unique, &tensors),
        }
    }
}

impl Case for Keys {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        let shift = random.below(60);
        self.keys.set(&random.vec(Self::N, |r| r.next() >> shift));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = unique::Buffers {
            keys: self.keys.view(),
            unique: self.unique.view_mut(),
            count: self.count.view_mut(),
            counts: Some(self.counts.view_mut()),
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        // What lies behind the last distinct key is unspecified.
        let distinct = self.count.get()[0] as usize;
        let arrays = [self.unique.start(distinct), self.counts.start(distinct)];
        arrays.iter().flat_map(|a| dtype::as_bytes(a).to_vec()).collect()
    }
}

/// Rows that stay in a cluster's shared memory, with both cuts, and their
/// probabilities.
struct Samples {
    logits: Array<f32>,
    positions: Array<i64>,
    temperature: Array<f32>,
    seeds: Array<u64>,
    top_k: Array<i32>,
    top_p: Array<f32>,
    tokens: Array<i32>,
    probs: Array<f32>,
    ready: Ready<SampleLogits>,
}

impl Samples {
    const ROWS: usize = 9;
    const VOCAB: usize = 40_001;

    fn new(cuda: &Cuda) -> Self {
        let operator = SampleLogits::default();
        let mut tensors = operator.tensors(Self::ROWS, Self::ROWS, Self::VOCAB);
        tensors.top_k = Some(TensorDesc::new(DType::I32, [Self::ROWS]));
        tensors.top_p = Some(TensorDesc::new(DType::F32, [Self::ROWS]));
        tensors.probs = Some(TensorDesc::new(DType::F32, [Self::ROWS, Self::VOCAB]));
        Samples {
            logits: Array::new(cuda, Self::ROWS * Self::VOCAB),
            positions: Array::new(cuda, Self::ROWS),
            temperature: Array::new(cuda, Self::ROWS),
            seeds: Array::new(cuda, Self::ROWS),
            top_k: Array::new(cuda, Self::ROWS),
            top_p: Array::new(cuda, Self::ROWS),
            tokens: Array::new(cuda, Self::ROWS),
            probs: Array::new(cuda, Self::ROWS * Self::VOCAB),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Samples {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        self.logits.set(&random.vec(Self::ROWS * Self::VOCAB, |r| r.unit() * 16.0 - 8.0));
        self.positions.set(&random.vec(Self::ROWS, |r| r.below(4096) as i64));
        // A greedy one now and then; a top-k that many, few or none are.
        self.temperature.set(&random.vec(Self::ROWS, |r| r.below(4) as f32 * 0.4));
        self.seeds.set(&random.vec(Self::ROWS, |r| r.below(u64::MAX)));
        self.top_k.set(&random.vec(Self::ROWS, |r| [0, 50, 5000][r.below(3) as usize]));
        self.top_p.set(&random.vec(Self::ROWS, |r| 0.5 + r.unit()));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = sample_logits::Buffers {
            logits: self.logits.view(),
            positions: self.positions.view(),
            temperature: self.temperature.view(),
            seeds: self.seeds.view(),
            top_k: Some(self.top_k.view()),
            top_p: Some(self.top_p.view()),
            min_p: None,
            requests: None,
            mask: None,
            tokens: self.tokens.view_mut(),
            probs: Some(self.probs.view_mut()),
            logprobs: None,
            flags: None,
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        [bytes(&[&self.tokens]), bytes(&[&self.probs])].concat()
    }
}
