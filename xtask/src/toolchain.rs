//! The compiler: NVRTC and its headers from PyPI, pinned, under `target/`.

use std::path::PathBuf;
use std::process::Command;

use crate::{Result, root};

/// What is installed. 12.9 is the last compiler whose code loads on every
/// driver from CUDA 12.0 on.
pub(crate) const PACKAGES: [&str; 3] = [
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-cccl-cu12==12.9.27",
];

/// An installed compiler.
pub(crate) struct Toolchain {
    /// Folder of `libnvrtc.so.12` and its builtins.
    pub libraries: PathBuf,
    /// Folders of headers.
    pub includes: Vec<PathBuf>,
}

/// The compiler, installed if it was not.
pub(crate) fn install() -> Result<Toolchain> {
    let name = PACKAGES.map(|p| p.rsplit("==").next().unwrap_or_default()).join("-");
    let folder = root().join("target").join("cuda-toolchain").join(name);
    let complete = folder.join("complete");
    if !complete.exists() {
        eprintln!("installing {} into {}", PACKAGES.join(", "), folder.display());
        let status = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-compile", "--upgrade", "--root-user-action=ignore"])
            .args(["--only-binary", ":all:"])
            .arg("--target")
            .arg(&folder)
            .args(PACKAGES)
            .status()
            .map_err(|e| format!("could not run python3 -m pip: {e}"))?;
        if !status.success() {
            return Err(format!("pip could not install {}", PACKAGES.join(", ")));
        }
        crate::write(&complete, b"")?;
    }
    let nvidia = folder.join("nvidia");
    Ok(Toolchain {
        libraries: nvidia.join("cuda_nvrtc").join("lib"),
        includes: ["cuda_runtime", "cuda_cccl"].map(|p| nvidia.join(p).join("include")).into(),
    })
}
