//! Host side of `kernels/draft_tree.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::DraftTree;
use spec_core::ops::draft_tree::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("draft_tree");

/// The smallest and the largest number of threads of a block that ranks candidates; between them, a
/// thread for each candidate. The largest is the kernel's, whose threads have 8 candidates each.
const THREADS: std::ops::RangeInclusive<usize> = 32..=512;
/// The largest number of threads of a block of the second launch: a thread for each node, and for
/// each request while the budget is shared out.
const MAX_WRITE_THREADS: usize = 256;
/// The largest number of blocks of the second launch. Each of them shares the whole budget out, so
/// more blocks than run at a time gain nothing.
const MAX_WRITE_BLOCKS: usize = 1024;

launch_params! {
    /// The parameters of the kernels of `draft_tree`.
    struct Params {
        /// The candidates, [batch, c].
        candidates: IntegerRows,
        /// The parent of each candidate, [batch, c]. Null for chains.
        parents: IntegerRows,
        /// The drafts, [batch, n], of the candidates' type.
        drafts: IntegerRows,
        /// The probability of each candidate, [batch, c], or null.
        shares: Rows as "Rows<const float>",
        /// The candidate of each draft, [batch, n], or null.
        picked: Rows as "Rows<i32>",
        /// The node that each draft follows, [batch, n], or null.
        draft_parents: Rows as "Rows<i32>",
        /// The first child of each node, [batch, n + 1], or null.
        first_child: Rows as "Rows<i32>",
        /// The next sibling of each node, [batch, n + 1], or null.
        next_sibling: Rows as "Rows<i32>",
        /// The depth of each node, [batch, n + 1], or null.
        depths: Rows as "Rows<i32>",
        /// The survival of each draft, [batch, n], or null.
        survivals: Rows as "Rows<float>",
        /// The number of candidates of each request, [batch], or null.
        counts: Integers,
        /// The last token of each text, [batch], of the candidates' type, or null.
        roots: Integers,
        /// The position of each request's root, [batch], or null.
        starts: Integers,
        /// A factor for each step of depth, [batch], or null.
        trust: u64 as "const float*",
        /// Requests with a value other than 0 have no drafts, [batch], or null.
        finished: u64 as "const i32*",
        /// The largest number of drafts of all requests, [1], or null.
        budget: u64 as "const i32*",
        /// The number of drafts of each request, [batch].
        num_drafts: u64 as "i32*",
        /// The nodes that each node attends to, [batch, n + 1, n / 32 + 1], or null.
        masks: u64 as "u32*",
        /// Words from the masks of one request to those of the next, and from one node to the next.
        masks_stride: u64,
        mask_stride: u64,
        /// Where the rows of each request begin, followed by the end, [batch + 1], or null.
        row_offsets: u64 as "i32*",
        /// What each packed row has, [cap], or null.
        rows: u64 as "i32*",
        row_requests: u64 as "i32*",
        row_parents: u64 as "i32*",
        /// The token of each row, of the candidates' type.
        row_tokens: u64 as "void*",
        /// The position of each row, of the type of `starts`.
        row_positions: u64 as "void*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The first candidates of each request in its order, [batch, n].
        records: u64 as "u64*",
        /// How many records of each request may become drafts, [batch].
        kept: u64 as "i32*",
        /// The number of drafts of each request and its first row, [batch, 2].
        allotted: u64 as "u32*",
        /// The number of requests.
        batch: u64,
        /// The number of packed rows for which there is room; 0 if no output has rows.
        cap: u64,
        /// The number of columns of `candidates`, and of `drafts`.
        c: u32,
        n: u32,
        /// The number of records in shared memory: a power of two for trees.
        room: u32,
        /// The number of drafts of each request that come before all others, at most n.
        min_drafts: u32,
        /// The bits of the smallest survival of a draft.
        min_survival: u32,
        /// 1 if shares are of the whole way from the root, else 0.
        cumulative: u32,
        /// 1 if an output has packed rows, else 0.
        has_cap: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "draft_tree", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

/// The launches of a call.
enum Launches {
    /// One launch, where no request needs to know anything of the others.
    Whole(Function),
    /// One that ranks candidates, and one that shares the budget out and writes.
    Two { rank: Function, write: Function, shape: Shape },
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    launches: Launches,
    /// The shape of the first or only launch.
    shape: Shape,
}

/// Records of a request in shared memory.
fn room(plan: &Plan) -> usize {
    match plan.parents {
        Some(_) => plan.c().max(1).next_power_of_two(),
        None => plan.c().min(plan.n()),
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<DraftTree> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DraftTree>>> {
        let (batch, nodes) = (plan.batch(), plan.n() + 1);
        let threads = plan.c().max(nodes).next_multiple_of(32);
        let threads = threads.clamp(*THREADS.start(), *THREADS.end()) as u32;
        // If there are more requests than blocks, each block takes several requests. Without
        // requests, one block looks at the budget and writes what stands behind the rows.
        let blocks = batch.clamp(1, 1 << 30) as u32;
        let shape = Shape::new(blocks, threads).shared((room(plan) * 8) as u32);
        let function = |name| self.function(&KERNELS, name);
        let is_alone = batch <= 1 || !plan.has_budget && !plan.has_rows();
        let launches = if is_alone {
            Launches::Whole(function("draft_tree_whole")?)
        } else {
            let threads = nodes.max(batch).next_multiple_of(32).min(MAX_WRITE_THREADS);
            let blocks = batch.min(MAX_WRITE_BLOCKS) as u32;
            Launches::Two {
                rank: function("draft_tree_rank")?,
                write: function("draft_tree_write")?,
                shape: Shape::new(blocks, threads as u32),
            }
        };
        Ok(Box::new(Prepared { cuda: self.clone(), plan: plan.clone(), launches, shape }))
    }
}

impl Prepared {
    /// Bytes of the records, of two words and of one word for each request.
    fn pieces(&self) -> [usize; 3] {
        let per_request = match self.launches {
            Launches::Whole(_) => [0; 3],
            Launches::Two { .. } => [self.plan.n() * 8, 8, 4],
        };
        per_request.map(|bytes| self.plan.batch().saturating_mul(bytes))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<DraftTree> for Prepared {
    fn workspace_size(&self) -> usize {
        self.pieces().into_iter().fold(0, usize::saturating_add)
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let records = cuda.workspace(workspace, self.workspace_size())?;
        let [of_records, of_allotted, _] = self.pieces();
        let allotted = records + of_records as u64;
        let masks = plan.masks.as_ref();
        let no_parents = Ok(IntegerRows::ABSENT);
        let params = Params {
            candidates: cuda.integer_rows(buffers.candidates, &plan.candidates)?,
            parents: plan
                .parents
                .map_or(no_parents, |rows| cuda.integer_rows(buffers.parents, &rows))?,
            drafts: cuda.integer_rows(buffers.drafts, &plan.drafts)?,
            shares: cuda.optional_rows(buffers.shares, plan.shares)?,
            picked: cuda.optional_rows(buffers.picked, plan.picked)?,
            draft_parents: cuda.optional_rows(buffers.draft_parents, plan.draft_parents)?,
            first_child: cuda.optional_rows(buffers.first_child, plan.first_child)?,
            next_sibling: cuda.optional_rows(buffers.next_sibling, plan.next_sibling)?,
            depths: cuda.optional_rows(buffers.depths, plan.depths)?,
            survivals: cuda.optional_rows(buffers.survivals, plan.survivals)?,
            counts: cuda.integers(buffers.counts, plan.counts.unwrap_or(DType::I32))?,
            roots: cuda.integers(buffers.roots, plan.candidates.dtype)?,
            starts: cuda.integers(buffers.starts, plan.starts.unwrap_or(DType::I32))?,
            trust: cuda.pointer(buffers.trust)?,
            finished: cuda.pointer(buffers.finished)?,
            budget: cuda.pointer(buffers.budget)?,
            num_drafts: cuda.pointer(buffers.num_drafts)?,
            masks: cuda.pointer(buffers.masks)?,
            masks_stride: masks.map_or(0, |masks| masks.batch_stride as u64),
            mask_stride: masks.map_or(0, |masks| masks.row_stride as u64),
            row_offsets: cuda.pointer(buffers.row_offsets)?,
            rows: cuda.pointer(buffers.rows)?,
            row_requests: cuda.pointer(buffers.row_requests)?,
            row_parents: cuda.pointer(buffers.row_parents)?,
            row_tokens: cuda.pointer(buffers.row_tokens)?,
            row_positions: cuda.pointer(buffers.row_positions)?,
            flags: cuda.pointer(buffers.flags)?,
            records,
            kept: allotted + of_allotted as u64,
            allotted,
            batch: plan.batch() as u64,
            cap: plan.cap.unwrap_or(0) as u64,
            c: plan.c() as u32,
            n: plan.n() as u32,
            room: room(plan) as u32,
            min_drafts: plan.min_drafts() as u32,
            // Adding 0 makes -0 to 0, so that the bits have the order of the numbers.
            min_survival: (plan.params.min_survival + 0.0).to_bits(),
            cumulative: u32::from(plan.params.cumulative),
            has_cap: u32::from(plan.cap.is_some()),
            reserved: 0,
        };
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were checked against
        // the plan; the workspace holds the pieces above; the kernels cut counts and check parents,
        // which are data, before either decides an address.
        cuda.enqueue(stream, |queue| unsafe {
            match &self.launches {
                Launches::Whole(whole) => queue.launch(whole, self.shape, &params),
                Launches::Two { rank, write, shape } => {
                    queue.launch(rank, self.shape, &params)?;
                    queue.launch_next(write, *shape, &params)
                }
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
        let draft = |batch, c, n, budget: bool, rows: bool| {
            let operator = DraftTree::new();
            let mut tensors = operator.tensors(DType::I64, batch, c, n);
            tensors.parents = (c > n).then(|| TensorDesc::new(DType::I32, [batch, c]));
            tensors.budget = budget.then(|| TensorDesc::new(DType::I32, [1]));
            tensors.rows = rows.then(|| TensorDesc::new(DType::I32, [batch * 8]));
            route(Limits::H100, &operator, &tensors)
        };
        let calls = [
            // A request alone, and requests that need to know nothing of each other.
            (draft(1, 512, 64, true, true), "draft_tree_whole (1 block of 512 threads)"),
            (draft(0, 512, 64, true, true), "draft_tree_whole (1 block of 512 threads)"),
            (draft(256, 8, 8, false, false), "draft_tree_whole (256 blocks of 32 threads)"),
            (
                draft(256, 512, 64, true, false),
                "draft_tree_rank (256 blocks of 512 threads), \
                 draft_tree_write (256 blocks of 256 threads)",
            ),
            (
                draft(32, 8, 8, false, true),
                "draft_tree_rank (32 blocks of 32 threads), draft_tree_write (32 blocks of 32 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
