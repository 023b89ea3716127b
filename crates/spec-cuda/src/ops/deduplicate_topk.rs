//! Host side of `kernels/deduplicate_topk.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Rows;
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("deduplicate_topk");

/// The number of values that a thread keeps in registers, and the kernel for this number.
const KERNELS_BY_SIZE: [(usize, &str); 5] = [
    (2, "deduplicate_topk_2"),
    (4, "deduplicate_topk_4"),
    (6, "deduplicate_topk_6"),
    (8, "deduplicate_topk_8"),
    (16, "deduplicate_topk_16"),
];
/// The same for calls that also want the ranks of the values. With more values, a kernel of its own
/// finds the ranks.
const RANKED_BY_SIZE: [(usize, &str); 2] =
    [(4, "deduplicate_topk_ranked_4"), (8, "deduplicate_topk_ranked_8")];
/// The largest number of blocks that find ranks.
const MAX_LOCATE_BLOCKS: usize = 1 << 16;
/// The binary logarithm of the words of shared memory that hold the bits of values in registers.
const LOG_WORDS: u32 = 14;
/// Words of the staging area for values in registers, where a request has more values than fit.
const STAGE_WORDS: u32 = 8 * THREADS;
/// The binary logarithm of the words of a window's bitmap: of 2^20 values, the length of the longest
/// contexts, if shared memory suffices, otherwise of 2^19 values.
const LOG_WINDOW_WORDS: [u32; 2] = [15, LOG_WORDS];
/// Shared memory that the kernels use in addition to the dynamic shared memory, in bytes.
const FIXED_SHARED: u32 = 2048;

launch_params! {
    /// The parameters of the kernels of `deduplicate_topk`.
    struct Params {
        /// Values, [batch * rows, cols]; a negative value is padding.
        indices: Rows as "Rows<const i32>",
        /// The distinct values of each request in ascending order, followed by -1, [batch, rows *
        /// cols].
        unique: Rows as "Rows<i32>",
        /// The number of distinct values of each request, [batch], or null.
        counts: u64 as "i32*",
        /// The number of requests.
        batch: u64,
        /// The number of separate rows of a request; 1 if they are contiguous.
        rows: u32,
        /// The number of values of a row.
        cols: u32,
        /// The base-2 logarithm of the number of words of a window's bitmap.
        log_words: u32,
        reserved: u32,
        /// Room for the values of a request for each block, [blocks, rows * cols], or null.
        workspace: u64 as "i32*",
        /// The place of each value among the distinct values of its request, [batch * rows, cols],
        /// or null.
        inverse: Rows as "Rows<i32>",
    }

    /// Threads of a block.
    const THREADS: u32 = 1024;
    /// Words of shared memory before the staging area: bits of values, and counts.
    const BIT_WORDS: u32 = 1 << LOG_WORDS;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "deduplicate_topk", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    log_words: u32,
    workspace_size: usize,
    /// The kernel that finds the ranks, if the first kernel does not.
    locate: Option<(Function, Shape)>,
}

/// Size of the dynamic shared memory in bytes: the bits and the staged values, or a window's bitmap,
/// whichever is larger.
fn shared(stage_words: u32, log_words: u32) -> u32 {
    (4 * (BIT_WORDS + stage_words)).max(4 << log_words)
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<DeduplicateTopk> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
        let n = plan.unique.cols;
        let limits = self.limits();
        let limit = limits.shared - FIXED_SHARED;
        // The bitonic sort stages a power of two of values.
        let stage = |items: usize| (items as u32 * THREADS).next_power_of_two();
        let fits = |&(items, _): &(usize, _)| {
            // For the fewer values, shared memory suffices on every device.
            let has_room = items <= 8 || shared(stage(items), LOG_WORDS) <= limit;
            n <= items * THREADS as usize && has_room
        };
        // If there are more requests than blocks, each block takes several requests.
        let requests = plan.batch.min(1 << 30) as u32;
        let ranked = plan.inverse.and_then(|_| RANKED_BY_SIZE.into_iter().find(fits));
        let registers = ranked.or_else(|| KERNELS_BY_SIZE.into_iter().find(fits));
        let (name, blocks, log_words, stage_words) = match registers {
            Some((items, name)) => (name, requests, LOG_WORDS, stage(items)),
            None => {
                let [larger, smaller] = LOG_WINDOW_WORDS;
                let log_words = if shared(STAGE_WORDS, larger) <= limit { larger } else { smaller };
                let blocks = requests.min(limits.multiprocessors);
                ("deduplicate_topk_general", blocks, log_words, STAGE_WORDS)
            }
        };
        let locate = plan.inverse.filter(|_| ranked.is_none()).map(|matrix| {
            let values = matrix.rows.saturating_mul(matrix.cols);
            let blocks = values.div_ceil(THREADS as usize).clamp(1, MAX_LOCATE_BLOCKS);
            let function = self.function(&KERNELS, "deduplicate_topk_locate")?;
            Ok((function, Shape::new(blocks as u32, THREADS)))
        });
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, name)?,
            shape: Shape::new(blocks, THREADS).shared(shared(stage_words, log_words)),
            log_words,
            workspace_size: if registers.is_some() { 0 } else { blocks as usize * n * 4 },
            locate: locate.transpose()?,
        }))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<DeduplicateTopk> for Prepared {
    fn workspace_size(&self) -> usize {
        self.workspace_size
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let counts = cuda.pointer(buffers.counts)?;
        if plan.unique.cols == 0 {
            // Without values no kernel is needed: only the counts are set to 0.
            let bytes = if plan.has_counts { plan.batch * size_of::<i32>() } else { 0 };
            // SAFETY: `counts` was checked against the plan, and is one i32 per request.
            return cuda.enqueue(stream, |queue| unsafe { queue.zero(counts, bytes) });
        }
        let separate = Params {
            indices: cuda.rows(buffers.indices, &plan.indices)?,
            unique: cuda.rows(buffers.unique, &plan.unique)?,
            counts,
            batch: plan.batch as u64,
            rows: plan.mtp_step as u32,
            cols: plan.indices.cols as u32,
            log_words: self.log_words,
            reserved: 0,
            workspace: cuda.workspace(workspace, self.workspace_size)?,
            inverse: match &plan.inverse {
                Some(matrix) => cuda.rows(buffers.inverse, matrix)?,
                None => Rows::ABSENT,
            },
        };
        let mut params = separate;
        // If the rows of a request are packed, the kernel reads them as one row.
        let is_packed = |matrix: &Matrix| plan.mtp_step == 1 || matrix.row_stride == matrix.cols;
        if is_packed(&plan.indices) && plan.inverse.as_ref().is_none_or(is_packed) {
            params.indices.stride *= plan.mtp_step as u64;
            params.inverse.stride *= plan.mtp_step as u64;
            (params.rows, params.cols) = (1, plan.unique.cols as u32);
        }
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were checked
        // against the plan, which bounds every index that the kernels compute. The second kernel
        // waits for the first one (`follow`).
        cuda.enqueue(stream, |queue| unsafe {
            queue.launch(&self.function, self.shape, &params)?;
            match &self.locate {
                Some((locate, shape)) => queue.launch_next(locate, *shape, &separate),
                None => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use spec_core::{DType, TensorDesc};

    use super::super::routes::route;
    use super::*;
    use crate::limits::Limits;

    /// The kernels and launch shapes that an H100 takes for calls of an engine.
    #[test]
    fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
        let deduplicate = |batch, k| {
            let operator = DeduplicateTopk::new();
            route(Limits::H100, &operator, &operator.tensors(batch, k))
        };
        let inverse = |batch, steps, k| {
            let operator = DeduplicateTopk::new().mtp_step(steps);
            let inverse = TensorDesc::new(DType::I32, [batch * steps, k]);
            route(Limits::H100, &operator, &operator.tensors(batch, k).inverse(inverse))
        };
        let calls = [
            (deduplicate(64, 2048), "deduplicate_topk_2 (64 blocks of 1024 threads)"),
            (deduplicate(64, 1 << 15), "deduplicate_topk_general (64 blocks of 1024 threads)"),
            (inverse(115, 2, 2048), "deduplicate_topk_ranked_4 (115 blocks of 1024 threads)"),
            (inverse(115, 4, 2048), "deduplicate_topk_ranked_8 (115 blocks of 1024 threads)"),
            (
                inverse(64, 8, 2048),
                "deduplicate_topk_16 (64 blocks of 1024 threads), \
                 deduplicate_topk_locate (1024 blocks of 1024 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
