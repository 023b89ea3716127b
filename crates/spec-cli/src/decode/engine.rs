//! The loop of speculative decoding: draft, verify, emit.

use std::time::{Duration, Instant};

use spec::ops::tree_verify::{Buffers, Links, Required, TreeVerify};
use spec::{Buffer, DType, Handle, Signature, TensorDesc};

use super::drafting::{Drafter, Drafts, Progress, as_i32};
use super::model::Model;
use super::sampling::Sampler;
use super::settings::Settings;
use super::stopwatch::Stopwatch;
use crate::{Error, Result};

/// What decoding came to.
pub struct Decoded {
    /// The emitted tokens.
    pub tokens: Vec<u32>,
    /// Runs of the target model.
    pub steps: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafts that were accepted.
    pub accepted: usize,
    /// The time of everything.
    pub total: Duration,
    /// The time of each operator and model.
    pub watch: Stopwatch,
}

/// Decodes from the end of a prompt of at least two tokens. `emitted` is told
/// how many tokens there are after each step.
pub fn decode(
    handle: &Handle,
    model: &Model,
    prompt: &[u32],
    settings: &Settings,
    mut emitted: impl FnMut(usize),
) -> Result<Decoded> {
    let started = Instant::now();
    let mut drafter = Drafter::new(handle, model, prompt, settings)?;
    let mut verifier = Verifier::new(handle, model, settings)?;
    let mut watch = Stopwatch::new(handle);
    let &[.., before, last] = prompt else {
        return Err(Error::Message("a prompt needs two tokens".to_owned()));
    };
    let mut generated = Vec::with_capacity(settings.tokens + 1);
    generated.push(last);
    let (mut steps, mut drafted, mut accepted) = (0, 0, 0);
    while generated.len() <= settings.tokens {
        let context = match generated[..] {
            [.., a, b] => [a, b],
            _ => [before, last],
        };
        let left = settings.tokens + 1 - generated.len();
        let limit = settings.draft_tokens.min(left - 1);
        let position = (prompt.len() + generated.len() - 1) as i64;
        let progress = Progress { generated: &generated, context, limit, position };
        let drafts = drafter.draft(model, settings, &progress, &mut watch)?;
        let tokens = verifier.verify(model, &progress, &drafts, &mut watch)?;
        steps += 1;
        drafted += drafts.tokens.len();
        // The last one is the target's own.
        accepted += tokens.len() - 1;
        generated.extend(tokens);
        emitted(generated.len() - 1);
    }
    let flags = drafter.flags()? | verifier.flags()?;
    if flags != 0 {
        let what = format!("{} found bad data where there is none: flags {flags}", handle.device());
        return Err(Error::Message(what));
    }
    generated.remove(0);
    Ok(Decoded { tokens: generated, steps, drafted, accepted, total: started.elapsed(), watch })
}

/// `sample_logits` after each node of the drafts, then `tree_verify`.
struct Verifier {
    handle: Handle,
    sampler: Sampler,
    workspace: Buffer<u8>,
    draft_tokens: Buffer<i32>,
    target_tokens: Buffer<i32>,
    first_child: Buffer<i32>,
    next_sibling: Buffer<i32>,
    tokens: Buffer<i32>,
    nodes: Buffer<i32>,
    num_tokens: Buffer<i32>,
    flags: Buffer<u32>,
    /// The target's logits after each node.
    rows: Vec<f32>,
    /// The least time of a run of the target.
    run_time: Duration,
}

impl Verifier {
    fn new(handle: &Handle, model: &Model, settings: &Settings) -> Result<Self> {
        let (max, vocab) = (settings.draft_tokens + 1, model.vocab());
        let node = || handle.allocate::<i32>(max);
        Ok(Verifier {
            handle: handle.clone(),
            sampler: Sampler::new(handle, (max, 1), vocab, &settings.sampling, settings.seed)?,
            workspace: handle.allocate(0)?,
            draft_tokens: node()?,
            target_tokens: node()?,
            first_child: node()?,
            next_sibling: node()?,
            tokens: node()?,
            nodes: node()?,
            num_tokens: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
            rows: vec![0.0; max * vocab],
            run_time: settings.model_time.target,
        })
    }

    /// Runs the target model on the drafts, chooses a token after each, and follows
    /// those choices: the tokens emitted.
    fn verify(
        &mut self,
        model: &Model,
        at: &Progress<'_>,
        drafts: &Drafts,
        watch: &mut Stopwatch,
    ) -> Result<Vec<u32>> {
        let vocab = model.vocab();
        // The last two tokens at each node, and the position of what follows it.
        let (mut contexts, mut positions) = (vec![at.context], vec![at.position]);
        for (&token, &parent) in drafts.tokens.iter().zip(&drafts.parents) {
            contexts.push([contexts[parent as usize][1], token]);
            positions.push(positions[parent as usize] + 1);
        }
        let nodes = contexts.len();
        let rows = &mut self.rows[..nodes * vocab];
        // One run, however many drafts there are.
        watch.target.run(self.run_time, || {
            for (row, &context) in rows.chunks_exact_mut(vocab).zip(&contexts) {
                model.target(context, row);
            }
        });
        let chosen = self.sampler.choose(rows, &positions, watch)?;

        let parents: Vec<i32> = [-1].iter().chain(&drafts.parents).copied().collect();
        let links = Links::from_parents(&parents)?;
        let texts: Vec<u32> = contexts.iter().map(|context| context[1]).collect();
        self.draft_tokens.write(&as_i32(&texts))?;
        self.target_tokens.write(&as_i32(&chosen))?;
        self.first_child.write(&links.first_child)?;
        self.next_sibling.write(&links.next_sibling)?;
        let params = TreeVerify::new(nodes - 1);
        let flags = Some(TensorDesc::new(DType::U32, [1]));
        let mut tensors = params.tensors(1, nodes);
        tensors.flags = flags;
        let operator = self.handle.create(&params, &tensors)?;
        if self.workspace.len() < operator.workspace_size() {
            self.workspace = operator.workspace(&self.handle)?;
        }
        let buffers = Buffers::new(Required {
            draft_tokens: (&self.draft_tokens).into(),
            target_tokens: (&self.target_tokens).into(),
            tokens: (&mut self.tokens).into(),
            nodes: (&mut self.nodes).into(),
            num_tokens: (&mut self.num_tokens).into(),
        })
        .first_child(&self.first_child)
        .next_sibling(&self.next_sibling)
        .flags(&mut self.flags);
        watch.measure(TreeVerify::NAME, || operator.call(&mut self.workspace, buffers))?;
        self.emitted(nodes, vocab)
    }

    /// Reads the result and checks that its numbers are in range.
    fn emitted(&self, nodes: usize, vocab: usize) -> Result<Vec<u32>> {
        let count = self.num_tokens.to_vec()?[0];
        let mut tokens = vec![0; nodes];
        self.tokens.read(0, &mut tokens)?;
        let believed = usize::try_from(count).ok().filter(|count| (1..=nodes).contains(count));
        let believed = believed.and_then(|count| {
            let tokens = tokens[..count].iter().map(|&token| u32::try_from(token).ok());
            tokens.map(|token| token.filter(|&token| (token as usize) < vocab)).collect()
        });
        believed.ok_or_else(|| {
            let device = self.handle.device();
            Error::Message(format!(
                "tree_verify on {device} emitted {count} tokens {tokens:?} for {nodes} nodes and \
                 {vocab} tokens"
            ))
        })
    }

    fn flags(&self) -> Result<u32> {
        Ok(self.flags.to_vec()?[0] | self.sampler.flags.to_vec()?[0])
    }
}
