//! Timing on the device: the calls are recorded into one compute pass between two timestamps.

use std::time::{Duration, Instant};

use spec_core::stream::Kind;
use spec_core::{Backend, Result, Status, Stream, Timed, Timing, timing};
use wgpu::{BufferUsages, ComputePassTimestampWrites, Features};

use crate::Wgpu;
use crate::shader::Shader;

/// The smallest number of submissions before the first sample. On a GPU, submissions also go on for
/// `WARM_UP`, because the GPU's clock rate falls while the host prepares the benchmark.
const WARM_UPS: usize = 2;
const WARM_UP: Duration = Duration::from_millis(200);
/// Bytes of the timed copy, more than any cache holds; on a software adapter the copy is smaller.
const COPY: u64 = 256 << 20;
const SOFTWARE_COPY: u64 = 64 << 20;
/// The number of empty submissions that are timed, and the number of samples of the timed copy.
const EMPTY: usize = 50;
const COPIES: usize = 7;

/// Bytes that a workgroup copies: 256 threads, 4 times 16 bytes each.
const PART: u64 = 256 * 4 * 16;

/// The shader that `copy_rate` times.
pub(crate) static COPY_SHADER: Shader =
    Shader { name: "copy", source: include_str!("../shaders/copy.wgsl"), params: ("", "") };

/// Two timestamp queries, and the buffers through which the host reads them.
struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
}

impl Clock {
    fn new(device: &wgpu::Device) -> Self {
        let buffer = |label, usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: 16,
                usage,
                mapped_at_creation: false,
            })
        };
        Clock {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("spec timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: buffer(
                "spec timestamps",
                BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
            ),
            staging: buffer("spec times", BufferUsages::MAP_READ | BufferUsages::COPY_DST),
        }
    }
}

/// Implements [`Wgpu::time`]: measures with timestamps where the device has them, else with the
/// host's clock around whole submissions.
pub(crate) fn time(
    gpu: &Wgpu,
    samples: usize,
    calls: usize,
    work: &mut dyn Timed,
) -> Result<Timing> {
    let calls = calls.max(1);
    let clock = gpu
        .device()
        .features()
        .contains(Features::TIMESTAMP_QUERY)
        .then(|| gpu.guarded(|| Ok(Clock::new(gpu.device()))))
        .transpose()?;
    let mut sample = || -> Result<f64> {
        work.reset()?;
        gpu.synchronize()?;
        let whole = gpu.guarded(|| submission(gpu, clock.as_ref(), calls, work))?;
        Ok(whole / calls as f64)
    };
    let started = Instant::now();
    let warm_up = if gpu.info().software { Duration::ZERO } else { WARM_UP };
    let mut warm_ups = 0;
    while warm_ups < WARM_UPS || started.elapsed() < warm_up {
        sample()?;
        warm_ups += 1;
    }
    let seconds = (0..samples).map(|_| sample()).collect::<Result<_>>()?;
    let by = if clock.is_some() { "timestamps" } else { "clock around the submission" };
    let method = format!("{} in a compute pass, {by}", timing::count(calls));
    Ok(Timing { seconds, method })
}

/// The duration in seconds of one submission that makes `calls` calls.
fn submission(
    gpu: &Wgpu,
    clock: Option<&Clock>,
    calls: usize,
    work: &mut dyn Timed,
) -> Result<f64> {
    let mut commands = gpu.device().create_command_encoder(&Default::default());
    let mut opened = commands
        .begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("spec timed calls"),
            timestamp_writes: clock.map(|clock| ComputePassTimestampWrites {
                query_set: &clock.queries,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            }),
        })
        .forget_lifetime();
    for _ in 0..calls {
        // SAFETY: the handle's device made the encoder of the pass a few lines above.
        work.call(unsafe { gpu.pass(&mut opened) })?;
    }
    // Ends the pass, so that the encoder can be finished.
    drop(opened);
    if let Some(clock) = clock {
        commands.resolve_query_set(&clock.queries, 0..2, &clock.resolved, 0);
        commands.copy_buffer_to_buffer(&clock.resolved, 0, &clock.staging, 0, 16);
    }
    let commands = commands.finish();
    let start = Instant::now();
    gpu.queue().submit([commands]);
    match clock {
        Some(clock) => {
            let mut times = [[0; 8]; 2];
            gpu.read_mapped(&clock.staging, times.as_flattened_mut())?;
            let [start, end] = times.map(u64::from_le_bytes);
            let nanoseconds = gpu.queue().get_timestamp_period();
            Ok(end.saturating_sub(start) as f64 * f64::from(nanoseconds) * 1e-9)
        }
        None => {
            gpu.wait()?;
            Ok(start.elapsed().as_secs_f64())
        }
    }
}

/// The duration in seconds of an empty submission, including the wait for its end.
pub(crate) fn call_overhead(gpu: &Wgpu) -> Result<f64> {
    let mut empty = Vec::new();
    for _ in 0..EMPTY {
        empty.push(wall(gpu, |commands| {
            drop(commands.begin_compute_pass(&Default::default()));
        })?);
    }
    Ok(median(empty))
}

/// Seconds from a submission until the device has finished its work.
fn wall(gpu: &Wgpu, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<f64> {
    gpu.guarded(|| {
        let mut commands = gpu.device().create_command_encoder(&Default::default());
        record(&mut commands);
        let commands = commands.finish();
        let start = Instant::now();
        gpu.queue().submit([commands]);
        gpu.wait()?;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// The rate at which a shader copies, in bytes read and written per second. Operators are shaders
/// too, so this rate bounds theirs; `copy_buffer_to_buffer` is a third as fast on some GPUs.
pub(crate) fn copy_rate(gpu: &Wgpu) -> Result<f64> {
    let device = gpu.device();
    let bytes = if gpu.info().software { SOFTWARE_COPY } else { COPY };
    let bytes = bytes.min(gpu.0.max_binding) / PART * PART;
    // Noise, since some devices compress zeros.
    let noise: Vec<u8> =
        (0..1u32 << 18).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let (pipeline, group) = gpu.guarded(|| {
        let buffer = |label| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let [from, to] = ["spec copied from", "spec copied to"].map(buffer);
        for at in (0..bytes).step_by(noise.len()) {
            let part = noise.len().min((bytes - at) as usize);
            gpu.queue().write_buffer(&from, at, &noise[..part]);
        }
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("spec copy"),
            source: wgpu::ShaderSource::Wgsl(COPY_SHADER.source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("spec copy"),
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("spec copy"),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[(0, &from), (1, &to)].map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            }),
        });
        Ok((pipeline, group))
    })?;
    let mut copy = |stream: Stream<'_>| {
        let Kind::Object { object, .. } = stream.into_kind() else {
            return Err(gpu.error(Status::InternalError, "copies are timed in a pass"));
        };
        if let Some(pass) = object.downcast_mut::<wgpu::ComputePass<'static>>() {
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups((bytes / PART) as u32, 1, 1);
        }
        Ok(())
    };
    let seconds = time(gpu, COPIES, if gpu.info().software { 1 } else { 8 }, &mut copy)?.median();
    if seconds > 0.0 {
        return Ok(2.0 * bytes as f64 / seconds);
    }
    Err(gpu.error(Status::InternalError, "copying took no time"))
}

fn median(seconds: Vec<f64>) -> f64 {
    Timing { seconds, method: String::new() }.median()
}
