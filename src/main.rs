//! The `spec` program.

fn main() {}
