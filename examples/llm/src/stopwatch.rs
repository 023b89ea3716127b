//! The times of the parts of a decode loop.

use std::time::{Duration, Instant};

use crate::Result;

/// Adds up the time of calls by name.
#[derive(Default)]
pub struct Stopwatch {
    /// The name, the total time and the number of calls of each part.
    pub laps: Vec<(&'static str, Duration, usize)>,
}

impl Stopwatch {
    /// Runs `call` and adds its time to the part `name`.
    ///
    /// # Errors
    /// The error of `call`.
    pub fn measure<T, E>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = call()?;
        let time = started.elapsed();
        match self.laps.iter_mut().find(|lap| lap.0 == name) {
            Some(lap) => {
                lap.1 += time;
                lap.2 += 1;
            }
            None => self.laps.push((name, time, 1)),
        }
        Ok(result)
    }
}
