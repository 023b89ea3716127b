//! Text on stdout and stderr, and progress on stderr.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use spec_external::process;

use super::{Error, Result};

/// Writes text to stdout, made [`printable`].
///
/// # Errors
/// A write that fails; [`Error::BrokenPipe`] where the reader has closed its end.
pub fn write(text: &str) -> Result<()> {
    write_bytes(printable(text).as_bytes())
}

/// Writes what the program made itself, byte for byte, to stdout.
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

/// Writes a line to stderr, [`printable`]; a failure to write is no error.
pub fn complain(text: &str) {
    _ = writeln!(std::io::stderr(), "{}", printable(text));
}

/// Text as a terminal may have it: a control character, which a name or a file may
/// hold and a terminal obeys, becomes an escape such as `\u001b`. Line ends (`\n`,
/// `\r\n`) and tabs stay. The escapes are those of JSON, which stays JSON.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c, next| !matches!((c, next), ('\n' | '\t', _) | ('\r', Some('\n'))))
}

/// As [`printable`], without line ends and tabs.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_, _| true)
}

/// A text with an escape for each control character that `is_bad`, given the
/// character behind it.
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

/// The bar on a terminal, for the signal that ends the program.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A bar on stderr that appears once something has taken a second, and only
/// where stderr is a terminal. A signal that ends the program clears it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Units of what.
    what: &'static str,
    /// What comes next.
    now: &'static str,
    started: Instant,
    hidden: bool,
}

impl Progress {
    const DELAY: Duration = Duration::from_secs(1);

    /// `total` units of `what`, where it is known how many.
    pub fn new(what: &'static str, total: Option<usize>) -> Progress {
        let target = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(total.map(|total| total as u64), target);
        // The message is cut where the terminal ends: a longer line would be two, of
        // which one stays.
        let template = if total.is_some() { "{bar:12} {wide_msg}" } else { "{spinner} {wide_msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, what, now: "", started: Instant::now(), hidden: true }
    }

    /// So many units are done.
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

    /// So many units are done; `now` is what comes next.
    pub fn at(&mut self, done: usize, now: &'static str) {
        self.now = now;
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
        if !self.hidden {
            *lock(&SHOWN) = None;
        }
        self.bar.finish_and_clear();
    }
}

/// Clears a bar when a signal asks the program to end, which then ends with the code
/// that a shell gives to such an end.
fn clear_at_end(bar: &ProgressBar) {
    const INTERRUPTED: i32 = 130;
    *lock(&SHOWN) = Some(bar.clone());
    // The first bar sets the handler; where one is set already, that one stays.
    _ = ctrlc::try_set_handler(|| {
        let shown = lock(&SHOWN);
        if let Some(bar) = &*shown {
            bar.finish_and_clear();
            // Nothing is drawn any more.
            bar.set_draw_target(ProgressDrawTarget::hidden());
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
