//! Sampling: dispatches over chunks of rows, alternating with dispatches over whole rows. See the
//! shaders for the passes. The passes of a call depend on the plan, not on the data: where a row
//! does not need a filter's pass, its workgroups return at once.

mod regions;

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::launch_params::float_code;
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{self, Buffers, Plan};
use spec_core::race::GROUP;
use spec_core::{DType, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use self::regions::Regions;
use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("sample_logits");
pub(super) static REPORT_SHADER: Shader = shader!("sample_logits_report", "sample_logits");

/// The smallest and the largest chunk: enough work for a workgroup, and at most 32 entries for a
/// thread of `collect`.
const MIN_CHUNK: usize = 1024;
const MAX_CHUNK: usize = 8192;
/// The number of workgroups that fill a large GPU: above this number, chunks grow instead.
const FULL: usize = 1024;
/// The largest number of entries in a row's list. Listed entries are cut without reading the row
/// again.
const CAPACITY: usize = 2048;
/// The largest number of rows whose intermediate results the workspace holds.
const MAX_ROWS: u64 = 2048;
/// Threads of a workgroup that handles a whole row, where the device allows this many.
const WIDE: u32 = 512;
/// The number of groups that a race lists at once.
const RACE_LIST: u32 = 512;
/// `RACE_LIST` for rows that draw several tokens: there, other data takes much of the workgroup memory.
const MANY_LIST: u32 = 256;
/// The number of selection steps in a row whose candidates fit no list, and the largest number of
/// loop iterations that a thread spends on these steps in one dispatch.
const STEPS: u32 = 15;
const TURNS: u32 = 40_000;

/// The shaders' entry points; `None` for those that the plan does not need.
struct Programs {
    clear: Option<Program>,
    gather: Program,
    scan: Program,
    open: Program,
    filters: Option<FilterPrograms>,
    race: Program,
    take: Option<Program>,
    sums: Option<[Program; 2]>,
    write_probs: Option<Program>,
    summarize: Option<Program>,
    conclude: Option<Program>,
    top: Option<Program>,
    columns: Option<ColumnPrograms>,
}

/// The passes of rows that are copied.
struct ColumnPrograms {
    copy: Program,
    race: Program,
    name: Program,
    write_largest: Program,
}

struct FilterPrograms {
    spread: Program,
    aim: Program,
    collect: Program,
    cut: Program,
}

struct Sampler {
    gpu: Wgpu,
    plan: Plan,
    chunk: usize,
    /// Threads of a workgroup that handles a whole row.
    wide: u32,
    programs: Programs,
    windows: Vec<Window>,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<SampleLogits> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        Ok(Box::new(Sampler::new(self, plan)?))
    }
}

impl Programs {
    fn new(gpu: &Wgpu, plan: &Plan, wide: u32) -> Result<Self> {
        let stored = ("DTYPE", float_code(plan.logits.dtype));
        let copied = is_copied(plan);
        // A copy is f32.
        let float = if copied { ("DTYPE", float_code(DType::F32)) } else { stored };
        let columns = ("COLUMNS", u32::from(copied));
        let read = [float, columns];
        let rows_wide = [float, columns, ("WIDE", wide)];
        let program = |entry, bindings: &[Access], constants: &[_]| {
            gpu.program(&SHADER, entry, bindings, constants)
        };
        let report = |wanted: bool, entry, bindings: &[Access], constants: &[_]| {
            let program = || gpu.program(&REPORT_SHADER, entry, bindings, constants);
            wanted.then(program).transpose()
        };
        let data = [Write, Write, Read, Read, Write, Write, Write];
        let filters = || -> Result<FilterPrograms> {
            Ok(FilterPrograms {
                spread: program("spread", &data[..4], &read)?,
                aim: program("aim", &data[..2], &[])?,
                collect: program("collect", &data[..4], &read)?,
                cut: program("cut", &data[..4], &rows_wide)?,
            })
        };
        let sums = || -> Result<[Program; 2]> {
            Ok([program("sum", &data[..4], &read)?, program("total", &data[..1], &[])?])
        };
        let by_column = || -> Result<ColumnPrograms> {
            let copy = [Write, Read, Read, Read, Write, Write, Read, Read];
            let name = [Write, Write, Read, Read, Write, Write, Write];
            Ok(ColumnPrograms {
                copy: program("columns", &copy, &[stored])?,
                race: program("race_columns", &data[..6], &rows_wide)?,
                name: program("name_columns", &name, &read)?,
                write_largest: program("write_largest", &data[..2], &[])?,
            })
        };
        let (race, list, threads) = match plan.draws() {
            1 => ("race", RACE_LIST, wide),
            _ => ("race_more", MANY_LIST, MANY_WIDE),
        };
        let sizes = [("WIDE", threads), ("RACE_LIST", list), ("RACE_TOKENS", 3 * threads)];
        let racing = [float, columns, sizes[0], sizes[1], sizes[2]];
        let gather = [Write, Read, Read, Read, Read, Read, Read, Read];
        let reported = [Write, Write, Read, Write, Write, Write, Write];
        let of_raw = plan.logprobs.is_some() || plan.top_logprobs.is_some();
        let summaries = of_raw || plan.ranks.is_some();
        let concludes = summaries || plan.processed_logprobs.is_some();
        let weighs = plan.probs.is_some() || plan.processed_logprobs.is_some();
        Ok(Programs {
            clear: plan.row_flags.then(|| program("clear", &data[..6], &[])).transpose()?,
            gather: program("gather", &gather, &[])?,
            scan: program("scan", &data[..6], &read)?,
            open: program("open", &data[..6], &rows_wide)?,
            filters: plan.filters.then(filters).transpose()?,
            race: program(race, &data[..6], &racing)?,
            take: (plan.draws() > 1)
                .then(|| program("take", &data[..6], &rows_wide))
                .transpose()?,
            sums: weighs.then(sums).transpose()?,
            write_probs: plan.probs.map(|_| program("write_probs", &data, &read)).transpose()?,
            summarize: report(summaries, "summarize", &reported[..3], &read)?,
            conclude: report(concludes, "conclude", &reported[..5], &read)?,
            top: report(plan.top() > 0, "top", &reported, &rows_wide)?,
            columns: copied.then(by_column).transpose()?,
        })
    }
}

/// Whether the passes read a copy of the rows.
fn is_copied(plan: &Plan) -> bool {
    plan.by_column() || plan.largest
}

impl Sampler {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let too_large = || {
            let words = format!(
                "sample_logits: a row, or what is kept of {} rows, needs more than a binding of {} \
                 bytes",
                plan.rows(),
                gpu.0.max_binding
            );
            gpu.error(Status::NotImplemented, words)
        };
        let even = plan.rows().saturating_mul(plan.vocab()).div_ceil(FULL);
        let chunk = even.next_multiple_of(THREADS).clamp(MIN_CHUNK, MAX_CHUNK);
        let matrices = [
            Some(plan.logits),
            plan.mask,
            Some(plan.tokens),
            plan.probs,
            plan.logprobs,
            plan.processed_logprobs,
            plan.ranks,
            plan.top_tokens,
            plan.top_logprobs,
            plan.token_ids,
            plan.kept_tokens,
        ];
        let matrices: Vec<_> = matrices.into_iter().flatten().collect();
        let windows = gpu.windows(&matrices, usize::MAX).ok_or_else(too_large)?;
        let max_threads = gpu.0.limits.max_compute_invocations_per_workgroup;
        let wide = WIDE.min(max_threads.min(gpu.0.limits.max_compute_workgroup_size_x))
            / THREADS as u32
            * THREADS as u32;
        let programs = Programs::new(gpu, plan, wide)?;
        let mut sampler =
            Sampler { gpu: gpu.clone(), plan: plan.clone(), chunk, wide, programs, windows };
        let max_rows = (gpu.window(4) / sampler.words_of_row().max(sampler.words_of_levels()))
            .min(MAX_ROWS) as usize;
        if max_rows == 0 {
            return Err(too_large());
        }
        let parts = |window: &Window| {
            let (rows, cols) = (window.rows.clone(), window.cols.clone());
            let end = rows.end;
            let part = move |row| Window { rows: row..end.min(row + max_rows), cols: cols.clone() };
            rows.step_by(max_rows).map(part)
        };
        sampler.windows = sampler.windows.iter().flat_map(parts).collect();
        let groups = max_rows.min(plan.rows()) as u64 * sampler.chunks() as u64;
        if groups > u64::from(u32::MAX) {
            return Err(too_large());
        }
        Ok(sampler)
    }

    fn chunks(&self) -> usize {
        self.plan.vocab().div_ceil(self.chunk)
    }

    /// The number of groups of a row, a multiple of 4; the last groups may be empty.
    fn groups(&self) -> usize {
        self.chunks() * self.chunk / GROUP
    }

    /// The number of entries of a list.
    fn capacity(&self) -> usize {
        if self.plan.filters { self.plan.vocab().min(CAPACITY) } else { 0 }
    }

    /// Whether the workspace also keeps the largest logit of each group regardless of the mask.
    fn keeps_raw(&self) -> bool {
        (self.plan.mask.is_some() || is_copied(&self.plan)) && self.plan.reports()
    }

    /// 32-bit words of each part of the workspace, per row.
    fn parts(&self) -> Parts {
        let (chunks, groups) = (self.chunks() as u64, self.groups() as u64);
        let draws = self.plan.draws() as u64;
        let reports = self.plan.reports();
        let copied = if is_copied(&self.plan) { self.plan.vocab() as u64 } else { 0 };
        Parts {
            state: STATE,
            partials: chunks * PARTIAL,
            maxima: groups,
            raw_maxima: if self.keeps_raw() { groups } else { 0 },
            bounds: groups,
            drawn: draws,
            summaries: if reports { chunks * (2 + draws) } else { 0 },
            lists: 2 * self.capacity() as u64,
            values: copied,
            column_tokens: copied,
            allowed: copied.div_ceil(32),
            times: if draws > 1 { copied } else { 0 },
        }
    }

    fn words_of_row(&self) -> u64 {
        self.parts().sum()
    }

    /// The number of rows of the largest window.
    fn rows(&self) -> u64 {
        self.windows.iter().map(|window| window.rows.len()).max().unwrap_or(0) as u64
    }

    /// 32-bit words of all parts but the levels, rounded up to a multiple of a binding's alignment.
    fn state_words(&self) -> u64 {
        (self.rows() * self.words_of_row()).next_multiple_of(64)
    }

    /// 32-bit words of a row's levels.
    fn words_of_levels(&self) -> u64 {
        if self.plan.filters { SPREAD } else { 0 }
    }

    /// The number of selection steps that one dispatch takes.
    fn steps(&self) -> u32 {
        (TURNS / (self.plan.vocab() as u32).div_ceil(self.wide).max(1)).clamp(1, STEPS)
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<SampleLogits> for Sampler {
    fn workspace_size(&self) -> usize {
        (self.state_words() + self.rows() * self.words_of_levels()) as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let regions = Regions::new(self, workspace, buffers)?;
        self.gpu.record("sample_logits", stream, |r| {
            self.windows.iter().try_for_each(|window| self.sample(r, window, &regions))
        })
    }
}

/// 32-bit words of each part of the workspace for one row, except for the levels.
struct Parts {
    state: u64,
    /// Partial results of chunks.
    partials: u64,
    /// The largest key of each group, first of the allowed entries, then of all entries.
    maxima: u64,
    raw_maxima: u64,
    /// Bounds of the groups' finishing times in the race.
    bounds: u64,
    /// Drawn tokens.
    drawn: u64,
    /// Sums and counts of chunks.
    summaries: u64,
    lists: u64,
    /// A copy of the row, the token of each column, and a bit for each column that is allowed.
    values: u64,
    column_tokens: u64,
    allowed: u64,
    /// The time of each column.
    times: u64,
}

impl Parts {
    /// The 32-bit words of all parts together.
    fn sum(&self) -> u64 {
        let Parts { state, partials, maxima, raw_maxima, bounds, drawn, summaries, lists, .. } =
            *self;
        let Parts { values, column_tokens, allowed, times, .. } = *self;
        let copy = values + column_tokens + allowed + times;
        state + partials + maxima + raw_maxima + bounds + drawn + summaries + lists + copy
    }
}

impl Sampler {
    /// Records all dispatches for the rows of a window.
    fn sample(&self, r: &mut Recorder<'_>, window: &Window, regions: &Regions<'_>) -> Result<()> {
        let Regions { state, levels, positions, temperature, seeds, top_k, .. } = *regions;
        let Regions { top_p, min_p, requests, flags, has, .. } = *regions;
        let of = |matrix: Option<&Matrix>, region| match matrix {
            Some(matrix) => window.of(matrix, region),
            None => Region::nothing(),
        };
        let plan = &self.plan;
        let logits = of(Some(&plan.logits), regions.logits);
        let mask = of(plan.mask.as_ref(), regions.mask);
        let tokens = of(Some(&plan.tokens), regions.tokens);
        let probs = of(plan.probs.as_ref(), regions.probs);
        let bound = [state, levels, logits, mask, flags, tokens, probs];
        let reported = [
            state,
            of(plan.ranks.as_ref(), regions.ranks),
            logits,
            of(plan.logprobs.as_ref(), regions.logprobs),
            of(plan.processed_logprobs.as_ref(), regions.processed),
            of(plan.top_tokens.as_ref(), regions.top_tokens),
            of(plan.top_logprobs.as_ref(), regions.top_logprobs),
        ];
        let rows = window.rows.len() as u64;
        let chunks = rows * self.chunks() as u64;
        let params = self.parameters(window, has);
        let p = &self.programs;
        let inputs = [state, requests, temperature, seeds, top_k, top_p, min_p, positions];
        r.dispatch(&p.gather, &inputs, &params, rows.div_ceil(64))?;
        let surveyed = [state, levels, logits, mask, flags, regions.row_flags];
        let mut run = |program: &Program, of: &[Region<'_>], params: &Params, groups| {
            r.dispatch(program, &of[..program.bindings().len()], params, groups)
        };
        if let Some(clear) = &p.clear {
            run(clear, &surveyed, &params, rows.div_ceil(64))?;
        }
        if let Some(columns) = &p.columns {
            let ids = of(plan.token_ids.as_ref(), regions.token_ids);
            let Regions { row_flags, maxima, forced, .. } = *regions;
            let copy = [state, ids, logits, mask, flags, row_flags, maxima, forced];
            run(&columns.copy, &copy, &params, chunks)?;
        }
        run(&p.scan, &surveyed, &params, chunks)?;
        run(&p.open, &surveyed, &params, rows)?;
        if let (Some(columns), true) = (&p.columns, plan.largest) {
            let largest = [state, regions.largest];
            return run(&columns.write_largest, &largest, &params, rows.div_ceil(64));
        }
        if let Some(filters) = &p.filters {
            run(&filters.spread, &bound, &params, chunks)?;
            run(&filters.aim, &bound, &params, rows)?;
            run(&filters.collect, &bound, &params, chunks)?;
            for first_step in (0..STEPS).step_by(self.steps() as usize) {
                let end_step = STEPS.min(first_step + self.steps());
                run(&filters.cut, &bound, &Params { first_step, end_step, ..params }, rows)?;
            }
        }
        run(&p.race, &bound, &params, rows)?;
        if let Some(take) = &p.take {
            run(take, &bound, &params, rows)?;
        }
        if let Some(columns) = &p.columns {
            run(&columns.race, &surveyed, &params, rows)?;
        }
        if let Some([sum, total]) = &p.sums {
            run(sum, &bound, &params, chunks)?;
            run(total, &bound, &params, rows)?;
        }
        if let Some(write_probs) = &p.write_probs {
            run(write_probs, &bound, &params, chunks)?;
        }
        if let Some(summarize) = &p.summarize {
            run(summarize, &reported, &params, chunks)?;
        }
        if let Some(conclude) = &p.conclude {
            run(conclude, &reported, &params, rows)?;
        }
        if let Some(top) = &p.top {
            run(top, &reported, &params, rows)?;
        }
        if let Some(columns) = &p.columns {
            let kept_tokens = of(plan.kept_tokens.as_ref(), regions.kept_tokens);
            let Regions { winners, kept_counts, .. } = *regions;
            let named = [state, winners, logits, mask, kept_counts, tokens, kept_tokens];
            run(&columns.name, &named, &params, rows)?;
        }
        Ok(())
    }

    fn parameters(&self, window: &Window, has: u32) -> Params {
        let stride = |matrix: Option<&Matrix>| matrix.map_or(0, |matrix| window.stride(matrix));
        let words = |dtype: DType| (dtype.size() / 4) as u32;
        let plan = &self.plan;
        // Each part of the workspace has room for all rows of the largest window.
        let parts = self.parts();
        let rows = self.rows();
        let mut end = 0;
        let mut part = |words: u64| {
            let start = end;
            end += words * rows;
            start as u32
        };
        part(parts.state);
        let partials = part(parts.partials);
        let maxima = part(parts.maxima);
        let separate = part(parts.raw_maxima);
        Params {
            vocab: plan.vocab() as u32,
            // A row cannot name a request above this limit.
            requests: u32::try_from(plan.requests).unwrap_or(u32::MAX).min(i32::MAX as u32),
            chunk: self.chunk as u32,
            chunks: self.chunks() as u32,
            position_words: words(plan.positions.dtype),
            request_words: plan.of_rows.map_or(1, |of_rows| words(of_rows.dtype)),
            token_words: words(plan.tokens.dtype),
            min_p_first: u32::from(plan.params.min_p_first),
            has,
            draws: plan.draws() as u32,
            top: plan.top() as u32,
            first_step: 0,
            end_step: 0,
            partials,
            maxima,
            raw_maxima: if self.keeps_raw() { separate } else { maxima },
            bounds: part(parts.bounds),
            drawn: part(parts.drawn),
            summaries: part(parts.summaries),
            lists: part(parts.lists),
            groups: self.groups() as u32,
            capacity: self.capacity() as u32,
            row0: window.rows.start as u32,
            row1: window.rows.end as u32,
            logits_stride: stride(Some(&plan.logits)),
            mask_stride: stride(plan.mask.as_ref()),
            tokens_stride: stride(Some(&plan.tokens)),
            probs_stride: stride(plan.probs.as_ref()),
            logprobs_stride: stride(plan.logprobs.as_ref()),
            processed_stride: stride(plan.processed_logprobs.as_ref()),
            ranks_stride: stride(plan.ranks.as_ref()),
            top_tokens_stride: stride(plan.top_tokens.as_ref()),
            top_logprobs_stride: stride(plan.top_logprobs.as_ref()),
            values: part(parts.values),
            column_tokens: part(parts.column_tokens),
            allowed: part(parts.allowed),
            times: part(parts.times),
            first_token: plan.params.first_token.cast_unsigned(),
            ids_stride: stride(plan.token_ids.as_ref()),
            ids_words: plan.token_ids.map_or(1, |ids| words(ids.dtype)),
            mask_words: plan.mask.map_or(0, |mask| mask.cols as u32),
            kept: plan.kept_tokens.map_or(0, |kept| kept.cols as u32),
            kept_stride: stride(plan.kept_tokens.as_ref()),
        }
    }
}

launch_params! {
    /// What the shaders of `sample_logits` take.
    struct Params: Pod, Zeroable {
        /// Tokens of the vocabulary.
        vocab: u32,
        /// Requests.
        requests: u32,
        /// Logits of a chunk, a multiple of 256.
        chunk: u32,
        /// Chunks of a row.
        chunks: u32,
        /// Words of a position.
        position_words: u32,
        /// Words of a row's request.
        request_words: u32,
        /// Words of a token.
        token_words: u32,
        /// 1 where min-p filters before top-k and top-p, else 0.
        min_p_first: u32,
        /// Which optional arguments are there: HAS_ bits.
        has: u32,
        /// Tokens that each row draws.
        draws: u32,
        /// Likeliest tokens that each row reports.
        top: u32,
        /// The first step of selecting in rows that a dispatch takes.
        first_step: u32,
        /// The step after the last.
        end_step: u32,
        /// Where the partial results start in the workspace, in words, behind the states.
        partials: u32,
        /// Where the largest keys of groups that are allowed start in the workspace, in words.
        maxima: u32,
        /// The same of all keys, which is the same place where all are allowed or nothing is
        /// reported.
        raw_maxima: u32,
        /// Where the bounds of groups start in the workspace, in words.
        bounds: u32,
        /// Where the rows' tokens start in the workspace, in words.
        drawn: u32,
        /// Where the summaries of chunks start in the workspace, in words.
        summaries: u32,
        /// Where the lists start in the workspace, in words.
        lists: u32,
        /// Groups of a row, a multiple of 4.
        groups: u32,
        /// Entries of a list.
        capacity: u32,
        /// The first row of the window.
        row0: u32,
        /// The row after the last of the window.
        row1: u32,
        /// Logits from one row to the next in the window.
        logits_stride: u32,
        /// Words from one row of the mask to the next in the window.
        mask_stride: u32,
        /// Tokens from one row to the next in the window.
        tokens_stride: u32,
        /// Probabilities from one row to the next in the window.
        probs_stride: u32,
        /// The same of `logprobs`.
        logprobs_stride: u32,
        /// The same of `processed_logprobs`.
        processed_stride: u32,
        /// The same of `ranks`.
        ranks_stride: u32,
        /// The same of `top_tokens`.
        top_tokens_stride: u32,
        /// The same of `top_logprobs`.
        top_logprobs_stride: u32,
        /// Where the copies of rows start in the workspace, in words.
        values: u32,
        /// Where the tokens of columns start in the workspace, in words.
        column_tokens: u32,
        /// Where the bits of columns that are allowed start in the workspace, in words.
        allowed: u32,
        /// Where the times of columns start in the workspace, in words.
        times: u32,
        /// The token of column 0, where no ids are given.
        first_token: u32,
        /// Ids from one row to the next in the window; 0 for the ids of all rows.
        ids_stride: u32,
        /// Words of an id.
        ids_words: u32,
        /// Words of a row of the mask.
        mask_words: u32,
        /// Kept tokens that each row lists.
        kept: u32,
        /// Kept tokens from one row to the next in the window.
        kept_stride: u32,
    }

    /// Threads that go over a chunk. A chunk is a multiple of this number.
    const THREADS: usize = 256;
    /// 32-bit words of the workspace for what the passes over a row hand on: its options, bounds and sums.
    const STATE: u64 = 64;
    /// 32-bit words of the workspace for a row's levels: how many logits each level has, and the sum of
    /// their weights.
    const SPREAD: u64 = 3328;
    /// 32-bit words of the result of a chunk: a sum, or the number of entries that equal the bound.
    const PARTIAL: u64 = 2;
    /// The largest number of tokens that a row draws.
    const MAX_DRAWS: usize = sample_logits::MAX_DRAWS;
    /// The largest number of likeliest tokens that a row reports.
    const MAX_TOP: usize = sample_logits::MAX_TOP;
    /// `WIDE` for rows that draw several tokens: there, other data takes much of the workgroup memory.
    const MANY_WIDE: u32 = 256;
    /// Values of `winners` that are no time: the row takes its forced token; a row without randomness
    /// has its token; no token may win.
    const PLACE_FORCED: u32 = sample_logits::PLACE_FORCED;
    const PLACE_CERTAIN: u32 = sample_logits::PLACE_CERTAIN;
    const PLACE_NOTHING: u32 = sample_logits::PLACE_NOTHING;
    /// Bits of `has`: the arguments that are there.
    const HAS_REQUESTS: u32 = 1;
    const HAS_TOP_K: u32 = 1 << 1;
    const HAS_TOP_P: u32 = 1 << 2;
    const HAS_MIN_P: u32 = 1 << 3;
    const HAS_MASK: u32 = 1 << 4;
    const HAS_PROCESSED: u32 = 1 << 5;
    const HAS_LOGPROBS: u32 = 1 << 6;
    const HAS_RANKS: u32 = 1 << 7;
    const HAS_TOP_TOKENS: u32 = 1 << 8;
    const HAS_TOP_LOGPROBS: u32 = 1 << 9;
    const HAS_ROW_FLAGS: u32 = 1 << 10;
    const HAS_IDS: u32 = 1 << 11;
    const HAS_MAXIMA: u32 = 1 << 12;
    const HAS_FORCED: u32 = 1 << 13;
    const HAS_WINNERS: u32 = 1 << 14;
    const HAS_KEPT: u32 = 1 << 15;
    const HAS_COUNTS: u32 = 1 << 16;
    /// The mask of tokens; `HAS_MASK` then says that there are bits for columns.
    const HAS_TOKEN_MASK: u32 = 1 << 17;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "sample_logits", includes: &["bound"], structs: &[Params::DESCRIPTION] };
