//! Plots as SVG, drawn by plotters: time over size, time of other designs over this
//! library's time, and rooflines. Each panel is a plot of its own with a legend, narrow
//! enough for a telephone; a wide page shows several panels side by side. The bar of a
//! point is the interval of the middle four fifths of the samples.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::stats::spread;
use crate::report::view::{Group, bytes, count, device_words, distinct, groups, time, times};
use crate::report::{Error, Report, Role};

/// A plot.
pub struct Figure {
    /// The name of the plot, as a file name without extension: `topk_router-f32`.
    pub name: String,
    /// A description of the plot for readers who cannot see it.
    pub words: String,
    /// The plot.
    pub svg: String,
}

/// Series over two logarithmic axes.
struct Panel {
    /// Two lines: what the panel shows, and where it was measured.
    title: [String; 2],
    /// The x axis and the y axis: the title of each, and how the numbers along it are written.
    axes: [Axis; 2],
    /// Names that stand along the y axis instead of numbers: the first name at 1, the next at
    /// 10, and so on.
    lanes: Vec<String>,
    series: Vec<Series>,
}

type Axis = (String, fn(f64) -> String);

struct Series {
    name: String,
    kind: Kind,
    points: Vec<Point>,
}

/// A median, and the interval around the median if there is one.
struct Point {
    at: (f64, f64),
    /// Along which axis the interval lies, and its ends there.
    bar: Option<(Along, f64, f64)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Along {
    X,
    Y,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Markers on a line.
    Curve,
    /// Markers alone.
    Points,
    /// A thin line without markers: a bound.
    Bound,
}

impl Panel {
    fn new(title: [String; 2], axes: [Axis; 2]) -> Self {
        Panel { title, axes, lanes: vec![], series: vec![] }
    }

    /// Adds a point to the series of this name, and makes the series if there is none.
    fn add(&mut self, name: &str, kind: Kind, at: (f64, f64), bar: Option<(Along, f64, f64)>) {
        let point = Point { at, bar };
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => self.series.push(Series { name: name.into(), kind, points: vec![point] }),
        }
    }

    /// All values that an axis must cover: the points and the ends of their bars.
    fn values(&self, along: Along) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.flat_map(move |point| {
            let at = if along == Along::X { point.at.0 } else { point.at.1 };
            let bar = point.bar.filter(|bar| bar.0 == along);
            [at].into_iter().chain(bar.into_iter().flat_map(|(_, low, high)| [low, high]))
        })
    }
}

/// A plot of this width is readable on a telephone without zooming.
const WIDTH: u32 = 480;
const HEIGHT: u32 = 340;
const LINE: u32 = 20;
/// The height of a lane, which has its name above its points.
const LANE: u32 = 42;
/// plotters writes a font of 18 as 14.5 pixels.
const FONT: (&str, u32) = ("sans-serif", 18);
/// The approximate width of a character of the legend.
const CHARACTER: usize = 8;
const GREY: RGBColor = RGBColor(110, 116, 124);
/// The colours of Okabe and Ito, which people with colour blindness can tell apart, and two more.
const COLOURS: [u32; 8] =
    [0x0072b2, 0xd55e00, 0x00805d, 0xb8528b, 0xc78500, 0x3b3f46, 0x2f9bd8, 0x8a7a00];

type Backend<'s> = SVGBackend<'s>;
type Drawn<'s> = Result<(), DrawingAreaErrorKind<<Backend<'s> as DrawingBackend>::ErrorType>>;

/// The plots of time over size: for each series of an operator with more than two
/// sizes, one for each processor or GPU.
pub fn times_over_sizes(operator: &str, machines: &[Report]) -> Result<Vec<Figure>, Error> {
    let groups = machines.iter().flat_map(groups).filter(|group| group.operator == operator);
    let groups: Vec<_> = groups.collect();
    let series = groups.iter().flat_map(Group::rows).map(|row| (&*row.series, &*row.size_unit));
    let mut figures = vec![];
    for (series, unit) in distinct(series).into_iter().filter(|(series, _)| !series.is_empty()) {
        let mut panels: Vec<Panel> = vec![];
        for group in &groups {
            // One panel shows the rows of a GPU through both interfaces, CUDA and wgpu.
            let device = match group.report.device(group.device) {
                Some(known) if group.device != "cpu" => known.name.clone(),
                _ => group.device_words(),
            };
            let title = [format!("{operator}, {series}"), device];
            let mut panel = match panels.pop_if(|panel| panel.title == title) {
                Some(panel) => panel,
                None => Panel::new(
                    title,
                    [
                        (unit.into(), |size| plain(&count(size))),
                        ("time of a call".into(), |us| plain(&time(us))),
                    ],
                ),
            };
            add_curves(&mut panel, group, series);
            panels.push(panel);
        }
        panels.retain(|panel| panel.series.iter().any(|curve| curve.points.len() > 2));
        let words = format!("time of a call over {unit}");
        figures.extend(draw_all(&format!("{operator}-{series}"), &words, &panels, HEIGHT)?);
    }
    Ok(figures)
}

/// Adds the times of all implementations in a series, and the floor, to a panel.
fn add_curves(panel: &mut Panel, group: &Group<'_>, series: &str) {
    let through = if group.device.starts_with("wgpu") { " through wgpu" } else { "" };
    let mut rows: Vec<_> = group.rows().filter(|row| row.series == series).collect();
    rows.sort_by(|a, b| a.size.total_cmp(&b.size));
    for row in rows {
        let (median, (low, high)) = (row.median_us(), spread(&row.samples_us));
        let name = format!("{}{through}", row.implementation);
        panel.add(&name, Kind::Curve, (row.size, median), Some((Along::Y, low, high)));
        let floor =
            group.report.floor_us(row).filter(|_| row.role == Role::Spec && through.is_empty());
        // A floor far below the cost of a call says nothing and would take much of the panel.
        if let Some(floor) = floor.filter(|floor| *floor > median / 30.0) {
            panel.add("floor", Kind::Bound, (row.size, floor), None);
        }
    }
}

/// The plots of other designs' times over this library's, for a group: one lane per shape.
pub fn ratios(group: &Group<'_>) -> Result<Vec<Figure>, Error> {
    let title = [format!("{}: time over spec's", group.operator), group.device_words()];
    let ratio: Axis = ("right of 1 ×, spec is faster".into(), |ratio| plain(&times(ratio)));
    let mut panel = Panel::new(title, [ratio, (String::new(), |_| String::new())]);
    let all = group.over_spec();
    panel.lanes = distinct(all.iter().rev().map(|(row, _)| row.shape.clone()));
    for (row, ratio) in all {
        let lane = panel.lanes.iter().position(|lane| *lane == row.shape).unwrap_or(0);
        let ours = group.works.iter().find(|work| work.shape == row.shape);
        let bar = ours.and_then(|work| work.spec()).map(|ours| {
            // The ends of the bar: the ratio of the fast end of one interval to the slow end of
            // the other.
            let (theirs, ours) = (spread(&row.samples_us), spread(&ours.samples_us));
            (Along::X, theirs.0 / ours.1, theirs.1 / ours.0)
        });
        panel.add(&row.implementation, Kind::Points, (ratio, 10f64.powi(lane as i32)), bar);
    }
    let height = 110 + LANE * panel.lanes.len() as u32;
    let name = format!("{}-ratios-{}", group.operator, group.device);
    draw_all(&name, "others' time over this library's", &[panel], height)
}

/// The rooflines of the devices with this library's rows: bytes per second over the
/// bytes that a call must move.
pub fn rooflines(machines: &[Report]) -> Result<Vec<Figure>, Error> {
    let devices =
        machines.iter().flat_map(|report| report.devices.iter().map(move |d| (report, d)));
    let mut panels: Vec<_> = devices.map(|(report, device)| roofline(report, &device.id)).collect();
    panels.retain(|panel| !panel.series.is_empty());
    draw_all("rooflines", "bytes per second over the bytes that a call must move", &panels, HEIGHT)
}

fn roofline(report: &Report, device: &str) -> Panel {
    let rate: Axis = ("bytes per second".into(), |rate| plain(&bytes(rate)) + "/s");
    let moved: Axis = ("bytes that a call must move".into(), |moved| plain(&bytes(moved)));
    let title = ["roofline".to_owned(), device_words(report, device)];
    let mut panel = Panel::new(title, [moved, rate]);
    let rows = report.measurements.iter().filter(|row| row.role == Role::Spec && row.bytes > 0);
    let mut fastest = f64::INFINITY;
    for row in rows.filter(|row| row.device == device) {
        let (bytes, median) = (row.bytes as f64, row.median_us());
        let (low, high) = spread(&row.samples_us);
        let bar = (Along::Y, bytes / high * 1e6, bytes / low * 1e6);
        panel.add(&row.operator, Kind::Points, (bytes, bytes / median * 1e6), Some(bar));
        fastest = fastest.min(median);
    }
    let known = report.device(device).filter(|_| fastest.is_finite());
    let Some(copy) = known.and_then(|device| device.copy_bytes_per_second) else { return panel };
    // Rows that are timed by timestamps within a submission do not include the cost of the
    // submission, so an overhead above the fastest row is no bound.
    let overhead = known.and_then(|device| device.overhead_us).filter(|us| *us <= fastest);
    // From edge to edge: all shapes may move the same number of bytes.
    let edges = decades(panel.values(Along::X));
    for i in 0..=60 {
        let bytes = edges.start * (edges.end / edges.start).powf(f64::from(i) / 60.0);
        panel.add("a large copy", Kind::Bound, (bytes, copy), None);
        if let Some(us) = overhead {
            let rate = bytes / (bytes / copy + us * 1e-6);
            panel.add("a copy and what an empty call costs", Kind::Bound, (bytes, rate), None);
        }
    }
    panel
}

/// One figure per panel. A series has the same colour in all panels.
fn draw_all(name: &str, words: &str, panels: &[Panel], height: u32) -> Result<Vec<Figure>, Error> {
    let series = panels.iter().flat_map(|panel| &panel.series);
    let mut names = distinct(series.map(|series| (&*series.name, series.kind)));
    names.sort_by_key(|(_, kind)| *kind == Kind::Bound);
    let figure = |panel: &Panel| {
        let mut looks: Vec<_> = (0..).zip(&names).collect();
        looks.retain(|(_, (name, _))| panel.series.iter().any(|series| series.name == *name));
        let longest = looks.iter().map(|(_, (name, _))| name.chars().count()).max().unwrap_or(0);
        let columns = if 34 + longest * CHARACTER < WIDTH as usize / 2 { 2 } else { 1 };
        let size = (WIDTH, height + looks.len().div_ceil(columns) as u32 * LINE + LINE / 2);
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&root, panel, &looks, columns, height).map_err(|e| Error(format!("a plot: {e}")))?;
        drop(root);
        let words = format!("{} on {}: {words}", panel.title[0], panel.title[1]);
        Ok(Figure { name: name.to_owned(), words, svg })
    };
    panels.iter().map(figure).collect()
}

/// The index of a series' colour, and the name and kind of the series.
type Look<'n> = (usize, &'n (&'n str, Kind));

fn draw<'s>(
    root: &DrawingArea<Backend<'s>, Shift>,
    panel: &Panel,
    looks: &[Look<'_>],
    columns: usize,
    height: u32,
) -> Drawn<'s> {
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_vertically(height);
    let plot = plot.titled(&panel.title[0], ("sans-serif", 20))?;
    draw_panel(&plot.titled(&panel.title[1], ("sans-serif", 17))?, panel, looks)?;
    for (i, (look, (name, kind))) in looks.iter().enumerate() {
        let (column, row) = ((i % columns) as i32, (i / columns) as i32);
        let (x, y) = (column * WIDTH as i32 / 2 + 12, row * LINE as i32 + 8);
        if *kind != Kind::Points {
            legend.draw(&PathElement::new(vec![(x, y), (x + 24, y)], stroke(*look, *kind)))?;
        }
        if *kind != Kind::Bound {
            legend.draw(&marker(*look, (x + 12, y)))?;
        }
        legend.draw(&Text::new((*name).to_owned(), (x + 34, y - 7), FONT))?;
    }
    root.present()
}

fn draw_panel<'s>(
    area: &DrawingArea<Backend<'s>, Shift>,
    panel: &Panel,
    looks: &[Look<'_>],
) -> Drawn<'s> {
    let Panel { axes: [(x_words, x_mark), (y_words, y_mark)], lanes, series, .. } = panel;
    let x = decades(panel.values(Along::X).chain((!lanes.is_empty()).then_some(1.0)));
    let y = match lanes.len() {
        0 => decades(panel.values(Along::Y)),
        lanes => 10f64.powf(-0.5)..10f64.powf(lanes as f64 - 0.5),
    };
    let left = x.start;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(if lanes.is_empty() { 84 } else { 4 })
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    chart
        .configure_mesh()
        .label_style(FONT)
        .x_desc(x_words)
        .y_desc(y_words)
        .x_labels(6)
        .y_labels(lanes.len().max(8))
        .max_light_lines(1)
        .x_label_formatter(&|x| x_mark(*x))
        .y_label_formatter(&|y| y_mark(*y))
        .draw()?;
    for (lane, name) in lanes.iter().enumerate() {
        let at = (left, 10f64.powi(lane as i32));
        chart.draw_series([EmptyElement::at(at) + Text::new(name.clone(), (4, -20), FONT)])?;
    }
    // This library is the first series and is drawn last, on top of the others.
    for Series { name, kind, points } in series.iter().rev() {
        let look = looks.iter().find(|(_, (other, _))| other == name).map_or(0, |look| look.0);
        if *kind != Kind::Points {
            let line = points.iter().map(|point| point.at);
            chart.draw_series(LineSeries::new(line, stroke(look, *kind)))?;
        }
        if *kind != Kind::Bound {
            let bars = points.iter().filter_map(|point| bar(look, point));
            chart.draw_series(bars)?;
            chart.draw_series(points.iter().map(|point| marker(look, point.at)))?;
        }
    }
    Ok(())
}

/// The bar of a point, if the point has one.
fn bar<'s>(look: usize, point: &Point) -> Option<DynElement<'static, Backend<'s>, (f64, f64)>> {
    const CAPS: u32 = 8;
    let ((x, y), (along, low, high)) = (point.at, point.bar?);
    let style = colour(look).stroke_width(1);
    Some(match along {
        Along::X => ErrorBar::new_horizontal(y, low, x, high, style, CAPS).into_dyn(),
        Along::Y => ErrorBar::new_vertical(x, low, y, high, style, CAPS).into_dyn(),
    })
}

/// The colour of a series. The first series, this library, has a colour of its own.
fn colour(look: usize) -> RGBColor {
    let at = if look == 0 { 0 } else { 1 + (look - 1) % (COLOURS.len() - 1) };
    let [_, red, green, blue] = COLOURS[at].to_be_bytes();
    RGBColor(red, green, blue)
}

fn stroke(look: usize, kind: Kind) -> ShapeStyle {
    if kind == Kind::Bound { GREY.stroke_width(1) } else { colour(look).stroke_width(2) }
}

fn marker<'s, C: Clone + 'static>(look: usize, at: C) -> DynElement<'static, Backend<'s>, C> {
    match look % 3 {
        0 => Circle::new(at, 4, colour(look).filled()).into_dyn(),
        1 => TriangleMarker::new(at, 6, colour(look).filled()).into_dyn(),
        _ => Cross::new(at, 4, colour(look).stroke_width(2)).into_dyn(),
    }
}

/// The range of whole decades that holds all values; at least one decade.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let exponents: Vec<f64> =
        values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10).collect();
    let low = exponents.iter().copied().reduce(f64::min).unwrap_or(0.0).floor();
    let high = exponents.iter().copied().reduce(f64::max).unwrap_or(0.0).ceil();
    10f64.powf(low)..10f64.powf(high.max(low + 1.0))
}

/// The text of a mark without zero decimals: `10 µs` for `10.0 µs`.
fn plain(words: &str) -> String {
    words.replace(".00", "").replace(".0 ", " ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{DeviceRecord, Measurement};

    #[test]
    fn the_line_of_a_copy_goes_from_edge_to_edge() {
        let row = |bytes: u64| Measurement {
            operator: "unique".to_owned(),
            shape: format!("{bytes} bytes"),
            series: String::new(),
            size: 1.0,
            size_unit: "keys".to_owned(),
            device: "cpu".to_owned(),
            implementation: "spec".to_owned(),
            role: Role::Spec,
            method: String::new(),
            samples_us: vec![2.0],
            bytes,
            goal_us: None,
            goal_from: None,
            check: String::new(),
        };
        let device = DeviceRecord {
            id: "cpu".to_owned(),
            copy_bytes_per_second: Some(1e9),
            overhead_us: Some(1.0),
            ..DeviceRecord::default()
        };
        // Shapes that move the same number of bytes, and others.
        for bytes in [vec![4096; 3], vec![4096], vec![1 << 10, 1 << 20]] {
            let report = Report {
                devices: vec![device.clone()],
                measurements: bytes.into_iter().map(row).collect(),
                ..Report::default()
            };
            let panel = roofline(&report, "cpu");
            let points = panel.series.iter().filter(|series| series.kind == Kind::Points);
            let edges = decades(points.flat_map(|series| &series.points).map(|point| point.at.0));
            let bounds: Vec<_> =
                panel.series.iter().filter(|series| series.kind == Kind::Bound).collect();
            assert_eq!(bounds.len(), 2);
            for bound in bounds {
                let (first, last) = (bound.points[0].at.0, bound.points[60].at.0);
                assert_eq!(first, edges.start, "{}", bound.name);
                assert!((last / edges.end - 1.0).abs() < 1e-9, "{}: {last}", bound.name);
            }
        }
    }

    #[test]
    fn an_axis_holds_its_values_in_whole_decades() {
        assert_eq!(decades([3.0, 42.0].into_iter()), 1.0..100.0);
        assert_eq!(decades([7.0, 0.0, f64::NAN].into_iter()), 1.0..10.0);
        assert_eq!(decades([].into_iter()), 1.0..10.0);
    }

    #[test]
    fn marks_are_short() {
        let marks = [1.0, 10.0, 500.0, 1e3, 2e4].map(|size| plain(&count(size)));
        assert_eq!(marks, ["1", "10", "500", "1 k", "20 k"]);
    }
}
