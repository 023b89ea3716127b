//! The `spec` program: see `spec --help`.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    without_wayland();
    command::main()
}

/// Keeps Mesa's device-selection layer from asking a Wayland server which GPU is
/// the default, and from complaining on stderr, where there is no such server.
fn without_wayland() {
    let choice = "NODEVICE_SELECT";
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() && std::env::var_os(choice).is_none() {
        // SAFETY: the first statement of `main`: no other thread runs yet that
        // could read the environment.
        unsafe { std::env::set_var(choice, "1") };
    }
}
