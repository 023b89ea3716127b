//! The scripts under `benches/peers/` time the rows of `spec-bench`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use spec_bench as bench;

/// `benches/peers/rows.json` holds all rows, with the shapes and names that the library has for
/// them. A script leaves out the rows of operators for which it has no method.
#[test]
fn peers_have_the_rows_of_the_bench() {
    let lines: Vec<String> = bench::rows()
        .into_iter()
        .map(|row| {
            let fields = json!({
                "operator": row.operator,
                "shape": row.shape,
                "series": row.series,
                "size": row.size,
                "size_unit": row.size_unit,
                "quick": row.quick,
                "memory": row.memory,
            });
            format!("  {fields}")
        })
        .collect();
    let rows = format!("[\n{}\n]\n", lines.join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/rows.json");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if rows != committed {
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rows.json");
        std::fs::write(&new, rows).unwrap();
        panic!("the bench has other rows: cp {} {}", new.display(), path.display());
    }
}

/// The scripts under `benches/peers/` read the inputs that `spec-bench inputs` writes. What the
/// library makes of them passes the scripts' checks, and a wrong result does not.
#[test]
fn peers_read_the_inputs_of_the_bench() {
    let python = |words: &[&str]| Command::new("python3").args(words).output();
    if !python(&["-c", "import numpy"]).is_ok_and(|output| output.status.success()) {
        _ = writeln!(std::io::stderr(), "skipped: there is no python3 with numpy");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let inputs = folder.path().to_str().unwrap();
    // Small rows of each kind.
    let rows = [
        "topk_router 1 tokens",
        "topk_router 1024 tokens, bf16",
        "deduplicate_topk 115 x 1 x 2048, text",
        "hot_slots 1 rows",
        "rejection_sample 1 x 8, 32000",
        "rejection_sample 1 x 8, 128256, sample, all accepted",
        "sample_logits 1 x 151936",
        "ngram_match 16 x 1024, low",
        "ngram_match 16 x 32768, high generated",
        "ngram_match 16 x 8192, text",
        "prompt_lookup 16 x 1024, low",
        "prompt_lookup 16 x 8192, text",
        "draft_tree 1 requests",
        "tree_verify 1 requests",
        "tree_verify 256 requests, chains",
        "moe_align 256 tokens",
        "indexer_topk 1 rows",
        "unique 2^20 keys",
        "topk_router+moe_align 1 tokens",
        "indexer_topk+deduplicate_topk 1 requests",
        "decode_tail 1 requests",
    ];
    let only: Vec<&str> = rows.iter().flat_map(|row| ["--only", row]).collect();
    let written = Command::new(env!("CARGO_BIN_EXE_spec-bench"))
        .args(["inputs", inputs])
        .args(&only)
        .output()
        .unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers.py");
    let read = Command::new("python3")
        .args([script.to_str().unwrap(), "--inputs", inputs])
        .args(&only)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&read.stdout);
    assert!(read.status.success(), "{said}{}", String::from_utf8_lossy(&read.stderr));
    for (operator, _) in rows.iter().filter_map(|row| row.split_once(' ')) {
        assert!(said.contains(&format!("{operator}, ")), "no row of {operator}: {said}");
    }
}
