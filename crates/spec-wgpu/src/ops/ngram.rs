//! The host code that the drafting operators share: the search
//! (`shaders/include/ngram_search.wgsl`), and for `ngram_match` and `hybrid_mtp_ngram` also the
//! workspace and the passes after `prepare` (`shaders/include/ngram.wgsl`).

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ngram::Rows;
use spec_core::ops::prompt_lookup::Occurrence;
use spec_core::{DType, Matrix, Result, Status};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader};
use crate::windows::Window;

/// The smallest and the largest block, in tokens. The smallest is enough work for a workgroup to be
/// worth its reduction. The largest still spreads the work over a large GPU, and lets later blocks
/// see the matches of earlier ones.
const MIN_BLOCK: usize = 1024;
const MAX_BLOCK: usize = 8192;
/// The number of workgroups that fill a large GPU: above this number, blocks grow instead.
const FULL: usize = 1024;
/// The largest number of loop iterations of a thread: see the rules in [`super`].
const MAX_TURNS: usize = 60_000;
/// The largest number of requests for which each workgroup of `copy` sums up the budget for itself.
const UNSHARED: usize = 1024;
/// 32-bit words of a block's partial result in the workspace.
const PARTIAL: u64 = 2;

/// The limits that the operators' parameters set.
#[derive(Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) max_ngram: usize,
    pub(super) min_ngram: usize,
    /// Unused by `prompt_lookup`.
    pub(super) threshold: i32,
    /// Unused by `ngram_match`.
    pub(super) max_draft_tokens: usize,
    /// MAPPED and other bits; used by `prompt_lookup` alone.
    pub(super) form: u32,
}

launch_params! {
    /// What the shaders of every operator that searches take.
    pub(super) struct Params: Pod, Zeroable {
        /// Requests.
        requests: u32,
        /// Tokens of a row of prompts.
        input_cols: u32,
        /// Tokens of a row of generated tokens.
        generated_cols: u32,
        /// Tokens of a row of drafts.
        draft_cols: u32,
        /// Tokens of the longest pattern.
        max_ngram: u32,
        /// Tokens of the shortest pattern.
        min_ngram: u32,
        /// The budget of all requests, in tokens; the bits of an i32.
        threshold: u32,
        /// The most drafts of a request, by the options of the operator.
        max_draft_tokens: u32,
        /// Words of a length.
        length_words: u32,
        /// Tokens of a block.
        block: u32,
        /// Blocks of a row's prompt.
        input_blocks: u32,
        /// Blocks of a row: those of the prompt, then those of the generated tokens.
        blocks: u32,
        /// Where the partial results start in the workspace, in words.
        partials: u32,
        /// The first row of the window.
        row0: u32,
        /// The row after the last of the window.
        row1: u32,
        /// Tokens from one row of prompts to the next in the window.
        input_stride: u32,
        /// The same of generated tokens.
        generated_stride: u32,
        /// The same of drafts.
        draft_stride: u32,
        /// 1 where a pass `divide` sums up the budget, else 0.
        shared_budget: u32,
        /// The form of a call of `prompt_lookup`: MAPPED and other bits.
        form: u32,
        /// Rows of prompts.
        texts: u32,
        /// The first row of the window of prompts.
        slot0: u32,
        /// The row after the last of the window of prompts.
        slot1: u32,
    }

    /// The number of threads that search a block. A block is a multiple of this number.
    const SEARCH_THREADS: usize = 256;
    /// 32-bit words of the workspace for what one pass over a request hands on to the next.
    const STATE: u64 = 14;
    /// Bits of `form`: `requests` says which row each text has.
    pub(super) const MAPPED: u32 = 1;
    /// `max_drafts` has limits.
    pub(super) const LIMITED: u32 = 1 << 1;
    /// A text's last token stands behind its drafts.
    pub(super) const PAD_WITH_LAST: u32 = 1 << 2;
    /// A number of `requests` has two words.
    pub(super) const WIDE_REQUESTS: u32 = 1 << 3;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "ngram", includes: &["bound"], structs: &[Params::DESCRIPTION] };

/// The search, ready for the rows of one plan.
pub(super) struct Search {
    rows: Rows,
    limits: Limits,
    /// Tokens of a block, blocks of a prompt row, and blocks of a prompt row and a row of generated
    /// tokens together.
    block: usize,
    input_blocks: usize,
    blocks: usize,
    program: Program,
    /// Parts of both haystacks (prompts and generated tokens), and parts of the haystacks and
    /// the drafts.
    haystacks: Vec<Part>,
    pub(super) all: Vec<Part>,
}

/// A part of a pass: the texts that it binds, and the requests that it looks at. Both are the same
/// rows, unless `prompt_lookup` is told which text each request has.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) texts: Window,
    pub(super) requests: Window,
}

const NOTHING: Window = Window { rows: 0..0, cols: 0..0 };
/// The part of a pass over all requests, which binds no token matrix.
pub(super) const EVERYWHERE: Part = Part { texts: NOTHING, requests: NOTHING };

impl Part {
    fn of_rows(window: Window) -> Self {
        Part { texts: window.clone(), requests: window }
    }
}

impl Search {
    /// `which` is the occurrence that counts. With `one_text`, the pattern ends in the row that is
    /// searched: `generated` is `input_ids` again, not a second haystack.
    pub(super) fn new(
        gpu: &Wgpu,
        shader: &'static Shader,
        rows: &Rows,
        limits: Limits,
        which: Occurrence,
        one_text: bool,
    ) -> Result<Self> {
        let searched = rows.input_ids.cols + if one_text { 0 } else { rows.generated.cols };
        let block = block(rows.batch.saturating_mul(searched), rows, limits.max_ngram);
        let input_blocks = rows.input_ids.cols.div_ceil(block);
        let blocks = match one_text {
            true => input_blocks,
            false => input_blocks + rows.generated.cols.div_ceil(block),
        };
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
        let (haystacks, all) = if limits.form & MAPPED == 0 {
            let [haystacks, all] = [
                windows(&[rows.input_ids, rows.generated])?,
                windows(&[rows.input_ids, rows.generated, rows.draft_tokens])?,
            ];
            let parts = |windows: Vec<Window>| windows.into_iter().map(Part::of_rows).collect();
            (parts(haystacks), parts(all))
        } else {
            let texts = windows(&[rows.input_ids])?;
            let everyone = Window { rows: 0..rows.batch, cols: 0..0 };
            let part = |texts: &Window, requests: &Window| Part {
                texts: texts.clone(),
                requests: requests.clone(),
            };
            let haystacks = texts.iter().map(|texts| part(texts, &everyone)).collect();
            // Requests that have no text are written with the first window of texts.
            let texts = if texts.is_empty() { vec![NOTHING] } else { texts };
            let drafts = windows(&[rows.draft_tokens])?;
            let of_texts = |texts| drafts.iter().map(move |drafts| part(texts, drafts));
            (haystacks, texts.iter().flat_map(of_texts).collect())
        };
        let last = ("LAST", u32::from(which == Occurrence::Last));
        let constants = [tokens_constant(rows.input_ids.dtype), last];
        Ok(Search {
            rows: *rows,
            limits,
            block,
            input_blocks,
            blocks,
            program: gpu.program(shader, "search", &[Write, Read, Read], &constants)?,
            haystacks,
            all,
        })
    }

    pub(super) fn workspace_size(&self) -> usize {
        self.rows.batch * (STATE + PARTIAL * self.blocks as u64) as usize * 4
    }

    /// Records the search.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        work: Region<'_>,
        input_ids: Region<'_>,
        generated: Region<'_>,
    ) -> Result<()> {
        for part in &self.haystacks {
            let input_ids = part.texts.of(&self.rows.input_ids, input_ids);
            let generated = part.texts.of(&self.rows.generated, generated);
            let groups = part.requests.rows.len() as u64 * self.blocks as u64;
            let bound = [work, input_ids, generated];
            r.dispatch(&self.program, &bound, &self.params(part), groups)?;
        }
        Ok(())
    }

    /// The parameters of a part of a pass.
    pub(super) fn params(&self, part: &Part) -> Params {
        let Rows { batch, input_ids, generated, draft_tokens, lengths } = &self.rows;
        Params {
            requests: *batch as u32,
            input_cols: input_ids.cols as u32,
            generated_cols: generated.cols as u32,
            draft_cols: draft_tokens.cols as u32,
            max_ngram: self.limits.max_ngram as u32,
            min_ngram: self.limits.min_ngram as u32,
            threshold: self.limits.threshold as u32,
            max_draft_tokens: self.limits.max_draft_tokens as u32,
            length_words: words_of(*lengths),
            block: self.block as u32,
            input_blocks: self.input_blocks as u32,
            blocks: self.blocks as u32,
            partials: (*batch as u64 * STATE) as u32,
            row0: part.requests.rows.start as u32,
            row1: part.requests.rows.end as u32,
            input_stride: part.texts.stride(input_ids),
            generated_stride: part.texts.stride(generated),
            draft_stride: part.requests.stride(draft_tokens),
            shared_budget: u32::from(*batch > UNSHARED),
            form: self.limits.form,
            texts: input_ids.rows as u32,
            slot0: part.texts.rows.start as u32,
            slot1: part.texts.rows.end as u32,
        }
    }
}

/// The workspace, the token matrices, and the vectors that are updated, as regions.
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
    search: Search,
    prepare: Program,
    choose: Program,
    divide: Program,
    copy: Program,
}

impl Drafter {
    /// `prepare` holds the access to each binding of the operator's own pass of that name.
    pub(super) fn new(
        gpu: &Wgpu,
        shader: &'static Shader,
        prepare: &[Access],
        rows: &Rows,
        limits: Limits,
    ) -> Result<Self> {
        let program = |entry, bindings: &[Access], constants: &[(&'static str, u32)]| {
            gpu.program(shader, entry, bindings, constants)
        };
        Ok(Drafter {
            rows: *rows,
            search: Search::new(gpu, shader, rows, limits, Occurrence::First, false)?,
            prepare: program("prepare", prepare, &[])?,
            choose: program("choose", &[Write, Read, Read, Read, Write, Write], &[])?,
            divide: program("divide", &[Write], &[])?,
            copy: program(
                "copy",
                &[Write, Read, Read, Write, Write],
                &[tokens_constant(rows.input_ids.dtype)],
            )?,
        })
    }

    pub(super) fn workspace_size(&self) -> usize {
        self.search.workspace_size()
    }

    /// Records all passes. `vectors` are the regions that `prepare` binds after the workspace.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        vectors: &[Region<'_>],
        regions: &Regions<'_>,
    ) -> Result<()> {
        let Regions { work, input_ids, generated, draft_tokens, this_time, flags } = *regions;
        let requests = self.rows.batch as u64;
        let everywhere = self.search.params(&EVERYWHERE);
        let bound = [&[work], vectors].concat();
        r.dispatch(&self.prepare, &bound, &everywhere, requests.div_ceil(64))?;
        self.search.record(r, work, input_ids, generated)?;
        let none = Region::nothing();
        let bound = [work, none, none, none, this_time, flags];
        r.dispatch(&self.choose, &bound, &everywhere, requests)?;
        if self.rows.batch > UNSHARED {
            r.dispatch(&self.divide, &[work], &everywhere, 1)?;
        }
        for part in &self.search.all {
            let bound = [
                work,
                part.texts.of(&self.rows.input_ids, input_ids),
                part.texts.of(&self.rows.generated, generated),
                part.requests.of(&self.rows.draft_tokens, draft_tokens),
                this_time,
            ];
            let groups = part.requests.rows.len() as u64;
            r.dispatch(&self.copy, &bound, &self.search.params(part), groups)?;
        }
        Ok(())
    }
}

/// The number of tokens of a block where `tokens` tokens are searched.
fn block(tokens: usize, rows: &Rows, max_ngram: usize) -> usize {
    let even = tokens.div_ceil(FULL).next_multiple_of(SEARCH_THREADS);
    // A thread may compare a whole pattern at each of its tokens.
    let turns = MAX_TURNS / max_ngram.min(rows.generated.cols).max(1);
    even.clamp(MIN_BLOCK, MAX_BLOCK).min(turns.max(1) * SEARCH_THREADS)
}

/// The shader constant for the size of a token.
pub(super) fn tokens_constant(dtype: DType) -> (&'static str, u32) {
    ("TOKEN_WORDS", words_of(dtype))
}

/// 32-bit words of a token or a length.
pub(super) fn words_of(dtype: DType) -> u32 {
    (dtype.size() / 4) as u32
}

#[cfg(test)]
mod tests {
    use spec_core::Descriptor;
    use spec_core::ops::{NgramMatch, PromptLookup};

    use super::*;
    use crate::shader::lock;

    /// What is compiled depends neither on the number of requests nor on their lengths: an engine
    /// has a different batch at every step.
    #[test]
    fn another_shape_compiles_nothing() {
        let Ok(gpu) = Wgpu::open(0) else { return };
        let (ngram, lookup) = (NgramMatch::default(), PromptLookup::default());
        let create = |batch: usize, cols: usize| {
            let tensors = ngram.tensors(batch, cols, cols, 8);
            Descriptor::create(&gpu, &ngram, &tensors).expect("ngram_match");
            let tensors = lookup.tensors(DType::I64, batch, cols);
            Descriptor::create(&gpu, &lookup, &tensors).expect("prompt_lookup");
            lock(&gpu.0.programs).len()
        };
        let first = create(1, 100);
        for batch in [2, 3, 64, UNSHARED, UNSHARED + 1, 4 * UNSHARED] {
            for cols in [1, 100, 4096] {
                assert_eq!(create(batch, cols), first, "{batch} x {cols}");
            }
        }
    }
}
