//! The scripts under `benches/peers/` time the rows of `spec-bench`.

use std::path::Path;

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
