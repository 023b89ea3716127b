//! Host side of `kernels/adjust_logits.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::AdjustLogits;
use spec_core::ops::adjust_logits::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("adjust_logits");

/// Tokens of a text that a thread has in flight.
const AHEAD: usize = 4;
/// The smallest number of threads of a block.
const MIN_THREADS: usize = 128;
/// Tokens of a word, the unit of the kernels' bitmaps.
const WORD: usize = 32;
/// Words that the kernels take together.
const GROUP: usize = 4;
/// The largest number of blocks of a row, which a row gets only if multiprocessors would be idle
/// otherwise, and the smallest number of tokens of such a block.
const MAX_BLOCKS: usize = 64;
const BLOCK_TOKENS: usize = 512;
/// The kernels `direct`: the largest number of threads of a block; the bytes of a word, whose tokens
/// have an entry of two bytes and a bit each; the largest number of words of a class.
const DIRECT_THREADS: usize = 1024;
const DIRECT_WORD: usize = WORD * 2 + 4;
const DIRECT_WORDS: usize = 1024;
/// The kernels `ranked`: the largest number of threads of a block; the bytes of a group of words, which
/// has two bitmaps and a rank; the largest number of words of a class; the bytes of a slot without
/// biases, and with biases; the largest number of slots of a block. Two blocks of the largest size fit
/// a multiprocessor.
const RANKED_THREADS: usize = 512;
const RANKED_GROUP: usize = 2 * 4 * GROUP + 4;
const RANKED_WORDS: usize = 4096;
const SLOT: usize = 8;
const BIASED_SLOT: usize = 12;
const MAX_SLOTS: usize = 4096;
/// A text has fewer tokens than this, since the kernel keeps counts in so many bits beside marks.
const MAX_TOKENS: usize = 1 << 29;

launch_params! {
    /// The parameters of the kernels of `adjust_logits`. An absent pointer is null.
    struct Params {
        /// Logits, [rows, vocab] of the kernel's type.
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
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "adjust_logits", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

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
    fn new(plan: &Plan, multiprocessors: usize) -> Self {
        let rows = plan.rows().max(1);
        let words = plan.vocab().div_ceil(WORD);
        // A row's tokens are divided between blocks while the device has room for more blocks.
        let room = (multiprocessors / rows).max(1);
        let blocks = room.min(plan.touched() / BLOCK_TOKENS).clamp(1, MAX_BLOCKS);
        let blocks = 1 << blocks.ilog2();
        let classes = |max: usize| blocks.max(words.div_ceil(max).next_power_of_two());
        let is_direct = rows.saturating_mul(classes(DIRECT_WORDS)) <= multiprocessors;
        let classes = classes(if is_direct { DIRECT_WORDS } else { RANKED_WORDS });
        let class_words = words.div_ceil(classes).next_multiple_of(GROUP);
        // The mean number of tokens of a class. A class with many more tokens is counted in several
        // windows of slots.
        let biases = plan.biases.unwrap_or(0);
        let mean = (plan.max_text() + biases.div_ceil(plan.requests().max(1))).div_ceil(classes);
        let slots = (mean + mean / 4 + WORD).min(class_words * WORD).min(MAX_SLOTS);
        let slot = if biases == 0 { SLOT } else { BIASED_SLOT };
        let shared = if is_direct {
            class_words * DIRECT_WORD
        } else {
            class_words / GROUP * RANKED_GROUP + slots * slot
        };
        let threads = (plan.max_text() / AHEAD).max(1);
        let max_threads = if is_direct { DIRECT_THREADS } else { RANKED_THREADS };
        let threads = (1 << threads.ilog2()).clamp(MIN_THREADS, max_threads);
        let mut shape = Shape::new(plan.rows() as u32, threads as u32).shared(shared as u32);
        shape.grid[1] = classes.min(MAX_BLOCKS) as u32;
        Layout { is_direct, class_bits: classes.ilog2(), class_words, slots, shape }
    }
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    layout: Layout,
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
        let layout = Layout::new(plan, self.limits().multiprocessors as usize);
        let kernels = if layout.is_direct { "direct" } else { "ranked" };
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, &format!("adjust_logits_{kernels}_{dtype}"))?,
            layout,
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
        let Prepared { cuda, plan, function, layout } = self;
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
            reserved: 0,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were checked against the
        // plan, and the kernel checks every token, offset, length and parent, which are data,
        // against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(function, layout.shape, &params) })
    }
}

#[cfg(test)]
mod tests {
    use spec_core::{Operator, TensorDesc};

    use super::*;

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
            for biases in [0, 1000] {
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
                let plan = operator.plan(&tensors).expect("a plan");
                for multiprocessors in [1, 16, 132, 2000] {
                    let layout = Layout::new(&plan, multiprocessors);
                    let what = format!("{rows} x {max} of {vocab}, {multiprocessors}: {layout:?}");
                    let words = layout.class_words << layout.class_bits;
                    assert!(words * WORD >= vocab, "{what}");
                    assert!(layout.class_words.is_multiple_of(GROUP) && layout.slots > 0, "{what}");
                    assert!(layout.shape.shared <= SHARED, "{what}");
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
}
