//! File metadata that changes when a database file is replaced or modified.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{StoreError, Unavailable};

/// Device, inode, size and change time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    /// Device and inode.
    pub(super) file: (u64, u64),
    pub(super) size: u64,
    /// Change time. Unlike the modification time, a copy cannot set it back.
    changed: (i64, i64),
}

impl FileState {
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let metadata = std::fs::metadata(path).map_err(|error| explain(&error))?;
        Ok(Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Converts the error of opening the database file or reading its metadata.
pub(super) fn explain(error: &std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::NotFound => StoreError::Unavailable(Unavailable::DatabaseMissing),
        std::io::ErrorKind::PermissionDenied => {
            StoreError::Unavailable(Unavailable::PermissionDenied)
        }
        _ => StoreError::io("reading the database", error),
    }
}

/// Length and modification time. Both a checkpoint and a copy over the file change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    len: u64,
    modified: (i64, i64),
}

impl Content {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            len: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}
