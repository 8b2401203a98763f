//! [`Scan`]: the metadata of every entry of a tree, past everything that cannot be read.
//!
//! # Theory of operation
//!
//! A NAR is complete or an error; statistics of a home directory are wanted although one of its
//! directories is unreadable. So a scan reports an entry that it cannot read and goes on. It opens
//! directories only, never follows a link, and needs neither path names nor recursion, so neither
//! depth nor length of a path is limited. Memory: see the limits of the [module](super).

use std::fs::File;
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dev, FileType, Stat};

use super::TreeError;
use super::descent::{Descent, open_directory, open_on_same_mount};
use super::directory::{Dents, Entries};
use super::walk::{Node, OWNER_EXECUTE, open_file};
use crate::sys;

/// A walk through the metadata of a tree.
#[derive(Debug)]
pub struct Scan {
    root: Metadata,
    descent: Descent,
    levels: Vec<Level>,
    dents: Dents,
    /// The device to stay on; `None` to enter mount points.
    device: Option<Dev>,
}

#[derive(Debug)]
struct Level {
    entries: Entries,
    next: usize,
    /// Whether the rest of the entries could not be read.
    is_cut: bool,
}

/// A step of a [`Scan`].
#[derive(Debug)]
pub enum Visit<'scan> {
    /// An entry that the scan does not enter: any file, a mount point, or a directory on another
    /// device, such as a subvolume.
    Entry {
        /// Name in the current directory.
        name: &'scan [u8],
        /// Metadata of the entry.
        metadata: Metadata,
    },
    /// A directory, whose entries follow until the matching [`Leave`](Self::Leave).
    Enter {
        /// Name in the current directory.
        name: &'scan [u8],
        /// Metadata of the directory.
        metadata: Metadata,
    },
    /// The end of the current directory; the last step leaves the root.
    Leave,
    /// An entry, or the rest of the current directory, that cannot be read.
    Unreadable {
        /// Name in the current directory; empty for the directory itself.
        name: &'scan [u8],
        /// The reason; [`TreeError::Vanished`] if the entry was deleted meanwhile.
        error: TreeError,
    },
}

/// Metadata of a file, directory, link or special file.
#[derive(Debug, Clone, Copy)]
pub struct Metadata(pub(super) Stat);

/// The type of a scanned entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, FIFO or device.
    Special,
}

impl Metadata {
    /// Reads the metadata of an open file.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn of(file: impl AsFd) -> Result<Self, TreeError> {
        Ok(Self(rustix::fs::fstat(file)?))
    }

    /// Returns the type of the entry.
    #[must_use]
    pub fn entry_type(&self) -> EntryType {
        match FileType::from_raw_mode(self.0.st_mode) {
            FileType::RegularFile => EntryType::File,
            FileType::Directory => EntryType::Directory,
            FileType::Symlink => EntryType::Symlink,
            _ => EntryType::Special,
        }
    }

    /// Returns the number of bytes of a file's contents, or of a link's target.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::try_from(self.0.st_size).unwrap_or_default()
    }

    /// Returns the disk space that the file system has allocated, in bytes.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        // The unit of `st_blocks` is 512 bytes on every file system.
        u64::try_from(self.0.st_blocks).unwrap_or_default() * 512
    }

    /// Returns whether the owner may execute the file.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.0.st_mode & OWNER_EXECUTE != 0
    }

    /// Returns the number of names (hard links) of the file.
    #[must_use]
    #[expect(
        clippy::useless_conversion,
        reason = "the width of st_nlink depends on the architecture"
    )]
    pub fn link_count(&self) -> u64 {
        u64::from(self.0.st_nlink)
    }

    /// Returns the permission bits, including set-user-ID, set-group-ID and sticky bit.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        // The mask leaves 12 bits.
        u16::try_from(self.0.st_mode & 0o7777).unwrap_or_default()
    }

    /// Returns the time of the last modification of the contents: seconds since 1970, rounded down,
    /// and nanoseconds.
    #[must_use]
    pub fn mtime(&self) -> (i64, u32) {
        (self.0.st_mtime, nanoseconds(self.0.st_mtime_nsec))
    }

    /// Returns the time of the last change of contents or metadata, like [`mtime`](Self::mtime).
    #[must_use]
    pub fn ctime(&self) -> (i64, u32) {
        (self.0.st_ctime, nanoseconds(self.0.st_ctime_nsec))
    }

    /// Returns device and inode, which all names of a file share.
    #[must_use]
    pub fn file_id(&self) -> (u64, u64) {
        (sys::device(&self.0), self.0.st_ino)
    }
}

pub(super) fn nanoseconds(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or_default()
}

impl Scan {
    /// Opens the directory at `root`. `crosses_mounts`: also enter mount points (of other file
    /// systems and bind mounts) and directories on other devices.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; [`TreeError::Changed`] if the root is not a directory.
    pub fn open(root: &Path, crosses_mounts: bool) -> Result<Self, TreeError> {
        let directory = open_directory(CWD, root)?;
        let stat = rustix::fs::fstat(&directory)?;
        let mut scan = Self {
            root: Metadata(stat),
            descent: Descent::default(),
            levels: Vec::new(),
            dents: Dents::default(),
            device: (!crosses_mounts).then_some(stat.st_dev),
        };
        scan.enter(directory)?;
        Ok(scan)
    }

    /// Returns the metadata of the root.
    #[must_use]
    pub fn root(&self) -> &Metadata {
        &self.root
    }

    /// Takes the next step; `None` at the end. After an error the scan has ended.
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if a directory was moved, so that its parent cannot be found again;
    /// any other [`TreeError`].
    pub fn step(&mut self) -> Result<Option<Visit<'_>>, TreeError> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(None);
        };
        let is_at_end = level.next == level.entries.count();
        if is_at_end && level.entries.has_more() && !level.is_cut {
            // The memory budget did not suffice for the whole directory: read its next part.
            level.next = 0;
            let read = level
                .entries
                .read_on(self.descent.innermost()?, &mut self.dents);
            if let Err(error) = read {
                level.next = level.entries.count();
                level.is_cut = true;
                return Ok(Some(Visit::Unreadable { name: b"", error }));
            }
            return self.step();
        }
        if is_at_end {
            self.levels.pop();
            if let Err(error) = self.descent.leave() {
                self.levels.clear();
                return Err(error);
            }
            return Ok(Some(Visit::Leave));
        }
        level.next += 1;
        let depth = self.levels.len();
        let visited = self.visit();
        let level = &self.levels[depth - 1];
        let name = level.entries.name(level.next - 1);
        Ok(Some(match visited {
            Ok(metadata) if self.levels.len() > depth => Visit::Enter { name, metadata },
            Ok(metadata) => Visit::Entry { name, metadata },
            Err(error) => Visit::Unreadable { name, error },
        }))
    }

    /// Opens the file of the last step, which must be an [`Entry`](Visit::Entry).
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if the entry is not a regular file any more; any other [`TreeError`].
    pub fn open_last(&self) -> Result<File, TreeError> {
        let level = self.levels.last().ok_or(TreeError::Changed)?;
        let index = level.next.checked_sub(1).ok_or(TreeError::Changed)?;
        match open_file(self.descent.innermost()?, level.entries.c_name(index)?)? {
            Node::File {
                file: Some(file), ..
            } => Ok(file.into()),
            _ => Err(TreeError::Changed),
        }
    }

    /// Reads the target of the link of the last step, which must be an [`Entry`](Visit::Entry).
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if the entry is not a symbolic link any more; any other
    /// [`TreeError`].
    pub fn link_last(&self) -> Result<Vec<u8>, TreeError> {
        let level = self.levels.last().ok_or(TreeError::Changed)?;
        let index = level.next.checked_sub(1).ok_or(TreeError::Changed)?;
        let name = level.entries.c_name(index)?;
        let target = rustix::fs::readlinkat(self.descent.innermost()?, name, Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Returns whether a regular file of this name is in the parent of the current directory.
    #[must_use]
    pub fn has_beside(&self, name: &str) -> bool {
        let stat = self.descent.innermost().and_then(|directory| {
            let path = format!("../{name}");
            Ok(rustix::fs::statat(
                directory,
                path,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        });
        stat.is_ok_and(|stat| Metadata(stat).entry_type() == EntryType::File)
    }

    /// Reads the metadata of the current entry, and enters it if it is a directory.
    fn visit(&mut self) -> Result<Metadata, TreeError> {
        let level = self.levels.last().ok_or(TreeError::Changed)?;
        let parent = self.descent.innermost()?;
        let name = level.entries.c_name(level.next - 1)?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let metadata = Metadata(stat);
        if metadata.entry_type() != EntryType::Directory {
            return Ok(metadata);
        }
        let directory = match self.device {
            None => Some(open_directory(parent, name)?),
            Some(device) if device != stat.st_dev => None,
            // A bind mount may have the same device number as the tree.
            Some(_) => open_on_same_mount(parent, name)?,
        };
        if let Some(directory) = directory {
            self.enter(directory)?;
        }
        Ok(metadata)
    }

    fn enter(&mut self, directory: OwnedFd) -> Result<(), TreeError> {
        let mut entries = Entries::default();
        entries.read(directory.as_fd(), &mut self.dents)?;
        self.descent.enter(directory)?;
        self.levels.push(Level {
            entries,
            next: 0,
            is_cut: false,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Scans a tree and returns a line for each step.
    fn lines(root: &Path) -> Vec<String> {
        let mut scan = Scan::open(root, false).unwrap();
        let mut lines = Vec::new();
        while let Some(visit) = scan.step().unwrap() {
            lines.push(match visit {
                Visit::Entry { name, metadata } => {
                    format!("{:?} {}", metadata.entry_type(), name.escape_ascii())
                }
                Visit::Enter { name, .. } => format!("enter {}", name.escape_ascii()),
                Visit::Leave => "leave".to_owned(),
                Visit::Unreadable { name, error } => format!("{}: {error}", name.escape_ascii()),
            });
        }
        lines
    }

    #[test]
    fn every_kind_of_entry_is_visited_and_none_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("b")).unwrap();
        fs::write(root.join("b/file"), "x").unwrap();
        symlink("b", root.join("link")).unwrap();
        let fifo = root.join(std::ffi::OsStr::from_bytes(b"fifo\xff"));
        rustix::fs::mkfifoat(CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(root.join("socket"));
        let expected = [
            "enter b",
            "File file",
            "leave",
            "Special fifo\\xff",
            "Symlink link",
            "Special socket",
            "leave",
        ];
        assert_eq!(lines(root), expected);
        drop(socket);
    }

    #[test]
    fn a_directory_that_vanishes_is_reported_and_the_rest_is_visited() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut scan = Scan::open(dir.path(), false).unwrap();
        fs::remove_dir(dir.path().join("b")).unwrap();
        let mut names = Vec::new();
        while let Some(visit) = scan.step().unwrap() {
            match visit {
                Visit::Enter { name, .. } => names.push(name.to_vec()),
                Visit::Unreadable {
                    name,
                    error: TreeError::Vanished,
                } => names.push([name, b" vanished"].concat()),
                Visit::Leave => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(names, [&b"a"[..], b"b vanished", b"c"]);
    }

    #[test]
    fn paths_may_be_longer_than_the_system_allows_in_one_call() {
        // 300 names of 100 bytes: PATH_MAX is 4,096, and a scan keeps 16 directories open.
        const DEPTH: usize = 300;
        let dir = tempfile::tempdir().unwrap();
        let mut current = open_directory(CWD, dir.path()).unwrap();
        let name = "d".repeat(100);
        for _ in 0..DEPTH {
            rustix::fs::mkdirat(&current, &*name, rustix::fs::Mode::RWXU).unwrap();
            current = open_directory(current.as_fd(), &*name).unwrap();
        }
        assert_eq!(lines(dir.path()).len(), 2 * DEPTH + 1);
    }

    #[test]
    fn only_regular_files_are_beside_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        let mut scan = Scan::open(dir.path(), false).unwrap();
        for expected in [true, false] {
            assert!(matches!(scan.step(), Ok(Some(Visit::Enter { .. }))));
            let beside = ["file", "link", "a", "none"].map(|name| scan.has_beside(name));
            assert_eq!(beside, [expected, false, false, false]);
        }
    }

    #[test]
    fn a_link_is_not_a_root() {
        let dir = tempfile::tempdir().unwrap();
        symlink(".", dir.path().join("link")).unwrap();
        assert!(matches!(
            Scan::open(&dir.path().join("link"), false),
            Err(TreeError::Changed)
        ));
    }
}
