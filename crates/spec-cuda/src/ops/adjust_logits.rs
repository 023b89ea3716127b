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
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("adjust_logits");

/// Threads of a block: fewer where blocks share a multiprocessor, so that two of them do.
const THREADS: std::ops::RangeInclusive<usize> = 128..=1024;
const SHARING_THREADS: usize = 512;
/// Tokens of a text that a thread has in flight.
const AHEAD: usize = 4;
/// Tokens of a word, the unit of the kernel's bitmaps.
const WORD: usize = 32;
/// Bytes of a word: its bits in three bitmaps, and its rank.
const WORD_BYTES: usize = 16;
/// The most words of a class: two blocks with so many share a multiprocessor.
const MAX_WORDS: usize = 4096;
/// Bytes of a slot without biases, and with them.
const SLOT: usize = 8;
const BIASED_SLOT: usize = 12;
/// The most slots of a block.
const MAX_SLOTS: usize = 2048;
/// The most blocks that a row is given for the sake of a device with idle multiprocessors.
const MAX_BLOCKS: usize = 64;
/// The fewest tokens of such a block.
const BLOCK_TOKENS: usize = 512;
/// A text has fewer tokens than this, since the kernel keeps counts in so many bits beside marks.
const MOST_TOKENS: usize = 1 << 29;

launch_params! {
    /// What the kernels of `adjust_logits` take. What is absent is null.
    struct Params {
        /// Logits, [rows, vocab] of the kernel's type.
        logits: Rows as "Rows<void>",
        /// Texts, [requests, most].
        tokens: IntegerRows,
        /// Tokens of each prompt, [requests].
        prompt_lengths: Integers,
        /// Tokens of each text, [requests].
        lengths: Integers,
        /// The draft token of each row, [rows].
        draft_tokens: Integers,
        /// Stop tokens, [requests, stops].
        stop_tokens: Rows as "Rows<const i32>",
        /// The request of each row, [rows].
        requests: u64 as "const i32*",
        /// The row before each row, [rows].
        parents: u64 as "const i32*",
        /// Where each request's biases start, [requests + 1].
        bias_offsets: u64 as "const i32*",
        /// Tokens with a bias, [biases].
        bias_tokens: u64 as "const i32*",
        /// Their biases, [biases].
        bias_values: u64 as "const float*",
        /// Penalties, [requests].
        repetition: u64 as "const float*",
        /// Penalties, [requests].
        frequency: u64 as "const float*",
        /// Penalties, [requests].
        presence: u64 as "const float*",
        /// The least number of tokens to generate, [requests].
        min_tokens: u64 as "const i32*",
        /// Where each request's words start, [requests + 1].
        bad_offsets: u64 as "const i32*",
        /// Where each word starts, [words + 1].
        word_offsets: u64 as "const i32*",
        /// Tokens of words.
        word_tokens: u64 as "const i32*",
        /// The length of n-grams that are not repeated, [requests].
        no_repeat_ngram: u64 as "const i32*",
        /// One word of flags.
        flags: u64 as "u32*",
        /// Requests.
        request_count: u64,
        /// Rows.
        rows: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
        /// Tokens of a row of `tokens`.
        most: u32,
        /// Biases of all requests.
        biases: u32,
        /// Columns of `stop_tokens`.
        stops: u32,
        /// Words of all requests.
        words: u32,
        /// Tokens of all words.
        word_tokens_count: u32,
        /// 1 where words are looked for in the prompt too, else 0.
        words_in_prompt: u32,
        /// Classes of a row's tokens, as a power of two.
        class_bits: u32,
        /// Words of 32 tokens that a class has, a multiple of 4.
        class_words: u32,
        /// Slots of a block: the tokens that it counts at a time.
        slots: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "adjust_logits", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    class_bits: u32,
    class_words: u32,
    slots: u32,
    shape: Shape,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<AdjustLogits> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AdjustLogits>>> {
        if plan.most() >= MOST_TOKENS {
            let words =
                format!("{} tokens of a text, expected fewer than {MOST_TOKENS}", plan.most());
            return Err(Error::device(self.device(), Status::NotImplemented, words));
        }
        let name = match plan.logits.dtype {
            DType::F16 => "adjust_logits_f16",
            DType::BF16 => "adjust_logits_bf16",
            _ => "adjust_logits_f32",
        };
        // A row's tokens are divided between blocks while the device has room for more blocks, and
        // at least so that a block holds the bits of its class.
        let multiprocessors = self.limits().multiprocessors as usize;
        let rows = plan.rows().max(1);
        let room = (multiprocessors / rows).max(1);
        let blocks = room.min(plan.touched() / BLOCK_TOKENS).clamp(1, MAX_BLOCKS);
        let words = plan.vocab().div_ceil(WORD);
        let classes = (1 << blocks.ilog2()).max(words.div_ceil(MAX_WORDS).next_power_of_two());
        let blocks = classes.min(MAX_BLOCKS);
        // A multiple of 4: the kernel takes 16 bytes at a time.
        let class_words = words.div_ceil(classes).next_multiple_of(4);
        // At most half of a text's tokens are repeated. A class with more of them than slots counts
        // them in several windows.
        let slots = (plan.touched().div_ceil(classes) / 2 + WORD).min(class_words * WORD);
        let slots = slots.min(MAX_SLOTS);
        let is_alone = rows.saturating_mul(blocks) <= multiprocessors;
        let most_threads = if is_alone { *THREADS.end() } else { SHARING_THREADS };
        let threads = (plan.most() / AHEAD).max(1);
        let threads = (1 << threads.ilog2()).clamp(*THREADS.start(), most_threads);
        let slot = if plan.biases.unwrap_or(0) == 0 { SLOT } else { BIASED_SLOT };
        let shared = (class_words * WORD_BYTES + slots * slot) as u32;
        let mut shape = Shape::new(plan.rows() as u32, threads as u32).shared(shared);
        shape.grid[1] = blocks as u32;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, name)?,
            class_bits: classes.ilog2(),
            class_words: class_words as u32,
            slots: slots as u32,
            shape,
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
        let Prepared { cuda, plan, .. } = self;
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
            most: plan.tokens.cols as u32,
            biases: plan.biases.unwrap_or(0) as u32,
            stops: stops.cols as u32,
            words: plan.words.map_or(0, |words| words.count) as u32,
            word_tokens_count: plan.words.map_or(0, |words| words.tokens) as u32,
            words_in_prompt: u32::from(plan.params.bad_words_in_prompt),
            class_bits: self.class_bits,
            class_words: self.class_words,
            slots: self.slots,
            reserved: 0,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were checked against the
        // plan, and the kernel checks every token, offset, length and parent, which are data,
        // against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
