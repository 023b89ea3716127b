//! Bias, penalties and forbidden tokens: the tokens that a row touches are gathered in a table in
//! the workspace by several dispatches, and a last one adjusts their logits. See the shader.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::launch_params::float_code;
use spec_core::ops::AdjustLogits;
use spec_core::ops::adjust_logits::{self, Buffers, MAX_THINK_TOKENS, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Access, Program, Shader, shader};
use crate::windows::Window;

pub(super) static SHADER: Shader = shader!("adjust_logits");

/// Words of a slot, without and with DRY.
const SLOT: u64 = 3;
const DRY_SLOT: u64 = 4;
/// Words of a workspace beyond which rows are adjusted in several windows.
const MAX_WORDS: u64 = 1 << 25;
/// Tokens of a text, or biases, that a thread compares in turn, four a turn, and rows that a
/// thread climbs, one a turn: see the rules in [`super`].
const MAX_TURNS: usize = 60_000;
/// Tokens that a thread of a thinking budget compares, each in a turn, after it has climbed.
const THINK_TURNS: usize = 4 * MAX_THINK_TOKENS;

struct Adjuster {
    gpu: Wgpu,
    plan: Plan,
    /// Slots of a table, a power of two, and words of a slot.
    slots: u64,
    slot: u64,
    windows: Vec<Window>,
    clear: Program,
    open: Program,
    weigh: Program,
    count: Option<Program>,
    favour: Option<Program>,
    stop: Option<Program>,
    ban: Option<Program>,
    dry: Option<Dry>,
    think: Option<Think>,
    finish: Program,
}

/// The passes of DRY.
struct Dry {
    weigh: Program,
    limit: Option<Program>,
    matches: Program,
}

/// The passes of a thinking budget.
struct Think {
    start: Option<Program>,
    taken: Program,
    over: Program,
    write: Program,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<AdjustLogits> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AdjustLogits>>> {
        Ok(Box::new(Adjuster::new(self, plan)?))
    }
}

fn too_large(gpu: &Wgpu, plan: &Plan) -> Error {
    let words = format!(
        "adjust_logits: {} rows of {} logits with texts of up to {} tokens and {} biases are more \
         than bindings hold or a thread takes turns",
        plan.rows(),
        plan.columns(),
        plan.max_text(),
        plan.biases.unwrap_or(0),
    );
    gpu.error(Status::NotImplemented, words)
}

/// Whether each argument that a dispatch reads whole, whatever its window of rows, fits a binding.
fn fit_bindings(gpu: &Wgpu, plan: &Plan) -> bool {
    let matrix = |matrix: &Matrix| matrix.rows as u64 <= gpu.window_of_rows(matrix, 1);
    let list = |len: usize, dtype: DType| len as u64 <= gpu.window(dtype.size() as u64);
    let ints = |len: usize| list(len, DType::I32);
    let drafts = plan.draft_tokens.map_or(DType::I32, |drafts| drafts.dtype);
    // Offsets have an element more than there are requests.
    let of_requests = plan.requests() + 1;
    matrix(&plan.tokens)
        && plan.stop_tokens.as_ref().is_none_or(matrix)
        && list(plan.rows(), drafts)
        && list(of_requests, plan.lengths)
        && list(of_requests, plan.prompt_lengths)
        && plan.biases.is_none_or(ints)
        && plan.words.is_none_or(|words| ints(words.count + 1) && ints(words.tokens))
}

impl Adjuster {
    fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let too_large = || too_large(gpu, plan);
        let compared = plan.max_text().max(plan.biases.unwrap_or(0));
        let climbed = plan.draft_tokens.map_or(0, |drafts| drafts.len);
        // One slot at least stays empty.
        let slots = (plan.touched() as u64 * 2 + 1).next_power_of_two();
        let slot = if plan.dry.is_some() { DRY_SLOT } else { SLOT };
        let words = STATE + slots * slot;
        let max_rows = gpu.window(4).min(MAX_WORDS.max(words)) / words;
        // A thread of DRY also compares a sequence, and a token with the breakers, four a turn.
        let breakers = plan.dry.map_or(0, |dry| MAX_MATCH + dry.breakers / 4);
        let listed = plan.think.map_or(0, |_| THINK_TURNS);
        let is_in_turns = compared <= 4 * MAX_TURNS && climbed + breakers.max(listed) <= MAX_TURNS;
        if !is_in_turns || max_rows == 0 || !fit_bindings(gpu, plan) {
            return Err(too_large());
        }
        let windows = gpu.windows(&[plan.logits], usize::MAX).ok_or_else(too_large)?;
        let max_rows = usize::try_from(max_rows).unwrap_or(usize::MAX);
        let windows = windows.iter().flat_map(|window| window.parts(max_rows)).collect();
        let slot_words = [("SLOT", slot as u32)];
        let slot_words: &[_] = if slot == SLOT { &[] } else { &slot_words };
        let program =
            |entry, bindings: &[Access]| gpu.program(&SHADER, entry, bindings, slot_words);
        let optional = |wanted: bool, entry, bindings: &[Access]| {
            wanted.then(|| program(entry, bindings)).transpose()
        };
        let float = ("DTYPE", float_code(plan.logits.dtype));
        let finish = [Write, Write, Read, Read, Read, Write];
        let reads = plan.penalises() || plan.no_repeat_ngram;
        let reading = [Write, Read, Read, Read, Read, Read, Read];
        let dry = |dry: adjust_logits::Dry| -> Result<Dry> {
            Ok(Dry {
                weigh: program("dry_weigh", &reading[..5])?,
                limit: optional(dry.breakers > 0, "dry_limit", &reading[..5])?,
                matches: program("dry_match", &reading[..5])?,
            })
        };
        let think = |think: adjust_logits::Think| -> Result<Think> {
            let writing = [Write, Read, Read, Read, Read, Read, Write];
            Ok(Think {
                start: optional(think.start > 0, "think_start", &reading)?,
                taken: program("think_taken", &reading)?,
                over: program("think_over", &reading)?,
                write: program("think_write", &writing)?,
            })
        };
        Ok(Adjuster {
            gpu: gpu.clone(),
            plan: plan.clone(),
            slots,
            slot,
            windows,
            clear: program("clear", &[Write])?,
            open: program("open", &reading[..5])?,
            weigh: program("weigh", &reading[..6])?,
            count: optional(reads, "count", &reading[..4])?,
            favour: optional(plan.biases.is_some(), "favour", &reading[..4])?,
            stop: optional(plan.stop_tokens.is_some(), "stop", &reading[..2])?,
            ban: optional(plan.words.is_some(), "ban", &reading)?,
            dry: plan.dry.map(dry).transpose()?,
            think: plan.think.map(think).transpose()?,
            finish: gpu.program(&SHADER, "finish", &finish, &[&[float], slot_words].concat())?,
        })
    }

    /// Rows of the largest window.
    fn rows(&self) -> u64 {
        self.windows.iter().map(|window| window.rows.len() as u64).max().unwrap_or(0)
    }

    /// Workgroups of a row's text.
    fn chunks(&self) -> u64 {
        (self.plan.max_text() as u64).div_ceil(THREADS).max(1)
    }

    fn has(&self, flags: bool) -> u32 {
        let plan = &self.plan;
        let given = [
            (plan.mapped, HAS_REQUESTS),
            (plan.draft_tokens.is_some(), HAS_DRAFTS),
            (plan.repetition, HAS_REPETITION),
            (plan.frequency, HAS_FREQUENCY),
            (plan.presence, HAS_PRESENCE),
            (plan.stop_tokens.is_some(), HAS_STOPS),
            (plan.no_repeat_ngram, HAS_NGRAM),
            (flags, HAS_FLAGS),
            (plan.dry.is_some_and(|dry| dry.range), HAS_RANGE),
            (plan.think.is_some(), HAS_THINK),
        ];
        given.iter().filter(|(there, _)| *there).fold(0, |has, (_, bit)| has | bit)
    }

    fn params(&self, window: &Window, flags: bool) -> Params {
        let plan = &self.plan;
        let words = |dtype: DType| (dtype.size() / 4) as u32;
        let tables = self.rows() * STATE;
        Params {
            rows: plan.rows() as u32,
            row0: window.rows.start as u32,
            row1: window.rows.end as u32,
            vocab: plan.vocab() as u32,
            first_token: plan.first_token() as u32,
            columns: plan.columns().min(plan.vocab().saturating_sub(plan.first_token())) as u32,
            requests: plan.requests() as u32,
            max_length: plan.tokens.cols as u32,
            has: self.has(flags),
            chunks: self.chunks() as u32,
            slots: self.slots as u32,
            tables: tables as u32,
            table_words: (window.rows.len() as u64 * self.slots * self.slot) as u32,
            logits_stride: window.stride(&plan.logits),
            tokens_stride: plan.tokens.row_stride as u32,
            token_words: words(plan.tokens.dtype),
            length_words: words(plan.lengths),
            prompt_words: words(plan.prompt_lengths),
            draft_words: plan.draft_tokens.map_or(1, |drafts| words(drafts.dtype)),
            biases: plan.biases.unwrap_or(0) as u32,
            stops: plan.stop_tokens.map_or(0, |stops| stops.cols as u32),
            stops_stride: plan.stop_tokens.map_or(0, |stops| stops.row_stride as u32),
            words: plan.words.map_or(0, |words| words.count as u32),
            word_tokens: plan.words.map_or(0, |words| words.tokens as u32),
            words_in_prompt: u32::from(plan.params.bad_words_in_prompt),
            breakers: plan.dry.map_or(0, |dry| dry.breakers as u32),
            start_tokens: plan.think.map_or(0, |think| think.start as u32),
            end_tokens: plan.think.map_or(0, |think| think.end as u32),
            forced_tokens: plan.think.map_or(0, |think| think.forced as u32),
        }
    }
}

// SAFETY: as above.
unsafe impl Kernel<AdjustLogits> for Adjuster {
    fn workspace_size(&self) -> usize {
        (self.rows() * (STATE + self.slots * self.slot) * 4) as usize
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        b: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let work = gpu.region_of_workspace(workspace)?;
        let logits = gpu.region_mut(b.logits)?;
        let tokens = gpu.region(&b.tokens)?;
        let prompts = gpu.region(&b.prompt_lengths)?;
        let lengths = gpu.region(&b.lengths)?;
        let [requests, drafts, parents] =
            [gpu.optional(&b.requests)?, gpu.optional(&b.draft_tokens)?, gpu.optional(&b.parents)?];
        let [offsets, biased, values] = [
            gpu.optional(&b.bias_offsets)?,
            gpu.optional(&b.bias_tokens)?,
            gpu.optional(&b.bias_values)?,
        ];
        let [repetition, frequency, presence] =
            [gpu.optional(&b.repetition)?, gpu.optional(&b.frequency)?, gpu.optional(&b.presence)?];
        let [min_tokens, stops, ngram] = [
            gpu.optional(&b.min_tokens)?,
            gpu.optional(&b.stop_tokens)?,
            gpu.optional(&b.no_repeat_ngram)?,
        ];
        let [bad, word_offsets, words] = [
            gpu.optional(&b.bad_offsets)?,
            gpu.optional(&b.word_offsets)?,
            gpu.optional(&b.word_tokens)?,
        ];
        let [multiplier, base, allowed] = [
            gpu.optional(&b.dry_multiplier)?,
            gpu.optional(&b.dry_base)?,
            gpu.optional(&b.dry_allowed_length)?,
        ];
        let [range, breakers] = [gpu.optional(&b.dry_range)?, gpu.optional(&b.dry_breakers)?];
        let [budget, starts, ends, closing] = [
            gpu.optional(&b.think_budget)?,
            gpu.optional(&b.think_start)?,
            gpu.optional(&b.think_end)?,
            gpu.optional(&b.think_forced)?,
        ];
        let forced = gpu.optional_mut(b.forced)?;
        let has_flags = b.flags.is_some();
        let flags = gpu.optional_mut(b.flags)?;
        gpu.record("adjust_logits", stream, |r| {
            for window in &self.windows {
                let params = self.params(window, has_flags);
                let rows = window.rows.len() as u64;
                let blocks = rows.div_ceil(ROW_THREADS);
                let cleared = u64::from(params.table_words).div_ceil(THREADS * CLEARED);
                r.dispatch(&self.clear, &[work], &params, cleared)?;
                let of_row = [work, requests, lengths, parents, prompts];
                r.dispatch(&self.open, &of_row, &params, blocks)?;
                let penalties = [work, repetition, frequency, presence, ngram, min_tokens];
                r.dispatch(&self.weigh, &penalties, &params, blocks)?;
                if let Some(count) = &self.count {
                    let text = [work, tokens, drafts, parents];
                    r.dispatch(count, &text, &params, rows * self.chunks())?;
                }
                if let Some(favour) = &self.favour {
                    let biases = [work, Region::nothing(), offsets, biased];
                    r.dispatch(favour, &biases, &params, rows)?;
                }
                if let Some(stop) = &self.stop {
                    r.dispatch(stop, &[work, stops], &params, rows)?;
                }
                if let Some(ban) = &self.ban {
                    let words = [work, tokens, drafts, parents, bad, word_offsets, words];
                    r.dispatch(ban, &words, &params, rows)?;
                }
                if let Some(dry) = &self.dry {
                    let penalties = [work, multiplier, base, allowed, range];
                    r.dispatch(&dry.weigh, &penalties, &params, blocks)?;
                    let text = [work, tokens, drafts, parents, breakers];
                    if let Some(limit) = &dry.limit {
                        r.dispatch(limit, &text, &params, rows)?;
                    }
                    r.dispatch(&dry.matches, &text, &params, rows * self.chunks())?;
                }
                if let Some(think) = &self.think {
                    let text = |list, other| [work, tokens, drafts, parents, budget, list, other];
                    let nothing = Region::nothing;
                    if let Some(start) = &think.start {
                        let text = text(starts, nothing());
                        r.dispatch(start, &text, &params, rows * self.chunks())?;
                    }
                    r.dispatch(&think.taken, &text(closing, nothing()), &params, rows)?;
                    let both = text(ends, closing);
                    r.dispatch(&think.over, &both, &params, rows * self.chunks())?;
                    r.dispatch(&think.write, &text(closing, forced), &params, blocks)?;
                }
                let logits = window.of(&self.plan.logits, logits);
                let last = [work, logits, offsets, biased, values, flags];
                r.dispatch(&self.finish, &last, &params, rows * self.slots.div_ceil(THREADS))?;
            }
            Ok(())
        })
    }
}

launch_params! {
    /// What the shader of `adjust_logits` takes.
    struct Params: Pod, Zeroable {
        /// All rows.
        rows: u32,
        /// The first row of the window.
        row0: u32,
        /// The row after the last of the window.
        row1: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
        /// The token of the first column.
        first_token: u32,
        /// Columns that stand for a token of the vocabulary.
        columns: u32,
        /// Requests.
        requests: u32,
        /// Tokens of a row of `tokens`.
        max_length: u32,
        /// Which optional arguments are there: HAS_ bits.
        has: u32,
        /// Workgroups of a row's text.
        chunks: u32,
        /// Slots of a table, a power of two.
        slots: u32,
        /// Where the tables start in the workspace, in words, behind the states.
        tables: u32,
        /// Words of the window's tables.
        table_words: u32,
        /// Logits from one row to the next in the window.
        logits_stride: u32,
        /// Tokens from one text to the next.
        tokens_stride: u32,
        /// Words of a token of a text.
        token_words: u32,
        /// Words of a length.
        length_words: u32,
        /// Words of a prompt's length.
        prompt_words: u32,
        /// Words of a draft token.
        draft_words: u32,
        /// Biases of all requests.
        biases: u32,
        /// Stop tokens of a request.
        stops: u32,
        /// Stop tokens from one request to the next.
        stops_stride: u32,
        /// Words of all requests that are bad.
        words: u32,
        /// Tokens of all words that are bad.
        word_tokens: u32,
        /// 1 where bad words are looked for in the prompt too, else 0.
        words_in_prompt: u32,
        /// Breakers of DRY.
        breakers: u32,
        /// Tokens of `think_start`.
        start_tokens: u32,
        /// Tokens of `think_end`.
        end_tokens: u32,
        /// Tokens of `think_forced`.
        forced_tokens: u32,
    }

    /// Threads of a workgroup over texts, tables and biases.
    const THREADS: u64 = 256;
    /// Threads of a workgroup over rows.
    const ROW_THREADS: u64 = 64;
    /// Words of all tables that a thread clears.
    const CLEARED: u64 = 16;
    /// Words of a row's state.
    const STATE: u64 = 20;
    /// The largest number of tokens of a sequence that DRY counts.
    const MAX_MATCH: usize = adjust_logits::MAX_MATCH;
    /// Bits of `has`: the arguments that are there.
    const HAS_REQUESTS: u32 = 1;
    const HAS_DRAFTS: u32 = 1 << 1;
    const HAS_REPETITION: u32 = 1 << 2;
    const HAS_FREQUENCY: u32 = 1 << 3;
    const HAS_PRESENCE: u32 = 1 << 4;
    const HAS_STOPS: u32 = 1 << 5;
    const HAS_NGRAM: u32 = 1 << 6;
    const HAS_FLAGS: u32 = 1 << 7;
    const HAS_RANGE: u32 = 1 << 8;
    const HAS_THINK: u32 = 1 << 9;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "adjust_logits", includes: &["bound"], structs: &[Params::DESCRIPTION] };
