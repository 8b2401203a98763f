//! `samovar closure`, `samovar query` and `samovar doctor --verify`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZeroU64;

use anyhow::{Context as _, ensure};
use clap::ArgMatches;
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, PublicKey, StorePath};
use samovar_store::Settings;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::cli;
use crate::doctor::Verification;
use crate::outcome::Outcome;
use crate::roots::{self, Root};
use crate::size::human;

/// Number of paths per look-up in the local store.
const LOOKUP_COUNT: usize = 500;

/// A parsed command line of one of these commands.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    task: Task,
    is_json: bool,
    store: Option<String>,
    keys: Vec<PublicKey>,
    url: String,
    paths: Vec<String>,
    /// Read rate, bytes per second; `None` for no limit.
    rate: Option<NonZeroU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Closure,
    Query,
    Doctor,
}

impl Request {
    /// Parses a command line without the program's name; returns `None` for other commands.
    ///
    /// # Errors
    ///
    /// The command line is invalid.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, clap::Error> {
        let name = OsString::from("samovar");
        let words = std::iter::once(name).chain(words);
        let matches = cli::command().try_get_matches_from(words)?;
        let (name, matches) = matches.subcommand().unzip();
        Ok(name
            .zip(matches)
            .and_then(|(name, one)| Self::of(name, one)))
    }

    /// Converts the parsed arguments of a subcommand; returns `None` for other commands.
    pub(crate) fn of(name: &str, matches: &ArgMatches) -> Option<Self> {
        let task = match name {
            "closure" => Task::Closure,
            "query" => Task::Query,
            "doctor" if matches.get_flag("verify") => Task::Doctor,
            _ => return None,
        };
        let text = |id| matches.try_get_one::<String>(id).ok().flatten().cloned();
        let texts = |id| {
            let texts = matches.try_get_many::<String>(id).ok().flatten();
            texts.into_iter().flatten().cloned().collect()
        };
        let keys = matches.try_get_many::<cli::Keys>("trusted-public-keys");
        let keys = keys.ok().flatten().into_iter().flatten();
        Some(Self {
            task,
            is_json: matches.try_get_one("json").ok().flatten().copied() == Some(true),
            store: text("store"),
            keys: keys.flat_map(|keys| keys.0.clone()).collect(),
            url: text("url").unwrap_or_default(),
            paths: texts("paths"),
            rate: matches.try_get_one("rate").ok().flatten().copied(),
        })
    }

    /// Returns the exit code for a failure of [`run`](Self::run).
    #[must_use]
    pub fn error_code(&self) -> u8 {
        match self.task {
            Task::Doctor => 2,
            Task::Closure | Task::Query => 3,
        }
    }

    /// Runs the command and prints its results to `out`.
    ///
    /// # Errors
    ///
    /// The cache, the store or standard input cannot be read, or `out` cannot be written.
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        match self.task {
            Task::Closure => self.closure(out),
            Task::Query => self.query(out),
            Task::Doctor => {
                let verification = Verification {
                    store: self.store.as_deref(),
                    paths: &self.paths,
                    rate: self.rate,
                };
                verification.run(out)
            }
        }
    }

    fn roots(&self, cache: &Cache) -> anyhow::Result<Vec<Root>> {
        roots::read(&self.paths, cache.store_dir(), io::stdin().lock())
    }

    fn query(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let cache = Cache::open(&self.url)?;
        let roots = self.roots(&cache)?;
        let hash_parts: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        let present: Vec<bool> = cache
            .narinfos(&hash_parts)?
            .iter()
            .map(Option::is_some)
            .collect();
        let answers = roots.iter().zip(&present);
        if self.is_json {
            let paths: Vec<Value> = answers
                .map(|(root, present)| json!({ "path": root.text, "present": present }))
                .collect();
            writeln!(out, "{}", json!({ "cache": cache.url(), "paths": paths }))?;
        } else {
            for (root, present) in answers {
                let word = if *present { "present" } else { "absent" };
                writeln!(out, "{word} {}", root.text)?;
            }
        }
        Ok(outcome(present.iter().all(|present| *present)))
    }

    fn closure(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let cache = Cache::open(&self.url)?;
        let roots = self.roots(&cache)?;
        let hash_parts: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        let mut found = cache.closure(&hash_parts)?;
        let names = names(&roots, &found.narinfos, &cache);
        let mut local_count = 0;
        if let Some(uri) = &self.store {
            let all: Vec<HashPart> = found
                .narinfos
                .iter()
                .map(|narinfo| narinfo.store_path.hash_part())
                .collect();
            let mut is_there = has(uri, &all, &cache)?.into_iter();
            let all_count = found.narinfos.len();
            found.narinfos.retain(|_| is_there.next() == Some(false));
            local_count = all_count - found.narinfos.len();
        }
        let missing: Vec<&str> = found
            .missing
            .iter()
            .filter_map(|hash_part| names.get(hash_part).map(String::as_str))
            .collect();
        let report = Report {
            narinfos: &found.narinfos,
            untrusted: self.untrusted(&found.narinfos, &cache),
            missing,
            local_count,
        };
        if self.is_json {
            writeln!(out, "{}", report.json(&cache))?;
        } else {
            report.print(out, &cache)?;
        }
        Ok(outcome(
            report.missing.is_empty() && report.untrusted.is_empty(),
        ))
    }

    /// Returns the paths that no key of the command line has signed.
    fn untrusted<'a>(&self, narinfos: &'a [NarInfo], cache: &Cache) -> Vec<&'a StorePath> {
        if self.keys.is_empty() {
            return Vec::new();
        }
        let is_trusted = |narinfo: &NarInfo| {
            let fingerprint = narinfo.fingerprint(cache.store_dir());
            narinfo.content_address.is_some()
                || self.keys.iter().any(|key| {
                    let mut signatures = narinfo.signatures.iter();
                    signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
                })
        };
        let untrusted = narinfos.iter().filter(|narinfo| !is_trusted(narinfo));
        untrusted.map(|narinfo| &narinfo.store_path).collect()
    }
}

/// Returns, for each of these paths, whether the store has it.
fn has(uri: &str, hash_parts: &[HashPart], cache: &Cache) -> anyhow::Result<Vec<bool>> {
    let store = Settings::from_process()
        .map_err(anyhow::Error::from)
        .and_then(|settings| Ok(samovar_store::open(Some(uri), &settings)?))
        .with_context(|| format!("cannot open the store {uri:?}"))?;
    ensure!(
        store.store_dir() == cache.store_dir(),
        "the store {uri:?} has paths in {}, the cache in {}: they have no path in common",
        store.store_dir(),
        cache.store_dir()
    );
    let mut found = Vec::with_capacity(hash_parts.len());
    for some in hash_parts.chunks(LOOKUP_COUNT) {
        for looked in store
            .lookup_many(some)
            .with_context(|| format!("cannot query the store {uri:?}"))?
        {
            // A path with a malformed row counts as missing: it must be downloaded again.
            found.push(matches!(looked, Ok(Some(_))));
        }
    }
    Ok(found)
}

/// Maps hash parts to full paths, as far as these are known.
fn names(roots: &[Root], narinfos: &[NarInfo], cache: &Cache) -> HashMap<HashPart, String> {
    let given = roots.iter().map(|root| (root.hash_part, root.text.clone()));
    let referred = narinfos.iter().flat_map(|narinfo| &narinfo.references);
    let referred = referred.map(|path| (path.hash_part(), path.full(cache.store_dir())));
    given.chain(referred).collect()
}

fn outcome(is_complete: bool) -> Outcome {
    if is_complete {
        Outcome::Complete
    } else {
        Outcome::Incomplete
    }
}

/// The output of `samovar closure`.
struct Report<'a> {
    narinfos: &'a [NarInfo],
    untrusted: Vec<&'a StorePath>,
    missing: Vec<&'a str>,
    /// Number of paths left out because the local store already has them.
    local_count: usize,
}

impl Report<'_> {
    fn nar_size(&self) -> u64 {
        self.narinfos.iter().map(|narinfo| narinfo.nar_size).sum()
    }

    /// Returns the sum of the downloads; `None` if the cache does not report the size of a
    /// compressed file.
    fn download_size(&self) -> Option<u64> {
        self.narinfos.iter().map(download_size).sum()
    }

    fn json(&self, cache: &Cache) -> Value {
        let dir = cache.store_dir();
        let full = |path: &StorePath| path.full(dir);
        let paths: Vec<Value> = self
            .narinfos
            .iter()
            .map(|narinfo| {
                json!({
                    "path": full(&narinfo.store_path),
                    "narHash": narinfo.nar_hash.to_string(),
                    "narSize": narinfo.nar_size,
                    "downloadSize": download_size(narinfo),
                    "url": narinfo.url,
                    "compression": narinfo.compression.name(),
                    "references": narinfo.references.iter().map(full).collect::<Vec<_>>(),
                    "deriver": narinfo.deriver.as_ref().map(full),
                    "signatures": texts(&narinfo.signatures),
                })
            })
            .collect();
        json!({
            "cache": cache.url(),
            "storeDir": dir.as_str(),
            "count": self.narinfos.len(),
            "narSize": self.nar_size(),
            "downloadSize": self.download_size(),
            "inLocalStore": self.local_count,
            "paths": paths,
            "missing": self.missing,
            "untrusted": self.untrusted.iter().map(|path| full(path)).collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut dyn Write, cache: &Cache) -> io::Result<()> {
        let dir = cache.store_dir();
        for narinfo in self.narinfos {
            let size = human(download_size(narinfo).unwrap_or(narinfo.nar_size));
            writeln!(out, "{size:>10}  {}", narinfo.store_path.display(dir))?;
        }
        for path in &self.untrusted {
            writeln!(out, " untrusted  {}", path.display(dir))?;
        }
        for path in &self.missing {
            writeln!(out, "   missing  {path}")?;
        }
        let download = match self.download_size() {
            Some(size) => human(size),
            None => "an unknown size".to_owned(),
        };
        let count = self.narinfos.len();
        let paths = if count == 1 { "path" } else { "paths" };
        write!(out, "{count} {paths}, {download} to download")?;
        write!(out, ", {} unpacked", human(self.nar_size()))?;
        for (count, what) in [
            (self.local_count, "in the local store"),
            (self.missing.len(), "missing"),
            (self.untrusted.len(), "untrusted"),
        ] {
            if count > 0 {
                write!(out, ", {count} {what}")?;
            }
        }
        writeln!(out)
    }
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn download_size(narinfo: &NarInfo) -> Option<u64> {
    let plain = (narinfo.compression == Compression::None).then_some(narinfo.nar_size);
    narinfo.file_size.or(plain)
}
