//! Runs the commands `samovar closure` and `samovar query`.

use std::collections::HashMap;
use std::io::{self, Write};

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, PublicKey, StorePath};
use samovar_store::Settings;
use serde_json::{Value, json};

use crate::arguments::{json as json_switch, option, paths, required};
use crate::cache::Cache;
use crate::notice::notice;
use crate::outcome::Outcome;
use crate::roots::{self, Root};
use crate::size::human;
use crate::trust::{is_signed, keys};

/// Maximum number of paths in one query to the local store.
pub(crate) const LOOKUP_COUNT: usize = 500;

/// Defines `samovar closure`.
pub(crate) fn closure_command() -> Command {
    Command::new("closure")
        .about("Shows what the closures of paths would cost to download from a cache")
        .after_help(
            "Prints each path after its references, with its download size, and a summary line. \
             With --json, the fields of a path have the names that nix path-info --json gives \
             them; narHash is in the form of narinfos. \
             Exit code 0: all paths are available; 1: a path is missing or not signed by a \
             trusted key; 2: the command line is invalid; 3: the cache or the store is \
             unavailable.",
        )
        .arg(json_switch())
        .arg(
            option("store", "URI")
                .help("Leave out paths that this store has; auto is the local store"),
        )
        .arg(
            option("trusted-public-keys", "KEYS")
                .action(ArgAction::Append)
                .value_parser(keys)
                .help(
                    "Require each path to be signed by one of these keys, separated by spaces, or \
                     to be content-addressed",
                ),
        )
        .arg(url())
        .arg(paths().required(true))
}

/// Defines `samovar query`.
pub(crate) fn query_command() -> Command {
    Command::new("query")
        .about("Shows which paths a cache has")
        .after_help(
            "Prints \"present\" or \"absent\" before each path, in the given order. Exit code 0: \
             all paths are present; 1: a path is absent; 2: the command line is invalid; 3: the \
             cache is unavailable.",
        )
        .arg(json_switch())
        .arg(url())
        .arg(paths().required(true))
}

fn url() -> Arg {
    required("url", "URL").help(
        "URL of a binary cache: Samovar, nix-serve, harmonia or static files; NIX_SSL_CERT_FILE \
         names the trusted certificates, as for Nix",
    )
}

/// Runs `samovar query`: prints which of the given paths the cache has.
pub(crate) fn query(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (cache, roots) = open(matches)?;
    let narinfos = cache.narinfos(&hash_parts(&roots))?;
    let present = roots.iter().zip(&narinfos).map(|(root, narinfo)| {
        let Some(narinfo) = narinfo else { return false };
        let misnamed = root.misnamed(&narinfo.store_path, cache.store_dir(), "the cache");
        misnamed.as_deref().inspect(|text| notice(text)).is_none()
    });
    let present: Vec<bool> = present.collect();
    let answers = roots.iter().zip(&present);
    if matches.get_flag("json") {
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

/// Runs `samovar closure`: prints which paths of the closures a client would download from the
/// cache.
pub(crate) fn closure(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (cache, roots) = open(matches)?;
    let mut found = cache.closure(&hash_parts(&roots))?;
    let names = names(&roots, &found.narinfos, &cache);
    let mut local_count = 0;
    if let Some(uri) = matches.get_one::<String>("store") {
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
    let keys = matches.get_many::<Vec<PublicKey>>("trusted-public-keys");
    let keys: Vec<&PublicKey> = keys.into_iter().flatten().flatten().collect();
    let report = Report {
        narinfos: &found.narinfos,
        untrusted: found
            .narinfos
            .iter()
            .filter(|narinfo| narinfo.content_address.is_none())
            .filter(|narinfo| !is_signed(&keys, narinfo, cache.store_dir()))
            .map(|narinfo| &narinfo.store_path)
            .collect(),
        missing,
        local_count,
    };
    if matches.get_flag("json") {
        writeln!(out, "{}", report.json(&cache))?;
    } else {
        report.print(out, &cache)?;
    }
    Ok(outcome(
        report.missing.is_empty() && report.untrusted.is_empty(),
    ))
}

/// Opens the cache and parses the paths that the command line names.
fn open(matches: &ArgMatches) -> anyhow::Result<(Cache, Vec<Root>)> {
    let url: &String = matches.get_one("url").context("a URL is missing")?;
    let cache = Cache::open(url)?;
    let paths: Vec<String> = texts(matches.get_many::<String>("paths").into_iter().flatten());
    let roots = roots::read(&paths, cache.store_dir(), io::stdin().lock())?;
    Ok((cache, roots))
}

pub(crate) fn hash_parts(roots: &[Root]) -> Vec<HashPart> {
    roots.iter().map(|root| root.hash_part).collect()
}

/// Returns, for each path, whether the store at `uri` has it.
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
            // A path whose row in the database is malformed counts as missing: it must be
            // downloaded again.
            found.push(matches!(looked, Ok(Some(_))));
        }
    }
    Ok(found)
}

/// Maps hash parts to the full store paths that are known from the arguments and the narinfos.
pub(crate) fn names(
    roots: &[Root],
    narinfos: &[NarInfo],
    cache: &Cache,
) -> HashMap<HashPart, String> {
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

    /// Returns the total size of the downloads in bytes. Returns `None` if the cache does not
    /// report the size of some compressed file.
    fn download_size(&self) -> Option<u64> {
        self.narinfos.iter().map(download_size).sum()
    }

    /// Returns the document of `--json`. Its names are in camel case, unlike those of the status
    /// and the access log: a path has the names of `nix path-info --json`, as scripts read both.
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
                    "signatures": texts(narinfo.signatures.iter()),
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

fn texts<'a>(all: impl Iterator<Item = &'a (impl ToString + 'a)>) -> Vec<String> {
    all.map(ToString::to_string).collect()
}

fn download_size(narinfo: &NarInfo) -> Option<u64> {
    let plain = (narinfo.compression == Compression::None).then_some(narinfo.nar_size);
    narinfo.file_size.or(plain)
}
