//! [`Temporary`]: the directory beside the destination into which an archive is unpacked.
//!
//! The process holds a lock (`flock`) on the directory. A directory without a lock is the left-over
//! of a process that was killed. Locks are not shared between machines on all network file systems,
//! so the name contains a hash of the host name, and left-overs of other hosts remain.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::UnpackError;
use crate::root::{DIGITS_LEN, MARK, Root, is_temporary, random, read_names};

/// A temporary name ends in hexadecimal digits: the host, then a random number.
const HOST_LEN: usize = DIGITS_LEN / 2;
const RANDOM_LEN: usize = DIGITS_LEN - HOST_LEN;

/// Maximum number of bytes of the destination's name in a temporary name. Encrypted directories of
/// some file systems permit only 143 bytes in all.
const PREFIX_LEN_MAX: usize = 100;

/// Number of names that are tried before giving up.
const ATTEMPT_COUNT: u32 = 100;

/// Place of the unpacked tree.
#[derive(Debug)]
pub(super) struct Destination<'a> {
    pub(super) path: &'a Path,
    parent: Root,
    name: Vec<u8>,
}

/// A locked directory beside the destination. Removed with its contents on drop, unless it was
/// published.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    destination: &'a Destination<'a>,
    name: Vec<u8>,
    root: Root,
    is_published: bool,
}

impl<'a> Destination<'a> {
    /// Opens the parent directory, removes left-overs there, and checks that the destination does
    /// not exist or is an empty directory.
    pub(super) fn open(path: &'a Path) -> Result<Self, UnpackError> {
        let no_name = || UnpackError::NoName { path: path.into() };
        let name = path.file_name().ok_or_else(no_name)?.as_bytes().to_vec();
        let parent_path = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = Root::open(parent_path).map_err(|source| UnpackError::File {
            action: "open",
            path: parent_path.into(),
            source,
        })?;
        let destination = Self { path, parent, name };
        destination.check()?;
        remove_leftovers(&destination.parent);
        Ok(destination)
    }

    fn check(&self) -> Result<(), UnpackError> {
        let path = || PathBuf::from(self.path);
        let found = match self.parent.stat(&self.name) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(self.error("examine", b"", source)),
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Err(UnpackError::Exists { path: path() });
        }
        let entries = self.parent.directory(&self.name);
        let entries = entries.and_then(|directory| read_names(&directory));
        let entries = entries.map_err(|source| match source.kind() {
            io::ErrorKind::CrossesDevices => UnpackError::MountPoint { path: path() },
            _ => self.error("read", b"", source),
        })?;
        if !entries.is_empty() {
            return Err(UnpackError::Exists { path: path() });
        }
        // A subvolume has another device number. So has any mounted file system, where the kernel
        // lets mount points be opened; there, a bind mount is found only when it is to be replaced.
        let parent = rustix::fs::fstat(&self.parent);
        if parent.is_ok_and(|parent| parent.st_dev != found.st_dev) {
            return Err(UnpackError::MountPoint { path: path() });
        }
        match rustix::fs::statat(CWD, ".", AtFlags::empty()) {
            Ok(here) if (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino) => {
                Err(UnpackError::CurrentDirectory { path: path() })
            }
            _ => Ok(()),
        }
    }

    /// Returns an error for a path below the destination.
    pub(super) fn error(
        &self,
        action: &'static str,
        below: &[u8],
        source: io::Error,
    ) -> UnpackError {
        UnpackError::File {
            action,
            path: self.below(below),
            source,
        }
    }

    /// Returns the error of an entry that differs from the manifest.
    pub(super) fn differs(&self, below: &[u8], difference: &'static str) -> UnpackError {
        UnpackError::Differs {
            path: self.below(below),
            difference,
        }
    }

    fn below(&self, path: &[u8]) -> PathBuf {
        match path {
            b"" => self.path.into(),
            _ => self.path.join(std::ffi::OsStr::from_bytes(path)),
        }
    }
}

impl<'a> Temporary<'a> {
    /// Creates and locks a directory with this mode, to which the umask applies.
    pub(super) fn create(destination: &'a Destination<'a>, mode: u16) -> Result<Self, UnpackError> {
        let error = |source| destination.error("create", b"", source);
        for _ in 0..ATTEMPT_COUNT {
            let name = temporary_name(&destination.name);
            match destination.parent.create_directory(&name, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created.map_err(error)?,
            }
            if let Some(root) = lock_new(&destination.parent, &name).map_err(error)? {
                return Ok(Self {
                    destination,
                    name,
                    root,
                    is_published: false,
                });
            }
        }
        Err(error(io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// Gives the directory the name of the destination.
    pub(super) fn publish(mut self, sync: bool) -> Result<(), UnpackError> {
        let (parent, name) = (&self.destination.parent, &*self.destination.name);
        // `rename` replaces an empty directory, and nothing else.
        match rustix::fs::renameat(parent, &*self.name, parent, name) {
            Ok(()) => self.is_published = true,
            Err(errno) => return Err(self.not_renamed(errno)),
        }
        self.sync_parent(sync)
    }

    /// Gives an entry of the directory the name of the destination, and removes the directory.
    pub(super) fn publish_entry(self, entry: &[u8], sync: bool) -> Result<(), UnpackError> {
        let (parent, name) = (&self.destination.parent, &*self.destination.name);
        let flags = RenameFlags::NOREPLACE;
        let renamed = match rustix::fs::renameat_with(&self.root, entry, parent, name, flags) {
            // The file system does not know the flag. A hard link replaces nothing either.
            Err(Errno::INVAL) => {
                rustix::fs::linkat(&self.root, entry, parent, name, AtFlags::empty())
            }
            renamed => renamed,
        };
        renamed.map_err(|errno| self.not_renamed(errno))?;
        self.sync_parent(sync)
    }

    fn not_renamed(&self, errno: Errno) -> UnpackError {
        match errno {
            Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => UnpackError::Exists {
                path: self.destination.path.into(),
            },
            Errno::BUSY => UnpackError::MountPoint {
                path: self.destination.path.into(),
            },
            _ => self.destination.error("create", b"", errno.into()),
        }
    }

    fn sync_parent(&self, sync: bool) -> Result<(), UnpackError> {
        if !sync {
            return Ok(());
        }
        let synced = rustix::fs::fsync(&self.destination.parent);
        synced.map_err(|errno| self.destination.error("sync", b"", errno.into()))
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed now is removed by a later call in the same directory.
            self.destination.parent.remove_all(&self.name).ok();
        }
    }
}

/// Locks a new directory. Returns `None` if another process has removed it as a left-over before it
/// was locked.
fn lock_new(parent: &Root, name: &[u8]) -> io::Result<Option<Root>> {
    let root = match parent.directory(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        root => root?,
    };
    // On a file system without locks, no process can lock the directory to remove it either.
    let locked = rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive);
    if locked == Err(Errno::WOULDBLOCK) {
        return Ok(None);
    }
    Ok(is_same(parent, name, &root)?.then_some(root))
}

/// Returns whether a name belongs to an open directory.
fn is_same(parent: &Root, name: &[u8], root: &Root) -> io::Result<bool> {
    let opened = rustix::fs::fstat(root)?;
    match parent.stat(name) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the temporary directories of processes that were killed. Errors have no effect: another
/// user may own the directory.
fn remove_leftovers(parent: &Root) {
    for (name, _) in read_names(parent).unwrap_or_default() {
        if is_leftover_name(&name) {
            remove_leftover(parent, &name).ok();
        }
    }
}

fn remove_leftover(parent: &Root, name: &[u8]) -> io::Result<()> {
    let root = parent.directory(name)?;
    let is_own = rustix::fs::fstat(&root)?.st_uid == rustix::process::geteuid().as_raw();
    rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive)?;
    // The directory may have been published since it was opened.
    if is_own && is_same(parent, name, &root)? {
        parent.remove_all(name)?;
    }
    Ok(())
}

fn temporary_name(destination: &[u8]) -> Vec<u8> {
    let prefix = destination.get(..PREFIX_LEN_MAX).unwrap_or(destination);
    let random = random() & u64::from(u32::MAX);
    let suffix = format!("{}{random:0RANDOM_LEN$x}", host());
    [b".", prefix, MARK, suffix.as_bytes()].concat()
}

/// Returns whether this is the name of a temporary directory of this host.
fn is_leftover_name(name: &[u8]) -> bool {
    let digits = name.split_last_chunk::<DIGITS_LEN>();
    is_temporary(name) && digits.is_some_and(|(_, digits)| digits.starts_with(host().as_bytes()))
}

/// Returns a hash of the host name, [`HOST_LEN`] hexadecimal digits.
fn host() -> String {
    let digest = Sha256::digest(rustix::system::uname().nodename().to_bytes());
    let number = digest
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes));
    format!("{number:0HOST_LEN$x}")
}
