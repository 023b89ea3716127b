//! Compiles and runs C and C++ programs with the header and the library: the examples, wrong
//! calls, and threads. The tests need a C and a C++ compiler, named by `CC` and `CXX`; without
//! these variables the tests use `cc` and `c++`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler flags with which the header must compile.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the library, which cargo puts beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap().to_owned();
    assert!(folder.join("libspec_c.so").exists(), "{} has no libspec_c.so", folder.display());
    folder
}

fn compiler(variable: &str, usual: &str) -> OsString {
    std::env::var_os(variable).unwrap_or(usual.into())
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {}\n{words}", done.status);
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Compiles a program as C99; as C++17 if its name says so or if `cxx` is true.
fn compile(source: &str, cxx: bool, to: &Path) {
    let cxx = cxx || source.ends_with(".cpp");
    let mut command = if cxx {
        let mut command = Command::new(compiler("CXX", "c++"));
        command.args(["-std=c++17", "-x", "c++"]);
        command
    } else {
        let mut command = Command::new(compiler("CC", "cc"));
        command.args(["-std=c99", "-x", "c"]);
        command
    };
    let library = library();
    command.args(STRICT).arg("-I").arg(root().join("crates/spec-c/include"));
    command.arg(root().join(source)).arg("-L").arg(&library).args(["-lspec_c", "-lpthread"]);
    command.arg(format!("-Wl,-rpath,{}", library.display())).arg("-o").arg(to);
    run(&mut command);
}

fn compile_and_run(source: &str, cxx: bool, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    compile(source, cxx, &program);
    // The program names the folder of the library; cargo's variable may name one with an older library.
    run(Command::new(&program).args(arguments).env_remove("LD_LIBRARY_PATH"))
}

#[test]
fn the_header_is_c99_and_cxx17() {
    compile_and_run("crates/spec-c/tests/c/header.c", false, &[]);
    compile_and_run("crates/spec-c/tests/c/header.c", true, &[]);
}

#[test]
fn wrong_calls_get_a_status() {
    compile_and_run("crates/spec-c/tests/c/misuse.c", false, &[]);
}

#[test]
fn a_program_of_an_older_header_keeps_working() {
    compile_and_run("crates/spec-c/tests/c/older.c", false, &[]);
}

#[test]
fn threads_share_handles_and_descriptors() {
    compile_and_run("crates/spec-c/tests/c/threads.c", false, &[]);
}

#[test]
fn threads_draft_from_a_corpus_that_others_append_to() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["cpu", folder.path().to_str().unwrap()];
    compile_and_run("crates/spec-c/tests/c/corpus.c", false, &arguments);
}

#[test]
fn the_example_in_c() {
    let output = compile_and_run("examples/c/router.c", false, &[]);
    assert!(output.starts_with("token 0: expert 1, weight 0.6225\n"), "{output}");
}

#[test]
fn the_example_in_cxx() {
    let output = compile_and_run("examples/c/lookup.cpp", false, &[]);
    assert_eq!(output, "4 drafts: 39935 35308 927 279\n");
}

/// Runs on the CPU, and on wgpu if there is an adapter; `SPEC_REQUIRE` makes a missing adapter
/// a failure.
#[test]
fn the_example_with_memory_of_the_librarys() {
    let output = compile_and_run("examples/c/memory.c", false, &["cpu"]);
    assert!(output.ends_with("1 3 4 7 9 -1 -1 -1 \n"), "{output}");
    if let Err(error) = "wgpu".parse::<spec::Handle>() {
        let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "wgpu"), "{error}");
        println!("wgpu is left out: {error}");
        return;
    }
    let output = compile_and_run("examples/c/memory.c", false, &["wgpu"]);
    assert!(output.ends_with("1 3 4 7 9 -1 -1 -1 \n"), "{output}");
}
