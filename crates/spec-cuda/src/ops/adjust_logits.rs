//! Host side of `kernels/adjust_logits.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::AdjustLogits;
use spec_core::ops::adjust_logits::{self, Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};
use crate::limits::Limits;
use spec_core::launch_params::float_code;

static KERNELS: Archive = archive!("adjust_logits");

/// The smallest number of threads of a block.
const MIN_THREADS: usize = 128;
/// Tokens of a word, the unit of the kernels' bitmaps.
const WORD: usize = 32;
/// The largest number of blocks of a row, which a row gets only if multiprocessors would be idle
/// otherwise, and the smallest number of tokens of such a block.
const MAX_BLOCKS: usize = 64;
const BLOCK_TOKENS: usize = 512;
/// The kernels `direct`: the largest number of words of a class.
const DIRECT_WORDS: usize = 1024;
/// Shared memory of fixed size of a block, at most.
const FIXED_SHARED: usize = 3 * 1024;
/// The kernels `ranked`: the bytes of a group of words, which has two bitmaps and a rank; the largest
/// number of words of a class; the bytes of a slot without biases, and with biases; the largest number
/// of slots of a block. Two blocks of the largest size fit a multiprocessor.
const RANKED_GROUP: usize = 2 * 4 * GROUP + 4;
const RANKED_WORDS: usize = 4096;
const SLOT: usize = 8;
const BIASED_SLOT: usize = 12;
const MAX_SLOTS: usize = 4096;

launch_params! {
    /// The parameters of the kernels of `adjust_logits`. An absent pointer is null.
    struct Params {
        /// Logits, [rows, columns] of the kernel's type.
        logits: Rows as "Rows<void>",
        /// Texts, [requests, max_length].
        tokens: IntegerRows,
        /// The number of tokens in each prompt, [requests].
        prompt_lengths: Integers,
        /// The number of tokens in each text, [requests].
        lengths: Integers,
        /// The draft token of each row, [rows].
        draft_tokens: Integers,
        /// Stop tokens, [requests, stops].
        stop_tokens: Rows as "Rows<const i32>",
        /// The request of each row, [rows].
        requests: u64 as "const i32*",
        /// The parent of each row: the row of the previous draft, or -1, [rows].
        parents: u64 as "const i32*",
        /// The start of each request's biases, [requests + 1].
        bias_offsets: u64 as "const i32*",
        /// Tokens with a bias, [biases].
        bias_tokens: u64 as "const i32*",
        /// The bias of each of `bias_tokens`, [biases].
        bias_values: u64 as "const float*",
        /// The repetition penalty of each request, [requests].
        repetition: u64 as "const float*",
        /// The frequency penalty of each request, [requests].
        frequency: u64 as "const float*",
        /// The presence penalty of each request, [requests].
        presence: u64 as "const float*",
        /// The smallest number of tokens to generate, [requests].
        min_tokens: u64 as "const i32*",
        /// The start of each request's bad words, [requests + 1].
        bad_offsets: u64 as "const i32*",
        /// The start of each word's tokens, [words + 1].
        word_offsets: u64 as "const i32*",
        /// The tokens of all words.
        word_tokens: u64 as "const i32*",
        /// The length of n-grams that must not be repeated, [requests].
        no_repeat_ngram: u64 as "const i32*",
        /// The multiplier of DRY, [requests].
        dry_multiplier: u64 as "const float*",
        /// The base of DRY, [requests].
        dry_base: u64 as "const float*",
        /// The allowed length of DRY, [requests].
        dry_allowed_length: u64 as "const i32*",
        /// How many of the last tokens DRY reads, [requests].
        dry_range: u64 as "const i32*",
        /// Breakers of DRY, [breakers].
        dry_breakers: u64 as "const i32*",
        /// The thinking budget of each request, [requests].
        think_budget: u64 as "const i32*",
        /// The tokens that start a thinking, [start_tokens].
        think_start: u64 as "const i32*",
        /// The tokens that end a thinking, [end_tokens].
        think_end: u64 as "const i32*",
        /// The tokens that are forced where a budget is used up, [forced_tokens].
        think_forced: u64 as "const i32*",
        /// The token that each row must take, [rows].
        forced: u64 as "i32*",
        /// One word of flags.
        flags: u64 as "u32*",
        /// The number of requests.
        request_count: u64,
        /// The number of rows.
        rows: u32,
        /// The number of tokens in the vocabulary.
        vocab: u32,
        /// The number of columns of `tokens`.
        max_length: u32,
        /// The number of biases of all requests.
        biases: u32,
        /// The number of columns of `stop_tokens`.
        stops: u32,
        /// The number of words of all requests.
        words: u32,
        /// The number of tokens of all words.
        word_tokens_count: u32,
        /// 1 if words are also searched in the prompt, else 0.
        words_in_prompt: u32,
        /// The base-2 logarithm of the number of classes of a row's tokens.
        class_bits: u32,
        /// The number of words of 32 tokens in a class, a multiple of 4.
        class_words: u32,
        /// The number of slots of a block of `ranked`: the tokens that the block counts at a time.
        slots: u32,
        /// The token of the first column.
        first_token: u32,
        /// The number of columns that stand for a token of the vocabulary.
        columns: u32,
        /// The number of breakers of DRY.
        breakers: u32,
        /// The number of tokens of `think_start`.
        start_tokens: u32,
        /// The number of tokens of `think_end`.
        end_tokens: u32,
        /// The number of tokens of `think_forced`.
        forced_tokens: u32,
        /// The type of logits, for kernels that have all types: `F32`, `F16` or `BF16`.
        dtype: u32,
    }

    /// Tokens of a text that a thread has in flight.
    const AHEAD: usize = 4;
    /// Words of a bitmap that the kernels take together.
    const GROUP: usize = 4;
    /// A text has fewer tokens than this, since the kernels keep the count of a token beside marks, in
    /// a word.
    const MAX_TOKENS: usize = 1 << 29;
    /// The largest number of tokens of a sequence that DRY counts.
    const MAX_MATCH: usize = adjust_logits::MAX_MATCH;
    /// The largest number of threads of a block of the kernels `direct`.
    const DIRECT_THREADS: usize = 1024;
    /// Bytes of shared memory for a word of 32 tokens in the kernels `direct`: a token has an entry of
    /// two bytes and a bit, and with DRY one more byte.
    const DIRECT_WORD: usize = WORD * 2 + 4;
    const DIRECT_DRY_WORD: usize = DIRECT_WORD + WORD;
    /// The largest number of threads of a block of the kernels `ranked`.
    const RANKED_THREADS: usize = 512;
    /// The largest number of threads of a block of the kernel `think`.
    const THINK_THREADS: usize = 1024;
}

#[cfg(test)]
pub(super) const HEADER: Header = Header {
    name: "adjust_logits",
    includes: &["ids.cuh", "params/shared.cuh"],
    structs: &[Params::DESCRIPTION],
};

/// How a launch divides its work.
#[derive(Debug)]
struct Layout {
    /// True for the kernels `direct`, false for `ranked`.
    is_direct: bool,
    /// The base-2 logarithm of the number of classes of a row's tokens.
    class_bits: u32,
    /// Words of a class, a multiple of [`GROUP`].
    class_words: usize,
    /// Slots of a block of `ranked`.
    slots: usize,
    shape: Shape,
}

impl Layout {
    fn new(plan: &Plan, limits: &Limits) -> Self {
        let multiprocessors = limits.multiprocessors as usize;
        let is_dry = plan.dry.is_some();
        let direct_word = if is_dry { DIRECT_DRY_WORD } else { DIRECT_WORD };
        let room = (limits.shared as usize).saturating_sub(FIXED_SHARED) / direct_word;
        let direct_words = DIRECT_WORDS.min(room / GROUP * GROUP);
        let rows = plan.rows().max(1);
        let words = plan.columns().div_ceil(WORD);
        // A row's tokens are divided between blocks while the device has room for more blocks.
        let room = (multiprocessors / rows).max(1);
        let blocks = room.min(plan.touched() / BLOCK_TOKENS).clamp(1, MAX_BLOCKS);
        let blocks = 1 << blocks.ilog2();
        let classes = |max: usize| blocks.max(words.div_ceil(max).next_power_of_two());
        let is_direct = rows.saturating_mul(classes(direct_words)) <= multiprocessors;
        let classes = classes(if is_direct { direct_words } else { RANKED_WORDS });
        let class_words = words.div_ceil(classes).next_multiple_of(GROUP);
        // The mean number of tokens of a class. A class with many more tokens is counted in several
        // windows of slots.
        let biases = plan.biases.unwrap_or(0);
        let mean = (plan.max_text() + biases.div_ceil(plan.requests().max(1))).div_ceil(classes);
        let slots = (mean + mean / 4 + WORD).min(class_words * WORD).min(MAX_SLOTS);
        let slot = if biases == 0 { SLOT } else { BIASED_SLOT };
        let shared = if is_direct {
            class_words * direct_word
        } else {
            // With DRY, a slot has a byte more.
            let bytes = if is_dry { slots.next_multiple_of(4) } else { 0 };
            class_words / GROUP * RANKED_GROUP + slots * slot + bytes
        };
        let threads = threads(plan, if is_direct { DIRECT_THREADS } else { RANKED_THREADS });
        let mut shape = Shape::new(plan.rows() as u32, threads).shared(shared as u32);
        shape.grid[1] = classes.min(MAX_BLOCKS) as u32;
        Layout { is_direct, class_bits: classes.ilog2(), class_words, slots, shape }
    }
}

/// Threads of a block that has [`AHEAD`] tokens of a text in flight in each thread.
fn threads(plan: &Plan, max: usize) -> u32 {
    let threads = (plan.max_text() / AHEAD).max(1);
    (1 << threads.ilog2()).clamp(MIN_THREADS, max) as u32
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    layout: Layout,
    /// The kernel of thinking budgets.
    think: Option<Function>,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<AdjustLogits> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AdjustLogits>>> {
        if plan.max_text() >= MAX_TOKENS {
            let words =
                format!("{} tokens of a text, expected fewer than {MAX_TOKENS}", plan.max_text());
            return Err(Error::device(self.device(), Status::NotImplemented, words));
        }
        let dtype = match plan.logits.dtype {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            _ => "f32",
        };
        let layout = Layout::new(plan, self.limits());
        let kernels = if layout.is_direct { "direct" } else { "ranked" };
        let form = if plan.dry.is_some() { "dry" } else { dtype };
        let think = plan.think.map(|_| self.function(&KERNELS, "adjust_logits_think"));
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, &format!("adjust_logits_{kernels}_{form}"))?,
            layout,
            think: think.transpose()?,
        }))
    }
}

// SAFETY: as above.
unsafe impl Kernel<AdjustLogits> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, function, layout, think } = self;
        let drafts = plan.draft_tokens.map_or(DType::I32, |drafts| drafts.dtype);
        let no_stops = Matrix { dtype: DType::I32, rows: 0, cols: 0, row_stride: 0 };
        let stops = plan.stop_tokens.unwrap_or(no_stops);
        let params = Params {
            logits: cuda.rows(buffers.logits, &plan.logits)?,
            tokens: cuda.integer_rows(buffers.tokens, &plan.tokens)?,
            prompt_lengths: cuda.integers(buffers.prompt_lengths, plan.prompt_lengths)?,
            lengths: cuda.integers(buffers.lengths, plan.lengths)?,
            draft_tokens: cuda.integers(buffers.draft_tokens, drafts)?,
            stop_tokens: cuda.rows(buffers.stop_tokens, &stops)?,
            requests: cuda.pointer(buffers.requests)?,
            parents: cuda.pointer(buffers.parents)?,
            bias_offsets: cuda.pointer(buffers.bias_offsets)?,
            bias_tokens: cuda.pointer(buffers.bias_tokens)?,
            bias_values: cuda.pointer(buffers.bias_values)?,
            repetition: cuda.pointer(buffers.repetition)?,
            frequency: cuda.pointer(buffers.frequency)?,
            presence: cuda.pointer(buffers.presence)?,
            min_tokens: cuda.pointer(buffers.min_tokens)?,
            bad_offsets: cuda.pointer(buffers.bad_offsets)?,
            word_offsets: cuda.pointer(buffers.word_offsets)?,
            word_tokens: cuda.pointer(buffers.word_tokens)?,
            no_repeat_ngram: cuda.pointer(buffers.no_repeat_ngram)?,
            dry_multiplier: cuda.pointer(buffers.dry_multiplier)?,
            dry_base: cuda.pointer(buffers.dry_base)?,
            dry_allowed_length: cuda.pointer(buffers.dry_allowed_length)?,
            dry_range: cuda.pointer(buffers.dry_range)?,
            dry_breakers: cuda.pointer(buffers.dry_breakers)?,
            think_budget: cuda.pointer(buffers.think_budget)?,
            think_start: cuda.pointer(buffers.think_start)?,
            think_end: cuda.pointer(buffers.think_end)?,
            think_forced: cuda.pointer(buffers.think_forced)?,
            forced: cuda.pointer(buffers.forced)?,
            flags: cuda.pointer(buffers.flags)?,
            request_count: plan.requests() as u64,
            rows: plan.rows() as u32,
            vocab: plan.vocab() as u32,
            max_length: plan.tokens.cols as u32,
            biases: plan.biases.unwrap_or(0) as u32,
            stops: stops.cols as u32,
            words: plan.words.map_or(0, |words| words.count) as u32,
            word_tokens_count: plan.words.map_or(0, |words| words.tokens) as u32,
            words_in_prompt: u32::from(plan.params.bad_words_in_prompt),
            class_bits: layout.class_bits,
            class_words: layout.class_words as u32,
            slots: layout.slots as u32,
            first_token: plan.first_token() as u32,
            columns: plan.columns().min(plan.vocab().saturating_sub(plan.first_token())) as u32,
            breakers: plan.dry.map_or(0, |dry| dry.breakers as u32),
            start_tokens: plan.think.map_or(0, |think| think.start as u32),
            end_tokens: plan.think.map_or(0, |think| think.end as u32),
            forced_tokens: plan.think.map_or(0, |think| think.forced as u32),
            dtype: float_code(plan.logits.dtype),
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were checked against the
        // plan, and the kernel checks every token, offset, length and parent, which are data,
        // against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe {
            queue.launch(function, layout.shape, &params)?;
            let Some(think) = think else { return Ok(()) };
            // Both kernels read the texts, and only this one writes `forced`.
            let shape = Shape::new(plan.rows() as u32, threads(plan, THINK_THREADS));
            queue.launch_next(think, shape, &params)
        })
    }
}

#[cfg(test)]
mod tests {
    use spec_core::{Operator, TensorDesc};

    use super::super::routes::route;
    use super::*;
    use crate::limits::Limits;

    /// Shared memory that every supported device has, less what the kernels have of fixed size.
    const SHARED: u32 = 99 * 1024 - 3 * 1024;

    #[test]
    fn a_layout_has_every_token_and_fits_every_device() {
        let operator = AdjustLogits::new();
        for (rows, max, vocab) in [1, 3, 32, 33, 132, 1280].into_iter().flat_map(|rows| {
            [0, 1, 100, 4096, 1 << 20].into_iter().flat_map(move |max| {
                [1, 40, 32_768, 128_256, 1 << 20, 1 << 28].map(move |vocab| (rows, max, vocab))
            })
        }) {
            for (biases, is_dry) in [(0, false), (1000, false), (0, true), (1000, true)] {
                let of_request = TensorDesc::new(DType::F32, [rows]);
                let mut tensors = operator.tensors(DType::BF16, rows, vocab, rows, max);
                tensors = tensors.repetition(of_request);
                if biases > 0 {
                    let of = |dtype, count| TensorDesc::new(dtype, [count]);
                    tensors = tensors
                        .bias_offsets(of(DType::I32, rows + 1))
                        .bias_tokens(of(DType::I32, biases))
                        .bias_values(of(DType::F32, biases));
                }
                if is_dry {
                    let lengths = TensorDesc::new(DType::I32, [rows]);
                    tensors = tensors
                        .dry_multiplier(of_request)
                        .dry_base(of_request)
                        .dry_allowed_length(lengths);
                }
                let plan = operator.plan(&tensors).expect("a plan");
                for (multiprocessors, shared) in
                    [1, 16, 132, 2000].into_iter().flat_map(|m| [(m, 99), (m, 227)])
                {
                    let shared = shared * 1024;
                    let limits =
                        Limits { multiprocessors: multiprocessors as u32, shared, ..Limits::H100 };
                    let layout = Layout::new(&plan, &limits);
                    let what = format!("{rows} x {max} of {vocab}, {multiprocessors}: {layout:?}");
                    let words = layout.class_words << layout.class_bits;
                    assert!(words * WORD >= vocab, "{what}");
                    assert!(layout.class_words.is_multiple_of(GROUP) && layout.slots > 0, "{what}");
                    assert!(layout.shape.shared + FIXED_SHARED as u32 <= shared, "{what}");
                    if !is_dry || !layout.is_direct {
                        assert!(layout.shape.shared <= SHARED, "{what}");
                    }
                    let [blocks, classes] = layout.shape.grid;
                    assert!(
                        classes.is_power_of_two() && classes <= 1 << layout.class_bits,
                        "{what}"
                    );
                    let fits = (blocks * classes) as usize <= multiprocessors;
                    assert!(!layout.is_direct || fits, "{what}");
                }
            }
        }
    }

    /// DRY and thinking budgets have kernels of their own, so calls without them cost nothing more.
    #[test]
    fn adjust_logits_takes_the_kernels_of_its_rules() {
        const H100: Limits = Limits::H100;
        let adjust = |limits, rows, wants: &[&str]| {
            let operator = AdjustLogits::new();
            let of_rows = |dtype| TensorDesc::new(dtype, [rows]);
            let mut tensors = operator.tensors(DType::BF16, rows, 128_256, rows, 4096);
            tensors.repetition = Some(of_rows(DType::F32));
            if wants.contains(&"dry") {
                tensors.dry_multiplier = Some(of_rows(DType::F32));
                tensors.dry_base = Some(of_rows(DType::F32));
                tensors.dry_allowed_length = Some(of_rows(DType::I32));
            }
            if wants.contains(&"think") {
                let list = Some(TensorDesc::new(DType::I32, [3]));
                tensors.think_budget = Some(of_rows(DType::I32));
                (tensors.think_start, tensors.think_end, tensors.think_forced) = (list, list, list);
                tensors.forced = Some(of_rows(DType::I32));
            }
            route(limits, &operator, &tensors)
        };
        let calls = [
            (adjust(H100, 32, &[]), "adjust_logits_direct_bf16 (32 x 4 blocks of 1024 threads)"),
            (adjust(H100, 256, &[]), "adjust_logits_ranked_bf16 (256 blocks of 512 threads)"),
            (
                adjust(H100, 32, &["dry"]),
                "adjust_logits_direct_dry (32 x 4 blocks of 1024 threads)",
            ),
            (
                // A class of tokens needs more shared memory than this device has.
                adjust(Limits::RTX_4090, 32, &["dry"]),
                "adjust_logits_ranked_dry (32 x 4 blocks of 512 threads)",
            ),
            (adjust(H100, 256, &["dry"]), "adjust_logits_ranked_dry (256 blocks of 512 threads)"),
            (
                adjust(H100, 32, &["think"]),
                "adjust_logits_direct_bf16 (32 x 4 blocks of 1024 threads), \
                 adjust_logits_think (32 blocks of 1024 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
