//! `docs/json.md` names every field that `--json` prints, and no other.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/json.md");

/// Objects whose fields are named by what they are about: facts, operators.
const BY_NAME: [&str; 2] = ["facts", "versions"];

/// The fields of a value and of all within it.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if !BY_NAME.contains(&name.as_str()) {
                    fields(value, found);
                }
            }
        }
        _ => {}
    }
}

/// What a page has in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The page's part about a command, and the fields that its tables are about.
fn documented(command: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let start = PAGE.find(&format!("## `spec {command}`")).unwrap();
    let part = &PAGE[start..];
    let part = &part[..part[2..].find("\n## ").map_or(part.len(), |end| end + 2)];
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.map(|row| format!("`{}", row.split('|').next().unwrap_or_default()));
    (quoted(part), quoted(&names.collect::<String>()))
}

fn holds(arguments: &[&str], by_name: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_spec"))
        .args(arguments)
        .arg("--json")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut printed = BTreeSet::new();
    fields(&value, &mut printed);
    printed.retain(|name| !by_name.contains(&name.as_str()));
    let (quoted, names) = documented(arguments[0]);
    let missing: Vec<_> = printed.difference(&quoted).collect();
    assert!(missing.is_empty(), "docs/json.md has no {missing:?} of {arguments:?}");
    let gone: Vec<_> = names.difference(&printed).collect();
    assert!(gone.is_empty(), "{arguments:?} prints no {gone:?}, which docs/json.md has");
}

#[test]
fn every_field_is_documented() {
    let operators = ["hybrid_mtp_ngram", "sample_logits", "tree_verify"];
    holds(&["devices"], &[]);
    holds(&["decode", "--tokens", "5", "--device", "cpu"], &operators);
    holds(&["verify", "--cases", "1", "--device", "cpu"], &[]);
    let keys = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("documented.keys");
    std::fs::write(&keys, [0; 80]).unwrap();
    holds(&["unique", "documented.keys", "--count-only", "--device", "cpu"], &[]);
    let shape = ["--shape", "batch=1,k=16", "--quick", "--device", "cpu"];
    holds(&[&["bench", "deduplicate_topk"][..], &shape].concat(), &[]);
}

/// What is a count is a number in JSON.
#[test]
fn numbers_are_numbers() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_spec")).args(["devices", "--json"]).output().unwrap();
    let listings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cpu = listings.as_array().unwrap().iter().find(|listing| listing["backend"] == "cpu");
    assert!(cpu.unwrap()["devices"][0]["facts"]["threads"].as_u64().unwrap() > 0, "{cpu:?}");
}
