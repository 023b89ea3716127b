//! A report's rows, put together as they are read: operator, device, shape.

use crate::stats::{Spread, median};
use crate::{Measurement, Report, Role};

/// An operator on a device.
pub struct Group<'a> {
    pub report: &'a Report,
    pub operator: &'a str,
    pub device: &'a str,
    pub works: Vec<Work<'a>>,
}

/// One shape of an operator on a device, with everyone who did it: this library
/// first, then by role, in the order of the report.
pub struct Work<'a> {
    pub shape: &'a str,
    pub rows: Vec<&'a Measurement>,
}

/// The reports, one a machine: those of the same machine put together, in the
/// order of their first.
pub fn machines(reports: &[Report]) -> Vec<Report> {
    let mut machines: Vec<Report> = vec![];
    for report in reports {
        let merged = machines.iter_mut().find_map(|machine| {
            let both = Report::merge(vec![machine.clone(), report.clone()]).ok()?;
            Some((machine, both))
        });
        match merged {
            Some((machine, both)) => *machine = both,
            None => machines.push(report.clone()),
        }
    }
    machines
}

/// The groups of a report: operators, then devices, in the order of its rows.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups = vec![];
    for operator in distinct(report.measurements.iter().map(|row| &*row.operator)) {
        let rows = || report.measurements.iter().filter(move |row| row.operator == operator);
        for device in distinct(rows().map(|row| &*row.device)) {
            let rows = || rows().filter(move |row| row.device == device);
            let work = |shape| {
                let mut rows: Vec<_> = rows().filter(|row| row.shape == shape).collect();
                rows.sort_by_key(|row| row.role);
                Work { shape, rows }
            };
            let works = distinct(rows().map(|row| &*row.shape)).into_iter().map(work).collect();
            groups.push(Group { report, operator, device, works });
        }
    }
    groups
}

impl<'a> Group<'a> {
    /// Everyone who did some of it: name and role, by role.
    pub fn implementations(&self) -> Vec<(&'a str, Role)> {
        let rows = self.works.iter().flat_map(|work| &work.rows);
        let mut all = distinct(rows.map(|row| (&*row.implementation, row.role)));
        all.sort_by_key(|(_, role)| *role);
        all
    }

    /// The device's id and model; of a processor the cores too.
    pub fn device_words(&self) -> String {
        device_words(self.report, self.device)
    }
}

impl<'a> Work<'a> {
    /// This library's row.
    pub fn spec(&self) -> Option<&'a Measurement> {
        self.rows.iter().copied().find(|row| row.role == Role::Spec)
    }

    /// The floor of the work, in microseconds: of this library's row, which knows
    /// its bytes best, or of the first.
    pub fn floor_us(&self, report: &Report) -> Option<f64> {
        report.floor_us(self.spec().or(self.rows.first().copied())?).filter(|us| *us > 0.0)
    }

    /// What ratios are taken against: the seed's design, or where there is none
    /// the first baseline.
    pub fn reference(&self) -> Option<&'a Measurement> {
        let of = |role| self.rows.iter().copied().find(move |row| row.role == role);
        of(Role::Seed).or_else(|| of(Role::Baseline))
    }

    /// The row of an implementation.
    pub fn row(&self, implementation: &str, role: Role) -> Option<&'a Measurement> {
        let wanted = |row: &&&Measurement| row.implementation == implementation && row.role == role;
        self.rows.iter().find(wanted).copied()
    }
}

impl Measurement {
    /// The median of the samples, in microseconds.
    #[must_use]
    pub fn median_us(&self) -> f64 {
        median(&self.samples_us)
    }

    /// Whether the median is within the goal, where there is one.
    #[must_use]
    pub fn goal_met(&self) -> Option<bool> {
        // As a reader sees both: to three digits.
        let digits = |us| three_digits(us);
        self.goal_us
            .map(|goal| self.median_us() <= goal || digits(self.median_us()) == digits(goal))
    }
}

/// A device's id and model; of the processor, which is the host's, the cores too.
pub fn device_words(report: &Report, id: &str) -> String {
    let host = &report.host;
    if id == "cpu" && !host.cpu.is_empty() {
        let plural = if host.cores == 1 { "" } else { "s" };
        return format!("{id}: {}, {} core{plural}", host.cpu, host.cores);
    }
    let name = report.device(id).map(|device| &*device.name).filter(|name| !name.is_empty());
    [Some(id), name].into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// The values that differ, in the order of their first.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = vec![];
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// A method's words, without its numbers: how many calls make a sample goes by
/// how long the first of them took.
pub fn way(method: &str) -> Vec<&str> {
    let words = method.split_whitespace();
    words.map(|word| if number(word).is_some() { "#" } else { singular(word) }).collect()
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

fn singular(word: &str) -> &str {
    match word {
        "calls" => "call",
        "calls," => "call,",
        word => word,
    }
}

/// Methods that differ in numbers alone as one, with the least and the most of
/// each: `3 to 20 calls in a CUDA graph, events`.
pub fn methods<'a>(methods: impl Iterator<Item = &'a str>) -> Vec<String> {
    let methods = distinct(methods);
    let ways = distinct(methods.iter().map(|method| way(method)));
    let of_way = |way_: &Vec<&str>| {
        let same: Vec<Vec<&str>> = methods
            .iter()
            .filter(|method| way(method) == *way_)
            .map(|method| method.split_whitespace().collect())
            .collect();
        let word = |i: usize| {
            let numbers = || same.iter().filter_map(|words| number(words[i]));
            match (numbers().min(), numbers().max()) {
                (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
                (Some(only), _) => only.to_string(),
                // The plural, where one has it.
                _ => same.iter().map(|words| words[i]).max_by_key(|w| w.len()).unwrap_or("").into(),
            }
        };
        (0..way_.len()).map(word).collect::<Vec<_>>().join(" ")
    };
    ways.iter().map(of_way).collect()
}

/// A time in the unit that suits it, to three digits: `3.51 µs`, `24.9 ms`.
pub fn time(us: f64) -> String {
    scaled(us, &[(1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s")])
}

/// An interval of times, with the unit once where both ends have the same:
/// `3.48 – 3.60 µs`.
pub fn interval(spread: Spread) -> String {
    let (low, high) = (time(spread.low), time(spread.high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((digits, unit)), Some((_, same))) if unit == same => format!("{digits} – {high}"),
        _ => format!("{low} – {high}"),
    }
}

/// A number of bytes: `65.5 kB`.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")])
}

/// A time over its floor; nothing where it is so many times over it that other
/// things than bytes take the time.
pub fn times_floor(us: f64, floor: Option<f64>) -> String {
    let times = floor.map(|floor| us / floor).filter(|times| *times < 1000.0);
    times.map(three_digits).unwrap_or_default()
}

/// Three digits that matter and no more: `3.51`, `24.9`, `107`, `1240`.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // The next unit starts where three digits would round up to 1000 of this one.
    let fits = |(unit, _): &&(f64, &str)| value.abs() >= 0.9995 * unit;
    match units.iter().rev().find(fits).or(units.first()) {
        Some((unit, name)) => format!("{} {name}", three_digits(value / unit)),
        None => three_digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_differ_in_numbers_are_one() {
        let given = [
            "1 call in a graph, in 6 copies",
            "20 calls in a graph, in 17 copies",
            "3 calls in a graph, in 9 copies",
            "1 call, clock",
            "1 call, clock, its first",
        ];
        let wanted = [
            "1 to 20 calls in a graph, in 6 to 17 copies",
            "1 call, clock",
            "1 call, clock, its first",
        ];
        assert_eq!(methods(given.into_iter()), wanted);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (us, words) in [
            (3.514, "3.51 µs"),
            (9.996, "10.0 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (0.42, "420 ns"),
            (24_915.6, "24.9 ms"),
            (44_500_000.0, "44.5 s"),
            (0.0, "0 ns"),
        ] {
            assert_eq!(time(us), words);
        }
        assert_eq!(interval(Spread { low: 3.48, high: 3.6 }), "3.48 – 3.60 µs");
        assert_eq!(interval(Spread { low: 990.0, high: 1100.0 }), "990 µs – 1.10 ms");
        assert_eq!(bytes(1_073_741_824.0), "1.07 GB");
    }
}
