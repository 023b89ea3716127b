//! `cargo xtask sanitize`: runs a test program under compute-sanitizer, on a GPU.

use std::process::{Command, Stdio};

use crate::{Result, root};

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];

/// The test that runs if no program is named: the golden vectors.
const GOLDEN: [&str; 3] = ["test", "--test", "operators"];
const GOLDEN_FILTER: &str = "golden_vectors";

/// The exit status by which compute-sanitizer reports errors. The program itself never returns it.
const FOUND: &str = "86";

/// Kernels that racecheck leaves out because of an intended race: if the keys of several
/// threads share a slot, any of the threads may own the slot (`thin_bucket` in
/// `unique_buckets.cuh`, `thin` in `unique_partition.cuh`).
const RACES_MEANT: [&str; 4] =
    ["unique_sort_buckets", "unique_partition_high", "unique_partition_low", "unique_thinned"];

/// The largest clusters under a tool, where the tool cannot have all. racecheck 2025.3 itself fails
/// on kernels with clusters. synccheck of the same version stops with an illegal address in some
/// calls of `sample_logits` with clusters of 16 blocks, in which memcheck finds no error; more than
/// 8 blocks are the size that CUDA calls non-portable.
const LIMITS: [(&str, &str); 2] = [("racecheck", "cluster=1"), ("synccheck", "cluster=8")];

/// Runs the task with the words after its name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (tools, command) = match arguments {
        ["--tool", tool, command @ ..] if TOOLS.contains(tool) => (vec![*tool], command),
        ["--tool", tool, ..] => {
            return Err(format!("`{tool}` is no tool, expected one of {}", TOOLS.join(", ")));
        }
        command => (TOOLS.to_vec(), command),
    };
    let golden;
    let (program, rest) = match command.split_first() {
        Some((program, rest)) => (*program, rest),
        None => {
            golden = build_golden()?;
            (golden.as_str(), [GOLDEN_FILTER].as_slice())
        }
    };
    for tool in tools {
        println!("== compute-sanitizer --tool {tool} {program} {}", rest.join(" "));
        let mut sanitizer = Command::new("compute-sanitizer");
        sanitizer.args(["--tool", tool, "--error-exitcode", FOUND]);
        match tool {
            "memcheck" => _ = sanitizer.args(["--leak-check", "full"]),
            "racecheck" => {
                for name in RACES_MEANT {
                    sanitizer.args(["--kernel-name-exclude", &format!("kernel_substring={name}")]);
                }
            }
            _ => {}
        }
        if let Some((_, limits)) = LIMITS.iter().find(|(limited, _)| *limited == tool) {
            sanitizer.env("SPEC_CUDA_LIMITS", limits);
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

/// Builds the golden test and returns the path of its program.
fn build_golden() -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .args(GOLDEN)
        .args(["--no-run", "--message-format=json"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("could not run cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let key = "\"executable\":\"";
    // The last executable in cargo's messages is the test itself.
    let program = text.lines().rev().find_map(|line| line.split(key).nth(1)?.split('"').next());
    match program {
        Some(program) if output.status.success() => Ok(program.to_owned()),
        _ => Err("cargo could not build the golden test".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_test_is_there() {
        let file = root().join("tests").join(GOLDEN[2]).join("conformance.rs");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("fn {GOLDEN_FILTER}()")), "{}", file.display());
    }
}
