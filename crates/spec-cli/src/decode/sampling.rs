//! `sample_logits` for the rows of one request.

use spec::ops::sample_logits::{Buffers, SampleLogits};
use spec::{Buffer, DType, Handle, Result, Signature, TensorDesc};

use super::settings::Sampling;
use super::stopwatch::Stopwatch;

/// Chooses tokens from logits.
pub struct Sampler {
    handle: Handle,
    vocab: usize,
    /// Tokens that are drawn from each row.
    draws: usize,
    workspace: Buffer<u8>,
    logits: Buffer<f32>,
    positions: Buffer<i64>,
    temperature: Buffer<f32>,
    seeds: Buffer<u64>,
    top_k: Buffer<i32>,
    top_p: Buffer<f32>,
    min_p: Buffer<f32>,
    /// The request of each row: always the only one.
    requests: Buffer<i32>,
    tokens: Buffer<i32>,
    pub flags: Buffer<u32>,
}

impl Sampler {
    /// For at most `rows` rows of `vocab` logits at a time, from each of which `draws` tokens are
    /// drawn.
    pub fn new(
        handle: &Handle,
        (rows, draws): (usize, usize),
        vocab: usize,
        sampling: &Sampling,
        seed: u64,
    ) -> Result<Self> {
        Ok(Sampler {
            handle: handle.clone(),
            vocab,
            draws,
            workspace: handle.allocate(0)?,
            logits: handle.allocate(rows * vocab)?,
            positions: handle.allocate(rows)?,
            temperature: handle.upload(&[sampling.temperature])?,
            seeds: handle.upload(&[seed])?,
            top_k: handle.upload(&[sampling.top_k])?,
            top_p: handle.upload(&[sampling.top_p])?,
            min_p: handle.upload(&[sampling.min_p])?,
            requests: handle.upload(&vec![0; rows])?,
            tokens: handle.allocate(rows * draws)?,
            flags: handle.upload(&[0])?,
        })
    }

    /// A token for each row of logits, at that position of the text.
    pub fn choose(
        &mut self,
        logits: &[f32],
        positions: &[i64],
        watch: &mut Stopwatch,
    ) -> Result<Vec<u32>> {
        let drawn = self.draw(logits, positions, watch)?;
        // The first draw of a row is always a token of the vocabulary.
        Ok(drawn.iter().step_by(self.draws).map(|&token| token as u32).collect())
    }

    /// The draws of each row of logits, at that position of the text, one row behind the other; -1
    /// where the filters keep fewer tokens.
    pub fn draw(
        &mut self,
        logits: &[f32],
        positions: &[i64],
        watch: &mut Stopwatch,
    ) -> Result<Vec<i32>> {
        let params = SampleLogits::transformers();
        let vector = |dtype, len| Some(TensorDesc::new(dtype, [len]));
        let mut tensors = params.tensors_of(positions.len(), 1, self.vocab);
        tensors.tokens = TensorDesc::new(DType::I32, [positions.len(), self.draws]);
        tensors.top_k = vector(DType::I32, 1);
        tensors.top_p = vector(DType::F32, 1);
        tensors.min_p = vector(DType::F32, 1);
        tensors.flags = vector(DType::U32, 1);
        // For as many rows as there are: made anew at each step.
        let operator = self.handle.create(&params, &tensors)?;
        if self.workspace.len() < operator.workspace_size() {
            self.workspace = operator.workspace(&self.handle)?;
        }
        self.logits.write(logits)?;
        self.positions.write(positions)?;
        let buffers = Buffers::new(
            &self.logits,
            &self.positions,
            &self.temperature,
            &self.seeds,
            &mut self.tokens,
        )
        .top_k(&self.top_k)
        .top_p(&self.top_p)
        .min_p(&self.min_p)
        .requests(&self.requests)
        .flags(&mut self.flags);
        watch.measure(SampleLogits::NAME, || operator.call(&mut self.workspace, buffers))?;
        let mut tokens = vec![0; positions.len() * self.draws];
        self.tokens.read(0, &mut tokens)?;
        Ok(tokens)
    }
}
