//! `cargo xtask params`: the device's side of the launch parameters. The backends' own tests know
//! their structs and compare the files; where a variable is set, they write them first.

use std::process::Command;

use crate::{Result, root};

/// The task.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if let Some(other) = arguments.first() {
        return Err(format!("`{other}` is no option of params, see cargo xtask help"));
    }
    let status = Command::new("cargo")
        .args(["test", "--quiet", "-p", "spec-cuda", "-p", "spec-wgpu", "--lib", "launch_params"])
        .env("SPEC_WRITE_PARAMS", "1")
        .current_dir(root())
        .status()
        .map_err(|e| format!("could not run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("could not write the parameters".to_owned()) }
}
