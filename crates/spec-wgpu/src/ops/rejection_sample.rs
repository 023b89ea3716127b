//! Verification of drafts. Where target and draft fit a binding each, there are three dispatches,
//! of which only the scan of the rejected rows is large. More dispatches are needed where the
//! matrices come in windows, or where only some requests are greedy. See the shader for the passes.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::launch_params::float_code;

use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{self, Acceptance, Buffers, Plan, Recovery};
use spec_core::options::unknown;
use spec_core::race::GROUP;
use spec_core::{DType, Kernel, Matrix, Result, Status, Stream, Supports, Vector, View, ViewMut};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("rejection_sample");

/// The smallest and the largest chunk. The smallest is enough work for a workgroup to be worth its
/// reduction; the largest still spreads the work over a large GPU.
const MIN_CHUNK: usize = 1024;
const MAX_CHUNK: usize = 8192;
/// The number of workgroups that fill a large GPU: above this number, chunks grow instead.
const FULL: usize = 1024;

/// What `scan` looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Argmax = 0,
    Sample = 1,
    Greedy = 2,
}

/// The shader's entry points.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Note,
    Gather,
    Walk,
    Scan,
    Finish,
    Resolve,
    Locate,
    End,
    Emit,
}

impl Pass {
    /// The name of the entry point, and its access to each binding.
    fn entry(self) -> (&'static str, &'static [Access]) {
        match self {
            Pass::Note => ("note", &[Write, Read, Read]),
            Pass::Gather => ("gather", &[Write, Read, Read, Read, Read, Read, Read, Read]),
            Pass::Walk => ("walk", &[Write, Read, Read, Read, Write, Read, Read, Read]),
            Pass::Scan => ("scan", &[Write, Write, Write, Write, Write, Read, Read, Read]),
            Pass::Finish => ("finish", &[Write, Write, Read, Read, Write, Read, Read, Read]),
            Pass::Resolve => ("resolve", &[Write, Read, Read, Read, Write]),
            Pass::Locate => ("locate", &[Write, Read, Read, Read, Read, Read, Read, Read]),
            Pass::End => ("end", &[Write, Read, Read, Read, Write]),
            Pass::Emit => ("emit", &[Write, Write, Write, Write, Write, Read, Write]),
        }
    }

    /// The shader constants that the pass depends on.
    fn depends_on(self) -> &'static [&'static str] {
        match self {
            Pass::Gather => &["DTYPE", "HAS_DRAFT"],
            Pass::Locate => &["DTYPE", "HAS_DRAFT", "MODE"],
            Pass::Resolve => &["MODE"],
            Pass::Note | Pass::End | Pass::Emit => &[],
            Pass::Finish => &["DTYPE", "HAS_DRAFT", "MODE", "WHOLE"],
            Pass::Walk | Pass::Scan => &["DTYPE", "HAS_DRAFT", "MODE", "WHOLE", "MIXED"],
        }
    }
}

/// The steps of a call: its passes, and the mode of each.
fn steps(mode: Mode, mixed: bool, whole: bool) -> Vec<(Pass, Mode)> {
    let mut steps = Vec::new();
    let mut step = |wanted: bool, pass, mode| {
        if wanted {
            steps.push((pass, mode));
        }
    };
    let sampled = mode != Mode::Greedy;
    step(mixed, Pass::Note, mode);
    step(mixed || !sampled, Pass::Scan, Mode::Greedy);
    step(mixed || !sampled, Pass::Resolve, Mode::Greedy);
    step(sampled && !whole, Pass::Gather, mode);
    step(true, Pass::Walk, mode);
    step(sampled, Pass::Scan, mode);
    step(whole, Pass::Finish, mode);
    step(sampled && !whole, Pass::Resolve, mode);
    step(mode == Mode::Sample && !whole, Pass::Locate, mode);
    step(!whole, Pass::End, mode);
    step(!whole, Pass::Emit, mode);
    steps
}

/// A step that is ready to be recorded.
struct Step {
    pass: Pass,
    program: Program,
    /// The rows that the step goes through: one per request, or one per token in greedy mode.
    jobs: usize,
}

/// The first 32-bit word of each part of the workspace.
struct Layout {
    gathered: u64,
    draft_gathered: u64,
    tops: u64,
    states: u64,
    partials: u64,
    maxima: u64,
    bounds: u64,
    end: u64,
}

struct Verifier {
    gpu: Wgpu,
    plan: Plan,
    /// Draft probabilities, unless greedy acceptance ignores them.
    draft: Option<Matrix>,
    chunk: usize,
    layout: Layout,
    steps: Vec<Step>,
    /// Windows of target and draft together, and windows of the output.
    windows: Vec<Window>,
    output_windows: Vec<Window>,
    /// Whether a single window suffices for all matrices, in a call without greedy requests.
    whole: bool,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<RejectionSample> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
        Ok(Box::new(Verifier::new(self, plan)?))
    }
}

impl Verifier {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let mode = match (plan.params.acceptance, plan.params.recovery) {
            (Acceptance::Greedy, _) => Mode::Greedy,
            (_, Recovery::Sample) => Mode::Sample,
            (_, Recovery::Argmax) => Mode::Argmax,
            (_, other) => unknown(other),
        };
        let mixed = plan.greedy.is_some();
        let draft = plan.draft.filter(|_| mode != Mode::Greedy);
        let jobs_of = |mode| if mode == Mode::Greedy { plan.tokens() } else { plan.batch };
        // The largest number of rows that are scanned at once.
        let jobs = if mixed { plan.tokens().max(plan.batch) } else { jobs_of(mode) };
        let narrowest = gpu.window(plan.target.dtype.size() as u64) as usize;
        let chunk = chunk(jobs, plan.vocab()).min(narrowest / SCAN_THREADS * SCAN_THREADS);
        let layout = Layout::new(plan, mode, draft.is_some(), jobs, chunk);
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
        // Without tokens there is no window at all, which also counts as a single window.
        let one = windows.len() <= 1 && output_windows.len() <= 1;
        let whole = one && mode != Mode::Greedy && !mixed;
        let compiled = |(pass, mode): (Pass, Mode)| {
            let (entry, bindings) = pass.entry();
            let constants = [
                ("DTYPE", float_code(plan.target.dtype)),
                ("MODE", mode as u32),
                ("HAS_DRAFT", u32::from(draft.is_some())),
                ("WHOLE", u32::from(whole)),
                ("MIXED", u32::from(mixed)),
            ];
            let needed = |(name, _): &(&'static str, u32)| pass.depends_on().contains(name);
            let constants: Vec<_> = constants.into_iter().filter(needed).collect();
            let program = gpu.program(&SHADER, entry, bindings, &constants)?;
            Ok(Step { pass, program, jobs: jobs_of(mode) })
        };
        let steps = steps(mode, mixed, whole).into_iter().map(compiled).collect::<Result<_>>()?;
        Ok(Verifier {
            gpu: gpu.clone(),
            plan: plan.clone(),
            draft,
            chunk,
            layout,
            steps,
            windows,
            output_windows,
            whole,
        })
    }
}

/// The number of elements of a chunk.
fn chunk(jobs: usize, vocab: usize) -> usize {
    let even = jobs.saturating_mul(vocab).div_ceil(FULL);
    even.next_multiple_of(SCAN_THREADS).clamp(MIN_CHUNK, MAX_CHUNK)
}

impl Layout {
    fn new(plan: &Plan, mode: Mode, has_draft: bool, jobs: usize, chunk: usize) -> Self {
        let tokens = plan.tokens() as u64;
        let chunks = plan.vocab().div_ceil(chunk);
        // Groups are needed only for rows that are drawn from.
        let groups = if mode == Mode::Sample { chunks * chunk / GROUP } else { 0 };
        let groups = (plan.batch as u64).saturating_mul(groups as u64);
        let some_greedy = mode == Mode::Greedy || plan.greedy.is_some();
        let all_greedy = mode == Mode::Greedy;
        let mut end = 0u64;
        let mut part = |words: u64| {
            let start = end;
            end = end.saturating_add(words);
            start
        };
        Layout {
            gathered: part(if all_greedy { 0 } else { tokens }),
            draft_gathered: part(if has_draft { tokens } else { 0 }),
            tops: part(if some_greedy { tokens.saturating_mul(2) } else { 0 }),
            states: part((plan.batch as u64).saturating_mul(STATE)),
            partials: part((jobs as u64).saturating_mul(chunks as u64).saturating_mul(PARTIAL)),
            maxima: part(groups),
            bounds: part(groups),
            end,
        }
    }
}

/// 32-bit words of an integer type; 0 for a type of one byte.
fn words(dtype: DType) -> u32 {
    (dtype.size() / 4) as u32
}

/// 32-bit words of an argument's element; the result for an absent argument does not matter.
fn words_of(argument: Option<Vector>) -> u32 {
    argument.map_or(1, |vector| words(vector.dtype))
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
    seeds: Region<'a>,
    positions: Region<'a>,
    greedy: Region<'a>,
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
            seeds: read(buffers.seeds)?,
            positions: read(buffers.positions)?,
            greedy: read(buffers.greedy)?,
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

// SAFETY: as for `Supports` above.
unsafe impl Kernel<RejectionSample> for Verifier {
    fn workspace_size(&self) -> usize {
        self.layout.end as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let regions = Regions::new(&self.gpu, workspace, buffers)?;
        self.gpu.record("rejection_sample", stream, |r| {
            self.steps.iter().try_for_each(|step| self.run(r, step, &regions))
        })
    }
}

const NOTHING: Region<'static> = Region { buffer: None, offset: 0, bytes: 0, size: 4 };
const NO_WINDOW: Window = Window { rows: 0..0, cols: 0..0 };

impl Verifier {
    /// Records a step, in one dispatch per window.
    fn run(&self, r: &mut Recorder<'_>, step: &Step, regions: &Regions<'_>) -> Result<()> {
        let Regions { work, ids, bonus, cu, uniform, seeds, positions, output, flags, .. } =
            *regions;
        let random = if self.plan.has_uniform_samples { uniform } else { seeds };
        let (batch, jobs) = (self.plan.batch as u64, step.jobs as u64);
        let none = NOTHING;
        let [a, b, c, d] = regions.counts;
        for window in self.windows_of(step.pass) {
            let [target, draft] = self.rows_of(window, regions);
            let mut parameters = self.parameters(step, window);
            let (bound, groups) = match step.pass {
                Pass::Note => {
                    let bound = [work, cu, regions.greedy, none, none, none, none, none];
                    (bound, batch.div_ceil(SMALL))
                }
                Pass::Gather => {
                    let groups = (window.rows.len() as u64).div_ceil(SMALL);
                    ([work, none, none, none, none, ids, target, draft], groups)
                }
                Pass::Walk => ([work, cu, random, positions, flags, ids, target, draft], batch),
                Pass::Scan => {
                    let [a, b, c, d] = if self.whole { [a, b, c, d] } else { [none; 4] };
                    // One chunk writes the counts even where there is no token to scan.
                    let chunks = window.cols.len().div_ceil(self.chunk).max(1) as u64;
                    ([work, a, b, c, d, seeds, target, draft], jobs * chunks)
                }
                Pass::Finish => {
                    parameters.output_stride = self.plan.output.row_stride as u32;
                    ([work, output, bonus, none, flags, ids, target, draft], batch)
                }
                Pass::Resolve => ([work, none, none, none, flags, none, none, none], jobs),
                Pass::Locate => ([work, none, none, none, none, none, target, draft], jobs),
                Pass::End => {
                    let bound = [work, none, bonus, none, flags, none, none, none];
                    (bound, batch.div_ceil(SMALL))
                }
                Pass::Emit => {
                    let rows = window.of(&self.plan.output, output);
                    parameters.output_stride = window.stride(&self.plan.output);
                    ([work, a, b, c, d, ids, rows, none], window.rows.len() as u64)
                }
            };
            let bound = &bound[..step.program.bindings().len()];
            r.dispatch(&step.program, bound, &parameters, groups)?;
        }
        Ok(())
    }

    /// The windows that a pass goes through: those of the probabilities, those of the output, or a
    /// single empty window.
    fn windows_of(&self, pass: Pass) -> &[Window] {
        const NONE: &[Window] = &[NO_WINDOW];
        match pass {
            Pass::Emit => &self.output_windows,
            Pass::Note | Pass::Resolve | Pass::End => NONE,
            Pass::Walk if !self.whole => NONE,
            _ if self.windows.is_empty() => NONE,
            _ => &self.windows,
        }
    }

    /// The parts of target and draft in a window.
    fn rows_of<'a>(&self, window: &Window, regions: &Regions<'a>) -> [Region<'a>; 2] {
        let draft = self.draft.map_or(NOTHING, |draft| window.of(&draft, regions.draft));
        [window.of(&self.plan.target, regions.target), draft]
    }

    fn parameters(&self, step: &Step, window: &Window) -> Params {
        let Plan { params, draft_token_ids, bonus_token_ids, cu_num_draft, .. } = &self.plan;
        Params {
            requests: self.plan.batch as u32,
            tokens: self.plan.tokens() as u32,
            vocab: self.plan.vocab() as u32,
            max_spec_len: params.max_spec_len as u32,
            jobs: step.jobs as u32,
            chunk: self.chunk as u32,
            chunks: self.plan.vocab().div_ceil(self.chunk) as u32,
            ids_words: words(draft_token_ids.dtype),
            bonus_words: words(bonus_token_ids.dtype),
            cu_words: words(cu_num_draft.dtype),
            positions_words: words_of(self.plan.positions),
            output_words: words(self.plan.output.dtype),
            greedy_words: words_of(self.plan.greedy),
            leading: u32::from(self.plan.has_leading_zero()),
            has_uniform: u32::from(self.plan.has_uniform_samples),
            gathered: self.layout.gathered as u32,
            draft_gathered: self.layout.draft_gathered as u32,
            tops: self.layout.tops as u32,
            states: self.layout.states as u32,
            partials: self.layout.partials as u32,
            maxima: self.layout.maxima as u32,
            bounds: self.layout.bounds as u32,
            groups: (self.plan.vocab().div_ceil(self.chunk) * self.chunk / GROUP) as u32,
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

launch_params! {
    /// What the shaders of `rejection_sample` take.
    struct Params: Pod, Zeroable {
        /// Requests.
        requests: u32,
        /// Draft tokens of all requests.
        tokens: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
        /// The most drafts of a request.
        max_spec_len: u32,
        /// Rows to scan: requests, or draft tokens where it is for greedy requests.
        jobs: u32,
        /// Entries of a chunk, a multiple of `SCAN_THREADS`.
        chunk: u32,
        /// Chunks of a row.
        chunks: u32,
        /// Words of a draft token.
        ids_words: u32,
        /// Words of a bonus token.
        bonus_words: u32,
        /// Words of an offset.
        cu_words: u32,
        /// Words of a position.
        positions_words: u32,
        /// Words of a token that is emitted.
        output_words: u32,
        /// Words of a truth value; 0: it is a byte.
        greedy_words: u32,
        /// 1 where the offsets begin with a 0, else 0.
        leading: u32,
        /// 1 where `uniform_samples` is there, else 0.
        has_uniform: u32,
        /// Where the gathered probabilities of the target start in the workspace, in words.
        gathered: u32,
        /// The same of the draft.
        draft_gathered: u32,
        /// Where the largest entries start in the workspace, in words.
        tops: u32,
        /// Where the requests' states start in the workspace, in words.
        states: u32,
        /// Where the partial results start in the workspace, in words.
        partials: u32,
        /// Where the largest residuals of groups start in the workspace, in words.
        maxima: u32,
        /// Where the bounds of groups start in the workspace, in words.
        bounds: u32,
        /// Groups of a row, a multiple of 4.
        groups: u32,
        /// The first row of the window.
        row0: u32,
        /// The row after the last of the window.
        row1: u32,
        /// The first chunk of the window.
        chunk0: u32,
        /// The chunk after the last of the window.
        chunk1: u32,
        /// Entries from one row of the target to the next in the window.
        target_stride: u32,
        /// The same of the draft.
        draft_stride: u32,
        /// Tokens from one row of the output to the next.
        output_stride: u32,
    }

    /// Threads of a workgroup in passes with one thread per request or per token.
    const SMALL: u64 = 64;
    /// The number of threads that scan a chunk. A chunk is a multiple of this number.
    const SCAN_THREADS: usize = 256;
    /// 32-bit words of the workspace for what one pass over a request hands on to the next.
    const STATE: u64 = 13;
    /// 32-bit words of a chunk's partial result.
    const PARTIAL: u64 = 5;
    /// What `scan` looks for: the residual's argmax, a draw from the residual, or whole rows for greedy
    /// acceptance.
    const ARGMAX: u32 = Mode::Argmax as u32;
    const SAMPLE: u32 = Mode::Sample as u32;
    const GREEDY: u32 = Mode::Greedy as u32;
    /// The bits of 2^-40, the least residual that can be drawn.
    const MIN_RESIDUAL: u32 = rejection_sample::MIN_RESIDUAL.to_bits();
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "rejection_sample", includes: &["bound"], structs: &[Params::DESCRIPTION] };
