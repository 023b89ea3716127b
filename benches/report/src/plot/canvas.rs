//! SVG text: escaping, elements, how wide words are.

use std::fmt::Write;

use super::Look;

/// Text that may stand in an element or a quoted attribute, of XML and of HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters have no place in XML, not even escaped.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// About how many pixels a text takes at the plots' 12 pixels: no font is at
/// hand, so this is on the wide side of the common ones.
pub fn width(text: &str) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 3.8,
        'f' | 't' | 'r' | ' ' | '(' | ')' | '[' | ']' | '-' => 4.9,
        'm' | 'w' | 'M' | 'W' | '%' => 10.6,
        c if c.is_uppercase() => 8.4,
        _ => 7.2,
    };
    text.chars().map(of).sum()
}

/// `text` in lines of at most `most` pixels, broken at spaces.
pub fn wrap(text: &str, most: f64) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + width(" ") + width(word) <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Where a text starts, ends or has its middle.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG that grows. Coordinates are pixels from the top left.
pub struct Canvas {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

impl Canvas {
    /// A canvas that says `label` to those who do not see it.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        Canvas { width, height, label: escape(label), body: String::new() }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    pub fn line(&mut self, class: &str, x: [f64; 2], y: [f64; 2]) {
        let ([x1, x2], [y1, y2]) = (x, y);
        self.push(format_args!("<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>"));
    }

    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let d = outline(points);
        self.push(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
    }

    /// A curve in a look's colour and dash.
    pub fn curve(&mut self, look: Look, points: &[(f64, f64)]) {
        let (class, dash, d) = (look.class(), look.dash(), outline(points));
        self.push(format_args!(
            "<path class=\"curve {class}\" stroke-dasharray=\"{dash}\" d=\"{d}\"/>"
        ));
    }

    pub fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ));
    }

    /// A bar in a look's colour.
    pub fn bar(&mut self, look: Look, x: [f64; 2], y: f64, height: f64) {
        let class = format!("bar {}", look.class());
        self.rect(&class, x[0].min(x[1]), y, (x[1] - x[0]).abs(), height);
    }

    /// The marker of a look, with words for those who point at it.
    pub fn marker(&mut self, look: Look, x: f64, y: f64, title: &str) {
        let (class, d) = (look.class(), look.marker());
        let title = match title {
            "" => String::new(),
            words => format!("<title>{}</title>", escape(words)),
        };
        self.push(format_args!(
            "<path class=\"marker {class}\" transform=\"translate({x:.1} {y:.1})\" d=\"{d}\">{title}</path>"
        ));
    }

    /// The interval of a point's samples, in its colour.
    pub fn error(&mut self, look: Look, x: f64, y: [f64; 2]) {
        let class = format!("error {}", look.class());
        self.line(&class, [x, x], y);
    }

    pub fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    /// The SVG, for a page that has the classes.
    pub fn finish(self) -> String {
        let Canvas { width, height, label, body } = self;
        format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{label}\">\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
        )
    }
}

/// An SVG of [`Canvas::finish`] as a file of its own: with the classes in it.
pub fn standalone(svg: &str) -> String {
    match svg.split_once('\n') {
        Some((head, body)) => format!("{head}\n<style>\n{}</style>\n{body}", super::STYLE),
        None => svg.to_owned(),
    }
}

fn outline(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_means_something_by_is_escaped() {
        assert_eq!(
            escape("a<b & \"c\" > 'd'\u{7}µ"),
            "a&lt;b &amp; &quot;c&quot; &gt; &#39;d&#39; µ"
        );
        let mut canvas = Canvas::new(10.0, 10.0, "x < \"y\"");
        canvas.text("tick", Anchor::End, 1.0, 2.0, "<script>");
        canvas.marker(Look::SPEC, 1.0, 1.0, "a & b");
        let svg = canvas.finish();
        assert!(svg.contains("aria-label=\"x &lt; &quot;y&quot;\""), "{svg}");
        assert!(svg.contains(">&lt;script&gt;</text>") && svg.contains("<title>a &amp; b</title>"));
    }

    #[test]
    fn words_wrap_at_spaces_and_none_is_lost() {
        let text = "two-phase search with a block scan";
        let lines = wrap(text, 100.0);
        assert!(lines.len() > 1 && lines.iter().all(|line| width(line) <= 100.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrap("averyveryverylongword", 10.0), ["averyveryverylongword"]);
    }

    #[test]
    fn a_file_of_its_own_has_the_classes() {
        let svg = standalone(&Canvas::new(10.0, 10.0, "x").finish());
        assert!(svg.starts_with("<svg ") && svg.contains("<style>") && svg.contains(".k0"));
    }
}
