//! Verification of drafts: three dispatches where target and draft fit a binding
//! each, of which only the scan of the rejected rows is large; a few more where
//! they come in windows. See the shader for the passes.

use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Buffers, Plan, Recovery};
use spec_core::{DType, Kernel, Matrix, Result, Status, Stream, Supports, View, ViewMut};

use crate::Wgpu;
use crate::memory::Region;
use crate::record::Recorder;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("rejection_sample");

/// Threads that scan a chunk; a chunk is a multiple of it.
const SCAN_THREADS: usize = 256;
/// Chunks by size: at least enough work for a workgroup to be worth its
/// reduction, at most what still spreads over a large GPU.
const MIN_CHUNK: usize = 1024;
const MAX_CHUNK: usize = 8192;
/// Workgroups that fill a large GPU: above this many, chunks grow instead.
const FULL: usize = 1024;
/// Words of the workspace: a request's state, a chunk's partial result.
const STATE: u64 = 10;
const PARTIAL: u64 = 5;

/// What `scan` looks for; the numbers are the shader's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Argmax = 0,
    Sample = 1,
    Greedy = 2,
}

/// The shader's entry points.
#[derive(Clone, Copy)]
enum Pass {
    Gather,
    Walk,
    Scan,
    Finish,
    Resolve,
    Locate,
    Emit,
}

impl Pass {
    /// What a call consists of.
    fn of(mode: Mode, whole: bool) -> &'static [Pass] {
        match mode {
            Mode::Greedy => &[Pass::Scan, Pass::Resolve, Pass::Walk, Pass::Emit],
            _ if whole => &[Pass::Walk, Pass::Scan, Pass::Finish],
            Mode::Argmax => &[Pass::Gather, Pass::Walk, Pass::Scan, Pass::Resolve, Pass::Emit],
            Mode::Sample => {
                &[Pass::Gather, Pass::Walk, Pass::Scan, Pass::Resolve, Pass::Locate, Pass::Emit]
            }
        }
    }

    /// Its name and what it does with each binding.
    fn entry(self) -> (&'static str, &'static [Access]) {
        match self {
            Pass::Gather => ("gather", &[Write, Read, Read, Read, Read, Read, Read, Read]),
            Pass::Walk => ("walk", &[Write, Read, Read, Read, Write, Read, Read, Read]),
            Pass::Scan => ("scan", &[Write, Write, Write, Write, Write, Read, Read, Read]),
            Pass::Finish => ("finish", &[Write, Write, Read, Read, Write, Read, Read, Read]),
            Pass::Resolve => ("resolve", &[Write, Read, Read, Read, Write]),
            Pass::Locate => ("locate", &[Write, Read, Read, Read, Read, Read, Read, Read]),
            Pass::Emit => ("emit", &[Write, Write, Write, Write, Write, Read, Write]),
        }
    }

    /// Which of the shader's constants it depends on.
    fn depends_on(self) -> &'static [&'static str] {
        match self {
            Pass::Gather => &["DTYPE", "HAS_DRAFT"],
            Pass::Locate => &["DTYPE", "HAS_DRAFT", "MODE"],
            Pass::Resolve => &["MODE"],
            Pass::Emit => &[],
            Pass::Walk | Pass::Scan | Pass::Finish => &["DTYPE", "HAS_DRAFT", "MODE", "WHOLE"],
        }
    }
}

/// First words of the workspace's parts.
struct Layout {
    gathered: u64,
    draft_gathered: u64,
    tops: u64,
    states: u64,
    partials: u64,
    end: u64,
}

struct Verifier {
    gpu: Wgpu,
    plan: Plan,
    /// Draft probabilities, unless greedy acceptance ignores them.
    draft: Option<Matrix>,
    /// Rows that are scanned.
    jobs: usize,
    chunk: usize,
    layout: Layout,
    passes: Vec<(Pass, Program)>,
    /// Windows of target and draft together, and of the output.
    windows: Vec<Window>,
    output_windows: Vec<Window>,
    /// Whether one window of each is all.
    whole: bool,
}

impl Supports<RejectionSample> for Wgpu {
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
        Ok(Box::new(Verifier::new(self, plan)?))
    }
}

impl Verifier {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let mode = match (plan.params.acceptance, plan.params.recovery) {
            (Acceptance::Greedy, _) => Mode::Greedy,
            (_, Recovery::Sample) => Mode::Sample,
            (_, Recovery::Argmax) => Mode::Argmax,
        };
        let draft = plan.draft.filter(|_| mode != Mode::Greedy);
        let jobs = if mode == Mode::Greedy { plan.tokens() } else { plan.batch };
        let narrowest = gpu.window(plan.target.dtype.size() as u64) as usize;
        let chunk = chunk(jobs, plan.vocab()).min(narrowest / SCAN_THREADS * SCAN_THREADS);
        let layout = Layout::new(plan, mode, draft.is_some(), jobs, plan.vocab().div_ceil(chunk));
        let matrices: Vec<_> = [Some(plan.target), draft].into_iter().flatten().collect();
        let too_large = |what: &str| {
            let words = format!(
                "rejection_sample: {what} need more than a binding of {} bytes",
                gpu.0.max_binding
            );
            gpu.error(Status::NotImplemented, words)
        };
        let scanned = (jobs as u64).saturating_mul(plan.vocab().div_ceil(chunk) as u64);
        if layout.end > gpu.window(4) || scanned > u64::from(u32::MAX) {
            return Err(too_large("intermediate results of this many tokens"));
        }
        let windows = gpu.windows(&matrices, chunk).ok_or_else(|| too_large("chunks of a row"))?;
        let output_windows =
            gpu.windows(&[plan.output], usize::MAX).ok_or_else(|| too_large("output rows"))?;
        // Without tokens there is no window, and nothing to be found in one.
        let whole = mode != Mode::Greedy && windows.len() <= 1 && output_windows.len() <= 1;
        let constants = [
            ("DTYPE", super::float_code(plan.target.dtype)),
            ("MODE", mode as u32),
            ("HAS_DRAFT", u32::from(draft.is_some())),
            ("WHOLE", u32::from(whole)),
        ];
        let compiled = |&pass: &Pass| {
            let (entry, bindings) = pass.entry();
            let needed = |(name, _): &(&'static str, u32)| pass.depends_on().contains(name);
            let constants: Vec<_> = constants.into_iter().filter(needed).collect();
            Ok((pass, gpu.program(&SHADER, entry, bindings, &constants)?))
        };
        let passes = Pass::of(mode, whole).iter().map(compiled).collect::<Result<_>>()?;
        Ok(Verifier {
            gpu: gpu.clone(),
            plan: plan.clone(),
            draft,
            jobs,
            chunk,
            layout,
            passes,
            windows,
            output_windows,
            whole,
        })
    }
}

/// The elements of a chunk.
fn chunk(jobs: usize, vocab: usize) -> usize {
    let even = jobs.saturating_mul(vocab).div_ceil(FULL);
    even.next_multiple_of(SCAN_THREADS).clamp(MIN_CHUNK, MAX_CHUNK)
}

impl Layout {
    fn new(plan: &Plan, mode: Mode, has_draft: bool, jobs: usize, chunks: usize) -> Self {
        let tokens = plan.tokens() as u64;
        let greedy = mode == Mode::Greedy;
        let mut end = 0u64;
        let mut part = |words: u64| {
            let start = end;
            end = end.saturating_add(words);
            start
        };
        Layout {
            gathered: part(if greedy { 0 } else { tokens }),
            draft_gathered: part(if has_draft { tokens } else { 0 }),
            tops: part(if greedy { tokens.saturating_mul(2) } else { 0 }),
            states: part((plan.batch as u64).saturating_mul(STATE)),
            partials: part((jobs as u64).saturating_mul(chunks as u64).saturating_mul(PARTIAL)),
            end,
        }
    }
}

/// Words of an id.
fn words(dtype: DType) -> u32 {
    (dtype.size() / 4) as u32
}

/// The arguments and the workspace as regions.
struct Regions<'a> {
    work: Region<'a>,
    target: Region<'a>,
    draft: Region<'a>,
    ids: Region<'a>,
    bonus: Region<'a>,
    cu: Region<'a>,
    uniform: Region<'a>,
    seed: Region<'a>,
    output: Region<'a>,
    /// num_accepted, accepted_counts, recovered_counts, bonus_counts.
    counts: [Region<'a>; 4],
    flags: Region<'a>,
}

impl<'a> Regions<'a> {
    fn new(gpu: &Wgpu, workspace: ViewMut<'a>, buffers: Buffers<'a>) -> Result<Self> {
        let read =
            |view: Option<View<'a>>| view.map_or(Ok(Region::nothing()), |view| gpu.region(&view));
        Ok(Regions {
            work: gpu.region_of_workspace(workspace)?,
            target: gpu.region(&buffers.target_probs)?,
            draft: read(buffers.draft_probs)?,
            ids: gpu.region(&buffers.draft_token_ids)?,
            bonus: gpu.region(&buffers.bonus_token_ids)?,
            cu: gpu.region(&buffers.cu_num_draft)?,
            uniform: read(buffers.uniform_samples)?,
            seed: read(buffers.seed_offset)?,
            output: gpu.region_mut(buffers.output_token_ids)?,
            counts: [
                gpu.region_mut(buffers.num_accepted)?,
                gpu.region_mut(buffers.accepted_counts)?,
                gpu.region_mut(buffers.recovered_counts)?,
                gpu.region_mut(buffers.bonus_counts)?,
            ],
            flags: buffers.flags.map_or(Ok(Region::nothing()), |flags| gpu.region_mut(flags))?,
        })
    }
}

impl Kernel<RejectionSample> for Verifier {
    fn workspace_size(&self) -> usize {
        self.layout.end as usize * 4
    }

    fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let regions = Regions::new(&self.gpu, workspace, buffers)?;
        self.gpu.record("rejection_sample", stream, |r| {
            self.passes.iter().try_for_each(|(pass, program)| self.run(r, *pass, program, &regions))
        })
    }
}

const NOTHING: Region<'static> = Region { buffer: None, offset: 0, bytes: 0, size: 4 };
const NO_WINDOW: Window = Window { rows: 0..0, cols: 0..0 };

impl Verifier {
    /// Records a pass, in as many dispatches as there are windows.
    fn run(
        &self,
        r: &mut Recorder<'_>,
        pass: Pass,
        program: &Program,
        regions: &Regions<'_>,
    ) -> Result<()> {
        let Regions { work, ids, bonus, cu, uniform, seed, output, counts, flags, .. } = *regions;
        let random = if self.plan.has_uniform_samples { uniform } else { seed };
        let batch = self.plan.batch as u64;
        for window in self.windows_of(pass) {
            let [target, draft] = self.rows_of(window, regions);
            let mut parameters = self.parameters(window);
            let none = NOTHING;
            let (bound, groups) = match pass {
                Pass::Gather => {
                    let groups = window.rows.len().div_ceil(64) as u64;
                    ([work, none, none, none, none, ids, target, draft], groups)
                }
                Pass::Walk => ([work, cu, bonus, random, flags, ids, target, draft], batch),
                Pass::Scan => {
                    let [a, b, c, d] = if self.whole { counts } else { [none; 4] };
                    // One chunk writes the counts even if there is no token to scan.
                    let chunks = window.cols.len().div_ceil(self.chunk).max(1);
                    ([work, a, b, c, d, seed, target, draft], (self.jobs * chunks) as u64)
                }
                Pass::Finish => {
                    parameters.output_stride = self.plan.output.row_stride as u32;
                    ([work, output, none, none, flags, ids, target, draft], batch)
                }
                Pass::Resolve => {
                    ([work, none, none, none, flags, none, none, none], self.jobs as u64)
                }
                Pass::Locate => {
                    ([work, none, none, none, none, none, target, draft], self.jobs as u64)
                }
                Pass::Emit => {
                    let [a, b, c, d] = counts;
                    let rows = window.of(&self.plan.output, output);
                    parameters.output_stride = window.stride(&self.plan.output);
                    ([work, a, b, c, d, ids, rows, none], window.rows.len() as u64)
                }
            };
            let bound = &bound[..program.bindings().len()];
            r.dispatch(program, bound, &parameters.words(), groups)?;
        }
        Ok(())
    }

    /// The windows that a pass goes through: of probabilities, of the output, or
    /// none in particular.
    fn windows_of(&self, pass: Pass) -> &[Window] {
        const NONE: &[Window] = &[NO_WINDOW];
        match pass {
            Pass::Emit => &self.output_windows,
            Pass::Resolve => NONE,
            Pass::Walk if !self.whole => NONE,
            _ if self.windows.is_empty() => NONE,
            _ => &self.windows,
        }
    }

    /// Target and draft in a window.
    fn rows_of<'a>(&self, window: &Window, regions: &Regions<'a>) -> [Region<'a>; 2] {
        let draft = self.draft.map_or(NOTHING, |draft| window.of(&draft, regions.draft));
        [window.of(&self.plan.target, regions.target), draft]
    }

    fn parameters(&self, window: &Window) -> Parameters {
        let Plan { params, draft_token_ids, bonus_token_ids, cu_num_draft, .. } = &self.plan;
        Parameters {
            requests: self.plan.batch as u32,
            tokens: self.plan.tokens() as u32,
            vocab: self.plan.vocab() as u32,
            max_spec_len: params.max_spec_len as u32,
            jobs: self.jobs as u32,
            chunk: self.chunk as u32,
            chunks: self.plan.vocab().div_ceil(self.chunk) as u32,
            ids_words: words(draft_token_ids.dtype),
            bonus_words: words(bonus_token_ids.dtype),
            cu_words: words(cu_num_draft.dtype),
            has_uniform: u32::from(self.plan.has_uniform_samples),
            gathered: self.layout.gathered as u32,
            draft_gathered: self.layout.draft_gathered as u32,
            tops: self.layout.tops as u32,
            states: self.layout.states as u32,
            partials: self.layout.partials as u32,
            row0: window.rows.start as u32,
            row1: window.rows.end as u32,
            chunk0: (window.cols.start / self.chunk) as u32,
            chunk1: window.cols.end.div_ceil(self.chunk) as u32,
            target_stride: window.stride(&self.plan.target),
            draft_stride: self.draft.map_or(0, |draft| window.stride(&draft)),
            output_stride: 0,
        }
    }
}

/// The shader's parameters, in its order.
struct Parameters {
    requests: u32,
    tokens: u32,
    vocab: u32,
    max_spec_len: u32,
    jobs: u32,
    chunk: u32,
    chunks: u32,
    ids_words: u32,
    bonus_words: u32,
    cu_words: u32,
    has_uniform: u32,
    gathered: u32,
    draft_gathered: u32,
    tops: u32,
    states: u32,
    partials: u32,
    row0: u32,
    row1: u32,
    chunk0: u32,
    chunk1: u32,
    target_stride: u32,
    draft_stride: u32,
    output_stride: u32,
}

impl Parameters {
    fn words(&self) -> [u32; 23] {
        [
            self.requests,
            self.tokens,
            self.vocab,
            self.max_spec_len,
            self.jobs,
            self.chunk,
            self.chunks,
            self.ids_words,
            self.bonus_words,
            self.cu_words,
            self.has_uniform,
            self.gathered,
            self.draft_gathered,
            self.tops,
            self.states,
            self.partials,
            self.row0,
            self.row1,
            self.chunk0,
            self.chunk1,
            self.target_stride,
            self.draft_stride,
            self.output_stride,
        ]
    }
}
