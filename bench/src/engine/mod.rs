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
use crate::figures::{Cell, Gap, Results, Row, Section, failed};
use crate::{machine, summary, table};

pub(crate) const USAGE: &str = "\
usage: samovar-bench engine [options]

  --rounds N      measure each figure N times and report the median (3)
  --seconds S     duration of each measurement (2)
  --rows TEXT     only rows whose name contains TEXT
  --only NAMES    only these servers, by comma: floor,inline,worker,hyper,axum,actix,nginx
  --quick         three rounds of a second";

/// Rows to measure, and lengths of the measurements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    /// Substring of the names of the rows to measure; empty for all.
    pub(crate) rows: String,
    /// Names of the servers to measure; empty for all.
    pub(crate) only: Vec<String>,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let mut options = Self {
            rounds: 3,
            seconds: 2.0,
            rows: String::new(),
            only: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--seconds" => options.seconds = value()?.parse().context("--seconds")?,
                "--rows" => options.rows.clone_from(value()?),
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--quick" => options.seconds = 1.0,
                _ => bail!("unknown option {word}\n\n{USAGE}"),
            }
        }
        if options.rounds == 0 || options.seconds <= 0.0 {
            bail!("--rounds and --seconds must be more than 0");
        }
        Ok(options)
    }

    /// Returns the servers to measure.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let is_wanted =
            |kind: &Kind| self.only.is_empty() || self.only.iter().any(|name| name == kind.name());
        Kind::ALL.into_iter().filter(is_wanted).collect()
    }
}

/// Returns a row without measurements.
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
        return Err(Gap::NotAsked("no part of this row".into()));
    }
    let outcome = failed(measure());
    if let Err(Gap::Failed(why)) = &outcome {
        crate::progress(&format!("{}: {why}", kind.name()));
    }
    outcome
}

/// Runs the engine mode with the arguments after its name. Fails if a server does not build, start
/// or respond correctly.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let options = Options::parse(words)?;
    if !machine::is_inside_namespace() {
        build()?;
    }
    machine::enter_network_namespace();
    let scratch = tempfile::Builder::new()
        .prefix("samovar-bench-")
        .tempdir()?;
    let files = contender::Files::make(scratch.path())?;
    let load_before = machine::load();
    let mut rows = rows::measure(&options, &files, scratch.path())?;
    rows.extend(standing::measure(&options, &files, scratch.path())?);
    let kinds = options.kinds().into_iter();
    let servers = kinds.map(|kind| (kind.name().to_owned(), kind.part()));
    let results = Results {
        servers: servers.collect(),
        rows,
    };
    let how = format!(
        "{} rounds of {} s, medians",
        options.rounds, options.seconds
    );
    println!("{}", machine::describe(&how, &load_before));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = Options::parse(&words("--rounds 5 --only hyper,axum")).unwrap();
        assert_eq!(
            (options.rounds, &options.only[..]),
            (5, &["hyper".into(), "axum".into()][..])
        );
        assert!(Options::parse(&words("--rounds 0")).is_err());
        assert!(Options::parse(&words("--what")).is_err());
    }
}
