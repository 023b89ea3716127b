//! How long calls take: the work that a backend times, and the result. Each backend has
//! [`time`](crate::Backend::time) of its own, since each kind of device measures time in another way.

use std::time::Instant;

use crate::{Result, Stream};

/// Work that is timed: calls made back to back. A closure that makes one call implements this.
pub trait Timed {
    /// Enqueues one call on `stream`, and nothing else.
    ///
    /// # Errors
    /// The errors of the call, which end the timing.
    fn call(&mut self, stream: Stream<'_>) -> Result<()>;

    /// Restores the data that calls change in place. Runs before the calls of each sample and
    /// is not timed.
    ///
    /// # Errors
    /// The errors of writing to a device, which end the timing.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<F: FnMut(Stream<'_>) -> Result<()>> Timed for F {
    fn call(&mut self, stream: Stream<'_>) -> Result<()> {
        self(stream)
    }
}

/// The result of timing.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// For each sample, the seconds of one call.
    pub seconds: Vec<f64>,
    /// How it was measured, in words: "20 calls in a CUDA graph, events".
    pub method: String,
}

impl Timing {
    /// Seconds of one call: the median of the samples, 0 where there are none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }
}

/// Times by the host's clock: from the first call of a sample until `synchronize` has waited
/// for all calls of the sample. For devices without a better clock, and for calls that wait by
/// themselves, for which no other way exists.
///
/// # Errors
/// The errors of the calls and of `synchronize`.
pub fn by_clock(
    synchronize: &dyn Fn() -> Result<()>,
    samples: usize,
    calls: usize,
    work: &mut dyn Timed,
) -> Result<Timing> {
    let calls = calls.max(1);
    let mut seconds = Vec::new();
    // The first sample warms up and is not counted.
    for sample in 0..=samples {
        work.reset()?;
        synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            work.call(Stream::default())?;
        }
        synchronize()?;
        if sample > 0 {
            seconds.push(start.elapsed().as_secs_f64() / calls as f64);
        }
    }
    Ok(Timing { seconds, method: format!("{}, clock", count(calls)) })
}

/// A number of calls in words: "1 call", "20 calls".
pub fn count(calls: usize) -> String {
    if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[derive(Default)]
    struct Counted {
        /// Calls between one reset and the next.
        samples: Vec<usize>,
    }

    impl Timed for Counted {
        fn call(&mut self, _stream: Stream<'_>) -> Result<()> {
            *self.samples.last_mut().expect("a reset before the first call") += 1;
            std::thread::sleep(std::time::Duration::from_micros(300));
            Ok(())
        }

        fn reset(&mut self) -> Result<()> {
            self.samples.push(0);
            Ok(())
        }
    }

    fn time(samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        by_clock(&|| Ok(()), samples, calls, work)
    }

    #[test]
    fn samples_are_seconds_of_one_call() {
        let mut work = Counted::default();
        let timing = time(4, 3, &mut work).unwrap();
        assert_eq!(work.samples, [3; 5], "one to warm up, and four");
        assert_eq!(timing.seconds.len(), 4);
        assert!(timing.seconds.iter().all(|s| (3e-4..0.1).contains(s)), "{timing:?}");
        assert_eq!(timing.method, "3 calls, clock");
        let timing = time(1, 0, &mut work).unwrap();
        assert_eq!(timing.method, "1 call, clock");
    }

    #[test]
    fn an_error_ends_timing() {
        let failure = || crate::Error::device(Device::CPU, crate::Status::InternalError, "no");
        let mut left = 5;
        let mut work = |_: Stream<'_>| {
            left -= 1;
            if left == 0 { Err(failure()) } else { Ok(()) }
        };
        assert_eq!(time(9, 2, &mut work), Err(failure()));
        assert_eq!(left, 0);
    }

    #[test]
    fn medians() {
        let median =
            |seconds: &[f64]| Timing { seconds: seconds.to_vec(), method: String::new() }.median();
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }
}
