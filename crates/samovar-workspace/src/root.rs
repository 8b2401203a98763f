//! [`Root`]: a directory, and operations on the entries below it.
//!
//! # Safety
//!
//! Another process may replace any entry at any time, for example a directory by a symbolic link.
//! No operation leaves the root then: paths are sequences of names without `.` and `..`, and no
//! symbolic link is followed, neither in the middle nor at the end of a path. The kernel enforces
//! this (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`). Without `openat2` in some
//! containers, and for paths that are longer than `PATH_MAX`, directories are opened name by name.
//!
//! Nor does any operation enter a mount point (`RESOLVE_NO_XDEV`), not even the mount point of a
//! bind mount, whose files are in another directory: the error is
//! [`io::ErrorKind::CrossesDevices`]. Without `openat2`, mount points are entered.
//!
//! No operation keeps a descriptor open, so the number of descriptors does not depend on the tree.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;
use samovar_nix::nar::NAME_LEN_MAX;

use crate::entries::{MODE_MASK, Mtime};
use crate::sys;

mod remove;
mod replace;
#[cfg(test)]
mod tests;

pub(crate) use replace::{DIGITS_LEN, MARK, random};
pub use replace::{Replacement, is_temporary};

/// Flags of all descriptors.
const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Flags for files. Opening a FIFO or a device does not wait.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// A directory, and operations on the entries below it.
///
/// Paths are relative to the directory: names with `/` between them, as in
/// [`Entries::path`](crate::Entries::path). All errors are those of the operating system, except
/// [`io::ErrorKind::InvalidInput`] for a path with an invalid name. A symbolic link in the middle
/// of a path is an error.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
}

/// Attributes of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, within [`MODE_MASK`]; others are ignored. Exact, the umask does not apply.
    pub mode: u16,
    /// Time of the last modification. `None`: the current time.
    pub mtime: Option<Mtime>,
}

impl Root {
    /// Opens a directory. Symbolic links in this path are followed.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Uses an open directory.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Opens a directory below this one.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn directory(&self, path: &[u8]) -> io::Result<Self> {
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        Ok(Self { fd })
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`; [`io::ErrorKind::InvalidInput`] for other types of entries.
    pub fn file(&self, path: &[u8]) -> io::Result<File> {
        let file = File::from(self.open_at(path, READ, 0)?);
        match file_type(&rustix::fs::fstat(&file)?) {
            FileType::RegularFile => Ok(file),
            _ => Err(invalid("not a regular file")),
        }
    }

    /// Returns the metadata of an entry, also of a symbolic link itself.
    ///
    /// # Errors
    ///
    /// Those of `stat(2)`.
    pub fn stat(&self, path: &[u8]) -> io::Result<Stat> {
        self.in_parent(path, |parent, name| {
            rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Creates a directory. The umask applies to the mode.
    ///
    /// # Errors
    ///
    /// Those of `mkdir(2)`.
    pub fn create_directory(&self, path: &[u8], mode: u16) -> io::Result<()> {
        self.in_parent(path, |parent, name| {
            rustix::fs::mkdirat(parent, name, permissions(mode))
        })
    }

    /// Creates a regular file, and opens it for writing. The umask applies to the mode.
    ///
    /// # Errors
    ///
    /// Those of `open(2)` with `O_EXCL`: an existing entry is an error.
    pub fn create_file(&self, path: &[u8], mode: u16) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(self.open_at(path, flags, mode)?.into())
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    ///
    /// Those of `symlink(2)`: an existing entry is an error.
    pub fn create_symlink(
        &self,
        path: &[u8],
        target: &[u8],
        mtime: Option<Mtime>,
    ) -> io::Result<()> {
        self.in_parent(path, |parent, name| {
            create_symlink(parent, name, target, mtime)
        })
    }

    /// Sets the attributes of a regular file or directory.
    ///
    /// # Errors
    ///
    /// Those of `chmod(2)` and `utimensat(2)`; [`io::ErrorKind::InvalidInput`] for other types of
    /// entries.
    pub fn set_attributes(&self, path: &[u8], attributes: Attributes) -> io::Result<()> {
        let fd = self.open_at(path, sys::LOCATE, 0)?;
        if !matches!(
            file_type(&rustix::fs::fstat(&fd)?),
            FileType::RegularFile | FileType::Directory
        ) {
            return Err(invalid("not a regular file or directory"));
        }
        sys::set_mode(&fd, permissions(attributes.mode))?;
        if let Some(mtime) = attributes.mtime {
            self.in_parent(path, |parent, name| set_mtime(parent, name, mtime))?;
        }
        Ok(())
    }

    /// Writes all changes on the file system of the directory to stable storage, also the changes
    /// by other processes (`syncfs`).
    ///
    /// # Errors
    ///
    /// Those of `syncfs(2)`: also earlier errors of writing to this file system.
    pub fn sync(&self) -> io::Result<()> {
        Ok(sys::sync(&self.fd)?)
    }

    /// Opens an entry. Neither it nor a directory on the way may be a symbolic link.
    fn open_at(&self, path: &[u8], flags: OFlags, mode: u16) -> io::Result<OwnedFd> {
        check_path(path)?;
        let mode = permissions(mode);
        match sys::open_beneath(self.as_fd(), path, flags | OPEN, mode) {
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG | Errno::AGAIN) => {
                self.walk(path, flags, mode)
            }
            opened => Ok(opened?),
        }
    }

    /// Opens an entry name by name.
    fn walk(&self, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let (parents, name) = split(path);
        let mut directory = None;
        for parent in parents.into_iter().flat_map(names) {
            let from = directory.as_ref().map_or(self.as_fd(), AsFd::as_fd);
            directory = Some(open_name(
                from,
                parent,
                sys::LOCATE_DIRECTORY,
                Mode::empty(),
            )?);
        }
        let from = directory.as_ref().map_or(self.as_fd(), AsFd::as_fd);
        Ok(open_name(from, name, flags, mode)?)
    }

    /// Calls an operation with the directory that has an entry, and with the name of the entry.
    fn in_parent<T>(
        &self,
        path: &[u8],
        operation: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> io::Result<T> {
        check_path(path)?;
        match split(path) {
            (None, name) => Ok(operation(self.as_fd(), name)?),
            (Some(parents), name) => {
                let parent = self.open_at(parents, sys::LOCATE_DIRECTORY, 0)?;
                Ok(operation(parent.as_fd(), name)?)
            }
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens an entry of a directory, by `openat` if the kernel or a container refuses `openat2`.
fn open_name(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    match sys::open_beneath(directory, name, flags | OPEN, mode) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(directory, name, flags | OPEN, mode),
        opened => opened,
    }
}

/// Sets the attributes of an open file or directory.
///
/// # Errors
///
/// Those of `fchmod(2)` and `futimens(2)`.
pub(crate) fn set_open_attributes(fd: impl AsFd, attributes: Attributes) -> io::Result<()> {
    let mode = permissions(attributes.mode);
    // Usually the file was created with this mode. Reading it costs less than setting it.
    if Mode::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != mode {
        rustix::fs::fchmod(&fd, mode)?;
    }
    if let Some(mtime) = attributes.mtime {
        rustix::fs::futimens(&fd, &timestamps(mtime))?;
    }
    Ok(())
}

fn set_mtime(parent: BorrowedFd<'_>, name: &[u8], mtime: Mtime) -> Result<(), Errno> {
    let times = timestamps(mtime);
    rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn create_symlink(
    parent: BorrowedFd<'_>,
    name: &[u8],
    target: &[u8],
    mtime: Option<Mtime>,
) -> Result<(), Errno> {
    rustix::fs::symlinkat(target, parent, name)?;
    mtime.map_or(Ok(()), |mtime| set_mtime(parent, name, mtime))
}

fn timestamps(mtime: Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: mtime.seconds,
            tv_nsec: mtime.nanoseconds.into(),
        },
    }
}

fn permissions(mode: u16) -> Mode {
    Mode::from_raw_mode((mode & MODE_MASK).into())
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the names of the entries of a directory.
///
/// # Errors
///
/// Those of `getdents64(2)`.
pub(crate) fn read_names(directory: &Root) -> io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            entries.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(entries)
}

/// Splits a path into the path of the parent, if there is one, and the name.
fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => (None, path),
        Some(at) => {
            let (parent, name) = path.split_at(at);
            (Some(parent), name.get(1..).unwrap_or_default())
        }
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

fn check_path(path: &[u8]) -> io::Result<()> {
    let is_valid =
        |name: &[u8]| (1..=NAME_LEN_MAX).contains(&name.len()) && !matches!(name, b"." | b"..");
    if path.contains(&0) || !names(path).all(is_valid) {
        return Err(invalid("invalid name in the path"));
    }
    Ok(())
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
