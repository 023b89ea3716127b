//! `spec completions` and `spec man`: pages made from the definition of the command line.

use std::process::ExitCode;

use clap::{Args, Command};

use super::{Error, Result, output};

/// Options of `spec completions`.
#[derive(Args)]
pub struct Shell {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Options of `spec man`.
#[derive(Args)]
pub struct Page {
    /// The command, such as unique; without it, the program
    command: Option<String>,
}

/// Prints a completion script.
pub fn complete(options: &Shell, mut program: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut program, "spec", &mut script);
    print(&script)
}

/// Prints a manual page.
pub fn manual(options: &Page, mut program: Command) -> Result<ExitCode> {
    program.build();
    let page = match &options.command {
        None => program,
        Some(name) => match program.find_subcommand(name) {
            Some(command) => command.clone().display_name(format!("spec-{name}")),
            None => return Err(Error::Message(format!("there is no command {name}"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(Error::Output)?;
    print(&text)
}

fn print(text: &[u8]) -> Result<ExitCode> {
    output::write_bytes(text)?;
    Ok(ExitCode::SUCCESS)
}
