//! Designs of `ngram_match` and `hybrid_mtp_ngram`.
//!
//! The write-up starts with a loop on the CPU, which copies all tensors to the host and
//! the results back. Then a single thread of the GPU does the work, and in the end a
//! parallel search and a prefix sum over the batch.

use std::sync::{Mutex, PoisonError};

use spec_conformance::host::not_host;
use spec_conformance::plain::ngram::{Arguments, Drafts, run};
use spec_core::ops::{HybridMtpNgram, NgramMatch};
use spec_core::{DType, Kernel, Operator, Result, Stream, View, ViewMut, dtype};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Function, Integers, Queue, Shape};

use crate::baselines::{Design, Designs, Role, uncovered};

static KERNELS: Archive = archive!("ngram");

impl Designs for NgramMatch {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        on_cuda(cuda)
    }
}

impl Designs for HybridMtpNgram {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        on_cuda(cuda)
    }
}

fn on_cuda<O: Drafts>(cuda: &Cuda) -> Vec<Design<O>> {
    vec![
        Design::waiting("CPU loop, copies there and back", Role::Baseline, cuda, on_host),
        Design::new("one thread for the batch", Role::Baseline, cuda, one_thread),
        Design::new("parallel search, block scan", Role::Seed, cuda, two_phases),
    ]
}

// ---- the CPU loop ---------------------------------------------------------------

/// The design on the CPU, with a copy of every tensor in host memory, kept from call to call.
struct OnHost<O: Operator> {
    cuda: Cuda,
    plan: O::Plan,
    tensors: Mutex<[Vec<u64>; 12]>,
}

fn on_host<O: Drafts>(cuda: &Cuda, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
    let tensors = Mutex::default();
    Ok(Box::new(OnHost::<O> { cuda: cuda.clone(), plan: plan.clone(), tensors }))
}

/// Copies tensors to the host, and waits for each copy.
struct Fetch<'a, 'q> {
    cuda: &'a Cuda,
    queue: &'a Queue<'q>,
}

impl Fetch<'_, '_> {
    fn copy(&self, address: u64, bytes: usize, host: &mut Vec<u64>) -> Result<()> {
        host.resize(bytes.div_ceil(8), 0);
        // SAFETY: the address is that of a view of `bytes` bytes.
        unsafe { self.queue.read(address, &mut dtype::as_bytes_mut(host)[..bytes]) }
    }

    fn read<'h>(&self, view: View<'_>, host: &'h mut Vec<u64>) -> Result<View<'h>> {
        let bytes = view.len() * view.dtype().size();
        self.copy(self.cuda.pointer(view)?, bytes, host)?;
        let data = &dtype::as_bytes(host)[..bytes];
        let typed = match view.dtype() {
            DType::I32 => dtype::from_bytes::<i32>(data).map(View::from),
            _ => dtype::from_bytes::<i64>(data).map(View::from),
        };
        typed.ok_or_else(not_host)
    }

    fn read_option<'h>(
        &self,
        view: Option<View<'_>>,
        host: &'h mut Vec<u64>,
    ) -> Result<Option<View<'h>>> {
        view.map(|view| self.read(view, host)).transpose()
    }

    /// Copies a tensor that the loop changes; returns the place to which the copy goes back.
    fn read_mut<'h>(
        &self,
        view: ViewMut<'_>,
        host: &'h mut Vec<u64>,
    ) -> Result<(ViewMut<'h>, Target)> {
        let (dtype, bytes) = (view.dtype(), view.len() * view.dtype().size());
        let address = self.cuda.pointer(view)?;
        self.copy(address, bytes, host)?;
        let data = &mut dtype::as_bytes_mut(host)[..bytes];
        let typed = match dtype {
            DType::I32 => dtype::from_bytes_mut::<i32>(data).map(ViewMut::from),
            DType::U32 => dtype::from_bytes_mut::<u32>(data).map(ViewMut::from),
            _ => dtype::from_bytes_mut::<i64>(data).map(ViewMut::from),
        };
        Ok((typed.ok_or_else(not_host)?, Target { address, bytes }))
    }

    fn write(&self, target: &Target, host: &[u64]) -> Result<()> {
        // SAFETY: the address is that of a mutable view of `target.bytes` bytes.
        unsafe { self.queue.write(target.address, &dtype::as_bytes(host)[..target.bytes]) }
    }
}

/// Device memory to which a copy goes back.
struct Target {
    address: u64,
    bytes: usize,
}

// SAFETY: as above.
unsafe impl<O: Drafts> Kernel<O> for OnHost<O> {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        self.cuda.enqueue(stream, |queue| self.run(queue, O::arguments(buffers)))
    }
}

impl<O: Drafts> OnHost<O> {
    /// Copies the inputs to the host, drafts there, and copies the changed tensors back.
    fn run(&self, queue: &Queue<'_>, there: Arguments<'_>) -> Result<()> {
        let fetch = Fetch { cuda: &self.cuda, queue };
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        let [a, b, c, d, e, f, g, h, i, drafts, this_time, flags] = &mut *tensors;
        let (draft_tokens, drafts_there) = fetch.read_mut(there.draft_tokens, drafts)?;
        let (this_time_here, this_time_there) = fetch.read_mut(there.this_time, this_time)?;
        let (flags_here, flags_there) =
            there.flags.map(|view| fetch.read_mut(view, flags)).transpose()?.unzip();
        let here = Arguments {
            input_ids: fetch.read(there.input_ids, a)?,
            input_ids_len: fetch.read(there.input_ids_len, b)?,
            generated: fetch.read(there.generated, c)?,
            starts: fetch.read_option(there.starts, d)?,
            steps: fetch.read(there.steps, e)?,
            max_dec_len: fetch.read(there.max_dec_len, f)?,
            draft_token_num: fetch.read_option(there.draft_token_num, g)?,
            draft_tokens,
            this_time: this_time_here,
            encoder: fetch.read_option(there.encoder, h)?,
            decoder: fetch.read(there.decoder, i)?,
            flags: flags_here,
        };
        run(O::rows(&self.plan), O::sizes(&self.plan), here)?;
        fetch.write(&drafts_there, drafts)?;
        fetch.write(&this_time_there, this_time)?;
        flags_there.map_or(Ok(()), |there| fetch.write(&there, flags))
    }
}

// ---- kernels --------------------------------------------------------------------

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    input_ids: u64,
    input_stride: u64,
    generated: u64,
    generated_stride: u64,
    draft_tokens: u64,
    draft_stride: u64,
    prompt_lens: Integers,
    starts: Integers,
    steps: Integers,
    max_dec: Integers,
    draft_token_num: u64,
    this_time: u64,
    encoder: u64,
    decoder: u64,
    flags: u64,
    found: u64,
    wanted: u64,
    input_cols: u64,
    generated_cols: u64,
    draft_cols: u64,
    batch: u32,
    hybrid: u32,
    max_ngram: u32,
    min_ngram: u32,
    max_draft_tokens: i32,
    threshold: i32,
}
const _: () = assert!(size_of::<Params>() == 216);

/// The largest number of requests, which a single block gathers, and the threads of a block that
/// searches.
const THREADS: u32 = 1024;

/// Kernels and shapes, launched in order.
struct Prepared<O: Operator> {
    cuda: Cuda,
    plan: O::Plan,
    kernels: Vec<(Function, Shape)>,
    /// Bytes of the workspace for the found tokens; the counts come after these bytes.
    found: usize,
    workspace: usize,
}

fn one_thread<O: Drafts>(cuda: &Cuda, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
    let rows = O::rows(plan);
    if u32::try_from(rows.batch).is_err() {
        return Err(uncovered(cuda, format!("{} requests", rows.batch)));
    }
    let name = format!("ngram_one_thread_{}", rows.input_ids.dtype.name());
    let kernels = vec![(cuda.function(&KERNELS, &name)?, Shape::new(1, 1))];
    let (cuda, plan) = (cuda.clone(), plan.clone());
    Ok(Box::new(Prepared::<O> { cuda, plan, kernels, found: 0, workspace: 0 }))
}

fn two_phases<O: Drafts>(cuda: &Cuda, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
    let rows = O::rows(plan);
    let Some(batch) = u32::try_from(rows.batch).ok().filter(|&batch| batch <= THREADS) else {
        let words = format!("{} requests, one block gathers at most {THREADS}", rows.batch);
        return Err(uncovered(cuda, words));
    };
    let dtype = rows.input_ids.dtype;
    let kernel = |phase: &str, blocks| {
        let function = cuda.function(&KERNELS, &format!("ngram_{phase}_{}", dtype.name()))?;
        Ok((function, Shape::new(blocks, THREADS)))
    };
    let kernels = vec![kernel("search", batch)?, kernel("gather", batch.min(1))?];
    let found = (rows.batch * rows.draft_tokens.cols * dtype.size()).next_multiple_of(8);
    let workspace = found + rows.batch * 4;
    let (cuda, plan) = (cuda.clone(), plan.clone());
    Ok(Box::new(Prepared::<O> { cuda, plan, kernels, found, workspace }))
}

// SAFETY: as above.
unsafe impl<O: Drafts> Kernel<O> for Prepared<O> {
    fn workspace_size(&self) -> usize {
        self.workspace
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let cuda = &self.cuda;
        let (rows, sizes) = (O::rows(&self.plan), O::sizes(&self.plan));
        let arguments = O::arguments(buffers);
        let found = cuda.workspace(workspace, self.workspace)?;
        let params = Params {
            input_ids: cuda.pointer(arguments.input_ids)?,
            input_stride: rows.input_ids.row_stride as u64,
            generated: cuda.pointer(arguments.generated)?,
            generated_stride: rows.generated.row_stride as u64,
            draft_tokens: cuda.pointer(arguments.draft_tokens)?,
            draft_stride: rows.draft_tokens.row_stride as u64,
            prompt_lens: cuda.integers(arguments.input_ids_len, rows.lengths)?,
            starts: cuda.integers(arguments.starts, rows.lengths)?,
            steps: cuda.integers(arguments.steps, rows.lengths)?,
            max_dec: cuda.integers(arguments.max_dec_len, rows.lengths)?,
            draft_token_num: cuda.pointer(arguments.draft_token_num)?,
            this_time: cuda.pointer(arguments.this_time)?,
            encoder: cuda.pointer(arguments.encoder)?,
            decoder: cuda.pointer(arguments.decoder)?,
            flags: cuda.pointer(arguments.flags)?,
            found,
            wanted: found + self.found as u64,
            input_cols: rows.input_ids.cols as u64,
            generated_cols: rows.generated.cols as u64,
            draft_cols: rows.draft_tokens.cols as u64,
            batch: rows.batch as u32,
            hybrid: u32::from(sizes.max_draft_tokens.is_some()),
            max_ngram: sizes.max_ngram as u32,
            min_ngram: sizes.min_ngram as u32,
            max_draft_tokens: sizes.max_draft_tokens.unwrap_or(0) as i32,
            threshold: sizes.threshold as i32,
        };
        cuda.enqueue(stream, |queue| {
            self.kernels.iter().try_for_each(|(function, shape)| {
                // SAFETY: `Params` is the kernels', field by field; the buffers
                // were checked against the plan, the workspace holds a row of
                // drafts and a count a request, and the kernels cut lengths and
                // steps, which are data, to the rows.
                unsafe { queue.launch(function, *shape, &params) }
            })
        })
    }
}
