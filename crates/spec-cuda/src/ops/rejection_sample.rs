//! Host side of `kernels/rejection_sample.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{self, Acceptance, Buffers, Plan};
use spec_core::{
    DType, Error, Kernel, Result, Status, Stream, Supports, Vector, ViewMut, launch_params,
};

use super::race::{self, blocks_for_leader};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{Bools, IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("rejection_sample");

launch_params! {
    /// What the kernels of `rejection_sample` take. `T` is the type of the probabilities.
    struct Params<T> {
        /// Probabilities of the target model, [tokens, vocab].
        target: Rows as "Rows<const T>",
        /// Probabilities of the draft model, [tokens, vocab]; null: the draft is deterministic.
        draft: Rows as "Rows<const T>",
        /// Draft tokens, [tokens].
        draft_ids: Integers,
        /// Bonus tokens, [requests].
        bonus_ids: Integers,
        /// The end of each request's drafts, in tokens, [leading + requests].
        offsets: Integers,
        /// A uniform random number in [0, 1) for each draft, [tokens]; null: the kernel draws the
        /// numbers.
        uniform: u64 as "const float*",
        /// Seeds, [requests]; null if no random number is drawn.
        seeds: u64 as "const u64*",
        /// The position of each request's first draft in its text, in tokens, [requests]; null if
        /// no random number is drawn.
        positions: Integers,
        /// Whether each request follows the target's argmax, [requests]; null: `all_greedy` says so
        /// of all requests.
        greedy: Bools,
        /// The tokens that each request emits, followed by -1, [requests, max_spec_len + 1].
        output: IntegerRows,
        /// The number of tokens that each request emits, [requests].
        emitted: u64 as "i32*",
        /// The number of accepted drafts of each request, [requests].
        accepted: u64 as "i32*",
        /// The number of recovered tokens of each request, 0 or 1, [requests].
        recovered: u64 as "i32*",
        /// The number of bonus tokens of each request, 0 or 1, [requests].
        bonus: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of draft tokens of all requests.
        tokens: u64,
        /// The number of tokens in the vocabulary.
        vocab: u32,
        /// The largest number of drafts of a request.
        max_spec_len: u32,
        /// Rows of a greedy request that are read before it is known whether their drafts are
        /// reached.
        rows_ahead: u32,
        /// 1 if `offsets` begins with a 0, else 0.
        leading: u32,
        /// The number of drafts of every request if all requests have equally many; 0 if they
        /// cannot.
        usual_drafts: u32,
        /// Without `greedy`: 1 if all requests follow the target's argmax, 0 if none does.
        all_greedy: u32,
    }

    /// Blocks per multiprocessor of the kernels whose tokens race. With the registers of two blocks, a
    /// warp has eight loads of both rows in flight, and 256 requests take 9 % less time.
    const RACING_SHARING: u32 = 1;
    /// A residual below this counts as 0.
    const MIN_RESIDUAL: f32 = rejection_sample::MIN_RESIDUAL;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "rejection_sample", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

/// The dtype of an argument. An absent argument is not read, so any dtype will do.
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

/// How many drafts each request has if all requests have as many; 0 if they cannot, or have none.
fn usual_drafts(plan: &Plan) -> usize {
    let even = plan.batch > 0 && plan.tokens().is_multiple_of(plan.batch);
    if even { plan.tokens() / plan.batch } else { 0 }
}

/// The blocks of the cluster that searches the rows of a request, and the threads of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
}

impl Team {
    /// The team for a request that draws no token; the numbers are powers of two, and the blocks are
    /// at most `max`.
    /// Times on an H200 in microseconds, by blocks x threads, for the argmax recovery, 8 drafts
    /// and f32:
    ///
    /// ```text
    /// batch, vocab   16 x 256     8 x 512      8 x 256      4 x 512
    /// 1, 151936      4.9
    /// 4, 128256      4.7          5.1          5.6          6.4
    /// 8, 32000       3.8          3.9          3.7          4.1
    /// 8, 128256      5.6          5.7          6.8          7.5
    /// 16, 32000      4.2          4.6          4.2          4.3
    /// 16, 128256     6.7          6.9          6.9          7.3
    /// 32, 32000      7.7          7.9          5.1          5.7
    /// 32, 128256     12           12           8.8          9.6
    /// 64, 128256     23           24           22           23
    /// ```
    ///
    /// If some requests are greedy, 8 x 256 takes 6.1 and 8 x 512 takes 6.3 (batch 8, vocab 32000);
    /// 16 x 256 takes 12.3 and 8 x 512 takes 14.4 (batch 16, vocab 128256).
    fn new(plan: &Plan, max: u32) -> Self {
        let follows = plan.params.acceptance == Acceptance::Greedy || plan.greedy.is_some();
        let (small, large) = (plan.vocab() < 40_000, plan.vocab() > 100_000);
        let (blocks, threads) = match plan.batch {
            0..=1 => (16, 256),
            2..=16 if follows && small => (8, 256),
            8..=16 if small => (8, 256),
            2..=16 if follows && !large => (8, 512),
            8..=11 if !large => (8, 512),
            2..=16 => (16, 256),
            17..=64 => (8, 256),
            65..=128 => (4, 256),
            129..=256 => (2, 256),
            _ => (1, 512),
        };
        // If the device cannot run that many blocks in a cluster, fewer but larger blocks do the
        // work.
        if blocks <= max { Team { blocks, threads } } else { Team { blocks: max, threads: 512 } }
    }

    /// The team for a request that may draw a token, by a race: all blocks of the cluster read, then
    /// one of them ends the race alone. `at_once(blocks)` is the number of clusters of so many blocks
    /// that the device runs at a time.
    fn racing(
        plan: &Plan,
        multiprocessors: u32,
        at_once: impl Fn(u32) -> Result<u32>,
    ) -> Result<Self> {
        // The rejected token's row has a target and a draft.
        let bytes = 2 * plan.vocab() * plan.target.dtype.size();
        let blocks =
            blocks_for_leader(plan.batch, bytes, multiprocessors, RACING_SHARING, at_once)?;
        Ok(Team { blocks, threads: race::SELECT_THREADS })
    }

    /// The team where some requests may draw a token and others are greedy. A greedy request reads a
    /// row for each draft that it accepts, which takes longer than the race of one row.
    ///
    /// Times on an H100 in microseconds, where every other request is greedy, f32, rows of 128,256.
    /// With a number of blocks set here, `spec-bench rejection_sample --device cuda:0 --shape
    /// batch=32,drafts=8,vocab=128256,recovery=sample,requests=half-greedy` times this number:
    ///
    /// ```text
    /// batch x drafts    2 blocks     4        8       16
    /// 8 x 8                                18.9     17.2
    /// 32 x 8                46.6  39.4     38.6     55.3
    /// 256 x 4              145.5   149      170
    /// ```
    fn racing_or_greedy(plan: &Plan, max: u32) -> Self {
        Team { threads: race::SELECT_THREADS, ..Team::new(plan, max) }
    }

    fn shape(self, batch: usize) -> Option<Shape> {
        let blocks = batch.checked_mul(self.blocks as usize)?;
        let blocks = u32::try_from(blocks).ok().filter(|&b| b < 1 << 31)?;
        Some(Shape::new(blocks, self.threads).cluster(self.blocks))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<RejectionSample> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
        let recovery = if plan.samples() { "sample" } else { "argmax" };
        let name = format!("rejection_sample_{recovery}_{}", plan.target.dtype.name());
        let function = self.function(&KERNELS, &name)?;
        let (function, shape, ()) = self.within_clusters(|max| {
            let team = if !plan.samples() {
                Team::new(plan, max)
            } else if plan.greedy.is_some() {
                Team::racing_or_greedy(plan, max)
            } else {
                let block = Shape::new(1, race::SELECT_THREADS);
                let at_once = |blocks| self.active_clusters(&function, block.cluster(blocks));
                Team::racing(plan, self.limits().multiprocessors, at_once)?
            };
            let shape = team.shape(plan.batch).ok_or_else(|| {
                let words = format!("{} requests are more than a grid holds", plan.batch);
                Error::device(self.device(), Status::NotImplemented, words)
            })?;
            Ok((function.clone(), shape, ()))
        })?;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function,
            shape,
            // Rows that a greedy walk reads before it is known whether the walk
            // gets there. On an H100, with all of 8 drafts accepted, 4 rows ahead
            // take 15 us instead of 35 us at batch 1, and 56 us instead of 65 us at
            // batch 32. In larger batches, reading rows in vain costs more.
            rows_ahead: if plan.batch <= 32 { 4 } else { 1 },
        }))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
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
            // Where all requests are greedy, the argument says nothing, even if it is given.
            greedy: cuda
                .bools(buffers.greedy.filter(|_| plan.greedy.is_some()), dtype_of(plan.greedy))?,
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
            // More than fits is no usual number.
            usual_drafts: u32::try_from(usual_drafts(plan)).unwrap_or(0),
            all_greedy: u32::from(plan.params.acceptance == Acceptance::Greedy),
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were
        // checked against the plan, and the kernel checks offsets and tokens,
        // which are data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
