//! [`ReadError`]: the reasons why a local tree cannot be read.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::entries::TreeError;

/// Reason why a local tree cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file or directory changed, appeared, vanished or was replaced while the tree was read.
    #[error("the tree changes while it is read: {}", Plain(.0))]
    Changed(PathBuf),
    /// A file has other contents than its digest says, although its metadata are unchanged.
    #[error(
        "{} is damaged: its contents have changed since they were hashed, but not its metadata. \
         Restore it, or run touch on it to use it as it is",
        Plain(.0)
    )]
    Damaged(PathBuf),
    /// The operating system failed an operation.
    #[error("cannot read {}: {reason}", Plain(.path))]
    Io {
        /// Path of the file, directory or link.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// A NAR cannot contain the entry.
    #[error("cannot pack {}: {reason}", Plain(.path))]
    Entry {
        /// Path of the entry.
        path: PathBuf,
        /// The reason.
        reason: TreeError,
    },
    /// No thread could be started, or one of them ended by a panic.
    #[error("cannot read with threads: {0}")]
    Thread(io::Error),
}

impl ReadError {
    /// Returns the error of a failed system call. An error that means that an entry was replaced or
    /// deleted becomes [`ReadError::Changed`].
    pub(crate) fn of_call(path: PathBuf, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR | Errno::ISDIR => {
                Self::Changed(path)
            }
            // Sockets and devices without a driver cannot be opened; a FIFO has nothing to read.
            Errno::NXIO | Errno::NODEV | Errno::AGAIN => Self::Changed(path),
            other => Self::Io {
                path,
                reason: other.into(),
            },
        }
    }
}

/// Displays a path in one line, without control characters.
struct Plain<'a>(&'a Path);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.as_os_str().as_bytes().utf8_chunks() {
            for character in chunk.valid().chars() {
                match character.is_control() {
                    true => write!(f, "{}", character.escape_default())?,
                    false => write!(f, "{character}")?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_path_is_named_in_one_line() {
        let path = PathBuf::from(OsStr::from_bytes("/tmp/ä\n\u{1b}[1m".as_bytes()));
        let error = ReadError::Changed(path.join(OsStr::from_bytes(b"\xff")));
        let text = r"the tree changes while it is read: /tmp/ä\n\u{1b}[1m/\xff";
        assert_eq!(error.to_string(), text);
        let error = ReadError::of_call("/a".into(), Errno::ACCESS);
        let text = error.to_string();
        assert!(
            text.starts_with("cannot read /a: Permission denied"),
            "{text}"
        );
    }
}
