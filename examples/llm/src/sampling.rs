//! `sample_logits` for the rows of one request.

use spec::ops::sample_logits::{Buffers, SampleLogits};
use spec::{DType, Handle, Signature, TensorDesc};

use crate::Result;
use crate::stopwatch::Stopwatch;

/// The sampling settings of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The temperature; 0 takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all.
    pub top_k: i32,
    /// The share of the probability that is kept; 1 for all.
    pub top_p: f32,
    /// The seed of the random numbers. With the same seed, a position of the text always gets the
    /// same random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Always takes the likeliest token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
}

/// Chooses tokens from logits.
pub struct Sampler {
    handle: Handle,
    sampling: Sampling,
    workspace: Vec<u8>,
}

impl Sampler {
    /// A sampler for one request.
    pub fn new(handle: &Handle, sampling: Sampling) -> Self {
        Sampler { handle: handle.clone(), sampling, workspace: Vec::new() }
    }

    /// Chooses a token after each row of logits, for these positions of the text.
    ///
    /// # Errors
    /// If a logit is not finite, which means that the model is broken; the errors of the operator.
    pub fn choose(
        &mut self,
        logits: &[f32],
        positions: &[i64],
        watch: &mut Stopwatch,
    ) -> Result<Vec<u32>> {
        let rows = positions.len();
        let one = |dtype| Some(TensorDesc::new(dtype, [1]));
        let params = SampleLogits::transformers();
        let mut tensors = params.tensors_of(rows, 1, logits.len() / rows);
        tensors.tokens = TensorDesc::new(DType::U32, [rows]);
        tensors.top_k = one(DType::I32);
        tensors.top_p = one(DType::F32);
        tensors.flags = one(DType::U32);
        let operator = self.handle.create(&params, &tensors)?;
        self.workspace.resize(operator.workspace_size(), 0);
        let (requests, mut tokens, mut flags) = (vec![0i32; rows], vec![0u32; rows], [0u32]);
        let Sampling { temperature, top_k, top_p, seed } = self.sampling;
        let (temperature, top_k, top_p, seeds) = ([temperature], [top_k], [top_p], [seed]);
        let buffers = Buffers::new(logits, positions, &temperature, &seeds, &mut tokens)
            .top_k(&top_k)
            .top_p(&top_p)
            .requests(&requests)
            .flags(&mut flags);
        watch.measure(SampleLogits::NAME, || operator.call(&mut self.workspace, buffers))?;
        anyhow::ensure!(flags == [0], "sample_logits: flags {}: the logits are bad", flags[0]);
        Ok(tokens)
    }
}
