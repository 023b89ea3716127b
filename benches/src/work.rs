//! One shape's inputs and right answer, on the host and on a device.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use crate::baselines::{Design, Designs};

use spec::cpu::Cpu;
use spec::cuda::Cuda;
use spec::{
    Buffer, Descriptor, Error, Handle, Portable, Result, Role, Source, Status, Stream, TensorDesc,
    Timed, Timing, View, ViewMut, timing,
};
use spec_conformance::{Argument, Case, Failure, Held, Layout, Subject, compare};

/// Tolerance of float results, relative.
const TOLERANCE: f64 = 2e-5;
/// Inputs in turns shall be this many bytes together: several times what any
/// GPU's cache holds.
const BEYOND_CACHES: u64 = 200 << 20;
/// A call that takes longer than this runs once: other designs', and ours.
const ONCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// A call on a GPU that takes fewer seconds is short: of a graph of few such calls,
/// each would carry a part of the graph's own launch.
const SHORT: f64 = 10e-6;

/// What comes out of a call when all is well.
enum Expected {
    /// What the plain loop makes of the same inputs.
    Plain,
    /// What is known of the inputs by how they were made: the first thing that
    /// is wrong, and in words what results are held against.
    Known(&'static str, Box<Check>),
}

/// The first thing that is wrong with results.
type Check = dyn Fn(&[Argument]) -> Option<Failure> + Send + Sync;

/// One call of an operator on one shape.
pub(crate) struct Work<O> {
    /// Parameters and arguments; outputs hold poison.
    pub(crate) case: Case<O>,
    /// Bytes that must move.
    bytes: u64,
    /// Whether every call shall find its inputs in memory and not in a cache:
    /// GPUs get several copies of them, to use in turns.
    rotated: bool,
    expected: Expected,
    /// The plain loop's results, once they were needed.
    plain: OnceCell<Vec<Argument>>,
}

impl<O> Work<O> {
    pub(crate) fn new(case: Case<O>, bytes: u64) -> Self {
        Work { case, bytes, rotated: false, expected: Expected::Plain, plain: OnceCell::new() }
    }

    /// With inputs that GPUs get several copies of, if so.
    pub(crate) fn rotated(self, rotated: bool) -> Self {
        Work { rotated, ..self }
    }

    /// With an answer that is known: in words, and the first thing that is wrong
    /// with results.
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

/// Whose work a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// As people call it: "spec", "block radix sort, bitmask".
    pub name: &'static str,
    /// What it is to the others.
    pub role: crate::report::Role,
    /// Whether a call waits for the device, so that only the clock can time it.
    waits: bool,
}

impl Implementation {
    /// This library, and where the device does that with dependent launch too.
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

/// How long to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Samples, where they do not take longer than the budget.
    pub samples: usize,
    /// Calls of a sample on a GPU, where they do not take longer than the
    /// budget, ten times as many of a short one; on the CPU, the most.
    pub calls: usize,
    /// The time that all samples together may take.
    pub budget: Duration,
}

impl Effort {
    /// What suits a device.
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

    /// Samples and calls of a sample for a call that takes `once`.
    pub(crate) fn plan(&self, once: Duration, cpu: bool) -> (usize, usize) {
        let once = once.as_secs_f64().max(1e-9);
        let budget = self.budget.as_secs_f64();
        // The clock needs a while; a graph is to hide what launching costs.
        let (wanted, most) = match cpu {
            true => ((1e-4 / once).ceil() as usize, self.calls),
            false if once < SHORT => (10 * self.calls, 10 * self.calls),
            false => (self.calls, self.calls),
        };
        let affordable = (budget / once / 5.0) as usize;
        let calls = wanted.min(affordable).clamp(1, most);
        let samples = (budget / once / calls as f64) as usize;
        // Below five no two runs can be told apart.
        let least = if once > 1.0 { 3 } else { 5 };
        (samples.clamp(least, self.samples), calls)
    }
}

/// Inputs of one shape: made once, used on every device.
pub trait Inputs {
    /// Bytes that one call must move: what it reads and writes at least.
    fn bytes(&self) -> u64;

    /// Brings them to a device.
    ///
    /// # Errors
    /// Status 1 where the device's memory is too small.
    fn upload<'i>(&'i self, handle: &Handle) -> Result<Box<dyn OnDevice + 'i>>;
}

/// Inputs on a device, to be called with.
///
/// A selected implementation is called through [`Timed`]; what it then left in
/// its outputs is what [`check`](Self::check) looks at.
pub trait OnDevice: Timed {
    /// Everything here that does this work: this library first.
    fn implementations(&self) -> Vec<Implementation>;

    /// Creates one of them for this shape, and overwrites what another left in
    /// the outputs.
    ///
    /// # Errors
    /// Those of creating it: 2 where it does not do this shape.
    fn select(&mut self, which: usize) -> Result<()>;

    /// Times the one that is selected.
    ///
    /// # Errors
    /// Those of the call, and status 1 when the device fails.
    fn time(&mut self, effort: &Effort) -> Result<Timing>;

    /// Holds what the last call wrote against what it should have, every
    /// element, and says what that was.
    ///
    /// # Errors
    /// The first element that is wrong.
    fn check(&self) -> Result<&'static str, Failure>;
}

impl<O: Subject + Designs + Portable> Inputs for Work<O> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn upload<'i>(&'i self, handle: &Handle) -> Result<Box<dyn OnDevice + 'i>> {
        Ok(Box::new(Uploaded::new(self, handle)?))
    }
}

impl<O: Subject + Designs + Portable> Work<O> {
    /// What the plain loop makes of the inputs.
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

/// Where the plain loop is among the implementations on the CPU.
const PLAIN: usize = 1;
/// Where this library with dependent launch is among those on CUDA.
pub(crate) const DEPENDENT: usize = 1;

/// An argument on a device: one buffer, or several to use in turns.
pub(super) struct Slot {
    /// Where it is among the case's arguments.
    pub(super) argument: usize,
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) held: Vec<Held>,
}

/// Work on a device.
pub(super) struct Uploaded<'i, O: Subject> {
    work: &'i Work<O>,
    handle: Handle,
    designs: Vec<Design<O>>,
    /// In the order in which the operator asks for its arguments.
    pub(super) slots: Vec<Slot>,
    tensors: O::Tensors,
    selected: usize,
    /// Implementations of this library, which come first.
    own: usize,
    /// The implementation that is selected, and its workspace.
    ready: Option<(Descriptor<O>, Buffer<u8>)>,
    /// Calls since the last reset.
    calls: usize,
    /// Whether no call was made since outputs got their poison.
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

    /// Gives what calls change in place a buffer a call, and large inputs as
    /// many as no cache holds.
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

    /// How many copies of the inputs are used in turns.
    fn turns(&self) -> usize {
        let inputs = self.slots.iter().filter(|slot| slot.role == Role::Input);
        inputs.map(|slot| slot.held.len()).max().unwrap_or(1)
    }

    /// Overwrites what calls left in the outputs, so that nobody takes it for
    /// what others write.
    fn poison(&mut self) -> Result<()> {
        if !self.clean {
            self.restore(Role::Output)?;
        }
        self.clean = true;
        Ok(())
    }

    /// Puts the case's data into every buffer of some role.
    fn restore(&mut self, role: Role) -> Result<()> {
        for slot in self.slots.iter_mut().filter(|slot| slot.role == role) {
            for held in &mut slot.held {
                held.write(self.work.case.arguments[slot.argument].tensor.data.bytes())?;
            }
        }
        Ok(())
    }

    /// Times samples of so many calls, on the device or by the clock.
    fn measure(&mut self, by_clock: bool, samples: usize, calls: usize) -> Result<Timing> {
        self.provide(calls)?;
        // A graph is captured before the first reset of its samples.
        self.reset()?;
        let handle = self.handle.clone();
        let timing = if by_clock {
            timing::by_clock(&|| handle.synchronize(), samples, calls, self)
        } else {
            // SAFETY: buffers stay where they are from `provide` on: `reset` writes
            // to them, and nobody else has them.
            unsafe { handle.time(samples, calls, self) }
        };
        self.calls = calls;
        timing
    }

    /// What was written, by the call of that number where each has a buffer.
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
        // What this call wrote shall not be taken for what timed calls write.
        self.poison()?;
        let waits = self.implementations()[self.selected].waits;
        // The first call was slower than those that follow.
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
        // Where calls change their arguments in place, each has its own.
        let each = self.slots.iter().any(|slot| slot.role == Role::InPlace);
        for call in if each { 0..calls } else { calls - 1..calls } {
            if let Some(failure) = self.wrong(&self.results(call)?)? {
                return Err(failure);
            }
        }
        let plain = self.handle.device() == spec::Device::CPU && self.selected == PLAIN;
        Ok(match &self.work.expected {
            Expected::Known(words, _) => words,
            // Which was found to be the same.
            Expected::Plain if plain => "CPU backend, every element",
            Expected::Plain => "plain sequential loop, every element",
        })
    }
}

/// Descriptors by name, and in which order they were asked for.
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

/// Buffers in the order in which they are asked for, so that naming them costs
/// a timed call next to nothing.
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
