//! Host side of `kernels/ngram_search.cuh`, which every n-gram search uses, and of
//! `kernels/ngram.cuh`, which `ngram_match` and `hybrid_mtp_ngram` share.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ngram::Rows as TokenRows;
use spec_core::{DType, Error, Result, Status, Stream, View, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::Archive;
use crate::args::{Integers, Rows};
use crate::kernel::{Function, Shape};

/// The largest number of warps for a request.
const MAX_TEAM: usize = 256;
/// Bytes of a block's slot in the workspace.
pub(super) const SLOT: usize = 16;

launch_params! {
    /// The parameters of the kernels of `ngram_match` and `hybrid_mtp_ngram`. An argument that an
    /// operator does not have is null.
    struct Params {
        /// Prompts, [batch, input_cols] tokens of the kernel's type.
        input_ids: Rows as "Rows<const void>",
        /// Generated tokens, [batch, generated_cols] of the same type.
        generated: Rows as "Rows<const void>",
        /// Drafts, [batch, draft_cols] of the same type.
        draft_tokens: Rows as "Rows<void>",
        /// The number of tokens of each prompt, [batch].
        prompt_lens: Integers,
        /// The index of the first generated token of each request in its row, [batch]; null: 0.
        starts: Integers,
        /// The index of each request's last generated token, counted from its start, [batch].
        steps: Integers,
        /// The largest number of tokens that each request may generate, [batch].
        max_dec: Integers,
        /// The largest number of drafts that each request wants, [batch].
        draft_token_num: u64 as "const i32*",
        /// `seq_lens_this_time`: the number of tokens of each request in this step, [batch].
        this_time: u64 as "i32*",
        /// `seq_lens_encoder`, [batch].
        encoder: u64 as "const i32*",
        /// `seq_lens_decoder`, [batch].
        decoder: u64 as "const i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Slots of two words: one for each block of the first request's team, then of the second
        /// request's team, and so on. A cluster has one slot.
        slots: u64 as "u64*",
        /// The number of the launch, which no other launch has.
        number: u64,
        /// The number of columns of `input_ids`.
        input_cols: u32,
        /// The number of columns of `generated`.
        generated_cols: u32,
        /// The number of columns of `draft_tokens`.
        draft_cols: u32,
        /// The number of requests.
        batch: u32,
        /// A team has 2^block_bits blocks: a cluster, or the blocks along gridDim.y.
        block_bits: u32,
        /// A team has 2^warp_bits warps in each of its blocks.
        warp_bits: u32,
        reserved: u32,
        /// The number of tokens of the longest pattern.
        max_ngram: u32,
        /// The number of tokens of the shortest pattern.
        min_ngram: u32,
        /// The largest number of drafts of a request, an option of the operator.
        max_draft_tokens: i32,
        /// The budget of all requests, in tokens.
        threshold: i32,
    }

    /// The largest number of blocks of a team: with more blocks, communication takes longer than the
    /// additional blocks save.
    const MAX_BLOCKS: u32 = 8;
}

launch_params! {
    /// The largest number of threads in a block.
    pub(super) const THREADS: u32 = 512;
    const WARPS: u32 = THREADS / 32;
    /// Bytes that a warp reads at once.
    const CHUNK_BYTES: usize = 2048;
}

/// The constants of the search, which `prompt_lookup` has with other parameters.
#[cfg(test)]
pub(super) const SEARCH_HEADER: Header =
    Header { name: "ngram_search", includes: &["common.cuh"], structs: &[CONSTANTS] };

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "ngram", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// The blocks that search for one request, and the warps of each block, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Team {
    pub block_bits: u32,
    pub warp_bits: u32,
    /// Warps of a block, a power of two. The warps of a block may belong to several teams.
    warps: u32,
    /// Whether the blocks of the team are a cluster.
    clustered: bool,
}

impl Team {
    /// The team for each of `requests` requests whose rows have `bytes` bytes, on a device
    /// with `sms` multiprocessors. Times on an H100, i64, in microseconds, with 4 to 256
    /// warps per request ("low": the match is near the start, "none": there is no match):
    ///
    /// ```text
    /// requests x tokens, found    4     8     16    32    64    128   256
    /// 16 x 1024, low             4.4   4.3   4.2   4.4   4.4   4.4   4.6
    /// 16 x 16384, low            5.5   5.5   5.5   5.1   4.8   4.8   4.9
    /// 16 x 131072, low           5.4   5.5   5.6   5.9   6.1   7.0   7.6
    /// 16 x 32768, none            24    15   9.2   6.8   5.6   4.9   4.7
    /// 1 x 16384, low             4.8   5.0   5.4   4.9   4.5   4.5   4.5
    /// 512 x 16384, low           8.0   9.5    23    29
    /// 256 x 131072, low          6.7   6.9   8.7    16    31
    /// 256 x 131072, none         129    98    95    92    93
    /// ```
    pub(super) fn new(requests: usize, bytes: usize, sms: u32) -> Self {
        let chunks = (bytes / CHUNK_BYTES).max(1);
        // 16 warps per multiprocessor keep memory busy. More warps would read more
        // tokens in vain before a match is known.
        let warps = (16 * sms as usize / requests.max(1)).max(1);
        let warps = warps.min(chunks.next_power_of_two()).min(MAX_TEAM).ilog2();
        let warp_bits = warps.min(WARPS.ilog2());
        Team { block_bits: warps - warp_bits, warp_bits, warps: WARPS, clustered: false }
    }

    /// As [`new`](Self::new), for operators whose teams of several blocks are clusters.
    /// Times on an H200, i64, in microseconds. Columns are the warps of a request / the warps
    /// of a block, or blocks x warps of a team. Unless a row says that the budget binds, the
    /// budget of tokens is large enough for all requests:
    ///
    /// ```text
    /// requests x tokens, found    4/4   4/16  8/8   16/16 4x4   8x4   8x8   8x16
    /// 32 x 512, low              2.67  3.20  2.74
    /// 16 x 4096, low             3.14  3.83  3.10  3.43  3.30  3.08  3.44
    /// 16 x 16384, low            3.15  3.82  3.37  4.01  3.56  3.38  3.75  4.86
    /// 16 x 131072, low           3.17  3.84  3.38  4.01  3.56  3.76  4.16  6.11
    /// 16 x 32768, none             15    18   9.3   6.7   5.9  4.33  3.87  4.70
    /// 128 x 16384, low           3.39  4.04  3.72  4.61  4.70
    /// 256 x 131072, none           98   101    66    62
    ///
    ///                             1/8   1/16  2/8   2/16  4/8   4/16
    /// 512 x 512, low             3.20  3.58  3.46  3.69  3.37  3.51
    /// 512 x 512, budget binds    7.73  6.22  7.98  6.31  7.91  6.18
    /// 1024 x 512, low            3.78  3.81  4.19  4.08  4.95  4.66
    /// 1024 x 512, budget binds   12.8  9.77  13.1  10.0  14.1  10.7
    /// ```
    ///
    /// A cluster has at most `max_blocks` blocks; `max_blocks` is at least 2.
    fn within_cluster(requests: usize, bytes: usize, sms: u32, max_blocks: u32) -> Self {
        let chunks = (bytes / CHUNK_BYTES).max(1);
        let per_request = |warps: usize| (warps * sms as usize / requests.max(1)).max(1);
        // The fixed work of a warp takes as long as reading a few chunks, so few warps are
        // best for short rows. For long rows more warps keep memory busy.
        let useful = chunks.next_power_of_two().min((chunks / 3).max(8));
        let busy = match chunks / per_request(8) {
            0..=16 => 8,
            17..=64 => 16,
            _ => 32,
        };
        let max_blocks = max_blocks.min(MAX_BLOCKS);
        let warps = per_request(busy).min(useful).min((max_blocks * WARPS) as usize).ilog2();
        let block_bits = match warps {
            0..=3 => 0,
            4 if requests > sms as usize / 2 => 0,
            4 => max_blocks.min(4).ilog2(),
            _ => max_blocks.ilog2(),
        };
        let warp_bits = warps - block_bits;
        // If the budget binds, one block settles all requests, and the more requests there
        // are, the more threads this block should have.
        let least = match requests {
            _ if block_bits > 0 => 0,
            0..=64 => 4,
            65..=256 => 8,
            _ => WARPS,
        };
        let clustered = block_bits > 0;
        Team { block_bits, warp_bits, warps: least.max(1 << warp_bits), clustered }
    }

    /// The launch shape with a team for each request.
    pub(super) fn shape(self, requests: usize) -> Shape {
        let blocks = requests.div_ceil((self.warps >> self.warp_bits) as usize) as u32;
        let threads = self.warps * 32;
        if self.clustered {
            return Shape::new(blocks << self.block_bits, threads).cluster(1 << self.block_bits);
        }
        Shape { grid: [blocks, 1 << self.block_bits], ..Shape::new(blocks, threads) }
    }

    /// Size of the slots in bytes: a slot for each block of each team, but only one slot for
    /// a cluster.
    pub(super) fn slots(self, requests: usize) -> usize {
        let slots = if self.clustered { requests } else { requests << self.block_bits };
        slots * SLOT
    }
}

/// Refuses sizes that exceed an i32, because the kernels count with i32.
pub(super) fn check_sizes(cuda: &Cuda, sizes: &[(&str, usize)]) -> Result<()> {
    let limit = i32::MAX as usize;
    match sizes.iter().find(|(_, size)| *size > limit) {
        None => Ok(()),
        Some((name, size)) => {
            let words = format!("{size} {name}, expected at most {limit}");
            Err(Error::device(cuda.device(), Status::NotImplemented, words))
        }
    }
}

/// The suffix of a kernel's name for a token type. The i32 kernels handle u32 too.
pub(super) fn token_name(dtype: DType) -> &'static str {
    if dtype == DType::I64 { "i64" } else { "i32" }
}

/// The options of an operator.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub max_ngram: usize,
    pub min_ngram: usize,
    pub max_draft_tokens: usize,
    pub threshold: i32,
}

/// The arguments of `ngram_match` or `hybrid_mtp_ngram`; arguments that only the other operator
/// has are `None`.
pub(super) struct Arguments<'a> {
    pub input_ids: View<'a>,
    pub input_ids_len: View<'a>,
    pub generated: View<'a>,
    pub starts: Option<View<'a>>,
    pub steps: View<'a>,
    pub max_dec_len: View<'a>,
    pub draft_token_num: Option<View<'a>>,
    pub draft_tokens: ViewMut<'a>,
    pub this_time: ViewMut<'a>,
    pub encoder: Option<View<'a>>,
    pub decoder: View<'a>,
    pub flags: Option<ViewMut<'a>>,
}

/// `ngram_match` or `hybrid_mtp_ngram`, prepared for a plan.
pub(super) struct Drafting {
    cuda: Cuda,
    rows: TokenRows,
    options: Options,
    function: Function,
    team: Team,
    shape: Shape,
}

impl Drafting {
    pub(super) fn new(
        cuda: &Cuda,
        archive: &Archive,
        rows: &TokenRows,
        options: Options,
    ) -> Result<Self> {
        check_sizes(
            cuda,
            &[
                ("requests", rows.batch),
                ("tokens of a prompt", rows.input_ids.cols),
                ("generated tokens of a request", rows.generated.cols),
                ("drafts of a request", rows.draft_tokens.cols),
            ],
        )?;
        let dtype = rows.input_ids.dtype;
        let name = format!("{}_{}", archive.name, token_name(dtype));
        let function = cuda.function(archive, &name)?;
        let bytes = (rows.input_ids.cols + rows.generated.cols) * dtype.size();
        let sms = cuda.limits().multiprocessors;
        let (function, shape, team) = cuda.within_clusters(|max| {
            let team = if max > 1 {
                Team::within_cluster(rows.batch, bytes, sms, max)
            } else {
                Team::new(rows.batch, bytes, sms)
            };
            Ok((function.clone(), team.shape(rows.batch), team))
        })?;
        Ok(Drafting { cuda: cuda.clone(), rows: *rows, options, function, team, shape })
    }

    pub(super) fn workspace_size(&self) -> usize {
        self.team.slots(self.rows.batch)
    }

    pub(super) fn launch(
        &self,
        workspace: ViewMut<'_>,
        arguments: Arguments<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Drafting { cuda, rows, options, team, .. } = self;
        let lengths = rows.lengths;
        let params = Params {
            input_ids: cuda.rows(arguments.input_ids, &rows.input_ids)?,
            generated: cuda.rows(arguments.generated, &rows.generated)?,
            draft_tokens: cuda.rows(arguments.draft_tokens, &rows.draft_tokens)?,
            prompt_lens: cuda.integers(arguments.input_ids_len, lengths)?,
            starts: cuda.integers(arguments.starts, lengths)?,
            steps: cuda.integers(arguments.steps, lengths)?,
            max_dec: cuda.integers(arguments.max_dec_len, lengths)?,
            draft_token_num: cuda.pointer(arguments.draft_token_num)?,
            this_time: cuda.pointer(arguments.this_time)?,
            encoder: cuda.pointer(arguments.encoder)?,
            decoder: cuda.pointer(arguments.decoder)?,
            flags: cuda.pointer(arguments.flags)?,
            slots: cuda.workspace(workspace, self.workspace_size())?,
            number: number(),
            input_cols: rows.input_ids.cols as u32,
            generated_cols: rows.generated.cols as u32,
            draft_cols: rows.draft_tokens.cols as u32,
            batch: rows.batch as u32,
            block_bits: team.block_bits,
            warp_bits: team.warp_bits,
            reserved: 0,
            max_ngram: options.max_ngram as u32,
            min_ngram: options.min_ngram as u32,
            max_draft_tokens: options.max_draft_tokens as i32,
            threshold: options.threshold,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were
        // checked against the plan; the workspace holds the slots of this shape; the
        // kernel clamps lengths and steps, which are data, to the sizes of the rows.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}

/// The number of a launch. The blocks of a launch leave values for each other in the
/// workspace, and the number tells these values from values that lay there before.
/// Each half of the number has 30 mixed bits above the bits 0 and 1. So a half is
/// never 0, which is the value that a launch leaves behind, and never equals a half of
/// a hint, whose low bits are 1 and 1.
///
/// A process repeats a number after 2^60 launches. A value that another process or a
/// previous owner of the memory left there equals the number by chance only: 1 in 2^60.
pub(super) fn number() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("launches"));
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let z = mixed(SEED.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)) & MASK);
    (z >> 30) << 34 | 1 << 32 | (z & 0x3FFF_FFFF) << 2 | 1
}

const MASK: u64 = (1 << 60) - 1;

/// The mixing function of SplitMix64, cut to 60 bits. Each step is a bijection of the 60-bit
/// integers, so different counts give different numbers.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9) & MASK;
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB) & MASK;
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inverts `z ^ z >> shift`.
    fn unshifted(z: u64, shift: u32) -> u64 {
        (0..60 / shift).fold(z, |x, _| z ^ x >> shift)
    }

    #[test]
    fn teams_keep_within_the_blocks_and_warps_there_are() {
        for max in [2, 4, 8, 16] {
            for requests in [1, 2, 16, 33, 66, 67, 256, 1024] {
                for bytes in (8..22).map(|log| 1 << log) {
                    for sms in [1, 16, 132] {
                        let team = Team::within_cluster(requests, bytes, sms, max);
                        let what = format!("{team:?} for {requests} x {bytes} on {sms}, {max}");
                        assert!(1 << team.block_bits <= max.min(MAX_BLOCKS), "{what}");
                        assert!(1 << team.warp_bits <= team.warps && team.warps <= WARPS, "{what}");
                        assert!(team.clustered || team.block_bits == 0, "{what}");
                        assert!(!team.clustered || 1 << team.warp_bits == team.warps, "{what}");
                        assert_eq!(team.shape(requests).cluster, 1 << team.block_bits, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_two_launches_share_a_number() {
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
        };
        for count in [0, 1, 2, 3, 1 << 30, 0x0123_4567_89AB_CDEF, MASK] {
            let mut z = unshifted(mixed(count), 31);
            z = unshifted(z.wrapping_mul(inverse(0x94D0_49BB_1331_11EB)) & MASK, 27);
            z = unshifted(z.wrapping_mul(inverse(0xBF58_476D_1CE4_E5B9)) & MASK, 30);
            assert_eq!(z, count, "can be undone");
        }
        for _ in 0..100 {
            let number = number();
            assert_eq!((number & 3, number >> 32 & 3), (1, 1));
        }
    }
}
