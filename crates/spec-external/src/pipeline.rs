//! The pipeline: sorts all keys at once if they fit into memory; otherwise writes sorted runs and
//! merges them.

use std::sync::Mutex;
use std::time::Instant;

use spec::ops::Unique as Operator;
use spec::{DType, DeviceInfo, Supports};

use crate::drain::{self, Team};
use crate::feed::Feed;
use crate::lane::{Lane, Sizes, Workspace};
use crate::merge::{Shape, merge};
use crate::run::{Run, RunSink};
use crate::staging::{self, Stage};
use crate::temp::TempFolder;
use crate::watch::{Pool, Watch, lock};
use crate::{
    Distinct, Error, Key, Phase, PhaseSummary, Progress, Result, Sink, Source, Summary, process,
};

/// Bytes of memory that are not buffers: for queues, folders and so on, and for the stack of each
/// thread.
const FIXED: u64 = 7 << 18;
const THREAD: u64 = 128 << 10;
/// The smallest memory for buffers, in bytes.
const LEAST: u64 = 3 << 20;
/// The largest number of keys in a block that is encoded: 1 MiB of u64.
const BLOCK: usize = 128 * 1024;
/// The limit for a device whose memory size is unknown, in bytes.
const UNKNOWN_DEVICE: u64 = 512 << 20;
/// The number of chunks in work at the same time: one is read or written while the other is sorted.
const LANES: usize = 2;

impl Distinct {
    /// Reads all keys of `source`, and writes the distinct ones to `sink`, in
    /// ascending order.
    ///
    /// A sink that asks for counts is told how often each key occurs. A
    /// run that ends early, for whatever reason, leaves no output and no
    /// temporary file.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::DeviceMemory`] where a limit is too low; the errors of source,
    /// sink, device and the disk for temporary files; [`Error::Stopped`] where
    /// `progress` asks to stop.
    pub fn run<K, B, T>(
        &self,
        device: &B,
        source: &dyn Source<K>,
        sink: T,
        progress: &dyn Progress,
    ) -> Result<Summary>
    where
        K: Key,
        B: Supports<Operator>,
        T: Sink<K>,
    {
        let start = Instant::now();
        let watch = Watch::new(progress);
        TempFolder::sweep(&self.temp);
        let result = Job::new(self, device, source, &sink, &watch).and_then(|mut job| {
            job.run()?;
            Ok(job.summary)
        });
        let mut summary = watch.outcome(result)?;
        let finish = Instant::now();
        watch.begin(Phase::Finish, 0, None)?;
        summary.skipped = source.skipped()?;
        summary.output_bytes = sink.finish(summary.distinct)?;
        if let Some(last) = summary.phases.last_mut() {
            last.written = summary.output_bytes;
        }
        summary.phases.push(PhaseSummary {
            phase: Phase::Finish,
            elapsed: finish.elapsed(),
            read: 0,
            written: 0,
            keys: 0,
        });
        summary.elapsed = start.elapsed();
        Ok(summary)
    }
}

struct Job<'a, K: Key, B, T> {
    options: &'a Distinct,
    device: &'a B,
    sink: &'a T,
    watch: &'a Watch<'a>,
    feed: Feed<'a, K>,
    source: &'a dyn Source<K>,
    team: Team,
    /// Bytes of host memory for buffers.
    memory: u64,
    /// Bytes of memory for chunks, in the device's memory.
    chunks: u64,
    /// The stages for copies; `None` where chunks are in host memory.
    stages: Option<Pool<Stage>>,
    temp: Option<TempFolder>,
    runs: Vec<Run<K>>,
    summary: Summary,
}

impl<'a, K, B, T> Job<'a, K, B, T>
where
    K: Key,
    B: Supports<Operator>,
    T: Sink<K>,
{
    fn new(
        options: &'a Distinct,
        device: &'a B,
        source: &'a dyn Source<K>,
        sink: &'a T,
        watch: &'a Watch<'a>,
    ) -> Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.map_or_else(cores, usize::from);
        let each = (source.part_memory() as u64).saturating_add(THREAD);
        let least = (2 * LEAST).max((LEAST + FIXED).saturating_add(each));
        if options.memory < least {
            return Err(Error::Memory { given: options.memory, least });
        }
        // With little memory there are fewer threads, so that at least half of it is for buffers.
        let affordable = (options.memory / 2).saturating_sub(FIXED) / each;
        let threads = threads.min(affordable as usize).max(1);
        let memory = (options.memory - FIXED).saturating_sub(threads as u64 * each);
        let key_memory = sink.key_memory() as u64;
        let share = memory / 8 / threads as u64;
        let block =
            share.checked_div(key_memory).map_or(BLOCK, |keys| keys.clamp(1024, 1 << 17) as usize);
        let team = Team { threads, block };
        let memory = memory - threads as u64 * block as u64 * key_memory;
        let on_host = device.allocate_bytes(8)?.view(DType::U8, 8).host::<u8>().is_some();
        let (chunks, stages) = if on_host {
            (memory, None)
        } else {
            let stages = staging::pool(device, threads, memory)?;
            let chunks = options.device_memory.unwrap_or_else(|| device_memory(device.info()));
            (chunks, Some(stages))
        };
        Ok(Job {
            options,
            device,
            sink,
            watch,
            feed: Feed::new(source, threads, watch),
            source,
            team,
            memory,
            chunks,
            stages,
            temp: None,
            runs: Vec::new(),
            summary: Summary::default(),
        })
    }

    fn run(&mut self) -> Result<()> {
        if !self.run_at_once()? {
            self.sort()?;
            self.merge_runs()?;
        }
        self.summary.keys = self.feed.keys();
        Ok(())
    }

    fn sizes(&self, lanes: usize, max: u64) -> Result<Sizes> {
        let counts = self.sink.counts();
        let sizes = Sizes::fitting::<K, B>(self.device, counts, lanes, self.chunks, max)?;
        if let Some(sizes) = sizes {
            return Ok(sizes);
        }
        let given = self.chunks;
        let least = Sizes::least::<K, B>(self.device, counts, LANES)?;
        Err(match self.stages {
            Some(_) => Error::DeviceMemory { given, least },
            None => Error::Memory { given, least },
        })
    }

    fn phase(&mut self, phase: Phase, start: Instant, read: u64, written: u64, keys: u64) {
        let elapsed = start.elapsed();
        let size = K::SIZE as u64;
        let phase = PhaseSummary { phase, elapsed, read, written, keys: keys * size };
        self.summary.phases.push(phase);
    }

    /// Reads the keys that fit into memory. If these are all keys, sorts and writes them and
    /// returns true.
    fn run_at_once(&mut self) -> Result<bool> {
        let max = self.source.keys().unwrap_or(u64::MAX);
        let sizes = self.sizes(1, max)?;
        let capacity = sizes.capacity();
        if self.source.keys().is_some_and(|keys| keys > capacity as u64) {
            return Ok(false);
        }
        let start = Instant::now();
        self.watch.begin(Phase::Read, 0, self.source.bytes())?;
        let workspace = sizes.workspace(self.device)?;
        let mut lane = sizes.lane::<K, B>(self.device.sibling()?)?;
        let n = fill(&self.feed, &mut lane, capacity, self.stages.as_ref(), self.watch)?;
        let is_all = self.feed.is_done() || self.source.keys() == Some(self.feed.keys());
        if is_all {
            self.phase(Phase::Read, start, self.feed.bytes(), 0, n as u64);
        }
        let start = Instant::now();
        if is_all {
            self.watch.begin(Phase::Unique, 0, None)?;
        }
        let distinct = lane.compute::<K>(n, &workspace)?;
        drop(workspace);
        if !is_all {
            // The source has an unknown length and does not fit: the keys read so far become the
            // first run.
            let run = self.spill(&lane, distinct, 0)?;
            self.runs.push(run);
            return Ok(false);
        }
        self.phase(Phase::Unique, start, 0, 0, n as u64);
        let start = Instant::now();
        self.watch.begin(Phase::Write, 0, Some((distinct * K::SIZE) as u64))?;
        drain(self.sink, &lane, distinct, self.stages.as_ref(), self.team, self.watch)?;
        self.summary.distinct = distinct as u64;
        self.phase(Phase::Write, start, 0, 0, distinct as u64);
        Ok(true)
    }

    /// Makes the folder for runs, if it does not exist yet.
    fn temp(&mut self) -> Result<()> {
        if self.temp.is_none() {
            self.temp = Some(TempFolder::make(&self.options.temp)?);
        }
        Ok(())
    }

    /// Writes a lane's distinct keys as a run.
    fn spill(&mut self, lane: &Lane<B>, distinct: usize, number: usize) -> Result<Run<K>> {
        self.temp()?;
        let temp = self.temp.as_ref().expect("made in the line above");
        let block = Shape::block_bytes(self.memory, 0) as usize / K::SIZE;
        let run = RunSink::new(temp, number, block, self.sink.counts())?;
        drain(&run, lane, distinct, self.stages.as_ref(), self.team, self.watch)?;
        run.into_run(distinct as u64)
    }

    /// Reads, sorts and writes the keys chunk by chunk; each chunk becomes a run. Two chunks are in
    /// work at a time, so that one is read or written while the other is sorted.
    fn sort(&mut self) -> Result<()> {
        self.temp()?;
        let start = Instant::now();
        let read = self.feed.bytes();
        self.watch.begin(Phase::Sort, read, self.source.bytes())?;
        let sizes = self.sizes(LANES, u64::MAX)?;
        let workspace = sizes.workspace(self.device)?;
        let lanes = (0..LANES).map(|_| sizes.lane::<K, B>(self.device.sibling()?));
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        // The number of the next chunk, `None` at the end of the source. The lane that holds the
        // lock reads.
        let turn = Mutex::new(Some(self.runs.len()));
        let runs = Mutex::new(std::mem::take(&mut self.runs));
        let this = &*self;
        std::thread::scope(|scope| {
            for lane in lanes {
                let (turn, runs, workspace) = (&turn, &runs, &workspace);
                let capacity = sizes.capacity();
                let sort = move || this.sort_chunks(lane, capacity, workspace, turn, runs);
                this.watch.spawn(scope, sort);
            }
        });
        self.watch.check()?;
        self.runs = runs.into_inner().map_err(|_| Error::Poisoned("the list of runs"))?;
        self.summary.runs = self.runs.len();
        let spilled = self.runs.iter().map(Run::bytes).sum();
        self.phase(Phase::Sort, start, self.feed.bytes(), spilled, self.feed.keys());
        Ok(())
    }

    fn sort_chunks(
        &self,
        mut lane: Lane<B>,
        capacity: usize,
        workspace: &Workspace,
        turn: &Mutex<Option<usize>>,
        runs: &Mutex<Vec<Run<K>>>,
    ) -> Result<()> {
        let temp = self.temp.as_ref().expect("made before the lanes");
        loop {
            let (n, number) = {
                let mut turn = lock(turn);
                let Some(number) = *turn else { return Ok(()) };
                let n = fill(&self.feed, &mut lane, capacity, self.stages.as_ref(), self.watch)?;
                *turn = (!self.feed.is_done()).then_some(number + 1);
                (n, number)
            };
            if n == 0 {
                continue;
            }
            let distinct = lane.compute::<K>(n, workspace)?;
            let index: usize = lock(runs).iter().map(Run::index).sum();
            let block = Shape::block_bytes(self.memory, index as u64) as usize / K::SIZE;
            let run = RunSink::new(temp, number, block, self.sink.counts())?;
            drain(&run, &lane, distinct, self.stages.as_ref(), self.team, self.watch)?;
            let run = run.into_run(distinct as u64)?;
            lock(runs).push(run);
        }
    }

    /// Merges runs until one result is left: as many runs at once as memory allows,
    /// and the shortest first where these are not all.
    fn merge_runs(&mut self) -> Result<()> {
        // The stages of chunks are no longer needed.
        self.stages = None;
        let temp = self.temp.take().expect("made with the first run");
        let counts = self.sink.counts();
        let shape = Shape::new::<K>(self.memory, self.team.threads, counts, self.sink.key_memory());
        let mut runs = std::mem::take(&mut self.runs);
        let mut number = runs.len();
        loop {
            let start = Instant::now();
            let block = runs.iter().map(|run| run.block).max().unwrap_or(1);
            let max_runs = shape.max_runs(block);
            let is_last = runs.len() <= max_runs;
            let group = if is_last {
                std::mem::take(&mut runs)
            } else {
                runs.sort_by_key(|run| run.len);
                runs.drain(..(runs.len() - max_runs + 1).min(max_runs)).collect()
            };
            let bytes = group.iter().map(Run::bytes).sum();
            let keys = group.iter().map(|run| run.len).sum();
            self.watch.begin(Phase::Merge, 0, Some(bytes))?;
            if is_last {
                self.summary.distinct = merge(&group, &temp, shape, self.sink, self.watch)?;
                self.phase(Phase::Merge, start, bytes, 0, keys);
                return Ok(());
            }
            let sink = RunSink::new(&temp, number, block, counts)?;
            let len = merge(&group, &temp, shape, &sink, self.watch)?;
            number += 1;
            let run = sink.into_run(len)?;
            self.phase(Phase::Merge, start, bytes, run.bytes(), keys);
            runs.push(run);
            group.into_iter().for_each(Run::remove);
        }
    }
}

/// The limit of device memory where none was given: three quarters of the device's memory. For a
/// software device, whose memory is host memory, at most a quarter of the memory that the process
/// may still take.
fn device_memory(info: &DeviceInfo) -> u64 {
    let limit = info.memory.map_or(UNKNOWN_DEVICE, |bytes| bytes / 4 * 3);
    match process::memory_left() {
        Some(left) if info.software => limit.min(left / 4),
        _ => limit,
    }
}

/// Fills a lane's keys from their start; returns the number of keys.
fn fill<K: Key, B: Supports<Operator>>(
    feed: &Feed<'_, K>,
    lane: &mut Lane<B>,
    capacity: usize,
    stages: Option<&Pool<Stage>>,
    watch: &Watch<'_>,
) -> Result<usize> {
    match stages {
        Some(stages) => drain::to_device(feed, &mut *lane.keys, capacity, stages, watch),
        None => {
            let not_host = lane.failed("the memory of the keys is no host memory");
            feed.fill(lane.host_keys(capacity).ok_or(not_host)?)
        }
    }
}

/// Writes a lane's distinct keys to a sink.
fn drain<K: Key, B: Supports<Operator>, T: Sink<K>>(
    sink: &T,
    lane: &Lane<B>,
    distinct: usize,
    stages: Option<&Pool<Stage>>,
    team: Team,
    watch: &Watch<'_>,
) -> Result<()> {
    let counts = lane.counts.as_deref();
    match stages {
        Some(stages) => {
            drain::from_device(sink, (&*lane.unique, counts), distinct, stages, team, watch)
        }
        None => {
            let not_host = || lane.failed("the memory of the keys is no host memory");
            let keys = lane.unique.view(K::DTYPE, distinct).host::<K>().ok_or_else(not_host)?;
            let counts = match counts {
                Some(counts) => counts.view(DType::U64, distinct).host().ok_or_else(not_host)?,
                None => &[],
            };
            drain::from_host(sink, keys, counts, team, watch)
        }
    }
}
