//! Times and checks rows on devices, and collects the results in a report.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::report::{DeviceRecord, Measurement, Report, Role, stats};

use super::work::{Effort, Implementation, Inputs, OnDevice};
use super::{Goal, Row, machine};
use spec::ops::deduplicate_topk::Buffers;
use spec::ops::{DeduplicateTopk, NgramMatch, RejectionSample, TopkRouter};
use spec::{Backend, DType, Device, Error, ErrorKind, Handle, Result, Signature, Status};

/// Rows with more bytes than this are not timed on a software renderer, which would take
/// minutes.
const SOFTWARE_MEMORY: u64 = 80 << 20;
/// The largest number of copies of a row's arguments in host memory: the inputs as they were
/// made, the buffers of the CPU backend, and the results that are read back.
const HOST_COPIES: u64 = 3;
/// The goal of the CPU backend: how many times faster than the plain loop, on at most two
/// cores and on more cores.
const CPU_GOAL: [(f64, &str); 2] = [(3.0, "a third"), (5.0, "a fifth")];
/// The goal of wgpu: at most this many times the time of CUDA on the same GPU, plus the time of
/// an empty submission.
const WGPU_GOAL: f64 = 3.0;
/// The goal for the time that a call takes of the calling thread on CUDA, in microseconds.
const CALL_GOAL: f64 = 4.0;
/// The goal for creating an operator whose kernels are loaded already, on every backend, in
/// microseconds.
const CREATE_GOAL: f64 = 2.0;

/// A design is left out if one call would take more than this many seconds.
const PATIENCE: f64 = 10.0;

/// What to time.
#[derive(Debug)]
pub struct Options {
    /// The devices.
    pub handles: Vec<Handle>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether to spend little time on each row.
    pub quick: bool,
    /// Whether to time what a call on a GPU costs the calling thread.
    pub host: bool,
    /// The command that repeats this run.
    pub command: String,
}

/// An event while rows are timed.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The number of rows that are done, and the operator of the next row.
    Row(usize, &'static str),
    /// The next measurement: a row on a device, by one implementation.
    Next(&'a str),
    /// The kernels that the next measurement runs.
    Route(&'a str),
    /// The report so far, after a measurement was added.
    Measured(&'a Report),
    /// A measurement was left out; the text says which and why.
    Skipped(&'a str),
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The measured rows.
    pub report: Report,
    /// Measurements that were left out, and why.
    pub skipped: Vec<String>,
    /// Calls that failed, and wrong results. The report has no rows of them.
    pub failed: Vec<String>,
}

/// Times every row on every device, by every implementation that the device has.
pub fn run(options: &Options, progress: &mut dyn FnMut(Event<'_>)) -> Outcome {
    let watch = machine::Watch::start();
    let mut run = Run {
        options,
        progress,
        outcome: Outcome {
            report: Report { command: options.command.clone(), ..Report::default() },
            skipped: Vec::new(),
            failed: Vec::new(),
        },
        rates: HashMap::new(),
        refused: HashSet::new(),
    };
    let report = &mut run.outcome.report;
    report.date = machine::today();
    report.host = machine::host();
    report.versions.insert("spec".to_owned(), version());
    for handle in &options.handles {
        run.device(handle);
    }
    for (done, row) in options.rows.iter().enumerate() {
        (run.progress)(Event::Row(done, row.operator));
        run.row(row);
    }
    if options.host {
        for handle in &options.handles {
            if !is_gpu(handle) {
                let words = "the calling thread does the work itself";
                (run.progress)(Event::Skipped(&format!("host on {}: {words}", handle.device())));
            } else if let Err(error) = run.host(handle) {
                run.outcome.failed.push(format!("host on {}: {error}", handle.device()));
            }
        }
    }
    run.outcome.report.load = watch.load();
    run.outcome
}

/// The library's version, with a remark if this is a debug build.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    if cfg!(debug_assertions) { version + ", a debug build" } else { version }
}

fn is_gpu(handle: &Handle) -> bool {
    handle.device() != Device::CPU && !handle.info().software
}

struct Run<'r> {
    options: &'r Options,
    progress: &'r mut dyn FnMut(Event<'_>),
    outcome: Outcome,
    rates: HashMap<Key, Rates>,
    /// Shapes that designs refused, each already reported.
    refused: HashSet<String>,
}

/// Operator, device and implementation.
type Key = (&'static str, Device, &'static str);

/// The smallest time per byte of an implementation so far, in seconds: per byte that
/// must move, and per byte of all arguments. Which of the two predicts the time better
/// is not known, so both are kept.
#[derive(Clone, Copy)]
struct Rates {
    moved: f64,
    held: f64,
}

impl Rates {
    fn of(seconds: f64, moved: u64, held: u64) -> Self {
        Rates { moved: seconds / moved.max(1) as f64, held: seconds / held.max(1) as f64 }
    }

    fn least(self, other: Rates) -> Self {
        Rates { moved: self.moved.min(other.moved), held: self.held.min(other.held) }
    }

    /// The least time that another call may take, in seconds.
    fn expect(self, moved: u64, held: u64) -> f64 {
        (self.moved * moved as f64).min(self.held * held as f64)
    }
}

impl Run<'_> {
    fn skip(&mut self, line: String) {
        (self.progress)(Event::Skipped(&line));
        self.outcome.skipped.push(line);
    }

    /// Adds a row to the report, and sets all goals that can be computed now: the goal of a
    /// row may follow from other rows.
    fn measured(&mut self, measurement: Measurement) {
        let report = &mut self.outcome.report;
        report.measurements.push(measurement);
        set_goals(report, &self.options.rows);
        (self.progress)(Event::Measured(report));
    }

    fn device(&mut self, handle: &Handle) {
        let info = handle.info();
        let mut facts: Vec<(String, String)> =
            info.facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        if info.device.backend() == "cuda" {
            facts.extend(machine::nvidia_facts(info.device.index()));
        }
        let mut measured = |what: &str, figure: Result<Option<f64>>| {
            figure.unwrap_or_else(|error| {
                self.skip(format!("the {what} of {}: {error}", info.device));
                None
            })
        };
        let copy_rate = measured("copy rate", handle.copy_rate());
        let overhead = measured("overhead of a call", handle.call_overhead());
        self.outcome.report.devices.push(DeviceRecord {
            id: info.device.to_string(),
            name: info.name.clone(),
            facts: facts.into_iter().map(|(name, value)| (name, (&*value).into())).collect(),
            copy_bytes_per_second: copy_rate,
            overhead_us: overhead.map(|seconds| seconds * 1e6),
        });
    }

    fn row(&mut self, row: &Row) {
        let name = format!("{}, {}", row.operator, row.shape);
        let needed = row.memory.saturating_mul(HOST_COPIES);
        if let Some(free) = machine::free_memory().filter(|free| *free < needed) {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            let (needed, free) = (gib(needed), gib(free));
            self.skip(format!(
                "{name}: {needed:.1} GiB of main memory, of which {free:.1} is free"
            ));
            return;
        }
        let handles: Vec<&Handle> =
            self.options.handles.iter().filter(|handle| self.suits(row, handle)).collect();
        for handle in &self.options.handles {
            if !self.suits(row, handle) {
                let what = if handle.info().software { "a software renderer" } else { "a CPU" };
                let words = format!("{name} on {}: {what} would take minutes", handle.device());
                self.skip(words);
            }
        }
        if handles.is_empty() {
            return;
        }
        let inputs = match row.inputs() {
            Ok(inputs) => inputs,
            Err(why) => return self.skip(format!("{name}: {why}")),
        };
        for handle in handles {
            self.on_device(row, &*inputs, handle);
        }
    }

    /// Handles an error before timing: a row that does not fit the device's memory is
    /// skipped, any other error is a failure.
    fn not_ready(&mut self, name: &str, error: &Error) {
        let line = format!("{name}: {error}");
        match error.kind() {
            ErrorKind::OutOfMemory => self.skip(line),
            _ => self.outcome.failed.push(line),
        }
    }

    /// Whether a device computes the row within about a minute.
    fn suits(&self, row: &Row, handle: &Handle) -> bool {
        let info = handle.info();
        let too_large = info.software && row.memory > SOFTWARE_MEMORY;
        !(too_large || row.slow && (info.software || info.device == Device::CPU))
    }

    fn on_device(&mut self, row: &Row, inputs: &dyn Inputs, handle: &Handle) {
        let name = format!("{}, {} on {}", row.operator, row.shape, handle.device());
        let mut call = match inputs.upload(handle) {
            Ok(call) => call,
            Err(error) => return self.not_ready(&name, &error),
        };
        for (which, implementation) in call.implementations().into_iter().enumerate() {
            let name = format!("{name}, {}", implementation.name);
            (self.progress)(Event::Next(&name));
            let key = (row.operator, handle.device(), implementation.name);
            let moved = inputs.bytes();
            let expected = self.rates.get(&key).map_or(0.0, |r| r.expect(moved, row.memory));
            if expected > PATIENCE && implementation.role != Role::Spec {
                self.skip(format!("{name}: one call would take about {expected:.0} s"));
                continue;
            }
            if let Err(error) = call.select(which) {
                // A shape that the device has no memory or no code for is skipped.
                match error.status() {
                    // A design refuses many rows for the same reason, which is said once.
                    Status::NotImplemented => {
                        let words = format!("{} by {}: {error}", row.operator, implementation.name);
                        if self.refused.insert(words) {
                            self.skip(format!("{name}, and wherever else: {error}"));
                        }
                    }
                    _ => self.not_ready(&name, &error),
                }
                continue;
            }
            if let Some(route) = call.route() {
                (self.progress)(Event::Route(&route));
            }
            match self.measure(row, inputs, handle, &mut *call, implementation) {
                Ok(measurement) => {
                    let seconds = stats::median(&measurement.samples_us) * 1e-6;
                    let rates = Rates::of(seconds, moved, row.memory);
                    let known = self.rates.entry(key).or_insert(rates);
                    *known = known.least(rates);
                    self.measured(measurement);
                }
                Err(why) => self.outcome.failed.push(format!("{name}: {why}")),
            }
        }
    }

    /// Times and checks the selected implementation.
    fn measure(
        &self,
        row: &Row,
        inputs: &dyn Inputs,
        handle: &Handle,
        call: &mut dyn OnDevice,
        implementation: Implementation,
    ) -> std::result::Result<Measurement, String> {
        let effort = Effort::of(handle, self.options.quick);
        let timing = call.time(&effort).map_err(|error| error.to_string())?;
        let check = call.check().map_err(|failure| format!("wrong result{failure}"))?;
        let samples_us: Vec<f64> =
            timing.seconds.iter().map(|s| s * 1e6).filter(|us| *us > 0.0).collect();
        if samples_us.is_empty() {
            return Err("the device's clock is too coarse for it".to_owned());
        }
        Ok(Measurement {
            operator: row.operator.to_owned(),
            shape: row.shape.clone(),
            series: row.series.clone(),
            size: row.size,
            size_unit: row.size_unit.to_owned(),
            device: handle.device().to_string(),
            implementation: implementation.name.to_owned(),
            role: implementation.role,
            method: timing.method,
            samples_us,
            bytes: inputs.bytes(),
            goal_us: None,
            goal_from: None,
            check: check.to_owned(),
        })
    }

    /// Measures the time of the calling thread: for a call (checks, arguments, the
    /// launch), and for creating an operator once more with another number of rows.
    fn host(&mut self, handle: &Handle) -> Result<()> {
        (self.progress)(Event::Next(&format!("host on {}", handle.device())));
        let rounds = if self.options.quick { 10 } else { 50 };
        let operator = DeduplicateTopk::new().mtp_step(1);
        let descriptor = handle.create(&operator, &operator.tensors(1, 4))?;
        let mut workspace = descriptor.workspace(handle)?;
        let indices = handle.upload(&[3i32, 1, 2, 3])?;
        let mut unique = handle.allocate::<i32>(4)?;
        let samples = repeat(rounds, handle, |_| {
            let buffers = Buffers::new(&indices, &mut unique);
            descriptor.call(&mut workspace, buffers)
        })?;
        if unique.to_vec()? != [1, 2, 3, -1] {
            let line = format!("host on {}: wrong result", handle.device());
            self.outcome.failed.push(line);
            return Ok(());
        }
        let goal = (handle.device().backend() == "cuda").then_some(CALL_GOAL);
        let shape = "a call of one launch, until it returns";
        self.host_row(handle, shape, "calls of deduplicate_topk", samples, goal);
        self.create(handle, rounds, DeduplicateTopk::NAME, |rows| {
            handle.create(&operator, &operator.tensors(rows, 2048)).map(drop)
        })?;
        self.create(handle, rounds, TopkRouter::NAME, |rows| {
            let router = TopkRouter::new(8);
            handle.create(&router, &router.tensors(DType::BF16, rows, 256, None)).map(drop)
        })?;
        self.create(handle, rounds, RejectionSample::NAME, |rows| {
            let verify = RejectionSample::lossless(4);
            handle.create(&verify, &verify.tensors(rows, 4 * rows, 32_000)).map(drop)
        })?;
        self.create(handle, rounds, NgramMatch::NAME, |rows| {
            let drafting = NgramMatch::default();
            handle.create(&drafting, &drafting.tensors(rows, 512, 512, 8)).map(drop)
        })
    }

    /// Adds a row with the time of creating an operator. The first creation, which
    /// loads the kernels, is not counted.
    fn create(
        &mut self,
        handle: &Handle,
        rounds: usize,
        operator: &str,
        create: impl Fn(usize) -> Result<()>,
    ) -> Result<()> {
        create(1)?;
        let samples = repeat(rounds, handle, |call| create(2 + call % 97))?;
        let shape = format!("{operator} created again, other rows");
        self.host_row(handle, &shape, "creations", samples, Some(CREATE_GOAL));
        Ok(())
    }

    fn host_row(
        &mut self,
        handle: &Handle,
        shape: &str,
        what: &str,
        samples_us: Vec<f64>,
        goal_us: Option<f64>,
    ) {
        self.measured(Measurement {
            operator: "host".to_owned(),
            shape: shape.to_owned(),
            series: String::new(),
            size: 1.0,
            size_unit: "calls".to_owned(),
            device: handle.device().to_string(),
            implementation: "spec".to_owned(),
            role: Role::Spec,
            method: format!("{HOST_CALLS} {what} on the calling thread, clock"),
            samples_us,
            bytes: 0,
            goal_us,
            goal_from: goal_us.map(|_| "set for the calling thread".to_owned()),
            check: "an exact answer, every element".to_owned(),
        });
    }
}

/// Calls per sample when the calling thread is timed. A stream's queue holds about a thousand
/// launches; this many calls do not fill it, so no call waits for the device.
const HOST_CALLS: usize = 200;

/// The time per call in microseconds; each of `rounds` samples is the mean of [`HOST_CALLS`]
/// calls.
fn repeat(
    rounds: usize,
    handle: &Handle,
    mut call: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut samples_us = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        for number in 0..HOST_CALLS {
            call(number)?;
        }
        samples_us.push(start.elapsed().as_secs_f64() * 1e6 / HOST_CALLS as f64);
        handle.synchronize()?;
    }
    Ok(samples_us)
}

/// Sets the goals of this library's rows: the fixed goals of Hopper GPUs, and the goals that
/// follow from other rows of the same run.
fn set_goals(report: &mut Report, rows: &[Row]) {
    let goals: Vec<_> =
        report.measurements.iter().map(|measurement| goal(report, rows, measurement)).collect();
    for (measurement, goal) in report.measurements.iter_mut().zip(goals) {
        if let (None, Some((us, from))) = (measurement.goal_us, goal) {
            (measurement.goal_us, measurement.goal_from) = (Some(us), Some(from));
        }
    }
}

/// The goal of a row in microseconds, and where it comes from.
fn goal(report: &Report, rows: &[Row], of: &Measurement) -> Option<(f64, String)> {
    if of.role != Role::Spec {
        return None;
    }
    let row = rows.iter().find(|row| row.operator == of.operator && row.shape == of.shape)?;
    let measured = |device: &str, shape: &str, role: Role| {
        let found = report.measurements.iter().find(|m| {
            m.operator == of.operator && m.device == device && m.shape == shape && m.role == role
        });
        found.map(|m| (stats::median(&m.samples_us), &m.implementation))
    };
    let device = report.device(&of.device)?;
    match device.id.split(':').next() {
        Some("cuda") => match &row.goal {
            Goal::Hopper(goal) => {
                let hopper = ["H100", "H200"].iter().any(|model| device.name.contains(model));
                hopper.then(|| (*goal, "set for an H100 or H200".to_owned()))
            }
            Goal::Times(factor, other) => {
                let (other_us, _) = measured(&of.device, other, Role::Spec)?;
                Some((factor * other_us, format!("{factor} times that of {other}")))
            }
            Goal::Unknown => None,
        },
        Some("wgpu") => {
            let same =
                |other: &&DeviceRecord| other.id.starts_with("cuda:") && other.name == device.name;
            let cuda = &report.devices.iter().find(same)?.id;
            let (cuda_us, _) = measured(cuda, &of.shape, Role::Spec)?;
            let from = format!("{WGPU_GOAL} times CUDA's time, and an empty submission");
            Some((WGPU_GOAL * cuda_us + device.overhead_us?, from))
        }
        Some("cpu") => {
            let (plain_us, plain) = measured(&of.device, &of.shape, Role::Seed)
                .or_else(|| measured(&of.device, &of.shape, Role::Baseline))?;
            let (times, part) = CPU_GOAL[usize::from(report.host.cores > 2)];
            Some((plain_us / times, format!("{part} of the time of {plain}")))
        }
        _ => None,
    }
}
