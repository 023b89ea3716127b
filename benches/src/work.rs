//! The inputs and the expected results of one shape, on the host and on a device.

use std::cell::OnceCell;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::baselines::{Design, Designs};
use crate::files;

use spec::cpu::Cpu;
use spec::cuda::Cuda;
use spec::{
    Buffer, Descriptor, Error, Handle, Portable, Result, Role, Source, Status, Stream, TensorDesc,
    Timed, Timing, View, ViewMut, timing,
};
use spec_conformance::{Argument, Case, Failure, Held, Layout, Subject, compare};

/// The relative tolerance for float results.
const TOLERANCE: f64 = 2e-5;
/// The size of all copies of rotated inputs together, in bytes: several times the cache of
/// any GPU.
const BEYOND_CACHES: u64 = 200 << 20;
/// A call that takes longer than this is timed only once: the first limit is for other designs,
/// the second for this library.
const ONCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// A call on a GPU is short if it takes fewer seconds than this. Short calls need a graph of many
/// calls, because the time of the graph's own launch is spread over its calls.
const SHORT: f64 = 10e-6;

/// The expected results of a call.
enum Expected {
    /// The results of the plain loop for the same inputs.
    Plain,
    /// An answer that is known from how the inputs were made: a text that says what
    /// results are compared with, and a function that finds the first wrong element.
    Known(&'static str, Box<Check>),
}

/// Finds the first wrong element of results.
type Check = dyn Fn(&[Argument]) -> Option<Failure> + Send + Sync;

/// One call of an operator on one shape.
pub(crate) struct Work<O> {
    /// The operator's parameters and arguments; outputs are filled with poison values.
    pub(crate) case: Case<O>,
    /// Bytes that a call must read and write at least.
    bytes: u64,
    /// Whether every call must find its inputs in memory and not in a cache. If so,
    /// a GPU gets several copies of the inputs, which calls use in turn.
    rotated: bool,
    expected: Expected,
    /// The plain loop's results, computed on first use.
    plain: OnceCell<Vec<Argument>>,
}

impl<O> Work<O> {
    pub(crate) fn new(case: Case<O>, bytes: u64) -> Self {
        Work { case, bytes, rotated: false, expected: Expected::Plain, plain: OnceCell::new() }
    }

    /// The same work; if `rotated`, GPUs get several copies of the inputs.
    pub(crate) fn rotated(self, rotated: bool) -> Self {
        Work { rotated, ..self }
    }

    /// The same work with a known answer: `words` say what results are compared with,
    /// and `check` finds the first wrong element.
    pub(crate) fn expecting(
        self,
        words: &'static str,
        check: impl Fn(&[Argument]) -> Option<Failure> + Send + Sync + 'static,
    ) -> Self {
        Work { expected: Expected::Known(words, Box::new(check)), ..self }
    }
}

fn upload(handle: &Handle, data: &spec_conformance::Data) -> Result<Held> {
    Held::upload(handle, data.dtype(), data.bytes())
}

/// The implementation that a measurement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// Its name in tables: "spec", "block radix sort, bitmask".
    pub name: &'static str,
    /// Its role among the implementations of an operator.
    pub role: crate::report::Role,
    /// Whether a call waits for the device, so that only the host's clock can time it.
    waits: bool,
}

impl Implementation {
    /// This library, and on CUDA this library with dependent launch too.
    pub(crate) fn own(handle: &Handle) -> impl Iterator<Item = Implementation> + use<> {
        let plain = Implementation { name: "spec", role: crate::report::Role::Spec, waits: false };
        let dependent = Implementation {
            name: "spec, dependent launch",
            role: crate::report::Role::Variant,
            ..plain
        };
        let overlaps = handle.backend_as::<Cuda>().is_some();
        [plain, dependent].into_iter().take(1 + usize::from(overlaps))
    }

    /// A part of what a row times, by itself.
    pub(crate) fn part(name: &'static str) -> Implementation {
        Implementation { name, role: crate::report::Role::Variant, waits: false }
    }
}

/// How many samples to take of a call, and how much time to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The number of samples, if they do not exceed the budget.
    pub samples: usize,
    /// Calls per sample on a GPU, if they do not exceed the budget; ten times as many
    /// for a short call. On the CPU, the largest number of calls per sample.
    pub calls: usize,
    /// The time that all samples together may take.
    pub budget: Duration,
}

impl Effort {
    /// The effort that suits a device.
    pub fn of(handle: &Handle, quick: bool) -> Effort {
        let info = handle.info();
        let cpu = info.device == spec::Device::CPU;
        let (samples, calls, seconds) = match (cpu, info.software, quick) {
            (true, _, false) => (31, 64, 1.0),
            (true, _, true) => (7, 16, 0.1),
            (false, true, false) => (7, 2, 2.0),
            (false, true, true) => (5, 1, 0.2),
            (false, false, false) => (15, 20, 0.5),
            (false, false, true) => (9, 20, 0.1),
        };
        Effort { samples, calls, budget: Duration::from_secs_f64(seconds) }
    }

    /// The number of samples, and of calls per sample, for a call that takes `once`.
    pub(crate) fn plan(&self, once: Duration, cpu: bool) -> (usize, usize) {
        let once = once.as_secs_f64().max(1e-9);
        let budget = self.budget.as_secs_f64();
        // A sample must be long enough for the host's clock; on a GPU, a graph must have enough
        // calls to hide the cost of launching it.
        let (wanted, max) = match cpu {
            true => ((1e-4 / once).ceil() as usize, self.calls),
            false if once < SHORT => (10 * self.calls, 10 * self.calls),
            false => (self.calls, self.calls),
        };
        let affordable = (budget / once / 5.0) as usize;
        let calls = wanted.min(affordable).clamp(1, max);
        let samples = (budget / once / calls as f64) as usize;
        // With fewer than five samples, two runs cannot be told apart.
        let least = if once > 1.0 { 3 } else { 5 };
        (samples.clamp(least, self.samples), calls)
    }
}

/// The inputs of one shape, made once and used on every device.
pub trait Inputs {
    /// Bytes that a call must read and write at least.
    fn bytes(&self) -> u64;

    /// Uploads the inputs to a device.
    ///
    /// # Errors
    /// Status 1 if the device's memory is too small.
    fn upload<'i>(&'i self, handle: &Handle) -> Result<Box<dyn OnDevice + 'i>>;

    /// Writes each input to a folder as `NAME.npy`, and the results of a single operator, made on
    /// the CPU and checked, as `expected/NAME.npy`.
    ///
    /// # Errors
    /// A sentence, if a file cannot be written or the results are wrong.
    fn save(&self, folder: &Path) -> Result<(), String>;
}

/// Inputs on a device, and the implementations that can be called with them.
///
/// The selected implementation is called through [`Timed`]. [`check`](Self::check)
/// then looks at the results that the call left in the outputs.
pub trait OnDevice: Timed {
    /// All implementations that the device has for this work, this library first.
    fn implementations(&self) -> Vec<Implementation>;

    /// Creates the implementation with number `which` for this shape, and overwrites
    /// the results that another implementation left in the outputs.
    ///
    /// # Errors
    /// The errors of creating the implementation: status 2 if it does not support
    /// this shape.
    fn select(&mut self, which: usize) -> Result<()>;

    /// The kernels that a call of the selected implementation runs, where it can say them; a chain
    /// of several operators says nothing.
    fn route(&self) -> Option<String> {
        None
    }

    /// Times the selected implementation.
    ///
    /// # Errors
    /// The errors of the call, and status 1 when the device fails.
    fn time(&mut self, effort: &Effort) -> Result<Timing>;

    /// Compares every element that the last call wrote with the expected element, and
    /// returns a text that says what the results were compared with.
    ///
    /// # Errors
    /// The first wrong element.
    fn check(&self) -> Result<&'static str, Failure>;
}

impl<O: Subject + Designs + Portable> Inputs for Work<O> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn upload<'i>(&'i self, handle: &Handle) -> Result<Box<dyn OnDevice + 'i>> {
        Ok(Box::new(Uploaded::new(self, handle)?))
    }

    fn save(&self, folder: &Path) -> Result<(), String> {
        for argument in self.case.arguments.iter().filter(|argument| argument.role != Role::Output)
        {
            files::write(folder, argument.name, &argument.tensor)?;
        }
        let expected = folder.join("expected");
        std::fs::create_dir_all(&expected).map_err(|error| error.to_string())?;
        for result in self.results().map_err(|failure| failure.to_string())? {
            files::write(&expected, result.name, &result.tensor)?;
        }
        Ok(())
    }
}

impl<O: Subject + Designs + Portable> Work<O> {
    /// The results of this library on the CPU, which are checked.
    fn results(&self) -> Result<Vec<Argument>, Failure> {
        let failed = |error: Error| Failure::error("the CPU", &error);
        let cpu = Handle::cpu().map_err(failed)?;
        let mut uploaded = Uploaded::new(self, &cpu).map_err(failed)?;
        uploaded.select(0).map_err(failed)?;
        uploaded.call(Stream::default()).map_err(failed)?;
        uploaded.check()?;
        uploaded.results(0)
    }

    /// The results of the plain loop for these inputs.
    fn plain(&self) -> Result<&[Argument], Failure> {
        if let Some(plain) = self.plain.get() {
            return Ok(plain);
        }
        let failed = |error: Error| Failure::error("the plain loop", &error);
        let cpu = Handle::cpu().map_err(failed)?;
        let mut uploaded = Uploaded::new(self, &cpu).map_err(failed)?;
        uploaded.select(PLAIN).map_err(failed)?;
        uploaded.call(Stream::default()).map_err(failed)?;
        let results = uploaded.results(0)?;
        Ok(self.plain.get_or_init(|| results))
    }
}

/// The number of the plain loop among the implementations on the CPU.
const PLAIN: usize = 1;
/// The number of this library with dependent launch among the implementations on CUDA.
pub(crate) const DEPENDENT: usize = 1;

/// An argument on a device: one buffer, or several buffers that calls use in turn.
pub(super) struct Slot {
    /// The index of the argument among the case's arguments.
    pub(super) argument: usize,
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) held: Vec<Held>,
}

/// The arguments of some work on a device, and the selected implementation.
pub(super) struct Uploaded<'i, O: Subject> {
    work: &'i Work<O>,
    handle: Handle,
    designs: Vec<Design<O>>,
    /// The arguments, in the order in which the operator asks for them.
    pub(super) slots: Vec<Slot>,
    tensors: O::Tensors,
    selected: usize,
    /// How many implementations are this library's; they come first.
    own: usize,
    /// The selected implementation and its workspace.
    ready: Option<(Descriptor<O>, Buffer<u8>)>,
    /// Calls since the last reset.
    calls: usize,
    /// Whether no call was made since the outputs were filled with poison values.
    clean: bool,
}

impl<'i, O: Subject + Designs + Portable> Uploaded<'i, O> {
    pub(super) fn new(work: &'i Work<O>, handle: &Handle) -> Result<Self> {
        let mut recorded = Recorded { case: &work.case, order: Vec::new() };
        let tensors = O::tensors_from(&mut recorded)?;
        let mut slots = Vec::new();
        for argument in recorded.order {
            let Argument { name, role, tensor } = &work.case.arguments[argument];
            let held = vec![upload(handle, &tensor.data)?];
            slots.push(Slot { argument, name, role: *role, held });
        }
        let designs = if let Some(cuda) = handle.backend_as::<Cuda>() {
            O::on_cuda(cuda)
        } else if let Some(cpu) = handle.backend_as::<Cpu>() {
            O::on_cpu(cpu)
        } else {
            Vec::new()
        };
        Ok(Uploaded {
            work,
            handle: handle.clone(),
            designs,
            slots,
            tensors,
            selected: 0,
            own: Implementation::own(handle).count(),
            ready: None,
            calls: 0,
            clean: true,
        })
    }

    /// Gives each in-place argument one buffer per call, and gives large inputs so
    /// many copies that no cache holds all of them.
    fn provide(&mut self, calls: usize) -> Result<()> {
        let info = self.handle.info();
        let rotated = self.work.rotated && !info.software && info.device != spec::Device::CPU;
        let turns = match rotated {
            true => BEYOND_CACHES.div_ceil(self.work.bytes.max(1)).min(calls as u64) as usize,
            false => 1,
        };
        for slot in &mut self.slots {
            let data = &self.work.case.arguments[slot.argument].tensor.data;
            let wanted = match slot.role {
                Role::Input if data.len() > 1 << 14 => turns,
                Role::InPlace => calls,
                _ => 1,
            };
            while slot.held.len() < wanted {
                slot.held.push(upload(&self.handle, data)?);
            }
        }
        Ok(())
    }

    /// How many copies of the inputs calls use in turn.
    fn turns(&self) -> usize {
        let inputs = self.slots.iter().filter(|slot| slot.role == Role::Input);
        inputs.map(|slot| slot.held.len()).max().unwrap_or(1)
    }

    /// Fills the outputs with poison values, so that results of one implementation are
    /// not taken for results of another.
    fn poison(&mut self) -> Result<()> {
        if !self.clean {
            self.restore(Role::Output)?;
        }
        self.clean = true;
        Ok(())
    }

    /// Copies the case's data into every buffer of arguments with this role.
    fn restore(&mut self, role: Role) -> Result<()> {
        for slot in self.slots.iter_mut().filter(|slot| slot.role == role) {
            for held in &mut slot.held {
                held.write(self.work.case.arguments[slot.argument].tensor.data.bytes())?;
            }
        }
        Ok(())
    }

    /// Times `samples` samples of `calls` calls each, on the device or by the host's clock.
    fn measure(&mut self, by_clock: bool, samples: usize, calls: usize) -> Result<Timing> {
        self.provide(calls)?;
        // Capturing a graph calls the work before the first sample is reset.
        self.reset()?;
        let handle = self.handle.clone();
        let timing = if by_clock {
            timing::by_clock(&|| handle.synchronize(), samples, calls, self)
        } else {
            // SAFETY: after `provide`, all buffers stay where they are: `reset` only writes
            // to them, and nothing else uses them.
            unsafe { handle.time(samples, calls, self) }
        };
        self.calls = calls;
        timing
    }

    /// The results in the outputs. Of arguments with a buffer per call, the buffer of call
    /// number `call` is read.
    fn results(&self, call: usize) -> Result<Vec<Argument>, Failure> {
        let failed = |error| Failure::error("read", &error);
        self.handle.synchronize().map_err(failed)?;
        let mut results = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.role != Role::Input) {
            let argument = &self.work.case.arguments[slot.argument];
            let data =
                slot.held[call % slot.held.len()].read(&argument.tensor.data).map_err(failed)?;
            let shape = argument.tensor.shape.clone();
            let tensor = spec_conformance::Tensor { data, shape };
            results.push(Argument { name: slot.name, role: slot.role, tensor });
        }
        O::trim(&mut results);
        Ok(results)
    }

    fn wrong(&self, results: &[Argument]) -> Result<Option<Failure>, Failure> {
        Ok(match &self.work.expected {
            Expected::Plain => compare(results, self.work.plain()?, |_| Some(TOLERANCE)),
            Expected::Known(_, check) => check(results),
        })
    }
}

impl<O: Subject + Designs + Portable> Timed for Uploaded<'_, O> {
    fn call(&mut self, stream: Stream<'_>) -> Result<()> {
        let device = self.handle.device();
        let bug = |words: &str| Error::device(device, Status::InternalError, words.to_owned());
        let (descriptor, workspace) =
            self.ready.as_mut().ok_or_else(|| bug("no implementation is selected"))?;
        let mut slots = InOrder { slots: self.slots.iter_mut(), call: self.calls };
        let buffers = O::buffers_from(&mut slots)?;
        self.calls += 1;
        self.clean = false;
        let dependent = self.selected == DEPENDENT && self.selected < self.own;
        let stream = if dependent { stream.dependent_launch() } else { stream };
        descriptor.call_on(workspace, buffers, stream)
    }

    fn reset(&mut self) -> Result<()> {
        self.calls = 0;
        self.restore(Role::InPlace)
    }
}

impl<O: Subject + Designs + Portable> OnDevice for Uploaded<'_, O> {
    fn implementations(&self) -> Vec<Implementation> {
        let designs = self.designs.iter().map(|design| Implementation {
            name: design.name,
            role: match design.role {
                crate::baselines::Role::Seed => crate::report::Role::Seed,
                crate::baselines::Role::Baseline => crate::report::Role::Baseline,
            },
            waits: design.waits,
        });
        Implementation::own(&self.handle).chain(designs).collect()
    }

    fn select(&mut self, which: usize) -> Result<()> {
        self.ready = None;
        let operator = &self.work.case.operator;
        let descriptor = match which.checked_sub(self.own) {
            None => self.handle.create(operator, &self.tensors)?,
            Some(design) => {
                Descriptor::create(&*self.designs[design].backend, operator, &self.tensors)?
            }
        };
        let workspace = descriptor.workspace(&self.handle)?;
        self.ready = Some((descriptor, workspace));
        self.selected = which;
        self.poison()?;
        self.reset()
    }

    fn route(&self) -> Option<String> {
        let (descriptor, _) = self.ready.as_ref()?;
        descriptor.route().ok().map(|route| route.to_string())
    }

    fn time(&mut self, effort: &Effort) -> Result<Timing> {
        let cpu = self.handle.device() == spec::Device::CPU;
        self.reset()?;
        self.handle.synchronize()?;
        let start = Instant::now();
        self.call(Stream::default())?;
        self.handle.synchronize()?;
        let mut once = start.elapsed();
        if once > ONCE[usize::from(self.selected < self.own)] {
            let method = "1 call, clock, its first".to_owned();
            return Ok(Timing { seconds: vec![once.as_secs_f64()], method });
        }
        // The results of this call must not be taken for results of the timed calls.
        self.poison()?;
        let waits = self.implementations()[self.selected].waits;
        // The first call is slower than later calls, so a short call is timed again.
        if once < Duration::from_millis(100) {
            once = Duration::from_secs_f64(self.measure(waits, 1, 1)?.median());
        }
        let (samples, calls) = effort.plan(once, cpu || waits);
        let mut timing = self.measure(waits, samples, calls)?;
        if self.turns() > 1 {
            timing.method += &format!(", inputs in {} copies used in turns", self.turns());
        }
        Ok(timing)
    }

    fn check(&self) -> Result<&'static str, Failure> {
        let calls = self.calls.max(1);
        // In-place arguments have one buffer per call, so each call has results of its own.
        let each = self.slots.iter().any(|slot| slot.role == Role::InPlace);
        for call in if each { 0..calls } else { calls - 1..calls } {
            if let Some(failure) = self.wrong(&self.results(call)?)? {
                return Err(failure);
            }
        }
        let plain = self.handle.device() == spec::Device::CPU && self.selected == PLAIN;
        Ok(match &self.work.expected {
            Expected::Known(words, _) => words,
            // The expected results are the plain loop's own, so name the other side.
            Expected::Plain if plain => "CPU backend, every element",
            Expected::Plain => "plain sequential loop, every element",
        })
    }
}

/// Finds tensor descriptors by name, and records the order in which the operator asks for them.
struct Recorded<'c, O> {
    case: &'c Case<O>,
    order: Vec<usize>,
}

impl<O: Subject> Source<TensorDesc, TensorDesc> for Recorded<'_, O> {
    fn input(&mut self, argument: &'static spec::Argument) -> Option<TensorDesc> {
        let at = self.case.arguments.iter().position(|a| a.name == argument.name)?;
        self.order.push(at);
        Some(self.case.arguments[at].tensor.desc(Layout::PACKED))
    }

    fn output(&mut self, argument: &'static spec::Argument) -> Option<TensorDesc> {
        self.input(argument)
    }
}

/// Buffers in the recorded order of arguments, so that a timed call need not search for
/// them by name.
struct InOrder<'a> {
    slots: std::slice::IterMut<'a, Slot>,
    call: usize,
}

impl<'a> InOrder<'a> {
    fn next(&mut self, name: &str) -> Option<&'a mut Held> {
        if self.slots.as_slice().first()?.name != name {
            return None;
        }
        let held = &mut self.slots.next()?.held;
        let turn = self.call % held.len();
        held.get_mut(turn)
    }
}

impl<'a> Source<View<'a>, ViewMut<'a>> for InOrder<'a> {
    fn input(&mut self, argument: &'static spec::Argument) -> Option<View<'a>> {
        self.next(argument.name).map(|held| held.view())
    }

    fn output(&mut self, argument: &'static spec::Argument) -> Option<ViewMut<'a>> {
        self.next(argument.name).map(Held::view_mut)
    }
}
