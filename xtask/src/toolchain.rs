//! The compiler: NVRTC and its headers, in pinned versions from PyPI, under `target/`.

use std::path::PathBuf;
use std::process::Command;

use crate::{Result, root};

/// The packages to install, with the hash of each wheel.
const REQUIREMENTS: &str = include_str!("../toolchain.txt");

/// The packages with their versions.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    REQUIREMENTS
        .lines()
        .filter(|line| line.starts_with("nvidia"))
        .filter_map(|line| line.split_whitespace().next())
}

/// An installed compiler.
pub(crate) struct Toolchain {
    /// Folder of `libnvrtc.so.12` and its builtins.
    pub libraries: PathBuf,
    /// Folders of headers.
    pub includes: Vec<PathBuf>,
}

/// Installs the compiler unless it is installed already.
pub(crate) fn install() -> Result<Toolchain> {
    let versions: Vec<_> = packages().map(|p| p.rsplit("==").next().unwrap_or_default()).collect();
    let name = versions.join("-");
    let folder = root().join("target").join("cuda-toolchain").join(name);
    let complete = folder.join("complete");
    if !complete.exists() {
        let named = packages().collect::<Vec<_>>().join(", ");
        eprintln!("installing {named} into {}", folder.display());
        let status = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-compile", "--upgrade", "--root-user-action=ignore"])
            .args(["--only-binary", ":all:", "--require-hashes", "--requirement"])
            .arg(root().join("xtask/toolchain.txt"))
            .arg("--target")
            .arg(&folder)
            .status()
            .map_err(|e| format!("could not run python3 -m pip: {e}"))?;
        if !status.success() {
            return Err(format!("pip could not install {named}"));
        }
        crate::write(&complete, b"")?;
    }
    let nvidia = folder.join("nvidia");
    Ok(Toolchain {
        libraries: nvidia.join("cuda_nvrtc").join("lib"),
        includes: ["cuda_runtime", "cuda_cccl"].map(|p| nvidia.join(p).join("include")).into(),
    })
}
