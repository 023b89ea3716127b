//! Two runs: what moved beyond the noise.
//!
//! Samples are few and skewed, and those of one run share its clocks, its
//! memory's layout and its neighbours: a test of significance alone would call
//! every row moved. A row has moved when all three hold:
//!
//! 1. its samples are in another order than chance gives in one of a hundred
//!    cases ([`CHANCE`], by [`mann_whitney`]);
//! 2. each median lies outside the other run's central interval
//!    ([`spread`]);
//! 3. the medians differ by a twentieth or more ([`LEAST`]): less says little of a
//!    program, and much of where its memory came to lie.
//!
//! Rows of different machines, devices or methods are not compared, and that is
//! said.

use std::fmt::Write;

use crate::stats::{mann_whitney, spread};
use crate::view::{self, distinct, time};
use crate::{Measurement, Report};

/// How likely an order of the samples may be by chance for a row to have moved.
pub const CHANCE: f64 = 0.01;

/// The part by which the median must differ for a row to have moved.
pub const LEAST: f64 = 0.05;

/// A row of two reports, or of one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The operator.
    pub operator: String,
    /// The shape.
    pub shape: String,
    /// The device's id.
    pub device: String,
    /// Whose work it is.
    pub implementation: String,
    /// The median in the old report, in microseconds, where it has the row.
    pub old_us: Option<f64>,
    /// The median in the new report, in microseconds, where it has the row.
    pub new_us: Option<f64>,
    /// What is to be said of it.
    pub outcome: Outcome,
}

/// What is to be said of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It takes less time, beyond the noise.
    Faster,
    /// It takes more time, beyond the noise.
    Slower,
    /// No difference beyond the noise.
    Same,
    /// The medians differ enough, but the samples are too few to tell: with
    /// fewer than five in each report no order of them is rare enough.
    TooFew,
    /// Only the new report has it.
    Added,
    /// Only the old report has it.
    Removed,
    /// Both have it, but not under the same conditions; why.
    Incomparable(String),
}

impl Change {
    /// The old median over the new one: above 1 it became faster.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        Some(self.old_us? / self.new_us?)
    }
}

/// Every row of both reports: those of the new one in its order, then those
/// that only the old one has.
#[must_use]
pub fn compare(old: &Report, new: &Report) -> Vec<Change> {
    let find = |rows: &[Measurement], row: &Measurement| -> Option<Measurement> {
        rows.iter().find(|other| other.same_row(row)).cloned()
    };
    let now = new.measurements.iter().map(|row| match find(&old.measurements, row) {
        None => change(None, Some(row), Outcome::Added),
        Some(before) => {
            let outcome = match conditions(old, new, &before, row) {
                Some(reason) => Outcome::Incomparable(reason),
                None => judge(&before.samples_us, &row.samples_us),
            };
            change(Some(&before), Some(row), outcome)
        }
    });
    let gone = old.measurements.iter().filter(|row| find(&new.measurements, row).is_none());
    now.chain(gone.map(|row| change(Some(row), None, Outcome::Removed))).collect()
}

/// The comparison in words: what differs in what ran, what moved, and how many
/// rows did not.
#[must_use]
pub fn text(old: &Report, new: &Report) -> String {
    let changes = compare(old, new);
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (name, version) in &new.versions {
        if let Some(before) = old.versions.get(name).filter(|before| *before != version) {
            let _ = writeln!(out, "{name}: {before} before, {version} now");
        }
    }
    let reasons = changes.iter().filter_map(|change| match &change.outcome {
        Outcome::Incomparable(reason) => Some(reason),
        _ => None,
    });
    for reason in distinct(reasons.clone()) {
        let rows = reasons.clone().filter(|other| *other == reason).count();
        let _ = writeln!(out, "{rows} rows not compared: {reason}");
    }
    let mut moved: Vec<&Change> = changes
        .iter()
        .filter(|c| matches!(c.outcome, Outcome::Faster | Outcome::Slower | Outcome::TooFew))
        .collect();
    moved.sort_by(|a, b| a.speedup().unwrap_or(1.0).total_cmp(&b.speedup().unwrap_or(1.0)));
    for change in moved {
        let (Some(old_us), Some(new_us)) = (change.old_us, change.new_us) else { continue };
        let by = (new_us / old_us - 1.0) * 100.0;
        let word = match change.outcome {
            Outcome::Slower => "slower",
            Outcome::Faster => "faster",
            _ => "perhaps: too few samples",
        };
        let Change { operator, shape, device, implementation, .. } = change;
        let _ = writeln!(
            out,
            "{by:>+7.1} %  {word}  {operator}, {shape}, {implementation} on {device}: {} before, {} now",
            time(old_us),
            time(new_us),
        );
    }
    let count = |outcome| changes.iter().filter(|change| change.outcome == outcome).count();
    let _ = writeln!(
        out,
        "{} slower, {} faster, {} as before, {} new, {} gone",
        count(Outcome::Slower),
        count(Outcome::Faster),
        count(Outcome::Same),
        count(Outcome::Added),
        count(Outcome::Removed),
    );
    out
}

fn change(old: Option<&Measurement>, new: Option<&Measurement>, outcome: Outcome) -> Change {
    let word = |field: fn(&Measurement) -> &String| {
        old.or(new).map(|row| field(row).clone()).unwrap_or_default()
    };
    Change {
        operator: word(|row| &row.operator),
        shape: word(|row| &row.shape),
        device: word(|row| &row.device),
        implementation: word(|row| &row.implementation),
        old_us: old.map(Measurement::median_us),
        new_us: new.map(Measurement::median_us),
        outcome,
    }
}

/// Why two rows are of different conditions, if they are.
fn conditions(
    old_report: &Report,
    new_report: &Report,
    old: &Measurement,
    new: &Measurement,
) -> Option<String> {
    let model = |report: &Report| {
        report.device(&new.device).map(|device| device.name.clone()).unwrap_or_default()
    };
    let (before, now) = (model(old_report), model(new_report));
    if before != now {
        return Some(format!("{} was {before} and is {now}", new.device));
    }
    // A GPU's times hang little on the host's processor; the processor's own do.
    if new.device == "cpu" && !old_report.same_machine(new_report) {
        let words = |report: &Report| format!("{} cores of {}", report.host.cores, report.host.cpu);
        return Some(format!("cpu was {} and is {}", words(old_report), words(new_report)));
    }
    (view::way(&old.method) != view::way(&new.method))
        .then(|| format!("timed by \"{}\" before and by \"{}\" now", old.method, new.method))
}

fn judge(old: &[f64], new: &[f64]) -> Outcome {
    let (before, now) = (crate::stats::median(old), crate::stats::median(new));
    let inside = |samples: &[f64], median: f64| {
        let spread = spread(samples);
        (spread.low..=spread.high).contains(&median)
    };
    if (now / before).max(before / now) < 1.0 + LEAST || inside(old, now) || inside(new, before) {
        Outcome::Same
    } else if mann_whitney(old, new) < CHANCE {
        if now < before { Outcome::Faster } else { Outcome::Slower }
    } else if old.len().min(new.len()) < 5 {
        Outcome::TooFew
    } else {
        Outcome::Same
    }
}
