//! [`download`]: fetches a store path that has no manifest, verifies it, and makes a manifest.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use samovar_nix::NarHash;
use samovar_nix::nar::{Decoder, Event};
use samovar_nix::narinfo::NarInfo;
use samovar_workspace::entries::Builder;
use samovar_workspace::{Entries, Manifest, Mtime};
use sha2::{Digest as _, Sha256};

use crate::outcome::Failed;
use crate::progress::Progress;
use crate::snapshot::Snapshots;

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

/// Downloads the NAR of a path into the file `nar` of `dir`. Returns the entries with digests.
///
/// # Errors
///
/// The NAR cannot be downloaded, does not match its hash, or is not that of a directory.
pub(super) fn download(
    snapshots: &Snapshots,
    info: &NarInfo,
    dir: &Path,
) -> anyhow::Result<Manifest> {
    let partial = dir.join("nar.partial");
    let failed = || format!("cannot write {partial:?}");
    let mut file = File::create(&partial).with_context(failed)?;
    let mut hasher = Sha256::new();
    let mut indexer = Indexer::default();
    let path = &info.store_path;
    let progress = Progress::start("fetched", info.nar_size);
    let mut len = 0;
    let read = snapshots.read_nar(info, &Arc::default(), |nar| {
        let mut piece = vec![0; PIECE_LEN];
        loop {
            let count = nar.read(&mut piece)?;
            let data = piece.get(..count).unwrap_or_default();
            len += count as u64;
            if count == 0 || len > info.nar_size {
                return Ok(());
            }
            hasher.update(data);
            file.write_all(data).with_context(failed)?;
            let pushed = indexer.push(data);
            pushed.with_context(|| format!("cannot mount {path}"))?;
            progress.add(count as u64, count as u64);
        }
    });
    progress.end();
    read?;
    let found = NarHash::from_bytes(hasher.finalize().into());
    if found != info.nar_hash || len != info.nar_size {
        let error = anyhow!("{path} is damaged on the server: its NAR does not match its hash");
        return Err(Failed::Refused.because(error));
    }
    let entries = indexer.finish()?;
    fs::rename(&partial, dir.join("nar")).with_context(failed)?;
    Ok(Manifest {
        tree: path.clone(),
        nar_hash: info.nar_hash,
        entries,
    })
}

/// Collects the entries of a NAR and their digests.
#[derive(Default)]
struct Indexer {
    decoder: Decoder,
    tree: Option<Builder>,
    name: Vec<u8>,
    mode: u16,
    size: u64,
    hasher: Sha256,
}

impl Indexer {
    fn push(&mut self, mut data: &[u8]) -> anyhow::Result<()> {
        while let Some(event) = self.decoder.decode(&mut data)? {
            let Some(tree) = &mut self.tree else {
                match event {
                    Event::DirectoryBegin => {
                        self.tree = Some(Builder::new(MODE_EXECUTABLE, MTIME));
                        continue;
                    }
                    _ => bail!(
                        "it is a file or a link, not a directory: fetch it with nix copy instead"
                    ),
                }
            };
            match event {
                Event::Entry { name } => {
                    self.name.clear();
                    self.name.extend_from_slice(name);
                }
                Event::DirectoryBegin => tree.enter(&self.name, MODE_EXECUTABLE, MTIME)?,
                Event::DirectoryEnd => drop(tree.leave()?),
                Event::File {
                    executable, size, ..
                } => {
                    self.mode = if executable { MODE_EXECUTABLE } else { MODE };
                    self.size = size;
                    self.hasher = Sha256::new();
                }
                Event::Contents(contents) => self.hasher.update(contents),
                Event::FileEnd => {
                    let digest = std::mem::take(&mut self.hasher).finalize().into();
                    tree.file(&self.name, self.mode, MTIME, self.size, Some(digest))?;
                }
                Event::Symlink { target } => tree.symlink(&self.name, MTIME, target)?,
                Event::EntryEnd => {}
            }
        }
        ensure!(data.is_empty(), "bytes follow the end of its NAR");
        Ok(())
    }

    fn finish(self) -> anyhow::Result<Entries> {
        self.decoder.finish()?;
        let tree = self.tree.context("its NAR is empty")?;
        Ok(tree.finish()?)
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
        let file = samovar_workspace::file_nar(b"x");
        let error = Indexer::default().push(&file).unwrap_err().to_string();
        assert!(error.contains("not a directory"), "{error}");
    }
}
