//! Bytes a second over the bytes of a call, against what the device's memory and
//! the cost of a call that does nothing allow.

use super::Look;
use super::axis::{BYTES, LogAxis, RATE, unit};
use super::canvas::{Anchor, Canvas, width};
use crate::view::{bytes, three_digits};

/// A roofline of a device.
pub struct Roofline {
    /// What stands over it.
    pub title: String,
    /// The operators.
    pub operators: Vec<Operator>,
    /// Bytes a second of a large copy.
    pub copy: Option<f64>,
    /// Microseconds of a call that does nothing.
    pub overhead: Option<f64>,
}

/// The rows of an operator.
pub struct Operator {
    pub name: String,
    pub look: Look,
    pub points: Vec<Point>,
}

/// A row.
pub struct Point {
    pub shape: String,
    pub bytes: f64,
    /// The median, in microseconds.
    pub median: f64,
}

impl Point {
    fn rate(&self) -> f64 {
        self.bytes / self.median * 1e6
    }
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 76.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;

impl Roofline {
    /// The plot.
    pub fn svg(&self) -> String {
        let names = self.operators.iter().map(|operator| width(&operator.name));
        let right = WIDTH - names.fold(90.0, f64::max) - 44.0;
        let points = || self.operators.iter().flat_map(|o| &o.points).filter(|p| p.bytes > 0.0);
        let x = LogAxis::around(points().map(|p| p.bytes), LEFT, right);
        let rates = points().map(Point::rate).chain(self.copy);
        let y = LogAxis::around(rates, HEIGHT - BOTTOM, TOP);

        let label = format!(
            "{}: bytes a second over bytes of a call, both logarithmic; the figures are in the tables",
            self.title
        );
        let mut canvas = Canvas::new(WIDTH, HEIGHT, &label);
        canvas.text("title", Anchor::Start, 12.0, 22.0, &self.title);
        for tick in y.ticks() {
            canvas.line("grid", [LEFT, right], [y.at(tick); 2]);
            canvas.text("tick", Anchor::End, LEFT - 7.0, y.at(tick) + 4.0, &unit(tick, RATE));
        }
        let mut free = f64::NEG_INFINITY;
        for tick in x.ticks() {
            let (at, label) = (x.at(tick), unit(tick, BYTES));
            canvas.line("grid", [at; 2], [TOP, HEIGHT - BOTTOM]);
            if at - width(&label) / 2.0 > free {
                canvas.text("tick", Anchor::Middle, at, HEIGHT - BOTTOM + 18.0, &label);
                free = at + width(&label) / 2.0 + 6.0;
            }
        }
        canvas.text("axis", Anchor::Start, 12.0, TOP - 6.0, "bytes a second");
        let words = "bytes that a call must move";
        canvas.text("axis", Anchor::Middle, f64::midpoint(LEFT, right), HEIGHT - 12.0, words);
        canvas.line("frame", [LEFT, right], [HEIGHT - BOTTOM; 2]);
        self.roof(&mut canvas, x, y, right);

        for operator in self.operators.iter().rev() {
            for point in operator.points.iter().filter(|p| p.bytes > 0.0) {
                let words = format!(
                    "{}, {}: {}, {} GB/s",
                    operator.name,
                    point.shape,
                    bytes(point.bytes),
                    three_digits(point.rate() / 1e9)
                );
                canvas.marker(operator.look, x.at(point.bytes), y.at(point.rate()), &words);
            }
        }
        let mut at = TOP + 48.0;
        for operator in &self.operators {
            canvas.marker(operator.look, right + 24.0, at, "");
            canvas.text("name", Anchor::Start, right + 34.0, at + 4.0, &operator.name);
            at += 20.0;
        }
        canvas.finish()
    }

    /// What can be reached: the copy's rate, less what starting a call takes.
    fn roof(&self, canvas: &mut Canvas, x: LogAxis, y: LogAxis, right: f64) {
        let Some(copy) = self.copy else { return };
        canvas.line("floor", [LEFT, right], [y.at(copy); 2]);
        let words = format!("copy, {} GB/s", three_digits(copy / 1e9));
        // Above the line and where the calls are small: nothing comes near it there.
        canvas.text("soft", Anchor::Start, LEFT + 8.0, y.at(copy) - 6.0, &words);
        let Some(overhead) = self.overhead else { return };
        let [low, high] = x.ends();
        let curve: Vec<(f64, f64)> = (0..=120)
            .map(|i| low * (high / low).powf(f64::from(i) / 120.0))
            .map(|bytes| (bytes, bytes / (overhead * 1e-6 + bytes / copy)))
            .filter(|(_, rate)| y.holds(*rate))
            .map(|(bytes, rate)| (x.at(bytes), y.at(rate)))
            .collect();
        canvas.path("frame", &curve);
        if let Some(middle) = curve.get(curve.len() / 3) {
            let words = format!("with {} µs a call", three_digits(overhead));
            canvas.text("soft", Anchor::End, middle.0 - 8.0, middle.1 - 4.0, &words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_over_time_and_rows_without_bytes_are_left_out() {
        let point = |bytes, median| Point { shape: "some".into(), bytes, median };
        let roofline = Roofline {
            title: "cuda:0".into(),
            operators: vec![Operator {
                name: "topk_router".into(),
                look: Look::nth(0),
                points: vec![point(1e6, 2.0), point(3e9, 1100.0), point(0.0, 3.0)],
            }],
            copy: Some(3e12),
            overhead: Some(0.9),
        };
        let svg = roofline.svg();
        assert!(svg.contains("<title>topk_router, some: 1.00 MB, 500 GB/s</title>"), "{svg}");
        assert!(
            svg.contains(">copy, 3000 GB/s</text>") && svg.contains(">with 0.90 µs a call</text>")
        );
        assert_eq!(svg.matches("class=\"marker k0\"").count(), 2 + 1);
        assert!(!svg.contains("NaN"));
        let bare = Roofline { copy: None, overhead: None, ..roofline };
        assert!(!bare.svg().contains("copy"));
    }
}
