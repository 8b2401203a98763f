//! [`Resolved`]: the store path of what the command line names.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::credentials::Sources;
use samovar_client::failed::Failed;
use samovar_client::refs::{PathOrRef, RefName, is_manifest};
use samovar_client::snapshot::Snapshots;
use samovar_nix::{PublicKey, StorePath, nixbase32};
use samovar_workspace::Manifest;
use sha2::{Digest as _, Sha256};

use super::cache_dir::CacheDir;

/// A store path that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    /// A manifest, or a tree without one.
    pub(super) path: StorePath,
    /// Name for messages, such as `app@3`.
    pub(super) shown: String,
}

impl Resolved {
    /// Finds the store path on the server, and remembers it for [`offline`](Self::offline). `keys`:
    /// if there are any, one of them must have signed the path.
    ///
    /// # Errors
    ///
    /// The ref does not exist, or the server does not answer.
    pub(super) fn online(
        wanted: &PathOrRef,
        credentials: &Sources,
        keys: &[PublicKey],
        cache: &CacheDir,
    ) -> anyhow::Result<(Snapshots, Self)> {
        let (snapshots, path, generation) = Snapshots::find(wanted, credentials, keys)?;
        let resolved = match (wanted, generation) {
            (PathOrRef::Ref(name), Some(number)) => {
                remember(name, number, &path, cache);
                Self::of_ref(name, number, path)?
            }
            _ => Self {
                shown: path.base_name().to_owned(),
                path,
            },
        };
        Ok((snapshots, resolved))
    }

    /// Finds the store path without the server.
    ///
    /// # Errors
    ///
    /// The ref was never mounted on this machine.
    pub(super) fn offline(wanted: &PathOrRef, cache: &CacheDir) -> anyhow::Result<Self> {
        let name = match wanted {
            PathOrRef::Ref(name) => name,
            PathOrRef::Path(_, text) => return Self::of_path(text),
        };
        let mut known = remembered(&remembered_at(name, cache));
        let found = match name.generation {
            Some(number) => known.remove_entry(&number),
            None => known.pop_last(),
        };
        let found = found.with_context(|| format!("{} {NEVER}", without_url(name)));
        let (number, path) = found.map_err(|error| Failed::Unavailable.because(error))?;
        Self::of_ref(name, number, path)
    }

    fn of_ref(name: &RefName, number: u64, path: StorePath) -> anyhow::Result<Self> {
        let shown = format!("{}@{number}", name.name);
        if !is_manifest(path.name()) {
            let error = anyhow!("{shown} is {path}, not a snapshot: mount it by its store path");
            return Err(Failed::Refused.because(error));
        }
        Ok(Self { path, shown })
    }

    fn of_path(text: &str) -> anyhow::Result<Self> {
        let base_name = text.rsplit('/').next().unwrap_or_default();
        let path = StorePath::from_base_name(base_name).map_err(|error| {
            Failed::Usage.because(anyhow!("{text:?} is not a store path: {error}"))
        })?;
        Ok(Self {
            shown: text.to_owned(),
            path,
        })
    }

    /// Returns whether the path is the manifest of a snapshot.
    pub(super) fn is_snapshot(&self) -> bool {
        is_manifest(self.path.name())
    }
}

/// End of the error about what is not on this machine.
pub(super) const NEVER: &str = "was never mounted on this machine: mount it without --offline";

fn without_url(name: &RefName) -> String {
    match name.generation {
        Some(number) => format!("{}@{number}", name.name),
        None => name.name.to_string(),
    }
}

/// Returns the file with the generations of a ref that were mounted.
fn remembered_at(name: &RefName, cache: &CacheDir) -> PathBuf {
    let digest = Sha256::digest(format!("{}#{}", name.remote, name.name));
    cache.file(&format!("refs/{}", nixbase32::encode(&digest)))
}

fn remembered(file: &Path) -> BTreeMap<u64, StorePath> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let parse = |line: &str| {
        let (number, base_name) = line.split_once(' ')?;
        let path = StorePath::from_base_name(base_name).ok()?;
        Some((number.parse().ok()?, path))
    };
    text.lines().filter_map(parse).collect()
}

fn remember(name: &RefName, number: u64, path: &StorePath, cache: &CacheDir) {
    let file = remembered_at(name, cache);
    let mut known = remembered(&file);
    known.insert(number, path.clone());
    let line = |(number, path): (&u64, &StorePath)| format!("{number} {}\n", path.base_name());
    let text: String = known.iter().map(line).collect();
    // A mount does not depend on what is remembered.
    replace(&file, text.as_bytes()).ok();
}

/// Writes a file so that readers see the old or the new contents.
///
/// # Errors
///
/// The file cannot be written.
pub(super) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(contents)?;
    file.persist(path)?;
    Ok(())
}

/// Reads a manifest from a file.
///
/// # Errors
///
/// The file cannot be read, or is not a manifest.
pub(super) fn read_manifest(path: &Path) -> anyhow::Result<Manifest> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
    ensure!(!text.is_empty(), "{path:?} is empty: delete it");
    Manifest::parse(&text).with_context(|| format!("{path:?} is damaged: delete it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app.manifest";

    #[test]
    fn the_newest_generation_that_was_mounted_is_found_offline() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheDir::at(dir.path().to_owned(), 1).unwrap();
        let wanted = |text: &str| PathOrRef::parse(text).unwrap();
        let offline = |text: &str| Resolved::offline(&wanted(text), &cache);
        let error = offline("http://a#app").unwrap_err().to_string();
        assert_eq!(error, format!("app {NEVER}"));
        let path = StorePath::from_base_name(MANIFEST).unwrap();
        for number in [9, 10] {
            let name = RefName::parse("http://a#app").unwrap();
            remember(&name, number, &path, &cache);
        }
        assert_eq!(offline("http://a#app").unwrap().shown, "app@10");
        assert_eq!(offline("http://a#app@9").unwrap().shown, "app@9");
        assert!(offline("http://a#app@8").is_err());
        assert!(offline("http://b#app").is_err());
    }

    #[test]
    fn store_paths_need_no_server_to_be_found() {
        let path = format!("/gnu/store/{MANIFEST}");
        let resolved = Resolved::of_path(&path).unwrap();
        assert!(resolved.is_snapshot());
        assert_eq!(
            (resolved.path.base_name(), resolved.shown),
            (MANIFEST, path)
        );
        let error = Resolved::of_path("/nix/store/app").unwrap_err();
        assert_eq!(Failed::of(&error), Some(Failed::Usage));
    }
}
