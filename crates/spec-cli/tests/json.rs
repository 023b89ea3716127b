//! `docs/json.md` names every field that `--json` prints, and no other.

mod documented;

use std::process::Command;

use serde_json::Value;

fn holds(arguments: &[&str], by_name: &[&str]) {
    let heading = format!("spec {}", arguments[0]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    documented::holds(&heading, command.args(arguments), by_name);
}

#[test]
fn every_field_is_documented() {
    let operators = ["suffix_lookup", "sample_logits", "tree_verify"];
    holds(&["devices"], &[]);
    holds(&["decode", "--tokens", "5", "--device", "cpu"], &operators);
    holds(&["verify", "--cases", "1", "--device", "cpu"], &[]);
    let keys = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("documented.keys");
    std::fs::write(&keys, [0; 80]).unwrap();
    holds(&["unique", "documented.keys", "--count-only", "--device", "cpu"], &[]);
}

/// Counts are numbers in JSON.
#[test]
fn numbers_are_numbers() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_spec")).args(["devices", "--json"]).output().unwrap();
    let listings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cpu = listings.as_array().unwrap().iter().find(|listing| listing["backend"] == "cpu");
    assert!(cpu.unwrap()["devices"][0]["facts"]["threads"].as_u64().unwrap() > 0, "{cpu:?}");
}
