//! What the two drafting operators share on the host: the workspace and the
//! passes after `prepare`. See `shaders/include/ngram.wgsl`.

use spec_core::ngram::Rows;
use spec_core::{DType, Matrix, Result, Status};

use crate::Wgpu;
use crate::memory::Region;
use crate::record::Recorder;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader};
use crate::windows::Window;

/// Threads that search a block; a block is a multiple of it.
const SEARCH_THREADS: usize = 256;
/// Blocks by size: at least enough work for a workgroup to be worth its
/// reduction, at most what still spreads over a large GPU and lets later blocks
/// see the matches of earlier ones.
const MIN_BLOCK: usize = 1024;
const MAX_BLOCK: usize = 8192;
/// Workgroups that fill a large GPU: above this many, blocks grow instead.
const FULL: usize = 1024;
/// Turns of loops that a thread may take: see the rules of the operators.
const MAX_TURNS: usize = 60_000;
/// Requests up to which each workgroup of `copy` sums up the budget for itself.
const UNSHARED: usize = 1024;
/// Words of a request's state and of a block's partial result in the workspace.
const STATE: u64 = 14;
const PARTIAL: u64 = 2;

/// What the operators' parameters come to.
pub(super) struct Limits {
    pub(super) max_ngram: usize,
    pub(super) min_ngram: usize,
    pub(super) threshold: i32,
    /// Unused by `ngram_match`.
    pub(super) max_draft_tokens: usize,
}

/// The token matrices and what `share` updates, as regions.
pub(super) struct Regions<'a> {
    pub(super) work: Region<'a>,
    pub(super) input_ids: Region<'a>,
    pub(super) generated: Region<'a>,
    pub(super) draft_tokens: Region<'a>,
    pub(super) this_time: Region<'a>,
    pub(super) flags: Region<'a>,
}

/// The search and the budget, ready for one plan.
pub(super) struct Drafter {
    rows: Rows,
    limits: Limits,
    /// Tokens of a block, blocks of a prompt row and of both rows.
    block: usize,
    input_blocks: usize,
    blocks: usize,
    prepare: Program,
    search: Program,
    choose: Program,
    share: Program,
    copy: Program,
    /// Windows of both haystacks, and of those and the drafts.
    haystacks: Vec<Window>,
    all: Vec<Window>,
}

impl Drafter {
    /// `prepare` is the access to each of the vectors that the operator's own
    /// pass reads.
    pub(super) fn new(
        gpu: &Wgpu,
        shader: &'static Shader,
        prepare: &[Access],
        rows: &Rows,
        limits: Limits,
    ) -> Result<Self> {
        let block = block(rows, limits.max_ngram);
        let input_blocks = rows.input_ids.cols.div_ceil(block);
        let blocks = input_blocks + rows.generated.cols.div_ceil(block);
        let too_large = |what: &str| {
            let name = shader.name;
            let largest = gpu.0.max_binding;
            let words = format!("{name}: {what} need more than a binding of {largest} bytes");
            gpu.error(Status::NotImplemented, words)
        };
        let words = (rows.batch as u64).saturating_mul(STATE + PARTIAL * blocks as u64);
        if words > gpu.window(4) {
            return Err(too_large("intermediate results of this many requests"));
        }
        let windows = |matrices: &[Matrix]| {
            gpu.windows(matrices, usize::MAX).ok_or_else(|| too_large("the tokens of a row"))
        };
        let tokens = ("TOKEN_WORDS", words_of(rows.input_ids.dtype));
        let shared = ("SHARED", u32::from(rows.batch > UNSHARED));
        let program = |entry, bindings: &[Access], constants: &[(&'static str, u32)]| {
            gpu.program(shader, entry, bindings, constants)
        };
        Ok(Drafter {
            rows: *rows,
            limits,
            block,
            input_blocks,
            blocks,
            prepare: program("prepare", prepare, &[])?,
            search: program("search", &[Write, Read, Read], &[tokens])?,
            choose: program("choose", &[Write, Read, Read, Read, Write, Write], &[])?,
            share: program("share", &[Write], &[])?,
            copy: program("copy", &[Write, Read, Read, Write, Write], &[tokens, shared])?,
            haystacks: windows(&[rows.input_ids, rows.generated])?,
            all: windows(&[rows.input_ids, rows.generated, rows.draft_tokens])?,
        })
    }

    pub(super) fn workspace_size(&self) -> usize {
        self.rows.batch * (STATE + PARTIAL * self.blocks as u64) as usize * 4
    }

    /// Records all passes; `vectors` are what `prepare` binds after the
    /// workspace.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        vectors: &[Region<'_>],
        regions: &Regions<'_>,
    ) -> Result<()> {
        let Regions { work, input_ids, generated, draft_tokens, this_time, flags } = *regions;
        let requests = self.rows.batch as u64;
        let everywhere = self.parameters(&Window { rows: 0..0, cols: 0..0 });
        let bound = [&[work], vectors].concat();
        r.dispatch(&self.prepare, &bound, &everywhere, requests.div_ceil(64))?;
        for window in &self.haystacks {
            let input_ids = window.of(&self.rows.input_ids, input_ids);
            let generated = window.of(&self.rows.generated, generated);
            let groups = window.rows.len() as u64 * self.blocks as u64;
            let parameters = self.parameters(window);
            r.dispatch(&self.search, &[work, input_ids, generated], &parameters, groups)?;
        }
        let none = Region::nothing();
        let bound = [work, none, none, none, this_time, flags];
        r.dispatch(&self.choose, &bound, &everywhere, requests)?;
        if self.rows.batch > UNSHARED {
            r.dispatch(&self.share, &[work], &everywhere, 1)?;
        }
        for window in &self.all {
            let bound = [
                work,
                window.of(&self.rows.input_ids, input_ids),
                window.of(&self.rows.generated, generated),
                window.of(&self.rows.draft_tokens, draft_tokens),
                this_time,
            ];
            let groups = window.rows.len() as u64;
            r.dispatch(&self.copy, &bound, &self.parameters(window), groups)?;
        }
        Ok(())
    }

    /// The shader's parameters, in its order.
    fn parameters(&self, window: &Window) -> [u32; 18] {
        let Rows { batch, input_ids, generated, draft_tokens, lengths } = &self.rows;
        [
            *batch as u32,
            input_ids.cols as u32,
            generated.cols as u32,
            draft_tokens.cols as u32,
            self.limits.max_ngram as u32,
            self.limits.min_ngram as u32,
            self.limits.threshold as u32,
            self.limits.max_draft_tokens as u32,
            words_of(*lengths),
            self.block as u32,
            self.input_blocks as u32,
            self.blocks as u32,
            (*batch as u64 * STATE) as u32,
            window.rows.start as u32,
            window.rows.end as u32,
            window.stride(input_ids),
            window.stride(generated),
            window.stride(draft_tokens),
        ]
    }
}

/// The tokens of a block.
fn block(rows: &Rows, max_ngram: usize) -> usize {
    let tokens = rows.batch.saturating_mul(rows.input_ids.cols + rows.generated.cols);
    let even = tokens.div_ceil(FULL).next_multiple_of(SEARCH_THREADS);
    // A thread may compare a whole pattern at each of its tokens.
    let turns = MAX_TURNS / max_ngram.min(rows.generated.cols).max(1);
    even.clamp(MIN_BLOCK, MAX_BLOCK).min(turns.max(1) * SEARCH_THREADS)
}

/// Words of a token or length.
fn words_of(dtype: DType) -> u32 {
    (dtype.size() / 4) as u32
}
