//! What the programs of this project share: reading arguments, opening a device, printing, and
//! exit codes.
//!
//! [`run`] does everything but the commands of a program:
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

/// The exit code that a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: u8 = 141;

/// The largest number of threads that a user may ask for. A larger number is a typing error, and
/// rayon would start that many threads.
const MAX_THREADS: usize = 4096;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A problem that the message explains to the user.
    #[error("{0}")]
    Message(String),
    /// An error of an operator or of a device.
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

/// Parses the program's arguments, runs `command` with them, and turns the result into the exit
/// code of the program. Errors are printed to stderr.
pub fn run<C: Parser>(command: impl FnOnce(C) -> Result<ExitCode>) -> ExitCode {
    without_wayland();
    let arguments = match C::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match check_threads().and_then(|()| command(arguments)) {
        Ok(code) => code,
        // Like other programs, print nothing if the reader of the pipe has left.
        Err(Error::BrokenPipe) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            complain(&format!("error: {}", one_line(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

/// Opens the device that an option names; `auto` opens the best device.
///
/// A software renderer is meant for tests and is far slower than `cpu`. It is opened only if
/// `name` names it, and a warning on stderr says what it is.
///
/// # Errors
/// If the device does not exist or cannot be opened.
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
/// A sentence for the user, if `text` is not a whole number of 64 bits.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    parse_number(text, 0, u64::MAX)
}

/// Reads a whole number from `low` to `high` from an argument.
///
/// # Errors
/// A sentence that names the range, if `text` is not a whole number within the range.
pub fn parse_number<N>(text: &str, low: N, high: N) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + Copy,
{
    let number = text.parse().ok().filter(|number| (low..=high).contains(number));
    number.ok_or(format!("expected a whole number from {low} to {high}"))
}

/// Refuses a number of threads in the environment variable of rayon that `--threads` would refuse
/// too.
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

/// Prints the help, the version or the error that ended the parsing of arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let sentence: Vec<&str> =
                text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            complain(&sentence.join(" "));
        }
        // clap prints the user's arguments unchanged, and a terminal would obey their control
        // characters. `complain` escapes the control characters of clap's text without colours.
        _ if error.use_stderr() && has_control_characters() => complain(text.trim_end()),
        _ => _ = error.print(),
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Whether an argument of the program contains a control character.
fn has_control_characters() -> bool {
    let mut arguments = std::env::args_os();
    arguments.any(|argument| argument.to_string_lossy().contains(char::is_control))
}

/// If there is no Wayland server, keeps Mesa's device-selection layer from asking such a
/// server for the default GPU, and so from complaining on stderr.
fn without_wayland() {
    let choice = "NODEVICE_SELECT";
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() && std::env::var_os(choice).is_none() {
        // SAFETY: `run` calls this function first, at the start of `main`: no other
        // thread runs yet that could read the environment.
        unsafe { std::env::set_var(choice, "1") };
    }
}
