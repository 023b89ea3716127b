//! The decode loop. Each step drafts tokens, runs the model once on the last token and the
//! drafts, a chain or a tree, chooses a token after each of these rows, and keeps the drafts that equal the
//! chosen tokens.

use std::time::{Duration, Instant};

use anyhow::ensure;
use cpu_time::ProcessTime;
use spec::ops::tree_verify::{Buffers, Links, Required, TreeVerify};
use spec::{DType, Handle, Signature, TensorDesc};

use crate::Result;
use crate::draft::Draft;
use crate::drafting::Drafter;
use crate::lengths::{Allowance, Lengths, Trust};
use crate::llama::Llama;
use crate::sampling::{Sampler, Sampling};
use crate::stopwatch::Stopwatch;

/// After this many steps without drafts, a drafter whose drafts cost time is tried again.
const TRY_AGAIN: usize = 16;

/// The settings of a call of [`decode`].
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The largest number of tokens in the answer.
    pub tokens: usize,
    /// The token that ends the answer.
    pub stop: Option<u32>,
    /// The largest number of drafts in a step.
    pub max_draft: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The cost of an additional row, as a share of the time of a run with one row:
    /// [`crate::bench::cost_of_a_row`].
    pub row: f64,
}

/// The result of a call of [`decode`].
pub struct Decoded {
    /// The tokens after the prompt.
    pub tokens: Vec<u32>,
    /// The number of runs of the model after the prompt.
    pub steps: usize,
    /// The number of drafts that the model was run on.
    pub drafted: usize,
    /// The number of drafts that were accepted.
    pub accepted: usize,
    /// The time of running the model on the prompt, except its last token.
    pub prompt: Duration,
    /// The time from the end of the prompt to the last token of the answer.
    pub total: Duration,
    /// The CPU time of all threads together during `total`.
    pub processors: Duration,
    /// The times of the parts of `total`.
    pub watch: Stopwatch,
}

impl Decoded {
    /// Tokens per second after the prompt.
    pub fn speed(&self) -> f64 {
        self.tokens.len() as f64 / self.total.as_secs_f64()
    }
}

/// Continues a prompt with up to `request.tokens` tokens. After each step, `written` gets the
/// step's tokens.
///
/// # Errors
/// If the prompt is empty, or if the model has no room for prompt and answer; the errors of
/// drafting, of the model, of the operators and of `written`.
pub fn decode(
    handle: &Handle,
    model: &mut Llama,
    drafter: &mut Drafter,
    prompt: &[u32],
    request: &Request,
    mut written: impl FnMut(&[u32]) -> Result<()>,
) -> Result<Decoded> {
    let (max, room) = (prompt.len() + request.tokens, model.capacity());
    ensure!(!prompt.is_empty(), "the prompt is empty");
    ensure!(max <= room, "prompt and answer have {max} tokens, there is room for {room}");
    let mut sampler = Sampler::new(handle, request.sampling);
    let mut verifier = Verifier { handle, workspace: Vec::new() };
    // If drafting is free, `lengths` learns from drafts that are not run, so the first estimate
    // can be low. If drafting costs time, a low first estimate would prevent any draft.
    let hope = if drafter.costs() { 0.7 } else { 0.2 };
    let mut lengths = Lengths::new(drafter.kinds(), request.max_draft, request.row, hope);
    let mut trust = Trust::new(drafter.kinds(), request.row);
    let mut allowance = Allowance::new(request.row);
    let mut watch = Stopwatch::default();

    let started = Instant::now();
    model.truncate(0);
    model.read_prompt(&prompt[..prompt.len() - 1])?;
    let read = started.elapsed();
    let processors = ProcessTime::now();

    let mut text = prompt.to_vec();
    let (mut steps, mut drafted, mut accepted, mut without) = (0, 0, 0, 0);
    let ended = |text: &[u32]| request.stop.is_some() && text.last().copied() == request.stop;
    while text.len() < max && (text.len() == prompt.len() || !ended(&text)) {
        let limit = request.max_draft.min(max - text.len() - 1);
        let affordable = allowance.at_most(limit);
        let drafts = if drafter.costs() {
            let worth = lengths.choose(0, affordable);
            let again = usize::from(without >= TRY_AGAIN).min(affordable);
            let draft = drafter.draft(&text, worth.max(again), &mut watch)?;
            lengths.drafted(text.len(), draft.kind, draft.tokens.clone());
            draft
        } else {
            let mut draft = drafter.draft(&text, limit, &mut watch)?;
            let max = draft.tokens.len().min(affordable);
            let worth = if draft.shares.is_empty() {
                lengths.drafted(text.len(), draft.kind, draft.tokens.clone());
                lengths.choose(draft.kind, max)
            } else {
                trust.drafted(text.len(), draft.clone());
                trust.choose(&draft, max)
            };
            draft.truncate(worth);
            draft
        };
        let count = drafts.tokens.len();
        without = if count == 0 { without + 1 } else { 0 };

        let kept = model.len();
        let rows = [&text[kept..], &drafts.tokens].concat();
        let logits = watch.measure("the model", || model.run_tree(&rows, &drafts.parents))?;
        let places = drafts.depths().map(|depth| (text.len() + depth) as i64).collect::<Vec<_>>();
        let chosen = logits.with(|logits| sampler.choose(logits, &places, &mut watch))?;
        let (mut tokens, path) = verifier.follow(&rows, &drafts, &chosen, &mut watch)?;
        // Gives back the places of the rejected rows in the cache.
        model.keep(kept, &path)?;
        steps += 1;
        drafted += count;
        accepted += tokens.len() - 1;
        allowance.settle(count, tokens.len() - 1);
        if let Some(end) = tokens.iter().position(|token| Some(*token) == request.stop) {
            tokens.truncate(end + 1);
        }
        text.extend(&tokens);
        lengths.observe(&text);
        trust.observe(&text);
        written(&tokens)?;
    }
    let (total, processors) = (started.elapsed() - read, processors.elapsed());
    let tokens = text.split_off(prompt.len());
    Ok(Decoded { tokens, steps, drafted, accepted, prompt: read, total, processors, watch })
}

/// `tree_verify` for the drafts of one request.
struct Verifier<'a> {
    handle: &'a Handle,
    workspace: Vec<u8>,
}

impl Verifier<'_> {
    /// The tokens that a step emits, and the row after which each was chosen. `rows` are the
    /// text's last token and the drafts; `chosen` has the token that the model chose after each
    /// row.
    fn follow(
        &mut self,
        rows: &[u32],
        drafts: &Draft,
        chosen: &[u32],
        watch: &mut Stopwatch,
    ) -> Result<(Vec<u32>, Vec<usize>)> {
        let nodes = rows.len();
        let params = TreeVerify::new(nodes - 1);
        let tree = TensorDesc::new(DType::U32, [1, nodes]);
        let mut tensors = params.tensors(1, nodes);
        tensors.draft_tokens = tree;
        tensors.target_tokens = tree;
        tensors.tokens = tree;
        tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
        let operator = self.handle.create(&params, &tensors)?;
        self.workspace.resize(operator.workspace_size(), 0);
        let parents = drafts.parents.iter().map(|parent| *parent as i32);
        let links = Links::from_parents(&[-1].into_iter().chain(parents).collect::<Vec<_>>())?;
        let (mut tokens, mut path) = (vec![0u32; nodes], vec![0i32; nodes]);
        let (mut num_tokens, mut flags) = ([0i32], [0u32]);
        let buffers = Buffers::new(Required {
            draft_tokens: rows.into(),
            target_tokens: chosen.into(),
            tokens: (&mut tokens).into(),
            nodes: (&mut path).into(),
            num_tokens: (&mut num_tokens).into(),
        })
        .first_child(&links.first_child)
        .next_sibling(&links.next_sibling)
        .flags(&mut flags);
        watch.measure(TreeVerify::NAME, || operator.call(&mut self.workspace, buffers))?;
        ensure!(flags == [0], "tree_verify: flags {}", flags[0]);
        tokens.truncate(num_tokens[0] as usize);
        let path = path[..tokens.len()].iter().map(|node| *node as usize);
        Ok((tokens, path.collect()))
    }
}
