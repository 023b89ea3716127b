//! Host side of `kernels/draft_tree.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::DraftTree;
use spec_core::ops::draft_tree::{self, Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("draft_tree");

/// The smallest and the largest number of threads of a block.
const THREADS: std::ops::RangeInclusive<usize> = 32..=MAX_THREADS;
/// The largest number of drafts, and of requests, of chains that every block ranks for itself. For
/// more of them, two launches take less time than the work that is done several times.
const MAX_CHAIN_DRAFTS: usize = 8192;
const MAX_CHAINS: usize = 4096;
/// The largest number of threads of a block that ranks one of more requests than the device has
/// multiprocessors. Such blocks share a multiprocessor, which takes less time for the same
/// candidates with fewer threads: on an H100, trees of 64 of 512 candidates of 256 requests take
/// 17.1 us with 256 threads and 19.1 us with 512. Those of 32 requests take 12.4 us and 11.6 us.
const MAX_CROWDED_THREADS: u32 = 256;
/// Nodes of the chains whose outputs a block writes.
const CHAIN_NODES: usize = 160;

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
        /// The first candidates of each request in its order, [batch, n]; 0 for none.
        records: u64 as "u64*",
        /// The place of each record in the order of all requests, [batch * n] and up to 3 more.
        places: u64 as "u32*",
        /// The number of requests.
        batch: u64,
        /// The number of packed rows for which there is room; 0 if no output has rows.
        cap: u64,
        /// The number of columns of `candidates`, and of `drafts`.
        c: u32,
        n: u32,
        /// The number of records of a chain in shared memory: the lesser of c and n.
        room: u32,
        /// The number of drafts of each request that come before all others, at most n.
        min_drafts: u32,
        /// The bits of the smallest survival of a draft.
        min_survival: u32,
        /// 1 if shares are of the whole way from the root, else 0.
        cumulative: u32,
        /// 1 if an output has packed rows, else 0.
        has_cap: u32,
        /// 1 if each candidate follows the one before it, else 0.
        is_chain: u32,
        /// 1 if requests share a budget or packed rows, else 0.
        together: u32,
        /// The number of requests whose outputs a block writes; 0 for blocks that take every
        /// request whose number has the block's number as remainder.
        per_block: u32,
        /// For chains: the number of neighbouring threads that load a chain, a power of two.
        lanes: u32,
        reserved: u32,
    }

    /// The largest number of threads of a block.
    const MAX_THREADS: usize = 512;
    /// The largest number of drafts of a request.
    const MAX_DRAFTS: usize = draft_tree::MAX_DRAFTS;
    /// The largest number of candidates of a request.
    const MAX_CANDIDATES: usize = draft_tree::MAX_CANDIDATES;
    /// The bits of 2^-100. A survival below 2^-100 counts as 0, so that no product is a subnormal
    /// number.
    const MIN_SURVIVAL: u32 = draft_tree::MIN_SURVIVAL.to_bits();
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "draft_tree", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

/// The launches of a call.
enum Launches {
    /// One launch for chains, where each block may rank the chains of all requests.
    Chain(Function),
    /// One launch for trees, where no request needs to know anything of the others.
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
    /// The number of requests whose outputs a block writes.
    per_block: usize,
}

/// The number of records of a chain in shared memory.
fn room(plan: &Plan) -> usize {
    plan.c().min(plan.n())
}

/// Whether requests share a budget or packed rows.
fn is_together(plan: &Plan) -> bool {
    plan.batch() > 1 && (plan.has_budget || plan.has_rows())
}

/// A block with about `wanted` threads, a multiple of 32.
fn threads(wanted: usize) -> usize {
    wanted.clamp(*THREADS.start(), *THREADS.end()).next_multiple_of(32)
}

/// The number of blocks for some requests each. Without requests, one block looks at the budget and
/// writes what stands behind the rows.
fn blocks(batch: usize, per_block: usize) -> u32 {
    batch.div_ceil(per_block).max(1) as u32
}

/// The shape of the launch for chains, and the number of requests of a block.
fn chain_shape(plan: &Plan) -> (Shape, usize) {
    let (batch, nodes) = (plan.batch(), plan.n() + 1);
    let threads = threads(batch.saturating_mul(nodes));
    let per_block = (CHAIN_NODES / nodes).max(1);
    let chains = if is_together(plan) { batch } else { per_block.min(batch) };
    let shape = Shape::new(blocks(batch, per_block), threads as u32);
    (shape.shared(((room(plan) + 1) * (chains | 1) * 4) as u32), per_block)
}

impl Prepared {
    fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        let (batch, nodes) = (plan.batch(), plan.n() + 1);
        let function = |name| cuda.function(&KERNELS, name);
        let is_chain = plan.parents.is_none();
        let is_small = batch <= MAX_CHAINS && batch.saturating_mul(room(plan)) <= MAX_CHAIN_DRAFTS;
        if is_chain && (is_small || !is_together(plan)) {
            let (shape, per_block) = chain_shape(plan);
            let launches = Launches::Chain(function("draft_tree_chain")?);
            return Ok(Prepared {
                cuda: cuda.clone(),
                plan: plan.clone(),
                launches,
                shape,
                per_block,
            });
        }
        let memory = if is_chain { room(plan) * 4 } else { (plan.c() + 1) * 16 };
        // If there are more requests than blocks, each block takes several requests.
        let shape = Shape::new(batch.clamp(1, 1 << 30) as u32, threads(plan.c().max(nodes)) as u32);
        let mut shape = shape.shared(memory as u32);
        let (launches, per_block) = if is_together(plan) {
            // Every block shares the whole budget out, so more blocks than run at a time gain
            // nothing. A thread of a block has a node.
            let per_block = batch.div_ceil(cuda.limits().multiprocessors as usize);
            let threads = threads(batch.saturating_mul(plan.n()).max(nodes)) as u32;
            let per_block = per_block.max(1);
            let write = Shape::new(blocks(batch, per_block), threads);
            let (rank, kernel) = (function("draft_tree_rank")?, function("draft_tree_write")?);
            if batch > cuda.limits().multiprocessors as usize {
                shape.block = shape.block.min(MAX_CROWDED_THREADS);
            }
            (Launches::Two { rank, write: kernel, shape: write }, per_block)
        } else {
            (Launches::Whole(function("draft_tree_whole")?), 0)
        };
        Ok(Prepared { cuda: cuda.clone(), plan: plan.clone(), launches, shape, per_block })
    }
}

impl Prepared {
    /// The number of records that the first of two launches stores for the second: one for each draft.
    fn records(&self) -> usize {
        match self.launches {
            Launches::Two { .. } => self.plan.batch().saturating_mul(self.plan.n()),
            _ => 0,
        }
    }

    /// Bytes of the records' places.
    fn places_size(&self) -> usize {
        self.records().div_ceil(4).saturating_mul(16)
    }

    fn records_size(&self) -> usize {
        self.records().saturating_mul(8)
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<DraftTree> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DraftTree>>> {
        Ok(Box::new(Prepared::new(self, plan)?))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<DraftTree> for Prepared {
    fn workspace_size(&self) -> usize {
        self.places_size().saturating_add(self.records_size())
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let places = cuda.workspace(workspace, self.workspace_size())?;
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
            records: places + self.places_size() as u64,
            places,
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
            is_chain: u32::from(plan.parents.is_none()),
            together: u32::from(is_together(plan)),
            per_block: self.per_block as u32,
            lanes: room(plan).clamp(1, 32).next_power_of_two() as u32,
            reserved: 0,
        };
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were checked against
        // the plan; the workspace holds n records of each request; the kernels cut counts and check
        // parents, which are data, before either decides an address.
        cuda.enqueue(stream, |queue| unsafe {
            match &self.launches {
                Launches::Chain(only) | Launches::Whole(only) => {
                    queue.launch(only, self.shape, &params)
                }
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
            (draft(256, 8, 8, false, false), "draft_tree_chain (16 blocks of 512 threads)"),
            (
                draft(256, 512, 64, true, false),
                "draft_tree_rank (256 blocks of 256 threads), \
                 draft_tree_write (128 blocks of 512 threads)",
            ),
            // Chains that every block ranks for itself, and chains that are too many for that.
            (draft(32, 8, 8, false, true), "draft_tree_chain (2 blocks of 288 threads)"),
            (
                draft(2048, 8, 8, false, true),
                "draft_tree_rank (2048 blocks of 32 threads), \
                 draft_tree_write (128 blocks of 512 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
