//! The `spec` program: see `spec --help`.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::main()
}
