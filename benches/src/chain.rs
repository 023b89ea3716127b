//! Operators of which each reads what the one before it wrote, as an engine calls them: one
//! row, timed as a whole with and without dependent launch, and each operator alone.

#[path = "../../tests/common/chains.rs"]
mod chains;
mod decode_tail;
mod decode_tail_trees;

pub(crate) use decode_tail::DecodeTail;
pub(crate) use decode_tail_trees::DecodeTailTrees;

use std::cell::OnceCell;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use spec::cuda::Cuda;
use spec::ops::topk_router::preset;
use spec::ops::{
    DeduplicateTopk, IndexerTopk, MoeAlign, TopkRouter, deduplicate_topk, indexer_topk, moe_align,
    topk_router,
};
use spec::stream::Kind;
use spec::{
    Backend, Buffer, DType, Device, Handle, Ready, Result, Stream, TensorDesc, Timed, Timing,
    timing,
};
use spec_conformance::{Failure, Tensor};

use crate::files;
use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError, words_of};
use crate::work::{DEPENDENT, Effort, Implementation, Inputs, OnDevice};
use crate::{Goal, Row};

/// A chain of operators.
pub(crate) trait Chain: Sized + 'static {
    /// The chain, as reports have it.
    const NAME: &'static str;
    /// Its operators in order, each as what reports call it when it is timed alone.
    const PARTS: &'static [&'static str];
    type Shape: Copy + Send + Sync + 'static;

    fn table() -> Vec<Self::Shape>;
    fn parse(fields: &mut Fields<'_>) -> Result<Self::Shape, ShapeError>;
    /// Words, series, size and unit.
    fn words(shape: &Self::Shape) -> crate::Words;
    /// What the whole chain should take.
    fn goal(_shape: &Self::Shape) -> Goal {
        Goal::Unknown
    }
    /// Bytes that must move: what the first reads and the last writes, and what goes
    /// between operators, once each way.
    fn bytes(shape: &Self::Shape) -> u64;
    fn upload(shape: &Self::Shape, handle: &Handle) -> Result<Self>;
    /// Enqueues the operator of this place in `PARTS`.
    fn call(&mut self, part: usize, stream: Stream<'static>) -> Result<()>;
    /// Puts back what calls change in place.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
    /// The inputs, by name.
    fn inputs(&self) -> Result<Vec<(&'static str, Tensor)>>;
    /// What the last operators wrote, all of it.
    fn results(&self) -> Result<Vec<Vec<i32>>>;
}

/// A row of a chain.
pub(crate) fn row_of<C: Chain>(shape: C::Shape) -> Row {
    let words = C::words(&shape);
    let quick = words.size == 1.0;
    Row {
        operator: C::NAME,
        shape: words.shape,
        series: words.series,
        size: words.size,
        size_unit: words.unit,
        quick,
        goal: C::goal(&shape),
        memory: C::bytes(&shape),
        slow: false,
        inputs: Arc::new(move || Ok(Box::new(Shaped::<C>(shape)))),
    }
}

struct Shaped<C: Chain>(C::Shape);

impl<C: Chain> Inputs for Shaped<C> {
    fn bytes(&self) -> u64 {
        C::bytes(&self.0)
    }

    fn upload<'i>(&'i self, handle: &Handle) -> Result<Box<dyn OnDevice + 'i>> {
        let chain = C::upload(&self.0, handle)?;
        let parts = 0..C::PARTS.len();
        let handle = handle.clone();
        let expected = OnceCell::new();
        Ok(Box::new(Uploaded { chain, shape: self.0, handle, parts, dependent: false, expected }))
    }

    fn save(&self, folder: &Path) -> Result<(), String> {
        let chain = Handle::cpu().and_then(|cpu| C::upload(&self.0, &cpu)?.inputs());
        let inputs = chain.map_err(|error| error.to_string())?;
        inputs.iter().try_for_each(|(name, tensor)| files::write(folder, name, tensor))
    }
}

struct Uploaded<C: Chain> {
    chain: C,
    shape: C::Shape,
    handle: Handle,
    /// The operators that a call enqueues.
    parts: Range<usize>,
    dependent: bool,
    /// What one call gives on the CPU, once somebody has asked.
    expected: OnceCell<Vec<Vec<i32>>>,
}

impl<C: Chain> Uploaded<C> {
    fn enqueue(&mut self, parts: Range<usize>, stream: Stream<'_>) -> Result<()> {
        let device = self.handle.device();
        let raw = match stream.into_kind() {
            Kind::Raw { handle, .. } => Some(handle),
            _ => None,
        };
        for part in parts {
            // SAFETY: the caller's stream outlives this call, which only enqueues, and
            // nothing but the chain uses its buffers.
            let stream = raw
                .map_or_else(Stream::default, |handle| unsafe { Stream::from_raw(device, handle) });
            let stream = if self.dependent { stream.dependent_launch() } else { stream };
            self.chain.call(part, stream)?;
        }
        Ok(())
    }
}

impl<C: Chain> Timed for Uploaded<C> {
    fn call(&mut self, stream: Stream<'_>) -> Result<()> {
        self.enqueue(self.parts.clone(), stream)
    }

    fn reset(&mut self) -> Result<()> {
        self.chain.reset()
    }
}

impl<C: Chain> OnDevice for Uploaded<C> {
    fn implementations(&self) -> Vec<Implementation> {
        let parts = C::PARTS.iter().map(|name| Implementation::part(name));
        Implementation::own(&self.handle).chain(parts).collect()
    }

    fn select(&mut self, which: usize) -> Result<()> {
        let whole = Implementation::own(&self.handle).count();
        self.dependent = which == DEPENDENT && which < whole;
        self.parts = match which.checked_sub(whole) {
            Some(part) => part..part + 1,
            None => 0..C::PARTS.len(),
        };
        // A part that is timed alone reads what the parts before it have written.
        self.reset()?;
        self.enqueue(0..C::PARTS.len(), Stream::default())
    }

    fn time(&mut self, effort: &Effort) -> Result<Timing> {
        let cpu = self.handle.device() == Device::CPU;
        let handle = self.handle.clone();
        self.call(Stream::default())?;
        handle.synchronize()?;
        let start = Instant::now();
        self.call(Stream::default())?;
        handle.synchronize()?;
        let (samples, calls) = effort.plan(start.elapsed(), cpu);
        // Submissions of another's recording are not timed on the device.
        if cpu || handle.backend_as::<Cuda>().is_none() {
            return timing::by_clock(&|| handle.synchronize(), samples, calls, self);
        }
        // SAFETY: the chain keeps its buffers where they are.
        unsafe { handle.time(samples, calls, self) }
    }

    fn check(&self) -> Result<&'static str, Failure> {
        let failed = |error| Failure::error("the chain", &error);
        self.handle.synchronize().map_err(failed)?;
        if self.parts.len() < C::PARTS.len() {
            return Ok("as a part of the chain");
        }
        // Calls that were timed may have changed what they work on, each from what the one
        // before it left: one call on the same data is compared.
        let once = |handle: &Handle, dependent: bool| {
            let mut chain = C::upload(&self.shape, handle)?;
            for part in 0..C::PARTS.len() {
                let stream = Stream::default();
                chain.call(part, if dependent { stream.dependent_launch() } else { stream })?;
            }
            handle.synchronize()?;
            chain.results()
        };
        if self.expected.get().is_none() {
            let on_cpu = Handle::cpu().and_then(|cpu| once(&cpu, false)).map_err(failed)?;
            self.expected.get_or_init(|| on_cpu);
        }
        if Some(&once(&self.handle, self.dependent).map_err(failed)?) != self.expected.get() {
            return Err(Failure {
                got: "other results".to_owned(),
                ..Failure::of("the chain", "those of the CPU")
            });
        }
        Ok("CPU backend, every element")
    }
}

// ---- topk_router, moe_align ---------------------------------------------------

const EXPERTS: usize = 256;
const TOPK: usize = 8;
const BLOCK: usize = 64;

/// DeepSeek-V3's routing, then the lists of the grouped products.
pub(crate) struct RouteAlign {
    route: Ready<TopkRouter>,
    align: Ready<MoeAlign>,
    x: Buffer<f32>,
    bias: Buffer<f32>,
    weights: Buffer<f32>,
    experts: Buffer<i32>,
    sorted_ids: Buffer<i32>,
    block_experts: Buffer<i32>,
    counts: Buffer<i32>,
    offsets: Buffer<i32>,
    num_padded: Buffer<i32>,
    inverse: Buffer<i32>,
}

const ALIGN: MoeAlign = MoeAlign::new(EXPERTS, BLOCK);

fn capacity(tokens: usize) -> usize {
    ALIGN.capacity(tokens * TOPK).unwrap_or(usize::MAX / 64)
}

impl Chain for RouteAlign {
    const NAME: &'static str = "topk_router+moe_align";
    const PARTS: &'static [&'static str] = &["topk_router alone", "moe_align alone"];
    /// Tokens.
    type Shape = usize;

    fn table() -> Vec<usize> {
        vec![1, 256, 4096, 16_384]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<usize, ShapeError> {
        fields.number("tokens", 4096, 1..=1 << 20)
    }

    fn words(tokens: &usize) -> crate::Words {
        let series = format!("f32, {EXPERTS} experts, top {TOPK}");
        let shape = format!("{tokens} tokens, {series}");
        crate::Words { shape, series, size: *tokens as f64, unit: "tokens" }
    }

    fn bytes(tokens: &usize) -> u64 {
        let capacity = capacity(*tokens);
        let picks = tokens * TOPK;
        ((tokens + 1) * EXPERTS + 4 * picks + capacity + capacity / BLOCK) as u64 * 4
    }

    fn upload(tokens: &usize, handle: &Handle) -> Result<Self> {
        let (tokens, picks) = (*tokens, tokens * TOPK);
        let model = preset::DEEPSEEK_V3;
        let router = model.router();
        let route = model.tensors(DType::F32, tokens);
        let align =
            ALIGN.tensors(DType::I32, tokens, TOPK).inverse(TensorDesc::new(DType::I32, [picks]));
        let seed = seed(&[tokens, EXPERTS]);
        Ok(RouteAlign {
            route: Ready::new(handle, &router, &route)?,
            align: Ready::new(handle, &ALIGN, &align)?,
            x: handle.upload(&random(seed, tokens * EXPERTS, |rng| rng.unit() * 8.0 - 4.0))?,
            bias: handle.upload(&random(!seed, EXPERTS, |rng| rng.unit() * 0.2 - 0.1))?,
            weights: handle.allocate(picks)?,
            experts: handle.allocate(picks)?,
            sorted_ids: handle.allocate(capacity(tokens))?,
            block_experts: handle.allocate(capacity(tokens) / BLOCK)?,
            counts: handle.allocate(EXPERTS)?,
            offsets: handle.allocate(EXPERTS + 1)?,
            num_padded: handle.allocate(1)?,
            inverse: handle.allocate(picks)?,
        })
    }

    fn call(&mut self, part: usize, stream: Stream<'static>) -> Result<()> {
        if part == 0 {
            let buffers = topk_router::Buffers::new(&self.x, &mut self.weights, &mut self.experts)
                .bias(&self.bias);
            return self.route.call_on(buffers, stream);
        }
        let buffers = moe_align::Buffers::new(moe_align::Required {
            topk_ids: (&self.experts).into(),
            sorted_ids: (&mut self.sorted_ids).into(),
            block_experts: (&mut self.block_experts).into(),
            counts: (&mut self.counts).into(),
            offsets: (&mut self.offsets).into(),
            num_padded: (&mut self.num_padded).into(),
        })
        .inverse(&mut self.inverse);
        self.align.call_on(buffers, stream)
    }

    fn inputs(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (x, bias) = (self.x.to_vec()?, self.bias.to_vec()?);
        let rows = x.len() / EXPERTS;
        Ok(vec![("x", Tensor::matrix(x, rows, EXPERTS)), ("bias", Tensor::vector(bias))])
    }

    fn results(&self) -> Result<Vec<Vec<i32>>> {
        [
            &self.sorted_ids,
            &self.block_experts,
            &self.counts,
            &self.offsets,
            &self.num_padded,
            &self.inverse,
        ]
        .into_iter()
        .map(Buffer::to_vec)
        .collect()
    }
}

// ---- indexer_topk, deduplicate_topk -------------------------------------------

const K: usize = 2048;

/// The best positions of each row, then those of a request's rows together, as sparse
/// attention under multi-token prediction has them.
pub(crate) struct SelectDeduplicate {
    select: Ready<IndexerTopk>,
    deduplicate: Ready<DeduplicateTopk>,
    scores: Buffer<f32>,
    indices: Buffer<i32>,
    unique: Buffer<i32>,
}

#[derive(Clone, Copy)]
pub(crate) struct Selected {
    batch: usize,
    steps: usize,
    cols: usize,
}

impl Chain for SelectDeduplicate {
    const NAME: &'static str = "indexer_topk+deduplicate_topk";
    const PARTS: &'static [&'static str] = &["indexer_topk alone", "deduplicate_topk alone"];
    type Shape = Selected;

    fn table() -> Vec<Selected> {
        [1, 16, 64].map(|batch| Selected { batch, steps: 2, cols: 1 << 17 }).into()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Selected, ShapeError> {
        Ok(Selected {
            batch: fields.number("batch", 16, 1..=1 << 16)?,
            steps: fields.number("steps", 2, 1..=1024)?,
            cols: fields.number("cols", 1 << 17, 1..=1 << 24)?,
        })
    }

    fn words(shape: &Selected) -> crate::Words {
        let Selected { batch, steps, cols } = *shape;
        let series = format!("{steps} rows of {}, top {K}", words_of(cols));
        let shape = format!("{batch} requests, {series}");
        crate::Words { shape, series, size: batch as f64, unit: "requests" }
    }

    fn bytes(shape: &Selected) -> u64 {
        (shape.batch * shape.steps * (shape.cols + 3 * K)) as u64 * 4
    }

    fn upload(shape: &Selected, handle: &Handle) -> Result<Self> {
        let Selected { batch, steps, cols } = *shape;
        let rows = batch * steps;
        let select = IndexerTopk::new(K);
        let deduplicate = DeduplicateTopk::new().mtp_step(steps);
        let scores = random(seed(&[rows, cols]), rows * cols, spec_conformance::Rng::normal);
        Ok(SelectDeduplicate {
            select: Ready::new(handle, &select, &select.tensors(DType::F32, rows, cols))?,
            deduplicate: Ready::new(handle, &deduplicate, &deduplicate.tensors(batch, K))?,
            scores: handle.upload(&scores)?,
            indices: handle.allocate(rows * K)?,
            unique: handle.allocate(rows * K)?,
        })
    }

    fn call(&mut self, part: usize, stream: Stream<'static>) -> Result<()> {
        if part == 0 {
            let buffers = indexer_topk::Buffers::new(&self.scores, &mut self.indices);
            return self.select.call_on(buffers, stream);
        }
        let buffers = deduplicate_topk::Buffers::new(&self.indices, &mut self.unique);
        self.deduplicate.call_on(buffers, stream)
    }

    fn inputs(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (scores, rows) = (self.scores.to_vec()?, self.indices.len() / K);
        let cols = scores.len() / rows;
        Ok(vec![("scores", Tensor::matrix(scores, rows, cols))])
    }

    fn results(&self) -> Result<Vec<Vec<i32>>> {
        Ok(vec![self.unique.to_vec()?])
    }
}
