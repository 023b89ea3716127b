//! Designs of `unique`.
//!
//! On CUDA, the design is the write-up's: a bitonic sort in tiles, then mark, scan and
//! write; for u64 keys without counts. CUB's device-wide radix sort is a peer instead
//! (`peers/with_cub.py`): its launches are host code, which needs CUDA's own compiler.

use rayon::prelude::*;
use rdst::RadixSort as _;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Element, Kernel, Result, Stream, ViewMut};
use spec_cpu::Cpu;
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Function, Queue, Shape};
use voracious_radix_sort::RadixSort as _;

use crate::baselines::{Design, Designs, Role, uncovered};
use spec_conformance::host::{slice, slice_mut};

static KERNELS: Archive = archive!("unique");

/// A design that sorts keys of any dtype and then drops repeats in one pass. For the inverse, all threads
/// look keys up by binary search.
macro_rules! sorted {
    ($name:literal, $cpu:ident, |$keys:ident| $sort:expr) => {
        Design::function($name, $cpu, |plan: &Plan, buffers: Buffers<'_>| match plan.keys.dtype {
            DType::I32 => run(buffers, |$keys: &mut [i32]| $sort),
            DType::U32 => run(buffers, |$keys: &mut [u32]| $sort),
            DType::I64 => run(buffers, |$keys: &mut [i64]| $sort),
            _ => run(buffers, |$keys: &mut [u64]| $sort),
        })
    };
}

impl Designs for Unique {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        vec![Design::new("bitonic sort, mark, scan, write", Role::Seed, cuda, prepare)]
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![
            sorted!("sort_unstable, dedup", cpu, |keys| keys.sort_unstable()),
            sorted!("rayon par_sort_unstable, dedup", cpu, |keys| keys.par_sort_unstable()),
            sorted!("rdst, dedup", cpu, |keys| keys.radix_sort_unstable()),
            sorted!("voracious_radix_sort, dedup", cpu, |keys| {
                keys.voracious_mt_sort(rayon::current_num_threads());
            }),
        ]
    }
}

/// Sorts in the output buffer and drops repeats in place, so that only the sort itself
/// allocates memory.
fn run<K: Element + Ord>(buffers: Buffers<'_>, sort: impl Fn(&mut [K])) -> Result<()> {
    let keys = slice::<K>(buffers.keys)?;
    let unique = slice_mut::<K>(buffers.unique)?;
    unique.copy_from_slice(keys);
    sort(unique);
    let mut count = 0;
    match buffers.counts.map(slice_mut::<u64>).transpose()? {
        None => {
            for at in 0..unique.len() {
                let key = unique[at];
                if at == 0 || key != unique[count - 1] {
                    unique[count] = key;
                    count += 1;
                }
            }
        }
        Some(counts) => {
            for at in 0..unique.len() {
                let key = unique[at];
                if at == 0 || key != unique[count - 1] {
                    unique[count] = key;
                    counts[count] = 0;
                    count += 1;
                }
                counts[count - 1] += 1;
            }
        }
    }
    slice_mut::<u64>(buffers.count)?[0] = count as u64;
    let distinct = &unique[..count];
    let place = |key: &K| distinct.partition_point(|other| other < key);
    match buffers.inverse {
        None => {}
        Some(inverse) if inverse.dtype() == DType::I32 => {
            let places = slice_mut::<i32>(inverse)?.par_iter_mut().zip(keys);
            places.for_each(|(to, key)| *to = place(key) as i32);
        }
        Some(inverse) => {
            let places = slice_mut::<i64>(inverse)?.par_iter_mut().zip(keys);
            places.for_each(|(to, key)| *to = place(key) as i64);
        }
    }
    Ok(())
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    keys: u64,
    sorted: u64,
    unique: u64,
    count: u64,
    level: u64,
    sums: u64,
    n: u64,
    size: u64,
    stride: u64,
}
const _: () = assert!(size_of::<Params>() == 72);

const THREADS: usize = 1024;
/// Keys that a block sorts in shared memory.
const TILE: usize = 4096;
/// The 32-bit words that a block scans.
const SECTION: usize = 2 * THREADS;

struct Prepared {
    cuda: Cuda,
    n: usize,
    /// The number of 32-bit words of each level: the marks, the sums of their sections, the sums
    /// of the sections of these sums, and so on.
    levels: Vec<usize>,
    sort_tile: Function,
    mirror: Function,
    step: Function,
    finish_tile: Function,
    mark: Function,
    scan: Function,
    add: Function,
    write: Function,
}

fn prepare(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
    if plan.keys.dtype != DType::U64 || plan.has_counts || plan.inverse.is_some() {
        return Err(uncovered(cuda, "other than u64 keys without occurrences and inverse"));
    }
    let n = plan.keys.len;
    if u32::try_from(n).is_err() {
        return Err(uncovered(cuda, format!("{n} keys, expected less than 2^32")));
    }
    let mut levels = vec![n];
    while let Some(&words) = levels.last().filter(|&&words| words > SECTION) {
        levels.push(words.div_ceil(SECTION));
    }
    let function = |name: &str| cuda.function(&KERNELS, &format!("unique_{name}"));
    Ok(Box::new(Prepared {
        cuda: cuda.clone(),
        n,
        levels,
        sort_tile: function("sort_tile")?,
        mirror: function("mirror")?,
        step: function("step")?,
        finish_tile: function("finish_tile")?,
        mark: function("mark")?,
        scan: function("scan")?,
        add: function("add")?,
        write: function("write")?,
    }))
}

/// The launch shape for `n` items if each block takes `per` items.
fn blocks(n: usize, per: usize) -> Shape {
    Shape::new(n.div_ceil(per) as u32, THREADS as u32)
}

// SAFETY: as above.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        self.n * 8 + self.levels.iter().sum::<usize>() * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let cuda = &self.cuda;
        let count = cuda.pointer(buffers.count)?;
        if self.n == 0 {
            // SAFETY: `count` was checked to be one u64.
            return cuda.enqueue(stream, |queue| unsafe { queue.zero(count, 8) });
        }
        let sorted = cuda.workspace(workspace, self.workspace_size())?;
        let params = Params {
            keys: cuda.pointer(buffers.keys)?,
            sorted,
            unique: cuda.pointer(buffers.unique)?,
            count,
            level: sorted + self.n as u64 * 8,
            sums: 0,
            n: self.n as u64,
            size: 0,
            stride: 0,
        };
        // SAFETY: `Params` is the kernels', field by field; buffers were checked
        // against the plan, and the workspace holds the keys and all levels.
        cuda.enqueue(stream, |queue| unsafe {
            self.sort(queue, params)?;
            self.compact(queue, params)
        })
    }
}

impl Prepared {
    /// # Safety
    /// The addresses in `params` are those of the plan's buffers and of its
    /// workspace.
    unsafe fn sort(&self, queue: &Queue<'_>, params: Params) -> Result<()> {
        let launch = |function, shape, size: usize, stride: usize| {
            let params = Params { size: size as u64, stride: stride as u64, ..params };
            // SAFETY: the caller promised that the addresses in `params` are valid.
            unsafe { queue.launch(function, shape, &params) }
        };
        let tiles = blocks(self.n, TILE);
        launch(&self.sort_tile, tiles, 0, 0)?;
        let mut run = 2 * TILE;
        while run / 2 < self.n {
            // Pairs of all runs; the last run counts as full.
            let pairs = |run: usize| blocks(self.n.div_ceil(run) * (run / 2), THREADS);
            launch(&self.mirror, pairs(run), run, 0)?;
            let mut stride = run / 4;
            while stride >= TILE {
                launch(&self.step, pairs(2 * stride), 0, stride)?;
                stride /= 2;
            }
            launch(&self.finish_tile, tiles, 0, 0)?;
            run *= 2;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`sort`](Self::sort).
    unsafe fn compact(&self, queue: &Queue<'_>, params: Params) -> Result<()> {
        let launch = |function, shape, params| {
            // SAFETY: the caller promised that the addresses in `params` are valid.
            unsafe { queue.launch(function, shape, &params) }
        };
        launch(&self.mark, blocks(self.n, THREADS), params)?;
        let mut level = params.level;
        let mut levels = Vec::new();
        for (i, &words) in self.levels.iter().enumerate() {
            let next = level + words as u64 * 4;
            let sums = if i + 1 < self.levels.len() { next } else { 0 };
            levels.push(Params { level, sums, size: words as u64, ..params });
            level = next;
        }
        for (level, &words) in levels.iter().zip(&self.levels) {
            launch(&self.scan, blocks(words, SECTION), *level)?;
        }
        for (level, &words) in levels.iter().zip(&self.levels).rev().skip(1) {
            // The first section has nothing before it.
            launch(&self.add, blocks(words - SECTION, SECTION), *level)?;
        }
        launch(&self.write, blocks(self.n, THREADS), params)
    }
}
