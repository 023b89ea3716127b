//! The time of each operator and of the models.

use std::time::{Duration, Instant};

use spec::Handle;

/// Adds up the time of operators and models.
pub struct Stopwatch {
    handle: Handle,
    /// The name, time and calls of each operator.
    pub laps: Vec<(&'static str, Duration, usize)>,
    /// The target model's runs.
    pub target: Runs,
    /// The draft model's runs.
    pub draft: Runs,
}

/// The runs of a model.
#[derive(Default)]
pub struct Runs {
    /// How many.
    pub count: usize,
    /// Their time.
    pub time: Duration,
}

impl Runs {
    /// Runs a model, and waits where that took less than `least`.
    pub fn run(&mut self, least: Duration, model: impl FnOnce()) {
        let started = Instant::now();
        model();
        // Sleeping leaves the cores to others, as a model on a GPU does.
        std::thread::sleep(least.saturating_sub(started.elapsed()));
        self.count += 1;
        self.time += started.elapsed();
    }
}

impl Stopwatch {
    /// Nothing measured so far; waits for the work on `handle`.
    pub fn new(handle: &Handle) -> Self {
        Stopwatch {
            handle: handle.clone(),
            laps: Vec::new(),
            target: Runs::default(),
            draft: Runs::default(),
        }
    }

    /// Measures one call and waits for the device to finish it.
    pub fn measure(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> spec::Result<()>,
    ) -> spec::Result<()> {
        let started = Instant::now();
        call()?;
        self.handle.synchronize()?;
        let time = started.elapsed();
        match self.laps.iter_mut().find(|lap| lap.0 == name) {
            Some(lap) => {
                lap.1 += time;
                lap.2 += 1;
            }
            None => self.laps.push((name, time, 1)),
        }
        Ok(())
    }
}
