//! How many times as long others take as this library: a bar each, on a
//! logarithmic axis around 1.

use super::Look;
use super::axis::{LogAxis, count};
use super::canvas::{Anchor, Canvas, width};
use crate::view::three_digits;

/// Bars, by shape.
pub struct Bars {
    /// What stands over them.
    pub title: String,
    /// The shapes, from the top.
    pub groups: Vec<Group>,
}

/// One shape.
pub struct Group {
    /// The shape.
    pub shape: String,
    pub bars: Vec<Bar>,
}

/// One other implementation of it.
pub struct Bar {
    pub name: String,
    pub look: Look,
    /// Its time over this library's.
    pub ratio: f64,
}

const WIDTH: f64 = 620.0;
const BAR: f64 = 13.0;
const GAP: f64 = 9.0;

impl Bars {
    /// The plot.
    pub fn svg(&self) -> String {
        let legend = self.legend();
        let shapes = self.groups.iter().map(|group| width(&group.shape));
        let left = shapes.fold(40.0, f64::max) + 22.0;
        let right = WIDTH - 58.0;
        let top = 44.0 + 18.0 * legend.len() as f64 + 14.0;
        let height = |group: &Group| group.bars.len() as f64 * BAR + GAP;
        let bottom = top + self.groups.iter().map(height).sum::<f64>() + 4.0;
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let x = LogAxis::around(bars().map(|bar| bar.ratio).chain([1.0]), left, right);

        let label = format!(
            "{}: the time of others over that of spec, by shape; the figures are in the table",
            self.title
        );
        let mut canvas = Canvas::new(WIDTH, bottom + 48.0, &label);
        canvas.text("title", Anchor::Start, 12.0, 22.0, &self.title);
        for (row, line) in legend.iter().enumerate() {
            let mut at = 20.0;
            for (name, look) in line {
                let y = 42.0 + 18.0 * row as f64;
                canvas.marker(*look, at, y, "");
                canvas.text("name", Anchor::Start, at + 10.0, y + 4.0, name);
                at += width(name) + 34.0;
            }
        }
        let mut free = f64::NEG_INFINITY;
        for tick in x.ticks() {
            let (at, label) = (x.at(tick), format!("{} ×", count(tick)));
            canvas.line("grid", [at; 2], [top - 4.0, bottom]);
            if at - width(&label) / 2.0 > free {
                canvas.text("tick", Anchor::Middle, at, bottom + 17.0, &label);
                free = at + width(&label) / 2.0 + 6.0;
            }
        }
        let mut y = top;
        for group in &self.groups {
            let middle = y + group.bars.len() as f64 * BAR / 2.0;
            canvas.text("name", Anchor::End, left - 10.0, middle + 4.0, &group.shape);
            for bar in &group.bars {
                let end = x.at(bar.ratio);
                canvas.bar(bar.look, [x.at(1.0), end], y + 2.0, BAR - 4.0);
                let words = format!("{}, {}: {}", bar.name, group.shape, times(bar.ratio));
                canvas.marker(bar.look, end, y + BAR / 2.0, &words);
                // Beside the end that is away from 1; right of 1 where that is the left.
                let from = if bar.ratio >= 1.0 { end } else { x.at(1.0) };
                canvas.text(
                    "soft",
                    Anchor::Start,
                    from + 9.0,
                    y + BAR / 2.0 + 4.0,
                    &times(bar.ratio),
                );
                y += BAR;
            }
            y += GAP;
        }
        canvas.line("goal", [x.at(1.0); 2], [top - 4.0, bottom]);
        let words = "time over spec's time: right of 1 spec is faster";
        canvas.text("axis", Anchor::Middle, f64::midpoint(left, right), bottom + 37.0, words);
        canvas.finish()
    }

    /// The names with their markers, in lines that fit.
    fn legend(&self) -> Vec<Vec<(&str, Look)>> {
        let mut lines: Vec<Vec<(&str, Look)>> = vec![];
        let (mut seen, mut used) = (vec![], 0.0);
        for bar in self.groups.iter().flat_map(|group| &group.bars) {
            if seen.contains(&&bar.name) {
                continue;
            }
            seen.push(&bar.name);
            let need = width(&bar.name) + 34.0;
            match lines.last_mut() {
                Some(line) if used + need <= WIDTH - 20.0 => line.push((&bar.name, bar.look)),
                _ => {
                    lines.push(vec![(&bar.name, bar.look)]);
                    used = 0.0;
                }
            }
            used += need;
        }
        lines
    }
}

fn times(ratio: f64) -> String {
    format!("{} ×", three_digits(ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, i: usize, ratio: f64) -> Bar {
        Bar { name: name.into(), look: Look::other(i), ratio }
    }

    #[test]
    fn bars_start_at_one_and_end_at_their_ratio() {
        let bars = Bars {
            title: "unique on cpu".into(),
            groups: vec![
                Group {
                    shape: "small".into(),
                    bars: vec![bar("sort", 0, 4.0), bar("hash", 1, 0.5)],
                },
                Group { shape: "large".into(), bars: vec![bar("sort", 0, 2.0)] },
            ],
        };
        let svg = bars.svg();
        let rects: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.contains("class=\"bar"))
            .map(|line| {
                let field = |name: &str| -> f64 {
                    let at = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
                    line[at..].split('"').next().unwrap().parse().unwrap()
                };
                (field("x"), field("width"))
            })
            .collect();
        let [(four, four_wide), (half, half_wide), (two, two_wide)] = rects[..] else {
            panic!("{rects:?}")
        };
        assert!((four - two).abs() < 0.11 && (four_wide - 2.0 * two_wide).abs() < 0.3);
        assert!((half + half_wide - four).abs() < 0.11 && (half_wide - two_wide).abs() < 0.3);
        // Each name once, each ratio beside its bar.
        assert_eq!(svg.matches(">sort</text>").count(), 1);
        for words in [">4.00 ×</text>", ">0.50 ×</text>", ">2.00 ×</text>"] {
            assert!(svg.contains(words), "{words}");
        }
    }
}
