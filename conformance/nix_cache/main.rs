//! The binary-cache protocol, as a conformance suite for the cache at any URL.
//!
//! Each case checks one requirement, which has a level. `must`: clients fail without it. `should`:
//! clients or proxies work worse without it. `may`: an optional extension. Results go to standard
//! output, one line per case; details of failures go to standard error.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "results go to stdout, details to stderr"
)]

mod cache;
mod forms;
mod info;
mod listing;
mod missing;
mod nar;
mod narinfo;

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use cache::Cache;

const USAGE: &str = "usage: nix-cache-suite URL --store DIR | URL --path STORE_PATH...

Checks the binary cache at URL (http://HOST[:PORT][/PREFIX]).

  --store DIR         take store paths from DIR/sample.json, the manifest that
                      `xtask sample-store DIR` writes; the cache must serve that store
  --path STORE_PATH   check this path, which the cache must serve; repeatable
  --help              show this help

Prints `pass`, `fail` or `skip` with level, name and promise of each case.
Exit code: 0 if no `must` failed, 1 if one did, 2 for a wrong command line.";

/// Level of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Clients fail without it.
    Must,
    /// Clients or proxies work worse without it.
    Should,
    /// An optional extension; clients work without it.
    May,
}

/// Reason why a case did not pass.
enum Problem {
    /// The requirement is not met.
    Broken(String),
    /// The case does not apply to this cache.
    Skipped(String),
}

type Outcome = Result<(), Problem>;

/// A test of one requirement.
struct Case {
    level: Level,
    name: &'static str,
    promise: &'static str,
    run: fn(&Cache) -> Outcome,
}

const fn case(
    level: Level,
    name: &'static str,
    promise: &'static str,
    run: fn(&Cache) -> Outcome,
) -> Case {
    Case {
        level,
        name,
        promise,
        run,
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

fn broken(detail: impl Display) -> Problem {
    Problem::Broken(detail.to_string())
}

fn skipped(detail: impl Display) -> Problem {
    Problem::Skipped(detail.to_string())
}

/// Fails the case unless `is_so`; `detail` describes what was found instead.
fn ensure(is_so: bool, detail: impl Display) -> Outcome {
    if is_so { Ok(()) } else { Err(broken(detail)) }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let cache = match arguments(&words) {
        Ok(cache) => cache,
        Err(error) => {
            eprintln!("nix-cache-suite: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let groups = [
        info::CASES,
        narinfo::CASES,
        missing::CASES,
        nar::CASES,
        listing::CASES,
        forms::CASES,
    ];
    let mut must_failed = false;
    for case in groups.into_iter().flatten() {
        let level = match case.level {
            Level::Must => "must",
            Level::Should => "should",
            Level::May => "may",
        };
        let (result, detail) = match (case.run)(&cache) {
            Ok(()) => ("pass", None),
            Err(Problem::Broken(detail)) => ("fail", Some(detail)),
            Err(Problem::Skipped(detail)) => ("skip", Some(detail)),
        };
        must_failed |= case.level == Level::Must && result == "fail";
        println!("{result} {level} {}: {}", case.name, case.promise);
        if let Some(detail) = detail {
            eprintln!("{result} {}: {detail}", case.name);
        }
    }
    ExitCode::from(u8::from(must_failed))
}

fn arguments(words: &[String]) -> Result<Cache, String> {
    let (mut url, mut paths, mut log, mut absent) = (None, Vec::new(), None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--path" => paths.push(words.next().ok_or("--path needs a store path")?.clone()),
            "--store" => {
                let dir = words.next().ok_or("--store needs a directory")?;
                let manifest =
                    manifest(Path::new(dir)).map_err(|error| format!("{dir}: {error}"))?;
                let names = [
                    "tree",
                    "top",
                    "text",
                    "signed",
                    "single_file",
                    "self_reference",
                    "fixed",
                    "ca",
                ];
                let path = |name: &str| manifest.get(name)?.as_str().map(str::to_owned);
                paths.extend(names.into_iter().filter_map(path));
                log = path("built_drv");
                absent = path("not_valid");
            }
            option if option.starts_with('-') => return Err(format!("unknown option {option:?}")),
            word if url.is_none() => url = Some(word.to_owned()),
            word => return Err(format!("unexpected argument {word:?}")),
        }
    }
    let url = url.ok_or("no URL given")?;
    if paths.is_empty() {
        return Err("no store path given: add --store DIR or --path STORE_PATH".to_owned());
    }
    Cache::new(&url, paths, log, absent)
}

fn manifest(dir: &Path) -> std::io::Result<serde_json::Value> {
    let text = std::fs::read(dir.join("sample.json"))?;
    Ok(serde_json::from_slice(&text)?)
}
