//! `samovar-bench engine`: samovar-http compared with other HTTP engines on the same endpoints.
//!
//! The rivals are in `bench/rivals`, our server in `bench/examples/samovar.rs`, and the floor,
//! which parses nothing, in `bench/examples/floor.rs`. One command builds all of them.
//!
//! Rounds are interleaved and figures are medians, as in the comparison of caches. In rows "on one
//! core", a server with one thread shares a core with its client; in the others, servers have one
//! thread per core, and server and client may use all cores.

mod contender;
mod rows;
mod standing;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::contender::{Ability, Kind};
use crate::arguments::Arguments;
use crate::figures::{Cell, Gap, Results, Row, Section, failed};
use crate::{machine, summary, table};

/// Creates a row without measurements.
fn row(name: &str, server_count: usize) -> Row {
    Row {
        name: name.into(),
        section: Section::Engine,
        cells: vec![Cell::default(); server_count],
    }
}

/// Performs a measurement with a server that has the required ability.
fn attempt<T>(kind: Kind, ability: Ability, measure: impl FnOnce() -> Result<T>) -> Result<T, Gap> {
    if !kind.can(ability) {
        return Err(Gap::NotAsked("not part of this row".into()));
    }
    let outcome = failed(measure());
    if let Err(Gap::Failed(why)) = &outcome {
        crate::progress(&format!("{}: {why}", kind.name()));
    }
    outcome
}

/// Compares the engines. Fails if a server does not build, start or respond correctly.
pub(crate) fn run(options: &Arguments) -> Result<()> {
    if !machine::is_inside_namespace() {
        build()?;
    }
    machine::enter_network_namespace();
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let files = contender::Files::make(scratch.path())?;
    let load_before = machine::load();
    let mut rows = rows::measure(options, &files, scratch.path())?;
    rows.extend(standing::measure(options, &files));
    let kinds = Kind::ALL.into_iter();
    let servers = kinds.map(|kind| (kind.name().to_owned(), kind.part()));
    let results = Results {
        servers: servers.collect(),
        rows,
    };
    let how = format!(
        "{} rounds of {} s, medians",
        options.rounds, options.seconds
    );
    println!(
        "{}",
        machine::describe(&["nginx", "wrk"], &how, &load_before)
    );
    println!("{}{}", summary::render(&results), table::render(&results));
    Ok(())
}

/// Returns cargo's output directory of this program: `target/release`.
fn release_dir() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program
        .parent()
        .context("a program stands in a folder")?
        .to_path_buf())
}

fn build() -> Result<()> {
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let target = release_dir()?
        .parent()
        .context("release stands in target")?
        .to_path_buf();
    crate::progress("building the servers (the first time: some minutes)");
    for (manifest, target, what) in [
        (bench.join("Cargo.toml"), target.clone(), "--examples"),
        (
            bench.join("rivals/Cargo.toml"),
            target.join("rivals"),
            "--bins",
        ),
    ] {
        let status = Command::new("cargo")
            .args(["build", "--release", "--quiet", what, "--manifest-path"])
            .arg(&manifest)
            .arg("--target-dir")
            .arg(&target)
            .status()
            .context("cannot start cargo")?;
        if !status.success() {
            bail!("{} does not build", manifest.display());
        }
    }
    Ok(())
}
