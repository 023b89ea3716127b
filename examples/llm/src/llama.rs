//! The Llama architecture, for several rows (tokens) per run.
//!
//! Every operation works on each row alone, in an order that does not depend on the number of
//! rows. Quantised products, those of candle and of [`crate::blocks`], compute the dot products
//! of each row separately; attention goes over each row's own positions. So the bits of a row's
//! logits do not depend on the other rows of the run. This is why text with drafts equals text
//! without drafts. Products of f32 or f16 matrices do not have this property: their rounding
//! depends on the number of rows.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::rope_i;

use crate::Result;
use crate::slice::with_slice;
#[cfg(target_arch = "x86_64")]
use crate::{attention::attention, blocks::Blocks};

/// How many rows of a prompt are run at a time: as many as candle computes with one pass over the
/// weights.
const PROMPT_ROWS: usize = 16;

/// How the matrices lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// `blocks` on processors with AVX2, else `q8-0`.
    #[default]
    Auto,
    /// 8 bits, in blocks of 32, by this program's product (AVX2).
    Blocks,
    /// As in the file, by candle's product, and so the others.
    File,
    /// 8 bits, in blocks of 32.
    Q8_0,
    /// 4 bits, in blocks of 32.
    Q4_0,
    /// Dequantised. A row's bits then depend on the number of rows.
    F32,
    /// Dequantised. A row's bits then depend on the number of rows.
    F16,
}

impl Weights {
    /// Whether the logits of a row do not depend on the other rows of a run.
    pub fn keep_rows_apart(self) -> bool {
        !matches!(self, Weights::F32 | Weights::F16)
    }

    /// Converts a matrix of the file to this type of weights.
    fn load(self, stored: QTensor) -> Result<Matrix> {
        let device = stored.device();
        let dtype = match self {
            #[cfg(target_arch = "x86_64")]
            Weights::Auto if Blocks::supported() => return Weights::Blocks.load(stored),
            #[cfg(target_arch = "x86_64")]
            Weights::Blocks => {
                return Ok(Matrix::Blocks(Blocks::new(&stored.dequantize(&device)?)?));
            }
            #[cfg(not(target_arch = "x86_64"))]
            Weights::Blocks => bail!("`blocks` are for processors with AVX2"),
            Weights::File => stored.dtype(),
            Weights::Auto | Weights::Q8_0 => GgmlDType::Q8_0,
            Weights::Q4_0 => GgmlDType::Q4_0,
            Weights::F32 => {
                return Ok(Matrix::Candle(QMatMul::Tensor(stored.dequantize(&device)?)));
            }
            Weights::F16 => {
                return Ok(Matrix::Candle(QMatMul::TensorF16(stored.dequantize_f16(&device)?)));
            }
        };
        if dtype == stored.dtype() {
            return Ok(Matrix::Candle(QMatMul::from_qtensor(stored)?));
        }
        let dense = stored.dequantize(&device)?;
        Ok(Matrix::Candle(QMatMul::from_qtensor(QTensor::quantize(&dense, dtype)?)?))
    }
}

/// A matrix `[n, k]`, by whose transpose rows are multiplied.
enum Matrix {
    #[cfg(target_arch = "x86_64")]
    Blocks(Blocks),
    Candle(QMatMul),
}

impl Matrix {
    /// The product of rows `[m, k]` and the transpose: `[m, n]`.
    fn product(&self, rows: &Tensor) -> Result<Tensor> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Matrix::Blocks(blocks) => blocks.product(rows),
            Matrix::Candle(matrix @ QMatMul::TensorF16(_)) => {
                Ok(matrix.forward(&rows.to_dtype(DType::F16)?)?.to_dtype(DType::F32)?)
            }
            Matrix::Candle(matrix) => Ok(matrix.forward(rows)?),
        }
    }
}

struct Layer {
    attention_norm: Tensor,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    mlp_norm: Tensor,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    /// `[1, capacity, kv_heads, head_dim]`; only the first `len` positions of the model are in use.
    keys: Tensor,
    values: Tensor,
}

/// A model and the keys and values of one text.
pub struct Llama {
    embedding: QTensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Matrix,
    /// Cosines (and below sines) of the angles of each position, `[capacity, 1, head_dim / 2]`.
    cos: Tensor,
    sin: Tensor,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    epsilon: f32,
    vocab: usize,
    capacity: usize,
    len: usize,
}

impl Llama {
    /// Reads a GGUF file, with room for a text of `capacity` tokens.
    ///
    /// # Errors
    /// If the file is no GGUF file, lacks a part of the model, or has another architecture.
    pub fn open(path: &Path, weights: Weights, capacity: usize) -> Result<(Self, Content)> {
        let name = || format!("model {}", path.display());
        let mut file = BufReader::new(File::open(path).with_context(name)?);
        let content = Content::read(&mut file).with_context(name)?;
        let model = Self::read(&content, &mut file, weights, capacity).with_context(name)?;
        Ok((model, content))
    }

    fn read<R: Read + Seek>(
        content: &Content,
        file: &mut R,
        weights: Weights,
        capacity: usize,
    ) -> Result<Self> {
        let device = Device::Cpu;
        let value = |key: &str| {
            content.metadata.get(key).with_context(|| format!("its metadata lack {key}"))
        };
        let architecture = value("general.architecture")?.to_string()?;
        if architecture != "llama" {
            bail!("its architecture is {architecture}, expected llama");
        }
        let number = |key: &str| -> Result<usize> { Ok(value(key)?.to_u32()? as usize) };
        let dim = number("llama.embedding_length")?;
        let heads = number("llama.attention.head_count")?;
        let kv_heads = number("llama.attention.head_count_kv").unwrap_or(heads);
        let head_dim = number("llama.rope.dimension_count").unwrap_or(dim / heads);
        let base = value("llama.rope.freq_base").and_then(|v| Ok(v.to_f32()?)).unwrap_or(10_000.0);
        let trained = number("llama.context_length")?;
        ensure!(capacity <= trained, "a text of {capacity} tokens, it was made for {trained}");
        if let Ok(Value::String(scaling)) = value("llama.rope.scaling.type") {
            ensure!(scaling == "none", "rope scaling {scaling} is not computed here");
        }

        let mut tensor = |name: &str| content.tensor(file, name, &device);
        let embedding = tensor("token_embd.weight")?;
        let (vocab, _) = embedding.shape().dims2()?;
        // A file without an output matrix has a tied head: the embedding is used again.
        let head = weights.load(match tensor("output.weight") {
            Ok(output) => output,
            Err(_) => tensor("token_embd.weight")?,
        })?;
        let norm = tensor("output_norm.weight")?.dequantize(&device)?;
        let mut layers = Vec::new();
        for index in 0..number("llama.block_count")? {
            let mut stored = |name: &str| tensor(&format!("blk.{index}.{name}.weight"));
            let cache = || Tensor::zeros((1, capacity, kv_heads, head_dim), DType::F32, &device);
            layers.push(Layer {
                attention_norm: stored("attn_norm")?.dequantize(&device)?,
                query: weights.load(stored("attn_q")?)?,
                key: weights.load(stored("attn_k")?)?,
                value: weights.load(stored("attn_v")?)?,
                output: weights.load(stored("attn_output")?)?,
                mlp_norm: stored("ffn_norm")?.dequantize(&device)?,
                gate: weights.load(stored("ffn_gate")?)?,
                up: weights.load(stored("ffn_up")?)?,
                down: weights.load(stored("ffn_down")?)?,
                keys: cache()?,
                values: cache()?,
            });
        }

        let frequency = |i| base.powf(-2.0 * i as f32 / head_dim as f32);
        let angles: Vec<f32> = (0..capacity)
            .flat_map(|position| (0..head_dim / 2).map(move |i| position as f32 * frequency(i)))
            .collect();
        let angles = Tensor::from_vec(angles, (capacity, 1, head_dim / 2), &device)?;
        Ok(Llama {
            embedding,
            layers,
            norm,
            head,
            cos: angles.cos()?,
            sin: angles.sin()?,
            heads,
            kv_heads,
            head_dim,
            epsilon: value("llama.attention.layer_norm_rms_epsilon")?.to_f32()?,
            vocab,
            capacity,
            len: 0,
        })
    }

    /// The number of tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The number of tokens whose keys and values are in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest number of tokens in a text.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets every token from `len` on. This costs nothing: the keys and values of later
    /// tokens overwrite those of the forgotten ones.
    ///
    /// # Panics
    /// If the cache has fewer than `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} tokens of {}", self.len);
        self.len = len;
    }

    /// Runs tokens after those in the cache, and returns the logits after each token,
    /// `[tokens, vocab]`.
    ///
    /// # Errors
    /// If the tokens do not fit into the cache, or if a token is not in the vocabulary.
    pub fn run(&mut self, tokens: &[u32]) -> Result<Logits> {
        let parents: Vec<usize> = (0..tokens.len().saturating_sub(1)).collect();
        self.run_tree(tokens, &parents)
    }

    /// As [`run`](Self::run), for the nodes of a tree: row i + 1 follows the row `parents[i]`, one
    /// of the rows above it. A row has the logits that it would have if its path were the text.
    /// [`keep`](Self::keep) then makes a path the text.
    ///
    /// # Errors
    /// As [`run`](Self::run); if the tree is no chain and the weights are not `blocks`.
    pub fn run_tree(&mut self, tokens: &[u32], parents: &[usize]) -> Result<Logits> {
        let rows = self.hidden(tokens, parents)?;
        Ok(Logits(self.head.product(&rms_norm(&rows, &self.norm, self.epsilon)?)?))
    }

    /// Whether [`run_tree`](Self::run_tree) takes trees that are no chains.
    pub fn has_trees(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.layers.iter().all(|layer| matches!(layer.query, Matrix::Blocks(_)));
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Keeps `rows` of the last run, which began behind `start` tokens, and forgets its other
    /// rows. `rows` is a path in order.
    ///
    /// # Errors
    /// The errors of candle.
    ///
    /// # Panics
    /// If the cache has fewer rows.
    pub fn keep(&mut self, start: usize, rows: &[usize]) -> Result<()> {
        for (to, from) in rows.iter().enumerate().filter(|(to, from)| to != *from) {
            for cache in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
                let row = cache.narrow(1, start + from, 1)?.copy()?;
                cache.slice_set(&row, 1, start + to)?;
            }
        }
        self.truncate(start + rows.len());
        Ok(())
    }

    /// Runs tokens only to put their keys and values into the cache, without logits.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn read_prompt(&mut self, tokens: &[u32]) -> Result<()> {
        for rows in tokens.chunks(PROMPT_ROWS) {
            self.hidden(rows, &(0..rows.len() - 1).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn hidden(&mut self, tokens: &[u32], parents: &[usize]) -> Result<Tensor> {
        let (rows, start) = (tokens.len(), self.len);
        let end = start + rows;
        ensure!(end <= self.capacity, "{end} tokens, there is room for {}", self.capacity);
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.vocab) {
            bail!("token {token} is outside of the vocabulary of {}", self.vocab);
        }
        let paths = paths(rows, parents)?;
        // A row is as far behind the text so far as its path is long.
        let positions = paths.iter().map(|path| (start + path.len() - 1) as u32);
        let positions = Tensor::from_iter(positions, &Device::Cpu)?;
        let (cos, sin) =
            (self.cos.index_select(&positions, 0)?, self.sin.index_select(&positions, 0)?);
        let rotate = |x: Tensor, heads| -> Result<Tensor> {
            // candle gets each row as a sequence of its own, with the angles of the row's position.
            let turned = rope_i(&x.reshape((rows, heads, 1, self.head_dim))?, &cos, &sin)?;
            Ok(turned.reshape((1, rows, heads, self.head_dim))?)
        };
        let mut x = self.embedding.embedding(&Tensor::new(tokens, &Device::Cpu)?)?;
        for layer in &self.layers {
            let input = rms_norm(&x, &layer.attention_norm, self.epsilon)?;
            let query = rotate(layer.query.product(&input)?, self.heads)?;
            let key = rotate(layer.key.product(&input)?, self.kv_heads)?;
            let value = layer.value.product(&input)?.reshape(key.shape())?;
            layer.keys.slice_set(&key, 1, start)?;
            layer.values.slice_set(&value, 1, start)?;
            let seen = self.attend(layer, &query, start, &paths)?;
            x = (x + layer.output.product(&seen)?)?;

            let input = rms_norm(&x, &layer.mlp_norm, self.epsilon)?;
            let gate = silu(&layer.gate.product(&input)?)?;
            x = (&x + layer.down.product(&(gate * layer.up.product(&input)?)?)?)?;
        }
        self.len = end;
        Ok(x)
    }

    /// The attention of `query` `[1, rows, heads, head_dim]`: `[rows, heads * head_dim]`.
    fn attend(
        &self,
        layer: &Layer,
        query: &Tensor,
        start: usize,
        paths: &[Vec<usize>],
    ) -> Result<Tensor> {
        let rows = query.dim(1)?;
        let shape = (rows, self.heads * self.head_dim);
        #[cfg(target_arch = "x86_64")]
        if let Matrix::Blocks(_) = layer.query {
            let (keys, values) = (layer.keys.squeeze(0)?, layer.values.squeeze(0)?);
            return attention(&query.reshape(shape)?, &keys, &values, start, paths);
        }
        let is_chain = paths.iter().enumerate().all(|(row, path)| path.len() == row + 1);
        ensure!(is_chain, "a tree of drafts needs weights of `blocks`, on a processor with AVX2");
        let keys = layer.keys.narrow(1, 0, start + rows)?;
        let values = layer.values.narrow(1, 0, start + rows)?;
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let mask = AttnMask::causal_with_offset(start);
        let seen = flash_attn::<f32>(query, &keys, &values, scale, mask, None, None)?;
        Ok(seen.transpose(1, 2)?.reshape(shape)?)
    }
}

/// For each row, the rows on its path from row 0, itself included, in order.
fn paths(rows: usize, parents: &[usize]) -> Result<Vec<Vec<usize>>> {
    ensure!(parents.len() + 1 == rows.max(1), "{rows} rows with {} parents", parents.len());
    let mut paths: Vec<Vec<usize>> = (0..rows.min(1)).map(|root| vec![root]).collect();
    for (row, &parent) in (1..).zip(parents) {
        let path = paths.get(parent).with_context(|| format!("row {row} follows row {parent}"))?;
        paths.push(path.iter().copied().chain([row]).collect());
    }
    Ok(paths)
}

/// The logits of a few rows, in candle's memory.
pub struct Logits(Tensor);

impl Logits {
    /// Calls `then` with the logits as one slice, row after row.
    ///
    /// # Errors
    /// The error of `then`.
    pub fn with<T>(&self, then: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
        with_slice(&self.0, then)
    }
}
