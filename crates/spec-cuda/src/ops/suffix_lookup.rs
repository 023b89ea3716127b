//! Host side of `kernels/suffix_lookup.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Stream, Supports, ViewMut, launch_params};

use super::ngram::{check_sizes, token_name};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{Integers, Located, Rows};
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("suffix_lookup");

/// Tokens of a tile; a warp of the first launch (`scan`) scans one tile.
const TILE: usize = 512;
/// Windows that one warp grows a tree from; the kernel keeps their tokens in shared memory.
const FEW: usize = 64;
/// Threads of a block in both launches, and tiles of a block in the first: one per warp.
const THREADS: u32 = 256;
const TILES: usize = 8;

launch_params! {
    /// What the kernels of `suffix_lookup` take.
    struct Params {
        /// The texts, [batch, max_len] tokens of the kernel's type.
        tokens: Rows as "Rows<const void>",
        /// The drafts, [batch, n] of the same type.
        drafts: Rows as "Rows<void>",
        /// What each draft follows, [batch, n], or null.
        parents: Rows as "Rows<i32>",
        /// First children, [batch, n + 1], or null.
        first_child: Rows as "Rows<i32>",
        /// Next siblings, [batch, n + 1], or null.
        next_sibling: Rows as "Rows<i32>",
        /// Shares of windows, [batch, n], or null.
        shares: Rows as "Rows<float>",
        /// Tokens of each text, [batch].
        lengths: Integers,
        /// How much of the corpus there is, [1], or null for all of it.
        corpus_length: Integers,
        /// The corpus, of the texts' type.
        corpus: u64 as "const void*",
        /// Drafts of each request, [batch].
        counts: u64 as "i32*",
        /// The length of each longest match, [batch], or null.
        match_lengths: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// For each request and tile, the most recent tile first, the longest match and, in the lower
        /// half, how many windows have it, [batch, own_tiles + corpus_tiles].
        notes: u64 as "u64*",
        /// Requests.
        batch: u32,
        /// Tokens of a row of `tokens`.
        max_len: u32,
        /// Tokens of the corpus.
        corpus_size: u32,
        /// Tiles of a row, and of the corpus.
        own_tiles: u32,
        corpus_tiles: u32,
        /// Columns of `drafts`.
        n: u32,
        /// The options.
        min_match: u32,
        max_match: u32,
        max_windows: u32,
        width: u32,
        /// The least number of windows that a draft needs, in 65536ths of all.
        share_floor: u32,
        /// Drafts on a path for each token of the match.
        drafts_per_match: f32,
        /// Slots of the hash table, a power of two.
        table: u32,
        /// The most offers of a request.
        offers: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "suffix_lookup", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    scan: Function,
    grow: Function,
    own_tiles: usize,
    corpus_tiles: usize,
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<SuffixLookup> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SuffixLookup>>> {
        check_sizes(self, &[("requests", plan.tokens.rows)])?;
        let function = |kernel: &str| {
            let name = format!("suffix_lookup_{kernel}_{}", token_name(plan.tokens.dtype));
            self.function(&KERNELS, &name)
        };
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            scan: function("scan")?,
            grow: function("grow")?,
            own_tiles: plan.tokens.cols.div_ceil(TILE),
            corpus_tiles: plan.corpus.map_or(0, |corpus| corpus.len.div_ceil(TILE)),
        }))
    }
}

impl Prepared {
    /// Slots of the hash table: twice as many as windows, so at most half of the slots are taken.
    fn table(&self) -> usize {
        (2 * self.plan.params.max_windows).next_power_of_two().max(64)
    }

    /// The largest number of offers of a request. The root and each node offer at most `width`
    /// children, and not more children than may still become nodes.
    fn offers(&self) -> usize {
        let width = self.plan.params.width;
        (0..=self.plan.drafts.cols).map(|left| left.min(width)).sum::<usize>().max(1)
    }

    /// Size of the dynamic shared memory of a block in the second launch (`grow`), in bytes, as
    /// laid out by the kernel.
    fn shared(&self) -> usize {
        let windows = self.plan.params.max_windows;
        let ahead = FEW * self.plan.drafts.cols;
        let tokens = (ahead + windows.next_multiple_of(2)) * self.plan.tokens.dtype.size();
        (tokens + (3 * windows + 2 * self.table() + 2 * self.offers()) * 4).next_multiple_of(8)
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<SuffixLookup> for Prepared {
    fn workspace_size(&self) -> usize {
        (self.own_tiles + self.corpus_tiles).saturating_mul(self.plan.tokens.rows).saturating_mul(8)
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, own_tiles, corpus_tiles, .. } = self;
        let options = &plan.params;
        let params = Params {
            tokens: cuda.rows(buffers.tokens, &plan.tokens)?,
            drafts: cuda.rows(buffers.drafts, &plan.drafts)?,
            parents: optional(cuda, buffers.parents, plan.parents)?,
            first_child: optional(cuda, buffers.first_child, plan.first_child)?,
            next_sibling: optional(cuda, buffers.next_sibling, plan.next_sibling)?,
            shares: optional(cuda, buffers.shares, plan.shares)?,
            lengths: cuda.integers(buffers.lengths, plan.lengths)?,
            corpus_length: cuda
                .integers(buffers.corpus_length, plan.corpus_length.unwrap_or(plan.lengths))?,
            corpus: cuda.pointer(buffers.corpus)?,
            counts: cuda.pointer(buffers.counts)?,
            match_lengths: cuda.pointer(buffers.match_lengths)?,
            flags: cuda.pointer(buffers.flags)?,
            notes: cuda.workspace(workspace, self.workspace_size())?,
            batch: plan.tokens.rows as u32,
            max_len: plan.tokens.cols as u32,
            corpus_size: plan.corpus.map_or(0, |corpus| corpus.len as u32),
            own_tiles: *own_tiles as u32,
            corpus_tiles: *corpus_tiles as u32,
            n: plan.drafts.cols as u32,
            min_match: options.min_match as u32,
            max_match: options.max_match as u32,
            max_windows: options.max_windows as u32,
            width: options.width.min(plan.drafts.cols) as u32,
            share_floor: options.share_floor(),
            drafts_per_match: options.drafts_per_match,
            table: self.table() as u32,
            offers: self.offers() as u32,
        };
        let batch = plan.tokens.rows;
        // Without requests the corpus need not be scanned.
        let tiles = if batch == 0 { 0 } else { batch * own_tiles + corpus_tiles };
        let scan = Shape::new(tiles.div_ceil(TILES) as u32, THREADS);
        let blocks = batch.min(1 << 30) as u32;
        let grow = Shape::new(blocks, THREADS).shared(self.shared() as u32);
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were checked against
        // the plan; the workspace holds the notes of this shape; the kernels clamp lengths, which
        // are data, to the sizes of the rows and of the corpus.
        cuda.enqueue(stream, |queue| unsafe {
            queue.launch(&self.scan, scan, &params)?;
            queue.launch(&self.grow, grow, &params)
        })
    }
}

/// The argument for a matrix that may be absent.
fn optional(cuda: &Cuda, view: impl Located, matrix: Option<Matrix>) -> Result<Rows> {
    matrix.map_or(Ok(Rows::ABSENT), |matrix| cuda.rows(view, &matrix))
}
