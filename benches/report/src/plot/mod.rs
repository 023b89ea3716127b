//! Plots as SVG.
//!
//! Three kinds, each in its file, each a `svg(&self) -> String`: [`lines`] (time
//! over size, both logarithmic), [`bars`] (how many times as long others take),
//! [`roofline`] (bytes a second over bytes a call). What they share is here and
//! in [`axis`] and [`canvas`].
//!
//! Colours are Okabe and Ito's, which stay apart without colour vision, and no
//! curve is told by its colour alone: marker and dash differ too. Colours are
//! classes; [`STYLE`] gives them for light and dark.

pub mod axis;
pub mod bars;
pub mod canvas;
pub mod lines;
pub mod roofline;

/// The classes of every plot, for a page that holds them.
pub const STYLE: &str = include_str!("style.css");

/// How one implementation or operator looks, in every plot of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look(usize);

impl Look {
    /// Looks that differ.
    pub const COUNT: usize = 8;

    /// The look of this library.
    pub const SPEC: Look = Look(0);

    /// The look of the `i`th of the others; from the eighth on they repeat.
    pub fn other(i: usize) -> Self {
        Look(1 + i % (Look::COUNT - 1))
    }

    /// The look of the `i`th where none is this library.
    pub fn nth(i: usize) -> Self {
        Look(i % Look::COUNT)
    }

    /// The class that sets the colour.
    fn class(self) -> String {
        format!("k{}", self.0)
    }

    /// The dash of its line.
    fn dash(self) -> &'static str {
        ["none", "8 4", "2 3", "10 3 2 3", "5 2", "12 4", "3 2 1 2", "1 4"][self.0]
    }

    /// The outline of its marker around (0, 0), about ten units wide.
    fn marker(self) -> &'static str {
        [
            "M4.5 0A4.5 4.5 0 1 1 -4.5 0A4.5 4.5 0 1 1 4.5 0Z",
            "M-4 -4H4V4H-4Z",
            "M0 -5.2L5 3.8H-5Z",
            "M0 -5.8L5.2 0L0 5.8L-5.2 0Z",
            "M0 5.2L5 -3.8H-5Z",
            "M-4.6 -2.6L-2.6 -4.6L0 -2L2.6 -4.6L4.6 -2.6L2 0L4.6 2.6L2.6 4.6L0 2L-2.6 4.6L-4.6 2.6L-2 0Z",
            "M-1.5 -5.2H1.5V-1.5H5.2V1.5H1.5V5.2H-1.5V1.5H-5.2V-1.5H-1.5Z",
            "M0 -5.6L1.5 -1.9L5.4 -1.7L2.4 0.8L3.4 4.6L0 2.5L-3.4 4.6L-2.4 0.8L-5.4 -1.7L-1.5 -1.9Z",
        ][self.0]
    }
}
