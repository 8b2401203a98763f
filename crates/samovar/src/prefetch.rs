//! `samovar prefetch`: makes a server keep paths of its upstreams before a client needs them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Instant;

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use samovar_client::prefetch::{End, file_len, prefetch};
use samovar_nix::narinfo::NarInfo;
use serde_json::{Value, json};

use crate::arguments::{job_credentials, json, paths, required, sources};
use crate::cache::Cache;
use crate::command::{hash_parts, names};
use crate::http::{Http, Patience};
use crate::outcome::{Failed, Outcome};
use crate::remote::Remote;
use crate::roots;
use crate::size::{counted, human};

/// Defines the command `samovar prefetch`.
pub(crate) fn command() -> Command {
    Command::new("prefetch")
        .about("Makes a server fetch the closures of paths from its upstreams, and keep them")
        .after_help(
            "The server must be a Samovar with a storage. It fetches each NAR that only an \
             upstream has, and verifies it; only the last byte is sent to this command. Paths \
             that the server has are not fetched again. Prints a summary line, and a line for \
             each path that is missing or was not kept, with the reason. Exit code 0: the server \
             has all paths itself; 1: a path is missing or was not kept, or the server refused \
             the request; 2: the command line is invalid; 3: the server is unavailable.",
        )
        .arg(required("url", "URL").help(
            "URL of the server; not that of a proxy that caches responses, or that waits for a \
             NAR for less time than the server needs to receive it",
        ))
        .arg(paths().required(true))
        .args(job_credentials())
        .arg(json())
}

/// Makes the server keep the closures of the paths that the command line names.
///
/// # Errors
///
/// The server is unavailable or refuses the request, or `out` cannot be written.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let started_at = Instant::now();
    let cache = open(matches)?;
    let words = matches.get_many::<String>("paths").into_iter().flatten();
    let words: Vec<String> = words.cloned().collect();
    let roots = roots::read(&words, cache.store_dir(), io::stdin().lock())?;
    let found = cache.closure(&hash_parts(&roots))?;
    let names = names(&roots, &found.narinfos, &cache);
    let missing = found.missing.iter();
    let missing = missing.filter_map(|hash_part| names.get(hash_part).cloned());
    let mut report = Report {
        missing: missing.collect(),
        ..Report::default()
    };
    let ends = prefetch(&cache, &found.narinfos)?;
    for (narinfo, end) in found.narinfos.iter().zip(ends) {
        report.add(narinfo, narinfo.store_path.full(cache.store_dir()), end);
    }
    report.request_count = cache.http().request_count();
    report.seconds = started_at.elapsed().as_secs_f64();
    match matches.get_flag("json") {
        true => writeln!(out, "{}", report.json(&cache))?,
        false => report.print(out)?,
    }
    Ok(match report.is_complete() {
        true => Outcome::Complete,
        false => Outcome::Incomplete,
    })
}

fn open(matches: &ArgMatches) -> anyhow::Result<Cache> {
    let usage = |error| Failed::Usage.because(error);
    let url: &String = matches.get_one("url").context("a URL is missing")?;
    let mut remote = Remote::of_cache(url).map_err(usage)?;
    sources(matches).authorize(&mut remote).map_err(usage)?;
    Cache::over(Http::new(remote, Patience::UPLOAD)?)
}

/// The output of the command. Paths are full store paths.
#[derive(Debug, Default)]
struct Report {
    kept: Vec<String>,
    /// Total length of the files that were kept, in bytes.
    kept_len: u64,
    present: Vec<String>,
    missing: Vec<String>,
    /// Paths that the server would not keep, by reason.
    unkept: BTreeMap<&'static str, Vec<String>>,
    failed: Vec<(String, String)>,
    request_count: u64,
    seconds: f64,
}

impl Report {
    fn add(&mut self, narinfo: &NarInfo, path: String, end: End) {
        match end {
            End::Kept => {
                self.kept_len += file_len(narinfo);
                self.kept.push(path);
            }
            End::Present => self.present.push(path),
            End::Unkept(reason) => self.unkept.entry(reason).or_default().push(path),
            End::Failed(reason) => self.failed.push((path, reason)),
        }
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unkept.is_empty() && self.failed.is_empty()
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for path in &self.missing {
            writeln!(out, "missing {path}")?;
        }
        for (path, reason) in &self.failed {
            writeln!(out, "failed {path}: {reason}")?;
        }
        // The reason concerns an upstream, and so may hold for thousands of paths.
        for (reason, paths) in &self.unkept {
            writeln!(out, "not kept {}: {reason}", counted(paths.len(), "path"))?;
        }
        writeln!(out, "{}", self.line())
    }

    fn line(&self) -> String {
        let (paths, len) = (counted(self.kept.len(), "path"), human(self.kept_len));
        let mut line = format!("kept {paths}, {len} from upstreams");
        let unkept_count = self.unkept.values().map(Vec::len).sum();
        for (count, what) in [
            (self.present.len(), "already on the server"),
            (self.missing.len(), "missing"),
            (self.failed.len(), "failed"),
            (unkept_count, "not kept"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        let requests = counted(self.request_count, "request");
        let seconds = self.seconds;
        line + &format!("; {requests} in {seconds:.1} s")
    }

    fn json(&self, cache: &Cache) -> Value {
        let failed = self.failed.iter();
        let failed = failed.map(|(path, reason)| json!({ "path": path, "reason": reason }));
        let unkept = self.unkept.iter().flat_map(|(reason, paths)| {
            let paths = paths.iter();
            paths.map(move |path| json!({ "path": path, "reason": reason }))
        });
        json!({
            "cache": cache.url(),
            "kept": self.kept,
            "downloadSize": self.kept_len,
            "present": self.present,
            "missing": self.missing,
            "failed": failed.collect::<Vec<_>>(),
            "notKept": unkept.collect::<Vec<_>>(),
            "requests": self.request_count,
            "seconds": self.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines() {
        let mut report = Report {
            kept: vec!["/nix/store/a".to_owned()],
            kept_len: 2048,
            request_count: 4,
            ..Report::default()
        };
        assert_eq!(
            report.line(),
            "kept 1 path, 2.0 KiB from upstreams; 4 requests in 0.0 s"
        );
        report.present = vec!["/nix/store/b".to_owned(); 2];
        report.missing = vec!["/nix/store/c".to_owned()];
        report.unkept.insert("why", vec![String::new(); 3]);
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "missing /nix/store/c\nnot kept 3 paths: why\nkept 1 path, 2.0 KiB from upstreams, 2 \
             already on the server, 1 missing, 3 not kept; 4 requests in 0.0 s\n"
        );
    }
}
