//! How the keys of a call are divided: windows, tiles, buckets.

use spec_core::DType;

use super::{CELL_STRIDE, DIGITS, THREADS};
use crate::Wgpu;
use crate::launch::MAX_BINDINGS;

/// 32-bit words of workgroup memory for prefix sums, and a few more.
pub(super) const SCAN_WORDS: u64 = 2 * THREADS + 16;
/// Keys per thread, a multiple of four. Up to `FEW_KEYS` keys, smaller tiles keep a GPU busy.
const ROWS: u64 = 16;
const FEW_ROWS: u64 = 8;
const FEW_KEYS: u64 = 1 << 22;
/// The number of windows of a tensor that are bound at once, and the storage buffers this takes.
pub(super) const WINDOWS: u64 = 4;
pub(super) const WINDOW_BINDINGS: usize = MAX_BINDINGS + 4 * (WINDOWS as usize - 1);
/// The largest number of workgroups that survey or count the keys.
pub(super) const SURVEYS: u64 = 1024;
/// The largest number of digits of a partition: with more, a tile has too few keys of each digit.
const MAX_DIGITS: u64 = 1024;
/// The largest number of buckets for a single partition. Above it, two partitions are used, each
/// with about sqrt(buckets) digits.
pub(super) const FEW_DIGITS: u64 = 512;

/// How tensors lie in bindings.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum BindingLayout {
    /// Each tensor lies in one binding.
    Whole,
    /// Each tensor lies in up to four bindings, which are bound at once.
    Windows,
    /// Each tensor lies in several bindings; a dispatch has one of them to read and one to write.
    Part,
}

/// How the keys are divided.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) n: u64,
    /// 32-bit words of a key.
    pub(super) words: u64,
    pub(super) signed: bool,
    pub(super) rows: u64,
    /// Keys of a window: all keys, or a multiple of a tile.
    pub(super) window: u64,
    pub(super) layout: BindingLayout,
    /// How to sort by buckets; `None` where the keys must be sorted by digits.
    pub(super) buckets: Option<Buckets>,
}

/// How keys are moved to buckets.
#[derive(Clone, Copy)]
pub(super) struct Buckets {
    /// Loads of four keys that a thread makes for a tile of a partition or for a bucket.
    pub(super) fours: u64,
    pub(super) buckets: u64,
    /// Bits of the second digit of a bucket's number; 0 for a single partition.
    pub(super) low_bits: u32,
    /// The number of first digits.
    pub(super) firsts: u64,
}

impl Buckets {
    /// The buckets for `n` keys of `words` 32-bit words each, with `memory` 32-bit words of
    /// workgroup memory. `None` where they do not fit.
    pub(super) fn of(n: u64, words: u64, memory: u64) -> Option<Self> {
        [4, 2, 1].into_iter().find_map(|fours| {
            let capacity = fours * 4 * THREADS;
            // Three quarters of the capacity, so that buckets of random keys do not overflow.
            let buckets = if n <= capacity { 1 } else { n.div_ceil(capacity / 4 * 3) };
            let bits = buckets.next_power_of_two().ilog2();
            let low_bits = if buckets <= FEW_DIGITS { 0 } else { bits / 2 };
            let firsts = buckets.div_ceil(1 << low_bits);
            let this = Buckets { fours, buckets, low_bits, firsts };
            // Two words per digit of a partition, or one per bin of a bucket.
            let extra = (2 * this.digits()).max(this.bins());
            let fits = capacity * words + extra + SCAN_WORDS <= memory;
            (fits && this.digits() <= MAX_DIGITS).then_some(this)
        })
    }

    pub(super) fn capacity(&self) -> u64 {
        self.fours * 4 * THREADS
    }

    /// The number of digits of a partition for which the shader has room.
    pub(super) fn digits(&self) -> u64 {
        self.firsts.max(1 << self.low_bits).next_multiple_of(THREADS)
    }

    pub(super) fn bins(&self) -> u64 {
        self.capacity() / 2
    }

    /// The largest number of tiles of the second partition: the last tile of each first digit may
    /// be incomplete.
    pub(super) fn second_tiles(&self, n: u64) -> u64 {
        n / self.capacity() + self.firsts
    }

    /// Words of the table that hold counters.
    pub(super) fn cells(&self) -> u64 {
        self.buckets + CELL_STRIDE * self.firsts
    }

    /// Words of the table: the counters, then the number of tiles before each first digit.
    pub(super) fn table(&self) -> u64 {
        self.cells() + self.firsts + 1
    }
}

impl Shape {
    pub(super) fn of(gpu: &Wgpu, dtype: DType, n: u64) -> Self {
        let words = dtype.size() as u64 / 4;
        let signed = matches!(dtype, DType::I32 | DType::I64);
        let rows = if n <= FEW_KEYS { FEW_ROWS } else { ROWS };
        // An occurrence count has 64 bits, whatever the key type. A window also needs the
        // neighbouring key on each side.
        let fits = gpu.window(8).saturating_sub(2);
        let window = if n <= fits { n } else { fits / (rows * THREADS) * (rows * THREADS) };
        let limits = &gpu.0.limits;
        let layout = match () {
            () if n <= fits => BindingLayout::Whole,
            () if n <= WINDOWS * window
                && limits.max_storage_buffers_per_shader_stage as usize >= WINDOW_BINDINGS =>
            {
                BindingLayout::Windows
            }
            () => BindingLayout::Part,
        };
        let memory = u64::from(limits.max_compute_workgroup_storage_size) / 4;
        let buckets = match layout {
            BindingLayout::Part => None,
            BindingLayout::Whole | BindingLayout::Windows => Buckets::of(n, words, memory),
        };
        Shape { n, words, signed, rows, window, layout, buckets }
    }

    pub(super) fn tile(&self) -> u64 {
        self.rows * THREADS
    }

    pub(super) fn tiles(&self) -> u64 {
        self.n.div_ceil(self.tile())
    }

    pub(super) fn surveys(&self) -> u64 {
        self.tiles().min(SURVEYS)
    }

    /// Words of the table: a count of each digit for every tile or, if larger, the table of the
    /// buckets with the extremes of each survey.
    pub(super) fn table(&self) -> u64 {
        let buckets = self.buckets.map_or(1, |b| b.table()) + 4 * self.surveys();
        buckets.max(self.tiles() * DIGITS)
    }

    /// The keys that each dispatch handles: all keys at once, or one window after the other.
    pub(super) fn windows(&self) -> impl Iterator<Item = Window> + use<> {
        let Shape { n, window, layout, .. } = *self;
        let each = if layout == BindingLayout::Part { window } else { n };
        let starts = (0..n).step_by(each.max(1) as usize);
        starts.map(move |start| Window { start, len: each.min(n - start) })
    }

    pub(super) fn digits(&self) -> u32 {
        4 * self.words as u32
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) len: u64,
}
