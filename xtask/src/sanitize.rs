//! `cargo xtask sanitize`: a test program under compute-sanitizer, on a GPU.

use std::process::Command;

use crate::Result;

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];

/// The exit status that stands for errors found, apart from the program's own.
const FOUND: &str = "86";

/// The task.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (tools, command) = match arguments {
        ["--tool", tool, command @ ..] if TOOLS.contains(tool) => (vec![*tool], command),
        ["--tool", tool, ..] => {
            return Err(format!("`{tool}` is no tool, expected one of {}", TOOLS.join(", ")));
        }
        command => (TOOLS.to_vec(), command),
    };
    let Some((program, rest)) = command.split_first() else {
        return Err("expected a program to run, see cargo xtask help".to_owned());
    };
    for tool in tools {
        println!("== compute-sanitizer --tool {tool} {}", command.join(" "));
        let mut sanitizer = Command::new("compute-sanitizer");
        sanitizer.args(["--tool", tool, "--error-exitcode", FOUND]);
        if tool == "memcheck" {
            sanitizer.args(["--leak-check", "full"]);
        }
        let status = sanitizer
            .arg(program)
            .args(rest)
            .env("SPEC_REQUIRE", "cuda")
            .status()
            .map_err(|e| format!("could not run compute-sanitizer: {e}"))?;
        if !status.success() {
            return Err(format!("{tool} found errors, or the program failed: {status}"));
        }
    }
    Ok(())
}
