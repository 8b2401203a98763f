//! [`Check`]: compares the events of a NAR with the entries of a manifest.

use crate::entries::{Entries, Entry, Kind, Mtime};
use crate::root::Attributes;
use crate::scan::STATE_DIRECTORY;

/// Compares a NAR with the entries of a manifest, in order. Errors are clauses that follow the
/// path.
#[derive(Debug)]
pub(super) struct Check<'a> {
    entries: &'a Entries,
    /// Index of the next entry.
    next: usize,
    /// Indices of the open directories.
    open: Vec<usize>,
}

impl<'a> Check<'a> {
    pub(super) fn new(entries: &'a Entries) -> Self {
        Self {
            entries,
            next: 0,
            open: Vec::new(),
        }
    }

    pub(super) fn begin_directory(&mut self, path: &[u8]) -> Result<(), &'static str> {
        let index = self.next;
        match self.entry(path)?.kind {
            Kind::Directory { .. } => self.open.push(index),
            _ => return Err("the archive has a directory"),
        }
        Ok(())
    }

    pub(super) fn end_directory(&mut self) -> Result<(), &'static str> {
        let index = self.open.pop().unwrap_or_default();
        match self.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::Directory { end }) if *end == self.next => Ok(()),
            _ => Err("the archive lacks an entry of this directory"),
        }
    }

    /// Returns the attributes and the digest of the file.
    pub(super) fn file(
        &mut self,
        path: &[u8],
        executable: bool,
        size: u64,
    ) -> Result<(Attributes, Option<[u8; 32]>), &'static str> {
        let entry = self.entry(path)?;
        let Kind::File {
            size: expected,
            digest,
            ..
        } = entry.kind
        else {
            return Err("the archive has a file");
        };
        if size != expected {
            return Err("its size is another one");
        }
        if executable != entry.is_executable() {
            return Err("only one of both is executable");
        }
        let attributes = Attributes {
            mode: entry.mode,
            mtime: Some(entry.mtime),
        };
        Ok((attributes, digest))
    }

    /// Returns the time of the link.
    pub(super) fn symlink(&mut self, path: &[u8], target: &[u8]) -> Result<Mtime, &'static str> {
        let entry = self.entry(path)?;
        match &entry.kind {
            Kind::Symlink { target: expected } if **expected == *target => Ok(entry.mtime),
            Kind::Symlink { .. } => Err("its target is another one"),
            _ => Err("the archive has a symbolic link"),
        }
    }

    /// Returns the next entry, which must have the name at the end of `path`.
    fn entry(&mut self, path: &[u8]) -> Result<&'a Entry, &'static str> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if name == STATE_DIRECTORY.as_bytes() {
            return Err("snapshots do not contain this name");
        }
        let parent = self.open.last().copied().unwrap_or_default();
        match self.entries.get(self.next) {
            Some(entry) if entry.parent == parent && *entry.name == *name => {
                self.next += 1;
                Ok(entry)
            }
            _ => Err("it is not the next entry there"),
        }
    }
}
