//! Writing to stdout, and progress on stderr.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Error, Result, complain};

/// Writes to stdout.
pub fn write(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| {
        match error.kind() {
            ErrorKind::BrokenPipe => Error::BrokenPipe,
            _ => Error::Output(error),
        }
    })
}

/// Writes one JSON value to stdout, indented.
pub fn write_json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value:#}\n"))
}

/// A bar on stderr that appears once something has taken a second, and only
/// where stderr is a terminal.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    hidden: bool,
}

impl Progress {
    const DELAY: Duration = Duration::from_secs(1);

    /// `total` units of `what`, where it is known how many.
    pub fn new(what: &'static str, total: Option<usize>) -> Progress {
        let target = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(total.map(|total| total as u64), target);
        let template = match total {
            Some(_) => "{bar:30} {pos}/{len} {prefix}, {eta} left  {msg}",
            None => "{spinner} {pos} {prefix}  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        Progress { bar, started: Instant::now(), hidden: true }
    }

    /// So many units are done.
    pub fn set(&mut self, done: usize) {
        self.bar.set_position(done as u64);
        if self.hidden && self.started.elapsed() > Self::DELAY && std::io::stderr().is_terminal() {
            self.hidden = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// So many units are done; `now` is what comes next.
    pub fn at(&mut self, done: usize, now: &'static str) {
        self.bar.set_message(now);
        self.set(done);
    }

    /// Writes a line to stderr, above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| complain(line));
    }

    /// One more unit is done; `now` is what comes next.
    pub fn step(&mut self, now: &'static str) {
        self.at(self.bar.position() as usize + 1, now);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A bar of bytes on stderr, with phase, rate and time left, that appears once
/// something has taken a second, and only where stderr is a terminal.
pub struct ByteProgress {
    bar: Mutex<Option<(&'static str, ProgressBar)>>,
    started: Instant,
    terminal: bool,
}

impl ByteProgress {
    /// Nothing to see yet.
    pub fn new() -> ByteProgress {
        let terminal = std::io::stderr().is_terminal();
        ByteProgress { bar: Mutex::new(None), started: Instant::now(), terminal }
    }

    /// So many bytes of a phase are done; of so many, where that is known.
    pub fn set(&self, phase: &'static str, done: u64, total: Option<u64>) {
        if !self.terminal || self.started.elapsed() < Progress::DELAY {
            return;
        }
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        match bar.as_ref() {
            Some((shown, bar)) if *shown == phase && bar.length() == total => {
                bar.set_position(done);
            }
            _ => {
                if let Some((_, old)) = bar.take() {
                    old.finish_and_clear();
                }
                let target = ProgressDrawTarget::stderr();
                let new = ProgressBar::with_draw_target(total, target).with_position(done);
                let template = match total {
                    Some(_) => {
                        "{prefix:<7} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left"
                    }
                    None if done > 0 => "{prefix:<7} {spinner} {bytes} {bytes_per_sec}",
                    None => "{prefix:<7} {spinner}",
                };
                if let Ok(style) = ProgressStyle::with_template(template) {
                    new.set_style(style);
                }
                new.set_prefix(phase);
                new.tick();
                *bar = Some((phase, new));
            }
        }
    }

    /// Clears the bar.
    pub fn finish(&self) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bar)) = bar.take() {
            bar.finish_and_clear();
        }
    }
}
