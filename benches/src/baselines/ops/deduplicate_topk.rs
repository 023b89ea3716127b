//! Designs of `deduplicate_topk`.
//!
//! The write-up starts with a hash table in shared memory and ends with a radix sort per
//! block, with vector loads, results staged in shared memory, and one bit per value in
//! place of flags. Both designs require packed rows, as in the write-up.

use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, ViewMut};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Function, Rows, Shape};

use crate::baselines::{Design, Designs, Role, uncovered};

static KERNELS: Archive = archive!("deduplicate_topk");

impl Designs for DeduplicateTopk {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        vec![
            Design::new("shared-memory hash", Role::Baseline, cuda, hash),
            Design::new("block radix sort, bitmask", Role::Seed, cuda, sort),
        ]
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    indices: u64,
    unique: Rows,
    counts: u64,
    n: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<Params>() == 40);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

/// Threads of the hash design's blocks.
const HASH_THREADS: u32 = 1024;

/// Threads of a block, and values per thread, for which the sort is compiled.
const SORTS: [(u32, u32); 4] = [(256, 8), (512, 8), (512, 12), (1024, 8)];

fn hash(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
    let n = plan.unique.cols;
    // In addition to its dynamic shared memory, the kernel has one counter.
    let limit = cuda.limits().shared as usize - 64;
    let shared = 4 * (n + n.next_power_of_two());
    if shared > limit {
        let words = format!("{n} values of a request need {shared} bytes of shared memory");
        return Err(uncovered(cuda, words));
    }
    prepare(cuda, plan, "deduplicate_topk_hash", |blocks| {
        Shape::new(blocks, HASH_THREADS).shared(shared as u32)
    })
}

fn sort(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
    let n = plan.unique.cols;
    let fits = SORTS.into_iter().find(|(threads, items)| n <= (threads * items) as usize);
    let Some((threads, items)) = fits else {
        return Err(uncovered(cuda, format!("{n} values of a request, at most 8192 are sorted")));
    };
    let name = format!("deduplicate_topk_sort_{threads}_{items}");
    prepare(cuda, plan, &name, |blocks| Shape::new(blocks, threads))
}

fn prepare(
    cuda: &Cuda,
    plan: &Plan,
    name: &str,
    shape: impl Fn(u32) -> Shape,
) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
    if plan.indices.rows > 1 && plan.indices.row_stride != plan.indices.cols {
        return Err(uncovered(cuda, "rows of `indices` lie apart"));
    }
    if plan.inverse.is_some() {
        return Err(uncovered(cuda, "places of indices"));
    }
    let Some(blocks) = u32::try_from(plan.batch).ok().filter(|&blocks| blocks < 1 << 31) else {
        return Err(uncovered(cuda, format!("{} requests", plan.batch)));
    };
    let function = cuda.function(&KERNELS, name)?;
    let (cuda, plan) = (cuda.clone(), plan.clone());
    Ok(Box::new(Prepared { cuda, plan, function, shape: shape(blocks) }))
}

// SAFETY: as above.
unsafe impl Kernel<DeduplicateTopk> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let indices = cuda.pointer(buffers.indices)?;
        let unique = cuda.rows(buffers.unique, &plan.unique)?;
        let sizes = [indices, unique.data, 4 * unique.stride, 4 * plan.unique.cols as u64];
        let params = Params {
            indices,
            unique,
            counts: cuda.pointer(buffers.counts)?,
            n: plan.unique.cols as u32,
            aligned: u32::from(sizes.iter().all(|bytes| bytes.is_multiple_of(16))),
        };
        // SAFETY: `Params` is the kernels', field by field; the buffers were
        // checked against the plan, and the shape holds every value of a request.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
