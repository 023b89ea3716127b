//! The JSON of a report: one run, its machine, its rows. Every field that `--save` writes
//! is a field of one of these structs, with the same name, and is documented there.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize, Serializer};

/// The name of this layout, and its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// The only version so far.
    #[default]
    #[serde(rename = "spec-bench 1")]
    One,
}

/// One run of `spec-bench` or of a script under `benches/peers/`, as stored in a
/// file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `spec-bench 1`. This field comes first, since another format has other fields.
    pub format: Format,
    /// The day of the run, as in `2026-01-31`; after a merge perhaps `2026-01-31 to 2026-02-01`.
    pub date: String,
    /// The command that repeats the run.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// How busy the machine was with other programs, if that was measured. For
    /// merged runs, the load of the busiest run.
    #[serde(default)]
    pub load: Option<Load>,
    /// The versions of the software, by name: `spec`, `rustc`, `driver`, `torch`, `numpy`.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// The devices that the rows name in [`device`](Measurement::device).
    pub devices: Vec<DeviceRecord>,
    /// The rows.
    pub measurements: Vec<Measurement>,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The processor's model.
    pub cpu: String,
    /// Cores (hardware threads) that the run could use.
    pub cores: usize,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
    /// The operating system, as in `Linux x86_64`.
    pub os: String,
}

impl Host {
    /// The number of cores and the processor's model, as text.
    pub(crate) fn words(&self) -> String {
        format!("{} cores of {}", self.cores, self.cpu)
    }
}

/// The use of the processor from the start to the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The system's load average over the minute before the run: threads that
    /// ran or waited for a core. 0 if the system has no load average.
    pub average_before: f64,
    /// Seconds that the run took by the clock.
    pub wall_s: f64,
    /// Seconds of processor time that the run itself took, on all cores.
    pub own_cpu_s: f64,
    /// Seconds of processor time that the whole machine took meanwhile, this run
    /// included.
    pub all_cpu_s: f64,
}

impl Load {
    /// A machine is busy if other programs take more than this share of its cores.
    pub const MAX: f64 = 0.1;

    /// Cores that other programs took, on average.
    #[must_use]
    pub fn others(&self) -> f64 {
        (self.all_cpu_s - self.own_cpu_s).max(0.0) / self.wall_s.max(1e-3)
    }
}

/// A device of a run, and the device's own measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// The device as a user names it: `cpu`, `cuda:0`, `wgpu:0`.
    pub id: String,
    /// Its model: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Further facts about the device: clocks, driver, memory. Whole numbers are
    /// JSON numbers, all other facts are text with a unit.
    #[serde(default)]
    pub facts: BTreeMap<String, Fact>,
    /// The rate of a large copy within the device's memory: bytes read plus bytes
    /// written, per second. The floor of a row is its bytes divided by this rate.
    #[serde(default)]
    pub copy_bytes_per_second: Option<f64>,
    /// Microseconds of a call that does nothing (an empty kernel, an empty
    /// submission), timed by the same method as the rows.
    #[serde(default)]
    pub overhead_us: Option<f64>,
}

/// One of a device's [`facts`](DeviceRecord::facts).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fact {
    /// A count: `132` multiprocessors.
    Number(u64),
    /// A text: `1980 MHz`.
    Text(String),
}

impl From<&str> for Fact {
    fn from(words: &str) -> Self {
        words.parse().map_or_else(|_| Fact::Text(words.to_owned()), Fact::Number)
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Number(number) => number.fmt(f),
            Fact::Text(words) => words.fmt(f),
        }
    }
}

/// One implementation of an operator on one shape and device, timed.
///
/// Rows with the same operator, shape and device do the same work, and are compared
/// with each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The operator: `topk_router`.
    pub operator: String,
    /// The shape, in the same words for every device and implementation:
    /// `1024 tokens, f32`.
    pub shape: String,
    /// The name of the curve over size to which the row belongs: `f32`. Empty if the
    /// row belongs to no curve.
    #[serde(default)]
    pub series: String,
    /// The row's place on its curve: 1024, in [`size_unit`](Self::size_unit).
    pub size: f64,
    /// The unit of [`size`](Self::size): `tokens`.
    pub size_unit: String,
    /// The device's [`id`](DeviceRecord::id).
    pub device: String,
    /// The implementation: `spec`, `block radix sort, bitmask`, `torch.unique`.
    pub implementation: String,
    /// The role of the implementation among those of the operator.
    pub role: Role,
    /// The method of timing: `20 calls in a CUDA graph, events`.
    pub method: String,
    /// The samples, in microseconds of one call each, in the order they were
    /// taken. Kept to a tenth of a nanosecond in JSON.
    #[serde(serialize_with = "rounded")]
    pub samples_us: Vec<f64>,
    /// Bytes that the work must move at least.
    pub bytes: u64,
    /// The project's goal for this row on this kind of device, in microseconds, if
    /// there is a goal.
    #[serde(default)]
    pub goal_us: Option<f64>,
    /// Where the goal comes from: `a third of the time of plain loop`.
    #[serde(default)]
    pub goal_from: Option<String>,
    /// What the timed call's result was compared with: `CPU backend, every
    /// element`.
    pub check: String,
}

/// The role of an implementation among those of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This library.
    Spec,
    /// This library, called in another way.
    Variant,
    /// The design that the operator started from.
    Seed,
    /// Another known design, or the plain loop.
    Baseline,
    /// A library that users would pick instead of this library.
    Peer,
}

/// A sentence that says why a report, page or comparison cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

impl Report {
    /// Reads JSON.
    ///
    /// # Errors
    ///
    /// Text that is not JSON of these fields; another [`Format`]; a row without
    /// samples, or with a sample that is not a positive number.
    pub fn parse(json: &str) -> Result<Self, Error> {
        let report: Report =
            serde_json::from_str(json).map_err(|error| Error(format!("not a report: {error}")))?;
        let is_time = |us: &f64| us.is_finite() && *us > 0.0;
        for Measurement { operator, shape, implementation, samples_us, .. } in &report.measurements
        {
            if samples_us.is_empty() || !samples_us.iter().all(is_time) {
                let words =
                    format!("{operator}, {shape}, {implementation}: not all samples are times");
                return Err(Error(words));
            }
        }
        Ok(report)
    }

    /// The report as JSON, with one line per device and one line per row.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A report has only strings, finite numbers and maps with string keys, so this cannot
        // fail. A quote within a string is escaped, so the texts below only match the starts
        // of objects.
        let json = serde_json::to_string(self).unwrap_or_default();
        let starts = [r#"{"id":"#, r#"{"operator":"#].map(|start| (start, format!("\n{start}")));
        starts.iter().fold(json, |json, (start, line)| json.replace(start, line)) + "\n"
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// As [`Report::parse`], and a file that cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let words = |error: &dyn fmt::Display| Error(format!("{}: {error}", path.display()));
        let json = std::fs::read_to_string(path).map_err(|error| words(&error))?;
        Self::parse(&json).map_err(|error| words(&error))
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        // A path that is no regular file, such as a pipe, cannot be replaced.
        let written = if path.metadata().is_ok_and(|found| !found.is_file()) {
            std::fs::write(path, self.to_json())
        } else {
            let mut part = path.as_os_str().to_owned();
            part.push(".part");
            std::fs::write(&part, self.to_json()).and_then(|()| std::fs::rename(&part, path))
        };
        written.map_err(|error| Error(format!("{}: {error}", path.display())))
    }

    /// Merges reports of the same machine, of `spec-bench` and of the scripts that time
    /// other libraries. If several reports have a row, the last report's row is kept. The
    /// facts of a device are those of the first report, completed by later reports.
    ///
    /// # Errors
    ///
    /// If there is no report; if the processors or the numbers of cores differ; if devices
    /// of the same id differ.
    pub fn merge(reports: Vec<Report>) -> Result<Report, Error> {
        let two = |a: &str, b: &str| Error(format!("these are reports of two machines: {a}; {b}"));
        let mut reports = reports.into_iter();
        let mut merged = reports.next().ok_or_else(|| Error("there is no report".into()))?;
        for report in reports {
            if !merged.same_machine(&report) {
                return Err(two(&merged.host.words(), &report.host.words()));
            }
            for device in report.devices {
                match merged.devices.iter_mut().find(|known| known.id == device.id) {
                    None => merged.devices.push(device),
                    // Programs name the CPU differently, but the host's processor is the same.
                    Some(known) if known.name == device.name || known.id == "cpu" => {
                        known.copy_bytes_per_second =
                            known.copy_bytes_per_second.or(device.copy_bytes_per_second);
                        known.overhead_us = known.overhead_us.or(device.overhead_us);
                        known.facts = device.facts.into_iter().chain(known.facts.clone()).collect();
                    }
                    Some(known) => return Err(two(&known.name, &device.name)),
                }
            }
            merged.date = days(&merged.date, &report.date);
            let loads = [merged.load, report.load].into_iter().flatten();
            merged.load = loads.max_by(|a, b| a.others().total_cmp(&b.others()));
            if !merged.command.lines().any(|line| line == report.command) {
                merged.command = format!("{}\n{}", merged.command, report.command);
            }
            merged.versions = report.versions.into_iter().chain(merged.versions).collect();
            for row in report.measurements {
                match merged.measurements.iter_mut().find(|known| known.same_row(&row)) {
                    Some(known) => *known = row,
                    None => merged.measurements.push(row),
                }
            }
        }
        Ok(merged)
    }

    /// Whether both reports are of the same processor model and number of cores.
    #[must_use]
    pub fn same_machine(&self, other: &Report) -> bool {
        self.host.cpu == other.host.cpu && self.host.cores == other.host.cores
    }

    /// A sentence for readers, if other programs kept the machine busy.
    #[must_use]
    pub fn busy(&self) -> Option<String> {
        let load = self.load?;
        let (others, cores) = (load.others(), self.host.cores);
        (others > Load::MAX * cores as f64).then(|| {
            format!(
                "the machine was busy: other programs took {others:.1} of {cores} cores during the \
                 run of {:.0} s (load average before it: {:.1})",
                load.wall_s, load.average_before
            )
        })
    }

    /// The record of the device with this id.
    #[must_use]
    pub fn device(&self, id: &str) -> Option<&DeviceRecord> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// The floor of a row in microseconds: the time to move the row's bytes at the rate of
    /// a copy on its device, if this rate was measured. On CUDA, the floor is not less than
    /// the time of an empty kernel.
    #[must_use]
    pub fn floor_us(&self, row: &Measurement) -> Option<f64> {
        let device = self.device(&row.device)?;
        let rate = device.copy_bytes_per_second.filter(|rate| *rate > 0.0)?;
        let empty = device.overhead_us.filter(|_| device.id.starts_with("cuda:"));
        Some((row.bytes as f64 / rate * 1e6).max(empty.unwrap_or(0.0)))
    }
}

impl Measurement {
    /// Whether both rows time the same implementation of the same work on a device
    /// with the same id.
    #[must_use]
    pub fn same_row(&self, other: &Measurement) -> bool {
        self.operator == other.operator
            && self.shape == other.shape
            && self.device == other.device
            && self.who() == other.who()
    }
}

/// Rounds the samples to four decimals of a microsecond, which is finer than any clock here.
fn rounded<S: Serializer>(samples: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|sample| (sample * 1e4).round() / 1e4))
}

/// The days of two reports, from the first to the last. Each is one day, or several by this
/// function; a report of no day has an empty text.
fn days(a: &str, b: &str) -> String {
    let all = || [a, b].into_iter().flat_map(|days| days.split(" to ")).filter(|d| !d.is_empty());
    match (all().min(), all().max()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}
