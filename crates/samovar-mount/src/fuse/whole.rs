//! [`open`]: opens a store path without a manifest, which is verified as a whole.
//!
//! A part of a NAR cannot be verified without the digests of a manifest. So the NAR is downloaded
//! and compared with its hash before anything of it is used, also the names and sizes of its files.
//! The hash is kept in the file `nar-hash`. A NAR that was verified before the last restart of the
//! machine is verified again.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use samovar_client::failed::Failed;
use samovar_client::snapshot::Snapshots;
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{NarHash, StorePath};
use samovar_workspace::{Entries, Kind, Manifest};

use super::cache_dir::CacheDir;
use super::download::{download, read_verified};
use super::local::{self, Local};
use super::source::{read_manifest, replace};

/// Opens a store path, and downloads it first if it is not on this machine. `source`: the cache and
/// its narinfo of the path; `None`: nothing is downloaded. `received`: called with the length of
/// each piece of the NAR that arrives. Returns `None` if the path is not on this machine, and there
/// is no source.
///
/// # Errors
///
/// The path cannot be downloaded, is damaged, or is mounted with other contents.
pub(super) fn open(
    cache_dir: &CacheDir,
    path: &StorePath,
    source: Option<(&Snapshots, &NarInfo)>,
    received: &mut dyn FnMut(u64),
) -> anyhow::Result<Option<Local>> {
    let name = path.base_name();
    if source.is_none() && known_hash(&cache_dir.folder(name)).is_none() {
        return Ok(None);
    }
    let mut prepared = None;
    let (dir, lock) = cache_dir.snapshot(name, |dir| {
        let found = match here(dir, path, source.map(|(_, info)| &info.nar_hash)) {
            Some(found) => found,
            None => {
                let (server, info) = source.with_context(|| {
                    format!("{path} is damaged on this machine: mount it without --offline")
                })?;
                cache_dir.make_room(info.nar_size, name)?;
                fetch(server, info, dir, received)?
            }
        };
        prepared = Some(found);
        Ok(())
    })?;
    let manifest = match prepared {
        Some(manifest) => manifest,
        // Another mount uses the path, and has verified it.
        None => {
            let nar_hash = known_hash(&dir).context("another mount has not verified this path")?;
            index(&dir, path, nar_hash)?
        }
    };
    if let Some((server, info)) = source
        && info.nar_hash != manifest.nar_hash
    {
        let url = server.cache().url();
        let error = anyhow!(
            "the contents of {path} at {url} differ from those at the cache from which the path is \
             mounted on this machine: unmount that mount first"
        );
        return Err(Failed::Refused.because(error));
    }
    Local::open(&dir, lock, manifest).map(Some)
}

/// Returns the entries of the NAR on this machine, verified. Returns `None` if there is none with
/// this hash. The caller holds the exclusive lock.
fn here(dir: &Path, path: &StorePath, wanted: Option<&NarHash>) -> Option<Manifest> {
    let nar_hash = known_hash(dir)?;
    if wanted.is_some_and(|wanted| *wanted != nar_hash) {
        return None;
    }
    let manifest = index(dir, path, nar_hash).ok()?;
    local::prepare(dir, &manifest).ok()?;
    if !local::is_whole(dir) {
        verified(dir, path, nar_hash).ok()?;
        local::mark_whole(dir, &manifest).ok()?;
    }
    Some(manifest)
}

/// Downloads the NAR, and creates the files of the path. The caller holds the exclusive lock.
fn fetch(
    server: &Snapshots,
    info: &NarInfo,
    dir: &Path,
    received: &mut dyn FnMut(u64),
) -> anyhow::Result<Manifest> {
    for stale in ["nar-hash", "marks", "manifest"] {
        fs::remove_file(dir.join(stale)).ok();
    }
    let manifest = Manifest {
        tree: info.store_path.clone(),
        nar_hash: info.nar_hash,
        entries: download(server, info, dir, received)?,
    };
    local::mark_whole(dir, &manifest)?;
    let failed = || format!("cannot write to {dir:?}");
    if is_directory(&manifest.entries) {
        replace(&dir.join("manifest"), manifest.text().as_bytes()).with_context(failed)?;
    }
    let nar_hash = info.nar_hash.nixbase32();
    replace(&dir.join("nar-hash"), &nar_hash).with_context(failed)?;
    Ok(manifest)
}

/// Returns the entries of the NAR on this machine. Those of a directory are in the file `manifest`,
/// because reading the whole NAR would take longer.
fn index(dir: &Path, path: &StorePath, nar_hash: NarHash) -> anyhow::Result<Manifest> {
    let known = read_manifest(&dir.join("manifest")).ok();
    match known.filter(|manifest| manifest.nar_hash == nar_hash) {
        Some(manifest) => Ok(manifest),
        None => verified(dir, path, nar_hash),
    }
}

/// Verifies the NAR on this machine, and returns its entries.
fn verified(dir: &Path, path: &StorePath, nar_hash: NarHash) -> anyhow::Result<Manifest> {
    let mut nar = File::open(dir.join("nar"))?;
    let nar_size = nar.metadata()?.len();
    let entries = read_verified(&mut nar, path, nar_size, &nar_hash, &mut |_piece| Ok(()))?;
    Ok(Manifest {
        tree: path.clone(),
        nar_hash,
        entries,
    })
}

/// Returns the hash of the NAR on this machine, if it was downloaded and verified.
fn known_hash(dir: &Path) -> Option<NarHash> {
    NarHash::parse_nixbase32(&fs::read(dir.join("nar-hash")).ok()?).ok()
}

/// Returns whether the root is a directory.
pub(super) fn is_directory(entries: &Entries) -> bool {
    let root = entries.get(0).map(|root| &root.kind);
    matches!(root, Some(Kind::Directory { .. }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Writes the files of a store path that was downloaded before the last restart.
    fn fill(dir: &Path, nar: &[u8]) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("nar"), nar).unwrap();
        let hash = NarHash::from_bytes(Sha256::digest(nar).into());
        fs::write(dir.join("nar-hash"), hash.nixbase32()).unwrap();
    }

    #[test]
    fn a_path_is_verified_again_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CacheDir::at(dir.path().to_owned(), 1 << 20).unwrap();
        let path = StorePath::from_base_name("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app").unwrap();
        let open = || open(&cache, &path, None, &mut |_len| ());
        assert!(open().unwrap().is_none());
        let nar = samovar_workspace::file_nar(b"contents");
        let folder = cache.folder(path.base_name());
        fill(&folder, &nar);
        let local = open().unwrap().unwrap();
        assert!(local.is_whole());
        // Another mount of it on this machine needs no exclusive lock.
        assert!(open().unwrap().unwrap().is_whole());
        drop(local);
        let marks = fs::OpenOptions::new()
            .write(true)
            .open(folder.join("marks"));
        let marks = marks.unwrap();
        marks.write_all_at(b"another boot", 20).unwrap();
        assert!(open().unwrap().unwrap().is_whole());
        // What a power cut has damaged is not used.
        marks.write_all_at(b"another boot", 20).unwrap();
        let damaged = vec![0; nar.len()];
        fs::write(folder.join("nar"), damaged).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("damaged on this machine"), "{error}");
    }
}
