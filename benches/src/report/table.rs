//! A report as text for a terminal: what `spec-bench` prints, within 110 columns.

use std::fmt::Write;

use crate::report::Report;
use crate::report::view::{Group, digits, groups, time};

const EXPLAINED: &str = "\
floor: the least time, of the bytes that must move at the rate of a large copy on that device
x floor: how many times that a call takes; 10 to 90 %: where four fifths of the samples lie
x spec: how many times as long as this library's it is; above 1 this library is faster
";

/// All rows of a report, in one table per operator and device, and an explanation of
/// the columns.
///
/// Each shape has a line with its floor, its goal and where the goal comes from. Below this line, each
/// implementation has a line with the median time of a call, the interval that holds
/// the middle four fifths of the samples, the median divided by the floor, and the
/// median divided by this library's median.
#[must_use]
pub fn text(report: &Report) -> String {
    let tables = groups(report).iter().map(group_text).collect::<String>();
    let busy = report.busy().map(|words| words + "\n").unwrap_or_default();
    if tables.is_empty() { busy } else { format!("{tables}{EXPLAINED}{busy}") }
}

/// The rows of one operator on one device, under their heading.
fn group_text(group: &Group<'_>) -> String {
    let mut rows = vec![["", "median", "10 to 90 %", "x floor", "x spec"].map(str::to_owned)];
    for row in group.works.iter().flat_map(|work| work.rows.iter().map(move |row| (work, row))) {
        let (work, row) = row;
        let median = row.median_us();
        // A larger ratio says nothing: such a call does not spend its time on moving bytes.
        let over_floor = work.floor_us.map(|us| median / us).filter(|times| *times < 1000.0);
        rows.push([
            row.implementation.clone(),
            time(median),
            row.interval(),
            over_floor.map(digits).unwrap_or_default(),
            work.over_spec(row).map(digits).unwrap_or_default(),
        ]);
    }
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 5]| {
        // Text is aligned to the left, numbers to the right.
        let name = format!("    {:<1$}", row[0], widths[0]);
        let cells = (1..5).map(|c| format!("  {:>1$}", row[c], widths[c]));
        (name + &cells.collect::<String>()).trim_end().to_owned() + "\n"
    };
    let mut out = format!("{} on {}\n{}", group.operator, group.device_words(), line(&rows[0]));
    let mut rows = rows[1..].iter();
    for work in &group.works {
        let floor = work.floor_us.map(|us| format!(", floor {}", time(us)));
        let goal = work.spec().and_then(|row| {
            let from = row.goal_from.as_deref().map(|from| format!(" ({from})"));
            Some(format!(", goal {}{}", row.goal()?, from.unwrap_or_default()))
        });
        let (floor, goal) = (floor.unwrap_or_default(), goal.unwrap_or_default());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {}{floor}{goal}", work.shape);
        out.extend(rows.by_ref().take(work.rows.len()).map(line));
    }
    out + "\n"
}
