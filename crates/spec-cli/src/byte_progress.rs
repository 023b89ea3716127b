//! The progress of a run in bytes: a bar on a terminal, lines in a log.

use std::io::IsTerminal;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use console::Term;

use super::complain;

/// How long a run takes before a bar appears.
const DELAY: Duration = Duration::from_secs(1);
/// How often a bar is drawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is written.
const LINE: Duration = Duration::from_secs(5);

/// Shows on stderr the phase of a run, the bytes that the phase has done, its
/// rate, and the remaining time.
pub struct ByteProgress {
    shared: Arc<Shared>,
    /// The thread that draws at regular times, whether or not there is progress.
    drawing: Option<JoinHandle<()>>,
    /// Whether the beginning of a phase is written as a line.
    lines: bool,
}

/// Where progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// As a bar if stderr is a terminal, otherwise nowhere.
    Bar,
    /// As a bar if stderr is a terminal, otherwise as lines.
    Lines,
    /// Nowhere.
    Nowhere,
}

type Shared = (Mutex<State>, Condvar);

struct State {
    started: Instant,
    now: Option<Now>,
    ended: bool,
}

/// A phase that has begun.
#[derive(Clone, Copy)]
struct Now {
    phase: &'static str,
    began: Instant,
    /// Bytes that were done when the phase began.
    from: u64,
    done: u64,
    total: Option<u64>,
}

impl ByteProgress {
    /// Starts showing progress; nothing appears before the first [`set`](Self::set).
    pub fn new(shown: Shown) -> ByteProgress {
        let state = State { started: Instant::now(), now: None, ended: false };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let is_terminal = std::io::stderr().is_terminal();
        let (draw, lines): (fn(&Shared), _) = match shown {
            Shown::Bar | Shown::Lines if is_terminal => (draw_bar, false),
            Shown::Lines => (write_lines, true),
            _ => return ByteProgress { shared, drawing: None, lines: false },
        };
        let theirs = Arc::clone(&shared);
        // If no thread can be started, no progress is shown: the run itself needs
        // threads and reports the problem.
        let drawing = std::thread::Builder::new().spawn(move || draw(&theirs)).ok();
        ByteProgress { shared, drawing, lines }
    }

    /// Shows that `done` bytes of a phase are done; `total` is the size of the phase, if known.
    pub fn set(&self, phase: &'static str, done: u64, total: Option<u64>) {
        if self.drawing.is_none() {
            return;
        }
        let mut state = lock(&self.shared.0);
        match &mut state.now {
            Some(now) if now.phase == phase && now.total == total && now.done <= done => {
                now.done = done;
            }
            now => {
                let new = Now { phase, began: Instant::now(), from: done, done, total };
                if self.lines {
                    new.say();
                }
                *now = Some(new);
            }
        }
    }

    /// Ends the drawing thread and clears the bar.
    pub fn finish(mut self) {
        lock(&self.shared.0).ended = true;
        self.shared.1.notify_all();
        if let Some(drawing) = self.drawing.take() {
            _ = drawing.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `each` with the time since the start and the current phase, every
/// [`REDRAW`], until the run ends.
fn watch(shared: &Shared, mut each: impl FnMut(Duration, Now)) {
    let (state, ended) = shared;
    let mut state = lock(state);
    while !state.ended {
        let (started, now) = (state.started, state.now);
        drop(state);
        if let Some(now) = now {
            each(started.elapsed(), now);
        }
        let held = lock(&shared.0);
        state = if held.ended {
            held
        } else {
            ended.wait_timeout(held, REDRAW).unwrap_or_else(PoisonError::into_inner).0
        };
    }
}

/// The state of the bar on the terminal.
struct Drawn {
    is_there: bool,
    /// Whether drawing has ended for good.
    closed: bool,
}

static DRAWN: Mutex<Drawn> = Mutex::new(Drawn { is_there: false, closed: false });

impl Drawn {
    /// Clears the line of the bar. A failed write to the terminal is ignored.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_there) {
            _ = Term::stderr().clear_line();
        }
    }

    fn draw(&mut self, line: &str) {
        self.clear();
        self.is_there = true;
        _ = Term::stderr().write_str(line);
    }
}

/// Clears the bar and draws no other bar: for a program that a signal ends.
pub fn clear() {
    // If the terminal has stopped (Ctrl-S), the drawing thread may hold the lock for long,
    // so this function gives up after a while.
    for _ in 0..20 {
        if let Ok(mut drawn) = DRAWN.try_lock() {
            drawn.clear();
            drawn.closed = true;
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn draw_bar(shared: &Shared) {
    watch(shared, |elapsed, now| {
        let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        if elapsed >= DELAY && !drawn.closed {
            let (_, columns) = Term::stderr().size();
            drawn.draw(&now.in_line(columns.into()));
        }
    });
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn write_lines(shared: &Shared) {
    let mut last = Instant::now();
    watch(shared, |_, now| {
        if last.max(now.began).elapsed() >= LINE {
            now.say();
            last = Instant::now();
        }
    });
}

impl Now {
    fn say(&self) {
        complain(&format!("{}: {}", self.phase, self.in_words(self.began.elapsed())));
    }

    /// A line for a terminal of `columns` columns, with a bar if there is room for one. If even
    /// the text is too long, the text is cut.
    fn in_line(&self, columns: usize) -> String {
        // After Ctrl-C the terminal shows `^C` behind the line. In a full line `^C` would wrap to
        // the next line, and clearing this line would leave it there.
        let room = columns.saturating_sub(3);
        let mut line = format!("{:<7} {}", self.phase, self.in_words(self.began.elapsed()));
        let bar = room.saturating_sub(line.len() + 1).min(30);
        if let Some(total) = self.total.filter(|_| bar >= 5) {
            let share = self.done.min(total) as f64 / total.max(1) as f64;
            let full = (share * bar as f64) as usize;
            let bar = format!("{}{} ", "\u{2588}".repeat(full), "\u{2591}".repeat(bar - full));
            line.insert_str(8, &bar);
        } else {
            line.truncate(room);
        }
        line
    }

    /// A text with the bytes done, the rate since the phase began `elapsed` ago, and
    /// the time that the rest takes at this rate.
    fn in_words(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64();
        let moved = self.done.saturating_sub(self.from);
        let mut words = match self.total {
            Some(total) => format!("{} of {}", amount(self.done), amount(total)),
            None if self.done > 0 => amount(self.done),
            None => return time(seconds),
        };
        if moved > 0 && seconds > 0.0 {
            let rate = moved as f64 / seconds;
            words += &format!(", {}/s", amount(rate as u64));
            if let Some(total) = self.total {
                let left = total.saturating_sub(self.done) as f64 / rate;
                words += &format!(", {} left", time(left));
            }
        }
        words
    }
}

/// A number of bytes with a decimal unit (kB, MB, GB), as in the summary.
fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

fn time(seconds: f64) -> String {
    let seconds = seconds.min(1e9).round() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(from: u64, done: u64, total: Option<u64>) -> Now {
        Now { phase: "read", began: Instant::now(), from, done, total }
    }

    #[test]
    fn the_rate_is_that_of_the_phase_since_it_began() {
        let after = |seconds, now: Now| now.in_words(Duration::from_secs(seconds));
        let gigabytes = |count: u64| count * 1_000_000_000;
        // Bytes that were done before the phase do not count for its rate.
        let half = now(gigabytes(2), gigabytes(10), Some(gigabytes(26)));
        assert_eq!(after(5, half), "10.00 GB of 26.00 GB, 1.60 GB/s, 10 s left");
        assert_eq!(after(9, now(0, 0, Some(5_500_000))), "0 kB of 5.5 MB");
        assert_eq!(after(4, now(0, 2_000_000, None)), "2.0 MB, 500 kB/s");
        assert_eq!(after(150, now(0, 0, None)), "2 min 30 s");
        let slow = now(0, 1000, Some(gigabytes(1)));
        assert_eq!(after(1, slow), "1 kB of 1.00 GB, 1 kB/s, 277 h 46 min left");
    }

    #[test]
    fn a_line_fits_the_terminal() {
        let quarter = now(2_000_000, 2_000_000, Some(8_000_000));
        let words = "2.0 MB of 8.0 MB";
        let bar = format!("read    {}{} {words}", "\u{2588}".repeat(7), "\u{2591}".repeat(23));
        assert_eq!(quarter.in_line(80), bar);
        assert_eq!(
            quarter.in_line(40),
            format!("read    {}{} {words}", "\u{2588}".repeat(3), "\u{2591}".repeat(9))
        );
        assert_eq!(quarter.in_line(30), format!("read    {words}"));
        assert_eq!(quarter.in_line(16), "read    2.0 M");
        assert_eq!(quarter.in_line(0), "");
        assert_eq!(now(0, 9, Some(0)).in_line(80).matches('\u{2588}').count(), 0);
        for columns in 0..100 {
            assert!(quarter.in_line(columns).chars().count() <= columns.saturating_sub(3));
        }
    }

    #[test]
    fn a_phase_that_starts_anew_counts_anew() {
        let progress = ByteProgress {
            shared: Arc::new((
                Mutex::new(State { started: Instant::now(), now: None, ended: false }),
                Condvar::new(),
            )),
            drawing: Some(std::thread::spawn(|| ())),
            lines: false,
        };
        let from = || lock(&progress.shared.0).now.map(|now| (now.phase, now.from, now.done));
        progress.set("sort", 7, Some(100));
        progress.set("sort", 50, Some(100));
        assert_eq!(from(), Some(("sort", 7, 50)));
        progress.set("merge", 0, Some(40));
        progress.set("merge", 40, Some(40));
        assert_eq!(from(), Some(("merge", 0, 40)));
        progress.set("merge", 0, Some(40));
        assert_eq!(from(), Some(("merge", 0, 0)));
        progress.finish();
    }
}
