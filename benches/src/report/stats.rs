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

/// The interval, in the samples' unit, that holds the middle four fifths of
/// them: a tenth lies below, a tenth above.
#[must_use]
pub fn spread(samples: &[f64]) -> (f64, f64) {
    (quantile(samples, 0.1), quantile(samples, 0.9))
}
