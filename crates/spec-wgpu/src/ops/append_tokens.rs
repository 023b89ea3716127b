//! Appends the tokens of a decode step to texts: one thread per request.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::AppendTokens;
use spec_core::ops::append_tokens::{self, Buffers, Plan};
use spec_core::{DType, Kernel, Result, Status, Stream, Supports, ViewMut};

use super::Layout;
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("append_tokens");

/// Comparisons of new tokens with stop tokens that one thread makes: see the rules in [`super`].
const MAX_COMPARISONS: usize = 60_000;

launch_params! {
    /// What the shaders of `append_tokens` take.
    struct Params: Pod, Zeroable {
        /// Requests of this dispatch.
        requests: u32,
        /// Tokens that a row of `tokens` holds.
        max_len: u32,
        /// Columns of `new_tokens`.
        n: u32,
        /// Columns of `stop_tokens`.
        stops: u32,
        /// Words of an element of `tokens`; then elements from one row to the next.
        tokens: Layout,
        /// The same of `new_tokens`.
        new: Layout,
        /// The same of `stop_tokens`.
        stop: Layout,
        /// Words of an element of `lengths`.
        length_words: u32,
        /// Words of an element of `new_counts`.
        count_words: u32,
        /// Words of an element of `max_lengths`, 0 where it is absent.
        max_words: u32,
        /// 1 where `finished` is there, else 0.
        has_finished: u32,
        /// 1 where `last_tokens` is there, else 0.
        has_last: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
    }

    /// Threads of a workgroup, one for each request.
    const THREADS: u64 = 64;
    /// 32-bit words that the first pass stores per request for the second pass.
    const REQUEST_WORDS: u64 = 3;
    /// Values of `finished`: the request goes on, met a stop token, or reached its length limit.
    const RUNNING: u32 = append_tokens::RUNNING as u32;
    const STOPPED: u32 = append_tokens::STOPPED as u32;
    const AT_LENGTH: u32 = append_tokens::AT_LENGTH as u32;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "append_tokens", includes: &["bound"], structs: &[Params::DESCRIPTION] };

struct Appender {
    gpu: Wgpu,
    plan: Plan,
    decide: Program,
    append: Program,
    /// The largest number of requests whose rows fit one binding each.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<AppendTokens> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AppendTokens>>> {
        let stops = plan.stop_tokens.map_or(0, |stops| stops.cols);
        let comparisons = plan.new_tokens.cols.saturating_mul(stops + 1);
        let rows = [Some(plan.tokens), Some(plan.new_tokens), plan.stop_tokens];
        let windows = rows.iter().flatten().map(|rows| self.window_of_rows(rows, 1));
        let window = windows.min().unwrap_or(0);
        if window == 0 || comparisons > MAX_COMPARISONS {
            let words = format!(
                "append_tokens: {} new tokens against {stops} stop tokens, or a row of {} tokens, \
                 are more than one thread's work",
                plan.new_tokens.cols, plan.tokens.cols,
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        let decide = [Write, Read, Read, Read, Read, Read, Read, Write];
        let append = [Write, Write, Read, Write, Write, Write, Write];
        Ok(Box::new(Appender {
            gpu: self.clone(),
            plan: plan.clone(),
            decide: self.program(&SHADER, "decide", &decide, &[])?,
            append: self.program(&SHADER, "append", &append, &[])?,
            window,
        }))
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<AppendTokens> for Appender {
    fn workspace_size(&self) -> usize {
        self.plan.batch() * REQUEST_WORDS as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Appender { gpu, plan, .. } = self;
        let words = |dtype: DType| (dtype.size() / 4) as u32;
        let nothing = || Ok(Region::nothing());
        let work = gpu.region_of_workspace(workspace)?;
        let tokens = gpu.region_mut(buffers.tokens)?;
        let lengths = gpu.region_mut(buffers.lengths)?;
        let new_tokens = gpu.region(&buffers.new_tokens)?;
        let new_counts = gpu.region(&buffers.new_counts)?;
        let stop_tokens = buffers.stop_tokens.as_ref().map_or_else(nothing, |it| gpu.region(it))?;
        let max_lengths = buffers.max_lengths.as_ref().map_or_else(nothing, |it| gpu.region(it))?;
        let has_finished = buffers.finished.is_some();
        let finished = buffers.finished.map_or_else(nothing, |it| gpu.region_mut(it))?;
        let appended = gpu.region_mut(buffers.appended)?;
        let has_last = buffers.last_tokens.is_some();
        let last_tokens = buffers.last_tokens.map_or_else(nothing, |it| gpu.region_mut(it))?;
        let flags = buffers.flags.map_or_else(nothing, |it| gpu.region_mut(it))?;
        let params = |requests: u64| Params {
            requests: requests as u32,
            max_len: plan.tokens.cols as u32,
            n: plan.new_tokens.cols as u32,
            stops: plan.stop_tokens.map_or(0, |stops| stops.cols as u32),
            tokens: Layout::of(&plan.tokens),
            new: Layout::of(&plan.new_tokens),
            stop: Layout::of(plan.stop_tokens.as_ref().unwrap_or(&plan.new_tokens)),
            length_words: words(plan.lengths),
            count_words: words(plan.new_counts),
            max_words: plan.max_lengths.map_or(0, words),
            has_finished: u32::from(has_finished),
            has_last: u32::from(has_last),
            has_flags: u32::from(flags.bytes > 0),
        };
        let batch = plan.batch() as u64;
        gpu.record("append_tokens", stream, |r| {
            let mut start = 0;
            while start < batch {
                let requests = self.window.min(batch - start);
                let work = work.elements(start * REQUEST_WORDS, requests * REQUEST_WORDS);
                let new_tokens = new_tokens.rows(&plan.new_tokens, start, requests);
                let stops = plan.stop_tokens.as_ref();
                let stop_tokens =
                    stops.map_or(stop_tokens, |rows| stop_tokens.rows(rows, start, requests));
                let text = tokens.rows(&plan.tokens, start, requests);
                let (params, groups) = (params(requests), requests.div_ceil(THREADS));
                let decide = [
                    work,
                    lengths.elements(start, requests),
                    new_tokens,
                    new_counts.elements(start, requests),
                    stop_tokens,
                    max_lengths.elements(start, requests),
                    finished.elements(start, requests),
                    flags,
                ];
                r.dispatch(&self.decide, &decide, &params, groups)?;
                let append = [
                    work,
                    lengths.elements(start, requests),
                    new_tokens,
                    text,
                    finished.elements(start, requests),
                    appended.elements(start, requests),
                    last_tokens.elements(start, requests),
                ];
                r.dispatch(&self.append, &append, &params, groups)?;
                start += requests;
            }
            Ok(())
        })
    }
}
