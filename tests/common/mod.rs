//! The devices that the tests run on.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::sync::OnceLock;

use spec::{Handle, Listing};

/// One open device of every available backend: the first device that is no
/// software renderer, or else the first device.
///
/// For a missing backend, stderr gets a line with the reason. If the environment
/// variable `SPEC_REQUIRE` (such as `cpu,wgpu`) lists the missing backend, this is a
/// failure instead.
pub fn handles() -> Vec<Handle> {
    static HANDLES: OnceLock<Vec<Handle>> = OnceLock::new();
    HANDLES.get_or_init(open_all).clone()
}

fn open_all() -> Vec<Handle> {
    let listings = spec::devices();
    let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
    let required: Vec<&str> =
        required.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    for name in &required {
        let known = listings.iter().any(|listing| listing.backend == *name);
        assert!(known, "SPEC_REQUIRE names `{name}`, which is no backend");
    }
    let mut handles = Vec::new();
    for listing in &listings {
        match open(listing) {
            Ok(handle) => handles.push(handle),
            Err(reason) => {
                let name = listing.backend;
                assert!(
                    !required.contains(&name),
                    "SPEC_REQUIRE asks for {name}, which is not there: {reason}"
                );
                // The test harness captures the output of `eprintln!`, so this writes to stderr.
                _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
            }
        }
    }
    handles
}

fn open(listing: &Listing) -> Result<Handle, String> {
    let devices = listing.devices.as_ref().map_err(ToString::to_string)?;
    let info = devices.iter().find(|info| !info.software).or(devices.first());
    let info = info.ok_or("it lists no device")?;
    info.device.to_string().parse().map_err(|error: spec::Error| error.to_string())
}
