//! Host side of `kernels/append_tokens.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::AppendTokens;
use spec_core::ops::append_tokens::{self, Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("append_tokens");

/// The requests of a block: one warp per request.
const REQUESTS: usize = THREADS as usize / 32;

launch_params! {
    /// The parameters of the kernel of `append_tokens`.
    struct Params {
        /// The texts, [batch, max_len].
        tokens: IntegerRows,
        /// The tokens to append, [batch, n].
        new_tokens: IntegerRows,
        /// Tokens that end a text, [batch, stops]; not read if `stops` is 0.
        stop_tokens: IntegerRows,
        /// The number of tokens in each text, updated by the kernel, [batch, 1].
        lengths: IntegerRows,
        /// The number of new tokens of each request, [batch].
        new_counts: Integers,
        /// The length that each text may reach, [batch], or null.
        max_lengths: Integers,
        /// The reason why each request has ended, [batch], or null.
        finished: u64 as "i32*",
        /// The number of tokens that each request took, [batch].
        appended: u64 as "i32*",
        /// The last token of each text, [batch], of the texts' type, or null.
        last_tokens: u64 as "void*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of requests.
        batch: u64,
        /// The number of columns of `tokens`.
        max_len: u32,
        /// The number of columns of `new_tokens`.
        n: u32,
        /// The number of columns of `stop_tokens`.
        stops: u32,
        /// Fills the last eight bytes.
        reserved: u32,
    }

    /// Threads of a block.
    const THREADS: u32 = 256;
    /// Values of `finished`: the request goes on, met a stop token, or reached its length limit.
    const RUNNING: i32 = append_tokens::RUNNING;
    const STOPPED: i32 = append_tokens::STOPPED;
    const AT_LENGTH: i32 = append_tokens::AT_LENGTH;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "append_tokens", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<AppendTokens> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AppendTokens>>> {
        // If there are more requests than warps, each warp takes several requests.
        let blocks = plan.batch().div_ceil(REQUESTS).min(1 << 30) as u32;
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, "append_tokens")?,
            shape: Shape::new(blocks, THREADS),
        }))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<AppendTokens> for Prepared {
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
        let no_stops = IntegerRows { data: 0, stride: 0, wide: 0 };
        let stops = plan.stop_tokens.as_ref();
        let params = Params {
            tokens: cuda.integer_rows(buffers.tokens, &plan.tokens)?,
            new_tokens: cuda.integer_rows(buffers.new_tokens, &plan.new_tokens)?,
            stop_tokens: stops
                .map_or(Ok(no_stops), |rows| cuda.integer_rows(buffers.stop_tokens, rows))?,
            lengths: IntegerRows {
                data: cuda.pointer(buffers.lengths)?,
                stride: 1,
                wide: u64::from(plan.lengths.size() == 8),
            },
            new_counts: cuda.integers(buffers.new_counts, plan.new_counts)?,
            max_lengths: cuda
                .integers(buffers.max_lengths, plan.max_lengths.unwrap_or(plan.lengths))?,
            finished: cuda.pointer(buffers.finished)?,
            appended: cuda.pointer(buffers.appended)?,
            last_tokens: cuda.pointer(buffers.last_tokens)?,
            flags: cuda.pointer(buffers.flags)?,
            batch: plan.batch() as u64,
            max_len: plan.tokens.cols as u32,
            n: plan.new_tokens.cols as u32,
            stops: stops.map_or(0, |rows| rows.cols as u32),
            reserved: 0,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were checked against
        // the plan, and the kernel clamps every length, which is data, to the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
