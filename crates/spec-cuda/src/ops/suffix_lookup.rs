//! Host side of `kernels/suffix_lookup.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{self, Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use super::ngram::{check_sizes, token_name};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("suffix_lookup");

/// Notes that a thread loads at a time.
const QUAD: usize = 4;
/// Tiles that a block has at a time: one per warp.
const TILES: usize = THREADS as usize / 32;
/// The largest number of blocks of a request in the second launch (`grow`).
const MAX_CLUSTER: u32 = 8;
/// Tiles that each warp of `grow` notes of a request's own text, one after the other. The first
/// launch (`scan`), whose warps have a tile each, notes longer texts.
const MAX_PASSES: usize = 16;

launch_params! {
    /// The parameters of the kernels of `suffix_lookup`.
    struct Params {
        /// The texts, [texts, max_len] tokens of the kernel's type.
        tokens: Rows as "Rows<const void>",
        /// The drafts, [batch, n] of the same type, or i64 if `wide`.
        drafts: Rows as "Rows<void>",
        /// The node that each draft follows, [batch, n], or null.
        parents: Rows as "Rows<i32>",
        /// The first child of each node, [batch, n + 1], or null.
        first_child: Rows as "Rows<i32>",
        /// The next sibling of each node, [batch, n + 1], or null.
        next_sibling: Rows as "Rows<i32>",
        /// The share of the windows that agree with each draft, [batch, n], or null.
        shares: Rows as "Rows<float>",
        /// The number of tokens of each text, [texts].
        lengths: Integers,
        /// The text of each request, [batch], or null.
        requests: Integers,
        /// The largest number of drafts of each request, [batch], or null.
        max_drafts: u64 as "const i32*",
        /// The number of tokens of the corpus that are valid, [1], or null for all.
        corpus_length: Integers,
        /// The corpus, of the texts' type.
        corpus: u64 as "const void*",
        /// The number of drafts of each request, [batch].
        counts: u64 as "i32*",
        /// The length of the longest match of each request, [batch], or null.
        match_lengths: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// A note for each request and each tile that `scan` notes, the most recent tile first,
        /// [batch, row].
        notes: u64 as "u32*",
        /// The number of requests.
        batch: u32,
        /// The number of rows of `tokens`.
        texts: u32,
        /// The number of columns of `tokens`.
        max_len: u32,
        /// The number of tokens for which `corpus` has room.
        corpus_size: u32,
        /// The number of tiles of a row, and of the corpus.
        own_tiles: u32,
        corpus_tiles: u32,
        /// The number of tiles of a row that `grow` notes itself: all or none.
        here: u32,
        /// The number of words of a row of `notes`: `own_tiles - here + corpus_tiles`, rounded up
        /// to a multiple of 4.
        row: u32,
        /// The number of columns of `drafts`.
        n: u32,
        /// The options of the operator.
        min_match: u32,
        max_match: u32,
        max_windows: u32,
        width: u32,
        /// The smallest number of windows that a draft needs, in 65536ths of all windows.
        share_floor: u32,
        /// The largest depth of a draft for each token of the match.
        drafts_per_match: f32,
        /// The number of slots of the hash table, a power of two.
        table: u32,
        /// The largest number of offers of a request.
        offers: u32,
        /// 1 if drafts of the kernels for i32 are i64, else 0.
        wide: u32,
        /// 1 if the text's last token is written after the drafts, 0 if -1 is.
        pad_with_last: u32,
        reserved: u32,
    }

    /// Threads of a block in both launches.
    const THREADS: u32 = 512;
    /// Blocks on a multiprocessor.
    const SHARING: usize = 2;
    /// Tokens of a tile, which a warp has at a time.
    const TILE: usize = 256;
    /// The largest number of tokens in a match.
    const MAX_MATCH: usize = suffix_lookup::MAX_MATCH;
    /// The largest number of drafts of a request.
    const MAX_DRAFTS: usize = suffix_lookup::MAX_DRAFTS;
    /// The largest number of windows from which one warp grows a tree. The kernel keeps the tokens that
    /// follow these windows in shared memory.
    const MAX_WARP_WINDOWS: usize = 64;
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
    /// Tiles of a row that `grow` notes itself: all or none.
    here: usize,
    /// The shape of `grow`.
    shape: Shape,
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<SuffixLookup> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SuffixLookup>>> {
        check_sizes(self, &[("requests", plan.batch()), ("texts", plan.tokens.rows)])?;
        let function = |kernel: &str| {
            let name = format!("suffix_lookup_{kernel}_{}", token_name(plan.tokens.dtype));
            self.function(&KERNELS, &name)
        };
        let own_tiles = plan.tokens.cols.div_ceil(TILE);
        let requests = plan.batch().max(1);
        let multiprocessors = self.limits().multiprocessors as usize;
        let room = (SHARING * multiprocessors / requests).max(1);
        let grow = function("grow")?;
        let (grow, shape, here) = self.within_clusters(|max| {
            let sections = own_tiles.div_ceil(TILES).max(1);
            let max = (1 << room.ilog2()).min(max.min(MAX_CLUSTER) as usize);
            let blocks = sections.next_power_of_two().min(max);
            let is_here = sections.div_ceil(blocks) <= MAX_PASSES;
            let (blocks, here) = if is_here { (blocks, own_tiles) } else { (1, 0) };
            let shape = Shape::new((plan.batch() * blocks) as u32, THREADS)
                .shared(shared(plan, here) as u32)
                .cluster(blocks as u32);
            Ok((grow.clone(), shape, here))
        })?;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            scan: function("scan")?,
            grow,
            own_tiles,
            corpus_tiles: plan.corpus.map_or(0, |corpus| corpus.len.div_ceil(TILE)),
            here,
            shape,
        }))
    }
}

/// Slots of the hash table: twice as many as windows, so at most half of the slots are taken.
fn table(plan: &Plan) -> usize {
    (2 * plan.params.max_windows).next_power_of_two().max(64)
}

/// The largest number of offers of a request. The root and each node offer at most `width`
/// children, and not more children than may still become nodes.
fn offers(plan: &Plan) -> usize {
    let width = plan.params.width;
    (0..=plan.drafts.cols).map(|left| left.min(width)).sum::<usize>().max(1)
}

/// Size of the dynamic shared memory of a block in the second launch (`grow`), in bytes, as laid
/// out by the kernel, which notes `here` tiles of a text.
fn shared(plan: &Plan, here: usize) -> usize {
    let windows = plan.params.max_windows;
    let size = plan.tokens.dtype.size();
    let ahead = MAX_WARP_WINDOWS * plan.drafts.cols;
    // For each of the tokens that follow: a bit for each window with this token. The arrays for trees
    // from
    // more windows use the same memory.
    let by_warp = ahead * (MAX_WARP_WINDOWS / 8);
    let by_block = windows.next_multiple_of(2) * size + (2 * windows + 2 * table(plan)) * 4;
    let words = here.next_multiple_of(QUAD) + windows + 2 * offers(plan);
    (ahead * size + by_warp.max(by_block) + words * 4).next_multiple_of(8)
}

impl Prepared {
    /// Tiles of a request's own text that `scan` notes.
    fn scanned(&self) -> usize {
        self.own_tiles - self.here
    }

    /// Notes of a request that `scan` writes, as many as 16-byte loads bring.
    fn row(&self) -> usize {
        (self.scanned() + self.corpus_tiles).next_multiple_of(QUAD)
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<SuffixLookup> for Prepared {
    fn workspace_size(&self) -> usize {
        self.row().saturating_mul(self.plan.batch()).saturating_mul(4)
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, own_tiles, corpus_tiles, here, .. } = self;
        let options = &plan.params;
        let params = Params {
            tokens: cuda.rows(buffers.tokens, &plan.tokens)?,
            drafts: cuda.rows(buffers.drafts, &plan.drafts)?,
            parents: cuda.optional_rows(buffers.parents, plan.parents)?,
            first_child: cuda.optional_rows(buffers.first_child, plan.first_child)?,
            next_sibling: cuda.optional_rows(buffers.next_sibling, plan.next_sibling)?,
            shares: cuda.optional_rows(buffers.shares, plan.shares)?,
            lengths: cuda.integers(buffers.lengths, plan.lengths)?,
            corpus_length: cuda
                .integers(buffers.corpus_length, plan.corpus_length.unwrap_or(plan.lengths))?,
            corpus: cuda.pointer(buffers.corpus)?,
            requests: cuda.integers(buffers.requests, plan.requests.unwrap_or(DType::I32))?,
            max_drafts: cuda.pointer(buffers.max_drafts)?,
            counts: cuda.pointer(buffers.counts)?,
            match_lengths: cuda.pointer(buffers.match_lengths)?,
            flags: cuda.pointer(buffers.flags)?,
            notes: cuda.workspace(workspace, self.workspace_size())?,
            batch: plan.batch() as u32,
            texts: plan.tokens.rows as u32,
            max_len: plan.tokens.cols as u32,
            corpus_size: plan.corpus.map_or(0, |corpus| corpus.len as u32),
            own_tiles: *own_tiles as u32,
            corpus_tiles: *corpus_tiles as u32,
            here: *here as u32,
            row: self.row() as u32,
            n: plan.drafts.cols as u32,
            min_match: options.min_match as u32,
            max_match: options.max_match as u32,
            max_windows: options.max_windows as u32,
            width: options.width.min(plan.drafts.cols) as u32,
            share_floor: options.share_floor(),
            drafts_per_match: options.drafts_per_match,
            table: table(plan) as u32,
            offers: offers(plan) as u32,
            wide: u32::from(plan.drafts.dtype.size() > plan.tokens.dtype.size()),
            pad_with_last: u32::from(options.pad_with_last),
            reserved: 0,
        };
        let batch = plan.batch();
        // Without requests the corpus need not be scanned.
        let corpus = if batch == 0 { 0 } else { corpus_tiles.div_ceil(TILES) };
        let blocks = batch * self.scanned().div_ceil(TILES) + corpus;
        let scan = Shape::new(blocks as u32, THREADS);
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were checked against
        // the plan; the workspace holds the notes of this shape; the kernels clamp lengths, which
        // are data, to the sizes of the rows and of the corpus, and read no text of a request, which is
        // data too, that lies outside of the texts.
        cuda.enqueue(stream, |queue| unsafe {
            if blocks == 0 {
                return queue.launch(&self.grow, self.shape, &params);
            }
            queue.launch(&self.scan, scan, &params)?;
            queue.launch_next(&self.grow, self.shape, &params)
        })
    }
}
