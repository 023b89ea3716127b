//! `cargo xtask`: the tasks of a maintainer.

mod bindings;
mod install;
mod kernels;
mod manifest;
mod nvrtc;
mod pack;
mod params;
mod release;
mod sanitize;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The result of a task; an error is a sentence for people.
type Result<T, E = String> = std::result::Result<T, E>;

const USAGE: &str = "\
cargo xtask kernels [NAME..]      compile crates/spec-cuda/kernels/NAME.cu, or for baselines/NAME
                                  benches/kernels/NAME.cu (by default all of both whose
                                  archive is not of its sources), and write compiled/ beside
                                  them; needs Linux and pip, no GPU
    --verbose                     print the compiler's log and the size of every image
cargo xtask kernels --check [NAME..]
                                  prove that what is committed comes from the sources: hashes, and
                                  a rebuild of the named kernel files, or all, with the compiler that
                                  xtask/toolchain.txt pins
    --hashes-only                 leave the rebuild out
cargo xtask kernels --sizes [NAME..]
                                  print the size of every archive and image, and how long a program
                                  unpacks the image (compile xtask with --release for the times)
cargo xtask kernels --target 90 --images DIR [NAME..]
                                  compile for that architecture alone and write DIR/NAME.cubin, to
                                  look at machine code while a kernel changes; archives stay as
                                  they are
cargo xtask params                write what the kernels and shaders declare of their launch
                                  parameters from the structs in Rust; tests compare the two
cargo xtask bindings              append fields that are new to crates/spec-c/abi.txt and write
                                  include/spec.h, from the declarations of the operators
    --check                       prove that they are what the contract gives
cargo xtask install --prefix DIR [-- CARGO-OPTION..]
                                  build libspec for release and put libspec.so, libspec.a, spec.h and
                                  spec.pc under DIR
    --infiniop                    libinfiniop.so and libinfinirt.so instead
cargo xtask release --out DIR     pack the program, libspec, InfiniOp's libraries and the Python
                                  wheel (which needs maturin[zig]) under DIR, with SHA256SUMS
    --no-wheel                    leave the wheel out
cargo xtask sanitize [--tool T] [PROGRAM [ARG..]]
                                  run the golden vectors, or a prebuilt test program, on a GPU
                                  under compute-sanitizer: memcheck, racecheck, initcheck and
                                  synccheck, or just T";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.split_first() {
        Some((&"kernels", rest)) => kernels::run(rest),
        Some((&"params", rest)) => params::run(rest),
        Some((&"bindings", rest)) => bindings::run(rest),
        Some((&"install", rest)) => install::run(rest),
        Some((&"release", rest)) => release::run(rest),
        Some((&"sanitize", rest)) => sanitize::run(rest),
        Some((&("help" | "--help" | "-h"), _)) => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("expected a task\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("error: {words}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// Reads a file; an error names the path.
fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file; an error names the path.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}
