//! `cargo xtask install`: builds libspec and installs the library, the header and the file for
//! pkg-config, with cargo alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, read, root, write};

/// The soname of the shared library, which changes with `SPEC_ABI_VERSION`.
const SONAME: &str = "libspec.so.1";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the task with the words after its name.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (own, cargo) = match arguments.iter().position(|&word| word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    let (prefix, infiniop) = match own {
        ["--prefix", prefix] => (prefix, false),
        ["--prefix", prefix, "--infiniop"] | ["--infiniop", "--prefix", prefix] => (prefix, true),
        other => return Err(format!("expected --prefix FOLDER [--infiniop], not {other:?}")),
    };
    std::fs::create_dir_all(prefix).map_err(|e| format!("{prefix}: {e}"))?;
    let prefix = std::path::absolute(prefix).map_err(|e| format!("{prefix}: {e}"))?;
    if infiniop { infini(&prefix, cargo) } else { spec(&prefix, cargo) }
}

/// Installs libspec, shared and static, its header, and its file for pkg-config.
fn spec(prefix: &Path, cargo: &[&str]) -> Result<()> {
    let built = Built::new("spec-c", "cdylib,staticlib", SONAME, cargo)?;
    let lib = folder(prefix, "lib")?;
    let file = format!("{SONAME}.0.0");
    built.copy("libspec_c.so", &lib.join(&file))?;
    link(&file, &lib.join(SONAME))?;
    link(SONAME, &lib.join("libspec.so"))?;
    built.copy("libspec_c.a", &lib.join("libspec.a"))?;
    strip(&lib.join("libspec.a"));
    let header = read(&root().join("crates/spec-c/include/spec.h"))?;
    write(&folder(prefix, "include")?.join("spec.h"), &header)?;
    // Relative to the file, so that the folder can be packed and unpacked elsewhere.
    let known = format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: spec\n\
         Description: The operators that decide an LLM server's next tokens and experts\n\
         Version: {VERSION}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lspec\n\
         Libs.private: {}\n",
        built.static_needs()?
    );
    write(&folder(&lib, "pkgconfig")?.join("spec.pc"), known.as_bytes())?;
    println!("spec.h, libspec.so, libspec.a and spec.pc are in {}", prefix.display());
    Ok(())
}

/// Installs InfiniOp's two libraries, which are one library under two names.
fn infini(prefix: &Path, cargo: &[&str]) -> Result<()> {
    let lib = folder(prefix, "lib")?;
    let built = Built::new("spec-infiniop", "cdylib", "libinfiniop.so", cargo)?;
    built.copy("libinfiniop.so", &lib.join("libinfiniop.so"))?;
    link("libinfiniop.so", &lib.join("libinfinirt.so"))?;
    println!("libinfiniop.so and libinfinirt.so are in {}", lib.display());
    Ok(())
}

/// The files and messages of a package that was built for release.
struct Built {
    folder: PathBuf,
    words: String,
}

impl Built {
    fn new(package: &str, types: &str, soname: &str, options: &[&str]) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| root().join("target"));
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo
            .current_dir(root())
            .args(["rustc", "--release", "--locked", "--lib", "--package", package])
            .args(["--crate-type", types, "--target-dir"])
            .arg(&target)
            .args(options)
            .args(["--", "--print", "native-static-libs", "-C"])
            .arg(format!("link-arg=-Wl,-soname,{soname}"));
        let done = cargo.output().map_err(|e| format!("cargo: {e}"))?;
        let words = String::from_utf8_lossy(&done.stderr).into_owned();
        if !done.status.success() {
            return Err(format!("{package} does not build:\n{words}"));
        }
        Ok(Built { folder: target.join("release"), words })
    }

    fn copy(&self, name: &str, to: &Path) -> Result<()> {
        // The old file is removed first, so running programs keep the old file open.
        let _ = std::fs::remove_file(to);
        let from = self.folder.join(name);
        std::fs::copy(&from, to).map_err(|e| format!("{}: {e}", from.display()))?;
        Ok(())
    }

    /// The libraries that a program must link in addition to the static library, as rustc
    /// reports them.
    fn static_needs(&self) -> Result<&str> {
        let said = self.words.lines().find_map(|line| line.split("native-static-libs: ").nth(1));
        said.map(str::trim).ok_or("rustc does not say what libspec.a needs".to_owned())
    }
}

/// Removes what only a debugger reads from a static library, which rustc does not strip. `strip`
/// is one of the linker's neighbours; without it the library is as good, and larger.
fn strip(library: &Path) {
    let program = std::env::var_os("STRIP").unwrap_or("strip".into());
    let done = Command::new(&program).arg("--strip-debug").arg(library).output();
    if !done.is_ok_and(|done| done.status.success()) {
        println!("{} is not stripped: {program:?} did not run", library.display());
    }
}

fn folder(within: &Path, name: &str) -> Result<PathBuf> {
    let folder = within.join(name);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Makes a symbolic link, and replaces a file of this name.
fn link(to: &str, at: &Path) -> Result<()> {
    let _ = std::fs::remove_file(at);
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(to, at);
    #[cfg(not(unix))]
    let made = std::fs::copy(at.with_file_name(to), at).map(|_| ());
    made.map_err(|e| format!("{}: {e}", at.display()))
}
