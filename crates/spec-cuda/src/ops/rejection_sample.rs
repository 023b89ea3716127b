//! Host side of `kernels/rejection_sample.cu`.

use cudarc::driver::sys;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Buffers, Plan, Recovery};
use spec_core::{DType, Error, Kernel, Result, Status, Stream, Supports, Vector, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows, Truths};
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("rejection_sample");

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    target: Rows,
    draft: Rows,
    draft_ids: Integers,
    bonus_ids: Integers,
    offsets: Integers,
    uniform: u64,
    seeds: u64,
    positions: Integers,
    greedy: Truths,
    output: IntegerRows,
    emitted: u64,
    accepted: u64,
    recovered: u64,
    bonus: u64,
    flags: u64,
    tokens: u64,
    vocab: u32,
    max_spec_len: u32,
    rows_ahead: u32,
    leading: u32,
}
const _: () = assert!(size_of::<Params>() == 216);

/// The type of an argument; any for an absent one, of which nothing is read.
fn dtype_of(argument: Option<Vector>) -> DType {
    argument.map_or(DType::I32, |vector| vector.dtype)
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    rows_ahead: u32,
}

/// The blocks that search a request's row, a cluster, and the threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
}

impl Team {
    /// Powers of two. Blocks x threads on an H200, 8 drafts of f32, in microseconds,
    /// argmax | sample:
    ///
    /// ```text
    /// batch, vocab   16 x 256     8 x 512      8 x 256      4 x 512
    /// 1, 32000       3.3 | 4.9
    /// 1, 128256      4.4 | 5.8
    /// 1, 151936      4.9 | 6.2
    /// 2, 32000       3.4 | 5.0    3.8 | 5.6    3.6 | 4.8    4.0 | 5.6
    /// 4, 128256      4.7 | 5.9    5.1 | 6.8    5.6 | 7.7    6.4 | 7.8
    /// 8, 32000       3.8 | 5.6    3.9 | 5.8    3.7 | 5.1    4.1 | 5.8
    /// 8, 50257       4.3 | 5.9    4.2 | 5.9    4.3 | 5.6    4.8 | 6.4
    /// 8, 128256      5.6 | 7.2    5.7 | 7.3    6.8 | 8.9    7.5 | 9.0
    /// 16, 32000      4.2 | 6.1    4.6 | 7.3    4.2 | 5.6    4.3 | 6.0
    /// 16, 50257      5.1 | 7.0    5.2 | 7.6    5.0 | 6.6    5.5 | 7.3
    /// 16, 128256     6.7 | 8.5    6.9 | 9.2    6.9 | 8.9    7.3 | 8.8
    /// 32, 32000      7.7 | 10     7.9 | 11     5.1 | 7.1    5.7 | 8.2
    /// 32, 128256     12 | 14      12 | 15      8.8 | 11     9.6 | 12
    /// 64, 128256     23 | 26      24 | 28      22 | 26      23 | 26
    /// ```
    ///
    /// With greedy requests among them, 8 x 256 takes 6.1 where 8 x 512 takes 6.3 (8, 32000),
    /// and 16 x 256 takes 12.3 where 8 x 512 takes 14.4 (16, 128256).
    ///
    /// Requests of 256 x 4, 151936 on an H100: 111 | 115 by 4 x 512, 108 | 126 by 2 x 256.
    fn new(plan: &Plan, clusters: bool) -> Self {
        let sums = plan.samples();
        let follows = plan.params.acceptance == Acceptance::Greedy || plan.greedy.is_some();
        let (small, large) = (plan.vocab() < 40_000, plan.vocab() > 100_000);
        let (blocks, threads) = match plan.batch {
            0..=1 => (16, 256),
            2..=16 if follows && small => (8, 256),
            8..=16 if small || sums && !follows && plan.vocab() < 70_000 => (8, 256),
            2..=16 if follows && !large => (8, 512),
            8..=11 if !sums && !large => (8, 512),
            2..=16 => (16, 256),
            33..=64 if follows && sums => (4, 512),
            17..=64 => (8, 256),
            65..=256 if sums => (4, 512),
            65..=128 => (4, 256),
            129..=256 => (2, 256),
            _ => (1, 512),
        };
        if clusters { Team { blocks, threads } } else { Team { blocks: 1, threads: 512 } }
    }

    fn shape(self, batch: usize) -> Option<Shape> {
        let blocks = batch.checked_mul(self.blocks as usize)?;
        let blocks = u32::try_from(blocks).ok().filter(|&b| b < 1 << 31)?;
        Some(Shape::new(blocks, self.threads).cluster(self.blocks))
    }
}

impl Cuda {
    /// Whether the device can run one such cluster.
    fn holds_cluster(&self, function: &Function, team: Team) -> Result<bool> {
        let _current = self.gpu().enter()?;
        let mut attribute = sys::CUlaunchAttribute_st {
            id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue_union {
                clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                    x: team.blocks,
                    y: 1,
                    z: 1,
                },
            },
        };
        let config = sys::CUlaunchConfig_st {
            gridDimX: team.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: team.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: std::ptr::null_mut(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        // SAFETY: the function is loaded in the current context; all pointers
        // are to locals that outlive the call.
        let code =
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, function.raw, &config) };
        Ok(code == sys::CUresult::CUDA_SUCCESS && clusters > 0)
    }
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<RejectionSample> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
        let params = &plan.params;
        let mode = match (params.acceptance, params.recovery, plan.greedy) {
            (Acceptance::Greedy, _, _) => "greedy",
            (Acceptance::Probabilistic, Recovery::Argmax, None) => "argmax",
            (Acceptance::Probabilistic, Recovery::Sample, None) => "sample",
            (Acceptance::Probabilistic, Recovery::Argmax, Some(_)) => "mixed_argmax",
            (Acceptance::Probabilistic, Recovery::Sample, Some(_)) => "mixed_sample",
        };
        let name = format!("rejection_sample_{mode}_{}", plan.target.dtype.name());
        let function = self.function(&KERNELS, &name)?;
        let mut team = Team::new(plan, self.limits().clusters);
        // More than 8 blocks are not portable: a device may not hold them.
        if team.blocks > 8 && !self.holds_cluster(&function, team)? {
            team.blocks = 8;
        }
        let shape = team.shape(plan.batch).ok_or_else(|| {
            let words = format!("{} requests are more than a grid holds", plan.batch);
            Error::device(self.device(), Status::NotImplemented, words)
        })?;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function,
            shape,
            // Rows of a greedy walk that are read before it gets there: on an
            // H100, 8 drafts all accepted, 15 for 35 us at batch 1 and 56 for
            // 65 us at batch 32. Beyond, reading too much costs more.
            rows_ahead: if plan.batch <= 32 { 4 } else { 1 },
        }))
    }
}

// SAFETY: as above.
unsafe impl Kernel<RejectionSample> for Prepared {
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
        let draft = match (buffers.draft_probs, &plan.draft) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix)?,
            _ => Rows { data: 0, stride: 0 },
        };
        let params = Params {
            target: cuda.rows(buffers.target_probs, &plan.target)?,
            draft,
            draft_ids: cuda.integers(buffers.draft_token_ids, plan.draft_token_ids.dtype)?,
            bonus_ids: cuda.integers(buffers.bonus_token_ids, plan.bonus_token_ids.dtype)?,
            offsets: cuda.integers(buffers.cu_num_draft, plan.cu_num_draft.dtype)?,
            uniform: cuda.pointer(buffers.uniform_samples)?,
            seeds: cuda.pointer(buffers.seeds)?,
            positions: cuda.integers(buffers.positions, dtype_of(plan.positions))?,
            greedy: cuda.truths(buffers.greedy, dtype_of(plan.greedy))?,
            output: cuda.integer_rows(buffers.output_token_ids, &plan.output)?,
            emitted: cuda.pointer(buffers.num_accepted)?,
            accepted: cuda.pointer(buffers.accepted_counts)?,
            recovered: cuda.pointer(buffers.recovered_counts)?,
            bonus: cuda.pointer(buffers.bonus_counts)?,
            flags: cuda.pointer(buffers.flags)?,
            tokens: plan.tokens() as u64,
            vocab: plan.vocab() as u32,
            max_spec_len: plan.params.max_spec_len as u32,
            rows_ahead: self.rows_ahead,
            leading: u32::from(plan.has_leading_zero()),
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, and the kernel checks offsets and tokens,
        // which are data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
