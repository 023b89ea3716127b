//! Host side of `kernels/unique_inverse.cu`: where each key is among the distinct keys. Its kernels
//! run after those of `kernels/unique.cu`, and have an archive of their own, so that a call
//! without `inverse` runs the same machine code as before `inverse` existed.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::segments::{self, Segments};
use spec_core::{DType, Result, Vector, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::kernel::{Function, Queue, Shape};

static KERNELS: Archive = archive!("unique_inverse");

/// Blocks per multiprocessor of `unique_index`.
const INDEX_BLOCKS: u32 = 4;
/// Bytes of an entry of the table.
const ENTRY: usize = 2;
/// Bytes behind the marks of the distinct keys: the kernels read two words of marks at once.
const MARKS_BEHIND: usize = 16;

launch_params! {
    /// The parameters of the kernels of `unique` that look up keys.
    pub(super) struct Params {
        /// Keys, [n] of the kernel's type.
        pub(super) keys: u64 as "const void*",
        /// The distinct keys in ascending order; the first `count` of [n].
        pub(super) unique: u64 as "const void*",
        /// The number of distinct keys, one number.
        pub(super) count: u64 as "const u64*",
        /// The index of each key among the distinct keys, [n] of the kernel's type.
        pub(super) inverse: u64 as "void*",
        /// The number of keys.
        pub(super) n: u64,
        /// The sign bit of signed keys, else 0.
        pub(super) flip: u64,
        /// The number of keys of a segment below each of its buckets, [segments, 2^bits].
        pub(super) table: u64 as "u16*",
        /// The mark of each distinct key, [n], and room for `MARKS_BEHIND` more.
        pub(super) marks: u64 as "u8*",
    }

    /// Threads of a block.
    const THREADS: usize = 512;
    /// Keys that a block looks up in one step.
    const TILE: usize = 4 * THREADS;
    /// Blocks per multiprocessor of `unique_inverse`.
    const INVERSE_BLOCKS: u32 = 2;
    /// Neighbouring distinct keys of a thread of `unique_index`. All are in one segment, if there is a
    /// table.
    const RUN: usize = 4;
    /// There are at most `2^SPLITTER_BITS` segments.
    const SPLITTER_BITS: u32 = segments::SPLITTER_BITS;
    /// Segments of at most `2^NO_TABLE` keys are searched without a table.
    const NO_TABLE: u32 = segments::NO_TABLE;
    /// An entry of a table is at most `2^ENTRY_BITS`.
    const ENTRY_BITS: u32 = segments::ENTRY_BITS;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "unique_inverse", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// Looks keys up among the distinct keys.
pub(super) struct Inverse {
    n: usize,
    index: Function,
    inverse: Function,
    index_shape: Shape,
    inverse_shape: Shape,
}

impl Inverse {
    /// The kernels for these keys, and for places of the type `to`.
    pub(super) fn new(cuda: &Cuda, keys: &Vector, to: DType) -> Result<Self> {
        let bits = keys.dtype.size() * 8;
        let max = cuda.limits().multiprocessors;
        let shape = |per: usize, blocks: u32| {
            let steps = u32::try_from(keys.len.div_ceil(per)).unwrap_or(u32::MAX);
            Shape::new(steps.min(max * blocks), THREADS as u32)
        };
        Ok(Inverse {
            n: keys.len,
            index: cuda.function(&KERNELS, &format!("unique_index_{bits}"))?,
            inverse: cuda.function(&KERNELS, &format!("unique_inverse_{bits}_{to}"))?,
            index_shape: shape(RUN * THREADS, INDEX_BLOCKS),
            inverse_shape: shape(TILE, INVERSE_BLOCKS),
        })
    }

    /// The size of the table in bytes: enough whatever the number of distinct keys turns out to be.
    pub(super) fn table_bytes(&self) -> usize {
        (Segments::max_entries(self.n) * ENTRY).next_multiple_of(8)
    }

    /// The size of table and marks in bytes; 0 where there is no table.
    pub(super) fn workspace_bytes(&self) -> usize {
        match self.table_bytes() {
            0 => 0,
            table => table + self.n.next_multiple_of(8) + MARKS_BEHIND,
        }
    }

    /// # Safety
    /// The addresses in `params` are those of the plan's buffers; from `table`, a multiple of 8,
    /// there are `workspace_bytes` bytes; `marks` is `table_bytes` bytes behind `table`.
    pub(super) unsafe fn enqueue(&self, queue: &Queue<'_>, params: &Params) -> Result<()> {
        // SAFETY: the caller promised that the addresses are valid. The kernels read the results
        // of the kernels before them, and the table has room for as many distinct keys as there
        // are keys.
        unsafe {
            if self.table_bytes() > 0 {
                queue.launch(&self.index, self.index_shape, params)?;
            }
            queue.launch(&self.inverse, self.inverse_shape, params)
        }
    }
}
