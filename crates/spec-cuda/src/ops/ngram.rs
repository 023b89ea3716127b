//! Host side of `kernels/ngram.cuh`: what `ngram_match` and `hybrid_mtp_ngram`
//! share.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use spec_core::ngram::Rows as TokenRows;
use spec_core::{Error, Result, Status, Stream, View, ViewMut};

use crate::Cuda;
use crate::archive::Archive;
use crate::args::Integers;
use crate::launch::{Function, Shape};

const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// What a warp reads at once.
const CHUNK_BYTES: usize = 2048;
/// The most warps for a request.
const MAX_TEAM: usize = 256;
/// Bytes of a record or a hint in the workspace.
const WORDS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    input_ids: u64,
    input_stride: u64,
    generated: u64,
    generated_stride: u64,
    draft_tokens: u64,
    draft_stride: u64,
    prompt_lens: Integers,
    starts: Integers,
    steps: Integers,
    max_dec: Integers,
    draft_token_num: u64,
    this_time: u64,
    encoder: u64,
    decoder: u64,
    flags: u64,
    records: u64,
    hints: u64,
    nonce: u64,
    input_cols: u32,
    generated_cols: u32,
    draft_cols: u32,
    batch: u32,
    block_bits: u32,
    warp_bits: u32,
    reserved: u32,
    max_ngram: u32,
    min_ngram: u32,
    max_draft_tokens: i32,
    threshold: i32,
}
const _: () = assert!(size_of::<Params>() == 224);

/// How many blocks search for a request, and warps in each, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    block_bits: u32,
    warp_bits: u32,
}

impl Team {
    /// Warps for a request, by requests and chunks of 2 KB in its rows. On an
    /// H100, i64, in microseconds, with 4 to 256 warps a request ("low": found
    /// near the start, "none": nowhere):
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
    fn new(rows: &TokenRows, sms: u32) -> Self {
        let bytes = (rows.input_ids.cols + rows.generated.cols) * rows.input_ids.dtype.size();
        let chunks = (bytes / CHUNK_BYTES).max(1);
        // 16 warps a multiprocessor keep memory busy; what more of them read
        // before a match is known is wasted.
        let share = (16 * sms as usize / rows.batch.max(1)).max(1);
        let warps = share.min(chunks.next_power_of_two()).min(MAX_TEAM).ilog2();
        let warp_bits = warps.min(WARPS.ilog2());
        Team { block_bits: warps - warp_bits, warp_bits }
    }
}

/// The options of an operator.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub max_ngram: usize,
    pub min_ngram: usize,
    pub max_draft_tokens: usize,
    pub threshold: i32,
}

/// The arguments of an operator; what it has not is absent.
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

/// Either operator, ready for a plan.
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
        let limit = i32::MAX as usize;
        for (name, size) in [
            ("requests", rows.batch),
            ("tokens of a prompt", rows.input_ids.cols),
            ("generated tokens of a request", rows.generated.cols),
            ("drafts of a request", rows.draft_tokens.cols),
        ] {
            if size > limit {
                let words = format!("{size} {name}, expected at most {limit}");
                return Err(Error::device(cuda.device(), Status::NotImplemented, words));
            }
        }
        let name = format!("{}_{}", archive.name, rows.input_ids.dtype.name());
        let function = cuda.function(archive, &name)?;
        let team = Team::new(rows, cuda.limits().multiprocessors);
        let requests_a_block = (WARPS >> team.warp_bits) as usize;
        let blocks = rows.batch.div_ceil(requests_a_block) as u32;
        let shape = Shape { grid: [blocks, 1 << team.block_bits], ..Shape::new(blocks, THREADS) };
        Ok(Drafting { cuda: cuda.clone(), rows: *rows, options, function, team, shape })
    }

    /// A record a block of a request's team and a hint a request.
    pub(super) fn workspace_size(&self) -> usize {
        self.rows.batch * ((1 << self.team.block_bits) + 1) * WORDS
    }

    pub(super) fn launch(
        &self,
        workspace: ViewMut<'_>,
        arguments: Arguments<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Drafting { cuda, rows, options, team, .. } = self;
        let lengths = rows.lengths;
        let records = cuda.workspace(workspace, self.workspace_size())?;
        let params = Params {
            input_ids: cuda.pointer(arguments.input_ids)?,
            input_stride: rows.input_ids.row_stride as u64,
            generated: cuda.pointer(arguments.generated)?,
            generated_stride: rows.generated.row_stride as u64,
            draft_tokens: cuda.pointer(arguments.draft_tokens)?,
            draft_stride: rows.draft_tokens.row_stride as u64,
            prompt_lens: cuda.integers(arguments.input_ids_len, lengths)?,
            starts: cuda.integers(arguments.starts, lengths)?,
            steps: cuda.integers(arguments.steps, lengths)?,
            max_dec: cuda.integers(arguments.max_dec_len, lengths)?,
            draft_token_num: cuda.pointer(arguments.draft_token_num)?,
            this_time: cuda.pointer(arguments.this_time)?,
            encoder: cuda.pointer(arguments.encoder)?,
            decoder: cuda.pointer(arguments.decoder)?,
            flags: cuda.pointer(arguments.flags)?,
            records,
            hints: records + ((rows.batch << team.block_bits) * WORDS) as u64,
            nonce: nonce(),
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
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, the workspace holds the records and hints
        // of this shape, and the kernel cuts lengths and steps, which are data,
        // to the rows.
        unsafe { cuda.queue(stream)?.launch(&self.function, self.shape, &params) }
    }
}

/// The number of a launch, by which its blocks know what they left for each
/// other from what lay there before: no two launches share one, and another
/// process starts elsewhere. Neither half is 0, which is what a launch leaves.
fn nonce() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("nonce"));
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // SplitMix64: a bijection, so different counts give different numbers.
    let mut z = SEED
        .wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ z >> 31) | 1 << 32 | 1
}
