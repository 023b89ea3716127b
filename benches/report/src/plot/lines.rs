//! Time over size, both logarithmic: a curve an implementation, the floor, the
//! goals.

use super::Look;
use super::axis::{LogAxis, TIME, count, unit};
use super::canvas::{Anchor, Canvas, width, wrap};
use crate::view::{distinct, time};

/// A plot of time over size.
pub struct Lines {
    /// What stands over it.
    pub title: String,
    /// What the sizes count: `tokens`.
    pub size_unit: String,
    /// The curves, each named at its right end.
    pub curves: Vec<Curve>,
    /// Size and microseconds of the floor.
    pub floor: Vec<(f64, f64)>,
    /// Size and microseconds of the goals.
    pub goals: Vec<(f64, f64)>,
}

/// One implementation on one device.
pub struct Curve {
    pub name: String,
    pub look: Look,
    pub points: Vec<Point>,
}

/// One row.
pub struct Point {
    pub size: f64,
    /// The median, in microseconds.
    pub median: f64,
    /// The central interval, in microseconds.
    pub low: f64,
    pub high: f64,
    /// The shape.
    pub shape: String,
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// The most that the names on the right may take.
const NAMES: f64 = 170.0;
const LINE: f64 = 14.0;

/// A name at the right, its lines of text, and the height of what it names.
struct Name {
    lines: Vec<String>,
    look: Option<Look>,
    end: (f64, f64),
    top: f64,
}

impl Lines {
    /// The plot.
    pub fn svg(&self) -> String {
        let ends: Vec<(&str, Option<Look>)> = self.ends();
        let wrapped = |name: &str| wrap(name, NAMES);
        let widest = ends.iter().flat_map(|(name, _)| wrapped(name)).map(|line| width(&line));
        let right = WIDTH - widest.fold(30.0, f64::max) - 44.0;
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = LogAxis::around(points().map(|p| p.size), LEFT, right);
        let y = self.time_axis();

        let names: Vec<&str> = self.curves.iter().map(|curve| &*curve.name).collect();
        let label = format!(
            "{}: time of a call over {}, both logarithmic, for {}; the figures are in the table",
            self.title,
            self.size_unit,
            names.join(", ")
        );
        let mut canvas = Canvas::new(WIDTH, HEIGHT, &label);
        canvas.text("title", Anchor::Start, 12.0, 22.0, &self.title);
        for tick in y.minor() {
            canvas.line("minor", [LEFT, right], [y.at(tick); 2]);
        }
        for tick in y.ticks() {
            canvas.line("grid", [LEFT, right], [y.at(tick); 2]);
            canvas.text("tick", Anchor::End, LEFT - 7.0, y.at(tick) + 4.0, &unit(tick, TIME));
        }
        canvas.text("axis", Anchor::Start, 12.0, TOP - 6.0, "time of a call");
        self.size_ticks(&mut canvas, x);
        let middle = f64::midpoint(LEFT, right);
        canvas.text("axis", Anchor::Middle, middle, HEIGHT - 12.0, &self.size_unit);
        canvas.line("frame", [LEFT, right], [HEIGHT - BOTTOM; 2]);

        let place = |(size, us): (f64, f64)| (x.at(size), y.at(us));
        let floor = above(&self.floor, y.ends()[0]);
        canvas.path("floor", &floor.iter().map(|p| place(*p)).collect::<Vec<_>>());
        // This library last, so that it lies on top.
        for curve in self.curves.iter().rev() {
            let line: Vec<_> = curve.points.iter().map(|p| place((p.size, p.median))).collect();
            canvas.curve(curve.look, &line);
            for point in &curve.points {
                canvas.error(curve.look, x.at(point.size), [y.at(point.low), y.at(point.high)]);
            }
        }
        for (size, us) in &self.goals {
            let (x, y) = place((*size, *us));
            canvas.line("goal", [x - 8.0, x + 8.0], [y, y]);
        }
        for curve in self.curves.iter().rev() {
            for point in &curve.points {
                let (x, y) = place((point.size, point.median));
                let words = format!("{}, {}: {}", curve.name, point.shape, time(point.median));
                canvas.marker(curve.look, x, y, &words);
            }
        }

        let mut placed: Vec<Name> = ends
            .into_iter()
            .filter_map(|(name, look)| {
                let end = self.end_of(name, look).map(place)?;
                Some(Name { lines: wrapped(name), look, end, top: 0.0 })
            })
            .collect();
        spread_out(&mut placed, TOP, HEIGHT - BOTTOM + 20.0);
        for name in &placed {
            let first = name.top + LINE / 2.0;
            canvas.line("lead", [name.end.0 + 8.0, right + 16.0], [name.end.1, first]);
            if let Some(look) = name.look {
                canvas.marker(look, right + 24.0, first, "");
            }
            for (i, line) in name.lines.iter().enumerate() {
                let y = first + 4.0 + i as f64 * LINE;
                let class = if name.look == Some(Look::SPEC) { "spec" } else { "name" };
                canvas.text(class, Anchor::Start, right + 34.0, y, line);
            }
        }
        canvas.finish()
    }

    /// The axis of all times, goals, and of the floor as far as it is not far
    /// below them: where a call moves next to nothing, the floor says nothing.
    fn time_axis(&self) -> LogAxis {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let goals = self.goals.iter().map(|(_, us)| *us);
        let times: Vec<f64> = points.flat_map(|p| [p.low, p.high]).chain(goals).collect();
        let least = times.iter().copied().fold(f64::INFINITY, f64::min) / 8.0;
        let floor = self.floor.iter().map(|(_, us)| us.max(least));
        LogAxis::around(times.iter().copied().chain(floor), HEIGHT - BOTTOM, TOP)
    }

    /// What is named at the right.
    fn ends(&self) -> Vec<(&str, Option<Look>)> {
        let curves = self.curves.iter().map(|curve| (&*curve.name, Some(curve.look)));
        let seen = self.floor.last().is_some_and(|(_, us)| self.time_axis().holds(*us));
        let floor = seen.then_some(("floor", None));
        let goal = (!self.goals.is_empty()).then_some(("goal", None));
        curves.chain(floor).chain(goal).collect()
    }

    fn end_of(&self, name: &str, look: Option<Look>) -> Option<(f64, f64)> {
        match (name, look) {
            ("floor", None) => self.floor.last().copied(),
            ("goal", None) => self.goals.last().copied(),
            _ => {
                let curve = self.curves.iter().find(|c| c.name == name && Some(c.look) == look)?;
                curve.points.last().map(|p| (p.size, p.median))
            }
        }
    }

    /// The sizes that were measured, labelled as far as there is room: the last
    /// one, then from the first.
    fn size_ticks(&self, canvas: &mut Canvas, x: LogAxis) {
        let mut sizes = distinct(self.curves.iter().flat_map(|c| c.points.iter().map(|p| p.size)));
        sizes.sort_by(f64::total_cmp);
        let extent = |size: f64| {
            let half = width(&count(size)) / 2.0;
            (x.at(size) - half, x.at(size) + half)
        };
        let last = sizes.last().map_or(f64::INFINITY, |size| extent(*size).0);
        let mut free = f64::NEG_INFINITY;
        for (i, size) in sizes.iter().copied().enumerate() {
            let (at, label) = (x.at(size), count(size));
            canvas.line("grid", [at; 2], [TOP, HEIGHT - BOTTOM]);
            canvas.line("frame", [at; 2], [HEIGHT - BOTTOM, HEIGHT - BOTTOM + 4.0]);
            let (from, to) = extent(size);
            if i + 1 == sizes.len() || (from > free && to + 4.0 < last) {
                canvas.text("tick", Anchor::Middle, at, HEIGHT - BOTTOM + 18.0, &label);
                free = to + 4.0;
            }
        }
    }
}

/// The part of a line that lies at or above `least`; lines are straight between
/// their points on logarithmic axes.
fn above(line: &[(f64, f64)], least: f64) -> Vec<(f64, f64)> {
    let mut out = vec![];
    for (i, &(size, us)) in line.iter().enumerate() {
        if let Some(&(before, us_before)) = i.checked_sub(1).map(|i| &line[i])
            && (us < least) != (us_before < least)
        {
            let part = (least / us_before).ln() / (us / us_before).ln();
            out.push((before * (size / before).powf(part), least));
        }
        if us >= least {
            out.push((size, us));
        }
    }
    out
}

/// Gives names heights near their curves' ends at which none overlaps, within
/// `from` and `to` where they fit there.
fn spread_out(names: &mut [Name], from: f64, to: f64) {
    names.sort_by(|a, b| a.end.1.total_cmp(&b.end.1));
    let height = |name: &Name| name.lines.len() as f64 * LINE + 2.0;
    let mut free = from - LINE;
    for name in names.iter_mut() {
        name.top = (name.end.1 - LINE / 2.0).max(free);
        free = name.top + height(name);
    }
    let mut limit = to;
    for name in names.iter_mut().rev() {
        name.top = name.top.min(limit - height(name));
        limit = name.top;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, i: usize, points: &[(f64, f64)]) -> Curve {
        let point = |(size, median): &(f64, f64)| Point {
            size: *size,
            median: *median,
            low: median * 0.98,
            high: median * 1.1,
            shape: format!("{size} tokens"),
        };
        Curve { name: name.into(), look: Look::nth(i), points: points.iter().map(point).collect() }
    }

    #[test]
    fn names_do_not_overlap_and_stay_near() {
        let name = |y: f64, lines: usize| Name {
            lines: vec!["x".into(); lines],
            look: None,
            end: (0.0, y),
            top: 0.0,
        };
        let mut names =
            [name(299.0, 1), name(100.0, 2), name(101.0, 1), name(300.0, 1), name(103.0, 1)];
        spread_out(&mut names, 40.0, 310.0);
        for pair in names.windows(2) {
            let bottom = pair[0].top + pair[0].lines.len() as f64 * LINE;
            assert!(bottom <= pair[1].top, "{bottom} {}", pair[1].top);
        }
        assert!((names[0].top - (100.0 - LINE / 2.0)).abs() < 1e-9);
        assert!(names[4].top + LINE <= 310.0);
    }

    #[test]
    fn what_lies_below_the_plot_is_cut_off_where_it_leaves() {
        let line = [(1.0, 0.01), (100.0, 1.0), (10_000.0, 100.0)];
        let seen = above(&line, 10.0);
        assert_eq!(seen.len(), 2);
        assert!((seen[0].0 - 1000.0).abs() < 1e-6 && seen[0].1 == 10.0, "{seen:?}");
        assert_eq!(seen[1], line[2]);
        assert_eq!(above(&line, 0.001), line);
        assert_eq!(above(&line, 1e9), []);
    }

    #[test]
    fn a_plot_shows_every_point_and_name_once() {
        let plot = Lines {
            title: "topk_router, f32 on <cuda:0>".into(),
            size_unit: "tokens".into(),
            curves: vec![
                curve("spec", 0, &[(1.0, 2.5), (1024.0, 3.5), (65536.0, 42.0)]),
                curve("a block & a token", 1, &[(1.0, 7.5), (65536.0, 1083.0)]),
            ],
            floor: vec![(1.0, 0.001), (65536.0, 23.0)],
            goals: vec![(1024.0, 2.8)],
        };
        let svg = plot.svg();
        assert_eq!(svg.matches("class=\"marker k0\"").count(), 3 + 1, "points and the name's");
        assert_eq!(svg.matches("class=\"marker k1\"").count(), 2 + 1);
        for words in [">1,024</text>", ">65,536</text>", ">a block &amp; a token</text>"] {
            assert_eq!(svg.matches(words).count(), 1, "{words}");
        }
        for words in [">floor</text>", ">goal</text>", ">10 µs</text>", "&lt;cuda:0&gt;"] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
