//! The plots that a report's rows give.

use crate::plot::Look;
use crate::plot::bars::{self, Bars};
use crate::plot::lines::{Curve, Lines, Point};
use crate::plot::roofline::{self, Roofline};
use crate::view::{Group, device_words, distinct, groups};
use crate::{Measurement, Report, Role, stats};

/// A plot.
pub struct Figure {
    /// What it shows, as a file would be named: `topk_router-f32`, `ratios`.
    pub name: String,
    /// An SVG that wants [`STYLE`](crate::plot::STYLE).
    pub svg: String,
}

/// Who looks how in the plots of an operator, on every device and machine.
pub struct Looks(Vec<(String, Role)>);

impl Looks {
    /// The looks of everyone who did an operator's work in one of the reports.
    pub fn of(operator: &str, reports: &[Report]) -> Self {
        let all = reports.iter().flat_map(|report| groups(report).into_iter().collect::<Vec<_>>());
        let of_it = all.filter(|group| group.operator == operator);
        let named = of_it.flat_map(|group| group.implementations());
        let others = named.filter(|(_, role)| *role != Role::Spec);
        let mut others = distinct(others.map(|(name, role)| (name.to_owned(), role)));
        others.sort_by_key(|(_, role)| *role);
        Looks(others)
    }

    fn look(&self, row: &Measurement) -> Look {
        let it = |(name, role): &(String, Role)| *name == row.implementation && *role == row.role;
        match self.0.iter().position(it) {
            Some(i) if row.role != Role::Spec => Look::other(i),
            _ => Look::SPEC,
        }
    }
}

/// The plots of time over size: one for each of a group's series that has more
/// than two sizes.
pub fn lines(group: &Group<'_>, looks: &Looks) -> Vec<Figure> {
    let rows = || group.works.iter().flat_map(|work| work.rows.iter().copied());
    let series = distinct(rows().map(|row| &*row.series).filter(|series| !series.is_empty()));
    let figure = |series: &str| {
        let rows = || rows().filter(|row| row.series == series);
        if distinct(rows().map(|row| row.size)).len() < 3 {
            return None;
        }
        let curves = group.implementations().into_iter().filter_map(|(name, role)| {
            let rows = rows().filter(|row| row.implementation == name && row.role == role);
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by(|a, b| a.size.total_cmp(&b.size));
            let look = looks.look(rows.first()?);
            Some(Curve {
                name: name.to_owned(),
                look,
                points: rows.into_iter().map(point).collect(),
            })
        });
        let marks = |value: &dyn Fn(&Measurement) -> Option<f64>| {
            let rows = rows().filter(|row| row.role == Role::Spec);
            let mut marks: Vec<_> = rows.filter_map(|row| Some((row.size, value(row)?))).collect();
            marks.sort_by(|a, b| a.0.total_cmp(&b.0));
            marks
        };
        let plot = Lines {
            title: format!("{}, {series} on {}", group.operator, group.device_words()),
            size_unit: rows().next().map(|row| row.size_unit.clone()).unwrap_or_default(),
            curves: curves.collect(),
            floor: marks(&|row| group.report.floor_us(row).filter(|us| *us > 0.0)),
            goals: marks(&|row| row.goal_us),
        };
        Some(Figure { name: format!("{}-{series}", group.operator), svg: plot.svg() })
    };
    series.into_iter().filter_map(figure).collect()
}

fn point(row: &Measurement) -> Point {
    let spread = stats::spread(&row.samples_us);
    Point {
        size: row.size,
        median: row.median_us(),
        low: spread.low,
        high: spread.high,
        shape: row.shape.clone(),
    }
}

/// The plot of others' times over this library's, where there are both.
pub fn ratios(group: &Group<'_>, looks: &Looks) -> Option<Figure> {
    let of_shape = |work: &crate::view::Work<'_>| {
        let ours = work.spec()?.median_us();
        let others = work.rows.iter().filter(|row| row.role != Role::Spec);
        let bars: Vec<_> = others
            .map(|row| bars::Bar {
                name: row.implementation.clone(),
                look: looks.look(row),
                ratio: row.median_us() / ours,
            })
            .collect();
        (!bars.is_empty()).then(|| bars::Group { shape: work.shape.to_owned(), bars })
    };
    let groups: Vec<_> = group.works.iter().filter_map(of_shape).collect();
    if groups.is_empty() {
        return None;
    }
    let title = format!("{} on {}", group.operator, group.device_words());
    let svg = Bars { title, groups }.svg();
    Some(Figure { name: format!("{}-ratios", group.operator), svg })
}

/// The rooflines of a report's devices, of this library's rows.
pub fn rooflines(report: &Report) -> Vec<Figure> {
    let ours = || report.measurements.iter().filter(|row| row.role == Role::Spec);
    let names = distinct(ours().map(|row| &*row.operator));
    let figure = |device: &str| {
        let operator = |(i, name): (usize, &&str)| {
            let rows = ours().filter(|row| row.operator == *name && row.device == device);
            let points: Vec<_> = rows
                .map(|row| roofline::Point {
                    shape: row.shape.clone(),
                    bytes: row.bytes as f64,
                    median: row.median_us(),
                })
                .filter(|point| point.bytes > 0.0)
                .collect();
            let operator =
                roofline::Operator { name: (*name).to_owned(), look: Look::nth(i), points };
            (!operator.points.is_empty()).then_some(operator)
        };
        let operators: Vec<_> = names.iter().enumerate().filter_map(operator).collect();
        if operators.is_empty() {
            return None;
        }
        let known = report.device(device);
        // What a submission costs bounds no row that is timed by timestamps within one.
        let fastest = operators.iter().flat_map(|operator| &operator.points);
        let fastest = fastest.map(|point| point.median).fold(f64::INFINITY, f64::min);
        let bounds = |overhead: &f64| *overhead <= fastest;
        let plot = Roofline {
            title: device_words(report, device),
            operators,
            copy: known.and_then(|device| device.copy_bytes_per_second),
            overhead: known.and_then(|device| device.overhead_us).filter(bounds),
        };
        Some(Figure { name: format!("roofline-{device}"), svg: plot.svg() })
    };
    distinct(ours().map(|row| &*row.device)).into_iter().filter_map(figure).collect()
}
