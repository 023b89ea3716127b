//! The `spec` program: see `spec --help`.

mod bench;
mod byte_progress;
mod decode;
mod devices;
mod formats;
mod output;
mod pages;
mod unique;
mod verify;

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use output::{complain, one_line};

/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: u8 = 141;

/// The most threads that a user may ask for: more is a typing error, and rayon
/// would start them all.
const MAX_THREADS: usize = 4096;

/// The operators that decide an LLM server's next tokens and experts.
#[derive(Parser)]
#[command(name = "spec", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the devices of this machine, and why others are not there
    Devices(devices::Options),
    /// Decode speculatively from a text, with operators of this library
    ///
    /// The target and the draft model are counts of the prompt's own tokens
    /// (an interpolated trigram and a bigram): a stand-in for LLMs, so that
    /// what is shown is the work of the operators, not the quality of a text.
    /// A run of either takes a time that --model-ms and --draft-model-ms say.
    /// The same text is decoded without drafts too: the output says how many
    /// runs and how much time drafting saved.
    Decode(decode::Options),
    /// Check a device: golden vectors, and random cases against plain loops
    Verify(verify::Options),
    /// Distinct keys of files of any size, ascending
    ///
    /// What does not fit in memory is sorted piece by piece, spilled and merged.
    /// The output appears under its name only when it is complete; a run that
    /// ends early leaves nothing behind.
    Unique(unique::Options),
    /// Time the operators, each beside other designs, every result checked
    ///
    /// Each row says the median time of a call, the interval that holds four
    /// fifths of the samples, how many times that is over moving its bytes at
    /// the rate of a copy on the same device in the same run, and how many times
    /// as fast it is as the design that the operator started from. What is not
    /// timed is said on stderr.
    Bench(bench::Options),
    /// Print a script that completes commands and options in a shell
    Completions(pages::Shell),
    /// Print the manual page of the program, or of one command
    Man(pages::Page),
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Message(String),
    #[error(transparent)]
    Operator(#[from] spec::Error),
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    #[error("nobody reads the output any more")]
    BrokenPipe,
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Runs the command that the arguments name.
fn main() -> ExitCode {
    without_wayland();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let result = check_threads().and_then(|()| match cli.command {
        Command::Devices(options) => devices::run(&options),
        Command::Decode(options) => decode::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Unique(options) => unique::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions(options) => pages::complete(&options, Cli::command()),
        Command::Man(options) => pages::manual(&options, Cli::command()),
    });
    match result {
        Ok(code) => code,
        // Like every program in a pipe whose reader has left: no word.
        Err(Error::BrokenPipe) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            complain(&format!("error: {}", one_line(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    parse_number(text, 0, u64::MAX)
}

/// A whole number of a range; a value out of it is refused in words.
fn parse_number<N>(text: &str, low: N, high: N) -> Result<N, String>
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
