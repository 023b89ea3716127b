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

/// The probability that two samples of one and the same distribution would lie
/// as far apart as these do, or further: the two-sided Mann-Whitney test, which
/// looks at the order of the samples alone, so that skew and outliers do not
/// matter. 1 where either is empty.
///
/// Exact for up to 40 samples together that all differ; else by the normal
/// approximation, corrected for ties and continuity.
#[must_use]
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|v| (*v, true)).chain(b.iter().map(|v| (*v, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    // Ranks from 1; equals share the mean of theirs.
    let (mut rank_sum, mut ties, mut at) = (0.0, 0.0, 0);
    for equals in all.chunk_by(|x, y| x.0 == y.0) {
        let count = equals.len() as f64;
        let rank = at as f64 + f64::midpoint(1.0, count);
        rank_sum += rank * equals.iter().filter(|(_, of_a)| *of_a).count() as f64;
        ties += count.powi(3) - count;
        at += equals.len();
    }
    // How many pairs have the value of `a` above that of `b`.
    let (n_f, m_f) = (n as f64, m as f64);
    let u = rank_sum - n_f * (n_f + 1.0) / 2.0;
    let low = u.min(n_f * m_f - u);
    let p = if ties == 0.0 && n + m <= 40 {
        2.0 * share_of_orders(n, m, low as usize)
    } else {
        let total = n_f + m_f;
        let variance = n_f * m_f / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
        if variance <= 0.0 {
            return 1.0; // all equal
        }
        let z = (n_f * m_f / 2.0 - low - 0.5).max(0.0) / variance.sqrt();
        2.0 * normal_tail(z)
    };
    p.min(1.0)
}

/// Of all orders of `n` and `m` samples, the share with at most `u` pairs of
/// which the first is above the second.
fn share_of_orders(n: usize, m: usize, u: usize) -> f64 {
    // ways[j][v]: orders of i and j samples with v such pairs. The largest
    // sample is one of the i, above all j, or one of the j, above none.
    let mut ways = vec![vec![0.0f64; n * m + 1]; m + 1];
    ways.iter_mut().for_each(|of_j| of_j[0] = 1.0);
    for _ in 0..n {
        let before = ways.clone();
        for j in 0..=m {
            for v in 0..=n * m {
                let ours = if v >= j { before[j][v - j] } else { 0.0 };
                let theirs = if j > 0 { ways[j - 1][v] } else { 0.0 };
                ways[j][v] = ours + theirs;
            }
        }
    }
    ways[m][..=u].iter().sum::<f64>() / ways[m].iter().sum::<f64>()
}

/// The share of a normal distribution that lies above `z` >= 0 deviations.
fn normal_tail(z: f64) -> f64 {
    // Simpson's rule over twelve deviations: the rest is below 1e-32.
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, width) = (2000, 12.0 / 2000.0);
    let term = |i: usize| {
        let weight = match i {
            0 => 1.0,
            i if i == steps => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        weight * density(z + i as f64 * width)
    };
    (0..=steps).map(term).sum::<f64>() * width / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mann_whitney_agrees_with_tables() {
        // Five and five, wholly apart: 2 of the 252 orders.
        let apart = mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((apart - 2.0 / 252.0).abs() < 1e-12, "{apart}");
        // As scipy.stats.mannwhitneyu(method="exact").
        let near = mann_whitney(&[1.0, 3.0, 5.0, 7.0], &[2.0, 4.0, 6.0, 8.0, 10.0]);
        assert!((near - 0.412_698_412_698).abs() < 1e-9, "{near}");
        // As scipy.stats.mannwhitneyu(method="asymptotic"), with ties.
        let tied = mann_whitney(&[1.0, 2.0, 2.0, 3.0, 4.0], &[2.0, 4.0, 5.0, 6.0, 7.0]);
        assert!((tied - 0.071_369_010_924).abs() < 1e-9, "{tied}");
        assert_eq!(mann_whitney(&[5.0; 8], &[5.0; 8]), 1.0);
        assert_eq!(mann_whitney(&[], &[1.0]), 1.0);
    }

    #[test]
    fn the_tail_of_a_normal_distribution() {
        for (z, share) in [(0.0, 0.5), (1.959_963_984_540, 0.025), (5.0, 2.866_515_719e-7)] {
            assert!((normal_tail(z) / share - 1.0).abs() < 1e-8, "{z}");
        }
    }
}
