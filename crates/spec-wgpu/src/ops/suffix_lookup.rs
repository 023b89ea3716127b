//! `suffix_lookup` on wgpu: one dispatch finds the windows of the longest match where texts are
//! short, else several dispatches find them tile by tile. Then the tree of each request grows from
//! its windows alone. See the shader.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{self, Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use super::ngram::{tokens_constant, words_of};
use crate::Wgpu;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("suffix_lookup");

/// Words of a workspace beyond which requests are served in several windows of rows.
const MAX_WORDS: u64 = 1 << 25;
/// Turns of a thread in a dispatch that grows nodes: see the rules in [`super`].
const MAX_TURNS: u64 = 40_000;
/// Tiles of a request, its own and the corpus's, that one workgroup reads sooner than further
/// dispatches start.
const MAX_LOOK_TILES: u64 = 8;
/// Turns of a thread of one dispatch over the notes of a request.
const MAX_TILES: u64 = 50_000 * THREADS;

/// A window of texts, and a window of the requests that may have them. Both are the same rows,
/// unless `requests` says which text each request has.
struct Part {
    texts: Window,
    requests: Window,
}

struct Looker {
    gpu: Wgpu,
    plan: Plan,
    own_tiles: u64,
    corpus_tiles: u64,
    /// Offers that a request's tree can make.
    offers: u64,
    /// Nodes that a dispatch grows.
    steps: u64,
    parts: Vec<Part>,
    /// Passes 1 to 5 in one dispatch, where the texts are short.
    look: Option<Program>,
    prepare: Program,
    scan_own: Program,
    scan_corpus: Program,
    number: Program,
    list: Program,
    grow: Program,
    finish: Program,
    link: Program,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<SuffixLookup> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SuffixLookup>>> {
        Ok(Box::new(Looker::new(self, plan)?))
    }
}

fn too_large(gpu: &Wgpu, plan: &Plan) -> Error {
    let words = format!(
        "suffix_lookup: {} texts of up to {} tokens and a corpus of {} tokens are more than \
         bindings hold",
        plan.tokens.rows,
        plan.tokens.cols,
        plan.corpus.map_or(0, |corpus| corpus.len),
    );
    gpu.error(Status::NotImplemented, words)
}

/// Whether each argument that a dispatch binds whole, whatever its window of rows, fits a binding.
fn fit_bindings(gpu: &Wgpu, plan: &Plan) -> bool {
    let list = |len: usize, dtype: DType| len as u64 <= gpu.window(dtype.size() as u64);
    let matrix = |matrix: &Matrix| matrix.rows as u64 <= gpu.window_of_rows(matrix, 1);
    let optional = [&plan.parents, &plan.first_child, &plan.next_sibling, &plan.shares];
    list(plan.tokens.rows, plan.lengths)
        && list(plan.batch(), plan.requests.unwrap_or(DType::I32))
        && plan.corpus.is_none_or(|corpus| list(corpus.len, corpus.dtype))
        && matrix(&plan.drafts)
        && optional.into_iter().flatten().all(matrix)
}

impl Looker {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let too_large = || too_large(gpu, plan);
        let own_tiles = (plan.tokens.cols as u64).div_ceil(TILE);
        let corpus_tiles = plan.corpus.map_or(0, |corpus| corpus.len as u64).div_ceil(TILE);
        let (n, max_windows) = (plan.drafts.cols as u64, plan.params.max_windows as u64);
        // Each offer that never becomes a node has windows that no other such offer has.
        let offers = max_windows + n;
        let words = STATE + own_tiles + corpus_tiles + 2 * max_windows + 2 * offers + NODE * n;
        // A workgroup has a request and a tile.
        let groups = u64::from(u32::MAX) / (own_tiles + corpus_tiles).max(1);
        let max_rows = (gpu.window(4).min(MAX_WORDS.max(words)) / words).min(groups);
        if max_rows == 0 || own_tiles + corpus_tiles > MAX_TILES || !fit_bindings(gpu, plan) {
            return Err(too_large());
        }
        let mut texts = gpu.windows(&[plan.tokens], usize::MAX).ok_or_else(too_large)?;
        let max_rows = usize::try_from(max_rows).unwrap_or(usize::MAX);
        if plan.requests.is_some() && texts.is_empty() {
            // Requests that have no text are written with the first window of texts.
            texts.push(Window { rows: 0..0, cols: 0..0 });
        }
        let part = |texts: &Window, requests| Part { texts: texts.clone(), requests };
        let everyone = Window { rows: 0..plan.batch(), cols: 0..plan.drafts.cols };
        let parts = |window: &Window| -> Vec<Part> {
            match plan.requests.is_some() {
                true => everyone.parts(max_rows).map(|rows| part(window, rows)).collect(),
                false => window.parts(max_rows).map(|rows| part(&rows, rows.clone())).collect(),
            }
        };
        let parts = texts.iter().flat_map(parts).collect();
        // A thread compares each of its windows with the more recent ones.
        let turns = max_windows.div_ceil(THREADS) * max_windows + max_windows.div_ceil(8) + 64;
        let wide = ("DRAFT_WORDS", words_of(plan.drafts.dtype));
        let tokens = [tokens_constant(plan.tokens.dtype), wide];
        let program = |entry, bindings: &[_]| gpu.program(&SHADER, entry, bindings, &tokens);
        let texts = [Write, Read, Read];
        let finish = [Write; 7];
        let described = [Write, Read, Read, Read, Read, Read, Read];
        let is_short = own_tiles + corpus_tiles <= MAX_LOOK_TILES;
        Ok(Looker {
            gpu: gpu.clone(),
            plan: plan.clone(),
            own_tiles,
            corpus_tiles,
            offers,
            steps: (MAX_TURNS / turns).clamp(1, n.max(1)),
            parts,
            look: is_short.then(|| program("look", &described)).transpose()?,
            prepare: program("prepare", &described)?,
            scan_own: program("scan_own", &texts)?,
            scan_corpus: program("scan_corpus", &texts)?,
            number: program("number", &[Write])?,
            list: program("list", &texts)?,
            grow: program("grow", &texts)?,
            finish: program("finish", &finish)?,
            link: program("link", &finish[..3])?,
        })
    }

    /// Words of the workspace that a request has.
    fn row_words(&self) -> u64 {
        let (n, max_windows) = (self.plan.drafts.cols as u64, self.plan.params.max_windows as u64);
        let notes = self.own_tiles + self.corpus_tiles;
        STATE + notes + 2 * max_windows + 2 * self.offers + NODE * n
    }

    fn params(&self, part: &Part, has: u32) -> Params {
        let plan = &self.plan;
        let stride = |matrix: Option<Matrix>| matrix.map_or(0, |m| m.row_stride as u32);
        Params {
            row0: part.requests.rows.start as u32,
            row1: part.requests.rows.end as u32,
            texts: plan.tokens.rows as u32,
            slot0: part.texts.rows.start as u32,
            slot1: part.texts.rows.end as u32,
            row_words: self.row_words() as u32,
            max_len: plan.tokens.cols as u32,
            tokens_stride: part.texts.stride(&plan.tokens),
            length_words: words_of(plan.lengths),
            corpus_size: plan.corpus.map_or(0, |corpus| corpus.len as u32),
            corpus_length_words: plan.corpus_length.map_or(1, words_of),
            own_tiles: self.own_tiles as u32,
            corpus_tiles: self.corpus_tiles as u32,
            min_match: plan.params.min_match as u32,
            max_match: plan.params.max_match as u32,
            max_windows: plan.params.max_windows as u32,
            width: plan.params.width.min(u32::MAX as usize) as u32,
            share_floor: plan.params.share_floor(),
            // More than 64 a token binds no more than 64 does, and is no integer that overflows.
            drafts_per_match: plan.params.drafts_per_match.min(64.0),
            offers: self.offers as u32,
            steps: self.steps as u32,
            n: plan.drafts.cols as u32,
            drafts_stride: plan.drafts.row_stride as u32,
            parents_stride: stride(plan.parents),
            shares_stride: stride(plan.shares),
            first_child_stride: stride(plan.first_child),
            next_sibling_stride: stride(plan.next_sibling),
            has,
        }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<SuffixLookup> for Looker {
    fn workspace_size(&self) -> usize {
        let rows = self.parts.iter().map(|part| part.requests.rows.len() as u64).max().unwrap_or(0);
        (rows * self.row_words() * 4) as usize
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        b: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Looker { gpu, plan, own_tiles, corpus_tiles, .. } = self;
        let given = [
            (b.corpus_length.is_some(), HAS_CORPUS_LENGTH),
            (b.parents.is_some(), HAS_PARENTS),
            (b.shares.is_some(), HAS_SHARES),
            (b.match_lengths.is_some(), HAS_MATCH_LENGTHS),
            (b.flags.is_some(), HAS_FLAGS),
            (b.first_child.is_some(), HAS_FIRST_CHILD),
            (b.next_sibling.is_some(), HAS_NEXT_SIBLING),
            (plan.requests.is_some(), HAS_REQUESTS),
            (plan.requests == Some(DType::I64), WIDE_REQUESTS),
            (plan.limited, HAS_MAX_DRAFTS),
            (plan.params.pad_with_last, PAD_WITH_LAST),
        ];
        let has = given.iter().filter(|(there, _)| *there).fold(0, |has, (_, bit)| has | bit);
        let work = gpu.region_of_workspace(workspace)?;
        let [tokens, lengths] = [gpu.region(&b.tokens)?, gpu.region(&b.lengths)?];
        let [requests, max_drafts] = [gpu.optional(&b.requests)?, gpu.optional(&b.max_drafts)?];
        let [corpus, corpus_length] = [gpu.optional(&b.corpus)?, gpu.optional(&b.corpus_length)?];
        let [drafts, counts] = [gpu.region_mut(b.drafts)?, gpu.region_mut(b.counts)?];
        let [parents, shares] = [gpu.optional_mut(b.parents)?, gpu.optional_mut(b.shares)?];
        let [match_lengths, flags] =
            [gpu.optional_mut(b.match_lengths)?, gpu.optional_mut(b.flags)?];
        let [first_child, next_sibling] =
            [gpu.optional_mut(b.first_child)?, gpu.optional_mut(b.next_sibling)?];
        gpu.record("suffix_lookup", stream, |r| {
            for part in &self.parts {
                let params = self.params(part, has);
                let rows = part.requests.rows.len() as u64;
                let text = part.texts.of(&plan.tokens, tokens);
                let texts = [work, text, corpus];
                let known = [work, text, corpus, lengths, corpus_length, requests, max_drafts];
                if let Some(look) = &self.look {
                    r.dispatch(look, &known, &params, rows)?;
                } else {
                    r.dispatch(&self.prepare, &known, &params, rows.div_ceil(ROW_THREADS))?;
                    r.dispatch(&self.scan_own, &texts, &params, rows * own_tiles)?;
                    let parts = rows.div_ceil(REQUESTS);
                    r.dispatch(&self.scan_corpus, &texts, &params, parts * corpus_tiles)?;
                    r.dispatch(&self.number, &[work], &params, rows)?;
                    r.dispatch(&self.list, &texts, &params, rows * (own_tiles + corpus_tiles))?;
                }
                for _ in (0..plan.drafts.cols as u64).step_by(self.steps as usize) {
                    r.dispatch(&self.grow, &texts, &params, rows)?;
                }
                let nodes = (rows * (plan.drafts.cols as u64 + 1)).div_ceil(ROW_THREADS);
                let results = [work, drafts, counts, parents, shares, match_lengths, flags];
                r.dispatch(&self.finish, &results, &params, nodes)?;
                if has & (HAS_FIRST_CHILD | HAS_NEXT_SIBLING) != 0 {
                    r.dispatch(&self.link, &[work, first_child, next_sibling], &params, nodes)?;
                }
            }
            Ok(())
        })
    }
}

launch_params! {
    /// What the shader of `suffix_lookup` takes.
    struct Params: Pod, Zeroable {
        /// The first request of the window of rows.
        row0: u32,
        /// The request after the last of the window of rows.
        row1: u32,
        /// Rows of `tokens`.
        texts: u32,
        /// The first row of the window of texts.
        slot0: u32,
        /// The row after the last of the window of texts.
        slot1: u32,
        /// Words of the workspace that a request has.
        row_words: u32,
        /// Tokens that a row of `tokens` holds.
        max_len: u32,
        /// Tokens from one text to the next.
        tokens_stride: u32,
        /// Words of a length.
        length_words: u32,
        /// Tokens that the corpus holds.
        corpus_size: u32,
        /// Words of the corpus's length.
        corpus_length_words: u32,
        /// Tiles of a row of `tokens`.
        own_tiles: u32,
        /// Tiles of the corpus.
        corpus_tiles: u32,
        /// The shortest match that gives drafts.
        min_match: u32,
        /// The longest match whose length is still distinguished from longer ones.
        max_match: u32,
        /// The most windows of a request.
        max_windows: u32,
        /// The most children of a node.
        width: u32,
        /// The least number of windows, in 65536ths of all windows, that a draft needs.
        share_floor: u32,
        /// Drafts on a path for each token of the match.
        drafts_per_match: f32,
        /// The most offers of a request.
        offers: u32,
        /// Nodes that a dispatch grows.
        steps: u32,
        /// Columns of `drafts`.
        n: u32,
        /// Elements from one row of `drafts` to the next.
        drafts_stride: u32,
        /// Elements from one row of `parents` to the next.
        parents_stride: u32,
        /// Elements from one row of `shares` to the next.
        shares_stride: u32,
        /// Elements from one row of `first_child` to the next.
        first_child_stride: u32,
        /// Elements from one row of `next_sibling` to the next.
        next_sibling_stride: u32,
        /// Which optional arguments are there: HAS_ bits.
        has: u32,
    }

    /// Threads of a workgroup that looks at windows.
    const THREADS: u64 = 256;
    /// Threads of a workgroup that has a thread for each request, or for each node.
    const ROW_THREADS: u64 = 64;
    /// Places of a tile.
    const TILE: u64 = 1024;
    /// Requests that a workgroup looks for in a tile of the corpus.
    const REQUESTS: u64 = 64;
    /// The largest number of windows of a request.
    const MAX_WINDOWS: usize = suffix_lookup::MAX_WINDOWS;
    /// The largest number of drafts of a request.
    const MAX_DRAFTS: usize = suffix_lookup::MAX_DRAFTS;
    /// Words of a request's state.
    const STATE: u64 = 16;
    /// Words of a node in the workspace: its token, its parent, and how many windows it has.
    const NODE: u64 = 4;
    /// Bits of `has`: the arguments that are there.
    const HAS_CORPUS_LENGTH: u32 = 1;
    const HAS_PARENTS: u32 = 1 << 1;
    const HAS_SHARES: u32 = 1 << 2;
    const HAS_MATCH_LENGTHS: u32 = 1 << 3;
    const HAS_FLAGS: u32 = 1 << 4;
    const HAS_FIRST_CHILD: u32 = 1 << 5;
    const HAS_NEXT_SIBLING: u32 = 1 << 6;
    const HAS_REQUESTS: u32 = 1 << 7;
    const HAS_MAX_DRAFTS: u32 = 1 << 8;
    /// The last token of a text stands behind its drafts.
    const PAD_WITH_LAST: u32 = 1 << 9;
    /// A number of `requests` has two words.
    const WIDE_REQUESTS: u32 = 1 << 10;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "suffix_lookup", includes: &["bound"], structs: &[Params::DESCRIPTION] };
