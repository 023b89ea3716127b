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

/// Slots of a block's table, as powers of two. The kernel looks at 128 slots for a token. The
/// largest table, with biases, takes 96 KiB, which a block of every supported device has.
const SLOT_BITS: std::ops::RangeInclusive<u32> = 9..=13;
/// Bytes of a slot without biases, and with them.
const SLOT: u32 = 8;
const BIASED_SLOT: u32 = 12;
/// Threads of a block: each has some four tokens of a text that a table holds.
const THREADS: std::ops::RangeInclusive<usize> = 128..=1024;
/// The most blocks of a row. Blocks take several classes of tokens each beyond that.
const MOST_BLOCKS: usize = 64;
/// The fewest tokens of a block, where a row has several blocks.
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
        /// Slots of a table, as a power of two.
        slot_bits: u32,
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
    slot_bits: u32,
    shape: Shape,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<AdjustLogits> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AdjustLogits>>> {
        if plan.max_text() >= MOST_TOKENS {
            let words =
                format!("{} tokens of a text, expected fewer than {MOST_TOKENS}", plan.max_text());
            return Err(Error::device(self.device(), Status::NotImplemented, words));
        }
        let name = match plan.logits.dtype {
            DType::F16 => "adjust_logits_f16",
            DType::BF16 => "adjust_logits_bf16",
            _ => "adjust_logits_f32",
        };
        // Biases and words of all requests: a request with more than its share divides its tokens
        // into more classes.
        let requests = plan.requests().max(1);
        let others = plan.biases.unwrap_or(0) + plan.words.map_or(0, |words| words.count);
        let touched = (plan.touched() - others.min(plan.touched())) + others.div_ceil(requests);
        // A row's tokens are divided between blocks while the device has room for more blocks, and
        // where one table does not hold them.
        let multiprocessors = self.limits().multiprocessors as usize;
        let rows = plan.rows().max(1);
        let tables = touched.div_ceil((5 << SLOT_BITS.end()) / 8).next_power_of_two();
        let blocks = (multiprocessors / rows).min(touched / BLOCK_TOKENS);
        let blocks = blocks.max(tables.min(2 * multiprocessors / rows)).clamp(1, MOST_BLOCKS);
        let blocks = 1 << blocks.ilog2();
        // Blocks of half the size share a multiprocessor.
        let is_alone = tables > 1 || rows.saturating_mul(blocks) <= multiprocessors;
        let most_threads = if is_alone { *THREADS.end() } else { THREADS.end() / 2 };
        // A table is 5/8 full at most if no token stands twice, as the kernel has it.
        let holds = |bits: &u32| (5 << bits) / 8 >= touched.div_ceil(blocks);
        let slot_bits = SLOT_BITS.clone().find(holds).unwrap_or(*SLOT_BITS.end());
        let threads = (touched / 4).max(1);
        let threads = (1 << threads.ilog2()).clamp(*THREADS.start(), most_threads);
        let slot = if plan.biases.unwrap_or(0) == 0 { SLOT } else { BIASED_SLOT };
        let mut shape = Shape::new(plan.rows() as u32, threads as u32).shared(slot << slot_bits);
        shape.grid[1] = blocks as u32;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, name)?,
            slot_bits,
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
            slot_bits: self.slot_bits,
            reserved: 0,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were checked against the
        // plan, and the kernel checks every token, offset, length and parent, which are data,
        // against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
