//! How often a draft model and the target model choose the same token, by three ways to draw.
//!
//! The target writes a text. At each of its positions both models see the same tokens before it, so
//! that each has a distribution of the next token: `p` the target's, `q` the draft model's. The
//! share of positions and seeds at which both draw the same token is what a decode loop accepts of
//! first drafts.
//!
//! A [head](frequent) of fewer tokens can stand for the draft model's own. It draws in two ways: its
//! columns race on the noise of the tokens that they stand for, or each on that of its own number.

use std::cmp::Reverse;

use anyhow::{Context, ensure};
use spec::ops::sample_logits::{Buffers, SampleLogits};
use spec::philox::{Draw, Purpose};
use spec::{DType, Descriptor, Handle, TensorDesc};

use crate::Result;
use crate::llama::Llama;
use crate::sampling::Sampling;

/// The number of seeds that draw at each position.
const SEEDS: usize = 32;

/// Sums over positions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    /// The number of positions.
    pub positions: usize,
    /// The number of draws: positions times seeds.
    pub draws: usize,
    /// The number of draws in which the races of both models had the same winner.
    pub race: usize,
    /// The number of draws in which running sums of both distributions, in the order of the tokens'
    /// ids, reached the same uniform number at the same token.
    pub sums: usize,
    /// The sum of 1 - TV(p, q), the probability with which rejection sampling accepts a draft. TV is
    /// the distance in total variation, half the sum of |p - q|.
    pub overlap: f64,
    /// The same with a head of fewer tokens; zeros without one.
    pub head: HeadSums,
}

/// Sums over positions, for a head of fewer tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadSums {
    /// The number of draws in which the target's token is one of the head's.
    pub within: usize,
    /// The number of draws that agree where each column races on its token's noise.
    pub mapped: usize,
    /// The number of draws that agree where each column races on the noise of its own number.
    pub unmapped: usize,
    /// The sum of 1 - TV(p, q), q being the distribution that the head has.
    pub overlap: f64,
}

impl Agreement {
    /// The share of draws that agree by the race.
    pub fn by_race(&self) -> f64 {
        self.race as f64 / self.draws as f64
    }

    /// The share of draws that agree by running sums.
    pub fn by_sums(&self) -> f64 {
        self.sums as f64 / self.draws as f64
    }

    /// The mean of 1 - TV.
    pub fn by_rejection(&self) -> f64 {
        self.overlap / self.positions as f64
    }

    /// Adds the sums of another text.
    pub fn add(&mut self, other: &Agreement) {
        self.positions += other.positions;
        self.draws += other.draws;
        self.race += other.race;
        self.sums += other.sums;
        self.overlap += other.overlap;
        self.head.within += other.head.within;
        self.head.mapped += other.head.mapped;
        self.head.unmapped += other.head.unmapped;
        self.head.overlap += other.head.overlap;
    }
}

/// The `count` most frequent tokens of `texts`, the most frequent first, of a vocabulary of `vocab`.
/// Of tokens that are equally frequent, such as those that no text has, the lower comes first: in
/// byte-pair encoding, that of the earlier merge.
///
/// # Errors
/// If the vocabulary has not as many tokens, or lacks one of the texts'.
pub fn frequent(texts: &[Vec<u32>], vocab: usize, count: usize) -> Result<Vec<u32>> {
    ensure!((1..=vocab).contains(&count), "a head of {count} tokens, there are {vocab}");
    let mut counts = vec![0_usize; vocab];
    for &token in texts.iter().flatten() {
        let here = counts.get_mut(token as usize);
        *here.with_context(|| format!("token {token} of a vocabulary of {vocab}"))? += 1;
    }
    let mut tokens: Vec<u32> = (0..vocab as u32).collect();
    tokens.sort_by_key(|&token| (Reverse(counts[token as usize]), token));
    tokens.truncate(count);
    Ok(tokens)
}

/// Lets the target write `tokens` tokens after a prompt, with the first seed, and counts at each of
/// them how often the draft model agrees, and how often it does with a head that has the tokens of
/// `head` alone.
///
/// # Errors
/// If a model has no room for prompt and text, or other tokens than the other model; the errors of
/// the models and of the operator.
pub fn measure(
    handle: &Handle,
    (target, draft): (&mut Llama, &mut Llama),
    prompt: &[u32],
    tokens: usize,
    sampling: Sampling,
    head: Option<&[u32]>,
) -> Result<Agreement> {
    ensure!(target.vocab() == draft.vocab(), "the draft model has other tokens");
    let (last, before) = prompt.split_last().ok_or_else(|| anyhow::anyhow!("no prompt"))?;
    for model in [&mut *target, &mut *draft] {
        model.truncate(0);
        model.read_prompt(before)?;
    }
    let mut sampler = Sampler::new(handle, target.vocab(), None, sampling)?;
    let mut head = head.map(|tokens| Head::new(handle, tokens, sampling)).transpose()?;
    let mut sums = Agreement::default();
    let mut last = *last;
    for position in prompt.len()..prompt.len() + tokens {
        let p = target.run(&[last])?.with(|logits| sampler.draw(logits, position))?;
        let q = draft.run(&[last])?.with(|logits| {
            if let Some(head) = &mut head {
                head.count(&p, logits, position, &mut sums.head)?;
            }
            sampler.draw(logits, position)
        })?;
        sums.positions += 1;
        sums.draws += SEEDS;
        sums.race += p.tokens.iter().zip(&q.tokens).filter(|(p, q)| p == q).count();
        let (p_sums, q_sums) = (running_sums(&p.probs), running_sums(&q.probs));
        for &seed in &sampler.seeds {
            let u = Draw::at(seed, position as i64, Purpose::Sample).uniform();
            sums.sums += usize::from(reach(&p_sums, u) == reach(&q_sums, u));
        }
        let both = p.probs.iter().zip(&q.probs).map(|(p, q)| f64::from(p.min(*q)));
        sums.overlap += both.sum::<f64>();
        last = p.tokens[0] as u32;
    }
    Ok(sums)
}

fn running_sums(probs: &[f32]) -> Vec<f64> {
    let add = |sum: &mut f64, prob: &f32| {
        *sum += f64::from(*prob);
        Some(*sum)
    };
    probs.iter().scan(0.0, add).collect()
}

/// The first token whose running sum is above the share `u` of the whole.
fn reach(sums: &[f64], u: f32) -> usize {
    let whole = sums.last().copied().unwrap_or(0.0);
    sums.partition_point(|sum| *sum <= f64::from(u) * whole)
}

/// A token for each seed, and what they were drawn from.
struct Drawn {
    tokens: Vec<i32>,
    probs: Vec<f32>,
}

/// A head of fewer tokens.
struct Head {
    /// The token of each column.
    tokens: Vec<i32>,
    mapped: Sampler,
    unmapped: Sampler,
}

impl Head {
    fn new(handle: &Handle, tokens: &[u32], sampling: Sampling) -> Result<Self> {
        let tokens: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        let mapped = Sampler::new(handle, tokens.len(), Some(tokens.clone()), sampling)?;
        let unmapped = Sampler::new(handle, tokens.len(), None, sampling)?;
        Ok(Head { tokens, mapped, unmapped })
    }

    /// Draws from the head's part of the draft model's logits, and counts what equals the target's.
    fn count(
        &mut self,
        target: &Drawn,
        logits: &[f32],
        position: usize,
        sums: &mut HeadSums,
    ) -> Result<()> {
        let logits: Vec<f32> = self.tokens.iter().map(|token| logits[*token as usize]).collect();
        let mapped = self.mapped.draw(&logits, position)?;
        let unmapped = self.unmapped.draw(&logits, position)?;
        for (seed, token) in target.tokens.iter().enumerate() {
            sums.within += usize::from(self.tokens.contains(token));
            sums.mapped += usize::from(mapped.tokens[seed] == *token);
            sums.unmapped += usize::from(self.tokens[unmapped.tokens[seed] as usize] == *token);
        }
        let of_target = self.tokens.iter().map(|token| target.probs[*token as usize]);
        let both = of_target.zip(&mapped.probs).map(|(p, q)| f64::from(p.min(*q)));
        sums.overlap += both.sum::<f64>();
        Ok(())
    }
}

/// Draws with many seeds from one row of logits.
struct Sampler {
    /// A row for each seed, for the tokens.
    each_seed: Descriptor<SampleLogits>,
    /// One row, for the probabilities, which do not depend on the seed.
    one_seed: Descriptor<SampleLogits>,
    workspace: Vec<u8>,
    seeds: Vec<u64>,
    /// The token that each column stands for; its own number if absent.
    token_ids: Option<Vec<i32>>,
    sampling: Sampling,
}

impl Sampler {
    fn new(
        handle: &Handle,
        vocab: usize,
        token_ids: Option<Vec<i32>>,
        sampling: Sampling,
    ) -> Result<Self> {
        let params = SampleLogits::transformers();
        let tensors = |rows| {
            let mut tensors = params
                .tensors(rows, vocab)
                .top_k(TensorDesc::new(DType::I32, [rows]))
                .top_p(TensorDesc::new(DType::F32, [rows]))
                .flags(TensorDesc::new(DType::U32, [1]));
            tensors.token_ids = token_ids.as_ref().map(|_| TensorDesc::new(DType::I32, [vocab]));
            tensors
        };
        let probs = TensorDesc::new(DType::F32, [1, vocab]);
        let each_seed = handle.create(&params, &tensors(SEEDS))?;
        let one_seed = handle.create(&params, &tensors(1).probs(probs))?;
        let workspace = vec![0; each_seed.workspace_size().max(one_seed.workspace_size())];
        // Seeds that follow one another give independent numbers.
        let seeds = (sampling.seed..).take(SEEDS).collect();
        Ok(Sampler { each_seed, one_seed, workspace, seeds, token_ids, sampling })
    }

    fn draw(&mut self, logits: &[f32], position: usize) -> Result<Drawn> {
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        let positions = [position as i64; SEEDS];
        let (temperature, top_k, top_p) = ([temperature; SEEDS], [top_k; SEEDS], [top_p; SEEDS]);
        let (mut tokens, mut token, mut flags) = ([0i32; SEEDS], [0i32], [0u32]);
        let rows = logits.repeat(SEEDS);
        let mut buffers = Buffers::new(&rows, &positions, &temperature, &self.seeds, &mut tokens)
            .top_k(&top_k)
            .top_p(&top_p)
            .flags(&mut flags);
        buffers.token_ids = self.token_ids.as_ref().map(Into::into);
        self.each_seed.call(&mut self.workspace, buffers)?;
        let mut probs = vec![0f32; logits.len()];
        let seed = &self.seeds[..1];
        let mut buffers =
            Buffers::new(logits, &positions[..1], &temperature[..1], seed, &mut token)
                .top_k(&top_k[..1])
                .top_p(&top_p[..1])
                .probs(&mut probs)
                .flags(&mut flags);
        buffers.token_ids = self.token_ids.as_ref().map(Into::into);
        self.one_seed.call(&mut self.workspace, buffers)?;
        ensure!(flags == [0], "sample_logits: flags {}: the logits are bad", flags[0]);
        Ok(Drawn { tokens: tokens.to_vec(), probs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_sum_is_reached_at_the_token_that_owns_the_share() {
        let sums = running_sums(&[0.25, 0.0, 0.5, 0.25]);
        assert_eq!([0.0, 0.2, 0.25, 0.74, 0.75, 0.99].map(|u| reach(&sums, u)), [0, 0, 2, 2, 3, 3]);
    }

    #[test]
    fn frequent_tokens_come_first_and_then_low_ones() {
        let texts = [vec![3, 5, 3], vec![5, 1, 3]];
        assert_eq!(frequent(&texts, 6, 5).unwrap(), [3, 5, 1, 0, 2]);
        assert!(frequent(&texts, 6, 7).is_err());
        assert!(frequent(&texts, 5, 5).is_err());
    }
}
