//! One call of every operator, with inputs made from a seed, for tests of streams and
//! graphs.

use spec_conformance::{Case, Layout, Ready, Rng, Subject, Tensor};
use spec_core::ops::topk_router::preset;
use spec_core::ops::{
    AdjustLogits, AppendTokens, DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch,
    PromptLookup, RejectionSample, SampleLogits, SuffixLookup, TopkRouter, TreeVerify, Unique,
    tree_verify,
};
use spec_core::{DType, Role, Stream, Supports};
use spec_cuda::Cuda;

/// A call that can be repeated with other inputs.
pub trait Call {
    /// Writes inputs and in-place arguments made from a seed.
    fn fill(&mut self, seed: u64);
    /// Enqueues the call.
    fn run(&mut self, stream: Stream<'_>);
    /// The bytes of everything that the call wrote. Inputs must not have changed.
    fn outputs(&self) -> Vec<u8>;
    /// The same descriptor with other memory.
    fn twin(&self, cuda: &Cuda) -> Box<dyn Call>;
}

struct Seeded<O: Subject> {
    make: fn(&mut Rng) -> Case<O>,
    case: Case<O>,
    ready: Ready<O>,
}

impl<O: Subject> Seeded<O> {
    fn boxed(cuda: &Cuda, make: fn(&mut Rng) -> Case<O>) -> (&'static str, Box<dyn Call>)
    where
        Cuda: Supports<O>,
    {
        let case = make(&mut Rng::new(0, O::NAME));
        let ready = Ready::new(cuda, &case, Layout::PACKED).expect("a descriptor");
        (O::NAME, Box::new(Seeded { make, case, ready }))
    }
}

impl<O: Subject> Call for Seeded<O> {
    fn fill(&mut self, seed: u64) {
        self.case = (self.make)(&mut Rng::new(seed, O::NAME));
        self.ready.write(&self.case).expect("a copy to the device");
    }

    fn run(&mut self, stream: Stream<'_>) {
        self.ready.enqueue(stream).expect("a launch");
    }

    fn outputs(&self) -> Vec<u8> {
        let results = self.ready.results(&self.case).expect("a copy from the device");
        let written = results.iter().filter(|argument| argument.role != Role::Input);
        written.flat_map(|argument| argument.tensor.data.bytes().to_vec()).collect()
    }

    fn twin(&self, cuda: &Cuda) -> Box<dyn Call> {
        let ready = self.ready.twin(cuda, &self.case).expect("memory");
        Box::new(Seeded { make: self.make, case: self.case.clone(), ready })
    }
}

/// Every operator by name.
pub fn all(cuda: &Cuda) -> Vec<(&'static str, Box<dyn Call>)> {
    vec![
        Seeded::boxed(cuda, topk_router),
        Seeded::boxed(cuda, replayed_router),
        Seeded::boxed(cuda, deduplicate_topk),
        Seeded::boxed(cuda, rejection_sample),
        Seeded::boxed(cuda, ngram_match),
        Seeded::boxed(cuda, hybrid_mtp_ngram),
        Seeded::boxed(cuda, sample_logits),
        Seeded::boxed(cuda, tree_verify),
        Seeded::boxed(cuda, packed_chains),
        Seeded::boxed(cuda, adjust_logits),
        Seeded::boxed(cuda, append_tokens),
        Seeded::boxed(cuda, suffix_lookup),
        Seeded::boxed(cuda, moe_align),
        Seeded::boxed(cuda, indexer_topk),
        Seeded::boxed(cuda, prompt_lookup),
        Seeded::boxed(cuda, lookup_in_slots),
        Seeded::boxed(cuda, unique),
    ]
}

fn vector<T>(rng: &mut Rng, len: usize, item: impl FnMut(&mut Rng) -> T) -> Tensor
where
    Vec<T>: Into<spec_conformance::Data>,
{
    Tensor::vector(values(rng, len, item))
}

fn matrix<T>(rng: &mut Rng, shape: [usize; 2], item: impl FnMut(&mut Rng) -> T) -> Tensor
where
    Vec<T>: Into<spec_conformance::Data>,
{
    let [rows, cols] = shape;
    Tensor::matrix(values(rng, rows * cols, item), rows, cols)
}

fn values<T>(rng: &mut Rng, len: usize, mut item: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..len).map(|_| item(rng)).collect()
}

fn flags() -> Tensor {
    Tensor::vector(vec![0_u32])
}

/// DeepSeek-V3 routing with a bias; a NaN now and then.
fn topk_router(rng: &mut Rng) -> Case<TopkRouter> {
    const TOKENS: usize = 300;
    let model = preset::DEEPSEEK_V3;
    let router = model.router();
    let mut x = values(rng, TOKENS * model.experts(), |r| r.unit() * 8.0 - 4.0);
    x[rng.below(TOKENS * model.experts())] = f32::NAN;
    let outputs = [TOKENS, router.topk];
    Case::new(router)
        .input("x", Tensor::matrix(x, TOKENS, model.experts()))
        .input("bias", vector(rng, model.experts(), |r| r.unit() * 0.2))
        .output("weights", DType::F32, &outputs)
        .output("indices", DType::I32, &outputs)
        .in_place("flags", flags())
}

/// The same model with experts that are given and recorded, and weights in bf16.
fn replayed_router(rng: &mut Rng) -> Case<TopkRouter> {
    const TOKENS: usize = 300;
    let model = preset::DEEPSEEK_V3;
    let router = model.router();
    let x = matrix(rng, [TOKENS, model.experts()], |r| r.unit() * 8.0 - 4.0);
    // -1 is no pick, and the number of experts no expert.
    let chosen = matrix(rng, [TOKENS, router.topk], |r| r.below(model.experts() + 2) as i32 - 1);
    let outputs = [TOKENS, router.topk];
    Case::new(router)
        .input("x", x)
        .input("chosen", chosen)
        .output("weights", DType::BF16, &outputs)
        .output("indices", DType::I32, &outputs)
        .output("logical", DType::I32, &outputs)
        .in_place("flags", flags())
}

/// Requests of every kind: in a small range, in a large one, anywhere.
fn deduplicate_topk(rng: &mut Rng) -> Case<DeduplicateTopk> {
    const BATCH: usize = 17;
    const STEPS: usize = 3;
    const K: usize = 2048;
    let width = |request: usize| [1 << 14, 1 << 20, 1 << 32][request % 3];
    let values: Vec<i32> =
        (0..BATCH * STEPS * K).map(|i| rng.below(width(i / (STEPS * K))) as u32 as i32).collect();
    Case::new(DeduplicateTopk::new().mtp_step(STEPS))
        .input("indices", Tensor::matrix(values, BATCH * STEPS, K))
        .output("unique", DType::I32, &[BATCH, STEPS * K])
        .output("counts", DType::I32, &[BATCH])
        .output("inverse", DType::I32, &[BATCH * STEPS, K])
}

/// Lossless verification of ragged requests, of which some are greedy.
fn rejection_sample(rng: &mut Rng) -> Case<RejectionSample> {
    const BATCH: usize = 9;
    const DRAFTS: usize = 4;
    const TOKENS: usize = BATCH * DRAFTS;
    const VOCAB: usize = 5003;
    let distributions = |rng: &mut Rng| {
        let mut probs = values(rng, TOKENS * VOCAB, |r| r.unit().powi(8));
        for row in probs.chunks_mut(VOCAB) {
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
        }
        Tensor::matrix(probs, TOKENS, VOCAB)
    };
    let id = |r: &mut Rng| r.below(VOCAB) as i32;
    let mut offsets = values(rng, BATCH + 1, |r| r.below(TOKENS + 1) as i32);
    offsets.sort_unstable();
    Case::new(RejectionSample::lossless(DRAFTS))
        .input("target_probs", distributions(rng))
        .input("draft_probs", distributions(rng))
        .input("draft_token_ids", vector(rng, TOKENS, id))
        .input("bonus_token_ids", vector(rng, BATCH, id))
        .input("cu_num_draft", Tensor::vector(offsets))
        .input("seeds", vector(rng, BATCH, Rng::next))
        .input("positions", vector(rng, BATCH, |r| r.below(1 << 40) as i64))
        .input("greedy", vector(rng, BATCH, |r| r.below(3) as u8 / 2))
        .output("output_token_ids", DType::I32, &[BATCH, DRAFTS + 1])
        .output("num_accepted", DType::I32, &[BATCH])
        .output("accepted_counts", DType::I32, &[BATCH])
        .output("recovered_counts", DType::I32, &[BATCH])
        .output("bonus_counts", DType::I32, &[BATCH])
        .in_place("flags", flags())
}

const REQUESTS: usize = 40;
const PROMPT: usize = 700;
const MODEL: usize = 300;
const SLOTS: usize = 12;

/// The arguments of both n-gram operators, with few distinct tokens, so that patterns
/// recur.
fn texts<O: Subject>(operator: O, generated: &'static str, rng: &mut Rng) -> Case<O> {
    let token = |r: &mut Rng| r.below(12) as i64;
    let below = |bound: usize| move |r: &mut Rng| r.below(bound) as i64;
    Case::new(operator)
        .input("input_ids", matrix(rng, [REQUESTS, PROMPT], token))
        .input("input_ids_len", vector(rng, REQUESTS, below(PROMPT + 1)))
        .input(generated, matrix(rng, [REQUESTS, MODEL], token))
        .input("step_idx", vector(rng, REQUESTS, below(MODEL / 2)))
        .in_place("draft_tokens", matrix(rng, [REQUESTS, SLOTS], |_| -5_i64))
        .in_place("seq_lens_this_time", vector(rng, REQUESTS, |r| r.below(3) as i32))
        .input("seq_lens_decoder", vector(rng, REQUESTS, |r| r.below(8) as i32))
        .input("max_dec_len", Tensor::vector(vec![MODEL as i64; REQUESTS]))
        .in_place("flags", flags())
}

fn ngram_match(rng: &mut Rng) -> Case<NgramMatch> {
    let operator = NgramMatch::default().token_threshold(130);
    texts(operator, "token_ids_all", rng)
        .input("prompt_lens", vector(rng, REQUESTS, |r| r.below(MODEL / 2) as i64))
        .input("draft_token_num", vector(rng, REQUESTS, |r| r.below(8) as i32))
        .input("seq_lens_encoder", vector(rng, REQUESTS, |r| i32::from(r.chance(8))))
}

fn hybrid_mtp_ngram(rng: &mut Rng) -> Case<HybridMtpNgram> {
    let operator = HybridMtpNgram::new(10).max_ngram_size(4).min_ngram_size(2).token_threshold(170);
    texts(operator, "pre_ids", rng)
}

/// Rows that a cluster shares, with top-k and top-p, and their probabilities.
fn sample_logits(rng: &mut Rng) -> Case<SampleLogits> {
    const ROWS: usize = 9;
    const VOCAB: usize = 40_001;
    Case::new(SampleLogits::default())
        .input("logits", matrix(rng, [ROWS, VOCAB], |r| r.unit() * 16.0 - 8.0))
        .input("positions", vector(rng, ROWS, |r| r.below(4096) as i64))
        // Some rows are greedy; top-k keeps many tokens, few, or all.
        .input("temperature", vector(rng, ROWS, |r| r.below(4) as f32 * 0.4))
        .input("seeds", vector(rng, ROWS, Rng::next))
        .input("top_k", vector(rng, ROWS, |r| r.pick(&[0, 50, 5000])))
        .input("top_p", vector(rng, ROWS, |r| 0.5 + r.unit()))
        .output("tokens", DType::I32, &[ROWS])
        .output("probs", DType::F32, &[ROWS, VOCAB])
}

/// Binary trees whose target follows a child now and then.
fn tree_verify(rng: &mut Rng) -> Case<TreeVerify> {
    const BATCH: usize = 33;
    const NODES: usize = 63;
    const PATH: usize = 6;
    let parents: Vec<i32> = (0..NODES as i32).map(|node| (node - 1) / 2).collect();
    let links = tree_verify::Links::from_parents(&parents).expect("a tree");
    let same = |row: &[i32]| Tensor::matrix(row.repeat(BATCH), BATCH, NODES);
    Case::new(TreeVerify::new(PATH - 1))
        .input("draft_tokens", matrix(rng, [BATCH, NODES], |r| r.below(2) as i32))
        .input("target_tokens", matrix(rng, [BATCH, NODES], |r| r.below(2) as i32))
        .input("first_child", same(&links.first_child))
        .input("next_sibling", same(&links.next_sibling))
        .output("tokens", DType::I32, &[BATCH, PATH])
        .output("nodes", DType::I32, &[BATCH, PATH])
        .output("num_tokens", DType::I32, &[BATCH])
}

/// Packed chains whose target follows most of the drafts. Some offsets are bad.
fn packed_chains(rng: &mut Rng) -> Case<TreeVerify> {
    const BATCH: usize = 50;
    const ROWS: usize = 2000;
    const PATH: usize = 40;
    let mut offsets = values(rng, BATCH + 1, |r| r.below(ROWS + 9) as i32);
    offsets.sort_unstable();
    let token = |rng: &mut Rng| i32::from(rng.chance(20));
    Case::new(TreeVerify::new(PATH - 1))
        .input("draft_tokens", vector(rng, ROWS, token))
        .input("target_tokens", vector(rng, ROWS, token))
        .input("row_offsets", Tensor::vector(offsets))
        .output("tokens", DType::I32, &[BATCH, PATH])
        .output("nodes", DType::I32, &[BATCH, PATH])
        .output("num_tokens", DType::I32, &[BATCH])
        .in_place("flags", flags())
}

/// Texts and a corpus of few tokens, so that suffixes occur again.
fn suffix_lookup(rng: &mut Rng) -> Case<SuffixLookup> {
    const BATCH: usize = 40;
    const MAX_LEN: usize = 700;
    const CORPUS: usize = 3000;
    const DRAFTS: usize = 12;
    let matrix_of = |cols| [BATCH, cols];
    Case::new(SuffixLookup::new().width(2).pad_with_last(true))
        .input("tokens", matrix(rng, matrix_of(MAX_LEN), |r| r.below(4) as i32))
        .input("lengths", vector(rng, BATCH, |r| r.below(MAX_LEN + 1) as i32))
        .input("requests", vector(rng, BATCH, |r| r.below(BATCH + 1) as i32 - 1))
        .input("max_drafts", vector(rng, BATCH, |r| r.below(DRAFTS + 2) as i32))
        .input("corpus", vector(rng, CORPUS, |r| r.below(4) as i32))
        .input("corpus_length", vector(rng, 1, |r| r.below(CORPUS + 1) as i32))
        .output("drafts", DType::I32, &matrix_of(DRAFTS))
        .output("counts", DType::I32, &[BATCH])
        .output("first_child", DType::I32, &matrix_of(DRAFTS + 1))
        .output("next_sibling", DType::I32, &matrix_of(DRAFTS + 1))
}

/// Texts of a few hundred tokens with every penalty, more distinct ones than a small table holds.
fn adjust_logits(rng: &mut Rng) -> Case<AdjustLogits> {
    const ROWS: usize = 40;
    const VOCAB: usize = 30_000;
    const MAX: usize = 900;
    let below = |max: usize| move |rng: &mut Rng| rng.below(max) as i32;
    let penalty = |rng: &mut Rng| 0.5 + rng.unit();
    Case::new(AdjustLogits::new())
        .in_place("logits", matrix(rng, [ROWS, VOCAB], Rng::normal))
        .input("tokens", matrix(rng, [ROWS, MAX], below(VOCAB)))
        .input("prompt_lengths", vector(rng, ROWS, below(MAX / 2)))
        .input("lengths", vector(rng, ROWS, |r| r.between(MAX / 2, MAX) as i32))
        .input("repetition", vector(rng, ROWS, penalty))
        .input("frequency", vector(rng, ROWS, penalty))
        .input("presence", vector(rng, ROWS, penalty))
        .input("no_repeat_ngram", vector(rng, ROWS, below(3)))
}

/// Texts that end now and then, by a stop token or their length.
fn append_tokens(rng: &mut Rng) -> Case<AppendTokens> {
    const BATCH: usize = 100;
    const MAX_LEN: usize = 40;
    const NEW: usize = 9;
    let size = |max: usize| move |rng: &mut Rng| rng.below(max + 1) as i32;
    Case::new(AppendTokens::new())
        .in_place("tokens", matrix(rng, [BATCH, MAX_LEN], size(99)))
        .in_place("lengths", vector(rng, BATCH, size(MAX_LEN)))
        .input("new_tokens", matrix(rng, [BATCH, NEW], size(99)))
        .input("new_counts", vector(rng, BATCH, size(NEW)))
        .input("stop_tokens", matrix(rng, [BATCH, 4], size(99)))
        .in_place("finished", vector(rng, BATCH, |r| i32::from(r.chance(5))))
        .output("appended", DType::I32, &[BATCH])
        .output("last_tokens", DType::I32, &[BATCH])
}

/// More picks than a cluster takes, so that three launches follow one another.
fn moe_align(rng: &mut Rng) -> Case<MoeAlign> {
    const TOKENS: usize = 40_000;
    const TOPK: usize = 8;
    const EXPERTS: usize = 300;
    const BLOCK: usize = 16;
    let operator = MoeAlign::new(EXPERTS, BLOCK);
    let capacity = operator.capacity(TOKENS * TOPK).expect("fits an i32");
    Case::new(operator)
        .input("topk_ids", matrix(rng, [TOKENS, TOPK], |r| r.below(EXPERTS) as i32))
        .output("sorted_ids", DType::I32, &[capacity])
        .output("block_experts", DType::I32, &[capacity / BLOCK])
        .output("counts", DType::I32, &[EXPERTS])
        .output("offsets", DType::I32, &[EXPERTS + 1])
        .output("num_padded", DType::I32, &[1])
        .output("inverse", DType::I32, &[TOKENS * TOPK])
}

/// Rows with many ties, longer than a block keeps, and a paged cache. A kernel notes the ranges
/// without the positions that are always chosen, and another one finishes.
fn indexer_topk(rng: &mut Rng) -> Case<IndexerTopk> {
    const ROWS: usize = 5;
    const COLS: usize = 150_000;
    const K: usize = 2048;
    const BLOCK: usize = 64;
    const TABLES: usize = 3;
    let table = [TABLES, COLS.div_ceil(BLOCK)];
    Case::new(IndexerTopk::new(K).block_size(BLOCK).forced_first(4).forced_last(60))
        .input("scores", matrix(rng, [ROWS, COLS], |r| r.below(3000) as f32))
        .input("block_table", matrix(rng, table, |r| r.below(1 << 20) as i32))
        .input("requests", vector(rng, ROWS, |r| r.below(TABLES) as i32))
        .output("indices", DType::I32, &[ROWS, K])
        .output("values", DType::F32, &[ROWS, K])
        .output("slots", DType::I32, &[ROWS, K])
}

/// Texts that several blocks search each.
fn prompt_lookup(rng: &mut Rng) -> Case<PromptLookup> {
    const REQUESTS: usize = 3;
    const MAX: usize = 30_000;
    let operator = PromptLookup::default().max_ngram(6);
    let drafts = [REQUESTS, operator.max_draft];
    Case::new(operator)
        .input("tokens", matrix(rng, [REQUESTS, MAX], |r| r.below(12) as i64))
        .input("lengths", vector(rng, REQUESTS, |r| (MAX / 2 + r.below(20_000)) as i32))
        .output("drafts", DType::I64, &drafts)
        .output("counts", DType::I32, &[REQUESTS])
        .in_place("flags", flags())
}

/// Requests whose texts lie in other rows, with limits.
fn lookup_in_slots(rng: &mut Rng) -> Case<PromptLookup> {
    const SLOTS: usize = 7;
    const REQUESTS: usize = 20;
    const MAX: usize = 3000;
    let operator = PromptLookup::default().pad_with_last(true);
    let drafts = [REQUESTS, operator.max_draft];
    Case::new(operator)
        .input("tokens", matrix(rng, [SLOTS, MAX], |r| r.below(12) as i32))
        .input("lengths", vector(rng, SLOTS, |r| r.below(MAX + 1) as i32))
        .input("requests", vector(rng, REQUESTS, |r| r.below(SLOTS + 2) as i32 - 1))
        .input("max_drafts", vector(rng, REQUESTS, |r| r.below(7) as i32))
        .output("drafts", DType::I64, &drafts)
        .output("counts", DType::I32, &[REQUESTS])
        .in_place("flags", flags())
}

/// Keys with few duplicates or many, and their counts.
fn unique(rng: &mut Rng) -> Case<Unique> {
    const N: usize = 30_000;
    let shift = rng.below(60);
    Case::new(Unique::new())
        .input("keys", vector(rng, N, |r| r.next() >> shift))
        .output("unique", DType::U64, &[N])
        .output("count", DType::U64, &[1])
        .output("counts", DType::U64, &[N])
}
