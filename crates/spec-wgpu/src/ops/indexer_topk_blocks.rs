//! The dispatches of `indexer_topk` before those that choose, where not each score of a row stands
//! for a position: they write a row of f32 for each row to the workspace, from which the others
//! choose, or only note which scores of the row are to be chosen from.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::indexer_topk::Plan;
use spec_core::{DType, Matrix, Result, Vector};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};
use spec_core::launch_params::float_code;

pub(super) static SHADER: Shader = shader!("indexer_topk_blocks");

/// 32-bit words to which parts of a workspace are rounded up, so that bindings do not overlap.
const ALIGNMENT: u64 = 64;
/// The largest number of candidates of a row, which one workgroup counts.
const MAX_CANDIDATES: usize = 1 << 23;

launch_params! {
    /// What the shaders take that run before those that choose.
    struct Blocks: Pod, Zeroable {
        /// Rows.
        rows: u32,
        /// Scores of a row.
        cols: u32,
        /// Scores from one row to the next.
        stride: u32,
        /// Words of a length; 0: there are none.
        length_words: u32,
        /// Words of a start; 0: there are none.
        start_words: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
        /// Scores of a block.
        pool: u32,
        /// How many of the first blocks are always chosen.
        forced_first: u32,
        /// How many of the last blocks are always chosen.
        forced_last: u32,
        /// The scores of a row in the workspace.
        width: u32,
        /// Rows, rounded up to the alignment of a binding.
        noted: u32,
        /// Candidates of a row.
        c: u32,
        /// Candidates from one row to the next.
        candidate_stride: u32,
        /// Positions of a candidate, at least 1.
        block: u32,
    }

    /// Threads of a workgroup.
    const THREADS: u64 = 256;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "indexer_topk_blocks", includes: &["bound"], structs: &[Blocks::DESCRIPTION] };

/// The arguments of a window of rows: scores, lengths, starts, candidates and flags.
pub(super) struct Arguments<'a> {
    pub(super) scores: Region<'a>,
    pub(super) lengths: Region<'a>,
    pub(super) starts: Region<'a>,
    pub(super) candidates: Region<'a>,
    pub(super) flags: Region<'a>,
}

/// What the dispatches write to the workspace.
#[derive(Clone, Copy)]
pub(super) struct Scratch<'a> {
    /// See the shader.
    pub(super) notes: Region<'a>,
    /// The scores of blocks or of covered columns.
    pub(super) pooled: Region<'a>,
    befores: Region<'a>,
}

/// The dispatches before those that choose.
pub(super) struct Prologue {
    /// The dispatches, each with the number of threads for each row. `offsets` has a workgroup for
    /// each row.
    passes: Vec<(Program, u64)>,
    params: Blocks,
    /// Whether the scores to choose from are in the workspace.
    pub(super) is_copied: bool,
}

impl Prologue {
    /// `None` where each score of a row stands for a position that is chosen by its score.
    pub(super) fn new(gpu: &Wgpu, plan: &Plan) -> Result<Option<Self>> {
        let blocks = plan.blocks;
        if plan.candidates.is_none() && blocks.pool == 1 && blocks.forced() == 0 {
            return Ok(None);
        }
        let program = |entry| {
            let bindings = [Read, Read, Read, Read, Write, Write, Write, Write];
            let constants = [("DTYPE", float_code(plan.scores.dtype))];
            gpu.program(&SHADER, entry, &bindings, &constants)
        };
        let (items, cols) = (plan.items() as u64, plan.scores.cols as u64);
        let passes = match plan.candidates {
            Some(_) => vec![(program("offsets")?, THREADS), (program("compact")?, cols)],
            // Where no score decides, scores are still looked at for NaN.
            None if blocks.pool > 1 || plan.room() == 0 => {
                vec![(program("pool")?, items.max(1))]
            }
            None => vec![(program("ranges")?, 1)],
        };
        let is_copied = passes[0].0.name() != "ranges";
        let candidates = plan.candidates.map(|candidates| candidates.matrix);
        let params = Blocks {
            rows: 0,
            cols: cols as u32,
            stride: plan.scores.row_stride as u32,
            length_words: words(&plan.lengths),
            start_words: words(&plan.starts),
            has_flags: 0,
            pool: blocks.pool as u32,
            forced_first: blocks.forced_first as u32,
            forced_last: blocks.forced_last as u32,
            width: if is_copied { items as u32 } else { 0 },
            noted: 0,
            c: candidates.map_or(0, |matrix| matrix.cols as u32),
            candidate_stride: candidates.map_or(0, |matrix| matrix.row_stride as u32),
            block: plan.candidates.map_or(1, |candidates| candidates.block as u32),
        };
        Ok(Some(Prologue { passes, params, is_copied }))
    }

    /// The plan of the dispatches that choose.
    pub(super) fn chosen_from(&self, plan: &Plan) -> Plan {
        let mut chosen = plan.clone();
        let noted = Vector { dtype: DType::I32, len: plan.scores.rows };
        (chosen.lengths, chosen.starts) = (Some(noted), Some(noted));
        chosen.k = plan.room();
        if self.is_copied {
            let (rows, cols) = (plan.scores.rows, plan.items());
            chosen.scores = Matrix { dtype: DType::F32, rows, cols, row_stride: cols };
            chosen.blocks.pool = 1;
        }
        chosen
    }

    /// The largest number of rows whose scratch and candidates fit a binding each; 0 for none.
    pub(super) fn window(&self, gpu: &Wgpu, plan: &Plan) -> u64 {
        let words = gpu.window(4).saturating_sub(3 * ALIGNMENT);
        let of_notes = words / (3 + self.positions());
        let of_scores = words / u64::from(self.params.width.max(1));
        match plan.candidates {
            Some(candidates) if candidates.matrix.cols > MAX_CANDIDATES => 0,
            Some(candidates) => {
                of_notes.min(of_scores).min(gpu.window_of_rows(&candidates.matrix, 1))
            }
            None => of_notes.min(of_scores),
        }
    }

    /// The positions that are noted for each row.
    fn positions(&self) -> u64 {
        if self.has_positions() { u64::from(self.params.width) } else { 0 }
    }

    /// Whether the row that is chosen from has a position for each score.
    pub(super) fn has_positions(&self) -> bool {
        self.passes.len() > 1
    }

    /// The 32-bit words of the notes, of the scores and of the numbers before candidates, for so
    /// many rows.
    fn parts(&self, rows: u64) -> [u64; 3] {
        let notes = 3 * noted(rows) + rows * self.positions();
        let parts = [notes, rows * u64::from(self.params.width), rows * u64::from(self.params.c)];
        parts.map(|words| words.next_multiple_of(ALIGNMENT))
    }

    pub(super) fn workspace_words(&self, rows: u64) -> u64 {
        self.parts(rows).iter().sum()
    }

    /// Divides the workspace of `workspace_words(rows)`.
    pub(super) fn scratch<'a>(&self, mut workspace: Region<'a>, rows: u64) -> Scratch<'a> {
        let [notes, pooled, befores] = self.parts(rows).map(|words| workspace.take(words));
        Scratch { notes, pooled, befores }
    }

    /// Records the dispatches for a window of `rows` rows.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        arguments: &Arguments<'_>,
        scratch: Scratch<'_>,
        rows: u64,
    ) -> Result<()> {
        let Arguments { scores, lengths, starts, candidates, flags } = *arguments;
        let Scratch { notes, pooled, befores } = scratch;
        let params = Blocks {
            rows: rows as u32,
            has_flags: u32::from(flags.bytes > 0),
            noted: noted(rows) as u32,
            ..self.params
        };
        for (program, threads) in &self.passes {
            let regions = [scores, lengths, starts, candidates, notes, pooled, befores, flags];
            r.dispatch(program, &regions, &params, (rows * threads).div_ceil(THREADS))?;
        }
        Ok(())
    }
}

/// 32-bit words of an element; 0 if the argument is absent.
pub(super) fn words(vector: &Option<Vector>) -> u32 {
    vector.map_or(0, |vector| (vector.dtype.size() / 4) as u32)
}

/// Rows, rounded up so that the parts of the notes are bound without overlapping.
pub(super) fn noted(rows: u64) -> u64 {
    rows.next_multiple_of(ALIGNMENT)
}

impl<'a> Scratch<'a> {
    /// The starts and the lengths of the rows that are chosen from.
    pub(super) fn ranges(&self, rows: u64) -> (Region<'a>, Region<'a>) {
        (self.notes.elements(0, rows), self.notes.elements(noted(rows), rows))
    }
}
