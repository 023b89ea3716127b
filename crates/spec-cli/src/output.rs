//! Writing text to stdout and stderr, and showing progress on stderr.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use spec_external::process;

use super::{Error, Result};

/// Makes text [`printable`] and writes it to stdout.
///
/// # Errors
/// If the write fails; [`Error::BrokenPipe`] if the reader of stdout has closed the pipe.
pub fn write(text: &str) -> Result<()> {
    write_bytes(printable(text).as_bytes())
}

/// Writes bytes to stdout unchanged. Only for bytes that the program generated itself: nothing is
/// escaped.
///
/// # Errors
/// As [`write()`].
pub fn write_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Error::BrokenPipe,
        _ => Error::Output(error),
    })
}

/// Writes one JSON value to stdout, indented.
///
/// # Errors
/// As [`write()`].
pub fn write_json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value:#}\n"))
}

/// Makes text [`printable`] and writes it as a line to stderr. A failed write is ignored.
pub fn complain(text: &str) {
    _ = writeln!(std::io::stderr(), "{}", printable(text));
}

/// Text that is safe to print on a terminal. Names and files may contain control characters,
/// which a terminal would obey; each becomes an escape such as `\u001b`. Line ends (`\n`,
/// `\r\n`) and tabs stay. The escapes are those of JSON, so JSON stays valid JSON.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c, next| !matches!((c, next), ('\n' | '\t', _) | ('\r', Some('\n'))))
}

/// As [`printable`], but line ends and tabs are escaped too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_, _| true)
}

/// The text with an escape for each control character for which `is_bad` is true. The
/// arguments of `is_bad` are the control character and the character after it.
fn escaped(text: &str, is_bad: impl Fn(char, Option<char>) -> bool) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            c if !c.is_control() || !is_bad(c, rest.peek().copied()) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a string cannot fail.
            c => _ = write!(out, "\\u{:04x}", u32::from(c)),
        }
    }
    out.into()
}

/// The progress bar that is on the terminal now. The handler of a signal that ends the program
/// clears this bar.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A progress bar on stderr. The bar appears once the work has taken a second, and
/// only if stderr is a terminal. A signal that ends the program clears the bar.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// The name of the units that are counted, in the plural.
    what: &'static str,
    /// The name of the unit that is being worked on.
    now: &'static str,
    started: Instant,
    hidden: bool,
}

impl Progress {
    const DELAY: Duration = Duration::from_secs(1);

    /// A bar that counts units named `what`; `total` is their number if it is known.
    pub fn new(what: &'static str, total: Option<usize>) -> Progress {
        let target = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(total.map(|total| total as u64), target);
        // `wide_msg` cuts the message at the end of the terminal's line: a longer message would
        // wrap to a second line, which clearing the bar would leave behind.
        let template = if total.is_some() { "{bar:12} {wide_msg}" } else { "{spinner} {wide_msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, what, now: "", started: Instant::now(), hidden: true }
    }

    /// Shows that `done` units are done.
    pub fn set(&mut self, done: usize) {
        self.bar.set_position(done as u64);
        if self.hidden && self.started.elapsed() > Self::DELAY && std::io::stderr().is_terminal() {
            self.hidden = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            clear_at_end(&self.bar);
        }
        if !self.hidden {
            self.bar.set_message(self.in_words(done));
        }
    }

    fn in_words(&self, done: usize) -> String {
        let Progress { what, now, .. } = self;
        match self.bar.length() {
            Some(total) => {
                format!("{done}/{total} {what}, {:#} left  {now}", HumanDuration(self.bar.eta()))
            }
            None => format!("{done} {what}  {now}"),
        }
    }

    /// Shows that `done` units are done, and that work on the unit named `now` begins.
    pub fn at(&mut self, done: usize, now: &'static str) {
        self.now = now;
        self.set(done);
    }

    /// Writes a line to stderr, above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| complain(line));
    }

    /// Shows that one more unit is done, and that work on the unit named `now` begins.
    pub fn step(&mut self, now: &'static str) {
        self.at(self.bar.position() as usize + 1, now);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.hidden {
            *lock(&SHOWN) = None;
        }
        self.bar.finish_and_clear();
    }
}

/// Installs a handler for signals that ask the program to end. The handler clears the bar and
/// ends the program with the exit code that a shell reports after Ctrl-C.
fn clear_at_end(bar: &ProgressBar) {
    const INTERRUPTED: i32 = 130;
    *lock(&SHOWN) = Some(bar.clone());
    // The first bar sets the handler. A handler that was set before stays.
    _ = ctrlc::try_set_handler(|| {
        let shown = lock(&SHOWN);
        if let Some(bar) = &*shown {
            // Hiding the bar first makes sure that nothing is drawn after its line is cleared.
            bar.set_draw_target(ProgressDrawTarget::hidden());
            _ = write!(std::io::stderr(), "\r\u{1b}[2K");
        }
        process::end(INTERRUPTED);
    });
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{one_line, printable};

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        let text = "red\u{1b}[31m, bell\u{7}, delete\u{7f}, C1\u{9b}2J, line\rover\n";
        let safe = "red\\u001b[31m, bell\\u0007, delete\\u007f, C1\\u009b2J, line\\rover\n";
        assert_eq!(printable(text), safe);
        for plain in ["one\ntwo\tthree\r\n", "ひらがな 🦀 é", ""] {
            assert_eq!(printable(plain), plain);
        }
        assert_eq!(one_line("a\nb\tc\r\n"), "a\\nb\\tc\\r\\n");
    }

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!({ "text": "a\u{1b}b\u{7f}c\u{9b}d\n" });
        let text = format!("{value:#}\n");
        let safe = printable(&text);
        assert!(!safe.contains(['\u{1b}', '\u{7f}', '\u{9b}']), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
