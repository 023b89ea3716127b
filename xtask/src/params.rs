//! `cargo xtask params`: writes the headers with the launch parameters of the kernels and with the
//! constants that host and device both need. Only the tests of the backends know the structs and
//! constants. The tests compare the headers with them; if an environment variable is set, the tests
//! write the headers first.

use std::fs;
use std::path::Path;
use std::process::Command;

use spec_core::ops;

use crate::{Result, root};

/// Runs the task with the words after its name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if let Some(other) = arguments.first() {
        return Err(format!("`{other}` is no option of params, see cargo xtask help"));
    }
    place_holders(&root(), ops::ALL.iter().map(|operator| operator.name))?;
    let status = Command::new("cargo")
        .args(["test", "--quiet", "-p", "spec-cuda", "-p", "spec-wgpu", "--lib", "launch_params"])
        .env("SPEC_WRITE_PARAMS", "1")
        .current_dir(root())
        .status()
        .map_err(|e| format!("could not run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("could not write the parameters".to_owned()) }
}

/// Makes what the backends of a new operator embed before any tool has written it, so that they
/// compile: an empty archive with a line of the manifest, and an empty header of the shader. The
/// tools write over all three.
fn place_holders<'n>(root: &Path, names: impl Iterator<Item = &'n str>) -> Result<()> {
    let write = |path: &Path, text: &str| {
        println!("{}: made, for the tools to write", path.display());
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let (cuda, shaders) = (root.join("crates/spec-cuda"), root.join("crates/spec-wgpu/shaders"));
    for name in names {
        let archive = cuda.join(format!("compiled/{name}.bin"));
        if cuda.join(format!("kernels/{name}.cu")).exists() && !archive.exists() {
            write(&archive, "")?;
            let manifest = cuda.join("compiled/manifest.txt");
            let lines = fs::read_to_string(&manifest).map_err(|e| e.to_string())?;
            write(&manifest, &format!("{lines}crc32 {name}.bin 00000000\n"))?;
        }
        let header = shaders.join(format!("params/{name}.wgsl"));
        let host = root.join(format!("crates/spec-wgpu/src/ops/{name}.rs"));
        // Operators that share a header have none of their own.
        let declares = fs::read_to_string(host).is_ok_and(|host| host.contains("launch_params!"));
        if shaders.join(format!("{name}.wgsl")).exists() && declares && !header.exists() {
            write(&header, "")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_made() {
        let root = std::env::temp_dir().join(format!("spec-xtask-params-{}", std::process::id()));
        let at = |path: &str| root.join("crates").join(path);
        for folder in [
            "spec-cuda/kernels",
            "spec-cuda/compiled",
            "spec-wgpu/shaders/params",
            "spec-wgpu/src/ops",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let files = [
            ("spec-cuda/kernels/old.cu", ""),
            ("spec-cuda/kernels/new.cu", ""),
            ("spec-cuda/compiled/old.bin", "old"),
            ("spec-cuda/compiled/manifest.txt", "crc32 old.bin 12345678\n"),
            ("spec-wgpu/shaders/new.wgsl", ""),
            ("spec-wgpu/src/ops/new.rs", "launch_params! {"),
            ("spec-wgpu/shaders/shares.wgsl", ""),
            ("spec-wgpu/src/ops/shares.rs", ""),
        ];
        for (path, text) in files {
            fs::write(at(path), text).unwrap();
        }
        place_holders(&root, ["old", "new", "shares", "planned"].into_iter()).unwrap();
        let text = |path: &str| fs::read_to_string(at(path)).ok();
        assert_eq!(text("spec-cuda/compiled/old.bin").as_deref(), Some("old"));
        assert_eq!(text("spec-cuda/compiled/new.bin").as_deref(), Some(""));
        let manifest = "crc32 old.bin 12345678\ncrc32 new.bin 00000000\n";
        assert_eq!(text("spec-cuda/compiled/manifest.txt").as_deref(), Some(manifest));
        assert_eq!(text("spec-wgpu/shaders/params/new.wgsl").as_deref(), Some(""));
        for none in [
            "spec-cuda/compiled/planned.bin",
            "spec-wgpu/shaders/params/old.wgsl",
            "spec-wgpu/shaders/params/shares.wgsl",
        ] {
            assert_eq!(text(none), None, "{none}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
