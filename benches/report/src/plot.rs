//! Plots as SVG, drawn by plotters: time over size, others over this library,
//! and rooflines. A figure is panels side by side over one legend.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::view::{Group, bytes, count, device_words, distinct, groups, time, times};
use crate::{Error, Report, Role};

/// A plot.
pub struct Figure {
    /// What it shows, as a file would be named: `topk_router-f32`.
    pub name: String,
    /// What it shows, for those who do not see it.
    pub words: String,
    /// The plot.
    pub svg: String,
}

/// Series over two logarithmic axes.
struct Panel {
    title: String,
    /// What both axes show, and how their marks are written.
    axes: [Axis; 2],
    /// Names of heights in place of marks: the first at 1, the next at 10.
    lanes: Vec<String>,
    series: Vec<Series>,
}

type Axis = (String, fn(f64) -> String);

struct Series {
    name: String,
    kind: Kind,
    points: Vec<(f64, f64)>,
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
    fn new(title: String, axes: [Axis; 2]) -> Self {
        Panel { title, axes, lanes: vec![], series: vec![] }
    }

    /// One more point of a series.
    fn add(&mut self, name: &str, kind: Kind, x: f64, y: f64) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((x, y)),
            None => self.series.push(Series { name: name.into(), kind, points: vec![(x, y)] }),
        }
    }
}

const WIDTH: u32 = 980;
const LINE: u32 = 20;
const FONT: (&str, u32) = ("sans-serif", 15);
const GREY: RGBColor = RGBColor(110, 116, 124);
/// Okabe and Ito's, which stay apart without colour vision, and two more.
const COLOURS: [u32; 8] =
    [0x0072b2, 0xd55e00, 0x00805d, 0xb8528b, 0xc78500, 0x3b3f46, 0x2f9bd8, 0x8a7a00];

type Backend<'s> = SVGBackend<'s>;
type Drawn<'s> = Result<(), DrawingAreaErrorKind<<Backend<'s> as DrawingBackend>::ErrorType>>;

/// The plots of time over size: one for each series of an operator with more
/// than two sizes, a panel a processor or GPU.
pub fn times_over_sizes(operator: &str, machines: &[Report]) -> Result<Vec<Figure>, Error> {
    let groups = machines.iter().flat_map(groups).filter(|group| group.operator == operator);
    let groups: Vec<_> = groups.collect();
    let series = groups.iter().flat_map(Group::rows).map(|row| (&*row.series, &*row.size_unit));
    let mut figures = vec![];
    for (series, unit) in distinct(series).into_iter().filter(|(series, _)| !series.is_empty()) {
        let mut panels: Vec<Panel> = vec![];
        for group in &groups {
            // What runs on one GPU through two interfaces is in one panel.
            let title = match group.report.device(group.device) {
                Some(known) if group.device != "cpu" => known.name.clone(),
                _ => group.device_words(),
            };
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
        if !panels.is_empty() {
            let words = format!("{operator}, {series}: time of a call over {unit}");
            figures.push(figure(&format!("{operator}-{series}"), words, &panels, 330)?);
        }
    }
    Ok(figures)
}

/// Everyone's times in a series, and the floor.
fn add_curves(panel: &mut Panel, group: &Group<'_>, series: &str) {
    let through = if group.device.starts_with("wgpu") { " through wgpu" } else { "" };
    let mut rows: Vec<_> = group.rows().filter(|row| row.series == series).collect();
    rows.sort_by(|a, b| a.size.total_cmp(&b.size));
    for row in rows {
        let median = row.median_us();
        panel.add(&format!("{}{through}", row.implementation), Kind::Curve, row.size, median);
        let floor =
            group.report.floor_us(row).filter(|_| row.role == Role::Spec && through.is_empty());
        // One far below what a call costs says nothing, and takes the room.
        if let Some(floor) = floor.filter(|floor| *floor > median / 30.0) {
            panel.add("floor", Kind::Bound, row.size, floor);
        }
    }
}

/// Others' times over this library's, of a group: a lane a shape.
pub fn ratios(group: &Group<'_>) -> Result<Figure, Error> {
    let words = format!("{} on {}: time over spec's", group.operator, group.device_words());
    let ratio: Axis = ("right of 1 ×, spec is faster".into(), |ratio| plain(&times(ratio)));
    let mut panel = Panel::new(words.clone(), [ratio, (String::new(), |_| String::new())]);
    let all = group.over_spec();
    panel.lanes = distinct(all.iter().rev().map(|(row, _)| row.shape.clone()));
    for (row, ratio) in all {
        let lane = panel.lanes.iter().position(|lane| *lane == row.shape).unwrap_or(0);
        panel.add(&row.implementation, Kind::Points, ratio, 10f64.powi(lane as i32));
    }
    let height = 90 + 22 * panel.lanes.len() as u32;
    figure(&format!("{}-ratios-{}", group.operator, group.device), words, &[panel], height)
}

/// The rooflines of the devices, of this library's rows: bytes a second over
/// the bytes that a call must move.
pub fn rooflines(machines: &[Report]) -> Result<Figure, Error> {
    let devices =
        machines.iter().flat_map(|report| report.devices.iter().map(move |d| (report, d)));
    let mut panels: Vec<_> = devices.map(|(report, device)| roofline(report, &device.id)).collect();
    panels.retain(|panel| !panel.series.is_empty());
    let words = "roofline: bytes a second over the bytes that a call must move".to_owned();
    figure("rooflines", words, &panels, 330)
}

fn roofline(report: &Report, device: &str) -> Panel {
    let rate: Axis = ("bytes a second".into(), |rate| plain(&bytes(rate)) + "/s");
    let moved: Axis = ("bytes that a call must move".into(), |moved| plain(&bytes(moved)));
    let mut panel = Panel::new(device_words(report, device), [moved, rate]);
    let rows = report.measurements.iter().filter(|row| row.role == Role::Spec && row.bytes > 0);
    let (mut fewest, mut most, mut fastest) = (f64::INFINITY, 0f64, f64::INFINITY);
    for row in rows.filter(|row| row.device == device) {
        let (bytes, median) = (row.bytes as f64, row.median_us());
        panel.add(&row.operator, Kind::Points, bytes, bytes / median * 1e6);
        (fewest, most, fastest) = (fewest.min(bytes), most.max(bytes), fastest.min(median));
    }
    let known = report.device(device).filter(|_| most > 0.0);
    let Some(copy) = known.and_then(|device| device.copy_bytes_per_second) else { return panel };
    // What a submission costs bounds no row that is timed by timestamps within one.
    let overhead = known.and_then(|device| device.overhead_us).filter(|us| *us <= fastest);
    for i in 0..=60 {
        let bytes = fewest * (most / fewest).powf(f64::from(i) / 60.0);
        panel.add("a large copy", Kind::Bound, bytes, copy);
        if let Some(us) = overhead {
            let rate = bytes / (bytes / copy + us * 1e-6);
            panel.add("a copy and what an empty call costs", Kind::Bound, bytes, rate);
        }
    }
    panel
}

/// Panels beside and below each other, over their legend.
fn figure(name: &str, words: String, panels: &[Panel], height: u32) -> Result<Figure, Error> {
    let series = panels.iter().flat_map(|panel| &panel.series);
    let mut names = distinct(series.map(|series| (&*series.name, series.kind)));
    names.sort_by_key(|(_, kind)| *kind == Kind::Bound);
    let rows = panels.len().div_ceil(2) as u32;
    let size = (WIDTH, rows * height + (names.len() as u32).div_ceil(2) * LINE + LINE);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&root, panels, &names, rows * height).map_err(|e| Error(format!("a plot: {e}")))?;
    drop(root);
    Ok(Figure { name: name.to_owned(), words, svg })
}

fn draw<'s>(
    root: &DrawingArea<Backend<'s>, Shift>,
    panels: &[Panel],
    names: &[(&str, Kind)],
    height: u32,
) -> Drawn<'s> {
    root.fill(&WHITE)?;
    let (plots, legend) = root.split_vertically(height);
    let columns = panels.len().clamp(1, 2);
    let areas = plots.split_evenly((panels.len().div_ceil(columns), columns));
    for (area, panel) in areas.iter().zip(panels) {
        draw_panel(area, panel, names)?;
    }
    for (i, (name, kind)) in names.iter().enumerate() {
        let (column, row) = ((i % 2) as i32, (i / 2) as i32);
        let (x, y) = (column * WIDTH as i32 / 2 + 24, row * LINE as i32 + 8);
        if *kind != Kind::Points {
            legend.draw(&PathElement::new(vec![(x, y), (x + 24, y)], stroke(i, *kind)))?;
        }
        if *kind != Kind::Bound {
            legend.draw(&marker(i, (x + 12, y)))?;
        }
        legend.draw(&Text::new((*name).to_owned(), (x + 34, y - 6), FONT))?;
    }
    root.present()
}

fn draw_panel<'s>(
    area: &DrawingArea<Backend<'s>, Shift>,
    panel: &Panel,
    names: &[(&str, Kind)],
) -> Drawn<'s> {
    let Panel { title, axes: [(x_words, x_mark), (y_words, y_mark)], lanes, series } = panel;
    let points = || series.iter().flat_map(|series| &series.points);
    let x = decades(points().map(|p| p.0).chain((!lanes.is_empty()).then_some(1.0)));
    let y = match lanes.len() {
        0 => decades(points().map(|p| p.1)),
        lanes => 10f64.powf(-0.5)..10f64.powf(lanes as f64 - 0.5),
    };
    let longest = lanes.iter().map(|name| name.chars().count()).max().unwrap_or(9);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(8)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(25 + 7 * longest as u32)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    let lane = |y: f64| lanes.get(y.log10().round() as usize).cloned();
    chart
        .configure_mesh()
        .label_style(FONT)
        .x_desc(x_words)
        .y_desc(y_words)
        .x_labels(8)
        .y_labels(lanes.len().max(8))
        .max_light_lines(1)
        .x_label_formatter(&|x| x_mark(*x))
        .y_label_formatter(&|y| lane(*y).unwrap_or_else(|| y_mark(*y)))
        .draw()?;
    // This library, which comes first, lies on top.
    for Series { name, kind, points } in series.iter().rev() {
        let look = names.iter().position(|(other, _)| other == name).unwrap_or(0);
        if *kind != Kind::Points {
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke(look, *kind)))?;
        }
        if *kind != Kind::Bound {
            chart.draw_series(points.iter().map(|point| marker(look, *point)))?;
        }
    }
    Ok(())
}

/// The first of a legend, which is this library, has a colour of its own.
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

/// The whole decades that hold all values, at least one.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let exponents: Vec<f64> =
        values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10).collect();
    let low = exponents.iter().copied().reduce(f64::min).unwrap_or(0.0).floor();
    let high = exponents.iter().copied().reduce(f64::max).unwrap_or(0.0).ceil();
    10f64.powf(low)..10f64.powf(high.max(low + 1.0))
}

/// A mark's words without decimals that are zero: `10 µs` for `10.0 µs`.
fn plain(words: &str) -> String {
    words.replace(".00", "").replace(".0 ", " ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
