//! A report as text for a terminal: what `spec bench` prints.

use std::fmt::Write;

use crate::view::{self, Group, time};
use crate::{Report, stats};

/// Every row of a report, an operator and device a table.
///
/// A row says: the shape, whose work it is, the median time of a call, the
/// interval that holds four fifths of the samples, the floor and how many times
/// over it the median is, the goal and whether it is missed, and how many times
/// as fast as the seed's design (or the first baseline, marked `= 1`) it is.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for group in view::groups(report) {
        out.push_str(&group_text(&group));
        out.push('\n');
    }
    out
}

/// The rows of one operator on one device, under their heading.
fn group_text(group: &Group<'_>) -> String {
    let mut rows = vec![
        ["shape", "implementation", "median", "10 to 90 %", "floor", "x floor", "goal", "ratio"]
            .map(str::to_owned),
    ];
    for work in &group.works {
        let reference = work.reference();
        for (i, row) in work.rows.iter().enumerate() {
            let median = row.median_us();
            let spread = stats::spread(&row.samples_us);
            let floor = work.floor_us(group.report);
            let ratio = match reference {
                Some(reference) if std::ptr::eq(reference, *row) => "= 1".into(),
                Some(reference) => view::three_digits(reference.median_us() / median),
                None => String::new(),
            };
            let goal = match (row.goal_us, row.goal_met()) {
                (Some(goal), Some(false)) => format!("{}, missed", time(goal)),
                (Some(goal), _) => time(goal),
                _ => String::new(),
            };
            rows.push([
                if i == 0 { work.shape.to_owned() } else { String::new() },
                row.implementation.clone(),
                time(median),
                view::interval(spread),
                floor.map(time).unwrap_or_default(),
                view::times_floor(median, floor),
                goal,
                ratio,
            ]);
        }
    }
    // A column that no row fills is left out.
    let used: Vec<usize> =
        (0..rows[0].len()).filter(|&c| rows[1..].iter().any(|row| !row[c].is_empty())).collect();
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = format!("{} on {}\n", group.operator, group.device_words());
    for row in &rows {
        let mut line = String::new();
        for &c in &used {
            // Words to the left, figures to the right. Writing to a string cannot fail.
            let _ = match c {
                0 | 1 => write!(line, "  {:<1$}", row[c], widths[c]),
                _ => write!(line, "  {:>1$}", row[c], widths[c]),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
