//! Sampling: a chain of dispatches over chunks of rows, and over rows in between.
//! See the shader for the passes. Which of them there are depends on what is asked
//! for, not on the data: a row that needs none of a filter's passes leaves them at
//! once.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Status, Stream, Supports, Vector, View, ViewMut};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("sample_logits");

/// Threads that go over a chunk, which is a multiple of it.
const THREADS: usize = 256;
/// Chunks by size: enough work for a workgroup, and a thread of `locate` has a few
/// entries only.
const MIN_CHUNK: usize = 1024;
const MAX_CHUNK: usize = 8192;
/// Workgroups that fill a large GPU: above this many, chunks grow instead.
const FULL: usize = 1024;
/// Entries of a group, or not twice as many: a chunk's groups are a power of two.
const GROUP: usize = 64;
/// Entries of a list: those of a row that are cut without reading it again.
const CAPACITY: usize = 2048;
/// Words of a row's state, of what it weighs by level, and of a chunk's result.
const STATE: u64 = 64;
const SPREAD: u64 = 3328;
const PARTIAL: u64 = 3;
/// Rows whose intermediate results the workspace holds.
const MOST_ROWS: u64 = 2048;
/// Threads of a workgroup that has a row, where the device allows so many.
const WIDE: u32 = 512;
/// Steps of selecting in a row that no list holds, and the most turns a thread takes
/// of them in one dispatch.
const STEPS: u32 = 15;
const TURNS: u32 = 40_000;

/// The arguments that are there; the numbers are the shader's.
const HAS_REQUESTS: u32 = 1;
const HAS_TOP_K: u32 = 2;
const HAS_TOP_P: u32 = 4;
const HAS_MIN_P: u32 = 8;
const HAS_MASK: u32 = 16;
const HAS_LOGPROBS: u32 = 32;

/// What is summed up; the numbers are the shader's.
#[derive(Clone, Copy)]
enum Purpose {
    Total = 0,
    Raw = 1,
}

/// The shader's entry points.
struct Programs {
    gather: Program,
    scan: Program,
    open: Program,
    spread: Program,
    aim: Program,
    collect: Program,
    cut: Program,
    sum: Program,
    settle: Program,
    draw: Program,
    share: Program,
}

struct Sampler {
    gpu: Wgpu,
    plan: Plan,
    chunk: usize,
    /// Threads of a workgroup that has a row.
    wide: u32,
    programs: Programs,
    windows: Vec<Window>,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<SampleLogits> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        Ok(Box::new(Sampler::new(self, plan)?))
    }
}

impl Sampler {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let too_large = || {
            let words = format!(
                "sample_logits: a row, or what is kept of {} rows, needs more than a binding of {} \
                 bytes",
                plan.rows(),
                gpu.0.max_binding
            );
            gpu.error(Status::NotImplemented, words)
        };
        let even = plan.rows().saturating_mul(plan.vocab()).div_ceil(FULL);
        let chunk = even.next_multiple_of(THREADS).clamp(MIN_CHUNK, MAX_CHUNK);
        let matrices: Vec<_> =
            [Some(plan.logits), plan.mask, plan.probs].into_iter().flatten().collect();
        let windows = gpu.windows(&matrices, usize::MAX).ok_or_else(too_large)?;
        let float = ("DTYPE", super::float_code(plan.logits.dtype));
        let most = gpu.0.limits.max_compute_invocations_per_workgroup;
        let wide = WIDE.min(most.min(gpu.0.limits.max_compute_workgroup_size_x)) / THREADS as u32
            * THREADS as u32;
        let rows_wide = [float, ("WIDE", wide)];
        let program = |entry, bindings: &[Access], constants: &[_]| {
            gpu.program(&SHADER, entry, bindings, constants)
        };
        let data = [Write, Write, Read, Read, Write, Write, Write, Write];
        let programs = Programs {
            gather: program("gather", &[Write, Read, Read, Read, Read, Read, Read, Read], &[])?,
            scan: program("scan", &data[..5], &[float])?,
            open: program("open", &data[..5], &rows_wide)?,
            spread: program("spread", &data[..4], &[float])?,
            aim: program("aim", &data[..2], &[])?,
            collect: program("collect", &data[..4], &[float])?,
            cut: program("cut", &data[..4], &rows_wide)?,
            sum: program("sum", &data[..4], &[float])?,
            settle: program("settle", &data[..1], &[])?,
            draw: program("draw", &data[..7], &[float])?,
            share: program("share", &data, &[float])?,
        };
        let mut sampler =
            Sampler { gpu: gpu.clone(), plan: plan.clone(), chunk, wide, programs, windows };
        let most = (gpu.window(4) / sampler.words_of_row().max(sampler.words_of_levels()))
            .min(MOST_ROWS) as usize;
        if most == 0 {
            return Err(too_large());
        }
        let parts = |window: &Window| {
            let (rows, cols) = (window.rows.clone(), window.cols.clone());
            let end = rows.end;
            let part = move |row| Window { rows: row..end.min(row + most), cols: cols.clone() };
            rows.step_by(most).map(part)
        };
        sampler.windows = sampler.windows.iter().flat_map(parts).collect();
        let groups = most.min(plan.rows()) as u64 * sampler.chunks() as u64;
        if groups > u64::from(u32::MAX) {
            return Err(too_large());
        }
        Ok(sampler)
    }

    fn chunks(&self) -> usize {
        self.plan.vocab().div_ceil(self.chunk)
    }

    /// Groups of a chunk.
    fn groups(&self) -> usize {
        1 << (self.chunk / GROUP).ilog2()
    }

    /// Entries of a list.
    fn capacity(&self) -> usize {
        if self.plan.filters { self.plan.vocab().min(CAPACITY) } else { 0 }
    }

    /// Words of a row's state, of its chunks' results, of its groups' keys and of its
    /// list.
    fn words_of_parts(&self) -> [u64; 4] {
        let chunks = self.chunks() as u64;
        let maxima = chunks * self.groups() as u64;
        [STATE, chunks * PARTIAL, maxima, 2 * self.capacity() as u64]
    }

    fn words_of_row(&self) -> u64 {
        self.words_of_parts().iter().sum()
    }

    /// Rows of the largest window.
    fn rows(&self) -> u64 {
        self.windows.iter().map(|window| window.rows.len()).max().unwrap_or(0) as u64
    }

    /// Words of all but the levels, to a multiple of what bindings are aligned to.
    fn state_words(&self) -> u64 {
        (self.rows() * self.words_of_row()).next_multiple_of(64)
    }

    /// Words of a row's levels.
    fn words_of_levels(&self) -> u64 {
        if self.plan.filters { SPREAD } else { 0 }
    }

    /// Steps of selecting in a row that one dispatch takes.
    fn steps(&self) -> u32 {
        (TURNS / (self.plan.vocab() as u32).div_ceil(self.wide).max(1)).clamp(1, STEPS)
    }
}

// SAFETY: as above.
unsafe impl Kernel<SampleLogits> for Sampler {
    fn workspace_size(&self) -> usize {
        (self.state_words() + self.rows() * self.words_of_levels()) as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let regions = Regions::new(self, workspace, buffers)?;
        self.gpu.record("sample_logits", stream, |r| {
            self.windows.iter().try_for_each(|window| self.sample(r, window, &regions))
        })
    }
}

/// The arguments and the workspace as regions.
struct Regions<'a> {
    state: Region<'a>,
    levels: Region<'a>,
    logits: Region<'a>,
    positions: Region<'a>,
    temperature: Region<'a>,
    seeds: Region<'a>,
    top_k: Region<'a>,
    top_p: Region<'a>,
    min_p: Region<'a>,
    requests: Region<'a>,
    mask: Region<'a>,
    tokens: Region<'a>,
    probs: Region<'a>,
    logprobs: Region<'a>,
    flags: Region<'a>,
    /// Which of them are there.
    has: u32,
}

impl<'a> Regions<'a> {
    fn new(of: &Sampler, workspace: ViewMut<'a>, buffers: Buffers<'a>) -> Result<Self> {
        let gpu = &of.gpu;
        let mut has = 0;
        let mut read = |view: Option<View<'a>>, bit| match view {
            Some(view) => {
                has |= bit;
                gpu.region(&view)
            }
            None => Ok(Region::nothing()),
        };
        let top_k = read(buffers.top_k, HAS_TOP_K)?;
        let top_p = read(buffers.top_p, HAS_TOP_P)?;
        let min_p = read(buffers.min_p, HAS_MIN_P)?;
        let requests = read(buffers.requests, HAS_REQUESTS)?;
        let mask = read(buffers.mask, HAS_MASK)?;
        if buffers.logprobs.is_some() {
            has |= HAS_LOGPROBS;
        }
        let written = |view: Option<ViewMut<'a>>| {
            view.map_or(Ok(Region::nothing()), |view| gpu.region_mut(view))
        };
        let mut workspace = gpu.region_of_workspace(workspace)?;
        Ok(Regions {
            state: workspace.take(of.state_words()),
            levels: workspace,
            logits: gpu.region(&buffers.logits)?,
            positions: gpu.region(&buffers.positions)?,
            temperature: gpu.region(&buffers.temperature)?,
            seeds: gpu.region(&buffers.seeds)?,
            top_k,
            top_p,
            min_p,
            requests,
            mask,
            tokens: gpu.region_mut(buffers.tokens)?,
            probs: written(buffers.probs)?,
            logprobs: written(buffers.logprobs)?,
            flags: written(buffers.flags)?,
            has,
        })
    }
}

impl Sampler {
    /// Records everything for the rows of a window.
    fn sample(&self, r: &mut Recorder<'_>, window: &Window, regions: &Regions<'_>) -> Result<()> {
        let Regions { state, levels, positions, temperature, seeds, top_k, .. } = *regions;
        let Regions { top_p, min_p, requests, tokens, logprobs, flags, has, .. } = *regions;
        let of = |matrix: Option<&Matrix>, region| match matrix {
            Some(matrix) => window.of(matrix, region),
            None => Region::nothing(),
        };
        let logits = of(Some(&self.plan.logits), regions.logits);
        let mask = of(self.plan.mask.as_ref(), regions.mask);
        let probs = of(self.plan.probs.as_ref(), regions.probs);
        let bound = [state, levels, logits, mask, flags, tokens, logprobs, probs];
        let rows = window.rows.len() as u64;
        let chunks = rows * self.chunks() as u64;
        let start = self.parameters(window, has);
        let p = &self.programs;
        let inputs = [state, requests, temperature, seeds, top_k, top_p, min_p, positions];
        r.dispatch(&p.gather, &inputs, &start, rows.div_ceil(64))?;
        let mut run = |program: &Program, parameters: Params, groups| {
            r.dispatch(program, &bound[..program.bindings().len()], &parameters, groups)
        };
        let with = |purpose: Purpose| Params { purpose: purpose as u32, ..start };
        let (raw, total) = (with(Purpose::Raw), with(Purpose::Total));
        run(&p.scan, raw, chunks)?;
        run(&p.open, raw, rows)?;
        if has & HAS_LOGPROBS != 0 {
            run(&p.sum, raw, chunks)?;
            run(&p.settle, raw, rows)?;
        }
        if self.plan.filters {
            run(&p.spread, total, chunks)?;
            run(&p.aim, total, rows)?;
            run(&p.collect, total, chunks)?;
            for first_step in (0..STEPS).step_by(self.steps() as usize) {
                let end_step = STEPS.min(first_step + self.steps());
                run(&p.cut, Params { first_step, end_step, ..total }, rows)?;
            }
        }
        run(&p.sum, total, chunks)?;
        run(&p.draw, total, rows)?;
        if self.plan.probs.is_some() {
            run(&p.share, total, chunks)?;
        }
        Ok(())
    }

    fn parameters(&self, window: &Window, has: u32) -> Params {
        let stride = |matrix: Option<&Matrix>| matrix.map_or(0, |matrix| window.stride(matrix));
        let words = |vector: Option<Vector>| vector.map_or(1, |v| (v.dtype.size() / 4) as u32);
        let plan = &self.plan;
        // Each part of the workspace has all rows of the largest window.
        let [state, results, keys, _] = self.words_of_parts().map(|words| words * self.rows());
        let [partials, maxima, lists] = [state, state + results, state + results + keys];
        Params {
            vocab: plan.vocab() as u32,
            // More than that a row cannot name.
            requests: u32::try_from(plan.requests).unwrap_or(u32::MAX).min(i32::MAX as u32),
            chunk: self.chunk as u32,
            chunks: self.chunks() as u32,
            position_words: words(Some(plan.positions)),
            request_words: words(plan.of_rows),
            token_words: words(Some(plan.tokens)),
            min_p_first: u32::from(plan.params.min_p_first),
            has,
            purpose: 0,
            first_step: 0,
            end_step: 0,
            partials: partials as u32,
            maxima: maxima as u32,
            groups: self.groups() as u32,
            lists: lists as u32,
            capacity: self.capacity() as u32,
            row0: window.rows.start as u32,
            row1: window.rows.end as u32,
            logits_stride: stride(Some(&plan.logits)),
            mask_stride: stride(plan.mask.as_ref()),
            probs_stride: stride(plan.probs.as_ref()),
        }
    }
}

launch_params! {
    /// What the shaders of `sample_logits` take.
    struct Params: Pod, Zeroable {
        /// Tokens of the vocabulary.
        vocab: u32,
        /// Requests.
        requests: u32,
        /// Logits of a chunk, a multiple of 256.
        chunk: u32,
        /// Chunks of a row.
        chunks: u32,
        /// Words of a position.
        position_words: u32,
        /// Words of a row's request.
        request_words: u32,
        /// Words of a token.
        token_words: u32,
        /// 1 where min-p filters before top-k and top-p, else 0.
        min_p_first: u32,
        /// Which optional arguments are there: HAS_ bits.
        has: u32,
        /// What a sum is of: a PURPOSE_.
        purpose: u32,
        /// The first step of selecting in rows that a dispatch takes.
        first_step: u32,
        /// The step after the last.
        end_step: u32,
        /// Where the partial results start in the workspace, in words, behind the states.
        partials: u32,
        /// Where the largest keys of groups start in the workspace, in words.
        maxima: u32,
        /// Groups of a chunk, a power of two.
        groups: u32,
        /// Where the lists start in the workspace, in words.
        lists: u32,
        /// Entries of a list.
        capacity: u32,
        /// The first row of the window.
        row0: u32,
        /// The row after the last of the window.
        row1: u32,
        /// Logits from one row to the next in the window.
        logits_stride: u32,
        /// Words from one row of the mask to the next in the window.
        mask_stride: u32,
        /// Probabilities from one row to the next in the window.
        probs_stride: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "sample_logits", includes: &["bound"], structs: &[Params::DESCRIPTION] };
