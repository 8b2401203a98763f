//! [`Files`]: opens and reads the files of a scanned tree, and refuses those that changed.

use std::fs::File;

use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use samovar_store::{EntryType, Metadata};
use sha2::{Digest, Sha256};

use crate::entries::Kind;
use crate::read_error::ReadError;
use crate::scan::{FileState, Scanned};

/// Maximum number of open directories, besides the root. Several readers together must stay far
/// below 64 descriptors.
const OPEN_COUNT_MAX: usize = 3;

/// Opens and reads the files of a scanned tree. Never follows a symbolic link. Fastest in the order
/// of the entries, because it keeps the current directories open.
#[derive(Debug)]
pub struct Files<'a> {
    scanned: &'a Scanned,
    root: OwnedFd,
    /// Directories on the path to the last file, outermost first, with their indices.
    open: Vec<(usize, OwnedFd)>,
}

impl<'a> Files<'a> {
    /// Opens the root of the tree.
    ///
    /// # Errors
    ///
    /// [`ReadError::Changed`] if the root is not the scanned directory any more; [`ReadError::Io`].
    pub fn open_root(scanned: &'a Scanned) -> Result<Self, ReadError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let error = |errno| ReadError::of_call(scanned.root.clone(), errno);
        let root = rustix::fs::openat(CWD, &scanned.root, flags, Mode::empty()).map_err(error)?;
        let inode = rustix::fs::fstat(&root).map_err(error)?.st_ino;
        if scanned
            .states
            .first()
            .is_none_or(|state| state.inode != inode)
        {
            return Err(ReadError::Changed(scanned.root.clone()));
        }
        Ok(Self {
            scanned,
            root,
            open: Vec::new(),
        })
    }

    /// Opens a file, and checks that it is unchanged. To be sure of what was read, call
    /// [`check`](Self::check) afterwards.
    ///
    /// # Errors
    ///
    /// [`ReadError::Changed`] if the file differs from the scan, or if the entry is not a regular
    /// file; [`ReadError::Io`].
    pub fn open(&mut self, index: usize) -> Result<File, ReadError> {
        let scanned = self.scanned;
        let entry = scanned.entries.get(index);
        let changed = || ReadError::Changed(scanned.path(index));
        let entry = entry.ok_or_else(changed)?;
        // Without NONBLOCK, opening a FIFO would block forever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = flags | OFlags::NOCTTY | OFlags::CLOEXEC;
        let directory = self.directory(entry.parent)?;
        let file = rustix::fs::openat(directory, &*entry.name, flags, Mode::empty())
            .map_err(|errno| ReadError::of_call(scanned.path(index), errno))?;
        let file = File::from(file);
        self.check(index, &file)?;
        Ok(file)
    }

    /// Checks that an open file is unchanged since the scan.
    ///
    /// # Errors
    ///
    /// [`ReadError::Changed`].
    pub fn check(&self, index: usize, file: &File) -> Result<(), ReadError> {
        let metadata = Metadata::of(file).ok();
        let metadata = metadata.filter(|metadata| metadata.entry_type() == EntryType::File);
        let expected = self.scanned.states.get(index);
        match (metadata, expected) {
            (Some(found), Some(expected)) if FileState::of(&found).is_same(expected) => Ok(()),
            _ => Err(ReadError::Changed(self.scanned.path(index))),
        }
    }

    /// Reads a file, and checks it before and after. Appends the contents to `buffer`; calls
    /// `flush`, which must empty the buffer, whenever its capacity is used up. Returns the digest
    /// if it is wanted.
    pub(crate) fn read<E: From<ReadError>>(
        &mut self,
        index: usize,
        needs_digest: bool,
        buffer: &mut Vec<u8>,
        mut flush: impl FnMut(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Option<[u8; 32]>, E> {
        let file = self.open(index)?;
        let mut rest = match self.scanned.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::File { size, .. }) => *size,
            _ => 0,
        };
        let mut hasher = needs_digest.then(Sha256::new);
        while rest > 0 {
            if buffer.len() == buffer.capacity() {
                flush(buffer)?;
            }
            let start = buffer.len();
            let count = match rustix::io::read(&file, spare_capacity(buffer)) {
                Ok(count) => count as u64,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(ReadError::of_call(self.scanned.path(index), errno).into());
                }
            };
            if count == 0 || count > rest {
                return Err(ReadError::Changed(self.scanned.path(index)).into());
            }
            rest -= count;
            if let Some(hasher) = &mut hasher {
                hasher.update(&buffer[start..]);
            }
        }
        self.check(index, &file)?;
        Ok(hasher.map(|hasher| hasher.finalize().into()))
    }

    /// Returns the open directory with this index.
    fn directory(&mut self, index: usize) -> Result<BorrowedFd<'_>, ReadError> {
        let list = self.scanned.entries.list();
        let is_below = |directory: usize| match list.get(directory).map(|entry| &entry.kind) {
            Some(Kind::Directory { end }) => (directory..*end).contains(&index),
            _ => false,
        };
        while self.open.last().is_some_and(|(last, _)| !is_below(*last)) {
            self.open.pop();
        }
        let base = self.open.last().map_or(0, |(last, _)| *last);
        let mut missing = Vec::new();
        let mut at = index;
        while at != base {
            missing.push(at);
            at = list.get(at).map_or(base, |entry| entry.parent);
        }
        for at in missing.into_iter().rev() {
            if self.open.len() == OPEN_COUNT_MAX {
                self.open.remove(0);
            }
            let parent = self.open.last().map_or(&self.root, |(_, parent)| parent);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = list.get(at).map(|entry| &*entry.name).unwrap_or_default();
            let opened = rustix::fs::openat(parent, name, flags, Mode::empty());
            let opened =
                opened.map_err(|errno| ReadError::of_call(self.scanned.path(at), errno))?;
            self.open.push((at, opened));
        }
        let innermost = self.open.last().map_or(&self.root, |(_, last)| last);
        Ok(innermost.as_fd())
    }
}
