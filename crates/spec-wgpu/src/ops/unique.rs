//! Distinct keys: a radix sort in windows of one binding, then compaction.

use bytemuck::{Pod, Zeroable};
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Status, Stream, Supports, ViewMut};

use crate::Wgpu;
use crate::memory::Region;
use crate::record::Recorder;
use crate::shader::{Access, Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("unique");

const THREADS: u64 = 256;
const DIGITS: u64 = 256;
/// Words of bits that vary, and totals of the digits.
const STATE: u64 = 2 + DIGITS;
/// Words of workgroup memory of a scatter, beside a tile in order: bitmaps of
/// the digits, two places a digit, prefix sums.
const SCATTER_WORDS: u64 = 8 * DIGITS + 2 * DIGITS + 2 * THREADS + 4;
/// Keys of a thread, a multiple of four; with fewer keys, smaller tiles keep a GPU busy.
const ROWS: u64 = 16;
const FEW_ROWS: u64 = 8;
const FEW_KEYS: u64 = 1 << 22;

/// The shader's parameters, in its order.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    start: u32,
    len: u32,
    before: u32,
    to: u32,
    to_len: u32,
    tiles: u32,
    digit: u32,
    flip: u32,
    forced: u32,
    counts_keys: u32,
}

/// How the keys are cut up.
#[derive(Clone, Copy)]
struct Shape {
    n: u64,
    /// 32-bit words of a key.
    words: u64,
    signed: bool,
    rows: u64,
    /// Keys of a window: all of them, or a multiple of a tile.
    window: u64,
}

impl Shape {
    fn of(gpu: &Wgpu, dtype: DType, n: u64) -> Self {
        let words = dtype.size() as u64 / 4;
        let signed = matches!(dtype, DType::I32 | DType::I64);
        let rows = if n <= FEW_KEYS { FEW_ROWS } else { ROWS };
        // Occurrences are 64 bits, whatever the keys; a neighbour on each side.
        let fits = gpu.window(8) - 2;
        let window = if n <= fits { n } else { fits / (rows * THREADS) * (rows * THREADS) };
        Shape { n, words, signed, rows, window }
    }

    fn tile(&self) -> u64 {
        self.rows * THREADS
    }

    fn tiles(&self) -> u64 {
        self.n.div_ceil(self.tile())
    }

    fn single(&self) -> bool {
        self.window >= self.n
    }

    /// First key and length of each window.
    fn windows(&self) -> impl Iterator<Item = Window> + use<> {
        let Shape { n, window, .. } = *self;
        let starts = (0..n).step_by(window.max(1) as usize);
        starts.map(move |start| Window { start, len: window.min(n - start) })
    }

    fn digits(&self) -> u32 {
        4 * self.words as u32
    }
}

#[derive(Clone, Copy, Default)]
struct Window {
    start: u64,
    len: u64,
}

/// The programs that sort a number of keys and keep the distinct ones.
pub(super) struct Sorter {
    gpu: Wgpu,
    shape: Shape,
    begin: Program,
    survey: Program,
    count: Program,
    prefix: Program,
    scatter: Program,
    heads: Program,
    compact: Program,
    clear: Program,
    occurrences: Program,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<Unique> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        Ok(Box::new(Sorter::new(self, plan.keys.dtype, plan.keys.len as u64)?))
    }
}

impl Sorter {
    /// For `n` keys.
    pub(super) fn new(gpu: &Wgpu, dtype: DType, n: u64) -> Result<Self> {
        let shape = Shape::of(gpu, dtype, n);
        let table = shape.tiles() * DIGITS;
        if shape.window == 0 && shape.n > 0
            || table > gpu.window(4)
            || shape.n > u64::from(u32::MAX) - shape.tile()
        {
            let words = format!(
                "unique: {} keys need a table of {} bytes, but a binding holds {}",
                shape.n,
                table * 4,
                gpu.0.max_binding
            );
            return Err(gpu.error(Status::NotImplemented, words));
        }
        let stage = shape.tile() * shape.words;
        let memory = u64::from(gpu.0.limits.max_compute_workgroup_storage_size);
        let staged = (stage + SCATTER_WORDS) * 4 <= memory;
        let constants = [
            ("WORDS", shape.words as u32),
            ("ROWS", shape.rows as u32),
            ("SINGLE", u32::from(shape.single())),
            ("STAGED", u32::from(staged)),
            ("STAGE", if staged { stage as u32 } else { 1 }),
        ];
        let mut bindings = [Access::Write; 8];
        bindings[0] = Access::Read;
        let program = |entry| gpu.program(&SHADER, entry, &bindings, &constants);
        Ok(Sorter {
            gpu: gpu.clone(),
            shape,
            begin: program("begin")?,
            survey: program("survey")?,
            count: program("count")?,
            prefix: program("prefix")?,
            scatter: program("scatter")?,
            heads: program("heads")?,
            compact: program("compact")?,
            clear: program("clear")?,
            occurrences: program("occurrences")?,
        })
    }

    /// Words of workspace.
    pub(super) fn workspace_words(&self) -> u64 {
        let Shape { n, words, .. } = self.shape;
        n * words + self.shape.tiles() * DIGITS + STATE
    }

    /// Sorts `keys` and leaves the distinct ones in `distinct`, their number (a
    /// u64) in `count`. All regions are in words.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        [keys, distinct, count]: [Region<'_>; 3],
        occurrences: Option<Region<'_>>,
        mut workspace: Region<'_>,
    ) -> Result<()> {
        let state = workspace.take(STATE);
        let table = workspace.take(self.shape.tiles() * DIGITS);
        let area = workspace.take(self.shape.n * self.shape.words);
        let call = Call { keys, distinct, count, occurrences, area, table, state };
        self.sort(r, &call)?;
        self.write(r, &call)
    }
}

/// The buffers of a call, in words.
struct Call<'a> {
    keys: Region<'a>,
    distinct: Region<'a>,
    count: Region<'a>,
    occurrences: Option<Region<'a>>,
    area: Region<'a>,
    table: Region<'a>,
    state: Region<'a>,
}

/// Which buffer something lies in.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Keys,
    Area,
    Distinct,
}

/// One dispatch: what it reads and writes.
#[derive(Clone, Copy, Default)]
struct Step<'a> {
    source: Window,
    before: bool,
    after: bool,
    target: Window,
    digit: u32,
    counts_keys: bool,
    counters: Option<Region<'a>>,
}

// SAFETY: as above.
unsafe impl Kernel<Unique> for Sorter {
    fn workspace_size(&self) -> usize {
        (self.workspace_words() * 4) as usize
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let workspace = gpu.region_of_workspace(workspace)?;
        let keys = gpu.region(&buffers.keys)?.words();
        let distinct = gpu.region_mut(buffers.unique)?.words();
        let count = gpu.region_mut(buffers.count)?.words();
        let occurrences = buffers.counts.map(|c| gpu.region_mut(c)).transpose()?;
        let occurrences = occurrences.map(Region::words);
        gpu.record("unique", stream, |r| {
            self.record(r, [keys, distinct, count], occurrences, workspace)
        })
    }
}

impl Sorter {
    fn sort(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        if shape.single() && shape.n > 0 {
            let all = Window { start: 0, len: shape.n };
            let step = Step { source: all, ..Step::default() };
            self.run(r, &self.begin, call, Place::Keys, None, step, 1)?;
            self.run(r, &self.survey, call, Place::Keys, None, step, shape.tiles())?;
        }
        let mut from = Place::Keys;
        for digit in 0..shape.digits() {
            // The last pass ends in `area`, as the shader has it too.
            let last = (shape.digits() - digit) % 2 == 1;
            let to = if last { Place::Area } else { Place::Distinct };
            for source in shape.windows() {
                let step = Step { source, digit, ..Step::default() };
                let tiles = source.len.div_ceil(shape.tile());
                self.run(r, &self.count, call, from, None, step, tiles)?;
            }
            let step = Step { digit, ..Step::default() };
            let groups = if shape.n == 0 { 0 } else { DIGITS };
            self.run(r, &self.prefix, call, from, None, step, groups)?;
            for source in shape.windows() {
                for target in shape.windows() {
                    let step = Step { source, target, digit, ..Step::default() };
                    let tiles = source.len.div_ceil(shape.tile());
                    self.run(r, &self.scatter, call, from, Some(to), step, tiles)?;
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Compacts the sorted keys, counts them, and counts occurrences.
    fn write(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        let tiles = |source: Window| source.len.div_ceil(shape.tile());
        let windows = || {
            shape.windows().map(|source| Step {
                source,
                before: source.start > 0,
                after: source.start + source.len < shape.n,
                ..Step::default()
            })
        };
        for step in windows() {
            self.run(r, &self.heads, call, Place::Area, None, step, tiles(step.source))?;
        }
        let step = Step { counts_keys: true, counters: Some(call.count), ..Step::default() };
        self.run(r, &self.prefix, call, Place::Area, None, step, 1)?;
        for step in windows() {
            for target in shape.windows() {
                let step = Step { target, ..step };
                let to = Some(Place::Distinct);
                self.run(r, &self.compact, call, Place::Area, to, step, tiles(step.source))?;
            }
        }
        let Some(occurrences) = call.occurrences else { return Ok(()) };
        for target in shape.windows() {
            let counters = Some(occurrences.elements(2 * target.start, 2 * target.len));
            let step = Step { target, counters, ..Step::default() };
            let groups = target.len.div_ceil(THREADS);
            self.run(r, &self.clear, call, Place::Area, None, step, groups)?;
            for step in windows() {
                let step = Step { target, counters, ..step };
                let groups = tiles(step.source);
                self.run(r, &self.occurrences, call, Place::Area, None, step, groups)?;
            }
        }
        Ok(())
    }

    /// Records one dispatch. With all keys in one binding, everything is bound
    /// and the shader chooses; else what `from` and `to` say.
    #[expect(clippy::too_many_arguments)]
    fn run(
        &self,
        r: &mut Recorder<'_>,
        program: &Program,
        call: &Call<'_>,
        from: Place,
        to: Option<Place>,
        step: Step<'_>,
        groups: u64,
    ) -> Result<()> {
        let Shape { words, n, .. } = self.shape;
        let single = self.shape.single();
        let Step { source, target, .. } = step;
        let first = source.start - u64::from(step.before);
        let len = source.len + u64::from(step.before) + u64::from(step.after);
        let reads = |place: Place, region| {
            part(!single && from == place, region, first * words, len * words)
        };
        let writes = |place: Place, region| {
            let (start, len) = if single { (0, n) } else { (target.start, target.len) };
            part(single || to == Some(place), region, start * words, len * words)
        };
        let regions = [
            if single { call.keys } else { reads(Place::Keys, call.keys) },
            reads(Place::Area, call.area),
            reads(Place::Distinct, call.distinct),
            writes(Place::Area, call.area),
            writes(Place::Distinct, call.distinct),
            call.table,
            call.state,
            step.counters.unwrap_or_else(Region::nothing),
        ];
        let highest = self.shape.signed && step.digit + 1 == self.shape.digits();
        let params = Params {
            n: n as u32,
            start: source.start as u32,
            len: source.len as u32,
            before: u32::from(step.before),
            to: target.start as u32,
            to_len: target.len as u32,
            tiles: self.shape.tiles() as u32,
            digit: step.digit,
            flip: if highest { 0x80 } else { 0 },
            forced: if single { 0 } else { u32::MAX },
            counts_keys: u32::from(step.counts_keys),
        };
        r.dispatch(program, &regions, &params, groups)
    }
}

/// Elements of a region that is bound, or nothing.
fn part(bound: bool, region: Region<'_>, start: u64, len: u64) -> Region<'_> {
    if bound { region.elements(start, len) } else { Region::nothing() }
}
