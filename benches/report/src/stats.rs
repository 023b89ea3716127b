//! What few, skewed samples say: median and spread.
//!
//! Times are skewed: nothing makes a call faster than it is, and much makes it
//! slower. So nothing here takes a mean or a standard deviation.

/// The middle of the samples; between the two middle ones where their number is
/// even. NaN without samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Where a share `q` (0 to 1) of the samples lies below, between the two
/// samples next to it by distance. NaN without samples.
#[must_use]
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// Where the middle four fifths of the samples lie, in the samples' unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// One tenth of the samples lie below.
    pub low: f64,
    /// One tenth of the samples lie above.
    pub high: f64,
}

impl Spread {
    /// The interval's width over the samples' median; 0.02 is two percent.
    #[must_use]
    pub fn relative(&self, median: f64) -> f64 {
        (self.high - self.low) / median
    }
}

/// The central interval that holds four fifths of the samples.
#[must_use]
pub fn spread(samples: &[f64]) -> Spread {
    Spread { low: quantile(samples, 0.1), high: quantile(samples, 0.9) }
}
