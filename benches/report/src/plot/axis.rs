//! Logarithmic axes: where a value lies, which ticks are worth a label.

/// A logarithmic axis from `low` to `high`, laid over pixels.
#[derive(Clone, Copy, Debug)]
pub struct LogAxis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogAxis {
    /// The axis that holds all `values` (those above 0) with some room, over the
    /// pixels `from` to `to`. Without values: one decade.
    pub fn around(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.into_iter().filter(|v| v.is_finite() && *v > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if high == 0.0 {
            (low, high) = (1.0, 10.0);
        }
        // A sixteenth of the span at each end, and at least a factor of two in all.
        let room = (high / low).powf(1.0 / 16.0).max(2f64.powf((1.0 - (high / low).log2()) / 2.0));
        LogAxis { low: low / room, high: high * room, from, to }
    }

    /// The pixel of a value; one beyond the axis is held at its end.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + part * (self.to - self.from)
    }

    /// Values worth a label: decades, with 2 and 5 where there are few of them,
    /// and more where there is not even one of those twice; every second or third
    /// decade where there are many.
    pub fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = match decades {
            d if d < 0.6 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            d if d < 2.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = (decades / 7.0).ceil().max(1.0) as i32;
        let wanted = |exponent: &i32| exponent % every == 0;
        self.exponents()
            .filter(wanted)
            .flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)))
            .filter(|tick| self.holds(*tick))
            .collect()
    }

    /// Values worth a thin line: 1 to 9 of each decade, where there are few.
    pub fn minor(&self) -> Vec<f64> {
        if (self.high / self.low).log10() > 5.0 {
            return vec![];
        }
        let each = |e| (1..10).map(move |i| f64::from(i) * 10f64.powi(e));
        self.exponents().flat_map(each).filter(|tick| self.holds(*tick)).collect()
    }

    fn exponents(&self) -> impl Iterator<Item = i32> + use<> {
        self.low.log10().floor() as i32..=self.high.log10().floor() as i32
    }

    /// The lowest and the highest value.
    pub fn ends(&self) -> [f64; 2] {
        [self.low, self.high]
    }

    /// Whether a value lies on the axis.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A count as a tick: `512`, `65,536`, `16.8 M`.
pub fn count(value: f64) -> String {
    let scaled = |unit: f64, name: &str| {
        let text = format!("{:.*}", if value / unit < 99.95 { 1 } else { 0 }, value / unit);
        format!("{} {name}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match value {
        v if v >= 1e9 => scaled(1e9, "G"),
        v if v >= 1e6 => scaled(1e6, "M"),
        v if v >= 1000.0 => {
            let whole = v.round() as u64;
            format!("{},{:03}", whole / 1000, whole % 1000)
        }
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v => format!("{v}"),
    }
}

/// A value with the unit that suits it, no more digits than it has: `200 µs`.
pub fn unit(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |(unit, _): &&(f64, &str)| value >= 0.9999 * unit;
    let Some((unit, name)) = units.iter().rev().find(fits).or(units.first()) else {
        return count(value);
    };
    let digits = (value / unit * 1e3).round() / 1e3;
    format!("{digits} {name}")
}

/// Units of time, from microseconds.
pub const TIME: &[(f64, &str)] = &[(1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s")];

/// Units of an amount of memory, from bytes.
pub const BYTES: &[(f64, &str)] =
    &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")];

/// Units of a rate, from bytes a second.
pub const RATE: &[(f64, &str)] =
    &[(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_distances() {
        let axis = LogAxis::around([1.0, 10_000.0], 100.0, 500.0);
        let steps: Vec<f64> = [1.0, 10.0, 100.0, 1000.0, 10_000.0]
            .map(|v| axis.at(v))
            .windows(2)
            .map(|w| w[1] - w[0])
            .collect();
        assert!(steps.iter().all(|step| (step - steps[0]).abs() < 1e-9), "{steps:?}");
        assert!(axis.at(1.0) > 100.0 && axis.at(10_000.0) < 500.0, "there is room at the ends");
        assert_eq!((axis.at(1e-9), axis.at(1e9)), (100.0, 500.0));
        // Upwards, as y axes are.
        let up = LogAxis::around([1.0, 10.0], 300.0, 20.0);
        assert!(up.at(2.0) > up.at(5.0));
    }

    #[test]
    fn one_value_or_none_is_an_axis_too() {
        let axis = LogAxis::around([7.0], 0.0, 100.0);
        assert!((axis.at(7.0) - 50.0).abs() < 1e-9);
        assert!(axis.ticks().len() >= 2, "{:?}", axis.ticks());
        let none = LogAxis::around([0.0, f64::NAN], 0.0, 100.0);
        assert!(none.at(3.0).is_finite() && !none.ticks().is_empty());
    }

    #[test]
    fn ticks_are_neither_few_nor_many() {
        for (low, high) in [
            (1.0, 1.2),
            (2.9, 3.1),
            (3.0, 5.0),
            (2.3, 50.0),
            (1.0, 999.0),
            (0.3, 5e6),
            (1.0, 1e12),
            (4.0, 1e20),
        ] {
            let axis = LogAxis::around([low, high], 0.0, 100.0);
            let ticks = axis.ticks();
            assert!((2..=10).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.is_sorted(), "{ticks:?}");
            assert!(axis.minor().len() <= 60);
        }
        assert_eq!(LogAxis::around([1.0, 1000.0], 0.0, 1.0).ticks(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn ticks_have_units() {
        for (value, words) in
            [(1.0, "1 µs"), (200.0, "200 µs"), (0.05, "50 ns"), (1e6, "1 s"), (5e4, "50 ms")]
        {
            assert_eq!(unit(value, TIME), words);
        }
        assert_eq!(unit(2e12, RATE), "2 TB/s");
        assert_eq!(unit(1e5, BYTES), "100 kB");
        for (value, words) in [
            (4.0, "4"),
            (1024.0, "1,024"),
            (65_536.0, "65,536"),
            (16_777_216.0, "16.8 M"),
            (134_217_728.0, "134 M"),
            (5e8, "500 M"),
        ] {
            assert_eq!(count(value), words);
        }
    }
}
