//! Compares two runs: which rows moved beyond the noise.
//!
//! All samples of a run share the same clocks, memory layout and other programs. So a
//! test of significance over the samples alone would report many rows as moved whose
//! code did not change. A row has moved when:
//!
//! 1. every sample of the slower run lies above 95 % of the samples of the faster run.
//!    (The slowest 5 % are ignored, because a call may be slow now and then in any run.)
//! 2. the medians differ by a twentieth or more ([`MIN_CHANGE`]). A smaller difference may
//!    come from the memory layout alone.
//! 3. the medians differ by more than 90 % of the rows of other designs on the same
//!    device ([`noise`]): nobody works on those designs, so their differences are noise.
//!
//! With fewer than five samples, or on a CPU that was busy with other programs, the row
//! has moved "perhaps". Rows of different machines, devices or methods are not compared,
//! and the text says so.

use std::fmt::Write;

use crate::report::stats::quantile;
use crate::report::view::{distinct, time, way};
use crate::report::{Measurement, Report, Role};

/// The least relative difference of the medians for a row that has moved.
pub const MIN_CHANGE: f64 = 0.05;

/// A row that is in both reports, or in one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<'r> {
    /// The row in the old report, if it is there.
    pub old: Option<&'r Measurement>,
    /// The row in the new report, if it is there.
    pub new: Option<&'r Measurement>,
    /// The result of the comparison.
    pub outcome: Outcome,
}

/// The result of comparing a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The row takes less time, beyond the noise.
    Faster,
    /// The row takes more time, beyond the noise.
    Slower,
    /// No difference beyond the noise.
    Same,
    /// The row seems to have moved, but the given reason makes this uncertain.
    Perhaps(String),
    /// Only the new report has the row.
    Added,
    /// Only the old report has the row.
    Removed,
    /// Both reports have the row, but under different conditions, which the text names.
    Incomparable(String),
}

/// Every row of both reports: the rows of the new report in its order, then the
/// rows that only the old report has.
#[must_use]
pub fn compare<'r>(old: &'r Report, new: &'r Report) -> Vec<Change<'r>> {
    let busy = old.busy().or(new.busy()).is_some();
    let find = |rows: &'r [Measurement], row| rows.iter().find(|other| other.same_row(row));
    let now = new.measurements.iter().map(|row| {
        let before = find(&old.measurements, row);
        let outcome =
            before.map_or(Outcome::Added, |before| match conditions(old, new, before, row) {
                Some(reason) => Outcome::Incomparable(reason),
                None => judge(before, row, noise(old, new, &row.device), busy),
            });
        Change { old: before, new: Some(row), outcome }
    });
    let gone = old.measurements.iter().filter(|row| find(&new.measurements, row).is_none());
    let gone = gone.map(|row| Change { old: Some(row), new: None, outcome: Outcome::Removed });
    now.chain(gone).collect()
}

/// The noise on a device between two runs: 90 % of the rows of other designs, which
/// nobody changed, differ by at most this factor. 1 if there are fewer than five such
/// rows.
#[must_use]
pub fn noise(old: &Report, new: &Report, device: &str) -> f64 {
    let both = new.measurements.iter().filter_map(|row| {
        let others = row.device == device && row.role != Role::Spec;
        let before = old.measurements.iter().find(|before| others && before.same_row(row))?;
        Some(factor(before, row))
    });
    let factors: Vec<f64> = both.collect();
    if factors.len() < 5 { 1.0 } else { quantile(&factors, 0.9) }
}

/// The comparison as text: the versions that differ, the rows that moved, and the
/// number of rows that did not.
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
    for (run, busy) in [("before", old.busy()), ("now", new.busy())] {
        let _ = busy.map(|words| writeln!(out, "{run}: {words}"));
    }
    for device in distinct(new.measurements.iter().map(|row| &row.device)) {
        let percent = (noise(old, new, device) - 1.0) * 100.0;
        if percent > MIN_CHANGE * 100.0 {
            let _ =
                writeln!(out, "{device}: rows of others moved by {percent:.0} %; less is noise");
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
    let mut moved = vec![];
    for change in &changes {
        let word = match &change.outcome {
            Outcome::Slower => "slower",
            Outcome::Faster => "faster",
            Outcome::Perhaps(reason) => &format!("perhaps ({reason})"),
            _ => continue,
        };
        let (Some(old), Some(new)) = (change.old, change.new) else { continue };
        let (before, now) = (old.median_us(), new.median_us());
        let Measurement { operator, shape, device, implementation, .. } = new;
        let percent = (now / before - 1.0) * 100.0;
        let line = format!(
            "{percent:>+7.1} %  {word}  {operator}, {shape}, {implementation} on {device}: {} before, {} now",
            time(before),
            time(now),
        );
        moved.push((percent, line));
    }
    moved.sort_by(|a, b| b.0.total_cmp(&a.0));
    moved.iter().for_each(|(_, line)| out.push_str(&format!("{line}\n")));
    let count = |outcome| changes.iter().filter(|change| change.outcome == outcome).count();
    out + &format!(
        "{} slower, {} faster, {} as before, {} new, {} gone\n",
        count(Outcome::Slower),
        count(Outcome::Faster),
        count(Outcome::Same),
        count(Outcome::Added),
        count(Outcome::Removed),
    )
}

/// Why two rows were measured under different conditions, if they were.
fn conditions(was: &Report, is: &Report, old: &Measurement, new: &Measurement) -> Option<String> {
    let id = &new.device;
    // The times of a GPU depend little on the host's CPU, so only the GPU is compared.
    let model = |report: &Report| match &**id {
        "cpu" => report.host.words(),
        _ => report.device(id).map(|device| device.name.clone()).unwrap_or_default(),
    };
    let (before, now) = (model(was), model(is));
    if before != now {
        return Some(format!("{id} was {before} and is {now}"));
    }
    (way(&old.method) != way(&new.method))
        .then(|| format!("timed by \"{}\" before and by \"{}\" now", old.method, new.method))
}

/// The larger median divided by the smaller.
fn factor(old: &Measurement, new: &Measurement) -> f64 {
    let (before, now) = (old.median_us(), new.median_us());
    (before / now).max(now / before)
}

fn judge(old: &Measurement, new: &Measurement, noise: f64, busy: bool) -> Outcome {
    let faster = new.median_us() < old.median_us();
    let (low, high) = if faster { (new, old) } else { (old, new) };
    let meet = quantile(&low.samples_us, 0.95) >= quantile(&high.samples_us, 0.0);
    let fewest = old.samples_us.len().min(new.samples_us.len());
    if meet || factor(old, new) < noise.max(1.0 + MIN_CHANGE) {
        Outcome::Same
    } else if fewest < 5 {
        Outcome::Perhaps(format!("{fewest} samples are too few"))
    } else if busy && new.device == "cpu" {
        Outcome::Perhaps("the machine was busy".into())
    } else if faster {
        Outcome::Faster
    } else {
        Outcome::Slower
    }
}
