//! A run of the benchmark measures every row and writes all output files. The test checks only that
//! there are figures, because those of a debug build are meaningless.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Returns the path of the sample store, which `make sample` creates.
fn sample_store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.samovar/sample")
}

#[test]
fn every_row_has_a_figure_or_a_reason() {
    // Only `cargo test --workspace` builds it.
    let program = Path::new(env!("CARGO_BIN_EXE_samovar-bench")).with_file_name("nix-serve");
    if !program.exists() {
        println!("skipped: nix-serve was not built");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_samovar-bench"));
    bench.arg("--check").arg("--store").arg(sample_store());
    bench.arg("--out").arg(out.path());
    let options = "--listen 127.0.0.1:{port} --store local?root={store}";
    let program = program.display();
    bench
        .arg("--server")
        .arg(format!("ours=exec {program} {options}"));
    let signing = format!("ours=NIX_SECRET_KEY_FILE={{key}} exec {program} {options}");
    bench.arg("--server").arg(signing);
    let done = bench.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");

    let raw = fs::read_to_string(out.path().join("results.json")).unwrap();
    let raw: Value = serde_json::from_str(&raw).unwrap();
    let rows = raw["rows"].as_array().unwrap();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        for (server, cell) in row["servers"].as_object().unwrap() {
            let is_measured = !cell["rounds"].as_array().unwrap().is_empty();
            let has_reason = cell["not_asked"].is_string();
            assert!(is_measured || has_reason, "{server}: {row}");
        }
        if row["name"] == "all narinfos, signed, cold" {
            assert!(
                row["servers"]["ours"]["rounds"][0]["wall_ms"].is_f64(),
                "{row}"
            );
        }
    }
    let table = fs::read_to_string(out.path().join("table.md")).unwrap();
    assert!(table.contains("| narinfo c1 |"), "{table}");
    let chart = fs::read_to_string(out.path().join("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg "), "{chart}");
}
