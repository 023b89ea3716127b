//! `cargo xtask release`: makes the files of a release for this machine's platform.
//!
//! The files are a tar archive with the program, libspec and InfiniOp's libraries, the Python
//! wheel, and a file of checksums. Installing from these files needs no cargo.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, install, root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the task with the words after its name.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (out, wheel) = match arguments {
        ["--out", out] => (out, true),
        ["--out", out, "--no-wheel"] | ["--no-wheel", "--out", out] => (out, false),
        other => return Err(format!("expected --out FOLDER [--no-wheel], not {other:?}")),
    };
    let of_profile = |name: &OsString| name.to_string_lossy().starts_with("CARGO_PROFILE_RELEASE_");
    if let Some((name, _)) = std::env::vars_os().find(|(name, _)| of_profile(name)) {
        return Err(format!(
            "a release is built with the profile that Cargo.toml states: unset {}",
            name.display()
        ));
    }
    std::fs::create_dir_all(out).map_err(|e| format!("{out}: {e}"))?;
    let out = std::path::absolute(out).map_err(|e| format!("{out}: {e}"))?;
    let name = format!("spec-{VERSION}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let folder = out.join(&name);
    if folder.exists() {
        return Err(format!("{} is there already", folder.display()));
    }
    let prefix = folder.to_str().ok_or("the folder's name is no text")?;

    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let program = ["install", "--quiet", "--locked", "--no-track", "--path", "crates/spec-cli"];
    call(Command::new(&cargo).args(program).args(["--all-features", "--root", prefix]))?;
    install::run(&["--prefix", prefix])?;
    install::run(&["--prefix", prefix, "--infiniop"])?;
    for file in ["LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"] {
        let to = folder.join(file);
        std::fs::copy(root().join(file), &to).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    let archive = format!("{name}.tar.gz");
    call(Command::new("tar").current_dir(&out).args(["-czf", &archive, &name]))?;
    std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;

    let mut files = vec![archive];
    if wheel {
        files.extend(wheels(&out)?);
    }
    let sums = output(Command::new("sha256sum").current_dir(&out).args(&files))?;
    let at = out.join("SHA256SUMS");
    std::fs::write(&at, &sums).map_err(|e| format!("{}: {e}", at.display()))?;
    print!("{sums}");
    Ok(())
}

/// Builds the wheel with the maturin on the path, and returns the names of the written files.
///
/// It is linked by zig (`pip install maturin[zig]`) for the glibc that torch's wheels need, 2.28, and
/// not for that of the machine, which may be newer.
fn wheels(out: &Path) -> Result<Vec<String>> {
    let built = out.join("wheels");
    let mut maturin = Command::new("maturin");
    maturin.current_dir(root().join("python"));
    maturin.args(["build", "--quiet", "--release", "--locked", "--zig"]);
    call(maturin.args(["--compatibility", "manylinux_2_28", "--out"]).arg(&built))?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&built).map_err(|e| format!("{}: {e}", built.display()))? {
        let from: PathBuf = entry.map_err(|e| format!("{}: {e}", built.display()))?.path();
        let name = from.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let moved = std::fs::rename(&from, out.join(&name));
        moved.map_err(|e| format!("{}: {e}", from.display()))?;
        names.push(name);
    }
    // The folder should be empty now. If it is not, it stays for a person to look at.
    let _ = std::fs::remove_dir(&built);
    Ok(names)
}

fn call(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|e| format!("{name}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&done.stderr)));
    }
    String::from_utf8(done.stdout).map_err(|e| format!("{name}: {e}"))
}
