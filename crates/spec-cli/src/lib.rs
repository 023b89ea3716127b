//! What the programs of this project share: how they read arguments, open a device, print, and
//! end.
//!
//! [`run`] is the whole of a program but for its commands:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! #[derive(clap::Parser)]
//! struct Options {
//!     device: String,
//! }
//!
//! fn main() -> ExitCode {
//!     spec_cli::run(|options: Options| {
//!         let handle = spec_cli::open(&options.device)?;
//!         spec_cli::output::write(&format!("{}\n", handle.info().name))?;
//!         Ok(ExitCode::SUCCESS)
//!     })
//! }
//! ```

pub mod output;

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use clap::error::ErrorKind;
use spec::Handle;

use output::{complain, one_line};

/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: u8 = 141;

/// The largest number of threads that a user may ask for. A larger number is a typing error, and
/// rayon would start that many threads.
const MAX_THREADS: usize = 4096;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A sentence for the user.
    #[error("{0}")]
    Message(String),
    /// What an operator, or a device, refuses.
    #[error(transparent)]
    Operator(#[from] spec::Error),
    /// Writing to stdout failed.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The reader of stdout has closed its end of the pipe.
    #[error("nobody reads the output any more")]
    BrokenPipe,
}

impl From<spec_external::Error> for Error {
    fn from(error: spec_external::Error) -> Self {
        match error {
            spec_external::Error::Device(error) => Error::Operator(error),
            error => Error::Message(error.to_string()),
        }
    }
}

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reads the program's arguments, runs the command that they name, and turns its result into the
/// code that the program ends with.
pub fn run<C: Parser>(command: impl FnOnce(C) -> Result<ExitCode>) -> ExitCode {
    without_wayland();
    let arguments = match C::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match check_threads().and_then(|()| command(arguments)) {
        Ok(code) => code,
        // Like every program in a pipe whose reader has left: no word.
        Err(Error::BrokenPipe) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            complain(&format!("error: {}", one_line(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

/// Opens the device that an option names, or the one that `auto` takes.
///
/// A software renderer is there for tests and far slower than `cpu`: a software renderer that is
/// named is opened, and stderr says what it is.
///
/// # Errors
/// A device that does not exist or does not open.
pub fn open(name: &str) -> Result<Handle> {
    let handle: Handle = name.parse()?;
    if let Some(words) = handle.info().warning() {
        complain(&format!("warning: {words}"));
    }
    Ok(handle)
}

/// Reads a seed from an argument.
///
/// # Errors
/// A sentence, for a text that is no whole number of 64 bits.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    parse_number(text, 0, u64::MAX)
}

/// Reads a whole number of a range from an argument.
///
/// # Errors
/// A sentence with the range, for a number outside of it.
pub fn parse_number<N>(text: &str, low: N, high: N) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + Copy,
{
    let number = text.parse().ok().filter(|number| (low..=high).contains(number));
    number.ok_or(format!("expected a whole number from {low} to {high}"))
}

/// Refuses a number of threads in the environment that `--threads` would refuse.
fn check_threads() -> Result<()> {
    const NAME: &str = "RAYON_NUM_THREADS";
    let threads = std::env::var(NAME).ok().and_then(|text| text.parse::<usize>().ok());
    match threads.filter(|threads| *threads > MAX_THREADS) {
        Some(threads) => Err(Error::Message(format!(
            "{NAME} is {threads}, expected a number from 0 to {MAX_THREADS}"
        ))),
        None => Ok(()),
    }
}

/// Prints help and version as they are, and of an error what is wrong.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let sentence: Vec<&str> =
                text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            complain(&sentence.join(" "));
        }
        // clap prints the user's own words as they are. Its text without colours has no
        // sequence of theirs that a terminal obeys, once single characters are escaped.
        _ if error.use_stderr() && has_control_characters() => complain(text.trim_end()),
        _ => _ = error.print(),
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Whether an argument of the program has any.
fn has_control_characters() -> bool {
    let mut arguments = std::env::args_os();
    arguments.any(|argument| argument.to_string_lossy().contains(char::is_control))
}

/// Keeps Mesa's device-selection layer from asking a Wayland server which GPU is
/// the default, and from complaining on stderr, where there is no such server.
fn without_wayland() {
    let choice = "NODEVICE_SELECT";
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() && std::env::var_os(choice).is_none() {
        // SAFETY: the first statement of `main`: no other thread runs yet that
        // could read the environment.
        unsafe { std::env::set_var(choice, "1") };
    }
}
