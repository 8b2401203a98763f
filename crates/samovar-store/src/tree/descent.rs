//! The open directories between the root of a tree and the current position.
//!
//! At any depth only the innermost [`OPEN_COUNT_MAX`] are open. When a walk returns to a closed
//! directory, it is reopened as `..` of its child, and must have the same device and inode as
//! before.

use std::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dev, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::TreeError;
use crate::sys;

/// Maximum number of open directories.
const OPEN_COUNT_MAX: usize = 16;

/// The directories from the root to the current one. The innermost is always open.
#[derive(Debug, Default)]
pub(super) struct Descent {
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// The open descriptor; `None` once it was closed. Only the innermost [`OPEN_COUNT_MAX`] stay
    /// open.
    directory: Option<OwnedFd>,
    /// Device and inode of the directory, read before its descriptor is closed; `None` before it is
    /// closed for the first time.
    identity: Option<(Dev, u64)>,
}

impl Descent {
    /// Returns the number of directories from the root to the current one.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Returns the current directory.
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if there is none.
    pub(super) fn innermost(&self) -> Result<BorrowedFd<'_>, TreeError> {
        let directory = self
            .levels
            .last()
            .and_then(|level| level.directory.as_ref());
        directory.map(AsFd::as_fd).ok_or(TreeError::Changed)
    }

    /// Enters a child of the current directory, or the root.
    pub(super) fn enter(&mut self, directory: OwnedFd) -> Result<(), TreeError> {
        self.levels.push(Level {
            directory: Some(directory),
            identity: None,
        });
        if let Some(index) = self.levels.len().checked_sub(OPEN_COUNT_MAX + 1) {
            self.levels[index].close()?;
        }
        Ok(())
    }

    /// Returns to the parent of the current directory.
    pub(super) fn leave(&mut self) -> Result<(), TreeError> {
        let child = self.levels.pop();
        if let (Some(child), Some(parent)) = (child, self.levels.last_mut()) {
            parent.reopen(child.directory.as_ref().ok_or(TreeError::Changed)?)?;
        }
        Ok(())
    }
}

impl Level {
    fn close(&mut self) -> Result<(), TreeError> {
        if let Some(directory) = self.directory.take()
            && self.identity.is_none()
        {
            self.identity = Some(identity(&directory)?);
        }
        Ok(())
    }

    fn reopen(&mut self, child: &OwnedFd) -> Result<(), TreeError> {
        if self.directory.is_some() {
            return Ok(());
        }
        let parent = open_directory(child.as_fd(), c"..")?;
        if Some(identity(&parent)?) != self.identity {
            return Err(TreeError::Changed);
        }
        self.directory = Some(parent);
        Ok(())
    }
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a directory; fails on a symbolic link.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd, TreeError> {
    Ok(rustix::fs::openat(
        parent,
        name,
        OPEN_DIRECTORY,
        Mode::empty(),
    )?)
}

/// Opens a directory; fails on a symbolic link. Returns `None` for a mount point, also of a bind
/// mount, which has the device number of its source.
///
/// Without `openat2` (before Linux 5.6, in some containers) mount points are opened.
pub(super) fn open_on_same_mount(
    parent: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<OwnedFd>, TreeError> {
    match sys::open_on_same_mount(parent, name, OPEN_DIRECTORY) {
        Err(Errno::XDEV) => Ok(None),
        Err(Errno::NOSYS | Errno::PERM) => open_directory(parent, name).map(Some),
        opened => Ok(Some(opened?)),
    }
}

fn identity(directory: &OwnedFd) -> Result<(Dev, u64), TreeError> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}
