//! The JSON: one run, its machine, its rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What [`Report::format`] says: the name of this layout, and its version.
pub const FORMAT: &str = "spec-bench 1";

/// One run of `spec bench` or of a script under `benches/peers/`: what `--json`
/// writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// The day of the run, as in `2026-01-31`.
    pub date: String,
    /// The command that reruns it.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// What ran, by name: `spec`, `rustc`, `driver`, `torch`, `numpy`.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// What the rows' [`device`](Measurement::device) names.
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

/// A device of a run, and what was measured of it in that run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// The device as a user names it: `cpu`, `cuda:0`, `wgpu:0`.
    pub id: String,
    /// Its model: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// What else is known of it: clocks, driver, memory.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
    /// Bytes a second that a large copy within the device's memory reaches: what
    /// is read and what is written, both counted. A row's floor is its bytes
    /// over this.
    #[serde(default)]
    pub copy_bytes_per_second: Option<f64>,
    /// Microseconds that a call costs which does nothing, by the same method as
    /// the rows: an empty kernel, an empty submission.
    #[serde(default)]
    pub overhead_us: Option<f64>,
}

/// One implementation of an operator on one shape and device, timed.
///
/// Rows that agree in operator, shape and device do the same work and are set
/// against each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The operator: `topk_router`.
    pub operator: String,
    /// The shape, in the same words for every device and implementation:
    /// `1024 tokens, f32`.
    pub shape: String,
    /// Which curve over size the row is a point of: `f32`. Empty where the row
    /// is on no curve.
    #[serde(default)]
    pub series: String,
    /// Where on that curve: 1024, in [`size_unit`](Self::size_unit).
    pub size: f64,
    /// The unit of [`size`](Self::size): `tokens`.
    pub size_unit: String,
    /// The device's [`id`](DeviceRecord::id).
    pub device: String,
    /// Whose work it is: `spec`, `block radix sort, bitmask`, `torch.unique`.
    pub implementation: String,
    /// What it is to the others.
    pub role: Role,
    /// How it was timed: `20 calls in a CUDA graph, events`.
    pub method: String,
    /// The samples, in microseconds of one call each, in the order they were
    /// taken. Kept to a tenth of a nanosecond in JSON.
    #[serde(serialize_with = "rounded", deserialize_with = "samples")]
    pub samples_us: Vec<f64>,
    /// Bytes that the work must move at least.
    pub bytes: u64,
    /// The project's goal for this row on this kind of device, in microseconds,
    /// where it has one.
    #[serde(default)]
    pub goal_us: Option<f64>,
    /// What the timed call's result was compared with: `CPU backend, every
    /// element`.
    pub check: String,
}

/// What an implementation is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This library.
    Spec,
    /// The design that the operator started from; ratios are taken against it.
    Seed,
    /// Another known design, or the plain loop.
    Baseline,
    /// What users would pick instead.
    Peer,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not JSON, or not with these fields.
    #[error("not a report: {0}")]
    Json(#[from] serde_json::Error),
    /// As [`Error::Json`], and in which file.
    #[error("{}: not a report: {source}", path.display())]
    JsonFile {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another format.
    #[error("the report's format is `{0}`, expected `{FORMAT}`")]
    Format(String),
    /// A row that cannot be.
    #[error("{row}: {reason}")]
    Row {
        /// Operator, shape, implementation, device.
        row: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Reports that are not of one machine.
    #[error("these are reports of two machines: {0}")]
    Machines(String),
    /// Nothing to merge.
    #[error("there is no report to merge")]
    Nothing,
    /// A template or the data for it.
    #[error("{0}")]
    Template(String),
}

impl Report {
    /// A report of this format without date, machine and rows.
    #[must_use]
    pub fn new(command: &str) -> Self {
        Report {
            format: FORMAT.into(),
            date: String::new(),
            command: command.into(),
            host: Host::default(),
            versions: BTreeMap::new(),
            devices: vec![],
            measurements: vec![],
        }
    }

    /// Reads JSON.
    ///
    /// # Errors
    ///
    /// Text that is not JSON of these fields; another [format](FORMAT); a row
    /// without samples, or with one that is no positive number.
    pub fn parse(json: &str) -> Result<Self, Error> {
        // The format first: another one has other fields.
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        let head: Head = serde_json::from_str(json)?;
        if head.format != FORMAT {
            return Err(Error::Format(head.format));
        }
        let report: Report = serde_json::from_str(json)?;
        report.measurements.iter().try_for_each(Measurement::verify)?;
        Ok(report)
    }

    /// The JSON: a field a line, a row a line.
    #[must_use]
    pub fn to_json(&self) -> String {
        fn json(value: &impl Serialize) -> String {
            // Strings, finite numbers and maps with keys of strings: this cannot fail.
            serde_json::to_string(value).unwrap_or_default()
        }
        fn lines<T: Serialize>(values: &[T]) -> String {
            if values.is_empty() {
                return "[]".into();
            }
            let values: Vec<String> = values.iter().map(|v| format!("    {}", json(v))).collect();
            format!("[\n{}\n  ]", values.join(",\n"))
        }
        format!(
            "{{\n  \"format\": {},\n  \"date\": {},\n  \"command\": {},\n  \"host\": {},\n  \
             \"versions\": {},\n  \"devices\": {},\n  \"measurements\": {}\n}}\n",
            json(&self.format),
            json(&self.date),
            json(&self.command),
            json(&self.host),
            json(&self.versions),
            lines(&self.devices),
            lines(&self.measurements),
        )
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// As [`Report::parse`], and a file that cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let json = std::fs::read_to_string(path)
            .map_err(|source| Error::File { path: path.into(), source })?;
        Self::parse(&json).map_err(|error| match error {
            Error::Json(source) => Error::JsonFile { path: path.into(), source },
            other => other,
        })
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let words = |source| Error::File { path: path.into(), source };
        // What is no file, as a pipe, cannot be replaced.
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return std::fs::write(path, self.to_json()).map_err(words);
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        std::fs::write(&part, self.to_json()).map_err(words)?;
        std::fs::rename(&part, path).map_err(words)
    }

    /// One report of several of the same machine: of `spec bench` and of the
    /// scripts that time others. A row that several have is the last one's; what
    /// is known of a device is the first's, completed by the later ones.
    ///
    /// # Errors
    ///
    /// No report; processors, cores or devices of one id that differ.
    pub fn merge(reports: Vec<Report>) -> Result<Report, Error> {
        let mut reports = reports.into_iter();
        let mut merged = reports.next().ok_or(Error::Nothing)?;
        for report in reports {
            if !merged.same_machine(&report) {
                let words = |r: &Report| format!("{}, {} cores", r.host.cpu, r.host.cores);
                return Err(Error::Machines(format!("{}; {}", words(&merged), words(&report))));
            }
            for device in report.devices {
                match merged.devices.iter_mut().find(|known| known.id == device.id) {
                    None => merged.devices.push(device),
                    // The processor is the host's, whatever a program calls it.
                    Some(known) if known.name == device.name || known.id == "cpu" => {
                        known.complete(device);
                    }
                    Some(known) => {
                        let words = format!("{} is {} and {}", device.id, known.name, device.name);
                        return Err(Error::Machines(words));
                    }
                }
            }
            if merged.date < report.date {
                merged.date = report.date;
            }
            if !merged.command.lines().any(|line| line == report.command) {
                merged.command = format!("{}\n{}", merged.command, report.command);
            }
            for (name, version) in report.versions {
                merged.versions.entry(name).or_insert(version);
            }
            for row in report.measurements {
                match merged.measurements.iter_mut().find(|known| known.same_row(&row)) {
                    Some(known) => *known = row,
                    None => merged.measurements.push(row),
                }
            }
        }
        Ok(merged)
    }

    /// Whether both were measured on the same processor and number of cores.
    #[must_use]
    pub fn same_machine(&self, other: &Report) -> bool {
        self.host.cpu == other.host.cpu && self.host.cores == other.host.cores
    }

    /// What is known of a device, by its id.
    #[must_use]
    pub fn device(&self, id: &str) -> Option<&DeviceRecord> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// Microseconds that moving a row's bytes takes at the rate of a copy on its
    /// device, where that rate was measured.
    #[must_use]
    pub fn floor_us(&self, row: &Measurement) -> Option<f64> {
        let rate = self.device(&row.device)?.copy_bytes_per_second?;
        (rate > 0.0).then(|| row.bytes as f64 / rate * 1e6)
    }
}

impl DeviceRecord {
    fn complete(&mut self, other: DeviceRecord) {
        self.copy_bytes_per_second = self.copy_bytes_per_second.or(other.copy_bytes_per_second);
        self.overhead_us = self.overhead_us.or(other.overhead_us);
        for (name, value) in other.facts {
            self.facts.entry(name).or_insert(value);
        }
    }
}

impl Measurement {
    /// Whether both time the same implementation of the same work on a device
    /// of the same id.
    #[must_use]
    pub fn same_row(&self, other: &Measurement) -> bool {
        self.same_work(other)
            && self.implementation == other.implementation
            && self.role == other.role
    }

    /// Whether both do the same work on a device of the same id: operator and
    /// shape agree.
    #[must_use]
    pub fn same_work(&self, other: &Measurement) -> bool {
        self.operator == other.operator && self.shape == other.shape && self.device == other.device
    }

    fn verify(&self) -> Result<(), Error> {
        let reason = if self.samples_us.is_empty() {
            "it has no samples".to_owned()
        } else if let Some(bad) = self.samples_us.iter().find(|s| !s.is_finite() || **s <= 0.0) {
            format!("{bad} microseconds is no time")
        } else if !self.size.is_finite() {
            "its size is no number".to_owned()
        } else {
            return Ok(());
        };
        let row = [&*self.operator, &self.shape, &self.implementation, &self.device].join(", ");
        Err(Error::Row { row, reason })
    }
}

/// Four decimals of a microsecond: below what any clock here can tell.
fn rounded<S: Serializer>(samples: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|sample| (sample * 1e4).round() / 1e4))
}

/// JSON has no NaN; serde_json writes `null` for it.
fn samples<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let samples = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(samples.into_iter().map(|sample| sample.unwrap_or(f64::NAN)).collect())
}
