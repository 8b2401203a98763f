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

    let table = fs::read_to_string(out.path().join("table.md")).unwrap();
    assert!(table.contains("| narinfo c1 |"), "{table}");
    let rows: Vec<&str> = table.lines().filter(|line| is_row(line)).collect();
    assert!(rows.len() > 20, "{table}");
    for row in rows {
        let mut cells = row.trim_matches('|').split('|').map(str::trim).skip(1);
        // A footnote states why a server is not measured.
        assert!(
            cells.all(|cell| is_figure(cell) || cell.contains("<sup>")),
            "{row}"
        );
    }
    let chart = fs::read_to_string(out.path().join("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg "), "{chart}");
}

#[test]
fn uploads_to_every_cache_are_measured() {
    let program = Path::new(env!("CARGO_BIN_EXE_samovar-bench")).with_file_name("samovar");
    if !program.exists() {
        println!("skipped: samovar was not built");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_samovar-bench"));
    bench.args(["uploads", "--check", "--store"]);
    bench.arg(dir.path().join("store"));
    let done = bench.arg("--dir").arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let table = String::from_utf8_lossy(&done.stdout);
    for row in [
        "3 large paths, nix copy, zstd",
        "70 small paths, 64 at once",
    ] {
        let line = table
            .lines()
            .find(|line| line.starts_with(&format!("| {row} |")));
        let cells = line
            .unwrap_or_else(|| panic!("no {row}: {table}"))
            .split('|');
        let figures = cells.filter(|cell| is_figure(cell.trim())).count();
        assert!(figures >= 2, "{table}");
    }
}

/// The mounts are left out where /dev/fuse cannot be opened.
#[test]
fn workspaces_of_a_small_tree_are_measured() {
    let program = Path::new(env!("CARGO_BIN_EXE_samovar-bench")).with_file_name("samovar");
    if !program.exists() {
        println!("skipped: samovar was not built");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_samovar-bench"));
    bench.args(["workspaces", "--check", "--rows", "transfer", "--json"]);
    bench.arg("--dir").arg(dir.path());
    let done = bench
        .arg("--out")
        .arg(dir.path().join("out"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    for name in [
        "durable push of the whole tree, zstd",
        "status of the unchanged workspace",
        "pull to plain files, on stable storage",
        "sent for them",
        "push of one edit and one new file",
    ] {
        let figures = report["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["name"] == name);
        let figure = figure.unwrap_or_else(|| panic!("no {name}: {report}"));
        assert!(figure["median"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["met"].is_boolean(), "{figure}");
        assert!(
            figure["command"].as_str().unwrap().contains("samovar"),
            "{figure}"
        );
    }
    let table = fs::read_to_string(dir.path().join("out/table.md")).unwrap();
    assert!(
        table.contains("| G10 | push of one edit and one new file |"),
        "{table}"
    );
}

/// Whether a line is a row of a table, and not its title or the line below it.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && !line.starts_with("| |")
}

/// Whether a cell starts with a number, such as `1,234 (0.97x)`.
fn is_figure(cell: &str) -> bool {
    let number = cell.split(' ').next().unwrap_or_default().replace(',', "");
    number.parse::<f64>().is_ok()
}

#[test]
fn upstreams_are_measured() {
    let program = Path::new(env!("CARGO_BIN_EXE_samovar-bench")).with_file_name("samovar");
    if !program.exists() || !Path::new("/usr/sbin/nginx").exists() {
        println!("skipped: samovar was not built, or there is no nginx");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_samovar-bench"));
    bench.args(["upstreams", "--check", "--store"]);
    bench.arg(sample_store()).arg("--out").arg(dir.path());
    let done = bench.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let report = fs::read(dir.path().join("figures.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let figures = report["figures"].as_array().unwrap();
    for group in ["known", "cold", "walk", "NAR", "crowd", "faults"] {
        let count = figures.iter().filter(|one| one["group"] == group).count();
        assert!(count > 0, "{group}: {report}");
    }
}

/// Every socket is open, and answers.
#[test]
fn many_sockets_are_held_by_several_processes() {
    let bench = Path::new(env!("CARGO_BIN_EXE_samovar-bench"));
    if !bench.with_file_name("examples").join("samovar").exists() {
        println!("skipped: the example samovar was not built");
        return;
    }
    let done = Command::new(bench).args(["sockets", "--check"]).output();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let table = String::from_utf8_lossy(&done.stdout);
    for row in [
        "sockets, all open",
        "echo on each socket: time until all are answered, s",
        "ping on each socket: time until all are answered, s",
        "memory of a socket in the server, KiB",
    ] {
        let start = format!("| {row} | ");
        let value = table.lines().find_map(|line| line.strip_prefix(&start));
        let value = value.unwrap_or_else(|| panic!("no {row}: {table}"));
        assert!(is_figure(value.trim_end_matches(" |")), "{value}");
    }
}
