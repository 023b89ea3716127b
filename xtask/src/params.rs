//! `cargo xtask params`: writes the headers with the launch parameters of the kernels. Only the
//! tests of the backends know the parameter structs. The tests compare the headers with the
//! structs; if an environment variable is set, the tests write the headers first.

use std::process::Command;

use crate::{Result, root};

/// Runs the task with the words after its name.
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
