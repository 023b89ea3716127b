//! Distinct keys: the keys are sorted, either by buckets in workgroup memory or by digits, and then
//! compacted.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Status, Stream, Supports, ViewMut};

use crate::Wgpu;
use crate::launch::{MAX_BINDINGS, Recorder};
use crate::memory::Region;
use crate::shader::{Access, Program, Shader};

/// The shader for keys of `$bits` bits whose tensors lie in bindings as the include `unique_$lie`
/// says.
macro_rules! form {
    ($bits:literal, $lie:literal) => {
        Shader {
            name: concat!("unique_", $lie, "_", $bits),
            source: concat!(
                "//!include unique_keys_",
                $bits,
                "\n//!include unique_",
                $lie,
                "\n",
                include_str!("../../shaders/unique.wgsl")
            ),
        }
    };
}

/// The shaders by [`Lie`], then for keys of one and of two 32-bit words.
pub(super) static SHADERS: [[Shader; 2]; 3] = [
    [form!("32", "whole"), form!("64", "whole")],
    [form!("32", "windows"), form!("64", "windows")],
    [form!("32", "part"), form!("64", "part")],
];

const THREADS: u64 = 256;
const DIGITS: u64 = 256;
/// 32-bit words of the state: values that dispatches pass to later ones, and totals of the digits.
const STATE: u64 = 11 + DIGITS;
/// 32-bit words of workgroup memory for prefix sums, and a few more.
const SCAN_WORDS: u64 = 2 * THREADS + 16;
/// 32-bit words of workgroup memory of a scatter, in addition to the sorted tile: bitmaps of the
/// digits, two positions per digit, prefix sums.
const SCATTER_WORDS: u64 = 8 * DIGITS + 2 * DIGITS + SCAN_WORDS;
/// Keys per thread, a multiple of four. Up to `FEW_KEYS` keys, smaller tiles keep a GPU busy.
const ROWS: u64 = 16;
const FEW_ROWS: u64 = 8;
const FEW_KEYS: u64 = 1 << 22;
/// The number of windows of a tensor that are bound at once, and the storage buffers this takes.
const WINDOWS: u64 = 4;
const WINDOW_BINDINGS: usize = MAX_BINDINGS + 4 * (WINDOWS as usize - 1);
/// The largest number of workgroups that survey or count the keys.
const SURVEYS: u64 = 1024;
/// The largest number of workgroups of a pass by digits: even if the pass turns out to be
/// unnecessary, each of its workgroups costs time.
const MOST_GROUPS: u64 = 1 << 14;
/// The largest number of digits of a partition: with more, a tile has too few keys of each digit.
const MOST_DIGITS: u64 = 1024;
/// The largest number of buckets for a single partition. Above it, two partitions are used, each
/// with about sqrt(buckets) digits.
const FEW_DIGITS: u64 = 512;

launch_params! {
    /// What the shaders of `unique` take.
    struct Params: Pod, Zeroable {
        /// Keys in all.
        n: u32,
        /// The first key of the window that is read.
        start: u32,
        /// Keys of that window.
        len: u32,
        /// The first key that is bound: `start`, or one before it.
        bound: u32,
        /// The first key of the window that is written.
        to: u32,
        /// Keys of that window.
        to_len: u32,
        /// Keys of a window, where several are bound.
        window: u32,
        /// Tiles in all.
        tiles: u32,
        /// The digit of 8 bits, counted from the lowest.
        digit: u32,
        /// What turns the order of signed keys over in their highest digit.
        flip: u32,
        /// Bits that are taken to vary whether or not they do.
        forced: u32,
        /// 1 where this prefix sum counts the distinct keys, else 0.
        counts_keys: u32,
        /// The highest bit of a signed key's upper word.
        sign: u32,
        /// Workgroups of the survey.
        surveys: u32,
        /// Buckets; 0: none.
        buckets: u32,
        /// Bits of the second digit of a bucket's number.
        low_bits: u32,
        /// First digits of buckets' numbers.
        firsts: u32,
        /// Words of the table that are counted in.
        cells: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "unique", includes: &["bound"], structs: &[Params::DESCRIPTION] };

/// Words from the counter of one first digit to the counter of the next.
const APART: u64 = 32;

/// How tensors lie in bindings.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Each tensor lies in one binding.
    Whole,
    /// Each tensor lies in up to four bindings, which are bound at once.
    Windows,
    /// Each tensor lies in several bindings; a dispatch has one of them to read and one to write.
    Part,
}

/// How the keys are divided.
#[derive(Clone, Copy)]
struct Shape {
    n: u64,
    /// 32-bit words of a key.
    words: u64,
    signed: bool,
    rows: u64,
    /// Keys of a window: all keys, or a multiple of a tile.
    window: u64,
    lie: Lie,
    /// How to sort by buckets; `None` where the keys must be sorted by digits.
    buckets: Option<Buckets>,
}

/// How keys are moved to buckets.
#[derive(Clone, Copy)]
struct Buckets {
    /// Loads of four keys that a thread makes for a tile of a partition or for a bucket.
    fours: u64,
    buckets: u64,
    /// Bits of the second digit of a bucket's number; 0 for a single partition.
    low_bits: u32,
    /// The number of first digits.
    firsts: u64,
}

impl Buckets {
    /// The buckets for `n` keys of `words` 32-bit words each, with `memory` 32-bit words of
    /// workgroup memory. `None` where they do not fit.
    fn of(n: u64, words: u64, memory: u64) -> Option<Self> {
        [4, 2, 1].into_iter().find_map(|fours| {
            let capacity = fours * 4 * THREADS;
            // Three quarters of the capacity, so that buckets of random keys do not overflow.
            let buckets = if n <= capacity { 1 } else { n.div_ceil(capacity / 4 * 3) };
            let bits = buckets.next_power_of_two().ilog2();
            let low_bits = if buckets <= FEW_DIGITS { 0 } else { bits / 2 };
            let firsts = buckets.div_ceil(1 << low_bits);
            let this = Buckets { fours, buckets, low_bits, firsts };
            // Two words per digit of a partition, or one per bin of a bucket.
            let most = (2 * this.digits()).max(this.bins());
            let fits = capacity * words + most + SCAN_WORDS <= memory;
            (fits && this.digits() <= MOST_DIGITS).then_some(this)
        })
    }

    fn capacity(&self) -> u64 {
        self.fours * 4 * THREADS
    }

    /// The number of digits of a partition for which the shader has room.
    fn digits(&self) -> u64 {
        self.firsts.max(1 << self.low_bits).next_multiple_of(THREADS)
    }

    fn bins(&self) -> u64 {
        self.capacity() / 2
    }

    /// The largest number of tiles of the second partition: the last tile of each first digit may
    /// be incomplete.
    fn second_tiles(&self, n: u64) -> u64 {
        n / self.capacity() + self.firsts
    }

    /// Words of the table that hold counters.
    fn cells(&self) -> u64 {
        self.buckets + APART * self.firsts
    }

    /// Words of the table: the counters, then the number of tiles before each first digit.
    fn table(&self) -> u64 {
        self.cells() + self.firsts + 1
    }
}

impl Shape {
    fn of(gpu: &Wgpu, dtype: DType, n: u64) -> Self {
        let words = dtype.size() as u64 / 4;
        let signed = matches!(dtype, DType::I32 | DType::I64);
        let rows = if n <= FEW_KEYS { FEW_ROWS } else { ROWS };
        // An occurrence count has 64 bits, whatever the key type. A window also needs the
        // neighbouring key on each side.
        let fits = gpu.window(8).saturating_sub(2);
        let window = if n <= fits { n } else { fits / (rows * THREADS) * (rows * THREADS) };
        let limits = &gpu.0.limits;
        let lie = match () {
            () if n <= fits => Lie::Whole,
            () if n <= WINDOWS * window
                && limits.max_storage_buffers_per_shader_stage as usize >= WINDOW_BINDINGS =>
            {
                Lie::Windows
            }
            () => Lie::Part,
        };
        let memory = u64::from(limits.max_compute_workgroup_storage_size) / 4;
        let buckets = match lie {
            Lie::Part => None,
            Lie::Whole | Lie::Windows => Buckets::of(n, words, memory),
        };
        Shape { n, words, signed, rows, window, lie, buckets }
    }

    fn tile(&self) -> u64 {
        self.rows * THREADS
    }

    fn tiles(&self) -> u64 {
        self.n.div_ceil(self.tile())
    }

    fn surveys(&self) -> u64 {
        self.tiles().min(SURVEYS)
    }

    /// Words of the table: a count of each digit for every tile or, if larger, the table of the
    /// buckets with the extremes of each survey.
    fn table(&self) -> u64 {
        let buckets = self.buckets.map_or(1, |b| b.table()) + 4 * self.surveys();
        buckets.max(self.tiles() * DIGITS)
    }

    /// The keys that each dispatch handles: all keys at once, or one window after the other.
    fn windows(&self) -> impl Iterator<Item = Window> + use<> {
        let Shape { n, window, lie, .. } = *self;
        let each = if lie == Lie::Part { window } else { n };
        let starts = (0..n).step_by(each.max(1) as usize);
        starts.map(move |start| Window { start, len: each.min(n - start) })
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

/// The programs that sort the keys and keep the distinct ones.
pub(super) struct Sorter {
    gpu: Wgpu,
    shape: Shape,
    by_buckets: Option<ByBuckets>,
    begin: Program,
    survey: Program,
    choose: Program,
    count: Program,
    prefix: Program,
    scatter: Program,
    heads: Program,
    compact: Program,
    clear: Program,
    occurrences: Program,
}

/// The programs that only sorting by buckets needs.
struct ByBuckets {
    buckets: Buckets,
    count_firsts: Program,
    arrange_firsts: Program,
    partition_first: Program,
    count_seconds: Program,
    arrange: Program,
    partition_second: Program,
    sort_buckets: Program,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<Unique> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        Ok(Box::new(Sorter::new(self, plan.keys.dtype, plan.keys.len as u64)?))
    }
}

impl Sorter {
    /// Compiles the programs for `n` keys.
    pub(super) fn new(gpu: &Wgpu, dtype: DType, n: u64) -> Result<Self> {
        let shape = Shape::of(gpu, dtype, n);
        let table = shape.table();
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
        let memory = u64::from(gpu.0.limits.max_compute_workgroup_storage_size);
        let staged = (shape.tile() * shape.words + SCATTER_WORDS) * 4 <= memory;
        let constants = [
            ("ROWS", shape.rows as u32),
            ("STAGED", u32::from(staged)),
            ("STAGE", if staged { shape.tile() as u32 } else { 1 }),
        ];
        let shader = &SHADERS[shape.lie as usize][shape.words as usize - 1];
        let windows = shape.lie == Lie::Windows;
        let mut bindings =
            vec![Access::Write; if windows { WINDOW_BINDINGS } else { MAX_BINDINGS }];
        bindings[0] = Access::Read;
        if windows {
            bindings[MAX_BINDINGS..][..WINDOWS as usize - 1].fill(Access::Read);
        }
        let program = |entry| gpu.program(shader, entry, &bindings, &constants);
        let by_buckets = |buckets: Buckets| -> Result<ByBuckets> {
            let constants = [
                ("ROWS", shape.rows as u32),
                ("FOURS", buckets.fours as u32),
                ("CAPACITY", buckets.capacity() as u32),
                ("SPLIT", buckets.digits() as u32),
                ("BINS", buckets.bins() as u32),
                ("BIN_SHIFT", 32 - buckets.bins().ilog2()),
            ];
            let program = |entry| gpu.program(shader, entry, &bindings, &constants);
            Ok(ByBuckets {
                buckets,
                count_firsts: program("count_firsts")?,
                arrange_firsts: program("arrange_firsts")?,
                partition_first: program("partition_first")?,
                count_seconds: program("count_seconds")?,
                arrange: program("arrange")?,
                partition_second: program("partition_second")?,
                sort_buckets: program("sort_buckets")?,
            })
        };
        Ok(Sorter {
            gpu: gpu.clone(),
            shape,
            by_buckets: shape.buckets.map(by_buckets).transpose()?,
            begin: program("begin")?,
            survey: program("survey")?,
            choose: program("choose")?,
            count: program("count")?,
            prefix: program("prefix")?,
            scatter: program("scatter")?,
            heads: program("heads")?,
            compact: program("compact")?,
            clear: program("clear")?,
            occurrences: program("occurrences")?,
        })
    }

    /// The size of the workspace in 32-bit words.
    pub(super) fn workspace_words(&self) -> u64 {
        let Shape { n, words, .. } = self.shape;
        // One more word aligns keys of two words.
        words - 1 + n * words + self.shape.table() + STATE
    }

    /// Sorts `keys` and writes the distinct keys to `distinct` and their number (a u64) to `count`.
    /// `workspace` is a region of 32-bit words.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        [keys, distinct, count]: [Region<'_>; 3],
        occurrences: Option<Region<'_>>,
        mut workspace: Region<'_>,
    ) -> Result<()> {
        let Shape { n, words, .. } = self.shape;
        let size = 4 * words;
        workspace.take(workspace.offset % size / 4);
        let area = workspace.take(n * words).sized(size);
        let table = workspace.take(self.shape.table());
        let state = workspace.take(STATE);
        let count = count.words();
        let occurrences = occurrences.map(Region::words);
        let call = Call { keys, distinct, count, occurrences, area, table, state };
        self.sort(r, &call)?;
        self.write(r, &call)
    }
}

/// The buffers of a call: `keys`, `distinct` and `area` hold keys, the others 32-bit words.
struct Call<'a> {
    keys: Region<'a>,
    distinct: Region<'a>,
    count: Region<'a>,
    occurrences: Option<Region<'a>>,
    area: Region<'a>,
    table: Region<'a>,
    state: Region<'a>,
}

/// A buffer that holds keys.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Keys,
    Area,
    Distinct,
}

/// What one dispatch reads and writes.
#[derive(Clone, Copy)]
struct Step<'a> {
    from: Place,
    to: Option<Place>,
    source: Window,
    before: bool,
    after: bool,
    target: Window,
    digit: u32,
    counts_keys: bool,
    counters: Option<Region<'a>>,
}

impl Step<'_> {
    fn from(from: Place, source: Window) -> Self {
        Step {
            from,
            to: None,
            source,
            before: false,
            after: false,
            target: Window::default(),
            digit: 0,
            counts_keys: false,
            counters: None,
        }
    }
}

// SAFETY: as for `Supports` above.
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
        let keys = gpu.region(&buffers.keys)?;
        let distinct = gpu.region_mut(buffers.unique)?;
        let count = gpu.region_mut(buffers.count)?;
        let occurrences = buffers.counts.map(|c| gpu.region_mut(c)).transpose()?;
        gpu.record("unique", stream, |r| {
            self.record(r, [keys, distinct, count], occurrences, workspace)
        })
    }
}

impl Sorter {
    fn sort(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        if shape.lie == Lie::Part || shape.n == 0 {
            return self.sort_by_digits(r, call);
        }
        let all = Step::from(Place::Keys, Window { start: 0, len: shape.n });
        let cells = self.shape.buckets.map_or(1, |b| b.cells());
        self.run(r, &self.begin, call, all, cells.div_ceil(THREADS))?;
        self.run(r, &self.survey, call, all, shape.surveys())?;
        self.run(r, &self.choose, call, all, 1)?;
        let Some(by) = &self.by_buckets else {
            return self.sort_by_digits(r, call);
        };
        let Buckets { buckets, low_bits, .. } = by.buckets;
        let tiles = shape.n.div_ceil(by.buckets.capacity());
        if buckets > 1 {
            self.run(r, &by.count_firsts, call, all, tiles.min(SURVEYS))?;
        }
        if low_bits > 0 {
            self.run(r, &by.arrange_firsts, call, all, 1)?;
            self.run(r, &by.partition_first, call, all, tiles)?;
            let tiles = by.buckets.second_tiles(shape.n);
            self.run(r, &by.count_seconds, call, all, tiles)?;
            self.run(r, &by.arrange, call, all, 1)?;
            self.run(r, &by.partition_second, call, all, tiles)?;
        } else if buckets > 1 {
            self.run(r, &by.arrange, call, all, 1)?;
            self.run(r, &by.partition_first, call, all, tiles)?;
        }
        self.run(r, &by.sort_buckets, call, all, buckets)?;
        // A single bucket has room for all keys, so sorting by digits is never needed after it.
        if buckets > 1 { self.sort_by_digits(r, call) } else { Ok(()) }
    }

    fn sort_by_digits(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        let mut from = Place::Keys;
        for digit in 0..shape.digits() {
            // The last pass must write to `area`, as in the shader.
            let last = (shape.digits() - digit) % 2 == 1;
            let to = if last { Place::Area } else { Place::Distinct };
            for source in shape.windows() {
                let step = Step { digit, ..Step::from(from, source) };
                let groups = source.len.div_ceil(shape.tile()).min(MOST_GROUPS);
                self.run(r, &self.count, call, step, groups)?;
            }
            let step = Step { digit, ..Step::from(from, Window::default()) };
            let groups = if shape.n == 0 { 0 } else { DIGITS };
            self.run(r, &self.prefix, call, step, groups)?;
            for source in shape.windows() {
                for target in shape.windows() {
                    let step = Step { to: Some(to), target, digit, ..Step::from(from, source) };
                    let groups = source.len.div_ceil(shape.tile()).min(MOST_GROUPS);
                    self.run(r, &self.scatter, call, step, groups)?;
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
                before: source.start > 0,
                after: source.start + source.len < shape.n,
                ..Step::from(Place::Area, source)
            })
        };
        for step in windows() {
            self.run(r, &self.heads, call, step, tiles(step.source))?;
        }
        let step = Step::from(Place::Area, Window::default());
        let step = Step { counts_keys: true, counters: Some(call.count), ..step };
        self.run(r, &self.prefix, call, step, 1)?;
        for step in windows() {
            for target in shape.windows() {
                let step = Step { to: Some(Place::Distinct), target, ..step };
                self.run(r, &self.compact, call, step, tiles(step.source))?;
            }
        }
        let Some(occurrences) = call.occurrences else { return Ok(()) };
        for target in shape.windows() {
            let step = Step::from(Place::Area, Window::default());
            let step = Step { target, counters: Some(occurrences), ..step };
            self.run(r, &self.clear, call, step, target.len.div_ceil(THREADS))?;
            for step in windows() {
                let step = Step { target, counters: Some(occurrences), ..step };
                self.run(r, &self.occurrences, call, step, tiles(step.source))?;
            }
        }
        Ok(())
    }

    /// Records one dispatch. Where a dispatch handles all keys, every buffer is bound and the
    /// shader chooses among them; otherwise only the buffers that `step` names are bound.
    fn run(
        &self,
        r: &mut Recorder<'_>,
        program: &Program,
        call: &Call<'_>,
        step: Step<'_>,
        groups: u64,
    ) -> Result<()> {
        let Shape { n, window, lie, signed, .. } = self.shape;
        let Step { source, target, .. } = step;
        let first = source.start - u64::from(step.before);
        let mut regions = [Region::nothing(); WINDOW_BINDINGS];
        regions[5] = call.table;
        regions[6] = call.state;
        let counters = step.counters.unwrap_or_else(Region::nothing);
        if lie == Lie::Part {
            let len = source.len + u64::from(step.before) + u64::from(step.after);
            let places = [call.keys, call.area, call.distinct];
            // In the order of the bindings: the buffer to read, then the buffer to write.
            regions[step.from as usize] = places[step.from as usize].elements(first, len);
            if let Some(to) = step.to {
                regions[to as usize + 2] = places[to as usize].elements(target.start, target.len);
            }
            regions[7] = counters.elements(2 * target.start, 2 * target.len);
        } else {
            // The first window (for `Lie::Whole` the whole tensor), then the other windows.
            let others = WINDOWS - 1;
            let tensors = [(0, call.keys, 1), (3, call.area, 1), (4, call.distinct, 1)];
            for (i, (slot, region, each)) in
                tensors.into_iter().chain([(7, counters, 2)]).enumerate()
            {
                regions[slot] = region.elements(0, each * window);
                for w in 1..=others {
                    let slot = MAX_BINDINGS + (i as u64 * others + w - 1) as usize;
                    regions[slot] = region.elements(each * w * window, each * window);
                }
            }
        }
        if step.counts_keys {
            regions[7] = counters;
        }
        let bound = program.bindings().len();
        let highest = signed && step.digit + 1 == self.shape.digits();
        let buckets = self.shape.buckets;
        let params = Params {
            n: n as u32,
            start: source.start as u32,
            len: source.len as u32,
            bound: first as u32,
            to: target.start as u32,
            to_len: target.len as u32,
            window: window as u32,
            tiles: self.shape.tiles() as u32,
            digit: step.digit,
            flip: if highest { 0x80 } else { 0 },
            forced: if lie == Lie::Part { u32::MAX } else { 0 },
            counts_keys: u32::from(step.counts_keys),
            sign: if signed { 1 << 31 } else { 0 },
            surveys: self.shape.surveys() as u32,
            buckets: buckets.map_or(0, |b| b.buckets as u32),
            low_bits: buckets.map_or(0, |b| b.low_bits),
            firsts: buckets.map_or(0, |b| b.firsts as u32),
            cells: buckets.map_or(0, |b| b.cells() as u32),
        };
        r.dispatch(program, &regions[..bound], &params, groups)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use spec_core::{Backend, Descriptor, Memory, TensorDesc};

    use super::*;
    use crate::Options;

    /// How a call sorted its keys. The shader has the same numbers.
    const BY_DIGITS: u32 = 0;
    const BY_BUCKETS: u32 = 1;
    const ASCENDING: u32 = 2;

    /// Devices on which all tensors lie in one binding, with much and with little workgroup memory,
    /// and a device on which tensors lie in several windows.
    fn gpus() -> Vec<Wgpu> {
        let plain = Options { plain: true, ..Options::default() };
        let windows = Options { plain: false, max_binding: Some(80_000) };
        let opened = [Options::default(), plain, windows].map(|o| Wgpu::open_with(0, &o));
        let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
        let found: Vec<_> = opened.into_iter().filter_map(|gpu| gpu.ok()).collect();
        assert!(!required.contains("wgpu") || found.len() == 3, "no wgpu device");
        found
    }

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z ^ (z >> 29)
        }
    }

    fn words(memory: &dyn Memory, from: usize, len: usize) -> Vec<u32> {
        let mut bytes = vec![0; len * 4];
        memory.read_at(from * 4, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
    }

    fn keys_of(words: &[u32], dtype: DType) -> Vec<i128> {
        let wide = |w: &[u32]| u64::from(w[0]) | (u64::from(w[1]) << 32);
        match dtype {
            DType::U32 => words.iter().map(|&w| i128::from(w)).collect(),
            DType::I32 => words.iter().map(|&w| i128::from(w as i32)).collect(),
            DType::U64 => words.chunks_exact(2).map(|w| i128::from(wide(w))).collect(),
            _ => words.chunks_exact(2).map(|w| i128::from(wide(w) as i64)).collect(),
        }
    }

    /// Runs the operator, compares its results with a map, and returns how the call sorted the
    /// keys.
    fn check(gpu: &Wgpu, dtype: DType, keys: &[u64], what: &str) -> u32 {
        let n = keys.len();
        let bytes: Vec<u8> = match dtype.size() {
            4 => keys.iter().flat_map(|&k| (k as u32).to_le_bytes()).collect(),
            _ => keys.iter().flat_map(|&k| k.to_le_bytes()).collect(),
        };
        let given = bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
        let mut expected = BTreeMap::<i128, u64>::new();
        for key in keys_of(&given.collect::<Vec<_>>(), dtype) {
            *expected.entry(key).or_default() += 1;
        }
        let counts = Some(TensorDesc::new(DType::U64, [n]));
        let mut tensors = Unique::new().tensors(dtype, n);
        tensors.counts = counts;
        let descriptor = Descriptor::create(gpu, &Unique::new(), &tensors).unwrap();
        let allocate = |bytes: usize| gpu.allocate_bytes(bytes).unwrap();
        let mut input = allocate(bytes.len());
        input.write(&bytes).unwrap();
        let mut workspace = allocate(descriptor.workspace_size());
        let (mut unique, mut count) = (allocate(bytes.len()), allocate(8));
        let mut occurrences = allocate(n * 8);
        for memory in [&mut workspace, &mut unique, &mut count, &mut occurrences] {
            memory.write(&vec![0xC3; memory.size()]).unwrap();
        }
        let buffers = Buffers::new(
            input.view(dtype, n),
            unique.view_mut(dtype, n),
            count.view_mut(DType::U64, 1),
        )
        .counts(occurrences.view_mut(DType::U64, n));
        let scratch = workspace.view_mut(DType::U8, descriptor.workspace_size());
        descriptor.call(scratch, buffers).unwrap();
        gpu.synchronize().unwrap();
        assert_eq!(words(&*count, 0, 2), [expected.len() as u32, 0], "{what}");
        let found = words(&*unique, 0, expected.len() * dtype.size() / 4);
        assert!(keys_of(&found, dtype).iter().eq(expected.keys()), "{what}: keys");
        let found = words(&*occurrences, 0, expected.len() * 2);
        let found = keys_of(&found, DType::U64);
        assert!(found.into_iter().eq(expected.values().map(|&c| i128::from(c))), "{what}: counts");
        let shape = Shape::of(gpu, dtype, n as u64);
        let state = shape.n * shape.words + shape.table();
        words(&*workspace, state as usize + 3, 1)[0]
    }

    fn capacity(gpu: &Wgpu, dtype: DType) -> u64 {
        Shape::of(gpu, dtype, 100).buckets.unwrap().capacity()
    }

    #[test]
    fn random_keys_go_by_buckets() {
        let mut random = Random(1);
        for gpu in gpus() {
            for dtype in [DType::U64, DType::I64, DType::U32, DType::I32] {
                let fits = capacity(&gpu, dtype);
                // Numbers of keys that need one bucket, one partition, and two partitions.
                let most = WINDOWS * ((gpu.window(8) - 2) / 4096 * 4096);
                let two = (FEW_DIGITS * fits / 4 * 3 + 1).min(most);
                let two = if matches!(dtype, DType::U64 | DType::I32) { two } else { 77 };
                for n in [2, 33, fits - 1, fits, fits + 1, 3 * fits + 7, two] {
                    let keys: Vec<_> = (0..n).map(|_| random.next()).collect();
                    let what = format!("{dtype}, {n}");
                    let way = check(&gpu, dtype, &keys, &what);
                    let ascends = n == 2 && way == ASCENDING;
                    assert!(way == BY_BUCKETS || ascends, "{what}: {way}");
                }
            }
        }
    }

    #[test]
    fn a_bucket_that_just_fits_and_one_that_does_not() {
        let mut random = Random(2);
        for gpu in gpus() {
            for dtype in [DType::U64, DType::I32] {
                let fits = capacity(&gpu, dtype);
                let n = 3 * fits;
                for (inside, way) in
                    [(fits - 1, BY_BUCKETS), (fits, BY_BUCKETS), (fits + 1, BY_DIGITS)]
                {
                    // Four buckets; the first holds the quarter of the range that starts at the
                    // least key.
                    let range = 1 << if dtype.size() == 8 { 60 } else { 30 };
                    let mut keys: Vec<_> = (0..n)
                        .map(|i| match i {
                            0 => 0,
                            i if i < inside => random.next() % (range / 4),
                            i => range / 4 + (range - 1 - range / 4) / (n - inside) * (i - inside),
                        })
                        .collect();
                    *keys.last_mut().unwrap() = range - 1;
                    keys.reverse();
                    let what = format!("{dtype}, {inside} of {n} in a bucket of {fits}");
                    assert_eq!(check(&gpu, dtype, &keys, &what), way, "{what}");
                }
            }
        }
    }

    #[test]
    fn equals_and_neighbours() {
        let mut random = Random(3);
        for gpu in gpus() {
            for dtype in [DType::U64, DType::I64, DType::U32] {
                let fits = capacity(&gpu, dtype);
                let n = 4 * fits + 5;
                let mut check_set = |what: &str, way: u32, key: &mut dyn FnMut(u64, u64) -> u64| {
                    let keys: Vec<_> = (0..n).map(|i| key(i, random.next())).collect();
                    assert_eq!(check(&gpu, dtype, &keys, what), way, "{dtype}, {what}");
                };
                check_set("constant", ASCENDING, &mut |_, _| 7);
                check_set("ascending", ASCENDING, &mut |i, _| i / 3);
                check_set("one key at the end", BY_DIGITS, &mut |i, _| u64::from(i + 1 == n) ^ 1);
                check_set("descending", BY_BUCKETS, &mut |i, _| (n - i) / 2);
                check_set("half of them equal", BY_DIGITS, &mut |i, r| {
                    if i % 2 == 0 { 9 } else { r }
                });
                // Each distinct key has a bin of its own.
                check_set("seventy-fold", BY_BUCKETS, &mut |_, r| (r >> 40) % (n / 70));
                // Bins hold more keys than are ranked one by one.
                check_set("in clusters", BY_BUCKETS, &mut |_, r| {
                    ((r % 60) << 25) | ((r >> 40) % 900)
                });
                check_set("equal in clusters", BY_BUCKETS, &mut |_, r| {
                    ((r % 60) << 25) | ((r >> 40) % 2)
                });
                check_set("less than buckets", BY_DIGITS, &mut |_, r| r % 3);
            }
        }
    }

    /// With enough buckets, a sample shows where most keys lie.
    #[test]
    fn strays_and_bunches() {
        let mut random = Random(5);
        for gpu in gpus().into_iter().take(2) {
            for dtype in [DType::I64, DType::U32] {
                let n = 64 * capacity(&gpu, dtype);
                let mut check_set = |what: &str, way: u32, key: &mut dyn FnMut(u64, u64) -> u64| {
                    let keys: Vec<_> = (0..n).map(|i| key(i, random.next())).collect();
                    assert_eq!(check(&gpu, dtype, &keys, what), way, "{dtype}, {what}");
                };
                let stray = |i: u64| (i == 77).then_some(1 << 31).or((i == 78).then_some(0));
                check_set("two strays", BY_BUCKETS, &mut |i, r| {
                    stray(i).unwrap_or((1 << 29) | ((r >> 40) % (1 << 20)))
                });
                // 1000 values, and one stray on each side of them.
                check_set("strays of equals", BY_BUCKETS, &mut |i, r| {
                    stray(i).unwrap_or((1 << 29) | ((r >> 40) % 1000))
                });
                check_set("bunched", BY_DIGITS, &mut |i, r| {
                    (r >> 40) << (u64::from(i % 9 == 0) * 8)
                });
            }
        }
    }

    /// Bindings are so few and so small that windows must be sorted one by one.
    #[test]
    fn parts() {
        let options = Options { plain: true, max_binding: Some(40_000) };
        let Ok(gpu) = Wgpu::open_with(0, &options) else { return };
        let mut random = Random(4);
        for dtype in [DType::I64, DType::U32] {
            let keys: Vec<_> = (0..20_000).map(|_| random.next() >> 50).collect();
            assert!(Shape::of(&gpu, dtype, 20_000).lie == Lie::Part);
            check(&gpu, dtype, &keys, "parts");
        }
    }

    /// Whatever the number of keys, two digits can number all buckets, and the buckets have room
    /// for all keys.
    #[test]
    fn buckets_have_two_digits() {
        for shift in 0..30 {
            for n in [1u64 << shift, (1 << shift) + 1, 3 << shift] {
                for (words, memory) in [(1, 4096), (2, 4096), (1, 12_288), (2, 12_288)] {
                    let Some(buckets) = Buckets::of(n, words, memory) else {
                        assert!(n > 1 << 27 && memory == 4096, "{n} keys, {words} words");
                        continue;
                    };
                    let digits = buckets.digits();
                    assert!(buckets.firsts << buckets.low_bits >= buckets.buckets);
                    assert!(buckets.firsts <= digits && 1 << buckets.low_bits <= digits);
                    assert!(buckets.buckets * buckets.capacity() >= n);
                    assert!(n < 1 << 20 || buckets.table() * 16 < n);
                }
            }
        }
    }
}
