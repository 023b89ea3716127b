//! A decode loop for several requests at once, which share a budget of drafts.
//!
//! A step looks up a tree of candidates for each request ([`SuffixLookup`]), decides which of them
//! are worth a row ([`DraftTree`]), runs the model, chooses a token after each row
//! ([`SampleLogits`]), follows the choices ([`TreeVerify`]) and appends what was kept
//! ([`AppendTokens`]). The operators take the rows of all requests together. The model runs those of
//! one request after those of another, because each [`Llama`] holds the keys and values of one text.

use std::time::{Duration, Instant};

use anyhow::ensure;
use cpu_time::ProcessTime;
use spec::ops::{AppendTokens, DraftTree, SampleLogits, SuffixLookup, TreeVerify};
use spec::ops::{append_tokens, draft_tree, sample_logits, suffix_lookup, tree_verify};
use spec::{DType, Handle, Ready, TensorDesc};

use crate::Result;
use crate::llama::Llama;
use crate::sampling::Sampling;

/// The candidates of a request, which are also its most drafts.
const CANDIDATES: usize = 64;
/// The most drafts behind each node of a tree.
const WIDTH: usize = 2;

/// The trust in a request's drafts before any was verified.
const FIRST_TRUST: f32 = 0.5;
/// By how much trust grows in a step without drafts, so that a request whose drafts were rejected has
/// another one some time later, when its text may repeat. With a row that costs r of a run, a request
/// has no drafts below trust r. A rejected draft takes a quarter of r, which is back after 128 r steps:
/// text that repeats nothing loses 1 of 128 parts of its time.
const GROWTH: f32 = 1.0 / 512.0;

/// How requests share the budget of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each request has an equal part.
    Equal,
    /// The likeliest drafts of all requests, by the shares of `suffix_lookup`.
    Shared,
    /// The same, with a trust in each request, learnt from how many of its drafts stood.
    Trusted,
}

/// What is decoded, apart from the prompts.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The largest number of tokens in an answer.
    pub tokens: usize,
    /// The token that ends an answer.
    pub stop: Option<u32>,
    /// How tokens are chosen. Each request has a seed of its own, counted up from this one.
    pub sampling: Sampling,
    /// How the budget is shared.
    pub sharing: Sharing,
    /// The largest number of drafts in a step, of all requests together; 0 for none.
    pub budget: usize,
    /// The cost of an additional row, as a share of the time of a run with one row:
    /// [`crate::bench::cost_of_a_row`]. Drafts whose estimated chance of being accepted
    /// is below that cost are not verified.
    pub row: f32,
}

/// The result of a call of [`decode`].
pub struct Decoded {
    /// The tokens after each prompt.
    pub answers: Vec<Vec<u32>>,
    /// The number of steps.
    pub steps: usize,
    /// The number of runs: one a step for each request that had not finished.
    pub runs: usize,
    /// The number of drafts that the model was run on.
    pub drafted: usize,
    /// The time of all steps.
    pub total: Duration,
    /// The CPU time of all threads together during `total`.
    pub processors: Duration,
}

impl Decoded {
    /// The number of tokens of all answers.
    pub fn tokens(&self) -> usize {
        self.answers.iter().map(Vec::len).sum()
    }
}

/// The operators of a step. Their sizes do not change from step to step.
struct Operators {
    lookup: Ready<SuffixLookup>,
    tree: Ready<DraftTree>,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    append: Ready<AppendTokens>,
}

impl Operators {
    /// For `batch` requests with texts of up to `most` tokens and up to `n` drafts each, in `rows`
    /// rows.
    fn new(
        handle: &Handle,
        [batch, most, n, rows, vocab]: [usize; 5],
        min_survival: f32,
    ) -> Result<Self> {
        let ints = |len| TensorDesc::new(DType::I32, [len]);
        let table = |columns| TensorDesc::new(DType::I32, [batch, columns]);
        let floats = |len| TensorDesc::new(DType::F32, [len]);
        let shares = TensorDesc::new(DType::F32, [batch, CANDIDATES]);
        let flags = TensorDesc::new(DType::U32, [1]);
        let nodes = n + 1;
        let lookup = SuffixLookup::new().width(WIDTH);
        let lookup_tensors = lookup
            .tensors(DType::I32, batch, most, CANDIDATES)
            .parents(table(CANDIDATES))
            .shares(shares)
            .flags(flags);
        let tree = DraftTree::new().cumulative(true).min_survival(min_survival);
        let mut tree_tensors = tree
            .tensors(DType::I32, batch, CANDIDATES, n)
            .parents(table(CANDIDATES))
            .shares(shares)
            .counts(ints(batch))
            .trust(floats(batch))
            .finished(ints(batch))
            .budget(ints(1))
            .roots(ints(batch))
            .starts(ints(batch))
            .first_child(table(nodes))
            .next_sibling(table(nodes))
            .row_offsets(ints(batch + 1))
            .row_requests(ints(rows))
            .row_parents(ints(rows))
            .row_tokens(ints(rows))
            .row_positions(ints(rows))
            .flags(flags);
        // Drafts lie behind the root, where `tree_verify` reads them.
        tree_tensors.drafts = TensorDesc::with_strides(DType::I32, [batch, n], [nodes as isize, 1]);
        let sample = SampleLogits::transformers();
        let mut sample_tensors = sample
            .tensors_of(rows, batch, vocab)
            .top_k(ints(batch))
            .top_p(floats(batch))
            .requests(ints(rows))
            .flags(flags);
        sample_tensors.positions = ints(rows);
        let verify = TreeVerify::new(n);
        let mut verify_tensors =
            verify.tensors(batch, nodes).row_offsets(ints(batch + 1)).flags(flags);
        verify_tensors.target_tokens = ints(rows);
        let append = AppendTokens::new();
        let append_tensors = append
            .tensors(DType::I32, batch, most, nodes)
            .stop_tokens(table(1))
            .max_lengths(ints(batch))
            .finished(ints(batch))
            .last_tokens(ints(batch))
            .flags(flags);
        Ok(Operators {
            lookup: Ready::new(handle, &lookup, &lookup_tensors)?,
            tree: Ready::new(handle, &tree, &tree_tensors)?,
            sample: Ready::new(handle, &sample, &sample_tensors)?,
            verify: Ready::new(handle, &verify, &verify_tensors)?,
            append: Ready::new(handle, &append, &append_tensors)?,
        })
    }
}

/// What the operators give each other, one array an argument, and the models of the requests.
struct State<'a> {
    models: &'a mut [Llama],
    operators: Operators,
    tokens: Vec<i32>,
    lengths: Vec<i32>,
    last_tokens: Vec<i32>,
    finished: Vec<i32>,
    max_lengths: Vec<i32>,
    stop_tokens: Vec<i32>,
    trust: Vec<f32>,
    candidates: Vec<i32>,
    counts: Vec<i32>,
    parents: Vec<i32>,
    shares: Vec<f32>,
    draft_tokens: Vec<i32>,
    num_drafts: Vec<i32>,
    first_child: Vec<i32>,
    next_sibling: Vec<i32>,
    row_offsets: Vec<i32>,
    row_requests: Vec<i32>,
    row_parents: Vec<i32>,
    row_tokens: Vec<i32>,
    row_positions: Vec<i32>,
    logits: Vec<f32>,
    chosen: Vec<i32>,
    emitted: Vec<i32>,
    path: Vec<i32>,
    num_tokens: Vec<i32>,
    appended: Vec<i32>,
    flags: [u32; 1],
}

impl<'a> State<'a> {
    fn new(
        handle: &Handle,
        models: &'a mut [Llama],
        prompts: &[Vec<u32>],
        options: &Batch,
    ) -> Result<Self> {
        let batch = prompts.len();
        ensure!(batch > 0 && models.len() == batch, "{batch} prompts, {} models", models.len());
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let most = longest + options.tokens;
        let equal = options.sharing == Sharing::Equal && options.budget > 0;
        let n = if equal { options.budget / batch } else { CANDIDATES };
        let (rows, nodes, vocab) = (batch + options.budget, n + 1, models[0].vocab());
        let mut tokens = vec![-1; batch * most];
        let mut last_tokens = Vec::new();
        for ((row, prompt), model) in tokens.chunks_mut(most).zip(prompts).zip(&mut *models) {
            let (last, before) =
                prompt.split_last().ok_or_else(|| anyhow::anyhow!("a prompt is empty"))?;
            row.iter_mut().zip(prompt).for_each(|(to, from)| *to = *from as i32);
            last_tokens.push(*last as i32);
            model.truncate(0);
            model.read_prompt(before)?;
        }
        let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.len() as i32).collect();
        let trust = if options.sharing == Sharing::Trusted { FIRST_TRUST } else { 1.0 };
        Ok(State {
            models,
            operators: Operators::new(handle, [batch, most, n, rows, vocab], options.row)?,
            tokens,
            max_lengths: lengths.iter().map(|length| length + options.tokens as i32).collect(),
            lengths,
            last_tokens,
            finished: vec![0; batch],
            stop_tokens: vec![options.stop.map_or(-1, |stop| stop as i32); batch],
            trust: vec![trust; batch],
            candidates: vec![0; batch * CANDIDATES],
            counts: vec![0; batch],
            parents: vec![0; batch * CANDIDATES],
            shares: vec![0.0; batch * CANDIDATES],
            draft_tokens: vec![0; batch * nodes],
            num_drafts: vec![0; batch],
            first_child: vec![0; batch * nodes],
            next_sibling: vec![0; batch * nodes],
            row_offsets: vec![0; batch + 1],
            row_requests: vec![0; rows],
            row_parents: vec![0; rows],
            row_tokens: vec![0; rows],
            row_positions: vec![0; rows],
            logits: vec![0.0; rows * vocab],
            chosen: vec![0; rows],
            emitted: vec![0; batch * nodes],
            path: vec![0; batch * nodes],
            num_tokens: vec![0; batch],
            appended: vec![0; batch],
            flags: [0],
        })
    }

    /// Fills the packed rows of a step.
    fn draft(&mut self, budget: usize) -> Result<()> {
        let budget = [budget as i32];
        // Without a budget the counts stay 0.
        if budget != [0] {
            let found = suffix_lookup::Buffers::new(
                &self.tokens,
                &self.lengths,
                &mut self.candidates,
                &mut self.counts,
            );
            let found = found.parents(&mut self.parents).shares(&mut self.shares);
            self.operators.lookup.call(found.flags(&mut self.flags))?;
        }
        let kept = draft_tree::Buffers::new(
            &self.candidates,
            &mut self.draft_tokens[1..],
            &mut self.num_drafts,
        );
        let kept = kept
            .parents(&self.parents)
            .shares(&self.shares)
            .counts(&self.counts)
            .trust(&self.trust)
            .finished(&self.finished)
            .budget(&budget)
            .roots(&self.last_tokens)
            // The token after a text's last one is decided at the text's length.
            .starts(&self.lengths)
            .first_child(&mut self.first_child)
            .next_sibling(&mut self.next_sibling)
            .row_offsets(&mut self.row_offsets)
            .row_requests(&mut self.row_requests)
            .row_parents(&mut self.row_parents)
            .row_tokens(&mut self.row_tokens)
            .row_positions(&mut self.row_positions)
            .flags(&mut self.flags);
        Ok(self.operators.tree.call(kept)?)
    }

    /// The rows of each request.
    fn rows(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.row_offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize)
    }

    /// Runs the models and chooses a token after each row.
    fn run(&mut self, sampling: Sampling) -> Result<()> {
        let batch = self.models.len();
        for (request, rows) in self.rows().enumerate().collect::<Vec<_>>() {
            if rows.is_empty() {
                continue;
            }
            let vocab = self.models[request].vocab();
            let tokens = self.row_tokens[rows.clone()].iter().map(|token| *token as u32);
            let parents = self.row_parents[rows.clone()][1..].iter();
            let parents = parents.map(|parent| *parent as usize - rows.start).collect::<Vec<_>>();
            let tokens = tokens.collect::<Vec<_>>();
            let there = &mut self.logits[rows.start * vocab..rows.end * vocab];
            let logits = self.models[request].run_tree(&tokens, &parents)?;
            logits.with(|logits| {
                there.copy_from_slice(logits);
                Ok(())
            })?;
        }
        let Sampling { temperature, top_k, top_p, seed } = sampling;
        let (temperature, top_k) = (vec![temperature; batch], vec![top_k; batch]);
        let (top_p, seeds) = (vec![top_p; batch], (seed..).take(batch).collect::<Vec<_>>());
        let chosen = sample_logits::Buffers::new(
            &self.logits,
            &self.row_positions,
            &temperature,
            &seeds,
            &mut self.chosen,
        );
        let chosen = chosen.top_k(&top_k).top_p(&top_p).requests(&self.row_requests);
        Ok(self.operators.sample.call(chosen.flags(&mut self.flags))?)
    }

    /// Appends the tokens that follow from the choices, and forgets the rows of other drafts.
    fn settle(&mut self) -> Result<()> {
        let followed = tree_verify::Buffers::new(tree_verify::Required {
            draft_tokens: (&self.draft_tokens).into(),
            target_tokens: (&self.chosen).into(),
            tokens: (&mut self.emitted).into(),
            nodes: (&mut self.path).into(),
            num_tokens: (&mut self.num_tokens).into(),
        });
        let followed = followed
            .first_child(&self.first_child)
            .next_sibling(&self.next_sibling)
            .row_offsets(&self.row_offsets);
        self.operators.verify.call(followed.flags(&mut self.flags))?;
        let nodes = self.path.len() / self.models.len();
        for (request, rows) in self.rows().enumerate().collect::<Vec<_>>() {
            if rows.is_empty() {
                continue;
            }
            let path = &self.path[request * nodes..][..self.num_tokens[request] as usize];
            let path = path.iter().map(|node| *node as usize).collect::<Vec<_>>();
            let model = &mut self.models[request];
            model.keep(model.len() - rows.len(), &path)?;
        }
        let longer = append_tokens::Buffers::new(append_tokens::Required {
            tokens: (&mut self.tokens).into(),
            lengths: (&mut self.lengths).into(),
            new_tokens: (&self.emitted).into(),
            new_counts: (&self.num_tokens).into(),
            appended: (&mut self.appended).into(),
        });
        let longer = longer
            .stop_tokens(&self.stop_tokens)
            .max_lengths(&self.max_lengths)
            .finished(&mut self.finished)
            .last_tokens(&mut self.last_tokens);
        Ok(self.operators.append.call(longer.flags(&mut self.flags))?)
    }

    /// Updates the trust in each request. A request of which k drafts were accepted, and the next one
    /// rejected, accepts about k of k + 1 drafts. Without drafts in this step, its trust grows by
    /// [`GROWTH`].
    fn learn(&mut self) {
        let steps = self.appended.iter().zip(&self.num_drafts);
        for (trust, (appended, drafts)) in self.trust.iter_mut().zip(steps) {
            *trust = match drafts {
                0 => (*trust + GROWTH).min(1.0),
                _ => {
                    let kept = (appended - 1).max(0) as f32;
                    0.75 * *trust + 0.25 * kept / (kept + 1.0)
                }
            };
        }
    }
}

/// Continues each prompt with up to `options.tokens` tokens, with one model a prompt.
///
/// # Errors
/// If a prompt is empty, or if a model has no room for prompt, answer and drafts; the errors of the
/// models and of the operators.
pub fn decode(
    handle: &Handle,
    models: &mut [Llama],
    prompts: &[Vec<u32>],
    options: &Batch,
) -> Result<Decoded> {
    let mut state = State::new(handle, models, prompts, options)?;
    let (started, processors) = (Instant::now(), ProcessTime::now());
    let (mut steps, mut runs, mut drafted) = (0, 0, 0);
    while state.finished.contains(&0) {
        steps += 1;
        runs += state.finished.iter().filter(|finished| **finished == 0).count();
        state.draft(options.budget)?;
        drafted += state.num_drafts.iter().map(|drafts| *drafts as usize).sum::<usize>();
        state.run(options.sampling)?;
        state.settle()?;
        ensure!(state.flags == [0], "a step's operators: flags {}", state.flags[0]);
        if options.sharing == Sharing::Trusted {
            state.learn();
        }
    }
    let (total, processors) = (started.elapsed(), processors.elapsed());
    let most = state.tokens.len() / prompts.len();
    let texts = state.tokens.chunks(most).zip(&state.lengths).zip(prompts);
    let answers = texts.map(|((text, length), prompt)| {
        text[prompt.len()..*length as usize].iter().map(|token| *token as u32).collect()
    });
    Ok(Decoded { answers: answers.collect(), steps, runs, drafted, total, processors })
}
