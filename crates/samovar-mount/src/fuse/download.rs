//! [`download`]: fetches the NAR of a store path that has no manifest, and verifies it.

use std::io::{self, Read, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::failed::Failed;
use samovar_client::snapshot::Snapshots;
use samovar_nix::nar::{Decoder, Event};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{NarHash, StorePath};
use samovar_workspace::entries::Builder;
use samovar_workspace::{Entries, Mtime};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

/// Length of a read, in bytes.
const PIECE_LEN: usize = 128 << 10;

/// Time of modification of files in a Nix store.
const MTIME: Mtime = Mtime {
    seconds: 1,
    nanoseconds: 0,
};

/// Modes of files in a Nix store.
const MODE_EXECUTABLE: u16 = 0o555;
const MODE: u16 = 0o444;

/// Downloads the NAR of a path into the file `nar` of `dir`, and verifies it. Returns its entries,
/// with digests. `received`: called with the length of each piece of the NAR that arrives.
///
/// # Errors
///
/// The NAR cannot be downloaded, or is damaged.
pub(super) fn download(
    snapshots: &Snapshots,
    info: &NarInfo,
    dir: &Path,
    received: &mut dyn FnMut(u64),
) -> anyhow::Result<Entries> {
    let failed = || format!("cannot write to {dir:?}");
    let mut file = NamedTempFile::new_in(dir).with_context(failed)?;
    let path = &info.store_path;
    let entries = snapshots.read_nar(info, &Arc::default(), |nar| {
        read_verified(nar, path, info.nar_size, &info.nar_hash, &mut |piece| {
            received(piece.len() as u64);
            file.write_all(piece).with_context(failed)
        })
    })?;
    file.persist(dir.join("nar")).with_context(failed)?;
    Ok(entries)
}

/// Reads a whole NAR and verifies it. Returns its entries, with digests. `write`: called with each
/// piece.
///
/// # Errors
///
/// The NAR cannot be read, or is damaged. Errors of `write`.
pub(super) fn read_verified(
    nar: &mut dyn Read,
    path: &StorePath,
    nar_size: u64,
    nar_hash: &NarHash,
    write: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<Entries> {
    let damaged = |reason: String| {
        Failed::Refused.because(anyhow!("{path} is damaged on the server: {reason}"))
    };
    let mut hasher = Sha256::new();
    let mut indexer = Indexer::default();
    let mut piece = vec![0; PIECE_LEN];
    let mut len = 0;
    // An invalid NAR may have the right hash, so it is read to its end.
    let mut indexed = Ok(());
    while len <= nar_size {
        let count = match nar.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(damaged(error.to_string())),
        };
        let data = piece.get(..count).unwrap_or_default();
        len += count as u64;
        hasher.update(data);
        write(data)?;
        indexed = indexed.and_then(|()| indexer.push(data));
    }
    if NarHash::from_bytes(hasher.finalize().into()) != *nar_hash || len != nar_size {
        return Err(damaged("its NAR does not match its hash".to_owned()));
    }
    let entries = indexed.and_then(|()| indexer.finish());
    entries.map_err(|error| Failed::Refused.because(anyhow!("cannot mount {path}: {error:#}")))
}

/// Collects the entries of a NAR and their digests.
#[derive(Default)]
struct Indexer {
    decoder: Decoder,
    /// The root, if it is a directory.
    tree: Option<Builder>,
    /// The entries, if the root is a file or a link.
    single: Option<Entries>,
    name: Vec<u8>,
    mode: u16,
    size: u64,
    hasher: Sha256,
}

impl Indexer {
    fn push(&mut self, mut data: &[u8]) -> anyhow::Result<()> {
        while let Some(event) = self.decoder.decode(&mut data)? {
            let Self {
                tree, single, name, ..
            } = self;
            match (event, tree) {
                (Event::Entry { name: new }, _) => {
                    name.clear();
                    name.extend_from_slice(new);
                }
                (Event::DirectoryBegin, None) => {
                    self.tree = Some(Builder::new(MODE_EXECUTABLE, MTIME));
                }
                (Event::DirectoryBegin, Some(tree)) => tree.enter(name, MODE_EXECUTABLE, MTIME)?,
                (Event::DirectoryEnd, Some(tree)) => drop(tree.leave()?),
                (
                    Event::File {
                        executable, size, ..
                    },
                    _,
                ) => {
                    self.mode = if executable { MODE_EXECUTABLE } else { MODE };
                    self.size = size;
                    self.hasher = Sha256::new();
                }
                (Event::Contents(contents), _) => self.hasher.update(contents),
                (Event::FileEnd, tree) => {
                    let digest = Some(std::mem::take(&mut self.hasher).finalize().into());
                    match tree {
                        Some(tree) => tree.file(name, self.mode, MTIME, self.size, digest)?,
                        None => {
                            *single = Some(Entries::of_file(self.mode, MTIME, self.size, digest)?);
                        }
                    }
                }
                (Event::Symlink { target }, Some(tree)) => tree.symlink(name, MTIME, target)?,
                (Event::Symlink { target }, None) => {
                    *single = Some(Entries::of_symlink(MTIME, target)?);
                }
                (Event::EntryEnd | Event::DirectoryEnd, _) => {}
            }
        }
        ensure!(data.is_empty(), "bytes follow the end of its NAR");
        Ok(())
    }

    fn finish(self) -> anyhow::Result<Entries> {
        self.decoder.finish()?;
        match (self.tree, self.single) {
            (Some(tree), _) => Ok(tree.finish()?),
            (None, single) => single.context("its NAR is empty"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_nar_are_those_that_make_it() {
        let mut tree = Builder::new(MODE_EXECUTABLE, MTIME);
        let digest = |content: &[u8]| Some(Sha256::digest(content).into());
        tree.enter(b"d", MODE_EXECUTABLE, MTIME).unwrap();
        tree.file(b"x", MODE_EXECUTABLE, MTIME, 1, digest(b"x"))
            .unwrap();
        tree.leave().unwrap();
        tree.file(b"e", MODE, MTIME, 0, digest(b"")).unwrap();
        tree.symlink(b"l", MTIME, b"d/x").unwrap();
        tree.leave().unwrap();
        let entries = tree.finish().unwrap();
        let mut nar = Vec::new();
        let mut framing = entries.framing();
        while let Some(file) = framing.next_file(&mut nar).unwrap() {
            if file == 2 {
                nar.push(b'x');
            }
        }
        for len in [1, 7, nar.len()] {
            let mut indexer = Indexer::default();
            for piece in nar.chunks(len) {
                indexer.push(piece).unwrap();
            }
            assert_eq!(indexer.finish().unwrap(), entries);
        }
        nar.push(0);
        assert!(Indexer::default().push(&nar).is_err());
        let mut indexer = Indexer::default();
        indexer.push(&samovar_workspace::file_nar(b"x")).unwrap();
        let file = Entries::of_file(MODE, MTIME, 1, digest(b"x")).unwrap();
        assert_eq!(indexer.finish().unwrap(), file);
    }

    #[test]
    fn a_nar_is_verified() {
        let nar = samovar_workspace::file_nar(b"x");
        let name = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";
        let path = StorePath::from_base_name(name).unwrap();
        let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        let read = |mut nar: &[u8], size: usize, hash| {
            let mut written = 0;
            let read = read_verified(&mut nar, &path, size as u64, hash, &mut |piece| {
                written += piece.len();
                Ok(())
            });
            read.map(|_entries| written)
        };
        assert_eq!(read(&nar, nar.len(), &hash).unwrap(), nar.len());
        assert!(read(&nar, nar.len() - 1, &hash).is_err());
        assert!(read(&nar[1..], nar.len() - 1, &hash).is_err());
        let other = NarHash::from_bytes([0; 32]);
        let error = read(&nar, nar.len(), &other).unwrap_err();
        assert!(
            error.to_string().contains("does not match its hash"),
            "{error}"
        );
        assert_eq!(Failed::of(&error), Some(Failed::Refused));
        // A valid hash, but not a NAR.
        let other = NarHash::from_bytes(Sha256::digest(b"x").into());
        let error = read(b"x", 1, &other).unwrap_err();
        assert!(error.to_string().contains("cannot mount"), "{error}");
    }
}
