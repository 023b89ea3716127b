//! Writing to stdout, and progress on stderr.

use std::io::{ErrorKind, IsTerminal, Write};
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
