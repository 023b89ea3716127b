//! The rows of a report in groups, by operator, device and shape; and the formats of
//! numbers.

use crate::report::stats::{median, spread};
use crate::report::{Measurement, Report, Role};

/// The rows of an operator on a device.
pub struct Group<'a> {
    pub report: &'a Report,
    pub operator: &'a str,
    pub device: &'a str,
    pub works: Vec<Work<'a>>,
}

/// The rows of one shape of an operator on a device, one row per implementation: this
/// library first, then by role, then in the order of the report.
pub struct Work<'a> {
    pub shape: &'a str,
    pub rows: Vec<&'a Measurement>,
    /// The floor in microseconds, from the bytes of the first row: this library's row, if
    /// there is one.
    pub floor_us: Option<f64>,
}

/// The name of an implementation, and its role.
pub type Who<'a> = (&'a str, Role);

/// One report per machine, merged from all reports of the machine. Machines with a GPU come
/// first; among them, and among the others, the one whose first day is the latest comes first.
pub fn machines(reports: &[Report]) -> Vec<Report> {
    let mut machines: Vec<Report> = vec![];
    for report in reports {
        let merge = |known: &Report| Report::merge(vec![known.clone(), report.clone()]).ok();
        if machines.iter_mut().find_map(|known| merge(known).map(|both| *known = both)).is_none() {
            machines.push(report.clone());
        }
    }
    let has_no_gpu = |report: &Report| report.devices.iter().all(|device| device.id == "cpu");
    machines.sort_by(|a, b| has_no_gpu(a).cmp(&has_no_gpu(b)).then_with(|| b.date.cmp(&a.date)));
    machines
}

/// The groups of a report, by operator and then by device, in the order of the report's rows.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let of = |operator, device| {
        let rows = move || {
            let all = report.measurements.iter();
            all.filter(move |row| row.operator == operator && row.device == device)
        };
        let work = |shape| {
            let mut rows: Vec<_> = rows().filter(|row| row.shape == shape).collect();
            rows.sort_by_key(|row| row.role);
            let floor_us = report.floor_us(rows[0]).filter(|us| *us > 0.0);
            Work { shape, rows, floor_us }
        };
        let works = distinct(rows().map(|row| &*row.shape)).into_iter().map(work).collect();
        Group { report, operator, device, works }
    };
    let mut places = distinct(report.measurements.iter().map(|row| (&*row.operator, &*row.device)));
    let operators = distinct(places.iter().map(|(operator, _)| *operator));
    places.sort_by_key(|place| operators.iter().position(|operator| *operator == place.0));
    places.into_iter().map(|(operator, device)| of(operator, device)).collect()
}

impl<'a> Group<'a> {
    /// All rows of the group.
    pub fn rows(&self) -> impl Iterator<Item = &'a Measurement> {
        self.works.iter().flat_map(|work| work.rows.iter().copied())
    }

    /// The implementations other than this library that have rows in the group, by role.
    pub fn others(&self) -> Vec<Who<'a>> {
        let mut all = distinct(self.rows().map(Measurement::who));
        all.retain(|(_, role)| *role != Role::Spec);
        all.sort_by_key(|(_, role)| *role);
        all
    }

    /// The rows of other implementations. Each comes with its time divided by this
    /// library's time for the same shape: how many times as fast this library is.
    pub fn over_spec(&self) -> Vec<(&'a Measurement, f64)> {
        let of = |work: &Work<'a>| {
            let others = work.rows.iter().copied().filter(|row| row.role != Role::Spec);
            others.filter_map(|row| Some((row, work.over_spec(row)?))).collect::<Vec<_>>()
        };
        self.works.iter().flat_map(of).collect()
    }

    /// The device's id and model; for the CPU, also its cores.
    pub fn device_words(&self) -> String {
        device_words(self.report, self.device)
    }
}

impl<'a> Work<'a> {
    /// This library's row.
    pub fn spec(&self) -> Option<&'a Measurement> {
        self.rows.first().copied().filter(|row| row.role == Role::Spec)
    }

    /// A row's time divided by this library's time: how many times as fast this library is.
    pub fn over_spec(&self, row: &Measurement) -> Option<f64> {
        Some(row.median_us() / self.spec()?.median_us())
    }
}

impl Measurement {
    /// The median of the samples, in microseconds.
    #[must_use]
    pub fn median_us(&self) -> f64 {
        median(&self.samples_us)
    }

    /// Whether the median meets the goal, if there is a goal. Both are compared as
    /// readers see them, rounded to three digits.
    #[must_use]
    pub fn goal_met(&self) -> Option<bool> {
        let (median, goal) = (self.median_us(), self.goal_us?);
        Some(median <= goal || digits(median) == digits(goal))
    }

    pub(crate) fn who(&self) -> Who<'_> {
        (&self.implementation, self.role)
    }

    /// The goal as text, if there is a goal, without where it comes from.
    pub(crate) fn goal(&self) -> Option<String> {
        let missed = if self.goal_met()? { "" } else { ", missed" };
        Some(format!("{}{missed}", time(self.goal_us?)))
    }

    /// The interval of the middle four fifths of the samples: `3.48 – 3.60 µs`. If both
    /// ends have the same unit, the unit is written once.
    pub(crate) fn interval(&self) -> String {
        let (low, high) = spread(&self.samples_us);
        let (low, high) = (time(low), time(high));
        match (low.split_once(' '), high.split_once(' ')) {
            (Some((digits, unit)), Some((_, same))) if unit == same => format!("{digits} – {high}"),
            _ => format!("{low} – {high}"),
        }
    }
}

/// A device's id and model; for the CPU, the host's processor and its cores.
pub fn device_words(report: &Report, id: &str) -> String {
    match report.device(id) {
        _ if id == "cpu" => format!("cpu: {}, {} cores", report.host.cpu, report.host.cores),
        Some(device) => format!("{id}: {}", device.name),
        None => id.to_owned(),
    }
}

/// The distinct values, in the order of their first occurrence.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = vec![];
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// A method with `N` for its numbers: `N calls in a CUDA graph, events`. The numbers
/// differ between runs, because the calls per sample depend on the time of the first call.
pub fn way(method: &str) -> String {
    let words = method.split_whitespace().map(|word| match word {
        "call" => "calls",
        "call," => "calls,",
        number if number.parse::<u64>().is_ok() => "N",
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A time with a suitable unit, to three digits: `3.51 µs`, `24.9 ms`.
pub fn time(us: f64) -> String {
    scaled(us, &[(1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s")])
}

/// A count with a suitable unit; a count below a thousand ends with a space: `512 `, `65.5 k`.
pub fn count(value: f64) -> String {
    scaled(value, &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")])
}

/// An amount of memory, such as `65.5 kB`; the caller adds `/s` for a rate.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")])
}

/// A ratio: `2.43 ×`.
pub fn times(ratio: f64) -> String {
    format!("{} ×", digits(ratio))
}

/// A number with three significant digits, or with all digits before the point: `3.51`, `24.9`,
/// `107`, `1240`.
pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // The next unit starts where rounding to three digits would give 1000 of this unit.
    let fits = |(unit, _): &&(f64, &str)| value.abs() >= 0.9995 * unit;
    match units.iter().rev().find(fits).or(units.first()) {
        Some((unit, name)) => format!("{} {name}", digits(value / unit)),
        None => digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_calls_is_no_other_way_of_timing() {
        let ways = ["1 call in a graph, in 6 copies", "20 calls in a graph, in 17 copies"].map(way);
        assert_eq!(ways, ["N calls in a graph, in N copies"; 2].map(str::to_owned));
        assert_ne!(way("1 call, clock"), way("1 call, clock, its first"));
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let times = [3.514, 9.996, 999.4, 999.6, 0.42, 24_915.6, 44_500_000.0, 0.0].map(time);
        let words = "3.51 µs, 10.0 µs, 999 µs, 1.00 ms, 420 ns, 24.9 ms, 44.5 s, 0 ns";
        assert_eq!(times.join(", "), words);
        assert_eq!(bytes(1_073_741_824.0), "1.07 GB");
    }
}
