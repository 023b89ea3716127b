//! The `spec-bench` program: times the operators, each beside other designs, and renders what was
//! measured. See `spec-bench --help`.

mod inputs;
mod render;
mod time;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Time the operators, each beside other designs, every result checked
///
/// Each row says the median time of a call, the interval that holds four fifths of the samples, how
/// many times that is over moving its bytes at the rate of a copy on the same device in the same
/// run, and how many times as fast it is as the design that the operator started from. What is not
/// timed is said on stderr.
#[derive(Parser)]
#[command(name = "spec-bench", version, args_conflicts_with_subcommands = true)]
#[command(after_long_help = time::EXAMPLES)]
struct Cli {
    #[command(flatten)]
    options: time::Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Render docs/performance.md and docs/plots/ from benches/results/
    Report(render::Options),
    /// Write the inputs of rows, and their results, as files of numpy for benches/peers/
    Inputs(inputs::Options),
}

fn main() -> ExitCode {
    spec_cli::run(|cli: Cli| match cli.command {
        Some(Command::Report(options)) => render::run(&options),
        Some(Command::Inputs(options)) => inputs::run(&options),
        None => time::run(&cli.options),
    })
}
