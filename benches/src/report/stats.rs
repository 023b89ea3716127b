//! Statistics of a few, skewed samples: median and spread.
//!
//! Samples of times are skewed: many things make a call slower, nothing makes a call
//! faster. So this module has no mean and no standard deviation.

/// The median of the samples: for an even number of samples, the mean of the two middle
/// samples. NaN without samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The value below which a share `q` (0 to 1) of the samples lies, interpolated
/// between the two nearest samples. NaN without samples.
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

/// The interval that holds the middle four fifths of the samples, in their unit: a
/// tenth of the samples lies below, a tenth above.
#[must_use]
pub fn spread(samples: &[f64]) -> (f64, f64) {
    (quantile(samples, 0.1), quantile(samples, 0.9))
}
