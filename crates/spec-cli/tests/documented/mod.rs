//! Compares `docs/json.md` with the JSON that a program prints: under the command's heading, the
//! page names every printed field and no other.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/json.md");

/// Objects whose field names are data, such as the names of facts.
const BY_NAME: [&str; 2] = ["facts", "versions"];

/// Collects the fields of a value and of all values within it.
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

/// The texts in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// From the page's section about a command: all names in backquotes, and the fields in the first
/// columns of its tables.
fn documented(heading: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let start = PAGE.find(&format!("## `{heading}`")).unwrap();
    let part = &PAGE[start..];
    let part = &part[..part[2..].find("\n## ").map_or(part.len(), |end| end + 2)];
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.map(|row| format!("`{}", row.split('|').next().unwrap_or_default()));
    (quoted(part), quoted(&names.collect::<String>()))
}

/// Runs a command and compares its JSON with the page's section of this heading. `by_name` lists
/// field names that depend on what was run, such as names of operators; the page does not list
/// them.
pub fn holds(heading: &str, command: &mut Command, by_name: &[&str]) {
    let output = command.arg("--json").current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut printed = BTreeSet::new();
    fields(&value, &mut printed);
    printed.retain(|name| !by_name.contains(&name.as_str()));
    let (quoted, names) = documented(heading);
    let missing: Vec<_> = printed.difference(&quoted).collect();
    assert!(missing.is_empty(), "docs/json.md has no {missing:?} of {heading}");
    let gone: Vec<_> = names.difference(&printed).collect();
    assert!(gone.is_empty(), "{heading} prints no {gone:?}, which docs/json.md has");
}
