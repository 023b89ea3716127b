//! The `spec` program: see `spec --help`.

mod byte_progress;
mod decode;
mod devices;
mod formats;
#[cfg(feature = "pages")]
mod pages;
mod unique;
mod verify;

use std::process::ExitCode;

#[cfg(feature = "pages")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};
use spec_cli::output::{self, complain};
use spec_cli::{Error, Result, open, parse_number, parse_seed};

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
    /// The model is counts of the prompt's own tokens (an interpolated trigram):
    /// a stand-in for an LLM, so that what is shown is the work of the operators,
    /// not the quality of a text. --model-ms says how long a run of the model takes.
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
    /// Print a script that completes commands and options in a shell
    #[cfg(feature = "pages")]
    Completions(pages::Shell),
    /// Print the manual page of the program, or of one command
    #[cfg(feature = "pages")]
    Man(pages::Page),
}

fn main() -> ExitCode {
    spec_cli::run(|cli: Cli| match cli.command {
        Command::Devices(options) => devices::run(&options),
        Command::Decode(options) => decode::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Unique(options) => unique::run(&options),
        #[cfg(feature = "pages")]
        Command::Completions(options) => pages::complete(&options, Cli::command()),
        #[cfg(feature = "pages")]
        Command::Man(options) => pages::manual(&options, Cli::command()),
    })
}
