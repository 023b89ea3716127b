//! Records dispatches into the caller's encoder or pass, or into an encoder of the backend's own.

use bytemuck::Pod;
use spec_core::stream::Kind;
use spec_core::{Matrix, Result, Route, Status, Stream};
use wgpu::{BindGroupEntry, BindingResource, BufferBinding, CommandEncoder, ComputePass};

use crate::Wgpu;
use crate::adapters::BACKEND;
use crate::memory::{ALIGNMENT, Region};
use crate::shader::{Access, Program};

/// The largest number of storage buffers of a dispatch under WebGPU's default limits. The struct
/// `At` has one field for each of these buffers and none for further buffers.
pub(crate) const MAX_BINDINGS: usize = 8;

impl Wgpu {
    /// A stream that records into the caller's encoder, which the caller submits. Calls of several
    /// operators in one encoder run in order. A call that fails may have recorded a part of its
    /// work: do not submit the encoder then. Descriptors of other devices refuse the stream.
    ///
    /// # Safety
    /// This handle's [`device`](Self::device) must have made the encoder. wgpu looks its objects up
    /// by number: it would take an encoder of another `wgpu::Instance` for whatever object has the
    /// same number in its own instance.
    pub unsafe fn encoder<'s>(&self, encoder: &'s mut CommandEncoder) -> Stream<'s> {
        // SAFETY: the caller promised that this handle's device made the encoder.
        unsafe { Stream::from_object(self.0.info.device, encoder) }
    }

    /// A stream that records into a compute pass that the caller has opened and made `'static` by
    /// [`forget_lifetime`](ComputePass::forget_lifetime). For several calls a pass is cheaper than
    /// [`encoder`](Self::encoder), since each pass costs the device a few microseconds. A call
    /// leaves its own pipeline and bind group 0 set in the pass.
    ///
    /// # Safety
    /// This handle's device must have made the encoder that the pass belongs to, as for
    /// [`encoder`](Self::encoder).
    pub unsafe fn pass<'s>(&self, pass: &'s mut ComputePass<'static>) -> Stream<'s> {
        // SAFETY: the caller promised that this handle's device made the encoder of the pass.
        unsafe { Stream::from_object(self.0.info.device, pass) }
    }
}

/// What dispatches are recorded into.
pub(crate) struct Recorder<'r> {
    gpu: &'r Wgpu,
    to: Target<'r>,
}

enum Target<'r> {
    Pass(&'r mut ComputePass<'static>),
    /// A list of the dispatches, which do not run.
    Route(&'r mut Route),
}

impl Wgpu {
    /// Lets `work` record its dispatches, and then submits them if the stream is the backend's own.
    /// Each dispatch sees what earlier dispatches of the pass wrote.
    pub(crate) fn record(
        &self,
        label: &'static str,
        stream: Stream<'_>,
        work: impl FnOnce(&mut Recorder<'_>) -> Result<()>,
    ) -> Result<()> {
        let kind = match stream.into_kind() {
            Kind::Route(route) => {
                return work(&mut Recorder { gpu: self, to: Target::Route(route) });
            }
            kind => kind,
        };
        let fill = |pass: &mut ComputePass<'static>| {
            work(&mut Recorder { gpu: self, to: Target::Pass(pass) })
        };
        let begin = |encoder: &mut CommandEncoder| {
            let descriptor =
                wgpu::ComputePassDescriptor { label: Some(label), timestamp_writes: None };
            encoder.begin_compute_pass(&descriptor).forget_lifetime()
        };
        let object = match kind {
            Kind::Own => {
                return self.guarded(|| {
                    let descriptor = wgpu::CommandEncoderDescriptor { label: Some(label) };
                    let mut encoder = self.0.device.create_command_encoder(&descriptor);
                    // The pass is dropped, and so ended, before the encoder is finished.
                    fill(&mut begin(&mut encoder))?;
                    self.0.queue.submit([encoder.finish()]);
                    Ok(())
                });
            }
            Kind::Object { device, object } if device == self.0.info.device => object,
            Kind::Object { device, .. } | Kind::Raw { device, .. } => {
                let status = if device.backend() == BACKEND {
                    Status::BadParam
                } else {
                    Status::DeviceTypeNotSupported
                };
                let words = format!("`stream` belongs to {device}");
                return Err(self.error(status, words));
            }
            _ => return Err(self.other_stream()),
        };
        if let Some(encoder) = object.downcast_mut::<CommandEncoder>() {
            return self.guarded(|| fill(&mut begin(encoder)));
        }
        match object.downcast_mut::<ComputePass<'static>>() {
            Some(pass) => self.guarded(|| fill(pass)),
            None => Err(self.other_stream()),
        }
    }

    fn other_stream(&self) -> spec_core::Error {
        let words = "the stream is neither this backend's own nor a wgpu encoder or pass";
        self.error(Status::DeviceTypeNotSupported, words)
    }
}

impl Recorder<'_> {
    /// Records a dispatch of `groups` workgroups of `program`. Where one dimension is too short,
    /// the workgroups are spread over two; each computes its number with `group_index` and returns
    /// if the number is not below `params.at.groups`.
    ///
    /// `regions` are bound from `@binding(1)` on. `@binding(0)` holds the struct `At` (the index of
    /// each region's first element), followed by `parameters`, a `#[repr(C)]` struct of 32-bit
    /// words.
    pub(crate) fn dispatch(
        &mut self,
        program: &Program,
        regions: &[Region<'_>],
        parameters: &impl Pod,
        groups: u64,
    ) -> Result<()> {
        debug_assert_eq!(regions.len(), program.bindings().len());
        if groups == 0 {
            return Ok(());
        }
        let [x, y] = self.grid(groups)?;
        let pass = match &mut self.to {
            Target::Pass(pass) => pass,
            Target::Route(route) => {
                let s = if groups == 1 { "" } else { "s" };
                let words = format_args!("{groups} workgroup{s}{}", program.variant());
                route.push(&program.full_name(), words);
                return Ok(());
            }
        };
        let shared = is_shared(regions, program.bindings());
        let mut words = [0; MAX_BINDINGS + 4];
        for (word, region) in words.iter_mut().zip(regions.iter().take(MAX_BINDINGS)) {
            *word = region.first();
        }
        words[MAX_BINDINGS + 1] = groups as u32;
        let words = [&words[..], bytemuck::cast_slice(bytemuck::bytes_of(parameters))].concat();
        let gpu = self.gpu;
        let uniform = gpu.uniform(&words);
        let mut entries =
            vec![BindGroupEntry { binding: 0, resource: uniform.as_entire_binding() }];
        for (i, (region, access)) in regions.iter().zip(program.bindings()).enumerate() {
            let access = if shared { Access::Write } else { *access };
            let resource = BindingResource::Buffer(gpu.bind(region, i, access)?);
            entries.push(BindGroupEntry { binding: i as u32 + 1, resource });
        }
        let pipeline = program.pipeline(&gpu.0.device, &gpu.0.programs, shared);
        let group = gpu.0.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(program.name()),
            layout: &pipeline.layout,
            entries: &entries,
        });
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(x, y, 1);
        Ok(())
    }

    fn grid(&self, groups: u64) -> Result<[u32; 2]> {
        let limit = u64::from(self.gpu.0.limits.max_compute_workgroups_per_dimension);
        let y = groups.div_ceil(limit);
        if y > limit || groups > u64::from(u32::MAX) {
            let words = format!("{groups} workgroups are more than {limit} x {limit}");
            return Err(self.gpu.error(Status::NotImplemented, words));
        }
        Ok([groups.div_ceil(y) as u32, y as u32])
    }
}

/// Whether some buffer is both read and written by a dispatch.
fn is_shared(regions: &[Region<'_>], bindings: &[Access]) -> bool {
    let of = |access| {
        let pairs = regions.iter().zip(bindings);
        pairs.filter(move |(r, a)| r.bytes > 0 && **a == access).filter_map(|(r, _)| r.buffer)
    };
    of(Access::Read).any(|read| of(Access::Write).any(|written| read == written))
}

impl Wgpu {
    /// The binding that holds `region`: from the last aligned offset at or before the region's
    /// start, to the end of the region's last 32-bit word.
    fn bind<'b>(
        &'b self,
        region: &Region<'b>,
        slot: usize,
        access: Access,
    ) -> Result<BufferBinding<'b>> {
        let Some(buffer) = region.buffer.filter(|_| region.bytes > 0) else {
            let buffer = &self.0.nothing[usize::from(access == Access::Write)];
            let size = wgpu::BufferSize::new(16);
            return Ok(BufferBinding { buffer, offset: slot as u64 * ALIGNMENT, size });
        };
        let offset = region.offset / ALIGNMENT * ALIGNMENT;
        let size = (region.offset + region.bytes).next_multiple_of(4) - offset;
        // A window of `max_binding` may start anywhere after an aligned offset.
        if size > self.0.max_binding + ALIGNMENT
            || size > self.0.limits.max_storage_buffer_binding_size
        {
            let words = format!(
                "{} bytes must be bound at once, but a binding of this device holds {}",
                region.bytes, self.0.max_binding
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(BufferBinding { buffer, offset, size: wgpu::BufferSize::new(size) })
    }

    /// The number of elements of `element_size` bytes that a binding holds, wherever they start.
    pub(crate) fn window(&self, element_size: u64) -> u64 {
        (self.0.max_binding - ALIGNMENT) / element_size
    }

    /// How many blocks of `unit` rows of `matrix` a binding holds; 0 if not even one.
    pub(crate) fn window_of_rows(&self, matrix: &Matrix, unit: u64) -> u64 {
        let elements = self.window(matrix.dtype.size() as u64);
        let (cols, stride) = (matrix.cols as u64, matrix.row_stride as u64);
        if cols > elements {
            return 0;
        }
        if stride == 0 {
            return u64::MAX;
        }
        ((elements - cols) / stride + 1) / unit
    }
}
