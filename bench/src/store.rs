//! The served store, and Nix's information about it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The store that `xtask sample-store --bench` has created.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) dir: PathBuf,
    /// All valid paths of the store, with Nix's information about them.
    pub(crate) paths: BTreeMap<String, PathInfo>,
    /// Store path of an empty file.
    pub(crate) empty: String,
    /// Store path of a file of 10 MB.
    pub(crate) big: String,
    /// Store path of a tree of about 45,000 files.
    pub(crate) tree: String,
    /// Store paths of ten files of up to 10 MB.
    pub(crate) mixed: Vec<String>,
    /// Store paths of a closure of some hundred paths; its top is the last one.
    pub(crate) closure: Vec<String>,
}

/// The store that `xtask sample-store --paths` has created: very many paths, nearly all without
/// files.
#[derive(Debug)]
pub(crate) struct BigStore {
    pub(crate) dir: PathBuf,
    pub(crate) path_count: u64,
    /// Some of its store paths, at equal distances in the list of all.
    pub(crate) paths: Vec<String>,
    /// Store paths of a large closure; its top is the last one.
    pub(crate) closure: Vec<String>,
}

/// Nix's information about a path, which its narinfo must contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathInfo {
    /// NAR hash in base 32, with its algorithm.
    pub(crate) nar_hash: String,
    pub(crate) nar_size: u64,
    /// References of the path as base names, sorted.
    pub(crate) references: Vec<String>,
    /// Deriver as base name; `None` if the path has none.
    pub(crate) deriver: Option<String>,
    pub(crate) content_address: Option<String>,
}

/// Returns the hash part of a store path.
pub(crate) fn hash_part(path: &str) -> &str {
    base_name(path).split('-').next().unwrap_or_default()
}

/// Returns a store path without the store directory.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl Store {
    /// Reads the manifest in `dir` and queries Nix for all paths.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let (dir, manifest) = open(dir)?;
        let path = |key: &str| -> Result<String> {
            let path = manifest.get(key).and_then(Value::as_str);
            Ok(path
                .with_context(|| format!("sample.json names no {key}"))?
                .to_owned())
        };
        let closure = requisites(&dir, &path("top")?)?;
        let mut store = Self {
            empty: path("empty")?,
            big: path("big")?,
            tree: path("tree")?,
            mixed: texts(manifest.get("mixed")),
            closure,
            dir,
            paths: BTreeMap::new(),
        };
        store.paths = store.path_infos()?;
        Ok(store)
    }

    fn path_infos(&self) -> Result<BTreeMap<String, PathInfo>> {
        let json = nix(&self.dir, "nix", &["path-info", "--json", "--all"], &[])?;
        let list: Vec<Value> = serde_json::from_str(&json).context("nix path-info --json")?;
        let mut infos = BTreeMap::new();
        for value in &list {
            let (path, info) = path_info(value).with_context(|| format!("not a path: {value}"))?;
            infos.insert(path, info);
        }
        // Nix's JSON has the hash in base 64; this command prints it as in narinfos.
        let paths: Vec<String> = infos.keys().cloned().collect();
        for some in paths.chunks(1000) {
            let hashes = nix(&self.dir, "nix-store", &["--query", "--hash"], some)?;
            for (path, hash) in some.iter().zip(hashes.lines()) {
                if let Some(info) = infos.get_mut(path) {
                    info.nar_hash = hash.to_owned();
                }
            }
        }
        Ok(infos)
    }

    /// Returns a command that writes the NAR of `path` to standard output.
    pub(crate) fn dump(&self, path: &str) -> Command {
        let mut command = Command::new("nix-store");
        command
            .arg("--dump")
            .arg(self.dir.join(path.trim_start_matches('/')));
        command
    }

    /// Returns Nix's information about `path`.
    pub(crate) fn info(&self, path: &str) -> Result<&PathInfo> {
        self.paths
            .get(path)
            .with_context(|| format!("{path} is not valid"))
    }
}

impl BigStore {
    /// Reads the manifest in `dir` and queries Nix for the closure.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let (dir, manifest) = open(dir)?;
        let paths = texts(manifest.get("rows"));
        if paths.is_empty() {
            bail!("{} names no rows: is it a big store?", dir.display());
        }
        let top = manifest.get("closure_10000").and_then(Value::as_str);
        Ok(Self {
            closure: top.map_or(Ok(Vec::new()), |top| requisites(&dir, top))?,
            path_count: manifest
                .get("path_count")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
            paths,
            dir,
        })
    }
}

/// Returns the directory of a store, and the largest closure that its manifest names; its top is
/// the last path.
pub(crate) fn largest_closure(dir: &Path) -> Result<(PathBuf, Vec<String>)> {
    let (dir, manifest) = open(dir)?;
    let names = ["closure_10000", "closure_400", "top"];
    let top = names.iter().find_map(|name| manifest.get(*name)?.as_str());
    let top = top.with_context(|| format!("{} names no closure", dir.display()))?;
    let closure = requisites(&dir, top)?;
    Ok((dir, closure))
}

/// Returns the canonical path of a store, and its manifest.
fn open(dir: &Path) -> Result<(PathBuf, Value)> {
    let dir = dir
        .canonicalize()
        .with_context(|| format!("no store in {}", dir.display()))?;
    let manifest = fs::read_to_string(dir.join("sample.json"))
        .with_context(|| format!("{} has no sample.json", dir.display()))?;
    Ok((dir, serde_json::from_str(&manifest)?))
}

/// Returns the strings of a JSON array; an empty list for any other value.
fn texts(list: Option<&Value>) -> Vec<String> {
    let values = list.and_then(Value::as_array).into_iter().flatten();
    values
        .filter_map(|value| Some(value.as_str()?.to_owned()))
        .collect()
}

/// Returns the closure of `path`; `path` itself is the last one.
fn requisites(store: &Path, path: &str) -> Result<Vec<String>> {
    let words = ["--query", "--requisites", path];
    let lines = nix(store, "nix-store", &words, &[])?;
    Ok(lines.lines().map(str::to_owned).collect())
}

/// Runs a Nix program on a store; returns its output.
fn nix(store: &Path, program: &str, words: &[&str], paths: &[String]) -> Result<String> {
    let mut command = Command::new(program);
    if program == "nix" {
        command.args(["--extra-experimental-features", "nix-command"]);
    }
    command.arg("--store").arg(store).args(words).args(paths);
    let done = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !done.status.success() {
        bail!(
            "{program} {words:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(String::from_utf8(done.stdout)?)
}

fn path_info(value: &Value) -> Option<(String, PathInfo)> {
    let text = |key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let mut references: Vec<String> = value
        .get("references")?
        .as_array()?
        .iter()
        .filter_map(|path| Some(base_name(path.as_str()?).to_owned()))
        .collect();
    references.sort();
    let info = PathInfo {
        nar_hash: String::new(),
        nar_size: value.get("narSize")?.as_u64()?,
        references,
        deriver: text("deriver").map(|path| base_name(path).to_owned()),
        content_address: text("ca").map(str::to_owned),
    };
    Some((text("path")?.to_owned(), info))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_part_and_base_name_of_a_store_path() {
        assert_eq!(hash_part("/nix/store/abc-a-b"), "abc");
        assert_eq!(base_name("/nix/store/abc-a-b"), "abc-a-b");
    }
}
