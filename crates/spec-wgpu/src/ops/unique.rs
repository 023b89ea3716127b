//! Distinct keys: the keys are sorted, either by buckets in workgroup memory or by digits, and then
//! compacted. Then, if asked for, each key is looked up among the distinct ones.
//!
//! ```text
//! unique.rs       the operator: its shaders and its programs
//! shape.rs        how the keys are divided
//! dispatches.rs   the dispatches of a call
//! ../unique_inverse.rs   where each key is among the distinct keys
//! ```

mod dispatches;
mod shape;
#[cfg(test)]
mod tests;

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
use crate::ops::unique_inverse::Inverse;
use crate::shader::{Access, Program, Shader, params};
use dispatches::Call;
use shape::{BindingLayout, Buckets, SCAN_WORDS, Shape, WINDOW_BINDINGS, WINDOWS};

/// The shader for keys of `$bits` bits whose tensors lie in bindings as the include `unique_$layout`
/// says.
macro_rules! form {
    ($bits:literal, $layout:literal) => {
        Shader {
            name: concat!("unique_", $layout, "_", $bits),
            source: concat!(
                "//!include unique_keys_",
                $bits,
                "\n//!include unique_",
                $layout,
                "\n",
                include_str!("../../shaders/unique.wgsl")
            ),
            params: params!("unique"),
        }
    };
}

/// The shaders by [`BindingLayout`], then for keys of one and of two 32-bit words.
pub(super) static SHADERS: [[Shader; 2]; 3] = [
    [form!("32", "whole"), form!("64", "whole")],
    [form!("32", "windows"), form!("64", "windows")],
    [form!("32", "part"), form!("64", "part")],
];

/// One of [`SHADERS`], for tests that take a shader of each operator.
#[cfg(test)]
pub(super) static SHADER: Shader = form!("32", "whole");

/// 32-bit words of the state: values that dispatches pass to later ones, and totals of the digits.
const STATE: u64 = TOTALS + DIGITS;
/// 32-bit words of workgroup memory of a scatter, in addition to the sorted tile: bitmaps of the
/// digits, two positions per digit, prefix sums.
const SCATTER_WORDS: u64 = 8 * DIGITS + 2 * DIGITS + SCAN_WORDS;

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

    /// Threads of a workgroup.
    const THREADS: u64 = 256;
    /// Values of a digit.
    const DIGITS: u64 = 256;
    /// The word of the state from which on it has the totals of the digits.
    const TOTALS: u64 = 11;
    /// Words from the counter of one first digit to the next, where there are second digits. All tiles
    /// add to these counters, and additions within one cache line wait for each other.
    const CELL_STRIDE: u64 = 32;
    /// How a call goes on.
    const BY_DIGITS: u32 = 0;
    const BY_BUCKETS: u32 = 1;
    const ASCENDING: u32 = 2;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "unique", includes: &["bound"], structs: &[Params::DESCRIPTION] };

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
        let sorter = Sorter::new(self, plan.keys.dtype, plan.keys.len as u64)?;
        let inverse = plan.inverse.map(|to| Inverse::new(self, &plan.keys, to, sorter.window()));
        Ok(Box::new(Prepared { sorter, inverse: inverse.transpose()? }))
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
        let shader = &SHADERS[shape.layout as usize][shape.words as usize - 1];
        let windows = shape.layout == BindingLayout::Windows;
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

    /// Keys of a window: the largest number that can be bound at once.
    fn window(&self) -> u64 {
        self.shape.window
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

/// A call: the distinct keys, then where each key is among them.
struct Prepared {
    sorter: Sorter,
    inverse: Option<Inverse>,
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        (self.sorter.workspace_words() * 4) as usize
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.sorter.gpu;
        let workspace = gpu.region_of_workspace(workspace)?;
        let keys = gpu.region(&buffers.keys)?;
        let distinct = gpu.region_mut(buffers.unique)?;
        let count = gpu.region_mut(buffers.count)?;
        let occurrences = buffers.counts.map(|c| gpu.region_mut(c)).transpose()?;
        let places = buffers.inverse.map(|c| gpu.region_mut(c)).transpose()?;
        gpu.record("unique", stream, |r| {
            self.sorter.record(r, [keys, distinct, count], occurrences, workspace)?;
            match (&self.inverse, places) {
                (Some(inverse), Some(places)) => inverse.record(r, [keys, distinct, count, places]),
                _ => Ok(()),
            }
        })
    }
}
