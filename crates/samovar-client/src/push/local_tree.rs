//! [`LocalTree`]: a scanned directory as a [`Tree`] to upload.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use samovar_nix::NarHash;
use samovar_workspace::pack::{self, Packer, Rescan, default_threads};
use samovar_workspace::{Entries, Files, ReadError, Scanned};

use super::snapshot::Tree;
use crate::hashing;

/// A scanned directory, whose files all have digests.
#[derive(Debug)]
pub struct LocalTree {
    scanned: Arc<Scanned>,
    /// `None`: not computed yet.
    nar_hash: Option<NarHash>,
    is_quiet: bool,
}

impl LocalTree {
    /// Computes the missing digests of a scanned directory, and makes sure that the result is the
    /// state of the directory at one moment. If the directory has changed since the scan, scans it
    /// again by `rescan`. `needs_nar_hash`: whether to compute the hash of the NAR in the same
    /// pass; otherwise the hash is computed when it is needed. `is_quiet`: no progress is shown.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the directory keeps changing.
    pub fn new(
        mut scanned: Scanned,
        needs_nar_hash: bool,
        is_quiet: bool,
        rescan: Rescan<'_>,
    ) -> Result<Self, ReadError> {
        let progress = hashing::progress(&scanned, needs_nar_hash, is_quiet);
        let report = |len| progress.add(len, 0);
        let threads = default_threads();
        let nar_hash = pack::hash_steady(&mut scanned, needs_nar_hash, threads, &report, rescan);
        progress.end();
        Ok(Self {
            scanned: Arc::new(scanned),
            nar_hash: nar_hash?,
            is_quiet,
        })
    }

    /// Returns the scanned directory.
    pub fn scanned(&self) -> &Scanned {
        &self.scanned
    }
}

impl Tree for LocalTree {
    fn entries(&self) -> &Entries {
        &self.scanned.entries
    }

    fn nar_hash(&self) -> anyhow::Result<NarHash> {
        if let Some(nar_hash) = self.nar_hash {
            return Ok(nar_hash);
        }
        let mut scanned = Scanned::clone(&self.scanned);
        let progress = hashing::progress(&scanned, true, self.is_quiet);
        let report = |len| progress.add(len, 0);
        let nar_hash = pack::hash(&mut scanned, true, default_threads(), &report);
        progress.end();
        nar_hash?.ok_or_else(|| anyhow::anyhow!("the NAR has no hash"))
    }

    fn needs_base(&self) -> bool {
        self.scanned.is_carrying
    }

    fn nar(&self) -> Result<Box<dyn Read + '_>, String> {
        let packer = Packer::start(Arc::clone(&self.scanned), default_threads());
        Ok(Box::new(packer.map_err(|error| error.to_string())?))
    }

    fn file(&self, index: usize) -> anyhow::Result<Box<dyn Read + '_>> {
        let mut files = Files::open_root(&self.scanned)?;
        let file = files.open(index)?;
        Ok(Box::new(Checked { files, index, file }))
    }
}

/// The contents of a file. At the end, the reader fails if the file has changed.
struct Checked<'a> {
    files: Files<'a>,
    index: usize,
    file: File,
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            let unchanged = self.files.check(self.index, &self.file);
            unchanged.map_err(io::Error::other)?;
        }
        Ok(count)
    }
}

/// Returns the error of a reader of [`Tree::file`]: its [`ReadError`], or the I/O error.
pub(super) fn read_error(error: io::Error) -> anyhow::Error {
    match error.downcast::<ReadError>() {
        Ok(error) => error.into(),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_sent_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let scanned = Scanned::scan(dir.path()).unwrap();
        let rescan = |options| Scanned::scan_with(dir.path(), options);
        let tree = LocalTree::new(scanned, true, true, &rescan).unwrap();
        let mut file = tree.file(1).unwrap();
        fs::write(&path, "longer").unwrap();
        let error = io::copy(&mut file, &mut io::sink()).unwrap_err();
        let error = read_error(error);
        assert!(error.is::<ReadError>(), "{error:#}");
    }
}
